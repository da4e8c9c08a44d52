/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of four: `removed ROUNDS`. A round begins reductions in a process set of three and removes
 * it at once, when some of them are in flight on some ranks, and some make its communicator. Then
 * sets of some of the ranks reduce one after another, in peace, and are removed.
 */
#include "mpi/must.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SETS = 5, COUNT = 6, OPS = 8, PAUSE_NS = 400000 };

static const int32_t members[SETS][3] = {{0, 1, 2}, {0, 2, 3}, {0, 2}, {1, 2}, {0, 1}};
static const size_t sizes[SETS] = {3, 3, 2, 2, 2};
static char why[HORON_ERROR_TEXT_BYTES];

/* To the set's first rank, of what tells sets, rounds and ranks apart. */
static horon_request_t *reduce(horon_context_t *ctx, int32_t set, int number, int64_t *data)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    horon_request_t *request = NULL;
    char name[16];
    snprintf(name, sizeof name, "%d", number);
    desc.verb = HORON_REDUCE;
    desc.redop = HORON_MAX;
    desc.dtype = HORON_INT64;
    desc.process_set = set;
    desc.src = desc.dst = data;
    desc.count = COUNT;
    desc.name = name;
    must(horon_submit(ctx, &desc, &request), "submit", horon_last_error(ctx));
    return request;
}

static int64_t value_of(int set, int round, int rank)
{
    return (set + 1) * 1000000 + round * 1000 + rank;
}

static void check(const int64_t *data, int64_t wanted)
{
    for (int i = 0; i < COUNT; i++)
        if (data[i] != wanted) {
            fprintf(stderr, "the maximum is %lld, not %lld\n", (long long)data[i],
                    (long long)wanted);
            exit(1);
        }
}

/* @param peace  all is waited for before the set goes */
static void use(horon_context_t *ctx, int number, int round, bool peace)
{
    int64_t data[OPS][COUNT];
    horon_request_t *requests[OPS] = {NULL};
    int32_t set;
    must(horon_process_set_add(ctx, members[number], sizes[number], -1, &set), "add",
         horon_last_error(ctx));
    const int rank = horon_process_set_rank(ctx, set);
    for (int op = 0; rank >= 0 && op < OPS; op++) {
        for (int i = 0; i < COUNT; i++)
            data[op][i] = value_of(number, round, horon_rank(ctx));
        requests[op] = reduce(ctx, set, op, data[op]);
    }
    for (int op = 0; peace && rank >= 0 && op < OPS; op++) {
        must(horon_wait(requests[op], HORON_HOST_DONE, -1), "wait",
             horon_request_error(requests[op]));
        if (rank == 0)
            check(data[op], value_of(number, round, members[number][sizes[number] - 1]));
    }
    if (!peace) { /* of another length in each round, alike on all ranks */
        const struct timespec pause = {.tv_nsec = rand() % PAUSE_NS};
        nanosleep(&pause, NULL);
    }
    must(horon_process_set_remove(ctx, set, -1), "remove", horon_last_error(ctx));
    for (int op = 0; rank >= 0 && op < OPS; op++) {
        horon_wait(requests[op], HORON_HOST_DONE, -1);
        horon_release(requests[op]);
    }
}

int main(int argc, char **argv)
{
    horon_context_t *ctx = NULL;
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    barrier.name = "the end";
    must(horon_context_create(NULL, &ctx, why, sizeof why), "create", why);
    for (int round = 0; round < (argc > 1 ? atoi(argv[1]) : 1); round++)
        for (int set = 0; set < SETS; set++)
            use(ctx, set, round, set > 0);
    printf("rank %d is through\n", horon_rank(ctx));
    fflush(stdout);
    /* MPI is not ended, and a launcher may kill the others once one has exited. */
    must(horon_run(ctx, &barrier, -1, why, sizeof why), "barrier", why);
    horon_context_destroy(ctx);
    return 0;
}
