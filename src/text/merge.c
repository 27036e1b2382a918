/* The merge loop that byte-level BPE and SentencePiece share: always the pair of the lowest rank,
 * the leftmost among equals, until none is left. A heap of (rank, symbol) and a linked list: n log
 * n, so that a word of a million letters is no problem. Entries go stale when a neighbour changes;
 * one is good if its symbol still has that rank. (The same rank means the same pair in BPE, and in
 * SentencePiece an equal score, so the order is right even when the pair is another one.) */
#include <stdlib.h>

#include "text/text_internal.h"

td_code text_no_memory(td_error *err) {
    return td_fail(err, TD_E_MEMORY, "out of memory in the tokenizer");
}

td_code text_emit(text_work *w, int32_t token) {
    size_t need;
    if (!td_add(&need, *w->n, 1) || !td_grow(w->tokens, w->cap, need, sizeof **w->tokens))
        return text_no_memory(w->err);
    (*w->tokens)[(*w->n)++] = token;
    return TD_OK;
}

td_code text_sym_push(text_work *w, int32_t id, size_t at, size_t len) {
    size_t i = w->n_syms;
    if (!td_grow(&w->syms, &w->cap_syms, i + 1, sizeof *w->syms)) return text_no_memory(w->err);
    w->syms[i] = (text_sym){.prev = (int32_t)i - 1,
                            .next = -1,
                            .id = id,
                            .at = (uint32_t)at,
                            .len = (uint32_t)len,
                            .rank = TEXT_NO_RANK};
    if (i) w->syms[i - 1].next = (int32_t)i;
    w->n_syms++;
    return TD_OK;
}

/* Sets rank and merged of symbol i and the one after it. */
static void rank_pair(text_work *w, int32_t i) {
    const text_vocab *v = w->v;
    text_sym *s = &w->syms[i];
    s->rank = TEXT_NO_RANK;
    if (s->next < 0) return;
    const text_sym *t = &w->syms[s->next];
    if (!v->is_spm) {
        const text_pair *p = text_pair_find(v, s->id, t->id);
        if (!p) return;
        s->rank = p->rank;
        s->merged = p->merged;
        return;
    }
    size_t len = (size_t)s->len + t->len;
    if (len > v->longest) return;
    int32_t id = text_find(v, w->text + s->at, len);
    if (id < 0 || (v->type[id] != TEXT_NORMAL && v->type[id] != TEXT_USER)) return;
    s->rank = v->piece_rank[id];
    s->merged = id;
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t x = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= x) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = x;
}

static void heap_push(text_work *w, int32_t sym) {
    uint32_t rank = w->syms[sym].rank;
    if (rank == TEXT_NO_RANK) return;
    uint64_t x = (uint64_t)rank << 32 | (uint32_t)sym;
    size_t i = w->n_heap++;
    while (i && w->heap[(i - 1) / 2] > x) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = x;
}

td_code text_merge(text_work *w) {
    size_t n = w->n_syms, room;
    if (n < 2) return TD_OK;
    /* n - 1 pairs at first; each of at most n - 1 merges takes one out and puts at most two in */
    if (!td_mul(&room, n, 2) || !td_grow(&w->heap, &w->cap_heap, room, sizeof *w->heap))
        return text_no_memory(w->err);
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        rank_pair(w, (int32_t)i);
        if (w->syms[i].rank != TEXT_NO_RANK)
            w->heap[w->n_heap++] = (uint64_t)w->syms[i].rank << 32 | i;
    }
    for (size_t i = w->n_heap / 2; i-- > 0;)
        sift_down(w->heap, w->n_heap, i);
    while (w->n_heap) {
        uint64_t top = w->heap[0];
        w->heap[0] = w->heap[--w->n_heap];
        if (w->n_heap) sift_down(w->heap, w->n_heap, 0);
        int32_t i = (int32_t)(uint32_t)top;
        text_sym *s = &w->syms[i];
        if (s->rank != (uint32_t)(top >> 32)) continue; /* stale */
        text_sym *t = &w->syms[s->next];
        s->id = s->merged;
        s->len += t->len;
        s->next = t->next;
        t->rank = TEXT_NO_RANK; /* merged away: whatever the heap still says of it is stale */
        if (s->next >= 0) w->syms[s->next].prev = i;
        rank_pair(w, i);
        heap_push(w, i);
        if (s->prev >= 0) {
            rank_pair(w, s->prev);
            heap_push(w, s->prev);
        }
    }
    return TD_OK;
}
