/* SPDX-License-Identifier: Apache-2.0 */
/* Which variables are set in vain: every test begins in an environment without any of ours. */
#undef NDEBUG
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

static int begin_clean(void **state)
{
    (void)state;
    for (char **entry = environ; entry && *entry;) {
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        if (strncmp(name, "HORON", 5) == 0 || strncmp(name, "HOROVOD_", 8) == 0)
            unsetenv(name);
        else
            entry++;
    }
    return 0;
}

static void test_variables_unknown_are_counted_and_the_first_named(void **state)
{
    static const char *const known[] = {
        "HORON_FUSION_BYTES", "HORON_RANK",          "HORON_LOCAL_SIZE", "HORON_TORCH_SPEC",
        "HORON_SKIP_DEBIAN",  "HORON_TEST_WHATEVER", "HOROVOD_RANK", /* not ours to judge */
    };
    struct horon_error error = {0};
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        setenv(known[i], "1m", 1);
    assert_int_equal(horon_config_unknown(&error), 0);
    assert_int_equal(error.status, HORON_OK);
    setenv("HORON_FUSION_BYTE", "12345", 1);
    assert_int_equal(horon_config_unknown(&error), 1);
    assert_int_equal(error.status, HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "HORON_FUSION_BYTE is set"));
    assert_non_null(strstr(error.text, "nearest is HORON_FUSION_BYTES"));
    assert_null(strstr(error.text, "12345"));
    setenv("HORON_RAN", "1", 1); /* a part of a name that is known is none */
    setenv("HORON_SIZES", "1", 1);
    setenv("HORON_", "1", 1);
    setenv("HORON_TEST", "1", 1);
    assert_int_equal(horon_config_unknown(&error), 5);
    unsetenv("HORON_FUSION_BYTE");
    assert_int_equal(horon_config_unknown(NULL), 4);
    begin_clean(NULL);
    setenv("HORON_SIZES", "1", 1);
    assert_int_equal(horon_config_unknown(&error), 1); /* near one that is no row */
    assert_non_null(strstr(error.text, "nearest is HORON_SIZE"));
}

static void test_variables_of_horovod_that_are_not_heeded_are_named(void **state)
{
    static const char *const heeded[] = {
        "HOROVOD_FUSION_THRESHOLD", "HOROVOD_RANK",    "HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME",
        "HORON_AUTOTUNE",           "HOROVODAUTOTUNE", "HOROVOD_LOG_LEVEL",  "HOROVOD_LOCAL_SIZE"};
    char text[400], large[200] = "HOROVOD_";
    (void)state;
    begin_clean(NULL);
    for (size_t i = 0; i < sizeof heeded / sizeof heeded[0]; i++)
        setenv(heeded[i], "1", 1);
    strcpy(text, "x");
    assert_int_equal(horon_config_unheeded(NULL, text, sizeof text), 0);
    assert_string_equal(text, "");
    setenv("HOROVOD_AUTOTUNE", "a secret", 1);
    assert_int_equal(horon_config_unheeded(NULL, text, sizeof text), 1);
    assert_string_equal(text, "HOROVOD_AUTOTUNE");
    setenv("HOROVOD_RAN", "1", 1); /* a part of a name is none, nor is more than it */
    setenv("HOROVOD_LOG_LEVELS", "", 1);
    setenv("HOROVOD_\033[31m", "1", 1);
    assert_int_equal(horon_config_unheeded(NULL, text, sizeof text), 4);
    for (const char *name = "AUTOTUNE\0RAN\0LOG_LEVELS\0\\x1b[31m\0"; *name;
         name += strlen(name) + 1)
        assert_non_null(strstr(text, name));
    assert_null(strchr(text, '\033'));
    assert_null(strstr(text, "secret"));
    memset(large + strlen(large), 'x', sizeof large - 1 - strlen(large));
    setenv(large, "1", 1);
    for (size_t room = 1; room < sizeof text; room++) {
        memset(text, 'y', sizeof text);
        assert_int_equal(horon_config_unheeded(NULL, text, room), 5);
        assert_true(strlen(text) < room);
    }
    assert_int_equal(horon_config_unheeded(NULL, text, 60), 5); /* no name is cut */
    assert_non_null(strstr(text, "HOROVOD_AUTOTUNE, HOROVOD_RAN and 3 more"));
}

static void test_variables_that_ask_for_what_is_not_here_are_named_with_it(void **state)
{
    char text[400];
    (void)state;
    begin_clean(NULL);
    setenv("HOROVOD_CPU_OPERATIONS", "gloo", 1); /* as horovodrun does */
    setenv("HOROVOD_GPU_OPERATIONS", "MPI", 1);
    assert_int_equal(horon_config_unheeded(NULL, text, sizeof text), 0);
    setenv("HOROVOD_GPU_OPERATIONS", "NCCL", 1);
    assert_int_equal(horon_config_unheeded(NULL, text, sizeof text), 1);
    assert_string_equal(text, "HOROVOD_GPU_OPERATIONS=nccl");
    setenv("HOROVOD_CPU_OPERATIONS", "ccl", 1);
    assert_int_equal(horon_config_unheeded(NULL, text, sizeof text), 2);
    assert_non_null(strstr(text, "HOROVOD_CPU_OPERATIONS=ccl"));
}

static void test_variables_of_another_place_than_this_rank_has_are_named(void **state)
{
    static const char *const names[] = {
        "HOROVOD_RANK",       "HOROVOD_SIZE",       "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE",
    };
    const int found[HORON_CONFIG_PLACES] = {5, 8, 1, 2, 3, 4};
    char text[400];
    (void)state;
    begin_clean(NULL);
    for (int i = 0; i < HORON_CONFIG_PLACES; i++) {
        snprintf(text, sizeof text, "%d", found[i]);
        setenv(names[i], text, 1);
    }
    setenv("HOROVOD_HOSTNAME", "elsewhere", 1);
    assert_int_equal(horon_config_unheeded(found, text, sizeof text), 0); /* as it is */
    for (int i = 0; i < HORON_CONFIG_PLACES; i++) {
        char own[8], named[64];
        snprintf(own, sizeof own, "%d", found[i]);
        snprintf(named, sizeof named, "%s (found: %d)", names[i], found[i]);
        for (const char *other = "7\0-1\0x\0"; *other; other += strlen(other) + 1) {
            setenv(names[i], other, 1);
            assert_int_equal(horon_config_unheeded(found, text, sizeof text), 1);
            assert_string_equal(text, named);
            assert_int_equal(horon_config_unheeded(NULL, text, sizeof text), 0); /* unknown */
        }
        setenv("HORON_RANK", "5", 1); /* horonrun has set the others, too */
        assert_int_equal(horon_config_unheeded(found, text, sizeof text), 0);
        setenv("HORON_RANK", "", 1); /* set to nothing is not set */
        assert_int_equal(horon_config_unheeded(found, text, sizeof text), 1);
        unsetenv("HORON_RANK");
        setenv(names[i], "", 1); /* as if it were not set */
        assert_int_equal(horon_config_unheeded(found, text, sizeof text), 0);
        setenv(names[i], own, 1);
    }
    setenv("HOROVOD_SIZE", "9", 1);
    setenv("HOROVOD_AUTOTUNE", "1", 1);
    assert_int_equal(horon_config_unheeded(found, text, sizeof text), 2);
    assert_non_null(strstr(text, ", "));
}

static void test_variables_of_a_place_that_is_not_known_are_not_named(void **state)
{
    const int found[HORON_CONFIG_PLACES] = {5, 8, -1, -1, -1, -1};
    char text[400];
    (void)state;
    begin_clean(NULL);
    setenv("HOROVOD_RANK", "5", 1);
    setenv("HOROVOD_SIZE", "9", 1);
    setenv("HOROVOD_LOCAL_RANK", "1", 1);
    setenv("HOROVOD_LOCAL_SIZE", "4", 1);
    setenv("HOROVOD_CROSS_RANK", "1", 1);
    setenv("HOROVOD_CROSS_SIZE", "2", 1);
    assert_int_equal(horon_config_unheeded(found, text, sizeof text), 1);
    assert_string_equal(text, "HOROVOD_SIZE (found: 8)");
}

static void test_variables_that_horovodrun_sets_for_all_are_no_wish(void **state)
{
    static const char *const names[] = {"HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS",
                                        "HOROVOD_GLOO_IFACE"};
    char text[400];
    (void)state;
    begin_clean(NULL);
    for (int i = 0; i < 3; i++)
        setenv(names[i], "gloo", 1);
    assert_int_equal(horon_config_unheeded(NULL, text, sizeof text), 2); /* by hand they are */
    assert_null(strstr(text, names[1]));                                 /* an alias */
    setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1", 1);
    assert_int_equal(horon_config_unheeded(NULL, text, sizeof text), 0);
}

#define TEST(name) cmocka_unit_test_setup(name, begin_clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_variables_unknown_are_counted_and_the_first_named),
        TEST(test_variables_of_horovod_that_are_not_heeded_are_named),
        TEST(test_variables_that_ask_for_what_is_not_here_are_named_with_it),
        TEST(test_variables_of_another_place_than_this_rank_has_are_named),
        TEST(test_variables_of_a_place_that_is_not_known_are_not_named),
        TEST(test_variables_that_horovodrun_sets_for_all_are_no_wish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
