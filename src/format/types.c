/* The block types of GGUF: how wide they are and how a row of them becomes floats.
 *
 * td_dequantize is the slow, plain reading of each layout: it serves loading (embedding rows,
 * repacking into panels), tests and `inspect`, never the token loop. Each product and sum is one
 * float operation in the order in which the gguf Python package does it, so the bits agree
 * (tests/golden/test_dequant.py); this file relies on -ffp-contract=off.
 *
 * Blocks have no alignment: a Q6_K block is 210 bytes long. So multi-byte fields are put together
 * from bytes, little-endian on every host. */
#include "format/format.h"

#include <assert.h>
#include <string.h>

enum { BLOCK = 32, SUPER = 256 }; /* values a block of the plain types, of the K types */

const td_type_info *td_type_get(uint32_t type) {
    static const td_type_info none = {NULL, 1, 0};
    static const td_type_info table[TD_TYPE_COUNT] = {
        [TD_TYPE_F32] = {"F32", 1, 4},
        [TD_TYPE_F16] = {"F16", 1, 2},
        [TD_TYPE_BF16] = {"BF16", 1, 2},
        [TD_TYPE_Q4_0] = {"Q4_0", BLOCK, 2 + 16},
        [TD_TYPE_Q4_1] = {"Q4_1", BLOCK, 2 + 2 + 16},
        [TD_TYPE_Q5_0] = {"Q5_0", BLOCK, 2 + 4 + 16},
        [TD_TYPE_Q5_1] = {"Q5_1", BLOCK, 2 + 2 + 4 + 16},
        [TD_TYPE_Q8_0] = {"Q8_0", BLOCK, 2 + 32},
        [TD_TYPE_Q2_K] = {"Q2_K", SUPER, 16 + 64 + 2 + 2},
        [TD_TYPE_Q3_K] = {"Q3_K", SUPER, 32 + 64 + 12 + 2},
        [TD_TYPE_Q4_K] = {"Q4_K", SUPER, 2 + 2 + 12 + 128},
        [TD_TYPE_Q5_K] = {"Q5_K", SUPER, 2 + 2 + 12 + 32 + 128},
        [TD_TYPE_Q6_K] = {"Q6_K", SUPER, 128 + 64 + 16 + 2},
        [TD_TYPE_IQ4_NL] = {"IQ4_NL", BLOCK, 2 + 16},
        [TD_TYPE_IQ4_XS] = {"IQ4_XS", SUPER, 2 + 2 + 4 + 128},
    };
    return type < TD_TYPE_COUNT && table[type].name ? &table[type] : &none;
}

const char *td_type_known_name(uint32_t type) {
    /* What ggml numbers but this build cannot read; 4, 5, 31-33 and 36-38 were withdrawn there. */
    static const char *const others[] = {
        [4] = "Q4_2 (withdrawn)",
        [5] = "Q4_3 (withdrawn)",
        [9] = "Q8_1",
        [15] = "Q8_K",
        [16] = "IQ2_XXS",
        [17] = "IQ2_XS",
        [18] = "IQ3_XXS",
        [19] = "IQ1_S",
        [21] = "IQ3_S",
        [22] = "IQ2_S",
        [24] = "I8",
        [25] = "I16",
        [26] = "I32",
        [27] = "I64",
        [28] = "F64",
        [29] = "IQ1_M",
        [31] = "Q4_0_4_4 (withdrawn)",
        [32] = "Q4_0_4_8 (withdrawn)",
        [33] = "Q4_0_8_8 (withdrawn)",
        [34] = "TQ1_0",
        [35] = "TQ2_0",
        [36] = "IQ4_NL_4_4 (withdrawn)",
        [37] = "IQ4_NL_4_8 (withdrawn)",
        [38] = "IQ4_NL_8_8 (withdrawn)",
        [39] = "MXFP4",
        [40] = "NVFP4",
        [41] = "Q1_0",
    };
    const td_type_info *info = td_type_get(type);
    if (info->name) return info->name;
    return type < sizeof others / sizeof others[0] ? others[type] : NULL;
}

bool td_type_row_bytes(size_t *out, uint32_t type, uint64_t n) {
    const td_type_info *info = td_type_get(type);
    if (!info->name || n % (uint64_t)info->block) return false;
    const uint64_t n_blocks = n / (uint64_t)info->block;
    return n_blocks <= SIZE_MAX && td_mul(out, (size_t)n_blocks, (size_t)info->block_bytes);
}

static uint16_t load_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}
static uint32_t load_u32(const uint8_t *p) {
    return load_u16(p) | (uint32_t)load_u16(p + 2) << 16;
}
static float load_f16(const uint8_t *p) {
    return td_f16_to_f32(load_u16(p));
}

/* ---- blocks of 32: byte j holds value j in its low half and value j + 16 in its high half ---- */

/* d, 16 bytes of nibbles */
static void decode_q4_0(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    const uint8_t *q = b + 2;
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((q[j] & 15) - 8);
        y[j + 16] = d * (float)((q[j] >> 4) - 8);
    }
}

/* d, m, nibbles */
static void decode_q4_1(const uint8_t *b, float *y) {
    const float d = load_f16(b), m = load_f16(b + 2);
    const uint8_t *q = b + 4;
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(q[j] & 15) + m;
        y[j + 16] = d * (float)(q[j] >> 4) + m;
    }
}

/* d, 32 fifth bits (bit i belongs to value i), nibbles */
static void decode_q5_0(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    const uint32_t high = load_u32(b + 2);
    const uint8_t *q = b + 6;
    for (int j = 0; j < 16; j++) {
        const int lo = (q[j] & 15) | (int)(high >> j & 1) << 4;
        const int hi = q[j] >> 4 | (int)(high >> (j + 16) & 1) << 4;
        y[j] = d * (float)(lo - 16);
        y[j + 16] = d * (float)(hi - 16);
    }
}

/* d, m, fifth bits, nibbles */
static void decode_q5_1(const uint8_t *b, float *y) {
    const float d = load_f16(b), m = load_f16(b + 2);
    const uint32_t high = load_u32(b + 4);
    const uint8_t *q = b + 8;
    for (int j = 0; j < 16; j++) {
        const int lo = (q[j] & 15) | (int)(high >> j & 1) << 4;
        const int hi = q[j] >> 4 | (int)(high >> (j + 16) & 1) << 4;
        y[j] = d * (float)lo + m;
        y[j + 16] = d * (float)hi + m;
    }
}

/* d, 32 int8 */
static void decode_q8_0(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    for (int j = 0; j < BLOCK; j++)
        y[j] = (float)(int8_t)b[2 + j] * d;
}

/* The values that a nibble of IQ4_NL and IQ4_XS stands for. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

/* d, nibbles */
static void decode_iq4_nl(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    const uint8_t *q = b + 2;
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)iq4_values[q[j] & 15];
        y[j + 16] = d * (float)iq4_values[q[j] >> 4];
    }
}

/* ---- blocks of 256 ---- */

/* 16 bytes (scale in the low half, minimum in the high half, one for 16 values), 64 bytes of 2-bit
 * values, d, dmin. Byte j of each 32 bytes holds values j, j + 32, j + 64, j + 96 of a run of 128.
 */
static void decode_q2_k(const uint8_t *b, float *y) {
    const uint8_t *scales = b, *q = b + 16;
    const float d = load_f16(b + 80), dmin = load_f16(b + 82);
    for (int i = 0; i < SUPER; i++) {
        const float dl = d * (float)(scales[i / 16] & 15);
        const float ml = dmin * (float)(scales[i / 16] >> 4);
        const int v = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        y[i] = dl * (float)v - ml;
    }
}

/* 32 bytes of third bits (bit i / 32 of byte i % 32; 0 means minus 4), 64 bytes of 2-bit values as
 * in Q2_K, 12 bytes of 6-bit scales, d. Scale j: low four bits in byte j % 8 (high half from j = 8
 * on), high two in byte 8 + j % 4 at bit 2 * (j / 4). */
static void decode_q3_k(const uint8_t *b, float *y) {
    const uint8_t *mask = b, *q = b + 32, *scales = b + 96;
    const float d = load_f16(b + 108);
    for (int i = 0; i < SUPER; i++) {
        const int j = i / 16;
        const int lo = scales[j % 8] >> (j / 8 * 4) & 15, hi = scales[8 + j % 4] >> (j / 4 * 2) & 3;
        const float dl = d * (float)((lo | hi << 4) - 32);
        const int v = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        y[i] = dl * (float)(mask[i % 32] >> (i / 32) & 1 ? v : v - 4);
    }
}

/* Scale and minimum j (of 8, one for 32 values) out of the 12 bytes that Q4_K and Q5_K share: 0 to
 * 3 lie in the low six bits of bytes j and j + 4; of 4 to 7 the low halves share byte j + 4 and the
 * high two bits stand on top of bytes j - 4 and j. */
static void unpack_scale_min(const uint8_t *s, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* d, dmin, 12 bytes of scales, 128 bytes: byte j of each 32 holds values j and j + 32 of a run of
 * 64 */
static void decode_q4_k(const uint8_t *b, float *y) {
    const float d = load_f16(b), dmin = load_f16(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        unpack_scale_min(b + 4, j, &scale, &min);
        const float dl = d * (float)scale, ml = dmin * (float)min;
        const uint8_t *q = b + 16 + j / 2 * 32;
        for (int i = 0; i < 32; i++) {
            const int v = q[i] >> (j % 2 * 4) & 15;
            y[j * 32 + i] = dl * (float)v - ml;
        }
    }
}

/* d, dmin, scales, 32 bytes of fifth bits (bit i / 32 of byte i % 32), then as Q4_K */
static void decode_q5_k(const uint8_t *b, float *y) {
    const float d = load_f16(b), dmin = load_f16(b + 2);
    const uint8_t *high = b + 16;
    for (int j = 0; j < 8; j++) {
        int scale, min;
        unpack_scale_min(b + 4, j, &scale, &min);
        const float dl = d * (float)scale, ml = dmin * (float)min;
        const uint8_t *q = b + 48 + j / 2 * 32;
        for (int i = 0; i < 32; i++) {
            const int v = (q[i] >> (j % 2 * 4) & 15) | (high[i] >> j & 1) << 4;
            y[j * 32 + i] = dl * (float)v - ml;
        }
    }
}

/* 128 bytes of low halves (byte j of each 64: values j and j + 64 of a run of 128), 64 bytes of
 * high two bits (as Q2_K's values), 16 int8 scales, d */
static void decode_q6_k(const uint8_t *b, float *y) {
    const uint8_t *ql = b, *qh = b + 128, *scales = b + 192;
    const float d = load_f16(b + 208);
    for (int i = 0; i < SUPER; i++) {
        const int lo = ql[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        const int hi = qh[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        const float dl = d * (float)(int8_t)scales[i / 16];
        y[i] = dl * (float)((lo | hi << 4) - 32);
    }
}

/* d, 16 bits (two high bits of each of 8 scales), 4 bytes of low halves, 128 bytes of nibbles laid
 * out as eight IQ4_NL blocks */
static void decode_iq4_xs(const uint8_t *b, float *y) {
    const float d = load_f16(b);
    const unsigned high = load_u16(b + 2);
    for (int j = 0; j < 8; j++) {
        const int lo = b[4 + j / 2] >> (j % 2 * 4) & 15, hi = (int)(high >> (2 * j) & 3);
        const float dl = d * (float)((lo | hi << 4) - 32);
        const uint8_t *q = b + 8 + 16 * j;
        for (int i = 0; i < 16; i++) {
            y[j * 32 + i] = dl * (float)iq4_values[q[i] & 15];
            y[j * 32 + i + 16] = dl * (float)iq4_values[q[i] >> 4];
        }
    }
}

void td_dequantize(uint32_t type, const void *src, float *dst, size_t n) {
    const td_type_info *info = td_type_get(type);
    assert(info->name && n % (size_t)info->block == 0);
    const uint8_t *b = src;
    void (*decode)(const uint8_t *, float *) = NULL;
    switch (type) {
    case TD_TYPE_F32: /* bits through an integer, so that a signalling NaN stays one */
        for (size_t i = 0; i < n; i++) {
            const uint32_t u = load_u32(b + 4 * i);
            memcpy(dst + i, &u, sizeof u);
        }
        return;
    case TD_TYPE_F16:
        for (size_t i = 0; i < n; i++)
            dst[i] = load_f16(b + 2 * i);
        return;
    case TD_TYPE_BF16:
        for (size_t i = 0; i < n; i++)
            dst[i] = td_bf16_to_f32(load_u16(b + 2 * i));
        return;
    case TD_TYPE_Q4_0:
        decode = decode_q4_0;
        break;
    case TD_TYPE_Q4_1:
        decode = decode_q4_1;
        break;
    case TD_TYPE_Q5_0:
        decode = decode_q5_0;
        break;
    case TD_TYPE_Q5_1:
        decode = decode_q5_1;
        break;
    case TD_TYPE_Q8_0:
        decode = decode_q8_0;
        break;
    case TD_TYPE_Q2_K:
        decode = decode_q2_k;
        break;
    case TD_TYPE_Q3_K:
        decode = decode_q3_k;
        break;
    case TD_TYPE_Q4_K:
        decode = decode_q4_k;
        break;
    case TD_TYPE_Q5_K:
        decode = decode_q5_k;
        break;
    case TD_TYPE_Q6_K:
        decode = decode_q6_k;
        break;
    case TD_TYPE_IQ4_NL:
        decode = decode_iq4_nl;
        break;
    case TD_TYPE_IQ4_XS:
        decode = decode_iq4_xs;
        break;
    default:
        return; /* asserted above */
    }
    for (size_t i = 0; i < n; i += (size_t)info->block, b += info->block_bytes)
        decode(b, dst + i);
}
