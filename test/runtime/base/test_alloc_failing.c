/* SPDX-License-Identifier: Apache-2.0 */
/* The failing hook: which one fails, what is counted, and the loop and the texts without memory. */
#undef NDEBUG
#include "alloc.h"
#include "alloc_failing.h"
#include "loop.h"
#include "status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

static void *one_of_each(int which)
{
    switch (which) {
    case 0:
        return horon_alloc(3);
    case 1:
        return horon_zalloc(3, 5);
    case 2:
        return horon_realloc(NULL, 7);
    case 3:
        return horon_alloc_lines(9);
    default:
        return horon_strdup("x");
    }
}

static void test_alloc_failing_fails_the_nth_and_no_other(void **state)
{
    (void)state;
    for (int for_good = 0; for_good <= 1; for_good++) {
        for (long nth = 0; nth <= 6; nth++) {
            long live = alloc_live();
            void *all[5];
            alloc_fail_at(nth, for_good);
            for (int i = 0; i < 5; i++) {
                bool fails = nth && (i + 1 == nth || (for_good && i + 1 > nth));
                all[i] = one_of_each(i);
                assert_int_equal(all[i] == NULL, fails);
                live += !fails;
            }
            assert_int_equal(alloc_count(), 5);
            assert_int_equal(alloc_live(), live);
            alloc_fail_at(0, 0);
            for (int i = 0; i < 5; i++)
                horon_free(all[i]);
        }
    }
    assert_int_equal(alloc_live(), 0);
}

static void test_alloc_failing_realloc_keeps_the_old(void **state)
{
    (void)state;
    alloc_fail_at(2, 0);
    char *text = horon_strdup("kept"), *grown = horon_realloc(text, 1000);
    assert_null(grown);
    assert_string_equal(text, "kept");
    assert_int_equal(alloc_live(), 1);
    text = horon_realloc(text, 1000);
    assert_string_equal(text, "kept");
    assert_int_equal(alloc_live(), 1);
    horon_free(text);
    assert_int_equal(alloc_live(), 0);
}

static void test_loop_without_memory_is_not_made(void **state)
{
    struct horon_error error = {0};
    struct horon_loop *loop = NULL;
    int doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    (void)state;
    for (long nth = 1;; nth++) {
        alloc_fail_at(nth, 0);
        horon_status_t status = horon_loop_create(doorbell, 3, &loop, &error);
        if (status == HORON_OK)
            break;
        assert_int_equal(status, HORON_ERR_MEMORY);
        assert_non_null(strstr(error.text, "event loop"));
        assert_null(loop);
        assert_int_equal(alloc_live(), 0);
        assert_in_range(nth, 1, 10);
    }
    horon_loop_destroy(loop);
    alloc_fail_at(0, 0);
    assert_int_equal(alloc_live(), 0);
    close(doorbell);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc_failing_fails_the_nth_and_no_other),
        cmocka_unit_test(test_alloc_failing_realloc_keeps_the_old),
        cmocka_unit_test(test_loop_without_memory_is_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
