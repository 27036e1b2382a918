/* td_generate: every way to stop, at every draft length. What is expected is worked out from the
 * plain run of another session: its tokens, their bytes one after the other, and a search over the
 * whole. */
#include "lib_internal.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib_make.h"

enum { N_PROMPT = 9, N = 100 };

static const tiny_params target_params = {.seed = 21};
static const tiny_params draft_params = {.seed = 21, .noise = 0.1f, .noise_seed = 5};

typedef struct fixture {
    td_model *target, *draft;
    td_session *s;
    td_token prompt[N_PROMPT];
} fixture;

typedef struct output {
    char text[4096];
    size_t len;
    int calls, stop_at; /* says no at this call; 0: never */
    td_session *cancel; /* cancelled at call stop_at instead */
} output;

static bool collect(void *user, const char *text, size_t len) {
    output *o = user;
    assert_true(len > 0 && o->len + len < sizeof o->text);
    memcpy(o->text + o->len, text, len);
    o->len += len;
    if (++o->calls != o->stop_at) return true;
    if (!o->cancel) return false;
    td_session_cancel(o->cancel);
    return true;
}

static void open_fixture_with(fixture *x, const tiny_params *t, const tiny_params *d, int n_ctx) {
    td_error err = {0};
    const td_session_options so = {.n_ctx = n_ctx, .draft_max = 8};
    *x = (fixture){.target = open_tiny_model(t, 1), .draft = open_tiny_model(d, 1)};
    if (td_session_open(&x->s, x->target, x->draft, &so, &err)) fail_msg("%s", err.msg);
    tiny_text(x->prompt, N_PROMPT, 40, 1);
}

static void open_fixture(fixture *x) {
    open_fixture_with(x, &target_params, &draft_params, 256);
}

static void close_fixture(fixture *x) {
    td_session_close(&x->s);
    td_model_close(&x->draft);
    td_model_close(&x->target);
    assert_null(x->s);
    assert_null(x->target);
}

static td_generate_options greedy(int k, int n, output *o) {
    td_generate_options opt;
    td_generate_defaults(&opt);
    opt.sampling.temperature = 0;
    opt.n_predict = n;
    opt.draft_max = k;
    opt.ignore_eos = true;
    opt.on_text = collect;
    opt.user = o;
    return opt;
}

static td_stats generate(fixture *x, const td_generate_options *opt) {
    td_stats st;
    td_error err = {0};
    if (td_generate(x->s, x->prompt, N_PROMPT, opt, &st, &err)) fail_msg("%s", err.msg);
    assert_int_equal(st.prompt_tokens, N_PROMPT);
    /* Contract C. */
    assert_true(spec_n_tokens(x->s->s) == N_PROMPT + st.decode_tokens);
    assert_true(spec_check(x->s->s));
    int64_t drafted = 0, accepted = 0;
    for (int i = 0; i < TD_MAX_DRAFT; i++) {
        drafted += st.drafted_per_pos[i], accepted += st.accepted_per_pos[i];
        assert_true(st.accepted_per_pos[i] <= st.drafted_per_pos[i]);
    }
    assert_int_equal(drafted, st.drafted);
    assert_int_equal(accepted, st.accepted);
    assert_true(st.accepted <= st.drafted);
    assert_true(st.accepted <= st.decode_tokens && st.decode_tokens <= st.accepted + st.rounds);
    return st;
}

/* The reference: N tokens without a draft, their bytes, and where each begins. */
typedef struct reference {
    td_token tokens[N];
    size_t begin[N + 1];
    char bytes[2048];
} reference;

static void make_reference(fixture *x, reference *r) {
    td_session *s;
    td_error err = {0};
    td_stats st;
    output o = {0};
    const td_session_options so = {.n_ctx = 256, .draft_max = 0};
    assert_int_equal(td_session_open(&s, x->target, NULL, &so, &err), TD_OK);
    td_generate_options opt = greedy(0, N, &o);
    assert_int_equal(td_generate(s, x->prompt, N_PROMPT, &opt, &st, &err), TD_OK);
    assert_int_equal(st.decode_tokens, N);
    memcpy(r->tokens, st.tokens, sizeof r->tokens);
    size_t n = 0;
    for (int i = 0; i < N; i++) {
        size_t len;
        const char *bytes = td_token_text(x->target, r->tokens[i], false, &len);
        memcpy(r->bytes + n, bytes, len);
        r->begin[i] = n;
        n += len;
    }
    r->begin[N] = n;
    r->bytes[n] = 0;
    td_session_close(&s);
}

static void expect_text(const output *o, const char *want, size_t len) {
    assert_int_equal(o->len, len);
    assert_memory_equal(o->text, want, len);
}

/* Bytes at the end of text[0..len) that begin a character and do not finish it. */
static size_t unfinished(const char *text, size_t len) {
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        const unsigned char c = (unsigned char)text[len - back];
        if (c >= 0xc0) return (c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4) > back ? back : 0;
        if (c < 0x80) return 0;
    }
    return 0;
}

static void length(void **state) {
    (void)state;
    fixture x;
    reference r;
    open_fixture(&x);
    make_reference(&x, &r);
    for (int k = 0; k <= 8; k++)
        for (int n = 0; n <= N; n += n < 12 ? 1 : 11) {
            output o = {0};
            const td_generate_options opt = greedy(k, n, &o);
            const td_stats st = generate(&x, &opt);
            assert_int_equal(st.stop, TD_STOP_LENGTH);
            assert_int_equal(st.decode_tokens, n);
            assert_memory_equal(st.tokens, r.tokens, (size_t)n * sizeof *r.tokens);
            expect_text(&o, r.bytes, r.begin[n] - unfinished(r.bytes, r.begin[n]));
            assert_true(k || (!st.drafted && st.rounds == n));
        }
    close_fixture(&x);
}

/* Substrings of the text as stop strings: inside a token, across tokens, at the first and the last
 * byte. */
static void stop_strings(void **state) {
    (void)state;
    fixture x;
    reference r;
    open_fixture(&x);
    make_reference(&x, &r);
    const size_t n_bytes = r.begin[N];
    int n_inside = 0;
    for (size_t at = 0; at < n_bytes; at += 3)
        for (size_t n = 1; n <= 9 && at + n <= n_bytes; n += 4) {
            char stop[16];
            memcpy(stop, r.bytes + at, n);
            stop[n] = 0;
            /* Where the text ends: the token at which the first match is complete. */
            const size_t found = (size_t)(strstr(r.bytes, stop) - r.bytes);
            int n_keep = 0;
            while (n_keep < N && r.begin[n_keep] < found)
                n_keep++;
            /* A half of a character: the stream passes it on only when it cannot become whole. */
            if ((unsigned char)stop[0] >= 0x80 || (unsigned char)stop[n - 1] >= 0x80) continue;
            for (int k = 0; k <= 8; k += 2) {
                output o = {0};
                td_generate_options opt = greedy(k, N, &o);
                const char *stops[] = {"no such text", stop};
                opt.stops = stops, opt.n_stops = 2;
                const td_stats st = generate(&x, &opt);
                assert_int_equal(st.stop, TD_STOP_STRING);
                assert_int_equal(st.decode_tokens, n_keep);
                assert_memory_equal(st.tokens, r.tokens, (size_t)n_keep * sizeof *r.tokens);
                expect_text(&o, r.bytes, found);
                n_inside += n_keep && r.begin[n_keep] > found;
            }
        }
    assert_true(n_inside > 10); /* stops that begin inside a token were among them */
    close_fixture(&x);
}

/* What waits for a stop string that never comes is text after all. */
static void stop_string_that_almost_comes(void **state) {
    (void)state;
    fixture x;
    reference r;
    open_fixture(&x);
    make_reference(&x, &r);
    for (int n = 3; n < 40; n++) {
        char stop[64];
        const size_t end = r.begin[n] - unfinished(r.bytes, r.begin[n]);
        if (end < 6) continue;
        snprintf(stop, sizeof stop, "%.*s#", 5, r.bytes + end - 5);
        for (int k = 0; k <= 8; k += 4) {
            output o = {0};
            td_generate_options opt = greedy(k, n, &o);
            const char *stops[] = {stop};
            opt.stops = stops, opt.n_stops = 1;
            const td_stats st = generate(&x, &opt);
            assert_int_equal(st.stop, TD_STOP_LENGTH);
            expect_text(&o, r.bytes, end);
        }
    }
    close_fixture(&x);
}

/* Each token of the text in turn is the end token of a model that is the same but for that. */
static void end_tokens(void **state) {
    (void)state;
    fixture plain;
    reference r;
    open_fixture(&plain);
    make_reference(&plain, &r);
    for (int at = 0; at < 40; at += 3) {
        const td_token eos = r.tokens[at];
        int first = 0;
        while (r.tokens[first] != eos)
            first++;
        tiny_params tp = target_params, dp = draft_params;
        tp.eos = dp.eos = eos;
        fixture x;
        open_fixture_with(&x, &tp, &dp, 256);
        assert_int_equal(td_model_get_info(x.target)->eos, eos);
        for (int k = 0; k <= 8; k += 2) {
            output o = {0};
            td_generate_options opt = greedy(k, N, &o);
            opt.ignore_eos = false;
            td_stats st = generate(&x, &opt);
            assert_int_equal(st.stop, TD_STOP_EOS);
            assert_int_equal(st.decode_tokens, first);
            expect_text(&o, r.bytes, r.begin[first] - unfinished(r.bytes, r.begin[first]));
            /* Not chosen when ignored. */
            output on = {0};
            opt = greedy(k, N, &on);
            st = generate(&x, &opt);
            assert_int_equal(st.stop, TD_STOP_LENGTH);
            for (int i = 0; i < N; i++)
                assert_int_not_equal(st.tokens[i], eos);
        }
        close_fixture(&x);
    }
    close_fixture(&plain);
}

static void full_context(void **state) {
    (void)state;
    fixture x;
    reference r;
    open_fixture_with(&x, &target_params, &draft_params, 60);
    make_reference(&x, &r);
    assert_int_equal(td_session_n_ctx(x.s), 60);
    for (int k = 0; k <= 8; k++) {
        output o = {0};
        const td_generate_options opt = greedy(k, -1, &o);
        const td_stats st = generate(&x, &opt);
        assert_int_equal(st.stop, TD_STOP_CONTEXT);
        assert_int_equal(st.decode_tokens, 61 - N_PROMPT);
        assert_memory_equal(st.tokens, r.tokens, (size_t)st.decode_tokens * sizeof *r.tokens);
    }
    close_fixture(&x);
}

/* The callback says no, or asks for a stop: nothing behind is kept, and going on is going on. */
static void callback_stops(void **state) {
    (void)state;
    fixture x;
    reference r;
    open_fixture(&x);
    make_reference(&x, &r);
    for (int k = 0; k <= 8; k += 2)
        for (int at = 1; at < 20; at++) {
            output o = {.stop_at = at};
            td_generate_options opt = greedy(k, N, &o);
            td_stats st = generate(&x, &opt);
            assert_int_equal(st.stop, TD_STOP_CANCELLED);
            assert_int_equal(o.calls, at);
            expect_text(&o, r.bytes, o.len);
            assert_true(o.len > r.begin[st.decode_tokens - 1]);
            assert_true(o.len <= r.begin[st.decode_tokens]);
            output later = {.stop_at = at, .cancel = x.s};
            opt = greedy(k, N, &later);
            st = generate(&x, &opt);
            assert_int_equal(st.stop, TD_STOP_CANCELLED);
            assert_true(st.decode_tokens < N); /* to the end of the round */
            expect_text(&later, r.bytes, later.len);
            output whole = {0};
            opt = greedy(k, 30, &whole);
            st = generate(&x, &opt);
            assert_int_equal(st.prefill_tokens, 0); /* still cached */
            expect_text(&whole, r.bytes, r.begin[30] - unfinished(r.bytes, r.begin[30]));
        }
    close_fixture(&x);
}

typedef struct rounds {
    td_round sum; /* start_ms: of the last */
    int n, most_drafted;
} rounds;

static void on_round(void *user, const td_round *r) {
    rounds *all = user;
    assert_true(r->start_ms >= all->sum.start_ms && r->tokens >= r->accepted && r->accepted <= r->drafted);
    all->sum.start_ms = r->start_ms;
    all->sum.draft_ms += r->draft_ms, all->sum.verify_ms += r->verify_ms;
    all->sum.sample_ms += r->sample_ms;
    all->sum.drafted += r->drafted, all->sum.accepted += r->accepted;
    all->sum.tokens += r->tokens;
    all->n++;
    if (r->drafted > all->most_drafted) all->most_drafted = r->drafted;
}

/* The rounds told of make up the counts of the call, whatever stops it. */
static void rounds_are_told(void **state) {
    (void)state;
    fixture x;
    reference r;
    open_fixture(&x);
    make_reference(&x, &r);
    size_t at = r.begin[20];
    while ((unsigned char)r.bytes[at] >= 0x80)
        at++;
    for (int k = 0; k <= 8; k += 2)
        for (int way = 0; way < 3; way++) {
            char stop[2] = {r.bytes[at], 0};
            const char *stops[] = {stop};
            rounds all = {0};
            td_generate_options opt = greedy(k, 50, NULL);
            opt.on_text = NULL;
            opt.on_round = on_round;
            opt.user = &all;
            if (way == 1) opt.stops = stops, opt.n_stops = 1;
            if (way == 2) opt.n_predict = 0;
            const td_stats st = generate(&x, &opt);
            assert_int_equal(st.stop, way == 1 ? TD_STOP_STRING : TD_STOP_LENGTH);
            assert_true(all.n == st.rounds && all.sum.tokens == st.decode_tokens);
            assert_true(all.sum.drafted == st.drafted && all.sum.accepted == st.accepted);
            assert_true(all.most_drafted == (st.rounds ? k : 0) || way == 1);
            assert_true(fabs(all.sum.draft_ms - st.draft_ms) < 1e-6);
            assert_true(fabs(all.sum.verify_ms - st.verify_ms) < 1e-6);
            assert_true(fabs(all.sum.sample_ms - st.sample_ms) < 1e-6);
            assert_true(!all.n || all.sum.start_ms < st.decode_ms);
        }
    close_fixture(&x);
}

static void on_prefill(void *user, int done, int total) {
    fixture *x = user;
    assert_int_equal(total, 200);
    if (done >= 64) td_session_cancel(x->s);
}

static void cancelled_prefill(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x);
    td_token prompt[200];
    tiny_text(prompt, 200, 40, 7);
    td_generate_options opt = greedy(4, 10, NULL);
    opt.on_text = NULL;
    opt.on_prefill = on_prefill;
    opt.user = &x;
    td_stats st;
    td_error err = {0};
    assert_int_equal(td_generate(x.s, prompt, 200, &opt, &st, &err), TD_OK);
    assert_int_equal(st.stop, TD_STOP_CANCELLED);
    assert_int_equal(st.decode_tokens, 0);
    assert_int_equal(st.prefill_tokens, 64);
    opt.on_prefill = NULL;
    assert_int_equal(td_generate(x.s, prompt, 200, &opt, &st, &err), TD_OK);
    assert_int_equal(st.prefill_tokens, 199 - 64);
    assert_int_equal(st.decode_tokens, 10);
    close_fixture(&x);
}

static void cancelled_before_the_call(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x);
    td_token prompt[20];
    tiny_text(prompt, 20, 40, 7);
    td_generate_options opt = greedy(4, 10, NULL);
    opt.on_text = NULL;
    td_stats st;
    td_error err = {0};
    td_session_cancel(x.s);
    assert_int_equal(td_generate(x.s, prompt, 20, &opt, &st, &err), TD_OK);
    assert_int_equal(st.stop, TD_STOP_CANCELLED);
    assert_int_equal(st.decode_tokens, 0);
    assert_int_equal(td_generate(x.s, prompt, 20, &opt, &st, &err), TD_OK);
    assert_int_equal(st.decode_tokens, 10);
    close_fixture(&x);
}

static void sampled_with_a_seed(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x);
    for (int k = 0; k <= 8; k += 4) {
        td_token first[40];
        for (int turn = 0; turn < 3; turn++) {
            output o = {0};
            td_generate_options opt = greedy(k, 40, &o);
            opt.sampling.temperature = 1;
            opt.sampling.seed = turn < 2 ? 5 : 6;
            const td_stats st = generate(&x, &opt);
            if (!turn) memcpy(first, st.tokens, sizeof first);
            if (turn == 1) assert_memory_equal(first, st.tokens, sizeof first);
            if (turn == 2) assert_memory_not_equal(first, st.tokens, sizeof first);
        }
    }
    close_fixture(&x);
}

static void times_add_up(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x);
    for (int k = 0; k <= 8; k += 4) {
        output o = {0};
        const td_generate_options opt = greedy(k, N, &o);
        const td_stats st = generate(&x, &opt);
        assert_true(st.ttft_ms >= st.prefill_ms && st.decode_ms > 0);
        assert_true(st.draft_ms + st.verify_ms + st.sample_ms <= st.decode_ms);
        assert_true(st.verify_ms > 0 && (k ? st.draft_ms > 0 : st.draft_ms < st.decode_ms / 10));
        assert_true(st.itl_ms_p50 > 0 && st.itl_ms_p50 <= st.itl_ms_p95);
        assert_true(st.itl_ms_p50 <= st.decode_ms);
    }
    close_fixture(&x);
}

static void refusals(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x);
    td_stats st;
    td_error err;
    static const char *const empty[] = {""};
    const td_logit_bias bias[] = {{48, 1}}, nan_bias[] = {{3, NAN}};
    const struct {
        const char *what;
        int field;
        double value;
        td_code code;
    } cases[] = {{"n_predict", 0, -2, TD_E_ARG},     {"draft_max", 1, -2, TD_E_ARG},
                 {"draft_max", 1, 9, TD_E_ARG},      {"temperature", 2, -1, TD_E_ARG},
                 {"temperature", 2, NAN, TD_E_ARG},  {"top_p", 3, 1.5, TD_E_ARG},
                 {"min_p", 4, -0.1, TD_E_ARG},       {"repeat_penalty", 5, 0, TD_E_ARG},
                 {"stops", 6, 0, TD_E_ARG},          {"bias", 7, 0, TD_E_ARG},
                 {"bias", 8, 0, TD_E_ARG},           {"n_stops", 9, -1, TD_E_ARG},
                 {"n_bias", 10, 2, TD_E_ARG},        {"frequency", 11, INFINITY, TD_E_ARG},
                 {"repeat_last_n", 12, -2, TD_E_ARG}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_generate_options o = greedy(2, 4, NULL);
        o.on_text = NULL;
        const float v = (float)cases[i].value;
        switch (cases[i].field) {
        case 0:
            o.n_predict = (int)v;
            break;
        case 1:
            o.draft_max = (int)v;
            break;
        case 2:
            o.sampling.temperature = v;
            break;
        case 3:
            o.sampling.top_p = v;
            break;
        case 4:
            o.sampling.min_p = v;
            break;
        case 5:
            o.sampling.repeat_penalty = v;
            break;
        case 6:
            o.stops = empty, o.n_stops = 1;
            break;
        case 7:
            o.sampling.bias = bias, o.sampling.n_bias = 1;
            break;
        case 8:
            o.sampling.bias = nan_bias, o.sampling.n_bias = 1;
            break;
        case 9:
            o.n_stops = -1;
            break;
        case 10:
            o.sampling.n_bias = 2;
            break;
        case 11:
            o.sampling.frequency_penalty = v;
            break;
        default:
            o.sampling.repeat_last_n = (int)v;
        }
        err = (td_error){0};
        if (td_generate(x.s, x.prompt, N_PROMPT, &o, &st, &err) != cases[i].code)
            fail_msg("%s = %g was not refused", cases[i].what, cases[i].value);
        assert_int_equal(err.code, cases[i].code);
        assert_true(strlen(err.msg) > 10 && !strchr(err.msg, '\n'));
    }
    td_generate_options o = greedy(2, 4, NULL);
    o.on_text = NULL;
    td_token many[300] = {0};
    assert_int_equal(td_generate(x.s, many, 0, &o, &st, &err), TD_E_ARG);
    assert_int_equal(td_generate(x.s, many, 257, &o, &st, &err), TD_E_TOO_BIG);
    assert_int_equal(td_generate(x.s, many, (size_t)1 << 40, &o, &st, &err), TD_E_TOO_BIG);
    many[2] = 48;
    assert_int_equal(td_generate(x.s, many, 5, &o, &st, &err), TD_E_ARG);
    many[2] = -1;
    assert_int_equal(td_generate(x.s, many, 5, &o, NULL, NULL), TD_E_ARG);
    assert_int_equal(td_generate(x.s, x.prompt, N_PROMPT, &o, NULL, NULL), TD_OK);
    close_fixture(&x);
}

static void logits_and_costs(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x);
    td_token text[100];
    tiny_text(text, 100, 40, 9);
    float *all = td_calloc(100 * 48, sizeof *all), *last = td_calloc(48, sizeof *last);
    td_error err = {0};
    double ms = -1;
    assert_true(all && last);
    assert_int_equal(td_logits(x.s, text, 100, 100, all, &err), TD_OK);
    assert_int_equal(td_measure_pass(x.s, 30, 5, 3, &ms, &err), TD_OK);
    assert_true(ms > 0 && ms < 1e5);
    assert_int_equal(td_logits(x.s, text, 100, 1, last, &err), TD_OK);
    assert_memory_equal(last, all + 99 * 48, 48 * sizeof *last);
    assert_int_equal(td_logits(x.s, text, 0, 1, last, &err), TD_E_ARG);
    assert_int_equal(td_logits(x.s, text, 10, 11, last, &err), TD_E_ARG);
    assert_int_equal(td_logits(x.s, text, 10, 0, last, &err), TD_E_ARG);
    assert_int_equal(td_measure_pass(x.s, 30, 10, 3, &ms, &err), TD_E_ARG);
    assert_int_equal(td_measure_pass(x.s, 30, 0, 3, &ms, &err), TD_E_ARG);
    assert_int_equal(td_measure_pass(x.s, -1, 1, 3, &ms, &err), TD_E_ARG);
    assert_int_equal(td_measure_pass(x.s, 30, 1, 0, &ms, &err), TD_E_ARG);
    assert_int_equal(td_measure_pass(x.s, 252, 5, 1, &ms, &err), TD_E_TOO_BIG);
    assert_int_equal(td_measure_pass(x.s, 251, 5, 1, &ms, &err), TD_OK);
    free(all);
    free(last);
    close_fixture(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(length),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(stop_string_that_almost_comes),
        cmocka_unit_test(end_tokens),
        cmocka_unit_test(full_context),
        cmocka_unit_test(callback_stops),
        cmocka_unit_test(rounds_are_told),
        cmocka_unit_test(cancelled_prefill),
        cmocka_unit_test(cancelled_before_the_call),
        cmocka_unit_test(sampled_with_a_seed),
        cmocka_unit_test(times_add_up),
        cmocka_unit_test(refusals),
        cmocka_unit_test(logits_and_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
