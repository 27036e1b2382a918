/* What is accepted, and how a token is drawn: pure functions of probabilities and random numbers.
 * Includes nothing but src/base. Transforms and rules are the only code that decides a token, in
 * plain decoding and in speculation alike. */
#ifndef TD_VERIFY_H
#define TD_VERIFY_H

#include "base/base.h"

/* ---- the sampler: logits -> probabilities, the user's whole pipeline ----
 * Order, as llama.cpp's default chain has it:
 * 1. logit bias, added;
 * 2. penalties on each token that stands in the last `repeat_last_n`, count times: a positive
 *    logit is divided by repeat_penalty, any other multiplied by it; then
 *    count * frequency_penalty + presence_penalty is subtracted;
 * 3. temperature 0: the argmax, and nothing of the following;
 * 4. top-k: the k highest;
 * 5. top-p: the fewest of the highest whose probabilities, among what top-k left, reach top_p;
 * 6. min-p: those with at least min_p of the highest probability;
 * 7. temperature, on what is left (4 to 6 look at the distribution at temperature 1).
 * Equal logits stand in the order of their ids, lower first. The highest always stays. */

typedef struct verify_bias {
    int32_t token;
    float bias; /* added to the logit; -INFINITY forbids the token */
} verify_bias;

typedef struct verify_sampler {
    float temperature;       /* 0: greedy */
    int top_k;               /* <= 0: off */
    float top_p;             /* >= 1: off */
    float min_p;             /* <= 0: off */
    float repeat_penalty;    /* 1: off */
    float presence_penalty;  /* 0: off */
    float frequency_penalty; /* 0: off */
    int repeat_last_n;       /* window of the penalties; 0: off, -1: the whole context */
    const verify_bias *bias; /* borrowed */
    int n_bias;
} verify_sampler;

/* Checks the numbers (finite, in range, bias tokens in the vocabulary); TD_E_ARG names the flag. */
td_code verify_sampler_check(const verify_sampler *s, int n_vocab, td_error *err);

/* Reusable scratch for one vocabulary size; one user at a time. */
typedef struct verify_work verify_work;
td_code verify_work_open(verify_work **out, int n_vocab, td_error *err);
void verify_work_close(verify_work *w); /* NULL is fine */

/* Turns a row of logits into probabilities under the whole sampler.
 * logits: (n_vocab), read only. history: the tokens before this position, oldest first (prompt and
 * generated), n_history of them; path: n_path drafted tokens after them that this position stands
 * on (penalties see both; ids outside the vocabulary are passed over). probs: (n_vocab) out, sums
 * to 1 within rounding to float; greedy gives a one-hot of the argmax (ties: the lower id). NaN
 * counts as -inf and +inf as the largest float; a row with nothing above -inf gives the one-hot of
 * token 0. Allocates nothing. The same arguments give the same bits on every machine. */
void verify_probs(const verify_sampler *s, const float *logits, int n_vocab, const int32_t *history,
                  int n_history, const int32_t *path, int n_path, verify_work *w, float *probs);

/* The argmax of verify_probs without building it: for greedy decoding. Ties: the lower id. */
int32_t verify_argmax(const verify_sampler *s, const float *logits, int n_vocab,
                      const int32_t *history, int n_history, const int32_t *path, int n_path,
                      verify_work *w);

/* The share of `token`, the id of the largest logit, in softmax(logits) without any sampler, to
 * about 1 %: how sure a greedy draft is of it. In (0, 1], a NaN counting as 1; allocates nothing. */
float verify_confidence(const float *logits, int n_vocab, int32_t token);

/* Draws from probs / sum(probs) (n_vocab, sum above 0) by inversion with u in (0, 1), walking ids
 * upward, sums in double. Never returns a token of probability 0. */
int32_t verify_draw(const float *probs, int n_vocab, double u);

/* The same without the ids taken[0..n_taken): how a draft draws the next sibling, without
 * replacement. -1 when nothing is left. */
int32_t verify_draw_next(const float *probs, int n_vocab, const int32_t *taken, int n_taken,
                         double u);

/* ---- acceptance ---- */

/* How a sampled proposal is accepted; greedy decoding (temperature 0) has one way only. The law of
 * the text is the target's under each. */
typedef enum verify_rule {
    VERIFY_BLOCK = 0, /* keeps most */
    VERIFY_TOKEN,
    VERIFY_COUPLED    /* the text is a function of the seed, whatever was drafted */
} verify_rule;

enum { VERIFY_MAX_DRAFT = 64 }; /* tokens of one proposal */

/* A proposal: drafted tokens, each behind another or behind the committed text. A chain is a tree
 * in which parent[i] = i - 1. In what the rules take row by row, row 0 stands behind the committed
 * text, row 1 + i behind node i. */
typedef struct verify_tree {
    int n;                /* nodes, 0..VERIFY_MAX_DRAFT */
    const int32_t *token; /* (n) siblings in the order in which they were drawn; borrowed */
    const int *parent;    /* (n) parent[i] < i; -1: the committed text; borrowed */
} verify_tree;

typedef struct verify_result {
    int n_accepted;             /* drafted tokens kept, 0..n */
    int path[VERIFY_MAX_DRAFT]; /* their nodes, from the text on: n_accepted of them */
    int32_t token;              /* the target's own token after them */
} verify_result;

/* Random numbers of one round: a draw is a function of (seed, stream, position). `position` is the
 * absolute position of the first drafted token; token i of the draft, whatever its depth, is drawn
 * with td_uniform(seed, TD_STREAM_DRAFT, position + i, lane) and accepted with TD_STREAM_ACCEPT at
 * position + i, so that siblings have numbers of their own. A token that is drawn from a residual
 * takes TD_STREAM_RESIDUAL, one from a row of p TD_STREAM_PLAIN, at the position at which it stands
 * in the text. lane: the round's number, so that a position visited again after a rollback gets
 * fresh numbers. */
typedef struct verify_rng {
    uint64_t seed;
    uint64_t position;
    uint32_t lane;
} verify_rng;

/* Greedy: from the committed text on, accepts the child whose token is the argmax. argmax: (n + 1),
 * the target's own choice in each row. Exact by construction. */
void verify_greedy(const int32_t *argmax, const verify_tree *tree, verify_result *out);

/* Token rejection (Leviathan et al., arXiv 2211.17192, alg. 1; Chen et al., 2302.01318), in a tree
 * recursively (SpecInfer, 2305.09781) over siblings drawn without replacement (Sequoia,
 * 2402.12374). p: (n + 1, n_vocab) target probabilities; q: row r the law from which the draft drew
 * the children there, each with verify_draw_next without those before it; only rows with children
 * are read, so that a chain has n of them; NULL for point-mass proposals; borrowed. With p_1 = p
 * and q_1 = q, accepts child j, token x, iff u * q_j(x) < p_j(x), else goes on with p_{j+1} =
 * norm(max(p_j - q_j, 0)) and q_{j+1} = norm(q_j without x). When no child is accepted the token is
 * drawn from the last of the p_j, p itself where there are no children; a p_{j+1} that sums to zero
 * by rounding does not count (trap 3). With point masses the token is drawn from p, and a child
 * with that token is accepted. Whether a child is proposed may depend on tokens drawn before it,
 * never on its own or on later ones (trap 1). Rows of floats sum to 1 only to about 1e-7, so each is
 * divided by its sum in double, here as in verify_draw: the law of what comes out is that of plain
 * draws from p, to double precision. Pure: allocates nothing, cannot fail. Asserts n in [0,
 * VERIFY_MAX_DRAFT], parents before their children and tokens inside the vocabulary. */
void verify_token(const float *p, const float *q, const verify_tree *tree, int n_vocab,
                  const verify_rng *rng, verify_result *out);

/* Block verification for a chain (Sun et al., arXiv 2403.10444): as exact as token rejection, and
 * never keeps fewer tokens on average; at one drafted token, or with point masses, just as many.
 * p: (n_draft + 1, n_vocab), q: (n_draft, n_vocab) and streams as verify_token has them for a chain;
 * a point mass (q NULL) is accepted with probability p(x). A sampled chain may end where its earlier
 * tokens say, never because of the token just sampled (trap 1). With weights w_0 = 1, w_i = min(1,
 * w_{i-1} * p(x_i) / q(x_i)), keeps the longest prefix i whose test succeeds: u_i <= w_i for the
 * whole chain, else u_i <= Z / (Z + 1 - w_i), Z = sum(max(w_i * p - q, 0)) over the row behind x_i;
 * i = 0 always does. The token after it comes from p behind the whole chain, else from
 * norm(max(w_i * p - q, 0)), from p if that sums to zero (trap 3). Pure: allocates nothing, cannot
 * fail. Asserts n_draft in [0, VERIFY_MAX_DRAFT] and draft ids inside the vocabulary. */
void verify_block(const float *p, const float *q, const int32_t *draft, int n_draft, int n_vocab,
                  const verify_rng *rng, verify_result *out);

/* ---- the coupled rule: one noise for plain decoding, draft and target ----
 * Daliri, Musco, Suresh, arXiv 2408.07978. Who draws the token at an absolute position of the text
 * draws it with verify_coupled_draw: plain decoding, the draft from its q, the target from its p.
 * The text is then a function of the seed and of p: the same with any draft, of any length, and
 * with none. Never to be mixed with the rules above for one position: their proofs need drafts that
 * are independent of their random numbers (trap 2). Two texts with one seed share their noise, so
 * texts that are to differ need seeds that do. */

/* Draws from probs / sum(probs) (n_vocab, sum above 0): the argmax of log p(x) + G(x), ties: the
 * lower id, where the Gumbel noise G is a function of (seed, position, x) in TD_STREAM_GUMBEL.
 * Never returns a token of probability 0. The draws from two rows agree with probability (1 - d) /
 * (1 + d) or more, d being the rows' total variation distance. The same token on every machine.
 * Pure: allocates nothing, cannot fail. */
int32_t verify_coupled_draw(const float *probs, int n_vocab, uint64_t seed, uint64_t position);

/* A tree under the coupled rule. p: (n + 1, n_vocab) target probabilities, sums above 0; borrowed.
 * Drafted tokens may come from anywhere; verify_coupled_draw of the draft's own rows agrees most
 * often. position: of the first drafted token. The token in each row is verify_coupled_draw's, at
 * the position at which it stands; accepts the child that is it. Rows off the path are not read.
 * Pure: allocates nothing, cannot fail. Asserts n in [0, VERIFY_MAX_DRAFT] and parents before their
 * children. */
void verify_coupled(const float *p, const verify_tree *tree, int n_vocab, uint64_t seed,
                    uint64_t position, verify_result *out);

/* ---- by name ---- */

/* The rule named; arguments as the rules have them. Block verification takes chains only. */
void verify_proposal(verify_rule rule, const float *p, const float *q, const verify_tree *tree,
                     int n_vocab, const verify_rng *rng, verify_result *out);

#endif
