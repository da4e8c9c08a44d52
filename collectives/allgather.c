/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allgather: every rank gets all inputs, joined in rank order; inputs may differ in length.
 *
 * First the lengths: each rank's is in its entry; with several hosts the first ranks exchange them,
 * and publish them in a result slot. Then windows: window w is elements [w*C, (w+1)*C) of every
 * rank's input. A chunk slot is cut in equal regions: region 0 for this rank's own window, the
 * others for the windows that it fetches for its host. Rank l of a host sends its window to one
 * rank of every other host, number l mod L there; who carries which window is thus known to all.
 *
 *     post  own window -> region 0, sends and receives begun | net: all done | flag "posted"
 *     out   all windows, from the slots of this host          -> output       | flag "reduced"
 *
 * A window crosses each host boundary once: (H-1)/H of the output comes in over the network, once a
 * host.
 */
#include "channel_state.h"

#include <string.h>

static int host_size(const struct horon_team *team, int host)
{
    return team->host_first[host + 1] - team->host_first[host];
}

/* How many ranks of @p from_host send to the one with local rank @p local of a host of @p
 * local_size. */
static int senders(const struct horon_team *team, int from_host, int local_size, int local)
{
    return (host_size(team, from_host) - local + local_size - 1) / local_size;
}

/* Regions of a slot: the most any rank of the job needs. */
static int regions(const struct horon_team *team)
{
    int most = 0;
    for (int host = 0; host < team->host_count; host++) {
        int needed = 0;
        for (int other = 0; other < team->host_count; other++)
            if (other != host)
                needed += senders(team, other, host_size(team, host), 0);
        most = needed > most ? needed : most;
    }
    return 1 + most;
}

/* Region, in the slot of the rank that fetches it, of the window of a rank of another host. */
static int region_of(const struct horon_team *team, int rank)
{
    int from_host = team->host_of[rank], local = team->local_rank_of[rank];
    int receiver = local % team->local_size;
    int region = 1;
    for (int host = 0; host < from_host; host++)
        if (host != team->host)
            region += senders(team, host, team->local_size, receiver);
    return region + local / team->local_size;
}

static void begin(struct horon_channel *channel)
{
    channel->gathered = NULL;
    channel->chunks = 0;
    channel->transfer_count[0] = channel->transfer_count[1] = 0;
}

/* ---- lengths -------------------------------------------------------------------------------- */

static horon_status_t begin_counts_net(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    uint64_t *work = (uint64_t *)(void *)horon_slot_data(channel->result[horon_slot_of(channel)]);
    for (int i = 0; i < team->local_size; i++)
        work[team->host_first[team->host] + i] = channel->small[horon_slot_of(channel)][i]->count;
    for (int host = 0; host <= team->host_count; host++)
        channel->bounds[host] = (uint64_t)team->host_first[host];
    struct horon_netrun_args args = {
        .plan = {.kind = HORON_PLAN_GATHER_ALL,
                 .rank = team->host,
                 .size = team->host_count,
                 .count = (uint64_t)team->size,
                 .bounds = channel->bounds},
        .ranks = channel->leaders,
        .mux_of = team->mux_of,
        .rank_names = team->rank_names,
        .dtype = HORON_UINT64,
        .op = HORON_SUM,
        .work = work,
        .channel = (uint32_t)channel->options.channel,
        .sequence = channel->ended,
        .tag = UINT64_MAX << 32,
        .check = channel->op->check,
    };
    args.scratch = horon_net_scratch(channel, 0, (size_t)horon_plan_scratch(&args.plan) * 8);
    if (!args.scratch)
        return HORON_ERR_MEMORY;
    return horon_netrun_begin(&channel->nets[0], &args);
}

/* Lengths by rank, from the table in host order. */
static void take_counts(struct horon_channel *channel, const uint64_t *in_host_order)
{
    for (int i = 0; i < channel->team->size; i++)
        channel->rows[channel->team->host_ranks[i]] = in_host_order[i];
}

/* Elements and places by rank. @return their sum; UINT64_MAX if it does not fit */
static uint64_t place_inputs(struct horon_channel *channel, uint64_t *most_out)
{
    uint64_t total = 0, most = 0;
    for (int rank = 0; rank < channel->team->size; rank++) {
        uint64_t *count = &channel->counts[rank];
        channel->starts[rank] = total;
        if (__builtin_mul_overflow(channel->rows[rank], channel->op->row_elements, count) ||
            __builtin_add_overflow(total, *count, &total))
            return UINT64_MAX;
        most = *count > most ? *count : most;
    }
    *most_out = most;
    return total;
}

static void copy_small(struct horon_channel *channel)
{
    if (!channel->gathered)
        return;
    for (int rank = 0; rank < channel->team->size; rank++) {
        const uint8_t *data = horon_slot_data(channel->small[horon_slot_of(channel)][rank]);
        memcpy(channel->gathered + channel->starts[rank] * channel->element_bytes, data,
               channel->counts[rank] * channel->element_bytes);
    }
}

/* In place the input begins where the output does, and windows of other ranks would overwrite what
 * of it is not sent yet. At its own place in the output nothing else is written. */
static void move_to_place(struct horon_channel *channel)
{
    const int rank = channel->team->rank;
    const struct horon_part *part = &channel->parts[0];
    if (!channel->gathered || part->src != channel->gathered)
        return;
    char *place = channel->gathered + channel->starts[rank] * channel->element_bytes;
    memmove(place, part->src, channel->counts[rank] * channel->element_bytes);
    channel->moved = (struct horon_part){.src = place, .dst = part->dst, .count = part->count};
    channel->parts = &channel->moved;
}

/* All lengths are known. @return OK: it is done | IN_PROGRESS: windows follow | ERR_CONFIG */
static horon_status_t lengths_known(struct horon_channel *channel, struct horon_error *error)
{
    uint64_t most = 0;
    uint64_t total = place_inputs(channel, &most);
    if (total > INT64_MAX / channel->element_bytes)
        return horon_error_set(error, HORON_ERR_PROTO,
                               "the inputs of an allgather add up to more than memory can hold");
    void *given = channel->parts[0].dst;
    if (channel->op->output)
        given = channel->op->output(channel->op->output_arg, channel->rows, total);
    if (total == 0)
        return HORON_OK;
    channel->gathered = given; /* NULL: this rank has no room, and plays its part for the others */
    if (channel->team->host_count == 1 &&
        most * channel->element_bytes <= channel->host->shape.small_bytes) {
        copy_small(channel);
        return HORON_OK;
    }
    size_t window = channel->host->shape.chunk_bytes / (size_t)regions(channel->team);
    window = window / 64 * 64;
    if (window == 0)
        return horon_error_set(
            error, HORON_ERR_CONFIG,
            "HORON_SHM_CHUNK_BYTES=%zu is too small for an allgather among %d hosts",
            channel->host->shape.chunk_bytes, channel->team->host_count);
    move_to_place(channel);
    horon_chunks_begin(channel, most, window);
    channel->phase = HORON_PHASE_CHUNKS;
    return HORON_IN_PROGRESS;
}

static horon_status_t met(struct horon_channel *channel, struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    if (team->host_count == 1) {
        for (int rank = 0; rank < team->size; rank++)
            channel->rows[rank] = channel->small[horon_slot_of(channel)][rank]->count;
        return lengths_known(channel, error);
    }
    if ((size_t)team->size * sizeof(uint64_t) > HORON_RESULT_BYTES)
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "an allgather over several hosts takes %zu ranks at most",
                               HORON_RESULT_BYTES / sizeof(uint64_t));
    channel->phase = team->local_rank == 0 ? HORON_PHASE_NET : HORON_PHASE_RESULT;
    if (team->local_rank != 0)
        return HORON_IN_PROGRESS;
    horon_status_t status = begin_counts_net(channel);
    return status == HORON_OK ? HORON_IN_PROGRESS : status;
}

static horon_status_t counts_net(struct horon_channel *channel, struct horon_error *error)
{
    horon_status_t status = horon_netrun_advance(&channel->nets[0], error);
    if (status != HORON_OK)
        return status;
    struct horon_slot_head *result = channel->result[horon_slot_of(channel)];
    atomic_store_explicit(&result->sequence, channel->ended + 1, memory_order_release);
    horon_host_wake_all(channel->host, HORON_WAKE_DATA);
    take_counts(channel, (const uint64_t *)(void *)horon_slot_data(result));
    return lengths_known(channel, error);
}

static horon_status_t counts_result(struct horon_channel *channel, struct horon_error *error)
{
    struct horon_slot_head *result = channel->result[horon_slot_of(channel)];
    if (atomic_load_explicit(&result->sequence, memory_order_acquire) != channel->ended + 1)
        return HORON_IN_PROGRESS;
    take_counts(channel, (const uint64_t *)(void *)horon_slot_data(result));
    return lengths_known(channel, error);
}

/* ---- windows -------------------------------------------------------------------------------- */

/* Elements of the window @p chunk of @p rank. */
static uint64_t window_count(const struct horon_channel *channel, int rank, uint64_t chunk)
{
    uint64_t first = chunk * channel->chunk_count;
    if (channel->counts[rank] <= first)
        return 0;
    uint64_t left = channel->counts[rank] - first;
    return left < channel->chunk_count ? left : channel->chunk_count;
}

static uint8_t *region_at(const struct horon_channel *channel, int slot, int local_rank, int region)
{
    return channel->chunk[slot][local_rank] +
           (size_t)region * (size_t)channel->chunk_count * channel->element_bytes;
}

/* Begins one window's journey between this rank and @p peer; @p sender's it is. */
static horon_status_t begin_transfer(struct horon_channel *channel, int slot, uint64_t chunk,
                                     int sender, int peer, void *data, struct horon_error *error)
{
    size_t index = (size_t)slot * channel->transfer_max + channel->transfer_count[slot];
    struct horon_transfer *transfer = &channel->transfers[index];
    struct horon_mux *mux = channel->team->mux_of[peer];
    if (!mux)
        return horon_error_set(error, HORON_ERR_PEER_LOST, "there is no link to %s any more",
                               channel->team->rank_names[peer]);
    *transfer = (struct horon_transfer){
        .id = {(uint32_t)channel->options.channel, channel->ended, chunk << 32 | (uint64_t)sender},
        .data = data,
        .bytes = (size_t)window_count(channel, sender, chunk) * channel->element_bytes,
        .check = channel->op->check,
    };
    channel->transfer_peers[index] = peer;
    channel->transfer_count[slot]++;
    return sender == channel->team->rank ? horon_mux_post_send(mux, transfer, error)
                                         : horon_mux_post_recv(mux, transfer, error);
}

static horon_status_t post_sends(struct horon_channel *channel, uint64_t chunk, int slot,
                                 struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    if (window_count(channel, team->rank, chunk) == 0)
        return HORON_OK;
    for (int host = 0; host < team->host_count; host++) {
        if (host == team->host)
            continue;
        int receiver = team->local_rank % host_size(team, host);
        int rank = team->host_ranks[team->host_first[host] + receiver];
        horon_status_t status =
            begin_transfer(channel, slot, chunk, team->rank, rank,
                           region_at(channel, slot, team->local_rank, 0), error);
        if (status != HORON_OK)
            return status;
    }
    return HORON_OK;
}

static horon_status_t post_recvs(struct horon_channel *channel, uint64_t chunk, int slot,
                                 struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    for (int rank = 0; rank < team->size; rank++) {
        if (team->host_of[rank] == team->host ||
            team->local_rank_of[rank] % team->local_size != team->local_rank ||
            window_count(channel, rank, chunk) == 0)
            continue;
        uint8_t *region = region_at(channel, slot, team->local_rank, region_of(team, rank));
        horon_status_t status = begin_transfer(channel, slot, chunk, rank, rank, region, error);
        if (status != HORON_OK)
            return status;
    }
    return HORON_OK;
}

static horon_status_t post(struct horon_channel *channel, bool *moved_out,
                           struct horon_error *error)
{
    uint64_t chunk = channel->post_next;
    if (chunk == channel->chunks || chunk >= channel->out_next + HORON_SLOTS ||
        !horon_slot_free(channel, chunk))
        return HORON_OK;
    const struct horon_team *team = channel->team;
    int slot = (int)((channel->chunk_base + chunk) % HORON_SLOTS);
    uint64_t first = chunk * channel->chunk_count;
    channel->transfer_count[slot] = 0;
    horon_status_t status = post_recvs(channel, chunk, slot, error);
    if (status != HORON_OK)
        return status;
    horon_copy_in(channel, &channel->post_at, first,
                  first + window_count(channel, team->rank, chunk),
                  region_at(channel, slot, team->local_rank, 0));
    channel->post_next++;
    *moved_out = true;
    return post_sends(channel, chunk, slot, error);
}

static horon_status_t net(struct horon_channel *channel, bool *moved_out, struct horon_error *error)
{
    uint64_t chunk = channel->net_next;
    if (chunk == channel->post_next)
        return HORON_OK;
    int slot = (int)((channel->chunk_base + chunk) % HORON_SLOTS);
    size_t first = (size_t)slot * channel->transfer_max;
    for (size_t i = first; i < first + channel->transfer_count[slot]; i++) {
        const struct horon_transfer *transfer = &channel->transfers[i];
        int peer = channel->transfer_peers[i];
        if (transfer->done)
            continue;
        if (!channel->team->mux_of[peer])
            return horon_error_set(error, HORON_ERR_PEER_LOST, "there is no link to %s any more",
                                   channel->team->rank_names[peer]);
        if (transfer->status != HORON_OK)
            return horon_mux_transfer_error(channel->team->mux_of[peer], transfer, error);
        return horon_mux_failure(channel->team->mux_of[peer], error);
    }
    channel->net_next++;
    *moved_out = true;
    horon_say_posted(channel, chunk);
    return HORON_OK;
}

static bool out(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    uint64_t chunk = channel->out_next;
    if (chunk == channel->net_next || !horon_all_posted(channel, chunk))
        return false;
    int slot = (int)((channel->chunk_base + chunk) % HORON_SLOTS);
    for (int rank = 0; rank < team->size; rank++) {
        bool here = team->host_of[rank] == team->host;
        int local = team->local_rank_of[rank];
        const uint8_t *from = region_at(channel, slot, here ? local : local % team->local_size,
                                        here ? 0 : region_of(team, rank));
        uint64_t at = channel->starts[rank] + chunk * channel->chunk_count;
        uint64_t count = window_count(channel, rank, chunk);
        if (count && channel->gathered)
            memcpy(channel->gathered + at * channel->element_bytes, from,
                   count * channel->element_bytes);
    }
    channel->out_next++;
    horon_say_reduced(channel, chunk);
    return true;
}

static horon_status_t advance_windows(struct horon_channel *channel, bool *moved_out,
                                      struct horon_error *error)
{
    for (int turn = 0; turn < 4 && channel->out_next < channel->chunks; turn++) {
        bool moved = false;
        horon_status_t status = post(channel, &moved, error);
        if (status != HORON_OK)
            return status;
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

static void enter(struct horon_channel *channel)
{
    size_t bytes = (size_t)channel->op->count * channel->element_bytes;
    if (bytes <= channel->host->shape.small_bytes) {
        struct horon_cursor cursor = {0};
        struct horon_slot_head *own =
            channel->small[horon_slot_of(channel)][channel->team->local_rank];
        horon_copy_in(channel, &cursor, 0, channel->op->count, horon_slot_data(own));
    }
    horon_enter(channel);
    channel->phase = HORON_PHASE_MEET;
}

static horon_status_t advance(struct horon_channel *channel, bool *moved_out,
                              struct horon_error *error)
{
    horon_status_t status = HORON_IN_PROGRESS;
    if (channel->phase == HORON_PHASE_ENTER) {
        if (!horon_may_enter(channel))
            return HORON_IN_PROGRESS;
        enter(channel);
        *moved_out = true;
    }
    if (channel->phase == HORON_PHASE_MEET) {
        status = horon_meet(channel, error);
        if (status == HORON_OK)
            status = met(channel, error);
    } else if (channel->phase == HORON_PHASE_NET) {
        status = counts_net(channel, error);
    } else if (channel->phase == HORON_PHASE_RESULT) {
        status = counts_result(channel, error);
    }
    if (status == HORON_IN_PROGRESS && channel->phase == HORON_PHASE_CHUNKS)
        status = advance_windows(channel, moved_out, error);
    return status;
}

const struct horon_verb_ops horon_allgather_ops = {.begin = begin, .advance = advance};
