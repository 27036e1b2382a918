/* td_session: the caches and the loop of one text. */
#include "lib_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_CTX = 4096,
    DEFAULT_DRAFT_MAX = 16,
    /* Wide enough that a pass computes and no longer waits for weights, short enough that a
     * cancelled prompt ends within a second on small machines. */
    DEFAULT_CHUNK = 64,
    MAX_CHUNK = 4096
};

static td_code check_options(const td_session_options *o, td_error *err) {
    if (o->n_ctx < 0)
        return td_fail(err, TD_E_ARG,
                       "a context of %d positions makes no sense; use 1 or more, 0 for "
                       "the model's own",
                       o->n_ctx);
    if ((unsigned)o->cache_type_k > TD_KV_Q4_0 || (unsigned)o->cache_type_v > TD_KV_Q4_0)
        return td_fail(err, TD_E_ARG, "KV cache types %d and %d are unknown", (int)o->cache_type_k,
                       (int)o->cache_type_v);
    if (o->draft_max < 0 || o->draft_max > TD_MAX_DRAFT)
        return td_fail(err, TD_E_ARG, "drafts of %d tokens make no sense; use 0 to %d",
                       o->draft_max, (int)TD_MAX_DRAFT);
    if (o->prefill_chunk < 0 || o->prefill_chunk > MAX_CHUNK)
        return td_fail(err, TD_E_ARG,
                       "prefill passes of %d rows make no sense; use 1 to %d, 0 for the "
                       "default",
                       o->prefill_chunk, (int)MAX_CHUNK);
    return TD_OK;
}

static kern_kv_type kv_type_of(td_kv_type type) {
    static const kern_kv_type types[] = {[TD_KV_F16] = KERN_KV_F16,
                                         [TD_KV_F32] = KERN_KV_F32,
                                         [TD_KV_Q8_0] = KERN_KV_Q8_0,
                                         [TD_KV_Q4_0] = KERN_KV_Q4_0};
    return types[type];
}

static td_code open_draft(td_session *s, td_model *drafter, const target_config *t, td_error *err) {
    td_code rc = lib_check_vocabularies(s->target_model, drafter, err);
    if (rc) return rc;
    const draft_model_config cfg = {
        .n_ctx = s->n_ctx < drafter->info.n_ctx_train ? s->n_ctx : drafter->info.n_ctx_train,
        .k_type = t->k_type,
        .v_type = t->v_type,
        .max_tokens = s->draft_max,
        .prefill_chunk = t->prefill_chunk,
        .n_vocab = s->target_model->info.n_vocab};
    if ((rc = draft_model_open(&s->d, drafter->m, &cfg, err)))
        return td_fail_context(err, "the draft");
    s->draft_model = drafter;
    /* Each cache alone was found to fit; nothing of them is touched yet. */
    const uint64_t both = td_session_kv_bytes(s, false) + td_session_kv_bytes(s, true);
    const uint64_t available = td_memory_available();
    if (both > available)
        return td_fail(
            err, TD_E_TOO_BIG,
            "the KV caches of target and draft need %.1f MiB for %d positions and %.1f MiB "
            "are free; use a smaller context",
            (double)both / 0x1p20, s->n_ctx, (double)available / 0x1p20);
    return TD_OK;
}

td_code td_session_open(td_session **out, td_model *verifier, td_model *drafter,
                        const td_session_options *opt, td_error *err) {
    const td_session_options defaults = {.draft_max = DEFAULT_DRAFT_MAX};
    if (!opt) opt = &defaults;
    td_code rc = check_options(opt, err);
    if (rc) return rc;
    td_session *s = td_calloc(1, sizeof *s);
    if (!s) return td_fail(err, TD_E_MEMORY, "out of memory");
    const int trained = verifier->info.n_ctx_train;
    const int chunk = opt->prefill_chunk ? opt->prefill_chunk : DEFAULT_CHUNK;
    s->target_model = verifier;
    s->draft_max = opt->draft_max;
    s->n_ctx = opt->n_ctx ? opt->n_ctx : trained < DEFAULT_CTX ? trained : DEFAULT_CTX;
    const target_config cfg = {.n_ctx = s->n_ctx,
                               .k_type = kv_type_of(opt->cache_type_k),
                               .v_type = kv_type_of(opt->cache_type_v),
                               .max_rows = s->draft_max + 1,
                               .prefill_chunk = chunk};
    if ((rc = target_open(&s->t, verifier->m, &cfg, err))) goto fail;
    if (drafter && s->draft_max && (rc = open_draft(s, drafter, &cfg, err))) goto fail;
    if ((rc = spec_open(&s->s, s->t, s->d, s->draft_max, err))) goto fail;
    if (!(s->gaps_ms = td_calloc((size_t)s->n_ctx + 1, sizeof *s->gaps_ms)) ||
        !(s->begins = td_calloc((size_t)s->n_ctx + 1, sizeof *s->begins)) ||
        !(s->origin = td_calloc((size_t)s->n_ctx + 1, sizeof *s->origin))) {
        rc = td_fail(err, TD_E_MEMORY, "out of memory for a context of %d positions", s->n_ctx);
        goto fail;
    }
    *out = s;
    return TD_OK;
fail:
    td_session_close(&s);
    return rc;
}

void td_session_close(td_session **session_ptr) {
    if (!session_ptr || !*session_ptr) return;
    td_session *s = *session_ptr;
    spec_close(s->s);
    draft_close(s->d);
    target_close(s->t);
    td_buf_free(&s->bytes);
    td_buf_free(&s->held);
    free(s->bias);
    free(s->gaps_ms);
    free(s->begins);
    free(s->origin);
    free(s);
    *session_ptr = NULL;
}

int td_session_n_ctx(const td_session *s) {
    return s->n_ctx;
}

uint64_t td_session_kv_bytes(const td_session *s, bool of_draft) {
    if (!of_draft) return kv_size_bytes(target_cache(s->t));
    return s->d ? draft_memory(s->d) : 0;
}

void td_session_cancel(td_session *s) {
    atomic_store(&s->cancelled, 1);
}

void lib_session_lock(td_session *s) {
    lib_pool_lock(s->target_model->pool, s->draft_model ? s->draft_model->pool : NULL);
}

void lib_session_unlock(td_session *s) {
    lib_pool_unlock(s->target_model->pool, s->draft_model ? s->draft_model->pool : NULL);
}

td_code lib_check_prompt(const td_session *s, size_t n, td_error *err) {
    if (!n) return td_fail(err, TD_E_ARG, "an empty prompt: there is nothing to go on from");
    if (n > (size_t)s->n_ctx)
        return td_fail(err, TD_E_TOO_BIG,
                       "the prompt has %zu tokens and the context holds %d; shorten it or open the "
                       "session with a larger context",
                       n, s->n_ctx);
    return TD_OK;
}

td_code td_logits(td_session *s, const td_token *tokens, size_t n, size_t n_rows, float *out,
                  td_error *err) {
    td_code rc = lib_check_prompt(s, n, err);
    if (rc) return rc;
    if (n_rows < 1 || n_rows > n)
        return td_fail(err, TD_E_ARG, "logits of the last %zu positions of a text of %zu", n_rows,
                       n);
    lib_session_lock(s);
    rc = spec_logits(s->s, tokens, (int)n, (int)n_rows, out, err);
    lib_session_unlock(s);
    return rc;
}

/* ---- measuring ---- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double lib_percentile(double *v, size_t n, double share) {
    if (!n) return 0;
    qsort(v, n, sizeof *v, by_value);
    const double at = share * (double)(n - 1);
    const size_t below = (size_t)at;
    if (below + 1 >= n) return v[n - 1];
    return v[below] + (v[below + 1] - v[below]) * (at - (double)below);
}

/* Some text, the same each time: its content changes no cost, its length does. */
static void fill_text(td_token *to, size_t n, int n_vocab) {
    for (size_t i = 0; i < n; i++)
        to[i] = (td_token)((i * 7919 + 17) % (size_t)(n_vocab < 1000 ? n_vocab : 1000));
}

td_code td_measure_pass(td_session *s, int n_context, int m, int repeats, double *ms,
                        td_error *err) {
    if (m < 1 || m > s->draft_max + 1)
        return td_fail(err, TD_E_ARG, "a pass of %d rows; this session was opened for 1 to %d", m,
                       s->draft_max + 1);
    if (n_context < 0 || repeats < 1 || repeats > 1000000)
        return td_fail(err, TD_E_ARG, "%d passes behind %d positions make no sense", repeats,
                       n_context);
    if (n_context > s->n_ctx - m)
        return td_fail(err, TD_E_TOO_BIG,
                       "%d rows behind %d positions do not fit into a context of %d", m, n_context,
                       s->n_ctx);
    td_token *text = td_calloc((size_t)n_context + (size_t)m, sizeof *text);
    double *times = td_calloc((size_t)repeats, sizeof *times);
    td_code rc = TD_OK;
    if (!text || !times) {
        rc = td_fail(err, TD_E_MEMORY, "out of memory for %d positions", n_context);
        goto done;
    }
    fill_text(text, (size_t)n_context + (size_t)m, s->target_model->info.n_vocab);
    const spec_params plain = {.sampler = {.top_p = 1, .repeat_penalty = 1}};
    lib_session_lock(s);
    rc = spec_begin(s->s, text, n_context + 1, &plain, NULL, NULL, NULL, err);
    for (int i = 0; i < repeats && !rc;
         i++) { /* nothing is kept: each pass stands at the same place */
        const float *logits;
        const uint64_t start = td_now_ns();
        rc = target_verify(s->t, text + n_context, NULL, m, &logits, err);
        times[i] = (double)(td_now_ns() - start) / 1e6;
    }
    lib_session_unlock(s);
    if (!rc) *ms = lib_percentile(times, (size_t)repeats, 0.5);
done:
    free(text);
    free(times);
    return rc;
}

td_code td_measure_draft(td_session *s, int n_context, int repeats, double *ms, td_error *err) {
    enum { STEPS = 8 };
    if (!s->d) return td_fail(err, TD_E_ARG, "without a draft there is nothing to measure");
    const int n_steps = s->draft_max < STEPS ? s->draft_max : STEPS;
    if (n_context < 1 || n_context > s->n_ctx - n_steps || repeats < 1 || repeats > 1000000)
        return td_fail(err, TD_E_ARG, "%d proposals behind %d positions of %d make no sense", repeats,
                       n_context, s->n_ctx);
    static const verify_sampler greedy = {.top_p = 1, .repeat_penalty = 1};
    td_token *text = td_calloc((size_t)n_context, sizeof *text);
    double *times = td_calloc((size_t)repeats, sizeof *times);
    td_code rc = TD_OK;
    if (!text || !times) {
        rc = td_fail(err, TD_E_MEMORY, "out of memory for %d positions", n_context);
        goto done;
    }
    fill_text(text, (size_t)n_context, s->target_model->info.n_vocab);
    lib_session_lock(s);
    rc = draft_begin(s->d, text, n_context, NULL, NULL, err);
    for (int i = 0; i < repeats && !rc; i++) {
        const draft_request req = {
            .max_tokens = n_steps, .sampler = &greedy, .history = text, .n_history = n_context};
        draft_proposal p;
        const uint64_t start = td_now_ns();
        rc = draft_propose(s->d, &req, &p, err);
        times[i] = (double)(td_now_ns() - start) / 1e6 / (p.n ? p.n : 1);
    }
    lib_session_unlock(s);
    if (!rc) *ms = lib_percentile(times, (size_t)repeats, 0.5);
done:
    free(text);
    free(times);
    return rc;
}
