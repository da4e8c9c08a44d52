/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining and leaving 200 times, in three processes and as three contexts of one process: what a
 * process has (descriptors, threads, mappings, memory, children) does not grow, and neither does
 * what a round does, in counts of reads, writes and page faults. Times are printed only.
 */
#undef NDEBUG
#include "multi/job.h"

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* The first rounds fill pools and the allocator's arenas; a window is what is compared. */
enum { ROUNDS = 200, WARM = 30, WINDOW = 40, RANKS = 3 };

/* What a process has; all of it counts, none of it is a time. */
struct holdings {
    long fds, threads, maps, resident_kib;
};

static long entries_of(const char *path)
{
    long count = 0;
    DIR *directory = opendir(path);
    while (directory && readdir(directory))
        count++;
    if (directory)
        closedir(directory);
    return count;
}

static long lines_of(const char *path)
{
    long count = 0;
    FILE *file = fopen(path, "r");
    for (int c; file && (c = fgetc(file)) != EOF;)
        count += c == '\n';
    if (file)
        fclose(file);
    return count;
}

/* The number behind @p key in a file of lines "key number". */
static long number_in(const char *path, const char *key)
{
    char line[256];
    long value = -1;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            value = strtol(line + strlen(key), NULL, 10);
    if (file)
        fclose(file);
    return value;
}

static struct holdings look(void)
{
    return (struct holdings){.fds = entries_of("/proc/self/fd"),
                             .threads = entries_of("/proc/self/task"),
                             .maps = lines_of("/proc/self/maps"),
                             .resident_kib = number_in("/proc/self/status", "VmRSS:")};
}

/* What the process has done so far. */
struct work {
    long faults, calls, cpu_us;
};

static struct work done_so_far(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (struct work){
        .faults = usage.ru_minflt,
        .calls = number_in("/proc/self/io", "syscr:") + number_in("/proc/self/io", "syscw:"),
        .cpu_us = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
                  usage.ru_utime.tv_usec + usage.ru_stime.tv_usec,
    };
}

static int by_size(const void *a, const void *b)
{
    long one = *(const long *)a, other = *(const long *)b;
    return (one > other) - (one < other);
}

static long median(const long *values)
{
    long sorted[WINDOW];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, WINDOW, sizeof sorted[0], by_size);
    return sorted[WINDOW / 2];
}

/* One for each process that goes through rounds. */
struct history {
    struct holdings warm, last;
    struct work before;
    long faults[ROUNDS], calls[ROUNDS], cpu_us[ROUNDS];
};

static void round_begins(struct history *history)
{
    history->before = done_so_far();
}

static void round_ended(struct history *history, int round)
{
    struct work now = done_so_far();
    history->faults[round] = now.faults - history->before.faults;
    history->calls[round] = now.calls - history->before.calls;
    history->cpu_us[round] = now.cpu_us - history->before.cpu_us;
    if (round == WARM)
        history->warm = look();
    history->last = look();
}

/* A sanitizer maps terabytes and keeps what was freed: what it holds is not ours. */
static bool sanitized(void)
{
    return number_in("/proc/self/status", "VmSize:") > 1L << 30;
}

/* @return has anything? The numbers are in @p text */
static bool has_grown(const struct history *history, char *text, size_t text_bytes)
{
    const struct holdings *warm = &history->warm, *last = &history->last;
    const int early = WARM, late = ROUNDS - WINDOW;
    const long faults[2] = {median(history->faults + early), median(history->faults + late)};
    const long calls[2] = {median(history->calls + early), median(history->calls + late)};
    snprintf(text, text_bytes,
             "descriptors %ld -> %ld, threads %ld -> %ld, mappings %ld -> %ld, KiB %ld -> %ld; "
             "a round: page faults %ld -> %ld, reads and writes %ld -> %ld, CPU us %ld -> %ld",
             warm->fds, last->fds, warm->threads, last->threads, warm->maps, last->maps,
             warm->resident_kib, last->resident_kib, faults[0], faults[1], calls[0], calls[1],
             median(history->cpu_us + early), median(history->cpu_us + late));
    int status;
    if (!sanitized() &&
        (last->maps > warm->maps + 8 || last->resident_kib > warm->resident_kib + 2048))
        return true;
    return last->fds != warm->fds || last->threads != warm->threads ||
           faults[1] > faults[0] * 2 + 100 || calls[1] > calls[0] * 2 + 100 ||
           waitpid(-1, &status, WNOHANG) != -1; /* no children at all */
}

/* ---- one round of one rank ------------------------------------------------------------------ */

static horon_status_t join_and_leave(int rank, const char *store, const char *shared, char *text)
{
    const char *settings[] = {store, shared, "JOB_KEY=a key for this test alone", NULL};
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *ctx = NULL;
    float data[3] = {1, 1, (float)rank};
    options.rank = rank;
    options.size = RANKS;
    options.settings = settings;
    horon_status_t status = horon_context_create(&options, &ctx, text, HORON_ERROR_TEXT_BYTES);
    horon_descriptor_t desc = job_sum("x", data, 3, 0);
    if (status == HORON_OK)
        status = horon_run(ctx, &desc, -1, text, HORON_ERROR_TEXT_BYTES);
    if (status == HORON_OK && data[0] != (float)RANKS)
        status = HORON_ERR_PROTO;
    horon_context_destroy(ctx);
    return status;
}

/* ---- processes ------------------------------------------------------------------------------ */

/* arg: a folder. The job's own context only keeps the rounds in step. */
static void go_round(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static struct history history;
    char store[128];
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    for (int round = 0; round < ROUNDS; round++) {
        snprintf(store, sizeof store, "STORE=file:%s/%d", (const char *)arg, round);
        if (horon_rank(ctx) == 0)
            RANK_MUST(mkdir(store + strlen("STORE=file:"), 0700) == 0);
        RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
        round_begins(&history);
        report->status =
            join_and_leave(horon_rank(ctx), store, round % 2 ? "SHM=1" : "SHM=0", report->text);
        if (report->status != HORON_OK)
            return;
        round_ended(&history, round);
    }
    bool grown = has_grown(&history, report->text, sizeof report->text);
    if (grown)
        report->status = HORON_ERR_INVALID;
    fprintf(stderr, "rank %d: %s\n", horon_rank(ctx), report->text);
}

static void remove_folder(const char *folder)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_rounds_of_processes_keep_nothing(void **state)
{
    char folder[] = "/tmp/horon-test-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(folder));
    job_run(RANKS, NULL, go_round, folder);
    remove_folder(folder);
}

/* ---- contexts of one process ---------------------------------------------------------------- */

struct member {
    pthread_t thread;
    int rank;
    const char *store, *shared;
    horon_status_t status;
    char text[HORON_ERROR_TEXT_BYTES];
};

static void *be_member(void *arg)
{
    struct member *self = arg;
    self->status = join_and_leave(self->rank, self->store, self->shared, self->text);
    return NULL;
}

static void test_rounds_of_contexts_keep_nothing(void **state)
{
    static struct history history;
    static struct member members[RANKS];
    char text[512];
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        char folder[] = "/tmp/horon-test-XXXXXX", store[64];
        assert_non_null(mkdtemp(folder));
        snprintf(store, sizeof store, "STORE=file:%s", folder);
        round_begins(&history);
        for (int rank = 0; rank < RANKS; rank++) {
            members[rank] = (struct member){
                .rank = rank, .store = store, .shared = round % 2 ? "SHM=1" : "SHM=0"};
            assert_int_equal(pthread_create(&members[rank].thread, NULL, be_member, &members[rank]),
                             0);
        }
        for (int rank = 0; rank < RANKS; rank++)
            pthread_join(members[rank].thread, NULL);
        round_ended(&history, round);
        for (int rank = 0; rank < RANKS; rank++)
            if (members[rank].status != HORON_OK)
                fail_msg("round %d, rank %d: %s", round, rank, members[rank].text);
        remove_folder(folder);
    }
    bool grown = has_grown(&history, text, sizeof text);
    print_message("%s\n", text);
    assert_false(grown);
}

/* The allocator gives large blocks, and the end of its heap, back to the system and faults them in
 * again, in each round or in none, as they happen to lie; and its arenas fill one by one, as
 * threads happen to meet. That is not to be taken for growth. */
static void keep_freed_memory(void)
{
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_ARENA_MAX, 1);
}

int main(void)
{
    keep_freed_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds_of_processes_keep_nothing),
        cmocka_unit_test(test_rounds_of_contexts_keep_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
