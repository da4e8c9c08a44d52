/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was given up while MPI works on memory that is not ours stays in its hands until the process
 * ends, and any call might move it: from then on horon makes none, of whatever context.
 */
#ifndef HORON_BACKEND_MPI_SHUT_H
#define HORON_BACKEND_MPI_SHUT_H

#include "status.h"

#include <stdbool.h>

/** No call is made any more, for good. Again is a no-op. Thread: any. Blocks: until other
 * threads have returned from calls by which ranks meet; for two seconds at most. */
void horon_mpi_shut(void);
/** Thread: any. */
bool horon_mpi_is_shut(void);
/** @return OK | ERR_UNSUPPORTED, it is. Thread: any. */
horon_status_t horon_mpi_check_shut(struct horon_error *error);

/** Before a call by which ranks meet, and after it. Thread: any, several at a time.
 * @param alone  MPI lets one thread at a time call it. Blocks: while such calls are held off, for
 * two seconds at most
 * @return OK | ERR_UNSUPPORTED, it is shut, or they still are; then there is none to leave */
horon_status_t horon_mpi_meet_enter(bool alone, struct horon_error *error);
void horon_mpi_meet_leave(void);
/** Before calls of the context that has such an MPI, and after them. Thread: any. Blocks: until
 * other threads have returned from those above; for two seconds at most. */
void horon_mpi_meet_hold(void);
void horon_mpi_meet_release(void);

#endif
