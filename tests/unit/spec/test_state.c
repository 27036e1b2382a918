/* Contract C: between rounds, and after a cut, a cancellation or a failure, the caches hold what
 * the text says and nothing else: going on gives the bits of a session that never knew better. */
#include "tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_PROMPT = 11, V = 48 };

static const verify_sampler greedy = {.top_p = 1, .repeat_penalty = 1};

typedef struct fixture {
    tiny target_model, draft_model;
    tiny_pair p;
    int32_t prompt[N_PROMPT];
} fixture;

static void open_fixture(fixture *x, const char *arch) {
    tiny_open(&x->target_model, &(tiny_params){.arch = arch, .seed = 1});
    tiny_open(&x->draft_model,
              &(tiny_params){.arch = arch, .seed = 1, .noise = 0.1f, .noise_seed = 9});
    tiny_pair_open(&x->p, &x->target_model, &x->draft_model, &(tiny_setup){0});
    tiny_text(x->prompt, N_PROMPT, 40, 1);
}

static void close_fixture(fixture *x) {
    tiny_pair_close(&x->p);
    tiny_close(&x->draft_model);
    tiny_close(&x->target_model);
}

static void begin(fixture *x, const int32_t *text, int n, int k) {
    const spec_params params = {.sampler = greedy, .draft_max = k};
    td_error err = {0};
    if (spec_begin(x->p.s, text, n, &params, NULL, NULL, NULL, &err)) fail_msg("%s", err.msg);
}

static spec_round step(fixture *x) {
    spec_round r;
    td_error err = {0};
    if (spec_step(x->p.s, 0, &r, &err)) fail_msg("%s", err.msg);
    return r;
}

/* The next row of the target has the bits that a session gives which reads the text for the first
 * time. */
static void expect_clean(fixture *x) {
    const int n = spec_n_tokens(x->p.s);
    const int32_t *text = spec_tokens(x->p.s);
    const float *got, *want;
    tiny_pair fresh;
    td_error err = {0};
    assert_true(spec_check(x->p.s));
    assert_int_equal(target_len(x->p.t), n - 1);
    tiny_pair_open(&fresh, &x->target_model, NULL, &(tiny_setup){.chunk = 7});
    if (target_prefill(fresh.t, text, n - 1, NULL, NULL, &err) ||
        target_verify(fresh.t, text + n - 1, NULL, 1, &want, &err) ||
        target_verify(x->p.t, text + n - 1, NULL, 1, &got, &err))
        fail_msg("%s", err.msg);
    assert_memory_equal(got, want, V * sizeof *got);
    tiny_pair_close(&fresh);
}

/* A stop anywhere: each cut of each length of text, the draft's state included. */
static void cut_anywhere(const char *arch) {
    fixture x;
    int32_t plain[N_PROMPT + 220];
    open_fixture(&x, arch);
    begin(&x, x.prompt, N_PROMPT, 0);
    while (spec_n_tokens(x.p.s) < N_PROMPT + 220)
        step(&x);
    memcpy(plain, spec_tokens(x.p.s), sizeof plain);
    begin(&x, x.prompt, N_PROMPT, 4);
    for (int turn = 0; turn < 60; turn++) {
        const int target_n = N_PROMPT + 20 + 3 * turn;
        while (spec_n_tokens(x.p.s) < target_n)
            step(&x);
        /* Mostly shallow cuts, as stops are; now and then one far behind every window. */
        int n = spec_n_tokens(x.p.s) - turn % 7;
        if (turn % 20 == 19) n = N_PROMPT + turn % 3;
        if (n < 1) n = 1;
        td_error err = {0};
        if (spec_cut(x.p.s, n, &err)) fail_msg("%s", err.msg);
        assert_int_equal(spec_n_tokens(x.p.s), n);
        expect_clean(&x);
        assert_memory_equal(spec_tokens(x.p.s), plain, (size_t)n * sizeof *plain);
        step(&x);
        assert_memory_equal(spec_tokens(x.p.s), plain,
                            (size_t)spec_n_tokens(x.p.s) * sizeof *plain);
    }
    close_fixture(&x);
}

static void cut_leaves_no_trace(void **state) {
    (void)state;
    cut_anywhere("llama");
}

static void cut_leaves_no_trace_behind_windows(void **state) {
    (void)state;
    cut_anywhere("gemma3");
}

static void every_round_leaves_the_text_alone(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x, "gemma3");
    for (int k = 0; k <= 8; k++) {
        begin(&x, x.prompt, N_PROMPT, k);
        for (int i = 0; i < 12; i++) {
            step(&x);
            expect_clean(&x);
        }
    }
    close_fixture(&x);
}

static void common_prefix_is_kept(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x, "llama");
    const spec_params params = {.sampler = greedy, .draft_max = 3};
    int n = -1;
    td_error err = {0};
    assert_int_equal(spec_begin(x.p.s, x.prompt, N_PROMPT, &params, &n, NULL, NULL, &err), TD_OK);
    assert_int_equal(n, N_PROMPT - 1);
    assert_int_equal(spec_begin(x.p.s, x.prompt, N_PROMPT, &params, &n, NULL, NULL, &err), TD_OK);
    assert_int_equal(n, 0);
    expect_clean(&x);
    int32_t other[N_PROMPT];
    memcpy(other, x.prompt, sizeof other);
    other[6] = (other[6] + 1) % V;
    assert_int_equal(spec_begin(x.p.s, other, N_PROMPT, &params, &n, NULL, NULL, &err), TD_OK);
    assert_int_equal(n, N_PROMPT - 1 - 6);
    expect_clean(&x);
    assert_int_equal(spec_begin(x.p.s, other, 1, &params, &n, NULL, NULL, &err), TD_OK);
    assert_int_equal(n, 0);
    expect_clean(&x);
    /* A prompt that goes on from the text generated, given as the session's own pointer. */
    while (spec_n_tokens(x.p.s) < 40)
        step(&x);
    const int have = spec_n_tokens(x.p.s);
    assert_int_equal(spec_begin(x.p.s, spec_tokens(x.p.s), have, &params, &n, NULL, NULL, &err),
                     TD_OK);
    assert_int_equal(n, 0);
    assert_int_equal(
        spec_begin(x.p.s, spec_tokens(x.p.s) + 3, have - 3, &params, &n, NULL, NULL, &err), TD_OK);
    expect_clean(&x);
    close_fixture(&x);
}

typedef struct listener {
    int calls, allowed, last;
} listener;

static bool listen(void *user, int done) {
    listener *l = user;
    l->last = done;
    return ++l->calls <= l->allowed;
}

static void cancelled_prefill(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x, "gemma3");
    enum { N = 100 };
    int32_t text[N], want[N + 30];
    tiny_text(text, N, 40, 5);
    begin(&x, text, N, 0);
    while (spec_n_tokens(x.p.s) < N + 30)
        step(&x);
    memcpy(want, spec_tokens(x.p.s), sizeof want);
    const spec_params params = {.sampler = greedy, .draft_max = 3};
    for (int allowed = 0;; allowed++) { /* 7 chunks of the target, then 7 of the draft */
        td_error err = {0};
        int32_t other[5] = {1, 2, 3, 4, 5};
        begin(&x, other, 5, 3);
        listener l = {.allowed = allowed};
        int n = 0;
        td_code rc = spec_begin(x.p.s, text, N, &params, &n, listen, &l, &err);
        if (!rc) {
            assert_int_equal(allowed, 14);
            assert_int_equal(l.last, N - 1);
            break;
        }
        assert_int_equal(rc, TD_E_CANCELLED);
        assert_int_equal(l.last, n);
        assert_true(n == N - 1 || n == 16 * (allowed + 1));
        /* What was done is kept, and going on gives the same text. */
        assert_int_equal(spec_begin(x.p.s, text, N, &params, &n, NULL, NULL, &err), TD_OK);
        assert_int_equal(n, allowed < 6 ? N - 1 - 16 * (allowed + 1) : 0);
        while (spec_n_tokens(x.p.s) < N + 30) {
            spec_round r;
            assert_int_equal(spec_step(x.p.s, N + 30 - spec_n_tokens(x.p.s), &r, &err), TD_OK);
        }
        assert_memory_equal(spec_tokens(x.p.s), want, sizeof want);
    }
    close_fixture(&x);
}

/* ---- a round that fails commits nothing ---- */

typedef struct faulty {
    draft base;
    draft *inner; /* borrowed */
    int fail_in;  /* proposals until one fails after all its work */
} faulty;

static void faulty_close(draft *d) {
    (void)d;
}
static td_code faulty_begin(draft *d, const int32_t *tokens, int n, bool (*progress)(void *, int),
                            void *user, td_error *err) {
    return draft_begin(((faulty *)d)->inner, tokens, n, progress, user, err);
}
static td_code faulty_propose(draft *d, const draft_request *req, draft_proposal *out,
                              td_error *err) {
    faulty *x = (faulty *)d;
    td_code rc = draft_propose(x->inner, req, out, err);
    return x->fail_in-- ? rc : td_fail(err, TD_E_MEMORY, "planted");
}
static td_code faulty_observe(draft *d, const int32_t *tokens, int n_tokens, int n_accepted,
                              td_error *err) {
    return draft_observe(((faulty *)d)->inner, tokens, n_tokens, n_accepted, err);
}
static size_t faulty_memory(const draft *d) {
    return draft_memory(((const faulty *)d)->inner);
}
static bool faulty_check(const draft *d, const int32_t *text, int n) {
    return draft_check(((const faulty *)d)->inner, text, n);
}

static void failed_round_commits_nothing(void **state) {
    (void)state;
    static const draft_ops ops = {"faulty",       faulty_close,  faulty_begin, faulty_propose,
                                  faulty_observe, faulty_memory, faulty_check};
    fixture x;
    open_fixture(&x, "llama");
    begin(&x, x.prompt, N_PROMPT, 0);
    int32_t want[N_PROMPT + 40];
    while (spec_n_tokens(x.p.s) < N_PROMPT + 40)
        step(&x);
    memcpy(want, spec_tokens(x.p.s), sizeof want);
    faulty f = {.base.ops = &ops, .inner = x.p.d};
    tiny_pair p;
    tiny_pair_open_with(&p, &x.target_model, &f.base, &(tiny_setup){0});
    for (f.fail_in = 0; f.fail_in < 5;) {
        const int good = f.fail_in;
        td_error err = {0};
        const spec_params params = {.sampler = greedy, .draft_max = 4};
        assert_int_equal(spec_begin(p.s, x.prompt, N_PROMPT, &params, NULL, NULL, NULL, &err),
                         TD_OK);
        spec_round r;
        for (int i = 0; i < good; i++)
            assert_int_equal(spec_step(p.s, 0, &r, &err), TD_OK);
        const int n = spec_n_tokens(p.s);
        assert_int_equal(spec_step(p.s, 0, &r, &err), TD_E_MEMORY);
        assert_int_equal(spec_n_tokens(p.s), n);
        assert_true(spec_check(p.s));
        f.fail_in = 1000;
        while (spec_n_tokens(p.s) < N_PROMPT + 40)
            assert_int_equal(spec_step(p.s, N_PROMPT + 40 - spec_n_tokens(p.s), &r, &err), TD_OK);
        assert_memory_equal(spec_tokens(p.s), want, sizeof want);
        f.fail_in = good + 1;
    }
    tiny_pair_close(&p);
    close_fixture(&x);
}

static void scoring(void **state) {
    (void)state;
    enum { N = 61 };
    fixture x;
    open_fixture(&x, "gemma3");
    int32_t text[N];
    tiny_text(text, N, V, 8);
    float *all = td_calloc(N * V, sizeof *all), *some = td_calloc(N * V, sizeof *some);
    td_error err = {0};
    assert_true(all && some);
    assert_int_equal(spec_logits(x.p.s, text, N, N, all, &err), TD_OK);
    for (int n_rows = 1; n_rows < N; n_rows += 9) {
        int32_t other[3] = {7, 7, 7};
        begin(&x, other, 3, 2);
        assert_int_equal(spec_logits(x.p.s, text, N, n_rows, some, &err), TD_OK);
        assert_memory_equal(some, all + (N - n_rows) * V, (size_t)n_rows * V * sizeof *some);
        assert_int_equal(spec_n_tokens(x.p.s), N);
        assert_int_equal(target_len(x.p.t), N - 1);
    }
    assert_int_equal(spec_logits(x.p.s, text, N, N + 1, some, &err), TD_E_ARG);
    assert_int_equal(spec_logits(x.p.s, text, N, 0, some, &err), TD_E_ARG);
    text[4] = V;
    assert_int_equal(spec_logits(x.p.s, text, N, 1, some, &err), TD_E_ARG);
    free(all);
    free(some);
    close_fixture(&x);
}

static void what_makes_no_sense_is_refused(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x, "llama");
    int32_t text[300];
    tiny_text(text, 300, 40, 2);
    td_error err = {0};
    spec_params params = {.sampler = greedy, .draft_max = 4};
    spec *s = x.p.s;
    assert_int_equal(spec_begin(s, text, 0, &params, NULL, NULL, NULL, &err), TD_E_ARG);
    assert_int_equal(spec_begin(s, text, 257, &params, NULL, NULL, NULL, &err), TD_E_TOO_BIG);
    assert_non_null(strstr(err.msg, "257 tokens"));
    assert_int_equal(spec_begin(s, text, 256, &params, NULL, NULL, NULL, &err), TD_OK);
    text[3] = -1;
    assert_int_equal(spec_begin(s, text, 9, &params, NULL, NULL, NULL, &err), TD_E_ARG);
    text[3] = V;
    assert_int_equal(spec_begin(s, text, 9, &params, NULL, NULL, NULL, &err), TD_E_ARG);
    text[3] = 0;
    params.draft_max = 17;
    assert_int_equal(spec_begin(s, text, 9, &params, NULL, NULL, NULL, &err), TD_E_ARG);
    params.draft_max = 4;
    params.sampler.top_p = 2;
    assert_int_equal(spec_begin(s, text, 9, &params, NULL, NULL, NULL, &err), TD_E_ARG);
    assert_int_equal(spec_open(&s, x.p.t, NULL, DRAFT_MAX + 1, &err), TD_E_ARG);
    close_fixture(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_leaves_no_trace),
        cmocka_unit_test(cut_leaves_no_trace_behind_windows),
        cmocka_unit_test(every_round_leaves_the_text_alone),
        cmocka_unit_test(common_prefix_is_kept),
        cmocka_unit_test(cancelled_prefill),
        cmocka_unit_test(failed_round_commits_nothing),
        cmocka_unit_test(scoring),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
