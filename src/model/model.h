/* A decoder-only transformer: configuration, weights, and one forward pass over rows. An architecture is
 * a table entry plus what its file says; arch.c holds them all. */
#ifndef TD_MODEL_H
#define TD_MODEL_H

#include "base/base.h"
#include "format/format.h"
#include "kernels/kernels.h"
#include "kv/kv.h"

typedef enum model_rope_scaling { MODEL_ROPE_NONE, MODEL_ROPE_LINEAR, MODEL_ROPE_YARN } model_rope_scaling;
typedef enum model_act { MODEL_SILU, MODEL_GELU } model_act;

/* Read from the file and checked; every number is in a range that cannot overflow what uses it. */
typedef struct model_config {
    const char *arch; /* "llama", "qwen2" ...; static */
    int n_layers, n_embd, n_vocab, n_ctx_train;
    float norm_eps;
    float embd_scale;       /* 1 unless the architecture scales embeddings */
    float attn_scale;       /* of q . k */
    float attn_softcap, final_softcap; /* 0: none */
    model_act act;
    bool rope_neox;
    int n_rot;              /* rotated values a head */
    float rope_base, rope_base_local; /* the second for windowed layers */
    bool rope_scale_local;  /* windowed layers are scaled as the others are */
    model_rope_scaling rope_scaling;
    float rope_factor, yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
    int rope_orig_ctx;
    int window;             /* 0: no windowed layers */
    bool tied;              /* the output matrix is the embedding */
    struct model_layer_config {
        int n_heads, n_kv_heads, head_k, head_v, n_ff;
        bool windowed;
    } *layers;              /* n_layers; owned by the model */
} model_config;

typedef struct model model;

typedef struct model_options {
    td_pool *pool;          /* borrowed: packs weights at load and runs every pass; NULL: one thread */
    const kern_table *kern; /* borrowed; NULL: kern_table_get */
    /* Told as weights are packed: 0 .. total bytes. Called on the opening thread. NULL: nobody asks.
     * Returning false cancels: TD_E_CANCELLED. */
    bool (*progress)(void *user, size_t done, size_t total);
    void *user;
} model_options;

/* Reads the configuration alone (for inspect; no weights touched). cfg->layers must be freed by
 * model_config_free. An unknown architecture is TD_E_UNSUPPORTED by name; a missing or absurd key is
 * TD_E_FORMAT by key. */
td_code model_config_read(model_config *cfg, const gguf_file *f, td_error *err);
void model_config_free(model_config *cfg);

/* Packs all weights. The file stays open as long as the model (token embeddings are read from it).
 * Missing or misshapen tensors: TD_E_FORMAT with the name, the shape found and the shape needed. */
td_code model_open(model **out, const gguf_file *f, const model_options *opt, td_error *err);
void model_close(model *m);
const model_config *model_get_config(const model *m);
size_t model_weight_bytes(const model *m); /* panels and vectors in memory */
/* Bytes of weights that one decode step reads: all matrices, one row of the embedding. */
size_t model_step_bytes(const model *m);
/* Multiply-adds of one row in the matrices. */
uint64_t model_row_macs(const model *m);

/* The cache this model needs: fills in n_layers and layers (which point into the model); the caller sets
 * the type and the limits. */
void model_kv_config(const model *m, kv_config *cfg);

/* ---- the pass ---- */

/* One row: a token at a position of a sequence. Its context is the committed positions of the sequence
 * and its ancestors in this pass. */
typedef struct model_row {
    int seq;
    int32_t token;
    int parent;       /* index of the parent row in this pass (< own index, same seq); -1: the row stands
                         directly behind the committed positions */
    bool want_logits;
} model_row;

/* Scratch of one pass of up to max_rows rows; one user at a time. */
typedef struct model_work model_work;
td_code model_work_open(model_work **out, const model *m, int max_rows, td_error *err);
void model_work_close(model_work *w);
size_t model_work_bytes(const model_work *w);

/* Runs rows[0..n_rows): writes their K and V into reserved slots (slot = len + index among the rows of the
 * same sequence) and the logits of the rows that want them, in row order, to logits (n_wanted, n_vocab).
 * Rows of one sequence are neighbours in the array. Position = len + depth. Reserves slots itself; commits
 * nothing: the caller calls kv_seq_keep. Fails only before anything was written (context full,
 * TD_E_TOO_BIG; token outside the vocabulary or a bad parent, TD_E_ARG). Allocates nothing.
 * A row's K, V and logits depend on the tokens of its own path alone, bit for bit (contract R). */
td_code model_forward(const model *m, kv_cache *kv, const model_row *rows, int n_rows, model_work *w,
                      float *logits, td_error *err);

#endif
