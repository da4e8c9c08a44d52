/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of numbers: their places, and where a list ends. What is no list is refused by those that
 * read one (boot's selections, process sets). */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_have_the_places_of_the_list),
        cmocka_unit_test(test_numbers_end_with_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
