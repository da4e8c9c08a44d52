/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers of a pipeline's chunks between this rank and ranks of other hosts, of a verb that says
 * itself what goes where: as many at a time as chunks have slots. Between two ranks goes one a
 * chunk in each direction; it is named by the chunk and the rank that sends.
 */
#ifndef HORON_EXEC_TRANSFERS_H
#define HORON_EXEC_TRANSFERS_H

#include "channel_state.h"

/** Lies in the state of a verb. */
struct horon_transfers {
    struct horon_transfer *all; /* [HORON_SLOTS][max] */
    int *peers;                 /* likewise: the rank at the other end */
    size_t max;                 /* of one chunk */
    size_t count[HORON_SLOTS];
};

/** Bytes behind the struct for its tables; a multiple of 8. */
size_t horon_transfers_bytes(size_t max);
/** @param tables  the memory for them, aligned for anything */
void horon_transfers_init(struct horon_transfers *transfers, size_t max, void *tables);

/** Forgets those of the chunk that was in the slot of @p chunk; they have ended. */
void horon_transfers_clear(struct horon_transfers *transfers, const struct horon_channel *channel,
                           uint64_t chunk);
/** Begins one of [@p bytes] at @p data between this rank and @p peer; @p sender, one of the two,
 * gives. @return as horon_netrun_post() */
horon_status_t horon_transfers_begin(struct horon_transfers *transfers,
                                     const struct horon_channel *channel, uint64_t chunk,
                                     int sender, int peer, void *data, size_t bytes,
                                     struct horon_error *error);
/** @return OK, all of @p chunk are done | IN_PROGRESS | why one never will be */
horon_status_t horon_transfers_done(const struct horon_transfers *transfers,
                                    const struct horon_channel *channel, uint64_t chunk,
                                    struct horon_error *error);
/** Is one of @p chunk with @p rank not done? */
bool horon_transfers_wait_for(const struct horon_transfers *transfers,
                              const struct horon_channel *channel, uint64_t chunk, int rank);

#endif
