/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values that one can check by eye or exhaustively: conversions of all 16-bit floats, rounding,
 * NaN, signed zeros, saturation. Each table of kernels is asked directly.
 */
#undef NDEBUG
#include "harness.h"
#include "reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t one_of(horon_dtype_t dtype)
{
    return dtype == HORON_FLOAT16 ? 0x3c00 : 0x3f80;
}

/* Scaling 1.0 by a float32 narrows just that: in whole vectors and in the elements after them. */
static void narrow_one(const struct horon_reduce_isa *isa, horon_dtype_t dtype, float value)
{
    enum { COUNT = 17 };
    uint16_t ones[COUNT], out[COUNT];
    uint64_t expected = reference_narrow(dtype, value);
    for (size_t i = 0; i < COUNT; i++)
        ones[i] = (uint16_t)one_of(dtype);
    isa->kernels->type[dtype].scale((double)value, ones, out, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        if (out[i] != expected) {
            print_error("%s dtype %d narrows %a to %x, expected %x\n", isa->name, (int)dtype,
                        (double)value, (unsigned int)out[i], (unsigned int)expected);
            fail();
        }
}

#define FOR_EACH_HALF_ON_EACH_ISA(dtype, isa)                                                      \
    for (horon_dtype_t dtype = HORON_FLOAT16; dtype <= HORON_BFLOAT16; dtype++)                    \
        for (const struct horon_reduce_isa *isa = horon_reduce_isas;                               \
             isa < horon_reduce_isas + horon_reduce_isas_count; isa++)                             \
            if (isa->usable())

static void test_reduce_half_all_values_survive_float32_and_back(void **state)
{
    (void)state;
    enum { ALL = 65536 };
    static uint16_t in[ALL], back[ALL];
    for (size_t i = 0; i < ALL; i++)
        in[i] = (uint16_t)i;
    FOR_EACH_HALF_ON_EACH_ISA(dtype, isa)
    {
        isa->kernels->type[dtype].scale(1.0, in, back, ALL);
        for (size_t i = 0; i < ALL; i++) {
            bool is_nan = isnan(reference_widen(dtype, i));
            assert_int_equal(back[i], is_nan ? reference_narrow(dtype, NAN) : i);
        }
    }
}

/* x + x is exact, or overflows: so this compares what each value widens to. */
static void test_reduce_half_all_values_doubled_give_the_reference(void **state)
{
    (void)state;
    enum { ALL = 65536 };
    static uint16_t in[ALL], twice[ALL];
    const void *const ins[] = {in, in};
    void *out = twice;
    for (size_t i = 0; i < ALL; i++)
        in[i] = (uint16_t)i;
    FOR_EACH_HALF_ON_EACH_ISA(dtype, isa)
    {
        horon_reduce_tree_on(isa->kernels, dtype, HORON_SUM, ins, 2, 1.0, &out, 1, ALL, NULL, NULL);
        for (size_t i = 0; i < ALL; i++)
            assert_int_equal(twice[i], reference_narrow(dtype, 2 * reference_widen(dtype, i)));
    }
}

/* Between each two neighbours of 16 bits: just below, at and just above the middle. */
static void test_reduce_half_around_every_tie_rounds_to_even(void **state)
{
    (void)state;
    FOR_EACH_HALF_ON_EACH_ISA(dtype, isa)
    for (uint64_t bits = 0; bits < 65535; bits++) {
        float low = reference_widen(dtype, bits), high = reference_widen(dtype, bits + 1);
        double overflow = dtype == HORON_FLOAT16 ? 0x1p16 : 0x1p128; /* what infinity rounds from */
        double top = isinf(high) ? copysign(overflow, (double)high) : (double)high;
        float tie = (float)(((double)low + top) / 2);
        if (!isfinite(low))
            continue;
        narrow_one(isa, dtype, nextafterf(tie, -INFINITY));
        narrow_one(isa, dtype, tie);
        narrow_one(isa, dtype, nextafterf(tie, INFINITY));
    }
}

static void test_reduce_half_from_samples_of_all_floats_gives_the_reference(void **state)
{
    (void)state;
    const uint32_t prime_step = 40009;
    FOR_EACH_HALF_ON_EACH_ISA(dtype, isa)
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += prime_step)
        narrow_one(isa, dtype, f32((uint32_t)bits));
}

static uint32_t f32_pair(horon_redop_t op, uint32_t left, uint32_t right)
{
    uint32_t out;
    horon_reduce_combine(HORON_FLOAT32, op, &left, &right, &out, 1);
    return out;
}

static void test_reduce_min_max_know_signed_zeros_and_nan(void **state)
{
    (void)state;
    const uint32_t zero = 0, minus_zero = 0x80000000u, nan = 0x7fc00000u;
    const uint32_t negative_nan = 0xffc12345u, infinity = 0x7f800000u, minus_one = 0xbf800000u;
    assert_int_equal(f32_pair(HORON_MIN, zero, minus_zero), minus_zero);
    assert_int_equal(f32_pair(HORON_MIN, minus_zero, zero), minus_zero);
    assert_int_equal(f32_pair(HORON_MAX, zero, minus_zero), zero);
    assert_int_equal(f32_pair(HORON_MAX, minus_zero, zero), zero);
    assert_int_equal(f32_pair(HORON_MAX, minus_one, negative_nan), nan);
    assert_int_equal(f32_pair(HORON_MIN, negative_nan, minus_one), nan);
    assert_int_equal(f32_pair(HORON_MIN, infinity, minus_one), minus_one);
    assert_int_equal(f32_pair(HORON_MAX, infinity, minus_one), infinity);
}

static void test_reduce_computed_nan_is_canonical(void **state)
{
    (void)state;
    const uint32_t infinity = 0x7f800000u, minus_infinity = 0xff800000u, nan = 0x7fc00000u;
    assert_int_equal(f32_pair(HORON_SUM, infinity, minus_infinity), nan);
    assert_int_equal(f32_pair(HORON_SUM, 0xffc12345u, 0x7f800001u), nan);
    assert_int_equal(f32_pair(HORON_PRODUCT, 0, minus_infinity), nan);
}

/* 2048 + 1 + 1 is 2050 in 32 bits, but 2048 if every step were rounded to float16; and the tree
 * puts 2048 and 1 together first. */
static void test_reduce_float16_sum_rounds_once(void **state)
{
    (void)state;
    const uint16_t leaves[] = {0x6800, 0x3c00, 0x3c00}; /* 2048, 1, 1 */
    const void *in[] = {&leaves[0], &leaves[1], &leaves[2]};
    uint16_t sum = 0;
    void *out = &sum;
    horon_reduce_tree(HORON_FLOAT16, HORON_SUM, in, 3, 1.0, &out, 1, 1, NULL);
    assert_int_equal(sum, 0x6801);
    horon_reduce_combine(HORON_FLOAT16, HORON_SUM, &leaves[0], &leaves[1], &sum, 1);
    assert_int_equal(sum, 0x6800);
}

/* (1e8 + 1) + (-1e8 + 1): the pairs lose both ones; from left to right 1 remains. */
static void test_reduce_tree_pairs_neighbours(void **state)
{
    (void)state;
    const float leaves[] = {1e8f, 1, -1e8f, 1};
    const void *in[] = {&leaves[0], &leaves[1], &leaves[2], &leaves[3]};
    float sum = -1;
    void *out = &sum;
    horon_reduce_tree(HORON_FLOAT32, HORON_SUM, in, 4, 1.0, &out, 1, 1, NULL);
    assert_true(sum == 0.0f);
    horon_reduce_tree(HORON_FLOAT32, HORON_SUM, in, 3, 1.0, &out, 1, 1, NULL);
    assert_true(sum == 0.0f);
}

static void test_reduce_average_of_integers_is_cut_towards_zero(void **state)
{
    (void)state;
    const struct horon_reduce_finish thirds = {.postscale = 1.0, .divisor = 3};
    const int8_t small[] = {-8, -7, 7, 8, -128};
    const int64_t large[] = {-8, 8, INT64_MIN, INT64_MAX};
    const int8_t small_expected[] = {-2, -2, 2, 2, -42};
    const int64_t large_expected[] = {-2, 2, INT64_MIN / 3, INT64_MAX / 3};
    int8_t small_out[5];
    int64_t large_out[4];
    horon_reduce_finish(HORON_INT8, &thirds, small, small_out, 5);
    horon_reduce_finish(HORON_INT64, &thirds, large, large_out, 4);
    assert_memory_equal(small_out, small_expected, sizeof small_expected);
    assert_memory_equal(large_out, large_expected, sizeof large_expected);
}

static void test_reduce_scale_of_integers_saturates(void **state)
{
    (void)state;
    const int64_t large[] = {INT64_MAX, INT64_MIN, 3, -3, 0, ((int64_t)1 << 62) + 1};
    const int64_t expected[] = {INT64_MAX, INT64_MIN, 6, -6, 0, INT64_MAX};
    const uint8_t small[] = {200, 1, 0};
    const uint8_t small_expected[] = {255, 2, 0};
    int64_t out[6];
    uint8_t small_out[3];
    harness_scale(HORON_INT64, 2.0, large, out, 6);
    harness_scale(HORON_UINT8, 2.0, small, small_out, 3);
    assert_memory_equal(out, expected, sizeof expected);
    assert_memory_equal(small_out, small_expected, sizeof small_expected);
    harness_scale(HORON_UINT8, -2.0, small, small_out, 3);
    assert_int_equal(small_out[0] | small_out[1] | small_out[2], 0);
    /* All 64 bits count: a float64 between would lose the last of 2^62 + 1. */
    harness_scale(HORON_INT64, -1.0, large + 5, out, 1);
    assert_true(out[0] == -large[5]);
}

static void test_reduce_bool_is_normalized(void **state)
{
    (void)state;
    const uint8_t a[] = {0, 2, 0, 0x80}, b[] = {0, 0, 4, 1};
    const uint8_t any[] = {0, 1, 1, 1}, all[] = {0, 0, 0, 1}, alone[] = {0, 1, 0, 1};
    const void *in[] = {a, b};
    uint8_t out[4];
    void *to = out;
    horon_reduce_combine(HORON_BOOL, HORON_SUM, a, b, out, 4);
    assert_memory_equal(out, any, 4);
    horon_reduce_combine(HORON_BOOL, HORON_PRODUCT, a, b, out, 4);
    assert_memory_equal(out, all, 4);
    horon_reduce_tree(HORON_BOOL, HORON_MIN, in, 1, 1.0, &to, 1, 4, NULL);
    assert_memory_equal(out, alone, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reduce_half_all_values_survive_float32_and_back),
        cmocka_unit_test(test_reduce_half_all_values_doubled_give_the_reference),
        cmocka_unit_test(test_reduce_half_around_every_tie_rounds_to_even),
        cmocka_unit_test(test_reduce_half_from_samples_of_all_floats_gives_the_reference),
        cmocka_unit_test(test_reduce_min_max_know_signed_zeros_and_nan),
        cmocka_unit_test(test_reduce_computed_nan_is_canonical),
        cmocka_unit_test(test_reduce_float16_sum_rounds_once),
        cmocka_unit_test(test_reduce_tree_pairs_neighbours),
        cmocka_unit_test(test_reduce_average_of_integers_is_cut_towards_zero),
        cmocka_unit_test(test_reduce_scale_of_integers_saturates),
        cmocka_unit_test(test_reduce_bool_is_normalized),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
