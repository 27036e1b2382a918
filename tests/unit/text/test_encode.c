/* Encoding with vocabularies small enough to follow by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text_make.h"

#define N(a) ((int)(sizeof(a) / sizeof *(a)))

/* "abc" is a token that no merge makes; "abcd" comes from "ab" and "cd", in that order of ranks. */
static const make_token bpe_tokens[] = {{"<s>", TEXT_CONTROL},
                                        {"</s>", TEXT_CONTROL},
                                        {"ab", TEXT_NORMAL},
                                        {"cd", TEXT_NORMAL},
                                        {"abcd", TEXT_NORMAL},
                                        {"bc", TEXT_NORMAL},
                                        {"abc", TEXT_NORMAL},
                                        {"aa", TEXT_NORMAL},
                                        {"\xc4\xa0"
                                         "a",
                                         TEXT_NORMAL} /* Ġa */,
                                        {"[x]", TEXT_USER},
                                        {"[x][x]", TEXT_USER},
                                        {"x][y", TEXT_USER},
                                        {"<unk>", TEXT_UNKNOWN},
                                        {"[pad]", TEXT_UNUSED}};
static const make_vocab bpe = {.model = "gpt2",
                               .pre = "gpt-2",
                               .tokens = bpe_tokens,
                               .n_tokens = N(bpe_tokens),
                               .all_bytes = true,
                               .merges = "a b\nc d\nab cd\nb c\na a\n\xc4\xa0 a\n",
                               .bos = KEY(0),
                               .eos = KEY(1)};

static void merges_by_rank_and_leftmost(void **state) {
    (void)state;
    text_vocab *v = make_vocab_or_fail(&bpe);
    expect_tokens(v, "abcd", 4, false, false, "abcd");
    expect_tokens(v, "abc", 3, false, false, "ab\nc"); /* "a b" ranks before "b c" */
    expect_tokens(v, "xbc", 3, false, false, "x\nbc");
    expect_tokens(v, "aaa", 3, false, false, "aa\na"); /* equal ranks: the leftmost first */
    expect_tokens(v, "aaaab", 5, false, false, "aa\na\nab");
    expect_tokens(v, "", 0, true, true, ""); /* no BOS: gpt-2 adds none unless told */
    expect_tokens(v, "b a", 3, false, false,
                  "b\n\xc4\xa0"
                  "a");
    text_vocab_close(v);
}

static void whole_words_before_merges_in_llama_bpe(void **state) {
    (void)state;
    make_vocab m = bpe;
    m.pre = "llama-bpe";
    text_vocab *v = make_vocab_or_fail(&m);
    expect_tokens(v, "abc", 3, false, false, "abc");
    expect_tokens(v, "abc", 3, true, false,
                  "<s>\nabc"); /* Llama 3 adds BOS where the file is silent */
    expect_tokens(v, "abcc", 4, false, false, "ab\nc\nc");
    text_vocab_close(v);
}

static void special_tokens_leftmost_longest(void **state) {
    (void)state;
    text_vocab *v = make_vocab_or_fail(&bpe);
    expect_tokens(v, "a[x]b", 5, false, false, "a\n[x]\nb"); /* user-defined: always */
    expect_tokens(v, "[x][x][x]", 9, false, false, "[x][x]\n[x]");
    expect_tokens(v, "[x][y", 5, false, false,
                  "[x]\n[\ny"); /* the leftmost wins over a longer one */
    expect_tokens(v, "x][y", 4, false, false, "x][y");
    expect_tokens(v, "[x", 2, false, false, "[\nx");
    expect_tokens(v, "<s></s>", 7, false, true, "<s>\n</s>");
    expect_tokens(v, "<s></s>", 7, false, false, "<\ns\n>\n<\n/\ns\n>");
    expect_tokens(v, "<unk>", 5, false, true, "<unk>");
    expect_tokens(v, "[pad]", 5, false, true, "[\np\na\nd\n]"); /* unused: never */
    text_vocab_close(v);
}

static void bos_and_eos_as_the_file_says(void **state) {
    (void)state;
    for (int bits = 0; bits < 4; bits++) {
        make_vocab m = bpe;
        m.add_bos = KEY(bits & 1);
        m.add_eos = KEY(bits >> 1);
        text_vocab *v = make_vocab_or_fail(&m);
        static const char *const want[] = {"ab", "<s>\nab", "ab\n</s>", "<s>\nab\n</s>"};
        expect_tokens(v, "ab", 2, true, false, want[bits]);
        expect_tokens(v, "ab", 2, false, false, "ab");
        assert_int_equal(text_adds_bos(v), bits & 1);
        assert_int_equal(text_adds_eos(v), bits >> 1);
        text_vocab_close(v);
    }
    make_vocab m = bpe; /* asked to add what it has not */
    m.bos = 0;
    m.add_bos = KEY(1);
    text_vocab *v = make_vocab_or_fail(&m);
    assert_int_equal(text_bos(v), -1);
    assert_false(text_adds_bos(v));
    expect_tokens(v, "ab", 2, true, false, "ab");
    text_vocab_close(v);
}

static void appends_to_what_is_there(void **state) {
    (void)state;
    text_vocab *v = make_vocab_or_fail(&bpe);
    td_error err = {0};
    int32_t *tokens = NULL;
    size_t n = 0, cap = 0;
    for (int i = 0; i < 3; i++)
        assert_int_equal(text_encode(v, "abcd", 4, false, false, &tokens, &n, &cap, &err), TD_OK);
    assert_int_equal(n, 3);
    assert_true(cap >= 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(tokens[i], 4);
    free(tokens);
    text_vocab_close(v);
}

static void every_byte_survives(void **state) {
    (void)state;
    text_vocab *v = make_vocab_or_fail(&bpe);
    char two[2];
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            two[0] = (char)a;
            two[1] = (char)b;
            expect_round_trip(v, two, 2);
        }
    /* bad bytes merge with nothing; the text beside them as ever */
    expect_tokens(v,
                  "ab\xff"
                  "ab",
                  5, false, false, "ab\n\xc3\xbf\nab");
    expect_round_trip(v, "\xed\xa0\x80 \xf4\x90\x80\x80 \xc0\x80 \xe2\x82 a\0b", 19);
    text_vocab_close(v);
}

static void bytes_without_a_token_are_left_out(void **state) {
    (void)state;
    static const make_token few[] = {{"a", TEXT_NORMAL}, {"b", TEXT_NORMAL}, {"ab", TEXT_NORMAL}};
    const make_vocab m = {
        .model = "gpt2", .pre = "gpt-2", .tokens = few, .n_tokens = 3, .merges = "a b\n"};
    text_vocab *v = make_vocab_or_fail(&m);
    expect_tokens(v, "azb\xff", 4, false, false, "ab"); /* as the tokenizers library does */
    text_vocab_close(v);
}

static const make_token spm_tokens[] = {{"<unk>", TEXT_UNKNOWN, 0},
                                        {"<s>", TEXT_CONTROL, 0},
                                        {"</s>", TEXT_CONTROL, 0},
                                        {"\xe2\x96\x81", TEXT_NORMAL, -1},
                                        {"a", TEXT_NORMAL, -2},
                                        {"b", TEXT_NORMAL, -3},
                                        {"ab", TEXT_NORMAL, -10},
                                        {"\xe2\x96\x81"
                                         "a",
                                         TEXT_NORMAL, -11},
                                        {"\xe2\x96\x81"
                                         "ab",
                                         TEXT_NORMAL, -12},
                                        {"bb", TEXT_NORMAL, -5},
                                        {"\xc3\xa9", TEXT_NORMAL, -6},
                                        {"aa", TEXT_NORMAL, -20},
                                        {"[u]", TEXT_USER, 0},
                                        {"<s", TEXT_NORMAL, -1},
                                        {"<", TEXT_NORMAL, -1},
                                        {"s", TEXT_NORMAL, -1},
                                        {">", TEXT_NORMAL, -1},
                                        {"u v", TEXT_USER, 0}};
#define SP "\xe2\x96\x81"

static const make_vocab spm = {
    .model = "llama", .tokens = spm_tokens, .n_tokens = N(spm_tokens), .all_bytes = true};

static void spm_merges_by_score(void **state) {
    (void)state;
    make_vocab m = spm;
    m.space_prefix = KEY(0);
    m.add_bos = KEY(0);
    text_vocab *v = make_vocab_or_fail(&m);
    expect_tokens(v, "ab", 2, false, false, "ab");
    expect_tokens(v, "abb", 3, false, false, "a\nbb"); /* -5 beats -10 */
    expect_tokens(v, " ab", 3, false, false, SP "ab"); /* "ab" first, then "_" + "ab" */
    expect_tokens(v, "aaa", 3, false, false, "aa\na");
    expect_tokens(v, "  a", 3, false, false, SP "\n" SP "a");
    text_vocab_close(v);
}

static void spm_defaults(void **state) {
    (void)state;
    text_vocab *v = make_vocab_or_fail(&spm);
    assert_string_equal(text_pre_name(v), "default");
    assert_int_equal(text_bos(v), 1);
    assert_int_equal(text_eos(v), 2);
    assert_true(text_adds_bos(v));
    assert_false(text_adds_eos(v));
    assert_true(text_is_end(v, 2));
    expect_tokens(v, "ab", 2, true, false, "<s>\n" SP "ab"); /* BOS, space prefix */
    expect_tokens(v, "", 0, true, false, "<s>");
    /* the prefix comes again after a special token, as in llama.cpp */
    expect_tokens(v, "ab[u]ab", 7, false, false, SP "ab\n[u]\n" SP "ab");
    expect_tokens(v, "[u]", 3, false, false, "[u]");
    expect_tokens(v, "au vb", 5, false, false, SP "a\nu v\n" SP "\nb");
    text_vocab_close(v);
}

static void spm_byte_fallback(void **state) {
    (void)state;
    make_vocab m = spm;
    m.space_prefix = KEY(0);
    text_vocab *v = make_vocab_or_fail(&m);
    expect_tokens(v,
                  "\xe4\xbd\xa0"
                  "a",
                  4, false, false, "<0xE4>\n<0xBD>\n<0xA0>\na");
    expect_tokens(v, "\xc3\xa9", 2, false, false, "\xc3\xa9");
    expect_tokens(v,
                  "a\xff\xc3"
                  "b",
                  4, false, false, "a\n<0xFF>\n<0xC3>\nb"); /* not UTF-8 */
    expect_tokens(v, "a\0b", 3, false, false, "a\n<0x00>\nb");
    char two[2];
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            two[0] = (char)a;
            two[1] = (char)b;
            expect_round_trip(v, two, 2);
        }
    text_vocab_close(v);

    m.all_bytes = false; /* no byte tokens: one unknown for a stretch of what is no piece */
    v = make_vocab_or_fail(&m);
    expect_tokens(v,
                  "a\xe4\xbd\xa0zz"
                  "bz",
                  8, false, false, "a\n<unk>\nb\n<unk>");
    text_vocab_close(v);
}

/* "<s" and "s>" are pieces, and "<s>" is a token: merging must not make a control token of plain
 * text. */
static void spm_text_never_becomes_control(void **state) {
    (void)state;
    make_vocab m = spm;
    m.space_prefix = KEY(0);
    text_vocab *v = make_vocab_or_fail(&m);
    expect_tokens(v, "<s>", 3, false, false, "<s\n>");
    expect_tokens(v, "<s>", 3, false, true, "<s>");
    text_vocab_close(v);
}

static void queries(void **state) {
    (void)state;
    text_vocab *v = make_vocab_or_fail(&bpe);
    size_t len;
    assert_string_equal(text_model_name(v), "gpt2");
    assert_string_equal(text_pre_name(v), "gpt-2");
    assert_int_equal(text_n_tokens(v), N(bpe_tokens) + 256);
    assert_int_equal(text_token_type(v, 9), TEXT_USER);
    assert_memory_equal(text_token_raw(v, 8, &len),
                        "\xc4\xa0"
                        "a",
                        3);
    assert_int_equal(len, 3);
    assert_memory_equal(text_token_bytes(v, 8, false, &len), " a", 2);
    assert_int_equal(len, 2);
    assert_memory_equal(text_token_bytes(v, 0, true, &len), "<s>", 3);
    assert_int_equal(len, 3);
    text_token_bytes(v, 0, false, &len); /* control: nothing */
    assert_int_equal(len, 0);
    assert_memory_equal(text_token_bytes(v, 9, false, &len), "[x]", 3); /* user-defined: itself */
    assert_int_equal(len, 3);
    const int32_t outside[] = {-1, INT32_MIN, N(bpe_tokens) + 256, INT32_MAX};
    for (int i = 0; i < N(outside); i++) {
        assert_string_equal(text_token_raw(v, outside[i], &len), "");
        assert_int_equal(len, 0);
        assert_string_equal(text_token_bytes(v, outside[i], true, &len), "");
        assert_int_equal(len, 0);
        assert_false(text_is_end(v, outside[i]));
        assert_int_equal(text_token_type(v, outside[i]), TEXT_UNUSED);
    }
    assert_null(text_chat_template(v));
    text_vocab_close(v);
    text_vocab_close(NULL);
}

static void ends_of_text(void **state) {
    (void)state;
    static const make_token marks[] = {{"<|im_end|>", TEXT_NORMAL},
                                       {"<|eot_id|>", TEXT_USER},
                                       {"<|eom_id|>", TEXT_CONTROL},
                                       {"<end_of_turn>", TEXT_CONTROL},
                                       {"<|end|>", TEXT_CONTROL},
                                       {"</s>", TEXT_USER},
                                       {"<EOT>", TEXT_CONTROL},
                                       {"<|im_start|>", TEXT_CONTROL},
                                       {"<\xef\xbd\x9c"
                                        "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
                                        TEXT_CONTROL},
                                       {"x", TEXT_CONTROL},
                                       {"y", TEXT_CONTROL},
                                       {"<|return|>", TEXT_CONTROL},
                                       {"<|call|>", TEXT_CONTROL}};
    static const bool want[] = {1, 1, 1, 1, 1, 0, 1, 0, 1, 1, 1};
    make_vocab m = {.model = "gpt2",
                    .pre = "gpt-2",
                    .tokens = marks,
                    .n_tokens = 11,
                    .all_bytes = true,
                    .merges = "",
                    .eos = KEY(9),
                    .eot = KEY(10)};
    text_vocab *v = make_vocab_or_fail(&m);
    for (int i = 0; i < 11; i++)
        assert_int_equal(text_is_end(v, i), want[i]);
    for (int i = 11; i < text_n_tokens(v); i++)
        assert_false(text_is_end(v, i));
    /* a mark is a control token even where the file says otherwise */
    assert_int_equal(text_token_type(v, 0), TEXT_CONTROL);
    expect_tokens(v, "<|eot_id|>", 10, false, true, "<|eot_id|>");
    expect_tokens(v, "<EOT>", 5, false, false, "<\nE\nO\nT\n>");
    text_vocab_close(v);
    m.n_tokens = 13; /* Harmony: <|end|> closes a message, not the turn */
    v = make_vocab_or_fail(&m);
    assert_false(text_is_end(v, 4));
    assert_true(text_is_end(v, 11));
    assert_true(text_is_end(v, 12));
    text_vocab_close(v);
}

typedef struct bad_case {
    const char *what;
    make_vocab m;
    td_code code;
    const char *words; /* in the message */
} bad_case;

static void broken_files_end_in_one_line(void **state) {
    (void)state;
    static const make_token bad_byte[] = {{"<0xZZ>", TEXT_BYTE, 0}};
    static const make_token nan_score[] = {{"a", TEXT_NORMAL, __builtin_nanf("")}};
    static const make_token no_bytes[] = {{"abc", TEXT_NORMAL, 0}};
    bad_case cases[] = {
        {"no model", bpe, TD_E_FORMAT, "tokenizer.ggml.model"},
        {"unknown model", bpe, TD_E_UNSUPPORTED, "'bert'"},
        {"unknown pre-splitter", bpe, TD_E_UNSUPPORTED, "'klingon'"},
        {"no tokens", bpe, TD_E_FORMAT, "tokenizer.ggml.tokens"},
        {"too few types", bpe, TD_E_FORMAT, "token_type has 3 entries"},
        {"no merges", bpe, TD_E_FORMAT, "tokenizer.ggml.merges"},
        {"half a merge", bpe, TD_E_FORMAT, "merge 1 "},
        {"merge of an unknown token", bpe, TD_E_FORMAT, "merge 1 'qq b'"},
        {"merge into an unknown token", bpe, TD_E_FORMAT, "merge 0 'd a'"},
        {"merge without a right side", bpe, TD_E_FORMAT, "merge 0 "},
        {"bos past the end", bpe, TD_E_FORMAT, "bos_token_id"},
        {"eos negative", bpe, TD_E_FORMAT, "eos_token_id"},
        {"no byte letters", bpe, TD_E_FORMAT, "single byte"},
        {"too few scores", spm, TD_E_FORMAT, "scores"},
        {"score that is no number", spm, TD_E_FORMAT, "score of token 0"},
        {"byte token misspelled", spm, TD_E_FORMAT, "'<0xZZ>'"},
    };
    make_vocab *m[N(cases)];
    for (int i = 0; i < N(cases); i++)
        m[i] = &cases[i].m;
    m[0]->model = NULL;
    m[1]->model = "bert";
    m[2]->pre = "klingon";
    m[3]->n_tokens = 0;
    m[3]->all_bytes = false;
    m[4]->n_types = 3;
    m[5]->merges = NULL;
    m[6]->merges = "a b\nab\n";
    m[7]->merges = "a b\nqq b\n";
    m[8]->merges = "d a\n";
    m[9]->merges = "a \n";
    m[10]->bos = KEY(N(bpe_tokens) + 256);
    m[11]->eos = KEY(-2);
    m[12]->tokens = no_bytes;
    m[12]->n_tokens = 1;
    m[12]->all_bytes = false;
    m[12]->merges = "";
    m[12]->bos = m[12]->eos = 0;
    m[13]->n_scores = 5;
    m[14]->tokens = nan_score;
    m[14]->n_tokens = 1;
    m[15]->tokens = bad_byte;
    m[15]->n_tokens = 1;
    for (int i = 0; i < N(cases); i++) {
        text_vocab *v;
        td_error err = {0};
        td_code rc = make_vocab_open(&v, &cases[i].m, &err);
        if (rc != cases[i].code || !strstr(err.msg, cases[i].words) || strchr(err.msg, '\n') || v)
            fail_msg("%s: code %d, message '%s'", cases[i].what, rc, err.msg);
        assert_int_equal(err.code, rc);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_by_rank_and_leftmost),
        cmocka_unit_test(whole_words_before_merges_in_llama_bpe),
        cmocka_unit_test(special_tokens_leftmost_longest),
        cmocka_unit_test(bos_and_eos_as_the_file_says),
        cmocka_unit_test(appends_to_what_is_there),
        cmocka_unit_test(every_byte_survives),
        cmocka_unit_test(bytes_without_a_token_are_left_out),
        cmocka_unit_test(spm_merges_by_score),
        cmocka_unit_test(spm_defaults),
        cmocka_unit_test(spm_byte_fallback),
        cmocka_unit_test(spm_text_never_becomes_control),
        cmocka_unit_test(queries),
        cmocka_unit_test(ends_of_text),
        cmocka_unit_test(broken_files_end_in_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
