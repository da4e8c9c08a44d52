/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flat reduce, for few bytes or two participants: everybody sends its whole vector to root, which
 * reduces all along the tree. One stage; N - 1 messages, of S bytes, to root.
 *
 *      N = 5, root 1:  0 -v0-> 1,  2 -v2-> 1,  3 -v3-> 1,  4 -v4-> 1;  1:  (((0+1)+2)+3)+4
 *
 * A participant sends S bytes, which is the least. Root receives (N - 1) S: of two, the least.
 */
#include "plan/plan_internal.h"

static int reduce_flat_stages(const struct horon_plan_args *args)
{
    (void)args;
    return 1;
}

static uint64_t reduce_flat_scratch(const struct horon_plan_args *args)
{
    return args->rank == args->root ? (uint64_t)(args->size - 1) * args->count : 0;
}

static void reduce_flat_limits(const struct horon_plan_args *args, uint32_t *moves_out,
                               uint32_t *combines_out)
{
    *moves_out = *combines_out = (uint32_t)(args->size - 1);
}

static struct horon_plan_stage reduce_flat_stage(const struct horon_plan_args *args, int stage,
                                                 struct horon_plan_move *moves,
                                                 struct horon_plan_combine *combines)
{
    const struct horon_plan_place work = horon_plan_work(0);
    const struct horon_plan_leaves leaves = {
        .own_leaf = args->rank, .own = work, .count = args->count};
    struct horon_plan_stage out = {0};
    if (args->rank != args->root) {
        horon_plan_add_move(&out, moves, stage, args->root, true, work, args->count);
        return out;
    }
    for (int from = 0; from < args->size; from++)
        if (from != args->rank)
            horon_plan_add_move(&out, moves, stage, from, false, horon_plan_leaf(&leaves, from),
                                args->count);
    horon_plan_add_tree(&out, combines, args->size, work, &leaves);
    return out;
}

const struct horon_plan_ops horon_plan_reduce_flat = {
    .name = "flat",
    .stages = reduce_flat_stages,
    .scratch = reduce_flat_scratch,
    .limits = reduce_flat_limits,
    .stage = reduce_flat_stage,
};
