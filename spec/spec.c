/* The loop. Each function leaves the two invariants that spec_check asserts:
 *   1. the target's cache holds text[0 .. n - 1), so that the next pass reads text[n - 1] first;
 *   2. the drafter holds nothing that is not in text[0 .. n - 1).
 * A round without a draft is a round with k = 0: the same pass, the same sampler, the same draw.
 * That is what makes plain and speculative text agree by construction and not by care.
 *
 * Called once a round (tens of milliseconds); allocates nothing. */
#include "spec/spec.h"

#include "spec/guesses.h"
#include "spec/measure.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert((int)DRAFT_MAX <= (int)VERIFY_MAX_DRAFT, "a block holds the longest draft");

struct spec {
    target *t; /* borrowed */
    draft *d;  /* borrowed; NULL: plain decoding */
    int max_draft, n_vocab, n_ctx;
    verify_work *sampling;
    float *p;       /* (max_draft + 1, n_vocab) */
    int32_t *text;  /* (n_ctx + 1) */
    int n;          /* committed tokens */
    bool begun;     /* text and caches agree */
    bool following; /* the drafter observes this text */
    bool has_model, has_text; /* among the drafters */
    spec_params params;
    uint32_t round;
    length_model length; /* of adapting; costs unset: costs.near == costs.far */
    guesses guesses;  /* of drafters that go by text */
    int n_draft_read; /* committed tokens when a model proposed last */
    draft_proposal proposal;
    int32_t rows[1 + DRAFT_MAX]; /* of the verify pass: last, then the proposal's */
    int parents[1 + DRAFT_MAX];
};

td_code spec_open(spec **out, target *t, draft *d, int max_draft, td_error *err) {
    if (max_draft < 0 || max_draft > DRAFT_MAX)
        return td_fail(err, TD_E_ARG, "a draft of %d tokens makes no sense; use 0 to %d", max_draft,
                       (int)DRAFT_MAX);
    size_t n_p;
    td_code rc;
    spec *s = td_calloc(1, sizeof *s);
    if (!s) goto memory;
    s->t = t, s->d = d, s->max_draft = max_draft;
    guesses_init(&s->guesses, d);
    for (int i = 0; i < s->guesses.n_sources; i++)
        *(guesses_by_text(&s->guesses, i) ? &s->has_text : &s->has_model) = true;
    s->n_vocab = model_get_config(target_model(t))->n_vocab;
    s->n_ctx = kv_n_ctx(target_cache(t));
    if ((rc = verify_work_open(&s->sampling, s->n_vocab, err))) goto fail;
    if (!td_mul(&n_p, (size_t)max_draft + 1, (size_t)s->n_vocab) ||
        !(s->p = td_calloc(n_p, sizeof *s->p)) ||
        !(s->text = td_calloc((size_t)s->n_ctx + 1, sizeof *s->text)))
        goto memory;
    *out = s;
    return TD_OK;
memory:
    rc = td_fail(err, TD_E_MEMORY, "out of memory for rounds of %d drafted tokens", max_draft);
fail:
    spec_close(s);
    return rc;
}

void spec_close(spec *s) {
    if (!s) return;
    verify_work_close(s->sampling);
    free(s->p);
    free(s->text);
    free(s);
}

const int32_t *spec_tokens(const spec *s) {
    return s->text;
}

int spec_n_tokens(const spec *s) {
    return s->n;
}

bool spec_following(const spec *s) {
    return s->following;
}

bool spec_check(const spec *s) {
    (void)s; /* without asserts */
    assert(s->begun && s->n >= 1);
    assert(target_len(s->t) == s->n - 1);
    assert(kv_check(target_cache(s->t)));
    assert(!s->following || draft_check(s->d, s->text, s->n));
    return true;
}

/* ---- the text ---- */

static void cut_target(spec *s, int n_pos) {
    if (n_pos < target_len(s->t) && !target_truncate(s->t, n_pos)) target_truncate(s->t, 0);
}

/* Makes tokens[0..n) the text and the target's cache its first n_pos positions, n_pos < n; a common
 * prefix stays. After a failure the cache still holds a prefix of the text. */
static td_code read_text(spec *s, const int32_t *tokens, int n, int n_pos, int *n_prefilled,
                         bool (*progress)(void *, int), void *user, td_error *err) {
    s->begun = s->following = false;
    const int held = target_len(s->t);
    int common = 0;
    while (common < held && common < n_pos && s->text[common] == tokens[common])
        common++;
    cut_target(s, common);
    memmove(s->text, tokens, (size_t)n * sizeof *tokens); /* it may be a part of the text itself */
    s->n = n;
    const int have = target_len(s->t);
    td_code rc = target_prefill(s->t, s->text + have, n_pos - have, progress, user, err);
    if (n_prefilled) *n_prefilled = target_len(s->t) - have;
    return rc;
}

static td_code check_text(const spec *s, const int32_t *tokens, int n, td_error *err) {
    if (n < 1) return td_fail(err, TD_E_ARG, "an empty prompt: there is nothing to go on from");
    if (n > s->n_ctx)
        return td_fail(err, TD_E_TOO_BIG,
                       "the prompt has %d tokens and the context holds %d; shorten it or give a "
                       "larger context",
                       n, s->n_ctx);
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= s->n_vocab)
            return td_fail(err, TD_E_ARG,
                           "token %d of the prompt is %d; this model has tokens 0 to %d", i,
                           (int)tokens[i], s->n_vocab - 1);
    return TD_OK;
}

/* What the caller hears: the target reads first, counting what was cached; then the drafter, of
 * whose progress only the question "go on?" is passed on. */
typedef struct listener {
    bool (*progress)(void *, int);
    void *user;
    int before, done;
} listener;

static bool target_progress(void *user, int done) {
    listener *l = user;
    return l->progress(l->user, l->done = l->before + done);
}

static bool draft_progress(void *user, int done) {
    listener *l = user;
    (void)done;
    return l->progress(l->user, l->done);
}

td_code spec_begin(spec *s, const int32_t *prompt, int n, const spec_params *p, int *n_prefilled,
                   bool (*progress)(void *, int), void *user, td_error *err) {
    td_code rc = check_text(s, prompt, n, err);
    if (rc || (rc = verify_sampler_check(&p->sampler, s->n_vocab, err))) return rc;
    assert(!p->adapt || spec_length(s));
    if (p->draft_max < 0 || p->draft_max > s->max_draft)
        return td_fail(err, TD_E_ARG, "a draft of %d tokens: this session allows 0 to %d",
                       p->draft_max, s->max_draft);
    if (p->width > 1) {
        if (p->width > s->max_draft || p->width * p->draft_max > s->max_draft)
            return td_fail(err, TD_E_ARG, "a draft of %d times %d tokens: this session allows %d",
                           p->width, p->draft_max, s->max_draft);
        if (p->rule == VERIFY_BLOCK && p->sampler.temperature > 0)
            return td_fail(err, TD_E_UNSUPPORTED,
                           "block verification takes drafts one token wide; use token or coupled");
        if (p->adapt)
            return td_fail(err, TD_E_UNSUPPORTED,
                           "a draft whose shape is chosen has no fixed width");
    }
    s->params = *p;
    s->round = 0;
    guesses_begin(&s->guesses);
    listener l = {.progress = progress, .user = user};
    rc = read_text(s, prompt, n, n - 1, n_prefilled, progress ? target_progress : NULL, &l, err);
    if (rc) return rc;
    if (s->d && p->draft_max > 0) {
        rc = draft_begin(s->d, s->text, n, progress ? draft_progress : NULL, &l, err);
        if (rc) return rc;
        s->following = true;
        s->n_draft_read = n - 1;
    }
    if (p->adapt) length_begin(&s->length);
    s->begun = true;
    assert(spec_check(s));
    return TD_OK;
}

td_code spec_cut(spec *s, int n, td_error *err) {
    assert(s->begun && n >= 1 && n <= s->n);
    if (n == s->n) return TD_OK;
    td_code rc;
    const bool following = s->following;
    s->begun = s->following = false;
    s->n = n;
    cut_target(s, n - 1);
    const int have = target_len(s->t);
    if ((rc = target_prefill(s->t, s->text + have, n - 1 - have, NULL, NULL, err))) return rc;
    if (following) {
        if ((rc = draft_begin(s->d, s->text, n, NULL, NULL, err))) return rc;
        s->following = true;
        s->n_draft_read = n - 1;
    }
    s->begun = true;
    assert(spec_check(s));
    return TD_OK;
}

td_code spec_logits(spec *s, const int32_t *tokens, int n, int n_rows, float *out, td_error *err) {
    td_code rc = check_text(s, tokens, n, err);
    if (rc) return rc;
    if (n_rows < 1 || n_rows > n)
        return td_fail(err, TD_E_ARG, "logits of the last %d positions of a text of %d", n_rows, n);
    const size_t width = (size_t)s->n_vocab;
    if ((rc = read_text(s, tokens, n, n - n_rows, NULL, NULL, NULL, err))) return rc;
    for (int at = n - n_rows; at < n;) {
        const int n_pass = n - at < s->max_draft + 1 ? n - at : s->max_draft + 1;
        const float *logits = NULL;
        if ((rc = target_verify(s->t, s->text + at, NULL, n_pass, &logits, err))) return rc;
        memcpy(out, logits, (size_t)n_pass * width * sizeof *out);
        out += (size_t)n_pass * width;
        at += n_pass;
        target_keep(s->t, NULL, at < n ? n_pass : n_pass - 1); /* invariant 1 */
    }
    s->params = (spec_params){.sampler = {.top_p = 1, .repeat_penalty = 1}};
    s->begun = true;
    assert(spec_check(s));
    return TD_OK;
}

/* ---- a round ---- */

td_code spec_measure(spec *s, length_costs *out, bool (*progress)(void *, int done, int total),
                     void *user, td_error *err) {
    assert(s->d);
    s->begun = s->following = false;
    s->n = 0;
    return measure_costs(s->t, s->d, s->max_draft + 1, out, progress, user, err);
}

void spec_set_costs(spec *s, const length_costs *costs) {
    assert(costs->near < costs->far);
    length_init(&s->length, costs);
}

const length_model *spec_length(const spec *s) {
    return s->length.costs.far ? &s->length : NULL;
}

/* How much a round may draft. */
typedef struct bounds {
    int model_places;            /* longest path of a model's draft; 0: it is not asked */
    int text_places, text_nodes; /* of proposals by text */
    int width;
} bounds;

/* What the user asked for, or what pays, as far as the context and the token limit can use it. */
static bounds draft_bounds(spec *s, int max_tokens) {
    const spec_params *p = &s->params;
    const int room = s->n_ctx - target_len(s->t) - 1, width = p->width > 1 ? p->width : 1;
    int k = s->following ? p->draft_max : 0;
    if (k * width > room) k = room / width;
    if (max_tokens > 0 && k > max_tokens - 1) k = max_tokens - 1;
    if (k < 0) k = 0;
    const bool text = s->has_text && k > 0;
    bounds b = {.model_places = s->has_model ? k : 0,
                .text_places = text ? k : 0,
                .text_nodes = text ? k * width : 0,
                .width = width};
    if (!p->adapt || !k) return b;
    const bool chain = p->rule == VERIFY_BLOCK && p->sampler.temperature > 0;
    const length_scope scope = {.n_pos = s->n - 1,
                                .n_unread = s->n - s->n_draft_read,
                                .n_places = b.model_places,
                                .n_nodes = room < s->max_draft ? room : s->max_draft,
                                .width = chain ? 1 : LENGTH_WIDTH,
                                .text = text};
    b.model_places = length_choose(&s->length, &scope);
    b.width = scope.width;
    if (text) b.text_nodes = scope.n_nodes < LENGTH_MAX ? scope.n_nodes : LENGTH_MAX;
    return b;
}

static draft_answer ask_length(void *user, int i, float confidence) {
    const length_answer a = length_ask(&((spec *)user)->length, i, confidence);
    return (draft_answer){.width = a.width, .go_on = a.go_on};
}

/* With fixed lengths a proposal by text is taken whole; where a model could be asked instead, only one that is more
 * likely right than not. */
static float weigh(void *user, const draft_proposal *p, int *n) {
    spec *s = user;
    double path[DRAFT_MAX];
    guesses_note(&s->guesses, p, path);
    *n = p->n;
    if (!p->n) return 0;
    if (s->params.adapt) return (float)length_weigh(&s->length, path, p->n, n);
    return (float)path[0] - (s->has_model ? 0.5f : 0);
}

/* The proposal, checked: a drafter's mistake must not become a wrong pass. */
static td_code draft_round(spec *s, const bounds *b, const verify_rng *rng, td_error *err) {
    draft_proposal *x = &s->proposal;
    x->n = x->source = 0;
    x->q = NULL;
    guesses_clear(&s->guesses);
    if (b->model_places <= 0 && b->text_places <= 0) return TD_OK;
    const draft_request req = {.max_tokens = b->model_places,
                               .width = s->params.adapt && !s->has_text ? s->params.width : b->width,
                               .sampler = &s->params.sampler,
                               .history = s->text,
                               .n_history = s->n,
                               .rng = *rng,
                               .coupled = s->params.rule == VERIFY_COUPLED,
                               .ask = s->params.adapt ? ask_length : NULL,
                               .user = s,
                               .max_read = s->params.adapt ? LENGTH_READ : 0,
                               .max_text = b->text_places,
                               .max_nodes = b->text_nodes,
                               .guess_rate = s->guesses.rate[0],
                               .weigh = weigh};
    td_code rc = draft_propose(s->d, &req, x, err);
    if (rc) return rc;
    if (x->source >= 0 && !guesses_by_text(&s->guesses, x->source)) s->n_draft_read = s->n;
    assert(x->n >= 0 && x->n <= s->max_draft);
    for (int i = 0; i < x->n; i++)
        assert(x->parent[i] >= -1 && x->parent[i] < i && x->token[i] >= 0 &&
               x->token[i] < s->n_vocab);
    return TD_OK;
}

/* Tokens on the way from the text to a row of the pass, that row's included; row 0 has none. */
static int path_to(const draft_proposal *x, int row, int32_t path[DRAFT_MAX]) {
    int depth = 0;
    for (int i = row - 1; i >= 0; i = x->parent[i])
        depth++;
    int at = depth;
    for (int i = row - 1; i >= 0; i = x->parent[i])
        path[--at] = x->token[i];
    return depth;
}

/* Which of its siblings a node is, from 0. */
static int sibling_number(const draft_proposal *x, int node) {
    int n = 0;
    for (int i = 0; i < node; i++)
        n += x->parent[i] == x->parent[node];
    return n;
}

static int longest_path(const draft_proposal *x) {
    int most = 0;
    int32_t path[DRAFT_MAX];
    for (int row = 1; row <= x->n; row++) {
        const int depth = path_to(x, row, path);
        if (depth > most) most = depth;
    }
    return most;
}

/* Greedy needs no row off the path: each argmax says which one is next. */
static void accept_greedy(spec *s, const float *logits, verify_result *out) {
    const draft_proposal *x = &s->proposal;
    const verify_tree tree = {x->n, x->token, x->parent};
    int32_t argmax[1 + DRAFT_MAX], path[DRAFT_MAX];
    for (int i = 0; i <= x->n; i++)
        argmax[i] = -1; /* no token: a row that is not asked for ends no path */
    for (int row = 0, next; row >= 0; row = next) {
        const int depth = path_to(x, row, path);
        argmax[row] =
            verify_argmax(&s->params.sampler, logits + (size_t)row * (size_t)s->n_vocab, s->n_vocab,
                          s->text, s->n, path, depth, s->sampling);
        next = -1;
        for (int i = row; i < x->n && next < 0; i++)
            if (x->parent[i] == row - 1 && x->token[i] == argmax[row]) next = i + 1;
    }
    verify_greedy(argmax, &tree, out);
}

static void accept_sampled(spec *s, const float *logits, const verify_rng *rng,
                           verify_result *out) {
    const draft_proposal *x = &s->proposal;
    const verify_tree tree = {x->n, x->token, x->parent};
    int32_t path[DRAFT_MAX];
    for (int row = 0; row <= x->n; row++) {
        const size_t at = (size_t)row * (size_t)s->n_vocab;
        const int depth = path_to(x, row, path);
        verify_probs(&s->params.sampler, logits + at, s->n_vocab, s->text, s->n, path, depth,
                     s->sampling, s->p + at);
    }
    verify_proposal(s->params.rule, s->p, x->q, &tree, s->n_vocab, rng, out);
}

td_code spec_step(spec *s, int max_tokens, spec_round *out, td_error *err) {
    assert(spec_check(s));
    if (s->n > s->n_ctx)
        return td_fail(err, TD_E_TOO_BIG, "the context of %d positions is full", s->n_ctx);
    const verify_rng rng = {.seed = s->params.seed, .position = (uint64_t)s->n, .lane = s->round};
    const float *logits = NULL;
    verify_result result;
    td_code rc;

    const uint64_t t0 = td_now_ns();
    const bounds b = draft_bounds(s, max_tokens);
    if ((rc = draft_round(s, &b, &rng, err))) goto fail;
    const draft_proposal *x = &s->proposal;
    const bool by_text = x->n && guesses_by_text(&s->guesses, x->source);

    const uint64_t t1 = td_now_ns();
    s->rows[0] = s->text[s->n - 1];
    s->parents[0] = -1;
    for (int i = 0; i < x->n; i++)
        s->rows[1 + i] = x->token[i], s->parents[1 + i] = 1 + x->parent[i];
    if ((rc = target_verify(s->t, s->rows, s->parents, 1 + x->n, &logits, err))) goto fail;

    const uint64_t t2 = td_now_ns();
    if (s->params.sampler.temperature == 0)
        accept_greedy(s, logits, &result);
    else
        accept_sampled(s, logits, &rng, &result);

    const uint64_t t3 = td_now_ns();
    const int n_new = result.n_accepted + 1;
    int kept[1 + DRAFT_MAX] = {0};
    for (int i = 0; i < result.n_accepted; i++) {
        kept[1 + i] = 1 + result.path[i];
        s->text[s->n + i] = x->token[result.path[i]];
    }
    s->text[s->n + result.n_accepted] = result.token;
    target_keep(s->t, kept, n_new);
    const int32_t *new_tokens = s->text + s->n;
    const int n_places = longest_path(x), last = result.n_accepted - 1;
    if (s->params.adapt)
        length_learn(&s->length, &(length_round){.n_drafted = x->n,
                                                 .n_places = n_places,
                                                 .n_accepted = result.n_accepted,
                                                 .sibling = last < 0 ? 0 : sibling_number(x, result.path[last]),
                                                 .text = by_text,
                                                 .draft_ms = (double)(t1 - t0) / 1e6,
                                                 .verify_ms = (double)(t2 - t1) / 1e6,
                                                 .sample_ms = (double)(t3 - t2) / 1e6});
    guesses_learn(&s->guesses, new_tokens, n_new);
    s->n += n_new;
    s->round++;
    if (s->following && (rc = draft_observe(s->d, new_tokens, n_new, result.n_accepted, err))) {
        s->begun = s->following = false; /* the text stands, the drafter does not follow it */
        return rc;
    }
    *out = (spec_round){.tokens = new_tokens,
                        .n_tokens = n_new,
                        .n_drafted = x->n,
                        .n_places = n_places,
                        .n_accepted = result.n_accepted,
                        .source = x->source < 0 ? 0 : x->source,
                        .draft_ns = t1 - t0,
                        .verify_ns = t2 - t1,
                        .sample_ns = t3 - t2};
    assert(spec_check(s));
    return TD_OK;
fail: /* nothing is committed; the drafter forgets its proposal */
    if (s->following && draft_observe(s->d, NULL, 0, 0, NULL)) s->begun = s->following = false;
    return rc;
}
