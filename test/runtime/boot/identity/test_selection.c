/* SPDX-License-Identifier: Apache-2.0 */
/* A job of some of the ranks of a launch: which rank is which there, and what is no list. */
#undef NDEBUG
#include "boot/identity/identity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static struct horon_identity started(int rank, int size)
{
    return (struct horon_identity){.rank = rank,
                                   .size = size,
                                   .local_rank = rank,
                                   .local_size = size,
                                   .store = "tcp://127.0.0.1:4000"};
}

static void expect(const char *ranks, int rank, int size, int place, int count)
{
    struct horon_error error = {0};
    struct horon_identity id = started(rank, size);
    assert_int_equal(horon_identity_select(&id, ranks, &error), HORON_OK);
    assert_int_equal(id.rank, place);
    assert_int_equal(id.size, count);
    assert_int_equal(id.left_out, size - count);
}

static void test_selection_numbers_ranks_by_their_places(void **state)
{
    (void)state;
    expect("0,2", 0, 3, 0, 2);
    expect("0,2", 2, 3, 1, 2);
    expect("2,0", 2, 3, 0, 2);
    expect("7,1-3,9-9", 3, 10, 3, 5);
    expect("7,1-3,9-9", 9, 10, 4, 5);
    expect("1", 1, 2, 0, 1);
    expect("0-9:3,1", 9, 10, 3, 5);
    expect("0-8:3,1", 6, 10, 2, 4); /* 8 is none of them */
}

/* All in their order are the launch itself, however that is said. */
static void test_selection_of_all_ranks_is_the_launch(void **state)
{
    static const char *const wholes[] = {"", "0-2", "0,1,2"};
    struct horon_error error = {0};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const struct horon_identity before = started(1, 3);
        struct horon_identity id = before;
        assert_int_equal(horon_identity_select(&id, wholes[i], &error), HORON_OK);
        assert_memory_equal(&id, &before, sizeof id);
    }
}

static uint64_t mark_of(const char *ranks, int rank, uint64_t job)
{
    struct horon_error error = {0};
    struct horon_identity id = started(rank, 4);
    id.job = job;
    assert_int_equal(horon_identity_select(&id, ranks, &error), HORON_OK);
    return id.job;
}

static void test_selection_has_a_mark_of_its_list(void **state)
{
    (void)state;
    assert_int_equal(mark_of("0,2", 0, 0), mark_of("0,2", 2, 0));
    assert_int_equal(mark_of("0-2", 0, 5), mark_of("0,1,2", 1, 5));
    assert_int_not_equal(mark_of("0,2", 0, 0), 0);
    assert_int_not_equal(mark_of("0,2", 0, 0), mark_of("2,0", 0, 0));
    assert_int_not_equal(mark_of("0,2", 0, 0), mark_of("0,3", 0, 0));
    assert_int_not_equal(mark_of("0,2", 0, 1), mark_of("0,2", 0, 2));
}

/* What a launcher says of hosts is about all that it has started; one alone meets nobody. */
static void test_selection_forgets_what_was_said_of_the_launch(void **state)
{
    struct horon_error error = {0};
    struct horon_identity id = started(2, 3);
    (void)state;
    assert_int_equal(horon_identity_select(&id, "0,2", &error), HORON_OK);
    assert_int_equal(id.local_rank, -1);
    assert_int_equal(id.local_size, -1);
    assert_string_equal(id.store, "tcp://127.0.0.1:4000");
    id = started(2, 3);
    assert_int_equal(horon_identity_select(&id, "2", &error), HORON_OK);
    assert_string_equal(id.store, "");
}

static void test_selection_that_is_no_list_is_refused(void **state)
{
    static const char *const wrongs[] = {
        ",",    "0,",    ",0",    "0,,1", "0 1",   "x",      "-1",   "1-",
        "2-1",  "0-1-2", "3",     "0,0",  "0-1,1", "+1",     "0,1x", "99999999999999999999",
        "0-2:", "0-2:0", "0-2:x", "0:2",  "1-1:1", "0-2:1:1"};
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        struct horon_error error = {0};
        struct horon_identity id = started(1, 3);
        const struct horon_identity before = id;
        assert_int_equal(horon_identity_select(&id, wrongs[i], &error), HORON_ERR_CONFIG);
        assert_non_null(strstr(error.text, "a list of ranks from 0 to 2 is needed"));
        assert_memory_equal(&id, &before, sizeof id);
    }
}

static void test_selection_without_this_rank_names_it(void **state)
{
    struct horon_error error = {0};
    struct horon_identity id = started(1, 3);
    (void)state;
    assert_int_equal(horon_identity_select(&id, "0,2", &error), HORON_ERR_INVALID);
    assert_non_null(strstr(error.text, "rank 1 of the 3 that were started is not among the ranks "
                                       "of the job, 0,2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_selection_numbers_ranks_by_their_places),
        cmocka_unit_test(test_selection_of_all_ranks_is_the_launch),
        cmocka_unit_test(test_selection_has_a_mark_of_its_list),
        cmocka_unit_test(test_selection_forgets_what_was_said_of_the_launch),
        cmocka_unit_test(test_selection_that_is_no_list_is_refused),
        cmocka_unit_test(test_selection_without_this_rank_names_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
