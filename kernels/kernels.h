/* The arithmetic: one table of functions per device.
 *
 * Contract R lives here. For every function and every level: the value written for a row depends on that
 * row's inputs alone, bit for bit, never on how many rows ride along, on the thread or on the instruction
 * set. Each sum states its order below; `ref` is plain C and the truth the other levels are checked
 * against. Nothing here allocates, fails or keeps state; sizes are checked by the callers. */
#ifndef TD_KERNELS_H
#define TD_KERNELS_H

#include "base/base.h"
#include "format/format.h"

enum {
    KERN_PANEL = 16, /* matrix rows (output columns) a panel */
    KERN_BLOCK = 32, /* values of k under one activation scale */
    KERN_SUMS = 3,   /* sums kept of each */
    KERN_PAGE = 32,  /* positions of a KV page, and the step of the online softmax */
    KERN_ALIGN = 64  /* panels, activations and pages begin on cache lines */
};

/* ---- weights ----
 * A matrix (n_out, n_in) is kept as panels of 16 of its rows, so that one broadcast of 4 activations
 * meets 16 rows at a time; kernels/cpu/panel.h describes the bytes. Rows past n_out are zero. */

typedef struct kern_mat {
    td_type type;
    int n_out, n_in;
    int n_panels;       /* ceil(n_out / 16) */
    size_t panel_bytes; /* a multiple of 64 */
    uint8_t *data;      /* n_panels * panel_bytes, 64-byte aligned; whoever filled it in owns it */
} kern_mat;

/* Fills in all but data. TD_E_UNSUPPORTED for a type without kernels, TD_E_FORMAT when n_in is no
 * multiple of the type's block, TD_E_TOO_BIG when sizes overflow. */
td_code kern_mat_init(kern_mat *m, td_type type, uint64_t n_out, uint64_t n_in, td_error *err);
size_t kern_mat_bytes(const kern_mat *m);
/* Packs panels [begin, end) from the file's rows (n_out rows of GGUF blocks, row_bytes apart). Threads
 * may pack different panels at once. */
void kern_mat_pack(const kern_mat *m, const void *rows, size_t row_bytes, int begin, int end);

/* ---- activations ----
 * Quantised weights meet int8 activations with a scale every 32 values; float weights (F32, F16, BF16)
 * meet the floats themselves. */

typedef struct kern_acts {
    int n_rows, n_in;
    const float *x;     /* (n_rows, n_in) floats, rows x_stride apart; used with float weights */
    size_t x_stride;
    int8_t *q;          /* (n_rows, n_pad) in [-127, 127]; n_pad = n_in rounded up to 32, zeros behind */
    float *scale;       /* (n_rows, n_pad / 32): x is about q * scale */
    int32_t *sum;       /* (n_rows, n_pad / 32, KERN_SUMS): minus the sums of the 32 q, of the first 16 of
                           them, of the last 16; for weights with an offset */
    float *min_scale;   /* (n_rows, n_pad / 32): scale * (float)(sum of the 32 q), for weights with a
                           minimum */
} kern_acts;

/* ---- attention over one page ---- */

typedef enum kern_kv_type {
    KERN_KV_F16 = 0,
    KERN_KV_F32 = 1,
    KERN_KV_Q8_0 = 2,
    KERN_KV_Q4_0 = 3,
    KERN_KV_TYPES
} kern_kv_type;

/* Quantised keys and values of one page and one head: blocks of 32 dimensions, one after the other, which hold 32
 * positions each. A position has a scale of its own in every block, so that a slot can be written, moved and dropped
 * without a look at its neighbours; no byte belongs to two positions. A value is q * scale, exact in a float.
 *   q8_0  -127 .. 127, so that a line holds 16 times four values whose products are added:
 *                           K q[dimension / 4][position][dimension % 4]; V q[position / 4][dimension][position % 4]
 *   q4_0  -8 .. 7, plus 8:  K q[i][position]: dimension 2i in the low half of a byte, 2i + 1 in the high one;
 *                           V q[position][i]: dimension i low, i + 16 high */
typedef struct kern_kv_q8 {
    int8_t q[KERN_BLOCK / 4][KERN_PAGE][4];
    uint16_t scale[KERN_PAGE]; /* f16, by position */
} kern_kv_q8;

typedef struct kern_kv_q4 {
    uint8_t q[KERN_BLOCK * KERN_PAGE / 2]; /* K: (16, 32), V: (32, 16) */
    uint16_t scale[KERN_PAGE];
} kern_kv_q4;

/* K or V of one page and one head. Quantised types want dim to be a multiple of 32. */
static inline size_t kern_kv_page_bytes(kern_kv_type type, int dim) {
    switch (type) {
    case KERN_KV_F32:
        return (size_t)dim * KERN_PAGE * sizeof(float);
    case KERN_KV_Q8_0:
        return (size_t)dim / KERN_BLOCK * sizeof(kern_kv_q8);
    case KERN_KV_Q4_0:
        return (size_t)dim / KERN_BLOCK * sizeof(kern_kv_q4);
    default:
        return (size_t)dim * KERN_PAGE * sizeof(uint16_t);
    }
}

static inline bool kern_kv_quantised(kern_kv_type type) {
    return type == KERN_KV_Q8_0 || type == KERN_KV_Q4_0;
}

/* The running softmax of one query: start from {-INFINITY, 0, zeros}; the result is out / sum. */
typedef struct kern_attn_state {
    float max, sum;
    float *out; /* (v_dim), 64-byte aligned; v_dim rounded up to 16 floats are written */
} kern_attn_state;

/* A query, scaled already. The other three are what `quantize` makes of it, for keys in q8_0. */
typedef struct kern_query {
    const float *x;       /* (k_dim) */
    const int8_t *q;      /* (k_dim) */
    const float *scale;   /* (k_dim / 32) */
    const int32_t *sum;   /* (k_dim / 32, KERN_SUMS) */
} kern_query;

typedef struct kern_attn {
    kern_kv_type k_type, v_type;
    const void *k;      /* (k_dim, 32) keys of one page and one KV head: position runs fastest; or blocks */
    const void *v;      /* (32, v_dim) values of the same; or blocks. Both on cache lines */
    const void *next_k, *next_v; /* the page that comes next, to be fetched meanwhile; NULL: none */
    int k_dim, v_dim;
    float softcap;      /* 0: none; else scores become softcap * tanh(score / softcap) */
    int n_q;            /* queries that look at this page */
    const kern_query *q;       /* (n_q) */
    const int16_t *begin, *end; /* per query: positions [begin, end) of the page, 0 <= begin < end <= 32 */
    kern_attn_state *const *state; /* per query */
} kern_attn;

/* ---- the table ---- */

/* y[r * y_stride + c] = row c of w . activations r, for panels [panel_begin, panel_end) (columns
 * 16 * panel_begin up to min(16 * panel_end, n_out)) and all rows of a.
 * Order of the sum: blocks of 32 k upwards, one fused multiply-add a block (two with a minimum):
 *   quantised, one scale d a block:   acc = fma((float)isum * d, a.scale, acc)
 *   two scales a block (16 k each):   t = (float)isum0 * d0; t = fma((float)isum1, d1, t);
 *                                     acc = fma(t, a.scale, acc)
 *   and with a minimum m a block:     acc = fma(m, min_scale, acc)
 *   (Q2_K, two minima a block:        acc = fma(m0, a.scale * (float)sum0, acc), then m1)
 *   float weights:                    acc = fma(w[k], x[k], acc), k upwards
 * where isum is the exact integer dot product, the type's offset included. */
typedef void kern_gemm_fn(const kern_mat *w, int panel_begin, int panel_end, const kern_acts *a,
                          float *y, size_t y_stride);

typedef struct kern_table {
    const char *level; /* "ref", "avx2", "avx512" ... */

    kern_gemm_fn *gemm[TD_TYPE_COUNT]; /* by td_type; NULL where the type is unknown */

    /* One row of n floats to int8: scale = max|x| / 127, q = round-to-nearest-even(x * (127 / max|x|));
     * an all-zero block has scale 0. NaN and infinities give whatever, but stay in bounds. q is padded
     * with zeros to a multiple of 32; sum and min_scale as in kern_acts. */
    void (*quantize)(const float *x, int n, int8_t *q, float *scale, int32_t *sum, float *min_scale);

    /* y = x / sqrt(mean(x^2) + eps) * w. Sum of squares: lane i takes k = i mod 16 upwards by fma, then
     * lanes fold 8, 4, 2, 1. y may be x. w NULL: ones. */
    void (*rmsnorm)(const float *x, const float *w, int n, float eps, float *y);
    /* Rotates the first n_rot values of one head in place by the angles in cos, sin (n_rot / 2).
     * neox: pairs (i, i + n_rot/2); otherwise (2i, 2i + 1).
     * a' = fma(-b, sin, a * cos); b' = fma(a, sin, b * cos). */
    void (*rope)(float *x, int n_rot, const float *cos, const float *sin, bool neox);
    /* Each run of `size` values (a power of two) becomes its Walsh-Hadamard transform over sqrt(size), which is
     * orthogonal and its own inverse. Steps of 1, 2, 4 ...: a' = a + b, b' = a - b; last x * (1 / sqrt(size)). */
    void (*hadamard)(float *x, int n, int size);
    void (*add)(float *x, const float *y, int n);                              /* x += y */
    void (*scale)(float *x, float by, int n);                                  /* x *= by */
    void (*silu_mul)(const float *gate, const float *up, int n, float *y);     /* y = silu(gate) * up */
    void (*gelu_mul)(const float *gate, const float *up, int n, float *y);     /* tanh approximation */
    void (*softcap)(float *x, float cap, int n);                               /* x = cap tanh(x / cap) */

    /* Adds one page to every query's running softmax. f16, f32 and q4_0 are made floats first. Scores: sum over k_dim
     * upwards by fma. Then m' = max(m, max score), c = exp(m - m'), w[p] = exp(score[p] - m') (0 outside [begin, end)),
     * sum = fma(sum, c, fold of w over 16 lanes as in rmsnorm), out[d] = out[d] * c, then
     * out[d] = fma(w[p], v[p][d], out[d]) with p upwards.
     *
     * Keys in q8_0 meet the int8 query; isum is a block's exact dot product:
     *   score[p] = fma((float)isum * k.scale[p], q.scale, score[p]), blocks upwards
     * Values in q8_0 meet weights of 7 bits, n, which take in the scales of the block:
     *   top = max of w[p] * (largest v.scale[p] of all blocks); by = 127 / top, but 0 where top <= 2^-100
     *   n[p] = (w[p] * by) * v.scale[p], its second product rounded to nearest even once
     *   out[d] = fma(top / 127, (float)isum, out[d]), isum being the exact sum of n[p] * v.q[p][d]
     * sum stays that of w: no two blocks round it to the same. */
    void (*attn_page)(const kern_attn *a);
} kern_table;

/* The table for this process: CPUID, lowered by TANDEM_CPU (TD_E_ARG for an unknown word). Const after
 * the first call. */
td_code kern_table_get(const kern_table **out, td_error *err);
/* The table of a given feature set (tests walk all levels the machine has). */
void kern_table_init(kern_table *k, unsigned cpu_features);

#endif
