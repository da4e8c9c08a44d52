/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is killed, aborts, or just exits: all others get a text with its rank and host, and when
 * they have left, nothing is there any more: no mapping or descriptor in them, no abstract socket,
 * no file, no process. Sockets and files are looked at in namespaces of our own, where nobody
 * else's can be.
 */
#undef NDEBUG
#include "multi/job.h"

#include <dirent.h>
#include <errno.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4, VICTIM = 2 };

/* What a survivor tells: how its work ended, and what it still had when it had left. */
struct last_words {
    struct job_report report;
    int mappings, descriptors, threads;
};

static int entries_of(const char *path)
{
    int count = 0;
    DIR *directory = opendir(path);
    while (directory && readdir(directory))
        count++;
    if (directory)
        closedir(directory);
    return count;
}

static int lines_with(const char *path, const char *part)
{
    char line[512];
    int count = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        count += strstr(line, part) != NULL;
    if (file)
        fclose(file);
    return count;
}

/* Until something fails, which is soon. */
static void work_until_failure(horon_context_t *ctx, struct job_report *report)
{
    static float data[50000];
    for (int round = 0; report->status == HORON_OK; round++) {
        horon_descriptor_t desc = job_sum("x", data, round % 2 ? 50000 : 3, 0);
        report->status = horon_run(ctx, &desc, -1, report->text, sizeof report->text);
    }
}

/* The others are in the middle of an operation that needs it, or soon will be. */
static void be_victim(int how, int joined)
{
    char byte = 0;
    if (write(joined, &byte, 1) != 1)
        _exit(2);
    if (how == SIGABRT) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL);
        abort();
    }
    if (how == 0)
        _exit(0); /* without leaving */
    for (;;)
        pause(); /* to be killed */
}

static void *do_nothing(void *arg)
{
    return arg;
}

/* Threads of this process. One that was joined may be listed for a moment: then the least counts.
 */
static int count_threads(void)
{
    int least = entries_of("/proc/self/task");
    for (int i = 0; i < 2000; i++) {
        sched_yield();
        int now = entries_of("/proc/self/task");
        least = now < least ? now : least;
    }
    return least;
}

/* Before anything of ours, but with what a sanitizer starts beside the first thread. */
static int threads_at_rest(void)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, do_nothing, NULL), 0);
    pthread_join(thread, NULL);
    return count_threads();
}

static void be_rank(int rank, const char *folder, const char *shared, int how, int joined, int told)
{
    char store[96];
    struct last_words words = {0};
    const char *settings[] = {store, shared, "JOB_KEY=a key for this test alone", "LOG_LEVEL=error",
                              NULL};
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *ctx = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(store, sizeof store, "STORE=file:%s", folder);
    options.rank = rank;
    options.size = RANKS;
    options.settings = settings;
    const int descriptors = entries_of("/proc/self/fd"), threads = threads_at_rest();
    words.report.status =
        horon_context_create(&options, &ctx, words.report.text, sizeof words.report.text);
    if (words.report.status == HORON_OK && rank == VICTIM)
        be_victim(how, joined);
    if (words.report.status == HORON_OK)
        work_until_failure(ctx, &words.report);
    horon_context_destroy(ctx);
    words.mappings = lines_with("/proc/self/maps", "memfd:");
    words.descriptors = entries_of("/proc/self/fd") - descriptors;
    words.threads = count_threads() - threads;
    _exit(write(told, &words, sizeof words) != (ssize_t)sizeof words);
}

static void reap(const pid_t pids[RANKS])
{
    for (int rank = 0; rank < RANKS; rank++) {
        int status;
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        if (rank != VICTIM)
            assert_int_equal(status, 0);
    }
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void expect_named(const struct last_words *words, int rank, const char *host)
{
    char name[160];
    snprintf(name, sizeof name, "rank %d (%s)", VICTIM, host);
    if (!strstr(words->report.text, name))
        print_error("rank %d says: status %d: %s\n", rank, words->report.status,
                    words->report.text);
    assert_int_equal(words->report.status, HORON_ERR_PEER_LOST);
    assert_non_null(strstr(words->report.text, name));
    assert_int_equal(words->mappings, 0);
    assert_int_equal(words->descriptors, 0);
    assert_int_equal(words->threads, 0);
}

static void lose_one(const char *shared, int how)
{
    char folder[] = "/tmp/horon-test-XXXXXX", host[64] = "", byte;
    int joined[2], told[RANKS][2];
    pid_t pids[RANKS];
    gethostname(host, sizeof host - 1);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(pipe(joined), 0);
    fflush(NULL);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(pipe(told[rank]), 0);
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0)
            be_rank(rank, folder, shared, how, joined[1], told[rank][1]);
        close(told[rank][1]);
    }
    assert_int_equal(read(joined[0], &byte, 1), 1);
    if (how == SIGKILL)
        kill(pids[VICTIM], SIGKILL);
    for (int rank = 0; rank < RANKS; rank++) {
        struct last_words words = {0};
        ssize_t got = read(told[rank][0], &words, sizeof words);
        close(told[rank][0]);
        assert_int_equal(got, rank == VICTIM ? 0 : (ssize_t)sizeof words);
        if (rank != VICTIM)
            expect_named(&words, rank, host);
    }
    reap(pids);
    close(joined[0]);
    close(joined[1]);
    assert_int_equal(lines_with("/proc/net/unix", "horon"), 0);
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(entries_of("/tmp"), 2); /* folders of our own, empty again */
    assert_int_equal(entries_of("/dev/shm"), 2);
}

/* Networks and files of our own; loopback is up. */
static void need_namespaces(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    if (unshare(CLONE_NEWNS | CLONE_NEWNET) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", "/tmp", "tmpfs", 0, NULL) != 0 ||
        mount("none", "/dev/shm", "tmpfs", 0, NULL) != 0) {
        print_message("SKIP: no namespaces of our own (%s); needs root\n", strerror(errno));
        skip();
    }
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd);
}

static void test_remains_of_a_lost_rank_are_none(void **state)
{
    static const int how[] = {SIGKILL, SIGABRT, 0};
    (void)state;
    need_namespaces();
    for (size_t i = 0; i < sizeof how / sizeof how[0]; i++) {
        lose_one("SHM=1", how[i]);
        lose_one("SHM=0", how[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remains_of_a_lost_rank_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
