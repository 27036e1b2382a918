/* Does the text have the target's law? The joint law of the first three tokens after a prompt, worked out from the
 * target's own logits, against what the rules make of the draft's proposals.
 *
 * Under a sampler with a small top-k few contexts can come up within three tokens. Their p and q are computed once, in
 * passes over trees of contexts; sampling then runs sampler, drafting and acceptance, the functions that decoding
 * runs, on these rows over the few tokens that occur, tens of thousands of times a second. */
#ifndef TD_LAW_H
#define TD_LAW_H

#include "spec/spec.h"

typedef struct law law;

enum { LAW_TOKENS = 3, LAW_TOP_K = 8, LAW_CELLS = LAW_TOP_K * LAW_TOP_K * LAW_TOP_K };

/* Seams for tests of the test: a mistake put in place of what decoding does. NULL members: none. */
typedef struct law_seams {
    void (*accept)(verify_rule rule, const float *p, const float *q, const verify_tree *tree, int n_vocab,
                   const verify_rng *rng, verify_result *out);
    /* Shortens a proposal after it was drawn; returns its new length. */
    int (*shorten)(const float *q, const int32_t *draft, int n_draft, int n_vocab);
    bool uncoupled_drafts; /* draws drafts without the coupled rule's noise */
    bool coupled_drafts;   /* draws drafts with it whatever the rule is */
    bool draft_history;    /* p's penalties see the history as the draft would at one place before */
} law_seams;

/* Tables of the contexts behind prompt[0..n), n >= 2. sampler: temperature above 0, top_k LAW_TOP_K or less and on. The
 * draft's law is a flatter one, without penalties: a model that drafts for itself would never be rejected else.
 * Both targets (the second is the draft model's) lose what their caches hold; passes take LAW_PASS rows or more.
 * n_vocab ids past the draft's count as impossible for it. */
enum { LAW_PASS = 3 * LAW_TOP_K };
td_code law_open(law **out, target *verifier, target *drafter, const int32_t *prompt, int n,
                 const verify_sampler *sampler, const law_seams *seams, td_error *err);
void law_close(law *l);

/* The cell of three tokens, -1: the target gives them probability 0. */
int law_cell(const law *l, const int32_t tokens[LAW_TOKENS]);
/* n texts with drafts of up to k tokens (0..2), seeds from `seed` on; count[LAW_CELLS] goes up. False: one of them was
 * impossible under the target's law. */
bool law_sample(const law *l, verify_rule rule, int k, uint64_t seed, int n, int64_t *count);

/* The same with the whole loop over the models that the law was made from, from the prompt and under the sampler it
 * was made with; the seed in params is not used. *possible as above. */
td_code law_sample_loop(const law *l, spec *s, const int32_t *prompt, const spec_params *params, uint64_t seed,
                        int n, int64_t *count, bool *possible, td_error *err);

typedef struct law_verdict {
    double z;        /* chi-square as a normal deviate (Wilson-Hilferty) */
    double tv;       /* total variation distance from the law to the counts */
    double tv_bound; /* an exact sampler stays below, but once in a million times */
    bool good;       /* z and tv are what an exact sampler gives, but once in a million times */
} law_verdict;
/* n: texts counted, at least 1. */
law_verdict law_judge(const law *l, const int64_t *count, int64_t n);

#endif
