/* The paged KV cache of one model.
 *
 * Positions live in pages of KERN_PAGE (32). A page holds K and V of 32 positions for every layer of a
 * *group*: layers with full attention form one group, layers with a sliding window another, so that the
 * second keeps only the pages it can still need. A sequence is one page table a group. Pages are counted:
 * fork shares them, and the first write to a shared page copies it.
 *
 * A sequence has n committed positions (kv_seq_len). A pass writes its rows into *slots* behind them:
 * slot len + i for the i-th row of that sequence in the pass. kv_seq_keep then commits the rows that were
 * accepted, moving them into place; everything else is gone. So between passes a cache holds committed
 * tokens only (contract C), and after keep or truncate no call can see a trace of what was dropped.
 *
 * Memory is bounded at open: the pools are as large as the configuration can ever need, mapped then, and
 * touched when used. One thread at a time changes a cache; during a pass many threads read and write
 * distinct slots. */
#ifndef TD_KV_H
#define TD_KV_H

#include "base/base.h"
#include "kernels/kernels.h"

typedef struct kv_cache kv_cache;

typedef struct kv_layer {
    int n_heads;      /* KV heads */
    int k_dim, v_dim; /* values a head */
    int window;       /* 0: full attention; else a row sees itself and window - 1 positions before it */
} kv_layer;

typedef struct kv_config {
    int n_layers;
    const kv_layer *layers; /* copied */
    kern_kv_type k_type, v_type; /* quantised ones want k_dim or v_dim to be a multiple of 32 */
    int n_ctx;      /* positions over all sequences together, rows in flight included; pages that
                       sequences share count once */
    int max_seqs;   /* sequences alive at once */
    int max_rows;   /* rows of one pass, over all sequences */
    int max_rollback; /* windowed layers can be truncated by at least this many committed positions */
} kv_config;

/* TD_E_ARG for absurd numbers, TD_E_UNSUPPORTED for a quantised type where heads are not whole blocks,
 * TD_E_TOO_BIG when sizes overflow or exceed the memory that is there (the message says bytes wanted, bytes
 * available, and the largest n_ctx that fits). */
td_code kv_open(kv_cache **out, const kv_config *cfg, td_error *err);
void kv_close(kv_cache *kv);

/* Bytes for one more position in every layer of full attention. */
size_t kv_bytes_per_position(const kv_config *cfg);
size_t kv_size_bytes(const kv_cache *kv);  /* all pools, as mapped */
size_t kv_used_bytes(const kv_cache *kv);  /* pages in use */
int kv_n_ctx(const kv_cache *kv);
kern_kv_type kv_k_type(const kv_cache *kv);
kern_kv_type kv_v_type(const kv_cache *kv);

/* ---- sequences: small ids, 0 .. max_seqs - 1 ---- */

td_code kv_seq_new(kv_cache *kv, int *seq, td_error *err); /* empty; TD_E_TOO_BIG: all in use */
void kv_seq_free(kv_cache *kv, int seq);
/* A new sequence of the first n_pos positions of `from` (0 <= n_pos <= len). Pages are shared until
 * written. Rows in flight of `from` are forgotten. TD_E_TOO_BIG: all sequences are in use.
 * TD_E_UNSUPPORTED when a windowed layer no longer holds what the row behind n_pos will need (never
 * for n_pos >= len - max_rollback of a sequence that was not truncated): prefill again instead. */
td_code kv_seq_fork(kv_cache *kv, int from, int n_pos, int *seq, td_error *err);
int kv_seq_len(const kv_cache *kv, int seq); /* committed positions */

/* Makes slots len .. len + n_rows - 1 writable (allocates pages, copies shared ones). TD_E_TOO_BIG when
 * len + n_rows passes n_ctx or all pages are taken, TD_E_ARG when n_rows is not in 0 .. max_rows; then
 * nothing changed. Rows reserved earlier and not kept are forgotten. */
td_code kv_seq_reserve(kv_cache *kv, int seq, int n_rows, td_error *err);
/* Commits n rows of the pass: rows[i] (strictly ascending, indices of this sequence's rows in the pass)
 * moves to position len + i; len grows by n. rows NULL: the first n rows, where they are. Pages behind
 * that are freed, and those that left every window as far as max_rollback allows. */
void kv_seq_keep(kv_cache *kv, int seq, const int *rows, int n);
/* Forgets positions from n_pos on. false (and nothing changed) when a windowed layer no longer holds the
 * positions before n_pos that the next row will need: truncate to 0 and prefill again. Never fails for
 * n_pos >= the longest len the sequence has had - max_rollback, nor for n_pos == 0. */
bool kv_seq_truncate(kv_cache *kv, int seq, int n_pos);

/* Commits n positions of zeros behind what is there: to measure passes behind so many. Errors as kv_seq_reserve's;
 * what was committed before one stays. */
td_code kv_seq_pretend(kv_cache *kv, int seq, int n, td_error *err);

/* ---- what a pass reads and writes ---- */

/* Stores K (n_heads * k_dim) and V (n_heads * v_dim) of one row, rounded to the cache's types. The slot
 * was reserved. Different slots may be written by different threads at once. */
void kv_write(kv_cache *kv, int seq, int layer, int slot, const float *k, const float *v);
/* The page that holds slots 32 * page .. + 31: K of one head as (k_dim, 32), V as (32, v_dim), or
 * as blocks (kernels.h). NULL: the page left the window. */
const void *kv_page_k(const kv_cache *kv, int seq, int layer, int head, int page);
const void *kv_page_v(const kv_cache *kv, int seq, int layer, int head, int page);
/* Copies slots[0..n) (n <= 32) of one head into page-shaped buffers at places first .. first + n - 1: for
 * tree rows, whose ancestors are not neighbours. */
void kv_gather(const kv_cache *kv, int seq, int layer, int head, const int *slots, int n, int first,
               void *k_page, void *v_page);

/* Asserts what the text above promises (pages counted once, nothing past the reserved rows); returns true
 * so that it can stand in an assert. */
bool kv_check(const kv_cache *kv);

#endif
