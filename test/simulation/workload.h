/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a simulation do with the product: operations, their uses, and the judgement of
 * how each ended. */
#ifndef HORON_TEST_SIMULATION_WORKLOAD_H
#define HORON_TEST_SIMULATION_WORKLOAD_H

#include "engine/request.h"

struct simulation;
struct sim_rank;

/** One operation of the job, the same on all ranks but where `odd` says otherwise. */
struct sim_op {
    char name[24];
    horon_verb_t verb;
    horon_dtype_t dtype;
    horon_redop_t redop;
    int team; /* 0: the job */
    int root; /* of the team's ranks; all others here are the job's */
    double prescale, postscale;
    uint64_t count; /* elements; of a verb of rows: the most that a rank gives, or gives one */
    uint64_t row;   /* elements of a row */
    bool uneven;    /* reducescatter: its last rank gets most rows */
    bool in_order, persistent, in_place, own_output;
    int rounds;      /* > 1: persistent */
    int group;       /* number of its group, or -1 */
    int odd;         /* rank that describes it otherwise, or -1 */
    int odd_in;      /* in what */
    int canceler;    /* rank that tries to take it back once, or -1 */
    bool paired;     /* a message, from a rank of the job to another; messages.c */
    int from, to;    /* then */
    uint64_t tag;    /* likewise */
    bool late;       /* likewise: it is received when all have joined, and sent before */
    bool joins;      /* it is no operation: the rank joins the team, with its last */
    int level;       /* ranks below it have run out of data, and have no part in it */
    bool afterwards; /* it is begun when all have joined its team */
    void *expected;
    uint64_t expected_bytes;
    int expected_round; /* 0: none yet */
};

#define SIM_GIVEN_BACK 0x5a /* what a user does with memory of what has ended */

/** One rank's use of an operation. */
struct sim_use {
    struct horon_request *request; /* NULL: not submitted */
    struct horon_request **old;    /* [old_count] earlier ones, kept to the end */
    int old_count;
    void *in, *out;
    size_t out_bytes; /* of an operation that is no message */
    int round;        /* of the one in flight or ended last; from 1 */
    int settled;      /* the last round that ended well, or because ranks disagree */
    uint64_t posted_at;
    bool flying;     /* from launch() until its end was seen */
    bool cancelling; /* asked */
    bool withdrawn;  /* ended as cancelled once */
    bool given_back; /* it has ended, a collective in failure, and its memory was overwritten */
};

/* ---- draw.c ---- */
void sim_workload_create(struct simulation *sim);
/** As sim_below() draws, but not from the run's own numbers. */
uint64_t sim_next(uint64_t *random);
/** Has the rank a part of its own in an operation? */
bool sim_takes_part(const struct sim_op *op, const struct sim_rank *rank);

/* ---- workload.c ---- */
void sim_workload_destroy(struct simulation *sim);
void sim_workload_submit(struct sim_rank *rank);
void sim_workload_restart(struct sim_rank *rank, int op);
void sim_workload_cancel(struct sim_rank *rank, int op);
/** Has a rank nothing more to begin in a team, nor in flight? */
bool sim_workload_through(const struct sim_rank *rank, int team);
/** Something has ended: what comes next? */
void sim_workload_look(struct sim_rank *rank);
/** engine_options.ended and .release */
void sim_request_ended(struct horon_request *request);
void sim_request_release(struct horon_request *request);
/** Has every request of a rank that is still there ended? */
bool sim_workload_ended(struct simulation *sim, char *text, size_t text_bytes);

/* ---- check.c ---- */
/** Fills [count] elements that rank @p rank gives to @p op in @p round. */
void sim_fill(const struct simulation *sim, const struct sim_op *op, int rank, int round,
              void *memory);
uint64_t sim_count_of(const struct simulation *sim, const struct sim_op *op, int rank);
/** Of a verb of rows: how many rank @p from of the job gives to @p to. */
bool sim_has_rows(const struct sim_op *op);
uint64_t sim_rows_of(const struct simulation *sim, const struct sim_op *op, int from, int to);
/** Rows that member @p member of @p size gets of a reducescatter. */
uint64_t sim_share_of(const struct sim_op *op, int member, int size);
/** Does the verb reduce? */
static inline bool sim_reduces(const struct sim_op *op)
{
    return horon_verb_reduces(&horon_verb_rows[op->verb]);
}
/** At the end: did anybody notice that one rank broke the promise of equal sequences? */
void sim_check_order(struct simulation *sim);
/** Judges how a request ended. */
void sim_check_ended(struct sim_rank *rank, struct sim_op *op, struct sim_use *use);
/** At the end: was memory of messages written that had ended? */
void sim_check_memory(const struct simulation *sim);
/** Does a text name a rank, with its host? */
bool sim_names(const struct simulation *sim, const char *text, int rank);
int sim_ranks_named(const struct simulation *sim, const char *text);
/** Has an operation's team ended because a member has removed it, this one or another, which is
 * named? */
bool sim_is_removed(const struct sim_rank *rank, const struct sim_op *op, horon_status_t status,
                    const char *text);
/** Was there no link to a rank that had gone already, whatever the cause? */
bool sim_is_unreached(const struct simulation *sim, horon_status_t status, const char *text);
/** Is this how an operation may end in a run of this fate? */
bool sim_suits_fate(const struct simulation *sim, const struct sim_op *op, horon_status_t status,
                    const char *text);
/** A request has failed: soon enough after the death? */
void sim_check_notice(const struct sim_rank *rank, const struct sim_op *op,
                      const struct sim_use *use);

#endif
