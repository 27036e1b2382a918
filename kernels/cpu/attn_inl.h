/* Attention over one page, once for every level, as float_inl.h is.
 *
 * Scores and values are the same work: lines of the page (a dimension of 32 keys, or a position's value) times one
 * number a query, added up. It is done in tiles of queries by positions, or queries by value columns, whose sums stay
 * in registers while the lines pass by, so that a line is loaded and converted once a tile. Each sum has the order of
 * one query alone: the shape of a tile cannot show in the bits.
 *
 * Every step asks for the same line of the next page: pages lie far apart, where no prefetcher of the machine follows,
 * and with few queries the page at hand is done about when the next one has come. It comes into the second-level cache:
 * two pages of 16 KB do not fit the first. */
#ifndef TD_KERNELS_ATTN_INL_H
#define TD_KERNELS_ATTN_INL_H

#include "kernels/cpu/float_inl.h"

/* A tile: as many sums as leave registers for a line and a number: 24 of the 32 of AVX-512 and of NEON, 12 of the 16
 * of AVX2. */
#if defined(__AVX512F__)
enum { TILE_QUERIES = 12, TILE_LANES = 2 };
#define ATTN_COUNTS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#else
enum { TILE_QUERIES = 6, TILE_LANES = 1 };
#define ATTN_COUNTS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif
enum { TILE = TILE_LANES * LANES, LINE_BYTES = 64 };

#define UNROLL_TILE _Pragma("GCC unroll 16")
/* Lines under one sum of integers: in a loop of them GCC moves AVX-512's sums from register to register, 1.5 times the
 * cycles with 12 queries; written out, they make it spill AVX2's. */
#if defined(__AVX512F__)
#define UNROLL_LINES UNROLL_TILE
#else
#define UNROLL_LINES
#endif

typedef lanes attn_sums[TILE_QUERIES][TILE_LANES];

/* The same as fast_exp, lane by lane. */
LANES_INLINE lanes lanes_exp(lanes x) {
    const lanes big = lanes_set(12582912.0f), one = lanes_set(1.0f);
    const lanes y = lanes_max(lanes_min(x, lanes_set(88.0f)), lanes_set(-87.0f));
    const lanes t = lanes_fma(y, lanes_set(1.44269504f), big), n = lanes_sub(t, big);
    lanes r = lanes_fma(n, lanes_set(-0.693145752f), y);
    r = lanes_fma(n, lanes_set(-1.42860677e-6f), r);
    lanes p = lanes_fma(r, lanes_set(1.38888889e-3f), lanes_set(8.33333333e-3f));
    p = lanes_fma(p, r, lanes_set(4.16666667e-2f));
    p = lanes_fma(p, r, lanes_set(1.66666667e-1f));
    p = lanes_fma(p, r, lanes_set(0.5f));
    p = lanes_fma(p, r, one);
    p = lanes_fma(p, r, one);
    return lanes_if_less(x, lanes_set(-87.0f), lanes_set(0), lanes_mul(p, lanes_power(t)));
}

/* 16 values. Quantised ones: times their scales; shift: which half of the bytes. */
LANES_INLINE lanes load_kv(const uint8_t *p, kern_kv_type type, int shift, lanes scale) {
    switch (type) {
    case KERN_KV_F32:
        return lanes_load((const float *)(const void *)p);
    case KERN_KV_Q4_0:
        return lanes_mul(lanes_load_i4(p, shift), scale);
    default:
        return lanes_load_f16((const uint16_t *)(const void *)p);
    }
}

/* Fewer than 16 floats or halves, zeros behind them. */
LANES_INLINE lanes load_kv_tail(const uint8_t *p, int n, kern_kv_type type) {
    float v[LANES] = {0};
    for (int i = 0; i < n; i++)
        v[i] = type == KERN_KV_F32 ? ((const float *)(const void *)p)[i]
                                   : td_f16_to_f32(((const uint16_t *)(const void *)p)[i]);
    return lanes_load(v);
}

/* Where 16 values of K begin: dimension d, positions from p on. */
LANES_INLINE size_t k_offset(kern_kv_type type, int d, int p) {
    const size_t block = (size_t)(d / KERN_BLOCK), in_block = (size_t)(d % KERN_BLOCK),
                 at = (size_t)p;
    switch (type) {
    case KERN_KV_F32:
        return ((size_t)d * KERN_PAGE + at) * sizeof(float);
    case KERN_KV_Q4_0:
        return block * sizeof(kern_kv_q4) + in_block / 2 * KERN_PAGE + at;
    default:
        return ((size_t)d * KERN_PAGE + at) * sizeof(uint16_t);
    }
}

/* The same of V: position p, columns from d on. */
LANES_INLINE size_t v_offset(kern_kv_type type, int v_dim, int p, int d) {
    const size_t block = (size_t)(d / KERN_BLOCK), row = (size_t)p;
    const size_t at = row * (size_t)v_dim + (size_t)d;
    switch (type) {
    case KERN_KV_F32:
        return at * sizeof(float);
    case KERN_KV_Q4_0: /* the other half of a block is in the same bytes */
        return block * sizeof(kern_kv_q4) + row * (KERN_BLOCK / 2);
    default:
        return at * sizeof(uint16_t);
    }
}

/* Scales of the block around dimension d, by position from p on. */
LANES_INLINE lanes load_scales(const void *page, kern_kv_type type, int d, int p) {
    if (type == KERN_KV_Q4_0)
        return lanes_load_f16(((const kern_kv_q4 *)page)[d / KERN_BLOCK].scale + p);
    return lanes_set(0);
}

/* n_lanes of a dimension of K, and the fetching of those of the next page. */
LANES_INLINE void load_keys(lanes *line, const uint8_t *page, const uint8_t *next,
                            kern_kv_type type, int d, int p, const lanes *scales) {
    UNROLL_TILE for (int l = 0; l < TILE_LANES; l++) {
        line[l] = load_kv(page + k_offset(type, d, p + l * LANES), type, d % 2 * 4, scales[l]);
    }
    const size_t first = k_offset(type, d, p), bytes = k_offset(type, 0, TILE);
    UNROLL_TILE for (size_t at = 0; at < bytes; at += LINE_BYTES) {
        __builtin_prefetch(next + first + at, 0, 2);
    }
}

/* The same of a position of V. */
LANES_INLINE void load_values(lanes *line, int n_lanes, const kern_attn *a, const uint8_t *next,
                              kern_kv_type type, int p, int d, lanes scale) {
    UNROLL_TILE for (int l = 0; l < n_lanes; l++) {
        const int at = d + l * LANES;
        line[l] = load_kv((const uint8_t *)a->v + v_offset(type, a->v_dim, p, at), type,
                          at % KERN_BLOCK ? 4 : 0, scale);
    }
    const size_t first = v_offset(type, a->v_dim, p, d), bytes = k_offset(type, 0, n_lanes * LANES);
    UNROLL_TILE for (size_t at = 0; at < bytes; at += LINE_BYTES) {
        __builtin_prefetch(next + first + at, 0, 2);
    }
}

LANES_INLINE void add_line(attn_sums sums, int n_q, int n_lanes, const float *const *x, int at,
                           const lanes *line) {
    UNROLL_TILE for (int j = 0; j < n_q; j++) {
        const lanes by = lanes_set(x[j][at]);
        UNROLL_TILE for (int l = 0; l < n_lanes; l++) {
            sums[j][l] = lanes_fma(by, line[l], sums[j][l]);
        }
    }
}

/* Scores of n_q queries against 32 positions, k upwards. s: (n_q, 32), as in what follows. */
LANES_INLINE void add_scores(const kern_attn *a, int first, int n_q, kern_kv_type type, float *s) {
    const uint8_t *next = a->next_k ? a->next_k : a->k;
    const float *q[TILE_QUERIES];
    UNROLL_TILE for (int j = 0; j < n_q; j++) {
        q[j] = a->q[first + j].x;
    }
    for (int p = 0; p < KERN_PAGE; p += TILE) {
        attn_sums sums;
        UNROLL_TILE for (int j = 0; j < n_q; j++) {
            UNROLL_TILE for (int l = 0; l < TILE_LANES; l++) {
                sums[j][l] = lanes_set(0);
            }
        }
        for (int block = 0, end; block < a->k_dim; block = end) {
            lanes scales[TILE_LANES];
            end = kern_kv_quantised(type) ? block + KERN_BLOCK : a->k_dim;
            UNROLL_TILE for (int l = 0; l < TILE_LANES; l++) {
                scales[l] = load_scales(a->k, type, block, p + l * LANES);
            }
            for (int d = block; d < end; d++) {
                lanes line[TILE_LANES];
                load_keys(line, a->k, next, type, d, p, scales);
                add_line(sums, n_q, TILE_LANES, q, d, line);
            }
        }
        UNROLL_TILE for (int j = 0; j < n_q; j++) {
            UNROLL_TILE for (int l = 0; l < TILE_LANES; l++) {
                lanes_store(s + j * KERN_PAGE + p + l * LANES, sums[j][l]);
            }
        }
    }
}

/* Scores to weights, and the running maxima and sums. by: what `out` is to be multiplied with. */
static inline void tile_weights(const kern_attn *a, int first, int n_q, float *s, float by[LANES]) {
    float sum[TILE_QUERIES];
    for (int j = 0; j < LANES; j++)
        by[j] = 0;
    for (int j = 0; j < n_q; j++) {
        kern_attn_state *st = a->state[first + j];
        float *w = s + j * KERN_PAGE;
        const int begin = a->begin[first + j], end = a->end[first + j];
        const bool whole =
            begin == 0 && end == KERN_PAGE; /* else unused slots may hold anything, NaN too */
        const lanes none = lanes_set(-INFINITY), zero = lanes_set(0);
        if (a->softcap > 0) softcap(w, a->softcap, KERN_PAGE);
        lanes lo = lanes_load(w), hi = lanes_load(w + LANES);
        if (!whole) {
            lo = lanes_within(begin, end, lo, none);
            hi = lanes_within(begin - LANES, end - LANES, hi, none);
        }
        const float top = lanes_top(lanes_max(hi, lanes_max(lo, lanes_set(st->max))));
        lo = lanes_exp(lanes_sub(lo, lanes_set(top)));
        hi = lanes_exp(lanes_sub(hi, lanes_set(top)));
        if (!whole) {
            lo = lanes_within(begin, end, lo, zero);
            hi = lanes_within(begin - LANES, end - LANES, hi, zero);
        }
        lanes_store(w, lo);
        lanes_store(w + LANES, hi);
        sum[j] = lanes_sum(lanes_add(lo, hi));
        by[j] = st->max - top;
        st->max = top;
    }
    lanes_store(by, lanes_exp(lanes_load(by)));
    for (int j = 0; j < n_q; j++)
        a->state[first + j]->sum = FMA(a->state[first + j]->sum, by[j], sum[j]);
}

/* out = out * by, then positions [begin, end), in 16 * n_lanes columns from d on. tail: how many of 16 are there; 0: all. */
LANES_INLINE void add_columns(const kern_attn *a, int first, int n_q, int d, int n_lanes, int tail,
                              kern_kv_type type, int begin, int end, const float *w,
                              const float *by) {
    const uint8_t *next = a->next_v ? a->next_v : a->v;
    const float *x[TILE_QUERIES];
    float *out[TILE_QUERIES];
    attn_sums sums;
    UNROLL_TILE for (int j = 0; j < n_q; j++) {
        x[j] = w + j * KERN_PAGE, out[j] = a->state[first + j]->out + d;
        UNROLL_TILE for (int l = 0; l < n_lanes; l++) {
            sums[j][l] = lanes_mul(lanes_load(out[j] + l * LANES), lanes_set(by[j]));
        }
    }
    float scales[KERN_PAGE];
    if (kern_kv_quantised(type)) {
        lanes_store(scales, load_scales(a->v, type, d, 0));
        lanes_store(scales + LANES, load_scales(a->v, type, d, LANES));
    }
    for (int p = begin; p < end; p++) {
        lanes line[TILE_LANES];
        if (tail)
            line[0] =
                load_kv_tail((const uint8_t *)a->v + v_offset(type, a->v_dim, p, d), tail, type);
        else
            load_values(line, n_lanes, a, next, type, p, d,
                        kern_kv_quantised(type) ? lanes_set(scales[p]) : lanes_set(0));
        add_line(sums, n_q, n_lanes, x, p, line);
    }
    UNROLL_TILE for (int j = 0; j < n_q; j++) {
        UNROLL_TILE for (int l = 0; l < n_lanes; l++) {
            lanes_store(out[j] + l * LANES, sums[j][l]);
        }
    }
}

/* All columns from d on, for one query. */
LANES_INLINE void add_alone_typed(const kern_attn *a, int j, int d, kern_kv_type type, int begin,
                                  int end, const float *w, float by) {
    for (; d + TILE <= a->v_dim; d += TILE)
        add_columns(a, j, 1, d, TILE_LANES, 0, type, begin, end, w, &by);
    for (; d + LANES <= a->v_dim; d += LANES)
        add_columns(a, j, 1, d, 1, 0, type, begin, end, w, &by);
    if (d < a->v_dim) add_columns(a, j, 1, d, 1, a->v_dim - d, type, begin, end, w, &by);
}

static void add_alone(const kern_attn *a, int j, int d, int begin, int end, const float *w,
                      float by) {
    switch (a->v_type) {
    case KERN_KV_F32:
        add_alone_typed(a, j, d, KERN_KV_F32, begin, end, w, by);
        break;
    case KERN_KV_Q4_0:
        add_alone_typed(a, j, d, KERN_KV_Q4_0, begin, end, w, by);
        break;
    default:
        add_alone_typed(a, j, d, KERN_KV_F16, begin, end, w, by);
    }
}

/* ---- q8_0: the same tiles, of integer sums ----
 *
 * Four products a lane and instruction in place of one: with 12 queries on Zen 4, 272 cycles a query and page of 128
 * dimensions, of 710 as floats (AVX2: 545 of 775).
 *
 * Weights have 7 bits, as sums of two products must fit 16 bits of AVX2, and as they are signed bytes for NEON. 8 bits
 * would take 0.6e-4 off the 3.8e-4 nats that this cache costs SmolLM2 with float weights. */

typedef int_lanes attn_ints[TILE_QUERIES][TILE_LANES];

LANES_INLINE void load_quads(quads *line, const int8_t (*from)[4], const int8_t (*next)[4]) {
    UNROLL_TILE for (int l = 0; l < TILE_LANES; l++) {
        line[l] = quads_load(from[l * LANES]);
        __builtin_prefetch(next[l * LANES], 0, 2);
    }
}

LANES_INLINE void add_scores_q8(const kern_attn *a, int first, int n_q, float *s) {
    const kern_query *q = a->q + first;
    const kern_kv_q8 *page = a->k, *next = a->next_k ? a->next_k : a->k;
    for (int b = 0; b < a->k_dim / KERN_BLOCK; b++) {
        __builtin_prefetch(next[b].scale, 0, 2);
        for (int p = 0; p < KERN_PAGE; p += TILE) {
            attn_ints sums;
            UNROLL_TILE for (int j = 0; j < n_q; j++) {
                UNROLL_TILE for (int l = 0; l < TILE_LANES; l++) {
                    sums[j][l] = quads_start(q[j].sum[KERN_SUMS * b]);
                }
            }
            UNROLL_LINES for (int g = 0; g < KERN_BLOCK / 4; g++) {
                quads line[TILE_LANES];
                load_quads(line, page[b].q[g] + p, next[b].q[g] + p);
                UNROLL_TILE for (int j = 0; j < n_q; j++) {
                    UNROLL_TILE for (int l = 0; l < TILE_LANES; l++) {
                        sums[j][l] =
                            quads_dot(sums[j][l], line[l], q[j].q + b * KERN_BLOCK + 4 * g);
                    }
                }
            }
            UNROLL_TILE for (int l = 0; l < TILE_LANES; l++) {
                const lanes scale = lanes_load_f16(page[b].scale + p + l * LANES);
                UNROLL_TILE for (int j = 0; j < n_q; j++) {
                    float *to = s + j * KERN_PAGE + p + l * LANES;
                    lanes_store(to, lanes_fma(lanes_mul(lanes_of_ints(sums[j][l]), scale),
                                              lanes_set(q[j].scale[b]),
                                              b ? lanes_load(to) : lanes_set(0)));
                }
            }
        }
    }
}

LANES_INLINE void tile_scores_q8(const kern_attn *a, int first, int n_q, float *s) {
#define SCORES(n)                                                                                  \
    case n:                                                                                        \
        add_scores_q8(a, first, n, s);                                                             \
        break;
    switch (n_q) { ATTN_COUNTS(SCORES) }
#undef SCORES
}

/* What a slot that nobody wrote may have in place of a scale becomes a number, for its weight is 0. */
LANES_INLINE lanes load_v_scales(const uint16_t *p) {
    return lanes_min(lanes_max(lanes_load_f16(p), lanes_set(0)), lanes_set(65504.0f));
}

/* All columns. w: weights * 127 / top; top: top / 127. */
LANES_INLINE void add_values_q8(const kern_attn *a, int first, int n_q, const float *w,
                                const float *by, const float *top) {
    /* 1.5 * 2^23: adding it rounds to an integer, which the low bits hold */
    const lanes big = lanes_set(12582912.0f);
    const kern_kv_q8 *page = a->v, *next = a->next_v ? a->next_v : a->v;
    for (int b = 0; b < a->v_dim / KERN_BLOCK; b++) {
        int8_t n[TILE_QUERIES][KERN_PAGE];
        __builtin_prefetch(next[b].scale, 0, 2);
        for (int p = 0; p < KERN_PAGE; p += LANES) {
            const lanes scale = load_v_scales(page[b].scale + p);
            UNROLL_TILE for (int j = 0; j < n_q; j++) {
                lanes_store_low(n[j] + p, lanes_fma(lanes_load(w + j * KERN_PAGE + p), scale, big));
            }
        }
        for (int d = 0; d < KERN_BLOCK; d += TILE) {
            attn_ints sums;
            UNROLL_TILE for (int j = 0; j < n_q; j++) {
                UNROLL_TILE for (int l = 0; l < TILE_LANES; l++) {
                    sums[j][l] = int_lanes_set(0);
                }
            }
            UNROLL_LINES for (int g = 0; g < KERN_PAGE / 4; g++) {
                quads line[TILE_LANES];
                load_quads(line, page[b].q[g] + d, next[b].q[g] + d);
                UNROLL_TILE for (int j = 0; j < n_q; j++) {
                    UNROLL_TILE for (int l = 0; l < TILE_LANES; l++) {
                        sums[j][l] = quads_dot_positive(sums[j][l], line[l], n[j] + 4 * g);
                    }
                }
            }
            UNROLL_TILE for (int j = 0; j < n_q; j++) {
                UNROLL_TILE for (int l = 0; l < TILE_LANES; l++) {
                    float *out = a->state[first + j]->out + b * KERN_BLOCK + d + l * LANES;
                    lanes_store(out, lanes_fma(lanes_set(top[j]), lanes_of_ints(sums[j][l]),
                                               lanes_mul(lanes_load(out), lanes_set(by[j]))));
                }
            }
        }
    }
}

static void tile_values_q8(const kern_attn *a, int first, int n_q, float *w, const float *by) {
    const kern_kv_q8 *page = a->v;
    lanes lo = lanes_set(0), hi = lanes_set(0); /* the largest scales */
    for (int b = 0; b < a->v_dim / KERN_BLOCK; b++) {
        lo = lanes_max(lo, load_v_scales(page[b].scale));
        hi = lanes_max(hi, load_v_scales(page[b].scale + LANES));
    }
    float top[TILE_QUERIES];
    for (int j = 0; j < n_q; j++, w += KERN_PAGE) {
        const lanes w_lo = lanes_load(w), w_hi = lanes_load(w + LANES);
        top[j] = lanes_top(lanes_max(lanes_mul(w_lo, lo), lanes_mul(w_hi, hi)));
        const lanes inverse = lanes_set(top[j] > 0x1p-100f ? 127.0f / top[j] : 0);
        lanes_store(w, lanes_mul(w_lo, inverse));
        lanes_store(w + LANES, lanes_mul(w_hi, inverse));
        top[j] /= 127.0f;
    }
    w -= n_q * KERN_PAGE;
#define VALUES(n)                                                                                  \
    case n:                                                                                        \
        add_values_q8(a, first, n, w, by, top);                                                    \
        break;
    switch (n_q) { ATTN_COUNTS(VALUES) }
#undef VALUES
}

/* ---- the tiles of a call ---- */

/* Constant counts and types let the compiler keep a tile in registers. */
LANES_INLINE void tile_scores_typed(const kern_attn *a, int first, int n_q, kern_kv_type type,
                                    float *s) {
#define SCORES(n)                                                                                  \
    case n:                                                                                        \
        add_scores(a, first, n, type, s);                                                          \
        break;
    switch (n_q) { ATTN_COUNTS(SCORES) }
#undef SCORES
}

static void tile_scores(const kern_attn *a, int first, int n_q, float *s) {
    switch (a->k_type) {
    case KERN_KV_F32:
        tile_scores_typed(a, first, n_q, KERN_KV_F32, s);
        break;
    case KERN_KV_Q8_0:
        tile_scores_q8(a, first, n_q, s);
        break;
    case KERN_KV_Q4_0:
        tile_scores_typed(a, first, n_q, KERN_KV_Q4_0, s);
        break;
    default:
        tile_scores_typed(a, first, n_q, KERN_KV_F16, s);
    }
}

/* The columns that are whole tiles; returns the first one behind them. */
LANES_INLINE int tile_columns_typed(const kern_attn *a, int first, int n_q, kern_kv_type type,
                                    int begin, int end, const float *s, const float *by) {
    int d = 0;
#define VALUES(n)                                                                                  \
    case n:                                                                                        \
        add_columns(a, first, n, d, TILE_LANES, 0, type, begin, end, s, by);                       \
        break;
    for (; d + TILE <= a->v_dim; d += TILE)
        switch (n_q) { ATTN_COUNTS(VALUES) }
#undef VALUES
    return d;
}

static int tile_columns(const kern_attn *a, int first, int n_q, int begin, int end, const float *s,
                        const float *by) {
    switch (a->v_type) {
    case KERN_KV_F32:
        return tile_columns_typed(a, first, n_q, KERN_KV_F32, begin, end, s, by);
    case KERN_KV_Q4_0:
        return tile_columns_typed(a, first, n_q, KERN_KV_Q4_0, begin, end, s, by);
    default:
        return tile_columns_typed(a, first, n_q, KERN_KV_F16, begin, end, s, by);
    }
}

/* A query keeps to its own positions: a slot nobody wrote may hold NaN. So a tile takes the positions that all of its
 * queries see, and what one sees before and behind them is added for it alone. */
static void tile_values(const kern_attn *a, int first, int n_q, float *s, float *by) {
    const int16_t *b = a->begin + first, *e = a->end + first;
    int begin = 0, end = KERN_PAGE;
    for (int j = 0; j < n_q; j++)
        begin = b[j] > begin ? b[j] : begin, end = e[j] < end ? e[j] : end;
    if (begin >= end) begin = end = KERN_PAGE; /* nothing in common */
    for (int j = 0; j < n_q; j++)
        if (b[j] < begin) {
            add_alone(a, first + j, 0, b[j], e[j] < begin ? e[j] : begin, s + j * KERN_PAGE, by[j]);
            by[j] = 1;
        }
    const int d = tile_columns(a, first, n_q, begin, end, s, by);
    for (int j = 0; j < n_q; j++) {
        if (d < a->v_dim) add_alone(a, first + j, d, begin, end, s + j * KERN_PAGE, by[j]);
        if (e[j] > end) add_alone(a, first + j, 0, end, e[j], s + j * KERN_PAGE, 1);
    }
}

/* Tiles of about one size: the sums of a narrow one do not hide the latency of the fma. */
static void attn_page(const kern_attn *a) {
    const int n_tiles = (a->n_q + TILE_QUERIES - 1) / TILE_QUERIES;
    for (int t = 0, first = 0, end; t < n_tiles; t++, first = end) {
        float s[TILE_QUERIES * KERN_PAGE], by[LANES];
        end = (int)((int64_t)a->n_q * (t + 1) / n_tiles);
        tile_scores(a, first, end - first, s);
        tile_weights(a, first, end - first, s, by);
        if (a->v_type == KERN_KV_Q8_0)
            tile_values_q8(a, first, end - first, s, by);
        else
            tile_values(a, first, end - first, s, by);
    }
}

static void kern_init_attn(kern_table *k) {
    k->attn_page = attn_page;
}

#endif
