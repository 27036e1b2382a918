/* T(m), prefill and products against the roofline. The library is made up: td_measure_pass and
 * td_generate below take the time that a case asks for. The probe and the kernels are real, so what
 * is checked of them is order, sums and bounds, never speed. */
#include "bench/bench_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_CALLS = 64, N_PROMPT = 33 };

static struct {
    int calls, contexts[MAX_CALLS], widths[MAX_CALLS], repeats[MAX_CALLS];
    int fail_at, cancel_at;
    td_token first[MAX_CALLS];
} lib;

static bench_probe *probe;

static void reset(void) {
    memset(&lib, 0, sizeof lib);
    lib.fail_at = lib.cancel_at = -1;
}

/* Each call is slower than the one before, as on a machine that gets busy. */
static double ms_of_call(int call, int m) {
    return (10 + m) * (1 + 0.1 * call);
}

td_code td_measure_pass(td_session *s, int n_context, int m, int repeats, double *ms,
                        td_error *err) {
    const int call = lib.calls++;
    (void)s;
    assert_true(call < MAX_CALLS);
    lib.contexts[call] = n_context, lib.widths[call] = m, lib.repeats[call] = repeats;
    if (call == lib.fail_at) return td_fail(err, TD_E_TOO_BIG, "made up");
    *ms = ms_of_call(call, m);
    return TD_OK;
}

td_code td_measure_draft(td_session *s, int n_context, int repeats, double *ms, td_error *err) {
    const int call = lib.calls++;
    (void)s;
    assert_true(repeats > 1 && n_context == 600);
    if (call == lib.fail_at) return td_fail(err, TD_E_TOO_BIG, "made up");
    lib.widths[call] = 0;
    *ms = ms_of_call(call, -5);
    return TD_OK;
}

void td_generate_defaults(td_generate_options *opt) {
    *opt = (td_generate_options){.n_predict = -1, .draft_max = 3};
}

td_code td_generate(td_session *s, const td_token *prompt, size_t n_prompt,
                    const td_generate_options *opt, td_stats *stats, td_error *err) {
    const int call = lib.calls++;
    (void)s;
    assert_true(opt->n_predict == 0 && opt->draft_max == 0);
    assert_int_equal(n_prompt, N_PROMPT);
    for (size_t i = 0; i < n_prompt; i++)
        assert_true(prompt[i] >= 0 && prompt[i] < 50);
    lib.first[call] = prompt[0];
    if (call == lib.fail_at) return td_fail(err, TD_E_MEMORY, "made up");
    *stats = (td_stats){.prefill_tokens = N_PROMPT - 1,
                        .prefill_ms = 100 * (1 + call),
                        .stop = call == lib.cancel_at ? TD_STOP_CANCELLED : TD_STOP_LENGTH};
    return TD_OK;
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static void roofline_is_the_longer_side(void **state) {
    const bench_limits l = {.read_gb_per_s = 20, .dot_gmac_per_s = 400, .fma_gmac_per_s = 100};
    (void)state;
    assert_true(near(bench_roofline_ms(&l, 1e9, 1e9, 0), 50));
    assert_true(near(bench_roofline_ms(&l, 1e9, 40e9, 0), 100));
    assert_true(near(bench_roofline_ms(&l, 1e9, 40e9, 2e9), 120));
    assert_true(near(bench_roofline_ms(&l, 0, 0, 1e9), 10));
}

static const int rows[] = {1, 2, 9};

static bench_cost cost_of(bench_cost_point *points, int n_rounds) {
    return (bench_cost){.n_context = 600,
                        .rows = rows,
                        .n_rows = 3,
                        .n_rounds = n_rounds,
                        .weight_bytes = 9000000,
                        .kv_bytes = 1000000,
                        .int_macs = 20000000,
                        .points = points};
}

static void passes_go_up_and_down_behind_a_context_that_grows(void **state) {
    /* Three laps a round, the wide pass in the first of them only. */
    static const int order[] = {1, 1, 1, 1, 2, 9, 2, 1, 1, 2, 9, 2,
                                1, 1, 2, 2, 1, 1, 2, 9, 2, 1, 1, 2};
    static const int contexts[] = {256, 512, 600};
    bench_cost_point p[3];
    bench_cost c = cost_of(p, 3);
    (void)state;
    reset();
    assert_int_equal(bench_measure_cost(NULL, probe, &c, NULL, NULL, NULL), TD_OK);
    assert_int_equal(lib.calls, 24);
    assert_memory_equal(lib.widths, order, sizeof order);
    assert_memory_equal(lib.contexts, contexts, sizeof contexts);
    for (int i = 3; i < 24; i++) {
        assert_int_equal(lib.contexts[i], 600);
        assert_int_equal(lib.repeats[i], 1);
    }
}

static void ratios_of_passes_are_taken_within_a_round(void **state) {
    bench_cost_point p[3];
    bench_cost c = cost_of(p, 3);
    (void)state;
    reset();
    assert_int_equal(bench_measure_cost(NULL, probe, &c, NULL, NULL, NULL), TD_OK);
    /* 9 rows: calls 5, 10, 19; one row: calls 3 7 8, 12 13 16, 17 21 22, and each call is slower than the last */
    double growth[] = {ms_of_call(5, 9) / ms_of_call(7, 1), ms_of_call(10, 9) / ms_of_call(13, 1),
                       ms_of_call(19, 9) / ms_of_call(21, 1)};
    const bench_range want = bench_range_of(growth, 3);
    assert_true(near(p[2].growth.min, want.min) && near(p[2].growth.median, want.median) &&
                near(p[2].growth.max, want.max));
    assert_true(p[0].growth.min == 1 && p[0].growth.max == 1);
    assert_true(near(p[2].ms.median, ms_of_call(10, 9)));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(p[i].m, rows[i]);
        assert_true(near(p[i].gb_per_s, 10 / p[i].ms.median)); /* 10 MB */
        /* Some round gave the ratio, so it lies between the extremes of its two sides. */
        assert_true(p[i].over.median <= p[i].ms.max / p[i].roofline_ms.min * (1 + 1e-9));
        assert_true(p[i].over.median >= p[i].ms.min / p[i].roofline_ms.max * (1 - 1e-9));
        assert_true(p[i].share.max <= 10 / p[i].ms.min / c.read_gb_per_s.min * (1 + 1e-9));
        assert_true(p[i].share.min >= 10 / p[i].ms.max / c.read_gb_per_s.max * (1 - 1e-9));
        assert_true(p[i].roofline_ms.min > 0);
        assert_true(!i || p[i].roofline_ms.median >= p[i - 1].roofline_ms.median);
        assert_true(p[i].roofline_ms.max >= 10 / c.read_gb_per_s.max * (1 - 1e-9));
        assert_true(p[i].roofline_ms.max >= 20 * rows[i] / c.dot_gmac_per_s.max * (1 - 1e-9));
    }
}

/* Other work between the rounds has the caches, so that each reads the context anew; the draft is timed beside them. */
static void rounds_between_other_work(void **state) {
    static const int order[] = {1, 1, 1, 0, 1, 2, 9, 2, 1, 1, 2, 1, 1, 1, 0, 9, 2, 1, 1, 2, 2, 1};
    bench_cost_point p[3];
    bench_cost c = cost_of(p, 5);
    bench_costing *x;
    td_error err;
    (void)state;
    reset();
    c.with_draft = true;
    assert_int_equal(bench_costing_open(&x, &c, &err), TD_OK);
    for (int r = 0; r < 2; r++)
        assert_int_equal(bench_costing_round(x, NULL, probe, NULL, NULL, &err), TD_OK);
    lib.fail_at = lib.calls + 3; /* the third round does not come to its end, and does not count */
    assert_int_equal(bench_costing_round(x, NULL, probe, NULL, NULL, &err), TD_E_TOO_BIG);
    bench_costing_close(&x);
    assert_null(x);
    assert_memory_equal(lib.widths, order, sizeof order);
    double share[] = {ms_of_call(3, -5) / ms_of_call(8, 1), ms_of_call(14, -5) / ms_of_call(18, 1)};
    const bench_range want = bench_range_of(share, 2);
    assert_true(near(c.draft_share.median, want.median) && near(c.draft_share.max, want.max));
    assert_true(near(c.draft_ms.min, ms_of_call(3, -5)) && near(p[2].ms.max, ms_of_call(15, 9)));
    assert_int_equal(bench_costing_open(&x, &c, &err), TD_OK);
    bench_costing_close(&x); /* without a round: c stays as it was */
    assert_true(near(c.draft_share.median, want.median));
    bench_costing_close(&x);
}

static void without_one_row_nothing_is_compared_with_it(void **state) {
    bench_cost_point p[2];
    bench_cost c = cost_of(p, 1);
    (void)state;
    reset();
    c.rows = rows + 1, c.n_rows = 2;
    assert_int_equal(bench_measure_cost(NULL, probe, &c, NULL, NULL, NULL), TD_OK);
    assert_true(isnan(p[0].growth.median) && isnan(p[1].growth.median));
    assert_true(p[1].ms.median > 0);
}

static bool stop_at(void *user, const char *what, int done, int total) {
    int *left = user;
    assert_true(*what && done >= 0 && done <= total);
    return (*left)-- > 0;
}

static void errors_and_stops_end_a_cost(void **state) {
    bench_cost_point p[3];
    bench_cost c = cost_of(p, 2);
    td_error err;
    (void)state;
    for (int at = 0; at < 9; at++) {
        int left = at;
        reset();
        lib.fail_at = at;
        assert_int_equal(bench_measure_cost(NULL, probe, &c, NULL, NULL, &err), TD_E_TOO_BIG);
        assert_int_equal(lib.calls, at + 1);
        reset();
        assert_int_equal(bench_measure_cost(NULL, probe, &c, stop_at, &left, &err), TD_E_CANCELLED);
        assert_int_equal(lib.calls, at);
    }
    c.n_rounds = 0;
    assert_int_equal(bench_measure_cost(NULL, probe, &c, NULL, NULL, &err), TD_E_ARG);
}

static void prefills_of_new_texts(void **state) {
    bench_prefill p = {
        .n_tokens = N_PROMPT - 1, .n_rounds = 3, .int_macs = 1000000, .float_macs = 500000};
    td_error err;
    (void)state;
    reset();
    assert_int_equal(bench_measure_prefill(NULL, probe, &p, 50, NULL, NULL, &err), TD_OK);
    assert_int_equal(lib.calls, 3);
    assert_true(lib.first[0] != lib.first[1] && lib.first[1] != lib.first[2]);
    assert_true(near(p.ms.median, 200) && near(p.ms.min, 100));
    assert_true(near(p.tok_per_s.median, (N_PROMPT - 1) * 5.0));
    assert_true(near(p.gmac_per_s.median, (N_PROMPT - 1) * 1.5e6 / 200 / 1e6));
    assert_true(p.share.min > 0 && p.share.max >= p.share.min);
    reset();
    lib.cancel_at = 1;
    assert_int_equal(bench_measure_prefill(NULL, probe, &p, 50, NULL, NULL, &err), TD_E_CANCELLED);
    reset();
    lib.fail_at = 2;
    assert_int_equal(bench_measure_prefill(NULL, probe, &p, 50, NULL, NULL, &err), TD_E_MEMORY);
}

/* Every loop that this machine can run comes to an end and leaves the stack as it was. */
static void loops_of_every_level(void **state) {
    unsigned has;
    (void)state;
    assert_int_equal(td_cpu_features(&has, NULL), TD_OK);
    const unsigned levels[] = {0, has & TD_CPU_AVX2, has & ~(unsigned)TD_CPU_AMX, has};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        const char *level = levels[i] ? "some" : "ref";
        const bench_rate of[] = {bench_rate_dot(levels[i], level),
                                 bench_rate_fma(levels[i], level)};
        for (int j = 0; j < 2; j++) {
            assert_true(*of[j].name && of[j].macs > 0 && of[j].turns > 0);
            of[j].run(1);
            of[j].run(of[j].turns);
        }
    }
    assert_string_equal(bench_rate_dot(0, "ref").name, "plain C");
    assert_true(bench_probe_dot(probe) > 0 && bench_probe_fma(probe) > 0);
    assert_int_equal(bench_probe_threads(probe), 2);
}

static void products_of_every_type(void **state) {
    static const int widths[] = {1, 3};
    bench_kernels *k = NULL;
    bench_limits seen = {0};
    td_error err;
    int n_types = 0;
    (void)state;
    assert_int_equal(bench_kernels_open(&k, probe, 1 << 20, 3, &err), TD_OK);
    for (int t = 0; t < TD_TYPE_COUNT; t++) {
        const bench_product p = {(td_type)t, 40, 512}, odd = {(td_type)t, 40, 33};
        bench_product_point points[2];
        if (!bench_kernels_can(k, &p)) continue;
        n_types++;
        assert_int_equal(bench_kernels_can(k, &odd), td_type_get((uint32_t)t)->block == 1);
        assert_int_equal(
            bench_kernels_measure(k, &p, widths, 2, 1, points, &seen, NULL, NULL, &err), TD_OK);
        for (int i = 0; i < 2; i++) {
            const bench_product_point *q = &points[i];
            assert_int_equal(q->m, widths[i]);
            assert_true(q->ms.median > 0 && q->roofline_ms > 0);
            assert_true(near(q->reached.median, q->roofline_ms / q->ms.median));
            assert_true(near(q->gmac_per_s, 40.0 * 512 * q->m / q->ms.median / 1e6));
        }
        assert_true(points[1].roofline_ms >= points[0].roofline_ms);
        assert_true(points[0].gb_per_s * points[0].ms.median <= /* panels: 48 of the 40 rows */
                    48.0 * 512 * 4 / 1e6 * (1 + 1e-9));
    }
    assert_true(n_types >= 15);
    assert_true(seen.read_gb_per_s > 0 && seen.dot_gmac_per_s > 0);
    bench_kernels_close(&k);
    assert_null(k);
}

static void products_that_cannot_be(void **state) {
    static const int one[] = {1}, four[] = {4};
    bench_kernels *k = NULL;
    bench_limits seen = {0};
    bench_product_point point;
    td_error err;
    int left = 3;
    const bench_product good = {TD_TYPE_Q8_0, 64, 64}, odd = {TD_TYPE_Q8_0, 64, 63};
    const bench_product none = {(td_type)4, 64, 64};
    (void)state;
    assert_int_equal(bench_kernels_open(&k, probe, 1 << 20, 0, &err), TD_E_ARG);
    assert_int_equal(bench_kernels_open(&k, probe, 1 << 20, 3, &err), TD_OK);
    assert_int_equal(bench_kernels_measure(k, &odd, one, 1, 1, &point, &seen, NULL, NULL, &err),
                     TD_E_ARG);
    assert_int_equal(bench_kernels_measure(k, &none, one, 1, 1, &point, &seen, NULL, NULL, &err),
                     TD_E_ARG);
    assert_int_equal(bench_kernels_measure(k, &good, four, 1, 1, &point, &seen, NULL, NULL, &err),
                     TD_E_ARG);
    assert_int_equal(
        bench_kernels_measure(k, &good, one, 1, 5, &point, &seen, stop_at, &left, &err),
        TD_E_CANCELLED);
    assert_true(seen.read_gb_per_s == 0);
    bench_kernels_close(&k);
}

static int open_probe(void **state) {
    (void)state;
    return bench_probe_open(&probe, 2, (size_t)130 << 20, NULL);
}

static int close_probe(void **state) {
    (void)state;
    bench_probe_close(&probe);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roofline_is_the_longer_side),
        cmocka_unit_test(passes_go_up_and_down_behind_a_context_that_grows),
        cmocka_unit_test(ratios_of_passes_are_taken_within_a_round),
        cmocka_unit_test(rounds_between_other_work),
        cmocka_unit_test(without_one_row_nothing_is_compared_with_it),
        cmocka_unit_test(errors_and_stops_end_a_cost),
        cmocka_unit_test(prefills_of_new_texts),
        cmocka_unit_test(loops_of_every_level),
        cmocka_unit_test(products_of_every_type),
        cmocka_unit_test(products_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, open_probe, close_probe);
}
