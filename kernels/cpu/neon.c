/* ARM with the dot product of Armv8.2: the products of quantised weights; the rest is float_inl.h at this width.
 *
 * A line of a panel is four registers of 4 columns by 4 k, and sdot multiplies one with 4 activations out of a
 * register of 16: two registers hold a row's activations of a block. Quants below 128 are signed bytes as they are,
 * their offset starts the sum; those of 8 bits are made signed and have none left. So the integer sum is exact, as at
 * every level.
 *
 * One or two rows walk a panel once; more take it in two halves of 8 columns, which leaves registers for 8 rows.
 * The bits are checked, under emulation; speed is not measured on any machine. What was counted, in gcc 12's code for
 * Q4_K, are vector operations a block and row, of which 32 are sdot: 120 at 1 row, 92 at 2, 69 at 4, 66 at 8 (all 16
 * columns at once: 75 at 3 and 71 at 4, where registers end). */
#include "kernels/cpu/attn_inl.h"
#include "kernels/cpu/float_inl.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/panel.h"

#include <arm_neon.h>

enum { MAX_ROWS = 8, ROWS_WHOLE = 2, PREFETCH_BYTES = 4096 };

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* What a type is, as constants. */
INLINE bool is_wide(td_type t) { /* 8 bits, made signed */
    return t == TD_TYPE_Q8_0 || t == TD_TYPE_IQ4_NL || t == TD_TYPE_IQ4_XS;
}

/* Eight columns: half a panel. */
typedef struct ints {
    int32x4_t v[2];
} ints;
typedef struct floats {
    float32x4_t v[2];
} floats;

INLINE ints ints_set(int32_t x) {
    return (ints){{vdupq_n_s32(x), vdupq_n_s32(x)}};
}
INLINE floats floats_set(float x) {
    return (floats){{vdupq_n_f32(x), vdupq_n_f32(x)}};
}
INLINE floats floats_of(ints s) {
    return (floats){{vcvtq_f32_s32(s.v[0]), vcvtq_f32_s32(s.v[1])}};
}
INLINE floats mul(floats a, floats b) {
    return (floats){{vmulq_f32(a.v[0], b.v[0]), vmulq_f32(a.v[1], b.v[1])}};
}
INLINE floats fma_by(floats a, float by, floats c) {
    return (floats){{vfmaq_n_f32(c.v[0], a.v[0], by), vfmaq_n_f32(c.v[1], a.v[1], by)}};
}
INLINE floats fma_of(floats a, floats b, floats c) {
    return (floats){{vfmaq_f32(c.v[0], a.v[0], b.v[0]), vfmaq_f32(c.v[1], a.v[1], b.v[1])}};
}
INLINE floats fms_by(floats a, float by, floats c) { /* c - a * by, rounded once */
    return (floats){{vfmsq_n_f32(c.v[0], a.v[0], by), vfmsq_n_f32(c.v[1], a.v[1], by)}};
}

/* v with `n` bits from bit `from` of each byte of `plane` at bit `to`, where v has zeros. */
INLINE uint8x16_t add_bits(uint8x16_t v, uint8x16_t plane, int from, int n, int to) {
    const uint8x16_t moved = from >= to ? plane >> (from - to) : plane << (to - from);
    return vbslq_u8(vdupq_n_u8((uint8_t)(((1 << n) - 1) << to)), moved, v);
}

/* Four columns of line g of a block; group points at the first of them. */
INLINE int8x16_t quarter(td_type t, const uint8_t *group, size_t block, int g) {
    const panel_layout *l = panel_layout_get(t);
    const uint8x16_t sign = vdupq_n_u8(0x80);
    if (t == TD_TYPE_Q8_0)
        return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(group + 512 * block + 64 * g), sign));
    uint8x16_t v = vdupq_n_u8(0);
    int bits = 0;
    if (l->q4 >= 0) {
        v = vld1q_u8(group + 256 * block + 64 * (g & 3));
        v = g & 4 ? v >> 4 : vandq_u8(v, vdupq_n_u8(15));
        bits = 4;
    }
    if (l->q2 >= 0) {
        const uint8x16_t plane = vld1q_u8(group + l->q2 + 128 * block + 64 * (g >> 2));
        v = add_bits(v, plane, 2 * (g & 3), 2, bits);
        bits += 2;
    }
    if (l->q1 >= 0) v = add_bits(v, vld1q_u8(group + l->q1 + 64 * block), g, 1, bits);
    if (is_wide(t)) v = vqtbl1q_u8(veorq_u8(vld1q_u8(panel_iq4_values), sign), v);
    return vreinterpretq_s8_u8(v);
}

/* Eight values of a scale plane. */
INLINE floats halves(const uint8_t *p) {
    const float16x8_t v = vreinterpretq_f16_u8(vld1q_u8(p));
    return (floats){{vcvt_f32_f16(vget_low_f16(v)), vcvt_high_f32_f16(v)}};
}
INLINE floats bytes_u(uint8x8_t v) {
    const uint16x8_t w = vmovl_u8(v);
    return (floats){{vcvtq_f32_u32(vmovl_u16(vget_low_u16(w))), vcvtq_f32_u32(vmovl_high_u16(w))}};
}
INLINE floats bytes_s(uint8x8_t v) {
    const int16x8_t w = vmovl_s8(vreinterpret_s8_u8(v));
    return (floats){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(w))), vcvtq_f32_s32(vmovl_high_s16(w))}};
}

/* Scales and minima of half a block. The K-quants' minima are subtracted, those of Q4_1 and Q5_1 added. */
INLINE void get_scales(td_type t, const uint8_t *group, size_t block, int half, floats d[2],
                       floats m[2]) {
    const panel_layout *l = panel_layout_get(t);
    const uint8_t *h = group + (l->group == 2 ? 32 * block : 0) + 16 * half; /* f16 planes */
    const floats all = halves(h + l->d), min = l->dmin >= 0 ? halves(h + l->dmin) : all;
    d[0] = all, m[0] = min;
    if (l->sc < 0) return;
    const uint8_t *sc = group + l->sc + 16 * (size_t)l->scales * block + 8 * half;
    if (t == TD_TYPE_Q2_K) {
        UNROLL for (int i = 0; i < 2; i++) {
            const uint8x8_t v = vld1_u8(sc + 16 * i);
            d[i] = mul(all, bytes_u(vand_u8(v, vdup_n_u8(15))));
            m[i] = mul(min, bytes_u(v >> 4));
        }
    } else if (l->mn >= 0) {
        d[0] = mul(all, bytes_u(vld1_u8(sc)));
        m[0] = mul(min, bytes_u(vld1_u8(sc + (l->mn - l->sc))));
    } else {
        UNROLL for (int i = 0; i < l->scales; i++) d[i] = mul(all, bytes_s(vld1_u8(sc + 16 * i)));
    }
}

/* Minus offset * sum, to start an integer sum with. */
INLINE ints start(td_type t, int32_t minus_sum) {
    return ints_set(is_wide(t) ? 0 : panel_layout_get(t)->offset * minus_sum);
}

/* Lines [g0, g0 + 4) of half a block for nr rows. The lane of sdot has to be a constant for every compiler. */
INLINE void dot_lines(td_type t, int nr, const uint8_t *group, size_t block, int half, int g0,
                      const int8x16_t x[MAX_ROWS], ints s[MAX_ROWS]) {
#define LINE(i)                                                                                    \
    UNROLL for (int c = 0; c < 2; c++) {                                                           \
        const int8x16_t w = quarter(t, group + 32 * half + 16 * c, block, g0 + i);                 \
        UNROLL for (int r = 0; r < nr; r++) s[r].v[c] = vdotq_laneq_s32(s[r].v[c], w, x[r], i);    \
    }
    LINE(0) LINE(1) LINE(2) LINE(3)
#undef LINE
}

/* Half a block for nr rows; row r's part of the activations is block at + r * n_blocks. */
INLINE void block_rows(td_type t, int nr, const uint8_t *group, size_t block, int half,
                       const kern_acts *a, size_t at, size_t n_blocks, floats acc[MAX_ROWS]) {
    int8x16_t x[MAX_ROWS];
    ints s[MAX_ROWS];
    floats f[MAX_ROWS], d[2], m[2];
    UNROLL for (int r = 0; r < nr; r++) {
        const size_t i = at + (size_t)r * n_blocks;
        x[r] = vld1q_s8(a->q + i * KERN_BLOCK);
        s[r] = start(t, a->sum[KERN_SUMS * i + (panel_two_scales(t) ? 1 : 0)]);
    }
    dot_lines(t, nr, group, block, half, 0, x, s);
    get_scales(t, group, block, half, d, m);
    UNROLL for (int r = 0; r < nr; r++) {
        const size_t i = at + (size_t)r * n_blocks;
        x[r] = vld1q_s8(a->q + i * KERN_BLOCK + 16);
        if (panel_two_scales(t)) {
            f[r] = mul(floats_of(s[r]), d[0]);
            s[r] = start(t, a->sum[KERN_SUMS * i + 2]);
        }
    }
    dot_lines(t, nr, group, block, half, 4, x, s);
    UNROLL for (int r = 0; r < nr; r++) {
        const size_t i = at + (size_t)r * n_blocks;
        const float scale = a->scale[i];
        f[r] = panel_two_scales(t) ? fma_of(floats_of(s[r]), d[1], f[r]) : mul(floats_of(s[r]), d[0]);
        acc[r] = fma_by(f[r], scale, acc[r]);
        if (t == TD_TYPE_Q4_1 || t == TD_TYPE_Q5_1) acc[r] = fma_by(m[0], a->min_scale[i], acc[r]);
        if (t == TD_TYPE_Q4_K || t == TD_TYPE_Q5_K) acc[r] = fms_by(m[0], a->min_scale[i], acc[r]);
        if (t == TD_TYPE_Q2_K) {
            const int32_t *sum = a->sum + KERN_SUMS * i;
            acc[r] = fms_by(m[0], scale * (float)-sum[1], acc[r]);
            acc[r] = fms_by(m[1], scale * (float)-sum[2], acc[r]);
        }
    }
}

/* Rows [first, first + nr) against one panel. */
INLINE void gemm_rows(td_type t, int nr, const kern_mat *mat, int panel, const kern_acts *a,
                      int first, float *y, size_t y_stride) {
    const panel_layout *l = panel_layout_get(t);
    const size_t n_blocks = (size_t)mat->n_in / KERN_BLOCK;
    const size_t block_bytes = (size_t)(l->group_bytes / l->group);
    const int together = nr <= ROWS_WHOLE ? 2 : 1, left = mat->n_out - panel * KERN_PANEL;
    for (int half = 0; half < 2; half += together) {
        const uint8_t *group = mat->data + (size_t)panel * mat->panel_bytes;
        floats acc[2][MAX_ROWS]; /* [half] */
        UNROLL for (int r = 0; r < nr; r++) acc[0][r] = acc[1][r] = floats_set(0);
        for (size_t at = 0, block = 0; at < n_blocks; at++, block++) {
            if (block == (size_t)l->group) block = 0, group += l->group_bytes;
            /* this block's share of what comes PREFETCH_BYTES later */
            const uint8_t *ahead = group + PREFETCH_BYTES + block_bytes * block;
            UNROLL for (size_t i = 0; i < block_bytes; i += 64) __builtin_prefetch(ahead + i);
            UNROLL for (int h = 0; h < together; h++) block_rows(
                t, nr, group, block, half + h, a, (size_t)first * n_blocks + at, n_blocks, acc[h]);
        }
        for (int h = 0; h < together; h++)
            for (int r = 0; r < nr; r++) {
                float out[8];
                const int column = 8 * (half + h), n = left - column < 8 ? left - column : 8;
                vst1q_f32(out, acc[h][r].v[0]);
                vst1q_f32(out + 4, acc[h][r].v[1]);
                if (n > 0)
                    memcpy(y + (size_t)(first + r) * y_stride + panel * KERN_PANEL + column, out,
                           (size_t)n * sizeof *out);
            }
    }
}

/* Even parts of at most MAX_ROWS rows, panel by panel, so that a panel stays in the cache for every part. */
INLINE void gemm(td_type t, const kern_mat *mat, int begin, int end, const kern_acts *a, float *y,
                 size_t y_stride) {
    const int parts = (a->n_rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int panel = begin; panel < end; panel++)
        for (int i = 0, first = 0; i < parts; i++) {
            const int nr = (a->n_rows - first) / (parts - i);
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        gemm_rows(t, n, mat, panel, a, first, y, y_stride);                                        \
        break;
            switch (nr) { ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) }
#undef ROWS
            first += nr;
        }
}

#define GEMM(t)                                                                                    \
    static void gemm_##t(const kern_mat *w, int begin, int end, const kern_acts *a, float *y,      \
                         size_t y_stride) {                                                        \
        gemm(TD_TYPE_##t, w, begin, end, a, y, y_stride);                                          \
    }

PANEL_TYPES(GEMM)

void kern_init_neon(kern_table *k) {
    k->level = "neon";
    kern_init_float(k);
    kern_init_attn(k);
#define SET(t) k->gemm[TD_TYPE_##t] = gemm_##t;
    PANEL_TYPES(SET)
#undef SET
}
