/* SPDX-License-Identifier: Apache-2.0 */
/* Messages from rank to rank, as the other files of the engine see them; messages.c. */
#ifndef HORON_ENGINE_MESSAGES_H
#define HORON_ENGINE_MESSAGES_H

#include "codec.h"
#include "engine/engine_state.h"
#include "engine/matching.h"
#include "link/mux_announced.h"

/** The channel on links of a team's messages; those of lanes are below all of these. */
static inline uint32_t horon_team_message_channel(uint32_t team)
{
    static_assert(HORON_TEAMS_END <= UINT32_C(1) << 31 >> (HORON_LANE_COUNT - 1), "each its own");
    assert(team < HORON_TEAMS_END);
    return (UINT32_C(1) << 31) + team;
}
/** The team whose data a channel carries. */
static inline uint32_t horon_team_of_channel(uint32_t channel)
{
    const uint32_t of_messages = UINT32_C(1) << 31;
    return channel >= of_messages ? channel - of_messages : channel / HORON_LANE_COUNT;
}
/** Is it the end that sends? */
static inline bool horon_message_sends(const struct horon_request *request)
{
    assert(request->paired);
    return horon_verb_of(&request->op.agreed)->reads != HORON_RANKS_NONE;
}
/** Finds out which rank of the job is at its other end. */
void horon_team_aim_message(const struct horon_engine_team *team, struct horon_request *request);
/** Takes up a message, which is linked. */
void horon_team_start_message(struct horon_engine_team *team, struct horon_request *request);
/** Begins and ends messages, as far as links have moved. @return did any? */
bool horon_team_move_messages(struct horon_engine_team *team);
/** The links forget those in flight; the caller ends their requests. */
void horon_team_give_up_messages(struct horon_engine_team *team);
/** Forgets what is bound to the membership; none is in flight. */
void horon_team_unbind_messages(struct horon_engine_team *team);
/** Is one in flight, or announced? */
bool horon_team_has_messages(const struct horon_engine_team *team);
/** A message is offered by a rank of the team. @param announced NULL: it does not announce itself
 */
horon_status_t horon_team_take_offer(struct horon_engine_team *team, struct horon_offer *offer,
                                     struct horon_mux_announced *announced);
/** Writes what a message is, behind what its receiver knows it by: its tag, of a refusal its
 * number. */
void horon_message_write_offer(struct horon_writer *out, uint64_t known_by, uint64_t count,
                               uint8_t dtype);
/** As a control message: @p peer of the team says what it sends, or that it lacks what was sent.
 * @return OK | ERR_PROTO | ERR_MEMORY */
horon_status_t horon_team_on_offer(struct horon_engine_team *team, int peer,
                                   struct horon_reader *in);
horon_status_t horon_team_on_refusal(struct horon_engine_team *team, int peer,
                                     struct horon_reader *in);
/** As horon_mux_options has it: the whole of a message comes, and says so itself. */
horon_status_t horon_engine_on_announced(void *engine, int peer,
                                         struct horon_mux_announced *announced,
                                         struct horon_error *error);

/** The transfer of a message, which is that number of its sender's. */
struct horon_transfer *horon_message_fill(struct horon_request *request, uint64_t number);
/** It is in flight on its link, or by the backend. */
void horon_message_begins(struct horon_request *request, enum horon_message_state as);
/** Ends it. @param why NULL: it went well */
void horon_message_end(struct horon_request *request, const struct horon_error *why);
/** Copies what has come whole to where its receive wants it: the link needs to know nothing of it.
 */
void horon_message_take_data(const struct horon_request *request,
                             struct horon_mux_announced *announced);
/** Is there a link to a rank of the job on both sides, and does it carry more? */
bool horon_team_has_link(const struct horon_engine_team *team, int rank);
/** Takes the room that the peer of a send has given back, where nobody has read of it yet. The send
 * is not in flight; what is may end. */
void horon_team_read_room(const struct horon_request *send);
/** Links a send that was given to its link, and has not gone whole. */
void horon_team_adopt_message(struct horon_engine_team *team, struct horon_request *request);

/** Moves the link to a rank of the job, which there is; engine.c. @return did anything move? */
bool horon_engine_move_link(struct horon_engine *engine, int peer);

/* ---- explain.c ---- */

/** How the two ranks of a message describe it that describe it differently. */
void horon_message_explain_difference(const struct horon_request *own, uint64_t their_count,
                                      uint8_t their_dtype, struct horon_error *why);
/** The receiver refuses what both describe alike: it lacks memory. */
void horon_message_explain_lack(const struct horon_request *own, struct horon_error *why);
/** No link to @p rank, of the job, can be made. @param why in, out: that of the try, where nobody
 * has left; else that rank has most likely left, too */
void horon_message_explain_unlinked(const struct horon_engine *engine, int rank,
                                    struct horon_error *why);

/* ---- control.c ---- */

/** Tells rank @p rank of the job that this side has the link between the two, which was made after
 * joining. */
void horon_engine_send_linked(struct horon_engine *engine, int rank);
/** Likewise on each link that another rank made when that rank had joined and this one had not yet.
 * Owner only. */
void horon_engine_say_linked(struct horon_engine *engine);
/** @return a control message of the team of that id, to be completed in the caller's @p bytes */
struct horon_writer horon_team_begin_message(uint32_t team, uint8_t *bytes, size_t byte_count,
                                             enum horon_control_kind kind);
/** Sends a control message of a team to a rank of the job, if it has a link. */
void horon_team_send_control(struct horon_engine_team *team, int job_rank,
                             const struct horon_writer *out);
/** The rank to blame for a departure from here: the one that left before, if that is why the team
 * has failed here, or this one. */
int horon_team_cause_to_leave(const struct horon_engine_team *team);
/** How @p rank of the team left it. */
const char *horon_team_how_left(const struct horon_engine_team *team, int rank);

#endif
