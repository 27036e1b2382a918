/* One sequence of one model, with its cache. Passes are chains or trees behind the committed text;
 * what is not kept is gone with the next pass. Nothing here allocates after open. */
#include "target/target.h"

#include <assert.h>
#include <stdlib.h>

struct target {
    const model *m; /* borrowed */
    kv_cache *kv;
    int seq;
    model_work *work;
    model_row *rows; /* (pass_rows) */
    float *logits;   /* (max_rows, n_vocab) */
    int max_rows, chunk;
    int n_pass; /* rows of the last verify pass that can still be kept */
};

/* A stop string found late takes back tokens of rounds gone by: windowed layers hold this many
 * positions more than one verify pass needs. Beyond them target_truncate says no and the text is
 * computed again. */
enum { ROLLBACK_SPARE = 64 };

td_code target_open(target **out, const model *m, const target_config *cfg, td_error *err) {
    if (cfg->max_rows < 1 || cfg->prefill_chunk < 1)
        return td_fail(err, TD_E_ARG, "passes of %d rows and prefill chunks of %d make no sense",
                       cfg->max_rows, cfg->prefill_chunk);
    const int pass_rows = cfg->max_rows > cfg->prefill_chunk ? cfg->max_rows : cfg->prefill_chunk;
    const size_t n_vocab = (size_t)model_get_config(m)->n_vocab;
    size_t n_logits;
    td_code rc;
    target *t = td_calloc(1, sizeof *t);
    if (!t) goto memory;
    t->m = m, t->max_rows = cfg->max_rows, t->chunk = cfg->prefill_chunk;
    kv_config kv = {.k_type = cfg->k_type,
                    .v_type = cfg->v_type,
                    .n_ctx = cfg->n_ctx,
                    .max_seqs = 1,
                    .max_rows = pass_rows,
                    .max_rollback = cfg->max_rows + ROLLBACK_SPARE};
    model_kv_config(m, &kv);
    if ((rc = kv_open(&t->kv, &kv, err)) || (rc = kv_seq_new(t->kv, &t->seq, err)) ||
        (rc = model_work_open(&t->work, m, pass_rows, err)))
        goto fail;
    if (!td_mul(&n_logits, (size_t)cfg->max_rows, n_vocab) ||
        !(t->logits = td_calloc(n_logits, sizeof *t->logits)) ||
        !(t->rows = td_calloc((size_t)pass_rows, sizeof *t->rows)))
        goto memory;
    *out = t;
    return TD_OK;
memory:
    rc = td_fail(err, TD_E_MEMORY, "out of memory for passes of %d rows", pass_rows);
fail:
    target_close(t);
    return rc;
}

void target_close(target *t) {
    if (!t) return;
    model_work_close(t->work);
    kv_close(t->kv);
    free(t->rows);
    free(t->logits);
    free(t);
}

const model *target_model(const target *t) {
    return t->m;
}

const kv_cache *target_cache(const target *t) {
    return t->kv;
}

int target_len(const target *t) {
    return kv_seq_len(t->kv, t->seq);
}

td_code target_prefill(target *t, const int32_t *tokens, int n, bool (*progress)(void *, int done),
                       void *user, td_error *err) {
    t->n_pass = 0;
    for (int at = 0; at < n;) {
        const int n_rows = n - at < t->chunk ? n - at : t->chunk;
        for (int i = 0; i < n_rows; i++)
            t->rows[i] = (model_row){.seq = t->seq, .token = tokens[at + i], .parent = i - 1};
        td_code rc = model_forward(t->m, t->kv, t->rows, n_rows, t->work, NULL, err);
        if (rc) return rc;
        kv_seq_keep(t->kv, t->seq, NULL, n_rows);
        at += n_rows;
        if (progress && !progress(user, at))
            return td_fail(err, TD_E_CANCELLED, "cancelled after %d of %d tokens of the prompt", at,
                           n);
    }
    return TD_OK;
}

td_code target_verify(target *t, const int32_t *tokens, const int *parent, int n,
                      const float **logits, td_error *err) {
    assert(n >= 1 && n <= t->max_rows);
    t->n_pass = 0;
    for (int i = 0; i < n; i++)
        t->rows[i] = (model_row){.seq = t->seq,
                                 .token = tokens[i],
                                 .parent = parent ? parent[i] : i - 1,
                                 .want_logits = true};
    td_code rc = model_forward(t->m, t->kv, t->rows, n, t->work, t->logits, err);
    if (rc) return rc;
    t->n_pass = n;
    *logits = t->logits;
    return TD_OK;
}

void target_keep(target *t, const int *rows, int n) {
    assert(n >= 0 && n <= t->n_pass);
    kv_seq_keep(t->kv, t->seq, rows, n);
    t->n_pass = 0;
}

td_code target_pretend(target *t, int n_pos, td_error *err) {
    t->n_pass = 0;
    kv_seq_truncate(t->kv, t->seq, 0);
    return kv_seq_pretend(t->kv, t->seq, n_pos, err);
}

bool target_truncate(target *t, int n_pos) {
    assert(n_pos >= 0 && n_pos <= target_len(t));
    t->n_pass = 0;
    return kv_seq_truncate(t->kv, t->seq, n_pos);
}
