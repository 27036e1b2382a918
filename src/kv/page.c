/* What a pass reads and writes: one row's K and V into its slot, a page's address, and the
 * gathering of scattered slots into one page. kv_write and kv_gather run inside a pass, on many
 * threads. */
#include "kv/kv_internal.h"

#include <assert.h>
#include <string.h>

/* The block of one head in the page that holds `slot`; NULL when the page left the window. */
static uint8_t *head_block(const kv_cache *kv, int seq, const kv_place *y, int head, int page) {
    assert(seq >= 0 && seq < kv->max_seqs && kv->seqs[seq].used);
    assert(head >= 0 && head < y->n_heads && page >= 0 && page < kv->n_table);
    const int at = kv_table(kv, y->group, seq)[page];
    if (at < 0) return NULL;
    return kv_page(&kv->groups[y->group], at) + y->offset + (size_t)head * y->head_bytes;
}

void kv_write(kv_cache *kv, int seq, int layer, int slot, const float *k, const float *v) {
    const kv_place *y = &kv->places[layer];
    const int at = slot % KERN_PAGE;
    assert(slot >= kv->seqs[seq].len && slot < kv->seqs[seq].len + kv->seqs[seq].n_reserved);
    for (int h = 0; h < y->n_heads; h++, k += y->k_dim, v += y->v_dim) {
        uint8_t *block = head_block(kv, seq, y, h, slot / KERN_PAGE);
        if (kv->type == KERN_KV_F32) {
            float *const bk = (float *)block;
            for (int d = 0; d < y->k_dim; d++)
                bk[d * KERN_PAGE + at] = k[d];
            memcpy((float *)(block + y->k_bytes) + (size_t)at * y->v_dim, v,
                   (size_t)y->v_dim * sizeof *v);
        } else {
            uint16_t *const bk = (uint16_t *)block;
            uint16_t *const bv = (uint16_t *)(block + y->k_bytes) + (size_t)at * y->v_dim;
            for (int d = 0; d < y->k_dim; d++)
                bk[d * KERN_PAGE + at] = td_f32_to_f16(k[d]);
            for (int d = 0; d < y->v_dim; d++)
                bv[d] = td_f32_to_f16(v[d]);
        }
    }
}

const void *kv_page_k(const kv_cache *kv, int seq, int layer, int head, int page) {
    return head_block(kv, seq, &kv->places[layer], head, page);
}

const void *kv_page_v(const kv_cache *kv, int seq, int layer, int head, int page) {
    const kv_place *y = &kv->places[layer];
    const uint8_t *block = head_block(kv, seq, y, head, page);
    return block ? block + y->k_bytes : NULL;
}

void kv_gather(const kv_cache *kv, int seq, int layer, int head, const int *slots, int n, int first,
               void *k_page, void *v_page) {
    const kv_place *y = &kv->places[layer];
    assert(first >= 0 && n >= 0 && first + n <= KERN_PAGE);
    for (int i = 0; i < n; i++) {
        const uint8_t *block = head_block(kv, seq, y, head, slots[i] / KERN_PAGE);
        const int from = slots[i] % KERN_PAGE, to = first + i;
        assert(block);
        if (kv->type == KERN_KV_F32) {
            const float *const bk = (const float *)block;
            for (int d = 0; d < y->k_dim; d++)
                ((float *)k_page)[d * KERN_PAGE + to] = bk[d * KERN_PAGE + from];
        } else {
            const uint16_t *const bk = (const uint16_t *)block;
            for (int d = 0; d < y->k_dim; d++)
                ((uint16_t *)k_page)[d * KERN_PAGE + to] = bk[d * KERN_PAGE + from];
        }
        const size_t v_bytes = (size_t)y->v_dim * kv->value_bytes;
        memcpy((uint8_t *)v_page + (size_t)to * v_bytes,
               block + y->k_bytes + (size_t)from * v_bytes, v_bytes);
    }
}

/* ---- the invariants of kv_internal.h ---- */

static bool check_group(const kv_cache *kv, int group) {
    const kv_group *g = &kv->groups[group];
    if (!g->n_layers) return true;
    int *n_seen = g->n_seen;
    memset(n_seen, 0, (size_t)g->n_pages * sizeof *n_seen);
    bool ok = true;
    for (int q = 0; q < kv->max_seqs; q++) {
        const kv_seq *s = &kv->seqs[q];
        const int *table = kv_table(kv, group, q);
        const int first = s->used ? s->held[group].first : 0;
        const int end = s->used ? s->held[group].end : 0;
        if (s->used) {
            ok = ok && end == kv_pages_of(s->len + s->n_reserved) && first >= 0 && first <= end;
            ok = ok && (group == KV_WINDOWED ? first <= kv_first_needed(s->len, g->window - 1)
                                             : first == 0);
        }
        for (int p = 0; p < kv->n_table && ok; p++) {
            if (p < first || p >= end) {
                ok = table[p] == -1;
                continue;
            }
            ok = table[p] >= 0 && table[p] < g->n_pages;
            if (!ok) break;
            n_seen[table[p]]++;
            if (s->n_reserved && p >= s->len / KERN_PAGE) ok = g->ref[table[p]] == 1;
        }
    }
    int n_used = 0;
    for (int p = 0; p < g->n_pages && ok; p++) {
        ok = n_seen[p] == g->ref[p];
        n_used += g->ref[p] > 0;
    }
    ok = ok && n_used + g->n_free == g->n_pages;
    for (int i = 0; i < g->n_free && ok; i++) { /* on the list, and once */
        const int p = g->free_pages[i];
        ok = p >= 0 && p < g->n_pages && g->ref[p] == 0 && n_seen[p] == 0;
        if (ok) n_seen[p] = -1;
    }
    return ok;
}

bool kv_check(const kv_cache *kv) {
    for (int q = 0; q < kv->max_seqs; q++) {
        const kv_seq *s = &kv->seqs[q];
        if (!s->used) continue;
        if (s->len < 0 || s->n_reserved < 0 || s->n_reserved > kv->max_rows ||
            s->len + s->n_reserved > kv->n_ctx)
            return false;
    }
    for (int i = 0; i < KV_MAX_GROUPS; i++)
        if (!check_group(kv, i)) return false;
    return true;
}
