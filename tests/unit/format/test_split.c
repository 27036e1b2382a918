/* gguf_open on real files: one file, split ones, and everything that a path may be instead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "gguf_make.h"

enum { N_PARTS = 3, TENSOR_BYTES = 128 };

typedef struct part_options {
    int no, count, n_total; /* -1: the key is left out */
    int first, n;           /* its tensors: "t.<first>" and so on */
    uint32_t version;
} part_options;

static char dir[64]; /* fresh for each test */

static const char *path_of(const char *name) {
    static char path[2][256]; /* two may be in use */
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void write_file(const char *name, const void *data, size_t n) {
    FILE *out = fopen(path_of(name), "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
}

static void write_part(const char *name, part_options o) {
    td_buf b = {0};
    char text[32];
    const int n_keys = (o.no >= 0) + (o.count >= 0) + (o.n_total >= 0);
    make_header(&b, o.version, (uint64_t)o.n, (uint64_t)n_keys + 1);
    snprintf(text, sizeof text, "part with t.%d", o.first);
    make_key_string(&b, "general.name", text);
    if (o.no >= 0) make_key_int(&b, "split.no", GGUF_U16, (uint64_t)o.no);
    if (o.count >= 0) make_key_int(&b, "split.count", GGUF_U16, (uint64_t)o.count);
    if (o.n_total >= 0) make_key_int(&b, "split.tensors.count", GGUF_I32, (uint64_t)o.n_total);
    for (int i = 0; i < o.n; i++) {
        snprintf(text, sizeof text, "t.%d", o.first + i);
        make_tensor(&b, text, 2, (uint64_t[]){16, 2}, TD_TYPE_F32, (uint64_t)i * TENSOR_BYTES);
    }
    make_pad(&b, 32);
    for (int i = 0; i < o.n; i++)
        make_fill(&b, TENSOR_BYTES, (uint32_t)(o.first + i));
    assert_false(b.failed);
    write_file(name, b.data, b.len);
    td_buf_free(&b);
}

static const char *const names[N_PARTS] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                           "m-00003-of-00003.gguf"};

/* Part 1 has no tensors, 2 has t.0 to t.3, 3 has t.4 to t.6. */
static part_options usual(int no) {
    static const int first[] = {0, 0, 4}, n[] = {0, 4, 3};
    return (part_options){no, N_PARTS, 7, first[no], n[no], 3};
}

static void write_usual(void) {
    for (int no = 0; no < N_PARTS; no++)
        write_part(names[no], usual(no));
}

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/td-split-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static void refused(const char *name, td_code code, const char *say, const char *say_too) {
    gguf_file *f = NULL;
    td_error err = {0};
    const td_code rc = gguf_open(&f, path_of(name), &err);
    if (rc != code || err.code != code || !strstr(err.msg, say) || !strstr(err.msg, say_too) ||
        strchr(err.msg, '\n'))
        fail_msg("%s: code %d, want %d; message \"%s\" lacks '%s' or '%s'", name, rc, code, err.msg,
                 say, say_too);
    assert_null(f);
    assert_int_equal(gguf_open(&f, path_of(name), NULL), code);
}

static void any_part_opens_all(void **state) {
    (void)state;
    write_usual();
    size_t n_bytes = 0;
    for (int no = 0; no < N_PARTS; no++) {
        struct stat st;
        assert_int_equal(stat(path_of(names[no]), &st), 0);
        n_bytes += (size_t)st.st_size;
    }
    for (int no = 0; no < N_PARTS; no++) {
        gguf_file *f = NULL;
        td_error err;
        assert_int_equal(gguf_open(&f, path_of(names[no]), &err), TD_OK);
        assert_string_equal(gguf_path(f), path_of(names[0]));
        assert_int_equal(gguf_size_bytes(f), n_bytes);
        assert_int_equal(gguf_n_tensors(f), 7);
        const char *title;
        assert_int_equal(gguf_get_string(f, "general.name", &title, &err), TD_OK);
        assert_string_equal(title, "part with t.0");
        for (int i = 0; i < 7; i++) {
            char name[16];
            snprintf(name, sizeof name, "t.%d", i);
            const gguf_tensor *t = gguf_find_tensor(f, name);
            assert_ptr_equal(t, gguf_tensor_at(f, (size_t)i));
            td_buf want = {0};
            make_fill(&want, TENSOR_BYTES, (uint32_t)i);
            assert_int_equal(t->size_bytes, TENSOR_BYTES);
            assert_memory_equal(t->data, want.data, TENSOR_BYTES);
            gguf_release(f, t->data, t->size_bytes);
            assert_memory_equal(t->data, want.data, TENSOR_BYTES);
            td_buf_free(&want);
        }
        gguf_close(f);
    }
}

static void released_pages_come_back(void **state) {
    (void)state;
    td_buf b = {0};
    enum { BIG = 1 << 20 };
    make_header(&b, 3, 1, 0);
    make_tensor(&b, "big", 1, (uint64_t[]){BIG / 2}, TD_TYPE_F16, 0);
    make_pad(&b, 32);
    const size_t start = b.len;
    make_fill(&b, BIG, 9);
    write_file("big.gguf", b.data, b.len);
    gguf_file *f = NULL;
    td_error err;
    assert_int_equal(gguf_open(&f, path_of("big.gguf"), &err), TD_OK);
    const gguf_tensor *t = gguf_find_tensor(f, "big");
    for (int turn = 0; turn < 2; turn++) {
        assert_memory_equal(t->data, b.data + start, BIG);
        gguf_release(f, t->data, t->size_bytes);
        gguf_release(f, (const char *)t->data + 5, 3);
        gguf_release(f, "elsewhere", 9);
    }
    gguf_close(f);
    td_buf_free(&b);
}

static void a_part_that_is_missing_is_named(void **state) {
    (void)state;
    write_usual();
    assert_int_equal(unlink(path_of(names[1])), 0);
    refused(names[0], TD_E_IO, "part 2 of 3", names[1]);
    refused(names[2], TD_E_IO, "part 2 of 3", names[1]);
    write_usual();
    assert_int_equal(unlink(path_of(names[0])), 0);
    refused(names[1], TD_E_IO, "part 1 of 3", names[0]);
    write_usual();
    assert_int_equal(unlink(path_of(names[2])), 0);
    refused(names[1], TD_E_IO, "part 3 of 3", names[2]);
}

static void parts_that_do_not_fit_are_refused(void **state) {
    (void)state;
    part_options o;

    write_usual();
    assert_int_equal(truncate(path_of(names[2]), 400), 0);
    refused(names[0], TD_E_FORMAT, "part 3 of 3", "truncated");

    write_usual();
    o = usual(2);
    o.no = 1;
    write_part(names[2], o);
    refused(names[0], TD_E_FORMAT, names[2], "split.no 1 and split.count 3 in it, but 2 and 3");

    o = usual(2);
    o.count = 4;
    write_part(names[2], o);
    refused(names[0], TD_E_FORMAT, names[2], "split.no 2 and split.count 4 in it, but 2 and 3");

    o = usual(2);
    o.count = o.no = -1;
    write_part(names[2], o);
    refused(names[1], TD_E_FORMAT, names[2], "split.no -1 and split.count -1");

    o = usual(2);
    o.n_total = 8;
    write_part(names[2], o);
    refused(names[0], TD_E_FORMAT, names[2], "split.tensors.count is 8, but 7");

    o = usual(2);
    o.n = 2;
    write_part(names[2], o);
    refused(names[0], TD_E_FORMAT, "hold 6 tensors", "split.tensors.count is 7");

    o = usual(2);
    o.first = 3;
    write_part(names[2], o);
    refused(names[1], TD_E_FORMAT, "tensor 't.3'", "two of its 3 parts");
}

static void names_and_keys_must_agree(void **state) {
    (void)state;
    write_usual();
    write_part("odd-name.gguf", usual(1));
    refused("odd-name.gguf", TD_E_FORMAT, "part 2 of 3", "-00002-of-00003.gguf");
    write_part("m-00001-of-00002.gguf", usual(1));
    refused("m-00001-of-00002.gguf", TD_E_FORMAT, "part 2 of 3", "rename");

    part_options o = usual(0);
    o.no = -1;
    write_part(names[0], o);
    refused(names[0], TD_E_FORMAT, "split.no must be 0 to 2", "absent");
    o.no = 3;
    write_part(names[0], o);
    refused(names[0], TD_E_FORMAT, "split.no must be 0 to 2", "larger");
}

static void one_file_of_one_part_opens(void **state) {
    (void)state;
    for (int count = -1; count <= 1; count++) { /* no key, 0, 1 */
        write_part("one.gguf", (part_options){count < 0 ? -1 : 0, count, -1, 0, 2, 2});
        gguf_file *f = NULL;
        td_error err;
        assert_int_equal(gguf_open(&f, path_of("one.gguf"), &err), TD_OK);
        assert_int_equal(gguf_n_tensors(f), 2);
        assert_int_equal(gguf_version(f), 2);
        gguf_close(f);
    }
    /* a name like a part's, but a whole model */
    write_part("x-00001-of-00002.gguf", (part_options){-1, -1, -1, 0, 2, 3});
    gguf_file *f = NULL;
    assert_int_equal(gguf_open(&f, path_of("x-00001-of-00002.gguf"), NULL), TD_OK);
    gguf_close(f);
}

static void what_is_no_model_file_is_refused(void **state) {
    (void)state;
    refused("absent.gguf", TD_E_IO, "absent.gguf", "No such file");
    assert_int_equal(mkdir(path_of("folder.gguf"), 0700), 0);
    refused("folder.gguf", TD_E_IO, "folder.gguf", "a directory");
    assert_int_equal(mkfifo(path_of("pipe.gguf"), 0600), 0);
    refused("pipe.gguf", TD_E_IO, "pipe.gguf", "pipe"); /* and must not hang */
    write_file("empty.gguf", "", 0);
    refused("empty.gguf", TD_E_FORMAT, "empty.gguf", "empty");
    write_file("text.gguf", "hello", 5);
    refused("text.gguf", TD_E_FORMAT, "text.gguf", "not a GGUF file");
    if (geteuid()) { /* root reads everything */
        write_file("locked.gguf", "GGUF", 4);
        assert_int_equal(chmod(path_of("locked.gguf"), 0), 0);
        refused("locked.gguf", TD_E_IO, "locked.gguf", "denied");
    }
}

static void a_long_path_keeps_its_end_in_the_message(void **state) {
    (void)state;
    char path[4000];
    memset(path, 'd', sizeof path);
    strcpy(path + 3000, "/the-model.gguf");
    gguf_file *f = NULL;
    td_error err;
    assert_int_equal(gguf_open(&f, path, &err), TD_E_IO);
    assert_non_null(strstr(err.msg, "/the-model.gguf: cannot open"));
    assert_true(strlen(err.msg) < 300);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_DIR(any_part_opens_all),
        IN_DIR(released_pages_come_back),
        IN_DIR(a_part_that_is_missing_is_named),
        IN_DIR(parts_that_do_not_fit_are_refused),
        IN_DIR(names_and_keys_must_agree),
        IN_DIR(one_file_of_one_part_opens),
        IN_DIR(what_is_no_model_file_is_refused),
        cmocka_unit_test(a_long_path_keeps_its_end_in_the_message),
    };
    return cmocka_run_group_tests_name("gguf_split", tests, NULL, NULL);
}
