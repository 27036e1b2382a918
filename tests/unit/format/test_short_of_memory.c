/* Opening a file when memory runs out at each allocation in turn: TD_E_MEMORY, nothing leaked (the
 * sanitizer build counts). The linker's --wrap puts these functions before libc's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gguf_make.h"

static long left = -1; /* allocations until one fails; -1: none does */

static bool refuse(void) {
    return left >= 0 && left-- == 0;
}

void *__real_td_calloc(size_t n, size_t size);
void *__wrap_td_calloc(size_t n, size_t size);
void *__wrap_td_calloc(size_t n, size_t size) {
    return refuse() ? NULL : __real_td_calloc(n, size);
}
bool __real_td_grow(void *ptr, size_t *n_have, size_t n_need, size_t item_bytes);
bool __wrap_td_grow(void *ptr, size_t *n_have, size_t n_need, size_t item_bytes);
bool __wrap_td_grow(void *ptr, size_t *n_have, size_t n_need, size_t item_bytes) {
    if (n_need > *n_have && refuse()) return false;
    return __real_td_grow(ptr, n_have, n_need, item_bytes);
}
char *__real_strdup(const char *s);
char *__wrap_strdup(const char *s);
char *__wrap_strdup(const char *s) {
    return refuse() ? NULL : __real_strdup(s);
}
char *__real_strndup(const char *s, size_t n);
char *__wrap_strndup(const char *s, size_t n);
char *__wrap_strndup(const char *s, size_t n) {
    return refuse() ? NULL : __real_strndup(s, n);
}

static td_buf file_of_part(int no, int count) {
    td_buf b = {0};
    char name[32];
    make_header(&b, 3, 20, 5);
    make_key_int(&b, "split.no", GGUF_U16, (uint64_t)no);
    make_key_int(&b, "split.count", GGUF_U16, (uint64_t)count);
    make_key_array(&b, "words", GGUF_STRING, 300); /* a chunk of its own */
    for (int i = 0; i < 300; i++)
        make_string(&b, "word");
    make_key_string(&b, "a", "b");
    make_key(&b, "long", GGUF_STRING);
    make_int(&b, 9000, 8);
    make_fill(&b, 9000, 3);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "t.%d.%d", no, i);
        make_tensor(&b, name, 1, (uint64_t[]){4}, TD_TYPE_F32, (uint64_t)i * 32);
    }
    make_pad(&b, 32);
    make_fill(&b, 20 * 32, 4);
    return b;
}

static void in_memory(void **state) {
    (void)state;
    td_buf b = file_of_part(0, 1);
    int n_failed = 0;
    for (long n = 0;; n++) {
        gguf_file *f = NULL;
        td_error err;
        left = n;
        const td_code rc = gguf_open_memory(&f, b.data, b.len, "mem", &err);
        left = -1;
        gguf_close(f);
        if (!rc) break;
        assert_int_equal(rc, TD_E_MEMORY);
        assert_non_null(strstr(err.msg, "out of memory"));
        n_failed++;
    }
    assert_true(n_failed >= 8);
    td_buf_free(&b);
}

static void in_parts(void **state) {
    (void)state;
    char dir[] = "/tmp/td-memory-XXXXXX", path[3][64];
    assert_non_null(mkdtemp(dir));
    for (int no = 0; no < 3; no++) {
        td_buf b = file_of_part(no, 3);
        snprintf(path[no], sizeof path[no], "%s/m-%05d-of-00003.gguf", dir, no + 1);
        FILE *out = fopen(path[no], "wb");
        assert_non_null(out);
        assert_int_equal(fwrite(b.data, 1, b.len, out), b.len);
        assert_int_equal(fclose(out), 0);
        td_buf_free(&b);
    }
    for (int given = 0; given < 3; given++) {
        int n_failed = 0;
        for (long n = 0;; n++) {
            gguf_file *f = NULL;
            td_error err;
            left = n;
            const td_code rc = gguf_open(&f, path[given], &err);
            left = -1;
            gguf_close(f);
            if (!rc) break;
            assert_int_equal(rc, TD_E_MEMORY);
            assert_non_null(strstr(err.msg, "out of memory"));
            n_failed++;
        }
        assert_true(n_failed >= 24);
    }
    for (int no = 0; no < 3; no++)
        unlink(path[no]);
    rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_memory),
        cmocka_unit_test(in_parts),
    };
    return cmocka_run_group_tests_name("short_of_memory", tests, NULL, NULL);
}
