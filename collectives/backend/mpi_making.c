/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators of some ranks of the world. MPI has no call for that which returns before those
 * ranks have come, so a thread makes them, and waits there. Nobody waits for the thread: it and the
 * channel share what they know, and the one that comes second frees it.
 *
 * Of the whole world there are copies without waiting, for a thread that alone may call MPI.
 */
#include "backend/mpi_state.h"

#include "alloc.h"
#include "backend/mpi_shut.h"
#include "thread.h"

#include <stdatomic.h>
#include <string.h>

enum { UNDER_WAY, MADE, LEFT };

struct horon_mpi_making {
    const struct horon_mpi_library *library;
    int tag, size, count;
    _Atomic int state;
    /* of the thread, until it has MADE it */
    const char *call;
    int code;
    horon_mpi_handle comms[HORON_MPI_SERIALIZED_CHANNELS];
    bool copies;                                      /* no thread makes it */
    uint64_t requests[HORON_MPI_SERIALIZED_CHANNELS]; /* handles, one behind another */
    int ranks[];
};

static int try_to_make(struct horon_mpi_making *making)
{
    const struct horon_mpi_library *library = making->library;
    const struct horon_mpi_calls *mpi = &library->mpi;
    horon_mpi_handle all = 0, some = 0;
    making->call = "MPI_Comm_group";
    int code = mpi->comm_group(library->world, &all);
    if (code != HORON_MPI_SUCCESS)
        return code;
    making->call = "MPI_Group_incl";
    code = mpi->group_incl(all, making->size, making->ranks, &some);
    mpi->group_free(&all);
    if (code != HORON_MPI_SUCCESS)
        return code;
    making->call = "MPI_Comm_create_group";
    for (int i = 0; i < making->count && code == HORON_MPI_SUCCESS; i++) {
        code = mpi->comm_create_group(library->world, some, making->tag + i, &making->comms[i]);
        if (code == HORON_MPI_SUCCESS)
            mpi->comm_set_errhandler(making->comms[i], library->errors_return);
    }
    mpi->group_free(&some);
    return code;
}

static void *make(void *arg)
{
    struct horon_mpi_making *making = arg;
    const bool alone = making->library->level == HORON_MPI_SERIALIZED;
    if (alone)
        horon_mpi_meet_hold();
    making->code = try_to_make(making);
    if (alone)
        horon_mpi_meet_release();
    if (atomic_exchange(&making->state, MADE) == LEFT)
        horon_free(making);
    return NULL;
}

horon_status_t horon_mpi_making_begin(const struct horon_mpi_library *library, const int *ranks,
                                      int size, int tag, int count,
                                      struct horon_mpi_making **making_out,
                                      struct horon_error *error)
{
    assert(count >= 1 && count <= HORON_MPI_SERIALIZED_CHANNELS);
    struct horon_mpi_making *making =
        horon_zalloc(1, sizeof *making + (size_t)size * sizeof *ranks);
    if (!making)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a communicator of MPI");
    making->library = library;
    making->tag = tag;
    making->size = size;
    making->count = count;
    memcpy(making->ranks, ranks, (size_t)size * sizeof *ranks);
    const int failed = horon_thread_start(NULL, make, making);
    if (failed) {
        horon_free(making);
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, failed,
                                     "no thread that makes a communicator of MPI");
    }
    *making_out = making;
    return HORON_OK;
}

horon_status_t horon_mpi_copying_begin(const struct horon_mpi_library *library, int count,
                                       struct horon_mpi_making **making_out,
                                       struct horon_error *error)
{
    assert(count >= 1 && count <= HORON_MPI_SERIALIZED_CHANNELS);
    struct horon_mpi_making *making = horon_zalloc(1, sizeof *making);
    if (!making)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a communicator of MPI");
    making->library = library;
    making->count = count;
    making->copies = true;
    making->call = "MPI_Comm_idup";
    *making_out = making; /* stays where it is from here on, also after a failure */
    for (int i = 0; i < count; i++) {
        char *const request = (char *)making->requests + (size_t)i * library->family->handle_bytes;
        const int code = library->mpi.comm_idup(library->world, &making->comms[i], request);
        if (code != HORON_MPI_SUCCESS)
            return horon_mpi_failed(library, making->call, code, error);
    }
    return HORON_OK;
}

static void look_at_copies(struct horon_mpi_making *making)
{
    const struct horon_mpi_library *library = making->library;
    int through = 0;
    making->code = library->mpi.testall(making->count, making->requests, &through,
                                        library->family->statuses_ignore);
    if (making->code == HORON_MPI_SUCCESS && !through)
        return;
    for (int i = 0; i < making->count && through; i++)
        library->mpi.comm_set_errhandler(making->comms[i], library->errors_return);
    atomic_store(&making->state, MADE);
}

horon_status_t horon_mpi_making_end(struct horon_mpi_making **making_at,
                                    horon_mpi_handle *comms_out, struct horon_error *error)
{
    struct horon_mpi_making *making = *making_at;
    if (making->copies)
        look_at_copies(making);
    if (atomic_load(&making->state) != MADE)
        return HORON_IN_PROGRESS;
    horon_status_t status = HORON_OK;
    if (making->code == HORON_MPI_SUCCESS)
        memcpy(comms_out, making->comms, (size_t)making->count * sizeof *comms_out);
    else
        status = horon_mpi_failed(making->library, making->call, making->code, error);
    *making_at = NULL;
    horon_free(making);
    return status;
}

bool horon_mpi_making_leave(struct horon_mpi_making *making)
{
    const bool made = !making || atomic_exchange(&making->state, LEFT) == MADE;
    if (made)
        horon_free(making);
    return !made;
}
