/* td_selftest: what Tandem promises, tried on the user's own models. Texts through td_generate, as everyone gets them;
 * the law of samples and the contents of the caches through the rooms behind it. */
#include "lib_internal.h"
#include "spec/audit.h"
#include "spec/law.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_PREDICT = 64,
    TEXT_CTX = 512,
    N_SAMPLES = 1000000,
    LOOP_SAMPLES = 3000,
    LOOP_STEP = 25,
    LOOP_DRAFT = 4,
    AUDIT_STEPS = 300,
    RIG_CTX = 192,
    RIG_DRAFT = 8
};
/* The parts that take real passes give way on slow models: so many seconds each, and then what there is counts. */
static const double patience_s = 40;

static const char *const prompts[] = {
    "def merge(a, b):\n    \"\"\"Merges two sorted lists into one.\"\"\"\n",
    "The lighthouse keeper had not spoken to anyone since the autumn storms, and when the boat came he",
    "\xe5\x9c\xa8\xe4\xb8\x80\xe4\xb8\xaa\xe5\xae\x89\xe9\x9d\x99\xe7\x9a\x84\xe5\xb0\x8f\xe9\x95\x87\xe4\xb8\x8a"
    "\xef\xbc\x8c"}; /* "In a quiet little town," */
enum { N_PROMPTS = sizeof prompts / sizeof *prompts };

typedef struct shape {
    int k, width; /* places of a draft, candidates for each */
} shape;
static const shape shapes[] = {{0, 1}, {1, 1},  {2, 1}, {3, 1}, {4, 1},           {5, 1},
                               {8, 1}, {16, 1}, {3, 2}, {2, 5}, {TD_DRAFT_AUTO, 1}};
static const shape few_shapes[] = {{0, 1}, {4, 1}, {3, 2}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_FEW = sizeof few_shapes / sizeof *few_shapes };

enum { GREEDY, SEEDED, N_KINDS };
static const char *const kind_names[] = {"greedy text", "seeded text, coupled"};

static const struct {
    const char *name;
    verify_rule rule;
    int width; /* of the drafts in the loop; 0: from tables */
} laws[] = {{"law, token", VERIFY_TOKEN, 0},
            {"law, block", VERIFY_BLOCK, 0},
            {"law, coupled", VERIFY_COUPLED, 0},
            {"law in the loop, token", VERIFY_TOKEN, 1},
            {"law in the loop, trees", VERIFY_TOKEN, 2},
            {"law in the loop, block", VERIFY_BLOCK, 1},
            {"law in the loop, coupled", VERIFY_COUPLED, 1}};
enum { N_LAWS = sizeof laws / sizeof *laws };

static const verify_sampler law_sampler = {.temperature = 1,
                                           .top_k = LAW_TOP_K,
                                           .top_p = 1,
                                           .repeat_penalty = 1.1f,
                                           .presence_penalty = 0.1f,
                                           .frequency_penalty = 0.1f,
                                           .repeat_last_n = 64};

typedef struct selftest {
    const char *target_path, *draft_path;
    const td_selftest_options *opt;
    bool passed;
    int n_threads; /* of the pair at hand */
    td_model *target_model, *draft_model;
    td_session *session;
    td_token *prompt[N_PROMPTS];
    size_t n_prompt[N_PROMPTS];
    td_token text[N_KINDS][N_PROMPTS][N_PREDICT]; /* of the first plain runs */
    int n_text[N_KINDS][N_PROMPTS];               /* -1: none yet */
    int n_runs[N_KINDS], n_differ[N_KINDS];
    td_error *err;
} selftest;

/* ---- telling ---- */

static td_code tell(selftest *t, const char *what, int done, int total) {
    const td_selftest_options *o = t->opt;
    if (o->progress && !o->progress(o->user, what, done, total))
        return td_fail(t->err, TD_E_CANCELLED, "stopped");
    return TD_OK;
}

static void report(selftest *t, td_check c) {
    t->passed = t->passed && c.passed;
    if (t->opt->on_check) t->opt->on_check(t->opt->user, &c);
}

static bool tick_load(void *user, uint64_t done, uint64_t total) {
    const int per_mille = total ? (int)(done * 1000 / total) : 0;
    return !tell(user, "loading", per_mille, 1000);
}

/* ---- the pair, at a number of threads ---- */

static void close_pair(selftest *t) {
    td_session_close(&t->session);
    if (t->draft_model != t->target_model) td_model_close(&t->draft_model);
    td_model_close(&t->target_model);
    t->draft_model = NULL;
}

static td_code open_pair(selftest *t, int n_threads) {
    const td_model_options mo = {.n_threads = n_threads, .progress = tick_load, .user = t};
    const td_session_options so = {.n_ctx = TEXT_CTX, .draft_max = TD_AUTO_MAX_DRAFT};
    td_code rc;
    t->n_threads = n_threads;
    if ((rc = td_model_open(&t->target_model, t->target_path, &mo, t->err))) return rc;
    t->draft_model = t->target_model; /* alone, it drafts for itself */
    if (t->draft_path) {
        t->draft_model = NULL;
        if ((rc = td_model_open(&t->draft_model, t->draft_path, &mo, t->err))) return rc;
    }
    return td_session_open(&t->session, t->target_model, t->draft_model, &so, t->err);
}

/* ---- texts ---- */

static void fill_options(td_generate_options *o, int kind, const shape *s) {
    td_generate_defaults(o);
    o->n_predict = N_PREDICT;
    o->draft_max = s->k, o->draft_width = s->width;
    o->sampling = (td_sampling){.top_p = 1, .repeat_penalty = 1};
    if (kind == GREEDY) return;
    o->verify = TD_VERIFY_COUPLED;
    o->sampling = (td_sampling){.temperature = 0.7f,
                                .top_p = 0.9f,
                                .repeat_penalty = 1.1f,
                                .presence_penalty = 0.2f,
                                .frequency_penalty = 0.1f,
                                .repeat_last_n = 64,
                                .seed = 7};
}

static td_code write_text(selftest *t, int kind, int prompt, const shape *s) {
    td_generate_options o;
    td_stats st;
    fill_options(&o, kind, s);
    td_code rc = td_generate(t->session, t->prompt[prompt], t->n_prompt[prompt], &o, &st, t->err);
    if (rc) return rc;
    td_token *text = t->text[kind][prompt];
    int *n = &t->n_text[kind][prompt];
    const size_t bytes = (size_t)st.decode_tokens * sizeof *text;
    if (*n < 0) {
        memcpy(text, st.tokens, bytes);
        *n = st.decode_tokens;
        return TD_OK;
    }
    t->n_runs[kind]++;
    t->n_differ[kind] += st.decode_tokens != *n || memcmp(text, st.tokens, bytes);
    return TD_OK;
}

static td_code write_texts(selftest *t, const shape *s, int n_shapes) {
    const int total = N_KINDS * N_PROMPTS * n_shapes;
    td_code rc = td_session_calibrate(t->session, false, NULL, NULL, NULL, t->err);
    for (int i = 0; i < total && !rc; i++) {
        const int kind = i / (N_PROMPTS * n_shapes), prompt = i / n_shapes % N_PROMPTS;
        if (!(rc = tell(t, "texts", i, total)))
            rc = write_text(t, kind, prompt, &s[i % n_shapes]);
    }
    return rc;
}

static void report_texts(selftest *t) {
    for (int kind = 0; kind < N_KINDS; kind++) {
        td_check c = {.name = kind_names[kind],
                      .passed = !t->n_differ[kind],
                      .n = t->n_runs[kind],
                      .n_wrong = t->n_differ[kind],
                      .z = NAN,
                      .tv = NAN,
                      .tv_bound = NAN};
        snprintf(c.result, sizeof c.result, "%d runs with drafts, trees, threads: %d differ",
                 t->n_runs[kind], t->n_differ[kind]);
        report(t, c);
    }
}

/* ---- the rooms behind the session ---- */

/* Targets and drafts of small contexts; the second of each is what the first is compared with. */
typedef struct rig {
    target *t[2], *draft_side;
    draft *d[2];
    spec *s;
} rig;

static void rig_close(rig *r) {
    spec_close(r->s);
    for (int i = 0; i < 2; i++) {
        draft_close(r->d[i]);
        target_close(r->t[i]);
    }
    target_close(r->draft_side);
}

static td_code rig_open(rig *r, const selftest *t) {
    const target_config tc = {.n_ctx = RIG_CTX, .max_rows = LAW_PASS, .prefill_chunk = 32};
    const draft_model_config dc = {.n_ctx = RIG_CTX,
                                   .max_tokens = RIG_DRAFT,
                                   .prefill_chunk = 32,
                                   .n_vocab = t->target_model->info.n_vocab};
    td_code rc = target_open(&r->draft_side, t->draft_model->m, &tc, t->err);
    for (int i = 0; i < 2 && !rc; i++)
        if (!(rc = target_open(&r->t[i], t->target_model->m, &tc, t->err)))
            rc = draft_model_open(&r->d[i], t->draft_model->m, &dc, t->err);
    if (rc || (rc = spec_open(&r->s, r->t[0], r->d[0], RIG_DRAFT, t->err))) return rc;
    spec_set_costs(r->s, &spec_length(t->session->s)->costs); /* texts came first, and measured them */
    return TD_OK;
}

static void report_law(selftest *t, const char *name, const law *l, const int64_t *count, int64_t n,
                       bool possible) {
    const law_verdict v = law_judge(l, count, n);
    td_check c = {.name = name,
                  .passed = v.good && possible,
                  .n = n,
                  .n_wrong = !possible,
                  .z = v.z,
                  .tv = v.tv,
                  .tv_bound = v.tv_bound};
    if (v.tv_bound > 0.5)
        snprintf(c.result, sizeof c.result, "%lld texts, too few to say much%s", (long long)n,
                 possible ? "" : "; impossible ones");
    else
        snprintf(c.result, sizeof c.result, "%lld texts, z %.2f, off by %.4f of %.4f%s",
                 (long long)n, v.z, v.tv, v.tv_bound, possible ? "" : ", impossible ones");
    report(t, c);
}

static double seconds_since(uint64_t start) {
    return (double)(td_now_ns() - start) / 1e9;
}

/* Texts drawn from the tables: half of them with each length of draft. */
static td_code check_table(selftest *t, const law *l, int i) {
    const int n = (t->opt->n_samples ? t->opt->n_samples : N_SAMPLES) / (LAW_TOKENS - 1);
    int64_t count[LAW_CELLS] = {0};
    bool possible = true;
    for (int k = 1; k < LAW_TOKENS; k++) {
        td_code rc = tell(t, laws[i].name, k - 1, LAW_TOKENS - 1);
        if (rc) return rc;
        possible = law_sample(l, laws[i].rule, k, (uint64_t)k * (uint64_t)n, n, count) && possible;
    }
    report_law(t, laws[i].name, l, count, (int64_t)n * (LAW_TOKENS - 1), possible);
    return TD_OK;
}

/* Texts written by the whole loop. */
static td_code check_loop(selftest *t, const law *l, int i, spec *s) {
    const spec_params params = {.sampler = law_sampler,
                                .rule = laws[i].rule,
                                .draft_max = LOOP_DRAFT / laws[i].width,
                                .width = laws[i].width};
    int64_t count[LAW_CELLS] = {0};
    bool possible = true;
    int n = 0;
    const uint64_t start = td_now_ns();
    for (; n < LOOP_SAMPLES && (!n || seconds_since(start) < patience_s); n += LOOP_STEP) {
        td_code rc = tell(t, laws[i].name, n, LOOP_SAMPLES);
        if (rc || (rc = law_sample_loop(l, s, t->prompt[1], &params, (uint64_t)n, LOOP_STEP, count,
                                        &possible, t->err)))
            return rc;
    }
    report_law(t, laws[i].name, l, count, n, possible);
    return TD_OK;
}

static td_code check_law(selftest *t, rig *r) {
    const td_token *prompt = t->prompt[1];
    law *l;
    td_code rc = tell(t, "working out the law", 0, 1);
    if (rc || (rc = law_open(&l, r->t[0], r->draft_side, prompt, (int)t->n_prompt[1], &law_sampler,
                             NULL, t->err)))
        return rc;
    for (int i = 0; i < N_LAWS && !rc; i++)
        rc = laws[i].width ? check_loop(t, l, i, r->s) : check_table(t, l, i);
    law_close(l);
    return rc;
}

typedef struct audit_watch {
    selftest *t;
    uint64_t start;
    int done;
    bool out_of_time;
} audit_watch;

static bool tick_audit(void *user, int done, int total) {
    audit_watch *w = user;
    w->done = done;
    w->out_of_time = seconds_since(w->start) > patience_s;
    return !w->out_of_time && !tell(w->t, "caches", done, total);
}

static td_code check_caches(selftest *t, rig *r) {
    audit_watch w = {.t = t, .start = td_now_ns()};
    const audit a = {.s = r->s,
                     .t = r->t[0],
                     .d = r->d[0],
                     .shadow_t = r->t[1],
                     .shadow_d = r->d[1],
                     .prompt = t->prompt[0],
                     .n_prompt = (int)t->n_prompt[0],
                     .n_longest = RIG_CTX - 32,
                     .seed = 1,
                     .tick = tick_audit,
                     .user = &w};
    int n_wrong;
    const td_code rc = audit_run(&a, AUDIT_STEPS, &n_wrong, t->err);
    if (rc && !w.out_of_time) return rc;
    td_check c = {.name = "caches",
                  .passed = !n_wrong,
                  .n = rc ? w.done : AUDIT_STEPS,
                  .n_wrong = n_wrong,
                  .z = NAN,
                  .tv = NAN,
                  .tv_bound = NAN};
    snprintf(c.result, sizeof c.result, "%d rounds, cuts and new texts: %d left traces",
             (int)c.n, n_wrong);
    report(t, c);
    return TD_OK;
}

/* ---- all of it ---- */

static td_code read_prompts(selftest *t) {
    td_code rc = TD_OK;
    for (int i = 0; i < N_PROMPTS && !rc; i++)
        rc = td_tokenize(t->target_model, prompts[i], strlen(prompts[i]), true, false, &t->prompt[i],
                         &t->n_prompt[i], t->err);
    return rc;
}

static td_code run(selftest *t) {
    const int n = t->opt->n_threads ? t->opt->n_threads : td_default_threads();
    rig r = {0};
    td_code rc;
    if ((rc = open_pair(t, n)) || (rc = read_prompts(t)) ||
        (rc = write_texts(t, shapes, N_SHAPES)))
        return rc;
    lib_session_lock(t->session);
    if (!(rc = rig_open(&r, t)) && !(rc = check_law(t, &r))) rc = check_caches(t, &r);
    rig_close(&r);
    lib_session_unlock(t->session);
    if (rc) return rc;
    close_pair(t);
    if ((rc = open_pair(t, n == 1 ? 2 : 1)) || (rc = write_texts(t, few_shapes, N_FEW))) return rc;
    report_texts(t);
    return TD_OK;
}

td_code td_selftest(const char *target_path, const char *draft_path, const td_selftest_options *opt,
                    bool *passed, td_error *err) {
    const td_selftest_options defaults = {0};
    if (opt && (opt->n_threads < 0 || opt->n_samples < 0 || opt->n_samples > 100000000))
        return td_fail(err, TD_E_ARG, "a selftest on %d threads with %d texts makes no sense",
                       opt->n_threads, opt->n_samples);
    selftest *t = td_calloc(1, sizeof *t);
    if (!t) return td_fail(err, TD_E_MEMORY, "out of memory");
    t->target_path = target_path, t->draft_path = draft_path;
    t->opt = opt ? opt : &defaults;
    t->err = err;
    t->passed = true;
    for (int i = 0; i < N_KINDS * N_PROMPTS; i++)
        t->n_text[i / N_PROMPTS][i % N_PROMPTS] = -1;
    const td_code rc = run(t);
    if (!rc) *passed = t->passed;
    close_pair(t);
    for (int i = 0; i < N_PROMPTS; i++)
        td_free(t->prompt[i]);
    free(t);
    return rc;
}
