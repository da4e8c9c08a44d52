/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three versions of a struct, each as caller and as library, in both directions. The structs of
 * horon.h as they are: the descriptor in ../engine/test_versions.c, options in multi/test_calls.c,
 * failures in multi/test_one_failure.c.
 */
#undef NDEBUG
#include "versions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct version {
    size_t struct_bytes;
    int64_t first;
    int64_t second; /* of version 2 on; 0 is the default of what is added */
    int64_t third;  /* of version 3 on */
};

#define VERSIONS 3
static const size_t sizes[VERSIONS] = {offsetof(struct version, second),
                                       offsetof(struct version, third), sizeof(struct version)};

/* No more memory than its version has, for the address sanitizer. */
static struct version *make(size_t bytes, int64_t first, int64_t second, int64_t third)
{
    const struct version whole = {bytes, first, second, third};
    struct version *made = calloc(1, bytes < sizeof(size_t) ? sizeof(size_t) : bytes);
    assert_non_null(made);
    memcpy(made, &whole, bytes < sizeof whole ? bytes : sizeof whole);
    memcpy(made, &bytes, sizeof bytes);
    return made;
}

static void test_versions_known_fields_pass_and_others_keep_their_default(void **state)
{
    (void)state;
    for (int caller = 0; caller < VERSIONS; caller++) {
        for (int library = 0; library < VERSIONS; library++) {
            const int common = caller < library ? caller : library;
            struct version own = {sizes[library], -1, -2, -3};
            struct version *given =
                make(sizes[caller], 10, library >= 1 ? 20 : 0, library >= 2 ? 30 : 0);
            struct horon_error error = {0};
            assert_int_equal(
                horon_struct_take("thing", given, sizes[0], &own, sizes[library], &error),
                HORON_OK);
            assert_int_equal(own.struct_bytes, sizes[library]);
            assert_int_equal(own.first, 10);
            assert_int_equal(own.second, common >= 1 ? 20 : -2);
            assert_int_equal(own.third, common >= 2 ? 30 : -3);
            free(given);
        }
    }
}

static void test_versions_unknown_field_that_is_set_is_refused_where_it_is(void **state)
{
    (void)state;
    for (int library = 0; library < VERSIONS - 1; library++) {
        for (size_t at = sizes[library]; at < sizes[VERSIONS - 1]; at++) {
            char expected[128];
            struct version own = {sizes[library], -1, -2, -3};
            struct version *given = make(sizes[VERSIONS - 1], 10, 0, 0);
            struct horon_error error = {0};
            ((unsigned char *)given)[at] = 1;
            assert_int_equal(
                horon_struct_take("thing", given, sizes[0], &own, sizes[library], &error),
                HORON_ERR_INVALID);
            snprintf(expected, sizeof expected,
                     "byte %zu of the thing is set; the program knows %zu bytes of it, horon %s "
                     "only %zu",
                     at, sizes[VERSIONS - 1], horon_version(), sizes[library]);
            if (!strstr(error.text, expected))
                fail_msg("'%s', not '%s'", error.text, expected);
            assert_int_equal(own.first, -1);
            free(given);
        }
    }
}

static void test_versions_size_of_no_version_is_refused(void **state)
{
    static const size_t wrong[] = {0, 8, 15, 17, 31, 33, sizeof(struct version) * 4 + 8, SIZE_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct version own = {sizeof own, -1, -2, -3}, given = {wrong[i], 10, 20, 30};
        struct horon_error error = {0};
        assert_int_equal(horon_struct_take("thing", &given, sizes[0], &own, sizeof own, &error),
                         HORON_ERR_INVALID);
        assert_non_null(strstr(error.text, "thing.struct_bytes is "));
        assert_int_equal(own.first, -1);
        assert_int_equal(horon_struct_give("thing", &given, sizes[0], &own, sizeof own, &error),
                         HORON_ERR_INVALID);
        assert_int_equal(given.first, 10);
    }
}

static void test_versions_what_is_given_is_cut_or_filled_with_zeros(void **state)
{
    (void)state;
    for (int caller = 0; caller < VERSIONS; caller++) {
        for (int library = 0; library < VERSIONS; library++) {
            const struct version own = {sizes[library], 10, 20, 30};
            struct version *given = make(sizes[caller], -1, -2, -3);
            struct horon_error error = {0};
            assert_int_equal(
                horon_struct_give("thing", given, sizes[0], &own, sizes[library], &error),
                HORON_OK);
            assert_int_equal(given->struct_bytes, sizes[caller]);
            assert_int_equal(given->first, 10);
            if (caller >= 1)
                assert_int_equal(given->second, library >= 1 ? 20 : 0);
            if (caller >= 2)
                assert_int_equal(given->third, library >= 2 ? 30 : 0);
            free(given);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions_known_fields_pass_and_others_keep_their_default),
        cmocka_unit_test(test_versions_unknown_field_that_is_set_is_refused_where_it_is),
        cmocka_unit_test(test_versions_size_of_no_version_is_refused),
        cmocka_unit_test(test_versions_what_is_given_is_cut_or_filled_with_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
