/* The streaming detokeniser: never half a character, never a lost byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text_make.h"

/* Tokens 0..2 are control, 3 is a user-defined one, 4.. are a space and pieces, then the 256 bytes.
 */
static const make_token tokens[] = {{"<unk>", TEXT_UNKNOWN, 0},
                                    {"<s>", TEXT_CONTROL, 0},
                                    {"</s>", TEXT_CONTROL, 0},
                                    {"[u]", TEXT_USER, 0},
                                    {"\xe2\x96\x81", TEXT_NORMAL, -1},
                                    {"\xe2\x96\x81"
                                     "a",
                                     TEXT_NORMAL, -2}};
enum { N_TOKENS = 6, BYTE0 = N_TOKENS };
static const make_vocab spm = {
    .model = "llama", .tokens = tokens, .n_tokens = N_TOKENS, .all_bytes = true};

static int shared_open(void **state) {
    *state = make_vocab_or_fail(&spm);
    return 0;
}

static int shared_close(void **state) {
    text_vocab_close(*state);
    return 0;
}

/* Is it a whole number of characters, judged by lead bytes alone? (for input that is valid) */
static bool whole_characters(const td_buf *b) {
    size_t i = 0;
    while (i < b->len) {
        uint8_t c = (uint8_t)b->data[i];
        i += c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    }
    return i == b->len;
}

static void never_half_a_character(void **state) {
    static const char text[] =
        "a\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x99\x82z\xe2\x80\x8d\xf4\x8f\xbf\xbf\xed\x9f\xbf";
    text_stream s;
    td_buf out = {0};
    text_stream_init(&s, *state, false, true);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        text_stream_push(&s, BYTE0 + (uint8_t)text[i], &out);
        assert_true(whole_characters(&out));
        assert_int_equal(out.len + (size_t)s.n_held, i + 1); /* nothing lost, at most 3 held */
        assert_in_range(s.n_held, 0, 3);
        assert_memory_equal(out.data ? out.data : "", text, out.len);
    }
    assert_int_equal(s.n_held, 0);
    assert_int_equal(out.len, sizeof text - 1);
    td_buf_free(&out);
}

/* A character cut anywhere by a token that shows nothing still comes whole. */
static void control_tokens_between_bytes(void **state) {
    static const char text[] = "\xf0\x9f\x99\x82";
    text_stream s;
    td_buf out = {0};
    text_stream_init(&s, *state, false, true);
    for (int i = 0; i < 4; i++) {
        text_stream_push(&s, BYTE0 + (uint8_t)text[i], &out);
        text_stream_push(&s, 2, &out);
        assert_int_equal(out.len, i == 3 ? 4 : 0);
    }
    td_buf_free(&out);
}

/* Every two bytes, and every three from a set that holds each kind: all pass, in order, and what is
 * held is always the beginning of a character. */
static void invalid_bytes_pass(void **state) {
    static const uint8_t kinds[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0,
                                    0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xed,
                                    0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff};
    enum { N_KINDS = sizeof kinds };
    td_buf out = {0};
    for (int n = 0; n < N_KINDS * N_KINDS * N_KINDS * N_KINDS; n++) {
        const uint8_t four[] = {kinds[n % N_KINDS], kinds[n / N_KINDS % N_KINDS],
                                kinds[n / N_KINDS / N_KINDS % N_KINDS],
                                kinds[n / N_KINDS / N_KINDS / N_KINDS]};
        text_stream s;
        text_stream_init(&s, *state, false, false);
        out.len = 0;
        for (int i = 0; i < 4; i++) {
            text_stream_push(&s, BYTE0 + four[i], &out);
            if (s.n_held < 0 || s.n_held > 3 || out.len + (size_t)s.n_held != (size_t)i + 1 ||
                (s.n_held && (s.held[0] < 0xc2 || s.held[0] > 0xf4)))
                fail_msg("%02x %02x %02x %02x: %zu out, %d held after %d", four[0], four[1],
                         four[2], four[3], out.len, s.n_held, i + 1);
        }
        text_stream_flush(&s, &out);
        if (out.len != 4 || memcmp(out.data, four, 4))
            fail_msg("%02x %02x %02x %02x came out otherwise", four[0], four[1], four[2], four[3]);
    }
    td_buf_free(&out);
}

static void what_cannot_be_completed_is_not_held(void **state) {
    /* overlong, surrogate, too large, a lead byte after a lead byte */
    static const uint8_t pairs[][2] = {
        {0xe0, 0x80}, {0xed, 0xa0}, {0xf0, 0x80}, {0xf4, 0x90}, {0xe4, 'a'}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        text_stream s;
        td_buf out = {0};
        text_stream_init(&s, *state, false, false);
        text_stream_push(&s, BYTE0 + pairs[i][0], &out);
        assert_int_equal(out.len, 0);
        text_stream_push(&s, BYTE0 + pairs[i][1], &out);
        assert_int_equal(out.len, 2);
        assert_int_equal(s.n_held, 0);
        td_buf_free(&out);
    }
}

static void check(const text_vocab *v, bool special, bool at_start, const int *ids, int n,
                  const char *want) {
    text_stream s;
    td_buf out = {0};
    td_buf_append(&out, "", 0);
    text_stream_init(&s, v, special, at_start);
    for (int i = 0; i < n; i++)
        text_stream_push(&s, ids[i], &out);
    text_stream_flush(&s, &out);
    assert_string_equal(out.data, want);
    td_buf_free(&out);
}

static void the_space_of_the_prefix(void **state) {
    check(*state, false, true, (int[]){5, 5}, 2, "a a");
    check(*state, false, false, (int[]){5, 5}, 2, " a a");
    check(*state, false, true, (int[]){1, 5, 5}, 3, "a a"); /* BOS shows nothing: still the start */
    check(*state, true, true, (int[]){1, 5}, 2, "<s> a");
    check(*state, false, true, (int[]){4, 5}, 2, " a"); /* one space goes, not all */
    check(*state, false, true, (int[]){3, 5}, 2, "[u] a");
    check(*state, false, true, (int[]){-1, 99999, 5}, 3, "a"); /* no tokens: nothing */
    make_vocab m = spm;
    m.space_prefix = KEY(0);
    text_vocab *v = make_vocab_or_fail(&m);
    check(v, false, true, (int[]){5, 5}, 2, " a a");
    text_vocab_close(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_half_a_character),
        cmocka_unit_test(control_tokens_between_bytes),
        cmocka_unit_test(invalid_bytes_pass),
        cmocka_unit_test(what_cannot_be_completed_is_not_held),
        cmocka_unit_test(the_space_of_the_prefix),
    };
    return cmocka_run_group_tests(tests, shared_open, shared_close);
}
