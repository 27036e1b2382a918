/* See gguf_make.h. */
#include "gguf_make.h"

#include <string.h>

void make_int(td_buf *b, uint64_t v, int n_bytes) {
    unsigned char raw[8];
    for (int i = 0; i < n_bytes; i++)
        raw[i] = (unsigned char)(v >> (8 * i));
    td_buf_append(b, raw, (size_t)n_bytes);
}

void make_header(td_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_values) {
    td_buf_append(b, "GGUF", 4);
    make_int(b, version, 4);
    make_int(b, n_tensors, 8);
    make_int(b, n_values, 8);
}

void make_string(td_buf *b, const char *s) {
    make_int(b, strlen(s), 8);
    td_buf_append(b, s, strlen(s));
}

void make_key(td_buf *b, const char *key, uint32_t type) {
    make_string(b, key);
    make_int(b, type, 4);
}

void make_key_int(td_buf *b, const char *key, uint32_t type, uint64_t v) {
    make_key(b, key, type);
    make_int(b, v, (int)gguf_value_type_bytes(type));
}

void make_key_f32(td_buf *b, const char *key, float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    make_key_int(b, key, GGUF_F32, u);
}

void make_key_f64(td_buf *b, const char *key, double v) {
    uint64_t u;
    memcpy(&u, &v, sizeof u);
    make_key_int(b, key, GGUF_F64, u);
}

void make_key_string(td_buf *b, const char *key, const char *v) {
    make_key(b, key, GGUF_STRING);
    make_string(b, v);
}

void make_key_array(td_buf *b, const char *key, uint32_t item_type, uint64_t n) {
    make_key(b, key, GGUF_ARRAY);
    make_int(b, item_type, 4);
    make_int(b, n, 8);
}

void make_tensor(td_buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                 uint64_t offset) {
    make_string(b, name);
    make_int(b, n_dims, 4);
    for (uint32_t d = 0; d < n_dims; d++)
        make_int(b, dims[d], 8);
    make_int(b, type, 4);
    make_int(b, offset, 8);
}

void make_pad(td_buf *b, size_t n) {
    while (b->len % n && !b->failed)
        td_buf_append(b, "", 1);
}

void make_fill(td_buf *b, size_t n, uint32_t seed) {
    uint32_t s = seed * 2654435761u + 1;
    for (size_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        make_int(b, s >> 24, 1);
    }
}
