/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce: root gets the reduction of all inputs. Completion is local: the other ranks do not learn
 * that root has it.
 *
 * Small: as an allreduce, but a rank that has nothing to compute or to get has done its part
 * when its input lies in its small slot, and another host than root's when its sum is sent.
 *
 * Chunked: as an allreduce of several hosts does it (allreduce.c), but that slices stay where they
 * were reduced. Here rank 2 of five, and root:
 *
 *     POST      its input but slice 2 -> own slot           | flag "posted"
 *     REDUCE    slice 2 of everybody  -> own slot
 *     EXCHANGE  slice 2, with its other carriers            | flag "reduced", but root's
 *     OUT       root: all slices, from the slots of its host -> dst | root's flag "reduced"
 *
 * So the work is everybody's, and root reads (L-1)/L of the bytes from others. Between hosts the
 * slices take a plan that ends at root's (plan/reduce_*.c): every other host sends S bytes, which
 * is the least; of large ones root's host gets S, too, and no host more. A rank that has its host
 * to itself sends from its input, or, as root, receives into its output.
 */
#include "allreduce_state.h"
#include "exec/exchange.h"

#include <string.h>

static bool is_root(const struct horon_channel *channel)
{
    return channel->team->rank == channel->op->agreed.root;
}

static bool is_root_here(const struct horon_channel *channel)
{
    return channel->team->host_of[channel->op->agreed.root] == channel->team->host;
}

/* ---- small ---------------------------------------------------------------------------------- */

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
    assert(is_root(channel));
    horon_cursor_copy_out(channel, &cursor, 0, channel->count,
                          horon_slot_data(channel->result[horon_channel_slot(channel)]));
    return HORON_OK;
}

static horon_status_t small_exchanged(struct horon_channel *channel, struct horon_error *error)
{
    if (!is_root_here(channel))
        return HORON_OK;
    horon_reduction_finish_small(&horon_allreduce_of(channel)->reduction, channel);
    if (is_root(channel))
        return small_published(channel, error);
    horon_phase_publish(channel);
    return HORON_OK;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Our slices are exchanged: root reads them where they lie. */
static void finish_slices(struct horon_channel *channel, uint64_t chunk)
{
    struct horon_allreduce *state = horon_allreduce_of(channel);
    struct horon_walk ours;
    const void *src = NULL;
    const bool there = horon_allreduce_own_memory(channel, chunk, &state->finish_at, &src) != NULL;
    horon_walk_begin(&ours, channel, chunk, HORON_WALK_OURS, &state->finish_at);
    for (uint64_t count; (count = horon_walk_run(channel, &ours)) > 0;
         horon_walk_use(channel, &ours, count)) {
        void *slice = there ? (void *)ours.run.dst : horon_walk_own(channel, &ours);
        horon_reduce_finish(state->reduction.dtype, &state->reduction.finish, slice, slice, count);
    }
}

static horon_status_t exchange(struct horon_channel *channel, uint64_t chunk,
                               struct horon_error *error)
{
    if (channel->team->host_count > 1) {
        const uint64_t end = channel->pipeline.next[HORON_STAGE_REDUCE];
        const horon_status_t status = horon_exchange_advance(channel, chunk, end, error);
        if (status != HORON_OK)
            return status;
        if (is_root_here(channel))
            finish_slices(channel, chunk);
    }
    if (!is_root(channel))
        horon_pipeline_say_reduced(channel, chunk);
    return HORON_OK;
}

static bool others_have_reduced(const struct horon_channel *channel, uint64_t chunk)
{
    const struct horon_team *team = channel->team;
    for (int local = 0; local < team->local_size; local++)
        if (local != team->local_rank && !horon_pipeline_has_reduced(channel, local, chunk))
            return false;
    return true;
}

/* From where all have reduced their slices. */
static void copy_out(struct horon_channel *channel, uint64_t chunk)
{
    struct horon_walk all;
    horon_walk_begin(&all, channel, chunk, HORON_WALK_ALL, &horon_allreduce_of(channel)->out_at);
    for (uint64_t count; (count = horon_walk_run(channel, &all)) > 0;
         horon_walk_use(channel, &all, count))
        memcpy(all.run.dst, all.slots[horon_slice_owner(channel, all.segment)] + all.offset,
               count * channel->element_bytes);
}

static horon_status_t out(struct horon_channel *channel, uint64_t chunk, struct horon_error *error)
{
    (void)error;
    struct horon_allreduce *state = horon_allreduce_of(channel);
    const void *src = NULL;
    if (!is_root(channel))
        return HORON_OK;
    if (!others_have_reduced(channel, chunk))
        return HORON_IN_PROGRESS;
    if (!horon_allreduce_own_memory(channel, chunk, &state->out_at, &src))
        copy_out(channel, chunk);
    horon_pipeline_say_reduced(channel, chunk);
    return HORON_OK;
}

/* Does that rank owe this one something for the chunk that is next in a stage? */
static bool waits_for(const struct horon_channel *channel, int rank)
{
    const struct horon_team *team = channel->team;
    const struct horon_pipeline *pipeline = &channel->pipeline;
    const uint64_t *next = pipeline->next, posts = next[HORON_STAGE_POST];
    const int local = team->local_rank_of[rank];
    if (team->host_of[rank] != team->host)
        return horon_exchange_waits_for(channel, next[HORON_STAGE_REDUCE], rank);
    if (horon_phase_misses(channel, local))
        return true;
    if (next[HORON_STAGE_REDUCE] < posts) /* what comes later lacks that, on other ranks too */
        return !horon_pipeline_has_posted(channel, local, next[HORON_STAGE_REDUCE]);
    if (is_root(channel) && next[HORON_STAGE_OUT] < next[HORON_STAGE_EXCHANGE])
        return !horon_pipeline_has_reduced(channel, local, next[HORON_STAGE_OUT]);
    return posts >= HORON_SLOTS && posts < pipeline->chunks &&
           !horon_pipeline_has_reduced(channel, local, posts - HORON_SLOTS);
}

static const struct horon_pipeline_ops to_root = {
    .turn = horon_pipeline_turn,
    .step =
        {
            [HORON_STAGE_POST] = horon_allreduce_post,
            [HORON_STAGE_REDUCE] = horon_allreduce_reduce,
            [HORON_STAGE_EXCHANGE] = exchange,
            [HORON_STAGE_OUT] = out,
        },
    .waits_for = waits_for,
};

/* ---- the choice ------------------------------------------------------------------------------ */

static horon_status_t entered(struct horon_channel *channel, struct horon_error *error)
{
    (void)error;
    struct horon_allreduce *state = horon_allreduce_of(channel);
    const size_t chunk_bytes = horon_reduction_chunk_bytes(channel);
    const bool exchanges = channel->team->host_count > 1 && channel->team->local_rank == 0;
    if (state->small && !exchanges && !is_root(channel))
        return HORON_OK; /* others read its slot */
    if (state->small)
        return horon_phase_meet(channel, HORON_MEET_ALL);
    state->post_at = state->reduce_at = state->finish_at = state->out_at = (struct horon_cursor){0};
    return horon_pipeline_begin(channel, &to_root, channel->count, channel->element_bytes,
                                chunk_bytes);
}

const struct horon_verb_ops horon_reduce_ops = {
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
