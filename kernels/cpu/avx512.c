/* AVX-512 with VNNI. The products of quantised weights; the rest is float_inl.h at this width.
 *
 * One template, gemm_rows, inlined once a type and a number of rows (1..12): a block of 32 k of one panel is
 * unpacked into eight registers, then every row meets them with eight vpdpbusd from a broadcast of 4
 * activations (an embedded memory operand). Accumulators: one register a row. From 13 rows on registers
 * spill, and two parts that unpack twice cost the same: Q4_K, one Sapphire Rapids core, 47.3 ns a block at
 * 16 rows, 46.8 in two parts of 8, 33.6 at 12. */
#include "kernels/cpu/float_inl.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/panel.h"

#include <immintrin.h>

enum { MAX_ROWS = 12, PREFETCH_BYTES = 4096 };

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* What a type is, as constants. */
INLINE int type_group(td_type t) {
    return t == TD_TYPE_Q4_K || t == TD_TYPE_Q5_K || t == TD_TYPE_Q6_K || t == TD_TYPE_Q2_K ||
                   t == TD_TYPE_Q3_K || t == TD_TYPE_IQ4_XS
               ? 8
               : 2;
}
INLINE bool type_two_scales(td_type t) {
    return t == TD_TYPE_Q6_K || t == TD_TYPE_Q2_K || t == TD_TYPE_Q3_K;
}
INLINE bool type_has_min(td_type t) {
    return t == TD_TYPE_Q4_1 || t == TD_TYPE_Q5_1 || t == TD_TYPE_Q4_K || t == TD_TYPE_Q5_K;
}
INLINE int type_offset_shift(td_type t) { /* log2 of the offset; -1: none */
    switch (t) {
    case TD_TYPE_Q4_0: return 3;
    case TD_TYPE_Q5_0: return 4;
    case TD_TYPE_Q8_0:
    case TD_TYPE_IQ4_NL:
    case TD_TYPE_IQ4_XS: return 7;
    case TD_TYPE_Q6_K: return 5;
    case TD_TYPE_Q3_K: return 2;
    default: return -1;
    }
}

INLINE __m512i load(const uint8_t *p) {
    return _mm512_load_si512((const void *)p);
}

INLINE void unpack4(const uint8_t *p, __m512i w[8]) {
    const __m512i mask = _mm512_set1_epi8(15);
    UNROLL for (int i = 0; i < 4; i++) {
        const __m512i v = load(p + 64 * i);
        w[i] = _mm512_and_si512(v, mask);
        w[i + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
    }
}

/* Bits [2s, 2s+2) of each byte of v, moved to bit 4 (add = true) or bit 0. */
INLINE __m512i two_bits(__m512i v, int s, bool to4) {
    const int shift = 2 * s - (to4 ? 4 : 0);
    const __m512i mask = _mm512_set1_epi8(to4 ? 0x30 : 3);
    const __m512i moved = shift >= 0 ? _mm512_srli_epi16(v, (unsigned)shift) : _mm512_slli_epi16(v, (unsigned)-shift);
    return _mm512_and_si512(moved, mask);
}

/* Bit g of each byte of v, moved to bit `to`, added into w. */
INLINE __m512i or_bit(__m512i w, __m512i v, int g, int to) {
    const __m512i moved = g >= to ? _mm512_srli_epi16(v, (unsigned)(g - to)) : _mm512_slli_epi16(v, (unsigned)(to - g));
    /* 0xf8: w | (moved & mask) */
    return _mm512_ternarylogic_epi64(w, moved, _mm512_set1_epi8((char)(1 << to)), 0xf8);
}

INLINE void unpack(td_type t, const uint8_t *group, int block, __m512i w[8]) {
    switch (t) {
    case TD_TYPE_Q8_0:
        UNROLL for (int g = 0; g < 8; g++) w[g] = load(group + 512 * block + 64 * g);
        return;
    case TD_TYPE_Q5_0:
    case TD_TYPE_Q5_1:
    case TD_TYPE_Q5_K: {
        unpack4(group + 256 * block, w);
        const __m512i high = load(group + (t == TD_TYPE_Q5_K ? 2048 : 512) + 64 * block);
        UNROLL for (int g = 0; g < 8; g++) w[g] = or_bit(w[g], high, g, 4);
        return;
    }
    case TD_TYPE_Q6_K: {
        unpack4(group + 256 * block, w);
        UNROLL for (int h = 0; h < 2; h++) {
            const __m512i high = load(group + 2048 + 128 * block + 64 * h);
            UNROLL for (int s = 0; s < 4; s++)
                w[4 * h + s] = _mm512_or_si512(w[4 * h + s], two_bits(high, s, true));
        }
        return;
    }
    case TD_TYPE_Q2_K:
    case TD_TYPE_Q3_K:
        UNROLL for (int h = 0; h < 2; h++) {
            const __m512i low = load(group + 128 * block + 64 * h);
            UNROLL for (int s = 0; s < 4; s++) w[4 * h + s] = two_bits(low, s, false);
        }
        if (t == TD_TYPE_Q3_K) {
            const __m512i high = load(group + 1024 + 64 * block);
            UNROLL for (int g = 0; g < 8; g++) w[g] = or_bit(w[g], high, g, 2);
        }
        return;
    case TD_TYPE_IQ4_NL:
    case TD_TYPE_IQ4_XS: {
        const __m512i book =
            _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)panel_iq4_values));
        unpack4(group + 256 * block, w);
        UNROLL for (int g = 0; g < 8; g++) w[g] = _mm512_shuffle_epi8(book, w[g]);
        return;
    }
    default: unpack4(group + 256 * block, w);
    }
}

INLINE __m512 halves(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)p));
}
INLINE __m512 unsigned_bytes(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)p)));
}
INLINE __m512 signed_bytes(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)p)));
}

/* d[] as in panel.h; m[] holds the minimum *subtracted* for K-quants and *added* for Q4_1, Q5_1. */
INLINE void get_scales(td_type t, const uint8_t *g, int b, __m512 d[2], __m512 m[2]) {
    switch (t) {
    case TD_TYPE_Q4_0:
    case TD_TYPE_IQ4_NL: d[0] = halves(g + 512 + 32 * b); return;
    case TD_TYPE_Q4_1: d[0] = halves(g + 512 + 32 * b), m[0] = halves(g + 576 + 32 * b); return;
    case TD_TYPE_Q5_0: d[0] = halves(g + 640 + 32 * b); return;
    case TD_TYPE_Q5_1: d[0] = halves(g + 640 + 32 * b), m[0] = halves(g + 704 + 32 * b); return;
    case TD_TYPE_Q8_0: d[0] = halves(g + 1024 + 32 * b); return;
    case TD_TYPE_Q4_K:
    case TD_TYPE_Q5_K: {
        const int at = t == TD_TYPE_Q4_K ? 2048 : 2560;
        d[0] = _mm512_mul_ps(halves(g + at), unsigned_bytes(g + at + 64 + 16 * b));
        m[0] = _mm512_mul_ps(halves(g + at + 32), unsigned_bytes(g + at + 192 + 16 * b));
        return;
    }
    case TD_TYPE_Q6_K:
    case TD_TYPE_Q3_K: {
        const __m512 all = halves(g + (t == TD_TYPE_Q6_K ? 3328 : 1792));
        const uint8_t *sc = g + (t == TD_TYPE_Q6_K ? 3072 : 1536) + 32 * b;
        d[0] = _mm512_mul_ps(all, signed_bytes(sc));
        d[1] = _mm512_mul_ps(all, signed_bytes(sc + 16));
        return;
    }
    case TD_TYPE_Q2_K: {
        const __m512 all = halves(g + 1024), min = halves(g + 1056);
        UNROLL for (int h = 0; h < 2; h++) {
            const __m512i v = _mm512_cvtepu8_epi32(
                _mm_load_si128((const __m128i *)(g + 1088 + 32 * b + 16 * h)));
            d[h] = _mm512_mul_ps(all, _mm512_cvtepi32_ps(_mm512_and_si512(v, _mm512_set1_epi32(15))));
            m[h] = _mm512_mul_ps(min, _mm512_cvtepi32_ps(_mm512_srli_epi32(v, 4)));
        }
        return;
    }
    case TD_TYPE_IQ4_XS:
        d[0] = _mm512_mul_ps(halves(g + 2176), signed_bytes(g + 2048 + 16 * b));
        return;
    default: return;
    }
}

INLINE int group_bytes(td_type t) {
    switch (t) {
    case TD_TYPE_Q4_0:
    case TD_TYPE_IQ4_NL: return 576;
    case TD_TYPE_Q4_1: return 640;
    case TD_TYPE_Q5_0: return 704;
    case TD_TYPE_Q5_1: return 768;
    case TD_TYPE_Q8_0: return 1088;
    case TD_TYPE_Q4_K: return 2368;
    case TD_TYPE_Q5_K: return 2880;
    case TD_TYPE_Q6_K: return 3392;
    case TD_TYPE_Q2_K: return 1344;
    case TD_TYPE_Q3_K: return 1856;
    default: return 2240; /* IQ4_XS */
    }
}

INLINE __m512i dot4(__m512i s, const __m512i w[4], const int8_t *q) {
    UNROLL for (int g = 0; g < 4; g++) {
        int32_t x;
        memcpy(&x, q + 4 * g, 4);
        s = _mm512_dpbusd_epi32(s, w[g], _mm512_set1_epi32(x));
    }
    return s;
}

/* Minus offset * sum, to start the integer sum with. */
INLINE __m512i start(td_type t, int32_t minus_sum) {
    const int shift = type_offset_shift(t);
    return shift < 0 ? _mm512_setzero_si512()
                     : _mm512_slli_epi32(_mm512_set1_epi32(minus_sum), (unsigned)shift);
}

INLINE __m512 row_block(td_type t, const __m512i w[8], const __m512 d[2], const __m512 m[2],
                        const int8_t *q, float xs, const int32_t *sum, float min_scale, __m512 acc) {
    const __m512 scale = _mm512_set1_ps(xs);
    if (!type_two_scales(t)) {
        __m512i s = dot4(dot4(start(t, sum[0]), w, q), w + 4, q + 16);
        acc = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(s), d[0]), scale, acc);
        if (t == TD_TYPE_Q4_1 || t == TD_TYPE_Q5_1)
            acc = _mm512_fmadd_ps(m[0], _mm512_set1_ps(min_scale), acc);
        else if (type_has_min(t))
            acc = _mm512_fnmadd_ps(m[0], _mm512_set1_ps(min_scale), acc);
        return acc;
    }
    const __m512i s0 = dot4(start(t, sum[1]), w, q);
    const __m512i s1 = dot4(start(t, sum[0] - sum[1]), w + 4, q + 16);
    __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(s0), d[0]);
    v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s1), d[1], v);
    acc = _mm512_fmadd_ps(v, scale, acc);
    if (t == TD_TYPE_Q2_K) {
        acc = _mm512_fnmadd_ps(m[0], _mm512_set1_ps(xs * (float)-sum[1]), acc);
        acc = _mm512_fnmadd_ps(m[1], _mm512_set1_ps(xs * (float)(sum[1] - sum[0])), acc);
    }
    return acc;
}

INLINE void gemm_rows(td_type t, int nr, const kern_mat *mat, int begin, int end, const kern_acts *a,
                      int first, float *y, size_t y_stride) {
    const int n_blocks = mat->n_in / KERN_BLOCK, group = type_group(t);
    const int8_t *q = a->q + (size_t)first * (size_t)mat->n_in;
    const float *xs = a->scale + (size_t)first * (size_t)n_blocks;
    const float *min_scale = a->min_scale + (size_t)first * (size_t)n_blocks;
    const int32_t *sum = a->sum + 2 * (size_t)first * (size_t)n_blocks;
    for (int panel = begin; panel < end; panel++) {
        const uint8_t *p = mat->data + (size_t)panel * mat->panel_bytes;
        __m512 acc[MAX_ROWS];
        UNROLL for (int r = 0; r < nr; r++) acc[r] = _mm512_setzero_ps();
        for (int b0 = 0; b0 < n_blocks; b0 += group, p += group_bytes(t)) {
            const int n = n_blocks - b0 < group ? n_blocks - b0 : group;
            for (int b = 0; b < n; b++) {
                __m512i w[8];
                __m512 d[2], m[2];
                /* this block's share of what comes PREFETCH_BYTES later */
                const uint8_t *ahead = p + PREFETCH_BYTES + group_bytes(t) / group * b;
                UNROLL for (int i = 0; i < (group_bytes(t) / group + 63) / 64; i++)
                    _mm_prefetch((const char *)ahead + 64 * i, _MM_HINT_T0);
                unpack(t, p, b, w);
                get_scales(t, p, b, d, m);
                const int at = b0 + b;
                UNROLL for (int r = 0; r < nr; r++) {
                    const size_t i = (size_t)r * (size_t)n_blocks + (size_t)at;
                    acc[r] = row_block(t, w, d, m, q + i * KERN_BLOCK, xs[i], sum + 2 * i,
                                       min_scale[i], acc[r]);
                }
            }
        }
        const int left = mat->n_out - panel * KERN_PANEL;
        const __mmask16 keep = left < KERN_PANEL ? (__mmask16)((1u << left) - 1) : 0xffff;
        UNROLL for (int r = 0; r < nr; r++)
            _mm512_mask_storeu_ps(y + (size_t)(first + r) * y_stride + (size_t)panel * KERN_PANEL, keep,
                                  acc[r]);
    }
}

/* Even parts of at most MAX_ROWS rows; a few panels at a time, so that they stay in the cache for every part. */
#define PART(t, nr) \
    case nr: gemm_rows(t, nr, w, p, e, a, first, y, y_stride); break;
#define GEMM(t) \
    static void gemm_##t(const kern_mat *w, int begin, int end, const kern_acts *a, float *y, \
                            size_t y_stride) { \
        const int parts = (a->n_rows + MAX_ROWS - 1) / MAX_ROWS; \
        const int step = parts > 1 ? 1 : end - begin; \
        for (int p = begin; p < end; p += step) { \
            const int e = p + step < end ? p + step : end; \
            for (int i = 0, first = 0; i < parts; i++) { \
                const int n = (a->n_rows - first) / (parts - i); \
                switch (n) { \
                    PART(TD_TYPE_##t, 1) PART(TD_TYPE_##t, 2) PART(TD_TYPE_##t, 3) PART(TD_TYPE_##t, 4) PART(TD_TYPE_##t, 5) PART(TD_TYPE_##t, 6) PART(TD_TYPE_##t, 7) \
                    PART(TD_TYPE_##t, 8) PART(TD_TYPE_##t, 9) PART(TD_TYPE_##t, 10) PART(TD_TYPE_##t, 11) PART(TD_TYPE_##t, 12) \
                } \
                first += n; \
            } \
        } \
    }

PANEL_TYPES(GEMM)

void kern_init_avx512(kern_table *k) {
    k->level = "avx512";
    kern_init_float(k);
#define SET(t) k->gemm[TD_TYPE_##t] = gemm_##t;
    PANEL_TYPES(SET)
#undef SET
}
