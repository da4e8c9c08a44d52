/* SPDX-License-Identifier: Apache-2.0 */
/* MPI_Finalize(), which waits for all ranks, where one may be gone. */
#ifndef HORON_BACKEND_MPI_FINALIZE_H
#define HORON_BACKEND_MPI_FINALIZE_H

#include "backend/mpi_library.h"

#include <sys/types.h>

/** What is known of a rank's process, in place of its number. */
enum { HORON_MPI_PEER_ENDED = -1, HORON_MPI_PEER_UNKNOWN = 0 };

/** How long MPI may take from the first end of a process until MPI_Finalize() is through here. */
#define HORON_MPI_FINALIZE_MS 10000

/**
 * Ends MPI, however late ranks come to their end, unless one never does.
 * @param peers    [count] numbers of processes of this host that are ranks of MPI's world, or
 *                 _ENDED or _UNKNOWN, which are not watched
 * @param limit_ms HORON_MPI_FINALIZE_MS
 * @return false: one of the processes has ended and MPI does not, which is left to a thread that
 * may wait in it for ever
 * Thread: any, once. Blocks: see above.
 */
bool horon_mpi_finalize(const struct horon_mpi_library *library, const pid_t *peers, int count,
                        int limit_ms);

#endif
