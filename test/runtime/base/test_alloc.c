/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the allocation hook promises: of nothing there is a pointer, alignment, zeros, and NULL for
 * what does not fit a size_t. Compiled twice: over the C library's hook, and over the one of the
 * torture tests, which must promise the same.
 */
#undef NDEBUG
#include "alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Volatile, so that the compiler does not refuse what the hook has to. */
static volatile size_t most = SIZE_MAX;

static void test_alloc_of_nothing_is_something(void **state)
{
    void *all[] = {horon_alloc(0), horon_zalloc(0, 8), horon_zalloc(8, 0), horon_alloc_lines(0),
                   horon_realloc(NULL, 0)};
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_non_null(all[i]);
        memset(all[i], 1, 1); /* one byte at least */
        horon_free(all[i]);
    }
    horon_free(NULL);
}

static void test_alloc_zalloc_gives_zeros_and_refuses_overflow(void **state)
{
    (void)state;
    uint8_t *memory = horon_zalloc(7, 13);
    assert_non_null(memory);
    for (int i = 0; i < 7 * 13; i++)
        assert_int_equal(memory[i], 0);
    horon_free(memory);
    assert_null(horon_zalloc(most, 2));
    assert_null(horon_zalloc(most / 2 + 1, 2));
    assert_null(horon_zalloc((size_t)1 << 33, (size_t)1 << 33));
}

static void test_alloc_lines_are_aligned_and_large_enough(void **state)
{
    static const size_t sizes[] = {1, 63, 64, 65, 127, 128, 4093};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t *memory = horon_alloc_lines(sizes[i]);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        memset(memory, 1, sizes[i]);
        horon_free(memory);
    }
}

static void test_alloc_of_what_does_not_fit_is_refused(void **state)
{
    (void)state;
    for (size_t less = 0; less < 200; less++) {
        assert_null(horon_alloc(most - less));
        assert_null(horon_alloc_lines(most - less));
    }
}

static void test_alloc_realloc_keeps_what_was_there(void **state)
{
    (void)state;
    char *memory = horon_strdup("text");
    assert_string_equal(memory, "text");
    memory = horon_realloc(memory, 100000);
    assert_string_equal(memory, "text");
    assert_null(horon_realloc(memory, most / 2 + 1));
    assert_string_equal(memory, "text"); /* the old memory stays */
    memory = horon_realloc(memory, 5);
    assert_string_equal(memory, "text");
    horon_free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc_of_nothing_is_something),
        cmocka_unit_test(test_alloc_zalloc_gives_zeros_and_refuses_overflow),
        cmocka_unit_test(test_alloc_lines_are_aligned_and_large_enough),
        cmocka_unit_test(test_alloc_of_what_does_not_fit_is_refused),
        cmocka_unit_test(test_alloc_realloc_keeps_what_was_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
