/* Strict UTF-8 (Unicode 15, table 3-7), for text that may hold anything. */
#include <string.h>

#include "text/text_internal.h"

int text_utf8_check(const uint8_t *p, size_t n) {
    uint8_t lead = p[0], low = 0x80, high = 0xbf;
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    int len = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead == 0xe0) low = 0xa0;  /* overlong */
    if (lead == 0xed) high = 0x9f; /* surrogates */
    if (lead == 0xf0) low = 0x90;  /* overlong */
    if (lead == 0xf4) high = 0x8f; /* past U+10FFFF */
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n) return -1;
        if (p[i] < low || p[i] > high) return 0;
        low = 0x80;
        high = 0xbf;
    }
    return len;
}

size_t text_utf8_valid(const char *text, size_t len) {
    const uint8_t *p = (const uint8_t *)text;
    size_t i = 0;
    while (i < len) {
        uint64_t eight;
        if (len - i >= sizeof eight) {
            memcpy(&eight, p + i, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                i += sizeof eight;
                continue;
            }
        }
        int n = text_utf8_check(p + i, len - i);
        if (n <= 0) break;
        i += (size_t)n;
    }
    return i;
}
