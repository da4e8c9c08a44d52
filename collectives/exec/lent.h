/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading where it lies. What one rank of a host gives another goes through slots in two copies: in
 * and out. Where the system lets processes read each other's memory (process_vm_readv()), what is
 * long takes one: each rank's entry offers its input, and a rank that gets a part of it reads that
 * there. A pipeline of one chunk:
 *
 *     POST      -                                            | flag "posted"
 *     EXCHANGE  what this rank gets, from the others' inputs | flag "reduced"
 *     OUT       all have read: the inputs are their owners' again
 *
 * A rank that cannot read, or may not write yet, marks its "reduced" flag as refused. All see that
 * when all have read, and the operation goes through slots then; where it was the system that
 * refused, so do all later ones of the channel.
 *
 * An owner that gives up has its input back at once, while others may be reading it. So an offer
 * goes with a stamp, a word of the owner's in the memory of the channel that changes before that. A
 * reader looks at it behind the data: if it is still the offer's, the data was, too, unless the
 * owner's process has ended and another one has got its number (alive.h). To get the word of the
 * owner's own memory, in the same call, takes a twentieth of the time that 64 KiB take. (As with
 * loans, link/mux_loan.c.)
 */
#ifndef HORON_EXEC_LENT_H
#define HORON_EXEC_LENT_H

#include "channel_state.h"

/** Where a rank's input lies, as its entry says to the others of its host. */
struct horon_lent_input {
    uint64_t at; /* address in its process */
    uint64_t stamp;
};
static_assert(sizeof(struct horon_lent_input) == 2 * sizeof(uint64_t),
              "entries have room for as much");

/** What this rank gets of one rank of its host. */
struct horon_lent_part {
    struct horon_lent_input offer;
    uint64_t from; /* bytes behind offer.at */
    uint64_t bytes;
    char *to; /* of this rank's own: where offer.at + from is, if it is there already */
};

/** Lies in the state of a verb. */
struct horon_lent {
    struct horon_lent_part *parts; /* [local_size] */
    int next;                      /* read, from the one behind this rank on; its own is last */
    uint64_t moved;                /* bytes of the next one */
    bool waits;                    /* this rank has read, and said so */
    uint64_t seen;                 /* of what the others have read meanwhile */
    bool refused;                  /* once the pipeline is over: it goes through slots now */
};

/** Bytes for its table, [local_size] parts. */
size_t horon_lent_table_bytes(const struct horon_team *team);

/** May inputs of so many bytes be read where they lie? All ranks of the host say the same. @param
 * most_bytes  that a rank gets of another */
bool horon_lent_serves(const struct horon_channel *channel, uint64_t most_bytes);
/** What this rank's entry says. */
struct horon_lent_input horon_lent_offer(const struct horon_channel *channel, const void *input);
/** Begins the pipeline; the parts are set. @param refused this rank cannot take part, as it would
 * write where others read. @return IN_PROGRESS, for verbs to return */
horon_status_t horon_lent_begin(struct horon_channel *channel, struct horon_lent *lent,
                                bool refused);
/** Nobody reads this rank's input any more, as of now. */
void horon_lent_recall(struct horon_channel *channel);

#endif
