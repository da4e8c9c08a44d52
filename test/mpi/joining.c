/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank whose MPI is held_mpi.c: it tells whether it has joined, and what carries a sum. If it has
 * not, it goes on alone, where MPI is of no use any more; and it ends as any program does.
 * `joining fork`: so does a child of its, once it has left the job. `joining asks RANK`: if it has
 * not joined, the ranks but that one come to the point where MPI's thread waits for an answer of
 * hydra's; then they try to join once more. `joining later`: the first job meets elsewhere, and
 * the second one by the launcher, once MPI has begun.
 */
#include <horon/horon.h>

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void sum(horon_context_t *ctx)
{
    char why[HORON_ERROR_TEXT_BYTES];
    float value = 1;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.src = desc.dst = &value;
    desc.count = 1;
    desc.flags = HORON_IN_ORDER;
    const horon_status_t status = horon_run(ctx, &desc, -1, why, sizeof why);
    printf("sum %g by %s\n", (double)value, status == HORON_OK ? horon_carrier(ctx, &desc) : why);
}

/* MPI's thread has told hydra that it comes to their barrier, which nothing but the rank that stays
 * away could end: until then it waits for hydra's answer, and is in the middle of nothing else. */
static sem_t in_barrier;

__attribute__((visibility("default"))) ssize_t write(int fd, const void *bytes, size_t count);

/* A program's goes before libc's, also for MPICH, which tells hydra by it, while horon does so by
 * send(). */
ssize_t write(int fd, const void *bytes, size_t count)
{
    static const char barrier[] = "cmd=barrier_in";
    const char *hydra = getenv("PMI_FD");
    const ssize_t written = syscall(SYS_write, fd, bytes, count);
    if (written > 0 && hydra && fd == atoi(hydra) && count >= strlen(barrier) &&
        memcmp(bytes, barrier, strlen(barrier)) == 0)
        sem_post(&in_barrier);
    return written;
}

static void try_again_beside_begin(const char *idle)
{
    static const char *const settings[] = {"HORON_BACKEND=native", "HORON_START_TIMEOUT=2s", NULL};
    horon_context_t *ctx = NULL;
    char why[HORON_ERROR_TEXT_BYTES];
    horon_options_t again = HORON_OPTIONS_INIT;
    const char *rank = getenv("PMI_RANK");
    if (!rank)
        return;
    while (strcmp(rank, idle) != 0 && sem_wait(&in_barrier) != 0)
        continue; /* a signal */
    again.settings = settings;
    const horon_status_t status = horon_context_create(&again, &ctx, why, sizeof why);
    printf("again %d %s\n", status, status == HORON_OK ? "" : why);
    horon_context_destroy(ctx);
}

/* @return of this process; the child's has ended */
static int join_in_child(const horon_options_t *options)
{
    horon_context_t *ctx = NULL;
    int ended = 1;
    fflush(stdout);
    const pid_t child = fork();
    if (child) {
        waitpid(child, &ended, 0);
        return ended;
    }
    if (horon_context_create(options, &ctx, NULL, 0) != HORON_OK)
        exit(1);
    sum(ctx);
    horon_context_destroy(ctx);
    exit(0);
}

int main(int argc, char **argv)
{
    horon_context_t *ctx = NULL;
    char why[HORON_ERROR_TEXT_BYTES];
    const char *const elsewhere[] = {getenv("ELSEWHERE"), NULL};
    horon_options_t first = HORON_OPTIONS_INIT, alone = HORON_OPTIONS_INIT;
    sem_init(&in_barrier, 0, 0);
    alone.rank = 0;
    alone.size = 1;
    if (elsewhere[0])
        first.settings = elsewhere;
    horon_status_t status = horon_context_create(&first, &ctx, why, sizeof why);
    if (status != HORON_OK) {
        printf("failed %d %s\n", status, why);
        if (argc == 3 && strcmp(argv[1], "asks") == 0)
            try_again_beside_begin(argv[2]);
        status = horon_context_create(&alone, &ctx, why, sizeof why);
    }
    if (status == HORON_OK)
        sum(ctx);
    horon_context_destroy(ctx);
    if (argc == 2 && strcmp(argv[1], "fork") == 0)
        return join_in_child(&alone);
    if (argc == 2 && strcmp(argv[1], "later") == 0) {
        ctx = NULL;
        status = horon_context_create(NULL, &ctx, why, sizeof why);
        if (status == HORON_OK)
            sum(ctx);
        horon_context_destroy(ctx);
    }
    return status != HORON_OK;
}
