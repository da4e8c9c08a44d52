/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: horonrun's own options, rows of the option table, horovodrun's names; slips. */
#undef NDEBUG
#include "alloc.h"
#include "config.h"
#include "environment.h"
#include "options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORDS_MAX 32

/* Splits @p text at single spaces. */
static horon_status_t parse(const char *text, struct horonrun_options *options, char *copy,
                            size_t bytes, char **argv, struct horon_error *error)
{
    int count = 0;
    assert_true(strlen(text) < bytes);
    strcpy(copy, text);
    argv[count++] = (char *)"horonrun";
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        assert_true(count + 1 < WORDS_MAX);
        argv[count++] = word;
    }
    argv[count] = NULL;
    return horonrun_options_parse(options, argv, error);
}

struct parsed {
    struct horonrun_options options;
    struct horon_error error;
    char copy[4 * HORON_CONFIG_TEXT_BYTES];
    char *argv[WORDS_MAX];
    horon_status_t status;
};

static void parse_text(struct parsed *to, const char *text)
{
    to->error = (struct horon_error){0};
    to->status = parse(text, &to->options, to->copy, sizeof to->copy, to->argv, &to->error);
}

static void test_options_own_ones_are_read(void **state)
{
    struct parsed p;
    (void)state;
    parse_text(&p, "-np 4 -H a:2,b:2 -p 2222 -i key --output-filename out -x A=1 -x B --verbose "
                   "--grace=1.5 prog -np 9");
    assert_int_equal(p.status, HORON_OK);
    assert_int_equal(p.options.np, 4);
    assert_string_equal(p.options.hosts, "a:2,b:2");
    assert_string_equal(p.options.ssh_port, "2222");
    assert_string_equal(p.options.ssh_identity, "key");
    assert_string_equal(p.options.output_directory, "out");
    assert_string_equal(p.options.exports[0], "A=1");
    assert_string_equal(p.options.exports[1], "B");
    assert_null(p.options.exports[2]);
    assert_true(p.options.verbose);
    assert_int_equal(p.options.grace_ms, 1500);
    assert_string_equal(p.options.command[0], "prog");
    assert_string_equal(p.options.command[2], "9");
    horonrun_options_deinit(&p.options);
}

static void test_options_end_at_two_dashes(void **state)
{
    struct parsed p;
    (void)state;
    parse_text(&p, "-np 2 -n 2 -- --verbose");
    assert_int_equal(p.status, HORON_OK);
    assert_string_equal(p.options.command[0], "--verbose");
    assert_false(p.options.verbose);
    horonrun_options_deinit(&p.options);
}

/* Each row that horonrun does not set itself is a flag; its default is a valid value for it. */
static void test_options_every_row_is_a_flag(void **state)
{
    size_t count, flags = 0;
    const struct horon_config_row *rows = horon_config_rows(&count);
    (void)state;
    for (size_t i = 0; i < count; i++) {
        struct parsed p;
        char text[256], flag[64], setting[256];
        snprintf(flag, sizeof flag, "--%s", rows[i].name);
        for (char *c = flag + 2; *c; c++)
            *c = *c == '_' ? '-' : (char)(*c | 0x20);
        const char *value = rows[i].dflt[0] ? rows[i].dflt : "x";
        snprintf(text, sizeof text, "%s %s true", flag, value);
        parse_text(&p, text);
        snprintf(setting, sizeof setting, "%s=%s", rows[i].name, value);
        if (p.status == HORON_OK) {
            flags++;
            assert_string_equal(p.options.settings[0], setting);
            assert_string_equal(p.options.command[0], "true");
        } else {
            assert_non_null(strstr(p.error.text, "horonrun sets"));
        }
        horonrun_options_deinit(&p.options);
    }
    assert_int_equal(flags, count - 4); /* STORE, JOB_KEY, JOB_KEY_FILE, FAILURE_FILE */
}

/* A bare number of a time is seconds on the command line, as Horovod's users know it, and then it
 * must be seconds in the environment, too. */
static void test_options_bare_times_mean_what_the_variables_mean(void **state)
{
    size_t count, times = 0;
    const struct horon_config_row *rows = horon_config_rows(&count);
    (void)state;
    for (size_t i = 0; i < count; i++) {
        struct horon_config by_flag, by_variable;
        struct parsed p;
        char text[256], variable[96];
        if (rows[i].type != HORON_CONFIG_TIME)
            continue;
        int used = snprintf(text, sizeof text, "--%s", rows[i].name);
        for (char *c = text + 2; *c; c++)
            *c = *c == '_' ? '-' : (char)(*c | 0x20);
        snprintf(text + used, sizeof text - (size_t)used, " 30 true");
        parse_text(&p, text);
        assert_int_equal(p.status, HORON_OK);
        assert_int_equal(
            horon_config_load(&by_flag, (const char *const *)p.options.settings, NULL, &p.error),
            HORON_OK);
        snprintf(variable, sizeof variable, "HORON_%s", rows[i].name);
        setenv(variable, "30", 1);
        assert_int_equal(horon_config_load(&by_variable, NULL, NULL, &p.error), HORON_OK);
        unsetenv(variable);
        assert_memory_equal(&by_flag, &by_variable, sizeof by_flag);
        assert_int_equal(*(const int64_t *)(const void *)((const char *)&by_flag + rows[i].offset),
                         30000);
        horonrun_options_deinit(&p.options);
        times++;
    }
    assert_true(times >= 3);
}

static void test_options_horovod_names_become_rows(void **state)
{
    static const char *const cases[][2] = {
        {"--fusion-threshold-mb 32", "FUSION_BYTES=32m"},
        {"--fusion-threshold-mb=0", "FUSION_BYTES=0m"},
        {"--cache-capacity 7", "CACHE_ENTRIES=7"},
        {"--network-interfaces eth0,eth1", "INTERFACES=eth0,eth1"},
        {"--stall-check-warning-time-seconds 9", "STALL_WARN=9"},
        {"--stall-check-shutdown-time-seconds 9", "STALL_SHUTDOWN_TIME=9"},
        {"--no-stall-check", "STALL_WARN=0"},
        {"--network-interface eth0", "INTERFACES=eth0"},
        {"--log-level debug", "LOG_LEVEL=debug"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct parsed p;
        struct horon_config config;
        parse_text(&p, cases[i][0]);
        assert_int_equal(p.status, HORON_OK);
        assert_string_equal(p.options.settings[0], cases[i][1]);
        assert_int_equal(
            horon_config_load(&config, (const char *const *)p.options.settings, NULL, &p.error),
            HORON_OK);
        horonrun_options_deinit(&p.options);
    }
}

static void test_options_repeated_interfaces_add_up(void **state)
{
    struct parsed p;
    struct horon_config config;
    (void)state;
    parse_text(&p, "--network-interface eth0 --network-interface eth1 true");
    assert_int_equal(p.status, HORON_OK);
    const char *const *settings = (const char *const *)p.options.settings;
    assert_int_equal(horon_config_load(&config, settings, NULL, &p.error), HORON_OK);
    assert_string_equal(config.interfaces, "eth0,eth1");
    horonrun_options_deinit(&p.options);
}

/* All of what is given is checked, and kept. */
static void test_options_interfaces_that_are_too_long_are_refused(void **state)
{
    static const int lengths[] = {950, 72, 73}; /* the second fills the row, with its comma */
    struct parsed p;
    (void)state;
    for (int i = 1; i < 3; i++) {
        char text[4 * HORON_CONFIG_TEXT_BYTES], wanted[2 * HORON_CONFIG_TEXT_BYTES];
        snprintf(text, sizeof text, "--network-interface %0*d --network-interface %0*d true",
                 lengths[0], 1, lengths[i], 2);
        snprintf(wanted, sizeof wanted, "INTERFACES=%0*d,%0*d", lengths[0], 1, lengths[i], 2);
        parse_text(&p, text);
        assert_int_equal(p.status, i == 1 ? HORON_OK : HORON_ERR_CONFIG);
        if (i == 1)
            assert_string_equal(p.options.settings[1], wanted);
        else
            assert_string_equal(p.error.text, "--network-interface is longer than 1023 bytes");
        horonrun_options_deinit(&p.options);
    }
}

/* Given where it could not be kept secret, and not repeated. */
#define SECRET "of-this-test-alone"

static void test_options_slips_are_named(void **state)
{
    static const char *const cases[][2] = {
        {"--fusion-byte 3", "no option is called --fusion-byte; the nearest is --fusion-bytes"},
        {"--verbos", "nearest is --verbose"},
        {"--host-file f", "nearest is --hostfile"},
        {"-np", "-np needs a value"},
        {"--bogus", "no option is called --bogus (--help lists all)"},
        {"-np 0", "-np 0: want a number of ranks, 1..65536"},
        {"-np 65537", "-np 65537: want"},
        {"-np two", "-np two: want"},
        {"-np 4x", "-np 4x: want"},
        {"-np 2 --np 3", "--np 3: the ranks to start were given before, as 2"},
        {"--verbose=1", "--verbose takes no value"},
        {"--grace -1", "--grace -1: want"},
        {"--color blue", "--color blue: want"},
        {"--job-key abc", "horonrun sets HORON_JOB_KEY itself"},
        {"-x =3", "-x =3: want"},
        {"--mpi-args=-x\t'a", "--mpi-args: a quote in it does not end: -x\t'a"},
        {"--mpi-args 'a\"", "--mpi-args: a quote in it does not end"},
        {"-x HORON_JOB_KEY=" SECRET, "-x HORON_JOB_KEY=...: horonrun sets it"},
        {"-x HORON_JOB_KEY_FILE=" SECRET, "; a key of your own is the job's if"},
        {"--export HORON_STORE=x",
         "--export HORON_STORE=...: horonrun sets it for the ranks itself"},
        {"-x HORON_RANK=3", "-x HORON_RANK=...: horonrun sets it"},
        {"-x HOROVOD_CROSS_SIZE=3", "-x HOROVOD_CROSS_SIZE=...: horonrun sets it"},
        {"-x HORON_FAILURE_FILE=", "-x HORON_FAILURE_FILE=...: horonrun sets it"},
        {"--spin-us abc", "--spin-us=abc is not a whole number"},
        {"--spin-us=-1", "--spin-us=-1 is out of bounds"},
        {"--shm perhaps", "--shm=perhaps is neither 0 nor 1"},
        {"--log-level loud", "--log-level=loud is none of: "},
        {"--fusion-threshold-mb 64.5", "--fusion-threshold-mb 64.5: want a whole number"},
        {"--fusion-threshold-mb=", "--fusion-threshold-mb : want a whole number"},
        {"--fusion-threshold-mb 99999999", "--fusion-threshold-mb=99999999m is out of bounds"},
        {"--stall-check-warning-time-seconds x", "--stall-check-warning-time-seconds=x is not"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct parsed p;
        parse_text(&p, cases[i][0]);
        assert_int_equal(p.status, HORON_ERR_CONFIG);
        assert_non_null(strstr(p.error.text, cases[i][1]));
        assert_null(strstr(p.error.text, SECRET));
        horonrun_options_deinit(&p.options);
    }
}

static void test_options_ignored_ones_are_remembered(void **state)
{
    struct parsed p;
    (void)state;
    parse_text(&p, "--cycle-time-ms 5 --tcp -np 2 true");
    assert_int_equal(p.status, HORON_OK);
    assert_string_equal(p.options.ignored[0], "--cycle-time-ms");
    assert_string_equal(p.options.ignored[1], "--tcp");
    assert_null(p.options.ignored[2]);
    assert_int_equal(p.options.np, 2);
    assert_false(p.options.gloo);
    horonrun_options_deinit(&p.options);
    parse_text(&p, "--gloo-timeout-seconds 5 true"); /* of what is not there */
    assert_int_equal(p.status, HORON_OK);
    assert_string_equal(p.options.ignored[0], "--gloo-timeout-seconds");
    horonrun_options_deinit(&p.options);
    parse_text(&p, "--gloo --gloo-timeout-seconds=5 true");
    assert_int_equal(p.options.gloo_timeout_s, 5);
    assert_null(p.options.ignored);
    horonrun_options_deinit(&p.options);
    parse_text(&p, "--gloo --gloo-timeout-seconds 0 true");
    assert_int_equal(p.status, HORON_ERR_CONFIG);
    horonrun_options_deinit(&p.options);
    parse_text(&p, "--gloo -np 2 true"); /* horovodrun has it, and here it does something */
    assert_int_equal(p.status, HORON_OK);
    assert_true(p.options.gloo);
    assert_null(p.options.ignored);
    horonrun_options_deinit(&p.options);
}

static void test_environment_set_replaces_and_remove_removes(void **state)
{
    char *start[] = {(char *)"A=1", (char *)"AB=2", (char *)"C=3", NULL};
    char **list = horonrun_environment_copy(start);
    (void)state;
    assert_non_null(list);
    assert_true(horonrun_environment_set(&list, "AB", "x"));
    assert_true(horonrun_environment_set(&list, "D", "y=z"));
    horonrun_environment_remove(list, "A");
    horonrun_environment_remove(list, "nothing");
    assert_null(horonrun_environment_find(list, "A"));
    assert_string_equal(horonrun_environment_find(list, "AB"), "x");
    assert_string_equal(horonrun_environment_find(list, "D"), "y=z");
    assert_string_equal(list[1], "C=3");
    horonrun_strings_free(list);
}

static void test_environment_of_this_host_adds_what_is_not_given(void **state)
{
    char *given[] = {(char *)"HORON_TEST_GIVEN=theirs", NULL};
    char name[400];
    char **list = horonrun_environment_copy(given);
    (void)state;
    assert_non_null(list);
    memset(name, 'N', sizeof name);
    name[sizeof name - 1] = 0;
    assert_int_equal(setenv("HORON_TEST_GIVEN", "own", 1), 0);
    assert_int_equal(setenv(name, "of any length", 1), 0);
    assert_true(horonrun_environment_add_own(&list));
    assert_string_equal(horonrun_environment_find(list, "HORON_TEST_GIVEN"), "theirs");
    assert_string_equal(horonrun_environment_find(list, name), "of any length");
    unsetenv("HORON_TEST_GIVEN");
    unsetenv(name);
    horonrun_strings_free(list);
}

static void test_environment_of_login_stays_here(void **state)
{
    char *start[] = {(char *)"PATH=/bin", (char *)"SSH_CLIENT=x",
                     (char *)"HOME=/h",   (char *)"NCCL_DEBUG=INFO",
                     (char *)"_=x",       (char *)"BASH_FUNC_f%%=()",
                     (char *)"USERS=3",   NULL};
    char **list = horonrun_environment_copy_for_remote(start);
    (void)state;
    assert_non_null(list);
    assert_string_equal(list[0], "PATH=/bin");
    assert_string_equal(list[1], "NCCL_DEBUG=INFO");
    assert_string_equal(list[2], "USERS=3");
    assert_null(list[3]);
    horonrun_strings_free(list);
}

static void test_environment_of_rank_has_its_place(void **state)
{
    static const char *const wanted[][2] = {
        {"HORON_RANK", "5"},
        {"HORON_SIZE", "12"},
        {"HORON_LOCAL_RANK", "2"},
        {"HORON_LOCAL_SIZE", "3"},
        {"HOROVOD_RANK", "5"},
        {"HOROVOD_SIZE", "12"},
        {"HOROVOD_LOCAL_RANK", "2"},
        {"HOROVOD_LOCAL_SIZE", "3"},
        {"HOROVOD_CROSS_RANK", "0"},
        {"HOROVOD_CROSS_SIZE", "2"},
        {"HORON_FAILURE_FILE", "fd:11"},
    };
    char *given[] = {(char *)"HORON_RANK=77", (char *)"A=1", (char *)"HORON_FAILURE_FILE=fd:3",
                     NULL};
    int hosts[] = {2, 1, 3, 1, 5};
    const struct horonrun_work work = {.host_ranks = hosts,
                                       .hosts = 5,
                                       .host = 2,
                                       .first_rank = 3,
                                       .ranks = 3,
                                       .size = 12,
                                       .environment = given};
    char **list = horonrun_environment_of_rank(&work, 2, 11);
    (void)state;
    assert_non_null(list);
    assert_string_equal(horonrun_environment_find(list, "A"), "1");
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        assert_string_equal(horonrun_environment_find(list, wanted[i][0]), wanted[i][1]);
    assert_null(list[1 + sizeof wanted / sizeof wanted[0]]);
    horon_free(list);
    list = horonrun_environment_of_rank(&work, 2, -1); /* that of another job is not for it */
    assert_non_null(list);
    assert_null(horonrun_environment_find(list, "HORON_FAILURE_FILE"));
    horon_free(list);
    list = horonrun_environment_of_rank(&work, 0, -1); /* every host has one */
    assert_non_null(list);
    assert_string_equal(horonrun_environment_find(list, "HOROVOD_CROSS_RANK"), "2");
    assert_string_equal(horonrun_environment_find(list, "HOROVOD_CROSS_SIZE"), "5");
    horon_free(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_own_ones_are_read),
        cmocka_unit_test(test_options_end_at_two_dashes),
        cmocka_unit_test(test_options_every_row_is_a_flag),
        cmocka_unit_test(test_options_bare_times_mean_what_the_variables_mean),
        cmocka_unit_test(test_options_horovod_names_become_rows),
        cmocka_unit_test(test_options_repeated_interfaces_add_up),
        cmocka_unit_test(test_options_interfaces_that_are_too_long_are_refused),
        cmocka_unit_test(test_options_slips_are_named),
        cmocka_unit_test(test_options_ignored_ones_are_remembered),
        cmocka_unit_test(test_environment_set_replaces_and_remove_removes),
        cmocka_unit_test(test_environment_of_this_host_adds_what_is_not_given),
        cmocka_unit_test(test_environment_of_login_stays_here),
        cmocka_unit_test(test_environment_of_rank_has_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
