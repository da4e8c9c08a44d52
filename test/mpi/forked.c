/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of a program that is linked with MPI and begins it, and makes no context. A child of its,
 * by fork(), makes a job of its own, which does without that MPI, and none of a communicator.
 */
#include "mpi/must.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char why[HORON_ERROR_TEXT_BYTES];

static int go_on_in_child(void)
{
    horon_context_t *ctx = NULL;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    horon_options_t alone = HORON_OPTIONS_INIT, ours = HORON_OPTIONS_INIT;
    MPI_Comm self = MPI_COMM_SELF;
    alone.rank = 0;
    alone.size = 1;
    must(horon_context_create(&alone, &ctx, why, sizeof why), "create", why);
    desc.verb = HORON_BARRIER;
    must(horon_run(ctx, &desc, -1, why, sizeof why), "barrier", why);
    const char *by = horon_carrier(ctx, &desc);
    printf("barrier by %s\n", by);
    const int failed = strcmp(by, "native") != 0;
    horon_context_destroy(ctx);
    ours.mpi_comm = &self;
    printf("status %d: %s\n", horon_context_create(&ours, &ctx, why, sizeof why), why);
    fflush(stdout);
    return failed;
}

int main(int argc, char **argv)
{
    int level = 0, ended = 1;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    const pid_t child = fork();
    if (child == 0)
        _exit(go_on_in_child());
    if (child < 0 || waitpid(child, &ended, 0) != child || ended != 0)
        return 1; /* what is left of MPI may wait for ever */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    puts("ended");
    return 0;
}
