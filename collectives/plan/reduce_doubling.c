/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce up the tree, for few bytes among many: recursive doubling (doubling.c), of which each pair
 * does only the half that leads to root. N = 2^a * m, m odd: participant r is number i = r mod 2^a
 * of block b = r / 2^a. In a block the partner that differs from root's number in the lower bit
 * sends all that it has summed, and is done; those of root's number then send to root.
 *
 *      N = 6, root 3:  stage 0   0 -> 1, 2 -> 3, 4 -> 5
 *                      1         1 -> 3, 5 -> 3:  ((0+1) + (2+3)) + (4+5)
 *
 * a + (m > 1 ? 1 : 0) stages. A participant sends one message, of S bytes; root receives
 * a + m - 1 of them, where flat (reduce_flat.c) has N - 1 in one stage.
 *
 * Sums lie in SCRATCH, where the partner's came, a piece of S for each stage; root's last combine
 * alone writes WORK.
 */
#include "plan/plan_internal.h"

#include <assert.h>

/* By which bits its number in its block differs from root's. */
static int distance_of(const struct horon_plan_args *args)
{
    return (args->rank ^ args->root) & (horon_plan_block(args->size) - 1);
}

static int blocks_of(const struct horon_plan_args *args)
{
    return args->size / horon_plan_block(args->size);
}

static int reduce_doubling_stages(const struct horon_plan_args *args)
{
    return horon_plan_levels(args->size) + (blocks_of(args) > 1 ? 1 : 0);
}

/* Stages in which it receives from a partner, the first ones. */
static int levels_of(const struct horon_plan_args *args)
{
    int levels = 0;
    while (levels < horon_plan_levels(args->size) && !(distance_of(args) >> levels & 1))
        levels++;
    return levels;
}

static uint64_t reduce_doubling_scratch(const struct horon_plan_args *args)
{
    const int others = args->rank == args->root ? blocks_of(args) - 1 : 0;
    return (uint64_t)(levels_of(args) + others) * args->count;
}

static void reduce_doubling_limits(const struct horon_plan_args *args, uint32_t *moves_out,
                                   uint32_t *combines_out)
{
    const uint32_t peers = blocks_of(args) > 2 ? (uint32_t)blocks_of(args) - 1 : 1;
    *moves_out = *combines_out = peers;
}

/* Where the sum lies that @p level stages have made. */
static struct horon_plan_place sum_after(const struct horon_plan_args *args, int level)
{
    if (level == 0)
        return horon_plan_work(0);
    return (struct horon_plan_place){.region = HORON_PLAN_SCRATCH,
                                     .offset = (uint64_t)(level - 1) * args->count};
}

/* Gets the sums of @p count participants, whose numbers differ by @p width, of which this is number
 * @p mine. */
static void gather(const struct horon_plan_args *args, int stage, int width, int count, int mine,
                   struct horon_plan_stage *out, struct horon_plan_move *moves,
                   struct horon_plan_combine *combines)
{
    const bool last = stage + 1 == reduce_doubling_stages(args) && args->rank == args->root;
    const struct horon_plan_leaves leaves = {.own_leaf = mine,
                                             .own = sum_after(args, stage),
                                             .scratch = (uint64_t)stage * args->count,
                                             .count = args->count};
    for (int from = 0; from < count; from++)
        if (from != mine)
            horon_plan_add_move(out, moves, stage, args->rank + (from - mine) * width, false,
                                horon_plan_leaf(&leaves, from), args->count);
    horon_plan_add_tree(out, combines, count, sum_after(args, last ? 0 : stage + 1), &leaves);
}

static struct horon_plan_stage reduce_doubling_stage(const struct horon_plan_args *args, int stage,
                                                     struct horon_plan_move *moves,
                                                     struct horon_plan_combine *combines)
{
    const int block = horon_plan_block(args->size), width = 1 << stage;
    const int distance = distance_of(args);
    struct horon_plan_stage out = {0};
    assert(width <= block);
    if (distance & (width - 1))
        return out; /* it has sent what it had */
    const int pair = args->rank ^ width, to = width < block ? pair : args->root;
    const bool receives = width < block ? !(distance & width) : args->rank == args->root;
    if (!receives)
        horon_plan_add_move(&out, moves, stage, to, true, sum_after(args, stage), args->count);
    else if (width < block)
        gather(args, stage, width, 2, args->rank >> stage & 1, &out, moves, combines);
    else
        gather(args, stage, block, blocks_of(args), args->rank / block, &out, moves, combines);
    return out;
}

const struct horon_plan_ops horon_plan_reduce_doubling = {
    .name = "doubling",
    .stages = reduce_doubling_stages,
    .scratch = reduce_doubling_scratch,
    .limits = reduce_doubling_limits,
    .stage = reduce_doubling_stage,
};
