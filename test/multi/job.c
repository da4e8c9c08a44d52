/* SPDX-License-Identifier: Apache-2.0 */
/* See job.h. A rank is a fork of the test, so that its work is a function of the test. */
#undef NDEBUG
#include "multi/job.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void send_report(int pipe, const struct job_report *report)
{
    /* smaller than PIPE_BUF: written whole */
    ssize_t written = write(pipe, report, sizeof *report);
    (void)written; /* the test may be gone */
}

static void run_rank(struct job *job, int rank, int pipe, const char *const *settings,
                     job_work_fn_t work, void *arg)
{
    const char *all[16] = {0};
    char store[96];
    int count = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(store, sizeof store, "STORE=file:%s", job->store);
    all[count++] = store;
    all[count++] = "JOB_KEY=a key for this test alone";
    for (; settings && *settings && count < 15; settings++)
        all[count++] = *settings;
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = rank;
    options.size = job->size;
    options.settings = all;
    horon_context_t *ctx = NULL;
    struct job_report report = {0};
    report.status = horon_context_create(&options, &ctx, report.text, sizeof report.text);
    if (report.status == HORON_OK) {
        struct job_report joined = {.status = HORON_IN_PROGRESS};
        send_report(pipe, &joined);
        work(ctx, arg, &report);
    }
    send_report(pipe, &report);
    horon_context_destroy(ctx);
    _exit(0);
}

void job_start(struct job *job, int size, const char *const *settings, job_work_fn_t work,
               void *arg)
{
    memset(job, 0, sizeof *job);
    job->size = size;
    snprintf(job->store, sizeof job->store, "/tmp/horon-test-XXXXXX");
    char *made = mkdtemp(job->store);
    assert(made);
    gethostname(job->host, sizeof job->host - 1);
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        int ends[2];
        int failed = pipe2(ends, O_CLOEXEC);
        assert(!failed);
        job->pids[rank] = fork();
        assert(job->pids[rank] >= 0);
        if (job->pids[rank] == 0) {
            close(ends[0]);
            run_rank(job, rank, ends[1], settings, work, arg);
        }
        close(ends[1]);
        job->pipes[rank] = ends[0];
    }
}

/* Time is looked at so often, and counts as so much at most: more has passed only where this
 * process stood still, and mostly the others with it, as the host of a virtual machine may have it.
 */
#define LOOK_MS 20
#define LOOK_MS_MAX 100

/* @param left_ms what is left of the limit; the time that was waited is taken from it */
static int next_report(struct job *job, int rank, int64_t *left_ms, struct job_report *report)
{
    struct pollfd ready = {.fd = job->pipes[rank], .events = POLLIN};
    int found;
    do {
        const int64_t begun = now_ms(), look = *left_ms < LOOK_MS ? *left_ms : LOOK_MS;
        found = poll(&ready, 1, look > 0 ? (int)look : 0);
        const int64_t passed = now_ms() - begun;
        *left_ms -= passed < LOOK_MS_MAX ? passed : LOOK_MS_MAX;
    } while ((found < 0 && errno == EINTR) || (found == 0 && *left_ms > 0));
    if (found <= 0)
        return -1;
    return read(job->pipes[rank], report, sizeof *report) == sizeof *report ? 0 : -1;
}

static void explain_silence(const struct job *job, int rank, int64_t waited_ms)
{
    siginfo_t end = {0};
    const char *how = "is process";
    if (waitid(P_PID, (id_t)job->pids[rank], &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid)
        how = end.si_code == CLD_EXITED ? "has exited with" : "was ended by signal";
    fprintf(stderr, "rank %d gave no report in %lld ms: it %s %d\n", rank, (long long)waited_ms,
            how, end.si_pid ? end.si_status : job->pids[rank]);
}

int job_report_within(struct job *job, int rank, int64_t *left_ms, struct job_report *report)
{
    const int64_t begun = now_ms();
    do {
        if (next_report(job, rank, left_ms, report) != 0) {
            explain_silence(job, rank, now_ms() - begun);
            return -1;
        }
    } while (report->status == HORON_IN_PROGRESS);
    return 0;
}

int job_report_of(struct job *job, int rank, int timeout_ms, struct job_report *report)
{
    int64_t left_ms = timeout_ms;
    return job_report_within(job, rank, &left_ms, report);
}

void job_wait_joined(struct job *job)
{
    struct job_report report;
    for (int rank = 0; rank < job->size; rank++) {
        int64_t left_ms = 60000;
        int got = next_report(job, rank, &left_ms, &report);
        if (got == 0 && report.status != HORON_IN_PROGRESS)
            fprintf(stderr, "rank %d did not join: %s\n", rank, report.text);
        assert(got == 0);
        assert(report.status == HORON_IN_PROGRESS);
    }
}

static void reap(struct job *job, int rank, int timeout_ms, int *killed)
{
    int pidfd = (int)syscall(SYS_pidfd_open, job->pids[rank], 0);
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    if (pidfd >= 0 && poll(&ended, 1, timeout_ms > 0 ? timeout_ms : 0) == 0) {
        kill(job->pids[rank], SIGKILL);
        (*killed)++;
    }
    if (pidfd >= 0)
        close(pidfd);
    waitpid(job->pids[rank], &job->exit_status[rank], 0);
    if (WIFSIGNALED(job->exit_status[rank]) && WTERMSIG(job->exit_status[rank]) != SIGKILL)
        fprintf(stderr, "rank %d ended by signal %d\n", rank, WTERMSIG(job->exit_status[rank]));
    job->pids[rank] = 0;
}

static void remove_store(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir && (entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(path);
}

int job_end(struct job *job, int timeout_ms)
{
    int killed = 0;
    int64_t deadline = now_ms() + timeout_ms;
    for (int rank = 0; rank < job->size; rank++) {
        if (job->pids[rank])
            reap(job, rank, (int)(deadline - now_ms()), &killed);
        close(job->pipes[rank]);
    }
    remove_store(job->store);
    return killed;
}

void job_say(const horon_failure_t *failure, struct job_report *report)
{
    report->status = failure->status;
    snprintf(report->text, sizeof report->text, "%s; rank %d on '%s', other rank %d, name '%s'",
             horon_cause_text((horon_cause_t)failure->cause), failure->rank, failure->host,
             failure->other_rank, failure->name);
}

horon_descriptor_t job_sum(const char *name, float *data, uint64_t count, uint32_t flags)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.name = name;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.flags = flags;
    desc.count = count;
    desc.src = desc.dst = data;
    return desc;
}

horon_descriptor_t job_message(horon_verb_t verb, int peer, uint64_t tag, int32_t *data,
                               uint64_t count)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.dtype = HORON_INT32;
    desc.root = peer;
    desc.tag = tag;
    desc.src = desc.dst = data;
    desc.count = count;
    return desc;
}

void job_run(int size, const char *const *settings, job_work_fn_t work, void *arg)
{
    struct job job;
    int failed = 0;
    job_start(&job, size, settings, work, arg);
    for (int rank = size - 1; rank >= 0; rank--) { /* all, for one's words explain another's */
        struct job_report report = {0};
        int got = job_report_of(&job, rank, 60000, &report);
        if (got == 0 && report.status == HORON_OK)
            continue;
        failed++;
        fprintf(stderr, "rank %d: %s, status %d: %s\n", rank, got == 0 ? "reports" : "is silent",
                report.status, report.text);
    }
    assert_int_equal(failed, 0);
    assert_int_equal(job_end(&job, 10000), 0);
    for (int rank = 0; rank < size; rank++) /* it may have failed as its context was destroyed */
        assert_int_equal(job.exit_status[rank], 0);
}
