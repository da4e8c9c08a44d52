/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counters of the chunk pipeline. Chunks are numbered for the life of the channel, so a flag
 * only grows: "posted" n says that its rank has put chunks 0..n-1 where others read them, "reduced"
 * n that it is done with everybody's chunks 0..n-1. Chunk c lies in slot c mod 2; the slot is free
 * again when all ranks are done with chunk c - 2.
 */
#include "channel_state.h"

void horon_chunks_begin(struct horon_channel *channel, uint64_t total, size_t chunk_bytes)
{
    size_t net_bytes = channel->options.net_chunk_bytes;
    if (channel->team->host_count > 1 && net_bytes < chunk_bytes)
        chunk_bytes = net_bytes;
    channel->chunk_count = chunk_bytes / channel->element_bytes;
    channel->chunks = (total + channel->chunk_count - 1) / channel->chunk_count;
    channel->post_next = channel->reduce_next = channel->net_next = channel->out_next = 0;
    channel->posted_seen = channel->reduced_seen = 0;
    channel->post_at = channel->reduce_at = channel->finish_at = channel->out_at =
        (struct horon_cursor){0};
}

uint64_t horon_chunk_elements(const struct horon_channel *channel, uint64_t chunk)
{
    uint64_t left = channel->op->count - chunk * channel->chunk_count;
    return left < channel->chunk_count ? left : channel->chunk_count;
}

/* The lowest of the flags, but no further than the first that is below @p wanted. */
static uint64_t lowest(struct horon_flag *const *flags, int count, uint64_t wanted)
{
    uint64_t low = UINT64_MAX;
    for (int i = 0; i < count && low >= wanted; i++) {
        uint64_t value = atomic_load_explicit(&flags[i]->value, memory_order_acquire);
        if (value < low)
            low = value;
    }
    return low;
}

static bool reached(struct horon_channel *channel, struct horon_flag *const *flags, uint64_t *seen,
                    uint64_t wanted)
{
    if (*seen < wanted)
        *seen = lowest(flags, channel->team->local_size, wanted);
    return *seen >= wanted;
}

bool horon_all_posted(struct horon_channel *channel, uint64_t chunk)
{
    return reached(channel, channel->posted, &channel->posted_seen,
                   channel->chunk_base + chunk + 1);
}

bool horon_all_reduced(struct horon_channel *channel, uint64_t chunk)
{
    return reached(channel, channel->reduced, &channel->reduced_seen,
                   channel->chunk_base + chunk + 1);
}

bool horon_slot_free(struct horon_channel *channel, uint64_t chunk)
{
    uint64_t number = channel->chunk_base + chunk;
    if (number < HORON_SLOTS)
        return true;
    return reached(channel, channel->reduced, &channel->reduced_seen, number - HORON_SLOTS + 1);
}

static void set(const struct horon_channel *channel, struct horon_flag *const *flags,
                uint64_t chunk)
{
    atomic_store_explicit(&flags[channel->team->local_rank]->value, channel->chunk_base + chunk + 1,
                          memory_order_release);
}

void horon_set_posted(struct horon_channel *channel, uint64_t chunk)
{
    set(channel, channel->posted, chunk);
}

void horon_set_reduced(struct horon_channel *channel, uint64_t chunk)
{
    set(channel, channel->reduced, chunk);
}

void horon_say_posted(struct horon_channel *channel, uint64_t chunk)
{
    horon_set_posted(channel, chunk);
    horon_host_wake_all(channel->host, HORON_WAKE_DATA);
}

void horon_say_reduced(struct horon_channel *channel, uint64_t chunk)
{
    horon_set_reduced(channel, chunk);
    horon_host_wake_all(channel->host, HORON_WAKE_DATA);
}

horon_status_t horon_nets_advance(struct horon_channel *channel, uint64_t end,
                                  struct horon_error *error)
{
    horon_status_t first = channel->net_next < end ? HORON_OK : HORON_IN_PROGRESS;
    for (uint64_t chunk = channel->net_next; chunk < end; chunk++) {
        int slot = (int)((channel->chunk_base + chunk) % HORON_SLOTS);
        for (int index = 0; index < channel->carried; index++) {
            horon_status_t status =
                horon_netrun_advance(&horon_nets_of(channel, slot)[index], error);
            if (status < 0)
                return status;
            if (status != HORON_OK && chunk == channel->net_next)
                first = HORON_IN_PROGRESS;
        }
    }
    return first;
}
