/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of phases: how an operation goes on this rank, whatever its verb.
 *
 *     ENTER     writes its small slot, as soon as nobody needs what lies there
 *     MEET      waits for the entries of the ranks of its host, or of one of them
 *     EXCHANGE  first rank of a host, of several: exchanges something small with the other hosts
 *     PUBLISH   the other ranks of that host: wait for the result of that
 *     PIPELINE  chunks of data; see exec/pipeline.h
 *
 * A verb says by horon_phase_move() (channel_state.h) which comes next, and may leave out any but
 * ENTER. Nothing goes back; but one pipeline may follow another. (docs/design.md 6, "Phases".)
 */
#ifndef HORON_EXEC_PHASES_H
#define HORON_EXEC_PHASES_H

#include "status.h"

#include <stdbool.h>
#include <stdint.h>

struct horon_channel;

enum horon_phase {
    HORON_PHASE_IDLE,
    HORON_PHASE_ENTER,
    HORON_PHASE_MEET,
    HORON_PHASE_EXCHANGE,
    HORON_PHASE_PUBLISH,
    HORON_PHASE_PIPELINE
};
#define HORON_PHASE_COUNT 6

/** Awaited: all ranks of the host. */
#define HORON_MEET_ALL (-1)

/** Bits of the phases that may come after one, by that one. */
extern const uint8_t horon_phase_after[HORON_PHASE_COUNT];

/**
 * Advances the operation through its phases as far as it goes without waiting.
 * @return as horon_channel_advance()
 */
horon_status_t horon_phase_advance(struct horon_channel *channel, bool *moved_out,
                                   struct horon_error *error);

/** The first rank of a host, of several: shows the others of its host that the data of the result
 * slot is complete. */
void horon_phase_publish(struct horon_channel *channel);

/** Where this rank puts @p bytes of data that go with its entry: for a verb's enter(). */
uint8_t *horon_phase_place(struct horon_channel *channel, size_t bytes);
/** Likewise, and not in the line of its head: an area. */
uint8_t *horon_phase_place_in_area(struct horon_channel *channel, size_t bytes);

/** For a verb whose operation has ended where its pipeline has. @return OK */
horon_status_t horon_phase_done(struct horon_channel *channel, struct horon_error *error);
/** For a verb's entered(): this rank leaves the operation, and settles what it must know of it with
 * the next one, from the entries of all of its host but @p spared. @return OK */
horon_status_t horon_phase_owe(struct horon_channel *channel, int spared);
/** For a verb whose ranks leave an operation with all that they must know. @return true */
bool horon_phase_settled(struct horon_channel *channel, void *state);
/** For the slots of a verb that is never in that phase. */
horon_status_t horon_phase_unreachable(struct horon_channel *channel, struct horon_error *error);

/** Have all ranks of the host, but the one spared, entered the operation before the one in flight?
 * Their heads of that can be read, as long as this rank has not entered this one. */
bool horon_phase_all_behind(const struct horon_channel *channel);
struct horon_slot_head *horon_phase_behind(const struct horon_channel *channel, int local);

/** Has local rank @p local not yet entered the operation in flight? */
bool horon_phase_misses(const struct horon_channel *channel, int local);
/** Does the operation in flight wait for job rank @p rank? See horon_channel_waits_for(). */
bool horon_phase_waits_for(const struct horon_channel *channel, int rank);
/** What it does just now, for texts. */
void horon_phase_explain(const struct horon_channel *channel, char *text, size_t text_bytes);

#endif
