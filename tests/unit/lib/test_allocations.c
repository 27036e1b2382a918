/* After a first call, td_generate allocates nothing: all scratch is the session's. Every allocation
 * of the library goes through the linker's wrappers here. */
#include "lib_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib_make.h"
#include "tests/unit/count_allocations.h"

static bool ignore(void *user, const char *text, size_t len) {
    (void)user, (void)text, (void)len;
    return true;
}

static void second_call_allocates_nothing(void **state) {
    (void)state;
    td_session *s = NULL;
    td_error err = {0};
    n_allocations = 0;
    td_model *verifier = open_tiny_model(&(tiny_params){.seed = 1}, 2);
    td_model *drafter = open_tiny_model(
        &(tiny_params){.seed = 1, .n_vocab = 40, .noise = 0.1f, .noise_seed = 2}, 2);
    assert_int_equal(td_session_open(&s, verifier, drafter, NULL, &err), TD_OK);
    assert_true(n_allocations > 20); /* the wrappers are in place */
    const td_logit_bias bias[] = {{7, 1}, {45, -INFINITY}};
    const char *const stops[] = {"no such text", "abcabcabcabc"};
    td_token prompt[20];
    tiny_text(prompt, 20, 40, 1);
    setenv("XDG_CACHE_HOME", "/dev/null", 1); /* what passes cost is measured, not read */
    for (int greedy = 0; greedy < 2; greedy++)
        for (int turn = 0; turn < 4; turn++) {
            td_generate_options opt;
            td_stats st;
            td_generate_defaults(&opt);
            opt.sampling.temperature = greedy ? 0 : 1;
            opt.sampling.repeat_penalty = 1.1f;
            opt.sampling.bias = bias, opt.sampling.n_bias = 2;
            opt.sampling.seed = 4;
            opt.stops = stops, opt.n_stops = 2;
            opt.n_predict = 150;
            opt.draft_max = turn < 2 ? 5 : TD_DRAFT_AUTO;
            opt.ignore_eos = true;
            opt.on_text = ignore;
            n_allocations = 0;
            assert_int_equal(td_generate(s, prompt, 20, &opt, &st, &err), TD_OK);
            assert_int_equal(st.decode_tokens, 150);
            if (turn < 2) assert_true(st.drafted > st.accepted);
            if (turn % 2) assert_int_equal(n_allocations, 0);
        }
    td_session_close(&s);
    td_model_close(&drafter);
    td_model_close(&verifier);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(second_call_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
