/* Stop strings in a text that arrives in pieces. Called once a token with a few bytes; stop strings
 * are few and short, so every place is compared as it is. */
#include "lib_internal.h"

#include <string.h>

/* Bytes of `stop` that data[at..len) spells, when it spells a beginning of it up to the end of the
 * data or all of it; 0: neither. */
static size_t spells(const char *data, size_t len, size_t at, const char *stop, size_t stop_len) {
    const size_t n = len - at < stop_len ? len - at : stop_len;
    return memcmp(data + at, stop, n) ? 0 : n;
}

bool lib_stops_push(lib_stops *s, const char *text, size_t len, size_t *n_ready, size_t *at) {
    const size_t n_before = s->held->len;
    td_buf_append(s->held, text, len);
    *n_ready = s->held->len;
    /* What was held could not complete a stop string yet; the match that ends first counts, since a
     * token earlier the text would have ended there. */
    size_t first_end = SIZE_MAX, first_at = 0;
    for (int i = 0; i < s->n_stops; i++) {
        const size_t n_stop = strlen(s->stops[i]);
        for (size_t b = 0; b < s->held->len; b++) {
            const size_t n = spells(s->held->data, s->held->len, b, s->stops[i], n_stop);
            if (!n) continue;
            if (n < n_stop) { /* may become one */
                if (b < *n_ready) *n_ready = b;
                break;
            }
            const size_t end = b + n;
            if (end > n_before && (end < first_end || (end == first_end && b < first_at)))
                first_end = end, first_at = b;
            break; /* a later place ends later */
        }
    }
    if (first_end == SIZE_MAX) return false;
    *n_ready = first_at;
    *at = s->passed + first_at;
    return true;
}

void lib_stops_pass(lib_stops *s, size_t n) {
    if (!n) return;
    memmove(s->held->data, s->held->data + n, s->held->len - n);
    s->held->len -= n;
    s->held->data[s->held->len] = 0;
    s->passed += n;
}
