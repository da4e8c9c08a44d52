/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the operation in flight waits for, as far as this rank can see: ranks of its host that have
 * not begun it or are furthest behind, and ranks of other hosts between which and this one data is
 * due. A rank that is named here may itself wait for another; it sees that, and says so itself.
 *
 * Looked at only when somebody asks, for a warning or a time limit: it costs the hot path nothing.
 */
#include "channel_state.h"

static uint64_t entered(const struct horon_channel *channel, int local, uint64_t operation)
{
    const struct horon_slot_head *head = channel->small[operation % HORON_SLOTS][local];
    return atomic_load_explicit(&head->sequence, memory_order_acquire);
}

/* Has it not begun what must be begun before this rank goes on? */
static bool is_missing(const struct horon_channel *channel, int local)
{
    if (channel->phase == HORON_PHASE_ENTER)
        return entered(channel, local, channel->ended + 1) < channel->ended;
    return entered(channel, local, channel->ended) < channel->ended + 1;
}

static uint64_t value_of(const struct horon_flag *flag)
{
    return atomic_load_explicit(&flag->value, memory_order_acquire);
}

/* Is it behind this rank in the chunks, and nobody on the host further? */
static bool is_last(const struct horon_channel *channel, int local)
{
    const int self = channel->team->local_rank;
    const uint64_t posted = value_of(channel->posted[local]);
    const uint64_t reduced = value_of(channel->reduced[local]);
    if (posted >= value_of(channel->posted[self]) && reduced >= value_of(channel->reduced[self]))
        return false;
    for (int i = 0; i < channel->team->local_size; i++)
        if (value_of(channel->posted[i]) + value_of(channel->reduced[i]) < posted + reduced)
            return false;
    return true;
}

/* A broadcast waits for one rank of the host before all else: root, or who hears from its host. */
static int above(const struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    const bool with_root = team->host_of[channel->op->agreed.root] == team->host;
    return with_root ? team->local_rank_of[channel->op->agreed.root] : 0;
}

/* The chunk that root fills next on its own host. */
static bool root_owes(const struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    if (team->host_of[channel->op->agreed.root] != team->host ||
        channel->op->agreed.root == team->rank || channel->post_next == channel->chunks)
        return false;
    return value_of(channel->posted[above(channel)]) <= channel->chunk_base + channel->post_next;
}

static bool chunks_wait_for(const struct horon_channel *channel, int local)
{
    const struct horon_verb_row *row = horon_verb_of(&channel->op->agreed);
    const bool rooted = horon_verb_is_rooted(row);
    if (rooted && local == above(channel) && (is_missing(channel, local) || root_owes(channel)))
        return true;
    if (rooted && channel->met == 0)
        return false;
    if (horon_verb_reduces(row) && is_missing(channel, local))
        return true;
    return is_last(channel, local);
}

static bool waits_here(const struct horon_channel *channel, int local)
{
    switch (channel->phase) {
    case HORON_PHASE_IDLE:
    case HORON_PHASE_NET:
        return false;
    case HORON_PHASE_ENTER:
        return is_missing(channel, local);
    case HORON_PHASE_MEET:
        if (horon_verb_is_rooted(horon_verb_of(&channel->op->agreed)) && local != above(channel))
            return false;
        return is_missing(channel, local);
    case HORON_PHASE_RESULT:
        return local == 0; /* it exchanges with the other hosts */
    case HORON_PHASE_CHUNKS:
        return chunks_wait_for(channel, local);
    }
    return false;
}

static bool windows_wait_for(const struct horon_channel *channel, int rank)
{
    const int slot = (int)((channel->chunk_base + channel->net_next) % HORON_SLOTS);
    const size_t first = (size_t)slot * channel->transfer_max;
    if (channel->net_next == channel->post_next)
        return false;
    for (size_t i = first; i < first + channel->transfer_count[slot]; i++)
        if (channel->transfer_peers[i] == rank && !channel->transfers[i].done)
            return true;
    return false;
}

static bool waits_between_hosts(struct horon_channel *channel, int rank)
{
    if (channel->phase == HORON_PHASE_NET)
        return horon_netrun_waits_for(&channel->nets[0], rank);
    if (channel->phase != HORON_PHASE_CHUNKS)
        return false;
    const struct horon_verb_row *row = horon_verb_of(&channel->op->agreed);
    if (row->ahead == HORON_AHEAD_ROWS)
        return windows_wait_for(channel, rank);
    const bool rooted = horon_verb_is_rooted(row);
    const uint64_t end = rooted ? channel->post_next : channel->reduce_next;
    for (uint64_t chunk = channel->net_next; chunk < end; chunk++) {
        const int slot = (int)((channel->chunk_base + chunk) % HORON_SLOTS);
        for (int index = 0; index < channel->carried; index++)
            if (horon_netrun_waits_for(&horon_nets_of(channel, slot)[index], rank))
                return true;
    }
    return false;
}

bool horon_channel_waits_for(struct horon_channel *channel, int rank)
{
    const struct horon_team *team = channel->team;
    if (rank == team->rank)
        return false;
    if (team->host_of[rank] == team->host)
        return waits_here(channel, team->local_rank_of[rank]);
    return waits_between_hosts(channel, rank);
}
