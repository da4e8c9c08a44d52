/* SPDX-License-Identifier: Apache-2.0 */
/* A neutral element beside any input, on either side and under any scale, gives the bits of that
 * input alone. */
#undef NDEBUG
#include "reduce/reduce.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define SIDE 4096 /* elements: all bit patterns of 8 bits, and many of more */

static const double prescales[] = {1.0,    0.5,   2.0,  -1.0,   -3.5,     0.0,      -0.0,
                                   1e-300, 1e-30, 1e30, -1e300, INFINITY, -INFINITY};

static uint64_t inputs[SIDE], alone[SIDE], beside[SIDE], neutrals[SIDE];

/* Random bits, and among them extremes, zeros and NaN. */
static void fill(horon_dtype_t dtype)
{
    uint64_t random = 7;
    const size_t bytes = horon_dtype_bytes(dtype);
    for (size_t i = 0; i < SIDE; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t bits = random ^ random >> 29;
        if (i % 7 == 0)
            bits = 0;
        if (i % 7 == 1)
            bits = UINT64_MAX >> (i % 64);
        if (i % 7 == 2)
            bits = (uint64_t)1 << (i % (8 * bytes));
        if (dtype == HORON_BOOL)
            bits &= 1;
        memcpy((char *)inputs + i * bytes, &bits, bytes);
    }
}

static bool has_none(horon_dtype_t dtype, horon_redop_t op, double prescale)
{
    const bool is_float = dtype == HORON_FLOAT16 || dtype == HORON_BFLOAT16 ||
                          dtype == HORON_FLOAT32 || dtype == HORON_FLOAT64;
    if (op == HORON_PRODUCT || op == HORON_BIT_AND)
        return prescale != 1.0 && dtype != HORON_BOOL;
    const bool is_half = dtype == HORON_FLOAT16 || dtype == HORON_BFLOAT16;
    return op == HORON_SUM && is_float && isinf(is_half ? (float)prescale : prescale);
}

static void check(horon_dtype_t dtype, horon_redop_t op, double prescale)
{
    const size_t bytes = horon_dtype_bytes(dtype);
    uint8_t element[HORON_REDUCE_ELEMENT_BYTES_MAX];
    const bool found = horon_reduce_neutral(dtype, op, prescale, element);
    assert_int_equal(found, !has_none(dtype, op, prescale));
    if (!found)
        return;
    for (size_t i = 0; i < SIDE; i++)
        memcpy((char *)neutrals + i * bytes, element, bytes);
    void *out = alone;
    const void *left[] = {neutrals, inputs}, *right[] = {inputs, neutrals};
    horon_reduce_tree(dtype, op, left, 2, prescale, &out, 1, SIDE, NULL);
    out = beside;
    horon_reduce_tree(dtype, op, right, 2, prescale, &out, 1, SIDE, NULL);
    assert_memory_equal(alone, beside, SIDE * bytes);
    out = beside;
    horon_reduce_tree(dtype, op, (const void *[]){inputs}, 1, prescale, &out, 1, SIDE, NULL);
    for (size_t i = 0; i < SIDE; i++) {
        uint64_t a = 0, b = 0;
        memcpy(&a, (char *)alone + i * bytes, bytes);
        memcpy(&b, (char *)beside + i * bytes, bytes);
        if (a == b)
            continue;
        /* only a NaN: alone and not scaled it keeps its bits */
        const uint64_t magnitude = b & (((uint64_t)1 << (8 * bytes - 1)) - 1);
        const uint64_t infinity = dtype == HORON_FLOAT16    ? 0x7c00
                                  : dtype == HORON_BFLOAT16 ? 0x7f80
                                  : dtype == HORON_FLOAT32  ? 0x7f800000
                                                            : 0x7ff0000000000000;
        if (magnitude <= infinity)
            fail_msg("%s %s, prescale %g: %#llx became %#llx", horon_dtype_name(dtype),
                     horon_redop_name(op), prescale, (unsigned long long)b, (unsigned long long)a);
    }
}

static void test_reduce_neutral_element_changes_no_bit(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++) {
        if (!horon_reduce_supported((horon_dtype_t)dtype, HORON_SUM))
            continue;
        fill((horon_dtype_t)dtype);
        for (int op = 0; op < HORON_REDOP_COUNT; op++)
            for (size_t i = 0; i < sizeof prescales / sizeof *prescales; i++)
                if (op != HORON_AVERAGE &&
                    horon_reduce_supported((horon_dtype_t)dtype, (horon_redop_t)op))
                    check((horon_dtype_t)dtype, (horon_redop_t)op, prescales[i]);
    }
}

static void test_reduce_neutral_element_is_refused_where_there_is_none(void **state)
{
    (void)state;
    uint64_t element = 5;
    assert_false(horon_reduce_neutral(HORON_COMPLEX64, HORON_SUM, 1, &element));
    assert_false(horon_reduce_neutral(HORON_FLOAT8_E4M3, HORON_MAX, 1, &element));
    assert_false(horon_reduce_neutral(HORON_BOOL, HORON_AVERAGE, 1, &element));
    assert_false(horon_reduce_neutral(HORON_INT32, HORON_SUM, NAN, &element));
    assert_int_equal(element, 5);
    assert_true(horon_reduce_neutral(HORON_FLOAT32, HORON_AVERAGE, 1, &element));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reduce_neutral_element_changes_no_bit),
        cmocka_unit_test(test_reduce_neutral_element_is_refused_where_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
