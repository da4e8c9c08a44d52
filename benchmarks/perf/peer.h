/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library that is measured: horon itself, or MPI. One const table of operations each; the loop
 * and the report know nothing else of them.
 */
#ifndef HORON_PERF_PEER_H
#define HORON_PERF_PEER_H

#include "options.h"

struct perf_peer;
struct perf_job;

/** One operation of a timed call. Buffers as in horon_descriptor_t; the caller's, while a job
 * lives. */
struct perf_operation {
    void *src; /* the library only reads it, unless in place */
    void *dst;
    bool in_place;  /* src is dst, or lies where it comes to be in dst (allgather; gather, on root
                       alone), or dst is where this rank's share lies in src (reducescatter;
                       scatter, on root alone) */
    uint64_t count; /* elements of src */
    uint64_t index; /* of the call's operations, on all ranks alike */
    int32_t set;    /* the process set's id; 0: all ranks */
    int rank, size; /* this rank's number there, and how many there are */
};

/** Owner of a peer and its jobs: the thread that opened it. All calls may block, and are made by
 * all ranks alike. A call that returns -1 leaves the reason in perf_peer.error. */
struct perf_peer_ops {
    const char *name;     /* "horon": also the word in the report */
    bool shares_in_place; /* has it such a reducescatter? */
    /** Asks whether @p n operations may be in flight at once. */
    int (*admit)(struct perf_peer *peer, size_t n);
    /** Makes a process set of some ranks [n], in ascending order; sets *set_out on 0. */
    int (*divide)(struct perf_peer *peer, const int32_t *ranks, size_t n, int32_t *set_out);
    /** What of the library carries an operation of the options' verb of @p count elements; a
     * constant. NULL: there is one way alone, or it is not known. Not all ranks need to call it. */
    const char *(*carrier)(const struct perf_peer *peer, uint64_t count);
    /** Readies @p n operations of the options' verb that together make one timed call, none on a
     * rank without any. Not timed. Sets *job_out on 0. */
    int (*prepare)(struct perf_peer *peer, const struct perf_operation *operations, size_t n,
                   struct perf_job **job_out);
    /** Carries the job out once and returns when all its outputs are complete: the timed call. */
    int (*run)(struct perf_job *job);
    /** Gives the job back; NULL is a no-op. */
    void (*release)(struct perf_job *job);
    /** Waits for the ranks of a process set; 0: for all. */
    int (*barrier)(struct perf_peer *peer, int32_t set);
    /** Gives every rank the [bytes] of rank 0. */
    int (*share)(struct perf_peer *peer, void *data, size_t bytes);
    /** Replaces values [n] by their maxima over the ranks. */
    int (*maximum)(struct perf_peer *peer, double *values, size_t n);
    /** Leaves the job; NULL is a no-op. What is in flight after a failure uses its buffers until
     * then. @param failed others may be waiting for this rank: end them */
    void (*close)(struct perf_peer *peer, bool failed);
};

/* First in each peer's own struct. */
struct perf_peer {
    const struct perf_peer_ops *ops;
    int rank, size, local_rank, local_size;
    char version[64];
    char error[PERF_TEXT_BYTES];
};

/** Joins the job through horon. @param why [PERF_TEXT_BYTES] set on failure. @return 0 | -1 */
int perf_peer_horon_open(const struct perf_options *options, struct perf_peer **peer_out,
                         char *why);

/** Finds the MPI library and joins through it. As above. */
int perf_peer_mpi_open(const struct perf_options *options, struct perf_peer **peer_out, char *why);

#endif
