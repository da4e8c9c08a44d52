/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On one host the longer a run is, the longer are the windows that it moves in (pipeline.h, "early
 * chunk"). A rank whose rows fit into its slot leaves a gather before the windows of the others,
 * and has to count them later by the same measure: what comes then, of any length, is right.
 */
#undef NDEBUG
#include "multi/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3, ROOT = 0, LEAVES = 1, LIMIT_MS = 60000 };

/* Elements of 4 bytes about where a run gets a second window, more of them, and longer ones. */
static const uint64_t lengths[] = {20000, 65535, 65536, 65537, 150000, 400000, 1300000};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static int32_t value_at(uint64_t i, int rank)
{
    return (int32_t)(i * 7 + (uint64_t)rank * 1000003);
}

static int32_t *rows_of(uint64_t count, int rank)
{
    int32_t *rows = malloc((count + 1) * sizeof *rows);
    for (uint64_t i = 0; rows && i < count; i++)
        rows[i] = value_at(i, rank);
    return rows;
}

static horon_descriptor_t describe(horon_verb_t verb, int32_t *src, uint64_t count, int32_t *dst,
                                   uint64_t room)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_INT32;
    desc.root = ROOT;
    desc.src = src;
    desc.count = count;
    desc.dst = dst;
    desc.dst_count = room;
    return desc;
}

static bool are(const int32_t *rows, uint64_t count, int rank)
{
    for (uint64_t i = 0; i < count; i++)
        if (rows[i] != value_at(i, rank))
            return false;
    return true;
}

/* Rank LEAVES gives one row, the others so many. */
static void gather(horon_context_t *ctx, uint64_t length, struct job_report *report)
{
    const int rank = horon_rank(ctx);
    const uint64_t count = rank == LEAVES ? 1 : length, total = 2 * length + 1;
    int32_t *src = rows_of(count, rank), *dst = calloc(total, sizeof *dst);
    RANK_MUST(src && dst);
    const horon_descriptor_t desc = describe(HORON_GATHER, src, count, dst, total);
    RANK_MUST(horon_run(ctx, &desc, LIMIT_MS, NULL, 0) == HORON_OK);
    if (rank == ROOT)
        RANK_MUST(are(dst, length, 0) && are(dst + length, 1, LEAVES) &&
                  are(dst + length + 1, length, 2));
    free(src);
    free(dst);
}

static void broadcast(horon_context_t *ctx, uint64_t length, struct job_report *report)
{
    int32_t *data = rows_of(length, horon_rank(ctx));
    RANK_MUST(data);
    const horon_descriptor_t desc = describe(HORON_BROADCAST, data, length, data, 0);
    RANK_MUST(horon_run(ctx, &desc, LIMIT_MS, NULL, 0) == HORON_OK);
    RANK_MUST(are(data, length, ROOT));
    free(data);
}

static void all_lengths(horon_context_t *ctx, void *arg, struct job_report *report)
{
    (void)arg;
    for (int i = 0; i < 2 * LENGTHS && report->status == HORON_OK; i++) {
        gather(ctx, lengths[i % LENGTHS], report);
        if (report->status == HORON_OK)
            broadcast(ctx, lengths[i * 3 % LENGTHS], report);
    }
}

static void test_long_runs_are_counted_by_a_rank_that_left(void **state)
{
    static const char *const small_slots[] = {"SHM_CHUNK_BYTES=256k", NULL};
    (void)state;
    job_run(RANKS, NULL, all_lengths, NULL);
    job_run(RANKS, small_slots, all_lengths, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_runs_are_counted_by_a_rank_that_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
