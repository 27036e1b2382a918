/* AVX-512 with VNNI: the products of quantised weights; the rest is float_inl.h at this width.
 *
 * One template, inlined once a type and a number of rows: a line of a block is unpacked into a register and meets
 * every row's broadcast of 4 activations (vpdpbusd with an embedded memory operand), then comes the next line. Lines
 * outside and rows inside, so that no row's sum waits for its own last addition; a core whose two vector pipes are
 * busy with dots and multiplications otherwise fills its schedulers with instructions that wait. On Zen 4 a row of a
 * Q4_K block takes 11.4 cycles so, of 11 that its 8 dots, 1 multiplication and 2 FMAs take at best; 12.4 row by row. */
#include "kernels/cpu/attn_inl.h"
#include "kernels/cpu/float_inl.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/panel.h"

#include <immintrin.h>

enum { MAX_ROWS = 12 };

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Registers: a sum and a total for every row, and with two scales what the first of them gave. */
INLINE int max_rows(td_type t) {
    return panel_two_scales(t) ? 8 : MAX_ROWS;
}
/* The i-th line to take: both lines of a byte together, unless the first four come under a scale of their own. */
INLINE int line_order(td_type t, int i) {
    return panel_two_scales(t) ? i : i >> 1 | (i & 1) << 2;
}

INLINE __m512i load(const uint8_t *p) {
    return _mm512_loadu_si512((const void *)p); /* every second group of Q3_K is not on a line */
}

/* w | (v shifted right by `right` & bits) */
INLINE __m512i or_bits(__m512i w, __m512i v, int right, int bits) {
    const __m512i moved =
        right >= 0 ? _mm512_srli_epi16(v, (unsigned)right) : _mm512_slli_epi16(v, (unsigned)-right);
    return _mm512_ternarylogic_epi64(w, moved, _mm512_set1_epi8((char)bits), 0xf8);
}

/* Line g of a block: 4 quants of k for each of the 16 rows, unsigned. */
INLINE __m512i line(td_type t, const uint8_t *group, size_t block, int g) {
    const panel_layout *l = panel_layout_get(t);
    if (l->q8 >= 0) return load(group + 512 * block + 64 * (size_t)g);
    __m512i v = _mm512_setzero_si512();
    int bits = 0;
    if (l->q4 >= 0) {
        v = load(group + 256 * block + 64 * (size_t)(g & 3));
        v = _mm512_and_si512(g & 4 ? _mm512_srli_epi16(v, 4) : v, _mm512_set1_epi8(15));
        bits = 4;
    }
    if (l->q2 >= 0) {
        const __m512i two = load(group + l->q2 + 128 * block + 64 * (size_t)(g >> 2));
        v = or_bits(v, two, 2 * (g & 3) - bits, 3 << bits);
        bits += 2;
    }
    if (l->q1 >= 0) v = or_bits(v, load(group + l->q1 + 64 * block), g - bits, 1 << bits);
    if (panel_is_iq4(t)) {
        const __m128i book = _mm_loadu_si128((const __m128i *)panel_iq4_values);
        v = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(book), v);
    }
    return v;
}

INLINE __m512 halves(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)p));
}
INLINE __m512i bytes_u(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)p));
}
INLINE __m512i bytes_s(const uint8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)p));
}
INLINE __m512 times(__m512 a, __m512i b) {
    return _mm512_mul_ps(a, _mm512_cvtepi32_ps(b));
}

/* Scales and minima (with their sign) of one block for 16 rows. */
INLINE void get_scales(td_type t, const uint8_t *group, size_t block, __m512 d[2], __m512 m[2]) {
    const panel_layout *l = panel_layout_get(t);
    const uint8_t *h = group + (l->group == 2 ? 32 * block : 0); /* f16 planes */
    const uint8_t *sc = group + l->sc + 16 * (size_t)l->scales * block, *mn = sc + (l->mn - l->sc);
    const __m512 minus = _mm512_set1_ps(-0.0f);
    const __m512 all = halves(h + l->d), min = l->dmin >= 0 ? halves(h + l->dmin) : all;
    d[0] = all, m[0] = min;
    if (l->sc < 0) return;
    if (t == TD_TYPE_Q2_K) {
        UNROLL for (int i = 0; i < 2; i++) {
            const __m512i v = bytes_u(sc + 16 * i);
            d[i] = times(all, _mm512_and_si512(v, _mm512_set1_epi32(15)));
            m[i] = _mm512_xor_ps(minus, times(min, _mm512_srli_epi32(v, 4)));
        }
    } else if (l->mn >= 0) {
        d[0] = times(all, bytes_u(sc));
        m[0] = _mm512_xor_ps(minus, times(min, bytes_u(mn)));
    } else {
        UNROLL for (int i = 0; i < l->scales; i++) d[i] = times(all, bytes_s(sc + 16 * i));
    }
}

INLINE __m512i broadcast4(const int8_t *q) {
    int32_t x;
    memcpy(&x, q, 4);
    return _mm512_set1_epi32(x);
}

/* Minus offset * sum, to start an integer sum with. Offsets are powers of two. */
INLINE __m512i start(td_type t, int32_t minus_sum) {
    const int offset = panel_layout_get(t)->offset;
    return offset ? _mm512_slli_epi32(_mm512_set1_epi32(minus_sum),
                                      (unsigned)__builtin_ctz((unsigned)offset))
                  : _mm512_setzero_si512();
}

/* One block for nr rows, from row * n_blocks + at on in the activations. */
INLINE void tile(td_type t, int nr, const uint8_t *group, size_t block, const kern_acts *a,
                 size_t at, size_t n_blocks, __m512 acc[MAX_ROWS]) {
    __m512i s[MAX_ROWS];
    __m512 d[2], m[2], f[MAX_ROWS];
    get_scales(t, group, block, d, m);
    UNROLL for (int r = 0; r < nr; r++) {
        const int32_t *sum = a->sum + KERN_SUMS * (at + (size_t)r * n_blocks);
        s[r] = start(t, panel_two_scales(t) ? sum[1] : sum[0]);
    }
    UNROLL for (int i = 0; i < 8; i++) {
        const int g = line_order(t, i);
        if (panel_two_scales(t) && g == 4) {
            UNROLL for (int r = 0; r < nr; r++) {
                f[r] = times(d[0], s[r]);
                s[r] = start(t, a->sum[KERN_SUMS * (at + (size_t)r * n_blocks) + 2]);
            }
        }
        const __m512i w = line(t, group, block, g);
        UNROLL for (int r = 0; r < nr; r++) {
            const int8_t *q = a->q + (at + (size_t)r * n_blocks) * KERN_BLOCK;
            s[r] = _mm512_dpbusd_epi32(s[r], w, broadcast4(q + 4 * g));
        }
    }
    UNROLL for (int r = 0; r < nr; r++) {
        const size_t i = at + (size_t)r * n_blocks;
        const int32_t *sum = a->sum + KERN_SUMS * i;
        const float scale = a->scale[i];
        f[r] = panel_two_scales(t) ? _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[r]), d[1], f[r])
                                   : times(d[0], s[r]);
        acc[r] = _mm512_fmadd_ps(f[r], _mm512_set1_ps(scale), acc[r]);
        if (panel_has_min(t))
            acc[r] = _mm512_fmadd_ps(m[0], _mm512_set1_ps(a->min_scale[i]), acc[r]);
        if (t == TD_TYPE_Q2_K) {
            acc[r] = _mm512_fmadd_ps(m[0], _mm512_set1_ps(scale * (float)-sum[1]), acc[r]);
            acc[r] = _mm512_fmadd_ps(m[1], _mm512_set1_ps(scale * (float)-sum[2]), acc[r]);
        }
    }
}

/* Rows [first, first + nr). */
INLINE void gemm_rows(td_type t, int nr, const kern_mat *mat, int begin, int end,
                      const kern_acts *a, int first, float *y, size_t y_stride) {
    const panel_layout *l = panel_layout_get(t);
    const size_t n_blocks = (size_t)mat->n_in / KERN_BLOCK, from = (size_t)first * n_blocks;
    for (int panel = begin; panel < end; panel++) {
        const uint8_t *group = mat->data + (size_t)panel * mat->panel_bytes;
        __m512 acc[MAX_ROWS];
        UNROLL for (int r = 0; r < nr; r++) acc[r] = _mm512_setzero_ps();
        for (size_t at = 0, block = 0; at < n_blocks; at++, block++) {
            if (block == (size_t)l->group) block = 0, group += l->group_bytes;
            panel_prefetch(t, group, block);
            tile(t, nr, group, block, a, from + at, n_blocks, acc);
        }
        const int left = mat->n_out - panel * KERN_PANEL;
        const __mmask16 keep = left < KERN_PANEL ? (__mmask16)((1u << left) - 1) : 0xffff;
        UNROLL for (int r = 0; r < nr; r++) _mm512_mask_storeu_ps(
            y + (size_t)(first + r) * y_stride + (size_t)panel * KERN_PANEL, keep, acc[r]);
    }
}

/* Even parts of at most max_rows rows; a panel at a time, so that it stays in the cache for every part. */
#define ROWS(nr)                                                                                   \
    case nr:                                                                                       \
        if (nr <= max_rows(t)) gemm_rows(t, nr, w, p, e, a, first, y, y_stride);                   \
        break;
INLINE void gemm(td_type t, const kern_mat *w, int begin, int end, const kern_acts *a, float *y,
                 size_t y_stride) {
    const int parts = (a->n_rows + max_rows(t) - 1) / max_rows(t);
    const int step = parts > 1 ? 1 : end - begin;
    for (int p = begin; p < end; p += step) {
        const int e = p + step < end ? p + step : end;
        for (int i = 0, first = 0; i < parts; i++) {
            const int n = (a->n_rows - first) / (parts - i);
            switch (n) {
                ROWS(1)
                ROWS(2)
                ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12)
            }
            first += n;
        }
    }
}

#define GEMM(t)                                                                                    \
    static void gemm_##t(const kern_mat *w, int begin, int end, const kern_acts *a, float *y,      \
                         size_t y_stride) {                                                        \
        gemm(TD_TYPE_##t, w, begin, end, a, y, y_stride);                                          \
    }

PANEL_TYPES(GEMM)

void kern_init_avx512(kern_table *k) {
    k->level = "avx512";
    kern_init_float(k);
    kern_init_attn(k);
#define SET(t) k->gemm[TD_TYPE_##t] = gemm_##t;
    PANEL_TYPES(SET)
#undef SET
}
