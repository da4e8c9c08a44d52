/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The option table and its parser: every row with its default, its bounds and one beyond each;
 * every type with what it takes and refuses; where a value comes from; what is unknown; what a key
 * never gets into. Each test begins without any HORON_ and HOROVOD_ variable in the environment.
 */
#undef NDEBUG
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS_MAX 64
#define KEY "correct horse battery staple"

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

static const struct horon_config_row *row_of(const char *name)
{
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    fail_msg("there is no row %s", name);
    return NULL;
}

static bool is_number(const struct horon_config_row *row)
{
    return row->type == HORON_CONFIG_INT || row->type == HORON_CONFIG_BYTES ||
           row->type == HORON_CONFIG_TIME;
}

static int64_t number_of(const struct horon_config *config, const struct horon_config_row *row)
{
    return *(const int64_t *)(const void *)((const char *)config + row->offset);
}

/* A value of a row of numbers as a user writes it. */
static const char *number_text(const struct horon_config_row *row, int64_t value, char *text,
                               size_t text_bytes)
{
    snprintf(text, text_bytes, "%lld%s", (long long)value,
             row->type == HORON_CONFIG_TIME ? "ms" : "");
    return text;
}

/* Loads NAME=text given by the caller. */
static horon_status_t load(const char *name, const char *text, struct horon_config *config,
                           struct horon_error *error)
{
    char setting[HORON_CONFIG_TEXT_BYTES + 128];
    const char *const settings[] = {setting, NULL};
    snprintf(setting, sizeof setting, "%s=%s", name, text);
    *error = (struct horon_error){0};
    return horon_config_load(config, settings, NULL, error);
}

static void expect_number(const char *name, const char *text, int64_t value)
{
    struct horon_config config;
    struct horon_error error;
    if (load(name, text, &config, &error) != HORON_OK)
        fail_msg("%s=%s: %s", name, text, error.text);
    if (number_of(&config, row_of(name)) != value)
        fail_msg("%s=%s became %lld", name, text, (long long)number_of(&config, row_of(name)));
}

/* Refused with a text that holds all of the NULL-ended words. */
static void expect_refused(const char *name, const char *text, const char *const *words)
{
    struct horon_config config;
    struct horon_error error;
    assert_int_equal(load(name, text, &config, &error), HORON_ERR_CONFIG);
    assert_int_equal(error.status, HORON_ERR_CONFIG);
    for (; *words; words++)
        if (!strstr(error.text, *words))
            fail_msg("'%s' lacks '%s'", error.text, *words);
}

static void refuse_each(const char *name, const char *const *texts, const char *why)
{
    const char *const words[] = {name, why, NULL};
    for (; *texts; texts++)
        expect_refused(name, *texts, words);
}

static void test_config_defaults_are_those_of_the_table(void **state)
{
    struct horon_config config, again;
    struct horon_error error = {0};
    enum horon_config_origin origins[ROWS_MAX];
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    (void)state;
    assert_in_range(count, 1, ROWS_MAX);
    memset(origins, 0xff, sizeof origins);
    assert_int_equal(horon_config_load(&config, NULL, origins, &error), HORON_OK);
    for (size_t i = 0; i < count; i++) {
        struct horon_error why;
        assert_int_equal(origins[i], HORON_CONFIG_FROM_DEFAULT);
        assert_int_equal(load(rows[i].name, rows[i].dflt, &again, &why), HORON_OK);
        assert_memory_equal(&again, &config, sizeof config);
        if (is_number(&rows[i]))
            assert_in_range(number_of(&config, &rows[i]), rows[i].min, rows[i].max);
    }
    assert_int_equal(config.log_level, HORON_LOG_WARN);
    assert_int_equal(config.fusion_bytes, 64 << 20);
    assert_int_equal(config.start_timeout_ms, 60000);
    assert_int_equal(config.shm_enabled, 1);
    assert_string_equal(config.net_algorithm, "auto");
    assert_string_equal(config.job_key, "");
}

/* No two rows share a field: what one is set to never shows in another. */
static void test_config_rows_have_fields_of_their_own(void **state)
{
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    (void)state;
    for (size_t i = 0; i < count; i++) {
        size_t bytes =
            rows[i].type == HORON_CONFIG_TEXT ? HORON_CONFIG_TEXT_BYTES : sizeof(int64_t);
        assert_true(rows[i].offset + bytes <= sizeof(struct horon_config));
        for (size_t k = 0; k < count; k++)
            if (k != i)
                assert_true(rows[k].offset < rows[i].offset ||
                            rows[k].offset >= rows[i].offset + bytes);
        for (size_t k = 0; k < i; k++) {
            assert_string_not_equal(rows[k].name, rows[i].name);
            if (rows[k].alias && rows[i].alias)
                assert_string_not_equal(rows[k].alias, rows[i].alias);
            assert_true(rows[i].alias || !(rows[i].alias_too || rows[i].alias_off));
        }
    }
}

static void test_config_bounds_are_allowed_and_one_beyond_is_not(void **state)
{
    size_t count, numbers = 0;
    const struct horon_config_row *rows = horon_config_rows(&count);
    (void)state;
    for (size_t i = 0; i < count; i++) {
        char text[64], bounds[72];
        if (!is_number(&rows[i]))
            continue;
        numbers++;
        horon_config_bounds(&rows[i], bounds, sizeof bounds);
        const char *const words[] = {rows[i].name, "out of bounds", bounds, NULL};
        expect_number(rows[i].name, number_text(&rows[i], rows[i].min, text, sizeof text),
                      rows[i].min);
        expect_number(rows[i].name, number_text(&rows[i], rows[i].max, text, sizeof text),
                      rows[i].max);
        number_text(&rows[i], rows[i].min - 1, text, sizeof text);
        expect_refused(rows[i].name, text, words);
        number_text(&rows[i], rows[i].max + 1, text, sizeof text);
        expect_refused(rows[i].name, text, words);
        expect_refused(rows[i].name, "99999999999999999999", words);
        expect_refused(rows[i].name, "-99999999999999999999", words);
    }
    assert_true(numbers > 10);
}

static void test_config_whole_numbers_are_strict(void **state)
{
    static const char *const wrong[] = {"",     " ",   "5 ",  " 5",  "+5",   "5x", "0x10",
                                        "1e3",  "5.0", "-",   "--5", "k",    "1k", "1,0",
                                        "five", "1_0", "5\n", "5\t", "5;rm", NULL};
    (void)state;
    expect_number("INFLIGHT_MAX", "7", 7);
    expect_number("INFLIGHT_MAX", "007", 7); /* decimal, not octal */
    expect_number("INFLIGHT_MAX", "010", 10);
    expect_number("SPIN_US", "-0", 0);
    refuse_each("INFLIGHT_MAX", wrong, "whole number");
}

static void test_config_sizes_take_units_of_1024(void **state)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } right[] = {{"0", 0},           {"4095", 4095},    {"4095b", 4095},     {"3k", 3 << 10},
                 {"3K", 3 << 10},    {"3kib", 3 << 10}, {"3KiB", 3 << 10},   {"5m", 5 << 20},
                 {"5MiB", 5 << 20},  {"1g", 1ll << 30}, {"4GIB", 4ll << 30}, {"0g", 0},
                 {"0000016k", 16384}};
    static const char *const wrong[] = {"",     "k",    "1kk", "1 k", "1kb", "1mb", "1t",
                                        "1.5m", "0x1k", "1ki", "ten", "m1",  NULL};
    static const char *const huge[] = {"9999999999g", "9223372036854775807k",  "5g",
                                       "-1k",         "-9223372036854775807g", NULL};
    (void)state;
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++)
        expect_number("FUSION_BYTES", right[i].text, right[i].bytes);
    refuse_each("FUSION_BYTES", wrong, "not a size");
    refuse_each("FUSION_BYTES", huge, "0..4g");
}

static void test_config_times_are_seconds_or_have_a_unit(void **state)
{
    static const char *const wrong[] = {"", "s", "1.5s", "1d", "1m", "1sec", "1 s", "1us", NULL};
    static const char *const huge[] = {
        "86400001ms", "86401", "86401s", "9223372036854775807", "9223372036854775807min",
        "-1s",        NULL};
    (void)state;
    expect_number("STALL_WARN", "0", 0);
    expect_number("STALL_WARN", "30", 30000);
    expect_number("STALL_WARN", "1500ms", 1500);
    expect_number("STALL_WARN", "2s", 2000);
    expect_number("STALL_WARN", "2S", 2000);
    expect_number("STALL_WARN", "3min", 180000);
    expect_number("STALL_WARN", "24h", 86400000);
    refuse_each("STALL_WARN", wrong, "not a time");
    refuse_each("STALL_WARN", huge, "0..24h");
}

static void test_config_switches_take_words(void **state)
{
    static const char *const on[] = {"1", "yes", "true", "on", "Yes", "TRUE", NULL};
    static const char *const off[] = {"0", "no", "false", "off", "No", "FALSE", NULL};
    static const char *const wrong[] = {"",      "2",      "01",  "y",  "n", "o",
                                        "true ", "yes no", "0 1", "-1", NULL};
    (void)state;
    for (size_t i = 0; on[i]; i++)
        expect_number("SHM", on[i], 1);
    for (size_t i = 0; off[i]; i++)
        expect_number("SHM", off[i], 0);
    refuse_each("SHM", wrong, "neither 0 nor 1");
}

static void test_config_words_are_those_of_the_row(void **state)
{
    static const char *const levels[] = {"error", "warn", "info", "debug", "trace"};
    static const char *const wrong[] = {"", "err", "error warn", "warn ", "1", "verbose", NULL};
    static const char *const lacking[] = {"e2", "E2", NULL};
    struct horon_config config;
    struct horon_error error;
    (void)state;
    for (int i = 0; i < 5; i++)
        expect_number("LOG_LEVEL", levels[i], i);
    expect_number("LOG_LEVEL", "TRACE", HORON_LOG_TRACE);
    expect_number("LOG_LEVEL", "warning", HORON_LOG_WARN); /* Horovod's words */
    expect_number("LOG_LEVEL", "FATAL", HORON_LOG_ERROR);
    refuse_each("LOG_LEVEL", wrong, "error warn info debug trace");
    assert_int_equal(load("NET_ALGORITHM", "Halving", &config, &error), HORON_OK);
    assert_string_equal(config.net_algorithm, "halving"); /* as all others spell it */
    refuse_each("NET_ALGORITHM", wrong, "auto flat doubling direct halving chain");
    refuse_each("GLOO_ERA", lacking,
                "of torch 2.1 and 2.2, which is not supported; there are: auto");
    refuse_each("GLOO_ERA", wrong, "is none of: auto e1 e3");
}

static void test_config_texts_fit_or_are_refused(void **state)
{
    struct horon_config config;
    struct horon_error error;
    char text[HORON_CONFIG_TEXT_BYTES + 1];
    static const char *const words[] = {"INTERFACES", "1023 bytes", NULL};
    (void)state;
    memset(text, 'x', sizeof text);
    text[HORON_CONFIG_TEXT_BYTES - 1] = 0;
    assert_int_equal(load("INTERFACES", text, &config, &error), HORON_OK);
    assert_string_equal(config.interfaces, text);
    text[HORON_CONFIG_TEXT_BYTES - 1] = 'x';
    text[HORON_CONFIG_TEXT_BYTES] = 0;
    expect_refused("INTERFACES", text, words);
    assert_int_equal(load("STORE", "tcp://h:1?a=b", &config, &error), HORON_OK);
    assert_string_equal(config.store, "tcp://h:1?a=b"); /* the first = ends the name */
}

static void test_config_origin_caller_beats_environment_beats_alias(void **state)
{
    struct horon_config config;
    struct horon_error error = {0};
    enum horon_config_origin origins[ROWS_MAX];
    size_t count;
    size_t at = (size_t)(row_of("FUSION_BYTES") - horon_config_rows(&count));
    static const char *const settings[] = {"FUSION_BYTES=4", "HORON_FUSION_BYTES=5", NULL};
    (void)state;
    setenv("HOROVOD_FUSION_THRESHOLD", "2", 1);
    assert_int_equal(horon_config_load(&config, NULL, origins, &error), HORON_OK);
    assert_int_equal(config.fusion_bytes, 2);
    assert_int_equal(origins[at], HORON_CONFIG_FROM_ALIAS);
    setenv("HORON_FUSION_BYTES", "3", 1);
    assert_int_equal(horon_config_load(&config, NULL, origins, &error), HORON_OK);
    assert_int_equal(config.fusion_bytes, 3);
    assert_int_equal(origins[at], HORON_CONFIG_FROM_ENVIRONMENT);
    assert_int_equal(horon_config_load(&config, settings, origins, &error), HORON_OK);
    assert_int_equal(config.fusion_bytes, 5); /* the last of the caller's, with or without HORON_ */
    assert_int_equal(origins[at], HORON_CONFIG_FROM_CALLER);
    for (size_t i = 0; i < count; i++)
        if (i != at)
            assert_int_equal(origins[i], HORON_CONFIG_FROM_DEFAULT);
}

static void test_config_every_row_is_read_from_the_environment(void **state)
{
    struct horon_config plain, config;
    struct horon_error error = {0};
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    (void)state;
    assert_int_equal(horon_config_load(&plain, NULL, NULL, &error), HORON_OK);
    for (size_t i = 0; i < count; i++) {
        char variable[96], other[64];
        enum horon_config_origin origins[ROWS_MAX];
        number_text(&rows[i], rows[i].max, other, sizeof other);
        if (rows[i].type == HORON_CONFIG_BOOL)
            snprintf(other, sizeof other, "%d", rows[i].dflt[0] == '0');
        else if (rows[i].choices)
            snprintf(other, sizeof other, "%s", strrchr(rows[i].choices, ' ') + 1);
        snprintf(variable, sizeof variable, "HORON_%s", rows[i].name);
        setenv(variable, other, 1);
        assert_int_equal(horon_config_load(&config, NULL, origins, &error), HORON_OK);
        assert_int_equal(origins[i], HORON_CONFIG_FROM_ENVIRONMENT);
        assert_memory_not_equal(&config, &plain, sizeof config);
        unsetenv(variable);
    }
}

static void test_config_wrong_environment_is_named_whatever_the_caller_says(void **state)
{
    struct horon_config config;
    struct horon_error error = {0};
    static const char *const settings[] = {"FUSION_BYTES=4", NULL};
    (void)state;
    setenv("HORON_FUSION_BYTES", "many", 1);
    assert_int_equal(horon_config_load(&config, settings, NULL, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "HORON_FUSION_BYTES=many"));
    setenv("HORON_FUSION_BYTES", "", 1); /* set to nothing is no size either */
    assert_int_equal(horon_config_load(&config, NULL, NULL, &error), HORON_ERR_CONFIG);
}

static void expect_alias(const char *variable, const char *text, const char *name, int64_t value)
{
    struct horon_config config;
    struct horon_error error = {0};
    setenv(variable, text, 1);
    if (horon_config_load(&config, NULL, NULL, &error) != HORON_OK)
        fail_msg("%s=%s: %s", variable, text, error.text);
    assert_int_equal(number_of(&config, row_of(name)), value);
    unsetenv(variable);
}

static void test_config_horovod_variables_count_in_their_units(void **state)
{
    static const char *const wrong[] = {" ", "s", "30s", "500m", "1mi", "-1", "1.5", "x", NULL};
    struct horon_config config;
    struct horon_error error = {0};
    size_t count, aliases = 0;
    const struct horon_config_row *rows = horon_config_rows(&count);
    (void)state;
    for (size_t i = 0; i < count; i++)
        aliases += (rows[i].alias ? 1u : 0u) + (rows[i].alias_too ? 1u : 0u) +
                   (rows[i].alias_off ? 1u : 0u);
    assert_int_equal(aliases, 13); /* those below and in the next test: a new one belongs here */
    expect_alias("HOROVOD_LOG_LEVEL", "warning", "LOG_LEVEL", HORON_LOG_WARN);
    expect_alias("HOROVOD_LOG_LEVEL", "fatal", "LOG_LEVEL", HORON_LOG_ERROR);
    expect_alias("HOROVOD_START_TIMEOUT", "30", "START_TIMEOUT", 30000);
    expect_alias("HOROVOD_FUSION_THRESHOLD", "134217728", "FUSION_BYTES", 134217728);
    expect_alias("HOROVOD_CACHE_CAPACITY", "0", "CACHE_ENTRIES", 0);
    expect_alias("HOROVOD_STALL_CHECK_TIME_SECONDS", "120", "STALL_WARN", 120000);
    expect_alias("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "90", "STALL_SHUTDOWN_TIME", 90000);
    expect_alias("HOROVOD_STALL_CHECK_DISABLE", "1", "STALL_WARN", 0);
    expect_alias("HOROVOD_STALL_CHECK_DISABLE", "off", "STALL_WARN", 60000);
    expect_alias("HOROVOD_STALL_CHECK_DISABLE", "", "STALL_WARN", 60000);
    expect_alias("HOROVOD_DYNAMIC_PROCESS_SETS", "0", "DYNAMIC_PROCESS_SETS", 0);
    expect_alias("HOROVOD_TIMELINE_MARK_CYCLES", "1", "TIMELINE_CYCLES", 1);
    setenv("HOROVOD_TIMELINE", "/tmp/t", 1);
    assert_int_equal(horon_config_load(&config, NULL, NULL, &error), HORON_OK);
    assert_string_equal(config.timeline, "/tmp/t");
    unsetenv("HOROVOD_TIMELINE");
    for (size_t i = 0; wrong[i]; i++) {
        char said[64];
        setenv("HOROVOD_START_TIMEOUT", wrong[i], 1);
        assert_int_equal(horon_config_load(&config, NULL, NULL, &error), HORON_ERR_CONFIG);
        snprintf(said, sizeof said, "HOROVOD_START_TIMEOUT=%s is not", wrong[i]);
        if (!strstr(error.text, said)) /* what the user wrote, not what was made of it */
            fail_msg("'%s' lacks '%s'", error.text, said);
    }
}

static enum horon_config_origin origin_of_backend(struct horon_config *config)
{
    struct horon_error error = {0};
    enum horon_config_origin origin;
    if (horon_config_load_row(config, row_of("BACKEND"), &origin, &error) != HORON_OK)
        fail_msg("%s", error.text);
    return origin;
}

static void expect_backend(const char *cpu, const char *gpu, const char *backend,
                           enum horon_config_origin origin)
{
    static struct horon_config config;
    unsetenv("HOROVOD_CPU_OPERATIONS");
    unsetenv("HOROVOD_GPU_OPERATIONS");
    if (cpu)
        setenv("HOROVOD_CPU_OPERATIONS", cpu, 1);
    if (gpu)
        setenv("HOROVOD_GPU_OPERATIONS", gpu, 1);
    assert_int_equal(origin_of_backend(&config), origin);
    assert_string_equal(config.backend, backend);
}

static void test_config_horovod_words_of_libraries_are_translated(void **state)
{
    static const char *const wrong[] = {"native", "mpi,gloo", "gloo ", "m"};
    struct horon_config config;
    struct horon_error error = {0};
    (void)state;
    expect_backend(NULL, NULL, "native", HORON_CONFIG_FROM_DEFAULT);
    expect_backend("MPI", NULL, "mpi", HORON_CONFIG_FROM_ALIAS);
    expect_backend("mpi", "NCCL", "mpi", HORON_CONFIG_FROM_ALIAS);
    expect_backend("gloo", NULL, "native", HORON_CONFIG_FROM_ALIAS);
    expect_backend("Gloo", "MPI", "native", HORON_CONFIG_FROM_ALIAS);
    expect_backend(NULL, "Mpi", "mpi", HORON_CONFIG_FROM_ALIAS_TOO);
    expect_backend("ccl", "mpi", "mpi", HORON_CONFIG_FROM_ALIAS_TOO);
    expect_backend("", "mpi", "mpi", HORON_CONFIG_FROM_ALIAS_TOO);
    expect_backend("CCL", NULL, "native", HORON_CONFIG_FROM_DEFAULT);
    expect_backend("mlsl", "NCCL", "native", HORON_CONFIG_FROM_DEFAULT);
    expect_backend(NULL, "DDL", "native", HORON_CONFIG_FROM_DEFAULT);
    setenv("HORON_BACKEND", "native,mpi", 1);
    expect_backend("gloo", NULL, "native,mpi", HORON_CONFIG_FROM_ENVIRONMENT);
    unsetenv("HORON_BACKEND");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char named[64];
        snprintf(named, sizeof named, "HOROVOD_CPU_OPERATIONS=%s is none of: mpi gloo", wrong[i]);
        setenv("HOROVOD_CPU_OPERATIONS", wrong[i], 1);
        assert_int_equal(horon_config_load(&config, NULL, NULL, &error), HORON_ERR_CONFIG);
        assert_non_null(strstr(error.text, named));
    }
}

static void test_config_unknown_setting_is_refused_with_the_nearest(void **state)
{
    static const char *const cases[][3] = {
        {"FUSION_BYTE=1", "FUSION_BYTE;", "nearest is FUSION_BYTES"},
        {"fusion_bytes=1", "fusion_bytes;", "nearest is FUSION_BYTES"},
        {"HORON_SPINUS=1", "SPINUS;", "nearest is SPIN_US"},
        {"NOSUCH=1", "called NOSUCH; horon-info --config lists all", ""},
        {"=1", "called ; horon-info", ""},
        {"HORON_=1", "called HORON_; horon-info", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const settings[] = {cases[i][0], NULL};
        struct horon_config config;
        struct horon_error error = {0};
        assert_int_equal(horon_config_load(&config, settings, NULL, &error), HORON_ERR_CONFIG);
        if (!strstr(error.text, cases[i][1]) || !strstr(error.text, cases[i][2]))
            fail_msg("%s gave '%s'", cases[i][0], error.text);
    }
}

static void test_config_bounds_have_units(void **state)
{
    static const char *const cases[][3] = {
        {"PEER_TIMEOUT", "1ms", "it must lie in 500ms..24h"},
        {"STALL_WARN", "25h", "it must lie in 0..24h"},
        {"FUSION_BYTES", "5g", "it must lie in 0..4g"},
        {"SHM_CHUNK_BYTES", "1", "it must lie in 4k..16m"},
        {"SPIN_US", "1000001", "it must lie in 0..1000000"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const words[] = {cases[i][0], cases[i][2], NULL};
        expect_refused(cases[i][0], cases[i][1], words);
    }
}

/* What is printed of a value is read back as the same value. */
static void test_config_format_is_read_back(void **state)
{
    struct horon_config config, again;
    struct horon_error error;
    size_t count;
    const struct horon_config_row *rows = horon_config_rows(&count);
    (void)state;
    assert_int_equal(load("STORE", "file:/x", &config, &error), HORON_OK);
    for (size_t i = 0; i < count; i++) {
        char text[HORON_CONFIG_TEXT_BYTES];
        horon_config_format(&config, &rows[i], text, sizeof text);
        assert_int_equal(load(rows[i].name, text, &again, &error), HORON_OK);
        char twice[HORON_CONFIG_TEXT_BYTES];
        horon_config_format(&again, &rows[i], twice, sizeof twice);
        assert_string_equal(twice, text);
    }
    char text[8];
    config.log_level = HORON_LOG_TRACE;
    horon_config_format(&config, row_of("LOG_LEVEL"), text, sizeof text);
    assert_string_equal(text, "trace");
    horon_config_format(&config, row_of("START_TIMEOUT"), text, sizeof text);
    assert_string_equal(text, "60000ms");
    horon_config_format(&config, row_of("FUSION_BYTES"), text, 4); /* cut, and ended */
    assert_string_equal(text, "671");
}

static void test_config_key_is_in_no_text(void **state)
{
    struct horon_config config;
    struct horon_error error = {0};
    char text[HORON_CONFIG_TEXT_BYTES], setting[HORON_CONFIG_TEXT_BYTES + 128];
    static const char *const forms[] = {"JOB_KEY:" KEY, "JOB_KEY " KEY,      KEY,
                                        "JOBKEY=" KEY,  "HORON_JOBKEY=" KEY, "JOB_KEY=%s" KEY};
    (void)state;
    assert_int_equal(load("JOB_KEY", KEY, &config, &error), HORON_OK);
    assert_string_equal(config.job_key, KEY);
    horon_config_format(&config, row_of("JOB_KEY"), text, sizeof text);
    assert_string_equal(text, "(set)");
    config.job_key[0] = 0;
    horon_config_format(&config, row_of("JOB_KEY"), text, sizeof text);
    assert_string_equal(text, "");
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        /* the last is a key that is too long */
        int used = snprintf(setting, sizeof setting, "%s", forms[i]);
        for (; i == 5 && used < HORON_CONFIG_TEXT_BYTES + 64; used++)
            setting[used] = 'x';
        setting[used] = 0;
        const char *const settings[] = {setting, NULL};
        assert_int_equal(horon_config_load(&config, settings, NULL, &error), HORON_ERR_CONFIG);
        if (strstr(error.text, "horse"))
            fail_msg("the key shows: %s", error.text);
    }
}

static void test_config_agreed_hash_heeds_agreed_rows_only(void **state)
{
    struct horon_config plain, config;
    struct horon_error error;
    size_t count, agreed = 0;
    const struct horon_config_row *rows = horon_config_rows(&count);
    (void)state;
    assert_int_equal(horon_config_load(&plain, NULL, NULL, &error), HORON_OK);
    for (size_t i = 0; i < count; i++) {
        char other[64];
        number_text(&rows[i], rows[i].max, other, sizeof other);
        if (rows[i].type == HORON_CONFIG_BOOL)
            snprintf(other, sizeof other, "%s", rows[i].dflt[0] == '0' ? "on" : "off");
        else if (rows[i].choices)
            snprintf(other, sizeof other, "%s", strrchr(rows[i].choices, ' ') + 1);
        assert_int_equal(load(rows[i].name, other, &config, &error), HORON_OK);
        bool differs = horon_config_agreed_hash(&config) != horon_config_agreed_hash(&plain);
        if (differs != rows[i].agreed)
            fail_msg("%s: hash %s", rows[i].name, differs ? "differs" : "is the same");
        agreed += rows[i].agreed;
    }
    assert_true(agreed >= 8);
    /* another spelling of the same values is the same */
    assert_int_equal(load("FUSION_BYTES", "65536k", &config, &error), HORON_OK);
    assert_true(horon_config_agreed_hash(&config) == horon_config_agreed_hash(&plain));
    assert_int_equal(load("NET_ALGORITHM", "AUTO", &config, &error), HORON_OK);
    assert_true(horon_config_agreed_hash(&config) == horon_config_agreed_hash(&plain));
}

#define TEST(name) cmocka_unit_test_setup(name, begin_clean)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_config_defaults_are_those_of_the_table),
        TEST(test_config_rows_have_fields_of_their_own),
        TEST(test_config_bounds_are_allowed_and_one_beyond_is_not),
        TEST(test_config_bounds_have_units),
        TEST(test_config_whole_numbers_are_strict),
        TEST(test_config_sizes_take_units_of_1024),
        TEST(test_config_times_are_seconds_or_have_a_unit),
        TEST(test_config_switches_take_words),
        TEST(test_config_words_are_those_of_the_row),
        TEST(test_config_texts_fit_or_are_refused),
        TEST(test_config_origin_caller_beats_environment_beats_alias),
        TEST(test_config_every_row_is_read_from_the_environment),
        TEST(test_config_wrong_environment_is_named_whatever_the_caller_says),
        TEST(test_config_horovod_variables_count_in_their_units),
        TEST(test_config_horovod_words_of_libraries_are_translated),
        TEST(test_config_unknown_setting_is_refused_with_the_nearest),
        TEST(test_config_format_is_read_back),
        TEST(test_config_key_is_in_no_text),
        TEST(test_config_agreed_hash_heeds_agreed_rows_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
