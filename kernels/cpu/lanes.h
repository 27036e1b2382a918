/* Sixteen float lanes, as wide as the level's registers: one __m512, two __m256, or sixteen floats. Every
 * operation rounds each lane once, so the three ways give the same bits. */
#ifndef TD_KERNELS_LANES_H
#define TD_KERNELS_LANES_H

#include "format/format.h"

#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
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
