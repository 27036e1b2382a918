/* Byte-level BPE: words of the pre-splitter, bytes as first symbols, merges by rank.
 *
 * Text that is not UTF-8: the valid stretches are split and merged as ever, each byte between them
 * becomes its own byte's token and merges with nothing. So decoding gives every byte back, and
 * valid text around a bad byte keeps its usual tokens. A byte that the vocabulary has no token for
 * (SmolLM2 lacks 21, such as 0x04 and 0xc0) is left out, as in the `tokenizers` library: there is
 * nothing to write it with. */
#include <stdlib.h>
#include <string.h>

#include "text/text_internal.h"

#define PAIR_EMPTY UINT64_MAX

static size_t pair_slot(const text_vocab *v, uint64_t key) {
    uint64_t h = key * 0x9e3779b97f4a7c15u;
    return (size_t)(h ^ h >> 32) & v->pair_mask;
}

const text_pair *text_pair_find(const text_vocab *v, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (size_t i = pair_slot(v, key);; i = (i + 1) & v->pair_mask) {
        if (v->pairs[i].key == key) return &v->pairs[i];
        if (v->pairs[i].key == PAIR_EMPTY) return NULL;
    }
}

static void pair_add(text_vocab *v, int32_t left, int32_t right, uint32_t rank, int32_t merged) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = pair_slot(v, key);
    for (; v->pairs[i].key != PAIR_EMPTY; i = (i + 1) & v->pair_mask)
        if (v->pairs[i].key == key) return; /* said twice: the first rank counts */
    v->pairs[i] = (text_pair){key, rank, merged};
}

td_code text_merges_load(text_vocab *v, const gguf_file *f, td_error *err) {
    const char *path = gguf_path(f);
    const gguf_value *m = gguf_find(f, "tokenizer.ggml.merges");
    if (!m || m->type != GGUF_ARRAY || m->arr.type != GGUF_STRING)
        return td_fail(err, TD_E_FORMAT,
                       "%s: tokenizer.ggml.merges is missing or no list of strings", path);
    if (m->arr.n > INT32_MAX)
        return td_fail(err, TD_E_FORMAT, "%s: %llu merges are more than token ids can name", path,
                       (unsigned long long)m->arr.n);
    size_t slots = 16;
    while (slots < m->arr.n + m->arr.n / 2)
        slots *= 2;
    if (!(v->pairs = td_calloc(slots, sizeof *v->pairs))) return text_no_memory(err);
    v->pair_mask = slots - 1;
    memset(v->pairs, 0xff, slots * sizeof *v->pairs);

    td_buf both = {0};
    td_code rc = TD_OK;
    for (size_t i = 0; i < m->arr.n && !rc; i++) {
        gguf_string s = m->arr.strs[i];
        const char *space = s.len > 1 ? memchr(s.data + 1, ' ', s.len - 1) : NULL;
        size_t n_left = space ? (size_t)(space - s.data) : 0,
               n_right = space ? s.len - n_left - 1 : 0;
        if (!n_left || !n_right) {
            rc = td_fail(err, TD_E_FORMAT, "%s: merge %zu is not two tokens with a space between",
                         path, i);
            break;
        }
        both.len = 0;
        td_buf_append(&both, s.data, n_left);
        td_buf_append(&both, space + 1, n_right);
        if (both.failed) {
            rc = text_no_memory(err);
            break;
        }
        int32_t left = text_find(v, s.data, n_left), right = text_find(v, space + 1, n_right),
                merged = text_find(v, both.data, both.len);
        if (left < 0 || right < 0 || merged < 0) {
            rc = td_fail(err, TD_E_FORMAT,
                         "%s: merge %zu '%.*s' names or makes a token that is not "
                         "in the vocabulary",
                         path, i, s.len < 60 ? (int)s.len : 60, s.data);
            break;
        }
        pair_add(v, left, right, (uint32_t)i, merged);
    }
    td_buf_free(&both);
    return rc;
}

/* A word that is a token as a whole; -1: it is none. */
static int32_t whole_word(text_work *w, const char *word, size_t len) {
    if (len > w->v->longest) return -1;
    char spelling[2];
    w->scratch.len = 0;
    for (size_t i = 0; i < len; i++)
        td_buf_append(&w->scratch, spelling,
                      (size_t)text_byte_spelling((uint8_t)word[i], spelling));
    if (w->scratch.failed) return -1;
    int32_t id = text_find(w->v, w->scratch.data, w->scratch.len);
    return id >= 0 && w->v->type[id] == TEXT_NORMAL ? id : -1;
}

static td_code encode_word(text_work *w, const char *word, size_t len) {
    const text_vocab *v = w->v;
    td_code rc;
    if (v->pre->ignore_merges) {
        int32_t id = whole_word(w, word, len);
        if (w->scratch.failed) return text_no_memory(w->err);
        if (id >= 0) return text_emit(w, id);
    }
    w->n_syms = 0;
    for (size_t i = 0; i < len; i++) {
        int32_t id = v->byte_token[(uint8_t)word[i]];
        if (id >= 0 && (rc = text_sym_push(w, id, i, 1))) return rc;
    }
    if ((rc = text_merge(w))) return rc;
    for (int32_t i = w->n_syms ? 0 : -1; i >= 0; i = w->syms[i].next)
        if ((rc = text_emit(w, w->syms[i].id))) return rc;
    return TD_OK;
}

td_code text_bpe_encode(text_work *w, const char *text, size_t len) {
    td_code rc = TD_OK;
    for (size_t at = 0; at < len && !rc;) {
        size_t n = text_utf8_valid(text + at, len - at);
        if (n && (rc = text_split(w, text + at, n, encode_word))) break;
        at += n;
        if (at == len) break;
        int32_t id = w->v->byte_token[(uint8_t)text[at++]];
        if (id >= 0) rc = text_emit(w, id);
    }
    return rc;
}
