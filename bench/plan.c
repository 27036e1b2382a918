/* What a model gives on a machine, from sizes and limits alone. Everything is a ceiling: a pass takes
 * as long as moving its bytes or its arithmetic, whichever is longer, and nothing else takes time.
 * Doubles throughout: sizes stay below 2^53, and a plan needs three digits. */
#include "bench/bench.h"

#include <math.h>
#include <string.h>

static const double cache_bits[BENCH_CACHES] = {16, 8.5, 4.5}; /* f16, q8_0, q4_0 */
static const int batches[BENCH_BATCHES] = {1, 2, 4, 8, 16, 32};
static const int spec_batches[BENCH_SPEC_BATCHES] = {1, 4, 16};

/* Values of K and V that a row behind n positions reads. */
static double kv_values(const bench_sizes *s, double n) {
    return s->kv_values * n + s->window_values * fmin(n, s->window);
}

double bench_kv_bytes(const bench_sizes *s, double bits, double n_context) {
    return bits / 8 * kv_values(s, n_context);
}

static bench_pass pass_of(const bench_limits *l, double bytes, double int_macs, double float_macs) {
    return (bench_pass){.bytes = bytes,
                        .int_macs = int_macs,
                        .float_macs = float_macs,
                        .read_ms = bench_roofline_ms(l, bytes, 0, 0),
                        .arithmetic_ms = bench_roofline_ms(l, 0, int_macs, float_macs),
                        .ms = bench_roofline_ms(l, bytes, int_macs, float_macs)};
}

/* Weights are read once a pass, a stream's KV once for all of its rows. A query head multiplies with
 * each value of its KV head once: q . k, then weight times v. */
static bench_pass forecast_pass(const bench_forecast_in *in, const bench_sizes *s, int streams,
                                int rows, double n_context) {
    const double n = (double)streams * rows;
    return pass_of(&in->limits, s->step_bytes + streams * bench_kv_bytes(s, in->kv_bits, n_context),
                   n * s->int_macs, n * (s->float_macs + s->group * kv_values(s, n_context)));
}

/* 1 + 2 + ... + n, where each is at most `most`. */
static double sum_up_to(double n, double most) {
    const double rising = fmin(n, most);
    return rising * (rising + 1) / 2 + (n - rising) * most;
}

/* Row i attends to itself and the i positions before it. The weights are read once at least. */
static bench_pass forecast_prefill(const bench_forecast_in *in) {
    const bench_sizes *s = &in->target;
    const double n = in->n_prompt;
    const double attention =
        s->group * (s->kv_values * sum_up_to(n, n) + s->window_values * sum_up_to(n, s->window));
    return pass_of(&in->limits, s->step_bytes, n * s->prefill_int_macs,
                   n * s->prefill_float_macs + attention);
}

/* The most positions whose KV fits into free_bytes. KV never shrinks with them, so halving finds it,
 * with windows of any kind. */
static double longest(const bench_forecast_in *in, double bits, double free_bytes) {
    double fits = 0, too_long = 0x1p40;
    while (too_long - fits > 1) {
        const double n = floor((fits + too_long) / 2);
        const double bytes =
            bench_kv_bytes(&in->target, bits, n) + bench_kv_bytes(&in->draft, bits, n);
        *(bytes <= free_bytes ? &fits : &too_long) = n;
    }
    return too_long == 0x1p40 ? INFINITY : fits;
}

static void forecast_memory(bench_forecast *out, const bench_forecast_in *in) {
    const bench_sizes *t = &in->target, *d = &in->draft;
    out->free_bytes = in->memory_bytes - t->weight_bytes - d->weight_bytes;
    for (int i = 0; i < BENCH_CACHES; i++) {
        const double bits = cache_bits[i];
        out->caches[i] = (bench_cache){
            .bits = bits,
            .token_bytes = bits / 8 * (t->kv_values + d->kv_values),
            .window_bytes =
                bits / 8 * (t->window_values * t->window + d->window_values * d->window),
            .context_bytes =
                bench_kv_bytes(t, bits, in->n_context) + bench_kv_bytes(d, bits, in->n_context),
            .longest = out->free_bytes < 0 ? 0 : longest(in, bits, out->free_bytes)};
    }
}

static void forecast_batches(bench_forecast *out, const bench_forecast_in *in) {
    const bench_sizes *t = &in->target;
    const double kv = bench_kv_bytes(t, in->kv_bits, in->n_context);
    const double kv_all = kv + bench_kv_bytes(&in->draft, in->kv_bits, in->n_context);
    out->streams_fit = fmax(0, floor(out->free_bytes / kv_all));
    for (int i = 0; i < BENCH_BATCHES; i++) {
        const bench_pass p = forecast_pass(in, t, batches[i], 1, in->n_context);
        out->batch[i] = (bench_batch){batches[i], p, 1e3 * batches[i] / p.ms};
    }
    /* (weights + b KV) / B = b arithmetic, solved for b */
    const double arithmetic_ms = out->full.arithmetic_ms;
    const double kv_ms = bench_roofline_ms(&in->limits, kv, 0, 0);
    out->streams_turn =
        arithmetic_ms > kv_ms
            ? ceil(bench_roofline_ms(&in->limits, t->step_bytes, 0, 0) / (arithmetic_ms - kv_ms))
            : INFINITY;
}

static void forecast_speculation(bench_forecast *out, const bench_forecast_in *in) {
    double power = 1; /* a^(k-1), then a^k: E[N] is 1 + a + ... + a^k */
    for (int k = 1; k <= BENCH_SPEC_K; k++)
        out->expected[k - 1] = (k > 1 ? out->expected[k - 2] : 1) + (power *= in->acceptance);
    for (int i = 0; i < BENCH_SPEC_BATCHES; i++) {
        bench_speculation *s = &out->speculation[i];
        const int b = s->streams = spec_batches[i];
        s->plain_ms = forecast_pass(in, &in->target, b, 1, in->n_context).ms;
        s->draft_ms = forecast_pass(in, &in->draft, b, 1, in->n_context).ms;
        for (int k = 1; k <= BENCH_SPEC_K; k++) {
            const double verify_ms = forecast_pass(in, &in->target, b, k + 1, in->n_context).ms;
            s->v[k - 1] = verify_ms / s->plain_ms;
            s->speedup[k - 1] =
                out->expected[k - 1] / (k * s->draft_ms / s->plain_ms + s->v[k - 1]);
            if (k == 1 || s->speedup[k - 1] > s->speedup[s->best_k - 1]) s->best_k = k;
        }
        if (s->speedup[s->best_k - 1] <= 1) s->best_k = 0;
    }
}

void bench_forecast_make(bench_forecast *out, const bench_forecast_in *in) {
    memset(out, 0, sizeof *out);
    forecast_memory(out, in);
    out->empty = forecast_pass(in, &in->target, 1, 1, 0);
    out->full = forecast_pass(in, &in->target, 1, 1, in->n_context);
    out->prefill = forecast_prefill(in);
    out->answer = forecast_pass(in, &in->target, 1, 1, in->n_prompt + in->n_answer / 2.0);
    out->answer_ms = in->n_answer * out->answer.ms;
    forecast_batches(out, in);
    if (in->draft.weight_bytes > 0) forecast_speculation(out, in);
}
