/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pure schedules of an exchange among `size` participants over one contiguous vector of `count`
 * elements: what participant `rank` sends, receives and combines at each stage. No memory, no
 * peers.
 *
 * A plan is a list of stages. In a stage all receives and sends may go at once; when they are done
 * its combines run in order; then the next stage. Ranges are elements. Memory is named by region:
 * WORK is the participant's vector [count] (input, and the result in the end), SCRATCH is
 * [scratch_count]. Moves of 0 elements are in the list like others: they are how participants meet.
 *
 * Reductions keep the canonical tree over participants, left and right as drawn here for
 * 6 = 2^1 * 3, so that all plans give the same bits: blocks of 2^a pairwise, then the m blocks in
 * order.
 *
 *          ((0+1) + (2+3)) + (4+5)
 *
 * Promises of every allreduce and reduce plan:
 *  - WORK is written only after all participants are known to have entered: until then partial sums
 *    are in SCRATCH, so a failure for want of a participant leaves the input whole. A reduce plan
 *    writes it at root only: the others may give what they may not write.
 *  - The receives of stage s + 1 may be posted as soon as stage s begins: what they are written
 *    over is not read in stage s after their data can have come, since that data is made of what
 *    the stages before sent out.
 */
#ifndef HORON_PLAN_PLAN_H
#define HORON_PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum horon_plan_kind {
    HORON_PLAN_FLAT,     /* allreduce: everybody sends all to everybody, reduces locally; 1 stage */
    HORON_PLAN_DOUBLING, /* allreduce: recursive doubling, flat among the m; log stages */
    HORON_PLAN_DIRECT,   /* allreduce: direct reduce-scatter, direct allgather; 2 stages */
    HORON_PLAN_HALVING,  /* allreduce: recursive halving over powers of two, direct among the m */
    /* broadcast, from `root`; promises local completion only */
    HORON_PLAN_BROADCAST,       /* down a binomial tree; log stages */
    HORON_PLAN_BROADCAST_CHAIN, /* from one to the next, piece after piece */
    /* reduce, to `root`; promises local completion only */
    HORON_PLAN_REDUCE_FLAT,     /* everybody sends all to root, which reduces; 1 stage */
    HORON_PLAN_REDUCE_DOUBLING, /* up the tree, one message of each; log stages */
    HORON_PLAN_REDUCE_DIRECT    /* direct reduce-scatter, gathered at root; 2 stages */
};
#define HORON_PLAN_KIND_COUNT 9

/** Which participants give, and which get. */
enum horon_plan_way { HORON_PLAN_TO_ALL, HORON_PLAN_TO_ROOT, HORON_PLAN_FROM_ROOT };

enum horon_plan_region { HORON_PLAN_WORK, HORON_PLAN_SCRATCH };

struct horon_plan_move {
    int peer;
    bool is_send;
    uint8_t region; /* enum horon_plan_region */
    uint64_t offset, count;
    uint32_t stage; /* the same number on both sides, < 2^16: part of the tag. One move a stage,
                       peer and direction */
};

/** result = op(left, right); the result may lie where left or right does, else is apart. */
struct horon_plan_combine {
    uint8_t left_region, right_region, result_region;
    uint64_t left, right, result, count;
};

struct horon_plan_stage {
    uint32_t move_count, combine_count;
};

struct horon_plan_args {
    enum horon_plan_kind kind;
    int rank, size; /* among the participants */
    int root;       /* BROADCAST*, REDUCE_* */
    uint64_t count;
};

/** Stages, the same for all participants; 0 if there is only one. A stage may be empty here. */
int horon_plan_stages(const struct horon_plan_args *args);
/** Elements of scratch the plan needs on this participant. */
uint64_t horon_plan_scratch(const struct horon_plan_args *args);
/** How big the arrays for any one stage must be. */
void horon_plan_limits(const struct horon_plan_args *args, uint32_t *moves_max_out,
                       uint32_t *combines_max_out);
/** Writes stage @p stage, 0..stages-1, into the arrays. All combines of a stage have one count. */
struct horon_plan_stage horon_plan_stage(const struct horon_plan_args *args, int stage,
                                         struct horon_plan_move *moves,
                                         struct horon_plan_combine *combines);

/**
 * The plan that should take the least time: startup + bytes/bandwidth, see plan.c. All participants
 * must ask with the same values.
 * @param wanted "flat", "doubling", "direct", "halving" or "chain" to have that, where there is
 * one; "auto" or anything else: the model's
 * @param way TO_ALL: an allreduce; TO_ROOT: a reduce; FROM_ROOT: a broadcast
 * @param crowded participants share cores
 */
enum horon_plan_kind horon_plan_choose(const char *wanted, enum horon_plan_way way, int size,
                                       uint64_t bytes, bool crowded);
/** What the model thinks it takes, in microseconds. */
double horon_plan_estimate_us(enum horon_plan_kind kind, int size, uint64_t bytes, bool crowded);

#endif
