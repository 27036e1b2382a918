/* Text to tokens: BOS and EOS, the special tokens, and the stretches between them. */
#include <stdlib.h>

#include "text/text_internal.h"

td_code text_encode(const text_vocab *v, const char *text, size_t len, bool add_special,
                    bool parse_special, int32_t **tokens, size_t *n, size_t *cap, td_error *err) {
    if (len > INT32_MAX)
        return td_fail(err, TD_E_TOO_BIG, "a text of %zu bytes is too long to encode at once", len);
    const size_t n_before = *n;
    text_work w = {.v = v, .tokens = tokens, .n = n, .cap = cap, .err = err};
    td_code rc = TD_OK;
    if (!v->is_spm && !(w.match = pcre2_match_data_create(1, NULL))) {
        rc = text_no_memory(err);
        goto done;
    }
    if (add_special && v->add_bos && v->bos >= 0 && (rc = text_emit(&w, v->bos))) goto done;

    /* Like llama.cpp, the space prefix goes before the first text and before a text that follows a
     * special token. */
    const text_specials *specials = parse_special ? &v->parsed : &v->user;
    for (size_t at = 0; at < len;) {
        size_t end = len;
        int32_t token = -1;
        if (!text_specials_find(specials, v, text, len, at, &end, &token)) end = len;
        rc = v->is_spm ? text_spm_encode(&w, text + at, end - at, v->add_space_prefix)
                       : text_bpe_encode(&w, text + at, end - at);
        if (rc || (token >= 0 && (rc = text_emit(&w, token)))) goto done;
        if (token < 0) break;
        size_t size;
        text_token_bytes(v, token, true, &size);
        at = end + size;
    }
    if (add_special && v->add_eos && v->eos >= 0) rc = text_emit(&w, v->eos);
done:
    if (rc) *n = n_before;
    pcre2_match_data_free(w.match);
    td_buf_free(&w.scratch);
    free(w.syms);
    free(w.heap);
    return rc;
}
