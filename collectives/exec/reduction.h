/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reducing verb keeps of its operation: how elements are combined, and the sides of one
 * reduction among the ranks of a host. Lies in the verb's state.
 */
#ifndef HORON_EXEC_REDUCTION_H
#define HORON_EXEC_REDUCTION_H

#include "channel_state.h"
#include "exec/exchange.h"
#include "exec/walk.h"

struct horon_reduction {
    horon_dtype_t dtype;
    horon_redop_t combine; /* the operation, with AVERAGE made SUM */
    double prescale;
    struct horon_reduce_finish partial; /* of a host's sum, which is rounded; then of the whole */
    struct horon_reduce_finish finish;
    const void **inputs; /* [local_size], of one reduction */
    void **outputs;      /* [local_size] */
};

/** Bytes behind the struct for its tables. */
size_t horon_reduction_tables_bytes(const struct horon_team *team);
/** @param tables  the memory for them, aligned for pointers */
void horon_reduction_init(struct horon_reduction *reduction, const struct horon_team *team,
                          void *tables);
/** Takes what it needs of the operation that begins. */
void horon_reduction_begin(struct horon_reduction *reduction, const struct horon_channel *channel);

/** Is what enters the exchange between hosts, of a host of one rank, its input as it is? */
static inline bool horon_reduction_begins_plain(const struct horon_reduction *reduction)
{
    return reduction->prescale == 1.0 && reduction->partial.divisor == 1.0;
}

/** Bytes of a slot that a chunk uses. */
size_t horon_reduction_chunk_bytes(const struct horon_channel *channel);

/** Makes the host's slots at a run of a walk over our slices the inputs, with this rank's own input
 * where it is. */
void horon_reduction_set_inputs(struct horon_reduction *reduction,
                                const struct horon_channel *channel, const struct horon_walk *ours);

/** Reduces the inputs to outputs[0 .. outputs - 1]. */
static inline void horon_reduction_run(const struct horon_reduction *reduction,
                                       const struct horon_channel *channel, int outputs,
                                       uint64_t count, const struct horon_reduce_finish *finish)
{
    horon_reduce_tree(reduction->dtype, reduction->combine, reduction->inputs,
                      channel->team->local_size, reduction->prescale, reduction->outputs, outputs,
                      (size_t)count, finish);
}

/** The small slots of the host's ranks, which have met, from element @p at: to @p out. */
static inline void horon_reduction_of_small(struct horon_reduction *reduction,
                                            const struct horon_channel *channel, uint64_t at,
                                            uint64_t count, void *out,
                                            const struct horon_reduce_finish *finish)
{
    for (int i = 0; i < channel->team->local_size; i++)
        reduction->inputs[i] = horon_channel_data(channel, i) + at * channel->element_bytes;
    reduction->outputs[0] = out;
    horon_reduction_run(reduction, channel, 1, count, finish);
}

/** With several hosts: how @p count elements, reduced on each, come together; at the host of the
 * operation's root, if it has one. */
struct horon_exchange horon_reduction_between_hosts(const struct horon_reduction *reduction,
                                                    const struct horon_channel *channel,
                                                    uint64_t count);

/** With several hosts: the first rank of each reduces its host's small slots to the result slot,
 * and begins to exchange that; the others await it. @return IN_PROGRESS, for verbs to return |
 * ERR_MEMORY
 */
horon_status_t horon_reduction_exchange_small(struct horon_reduction *reduction,
                                              struct horon_channel *channel);
/** That is exchanged: makes it the result, in the same place. */
void horon_reduction_finish_small(const struct horon_reduction *reduction,
                                  const struct horon_channel *channel);

/** Reduces what the hosts have reduced, along the canonical tree, to @p out.
 * @param sums [hosts] by host; they are written over */
void horon_reduction_of_hosts(const struct horon_reduction *reduction, void *const *sums, int hosts,
                              uint64_t count, void *out);

#endif
