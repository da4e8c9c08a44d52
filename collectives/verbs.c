/* SPDX-License-Identifier: Apache-2.0 */
/* One row a verb. */
#include "verbs.h"

#include <string.h>

const struct horon_verb_row horon_verb_rows[HORON_VERB_COUNT] = {
    [HORON_ALLREDUCE] =
        {
            .name = "allreduce",
            .agrees = HORON_AGREES_DTYPE | HORON_AGREES_ROWS | HORON_AGREES_SHAPE |
                      HORON_AGREES_REDUCTION,
            .reads = HORON_RANKS_ALL,
            .writes = HORON_RANKS_ALL,
            .joined = HORON_JOINED_NEUTRAL,
            .fusable = true,
        },
    [HORON_BROADCAST] =
        {
            .name = "broadcast",
            .agrees =
                HORON_AGREES_DTYPE | HORON_AGREES_ROWS | HORON_AGREES_SHAPE | HORON_AGREES_ROOT,
            .reads = HORON_RANKS_ROOT,
            .writes = HORON_RANKS_ALL,
            .joined = HORON_JOINED_NOTHING,
            .recipe = HORON_RECIPE_BYTES,
            .made_of = HORON_ALLREDUCE,
            .fusable = true,
        },
    [HORON_ALLGATHER] =
        {
            .name = "allgather",
            .agrees = HORON_AGREES_DTYPE | HORON_AGREES_SHAPE,
            .reads = HORON_RANKS_ALL,
            .writes = HORON_RANKS_ALL,
            .ahead = HORON_AHEAD_ROWS,
            .joined = HORON_JOINED_NO_ROWS,
            .recipe = HORON_RECIPE_ROUNDS,
            .made_of = HORON_BROADCAST,
        },
    [HORON_ALLTOALL] =
        {
            .name = "alltoall",
            .agrees = HORON_AGREES_DTYPE | HORON_AGREES_SHAPE,
            .reads = HORON_RANKS_ALL,
            .writes = HORON_RANKS_ALL,
            .ahead = HORON_AHEAD_SPLITS,
            .joined = HORON_JOINED_NO_ROWS,
            .recipe = HORON_RECIPE_ROUNDS,
            .made_of = HORON_BROADCAST,
            .apart = true,
        },
    [HORON_GATHER] =
        {
            .name = "gather",
            .agrees = HORON_AGREES_DTYPE | HORON_AGREES_SHAPE | HORON_AGREES_ROOT,
            .reads = HORON_RANKS_ALL,
            .writes = HORON_RANKS_ROOT,
            .ahead = HORON_AHEAD_ROWS,
            .joined = HORON_JOINED_NO_ROWS,
            .recipe = HORON_RECIPE_ROUNDS,
            .made_of = HORON_BROADCAST,
        },
    [HORON_SCATTER] =
        {
            .name = "scatter",
            .agrees = HORON_AGREES_DTYPE | HORON_AGREES_SHAPE | HORON_AGREES_ROOT,
            .reads = HORON_RANKS_ROOT,
            .writes = HORON_RANKS_ALL,
            .ahead = HORON_AHEAD_SPLITS,
            .joined = HORON_JOINED_NO_ROWS,
            .recipe = HORON_RECIPE_ROUNDS,
            .made_of = HORON_BROADCAST,
            .uneven = true,
        },
    [HORON_BARRIER] =
        {
            .name = "barrier",
            .joined = HORON_JOINED_NOTHING,
            .recipe = HORON_RECIPE_NOTHING,
            .made_of = HORON_ALLREDUCE,
            .unnamed = "horon.barrier.",
        },
    [HORON_REDUCESCATTER] =
        {
            .name = "reducescatter",
            .agrees = HORON_AGREES_DTYPE | HORON_AGREES_ROWS | HORON_AGREES_SHAPE |
                      HORON_AGREES_REDUCTION | HORON_AGREES_SPLITS,
            .reads = HORON_RANKS_ALL,
            .writes = HORON_RANKS_ALL,
            .joined = HORON_JOINED_NEUTRAL,
            .recipe = HORON_RECIPE_WHOLE,
            .made_of = HORON_ALLREDUCE,
        },
    [HORON_REDUCE] =
        {
            .name = "reduce",
            .agrees = HORON_AGREES_DTYPE | HORON_AGREES_ROWS | HORON_AGREES_SHAPE |
                      HORON_AGREES_REDUCTION | HORON_AGREES_ROOT,
            .reads = HORON_RANKS_ALL,
            .writes = HORON_RANKS_ROOT,
            .joined = HORON_JOINED_NEUTRAL,
            .recipe = HORON_RECIPE_WHOLE,
            .made_of = HORON_ALLREDUCE,
            .fusable = true,
        },
    [HORON_SEND] =
        {
            .name = "send",
            .agrees =
                HORON_AGREES_DTYPE | HORON_AGREES_ROWS | HORON_AGREES_SHAPE | HORON_AGREES_ROOT,
            .reads = HORON_RANKS_ALL,
            .paired = true,
        },
    [HORON_RECV] =
        {
            .name = "recv",
            .agrees =
                HORON_AGREES_DTYPE | HORON_AGREES_ROWS | HORON_AGREES_SHAPE | HORON_AGREES_ROOT,
            .writes = HORON_RANKS_ALL,
            .paired = true,
        },
};

const horon_verb_t horon_verb_of_words = HORON_ALLREDUCE;
const horon_verb_t horon_verb_of_meetings = HORON_ALLGATHER;

const struct horon_verb_row *horon_verb_reserves(const char *name)
{
    for (int verb = 0; verb < HORON_VERB_COUNT; verb++) {
        const struct horon_verb_row *row = &horon_verb_rows[verb];
        if (row->unnamed && strncmp(name, row->unnamed, strlen(row->unnamed)) == 0)
            return row;
    }
    return NULL;
}

const char *horon_verb_name(horon_verb_t verb)
{
    return (unsigned)verb < HORON_VERB_COUNT ? horon_verb_rows[verb].name : "unknown";
}
