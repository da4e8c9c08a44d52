/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A guest leaves signals alone: with contexts in it, and after them, a process has the handlers and
 * masks that it had before, and the threads that came with a context block all signals, so that no
 * handler of the process runs in them. The kernel is asked, thread by thread.
 */
#undef NDEBUG
#include "multi/duo.h"

#include <dirent.h>
#include <inttypes.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

enum { THREADS_MAX = 32 };

/* Sets of signals as /proc shows them. */
struct thread {
    pid_t tid;
    uint64_t blocked, ignored, caught;
};

struct process {
    struct thread threads[THREADS_MAX];
    int count;
};

/* @return false: it has just ended */
static bool look_at_thread(pid_t tid, struct thread *thread)
{
    char path[64], line[256];
    int found = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)tid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        found += sscanf(line, "SigBlk: %" SCNx64, &thread->blocked) == 1;
        found += sscanf(line, "SigIgn: %" SCNx64, &thread->ignored) == 1;
        found += sscanf(line, "SigCgt: %" SCNx64, &thread->caught) == 1;
    }
    if (file)
        fclose(file);
    thread->tid = tid;
    return found == 3;
}

static struct process look(void)
{
    struct process process = {.count = 0};
    DIR *directory = opendir("/proc/self/task");
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        const pid_t tid = atoi(entry->d_name);
        assert_true(process.count < THREADS_MAX);
        if (tid > 0 && look_at_thread(tid, &process.threads[process.count]))
            process.count++;
    }
    closedir(directory);
    return process;
}

static const struct thread *find(const struct process *process, pid_t tid)
{
    for (int i = 0; i < process->count; i++)
        if (process->threads[i].tid == tid)
            return &process->threads[i];
    return NULL;
}

/* What a thread blocks that blocks all that it can. */
static uint64_t all_signals(void)
{
    struct thread self;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    assert_true(look_at_thread((pid_t)syscall(SYS_gettid), &self));
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return self.blocked;
}

/* A thread that was joined may be listed for a moment. */
static struct process look_without_the_dead(const struct process *before)
{
    struct process now = look();
    for (int i = 0; i < 10000 && now.count > before->count; i++) {
        sched_yield();
        now = look();
    }
    return now;
}

/* @return how many threads are new */
static int expect_unchanged(const struct process *before, const struct process *now)
{
    const uint64_t all = all_signals();
    int added = 0;
    for (int i = 0; i < now->count; i++) {
        const struct thread *thread = &now->threads[i], *was = find(before, thread->tid);
        assert_int_equal(thread->ignored, before->threads[0].ignored);
        assert_int_equal(thread->caught, before->threads[0].caught);
        if (was)
            assert_int_equal(thread->blocked, was->blocked);
        else
            assert_int_equal(thread->blocked & all, all); /* one that starts has libc's two more */
        added += !was;
    }
    return added;
}

static void handle(int signo)
{
    (void)signo;
}

static void *do_nothing(void *arg)
{
    return arg;
}

/* Some handlers and a mask, and what a sanitizer starts beside the first thread. */
static struct process begin(void)
{
    const struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigset_t some;
    pthread_t thread;
    sigemptyset(&some);
    sigaddset(&some, SIGUSR2);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &some, NULL), 0);
    assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
    assert_int_equal(sigaction(SIGCHLD, &action, NULL), 0);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_DFL);
    assert_int_equal(pthread_create(&thread, NULL, do_nothing, NULL), 0);
    pthread_join(thread, NULL);
    const struct process one = {.count = 1};
    return look_without_the_dead(&one);
}

static void test_signals_are_left_alone_by_the_thread_that_joins(void **state)
{
    const char *const settings[] = {"JOB_KEY=a key for this test alone", NULL};
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *ctx = NULL;
    char why[HORON_ERROR_TEXT_BYTES] = "";
    float data = 1;
    const struct process before = begin();
    (void)state;
    options.rank = 0;
    options.size = 1;
    options.settings = settings;
    const horon_status_t status = horon_context_create(&options, &ctx, why, sizeof why);
    assert_string_equal(why, "");
    assert_int_equal(status, HORON_OK);
    horon_descriptor_t desc = duo_sum("x", &data);
    assert_int_equal(horon_run(ctx, &desc, -1, why, sizeof why), HORON_OK);
    const struct process meanwhile = look();
    assert_true(expect_unchanged(&before, &meanwhile) > 0);
    horon_context_destroy(ctx);
    const struct process after = look_without_the_dead(&before);
    assert_int_equal(expect_unchanged(&before, &after), 0);
}

static void leave_alone(const char *shared)
{
    const char *const settings[] = {shared, NULL};
    static float data[2][1];
    struct duo duo;
    const struct process before = begin();
    duo_make(&duo, settings);
    for (int round = 0; round < 3; round++) {
        horon_request_t *first = duo_submit(duo.ctx[0], "x", data[0]);
        duo_expect_end(duo_submit(duo.ctx[1], "x", data[1]), HORON_OK);
        duo_expect_end(first, HORON_OK);
    }
    const struct process meanwhile = look();
    assert_true(expect_unchanged(&before, &meanwhile) >= 2); /* one of each context */
    duo_end(&duo);
    const struct process after = look_without_the_dead(&before);
    assert_int_equal(expect_unchanged(&before, &after), 0);
}

static void test_signals_are_left_alone_by_ranks_that_share_memory(void **state)
{
    (void)state;
    leave_alone("SHM=1");
}

static void test_signals_are_left_alone_by_ranks_that_use_tcp(void **state)
{
    (void)state;
    leave_alone("SHM=0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signals_are_left_alone_by_the_thread_that_joins),
        cmocka_unit_test(test_signals_are_left_alone_by_ranks_that_share_memory),
        cmocka_unit_test(test_signals_are_left_alone_by_ranks_that_use_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
