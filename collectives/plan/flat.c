/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flat allreduce, for few bytes: everybody sends its whole vector to everybody, and all reduce the
 * same leaves along the same tree. One stage, N - 1 messages of S bytes each way.
 *
 *      0 --v0--> 1 2 3 4      then each:  (((0+1)+2)+3)+4     (5 is odd: the blocks are single)
 *      1 --v1--> 0 2 3 4 ...
 *
 * All have entered once all vectors are here, which is before WORK is written.
 */
#include "plan/plan_internal.h"

static int flat_stages(const struct horon_plan_args *args)
{
    (void)args;
    return 1;
}

static uint64_t flat_scratch(const struct horon_plan_args *args)
{
    return (uint64_t)(args->size - 1) * args->count;
}

static void flat_limits(const struct horon_plan_args *args, uint32_t *moves_out,
                        uint32_t *combines_out)
{
    *moves_out = 2 * (uint32_t)(args->size - 1);
    *combines_out = (uint32_t)(args->size - 1);
}

static struct horon_plan_stage flat_stage(const struct horon_plan_args *args, int stage,
                                          struct horon_plan_move *moves,
                                          struct horon_plan_combine *combines)
{
    const struct horon_plan_place work = horon_plan_work(0);
    const struct horon_plan_leaves leaves = {
        .own_leaf = args->rank, .own = work, .count = args->count};
    struct horon_plan_stage out = {0};
    for (int i = 1; i < args->size; i++) {
        const int to = (args->rank + i) % args->size;
        const int from = (args->rank + args->size - i) % args->size;
        horon_plan_add_move(&out, moves, stage, from, false, horon_plan_leaf(&leaves, from),
                            args->count);
        horon_plan_add_move(&out, moves, stage, to, true, work, args->count);
    }
    horon_plan_add_tree(&out, combines, args->size, work, &leaves);
    return out;
}

const struct horon_plan_ops horon_plan_flat = {
    .name = "flat",
    .stages = flat_stages,
    .scratch = flat_scratch,
    .limits = flat_limits,
    .stage = flat_stage,
};
