/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One cell of the table: one verb at one size in one place, timed and checked.
 */
#ifndef HORON_PERF_LOOP_H
#define HORON_PERF_LOOP_H

#include "align.h"
#include "stats.h"

#include <stdbool.h>

struct perf_cell {
    bool measured; /* false: this verb has no such place */
    bool in_place;
    uint64_t bytes; /* of one tensor, as nccl-tests counts them: the larger of input and output */
    uint64_t count; /* elements of one tensor; of an allgather, of one rank's part */
    struct perf_stats times; /* us a call, each the slowest rank's */
    double b2b_us;           /* us a call, back to back */
    double algbw, busbw;     /* GB/s, of the median */
    uint64_t wrong; /* elements, on the rank that has most of them; 0 if nothing was checked */
};

/** What is needed to measure all cells; buffers as large as the largest one. */
struct perf_loop;

/**
 * Allocates and meets the other ranks. Collective.
 * @param options, peer  kept; the caller's
 * @return 0 | -1, the reason is in peer->error
 */
int perf_loop_create(const struct perf_options *options, struct perf_peer *peer,
                     struct perf_loop **loop_out);

/** Gives everything back; NULL is a no-op. */
void perf_loop_destroy(struct perf_loop *loop);

/** @return whether calls are started together through shared memory (else only by barriers). */
bool perf_loop_aligned(const struct perf_loop *loop);

/** Measures one cell. Collective; all ranks get the same numbers. @return 0 | -1, see peer->error
 */
int perf_loop_measure(struct perf_loop *loop, uint64_t bytes, bool in_place,
                      struct perf_cell *cell_out);

#endif
