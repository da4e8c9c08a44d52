/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing here waits: a rank that does not come is missed by the caller's time limit, and not by a
 * call of MPI that never returns. What MPI would end the process for is asked before: a null
 * handle, and one of two groups, which has no first rank.
 */
#include "backend/mpi_comm.h"

#include "alloc.h"
#include "backend/mpi_begin.h"
#include "backend/mpi_shut.h"

#include <string.h>

static horon_status_t check_kind(const struct horon_mpi_comm *comm, struct horon_error *error)
{
    const struct horon_mpi_library *library = comm->library;
    int between = 0;
    if (!comm->handle || comm->handle == library->comm_null)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "mpi_comm is MPI_COMM_NULL: this process is not in it");
    const int code = library->mpi.comm_test_inter(comm->handle, &between);
    if (code != HORON_MPI_SUCCESS)
        return horon_mpi_failed(library, "MPI_Comm_test_inter", code, error);
    return between ? horon_error_set(error, HORON_ERR_INVALID,
                                     "mpi_comm is an intercommunicator: merge it first, by "
                                     "MPI_Intercomm_merge()")
                   : HORON_OK;
}

/* MPI carries operations out by ranks of the world (mpi.c). @param ranks [2 * size] */
static horon_status_t check_group(const struct horon_mpi_comm *comm, int *ranks,
                                  struct horon_error *error)
{
    const struct horon_mpi_library *library = comm->library;
    const struct horon_mpi_calls *mpi = &library->mpi;
    horon_mpi_handle some = 0, all = 0;
    int code = mpi->comm_group(comm->handle, &some);
    if (code == HORON_MPI_SUCCESS)
        code = mpi->comm_group(library->world, &all);
    for (int i = 0; i < comm->size; i++)
        ranks[i] = i;
    if (code == HORON_MPI_SUCCESS)
        code = mpi->group_translate_ranks(some, comm->size, ranks, all, ranks + comm->size);
    if (code != HORON_MPI_SUCCESS)
        return horon_mpi_failed(library, "MPI_Group_translate_ranks", code, error);
    mpi->group_free(&some);
    mpi->group_free(&all);
    for (int i = 0; i < comm->size; i++)
        if (ranks[comm->size + i] < 0) /* MPI_UNDEFINED */
            return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                                   "rank %d of mpi_comm is not in MPI_COMM_WORLD of this process; "
                                   "a job is made of ranks of one world",
                                   i);
    return HORON_OK;
}

static horon_status_t see_place(struct horon_mpi_comm *comm, struct horon_error *error)
{
    return horon_mpi_see_place(comm->library, comm->handle, &comm->rank, &comm->size, error);
}

horon_status_t horon_mpi_comm_see(struct horon_mpi_comm *comm, const void *given,
                                  const struct horon_mpi_wanted *wanted, struct horon_error *error)
{
    *comm = (struct horon_mpi_comm){0};
    horon_status_t status = horon_mpi_find(wanted->file, &comm->library, error);
    if (status == HORON_OK)
        status = horon_mpi_check_world(wanted, comm->library, error);
    if (status != HORON_OK)
        return status;
    memcpy(&comm->handle, given, comm->library->family->handle_bytes);
    status = check_kind(comm, error);
    if (status != HORON_OK)
        return status;
    status = see_place(comm, error);
    if (status != HORON_OK)
        return status;
    int *ranks = horon_zalloc(2 * (size_t)comm->size, sizeof *ranks);
    status = ranks ? check_group(comm, ranks, error) : HORON_ERR_MEMORY;
    horon_free(ranks);
    return status;
}

/* With a level below MULTIPLE other threads of the program might be in a call; but only the main
 * one may be, where it alone makes them, and that one is here. */
static horon_status_t check_thread(const struct horon_mpi_library *library, bool serialized,
                                   struct horon_error *error)
{
    bool main = false;
    const int level = horon_mpi_see_level(library, &main);
    const bool may =
        level == HORON_MPI_MULTIPLE || (level == HORON_MPI_SERIALIZED ? serialized : main);
    return may ? HORON_OK
               : horon_error_set(error, HORON_ERR_UNSUPPORTED,
                                 level == HORON_MPI_SERIALIZED
                                     ? "it was begun for calls of one thread at a time: set "
                                       "HORON_MPI_SERIALIZED=1 if no other thread calls it now"
                                     : "it was begun for calls of one thread, and this is another");
}

horon_status_t horon_mpi_comm_see_world(struct horon_mpi_comm *comm, const char *file,
                                        bool serialized, struct horon_error *error)
{
    *comm = (struct horon_mpi_comm){0};
    if (horon_mpi_is_doubted())
        return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                               "a job of this process has failed before, whose ranks it needs");
    horon_status_t status = horon_mpi_find(file, &comm->library, error);
    if (status != HORON_OK)
        return status;
    comm->handle = comm->library->world;
    status = check_thread(comm->library, serialized, error);
    return status == HORON_OK ? see_place(comm, error) : status;
}

static bool needs_to_be_alone(const struct horon_mpi_comm *comm)
{
    bool main = false;
    return horon_mpi_see_level(comm->library, &main) == HORON_MPI_SERIALIZED;
}

horon_status_t horon_mpi_comm_tell(const struct horon_mpi_comm *comm, void *bytes, int count,
                                   horon_mpi_handle *request, struct horon_error *error)
{
    const horon_mpi_handle byte = horon_mpi_type(comm->library, HORON_UINT8);
    const horon_status_t status = horon_mpi_meet_enter(needs_to_be_alone(comm), error);
    if (status != HORON_OK)
        return status;
    const int code = comm->library->mpi.ibcast(bytes, count, byte, 0, comm->handle, request);
    horon_mpi_meet_leave();
    return code == HORON_MPI_SUCCESS ? HORON_OK
                                     : horon_mpi_failed(comm->library, "MPI_Ibcast", code, error);
}

horon_status_t horon_mpi_comm_told(const struct horon_mpi_comm *comm, horon_mpi_handle *request,
                                   struct horon_error *error)
{
    int through = 0;
    const horon_status_t status = horon_mpi_meet_enter(needs_to_be_alone(comm), error);
    if (status != HORON_OK)
        return status;
    const int code =
        comm->library->mpi.testall(1, request, &through, comm->library->family->statuses_ignore);
    horon_mpi_meet_leave();
    if (code != HORON_MPI_SUCCESS)
        return horon_mpi_failed(comm->library, "MPI_Testall", code, error);
    return through ? HORON_OK : HORON_IN_PROGRESS;
}
