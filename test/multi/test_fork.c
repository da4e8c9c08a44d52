/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In a forked child every function of horon.h either says so or does no harm, whatever state its
 * requests are in; and the parent's go on as if nothing had happened.
 */
#undef NDEBUG
#include "context_state.h"
#include "multi/job.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define CHILD_S 30 /* only a child that hangs takes so long */

/* Requests of the parent in every state there is. */
struct held {
    horon_context_t *ctx;
    horon_request_t *pending, *prepared, *flying, *gathered, *failed;
    float sum[4], prepared_data[4], flying_data[4];
};

/* In the child: the line that does not hold is its exit status' reason, told on standard error. */
#define CHILD_MUST(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "forked child, line %d: %s (%s)\n", __LINE__, #condition,              \
                    horon_last_error(held->ctx));                                                  \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void submits_are_refused(struct held *held)
{
    float data[4] = {0};
    char text[HORON_ERROR_TEXT_BYTES] = "";
    horon_request_t *request = NULL;
    size_t started = 7;
    horon_descriptor_t desc = job_sum("child", data, 4, 0);
    CHILD_MUST(horon_submit(held->ctx, &desc, &request) == HORON_ERR_FORKED);
    CHILD_MUST(strstr(horon_last_error(held->ctx), "parent process"));
    CHILD_MUST(horon_submit_group(held->ctx, &desc, 1, &request) == HORON_ERR_FORKED);
    CHILD_MUST(horon_prepare(held->ctx, &desc, &request) == HORON_ERR_FORKED);
    CHILD_MUST(horon_run(held->ctx, &desc, -1, text, sizeof text) == HORON_ERR_FORKED);
    CHILD_MUST(strstr(text, "parent process"));
    desc = job_sum(NULL, data, 4, HORON_IN_ORDER);
    CHILD_MUST(horon_run(held->ctx, &desc, -1, NULL, 0) == HORON_ERR_FORKED);
    CHILD_MUST(!request);
    CHILD_MUST(horon_start(held->prepared) == HORON_ERR_FORKED);
    CHILD_MUST(horon_start(held->flying) == HORON_ERR_FORKED);
    CHILD_MUST(horon_start_all(&held->prepared, 1, &started) == HORON_ERR_FORKED && started == 0);
}

static void requests_say_so(struct held *held)
{
    horon_request_t *const all[] = {held->pending, held->prepared, held->flying, held->gathered,
                                    held->failed};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        uint64_t count, rows[JOB_RANKS_MAX];
        void *data;
        CHILD_MUST(horon_test(all[i], HORON_HOST_DONE) == HORON_ERR_FORKED);
        CHILD_MUST(horon_wait(all[i], HORON_HOST_DONE, -1) == HORON_ERR_FORKED);
        CHILD_MUST(horon_cancel(all[i]) == HORON_ERR_FORKED);
        CHILD_MUST(horon_request_output(all[i], &data, &count, rows) == HORON_ERR_FORKED);
        CHILD_MUST(horon_request_error(all[i]));
    }
    CHILD_MUST(horon_wait_all(all, sizeof all / sizeof all[0], HORON_HOST_DONE, -1) ==
               HORON_ERR_FORKED);
}

static void questions_do_no_harm(struct held *held, int rank, int size)
{
    CHILD_MUST(horon_rank(held->ctx) == rank && horon_size(held->ctx) == size);
    CHILD_MUST(horon_local_rank(held->ctx) >= 0 && horon_local_size(held->ctx) >= 1);
    CHILD_MUST(horon_cross_rank(held->ctx) >= 0 && horon_cross_size(held->ctx) >= 1);
    CHILD_MUST(horon_host_count(held->ctx) >= 1 && horon_host_of(held->ctx, rank) >= 0);
    CHILD_MUST(horon_host_name(held->ctx, 0));
}

/* Given back in any order with the context; and the child may have a world of its own. */
static void letting_go_does_no_harm(struct held *held)
{
    float one = 1;
    horon_context_t *own = NULL;
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_release(held->prepared);
    horon_release(held->pending);
    horon_context_destroy(held->ctx);
    horon_release(held->flying);
    horon_release(held->gathered);
    horon_release(held->failed);
    options.rank = 0;
    options.size = 1;
    CHILD_MUST(horon_context_create(&options, &own, NULL, 0) == HORON_OK);
    horon_descriptor_t desc = job_sum("own", &one, 1, 0);
    CHILD_MUST(horon_run(own, &desc, -1, NULL, 0) == HORON_OK);
    horon_context_destroy(own);
}

/* @return how the child ended, or -1 */
static int end_of(pid_t child)
{
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

static int fork_and_ask(struct held *held)
{
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_S);
        submits_are_refused(held);
        requests_say_so(held);
        questions_do_no_harm(held, horon_rank(held->ctx), horon_size(held->ctx));
        _exit(0);
    }
    return end_of(child);
}

/* @return whether each other thread of this process sleeps */
static bool others_sleep(void)
{
    bool sleep = true;
    const struct dirent *task;
    DIR *tasks = opendir("/proc/self/task");
    while (tasks && (task = readdir(tasks))) {
        char path[64], stat[512] = "";
        if (task->d_name[0] == '.' || atoi(task->d_name) == gettid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", task->d_name);
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        const ssize_t got = read(fd, stat, sizeof stat - 1);
        const char *name_end = strrchr(stat, ')');
        sleep = sleep && got > 0 && name_end && name_end[2] == 'S';
        close(fd);
    }
    closedir(tasks);
    return sleep;
}

/* Unlike the other children here this one allocates. The C library's malloc() allows that at any
 * time, but a sanitizer's hangs where another thread was in it. So the parent forks while its
 * progress thread sleeps and has nothing to wake for: it cannot get the token. */
static int fork_and_let_go(struct held *held)
{
    horon_token_take(held->ctx);
    while (!others_sleep())
        sched_yield();
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_S);
        letting_go_does_no_harm(held);
        _exit(0);
    }
    horon_token_release(held->ctx);
    return end_of(child);
}

static void fork_with_requests(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static struct held held;
    uint64_t count = 0;
    (void)arg;
    held.ctx = ctx;
    const bool first = horon_rank(ctx) == 0;
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT, desc = job_sum("rows", held.sum, 4, 0);
    barrier.verb = HORON_BARRIER;
    desc.verb = HORON_ALLGATHER;
    desc.dst = NULL;
    RANK_MUST(horon_submit(ctx, &desc, &held.gathered) == HORON_OK);
    RANK_MUST(horon_wait(held.gathered, HORON_HOST_DONE, -1) == HORON_OK);
    desc = job_sum("of two minds", held.sum, first ? 4 : 3, 0);
    RANK_MUST(horon_submit(ctx, &desc, &held.failed) == HORON_OK);
    RANK_MUST(horon_wait(held.failed, HORON_HOST_DONE, -1) == HORON_ERR_MISMATCH);
    desc = job_sum("prepared", held.prepared_data, 4, 0);
    RANK_MUST(horon_prepare(ctx, &desc, &held.prepared) == HORON_OK);
    desc = job_sum("flying", held.flying_data, 4, 0);
    RANK_MUST(horon_prepare(ctx, &desc, &held.flying) == HORON_OK);
    desc = job_sum("pending", held.sum, 4, 0);
    if (first) { /* the others follow when it has forked */
        RANK_MUST(horon_start(held.flying) == HORON_OK);
        RANK_MUST(horon_submit(ctx, &desc, &held.pending) == HORON_OK);
        RANK_MUST(fork_and_ask(&held) == 0);
        RANK_MUST(fork_and_let_go(&held) == 0);
        RANK_MUST(horon_test(held.pending, HORON_HOST_DONE) == HORON_IN_PROGRESS);
        RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
    } else {
        RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
        RANK_MUST(horon_start(held.flying) == HORON_OK);
        RANK_MUST(horon_submit(ctx, &desc, &held.pending) == HORON_OK);
    }
    RANK_MUST(horon_wait(held.pending, HORON_HOST_DONE, -1) == HORON_OK);
    RANK_MUST(horon_wait(held.flying, HORON_HOST_DONE, -1) == HORON_OK);
    RANK_MUST(horon_start(held.prepared) == HORON_OK);
    RANK_MUST(horon_wait(held.prepared, HORON_HOST_DONE, -1) == HORON_OK);
    RANK_MUST(horon_request_output(held.gathered, NULL, &count, NULL) == HORON_OK);
    RANK_MUST(count == 4 * (uint64_t)horon_size(ctx));
    horon_release(held.pending);
    horon_release(held.flying);
    horon_release(held.prepared);
    horon_release(held.gathered);
    horon_release(held.failed);
}

static void test_fork_child_is_refused_and_parent_goes_on(void **state)
{
    static const char *const tcp[] = {"SHM=0", NULL};
    (void)state;
    for (int size = 2; size <= 3; size++) {
        job_run(size, NULL, fork_with_requests, NULL);
        job_run(size, tcp, fork_with_requests, NULL);
    }
}

/* @return how often @p word occurs in a file. Allocates nothing, as befits a forked child: another
 * thread may have held a sanitizer's lock. */
static int count_word(const char *path, const char *word)
{
    static char text[1 << 20];
    size_t used = 0;
    ssize_t got;
    int count = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    while ((got = read(fd, text + used, sizeof text - 1 - used)) > 0)
        used += (size_t)got;
    close(fd);
    for (const char *at = text; (at = strstr(at, word)); at++)
        count++;
    return got == 0 && used > 0 && used < sizeof text - 1 ? count : -1;
}

/* A child that lives on after its parent has left keeps no memory of the job and no connection. */
static void fork_and_leave(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int *ends = arg;
    float data[4] = {0};
    char byte = 0;
    horon_descriptor_t desc = job_sum("x", data, 4, 0);
    RANK_MUST(horon_run(ctx, &desc, -1, NULL, 0) == HORON_OK);
    if (horon_rank(ctx) != 0 || fork() != 0)
        return;
    alarm(CHILD_S);
    byte = (char)count_word("/proc/self/maps", "memfd:horon");
    _exit(write(ends[1], &byte, 1) != 1);
}

static void test_fork_child_keeps_no_memory_of_the_job(void **state)
{
    int ends[2];
    char mappings = 1;
    (void)state;
    assert_int_equal(pipe(ends), 0);
    job_run(3, NULL, fork_and_leave, ends);
    close(ends[1]); /* a child that died is heard of */
    assert_int_equal(read(ends[0], &mappings, 1), 1);
    assert_int_equal(mappings, 0);
    close(ends[0]);
}

/* @param arg how the child ended */
static void fork_in_callback(void *arg, horon_request_t *request, horon_status_t status)
{
    int *end = arg;
    (void)request;
    (void)status;
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_S);
        return;
    }
    *end = end_of(child);
}

/* It has the progress thread and no other, and that ends: nobody drives what is the parent's. */
static void fork_and_return(horon_context_t *ctx, void *arg, struct job_report *report)
{
    int end = -1;
    float data[4] = {0};
    horon_descriptor_t desc = job_sum("x", data, 4, 0);
    (void)arg;
    desc.callback = fork_in_callback;
    desc.callback_arg = &end;
    RANK_MUST(horon_run(ctx, &desc, -1, NULL, 0) == HORON_OK);
    RANK_MUST(end == 0);
    desc = job_sum("y", data, 4, 0);
    RANK_MUST(horon_run(ctx, &desc, -1, NULL, 0) == HORON_OK);
}

static void test_fork_in_a_callback_ends_the_child_that_returns_from_it(void **state)
{
    (void)state;
    job_run(2, NULL, fork_and_return, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork_child_is_refused_and_parent_goes_on),
        cmocka_unit_test(test_fork_child_keeps_no_memory_of_the_job),
        cmocka_unit_test(test_fork_in_a_callback_ends_the_child_that_returns_from_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
