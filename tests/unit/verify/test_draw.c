/* Drawing by inversion: the law is probs / sum(probs), whatever the vocabulary's size. */
#include "verify/verify.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t GRID = (uint64_t)1 << 52; /* as many values as td_unit has */

static double unit(uint64_t i) {
    return td_unit(i << 12);
}

/* The share of all u that draw an id below `id`, by halving: the draw rises with u. */
static double share_below(const float *p, int n, int id) {
    uint64_t below = 0, above = GRID; /* values [0, below) draw lower ids; at `above` no longer */
    while (below < above) {
        const uint64_t middle = below + (above - below) / 2;
        if (verify_draw(p, n, unit(middle)) < id)
            below = middle + 1;
        else
            above = middle;
    }
    return (double)below / (double)GRID;
}

static void small_laws_are_exact(void **state) {
    (void)state;
    for (uint64_t t = 0; t < 3000; t++) {
        float p[6];
        const int n = 1 + (int)(6 * td_uniform(5, TD_STREAM_PLAIN, t, 90));
        double sum = 0;
        for (int i = 0; i < n; i++) {
            const double u = td_uniform(5, TD_STREAM_PLAIN, t, (uint32_t)i);
            p[i] = u < 0.25 ? 0 : u < 0.35 ? 1e-12f : (float)u;
        }
        p[t % (uint64_t)n] = 0.5f;
        for (int i = 0; i < n; i++)
            sum += p[i];
        double at = 0;
        for (int i = 0; i < n; i++) {
            const double next = i + 1 < n ? share_below(p, n, i + 1) : 1;
            assert_true(fabs((next - at) - p[i] / sum) < 1e-15);
            at = next;
        }
    }
}

static void sizes_around_blocks(void **state) {
    (void)state;
    const int sizes[] = {1, 2, 127, 128, 129, 255, 256, 257, 1000, 151936};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int n = sizes[s];
        float *p = calloc((size_t)n, sizeof *p);
        double *upto = calloc((size_t)n, sizeof *upto); /* plain running sum, the reference */
        assert_true(p && upto);
        int first = -1, last = -1;
        double sum = 0;
        for (int i = 0; i < n; i++) {
            const double u = td_uniform(6, TD_STREAM_PLAIN, (uint64_t)i, (uint32_t)n);
            p[i] = u < 0.4 && n > 1 ? 0 : (float)(u / n);
            if (p[i] > 0) last = i, first = first < 0 ? i : first;
            upto[i] = sum += p[i];
        }
        if (first < 0) p[0] = 1, first = last = 0, upto[0] = sum = 1;
        assert_int_equal(verify_draw(p, n, unit(0)), first);
        assert_int_equal(verify_draw(p, n, unit(GRID - 1)), last);
        for (uint64_t t = 0; t < 400; t++) {
            const double u = td_uniform(7, TD_STREAM_PLAIN, t, (uint32_t)n);
            const int id = verify_draw(p, n, u);
            assert_in_range(id, 0, n - 1);
            assert_true(p[id] > 0);
            assert_true(upto[id] > u * sum - 1e-12 && upto[id] - p[id] <= u * sum + 1e-12);
        }
        free(p);
        free(upto);
    }
}

static void one_hot_is_drawn_at_every_u(void **state) {
    (void)state;
    enum { N = 300 };
    for (int hot = 0; hot < N; hot++) {
        float p[N] = {0};
        p[hot] = hot % 2 ? 1.0f : 1e-30f;
        for (int t = 0; t <= 16; t++)
            assert_int_equal(verify_draw(p, N, unit(t == 16 ? GRID - 1 : GRID / 16 * (uint64_t)t)),
                             hot);
    }
}

/* Without some ids a draw is that from the row with zeros there, at every u that is tried. */
static void next_is_a_draw_from_what_is_left(void **state) {
    (void)state;
    enum { N = 300 };
    for (uint64_t t = 0; t < 2000; t++) {
        float p[N], left[N];
        int32_t taken[70];
        const int n = t % 2 ? N : 3, n_taken = (int)(t % 71) % (n + 1);
        for (int i = 0; i < n; i++) {
            const double u = td_uniform(8, TD_STREAM_PLAIN, t, (uint32_t)i);
            left[i] = p[i] = u < 0.3 ? 0 : (float)u;
        }
        for (int i = 0; i < n_taken; i++) { /* some twice */
            taken[i] = (int32_t)(td_uniform(9, TD_STREAM_PLAIN, t, (uint32_t)i) * n);
            left[taken[i]] = 0;
        }
        bool any = false;
        for (int i = 0; i < n; i++)
            any |= left[i] > 0;
        for (int k = 0; k < 20; k++) {
            const double u = td_uniform(10, TD_STREAM_PLAIN, t, (uint32_t)k);
            assert_int_equal(verify_draw_next(p, n, taken, n_taken, u),
                             any ? verify_draw(left, n, u) : -1);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_laws_are_exact),
        cmocka_unit_test(sizes_around_blocks),
        cmocka_unit_test(one_hot_is_drawn_at_every_u),
        cmocka_unit_test(next_is_a_draw_from_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
