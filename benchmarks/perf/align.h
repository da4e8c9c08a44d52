/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting together. A library's barrier ends at a different moment on each rank; ranks that share
 * a kernel therefore meet once more in a few words of shared memory, within a fraction of a
 * microsecond. Those meet that have something to do; others would take cores from them.
 */
#ifndef HORON_PERF_ALIGN_H
#define HORON_PERF_ALIGN_H

#include "peer.h"

struct perf_align_shared;

struct perf_align {
    struct perf_peer *peer;
    struct perf_align_shared
        *shared;    /* NULL: ranks do not share memory; a second barrier instead */
    int fd;         /* of the memory, on rank 0; else -1 */
    int32_t set;    /* the process set that meets */
    int size;       /* its ranks */
    unsigned spins; /* looks before yielding the core */
    uint32_t rests; /* how many have ended */
};

/** Readies the meetings of a process set, of @p size ranks. All ranks call it, those outside too.
 * @return 0 | -1, see peer->error */
int perf_align_open(struct perf_align *align, struct perf_peer *peer, int32_t set, int size);

/** Gives the memory back; also what perf_align_open() left when it failed. */
void perf_align_close(struct perf_align *align);

/**
 * Waits for the set's ranks: first in the library's barrier, so that none needs another's progress
 * any more, then in shared memory. Collective.
 * @return 0 | -1, the barrier failed or a rank did not come within a minute; see peer->error
 */
int perf_align_meet(struct perf_align *align);

/** Ends the rest of those outside the set; one of its ranks calls it. */
void perf_align_end_rest(struct perf_align *align);

/** What a rank outside does meanwhile: it sleeps. Does nothing where ranks share no memory. */
void perf_align_rest(struct perf_align *align);

#endif
