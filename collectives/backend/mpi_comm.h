/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator of the program's, of which a job is made: its ranks, and a word from the first of
 * them to all. It stays the program's, and is not used any more once the ranks have met. Or MPI's
 * world, by whose ranks a launcher's job is told where to meet.
 */
#ifndef HORON_BACKEND_MPI_COMM_H
#define HORON_BACKEND_MPI_COMM_H

#include "backend/mpi_library.h"

struct horon_mpi_wanted;

struct horon_mpi_comm {
    const struct horon_mpi_library *library;
    horon_mpi_handle handle;
    int rank, size; /* in it */
};

/**
 * Looks at a communicator.
 * @param given the address of the program's handle: a pointer, or an int in MPICH's family
 * @param wanted  its library, and what started this process
 * @return OK | ERR_INVALID, MPI has not begun or has ended, or this is no communicator of one group
 * of which this process is one | ERR_UNSUPPORTED, it has ranks outside of MPI_COMM_WORLD, or the
 * library lacks a call | ERR_CONFIG, as of horon_mpi_check_world() | ERR_SYSTEM | ERR_MEMORY
 */
horon_status_t horon_mpi_comm_see(struct horon_mpi_comm *comm, const void *given,
                                  const struct horon_mpi_wanted *wanted, struct horon_error *error);

/**
 * Looks at MPI_COMM_WORLD, which nobody gave: whether this thread may call MPI now, and no other
 * thread of the program does meanwhile.
 * @param serialized the setting MPI_SERIALIZED, by which the program says that none does
 * @return as above | ERR_UNSUPPORTED, it may not, or a job of this process has failed before
 */
horon_status_t horon_mpi_comm_see_world(struct horon_mpi_comm *comm, const char *file,
                                        bool serialized, struct horon_error *error);

/** From rank 0 to all of it, each of which calls this and the next one in the same order as its
 * other collectives. @param bytes [count] must live until it has ended, or for ever
 * @param request set; [1]
 * @return OK | ERR_SYSTEM | ERR_UNSUPPORTED, what was given up is in MPI's hands */
horon_status_t horon_mpi_comm_tell(const struct horon_mpi_comm *comm, void *bytes, int count,
                                   horon_mpi_handle *request, struct horon_error *error);
/** @return OK, it has ended | IN_PROGRESS | ERR_SYSTEM | ERR_UNSUPPORTED, likewise */
horon_status_t horon_mpi_comm_told(const struct horon_mpi_comm *comm, horon_mpi_handle *request,
                                   struct horon_error *error);

#endif
