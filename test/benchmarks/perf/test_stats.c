/* SPDX-License-Identifier: Apache-2.0 */
/* Order statistics, the words of verbs and types, and nccl-tests' bandwidth factors. */
#undef NDEBUG
#include "names.h"
#include "stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static void test_stats_odd_count_gives_the_middle(void **state)
{
    (void)state;
    double samples[] = {5.0, 1.0, 4.0, 2.0, 100.0};
    const struct perf_stats stats = perf_stats_of(samples, 5);
    assert_true(stats.median == 4.0);
    assert_true(stats.min == 1.0);
    assert_true(stats.max == 100.0);
    assert_true(stats.p25 == 2.0);
    assert_true(stats.p75 == 5.0);
}

static void test_stats_even_count_interpolates(void **state)
{
    (void)state;
    double samples[] = {4.0, 1.0};
    const struct perf_stats stats = perf_stats_of(samples, 2);
    assert_true(stats.median == 2.5);
    assert_true(stats.p75 == 3.25);
}

static void test_stats_one_and_none_are_no_special_case(void **state)
{
    (void)state;
    double one[] = {7.0};
    const struct perf_stats single = perf_stats_of(one, 1);
    assert_true(single.median == 7.0 && single.p25 == 7.0 && single.max == 7.0);
    const struct perf_stats none = perf_stats_of(one, 0);
    assert_true(none.median == 0.0 && none.max == 0.0);
}

static void test_names_agree_with_the_library(void **state)
{
    (void)state;
    for (int i = 0; i < HORON_DTYPE_COUNT; i++) {
        const horon_dtype_t dtype = (horon_dtype_t)i;
        horon_dtype_t found;
        assert_int_equal(perf_dtype_bytes(dtype), horon_dtype_bytes(dtype));
        assert_int_equal(perf_dtype_find(perf_dtype_word(dtype), &found), 0);
        assert_int_equal(found, dtype);
    }
    for (int i = 0; i < HORON_REDOP_COUNT; i++) {
        horon_redop_t found;
        assert_int_equal(perf_redop_find(perf_redop_word((horon_redop_t)i), &found), 0);
        assert_int_equal(found, i);
    }
    for (int i = 0; i < PERF_VERB_COUNT; i++) {
        horon_verb_t found;
        assert_int_equal(perf_verb_find(perf_verb_word((horon_verb_t)i), &found), 0);
        assert_int_equal(found, i);
    }
    horon_dtype_t untouched = HORON_INT8;
    assert_int_equal(perf_dtype_find("quaternion", &untouched), -1);
    assert_int_equal(untouched, HORON_INT8);
}

static void test_names_busbw_is_that_of_nccl_tests(void **state)
{
    (void)state;
    assert_true(perf_busbw_factor(HORON_ALLREDUCE, 4) == 1.5);
    assert_true(perf_busbw_factor(HORON_ALLREDUCE, 1) == 0.0);
    assert_true(perf_busbw_factor(HORON_ALLGATHER, 4) == 0.75);
    assert_true(perf_busbw_factor(HORON_ALLTOALL, 4) == 0.75);
    assert_true(perf_busbw_factor(HORON_GATHER, 4) == 0.75);
    assert_true(perf_busbw_factor(HORON_SCATTER, 4) == 0.75);
    assert_true(perf_busbw_factor(HORON_BROADCAST, 4) == 1.0);
    assert_true(perf_busbw_factor(HORON_BARRIER, 4) == 0.0);
    assert_true(perf_busbw_factor(HORON_REDUCESCATTER, 4) == 0.75);
    assert_true(perf_busbw_factor(HORON_REDUCE, 4) == 1.0);
    assert_true(perf_busbw_factor(HORON_SEND, 4) == 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stats_odd_count_gives_the_middle),
        cmocka_unit_test(test_stats_even_count_interpolates),
        cmocka_unit_test(test_stats_one_and_none_are_no_special_case),
        cmocka_unit_test(test_names_agree_with_the_library),
        cmocka_unit_test(test_names_busbw_is_that_of_nccl_tests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
