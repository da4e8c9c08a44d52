/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that dies in the middle: `endless VERB COUNT in-order|named VICTIM [BACKEND]`. All ranks
 * carry the verb out over and over, in a process set by BACKEND if it is given: then the last rank
 * of the job is outside, and waits for the others. The victim is killed at a moment of chance, once
 * all carry it out, which of large tensors lies in one of the operations, and prints when; the
 * others print when and how they failed, and what carried it, in nanoseconds of CLOCK_MONOTONIC.
 * With VERIFY_MPI set they have begun the MPI of that file themselves (own_mpi.h). If the MPI is
 * dying_mpi.c's, that one kills the victim, once it has begun its part.
 */
#include "own_mpi.h"

#include <horon/horon.h>

#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

enum { RANKS = 3, CHANCE_NS = 30000000 };

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Where the victim hears that another rank has left the barrier before what is repeated: nothing
 * that the victim has carried out with it would say so. @return a socket of datagrams */
static int open_channel(bool is_victim)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX}; /* an abstract name, of this job alone */
    const char *mark = getenv("TEST_MARK");
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "endless.%s", mark ? mark : "");
    const struct sockaddr *name = (const struct sockaddr *)&at;
    if (fd < 0 || (is_victim ? bind(fd, name, sizeof at) : connect(fd, name, sizeof at)) != 0) {
        perror("endless: its channel");
        exit(2);
    }
    return fd;
}

/* @return false: this process cannot be killed by a timer */
static bool die_soon(void)
{
    _Atomic int *dies = dlsym(RTLD_DEFAULT, "dying_mpi_dies");
    if (dies) {
        *dies = 1;
        return true;
    }
    struct sigevent death = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec moment = {0};
    timer_t timer;
    const long long now = now_ns();
    moment.it_value.tv_nsec = 1 + now % CHANCE_NS;
    printf("dies at %lld\n", now + moment.it_value.tv_nsec);
    fflush(stdout);
    return timer_create(CLOCK_MONOTONIC, &death, &timer) == 0 &&
           timer_settime(timer, 0, &moment, NULL) == 0;
}

static bool set_verb(horon_descriptor_t *desc, const char *name)
{
    for (uint32_t verb = 0; verb < HORON_VERB_COUNT; verb++)
        if (strcmp(horon_verb_name((horon_verb_t)verb), name) == 0) {
            desc->verb = verb;
            return true;
        }
    return false;
}

static horon_status_t add_set(horon_context_t *ctx, const char *backend, int32_t *set_out)
{
    static const int32_t members[RANKS] = {0, 1, 2};
    horon_process_set_options_t options = HORON_PROCESS_SET_OPTIONS_INIT;
    options.backend = backend;
    return horon_process_set_add_with(ctx, members, RANKS, &options, -1, set_out);
}

/* Of the rank outside the set. */
static int wait_outside(horon_context_t *ctx, horon_descriptor_t *desc)
{
    char why[HORON_ERROR_TEXT_BYTES];
    desc->verb = HORON_BARRIER;
    desc->process_set = 0;
    desc->flags = 0;
    desc->name = NULL;
    const horon_status_t status = horon_run(ctx, desc, -1, why, sizeof why);
    printf("failed %d %d %lld %s\n", horon_rank(ctx), status, now_ns(), why);
    horon_context_destroy(ctx);
    return 1;
}

int main(int argc, char **argv)
{
    horon_context_t *ctx = NULL;
    char why[HORON_ERROR_TEXT_BYTES];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    if (argc < 5 || !set_verb(&desc, argv[1]) || own_mpi("MPI_Init") != 0)
        return 2;
    const char *backend = argv[5];
    const uint64_t count = strtoull(argv[2], NULL, 10);
    desc.count = count;
    desc.dst_count = RANKS * count;
    desc.dtype = HORON_FLOAT32;
    desc.src = calloc(count + 1, sizeof(float));
    desc.dst = calloc(RANKS * count + 1, sizeof(float));
    if (strcmp(argv[3], "in-order") == 0)
        desc.flags = HORON_IN_ORDER;
    else
        desc.name = "endless";
    horon_status_t status = horon_context_create(NULL, &ctx, why, sizeof why);
    if (status != HORON_OK || horon_size(ctx) != RANKS + !!backend || !desc.src || !desc.dst) {
        fprintf(stderr, "%s\n", status == HORON_OK ? "it takes three ranks, or four" : why);
        return 2;
    }
    const int rank = horon_rank(ctx);
    const bool is_victim = rank == atoi(argv[4]);
    const int channel = is_victim ? open_channel(true) : -1;
    int away = RANKS - 1;
    char byte = 0;
    if (backend && add_set(ctx, backend, &desc.process_set) != HORON_OK)
        return 2;
    if (rank == RANKS)
        return wait_outside(ctx, &desc);
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    barrier.process_set = desc.process_set;
    status = horon_run(ctx, &desc, -1, why, sizeof why);
    printf("rank %d by %s\n", rank, horon_carrier(ctx, &desc));
    fflush(stdout);
    if (status == HORON_OK) /* all have said it */
        status = horon_run(ctx, &barrier, -1, why, sizeof why);
    if (status == HORON_OK && !is_victim && send(open_channel(false), &byte, 1, 0) != 1)
        return 2;
    while (status == HORON_OK) {
        while (is_victim && away > 0 && recv(channel, &byte, 1, 0) == 1)
            if (--away == 0 && !die_soon())
                return 2;
        status = horon_run(ctx, &desc, -1, why, sizeof why);
    }
    printf("failed %d %d %lld %s\n", rank, status, now_ns(), why);
    horon_context_destroy(ctx);
    return 1;
}
