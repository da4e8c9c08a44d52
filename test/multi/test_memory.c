/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that cannot be had, in real processes: the machine has too little, the control group
 * allows too little, the kernel refuses one rank a mapping. Every rank gets an error that names
 * rank and host, what was asked for and what there is, and what to do; nobody is killed. What the
 * machine and the group say comes from files of our own, mounted over theirs for this process
 * alone.
 */
#undef NDEBUG
#include <horon/horon.h>

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3, NOBODY = -1 };

struct report {
    int32_t status;
    char text[HORON_ERROR_TEXT_BYTES];
};

static char folder[64], host[64];

static void command(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void command(const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    assert_int_equal(system(line), 0);
}

static uint64_t mapped_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    int got = file ? fscanf(file, "%lu", &pages) : 0;
    if (file)
        fclose(file);
    return got == 1 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) : UINT64_MAX;
}

static void be_rank(int rank, int limited, int pipe_end)
{
    char store[96];
    struct report report = {0};
    const char *settings[] = {store, "JOB_KEY=a key for this test alone", "LOG_LEVEL=error", NULL};
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *ctx = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(store, sizeof store, "STORE=file:%s/store", folder);
    options.rank = rank;
    options.size = RANKS;
    options.settings = settings;
    if (rank == limited) {
        struct rlimit limit = {.rlim_max = RLIM_INFINITY};
        limit.rlim_cur = mapped_bytes() + ((rlim_t)2 << 20);
        if (setrlimit(RLIMIT_AS, &limit) != 0)
            _exit(3);
    }
    report.status = horon_context_create(&options, &ctx, report.text, sizeof report.text);
    if (write(pipe_end, &report, sizeof report) != (ssize_t)sizeof report)
        _exit(2);
    horon_context_destroy(ctx);
    _exit(0);
}

/* Starts the ranks. @param limited  the rank whose mappings are limited; NOBODY: none */
static void run_ranks(int limited, struct report reports[RANKS])
{
    pid_t pids[RANKS];
    int pipes[RANKS][2], status;
    command("rm -rf %s/store; mkdir %s/store", folder, folder);
    fflush(NULL);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(pipe(pipes[rank]), 0);
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0)
            be_rank(rank, limited, pipes[rank][1]);
        close(pipes[rank][1]);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        ssize_t got = read(pipes[rank][0], &reports[rank], sizeof reports[rank]);
        close(pipes[rank][0]);
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        if (!WIFEXITED(status))
            fail_msg("rank %d ended by signal %d", rank, WTERMSIG(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        assert_int_equal(got, sizeof reports[rank]);
    }
}

/* @param named  the rank that the text must name; NOBODY: any */
static void expect_refused(const struct report reports[RANKS], int named, const char *allowed)
{
    char name[96];
    for (int rank = 0; rank < RANKS; rank++) {
        const char *text = reports[rank].text;
        snprintf(name, sizeof name, named == NOBODY ? "rank " : "rank %d", named);
        bool well = reports[rank].status == HORON_ERR_MEMORY && strstr(text, name) &&
                    strstr(text, host) && strstr(text, "bytes of shared memory") &&
                    strstr(text, allowed) && strstr(text, "SHM_CHUNK_BYTES");
        print_message("rank %d: status %d: %s\n", rank, reports[rank].status, text);
        assert_true(well);
    }
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/horon-test-XXXXXX");
    gethostname(host, sizeof host - 1);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    command("rm -rf %s", folder);
    return 0;
}

/* Mounts of this process are its own from now on. */
static void need_own_mounts(void)
{
    if (unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
        return;
    print_message("SKIP: no mounts of our own (%s); needs root\n", strerror(errno));
    skip();
}

static void test_memory_machine_has_too_little_is_told_by_all(void **state)
{
    struct report reports[RANKS];
    (void)state;
    need_own_mounts();
    command("echo 'MemAvailable:   5120 kB' > %s/meminfo; mount --bind %s/meminfo /proc/meminfo",
            folder, folder);
    run_ranks(NOBODY, reports);
    command("umount /proc/meminfo");
    expect_refused(reports, NOBODY, "the machine has 5242880");
    run_ranks(NOBODY, reports); /* and with memory it goes well */
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(reports[rank].status, HORON_OK);
}

/* Both versions of control groups, as this process has them. */
static void limit_own_group(const char *limit, const char *used)
{
    char line[512];
    FILE *file = fopen("/proc/self/cgroup", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? controllers + 1 : NULL;
        group = group ? strchr(group, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        if (strcmp(controllers, ":memory") == 0)
            command("mkdir -p /sys/fs/cgroup/memory%s; cd /sys/fs/cgroup/memory%s; echo %s > "
                    "memory.limit_in_bytes; echo %s > memory.usage_in_bytes",
                    group, group, limit, used);
        if (strcmp(controllers, ":") == 0)
            command("mkdir -p /sys/fs/cgroup%s; cd /sys/fs/cgroup%s; echo %s > memory.max; echo "
                    "%s > memory.current",
                    group, group, limit, used);
    }
    fclose(file);
}

static void test_memory_group_allows_too_little_is_told_by_all(void **state)
{
    struct report reports[RANKS];
    (void)state;
    need_own_mounts();
    command("mount -t tmpfs none /sys/fs/cgroup");
    limit_own_group("104857600", "102760448"); /* 2 MiB are left */
    run_ranks(NOBODY, reports);
    command("umount /sys/fs/cgroup");
    expect_refused(reports, NOBODY, "2097152");
}

static void test_memory_one_rank_cannot_map_is_named_by_all(void **state)
{
    struct report reports[RANKS];
    (void)state;
    if (mapped_bytes() > (uint64_t)1 << 40) {
        print_message("SKIP: a sanitizer maps terabytes, and cannot be limited\n");
        skip();
    }
    for (int limited = 0; limited < RANKS; limited++) {
        run_ranks(limited, reports);
        expect_refused(reports, limited, "cannot be mapped");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_memory_machine_has_too_little_is_told_by_all,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_memory_group_allows_too_little_is_told_by_all,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_memory_one_rank_cannot_map_is_named_by_all,
                                        make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
