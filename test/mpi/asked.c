/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank in which one context asks for MPI after another, as two threads may. The first one has it,
 * in whatever order they take it; and the next one once that has ended. One that asks and does
 * without, as MPI makes no operator, is not taken for another one at its address.
 */
#include "backend/mpi_begin.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const void *const first = "first", *const second = "second", *const third = "third";
static struct horon_mpi_wanted wanted = {.file = "", .size = 2};
static struct horon_error error;
static const struct horon_mpi_library *library;

static void must(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "%s: %s\n", what, error.text);
    exit(1);
}

static horon_status_t ask(const void *context)
{
    horon_status_t status;
    horon_error_clear(&error);
    while ((status = horon_mpi_begin(&wanted, context, &error)) == HORON_IN_PROGRESS)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return status;
}

static horon_status_t take(const void *context)
{
    horon_error_clear(&error);
    return horon_mpi_take(&wanted, context, &library, &error);
}

/* The library's own calls of it come here: this program is linked so. */
static bool refuses;
horon_status_t __real_horon_mpi_make_handles(const struct horon_mpi_library *of,
                                             struct horon_error *why);
horon_status_t __wrap_horon_mpi_make_handles(const struct horon_mpi_library *of,
                                             struct horon_error *why);

horon_status_t __wrap_horon_mpi_make_handles(const struct horon_mpi_library *of,
                                             struct horon_error *why)
{
    return refuses ? horon_mpi_failed(of, "MPI_Op_create", 1, why)
                   : __real_horon_mpi_make_handles(of, why);
}

/* The next one has its address, and has not asked: it fails without a word of MPI. */
static void end_without(const void *context)
{
    refuses = true;
    must(ask(context) == HORON_OK && take(context) == HORON_ERR_SYSTEM, "one does without");
    must(!horon_mpi_ends_after(context), "it has none");
    must(!horon_mpi_give_up(context), "the next one has something to give up");
    refuses = false;
}

/* A context leaves a copy of the world, and one that makes no calls has none to leave. */
static void keep_a_copy(void)
{
    horon_mpi_handle copies[HORON_MPI_KEPT_MAX] = {0}, request = 0;
    const horon_mpi_handle none[HORON_MPI_KEPT_MAX] = {0};
    int done = 0;
    must(library->mpi.comm_idup(library->world, &copies[0], &request) == 0, "MPI_Comm_idup");
    while (!done)
        must(library->mpi.testall(1, &request, &done, library->family->statuses_ignore) == 0,
             "MPI_Testall");
    horon_mpi_keep_comms(library, copies, HORON_MPI_KEPT_MAX);
    horon_mpi_keep_comms(library, none, HORON_MPI_KEPT_MAX);
}

int main(void)
{
    wanted.launcher.name = getenv("PMI_RANK") ? "PMI" : "Open MPI";
    must(ask(first) == HORON_OK, "the first one asks");
    must(ask(second) == HORON_ERR_UNSUPPORTED, "the second one asks");
    must(take(second) == HORON_ERR_UNSUPPORTED, "the second one takes what the first asked for");
    must(take(first) == HORON_OK, "the first one takes");
    must(ask(second) == HORON_ERR_UNSUPPORTED, "the second one asks again");
    must(!horon_mpi_give_up(second), "the second one has something to give up");
    must(horon_mpi_ends_after(first) && !horon_mpi_ends_after(second), "it is the first one's");
    horon_mpi_end(false);
    end_without(third);
    must(ask(third) == HORON_OK && take(third) == HORON_OK, "the third one has it");
    must(horon_mpi_ends_after(third), "it is the third one's");
    keep_a_copy();
    horon_mpi_end(false);
    must(!horon_mpi_is_doubted(), "nothing has failed");
    puts("in turn");
    return 0;
}
