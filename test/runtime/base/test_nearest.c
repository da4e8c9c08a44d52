/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean": what is nearest, at what distance, and what is never said. */
#undef NDEBUG
#include "nearest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct horon_nearest find(const char *wanted, const char *const *names)
{
    struct horon_nearest nearest = horon_nearest_to(wanted, strlen(wanted));
    for (; *names; names++)
        horon_nearest_consider(&nearest, *names, strlen(*names));
    return nearest;
}

static void test_nearest_counts_edits(void **state)
{
    static const struct {
        const char *wanted, *name;
        size_t edits;
    } cases[] = {{"", "", 0},          {"", "abc", 3},         {"abc", "", 3},
                 {"abc", "abc", 0},    {"abc", "abd", 1},      {"abc", "ab", 1},
                 {"abc", "xabc", 1},   {"abc", "acb", 2},      {"kitten", "sitting", 3},
                 {"flaw", "lawn", 2},  {"SHM", "shm", 0},      {"shm", "SHN", 1},
                 {"abc", "cbaabc", 3}, {"abcdef", "fedcba", 6}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const names[] = {cases[i].name, NULL};
        struct horon_nearest nearest = find(cases[i].wanted, names);
        assert_int_equal(nearest.distance, cases[i].edits);
        assert_string_equal(nearest.name, cases[i].name);
    }
}

static void test_nearest_of_several_is_first_of_the_nearest(void **state)
{
    static const char *const names[] = {"FUSION_BYTES", "SHM", "SHN", "SHM_CHUNK_BYTES", NULL};
    (void)state;
    assert_string_equal(find("fusion_byte", names).name, "FUSION_BYTES");
    assert_string_equal(find("SHO", names).name, "SHM");
    assert_string_equal(find("SHN", names).name, "SHN");
    assert_string_equal(find("CHUNK_BYTES", names).name, "SHM_CHUNK_BYTES");
}

static void test_nearest_is_close_up_to_a_third(void **state)
{
    static const struct {
        const char *wanted, *name;
        bool close;
    } cases[] = {{"--verbos", "--verbose", true},
                 {"SHN", "SHM", true},
                 {"STOER", "STORE", true},
                 {"CHUNK_BYTES", "SHM_CHUNK_BYTES", true},
                 {"--bogus", "--hosts", false},
                 {"NOSUCH", "SHM", false},
                 {"", "SHM", false},
                 {"ab", "cd", false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const names[] = {cases[i].name, NULL};
        struct horon_nearest nearest = find(cases[i].wanted, names);
        if (horon_nearest_is_close(&nearest) != cases[i].close)
            fail_msg("%s and %s", cases[i].wanted, cases[i].name);
    }
    const char *const none[] = {NULL};
    struct horon_nearest nearest = find("x", none);
    assert_false(horon_nearest_is_close(&nearest));
}

static void test_nearest_of_nothing_is_empty(void **state)
{
    static const char *const none[] = {NULL};
    (void)state;
    struct horon_nearest nearest = find("x", none);
    assert_string_equal(nearest.name, "");
    assert_true(nearest.distance == SIZE_MAX);
}

/* Only the given bytes of a name count, wherever it ends. */
static void test_nearest_takes_names_without_end(void **state)
{
    (void)state;
    struct horon_nearest nearest = horon_nearest_to("verbs=3", 5);
    horon_nearest_consider(&nearest, "verbose --version", 7);
    assert_string_equal(nearest.name, "verbose");
    assert_int_equal(nearest.distance, 2);
}

static void test_nearest_of_overlong_names_stays_in_bounds(void **state)
{
    char longest[HORON_NEAREST_BYTES_MAX + 2], huge[5000];
    (void)state;
    memset(longest, 'a', sizeof longest);
    memset(huge, 'a', sizeof huge);
    struct horon_nearest nearest = horon_nearest_to(huge, sizeof huge);
    horon_nearest_consider(&nearest, longest, HORON_NEAREST_BYTES_MAX + 1);
    assert_string_equal(nearest.name, ""); /* too long: passed over */
    horon_nearest_consider(&nearest, longest, HORON_NEAREST_BYTES_MAX);
    assert_int_equal(strlen(nearest.name), HORON_NEAREST_BYTES_MAX);
    assert_int_equal(nearest.distance, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest_counts_edits),
        cmocka_unit_test(test_nearest_of_several_is_first_of_the_nearest),
        cmocka_unit_test(test_nearest_is_close_up_to_a_third),
        cmocka_unit_test(test_nearest_of_nothing_is_empty),
        cmocka_unit_test(test_nearest_takes_names_without_end),
        cmocka_unit_test(test_nearest_of_overlong_names_stays_in_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
