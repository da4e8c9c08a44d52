/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of plans, the drawing tools they share, and the choice between those of an allreduce,
 * of a reduce, or of a broadcast.
 * Each plan is a file of its own; this one knows none of their schedules.
 */
#include "plan/plan_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const struct horon_plan_ops *const plans[HORON_PLAN_KIND_COUNT] = {
    [HORON_PLAN_FLAT] = &horon_plan_flat,
    [HORON_PLAN_DOUBLING] = &horon_plan_doubling,
    [HORON_PLAN_DIRECT] = &horon_plan_direct,
    [HORON_PLAN_HALVING] = &horon_plan_halving,
    [HORON_PLAN_BROADCAST] = &horon_plan_broadcast,
    [HORON_PLAN_BROADCAST_CHAIN] = &horon_plan_broadcast_chain,
    [HORON_PLAN_REDUCE_FLAT] = &horon_plan_reduce_flat,
    [HORON_PLAN_REDUCE_DOUBLING] = &horon_plan_reduce_doubling,
    [HORON_PLAN_REDUCE_DIRECT] = &horon_plan_reduce_direct,
};

static void check_args(const struct horon_plan_args *args)
{
    assert((size_t)args->kind < HORON_PLAN_KIND_COUNT);
    assert(args->rank >= 0);
    assert(args->rank < args->size);
    assert(args->kind < HORON_PLAN_BROADCAST || (args->root >= 0 && args->root < args->size));
}

int horon_plan_stages(const struct horon_plan_args *args)
{
    check_args(args);
    return args->size > 1 ? plans[args->kind]->stages(args) : 0;
}

uint64_t horon_plan_scratch(const struct horon_plan_args *args)
{
    check_args(args);
    return args->size > 1 ? plans[args->kind]->scratch(args) : 0;
}

void horon_plan_limits(const struct horon_plan_args *args, uint32_t *moves_max_out,
                       uint32_t *combines_max_out)
{
    *moves_max_out = *combines_max_out = 0;
    if (args->size > 1)
        plans[args->kind]->limits(args, moves_max_out, combines_max_out);
}

struct horon_plan_stage horon_plan_stage(const struct horon_plan_args *args, int stage,
                                         struct horon_plan_move *moves,
                                         struct horon_plan_combine *combines)
{
    assert(stage >= 0);
    assert(stage < horon_plan_stages(args));
    return plans[args->kind]->stage(args, stage, moves, combines);
}

struct horon_plan_range horon_plan_part(uint64_t count, int parts, int index)
{
    assert(index >= 0);
    assert(index < parts);
    const uint64_t base = count / (uint64_t)parts, longer = count % (uint64_t)parts;
    const uint64_t before = (uint64_t)index;
    return (struct horon_plan_range){
        .begin = base * before + (before < longer ? before : longer),
        .count = base + (before < longer ? 1 : 0),
    };
}

int horon_plan_block(int size)
{
    assert(size > 0);
    return size & -size;
}

int horon_plan_levels(int size)
{
    int levels = 0;
    while (1 << levels < horon_plan_block(size))
        levels++;
    return levels;
}

struct horon_plan_place horon_plan_work(uint64_t offset)
{
    return (struct horon_plan_place){.region = HORON_PLAN_WORK, .offset = offset};
}

void horon_plan_add_move(struct horon_plan_stage *stage, struct horon_plan_move *moves, int number,
                         int peer, bool is_send, struct horon_plan_place place, uint64_t count)
{
    assert(peer >= 0);
    assert(number < 1 << 16); /* a stage is the low part of a tag */
    moves[stage->move_count++] = (struct horon_plan_move){
        .peer = peer,
        .is_send = is_send,
        .region = place.region,
        .offset = place.offset,
        .count = count,
        .stage = (uint32_t)number,
    };
}

struct horon_plan_place horon_plan_leaf(const struct horon_plan_leaves *leaves, int leaf)
{
    if (leaf == leaves->own_leaf)
        return leaves->own;
    const int slot = leaf < leaves->own_leaf ? leaf : leaf - 1;
    return (struct horon_plan_place){.region = HORON_PLAN_SCRATCH,
                                     .offset = leaves->scratch + (uint64_t)slot * leaves->count};
}

/* Where the sum of the leaves @p first .. @p first + @p width - 1 lies: in the place of the first
 * one, or of the second if the first is this participant's own. */
static struct horon_plan_place sum_of(const struct horon_plan_leaves *leaves, int first, int width)
{
    return horon_plan_leaf(leaves, first + (width > 1 && first == leaves->own_leaf ? 1 : 0));
}

/* Of @p width leaves from @p first on and the @p more behind them. */
static void add_combine(struct horon_plan_stage *stage, struct horon_plan_combine *combines,
                        const struct horon_plan_leaves *leaves, int first, int width, int more)
{
    const struct horon_plan_place left = sum_of(leaves, first, width);
    const struct horon_plan_place right = sum_of(leaves, first + width, more);
    const struct horon_plan_place result = sum_of(leaves, first, width + more);
    combines[stage->combine_count++] = (struct horon_plan_combine){
        .left_region = left.region,
        .right_region = right.region,
        .result_region = result.region,
        .left = left.offset,
        .right = right.offset,
        .result = result.offset,
        .count = leaves->count,
    };
}

void horon_plan_add_tree(struct horon_plan_stage *stage, struct horon_plan_combine *combines,
                         int number, struct horon_plan_place result,
                         const struct horon_plan_leaves *leaves)
{
    const int block = horon_plan_block(number);
    assert(number > 1); /* the last combine gets the result */
    for (int width = 1; width < block; width *= 2) {
        for (int first = 0; first < number; first += 2 * width)
            add_combine(stage, combines, leaves, first, width, width);
    }
    for (int first = block; first < number; first += block)
        add_combine(stage, combines, leaves, 0, first, block);
    struct horon_plan_combine *last = &combines[stage->combine_count - 1];
    last->result_region = result.region;
    last->result = result.offset;
}

/*
 * What an allreduce of S bytes among N takes, a reduce or a broadcast, in microseconds: a start for
 * each stage, a bit for each message that one participant sends and receives, and its bytes over
 * the wire's bandwidth. Several connections at once fill the wire better than one; while a
 * participant waits for one partner, as in halving, it has one.
 *
 * Where ranks share cores nobody is idle while a message travels: what counts is the processor
 * time of all messages, and a stage costs little besides. Of a reduce there are fewer messages, and
 * what counts is root's. Of a broadcast both plans move the same bytes, and a stage of the chain
 * wakes everybody: of 1 MiB the tree takes a third less over loopback, of 4 MiB the chain.
 *
 * The constants for ranks with cores of their own are estimates, of the order of TCP on 10 GbE; no
 * measurement stands behind their digits. Those for shared cores are of four ranks on two cores
 * over loopback (benchmarks/RESULTS.md). They need not be exact: near a crossing both choices take
 * about the same time. All ranks must choose alike, so a rank may not measure for itself.
 */
struct cost {
    double stage_us;             /* wake-up, system calls and wire of one exchange */
    double message_us;           /* each further peer in a stage: its system calls */
    double bytes_per_us_one;     /* one connection */
    double bytes_per_us_many;    /* several */
    double combine_bytes_per_us; /* one pass of adding a received vector */
};
static const struct cost own_cores = {
    .stage_us = 15.0,
    .message_us = 4.0,
    .bytes_per_us_one = 1000.0,
    .bytes_per_us_many = 1200.0,
    .combine_bytes_per_us = 5000.0,
};
static const struct cost shared_cores = {
    .stage_us = 2.0,
    .message_us = 18.0,
    .bytes_per_us_one = 2700.0,
    .bytes_per_us_many = 3000.0,
    .combine_bytes_per_us = 5000.0,
};

static const struct cost shared_cores_to_root = {
    .stage_us = 14.0,
    .message_us = 10.0,
    .bytes_per_us_one = 5400.0,
    .bytes_per_us_many = 6000.0,
    .combine_bytes_per_us = 10000.0,
};

static const struct cost shared_cores_from_root = {
    .stage_us = 40.0,
    .message_us = 20.0,
    .bytes_per_us_one = 2700.0,
    .bytes_per_us_many = 3000.0,
    .combine_bytes_per_us = 5000.0,
};

static double wire_us(const struct cost *cost, int peers, double bytes)
{
    return bytes / (peers > 1 ? cost->bytes_per_us_many : cost->bytes_per_us_one);
}

static double flat_us(const struct cost *cost, int size, double bytes)
{
    const double moved = (size - 1) * bytes;
    return cost->stage_us + (size - 1) * cost->message_us + wire_us(cost, size - 1, moved) +
           moved / cost->combine_bytes_per_us;
}

static double doubling_us(const struct cost *cost, int size, double bytes)
{
    double us = 0;
    const int block = horon_plan_block(size), blocks = size / block;
    for (int width = 1; width < block; width *= 2)
        us += flat_us(cost, 2, bytes);
    return blocks > 1 ? us + flat_us(cost, blocks, bytes) : us;
}

/* Reduce-scatter and allgather among `size` of `bytes` bytes. */
static double direct_us(const struct cost *cost, int size, double bytes)
{
    const double moved = bytes * (size - 1) / size;
    return 2 * (cost->stage_us + (size - 1) * cost->message_us + wire_us(cost, size - 1, moved)) +
           moved / cost->combine_bytes_per_us;
}

static double halving_us(const struct cost *cost, int size, double bytes)
{
    double us = 0, left = bytes;
    const int block = horon_plan_block(size), blocks = size / block;
    for (int width = 1; width < block; width *= 2) {
        left /= 2;
        us += direct_us(cost, 2, 2 * left);
    }
    return blocks > 1 ? us + direct_us(cost, blocks, left) : us;
}

/* Its two stages go one after the other, but chunk after chunk: bytes go in one while they come in
 * the other. */
static double reduce_direct_us(const struct cost *cost, int size, double bytes)
{
    return 2 * (cost->stage_us + (size - 1) * cost->message_us) + wire_us(cost, size - 1, bytes) +
           bytes / cost->combine_bytes_per_us;
}

/* Root sends all of it at every stage. */
static double broadcast_us(const struct cost *cost, int size, double bytes)
{
    double us = 0;
    for (int64_t having = 1; having < size; having *= 2)
        us += cost->stage_us + cost->message_us + wire_us(cost, 1, bytes);
    return us;
}

/* Of one chunk. Of several only the first fills the chain, but few matter where both are near. */
static double broadcast_chain_us(const struct cost *cost, int size, double bytes)
{
    const int pieces = horon_plan_chain_pieces(size), stages = pieces + size - 2;
    return stages * (cost->stage_us + cost->message_us + wire_us(cost, 1, bytes / pieces));
}

static const struct cost *shared_cores_of(enum horon_plan_kind kind)
{
    if (kind < HORON_PLAN_BROADCAST)
        return &shared_cores;
    return kind <= HORON_PLAN_BROADCAST_CHAIN ? &shared_cores_from_root : &shared_cores_to_root;
}

double horon_plan_estimate_us(enum horon_plan_kind kind, int size, uint64_t bytes, bool crowded)
{
    const struct cost *cost = crowded ? shared_cores_of(kind) : &own_cores;
    switch (kind) {
    case HORON_PLAN_FLAT:
    case HORON_PLAN_REDUCE_FLAT:
        return flat_us(cost, size, (double)bytes);
    case HORON_PLAN_DOUBLING:
    case HORON_PLAN_REDUCE_DOUBLING:
        return doubling_us(cost, size, (double)bytes);
    case HORON_PLAN_DIRECT:
        return direct_us(cost, size, (double)bytes);
    case HORON_PLAN_HALVING:
        return halving_us(cost, size, (double)bytes);
    case HORON_PLAN_REDUCE_DIRECT:
        return reduce_direct_us(cost, size, (double)bytes);
    case HORON_PLAN_BROADCAST:
        return broadcast_us(cost, size, (double)bytes);
    case HORON_PLAN_BROADCAST_CHAIN:
        return broadcast_chain_us(cost, size, (double)bytes);
    }
    return 0;
}

/* The plans of each way; where two should take the same time, the first. */
static const struct {
    enum horon_plan_kind kinds[4];
    size_t count;
} choices[] = {
    [HORON_PLAN_TO_ALL] = {{HORON_PLAN_DIRECT, HORON_PLAN_FLAT, HORON_PLAN_DOUBLING,
                            HORON_PLAN_HALVING},
                           4},
    [HORON_PLAN_TO_ROOT] = {{HORON_PLAN_REDUCE_FLAT, HORON_PLAN_REDUCE_DOUBLING,
                             HORON_PLAN_REDUCE_DIRECT},
                            3},
    [HORON_PLAN_FROM_ROOT] = {{HORON_PLAN_BROADCAST, HORON_PLAN_BROADCAST_CHAIN}, 2},
};

enum horon_plan_kind horon_plan_choose(const char *wanted, enum horon_plan_way way, int size,
                                       uint64_t bytes, bool crowded)
{
    assert(size > 0);
    const enum horon_plan_kind *kinds = choices[way].kinds;
    enum horon_plan_kind best = kinds[0];
    if (size == 1)
        return best; /* nothing moves, and operations of one host ask, too */
    double least_us = INFINITY;
    for (size_t i = 0; i < choices[way].count; i++) {
        if (wanted && strcmp(wanted, plans[kinds[i]]->name) == 0)
            return kinds[i];
        const double us = horon_plan_estimate_us(kinds[i], size, bytes, crowded);
        if (us < least_us) {
            least_us = us;
            best = kinds[i];
        }
    }
    return best;
}
