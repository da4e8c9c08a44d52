/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges of a channel with other hosts: plans carried out among the ranks that carry the same
 * segment on each host, or among the hosts' first ranks for what is small.
 */
#ifndef HORON_EXEC_EXCHANGE_H
#define HORON_EXEC_EXCHANGE_H

#include "channel_state.h"

/** Scratch of a run; it grows, and is kept. */
struct horon_exchange_memory {
    void *bytes;
    size_t limit;
};

/** What is exchanged; both kinds below. */
struct horon_exchange {
    enum horon_plan_kind kind;
    int root; /* host, for a plan that has one */
    horon_dtype_t dtype;
    horon_redop_t op; /* of what is combined */
};

/** The plan for @p count elements of the operation. @p way says which hosts give and which get;
 * all hosts choose alike. */
enum horon_plan_kind horon_exchange_choose(const struct horon_channel *channel,
                                           enum horon_plan_way way, uint64_t count);

/** First ranks of hosts: begins the small exchange of @p count elements at @p work, and moves to
 * its phase. @return IN_PROGRESS, for verbs to return | ERR_MEMORY */
horon_status_t horon_exchange_begin_small(struct horon_channel *channel,
                                          const struct horon_exchange *exchange, void *work,
                                          uint64_t count);

/** Segments that this rank carries: index 0..channel->carried - 1. */
static inline int horon_exchange_segment(const struct horon_channel *channel, int index)
{
    return channel->team->local_rank + index * channel->team->local_size;
}

/** Begins the exchange of the slice number @p index that this rank carries of @p chunk, which
 * begins at @p memory: a slot of it, or the output. @return OK | ERR_MEMORY */
horon_status_t horon_exchange_begin_slice(struct horon_channel *channel,
                                          const struct horon_exchange *exchange, uint64_t chunk,
                                          int index, uint8_t *memory);

/** Advances the exchanges of @p chunk, and of the later ones before @p end that have begun, as
 * their data may be what a peer waits for. @return OK: chunk is through | IN_PROGRESS | an error,
 * as horon_netrun_advance() */
horon_status_t horon_exchange_advance(struct horon_channel *channel, uint64_t chunk, uint64_t end,
                                      struct horon_error *error);

/** Is data due between this rank and job rank @p rank in the chunks from the EXCHANGE stage up to
 * @p end? */
bool horon_exchange_waits_for(const struct horon_channel *channel, uint64_t end, int rank);

#endif
