/* The verifying side: the target model with its KV cache, its prefill and its verify pass. One sequence a
 * target for now; a pass takes a tree of tokens behind it. Knows nothing of drafts or of probabilities. */
#ifndef TD_TARGET_H
#define TD_TARGET_H

#include "base/base.h"
#include "kv/kv.h"
#include "model/model.h"

typedef struct target target;

typedef struct target_config {
    int n_ctx;
    kern_kv_type k_type, v_type; /* of the cache */
    int max_rows;      /* widest verify pass: 1 + longest draft */
    int prefill_chunk; /* rows a prefill pass */
} target_config;

/* Borrows m; owns the cache and the scratch. */
td_code target_open(target **out, const model *m, const target_config *cfg, td_error *err);
void target_close(target *t); /* NULL is fine */
const model *target_model(const target *t);
const kv_cache *target_cache(const target *t);
int target_len(const target *t); /* committed positions */

/* Commits tokens[0..n) behind what is there, in chunks; no logits. `progress` (may be NULL) is told after each
 * chunk how many are done; returning false cancels: TD_E_CANCELLED, with whole chunks committed. */
td_code target_prefill(target *t, const int32_t *tokens, int n, bool (*progress)(void *, int done),
                       void *user, td_error *err);

/* One pass over a tree of n tokens (1 <= n <= max_rows): parent[i] < i, or -1 for rows that stand directly
 * behind the committed text; parent NULL: a chain. Logits (n, n_vocab) are the target's, valid until its next
 * pass. Nothing is committed. */
td_code target_verify(target *t, const int32_t *tokens, const int *parent, int n, const float **logits,
                      td_error *err);
/* Commits rows[0..n) of the last pass (ascending; a path). rows NULL: the first n. */
void target_keep(target *t, const int *rows, int n);
/* Makes the cache hold n_pos positions of nothing: to measure passes behind so many. */
td_code target_pretend(target *t, int n_pos, td_error *err);
/* Forgets everything from n_pos on; false: not possible (windowed layers), begin again from 0. */
bool target_truncate(target *t, int n_pos);

#endif
