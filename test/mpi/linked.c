/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of a program that is linked with Open MPI, and so has copies of the objects that it names
 * (copy relocations), which the library uses then instead of its own. It sums by its own call, and
 * by horon in a job of the launcher's and in one of a communicator.
 */
#include <horon/horon.h>

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void must(int right, const char *what, const char *text)
{
    if (right)
        return;
    fprintf(stderr, "%s: %s\n", what, text);
    exit(1);
}

static void sum(horon_options_t *options, int size)
{
    char why[HORON_ERROR_TEXT_BYTES] = "";
    float one = 1, all = 0;
    horon_context_t *ctx = NULL;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.name = "sum";
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.src = &one;
    desc.dst = &all;
    desc.count = 1;
    must(horon_context_create(options, &ctx, why, sizeof why) == HORON_OK, "create", why);
    must(horon_run(ctx, &desc, -1, why, sizeof why) == HORON_OK, "sum", why);
    must(all == (float)size, "sum", "is wrong");
    horon_context_destroy(ctx);
}

int main(void)
{
    int level = 0, size = 0;
    float one = 1, all = 0;
    MPI_Comm comm = MPI_COMM_NULL;
    horon_options_t options = HORON_OPTIONS_INIT;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&one, &all, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    must(all == (float)size, "MPI_Allreduce", "is wrong");
    sum(NULL, size);
    must(MPI_Comm_dup(MPI_COMM_WORLD, &comm) == MPI_SUCCESS, "MPI_Comm_dup", "failed");
    options.mpi_comm = &comm;
    sum(&options, size);
    MPI_Comm_free(&comm);
    must(comm == MPI_COMM_NULL, "MPI_Comm_free", "left it");
    MPI_Finalize();
    puts("summed");
    return 0;
}
