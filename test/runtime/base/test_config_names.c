/* SPDX-License-Identifier: Apache-2.0 */
/* A row that is a list of names: one spelling of each list, and what says nothing. */
#undef NDEBUG
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int begin_clean(void **state)
{
    (void)state;
    unsetenv("HORON_BACKEND");
    unsetenv("HOROVOD_CPU_OPERATIONS");
    unsetenv("HOROVOD_GPU_OPERATIONS");
    return 0;
}

static enum horon_config_origin load(const char *setting, struct horon_config *config)
{
    enum horon_config_origin origins[64];
    const char *const settings[] = {setting, NULL};
    struct horon_error error;
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    assert_true(count <= 64);
    if (horon_config_load(config, settings, origins, &error) != HORON_OK)
        fail_msg("%s: %s", setting ? setting : "nothing", error.text);
    return origins[horon_config_find("BACKEND", strlen("BACKEND")) - rows];
}

static void test_config_names_of_any_case_and_between_blanks_are_one_list(void **state)
{
    static const char *const spellings[] = {"native,mpi", "NATIVE,Mpi", "native, mpi",
                                            " native ,\tmpi \n"};
    struct horon_config first, config;
    (void)state;
    load("BACKEND=native,mpi", &first);
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        setenv("HORON_BACKEND", spellings[i], 1);
        assert_int_equal(load(NULL, &config), HORON_CONFIG_FROM_ENVIRONMENT);
        assert_string_equal(config.backend, "native,mpi");
        assert_true(horon_config_agreed_hash(&config) == horon_config_agreed_hash(&first));
    }
}

/* What reads the list has to refuse them. */
static void test_config_names_that_are_empty_stay(void **state)
{
    static const char *const lists[][2] = {
        {",", ","}, {"mpi,", "mpi,"}, {" , mpi", ",mpi"}, {"mpi, ,native", "mpi,,native"}};
    struct horon_config config;
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        setenv("HORON_BACKEND", lists[i][0], 1);
        load(NULL, &config);
        assert_string_equal(config.backend, lists[i][1]);
    }
}

static void test_config_names_of_nothing_are_as_if_unset(void **state)
{
    static const char *const nothing[] = {"", " ", "\t \n"};
    struct horon_config config;
    (void)state;
    for (size_t i = 0; i < sizeof nothing / sizeof nothing[0]; i++) {
        begin_clean(NULL);
        setenv("HORON_BACKEND", nothing[i], 1);
        assert_int_equal(load(NULL, &config), HORON_CONFIG_FROM_DEFAULT);
        assert_string_equal(config.backend, "native");
        setenv("HOROVOD_CPU_OPERATIONS", "mpi", 1);
        assert_int_equal(load(NULL, &config), HORON_CONFIG_FROM_ALIAS);
        assert_string_equal(config.backend, "mpi");
    }
    setenv("HORON_BACKEND", "native,mpi", 1); /* and so is a setting of the context */
    assert_int_equal(load("BACKEND=", &config), HORON_CONFIG_FROM_ENVIRONMENT);
    assert_string_equal(config.backend, "native,mpi");
}

#define TEST(name) cmocka_unit_test_setup(name, begin_clean)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_config_names_of_any_case_and_between_blanks_are_one_list),
        TEST(test_config_names_that_are_empty_stay),
        TEST(test_config_names_of_nothing_are_as_if_unset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
