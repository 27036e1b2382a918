/* Errors keep their code, are cut at the buffer, and take context in front. */
#include "base/base.h"

#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

static void writes_code_and_words(void **state) {
    (void)state;
    td_error err;
    memset(&err, 'x', sizeof err);
    assert_int_equal(td_fail(&err, TD_E_FORMAT, "%s: %d dimensions", "a.gguf", 9), TD_E_FORMAT);
    assert_int_equal(err.code, TD_E_FORMAT);
    assert_string_equal(err.msg, "a.gguf: 9 dimensions");
    assert_int_equal(td_fail(NULL, TD_E_IO, "unread %d", 1), TD_E_IO);
}

static void cuts_at_the_buffer(void **state) {
    (void)state;
    struct {
        td_error err;
        char guard[64];
    } s;
    memset(&s, '#', sizeof s);
    char name[2000];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    td_fail(&s.err, TD_E_IO, "%s", name);
    assert_int_equal(strlen(s.err.msg), sizeof s.err.msg - 1);
    assert_int_equal(s.err.msg[sizeof s.err.msg - 2], 'n');

    td_fail_context(&s.err, "%s", name); /* both too long: both still show */
    assert_true(strlen(s.err.msg) < sizeof s.err.msg);
    assert_non_null(strstr(s.err.msg, "nnn: nnn"));
    for (size_t i = 0; i < sizeof s.guard; i++)
        assert_int_equal(s.guard[i], '#');
}

static void context_goes_in_front(void **state) {
    (void)state;
    td_error err;
    td_fail(&err, TD_E_MEMORY, "out of memory");
    assert_int_equal(td_fail_context(&err, "model %s", "m.gguf"), TD_E_MEMORY);
    assert_int_equal(err.code, TD_E_MEMORY);
    assert_string_equal(err.msg, "model m.gguf: out of memory");
    td_fail_context(&err, "run");
    assert_string_equal(err.msg, "run: model m.gguf: out of memory");
    assert_int_not_equal(td_fail_context(NULL, "run"), TD_OK);
}

/* A file's name may hold anything: it is an argument, never the format. */
static void percent_signs_stay(void **state) {
    (void)state;
    td_error err;
    td_fail(&err, TD_E_IO, "%s", "100%s%n.gguf");
    td_fail_context(&err, "%s", "%d%n");
    assert_string_equal(err.msg, "%d%n: 100%s%n.gguf");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_code_and_words),
        cmocka_unit_test(cuts_at_the_buffer),
        cmocka_unit_test(context_goes_in_front),
        cmocka_unit_test(percent_signs_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
