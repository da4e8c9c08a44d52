/* SPDX-License-Identifier: Apache-2.0 */
/* Who is turned away is told once and counted, by who and why; and a flood stays small. */
#undef NDEBUG
#include "boot/turned.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static void test_turned_is_told_once_and_counted(void **state)
{
    struct horon_turned turned = {0};
    char text[256], from[32];
    (void)state;
    horon_turned_describe(&turned, text, sizeof text);
    assert_string_equal(text, "");
    for (int i = 0; i < 57; i++) { /* each try from another port */
        snprintf(from, sizeof from, "10.0.0.3:%d", 40000 + i);
        assert_int_equal(horon_turned_note(&turned, 1, from, "a wrong key"), i == 0);
    }
    horon_turned_describe(&turned, text, sizeof text);
    assert_string_equal(text, "rank 1 at 10.0.0.3 was turned away 57 times: a wrong key");
    assert_true(horon_turned_note(&turned, 1, "10.0.0.3:5", "too late"));
    assert_true(horon_turned_note(&turned, 2, "10.0.0.3:5", "too late"));
    assert_true(horon_turned_note(&turned, HORON_TURNED_NOBODY, "[::1]:7", "no horon"));
    assert_false(horon_turned_note(&turned, HORON_TURNED_NOBODY, "[::1]:8", "no horon"));
    assert_true(horon_turned_note(&turned, HORON_TURNED_NOBODY, "process 12", "no horon"));
    horon_turned_describe(&turned, text, sizeof text);
    assert_non_null(strstr(text, "; rank 2 at 10.0.0.3 was turned away: too late; "
                                 "[::1] was turned away 2 times: no horon; process 12 was"));
    horon_turned_describe(&turned, text, 20);
    assert_string_equal(text, "rank 1 at 10.0.0.3 ");
}

static void test_turned_flood_of_strangers_is_bounded(void **state)
{
    struct horon_turned turned = {0};
    int told = 0;
    (void)state;
    for (int i = 0; i < 1000; i++) {
        char from[32];
        snprintf(from, sizeof from, "10.0.%d.%d:1", i / 250, i % 250);
        told += horon_turned_note(&turned, HORON_TURNED_NOBODY, from, "no horon");
    }
    assert_int_equal(told, HORON_TURNED_MAX + 1);
    assert_int_equal(turned.count, HORON_TURNED_MAX);
    assert_false(horon_turned_note(&turned, HORON_TURNED_NOBODY, "10.0.0.3:9", "no horon"));
    assert_int_equal(turned.items[3].times, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turned_is_told_once_and_counted),
        cmocka_unit_test(test_turned_flood_of_strangers_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
