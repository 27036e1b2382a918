/* What a pass costs by its rows, and prefill, against the roofline: the limits are measured between
 * the passes, and every ratio is taken within a round before the rounds are summed up, because a
 * shared machine drifts by tens of per cent within a minute.
 *
 * A pass of m rows reads all weights and the KV behind it once, whatever m, and multiplies m times.
 * Its roofline is max(bytes / read limit, m * multiply-adds / arithmetic limit). The multiply-adds
 * are those of the matrices; attention's and the float work of the scales are not in it. */
#include "bench/bench.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum {
    PREFILL_STEP = 256, /* positions read between two questions whether to go on: seconds at most */
    LOOK_EVERY = 8,     /* passes between two looks at the limits */
    LOOK_READS = 3,     /* the fastest counts: a single one can fall below what a pass reads */
    /* One row is what all others are compared with, and narrow passes are what a draft asks for: they
     * are short, so a round takes the median of a few laps. Not of passes in a row: what disturbs a
     * shared machine often lasts for three of them. */
    NARROW = 8,
    LAPS = 3,
    DRAFTS = 3 /* proposals */
};

static td_code ask(bench_tick_fn *tick, void *user, const char *what, int done, int total,
                   td_error *err) {
    if (tick && !tick(user, what, done, total)) return td_fail(err, TD_E_CANCELLED, "stopped");
    return TD_OK;
}

/* Brings the caches to n_context positions in steps that can be stopped. */
static td_code read_context(td_session *s, int n_context, bench_tick_fn *tick, void *user,
                            td_error *err) {
    char what[40];
    double ms;
    td_code rc = TD_OK;
    snprintf(what, sizeof what, "context of %d", n_context);
    for (int at = PREFILL_STEP; at < n_context && !rc; at += PREFILL_STEP)
        if (!(rc = ask(tick, user, what, at - PREFILL_STEP, n_context, err)))
            rc = td_measure_pass(s, at, 1, 1, &ms, err);
    if (!rc) rc = ask(tick, user, what, n_context / PREFILL_STEP * PREFILL_STEP, n_context, err);
    return rc ? rc : td_measure_pass(s, n_context, 1, 1, &ms, err);
}

/* ---- T(m) ---- */

/* Times by round and width, and the limits of each round. */
struct bench_costing {
    bench_cost *c;
    int n_done;           /* rounds */
    double *ms;           /* (n_rounds, n_rows) */
    double *lap_ms;       /* (n_rows, LAPS) of the round at hand */
    double *draft_ms;     /* (n_rounds) */
    bench_limits *limits; /* (n_rounds) */
    double *column;       /* (n_rounds) scratch */
};
typedef bench_costing cost_rounds;

static td_code run_round(td_session *s, bench_probe *probe, cost_rounds *all, bench_tick_fn *tick,
                         void *user, td_error *err) {
    const bench_cost *c = all->c;
    const int round = all->n_done;
    char what[40];
    td_code rc;
    snprintf(what, sizeof what, "passes behind %d", c->n_context);
    if (c->with_draft &&
        (rc = td_measure_draft(s, c->n_context, DRAFTS, &all->draft_ms[round], err)))
        return rc;
    for (int lap = 0; lap < LAPS; lap++)
        for (int i = 0; i < c->n_rows; i++) {
            const int at = (round + lap) % 2 ? c->n_rows - 1 - i : i, m = c->rows[at];
            const int done = (round * LAPS + lap) * c->n_rows + i;
            if (lap && m > NARROW) continue;
            if ((rc = ask(tick, user, what, done, c->n_rounds * LAPS * c->n_rows, err))) return rc;
            if (i % LOOK_EVERY == 0) bench_limits_look(&all->limits[round], probe, LOOK_READS);
            if ((rc = td_measure_pass(s, c->n_context, m, 1, &all->lap_ms[at * LAPS + lap], err)))
                return rc;
        }
    for (int i = 0; i < c->n_rows; i++)
        all->ms[round * c->n_rows + i] =
            bench_range_of(&all->lap_ms[i * LAPS], c->rows[i] > NARROW ? 1 : LAPS).median;
    bench_limits_look(&all->limits[round], probe, LOOK_READS);
    all->n_done++;
    return TD_OK;
}

static double roofline_of(const bench_cost *c, const bench_limits *l, int m) {
    return bench_roofline_ms(l, (double)c->weight_bytes + (double)c->kv_bytes,
                             (double)c->int_macs * m, (double)c->float_macs * m);
}

static bench_range over_rounds(const bench_cost *c, const cost_rounds *all, int i,
                               double (*value)(const bench_cost *, const cost_rounds *, int round,
                                               int i)) {
    for (int r = 0; r < all->n_done; r++)
        all->column[r] = value(c, all, r, i);
    return bench_range_of(all->column, all->n_done);
}

static double value_ms(const bench_cost *c, const cost_rounds *all, int round, int i) {
    return all->ms[round * c->n_rows + i];
}
static double value_roofline(const bench_cost *c, const cost_rounds *all, int round, int i) {
    return roofline_of(c, &all->limits[round], c->rows[i]);
}
static double value_over(const bench_cost *c, const cost_rounds *all, int round, int i) {
    return value_ms(c, all, round, i) / value_roofline(c, all, round, i);
}
static double value_growth(const bench_cost *c, const cost_rounds *all, int round, int i) {
    return c->rows[0] == 1 ? value_ms(c, all, round, i) / value_ms(c, all, round, 0) : NAN;
}
static double value_share(const bench_cost *c, const cost_rounds *all, int round, int i) {
    return ((double)c->weight_bytes + (double)c->kv_bytes) / value_ms(c, all, round, i) / 1e6 /
           all->limits[round].read_gb_per_s;
}
static double value_read(const bench_cost *c, const cost_rounds *all, int round, int i) {
    (void)c, (void)i;
    return all->limits[round].read_gb_per_s;
}
static double value_dot(const bench_cost *c, const cost_rounds *all, int round, int i) {
    (void)c, (void)i;
    return all->limits[round].dot_gmac_per_s;
}
static double value_fma(const bench_cost *c, const cost_rounds *all, int round, int i) {
    (void)c, (void)i;
    return all->limits[round].fma_gmac_per_s;
}

static double value_draft(const bench_cost *c, const cost_rounds *all, int round, int i) {
    (void)c, (void)i;
    return all->draft_ms[round];
}
static double value_draft_share(const bench_cost *c, const cost_rounds *all, int round, int i) {
    return value_draft(c, all, round, i) / value_ms(c, all, round, 0);
}

static void sum_up(bench_cost *c, const cost_rounds *all) {
    c->draft_ms = over_rounds(c, all, 0, value_draft);
    c->draft_share = over_rounds(c, all, 0, value_draft_share);
    c->read_gb_per_s = over_rounds(c, all, 0, value_read);
    c->dot_gmac_per_s = over_rounds(c, all, 0, value_dot);
    c->fma_gmac_per_s = over_rounds(c, all, 0, value_fma);
    for (int i = 0; i < c->n_rows; i++) {
        bench_cost_point *p = &c->points[i];
        *p = (bench_cost_point){.m = c->rows[i],
                                .ms = over_rounds(c, all, i, value_ms),
                                .roofline_ms = over_rounds(c, all, i, value_roofline),
                                .over = over_rounds(c, all, i, value_over),
                                .growth = over_rounds(c, all, i, value_growth),
                                .share = over_rounds(c, all, i, value_share)};
        p->gb_per_s = ((double)c->weight_bytes + (double)c->kv_bytes) / p->ms.median / 1e6;
    }
}

td_code bench_costing_open(bench_costing **out, bench_cost *c, td_error *err) {
    size_t n;
    if (c->n_rows < 1 || c->n_rounds < 1 || c->n_rounds > BENCH_MAX_ROUNDS)
        return td_fail(err, TD_E_ARG, "%d widths in %d rounds make no sense; use 1 to %d rounds",
                       c->n_rows, c->n_rounds, (int)BENCH_MAX_ROUNDS);
    const size_t n_rounds = (size_t)c->n_rounds;
    bench_costing *x = td_calloc(1, sizeof *x);
    if (x && td_mul(&n, n_rounds, (size_t)c->n_rows) && (x->ms = td_calloc(n, sizeof *x->ms)) &&
        (x->lap_ms = td_calloc((size_t)c->n_rows * LAPS, sizeof *x->lap_ms)) &&
        (x->draft_ms = td_calloc(n_rounds, sizeof *x->draft_ms)) &&
        (x->limits = td_calloc(n_rounds, sizeof *x->limits)) &&
        (x->column = td_calloc(n_rounds, sizeof *x->column))) {
        x->c = c;
        *out = x;
        return TD_OK;
    }
    bench_costing_close(&x);
    return td_fail(err, TD_E_MEMORY, "out of memory");
}

void bench_costing_close(bench_costing **x) {
    bench_costing *all = *x;
    *x = NULL;
    if (!all) return;
    if (all->n_done) sum_up(all->c, all);
    free(all->ms);
    free(all->lap_ms);
    free(all->draft_ms);
    free(all->limits);
    free(all->column);
    free(all);
}

td_code bench_costing_round(bench_costing *x, td_session *s, bench_probe *probe,
                            bench_tick_fn *tick, void *user, td_error *err) {
    assert(x->n_done < x->c->n_rounds);
    td_code rc = read_context(s, x->c->n_context, tick, user, err);
    return rc ? rc : run_round(s, probe, x, tick, user, err);
}

td_code bench_measure_cost(td_session *s, bench_probe *probe, bench_cost *c, bench_tick_fn *tick,
                           void *user, td_error *err) {
    bench_costing *x;
    const int n_rounds = c->n_rounds;
    td_code rc = bench_costing_open(&x, c, err);
    if (rc) return rc;
    rc = read_context(s, c->n_context, tick, user, err);
    for (int r = 0; r < n_rounds && !rc; r++)
        rc = run_round(s, probe, x, tick, user, err);
    bench_costing_close(&x);
    return rc;
}

/* ---- prefill ---- */

/* Some text, of which no two rounds share the first token: nothing is found in the cache. */
static void fill_text(td_token *to, int n, int round, int n_vocab) {
    const int n_used = n_vocab < 1000 ? n_vocab : 1000;
    for (int i = 0; i < n; i++)
        to[i] = (td_token)(((int64_t)i * 7919 + 18 + round) % n_used);
}

/* Long ones show how far they are; to stop one, its session is cancelled. */
typedef struct prefill_progress {
    bench_tick_fn *tick;
    void *user;
    int before, total; /* tokens of the rounds done, of all */
} prefill_progress;

static void on_prefill(void *user, int done, int total) {
    const prefill_progress *p = user;
    (void)total;
    p->tick(p->user, "prefill", p->before + done, p->total);
}

/* The last token of a prompt is left to the first pass of the decoding, which is not asked for. */
static td_code prefill_once(td_session *s, const td_token *text, int n_tokens,
                            prefill_progress *progress, double *ms, td_error *err) {
    td_generate_options opt;
    td_stats stats;
    td_generate_defaults(&opt);
    opt.sampling.temperature = 0;
    opt.n_predict = 0;
    opt.draft_max = 0;
    opt.on_prefill = progress->tick ? on_prefill : NULL;
    opt.user = progress;
    const td_code rc = td_generate(s, text, (size_t)n_tokens + 1, &opt, &stats, err);
    if (rc) return rc;
    if (stats.stop == TD_STOP_CANCELLED) return td_fail(err, TD_E_CANCELLED, "stopped");
    *ms = stats.prefill_ms * n_tokens / (stats.prefill_tokens > 0 ? stats.prefill_tokens : 1);
    return TD_OK;
}

td_code bench_measure_prefill(td_session *s, bench_probe *probe, bench_prefill *p, int n_vocab,
                              bench_tick_fn *tick, void *user, td_error *err) {
    enum { MS, RATE, GMACS, LIMIT, SHARE, N_VALUES };
    const size_t n = (size_t)(p->n_rounds > 0 ? p->n_rounds : 0);
    double *v[N_VALUES] = {0};
    td_code rc = TD_OK;
    td_token *text = td_calloc((size_t)p->n_tokens + 1, sizeof *text);
    for (int i = 0; i < N_VALUES; i++)
        if (!(v[i] = td_calloc(n, sizeof *v[i]))) rc = TD_E_MEMORY;
    if (!text || rc) {
        rc = td_fail(err, TD_E_MEMORY, "out of memory");
        goto done;
    }
    for (int r = 0; r < p->n_rounds; r++) {
        prefill_progress progress = {tick, user, r * p->n_tokens, p->n_rounds * p->n_tokens};
        bench_limits limits = {0};
        fill_text(text, p->n_tokens + 1, r, n_vocab);
        if ((rc = ask(tick, user, "prefill", progress.before, progress.total, err))) goto done;
        bench_limits_look(&limits, probe, 1);
        if ((rc = prefill_once(s, text, p->n_tokens, &progress, &v[MS][r], err))) goto done;
        bench_limits_look(&limits, probe, 1);
        const double macs = (double)(p->int_macs + p->float_macs) * p->n_tokens;
        v[RATE][r] = p->n_tokens / v[MS][r] * 1000;
        v[GMACS][r] = macs / v[MS][r] / 1e6;
        v[LIMIT][r] = limits.dot_gmac_per_s;
        v[SHARE][r] = bench_roofline_ms(&limits, 0, (double)p->int_macs * p->n_tokens,
                                        (double)p->float_macs * p->n_tokens) /
                      v[MS][r];
    }
    p->ms = bench_range_of(v[MS], p->n_rounds);
    p->tok_per_s = bench_range_of(v[RATE], p->n_rounds);
    p->gmac_per_s = bench_range_of(v[GMACS], p->n_rounds);
    p->dot_gmac_per_s = bench_range_of(v[LIMIT], p->n_rounds);
    p->share = bench_range_of(v[SHARE], p->n_rounds);
done:
    for (int i = 0; i < N_VALUES; i++)
        free(v[i]);
    free(text);
    return rc;
}
