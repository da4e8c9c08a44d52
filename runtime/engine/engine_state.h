/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an engine, shared by the files of this folder (README.md). */
#ifndef HORON_ENGINE_STATE_H
#define HORON_ENGINE_STATE_H

#include "engine/engine.h"
#include "engine/membership.h"
#include "engine/team.h"
#include "observe/events.h"

/** First byte of a control message; the number of the team follows. */
enum horon_control_kind {
    HORON_CONTROL_COORDINATOR = 1, /* the rest is the coordinator's */
    HORON_CONTROL_ABORT = 2,       /* an error, as horon_error_write() writes it */
    HORON_CONTROL_GOODBYE = 3,     /* departures that the sender has heard of: u64 and u32 each */
    HORON_CONTROL_END = 4,         /* likewise; the sender itself leaves, and this link ends */
    HORON_CONTROL_LINKED = 5,      /* the sender has this link, which was made after joining */
    HORON_CONTROL_MESSAGE = 6,     /* what comes next for this team's messages: see messages.c */
    HORON_CONTROL_REFUSAL = 7,     /* a message that its receiver describes otherwise */
    HORON_CONTROL_STOPPED = 8, /* the sender stays, but the team ended there; u32: whose fault */
    HORON_CONTROL_GAVE_UP = 9  /* of a backend of the sender's: horon_backend_context */
};

/** Control messages of teams that do not exist here yet: another member is ahead. It may have as
 * many tensors in flight there as everywhere, all with names that are new. */
#define HORON_EARLY_BYTES_MAX ((size_t)128 << 20)

struct horon_early {
    struct horon_early *next;
    uint32_t team;
    int peer;
    size_t byte_count;
    uint8_t bytes[];
};

struct horon_engine {
    struct horon_engine_options options;
    struct horon_names names;
    struct horon_events *events;
    struct horon_event_reader traced; /* events that the log has seen, if it wants a trace */
    struct horon_membership *membership;
    struct horon_engine_team *job; /* team 0, and first of the list */
    uint32_t newest_team; /* the highest so far; one below it that is not in the list is over */
    struct horon_early *early, **early_tail;
    size_t early_bytes;

    struct horon_backends backends;
    struct horon_tickets tickets; /* of what this rank's teams launch on its device */

    struct horon_work *pool;              /* batches to use again */
    struct horon_neutrals *neutrals;      /* what ranks that have joined give; see join.c */
    uint8_t *dropped;                     /* and where they put what they get; or NULL */
    _Atomic(struct horon_post *) mailbox; /* newest first */
    struct horon_post closed_mark;        /* the mailbox's head once it is closed; never followed */
    _Atomic uint32_t in_flight;           /* in all teams; only the owner stores it */
    uint64_t ends, ends_seen, ends_seen_ns; /* of requests, so far; at the last look for stalls */
    bool leaving, said_goodbye, saw_end, heard; /* an end on this host; for heard see express.c */
    bool said_gave_up, heard_gave_up;           /* HORON_CONTROL_GAVE_UP */
    uint8_t *message; /* [HORON_CONTROL_BYTES_MAX] to put the kind before a coordinator's message */
};

/** @return NULL: there is none */
struct horon_engine_team *horon_engine_find_team(const struct horon_engine *engine, uint32_t id);
/** As horon_mux_options has it: has all on a channel ended here for good? */
bool horon_engine_channel_is_over(void *engine, uint32_t channel);
/** Drops data that rank @p peer of the job has sent for a team that is not here any more. */
void horon_engine_forget_data(struct horon_engine *engine, uint32_t id, int peer);
/** Any but the job; it has nothing in flight. */
void horon_engine_free_team(struct horon_engine *engine, struct horon_engine_team *team);
/** Forgets what came for teams that are not made yet. */
void horon_engine_free_early(struct horon_engine *engine);
/** One as the options say; their links are taken over, also on failure. */
horon_status_t horon_engine_create_membership(struct horon_engine *engine,
                                              struct horon_membership **membership_out,
                                              struct horon_error *error);
/** Moves what the links can move. */
bool horon_engine_move_links(struct horon_engine *engine);

/* control.c */
horon_status_t horon_engine_on_control(void *engine, int peer, const void *bytes, size_t byte_count,
                                       struct horon_error *error);
/** Hands over what came for a team before it was made. @p team NULL: it is forgotten. */
horon_status_t horon_engine_take_early(struct horon_engine *engine, uint32_t id,
                                       struct horon_engine_team *team, struct horon_error *error);
/** @return was there anything to send? */
bool horon_team_send_coordinator(struct horon_engine_team *team);
void horon_team_flood_abort(struct horon_engine_team *team);
/** A link to a rank of the job is new: if the team has failed, that hears why before all else. */
void horon_team_on_new_link(struct horon_engine_team *team, int job_rank);
/** Says to every member with a link, and on the host, that this rank leaves the team, and the job
 * or not, having done @p own. */
void horon_team_say_goodbye(struct horon_engine_team *team, const struct horon_departures *own,
                            bool leaves_job);
/** Says likewise that this rank stays, but takes no more part in the team, which has failed here:
 * to those that may have messages with it, and to all if it has done less than those that left. */
void horon_team_say_stopped(struct horon_engine_team *team, const struct horon_departures *own);
/** Has a member said anything of departures, as one that leaves the team does? */
bool horon_team_has_heard(const struct horon_engine_team *team, int rank);
/** Takes note of an abort in shared memory, and of ranks of this host that left. */
void horon_team_hear_host(struct horon_engine_team *team);
/** Likewise, and fails what can no longer end. */
void horon_team_check_left(struct horon_engine_team *team);

/* explain.c */
/** A request of which a warning spoke has ended well after all. */
void horon_engine_stall_over(const struct horon_engine *engine,
                             const struct horon_request *request);

/* posts.c */
/** Takes what was posted, in order. @return was there anything? */
bool horon_engine_take_posts(struct horon_engine *engine);
/** Before a request ends on this rank only: if it has no name it does not count then, and the next
 * one has its number, since that is what the other ranks begin. */
void horon_team_uncount(struct horon_engine_team *team, const struct horon_request *request);
/** Begins a request anew, of which nothing has begun, with a coordinator that knows none. */
void horon_team_resubmit(struct horon_engine_team *team);
/** Takes the last posts and lets nothing more in. */
void horon_engine_close_mailbox(struct horon_engine *engine);

/* lanes.c */
/** Queues an in-order request; or begins one that is alone, as horon_engine_run_now(). */
void horon_team_push_ordered(struct horon_engine_team *team, struct horon_request *request);
horon_status_t horon_team_run_ordered(struct horon_engine_team *, struct horon_request *request);
/** Begins what may be begun and advances the first operation, which there is. */
bool horon_lane_turn(struct horon_engine_team *team, struct horon_lane *lane);
/** Advances the first operation; ends its requests. @return true if anything moved */
static inline bool horon_lane_advance(struct horon_engine_team *team, struct horon_lane *lane)
{
    return lane->head && !lane->stuck && horon_lane_turn(team, lane);
}
/** Sends what the coordinator says, and turns its decisions into work. */
bool horon_team_coordinate(struct horon_engine_team *team);
void horon_team_take_decisions(struct horon_engine_team *); /* likewise, before all is ended */
/** Work that is done, or given up: batches are kept for the next ones. */
void horon_work_recycle(struct horon_engine *engine, struct horon_work *work);
void horon_work_free(struct horon_work *work); /* one of the pool */

/* join.c */
/** Of a request that comes while ranks have joined, or this one has: ends it, if it cannot be. */
bool horon_team_refuse_joined(struct horon_engine_team *team, struct horon_request *request);
/** This rank joins, once all that it has in flight has ended. */
void horon_team_start_join(struct horon_engine_team *team, struct horon_request *request);
/** Begins or ends this rank's join, if it may be now. @return did it? */
bool horon_team_move_join(struct horon_engine_team *team);
/** This rank's join, if there is one, has ended; or begins anew, with another coordinator. */
void horon_team_forget_join(struct horon_engine_team *team);
void horon_team_join_anew(struct horon_engine_team *team);
/** All have decided that a rank has joined, having done @p ordered operations in order. */
void horon_team_note_joined(struct horon_engine_team *team, int rank, uint64_t ordered);
/** Parts of the operation that a rank which has joined carries out. */
size_t horon_absent_count_parts(const struct horon_absent *absent);
/** Makes it, but for its check. @p parts [horon_absent_count_parts()]; @p scratch_out may be set to
 * memory that is to be freed when it has ended. @return OK | ERR_MEMORY */
horon_status_t horon_team_fill_absent(struct horon_engine_team *team,
                                      const struct horon_absent *absent, struct horon_operation *op,
                                      struct horon_part *parts, void **scratch_out);
/** It has ended, well or not. */
void horon_team_count_absent(struct horon_engine_team *team, const char *name);
void horon_engine_free_neutrals(struct horon_engine *engine);

/* trace.c */
/** Adds what happened to an operation of this rank to the ring of events. */
static inline void horon_engine_add_event(struct horon_engine *engine, enum horon_event_kind kind,
                                          const struct horon_operation *op, uint64_t value,
                                          int32_t other)
{
    horon_events_add(engine->events, kind, (uint32_t)op->agreed.team, op->agreed.verb,
                     op->name_hash, value, other);
}
/** Likewise, with the elements of a request's input, from what lies together in it. */
static inline void horon_engine_add_request_event(struct horon_engine *engine,
                                                  enum horon_event_kind kind,
                                                  const struct horon_request *request,
                                                  int32_t other)
{
    horon_events_add(engine->events, kind, request->set, request->verb, request->subject,
                     request->part.count, other);
}
/** Likewise of a control message, its kind instead of a verb. */
void horon_engine_add_message_event(struct horon_engine *engine, enum horon_event_kind kind,
                                    int peer, uint8_t control, size_t bytes);
/** Logs the events since the last call, a line each, in a log that wants a trace. */
void horon_engine_trace(struct horon_engine *engine);

/* finish.c */
/** Ends a request: unlinks it, wakes, calls back, drops a reference. @param failure  NULL: well */
void horon_engine_end(struct horon_engine *engine, struct horon_request *request,
                      const struct horon_error *failure);
/** Likewise several, which ended well. */
void horon_engine_end_well(struct horon_engine *, struct horon_request *const *, size_t count);
/** Likewise for what failed on this rank alone. @param text NULL: that of the status */
void horon_engine_end_here(struct horon_engine *engine, struct horon_request *request,
                           horon_status_t status, const char *text);
/** Ends all requests of a team in flight. If there are any, what ranks share for it stays. */
void horon_team_end_all(struct horon_engine_team *team, const struct horon_error *failure);
void horon_engine_link(struct horon_engine *engine, struct horon_request *request);
/** Lets go of a prepared request's handle and of the post's reference, now or when it has ended. */
void horon_engine_drop(struct horon_engine *engine, struct horon_request *request);

#endif
