/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this rank has of one team: the ranks that carry out operations together. The whole job is
 * team 0; others are any of its ranks in any order. A team has its own control tree, of its members
 * only, its coordinator (names, cache, fusion), its count of what has no name, its lanes, its check
 * of the promised sequence, its shared memory, and its own failure: what happens outside of it, or
 * in another team that it shares ranks with, does not concern it. (docs/design.md 6, "Team".)
 *
 * Its ranks count from 0 in their order; `ranks` says which of the job they are. What depends on
 * the membership is bound to it and can be bound anew; requests, names and counts stay.
 *
 * Arenas are large, and many teams are made that do little or nothing: a team may come without, and
 * asks for them when its first operation could begin. Until then its members negotiate as always.
 */
#ifndef HORON_ENGINE_TEAM_H
#define HORON_ENGINE_TEAM_H

#include "backend/route.h"
#include "engine/engine.h"
#include "engine/making.h"

/** Operations in their order, and the way to the backends that carry them. */
struct horon_lane {
    struct horon_route route;
    struct horon_work *head, **tail;
    struct horon_work *next; /* the first that is not begun */
    int running;             /* begun and not ended; more than one if a backend takes several */
    bool stuck; /* it does not move now: it has no channels yet, or its first operation needs a
                   rank that has left, which horon_team_check_left() will say */
    size_t length;
    uint64_t moves; /* turns that moved anything */
};

/** How far this rank's join is. Which moves are legal says a table in join.c. */
enum horon_join_state {
    HORON_JOIN_NOT,   /* it takes part in all */
    HORON_JOIN_ASKED, /* waits for what was submitted before, or is held */
    HORON_JOIN_BEGUN, /* the coordinator knows */
    HORON_JOIN_OVER   /* all have, `last` was the last; this rank has yet to do its part */
};

/** Ranks that have joined; see join.c. */
struct horon_team_join {
    enum horon_join_state state;
    struct horon_request *request; /* of this rank: what comes behind it is refused; NULL: NOT */
    bool *joined;                  /* [size] */
    int count;                     /* that have */
    uint64_t ordered;              /* in-order operations that each of them has done */
    int first;                     /* one that has done no more */
    bool is_held;                  /* this rank's has to wait, be it there yet or not */
    int last;
    uint64_t *no_rows; /* [size] 0 */
};

/** Which moves are legal says a table in team.c. */
enum horon_team_state {
    HORON_TEAM_UNBOUND,
    HORON_TEAM_BOUND,  /* and has no arenas */
    HORON_TEAM_ASKING, /* for them */
    HORON_TEAM_READY   /* its lanes have channels */
};

/** Its end on this rank. Which moves are legal says a table in team.c. */
enum horon_team_end {
    HORON_TEAM_LIVES,
    HORON_TEAM_FAILED, /* `failure` is set, and stays as it is */
    HORON_TEAM_REMOVED /* likewise, and this rank has left it */
};

struct horon_engine_team {
    struct horon_engine *engine;
    _Atomic uint32_t refs;          /* the engine's, and one a request; the job's are not counted */
    struct horon_engine_team *next; /* of this rank's, the job first, then by id */
    uint32_t id;
    const struct horon_backends *backends; /* what may carry its operations */
    enum horon_team_state state;

    /* bound to the membership */
    struct horon_topology topology; /* of the members; a view of the job's for the job */
    struct horon_team view;         /* of it, as collectives have it */
    struct horon_host *host;
    int *ranks;                 /* [size] their ranks in the job */
    int *member_of;             /* [job size] and back; -1: no member */
    const char **rank_names;    /* [size] "rank 3 (host-b)", as in the job */
    struct horon_mux **data_of; /* [size] links to other hosts that it uses */
    struct horon_mux **ring_of; /* [size] links of its own in shared memory; the job has none */
    int *tree; /* [tree_count] neighbours in the control tree: parent, if any, and children */
    int tree_count;
    uint32_t *seen; /* [local size] version of each line's departures that was read last */
    bool *heard;    /* [size] members that have said something of departures by a link */
    bool *leaves;   /* [size] that have said here that they leave the job */
    /* [size] 0: it takes part; else it has stopped, but not left the job, and blames this less 1 */
    int *stopped_for;
    struct horon_coordinator *coordinator;
    struct horon_lane lanes[HORON_LANE_COUNT];

    bool coordinator_dirty; /* something to flush */
    /* What is sent next may be a question, a withdrawal or an answer: ranks of this host hear it
     * even if they have nothing in flight, where plain reports wake none: it could do nothing. */
    bool urgent, behind; /* the latter: some of that is not sent yet */
    bool held_back;      /* the last flush was told not to decide: flush again when a batch ends */
    uint64_t unnamed_over; /* operations without a name: the next one is named by this number */
    const struct horon_request *unnamed; /* the one that has it; NULL: none is under way */
    size_t unnamed_held;                 /* in flight without a number: they wait for that one */
    uint64_t refused_group; /* hash of the group that is being posted, if one of it was refused */
    uint64_t ordered_check; /* of the in-order operations so far */
    struct horon_request *oldest, *newest; /* all in flight */
    struct horon_team_join join;
    bool joining; /* a rank has joined, or this one is about to */
    bool parts;   /* it is about to be removed: nothing begins any more */
    struct horon_team_messages messages;
    struct horon_request *kept[HORON_VERB_COUNT]; /* of run.c, by verb, or NULL; kept.c */

    _Atomic uint32_t failed; /* enum horon_team_end */
    struct horon_error failure;
    struct horon_departures departures;
};

/* ---- a team itself -------------------------------------------------------------------------- */

/** A team that is bound to nothing, with @p backends, or the job's. @return NULL: no memory */
struct horon_engine_team *horon_team_create(struct horon_engine *engine, uint32_t id,
                                            const struct horon_backends *backends);
/** Binds it to the engine's membership. @p ranks [size] of the job; NULL: all. Rings as in
 * horon_team_options. @return OK | ERR_MEMORY: it is bound to nothing */
horon_status_t horon_team_bind(struct horon_engine_team *team, const int *ranks, int size,
                               struct horon_host *host, struct horon_link **rings,
                               struct horon_error *error);
/** Frees what is bound. No operation may be running. */
void horon_team_unbind(struct horon_engine_team *team);
/** Unbinds it, and gives back the engine's reference. NULL is a no-op. */
void horon_team_destroy(struct horon_engine_team *team);
/** Keeps the struct, whatever becomes of the team. Thread: any that has a reference. */
void horon_team_ref(struct horon_engine_team *team);
void horon_team_unref(struct horon_engine_team *team); /* thread: any */

/** Is it bound to a membership? */
static inline bool horon_team_is_bound(const struct horon_engine_team *team)
{
    return team->state != HORON_TEAM_UNBOUND;
}

/** Why it failed here; NULL: it did not. Thread: any; it stays as it is. */
static inline const struct horon_error *horon_team_failure(const struct horon_engine_team *team)
{
    return atomic_load_explicit(&team->failed, memory_order_acquire) ? &team->failure : NULL;
}

/** The arenas it asked for, [local size]; they outlive the team. No-op if it has failed by now. */
void horon_team_give_arenas(struct horon_engine_team *team, uint8_t *const *arenas);

/** While it is held a join of this rank waits, and what is horon's own goes before it: a change of
 * process sets meets twice, and no rank may join in between. */
void horon_team_hold_join(struct horon_engine_team *team, bool hold);
/** One bounded turn. @return true if anything moved */
bool horon_team_progress(struct horon_engine_team *team);
/** Moves the links that are its own. */
bool horon_team_move_rings(struct horon_engine_team *team);
/** Is something posted to its rings and not sent? */
bool horon_team_rings_unsent(const struct horon_engine_team *team, bool even_if_full);
/** As horon_engine_interval_ns(). */
uint64_t horon_team_interval_ns(const struct horon_engine_team *team);
/** HORON_WAKE_* bits that it wants to be rung for. */
uint32_t horon_team_wants(const struct horon_engine_team *team);

/** Fails all of it that is in flight and to come, here and on all members. */
void horon_team_fail(struct horon_engine_team *team, const struct horon_error *why);
/** Ends all of it here without a word to anybody: it could not be bound. */
void horon_team_give_up(struct horon_engine_team *team, const struct horon_error *why);
/** Likewise, because this rank removes it. */
void horon_team_end_removed(struct horon_engine_team *team);
/** As horon_team_fail(), for what was found on this rank: if it lies here, the text names it. */
void horon_team_fail_here(struct horon_engine_team *team, const struct horon_error *why);
/** Likewise, ERR_MEMORY. */
void horon_team_lacks_memory(struct horon_engine_team *team, const char *text);
/** A member is gone, or its link. Nothing happens if it has left, or is no member. */
void horon_team_lose_rank(struct horon_engine_team *team, int job_rank,
                          const struct horon_error *why);
/** Does it need the link to a rank of another host, or has it used it? */
bool horon_team_uses_link(const struct horon_engine_team *team, int job_rank);
/** A member has left the job: if it never had this team, nothing of it can ever be. */
void horon_team_lacks_member(struct horon_engine_team *team, int job_rank);
void horon_team_end_requests(struct horon_engine_team *team);
/** Says to all members that this rank leaves the team, whose requests have ended here; and the job
 * with it, or not. */
void horon_team_leave(struct horon_engine_team *team, bool leaves_job);

/** The link on which control messages for a member go, or NULL. */
struct horon_mux *horon_team_mux(const struct horon_engine_team *team, int rank);

#endif
