/* Matrix products by themselves, one job of the pool a product, as a pass runs them. The matrices
 * come from memory, as weights do: copies stand one behind the other and each job takes the next
 * one, so that a byte is met again only after all the others. Their content is random: no kernel's
 * time depends on it. */
#include "kernels/kernels.h"
#include "bench/bench_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SAMPLE_PANELS = 16,  /* packed from random rows; all panels are copies of these */
    VISIT_NS = 20000000, /* one measurement of a width */
    FIRST_PANELS = 4     /* a thread: enough to guess what a visit can hold */
};

struct bench_kernels {
    bench_probe *probe;     /* borrowed */
    const kern_table *kern; /* static */
    size_t memory_bytes;
    int max_rows;
    uint8_t *ring; /* ring_bytes; owns */
    size_t ring_bytes;
    td_type filled_type; /* the first filled_bytes hold panels of this type and n_in */
    int filled_n_in;
    size_t filled_bytes;
    /* of the product at hand */
    kern_mat mat; /* data: into the ring */
    int n_copies;
    int copy, panel; /* where the next job begins */
    kern_acts acts;  /* max_rows of them */
    float *y;        /* (max_rows, n_out) */
    uint8_t *work;   /* acts and y; owns */
    size_t work_bytes;
};

/* ---- random weights and activations ---- */

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* In [-1, 1). */
static float next_float(uint64_t *state) {
    return (float)((double)next_random(state) / 2147483648.0 - 1.0);
}

/* Where the f16 scales of one block lie in the file: any other byte may be anything. */
static int scale_offsets(td_type type, int at[2]) {
    switch (type) {
    case TD_TYPE_Q2_K:
        at[0] = 80, at[1] = 82;
        return 2;
    case TD_TYPE_Q3_K:
        at[0] = 108;
        return 1;
    case TD_TYPE_Q6_K:
        at[0] = 208;
        return 1;
    case TD_TYPE_Q4_1:
    case TD_TYPE_Q5_1:
    case TD_TYPE_Q4_K:
    case TD_TYPE_Q5_K:
        at[0] = 0, at[1] = 2;
        return 2;
    default:
        at[0] = 0;
        return 1;
    }
}

static void random_value(td_type type, uint8_t *to, uint64_t *state) {
    const float f = next_float(state);
    const uint16_t h = td_f32_to_f16(f);
    if (type == TD_TYPE_F32) memcpy(to, &f, sizeof f);
    if (type == TD_TYPE_F16) memcpy(to, &h, sizeof h);
    if (type == TD_TYPE_BF16) memcpy(to, (const char *)&f + 2, 2);
}

static void random_rows(td_type type, uint8_t *rows, size_t size_bytes, uint64_t *state) {
    const td_type_info *info = td_type_get(type);
    int at[2];
    const int n = info->block > 1 ? scale_offsets(type, at) : 0;
    for (size_t i = 0; i < size_bytes; i += (size_t)info->block_bytes) {
        if (info->block == 1) {
            random_value(type, rows + i, state);
            continue;
        }
        for (int j = 0; j < info->block_bytes; j++)
            rows[i + (size_t)j] = (uint8_t)next_random(state);
        for (int j = 0; j < n; j++) {
            const uint16_t scale = td_f32_to_f16(0.02f * next_float(state));
            memcpy(rows + i + at[j], &scale, sizeof scale);
        }
    }
}

/* Rows of acts stand behind each other without gaps, each as kern_table.quantize leaves it. */
static void fill_acts(bench_kernels *k, float *x) {
    const kern_acts *a = &k->acts;
    const size_t n_in = (size_t)a->n_in, n_blocks = (n_in + KERN_BLOCK - 1) / KERN_BLOCK;
    const size_t n_pad = n_blocks * KERN_BLOCK;
    uint64_t state = 2;
    for (size_t r = 0; r < (size_t)k->max_rows; r++) {
        float *row = x + r * a->x_stride;
        for (size_t i = 0; i < n_in; i++)
            row[i] = next_float(&state);
        k->kern->quantize(row, a->n_in, a->q + r * n_pad, a->scale + r * n_blocks,
                          a->sum + r * KERN_SUMS * n_blocks, a->min_scale + r * n_blocks);
    }
}

/* ---- memory ---- */

size_t bench_beyond_caches(void) {
    const size_t least = (size_t)256 << 20, most = (size_t)1 << 30;
    size_t bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (l3 > 0) bytes = 2 * (size_t)l3;
#endif
    return bytes < least ? least : bytes > most ? most : bytes;
}

/* The next `bytes` of the work area on a cache line; base NULL: only counts. */
static void *cut(uint8_t *base, size_t *at, size_t bytes) {
    uint8_t *p = base ? base + *at : NULL;
    *at += (bytes + KERN_ALIGN - 1) & ~(size_t)(KERN_ALIGN - 1);
    return p;
}

/* Sizes cannot overflow: rows and dimensions are bounded by bench_kernels_measure. */
static size_t cut_work(bench_kernels *k, uint8_t *base, float **x) {
    const size_t n_in = ((size_t)k->mat.n_in + KERN_BLOCK - 1) & ~(size_t)(KERN_BLOCK - 1);
    const size_t n_rows = (size_t)k->max_rows, n = n_rows * n_in, n_scales = n / KERN_BLOCK;
    size_t at = 0;
    *x = cut(base, &at, n * sizeof **x);
    k->acts = (kern_acts){.n_rows = k->max_rows, .n_in = k->mat.n_in, .x = *x, .x_stride = n_in};
    k->acts.q = cut(base, &at, n);
    k->acts.scale = cut(base, &at, n_scales * sizeof *k->acts.scale);
    k->acts.sum = cut(base, &at, KERN_SUMS * n_scales * sizeof *k->acts.sum);
    k->acts.min_scale = cut(base, &at, n_scales * sizeof *k->acts.min_scale);
    k->y = cut(base, &at, n_rows * (size_t)k->mat.n_out * sizeof *k->y);
    return at;
}

typedef struct fill_job {
    const kern_mat *sample;
    uint8_t *ring;
    int first; /* panel of all copies counted through */
    td_split split;
} fill_job;

static void fill_panels(void *arg, int thread, int n_threads) {
    fill_job *j = arg;
    const size_t bytes = j->sample->panel_bytes;
    (void)thread, (void)n_threads;
    for (int begin, end; td_split_next(&j->split, &begin, &end);)
        for (int i = j->first + begin; i < j->first + end; i++)
            memcpy(j->ring + (size_t)i * bytes,
                   j->sample->data + (size_t)(i % SAMPLE_PANELS) * bytes, bytes);
}

/* Packs a few panels of random rows and copies them all over the ring. What another shape of the same
 * type and n_in left there stays. */
static td_code fill_ring(bench_kernels *k, td_error *err) {
    kern_mat sample;
    size_t row_bytes = 0;
    uint64_t state = 1;
    td_code rc =
        kern_mat_init(&sample, k->mat.type, SAMPLE_PANELS * KERN_PANEL, (uint64_t)k->mat.n_in, err);
    if (rc) return rc;
    if (k->filled_type != k->mat.type || k->filled_n_in != k->mat.n_in) k->filled_bytes = 0;
    const int first = (int)(k->filled_bytes / sample.panel_bytes);
    const int n_panels = k->n_copies * k->mat.n_panels;
    if (first >= n_panels) return TD_OK;
    td_type_row_bytes(&row_bytes, k->mat.type, (uint64_t)k->mat.n_in);
    const size_t rows_bytes = row_bytes * SAMPLE_PANELS * KERN_PANEL;
    uint8_t *rows = td_calloc(rows_bytes, 1);
    sample.data = aligned_alloc(KERN_ALIGN, kern_mat_bytes(&sample));
    if (rows && sample.data) {
        random_rows(k->mat.type, rows, rows_bytes, &state);
        kern_mat_pack(&sample, rows, row_bytes, 0, sample.n_panels);
        fill_job job = {.sample = &sample, .ring = k->ring, .first = first};
        td_split_init(&job.split, n_panels - first, 64);
        td_pool_run(bench_probe_pool(k->probe), fill_panels, &job);
        k->filled_type = k->mat.type, k->filled_n_in = k->mat.n_in;
        k->filled_bytes = (size_t)n_panels * sample.panel_bytes;
    } else {
        rc = td_fail(err, TD_E_MEMORY, "out of memory for a sample of %s",
                     td_type_get(k->mat.type)->name);
    }
    free(rows);
    free(sample.data);
    return rc;
}

static td_code map_ring(bench_kernels *k, size_t bytes, td_error *err) {
    if (bytes <= k->ring_bytes) return TD_OK;
    td_unmap(k->ring, k->ring_bytes);
    k->ring = NULL, k->ring_bytes = k->filled_bytes = 0;
    if (bytes > td_memory_available() || !(k->ring = td_map(bytes)))
        return td_fail(err, TD_E_MEMORY, "no memory for matrices of %zu MB", bytes / 1000000);
    k->ring_bytes = bytes;
    return TD_OK;
}

static td_code prepare(bench_kernels *k, const bench_product *p, td_error *err) {
    size_t ring_bytes;
    float *x;
    td_code rc = kern_mat_init(&k->mat, p->type, (uint64_t)p->n_out, (uint64_t)p->n_in, err);
    if (rc) return rc;
    const size_t bytes = kern_mat_bytes(&k->mat);
    k->n_copies = (int)((k->memory_bytes + bytes - 1) / bytes);
    k->copy = k->panel = 0;
    if (!td_mul(&ring_bytes, (size_t)k->n_copies, bytes))
        return td_fail(err, TD_E_TOO_BIG, "%d matrices of %zu bytes", k->n_copies, bytes);
    if ((rc = map_ring(k, ring_bytes, err)) || (rc = fill_ring(k, err))) return rc;
    k->work_bytes = cut_work(k, NULL, &x);
    if (k->work_bytes > td_memory_available() || !(k->work = td_map(k->work_bytes)))
        return td_fail(err, TD_E_MEMORY, "no memory for %d rows of %d values", k->max_rows,
                       p->n_out);
    cut_work(k, k->work, &x);
    fill_acts(k, x);
    return TD_OK;
}

static void release_work(bench_kernels *k) {
    td_unmap(k->work, k->work_bytes);
    k->work = NULL;
}

td_code bench_kernels_open(bench_kernels **out, bench_probe *probe, size_t memory_bytes,
                           int max_rows, td_error *err) {
    enum { MAX_ROWS = 4096 };
    const kern_table *kern;
    td_code rc = kern_table_get(&kern, err);
    if (rc) return rc;
    if (max_rows < 1 || max_rows > MAX_ROWS)
        return td_fail(err, TD_E_ARG, "products of %d rows make no sense; use 1 to %d", max_rows,
                       (int)MAX_ROWS);
    bench_kernels *k = td_calloc(1, sizeof *k);
    if (!k) return td_fail(err, TD_E_MEMORY, "out of memory");
    *k = (bench_kernels){
        .probe = probe, .kern = kern, .memory_bytes = memory_bytes, .max_rows = max_rows};
    *out = k;
    return TD_OK;
}

void bench_kernels_close(bench_kernels **k) {
    if (!*k) return;
    release_work(*k);
    td_unmap((*k)->ring, (*k)->ring_bytes);
    free(*k);
    *k = NULL;
}

bool bench_kernels_can(const bench_kernels *k, const bench_product *p) {
    return (unsigned)p->type < TD_TYPE_COUNT && k->kern->gemm[p->type] &&
           p->n_in % td_type_get(p->type)->block == 0;
}

/* ---- timing ---- */

typedef struct product_job {
    const bench_kernels *k;
    kern_mat w;
    kern_acts a;
    int first; /* panel */
    td_split split;
} product_job;

static void run_panels(void *arg, int thread, int n_threads) {
    product_job *j = arg;
    (void)thread, (void)n_threads;
    for (int begin, end; td_split_next(&j->split, &begin, &end);)
        j->k->kern->gemm[j->w.type](&j->w, j->first + begin, j->first + end, &j->a, j->k->y,
                                    (size_t)j->w.n_out);
}

/* Nanoseconds of n_jobs jobs of n_panels each, m rows. */
static double run_jobs(bench_kernels *k, int m, int n_panels, int n_jobs) {
    td_pool *pool = bench_probe_pool(k->probe);
    const size_t bytes = kern_mat_bytes(&k->mat);
    product_job j = {.k = k, .w = k->mat, .a = k->acts};
    j.a.n_rows = m;
    /* Pieces as a pass cuts them: some 8 a thread, none so long that the last one is waited for. */
    const int step = n_panels / (8 * td_pool_size(pool));
    const uint64_t begin = td_now_ns();
    for (int i = 0; i < n_jobs; i++) {
        if (k->panel + n_panels > k->mat.n_panels)
            k->panel = 0, k->copy = (k->copy + 1) % k->n_copies;
        j.w.data = k->ring + (size_t)k->copy * bytes;
        j.first = k->panel;
        k->panel += n_panels;
        td_split_init(&j.split, n_panels, step > 256 ? 256 : step);
        td_pool_run(pool, run_panels, &j);
    }
    return (double)(td_now_ns() - begin);
}

/* What a visit of VISIT_NS holds: whole products, or a part of one that takes longer. */
typedef struct visit {
    int n_panels, n_jobs;
} visit;

static visit plan_visit(bench_kernels *k, int m) {
    const int all = k->mat.n_panels, few = FIRST_PANELS * bench_probe_threads(k->probe);
    visit v = {.n_panels = few < all ? few : all, .n_jobs = 1};
    run_jobs(k, m, v.n_panels, 1); /* warms up */
    const double panel_ns = run_jobs(k, m, v.n_panels, 1) / v.n_panels;
    const double fit = VISIT_NS / panel_ns;
    if (fit > v.n_panels) v.n_panels = fit < all ? (int)fit : all;
    if (fit > v.n_panels) v.n_jobs = (int)fmin(fit / v.n_panels, 10000);
    return v;
}

typedef struct product_rounds {
    double *ms;          /* (n_rounds, n_rows) */
    double *column;      /* (2, n_rounds) scratch */
    visit *visits;       /* (n_rows) */
    bench_limits limits; /* best of all looks, which are seconds apart */
} product_rounds;

static void sum_up(const kern_mat *mat, const product_rounds *all, const int *rows, int n_rows,
                   int n_rounds, bench_product_point *points) {
    const double bytes = (double)kern_mat_bytes(mat), macs = (double)mat->n_out * mat->n_in;
    const bool floats = td_type_get(mat->type)->block == 1;
    double *ms = all->column, *reached = ms + n_rounds;
    for (int i = 0; i < n_rows; i++) {
        const double work = macs * rows[i];
        const double roofline =
            bench_roofline_ms(&all->limits, bytes, floats ? 0 : work, floats ? work : 0);
        for (int r = 0; r < n_rounds; r++) {
            ms[r] = all->ms[r * n_rows + i];
            reached[r] = roofline / ms[r];
        }
        bench_product_point *p = &points[i];
        *p = (bench_product_point){.m = rows[i],
                                   .ms = bench_range_of(ms, n_rounds),
                                   .roofline_ms = roofline,
                                   .reached = bench_range_of(reached, n_rounds)};
        p->by_memory = roofline <= bench_roofline_ms(&all->limits, bytes, 0, 0);
        p->gb_per_s = bytes / p->ms.median / 1e6;
        p->gmac_per_s = work / p->ms.median / 1e6;
    }
}

static td_code run_rounds(bench_kernels *k, const int *rows, int n_rows, int n_rounds,
                          product_rounds *all, bench_tick_fn *tick, void *user, td_error *err) {
    char what[64];
    snprintf(what, sizeof what, "%s %dx%d", td_type_get(k->mat.type)->name, k->mat.n_out,
             k->mat.n_in);
    for (int i = 0; i < n_rows; i++) {
        if (tick && !tick(user, what, 0, n_rounds * n_rows))
            return td_fail(err, TD_E_CANCELLED, "stopped");
        all->visits[i] = plan_visit(k, rows[i]);
    }
    for (int r = 0; r < n_rounds; r++) {
        bench_limits_look(&all->limits, k->probe, 1);
        for (int i = 0; i < n_rows; i++) {
            const int at = r % 2 ? n_rows - 1 - i : i;
            const visit *v = &all->visits[at];
            if (tick && !tick(user, what, r * n_rows + i, n_rounds * n_rows))
                return td_fail(err, TD_E_CANCELLED, "stopped");
            const double ns = run_jobs(k, rows[at], v->n_panels, v->n_jobs);
            all->ms[r * n_rows + at] =
                ns / 1e6 / ((double)v->n_panels * v->n_jobs) * k->mat.n_panels;
        }
    }
    bench_limits_look(&all->limits, k->probe, 1);
    return TD_OK;
}

td_code bench_kernels_measure(bench_kernels *k, const bench_product *p, const int *rows, int n_rows,
                              int n_rounds, bench_product_point *points, bench_limits *seen,
                              bench_tick_fn *tick, void *user, td_error *err) {
    enum { MAX_DIM = 1 << 20 };
    product_rounds all = {0};
    td_code rc;
    if (n_rows < 1 || n_rounds < 1 || n_rounds > BENCH_MAX_ROUNDS)
        return td_fail(err, TD_E_ARG, "%d widths in %d rounds make no sense", n_rows, n_rounds);
    for (int i = 0; i < n_rows; i++)
        if (rows[i] < 1 || rows[i] > k->max_rows)
            return td_fail(err, TD_E_ARG, "a product of %d rows; room was made for 1 to %d",
                           rows[i], k->max_rows);
    if (p->n_out < 1 || p->n_out > MAX_DIM || p->n_in < 1 || p->n_in > MAX_DIM ||
        !bench_kernels_can(k, p))
        return td_fail(err, TD_E_ARG, "no product of %d x %d of type %d", p->n_out, p->n_in,
                       (int)p->type);
    all.ms = td_calloc((size_t)n_rounds * (size_t)n_rows, sizeof *all.ms);
    all.column = td_calloc((size_t)n_rounds * 2, sizeof *all.column);
    all.visits = td_calloc((size_t)n_rows, sizeof *all.visits);
    if (!all.ms || !all.column || !all.visits)
        rc = td_fail(err, TD_E_MEMORY, "out of memory");
    else
        rc = prepare(k, p, err);
    if (!rc) rc = run_rounds(k, rows, n_rows, n_rounds, &all, tick, user, err);
    if (!rc) {
        sum_up(&k->mat, &all, rows, n_rows, n_rounds, points);
        bench_limits_raise(seen, &all.limits);
    }
    release_work(k);
    free(all.ms);
    free(all.column);
    free(all.visits);
    return rc;
}
