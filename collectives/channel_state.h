/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a channel, shared by the verb files. See channel.h for the idea. */
#ifndef HORON_CHANNEL_STATE_H
#define HORON_CHANNEL_STATE_H

#include "channel.h"

/** Walks the parts of an operation by element position; only forward. */
struct horon_cursor {
    size_t part;
    uint64_t part_start; /* position of the part's first element */
};

/** A run inside one part. */
struct horon_piece {
    const char *src;
    char *dst;
    uint64_t at; /* position in the whole vector */
    uint64_t count;
};

/** Where the operation stands; each verb uses the ones it needs, in this order. */
enum horon_phase {
    HORON_PHASE_IDLE,
    HORON_PHASE_ENTER,  /* waiting until the small slot may be written again, then writing it */
    HORON_PHASE_MEET,   /* waiting for the slots of the host's ranks */
    HORON_PHASE_NET,    /* first rank of a host: exchanging the small result */
    HORON_PHASE_RESULT, /* other ranks: waiting for that */
    HORON_PHASE_CHUNKS  /* the pipeline of chunks */
};

struct horon_channel {
    struct horon_channel_options options;
    const struct horon_team *team;
    struct horon_host *host;

    /* tables by local rank, so that the hot path does no address arithmetic */
    struct horon_slot_head **small[HORON_SLOTS];
    struct horon_slot_head *result[HORON_SLOTS]; /* of the first rank of the host */
    uint8_t **chunk[HORON_SLOTS];
    struct horon_flag **posted, **reduced;
    const void **inputs; /* [local_size], scratch of one reduction */
    void **outputs;      /* [local_size + 1] */

    uint64_t ended;                   /* operations */
    const struct horon_operation *op; /* in flight */
    const struct horon_part *parts;   /* the operation's, or `moved` */
    size_t element_bytes;
    horon_redop_t combine;              /* the reduction with AVERAGE made SUM */
    struct horon_reduce_finish partial; /* of a host's sum, which is rounded; then of the whole */
    struct horon_reduce_finish finish;
    enum horon_phase phase;
    int met; /* local ranks whose entry was seen, from 0 up */
    bool small_op;

    uint64_t chunk_base;  /* chunks of all former operations: flags count on for ever */
    uint64_t chunks;      /* of this operation */
    uint64_t chunk_count; /* elements of a full chunk */
    uint64_t post_next, reduce_next, net_next, out_next; /* next chunk for each stage */
    uint64_t posted_seen, reduced_seen; /* lowest flag of all ranks, as last seen */
    struct horon_cursor post_at, reduce_at, finish_at, out_at;

    /* exchanges between hosts: [HORON_SLOTS][carried] runs, each with scratch */
    int carried; /* segments this rank carries */
    struct horon_netrun *nets;
    struct net_memory {
        void *bytes;
        size_t limit;
    } * net_scratch;
    int *carriers; /* [segments][host_count] job rank that carries a segment on a host */
    int *leaders;  /* [host_count] */

    /* allgather */
    uint64_t *rows;          /* [size] by rank: what travels */
    uint64_t *counts;        /* [size] elements by rank */
    uint64_t *bounds;        /* [size + 1], by host for the exchange of counts, then of rows */
    uint64_t *starts;        /* [size] first element of a rank in the output */
    char *gathered;          /* the output */
    struct horon_part moved; /* the input, where it was moved within the output */
    struct horon_transfer *transfers; /* [HORON_SLOTS][transfer_max] */
    int *transfer_peers;              /* likewise: the rank at the other end */
    size_t transfer_max;
    size_t transfer_count[HORON_SLOTS];
};

/** What a verb does; one table in channel.c. */
struct horon_verb_ops {
    void (*begin)(struct horon_channel *channel);
    horon_status_t (*advance)(struct horon_channel *channel, bool *moved_out,
                              struct horon_error *error);
};
extern const struct horon_verb_ops horon_allreduce_ops;
extern const struct horon_verb_ops horon_broadcast_ops;
extern const struct horon_verb_ops horon_allgather_ops;

/* ---- steps that verbs share (channel.c, chunks.c) ---- */

/** @return false when [@p from, @p to) is used up; else the next run of it inside one part. */
bool horon_cursor_next(const struct horon_part *parts, struct horon_cursor *cursor,
                       size_t element_bytes, uint64_t from, uint64_t to,
                       struct horon_piece *piece_out);

/** Copies [from, to) of the inputs to memory, or of memory to the outputs. */
void horon_copy_in(struct horon_channel *channel, struct horon_cursor *cursor, uint64_t from,
                   uint64_t to, uint8_t *memory);
void horon_copy_out(struct horon_channel *channel, struct horon_cursor *cursor, uint64_t from,
                    uint64_t to, const uint8_t *memory);

/** The slot index of the operation in flight. */
static inline int horon_slot_of(const struct horon_channel *channel)
{
    return (int)(channel->ended % HORON_SLOTS);
}

/** May this rank's small slot be written: has everybody entered the operation before? */
bool horon_may_enter(struct horon_channel *channel);
/** Publishes this rank's entry; its data, if any, is already in the slot. */
void horon_enter(struct horon_channel *channel);
/**
 * Looks for the entries of the host's ranks. @return OK, all are there and agree | IN_PROGRESS |
 * ERR_MISMATCH
 */
horon_status_t horon_meet(struct horon_channel *channel, struct horon_error *error);

/**
 * Up to how many bytes an operation is small. A second meeting costs a task switch where ranks
 * share cores, a cache miss where they do not, and several hosts must agree without knowing each
 * other's cores.
 */
size_t horon_small_limit(const struct horon_channel *channel);

/** Bounds of slice @p index of @p parts of @p count elements, on line boundaries. */
uint64_t horon_slice_bound(const struct horon_channel *channel, uint64_t count, int parts,
                           int index);

/** Elements of chunk @p chunk. */
uint64_t horon_chunk_elements(const struct horon_channel *channel, uint64_t chunk);
/** Have all ranks of the host posted (or reduced) @p chunk of this operation? */
bool horon_all_posted(struct horon_channel *channel, uint64_t chunk);
bool horon_all_reduced(struct horon_channel *channel, uint64_t chunk);
/** This rank has posted (reduced) all chunks up to and with @p chunk. Wakes nobody: the caller
 * does, or takes the form below. */
void horon_set_posted(struct horon_channel *channel, uint64_t chunk);
void horon_set_reduced(struct horon_channel *channel, uint64_t chunk);
/** The same, and wakes those that sleep. */
void horon_say_posted(struct horon_channel *channel, uint64_t chunk);
void horon_say_reduced(struct horon_channel *channel, uint64_t chunk);
/** One host: a step of a chunked allreduce (woven.c). Before all have met, nothing is written but
 * this rank's slots. @return was there one to do? */
bool horon_woven_advance(struct horon_channel *channel);
/** Is the slot of @p chunk free: everybody done with what was in it? */
bool horon_slot_free(struct horon_channel *channel, uint64_t chunk);
/** Sets up the counters for an operation of @p total elements. Chunks are of @p chunk_bytes, with
 * several hosts of net_chunk_bytes if that is less. */
void horon_chunks_begin(struct horon_channel *channel, uint64_t total, size_t chunk_bytes);

/**
 * Advances the exchanges of chunks net_next .. @p end - 1; the later ones too, as their data may be
 * what a peer waits for. @return OK: chunk net_next is through | IN_PROGRESS | as
 * horon_netrun_advance()
 */
horon_status_t horon_nets_advance(struct horon_channel *channel, uint64_t end,
                                  struct horon_error *error);

/** Scratch of a net run, grown to @p bytes. @return NULL: ERR_MEMORY */
void *horon_net_scratch(struct horon_channel *channel, int index, size_t bytes);
/** Segment number @p index of those this rank carries. */
static inline int horon_carried_segment(const struct horon_channel *channel, int index)
{
    return channel->team->local_rank + index * channel->team->local_size;
}
/** Runs of slot @p slot: [carried]. */
static inline struct horon_netrun *horon_nets_of(struct horon_channel *channel, int slot)
{
    return channel->nets + slot * channel->carried;
}

#endif
