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
 * least for private buffers. On one host horon_allreduce_woven (woven.c) does it. With several the
 * reduced slice first travels among its carriers, in the owner's slot, between "reduces" and the
 * flag: `between_hosts`, below. The tree of additions is that of design 3.8: ranks of a host
 * pairwise in rank order, then hosts; it does not depend on the rank that computes a node.
 */
#include "allreduce_state.h"
#include "exec/exchange.h"

#include <string.h>

size_t horon_allreduce_state_bytes(const struct horon_team *team)
{
    return sizeof(struct horon_allreduce) + horon_reduction_tables_bytes(team);
}

void horon_allreduce_init(void *memory, const struct horon_team *team)
{
    struct horon_allreduce *state = memory;
    horon_reduction_init(&state->reduction, team, state + 1);
}

void horon_allreduce_begin(struct horon_channel *channel)
{
    struct horon_allreduce *state = horon_allreduce_of(channel);
    horon_reduction_begin(&state->reduction, channel);
    state->small =
        (size_t)channel->count * channel->element_bytes <= horon_channel_small_limit(channel);
}

/* ---- small ---------------------------------------------------------------------------------- */

void horon_allreduce_enter(struct horon_channel *channel)
{
    struct horon_cursor cursor = {0};
    if (horon_allreduce_of(channel)->small)
        horon_cursor_copy_in(
            channel, &cursor, 0, channel->count,
            horon_phase_place(channel, (size_t)channel->count * channel->element_bytes));
}

void horon_allreduce_give_small(struct horon_channel *channel)
{
    struct horon_reduction *reduction = &horon_allreduce_of(channel)->reduction;
    struct horon_cursor cursor = {0};
    struct horon_piece piece;
    for (uint64_t at = 0; horon_cursor_next(channel, &cursor, at, channel->count, &piece);
         at += piece.count)
        horon_reduction_of_small(reduction, channel, at, piece.count, piece.dst,
                                 &reduction->finish);
}

static horon_status_t small_met(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    if (channel->team->host_count > 1)
        return horon_reduction_exchange_small(&horon_allreduce_of(channel)->reduction, channel);
    horon_allreduce_give_small(channel);
    return HORON_OK;
}

static horon_status_t small_published(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    struct horon_cursor cursor = {0};
    horon_cursor_copy_out(channel, &cursor, 0, channel->count,
                          horon_slot_data(channel->result[horon_channel_slot(channel)]));
    return HORON_OK;
}

static horon_status_t small_exchanged(struct horon_channel *channel, struct horon_error *error)
{
    horon_reduction_finish_small(&horon_allreduce_of(channel)->reduction, channel);
    horon_phase_publish(channel);
    return small_published(channel, error);
}

/* ---- chunks of several hosts ----------------------------------------------------------------- */

/* What others reduce; this rank's own slices are read where they are. */
horon_status_t horon_allreduce_post(struct horon_channel *channel, uint64_t chunk,
                                    struct horon_error *error)
{
    (void)error;
    struct horon_walk others;
    horon_walk_begin(&others, channel, chunk, HORON_WALK_OTHERS,
                     &horon_allreduce_of(channel)->post_at);
    for (uint64_t count; (count = horon_walk_run(channel, &others)) > 0;
         horon_walk_use(channel, &others, count))
        horon_stream_copy(&channel->stream, horon_walk_own(channel, &others), others.run.src,
                          count * channel->element_bytes);
    horon_pipeline_say_posted(channel, chunk);
    return HORON_OK;
}

uint8_t *horon_allreduce_own_memory(const struct horon_channel *channel, uint64_t chunk,
                                    struct horon_cursor *cursor, const void **src_out)
{
    const struct horon_reduction *reduction = &horon_allreduce_of(channel)->reduction;
    struct horon_piece piece;
    if (channel->team->host_count == 1 || !horon_chunk_is_in_place(channel, chunk, cursor, &piece))
        return NULL;
    *src_out = piece.src;
    uint8_t *memory = (uint8_t *)(piece.dst ? piece.dst : (char *)(uintptr_t)piece.src);
    return memory != *src_out || horon_reduction_begins_plain(reduction) ? memory : NULL;
}

/* Our slices, from everybody on this host to our own slot. */
static void reduce_slices(struct horon_channel *channel, uint64_t chunk)
{
    struct horon_allreduce *state = horon_allreduce_of(channel);
    struct horon_reduction *reduction = &state->reduction;
    const bool travel = channel->team->host_count > 1;
    struct horon_walk ours;
    horon_walk_begin(&ours, channel, chunk, HORON_WALK_OURS, &state->reduce_at);
    for (uint64_t count; (count = horon_walk_run(channel, &ours)) > 0;
         horon_walk_use(channel, &ours, count)) {
        assert(reduction->inputs && count <= channel->pipeline.chunk_count);
        horon_reduction_set_inputs(reduction, channel, &ours);
        reduction->outputs[0] = horon_walk_own(channel, &ours);
        horon_reduction_run(reduction, channel, 1, count,
                            travel ? &reduction->partial : &reduction->finish);
    }
}

/* Our slices of a chunk that begins at @p memory begin to travel. */
static horon_status_t begin_travel(struct horon_channel *channel, uint64_t chunk, uint8_t *memory)
{
    const struct horon_reduction *reduction = &horon_allreduce_of(channel)->reduction;
    const uint64_t elements = horon_pipeline_elements(channel, chunk);
    horon_status_t status = HORON_OK;
    for (int index = 0; status == HORON_OK && index < channel->carried; index++) {
        const struct horon_slice slice =
            horon_slice_of(channel, elements, horon_exchange_segment(channel, index));
        const struct horon_exchange exchange =
            horon_reduction_between_hosts(reduction, channel, slice.to - slice.from);
        status = horon_exchange_begin_slice(channel, &exchange, chunk, index, memory);
    }
    return status;
}

/* Our slices are reduced in the host; then, with several hosts, they travel. */
horon_status_t horon_allreduce_reduce(struct horon_channel *channel, uint64_t chunk,
                                      struct horon_error *error)
{
    (void)error;
    struct horon_allreduce *state = horon_allreduce_of(channel);
    struct horon_reduction *reduction = &state->reduction;
    const void *src = NULL;
    if (!horon_channel_has_met(channel) || !horon_pipeline_all_posted(channel, chunk))
        return HORON_IN_PROGRESS;
    uint8_t *work = horon_allreduce_own_memory(channel, chunk, &state->reduce_at, &src);
    if (!work) {
        reduce_slices(channel, chunk);
        work = horon_pipeline_slots(channel, chunk)[channel->team->local_rank];
    } else if (src != work) {
        reduction->inputs[0] = src;
        reduction->outputs[0] = work;
        horon_reduction_run(reduction, channel, 1, horon_pipeline_elements(channel, chunk),
                            &reduction->partial);
    }
    return channel->team->host_count > 1 ? begin_travel(channel, chunk, work) : HORON_OK;
}

/* Our slices came back: finished to our output, and from there to all slots. */
static void spread(struct horon_channel *channel, uint64_t chunk)
{
    struct horon_allreduce *state = horon_allreduce_of(channel);
    const struct horon_team *team = channel->team;
    struct horon_walk ours;
    const void *src = NULL;
    const bool there = horon_allreduce_own_memory(channel, chunk, &state->finish_at, &src) != NULL;
    horon_walk_begin(&ours, channel, chunk, HORON_WALK_OURS, &state->finish_at);
    for (uint64_t count; (count = horon_walk_run(channel, &ours)) > 0;
         horon_walk_use(channel, &ours, count)) {
        horon_reduce_finish(state->reduction.dtype, &state->reduction.finish,
                            there ? ours.run.dst : (void *)horon_walk_own(channel, &ours),
                            ours.run.dst, count);
        for (int i = 0; i < team->local_size; i++)
            if (i != team->local_rank)
                memcpy(ours.slots[i] + ours.offset, ours.run.dst, count * channel->element_bytes);
    }
}

static horon_status_t exchange(struct horon_channel *channel, uint64_t chunk,
                               struct horon_error *error)
{
    const uint64_t end = channel->pipeline.next[HORON_STAGE_REDUCE];
    const horon_status_t status = horon_exchange_advance(channel, chunk, end, error);
    if (status != HORON_OK)
        return status;
    spread(channel, chunk);
    horon_pipeline_say_reduced(channel, chunk);
    return HORON_OK;
}

/* What others reduced; our slices are out. */
static horon_status_t out(struct horon_channel *channel, uint64_t chunk, struct horon_error *error)
{
    (void)error;
    struct horon_walk others;
    if (!horon_pipeline_all_reduced(channel, chunk))
        return HORON_IN_PROGRESS;
    horon_walk_begin(&others, channel, chunk, HORON_WALK_OTHERS,
                     &horon_allreduce_of(channel)->out_at);
    for (uint64_t count; (count = horon_walk_run(channel, &others)) > 0;
         horon_walk_use(channel, &others, count))
        memcpy(others.run.dst, horon_walk_own(channel, &others), count * channel->element_bytes);
    return HORON_OK;
}

bool horon_allreduce_waits_for(const struct horon_channel *channel, int rank)
{
    const struct horon_team *team = channel->team;
    const int local = team->local_rank_of[rank];
    if (team->host_of[rank] == team->host)
        return horon_phase_misses(channel, local) || horon_pipeline_is_last(channel, local);
    return horon_exchange_waits_for(channel, channel->pipeline.next[HORON_STAGE_REDUCE], rank);
}

static const struct horon_pipeline_ops between_hosts = {
    .turn = horon_pipeline_turn,
    .step =
        {
            [HORON_STAGE_POST] = horon_allreduce_post,
            [HORON_STAGE_REDUCE] = horon_allreduce_reduce,
            [HORON_STAGE_EXCHANGE] = exchange,
            [HORON_STAGE_OUT] = out,
        },
    .waits_for = horon_allreduce_waits_for,
};

/* ---- the choice ------------------------------------------------------------------------------ */

static horon_status_t entered(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    struct horon_allreduce *state = horon_allreduce_of(channel);
    const struct horon_pipeline_ops *ops =
        channel->team->host_count == 1 ? &horon_allreduce_woven : &between_hosts;
    if (state->small)
        return horon_phase_meet(channel, HORON_MEET_ALL);
    assert(channel->count > 0); /* nothing is small */
    state->post_at = state->reduce_at = state->finish_at = state->out_at = (struct horon_cursor){0};
    return horon_pipeline_begin(channel, ops, channel->count, channel->element_bytes,
                                horon_reduction_chunk_bytes(channel));
}

const struct horon_verb_ops horon_allreduce_ops = {
    .state_bytes = horon_allreduce_state_bytes,
    .init = horon_allreduce_init,
    .begin = horon_allreduce_begin,
    .enter = horon_allreduce_enter,
    .entered = entered,
    .met = small_met,
    .exchanged = small_exchanged,
    .published = small_published,
    .piped = horon_phase_done,
    .settle = horon_phase_settled,
    .reach = HORON_LINKS_REACH_OUTPUTS_ALONE,
};
