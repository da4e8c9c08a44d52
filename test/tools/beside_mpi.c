/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of horon and of MPI in one process: `beside_mpi LIBRARY STEPS`. A step is a letter, in
 * any order that makes sense: j joins, s sums, l leaves, and J, S, L likewise in a second context;
 * w joins as a rank of MPI_COMM_WORLD and c of MPI_COMM_SELF; o joins in another thread, which
 * ends, and m leaves in one; d sums, too, but rank 0 comes when the others have long waited for it,
 * and were idle; x sums by name and in order at once, begun in an order of the rank's; p in a
 * process set of ranks 0 and 1; v submits a sum that takes a while, and z waits for it; k sums, and
 * keeps the request for good; a begins a sum that no other rank has; q kills the last rank, and the
 * others sum in vain; u takes away what says that the launcher has a key-value space, and h hides
 * PMIx's library from horon; i, t, e, b and f are MPI_Init, MPI_Init_thread for calls of all
 * threads and of one at a time, MPI_Barrier and MPI_Finalize.
 */
#include "idle_waits.h"

#include <horon/horon.h>

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDLE_WAITS = 50, LARGE = 8 << 20 };

#define WORLD 0x44000000 /* MPI_COMM_WORLD of MPICH's ABI; in Open MPI's it is an object */

#define STANDARD_WORLD 0x101 /* in the ABI of the standard */

/* MPI_THREAD_SERIALIZED and MPI_THREAD_MULTIPLE; in the ABI of the standard and elsewhere */
static const int serialized[] = {2, 2048}, multiple[] = {3, 4096};

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static bool hides_pmix;

/* In place of the system's, which it calls. */
void *dlopen(const char *file, int flags)
{
    void *(*system_one)(const char *, int);
    void *address = dlsym(RTLD_NEXT, "dlopen");
    memcpy(&system_one, &address, sizeof address);
    const bool hidden = hides_pmix && file && strcmp(file, "libpmix.so.2") == 0;
    return system_one(hidden ? "libpmix.so.2.hidden" : file, flags);
}

/* @param function_out  a pointer to a function */
static void find(void *library, const char *name, void *function_out)
{
    void *address = dlsym(library, name);
    if (!address)
        stop(name, "is not there");
    memcpy(function_out, &address, sizeof address);
}

/* @param world  of the communicator whose ranks are the job, or NULL */
static void join(horon_context_t **ctx, const uintptr_t *world)
{
    char why[HORON_ERROR_TEXT_BYTES];
    horon_options_t options = HORON_OPTIONS_INIT;
    options.mpi_comm = world;
    if (horon_context_create(&options, ctx, why, sizeof why) != HORON_OK)
        stop("join", why);
}

static void *join_in_thread(void *ctx)
{
    join(ctx, NULL);
    return NULL;
}

static void *leave_in_thread(void *ctx)
{
    horon_context_destroy(ctx);
    return NULL;
}

static void do_elsewhere(void *(*what)(void *), void *arg)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, what, arg) || pthread_join(thread, NULL))
        stop("thread", "there is none");
}

static horon_status_t try_to_sum(horon_context_t *ctx, int32_t *one, char *why, size_t why_bytes)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.name = "one";
    desc.dtype = HORON_INT32;
    desc.src = desc.dst = one;
    desc.count = 1;
    return horon_run(ctx, &desc, -1, why, why_bytes);
}

static void sum(horon_context_t *ctx)
{
    char why[HORON_ERROR_TEXT_BYTES];
    int32_t one = 1;
    if (try_to_sum(ctx, &one, why, sizeof why) != HORON_OK)
        stop("sum", why);
    printf("sum %d\n", (int)one);
}

/* Of many elements, each of which all ranks have as 1. */
struct large {
    int32_t *elements;
    horon_request_t *request;
};

static void submit_large(horon_context_t *ctx, struct large *large)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    large->elements = malloc(LARGE * sizeof *large->elements);
    if (!large->elements)
        stop("malloc", "no memory");
    for (int i = 0; i < LARGE; i++)
        large->elements[i] = 1;
    desc.verb = HORON_ALLREDUCE;
    desc.name = "large";
    desc.dtype = HORON_INT32;
    desc.src = desc.dst = large->elements;
    desc.count = LARGE;
    if (horon_submit(ctx, &desc, &large->request) != HORON_OK)
        stop("submit", horon_last_error(ctx));
}

/* It may have failed, as long as it says why. */
static void wait_for_large(horon_context_t *ctx, struct large *large)
{
    int wrong = 0;
    if (horon_wait(large->request, HORON_HOST_DONE, -1) == HORON_OK) {
        for (int i = 0; i < LARGE; i++)
            wrong += large->elements[i] != horon_size(ctx);
        printf("large: %d are wrong\n", wrong);
    } else {
        printf("large failed: %s\n", horon_request_error(large->request));
    }
    horon_release(large->request);
    free(large->elements);
}

/* Of a program that ends, or joins anew, with a result still in its hands. */
static void sum_and_keep(horon_context_t *ctx)
{
    static int32_t one;
    static horon_request_t *kept;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    one = 1;
    desc.verb = HORON_ALLREDUCE;
    desc.name = "kept";
    desc.dtype = HORON_INT32;
    desc.src = desc.dst = &one;
    desc.count = 1;
    if (horon_submit(ctx, &desc, &kept) != HORON_OK)
        stop("submit", horon_last_error(ctx));
    if (horon_wait(kept, HORON_HOST_DONE, -1) != HORON_OK)
        stop("wait", horon_request_error(kept));
    printf("sum %d\n", (int)one);
}

static void sum_in_vain(horon_context_t *ctx)
{
    char why[HORON_ERROR_TEXT_BYTES];
    int32_t one = 1;
    if (horon_rank(ctx) == horon_size(ctx) - 1)
        raise(SIGKILL);
    if (try_to_sum(ctx, &one, why, sizeof why) == HORON_OK)
        stop("sum", "was not in vain");
}

/* No other rank has it: nothing of it is in MPI, and this rank waits for it. */
static void begin_alone(horon_context_t *ctx)
{
    static int32_t one;
    char name[32];
    horon_request_t *request;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    snprintf(name, sizeof name, "of rank %d", horon_rank(ctx));
    desc.verb = HORON_ALLREDUCE;
    desc.name = name;
    desc.dtype = HORON_INT32;
    desc.src = desc.dst = &one;
    desc.count = 1;
    if (horon_submit(ctx, &desc, &request) != HORON_OK)
        stop("submit", horon_last_error(ctx));
    horon_release(request);
}

/* MPI_Barrier, in which rank 0 waits for the others. */
struct meeting {
    int (*barrier)(uintptr_t);
    uintptr_t world;
};

static void meet(void *arg)
{
    const struct meeting *meeting = arg;
    meeting->barrier(meeting->world);
}

/* The thread that waits is the one that may call MPI. */
static void sum_late(horon_context_t *ctx, struct meeting *meeting)
{
    if (horon_rank(ctx) > 0)
        idle_waits_count(IDLE_WAITS, meet, meeting);
    else
        meet(meeting);
    sum(ctx);
}

static bool has_abi_of_standard(void *library)
{
    int (*get_version)(int *, int *);
    int major = 0, minor = 0;
    if (!dlsym(library, "MPI_Abi_get_version"))
        return false;
    find(library, "MPI_Abi_get_version", &get_version);
    return get_version(&major, &minor) == 0 && major > 0;
}

/* @param number  counted from the world's, where it is no object */
static uintptr_t find_communicator(void *library, const char *object, unsigned number)
{
    const uintptr_t address = (uintptr_t)dlsym(library, object);
    if (has_abi_of_standard(library))
        return STANDARD_WORLD + number;
    return address ? address : WORLD + number;
}

static void sum_both_ways(horon_context_t *ctx)
{
    int32_t ones[2] = {1, 1};
    horon_request_t *requests[2];
    for (int i = 0; i < 2; i++) {
        const int which = (i + horon_rank(ctx)) % 2;
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_ALLREDUCE;
        desc.name = which ? NULL : "named";
        desc.flags = which ? HORON_IN_ORDER : 0;
        desc.dtype = HORON_INT32;
        desc.src = desc.dst = &ones[which];
        desc.count = 1;
        if (horon_submit(ctx, &desc, &requests[which]) != HORON_OK)
            stop("submit", horon_last_error(ctx));
    }
    for (int i = 0; i < 2; i++) {
        if (horon_wait(requests[i], HORON_HOST_DONE, -1) != HORON_OK)
            stop("wait", horon_request_error(requests[i]));
        horon_release(requests[i]);
        printf("sum %d\n", (int)ones[i]);
    }
}

static void sum_in_set(horon_context_t *ctx)
{
    static const int32_t members[] = {0, 1};
    char why[HORON_ERROR_TEXT_BYTES];
    int32_t one = 1, set = 0;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    if (horon_process_set_add(ctx, members, 2, -1, &set) != HORON_OK)
        stop("add", horon_last_error(ctx));
    desc.verb = HORON_ALLREDUCE;
    desc.name = "of two";
    desc.process_set = set;
    desc.dtype = HORON_INT32;
    desc.src = desc.dst = &one;
    desc.count = 1;
    if (horon_rank(ctx) < 2 && horon_run(ctx, &desc, -1, why, sizeof why) != HORON_OK)
        stop("sum", why);
    printf("of two %d\n", (int)one);
}

/* Steps that do more than sum, leave something or take it away. */
static void do_more(char step, horon_context_t *ctx, struct large *large)
{
    switch (step) {
    case 'q':
        sum_in_vain(ctx);
        break;
    case 'm':
        do_elsewhere(leave_in_thread, ctx);
        break;
    case 'x':
        sum_both_ways(ctx);
        break;
    case 'a':
        begin_alone(ctx);
        break;
    case 'k':
        sum_and_keep(ctx);
        break;
    case 'v':
        submit_large(ctx, large);
        break;
    case 'z':
        wait_for_large(ctx, large);
        break;
    case 'h':
        hides_pmix = true;
        break;
    case 'u':
        unsetenv("PMI_FD");
        unsetenv("PMIX_NAMESPACE");
        break;
    default:
        stop((char[]){step, 0}, "is no step");
    }
}

int main(int argc, char **argv)
{
    horon_context_t *ctx = NULL, *other = NULL;
    struct large large;
    void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!library)
        stop("dlopen", argc > 2 ? dlerror() : "beside_mpi LIBRARY STEPS");
    int level;
    int (*init_thread)(int *, char ***, int, int *);
    int (*init)(int *, char ***), (*barrier)(uintptr_t), (*finalize)(void);
    const bool standard = has_abi_of_standard(library);
    const uintptr_t world = find_communicator(library, "ompi_mpi_comm_world", 0);
    const uintptr_t self = find_communicator(library, "ompi_mpi_comm_self", 1);
    find(library, "MPI_Init", &init);
    find(library, "MPI_Init_thread", &init_thread);
    find(library, "MPI_Barrier", &barrier);
    find(library, "MPI_Finalize", &finalize);
    for (const char *step = argv[2]; *step; step++) {
        switch (*step) {
        case 'j':
            join(&ctx, NULL);
            break;
        case 's':
            sum(ctx);
            break;
        case 'l':
            horon_context_destroy(ctx);
            break;
        case 'J':
            join(&other, NULL);
            break;
        case 'o':
            do_elsewhere(join_in_thread, &ctx);
            break;
        case 'w':
        case 'c':
            join(&ctx, *step == 'w' ? &world : &self);
            break;
        case 'S':
            sum(other);
            break;
        case 'L':
            horon_context_destroy(other);
            break;
        case 'i':
            init(NULL, NULL);
            break;
        case 't':
        case 'e':
            init_thread(NULL, NULL, (*step == 't' ? multiple : serialized)[standard], &level);
            break;
        case 'd':
            sum_late(ctx, &(struct meeting){barrier, world});
            break;
        case 'p':
            sum_in_set(ctx);
            break;
        case 'b':
            barrier(world);
            break;
        case 'f':
            finalize();
            break;
        default:
            do_more(*step, ctx, &large);
        }
    }
    return fflush(stdout);
}
