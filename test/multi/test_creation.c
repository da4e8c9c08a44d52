/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts that do not come to be: every process that tried is told as data which rank is to blame,
 * on which host, and for what.
 */
#undef NDEBUG
#include "multi/job.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Two ranks that fail to join, and what both are told. */
static const struct {
    const char *settings[2];
    rlim_t file_bytes[2]; /* 0: no limit of its own */
    horon_status_t status;
    horon_cause_t cause;
    int rank, other_rank;
    bool met; /* each knew the other's host by then */
} creations[] = {
    {{"FUSION_BYTES=1m", "FUSION_BYTES=2m"},
     {0},
     HORON_ERR_CONFIG,
     HORON_CAUSE_SETTING,
     0,
     1,
     true},
    {{NULL, "INTERFACES=nosuch0"}, {0}, HORON_ERR_CONFIG, HORON_CAUSE_SETTING, 1, -1, false},
    {{"TIMELINE=/nowhere/t", NULL}, {0}, HORON_ERR_SYSTEM, HORON_CAUSE_RESOURCE, 0, -1, false},
    {{NULL, NULL}, {0, 4096}, HORON_ERR_MEMORY, HORON_CAUSE_RESOURCE, 1, -1, true},
};

/* In a child: tries to create rank @p rank's context, and writes down what it is told. */
static void fail_to_create(const char *store, int rank, const char *key, const char *setting,
                           rlim_t file_bytes, int pipe)
{
    const char *const settings[] = {store, key, setting, NULL};
    const struct rlimit limit = {file_bytes, file_bytes};
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_failure_t failure = HORON_FAILURE_INIT;
    struct job_report report = {0};
    horon_context_t *ctx;
    options.rank = rank;
    options.size = 2;
    options.settings = settings;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (file_bytes && setrlimit(RLIMIT_FSIZE, &limit) != 0)
        _exit(1);
    if (horon_context_create(&options, &ctx, NULL, 0) != HORON_OK &&
        horon_last_failure(NULL, &failure) == HORON_OK)
        job_say(&failure, &report);
    _exit(write(pipe, &report, sizeof report) != sizeof report);
}

static pid_t start_creation(const char *store, int rank, const char *key, const char *setting,
                            rlim_t file_bytes, int *pipe_out)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        fail_to_create(store, rank, key, setting, file_bytes, ends[1]);
    close(ends[1]);
    *pipe_out = ends[0];
    return child;
}

static void take_report(int pipe, struct job_report *report)
{
    assert_int_equal(read(pipe, report, sizeof *report), sizeof *report);
    close(pipe);
}

static void expect_creation(size_t i, const char *store)
{
    char host[64] = "";
    int pipes[2];
    pid_t children[2];
    horon_failure_t expected = HORON_FAILURE_INIT;
    struct job_report report, whole;
    gethostname(host, sizeof host - 1);
    for (int rank = 0; rank < 2; rank++)
        children[rank] = start_creation(store, rank, "JOB_KEY=a key for this test alone",
                                        creations[i].settings[rank], creations[i].file_bytes[rank],
                                        &pipes[rank]);
    expected.cause = (int32_t)creations[i].cause;
    expected.rank = creations[i].rank;
    expected.other_rank = creations[i].other_rank;
    for (int rank = 0; rank < 2; rank++) {
        expected.host = rank == creations[i].rank || creations[i].met ? host : "";
        job_say(&expected, &whole);
        take_report(pipes[rank], &report);
        assert_int_equal(report.status, creations[i].status);
        assert_string_equal(report.text, whole.text);
        assert_int_equal(waitpid(children[rank], NULL, 0), children[rank]);
    }
}

static void test_creation_that_fails_tells_both_ranks_the_same(void **state)
{
    char folder[] = "/tmp/horon-test-XXXXXX", store[64];
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(store, sizeof store, "STORE=file:%s", folder);
    for (size_t i = 0; i < sizeof creations / sizeof creations[0]; i++)
        expect_creation(i, store);
    assert_int_equal(rmdir(folder), 0);
}

/* The other one waits for a rank that has the key: it is not asked. */
static void test_creation_without_the_key_is_told(void **state)
{
    char folder[] = "/tmp/horon-test-XXXXXX", store[64], left[64];
    struct job_report report;
    int pipes[2], how;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(store, sizeof store, "STORE=file:%s", folder);
    const pid_t first =
        start_creation(store, 0, "JOB_KEY=a key for this test alone", NULL, 0, &pipes[0]);
    const pid_t second =
        start_creation(store, 1, "JOB_KEY=a key for another test", NULL, 0, &pipes[1]);
    take_report(pipes[1], &report);
    assert_int_equal(report.status, HORON_ERR_AUTH);
    assert_non_null(strstr(report.text, horon_cause_text(HORON_CAUSE_KEY)));
    assert_int_equal(waitpid(second, NULL, 0), second);
    assert_int_equal(kill(first, SIGKILL), 0);
    assert_int_equal(waitpid(first, &how, 0), first);
    assert_true(WIFSIGNALED(how)); /* it was still waiting */
    close(pipes[0]);
    snprintf(left, sizeof left, "%s/horon.store", folder);
    assert_int_equal(unlink(left), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void expect_no_context(const char *const *settings, int size, horon_status_t status,
                              horon_cause_t cause, int rank)
{
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_failure_t failure = HORON_FAILURE_INIT;
    horon_context_t *ctx = NULL;
    char text[HORON_ERROR_TEXT_BYTES];
    options.rank = 0;
    options.size = size;
    options.settings = settings;
    assert_int_equal(horon_context_create(&options, &ctx, text, sizeof text), status);
    assert_int_equal(horon_last_failure(NULL, &failure), HORON_OK);
    assert_int_equal(failure.status, status);
    assert_int_equal(failure.cause, cause);
    assert_int_equal(failure.rank, rank);
    assert_string_equal(failure.text, text);
    assert_string_equal(failure.host, "");
}

static void test_creation_in_vain_tells_what_is_known(void **state)
{
    static const char *const wrong[] = {"SHM=perhaps", NULL};
    char folder[] = "/tmp/horon-test-XXXXXX", store[64];
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(store, sizeof store, "STORE=file:%s", folder);
    const char *const alone[] = {store, "JOB_KEY=a key for this test alone", "START_TIMEOUT=100ms",
                                 NULL};
    expect_no_context(wrong, 1, HORON_ERR_CONFIG, HORON_CAUSE_SETTING, -1);
    expect_no_context(alone, 2, HORON_ERR_TIMEOUT, HORON_CAUSE_ABSENT, 1);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_creation_that_fails_tells_both_ranks_the_same),
        cmocka_unit_test(test_creation_without_the_key_is_told),
        cmocka_unit_test(test_creation_in_vain_tells_what_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
