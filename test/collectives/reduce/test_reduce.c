/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree, for every dtype and operation, against the long-hand reference, on every instruction
 * set of this CPU: they all must give the reference's bits.
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

static void test_reduce_supported_is_what_the_abi_marks(void **state)
{
    (void)state;
    for (horon_dtype_t dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++) {
        bool reduces = dtype <= HORON_BOOL;
        bool is_float = dtype >= HORON_FLOAT16 && dtype <= HORON_FLOAT64;
        for (horon_redop_t op = 0; op < HORON_REDOP_COUNT; op++) {
            bool expected = reduces && !(dtype == HORON_BOOL && op == HORON_AVERAGE) &&
                            !(is_float && op >= HORON_BIT_AND);
            assert_int_equal(horon_reduce_supported(dtype, op), expected);
        }
    }
    assert_false(horon_reduce_supported((horon_dtype_t)HORON_DTYPE_COUNT, HORON_SUM));
    assert_false(horon_reduce_supported((horon_dtype_t)-1, HORON_SUM));
    assert_false(horon_reduce_supported(HORON_INT8, (horon_redop_t)HORON_REDOP_COUNT));
}

static void test_reduce_tree_below_a_vector_gives_the_reference(void **state)
{
    (void)state;
    static const size_t counts[] = {0, 1, 2, 3, 7, 16, 17};
    FOR_EACH_REDUCTION(dtype, op)
    for (int n = 1; n <= 17; n++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            struct job job = harness_job(dtype, op, n, counts[i]);
            harness_check(&job);
            job.wild = true;
            job.n_out = 2;
            harness_check(&job);
        }
}

static void test_reduce_tree_above_a_block_gives_the_reference(void **state)
{
    (void)state;
    static const int ns[] = {1, 2, 3, 4, 5, 7, 8};
    FOR_EACH_REDUCTION(dtype, op)
    for (size_t i = 0; i < sizeof ns / sizeof ns[0]; i++) {
        struct job job = harness_job(dtype, op, ns[i], 1021);
        job.wild = i % 2 == 1;
        harness_check(&job);
        job = harness_job(dtype, op, ns[i], 4097);
        job.wild = i % 2 == 0;
        job.n_out = 1 + (int)i % HARNESS_OUT_MAX;
        harness_check(&job);
    }
}

static void test_reduce_tree_of_many_inputs_gives_the_reference(void **state)
{
    (void)state;
    static const int ns[] = {31, 64, 100, 255, HORON_REDUCE_INPUTS_MAX};
    FOR_EACH_REDUCTION(dtype, op)
    for (size_t i = 0; i < sizeof ns / sizeof ns[0]; i++) {
        struct job job = harness_job(dtype, op, ns[i], 19);
        job.prescale = 0.75;
        harness_check(&job);
    }
    struct job job = harness_job(HORON_BFLOAT16, HORON_SUM, HORON_REDUCE_INPUTS_MAX, 1021);
    harness_check(&job);
    job.dtype = HORON_FLOAT32;
    job.op = HORON_PRODUCT;
    harness_check(&job);
}

static void test_reduce_tree_into_any_input_gives_the_reference(void **state)
{
    (void)state;
    FOR_EACH_REDUCTION(dtype, op)
    for (int n = 1; n <= 9; n++)
        for (int k = 0; k < n; k++) {
            struct job job = harness_job(dtype, op, n, 37);
            job.alias[0] = k;
            harness_check(&job);
            job.n_out = 3; /* an own one first, then two inputs: the second is the first again */
            job.alias[0] = HARNESS_OWN;
            job.alias[1] = k;
            job.alias[2] = (k + 1) % n;
            harness_check(&job);
        }
    struct job job = harness_job(HORON_FLOAT16, HORON_SUM, 5, 4097);
    job.alias[0] = 4;
    job.alias[1] = 0;
    job.n_out = 2;
    harness_check(&job);
}

static const double scales[] = {0.5,   3.0,  1.0 / 3.0, -1.5,   0.0,      -0.0,      1e-4,
                                65536, 1e30, -1e300,    5e-324, INFINITY, -INFINITY, NAN};
static const double divisors[] = {
    1, 2, 3, 7, 255, 1000003, 0x1p31, 0x1p32, 0x1p63, 0x1p53, 0x1.fffffffffffffp63};

static void test_reduce_tree_scaled_before_and_after_gives_the_reference(void **state)
{
    (void)state;
    FOR_EACH_REDUCTION(dtype, op)
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        for (int n = 1; n <= 5; n++) {
            const struct horon_reduce_finish finish = {.postscale = scales[(i * 5) % 14],
                                                       .divisor = divisors[(i + (size_t)n) % 11]};
            struct job job = harness_job(dtype, op, n, 33);
            job.wild = i % 2 == 1;
            job.prescale = scales[i];
            harness_check(&job);
            job.finish = &finish;
            job.n_out = 2;
            job.alias[1] = n - 1;
            harness_check(&job);
            job.prescale = 1.0;
            harness_check(&job);
        }
}

/* Divided and not scaled, sums of floats take a way of their own; 300 elements are whole groups of
 * vectors, whole vectors and a part of one on every instruction set but for bytes. */
static void test_reduce_tree_averaged_gives_the_reference(void **state)
{
    (void)state;
    FOR_EACH_REDUCTION(dtype, op)
    for (size_t d = 0; d < sizeof divisors / sizeof divisors[0]; d++)
        for (int n = 1; n <= 7; n++) {
            const struct horon_reduce_finish finish = {.postscale = 1.0, .divisor = divisors[d]};
            struct job job = harness_job(dtype, op, n, 300);
            job.wild = d % 2 == 1;
            job.finish = &finish;
            job.n_out = 2;
            job.alias[0] = (int)d % n;
            harness_check(&job);
        }
}

static void test_reduce_finish_and_prescale_give_the_reference(void **state)
{
    (void)state;
    enum { COUNT = 131 };
    for (horon_dtype_t dtype = 0; dtype <= HORON_BOOL; dtype++)
        for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
            for (size_t d = 0; d < sizeof divisors / sizeof divisors[0]; d++) {
                uint64_t in[COUNT], out[COUNT], own[COUNT], rng = i * 100 + d;
                const struct horon_reduce_finish finish = {scales[i], divisors[d]};
                for (size_t e = 0; e < COUNT; e++)
                    reference_set(dtype, in, e, harness_element(dtype, d % 2 == 1, &rng));
                horon_reduce_finish(dtype, &finish, in, out, COUNT);
                harness_scale(dtype, scales[i], in, own, COUNT);
                for (size_t e = 0; e < COUNT; e++) {
                    uint64_t x = reference_get(dtype, in, e);
                    assert_int_equal(reference_get(dtype, own, e),
                                     reference_scale(dtype, x, scales[i]));
                    x = reference_scale(dtype, reference_divide(dtype, x, divisors[d]), scales[i]);
                    assert_int_equal(reference_get(dtype, out, e), x);
                }
                horon_reduce_finish(dtype, &finish, in, in, COUNT);
                assert_memory_equal(in, out, COUNT * reference_bytes(dtype));
            }
}

static void test_reduce_finish_with_nothing_to_do_copies(void **state)
{
    (void)state;
    const struct horon_reduce_finish none = {.postscale = 1.0, .divisor = 1};
    const uint32_t in[3] = {0x7f800001u, 5, 0x80000000u}; /* the first is a signalling NaN */
    uint32_t out[3] = {0};
    horon_reduce_finish(HORON_FLOAT32, &none, in, out, 3);
    assert_memory_equal(in, out, sizeof in);
    memset(out, 0, sizeof out);
    harness_scale(HORON_FLOAT32, 1.0, in, out, 3);
    assert_memory_equal(in, out, sizeof in);
    harness_scale(HORON_FLOAT32, 1.0, out, out, 3);
    assert_memory_equal(in, out, sizeof in);
}

/* Scaling in the call that reduces must not change the bits against a call of its own; but a sum of
 * 16-bit floats is divided before it is rounded. */
static void test_reduce_tree_finishing_equals_finish_after_tree(void **state)
{
    (void)state;
    enum { COUNT = 257 };
    const struct horon_reduce_finish finish = {.postscale = 0.3, .divisor = 3};
    FOR_EACH_REDUCTION(dtype, op)
    {
        uint64_t a[COUNT], b[COUNT], together[COUNT], apart[COUNT], rng = 7;
        if (op == HORON_SUM && (dtype == HORON_FLOAT16 || dtype == HORON_BFLOAT16))
            continue;
        for (size_t e = 0; e < COUNT; e++) {
            reference_set(dtype, a, e, harness_element(dtype, true, &rng));
            reference_set(dtype, b, e, harness_element(dtype, true, &rng));
        }
        const void *in[] = {a, b, a};
        void *out = together;
        horon_reduce_tree(dtype, op, in, 3, 0.7, &out, 1, COUNT, &finish);
        harness_scale(dtype, 0.7, a, a, COUNT);
        harness_scale(dtype, 0.7, b, b, COUNT);
        out = apart;
        horon_reduce_tree(dtype, op, in, 3, 1.0, &out, 1, COUNT, NULL);
        horon_reduce_finish(dtype, &finish, apart, apart, COUNT);
        assert_memory_equal(together, apart, COUNT * reference_bytes(dtype));
    }
}

static void test_reduce_combine_into_either_side_is_the_tree_of_two(void **state)
{
    (void)state;
    enum { COUNT = 1021 };
    FOR_EACH_REDUCTION(dtype, op)
    {
        uint64_t left[COUNT], right[COUNT], expected[COUNT], own[COUNT], rng = 11;
        size_t bytes = COUNT * reference_bytes(dtype);
        for (size_t e = 0; e < COUNT; e++) {
            uint64_t pair[] = {harness_element(dtype, true, &rng),
                               harness_element(dtype, true, &rng)};
            reference_set(dtype, left, e, pair[0]);
            reference_set(dtype, right, e, pair[1]);
            reference_set(dtype, expected, e, reference_tree(dtype, op, pair, 2, 1.0, NULL));
        }
        horon_reduce_combine(dtype, op, left, right, own, COUNT);
        assert_memory_equal(own, expected, bytes);
        memcpy(own, left, bytes);
        horon_reduce_combine(dtype, op, own, right, own, COUNT);
        assert_memory_equal(own, expected, bytes);
        horon_reduce_combine(dtype, op, left, right, right, COUNT);
        assert_memory_equal(right, expected, bytes);
    }
}

static void test_reduce_nothing_touches_no_memory(void **state)
{
    (void)state;
    const struct horon_reduce_finish finish = {.postscale = 2.0, .divisor = 2};
    const void *in[HORON_REDUCE_INPUTS_MAX] = {NULL};
    void *out[2] = {NULL};
    FOR_EACH_REDUCTION(dtype, op)
    {
        for (int n = 1; n <= 5; n++)
            horon_reduce_tree(dtype, op, in, n, 0.5, out, 2, 0, &finish);
        horon_reduce_tree(dtype, op, in, 2, 1.0, out, 1, 0, NULL);
        horon_reduce_combine(dtype, op, NULL, NULL, NULL, 0);
        horon_reduce_finish(dtype, &finish, NULL, NULL, 0);
        harness_scale(dtype, 1.0, NULL, NULL, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reduce_supported_is_what_the_abi_marks),
        cmocka_unit_test(test_reduce_tree_below_a_vector_gives_the_reference),
        cmocka_unit_test(test_reduce_tree_above_a_block_gives_the_reference),
        cmocka_unit_test(test_reduce_tree_of_many_inputs_gives_the_reference),
        cmocka_unit_test(test_reduce_tree_into_any_input_gives_the_reference),
        cmocka_unit_test(test_reduce_tree_scaled_before_and_after_gives_the_reference),
        cmocka_unit_test(test_reduce_tree_averaged_gives_the_reference),
        cmocka_unit_test(test_reduce_finish_and_prescale_give_the_reference),
        cmocka_unit_test(test_reduce_finish_with_nothing_to_do_copies),
        cmocka_unit_test(test_reduce_tree_finishing_equals_finish_after_tree),
        cmocka_unit_test(test_reduce_combine_into_either_side_is_the_tree_of_two),
        cmocka_unit_test(test_reduce_nothing_touches_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
