/* What the files of the cache share. Nobody else includes this.
 *
 * A group's memory is n_pages pages of page_bytes. Inside a page the group's layers follow each
 * other; inside a layer, head by head, K (k_dim, 32) then V (32, v_dim), or their quantised blocks,
 * each padded to 64 bytes: what attention reads for one layer lies together, and a page copies as one piece.
 *
 * Invariants (kv_check):
 *   1. table[i] >= 0 exactly for first <= i < end, and end = ceil((len + n_reserved) / 32).
 *   2. ref[p] is the number of table entries that say p; pages with ref 0 are on the free list,
 * once.
 *   3. a page that holds a reserved slot has ref 1.
 *   4. first is 0 in full attention; else first * 32 <= max(0, len - window + 1): what the next row
 * sees is there. */
#ifndef TD_KV_INTERNAL_H
#define TD_KV_INTERNAL_H

#include "kv/kv.h"

enum { KV_MAX_GROUPS = 2, KV_FULL = 0, KV_WINDOWED = 1 };

typedef struct kv_group {
    int n_layers; /* 0: the group is unused */
    int window;   /* 0: full attention; else the widest window of its layers */
    int n_keep;   /* positions before len that stay: window - 1 + max_rollback */
    size_t page_bytes;
    int n_pages;
    uint8_t *mem; /* (n_pages, page_bytes); owns */
    size_t mem_bytes;
    int *ref;        /* (n_pages) */
    int *free_pages; /* (n_pages): a stack */
    int n_free;
    int *n_seen; /* (n_pages): scratch of kv_check, as the token loop may not allocate */
    int *tables; /* (max_seqs, n_table): page numbers, -1 where there is none */
} kv_group;

typedef struct kv_place {
    int group;
    int n_heads, k_dim, v_dim, window;
    size_t offset;              /* of the layer in a page */
    size_t k_bytes, head_bytes; /* padded: K block of a head; K and V block of a head */
} kv_place;

typedef struct kv_seq {
    bool used;
    int len;        /* committed positions */
    int n_reserved; /* slots behind them */
    struct {
        int first, end; /* pages of the table that are there */
    } held[KV_MAX_GROUPS];
} kv_seq;

struct kv_cache {
    kern_kv_type k_type, v_type;
    int n_layers, n_ctx, max_seqs, max_rows, max_rollback;
    int n_table;      /* pages of the longest sequence */
    kv_place *places; /* (n_layers); owns */
    kv_seq *seqs;     /* (max_seqs); owns */
    kv_group groups[KV_MAX_GROUPS];
};

static inline int kv_pages_of(int n_positions) {
    return (int)(((unsigned)n_positions + KERN_PAGE - 1) / KERN_PAGE);
}

static inline int *kv_table(const kv_cache *kv, int group, int seq) {
    return kv->groups[group].tables + (size_t)seq * kv->n_table;
}

/* The first page that must be there when `len` positions are committed and n_keep stay visible. */
static inline int kv_first_needed(int len, int n_keep) {
    return len > n_keep ? (len - n_keep) / KERN_PAGE : 0;
}

/* kv_check where it costs a microsecond or two; with many sequences it is left to the tests. */
static inline bool kv_check_small(const kv_cache *kv) {
    return (int64_t)kv->max_seqs * kv->n_table > 4096 || kv_check(kv);
}

/* What one head has in slot `from` of its pages becomes what it has in slot `to` of others. */
void kv_copy_slot(const kv_cache *kv, const kv_place *y, const uint8_t *from_k,
                  const uint8_t *from_v, int from, uint8_t *to_k, uint8_t *to_v, int to);

static inline uint8_t *kv_page(const kv_group *g, int page) {
    return g->mem + (size_t)page * g->page_bytes;
}

#endif
