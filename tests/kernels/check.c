/* Checks every kernel at every level this machine has against `ref`, bit for bit, and `ref` against double
 * arithmetic on td_dequantize's values (in the manner of dav1d's checkasm).
 *
 *   check_kernels [--seed S] [--rounds N] [--level avx512] [--expect ref,avx2]
 *
 * Random and extreme inputs, odd sizes, guard bytes behind every output; each row alone, in batches of every
 * width and in any panel range gives the same bits (contract R); `ref` itself gives the same on every architecture.
 * --expect: the levels that this machine must have. `tandem bench --kernels` measures them. */
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static uint64_t rng_state;

static uint32_t rnd(void) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 32);
}
static int rnd_int(int lo, int hi) {
    return lo + (int)(rnd() % (uint32_t)(hi - lo + 1));
}
static float rnd_float(void) {
    return (float)((double)rnd() / 2147483648.0 - 1.0);
}

enum { GUARD = 0x5a, GUARD_BYTES = 64 };

static int n_passed, n_failed;

static void verdict(bool ok, const char *fmt, ...) TD_PRINTF(2, 3);
static void verdict(bool ok, const char *fmt, ...) {
    if (ok) {
        n_passed++;
        return;
    }
    if (n_failed++ > 20) return;
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "FAILED: ");
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
}

/* Large buffers on huge pages, as models have them. */
static void *must(size_t n) {
    const size_t big = (size_t)2 << 20, align = n > big ? big : 64;
    void *p = aligned_alloc(align, (n + GUARD_BYTES + align - 1) & ~(align - 1));
    if (!p) abort();
    if (n > big) madvise(p, n, MADV_HUGEPAGE);
    memset(p, 0, n);
    return p;
}

/* A float buffer with guards behind it. */
static float *guarded(size_t n) {
    float *p = must(n * sizeof *p + GUARD_BYTES);
    memset(p, GUARD, n * sizeof *p + GUARD_BYTES);
    return p;
}
static bool guard_ok(const float *p, size_t n) {
    const uint8_t *g = (const uint8_t *)(p + n);
    for (int i = 0; i < GUARD_BYTES; i++)
        if (g[i] != GUARD) return false;
    return true;
}

static const td_type types[] = {TD_TYPE_F32,  TD_TYPE_F16,  TD_TYPE_BF16, TD_TYPE_Q4_0, TD_TYPE_Q4_1,
                                TD_TYPE_Q5_0, TD_TYPE_Q5_1, TD_TYPE_Q8_0, TD_TYPE_Q2_K, TD_TYPE_Q3_K,
                                TD_TYPE_Q4_K, TD_TYPE_Q5_K, TD_TYPE_Q6_K, TD_TYPE_IQ4_NL, TD_TYPE_IQ4_XS};
enum { N_TYPES = sizeof types / sizeof *types };

/* Offsets of the f16 scales in one block of the file: the only bytes that may not be anything (NaN). */
static void fix_scales(td_type t, uint8_t *block, bool extreme) {
    static const int8_t at[TD_TYPE_COUNT][2] = {
        [TD_TYPE_Q4_0] = {0, -1}, [TD_TYPE_Q4_1] = {0, 2},     [TD_TYPE_Q5_0] = {0, -1},
        [TD_TYPE_Q5_1] = {0, 2},  [TD_TYPE_Q8_0] = {0, -1},    [TD_TYPE_Q2_K] = {80, 82},
        [TD_TYPE_Q3_K] = {108, -1}, [TD_TYPE_Q4_K] = {0, 2},   [TD_TYPE_Q5_K] = {0, 2},
        [TD_TYPE_Q6_K] = {-2, -1}, [TD_TYPE_IQ4_NL] = {0, -1}, [TD_TYPE_IQ4_XS] = {0, -1}};
    for (int i = 0; i < 2; i++) {
        int o = t == TD_TYPE_Q6_K && i == 0 ? 208 : at[t][i];
        if (o < 0) continue;
        uint16_t h = td_f32_to_f16(rnd_float() * (extreme ? 60000.0f : 0.02f));
        if (extreme && rnd() % 4 == 0) h = 0;
        memcpy(block + o, &h, 2);
    }
}

typedef struct problem {
    kern_mat mat;
    uint8_t *rows; /* as in a file */
    size_t row_bytes;
    kern_acts acts;
    float *x;
} problem;

static void problem_free(problem *p) {
    free(p->mat.data), free(p->rows), free(p->x);
    free(p->acts.q), free(p->acts.scale), free(p->acts.sum), free(p->acts.min_scale);
}

static void problem_make(problem *p, const kern_table *ref, td_type type, int n_out, int n_in, int n_rows,
                         bool extreme) {
    td_error err;
    *p = (problem){0};
    if (kern_mat_init(&p->mat, type, (uint64_t)n_out, (uint64_t)n_in, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    td_type_row_bytes(&p->row_bytes, type, (uint64_t)n_in);
    p->rows = must(p->row_bytes * (size_t)n_out);
    const td_type_info *info = td_type_get(type);
    for (size_t i = 0; i < p->row_bytes * (size_t)n_out; i++)
        p->rows[i] = extreme ? (rnd() & 1 ? 0xff : 0) : (uint8_t)rnd();
    if (info->block > 1) {
        for (size_t i = 0; i < p->row_bytes * (size_t)n_out; i += (size_t)info->block_bytes)
            fix_scales(type, p->rows + i, extreme);
    } else {
        for (size_t i = 0; i < (size_t)n_out * (size_t)n_in; i++) {
            const float f = rnd_float();
            const uint16_t h = td_f32_to_f16(f);
            if (type == TD_TYPE_F32) memcpy(p->rows + 4 * i, &f, 4);
            if (type == TD_TYPE_F16) memcpy(p->rows + 2 * i, &h, 2);
            if (type == TD_TYPE_BF16) memcpy(p->rows + 2 * i, (const char *)&f + 2, 2);
        }
    }
    p->mat.data = must(kern_mat_bytes(&p->mat));
    kern_mat_pack(&p->mat, p->rows, p->row_bytes, 0, p->mat.n_panels);
    const size_t pad = ((size_t)n_in + 31) & ~(size_t)31, r = (size_t)n_rows;
    p->x = must(r * (size_t)n_in * sizeof(float));
    for (size_t i = 0; i < r * (size_t)n_in; i++)
        p->x[i] = extreme ? (rnd() & 1 ? 1.0f : -1.0f) * (rnd() & 7 ? 1.0f : 1e-3f) : rnd_float();
    p->acts = (kern_acts){.n_rows = n_rows, .n_in = n_in, .x = p->x, .x_stride = (size_t)n_in};
    p->acts.q = must(r * pad);
    p->acts.scale = must(r * pad / 32 * 4);
    p->acts.sum = must(r * pad / 32 * KERN_SUMS * 4);
    p->acts.min_scale = must(r * pad / 32 * 4);
    for (size_t i = 0; i < r; i++)
        ref->quantize(p->x + i * (size_t)n_in, n_in, p->acts.q + i * pad, p->acts.scale + i * pad / 32,
                      p->acts.sum + i * pad / 32 * KERN_SUMS, p->acts.min_scale + i * pad / 32);
}

/* Rows [first, first + n) of the activations. */
static kern_acts acts_slice(const kern_acts *a, int first, int n) {
    const size_t pad = ((size_t)a->n_in + 31) & ~(size_t)31, f = (size_t)first;
    kern_acts s = *a;
    s.n_rows = n, s.x += f * a->x_stride, s.q += f * pad, s.scale += f * pad / 32;
    s.sum += f * pad / 32 * KERN_SUMS, s.min_scale += f * pad / 32;
    return s;
}

/* ref against double sums of the file's own values times the quantised activations. */
static void check_gemm_truth(const kern_table *ref, const problem *p, const char *name) {
    const size_t n_in = (size_t)p->mat.n_in, n_out = (size_t)p->mat.n_out;
    float *w = must(n_in * 4), *y = guarded(n_out);
    kern_acts one = acts_slice(&p->acts, 0, 1);
    ref->gemm[p->mat.type](&p->mat, 0, p->mat.n_panels, &one, y, n_out);
    for (size_t c = 0; c < n_out; c++) {
        double sum = 0, size = 0;
        td_dequantize(p->mat.type, p->rows + c * p->row_bytes, w, n_in);
        for (size_t k = 0; k < n_in; k++) {
            double x = td_type_get(p->mat.type)->block > 1 ? (double)one.q[k] * (double)one.scale[k / 32]
                                                          : (double)one.x[k];
            sum += (double)w[k] * x, size += fabs((double)w[k] * x);
        }
        const bool ok = fabs(sum - (double)y[c]) <= 2e-6 * size + 1e-30;
        verdict(ok, "%s %zux%zu column %zu: ref %.9g, double %.9g", name, n_out, n_in, c, (double)y[c],
                sum);
        if (!ok) break;
    }
    verdict(guard_ok(y, n_out), "%s: ref wrote past its output", name);
    free(w), free(y);
}

static void check_gemm(const kern_table *ref, const kern_table *k, const problem *p, const char *name) {
    const size_t n_out = (size_t)p->mat.n_out;
    const int n_rows = p->acts.n_rows;
    float *want = guarded(n_out * (size_t)n_rows), *got = guarded(n_out * (size_t)n_rows);
    kern_acts one;
    for (int r = 0; r < n_rows; r++) { /* the truth: each row alone */
        one = acts_slice(&p->acts, r, 1);
        ref->gemm[p->mat.type](&p->mat, 0, p->mat.n_panels, &one, want + (size_t)r * n_out, n_out);
    }
    for (int n = 1; n <= n_rows; n++) { /* batches of every width, panels in two ranges */
        const int first = rnd_int(0, n_rows - n), cut = rnd_int(0, p->mat.n_panels);
        kern_acts part = acts_slice(&p->acts, first, n);
        k->gemm[p->mat.type](&p->mat, 0, cut, &part, got, n_out);
        k->gemm[p->mat.type](&p->mat, cut, p->mat.n_panels, &part, got, n_out);
        const bool ok = !memcmp(got, want + (size_t)first * n_out, n_out * (size_t)n * sizeof *got);
        verdict(ok, "gemm %s at %s: %d rows from %d of %zux%d differ from ref", name, k->level, n, first,
                n_out, p->mat.n_in);
        if (!ok) break;
    }
    verdict(guard_ok(got, n_out * (size_t)n_rows), "gemm %s at %s wrote past its output", name, k->level);
    free(want), free(got);
}

static void fill(float *x, int n, int kind) {
    for (int i = 0; i < n; i++)
        x[i] = kind == 0   ? rnd_float() * 4
               : kind == 1 ? (float)ldexp((double)rnd_float(), rnd_int(-60, 60))
               : kind == 2 ? 0.0f
                           : rnd_float() * 300;
}

static void check_vectors(const kern_table *ref, const kern_table *k, int n, int kind) {
    float *x = must((size_t)n * 4), *w = must((size_t)n * 4);
    float *a = guarded((size_t)n), *b = guarded((size_t)n);
    fill(x, n, kind), fill(w, n, 0);
    const size_t pad = ((size_t)n + 31) & ~(size_t)31;
    int8_t *q[2] = {must(pad), must(pad)};
    float *s[4] = {must(pad), must(pad), must(pad), must(pad)};
    int32_t *t[2] = {must(pad), must(pad)};
    ref->quantize(x, n, q[0], s[0], t[0], s[2]);
    k->quantize(x, n, q[1], s[1], t[1], s[3]);
    verdict(!memcmp(q[0], q[1], pad) && !memcmp(s[0], s[1], pad / 32 * 4) &&
                !memcmp(s[2], s[3], pad / 32 * 4) && !memcmp(t[0], t[1], pad / 32 * KERN_SUMS * 4),
            "quantize at %s, n %d, fill %d", k->level, n, kind);
    for (int i = 0; i < n && kind != 1; i++) { /* and within half a step of the truth */
        const double back = q[0][i] * (double)s[0][i / 32];
        const bool ok = fabs(back - (double)x[i]) <= 0.5001 * (double)s[0][i / 32] + 1e-12;
        verdict(ok, "quantize: %g became %g", (double)x[i], back);
        if (!ok) break;
    }
#define BOTH(call_ref, call_k, what) \
    call_ref, call_k; \
    verdict(!memcmp(a, b, (size_t)n * 4), "%s at %s, n %d, fill %d", what, k->level, n, kind);
    BOTH(ref->rmsnorm(x, w, n, 1e-6f, a), k->rmsnorm(x, w, n, 1e-6f, b), "rmsnorm")
    BOTH(ref->silu_mul(x, w, n, a), k->silu_mul(x, w, n, b), "silu_mul")
    if (kind == 0)
        for (int i = 0; i < n; i++) {
            const double e = (double)x[i] / (1 + exp(-(double)x[i])) * (double)w[i];
            verdict(fabs(e - (double)a[i]) < 1e-5, "silu(%g)", (double)x[i]);
        }
    BOTH(ref->gelu_mul(x, w, n, a), k->gelu_mul(x, w, n, b), "gelu_mul")
    if (kind == 0)
        for (int i = 0; i < n; i++) {
            const double g = (double)x[i];
            const double e =
                0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * (double)w[i];
            verdict(fabs(e - (double)a[i]) < 1e-5, "gelu(%g): %g, not %g", g, (double)a[i], e);
        }
    memcpy(a, x, (size_t)n * 4), memcpy(b, x, (size_t)n * 4);
    BOTH(ref->softcap(a, 30, n), k->softcap(b, 30, n), "softcap")
    if (kind != 1)
        for (int i = 0; i < n; i++)
            verdict(fabs(30 * tanh((double)x[i] / 30) - (double)a[i]) < 1e-5, "softcap(%g)", (double)x[i]);
    memcpy(a, x, (size_t)n * 4), memcpy(b, x, (size_t)n * 4);
    BOTH(ref->hadamard(a, n, n & -n), k->hadamard(b, n, n & -n), "hadamard")
    for (int i = 0; i < n && kind != 1; i++) { /* its definition: the sign is the parity of the common bits */
        const int size = n & -n, at = i & (size - 1);
        double sum = 0, most = 0;
        for (int j = 0; j < size; j++) {
            const double v = (double)x[i - at + j];
            sum += __builtin_parity((unsigned)(at & j)) ? -v : v, most += fabs(v);
        }
        const bool ok = fabs(sum / sqrt(size) - (double)a[i]) <= 1e-6 * most;
        verdict(ok, "hadamard of %d in runs of %d: value %d is %g, not %g", n, size, i, (double)a[i], sum / sqrt(size));
        if (!ok) break;
    }
    BOTH(ref->add(a, w, n), k->add(b, w, n), "add")
    BOTH(ref->scale(a, 0.37f, n), k->scale(b, 0.37f, n), "scale")
    if (n % 2 == 0)
        for (int neox = 0; neox < 2; neox++) {
            float *c = must((size_t)n * 4), *sn = must((size_t)n * 4);
            for (int i = 0; i < n / 2; i++)
                c[i] = cosf((float)i * 0.3f), sn[i] = sinf((float)i * 0.3f);
            memcpy(a, x, (size_t)n * 4), memcpy(b, x, (size_t)n * 4);
            BOTH(ref->rope(a, n, c, sn, neox), k->rope(b, n, c, sn, neox), "rope")
            free(c), free(sn);
        }
    verdict(guard_ok(a, (size_t)n) && guard_ok(b, (size_t)n), "a vector kernel at %s wrote past n %d",
            k->level, n);
    free(x), free(w), free(a), free(b);
    for (int i = 0; i < 4; i++)
        free(s[i]);
    free(q[0]), free(q[1]), free(t[0]), free(t[1]);
}

/* Random keys (dim, 32) or values (32, dim) in page, and the same as floats. Positions outside [low, high) hold NaN, or
 * the quantised ones any scale. */
static void fill_page(kern_kv_type type, bool is_v, void *page, int dim, int low, int high, float *floats) {
    uint16_t scale = 0;
    memset(page, 0, kern_kv_page_bytes(type, dim));
    for (int pos = 0; pos < KERN_PAGE; pos++)
        for (int d = 0; d < dim; d++) {
            const bool used = pos >= low && pos < high;
            const int at = is_v ? pos * dim + d : d * KERN_PAGE + pos, b = d / 32, i = d % 32;
            const int q8 = rnd_int(-127, 127), q4 = rnd_int(0, 15);
            const float x = used ? rnd_float() : NAN;
            const uint16_t odd = (uint16_t)rnd();
            kern_kv_q8 *block8 = (kern_kv_q8 *)page + b;
            kern_kv_q4 *block4 = (kern_kv_q4 *)page + b;
            if (i == 0) scale = !used ? odd : td_f32_to_f16(type == KERN_KV_Q8_0 ? fabsf(x) / 127 : x / 8);
            switch (type) {
            case KERN_KV_F32:
                ((float *)page)[at] = floats[at] = x;
                break;
            case KERN_KV_Q8_0:
                block8->scale[pos] = scale;
                *(is_v ? &block8->q[pos / 4][i][pos % 4] : &block8->q[i / 4][pos][i % 4]) = (int8_t)q8;
                floats[at] = (float)q8 * td_f16_to_f32(scale);
                break;
            case KERN_KV_Q4_0:
                block4->scale[pos] = scale;
                if (is_v)
                    block4->q[pos * 16 + i % 16] |= (uint8_t)(i < 16 ? q4 : q4 << 4);
                else
                    block4->q[i / 2 * 32 + pos] |= (uint8_t)(i % 2 ? q4 << 4 : q4);
                floats[at] = (float)(q4 - 8) * td_f16_to_f32(scale);
                break;
            default:
                ((uint16_t *)page)[at] = td_f32_to_f16(x);
                floats[at] = td_f16_to_f32(((uint16_t *)page)[at]);
            }
        }
}

enum { ATTN_PAGES = 3, ATTN_QUERIES = 100 };

typedef struct attn_case {
    kern_kv_type k_type, v_type;
    int n_q, k_dim, v_dim;
    float cap;
} attn_case;

/* A query as floats, and as int8 where keys are in q8_0. */
static kern_query make_query(const kern_table *ref, int dim) {
    const size_t pad = ((size_t)dim + 31) & ~(size_t)31;
    float *x = must((size_t)dim * 4), *scale = must(pad / 32 * 4), *min_scale = must(pad / 32 * 4);
    int8_t *q = must(pad);
    int32_t *sum = must(pad / 32 * KERN_SUMS * 4);
    fill(x, dim, 0);
    ref->quantize(x, dim, q, scale, sum, min_scale);
    free(min_scale);
    return (kern_query){x, q, scale, sum};
}
static void query_free(kern_query *q) {
    free((void *)q->x), free((void *)q->q), free((void *)q->scale), free((void *)q->sum);
}

/* One query's softmax over the positions it sees, in double, with the roundings of q8_0 that kernels.h states. sum and
 * out: zeros at first; slack: how far out may be off where a rounding is nearly a tie. */
static void add_true_page(const attn_case *c, const kern_query *q, const float *k, const float *v, const void *v_page,
                          int begin, int end, double *sum, double *out, double *slack) {
    const int v_dim = c->v_dim;
    const kern_kv_q8 *blocks = v_page;
    double w[KERN_PAGE], top = 0;
    for (int i = begin; i < end; i++) {
        double s = 0, largest = 0;
        for (int d = 0; d < c->k_dim; d++)
            s += (double)k[d * KERN_PAGE + i] *
                 (c->k_type == KERN_KV_Q8_0 ? q->q[d] * (double)q->scale[d / 32] : (double)q->x[d]);
        if (c->cap > 0) s = (double)c->cap * tanh(s / (double)c->cap);
        *sum += w[i] = exp(s - 20);
        if (c->v_type != KERN_KV_Q8_0) continue;
        for (int b = 0; b < v_dim / KERN_BLOCK; b++)
            largest = fmax(largest, (double)td_f16_to_f32(blocks[b].scale[i]));
        top = fmax(top, w[i] * largest);
    }
    for (int i = begin; i < end; i++)
        for (int d = 0; d < v_dim; d++) {
            double value = (double)v[i * v_dim + d], weight = w[i];
            if (c->v_type == KERN_KV_Q8_0) {
                const double exact = w[i] * (double)td_f16_to_f32(blocks[d / 32].scale[i]) / top * 127;
                value = blocks[d / 32].q[i / 4][d % 32][i % 4], weight = rint(exact) * top / 127;
                if (fabs(fabs(exact - rint(exact)) - 0.5) < 2e-3) slack[d] += fabs(value) * top / 127;
            }
            out[d] += weight * value;
        }
}

/* Three pages: all levels equal ref, each query alone equals the call, and ref is near a softmax in double. Slots
 * outside the ranges hold NaN. */
static void check_attention(const kern_table *ref, const kern_table *k, const attn_case *c) {
    enum { PAGES = ATTN_PAGES, NQ = ATTN_QUERIES };
    const int k_dim = c->k_dim, v_dim = c->v_dim, nq = c->n_q;
    const int last = rnd_int(1, 32), low = rnd_int(0, 31), windows = rnd_int(0, 1);
    const float cap = c->cap;
    const size_t kn = (size_t)k_dim * 32, vn = (size_t)v_dim * 32;
    uint8_t *kp[PAGES], *vp[PAGES];
    float *kf = must(PAGES * kn * 4), *vf = must(PAGES * vn * 4);
    for (int p = 0; p < PAGES; p++) {
        kp[p] = must(kern_kv_page_bytes(c->k_type, k_dim)), vp[p] = must(kern_kv_page_bytes(c->v_type, v_dim));
        const int from = p == 0 ? low : 0, to = p == PAGES - 1 ? last : 32;
        fill_page(c->k_type, false, kp[p], k_dim, from, to, kf + (size_t)p * kn);
        fill_page(c->v_type, true, vp[p], v_dim, from, to, vf + (size_t)p * vn);
    }
    kern_query q[NQ];
    float *out[2][NQ];
    kern_attn_state st[2][NQ], *sp[NQ];
    int16_t b[PAGES][NQ], e[PAGES][NQ];
    const size_t on = ((size_t)v_dim + 15) & ~(size_t)15;
    for (int j = 0; j < nq; j++) {
        q[j] = make_query(ref, k_dim);
        for (int v = 0; v < 2; v++) {
            out[v][j] = guarded(on);
            memset(out[v][j], 0, on * 4);
            st[v][j] = (kern_attn_state){-INFINITY, 0, out[v][j]};
        }
        b[0][j] = (int16_t)rnd_int(low, 31), e[0][j] = 32;
        b[1][j] = windows ? (int16_t)rnd_int(0, 31) : 0;
        e[1][j] = windows ? (int16_t)rnd_int(b[1][j] + 1, 32) : 32;
        b[2][j] = 0, e[2][j] = (int16_t)rnd_int(1, last);
    }
    for (int p = 0; p < PAGES; p++) {
        kern_attn a = {.k_type = c->k_type,
                       .v_type = c->v_type,
                       .k = kp[p],
                       .v = vp[p],
                       .next_k = p + 1 < PAGES ? kp[p + 1] : NULL,
                       .next_v = p + 1 < PAGES ? vp[p + 1] : NULL,
                       .k_dim = k_dim,
                       .v_dim = v_dim,
                       .softcap = cap,
                       .n_q = nq,
                       .q = q,
                       .begin = b[p],
                       .end = e[p],
                       .state = sp};
        for (int j = 0; j < nq; j++)
            sp[j] = &st[1][j];
        k->attn_page(&a);
        for (int j = 0; j < nq; j++) { /* alone, at ref */
            kern_attn_state *alone = &st[0][j];
            kern_attn one = a;
            one.n_q = 1, one.q = &q[j], one.begin = &b[p][j], one.end = &e[p][j];
            one.state = &alone;
            ref->attn_page(&one);
        }
    }
    for (int j = 0; j < nq; j++) {
        verdict(st[0][j].max == st[1][j].max && st[0][j].sum == st[1][j].sum &&
                    !memcmp(out[0][j], out[1][j], (size_t)v_dim * 4),
                "attn_page at %s: query %d of %d, dims %d %d, types %d %d", k->level, j, nq, k_dim, v_dim,
                (int)c->k_type, (int)c->v_type);
        verdict(guard_ok(out[0][j], on) && guard_ok(out[1][j], on), "attn_page at %s wrote past %d values", k->level,
                v_dim);
        double *o = must((size_t)v_dim * 8), *slack = must((size_t)v_dim * 8), sum = 0;
        for (int p = 0; p < PAGES; p++)
            add_true_page(c, &q[j], kf + (size_t)p * kn, vf + (size_t)p * vn, vp[p], b[p][j], e[p][j], &sum, o, slack);
        for (int d = 0; d < v_dim; d++) {
            const double got = (double)out[0][j][d] / (double)st[0][j].sum;
            const bool ok = fabs(got - o[d] / sum) < 2e-5 + slack[d] / sum;
            verdict(ok, "attn_page: value %d is %g, not %g (dims %d %d cap %g)", d, got, o[d] / sum, k_dim,
                    v_dim, (double)cap);
            if (!ok) break;
        }
        free(o), free(slack), query_free(&q[j]), free(out[0][j]), free(out[1][j]);
    }
    for (int p = 0; p < PAGES; p++)
        free(kp[p]), free(vp[p]);
    free(kf), free(vf);
}

static void check_all(const kern_table *ref, const kern_table *k, int rounds) {
    static const int dims[][2] = {{64, 64},  {128, 128}, {256, 256}, {80, 80}, {33, 49},
                                 {24, 40}, {4, 6},     {1, 1}};
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < N_TYPES; i++) {
            const int block = td_type_get(types[i])->block;
            problem p;
            problem_make(&p, ref, types[i], rnd_int(1, 70), block * rnd_int(1, block == 256 ? 4 : 40),
                         rnd_int(1, 40), round % 4 == 3);
            if (k == ref) check_gemm_truth(ref, &p, td_type_get(types[i])->name);
            check_gemm(ref, k, &p, td_type_get(types[i])->name);
            problem_free(&p);
        }
        check_vectors(ref, k, rnd_int(1, 200), round % 4);
        check_vectors(ref, k, 32 * rnd_int(1, 30), round % 4);
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            const bool blocks = dims[i][0] % KERN_BLOCK == 0 && dims[i][1] % KERN_BLOCK == 0;
            const int n_types = blocks ? KERN_KV_TYPES : 2; /* else f16 and f32 */
            check_attention(ref, k,
                            &(attn_case){(kern_kv_type)rnd_int(0, n_types - 1), (kern_kv_type)rnd_int(0, n_types - 1),
                                         rnd_int(1, 20), dims[i][0], dims[i][1], round % 3 == 2 ? 5.0f : 0.0f});
        }
    }
    for (int n_q = 1; n_q <= ATTN_QUERIES && rounds; n_q++) {
        const float cap = n_q % 3 ? 0.0f : 5.0f;
        const kern_kv_type quantised = n_q & 1 ? KERN_KV_Q8_0 : KERN_KV_Q4_0;
        const kern_kv_type floats = n_q & 1 ? KERN_KV_F32 : KERN_KV_F16;
        check_attention(ref, k, &(attn_case){floats, floats, n_q, 12, 70, cap});
        check_attention(ref, k, &(attn_case){quantised, quantised, n_q, 64, 96, cap});
    }
}

/* ---- the same bits on every architecture ---- */

static uint64_t fnv1a(uint64_t h, const void *data, size_t n) {
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    return h;
}

/* One query's two pages of every type. */
static uint64_t digest_attention(const kern_table *ref, uint64_t h) {
    enum { DIM = 64, N = DIM * KERN_PAGE };
    float *page = must(N * sizeof *page), *floats = must(N * sizeof *floats), *out = must(DIM * sizeof *out);
    for (int type = 0; type < KERN_KV_TYPES; type++) {
        kern_attn_state st = {-INFINITY, 0, out}, *const states[] = {&st};
        memset(out, 0, DIM * sizeof *out);
        for (int p = 0; p < 2; p++) {
            kern_query q = make_query(ref, DIM);
            fill_page((kern_kv_type)type, p, page, DIM, 0, KERN_PAGE, floats);
            ref->attn_page(&(kern_attn){.k_type = (kern_kv_type)type,
                                        .v_type = (kern_kv_type)type,
                                        .k = page,
                                        .v = page,
                                        .k_dim = DIM,
                                        .v_dim = DIM,
                                        .softcap = p ? 20.0f : 0.0f,
                                        .n_q = 1,
                                        .q = &q,
                                        .begin = &(int16_t){3},
                                        .end = &(int16_t){30},
                                        .state = states});
            query_free(&q);
        }
        h = fnv1a(fnv1a(h, &st.sum, sizeof st.sum), out, DIM * sizeof *out);
    }
    free(page), free(floats), free(out);
    return h;
}

/* Products of every type, attention, and the vectors between them, at ref, on numbers of its own: no libm, and no NaN, whose bits
 * are an architecture's own. Who changes the arithmetic changes the constant; it came from x86-64. */
static void check_digest(const kern_table *ref) {
    enum { OUT = 40, IN = 512, ROWS = 2, N = 100 };
    const uint64_t want = 0xd004660617c9272fu, was = rng_state;
    uint64_t h = 14695981039346656037u;
    float *y = must(OUT * ROWS * sizeof *y);
    rng_state = 7;
    for (int i = 0; i < N_TYPES; i++) {
        problem p;
        problem_make(&p, ref, types[i], OUT, IN, ROWS, false);
        ref->gemm[types[i]](&p.mat, 0, p.mat.n_panels, &p.acts, y, OUT);
        h = fnv1a(h, p.acts.q, IN * ROWS);
        h = fnv1a(h, p.acts.scale, IN / 32 * ROWS * sizeof(float));
        h = fnv1a(h, p.acts.min_scale, IN / 32 * ROWS * sizeof(float));
        h = fnv1a(h, y, OUT * ROWS * sizeof *y);
        problem_free(&p);
    }
    float *x = must(N * sizeof *x), *w = must(N * sizeof *w);
    fill(x, N, 0), fill(w, N, 3);
    ref->rmsnorm(x, w, N, 1e-6f, x), h = fnv1a(h, x, N * sizeof *x);
    ref->silu_mul(w, x, N, x), h = fnv1a(h, x, N * sizeof *x);
    ref->gelu_mul(x, w, N, x), h = fnv1a(h, x, N * sizeof *x);
    ref->softcap(x, 30, N), h = fnv1a(h, x, N * sizeof *x);
    ref->rope(x, N, w, w + N / 2, true), h = fnv1a(h, x, N * sizeof *x);
    h = digest_attention(ref, h);
    verdict(h == want, "ref's results have the digest 0x%016llx, not 0x%016llx", (unsigned long long)h,
            (unsigned long long)want);
    free(x), free(w), free(y);
    rng_state = was;
}

int main(int argc, char **argv) {
    uint64_t seed = 1;
    int rounds = 12;
    const char *only_level = NULL, *expected = NULL;
    for (int i = 1; i < argc; i++) {
        if (i + 1 < argc && !strcmp(argv[i], "--seed")) seed = strtoull(argv[++i], NULL, 0);
        else if (i + 1 < argc && !strcmp(argv[i], "--rounds")) rounds = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--level")) only_level = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--expect")) expected = argv[++i];
        else return fprintf(stderr, "usage: %s [--seed S] [--rounds N] [--level L] [--expect L,L]\n", argv[0]), 2;
    }
    rng_state = seed;
    unsigned has;
    td_error err;
    if (td_cpu_features(&has, &err))
        return fprintf(stderr, "%s\n", err.msg), 1;
    const unsigned levels[] = {0, TD_CPU_AVX2, TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512_VNNI,
                               TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512_VNNI | TD_CPU_AMX,
                               TD_CPU_DOTPROD};
    kern_table ref, k;
    kern_table_init(&ref, 0);
    const char *was = "";
    td_buf names = {0};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (levels[i] & ~has) continue;
        kern_table_init(&k, levels[i]);
        if (i && !strcmp(k.level, was)) continue; /* this build has no such level */
        was = k.level;
        td_buf_printf(&names, "%s%s", i ? "," : "", k.level);
        if (only_level && strcmp(only_level, k.level)) continue;
        check_all(&ref, i ? &k : &ref, rounds);
        printf("%s: checked\n", k.level);
    }
    check_digest(&ref);
    if (expected) verdict(!strcmp(expected, names.data), "levels: %s, not %s", names.data, expected);
    td_buf_free(&names);
    printf("[  PASSED  ] %d test(s).\n", n_passed);
    if (n_failed) printf("[  FAILED  ] %d test(s), seed %llu\n", n_failed, (unsigned long long)seed);
    return n_failed != 0;
}
