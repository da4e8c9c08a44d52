/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct allgather: everybody sends its block to everybody. One stage, N - 1 messages each way;
 * nobody sends or receives a byte that it must not. Blocks have any sizes, 0 included.
 *
 *      blocks    a b c d e
 *            0:  A . . . .   --A--> 1 2 3 4
 *            1:  . B . . .   --B--> 2 3 4 0     (each begins with its right neighbour,
 *            ...                                 so that not all talk to one)
 */
#include "plan/plan_internal.h"

#include <assert.h>

static int gather_all_stages(const struct horon_plan_args *args)
{
    (void)args;
    return 1;
}

static uint64_t gather_all_scratch(const struct horon_plan_args *args)
{
    (void)args;
    return 0;
}

static void gather_all_limits(const struct horon_plan_args *args, uint32_t *moves_out,
                              uint32_t *combines_out)
{
    *moves_out = 2 * (uint32_t)(args->size - 1);
    *combines_out = 0;
}

static void block_move(const struct horon_plan_args *args, struct horon_plan_stage *out,
                       struct horon_plan_move *moves, int peer, bool is_send)
{
    const int block = is_send ? args->rank : peer;
    assert(args->bounds[block] <= args->bounds[block + 1]);
    const struct horon_plan_place place = {.region = HORON_PLAN_WORK,
                                           .offset = args->bounds[block]};
    horon_plan_add_move(out, moves, 0, peer, is_send, place,
                        args->bounds[block + 1] - args->bounds[block]);
}

static struct horon_plan_stage gather_all_stage(const struct horon_plan_args *args, int stage,
                                                struct horon_plan_move *moves,
                                                struct horon_plan_combine *combines)
{
    (void)stage;
    (void)combines;
    struct horon_plan_stage out = {0};
    for (int i = 1; i < args->size; i++) {
        block_move(args, &out, moves, (args->rank + args->size - i) % args->size, false);
        block_move(args, &out, moves, (args->rank + i) % args->size, true);
    }
    return out;
}

const struct horon_plan_ops horon_plan_gather_all = {
    .name = "gather_all",
    .stages = gather_all_stages,
    .scratch = gather_all_scratch,
    .limits = gather_all_limits,
    .stage = gather_all_stage,
};
