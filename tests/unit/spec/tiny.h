/* Tiny random models for the unit tests of everything above src/model: real GGUF files in memory,
 * read and run by the code under test as any other. Each weight follows from the seed alone. */
#ifndef TD_TINY_H
#define TD_TINY_H

#include "draft/draft.h"
#include "spec/spec.h"
#include "target/target.h"

typedef struct tiny_params {
    const char *arch; /* NULL: "llama"; "gemma3" has a window in every second layer */
    int n_vocab;      /* 0: 48 */
    int n_layers;     /* 0: 2 */
    int n_embd;       /* a multiple of 32; 0: 64 */
    int n_ctx;        /* trained context; 0: 512 */
    int window;       /* gemma3; 0: 32 */
    uint64_t seed;
    float noise; /* 0: none; weights of noise_seed are mixed in by this share */
    uint64_t noise_seed;
    float sharp;   /* deviation of the logits; 0: 3 */
    int eos;       /* this token ends the text; 0: none */
    int odd_token; /* this token has another string than elsewhere; 0: none */
} tiny_params;

typedef struct tiny {
    td_buf file;
    gguf_file *f;
    model *m;
} tiny;

/* Fail the test when something cannot be opened. */
void tiny_file(td_buf *out, const tiny_params *p); /* the file's bytes; free with td_buf_free */
void tiny_open(tiny *t, const tiny_params *p);
void tiny_close(tiny *t);
/* n tokens that follow from the seed, all below n_vocab. */
void tiny_text(int32_t *to, int n, int n_vocab, uint64_t seed);

/* A target, a draft (model NULL: none) and the loop over them. */
typedef struct tiny_pair {
    target *t;
    draft *d;
    spec *s;
} tiny_pair;
typedef struct tiny_setup {
    int n_ctx;     /* 0: 256 */
    int draft_ctx; /* 0: as n_ctx */
    int max_draft; /* 0: 16 */
    int chunk;     /* 0: 16 */
    kern_kv_type type;
} tiny_setup;
void tiny_pair_open(tiny_pair *p, const tiny *target_model, const tiny *draft_model,
                    const tiny_setup *setup);
void tiny_pair_close(tiny_pair *p);
/* A drafter of the caller's making is owned by the pair from here. */
void tiny_pair_open_with(tiny_pair *p, const tiny *target_model, draft *d, const tiny_setup *setup);
/* For spec_params.adapt: rows and steps as good as free, so that drafts are long and wide, until clocks tell more. */
void tiny_set_costs(tiny_pair *p);

#endif
