/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An MPI in which a rank is killed while its part of an operation is in flight, and from which the
 * others learn nothing: once the program, endless.c, has set dying_mpi_dies, a look for the end of
 * what is in flight kills the process in place of looking; it is one of the next few, by chance. A
 * look that fails, as MPI misses that rank, is one that finds nothing yet, and so are all later
 * ones. So whatever names the rank is no call of MPI's. And in which the rank that the variable
 * DYING_RANK names is killed on its way into MPI_Finalize(). Built once for each family.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <mpi.h>

enum { LOOKS = 8 };

#define EXPORT __attribute__((visibility("default")))

/* For the program. */
EXPORT _Atomic int dying_mpi_dies;

static void die_by_chance(void)
{
    static int looks = -1;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (looks < 0)
        looks = (int)(now.tv_nsec % LOOKS);
    if (looks-- > 0)
        return;
    fprintf(stderr, "dies at %lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    raise(SIGKILL);
}

EXPORT int MPI_Testall(int count, MPI_Request requests[], int *through, MPI_Status statuses[])
{
    static _Atomic int failed;
    if (dying_mpi_dies)
        die_by_chance();
    if (!failed && PMPI_Testall(count, requests, through, statuses) == MPI_SUCCESS)
        return MPI_SUCCESS;
    if (!failed)
        fprintf(stderr, "a look has failed\n");
    failed = 1;
    *through = 0;
    return MPI_SUCCESS;
}

EXPORT int MPI_Finalize(void)
{
    const char *dying = getenv("DYING_RANK");
    int rank = -1;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (dying && rank == atoi(dying))
        raise(SIGKILL);
    return PMPI_Finalize();
}
