/* The certainty of a median: the percentile bootstrap (Efron 1979). Its random numbers are Philox's, so the same figures
 * have the same interval everywhere. */
#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RESAMPLES = 2000, FEWEST = 3 };

bench_interval bench_bootstrap(const double *v, int n) {
    const bench_interval none = {NAN, NAN};
    if (n < FEWEST) return none;
    double *median = td_calloc(RESAMPLES, sizeof *median), *sample = td_calloc((size_t)n, sizeof *sample);
    bench_interval out = none;
    if (median && sample) {
        for (int r = 0; r < RESAMPLES; r++) {
            for (int i = 0; i < n; i++) {
                const double u = td_uniform(1, TD_STREAM_PLAIN, (uint64_t)r, (uint32_t)i);
                sample[i] = v[(int)(u * n)];
            }
            median[r] = bench_range_of(sample, n).median;
        }
        bench_range_of(median, RESAMPLES); /* sorts */
        out = (bench_interval){median[RESAMPLES / 40], median[RESAMPLES - 1 - RESAMPLES / 40]};
    }
    free(median);
    free(sample);
    return out;
}

double bench_predict(const bench_forecast_round *f) {
    return (f->plain_ms + f->plain_sample_ms) * f->tokens /
           (f->k * f->draft_ms + f->verify_ms + f->sample_ms);
}
