/* Opening and closing a cache: where each layer lies in a page, how many pages each group can ever
 * need, and the memory for them. */
#include "kv/kv_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Beyond these a number is a mistake, and below them int arithmetic cannot overflow. */
enum {
    MAX_LAYERS = 1 << 16,
    MAX_HEADS = 1 << 16,
    MAX_DIM = 1 << 16,
    MAX_CTX = 1 << 28,
    MAX_SEQS = 1 << 16,
    MAX_ROWS = 1 << 20
};

static size_t align_up(size_t n) {
    return (n + KERN_ALIGN - 1) & ~(size_t)(KERN_ALIGN - 1);
}

static bool in_range(int v, int lo, int hi) {
    return v >= lo && v <= hi;
}

static td_code check_config(const kv_config *c, td_error *err) {
    if ((unsigned)c->k_type >= KERN_KV_TYPES || (unsigned)c->v_type >= KERN_KV_TYPES)
        return td_fail(err, TD_E_ARG, "KV cache: types %d and %d are unknown", (int)c->k_type,
                       (int)c->v_type);
    if (!in_range(c->n_layers, 1, MAX_LAYERS) || !c->layers)
        return td_fail(err, TD_E_ARG, "KV cache: %d layers make no sense", c->n_layers);
    if (!in_range(c->n_ctx, 1, MAX_CTX))
        return td_fail(err, TD_E_ARG,
                       "KV cache: a context of %d positions makes no sense; use 1 to %d", c->n_ctx,
                       (int)MAX_CTX);
    if (!in_range(c->max_seqs, 1, MAX_SEQS))
        return td_fail(err, TD_E_ARG, "KV cache: %d sequences make no sense; use 1 to %d",
                       c->max_seqs, (int)MAX_SEQS);
    if (!in_range(c->max_rows, 1, MAX_ROWS))
        return td_fail(err, TD_E_ARG, "KV cache: passes of %d rows make no sense; use 1 to %d",
                       c->max_rows, (int)MAX_ROWS);
    if (!in_range(c->max_rollback, 0, MAX_CTX))
        return td_fail(err, TD_E_ARG, "KV cache: a rollback of %d positions makes no sense",
                       c->max_rollback);
    for (int l = 0; l < c->n_layers; l++) {
        const kv_layer *y = &c->layers[l];
        if (!in_range(y->n_heads, 1, MAX_HEADS) || !in_range(y->k_dim, 1, MAX_DIM) ||
            !in_range(y->v_dim, 1, MAX_DIM) || !in_range(y->window, 0, MAX_CTX))
            return td_fail(
                err, TD_E_ARG,
                "KV cache: layer %d with %d heads of %d + %d values, window %d makes no sense", l,
                y->n_heads, y->k_dim, y->v_dim, y->window);
        if ((kern_kv_quantised(c->k_type) && y->k_dim % KERN_BLOCK) ||
            (kern_kv_quantised(c->v_type) && y->v_dim % KERN_BLOCK))
            return td_fail(
                err, TD_E_UNSUPPORTED,
                "a quantised KV cache has blocks of %d values, and the heads of layer %d "
                "have %d (keys) and %d (values); use f16",
                (int)KERN_BLOCK, l, y->k_dim, y->v_dim);
    }
    return TD_OK;
}

/* Fills in places (may be NULL) and the shape of the groups. false: sizes overflow. */
static bool lay_out(kv_group groups[KV_MAX_GROUPS], kv_place *places, const kv_config *c) {
    for (int l = 0; l < c->n_layers; l++) {
        const kv_layer *y = &c->layers[l];
        kv_group *g = &groups[y->window ? KV_WINDOWED : KV_FULL];
        const size_t k_bytes = align_up(kern_kv_page_bytes(c->k_type, y->k_dim));
        const size_t head_bytes = k_bytes + align_up(kern_kv_page_bytes(c->v_type, y->v_dim));
        size_t layer_bytes;
        if (places)
            places[l] = (kv_place){.group = y->window ? KV_WINDOWED : KV_FULL,
                                   .n_heads = y->n_heads,
                                   .k_dim = y->k_dim,
                                   .v_dim = y->v_dim,
                                   .window = y->window,
                                   .offset = g->page_bytes,
                                   .k_bytes = k_bytes,
                                   .head_bytes = head_bytes};
        if (!td_mul(&layer_bytes, head_bytes, (size_t)y->n_heads) ||
            !td_add(&g->page_bytes, g->page_bytes, layer_bytes))
            return false;
        g->n_layers++;
        if (y->window > g->window) g->window = y->window;
    }
    if (groups[KV_WINDOWED].n_layers) /* both terms are at most 2^28 */
        groups[KV_WINDOWED].n_keep = groups[KV_WINDOWED].window - 1 + c->max_rollback;
    return true;
}

/* Pages each group needs for n_ctx positions, and the bytes of all. false: overflow. */
static bool count_pages(kv_group groups[KV_MAX_GROUPS], const kv_config *c, int n_ctx,
                        size_t *bytes) {
    /* n_ctx positions in max_seqs sequences, each with a last page that may hold a single position.
     */
    const uint64_t full = ((uint64_t)n_ctx + (KERN_PAGE - 1) * (uint64_t)c->max_seqs) / KERN_PAGE;
    /* A sequence keeps n_keep positions and the rows in flight; the three pages more are for ends
     * that do not fall on a page's edge. */
    const uint64_t a_seq = (uint64_t)groups[KV_WINDOWED].n_keep / KERN_PAGE + 3;
    uint64_t windowed = a_seq * (uint64_t)c->max_seqs + (uint64_t)c->max_rows / KERN_PAGE + 1;
    if (windowed > full) windowed = full;
    *bytes = 0;
    for (int i = 0; i < KV_MAX_GROUPS; i++) {
        kv_group *g = &groups[i];
        g->n_pages = 0, g->mem_bytes = 0;
        if (!g->n_layers) continue;
        g->n_pages = (int)(i == KV_WINDOWED ? windowed : full);
        /* the tables count, too: they are written in full at open */
        const size_t tables =
            (size_t)c->max_seqs * (size_t)kv_pages_of(n_ctx) * sizeof *g->tables +
            (size_t)g->n_pages * (sizeof *g->ref + sizeof *g->free_pages + sizeof *g->n_seen);
        if (!td_mul(&g->mem_bytes, g->page_bytes, (size_t)g->n_pages) ||
            !td_add(bytes, *bytes, g->mem_bytes) || !td_add(bytes, *bytes, tables))
            return false;
    }
    return true;
}

/* The largest context whose pools take at most `available` bytes; 0: none. */
static int largest_ctx(kv_group groups[KV_MAX_GROUPS], const kv_config *c, size_t available) {
    int lo = 0, hi = c->n_ctx;
    while (lo < hi) {
        const int mid = lo + (hi - lo + 1) / 2;
        size_t bytes;
        if (count_pages(groups, c, mid, &bytes) && bytes <= available)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static td_code check_memory(kv_group groups[KV_MAX_GROUPS], const kv_config *c, td_error *err) {
    const size_t available = td_memory_available();
    size_t bytes;
    const bool fits = count_pages(groups, c, c->n_ctx, &bytes);
    if (fits && bytes <= available) return TD_OK;
    const int best = largest_ctx(groups, c, available);
    char wanted[48] = "more than this machine can address";
    if (fits) snprintf(wanted, sizeof wanted, "%.1f MiB", (double)bytes / 0x1p20);
    if (!best)
        return td_fail(err, TD_E_TOO_BIG,
                       "a KV cache of %d positions needs %s and %.1f MiB are free: not even one "
                       "position fits",
                       c->n_ctx, wanted, (double)available / 0x1p20);
    return td_fail(
        err, TD_E_TOO_BIG,
        "a KV cache of %d positions needs %s and %.1f MiB are free; a context of up to %d "
        "fits",
        c->n_ctx, wanted, (double)available / 0x1p20, best);
}

static bool open_group(kv_cache *kv, kv_group *g) {
    const size_t n_entries = (size_t)kv->max_seqs * (size_t)kv->n_table;
    if (!g->n_layers) return true;
    g->ref = td_calloc((size_t)g->n_pages, sizeof *g->ref);
    g->free_pages = td_calloc((size_t)g->n_pages, sizeof *g->free_pages);
    g->tables = td_calloc(n_entries, sizeof *g->tables);
    g->n_seen = td_calloc((size_t)g->n_pages, sizeof *g->n_seen);
    if (!g->ref || !g->free_pages || !g->tables || !g->n_seen || !(g->mem = td_map(g->mem_bytes)))
        return false;
    g->n_free = g->n_pages;
    for (int i = 0; i < g->n_pages; i++) /* low pages first: fewer of them are ever touched */
        g->free_pages[i] = g->n_pages - 1 - i;
    memset(g->tables, 0xff, n_entries * sizeof *g->tables);
    return true;
}

td_code kv_open(kv_cache **out, const kv_config *cfg, td_error *err) {
    td_code rc = check_config(cfg, err);
    if (rc) return rc;
    kv_cache *kv = td_calloc(1, sizeof *kv);
    if (!kv) goto memory;
    kv->k_type = cfg->k_type, kv->v_type = cfg->v_type;
    kv->n_layers = cfg->n_layers, kv->n_ctx = cfg->n_ctx, kv->max_seqs = cfg->max_seqs;
    kv->max_rows = cfg->max_rows, kv->max_rollback = cfg->max_rollback;
    kv->n_table = kv_pages_of(cfg->n_ctx);
    kv->places = td_calloc((size_t)cfg->n_layers, sizeof *kv->places);
    kv->seqs = td_calloc((size_t)cfg->max_seqs, sizeof *kv->seqs);
    if (!kv->places || !kv->seqs) goto memory;
    if (!lay_out(kv->groups, kv->places, cfg)) {
        rc = td_fail(err, TD_E_TOO_BIG, "KV cache: the bytes of one page overflow");
        goto fail;
    }
    if ((rc = check_memory(kv->groups, cfg, err))) goto fail;
    count_pages(kv->groups, cfg, cfg->n_ctx, &(size_t){0});
    for (int i = 0; i < KV_MAX_GROUPS; i++)
        if (!open_group(kv, &kv->groups[i])) goto memory;
    assert(kv_check_small(kv));
    *out = kv;
    return TD_OK;
memory:
    rc = td_fail(err, TD_E_MEMORY, "out of memory for a KV cache of %d positions", cfg->n_ctx);
fail:
    kv_close(kv);
    return rc;
}

void kv_close(kv_cache *kv) {
    if (!kv) return;
    for (int i = 0; i < KV_MAX_GROUPS; i++) {
        kv_group *g = &kv->groups[i];
        td_unmap(g->mem, g->mem_bytes);
        free(g->ref);
        free(g->free_pages);
        free(g->tables);
        free(g->n_seen);
    }
    free(kv->places);
    free(kv->seqs);
    free(kv);
}

size_t kv_bytes_per_position(const kv_config *cfg) {
    size_t page_bytes = 0;
    for (int l = 0; l < cfg->n_layers; l++) {
        const kv_layer *y = &cfg->layers[l];
        if (!y->window)
            page_bytes += (size_t)y->n_heads * (kern_kv_page_bytes(cfg->k_type, y->k_dim) +
                                                kern_kv_page_bytes(cfg->v_type, y->v_dim));
    }
    return page_bytes / KERN_PAGE;
}

size_t kv_size_bytes(const kv_cache *kv) {
    return kv->groups[KV_FULL].mem_bytes + kv->groups[KV_WINDOWED].mem_bytes;
}

size_t kv_used_bytes(const kv_cache *kv) {
    size_t bytes = 0;
    for (int i = 0; i < KV_MAX_GROUPS; i++) {
        const kv_group *g = &kv->groups[i];
        bytes += (size_t)(g->n_pages - g->n_free) * g->page_bytes;
    }
    return bytes;
}

int kv_n_ctx(const kv_cache *kv) {
    return kv->n_ctx;
}

kern_kv_type kv_k_type(const kv_cache *kv) {
    return kv->k_type;
}

kern_kv_type kv_v_type(const kv_cache *kv) {
    return kv->v_type;
}
