/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce of large tensors on one host: three chunks at a time, woven into each other.
 *
 *     pass k:   reduce  chunk k:   our slice of everybody       -> dst, all slots
 *               out     chunk k-1: the others' slices, own slot -> dst
 *               post    chunk k+1: the others' slices, src      -> own slot
 *
 * Some vectors of each in turn. A core waits longest for lines that another core wrote, and one
 * stream of reads keeps but a part of the misses in flight that the core could: side by side the
 * three take a sixth less time than one after the other. What out has read, post overwrites at
 * once, while it is in the first-level cache. Where an output is not its input, it is seldom in a
 * cache, and then long copies, which write lines without reading them first, are worth more.
 *
 * There is one meeting a pass: at its end a rank says that it has posted k+1 and reduced k, and the
 * next begins when all have said so. A rank moves 2 (L-1)/L of the bytes through slots, which is
 * the least for private buffers.
 */
#include "allreduce_state.h"

#include <string.h>

/* What is worth a call that does things side by side: runs of small tensors are shorter. */
enum { WOVEN_BYTES = 2048 };

/* What in may overwrite once the run of out is out. */
static uint64_t room_behind(const struct horon_walk *out, const struct horon_walk *in)
{
    return out->at > horon_walk_place(in) ? out->at - horon_walk_place(in) : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The sides of a reduction of our run, from everybody to everybody. */
static void set_sides(struct horon_channel *channel, const struct horon_walk *ours)
{
    const struct horon_team *team = channel->team;
    struct horon_reduction *reduction = &horon_allreduce_of(channel)->reduction;
    int outs = 0;
    horon_reduction_set_inputs(reduction, channel, ours);
    reduction->outputs[outs++] = ours->run.dst;
    for (int i = 0; i < team->local_size; i++)
        if (i != team->local_rank)
            reduction->outputs[outs++] = ours->slots[i] + ours->offset;
}

/* Of each run as much, one after the other. */
static void in_turn(struct horon_channel *channel, struct horon_walk *ours, uint64_t reduced,
                    struct horon_walk *out, uint64_t to_out, struct horon_walk *in,
                    uint64_t to_post)
{
    const struct horon_reduction *reduction = &horon_allreduce_of(channel)->reduction;
    const size_t element = channel->element_bytes;
    if (reduced) {
        set_sides(channel, ours);
        horon_reduction_run(reduction, channel, channel->team->local_size, reduced,
                            &reduction->finish);
        horon_walk_use(channel, ours, reduced);
    }
    if (to_out) {
        memcpy(out->run.dst, horon_walk_own(channel, out), to_out * element);
        horon_walk_use(channel, out, to_out);
    }
    if (to_post) {
        memcpy(horon_walk_own(channel, in), in->run.src, to_post * element);
        horon_walk_use(channel, in, to_post);
    }
}

/* For each element that is reduced one for each of the others, side by side. */
static void side_by_side(struct horon_channel *channel, struct horon_walk *ours, uint64_t reduced,
                         struct horon_walk *out, struct horon_walk *in)
{
    const struct horon_reduction *reduction = &horon_allreduce_of(channel)->reduction;
    const int n = channel->team->local_size;
    const uint64_t copied = reduced * (uint64_t)(n - 1);
    struct horon_reduce_copy copies[2];
    int n_copies = 0;
    if (out)
        copies[n_copies++] = (struct horon_reduce_copy){out->run.dst, horon_walk_own(channel, out)};
    if (in)
        copies[n_copies++] = (struct horon_reduce_copy){horon_walk_own(channel, in), in->run.src};
    set_sides(channel, ours);
    horon_reduce_tree_beside(reduction->dtype, reduction->combine, reduction->inputs, n,
                             reduction->prescale, reduction->outputs, n, (size_t)reduced,
                             &reduction->finish, copies, n_copies, copied * channel->element_bytes);
    horon_walk_use(channel, ours, reduced);
    if (out)
        horon_walk_use(channel, out, copied);
    if (in)
        horon_walk_use(channel, in, copied);
}

/* Does all three walks, some of each in turn; one that is NULL is left out. The walk in writes the
 * slot that the walk out reads: so it stays behind, and overwrites only what is out already. */
static void weave(struct horon_channel *channel, struct horon_walk *ours, struct horon_walk *out,
                  struct horon_walk *in)
{
    const uint64_t others = (uint64_t)channel->team->local_size - 1;
    for (;;) {
        const uint64_t reduced = horon_walk_run(channel, ours);
        const uint64_t to_out = horon_walk_run(channel, out);
        const uint64_t to_post = horon_walk_run(channel, in);
        if (!reduced && !to_out && !to_post)
            return;
        const bool both = to_out && to_post;
        const uint64_t copied = both ? least(to_out, to_post) : to_out + to_post;
        const bool apart = !reduced || !copied || ours->run.src != ours->run.dst ||
                           (both && horon_walk_place(in) > horon_walk_place(out));
        const uint64_t woven = apart ? 0 : least(reduced, copied / others);
        if (woven * channel->element_bytes >= WOVEN_BYTES)
            side_by_side(channel, ours, woven, to_out ? out : NULL, to_post ? in : NULL);
        else
            in_turn(channel, ours, reduced, out, to_out, in,
                    both ? least(to_post, room_behind(out, in)) : to_post);
    }
}

static bool may_post(struct horon_channel *channel, uint64_t chunk)
{
    const struct horon_pipeline *pipeline = &channel->pipeline;
    return chunk == pipeline->next[HORON_STAGE_POST] && chunk < pipeline->chunks &&
           horon_pipeline_slot_free(channel, chunk);
}

static void post(struct horon_channel *channel, uint64_t chunk)
{
    struct horon_walk in;
    weave(channel, NULL, NULL,
          horon_walk_begin(&in, channel, chunk, HORON_WALK_OTHERS,
                           &horon_allreduce_of(channel)->post_at));
    channel->pipeline.next[HORON_STAGE_POST]++;
    horon_pipeline_say_posted(channel, chunk);
}

static bool ready(struct horon_channel *channel, uint64_t k)
{
    const struct horon_pipeline *pipeline = &channel->pipeline;
    if (k > 0 && !horon_pipeline_all_reduced(channel, k - 1))
        return false;
    return k == pipeline->chunks ||
           (pipeline->next[HORON_STAGE_POST] > k && horon_pipeline_all_posted(channel, k));
}

static void pass(struct horon_channel *channel, uint64_t k)
{
    struct horon_allreduce *state = horon_allreduce_of(channel);
    struct horon_pipeline *pipeline = &channel->pipeline;
    struct horon_walk walks[3], *ours = NULL, *out = NULL, *in = NULL;
    if (k < pipeline->chunks)
        ours = horon_walk_begin(&walks[0], channel, k, HORON_WALK_OURS, &state->reduce_at);
    if (k > 0)
        out = horon_walk_begin(&walks[1], channel, k - 1, HORON_WALK_OTHERS, &state->out_at);
    if (may_post(channel, k + 1))
        in = horon_walk_begin(&walks[2], channel, k + 1, HORON_WALK_OTHERS, &state->post_at);
    weave(channel, ours, out, in);
    if (out)
        pipeline->next[HORON_STAGE_OUT]++;
    if (in)
        horon_pipeline_set_posted(channel, pipeline->next[HORON_STAGE_POST]++);
    if (!ours)
        return; /* nobody waits for what is only out */
    horon_pipeline_set_reduced(channel, k);
    pipeline->next[HORON_STAGE_REDUCE] = pipeline->next[HORON_STAGE_EXCHANGE] = k + 1;
    horon_host_wake_all(channel->host, HORON_WAKE_DATA);
}

/* Before all have met, nothing is written but this rank's slots. */
static horon_status_t turn(struct horon_channel *channel, bool *moved_out,
                           struct horon_error *error)
{
    (void)error;
    const bool met = horon_channel_has_met(channel);
    const uint64_t k = channel->pipeline.next[HORON_STAGE_REDUCE];
    const uint64_t next = channel->pipeline.next[HORON_STAGE_POST];
    assert(k <= next);
    assert(next <= k + HORON_SLOTS);
    if (met && ready(channel, k)) {
        pass(channel, k);
        *moved_out = true;
        return HORON_OK;
    }
    /* what the pass needs; and while some are not there yet, what there is room for */
    if ((met && next > k) || next >= k + HORON_SLOTS || !may_post(channel, next))
        return HORON_OK;
    post(channel, next);
    *moved_out = true;
    return HORON_OK;
}

const struct horon_pipeline_ops horon_allreduce_woven = {
    .turn = turn,
    .waits_for = horon_allreduce_waits_for,
};
