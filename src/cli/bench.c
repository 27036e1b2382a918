/* tandem bench: plain against speculative decoding of the same prompts, over a sweep of temperatures, rules and
 * shapes of drafts; and between them what passes cost. The measuring is the bench room's; tables and JSON are bench_report.c's. */
#include <stdlib.h>
#include <string.h>

#include "cli/sweep.h"

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

static int read_prompts(sweep *s, const cli_args *a) {
    if (a->prompts) return cli_prompts_read(&s->prompts, &s->n_prompts, a);
    if (!(s->prompts = calloc(1, sizeof *s->prompts))) return cli_failed("out of memory");
    cli_prompt *p = s->prompts;
    s->n_prompts = 1;
    if (a->prompt || a->prompt_file) return cli_prompt_read(p, a);
    p->len = sizeof builtin_prompt - 1;
    return (p->text = strdup(builtin_prompt)) ? CLI_OK : cli_failed("out of memory");
}

/* ---- the arms ---- */

/* Each once, also where a list says something twice. */
static void add_arm(sweep *s, bench_arm arm) {
    for (int i = 0; i < s->n_arms; i++) {
        const bench_arm *a = &s->arms[i];
        if (a->temperature == arm.temperature && a->verify == arm.verify && a->k == arm.k &&
            a->width == arm.width)
            return;
    }
    s->arms[s->n_arms++] = arm;
}

static int choose_arms(sweep *s, const cli_args *a) {
    static const int usual[] = {1, 2, 3, 4, 6, TD_DRAFT_AUTO};
    const int *k = a->n_k ? a->k : usual;
    const int n_k = a->n_k ? a->n_k : (int)(sizeof usual / sizeof *usual);
    bool skipped = false;
    s->arms = calloc((size_t)(a->n_temperatures * (1 + a->n_rules * (n_k + a->n_trees))),
                     sizeof *s->arms);
    if (!s->arms) return cli_failed("out of memory");
    for (int t = 0; t < a->n_temperatures; t++) {
        const float temperature = a->temperatures[t];
        /* Under the rule with which a seed gives one text: the others' texts are their own anyway. */
        add_arm(s, (bench_arm){temperature, TD_VERIFY_COUPLED, 0, 1});
        for (int r = 0; r < (temperature == 0 ? 1 : a->n_rules); r++) {
            const td_verify rule = cli_verify_rule(a->rules[r]);
            for (int i = 0; i < n_k; i++)
                add_arm(s, (bench_arm){temperature, rule, k[i], 1});
            for (int i = 0; i < a->n_trees; i++) {
                const cli_tree *tree = &a->trees[i];
                if (tree->width > 1 && temperature != 0 && rule == TD_VERIFY_BLOCK)
                    skipped = true;
                else
                    add_arm(s, (bench_arm){temperature, rule, tree->depth, tree->width});
            }
        }
    }
    if (skipped) cli_warn("--verify block takes drafts one token wide; its trees are left out");
    s->timeline_arm = s->n_arms - 1;
    for (int i = 0; i < s->n_arms; i++)
        if (s->arms[i].k == TD_DRAFT_AUTO) s->timeline_arm = i;
    return CLI_OK;
}

/* ---- what passes cost ---- */

/* One row, and what every arm takes; each once, ascending. */
static int choose_rows(const sweep *s, int rows[TD_MAX_DRAFT + 1]) {
    int n = 0;
    for (int m = 1; m <= TD_MAX_DRAFT + 1; m++) {
        bool wanted = false;
        for (int i = 0; i < s->n_arms; i++)
            wanted = wanted || bench_arm_rows(&s->arms[i]) == m;
        if (wanted) rows[n++] = m;
    }
    return n;
}

/* Some rounds before each prompt: what is compared with the texts must have met the machine when they did. */
static int rounds_a_prompt(const sweep *s) {
    return s->n_prompts < PASS_ROUNDS ? (PASS_ROUNDS + s->n_prompts - 1) / s->n_prompts : 1;
}

static int open_costing(sweep *s, const cli_args *a) {
    bench_cost *c = &s->passes;
    bench_sizes sizes;
    td_error err;
    int rc = cli_model_sizes(&sizes, a->model, s->models.target);
    if (rc) return rc;
    *c = (bench_cost){.rows = s->rows,
                      .n_rows = choose_rows(s, s->rows),
                      .n_rounds = rounds_a_prompt(s) * s->n_prompts,
                      .with_draft = true,
                      .points = s->points};
    const int room = td_session_n_ctx(s->session) - s->rows[c->n_rows - 1] - 8;
    double middle = a->n_predict / 2.0; /* where the texts will be, on average */
    for (int p = 0; p < s->n_prompts; p++)
        middle += (double)s->prompts[p].n / s->n_prompts;
    c->n_context = middle < room ? (int)middle : room;
    if (c->n_context < 1) {
        cli_warn("the context is too small to measure passes in; leaving that out");
        return CLI_OK;
    }
    cli_cost_sizes(c, &sizes, a);
    const int n_threads = td_model_get_info(s->models.target)->n_threads;
    if (bench_probe_open(&s->probe, n_threads, PROBE_BYTES, &err)) {
        cli_warn("%s; leaving the cost of passes out", err.msg);
        return CLI_OK;
    }
    return bench_costing_open(&s->costing, c, &err) ? cli_error(&err) : CLI_OK;
}

/* ---- comparing ---- */

static bool tick_compare(void *user, int done, int total) {
    const sweep *s = user;
    char what[48];
    snprintf(what, sizeof what, "prompt %d of %d", s->at_prompt + 1, s->n_prompts);
    cli_progress(what, done, total, "generations");
    return !cli_stop_signal();
}

static bool is_of(const cli_prompt *p, const char *set) {
    return !set || (p->set && !strcmp(p->set, set));
}

static void add_counts(bench_case *sum, const bench_case *c) {
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
    sum->joules += c->joules;
    sum->metered_tokens += c->metered_tokens;
    sum->same = sum->same && c->same;
}

/* Cases over the prompts of a set, NULL: all. Counts are summed; medians, ranges and intervals are those of the
 * prompts' medians, a single prompt's its own. scratch: (5, n_prompts). */
static void sum_prompts(const sweep *s, const char *set, bench_case *out, double *scratch) {
    double *v[5];
    for (int f = 0; f < 5; f++)
        v[f] = scratch + f * s->n_prompts;
    for (int i = 0; i < s->n_arms; i++) {
        const bench_case *only = NULL;
        bench_case sum = {.arm = s->arms[i], .same = true};
        int n = 0;
        for (int p = 0; p < s->n_prompts; p++) {
            if (!is_of(&s->prompts[p], set)) continue;
            const bench_case *c = only = &s->cases[p * s->n_arms + i];
            v[0][n] = c->tok_per_s.median, v[1][n] = c->ratio.median, v[2][n] = c->ttft_ms;
            v[3][n] = c->itl_ms_p50, v[4][n] = c->itl_ms_p95;
            add_counts(&sum, c);
            n++;
        }
        sum.interval = bench_bootstrap(v[1], n);
        sum.tok_per_s = bench_range_of(v[0], n);
        sum.ratio = bench_range_of(v[1], n);
        sum.ttft_ms = bench_range_of(v[2], n).median;
        sum.itl_ms_p50 = bench_range_of(v[3], n).median;
        sum.itl_ms_p95 = bench_range_of(v[4], n).median;
        out[i] = n == 1 ? *only : sum;
    }
}

/* The sets that prompts carry, in the order they come. */
static bool find_sets(sweep *s) {
    if (!(s->sets = calloc((size_t)s->n_prompts, sizeof *s->sets))) return false;
    for (int p = 0; p < s->n_prompts; p++) {
        const char *name = s->prompts[p].set;
        int at = 0;
        if (!name) continue;
        while (at < s->n_sets && strcmp(s->sets[at].name, name))
            at++;
        if (at == s->n_sets) {
            s->sets[s->n_sets++].name = name;
            if (!(s->sets[at].cases = calloc((size_t)s->n_arms, sizeof *s->all))) return false;
        }
        s->sets[at].n_prompts++;
    }
    return true;
}

static int sum_up(sweep *s) {
    double *scratch = calloc(5 * (size_t)s->n_prompts, sizeof *scratch);
    const bool ok = scratch && (s->all = calloc((size_t)s->n_arms, sizeof *s->all)) && find_sets(s);
    if (ok) sum_prompts(s, NULL, s->all, scratch);
    for (int i = 0; i < s->n_sets && ok; i++)
        sum_prompts(s, s->sets[i].name, s->sets[i].cases, scratch);
    free(scratch);
    return ok ? CLI_OK : cli_failed("out of memory");
}

static int compare(sweep *s, const cli_args *a) {
    td_generate_options opt;
    int rc;
    cli_generate_options(&opt, a);
    s->cases = calloc((size_t)s->n_prompts * (size_t)s->n_arms, sizeof *s->cases);
    if (!s->cases) return cli_failed("out of memory");
    bench_energy_open(&s->energy, NULL);
    if ((rc = open_costing(s, a))) return rc;
    for (int p = 0; p < s->n_prompts; p++) {
        const bench_plan plan = {.prompt = s->prompts[p].tokens,
                                 .n_prompt = s->prompts[p].n,
                                 .arms = s->arms,
                                 .n_arms = s->n_arms,
                                 .n_runs = a->n_runs,
                                 .generate = &opt,
                                 .energy = &s->energy,
                                 .timeline = p ? NULL : &s->timeline,
                                 .timeline_arm = s->timeline_arm};
        td_error err;
        s->at_prompt = p;
        td_code code = TD_OK;
        for (int r = 0; s->costing && r < rounds_a_prompt(s) && !code; r++)
            code = bench_costing_round(s->costing, s->session, s->probe, cli_tick, NULL, &err);
        if (!code)
            code =
                bench_compare(s->session, &plan, s->cases + p * s->n_arms, tick_compare, s, &err);
        cli_progress_end();
        if (code) return cli_error(&err);
        if (a->format == CLI_TEXT) sweep_print_prompt(s, p);
    }
    s->measured = s->costing;
    bench_costing_close(&s->costing);
    return sum_up(s);
}

/* ---- the command ---- */

static int open_session(sweep *s, const cli_args *a) {
    size_t longest = 0;
    int draft_max = TD_AUTO_MAX_DRAFT;
    bool adapts = false;
    td_error err;
    for (int i = 0; i < s->n_arms; i++) {
        const int rows = bench_arm_rows(&s->arms[i]);
        if (rows - 1 > draft_max) draft_max = rows - 1;
        adapts = adapts || s->arms[i].k == TD_DRAFT_AUTO;
    }
    for (int p = 0; p < s->n_prompts; p++)
        if (s->prompts[p].n > longest) longest = s->prompts[p].n;
    /* Room for the longest prompt with its text, and for the widest pass behind it. */
    const size_t need = longest + (size_t)a->n_predict + (size_t)draft_max + 10;
    const td_session_options opt = {
        .n_ctx = a->n_ctx == 0  ? td_model_get_info(s->models.target)->n_ctx_train
                 : a->n_ctx > 0 ? a->n_ctx
                                : (int)(need < 1000000000 ? need : 1000000000),
        .cache_type_k = a->cache_type_k,
        .cache_type_v = a->cache_type_v,
        .draft_max = draft_max};
    if (td_session_open(&s->session, s->models.target, s->models.draft, &opt, &err))
        return cli_error(&err);
    return adapts ? cli_calibrate(s->session, a) : CLI_OK;
}

static int prepare(sweep *s, const cli_args *a) {
    int rc;
    if ((rc = cli_json_check(a->json)) || (rc = cli_plot_check(a->plot)) ||
        (rc = read_prompts(s, a)) || (rc = choose_arms(s, a)))
        return rc;
    cli_stop_init();
    if ((rc = cli_models_open(&s->models, a, true)) || (rc = cli_check_bias(a, s->models.target)))
        return rc;
    for (int p = 0; p < s->n_prompts; p++)
        if ((rc = cli_prompt_encode(&s->prompts[p], a, s->models.target))) return rc;
    return open_session(s, a);
}

static int check_texts(const sweep *s) {
    for (int i = 0; i < s->n_arms; i++) {
        const bench_arm *a = &s->arms[i];
        char name[24];
        if (!a->k || !bench_arm_repeats(a) || s->all[i].same) continue;
        return cli_failed("speculation changed the text (%s, temperature %g): please report this",
                          sweep_arm_name(name, s, a), (double)a->temperature);
    }
    return CLI_OK;
}

static void close_sweep(sweep *s) {
    bench_costing_close(&s->costing);
    bench_probe_close(&s->probe);
    td_session_close(&s->session);
    cli_models_close(&s->models);
    for (int p = 0; p < s->n_prompts; p++)
        cli_prompt_close(&s->prompts[p]);
    for (int i = 0; i < s->n_sets; i++)
        free(s->sets[i].cases);
    free(s->prompts);
    free(s->arms);
    free(s->cases);
    free(s->all);
    free(s->sets);
    free(s->timeline.rounds);
}

int cli_bench(cli_args *a) {
    sweep s = {.args = a};
    int rc;
    if (a->mode == CLI_SAVED) return cli_compare(a);
    if (a->mode == CLI_REPLOT) return cli_plot_saved(a);
    if (a->mode != CLI_COMPARE) return cli_measure(a);
    if (a->sampling.seed == UINT64_MAX) a->sampling.seed = 1; /* the same tokens each run */
    cli_progress_init(!a->no_progress);
    if ((rc = prepare(&s, a))) goto fail;
    if (a->format == CLI_TEXT) sweep_print_models(&s);
    cli_stop_session(s.session);
    rc = compare(&s, a);
    cli_stop_session(NULL);
    if (rc) goto fail;
    if (a->format == CLI_TEXT)
        sweep_print_summary(&s);
    else if (a->format == CLI_JSON)
        rc = cli_json_print(sweep_json(&s));
    else
        sweep_print_rows(&s);
    if (!rc) rc = cli_finish_stdout();
    if (!rc && a->json) rc = cli_json_write(a->json, sweep_json(&s));
    if (!rc && a->plot) {
        json_t *result = sweep_json(&s);
        rc = cli_plot(a->plot, result);
        json_decref(result);
    }
    if (!rc) rc = check_texts(&s);
fail:
    close_sweep(&s);
    return rc;
}
