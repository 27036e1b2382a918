/* tandem bench: plain against speculative decoding of the same prompts, and what the machine gives.
 * The measuring is the bench room's; here are tables and JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "cli/cli.h"

/* Used when no prompt is given: code, because that is what drafts are good at and people do. */
static const char builtin_prompt[] =
    "# A least-recently-used cache with a time limit for each entry.\n"
    "import time\n"
    "from collections import OrderedDict\n"
    "\n"
    "\n"
    "class LRUCache:\n"
    "    \"\"\"Keeps at most `capacity` entries, none of them longer than `ttl` seconds.\"\"\"\n"
    "\n"
    "    def __init__(self, capacity, ttl=None):\n"
    "        self.capacity = capacity\n"
    "        self.ttl = ttl\n"
    "        self.entries = OrderedDict()\n"
    "\n"
    "    def get(self, key, default=None):\n";

enum { PASS_ROUNDS = 5, PROBE_BYTES = 1 << 30 };

typedef struct bench {
    cli_models models;
    cli_prompt *prompts; /* (n_prompts), owned */
    int n_prompts;
    int k[TD_MAX_DRAFT + 1], n_k; /* TD_DRAFT_AUTO among them */
    td_session *session;
    bench_probe *probe;
    bench_case *cases; /* (n_prompts, 1 + n_k), owned */
    bench_case all[2 + TD_MAX_DRAFT];
    bench_passes passes; /* of one row, and of as many as each length takes */
    bool measured;       /* passes and draft_ms hold figures */
    double draft_ms;     /* a step of the draft */
    int at_prompt;
    bool greedy, text; /* text: tables are printed */
} bench;

/* ---- prompts ---- */

static int read_prompts(bench *b, const cli_args *a) {
    if (a->prompts) return cli_prompts_read(&b->prompts, &b->n_prompts, a);
    if (!(b->prompts = calloc(1, sizeof *b->prompts))) return cli_failed("out of memory");
    cli_prompt *p = b->prompts;
    b->n_prompts = 1;
    if (a->prompt || a->prompt_file) return cli_prompt_read(p, a);
    p->len = sizeof builtin_prompt - 1;
    return (p->text = strdup(builtin_prompt)) ? CLI_OK : cli_failed("out of memory");
}

/* ---- the tables ---- */

static bool tick_compare(void *user, int done, int total) {
    const bench *b = user;
    char what[48];
    snprintf(what, sizeof what, "prompt %d of %d", b->at_prompt + 1, b->n_prompts);
    cli_progress(what, done, total, "generations");
    return !cli_stop_signal();
}

static bool tick_passes(void *user, int done, int total) {
    (void)user;
    cli_progress("measuring passes", done, total, "steps");
    return !cli_stop_signal();
}

static void print_models(const bench *b) {
    const td_model *models[] = {b->models.target, b->models.draft};
    for (int i = 0; i < 2; i++) {
        const td_model_info *m = td_model_get_info(models[i]);
        char size[24];
        printf("%s   ", i ? "draft " : "target");
        cli_print_safe(stdout, *m->name ? m->name : m->path, strlen(*m->name ? m->name : m->path),
                       40);
        printf(" (%s), reads %s a token\n", m->arch, cli_size(size, m->step_bytes));
    }
    const int n = td_model_get_info(b->models.target)->n_threads;
    printf("machine  %s, %d thread%s\n", b->models.cpu, n, n == 1 ? "" : "s");
}

static void print_prompt(const bench *b, int i) {
    const char *id = b->prompts[i].id;
    printf("\nprompt %d of %d", i + 1, b->n_prompts);
    if (!id) return;
    printf(", ");
    cli_print_safe(stdout, id, strlen(id), 20);
}

static void print_header(void) {
    printf("    k   tok/s   lowest highest   ratio    95 %% interval  accepted  length  text\n");
}

/* "    4", " auto" */
static const char *length_name(char buf[16], int k) {
    if (k == TD_DRAFT_AUTO)
        snprintf(buf, 16, "%5s", "auto");
    else
        snprintf(buf, 16, "%5d", k);
    return buf;
}

static const char *interval_text(char buf[24], bench_interval v) {
    if (isfinite(v.low))
        snprintf(buf, 24, "%.3f to %.3f", v.low, v.high);
    else
        snprintf(buf, 24, "-");
    return buf;
}

static void print_case(const bench_case *c, bool greedy) {
    if (!c->k) {
        printf("plain %7.2f  %7.2f %7.2f\n", c->tok_per_s.median, c->tok_per_s.min,
               c->tok_per_s.max);
        return;
    }
    char name[16], interval[24];
    printf("%s %7.2f  %7.2f %7.2f  %6.3f  %14s  ", length_name(name, c->k), c->tok_per_s.median,
           c->tok_per_s.min, c->tok_per_s.max, c->ratio.median,
           interval_text(interval, c->interval));
    printf("%6.1f %%  %6.2f  %s\n",
           c->drafted ? 100 * (double)c->accepted / (double)c->drafted : 0.0,
           c->rounds ? 1 + (double)c->accepted / (double)c->rounds : 0.0,
           !greedy   ? "-"
           : c->same ? "same"
                     : "OTHER");
}

/* Cases over all prompts: counts are summed; medians, ranges and intervals are those of the prompts'
 * medians. One prompt's are its own. */
static int sum_prompts(bench *b) {
    double *speed = calloc((size_t)b->n_prompts, sizeof *speed);
    double *ratio = calloc((size_t)b->n_prompts, sizeof *ratio);
    double *delay = calloc(2 * (size_t)b->n_prompts, sizeof *delay);
    for (int i = 0; speed && ratio && delay && i <= b->n_k; i++) {
        bench_case *sum = &b->all[i];
        double *const p50 = delay, *const p95 = delay + b->n_prompts;
        *sum = (bench_case){.k = b->cases[i].k, .same = true};
        for (int p = 0; p < b->n_prompts; p++) {
            const bench_case *c = &b->cases[p * (1 + b->n_k) + i];
            speed[p] = c->tok_per_s.median;
            ratio[p] = c->ratio.median;
            p50[p] = c->itl_ms_p50, p95[p] = c->itl_ms_p95;
            for (int at = 0; at < TD_MAX_DRAFT; at++) {
                sum->drafted_per_pos[at] += c->drafted_per_pos[at];
                sum->accepted_per_pos[at] += c->accepted_per_pos[at];
            }
            sum->drafted += c->drafted;
            sum->accepted += c->accepted;
            sum->rounds += c->rounds;
            sum->tokens += c->tokens;
            sum->draft_ms += c->draft_ms;
            sum->verify_ms += c->verify_ms;
            sum->sample_ms += c->sample_ms;
            sum->same = sum->same && c->same;
        }
        sum->interval = b->n_prompts == 1 ? b->cases[i].interval
                                          : bench_bootstrap(ratio, b->n_prompts);
        sum->tok_per_s = b->n_prompts == 1 ? b->cases[i].tok_per_s
                                           : bench_range_of(speed, b->n_prompts);
        sum->ratio = b->n_prompts == 1 ? b->cases[i].ratio : bench_range_of(ratio, b->n_prompts);
        sum->itl_ms_p50 = bench_range_of(p50, b->n_prompts).median;
        sum->itl_ms_p95 = bench_range_of(p95, b->n_prompts).median;
    }
    const bool ok = speed && ratio && delay;
    free(speed);
    free(ratio);
    free(delay);
    return ok ? CLI_OK : cli_failed("out of memory");
}

static int compare(bench *b, const cli_args *a) {
    td_generate_options opt;
    cli_generate_options(&opt, a);
    b->cases = calloc((size_t)b->n_prompts * (size_t)(1 + b->n_k), sizeof *b->cases);
    if (!b->cases) return cli_failed("out of memory");
    for (int p = 0; p < b->n_prompts; p++) {
        bench_case *cases = b->cases + p * (1 + b->n_k);
        const bench_plan plan = {.prompt = b->prompts[p].tokens,
                                 .n_prompt = b->prompts[p].n,
                                 .k = b->k,
                                 .n_k = b->n_k,
                                 .n_runs = a->n_runs,
                                 .generate = &opt};
        td_error err;
        b->at_prompt = p;
        const td_code rc = bench_compare(b->session, &plan, cases, tick_compare, b, &err);
        cli_progress_end();
        if (rc) return cli_error(&err);
        if (!b->text) continue;
        print_prompt(b, p);
        printf(": %zu tokens, then %d; %d run%s of each\n", plan.n_prompt, cases[0].n_tokens,
               a->n_runs, a->n_runs == 1 ? "" : "s");
        print_header();
        for (int i = 0; i <= b->n_k; i++)
            print_case(&cases[i], b->greedy);
        fflush(stdout);
    }
    const int rc = sum_prompts(b);
    if (rc || b->n_prompts == 1 || !b->text) return rc;
    printf("\nall %d prompts (their medians)\n", b->n_prompts);
    print_header();
    for (int i = 0; i <= b->n_k; i++)
        print_case(&b->all[i], b->greedy);
    return CLI_OK;
}

static void print_passes(const bench *b) {
    const bench_passes *p = &b->passes;
    char size[24];
    printf("\nread limit    %6.1f GB/s (highest; median %.1f), measured between the passes\n",
           p->read_gb_per_s.max, p->read_gb_per_s.median);
    printf("plain decode  %6.1f GB/s: %s a token in %.1f ms, %d positions before it\n",
           p->decode_gb_per_s.median,
           cli_size(size, td_model_get_info(b->models.target)->step_bytes), p->ms[0].median,
           p->n_context);
    printf("share         %6.0f %% of the limit (%.0f to %.0f)\n", 100 * p->share.median,
           100 * p->share.min, 100 * p->share.max);
    printf("draft         %6.1f ms a token, %.2f of a plain pass\n", b->draft_ms,
           b->draft_ms / p->ms[0].median);
}

/* T(m) of the passes that were measured; NAN for another width. */
static double pass_ms(const bench *b, int m) {
    for (int i = 0; i < b->passes.n_widths; i++)
        if (b->passes.m[i] == m) return b->passes.ms[i].median;
    return NAN;
}

/* What S(k) makes of the costs, with the tokens a round that this length committed. NAN for auto. */
static double predicted(const bench *b, const bench_case *c) {
    const bench_case *plain = &b->all[0];
    if (!b->measured || c->k <= 0 || !c->rounds || !plain->rounds) return NAN;
    const bench_forecast_round f = {.k = c->k,
                                    .tokens = 1 + (double)c->accepted / (double)c->rounds,
                                    .plain_ms = pass_ms(b, 1),
                                    .verify_ms = pass_ms(b, c->k + 1),
                                    .draft_ms = b->draft_ms,
                                    .plain_sample_ms = plain->sample_ms / (double)plain->rounds,
                                    .sample_ms = c->sample_ms / (double)c->rounds};
    return bench_predict(&f);
}

static void print_lengths(const bench *b) {
    printf("\n    k    T(k+1)  to T(1)   predicted  measured     off   draft verify sampling\n");
    for (int i = 0; i <= b->n_k; i++) {
        const bench_case *c = &b->all[i];
        const double ms = c->draft_ms + c->verify_ms + c->sample_ms, s = predicted(b, c);
        char name[16];
        if (c->k >= 0)
            printf("%s %6.1f ms %8.2f", c->k ? length_name(name, c->k) : "plain",
                   pass_ms(b, c->k + 1), pass_ms(b, c->k + 1) / pass_ms(b, 1));
        else
            printf("%s %9s %8s", length_name(name, c->k), "-", "-");
        if (isfinite(s))
            printf("  %10.3f %9.3f %+6.1f %%", s, c->ratio.median, 100 * (s / c->ratio.median - 1));
        else
            printf("  %10s %9.3f %8s", "-", c->ratio.median, "-");
        printf(" %5.0f %% %4.0f %% %6.0f %%\n", 100 * c->draft_ms / ms, 100 * c->verify_ms / ms,
               100 * c->sample_ms / ms);
    }
}

/* The sentence that everything else is for. */
static void print_verdict(const bench *b) {
    int best = 0;
    char name[16], interval[24];
    for (int i = 1; i <= b->n_k; i++)
        if (!best || b->all[i].ratio.median > b->all[best].ratio.median) best = i;
    const bench_case *c = &b->all[best];
    const char *k = length_name(name, c->k);
    k += strspn(k, " ");
    interval_text(interval, c->interval);
    const bool known = isfinite(c->interval.low);
    if (c->k == TD_DRAFT_AUTO && !c->drafted)
        printf("\nDo not speculate here: no length is faster than plain decoding; -k auto drafts nothing.\n");
    else if (c->ratio.median <= 1 || (known && c->interval.high <= 1))
        printf("\nDo not speculate here: the best length, %s, gives %.2f of plain decoding (%s).\n", k,
               c->ratio.median, interval);
    else if (known && c->interval.low <= 1)
        printf("\nNot certain to pay: the best length, %s, gives %.2f times plain decoding, but the\n"
               "interval (%s) holds 1. More prompts or --runs would tell.\n",
               k, c->ratio.median, interval);
    else
        printf("\nBest here: -k %s, %.2f times plain decoding (%s).\n", k, c->ratio.median,
               known ? interval : "of too few runs for an interval");
}

/* One row, and what every length takes; each once, ascending. */
static int choose_widths(const bench *b, int m[BENCH_MAX_WIDTHS]) {
    int n = 0;
    for (int rows = 1; rows <= TD_MAX_DRAFT + 1; rows++) {
        bool wanted = rows == 1;
        for (int i = 0; i < b->n_k; i++)
            wanted = wanted || b->k[i] + 1 == rows;
        if (wanted) m[n++] = rows;
    }
    return n;
}

static int measure(bench *b) {
    const td_model_info *m = td_model_get_info(b->models.target);
    bench_passes *p = &b->passes;
    td_error err;
    p->n_widths = choose_widths(b, p->m);
    const int room = td_session_n_ctx(b->session) - p->m[p->n_widths - 1] - 8;
    double middle = 0; /* where the texts were, on average */
    for (int i = 0; i < b->n_prompts; i++)
        middle += ((double)b->prompts[i].n + b->cases[i * (1 + b->n_k)].n_tokens / 2.0) / b->n_prompts;
    p->n_context = middle < room ? (int)middle : room;
    if (p->n_context < 1) {
        cli_warn("the context is too small to measure passes in; leaving that out");
        return CLI_OK;
    }
    if (bench_probe_open(&b->probe, m->n_threads, PROBE_BYTES, &err)) {
        cli_warn("%s; leaving the read limit out", err.msg);
        return CLI_OK;
    }
    td_code rc = bench_measure_passes(b->session, m->step_bytes, b->probe, PASS_ROUNDS, p, tick_passes,
                                      b, &err);
    if (!rc) rc = td_measure_draft(b->session, p->n_context, PASS_ROUNDS, &b->draft_ms, &err);
    cli_progress_end();
    if (rc) return cli_error(&err);
    b->measured = true;
    return CLI_OK;
}

static void print_summary(const bench *b) {
    if (b->measured) {
        print_passes(b);
        print_lengths(b);
    }
    print_verdict(b);
}

/* ---- JSON ---- */

static json_t *json_range(bench_range r) {
    return json_pack("{s:o, s:o, s:o}", "median", cli_json_number(r.median), "min",
                     cli_json_number(r.min), "max", cli_json_number(r.max));
}

static json_t *json_case(const bench_case *c, bool greedy) {
    json_t *k = c->k == TD_DRAFT_AUTO ? json_string("auto") : json_integer(c->k);
    json_t *drafted = json_array(), *accepted = json_array();
    for (int i = 0; i < TD_MAX_DRAFT && c->drafted_per_pos[i]; i++) {
        json_array_append_new(drafted, json_integer(c->drafted_per_pos[i]));
        json_array_append_new(accepted, json_integer(c->accepted_per_pos[i]));
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:f, "
                     "s:f, s:f, s:o}",
                     "k", k, "tok_per_s", json_range(c->tok_per_s), "ratio", json_range(c->ratio),
                     "ratio_low", cli_json_number(c->interval.low), "ratio_high",
                     cli_json_number(c->interval.high),
                     "drafted", (json_int_t)c->drafted, "accepted", (json_int_t)c->accepted,
                     "acceptance_rate",
                     cli_json_number(c->drafted ? (double)c->accepted / (double)c->drafted : NAN),
                     "acceptance_length",
                     cli_json_number(c->rounds ? 1 + (double)c->accepted / (double)c->rounds : NAN),
                     "drafted_per_pos", drafted, "accepted_per_pos", accepted, "itl_ms_p50", cli_json_number(c->itl_ms_p50),
                     "itl_ms_p95", cli_json_number(c->itl_ms_p95), "passes", (json_int_t)c->rounds, "tokens", (json_int_t)c->tokens, "draft_ms",
                     c->draft_ms, "verify_ms", c->verify_ms, "sample_ms", c->sample_ms, "same_text",
                     greedy ? json_boolean(c->same) : json_null());
}

static json_t *json_cases(const bench *b, const bench_case *cases) {
    json_t *list = json_array();
    for (int i = 0; i <= b->n_k; i++)
        json_array_append_new(list, json_case(&cases[i], b->greedy));
    return list;
}

static json_t *json_passes(const bench *b) {
    const bench_passes *p = &b->passes;
    if (!b->measured) return json_null();
    json_t *list = json_array();
    for (int i = 0; i < p->n_widths; i++)
        json_array_append_new(list, json_pack("{s:i, s:o, s:o}", "rows", p->m[i], "ms",
                                              json_range(p->ms[i]), "to_one_row",
                                              json_range(p->growth[i])));
    json_t *predictions = json_array();
    for (int i = 0; i <= b->n_k; i++)
        json_array_append_new(predictions, cli_json_number(predicted(b, &b->all[i])));
    return json_pack("{s:i, s:f, s:o, s:o, s:o, s:o, s:o}", "context", p->n_context, "draft_ms",
                     b->draft_ms, "predicted", predictions, "read_gb_per_s",
                     json_range(p->read_gb_per_s), "decode_gb_per_s",
                     json_range(p->decode_gb_per_s), "share_of_read_limit", json_range(p->share),
                     "widths", list);
}

static json_t *to_json(const bench *b, const cli_args *a) {
    json_t *prompts = json_array();
    for (int i = 0; i < b->n_prompts; i++) {
        const cli_prompt *p = &b->prompts[i];
        json_array_append_new(prompts,
                              json_pack("{s:o, s:o, s:o, s:i, s:o}", "id", cli_json_text(p->id),
                                        "set", cli_json_text(p->set), "lang",
                                        cli_json_text(p->lang), "prompt_tokens", (int)p->n, "cases",
                                        json_cases(b, b->cases + i * (1 + b->n_k))));
    }
    return json_pack("{s:o, s:o, s:i, s:i, s:f, s:o, s:o, s:o, s:o}", "target",
                     cli_json_model(b->models.target), "draft", cli_json_model(b->models.draft),
                     "n_predict", a->n_predict, "runs", a->n_runs, "temperature",
                     (double)a->sampling.temperature, "prompts", prompts, "all",
                     json_cases(b, b->all), "passes", json_passes(b), "versions",
                     cli_json_versions(b->models.cpu));
}

/* ---- a row for each length ---- */

static void print_rows(const bench *b, cli_format format) {
    static const char *const names[] = {"k",          "tok_per_s",  "speed_up", "low",      "high",
                                        "predicted",  "acceptance", "length",   "drafted",  "wasted",
                                        "draft_ms",   "verify_ms",  "sample_ms", "itl_ms_p50",
                                        "itl_ms_p95", "same_text"};
    enum { N_NAMES = sizeof names / sizeof *names, N_NUMBERS = N_NAMES - 2 };
    const bool md = format == CLI_MD;
    const char *between = md ? " | " : ",", *begin = md ? "| " : "", *end = md ? " |" : "";
    for (int i = 0; i < N_NAMES; i++)
        printf("%s%s", i ? between : begin, names[i]);
    printf("%s\n", end);
    for (int i = 0; i < N_NAMES && md; i++)
        printf(i ? " --- |" : "| --- |");
    if (md) putchar('\n');
    for (int i = 0; i <= b->n_k; i++) {
        const bench_case *c = &b->all[i];
        char name[16];
        const double v[N_NUMBERS] = {c->tok_per_s.median,
                                     c->ratio.median,
                                     c->interval.low,
                                     c->interval.high,
                                     predicted(b, c),
                                     c->drafted ? (double)c->accepted / (double)c->drafted : NAN,
                                     c->rounds ? 1 + (double)c->accepted / (double)c->rounds : NAN,
                                     (double)c->drafted,
                                     (double)(c->drafted - c->accepted),
                                     c->draft_ms,
                                     c->verify_ms,
                                     c->sample_ms,
                                     c->itl_ms_p50,
                                     c->itl_ms_p95};
        const char *k = length_name(name, c->k);
        printf("%s%s", begin, k + strspn(k, " "));
        for (int j = 0; j < N_NUMBERS; j++) {
            printf("%s", between);
            if (isfinite(v[j])) printf("%.6g", v[j]);
        }
        printf("%s%s%s\n", between, !b->greedy ? "" : c->same ? "true" : "false", end);
    }
}

static void print_all(const bench *b, const cli_args *a) {
    if (a->format == CLI_TEXT)
        print_summary(b);
    else if (a->format != CLI_JSON)
        print_rows(b, a->format);
}

/* ---- the command ---- */

static int open_session(bench *b, const cli_args *a) {
    size_t longest = 0;
    int draft_max = TD_AUTO_MAX_DRAFT;
    td_error err;
    for (int i = 0; i < b->n_k; i++)
        if (b->k[i] > draft_max) draft_max = b->k[i];
    for (int p = 0; p < b->n_prompts; p++)
        if (b->prompts[p].n > longest) longest = b->prompts[p].n;
    /* Room for the longest prompt with its text, and for the widest pass behind it. */
    const size_t need = longest + (size_t)a->n_predict + (size_t)draft_max + 10;
    const td_session_options opt = {
        .n_ctx = a->n_ctx == 0  ? td_model_get_info(b->models.target)->n_ctx_train
                 : a->n_ctx > 0 ? a->n_ctx
                                : (int)(need < 1000000000 ? need : 1000000000),
        .cache_type_k = a->cache_type_k,
        .cache_type_v = a->cache_type_v,
        .draft_max = draft_max};
    if (td_session_open(&b->session, b->models.target, b->models.draft, &opt, &err))
        return cli_error(&err);
    return b->k[b->n_k - 1] == TD_DRAFT_AUTO ? cli_calibrate(b->session, a) : CLI_OK;
}

static int prepare(bench *b, const cli_args *a) {
    int rc;
    if ((rc = cli_json_check(a->json)) || (rc = cli_plot_check(a->plot)) || (rc = read_prompts(b, a)))
        return rc;
    static const int usual[] = {1, 2, 3, 4, 6, TD_DRAFT_AUTO};
    b->n_k = a->n_k ? a->n_k : (int)(sizeof usual / sizeof *usual);
    memcpy(b->k, a->n_k ? a->k : usual, (size_t)b->n_k * sizeof *b->k);
    b->text = a->format == CLI_TEXT;
    b->greedy = a->sampling.temperature == 0;
    cli_stop_init();
    if ((rc = cli_models_open(&b->models, a, true)) || (rc = cli_check_bias(a, b->models.target)))
        return rc;
    for (int p = 0; p < b->n_prompts; p++)
        if ((rc = cli_prompt_encode(&b->prompts[p], a, b->models.target))) return rc;
    return open_session(b, a);
}

static void close_bench(bench *b) {
    bench_probe_close(&b->probe);
    td_session_close(&b->session);
    cli_models_close(&b->models);
    for (int p = 0; p < b->n_prompts; p++)
        cli_prompt_close(&b->prompts[p]);
    free(b->prompts);
    free(b->cases);
}

int cli_bench(cli_args *a) {
    bench b = {0};
    int rc;
    if (a->mode == CLI_SAVED) return cli_compare(a);
    if (a->mode == CLI_REPLOT) return cli_plot_saved(a);
    if (a->mode != CLI_COMPARE) return cli_measure(a);
    if (a->sampling.seed == UINT64_MAX) a->sampling.seed = 1; /* the same tokens each run */
    cli_progress_init(!a->no_progress);
    if ((rc = prepare(&b, a))) goto fail;
    if (b.text) print_models(&b);
    cli_stop_session(b.session);
    if (!(rc = compare(&b, a)) && !(rc = measure(&b))) print_all(&b, a);
    cli_stop_session(NULL);
    if (!rc && a->print_json) rc = cli_json_print(to_json(&b, a));
    if (!rc) rc = cli_finish_stdout();
    if (!rc && a->json) rc = cli_json_write(a->json, to_json(&b, a));
    if (!rc && a->plot) {
        json_t *result = to_json(&b, a);
        rc = cli_plot(a->plot, result);
        json_decref(result);
    }
    for (int i = 1; i <= b.n_k && !rc && b.greedy; i++)
        if (!b.all[i].same)
            rc = b.all[i].k == TD_DRAFT_AUTO
                     ? cli_failed("speculation changed the text (k auto): please report this")
                     : cli_failed("speculation changed the text (k %d): please report this",
                                  b.all[i].k);
fail:
    close_bench(&b);
    return rc;
}
