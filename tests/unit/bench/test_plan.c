/* The plan of a model on a machine, against numbers worked out by hand; in round units, so that the
 * hand can be followed in the comments. */
#include "bench/bench.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-9 * fabs(b);
}

/* 100 GB/s, 1000 Gmac/s of integers, 500 of floats; 12 GB. 1e5 values a token everywhere and 2e5 in
 * windows of 100; in f16 200 kB and at most 40 MB. Four query heads a KV head. */
static bench_forecast_in machine(void) {
    return (bench_forecast_in){.target = {.weight_bytes = 10e9,
                                          .step_bytes = 8e9,
                                          .int_macs = 4e9,
                                          .float_macs = 1e9,
                                          .prefill_int_macs = 3e9,
                                          .prefill_float_macs = 1e9,
                                          .kv_values = 1e5,
                                          .window_values = 2e5,
                                          .window = 100,
                                          .group = 4},
                               .limits = {100, 1000, 500},
                               .memory_bytes = 12e9,
                               .kv_bits = 16,
                               .n_context = 1000,
                               .n_prompt = 200,
                               .n_answer = 100};
}

static bench_sizes small_draft(void) {
    return (bench_sizes){
        .weight_bytes = 1e9, .step_bytes = 1e9, .int_macs = 0.5e9, .prefill_int_macs = 0.5e9};
}

static void memory_holds_weights_and_then_context(void **state) {
    bench_forecast_in in = machine();
    bench_forecast f;
    (void)state;
    bench_forecast_make(&f, &in);
    assert_true(near(f.free_bytes, 2e9));
    /* f16, 2 bytes: 200 kB a token, 2 (1e5 1000 + 2e5 100) = 240 MB at 1000; (2e9 - 4e7) / 2e5 */
    assert_true(near(f.caches[0].token_bytes, 2e5) && near(f.caches[0].window_bytes, 4e7));
    assert_true(near(f.caches[0].context_bytes, 2.4e8) && f.caches[0].longest == 9800);
    /* 8.5 bits: (2e9 - 21.25e6) / 106250 = 18623.5; 4.5: (2e9 - 11.25e6) / 56250 = 35355.6 */
    assert_true(near(f.caches[1].context_bytes, 1.275e8) && f.caches[1].longest == 18623);
    assert_true(near(f.caches[2].token_bytes, 56250) && f.caches[2].longest == 35355);
    assert_true(f.streams_fit == 8); /* 2e9 / 2.4e8 = 8.3 */
}

static void the_edges_of_memory(void **state) {
    bench_forecast_in in = machine();
    bench_forecast f;
    (void)state;
    in.memory_bytes = 10e9 + 2.4e8; /* to the byte */
    bench_forecast_make(&f, &in);
    assert_true(f.caches[0].longest == 1000 && f.streams_fit == 1);
    in.memory_bytes = 10e9 + 6e5 * 50 - 1; /* within the windows a token takes 600 kB */
    bench_forecast_make(&f, &in);
    assert_true(f.caches[0].longest == 49 && f.streams_fit == 0);
    in.memory_bytes = 9e9;
    bench_forecast_make(&f, &in);
    assert_true(f.free_bytes == -1e9 && f.caches[0].longest == 0 && f.streams_fit == 0);
    in.memory_bytes = 12e9;
    in.target.kv_values = 0; /* nothing but windows: no context is too long */
    bench_forecast_make(&f, &in);
    assert_true(isinf(f.caches[0].longest) && near(f.caches[0].context_bytes, 4e7));
}

static void a_draft_takes_its_part_of_memory(void **state) {
    bench_forecast_in in = machine();
    bench_forecast f;
    (void)state;
    in.draft = small_draft();
    in.draft.kv_values = 5e4;
    in.draft.window_values = 1e5;
    in.draft.window = 1000; /* longer than the target's */
    bench_forecast_make(&f, &in);
    assert_true(near(f.free_bytes, 1e9));
    /* past 1000: 300 kB a token, 40 MB and 200 MB of windows; (1e9 - 2.4e8) / 3e5 = 2533.3 */
    assert_true(near(f.caches[0].token_bytes, 3e5) && near(f.caches[0].window_bytes, 2.4e8));
    assert_true(f.caches[0].longest == 2533);
    /* at 1000: 240 + 300 MB */
    assert_true(near(f.caches[0].context_bytes, 5.4e8) && f.streams_fit == 1);
}

static void passes_read_weights_once_and_kv_once_a_stream(void **state) {
    bench_forecast_in in = machine();
    bench_forecast f;
    (void)state;
    bench_forecast_make(&f, &in);
    /* 8e9 / 100e9; 4e9 / 1000e9 + 1e9 / 500e9 */
    assert_true(near(f.empty.read_ms, 80) && near(f.empty.arithmetic_ms, 6));
    /* 8.24e9; attention 4 (1e5 1000 + 2e5 100) = 0.48e9 in floats */
    assert_true(near(f.full.bytes, 8.24e9) && near(f.full.float_macs, 1.48e9));
    assert_true(near(f.full.ms, 82.4) && near(f.full.arithmetic_ms, 6.96));
    /* in the middle, at 250: 2 (2.5e7 + 2e7) = 90 MB */
    assert_true(near(f.answer.ms, 80.9) && near(f.answer_ms, 8090));
    in.kv_bits = 4.5;
    bench_forecast_make(&f, &in);
    assert_true(near(f.full.bytes, 8e9 + 6.75e7) && near(f.full.float_macs, 1.48e9));
}

static void prefill_computes_no_logits_and_all_of_attention(void **state) {
    bench_forecast_in in = machine();
    bench_forecast f;
    (void)state;
    bench_forecast_make(&f, &in);
    /* 4 (1e5 (1 + ... + 200) + 2e5 (1 + ... + 100 + 100 100)) = 4 (2.01e9 + 3.01e9) = 20.08e9;
     * 200 3e9 / 1000e9 + (200 1e9 + 20.08e9) / 500e9 = 0.6 + 0.44016 s */
    assert_true(near(f.prefill.int_macs, 600e9) && near(f.prefill.float_macs, 220.08e9));
    assert_true(near(f.prefill.ms, 1040.16));
    in.n_prompt = 1; /* the weights have to be read for it all the same */
    bench_forecast_make(&f, &in);
    assert_true(near(f.prefill.ms, 80));
}

static void batches_turn_from_bandwidth_to_arithmetic(void **state) {
    static const int streams[] = {1, 2, 4, 8, 16, 32};
    bench_forecast_in in = machine();
    bench_forecast f;
    (void)state;
    bench_forecast_make(&f, &in);
    for (int i = 0; i < BENCH_BATCHES; i++) { /* 80 + 2.4 b ms against 6.96 b ms */
        const int b = streams[i];
        assert_int_equal(f.batch[i].streams, b);
        assert_true(near(f.batch[i].pass.read_ms, 80 + 2.4 * b));
        assert_true(near(f.batch[i].pass.arithmetic_ms, 6.96 * b));
        assert_true(near(f.batch[i].tok_per_s, b < 18 ? 1e3 * b / (80 + 2.4 * b) : 1e3 / 6.96));
    }
    assert_true(f.streams_turn == 18); /* 80 / (6.96 - 2.4) = 17.5 */
    in.limits.read_gb_per_s = 30;      /* KV takes 8 ms, longer than its arithmetic */
    bench_forecast_make(&f, &in);
    assert_true(isinf(f.streams_turn));
}

static void speculation_pays_where_arithmetic_is_idle(void **state) {
    bench_forecast_in in = machine();
    bench_forecast f;
    (void)state;
    in.draft = small_draft();
    in.acceptance = 0.5;
    bench_forecast_make(&f, &in);
    /* 1 + 1/2; + 1/4; (1 - 2^-9) / (1 - 1/2) */
    assert_true(near(f.expected[0], 1.5) && near(f.expected[1], 1.75));
    assert_true(near(f.expected[7], 1.99609375));
    const bench_speculation *alone = &f.speculation[0], *many = &f.speculation[2];
    /* Nine rows are 62.6 ms of arithmetic behind 82.4 of reading: v = 1. c = 10 / 82.4.
     * S(1) = 1.5 / 1.121359, S(2) = 1.75 / 1.242718, S(3) = 1.875 / 1.364078 */
    assert_true(near(alone->plain_ms, 82.4) && near(alone->draft_ms, 10) && near(alone->v[7], 1));
    assert_true(fabs(alone->speedup[0] - 1.337662) < 1e-6);
    assert_true(fabs(alone->speedup[1] - 1.408203) < 1e-6);
    assert_true(fabs(alone->speedup[2] - 1.374555) < 1e-6);
    assert_int_equal(alone->best_k, 2);
    /* 16 streams: 118.4 ms of reading, 111.36 of arithmetic a row, so two rows cost 222.72: v(2) =
     * 1.881081; the draft reads 10 ms, computes 8. S(1) = 1.5 / (0.084459 + 1.881081) */
    assert_int_equal(many->streams, 16);
    assert_true(near(many->plain_ms, 118.4) && near(many->draft_ms, 10));
    assert_true(fabs(many->v[0] - 1.881081) < 1e-6 && fabs(many->speedup[0] - 0.763149) < 1e-6);
    assert_int_equal(many->best_k, 0);
}

static void acceptance_of_nothing_and_of_everything(void **state) {
    bench_forecast_in in = machine();
    bench_forecast f;
    (void)state;
    in.draft = small_draft();
    bench_forecast_make(&f, &in);
    assert_true(f.expected[0] == 1 && f.expected[7] == 1 && f.speculation[0].best_k == 0);
    in.acceptance = 1;
    bench_forecast_make(&f, &in);
    assert_true(f.expected[0] == 2 && f.expected[7] == 9);
    assert_true(near(f.speculation[0].speedup[7], 9 / (80 / 82.4 + 1)));
    assert_int_equal(f.speculation[0].best_k, 8);
}

static void gpus_by_name(void **state) {
    (void)state;
    assert_string_equal(bench_gpu_find("h100")->name, "H100");
    assert_string_equal(bench_gpu_find("RTX 4090")->name, "RTX-4090");
    assert_string_equal(bench_gpu_find("4090")->name, "RTX-4090");
    assert_string_equal(bench_gpu_find("l4")->name, "L4"); /* not L40S */
    assert_string_equal(bench_gpu_find("A100-80")->name, "A100-80GB");
    assert_null(bench_gpu_find("A100"));
    assert_null(bench_gpu_find("H1000"));
    assert_null(bench_gpu_find(""));
    assert_null(bench_gpu_find("-"));
    for (int i = 0; bench_gpu_get(i); i++) {
        const bench_gpu *g = bench_gpu_get(i);
        assert_ptr_equal(bench_gpu_find(g->name), g);
        assert_true(g->memory_bytes >= 16e9 && g->limits.read_gb_per_s >= 300);
        assert_true(g->limits.dot_gmac_per_s > 1.9 * g->limits.fma_gmac_per_s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_holds_weights_and_then_context),
        cmocka_unit_test(the_edges_of_memory),
        cmocka_unit_test(a_draft_takes_its_part_of_memory),
        cmocka_unit_test(passes_read_weights_once_and_kv_once_a_stream),
        cmocka_unit_test(prefill_computes_no_logits_and_all_of_attention),
        cmocka_unit_test(batches_turn_from_bandwidth_to_arithmetic),
        cmocka_unit_test(speculation_pays_where_arithmetic_is_idle),
        cmocka_unit_test(acceptance_of_nothing_and_of_everything),
        cmocka_unit_test(gpus_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
