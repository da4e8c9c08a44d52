/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carries one plan out over muxes. Advances as far as it can; never waits, and moves no bytes
 * itself: the caller lets the muxes progress before and after, as what is posted here goes out
 * then.
 * Thread: the owner's of the muxes.
 */
#ifndef HORON_EXEC_NETRUN_H
#define HORON_EXEC_NETRUN_H

#include "link/mux.h"
#include "plan/plan.h"
#include "status.h"

/** Bits of a tag that a run fills in itself, the low ones: the plan's stage. */
#define HORON_NETRUN_TAG_BITS 16

struct horon_netrun_args {
    struct horon_plan_args plan;
    const int *ranks; /* [plan.size] job rank of each participant; must outlive the run */
    struct horon_mux *const *mux_of; /* by job rank; NULL where there is no connection (any more) */
    const char *const *rank_names;   /* by job rank, for texts; must outlive the run */
    horon_dtype_t dtype;             /* element size; and for combines with op */
    horon_redop_t op;                /* any but AVERAGE */
    void *work;                      /* [count] elements */
    void *scratch;                   /* [horon_plan_scratch()] elements */
    uint32_t channel;
    uint64_t sequence;
    uint64_t tag;   /* chunk and segment; the low HORON_NETRUN_TAG_BITS are 0 */
    uint64_t check; /* see horon_transfer.check */
};

/** One stage as posted. */
struct horon_netrun_stage {
    uint32_t move_count, combine_count;
    uint32_t first_pending; /* moves before it are done */
    struct horon_plan_move *moves;
    struct horon_plan_combine *combines;
    struct horon_transfer *transfers; /* [move_count] */
};

struct horon_netrun {
    struct horon_netrun_args args;
    int stage; /* the one that runs; == stages: all done */
    int stages;
    int sends_posted;                   /* stages whose sends are posted */
    int recvs_posted;                   /* stages whose receives are posted */
    struct horon_netrun_stage slots[2]; /* of stage and the next, by parity */
    size_t memory_bytes;
    void *memory; /* one allocation for the arrays of both slots, kept between runs */
};

/* ---- one transfer, of a run or of a verb ---- */

/** @param mux NULL: there is no connection (any more). @return as horon_mux_post_send() |
 * ERR_PEER_LOST */
horon_status_t horon_netrun_post(struct horon_mux *mux, struct horon_transfer *transfer,
                                 bool is_send, const char *peer_name, struct horon_error *error);
/** Of one that is not done. @return IN_PROGRESS, it may be | why it never will be */
horon_status_t horon_netrun_still_moves(const struct horon_mux *mux,
                                        const struct horon_transfer *transfer,
                                        const char *peer_name, struct horon_error *error);

/* ---- a run ---- */

/** Begins a run; reuses the arrays of an ended one. All zero before the first.
 * @return OK | ERR_MEMORY */
horon_status_t horon_netrun_begin(struct horon_netrun *run, const struct horon_netrun_args *args);
/**
 * A participant whose part is done may go: its mux is not looked at any more.
 * @return OK: the result is in work; again if asked again | IN_PROGRESS | ERR_PEER_LOST, there is
 *         no mux to a participant | what its mux failed with | ERR_MISMATCH, one carries out
 *         another operation | ERR_MEMORY. The text names rank, host and cause
 * After an error, and if a run is given up, its transfers are still posted: call
 * horon_mux_forget() on the mux of every participant.
 */
horon_status_t horon_netrun_advance(struct horon_netrun *run, struct horon_error *error);
/** Is data due between this rank and job rank @p rank in the stage that runs? */
bool horon_netrun_waits_for(const struct horon_netrun *run, int rank);
/** Frees the arrays; transfers still posted must have been forgotten (horon_mux_forget). */
void horon_netrun_deinit(struct horon_netrun *run);

#endif
