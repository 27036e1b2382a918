/* logits_tool MODEL N_THREADS CHUNK [TYPE] < ids (int32) > logits (float32, n x n_vocab)
 *
 * Runs a text through the model in passes of CHUNK rows, committing each, with keys and values of
 * the given type (f16): what the golden tests
 * compare with their reference. */
#include "kv_type_arg.h"
#include "model/model.h"

#include <stdlib.h>

static int32_t *read_ids(size_t *n) {
    int32_t *ids = NULL;
    size_t cap = 0, got;
    *n = 0;
    do {
        if (!td_grow(&ids, &cap, *n + 4096, sizeof *ids)) return NULL;
        got = fread(ids + *n, sizeof *ids, 4096, stdin);
        *n += got;
    } while (got);
    return ids;
}

static td_code run(const model *m, kv_cache *kv, const int32_t *ids, int n, int chunk,
                   td_error *err) {
    const size_t n_vocab = (size_t)model_get_config(m)->n_vocab;
    model_work *w = NULL;
    model_row *rows = td_calloc((size_t)chunk, sizeof *rows);
    float *logits = td_calloc((size_t)chunk * n_vocab, sizeof *logits);
    int seq;
    td_code rc = TD_E_MEMORY;
    if (!rows || !logits) {
        td_fail(err, rc, "out of memory");
        goto done;
    }
    if ((rc = model_work_open(&w, m, chunk, err)) || (rc = kv_seq_new(kv, &seq, err))) goto done;
    for (int at = 0; at < n; at += chunk) {
        const int count = n - at < chunk ? n - at : chunk;
        for (int i = 0; i < count; i++)
            rows[i] =
                (model_row){.seq = seq, .token = ids[at + i], .parent = i - 1, .want_logits = true};
        if ((rc = model_forward(m, kv, rows, count, w, logits, err))) goto done;
        kv_seq_keep(kv, seq, NULL, count);
        if (fwrite(logits, n_vocab * sizeof *logits, (size_t)count, stdout) != (size_t)count) {
            rc = td_fail(err, TD_E_IO, "cannot write the logits");
            goto done;
        }
    }
done:
    model_work_close(w);
    free(logits);
    free(rows);
    return rc;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: logits_tool MODEL N_THREADS CHUNK [TYPE] < ids > logits\n");
        return 2;
    }
    td_error err = {0};
    gguf_file *f = NULL;
    model *m = NULL;
    kv_cache *kv = NULL;
    td_pool *pool = NULL;
    size_t n = 0;
    int32_t *ids = read_ids(&n);
    const int chunk = atoi(argv[3]) > 0 ? atoi(argv[3]) : 1;
    const kern_kv_type type = argc == 5 ? kv_type_arg(argv[4]) : KERN_KV_F16;
    kv_config cfg = {
        .k_type = type, .v_type = type, .n_ctx = n ? (int)n : 1, .max_seqs = 1, .max_rows = chunk};
    td_code rc;
    if ((rc = td_pool_open(&pool, atoi(argv[2]), &err)) || (rc = gguf_open(&f, argv[1], &err)) ||
        (rc = model_open(&m, f, &(model_options){.pool = pool}, &err)))
        goto done;
    model_kv_config(m, &cfg);
    if ((rc = kv_open(&kv, &cfg, &err))) goto done;
    rc = run(m, kv, ids, (int)n, chunk, &err);
done:
    if (rc) fprintf(stderr, "logits_tool: %s\n", err.msg);
    kv_close(kv);
    model_close(m);
    gguf_close(f);
    td_pool_close(pool);
    free(ids);
    return rc ? 1 : 0;
}
