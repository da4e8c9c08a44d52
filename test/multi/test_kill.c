/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks die at any moment, of whatever: every other rank's pending operation fails within a second,
 * with a text that names the dead rank and its host; nothing of the job stays behind.
 */
#undef NDEBUG
#include "multi/job.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define ROUNDS 100
#define ROUNDS_FULL 1000
/* What horon promises. */
#define FAIL_MS 1000
/* Of a core file the same is promised, but with a look each 0.7 s a busy machine has little left of
 * it: the time is told, and this is what tells looks that come by chance from those in time. */
#define CORE_FAIL_MS (10 * FAIL_MS)
/* START_TIMEOUT of rounds whose kill may come before all have joined: nobody hears of a rank that
 * died before it reached the store, so nothing but the limit ends joining then; and the last round
 * of joining has two seconds more, for a rank that found a reason just before the limit. */
#define JOIN_MS 1000
#define LAST_ROUND_MS 2000

/* A sanitizer makes everything slower: its build says by how much. */
static int64_t patience_ms(int64_t ms)
{
    const char *times = getenv("HORON_TEST_PATIENCE");
    return times ? ms * atoi(times) : ms;
}

/* Works until something fails: blocking, named, fused, small and large ones, a broadcast, a gather.
 */
static void work_for_ever(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { SMALL = 3, LARGE = 300000, TENSORS = 20 };
    static float data[LARGE], many[TENSORS][1000];
    horon_request_t *requests[TENSORS];
    char name[32];
    (void)arg;
    for (;;) {
        horon_descriptor_t desc = job_sum(NULL, data, SMALL, HORON_IN_ORDER);
        report->status = horon_run(ctx, &desc, -1, report->text, sizeof report->text);
        desc = job_sum("large", data, LARGE, 0);
        if (report->status == HORON_OK)
            report->status = horon_run(ctx, &desc, -1, report->text, sizeof report->text);
        for (int i = 0; i < TENSORS && report->status == HORON_OK; i++) {
            snprintf(name, sizeof name, "tensor %d", i);
            desc = job_sum(name, many[i], 1000, 0);
            report->status = horon_submit(ctx, &desc, &requests[i]);
            if (report->status != HORON_OK) {
                snprintf(report->text, sizeof report->text, "%s", horon_last_error(ctx));
                return;
            }
        }
        if (report->status == HORON_OK)
            report->status = horon_wait_all(requests, TENSORS, HORON_HOST_DONE, -1);
        if (report->status != HORON_OK) {
            if (!report->text[0])
                snprintf(report->text, sizeof report->text, "%s",
                         horon_request_error(requests[TENSORS - 1]));
            return;
        }
        for (int i = 0; i < TENSORS; i++)
            horon_release(requests[i]);
    }
}

static void wait_ns(long ns)
{
    struct timespec pause = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    nanosleep(&pause, NULL);
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* @return how long the last of the others took to say so */
static int64_t kill_one(int size, int victim, bool joined, long after_ns,
                        const char *const *settings)
{
    struct job job;
    char named[96];
    int64_t left_ms = patience_ms(joined ? FAIL_MS : JOIN_MS + LAST_ROUND_MS + FAIL_MS);
    job_start(&job, size, settings, work_for_ever, NULL);
    if (joined)
        job_wait_joined(&job);
    wait_ns(after_ns); /* the random moment itself, not a synchronisation */
    kill(job.pids[victim], SIGKILL);
    int64_t killed = now_ms();
    snprintf(named, sizeof named, "rank %d", victim);
    for (int rank = 0; rank < size; rank++) {
        struct job_report report = {0};
        if (rank == victim)
            continue;
        int got = job_report_within(&job, rank, &left_ms, &report);
        if (got != 0 || !strstr(report.text, named))
            fprintf(stderr, "victim %d after %ld ns, rank %d says: got %d status %d '%s'\n", victim,
                    after_ns, rank, got, report.status, report.text);
        assert_int_equal(got, 0);
        assert_true(report.status < 0);
        assert_non_null(strstr(report.text, named));
        if (report.status == HORON_ERR_PEER_LOST)
            assert_non_null(strstr(report.text, job.host));
    }
    int64_t took = now_ms() - killed;
    assert_int_equal(job_end(&job, 5000), 0);
    return took;
}

static void test_kill_at_random_moment_is_named_by_all(void **state)
{
    (void)state;
    int rounds = getenv("HORON_TEST_FULL") ? ROUNDS_FULL : ROUNDS;
    const char *given = getenv("HORON_TEST_SEED");
    unsigned seed = given ? (unsigned)atoi(given) : 1;
    /* joining may be cut short too: then its deadline, which names the missing rank, ends it */
    char limit[32];
    snprintf(limit, sizeof limit, "START_TIMEOUT=%dms", JOIN_MS);
    const char *const settings[] = {limit, NULL};
    int64_t worst = 0;
    for (int round = 0; round < rounds; round++) {
        int size = 2 + (int)((unsigned)rand_r(&seed) % 3);
        int victim = (int)((unsigned)rand_r(&seed) % (unsigned)size);
        bool joined = round % 4 != 0;
        int64_t took =
            kill_one(size, victim, joined, rand_r(&seed) % 30000000, joined ? NULL : settings);
        if (joined && took > worst)
            worst = took;
    }
    print_message("worst of %d kills: %lld ms until all others knew\n", rounds, (long long)worst);
}

static void test_kill_between_hosts_is_named_by_all(void **state)
{
    (void)state;
    unsigned seed = 7;
    static const char *const settings[] = {"SHM=0", NULL};
    int64_t worst = 0;
    for (int round = 0; round < 20; round++) {
        int size = 2 + (int)((unsigned)rand_r(&seed) % 3);
        int victim = (int)((unsigned)rand_r(&seed) % (unsigned)size);
        int64_t took = kill_one(size, victim, true, rand_r(&seed) % 30000000, settings);
        worst = took > worst ? took : worst;
    }
    print_message("worst between hosts: %lld ms until all others knew\n", (long long)worst);
}

/* A forked child of the victim holds copies of all its descriptors and lives on. */
static void fork_and_work(horon_context_t *ctx, void *arg, struct job_report *report)
{
    if (horon_rank(ctx) == *(int *)arg && fork() == 0) {
        struct job_report unused;
        alarm(10); /* outlives the victim and the test, but not for long */
        horon_descriptor_t desc = job_sum("child", (float[1]){0}, 1, 0);
        if (horon_run(ctx, &desc, -1, unused.text, sizeof unused.text) != HORON_ERR_FORKED)
            abort();
        for (;;)
            pause();
    }
    work_for_ever(ctx, arg, report);
}

static void test_kill_with_living_child_is_named_by_all(void **state)
{
    (void)state;
    for (int shm = 0; shm < 2; shm++) {
        const char *const settings[] = {shm ? "SHM=1" : "SHM=0", NULL};
        int victim = 1;
        struct job job;
        job_start(&job, 3, settings, fork_and_work, &victim);
        job_wait_joined(&job);
        wait_ns(20000000);
        kill(job.pids[victim], SIGKILL);
        for (int rank = 0; rank < 3; rank += 2) {
            struct job_report report = {0};
            assert_int_equal(job_report_of(&job, rank, (int)patience_ms(FAIL_MS), &report), 0);
            assert_int_equal(report.status, HORON_ERR_PEER_LOST);
            assert_non_null(strstr(report.text, "rank 1"));
        }
        assert_int_equal(job_end(&job, 5000), 0);
    }
}

/* ---- ends that are none for a pidfd, or late ------------------------------------------------ */

/* What those that survive do. */
enum others { WORK, EXCHANGE, CALL_BACK };

struct ending {
    int victim;
    size_t core_bytes; /* 0: exec() */
    const char *folder;
    enum others others;
    int64_t *aborted_ms; /* shared: when the core file is begun */
};

/* One operation waits for the victim while others end all the time. */
static void exchange_for_ever(horon_context_t *ctx, struct job_report *report)
{
    static float data;
    horon_request_t *request;
    const horon_descriptor_t desc = job_sum("all", &data, 1, 0);
    const int peer = 2 - horon_rank(ctx);
    const bool first = peer == 2;
    report->status = horon_submit(ctx, &desc, &request);
    if (report->status != HORON_OK)
        return;
    while (horon_test(request, HORON_HOST_DONE) == HORON_IN_PROGRESS) {
        int32_t value = 0;
        horon_descriptor_t one = job_message(first ? HORON_SEND : HORON_RECV, peer, 0, &value, 1);
        if (horon_run(ctx, &one, -1, NULL, 0) != HORON_OK)
            break;
        one = job_message(first ? HORON_RECV : HORON_SEND, peer, 1, &value, 1);
        if (horon_run(ctx, &one, -1, NULL, 0) != HORON_OK)
            break;
    }
    report->status = horon_wait(request, HORON_HOST_DONE, -1);
    snprintf(report->text, sizeof report->text, "%s", horon_request_error(request));
    horon_release(request);
}

static void start_again(void *arg, horon_request_t *request, horon_status_t status)
{
    (void)arg;
    if (status == HORON_OK)
        horon_start(request);
}

/* One operation waits for the victim while the progress thread has a callback to call each time
 * that it looks up.
 * @param set  of this rank alone */
static void call_back_for_ever(horon_context_t *ctx, int32_t set, struct job_report *report)
{
    static float data, own;
    horon_request_t *request, *chain;
    horon_descriptor_t desc = job_sum(NULL, &own, 1, HORON_IN_ORDER);
    desc.process_set = set;
    desc.callback = start_again;
    RANK_MUST(horon_prepare(ctx, &desc, &chain) == HORON_OK);
    RANK_MUST(horon_start(chain) == HORON_OK);
    desc = job_sum("all", &data, 1, 0);
    RANK_MUST(horon_submit(ctx, &desc, &request) == HORON_OK);
    report->status = horon_wait(request, HORON_HOST_DONE, -1);
    snprintf(report->text, sizeof report->text, "%s", horon_request_error(request));
    horon_release(request);
}

static void end_otherwise(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const struct ending *ending = arg;
    const struct rlimit any = {RLIM_INFINITY, RLIM_INFINITY};
    int32_t sets[3] = {0};
    for (int32_t i = 0; i < 3 && ending->others == CALL_BACK; i++)
        RANK_MUST(horon_process_set_add(ctx, &i, 1, -1, &sets[i]) == HORON_OK);
    if (horon_rank(ctx) != ending->victim && ending->others == CALL_BACK) {
        call_back_for_ever(ctx, sets[horon_rank(ctx)], report);
        return;
    }
    if (horon_rank(ctx) != ending->victim && ending->others == EXCHANGE) {
        exchange_for_ever(ctx, report);
        return;
    }
    if (horon_rank(ctx) != ending->victim) {
        work_for_ever(ctx, NULL, report);
        return;
    }
    if (ending->core_bytes == 0) {
        execlp("sleep", "sleep", "600", (char *)NULL);
        abort();
    }
    char *memory = malloc(ending->core_bytes);
    if (memory && chdir(ending->folder) == 0 && setrlimit(RLIMIT_CORE, &any) == 0) {
        memset(memory, 1, ending->core_bytes);
        *ending->aborted_ms = now_ms();
        abort();
    }
    _exit(1);
}

/* Expects the others to name the victim. @return how many of them say @p word */
static int expect_named(struct job *job, int victim, const char *word)
{
    char named[96];
    int say_it = 0;
    snprintf(named, sizeof named, "rank %d (%s)", victim, job->host);
    for (int rank = 0; rank < job->size; rank++) {
        struct job_report report = {0};
        if (rank == victim)
            continue;
        assert_int_equal(job_report_of(job, rank, 60000, &report), 0);
        assert_int_equal(report.status, HORON_ERR_PEER_LOST);
        if (!strstr(report.text, named))
            fail_msg("rank %d says '%s'", rank, report.text);
        say_it += strstr(report.text, word) != NULL;
    }
    return say_it;
}

/* The process goes on, as another program: only its sockets tell. */
static void test_kill_by_exec_is_named_by_all(void **state)
{
    (void)state;
    for (int shm = 0; shm < 2; shm++) {
        const char *const settings[] = {shm ? "SHM=1" : "SHM=0", NULL};
        for (int victim = 0; victim < 2; victim++) { /* one leads its host, the other does not */
            struct ending ending = {.victim = victim};
            struct job job;
            job_start(&job, 3, settings, end_otherwise, &ending);
            job_wait_joined(&job);
            (void)expect_named(&job, victim, "");
            kill(job.pids[victim], SIGKILL);
            assert_int_equal(job_end(&job, 5000), 0);
        }
    }
}

/* @return have the others seen the core file being written? A process whose core file is written
 * has closed its sockets before it can be waited for, so that it is named in any case. */
static bool is_named_while_it_dumps(size_t core_bytes, const char *folder, enum others others,
                                    int64_t *aborted_ms, int *status_out)
{
    struct ending ending = {1, core_bytes, folder, others, aborted_ms};
    struct job job;
    job_start(&job, 3, NULL, end_otherwise, &ending);
    job_wait_joined(&job);
    const bool seen = expect_named(&job, 1, "the system writes a core file of it") > 0;
    if (seen) {
        const int64_t took_ms = now_ms() - *aborted_ms;
        print_message("named %lld ms after its core file was begun\n", (long long)took_ms);
        assert_true(took_ms < patience_ms(CORE_FAIL_MS));
        kill(job.pids[1], SIGKILL); /* which ends the dump */
    }
    assert_int_equal(waitpid(job.pids[1], status_out, 0), job.pids[1]);
    job.pids[1] = 0;
    assert_int_equal(job_end(&job, 30000), 0);
    return seen;
}

/* Each page of a file in it is on the disk before the next one is written, where the file system
 * knows that: a core file takes minutes then. */
static void make_slow(const char *folder)
{
    int flags = 0, fd = open(folder, O_RDONLY | O_DIRECTORY);
    assert_true(fd >= 0);
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0) {
        flags |= FS_SYNC_FL;
        (void)ioctl(fd, FS_IOC_SETFLAGS, &flags);
    }
    close(fd);
}

/* Elsewhere the larger the process, the longer it takes: one that outlasts the look is enough. */
static void expect_named_before_it_is_written(enum others others)
{
    int64_t *aborted_ms =
        mmap(NULL, sizeof *aborted_ms, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char folder[] = "/tmp/horon-test-XXXXXX", command[64];
    int status = 0;
    bool named = false;
    assert_true(aborted_ms != MAP_FAILED);
    assert_non_null(mkdtemp(folder));
    make_slow(folder);
    for (size_t mib = 256; mib <= 2048 && !named; mib *= 2)
        named = is_named_while_it_dumps(mib << 20, folder, others, aborted_ms, &status);
    munmap(aborted_ms, sizeof *aborted_ms);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
    if (named)
        return;
    if (WIFSIGNALED(status) && WCOREDUMP(status))
        fail_msg("2 GiB of core file were written before anybody named the rank");
    print_message("skip: this system writes no core files here\n");
    skip();
}

static void test_kill_with_core_file_is_named_before_it_is_written(void **state)
{
    (void)state;
    expect_named_before_it_is_written(WORK);
}

static void test_kill_with_core_file_is_named_though_others_exchange(void **state)
{
    (void)state;
    expect_named_before_it_is_written(EXCHANGE);
}

static void test_kill_with_core_file_is_named_though_callbacks_keep_coming(void **state)
{
    (void)state;
    expect_named_before_it_is_written(CALL_BACK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_at_random_moment_is_named_by_all),
        cmocka_unit_test(test_kill_between_hosts_is_named_by_all),
        cmocka_unit_test(test_kill_with_living_child_is_named_by_all),
        cmocka_unit_test(test_kill_by_exec_is_named_by_all),
        cmocka_unit_test(test_kill_with_core_file_is_named_before_it_is_written),
        cmocka_unit_test(test_kill_with_core_file_is_named_though_others_exchange),
        cmocka_unit_test(test_kill_with_core_file_is_named_though_callbacks_keep_coming),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
