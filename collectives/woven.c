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
#include "channel_state.h"

#include <string.h>

/* What is worth a call that does things side by side: runs of small tensors are shorter. */
enum { WOVEN_BYTES = 2048 };

/* The slices of a chunk that this rank reduces, or all others, run by run. */
struct walk {
    bool ours;
    uint64_t first, count; /* of the chunk: where it begins, and its elements */
    uint8_t **slots;       /* [local_size] */
    struct horon_cursor *cursor;
    int segment;
    uint64_t at, end;       /* what the run leaves of the segment, from the chunk's begin */
    struct horon_piece run; /* count 0: none was fetched */
    size_t offset;          /* of the run, in a slot */
};

static struct walk *walk_begin(struct walk *walk, const struct horon_channel *channel,
                               uint64_t chunk, bool ours, struct horon_cursor *cursor)
{
    *walk = (struct walk){.ours = ours,
                          .first = chunk * channel->chunk_count,
                          .count = horon_chunk_elements(channel, chunk),
                          .slots = channel->chunk[(channel->chunk_base + chunk) % HORON_SLOTS],
                          .cursor = cursor,
                          .segment = -1};
    return walk;
}

static bool next_segment(const struct horon_channel *channel, struct walk *walk)
{
    const struct horon_team *team = channel->team;
    do
        walk->segment++;
    while (walk->segment < team->segments &&
           (walk->segment % team->local_size == team->local_rank) != walk->ours);
    if (walk->segment >= team->segments)
        return false;
    walk->at = horon_slice_bound(channel, walk->count, team->segments, walk->segment);
    walk->end = horon_slice_bound(channel, walk->count, team->segments, walk->segment + 1);
    return true;
}

/* @return elements of the run, the next one if it was used up; 0: the walk is over, or NULL */
static uint64_t run_of(const struct horon_channel *channel, struct walk *walk)
{
    if (!walk)
        return 0;
    if (walk->run.count)
        return walk->run.count;
    while (walk->at == walk->end)
        if (!next_segment(channel, walk))
            return 0;
    horon_cursor_next(channel->parts, walk->cursor, channel->element_bytes, walk->first + walk->at,
                      walk->first + walk->end, &walk->run);
    walk->offset = (size_t)walk->at * channel->element_bytes;
    walk->at += walk->run.count;
    return walk->run.count;
}

/* Where in the chunk the run begins. */
static uint64_t place_of(const struct walk *walk)
{
    return walk->at - walk->run.count;
}

/* What in may overwrite once the run of out is out. */
static uint64_t room_behind(const struct walk *out, const struct walk *in)
{
    return out->at > place_of(in) ? out->at - place_of(in) : 0;
}

static void use_up(const struct horon_channel *channel, struct walk *walk, uint64_t count)
{
    const size_t bytes = (size_t)count * channel->element_bytes;
    walk->run.src += bytes;
    walk->run.dst += bytes;
    walk->run.count -= count;
    walk->offset += bytes;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The sides of a reduction of our run, from everybody to everybody. */
static void set_sides(struct horon_channel *channel, const struct walk *ours)
{
    const struct horon_team *team = channel->team;
    int outs = 0;
    channel->outputs[outs++] = ours->run.dst;
    for (int i = 0; i < team->local_size; i++) {
        channel->inputs[i] = ours->slots[i] + ours->offset;
        if (i != team->local_rank)
            channel->outputs[outs++] = ours->slots[i] + ours->offset;
    }
    channel->inputs[team->local_rank] = ours->run.src;
}

/* Of each run as much, one after the other. */
static void in_turn(struct horon_channel *channel, struct walk *ours, uint64_t reduced,
                    struct walk *out, uint64_t to_out, struct walk *in, uint64_t to_post)
{
    const int me = channel->team->local_rank, n = channel->team->local_size;
    if (reduced) {
        set_sides(channel, ours);
        horon_reduce_tree(channel->op->agreed.dtype, channel->combine, channel->inputs, n,
                          channel->op->agreed.prescale, channel->outputs, n, (size_t)reduced,
                          &channel->finish);
        use_up(channel, ours, reduced);
    }
    if (to_out) {
        memcpy(out->run.dst, out->slots[me] + out->offset, to_out * channel->element_bytes);
        use_up(channel, out, to_out);
    }
    if (to_post) {
        memcpy(in->slots[me] + in->offset, in->run.src, to_post * channel->element_bytes);
        use_up(channel, in, to_post);
    }
}

/* For each element that is reduced one for each of the others, side by side. */
static void side_by_side(struct horon_channel *channel, struct walk *ours, uint64_t reduced,
                         struct walk *out, struct walk *in)
{
    const int me = channel->team->local_rank, n = channel->team->local_size;
    const uint64_t copied = reduced * (uint64_t)(n - 1);
    struct horon_reduce_copy copies[2];
    int n_copies = 0;
    if (out)
        copies[n_copies++] = (struct horon_reduce_copy){out->run.dst, out->slots[me] + out->offset};
    if (in)
        copies[n_copies++] = (struct horon_reduce_copy){in->slots[me] + in->offset, in->run.src};
    set_sides(channel, ours);
    horon_reduce_tree_beside(channel->op->agreed.dtype, channel->combine, channel->inputs, n,
                             channel->op->agreed.prescale, channel->outputs, n, (size_t)reduced,
                             &channel->finish, copies, n_copies, copied * channel->element_bytes);
    use_up(channel, ours, reduced);
    if (out)
        use_up(channel, out, copied);
    if (in)
        use_up(channel, in, copied);
}

/* Does all of the walks; NULL: none. They share a slot: in stays behind out, so that it overwrites
 * only what is out. */
static void weave(struct horon_channel *channel, struct walk *ours, struct walk *out,
                  struct walk *in)
{
    const uint64_t others = (uint64_t)channel->team->local_size - 1;
    for (;;) {
        const uint64_t reduced = run_of(channel, ours);
        const uint64_t to_out = run_of(channel, out), to_post = run_of(channel, in);
        if (!reduced && !to_out && !to_post)
            return;
        const bool both = to_out && to_post;
        const uint64_t copied = both ? least(to_out, to_post) : to_out + to_post;
        const bool apart = !reduced || !copied || ours->run.src != ours->run.dst ||
                           (both && place_of(in) > place_of(out));
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
    return chunk == channel->post_next && chunk < channel->chunks &&
           horon_slot_free(channel, chunk);
}

static void post(struct horon_channel *channel)
{
    struct walk in;
    weave(channel, NULL, NULL,
          walk_begin(&in, channel, channel->post_next, false, &channel->post_at));
    horon_say_posted(channel, channel->post_next++);
}

static bool ready(struct horon_channel *channel, uint64_t k)
{
    if (k > 0 && !horon_all_reduced(channel, k - 1))
        return false;
    return k == channel->chunks || (channel->post_next > k && horon_all_posted(channel, k));
}

static void pass(struct horon_channel *channel, uint64_t k)
{
    struct walk walks[3], *ours = NULL, *out = NULL, *in = NULL;
    if (k < channel->chunks)
        ours = walk_begin(&walks[0], channel, k, true, &channel->reduce_at);
    if (k > 0)
        out = walk_begin(&walks[1], channel, k - 1, false, &channel->out_at);
    if (may_post(channel, k + 1))
        in = walk_begin(&walks[2], channel, k + 1, false, &channel->post_at);
    weave(channel, ours, out, in);
    if (out)
        channel->out_next++;
    if (in)
        horon_set_posted(channel, channel->post_next++);
    if (!ours)
        return; /* nobody waits for what is only out */
    horon_set_reduced(channel, channel->reduce_next++);
    horon_host_wake_all(channel->host, HORON_WAKE_DATA);
}

bool horon_woven_advance(struct horon_channel *channel)
{
    const bool met = channel->met == channel->team->local_size;
    const uint64_t k = channel->reduce_next, next = channel->post_next;
    if (met && ready(channel, k)) {
        pass(channel, k);
        return true;
    }
    /* what the pass needs; and while some are not there yet, what there is room for */
    if ((met && next > k) || next >= k + HORON_SLOTS || !may_post(channel, next))
        return false;
    post(channel);
    return true;
}
