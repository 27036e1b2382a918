/* td_generate: rounds of the loop, their text, and all the ways to stop.
 *
 * A round may commit several tokens at once, and a stop can lie between any two of them, or inside
 * the bytes of one. The rule, whatever the stop: the tokens kept are those whose text begins before
 * it, the caches are cut to them, and neither text nor counts know of the others. So every number
 * is taken after the cut. */
#include "lib_internal.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

void td_generate_defaults(td_generate_options *opt) {
    *opt = (td_generate_options){.sampling = {.temperature = 0.8f,
                                              .top_k = 40,
                                              .top_p = 0.95f,
                                              .min_p = 0.05f,
                                              .repeat_penalty = 1,
                                              .repeat_last_n = 64,
                                              .seed = td_random_seed()},
                                 .n_predict = -1,
                                 .draft_max = TD_DRAFT_AUTO};
}

/* One call. */
typedef struct run {
    td_session *s;
    const td_generate_options *opt;
    td_stats st;
    lib_stops stops;
    text_stream stream;
    int n_prompt;
    size_t n_bytes; /* of the tokens so far */
    size_t n_gaps;
    uint64_t begin, decode_begin, last; /* ns: the call, the end of the prefill, the last round */
    uint64_t draft_ns, verify_ns, sample_ns;
    td_error *err;
} run;

static double ms_of(uint64_t ns) {
    return (double)ns / 1e6;
}

/* ---- options ---- */

static td_code check_options(const td_session *s, const td_generate_options *o, td_error *err) {
    if (o->n_predict < -1)
        return td_fail(err, TD_E_ARG, "%d tokens make no sense; use 0 or more, -1 for no limit",
                       o->n_predict);
    if (o->draft_max != TD_DRAFT_AUTO &&
        (o->draft_max < 0 || o->draft_max > (s->d ? s->draft_max : TD_MAX_DRAFT)))
        return td_fail(err, TD_E_ARG, "drafts of %d tokens: this session was opened for 0 to %d",
                       o->draft_max, s->draft_max);
    if (o->draft_width < 0 || o->draft_width > TD_MAX_DRAFT)
        return td_fail(err, TD_E_ARG, "drafts %d tokens wide; use 1 to %d", o->draft_width,
                       TD_MAX_DRAFT);
    if (o->n_stops < 0 || (o->n_stops > 0 && !o->stops))
        return td_fail(err, TD_E_ARG, "a list of %d stop strings makes no sense", o->n_stops);
    for (int i = 0; i < o->n_stops; i++)
        if (!o->stops[i] || !*o->stops[i])
            return td_fail(err, TD_E_ARG, "stop string %d is empty", i + 1);
    return TD_OK;
}

/* The public sampler as verify's, with the end tokens forbidden where asked for. */
static td_code make_params(td_session *s, const td_generate_options *o, spec_params *out,
                           td_error *err) {
    static const verify_rule rules[] = {[TD_VERIFY_BLOCK] = VERIFY_BLOCK,
                                        [TD_VERIFY_TOKEN] = VERIFY_TOKEN,
                                        [TD_VERIFY_COUPLED] = VERIFY_COUPLED};
    const td_sampling *p = &o->sampling;
    const td_model *m = s->target_model;
    if ((unsigned)o->verify >= sizeof rules / sizeof *rules)
        return td_fail(err, TD_E_ARG, "acceptance rule %d is unknown", (int)o->verify);
    if (p->n_bias < 0 || (p->n_bias > 0 && !p->bias))
        return td_fail(err, TD_E_ARG, "a list of %d logit biases makes no sense", p->n_bias);
    const size_t n = (size_t)p->n_bias + (o->ignore_eos ? m->n_ends : 0);
    if (!td_grow(&s->bias, &s->bias_cap, n, sizeof *s->bias))
        return td_fail(err, TD_E_MEMORY, "out of memory for %zu logit biases", n);
    for (int i = 0; i < p->n_bias; i++)
        s->bias[i] = (verify_bias){p->bias[i].token, p->bias[i].bias};
    for (size_t i = 0; i < n - (size_t)p->n_bias; i++)
        s->bias[(size_t)p->n_bias + i] = (verify_bias){m->ends[i], -INFINITY};
    *out = (spec_params){.sampler = {.temperature = p->temperature,
                                     .top_k = p->top_k,
                                     .top_p = p->top_p,
                                     .min_p = p->min_p,
                                     .repeat_penalty = p->repeat_penalty,
                                     .presence_penalty = p->presence_penalty,
                                     .frequency_penalty = p->frequency_penalty,
                                     .repeat_last_n = p->repeat_last_n,
                                     .bias = s->bias,
                                     .n_bias = (int)n},
                         .rule = rules[o->verify],
                         .seed = p->seed,
                         .width = o->draft_width,
                         .adapt = s->d && o->draft_max == TD_DRAFT_AUTO,
                         .draft_max = !s->d                           ? 0
                                      : o->draft_max != TD_DRAFT_AUTO ? o->draft_max
                                      : s->draft_max < TD_AUTO_MAX_DRAFT ? s->draft_max
                                                                         : TD_AUTO_MAX_DRAFT};
    return TD_OK;
}

/* ---- the prompt ---- */

static bool cancelled(const run *r) {
    return atomic_load(&r->s->cancelled);
}

/* The user's code runs without the lock: it may take its time. */
static bool on_prefill(void *user, int done) {
    run *r = user;
    if (r->opt->on_prefill) {
        lib_session_unlock(r->s);
        r->opt->on_prefill(r->opt->user, done, r->n_prompt);
        lib_session_lock(r->s);
    }
    return !cancelled(r);
}

static td_code prefill(run *r, const td_token *prompt, const spec_params *p) {
    int n_prefilled = 0;
    lib_session_lock(r->s);
    td_code rc = spec_begin(r->s->s, prompt, r->n_prompt, p, &n_prefilled, on_prefill, r, r->err);
    lib_session_unlock(r->s);
    r->st.prefill_tokens = n_prefilled;
    r->decode_begin = r->last = td_now_ns();
    r->st.prefill_ms = ms_of(r->decode_begin - r->begin);
    return rc;
}

/* ---- the text ---- */

/* Tokens generated so far whose text begins before byte `at`. */
static int tokens_before(const run *r, int n, size_t at) {
    while (n > 0 && r->s->begins[n - 1] >= at)
        n--;
    return n;
}

/* Takes token number n of the text. Where it stops there, st.stop says why and *n_keep how many
 * stay. */
static void take_token(run *r, td_token token, int n, int *n_keep) {
    td_session *s = r->s;
    if (text_is_end(s->target_model->v, token)) {
        r->st.stop = TD_STOP_EOS;
        *n_keep = n;
        return;
    }
    size_t len, n_ready = 0, at = 0;
    text_token_bytes(s->target_model->v, token, false, &len);
    s->begins[n] = r->n_bytes;
    r->n_bytes += len;
    s->bytes.len = 0;
    text_stream_push(&r->stream, token, &s->bytes);
    const bool found = lib_stops_push(&r->stops, s->bytes.data, s->bytes.len, &n_ready, &at);
    bool go_on = true;
    if (n_ready && r->opt->on_text) go_on = r->opt->on_text(r->opt->user, s->held.data, n_ready);
    lib_stops_pass(&r->stops, n_ready);
    if (found) {
        r->st.stop = TD_STOP_STRING;
        *n_keep = tokens_before(r, n + 1, at);
    } else if (!go_on) {
        r->st.stop = TD_STOP_CANCELLED;
        *n_keep = n + 1;
    }
}

/* What waited for a stop string that did not come. A character that the last token left unfinished
 * is not text. */
static void finish_text(run *r) {
    td_buf *held = &r->s->held;
    if (r->st.stop == TD_STOP_STRING || !held->len || !r->opt->on_text) return;
    if (!r->opt->on_text(r->opt->user, held->data, held->len) && r->st.stop != TD_STOP_EOS)
        r->st.stop = TD_STOP_CANCELLED;
}

/* ---- rounds ---- */

/* Counts a round that began behind `before` generated tokens, with n_new tokens taken from it. */
static void count_round(run *r, const spec_round *round, int before, int n_new) {
    td_stats *st = &r->st;
    const uint64_t now = td_now_ns();
    st->rounds++;
    st->drafted += round->n_drafted;
    for (int i = 0; i < round->n_places; i++)
        st->drafted_per_pos[i]++;
    r->draft_ns += round->draft_ns, r->verify_ns += round->verify_ns;
    r->sample_ns += round->sample_ns;
    if (!before && n_new) st->ttft_ms = ms_of(now - r->begin);
    for (int i = 0; i < n_new; i++) {
        r->s->origin[before + i] = (uint8_t)(i < round->n_accepted ? i + 1 : 0);
        if (i < round->n_accepted) {
            st->accepted++;
            st->accepted_per_pos[i]++;
        }
        /* Nothing lies before the first token but the prompt. */
        if (before + i) r->s->gaps_ms[r->n_gaps++] = ms_of(now - r->last) / n_new;
    }
    st->decode_tokens = before + n_new;
    r->last = now;
}

/* Keeps n tokens; a stop string may have begun in a round gone by. */
static td_code cut(run *r, int n) {
    td_stats *st = &r->st;
    while (st->decode_tokens > n) {
        const int i = --st->decode_tokens, at = r->s->origin[i];
        if (i) r->n_gaps--;
        if (!at) continue;
        st->accepted--;
        st->accepted_per_pos[at - 1]--;
    }
    lib_session_lock(r->s);
    td_code rc = spec_cut(r->s->s, r->n_prompt + n, r->err);
    lib_session_unlock(r->s);
    return rc;
}

/* A round that began at `start`, behind `before` tokens; after the cut. */
static void tell_round(const run *r, const spec_round *round, uint64_t start, int before) {
    const int n_new = r->st.decode_tokens > before ? r->st.decode_tokens - before : 0;
    const td_round told = {.start_ms = ms_of(start - r->decode_begin),
                           .draft_ms = ms_of(round->draft_ns),
                           .verify_ms = ms_of(round->verify_ns),
                           .sample_ms = ms_of(round->sample_ns),
                           .drafted = round->n_drafted,
                           .accepted = n_new < round->n_accepted ? n_new : round->n_accepted,
                           .tokens = n_new};
    r->opt->on_round(r->opt->user, &told);
}

/* One round and its text; sets st.stop when it is the last. */
static td_code do_round(run *r) {
    td_session *s = r->s;
    td_stats *st = &r->st;
    spec_round round;
    const int before = st->decode_tokens, limit = r->opt->n_predict;
    const uint64_t start = r->last;
    lib_session_lock(s);
    td_code rc = spec_step(s->s, limit < 0 ? 0 : limit - before, &round, r->err);
    lib_session_unlock(s);
    if (rc) return rc;
    int n_new = 0, n_keep = 0;
    while (n_new < round.n_tokens && !st->stop) {
        take_token(r, round.tokens[n_new], before + n_new, &n_keep);
        n_new++;
    }
    if (s->bytes.failed || s->held.failed)
        return td_fail(r->err, TD_E_MEMORY, "out of memory for the text of a token");
    count_round(r, &round, before, n_new);
    if (st->stop) rc = cut(r, n_keep);
    if (!rc && r->opt->on_round) tell_round(r, &round, start, before);
    return rc;
}

static td_code decode(run *r) {
    td_stats *st = &r->st;
    td_code rc = TD_OK;
    while (!rc && !st->stop) {
        if (r->opt->n_predict >= 0 && st->decode_tokens >= r->opt->n_predict)
            st->stop = TD_STOP_LENGTH;
        else if (spec_n_tokens(r->s->s) > r->s->n_ctx)
            st->stop = TD_STOP_CONTEXT;
        else if (cancelled(r))
            st->stop = TD_STOP_CANCELLED;
        else
            rc = do_round(r);
    }
    return rc;
}

static void finish_stats(run *r, td_stats *out) {
    td_stats *st = &r->st;
    st->decode_ms = ms_of(r->last - r->decode_begin);
    st->itl_ms_p50 = lib_percentile(r->s->gaps_ms, r->n_gaps, 0.5);
    st->itl_ms_p95 = lib_percentile(r->s->gaps_ms, r->n_gaps, 0.95);
    st->draft_ms = ms_of(r->draft_ns);
    st->verify_ms = ms_of(r->verify_ns);
    st->sample_ms = ms_of(r->sample_ns);
    st->tokens = spec_tokens(r->s->s) + r->n_prompt;
    if (out) *out = *st;
}

td_code td_generate(td_session *s, const td_token *prompt, size_t n_prompt,
                    const td_generate_options *opt, td_stats *stats, td_error *err) {
    spec_params params;
    td_code rc;
    if ((rc = lib_check_prompt(s, n_prompt, err)) || (rc = check_options(s, opt, err)) ||
        (rc = make_params(s, opt, &params, err)) ||
        (params.adapt && (rc = lib_session_calibrated(s, err))))
        return rc;
    run r = {.s = s,
             .opt = opt,
             .n_prompt = (int)n_prompt,
             .begin = td_now_ns(),
             .stops = {.stops = opt->stops, .n_stops = opt->n_stops, .held = &s->held},
             .err = err};
    r.st.prompt_tokens = (int)n_prompt;
    s->held.len = s->bytes.len = 0;
    s->held.failed = s->bytes.failed = false;
    text_stream_init(&r.stream, s->target_model->v, false, false);
    rc = prefill(&r, prompt, &params);
    if (rc == TD_E_CANCELLED) { /* a stop as any other */
        r.st.stop = TD_STOP_CANCELLED;
        rc = TD_OK;
    } else if (!rc) {
        rc = decode(&r);
    }
    atomic_store(&s->cancelled, 0); /* answered; one that comes before a call waits for it */
    if (rc) return rc;
    finish_text(&r);
    finish_stats(&r, stats);
    return TD_OK;
}
