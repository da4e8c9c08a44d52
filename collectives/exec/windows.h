/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every rank gets what every rank gives, of lengths that all know: a pipeline of windows. Window w
 * is elements [w*C, (w+1)*C) of each rank's own. A chunk slot is cut in equal regions: region 0 for
 * this rank's own window, the others for the windows that it fetches for its host. Rank l of a host
 * sends its window to one rank of every other host, number l mod L there; so all know which rank
 * carries which window.
 *
 *     POST      own window -> region 0, sends and receives begun
 *     EXCHANGE  all done                             | flag "posted"
 *     OUT       all windows, from the slots of this host -> output | flag "reduced"
 *
 * A window crosses each host boundary once: (H-1)/H of the output comes in over the network, once a
 * host. Whatever the lengths, a rank's region is never smaller than a line: a slot has as many for
 * the ranks of the job at least (horon_host_chunk_bytes()).
 *
 * A few words that each rank tells all others ahead of the data, such as its rows, travel in the
 * same way, piece by piece: horon_windows_begin_table(). Splits do not: an all-to-all sends them by
 * ways of its own (alltoall.c, alltoall_runs.c).
 */
#ifndef HORON_EXEC_WINDOWS_H
#define HORON_EXEC_WINDOWS_H

#include "exec/transfers.h"

/** Lies in the state of a verb. */
struct horon_windows {
    const char *own; /* [counts[this rank]] elements */
    char *out;       /* [sum of counts] elements; NULL: this rank plays its part for the others */
    size_t element_bytes;
    uint64_t *counts; /* [size] elements by rank */
    uint64_t *starts; /* [size] first element of a rank in the output */
    int regions;      /* of a slot: the most that any rank of the job needs */
    int *region_of;   /* [size] of a rank's window, in the slot of the rank that fetches it */
    struct horon_transfers transfers;
};

/** Bytes behind the struct for its tables. */
size_t horon_windows_tables_bytes(const struct horon_team *team);
/** @param tables  the memory for them, aligned for anything */
void horon_windows_init(struct horon_windows *windows, const struct horon_team *team, void *tables);

/**
 * Begins a pipeline that gathers data: own, out, element_bytes, counts and starts are set, some
 * count is not 0. @return IN_PROGRESS, for verbs to return
 */
horon_status_t horon_windows_begin(struct horon_channel *channel, struct horon_windows *windows);

/**
 * Begins a pipeline that gathers what travels ahead of the data: @p words of 8 bytes of each rank.
 * @param own   [words]; it and table are the pipeline's until it ends
 * @param table [size][words] by rank
 * @return IN_PROGRESS, for verbs to return
 */
horon_status_t horon_windows_begin_table(struct horon_channel *channel,
                                         struct horon_windows *windows, const void *own,
                                         uint64_t words, void *table);

#endif
