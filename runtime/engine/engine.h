/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's part of the job, without threads and without waiting: takes posted requests,
 * negotiates the named ones, runs batches on channels, ends requests, and spreads failures. It is
 * given its surroundings (shared memory, links, a clock), so that the same code runs in a process
 * and in the simulation.
 *
 * Owner: the thread that holds the progress token; one at a time. Only what says so is for any
 * thread.
 */
#ifndef HORON_ENGINE_ENGINE_H
#define HORON_ENGINE_ENGINE_H

#include "backend/backends.h"
#include "config.h"
#include "coordinator/coordinator.h"
#include "engine/request.h"
#include "link/poller.h"
#include "log.h"
#include "owner.h"
#include "topology/topology.h"

#include <assert.h>

/** Lanes of a team: one for the promised sequence, one for negotiated batches. */
enum { HORON_LANE_ORDERED, HORON_LANE_NAMED, HORON_LANE_COUNT };
/** What a rank that leaves says it has done: operations of each lane, then decisions of the
 * coordinator. Of these some are no operations: a mismatch is a decision, too. */
enum { HORON_LEFT_DECISIONS = HORON_LANE_COUNT };
static_assert(HORON_LEFT_DECISIONS + 1 == HORON_LEFT_COUNT, "a number each in shared memory");

/** Where the memory of a lane begins in each arena of its team; of HORON_LANE_COUNT: an arena's
 * size. */
static inline size_t horon_engine_arena_at(const struct horon_host_shape *shape, int lane)
{
    return (size_t)lane * horon_host_channel_bytes(shape);
}

struct horon_engine_options {
    const struct horon_config *config;
    const struct horon_topology *topology; /* must outlive the engine */
    struct horon_host *host;               /* likewise */
    /* [size] link to each rank or NULL; the engine's from creation on, also if that fails */
    struct horon_link **links;
    int gloo_era; /* they lead to Gloo's ranks: its backend has them, and no other is there; or 0 */
    /* Watches links that have descriptors; outlives the engine. NULL: each turn tries each. */
    struct horon_poller *poller;
    /* [backend_count] what may carry operations, in order of preference; NULL: those of this build
     * that the settings name */
    const struct horon_backend *const *backends;
    size_t backend_count;
    struct horon_launcher launcher;
    /* The thread that holds the token, for HORON_ASSERT_OWNER(); NULL: a test with one thread. */
    const struct horon_owner *owner;
    uint32_t generation;
    uint64_t (*now_ns)(void *arg);
    void *now_arg;
    const struct horon_log *log;
    /* A request ended: its state word was FLYING | WAITED; wakes the threads that sleep on it.
     * May be NULL. */
    void (*wake_waiters)(_Atomic uint32_t *state);
    /* Requests that users posted, and those of them that have landed, which the engine counts
     * before anybody is told, as the next one may come at once. NULL: it does not. */
    _Atomic uint32_t *posted, *landed;
    /* A request has ended and the engine is done with it: drops its reference. */
    void (*ended)(struct horon_request *request);
    /* Drops the reference of a cancel or drop post. */
    void (*release)(struct horon_request *request);
    /* A request with a callback has ended for the engine: somebody calls
     * horon_engine_finish_request() on it soon. NULL: the engine does at once. */
    void (*finish_later)(void *arg, struct horon_request *request);
    /* Begins to connect to a rank; horon_engine_add_link() or
     * horon_engine_not_connected() follows. NULL: there are no links but those given.
     * @return OK | why it cannot even be tried */
    horon_status_t (*connect)(void *arg, int rank, struct horon_error *error);
    /* The first operation of a team that came without arenas is about to begin, as it is or will be
     * on all its members: begins to make them. horon_team_give_arenas() follows, or
     * horon_team_fail_here(). NULL: all teams come with theirs.
     * @return OK | why not: the team fails */
    horon_status_t (*make_arenas)(void *arg, struct horon_engine_team *team,
                                  struct horon_error *error);
    /* The job, team 0, has failed, and nobody has been told yet. May be NULL. */
    void (*failed)(void *arg, const struct horon_error *why);
    void *arg; /* of the four above; backends know the context by it */
};

struct horon_engine;
struct horon_events;

horon_status_t horon_engine_create(const struct horon_engine_options *options,
                                   struct horon_engine **engine_out, struct horon_error *error);
/** Frees all but the table of names, which requests use until they are released. All requests must
 * have ended (horon_engine_leave). Takes the last posts and closes the mailbox. */
void horon_engine_close(struct horon_engine *engine);
void horon_engine_destroy(struct horon_engine *engine); /* closes, and frees the rest */
/** Team 0: the whole job. */
struct horon_engine_team *horon_engine_job(const struct horon_engine *engine);
/** Ends a request for its submitter: outputs and status are final; wakes waiters, then calls the
 * callback. Drops the engine's reference. Thread: any; once a request and run. */
void horon_engine_finish_request(const struct horon_engine *engine, struct horon_request *request);

/** A link to another rank, at any time. Owner only.
 * @return OK, there is one | AGAIN, it is being made: ask again | ERR_PEER_LOST, that rank is gone
 * | why it could not be made, told once: the next call begins another try */
horon_status_t horon_engine_connect(struct horon_engine *engine, int rank,
                                    struct horon_error *error);
/** Is a connection of another rank welcome? Also of one that has left: it has sent. */
bool horon_engine_may_link(const struct horon_engine *engine, int rank);
/** A link to a rank that had none; taken over, also on failure. @return OK | ERR_MEMORY |
 * ERR_SYSTEM, it cannot be watched */
horon_status_t horon_engine_add_link(struct horon_engine *engine, int rank, struct horon_link *link,
                                     struct horon_error *error);
/** What options.connect began has failed. */
void horon_engine_not_connected(struct horon_engine *engine, int rank,
                                const struct horon_error *why);

/** Posts. @return false if the mailbox is closed. Thread: any. Blocks: no. */
bool horon_engine_post(struct horon_engine *engine, struct horon_post *post);
/** Asks to take a request's run that is under way back; else does nothing. Likewise. */
bool horon_engine_post_cancel(struct horon_engine *engine, struct horon_request *request);
/** Posts a chain, @p first to @p last linked by next, newest first. Thread: any. */
bool horon_engine_post_chain(struct horon_engine *engine, struct horon_post *first,
                             struct horon_post *last);
/** Is there a post nobody has taken? Thread: any. */
bool horon_engine_has_post(const struct horon_engine *engine);

/** One bounded turn of everything. @return true if anything moved */
bool horon_engine_progress(struct horon_engine *engine);

/** Begins an in-order request at once, past the mailbox, if nothing is queued before it. What ring
 * it owes (exec/owed_ring.h), the release of the token pays. @return OK, it has ended well and was
 * never in flight: its state does not tell | IN_PROGRESS, as its state says | AGAIN, post it */
horon_status_t horon_engine_run_now(struct horon_engine *engine, struct horon_request *request);
/** Begins messages as if posted, behind all that was. Their states say if they ended. */
void horon_engine_start_now(struct horon_engine *engine, struct horon_request **messages, size_t n);
/** Advances only the lane of a team that a request is in. @return true if anything moved */
bool horon_engine_advance(struct horon_engine_team *team, bool in_order);
/** What this rank must be rung for while nobody makes progress: HORON_WAKE_* bits. */
uint32_t horon_engine_wants(const struct horon_engine *engine);
/** After how long it must look again, since a backend wakes nobody; 0: it need not. */
uint64_t horon_engine_interval_ns(const struct horon_engine *engine);
/** Is the calling thread one that a backend needs to move its operations? Thread: any. */
bool horon_engine_needs_thread(const struct horon_engine *engine);
bool horon_engine_is_mixed(const struct horon_engine *engine); /* with ranks none of horon's? */
/** Do operations, once begun, go by the flags of one host alone, and use no link? */
bool horon_engine_runs_by_flags(const struct horon_engine *engine);
size_t horon_engine_in_flight(const struct horon_engine *engine); /* requests begun, not ended */
/** Is something left that only a turn of this rank moves: input that the poller has found, or what
 * horon_engine_has_unsent() says? @param even_if_full  also what links cannot take now */
bool horon_engine_leaves_work(const struct horon_engine *engine, bool even_if_full);
/** Was something given to a link after its turn, which the link may take, or heard that other ranks
 * are to hear, too? A thread that falls asleep on it would never send it. */
bool horon_engine_has_unsent(const struct horon_engine *engine);

/** A process of this host is lost: @p how, a sentence; @p ended: it is there no more. */
void horon_engine_local_death(struct horon_engine *engine, int local_rank, bool ended,
                              const char *how);
/** Fails all that is in flight and to come, of every team, here and on all their members. */
void horon_engine_fail(struct horon_engine *engine, const struct horon_error *why);
/** Why the job failed; NULL: it did not. Thread: any; it stays as it is. */
const struct horon_error *horon_engine_failure(const struct horon_engine *engine);
/** A number that changes whenever the lane of a pending request moves. */
uint64_t horon_engine_moves(const struct horon_engine *engine, const struct horon_request *request);
/** Asks which ranks lack a request, for horon_engine_explain(). @return false: it asks nothing */
bool horon_engine_ask(struct horon_engine *engine, const struct horon_request *request);

/** Since when the oldest request in flight has been seen to be so; 0: there is none. */
uint64_t horon_engine_oldest_ns(struct horon_engine *engine);
/** Logs what has waited for @p warn_ns, again after twice the time, to 16 limits between; fails all
 * if ranks lack what has waited for @p end_ns. 0: never. Call it four times in a limit or more. */
void horon_engine_watch_stalls(struct horon_engine *engine, uint64_t warn_ns, uint64_t end_ns);

/** Ends all requests with ERR_CLOSED and those to come, without a word to the other ranks. */
void horon_engine_end_requests(struct horon_engine *engine);
/** Likewise, and says goodbye: call progress until it is flushed. */
void horon_engine_leave(struct horon_engine *engine);
/** Fails all teams that have not failed already, because this rank exits. */
void horon_engine_exit(struct horon_engine *engine, const char *reason);
/** Has a process of this host ended, or another host's rank gone or left? Owner only. */
bool horon_engine_misses_rank(const struct horon_engine *engine);
/** Has all that was said to other ranks left this process? */
bool horon_engine_flushed(const struct horon_engine *engine);
/** Bytes said to other ranks that their hosts do not have yet. Costs a system call a link. */
size_t horon_engine_undelivered(const struct horon_engine *engine);
/** Finds links whose other host answers no more; progress then says so. To be called four times
 * within PEER_TIMEOUT or more often, while something is in flight. Costs a system call a link. */
void horon_engine_check_links(struct horon_engine *engine);

/** Names of the ranks: "rank 3 (host-b)". [size] */
const char *const *horon_engine_rank_names(const struct horon_engine *engine);
/** What happens here; any thread may read it until the engine is closed. */
struct horon_events *horon_engine_events(const struct horon_engine *engine);
struct horon_names *horon_engine_names(struct horon_engine *engine); /* those in flight */

/** Why a pending request waits, as a text; and the first rank that it waits for, or -1. */
void horon_engine_explain(struct horon_engine *engine, const struct horon_request *request,
                          char *text, size_t text_bytes);
int horon_engine_awaited(struct horon_engine *engine, const struct horon_request *request);

#endif
