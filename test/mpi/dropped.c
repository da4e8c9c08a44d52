/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of three or more, the last of which joins the job and a process set of all but rank 0 at
 * once: `dropped ROUNDS`. The others sum in both at a time, the job by MPI and the set by horon's
 * own links, which need other outputs on the last rank to drop.
 */
#include "mpi/must.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 16384, MEMBERS_MAX = 8, TEAMS = 2 };

static const float given[TEAMS] = {1, 1000};
static char why[HORON_ERROR_TEXT_BYTES];

static void wait_for(horon_request_t *requests[TEAMS])
{
    for (int team = 0; team < TEAMS; team++) {
        if (!requests[team])
            continue;
        must(horon_wait(requests[team], HORON_HOST_DONE, -1), "wait",
             horon_request_error(requests[team]));
        horon_release(requests[team]);
    }
}

/* @param teams [TEAMS] ids; -1: this rank is not in it. @param givers of each */
static void sum(horon_context_t *ctx, const int32_t *teams, const int *givers)
{
    static float data[TEAMS][COUNT];
    horon_request_t *requests[TEAMS] = {NULL};
    for (int team = 0; team < TEAMS; team++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        for (int i = 0; i < COUNT; i++)
            data[team][i] = given[team];
        desc.verb = HORON_ALLREDUCE;
        desc.process_set = teams[team];
        desc.dtype = HORON_FLOAT32;
        desc.redop = HORON_SUM;
        desc.src = desc.dst = data[team];
        desc.count = COUNT;
        desc.name = "both";
        if (teams[team] >= 0)
            must(horon_submit(ctx, &desc, &requests[team]), "submit", horon_last_error(ctx));
    }
    wait_for(requests);
    for (int team = 0; team < TEAMS; team++)
        for (int i = 0; i < COUNT && teams[team] >= 0; i++)
            if (data[team][i] != given[team] * (float)givers[team]) {
                fprintf(stderr, "element %d of team %d is %g\n", i, team, (double)data[team][i]);
                exit(1);
            }
}

int main(int argc, char **argv)
{
    horon_context_t *ctx = NULL;
    horon_request_t *joins[TEAMS] = {NULL};
    horon_process_set_options_t options = HORON_PROCESS_SET_OPTIONS_INIT;
    int32_t members[MEMBERS_MAX], teams[TEAMS] = {0};
    must(horon_context_create(NULL, &ctx, why, sizeof why), "create", why);
    const int rank = horon_rank(ctx), size = horon_size(ctx);
    const int givers[TEAMS] = {size - 1, size - 2};
    for (int other = 1; other < size; other++)
        members[other - 1] = other;
    options.backend = "native";
    must(horon_process_set_add_with(ctx, members, (size_t)size - 1, &options, -1, &teams[1]), "add",
         horon_last_error(ctx));
    teams[1] = rank > 0 ? teams[1] : -1;
    for (int round = 0; rank < size - 1 && round < (argc > 1 ? atoi(argv[1]) : 1); round++)
        sum(ctx, teams, givers);
    for (int team = 0; team < TEAMS; team++)
        if (teams[team] >= 0)
            must(horon_join(ctx, teams[team], &joins[team]), "join", horon_last_error(ctx));
    wait_for(joins);
    printf("rank %d is through\n", rank);
    horon_context_destroy(ctx);
    return 0;
}
