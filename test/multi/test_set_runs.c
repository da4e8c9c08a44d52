/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread runs operations on a process set, one call after the other, while another thread removes
 * the set: the call that holds the progress token has no reference to the set's team, and finds it
 * in the table without a lock. Each call ends, well or told that the set is gone, and nothing of
 * the set is used afterwards (the sanitizers look). And the first operation of a set, which one of
 * its ranks never begins: whose time limit passes says which one that is.
 */
#undef NDEBUG
#include "multi/job.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS 12
#define SETS 3
/* Before the set is removed each thread has run so many, if it comes so far. */
#define RUNS 50

struct runner {
    horon_context_t *ctx;
    int32_t set;
    float sum; /* of what its ranks give; 0: they exchange messages */
    _Atomic int runs;
    horon_status_t status; /* of the last one */
    bool wrong;
};

static horon_status_t run_sum(struct runner *runner)
{
    float data = (float)horon_rank(runner->ctx) + 1;
    horon_descriptor_t desc = job_sum(NULL, &data, 1, HORON_IN_ORDER);
    desc.process_set = runner->set;
    const horon_status_t status = horon_run(runner->ctx, &desc, -1, NULL, 0);
    runner->wrong |= status == HORON_OK && data != runner->sum;
    return status;
}

/* With the other rank of the set. */
static horon_status_t run_pair(struct runner *runner)
{
    const int other = 1 - horon_rank(runner->ctx);
    int32_t given = 1 - other, taken = -1;
    horon_descriptor_t pair[2] = {job_message(HORON_SEND, other, 7, &given, 1),
                                  job_message(HORON_RECV, other, 7, &taken, 1)};
    pair[0].process_set = pair[1].process_set = runner->set;
    const horon_status_t status = horon_run_messages(runner->ctx, pair, 2, -1, NULL, 0);
    runner->wrong |= status == HORON_OK && taken != other;
    return status;
}

static void *run_until_removed(void *arg)
{
    struct runner *runner = arg;
    do {
        runner->status = runner->sum > 0 ? run_sum(runner) : run_pair(runner);
        atomic_fetch_add(&runner->runs, 1);
    } while (runner->status == HORON_OK);
    return NULL;
}

static void remove_while_run(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const int32_t members[SETS][3] = {{0, 1}, {0, 1, 2}, {0, 1, 3}};
    static const float sums[SETS] = {0, 6, 7};
    (void)arg;
    for (int round = 0; round < ROUNDS; round++) {
        struct runner runners[SETS];
        pthread_t threads[SETS];
        bool is_member[SETS];
        for (int i = 0; i < SETS; i++) {
            runners[i] = (struct runner){.ctx = ctx, .sum = sums[i]};
            RANK_MUST(horon_process_set_add(ctx, members[i], i ? 3 : 2, -1, &runners[i].set) ==
                      HORON_OK);
            is_member[i] = horon_process_set_rank(ctx, runners[i].set) >= 0;
        }
        for (int i = 0; i < SETS; i++)
            RANK_MUST(!is_member[i] ||
                      pthread_create(&threads[i], NULL, run_until_removed, &runners[i]) == 0);
        for (int i = 0; i < SETS; i++) {
            while (is_member[i] && atomic_load(&runners[i].runs) < RUNS)
                sched_yield();
            RANK_MUST(horon_process_set_remove(ctx, runners[i].set, -1) == HORON_OK);
        }
        for (int i = 0; i < SETS; i++) {
            if (!is_member[i])
                continue;
            pthread_join(threads[i], NULL);
            RANK_MUST(!runners[i].wrong);
            RANK_MUST(runners[i].status == HORON_ERR_CLOSED ||
                      runners[i].status == HORON_ERR_INVALID);
        }
    }
}

static void test_process_sets_are_removed_while_threads_run_on_them(void **state)
{
    (void)state;
    job_run(4, NULL, remove_while_run, NULL);
}

/* @param arg the rank that begins it */
static void begin_alone(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const int32_t members[] = {0, 2};
    const int beginner = *(const int *)arg, other = 2 - beginner;
    const horon_descriptor_t barrier = {.struct_bytes = sizeof barrier, .verb = HORON_BARRIER};
    horon_failure_t failure = HORON_FAILURE_INIT;
    float data = 1;
    horon_descriptor_t desc = job_sum(NULL, &data, 1, HORON_IN_ORDER);
    RANK_MUST(horon_process_set_add(ctx, members, 2, -1, &desc.process_set) == HORON_OK);
    if (horon_rank(ctx) == beginner) {
        char named[64];
        snprintf(named, sizeof named, "waiting for rank %d (", other);
        RANK_MUST(horon_run(ctx, &desc, 50, NULL, 0) == HORON_ERR_TIMEOUT);
        RANK_MUST(strstr(horon_last_error(ctx), named));
        RANK_MUST(horon_last_failure(ctx, &failure) == HORON_OK);
        RANK_MUST(failure.rank == beginner && failure.other_rank == other);
    }
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
}

/* By the first rank of the host and by another one: memory goes by way of the first. */
static void test_first_operation_of_a_set_names_the_rank_that_lacks(void **state)
{
    (void)state;
    for (int beginner = 0; beginner <= 2; beginner += 2)
        job_run(3, NULL, begin_alone, &beginner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_operation_of_a_set_names_the_rank_that_lacks),
        cmocka_unit_test(test_process_sets_are_removed_while_threads_run_on_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
