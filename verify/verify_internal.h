/* What the files of verify/ share, and the seam at which the tests take hold of a rule. */
#ifndef TD_VERIFY_INTERNAL_H
#define TD_VERIFY_INTERNAL_H

#include "verify/verify.h"

/* Unnormalised weights over the vocabulary that are never stored: each is made when it is read.
 * q == NULL: w(i) = p(i); else w(i) = max(p(i) * p_scale - q(i) * q_scale, 0). The ids in `without`
 * have w = 0. */
typedef struct verify_mass {
    const float *p, *q; /* borrowed */
    double p_scale, q_scale;
    const int32_t *without; /* (n_without) borrowed */
    int n_without;
} verify_mass;

/* Sum of the weights. Order: 8 lanes in a block of 128 ids, the lanes pairwise, the blocks upward.
 */
double verify_mass_total(const verify_mass *m, int n_vocab);
/* The id at which the running sum passes u * total, ids upward; total > 0 is verify_mass_total's
 * own. Never an id of weight 0. */
int32_t verify_mass_draw(const verify_mass *m, int n_vocab, double total, double u);

/* The row behind what stands so far. */
static inline int verify_row(const verify_result *r) {
    return r->n_accepted ? 1 + r->path[r->n_accepted - 1] : 0;
}
/* Accepts the child that is r->token, the token of row verify_row(r); false when there is none. */
bool verify_follow(const verify_tree *tree, verify_result *r);

/* Where a rule takes its random numbers from: uniform in (0, 1). td_uniform in the program; in the
 * tests a function that walks through every branch and measures its share of the unit interval. */
typedef double verify_uniform_fn(void *arg, td_stream stream, uint64_t position, uint32_t lane);
typedef struct verify_source {
    verify_uniform_fn *uniform;
    void *arg;
    uint64_t position; /* position and lane as in verify_rng */
    uint32_t lane;
} verify_source;

/* verify_token and verify_block themselves, over any source. */
void verify_token_from(const float *p, const float *q, const verify_tree *tree, int n_vocab,
                       const verify_source *from, verify_result *out);
void verify_block_from(const float *p, const float *q, const int32_t *draft, int n_draft,
                       int n_vocab, const verify_source *from, verify_result *out);

/* -log(1 - v) for a v that td_unit gives, to a relative 1e-15; the same bits on every machine. */
double verify_exponential(double v);

#endif
