/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that have joined, by real processes: what the others do goes on without them, a change of
 * process sets fails by name, and no join comes between the two meetings of such a change.
 */
#undef NDEBUG
#include "multi/job.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char *const by_tcp[] = {"SHM=0", NULL};

static horon_status_t join(horon_context_t *ctx)
{
    horon_request_t *request;
    horon_status_t status = horon_join(ctx, 0, &request);
    if (status != HORON_OK)
        return status;
    status = horon_wait(request, HORON_HOST_DONE, -1);
    horon_release(request);
    return status;
}

static horon_status_t gather_scalar(horon_context_t *ctx, float mine, float *all, uint64_t count)
{
    const uint64_t no_dimensions = 0;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLGATHER;
    desc.dtype = HORON_FLOAT32;
    desc.name = "scalar";
    desc.src = &mine;
    desc.shape = &no_dimensions;
    desc.ndim = 0;
    desc.dst = all;
    desc.dst_count = count;
    return horon_run(ctx, &desc, -1, NULL, 0);
}

static void gather_without_one(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int rank = horon_rank(ctx);
    float all[2] = {0};
    (void)arg;
    if (rank != 1) {
        RANK_MUST(gather_scalar(ctx, (float)(rank + 5), all, 2) == HORON_OK);
        RANK_MUST(all[0] == 5 && all[1] == 7);
    }
    RANK_MUST(join(ctx) == HORON_OK);
}

static void test_joined_rank_gives_no_scalar(void **state)
{
    (void)state;
    job_run(3, NULL, gather_without_one, NULL);
    job_run(3, by_tcp, gather_without_one, NULL);
}

/* Rank 1 has joined. */
static void add_without_one(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int32_t ranks[] = {0, 2};
    int32_t id;
    horon_failure_t why = HORON_FAILURE_INIT;
    (void)arg;
    if (horon_rank(ctx) != 1) {
        RANK_MUST(horon_process_set_add(ctx, ranks, 2, -1, &id) == HORON_ERR_MISMATCH);
        RANK_MUST(horon_last_failure(ctx, &why) == HORON_OK);
        RANK_MUST(why.cause == HORON_CAUSE_JOINED);
        RANK_MUST(strstr(horon_last_error(ctx), "1 of the 3 ranks have joined"));
    }
    RANK_MUST(join(ctx) == HORON_OK);
    RANK_MUST(horon_process_set_add(ctx, ranks, 2, -1, &id) == HORON_OK);
}

static void test_joined_rank_lets_no_process_set_be_added(void **state)
{
    (void)state;
    job_run(3, NULL, add_without_one, NULL);
}

struct joiner {
    horon_context_t *ctx;
    pthread_barrier_t begun;
    int yields; /* before it joins */
    horon_status_t status;
};

static void *join_soon(void *arg)
{
    struct joiner *joiner = arg;
    pthread_barrier_wait(&joiner->begun);
    for (int i = 0; i < joiner->yields; i++)
        sched_yield();
    joiner->status = join(joiner->ctx);
    return NULL;
}

/* Of rank 1 another thread joins while it adds a process set: whichever comes first, the job goes
 * on, and all ranks have the set or none has it. The others join once they know; an add that comes
 * when all that is over waits for nobody, and ends by its limit. */
static void join_during_add(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int32_t ranks[] = {0, 1};
    struct joiner joiner = {.ctx = ctx};
    (void)arg;
    pthread_barrier_init(&joiner.begun, NULL, 2);
    for (int round = 0; round < 100; round++) {
        pthread_t thread;
        int32_t id = -1;
        horon_status_t status;
        joiner.yields = round % 50;
        if (horon_rank(ctx) == 1) {
            RANK_MUST(pthread_create(&thread, NULL, join_soon, &joiner) == 0);
            pthread_barrier_wait(&joiner.begun);
            status = horon_process_set_add(ctx, ranks, 2, 100, &id);
            pthread_join(thread, NULL);
        } else {
            status = horon_process_set_add(ctx, ranks, 2, -1, &id);
            joiner.status = join(ctx);
        }
        RANK_MUST(joiner.status == HORON_OK);
        float with = status == HORON_OK;
        horon_descriptor_t sum = job_sum("with", &with, 1, 0);
        RANK_MUST(horon_run(ctx, &sum, -1, NULL, 0) == HORON_OK);
        RANK_MUST(with == 0 || with == 3);
        if (status == HORON_OK)
            RANK_MUST(horon_process_set_remove(ctx, id, -1) == HORON_OK);
    }
    pthread_barrier_destroy(&joiner.begun);
}

static void test_joined_never_between_the_meetings_of_a_change(void **state)
{
    (void)state;
    job_run(3, NULL, join_during_add, NULL);
    job_run(3, by_tcp, join_during_add, NULL);
}

/* Rank 1 has submitted a sum, and then a join that waits for it, when it removes a set: what is
 * removed on one rank is on all. */
static void remove_behind_join(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int32_t ranks[] = {0, 1};
    struct joiner joiner = {.ctx = ctx};
    (void)arg;
    pthread_barrier_init(&joiner.begun, NULL, 2);
    for (int round = 0; round < 100; round++) {
        int32_t id;
        float data = 1;
        pthread_t thread;
        horon_request_t *request;
        const horon_descriptor_t sum = job_sum("before", &data, 1, 0);
        RANK_MUST(horon_process_set_add(ctx, ranks, 2, -1, &id) == HORON_OK);
        joiner.yields = round % 20;
        for (int i = 0; horon_rank(ctx) != 1 && i < joiner.yields; i++)
            sched_yield();
        RANK_MUST(horon_submit(ctx, &sum, &request) == HORON_OK);
        RANK_MUST(pthread_create(&thread, NULL, join_soon, &joiner) == 0);
        pthread_barrier_wait(&joiner.begun);
        horon_status_t status = HORON_ERR_INVALID;
        if (horon_rank(ctx) == 1)
            status = horon_process_set_remove(ctx, id, 100);
        pthread_join(thread, NULL);
        RANK_MUST(joiner.status == HORON_OK);
        RANK_MUST(horon_wait(request, HORON_HOST_DONE, -1) == HORON_OK && data == 3);
        horon_release(request);
        if (status != HORON_OK) /* else all had joined by then, and it has met the others here */
            RANK_MUST(horon_process_set_remove(ctx, id, -1) == HORON_OK);
    }
    pthread_barrier_destroy(&joiner.begun);
}

static void test_joined_behind_what_waits_with_a_change_behind_it(void **state)
{
    (void)state;
    job_run(3, NULL, remove_behind_join, NULL);
}

/* The limit is what this rank's receive takes up. */
static void add_at_the_limit(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int32_t ranks[] = {0, 1};
    int32_t id;
    float data = 3;
    horon_request_t *message;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    (void)arg;
    desc.verb = horon_rank(ctx) == 0 ? HORON_SEND : HORON_RECV;
    desc.dtype = HORON_FLOAT32;
    desc.root = 1 - horon_rank(ctx);
    desc.src = desc.dst = &data;
    desc.count = 1;
    if (horon_rank(ctx) == 1)
        RANK_MUST(horon_submit(ctx, &desc, &message) == HORON_OK);
    RANK_MUST(horon_process_set_add(ctx, ranks, 2, -1, &id) == HORON_OK);
    if (horon_rank(ctx) == 0)
        RANK_MUST(horon_submit(ctx, &desc, &message) == HORON_OK);
    if (horon_rank(ctx) == 2)
        return;
    RANK_MUST(horon_wait(message, HORON_HOST_DONE, -1) == HORON_OK);
    horon_release(message);
    RANK_MUST(data == 3);
}

static void test_joined_or_not_a_change_counts_as_nothing_in_flight(void **state)
{
    static const char *const one[] = {"INFLIGHT_MAX=1", NULL};
    (void)state;
    job_run(3, one, add_at_the_limit, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined_rank_gives_no_scalar),
        cmocka_unit_test(test_joined_rank_lets_no_process_set_be_added),
        cmocka_unit_test(test_joined_never_between_the_meetings_of_a_change),
        cmocka_unit_test(test_joined_behind_what_waits_with_a_change_behind_it),
        cmocka_unit_test(test_joined_or_not_a_change_counts_as_nothing_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
