/* SPDX-License-Identifier: Apache-2.0 */
/* When a rank of a crowded job takes its core for its own. */
#undef NDEBUG
#include "yields.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct horon_yields yields_of(int quick)
{
    struct horon_yields yields = {0};
    for (int i = 0; i < quick; i++)
        horon_yields_add(&yields, i % 2 ? HORON_YIELD_TAKEN_NS - 1 : 0);
    return yields;
}

static void test_yields_must_come_back_at_once_many_times(void **state)
{
    (void)state;
    for (int quick = 0; quick < 3 * HORON_YIELDS_ALONE; quick++) {
        struct horon_yields yields = yields_of(quick);
        assert_int_equal(horon_yields_may_spin(&yields), quick >= HORON_YIELDS_ALONE);
    }
}

static void test_yields_one_that_lasts_ends_it(void **state)
{
    struct horon_yields yields = yields_of(5 * HORON_YIELDS_ALONE);
    (void)state;
    assert_true(horon_yields_may_spin(&yields));
    horon_yields_add(&yields, HORON_YIELD_TAKEN_NS);
    for (int quick = 0; quick < HORON_YIELDS_ALONE; quick++) {
        assert_false(horon_yields_may_spin(&yields));
        horon_yields_add(&yields, 0);
    }
    assert_true(horon_yields_may_spin(&yields));
}

static void test_yields_are_asked_again_now_and_then(void **state)
{
    struct horon_yields yields = yields_of(HORON_YIELDS_ALONE);
    (void)state;
    for (int round = 0; round < 3; round++) {
        for (int wait = 1; wait < HORON_YIELDS_ASK; wait++)
            assert_true(horon_yields_may_spin(&yields));
        assert_false(horon_yields_may_spin(&yields));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yields_must_come_back_at_once_many_times),
        cmocka_unit_test(test_yields_one_that_lasts_ends_it),
        cmocka_unit_test(test_yields_are_asked_again_now_and_then),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
