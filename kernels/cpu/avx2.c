/* AVX2: the products of quantised weights without VNNI; the rest is float_inl.h at this width.
 *
 * A panel is done in two halves of 8 rows. vpmaddubsw multiplies unsigned quants with signed activations and
 * adds pairs in 16 bits, which saturate at 32767: 8 lines of 4-bit quants fit (8 * 2 * 15 * 127 = 30480),
 * 4 of 5 bits, 2 of 6 bits; then vpmaddwd widens. 8-bit quants go signed: |w| times the activation with w's
 * sign (2 * 128 * 127 = 32512). So the integer sum is exact, as at every level. */
#include "kernels/cpu/float_inl.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/panel.h"

#include <immintrin.h>

enum { MAX_ROWS = 4, HALF = 8, PREFETCH_BYTES = 2304 };

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* What a type is, as constants: the same facts as panel.h's table, where the compiler can see them. */
INLINE int max_quant(td_type t) {
    switch (t) {
    case TD_TYPE_Q8_0:
    case TD_TYPE_IQ4_NL:
    case TD_TYPE_IQ4_XS: return 255;
    case TD_TYPE_Q6_K: return 63;
    case TD_TYPE_Q5_0:
    case TD_TYPE_Q5_1:
    case TD_TYPE_Q5_K: return 31;
    default: return 15;
    }
}
INLINE bool is_wide(td_type t) {
    return max_quant(t) == 255;
}

/* Line g of a block, the 32 bytes of one half's 8 rows. Wide types come out signed. */
INLINE __m256i line(td_type t, const panel_layout *l, const uint8_t *group, int block, int half, int g) {
    const uint8_t *at = group + 32 * half;
#define LOAD(offset) _mm256_load_si256((const __m256i *)(const void *)(at + (offset)))
    if (t == TD_TYPE_Q8_0)
        return _mm256_xor_si256(LOAD(512 * block + 64 * g), _mm256_set1_epi8((char)0x80));
    __m256i v = _mm256_setzero_si256();
    int bits = 0;
    if (t != TD_TYPE_Q2_K && t != TD_TYPE_Q3_K) {
        v = LOAD(256 * block + 64 * (g & 3));
        if (g & 4) v = _mm256_srli_epi16(v, 4);
        v = _mm256_and_si256(v, _mm256_set1_epi8(15));
        bits = 4;
    }
    if (t == TD_TYPE_Q6_K || t == TD_TYPE_Q2_K || t == TD_TYPE_Q3_K) {
        const __m256i two = LOAD(l->q2 + 128 * block + 64 * (g >> 2));
        const int right = 2 * (g & 3) - bits;
        const __m256i moved =
            right >= 0 ? _mm256_srli_epi16(two, right) : _mm256_slli_epi16(two, -right);
        v = _mm256_or_si256(v, _mm256_and_si256(moved, _mm256_set1_epi8((char)(3 << bits))));
        bits += 2;
    }
    if (max_quant(t) == 31 || t == TD_TYPE_Q3_K) {
        const __m256i one = LOAD(l->q1 + 64 * block);
        const int right = g - bits;
        const __m256i moved =
            right >= 0 ? _mm256_srli_epi16(one, right) : _mm256_slli_epi16(one, -right);
        v = _mm256_or_si256(v, _mm256_and_si256(moved, _mm256_set1_epi8((char)(1 << bits))));
    }
    if (t == TD_TYPE_IQ4_NL || t == TD_TYPE_IQ4_XS) {
        const __m256i book = _mm256_xor_si256(
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)panel_iq4_values)),
            _mm256_set1_epi8((char)0x80));
        v = _mm256_shuffle_epi8(book, v);
    }
#undef LOAD
    return v;
}

/* Adds the products of lines [g0, g0 + 4) to the rows' integer sums. */
INLINE void dot4(td_type t, int nr, const panel_layout *l, const uint8_t *group, int block, int half,
                 int g0, const int8_t *q, size_t q_stride, __m256i s[MAX_ROWS]) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int run = is_wide(t) ? 1 : max_quant(t) == 63 ? 2 : 4; /* lines a 16-bit sum can take */
    UNROLL for (int g = g0; g < g0 + 4; g += run) {
        __m256i wide[MAX_ROWS];
        UNROLL for (int i = 0; i < run; i++) {
            const __m256i w = line(t, l, group, block, half, g + i);
            UNROLL for (int r = 0; r < nr; r++) {
                int32_t x4;
                memcpy(&x4, q + (size_t)r * q_stride + 4 * (g + i), 4);
                const __m256i x = _mm256_set1_epi32(x4);
                const __m256i pairs = is_wide(t) ? _mm256_maddubs_epi16(_mm256_abs_epi8(w),
                                                                        _mm256_sign_epi8(x, w))
                                                 : _mm256_maddubs_epi16(w, x);
                wide[r] = i ? _mm256_add_epi16(wide[r], pairs) : pairs;
            }
        }
        UNROLL for (int r = 0; r < nr; r++)
            s[r] = _mm256_add_epi32(s[r], _mm256_madd_epi16(wide[r], ones));
    }
}

INLINE __m256 halves(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)p));
}
INLINE __m256 bytes_u(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE __m256 bytes_s(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* Scales and minima (with their sign) of one block for 8 rows. */
INLINE void get_scales(td_type t, const panel_layout *l, const uint8_t *group, int b, int half,
                       __m256 d[2], __m256 m[2]) {
    const uint8_t *g = group + 8 * half; /* byte planes */
    const int plane = l->group == 2 ? 32 * b : 0;
    const __m256 all = halves(group + l->d + plane + 16 * half);
    const __m256 minus = _mm256_set1_ps(-0.0f);
    d[0] = all;
    if (t == TD_TYPE_Q4_1 || t == TD_TYPE_Q5_1) m[0] = halves(group + l->dmin + plane + 16 * half);
    if (t == TD_TYPE_Q4_K || t == TD_TYPE_Q5_K) {
        const __m256 min = halves(group + l->dmin + 16 * half);
        d[0] = _mm256_mul_ps(all, bytes_u(g + l->sc + 16 * b));
        m[0] = _mm256_xor_ps(minus, _mm256_mul_ps(min, bytes_u(g + l->mn + 16 * b)));
    }
    if (t == TD_TYPE_IQ4_XS) d[0] = _mm256_mul_ps(all, bytes_s(g + l->sc + 16 * b));
    if (t == TD_TYPE_Q6_K || t == TD_TYPE_Q3_K) {
        d[0] = _mm256_mul_ps(all, bytes_s(g + l->sc + 32 * b));
        d[1] = _mm256_mul_ps(all, bytes_s(g + l->sc + 32 * b + 16));
    }
    if (t == TD_TYPE_Q2_K) {
        const __m256 min = halves(group + l->dmin + 16 * half);
        UNROLL for (int i = 0; i < 2; i++) {
            const __m256i v = _mm256_cvtepu8_epi32(
                _mm_loadl_epi64((const __m128i *)(g + l->sc + 32 * b + 16 * i)));
            d[i] = _mm256_mul_ps(all, _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(15))));
            m[i] = _mm256_xor_ps(minus,
                                 _mm256_mul_ps(min, _mm256_cvtepi32_ps(_mm256_srli_epi32(v, 4))));
        }
    }
}

/* Minus offset * sum, to start an integer sum with (wide types are signed already). */
INLINE __m256i start(td_type t, const panel_layout *l, int32_t minus_sum) {
    return is_wide(t) || t == TD_TYPE_Q2_K ? _mm256_setzero_si256()
                                           : _mm256_set1_epi32(l->offset * minus_sum);
}

INLINE void gemm_rows(td_type t, int nr, const kern_mat *mat, int panel, const kern_acts *a, int first,
                      float *y, size_t y_stride) {
    const panel_layout *l = panel_layout_get(t);
    const bool two = t == TD_TYPE_Q6_K || t == TD_TYPE_Q2_K || t == TD_TYPE_Q3_K;
    const bool min = t == TD_TYPE_Q4_1 || t == TD_TYPE_Q5_1 || t == TD_TYPE_Q4_K || t == TD_TYPE_Q5_K;
    const int n_blocks = mat->n_in / KERN_BLOCK;
    const size_t blk0 = (size_t)first * (size_t)n_blocks, q_stride = (size_t)mat->n_in;
    for (int half = 0; half < 2; half++) {
        const int left = mat->n_out - panel * KERN_PANEL - half * HALF;
        if (left <= 0) break;
        __m256 acc[MAX_ROWS];
        UNROLL for (int r = 0; r < nr; r++) acc[r] = _mm256_setzero_ps();
        const uint8_t *group = mat->data + (size_t)panel * mat->panel_bytes;
        for (int at = 0, b = 0; at < n_blocks; at++, b++) {
            if (b == l->group) b = 0, group += l->group_bytes;
            _mm_prefetch((const char *)group + PREFETCH_BYTES + l->group_bytes / l->group * b,
                         _MM_HINT_T0);
            _mm_prefetch((const char *)group + PREFETCH_BYTES + l->group_bytes / l->group * b + 64 * 2,
                         _MM_HINT_T0);
            const int8_t *q = a->q + (blk0 + (size_t)at) * KERN_BLOCK;
            __m256 d[2], m[2];
            __m256i s[2][MAX_ROWS];
            get_scales(t, l, group, b, half, d, m);
            UNROLL for (int r = 0; r < nr; r++) {
                const int32_t *sum = a->sum + 2 * (blk0 + (size_t)r * (size_t)n_blocks + (size_t)at);
                s[0][r] = start(t, l, two ? sum[1] : sum[0]);
                if (two) s[1][r] = start(t, l, sum[0] - sum[1]);
            }
            dot4(t, nr, l, group, b, half, 0, q, q_stride, s[0]);
            dot4(t, nr, l, group, b, half, 4, q, q_stride, s[two ? 1 : 0]);
            UNROLL for (int r = 0; r < nr; r++) {
                const size_t i = blk0 + (size_t)r * (size_t)n_blocks + (size_t)at;
                const __m256 xs = _mm256_set1_ps(a->scale[i]);
                __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(s[0][r]), d[0]);
                if (two) v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[1][r]), d[1], v);
                acc[r] = _mm256_fmadd_ps(v, xs, acc[r]);
                if (min) acc[r] = _mm256_fmadd_ps(m[0], _mm256_set1_ps(a->min_scale[i]), acc[r]);
                if (t == TD_TYPE_Q2_K) {
                    const int32_t s0 = -a->sum[2 * i + 1], s1 = -a->sum[2 * i] - s0;
                    acc[r] = _mm256_fmadd_ps(m[0], _mm256_set1_ps(a->scale[i] * (float)s0), acc[r]);
                    acc[r] = _mm256_fmadd_ps(m[1], _mm256_set1_ps(a->scale[i] * (float)s1), acc[r]);
                }
            }
        }
        UNROLL for (int r = 0; r < nr; r++) {
            float out[HALF];
            _mm256_storeu_ps(out, acc[r]);
            memcpy(y + (size_t)(first + r) * y_stride + (size_t)panel * KERN_PANEL + half * HALF, out,
                   (size_t)(left < HALF ? left : HALF) * sizeof *out);
        }
    }
}

#define GEMM(t) \
    static void gemm_##t(const kern_mat *w, int begin, int end, const kern_acts *a, float *y, \
                            size_t y_stride) { \
        for (int p = begin; p < end; p++) \
            for (int first = 0; first < a->n_rows; first += MAX_ROWS) \
                switch (a->n_rows - first) { \
                case 1: gemm_rows(TD_TYPE_##t, 1, w, p, a, first, y, y_stride); break; \
                case 2: gemm_rows(TD_TYPE_##t, 2, w, p, a, first, y, y_stride); break; \
                case 3: gemm_rows(TD_TYPE_##t, 3, w, p, a, first, y, y_stride); break; \
                default: gemm_rows(TD_TYPE_##t, 4, w, p, a, first, y, y_stride); \
                } \
    }

PANEL_TYPES(GEMM)

void kern_init_avx2(kern_table *k) {
    k->level = "avx2";
    kern_init_float(k);
#define SET(t) k->gemm[TD_TYPE_##t] = gemm_##t;
    PANEL_TYPES(SET)
#undef SET
}
