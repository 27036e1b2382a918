/* SentencePiece's BPE: characters as first symbols, and always the pair that makes the piece of the
 * highest score is merged. Spaces are spelled U+2581. What is no piece falls back to byte tokens,
 * and without those to one unknown token a stretch. Bytes that are not UTF-8 are symbols of their
 * own, which no piece holds: they end as byte tokens.
 *
 * Control, byte, unknown and unused pieces never come out of merging, however the text spells them;
 * that is SentencePiece's own rule. User-defined tokens are looked for in the text as it is
 * (encode.c), so a U+2581 that the text itself holds counts as a space here and not there. */
#include <stdlib.h>
#include <string.h>

#include "text/text_internal.h"

#define SPACE "\xe2\x96\x81" /* U+2581 */
enum { SPACE_LEN = 3 };

static td_code emit_symbol(text_work *w, const text_sym *s, bool *after_unknown) {
    const text_vocab *v = w->v;
    td_code rc;
    if (s->id >= 0) {
        *after_unknown = false;
        return text_emit(w, s->id);
    }
    bool has_all = true;
    for (uint32_t i = 0; i < s->len; i++)
        has_all = has_all && v->byte_token[(uint8_t)w->text[s->at + i]] >= 0;
    if (!has_all) {
        bool again = *after_unknown;
        *after_unknown = true;
        return again || v->unknown < 0 ? TD_OK : text_emit(w, v->unknown);
    }
    *after_unknown = false;
    for (uint32_t i = 0; i < s->len; i++)
        if ((rc = text_emit(w, v->byte_token[(uint8_t)w->text[s->at + i]]))) return rc;
    return TD_OK;
}

/* One stretch of w->text that no piece reaches out of. */
static td_code encode_stretch(text_work *w, size_t begin, size_t end, bool *after_unknown) {
    const text_vocab *v = w->v;
    td_code rc;
    w->n_syms = 0;
    for (size_t i = begin; i < end;) {
        int n = text_utf8_check((const uint8_t *)w->text + i, end - i);
        if (n < 1) n = 1;
        int32_t id = text_find(v, w->text + i, (size_t)n);
        if (id >= 0 && v->type[id] != TEXT_NORMAL && v->type[id] != TEXT_USER) id = -1;
        if ((rc = text_sym_push(w, id, i, (size_t)n))) return rc;
        i += (size_t)n;
    }
    if ((rc = text_merge(w))) return rc;
    for (int32_t i = w->n_syms ? 0 : -1; i >= 0; i = w->syms[i].next)
        if ((rc = emit_symbol(w, &w->syms[i], after_unknown))) return rc;
    return TD_OK;
}

td_code text_spm_encode(text_work *w, const char *text, size_t len, bool space_prefix) {
    if (!len) return TD_OK;
    td_buf *b = &w->scratch;
    b->len = 0;
    if (space_prefix) td_buf_append(b, SPACE, SPACE_LEN);
    for (size_t i = 0; i < len;) {
        const char *space = memchr(text + i, ' ', len - i);
        size_t n = space ? (size_t)(space - text) - i : len - i;
        td_buf_append(b, text + i, n);
        if (space) td_buf_append(b, SPACE, SPACE_LEN);
        i += n + (space != NULL);
    }
    if (b->failed) return text_no_memory(w->err);
    if (b->len > INT32_MAX)
        return td_fail(w->err, TD_E_TOO_BIG, "a text of %zu bytes is too long to encode at once",
                       len);
    w->text = b->data;

    /* Cut before each U+2581 that no piece holds after the byte that stands there: nothing merges
     * across such a place, and short stretches keep the heap in cache. */
    bool after_unknown = false;
    size_t begin = 0;
    td_code rc;
    for (size_t i = 1; i + SPACE_LEN <= b->len; i++) {
        if (b->data[i] != SPACE[0] || memcmp(b->data + i, SPACE, SPACE_LEN) ||
            w->v->crosses[(uint8_t)b->data[i - 1]])
            continue;
        if ((rc = encode_stretch(w, begin, i, &after_unknown))) return rc;
        begin = i;
    }
    return encode_stretch(w, begin, b->len, &after_unknown);
}
