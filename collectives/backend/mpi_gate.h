/* SPDX-License-Identifier: Apache-2.0 */
/* Between horon's calls of MPI and the program's MPI_Finalize(). */
#ifndef HORON_BACKEND_MPI_GATE_H
#define HORON_BACKEND_MPI_GATE_H

#include "backend/mpi_library.h"
#include "log.h"

#include <stdatomic.h>

/**
 * From here on MPI_Finalize() waits for the call that is being made, and closes the gate. Once a
 * process does something, again is a no-op.
 * @return OK | ERR_SYSTEM, MPI refused
 */
horon_status_t horon_mpi_gate_make(const struct horon_mpi_library *library,
                                   struct horon_error *error);

/** Before that it waits until as many operations have landed as were posted and none is in flight,
 * or nothing has ended or begun for ten seconds; with NULL, for none any more. The counts and
 * @p log live until then. Thread: any. */
void horon_mpi_gate_await(const _Atomic uint32_t *posted, const _Atomic uint32_t *landed,
                          const _Atomic uint32_t *in_flight, const struct horon_log *log);

/** Before calls of MPI, none of which waits for another rank, and after them. One thread at a time.
 * @return false: MPI has ended, or is about to; then there is none to leave */
bool horon_mpi_gate_enter(void);
void horon_mpi_gate_leave(void);

/** Is it closed for good? Thread: any. */
bool horon_mpi_gate_is_closed(void);

#endif
