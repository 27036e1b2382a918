/* Plain against speculative decoding. A machine shared with others drifts by tens of per cent within
 * a minute, so nothing here compares figures from different minutes: the arms of one run stand side
 * by side, their order turns with every run (ABBA), and ratios are taken within a run before they
 * are summed up. */
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

bool bench_arm_repeats(const bench_arm *a) {
    return a->temperature == 0 || a->verify == TD_VERIFY_COUPLED;
}

int bench_arm_rows(const bench_arm *a) {
    return a->k == TD_DRAFT_AUTO ? 0 : 1 + a->k * a->width;
}

int bench_plain_of(const bench_arm *arms, int i) {
    while (arms[i].k)
        i--;
    return i;
}

/* Caches are kept between calls; to time the first token, a run must read its prompt. The first two runs do, one there
 * and one back: in all of them it would take longer than the decoding where prompts are long. */
enum { FRESH_RUNS = 2 };

/* Figures of each generation, which become medians. */
enum { SPEED, RATIO, TTFT, ITL_P50, ITL_P95, N_FIGURES };

typedef struct text {
    td_token *tokens; /* owned */
    int n;
} text;

typedef struct comparison {
    const bench_plan *plan;
    double *figures; /* (n_runs, n_arms, N_FIGURES) */
    double *column;  /* (n_runs) scratch */
    text *first;     /* (n_arms): of the first run, of plain arms only */
} comparison;

static double *figures_of(const comparison *c, int run, int i) {
    return c->figures + (run * c->plan->n_arms + i) * N_FIGURES;
}

static bool same_tokens(const text *t, const td_stats *stats) {
    const size_t n = (size_t)stats->decode_tokens;
    return t->n == stats->decode_tokens &&
           (!n || !memcmp(t->tokens, stats->tokens, n * sizeof *t->tokens));
}

static td_code keep_tokens(text *t, const td_stats *stats, td_error *err) {
    const size_t n = (size_t)stats->decode_tokens;
    if (!(t->tokens = td_calloc(n, sizeof *t->tokens)))
        return td_fail(err, TD_E_MEMORY, "out of memory");
    if (n) memcpy(t->tokens, stats->tokens, n * sizeof *t->tokens);
    t->n = (int)n;
    return TD_OK;
}

/* Empties the caches of target and draft: one token that does not begin the prompt, and no text. */
static td_code forget(td_session *s, const bench_plan *plan, td_error *err) {
    td_generate_options opt = *plan->generate;
    const td_token other = plan->prompt[0] == 0;
    opt.n_predict = 0;
    opt.draft_max = 1;
    opt.draft_width = 1;
    opt.on_text = NULL;
    opt.on_prefill = NULL;
    opt.on_round = NULL;
    return td_generate(s, &other, 1, &opt, NULL, err);
}

/* What is noted while a generation runs. */
typedef struct watch {
    bench_energy *energy;
    bench_timeline *timeline; /* NULL: not this one */
    int n_rounds, first_tokens;
    bool failed;
} watch;

static void on_round(void *user, const td_round *r) {
    watch *w = user;
    if (!w->n_rounds++) {
        w->first_tokens = r->tokens;
        if (w->energy) bench_energy_lap(w->energy);
    }
    bench_timeline *t = w->timeline;
    if (!t) return;
    if (td_grow(&t->rounds, &t->cap, t->n + 1, sizeof *t->rounds))
        t->rounds[t->n++] = *r;
    else
        w->failed = true;
}

static void add_counts(bench_case *out, const td_stats *stats) {
    for (int p = 0; p < TD_MAX_DRAFT; p++) {
        out->drafted_per_pos[p] += stats->drafted_per_pos[p];
        out->accepted_per_pos[p] += stats->accepted_per_pos[p];
    }
    out->n_tokens = stats->decode_tokens;
    out->tokens += stats->decode_tokens;
    out->drafted += stats->drafted;
    out->accepted += stats->accepted;
    out->rounds += stats->rounds;
    out->draft_ms += stats->draft_ms;
    out->verify_ms += stats->verify_ms;
    out->sample_ms += stats->sample_ms;
}

/* One generation; its figures are added to *out. */
static td_code run_case(td_session *s, comparison *c, int run, int i, bench_case *out,
                        td_error *err) {
    const bench_plan *plan = c->plan;
    const bench_arm *arm = &out->arm;
    watch w = {.energy = plan->energy,
               .timeline = run == 0 && i == plan->timeline_arm ? plan->timeline : NULL};
    td_generate_options opt = *plan->generate;
    td_stats stats;
    td_code rc;
    opt.sampling.temperature = arm->temperature;
    opt.verify = arm->verify;
    opt.draft_max = arm->k;
    opt.draft_width = arm->width;
    opt.on_text = NULL;
    opt.on_prefill = NULL;
    opt.on_round = on_round;
    opt.user = &w;
    if (run < FRESH_RUNS && (rc = forget(s, plan, err))) return rc;
    if ((rc = td_generate(s, plan->prompt, plan->n_prompt, &opt, &stats, err))) return rc;
    const double joules = plan->energy ? bench_energy_lap(plan->energy) : NAN;
    if (stats.stop == TD_STOP_CANCELLED) return td_fail(err, TD_E_CANCELLED, "stopped");
    if (w.failed) return td_fail(err, TD_E_MEMORY, "out of memory");
    const int plain = bench_plain_of(plan->arms, i);
    if (i == plain && run == 0 && (rc = keep_tokens(&c->first[i], &stats, err))) return rc;
    if (plan->timeline && run == 0 && i == bench_plain_of(plan->arms, plan->timeline_arm))
        plan->timeline->plain_ms = stats.decode_ms;
    if (!same_tokens(&c->first[plain], &stats)) out->same = false;
    double *f = figures_of(c, run, i);
    f[SPEED] = bench_tok_per_s(&stats);
    f[TTFT] = run < FRESH_RUNS ? stats.ttft_ms : NAN;
    f[ITL_P50] = stats.itl_ms_p50, f[ITL_P95] = stats.itl_ms_p95;
    if (w.n_rounds > 1) {
        out->joules += joules;
        out->metered_tokens += stats.decode_tokens - w.first_tokens;
    }
    add_counts(out, &stats);
    return TD_OK;
}

static bench_range over_runs(const comparison *c, int i, int figure) {
    int n = 0;
    for (int r = 0; r < c->plan->n_runs; r++) {
        const double v = figures_of(c, r, i)[figure];
        if (figure != TTFT || r < FRESH_RUNS) c->column[n++] = v;
    }
    return bench_range_of(c->column, n);
}

static void sum_up(const comparison *c, bench_case *cases) {
    const int n_runs = c->plan->n_runs;
    for (int i = 0; i < c->plan->n_arms; i++) {
        const int plain = bench_plain_of(c->plan->arms, i);
        for (int r = 0; r < n_runs; r++)
            figures_of(c, r, i)[RATIO] = c->column[r] =
                figures_of(c, r, i)[SPEED] / figures_of(c, r, plain)[SPEED];
        cases[i].interval = bench_bootstrap(c->column, n_runs);
        cases[i].ratio = over_runs(c, i, RATIO);
        cases[i].tok_per_s = over_runs(c, i, SPEED);
        cases[i].ttft_ms = over_runs(c, i, TTFT).median;
        cases[i].itl_ms_p50 = over_runs(c, i, ITL_P50).median;
        cases[i].itl_ms_p95 = over_runs(c, i, ITL_P95).median;
    }
}

td_code bench_compare(td_session *s, const bench_plan *plan, bench_case *cases,
                      bool (*tick)(void *user, int done, int total), void *user, td_error *err) {
    comparison c = {.plan = plan};
    const int n_arms = plan->n_arms, total = n_arms * plan->n_runs;
    td_code rc = TD_OK;
    c.figures = td_calloc((size_t)total * N_FIGURES, sizeof *c.figures);
    c.column = td_calloc((size_t)plan->n_runs, sizeof *c.column);
    c.first = td_calloc((size_t)n_arms, sizeof *c.first);
    if (!c.figures || !c.column || !c.first) rc = td_fail(err, TD_E_MEMORY, "out of memory");
    for (int i = 0; i < n_arms; i++)
        cases[i] = (bench_case){.arm = plan->arms[i], .same = true};
    for (int done = 0; done < total && !rc; done++) {
        const int run = done / n_arms, step = done % n_arms;
        const int i = run % 2 ? n_arms - 1 - step : step;
        if (tick && !tick(user, done, total))
            rc = td_fail(err, TD_E_CANCELLED, "stopped");
        else
            rc = run_case(s, &c, run, i, &cases[i], err);
    }
    if (!rc) sum_up(&c, cases);
    for (int i = 0; i < n_arms && c.first; i++)
        free(c.first[i].tokens);
    free(c.figures);
    free(c.column);
    free(c.first);
    return rc;
}
