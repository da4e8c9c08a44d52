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

static void test_reduce_partial_divisor_is_a_power_of_two_for_float16_only(void **state)
{
    (void)state;
    const struct {
        uint64_t ranks;
        double divisor;
    } cases[] = {{1, 1}, {2, 2}, {3, 4}, {8, 8}, {9, 16}, {1024, 1024}, {1025, 4096}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const double divisor = horon_reduce_partial_divisor(HORON_FLOAT16, cases[i].ranks);
        assert_true(divisor == cases[i].divisor);
    }
    assert_true(horon_reduce_partial_divisor(HORON_BFLOAT16, 5) == 1.0);
    assert_true(horon_reduce_partial_divisor(HORON_FLOAT32, 5) == 1.0);
    assert_true(horon_reduce_partial_divisor(HORON_INT8, 5) == 1.0);
}

/* An average over hosts of one rank each, of which all give @p value: what each host's sum becomes,
 * then the hosts' one by one, which rounds more often than the tree does. */
static float average_of_hosts(float value, uint64_t hosts)
{
    const double divisor = horon_reduce_partial_divisor(HORON_FLOAT16, hosts);
    const struct horon_reduce_finish partial = {.postscale = 1.0, .divisor = divisor};
    const struct horon_reduce_finish whole = {.postscale = 1.0, .divisor = (double)hosts / divisor};
    const uint16_t leaf = (uint16_t)reference_narrow(HORON_FLOAT16, value);
    const void *in = &leaf;
    uint16_t part = 0, sum = 0;
    void *out = &part;
    horon_reduce_tree(HORON_FLOAT16, HORON_SUM, &in, 1, 1.0, &out, 1, 1, &partial);
    for (uint64_t i = 0; i < hosts; i++)
        horon_reduce_combine(HORON_FLOAT16, HORON_SUM, &sum, &part, &sum, 1);
    horon_reduce_finish(HORON_FLOAT16, &whole, &sum, &sum, 1);
    return reference_widen(HORON_FLOAT16, sum);
}

static void test_reduce_float16_average_over_hosts_never_overflows(void **state)
{
    (void)state;
    for (uint64_t hosts = 1; hosts < 5000; hosts += hosts < 1100 ? 1 : 97) {
        assert_true(isfinite(average_of_hosts(65504.0f, hosts)));
        assert_true(isfinite(average_of_hosts(-65504.0f, hosts)));
    }
    assert_true(average_of_hosts(65504.0f, 4) == 65504.0f);
    assert_true(average_of_hosts(20000.0f, 3) == 20000.0f);
    assert_true(isinf(average_of_hosts(INFINITY, 3)));
}

/* Small values lose bits of their own to the power of two; as much as reduce.h says, and no more:
 * a part, and each sum of parts, less than 2^-24 of the average. */
static void test_reduce_float16_average_of_small_values_is_near(void **state)
{
    (void)state;
    for (uint64_t hosts = 1; hosts <= 33; hosts++)
        for (uint64_t bits = 0; bits < 0x0800; bits++) { /* all subnormals, and 2^-14 to 2^-13 */
            const float value = reference_widen(HORON_FLOAT16, bits);
            const float got = average_of_hosts(value, hosts);
            const double bound = (double)(2 * hosts) * 0x1p-24;
            assert_true(fabs((double)got - (double)value) <= bound);
        }
}

/* In one host the whole sum is divided before it is rounded, so nothing is lost at all. */
static void test_reduce_float16_average_in_a_host_rounds_once(void **state)
{
    (void)state;
    const uint16_t leaves[] = {0x7bff, 0x7bff, 0x0001}; /* 65504 twice, and the smallest */
    const struct horon_reduce_finish thirds = {.postscale = 1.0, .divisor = 3};
    const struct horon_reduce_finish halves = {.postscale = 0.5, .divisor = 2};
    const void *large[] = {&leaves[0], &leaves[1], &leaves[0]};
    const void *small[] = {&leaves[2], &leaves[2], &leaves[2]};
    uint16_t got = 0;
    void *out = &got;
    horon_reduce_tree(HORON_FLOAT16, HORON_SUM, large, 3, 1.0, &out, 1, 1, &thirds);
    assert_int_equal(got, leaves[0]);
    horon_reduce_tree(HORON_FLOAT16, HORON_SUM, small, 3, 1.0, &out, 1, 1, &thirds);
    assert_int_equal(got, leaves[2]);
    horon_reduce_tree(HORON_FLOAT16, HORON_SUM, large, 2, 1.0, &out, 1, 1, &halves);
    assert_int_equal(got, 0x77ff); /* 32752: scaled after it was divided */
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
        cmocka_unit_test(test_reduce_partial_divisor_is_a_power_of_two_for_float16_only),
        cmocka_unit_test(test_reduce_float16_average_over_hosts_never_overflows),
        cmocka_unit_test(test_reduce_float16_average_of_small_values_is_near),
        cmocka_unit_test(test_reduce_float16_average_in_a_host_rounds_once),
        cmocka_unit_test(test_reduce_tree_pairs_neighbours),
        cmocka_unit_test(test_reduce_average_of_integers_is_cut_towards_zero),
        cmocka_unit_test(test_reduce_scale_of_integers_saturates),
        cmocka_unit_test(test_reduce_bool_is_normalized),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
