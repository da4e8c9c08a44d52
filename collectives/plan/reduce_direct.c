/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct reduce, for many bytes: the vector is cut into N - 1 ranges, one for each participant but
 * root; its owner gets it from everybody, reduces it along the tree and sends the result to root.
 *
 *      N = 4, root 1;  ranges          a  b  c
 *      stage 0     0 owns a, gets      a  .  .   of 1, 2, 3
 *                  2      b            .  b  .   of 0, 1, 3
 *                  3      c            .  .  c   of 0, 1, 2
 *      stage 1     1 gets              a  b  c
 *
 * Two stages. A participant but root sends S(N - 2)/(N - 1) bytes to the other owners and S/(N - 1)
 * to root, S in all, and receives S; root sends S and receives S. No plan can do with less in one
 * direction, since each must give all that it has, and root get all of the result. If root owned
 * one of N ranges, it would receive 2S(N - 1)/N. Of two, flat (reduce_flat.c) does the same in one
 * stage.
 *
 * Only root writes WORK, and what it gets is made of something from everybody.
 */
#include "plan/plan_internal.h"

#include <assert.h>

static int reduce_direct_stages(const struct horon_plan_args *args)
{
    (void)args;
    return 2;
}

/* What @p rank, which is not root, owns. */
static struct horon_plan_range range_of(const struct horon_plan_args *args, int rank)
{
    assert(rank != args->root);
    return horon_plan_part(args->count, args->size - 1, rank < args->root ? rank : rank - 1);
}

static uint64_t reduce_direct_scratch(const struct horon_plan_args *args)
{
    if (args->rank == args->root)
        return 0;
    return (uint64_t)(args->size - 1) * range_of(args, args->rank).count;
}

static void reduce_direct_limits(const struct horon_plan_args *args, uint32_t *moves_out,
                                 uint32_t *combines_out)
{
    *moves_out = 2 * (uint32_t)(args->size - 1);
    *combines_out = (uint32_t)(args->size - 1);
}

/* Everybody gives all owners what is theirs. */
static void share(const struct horon_plan_args *args, struct horon_plan_stage *out,
                  struct horon_plan_move *moves)
{
    for (int i = 1; i < args->size; i++) {
        const int to = (args->rank + i) % args->size;
        if (to == args->root)
            continue;
        const struct horon_plan_range theirs = range_of(args, to);
        horon_plan_add_move(out, moves, 0, to, true, horon_plan_work(theirs.begin), theirs.count);
    }
}

/* An owner gets its range of everybody, and sends root what it makes of it. */
static void own(const struct horon_plan_args *args, int stage, struct horon_plan_stage *out,
                struct horon_plan_move *moves, struct horon_plan_combine *combines)
{
    const struct horon_plan_place sum = {.region = HORON_PLAN_SCRATCH, .offset = 0};
    const struct horon_plan_range range = range_of(args, args->rank);
    const struct horon_plan_leaves leaves = {
        .own_leaf = args->rank, .own = horon_plan_work(range.begin), .count = range.count};
    if (stage == 1) {
        horon_plan_add_move(out, moves, stage, args->root, true, sum, range.count);
        return;
    }
    for (int i = 1; i < args->size; i++) {
        const int from = (args->rank + args->size - i) % args->size;
        horon_plan_add_move(out, moves, stage, from, false, horon_plan_leaf(&leaves, from),
                            range.count);
    }
    horon_plan_add_tree(out, combines, args->size, sum, &leaves);
}

static struct horon_plan_stage reduce_direct_stage(const struct horon_plan_args *args, int stage,
                                                   struct horon_plan_move *moves,
                                                   struct horon_plan_combine *combines)
{
    struct horon_plan_stage out = {0};
    if (stage == 0)
        share(args, &out, moves);
    if (args->rank != args->root)
        own(args, stage, &out, moves, combines);
    for (int from = 0; stage == 1 && args->rank == args->root && from < args->size; from++) {
        if (from == args->root)
            continue;
        const struct horon_plan_range range = range_of(args, from);
        horon_plan_add_move(&out, moves, stage, from, false, horon_plan_work(range.begin),
                            range.count);
    }
    return out;
}

const struct horon_plan_ops horon_plan_reduce_direct = {
    .name = "direct",
    .stages = reduce_direct_stages,
    .scratch = reduce_direct_scratch,
    .limits = reduce_direct_limits,
    .stage = reduce_direct_stage,
};
