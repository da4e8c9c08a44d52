/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process sets through the C ABI, by real processes: every rank of the job adds and removes them,
 * and all have the same table; what is wrong on one rank is told to all; sets work independently,
 * and one that is removed leaves nothing.
 */
#undef NDEBUG
#include "multi/job.h"

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT 5003

static horon_status_t meet(horon_context_t *ctx)
{
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    return horon_run(ctx, &barrier, -1, NULL, 0);
}

static horon_status_t sum(horon_context_t *ctx, int32_t set, const char *name, float *data,
                          uint64_t count)
{
    horon_descriptor_t desc = job_sum(name, data, count, name ? 0 : HORON_IN_ORDER);
    desc.process_set = set;
    return horon_run(ctx, &desc, -1, NULL, 0);
}

/* Sums in all ways of beginning an operation. @return does each of them give what the set's ranks
 * gave? */
static bool sums(horon_context_t *ctx, int32_t set)
{
    static float data[COUNT];
    int32_t ranks[JOB_RANKS_MAX];
    const int32_t size = horon_process_set_ranks(ctx, set, ranks, JOB_RANKS_MAX);
    float expected = 0;
    for (int32_t i = 0; i < size; i++)
        expected += (float)ranks[i] + 1;
    for (int round = 0; round < 6; round++) {
        const uint64_t count = round % 3 ? COUNT : 1;
        for (uint64_t i = 0; i < count; i++)
            data[i] = (float)horon_rank(ctx) + 1;
        if (sum(ctx, set, round % 2 ? "x" : NULL, data, count) != HORON_OK)
            return false;
        for (uint64_t i = 0; i < count; i++)
            if (data[i] != expected)
                return false;
    }
    horon_descriptor_t group[2];
    horon_request_t *requests[2], *prepared;
    float pair[2] = {(float)horon_rank(ctx) + 1, (float)horon_rank(ctx) + 1};
    for (int i = 0; i < 2; i++) {
        group[i] = job_sum(i ? "second" : "first", &pair[i], 1, 0);
        group[i].process_set = set;
    }
    if (horon_submit_group(ctx, group, 2, requests) != HORON_OK ||
        horon_wait_all(requests, 2, HORON_HOST_DONE, -1) != HORON_OK)
        return false;
    horon_release(requests[0]);
    horon_release(requests[1]);
    if (pair[0] != expected || pair[1] != expected)
        return false;
    pair[0] = (float)horon_rank(ctx) + 1;
    if (horon_prepare(ctx, &group[0], &prepared) != HORON_OK || horon_start(prepared) != HORON_OK ||
        horon_wait(prepared, HORON_HOST_DONE, -1) != HORON_OK)
        return false;
    horon_release(prepared);
    return pair[0] == expected;
}

/* The ranks in a set, by bits. @return its id, or the status */
static int32_t add(horon_context_t *ctx, unsigned members)
{
    int32_t ranks[JOB_RANKS_MAX], id = -100;
    size_t n = 0;
    for (int32_t rank = 0; rank < JOB_RANKS_MAX; rank++)
        if (members & 1u << rank)
            ranks[n++] = rank;
    const horon_status_t status = horon_process_set_add(ctx, ranks, n, -1, &id);
    return status == HORON_OK ? id : (int32_t)status;
}

/* Every set of the ranks that there can be, all at the same time. */
static void use_all(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int size = horon_size(ctx), rank = horon_rank(ctx);
    const int32_t count = (1 << size) - 1; /* the job's own among them */
    int32_t ids[64], ranks[JOB_RANKS_MAX];
    (void)arg;
    for (int32_t set = 1; set < count; set++) {
        RANK_MUST(add(ctx, (unsigned)set) == set);
        RANK_MUST(horon_process_set_size(ctx, set) == __builtin_popcount((unsigned)set));
        const int32_t mine = __builtin_popcount((unsigned)set & ((1u << rank) - 1));
        RANK_MUST(horon_process_set_rank(ctx, set) == (set & 1 << rank ? mine : -1));
    }
    RANK_MUST(horon_process_set_ids(ctx, ids, 64) == count);
    for (int32_t i = 0; i < count; i++)
        RANK_MUST(ids[i] == i);
    RANK_MUST(horon_process_set_ranks(ctx, 0, ranks, JOB_RANKS_MAX) == size);
    RANK_MUST(ranks[size - 1] == size - 1);
    for (int32_t set = 0; set < count; set++)
        if (set == 0 || set & 1 << rank)
            RANK_MUST(sums(ctx, set));
    for (int32_t set = 1; set < count; set++)
        RANK_MUST(horon_process_set_remove(ctx, set, -1) == HORON_OK);
    RANK_MUST(horon_process_set_ids(ctx, NULL, 0) == 1);
    RANK_MUST(horon_process_set_size(ctx, 1) == -1);
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_process_sets_of_any_ranks_sum(void **state)
{
    static const char *const tcp[] = {"SHM=0", NULL};
    (void)state;
    for (int size = 1; size <= 4; size++) {
        job_run(size, NULL, use_all, NULL);
        job_run(size, tcp, use_all, NULL);
    }
}

/* Ids are used again, and the order of a list does not count. */
static void count_ids(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const int32_t reversed[] = {2, 0};
    int32_t id, ranks[3] = {-1, -1, -1};
    (void)arg;
    RANK_MUST(horon_process_set_add(ctx, reversed, 2, -1, &id) == HORON_OK && id == 1);
    RANK_MUST(horon_process_set_ranks(ctx, 1, ranks, 3) == 2);
    RANK_MUST(ranks[0] == 0 && ranks[1] == 2 && ranks[2] == -1);
    RANK_MUST(horon_process_set_ranks(ctx, 1, ranks + 2, 1) == 2 && ranks[2] == 0);
    RANK_MUST(add(ctx, 3) == 2 && add(ctx, 6) == 3);
    RANK_MUST(horon_process_set_remove(ctx, 2, -1) == HORON_OK);
    RANK_MUST(horon_process_set_remove(ctx, 1, -1) == HORON_OK);
    RANK_MUST(add(ctx, 1) == 2 && add(ctx, 2) == 1 && add(ctx, 4) == 4);
    if (horon_rank(ctx) == 1)
        RANK_MUST(sums(ctx, 1));
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_process_sets_have_ids_as_horovods_do(void **state)
{
    (void)state;
    job_run(3, NULL, count_ids, NULL);
}

static bool refused(horon_context_t *ctx, horon_status_t status, horon_status_t expected,
                    const char *text)
{
    if (status == expected && strstr(horon_last_error(ctx), text))
        return true;
    fprintf(stderr, "rank %d: status %d: %s\n", horon_rank(ctx), status, horon_last_error(ctx));
    return false;
}

/* What all ranks ask for wrongly, and then what one does. */
static void ask_wrongly(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const int32_t twice[] = {1, 0, 1}, beyond[] = {0, 3}, below[] = {-1}, two[] = {0, 1},
                         many[] = {0, 1, 2, 0, 1, 2, 0};
    const int rank = horon_rank(ctx);
    horon_failure_t failure = HORON_FAILURE_INIT;
    int32_t id = -7;
    (void)arg;
    RANK_MUST(refused(ctx, horon_process_set_add(ctx, twice, 3, -1, &id), HORON_ERR_INVALID,
                      "rank 1 is twice"));
    RANK_MUST(
        refused(ctx, horon_process_set_add(ctx, many, 7, -1, &id), HORON_ERR_INVALID, "is twice"));
    RANK_MUST(refused(ctx, horon_process_set_add(ctx, beyond, 2, -1, &id), HORON_ERR_INVALID,
                      "3 is no rank of 0..2"));
    RANK_MUST(refused(ctx, horon_process_set_add(ctx, below, 1, -1, &id), HORON_ERR_INVALID,
                      "-1 is no rank"));
    RANK_MUST(refused(ctx, horon_process_set_add(ctx, NULL, 0, -1, &id), HORON_ERR_INVALID,
                      "one rank at least"));
    RANK_MUST(
        refused(ctx, horon_process_set_add(ctx, NULL, 1, -1, &id), HORON_ERR_INVALID, "NULL"));
    RANK_MUST(
        refused(ctx, horon_process_set_add(ctx, two, 2, -1, NULL), HORON_ERR_INVALID, "NULL"));
    RANK_MUST(refused(ctx, horon_process_set_remove(ctx, 0, -1), HORON_ERR_INVALID, "stays"));
    RANK_MUST(refused(ctx, horon_process_set_remove(ctx, 1, -1), HORON_ERR_INVALID,
                      "process set 1 does not exist"));
    RANK_MUST(refused(ctx, add(ctx, 7), HORON_ERR_INVALID, "process set 0 has the same ranks"));
    RANK_MUST(id == -7);

    RANK_MUST(refused(ctx, horon_process_set_add(ctx, rank == 2 ? beyond : two, 2, -1, &id),
                      HORON_ERR_INVALID, "3 is no rank of 0..2"));
    RANK_MUST(rank == 2 || strstr(horon_last_error(ctx), "rank 2 ("));
    RANK_MUST(refused(ctx, add(ctx, rank == 1 ? 5 : 3), HORON_ERR_MISMATCH,
                      ") adds a process set of ranks 0, 1, and rank 1 ("));
    RANK_MUST(strstr(horon_last_error(ctx), ") adds a process set of ranks 0, 2"));
    RANK_MUST(horon_last_failure(ctx, &failure) == HORON_OK && failure.rank == 0 &&
              failure.other_rank == 1 && failure.cause == HORON_CAUSE_ORDER);
    RANK_MUST(add(ctx, 3) == 1);
    const horon_status_t status = rank == 2 ? add(ctx, 6) : horon_process_set_remove(ctx, 1, -1);
    RANK_MUST(refused(ctx, status, HORON_ERR_MISMATCH, "removes process set 1, and rank 2 ("));
    if (rank < 2)
        RANK_MUST(sums(ctx, 1)); /* it is as it was */
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_process_sets_asked_for_wrongly_fail_on_all_ranks(void **state)
{
    (void)state;
    job_run(3, NULL, ask_wrongly, NULL);
}

/* Operations on sets that there are not, or that this rank is not in; and of two sets at once. */
static void submit_wrongly(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int rank = horon_rank(ctx);
    float data = 1;
    horon_request_t *request, *requests[2];
    horon_descriptor_t desc = job_sum("x", &data, 1, 0), two[2];
    (void)arg;
    RANK_MUST(add(ctx, 3) == 1);
    for (int32_t set = -1; set <= 9; set += 10) {
        desc.process_set = set;
        RANK_MUST(
            refused(ctx, horon_submit(ctx, &desc, &request), HORON_ERR_INVALID, "does not exist"));
        RANK_MUST(
            refused(ctx, horon_prepare(ctx, &desc, &request), HORON_ERR_INVALID, "does not exist"));
        RANK_MUST(
            refused(ctx, horon_run(ctx, &desc, -1, NULL, 0), HORON_ERR_INVALID, "does not exist"));
        RANK_MUST(refused(ctx, horon_submit_group(ctx, &desc, 1, requests), HORON_ERR_INVALID,
                          "does not exist"));
    }
    desc.process_set = 1;
    if (rank == 2)
        RANK_MUST(refused(ctx, horon_run(ctx, &desc, -1, NULL, 0), HORON_ERR_INVALID,
                          "rank 2 is no member of process set 1"));
    two[0] = two[1] = desc;
    two[1].process_set = 0;
    two[1].name = "y";
    if (rank < 2) {
        RANK_MUST(refused(ctx, horon_submit_group(ctx, two, 2, requests), HORON_ERR_INVALID,
                          "one process set"));
        RANK_MUST(sums(ctx, 1));
    }
    desc.verb = HORON_BROADCAST;
    desc.root = 2; /* of the job, and none of the set */
    if (rank < 2)
        RANK_MUST(refused(ctx, horon_run(ctx, &desc, -1, NULL, 0), HORON_ERR_INVALID, "root 2"));
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_process_sets_refuse_what_is_not_theirs(void **state)
{
    (void)state;
    job_run(3, NULL, submit_wrongly, NULL);
}

/* A rank that does not come is named, and nothing has changed: it can be done again. */
static void come_late(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const int32_t two[] = {0, 1};
    int32_t id;
    (void)arg;
    if (horon_rank(ctx) == 0)
        RANK_MUST(refused(ctx, horon_process_set_add(ctx, two, 2, 50, &id), HORON_ERR_TIMEOUT,
                          "rank 1 ("));
    RANK_MUST(meet(ctx) == HORON_OK);
    RANK_MUST(add(ctx, 3) == 1);
    if (horon_rank(ctx) < 2)
        RANK_MUST(sums(ctx, 1));
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_process_sets_name_a_rank_that_does_not_come(void **state)
{
    (void)state;
    job_run(3, NULL, come_late, NULL);
}

struct adder {
    horon_context_t *ctx;
    int32_t rank, id;
    horon_status_t status;
};

/* Which thread comes first is not the same on both ranks, perhaps: nothing has changed then. */
static void *add_until_agreed(void *arg)
{
    struct adder *adder = arg;
    do
        adder->status = horon_process_set_add(adder->ctx, &adder->rank, 1, -1, &adder->id);
    while (adder->status == HORON_ERR_MISMATCH);
    return NULL;
}

static void add_at_once(horon_context_t *ctx, void *arg, struct job_report *report)
{
    struct adder adders[2] = {{.ctx = ctx, .rank = 0}, {.ctx = ctx, .rank = 1}};
    pthread_t threads[2];
    int32_t rank;
    (void)arg;
    for (int i = 0; i < 2; i++)
        RANK_MUST(pthread_create(&threads[i], NULL, add_until_agreed, &adders[i]) == 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        RANK_MUST(adders[i].status == HORON_OK);
        RANK_MUST(horon_process_set_ranks(ctx, adders[i].id, &rank, 1) == 1 && rank == i);
    }
    RANK_MUST(sums(ctx, adders[horon_rank(ctx)].id));
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_process_sets_added_by_two_threads_come_one_after_the_other(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++)
        job_run(2, NULL, add_at_once, NULL);
}

static int entries_of(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    while (folder && readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* Pieces of shared memory of this library that this process maps. */
static int count_maps(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        count += strstr(line, "memfd:horon") != NULL;
    fclose(maps);
    return count;
}

/* The first sets make sockets between their members, which stay. */
static void make_many(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { FIRST = 12, SETS = 200 };
    enum { HEAP_OF_A_SET = 1024 }; /* it takes more; the last one may be on its way out */
    const int size = horon_size(ctx), rank = horon_rank(ctx);
    int fds = 0, maps = 0;
    size_t heap = 0;
    (void)arg;
    for (int i = 0; i < SETS; i++) {
        const unsigned a = (unsigned)(i % size),
                       b = (unsigned)((i + 1 + i / size % (size - 1)) % size);
        if (i == FIRST) {
            RANK_MUST(meet(ctx) == HORON_OK);
            fds = entries_of("/proc/self/fd");
            maps = count_maps();
            heap = mallinfo2().uordblks;
            RANK_MUST(meet(ctx) == HORON_OK);
        }
        const int32_t set = add(ctx, 1u << a | 1u << b);
        RANK_MUST(set == 1);
        if (rank == (int)a || rank == (int)b)
            RANK_MUST(sums(ctx, set));
        RANK_MUST(horon_process_set_remove(ctx, set, -1) == HORON_OK);
    }
    RANK_MUST(meet(ctx) == HORON_OK);
    RANK_MUST(entries_of("/proc/self/fd") == fds);
    RANK_MUST(count_maps() == maps);
    RANK_MUST(mallinfo2().uordblks < heap + (SETS - FIRST) * HEAP_OF_A_SET);
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_process_sets_leave_nothing(void **state)
{
    static const char *const tcp[] = {"SHM=0", NULL};
    (void)state;
    job_run(4, NULL, make_many, NULL);
    job_run(4, tcp, make_many, NULL);
}

/* What is in flight when it is removed ends on all ranks alike. */
static void remove_in_flight(horon_context_t *ctx, void *arg, struct job_report *report)
{
    (void)arg;
    for (int round = 0; round < 20; round++) {
        static float data[4][COUNT];
        static const char *const names[4] = {NULL, "x", NULL, "never on rank 1"};
        horon_request_t *requests[4];
        const int32_t set = add(ctx, 3);
        RANK_MUST(set == 1);
        const int count = horon_rank(ctx) == 1 ? 3 : 4;
        for (int i = 0; horon_rank(ctx) < 2 && i < count; i++) {
            horon_descriptor_t desc =
                job_sum(names[i], data[i], COUNT, names[i] ? 0 : HORON_IN_ORDER);
            desc.process_set = set;
            RANK_MUST(horon_submit(ctx, &desc, &requests[i]) == HORON_OK);
        }
        RANK_MUST(horon_process_set_remove(ctx, set, -1) == HORON_OK);
        for (int i = 0; horon_rank(ctx) < 2 && i < count; i++) {
            const horon_status_t status = horon_wait(requests[i], HORON_HOST_DONE, 0);
            RANK_MUST(status == HORON_ERR_CLOSED || (status == HORON_OK && i < 3));
            horon_release(requests[i]);
        }
    }
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_process_sets_end_what_is_in_flight(void **state)
{
    (void)state;
    job_run(3, NULL, remove_in_flight, NULL);
}

struct lonely {
    horon_context_t *ctx;
    sem_t called, permission; /* the progress thread is in a callback; it may go on */
    horon_status_t status;
};

static void wait_for_permission(void *arg, horon_request_t *request, horon_status_t status)
{
    struct lonely *lonely = arg;
    (void)request;
    (void)status;
    sem_post(&lonely->called);
    sem_wait(&lonely->permission);
}

static void ignore(void *arg, horon_request_t *request, horon_status_t status)
{
    (void)arg;
    (void)request;
    (void)status;
}

static horon_status_t run_alone(horon_context_t *ctx, int32_t set, int64_t timeout_ms)
{
    float data = 1;
    horon_descriptor_t desc = job_sum("alone", &data, 1, 0);
    desc.process_set = set;
    desc.callback = ignore;
    return horon_run(ctx, &desc, timeout_ms, NULL, 0);
}

static void *run_in_first_set(void *arg)
{
    struct lonely *lonely = arg;
    lonely->status = run_alone(lonely->ctx, 1, 300);
    return NULL;
}

/* The removal has ended it, its callback is not due yet, and its limit passes. */
static void pass_a_limit(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static struct lonely lonely;
    static float data = 1;
    horon_descriptor_t desc = job_sum("slow", &data, 1, 0);
    horon_request_t *slow;
    pthread_t thread;
    (void)arg;
    RANK_MUST(add(ctx, 3) == 1);
    lonely.ctx = ctx;
    sem_init(&lonely.called, 0, 0);
    sem_init(&lonely.permission, 0, 0);
    desc.callback = wait_for_permission;
    desc.callback_arg = &lonely;
    RANK_MUST(horon_submit(ctx, &desc, &slow) == HORON_OK);
    sem_wait(&lonely.called);
    if (horon_rank(ctx) == 0)
        RANK_MUST(pthread_create(&thread, NULL, run_in_first_set, &lonely) == 0);
    RANK_MUST(horon_process_set_remove(ctx, 1, -1) == HORON_OK);
    horon_descriptor_t later = job_sum("later", &data, 1, 0);
    if (horon_rank(ctx) == 0) /* a longer limit, that began later */
        RANK_MUST(horon_run(ctx, &later, 500, NULL, 0) == HORON_ERR_TIMEOUT);
    sem_post(&lonely.permission);
    if (horon_rank(ctx) == 0) {
        pthread_join(thread, NULL);
        RANK_MUST(lonely.status == HORON_ERR_CLOSED || lonely.status == HORON_ERR_INVALID);
    }
    horon_release(slow);
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_process_sets_removed_end_what_passes_its_limit(void **state)
{
    (void)state;
    job_run(3, NULL, pass_a_limit, NULL);
}

/* A broken promise of order in one set fails it, and nothing else. */
static void break_promise(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[2] = {1, 1};
    (void)arg;
    RANK_MUST(add(ctx, 3) == 1 && add(ctx, 6) == 2);
    if (horon_rank(ctx) < 2) {
        horon_status_t status = HORON_OK;
        for (int i = 0; i < 3 && status == HORON_OK; i++)
            status = sum(ctx, 1, NULL, data, horon_rank(ctx) == 0 ? 1 : 2);
        RANK_MUST(status == HORON_ERR_MISMATCH);
        RANK_MUST(sum(ctx, 1, "x", data, 1) == HORON_ERR_MISMATCH); /* for good */
    }
    if (horon_rank(ctx) > 0)
        RANK_MUST(sums(ctx, 2));
    RANK_MUST(sums(ctx, 0));
    RANK_MUST(horon_process_set_remove(ctx, 1, -1) == HORON_OK);
    RANK_MUST(add(ctx, 3) == 1); /* a new one of the same ranks works */
    if (horon_rank(ctx) < 2)
        RANK_MUST(sums(ctx, 1));
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_process_sets_keep_a_mistake_to_themselves(void **state)
{
    (void)state;
    job_run(3, NULL, break_promise, NULL);
}

/* Nor does one that a rank gave up in order. */
static void give_up(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data = 1;
    (void)arg;
    RANK_MUST(add(ctx, 3) == 1 && add(ctx, 6) == 2);
    if (horon_rank(ctx) == 0) {
        horon_descriptor_t desc = job_sum(NULL, &data, 1, HORON_IN_ORDER);
        desc.process_set = 1;
        RANK_MUST(horon_run(ctx, &desc, 20, NULL, 0) == HORON_ERR_TIMEOUT);
    }
    RANK_MUST(meet(ctx) == HORON_OK);
    if (horon_rank(ctx) == 1) {
        while (sum(ctx, 1, "x", &data, 1) == HORON_OK) /* until it has heard of that */
            continue;
        RANK_MUST(sum(ctx, 1, "x", &data, 1) == HORON_ERR_TIMEOUT);
        RANK_MUST(strstr(horon_last_error(ctx), "rank 0 (") &&
                  strstr(horon_last_error(ctx), "gave it up after 20 ms"));
    }
    if (horon_rank(ctx) > 0)
        RANK_MUST(sums(ctx, 2));
    RANK_MUST(sums(ctx, 0));
}

static void test_process_sets_given_up_leave_the_others(void **state)
{
    (void)state;
    job_run(3, NULL, give_up, NULL);
}

static void find_static(horon_context_t *ctx, void *arg, struct job_report *report)
{
    int32_t ranks[4];
    (void)arg;
    RANK_MUST(horon_process_set_ids(ctx, NULL, 0) == 3);
    RANK_MUST(horon_process_set_ranks(ctx, 1, ranks, 4) == 3 && ranks[1] == 2 && ranks[2] == 3);
    RANK_MUST(horon_process_set_ranks(ctx, 2, ranks, 4) == 2 && ranks[0] == 1);
    if (horon_process_set_rank(ctx, 1) >= 0)
        RANK_MUST(sums(ctx, 1));
    if (horon_process_set_rank(ctx, 2) >= 0)
        RANK_MUST(sums(ctx, 2));
    RANK_MUST(refused(ctx, add(ctx, 1), HORON_ERR_INVALID, "HORON_DYNAMIC_PROCESS_SETS is 0"));
    RANK_MUST(refused(ctx, horon_process_set_remove(ctx, 1, -1), HORON_ERR_INVALID,
                      "HORON_DYNAMIC_PROCESS_SETS is 0"));
    RANK_MUST(meet(ctx) == HORON_OK);
}

static void test_process_sets_may_be_there_from_the_start(void **state)
{
    static const char *const settings[] = {"PROCESS_SETS=0,2-3;3,1", "DYNAMIC_PROCESS_SETS=0",
                                           NULL};
    (void)state;
    job_run(4, settings, find_static, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_process_sets_of_any_ranks_sum),
        cmocka_unit_test(test_process_sets_have_ids_as_horovods_do),
        cmocka_unit_test(test_process_sets_asked_for_wrongly_fail_on_all_ranks),
        cmocka_unit_test(test_process_sets_refuse_what_is_not_theirs),
        cmocka_unit_test(test_process_sets_name_a_rank_that_does_not_come),
        cmocka_unit_test(test_process_sets_added_by_two_threads_come_one_after_the_other),
        cmocka_unit_test(test_process_sets_leave_nothing),
        cmocka_unit_test(test_process_sets_end_what_is_in_flight),
        cmocka_unit_test(test_process_sets_removed_end_what_passes_its_limit),
        cmocka_unit_test(test_process_sets_keep_a_mistake_to_themselves),
        cmocka_unit_test(test_process_sets_given_up_leave_the_others),
        cmocka_unit_test(test_process_sets_may_be_there_from_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
