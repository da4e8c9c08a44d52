/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline of chunks: a vector moves in chunks through two slots a rank, each chunk through the
 * same stages, several chunks at a time.
 *
 *     POST      puts this rank's part of the chunk where others read it
 *     REDUCE    combines what is this rank's to combine
 *     EXCHANGE  with other hosts
 *     OUT       writes this rank's output
 *
 * A chunk enters a stage after the stage before, and after the chunk before. What else it waits for
 * (others' flags, data of other hosts) the verb's step says.
 *
 * Chunks are numbered for the life of the channel, so a flag only grows: "posted" n says that its
 * rank has put chunks 0..n-1 where others read them, "reduced" n that it is done with everybody's
 * chunks 0..n-1. Chunk c lies in slot c mod 2; the slot is free again when all ranks are done with
 * chunk c - 2. Every pipeline raises both flags of every rank once for each chunk.
 */
#ifndef HORON_EXEC_PIPELINE_H
#define HORON_EXEC_PIPELINE_H

#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct horon_channel;

enum horon_stage { HORON_STAGE_POST, HORON_STAGE_REDUCE, HORON_STAGE_EXCHANGE, HORON_STAGE_OUT };
#define HORON_STAGE_COUNT 4

/** What a verb does with its chunks. */
struct horon_pipeline_ops {
    /** One turn: moves what can be moved, a bounded amount. horon_pipeline_turn(), which takes the
     * steps below, or one of its own, which keeps `next` itself. @return OK | an error */
    horon_status_t (*turn)(struct horon_channel *channel, bool *moved_out,
                           struct horon_error *error);
    /** Takes @p chunk through a stage. For horon_pipeline_turn(), and then no slot is NULL:
     * horon_pipeline_pass(). @return OK, it is through | IN_PROGRESS, not yet | an error */
    horon_status_t (*step[HORON_STAGE_COUNT])(struct horon_channel *channel, uint64_t chunk,
                                              struct horon_error *error);
    /** Does it wait for job rank @p rank, of this host or another? */
    bool (*waits_for)(const struct horon_channel *channel, int rank);
};

struct horon_pipeline {
    const struct horon_pipeline_ops *ops;
    void *arg;      /* for the steps: where they do not belong to one verb */
    uint64_t base;  /* chunks of all former pipelines */
    uint64_t first; /* base, when the operation began: chunks are named by their number since */
    uint64_t total; /* elements; what a step makes of them is its own matter */
    uint64_t chunks;
    uint64_t chunk_count;               /* elements of a full chunk */
    uint64_t next[HORON_STAGE_COUNT];   /* next chunk for each stage */
    uint64_t posted_seen, reduced_seen; /* lowest flag of all ranks, as last seen */
    const bool *absent;                 /* [local size] ranks that have no part in it; or NULL */
};

/**
 * Of a chunk, where ranks that only read wait for the first one: an eighth of @p total_bytes, so
 * that they begin early, but at least @p least_bytes, since each chunk is handed over once, and at
 * most @p most_bytes, whole lines. All ranks must give the same.
 */
size_t horon_pipeline_early_chunk(uint64_t total_bytes, size_t least_bytes, size_t most_bytes);
/**
 * Begins a pipeline of @p total elements of channel->element_bytes or other @p element_bytes, and
 * moves to its phase. Chunks are of @p chunk_bytes, with several hosts of net_chunk_bytes if that
 * is less. @return IN_PROGRESS, for verbs to return
 */
horon_status_t horon_pipeline_begin(struct horon_channel *channel,
                                    const struct horon_pipeline_ops *ops, uint64_t total,
                                    size_t element_bytes, size_t chunk_bytes);
/** @return OK, all chunks are out | IN_PROGRESS | an error */
horon_status_t horon_pipeline_advance(struct horon_channel *channel, bool *moved_out,
                                      struct horon_error *error);
/** These ranks have no part in the pipeline that has begun: nobody waits for their flags. They
 * count it later, before they enter the next operation: horon_pipeline_skip(). @p absent [local
 * size] stays as it is until it ends */
void horon_pipeline_excuse(struct horon_channel *channel, const bool *absent);
/** This rank had no part in a pipeline of @p total elements in chunks of @p chunk_bytes. */
void horon_pipeline_skip(struct horon_channel *channel, uint64_t total, size_t element_bytes,
                         size_t chunk_bytes);
/** All chunks are out: later pipelines count on from here.
 * @return false: another process has written over this rank's flags */
bool horon_pipeline_end(struct horon_channel *channel);

horon_status_t horon_pipeline_turn(struct horon_channel *channel, bool *moved_out,
                                   struct horon_error *error);
horon_status_t horon_pipeline_pass(struct horon_channel *channel, uint64_t chunk,
                                   struct horon_error *error);

/** Where @p chunk lies: by local rank. */
uint8_t **horon_pipeline_slots(const struct horon_channel *channel, uint64_t chunk);
int horon_pipeline_slot(const struct horon_channel *channel, uint64_t chunk);
/** Elements of @p chunk. */
uint64_t horon_pipeline_elements(const struct horon_channel *channel, uint64_t chunk);
/** What names data of @p chunk on its way to other hosts; the low bits are free to
 * say which rank sends. */
uint64_t horon_pipeline_tag(const struct horon_channel *channel, uint64_t chunk);

/** Have all ranks of the host posted (or reduced) @p chunk? */
bool horon_pipeline_all_posted(struct horon_channel *channel, uint64_t chunk);
bool horon_pipeline_all_reduced(struct horon_channel *channel, uint64_t chunk);
/** Has local rank @p local? */
bool horon_pipeline_has_posted(const struct horon_channel *channel, int local, uint64_t chunk);
bool horon_pipeline_has_reduced(const struct horon_channel *channel, int local, uint64_t chunk);
/** Does local rank @p local still need what was in the slot of @p chunk? */
bool horon_pipeline_keeps_slot(const struct horon_channel *channel, int local, uint64_t chunk);
/** Is there room for @p chunk, that is: are all done with what was in its slot? */
bool horon_pipeline_slot_free(struct horon_channel *channel, uint64_t chunk);
/** This rank has posted (reduced) all chunks up to and with @p chunk. Wakes nobody: the caller
 * does, or takes the form below. */
void horon_pipeline_set_posted(struct horon_channel *channel, uint64_t chunk);
void horon_pipeline_set_reduced(struct horon_channel *channel, uint64_t chunk);
/** The same, and wakes those that sleep. */
void horon_pipeline_say_posted(struct horon_channel *channel, uint64_t chunk);
void horon_pipeline_say_reduced(struct horon_channel *channel, uint64_t chunk);

/** Is local rank @p local behind this rank in the chunks, and nobody on the host further? */
bool horon_pipeline_is_last(const struct horon_channel *channel, int local);

#endif
