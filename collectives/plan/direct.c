/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct allreduce: the vector is cut into N ranges; participant r owns range r, gets it from
 * everybody, reduces it along the tree and sends the result to everybody. Two stages, 2(N - 1)
 * messages of S/N bytes: 2S(N - 1)/N bytes each way, the bound.
 *
 *      ranges        a  b  c  d  e                 a  b  c  d  e
 *      stage 0   0: [A] >  >  >  >     stage 1  0: A> <b <c <d <e
 *                1:  > [B] >  >  >              1: <a B> <c <d <e
 *                2:  >  > [C] >  >              ...
 *
 * All have sent to r before r writes its range of WORK, and r's result tells that to the others.
 */
#include "plan/plan_internal.h"

static int direct_stages(const struct horon_plan_args *args)
{
    (void)args;
    return 2;
}

static uint64_t direct_scratch(const struct horon_plan_args *args)
{
    return (uint64_t)(args->size - 1) * horon_plan_part(args->count, args->size, args->rank).count;
}

static void direct_limits(const struct horon_plan_args *args, uint32_t *moves_out,
                          uint32_t *combines_out)
{
    *moves_out = 2 * (uint32_t)(args->size - 1);
    *combines_out = (uint32_t)(args->size - 1);
}

static struct horon_plan_stage direct_stage(const struct horon_plan_args *args, int stage,
                                            struct horon_plan_move *moves,
                                            struct horon_plan_combine *combines)
{
    const struct horon_plan_range own = horon_plan_part(args->count, args->size, args->rank);
    const struct horon_plan_leaves leaves = {
        .own_leaf = args->rank, .own = horon_plan_work(own.begin), .count = own.count};
    struct horon_plan_stage out = {0};
    for (int i = 1; i < args->size; i++) {
        const int to = (args->rank + i) % args->size;
        const int from = (args->rank + args->size - i) % args->size;
        const struct horon_plan_range theirs = horon_plan_part(args->count, args->size, to);
        const struct horon_plan_range given = horon_plan_part(args->count, args->size, from);
        if (stage == 0) {
            horon_plan_add_move(&out, moves, stage, from, false, horon_plan_leaf(&leaves, from),
                                own.count);
            horon_plan_add_move(&out, moves, stage, to, true, horon_plan_work(theirs.begin),
                                theirs.count);
        } else {
            horon_plan_add_move(&out, moves, stage, from, false, horon_plan_work(given.begin),
                                given.count);
            horon_plan_add_move(&out, moves, stage, to, true, horon_plan_work(own.begin),
                                own.count);
        }
    }
    if (stage == 0)
        horon_plan_add_tree(&out, combines, args->size, horon_plan_work(own.begin), &leaves);
    return out;
}

const struct horon_plan_ops horon_plan_direct = {
    .name = "direct",
    .stages = direct_stages,
    .scratch = direct_scratch,
    .limits = direct_limits,
    .stage = direct_stage,
};
