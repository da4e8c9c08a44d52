/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is killed, and exactly the process sets that it is in fail: their text names it. The other
 * sets work on, with what they have begun and for as long as their ranks like; sets are neither
 * added nor removed any more. Its host may be this one or another.
 */
#undef NDEBUG
#include "multi/job.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4, COUNT = 5003, ROUNDS = 30 };

static horon_status_t sum(horon_context_t *ctx, int32_t set, const char *name, float *data,
                          uint64_t count)
{
    horon_descriptor_t desc = job_sum(name, data, count, name ? 0 : HORON_IN_ORDER);
    desc.process_set = set;
    return horon_run(ctx, &desc, -1, NULL, 0);
}

/* Of every two and three ranks; ids are bits. */
static bool is_set(unsigned members)
{
    const int size = __builtin_popcount(members);
    return size == 2 || size == 3;
}

static int32_t add(horon_context_t *ctx, unsigned members)
{
    int32_t ranks[RANKS], id = -1;
    size_t n = 0;
    for (int32_t rank = 0; rank < RANKS; rank++)
        if (members & 1u << rank)
            ranks[n++] = rank;
    const horon_status_t status = horon_process_set_add(ctx, ranks, n, -1, &id);
    return status == HORON_OK ? id : (int32_t)status;
}

/* In the set until the victim is gone, and then some times. @return as the last sum */
static horon_status_t work_on(horon_context_t *ctx, int32_t set, unsigned members, float *data)
{
    horon_status_t status = HORON_OK;
    const float size = (float)__builtin_popcount(members);
    for (int round = 0; round < ROUNDS && status == HORON_OK; round++) {
        const uint64_t count = round % 3 ? 3 : COUNT;
        for (uint64_t i = 0; i < count; i++)
            data[i] = 1;
        status = sum(ctx, set, round % 2 ? "x" : NULL, data, count);
        if (status == HORON_OK && data[count - 1] != size)
            return HORON_ERR_PROTO;
    }
    return status;
}

static void lose_one(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static float data[COUNT];
    static const int32_t two[] = {0, 1};
    const int victim = *(const int *)arg, rank = horon_rank(ctx);
    int32_t ids[1 << RANKS] = {0}, id;
    char name[32];
    horon_status_t status = HORON_OK;
    snprintf(name, sizeof name, "rank %d (", victim);
    for (unsigned set = 1; set < 1u << RANKS; set++)
        if (is_set(set))
            ids[set] = add(ctx, set);
    for (unsigned set = 1; set < 1u << RANKS; set += 2) { /* half of them have memory then */
        if (ids[set] && set & 1u << rank)
            status = sum(ctx, ids[set], "first", data, 1);
        /* the victim may be done first, and gone */
        RANK_MUST(status == HORON_OK || (status == HORON_ERR_PEER_LOST && set & 1u << victim));
        status = HORON_OK;
    }
    if (rank == victim)
        raise(SIGKILL);
    while (status == HORON_OK)
        status = sum(ctx, 0, NULL, data, 1);
    RANK_MUST(status == HORON_ERR_PEER_LOST && strstr(horon_last_error(ctx), name));
    for (unsigned set = 1; set < 1u << RANKS; set++) {
        if (!ids[set] || !(set & 1u << rank))
            continue;
        status = work_on(ctx, ids[set], set, data);
        if (set & 1u << victim)
            RANK_MUST(status == HORON_ERR_PEER_LOST && strstr(horon_last_error(ctx), name));
        else
            RANK_MUST(status == HORON_OK);
    }
    RANK_MUST(horon_process_set_add(ctx, two, 2, -1, &id) == HORON_ERR_PEER_LOST);
    RANK_MUST(strstr(horon_last_error(ctx), "neither added nor removed any more: ") &&
              strstr(horon_last_error(ctx), name));
    RANK_MUST(horon_process_set_remove(ctx, ids[3], -1) == HORON_ERR_PEER_LOST);
    RANK_MUST(horon_process_set_size(ctx, ids[3]) == 2);
    report->status = HORON_OK;
}

static void lose(const char *const *settings)
{
    for (int victim = 0; victim < RANKS; victim++) {
        struct job job;
        struct job_report report;
        job_start(&job, RANKS, settings, lose_one, &victim);
        job_wait_joined(&job);
        int failed = 0;
        for (int rank = 0; rank < RANKS; rank++)
            if (rank != victim) {
                assert_int_equal(job_report_of(&job, rank, 120000, &report), 0);
                if (report.status != HORON_OK)
                    print_error("rank %d without rank %d: %s\n", rank, victim, report.text);
                failed += report.status != HORON_OK;
            }
        assert_int_equal(job_end(&job, 60000), 0);
        assert_int_equal(failed, 0);
    }
}

static void test_lost_sets_are_those_with_the_rank(void **state)
{
    (void)state;
    lose(NULL);
}

static void test_lost_sets_are_those_with_the_rank_of_another_host(void **state)
{
    static const char *const tcp[] = {"SHM=0", NULL};
    (void)state;
    lose(tcp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_sets_are_those_with_the_rank),
        cmocka_unit_test(test_lost_sets_are_those_with_the_rank_of_another_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
