/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks with batches of unequal number, in real processes: each joins behind its last one, and all
 * end; without the join the first rank that is through would let the others wait for ever.
 */
#undef NDEBUG
#include "multi/job.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, GRADIENTS = 5, LIMIT_MS = 60000 };

/* How many batches each rank has, epoch by epoch. */
static const int batches[][RANKS] = {{2, 5, 3, 4}, {4, 0, 4, 1}, {3, 3, 3, 3}};
#define EPOCHS (int)(sizeof batches / sizeof batches[0])

static int givers(int epoch, int batch)
{
    int count = 0;
    for (int rank = 0; rank < RANKS; rank++)
        count += batches[epoch][rank] > batch;
    return count;
}

/* All gradients of a batch at once; of ones. */
static void one_batch(horon_context_t *ctx, int epoch, int batch, struct job_report *report)
{
    static float gradients[GRADIENTS][70000];
    horon_request_t *requests[GRADIENTS];
    const int left = givers(epoch, batch);
    for (int i = 0; i < GRADIENTS; i++) {
        char name[32];
        const uint64_t count = i == 0 ? 70000 : 100 + (uint64_t)i;
        snprintf(name, sizeof name, "gradient.%d", i);
        for (uint64_t k = 0; k < count; k++)
            gradients[i][k] = 1;
        const horon_descriptor_t desc = job_sum(name, gradients[i], count, 0);
        RANK_MUST(horon_submit(ctx, &desc, &requests[i]) == HORON_OK);
    }
    RANK_MUST(horon_wait_all(requests, GRADIENTS, HORON_HOST_DONE, LIMIT_MS) == HORON_OK);
    for (int i = 0; i < GRADIENTS; i++) {
        RANK_MUST(gradients[i][99] == (float)left);
        RANK_MUST(horon_request_joined(requests[i]) == RANKS - left);
        RANK_MUST(horon_join_last(requests[i]) == -1);
        horon_release(requests[i]);
    }
}

static void epochs(horon_context_t *ctx, void *arg, struct job_report *report)
{
    (void)arg;
    const int self = horon_rank(ctx);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        horon_request_t *join = NULL, *behind = NULL;
        float value = 1;
        const int all = batches[epoch][self];
        int most = 0;
        for (int rank = 0; rank < RANKS; rank++)
            most = batches[epoch][rank] > most ? batches[epoch][rank] : most;
        for (int batch = 0; batch < all && report->status == 0; batch++)
            one_batch(ctx, epoch, batch, report);
        if (report->status)
            return;
        RANK_MUST(horon_join(ctx, 0, &join) == HORON_OK);
        RANK_MUST(horon_wait(join, HORON_HOST_DONE, LIMIT_MS) == HORON_OK);
        const int last = horon_join_last(join);
        RANK_MUST(last >= 0 && batches[epoch][last] == most);
        horon_release(join);
        /* it is over: all take part again */
        const horon_descriptor_t desc = job_sum("all", &value, 1, 0);
        RANK_MUST(horon_submit(ctx, &desc, &behind) == HORON_OK);
        RANK_MUST(horon_wait(behind, HORON_HOST_DONE, LIMIT_MS) == HORON_OK);
        RANK_MUST(value == RANKS);
        horon_release(behind);
    }
}

static void test_uneven_batches_end_on_all_ranks(void **state)
{
    (void)state;
    static const char *const apart[] = {"SHM=0", NULL};
    job_run(RANKS, NULL, epochs, NULL);
    job_run(RANKS, apart, epochs, NULL);
}

static void calls(horon_context_t *ctx, void *arg, struct job_report *report)
{
    (void)arg;
    horon_request_t *join = NULL;
    float value = 1;
    RANK_MUST(horon_join(NULL, 0, &join) == HORON_ERR_INVALID);
    RANK_MUST(horon_join(ctx, 0, NULL) == HORON_ERR_INVALID);
    RANK_MUST(horon_join(ctx, 77, &join) == HORON_ERR_INVALID);
    RANK_MUST(horon_join_last(NULL) == -1 && horon_request_joined(NULL) == 0);
    horon_descriptor_t desc = job_sum("before", &value, 1, 0);
    RANK_MUST(horon_run(ctx, &desc, LIMIT_MS, NULL, 0) == HORON_OK);
    RANK_MUST(horon_feature("join") == 1);
    RANK_MUST(horon_join(ctx, 0, &join) == HORON_OK);
    RANK_MUST(horon_wait(join, HORON_HOST_DONE, LIMIT_MS) == HORON_OK);
    RANK_MUST(horon_request_joined(join) == 0);
    RANK_MUST(horon_join_last(join) >= 0 && horon_join_last(join) < 2);
    RANK_MUST(horon_cancel(join) == HORON_ERR_INVALID);
    horon_release(join);
}

static void test_uneven_calls_refuse_what_makes_no_sense(void **state)
{
    (void)state;
    job_run(2, NULL, calls, NULL);
}

/* Rank 1 is killed with data left, when the others have joined or are about to. */
static void killed(horon_context_t *ctx, void *arg, struct job_report *report)
{
    (void)arg;
    horon_request_t *join = NULL;
    horon_failure_t failure = HORON_FAILURE_INIT;
    if (horon_rank(ctx) == 1)
        raise(SIGKILL);
    if (horon_join(ctx, 0, &join) == HORON_OK) {
        RANK_MUST(horon_wait(join, HORON_HOST_DONE, LIMIT_MS) == HORON_ERR_PEER_LOST);
        RANK_MUST(horon_join_last(join) == -1);
        RANK_MUST(horon_request_failure(join, &failure) == HORON_OK);
    } else {
        RANK_MUST(horon_last_failure(ctx, &failure) == HORON_OK);
    }
    RANK_MUST(failure.rank == 1 && failure.status == HORON_ERR_PEER_LOST);
    horon_release(join);
}

static void test_uneven_lost_rank_ends_the_join(void **state)
{
    (void)state;
    for (int apart = 0; apart < 2; apart++) {
        static const char *const settings[] = {"SHM=0", NULL};
        struct job job;
        struct job_report report;
        job_start(&job, 3, apart ? settings : NULL, killed, NULL);
        for (int rank = 0; rank < 3; rank += 2) {
            assert_int_equal(job_report_of(&job, rank, LIMIT_MS, &report), 0);
            if (report.status)
                print_error("rank %d: %s\n", rank, report.text);
            assert_int_equal(report.status, 0);
        }
        assert_int_equal(job_end(&job, LIMIT_MS), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uneven_batches_end_on_all_ranks),
        cmocka_unit_test(test_uneven_calls_refuse_what_makes_no_sense),
        cmocka_unit_test(test_uneven_lost_rank_ends_the_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
