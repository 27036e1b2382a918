/* Sixteen float lanes, as wide as the level's registers: one __m512, two __m256, four float32x4_t, or sixteen
 * floats. Every operation rounds each lane once, so the ways give the same bits.
 *
 * What needs words:
 *   lanes_load_i4         four bits of each byte, from `shift` on, minus 8
 *   lanes_min, lanes_max  a < b ? a : b and a > b ? a : b: the second one where one is NaN
 *   lanes_if_less         a < b ? yes : no
 *   lanes_within          lanes begin <= i < end of `in`, the others of `out`
 *   lanes_sum             folds the lanes 8, 4, 2, 1
 *   lanes_top             the largest lane; none is NaN
 *   lanes_power           2 to the power of the integer in the low bits of 1.5 * 2^23 + n
 *   lanes_store_low       the low byte of each lane
 *
 * int_lanes are sixteen integers of 32 bits, quads sixteen times four bytes in [-128, 127]. Their dot products with four
 * bytes x in [-127, 127], the same ones for every quad, are exact:
 *   quads_start           what a sum begins with; minus_sum is minus the sum of all x it will meet
 *   quads_dot             s[i] + a[i][0] * x[0] + ... + a[i][3] * x[3]
 *   quads_dot_positive    the same where no x is negative; its sums begin with zeros */
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
LANES_INLINE lanes lanes_add(lanes a, lanes b) {
    return _mm512_add_ps(a, b);
}
LANES_INLINE lanes lanes_sub(lanes a, lanes b) {
    return _mm512_sub_ps(a, b);
}
LANES_INLINE lanes lanes_min(lanes a, lanes b) {
    return _mm512_min_ps(a, b);
}
LANES_INLINE lanes lanes_max(lanes a, lanes b) {
    return _mm512_max_ps(a, b);
}
LANES_INLINE lanes lanes_if_less(lanes a, lanes b, lanes yes, lanes no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
LANES_INLINE lanes lanes_within(int begin, int end, lanes in, lanes out) {
    const __m512i at = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __mmask16 from = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32(begin));
    return _mm512_mask_blend_ps(_mm512_mask_cmplt_epi32_mask(from, at, _mm512_set1_epi32(end)), out,
                                in);
}
LANES_INLINE lanes lanes_power(lanes t) {
    const __m512i e = _mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}
LANES_INLINE float lanes_sum(lanes v) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
LANES_INLINE float lanes_top(lanes v) {
    const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
LANES_INLINE lanes lanes_of_i8(__m128i v) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v));
}
LANES_INLINE lanes lanes_load_i4(const uint8_t *p, int shift) {
    const __m128i v = _mm_srli_epi16(_mm_loadu_si128((const __m128i *)(const void *)p), shift);
    return lanes_of_i8(_mm_sub_epi8(_mm_and_si128(v, _mm_set1_epi8(15)), _mm_set1_epi8(8)));
}
LANES_INLINE void lanes_store_low(int8_t *p, lanes v) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(_mm512_castps_si512(v)));
}

typedef __m512i int_lanes, quads;
LANES_INLINE int_lanes int_lanes_set(int32_t x) {
    return _mm512_set1_epi32(x);
}
LANES_INLINE lanes lanes_of_ints(int_lanes v) {
    return _mm512_cvtepi32_ps(v);
}
LANES_INLINE quads quads_load(const int8_t *p) {
    return _mm512_load_si512((const void *)p);
}
/* vpdpbusd takes bytes without a sign on one side: a + 128, or x. */
LANES_INLINE int_lanes quads_start(int32_t minus_sum) {
    return _mm512_slli_epi32(_mm512_set1_epi32(minus_sum), 7);
}
LANES_INLINE int_lanes quads_four(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}
LANES_INLINE int_lanes quads_dot(int_lanes s, quads a, const int8_t *x) {
    return _mm512_dpbusd_epi32(s, _mm512_xor_si512(a, _mm512_set1_epi8(-128)), quads_four(x));
}
LANES_INLINE int_lanes quads_dot_positive(int_lanes s, quads a, const int8_t *x) {
    return _mm512_dpbusd_epi32(s, quads_four(x), a);
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
LANES_INLINE lanes lanes_add(lanes a, lanes b) {
    return (lanes){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
LANES_INLINE lanes lanes_sub(lanes a, lanes b) {
    return (lanes){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
LANES_INLINE lanes lanes_min(lanes a, lanes b) {
    return (lanes){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
LANES_INLINE lanes lanes_max(lanes a, lanes b) {
    return (lanes){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
LANES_INLINE lanes lanes_if_less(lanes a, lanes b, lanes yes, lanes no) {
    return (lanes){_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                   _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
LANES_INLINE __m256 lanes_half_within(int begin, int end, __m256 in, __m256 out) {
    const __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), at);
    const __m256i inside =
        _mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), at));
    return _mm256_blendv_ps(out, in, _mm256_castsi256_ps(inside));
}
LANES_INLINE lanes lanes_within(int begin, int end, lanes in, lanes out) {
    return (lanes){lanes_half_within(begin, end, in.lo, out.lo),
                   lanes_half_within(begin - 8, end - 8, in.hi, out.hi)};
}
LANES_INLINE __m256 lanes_half_power(__m256 t) {
    const __m256i e = _mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
LANES_INLINE lanes lanes_power(lanes t) {
    return (lanes){lanes_half_power(t.lo), lanes_half_power(t.hi)};
}
LANES_INLINE float lanes_sum(lanes v) {
    const __m256 a = _mm256_add_ps(v.lo, v.hi);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
LANES_INLINE float lanes_top(lanes v) {
    const __m256 a = _mm256_max_ps(v.lo, v.hi);
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
LANES_INLINE lanes lanes_of_i8(__m128i v) {
    return (lanes){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)),
                   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v)))};
}
LANES_INLINE lanes lanes_load_i4(const uint8_t *p, int shift) {
    const __m128i v = _mm_srli_epi16(_mm_loadu_si128((const __m128i *)(const void *)p), shift);
    return lanes_of_i8(_mm_sub_epi8(_mm_and_si128(v, _mm_set1_epi8(15)), _mm_set1_epi8(8)));
}
LANES_INLINE void lanes_store_low(int8_t *p, lanes v) {
    const __m256i low = _mm256_set1_epi32(255);
    const __m256i lo = _mm256_and_si256(_mm256_castps_si256(v.lo), low);
    const __m256i hi = _mm256_and_si256(_mm256_castps_si256(v.hi), low);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packus_epi16(_mm256_castsi256_si128(words),
                                                            _mm256_extracti128_si256(words, 1)));
}

typedef struct int_lanes {
    __m256i lo, hi;
} int_lanes;
typedef int_lanes quads;
LANES_INLINE int_lanes int_lanes_set(int32_t x) {
    return (int_lanes){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
LANES_INLINE lanes lanes_of_ints(int_lanes v) {
    return (lanes){_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)};
}
LANES_INLINE quads quads_load(const int8_t *p) {
    return (quads){_mm256_load_si256((const __m256i *)(const void *)p),
                   _mm256_load_si256((const __m256i *)(const void *)(p + 32))};
}
LANES_INLINE int_lanes quads_start(int32_t minus_sum) {
    (void)minus_sum;
    return int_lanes_set(0);
}
LANES_INLINE __m256i quads_four(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
}
/* x without a sign. vpmaddubsw adds pairs in 16 bits: 2 * 128 * 127 at most. */
LANES_INLINE __m256i quads_half(__m256i s, __m256i x, __m256i a) {
    const __m256i pairs = _mm256_maddubs_epi16(x, a);
    return _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
LANES_INLINE int_lanes quads_dot(int_lanes s, quads a, const int8_t *x) {
    const __m256i four = quads_four(x);
    return (int_lanes){quads_half(s.lo, _mm256_abs_epi8(a.lo), _mm256_sign_epi8(four, a.lo)),
                       quads_half(s.hi, _mm256_abs_epi8(a.hi), _mm256_sign_epi8(four, a.hi))};
}
LANES_INLINE int_lanes quads_dot_positive(int_lanes s, quads a, const int8_t *x) {
    return (int_lanes){quads_half(s.lo, quads_four(x), a.lo),
                       quads_half(s.hi, quads_four(x), a.hi)};
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
LANES_INLINE lanes lanes_add(lanes a, lanes b) {
    return (lanes){{vaddq_f32(a.v[0], b.v[0]), vaddq_f32(a.v[1], b.v[1]), vaddq_f32(a.v[2], b.v[2]),
                    vaddq_f32(a.v[3], b.v[3])}};
}
LANES_INLINE lanes lanes_sub(lanes a, lanes b) {
    return (lanes){{vsubq_f32(a.v[0], b.v[0]), vsubq_f32(a.v[1], b.v[1]), vsubq_f32(a.v[2], b.v[2]),
                    vsubq_f32(a.v[3], b.v[3])}};
}
LANES_INLINE lanes lanes_if_less(lanes a, lanes b, lanes yes, lanes no) {
    lanes r;
    for (int i = 0; i < 4; i++)
        r.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), yes.v[i], no.v[i]);
    return r;
}
LANES_INLINE lanes lanes_min(lanes a, lanes b) { /* not vminq_f32, which keeps NaN */
    return lanes_if_less(a, b, a, b);
}
LANES_INLINE lanes lanes_max(lanes a, lanes b) {
    return lanes_if_less(b, a, a, b);
}
LANES_INLINE lanes lanes_within(int begin, int end, lanes in, lanes out) {
    static const int32_t first[4] = {0, 1, 2, 3};
    lanes r;
    for (int i = 0; i < 4; i++) {
        const int32x4_t at = vaddq_s32(vld1q_s32(first), vdupq_n_s32(4 * i));
        const uint32x4_t inside =
            vandq_u32(vcgeq_s32(at, vdupq_n_s32(begin)), vcltq_s32(at, vdupq_n_s32(end)));
        r.v[i] = vbslq_f32(inside, in.v[i], out.v[i]);
    }
    return r;
}
LANES_INLINE lanes lanes_power(lanes t) {
    for (int i = 0; i < 4; i++) {
        const int32x4_t e = vaddq_s32(vreinterpretq_s32_f32(t.v[i]), vdupq_n_s32(127));
        t.v[i] = vreinterpretq_f32_s32(vshlq_n_s32(e, 23));
    }
    return t;
}
LANES_INLINE float lanes_sum(lanes v) {
    const float32x4_t b = vaddq_f32(vaddq_f32(v.v[0], v.v[2]), vaddq_f32(v.v[1], v.v[3]));
    const float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
}
LANES_INLINE float lanes_top(lanes v) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.v[0], v.v[2]), vmaxq_f32(v.v[1], v.v[3])));
}
LANES_INLINE lanes lanes_of_i8(int8x16_t v) {
    const int16x8_t lo = vmovl_s8(vget_low_s8(v)), hi = vmovl_s8(vget_high_s8(v));
    return (lanes){
        {vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo))),
         vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi)))}};
}
LANES_INLINE lanes lanes_load_i4(const uint8_t *p, int shift) {
    const uint8x16_t v =
        vandq_u8(vshlq_u8(vld1q_u8(p), vdupq_n_s8((int8_t)-shift)), vdupq_n_u8(15));
    return lanes_of_i8(vsubq_s8(vreinterpretq_s8_u8(v), vdupq_n_s8(8)));
}
LANES_INLINE void lanes_store_low(int8_t *p, lanes v) {
    uint16x4_t words[4];
    for (int i = 0; i < 4; i++)
        words[i] = vmovn_u32(vreinterpretq_u32_f32(v.v[i]));
    const uint8x8_t lo = vmovn_u16(vcombine_u16(words[0], words[1]));
    const uint8x8_t hi = vmovn_u16(vcombine_u16(words[2], words[3]));
    vst1q_s8(p, vreinterpretq_s8_u8(vcombine_u8(lo, hi)));
}

typedef struct int_lanes {
    int32x4_t v[4];
} int_lanes;
typedef struct quads {
    int8x16_t v[4];
} quads;
LANES_INLINE int_lanes int_lanes_set(int32_t x) {
    const int32x4_t v = vdupq_n_s32(x);
    return (int_lanes){{v, v, v, v}};
}
LANES_INLINE lanes lanes_of_ints(int_lanes v) {
    return (lanes){{vcvtq_f32_s32(v.v[0]), vcvtq_f32_s32(v.v[1]), vcvtq_f32_s32(v.v[2]),
                    vcvtq_f32_s32(v.v[3])}};
}
LANES_INLINE quads quads_load(const int8_t *p) {
    return (quads){{vld1q_s8(p), vld1q_s8(p + 16), vld1q_s8(p + 32), vld1q_s8(p + 48)}};
}
LANES_INLINE int_lanes quads_start(int32_t minus_sum) {
    (void)minus_sum;
    return int_lanes_set(0);
}
LANES_INLINE int_lanes quads_dot(int_lanes s, quads a, const int8_t *x) {
    int32_t bits;
    memcpy(&bits, x, sizeof bits);
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(bits));
    return (int_lanes){{vdotq_s32(s.v[0], a.v[0], four), vdotq_s32(s.v[1], a.v[1], four),
                        vdotq_s32(s.v[2], a.v[2], four), vdotq_s32(s.v[3], a.v[3], four)}};
}
LANES_INLINE int_lanes quads_dot_positive(int_lanes s, quads a, const int8_t *x) {
    return quads_dot(s, a, x);
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
LANES_INLINE lanes lanes_add(lanes a, lanes b) {
    for (int i = 0; i < LANES; i++)
        a.v[i] += b.v[i];
    return a;
}
LANES_INLINE lanes lanes_sub(lanes a, lanes b) {
    for (int i = 0; i < LANES; i++)
        a.v[i] -= b.v[i];
    return a;
}
LANES_INLINE lanes lanes_min(lanes a, lanes b) {
    for (int i = 0; i < LANES; i++)
        a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
}
LANES_INLINE lanes lanes_max(lanes a, lanes b) {
    for (int i = 0; i < LANES; i++)
        a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}
LANES_INLINE lanes lanes_if_less(lanes a, lanes b, lanes yes, lanes no) {
    for (int i = 0; i < LANES; i++)
        a.v[i] = a.v[i] < b.v[i] ? yes.v[i] : no.v[i];
    return a;
}
LANES_INLINE lanes lanes_within(int begin, int end, lanes in, lanes out) {
    for (int i = 0; i < LANES; i++)
        out.v[i] = i >= begin && i < end ? in.v[i] : out.v[i];
    return out;
}
LANES_INLINE lanes lanes_power(lanes t) {
    for (int i = 0; i < LANES; i++) {
        uint32_t e;
        memcpy(&e, &t.v[i], sizeof e);
        e = (e + 127) << 23;
        memcpy(&t.v[i], &e, sizeof e);
    }
    return t;
}
LANES_INLINE float lanes_sum(lanes v) {
    for (int n = LANES / 2; n; n /= 2)
        for (int i = 0; i < n; i++)
            v.v[i] += v.v[i + n];
    return v.v[0];
}
LANES_INLINE float lanes_top(lanes v) {
    for (int n = LANES / 2; n; n /= 2)
        for (int i = 0; i < n; i++)
            v.v[i] = v.v[i] > v.v[i + n] ? v.v[i] : v.v[i + n];
    return v.v[0];
}
LANES_INLINE lanes lanes_load_i4(const uint8_t *p, int shift) {
    lanes r;
    for (int i = 0; i < LANES; i++)
        r.v[i] = (float)((p[i] >> shift & 15) - 8);
    return r;
}
LANES_INLINE void lanes_store_low(int8_t *p, lanes v) {
    uint32_t bits[LANES];
    memcpy(bits, v.v, sizeof bits);
    for (int i = 0; i < LANES; i++)
        p[i] = (int8_t)bits[i];
}

typedef struct int_lanes {
    int32_t v[LANES];
} int_lanes;
typedef struct quads {
    int8_t v[4 * LANES];
} quads;
LANES_INLINE int_lanes int_lanes_set(int32_t x) {
    int_lanes r;
    for (int i = 0; i < LANES; i++)
        r.v[i] = x;
    return r;
}
LANES_INLINE lanes lanes_of_ints(int_lanes v) {
    lanes r;
    for (int i = 0; i < LANES; i++)
        r.v[i] = (float)v.v[i];
    return r;
}
LANES_INLINE quads quads_load(const int8_t *p) {
    quads r;
    memcpy(r.v, p, sizeof r.v);
    return r;
}
LANES_INLINE int_lanes quads_start(int32_t minus_sum) {
    (void)minus_sum;
    return int_lanes_set(0);
}
LANES_INLINE int_lanes quads_dot(int_lanes s, quads a, const int8_t *x) {
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < 4; k++)
            s.v[i] += a.v[4 * i + k] * x[k];
    return s;
}
LANES_INLINE int_lanes quads_dot_positive(int_lanes s, quads a, const int8_t *x) {
    return quads_dot(s, a, x);
}

#endif
#endif
