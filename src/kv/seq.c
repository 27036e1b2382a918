/* Sequences: page tables that grow, share, copy on write and shrink. Called a few times a step,
 * never from inside a pass; the only long loops are copies of K and V. */
#include "kv/kv_internal.h"

#include <assert.h>
#include <string.h>

/* ---- pages ---- */

static int page_take(kv_group *g) {
    assert(g->n_free > 0);
    const int page = g->free_pages[--g->n_free];
    assert(g->ref[page] == 0);
    g->ref[page] = 1;
    return page;
}

static void page_drop(kv_group *g, int page) {
    assert(g->ref[page] > 0);
    if (--g->ref[page] == 0) g->free_pages[g->n_free++] = page;
}

static void drop_range(kv_cache *kv, int group, int seq, int begin, int end) {
    int *table = kv_table(kv, group, seq);
    for (int i = begin; i < end; i++) {
        page_drop(&kv->groups[group], table[i]);
        table[i] = -1;
    }
}

/* Frees what lies behind `len` positions, and forgets the rows in flight. */
static void cut_tail(kv_cache *kv, int seq) {
    kv_seq *s = &kv->seqs[seq];
    const int end = kv_pages_of(s->len);
    for (int i = 0; i < KV_MAX_GROUPS; i++) {
        if (!kv->groups[i].n_layers || s->held[i].end <= end) continue;
        drop_range(kv, i, seq, end, s->held[i].end);
        s->held[i].end = end;
        if (s->held[i].first > end) s->held[i].first = end;
    }
    s->n_reserved = 0;
}

/* Frees what no row behind `len - max_rollback` positions can see. */
static void cut_head(kv_cache *kv, int seq) {
    kv_seq *s = &kv->seqs[seq];
    const kv_group *g = &kv->groups[KV_WINDOWED];
    if (!g->n_layers) return;
    const int first = kv_first_needed(s->len, g->n_keep);
    if (first <= s->held[KV_WINDOWED].first) return;
    drop_range(kv, KV_WINDOWED, seq, s->held[KV_WINDOWED].first, first);
    s->held[KV_WINDOWED].first = first;
}

/* Whether windowed layers hold all that the row at n_pos sees. */
static bool window_holds(const kv_cache *kv, int seq, int n_pos) {
    const kv_group *g = &kv->groups[KV_WINDOWED];
    return !g->n_layers ||
           kv->seqs[seq].held[KV_WINDOWED].first <= kv_first_needed(n_pos, g->window - 1);
}

/* ---- sequences ---- */

static bool is_seq(const kv_cache *kv, int seq) {
    return seq >= 0 && seq < kv->max_seqs && kv->seqs[seq].used;
}

td_code kv_seq_new(kv_cache *kv, int *seq, td_error *err) {
    for (int i = 0; i < kv->max_seqs; i++) {
        if (kv->seqs[i].used) continue;
        kv->seqs[i] = (kv_seq){.used = true};
        *seq = i;
        return TD_OK;
    }
    return td_fail(err, TD_E_TOO_BIG, "KV cache: all %d sequences are in use", kv->max_seqs);
}

void kv_seq_free(kv_cache *kv, int seq) {
    assert(is_seq(kv, seq));
    kv_seq_truncate(kv, seq, 0);
    kv->seqs[seq].used = false;
    assert(kv_check_small(kv));
}

td_code kv_seq_fork(kv_cache *kv, int from, int n_pos, int *seq, td_error *err) {
    assert(is_seq(kv, from) && n_pos >= 0 && n_pos <= kv->seqs[from].len);
    if (n_pos && !window_holds(kv, from, n_pos))
        return td_fail(err, TD_E_UNSUPPORTED,
                       "KV cache: the layers with a window of %d no longer hold what comes before "
                       "position %d; prefill again",
                       kv->groups[KV_WINDOWED].window, n_pos);
    td_code rc = kv_seq_new(kv, seq, err);
    if (rc) return rc;
    cut_tail(kv, from);
    kv_seq *s = &kv->seqs[*seq];
    s->len = n_pos;
    for (int i = 0; i < KV_MAX_GROUPS; i++) {
        kv_group *g = &kv->groups[i];
        if (!g->n_layers || !n_pos) continue;
        s->held[i].first = kv->seqs[from].held[i].first;
        s->held[i].end = kv_pages_of(n_pos);
        const int *theirs = kv_table(kv, i, from);
        int *ours = kv_table(kv, i, *seq);
        for (int p = s->held[i].first; p < s->held[i].end; p++) {
            ours[p] = theirs[p];
            g->ref[ours[p]]++;
        }
    }
    assert(kv_check_small(kv));
    return TD_OK;
}

int kv_seq_len(const kv_cache *kv, int seq) {
    assert(is_seq(kv, seq));
    return kv->seqs[seq].len;
}

/* The page that holds position len, when others read it too: it must be copied before it is
 * written. -1: none. */
static int shared_page(const kv_cache *kv, int group, int seq) {
    const kv_seq *s = &kv->seqs[seq];
    const int at = s->len / KERN_PAGE;
    if (s->len % KERN_PAGE == 0 || at >= s->held[group].end) return -1;
    return kv->groups[group].ref[kv_table(kv, group, seq)[at]] > 1 ? at : -1;
}

td_code kv_seq_reserve(kv_cache *kv, int seq, int n_rows, td_error *err) {
    assert(is_seq(kv, seq));
    kv_seq *s = &kv->seqs[seq];
    if (n_rows < 0 || n_rows > kv->max_rows)
        return td_fail(err, TD_E_ARG, "KV cache: %d rows in a pass; it was opened for at most %d",
                       n_rows, kv->max_rows);
    if (n_rows > kv->n_ctx - s->len)
        return td_fail(err, TD_E_TOO_BIG,
                       "the context is full: %d positions are taken and %d more do not fit into %d",
                       s->len, n_rows, kv->n_ctx);
    const int end = kv_pages_of(s->len + n_rows);
    for (int i = 0; i < KV_MAX_GROUPS; i++) {
        const kv_group *g = &kv->groups[i];
        if (!g->n_layers) continue;
        const int n_need = end - s->held[i].end + (n_rows && shared_page(kv, i, seq) >= 0);
        if (n_need > g->n_free)
            return td_fail(
                err, TD_E_TOO_BIG,
                "the context is full: all sequences together have taken %d of %d positions",
                (g->n_pages - g->n_free) * KERN_PAGE, kv->n_ctx);
    }
    cut_tail(kv, seq);
    for (int i = 0; i < KV_MAX_GROUPS; i++) {
        kv_group *g = &kv->groups[i];
        if (!g->n_layers) continue;
        int *table = kv_table(kv, i, seq);
        const int shared = n_rows ? shared_page(kv, i, seq) : -1;
        if (shared >= 0) {
            const int copy = page_take(g);
            memcpy(kv_page(g, copy), kv_page(g, table[shared]), g->page_bytes);
            page_drop(g, table[shared]);
            table[shared] = copy;
        }
        for (; s->held[i].end < end; s->held[i].end++)
            table[s->held[i].end] = page_take(g);
    }
    s->n_reserved = n_rows;
    assert(kv_check_small(kv));
    return TD_OK;
}

/* ---- commit ---- */

static void move_slot(kv_cache *kv, int seq, int from, int to) {
    for (int l = 0; l < kv->n_layers; l++) {
        const kv_place *y = &kv->places[l];
        const kv_group *g = &kv->groups[y->group];
        const int *table = kv_table(kv, y->group, seq);
        uint8_t *to_page = kv_page(g, table[to / KERN_PAGE]) + y->offset;
        const uint8_t *from_page = kv_page(g, table[from / KERN_PAGE]) + y->offset;
        for (int h = 0; h < y->n_heads; h++) {
            kv_copy_slot(kv, y, from_page, from_page + y->k_bytes, from % KERN_PAGE, to_page,
                         to_page + y->k_bytes, to % KERN_PAGE);
            to_page += y->head_bytes, from_page += y->head_bytes;
        }
    }
}

void kv_seq_keep(kv_cache *kv, int seq, const int *rows, int n) {
    assert(is_seq(kv, seq));
    kv_seq *s = &kv->seqs[seq];
    assert(n >= 0 && n <= s->n_reserved);
    if (rows)
        for (int i = 0; i < n; i++) { /* ascending: nobody is overwritten before it has moved */
            assert(rows[i] >= i && rows[i] < s->n_reserved && (!i || rows[i] > rows[i - 1]));
            if (rows[i] != i) move_slot(kv, seq, s->len + rows[i], s->len + i);
        }
    s->len += n;
    cut_tail(kv, seq);
    cut_head(kv, seq);
    assert(kv_check_small(kv));
}

td_code kv_seq_pretend(kv_cache *kv, int seq, int n, td_error *err) {
    kv_seq *s = &kv->seqs[seq];
    for (int done = 0, step; done < n; done += step) {
        step = n - done < kv->max_rows ? n - done : kv->max_rows;
        td_code rc = kv_seq_reserve(kv, seq, step, err);
        if (rc) return rc;
        for (int i = 0; i < KV_MAX_GROUPS; i++)
            for (int p = s->len / KERN_PAGE; p < s->held[i].end && kv->groups[i].n_layers; p++)
                if (p * KERN_PAGE >= s->len) /* not a page with something in it */
                    memset(kv_page(&kv->groups[i], kv_table(kv, i, seq)[p]), 0,
                           kv->groups[i].page_bytes);
        kv_seq_keep(kv, seq, NULL, step);
    }
    return TD_OK;
}

bool kv_seq_truncate(kv_cache *kv, int seq, int n_pos) {
    assert(is_seq(kv, seq) && n_pos >= 0 && n_pos <= kv->seqs[seq].len);
    kv_seq *s = &kv->seqs[seq];
    if (n_pos && !window_holds(kv, seq, n_pos)) return false;
    s->len = n_pos;
    if (n_pos == 0) /* whatever the window has left behind */
        for (int i = 0; i < KV_MAX_GROUPS; i++) {
            if (!kv->groups[i].n_layers) continue;
            drop_range(kv, i, seq, s->held[i].first, s->held[i].end);
            s->held[i].first = s->held[i].end = 0;
        }
    cut_tail(kv, seq);
    assert(kv_check_small(kv));
    return true;
}
