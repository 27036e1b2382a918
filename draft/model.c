/* A small model proposes a chain, token by token: k passes for k tokens, the last of which it never
 * reads itself. Candidates beside the chain's tokens, the next best in each place, cost no pass of it.
 *
 * Its cache holds a prefix of the committed text, never the last token. `held` remembers which tokens, so
 * that a new text can keep what is common. In a round (text of n tokens)
 *   propose reads what the cache lacks of the text (one token, two after a round that accepted all), then
 *   each token drawn but the last: x1 .. x(k-1) lie in the cache behind the text, not yet committed;
 *   observe keeps as many of them as were accepted; the rest is gone.
 * What was not observed (the round failed) is dropped by the next call of any kind.
 *
 * q is what the token was drawn from: the user's whole sampler over the draft's logits, so that the
 * target's p and q differ only by what the models know. Sampling from q as the user shapes it is a
 * choice, not a need: any q is exact as long as it is the one recorded. */
#include "draft/draft.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct draft_model {
    draft base;
    const model *m; /* borrowed */
    kv_cache *kv;
    int seq;
    model_work *work;
    verify_work *sampling;
    model_row *rows;   /* (pass_rows) */
    int32_t *held;     /* (n_ctx) tokens of the cache's positions */
    verify_bias *bias; /* (bias_cap) the user's, for ids the draft has */
    size_t bias_cap;
    float *logits; /* (n_vocab of the draft) */
    float *q;      /* (max_tokens, n_target) as draft_proposal has it */
    int n_ctx, pass_rows, max_tokens;
    int n_target;    /* the target's vocabulary */
    int n_common;    /* ids that both have */
    int n_text;      /* committed tokens */
    int n_committed; /* cache positions that hold them; behind them: the proposal's */
    /* A drafter that was left behind may leave a gap in the text it has read: cache position i holds token i of the
     * text before gap_at, token i + n_skipped from there on. n_skipped 0: no gap. */
    int gap_at, n_skipped;
} draft_model;

static int cache_len(const draft_model *d) {
    return kv_seq_len(d->kv, d->seq);
}

static void close_model(draft *base) {
    draft_model *d = (draft_model *)base;
    verify_work_close(d->sampling);
    model_work_close(d->work);
    kv_close(d->kv);
    free(d->rows);
    free(d->held);
    free(d->bias);
    free(d->logits);
    free(d->q);
    free(d);
}

static size_t memory(const draft *base) {
    return kv_size_bytes(((const draft_model *)base)->kv);
}

/* Keeps the first n positions; windowed layers may have to begin again from none. */
static void cut(draft_model *d, int n) {
    if (n < cache_len(d) && !kv_seq_truncate(d->kv, d->seq, n)) kv_seq_truncate(d->kv, d->seq, 0);
    if (d->n_committed > cache_len(d)) d->n_committed = cache_len(d);
    if (d->n_skipped && cache_len(d) <= d->gap_at) d->n_skipped = 0;
}

/* Committed tokens that the cache lacks, a gap aside. */
static int n_unread(const draft_model *d) {
    return d->n_text - d->n_skipped - d->n_committed;
}

/* Also the last token of the text, where a failed round left it read: its logits will be asked for
 * again. */
static void drop_proposal(draft_model *d) {
    const int n_read = d->n_text - d->n_skipped;
    cut(d, d->n_committed < n_read ? d->n_committed : n_read ? n_read - 1 : 0);
}

/* Reads tokens[0..n), n <= pass_rows, into the cache; logits of the last when wanted. */
static td_code pass(draft_model *d, const int32_t *tokens, int n, float *logits, td_error *err) {
    const int len = cache_len(d);
    for (int i = 0; i < n; i++)
        d->rows[i] = (model_row){.seq = d->seq,
                                 .token = tokens[i],
                                 .parent = i - 1,
                                 .want_logits = logits && i == n - 1};
    td_code rc = model_forward(d->m, d->kv, d->rows, n, d->work, logits, err);
    if (rc) return rc;
    kv_seq_keep(d->kv, d->seq, NULL, n);
    memcpy(d->held + len, tokens, (size_t)n * sizeof *tokens);
    return TD_OK;
}

/* Reads text up to position end (exclusive) in chunks; logits of the last when wanted. */
static td_code catch_up(draft_model *d, const int32_t *text, int end, float *logits,
                        bool (*progress)(void *, int), void *user, td_error *err) {
    for (int at; (at = cache_len(d) + d->n_skipped) < end;) {
        const int n = end - at < d->pass_rows ? end - at : d->pass_rows;
        td_code rc = pass(d, text + at, n, at + n == end ? logits : NULL, err);
        if (rc) return rc;
        d->n_committed = cache_len(d);
        if (progress && !progress(user, at + n))
            return td_fail(err, TD_E_CANCELLED,
                           "cancelled after %d of %d tokens of the draft's prompt", at + n, end);
    }
    return TD_OK;
}

/* Tokens that draft and target do not share (padding) have no row in the draft's embedding. */
static bool can_read(const draft_model *d, const int32_t *tokens, int n) {
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= model_get_config(d->m)->n_vocab) return false;
    return true;
}

/* Cache positions that hold tokens[0..n), in place. A gap stays where both sides of it agree. */
static int n_common(const draft_model *d, const int32_t *tokens, int n) {
    int i = 0;
    for (; i < d->n_committed; i++) {
        const int at = d->n_skipped && i >= d->gap_at ? i + d->n_skipped : i;
        if (at >= n || d->held[i] != tokens[at]) break;
    }
    return i;
}

static td_code begin(draft *base, const int32_t *tokens, int n, bool (*progress)(void *, int),
                     void *user, td_error *err) {
    draft_model *d = (draft_model *)base;
    assert(n >= 1);
    drop_proposal(d);
    cut(d, n_common(d, tokens, n - 1));
    d->n_text = n;
    /* What does not fit cannot be drafted from: reading a part of it would only cost time. */
    if (n > d->n_ctx || !can_read(d, tokens, n)) return TD_OK;
    return catch_up(d, tokens, n - 1, NULL, progress, user, err);
}

/* The target's sampler for the ids the draft has. The bias list is copied only where some id may
 * lie outside; after the first round nothing is allocated. */
static td_code own_sampler(draft_model *d, const verify_sampler *s, verify_sampler *out,
                           td_error *err) {
    *out = *s;
    if (d->n_common == d->n_target || !s->n_bias) return TD_OK;
    if (!td_grow(&d->bias, &d->bias_cap, (size_t)s->n_bias, sizeof *d->bias))
        return td_fail(err, TD_E_MEMORY, "out of memory for %d biases", s->n_bias);
    out->n_bias = 0;
    for (int i = 0; i < s->n_bias; i++)
        if (s->bias[i].token < d->n_common) d->bias[out->n_bias++] = s->bias[i];
    out->bias = d->bias;
    return TD_OK;
}

/* The id of the largest logit that is not among taken[0..n). */
static int32_t next_best(const float *logits, int n_vocab, const int32_t *taken, int n) {
    int32_t best = -1;
    for (int32_t x = 0; x < n_vocab; x++) {
        if (best >= 0 && !(logits[x] > logits[best])) continue;
        bool is_taken = false;
        for (int i = 0; i < n && !is_taken; i++)
            is_taken = taken[i] == x;
        if (!is_taken) best = x;
    }
    return best;
}

/* Appends the candidates for the place behind the path: the first is the one the draft would write, the others the
 * next ones. path: tokens from the text on, `depth` of them. Answers how many it should be, and whether to go on behind
 * the first. */
static draft_answer add_candidates(draft_model *d, const draft_request *req, const verify_sampler *s,
                                   const int32_t *path, int depth, int parent, draft_proposal *out) {
    const bool greedy = s->temperature == 0;
    float *q = d->q + (size_t)(parent + 1) * (size_t)d->n_target;
    int32_t *first = out->token + out->n;
    float confidence = 0;
    if (greedy) {
        *first = verify_argmax(s, d->logits, d->n_common, req->history, req->n_history, path, depth,
                               d->sampling);
        if (req->ask) confidence = verify_confidence(d->logits, d->n_common, *first);
    } else {
        verify_probs(s, d->logits, d->n_common, req->history, req->n_history, path, depth,
                     d->sampling, q);
        memset(q + d->n_common, 0, (size_t)(d->n_target - d->n_common) * sizeof *q);
        for (int x = 0; x < d->n_common && req->ask; x++)
            confidence = q[x] > confidence ? q[x] : confidence;
    }
    /* Before a sample is drawn: trap 1. */
    const draft_answer answer = req->ask ? req->ask(req->user, depth, confidence)
                                         : (draft_answer){.width = req->width > 1 ? req->width : 1,
                                                          .go_on = true};
    for (int j = 0; j < answer.width && out->n < d->max_tokens; j++) {
        const int32_t token =
            !greedy ? draft_draw(q, d->n_target, &req->rng, out->n, depth, req->coupled, first, j)
            : j     ? next_best(d->logits, d->n_common, first, j)
                    : *first;
        if (token < 0) break;
        first[j] = token;
        out->parent[out->n++] = parent;
    }
    return answer;
}

/* Leaves out what lies between the text held and its last n tokens. One gap at a time: what stood behind an older one
 * goes, too. */
static void skip(draft_model *d, int n) {
    if (d->n_skipped) cut(d, d->gap_at);
    if (n_unread(d) <= n) return;
    d->gap_at = cache_len(d);
    d->n_skipped = d->n_text - n - d->gap_at;
}

static td_code propose(draft *base, const draft_request *req, draft_proposal *out, td_error *err) {
    draft_model *d = (draft_model *)base;
    assert(req->n_history == d->n_text && req->max_tokens >= 0);
    drop_proposal(d);
    out->n = 0;
    out->q = req->sampler->temperature > 0 ? d->q : NULL;
    if (req->max_read > 0 && n_unread(d) > req->max_read) skip(d, req->max_read);
    assert(req->width <= 1 || req->width * req->max_tokens <= d->max_tokens);
    int n = req->max_tokens < d->max_tokens ? req->max_tokens : d->max_tokens;
    const int room = d->n_ctx + 1 - (d->n_text - d->n_skipped); /* the last is not read */
    if (n > room) n = room;
    if (n <= 0 || !can_read(d, req->history + d->n_text - n_unread(d), n_unread(d))) return TD_OK;
    verify_sampler s;
    td_code rc = own_sampler(d, req->sampler, &s, err);
    if (rc || (rc = catch_up(d, req->history, d->n_text, d->logits, NULL, NULL, err))) return rc;
    int32_t path[DRAFT_MAX];
    for (int depth = 0, spine = -1; depth < n; depth++) {
        const int node = out->n;
        const draft_answer answer = add_candidates(d, req, &s, path, depth, spine, out);
        if (!answer.width || !answer.go_on || depth + 1 == n || out->n == d->max_tokens) break;
        path[depth] = out->token[spine = node];
        if ((rc = pass(d, &path[depth], 1, d->logits, err))) {
            out->n = 0;
            return rc;
        }
    }
    return TD_OK;
}

static td_code observe(draft *base, const int32_t *tokens, int n_tokens, int n_accepted,
                       td_error *err) {
    draft_model *d = (draft_model *)base;
    (void)err;
    assert(n_accepted <= n_tokens);
    /* What it has read of the proposal is the chain; the path that was accepted may have left it. */
    const int n_read = cache_len(d) - d->n_committed;
    int n_keep = 0;
    while (n_keep < n_accepted && n_keep < n_read && d->held[d->n_committed + n_keep] == tokens[n_keep])
        n_keep++;
    d->n_text += n_tokens;
    d->n_committed += n_keep;
    drop_proposal(d);
    return TD_OK;
}

static bool check(const draft *base, const int32_t *text, int n) {
    const draft_model *d = (const draft_model *)base;
    const int len = cache_len(d);
    (void)d, (void)len, (void)text, (void)n; /* without asserts */
    assert(d->n_text == n);
    assert(d->n_committed == len && len + d->n_skipped < n);
    assert(!d->n_skipped || (d->n_skipped > 0 && d->gap_at >= 0 && d->gap_at < len));
    const int gap = d->n_skipped ? d->gap_at : len;
    (void)gap;
    assert(!memcmp(d->held, text, (size_t)gap * sizeof *text));
    assert(!memcmp(d->held + gap, text + gap + d->n_skipped, (size_t)(len - gap) * sizeof *text));
    assert(len <= d->n_ctx);
    return true;
}

static const draft_ops ops = {.name = "model",
                              .close = close_model,
                              .begin = begin,
                              .propose = propose,
                              .observe = observe,
                              .memory = memory,
                              .check = check};

td_code draft_model_open(draft **out, const model *m, const draft_model_config *cfg,
                         td_error *err) {
    if (cfg->max_tokens < 1 || cfg->max_tokens > DRAFT_MAX || cfg->prefill_chunk < 1 ||
        cfg->n_vocab < 1)
        return td_fail(err, TD_E_ARG,
                       "a draft of up to %d tokens (1 to %d) in chunks of %d makes no sense",
                       cfg->max_tokens, (int)DRAFT_MAX, cfg->prefill_chunk);
    const int n_vocab = model_get_config(m)->n_vocab;
    size_t n_q;
    td_code rc;
    draft_model *d = td_calloc(1, sizeof *d);
    if (!d) goto memory;
    d->base.ops = &ops;
    d->m = m, d->n_ctx = cfg->n_ctx, d->max_tokens = cfg->max_tokens;
    d->pass_rows = cfg->prefill_chunk > 2 ? cfg->prefill_chunk : 2; /* after full acceptance: 2 */
    d->n_target = cfg->n_vocab;
    d->n_common = n_vocab < cfg->n_vocab ? n_vocab : cfg->n_vocab;
    /* A round takes back at most its own tokens; a stop string found late, some more. */
    kv_config kv = {.k_type = cfg->k_type,
                    .v_type = cfg->v_type,
                    .n_ctx = cfg->n_ctx,
                    .max_seqs = 1,
                    .max_rows = d->pass_rows,
                    .max_rollback = 2 * cfg->max_tokens + 64};
    model_kv_config(m, &kv);
    if ((rc = kv_open(&d->kv, &kv, err)) || (rc = kv_seq_new(d->kv, &d->seq, err)) ||
        (rc = model_work_open(&d->work, m, d->pass_rows, err)) ||
        (rc = verify_work_open(&d->sampling, d->n_common, err)))
        goto fail;
    if (!td_mul(&n_q, (size_t)cfg->max_tokens, (size_t)cfg->n_vocab) ||
        !(d->q = td_calloc(n_q, sizeof *d->q)) ||
        !(d->logits = td_calloc((size_t)n_vocab, sizeof *d->logits)) ||
        !(d->rows = td_calloc((size_t)d->pass_rows, sizeof *d->rows)) ||
        !(d->held = td_calloc((size_t)cfg->n_ctx, sizeof *d->held)))
        goto memory;
    *out = &d->base;
    return TD_OK;
memory:
    rc = td_fail(err, TD_E_MEMORY, "out of memory for a draft of %d tokens", cfg->max_tokens);
fail:
    if (d) close_model(&d->base);
    return rc;
}
