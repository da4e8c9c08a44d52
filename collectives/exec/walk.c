/* SPDX-License-Identifier: Apache-2.0 */
/* Walks over parts and slices; see walk.h. Nothing here looks at flags: which rank may
 * read a slot, and when, is the pipeline's matter. */
#include "exec/walk.h"

#include <string.h>

void horon_cursor_copy_in(struct horon_channel *channel, struct horon_cursor *cursor, uint64_t from,
                          uint64_t to, uint8_t *memory)
{
    struct horon_piece piece;
    for (; horon_cursor_next(channel, cursor, from, to, &piece); from += piece.count) {
        const size_t bytes = piece.count * channel->element_bytes;
        horon_stream_copy(&channel->stream, memory, piece.src, bytes);
        memory += bytes;
    }
}

void horon_cursor_copy_out(const struct horon_channel *channel, struct horon_cursor *cursor,
                           uint64_t from, uint64_t to, const uint8_t *memory)
{
    struct horon_piece piece;
    for (; horon_cursor_next(channel, cursor, from, to, &piece); from += piece.count) {
        const size_t bytes = piece.count * channel->element_bytes;
        memcpy(piece.dst, memory, bytes);
        memory += bytes;
    }
}

bool horon_chunk_is_in_place(const struct horon_channel *channel, uint64_t chunk,
                             struct horon_cursor *cursor, struct horon_piece *piece_out)
{
    const uint64_t from = chunk * channel->pipeline.chunk_count;
    const uint64_t count = horon_pipeline_elements(channel, chunk);
    if (channel->team->local_size > 1 || channel->op->drops)
        return false;
    horon_cursor_next(channel, cursor, from, from + count, piece_out);
    return piece_out->count == count;
}

static uint64_t bound(const struct horon_channel *channel, uint64_t count, int segment)
{
    const uint64_t segments = (uint64_t)channel->team->segments;
    if ((uint64_t)segment == segments)
        return count;
    const uint64_t in_line = 64 / channel->element_bytes ? 64 / channel->element_bytes : 1;
    return count / segments * (uint64_t)segment / in_line * in_line;
}

struct horon_slice horon_slice_of(const struct horon_channel *channel, uint64_t count, int segment)
{
    assert(segment >= 0);
    assert(segment < channel->team->segments);
    const struct horon_slice slice = {.from = bound(channel, count, segment),
                                      .to = bound(channel, count, segment + 1)};
    assert(slice.from <= slice.to);
    return slice;
}

struct horon_walk *horon_walk_begin(struct horon_walk *walk, const struct horon_channel *channel,
                                    uint64_t chunk, enum horon_walk_over over,
                                    struct horon_cursor *cursor)
{
    *walk = (struct horon_walk){.over = over,
                                .first = chunk * channel->pipeline.chunk_count,
                                .count = horon_pipeline_elements(channel, chunk),
                                .slots = horon_pipeline_slots(channel, chunk),
                                .cursor = cursor,
                                .segment = -1};
    return walk;
}

static bool is_of(const struct horon_channel *channel, const struct horon_walk *walk)
{
    if (walk->over == HORON_WALK_ALL)
        return true;
    const bool ours = horon_slice_owner(channel, walk->segment) == channel->team->local_rank;
    return ours == (walk->over == HORON_WALK_OURS);
}

static bool next_segment(const struct horon_channel *channel, struct horon_walk *walk)
{
    do
        walk->segment++;
    while (walk->segment < channel->team->segments && !is_of(channel, walk));
    if (walk->segment >= channel->team->segments)
        return false;
    const struct horon_slice slice = horon_slice_of(channel, walk->count, walk->segment);
    walk->at = slice.from;
    walk->end = slice.to;
    return true;
}

uint64_t horon_walk_fetch(const struct horon_channel *channel, struct horon_walk *walk)
{
    assert(walk->run.count == 0);
    while (walk->at == walk->end)
        if (!next_segment(channel, walk))
            return 0;
    horon_cursor_next(channel, walk->cursor, walk->first + walk->at, walk->first + walk->end,
                      &walk->run);
    walk->offset = (size_t)walk->at * channel->element_bytes;
    walk->at += walk->run.count;
    return walk->run.count;
}
