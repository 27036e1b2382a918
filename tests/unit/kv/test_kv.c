/* The cache against a naive one: each position of each sequence is a tag, and K and V are functions
 * of the tag. Random operations go to both; after each, everything the cache holds is compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kv/kv_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_LAYERS = 5, MAX_SEQS = 5, MAX_ROWS = 40, ROLLBACK = 10, MAX_CTX = 400, MAX_DIM = 96 };

static const kv_layer odd_layers[N_LAYERS] = {
    {2, 5, 7, 0}, {1, 3, 4, 40}, {2, 9, 2, 0}, {3, 4, 3, 70}, {1, 1, 1, 1}};
static const kv_layer block_layers[N_LAYERS] = {
    {2, 32, 64, 0}, {1, 96, 32, 40}, {2, 64, 32, 0}, {3, 32, 32, 70}, {1, 32, 96, 1}};
static const kv_layer *layers; /* of the cache at hand */

typedef struct naive_seq {
    bool used;
    int len, high, tags[MAX_CTX];
    bool in_flight; /* rows were reserved and not kept */
} naive_seq;

typedef struct world {
    kv_cache *kv;
    naive_seq seqs[MAX_SEQS];
    int n_ctx, next_tag;
    unsigned random;
} world;

static int below(world *w, int n) {
    w->random = w->random * 1664525u + 1013904223u;
    return (int)((w->random >> 8) % (unsigned)n);
}

/* Exact in the cache's type. Quantised blocks hold whole numbers of the type's range, times a power of two of the
 * tag's, and the largest one somewhere, so that this power is their scale. */
static float value_of(kern_kv_type type, int tag, int layer, int head, int d, int is_v) {
    const int n = tag * 37 + layer * 11 + head * 5 + d * 3 + is_v * 101;
    const float scale = (float)(1 << tag % 5);
    const bool largest = d % KERN_BLOCK == (tag + is_v) % KERN_BLOCK;
    if (type == KERN_KV_Q8_0)
        return scale * (float)(largest ? (tag & 1 ? 127 : -127) : n % 255 - 127);
    if (type == KERN_KV_Q4_0) return scale * (float)(largest ? -8 : n % 16 - 8);
    return (float)(n % 2048);
}

static float read_k(kern_kv_type type, const void *page, int at, int d) {
    const kern_kv_q8 *q8 = (const kern_kv_q8 *)page + d / 32;
    const kern_kv_q4 *q4 = (const kern_kv_q4 *)page + d / 32;
    const int i = d % 32;
    switch (type) {
    case KERN_KV_F32:
        return ((const float *)page)[d * KERN_PAGE + at];
    case KERN_KV_Q8_0:
        return (float)q8->q[i / 4][at][i % 4] * td_f16_to_f32(q8->scale[at]);
    case KERN_KV_Q4_0:
        return (float)((q4->q[i / 2 * 32 + at] >> 4 * (i % 2) & 15) - 8) *
               td_f16_to_f32(q4->scale[at]);
    default:
        return td_f16_to_f32(((const uint16_t *)page)[d * KERN_PAGE + at]);
    }
}

static float read_v(kern_kv_type type, const void *page, int v_dim, int at, int d) {
    const kern_kv_q8 *q8 = (const kern_kv_q8 *)page + d / 32;
    const kern_kv_q4 *q4 = (const kern_kv_q4 *)page + d / 32;
    const int i = d % 32;
    switch (type) {
    case KERN_KV_F32:
        return ((const float *)page)[at * v_dim + d];
    case KERN_KV_Q8_0:
        return (float)q8->q[at / 4][i][at % 4] * td_f16_to_f32(q8->scale[at]);
    case KERN_KV_Q4_0:
        return (float)((q4->q[at * 16 + i % 16] >> 4 * (i / 16) & 15) - 8) *
               td_f16_to_f32(q4->scale[at]);
    default:
        return td_f16_to_f32(((const uint16_t *)page)[at * v_dim + d]);
    }
}

static void write_row(world *w, int seq, int slot, int tag) {
    float k[3 * MAX_DIM], v[3 * MAX_DIM];
    for (int l = 0; l < N_LAYERS; l++) {
        for (int h = 0; h < layers[l].n_heads; h++) {
            for (int d = 0; d < layers[l].k_dim; d++)
                k[h * layers[l].k_dim + d] = value_of(kv_k_type(w->kv), tag, l, h, d, 0);
            for (int d = 0; d < layers[l].v_dim; d++)
                v[h * layers[l].v_dim + d] = value_of(kv_v_type(w->kv), tag, l, h, d, 1);
        }
        kv_write(w->kv, seq, l, slot, k, v);
    }
}

static void check_place(const kv_cache *kv, const void *k, const void *v, int at, int l, int h,
                        int tag) {
    for (int d = 0; d < layers[l].k_dim; d++)
        assert_true(read_k(kv_k_type(kv), k, at, d) == value_of(kv_k_type(kv), tag, l, h, d, 0));
    for (int d = 0; d < layers[l].v_dim; d++)
        assert_true(read_v(kv_v_type(kv), v, layers[l].v_dim, at, d) ==
                    value_of(kv_v_type(kv), tag, l, h, d, 1));
}

/* All that a sequence's next row can see is there, and what else is there is right. */
static void check_seq(const world *w, int seq) {
    const naive_seq *s = &w->seqs[seq];
    assert_int_equal(kv_seq_len(w->kv, seq), s->len);
    for (int l = 0; l < N_LAYERS; l++)
        for (int h = 0; h < layers[l].n_heads; h++)
            for (int at = 0; at < s->len; at++) {
                const void *k = kv_page_k(w->kv, seq, l, h, at / KERN_PAGE);
                const void *v = kv_page_v(w->kv, seq, l, h, at / KERN_PAGE);
                assert_int_equal((uintptr_t)k % KERN_ALIGN, 0);
                assert_int_equal((uintptr_t)v % KERN_ALIGN, 0);
                if (!layers[l].window || at > s->len - layers[l].window) assert_non_null(k);
                if (k) check_place(w->kv, k, v, at % KERN_PAGE, l, h, s->tags[at]);
            }
}

static void check_world(const world *w) {
    assert_true(kv_check(w->kv));
    for (int i = 0; i < MAX_SEQS; i++)
        if (w->seqs[i].used) check_seq(w, i);
}

/* Whether the header promises n more rows to seq. Rows in flight elsewhere count against max_rows.
 */
static bool must_fit(const world *w, int seq, int n) {
    for (int i = 0; i < MAX_SEQS; i++) {
        if (!w->seqs[i].used) continue;
        n += w->seqs[i].len;
        if (i != seq && w->seqs[i].in_flight) return false;
    }
    return n <= w->n_ctx;
}

static void do_new(world *w) {
    int seq, n_used = 0;
    for (int i = 0; i < MAX_SEQS; i++)
        n_used += w->seqs[i].used;
    td_error err;
    const td_code rc = kv_seq_new(w->kv, &seq, &err);
    assert_int_equal(rc, n_used == MAX_SEQS ? TD_E_TOO_BIG : TD_OK);
    if (!rc) w->seqs[seq] = (naive_seq){.used = true};
}

static void do_fork(world *w, int from) {
    naive_seq *s = &w->seqs[from];
    const int n_pos = below(w, 2) ? s->len : below(w, s->len + 1);
    int seq, n_used = 0;
    for (int i = 0; i < MAX_SEQS; i++)
        n_used += w->seqs[i].used;
    td_error err;
    const td_code rc = kv_seq_fork(w->kv, from, n_pos, &seq, &err);
    if (n_used < MAX_SEQS && (n_pos >= s->high - ROLLBACK || n_pos == 0))
        assert_int_equal(rc, TD_OK);
    if (rc) {
        assert_true(rc == TD_E_TOO_BIG || rc == TD_E_UNSUPPORTED);
        return;
    }
    assert_true(!w->seqs[seq].used);
    s->in_flight = false;
    w->seqs[seq] = *s;
    w->seqs[seq].len = n_pos;
    w->seqs[seq].high = s->high; /* what it holds is what `from` held */
}

/* Gathers scattered slots of the pass and of the committed part. */
static void check_gather(world *w, int seq, const int *tags, int n_rows) {
    const naive_seq *s = &w->seqs[seq];
    const int l = below(w, N_LAYERS), h = below(w, layers[l].n_heads);
    const int oldest =
        layers[l].window && s->len > layers[l].window - 1 ? s->len - (layers[l].window - 1) : 0;
    const int first = below(w, KERN_PAGE), n = 1 + below(w, KERN_PAGE - first);
    int slots[KERN_PAGE];
    float k[MAX_DIM * KERN_PAGE], v[MAX_DIM * KERN_PAGE];
    for (int i = 0; i < n; i++)
        slots[i] = oldest + below(w, s->len + n_rows - oldest);
    kv_gather(w->kv, seq, l, h, slots, n, first, k, v);
    for (int i = 0; i < n; i++)
        check_place(w->kv, k, v, first + i, l, h,
                    slots[i] < s->len ? s->tags[slots[i]] : tags[slots[i] - s->len]);
}

static void do_pass(world *w, int seq) {
    naive_seq *s = &w->seqs[seq];
    const int n = below(w, 4) ? 1 + below(w, 6) : 1 + below(w, MAX_ROWS);
    int tags[MAX_ROWS], rows[MAX_ROWS], n_kept = 0;
    td_error err;
    const td_code rc = kv_seq_reserve(w->kv, seq, n, &err);
    if (s->len + n > w->n_ctx) assert_int_equal(rc, TD_E_TOO_BIG);
    if (must_fit(w, seq, n)) assert_int_equal(rc, TD_OK);
    if (rc) return;
    s->in_flight = true;
    for (int i = 0; i < n; i++)
        write_row(w, seq, s->len + i, tags[i] = w->next_tag++);
    check_gather(w, seq, tags, n);
    if (below(w, 8) == 0) return; /* forgotten: the next reserve starts over */
    const bool gaps = below(w, 2);
    for (int i = 0; i < n; i++)
        if (!gaps || below(w, 2)) rows[n_kept++] = i;
    if (!gaps) n_kept = below(w, n + 1);
    kv_seq_keep(w->kv, seq, gaps ? rows : NULL, n_kept);
    s->in_flight = false;
    for (int i = 0; i < n_kept; i++)
        s->tags[s->len++] = tags[gaps ? rows[i] : i];
    s->high = s->len > s->high ? s->len : s->high;
}

static void do_truncate(world *w, int seq) {
    naive_seq *s = &w->seqs[seq];
    const int n_pos =
        below(w, 3) ? s->len - below(w, s->len < 12 ? s->len + 1 : 12) : below(w, s->len + 1);
    const bool ok = kv_seq_truncate(w->kv, seq, n_pos);
    if (n_pos >= s->high - ROLLBACK || n_pos == 0) assert_true(ok);
    if (!ok) return;
    s->len = n_pos;
    s->in_flight = false;
    if (!n_pos) s->high = 0;
}

static kv_config config_of(int n_ctx, kern_kv_type k_type, kern_kv_type v_type) {
    layers = kern_kv_quantised(k_type) || kern_kv_quantised(v_type) ? block_layers : odd_layers;
    return (kv_config){.n_layers = N_LAYERS,
                       .layers = layers,
                       .k_type = k_type,
                       .v_type = v_type,
                       .n_ctx = n_ctx,
                       .max_seqs = MAX_SEQS,
                       .max_rows = MAX_ROWS,
                       .max_rollback = ROLLBACK};
}

static void random_walk(int n_ctx, kern_kv_type k_type, kern_kv_type v_type, unsigned seed,
                        int n_steps) {
    world w = {.n_ctx = n_ctx, .random = seed};
    td_error err;
    const kv_config cfg = config_of(n_ctx, k_type, v_type);
    assert_int_equal(kv_open(&w.kv, &cfg, &err), TD_OK);
    assert_int_equal(kv_n_ctx(w.kv), n_ctx);
    for (int step = 0; step < n_steps; step++) {
        const int seq = below(&w, MAX_SEQS), what = below(&w, 20);
        if (!w.seqs[seq].used)
            do_new(&w);
        else if (what < 13)
            do_pass(&w, seq);
        else if (what < 16)
            do_truncate(&w, seq);
        else if (what < 18)
            do_fork(&w, seq);
        else if (what < 19)
            do_new(&w);
        else {
            kv_seq_free(w.kv, seq);
            w.seqs[seq].used = false;
        }
        check_world(&w);
        assert_true(kv_used_bytes(w.kv) <= kv_size_bytes(w.kv));
    }
    for (int i = 0; i < MAX_SEQS; i++)
        if (w.seqs[i].used) kv_seq_free(w.kv, i);
    assert_int_equal(kv_used_bytes(w.kv), 0);
    kv_close(w.kv);
}

static void test_random_operations(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 6; seed++) {
        random_walk(MAX_CTX, KERN_KV_F16, KERN_KV_F16, seed, 1500);
        random_walk(131, KERN_KV_F32, KERN_KV_F32, 100 + seed, 1500);
    }
    for (int k = 0; k < KERN_KV_TYPES; k++)
        for (int v = 0; v < KERN_KV_TYPES; v++)
            random_walk(131, (kern_kv_type)k, (kern_kv_type)v, 200 + (unsigned)(4 * k + v), 300);
}

/* One long sequence fills the context to the last position, and not one more. */
static void test_context_full(void **state) {
    (void)state;
    const kv_config cfg = config_of(100, KERN_KV_F16, KERN_KV_F16);
    kv_cache *kv;
    td_error err;
    int seq;
    assert_int_equal(kv_open(&kv, &cfg, &err), TD_OK);
    assert_int_equal(kv_seq_new(kv, &seq, &err), TD_OK);
    for (int i = 0; i < 97; i++) {
        assert_int_equal(kv_seq_reserve(kv, seq, 1, &err), TD_OK);
        kv_seq_keep(kv, seq, NULL, 1);
    }
    assert_int_equal(kv_seq_reserve(kv, seq, 4, &err), TD_E_TOO_BIG);
    assert_non_null(strstr(err.msg, "context is full"));
    assert_int_equal(kv_seq_len(kv, seq), 97);
    assert_int_equal(kv_seq_reserve(kv, seq, MAX_ROWS + 1, &err), TD_E_ARG);
    assert_int_equal(kv_seq_reserve(kv, seq, 3, &err), TD_OK);
    kv_seq_keep(kv, seq, NULL, 3);
    assert_int_equal(kv_seq_reserve(kv, seq, 1, &err), TD_E_TOO_BIG);
    kv_close(kv);
}

/* A windowed group of one long sequence stays small. */
static void test_windows_bound_memory(void **state) {
    (void)state;
    const kv_layer full = {1, 64, 64, 0}, windowed = {1, 64, 64, 128};
    kv_config cfg = {.n_layers = 1,
                     .layers = &full,
                     .k_type = KERN_KV_F16,
                     .v_type = KERN_KV_F16,
                     .n_ctx = 20000,
                     .max_seqs = 1,
                     .max_rows = 64,
                     .max_rollback = 32};
    kv_cache *a, *b;
    td_error err;
    assert_int_equal(kv_open(&a, &cfg, &err), TD_OK);
    assert_int_equal(kv_bytes_per_position(&cfg), 256);
    cfg.k_type = KERN_KV_Q8_0, cfg.v_type = KERN_KV_Q4_0;
    assert_int_equal(kv_bytes_per_position(&cfg), 2 * 34 + 2 * 18);
    cfg.k_type = cfg.v_type = KERN_KV_F16;
    cfg.layers = &windowed;
    assert_int_equal(kv_open(&b, &cfg, &err), TD_OK);
    assert_int_equal(kv_bytes_per_position(&cfg), 0);
    assert_int_equal(kv_size_bytes(a), 20000 * 256);
    assert_true(kv_size_bytes(b) <= (128 + 32 + 64 + 4 * KERN_PAGE) * 256);
    int seq;
    assert_int_equal(kv_seq_new(b, &seq, &err), TD_OK);
    for (int i = 0; i + 64 < 20000; i += 64) { /* always room */
        assert_int_equal(kv_seq_reserve(b, seq, 64, &err), TD_OK);
        kv_seq_keep(b, seq, NULL, 64);
    }
    assert_false(kv_seq_truncate(b, seq, 5000)); /* long gone */
    assert_true(kv_seq_truncate(b, seq, kv_seq_len(b, seq) - 32));
    assert_true(kv_seq_truncate(b, seq, 0));
    assert_int_equal(kv_used_bytes(b), 0);
    kv_close(a);
    kv_close(b);
}

static void test_bad_configurations(void **state) {
    (void)state;
    static const kv_layer bad_layers[] = {{0, 8, 8, 0}, {1, 0, 8, 0}, {1, 8, -1, 0}, {1, 8, 8, -5}};
    const kv_layer good = {1, 8, 8, 0};
    const kv_config ok = {
        .n_layers = 1, .layers = &good, .n_ctx = 32, .max_seqs = 1, .max_rows = 8};
    kv_config table[10];
    for (int i = 0; i < 10; i++)
        table[i] = ok;
    table[0].n_layers = 0, table[1].n_ctx = 0, table[2].n_ctx = -7, table[3].max_seqs = 0;
    table[4].max_rows = 0, table[5].max_rollback = -1;
    for (int i = 0; i < 4; i++)
        table[6 + i].layers = &bad_layers[i];
    kv_cache *kv = NULL;
    td_error err;
    for (int i = 0; i < 10; i++) {
        err = (td_error){0};
        assert_int_equal(kv_open(&kv, &table[i], &err), TD_E_ARG);
        assert_true(strlen(err.msg) > 10);
    }
    assert_null(kv);
    assert_int_equal(kv_open(&kv, &ok, &err), TD_OK);
    kv_close(kv);
    kv_close(NULL);
}

/* The message names a context that fits, and that one does. */
static void test_too_large_for_memory(void **state) {
    (void)state;
    const kv_layer wide = {1024, 1024, 1024, 0};
    kv_config cfg = {
        .n_layers = 1, .layers = &wide, .n_ctx = 1 << 28, .max_seqs = 1, .max_rows = 8};
    kv_cache *kv;
    td_error err;
    assert_int_equal(kv_open(&kv, &cfg, &err), TD_E_TOO_BIG);
    const char *at = strstr(err.msg, "up to ");
    assert_non_null(at);
    cfg.n_ctx = (int)(0.8 * atoi(at + 6)); /* others use memory meanwhile */
    assert_true(cfg.n_ctx > 0);
    assert_int_equal(kv_open(&kv, &cfg, &err), TD_OK);
    kv_close(kv);
    const kv_layer narrow = {1, 1, 1, 8}; /* little in the pages, terabytes of page tables */
    cfg = (kv_config){
        .n_layers = 1, .layers = &narrow, .n_ctx = 1 << 28, .max_seqs = 1 << 16, .max_rows = 8};
    assert_int_equal(kv_open(&kv, &cfg, &err), TD_E_TOO_BIG);
    const kv_layer absurd[2] = {{1 << 16, 1 << 16, 1 << 16, 0}, {1 << 16, 1 << 16, 1 << 16, 7}};
    cfg = (kv_config){.n_layers = 2,
                      .layers = absurd,
                      .n_ctx = 1 << 28,
                      .max_seqs = 1 << 16,
                      .max_rows = 1 << 20,
                      .k_type = KERN_KV_F32,
                      .v_type = KERN_KV_F32};
    assert_int_equal(kv_open(&kv, &cfg, &err), TD_E_TOO_BIG);
}

/* Rounded to the nearest of the values that a block can hold, whatever stands in it. */
static void test_quantised_values(void **state) {
    (void)state;
    static const kv_layer one = {1, 64, 64, 0};
    for (int type = KERN_KV_Q8_0; type <= KERN_KV_Q4_0; type++) {
        const double steps = type == KERN_KV_Q8_0 ? 127 : 8;
        kv_config cfg = {.n_layers = 1, .layers = &one, .n_ctx = 32, .max_seqs = 1, .max_rows = 32};
        cfg.k_type = cfg.v_type = (kern_kv_type)type;
        kv_cache *kv;
        td_error err;
        int seq;
        unsigned random = 5;
        assert_int_equal(kv_open(&kv, &cfg, &err), TD_OK);
        assert_int_equal(kv_seq_new(kv, &seq, &err), TD_OK);
        assert_int_equal(kv_seq_reserve(kv, seq, 32, &err), TD_OK);
        const void *k = kv_page_k(kv, seq, 0, 0, 0), *v = kv_page_v(kv, seq, 0, 0, 0);
        for (int at = 0; at < 32; at++) {
            float x[64];
            for (int d = 0; d < 64; d++) {
                random = random * 1664525u + 1013904223u;
                x[d] = ((float)(random >> 8) / 8388608.0f - 1) * (float)(1 << at % 12);
            }
            kv_write(kv, seq, 0, at, x, x);
            for (int d = 0; d < 64; d++) {
                double top = 0;
                for (int i = d / 32 * 32; i < d / 32 * 32 + 32; i++)
                    top = fabs((double)x[i]) > top ? fabs((double)x[i]) : top;
                const double got = (double)read_k((kern_kv_type)type, k, at, d), step = top / steps;
                assert_true(got == (double)read_v((kern_kv_type)type, v, 64, at, d));
                /* half a step; of q4_0 the range ends one step before the other end */
                assert_true(fabs(got - (double)x[d]) <=
                            (type == KERN_KV_Q8_0 ? 0.51 : 1.01) * step);
                if (fabs((double)x[d]) < 0.85 * top)
                    assert_true(fabs(got - (double)x[d]) <= 0.51 * step + 0.001 * top);
            }
        }
        const float odd[3] = {INFINITY, NAN, 1e-30f};
        for (int i = 0; i < 3; i++) { /* nothing out of bounds: the sanitizers look on */
            float x[64] = {0};
            x[3] = odd[i], x[40] = -odd[i];
            kv_write(kv, seq, 0, i, x, x);
        }
        kv_close(kv);
    }
    kv_cache *kv;
    td_error err;
    const kv_layer narrow = {1, 48, 64, 0};
    kv_config cfg = {.n_layers = 1, .layers = &narrow, .n_ctx = 32, .max_seqs = 1, .max_rows = 1};
    cfg.v_type = KERN_KV_Q4_0;
    assert_int_equal(kv_open(&kv, &cfg, &err), TD_OK);
    kv_close(kv);
    cfg.k_type = KERN_KV_Q8_0;
    assert_int_equal(kv_open(&kv, &cfg, &err), TD_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "blocks of 32"));
    cfg.k_type = KERN_KV_TYPES;
    assert_int_equal(kv_open(&kv, &cfg, &err), TD_E_ARG);
}

/* The check itself can fail: plants one fault of each kind. */
static void test_check_sees_faults(void **state) {
    (void)state;
    const kv_config cfg = config_of(200, KERN_KV_F16, KERN_KV_F16);
    kv_cache *kv;
    td_error err;
    int a, b;
    assert_int_equal(kv_open(&kv, &cfg, &err), TD_OK);
    assert_int_equal(kv_seq_new(kv, &a, &err), TD_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kv_seq_reserve(kv, a, 33, &err), TD_OK);
        kv_seq_keep(kv, a, NULL, 33);
    }
    assert_int_equal(kv_seq_fork(kv, a, 99, &b, &err), TD_OK);
    assert_true(kv_check(kv));
    kv_group *g = &kv->groups[KV_FULL];
    int *table = kv_table(kv, KV_FULL, a);
    g->ref[table[0]]--;
    assert_false(kv_check(kv));
    g->ref[table[0]]++;
    const int page = table[1];
    table[1] = table[0];
    assert_false(kv_check(kv));
    table[1] = page;
    kv->seqs[a].len += 40; /* a row that nobody kept */
    assert_false(kv_check(kv));
    kv->seqs[a].len -= 40;
    kv->seqs[b].n_reserved = 1; /* would be written while shared */
    assert_false(kv_check(kv));
    kv->seqs[b].n_reserved = 0;
    g->n_free--; /* a lost page */
    assert_false(kv_check(kv));
    g->n_free++;
    assert_true(kv_check(kv));
    kv_close(kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations),    cmocka_unit_test(test_context_full),
        cmocka_unit_test(test_windows_bound_memory), cmocka_unit_test(test_bad_configurations),
        cmocka_unit_test(test_too_large_for_memory), cmocka_unit_test(test_check_sees_faults),
        cmocka_unit_test(test_quantised_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
