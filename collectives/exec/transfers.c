/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers of chunks; see transfers.h. */
#include "exec/transfers.h"

#include <assert.h>

size_t horon_transfers_bytes(size_t max)
{
    static_assert(HORON_SLOTS * sizeof(int) % 8 == 0, "what lies behind is aligned");
    return HORON_SLOTS * max * (sizeof(struct horon_transfer) + sizeof(int));
}

void horon_transfers_init(struct horon_transfers *transfers, size_t max, void *tables)
{
    struct horon_transfer *all = tables;
    *transfers = (struct horon_transfers){
        .all = all,
        .peers = (int *)(void *)(all + HORON_SLOTS * max),
        .max = max,
    };
}

void horon_transfers_clear(struct horon_transfers *transfers, const struct horon_channel *channel,
                           uint64_t chunk)
{
    transfers->count[horon_pipeline_slot(channel, chunk)] = 0;
}

horon_status_t horon_transfers_begin(struct horon_transfers *transfers,
                                     const struct horon_channel *channel, uint64_t chunk,
                                     int sender, int peer, void *data, size_t bytes,
                                     struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    const int slot = horon_pipeline_slot(channel, chunk);
    const size_t number = transfers->count[slot];
    const size_t index = (size_t)slot * transfers->max + number;
    assert(number < transfers->max);
    assert((sender == team->rank) != (sender == peer));
    transfers->all[index] = (struct horon_transfer){
        .id = {(uint32_t)channel->options.channel, channel->ended,
               horon_pipeline_tag(channel, chunk) | (uint64_t)sender},
        .data = data,
        .bytes = bytes,
        .check = channel->op->check,
    };
    transfers->peers[index] = peer;
    transfers->count[slot]++;
    return horon_netrun_post(team->mux_of[peer], &transfers->all[index], sender == team->rank,
                             team->rank_names[peer], error);
}

horon_status_t horon_transfers_done(const struct horon_transfers *transfers,
                                    const struct horon_channel *channel, uint64_t chunk,
                                    struct horon_error *error)
{
    const int slot = horon_pipeline_slot(channel, chunk);
    const size_t first = (size_t)slot * transfers->max;
    horon_status_t all = HORON_OK;
    for (size_t i = first; all >= 0 && i < first + transfers->count[slot]; i++) {
        const int peer = transfers->peers[i];
        if (!transfers->all[i].done)
            all = horon_netrun_still_moves(channel->team->mux_of[peer], &transfers->all[i],
                                           channel->team->rank_names[peer], error);
    }
    return all;
}

bool horon_transfers_wait_for(const struct horon_transfers *transfers,
                              const struct horon_channel *channel, uint64_t chunk, int rank)
{
    const int slot = horon_pipeline_slot(channel, chunk);
    const size_t first = (size_t)slot * transfers->max;
    for (size_t i = first; i < first + transfers->count[slot]; i++)
        if (transfers->peers[i] == rank && !transfers->all[i].done)
            return true;
    return false;
}
