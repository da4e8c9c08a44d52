/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trial: a world of engines does one of everything while the nth allocation fails. Then either a
 * submission says so, and goes well when it is made again; or the job fails, on every rank, with a
 * text that names the rank it hit. Nobody hangs, nothing leaks. Requests are by rank; NULLs are
 * skipped.
 */
#ifndef HORON_TEST_TORTURE_TRIAL_H
#define HORON_TEST_TORTURE_TRIAL_H

#include "world/world.h"

/* Turns of the whole world after which it counts as hung; the longest operation takes some 100. */
enum { TRIAL_RANKS_MAX = 4, TRIAL_SMALL = 5, TRIAL_LARGE = 3000, TRIAL_TURNS_MAX = 3000 };

struct trial {
    struct world *world;
    long n;       /* this trial */
    long at;      /* the allocation that fails; 0: none */
    int culprit;  /* the rank it hit, -1: none yet */
    int *data;    /* [TRIAL_RANKS_MAX][TRIAL_LARGE] */
    bool over;    /* the job has failed */
    bool refused; /* a request or submission said ERR_MEMORY */
    int for_good; /* all that follow fail, too, until somebody said so */
};

/* Of every world: what is small and what is large differ in little. */
extern const char *const trial_settings[];

/** Carries out @p everything in a new world for every allocation that fails in it.
 * @param for_good all that follow it fail, too */
void trial_for_each(const int *host_sizes, int host_count, int for_good,
                    void (*everything)(struct trial *trial));
/** With all links that an operation may need: how late ones fail is told elsewhere. */
struct world *trial_world(const int *host_sizes, int host_count);

/** @return [TRIAL_LARGE] of this rank */
int *trial_data(const struct trial *trial, int rank);
/** In order if @p name is NULL. */
horon_descriptor_t trial_describe(horon_verb_t verb, const char *name, uint64_t count);
/** Makes a request, however often that takes. */
struct horon_request *trial_submit(struct trial *trial, int rank, const horon_descriptor_t *desc);
/** Begins it, or begins it once more if it is persistent. */
void trial_post(struct trial *trial, int rank, struct horon_request *request);
/** Both on every rank, the same but for what differs by nature. */
void trial_submit_all(struct trial *trial, horon_descriptor_t desc, bool persistent,
                      struct horon_request **requests);
/** A refusal that this rank alone knows of: nothing has happened, and again it goes well. */
void trial_begin_again(struct trial *trial, int rank, struct horon_request *request);

/** To be called after whatever a rank did. */
void trial_look_whom_it_hit(struct trial *trial, int rank);
/** Somebody said that there is no memory. */
void trial_memory_is_back(struct trial *trial);

/** Turns every engine once. */
void trial_turn(struct trial *trial, struct horon_request *const *requests);
bool trial_ended(const struct horon_request *request);
bool trial_all_ended(const struct trial *trial, struct horon_request *const *requests);
/** Until all have ended, as they must. @return false: the job has failed */
bool trial_settle(struct trial *trial, struct horon_request *const *requests);
void trial_release_all(const struct trial *trial, struct horon_request *const *requests);

#endif
