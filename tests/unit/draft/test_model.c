/* The model drafter: what it proposes is what its model says, worked out anew from the text each
 * time; what is not accepted leaves no trace. */
#include "tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { V = 48, K = 6, N_PROMPT = 20, MAX_TEXT = 256 };

static const verify_sampler greedy = {.top_p = 1, .repeat_penalty = 1};
static const verify_sampler sampled = {.temperature = 0.8f,
                                       .top_k = 20,
                                       .top_p = 0.95f,
                                       .repeat_penalty = 1.2f,
                                       .frequency_penalty = 0.3f,
                                       .repeat_last_n = 12};

typedef struct text {
    int32_t token[MAX_TEXT];
    int n;
} text;

/* A second reading of the draft's model: logits behind the text and a path. */
typedef struct oracle {
    target *t;
    verify_work *w;
    int n_vocab;
} oracle;

static void oracle_open(oracle *o, const tiny *m, int n_common) {
    td_error err = {0};
    const target_config cfg = {.n_ctx = MAX_TEXT, .max_rows = 1, .prefill_chunk = 32};
    o->n_vocab = n_common;
    if (target_open(&o->t, m->m, &cfg, &err) || verify_work_open(&o->w, n_common, &err))
        fail_msg("%s", err.msg);
}

static void oracle_close(oracle *o) {
    target_close(o->t);
    verify_work_close(o->w);
}

static const float *oracle_logits(oracle *o, const text *x, const int32_t *path, int n_path) {
    td_error err = {0};
    const float *logits;
    text all = *x;
    memcpy(all.token + all.n, path, (size_t)n_path * sizeof *path);
    all.n += n_path;
    assert_true(target_truncate(o->t, 0));
    if (target_prefill(o->t, all.token, all.n - 1, NULL, NULL, &err) ||
        target_verify(o->t, &all.token[all.n - 1], NULL, 1, &logits, &err))
        fail_msg("%s", err.msg);
    return logits;
}

static draft_request request(const text *x, const verify_sampler *s, int k, uint32_t lane) {
    return (draft_request){.max_tokens = k,
                           .sampler = s,
                           .history = x->token,
                           .n_history = x->n,
                           .rng = {.seed = 42, .position = (uint64_t)x->n, .lane = lane}};
}

/* The proposal token by token: greedy the model's argmax, sampled its law and the draw of its
 * stream. */
static void expect_proposal(oracle *o, const text *x, const verify_sampler *s, uint32_t lane,
                            const draft_proposal *p, int n, int n_target) {
    float *want = td_calloc((size_t)n_target, sizeof *want);
    assert_non_null(want);
    assert_int_equal(p->n, n);
    for (int i = 0; i < n; i++) {
        const float *logits = oracle_logits(o, x, p->token, i);
        assert_int_equal(p->parent[i], i - 1);
        if (s->temperature == 0) {
            assert_null(p->q);
            assert_int_equal(p->token[i], verify_argmax(s, logits, o->n_vocab, x->token, x->n,
                                                        p->token, i, o->w));
            continue;
        }
        verify_probs(s, logits, o->n_vocab, x->token, x->n, p->token, i, o->w, want);
        assert_memory_equal(p->q + (size_t)i * n_target, want, (size_t)n_target * sizeof *want);
        const double u = td_uniform(42, TD_STREAM_DRAFT, (uint64_t)(x->n + i), lane);
        assert_int_equal(p->token[i], verify_draw(want, n_target, u));
    }
    free(want);
}

/* A walk through rounds in which from none to all tokens are accepted. */
static void walk(const tiny_params *params, const verify_sampler *s, int n_target) {
    tiny m;
    draft *d;
    oracle o;
    td_error err = {0};
    tiny_open(&m, params);
    const int n_own = model_get_config(m.m)->n_vocab,
              n_common = n_own < n_target ? n_own : n_target;
    const draft_model_config cfg = {
        .n_ctx = MAX_TEXT, .max_tokens = K, .prefill_chunk = 8, .n_vocab = n_target};
    if (draft_model_open(&d, m.m, &cfg, &err)) fail_msg("%s", err.msg);
    assert_true(draft_memory(d) > 0);
    oracle_open(&o, &m, n_common);
    text x = {.n = N_PROMPT};
    tiny_text(x.token, N_PROMPT, n_common, 3);
    assert_int_equal(draft_begin(d, x.token, x.n, NULL, NULL, &err), TD_OK);
    for (uint32_t lane = 0; lane < 24; lane++) {
        draft_proposal p;
        const int k = 1 + (int)(lane * 5 % K), n_accepted = (int)(lane * 7 % (uint32_t)(k + 1));
        const draft_request req = request(&x, s, k, lane);
        assert_int_equal(draft_propose(d, &req, &p, &err), TD_OK);
        expect_proposal(&o, &x, s, lane, &p, k, n_target);
        memcpy(x.token + x.n, p.token, (size_t)n_accepted * sizeof *p.token);
        x.token[x.n + n_accepted] = (int32_t)(lane * 11 % (uint32_t)n_common);
        assert_int_equal(draft_observe(d, x.token + x.n, n_accepted + 1, n_accepted, &err), TD_OK);
        x.n += n_accepted + 1;
        assert_true(draft_check(d, x.token, x.n));
    }
    oracle_close(&o);
    draft_close(d);
    tiny_close(&m);
}

static void greedy_chain(void **state) {
    (void)state;
    walk(&(tiny_params){.seed = 5}, &greedy, V);
    walk(&(tiny_params){.seed = 5, .arch = "gemma3"}, &greedy, V);
}

static void sampled_chain(void **state) {
    (void)state;
    walk(&(tiny_params){.seed = 5}, &sampled, V);
    walk(&(tiny_params){.seed = 5, .arch = "gemma3"}, &sampled, V);
}

static void padded_vocabularies(void **state) {
    (void)state;
    walk(&(tiny_params){.seed = 5}, &sampled, V + 16); /* ids the draft lacks: q = 0 */
    walk(&(tiny_params){.seed = 5}, &sampled, V - 16); /* ids the target lacks: never drawn */
    walk(&(tiny_params){.seed = 5}, &greedy, V - 16);
}

/* A bias for an id that only the target has must not reach the draft's row. */
static void bias_outside_the_draft(void **state) {
    (void)state;
    const verify_bias bias[] = {{V + 3, 5}, {4, 5}, {V, -INFINITY}, {7, -INFINITY}};
    verify_sampler s = sampled, own = sampled;
    s.bias = bias, s.n_bias = 4;
    const verify_bias common[] = {{4, 5}, {7, -INFINITY}};
    own.bias = common, own.n_bias = 2;
    tiny m;
    draft *d;
    oracle o;
    td_error err = {0};
    tiny_open(&m, &(tiny_params){.seed = 5});
    const draft_model_config cfg = {
        .n_ctx = MAX_TEXT, .max_tokens = K, .prefill_chunk = 8, .n_vocab = V + 8};
    assert_int_equal(draft_model_open(&d, m.m, &cfg, &err), TD_OK);
    oracle_open(&o, &m, V);
    text x = {.n = N_PROMPT};
    tiny_text(x.token, N_PROMPT, V, 3);
    assert_int_equal(draft_begin(d, x.token, x.n, NULL, NULL, &err), TD_OK);
    draft_proposal p;
    const draft_request req = request(&x, &s, K, 1);
    assert_int_equal(draft_propose(d, &req, &p, &err), TD_OK);
    expect_proposal(&o, &x, &own, 1, &p, K, V + 8);
    /* A token that the draft cannot read: no proposal, no failure. */
    x.token[x.n] = V + 3;
    assert_int_equal(draft_observe(d, x.token + x.n, 1, 0, &err), TD_OK);
    x.n++;
    const draft_request next = request(&x, &s, K, 2);
    assert_int_equal(draft_propose(d, &next, &p, &err), TD_OK);
    assert_int_equal(p.n, 0);
    assert_int_equal(draft_begin(d, x.token, x.n, NULL, NULL, &err), TD_OK);
    assert_int_equal(draft_propose(d, &next, &p, &err), TD_OK);
    assert_int_equal(p.n, 0);
    assert_true(draft_check(d, x.token, x.n));
    oracle_close(&o);
    draft_close(d);
    tiny_close(&m);
}

/* Room for a few tokens more: shorter proposals, then none. */
static void full_context(void **state) {
    (void)state;
    tiny m;
    draft *d;
    td_error err = {0};
    enum { CTX = 30 };
    tiny_open(&m, &(tiny_params){.seed = 5});
    const draft_model_config cfg = {
        .n_ctx = CTX, .max_tokens = K, .prefill_chunk = 8, .n_vocab = V};
    assert_int_equal(draft_model_open(&d, m.m, &cfg, &err), TD_OK);
    text x = {.n = N_PROMPT};
    tiny_text(x.token, 200, V, 3);
    assert_int_equal(draft_begin(d, x.token, x.n, NULL, NULL, &err), TD_OK);
    for (; x.n < CTX + 8; x.n++) {
        draft_proposal p;
        const draft_request req = request(&x, &greedy, K, 1);
        const int room = CTX + 1 - x.n;
        assert_int_equal(draft_propose(d, &req, &p, &err), TD_OK);
        assert_int_equal(p.n, room > K ? K : room > 0 ? room : 0);
        assert_int_equal(draft_observe(d, x.token + x.n, 1, 0, &err), TD_OK);
        assert_true(draft_check(d, x.token, x.n + 1));
    }
    /* A text that fits again is read again. */
    draft_proposal p;
    x.n = 25;
    assert_int_equal(draft_begin(d, x.token, 100, NULL, NULL, &err), TD_OK);
    assert_int_equal(draft_begin(d, x.token, x.n, NULL, NULL, &err), TD_OK);
    const draft_request req = request(&x, &greedy, K, 1);
    assert_int_equal(draft_propose(d, &req, &p, &err), TD_OK);
    assert_int_equal(p.n, K);
    draft_close(d);
    tiny_close(&m);
}

static bool count(void *user, int done) {
    (void)done;
    ++*(int *)user;
    return true;
}

static void common_prefix_is_not_read_again(void **state) {
    (void)state;
    tiny m;
    draft *d;
    td_error err = {0};
    tiny_open(&m, &(tiny_params){.seed = 5});
    const draft_model_config cfg = {
        .n_ctx = MAX_TEXT, .max_tokens = K, .prefill_chunk = 8, .n_vocab = V};
    assert_int_equal(draft_model_open(&d, m.m, &cfg, &err), TD_OK);
    text x = {.n = 65};
    tiny_text(x.token, x.n, V, 3);
    int n_chunks = 0;
    assert_int_equal(draft_begin(d, x.token, x.n, count, &n_chunks, &err), TD_OK);
    assert_int_equal(n_chunks, 8);
    assert_int_equal(draft_begin(d, x.token, x.n, count, &n_chunks, &err), TD_OK);
    assert_int_equal(n_chunks, 8);
    x.token[33] ^= 1;
    assert_int_equal(draft_begin(d, x.token, x.n, count, &n_chunks, &err), TD_OK);
    assert_int_equal(n_chunks, 8 + 4); /* 33 .. 63 */
    assert_true(draft_check(d, x.token, x.n));
    assert_int_equal(draft_begin(d, x.token, 1, count, &n_chunks, &err), TD_OK);
    assert_int_equal(n_chunks, 8 + 4);
    assert_true(draft_check(d, x.token, 1));
    draft_close(d);
    tiny_close(&m);
}

static void refusals(void **state) {
    (void)state;
    tiny m;
    draft *d = NULL;
    td_error err = {0};
    tiny_open(&m, &(tiny_params){.seed = 5});
    draft_model_config cfg = {
        .n_ctx = MAX_TEXT, .max_tokens = DRAFT_MAX + 1, .prefill_chunk = 8, .n_vocab = V};
    assert_int_equal(draft_model_open(&d, m.m, &cfg, &err), TD_E_ARG);
    cfg.max_tokens = 0;
    assert_int_equal(draft_model_open(&d, m.m, &cfg, &err), TD_E_ARG);
    cfg.max_tokens = 4, cfg.n_ctx = 0;
    assert_int_equal(draft_model_open(&d, m.m, &cfg, &err), TD_E_ARG);
    assert_null(d);
    tiny_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_chain),
        cmocka_unit_test(sampled_chain),
        cmocka_unit_test(padded_vocabularies),
        cmocka_unit_test(bias_outside_the_draft),
        cmocka_unit_test(full_context),
        cmocka_unit_test(common_prefix_is_not_read_again),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
