/* Control and user-defined tokens found in text: leftmost first, the longest at that place, as an
 * Aho-Corasick automaton with leftmost-longest semantics would find them. The spellings are sorted;
 * at a place whose byte begins one of them the range of candidates is narrowed byte by byte. Gemma
 * 3 has 6,400 of them; ordinary text leaves after one or two bytes. */
#include <stdlib.h>
#include <string.h>

#include "text/text_internal.h"

typedef struct key {
    const char *text;
    size_t len;
    int32_t id;
} key;

static int compare(const void *a, const void *b) {
    const key *x = a, *y = b;
    int c = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
    if (c) return c;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

td_code text_specials_build(text_specials *s, const text_vocab *v, bool control, td_error *err) {
    size_t n = 0;
    for (int i = 0; i < v->n; i++)
        n += v->type[i] == TEXT_USER || v->type[i] == TEXT_CONTROL || v->type[i] == TEXT_UNKNOWN;
    key *keys = td_calloc(n, sizeof *keys);
    s->ids = td_calloc(n, sizeof *s->ids);
    if (!keys || !s->ids) {
        free(keys);
        return text_no_memory(err);
    }
    n = 0;
    for (int i = 0; i < v->n; i++) {
        bool wanted = v->type[i] == TEXT_USER ||
                      (control && (v->type[i] == TEXT_CONTROL || v->type[i] == TEXT_UNKNOWN));
        size_t len;
        const char *text = text_token_bytes(v, i, true, &len);
        if (wanted && len) keys[n++] = (key){text, len, i};
    }
    qsort(keys, n, sizeof *keys, compare);
    s->n = 0;
    for (size_t i = 0; i < n; i++) /* of two with one spelling, the lower id */
        if (!i || keys[i].len != keys[i - 1].len ||
            memcmp(keys[i].text, keys[i - 1].text, keys[i].len))
            s->ids[s->n++] = keys[i].id;
    free(keys);
    size_t i = 0;
    for (int b = 0; b <= 256; b++) {
        while (i < s->n) {
            size_t len;
            if ((uint8_t)text_token_bytes(v, s->ids[i], true, &len)[0] >= b) break;
            i++;
        }
        s->first[b] = (uint32_t)i;
    }
    return TD_OK;
}

void text_specials_free(text_specials *s) {
    free(s->ids);
    *s = (text_specials){0};
}

/* The longest token that text[0..len) begins with; -1: none. */
static int32_t longest_at(const text_specials *s, const text_vocab *v, const char *text,
                          size_t len) {
    size_t lo = s->first[(uint8_t)text[0]], hi = s->first[(uint8_t)text[0] + 1], size;
    int32_t best = -1;
    for (size_t depth = 1; lo < hi; depth++) {
        const char *t = text_token_bytes(v, s->ids[lo], true, &size);
        if (size == depth) { /* sorted: the one that ends here comes first */
            best = s->ids[lo++];
            if (lo == hi) break;
        }
        if (depth == len) break;
        uint8_t b = (uint8_t)text[depth];
        size_t end[2] = {lo, lo}; /* where the candidates with byte >= b, and > b, begin */
        for (int past = 0; past < 2; past++) {
            size_t a = end[0], z = hi;
            while (a < z) {
                size_t mid = a + (z - a) / 2;
                t = text_token_bytes(v, s->ids[mid], true, &size);
                if ((uint8_t)t[depth] < b + past) {
                    a = mid + 1;
                } else {
                    z = mid;
                }
            }
            end[past] = a;
        }
        lo = end[0];
        hi = end[1];
    }
    return best;
}

bool text_specials_find(const text_specials *s, const text_vocab *v, const char *text, size_t len,
                        size_t from, size_t *at, int32_t *token) {
    if (!s->n) return false;
    for (size_t i = from; i < len; i++) {
        uint8_t b = (uint8_t)text[i];
        if (s->first[b] == s->first[b + 1]) continue;
        int32_t id = longest_at(s, v, text + i, len - i);
        if (id < 0) continue;
        *at = i;
        *token = id;
        return true;
    }
    return false;
}
