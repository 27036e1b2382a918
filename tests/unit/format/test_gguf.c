/* One GGUF file in memory: what a good one gives back, and a table of broken ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gguf_make.h"

/* Offsets of the tensors' data from its start. */
enum { AT_F32 = 0, AT_Q4 = 32, AT_LAST = 96, DATA_BYTES = 96 + 3 * 2 };

/* A file with a value of every type, arrays and three tensors. `version` is 2 or 3. */
static td_buf good_file(uint32_t version) {
    td_buf b = {0};
    make_header(&b, version, 3, 20);
    make_key_string(&b, "general.architecture", "llama");
    make_key_int(&b, "v.u8", GGUF_U8, 0xff);
    make_key_int(&b, "v.i8", GGUF_I8, 0xff);
    make_key_int(&b, "v.u16", GGUF_U16, 0xfffe);
    make_key_int(&b, "v.i16", GGUF_I16, 0xfffe);
    make_key_int(&b, "v.u32", GGUF_U32, 0xfffffffd);
    make_key_int(&b, "v.i32", GGUF_I32, 0xfffffffd);
    make_key_int(&b, "v.u64", GGUF_U64, UINT64_MAX);
    make_key_int(&b, "v.i64", GGUF_I64, (uint64_t)INT64_MIN);
    make_key_f32(&b, "v.f32", 0.1f);
    make_key_f64(&b, "v.f64", 1e300);
    make_key_int(&b, "v.bool", GGUF_BOOL, 1);
    make_key(&b, "v.bytes", GGUF_STRING);
    make_int(&b, 4, 8);
    td_buf_append(&b, "a\0\xff\n", 4);
    make_key_string(&b, "v.empty", "");
    make_key_array(&b, "a.words", GGUF_STRING, 3);
    make_string(&b, "one");
    make_string(&b, "");
    make_string(&b, "three");
    make_key_array(&b, "a.i16", GGUF_I16, 2);
    make_int(&b, 0x1234, 2);
    make_int(&b, 0xffff, 2);
    make_key_array(&b, "a.flags", GGUF_BOOL, 2);
    make_int(&b, 1, 1);
    make_int(&b, 0, 1);
    make_key_array(&b, "a.none", GGUF_F64, 0);
    make_key_array(&b, "a.nowords", GGUF_STRING, 0);
    make_key_int(&b, "general.alignment", GGUF_U32, 16);
    make_tensor(&b, "t.f32", 2, (uint64_t[]){4, 2}, TD_TYPE_F32, AT_F32);
    make_tensor(&b, "t.q4", 1, (uint64_t[]){64}, TD_TYPE_Q4_0, AT_Q4);
    make_tensor(&b, "t.last", 4, (uint64_t[]){1, 1, 3, 1}, TD_TYPE_F16, AT_LAST);
    make_pad(&b, 16);
    make_fill(&b, DATA_BYTES, 5);
    assert_false(b.failed);
    return b;
}

/* Memory of exactly n bytes on its own, so that a sanitizer sees the first byte read past the end.
 */
static td_code open_exactly(gguf_file **f, const void *data, size_t n, void **copy, td_error *err) {
    *copy = malloc(n ? n : 1);
    assert_non_null(*copy);
    if (n) memcpy(*copy, data, n);
    memset(err, 0, sizeof *err);
    *f = NULL;
    return gguf_open_memory(f, *copy, n, "mem", err);
}

static bool same_text(const gguf_string *s, const char *want, size_t n) {
    return s->len == n && !memcmp(s->data, want, n);
}

static void reads_every_value(void **state) {
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        td_buf b = good_file(version);
        gguf_file *f;
        td_error err;
        void *copy;
        assert_int_equal(open_exactly(&f, b.data, b.len, &copy, &err), TD_OK);
        assert_int_equal(gguf_version(f), version);
        assert_int_equal(gguf_size_bytes(f), b.len);
        assert_string_equal(gguf_path(f), "mem");
        assert_int_equal(gguf_n_values(f), 20);
        assert_string_equal(gguf_value_at(f, 0)->key, "general.architecture");
        assert_null(gguf_value_at(f, 20));
        assert_null(gguf_find(f, "v.u"));
        assert_null(gguf_find(f, ""));

        assert_true(gguf_find(f, "v.u8")->u == 255);
        assert_true(gguf_find(f, "v.i8")->i == -1);
        assert_true(gguf_find(f, "v.u16")->u == 0xfffe);
        assert_true(gguf_find(f, "v.i16")->i == -2);
        assert_true(gguf_find(f, "v.u32")->u == 0xfffffffd);
        assert_true(gguf_find(f, "v.i32")->i == -3);
        assert_true(gguf_find(f, "v.u64")->u == UINT64_MAX);
        assert_true(gguf_find(f, "v.i64")->i == INT64_MIN);
        assert_true(gguf_find(f, "v.f32")->f == (double)0.1f);
        assert_true(gguf_find(f, "v.f64")->f == 1e300);
        assert_true(gguf_find(f, "v.bool")->u == 1);
        assert_true(same_text(&gguf_find(f, "v.bytes")->str, "a\0\xff\n", 4));
        assert_true(same_text(&gguf_find(f, "v.empty")->str, "", 0));

        const gguf_value *v = gguf_find(f, "a.words");
        assert_int_equal(v->type, GGUF_ARRAY);
        assert_int_equal(v->arr.type, GGUF_STRING);
        assert_true(v->arr.n == 3 && !v->arr.data);
        assert_true(same_text(&v->arr.strs[0], "one", 3) && same_text(&v->arr.strs[1], "", 0) &&
                    same_text(&v->arr.strs[2], "three", 5));
        v = gguf_find(f, "a.i16");
        assert_true(v->arr.type == GGUF_I16 && v->arr.n == 2 && !v->arr.strs);
        assert_memory_equal(v->arr.data, "\x34\x12\xff\xff", 4);
        assert_true(gguf_find(f, "a.none")->arr.n == 0);
        assert_true(gguf_find(f, "a.nowords")->arr.n == 0);
        gguf_close(f);
        free(copy);
        td_buf_free(&b);
    }
}

static void reads_every_tensor(void **state) {
    (void)state;
    td_buf b = good_file(3);
    gguf_file *f;
    td_error err;
    void *copy;
    assert_int_equal(open_exactly(&f, b.data, b.len, &copy, &err), TD_OK);
    const char *data = (const char *)copy + b.len - DATA_BYTES;
    assert_int_equal(gguf_n_tensors(f), 3);
    assert_null(gguf_tensor_at(f, 3));
    assert_null(gguf_find_tensor(f, "t"));
    const gguf_tensor *t = gguf_find_tensor(f, "t.f32");
    assert_ptr_equal(t, gguf_tensor_at(f, 0));
    assert_true(t->n_dims == 2 && t->dims[0] == 4 && t->dims[1] == 2 && t->dims[2] == 1 &&
                t->dims[3] == 1);
    assert_int_equal(t->type, TD_TYPE_F32);
    assert_int_equal(t->size_bytes, 32);
    assert_ptr_equal(t->data, data + AT_F32);
    t = gguf_find_tensor(f, "t.q4");
    assert_int_equal(t->size_bytes, 36);
    assert_ptr_equal(t->data, data + AT_Q4);
    t = gguf_find_tensor(f, "t.last");
    assert_true(t->n_dims == 4 && t->dims[2] == 3 && t->size_bytes == 6);
    assert_ptr_equal(t->data, data + AT_LAST);
    gguf_release(f, t->data, t->size_bytes); /* borrowed memory: nothing to do */
    gguf_close(f);
    free(copy);
    td_buf_free(&b);
}

static void typed_reads_check_type_and_range(void **state) {
    (void)state;
    td_buf b = good_file(3);
    gguf_file *f;
    td_error err;
    void *copy;
    assert_int_equal(open_exactly(&f, b.data, b.len, &copy, &err), TD_OK);
    int64_t i = 0;
    double x = 0;
    bool flag = false;
    const char *s = NULL;

    assert_int_equal(gguf_get_int(f, "absent", 0, 10, -7, &i, &err), TD_OK);
    assert_true(i == -7); /* a fallback may lie outside the range */
    assert_int_equal(gguf_get_int(f, "v.u8", 0, 255, 0, &i, &err), TD_OK);
    assert_true(i == 255);
    assert_int_equal(gguf_get_int(f, "v.i16", -2, -2, 0, &i, &err), TD_OK);
    assert_true(i == -2);
    assert_int_equal(gguf_get_int(f, "v.i64", INT64_MIN, INT64_MAX, 0, &i, &err), TD_OK);
    assert_true(i == INT64_MIN);
    i = 42;
    assert_int_equal(gguf_get_int(f, "v.u8", 0, 254, 0, &i, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.msg, "mem: key 'v.u8' is 255, but 0 to 254 is valid"));
    assert_int_equal(gguf_get_int(f, "v.u64", INT64_MIN, INT64_MAX, 0, &i, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.msg, "18446744073709551615"));
    assert_int_equal(gguf_get_int(f, "v.f32", 0, 1, 0, &i, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.msg, "key 'v.f32' is of type F32, but an integer is expected"));
    assert_int_equal(gguf_get_int(f, "v.bool", 0, 1, 0, &i, &err), TD_E_FORMAT);
    assert_int_equal(gguf_get_int(f, "a.i16", 0, 1, 0, &i, NULL), TD_E_FORMAT);
    assert_true(i == 42); /* written on success only */

    assert_int_equal(gguf_get_float(f, "absent", 2.5, &x, &err), TD_OK);
    assert_true(x == 2.5);
    assert_int_equal(gguf_get_float(f, "v.f32", 0, &x, &err), TD_OK);
    assert_true(x == (double)0.1f);
    assert_int_equal(gguf_get_float(f, "v.i32", 0, &x, &err), TD_OK);
    assert_true(x == -3);
    assert_int_equal(gguf_get_float(f, "v.u64", 0, &x, &err), TD_OK);
    assert_true(x == 0x1p64);
    assert_int_equal(gguf_get_float(f, "v.empty", 0, &x, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.msg, "STRING, but a number"));

    assert_int_equal(gguf_get_bool(f, "v.bool", false, &flag, &err), TD_OK);
    assert_true(flag);
    assert_int_equal(gguf_get_bool(f, "absent", false, &flag, &err), TD_OK);
    assert_false(flag);
    assert_int_equal(gguf_get_bool(f, "v.u8", false, &flag, &err), TD_E_FORMAT);

    assert_int_equal(gguf_get_string(f, "general.architecture", &s, &err), TD_OK);
    assert_string_equal(s, "llama");
    assert_int_equal(gguf_get_string(f, "v.empty", &s, &err), TD_OK);
    assert_string_equal(s, "");
    assert_int_equal(gguf_get_string(f, "absent", &s, &err), TD_OK);
    assert_null(s);
    assert_int_equal(gguf_get_string(f, "v.bytes", &s, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.msg, "'v.bytes' holds a NUL"));
    assert_int_equal(gguf_get_string(f, "v.u8", &s, &err), TD_E_FORMAT);
    gguf_close(f);
    free(copy);
    td_buf_free(&b);
}

static void a_float_that_is_not_finite_is_refused(void **state) {
    (void)state;
    const float values[] = {__builtin_inff(), -__builtin_inff(), __builtin_nanf("")};
    for (int k = 0; k < 3; k++) {
        td_buf b = {0};
        make_header(&b, 3, 0, 1);
        make_key_f32(&b, "x", values[k]);
        gguf_file *f;
        td_error err;
        void *copy;
        double x = 1;
        assert_int_equal(open_exactly(&f, b.data, b.len, &copy, &err), TD_OK);
        assert_int_equal(gguf_get_float(f, "x", 0, &x, &err), TD_E_FORMAT);
        assert_non_null(strstr(err.msg, "finite"));
        assert_true(x == 1);
        gguf_close(f);
        free(copy);
        td_buf_free(&b);
    }
}

/* ---- broken files: the good one with some bytes replaced ---- */

#define U32(v) (const unsigned char[]){(v)&255, (v) >> 8 & 255, (v) >> 16 & 255, (v) >> 24 & 255}, 4
#define U64_OF(lo, hi)                                                                             \
    (const unsigned char[]){(lo)&255, (lo) >> 8 & 255, (lo) >> 16 & 255, (lo) >> 24 & 255,         \
                            (hi)&255, (hi) >> 8 & 255, (hi) >> 16 & 255, (hi) >> 24 & 255},        \
        8
#define RAW(s) (const unsigned char *)(s), sizeof(s) - 1

typedef struct broken {
    const char *after; /* the bytes are replaced `skip` bytes behind this text */
    int skip;
    const unsigned char *bytes;
    size_t n_bytes;
    td_code code;
    const char *say, *say_too; /* the message holds both */
} broken;

static const broken broken_files[] = {
    /* header */
    {"", 0, RAW("GGUX"), TD_E_FORMAT, "not a GGUF file", "mem: "},
    {"", 0, RAW("lmgg"), TD_E_FORMAT, "not a GGUF file", "old ggml"},
    {"", 0, RAW("PK\3\4"), TD_E_FORMAT, "not a GGUF file", "zip"},
    {"", 0, RAW("<!DO"), TD_E_FORMAT, "not a GGUF file", "web page"},
    {"", 0, RAW("version https://git-lfs"), TD_E_FORMAT, "not a GGUF file", "Git LFS"},
    {"", 0, RAW("\x10\0\0\0\0\0\0\0{\""), TD_E_FORMAT, "not a GGUF file", "safetensors"},
    {"GGUF", 0, U32(0u), TD_E_UNSUPPORTED, "big-endian", "0x00000000"},
    {"GGUF", 0, U32(0x03000000u), TD_E_UNSUPPORTED, "big-endian", "0x03000000"},
    {"GGUF", 0, U32(1u), TD_E_UNSUPPORTED, "GGUF version 1", "convert"},
    {"GGUF", 0, U32(4u), TD_E_UNSUPPORTED, "GGUF version 4", "2 and 3"},
    {"GGUF", 4, U64_OF(0u, 0x10000000u), TD_E_FORMAT, "1152921504606846976 tensors", "can hold"},
    {"GGUF", 4, U64_OF(1000u, 0u), TD_E_FORMAT, "1000 tensors", "can hold"},
    {"GGUF", 12, U64_OF(~0u, ~0u), TD_E_FORMAT, "18446744073709551615 keys", "can hold"},
    {"GGUF", 12, U64_OF(1000u, 0u), TD_E_FORMAT, "1000 keys", "can hold"},
    {"GGUF", 12, U64_OF(21u, 0u), TD_E_FORMAT, "tensor 1 of 3", "past the end"},
    {"GGUF", 4, U64_OF(4u, 0u), TD_E_FORMAT, "tensor 4 of 4", "name"},
    /* keys */
    {"general.architecture", -28, U64_OF(0u, 0u), TD_E_FORMAT, "key 1 of 20", "empty"},
    {"general.architecture", -28, U64_OF(~0u, ~0u), TD_E_FORMAT, "key 1 of 20",
     "length 18446744073709551615 at offset 24"},
    {"general.architecture", -28, U64_OF(1u << 20, 0u), TD_E_FORMAT, "key 1 of 20", "past the end"},
    {"general.architecture", -3, RAW("\0"), TD_E_FORMAT, "architect\\x00re", "NUL"},
    {"general.architecture", 0, U32(13u), TD_E_FORMAT, "'general.architecture'",
     "unknown value type 13"},
    {"general.architecture", 0, U32(~0u), TD_E_FORMAT, "'general.architecture'", "4294967295"},
    {"general.architecture", 4, U64_OF(~0u, 0x7fffffffu), TD_E_FORMAT, "'general.architecture'",
     "past the end"},
    {"v.u16", -2, RAW("32"), TD_E_FORMAT, "'v.u32' is there already", "key 6 of 20"},
    {"v.bool", 4, RAW("\2"), TD_E_FORMAT, "'v.bool'", "BOOL is 2"},
    /* arrays: item type at 4, count at 8, items at 16 */
    {"a.flags", 16, RAW("\1\7"), TD_E_FORMAT, "'a.flags'", "BOOL is 7"},
    {"a.i16", 4, U32(99u), TD_E_FORMAT, "'a.i16'", "unknown type 99"},
    {"a.i16", 4, U32(9u), TD_E_UNSUPPORTED, "'a.i16'", "array of arrays"},
    {"a.i16", 8, U64_OF(~0u, ~0u), TD_E_FORMAT, "'a.i16'", "18446744073709551615 items"},
    {"a.i16", 8, U64_OF(1u, 0x80000000u), TD_E_FORMAT, "'a.i16'",
     "9223372036854775809 items of type I16"},
    {"a.words", 8, U64_OF(~0u, 0x1fffffffu), TD_E_FORMAT, "'a.words'", "of type STRING"},
    {"a.words", 8, U64_OF(40u, 0u), TD_E_FORMAT, "'a.words'", "a string of the array"},
    {"a.words", 16, U64_OF(~0u, ~0u), TD_E_FORMAT, "'a.words'", "a string of the array"},
    /* alignment */
    {"general.alignment", 4, U32(0u), TD_E_FORMAT, "general.alignment", "is 0"},
    {"general.alignment", 4, U32(4u), TD_E_FORMAT, "general.alignment", "is 4"},
    {"general.alignment", 4, U32(12u), TD_E_FORMAT, "general.alignment", "multiples of 8"},
    {"general.alignment", 4, U32(1u << 31), TD_E_FORMAT, "general.alignment", "2147483648"},
    {"general.alignment", 0, U32(GGUF_F32), TD_E_FORMAT, "general.alignment", "F32"},
    {"general.alignment", 4, U32(64u), TD_E_FORMAT, "'t.q4'", "no multiple of the alignment 64"},
    /* tensors: n_dims at 0, dims at 4, then type and offset */
    {"t.f32", 0, U32(0u), TD_E_FORMAT, "'t.f32'", "0 dimensions"},
    {"t.f32", 0, U32(5u), TD_E_FORMAT, "'t.f32'", "5 dimensions"},
    {"t.f32", 0, U32(~0u), TD_E_FORMAT, "'t.f32'", "4294967295 dimensions"},
    {"t.f32", 12, U64_OF(0u, 0u), TD_E_FORMAT, "'t.f32'", "dimension 1 is 0"},
    {"t.f32", 4, U64_OF(0u, 0x40000000u), TD_E_FORMAT, "'t.f32'", "larger than any memory"},
    {"t.f32", 12, U64_OF(0u, 0x40000000u), TD_E_FORMAT, "'t.f32'", "larger than any memory"},
    {"t.f32", 12, U64_OF(0u, 0x00800000u), TD_E_FORMAT, "'t.f32'", "truncated"},
    {"t.f32", 20, U32(16u), TD_E_UNSUPPORTED, "'t.f32'", "type 16, IQ2_XXS"},
    {"t.f32", 20, U32(34u), TD_E_UNSUPPORTED, "'t.f32'", "type 34, TQ1_0"},
    {"t.f32", 20, U32(39u), TD_E_UNSUPPORTED, "'t.f32'", "type 39, MXFP4"},
    {"t.f32", 20, U32(4u), TD_E_UNSUPPORTED, "'t.f32'", "type 4, Q4_2 (withdrawn)"},
    {"t.f32", 20, U32(1000u), TD_E_UNSUPPORTED, "'t.f32'", "type 1000 is not supported"},
    {"t.f32", 20, U32(~0u), TD_E_UNSUPPORTED, "'t.f32'", "type 4294967295"},
    {"t.f32", 20, U32(TD_TYPE_Q4_0), TD_E_FORMAT, "'t.f32'", "rows of 4 values"},
    {"t.q4", 12, U32(TD_TYPE_Q4_K), TD_E_FORMAT, "'t.q4'", "Q4_K's block of 256"},
    {"t.f32", 24, U64_OF(8u, 0u), TD_E_FORMAT, "'t.f32'", "its offset 8 is no multiple"},
    {"t.f32", 24, U64_OF(0xfffffff0u, ~0u), TD_E_FORMAT, "'t.f32'", "offset 18446744073709551600"},
    {"t.f32", 24, U64_OF(0u, 1u), TD_E_FORMAT, "truncated", "lacks 32 of its 32 bytes"},
    {"t.f32", 24, U64_OF(AT_LAST, 0u), TD_E_FORMAT, "truncated: tensor 1 of 3 ('t.f32')",
     "lacks 26 of its 32 bytes; 1 of 3"},
    {"t.q4", 4, U64_OF(128u, 0u), TD_E_FORMAT, "truncated: tensor 2 of 3 ('t.q4')",
     "lacks 2 of its 72 bytes"},
    {"t.q4", -12, U64_OF(0u, 0u), TD_E_FORMAT, "tensor 2 of 3", "empty"},
    {"t.q4", -1, RAW("\0"), TD_E_FORMAT, "tensor 2 of 3 ('t.q\\x00')", "NUL"},
    {"t.last", -14, U64_OF(~0u, ~0u), TD_E_FORMAT, "tensor 3 of 3", "past the end"},
};

static void one_clean_line(const char *msg) {
    assert_true(*msg);
    for (; *msg; msg++)
        assert_true((unsigned char)*msg >= 0x20 && (unsigned char)*msg < 0x7f);
}

static void broken_files_are_refused_with_the_place(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof broken_files / sizeof *broken_files; i++) {
        const broken *k = &broken_files[i];
        td_buf b = good_file(3);
        char *at = memmem(b.data, b.len, k->after, strlen(k->after));
        assert_non_null(at);
        memcpy(at + strlen(k->after) + k->skip, k->bytes, k->n_bytes);
        gguf_file *f;
        td_error err;
        void *copy;
        const td_code rc = open_exactly(&f, b.data, b.len, &copy, &err);
        if (rc != k->code || err.code != k->code || !strstr(err.msg, k->say) ||
            !strstr(err.msg, k->say_too) || strncmp(err.msg, "mem: ", 5))
            fail_msg(
                "case %zu (after '%s' + %d): code %d, want %d; message \"%s\" lacks '%s' or '%s'",
                i, k->after, k->skip, rc, k->code, err.msg, k->say, k->say_too);
        one_clean_line(err.msg);
        assert_null(f);
        assert_int_equal(gguf_open_memory(&f, copy, b.len, "mem", NULL), k->code);
        free(copy);
        td_buf_free(&b);
    }
}

/* Where the data starts plus the offset still fits 64 bits, plus the tensor's size it does not. */
static void a_range_that_wraps_is_refused(void **state) {
    (void)state;
    td_buf b = good_file(3);
    const uint64_t offset = (uint64_t)0 - 16 - (b.len - DATA_BYTES);
    char *at = memmem(b.data, b.len, "t.f32", 5);
    assert_non_null(at);
    for (int i = 0; i < 8; i++)
        at[5 + 24 + i] = (char)(offset >> (8 * i));
    gguf_file *f;
    td_error err;
    void *copy;
    assert_int_equal(open_exactly(&f, b.data, b.len, &copy, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.msg, "'t.f32'"));
    assert_non_null(strstr(err.msg, "past any file's end"));
    free(copy);
    td_buf_free(&b);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    td_buf b = good_file(2);
    for (size_t n = 0; n < b.len; n++) {
        gguf_file *f;
        td_error err;
        void *copy;
        assert_int_equal(open_exactly(&f, b.data, n, &copy, &err), TD_E_FORMAT);
        one_clean_line(err.msg);
        if (n >= b.len - DATA_BYTES) {
            char want[64];
            snprintf(want, sizeof want, "should have %zu bytes but has %zu (%zu missing)", b.len, n,
                     b.len - n);
            assert_non_null(strstr(err.msg, want));
        }
        free(copy);
    }
    td_buf_free(&b);
}

static void no_changed_byte_harms(void **state) {
    (void)state;
    td_buf b = good_file(3);
    int n_opened = 0, n_refused = 0;
    for (size_t i = 0; i < b.len - DATA_BYTES; i++)
        for (int flip = 1; flip < 256; flip += 42) {
            gguf_file *f;
            td_error err;
            void *copy;
            b.data[i] ^= (char)flip;
            const td_code rc = open_exactly(&f, b.data, b.len, &copy, &err);
            b.data[i] ^= (char)flip;
            if (rc) one_clean_line(err.msg);
            rc ? n_refused++ : n_opened++;
            gguf_close(f);
            free(copy);
        }
    assert_true(n_opened > 100 && n_refused > 100);
    td_buf_free(&b);
}

static void long_and_strange_names_stay_one_short_line(void **state) {
    (void)state;
    for (int long_key = 0; long_key < 2; long_key++) {
        td_buf b = {0};
        make_header(&b, 3, 0, 2);
        char name[70000];
        memset(name, long_key ? 'k' : '\n', sizeof name);
        name[long_key ? 69999 : 300] = 0;
        make_key_int(&b, name, GGUF_U8, 1);
        make_key_int(&b, name, GGUF_U8, 1);
        gguf_file *f;
        td_error err;
        void *copy;
        assert_int_equal(open_exactly(&f, b.data, b.len, &copy, &err), TD_E_FORMAT);
        one_clean_line(err.msg);
        assert_true(strlen(err.msg) < 300);
        assert_non_null(strstr(err.msg, long_key ? "at most 65535" : "there already"));
        assert_int_equal(gguf_open_memory(&f, copy, 10, "a\nb", &err), TD_E_FORMAT);
        assert_int_equal(strncmp(err.msg, "a?b: ", 5), 0);
        free(copy);
        td_buf_free(&b);
    }
}

static void a_file_of_metadata_alone_opens(void **state) {
    (void)state;
    td_buf b = {0};
    make_header(&b, 3, 0, 0);
    gguf_file *f;
    td_error err;
    void *copy;
    assert_int_equal(open_exactly(&f, b.data, b.len, &copy, &err), TD_OK);
    assert_int_equal(gguf_n_values(f), 0);
    assert_int_equal(gguf_n_tensors(f), 0);
    assert_null(gguf_find(f, "x"));
    assert_null(gguf_find_tensor(f, "x"));
    gguf_close(f);
    gguf_close(NULL);
    free(copy);
    td_buf_free(&b);
}

/* Enough names for the table to fill up and its slots to run into each other. */
static void finds_each_of_many_names(void **state) {
    (void)state;
    enum { N = 3000 };
    td_buf b = {0};
    char name[32];
    make_header(&b, 3, N, N);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "key.%d", i);
        make_key_int(&b, name, GGUF_U32, (uint64_t)i);
    }
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "blk.%d", i);
        make_tensor(&b, name, 1, (uint64_t[]){(uint64_t)i + 1}, TD_TYPE_F32, 0);
    }
    make_pad(&b, 32);
    make_fill(&b, 4 * N, 1);
    gguf_file *f;
    td_error err;
    void *copy;
    assert_int_equal(open_exactly(&f, b.data, b.len, &copy, &err), TD_OK);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "key.%d", i);
        assert_true(gguf_find(f, name)->u == (uint64_t)i);
        snprintf(name, sizeof name, "blk.%d", i);
        assert_ptr_equal(gguf_find_tensor(f, name), gguf_tensor_at(f, (size_t)i));
        snprintf(name, sizeof name, "key.%d", i + N);
        assert_null(gguf_find(f, name));
    }
    gguf_close(f);
    free(copy);
    td_buf_free(&b);
}

static void one_part_in_memory_is_refused(void **state) {
    (void)state;
    td_buf b = {0};
    make_header(&b, 3, 0, 1);
    make_key_int(&b, "split.count", GGUF_U16, 2);
    gguf_file *f;
    td_error err;
    void *copy;
    assert_int_equal(open_exactly(&f, b.data, b.len, &copy, &err), TD_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "one of 2 parts"));
    free(copy);
    td_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_value),
        cmocka_unit_test(reads_every_tensor),
        cmocka_unit_test(typed_reads_check_type_and_range),
        cmocka_unit_test(a_float_that_is_not_finite_is_refused),
        cmocka_unit_test(broken_files_are_refused_with_the_place),
        cmocka_unit_test(a_range_that_wraps_is_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(no_changed_byte_harms),
        cmocka_unit_test(long_and_strange_names_stay_one_short_line),
        cmocka_unit_test(a_file_of_metadata_alone_opens),
        cmocka_unit_test(finds_each_of_many_names),
        cmocka_unit_test(one_part_in_memory_is_refused),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
