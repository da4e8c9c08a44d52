/* SPDX-License-Identifier: Apache-2.0 */
/* Process sets of a run that are added and removed while it goes on. */
#ifndef HORON_TEST_SIMULATION_SETS_H
#define HORON_TEST_SIMULATION_SETS_H

#include "simulation/simulation.h"

/** How one rank thinks otherwise of a change. */
enum sim_ill {
    SIM_ILL_NOT,
    SIM_ILL_REFUSES, /* one rank cannot do what it is asked for */
    SIM_ILL_DIFFERS, /* or is asked for something else */
    SIM_ILL_LACKS,   /* or cannot make the team */
    SIM_ILL_FOR_ALL  /* nobody may have such a set */
};

/** What all ranks add or remove, one after another. */
struct sim_change {
    bool removes, patient; /* the latter: when this rank's operations in it are through */
    int team;              /* 0: there never is one */
    int32_t id;
    int32_t ranks[SIM_RANKS_MAX]; /* [count] of a set that is added */
    size_t count;
    enum sim_ill ill;
    int odd; /* the rank to which it happens */
};

/** What a rank may do with a team. */
enum sim_life {
    SIM_LIFE_COMES, /* nothing yet */
    SIM_LIFE_HERE,  /* begin operations */
    SIM_LIFE_OVER   /* nothing more: it was removed, or is never made */
};

/* ---- changes.c ---- */
/** Draws what all ranks add and remove, and makes the teams of that. */
void sim_sets_draw(struct simulation *sim);
/** Is a team one that no rank ever has? */
bool sim_team_is_vain(const struct simulation *sim, int team);
/** The id by which operations name a team. */
int32_t sim_team_id(const struct simulation *sim, int team);

/* ---- sets.c ---- */
/** Each rank begins, at a moment of its own. */
void sim_sets_begin(struct simulation *sim);
void sim_sets_end(struct simulation *sim);
/** SIM_EVENT_CHANGE: with the token, goes on as far as it can. */
void sim_sets_go_on(struct sim_rank *rank);
/** A request has ended. @return was it one of this file's? */
bool sim_sets_ended(struct sim_rank *rank, const struct horon_request *request);
/** The rank may be through with a team. */
void sim_sets_look(struct sim_rank *rank);
/** Has a rank done all that it adds and removes, or can it do nothing more? */
bool sim_sets_done(const struct sim_rank *rank);
/** Is a rank about to make the team of a process set? What it is told then by others it is told
 * once. */
bool sim_sets_is_making(const struct sim_rank *rank);
enum sim_life sim_team_life(const struct sim_rank *rank, int team);
/** In a run that goes well, and in which all ranks are done: is anything left of what is gone? */
void sim_sets_check_rest(struct sim_rank *rank);
/** What a rank waits for, as a text. */
void sim_sets_describe(const struct sim_rank *rank, char *text, size_t text_bytes);

#endif
