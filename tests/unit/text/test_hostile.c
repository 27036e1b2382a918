/* Opening and encoding when memory runs out at any point, from damaged files, and on several
 * threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text_make.h"

static const make_token bpe_tokens[] = {{"<s>", TEXT_CONTROL}, {"<|im_end|>", TEXT_NORMAL},
                                        {"ab", TEXT_NORMAL},   {"abab", TEXT_NORMAL},
                                        {"[x]", TEXT_USER},    {"[xy]", TEXT_USER}};
static const make_vocab bpe = {.model = "gpt2",
                               .pre = "llama-bpe",
                               .chat = "{{ '<|im_start|>system\\nS<|im_end|>' }}",
                               .tokens = bpe_tokens,
                               .n_tokens = 6,
                               .all_bytes = true,
                               .merges = "a b\nab ab\n",
                               .bos = KEY(0),
                               .eos = KEY(1)};
static const make_token spm_tokens[] = {{"<unk>", TEXT_UNKNOWN, 0},
                                        {"<s>", TEXT_CONTROL, 0},
                                        {"</s>", TEXT_CONTROL, 0},
                                        {"a", TEXT_NORMAL, -1},
                                        {"b", TEXT_NORMAL, -2},
                                        {"ab", TEXT_NORMAL, -3},
                                        {"\xe2\x96\x81", TEXT_NORMAL, -4},
                                        {"[x]", TEXT_USER, 0}};
static const make_vocab spm = {
    .model = "llama", .tokens = spm_tokens, .n_tokens = 8, .all_bytes = true};
static const make_vocab *const both[] = {&bpe, &spm};

static const char text[] =
    "abab ab [x] [xy] <s> 12345 \xc3\xa9\xff\xf0\x9f\x99\x82 \xe4\xbd\xa0   x\n\n ab";

/* ---- memory: the allocators are wrapped by the linker; the countdown's last call fails ---- */

static long countdown = -1; /* -1: all succeed */

static bool fails(void) {
    return countdown >= 0 && countdown-- == 0;
}

void *__real_td_calloc(size_t n, size_t size);
void *__wrap_td_calloc(size_t n, size_t size);
void *__wrap_td_calloc(size_t n, size_t size) {
    return fails() ? NULL : __real_td_calloc(n, size);
}

bool __real_td_grow(void *p, size_t *have, size_t need, size_t item);
bool __wrap_td_grow(void *p, size_t *have, size_t need, size_t item);
bool __wrap_td_grow(void *p, size_t *have, size_t need, size_t item) {
    if (need > *have && fails()) return false;
    return __real_td_grow(p, have, need, item);
}

char *__real_strdup(const char *s);
char *__wrap_strdup(const char *s);
char *__wrap_strdup(const char *s) {
    return fails() ? NULL : __real_strdup(s);
}

static void opening_short_of_memory(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        td_buf file = make_vocab_file(both[i]);
        td_error err = {0};
        gguf_file *f;
        text_vocab *v = NULL;
        assert_int_equal(gguf_open_memory(&f, file.data, file.len, "mem", &err), TD_OK);
        long n = 0;
        for (td_code rc = TD_E_MEMORY; rc; n++) {
            err = (td_error){0};
            countdown = n;
            rc = text_vocab_open(&v, f, &err);
            countdown = -1;
            assert_true(rc == TD_OK || rc == TD_E_MEMORY);
            assert_int_equal(err.code, rc);
            assert_true(rc ? !v : !!v);
        }
        assert_in_range(n, 10, 10000);
        text_vocab_close(v);
        gguf_close(f);
        td_buf_free(&file);
    }
}

static void encoding_short_of_memory(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        text_vocab *v = make_vocab_or_fail(both[i]);
        td_error err = {0};
        int32_t *tokens = NULL;
        size_t cap = 0, length = 0;
        assert_int_equal(
            text_encode(v, text, sizeof text - 1, true, true, &tokens, &length, &cap, &err), TD_OK);
        free(tokens);
        long n = 0;
        for (td_code rc = TD_E_MEMORY; rc; n++) {
            int32_t *mine = NULL;
            size_t have = 0, got = 0;
            countdown = n;
            rc = text_encode(v, text, sizeof text - 1, true, true, &mine, &got, &have, &err);
            countdown = -1;
            assert_true(rc == TD_OK || rc == TD_E_MEMORY);
            assert_int_equal(got, rc ? 0 : length); /* all or nothing */
            free(mine);
        }
        assert_in_range(n, 4, 1000);
        text_vocab_close(v);
    }
}

/* ---- damaged files ---- */

static uint32_t draw(uint32_t *state) { /* xorshift */
    *state ^= *state << 13;
    *state ^= *state >> 17;
    return *state ^= *state << 5;
}

/* Whatever the file says: an error with words, or a vocabulary that works. */
static void damaged_files(void **state) {
    (void)state;
    uint32_t seed = 20250101;
    int opened = 0, refused = 0;
    for (int round = 0; round < 6000; round++) {
        td_buf file = make_vocab_file(both[round % 2]);
        int n = 1 + (int)(draw(&seed) % 6);
        for (int i = 0; i < n; i++) {
            char *at = file.data + draw(&seed) % file.len;
            uint32_t what = draw(&seed) % 3;
            *at = (char)(what == 0 ? draw(&seed) : what == 1 ? *at ^ 1 << draw(&seed) % 8 : 0);
        }
        td_error err = {0};
        gguf_file *f = NULL;
        text_vocab *v = NULL;
        if (!gguf_open_memory(&f, file.data, file.len, "mem", &err)) {
            td_code rc = text_vocab_open(&v, f, &err);
            gguf_close(f);
            if (rc && (!err.msg[0] || err.code != rc)) fail_msg("seed round %d: no words", round);
            opened += !rc;
            refused += rc != TD_OK;
        }
        td_buf_free(&file);
        if (!v) continue;
        int32_t *tokens = NULL;
        size_t count = 0, cap = 0;
        assert_int_equal(
            text_encode(v, text, sizeof text - 1, true, true, &tokens, &count, &cap, &err), TD_OK);
        text_stream s;
        td_buf out = {0};
        text_stream_init(&s, v, true, true);
        for (size_t i = 0; i < count; i++) {
            assert_in_range(tokens[i], 0, text_n_tokens(v) - 1);
            text_stream_push(&s, tokens[i], &out);
        }
        text_stream_flush(&s, &out);
        out.len = 0;
        (void)text_chat_wrap(v, &(td_message){"user", "u", 1}, 1, &out, &err);
        td_buf_free(&out);
        free(tokens);
        text_vocab_close(v);
    }
    assert_true(opened > 500 && refused > 50); /* both kinds were met */
}

/* ---- threads ---- */

enum { N_THREADS = 4, N_TEXTS = 800 };

typedef struct shared {
    const text_vocab *v;
    const int32_t *want;
    size_t n;
    td_split split;
    bool ok[N_TEXTS];
} shared;

static void encode_many_times(void *arg, int thread, int n_threads) {
    (void)thread, (void)n_threads;
    shared *s = arg;
    for (int i, end; td_split_next(&s->split, &i, &end);) {
        int32_t *tokens = NULL;
        size_t n = 0, cap = 0;
        td_code rc = text_encode(s->v, text, sizeof text - 1, true, true, &tokens, &n, &cap, NULL);
        s->ok[i] = !rc && n == s->n && !memcmp(tokens, s->want, n * sizeof *tokens);
        free(tokens);
    }
}

static void threads_share_a_vocabulary(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        text_vocab *v = make_vocab_or_fail(both[i]);
        int32_t *want = NULL;
        size_t n = 0, cap = 0;
        td_error err = {0};
        td_pool *pool;
        assert_int_equal(text_encode(v, text, sizeof text - 1, true, true, &want, &n, &cap, &err),
                         TD_OK);
        assert_int_equal(td_pool_open(&pool, N_THREADS, &err), TD_OK);
        shared s = {.v = v, .want = want, .n = n};
        td_split_init(&s.split, N_TEXTS, 1);
        td_pool_run(pool, encode_many_times, &s);
        td_pool_close(pool);
        for (int t = 0; t < N_TEXTS; t++)
            assert_true(s.ok[t]);
        free(want);
        text_vocab_close(v);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_short_of_memory),
        cmocka_unit_test(encoding_short_of_memory),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(threads_share_a_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
