/* SPDX-License-Identifier: Apache-2.0 */
/* The library is opened as often as one likes, and what is not libev is told. */
#undef NDEBUG
#include "libev.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_libev_opened_twice_both_have_loops(void **state)
{
    (void)state;
    struct horon_libev first = {0}, second = {0};
    struct horon_error error = {0};
    assert_int_equal(horon_libev_open(&first, "libev.so.4", &error), HORON_OK);
    assert_int_equal(horon_libev_open(&second, "libev.so.4", &error), HORON_OK);
    struct ev_loop *loop = first.loop_new(EVFLAG_NOENV);
    assert_non_null(loop);
    first.loop_destroy(loop);
    horon_libev_close(&first);
    horon_libev_close(&first); /* a no-op */
    loop = second.loop_new(EVFLAG_NOENV);
    assert_non_null(loop);
    second.loop_destroy(loop);
    horon_libev_close(&second);
}

static void test_libev_not_installed_says_what_to_install(void **state)
{
    (void)state;
    struct horon_libev libev = {0};
    struct horon_error error = {0};
    assert_int_equal(horon_libev_open(&libev, "libev-is-not-here.so.4", &error), HORON_ERR_SYSTEM);
    assert_null(libev.image);
    assert_non_null(strstr(error.text, "libev4"));
    assert_non_null(strstr(error.text, "libev-is-not-here.so.4"));
}

static void test_libev_another_library_is_refused(void **state)
{
    (void)state;
    struct horon_libev libev = {0};
    struct horon_error error = {0};
    assert_int_equal(horon_libev_open(&libev, "libm.so.6", &error), HORON_ERR_SYSTEM);
    assert_null(libev.image);
    assert_non_null(strstr(error.text, "libm.so.6 has no ev_loop_new"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_libev_opened_twice_both_have_loops),
        cmocka_unit_test(test_libev_not_installed_says_what_to_install),
        cmocka_unit_test(test_libev_another_library_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
