/* The table of types, half-precision conversion, and decoding by hand-worked blocks. The full
 * comparison with the gguf package is tests/golden/test_dequant.py. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "format/format.h"

static void table_of_types(void **state) {
    (void)state;
    static const struct { /* as in the format's own table */
        uint32_t type;
        const char *name;
        int block, bytes;
    } want[] = {
        {0, "F32", 1, 4},       {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
        {3, "Q4_1", 32, 20},    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
        {8, "Q8_0", 32, 34},    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},
        {12, "Q4_K", 256, 144}, {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210},
        {20, "IQ4_NL", 32, 18}, {23, "IQ4_XS", 256, 136}, {30, "BF16", 1, 2},
    };
    int n_known = 0;
    for (uint32_t type = 0; type < 1000; type++)
        n_known += td_type_get(type)->name != NULL;
    assert_int_equal(n_known, 15);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const td_type_info *info = td_type_get(want[i].type);
        assert_string_equal(info->name, want[i].name);
        assert_string_equal(td_type_known_name(want[i].type), want[i].name);
        assert_int_equal(info->block, want[i].block);
        assert_int_equal(info->block_bytes, want[i].bytes);
    }
    assert_null(td_type_get(UINT32_MAX)->name);
    assert_null(td_type_known_name(UINT32_MAX));
    assert_null(td_type_known_name(42));
    assert_string_equal(td_type_known_name(16), "IQ2_XXS");
}

static void row_bytes_are_checked(void **state) {
    (void)state;
    size_t n = 7;
    assert_true(td_type_row_bytes(&n, TD_TYPE_Q4_K, 512));
    assert_int_equal(n, 288);
    assert_true(td_type_row_bytes(&n, TD_TYPE_F32, 0));
    assert_int_equal(n, 0);
    assert_false(td_type_row_bytes(&n, TD_TYPE_Q4_K, 511));
    assert_false(td_type_row_bytes(&n, TD_TYPE_Q4_0, 16));
    assert_false(td_type_row_bytes(&n, 9, 32));
    assert_false(td_type_row_bytes(&n, UINT32_MAX, 32));
    assert_false(td_type_row_bytes(&n, TD_TYPE_F32, UINT64_MAX / 2));
    assert_false(td_type_row_bytes(&n, TD_TYPE_Q8_0, UINT64_MAX - 31));
}

/* Exact reading of a half float by the definition. */
static double half_value(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const double sign = h & 0x8000 ? -1 : 1;
    return exponent ? sign * ldexp(1024 + fraction, exponent - 25) : sign * ldexp(fraction, -24);
}

static void every_half_converts_both_ways(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = td_f16_to_f32((uint16_t)h);
        if ((h & 0x7fff) > 0x7c00) {
            assert_true(isnan(f));
            assert_true((td_f32_to_f16(f) & 0x7fff) > 0x7c00);
            continue;
        }
        if ((h & 0x7fff) == 0x7c00)
            assert_true(isinf(f) && !signbit(f) == !(h & 0x8000));
        else
            assert_true(f == half_value((uint16_t)h) && !signbit(f) == !(h & 0x8000));
        assert_int_equal(td_f32_to_f16(f), h);
    }
}

/* Between two neighbours, to the nearer one; in the middle, to the even one. */
static void floats_round_to_the_nearest_half(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const float lo = td_f16_to_f32((uint16_t)h), hi = td_f16_to_f32((uint16_t)(h + 1));
        const float mid = lo + (hi - lo) / 2; /* exact: 11 bits and one more */
        const uint32_t even = h & 1 ? h + 1 : h;
        for (int sign = 0; sign < 2; sign++) {
            const uint32_t s = sign ? 0x8000 : 0;
            const float one = sign ? -1.0f : 1.0f;
            assert_int_equal(td_f32_to_f16(one * mid), s | even);
            assert_int_equal(td_f32_to_f16(one * nextafterf(mid, 0)), s | h);
            assert_int_equal(td_f32_to_f16(one * nextafterf(mid, INFINITY)), s | (h + 1));
        }
    }
    assert_int_equal(td_f32_to_f16(65504), 0x7bff);
    assert_int_equal(td_f32_to_f16(nextafterf(65520, 0)), 0x7bff);
    assert_int_equal(td_f32_to_f16(65520), 0x7c00);
    assert_int_equal(td_f32_to_f16(-1e30f), 0xfc00);
    assert_int_equal(td_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(td_f32_to_f16(1e-30f), 0);
    assert_int_equal(td_f32_to_f16(-1e-30f), 0x8000);
}

static void blocks_by_hand(void **state) {
    (void)state;
    float y[256];
    /* Q4_0: d = 0.5; byte 0 = 0xf0: value 0 is (0 - 8) / 2, value 16 is (15 - 8) / 2 */
    unsigned char q4[18] = {0x00, 0x38, 0xf0};
    td_dequantize(TD_TYPE_Q4_0, q4, y, 32);
    assert_true(y[0] == -4 && y[16] == 3.5f && y[1] == -4);
    /* Q8_0: d = 2 */
    unsigned char q8[34] = {0x00, 0x40, 0x7f, 0x80};
    td_dequantize(TD_TYPE_Q8_0, q8, y, 32);
    assert_true(y[0] == 254 && y[1] == -256 && y[2] == 0);
    /* Q6_K: d = 1; scale 0 is 3; low half of value 0 is 1, its high bits 2: 3 * (33 - 32) */
    unsigned char q6[210] = {0x01};
    q6[128] = 0x02;
    q6[192] = 3;
    q6[209] = 0x3c;
    td_dequantize(TD_TYPE_Q6_K, q6, y, 256);
    assert_true(y[0] == 3 && y[1] == -96 && y[16] == 0);
    /* IQ4_NL: d = 1 */
    unsigned char iq4[18] = {0x00, 0x3c, 0xf0};
    td_dequantize(TD_TYPE_IQ4_NL, iq4, y, 32);
    assert_true(y[0] == -127 && y[16] == 113);
    td_dequantize(TD_TYPE_F32, q4, y, 0); /* nothing to do */
}

/* Blocks are packed, so a row may start anywhere. */
static void source_needs_no_alignment(void **state) {
    (void)state;
    for (uint32_t type = 0; type < TD_TYPE_COUNT; type++) {
        const td_type_info *info = td_type_get(type);
        if (!info->name) continue;
        const size_t n = 256, n_bytes = n / (size_t)info->block * (size_t)info->block_bytes;
        unsigned char *raw = malloc(n_bytes + 3);
        float a[256], b[256];
        assert_non_null(raw);
        for (size_t i = 0; i < n_bytes; i++)
            raw[i] = (unsigned char)(i * 37 + 11) & 0x3f; /* no NaN in any place */
        td_dequantize(type, raw, a, n);
        memmove(raw + 3, raw, n_bytes);
        td_dequantize(type, raw + 3, b, n);
        assert_memory_equal(a, b, sizeof a);
        free(raw);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_of_types),
        cmocka_unit_test(row_bytes_are_checked),
        cmocka_unit_test(every_half_converts_both_ways),
        cmocka_unit_test(floats_round_to_the_nearest_half),
        cmocka_unit_test(blocks_by_hand),
        cmocka_unit_test(source_needs_no_alignment),
    };
    return cmocka_run_group_tests_name("types", tests, NULL, NULL);
}
