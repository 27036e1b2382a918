/* Attention over one page, once for every level, as float_inl.h is.
 *
 * Scores and values are the same work: lines of the page (a dimension of 32 keys, or a position's value) times one
 * number a query, added up. It is done in tiles of queries by positions, or queries by value columns, whose sums stay
 * in registers while the lines pass by, so that a line is loaded and converted once a tile. Each sum has the order of
 * one query alone: the shape of a tile cannot show in the bits.
 *
 * Every step asks for the same line of the next page: pages lie far apart, where no prefetcher of the machine follows,
 * and with few queries the page at hand is done about when the next one has come. */
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

LANES_INLINE size_t kv_value_bytes(kern_kv_type type) {
    return type == KERN_KV_F32 ? sizeof(float) : sizeof(uint16_t);
}

LANES_INLINE lanes load_kv(const uint8_t *p, kern_kv_type type) {
    return type == KERN_KV_F32 ? lanes_load((const float *)(const void *)p)
                               : lanes_load_f16((const uint16_t *)(const void *)p);
}

/* Fewer than 16 values, zeros behind them. */
LANES_INLINE lanes load_kv_tail(const uint8_t *p, int n, kern_kv_type type) {
    float v[LANES] = {0};
    for (int i = 0; i < n; i++)
        v[i] = type == KERN_KV_F32 ? ((const float *)(const void *)p)[i]
                                   : td_f16_to_f32(((const uint16_t *)(const void *)p)[i]);
    return lanes_load(v);
}

/* n_lanes of a line, and the fetching of those of the next page. */
LANES_INLINE void load_line(lanes *line, int n_lanes, const uint8_t *p, const uint8_t *next,
                            kern_kv_type type) {
    const size_t bytes = LANES * kv_value_bytes(type);
    UNROLL_TILE for (int l = 0; l < n_lanes; l++) {
        line[l] = load_kv(p + (size_t)l * bytes, type);
    }
    UNROLL_TILE for (size_t at = 0; at < (size_t)n_lanes * bytes; at += LINE_BYTES) {
        __builtin_prefetch(next + at);
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
    const size_t value = kv_value_bytes(type);
    const uint8_t *next = a->next_k ? a->next_k : a->k;
    const float *q[TILE_QUERIES];
    UNROLL_TILE for (int j = 0; j < n_q; j++) {
        q[j] = a->q[first + j];
    }
    for (int p = 0; p < KERN_PAGE; p += TILE) {
        attn_sums sums;
        UNROLL_TILE for (int j = 0; j < n_q; j++) {
            UNROLL_TILE for (int l = 0; l < TILE_LANES; l++) {
                sums[j][l] = lanes_set(0);
            }
        }
        for (int d = 0; d < a->k_dim; d++) {
            const size_t at = ((size_t)d * KERN_PAGE + (size_t)p) * value;
            lanes line[TILE_LANES];
            load_line(line, TILE_LANES, (const uint8_t *)a->k + at, next + at, type);
            add_line(sums, n_q, TILE_LANES, q, d, line);
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
    const size_t value = kv_value_bytes(type);
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
    for (int p = begin; p < end; p++) {
        const size_t at = ((size_t)p * (size_t)a->v_dim + (size_t)d) * value;
        lanes line[TILE_LANES];
        if (tail)
            line[0] = load_kv_tail((const uint8_t *)a->v + at, tail, type);
        else
            load_line(line, n_lanes, (const uint8_t *)a->v + at, next + at, type);
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
    if (a->type == KERN_KV_F32)
        add_alone_typed(a, j, d, KERN_KV_F32, begin, end, w, by);
    else
        add_alone_typed(a, j, d, KERN_KV_F16, begin, end, w, by);
}

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
    if (a->type == KERN_KV_F32)
        tile_scores_typed(a, first, n_q, KERN_KV_F32, s);
    else
        tile_scores_typed(a, first, n_q, KERN_KV_F16, s);
}

/* The columns that are whole tiles; returns the first one behind them. */
LANES_INLINE int tile_values_typed(const kern_attn *a, int first, int n_q, kern_kv_type type,
                                   int begin, int end, float *s, const float *by) {
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
    const int d = a->type == KERN_KV_F32
                      ? tile_values_typed(a, first, n_q, KERN_KV_F32, begin, end, s, by)
                      : tile_values_typed(a, first, n_q, KERN_KV_F16, begin, end, s, by);
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
        tile_values(a, first, end - first, s, by);
    }
}

static void kern_init_attn(kern_table *k) {
    k->attn_page = attn_page;
}

#endif
