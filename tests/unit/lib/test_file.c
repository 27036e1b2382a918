/* td_file: what inspect shows, for models and for files that are none. */
#include "lib_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "gguf_make.h"
#include "lib_make.h"

static void a_model(void **state) {
    (void)state;
    char path[64];
    td_file *f = NULL;
    td_error err = {0};
    write_model(path, &(tiny_params){.arch = "gemma3", .seed = 1, .n_layers = 4, .eos = 5});
    assert_int_equal(td_file_open(&f, path, &err), TD_OK);
    const td_file_info *i = td_file_get_info(f);
    assert_string_equal(i->path, path);
    assert_string_equal(i->arch, "gemma3");
    assert_string_equal(i->name, "tiny");
    assert_string_equal(i->tokenizer, "gpt2");
    assert_string_equal(i->tokenizer_pre, "default");
    assert_null(i->chat_template);
    assert_int_equal(i->gguf_version, 3);
    assert_int_equal(i->n_layers, 4);
    assert_int_equal(i->n_embd, 64);
    assert_int_equal(i->n_vocab, 48);
    assert_int_equal(i->n_ctx_train, 512);
    assert_int_equal(i->n_heads, 4);
    assert_int_equal(i->n_kv_heads, 2);
    assert_int_equal(i->head_dim, 16);
    assert_int_equal(i->n_ff, 96);
    assert_int_equal(i->window, 32);
    assert_int_equal(i->eos, 5);
    assert_int_equal(i->bos, -1);
    /* Of four layers, two have a window of 32; 2 heads of 16 + 16 halves. */
    assert_int_equal(i->kv_bytes_per_token_f16, 2 * 2 * 32 * 2);
    assert_int_equal(i->kv_bytes_window_f16, 2 * 2 * 32 * 2 * 32);
    const uint64_t a_layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96 + 4 * 64 + 2 * 16;
    assert_int_equal(i->n_params, 4 * a_layer + 2 * 64 * 48 + 64);
    assert_int_equal(i->n_tensors, td_file_n_tensors(f));
    assert_int_equal(i->n_tensors, 4 * 13 + 3);
    td_tensor_info t;
    td_file_get_tensor(f, 0, &t);
    assert_string_equal(t.name, "token_embd.weight");
    assert_string_equal(t.type, "Q8_0");
    assert_int_equal(t.n_dims, 2);
    assert_int_equal(t.dims[0], 64);
    assert_int_equal(t.dims[1], 48);
    assert_int_equal(t.size_bytes, 48 * 2 * 34);
    td_file_close(&f);
    assert_null(f);
    td_file_close(&f);
    td_file_close(NULL);
    unlink(path);
    assert_int_equal(td_file_open(&f, path, &err), TD_E_IO);
    assert_int_equal(td_file_open(&f, "", &err), TD_E_ARG);
    assert_int_equal(td_file_open(&f, NULL, NULL), TD_E_ARG);
}

static void expect_key(const td_file *f, int i, const char *key, const char *want) {
    char value[256];
    assert_string_equal(td_file_get_key(f, i, value, sizeof value), key);
    assert_string_equal(value, want);
}

/* Every type of value, and an architecture that nobody knows. */
static void values_of_all_types(void **state) {
    (void)state;
    td_buf b = {0};
    make_header(&b, 3, 0, 19);
    make_key_string(&b, "general.architecture", "marvin");
    make_key_int(&b, "u8", GGUF_U8, 255);
    make_key_int(&b, "i8", GGUF_I8, 0x80);
    make_key_int(&b, "u16", GGUF_U16, 65535);
    make_key_int(&b, "i16", GGUF_I16, 0xfffe);
    make_key_int(&b, "u32", GGUF_U32, 4000000000u);
    make_key_int(&b, "i32", GGUF_I32, (uint32_t)-7);
    make_key_f32(&b, "f32", 0.25f);
    make_key_int(&b, "bool", GGUF_BOOL, 1);
    make_key_int(&b, "u64", GGUF_U64, UINT64_MAX);
    make_key_int(&b, "i64", GGUF_I64, (uint64_t)-9);
    make_key_f64(&b, "f64", 1e-9);
    make_key_string(&b, "str", "two\nlines\t\x01!");
    make_key_array(&b, "i16s", GGUF_I16, 3);
    make_int(&b, 1, 2), make_int(&b, 0xffff, 2), make_int(&b, 3, 2);
    make_key_array(&b, "strs", GGUF_STRING, 2);
    make_string(&b, "a"), make_string(&b, "b");
    make_key_array(&b, "f32s", GGUF_F32, 1);
    make_int(&b, 0x3fc00000, 4);
    make_key_array(&b, "many", GGUF_U8, 20);
    for (int i = 0; i < 20; i++)
        make_int(&b, (uint64_t)i, 1);
    make_key_array(&b, "bools", GGUF_BOOL, 2);
    make_int(&b, 1, 1), make_int(&b, 0, 1);
    make_key_array(&b, "none", GGUF_F64, 0);
    make_pad(&b, 32);
    char path[64] = "/tmp/tandem-test-XXXXXX";
    FILE *out = fdopen(mkstemp(path), "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(b.data, 1, b.len, out), b.len);
    fclose(out);
    td_buf_free(&b);
    td_file *f = NULL;
    td_error err = {0};
    if (td_file_open(&f, path, &err)) fail_msg("%s", err.msg);
    const td_file_info *i = td_file_get_info(f);
    assert_string_equal(i->arch, "marvin");
    assert_string_equal(i->name, "");
    assert_int_equal(i->n_layers, 0);
    assert_int_equal(i->kv_bytes_per_token_f16, 0);
    assert_int_equal(td_file_n_keys(f), 19);
    expect_key(f, 1, "u8", "255");
    expect_key(f, 2, "i8", "-128");
    expect_key(f, 3, "u16", "65535");
    expect_key(f, 4, "i16", "-2");
    expect_key(f, 5, "u32", "4000000000");
    expect_key(f, 6, "i32", "-7");
    expect_key(f, 7, "f32", "0.25");
    expect_key(f, 8, "bool", "true");
    expect_key(f, 9, "u64", "18446744073709551615");
    expect_key(f, 10, "i64", "-9");
    expect_key(f, 11, "f64", "1e-09");
    expect_key(f, 12, "str", "two\\nlines\\t\\x01!");
    expect_key(f, 13, "i16s", "[3] 1, -1, 3");
    expect_key(f, 14, "strs", "[2] a, b");
    expect_key(f, 15, "f32s", "[1] 1.5");
    expect_key(f, 16, "many", "[20] 0, 1, 2, 3, 4, 5, 6, 7, ...");
    expect_key(f, 17, "bools", "[2] true, false");
    expect_key(f, 18, "none", "[0]");
    char small[5] = "####", one[1] = "#";
    td_file_get_key(f, 12, small, sizeof small);
    assert_string_equal(small, "two\\");
    td_file_get_key(f, 12, one, 1);
    assert_int_equal(one[0], 0);
    td_file_get_key(f, 12, NULL, 0);
    td_file_close(&f);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model),
        cmocka_unit_test(values_of_all_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
