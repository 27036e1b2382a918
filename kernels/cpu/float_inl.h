/* The float kernels, once for every level: plain C over 16 lanes, compiled with each level's flags. The
 * same source, no reassociation (-ffp-contract=off, no -ffast-math) and fma written out make the same bits
 * at every level; only the width of the registers differs. Static on purpose: each level keeps its copy. */
#ifndef TD_KERNELS_FLOAT_INL_H
#define TD_KERNELS_FLOAT_INL_H

#include "kernels/kernels.h"

#include "kernels/cpu/lanes.h"

#include <math.h>
#include <string.h>

#define FMA(a, b, c) __builtin_fmaf(a, b, c)

/* exp(x) within 2 ulp for x in [-87, 88]; 0 below, and clamped above. Cody-Waite reduction by ln 2, then
 * the degree-6 Taylor polynomial on [-ln2/2, ln2/2] (its error there is below 2^-24 relative). */
static inline float fast_exp(float x) {
    const float big = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float y = x < 88.0f ? x : 88.0f;
    y = y > -87.0f ? y : -87.0f;
    float t = FMA(y, 1.44269504f, big), n = t - big;
    float r = FMA(n, -0.693145752f, y);
    r = FMA(n, -1.42860677e-6f, r);
    float p = FMA(r, 1.38888889e-3f, 8.33333333e-3f);
    p = FMA(p, r, 4.16666667e-2f);
    p = FMA(p, r, 1.66666667e-1f);
    p = FMA(p, r, 0.5f);
    p = FMA(p, r, 1.0f);
    p = FMA(p, r, 1.0f);
    int32_t e;
    memcpy(&e, &t, sizeof e);
    e = (int32_t)((uint32_t)(e + 127) << 23); /* the low bits of t hold n */
    float s;
    memcpy(&s, &e, sizeof s);
    return x < -87.0f ? 0.0f : p * s;
}

/* Good to an absolute 1e-7. */
static inline float fast_tanh(float x) {
    return 1.0f - 2.0f / (fast_exp(2.0f * x) + 1.0f);
}

/* Folds 16 lanes 8, 4, 2, 1. */
static inline float fold(const float *v) {
    float a[8], b[4];
    for (int i = 0; i < 8; i++)
        a[i] = v[i] + v[i + 8];
    for (int i = 0; i < 4; i++)
        b[i] = a[i] + a[i + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

static void quantize(const float *x, int n, int8_t *q, float *scale, int32_t *sum, float *min_scale) {
    for (int at = 0; at < n; at += KERN_BLOCK) {
        const int have = n - at < KERN_BLOCK ? n - at : KERN_BLOCK;
        float v[KERN_BLOCK] = {0};
        const float *from = have == KERN_BLOCK ? x + at : v;
        if (have < KERN_BLOCK) memcpy(v, x + at, (size_t)have * sizeof *v);
        const lanes lo = lanes_load(from), hi = lanes_load(from + LANES), zero = lanes_set(0);
        const float top = lanes_top(lanes_max(lanes_max(lo, lanes_sub(zero, lo)),
                                              lanes_max(hi, lanes_sub(zero, hi))));
        /* adding 1.5 * 2^23 rounds to nearest even; the low byte is then the integer */
        const lanes inverse = lanes_set(top > 0 ? 127.0f / top : 0), big = lanes_set(12582912.0f);
        int32_t bits[KERN_BLOCK], total[2] = {0, 0};
        lanes_store(v, lanes_add(lanes_mul(lo, inverse), big));
        lanes_store(v + LANES, lanes_add(lanes_mul(hi, inverse), big));
        memcpy(bits, v, sizeof bits);
        for (int i = 0; i < KERN_BLOCK; i++)
            q[at + i] = (int8_t)bits[i];
        for (int i = 0; i < LANES; i++)
            total[0] += (int8_t)bits[i];
        for (int i = 0; i < LANES; i++)
            total[1] += (int8_t)bits[LANES + i];
        const int b = at / KERN_BLOCK;
        const float s = top / 127.0f;
        scale[b] = s;
        sum[KERN_SUMS * b] = -(total[0] + total[1]);
        sum[KERN_SUMS * b + 1] = -total[0], sum[KERN_SUMS * b + 2] = -total[1];
        min_scale[b] = s * (float)(total[0] + total[1]);
    }
}

static void rmsnorm(const float *x, const float *w, int n, float eps, float *y) {
    float s[LANES];
    lanes sum = lanes_set(0);
    int k = 0;
    for (; k + LANES <= n; k += LANES)
        sum = lanes_fma(lanes_load(x + k), lanes_load(x + k), sum);
    lanes_store(s, sum);
    for (int i = 0; k + i < n; i++)
        s[i] = FMA(x[k + i], x[k + i], s[i]);
    const float by = 1.0f / sqrtf(fold(s) / (float)n + eps);
    if (w)
        for (int i = 0; i < n; i++)
            y[i] = x[i] * by * w[i];
    else
        for (int i = 0; i < n; i++)
            y[i] = x[i] * by;
}

static void rope(float *x, int n_rot, const float *cosine, const float *sine, bool neox) {
    const int half = n_rot / 2;
    if (neox) {
        float *a = x, *b = x + half;
        for (int i = 0; i < half; i++) {
            const float p = a[i], r = b[i];
            a[i] = FMA(-r, sine[i], p * cosine[i]);
            b[i] = FMA(p, sine[i], r * cosine[i]);
        }
    } else {
        for (int i = 0; i < half; i++) {
            const float p = x[2 * i], r = x[2 * i + 1];
            x[2 * i] = FMA(-r, sine[i], p * cosine[i]);
            x[2 * i + 1] = FMA(p, sine[i], r * cosine[i]);
        }
    }
}

static void hadamard(float *x, int n, int size) {
    for (int step = 1; step < size; step *= 2)
        for (int at = 0; at < n; at += 2 * step)
            for (int i = at; i < at + step; i++) {
                const float a = x[i], b = x[i + step];
                x[i] = a + b, x[i + step] = a - b;
            }
    const float by = 1.0f / sqrtf((float)size);
    for (int i = 0; i < n; i++)
        x[i] *= by;
}

static void add(float *x, const float *y, int n) {
    for (int i = 0; i < n; i++)
        x[i] += y[i];
}

static void scale_by(float *x, float by, int n) {
    for (int i = 0; i < n; i++)
        x[i] *= by;
}

static void silu_mul(const float *gate, const float *up, int n, float *y) {
    for (int i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + fast_exp(-gate[i])) * up[i];
}

static void gelu_mul(const float *gate, const float *up, int n, float *y) {
    for (int i = 0; i < n; i++) {
        const float g = gate[i], cube = g * g * g;
        const float t = fast_tanh(0.797884561f * FMA(0.044715f, cube, g));
        y[i] = 0.5f * g * (1.0f + t) * up[i];
    }
}

static void softcap(float *x, float cap, int n) {
    for (int i = 0; i < n; i++)
        x[i] = cap * fast_tanh(x[i] / cap);
}

/* ---- float weights: k after k, 16 rows each (panel.h) ---- */

LANES_INLINE lanes load_weights(const uint8_t *p, int k, td_type type) {
    if (type == TD_TYPE_F32) return lanes_load((const float *)(const void *)p + (size_t)k * LANES);
    const uint16_t *h = (const uint16_t *)(const void *)p + (size_t)k * LANES;
    return type == TD_TYPE_F16 ? lanes_load_f16(h) : lanes_load_bf16(h);
}

enum { FLOAT_ROWS = 8 };

LANES_INLINE void gemm_float_rows(const kern_mat *w, int panel, const kern_acts *a, int first, int nr,
                                  float *y, size_t y_stride, td_type type) {
    const uint8_t *p = w->data + (size_t)panel * w->panel_bytes;
    const float *x = a->x + (size_t)first * a->x_stride;
    lanes acc[FLOAT_ROWS];
    for (int r = 0; r < nr; r++)
        acc[r] = lanes_set(0);
    for (int k = 0; k < w->n_in; k++) {
        const lanes v = load_weights(p, k, type);
        for (int r = 0; r < nr; r++)
            acc[r] = lanes_fma(v, lanes_set(x[(size_t)r * a->x_stride + (size_t)k]), acc[r]);
    }
    const int left = w->n_out - panel * KERN_PANEL;
    for (int r = 0; r < nr; r++) {
        float out[LANES];
        lanes_store(out, acc[r]);
        memcpy(y + (size_t)(first + r) * y_stride + (size_t)panel * KERN_PANEL, out,
               (size_t)(left < KERN_PANEL ? left : KERN_PANEL) * sizeof *out);
    }
}

LANES_INLINE void gemm_float(const kern_mat *w, int begin, int end, const kern_acts *a, float *y,
                             size_t s, td_type type) {
    for (int p = begin; p < end; p++)
        for (int first = 0; first < a->n_rows; first += FLOAT_ROWS)
            switch (a->n_rows - first) {
            case 1: gemm_float_rows(w, p, a, first, 1, y, s, type); break;
            case 2: gemm_float_rows(w, p, a, first, 2, y, s, type); break;
            case 3: gemm_float_rows(w, p, a, first, 3, y, s, type); break;
            case 4: gemm_float_rows(w, p, a, first, 4, y, s, type); break;
            case 5: gemm_float_rows(w, p, a, first, 5, y, s, type); break;
            case 6: gemm_float_rows(w, p, a, first, 6, y, s, type); break;
            case 7: gemm_float_rows(w, p, a, first, 7, y, s, type); break;
            default: gemm_float_rows(w, p, a, first, 8, y, s, type);
            }
}

static void gemm_f32(const kern_mat *w, int b, int e, const kern_acts *a, float *y, size_t s) {
    gemm_float(w, b, e, a, y, s, TD_TYPE_F32);
}
static void gemm_f16(const kern_mat *w, int b, int e, const kern_acts *a, float *y, size_t s) {
    gemm_float(w, b, e, a, y, s, TD_TYPE_F16);
}
static void gemm_bf16(const kern_mat *w, int b, int e, const kern_acts *a, float *y, size_t s) {
    gemm_float(w, b, e, a, y, s, TD_TYPE_BF16);
}

/* Fills in everything this header has. */
static void kern_init_float(kern_table *k) {
    k->gemm[TD_TYPE_F32] = gemm_f32;
    k->gemm[TD_TYPE_F16] = gemm_f16;
    k->gemm[TD_TYPE_BF16] = gemm_bf16;
    k->quantize = quantize;
    k->rmsnorm = rmsnorm;
    k->rope = rope;
    k->hadamard = hadamard;
    k->add = add;
    k->scale = scale_by;
    k->silu_mul = silu_mul;
    k->gelu_mul = gelu_mul;
    k->softcap = softcap;
}

#endif
