/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables that mean nothing are reported by each process that creates a context, horonrun or not.
 * Each case is a process with an environment of its own.
 */
#undef NDEBUG
#include <horon/horon.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

extern char **environ;

struct lines {
    int count;
    horon_log_level_t level;
    char last[HORON_ERROR_TEXT_BYTES];
};

static void keep_line(void *arg, horon_log_level_t level, const char *text)
{
    struct lines *lines = arg;
    lines->count++;
    lines->level = level;
    snprintf(lines->last, sizeof lines->last, "%s", text);
}

/* A world of one, made and destroyed; its log lines up to warnings are added to @p lines. */
static bool live_as(int rank, int size, struct lines *lines, const char *setting)
{
    const char *const settings[] = {setting, NULL};
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *ctx = NULL;
    char why[HORON_ERROR_TEXT_BYTES] = "";
    options.rank = rank;
    options.size = size;
    options.settings = settings;
    options.log_fn = keep_line;
    options.log_arg = lines;
    if (horon_context_create(&options, &ctx, why, sizeof why) != HORON_OK) {
        fprintf(stderr, "%s\n", why);
        return false;
    }
    horon_context_destroy(ctx);
    return true;
}

static bool live_once(struct lines *lines, const char *setting)
{
    return live_as(0, 1, lines, setting);
}

/* Runs @p child, with no variables of horon or Horovod set. @return did it say yes? */
static bool in_own_process(bool (*child)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        for (char **entry = environ; *entry;) {
            char name[256];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
            if (strncmp(name, "HORON_", 6) == 0 || strncmp(name, "HOROVOD_", 8) == 0)
                unsetenv(name);
            else
                entry++;
        }
        _exit(child() ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool unknown_is_reported(void)
{
    struct lines lines = {0};
    setenv("HORON_FUSION_BYTE", "a secret", 1);
    setenv("HORON_STOER", "file:/nowhere", 1);
    for (int contexts = 1; contexts <= 2; contexts++)
        if (!live_once(&lines, NULL) || lines.count != contexts) /* in one line */
            return false;
    fprintf(stderr, "# %d: %s\n", lines.count, lines.last);
    return lines.level == HORON_LOG_WARN &&
           (strstr(lines.last, "HORON_FUSION_BYTE is set but means nothing; the nearest is "
                               "HORON_FUSION_BYTES; 1 more") ||
            strstr(lines.last, "HORON_STOER is set but means nothing; the nearest is HORON_STORE; "
                               "1 more")) &&
           !strstr(lines.last, "secret") && !strstr(lines.last, "nowhere");
}

static void test_variables_unknown_are_reported_by_each_context(void **state)
{
    (void)state;
    assert_true(in_own_process(unknown_is_reported));
}

static bool known_are_silent(void)
{
    struct lines lines = {0};
    setenv("HORON_PYTHON", "/usr/bin/python3", 1);
    setenv("HORON_TORCH_SPEC", "none", 1);
    setenv("HORON_SKIP_DEBIAN", "1", 1);
    setenv("HORON_TEST_FULL", "1", 1);
    setenv("HORON_FUSION_BYTES", "1m", 1);
    setenv("HORON_RANK", "0", 1);
    setenv("HORON_SIZE", "1", 1);
    setenv("HOROVOD_FUSION_THRESHOLD", "1000000", 1);
    setenv("HOROVOD_CROSS_RANK", "0", 1); /* as horonrun sets it */
    return live_once(&lines, NULL) && lines.count == 0;
}

static void test_variables_of_any_part_are_known(void **state)
{
    (void)state;
    assert_true(in_own_process(known_are_silent));
}

static bool horovods_are_named(void)
{
    struct lines lines = {0};
    setenv("HOROVOD_AUTOTUNE", "a secret", 1);
    setenv("HOROVOD_RANKS", "4", 1);
    if (!live_once(&lines, NULL) || lines.count != 1)
        return false;
    fprintf(stderr, "# %s\n", lines.last);
    return lines.level == HORON_LOG_WARN && strstr(lines.last, "set, but not heeded by horon: ") &&
           strstr(lines.last, "HOROVOD_AUTOTUNE") && strstr(lines.last, "HOROVOD_RANKS") &&
           !strstr(lines.last, "secret");
}

static void test_variables_of_horovod_that_are_not_heeded_are_named_in_one_line(void **state)
{
    (void)state;
    assert_true(in_own_process(horovods_are_named));
}

static bool contradictions_are_named(void)
{
    struct lines lines = {0};
    setenv("HOROVOD_RANK", "0", 1); /* as horovodrun says, if that were on two hosts */
    setenv("HOROVOD_SIZE", "1", 1);
    setenv("HOROVOD_LOCAL_RANK", "0", 1);
    setenv("HOROVOD_LOCAL_SIZE", "1", 1);
    setenv("HOROVOD_CROSS_RANK", "1", 1);
    setenv("HOROVOD_CROSS_SIZE", "2", 1);
    if (!live_once(&lines, NULL) || lines.count != 0) /* a caller that knows is not told */
        return false;
    if (!live_as(-1, -1, &lines, NULL) || lines.count != 1)
        return false;
    fprintf(stderr, "# %s\n", lines.last);
    if (!strstr(lines.last, "HOROVOD_CROSS_RANK (found: 0)") ||
        !strstr(lines.last, "HOROVOD_CROSS_SIZE (found: 1)") || strstr(lines.last, "LOCAL"))
        return false;
    setenv("HOROVOD_CROSS_RANK", "0", 1);
    setenv("HOROVOD_CROSS_SIZE", "1", 1);
    return live_as(-1, -1, &lines, NULL) && lines.count == 1;
}

static void test_variables_of_another_place_than_was_found_are_named(void **state)
{
    (void)state;
    assert_true(in_own_process(contradictions_are_named));
}

static bool quiet_says_nothing(void)
{
    struct lines lines = {0};
    setenv("HORON_FUSION_BYTE", "1", 1);
    return live_once(&lines, "LOG_LEVEL=error") && lines.count == 0;
}

static void test_variables_report_is_a_warning_that_can_be_silenced(void **state)
{
    (void)state;
    assert_true(in_own_process(quiet_says_nothing));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variables_unknown_are_reported_by_each_context),
        cmocka_unit_test(test_variables_of_any_part_are_known),
        cmocka_unit_test(test_variables_of_horovod_that_are_not_heeded_are_named_in_one_line),
        cmocka_unit_test(test_variables_of_another_place_than_was_found_are_named),
        cmocka_unit_test(test_variables_report_is_a_warning_that_can_be_silenced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
