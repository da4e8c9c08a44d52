/* SPDX-License-Identifier: Apache-2.0 */
/* What the library says of itself: version, and the names and sizes of dtypes and reductions. */
#undef NDEBUG
#include <horon/horon.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_library_version_is_the_headers_in_both_forms(void **state)
{
    int major, minor, patch;
    char rest;
    (void)state;
    assert_int_equal(sscanf(horon_version(), "%d.%d.%d%c", &major, &minor, &patch, &rest), 3);
    assert_int_equal(major, HORON_VERSION_MAJOR);
    assert_int_equal(minor, HORON_VERSION_MINOR);
    assert_int_equal(patch, HORON_VERSION_PATCH);
    assert_int_equal(horon_version_number(), major * 10000 + minor * 100 + patch);
    assert_ptr_equal(horon_version(), horon_version()); /* static */
}

static void test_library_dtypes_have_names_and_sizes(void **state)
{
    static const struct {
        horon_dtype_t dtype;
        const char *name;
        size_t bytes;
    } all[] = {
        {HORON_UINT8, "uint8", 1},
        {HORON_INT8, "int8", 1},
        {HORON_UINT16, "uint16", 2},
        {HORON_INT16, "int16", 2},
        {HORON_UINT32, "uint32", 4},
        {HORON_INT32, "int32", 4},
        {HORON_UINT64, "uint64", 8},
        {HORON_INT64, "int64", 8},
        {HORON_FLOAT16, "float16", 2},
        {HORON_BFLOAT16, "bfloat16", 2},
        {HORON_FLOAT32, "float32", sizeof(float)},
        {HORON_FLOAT64, "float64", sizeof(double)},
        {HORON_BOOL, "bool", sizeof(_Bool)},
        {HORON_COMPLEX64, "complex64", 2 * sizeof(float)},
        {HORON_COMPLEX128, "complex128", 2 * sizeof(double)},
        {HORON_FLOAT8_E4M3, "float8_e4m3", 1},
        {HORON_FLOAT8_E5M2, "float8_e5m2", 1},
    };
    (void)state;
    assert_int_equal(sizeof all / sizeof all[0], HORON_DTYPE_COUNT);
    for (int i = 0; i < HORON_DTYPE_COUNT; i++) {
        assert_int_equal(all[i].dtype, i);
        assert_string_equal(horon_dtype_name(all[i].dtype), all[i].name);
        assert_int_equal(horon_dtype_bytes(all[i].dtype), all[i].bytes);
    }
}

static void test_library_reductions_have_names(void **state)
{
    static const char *const redops[] = {"sum",     "average", "min",    "max",
                                         "product", "bit_and", "bit_or", "bit_xor"};
    (void)state;
    for (int i = 0; i < HORON_REDOP_COUNT; i++)
        assert_string_equal(horon_redop_name((horon_redop_t)i), redops[i]);
}

static void test_library_values_that_are_none_are_unknown(void **state)
{
    static const int none[] = {-1, HORON_DTYPE_COUNT, 255, INT32_MAX, INT32_MIN};
    (void)state;
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_int_equal(horon_dtype_bytes((horon_dtype_t)none[i]), 0);
        assert_string_equal(horon_dtype_name((horon_dtype_t)none[i]), "unknown");
        assert_string_equal(horon_redop_name((horon_redop_t)none[i]), "unknown");
    }
    assert_string_equal(horon_redop_name((horon_redop_t)HORON_REDOP_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_library_version_is_the_headers_in_both_forms),
        cmocka_unit_test(test_library_dtypes_have_names_and_sizes),
        cmocka_unit_test(test_library_reductions_have_names),
        cmocka_unit_test(test_library_values_that_are_none_are_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
