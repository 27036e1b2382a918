/* AVX2: the products of quantised weights without VNNI; the rest is float_inl.h at this width.
 *
 * vpmaddubsw multiplies unsigned quants with signed activations and adds pairs in 16 bits, which hold a *run* of
 * lines before they must be widened (vpmaddwd): 8 lines of 4-bit quants (8 * 2 * 15 * 127 = 30480), 4 of 5 bits, 2 of
 * 6 bits. Quants of 8 bits are taken as two planes of 4 bits, the upper one widened with 16. So the integer sum is
 * exact, as at every level, and a line costs a row one multiplication and one addition for 8 columns.
 *
 * A tile is one block against 1..6 rows, from one template inlined once a type and a number of rows. Up to 6 rows
 * unpack as they go; more share a block that was unpacked into the first-level cache. */
#include "kernels/cpu/float_inl.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/panel.h"

#include <immintrin.h>

enum { MAX_ROWS = 6, HALF = 8, PREFETCH_BYTES = 4096 };

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* What a type is, as constants. */
INLINE bool is_iq4(td_type t) {
    return t == TD_TYPE_IQ4_NL || t == TD_TYPE_IQ4_XS;
}
INLINE bool has_min(td_type t) {
    return t == TD_TYPE_Q4_1 || t == TD_TYPE_Q5_1 || t == TD_TYPE_Q4_K || t == TD_TYPE_Q5_K;
}
INLINE bool two_scales(td_type t) {
    return panel_layout_get(t)->scales == 2;
}
INLINE int n_planes(td_type t) {
    return t == TD_TYPE_Q8_0 || is_iq4(t) ? 2 : 1;
}
/* Lines a 16-bit sum can take; where a block has two scales, lines under one of them. */
INLINE int run_lines(td_type t) {
    if (t == TD_TYPE_Q6_K) return 2;
    const bool five = t == TD_TYPE_Q5_0 || t == TD_TYPE_Q5_1 || t == TD_TYPE_Q5_K;
    return five || two_scales(t) ? 4 : 8;
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
    if (is_iq4(t)) {
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

/* A block: where it lies, and when many rows share it, unpacked. 8 columns a register, two halves. */
typedef struct unpacked {
    __m256i w[2][8][2];      /* [plane][line][half] */
    __m256 d[2][2], m[2][2]; /* [half] */
} unpacked;

typedef struct block_ref {
    const uint8_t *group;
    size_t block;
    bool ready; /* u holds it; otherwise it is unpacked as it is needed */
    const unpacked *u;
} block_ref;

INLINE void unpack(td_type t, const uint8_t *group, size_t block, unpacked *u) {
    UNROLL for (int plane = 0; plane < n_planes(t); plane++) UNROLL for (int g = 0; g < 8; g++)
        UNROLL for (int h = 0; h < 2; h++) u->w[plane][g][h] = line(t, group, block, h, g, plane);
    UNROLL for (int h = 0; h < 2; h++) get_scales(t, group, block, h, u->d[h], u->m[h]);
}

/* Adds lines [begin, end) of nr rows, q_stride apart, to their integer sums. Lines outside, so
 * that a line is loaded once and no sum waits for its own last addition. */
INLINE void dot(td_type t, int nr, const block_ref *b, int begin, int end, const int8_t *q,
                size_t q_stride, __m256i s[2][MAX_ROWS]) {
    const int run = run_lines(t);
    UNROLL for (int plane = 0; plane < n_planes(t); plane++)
        UNROLL for (int g0 = begin; g0 < end; g0 += run) {
        __m256i wide[2][MAX_ROWS];
        UNROLL for (int i = 0; i < run; i++) {
            /* a whole block in an order that meets both lines of a byte at once */
            const int g = run == 8 ? i >> 1 | (i & 1) << 2 : g0 + i;
            __m256i w[2];
            UNROLL for (int h = 0; h < 2; h++) w[h] =
                b->ready ? b->u->w[plane][g][h] : line(t, b->group, b->block, h, g, plane);
            UNROLL for (int r = 0; r < nr; r++) {
                const __m256i x = broadcast4(q + (size_t)r * q_stride + 4 * g);
                UNROLL for (int h = 0; h < 2; h++) {
                    const __m256i pairs = _mm256_maddubs_epi16(w[h], x);
                    wide[h][r] = i ? _mm256_add_epi16(wide[h][r], pairs) : pairs;
                }
            }
        }
        const __m256i widen = _mm256_set1_epi16(plane ? 16 : 1);
        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int h = 0; h < 2; h++) s[h][r] =
            _mm256_add_epi32(s[h][r], _mm256_madd_epi16(wide[h][r], widen));
    }
}

/* One block for nr rows, from row * n_blocks + block on in the activations. */
INLINE void tile(td_type t, int nr, const block_ref *b, const kern_acts *a, size_t at,
                 size_t n_blocks, __m256 (*acc)[2]) {
    const int8_t *q = a->q + at * KERN_BLOCK;
    __m256i s[2][2][MAX_ROWS];
    UNROLL for (int r = 0; r < nr; r++) {
        const int32_t *sum = a->sum + 2 * (at + (size_t)r * n_blocks);
        UNROLL for (int h = 0; h < 2; h++) {
            s[0][h][r] = start(t, two_scales(t) ? sum[1] : sum[0]);
            if (two_scales(t)) s[1][h][r] = start(t, sum[0] - sum[1]);
        }
    }
    dot(t, nr, b, 0, two_scales(t) ? 4 : 8, q, n_blocks * KERN_BLOCK, s[0]);
    if (two_scales(t)) dot(t, nr, b, 4, 8, q, n_blocks * KERN_BLOCK, s[1]);
    UNROLL for (int h = 0; h < 2; h++) {
        __m256 d[2], m[2];
        if (b->ready) {
            d[0] = b->u->d[h][0], d[1] = b->u->d[h][1], m[0] = b->u->m[h][0], m[1] = b->u->m[h][1];
        } else {
            get_scales(t, b->group, b->block, h, d, m);
        }
        UNROLL for (int r = 0; r < nr; r++) {
            const size_t i = at + (size_t)r * n_blocks;
            const int32_t *sum = a->sum + 2 * i;
            const float scale = a->scale[i];
            __m256 f = _mm256_mul_ps(_mm256_cvtepi32_ps(s[0][h][r]), d[0]);
            if (two_scales(t)) f = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[1][h][r]), d[1], f);
            __m256 v = _mm256_fmadd_ps(f, _mm256_set1_ps(scale), acc[r][h]);
            if (has_min(t)) v = _mm256_fmadd_ps(m[0], _mm256_set1_ps(a->min_scale[i]), v);
            if (t == TD_TYPE_Q2_K) {
                v = _mm256_fmadd_ps(m[0], _mm256_set1_ps(scale * (float)-sum[1]), v);
                v = _mm256_fmadd_ps(m[1], _mm256_set1_ps(scale * (float)(sum[1] - sum[0])), v);
            }
            acc[r][h] = v;
        }
    }
}

/* This block's share of what comes PREFETCH_BYTES later. */
INLINE void prefetch(td_type t, const uint8_t *group, size_t block) {
    const panel_layout *l = panel_layout_get(t);
    const size_t block_bytes = (size_t)(l->group_bytes / l->group);
    const char *ahead = (const char *)group + PREFETCH_BYTES + block_bytes * block;
    UNROLL for (size_t i = 0; i < block_bytes; i += 64) _mm_prefetch(ahead + i, _MM_HINT_T0);
}

INLINE void store(const kern_mat *mat, int panel, int nr, __m256 (*acc)[2], float *y,
                  size_t y_stride) {
    const int left = mat->n_out - panel * KERN_PANEL;
    for (int r = 0; r < nr; r++)
        memcpy(y + (size_t)r * y_stride + (size_t)panel * KERN_PANEL, acc[r],
               (size_t)(left < KERN_PANEL ? left : KERN_PANEL) * sizeof(float));
}

INLINE void few_rows(td_type t, int nr, const kern_mat *mat, int begin, int end, const kern_acts *a,
                     float *y, size_t y_stride) {
    const panel_layout *l = panel_layout_get(t);
    const size_t n_blocks = (size_t)mat->n_in / KERN_BLOCK;
    for (int panel = begin; panel < end; panel++) {
        block_ref b = {.group = mat->data + (size_t)panel * mat->panel_bytes};
        __m256 acc[MAX_ROWS][2];
        UNROLL for (int r = 0; r < nr; r++) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
        for (size_t at = 0; at < n_blocks; at++, b.block++) {
            if (b.block == (size_t)l->group) b.block = 0, b.group += l->group_bytes;
            prefetch(t, b.group, b.block);
            tile(t, nr, &b, a, at, n_blocks, acc);
        }
        store(mat, panel, nr, acc, y, y_stride);
    }
}

/* More rows: CHUNK of them at a time, whose sums stay in the first-level cache beside STRETCH blocks unpacked. */
enum { CHUNK = 60, STRETCH = 8 };

/* nr rows against a stretch of n blocks. */
INLINE void stretch_rows(td_type t, int nr, const unpacked *u, int n, const kern_acts *a, size_t at,
                         size_t n_blocks, __m256 (*sums)[2]) {
    __m256 acc[MAX_ROWS][2];
    UNROLL for (int r = 0; r < nr; r++) acc[r][0] = sums[r][0], acc[r][1] = sums[r][1];
    for (int i = 0; i < n; i++) {
        const block_ref b = {.ready = true, .u = u + i};
        tile(t, nr, &b, a, at + (size_t)i, n_blocks, acc);
    }
    UNROLL for (int r = 0; r < nr; r++) sums[r][0] = acc[r][0], sums[r][1] = acc[r][1];
}

INLINE void chunk_panel(td_type t, int n_rows, const kern_mat *mat, int panel, const kern_acts *a,
                        int first, float *y, size_t y_stride) {
    const panel_layout *l = panel_layout_get(t);
    const size_t n_blocks = (size_t)mat->n_in / KERN_BLOCK;
    const int parts = (n_rows + MAX_ROWS - 1) / MAX_ROWS;
    const uint8_t *panel_data = mat->data + (size_t)panel * mat->panel_bytes;
    __m256 acc[CHUNK][2];
    memset(acc, 0, (size_t)n_rows * sizeof *acc);
    for (size_t at = 0; at < n_blocks; at += STRETCH) {
        const int n = n_blocks - at < STRETCH ? (int)(n_blocks - at) : STRETCH;
        unpacked u[STRETCH];
        for (size_t i = 0; i < (size_t)n; i++) { /* a group holds 2 blocks or 8 */
            const size_t size = (size_t)l->group;
            const uint8_t *group = panel_data + (at + i) / size * (size_t)l->group_bytes;
            prefetch(t, group, i % size);
            unpack(t, group, i % size, &u[i]);
        }
        for (int i = 0, r = 0; i < parts; i++) { /* even parts */
            const int nr = (n_rows - r) / (parts - i);
            const size_t from = ((size_t)first + (size_t)r) * n_blocks + at;
            switch (nr) {
            case 3:
                stretch_rows(t, 3, u, n, a, from, n_blocks, acc + r);
                break;
            case 4:
                stretch_rows(t, 4, u, n, a, from, n_blocks, acc + r);
                break;
            case 5:
                stretch_rows(t, 5, u, n, a, from, n_blocks, acc + r);
                break;
            default:
                stretch_rows(t, 6, u, n, a, from, n_blocks, acc + r);
            }
            r += nr;
        }
    }
    store(mat, panel, n_rows, acc, y + (size_t)first * y_stride, y_stride);
}

INLINE void gemm(td_type t, const kern_mat *mat, int begin, int end, const kern_acts *a, float *y,
                 size_t y_stride) {
    if (a->n_rows == 1) return few_rows(t, 1, mat, begin, end, a, y, y_stride);
    if (a->n_rows == 2) return few_rows(t, 2, mat, begin, end, a, y, y_stride);
    /* What unpacks in two steps a line costs less than a stretch's way through the cache. */
    if (run_lines(t) == 8 && n_planes(t) == 1) switch (a->n_rows) {
        case 3:
            return few_rows(t, 3, mat, begin, end, a, y, y_stride);
        case 4:
            return few_rows(t, 4, mat, begin, end, a, y, y_stride);
        case 5:
            return few_rows(t, 5, mat, begin, end, a, y, y_stride);
        case 6:
            return few_rows(t, 6, mat, begin, end, a, y, y_stride);
        }
    const int chunks = (a->n_rows + CHUNK - 1) / CHUNK;
    for (int panel = begin; panel < end; panel++)
        for (int i = 0, first = 0; i < chunks; i++) {
            const int n = (a->n_rows - first) / (chunks - i);
            chunk_panel(t, n, mat, panel, a, first, y, y_stride);
            first += n;
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
#define SET(t) k->gemm[TD_TYPE_##t] = gemm_##t;
    PANEL_TYPES(SET)
#undef SET
}
