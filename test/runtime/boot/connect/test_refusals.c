/* SPDX-License-Identifier: Apache-2.0 */
/* A connection that is refused is told once and counted, by its name and the reason; a flood stays
 * small. */
#undef NDEBUG
#include "boot/connect/refusals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static void test_refusals_is_told_once_and_counted(void **state)
{
    struct horon_refusals refusals = {0};
    char text[512], from[32];
    (void)state;
    horon_refusals_describe(&refusals, text, sizeof text);
    assert_string_equal(text, "");
    for (int i = 0; i < 57; i++) { /* each try from another port */
        snprintf(from, sizeof from, "10.0.0.3:%d", 40000 + i);
        assert_true((i == 0) ==
                    (horon_refusals_note(&refusals, 1, true, from, "a wrong key") != NULL));
    }
    horon_refusals_describe(&refusals, text, sizeof text);
    assert_string_equal(text, "rank 1 at 10.0.0.3 was refused 57 times: a wrong key");
    assert_non_null(horon_refusals_note(&refusals, 1, true, "10.0.0.3:5", "too late"));
    assert_non_null(horon_refusals_note(&refusals, 2, true, "10.0.0.3:5", "too late"));
    assert_non_null(
        horon_refusals_note(&refusals, HORON_REFUSALS_NOBODY, false, "[::1]:7", "no horon"));
    assert_null(
        horon_refusals_note(&refusals, HORON_REFUSALS_NOBODY, false, "[::1]:8", "no horon"));
    assert_non_null(
        horon_refusals_note(&refusals, HORON_REFUSALS_NOBODY, false, "process 12", "no horon"));
    horon_refusals_describe(&refusals, text, sizeof text);
    assert_non_null(strstr(text, "; rank 2 at 10.0.0.3 was refused: too late; "
                                 "[::1] was refused 2 times: no horon; process 12 was"));
    assert_non_null(horon_refusals_note(&refusals, 1, false, "10.0.0.3:5", "a wrong key"));
    horon_refusals_describe(&refusals, text, sizeof text);
    assert_non_null(strstr(text, "10.0.0.3 (which says that it is rank 1) was refused: a wr"));
    horon_refusals_describe(&refusals, text, 20);
    assert_string_equal(text, "rank 1 at 10.0.0.3 ");
}

static void test_refusals_flood_of_strangers_is_bounded(void **state)
{
    struct horon_refusals refusals = {0};
    int told = 0;
    (void)state;
    for (int i = 0; i < 1000; i++) {
        char from[32];
        snprintf(from, sizeof from, "10.0.%d.%d:1", i / 250, i % 250);
        told +=
            horon_refusals_note(&refusals, HORON_REFUSALS_NOBODY, false, from, "no horon") != NULL;
    }
    assert_int_equal(told, HORON_REFUSALS_MAX + 1);
    assert_int_equal(refusals.count, HORON_REFUSALS_MAX);
    assert_null(
        horon_refusals_note(&refusals, HORON_REFUSALS_NOBODY, false, "10.0.0.3:9", "no horon"));
    assert_int_equal(refusals.items[3].times, 2);
    assert_true(horon_refusals_times(&refusals) == 1001);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals_is_told_once_and_counted),
        cmocka_unit_test(test_refusals_flood_of_strangers_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
