/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a channel, shared by the verb files and by exec/. See channel.h for the idea, and
 * README.md for how a verb is built on it.
 */
#ifndef HORON_CHANNEL_STATE_H
#define HORON_CHANNEL_STATE_H

#include "channel.h"
#include "exec/phases.h"
#include "exec/pipeline.h"
#include "exec/stream.h"

#include <assert.h>

struct horon_channel {
    struct horon_channel_options options;
    const struct horon_team *team;
    struct horon_host *host;

    /* tables by local rank, so that the hot path does no address arithmetic */
    struct horon_slot_head **small[HORON_SMALL_SLOTS];
    uint8_t **area[HORON_SMALL_SLOTS];
    struct horon_slot_head *result[HORON_SMALL_SLOTS]; /* of the first rank of the host */
    uint8_t **chunk[HORON_SLOTS];
    struct horon_flag **posted, **reduced;

    uint64_t ended;                   /* operations */
    const struct horon_operation *op; /* in flight */
    uint64_t count;                   /* elements of all parts */
    size_t element_bytes;
    const struct horon_verb_ops *verb; /* NULL before the first operation */
    void *state;                       /* of that verb */
    void *states[HORON_VERB_COUNT];    /* of each verb; those with one file share it */

    enum horon_phase phase;
    /* Of the operation before, if this rank has left it but not settled; or NULL: see settle() */
    const struct horon_verb_ops *owing;
    void *owing_state;
    int owing_spares;  /* a local rank, whose entry it does without */
    int met, meet_end; /* local ranks whose entries are awaited, from the first not yet seen on */
    bool meets_all;
    uint64_t all_entered; /* operations that all ranks of the host have entered, as far as seen */
    uint64_t area_used[HORON_SMALL_SLOTS]; /* this rank's: operations when it was used last */
    struct horon_pipeline pipeline;
    struct horon_stream stream; /* copies into its slots */
    bool lends;                 /* ranks read inputs where they lie; see exec/lent.h */

    /* exchanges between hosts: [HORON_SLOTS][carried] runs, each with scratch */
    int carried; /* segments this rank carries */
    struct horon_netrun *nets;
    struct horon_exchange_memory *exchange_memory;
    int *carriers; /* [segments][host_count] job rank that carries a segment on a host */
    int *leaders;  /* [host_count] */
};

/** What links read and write in the pipeline of a verb. */
enum horon_link_reach {
    HORON_LINKS_REACH_SLOTS,
    HORON_LINKS_REACH_OUTPUTS_ALONE, /* the operation's own memory, of a rank alone on its host */
    HORON_LINKS_REACH_OUTPUTS        /* the operation's own memory */
};

/**
 * A verb, as the engine of phases (exec/phases.h) sees it. The functions that return a status say
 * OK, the operation has ended on this rank | IN_PROGRESS, it goes on in the phase that they moved
 * to | an error. No slot is NULL: what a verb never comes to is horon_phase_unreachable().
 */
struct horon_verb_ops {
    /** Bytes of its state on this team, aligned for anything. */
    size_t (*state_bytes)(const struct horon_team *team);
    /** Sets up what lasts as long as the channel; the state is zeroed. */
    void (*init)(void *state, const struct horon_team *team);
    /** Sets up the state for the operation in channel->op. */
    void (*begin)(struct horon_channel *channel);
    /** Puts what others read with the entry into this rank's small slot. */
    void (*enter)(struct horon_channel *channel);
    /** The entry is published. */
    horon_status_t (*entered)(struct horon_channel *channel, struct horon_error *error);
    /** The awaited ranks have entered the same operation. */
    horon_status_t (*met)(struct horon_channel *channel, struct horon_error *error);
    /** The first rank of a host, of several: the small exchange is through. */
    horon_status_t (*exchanged)(struct horon_channel *channel, struct horon_error *error);
    /** The other ranks of such a host: the first one has published the result. */
    horon_status_t (*published)(struct horon_channel *channel, struct horon_error *error);
    /** All chunks of the pipeline are through. */
    horon_status_t (*piped)(struct horon_channel *channel, struct horon_error *error);
    /** This rank has left the operation before it had met the others, as `owing` says: is it known
     * by now whether they had a pipeline, and is that counted? Before the next one is entered. */
    bool (*settle)(struct horon_channel *channel, void *state);
    enum horon_link_reach reach;
};
extern const struct horon_verb_ops horon_allreduce_ops;
extern const struct horon_verb_ops horon_broadcast_ops;
extern const struct horon_verb_ops horon_allgather_ops;
extern const struct horon_verb_ops horon_alltoall_ops;
extern const struct horon_verb_ops horon_reducescatter_ops;
extern const struct horon_verb_ops horon_reduce_ops;

/** The only function that changes the phase; asserts that the move is a legal one. */
static inline void horon_phase_move(struct horon_channel *channel, enum horon_phase to)
{
    HORON_ASSERT_OWNER(channel->options.owner);
    assert(horon_phase_after[channel->phase] & 1u << to);
    channel->phase = to;
}

/** To MEET, for @p local_rank or HORON_MEET_ALL. @return IN_PROGRESS, for verbs to return */
static inline horon_status_t horon_phase_meet(struct horon_channel *channel, int local_rank)
{
    assert(local_rank >= HORON_MEET_ALL);
    assert(local_rank < channel->team->local_size);
    assert(channel->met == 0);
    channel->meets_all = local_rank == HORON_MEET_ALL;
    if (!channel->meets_all) {
        channel->met = local_rank;
        channel->meet_end = local_rank + 1;
    }
    horon_phase_move(channel, HORON_PHASE_MEET);
    return HORON_IN_PROGRESS;
}

/** Have all ranks that are awaited entered the operation in flight? */
static inline bool horon_channel_has_met(const struct horon_channel *channel)
{
    assert(channel->met <= channel->meet_end);
    return channel->met == channel->meet_end;
}

/** The slot index of the operation in flight. */
static inline int horon_channel_slot(const struct horon_channel *channel)
{
    return (int)(channel->ended % HORON_SMALL_SLOTS);
}

/** What a head shows of what all ranks must agree on, in one word: the generation of the
 * membership, and below it the lower half of the operation's check. */
static inline uint64_t horon_slot_check(uint32_t generation, uint64_t check)
{
    return (uint64_t)generation << 32 | (uint32_t)check;
}
static inline uint32_t horon_slot_generation(const struct horon_slot_head *head)
{
    return (uint32_t)(head->check >> 32);
}

/** Data of a result slot. */
static inline uint8_t *horon_slot_data(struct horon_slot_head *head)
{
    return (uint8_t *)head + sizeof *head;
}

/** Data of an entry of that local rank. */
static inline uint8_t *horon_entry_data(const struct horon_channel *channel,
                                        struct horon_slot_head *head, int local)
{
    return head->area ? channel->area[(head->area - 1) % HORON_SMALL_SLOTS][local]
                      : horon_slot_data(head);
}

/** This rank's own small slot. */
static inline struct horon_slot_head *horon_channel_own(const struct horon_channel *channel)
{
    return channel->small[horon_channel_slot(channel)][channel->team->local_rank];
}

/** Data of what that local rank has entered, if it has: the operation in flight. */
static inline uint8_t *horon_channel_data(const struct horon_channel *channel, int local)
{
    return horon_entry_data(channel, channel->small[horon_channel_slot(channel)][local], local);
}

/** What this rank began, as its peers on this host read it. */
static inline void horon_channel_fill_head(const struct horon_channel *channel,
                                           struct horon_slot_head *head)
{
    const struct horon_operation *op = channel->op->ahead_of ? channel->op->ahead_of : channel->op;
    const bool rows = horon_verb_of(&op->agreed)->ahead == HORON_AHEAD_ROWS;
    head->check = horon_slot_check(channel->team->generation, op->check);
    head->count = rows ? *op->ahead : op->count;
    head->verb = op->agreed.verb;
    head->dtype = op->agreed.dtype;
    head->redop = op->agreed.redop;
    head->root = op->agreed.root;
}

/** A head of local rank @p other shows another operation. @return ERR_MISMATCH, both are named */
horon_status_t horon_channel_differs(const struct horon_channel *channel, int other,
                                     struct horon_error *error);

/** What this rank wrote for those of its host is not there any more. @return ERR_PROTO */
horon_status_t horon_channel_damaged(const struct horon_channel *channel,
                                     struct horon_error *error);

/** Up to how many bytes an operation is small. A second meeting costs a task switch where ranks
 * share cores, a cache miss where they do not, and several hosts must agree without knowing each
 * other's cores. */
size_t horon_channel_small_limit(const struct horon_channel *channel);

#endif
