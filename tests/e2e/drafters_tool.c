/* drafters_tool TARGET N_THREADS N_TOKENS N_RUNS PROMPT-FILE
 *
 * What drafting costs where it can't pay: the target with drafters made for the purpose, under the length that is
 * chosen round by round, against plain decoding, in turns (ABBA). Drafters: one that is always wrong at a third of a
 * pass's cost; one that is always wrong for nothing; one that is always right, at one and a half passes a token; one
 * that is right at a third of a pass's cost. One line each: name, ratio of time to plain (median of the runs), drafted,
 * accepted. For a person to run; times of a test would hang on the machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib_internal.h"

enum { MAX_RUNS = 99 };

typedef struct planted {
    draft base;
    const char *name;
    bool right;
    double passes; /* a token costs, in passes of the target */
    double pass_ms;
    const int32_t *text; /* what plain decoding wrote, the prompt included */
    int n_text, n_vocab;
} planted;

static void wait_ms(double ms) {
    for (const uint64_t start = td_now_ns(); (double)(td_now_ns() - start) < ms * 1e6;)
        ;
}

static void close_planted(draft *d) {
    (void)d;
}

static td_code begin(draft *d, const int32_t *tokens, int n, bool (*progress)(void *, int), void *user,
                     td_error *err) {
    (void)d, (void)tokens, (void)n, (void)progress, (void)user, (void)err;
    return TD_OK;
}

static td_code propose(draft *d, const draft_request *req, draft_proposal *out, td_error *err) {
    const planted *p = (const planted *)d;
    (void)err;
    out->n = 0;
    out->q = NULL;
    for (int i = 0; i < req->max_tokens && req->n_history + i < p->n_text; i++) {
        const draft_answer a = req->ask ? req->ask(req->user, i, 0.99f) : (draft_answer){1, true};
        wait_ms(p->passes * p->pass_ms);
        if (!a.width) break;
        const int32_t next = p->text[req->n_history + i];
        out->token[i] = p->right ? next : (next + 1) % p->n_vocab;
        out->parent[i] = i - 1;
        out->n = i + 1;
        if (!a.go_on) break;
    }
    return TD_OK;
}

static td_code observe(draft *d, const int32_t *tokens, int n_tokens, int n_accepted, td_error *err) {
    (void)d, (void)tokens, (void)n_tokens, (void)n_accepted, (void)err;
    return TD_OK;
}

static size_t no_memory(const draft *d) {
    (void)d;
    return 0;
}

static bool fine(const draft *d, const int32_t *text, int n) {
    (void)d, (void)text, (void)n;
    return true;
}

static const draft_ops ops = {"planted", close_planted, begin, propose, observe, no_memory, fine};

static void die(const td_error *err) {
    fprintf(stderr, "drafters_tool: %s\n", err->msg);
    exit(2);
}

static double write_text(spec *s, const int32_t *prompt, int n_prompt, int n, bool adapt, int32_t *text,
                         int *drafted, int *accepted) {
    const spec_params params = {.sampler = {.top_p = 1, .repeat_penalty = 1},
                                .draft_max = adapt ? LENGTH_MAX : 0,
                                .adapt = adapt};
    td_error err;
    if (spec_begin(s, prompt, n_prompt, &params, NULL, NULL, NULL, &err)) die(&err);
    const uint64_t start = td_now_ns();
    while (spec_n_tokens(s) < n_prompt + n) {
        spec_round r;
        if (spec_step(s, n_prompt + n - spec_n_tokens(s), &r, &err)) die(&err);
        *drafted += r.n_drafted, *accepted += r.n_accepted;
    }
    const double ms = (double)(td_now_ns() - start) / 1e6;
    memcpy(text, spec_tokens(s), (size_t)(n_prompt + n) * sizeof *text);
    return ms;
}

static void try_drafter(planted *p, target *t, const length_costs *costs, const int32_t *prompt, int n_prompt,
                        int n, int n_runs) {
    double ratio[MAX_RUNS], ms[2];
    int32_t *text = td_calloc((size_t)(n_prompt + n), sizeof *text);
    int drafted = 0, accepted = 0;
    td_error err;
    spec *s;
    p->base.ops = &ops;
    if (!text || spec_open(&s, t, &p->base, LENGTH_MAX, &err)) die(&err);
    length_costs c = *costs;
    c.draft = (float)(p->passes * p->pass_ms + 1e-3);
    spec_set_costs(s, &c);
    for (int run = 0; run < n_runs; run++) {
        for (int i = 0; i < 2; i++) {
            const int adapt = run % 2 ? !i : i;
            ms[adapt] = write_text(s, prompt, n_prompt, n, adapt, text, &drafted, &accepted);
            if (memcmp(text, p->text, (size_t)(n_prompt + n) * sizeof *text)) {
                printf("%s: the text DIFFERS\n", p->name);
                exit(1);
            }
        }
        ratio[run] = ms[1] / ms[0];
    }
    printf("%-44s %.3f of plain's time; %d drafted, %d accepted\n", p->name,
           lib_percentile(ratio, (size_t)n_runs, 0.5), drafted / n_runs, accepted / n_runs);
    fflush(stdout);
    spec_close(s);
    free(text);
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: drafters_tool TARGET N_THREADS N_TOKENS N_RUNS PROMPT-FILE\n");
        return 2;
    }
    const int n = atoi(argv[3]), n_runs = atoi(argv[4]) < MAX_RUNS ? atoi(argv[4]) : MAX_RUNS;
    const td_model_options mo = {.n_threads = atoi(argv[2])};
    td_error err = {0};
    td_model *m;
    td_token *prompt;
    size_t n_prompt, len;
    char *bytes = malloc(1 << 20);
    FILE *f = fopen(argv[5], "rb");
    if (!f || !bytes) return perror(argv[5]), 2;
    len = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    if (td_model_open(&m, argv[1], &mo, &err) ||
        td_tokenize(m, bytes, len, true, false, &prompt, &n_prompt, &err))
        die(&err);
    const target_config tc = {
        .n_ctx = (int)n_prompt + n + 2100, .max_rows = LENGTH_MAX + 1, .prefill_chunk = 64};
    /* A drafter that costs nothing stands in while passes are measured. */
    planted drafters[] = {{.name = "always wrong, a third of a pass a token", .passes = 0.33},
                          {.name = "always wrong, for nothing", .passes = 0},
                          {.name = "always right, one and a half passes a token", .right = true, .passes = 1.5},
                          {.name = "always right, a third of a pass a token", .right = true, .passes = 0.33}};
    target *t;
    spec *plain;
    length_costs costs;
    int none = 0;
    int32_t *text = td_calloc(n_prompt + (size_t)n, sizeof *text);
    planted first = {.base.ops = &ops, .n_vocab = m->info.n_vocab};
    if (!text || target_open(&t, m->m, &tc, &err) ||
        spec_open(&plain, t, &first.base, LENGTH_MAX, &err) ||
        spec_measure(plain, &costs, NULL, NULL, &err))
        die(&err);
    write_text(plain, prompt, (int)n_prompt, n, false, text, &none, &none);
    spec_close(plain);
    for (size_t i = 0; i < sizeof drafters / sizeof *drafters; i++) {
        planted *p = &drafters[i];
        p->pass_ms = costs.verify[0][1];
        p->text = text, p->n_text = (int)n_prompt + n, p->n_vocab = m->info.n_vocab;
        try_drafter(p, t, &costs, prompt, (int)n_prompt, n, n_runs);
    }
    target_close(t);
    free(text);
    free(bytes);
    td_free(prompt);
    td_model_close(&m);
    return 0;
}
