/* Streaming detokenisation. What is held is always the beginning of a valid UTF-8 character; a byte
 * that cannot continue it lets the held bytes go as they are. So the output is the tokens' bytes,
 * all of them, in order, only later by at most three. */
#include <string.h>

#include "text/text_internal.h"

void text_stream_init(text_stream *s, const text_vocab *v, bool special, bool at_start) {
    *s = (text_stream){.v = v, .special = special, .at_start = at_start};
}

void text_stream_push(text_stream *s, int32_t token, td_buf *out) {
    size_t len;
    const char *bytes = text_token_bytes(s->v, token, s->special, &len);
    if (len && s->at_start) {
        s->at_start = false;
        if (s->v->is_spm && s->v->add_space_prefix && bytes[0] == ' ' &&
            text_token_type(s->v, token) != TEXT_CONTROL) {
            bytes++;
            len--;
        }
    }
    for (size_t i = 0; i < len;) {
        if (!s->n_held) { /* all that is complete at once */
            size_t n = text_utf8_valid(bytes + i, len - i);
            td_buf_append(out, bytes + i, n);
            i += n;
            if (i == len) break;
        }
        s->held[s->n_held++] = (uint8_t)bytes[i];
        int n = text_utf8_check(s->held, (size_t)s->n_held);
        if (n < 0) {
            i++;
        } else if (n > 0) {
            text_stream_flush(s, out);
            i++;
        } else if (s->n_held == 1) { /* no character begins so */
            text_stream_flush(s, out);
            i++;
        } else { /* the character broke off; look at this byte afresh */
            s->n_held--;
            text_stream_flush(s, out);
        }
    }
}

void text_stream_flush(text_stream *s, td_buf *out) {
    td_buf_append(out, s->held, (size_t)s->n_held);
    s->n_held = 0;
}
