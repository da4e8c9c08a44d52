/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Binomial broadcast: at each stage the ranks that have the vector send it on, and are twice as
 * many then; the largest part of the tree starts first. Numbers are relative to the root. ceil(log2
 * N) stages; the root sends at each, S bytes: for few bytes. Of many, the chain
 * (broadcast_chain.c) sends them once.
 *
 *      N = 5:  stage 0   0 -> 1;   1   0 -> 2, 1 -> 3;   2   0 -> 4
 *
 * The smallest distance comes first: where ranks share cores, neighbours are on different ones as a
 * rule, and the one that has received sends on while root sends to the next. One at a distance of a
 * power of two is likely to be on root's core, and waits until root is through.
 *
 * A long vector is cut into chunks by the caller; chunk k + 1 enters a stage while k is in the
 * next.
 */
#include "plan/plan_internal.h"

#include <assert.h>

static int broadcast_stages(const struct horon_plan_args *args)
{
    int stages = 0;
    while (((int64_t)1 << stages) < args->size)
        stages++;
    return stages;
}

static uint64_t broadcast_scratch(const struct horon_plan_args *args)
{
    (void)args;
    return 0;
}

static void broadcast_limits(const struct horon_plan_args *args, uint32_t *moves_out,
                             uint32_t *combines_out)
{
    (void)args;
    *moves_out = 1;
    *combines_out = 0;
}

static struct horon_plan_stage broadcast_stage(const struct horon_plan_args *args, int stage,
                                               struct horon_plan_move *moves,
                                               struct horon_plan_combine *combines)
{
    (void)combines;
    const struct horon_plan_place work = horon_plan_work(0);
    const int64_t distance = (int64_t)1 << stage;
    const int64_t number = (args->rank - args->root + args->size) % args->size;
    struct horon_plan_stage out = {0};
    if (number < distance && number + distance < args->size) {
        const int to = (int)((number + distance + args->root) % args->size);
        horon_plan_add_move(&out, moves, stage, to, true, work, args->count);
    } else if (number >= distance && number < 2 * distance) {
        const int from = (int)((number - distance + args->root) % args->size);
        horon_plan_add_move(&out, moves, stage, from, false, work, args->count);
    }
    return out;
}

const struct horon_plan_ops horon_plan_broadcast = {
    .name = "doubling",
    .stages = broadcast_stages,
    .scratch = broadcast_scratch,
    .limits = broadcast_limits,
    .stage = broadcast_stage,
};
