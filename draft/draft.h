/* Things that propose tokens. A proposal is a tree of tokens (a chain is a tree), each with the distribution
 * q it was drawn from, or "point mass". Every drafter stands behind one table of functions; adding one is a
 * file with that table.
 *
 * A drafter follows the committed text: begin gives it the whole of it, observe what each round committed. It
 * keeps whatever state it likes, but after observe nothing of a rejected proposal is left (contract C). */
#ifndef TD_DRAFT_H
#define TD_DRAFT_H

#include "base/base.h"
#include "kv/kv.h"
#include "model/model.h"
#include "verify/verify.h"

typedef struct draft draft;

enum { DRAFT_MAX = 64 }; /* tokens of one proposal */

typedef struct draft_proposal {
    int n;                    /* tokens proposed, 0..DRAFT_MAX */
    int32_t token[DRAFT_MAX];
    int parent[DRAFT_MAX];    /* index of the parent token, -1: behind the committed text */
    const float *q;           /* row r (n_vocab): the law of the tokens whose parent is r - 1, siblings drawn without
                                 replacement; in a chain, row i is that of token i. NULL: point masses. Owned by the
                                 drafter until its next call */
} draft_proposal;

/* How far and how wide a draft grows is asked for place by place, before anything is drawn for it: `confidence` is the
 * highest probability of the law that the tokens of place i (from 0) are to be drawn from. */
typedef struct draft_answer {
    int width;  /* candidates; 0: leave this place out */
    bool go_on; /* behind the first of them */
} draft_answer;

/* What a round may use. */
typedef struct draft_request {
    int max_tokens;                /* 0..DRAFT_MAX: the longest path */
    int width;                     /* candidates for each place of it, 0 and 1: one; the first goes on. All of them:
                                      at most DRAFT_MAX */
    const verify_sampler *sampler; /* of the target; greedy (temperature 0) proposes argmaxes */
    const int32_t *history;        /* the committed text, all of it, the last token included */
    int n_history;
    verify_rng rng;                /* position of the first drafted token; TD_STREAM_DRAFT only */
    draft_answer (*ask)(void *user, int i, float confidence); /* NULL: all places, `width` candidates for each */
    void *user;
    int max_read; /* of the text, a drafter that was left behind should read the last so many tokens at most;
                     0: all of it */
    bool coupled;                  /* draw with the noise that the target will use (verify_coupled_draw) */
} draft_request;

/* Token number `node` of a sampled proposal, `depth` tokens behind the text, drawn from q (n_vocab) without the
 * siblings drawn before it: taken[0..n_taken), for which q is zero while it draws. -1: nothing is left. */
static inline int32_t draft_draw(float *q, int n_vocab, const verify_rng *r, int node, int depth, bool coupled,
                                 const int32_t *taken, int n_taken) {
    const double u = td_uniform(r->seed, TD_STREAM_DRAFT, r->position + (uint64_t)node, r->lane);
    if (!coupled) return verify_draw_next(q, n_vocab, taken, n_taken, u);
    float kept[DRAFT_MAX], left = 0;
    for (int i = 0; i < n_taken; i++)
        kept[i] = q[taken[i]], q[taken[i]] = 0;
    for (int x = 0; x < n_vocab && n_taken; x++)
        left += q[x];
    const int32_t token = n_taken && !(left > 0)
                              ? -1
                              : verify_coupled_draw(q, n_vocab, r->seed, r->position + (uint64_t)depth);
    for (int i = n_taken - 1; i >= 0; i--)
        q[taken[i]] = kept[i];
    return token;
}

typedef struct draft_ops {
    const char *name; /* "model", "lookup" ... */
    void (*close)(draft *d);
    td_code (*begin)(draft *d, const int32_t *tokens, int n, bool (*progress)(void *, int done),
                     void *user, td_error *err);
    td_code (*propose)(draft *d, const draft_request *req, draft_proposal *out, td_error *err);
    td_code (*observe)(draft *d, const int32_t *tokens, int n_tokens, int n_accepted, td_error *err);
    size_t (*memory)(const draft *d);
    bool (*check)(const draft *d, const int32_t *text, int n);
} draft_ops;

struct draft {
    const draft_ops *ops; /* the first field of every drafter */
};

static inline void draft_close(draft *d) {
    if (d) d->ops->close(d);
}
/* Takes the committed text anew (tokens[0..n), n >= 1). What the drafter still holds of a common prefix is
 * reused. `progress` as in target_prefill. */
static inline td_code draft_begin(draft *d, const int32_t *tokens, int n, bool (*progress)(void *, int),
                                  void *user, td_error *err) {
    return d->ops->begin(d, tokens, n, progress, user, err);
}
/* Proposes up to max_tokens tokens; fewer, or none, is a good answer. With sampled proposals, whether position
 * i is proposed depends on what came before it, never on the token drawn there (trap 1). */
static inline td_code draft_propose(draft *d, const draft_request *req, draft_proposal *out, td_error *err) {
    return d->ops->propose(d, req, out, err);
}
/* The round committed tokens[0..n_tokens): the first n_accepted of them are the accepted path of the last
 * proposal (a chain: its first n_accepted tokens), the rest the target's own. n_tokens 0: the round failed,
 * the proposal is dropped. */
static inline td_code draft_observe(draft *d, const int32_t *tokens, int n_tokens, int n_accepted,
                                    td_error *err) {
    return d->ops->observe(d, tokens, n_tokens, n_accepted, err);
}
static inline size_t draft_memory(const draft *d) { /* of its caches, as mapped */
    return d->ops->memory(d);
}
/* Asserts contract C after begin or observe: what is held are tokens of text[0..n), in place, and never the
 * last one, which no pass has read. Returns true, to stand in an assert. */
static inline bool draft_check(const draft *d, const int32_t *text, int n) {
    return d->ops->check(d, text, n);
}

/* A model with its own cache proposes a chain. It borrows m. vocabulary: n_vocab of the target; the
 * draft's own may be padded differently: q is over the target's n_vocab, ids the draft lacks have q = 0, ids
 * that the target lacks are never drawn. n_ctx may be smaller than the target's: once the text does not fit,
 * nothing is proposed any more. */
typedef struct draft_model_config {
    int n_ctx;
    kern_kv_type k_type, v_type; /* of the cache */
    int max_tokens;    /* longest proposal */
    int prefill_chunk;
    int n_vocab;
} draft_model_config;
td_code draft_model_open(draft **out, const model *m, const draft_model_config *cfg, td_error *err);

#endif
