/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce: every rank gets the reduction of all inputs. A barrier is one of nothing.
 *
 * Small: each rank's input lies in its small slot; on one host everybody reduces everything for
 * itself (one meeting, no second). With several hosts the first rank of each does it, exchanges,
 * and publishes.
 *
 * Chunked: chunk c is cut in as many slices as the largest host has ranks, here five. Rank 2
 *
 *     posts    its input but slice 2 -> own slot          | flag "posted"
 *     reduces  slice 2 of everybody  -> dst, all slots    | flag "reduced"
 *     outputs  own slot but slice 2  -> dst
 *
 * That is 2 meetings a chunk, and 2 (L-1)/L of the bytes through slots for each of L ranks, the
 * least for private buffers. On one host woven.c does it. With several the reduced slice first
 * travels among its carriers (a net run), in the owner's slot, between "reduces" and the flag. The
 * tree of additions is that of DESIGN: ranks of a host pairwise in rank order, then hosts; who
 * computes a node never changes it. An average of float16 is divided by a power of two before a
 * host's sum is rounded, so that sums of hosts do not overflow.
 */
#include "channel_state.h"

#include <string.h>

/* Of a slot, on one host. What a rank reads of a chunk is to be in its second-level cache still
 * when it is written; ranks that share a core share that, too. */
enum { CHUNK_PART = 4, CROWDED_CHUNK_PART = 8 };

static size_t chunk_bytes(const struct horon_channel *channel)
{
    const size_t slot = channel->host->shape.chunk_bytes;
    if (channel->team->host_count > 1)
        return slot;
    return slot / (channel->host->crowded ? CROWDED_CHUNK_PART : CHUNK_PART);
}

static void begin(struct horon_channel *channel)
{
    size_t bytes = (size_t)channel->op->count * channel->element_bytes;
    channel->small_op = bytes <= horon_small_limit(channel);
    horon_chunks_begin(channel, channel->small_op ? 0 : channel->op->count, chunk_bytes(channel));
}

/* ---- small ---------------------------------------------------------------------------------- */

static void reduce_small_to_outputs(struct horon_channel *channel)
{
    struct horon_cursor cursor = {0};
    struct horon_piece piece;
    struct horon_slot_head **heads = channel->small[horon_slot_of(channel)];
    int local_size = channel->team->local_size;
    size_t element = channel->element_bytes;
    for (uint64_t at = 0;
         horon_cursor_next(channel->parts, &cursor, element, at, channel->op->count, &piece);
         at += piece.count) {
        for (int i = 0; i < local_size; i++)
            channel->inputs[i] = horon_slot_data(heads[i]) + at * element;
        void *out = piece.dst;
        horon_reduce_tree(channel->op->agreed.dtype, channel->combine, channel->inputs, local_size,
                          channel->op->agreed.prescale, &out, 1, piece.count, &channel->finish);
    }
}

static horon_status_t begin_small_net(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    struct horon_slot_head **heads = channel->small[horon_slot_of(channel)];
    void *work = horon_slot_data(channel->result[horon_slot_of(channel)]);
    for (int i = 0; i < team->local_size; i++)
        channel->inputs[i] = horon_slot_data(heads[i]);
    if (channel->op->count)
        horon_reduce_tree(channel->op->agreed.dtype, channel->combine, channel->inputs,
                          team->local_size, channel->op->agreed.prescale, &work, 1,
                          channel->op->count, &channel->partial);
    struct horon_netrun_args args = {
        .plan = {.kind = horon_plan_choose(channel->options.net_algorithm, team->host_count,
                                           channel->op->count * channel->element_bytes),
                 .rank = team->host,
                 .size = team->host_count,
                 .count = channel->op->count},
        .ranks = channel->leaders,
        .mux_of = team->mux_of,
        .rank_names = team->rank_names,
        .dtype = channel->op->agreed.dtype,
        .op = channel->combine,
        .work = work,
        .channel = (uint32_t)channel->options.channel,
        .sequence = channel->ended,
        .check = channel->op->check,
    };
    args.scratch = horon_net_scratch(
        channel, 0, (size_t)horon_plan_scratch(&args.plan) * channel->element_bytes);
    if (!args.scratch)
        return HORON_ERR_MEMORY;
    return horon_netrun_begin(&channel->nets[0], &args);
}

static void publish_small_result(struct horon_channel *channel)
{
    struct horon_cursor cursor = {0};
    struct horon_slot_head *result = channel->result[horon_slot_of(channel)];
    uint8_t *data = horon_slot_data(result);
    if (channel->op->count)
        horon_reduce_finish(channel->op->agreed.dtype, &channel->finish, data, data,
                            channel->op->count);
    atomic_store_explicit(&result->sequence, channel->ended + 1, memory_order_release);
    horon_host_wake_all(channel->host, HORON_WAKE_DATA);
    horon_copy_out(channel, &cursor, 0, channel->op->count, data);
}

/* After the host's ranks have met. @return OK: it ended on this rank */
static horon_status_t small_met(struct horon_channel *channel)
{
    if (channel->team->host_count == 1) {
        reduce_small_to_outputs(channel);
        return HORON_OK;
    }
    if (channel->team->local_rank != 0) {
        channel->phase = HORON_PHASE_RESULT;
        return HORON_IN_PROGRESS;
    }
    channel->phase = HORON_PHASE_NET;
    horon_status_t status = begin_small_net(channel);
    return status == HORON_OK ? HORON_IN_PROGRESS : status;
}

static horon_status_t small_net(struct horon_channel *channel, struct horon_error *error)
{
    horon_status_t status = horon_netrun_advance(&channel->nets[0], error);
    if (status == HORON_OK)
        publish_small_result(channel);
    return status;
}

static horon_status_t small_result(struct horon_channel *channel)
{
    struct horon_slot_head *result = channel->result[horon_slot_of(channel)];
    if (atomic_load_explicit(&result->sequence, memory_order_acquire) != channel->ended + 1)
        return HORON_IN_PROGRESS;
    struct horon_cursor cursor = {0};
    horon_copy_out(channel, &cursor, 0, channel->op->count, horon_slot_data(result));
    return HORON_OK;
}

/* ---- chunks --------------------------------------------------------------------------------- */

static bool post(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    uint64_t chunk = channel->post_next;
    if (chunk == channel->chunks || chunk >= channel->out_next + HORON_SLOTS ||
        !horon_slot_free(channel, chunk))
        return false;
    uint64_t first = chunk * channel->chunk_count;
    uint64_t count = horon_chunk_elements(channel, chunk);
    uint8_t *slot = channel->chunk[(channel->chunk_base + chunk) % HORON_SLOTS][team->local_rank];
    for (int k = 0; k < team->segments; k++) {
        if (k % team->local_size == team->local_rank)
            continue; /* ours to reduce: it is read where it is */
        uint64_t from = horon_slice_bound(channel, count, team->segments, k);
        uint64_t to = horon_slice_bound(channel, count, team->segments, k + 1);
        horon_copy_in(channel, &channel->post_at, first + from, first + to,
                      slot + from * channel->element_bytes);
    }
    channel->post_next++;
    horon_say_posted(channel, chunk);
    return true;
}

/* A slice of this rank, from everybody on this host to our own slot. */
static void reduce_to_slot(struct horon_channel *channel, uint64_t first, uint64_t from,
                           uint64_t to, uint8_t **slots)
{
    const struct horon_team *team = channel->team;
    struct horon_piece piece;
    size_t element = channel->element_bytes;
    for (uint64_t at = first + from;
         horon_cursor_next(channel->parts, &channel->reduce_at, element, at, first + to, &piece);
         at += piece.count) {
        size_t offset = (size_t)(at - first) * element;
        for (int i = 0; i < team->local_size; i++)
            channel->inputs[i] = slots[i] + offset;
        channel->inputs[team->local_rank] = piece.src;
        void *out = slots[team->local_rank] + offset;
        horon_reduce_tree(channel->op->agreed.dtype, channel->combine, channel->inputs,
                          team->local_size, channel->op->agreed.prescale, &out, 1, piece.count,
                          &channel->partial);
    }
}

static horon_status_t begin_net(struct horon_channel *channel, uint64_t chunk, int index,
                                uint8_t *work, uint64_t count)
{
    const struct horon_team *team = channel->team;
    int slot = (int)((channel->chunk_base + chunk) % HORON_SLOTS);
    int segment = horon_carried_segment(channel, index);
    size_t bytes = (size_t)count * channel->element_bytes;
    struct horon_netrun_args args = {
        .plan = {.kind = horon_plan_choose(channel->options.net_algorithm, team->host_count, bytes),
                 .rank = team->host,
                 .size = team->host_count,
                 .count = count},
        .ranks = channel->carriers + segment * team->host_count,
        .mux_of = team->mux_of,
        .rank_names = team->rank_names,
        .dtype = channel->op->agreed.dtype,
        .op = channel->combine,
        .work = work,
        .channel = (uint32_t)channel->options.channel,
        .sequence = channel->ended,
        .tag = chunk << 32 | (uint64_t)segment << 16,
        .check = channel->op->check,
    };
    args.scratch =
        horon_net_scratch(channel, slot * channel->carried + index,
                          (size_t)horon_plan_scratch(&args.plan) * channel->element_bytes);
    if (!args.scratch)
        return HORON_ERR_MEMORY;
    return horon_netrun_begin(&horon_nets_of(channel, slot)[index], &args);
}

static horon_status_t reduce(struct horon_channel *channel, bool *moved_out)
{
    const struct horon_team *team = channel->team;
    uint64_t chunk = channel->reduce_next;
    if (chunk == channel->post_next || !horon_all_posted(channel, chunk))
        return HORON_OK;
    int slot = (int)((channel->chunk_base + chunk) % HORON_SLOTS);
    uint64_t first = chunk * channel->chunk_count;
    uint64_t count = horon_chunk_elements(channel, chunk);
    for (int index = 0; index < channel->carried; index++) {
        int k = horon_carried_segment(channel, index);
        uint64_t from = horon_slice_bound(channel, count, team->segments, k);
        uint64_t to = horon_slice_bound(channel, count, team->segments, k + 1);
        uint8_t **slots = channel->chunk[slot];
        reduce_to_slot(channel, first, from, to, slots);
        uint8_t *work = slots[team->local_rank] + from * channel->element_bytes;
        horon_status_t status = begin_net(channel, chunk, index, work, to - from);
        if (status != HORON_OK)
            return status;
    }
    channel->reduce_next++;
    *moved_out = true;
    return HORON_OK;
}

/* A slice came back from the other hosts: finished to our output, and from there to all slots. */
static void spread(struct horon_channel *channel, uint64_t first, uint64_t from, uint64_t to,
                   uint8_t **slots)
{
    const struct horon_team *team = channel->team;
    struct horon_piece piece;
    size_t element = channel->element_bytes;
    for (uint64_t at = first + from;
         horon_cursor_next(channel->parts, &channel->finish_at, element, at, first + to, &piece);
         at += piece.count) {
        size_t offset = (size_t)(at - first) * element;
        horon_reduce_finish(channel->op->agreed.dtype, &channel->finish,
                            slots[team->local_rank] + offset, piece.dst, piece.count);
        for (int i = 0; i < team->local_size; i++)
            if (i != team->local_rank)
                memcpy(slots[i] + offset, piece.dst, piece.count * element);
    }
}

static horon_status_t net(struct horon_channel *channel, bool *moved_out, struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    horon_status_t status = horon_nets_advance(channel, channel->reduce_next, error);
    if (status != HORON_OK)
        return status == HORON_IN_PROGRESS ? HORON_OK : status;
    uint64_t chunk = channel->net_next;
    int slot = (int)((channel->chunk_base + chunk) % HORON_SLOTS);
    uint64_t count = horon_chunk_elements(channel, chunk);
    for (int index = 0; index < channel->carried; index++) {
        int k = horon_carried_segment(channel, index);
        spread(channel, chunk * channel->chunk_count,
               horon_slice_bound(channel, count, team->segments, k),
               horon_slice_bound(channel, count, team->segments, k + 1), channel->chunk[slot]);
    }
    channel->net_next++;
    horon_say_reduced(channel, chunk);
    *moved_out = true;
    return HORON_OK;
}

static bool out(struct horon_channel *channel)
{
    const struct horon_team *team = channel->team;
    uint64_t chunk = channel->out_next;
    if (chunk == channel->net_next || !horon_all_reduced(channel, chunk))
        return false;
    uint64_t first = chunk * channel->chunk_count;
    uint64_t count = horon_chunk_elements(channel, chunk);
    uint8_t *slot = channel->chunk[(channel->chunk_base + chunk) % HORON_SLOTS][team->local_rank];
    for (int k = 0; k < team->segments; k++) {
        if (k % team->local_size == team->local_rank)
            continue; /* the reduction wrote it to the output */
        uint64_t from = horon_slice_bound(channel, count, team->segments, k);
        uint64_t to = horon_slice_bound(channel, count, team->segments, k + 1);
        horon_copy_out(channel, &channel->out_at, first + from, first + to,
                       slot + from * channel->element_bytes);
    }
    channel->out_next++;
    return true;
}

/* Several hosts, all of this one have met. Reducing comes first, since others wait for it; then our
 * own copies. */
static horon_status_t reduce_and_output(struct horon_channel *channel, bool *moved_out,
                                        struct horon_error *error)
{
    horon_status_t status = reduce(channel, moved_out);
    if (status == HORON_OK)
        status = net(channel, moved_out, error);
    if (status == HORON_OK)
        *moved_out |= out(channel);
    return status;
}

static horon_status_t advance_chunks(struct horon_channel *channel, bool *moved_out,
                                     struct horon_error *error)
{
    for (int turn = 0; turn < 4 && channel->out_next < channel->chunks; turn++) {
        bool moved = false;
        horon_status_t status = HORON_OK;
        if (channel->met < channel->team->local_size)
            status = horon_meet(channel, error);
        if (status < 0)
            return status;
        if (channel->team->host_count == 1) {
            moved = horon_woven_advance(channel);
        } else {
            if (status == HORON_OK)
                status = reduce_and_output(channel, &moved, error);
            if (status < 0)
                return status;
            moved |= post(channel);
        }
        if (!moved)
            break;
        *moved_out = true;
    }
    return channel->out_next == channel->chunks ? HORON_OK : HORON_IN_PROGRESS;
}

static void enter(struct horon_channel *channel)
{
    if (channel->small_op) {
        struct horon_cursor cursor = {0};
        struct horon_slot_head *own =
            channel->small[horon_slot_of(channel)][channel->team->local_rank];
        horon_copy_in(channel, &cursor, 0, channel->op->count, horon_slot_data(own));
    }
    horon_enter(channel);
    channel->phase = channel->small_op ? HORON_PHASE_MEET : HORON_PHASE_CHUNKS;
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
            status = small_met(channel);
        if (status != HORON_IN_PROGRESS)
            return status; /* what follows was not begun if it failed */
    }
    if (channel->phase == HORON_PHASE_NET)
        status = small_net(channel, error);
    else if (channel->phase == HORON_PHASE_RESULT)
        status = small_result(channel);
    else if (channel->phase == HORON_PHASE_CHUNKS)
        status = advance_chunks(channel, moved_out, error);
    return status;
}

const struct horon_verb_ops horon_allreduce_ops = {.begin = begin, .advance = advance};
