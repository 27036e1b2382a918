/* Stop strings against a search that sees the whole text at once. */
#include "lib_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double unit(uint64_t seed, uint64_t i) {
    return td_uniform(seed, TD_STREAM_PLAIN, i, 0);
}

/* The match that ends first, and of those the one that begins first, in text[0..len); false: none.
 */
static bool naive(const char *text, size_t len, const char *const *stops, int n_stops,
                  size_t *begin, size_t *end) {
    for (size_t e = 1; e <= len; e++) {
        size_t longest = 0;
        for (int i = 0; i < n_stops; i++) {
            const size_t n = strlen(stops[i]);
            if (n <= e && !memcmp(text + e - n, stops[i], n) && n > longest) longest = n;
        }
        if (longest) {
            *begin = e - longest, *end = e;
            return true;
        }
    }
    return false;
}

/* Whether text[at..len) could still become a stop string. */
static bool could_begin(const char *text, size_t len, size_t at, const char *const *stops,
                        int n_stops) {
    for (int i = 0; i < n_stops; i++)
        if (strlen(stops[i]) > len - at && !memcmp(text + at, stops[i], len - at)) return true;
    return false;
}

static void random_texts(void **state) {
    (void)state;
    int n_found = 0, n_held = 0;
    for (uint64_t trial = 0; trial < 20000; trial++) {
        char text[64], stop_text[3][8];
        const char *stops[3];
        const int n_stops = (int)(unit(trial, 900) * 4);
        const size_t len = 1 + (size_t)(unit(trial, 901) * 60);
        for (size_t i = 0; i < len; i++)
            text[i] = "ab"[unit(trial, i) < 0.5];
        for (int i = 0; i < n_stops; i++) {
            const int n = 1 + (int)(unit(trial, 910 + (uint64_t)i) * 7);
            for (int j = 0; j < n; j++)
                stop_text[i][j] = "ab"[unit(trial, 1000 + 10 * (uint64_t)i + (uint64_t)j) < 0.5];
            stop_text[i][n] = 0;
            stops[i] = stop_text[i];
        }
        td_buf held = {0}, out = {0};
        lib_stops s = {.stops = stops, .n_stops = n_stops, .held = &held};
        bool stopped = false;
        size_t fed = 0, step = 0;
        while (fed < len && !stopped) {
            size_t n = (size_t)(unit(trial, 2000 + step++) * 5), n_ready, at, begin, end;
            if (n > len - fed) n = len - fed;
            stopped = lib_stops_push(&s, text + fed, n, &n_ready, &at);
            fed += n;
            td_buf_append(&out, held.data, n_ready);
            lib_stops_pass(&s, n_ready);
            const bool found = naive(text, fed, stops, n_stops, &begin, &end);
            assert_int_equal(stopped, found);
            if (found) {
                assert_int_equal(at, begin);
                assert_int_equal(out.len, begin); /* all before the stop, nothing of it */
                n_found++;
            } else { /* all but the longest end that could become one */
                size_t keep = fed - out.len;
                n_held += keep > 0;
                assert_true(!keep || could_begin(text, fed, out.len, stops, n_stops));
                for (size_t i = 0; i < out.len; i++)
                    assert_false(could_begin(text, fed, i, stops, n_stops));
            }
            assert_true(!out.len || !memcmp(out.data, text, out.len));
        }
        td_buf_free(&held);
        td_buf_free(&out);
    }
    assert_true(n_found > 5000 && n_held > 5000);
}

static void nothing_at_all(void **state) {
    (void)state;
    td_buf held = {0};
    lib_stops s = {.held = &held};
    size_t n_ready = 9, at;
    assert_false(lib_stops_push(&s, "", 0, &n_ready, &at));
    assert_int_equal(n_ready, 0);
    lib_stops_pass(&s, 0);
    assert_false(lib_stops_push(&s, "abc", 3, &n_ready, &at));
    assert_int_equal(n_ready, 3);
    td_buf_free(&held);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_texts),
        cmocka_unit_test(nothing_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
