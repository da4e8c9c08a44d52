/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPICH's MPI, of which the program, making.c, holds calls: those that
 * make a communicator, until it lets them go, and looks for the end of sums, until one is being
 * made or very many have been in vain. It counts what must not be: sums on memory of the program's
 * own, which is in its image, beside a thread that makes a communicator.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include <mpi.h>

enum { LOOKS = 1000 };

#define EXPORT __attribute__((visibility("default")))

/* For the program. */
EXPORT _Atomic int slow_mpi_holds_making, slow_mpi_holds_sums, slow_mpi_makes, slow_mpi_direct_sums,
    slow_mpi_faults;

static _Atomic int direct; /* sums in flight on the program's memory */

static int is_of_program(const void *at) /* horon's own lies in no image */
{
    Dl_info found;
    return dladdr(at, &found) != 0;
}

EXPORT int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *made)
{
    slow_mpi_makes++;
    slow_mpi_faults += direct > 0;
    while (slow_mpi_holds_making) {
        int there; /* as the call itself: it moves whatever is in flight */
        PMPI_Iprobe(MPI_ANY_SOURCE, 32000, comm, &there, MPI_STATUS_IGNORE);
    }
    const int code = PMPI_Comm_create_group(comm, group, tag, made);
    slow_mpi_makes--;
    return code;
}

EXPORT int MPI_Iallreduce(const void *src, void *dst, int count, MPI_Datatype type, MPI_Op op,
                          MPI_Comm comm, MPI_Request *request)
{
    if (is_of_program(dst)) {
        slow_mpi_faults += slow_mpi_makes > 0;
        slow_mpi_direct_sums++;
        direct++;
    }
    return PMPI_Iallreduce(src, dst, count, type, op, comm, request);
}

EXPORT int MPI_Testall(int count, MPI_Request requests[], int *through, MPI_Status statuses[])
{
    static _Atomic int looks;
    if (slow_mpi_holds_sums && direct && !slow_mpi_makes && looks++ < LOOKS) {
        *through = 0;
        return MPI_SUCCESS;
    }
    const int code = PMPI_Testall(count, requests, through, statuses);
    if (*through && direct)
        direct--;
    return code;
}
