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

/* ---- ending by confidence, candidates, a gap ---- */

typedef struct listener {
    float confidence[K];
    int n, stop_at, last_at;
} listener;

static draft_answer listen(void *user, int i, float confidence) {
    listener *l = user;
    assert_int_equal(i, l->n);
    l->confidence[l->n++] = confidence;
    return (draft_answer){.width = i != l->stop_at, .go_on = i != l->last_at};
}

/* It is asked before each token, told the peak of its law, and obeys; what was drafted before stays as it is. */
static void ends_where_it_is_told(void **state) {
    (void)state;
    tiny m;
    draft *d;
    td_error err = {0};
    tiny_open(&m, &(tiny_params){.seed = 5});
    const draft_model_config cfg = {
        .n_ctx = MAX_TEXT, .max_tokens = K, .prefill_chunk = 8, .n_vocab = V};
    if (draft_model_open(&d, m.m, &cfg, &err)) fail_msg("%s", err.msg);
    text x = {.n = N_PROMPT};
    tiny_text(x.token, N_PROMPT, V, 3);
    assert_int_equal(draft_begin(d, x.token, x.n, NULL, NULL, &err), TD_OK);
    for (int kind = 0; kind < 3; kind++) {
        draft_request req = request(&x, kind ? &sampled : &greedy, K, 1);
        req.coupled = kind == 2;
        draft_proposal whole, part;
        assert_int_equal(draft_propose(d, &req, &whole, &err), TD_OK);
        assert_int_equal(whole.n, K);
        float peak[K];
        for (int i = 0; i < K && kind; i++) {
            peak[i] = 0;
            for (int v = 0; v < V; v++)
                peak[i] = fmaxf(peak[i], whole.q[i * V + v]);
        }
        for (int at = 0; at < K; at++)
            for (int last = 0; last < 2; last++) {
                listener l = {.stop_at = last ? -1 : at, .last_at = last ? at : -1};
                req.ask = listen, req.user = &l;
                assert_int_equal(draft_propose(d, &req, &part, &err), TD_OK);
                assert_int_equal(part.n, at + last);
                assert_int_equal(l.n, at + 1);
                assert_memory_equal(part.token, whole.token, (size_t)part.n * sizeof *part.token);
                for (int i = 0; i <= at; i++)
                    assert_true(kind ? l.confidence[i] == peak[i]
                                     : l.confidence[i] > 0 && l.confidence[i] <= 1);
            }
        req.ask = NULL;
    }
    draft_close(d);
    tiny_close(&m);
}

/* Greedy candidates are the best logits in order; sampled ones differ from each other, and have chances. The path is
 * what a chain would be. */
static void candidates_beside_the_path(void **state) {
    (void)state;
    tiny m;
    draft *d;
    oracle o;
    td_error err = {0};
    tiny_open(&m, &(tiny_params){.seed = 5});
    const draft_model_config cfg = {
        .n_ctx = MAX_TEXT, .max_tokens = 12, .prefill_chunk = 8, .n_vocab = V};
    if (draft_model_open(&d, m.m, &cfg, &err)) fail_msg("%s", err.msg);
    oracle_open(&o, &m, V);
    text x = {.n = N_PROMPT};
    tiny_text(x.token, N_PROMPT, V, 3);
    assert_int_equal(draft_begin(d, x.token, x.n, NULL, NULL, &err), TD_OK);
    const verify_sampler open_sampler = {.temperature = 0.8f, .top_p = 1, .repeat_penalty = 1};
    for (int kind = 0; kind < 3; kind++) {
        draft_request req = request(&x, kind ? &open_sampler : &greedy, 4, 1);
        req.coupled = kind == 2;
        draft_proposal chain, tree;
        assert_int_equal(draft_propose(d, &req, &chain, &err), TD_OK);
        req.width = 3;
        assert_int_equal(draft_propose(d, &req, &tree, &err), TD_OK);
        assert_int_equal(tree.n, 12);
        int32_t path[4];
        for (int i = 0, spine = -1; i < 4; i++) {
            const int32_t *c = tree.token + 3 * i;
            for (int j = 0; j < 3; j++)
                assert_int_equal(tree.parent[3 * i + j], spine);
            assert_true(c[0] != c[1] && c[0] != c[2] && c[1] != c[2]);
            if (kind != 1) assert_int_equal(c[0], chain.token[i]); /* sampling: a number for each node */
            const float *logits = oracle_logits(&o, &x, path, i);
            if (!kind) {
                int better = 0;
                for (int v = 0; v < V; v++)
                    better += logits[v] > logits[c[2]];
                assert_int_equal(better, 2);
                assert_true(logits[c[0]] >= logits[c[1]] && logits[c[1]] >= logits[c[2]]);
            } else {
                for (int j = 0; j < 3; j++)
                    assert_true(tree.q[(spine + 1) * V + c[j]] > 0);
            }
            spine = 3 * i, path[i] = c[0];
        }
    }
    oracle_close(&o);
    draft_close(d);
    tiny_close(&m);
}

/* Left behind, it reads only the last tokens: what it then says is what its model says of the text without the middle;
 * a new beginning reads all of it again. */
static void a_gap_where_it_was_left_behind(void **state) {
    (void)state;
    enum { READ = 7 };
    tiny m;
    draft *d;
    oracle o;
    td_error err = {0};
    tiny_open(&m, &(tiny_params){.seed = 5});
    const draft_model_config cfg = {
        .n_ctx = MAX_TEXT, .max_tokens = K, .prefill_chunk = 8, .n_vocab = V};
    if (draft_model_open(&d, m.m, &cfg, &err)) fail_msg("%s", err.msg);
    oracle_open(&o, &m, V);
    text x = {.n = N_PROMPT}, seen;
    tiny_text(x.token, MAX_TEXT, V, 3);
    assert_int_equal(draft_begin(d, x.token, x.n, NULL, NULL, &err), TD_OK);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 30; i++, x.n++) /* plain decoding */
            assert_int_equal(draft_observe(d, x.token + x.n, 1, 0, &err), TD_OK);
        assert_true(draft_check(d, x.token, x.n));
        seen = (text){.n = N_PROMPT - 1 + READ};
        memcpy(seen.token, x.token, (N_PROMPT - 1) * sizeof *x.token);
        memcpy(seen.token + N_PROMPT - 1, x.token + x.n - READ, READ * sizeof *x.token);
        draft_proposal p;
        draft_request req = request(&x, &greedy, 3, 0);
        req.max_read = READ;
        assert_int_equal(draft_propose(d, &req, &p, &err), TD_OK);
        expect_proposal(&o, &seen, &greedy, 0, &p, 3, V);
        /* The round commits one of its tokens and one of the target's own. */
        x.token[x.n] = p.token[0];
        assert_int_equal(draft_observe(d, x.token + x.n, 2, 1, &err), TD_OK);
        x.n += 2;
        assert_true(draft_check(d, x.token, x.n));
        seen.token[seen.n] = p.token[0], seen.token[seen.n + 1] = x.token[x.n - 1];
        seen.n += 2;
        req = request(&x, &greedy, 3, 0);
        req.max_read = READ;
        assert_int_equal(draft_propose(d, &req, &p, &err), TD_OK);
        expect_proposal(&o, &seen, &greedy, 0, &p, 3, V);
    }
    draft_proposal p;
    draft_request req = request(&x, &greedy, 3, 0);
    x.token[40]++; /* in the gap: nothing of it is held, but the text is another one */
    x.token[5]++;
    assert_int_equal(draft_begin(d, x.token, x.n, NULL, NULL, &err), TD_OK);
    assert_true(draft_check(d, x.token, x.n));
    assert_int_equal(draft_propose(d, &req, &p, &err), TD_OK);
    expect_proposal(&o, &x, &greedy, 0, &p, 3, V);
    oracle_close(&o);
    draft_close(d);
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
        cmocka_unit_test(ends_where_it_is_told),
        cmocka_unit_test(candidates_beside_the_path),
        cmocka_unit_test(a_gap_where_it_was_left_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
