/* GGUF files (v2, v3; the format is specified in ggml's docs/gguf.md) and the block types inside them.
 * Reading only; no arithmetic beyond decoding one row of a tensor to floats. */
#ifndef TD_FORMAT_H
#define TD_FORMAT_H

#include "base/base.h"

/* ---- tensor types: the numbers are GGUF's ---- */

typedef enum td_type {
    TD_TYPE_F32 = 0,
    TD_TYPE_F16 = 1,
    TD_TYPE_Q4_0 = 2,
    TD_TYPE_Q4_1 = 3,
    TD_TYPE_Q5_0 = 6,
    TD_TYPE_Q5_1 = 7,
    TD_TYPE_Q8_0 = 8,
    TD_TYPE_Q2_K = 10,
    TD_TYPE_Q3_K = 11,
    TD_TYPE_Q4_K = 12,
    TD_TYPE_Q5_K = 13,
    TD_TYPE_Q6_K = 14,
    TD_TYPE_IQ4_NL = 20,
    TD_TYPE_IQ4_XS = 23,
    TD_TYPE_BF16 = 30,
    TD_TYPE_COUNT = 31
} td_type;

typedef struct td_type_info {
    const char *name;   /* "Q4_K"; NULL: a type this build does not read */
    int block;          /* values a block: 1, 32 or 256 */
    int block_bytes;    /* bytes a block */
} td_type_info;

/* Never NULL; name is NULL for what is unknown or unsupported. */
const td_type_info *td_type_get(uint32_t type);
/* ggml's name of a type number, readable here or not, for messages; NULL: not even ggml numbers it. */
const char *td_type_known_name(uint32_t type);
/* Bytes of one row of n values; false when the type is unknown, n is no multiple of its block, or
 * the product overflows. */
bool td_type_row_bytes(size_t *out, uint32_t type, uint64_t n);
/* Decodes n values (a multiple of the block) to floats, bit for bit as the gguf Python package does. */
void td_dequantize(uint32_t type, const void *src, float *dst, size_t n);

/* Half precision by integer steps: _Float16 is not there in every compiler this project builds with. */
static inline float td_f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    uint32_t u;
    float f;
    if (rest >= 0x7c00) { /* infinity, NaN */
        u = sign | 0x7f800000u | (rest & 0x3ff) << 13;
    } else if (rest >= 0x400) { /* normal */
        u = sign | ((rest << 13) + (112u << 23));
    } else { /* subnormal or zero: rest * 2^-24 is exact */
        f = (float)rest * 0x1p-24f;
        __builtin_memcpy(&u, &f, sizeof u);
        u |= sign;
    }
    __builtin_memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint16_t td_f32_to_f16(float x) { /* round to nearest even */
    uint32_t u;
    __builtin_memcpy(&u, &x, sizeof u);
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000u) return sign | 0x7e00;  /* NaN */
    if (u >= 0x477ff000u) return sign | 0x7c00; /* rounds past 65504: infinity */
    if (u < 0x38800000u) {                      /* subnormal: let the adder round at 2^-24 */
        float f;
        __builtin_memcpy(&f, &u, sizeof f);
        f += 0.5f; /* ulp of [0.5, 1) is 2^-24 */
        __builtin_memcpy(&u, &f, sizeof u);
        return sign | (uint16_t)(u - 0x3f000000u);
    }
    return sign | (uint16_t)((u - (112u << 23) + 0xfff + (u >> 13 & 1)) >> 13);
}
static inline float td_bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    __builtin_memcpy(&f, &u, sizeof f);
    return f;
}

/* ---- GGUF ---- */

typedef struct gguf_file gguf_file;

enum { GGUF_MAX_DIMS = 4 };

typedef struct gguf_tensor {
    const char *name;              /* NUL-terminated; owned by the file */
    uint32_t type;                 /* a td_type this build reads */
    int n_dims;                    /* 1..4 */
    uint64_t dims[GGUF_MAX_DIMS];  /* dims[0] runs fastest; unused ones are 1 */
    const void *data;              /* into the mapping, checked to hold size_bytes; at a multiple of the
                                    * file's alignment (at least 8) from the start of the mapping */
    size_t size_bytes;
} gguf_tensor;

typedef enum gguf_value_type {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL,
    GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64
} gguf_value_type; /* the numbers are the format's: 0..12 */

/* "U32", "STRING" ...; NULL when no such type exists. */
const char *gguf_value_type_name(uint32_t type);
/* Bytes of one item; 0 for STRING, ARRAY and what does not exist. */
size_t gguf_value_type_bytes(uint32_t type);

typedef struct gguf_string {
    const char *data; /* owned by the file; not NUL-terminated; may hold any byte */
    size_t len;
} gguf_string;

typedef struct gguf_value {
    const char *key; /* NUL-terminated; owned by the file */
    gguf_value_type type;
    union {
        uint64_t u;      /* every unsigned width and BOOL */
        int64_t i;       /* every signed width */
        double f;        /* F32 and F64 */
        gguf_string str;
        struct {
            gguf_value_type type;      /* of the items; nested arrays are refused */
            uint64_t n;
            const void *data;          /* raw little-endian items, not aligned; NULL for strings */
            const gguf_string *strs;   /* STRING items, owned by the file */
        } arr;
    };
} gguf_value;

/* Opens a file, or all parts of a split one (PATH is any part "-00001-of-0000N.gguf"; the others lie
 * beside it; metadata is part 1's). Maps read-only. Every count, offset and length is checked before use: a bad file ends in
 * TD_E_FORMAT with the place in the message; what is valid but not for this build (an unknown tensor
 * type, named; GGUF v1 and versions to come, big-endian files, nested arrays) in TD_E_UNSUPPORTED.
 * Missing file or part, directory, no permission: TD_E_IO. Memory used stays within a small multiple of
 * the file's metadata, whatever its counts say. A file that somebody cuts short while it is mapped ends
 * in SIGBUS on the next touch, as with any mapping. */
td_code gguf_open(gguf_file **out, const char *path, td_error *err);
/* The same over memory that the caller keeps alive (tests, fuzzers), on an 8-byte boundary if tensors are
 * to lie on one. `name` stands in messages. One part of a split file is TD_E_UNSUPPORTED here. */
td_code gguf_open_memory(gguf_file **out, const void *data, size_t size, const char *name,
                         td_error *err);
void gguf_close(gguf_file *f); /* NULL is fine */

const char *gguf_path(const gguf_file *f); /* as it was opened; part 1's for a split file */
uint32_t gguf_version(const gguf_file *f);
size_t gguf_size_bytes(const gguf_file *f); /* all parts */

size_t gguf_n_values(const gguf_file *f);
const gguf_value *gguf_value_at(const gguf_file *f, size_t i);
const gguf_value *gguf_find(const gguf_file *f, const char *key); /* NULL: absent */

size_t gguf_n_tensors(const gguf_file *f);
const gguf_tensor *gguf_tensor_at(const gguf_file *f, size_t i);
const gguf_tensor *gguf_find_tensor(const gguf_file *f, const char *name); /* hashed; NULL: absent */

/* Typed reads. The value stays at `fallback` when the key is absent; a key of another type, or a number
 * out of the range given, is TD_E_FORMAT with key, value and range in the message. Any integer type is
 * taken for an integer, and integers for a float; infinities and NaN are refused. */
td_code gguf_get_int(const gguf_file *f, const char *key, int64_t lo, int64_t hi, int64_t fallback,
                     int64_t *out, td_error *err);
td_code gguf_get_float(const gguf_file *f, const char *key, double fallback, double *out,
                       td_error *err);
td_code gguf_get_bool(const gguf_file *f, const char *key, bool fallback, bool *out, td_error *err);
/* NUL-terminated, owned by the file; NULL when absent. A value with a NUL inside is TD_E_FORMAT. */
td_code gguf_get_string(const gguf_file *f, const char *key, const char **out, td_error *err);

/* Tells the kernel that the pages of [ptr, ptr + n) inside the mapping are no longer needed (they are
 * read again from the file on the next touch). */
void gguf_release(const gguf_file *f, const void *ptr, size_t n);

#endif
