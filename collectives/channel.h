/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel carries one ordered sequence of operations among a team of ranks: each is begun with
 * horon_channel_begin() in the same order on every rank, and advanced until it ends. Channels are
 * independent of each other. Nothing here waits, knows names, or negotiates.
 * Thread: one at a time, the owner's.
 *
 * Three ways through (the choice is a pure function of what all ranks know):
 *  - small: every rank puts its input into a small slot; each reads all of its host's slots.
 *    With several hosts the first rank of each reduces, exchanges with the other hosts, and
 *    publishes the result.
 *  - chunked: the vector moves in chunks through slots in shared memory, two a rank. Where a verb
 *    reduces, each rank reduces its slices of every chunk, exchanges them with the ranks that carry
 *    the same slices on other hosts, and writes the result into everybody's slot. Every rank's
 *    outputs are written only after the inputs of all ranks were seen.
 *  - lent: on one host, each rank reads what it gets in its owner's memory (exec/lent.h).
 */
#ifndef HORON_CHANNEL_H
#define HORON_CHANNEL_H

#include "exec/host.h"
#include "exec/netrun.h"
#include "link/mux.h"
#include "operation.h"
#include "owner.h"
#include "reduce/reduce.h"
#include "status.h"
#include "team.h"

struct horon_channel_options {
    uint32_t channel;       /* its number on links between hosts; no other of any team has it */
    size_t arena_at;        /* where its memory begins in each arena */
    size_t net_chunk_bytes; /* chunk with several hosts */
    const char *net_algorithm;
    size_t lend_bytes; /* from so many on, inputs are read where they lie (exec/lent.h); 0: never */
    const struct horon_owner *owner; /* what may call, for HORON_ASSERT_OWNER(); NULL: any */
    /* How many the team has ended before the one in flight, for texts: words of other backends go
     * through this channel, and some operations do not. NULL: those of the channel */
    const uint64_t *ended_before;
};

struct horon_channel;

/** Is there code for this verb? Thread: any. */
bool horon_channel_has(horon_verb_t verb);
/** @return OK | ERR_MEMORY */
horon_status_t horon_channel_create(const struct horon_channel_options *options,
                                    const struct horon_team *team, struct horon_host *host,
                                    struct horon_channel **channel_out);
/** The operation in flight, if there is one, is never advanced again: nobody touches its memory. */
void horon_channel_abort(struct horon_channel *channel);
/** An operation in flight is dropped, as by horon_channel_abort(). */
void horon_channel_destroy(struct horon_channel *channel);

/** Begins an operation, which stays as it is until it ends; the former one must have ended. */
void horon_channel_begin(struct horon_channel *channel, const struct horon_operation *op);

/**
 * Advances the operation as far as it goes without waiting; one call does a bounded amount.
 * @param moved_out set to true if anything was done; else left
 * @return OK, it ended and its outputs are complete | IN_PROGRESS | ERR_MISMATCH, a rank began
 * another operation; both named | ERR_MEMORY | ERR_PROTO | ERR_PEER_LOST: the channel is dead
 */
horon_status_t horon_channel_advance(struct horon_channel *channel, bool *moved_out,
                                     struct horon_error *error);

/** Does the operation in flight wait for job rank @p rank, as far as one can see from here? For
 * texts: it may wait for another one in turn, and several may be awaited. */
bool horon_channel_waits_for(struct horon_channel *channel, int rank);
/** If the operation in flight were given up now, would its inputs be as they were, in place too? */
bool horon_channel_keeps_inputs(const struct horon_channel *channel);
/** What the operation in flight does just now, for texts; "" if there is none. */
void horon_channel_explain(const struct horon_channel *channel, char *text, size_t text_bytes);

#endif
