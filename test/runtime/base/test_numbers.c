/* SPDX-License-Identifier: Apache-2.0 */
/* A number is all of a text. Lists: their places, and where a list ends. What is no list is refused
 * by those that read one (boot's selections, process sets). */
#undef NDEBUG
#include "numbers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void test_numbers_have_the_places_of_the_list(void **state)
{
    static const int expected[7] = {-1, 3, -1, 1, 4, 2, 0};
    int places[7];
    (void)state;
    assert_int_equal(horon_numbers_parse("6,3-5:2, 1,4", 12, 7, places), 5);
    assert_memory_equal(places, expected, sizeof places);
}

static void test_numbers_end_with_their_bytes(void **state)
{
    int places[3];
    (void)state;
    assert_int_equal(horon_numbers_parse("0,2;1", 3, 3, places), 2);
    assert_int_equal(places[1], -1);
    assert_int_equal(horon_numbers_parse("0,2;1", 2, 3, places), -1); /* a comma ends it */
    assert_int_equal(horon_numbers_parse("0,2;1", 5, 3, places), -1);
    assert_int_equal(horon_numbers_parse("", 0, 3, places), 0);
}

static void test_number_is_all_of_the_text_and_within_bounds(void **state)
{
    static const char *const wrongs[] = {"", "x", "7x", "7 ", "-3", "8", "99999999999999999999"};
    int value = 5;
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        assert_false(horon_number_parse(wrongs[i], -2, 7, &value));
        assert_int_equal(value, 5);
    }
    assert_true(horon_number_parse("-2", -2, 7, &value));
    assert_int_equal(value, -2);
    assert_true(horon_number_parse("7", -2, 7, &value));
    assert_int_equal(value, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_have_the_places_of_the_list),
        cmocka_unit_test(test_numbers_end_with_their_bytes),
        cmocka_unit_test(test_number_is_all_of_the_text_and_within_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
