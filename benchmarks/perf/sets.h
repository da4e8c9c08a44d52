/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process sets of --sets: each has all ranks but two, so that from 5 ranks on any two of them
 * overlap, and every rank is in as many as any other, as far as that comes out even. As all are of
 * one size, one of them is what many of them are measured against.
 *
 *     5 ranks:  ..234  0..34  01..4  012..  .123.    apart by 1, from rank 0 on
 *               .1.34  0.2.4  ...                    apart by 2
 */
#ifndef HORON_PERF_SETS_H
#define HORON_PERF_SETS_H

#include <stdint.h>

/** @return how many different sets @p size ranks have; 0 if there are too few ranks for any. */
uint64_t perf_sets_most(int size);

/** @return how many ranks a set has. */
int perf_set_size(int size);

/** Tells a set's ranks, in ascending order.
 * @param set   below perf_sets_most(size)
 * @param ranks [perf_set_size(size)] */
void perf_set_ranks(uint64_t set, int size, int32_t *ranks);

/** @return the number of @p rank in a set, or -1: it is outside. */
int perf_set_rank(uint64_t set, int size, int rank);

#endif
