/* The bench's order of runs, its sums and its eye for other tokens, against a library that is made
 * up: td_generate and td_measure_pass below take the time and give the tokens that a case asks for.
 */
#include "bench/bench.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKENS = 10, MAX_CALLS = 64 };

static struct {
    int calls, k[MAX_CALLS]; /* draft_max of each call */
    int differ_at;           /* the call that gives another last token; -1: none */
    int short_at;            /* the call that gives one token less */
    int fail_at, cancel_at;
    td_token tokens[N_TOKENS];
    int widths[MAX_CALLS];
} lib;

static void reset(void) {
    memset(&lib, 0, sizeof lib);
    lib.differ_at = lib.short_at = lib.fail_at = lib.cancel_at = -1;
}

/* Each call is slower than the one before, as on a machine that gets busy: 10 % of the first's
 * time; a draft of k takes 1 / (1 + k) of the time. */
static double ms_of_call(int call, int k) {
    return 100 * (1 + 0.1 * call) / (1 + k);
}

td_code td_generate(td_session *s, const td_token *prompt, size_t n_prompt,
                    const td_generate_options *opt, td_stats *stats, td_error *err) {
    const int call = lib.calls++;
    (void)s;
    (void)prompt;
    (void)n_prompt;
    assert_true(!opt->on_text && !opt->on_prefill);
    lib.k[call] = opt->draft_max;
    if (call == lib.fail_at) return td_fail(err, TD_E_MEMORY, "made up");
    for (int i = 0; i < N_TOKENS; i++)
        lib.tokens[i] = 100 + i;
    if (call == lib.differ_at) lib.tokens[N_TOKENS - 1] = 7;
    *stats = (td_stats){.decode_tokens = N_TOKENS - (call == lib.short_at),
                        .decode_ms = ms_of_call(call, opt->draft_max),
                        .drafted = 4 * opt->draft_max,
                        .accepted = 3 * opt->draft_max,
                        .rounds = 4,
                        .stop = call == lib.cancel_at ? TD_STOP_CANCELLED : TD_STOP_LENGTH,
                        .tokens = lib.tokens};
    return TD_OK;
}

td_code td_measure_pass(td_session *s, int n_context, int m, int repeats, double *ms,
                        td_error *err) {
    (void)s;
    (void)repeats;
    assert_int_equal(n_context, 64);
    const int call = lib.calls++;
    lib.widths[call] = m;
    if (call == lib.fail_at) return td_fail(err, TD_E_TOO_BIG, "made up");
    *ms = 10 * (1 + 0.1 * m);
    return TD_OK;
}

static const int two_lengths[] = {2, 5};
static const td_generate_options options = {.n_predict = N_TOKENS};
static const bench_plan plan = {
    .k = two_lengths, .n_k = 2, .n_runs = 3, .n_prompt = 1, .generate = &options};

static void runs_go_back_and_forth(void **state) {
    static const int order[] = {0, 2, 5, 5, 2, 0, 0, 2, 5};
    bench_case cases[3];
    (void)state;
    reset();
    assert_int_equal(bench_compare(NULL, &plan, cases, NULL, NULL, NULL), TD_OK);
    assert_int_equal(lib.calls, 9);
    assert_memory_equal(lib.k, order, sizeof order);
}

static void ratios_are_taken_within_a_run(void **state) {
    bench_case cases[3];
    (void)state;
    reset();
    assert_int_equal(bench_compare(NULL, &plan, cases, NULL, NULL, NULL), TD_OK);
    /* k = 2: calls 1, 4, 7 beside the plain calls 0, 5, 6 */
    double ratio[] = {ms_of_call(0, 0) / ms_of_call(1, 2), ms_of_call(5, 0) / ms_of_call(4, 2),
                      ms_of_call(6, 0) / ms_of_call(7, 2)};
    double speed[] = {N_TOKENS * 1000 / ms_of_call(1, 2), N_TOKENS * 1000 / ms_of_call(4, 2),
                      N_TOKENS * 1000 / ms_of_call(7, 2)};
    assert_int_equal(cases[1].k, 2);
    assert_true(fabs(cases[1].ratio.min - ratio[0]) < 1e-12);
    assert_true(fabs(cases[1].ratio.median - ratio[2]) < 1e-12);
    assert_true(fabs(cases[1].ratio.max - ratio[1]) < 1e-12);
    assert_true(fabs(cases[1].tok_per_s.max - speed[0]) < 1e-9);
    assert_true(fabs(cases[1].tok_per_s.median - speed[1]) < 1e-9);
    assert_true(fabs(cases[1].tok_per_s.min - speed[2]) < 1e-9);
    assert_true(cases[0].ratio.min == 1 && cases[0].ratio.max == 1);
    assert_true(cases[2].drafted == 60 && cases[2].accepted == 45 && cases[2].rounds == 12);
    assert_true(cases[2].tokens == 3 * N_TOKENS && cases[2].n_tokens == N_TOKENS);
}

/* Whichever run it is, plain ones too: then decoding itself is not repeatable. */
static void other_tokens_are_seen(void **state) {
    static const int case_of_call[] = {0, 1, 2, 2, 1, 0, 0, 1, 2};
    (void)state;
    for (int call = 1; call < 9; call++)
        for (int way = 0; way < 2; way++) {
            bench_case cases[3];
            reset();
            if (way) {
                lib.differ_at = call;
            } else {
                lib.short_at = call;
            }
            assert_int_equal(bench_compare(NULL, &plan, cases, NULL, NULL, NULL), TD_OK);
            for (int i = 0; i < 3; i++)
                assert_int_equal(cases[i].same, i != case_of_call[call]);
        }
    reset();
    bench_case cases[3];
    assert_int_equal(bench_compare(NULL, &plan, cases, NULL, NULL, NULL), TD_OK);
    assert_true(cases[0].same && cases[1].same && cases[2].same);
}

static bool stop_at_three(void *user, int done, int total) {
    assert_int_equal(total, 9);
    *(int *)user = done;
    return done < 3;
}

static void errors_and_stops_end_it(void **state) {
    bench_case cases[3];
    td_error err;
    int done;
    (void)state;
    reset();
    lib.fail_at = 4;
    assert_int_equal(bench_compare(NULL, &plan, cases, NULL, NULL, &err), TD_E_MEMORY);
    assert_int_equal(lib.calls, 5);
    assert_string_equal(err.msg, "made up");
    reset();
    lib.cancel_at = 2;
    assert_int_equal(bench_compare(NULL, &plan, cases, NULL, NULL, &err), TD_E_CANCELLED);
    assert_int_equal(lib.calls, 3);
    reset();
    assert_int_equal(bench_compare(NULL, &plan, cases, stop_at_three, &done, &err), TD_E_CANCELLED);
    assert_true(done == 3 && lib.calls == 3);
}

static void range_of_few_numbers(void **state) {
    (void)state;
    bench_range r = bench_range_of((double[]){3, 1, 2}, 3);
    assert_true(r.min == 1 && r.median == 2 && r.max == 3);
    r = bench_range_of((double[]){4, 1, 2, 3}, 4);
    assert_true(r.min == 1 && r.median == 2.5 && r.max == 4);
    r = bench_range_of((double[]){5}, 1);
    assert_true(r.min == 5 && r.median == 5 && r.max == 5);
    r = bench_range_of(NULL, 0);
    assert_true(isnan(r.median));
    assert_true(isnan(bench_tok_per_s(&(td_stats){0})));
    assert_true(bench_tok_per_s(&(td_stats){.decode_tokens = 5, .decode_ms = 100}) == 50);
}

static void passes_against_the_read_limit(void **state) {
    bench_probe *probe = NULL;
    bench_passes p = {.n_context = 64, .n_widths = 3, .m = {1, 2, 9}};
    td_error err;
    (void)state;
    reset();
    assert_int_equal(bench_probe_open(&probe, 2, (size_t)130 << 20, &err), TD_OK);
    assert_true(bench_probe_size(probe) <= (size_t)130 << 20);
    assert_true(bench_probe_size(probe) >= (size_t)126 << 20);
    assert_true(bench_probe_read(probe) > 0.05);
    assert_int_equal(bench_measure_passes(NULL, 11000000, probe, 4, &p, NULL, NULL, &err), TD_OK);
    for (int i = 0; i < 12; i++)
        assert_int_equal(lib.widths[i], p.m[i % 3]);
    /* 11 MB in 11 ms */
    assert_true(fabs(p.decode_gb_per_s.median - 1) < 1e-9);
    assert_true(fabs(p.growth[2].median - 1.9 / 1.1) < 1e-9 && p.growth[0].max == 1);
    assert_true(p.share.median >= 1 / p.read_gb_per_s.max - 1e-12);
    assert_true(p.share.median <= 1 / p.read_gb_per_s.min + 1e-12);
    reset();
    lib.fail_at = 1;
    assert_int_equal(bench_measure_passes(NULL, 1, probe, 2, &p, NULL, NULL, &err), TD_E_TOO_BIG);
    p.m[0] = 2;
    assert_int_equal(bench_measure_passes(NULL, 1, probe, 2, &p, NULL, NULL, &err), TD_E_ARG);
    bench_probe_close(&probe);
    assert_null(probe);
    bench_probe_close(&probe);
}

/* The interval of a median, where its law is known: with three numbers each of the outer ones is the median of a
 * resample with 7/27; with 1..21 the median is x or less with P(at least 11 of 21 draws are), a binomial, whose 2.5 %
 * points are 7 and 15. */
static void bootstrap_interval(void **state) {
    (void)state;
    const double three[] = {1.5, 1.1, 1.2};
    bench_interval v = bench_bootstrap(three, 3);
    assert_true(v.low == 1.1 && v.high == 1.5);
    double many[21];
    for (int i = 0; i < 21; i++)
        many[i] = (i * 8) % 21 + 1;
    v = bench_bootstrap(many, 21);
    assert_true(v.low >= 6 && v.low <= 8 && v.high >= 14 && v.high <= 16);
    assert_true(many[1] == 9); /* read only */
    v = bench_bootstrap(three, 2);
    assert_true(isnan(v.low) && isnan(v.high));
}

/* S(k) by hand: 3 tokens for two steps of 10 and a pass of 44 with 1 of sampling, against 40 + 0.5 each. */
static void predicted_speed_up(void **state) {
    (void)state;
    const bench_forecast_round f = {.k = 2,
                                    .tokens = 3,
                                    .plain_ms = 40,
                                    .verify_ms = 44,
                                    .draft_ms = 10,
                                    .plain_sample_ms = 0.5,
                                    .sample_ms = 1};
    assert_true(fabs(bench_predict(&f) - 121.5 / 65) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bootstrap_interval),
        cmocka_unit_test(predicted_speed_up),
        cmocka_unit_test(runs_go_back_and_forth), cmocka_unit_test(ratios_are_taken_within_a_run),
        cmocka_unit_test(other_tokens_are_seen),  cmocka_unit_test(errors_and_stops_end_it),
        cmocka_unit_test(range_of_few_numbers),   cmocka_unit_test(passes_against_the_read_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
