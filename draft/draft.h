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

enum {
    DRAFT_MAX = 64,    /* tokens of one proposal */
    DRAFT_SOURCES = 4, /* drafters in a list */
    DRAFT_CLASSES = 24 /* kinds of guesses of a drafter that goes by text */
};

typedef struct draft_proposal {
    int n;                    /* tokens proposed, 0..DRAFT_MAX */
    int32_t token[DRAFT_MAX];
    int parent[DRAFT_MAX];    /* index of the parent token, -1: behind the committed text */
    const float *q;           /* row r (n_vocab): the law of the tokens whose parent is r - 1, siblings drawn without
                                 replacement; in a chain, row i is that of token i. NULL: point masses. Owned by the
                                 drafter until its next call */
    int source;               /* which drafter of a list it is from; -1: none of them was asked */
    uint8_t guess[DRAFT_MAX]; /* of a drafter that goes by text: what stands behind the token, 0..DRAFT_CLASSES - 1 in
                                 the drafter's own counting; how often tokens are accepted is learnt for each */
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
    bool coupled;                  /* draw with the noise that the target will use (verify_coupled_draw) */
    draft_answer (*ask)(void *user, int i, float confidence); /* NULL: all places, `width` candidates for each */
    void *user;
    int max_read; /* of the text, a drafter that was left behind should read the last so many tokens at most;
                     0: all of it */
    /* To drafters that go by text: */
    int max_text;            /* in a list, what max_tokens is to them; 0: they are not asked */
    int max_nodes;           /* tokens in all that they may propose where width > 1: any tree of so many, as long as
                                no token comes before its parent */
    const float *guess_rate; /* (DRAFT_CLASSES; in a list n_sources times) share accepted of each kind of guess, as
                                learnt; NULL: none is known, the drafter has its own idea */
    /* In a list: what the best first *n tokens (out) of this proposal by text are worth, in tokens, over doing without
       them; 0 or less: they should be left out. NULL: the first that proposes anything is taken, whole. */
    float (*weigh)(void *user, const draft_proposal *p, int *n);
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
    /* Of a drafter that goes by text, (DRAFT_CLASSES): the share accepted of each kind of guess before anything is
       known. NULL: a model. */
    const float *guess_prior;
    /* Of a list; NULL: it is one drafter. */
    int (*n_sources)(const draft *d);
    const draft *(*source)(const draft *d, int i);
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
static inline int draft_n_sources(const draft *d) {
    return d->ops->n_sources ? d->ops->n_sources(d) : 1;
}
static inline const draft *draft_source(const draft *d, int i) { /* itself, where it is no list */
    return d->ops->source ? d->ops->source(d, i) : d;
}
static inline const char *draft_name(const draft *d) { /* static */
    return d->ops->name;
}
static inline bool draft_by_text(const draft *d) {
    return d->ops->guess_prior != NULL;
}

/* Several drafters as one: of those that go by text the one whose proposal is worth most (draft_request.weigh), and
 * where none is worth anything the model, which stands last. All of them follow the text. Owns the drafters from
 * success on: 1 to DRAFT_SOURCES, at most one of them a model. */
td_code draft_list_open(draft **out, draft *const *drafters, int n, td_error *err);

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

/* ---- text that is already there ----
 * Drafters without a model: what followed the last words where they stood before. Their proposals are point masses and
 * functions of the committed text, so that anything may be left out of them, also by what the tokens are. They do not
 * ask (draft_request.ask); in a tree tokens come in falling order of the probability of their path, so that the first
 * so many of them are the best tree of that size. */

typedef struct draft_text_config {
    int n_ctx, max_tokens, n_vocab;
} draft_text_config;

/* The continuation of the latest earlier place where the longest run of last tokens stood ("prompt lookup"); a chain. */
td_code draft_lookup_open(draft **out, const draft_text_config *cfg, td_error *err);

/* Texts of other requests or a corpus, shared by suffix drafters; all functions lock. It holds the newest tokens that
 * fit into max_bytes (indices included) and forgets the oldest; no match crosses from one text into the next. */
typedef struct draft_store draft_store;
td_code draft_store_open(draft_store **out, size_t max_bytes, td_error *err);
void draft_store_close(draft_store *s); /* no drafter may use it any more */
void draft_store_add(draft_store *s, const int32_t *tokens, int n);
size_t draft_store_bytes(const draft_store *s);
int64_t draft_store_tokens(draft_store *s);

/* Continuations of the longest earlier matches of the last tokens, weighed by match length and count (SuffixDecoding,
 * arXiv 2411.04975), in this text and in the store (borrowed; NULL: this text alone). A tree where the request is wider
 * than one. Adds nothing to the store. */
td_code draft_suffix_open(draft **out, const draft_text_config *cfg, draft_store *store, td_error *err);

/* The text that the caller expects: proposed from where the committed text stands in it; after an edit found again by
 * the longest match. Without an expected text nothing is proposed. */
td_code draft_prediction_open(draft **out, const draft_text_config *cfg, td_error *err);
/* The expected text of the next draft_begin (copied; n 0: none), which takes it up. d is of draft_prediction_open. */
td_code draft_prediction_set(draft *d, const int32_t *tokens, int n, td_error *err);

#endif
