/* AVX2: the products of quantised weights without VNNI; the rest is float_inl.h at this width.
 *
 * vpmaddubsw multiplies unsigned quants with signed activations and adds pairs in 16 bits, which hold a *run* of
 * lines before they must be widened (vpmaddwd): 8 lines of 4-bit quants (8 * 2 * 15 * 127 = 30480), 4 of 5 bits, 2 of
 * 6 bits. Quants of 8 bits are taken as two planes of 4 bits, the upper one widened with 16. So the integer sum is
 * exact, as at every level, and a line costs a row one multiplication and one addition for 8 columns.
 *
 * Zen 3 and its like start four vector instructions a cycle, loads into registers included, so what counts is
 * their number. One or two rows broadcast their activations as they go and take both halves of a panel at once. More
 * rows, in tiles of 3 to 6, are expanded first: every broadcast, scale and start value of a stretch of k as a whole
 * register in the first-level cache, where instructions take them as operands, for a few panels in turn. */
#include "kernels/cpu/attn_inl.h"
#include "kernels/cpu/float_inl.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/panel.h"

#include <immintrin.h>

enum { MAX_ROWS = 6, HALF = 8 };

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* What a type is, as constants. */
INLINE bool has_offset(td_type t) {
    return panel_layout_get(t)->offset != 0;
}
INLINE int n_planes(td_type t) {
    return t == TD_TYPE_Q8_0 || panel_is_iq4(t) ? 2 : 1;
}
/* Lines a 16-bit sum can take; where a block has two scales, lines under one of them. */
INLINE int run_lines(td_type t) {
    if (t == TD_TYPE_Q6_K) return 2;
    const bool five = t == TD_TYPE_Q5_0 || t == TD_TYPE_Q5_1 || t == TD_TYPE_Q5_K;
    return five || panel_two_scales(t) ? 4 : 8;
}

/* The i-th line to take: a whole block's sum in an order that meets both lines of a byte at once. */
INLINE int line_order(td_type t, int i) {
    return run_lines(t) == 8 ? i >> 1 | (i & 1) << 2 : i;
}

/* Line g of a block, the 32 bytes of one half's 8 rows; of 8-bit quants the lower or the upper 4 bits. */
INLINE __m256i line(td_type t, const uint8_t *group, size_t block, int half, int g, int plane) {
    const panel_layout *l = panel_layout_get(t);
    const __m256i low4 = _mm256_set1_epi8(15);
    const uint8_t *q4 = group + 256 * block + 32 * half, *q8 = group + 512 * block + 32 * half;
    const uint8_t *q2 = group + l->q2 + 128 * block + 32 * half;
    const uint8_t *q1 = group + l->q1 + 64 * block + 32 * half;
#define LOAD(p) _mm256_load_si256((const __m256i *)(const void *)(p))
    if (t == TD_TYPE_Q8_0) {
        const __m256i v = LOAD(q8 + 64 * g);
        return _mm256_and_si256(plane ? _mm256_srli_epi16(v, 4) : v, low4);
    }
    __m256i v = _mm256_setzero_si256();
    int bits = 0;
    if (l->q4 >= 0) {
        v = LOAD(q4 + 64 * (g & 3));
        v = _mm256_and_si256(g & 4 ? _mm256_srli_epi16(v, 4) : v, low4);
        bits = 4;
    }
    if (l->q2 >= 0) {
        const __m256i two = LOAD(q2 + 64 * (g >> 2));
        const int right = 2 * (g & 3) - bits;
        const __m256i moved =
            right >= 0 ? _mm256_srli_epi16(two, right) : _mm256_slli_epi16(two, -right);
        v = _mm256_or_si256(v, _mm256_and_si256(moved, _mm256_set1_epi8((char)(3 << bits))));
        bits += 2;
    }
    if (l->q1 >= 0) {
        const __m256i one = LOAD(q1);
        const int right = g - bits;
        const __m256i moved =
            right >= 0 ? _mm256_srli_epi16(one, right) : _mm256_slli_epi16(one, -right);
        v = _mm256_or_si256(v, _mm256_and_si256(moved, _mm256_set1_epi8((char)(1 << bits))));
    }
#undef LOAD
    if (panel_is_iq4(t)) {
        const __m256i book =
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)panel_iq4_values));
        v = _mm256_shuffle_epi8(_mm256_and_si256(plane ? _mm256_srli_epi16(book, 4) : book, low4),
                                v);
    }
    return v;
}

INLINE __m256i broadcast4(const int8_t *q) {
    int32_t x;
    memcpy(&x, q, 4);
    return _mm256_set1_epi32(x);
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
INLINE void get_scales(td_type t, const uint8_t *group, size_t block, int half, __m256 d[2],
                       __m256 m[2]) {
    const panel_layout *l = panel_layout_get(t);
    const uint8_t *h = group + (l->group == 2 ? 32 * block : 0) + 16 * half; /* f16 planes */
    const uint8_t *sc = group + l->sc + 16 * (size_t)l->scales * block + 8 * half,
                  *mn = sc + (l->mn - l->sc);
    const __m256 all = halves(h + l->d), min = l->dmin >= 0 ? halves(h + l->dmin) : all;
    const __m256 minus = _mm256_set1_ps(-0.0f);
    d[0] = all, m[0] = min;
    if (l->sc < 0) return;
    if (t == TD_TYPE_Q2_K) {
        UNROLL for (int i = 0; i < 2; i++) {
            const __m256i v =
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(sc + 16 * i)));
            d[i] =
                _mm256_mul_ps(all, _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(15))));
            m[i] = _mm256_xor_ps(minus,
                                 _mm256_mul_ps(min, _mm256_cvtepi32_ps(_mm256_srli_epi32(v, 4))));
        }
    } else if (l->mn >= 0) {
        d[0] = _mm256_mul_ps(all, bytes_u(sc));
        m[0] = _mm256_xor_ps(minus, _mm256_mul_ps(min, bytes_u(mn)));
    } else {
        UNROLL for (int i = 0; i < l->scales; i++) d[i] = _mm256_mul_ps(all, bytes_s(sc + 16 * i));
    }
}

/* Minus offset * sum, to start an integer sum with. Offsets are powers of two. */
INLINE __m256i start(td_type t, int32_t minus_sum) {
    const int offset = panel_layout_get(t)->offset;
    return offset ? _mm256_slli_epi32(_mm256_set1_epi32(minus_sum), __builtin_ctz((unsigned)offset))
                  : _mm256_setzero_si256();
}

/* ---- one or two rows ---- */

/* One block for nr rows, from row * n_blocks + block on in the activations. Lines outside, so that no sum waits for
 * its own last addition. */
INLINE void block_rows(td_type t, int nr, const uint8_t *group, size_t block, const kern_acts *a,
                       size_t at, size_t n_blocks, __m256 acc[2][2]) {
    const int n_scales = panel_two_scales(t) ? 2 : 1, run = run_lines(t);
    __m256i s[2][2][2]; /* [scale][half][row] */
    UNROLL for (int r = 0; r < nr; r++) {
        const int32_t *sum = a->sum + KERN_SUMS * (at + (size_t)r * n_blocks);
        UNROLL for (int h = 0; h < 2; h++) {
            s[0][h][r] = start(t, panel_two_scales(t) ? sum[1] : sum[0]);
            s[1][h][r] = start(t, sum[2]);
        }
    }
    UNROLL for (int plane = 0; plane < n_planes(t); plane++)
        UNROLL for (int g0 = 0; g0 < 8; g0 += run) {
        __m256i wide[2][2];
        UNROLL for (int i = 0; i < run; i++) {
            const int g = line_order(t, g0 + i);
            UNROLL for (int h = 0; h < 2; h++) {
                const __m256i w = line(t, group, block, h, g, plane);
                UNROLL for (int r = 0; r < nr; r++) {
                    const int8_t *q = a->q + (at + (size_t)r * n_blocks) * KERN_BLOCK + 4 * g;
                    const __m256i pairs = _mm256_maddubs_epi16(w, broadcast4(q));
                    wide[h][r] = i ? _mm256_add_epi16(wide[h][r], pairs) : pairs;
                }
            }
        }
        const int scale = n_scales == 2 && g0 >= 4;
        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int h = 0; h < 2; h++) s[scale][h][r] =
            _mm256_add_epi32(s[scale][h][r],
                             _mm256_madd_epi16(wide[h][r], _mm256_set1_epi16(plane ? 16 : 1)));
    }
    UNROLL for (int h = 0; h < 2; h++) {
        __m256 d[2], m[2];
        get_scales(t, group, block, h, d, m);
        UNROLL for (int r = 0; r < nr; r++) {
            const size_t i = at + (size_t)r * n_blocks;
            const int32_t *sum = a->sum + KERN_SUMS * i;
            const float scale = a->scale[i];
            __m256 f = _mm256_mul_ps(_mm256_cvtepi32_ps(s[0][h][r]), d[0]);
            if (panel_two_scales(t)) f = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[1][h][r]), d[1], f);
            acc[r][h] = _mm256_fmadd_ps(f, _mm256_set1_ps(scale), acc[r][h]);
            if (panel_has_min(t))
                acc[r][h] = _mm256_fmadd_ps(m[0], _mm256_set1_ps(a->min_scale[i]), acc[r][h]);
            if (t == TD_TYPE_Q2_K) {
                acc[r][h] =
                    _mm256_fmadd_ps(m[0], _mm256_set1_ps(scale * (float)-sum[1]), acc[r][h]);
                acc[r][h] =
                    _mm256_fmadd_ps(m[1], _mm256_set1_ps(scale * (float)-sum[2]), acc[r][h]);
            }
        }
    }
}

/* 16 columns of one row, less where the matrix ends. */
INLINE void store(const kern_mat *mat, int panel, __m256 lo, __m256 hi, float *y) {
    const int left = mat->n_out - panel * KERN_PANEL;
    float out[KERN_PANEL];
    _mm256_storeu_ps(out, lo);
    _mm256_storeu_ps(out + HALF, hi);
    memcpy(y + (size_t)panel * KERN_PANEL, out,
           (size_t)(left < KERN_PANEL ? left : KERN_PANEL) * sizeof(float));
}

INLINE void few_rows(td_type t, int nr, const kern_mat *mat, int begin, int end, const kern_acts *a,
                     float *y, size_t y_stride) {
    const panel_layout *l = panel_layout_get(t);
    const size_t n_blocks = (size_t)mat->n_in / KERN_BLOCK;
    for (int panel = begin; panel < end; panel++) {
        const uint8_t *group = mat->data + (size_t)panel * mat->panel_bytes;
        __m256 acc[2][2] = {{_mm256_setzero_ps(), _mm256_setzero_ps()},
                            {_mm256_setzero_ps(), _mm256_setzero_ps()}};
        for (size_t at = 0, block = 0; at < n_blocks; at++, block++) {
            if (block == (size_t)l->group) block = 0, group += l->group_bytes;
            panel_prefetch(t, group, block);
            block_rows(t, nr, group, block, a, at, n_blocks, acc);
        }
        for (int r = 0; r < nr; r++)
            store(mat, panel, acc[r][0], acc[r][1], y + (size_t)r * y_stride);
    }
}

/* ---- tiles ---- */

enum { STRETCH = 8, PANELS = 8, FAR = 4, NEAR = 1 };

/* One row's activations of one block. */
typedef struct expanded {
    __m256i x[8];          /* by line, 4 activations eight times */
    __m256i start[2];      /* of the integer sums */
    __m256 scale, mins[2]; /* what minima are multiplied with */
} expanded;

INLINE void expand(td_type t, const kern_acts *a, size_t at, expanded *e) {
    const int8_t *q = a->q + at * KERN_BLOCK;
    const int32_t *sum = a->sum + KERN_SUMS * at;
    UNROLL for (int g = 0; g < 8; g++) e->x[g] = broadcast4(q + 4 * g);
    e->start[0] = start(t, panel_two_scales(t) ? sum[1] : sum[0]);
    if (panel_two_scales(t)) e->start[1] = start(t, sum[2]);
    e->scale = _mm256_set1_ps(a->scale[at]);
    e->mins[0] =
        _mm256_set1_ps(t == TD_TYPE_Q2_K ? a->scale[at] * (float)-sum[1] : a->min_scale[at]);
    if (t == TD_TYPE_Q2_K) e->mins[1] = _mm256_set1_ps(a->scale[at] * (float)-sum[2]);
}

/* Half a block, 8 columns, for nr rows. */
INLINE void tile(td_type t, int nr, const uint8_t *group, size_t block, int half, const expanded *e,
                 __m256 acc[MAX_ROWS]) {
    const int run = run_lines(t);
    __m256i s[MAX_ROWS];
    __m256 f[MAX_ROWS], d[2], m[2];
    get_scales(t, group, block, half, d, m);
    UNROLL for (int plane = 0; plane < n_planes(t); plane++)
        UNROLL for (int g0 = 0; g0 < 8; g0 += run) {
        __m256i wide[MAX_ROWS];
        UNROLL for (int i = 0; i < run; i++) {
            const int g = line_order(t, g0 + i);
            const __m256i w = line(t, group, block, half, g, plane);
            UNROLL for (int r = 0; r < nr; r++) {
                const __m256i pairs = _mm256_maddubs_epi16(w, e[r].x[g]);
                wide[r] = i ? _mm256_add_epi16(wide[r], pairs) : pairs;
            }
        }
        const __m256i widen = _mm256_set1_epi16(plane ? 16 : 1);
        const bool second = panel_two_scales(t) && g0 >= 4;
        const bool first = !plane && (g0 == 0 || (second && g0 == 4));
        UNROLL for (int r = 0; r < nr; r++) {
            const __m256i sum = _mm256_madd_epi16(wide[r], widen);
            s[r] = !first          ? _mm256_add_epi32(s[r], sum)
                   : has_offset(t) ? _mm256_add_epi32(sum, e[r].start[second])
                                   : sum;
        }
        if (panel_two_scales(t) && g0 + run == 4)
            UNROLL for (int r = 0; r < nr; r++) f[r] =
                _mm256_mul_ps(_mm256_cvtepi32_ps(s[r]), d[0]);
    }
    UNROLL for (int r = 0; r < nr; r++) {
        const __m256 v = _mm256_cvtepi32_ps(s[r]);
        f[r] = panel_two_scales(t) ? _mm256_fmadd_ps(v, d[1], f[r]) : _mm256_mul_ps(v, d[0]);
        acc[r] = _mm256_fmadd_ps(f[r], e[r].scale, acc[r]);
        if (panel_has_min(t) || t == TD_TYPE_Q2_K)
            acc[r] = _mm256_fmadd_ps(m[0], e[r].mins[0], acc[r]);
        if (t == TD_TYPE_Q2_K) acc[r] = _mm256_fmadd_ps(m[1], e[r].mins[1], acc[r]);
    }
}

/* What is read n stretches after the one of `panel` from block `at` on: a panel's next one comes once all panels had
 * theirs. */
INLINE const uint8_t *stretch_after(td_type t, const kern_mat *mat, int begin, int end, int panel,
                                    size_t at, int n) {
    const panel_layout *l = panel_layout_get(t);
    const int later = panel - begin + n, n_panels = end - begin;
    return mat->data + (size_t)(begin + later % n_panels) * mat->panel_bytes +
           (at + (size_t)(later / n_panels) * STRETCH) / (size_t)l->group * (size_t)l->group_bytes;
}

/* Rows [first, first + nr) against at most PANELS panels. */
INLINE void tile_panels(td_type t, int nr, const kern_mat *mat, int begin, int end,
                        const kern_acts *a, int first, float *y, size_t y_stride) {
    const panel_layout *l = panel_layout_get(t);
    const size_t n_blocks = (size_t)mat->n_in / KERN_BLOCK, size = (size_t)l->group;
    __m256 acc[PANELS][2][MAX_ROWS];
    memset(acc, 0, sizeof acc);
    for (size_t at = 0; at < n_blocks; at += STRETCH) { /* whole groups: 2 or 8 blocks each */
        const size_t n = n_blocks - at < STRETCH ? n_blocks - at : STRETCH;
        expanded e[STRETCH][MAX_ROWS];
        for (size_t i = 0; i < n; i++)
            for (int r = 0; r < nr; r++)
                expand(t, a, ((size_t)first + (size_t)r) * n_blocks + at + i, &e[i][r]);
        for (int panel = begin; panel < end; panel++) {
            const uint8_t *data = mat->data + (size_t)panel * mat->panel_bytes;
            const uint8_t *groups = data + at / size * (size_t)l->group_bytes;
            const uint8_t *far = stretch_after(t, mat, begin, end, panel, at, FAR);
            const uint8_t *near = stretch_after(t, mat, begin, end, panel, at, NEAR);
            for (int h = 0; h < 2; h++) {
                __m256 *kept = acc[panel - begin][h], sums[MAX_ROWS];
                UNROLL for (int r = 0; r < nr; r++) sums[r] = kept[r];
                for (size_t i = 0; i < n; i++) {
                    const size_t half_bytes = (size_t)l->group_bytes / size / 2;
                    const size_t share = (2 * i + (size_t)h) * half_bytes;
                    UNROLL for (size_t b = share; b < share + half_bytes; b += 64) {
                        __builtin_prefetch(far + b, 0, 2);
                        __builtin_prefetch(near + b, 0, 3);
                    }
                    tile(t, nr, groups + i / size * (size_t)l->group_bytes, i % size, h, e[i],
                         sums);
                }
                UNROLL for (int r = 0; r < nr; r++) kept[r] = sums[r];
            }
        }
    }
    for (int panel = begin; panel < end; panel++)
        for (int r = 0; r < nr; r++)
            store(mat, panel, acc[panel - begin][0][r], acc[panel - begin][1][r],
                  y + (size_t)(first + r) * y_stride);
}

INLINE void gemm(td_type t, const kern_mat *mat, int begin, int end, const kern_acts *a, float *y,
                 size_t y_stride) {
    if (a->n_rows == 1) return few_rows(t, 1, mat, begin, end, a, y, y_stride);
    if (a->n_rows == 2) return few_rows(t, 2, mat, begin, end, a, y, y_stride);
    const int parts = (a->n_rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int p = begin; p < end; p += PANELS) {
        const int e = end - p < PANELS ? end : p + PANELS;
        for (int i = 0, first = 0; i < parts; i++) { /* even parts */
            const int nr = (a->n_rows - first) / (parts - i);
            switch (nr) {
            case 3:
                tile_panels(t, 3, mat, p, e, a, first, y, y_stride);
                break;
            case 4:
                tile_panels(t, 4, mat, p, e, a, first, y, y_stride);
                break;
            case 5:
                tile_panels(t, 5, mat, p, e, a, first, y, y_stride);
                break;
            default:
                tile_panels(t, 6, mat, p, e, a, first, y, y_stride);
            }
            first += nr;
        }
    }
}

#define GEMM(t)                                                                                    \
    static void gemm_##t(const kern_mat *w, int begin, int end, const kern_acts *a, float *y,      \
                         size_t y_stride) {                                                        \
        gemm(TD_TYPE_##t, w, begin, end, a, y, y_stride);                                          \
    }

PANEL_TYPES(GEMM)

void kern_init_avx2(kern_table *k) {
    k->level = "avx2";
    kern_init_float(k);
    kern_init_attn(k);
#define SET(t) k->gemm[TD_TYPE_##t] = gemm_##t;
    PANEL_TYPES(SET)
#undef SET
}
