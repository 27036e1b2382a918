/* Greedy text is the target's own, byte for byte, whatever drafts: bar 2 in the small. */
#include "tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { N_PROMPT = 11, N_TEXT = 160 };

static const verify_sampler greedy = {.top_p = 1, .repeat_penalty = 1};

typedef struct counts {
    int rounds, drafted, accepted;
} counts;

/* Generates up to n tokens behind the prompt with drafts of k places; the whole text into `text`. */
static counts generate(tiny_pair *p, const verify_sampler *sampler, int k, int width, const int32_t *prompt,
                       int n_prompt, int n, int32_t *text) {
    const spec_params params = {.sampler = *sampler, .seed = 1, .draft_max = k, .width = width};
    td_error err = {0};
    counts c = {0};
    if (spec_begin(p->s, prompt, n_prompt, &params, NULL, NULL, NULL, &err))
        fail_msg("%s", err.msg);
    while (spec_n_tokens(p->s) < n_prompt + n) {
        spec_round r;
        const int left = n_prompt + n - spec_n_tokens(p->s), before = spec_n_tokens(p->s);
        if (spec_step(p->s, left, &r, &err)) fail_msg("%s", err.msg);
        assert_true(r.n_tokens >= 1 && r.n_tokens <= left && r.n_tokens == r.n_accepted + 1);
        assert_true(r.n_accepted <= r.n_drafted && r.n_drafted <= k * width && r.n_places <= k);
        assert_int_equal(spec_n_tokens(p->s), before + r.n_tokens);
        assert_ptr_equal(r.tokens, spec_tokens(p->s) + before);
        assert_true(spec_check(p->s));
        c.rounds++, c.drafted += r.n_drafted, c.accepted += r.n_accepted;
    }
    memcpy(text, spec_tokens(p->s), (size_t)(n_prompt + n) * sizeof *text);
    return c;
}

/* All draft lengths against plain decoding in another session. */
static void compare(const tiny_params *target_params, const tiny_params *draft_params,
                    const verify_sampler *sampler, const tiny_setup *setup, counts *of_k4) {
    tiny target_model, draft_model;
    tiny_pair plain, pair;
    tiny_open(&target_model, target_params);
    tiny_open(&draft_model, draft_params);
    tiny_pair_open(&plain, &target_model, NULL, &(tiny_setup){.type = setup->type});
    tiny_pair_open(&pair, &target_model, &draft_model, setup);
    for (uint64_t seed = 0; seed < 3; seed++) {
        int32_t prompt[N_PROMPT], want[N_PROMPT + N_TEXT], got[N_PROMPT + N_TEXT];
        tiny_text(prompt, N_PROMPT, 40, seed);
        generate(&plain, sampler, 0, 1, prompt, N_PROMPT, N_TEXT, want);
        for (int k = 0; k <= 16; k++) {
            const counts c = generate(&pair, sampler, k, 1, prompt, N_PROMPT, N_TEXT, got);
            if (memcmp(want, got, sizeof want)) fail_msg("the text differs at k = %d", k);
            assert_int_equal(c.rounds + c.accepted, N_TEXT);
            if (k == 4 && of_k4) *of_k4 = c;
        }
        int accepted = -1; /* more candidates, never fewer tokens kept */
        for (int width = 1; width <= 4; width++) {
            const counts c = generate(&pair, sampler, 4, width, prompt, N_PROMPT, N_TEXT, got);
            if (memcmp(want, got, sizeof want)) fail_msg("the text differs at %d x 4", width);
            assert_int_equal(c.rounds + c.accepted, N_TEXT);
            assert_true(c.accepted >= accepted - 8);
            accepted = c.accepted;
        }
        for (int width = 2; width <= 16; width *= 2) {
            generate(&pair, sampler, 16 / width, width, prompt, N_PROMPT, N_TEXT, got);
            if (memcmp(want, got, sizeof want)) fail_msg("the text differs at %d x %d", width, 16 / width);
        }
    }
    tiny_pair_close(&pair);
    tiny_pair_close(&plain);
    tiny_close(&draft_model);
    tiny_close(&target_model);
}

static void related_draft(void **state) {
    (void)state;
    counts c;
    compare(&(tiny_params){.seed = 1},
            &(tiny_params){.seed = 1, .noise = 0.1f, .noise_seed = 9, .n_layers = 2}, &greedy,
            &(tiny_setup){0}, &c);
    /* The case is worth something only if both happen. */
    assert_true(c.accepted > N_TEXT / 8);
    assert_true(c.accepted < c.drafted);
}

static void draft_that_knows_nothing(void **state) {
    (void)state;
    counts c;
    compare(&(tiny_params){.seed = 1}, &(tiny_params){.seed = 2, .n_layers = 1}, &greedy,
            &(tiny_setup){0}, &c);
    assert_true(c.accepted < c.drafted / 2);
}

static void target_as_its_own_draft(void **state) {
    (void)state;
    counts c;
    compare(&(tiny_params){.seed = 1}, &(tiny_params){.seed = 1}, &greedy, &(tiny_setup){0}, &c);
    assert_int_equal(c.accepted, c.drafted);
    assert_int_equal(c.rounds, (N_TEXT + 4) / 5);
}

static void float_cache_and_small_chunks(void **state) {
    (void)state;
    compare(&(tiny_params){.seed = 3}, &(tiny_params){.seed = 3, .noise = 0.1f, .noise_seed = 5},
            &greedy, &(tiny_setup){.type = KERN_KV_F32, .chunk = 1}, NULL);
}

static void windowed_target_and_draft(void **state) {
    (void)state;
    counts c;
    compare(&(tiny_params){.arch = "gemma3", .seed = 4},
            &(tiny_params){.arch = "gemma3", .seed = 4, .noise = 0.1f, .noise_seed = 5}, &greedy,
            &(tiny_setup){0}, &c);
    assert_true(c.accepted > 0 && c.accepted < c.drafted);
    compare(&(tiny_params){.arch = "gemma3", .seed = 4},
            &(tiny_params){.arch = "llama", .seed = 4, .noise = 0.1f, .noise_seed = 5}, &greedy,
            &(tiny_setup){.chunk = 64}, NULL);
}

static void penalties_and_bias(void **state) {
    (void)state;
    const verify_bias bias[] = {{5, -INFINITY}, {9, 2.5f}, {40, -1}};
    const verify_sampler s = {.top_p = 1,
                              .repeat_penalty = 1.3f,
                              .frequency_penalty = 0.4f,
                              .presence_penalty = 0.2f,
                              .repeat_last_n = 24,
                              .bias = bias,
                              .n_bias = 3};
    counts c;
    compare(&(tiny_params){.seed = 1}, &(tiny_params){.seed = 1, .noise = 0.1f, .noise_seed = 9},
            &s, &(tiny_setup){0}, &c);
    assert_true(c.accepted > 0 && c.accepted < c.drafted);
    compare(&(tiny_params){.seed = 1}, &(tiny_params){.seed = 1}, &s, &(tiny_setup){0}, &c);
    assert_int_equal(c.accepted,
                     c.drafted); /* the drafted prefix counts in the draft's window, too */
}

/* Padded vocabularies: the draft has ids the target lacks, and the other way round. */
static void vocabularies_of_other_sizes(void **state) {
    (void)state;
    const verify_bias bias[] = {{47, 1}, {3, 1}};
    const verify_sampler s = {.top_p = 1, .repeat_penalty = 1, .bias = bias, .n_bias = 2};
    compare(&(tiny_params){.seed = 6}, &(tiny_params){.seed = 6, .n_vocab = 64}, &s,
            &(tiny_setup){0}, NULL);
    compare(&(tiny_params){.seed = 6}, &(tiny_params){.seed = 6, .n_vocab = 40}, &s,
            &(tiny_setup){0}, NULL);
}

static void draft_with_a_shorter_context(void **state) {
    (void)state;
    counts c;
    compare(&(tiny_params){.seed = 1}, &(tiny_params){.seed = 1}, &greedy,
            &(tiny_setup){.draft_ctx = 64}, &c);
    assert_true(c.drafted > 30 && c.drafted < 64);
}

/* The text goes on to the context's last position at every k, and then says so. */
static void context_full(void **state) {
    (void)state;
    enum { CTX = 50 };
    tiny target_model, draft_model;
    tiny_open(&target_model, &(tiny_params){.seed = 1});
    tiny_open(&draft_model, &(tiny_params){.seed = 1, .noise = 0.1f, .noise_seed = 9});
    int32_t prompt[N_PROMPT], want[CTX + 1], got[CTX + 1];
    tiny_text(prompt, N_PROMPT, 40, 1);
    for (int k = 0; k <= 16; k++) {
        tiny_pair p;
        spec_round r;
        td_error err = {0};
        tiny_pair_open(&p, &target_model, &draft_model, &(tiny_setup){.n_ctx = CTX});
        generate(&p, &greedy, k, 1, prompt, N_PROMPT, CTX + 1 - N_PROMPT, k ? got : want);
        if (k) assert_memory_equal(want, got, sizeof want);
        assert_int_equal(target_len(p.t), CTX);
        assert_int_equal(spec_step(p.s, 0, &r, &err), TD_E_TOO_BIG);
        assert_non_null(strstr(err.msg, "full"));
        assert_int_equal(spec_n_tokens(p.s), CTX + 1);
        tiny_pair_close(&p);
    }
    tiny_close(&draft_model);
    tiny_close(&target_model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(related_draft),
        cmocka_unit_test(draft_that_knows_nothing),
        cmocka_unit_test(target_as_its_own_draft),
        cmocka_unit_test(float_cache_and_small_chunks),
        cmocka_unit_test(windowed_target_and_draft),
        cmocka_unit_test(penalties_and_bias),
        cmocka_unit_test(vocabularies_of_other_sizes),
        cmocka_unit_test(draft_with_a_shorter_context),
        cmocka_unit_test(context_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
