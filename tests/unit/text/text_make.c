#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text_make.h"

/* GPT-2's letter for a byte, written from its definition: printable Latin-1 is itself, the rest are
 * numbered from U+0100 in order. */
static const char *letter(int byte, char out[8]) {
    int next = 0x100, code = 0;
    for (int b = 0; b <= byte; b++) {
        bool own = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        code = own ? b : next++;
    }
    if (code < 0x80) {
        snprintf(out, 8, "%c", code);
    } else {
        snprintf(out, 8, "%c%c", 0xc0 | code >> 6, 0x80 | (code & 0x3f));
    }
    return out;
}

static void put_int(td_buf *b, uint64_t *n, const char *key, int value, uint32_t type) {
    if (!value) return;
    make_key_int(b, key, type, (uint64_t)(int64_t)(value - KEY_BASE));
    ++*n;
}

td_buf make_vocab_file(const make_vocab *m) {
    td_buf keys = {0}, file = {0};
    uint64_t n = 0;
    bool spm = m->model && !strcmp(m->model, "llama");
    int all = m->n_tokens + (m->all_bytes ? 256 : 0);
    char name[8];
    if (m->model) make_key_string(&keys, "tokenizer.ggml.model", m->model), n++;
    if (m->pre) make_key_string(&keys, "tokenizer.ggml.pre", m->pre), n++;
    if (m->chat) make_key_string(&keys, "tokenizer.chat_template", m->chat), n++;

    make_key_array(&keys, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)all);
    for (int i = 0; i < m->n_tokens; i++)
        make_string(&keys, m->tokens[i].text);
    for (int i = m->n_tokens; i < all; i++) {
        if (spm) snprintf(name, sizeof name, "<0x%02X>", i - m->n_tokens);
        make_string(&keys, spm ? name : letter(i - m->n_tokens, name));
    }
    int n_types = m->n_types ? m->n_types : all;
    make_key_array(&keys, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)n_types);
    for (int i = 0; i < n_types; i++)
        make_int(&keys,
                 i < m->n_tokens ? (uint64_t)m->tokens[i].type
                 : spm           ? TEXT_BYTE
                                 : TEXT_NORMAL,
                 4);
    n += 2;
    if (spm) {
        int n_scores = m->n_scores ? m->n_scores : all;
        make_key_array(&keys, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)n_scores);
        for (int i = 0; i < n_scores; i++) {
            float score = i < m->n_tokens ? m->tokens[i].score : 0;
            td_buf_append(&keys, &score, sizeof score);
        }
        n++;
    }
    if (m->merges) {
        uint64_t lines = 0;
        for (const char *c = m->merges; *c; c++)
            lines += *c == '\n';
        make_key_array(&keys, "tokenizer.ggml.merges", GGUF_STRING, lines);
        for (const char *c = m->merges; *c; c = strchr(c, '\n') + 1) {
            size_t len = (size_t)(strchr(c, '\n') - c);
            make_int(&keys, len, 8);
            td_buf_append(&keys, c, len);
        }
        n++;
    }
    put_int(&keys, &n, "tokenizer.ggml.bos_token_id", m->bos, GGUF_I32);
    put_int(&keys, &n, "tokenizer.ggml.eos_token_id", m->eos, GGUF_I32);
    put_int(&keys, &n, "tokenizer.ggml.eot_token_id", m->eot, GGUF_I32);
    put_int(&keys, &n, "tokenizer.ggml.add_bos_token", m->add_bos, GGUF_BOOL);
    put_int(&keys, &n, "tokenizer.ggml.add_eos_token", m->add_eos, GGUF_BOOL);
    put_int(&keys, &n, "tokenizer.ggml.add_space_prefix", m->space_prefix, GGUF_BOOL);

    make_header(&file, 3, 0, n);
    td_buf_append(&file, keys.data, keys.len);
    make_pad(&file, 32);
    assert_false(keys.failed || file.failed);
    td_buf_free(&keys);
    return file;
}

td_code make_vocab_open(text_vocab **v, const make_vocab *m, td_error *err) {
    td_buf file = make_vocab_file(m);
    gguf_file *f = NULL;
    *v = NULL;
    td_code rc = gguf_open_memory(&f, file.data, file.len, "mem", err);
    if (rc) fail_msg("the test's own file does not open: %s", err->msg);
    rc = text_vocab_open(v, f, err);
    gguf_close(f);
    td_buf_free(&file);
    return rc;
}

text_vocab *make_vocab_or_fail(const make_vocab *m) {
    text_vocab *v;
    td_error err = {0};
    if (make_vocab_open(&v, m, &err)) fail_msg("%s", err.msg);
    return v;
}

void expect_tokens(const text_vocab *v, const char *text, size_t len, bool add_special,
                   bool parse_special, const char *want) {
    td_error err = {0};
    td_buf got = {0};
    int32_t *tokens = NULL;
    size_t n = 0, cap = 0;
    assert_int_equal(text_encode(v, text, len, add_special, parse_special, &tokens, &n, &cap, &err),
                     TD_OK);
    td_buf_append(&got, "", 0);
    for (size_t i = 0; i < n; i++) {
        size_t size;
        const char *raw = text_token_raw(v, tokens[i], &size);
        if (i) td_buf_append(&got, "\n", 1);
        td_buf_append(&got, raw, size);
    }
    assert_string_equal(got.data, want);
    td_buf_free(&got);
    free(tokens);
}

void expect_round_trip(const text_vocab *v, const char *text, size_t len) {
    td_error err = {0};
    td_buf got = {0};
    int32_t *tokens = NULL;
    size_t n = 0, cap = 0;
    assert_int_equal(text_encode(v, text, len, false, false, &tokens, &n, &cap, &err), TD_OK);
    for (size_t i = 0; i < n; i++) {
        size_t size;
        const char *bytes = text_token_bytes(v, tokens[i], true, &size);
        td_buf_append(&got, bytes, size);
    }
    assert_int_equal(got.len, len);
    if (len) assert_memory_equal(got.data, text, len);
    td_buf_free(&got);
    free(tokens);
}
