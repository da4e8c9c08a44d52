/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures as data: every cause that ranks can bring about happens here between processes, over
 * shared memory and over connections, and every rank that it concerns is told the same cause,
 * ranks, host and name.
 */
#undef NDEBUG
#include "multi/job.h"

#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define REPORT_MS 60000 /* only a failure of the test reaches it */

static const char *const over_memory[] = {NULL};
static const char *const over_tcp[] = {"SHM=0", NULL};

static const horon_descriptor_t barrier = {sizeof barrier, .verb = HORON_BARRIER, .prescale = 1,
                                           .postscale = 1};

/* A request that fails is waited for, told of, and released. */
static void wait_to_fail(horon_context_t *ctx, horon_request_t *request, struct job_report *report)
{
    horon_failure_t failure = HORON_FAILURE_INIT;
    const horon_status_t status = horon_wait(request, HORON_HOST_DONE, -1);
    RANK_MUST(status < 0);
    RANK_MUST(horon_request_failure(request, &failure) == HORON_OK);
    RANK_MUST(failure.status == status);
    RANK_MUST(strcmp(failure.text, horon_request_error(request)) == 0);
    job_say(&failure, report);
    horon_release(request);
}

static void submit_to_fail(horon_context_t *ctx, const horon_descriptor_t *desc,
                           struct job_report *report)
{
    horon_request_t *request;
    RANK_MUST(horon_submit(ctx, desc, &request) == HORON_OK);
    wait_to_fail(ctx, request, report);
}

static void run_to_fail(horon_context_t *ctx, const horon_descriptor_t *desc, int64_t timeout_ms,
                        struct job_report *report)
{
    horon_failure_t failure = HORON_FAILURE_INIT;
    char text[HORON_ERROR_TEXT_BYTES];
    const horon_status_t status = horon_run(ctx, desc, timeout_ms, text, sizeof text);
    RANK_MUST(horon_last_failure(ctx, &failure) == HORON_OK);
    RANK_MUST(status < 0);
    RANK_MUST(failure.status == status);
    RANK_MUST(strcmp(failure.text, text) == 0);
    RANK_MUST(strcmp(failure.text, horon_last_error(ctx)) == 0);
    job_say(&failure, report);
}

static void differ_in_verb(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[4] = {0};
    horon_descriptor_t desc = job_sum("x", data, 4, 0);
    (void)arg;
    if (horon_rank(ctx) == 1)
        desc.verb = HORON_BROADCAST;
    if (horon_rank(ctx) == 0) /* both ways of asking */
        run_to_fail(ctx, &desc, -1, report);
    else
        submit_to_fail(ctx, &desc, report);
}

static void differ_in_count(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[4] = {0};
    (void)arg;
    const horon_descriptor_t desc = job_sum("x", data, horon_rank(ctx) == 2 ? 3 : 4, 0);
    submit_to_fail(ctx, &desc, report);
}

/* The one whose member of the group the others submit alone. */
static void differ_in_group(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[2] = {0};
    const horon_descriptor_t descs[] = {job_sum("x", &data[0], 1, 0), job_sum("y", &data[1], 1, 0)};
    horon_request_t *requests[2];
    horon_failure_t failure = HORON_FAILURE_INIT;
    (void)arg;
    if (horon_rank(ctx) != 1) {
        submit_to_fail(ctx, &descs[0], report);
        RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK); /* "y" has ended, too */
        return;
    }
    RANK_MUST(horon_submit_group(ctx, descs, 2, requests) == HORON_OK);
    RANK_MUST(horon_wait_all(requests, 2, HORON_HOST_DONE, -1) == HORON_ERR_MISMATCH);
    RANK_MUST(horon_request_failure(requests[1], &failure) == HORON_OK);
    RANK_MUST(failure.cause == HORON_CAUSE_GROUP);
    RANK_MUST(failure.rank == 1 || failure.other_rank == 1);
    RANK_MUST(strcmp(failure.name, "y") == 0);
    RANK_MUST(horon_request_failure(requests[0], &failure) == HORON_OK);
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
    job_say(&failure, report);
    horon_release(requests[0]);
    horon_release(requests[1]);
}

static void differ_in_order(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[4] = {0};
    horon_descriptor_t desc = job_sum(NULL, data, 4, HORON_IN_ORDER);
    (void)arg;
    if (horon_rank(ctx) == 1)
        desc.redop = HORON_MAX;
    run_to_fail(ctx, &desc, -1, report);
}

/* Rank 1 does something once the others have submitted what they then wait for; that may be so soon
 * that the barrier fails, too. */
static void wait_for_rank_1(horon_context_t *ctx, struct job_report *report)
{
    float data = 0;
    horon_request_t *request;
    const horon_descriptor_t desc = job_sum("x", &data, 1, 0);
    RANK_MUST(horon_submit(ctx, &desc, &request) == HORON_OK);
    (void)horon_run(ctx, &barrier, -1, NULL, 0);
    wait_to_fail(ctx, request, report);
}

static void lose_one(horon_context_t *ctx, void *arg, struct job_report *report)
{
    (void)arg;
    if (horon_rank(ctx) != 1) {
        wait_for_rank_1(ctx, report);
        return;
    }
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
    raise(SIGKILL);
}

static void exit_one(horon_context_t *ctx, void *arg, struct job_report *report)
{
    (void)arg;
    if (horon_rank(ctx) != 1) {
        wait_for_rank_1(ctx, report);
        return;
    }
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
    RANK_MUST(horon_context_exit(ctx, "the dog ate it") == HORON_OK);
    horon_failure_t failure = HORON_FAILURE_INIT;
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_ERR_PEER_LOST);
    RANK_MUST(horon_last_failure(ctx, &failure) == HORON_OK);
    RANK_MUST(strcmp(failure.name, "") == 0); /* it was refused for what happened before */
    failure.name = "x";
    job_say(&failure, report);
}

static void exit_at_once(horon_context_t *ctx, int status, struct job_report *report)
{
    if (horon_rank(ctx) != 1) {
        wait_for_rank_1(ctx, report);
        return;
    }
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
    horon_context_destroy_at_exit(ctx);
    exit(status);
}

static void exit_with_status(horon_context_t *ctx, void *arg, struct job_report *report)
{
    (void)arg;
    exit_at_once(ctx, 3, report);
}

static void exit_well(horon_context_t *ctx, void *arg, struct job_report *report)
{
    (void)arg;
    exit_at_once(ctx, 0, report);
}

static void leave_one(horon_context_t *ctx, void *arg, struct job_report *report)
{
    (void)arg;
    if (horon_rank(ctx) != 1)
        wait_for_rank_1(ctx, report);
    else
        RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
}

/* The socket of this rank's connection over TCP, of which it has one. */
static int find_connection(void)
{
    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_storage peer;
        socklen_t bytes = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0 && peer.ss_family != AF_UNIX)
            return fd;
    }
    return -1;
}

/* Between two messages, so that the others read it as the beginning of one. */
static void send_nonsense(horon_context_t *ctx, void *arg, struct job_report *report)
{
    char nonsense[256];
    (void)arg;
    if (horon_rank(ctx) != 1) {
        wait_for_rank_1(ctx, report);
        return;
    }
    memset(nonsense, 0xee, sizeof nonsense);
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
    RANK_MUST(send(find_connection(), nonsense, sizeof nonsense, MSG_NOSIGNAL) ==
              (ssize_t)sizeof nonsense);
    pause(); /* until the test ends it: it sends nothing more, and hangs up on nobody */
}

static int set_loopback(short flags)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = flags};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const int failed = fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) != 0;
    close(fd);
    return failed;
}

/* The way between the two breaks while both live. */
static void be_cut_off(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data = 0;
    const horon_descriptor_t desc = job_sum("x", &data, 1, 0);
    (void)arg;
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
    if (horon_rank(ctx) == 0)
        RANK_MUST(set_loopback(0) == 0);
    submit_to_fail(ctx, &desc, report);
}

/* The one that gave up tells by its call, the others by an operation that never began. */
static void give_one_up(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data = 0;
    horon_request_t *request;
    const horon_descriptor_t desc = job_sum(NULL, &data, 1, HORON_IN_ORDER);
    const horon_descriptor_t both = job_sum("both", &data, 1, 0);
    (void)arg;
    if (horon_rank(ctx) == 0) {
        RANK_MUST(horon_run(ctx, &both, -1, NULL, 0) == HORON_OK);
        run_to_fail(ctx, &desc, 20, report);
        return;
    }
    RANK_MUST(horon_submit(ctx, &barrier, &request) == HORON_OK);
    (void)horon_run(ctx, &both, -1, NULL, 0);
    wait_to_fail(ctx, request, report);
}

/* What every rank says, but for the one that is gone or has left. */
static const struct {
    job_work_fn_t work;
    int size;
    horon_status_t status;
    horon_cause_t cause;
    int rank;
    bool differs; /* from another one, whichever is first to meet it */
    bool silent;  /* the rank has nothing to say */
    const char *name;
} cases[] = {
    {differ_in_verb, 3, HORON_ERR_MISMATCH, HORON_CAUSE_VERB, 1, true, false, "x"},
    {differ_in_count, 3, HORON_ERR_MISMATCH, HORON_CAUSE_DESCRIPTION, 2, true, false, "x"},
    {differ_in_group, 3, HORON_ERR_MISMATCH, HORON_CAUSE_GROUP, 1, true, false, "x"},
    {differ_in_order, 2, HORON_ERR_MISMATCH, HORON_CAUSE_ORDER, 1, true, false, ""},
    {lose_one, 3, HORON_ERR_PEER_LOST, HORON_CAUSE_DIED, 1, false, true, "x"},
    {exit_one, 3, HORON_ERR_PEER_LOST, HORON_CAUSE_EXITING, 1, false, false, "x"},
    {exit_with_status, 3, HORON_ERR_PEER_LOST, HORON_CAUSE_EXITING, 1, false, true, "x"},
    {exit_well, 3, HORON_ERR_CLOSED, HORON_CAUSE_LEFT, 1, false, true, "x"},
    {leave_one, 3, HORON_ERR_CLOSED, HORON_CAUSE_LEFT, 1, false, true, "x"},
};

static void expect_said(const struct job *job, const struct job_report *report,
                        horon_status_t status, const horon_failure_t *expected)
{
    struct job_report whole;
    horon_failure_t failure = *expected;
    failure.host = job->host;
    job_say(&failure, &whole);
    if (report->status != (int32_t)status || strcmp(report->text, whole.text) != 0)
        fail_msg("%d %s, not %s", report->status, report->text, whole.text);
}

/* The rank that differs and the one that met it: the lower one first. */
static void pair_with(int rank, int other, horon_failure_t *expected)
{
    expected->rank = rank < other ? rank : other;
    expected->other_rank = rank < other ? other : rank;
}

static void expect_case(size_t i, const char *const *settings)
{
    struct job job;
    horon_failure_t expected = HORON_FAILURE_INIT;
    bool begun = false;
    expected.cause = (int32_t)cases[i].cause;
    expected.rank = cases[i].rank;
    expected.name = cases[i].name;
    job_start(&job, cases[i].size, settings, cases[i].work, NULL);
    for (int rank = 0; rank < job.size; rank++) {
        struct job_report report;
        if (rank == cases[i].rank && cases[i].silent)
            continue;
        assert_int_equal(job_report_of(&job, rank, REPORT_MS, &report), 0);
        for (int other = 0; cases[i].differs && !begun && other < job.size; other++) {
            char pair[128];
            if (other == cases[i].rank)
                continue;
            pair_with(cases[i].rank, other, &expected);
            snprintf(pair, sizeof pair, "; rank %d on '%.64s', other rank %d,", expected.rank,
                     job.host, expected.other_rank);
            if (strstr(report.text, pair))
                break;
        }
        begun = true; /* and all say what the first one said */
        expect_said(&job, &report, cases[i].status, &expected);
    }
    assert_int_equal(job_end(&job, REPORT_MS), 0);
}

static void expect_all(const char *const *settings)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_case(i, settings);
}

static void test_failure_is_the_same_data_on_all_ranks(void **state)
{
    (void)state;
    expect_all(over_memory);
}

static void test_failure_is_the_same_data_over_tcp(void **state)
{
    (void)state;
    expect_all(over_tcp);
}

static void test_failure_of_a_rank_that_sends_nonsense_is_told(void **state)
{
    struct job job;
    struct job_report report;
    horon_failure_t expected = HORON_FAILURE_INIT;
    (void)state;
    expected.cause = HORON_CAUSE_PROTOCOL;
    expected.rank = 1;
    expected.name = "x";
    job_start(&job, 2, over_tcp, send_nonsense, NULL);
    assert_int_equal(job_report_of(&job, 0, REPORT_MS, &report), 0);
    expect_said(&job, &report, HORON_ERR_PROTO, &expected);
    assert_int_equal(kill(job.pids[1], SIGKILL), 0);
    assert_int_equal(job_end(&job, REPORT_MS), 0);
}

/* The last of all: this process has no other network afterwards. */
static void test_failure_of_a_broken_way_names_the_silent_rank(void **state)
{
    static const char *const settings[] = {"SHM=0", "PEER_TIMEOUT=500ms", NULL};
    struct job job;
    struct job_report report;
    horon_failure_t expected = HORON_FAILURE_INIT;
    (void)state;
    if (unshare(CLONE_NEWNET) != 0 || set_loopback(IFF_UP | IFF_RUNNING) != 0) {
        print_message("SKIP: no network of our own (%s); needs root\n", strerror(errno));
        skip();
    }
    expected.cause = HORON_CAUSE_SILENT;
    expected.name = "x";
    job_start(&job, 2, settings, be_cut_off, NULL);
    for (int rank = 0; rank < 2; rank++) {
        expected.rank = 1 - rank;
        assert_int_equal(job_report_of(&job, rank, REPORT_MS, &report), 0);
        expect_said(&job, &report, HORON_ERR_PEER_LOST, &expected);
    }
    assert_int_equal(job_end(&job, REPORT_MS), 0);
}

static void test_failure_of_a_time_limit_names_both_sides(void **state)
{
    static const char *const names[] = {"", "horon.barrier.0"};
    struct job job;
    struct job_report report;
    horon_failure_t expected = HORON_FAILURE_INIT;
    (void)state;
    expected.cause = HORON_CAUSE_TIME_LIMIT;
    expected.rank = 0;
    expected.other_rank = 1;
    job_start(&job, 2, NULL, give_one_up, NULL);
    for (int rank = 0; rank < 2; rank++) {
        expected.name = names[rank];
        assert_int_equal(job_report_of(&job, rank, REPORT_MS, &report), 0);
        expect_said(&job, &report, HORON_ERR_TIMEOUT, &expected);
    }
    assert_int_equal(job_end(&job, REPORT_MS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failure_is_the_same_data_on_all_ranks),
        cmocka_unit_test(test_failure_is_the_same_data_over_tcp),
        cmocka_unit_test(test_failure_of_a_rank_that_sends_nonsense_is_told),
        cmocka_unit_test(test_failure_of_a_time_limit_names_both_sides),
        cmocka_unit_test(test_failure_of_a_broken_way_names_the_silent_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
