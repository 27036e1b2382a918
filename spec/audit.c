/* The walk of audit.h: what it does next follows from the seed alone. */
#include "spec/audit.h"

#include <assert.h>
#include <string.h>

enum { LOOK = 3 /* tokens of the proposals that are compared */, AUDIT_OTHER = 48 };

typedef struct walk {
    const audit *a;
    int at; /* step */
} walk;

static double draw(const walk *w, uint32_t what) {
    return td_uniform(w->a->seed, TD_STREAM_PLAIN, (uint64_t)w->at, what);
}

/* One of from .. to. */
static int pick(const walk *w, uint32_t what, int from, int to) {
    return from + (int)(draw(w, what) * (to - from + 1));
}

static const verify_sampler looking = {
    .temperature = 1, .top_k = 20, .top_p = 1, .repeat_penalty = 1.1f, .repeat_last_n = 64};

static bool give_up(void *user, int done) {
    (void)user, (void)done;
    return false;
}

/* A new text: the prompt and some of what was written, as a next request would have it; at times only after one that
 * was cancelled while it was read. */
static td_code begin(const walk *w, td_error *err) {
    const audit *a = w->a;
    static const verify_rule rules[] = {VERIFY_TOKEN, VERIFY_BLOCK, VERIFY_COUPLED};
    const int have = spec_n_tokens(a->s);
    spec_params p = {.sampler = looking,
                     .rule = rules[pick(w, 1, 0, 2)],
                     .seed = a->seed + (uint64_t)w->at,
                     .draft_max = pick(w, 2, 0, 8)};
    if (draw(w, 3) < 0.4) p.sampler.temperature = 0;
    if (p.rule != VERIFY_BLOCK && draw(w, 8) < 0.3) p.width = 2, p.draft_max /= 2;
    if (p.width < 2 && spec_length(a->s)) p.adapt = draw(w, 11) < 0.3;
    if (draw(w, 9) < 0.3) {
        int32_t other[AUDIT_OTHER];
        const int n = a->n_longest < AUDIT_OTHER ? a->n_longest : AUDIT_OTHER;
        for (int i = 0; i < n; i++) /* in part the text that is there */
            other[i] = i < have && draw(w, 10) < 0.5 ? spec_tokens(a->s)[i] : a->prompt[i % a->n_prompt];
        td_error ignored;
        const td_code rc = spec_begin(a->s, other, n, &p, NULL, give_up, NULL, &ignored);
        if (rc && rc != TD_E_CANCELLED) return td_fail(err, rc, "%s", ignored.msg);
        return spec_begin(a->s, a->prompt, a->n_prompt, &p, NULL, NULL, NULL, err);
    }
    if (have <= a->n_prompt || have > a->n_longest || draw(w, 4) < 0.3)
        return spec_begin(a->s, a->prompt, a->n_prompt, &p, NULL, NULL, NULL, err);
    return spec_begin(a->s, spec_tokens(a->s), pick(w, 5, a->n_prompt, have), &p, NULL, NULL, NULL,
                      err);
}

static td_code act(const walk *w, td_error *err) {
    const audit *a = w->a;
    const double what = draw(w, 0);
    const int n = spec_n_tokens(a->s);
    spec_round r;
    if (what < 0.1 || n + 16 > a->n_longest) return begin(w, err);
    if (what < 0.3) return spec_cut(a->s, pick(w, 6, n > 12 ? n - 12 : 1, n), err);
    return spec_step(a->s, pick(w, 7, 0, 5), &r, err);
}

/* The target's logits behind the text, from both caches. */
static td_code look_at_target(const audit *a, bool *good, td_error *err) {
    const int32_t *text = spec_tokens(a->s);
    const int n = spec_n_tokens(a->s);
    const float *live, *plain;
    td_code rc;
    *good = target_len(a->t) == n - 1 && kv_check(target_cache(a->t));
    target_truncate(a->shadow_t, 0);
    if ((rc = target_prefill(a->shadow_t, text, n - 1, NULL, NULL, err)) ||
        (rc = target_verify(a->t, text + n - 1, NULL, 1, &live, err)) ||
        (rc = target_verify(a->shadow_t, text + n - 1, NULL, 1, &plain, err)))
        return rc;
    const size_t n_vocab = (size_t)model_get_config(target_model(a->t))->n_vocab;
    *good = *good && !memcmp(live, plain, n_vocab * sizeof *live);
    return TD_OK;
}

/* What both drafters would propose, with the laws they draw from. */
static td_code look_at_draft(const audit *a, bool *good, td_error *err) {
    const int32_t *text = spec_tokens(a->s);
    const int n = spec_n_tokens(a->s);
    const draft_request req = {.max_tokens = LOOK,
                               .sampler = &looking,
                               .history = text,
                               .n_history = n,
                               .rng = {.seed = 1, .position = (uint64_t)n}};
    static _Thread_local draft_proposal live, plain; /* large */
    td_code rc;
    *good = draft_check(a->d, text, n);
    if ((rc = draft_propose(a->d, &req, &live, err)) ||
        (rc = draft_begin(a->shadow_d, text, n, NULL, NULL, err)) ||
        (rc = draft_propose(a->shadow_d, &req, &plain, err)))
        return rc;
    const size_t n_vocab = (size_t)model_get_config(target_model(a->t))->n_vocab;
    *good = *good && live.n == plain.n && !live.q == !plain.q &&
            !memcmp(live.token, plain.token, (size_t)live.n * sizeof *live.token) &&
            (!live.q || !memcmp(live.q, plain.q, (size_t)live.n * n_vocab * sizeof *live.q));
    return draft_observe(a->d, text + n, 0, 0, err); /* the proposal is dropped */
}

td_code audit_run(const audit *a, int n_steps, int *n_wrong, td_error *err) {
    assert(a->n_longest >= a->n_prompt + 20);
    walk w = {.a = a};
    td_code rc = begin(&w, err);
    *n_wrong = 0;
    for (w.at = 1; w.at <= n_steps && !rc; w.at++) {
        bool target_good = false, draft_good = true;
        if (a->tick && !a->tick(a->user, w.at - 1, n_steps))
            return td_fail(err, TD_E_CANCELLED, "stopped");
        if ((rc = act(&w, err)) || (rc = look_at_target(a, &target_good, err))) break;
        if (spec_following(a->s)) rc = look_at_draft(a, &draft_good, err);
        *n_wrong += !target_good || !draft_good;
    }
    return rc;
}
