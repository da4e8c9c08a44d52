/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Broadcast: every rank's output becomes root's input. Completion is local: root does not learn
 * that the others have it, they do not learn of each other.
 *
 * On root's host everybody reads root's slot. To another host each segment travels once, along a
 * binomial tree of its carriers, five hosts with root on host 0: 0->1, then 0->2 1->3, then 0->4;
 * log2(H) steps, and a link carries S/K bytes for each of the K segments. There everybody reads the
 * carriers' slots. Small ones travel whole between the first ranks of the hosts, and are published
 * in a result slot.
 */
#include "channel_state.h"

#include <string.h>

static int root_host(const struct horon_channel *channel)
{
    return channel->team->host_of[channel->op->agreed.root];
}

static bool on_root_host(const struct horon_channel *channel)
{
    return channel->team->host == root_host(channel);
}

static bool is_root(const struct horon_channel *channel)
{
    return channel->team->rank == channel->op->agreed.root;
}

static int root_local(const struct horon_channel *channel)
{
    return channel->team->local_rank_of[channel->op->agreed.root];
}

static void begin(struct horon_channel *channel)
{
    size_t bytes = (size_t)channel->op->count * channel->element_bytes;
    channel->small_op = bytes <= horon_small_limit(channel);
    horon_chunks_begin(channel, channel->small_op ? 0 : channel->op->count,
                       channel->host->shape.chunk_bytes);
}

/* Root's own output, if it has one of its own. */
static void copy_own(struct horon_channel *channel)
{
    for (size_t i = 0; i < channel->op->part_count; i++) {
        const struct horon_part *part = &channel->parts[i];
        if (part->dst && part->dst != part->src && part->count)
            memcpy(part->dst, part->src, part->count * channel->element_bytes);
    }
}

/* Has a rank of this host entered this operation, and the same one? */
static horon_status_t meet_one(struct horon_channel *channel, int local, struct horon_error *error)
{
    struct horon_slot_head *head = channel->small[horon_slot_of(channel)][local];
    if (atomic_load_explicit(&head->sequence, memory_order_acquire) != channel->ended + 1)
        return HORON_IN_PROGRESS;
    if (head->check == channel->op->check)
        return HORON_OK;
    channel->met = local; /* horon_meet() names it */
    return horon_meet(channel, error);
}

/* Everybody compares with root on its host, and with the first rank on others, which compares with
 * its peers. Before anything else is waited for: ranks that began something else may never do it.
 */
static horon_status_t meet_above(struct horon_channel *channel, struct horon_error *error)
{
    int above = on_root_host(channel) ? root_local(channel) : 0;
    return above == channel->team->local_rank ? HORON_OK : meet_one(channel, above, error);
}

static horon_status_t begin_net(struct horon_channel *channel, int run, const int *ranks,
                                uint64_t tag, void *work, uint64_t count)
{
    const struct horon_team *team = channel->team;
    struct horon_netrun_args args = {
        .plan = {.kind = HORON_PLAN_BROADCAST,
                 .rank = team->host,
                 .size = team->host_count,
                 .root = root_host(channel),
                 .count = count},
        .ranks = ranks,
        .mux_of = team->mux_of,
        .rank_names = team->rank_names,
        .dtype = channel->op->agreed.dtype,
        .op = HORON_SUM,
        .work = work,
        .channel = (uint32_t)channel->options.channel,
        .sequence = channel->ended,
        .tag = tag,
        .check = channel->op->check,
    };
    args.scratch = horon_net_scratch(
        channel, run, (size_t)horon_plan_scratch(&args.plan) * channel->element_bytes);
    if (!args.scratch)
        return HORON_ERR_MEMORY;
    return horon_netrun_begin(&channel->nets[run], &args);
}

/* ---- small ---------------------------------------------------------------------------------- */

static void small_copy_out(struct horon_channel *channel, const uint8_t *data)
{
    struct horon_cursor cursor = {0};
    horon_copy_out(channel, &cursor, 0, channel->op->count, data);
}

/* Which phase follows once this rank has entered. */
static horon_status_t small_entered(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    bool leads = team->host_count > 1 && team->local_rank == 0;
    if (on_root_host(channel)) {
        if (is_root(channel) && !leads)
            return HORON_OK;
        channel->phase = HORON_PHASE_MEET;
        return HORON_IN_PROGRESS;
    }
    channel->phase = leads ? HORON_PHASE_NET : HORON_PHASE_RESULT;
    if (!leads)
        return HORON_IN_PROGRESS;
    void *work = horon_slot_data(channel->result[horon_slot_of(channel)]);
    horon_status_t status = begin_net(channel, 0, channel->leaders, 0, work, channel->op->count);
    return status == HORON_OK ? HORON_IN_PROGRESS : status;
}

/* On root's host: reads root's slot; the first rank then also sends it on. */
static horon_status_t small_meet(struct horon_channel *channel, struct horon_error *error)
{
    horon_status_t status = meet_above(channel, error);
    if (status != HORON_OK)
        return status;
    uint8_t *data = horon_slot_data(channel->small[horon_slot_of(channel)][root_local(channel)]);
    if (!is_root(channel))
        small_copy_out(channel, data);
    if (channel->team->host_count == 1 || channel->team->local_rank != 0)
        return HORON_OK;
    channel->phase = HORON_PHASE_NET;
    status = begin_net(channel, 0, channel->leaders, 0, data, channel->op->count);
    return status == HORON_OK ? HORON_IN_PROGRESS : status;
}

static horon_status_t small_net(struct horon_channel *channel, struct horon_error *error)
{
    horon_status_t status = horon_netrun_advance(&channel->nets[0], error);
    if (status != HORON_OK || on_root_host(channel))
        return status;
    struct horon_slot_head *result = channel->result[horon_slot_of(channel)];
    atomic_store_explicit(&result->sequence, channel->ended + 1, memory_order_release);
    horon_host_wake_all(channel->host, HORON_WAKE_DATA);
    small_copy_out(channel, horon_slot_data(result));
    return HORON_OK;
}

static horon_status_t small_result(struct horon_channel *channel, struct horon_error *error)
{
    horon_status_t status = meet_above(channel, error);
    if (status != HORON_OK)
        return status;
    struct horon_slot_head *result = channel->result[horon_slot_of(channel)];
    if (atomic_load_explicit(&result->sequence, memory_order_acquire) != channel->ended + 1)
        return HORON_IN_PROGRESS;
    small_copy_out(channel, horon_slot_data(result));
    return HORON_OK;
}

/* ---- chunks: post (root fills, carriers fetch) -> net -> out -------------------------------- */

static bool root_posted(const struct horon_channel *channel, uint64_t chunk)
{
    const struct horon_flag *flag = channel->posted[root_local(channel)];
    return atomic_load_explicit(&flag->value, memory_order_acquire) > channel->chunk_base + chunk;
}

static uint8_t *slot_at(const struct horon_channel *channel, uint64_t chunk, int local_rank)
{
    return channel->chunk[(channel->chunk_base + chunk) % HORON_SLOTS][local_rank];
}

static horon_status_t begin_chunk_nets(struct horon_channel *channel, uint64_t chunk)
{
    const struct horon_team *team = channel->team;
    int slot = (int)((channel->chunk_base + chunk) % HORON_SLOTS);
    int source = on_root_host(channel) ? root_local(channel) : team->local_rank;
    uint64_t count = horon_chunk_elements(channel, chunk);
    for (int index = 0; index < channel->carried; index++) {
        int k = horon_carried_segment(channel, index);
        uint64_t from = horon_slice_bound(channel, count, team->segments, k);
        uint64_t to = horon_slice_bound(channel, count, team->segments, k + 1);
        uint8_t *work = slot_at(channel, chunk, source) + from * channel->element_bytes;
        horon_status_t status = begin_net(channel, slot * channel->carried + index,
                                          channel->carriers + k * team->host_count,
                                          chunk << 32 | (uint64_t)k << 16, work, to - from);
        if (status != HORON_OK)
            return status;
    }
    return HORON_OK;
}

static horon_status_t post(struct horon_channel *channel, bool *moved_out)
{
    uint64_t chunk = channel->post_next;
    if (chunk == channel->chunks || chunk >= channel->out_next + HORON_SLOTS ||
        !horon_slot_free(channel, chunk))
        return HORON_OK;
    if (is_root(channel)) {
        uint64_t first = chunk * channel->chunk_count;
        horon_copy_in(channel, &channel->post_at, first,
                      first + horon_chunk_elements(channel, chunk),
                      slot_at(channel, chunk, channel->team->local_rank));
        horon_say_posted(channel, chunk);
    } else if (on_root_host(channel) && !root_posted(channel, chunk)) {
        return HORON_OK;
    }
    if (channel->team->host_count > 1) {
        horon_status_t status = begin_chunk_nets(channel, chunk);
        if (status != HORON_OK)
            return status;
    } else {
        channel->net_next++;
    }
    channel->post_next++;
    *moved_out = true;
    return HORON_OK;
}

static horon_status_t net(struct horon_channel *channel, bool *moved_out, struct horon_error *error)
{
    horon_status_t status = horon_nets_advance(channel, channel->post_next, error);
    if (status != HORON_OK)
        return status == HORON_IN_PROGRESS ? HORON_OK : status;
    if (!on_root_host(channel))
        horon_say_posted(channel, channel->net_next);
    channel->net_next++;
    *moved_out = true;
    return HORON_OK;
}

/* From root's slot on its host, from the carriers' slots elsewhere. */
static void chunk_out(struct horon_channel *channel, uint64_t chunk)
{
    const struct horon_team *team = channel->team;
    uint64_t first = chunk * channel->chunk_count;
    uint64_t count = horon_chunk_elements(channel, chunk);
    if (on_root_host(channel)) {
        horon_copy_out(channel, &channel->out_at, first, first + count,
                       slot_at(channel, chunk, root_local(channel)));
        return;
    }
    for (int k = 0; k < team->segments; k++) {
        uint64_t from = horon_slice_bound(channel, count, team->segments, k);
        uint64_t to = horon_slice_bound(channel, count, team->segments, k + 1);
        horon_copy_out(channel, &channel->out_at, first + from, first + to,
                       slot_at(channel, chunk, k % team->local_size) +
                           from * channel->element_bytes);
    }
}

static bool out(struct horon_channel *channel)
{
    uint64_t chunk = channel->out_next;
    if (chunk == channel->net_next)
        return false;
    if (!on_root_host(channel) && !horon_all_posted(channel, chunk))
        return false;
    if (!is_root(channel))
        chunk_out(channel, chunk);
    /* others' flags on root's host count chunks too, so that the next operation finds them alike */
    if (on_root_host(channel) && !is_root(channel))
        horon_say_posted(channel, chunk);
    horon_say_reduced(channel, chunk);
    channel->out_next++;
    return true;
}

static horon_status_t advance_chunks(struct horon_channel *channel, bool *moved_out,
                                     struct horon_error *error)
{
    if (channel->met == 0) {
        horon_status_t met = meet_above(channel, error);
        if (met != HORON_OK)
            return met;
        channel->met = channel->team->local_size;
    }
    for (int turn = 0; turn < 4 && channel->out_next < channel->chunks; turn++) {
        bool moved = false;
        horon_status_t status = post(channel, &moved);
        if (status == HORON_OK && channel->team->host_count > 1)
            status = net(channel, &moved, error);
        if (status != HORON_OK)
            return status;
        moved |= out(channel);
        if (!moved)
            break;
        *moved_out = true;
    }
    return channel->out_next == channel->chunks ? HORON_OK : HORON_IN_PROGRESS;
}

static horon_status_t enter(struct horon_channel *channel)
{
    if (is_root(channel)) {
        struct horon_cursor cursor = {0};
        if (channel->small_op)
            horon_copy_in(
                channel, &cursor, 0, channel->op->count,
                horon_slot_data(channel->small[horon_slot_of(channel)][channel->team->local_rank]));
        copy_own(channel);
    }
    horon_enter(channel);
    if (channel->small_op)
        return small_entered(channel);
    channel->phase = HORON_PHASE_CHUNKS;
    return HORON_IN_PROGRESS;
}

static horon_status_t advance(struct horon_channel *channel, bool *moved_out,
                              struct horon_error *error)
{
    horon_status_t status = HORON_IN_PROGRESS;
    if (channel->phase == HORON_PHASE_ENTER) {
        if (!horon_may_enter(channel))
            return HORON_IN_PROGRESS;
        status = enter(channel);
        *moved_out = true;
        if (status != HORON_IN_PROGRESS)
            return status;
    }
    if (channel->phase == HORON_PHASE_MEET) {
        status = small_meet(channel, error);
        if (status != HORON_IN_PROGRESS)
            return status; /* what follows was not begun if it failed */
    }
    if (channel->phase == HORON_PHASE_NET)
        status = small_net(channel, error);
    else if (channel->phase == HORON_PHASE_RESULT)
        status = small_result(channel, error);
    else if (channel->phase == HORON_PHASE_CHUNKS)
        status = advance_chunks(channel, moved_out, error);
    return status;
}

const struct horon_verb_ops horon_broadcast_ops = {.begin = begin, .advance = advance};
