/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of four or more whose process sets overlap: `sets ROUNDS [BACKEND [made]]`, which is that
 * of the sets; these are made already if it says so, by a setting. It sums by name and in order on
 * all that it is in at once, begun in an order of its own where names allow it, and checks what
 * comes out; removes the sets; and then joins, each rank after as many sums more as its number.
 */
#include "mpi/must.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETS = 3, MEMBERS = 3, COUNT = 1009, SMALL = 3 };

static const int32_t members[SETS][MEMBERS] = {{0, 1, 2}, {1, 2, 3}, {0, 2, 3}};

static char why[HORON_ERROR_TEXT_BYTES];

static horon_descriptor_t sum_of(int32_t set, float *data, uint64_t count, const char *name)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.process_set = set;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.src = desc.dst = data;
    desc.count = count;
    desc.name = name;
    return desc;
}

static void fill(float *data, uint64_t count, int rank)
{
    for (uint64_t i = 0; i < count; i++)
        data[i] = (float)(rank + 1) + (float)(i % 7);
}

/* @param ranks  how many gave, @p sum of their numbers, each plus one */
static void check(const float *data, uint64_t count, int ranks, int sum)
{
    for (uint64_t i = 0; i < count; i++)
        if (data[i] != (float)sum + (float)ranks * (float)(i % 7)) {
            fprintf(stderr, "element %d is %g\n", (int)i, (double)data[i]);
            exit(1);
        }
}

static void sum_at_once(horon_context_t *ctx, const int32_t *ids, int round)
{
    static float data[SETS][COUNT];
    horon_request_t *requests[SETS] = {NULL};
    const int rank = horon_rank(ctx);
    char name[32];
    snprintf(name, sizeof name, "round %d", round % 5);
    for (int i = 0; i < SETS; i++) {
        const int set = (i + rank + round) % SETS;
        if (horon_process_set_rank(ctx, ids[set]) < 0)
            continue;
        fill(data[set], COUNT, rank);
        const horon_descriptor_t desc = sum_of(ids[set], data[set], COUNT, name);
        must(horon_submit(ctx, &desc, &requests[set]), "submit", horon_last_error(ctx));
    }
    for (int set = 0; set < SETS; set++) {
        if (!requests[set])
            continue;
        must(horon_wait(requests[set], HORON_HOST_DONE, -1), "wait",
             horon_request_error(requests[set]));
        horon_release(requests[set]);
        int sum = 0;
        for (int i = 0; i < MEMBERS; i++)
            sum += members[set][i] + 1;
        check(data[set], COUNT, MEMBERS, sum);
    }
}

static void sum_in_order(horon_context_t *ctx, const int32_t *ids)
{
    float data[SMALL];
    for (int set = 0; set < SETS; set++) {
        int sum = 0;
        for (int i = 0; i < MEMBERS; i++)
            sum += members[set][i] + 1;
        if (horon_process_set_rank(ctx, ids[set]) < 0)
            continue;
        fill(data, SMALL, horon_rank(ctx));
        horon_descriptor_t desc = sum_of(ids[set], data, SMALL, NULL);
        desc.flags = HORON_IN_ORDER;
        must(horon_run(ctx, &desc, -1, why, sizeof why), "run", why);
        check(data, SMALL, MEMBERS, sum);
    }
}

/* Of what round there is only the number of ranks left, the highest ones. */
static void join(horon_context_t *ctx)
{
    static float data[COUNT];
    const int rank = horon_rank(ctx), size = horon_size(ctx);
    horon_request_t *joined = NULL;
    for (int round = 0; round < rank; round++) {
        int sum = 0;
        char name[32];
        for (int other = round + 1; other < size; other++)
            sum += other + 1;
        snprintf(name, sizeof name, "left %d", round);
        fill(data, COUNT, rank);
        const horon_descriptor_t desc = sum_of(0, data, COUNT, name);
        must(horon_run(ctx, &desc, -1, why, sizeof why), "left", why);
        check(data, COUNT, size - 1 - round, sum);
    }
    must(horon_join(ctx, 0, &joined), "join", horon_last_error(ctx));
    must(horon_wait(joined, HORON_HOST_DONE, -1), "joined", horon_request_error(joined));
    if (horon_join_last(joined) != size - 1)
        must(HORON_ERR_INVALID, "the last to join", "is another rank");
    horon_release(joined);
}

int main(int argc, char **argv)
{
    horon_context_t *ctx = NULL;
    int32_t ids[SETS];
    horon_process_set_options_t options = HORON_PROCESS_SET_OPTIONS_INIT;
    options.backend = argc > 2 ? argv[2] : NULL;
    const bool made = argc > 3;
    must(horon_context_create(NULL, &ctx, why, sizeof why), "create", why);
    for (int set = 0; set < SETS; set++)
        ids[set] = set + 1;
    for (int set = 0; set < SETS && !made; set++)
        must(horon_process_set_add_with(ctx, members[set], MEMBERS, &options, -1, &ids[set]), "add",
             horon_last_error(ctx));
    for (int round = 0; round < (argc > 1 ? atoi(argv[1]) : 1); round++) {
        sum_at_once(ctx, ids, round);
        sum_in_order(ctx, ids);
    }
    for (int set = 0; set < SETS && argc > 2; set++) {
        const horon_descriptor_t desc = sum_of(ids[set], NULL, 1, "x");
        const char *by = horon_carrier(ctx, &desc);
        if (horon_process_set_rank(ctx, ids[set]) >= 0 && (!by || strcmp(by, argv[2]) != 0))
            must(HORON_ERR_INVALID, "a set's sums are carried by", by ? by : "none");
    }
    for (int set = 0; set < SETS; set++)
        must(horon_process_set_remove(ctx, ids[set], -1), "remove", horon_last_error(ctx));
    join(ctx);
    printf("rank %d is through\n", horon_rank(ctx));
    horon_context_destroy(ctx);
    return 0;
}
