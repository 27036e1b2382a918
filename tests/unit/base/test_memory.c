/* Checked sizes, growth, large mappings, the buffer, and what the machine says of its memory. */
#include "base/base.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { MIB = 1 << 20 };

static void sizes_are_checked(void **state) {
    (void)state;
    size_t x = 7;
    assert_true(td_mul(&x, 6, 7) && x == 42);
    assert_true(td_mul(&x, 0, SIZE_MAX) && x == 0);
    assert_true(td_mul(&x, SIZE_MAX, 1) && x == SIZE_MAX);
    assert_false(td_mul(&x, SIZE_MAX / 2 + 1, 2));
    assert_false(td_mul(&x, (size_t)1 << 32, (size_t)1 << 32));
    assert_true(td_add(&x, SIZE_MAX - 1, 1) && x == SIZE_MAX);
    assert_false(td_add(&x, SIZE_MAX, 1));
    assert_false(td_add(&x, SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 1));
}

static void calloc_zeroes_and_refuses(void **state) {
    (void)state;
    int *p = td_calloc(1000, sizeof *p);
    assert_non_null(p);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(p[i], 0);
    free(p);
    p = td_calloc(0, 0); /* nothing asked for is not an error */
    assert_non_null(p);
    free(p);
    assert_null(td_calloc(SIZE_MAX / 2 + 1, 2));
    assert_null(td_calloc(SIZE_MAX, SIZE_MAX));
}

static void grow_keeps_contents(void **state) {
    (void)state;
    uint32_t *p = NULL;
    size_t n = 0;
    for (uint32_t i = 0; i < 10000; i++) {
        assert_true(td_grow(&p, &n, i + 1, sizeof *p));
        assert_true(n > i);
        p[i] = i * 3;
    }
    assert_true(n < 20000 + 16); /* doubles, does not run away */
    for (uint32_t i = 0; i < 10000; i++)
        assert_int_equal(p[i], i * 3);

    uint32_t *const was = p;
    const size_t n_was = n;
    assert_false(td_grow(&p, &n, SIZE_MAX, sizeof *p));
    assert_false(td_grow(&p, &n, SIZE_MAX / 2 + 2, sizeof *p));
    assert_false(td_grow(&p, &n, SIZE_MAX / sizeof *p, sizeof *p));
    assert_true(p == was && n == n_was && p[9999] == 29997);
    free(p);
}

/* First number of /proc/self/statm: pages of address space. */
static long address_pages(void) {
    long v = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &v), 1);
    fclose(f);
    return v;
}

static void map_is_aligned_zeroed_and_returned(void **state) {
    (void)state;
    const size_t sizes[] = {1, 4096, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB + 123};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t n = sizes[s];
        unsigned char *p = td_map(n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % (2 * MIB), 0);
        assert_int_equal(p[0] | p[n / 2] | p[n - 1], 0);
        memset(p, 0xab, n);
        td_unmap(p, n);
        unsigned char residency;
        errno = 0;
        assert_int_equal(mincore(p, 1, &residency), -1); /* nothing is mapped there any more */
        assert_int_equal(errno, ENOMEM);
    }
    const long before = address_pages();
    for (int i = 0; i < 200; i++) {
        const size_t n = (size_t)(i % 7) * MIB + 1;
        void *p = td_map(n);
        assert_non_null(p);
        td_unmap(p, n);
    }
    assert_true(address_pages() - before <
                64 * MIB / 4096); /* 200 leaks of 2 MiB would be 400 MiB */
    td_unmap(NULL, 100);
}

/* Once mapped nothing and returned a stray pointer. */
static void map_of_nothing_is_a_mapping(void **state) {
    (void)state;
    unsigned char *p = td_map(0), residency;
    assert_non_null(p);
    assert_int_equal(mincore(p, 1, &residency), 0);
    td_unmap(p, 0);
    assert_int_equal(mincore(p, 1, &residency), -1);
}

static void map_refuses_the_absurd(void **state) {
    (void)state;
    assert_null(td_map(SIZE_MAX));
    assert_null(td_map(SIZE_MAX - 4 * MIB));
    assert_null(td_map(SIZE_MAX / 2));
}

static void buffer_appends(void **state) {
    (void)state;
    td_buf b = {0};
    td_buf_append(&b, NULL, 0);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    td_buf_append(&b, "a\0b", 3);
    assert_int_equal(b.len, 3);
    assert_memory_equal(b.data, "a\0b", 4); /* and the closing NUL */
    td_buf_printf(&b, "%s=%d", "x", 5);
    assert_memory_equal(b.data, "a\0bx=5", 7);
    td_buf_free(&b);
    assert_true(!b.data && !b.len && !b.cap && !b.failed);

    char text[1000];
    memset(text, 't', sizeof text);
    for (size_t n = 250; n < 262; n++) { /* around the size printed without an allocation */
        text[n] = 0;
        td_buf_printf(&b, "<%s>", text);
        assert_int_equal(b.len, n + 2);
        assert_int_equal(strlen(b.data), n + 2);
        assert_int_equal(b.data[n + 1], '>');
        td_buf_free(&b);
        text[n] = 't';
    }
    for (int i = 0; i < 5000; i++)
        td_buf_printf(&b, "%04d,", i);
    assert_int_equal(b.len, 25000);
    assert_memory_equal(b.data + 4999 * 5, "4999,", 6);
    assert_false(b.failed);
    td_buf_free(&b);
}

static void failed_buffer_keeps_what_was_there(void **state) {
    (void)state;
    td_buf b = {0};
    td_buf_append(&b, "kept", 4);
    td_buf_append(&b, "", SIZE_MAX - 4); /* refused by the sum, before a byte is read */
    assert_true(b.failed);
    td_buf_append(&b, "more", 4);
    td_buf_printf(&b, "more");
    assert_int_equal(b.len, 4);
    assert_string_equal(b.data, "kept");
    td_buf_free(&b);
}

static void available_memory_is_sane(void **state) {
    (void)state;
    assert_true(td_memory_available() > 16 * MIB);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(calloc_zeroes_and_refuses),
        cmocka_unit_test(grow_keeps_contents),
        cmocka_unit_test(map_is_aligned_zeroed_and_returned),
        cmocka_unit_test(map_of_nothing_is_a_mapping),
        cmocka_unit_test(map_refuses_the_absurd),
        cmocka_unit_test(buffer_appends),
        cmocka_unit_test(failed_buffer_keeps_what_was_there),
        cmocka_unit_test(available_memory_is_sane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
