/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPICH's MPI, of which the program, making.c, holds calls: those that make a communicator, until
 * it lets them go, and looks for the end of sums, until one is being made or very many have been in
 * vain, or those for the end of the last sum, for a time, or those for the end of all else, until
 * that sum has begun and the progress thread sleeps. It counts looks, broadcasts, and what must not
 * be: sums on memory of the program's own, which is in its image, beside a thread that makes a
 * communicator. And if it is asked for, a message that is sent is kept, as by a network that takes
 * no more, and goes with a later call.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <mpi.h>

enum { LOOKS = 1000 };

#define EXPORT __attribute__((visibility("default")))

/* For the program. */
EXPORT _Atomic int slow_mpi_keeps_sends, slow_mpi_holds_making, slow_mpi_holds_sums, slow_mpi_makes,
    slow_mpi_direct_sums, slow_mpi_faults, slow_mpi_holds_sums_ms, slow_mpi_looks,
    slow_mpi_holds_others, slow_mpi_sleeps, slow_mpi_broadcasts;

static _Atomic int direct;                  /* sums in flight on the program's memory */
static double began;                        /* the last of them, in ms */
static MPI_Request last = MPI_REQUEST_NULL; /* that of this one */

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

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
        began = now_ms();
    }
    const int code = PMPI_Iallreduce(src, dst, count, type, op, comm, request);
    if (is_of_program(dst))
        last = *request;
    return code;
}

EXPORT int MPI_Ibcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm,
                      MPI_Request *request)
{
    slow_mpi_broadcasts++;
    return PMPI_Ibcast(data, count, type, root, comm, request);
}

/* Of the one message that is kept; `looks` for the end of it come first. */
static struct {
    char *bytes;
    int size, to, tag, looks;
    MPI_Comm comm;
    MPI_Request request;
} kept;

EXPORT int MPI_Isend(const void *src, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                     MPI_Request *request)
{
    if (!slow_mpi_keeps_sends || kept.bytes)
        return PMPI_Isend(src, count, type, to, tag, comm, request);
    PMPI_Type_size(type, &kept.size);
    kept.size *= count;
    kept.bytes = malloc((size_t)kept.size);
    memcpy(kept.bytes, src, (size_t)kept.size);
    kept.to = to;
    kept.tag = tag;
    kept.comm = comm;
    kept.looks = 1;
    return PMPI_Irecv(NULL, 0, type, MPI_PROC_NULL, 0, comm, request); /* has ended */
}

static void send_what_is_kept(void)
{
    if (!kept.bytes || kept.looks-- > 0)
        return;
    PMPI_Isend(kept.bytes, kept.size, MPI_BYTE, kept.to, kept.tag, kept.comm, &kept.request);
    PMPI_Wait(&kept.request, MPI_STATUS_IGNORE);
    free(kept.bytes);
    kept.bytes = NULL;
}

EXPORT int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *found, MPI_Status *status)
{
    send_what_is_kept();
    slow_mpi_looks++;
    return PMPI_Iprobe(from, tag, comm, found, status);
}

EXPORT int MPI_Testall(int count, MPI_Request requests[], int *through, MPI_Status statuses[])
{
    static _Atomic int looks;
    const bool is_last = last != MPI_REQUEST_NULL && requests[0] == last;
    send_what_is_kept();
    slow_mpi_looks++;
    if ((slow_mpi_holds_sums && direct && !slow_mpi_makes && looks++ < LOOKS) ||
        (is_last && now_ms() - began < slow_mpi_holds_sums_ms) ||
        (!is_last && slow_mpi_holds_others && !(slow_mpi_sleeps && last != MPI_REQUEST_NULL))) {
        *through = 0;
        return MPI_SUCCESS;
    }
    const int code = PMPI_Testall(count, requests, through, statuses);
    if (*through && direct)
        direct--;
    if (*through && is_last)
        last = MPI_REQUEST_NULL;
    return code;
}
