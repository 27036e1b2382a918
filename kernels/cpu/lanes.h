/* Sixteen float lanes, as wide as the level's registers: one __m512, two __m256, four float32x4_t, or sixteen
 * floats. Every operation rounds each lane once, so the ways give the same bits. */
#ifndef TD_KERNELS_LANES_H
#define TD_KERNELS_LANES_H

#include "format/format.h"

#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

#define LANES_INLINE static inline __attribute__((always_inline))

enum { LANES = 16 };

#if defined(__AVX512F__)

typedef __m512 lanes;
LANES_INLINE lanes lanes_set(float x) {
    return _mm512_set1_ps(x);
}
LANES_INLINE lanes lanes_load(const float *p) {
    return _mm512_loadu_ps(p);
}
LANES_INLINE lanes lanes_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
LANES_INLINE lanes lanes_load_bf16(const uint16_t *p) {
    const __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
LANES_INLINE void lanes_store(float *p, lanes v) {
    _mm512_storeu_ps(p, v);
}
LANES_INLINE lanes lanes_mul(lanes a, lanes b) {
    return _mm512_mul_ps(a, b);
}
LANES_INLINE lanes lanes_fma(lanes a, lanes b, lanes c) {
    return _mm512_fmadd_ps(a, b, c);
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

typedef struct lanes {
    __m256 lo, hi;
} lanes;
LANES_INLINE lanes lanes_set(float x) {
    return (lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
LANES_INLINE lanes lanes_load(const float *p) {
    return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
LANES_INLINE lanes lanes_load_f16(const uint16_t *p) {
    return (lanes){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
                   _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}
LANES_INLINE __m256 lanes_half_bf16(const uint16_t *p) {
    const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
LANES_INLINE lanes lanes_load_bf16(const uint16_t *p) {
    return (lanes){lanes_half_bf16(p), lanes_half_bf16(p + 8)};
}
LANES_INLINE void lanes_store(float *p, lanes v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}
LANES_INLINE lanes lanes_mul(lanes a, lanes b) {
    return (lanes){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
LANES_INLINE lanes lanes_fma(lanes a, lanes b, lanes c) {
    return (lanes){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

#elif defined(__ARM_FEATURE_DOTPROD) /* not __ARM_NEON, which ref's build has too */

typedef struct lanes {
    float32x4_t v[4];
} lanes;
LANES_INLINE lanes lanes_set(float x) {
    const float32x4_t v = vdupq_n_f32(x);
    return (lanes){{v, v, v, v}};
}
LANES_INLINE lanes lanes_load(const float *p) {
    return (lanes){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
LANES_INLINE float32x4_t lanes_quarter_f16(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
LANES_INLINE lanes lanes_load_f16(const uint16_t *p) {
    return (lanes){{lanes_quarter_f16(p), lanes_quarter_f16(p + 4), lanes_quarter_f16(p + 8),
                    lanes_quarter_f16(p + 12)}};
}
LANES_INLINE float32x4_t lanes_quarter_bf16(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
LANES_INLINE lanes lanes_load_bf16(const uint16_t *p) {
    return (lanes){{lanes_quarter_bf16(p), lanes_quarter_bf16(p + 4), lanes_quarter_bf16(p + 8),
                    lanes_quarter_bf16(p + 12)}};
}
LANES_INLINE void lanes_store(float *p, lanes v) {
    vst1q_f32(p, v.v[0]);
    vst1q_f32(p + 4, v.v[1]);
    vst1q_f32(p + 8, v.v[2]);
    vst1q_f32(p + 12, v.v[3]);
}
LANES_INLINE lanes lanes_mul(lanes a, lanes b) {
    return (lanes){{vmulq_f32(a.v[0], b.v[0]), vmulq_f32(a.v[1], b.v[1]), vmulq_f32(a.v[2], b.v[2]),
                    vmulq_f32(a.v[3], b.v[3])}};
}
LANES_INLINE lanes lanes_fma(lanes a, lanes b, lanes c) {
    return (lanes){{vfmaq_f32(c.v[0], a.v[0], b.v[0]), vfmaq_f32(c.v[1], a.v[1], b.v[1]),
                    vfmaq_f32(c.v[2], a.v[2], b.v[2]), vfmaq_f32(c.v[3], a.v[3], b.v[3])}};
}

#else

typedef struct lanes {
    float v[LANES];
} lanes;
LANES_INLINE lanes lanes_set(float x) {
    lanes r;
    for (int i = 0; i < LANES; i++)
        r.v[i] = x;
    return r;
}
LANES_INLINE lanes lanes_load(const float *p) {
    lanes r;
    memcpy(r.v, p, sizeof r.v);
    return r;
}
LANES_INLINE lanes lanes_load_f16(const uint16_t *p) {
    lanes r;
    for (int i = 0; i < LANES; i++)
        r.v[i] = td_f16_to_f32(p[i]);
    return r;
}
LANES_INLINE lanes lanes_load_bf16(const uint16_t *p) {
    lanes r;
    for (int i = 0; i < LANES; i++)
        r.v[i] = td_bf16_to_f32(p[i]);
    return r;
}
LANES_INLINE void lanes_store(float *p, lanes v) {
    memcpy(p, v.v, sizeof v.v);
}
LANES_INLINE lanes lanes_mul(lanes a, lanes b) {
    for (int i = 0; i < LANES; i++)
        a.v[i] *= b.v[i];
    return a;
}
LANES_INLINE lanes lanes_fma(lanes a, lanes b, lanes c) {
    for (int i = 0; i < LANES; i++)
        c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
    return c;
}

#endif
#endif
