/* SPDX-License-Identifier: Apache-2.0 */
/* See reduction.h. An average of float16 is divided by a power of two before a host's sum is
 * rounded, so that sums of hosts do not overflow; the rest of the divisor comes last. */
#include "exec/reduction.h"

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
    const uint64_t ranks = average ? (uint64_t)team->size : 1;
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
