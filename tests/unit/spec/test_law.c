/* Sampled text has the target's law. The joint law of the first three tokens is worked out from the
 * target's own logits, context by context, and compared with what many seeds give, plain and with
 * drafts; three tokens take two rounds or more. Two drafters with the classical mistakes must be
 * caught by the same test. The seeds are fixed: but for lengths that pay, the result is the same in every run. */
#include "tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { V = 6, N_PROMPT = 5, N_CELLS = V * V * V, N_SAMPLES = 40000 };

static const tiny_params target_params = {
    .n_vocab = V, .n_layers = 1, .n_embd = 32, .seed = 11, .sharp = 1.5f};
static const tiny_params draft_params = {.n_vocab = V,
                                         .n_layers = 1,
                                         .n_embd = 32,
                                         .seed = 11,
                                         .sharp = 1.5f,
                                         .noise = 0.3f,
                                         .noise_seed = 12};

static const verify_sampler sampler = {.temperature = 0.9f,
                                       .top_k = 5,
                                       .top_p = 0.97f,
                                       .min_p = 0.02f,
                                       .repeat_penalty = 1.1f,
                                       .frequency_penalty = 0.4f,
                                       .repeat_last_n = 4};

static const verify_rule rules[] = {VERIFY_TOKEN, VERIFY_BLOCK, VERIFY_COUPLED};
static const char *const rule_names[] = {
    [VERIFY_TOKEN] = "token", [VERIFY_BLOCK] = "block", [VERIFY_COUPLED] = "coupled"};
enum { N_RULES = sizeof rules / sizeof *rules };

static const int32_t prompt[N_PROMPT] = {1, 3, 0, 2, 2};

/* The law after a text, from a pass over the whole of it. */
static void law_after(tiny_pair *p, verify_work *w, const int32_t *text, int n, double out[V]) {
    float logits[V], probs[V];
    td_error err = {0};
    if (spec_logits(p->s, text, n, 1, logits, &err)) fail_msg("%s", err.msg);
    verify_probs(&sampler, logits, V, text, n, NULL, 0, w, probs);
    double sum = 0;
    for (int i = 0; i < V; i++)
        sum += probs[i];
    for (int i = 0; i < V; i++)
        out[i] = probs[i] / sum;
}

static void exact_law(const tiny *m, double cell[N_CELLS]) {
    tiny_pair p;
    verify_work *w;
    tiny_pair_open(&p, m, NULL, &(tiny_setup){0});
    assert_int_equal(verify_work_open(&w, V, NULL), TD_OK);
    int32_t text[N_PROMPT + 3];
    memcpy(text, prompt, sizeof prompt);
    double a[V], b[V], c[V];
    law_after(&p, w, text, N_PROMPT, a);
    for (int i = 0; i < V; i++) {
        text[N_PROMPT] = i;
        law_after(&p, w, text, N_PROMPT + 1, b);
        for (int j = 0; j < V; j++) {
            text[N_PROMPT + 1] = j;
            law_after(&p, w, text, N_PROMPT + 2, c);
            for (int k = 0; k < V; k++)
                cell[(i * V + j) * V + k] = a[i] * b[j] * c[k];
        }
    }
    verify_work_close(w);
    tiny_pair_close(&p);
}

/* width 0: lengths and shapes that pay, up to k; they follow clocks, so that no two runs are the same. */
static void sample(tiny_pair *p, int k, int width, verify_rule rule, int n_samples,
                   double count[N_CELLS]) {
    td_error err = {0};
    memset(count, 0, N_CELLS * sizeof *count);
    for (int i = 0; i < n_samples; i++) {
        const spec_params params = {
            .sampler = sampler, .rule = rule, .seed = (uint64_t)i * 977 + 5, .draft_max = k, .width = width, .adapt = !width};
        if (spec_begin(p->s, prompt, N_PROMPT, &params, NULL, NULL, NULL, &err))
            fail_msg("%s", err.msg);
        while (spec_n_tokens(p->s) < N_PROMPT + 3) {
            spec_round r;
            if (spec_step(p->s, 0, &r, &err)) fail_msg("%s", err.msg);
        }
        const int32_t *y = spec_tokens(p->s) + N_PROMPT;
        count[(y[0] * V + y[1]) * V + y[2]]++;
    }
}

/* Chi-square as a normal deviate (Wilson-Hilferty); cells of less than 5 expected are taken
 * together. */
static double deviation(const double expected_share[N_CELLS], const double count[N_CELLS], int n) {
    double rest_expected = 0, rest_count = 0, chi = 0;
    int df = -1;
    for (int i = 0; i < N_CELLS; i++) {
        const double e = expected_share[i] * n;
        if (e == 0 && count[i] > 0) return INFINITY;
        if (e < 5) {
            rest_expected += e, rest_count += count[i];
            continue;
        }
        chi += (count[i] - e) * (count[i] - e) / e;
        df++;
    }
    if (rest_expected >= 5) {
        chi += (rest_count - rest_expected) * (rest_count - rest_expected) / rest_expected;
        df++;
    }
    assert_true(df > 20);
    const double s = 2.0 / (9.0 * df);
    return (cbrt(chi / df) - (1 - s)) / sqrt(s);
}

static void sampled_text_has_the_targets_law(void **state) {
    (void)state;
    tiny target_model, draft_model;
    static double want[N_CELLS], count[N_CELLS];
    tiny_open(&target_model, &target_params);
    tiny_open(&draft_model, &draft_params);
    exact_law(&target_model, want);
    tiny_pair p;
    tiny_pair_open(&p, &target_model, &draft_model, &(tiny_setup){.n_ctx = 32, .max_draft = 6});
    for (size_t i = 0; i < N_RULES; i++)
        for (int k = 0; k <= 3; k++) {
            sample(&p, k, 1, rules[i], N_SAMPLES, count);
            const double z = deviation(want, count, N_SAMPLES);
            print_message("%s, k = %d: %d samples, z = %.2f\n", rule_names[rules[i]], k, N_SAMPLES,
                          z);
            assert_true(fabs(z) < 4);
        }
    static const struct {
        int width, k;
    } trees[] = {{2, 1}, {5, 1}, {2, 2}, {3, 2}, {2, 3}};
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++)
        for (int coupled = 0; coupled < 2; coupled++) {
            sample(&p, trees[i].k, trees[i].width, coupled ? VERIFY_COUPLED : VERIFY_TOKEN, N_SAMPLES,
                   count);
            const double z = deviation(want, count, N_SAMPLES);
            print_message("%s, %d x %d: %d samples, z = %.2f\n", coupled ? "coupled" : "token",
                          trees[i].width, trees[i].k, N_SAMPLES, z);
            assert_true(fabs(z) < 4);
        }
    tiny_set_costs(&p); /* two in a million good loops fail here */
    for (size_t i = 0; i < N_RULES; i++) {
        sample(&p, 3, 0, rules[i], N_SAMPLES, count);
        const double z = deviation(want, count, N_SAMPLES);
        print_message("%s, what pays: %d samples, z = %.2f\n", rule_names[rules[i]], N_SAMPLES, z);
        assert_true(fabs(z) < 5);
    }
    tiny_pair_close(&p);
    tiny_close(&draft_model);
    tiny_close(&target_model);
}

/* ---- drafters that get it wrong ---- */

typedef struct planted {
    draft base;
    draft *inner;    /* owns */
    bool drops;      /* trap 1: leaves out a token because it was unlikely, after it was drawn */
    bool misreports; /* says it drew from another law than it did */
    float q[DRAFT_MAX * V];
} planted;

static void planted_close(draft *d) {
    draft_close(((planted *)d)->inner);
    free(d);
}

static td_code planted_begin(draft *d, const int32_t *tokens, int n, bool (*progress)(void *, int),
                             void *user, td_error *err) {
    return draft_begin(((planted *)d)->inner, tokens, n, progress, user, err);
}

static td_code planted_propose(draft *d, const draft_request *req, draft_proposal *out,
                               td_error *err) {
    planted *x = (planted *)d;
    td_code rc = draft_propose(x->inner, req, out, err);
    for (int i = 0; i < out->n && x->drops; i++)
        if (out->q[i * V + out->token[i]] < 0.25f) out->n = i;
    if (!x->misreports) return rc;
    for (int i = 0; i < out->n * V; i++)
        x->q[i] = 0.5f * out->q[i] + 0.5f / V;
    out->q = x->q;
    return rc;
}

static td_code planted_observe(draft *d, const int32_t *tokens, int n_tokens, int n_accepted,
                               td_error *err) {
    return draft_observe(((planted *)d)->inner, tokens, n_tokens, n_accepted, err);
}

static size_t planted_memory(const draft *d) {
    return draft_memory(((const planted *)d)->inner);
}

static bool planted_check(const draft *d, const int32_t *text, int n) {
    return draft_check(((const planted *)d)->inner, text, n);
}

static void planted_mistakes_are_caught(void **state) {
    (void)state;
    static const draft_ops ops = {"planted",       planted_close,  planted_begin, planted_propose,
                                  planted_observe, planted_memory, planted_check};
    tiny target_model, draft_model;
    static double want[N_CELLS], count[N_CELLS];
    tiny_open(&target_model, &target_params);
    tiny_open(&draft_model, &draft_params);
    exact_law(&target_model, want);
    for (int i = 0; i < 4; i++) {
        const int mistake = i % 2;
        const verify_rule rule = i / 2 ? VERIFY_BLOCK : VERIFY_TOKEN;
        planted *x = td_calloc(1, sizeof *x);
        assert_non_null(x);
        *x = (planted){.base.ops = &ops, .drops = mistake == 0, .misreports = mistake == 1};
        const draft_model_config cfg = {
            .n_ctx = 32, .max_tokens = 3, .prefill_chunk = 8, .n_vocab = V};
        assert_int_equal(draft_model_open(&x->inner, draft_model.m, &cfg, NULL), TD_OK);
        tiny_pair p;
        tiny_pair_open_with(&p, &target_model, &x->base,
                            &(tiny_setup){.n_ctx = 32, .max_draft = 3});
        sample(&p, 2, 1, rule, N_SAMPLES, count);
        const double z = deviation(want, count, N_SAMPLES);
        print_message("%s, %s: z = %.2f\n", rule_names[rule], mistake ? "misreports q" : "drops unlikely tokens", z);
        assert_true(z > 8);
        tiny_pair_close(&p);
    }
    tiny_close(&draft_model);
    tiny_close(&target_model);
}

/* p equal to q: nothing can be rejected, whatever the seed. */
static void own_draft_is_always_accepted(void **state) {
    (void)state;
    tiny m;
    tiny_pair p;
    td_error err = {0};
    tiny_open(&m, &target_params);
    tiny_pair_open(&p, &m, &m, &(tiny_setup){.n_ctx = 128, .max_draft = 5});
    for (size_t rule = 0; rule < N_RULES; rule++) {
        const spec_params params = {
            .sampler = sampler, .rule = rules[rule], .seed = 3, .draft_max = 5};
        assert_int_equal(spec_begin(p.s, prompt, N_PROMPT, &params, NULL, NULL, NULL, &err), TD_OK);
        for (int i = 0; i < 20; i++) {
            spec_round r;
            assert_int_equal(spec_step(p.s, 0, &r, &err), TD_OK);
            assert_int_equal(r.n_accepted, 5);
        }
    }
    tiny_pair_close(&p);
    tiny_close(&m);
}

static void same_seed_same_text(void **state) {
    (void)state;
    tiny target_model, draft_model;
    tiny_pair p;
    tiny_open(&target_model, &target_params);
    tiny_open(&draft_model, &draft_params);
    tiny_pair_open(&p, &target_model, &draft_model, &(tiny_setup){.n_ctx = 128, .max_draft = 4});
    int32_t text[3][64];
    for (int run = 0; run < 3; run++) {
        const spec_params params = {.sampler = sampler, .seed = run < 2 ? 77 : 78, .draft_max = 4};
        td_error err = {0};
        assert_int_equal(spec_begin(p.s, prompt, N_PROMPT, &params, NULL, NULL, NULL, &err), TD_OK);
        while (spec_n_tokens(p.s) < 64) {
            spec_round r;
            assert_int_equal(spec_step(p.s, 64 - spec_n_tokens(p.s), &r, &err), TD_OK);
        }
        memcpy(text[run], spec_tokens(p.s), sizeof text[run]);
    }
    assert_memory_equal(text[0], text[1], sizeof text[0]);
    assert_memory_not_equal(text[0], text[2], sizeof text[0]);
    tiny_pair_close(&p);
    tiny_close(&draft_model);
    tiny_close(&target_model);
}

/* Under the coupled rule the text follows from the seed: not from the draft, its length, nor where rounds end. */
static void coupled_text_is_the_seeds(void **state) {
    (void)state;
    tiny target_model, draft_model;
    tiny_pair p;
    tiny_open(&target_model, &target_params);
    tiny_open(&draft_model, &draft_params);
    tiny_pair_open(&p, &target_model, &draft_model, &(tiny_setup){.n_ctx = 128, .max_draft = 8});
    for (uint64_t seed = 1; seed <= 20; seed++) {
        int32_t plain[128];
        for (int k = 0; k <= 10; k++) { /* the last two are trees */
            const spec_params params = {.sampler = sampler,
                                        .rule = VERIFY_COUPLED,
                                        .seed = seed,
                                        .draft_max = k < 9 ? k : 11 - k,
                                        .width = k < 9 ? 1 : k - 7};
            td_error err = {0};
            assert_int_equal(spec_begin(p.s, prompt, N_PROMPT, &params, NULL, NULL, NULL, &err),
                             TD_OK);
            for (int round = 0; spec_n_tokens(p.s) < 120; round++) {
                spec_round r;
                assert_int_equal(spec_step(p.s, 120 - spec_n_tokens(p.s), &r, &err), TD_OK);
                if (round % 7 == 3)
                    assert_int_equal(spec_cut(p.s, spec_n_tokens(p.s) - 1, &err), TD_OK);
            }
            if (!k) memcpy(plain, spec_tokens(p.s), 120 * sizeof *plain);
            assert_memory_equal(plain, spec_tokens(p.s), 120 * sizeof *plain);
        }
    }
    tiny_pair_close(&p);
    tiny_close(&draft_model);
    tiny_close(&target_model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampled_text_has_the_targets_law),
        cmocka_unit_test(planted_mistakes_are_caught),
        cmocka_unit_test(own_draft_is_always_accepted),
        cmocka_unit_test(same_seed_same_text),
        cmocka_unit_test(coupled_text_is_the_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
