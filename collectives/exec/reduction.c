/* SPDX-License-Identifier: Apache-2.0 */
/* See reduction.h. An average of float16 is divided by a power of two before a host's sum is
 * rounded, so that sums of hosts do not overflow; the rest of the divisor comes last. */
#include "exec/reduction.h"

/* On one host. What a rank reads of a chunk is to be in its second-level cache still when it is
 * written; ranks that share a core share that, too. */
enum { CHUNK_PART = 4, CROWDED_CHUNK_PART = 8 };

size_t horon_reduction_chunk_bytes(const struct horon_channel *channel)
{
    const size_t bytes = channel->host->shape.chunk_bytes;
    if (channel->team->host_count > 1)
        return bytes;
    return bytes / (channel->team->crowded ? CROWDED_CHUNK_PART : CHUNK_PART);
}

size_t horon_reduction_tables_bytes(const struct horon_team *team)
{
    return 2 * (size_t)team->local_size * sizeof(void *);
}

void horon_reduction_init(struct horon_reduction *reduction, const struct horon_team *team,
                          void *tables)
{
    reduction->inputs = tables;
    reduction->outputs = (void **)tables + team->local_size;
}

void horon_reduction_begin(struct horon_reduction *reduction, const struct horon_channel *channel)
{
    const struct horon_signature *agreed = &channel->op->agreed;
    const struct horon_team *team = channel->team;
    const bool average = agreed->redop == HORON_AVERAGE;
    const uint32_t givers = channel->op->givers ? channel->op->givers : (uint32_t)team->size;
    const uint64_t ranks = average ? givers : 1;
    double divisor = 1.0;
    reduction->dtype = (horon_dtype_t)agreed->dtype;
    reduction->combine = average ? HORON_SUM : (horon_redop_t)agreed->redop;
    reduction->prescale = agreed->prescale;
    if (average && team->host_count > 1)
        divisor = horon_reduce_partial_divisor(reduction->dtype, ranks);
    reduction->partial = (struct horon_reduce_finish){.postscale = 1.0, .divisor = divisor};
    reduction->finish = (struct horon_reduce_finish){.postscale = agreed->postscale,
                                                     .divisor = (double)ranks / divisor};
}

void horon_reduction_set_inputs(struct horon_reduction *reduction,
                                const struct horon_channel *channel, const struct horon_walk *ours)
{
    const struct horon_team *team = channel->team;
    assert(ours->over == HORON_WALK_OURS);
    for (int i = 0; i < team->local_size; i++)
        reduction->inputs[i] = ours->slots[i] + ours->offset;
    reduction->inputs[team->local_rank] = ours->run.src;
}

struct horon_exchange horon_reduction_between_hosts(const struct horon_reduction *reduction,
                                                    const struct horon_channel *channel,
                                                    uint64_t count)
{
    const struct horon_signature *agreed = &channel->op->agreed;
    const bool to_root = horon_verb_is_rooted(horon_verb_of(agreed));
    return (struct horon_exchange){
        .kind =
            horon_exchange_choose(channel, to_root ? HORON_PLAN_TO_ROOT : HORON_PLAN_TO_ALL, count),
        .root = to_root ? channel->team->host_of[agreed->root] : 0,
        .dtype = reduction->dtype,
        .op = reduction->combine,
    };
}

horon_status_t horon_reduction_exchange_small(struct horon_reduction *reduction,
                                              struct horon_channel *channel)
{
    void *work = horon_slot_data(channel->result[horon_channel_slot(channel)]);
    assert(channel->team->host_count > 1);
    assert(horon_channel_has_met(channel));
    if (channel->team->local_rank != 0) {
        horon_phase_move(channel, HORON_PHASE_PUBLISH);
        return HORON_IN_PROGRESS;
    }
    if (channel->count)
        horon_reduction_of_small(reduction, channel, 0, channel->count, work, &reduction->partial);
    const struct horon_exchange exchange =
        horon_reduction_between_hosts(reduction, channel, channel->count);
    return horon_exchange_begin_small(channel, &exchange, work, channel->count);
}

void horon_reduction_finish_small(const struct horon_reduction *reduction,
                                  const struct horon_channel *channel)
{
    uint8_t *data = horon_slot_data(channel->result[horon_channel_slot(channel)]);
    if (channel->count)
        horon_reduce_finish(reduction->dtype, &reduction->finish, data, data, channel->count);
}

/* Elements that are combined along the whole tree before the next: they stay in cache. */
enum { BLOCK = 2048 };

static void combine(const struct horon_reduction *reduction, void *const *sums, int left, int right,
                    uint64_t at, uint64_t count)
{
    const size_t offset = (size_t)at * horon_dtype_bytes(reduction->dtype);
    uint8_t *result = (uint8_t *)sums[left] + offset;
    horon_reduce_combine(reduction->dtype, reduction->combine, result,
                         (const uint8_t *)sums[right] + offset, result, (size_t)count);
}

void horon_reduction_of_hosts(const struct horon_reduction *reduction, void *const *sums, int hosts,
                              uint64_t count, void *out)
{
    const int block = hosts & -hosts; /* pairwise below it, in order above: see plan/plan.h */
    for (uint64_t at = 0; at < count; at += BLOCK) {
        const uint64_t some = count - at < BLOCK ? count - at : BLOCK;
        for (int width = 1; width < block; width *= 2)
            for (int host = 0; host < hosts; host += 2 * width)
                combine(reduction, sums, host, host + width, at, some);
        for (int host = block; host < hosts; host += block)
            combine(reduction, sums, 0, host, at, some);
    }
    horon_reduce_finish(reduction->dtype, &reduction->finish, sums[0], out, (size_t)count);
}
