/* Writes GGUF files into memory, field by field, for the unit tests and the fuzzer's seeds. Writes
 * whatever it is told, right or wrong. Knows nothing of src/format's parser. */
#ifndef TD_GGUF_MAKE_H
#define TD_GGUF_MAKE_H

#include "format/format.h"

void make_header(td_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_values);
void make_int(td_buf *b, uint64_t v, int n_bytes); /* little-endian */
void make_string(td_buf *b, const char *s);
/* A key and its type; the value follows. */
void make_key(td_buf *b, const char *key, uint32_t type);
void make_key_int(td_buf *b, const char *key, uint32_t type, uint64_t v);
void make_key_f32(td_buf *b, const char *key, float v);
void make_key_f64(td_buf *b, const char *key, double v);
void make_key_string(td_buf *b, const char *key, const char *v);
/* Key, item type and count; the items follow. */
void make_key_array(td_buf *b, const char *key, uint32_t item_type, uint64_t n);
void make_tensor(td_buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                 uint64_t offset);
/* Zeros up to a multiple of n bytes. */
void make_pad(td_buf *b, size_t n);
/* n bytes that follow from the seed. */
void make_fill(td_buf *b, size_t n, uint32_t seed);

#endif
