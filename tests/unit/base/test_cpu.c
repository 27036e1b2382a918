/* TANDEM_CPU lowers what the CPU has and never raises it. */
#include "base/base.h"

#include <sched.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static unsigned features(const char *level) {
    if (level)
        setenv("TANDEM_CPU", level, 1);
    else
        unsetenv("TANDEM_CPU");
    unsigned f = ~0u;
    td_error err;
    assert_int_equal(td_cpu_features(&f, &err), TD_OK);
    return f;
}

static void levels_form_a_ladder(void **state) {
    (void)state;
    const unsigned all = features(NULL);
    assert_int_equal(features("ref"), 0);
    assert_int_equal(features(""), all); /* set but empty: not set */
#if defined(__x86_64__)
    const unsigned avx2 = features("avx2"), avx512 = features("avx512"), amx = features("amx");
    assert_int_equal(avx2, all & TD_CPU_AVX2);
    assert_int_equal(avx512, all & (TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512_VNNI));
    assert_int_equal(amx, all & (TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512_VNNI | TD_CPU_AMX));
    /* A level stands on the ones below it. */
    if (all & TD_CPU_AVX512) assert_true(all & TD_CPU_AVX2);
    if (all & TD_CPU_AVX512_VNNI) assert_true(all & TD_CPU_AVX512);
    if (all & TD_CPU_AMX) assert_true(all & TD_CPU_AVX512_VNNI);
#elif defined(__aarch64__)
    assert_int_equal(features("neon"), all & TD_CPU_DOTPROD);
#endif
}

/* The words of this architecture, as the message lists them, and the others', which it does not know. */
#if defined(__x86_64__)
#define KNOWN "ref, avx2, avx512 or amx"
#define FOREIGN "neon"
#elif defined(__aarch64__)
#define KNOWN "ref or neon"
#define FOREIGN "avx2", "avx512", "amx"
#else
#define KNOWN "ref"
#define FOREIGN "avx2", "avx512", "amx", "neon"
#endif

static void unknown_words_fail(void **state) {
    (void)state;
    const char *bad[] = {"AVX2", "avx", "avx2 ", "sse", "none", "avx512vnni", FOREIGN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("TANDEM_CPU", bad[i], 1);
        unsigned f = 123;
        td_error err;
        assert_int_equal(td_cpu_features(&f, &err), TD_E_ARG);
        assert_int_equal(f, 123); /* written on success only */
        assert_non_null(strstr(err.msg, bad[i]));
        assert_non_null(strstr(err.msg, KNOWN));
    }
    unsetenv("TANDEM_CPU");
}

static void cores_follow_the_affinity(void **state) {
    (void)state;
    cpu_set_t was, one;
    const int n = td_cpu_count();
    assert_true(n >= 1);
    assert_int_equal(sched_getaffinity(0, sizeof was, &was), 0);
    assert_true(n <= CPU_COUNT(&was));
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &was)) continue;
        CPU_SET(i, &one);
        break;
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(td_cpu_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof was, &was), 0);
    assert_int_equal(td_cpu_count(), n);
}

static void time_goes_forward(void **state) {
    (void)state;
    uint64_t last = td_now_ns();
    for (int i = 0; i < 1000; i++) {
        const uint64_t now = td_now_ns();
        assert_true(now >= last);
        last = now;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_form_a_ladder),
        cmocka_unit_test(unknown_words_fail),
        cmocka_unit_test(cores_follow_the_affinity),
        cmocka_unit_test(time_goes_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
