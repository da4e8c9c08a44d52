/* SPDX-License-Identifier: Apache-2.0 */
/* The process sets of --sets: all of one size and different, and each rank in as many as any. */
#undef NDEBUG
#include "sets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 17

static void test_sets_are_different_and_of_one_size(void **state)
{
    (void)state;
    for (int size = 4; size <= RANKS_MAX; size++) {
        uint32_t seen[RANKS_MAX * RANKS_MAX];
        for (uint64_t set = 0; set < perf_sets_most(size); set++) {
            int32_t ranks[RANKS_MAX];
            seen[set] = 0;
            perf_set_ranks(set, size, ranks);
            for (int i = 0; i < perf_set_size(size); i++) {
                assert_in_range(ranks[i], i > 0 ? ranks[i - 1] + 1 : 0, size - 1);
                assert_int_equal(perf_set_rank(set, size, ranks[i]), i);
                seen[set] |= 1u << ranks[i];
            }
            for (uint64_t other = 0; other < set; other++) {
                assert_int_not_equal(seen[set], seen[other]);
            }
        }
    }
}

static void test_sets_have_every_rank_as_often(void **state)
{
    (void)state;
    for (int size = 4; size <= RANKS_MAX; size++) {
        int of[RANKS_MAX] = {0};
        for (uint64_t set = 0; set < (uint64_t)size; set++) { /* as many as there are ranks */
            for (int rank = 0; rank < size; rank++) {
                of[rank] += perf_set_rank(set, size, rank) >= 0;
            }
        }
        for (int rank = 0; rank < size; rank++) {
            assert_int_equal(of[rank], perf_set_size(size));
        }
    }
}

static void test_sets_need_four_ranks(void **state)
{
    (void)state;
    assert_int_equal(perf_sets_most(1), 0);
    assert_int_equal(perf_sets_most(3), 0);
    assert_int_equal(perf_sets_most(4), 6);
    assert_int_equal(perf_sets_most(7), 21);
    assert_int_equal(perf_set_size(4), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sets_are_different_and_of_one_size),
        cmocka_unit_test(test_sets_have_every_rank_as_often),
        cmocka_unit_test(test_sets_need_four_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
