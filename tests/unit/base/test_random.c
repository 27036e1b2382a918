/* Philox against its authors' known answers, and draws that never meet. */
#include "base/base.h"

#include <math.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

/* From the known-answer file of the authors' Random123 library (philox4x32, 10 rounds). */
static void known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kat / sizeof *kat; i++) {
        uint32_t out[4];
        td_philox(kat[i].counter, kat[i].key, out);
        assert_memory_equal(out, kat[i].want, sizeof out);
    }
}

/* (53 bits + 0.5) * 2^-53 rounded to 1 at the highest value. */
static void the_ends_are_open(void **state) {
    (void)state;
    assert_true(td_unit(0) == 0x1p-53);
    assert_true(td_unit(UINT64_MAX) == 1 - 0x1p-53 && td_unit(UINT64_MAX) < 1);
    assert_true(td_unit(UINT64_MAX) + td_unit(0) == 1); /* symmetric */
    assert_true(td_unit((uint64_t)1 << 63) > 0.5 && td_unit(((uint64_t)1 << 63) - 1) < 0.5);
    assert_true(td_unit(1 << 12) - td_unit(0) == 0x1p-52); /* even steps */
}

/* A seed gives the same text in every later version: the layout of the counter is part of that. */
static void layout_of_the_counter(void **state) {
    (void)state;
    const uint32_t counter[4] = {0x89abcdef, 0x01234567, 0xfedc, TD_STREAM_RESIDUAL};
    const uint32_t key[2] = {0x33445566, 0x1122};
    uint32_t r[4];
    td_philox(counter, key, r);
    const uint64_t bits = ((uint64_t)r[0] << 32 | r[1]) >> 12;
    const double want = ((double)bits + 0.5) / 4503599627370496.0;
    assert_true(td_uniform(0x112233445566u, TD_STREAM_RESIDUAL, 0x0123456789abcdefu, 0xfedc) ==
                want);
}

static void each_argument_matters(void **state) {
    (void)state;
    const double u = td_uniform(1, TD_STREAM_PLAIN, 5, 0);
    assert_true(u == td_uniform(1, TD_STREAM_PLAIN, 5, 0));
    assert_true(u != td_uniform(2, TD_STREAM_PLAIN, 5, 0));
    assert_true(u != td_uniform(1 + ((uint64_t)1 << 40), TD_STREAM_PLAIN, 5, 0));
    assert_true(u != td_uniform(1, TD_STREAM_PLAIN, 6, 0));
    assert_true(u != td_uniform(1, TD_STREAM_PLAIN, 5 + ((uint64_t)1 << 40), 0));
    assert_true(u != td_uniform(1, TD_STREAM_PLAIN, 5, 1));
    for (int s = TD_STREAM_DRAFT; s <= TD_STREAM_GUMBEL; s++)
        assert_true(u != td_uniform(1, (td_stream)s, 5, 0));
}

/* Chi-square over 64 cells: 63 degrees of freedom, mean 63, deviation 11.2; 120 is beyond 5 of
 * them. */
static double chi_square(const int cell[64], int n) {
    double sum = 0, expect = n / 64.0;
    for (int i = 0; i < 64; i++)
        sum += (cell[i] - expect) * (cell[i] - expect) / expect;
    return sum;
}

static void uniform_and_independent(void **state) {
    (void)state;
    enum { N = 64 * 2000 };
    for (int s = TD_STREAM_PLAIN; s <= TD_STREAM_GUMBEL; s++) {
        int alone[64] = {0}, with_next[64] = {0}, with_stream[64] = {0}, with_lane[64] = {0};
        double sum = 0;
        for (int i = 0; i < N; i++) {
            const double u = td_uniform(77, (td_stream)s, (uint64_t)i, 0);
            const int other = s == TD_STREAM_GUMBEL ? TD_STREAM_PLAIN : s + 1;
            assert_true(u > 0 && u < 1);
            sum += u;
            const int high = (int)(u * 8) * 8;
            alone[(int)(u * 64)]++;
            with_next[high + (int)(td_uniform(77, (td_stream)s, (uint64_t)i + 1, 0) * 8)]++;
            with_stream[high + (int)(td_uniform(77, (td_stream)other, (uint64_t)i, 0) * 8)]++;
            with_lane[high + (int)(td_uniform(77, (td_stream)s, (uint64_t)i, 1) * 8)]++;
        }
        assert_true(fabs(sum / N - 0.5) < 5 * 0.2887 / sqrt(N));
        assert_true(chi_square(alone, N) < 120);
        assert_true(chi_square(with_next, N) < 120);
        assert_true(chi_square(with_stream, N) < 120);
        assert_true(chi_square(with_lane, N) < 120);
    }
    int planted[64] = {0}; /* one stream used for two purposes must show */
    for (int i = 0; i < N; i++) {
        const double u = td_uniform(77, TD_STREAM_ACCEPT, (uint64_t)i, 0);
        planted[(int)(u * 8) * 8 + (int)(u * 8)]++;
    }
    assert_true(chi_square(planted, N) > 10000);
}

static void seeds_differ(void **state) {
    (void)state;
    const uint64_t a = td_random_seed(), b = td_random_seed(), c = td_random_seed();
    assert_true(a != b && b != c && a != c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),           cmocka_unit_test(the_ends_are_open),
        cmocka_unit_test(layout_of_the_counter),   cmocka_unit_test(each_argument_matters),
        cmocka_unit_test(uniform_and_independent), cmocka_unit_test(seeds_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
