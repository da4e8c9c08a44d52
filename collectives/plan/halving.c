/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recursive halving and doubling, with a direct exchange among the blocks. N = 2^a * m, m odd:
 * participant r is number i = r mod 2^a of block b = r / 2^a.
 *
 *   halving   a stages: at stage s, partner i ^ 2^s; the range is cut in two, the lower of the
 *             pair keeps the first half; each sends the other half and combines what it gets
 *   direct    1 stage if m > 1: the m participants of number i share one range; each owns one of m
 *             parts of it, gets it from the others and combines the blocks in order; after
 *             another stage each has all m parts
 *   doubling  a stages, the halving undone: partners exchange what they have
 *
 *      N = 6:  stage 0   0-1 2-3 4-5 halve
 *              1         0-2-4 and 1-3-5 exchange and reduce thirds of a half
 *              2         0-2-4 and 1-3-5 gather
 *              3         0-1 2-3 4-5 double
 *
 * 2a + (m > 1 ? 2 : 0) stages, 2S(N - 1)/N bytes each way, the bound.
 *
 * Partial sums are in SCRATCH, one piece a halving stage: S/2, S/4, ...; what is left of the vector
 * after stage s is the piece received at stage s, combined where it lies. The last combine writes
 * WORK: by then what has come was made of something from everybody.
 */
#include "plan/plan_internal.h"

#include <assert.h>

struct halving {
    int block, blocks; /* 2^a, m */
    int levels;        /* a */
    int number, mine;  /* i, b */
};

static struct halving halving_of(const struct horon_plan_args *args)
{
    struct halving shape = {.block = horon_plan_block(args->size),
                            .levels = horon_plan_levels(args->size)};
    shape.blocks = args->size / shape.block;
    shape.number = args->rank % shape.block;
    shape.mine = args->rank / shape.block;
    assert(shape.blocks % 2 == 1);
    return shape;
}

/* The first half of a range, or the second. The first is the longer one. */
static struct horon_plan_range half_of(struct horon_plan_range range, bool second)
{
    const uint64_t first = range.count - range.count / 2;
    if (second)
        return (struct horon_plan_range){.begin = range.begin + first,
                                         .count = range.count - first};
    return (struct horon_plan_range){.begin = range.begin, .count = first};
}

/* What participant number `number` is left with after `level` halvings. */
static struct horon_plan_range range_after(const struct horon_plan_args *args, int number,
                                           int level)
{
    struct horon_plan_range range = {.begin = 0, .count = args->count};
    for (int s = 0; s < level; s++)
        range = half_of(range, (number >> s) & 1);
    return range;
}

/* Where the piece received at halving stage `level` begins in SCRATCH. */
static uint64_t piece_offset(const struct horon_plan_args *args, int number, int level)
{
    uint64_t offset = 0;
    for (int s = 1; s <= level; s++)
        offset += range_after(args, number, s).count;
    return offset;
}

/* Where element `element` of the vector lies after `level` halvings. */
static struct horon_plan_place sum_place(const struct horon_plan_args *args,
                                         const struct halving *shape, int level, uint64_t element)
{
    if (level == 0)
        return horon_plan_work(element);
    return (struct horon_plan_place){.region = HORON_PLAN_SCRATCH,
                                     .offset = piece_offset(args, shape->number, level - 1) +
                                               element -
                                               range_after(args, shape->number, level).begin};
}

static void halve(const struct horon_plan_args *args, const struct halving *shape, int level,
                  struct horon_plan_stage *out, struct horon_plan_move *moves,
                  struct horon_plan_combine *combines)
{
    const int bit = (shape->number >> level) & 1;
    const int partner = args->rank ^ (1 << level);
    const struct horon_plan_range keep = range_after(args, shape->number, level + 1);
    const struct horon_plan_range give = range_after(args, shape->number ^ (1 << level), level + 1);
    const struct horon_plan_place piece = sum_place(args, shape, level + 1, keep.begin);
    const struct horon_plan_place sum = sum_place(args, shape, level, keep.begin);
    const bool last = level + 1 == shape->levels && shape->blocks == 1;
    assert(level < shape->levels);
    assert(partner / shape->block == shape->mine);
    horon_plan_add_move(out, moves, level, partner, false, piece, keep.count);
    horon_plan_add_move(out, moves, level, partner, true, sum_place(args, shape, level, give.begin),
                        give.count);
    const struct horon_plan_place left = bit ? piece : sum, right = bit ? sum : piece;
    const struct horon_plan_place result = last ? horon_plan_work(keep.begin) : piece;
    combines[out->combine_count++] = (struct horon_plan_combine){
        .left_region = left.region,
        .right_region = right.region,
        .result_region = result.region,
        .left = left.offset,
        .right = right.offset,
        .result = result.offset,
        .count = keep.count,
    };
}

static struct horon_plan_range block_part(const struct horon_plan_args *args,
                                          const struct halving *shape, int block)
{
    const struct horon_plan_range range = range_after(args, shape->number, shape->levels);
    struct horon_plan_range part = horon_plan_part(range.count, shape->blocks, block);
    part.begin += range.begin;
    return part;
}

/* The direct exchange among those of this number in all blocks: reducing, or giving back. */
static void exchange(const struct horon_plan_args *args, const struct halving *shape, int stage,
                     struct horon_plan_stage *out, struct horon_plan_move *moves,
                     struct horon_plan_combine *combines)
{
    const bool reduces = stage == shape->levels;
    assert(reduces || stage == shape->levels + 1);
    assert(shape->blocks > 1);
    const struct horon_plan_range own = block_part(args, shape, shape->mine);
    const struct horon_plan_leaves leaves = {
        .own_leaf = shape->mine,
        .own = sum_place(args, shape, shape->levels, own.begin),
        .scratch = piece_offset(args, shape->number, shape->levels),
        .count = own.count,
    };
    for (int i = 1; i < shape->blocks; i++) {
        const int to = (shape->mine + i) % shape->blocks;
        const int from = (shape->mine + shape->blocks - i) % shape->blocks;
        const struct horon_plan_range theirs = block_part(args, shape, to);
        const struct horon_plan_range given = block_part(args, shape, from);
        const int to_rank = to * shape->block + shape->number;
        const int from_rank = from * shape->block + shape->number;
        if (reduces) {
            horon_plan_add_move(out, moves, stage, from_rank, false, horon_plan_leaf(&leaves, from),
                                own.count);
            horon_plan_add_move(out, moves, stage, to_rank, true,
                                sum_place(args, shape, shape->levels, theirs.begin), theirs.count);
        } else {
            horon_plan_add_move(out, moves, stage, from_rank, false, horon_plan_work(given.begin),
                                given.count);
            horon_plan_add_move(out, moves, stage, to_rank, true, horon_plan_work(own.begin),
                                own.count);
        }
    }
    if (reduces) /* m is odd, so the tree over the blocks is their order */
        horon_plan_add_tree(out, combines, shape->blocks, horon_plan_work(own.begin), &leaves);
}

static void redouble(const struct horon_plan_args *args, const struct halving *shape, int level,
                     int stage, struct horon_plan_stage *out, struct horon_plan_move *moves)
{
    const int partner = args->rank ^ (1 << level);
    const struct horon_plan_range have = range_after(args, shape->number, level + 1);
    const struct horon_plan_range want = range_after(args, shape->number ^ (1 << level), level + 1);
    assert(level >= 0);
    assert(level < shape->levels);
    horon_plan_add_move(out, moves, stage, partner, false, horon_plan_work(want.begin), want.count);
    horon_plan_add_move(out, moves, stage, partner, true, horon_plan_work(have.begin), have.count);
}

static int halving_stages(const struct horon_plan_args *args)
{
    const struct halving shape = halving_of(args);
    return 2 * shape.levels + (shape.blocks > 1 ? 2 : 0);
}

static uint64_t halving_scratch(const struct horon_plan_args *args)
{
    const struct halving shape = halving_of(args);
    const uint64_t pieces = piece_offset(args, shape.number, shape.levels);
    return pieces + (uint64_t)(shape.blocks - 1) * block_part(args, &shape, shape.mine).count;
}

static void halving_limits(const struct horon_plan_args *args, uint32_t *moves_out,
                           uint32_t *combines_out)
{
    const struct halving shape = halving_of(args);
    const uint32_t peers = shape.blocks > 2 ? (uint32_t)(shape.blocks - 1) : 1;
    *moves_out = 2 * peers;
    *combines_out = peers;
}

static struct horon_plan_stage halving_stage(const struct horon_plan_args *args, int stage,
                                             struct horon_plan_move *moves,
                                             struct horon_plan_combine *combines)
{
    const struct halving shape = halving_of(args);
    const int stages = halving_stages(args);
    struct horon_plan_stage out = {0};
    if (stage < shape.levels)
        halve(args, &shape, stage, &out, moves, combines);
    else if (stage < stages - shape.levels)
        exchange(args, &shape, stage, &out, moves, combines);
    else
        redouble(args, &shape, stages - 1 - stage, stage, &out, moves);
    return out;
}

const struct horon_plan_ops horon_plan_halving = {
    .name = "halving",
    .stages = halving_stages,
    .scratch = halving_scratch,
    .limits = halving_limits,
    .stage = halving_stage,
};
