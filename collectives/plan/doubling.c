/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recursive doubling, for few bytes among many: in each stage a participant exchanges the whole of
 * what it has summed with one partner, so that all sum all. N = 2^a * m, m odd: participant r is
 * number i = r mod 2^a of block b = r / 2^a.
 *
 *      N = 6:  stage 0   0-1 2-3 4-5 exchange a vector and add: each has the sum of two
 *              1         0-2-4 and 1-3-5 exchange that, all with all, and add in order
 *
 * a + (m > 1 ? 1 : 0) stages, a + m - 1 messages of S bytes each way. Of a power of two that is
 * log2(N) messages, where flat (flat.c) has N - 1 in one stage.
 *
 * The sum of a stage lies in SCRATCH, where the partner's vector came, a piece of S for each stage;
 * the last combine writes WORK: by then what has come was made of something from everybody.
 */
#include "plan/plan_internal.h"

#include <assert.h>

static int blocks_of(int size)
{
    return size / horon_plan_block(size);
}

/* Where the sum lies that @p level stages have made. */
static struct horon_plan_place sum_after(const struct horon_plan_args *args, int level)
{
    if (level == 0)
        return horon_plan_work(0);
    return (struct horon_plan_place){.region = HORON_PLAN_SCRATCH,
                                     .offset = (uint64_t)(level - 1) * args->count};
}

static int doubling_stages(const struct horon_plan_args *args)
{
    return horon_plan_levels(args->size) + (blocks_of(args->size) > 1 ? 1 : 0);
}

static uint64_t doubling_scratch(const struct horon_plan_args *args)
{
    return (uint64_t)(horon_plan_levels(args->size) + blocks_of(args->size) - 1) * args->count;
}

static void doubling_limits(const struct horon_plan_args *args, uint32_t *moves_out,
                            uint32_t *combines_out)
{
    const uint32_t peers = blocks_of(args->size) > 2 ? (uint32_t)blocks_of(args->size) - 1 : 1;
    *moves_out = 2 * peers;
    *combines_out = peers;
}

/* All with all among the @p width-th neighbours: @p count of them, of which this is number @p mine.
 * With two it is a pair of a block, with m the blocks. */
static void exchange(const struct horon_plan_args *args, int level, int width, int count, int mine,
                     struct horon_plan_stage *out, struct horon_plan_move *moves,
                     struct horon_plan_combine *combines)
{
    const bool last = level + 1 == doubling_stages(args);
    const struct horon_plan_place sum = sum_after(args, level), result = sum_after(args, level + 1);
    const struct horon_plan_leaves leaves = {.own_leaf = mine,
                                             .own = sum,
                                             .scratch = (uint64_t)level * args->count,
                                             .count = args->count};
    for (int i = 1; i < count; i++) {
        const int to = (mine + i) % count, from = (mine + count - i) % count;
        horon_plan_add_move(out, moves, level, args->rank + (from - mine) * width, false,
                            horon_plan_leaf(&leaves, from), args->count);
        horon_plan_add_move(out, moves, level, args->rank + (to - mine) * width, true, sum,
                            args->count);
    }
    horon_plan_add_tree(out, combines, count, last ? sum_after(args, 0) : result, &leaves);
}

static struct horon_plan_stage doubling_stage(const struct horon_plan_args *args, int stage,
                                              struct horon_plan_move *moves,
                                              struct horon_plan_combine *combines)
{
    const int block = horon_plan_block(args->size), width = 1 << stage;
    struct horon_plan_stage out = {0};
    assert(width <= block);
    if (width < block)
        exchange(args, stage, width, 2, (args->rank >> stage) & 1, &out, moves, combines);
    else
        exchange(args, stage, block, blocks_of(args->size), args->rank / block, &out, moves,
                 combines);
    return out;
}

const struct horon_plan_ops horon_plan_doubling = {
    .name = "doubling",
    .stages = doubling_stages,
    .scratch = doubling_scratch,
    .limits = doubling_limits,
    .stage = doubling_stage,
};
