/* The target: rows of a pass, kept or not, against a target that read the text in one piece. */
#include "tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { V = 48, N = 90 };

static target *open_target(const tiny *m, int chunk, int max_rows) {
    const target_config cfg = {.n_ctx = 128, .max_rows = max_rows, .prefill_chunk = chunk};
    target *t = NULL;
    td_error err = {0};
    if (target_open(&t, m->m, &cfg, &err)) fail_msg("%s", err.msg);
    return t;
}

static void read_text(target *t, const int32_t *text, int n) {
    td_error err = {0};
    if (target_prefill(t, text, n, NULL, NULL, &err)) fail_msg("%s", err.msg);
}

static const float *verify(target *t, const int32_t *tokens, const int *parent, int n) {
    const float *logits = NULL;
    td_error err = {0};
    if (target_verify(t, tokens, parent, n, &logits, &err)) fail_msg("%s", err.msg);
    return logits;
}

/* Logits of every position of the text, each from a pass of one row. */
static float *row_by_row(const tiny *m, const int32_t *text) {
    float *all = td_calloc(N * V, sizeof *all);
    assert_non_null(all);
    target *t = open_target(m, 8, 1);
    for (int i = 0; i < N; i++) {
        memcpy(all + i * V, verify(t, text + i, NULL, 1), V * sizeof *all);
        target_keep(t, NULL, 1);
    }
    assert_int_equal(target_len(t), N);
    target_close(t);
    return all;
}

static void passes_of_any_width_agree(void **state) {
    (void)state;
    const char *const archs[] = {"llama", "gemma3"};
    for (int a = 0; a < 2; a++) {
        tiny m;
        tiny_open(&m, &(tiny_params){.arch = archs[a], .seed = 3});
        int32_t text[N];
        tiny_text(text, N, V, 4);
        float *want = row_by_row(&m, text);
        for (int width = 1; width <= 17; width += 4) {
            target *t = open_target(&m, width * 3 - 2, 17);
            for (int at = width; at + width <= N; at += width + 1) {
                assert_true(target_truncate(t, 0));
                read_text(t, text, at);
                assert_memory_equal(verify(t, text + at, NULL, width), want + at * V,
                                    (size_t)width * V * sizeof *want);
                assert_int_equal(target_len(t), at); /* nothing is committed by a pass */
            }
            target_close(t);
        }
        free(want);
        tiny_close(&m);
    }
}

/* Keep some, go on from there: as if the rest had never been. */
static void what_is_not_kept_is_gone(void **state) {
    (void)state;
    tiny m;
    tiny_open(&m, &(tiny_params){.arch = "gemma3", .seed = 3});
    int32_t text[N], wrong[9];
    tiny_text(text, N, V, 4);
    float *want = row_by_row(&m, text);
    target *t = open_target(&m, 8, 9);
    for (int at = 0; at + 9 <= N;) {
        const int right = at % 5 + 1;
        memcpy(wrong, text + at, sizeof wrong);
        for (int i = right; i < 9; i++)
            wrong[i] = (wrong[i] + 1 + i) % V;
        const float *logits = verify(t, wrong, NULL, 9);
        assert_memory_equal(logits, want + at * V, (size_t)right * V * sizeof *want);
        target_keep(t, NULL, right);
        at += right;
        assert_int_equal(target_len(t), at);
    }
    target_close(t);
    free(want);
    tiny_close(&m);
}

/* Two branches behind one token; the second is kept. */
static void path_of_a_tree(void **state) {
    (void)state;
    tiny m;
    tiny_open(&m, &(tiny_params){.seed = 3});
    int32_t text[N];
    tiny_text(text, N, V, 4);
    float *want = row_by_row(&m, text);
    target *t = open_target(&m, 8, 9);
    for (int at = 2; at + 9 < N; at += 13) {
        assert_true(target_truncate(t, 0));
        read_text(t, text, at);
        const int32_t other = (text[at + 1] + 1) % V;
        const int32_t tokens[6] = {text[at], other,        text[at + 1],
                                   other,    text[at + 2], text[at + 3]};
        const int parent[6] = {-1, 0, 0, 1, 2, 4};
        const int kept[4] = {0, 2, 4, 5};
        const float *logits = verify(t, tokens, parent, 6);
        for (int i = 0; i < 4; i++)
            assert_memory_equal(logits + kept[i] * V, want + (at + i) * V, V * sizeof *want);
        target_keep(t, kept, 4);
        assert_int_equal(target_len(t), at + 4);
        assert_memory_equal(verify(t, text + at + 4, NULL, 3), want + (at + 4) * V,
                            3 * V * sizeof *want);
    }
    target_close(t);
    free(want);
    tiny_close(&m);
}

static void truncated_and_read_again(void **state) {
    (void)state;
    tiny m;
    tiny_open(&m, &(tiny_params){.arch = "gemma3", .seed = 3});
    int32_t text[N];
    tiny_text(text, N, V, 4);
    float *want = row_by_row(&m, text);
    target *t = open_target(&m, 8, 4);
    read_text(t, text, N);
    for (int n = N - 1; n >= N - 60; n -= 3) { /* within what windowed layers keep */
        assert_true(target_truncate(t, n));
        assert_int_equal(target_len(t), n);
        assert_memory_equal(verify(t, text + n, NULL, 1), want + n * V, V * sizeof *want);
    }
    assert_true(target_truncate(t, 0));
    assert_memory_equal(verify(t, text, NULL, 1), want, V * sizeof *want);
    target_close(t);
    free(want);
    tiny_close(&m);
}

static bool until(void *user, int done) {
    int *last = user;
    *last = done;
    return done < 24;
}

static void refusals(void **state) {
    (void)state;
    tiny m;
    td_error err = {0};
    target *t = NULL;
    const float *logits;
    tiny_open(&m, &(tiny_params){.seed = 3});
    int32_t text[200];
    tiny_text(text, 200, V, 4);
    assert_int_equal(
        target_open(&t, m.m, &(target_config){.n_ctx = 9, .max_rows = 0, .prefill_chunk = 1}, &err),
        TD_E_ARG);
    assert_int_equal(
        target_open(&t, m.m, &(target_config){.n_ctx = 0, .max_rows = 1, .prefill_chunk = 1}, &err),
        TD_E_ARG);
    assert_null(t);
    t = open_target(&m, 8, 4);
    int last = 0;
    assert_int_equal(target_prefill(t, text, 100, until, &last, &err), TD_E_CANCELLED);
    assert_int_equal(last, 24);
    assert_int_equal(target_len(t), 24);
    assert_int_equal(target_prefill(t, text + 24, 176, NULL, NULL, &err), TD_E_TOO_BIG);
    assert_true(target_len(t) <= 128);
    assert_true(target_truncate(t, 24));
    read_text(t, text + 24, 101);
    assert_int_equal(target_verify(t, text, NULL, 4, &logits, &err), TD_E_TOO_BIG);
    assert_int_equal(target_verify(t, text, NULL, 3, &logits, &err), TD_OK);
    target_keep(t, NULL, 3);
    assert_int_equal(target_len(t), 128);
    target_close(t);
    tiny_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_of_any_width_agree),
        cmocka_unit_test(what_is_not_kept_is_gone),
        cmocka_unit_test(path_of_a_tree),
        cmocka_unit_test(truncated_and_read_again),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
