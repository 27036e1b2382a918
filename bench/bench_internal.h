/* What the files of the bench room share. Nobody else includes this. */
#ifndef TD_BENCH_INTERNAL_H
#define TD_BENCH_INTERNAL_H

#include "bench/bench.h"

/* A loop that does one kind of arithmetic in registers and nothing else. */
typedef struct bench_rate {
    const char *name;    /* the instruction */
    long macs;           /* multiply-adds of one turn */
    long turns;          /* between two looks at the clock: far longer than the look, far shorter
                            than 10 ms */
    void (*run)(long n); /* n turns, n > 0; any thread */
} bench_rate;

/* The widest of this level: `cpu` are td_cpu_features, `level` is the kernels' word for it. */
bench_rate bench_rate_dot(unsigned cpu, const char *level); /* int8 */
bench_rate bench_rate_fma(unsigned cpu, const char *level); /* float */

/* The probe's threads, for what is timed beside it; one caller at a time. */
td_pool *bench_probe_pool(bench_probe *p);

#endif
