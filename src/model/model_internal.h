/* What the files of the model share. Nobody else includes this. */
#ifndef TD_MODEL_INTERNAL_H
#define TD_MODEL_INTERNAL_H

#include "model/model.h"

/* What an architecture's name says beyond its file. To add one: an entry here, and where it needs a
 * tensor or a step that none has yet, a line in load.c and one in forward.c. */
typedef struct model_arch {
    const char *name;
    bool rope_neox;
    model_act act;
    bool qk_norm;      /* RMS norm of each head of q and k, before the rotation */
    bool post_norm;    /* RMS norm of what attention and FFN give, before the residual is added */
    bool scale_embd;   /* embeddings are multiplied with sqrt(n_embd) */
    int window;        /* when the file says none */
    int window_period; /* each window_period-th layer sees everything, the others a window, when the
                          file gives a window but no pattern; 0: all have it; 1: none has */
    double rope_base_local; /* of windowed layers, never scaled; 0: they are as the others */
} model_arch;

/* NULL: unknown. */
const model_arch *model_arch_find(const char *name);
/* "llama, qwen2 ..." for messages. */
const char *model_arch_names(void);

/* y = w x + bias */
typedef struct model_linear {
    kern_mat w;
    const float *bias; /* (n_out); NULL: none */
} model_linear;

typedef struct model_layer {
    const float *attn_norm, *ffn_norm;           /* (n_embd) */
    const float *post_attn_norm, *post_ffn_norm; /* (n_embd); NULL: none */
    const float *q_norm, *k_norm;                /* (head_k); NULL: none */
    model_linear q;                              /* (n_heads * head_k, n_embd) */
    model_linear k, v;     /* (n_kv_heads * head_k, n_embd), (n_kv_heads * head_v, n_embd) */
    const float *k_shift;  /* (n_kv_heads * head_k); NULL: none. See rope.c */
    model_linear o;        /* (n_embd, n_heads * head_v) */
    model_linear gate, up; /* (n_ff, n_embd) */
    model_linear down;     /* (n_embd, n_ff) */
} model_layer;

struct model {
    model_config cfg;
    const model_arch *arch;
    const kern_table *kern;  /* borrowed */
    td_pool *pool;           /* borrowed; may be NULL */
    const gguf_tensor *embd; /* (n_vocab, n_embd) in the file */
    size_t embd_row_bytes;
    const float *rope_factors; /* (n_rot / 2): divisors of the frequencies; NULL: none */
    const float *output_norm;  /* (n_embd) */
    model_linear output;       /* (n_vocab, n_embd) */
    model_layer *layers;       /* (n_layers); owns */
    kv_layer *kv_layers;       /* (n_layers); owns */
    double *rope_freq[2];  /* (n_rot / 2) radians a position: [0] full, [1] windowed layers; owns */
    float *k_shifts;       /* what the layers' k_shift point into; owns */
    double rope_mscale[2]; /* cos and sin are multiplied with it (YaRN) */
    uint8_t *mem;          /* panels and vectors; owns */
    size_t mem_bytes;
    size_t matrix_bytes;
    uint64_t macs;
};

/* Fills in rope_freq, rope_mscale and each layer's k_shift (rope.c). false: out of memory. */
bool model_rope_init(model *m);
/* cos and sin (n_rot / 2) of one position; windowed: 0 or 1. */
void model_rope_angles(const model *m, int windowed, int position, float *cosine, float *sine);

#endif
