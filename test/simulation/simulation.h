/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulation: up to six ranks on up to six hosts, each with the product's engine and progress
 * token, in one thread under a virtual clock. One seed draws everything: hosts, settings, what is
 * submitted when, how long messages take and in which pieces they come, which rank gets to run,
 * which is held up, which dies at which step, which leaves early. The same seed gives the same run,
 * event by event.
 *
 * Beside the job there may be a second team, or process sets that all ranks add and remove on the
 * way (sets.c); ranks may run out of data, and join; and send each other messages (messages.c).
 *
 * A rank is asleep unless something really woke it: its doorbell, bytes or room on a link between
 * hosts (its socket), the death of a neighbour's process, a submission. So a wake-up that the
 * product forgets ends as a world where nobody runs and something still waits.
 */
#ifndef HORON_TEST_SIMULATION_H
#define HORON_TEST_SIMULATION_H

#include "context_state.h"
#include "simulation/outcome.h"
#include "simulation/workload.h"
#include "world/teams.h"
#include "world/world.h"

#define SIM_RANKS_MAX 6
#define SIM_TEAMS_MAX 6 /* of a run, the job among them */
#define SIM_MS UINT64_C(1000000)

enum sim_state {
    SIM_ASLEEP, /* on its doorbell and sockets; the token is free */
    SIM_WAKING, /* something woke it; it has not run yet */
    SIM_AWAKE,  /* holds the token and turns */
    SIM_LEFT,   /* said goodbye, closed its links */
    SIM_DEAD    /* stopped for good, perhaps in the middle of a turn */
};

enum sim_event_kind {
    SIM_EVENT_NOTHING, /* only lets time go on: a pause ends */
    SIM_EVENT_DELIVER, /* bytes from a reach b's host */
    SIM_EVENT_DEATH,   /* a learns that the process of b, on its host, is gone */
    SIM_EVENT_SUBMIT,  /* a's application goes on */
    SIM_EVENT_RESTART, /* a starts use b again: a persistent request, or one that was cancelled */
    SIM_EVENT_CANCEL,  /* a cancels use b */
    SIM_EVENT_LEAVE,   /* a is done and leaves */
    SIM_EVENT_TEAM,    /* a makes team b */
    SIM_EVENT_ARENAS,  /* a is given the arenas of team b */
    SIM_EVENT_CHANGE,  /* a goes on with what it adds and removes of process sets */
    SIM_EVENT_LINK     /* a gets its end of the link to b, for which one of them asked */
};

struct sim_event {
    uint64_t at, order;
    enum sim_event_kind kind;
    int a, b;
};

/** What fate the seed has for the run. */
enum sim_fate {
    SIM_FATE_GOOD,    /* everything goes well; single named operations may be cancelled or differ */
    SIM_FATE_KILL,    /* one rank is killed */
    SIM_FATE_LEAVE,   /* one rank leaves in the middle */
    SIM_FATE_DISORDER /* one rank breaks the promise of equal sequences */
};

struct sim_rank {
    struct simulation *sim;
    int rank;
    struct horon_context ctx; /* what token.c uses of it: engine, host, doorbell, token, deaths */
    enum sim_state state;
    bool inside;               /* in a turn that others interrupted */
    bool rung;                 /* its doorbell, and nobody has looked */
    bool armed[SIM_RANKS_MAX]; /* sleeping, it waits for room on the link */
    int quiet, patience;
    uint64_t paused_until;
    bool leaving;
    uint64_t leave_deadline;
    bool done; /* its application has nothing more to submit or wait for */
    bool joins[SIM_TEAMS_MAX];

    int level; /* of its data; see sim_op */
    int *plan; /* [plan_count] operations in this rank's order */
    int plan_count, plan_next;
    bool stuck;           /* what comes next waits for a process set */
    struct sim_use *uses; /* [op_count] */
    int flying;
    struct sim_ring_peer {
        struct sim_rank *self;
        struct horon_host *host;
        int local_rank;
    } ring_peers[SIM_RANKS_MAX], team_ring_peers[SIM_TEAMS_MAX][SIM_RANKS_MAX];
    /* besides the job; NULL: it is not made yet, is removed, or this rank is not in it */
    struct horon_engine_team *teams[SIM_TEAMS_MAX];
    struct sim_sets *sets; /* sets.c; NULL: no process sets are added or removed */
};

struct sim_network;
struct sim_change;

struct simulation {
    uint64_t seed, random; /* as given, and the state drawn from it */
    struct world *world;
    int size;
    uint64_t now, order, steps, hash;
    struct sim_event *events; /* [event_limit] a heap by time, then order */
    size_t event_count, event_limit;
    struct sim_rank ranks[SIM_RANKS_MAX];
    struct sim_network *network;
    struct world_team *teams[SIM_TEAMS_MAX]; /* [team_count] the first, the job, is NULL */
    int team_count;
    struct sim_change *changes; /* [change_count] of process sets; sets.c */
    int change_count;
    size_t local_ring_bytes; /* part of the product's memory, so that it is full at times */
    bool narrow;             /* links so slow that large tensors would take for ever */
    int depth;               /* of turns interrupted by turns */
    bool looks_back;         /* at the end, whether anything is left of process sets */
    bool over;               /* the run has ended; what still returns up the stack does nothing */
    uint64_t steps_max;
    /* the run's character */
    unsigned stick, pause, interrupt; /* one in so many; 0: never */
    uint64_t pause_max, wake_max, think_max;
    int burst_rank;
    enum sim_fate fate;
    int victim;   /* the rank that is killed, leaves or breaks the promise */
    int ill_team; /* in which the promise is broken */
    uint64_t fate_step;
    bool fate_inside; /* dies in the middle of a turn */
    bool struck, struck_inside;
    unsigned replacements; /* of the membership that are left to do */
    uint64_t replace_step; /* not before */
    uint64_t struck_at;
    struct sim_op *ops;
    int op_count, joins[SIM_TEAMS_MAX]; /* the latter: by which ranks join, or -1 */
    bool joins_early;                   /* while messages of theirs are in flight */
    struct sim_outcome outcome;
    char failure[512]; /* "": none */
};

/* ---- simulation.c ---- */
/** A kill that is given, instead of the fate that the seed draws. */
struct sim_kill {
    int victim;
    uint64_t step;
    bool inside; /* in the middle of its next turn */
};

/** Runs a seed. @param kill may be NULL. @return did all go as it should? Else @p why says what
 * went wrong. */
bool sim_run(uint64_t seed, const struct sim_kill *kill, struct sim_outcome *outcome_out, char *why,
             size_t why_bytes);
/** What a seed draws, in a line. */
void sim_describe(const struct simulation *sim, char *text, size_t text_bytes);
uint64_t sim_random(struct simulation *sim);
/** A number below @p limit (> 0). */
uint64_t sim_below(struct simulation *sim, uint64_t limit);
bool sim_one_in(struct simulation *sim, unsigned n);
void sim_trace(struct simulation *sim, unsigned what, uint64_t a, uint64_t b);
void sim_event(struct simulation *sim, uint64_t at, enum sim_event_kind kind, int a, int b);
/** Notes the first failure. */
void sim_fail(struct simulation *sim, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void sim_wake(struct sim_rank *rank);
/** In the middle of a rank's turn: others may run now, or the rank may stop here for good. */
void sim_interrupt(struct sim_rank *rank);

/** horon_host.doorbell; and what token.c rings through the descriptor. */
void sim_doorbell(void *arg, int local_rank);
void sim_hear_doorbell(struct sim_rank *rank);

/* ---- setup.c ---- */
void sim_create(struct simulation *sim, uint64_t seed, const struct sim_kill *kill);
void sim_destroy(struct simulation *sim);

/** With the token in hand from now on: awake, and driving. Not in the middle of a turn. */
void sim_take_token(struct sim_rank *rank);
/** A rank's end of the ring to @p peer, a local rank of @p host; one of the two is the first. */
struct horon_link *sim_make_ring(struct sim_rank *rank, struct horon_host *host, int peer,
                                 struct sim_ring_peer *arg);
/** Likewise of two rings that were made when somebody asked, for a link of the job. */
struct horon_link *sim_make_late_ring(struct sim_rank *rank, int peer, struct horon_ring *out,
                                      struct horon_ring *in);
/** Points a rank at its host's shared memory. */
void sim_take_host(struct sim_rank *rank);
/** Makes @p links [size] of a rank in the present memory and network. */
void sim_make_links(struct sim_rank *rank, struct horon_link **links);
/** With the token: gives a rank its end of a link, unless it has it or needs it no more; or says
 * that there will be none. */
void sim_add_link(struct sim_rank *rank, int peer);

/* ---- replace.c ---- */
/** Replaces the membership, if all ranks are between the same operations and some request is in
 * flight. */
bool sim_replace(struct simulation *sim);

#endif
