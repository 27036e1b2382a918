/* Plain against speculative decoding, and the cost of a pass by its rows. A machine shared with
 * others drifts by tens of per cent within a minute, so nothing here compares figures from
 * different minutes: the cases of one run stand side by side, their order turns with every run
 * (ABBA), and ratios are taken within a run before they are summed up. */
#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bench_range bench_range_of(double *v, int n) {
    if (n <= 0) return (bench_range){NAN, NAN, NAN};
    qsort(v, (size_t)n, sizeof *v, by_value);
    return (bench_range){v[0], n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, v[n - 1]};
}

double bench_tok_per_s(const td_stats *stats) {
    if (stats->decode_tokens < 1 || stats->decode_ms <= 0) return NAN;
    return stats->decode_tokens * 1000.0 / stats->decode_ms;
}

typedef struct comparison {
    int n_cases, n_runs;
    double *speed;   /* (n_runs, n_cases) tok/s */
    double *column;  /* (n_runs) scratch */
    double *delay;   /* (n_runs, n_cases, 2): ITL p50 and p95 */
    td_token *first; /* tokens of the first plain run; owned */
    int n_first;     /* -1: none yet */
} comparison;

static td_code check_tokens(comparison *c, const td_stats *stats, bool *same, td_error *err) {
    const size_t n = (size_t)stats->decode_tokens;
    if (c->n_first < 0) {
        if (!(c->first = td_calloc(n, sizeof *c->first)))
            return td_fail(err, TD_E_MEMORY, "out of memory");
        if (n) memcpy(c->first, stats->tokens, n * sizeof *c->first);
        c->n_first = (int)n;
    }
    if ((int)n != c->n_first || (n && memcmp(c->first, stats->tokens, n * sizeof *c->first)))
        *same = false;
    return TD_OK;
}

/* One generation; its figures are added to *out. */
static td_code run_case(td_session *s, const bench_plan *plan, comparison *c, int run, int i,
                        bench_case *out, td_error *err) {
    td_generate_options opt = *plan->generate;
    td_stats stats;
    td_code rc;
    opt.draft_max = out->k;
    opt.on_text = NULL;
    opt.on_prefill = NULL;
    if ((rc = td_generate(s, plan->prompt, plan->n_prompt, &opt, &stats, err))) return rc;
    if (stats.stop == TD_STOP_CANCELLED) return td_fail(err, TD_E_CANCELLED, "stopped");
    if ((rc = check_tokens(c, &stats, &out->same, err))) return rc;
    c->speed[run * c->n_cases + i] = bench_tok_per_s(&stats);
    double *delay = c->delay + 2 * (run * c->n_cases + i);
    delay[0] = stats.itl_ms_p50, delay[1] = stats.itl_ms_p95;
    for (int p = 0; p < TD_MAX_DRAFT; p++) {
        out->drafted_per_pos[p] += stats.drafted_per_pos[p];
        out->accepted_per_pos[p] += stats.accepted_per_pos[p];
    }
    out->n_tokens = stats.decode_tokens;
    out->tokens += stats.decode_tokens;
    out->drafted += stats.drafted;
    out->accepted += stats.accepted;
    out->rounds += stats.rounds;
    out->draft_ms += stats.draft_ms;
    out->verify_ms += stats.verify_ms;
    out->sample_ms += stats.sample_ms;
    return TD_OK;
}

static void sum_up(const comparison *c, bench_case *cases) {
    for (int i = 0; i < c->n_cases; i++) {
        for (int r = 0; r < c->n_runs; r++)
            c->column[r] = c->speed[r * c->n_cases + i];
        cases[i].tok_per_s = bench_range_of(c->column, c->n_runs);
        for (int r = 0; r < c->n_runs; r++)
            c->column[r] = c->speed[r * c->n_cases + i] / c->speed[r * c->n_cases];
        cases[i].interval = bench_bootstrap(c->column, c->n_runs);
        cases[i].ratio = bench_range_of(c->column, c->n_runs);
        double *const to[] = {&cases[i].itl_ms_p50, &cases[i].itl_ms_p95};
        for (int d = 0; d < 2; d++) {
            for (int r = 0; r < c->n_runs; r++)
                c->column[r] = c->delay[2 * (r * c->n_cases + i) + d];
            *to[d] = bench_range_of(c->column, c->n_runs).median;
        }
    }
}

td_code bench_compare(td_session *s, const bench_plan *plan, bench_case *cases,
                      bool (*tick)(void *user, int done, int total), void *user, td_error *err) {
    comparison c = {.n_cases = 1 + plan->n_k, .n_runs = plan->n_runs, .n_first = -1};
    const int total = c.n_cases * c.n_runs;
    td_code rc = TD_OK;
    c.speed = td_calloc((size_t)total, sizeof *c.speed);
    c.column = td_calloc((size_t)c.n_runs, sizeof *c.column);
    c.delay = td_calloc(2 * (size_t)total, sizeof *c.delay);
    if (!c.speed || !c.column || !c.delay) rc = td_fail(err, TD_E_MEMORY, "out of memory");
    for (int i = 0; i < c.n_cases; i++)
        cases[i] = (bench_case){.k = i ? plan->k[i - 1] : 0, .same = true};
    for (int done = 0; done < total && !rc; done++) {
        const int run = done / c.n_cases, step = done % c.n_cases;
        const int i = run % 2 ? c.n_cases - 1 - step : step;
        if (tick && !tick(user, done, total))
            rc = td_fail(err, TD_E_CANCELLED, "stopped");
        else
            rc = run_case(s, plan, &c, run, i, &cases[i], err);
    }
    if (!rc) sum_up(&c, cases);
    free(c.speed);
    free(c.column);
    free(c.delay);
    free(c.first);
    return rc;
}

enum { MAX_ROUNDS = 32, PASSES_A_ROUND = 5, SWEEPS = 3 };

/* The limit is what the machine can do, so the fastest of a few sweeps counts: on a busy machine a
 * single one fell below what decoding itself read a moment later. */
static double read_limit(bench_probe *probe) {
    double best = 0;
    for (int i = 0; i < SWEEPS; i++)
        best = fmax(best, bench_probe_read(probe));
    return best;
}

td_code bench_measure_passes(td_session *s, uint64_t step_bytes, bench_probe *probe, int n_rounds,
                             bench_passes *out, bool (*tick)(void *user, int done, int total),
                             void *user, td_error *err) {
    double ms[BENCH_MAX_WIDTHS][MAX_ROUNDS], growth[BENCH_MAX_WIDTHS][MAX_ROUNDS];
    double reads[2 * MAX_ROUNDS], decode[MAX_ROUNDS], share[MAX_ROUNDS];
    if (n_rounds < 1 || n_rounds > MAX_ROUNDS || out->n_widths < 1 ||
        out->n_widths > BENCH_MAX_WIDTHS || out->m[0] != 1)
        return td_fail(err, TD_E_ARG, "pass widths: 1 first, at most %d of them, in 1..%d rounds",
                       BENCH_MAX_WIDTHS, MAX_ROUNDS);
    for (int r = 0; r < n_rounds; r++) {
        for (int i = 0; i < out->n_widths; i++) {
            td_code rc;
            if (tick && !tick(user, r * out->n_widths + i, n_rounds * out->n_widths))
                return td_fail(err, TD_E_CANCELLED, "stopped");
            if (i == 0) reads[2 * r] = read_limit(probe);
            if ((rc =
                     td_measure_pass(s, out->n_context, out->m[i], PASSES_A_ROUND, &ms[i][r], err)))
                return rc;
            if (i == 0) reads[2 * r + 1] = read_limit(probe);
            growth[i][r] = ms[i][r] / ms[0][r];
        }
        decode[r] = (double)step_bytes / ms[0][r] / 1e6;
        share[r] = decode[r] / fmax(reads[2 * r], reads[2 * r + 1]);
    }
    for (int i = 0; i < out->n_widths; i++) {
        out->ms[i] = bench_range_of(ms[i], n_rounds);
        out->growth[i] = bench_range_of(growth[i], n_rounds);
    }
    out->read_gb_per_s = bench_range_of(reads, 2 * n_rounds);
    out->decode_gb_per_s = bench_range_of(decode, n_rounds);
    out->share = bench_range_of(share, n_rounds);
    return TD_OK;
}
