/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks over an operation's vector: over the parts it is made of, and over the slices of a chunk.
 *
 * A chunk is cut in as many slices as the largest host has ranks; a segment is the number of one.
 * On a host of L ranks, local rank k mod L reduces and carries segment k: where hosts are equal,
 * each rank has one. A walk
 * goes run by run over the slices that are this rank's, over all others, or over all; a run lies in
 * one slice and in one part. Host and wire, one host and several take the same walk.
 */
#ifndef HORON_EXEC_WALK_H
#define HORON_EXEC_WALK_H

#include "channel_state.h"

#include <assert.h>

/** Walks the parts of an operation by element position; only forward. */
struct horon_cursor {
    size_t part;
    uint64_t part_start; /* position of the part's first element */
};

/** A run inside one part. */
struct horon_piece {
    const char *src; /* NULL: a broadcast has no input but on the root */
    char *dst;       /* NULL: nor a reduce an output */
    uint64_t count;
};

/** @return false when [@p from, @p to) is used up; else the next run of it inside one part. */
static inline bool horon_cursor_next(const struct horon_channel *channel,
                                     struct horon_cursor *cursor, uint64_t from, uint64_t to,
                                     struct horon_piece *piece_out)
{
    if (from >= to)
        return false;
    const struct horon_part *part = channel->op->parts + cursor->part;
    const size_t element = channel->element_bytes;
    assert(to <= channel->count);
    assert(from >= cursor->part_start);
    for (; from - cursor->part_start >= part->count; part++, cursor->part++)
        cursor->part_start += part->count;
    const uint64_t inside = from - cursor->part_start;
    const uint64_t left = part->count - inside;
    piece_out->src = part->src ? (const char *)part->src + inside * element : NULL;
    piece_out->dst = part->dst ? (char *)part->dst + inside * element : NULL;
    piece_out->count = to - from < left ? to - from : left;
    return true;
}

/** Copies [from, to) of the inputs to memory that others read, or of memory to the outputs. */
void horon_cursor_copy_in(struct horon_channel *channel, struct horon_cursor *cursor, uint64_t from,
                          uint64_t to, uint8_t *memory);
void horon_cursor_copy_out(const struct horon_channel *channel, struct horon_cursor *cursor,
                           uint64_t from, uint64_t to, const uint8_t *memory);

/** Elements [from, to) of a chunk. */
struct horon_slice {
    uint64_t from, to;
};

/** Segment @p segment of a chunk of @p count elements; slices begin on line boundaries. */
struct horon_slice horon_slice_of(const struct horon_channel *channel, uint64_t count, int segment);
/** The local rank that reduces and carries a segment. */
static inline int horon_slice_owner(const struct horon_channel *channel, int segment)
{
    return segment % channel->team->local_size;
}

/** May this rank work on @p chunk where the operation has it? It has its host to itself, so nobody
 * looks for it in a slot, and the chunk lies in one part, whose output is this operation's alone
 * until it ends. @param cursor where the chunk before ended @param piece_out then the chunk in it
 */
bool horon_chunk_is_in_place(const struct horon_channel *channel, uint64_t chunk,
                             struct horon_cursor *cursor, struct horon_piece *piece_out);

enum horon_walk_over { HORON_WALK_OURS, HORON_WALK_OTHERS, HORON_WALK_ALL };

struct horon_walk {
    enum horon_walk_over over;
    uint64_t first, count; /* of the chunk: where it begins, and its elements */
    uint8_t **slots;       /* [local_size] */
    struct horon_cursor *cursor;
    int segment;            /* of the run */
    uint64_t at, end;       /* what the run leaves of the segment, from the chunk's begin */
    struct horon_piece run; /* count 0: none was fetched */
    size_t offset;          /* of the run, in a slot */
};

/** Begins a walk over @p chunk; @p cursor is where the walk over the chunk before ended. */
struct horon_walk *horon_walk_begin(struct horon_walk *walk, const struct horon_channel *channel,
                                    uint64_t chunk, enum horon_walk_over over,
                                    struct horon_cursor *cursor);

/** Fetches the next run, the last one being used up. @return its elements; 0: the walk is over */
uint64_t horon_walk_fetch(const struct horon_channel *channel, struct horon_walk *walk);

/** @return elements of the run, the next one if it was used up; 0: the walk is over, or NULL */
static inline uint64_t horon_walk_run(const struct horon_channel *channel, struct horon_walk *walk)
{
    if (!walk)
        return 0;
    return walk->run.count ? walk->run.count : horon_walk_fetch(channel, walk);
}

/** @p count elements of the run are done with. */
static inline void horon_walk_use(const struct horon_channel *channel, struct horon_walk *walk,
                                  uint64_t count)
{
    const size_t bytes = (size_t)count * channel->element_bytes;
    assert(count <= walk->run.count);
    if (walk->run.src)
        walk->run.src += bytes;
    if (walk->run.dst)
        walk->run.dst += bytes;
    walk->run.count -= count;
    walk->offset += bytes;
}

/** Where in the chunk the run begins. */
static inline uint64_t horon_walk_place(const struct horon_walk *walk)
{
    return walk->at - walk->run.count;
}

/** This rank's slot, at the run. */
static inline uint8_t *horon_walk_own(const struct horon_channel *channel,
                                      const struct horon_walk *walk)
{
    return walk->slots[channel->team->local_rank] + walk->offset;
}

#endif
