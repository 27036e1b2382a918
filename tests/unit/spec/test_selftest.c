/* The parts of the selftest against tiny models: what is exact passes, and each classical mistake is caught. */
#include "spec/audit.h"
#include "spec/law.h"
#include "tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_PROMPT = 6, N_SAMPLES = 200000 };

static const tiny_params target_params = {.n_layers = 1, .n_embd = 32, .seed = 11, .sharp = 1.5f};
static const tiny_params draft_params = {
    .n_layers = 1, .n_embd = 32, .seed = 11, .sharp = 1.5f, .noise = 0.3f, .noise_seed = 12, .n_vocab = 40};
static const verify_sampler sampler = {.temperature = 1,
                                       .top_k = LAW_TOP_K,
                                       .top_p = 1,
                                       .repeat_penalty = 1.3f,
                                       .presence_penalty = 0.3f,
                                       .frequency_penalty = 0.3f,
                                       .repeat_last_n = 64};
static const int32_t prompt[N_PROMPT] = {1, 3, 0, 2, 2, 5};
static const verify_rule rules[] = {VERIFY_TOKEN, VERIFY_BLOCK, VERIFY_COUPLED};

typedef struct world {
    tiny target_model, draft_model;
    target *sides[2];
} world;

static void open_world(world *w) {
    tiny_open(&w->target_model, &target_params);
    tiny_open(&w->draft_model, &draft_params);
    const target_config cfg = {.n_ctx = 64, .max_rows = LAW_PASS, .prefill_chunk = 8};
    assert_int_equal(target_open(&w->sides[0], w->target_model.m, &cfg, NULL), TD_OK);
    assert_int_equal(target_open(&w->sides[1], w->draft_model.m, &cfg, NULL), TD_OK);
}

static void close_world(world *w) {
    target_close(w->sides[0]);
    target_close(w->sides[1]);
    tiny_close(&w->target_model);
    tiny_close(&w->draft_model);
}

static law_verdict judge(const law *l, verify_rule rule, int k, bool *possible) {
    int64_t count[LAW_CELLS] = {0};
    *possible = law_sample(l, rule, k, 1, N_SAMPLES, count);
    return law_judge(l, count, N_SAMPLES);
}

static law *open_law(world *w, const law_seams *seams) {
    law *l;
    td_error err = {0};
    if (law_open(&l, w->sides[0], w->sides[1], prompt, N_PROMPT, &sampler, seams, &err))
        fail_msg("%s", err.msg);
    return l;
}

static void exact_rules_pass(void **state) {
    (void)state;
    world w;
    open_world(&w);
    law *l = open_law(&w, NULL);
    for (int r = 0; r < 3; r++)
        for (int k = 0; k < LAW_TOKENS; k++) {
            bool possible;
            const law_verdict v = judge(l, rules[r], k, &possible);
            print_message("rule %d, k %d: z %.2f, tv %.4f of %.4f\n", rules[r], k, v.z, v.tv, v.tv_bound);
            assert_true(v.good && possible);
        }
    /* The whole loop, drafts longer than the text. */
    tiny_pair p;
    tiny_pair_open(&p, &w.target_model, &w.draft_model, &(tiny_setup){.n_ctx = 64, .max_draft = 4});
    for (int r = 0; r < 3; r++) {
        const spec_params params = {.sampler = sampler, .rule = rules[r], .draft_max = 4};
        int64_t count[LAW_CELLS] = {0};
        bool possible = true;
        assert_int_equal(law_sample_loop(l, p.s, prompt, &params, 9, 10000, count, &possible, NULL),
                         TD_OK);
        const law_verdict v = law_judge(l, count, 10000);
        print_message("rule %d, whole loop: z %.2f, tv %.4f of %.4f\n", rules[r], v.z, v.tv, v.tv_bound);
        assert_true(v.good && possible);
    }
    tiny_pair_close(&p);
    law_close(l);
    close_world(&w);
}

/* ---- planted mistakes ---- */

static int32_t draw_residual(const float *p, const float *q, double scale, int n, double u) {
    static float rest[4096];
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += rest[i] = (float)(p[i] * scale > q[i] ? p[i] * scale - q[i] : 0);
    return verify_draw(sum > 0 ? rest : p, n, u);
}

/* Block verification whose residual forgets the weight (vllm-ascend #7807). */
static void unscaled_block(verify_rule rule, const float *p, const float *q, const verify_tree *x, int n,
    const verify_rng *rng, verify_result *out) {
    const int k = x->n;
    verify_proposal(rule, p, q, x, n, rng, out);
    const int t = out->n_accepted;
    if (t < k)
        out->token = draw_residual(p + t * n, q + t * n, 1, n,
                                   td_uniform(rng->seed, TD_STREAM_RESIDUAL, rng->position + (uint64_t)t,
                                              rng->lane));
}

/* The token after a rejection drawn from p. */
static void residual_from_p(verify_rule rule, const float *p, const float *q, const verify_tree *x, int n,
    const verify_rng *rng, verify_result *out) {
    const int k = x->n;
    verify_proposal(rule, p, q, x, n, rng, out);
    const int t = out->n_accepted;
    if (t < k)
        out->token = verify_draw(p + t * n, n,
                                 td_uniform(rng->seed, TD_STREAM_RESIDUAL, rng->position + (uint64_t)t,
                                            rng->lane));
}

/* Trap 1: a token left out for its low q, after it was drawn. */
static int drop_unlikely(const float *q, const int32_t *x, int k, int n) {
    for (int i = 0; i < k; i++)
        if (q[i * n + x[i]] < 0.2f) return i;
    return k;
}

static void mistakes_are_caught(void **state) {
    (void)state;
    static const struct {
        const char *name;
        verify_rule rule;
        int k;
        law_seams seams;
    } cases[] = {
        {"block residual without its weight", VERIFY_BLOCK, 2, {.accept = unscaled_block}},
        {"unlikely tokens dropped, token", VERIFY_TOKEN, 2, {.shorten = drop_unlikely}},
        {"unlikely tokens dropped, block", VERIFY_BLOCK, 2, {.shorten = drop_unlikely}},
        {"residual from p, token", VERIFY_TOKEN, 1, {.accept = residual_from_p}},
        {"residual from p, block", VERIFY_BLOCK, 2, {.accept = residual_from_p}},
        {"p under the draft's penalties", VERIFY_TOKEN, 1, {.draft_history = true}},
        {"p under the draft's penalties, coupled", VERIFY_COUPLED, 2, {.draft_history = true}},
    };
    world w;
    open_world(&w);
    law *right = open_law(&w, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        law *l = open_law(&w, &cases[i].seams);
        int64_t count[LAW_CELLS] = {0};
        const int n = i ? N_SAMPLES : 10 * N_SAMPLES; /* the first is wrong by a per cent of the texts */
        const bool possible = law_sample(l, cases[i].rule, cases[i].k, 1, n, count);
        const law_verdict v = law_judge(right, count, n);
        print_message("%-40s z %.1f, tv %.4f of %.4f\n", cases[i].name, v.z, v.tv, v.tv_bound);
        assert_true(!v.good || !possible);
        law_close(l);
    }
    law_close(right);
    close_world(&w);
}

/* Trap 2: the target's draws share their noise with the draft's, and a ratio test stands on top. */
static void coupled_ratio(verify_rule rule, const float *p, const float *q, const verify_tree *x, int n,
    const verify_rng *rng, verify_result *out) {
    const int k = x->n;
    (void)rule;
    verify_token(p, q, x, n, rng, out);
    if (out->n_accepted < k) { /* the rejected token's noise is used again for the residual */
        static float rest[4096];
        const float *pi = p + out->n_accepted * n, *qi = q + out->n_accepted * n;
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += rest[i] = pi[i] > qi[i] ? pi[i] - qi[i] : 0;
        out->token = verify_coupled_draw(sum > 0 ? rest : pi, n, rng->seed,
                                         rng->position + (uint64_t)out->n_accepted);
    }
}

static void coupled_noise_in_a_ratio_test_is_caught(void **state) {
    (void)state;
    const law_seams seams = {.accept = coupled_ratio, .coupled_drafts = true};
    world w;
    open_world(&w);
    law *l = open_law(&w, &seams);
    bool possible;
    const law_verdict v = judge(l, VERIFY_TOKEN, 1, &possible);
    print_message("z %.1f, tv %.4f of %.4f\n", v.z, v.tv, v.tv_bound);
    assert_false(v.good);
    law_close(l);
    close_world(&w);
}

/* ---- caches ---- */

static void audit_pair(const tiny_params *target_is, const tiny_params *draft_is, int n_steps, int n_longest) {
    tiny target_model, draft_model;
    tiny_pair p, shadow;
    int n_wrong;
    td_error err = {0};
    tiny_open(&target_model, target_is);
    tiny_open(&draft_model, draft_is);
    const tiny_setup setup = {.n_ctx = 256, .max_draft = 8, .draft_ctx = 200};
    tiny_pair_open(&p, &target_model, &draft_model, &setup);
    tiny_pair_open(&shadow, &target_model, &draft_model, &setup);
    tiny_set_costs(&p);
    const audit a = {.s = p.s,
                     .t = p.t,
                     .d = p.d,
                     .shadow_t = shadow.t,
                     .shadow_d = shadow.d,
                     .prompt = prompt,
                     .n_prompt = N_PROMPT,
                     .n_longest = n_longest,
                     .seed = 3};
    if (audit_run(&a, n_steps, &n_wrong, &err)) fail_msg("%s", err.msg);
    assert_int_equal(n_wrong, 0);
    tiny_pair_close(&p);
    tiny_pair_close(&shadow);
    tiny_close(&draft_model);
    tiny_close(&target_model);
}

static void caches_stay_clean(void **state) {
    (void)state;
    audit_pair(&target_params, &draft_params, 10000, 60);
    audit_pair(&target_params, &draft_params, 300, 240); /* past the draft's context */
    const tiny_params windowed = {.arch = "gemma3", .seed = 5},
                      windowed_draft = {.arch = "gemma3", .seed = 5, .noise = 0.2f, .noise_seed = 6};
    audit_pair(&windowed, &windowed_draft, 300, 200);
}

/* A cache that holds another text must be seen. */
static void another_text_in_a_cache_is_seen(void **state) {
    (void)state;
    tiny target_model, draft_model;
    tiny_pair p, shadow;
    tiny_open(&target_model, &target_params);
    tiny_open(&draft_model, &draft_params);
    const tiny_setup setup = {.n_ctx = 128, .max_draft = 8};
    tiny_pair_open(&p, &target_model, &draft_model, &setup);
    tiny_pair_open(&shadow, &target_model, &draft_model, &setup);
    const audit a = {.s = p.s,
                     .t = shadow.t, /* not the one that the loop keeps: it has read nothing of this text */
                     .d = p.d,
                     .shadow_t = shadow.t,
                     .shadow_d = shadow.d,
                     .prompt = prompt,
                     .n_prompt = N_PROMPT,
                     .n_longest = 60,
                     .seed = 3};
    int n_wrong = 0;
    assert_int_equal(audit_run(&a, 50, &n_wrong, NULL), TD_OK);
    assert_true(n_wrong > 40);
    tiny_pair_close(&p);
    tiny_pair_close(&shadow);
    tiny_close(&draft_model);
    tiny_close(&target_model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_rules_pass),
        cmocka_unit_test(mistakes_are_caught),
        cmocka_unit_test(coupled_noise_in_a_ratio_test_is_caught),
        cmocka_unit_test(caches_stay_clean),
        cmocka_unit_test(another_text_in_a_cache_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
