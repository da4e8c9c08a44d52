/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of three whose MPI is slow_mpi.c: `making CASE [FIFO]`. What MPI keeps of operations that
 * have ended here reaches the other ranks while this one waits for them. And while a thread makes a
 * communicator, or may do so for ever, MPI works on no memory of the program's: that thread would
 * move its bytes when their operation has been given up. Nor does it where a thread of MPI's own
 * would, as MPICH_ASYNC_PROGRESS says, or calls of a program that has MPI itself and does not say
 * that it makes none. When an operation has failed with MPI at work on
 * its memory, no context is made that makes calls, be it on its way already.
 */
#include <horon/horon.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    RANKS = 3,
    MEMBERS = 2,
    COUNT = 1009,
    LEFT_SUMS = 20,
    IDLE_SUMS = 500,
    LATE = 10,
    DEADLINE_S = 30
};

static char why[HORON_ERROR_TEXT_BYTES];
static float data[COUNT], ordered[COUNT];
static _Atomic int *keeps_sends, *holds_making, *holds_sums, *makes, *direct_sums, *faults,
    *holds_sums_ms, *looks, *holds_others, *sleeps, *broadcasts;

static void must(bool right, const char *what, const char *text)
{
    if (right)
        return;
    fprintf(stderr, "%s: %s\n", what, text);
    exit(1);
}

static _Atomic int *find(const char *name)
{
    void *at = dlsym(RTLD_DEFAULT, name);
    must(at, name, "is not there: HORON_MPI_LIBRARY names slow_mpi");
    return at;
}

static horon_descriptor_t sum_of(float *at, uint32_t flags)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.src = desc.dst = at;
    desc.count = COUNT;
    desc.flags = flags;
    desc.name = flags ? NULL : "named";
    return desc;
}

static bool had_mpi; /* before horon's context was made */

static bool is_set(const char *name)
{
    const char *set = getenv(name);
    return set && strcmp(set, "0") != 0;
}

/* MPI has a thread that moves data, without any calls; or the program may make some. */
static bool mpi_moves(void)
{
    return is_set("MPICH_ASYNC_PROGRESS") || (had_mpi && !is_set("HORON_MPI_SERIALIZED"));
}

/* @return the sum of what the ranks give */
static int sum(horon_context_t *ctx, int given)
{
    for (int i = 0; i < COUNT; i++)
        data[i] = (float)given;
    const horon_descriptor_t desc = sum_of(data, 0);
    must(horon_run(ctx, &desc, -1, why, sizeof why) == HORON_OK, "sum", why);
    for (int i = 1; i < COUNT; i++)
        must(data[i] == data[0], "sum", "is wrong");
    return (int)data[0];
}

/* Now or later: what is given up that thread would write. */
static void sum_indirectly(horon_context_t *ctx)
{
    for (int i = 1; i < 5; i++)
        must(sum(ctx, i) == i * RANKS, "sum", "is wrong");
    must(*direct_sums == 0, "MPI moves by itself, but sums", "are direct");
}

/* The same number of sums on each rank. */
static void sum_until_made_by(horon_context_t *ctx, int ranks)
{
    while (sum(ctx, *makes > 0) < ranks)
        ;
}

static horon_request_t *begin_ordered(horon_context_t *ctx)
{
    horon_request_t *request = NULL;
    const horon_descriptor_t desc = sum_of(ordered, HORON_IN_ORDER);
    must(horon_submit(ctx, &desc, &request) == HORON_OK, "submit", horon_last_error(ctx));
    return request;
}

static void end(horon_request_t *request)
{
    must(horon_wait(request, HORON_HOST_DONE, -1) == HORON_OK, "wait",
         horon_request_error(request));
    horon_release(request);
}

/* The job's lane in order connects while named sums go on. */
static void sum_beside_making(horon_context_t *ctx)
{
    *holds_making = 1;
    horon_request_t *request = begin_ordered(ctx);
    sum_until_made_by(ctx, RANKS);
    for (int i = 0; i < 5; i++)
        must(sum(ctx, 1) == RANKS, "sum", "is wrong");
    *holds_making = 0;
    end(request);
    *direct_sums = 0;
    must(sum(ctx, 1) == RANKS && *direct_sums == 1, "when it is made", "sums are not direct");
}

/* It would, while one is held. */
static void make_beside_sum(horon_context_t *ctx)
{
    const horon_descriptor_t desc = sum_of(data, 0);
    horon_request_t *request = NULL;
    *holds_sums = 1;
    must(horon_submit(ctx, &desc, &request) == HORON_OK, "submit", horon_last_error(ctx));
    end(begin_ordered(ctx));
    end(request);
}

/* Rank 0 waits for what the others have sent, and they for rank 0. */
static void gather_behind_sends(horon_context_t *ctx, uint32_t flags)
{
    static float all[RANKS * COUNT];
    *keeps_sends = 1;
    for (int round = 0; round < 3; round++) {
        horon_descriptor_t desc = sum_of(ordered, flags);
        desc.verb = HORON_GATHER;
        desc.dst = all;
        desc.dst_count = RANKS * COUNT;
        for (int i = 0; i < COUNT; i++)
            ordered[i] = (float)(10 * round + horon_rank(ctx));
        must(horon_run(ctx, &desc, -1, why, sizeof why) == HORON_OK, "gather", why);
        for (int i = 0; i < RANKS * COUNT && horon_rank(ctx) == 0; i++)
            must(all[i] == (float)(10 * round + i / COUNT), "gather", "is wrong");
    }
    must(sum(ctx, 1) == RANKS, "sum",
         "is wrong"); /* MPI_Finalize() sends the rest, but slow_mpi's */
}

/* All have begun it, and nothing comes of it for a while: a thread that looked all the time would
 * look some millions of times. */
static void wait_long(horon_context_t *ctx)
{
    *holds_sums_ms = 2000;
    *looks = 0;
    must(sum(ctx, 1) == RANKS, "sum", "is wrong");
    fprintf(stderr, "%d looks\n", *looks);
    must(*looks < 500000, "a sum that lasts", "is looked at all the time");
    *holds_sums_ms = 0;
}

/* Longer than any pause of MPI's, and shorter than the progress thread sleeps between two looks of
 * its own. */
#define PAUSE_NS_MAX INT64_C(10000000)

/* The library's own calls of it come here: this program is linked so. */
void __real_horon_deaths_sleep(struct horon_context *ctx, int64_t timeout_ns);
void __wrap_horon_deaths_sleep(struct horon_context *ctx, int64_t timeout_ns);

/* While others are held, the progress thread wakes by itself after a pause of MPI's only: a longer
 * sleep lasts until somebody rings. */
void __wrap_horon_deaths_sleep(struct horon_context *ctx, int64_t timeout_ns)
{
    const bool long_sleep =
        sleeps && *holds_others && (timeout_ns < 0 || timeout_ns > PAUSE_NS_MAX);
    if (long_sleep)
        *sleeps = 1;
    __real_horon_deaths_sleep(ctx, long_sleep ? -1 : timeout_ns);
    if (long_sleep)
        *sleeps = 0;
}

static void note_end(void *arg, horon_request_t *request, horon_status_t status)
{
    must(status == HORON_OK, "sum", horon_request_error(request));
    sem_post(arg);
}

static horon_status_t try_to_meet(horon_context_t *ctx, int limit_ms)
{
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    barrier.flags = HORON_IN_ORDER;
    return horon_run(ctx, &barrier, limit_ms, why, sizeof why);
}

static void meet(horon_context_t *ctx)
{
    must(try_to_meet(ctx, -1) == HORON_OK, "barrier", why);
}

/* A thread that has waited for other operations, and then for nothing, leaves the sum to the
 * progress thread, which sleeps meanwhile, and by itself would not wake. So the one that leaves has
 * to see to it. */
static void leave_sums(horon_context_t *ctx)
{
    static sem_t ended;
    meet(ctx);
    sem_init(&ended, 0, 0);
    for (int round = 0; round < LEFT_SUMS; round++) {
        struct timespec deadline;
        horon_request_t *request = NULL;
        horon_descriptor_t desc = sum_of(data, 0);
        desc.callback = note_end;
        desc.callback_arg = &ended;
        *holds_sums_ms = INT32_MAX;
        *holds_others = 1; /* until the sum has begun and the progress thread sleeps */
        must(horon_submit(ctx, &desc, &request) == HORON_OK, "submit", horon_last_error(ctx));
        meet(ctx);
        *holds_sums_ms = 0;
        clock_gettime(CLOCK_REALTIME, &deadline);
        deadline.tv_sec += DEADLINE_S; /* only a failure reaches it */
        while (sem_timedwait(&ended, &deadline) != 0)
            must(errno == EINTR, "a sum that a waiter leaves", "stands still");
        *holds_others = 0;
        end(request);
    }
}

/* @return in *requests what is named and waits for all ranks */
static void begin_late(horon_context_t *ctx, horon_request_t **requests)
{
    static float late[LATE][COUNT];
    for (int i = 0; i < LATE; i++) {
        char name[32];
        horon_descriptor_t desc = sum_of(late[i], 0);
        snprintf(name, sizeof name, "late %d", i);
        desc.name = name;
        must(horon_submit(ctx, &desc, &requests[i]) == HORON_OK, "submit", horon_last_error(ctx));
    }
}

/* Of rank 0, which waits for nothing of horon's: the others begin what waits for it, of which it is
 * told, and sum by links of horon's own; then one of them lets it go on, through the fifo. */
static void stay_idle(horon_context_t *ctx, const char *fifo)
{
    static const int32_t ranks[MEMBERS] = {1, 2};
    horon_process_set_options_t options = HORON_PROCESS_SET_OPTIONS_INIT;
    horon_request_t *requests[LATE];
    int32_t set = 0;
    char nothing;
    options.backend = "native";
    must(horon_process_set_add_with(ctx, ranks, MEMBERS, &options, -1, &set) == HORON_OK, "add",
         horon_last_error(ctx));
    *looks = 0;
    must(sum(ctx, 1) == RANKS, "sum", "is wrong");
    const int last = *looks;
    must(last > 0, "a sum", "is not looked at");
    if (horon_rank(ctx) > 0) {
        horon_descriptor_t desc = sum_of(ordered, HORON_IN_ORDER);
        desc.process_set = set;
        begin_late(ctx, requests);
        for (int i = 0; i < IDLE_SUMS; i++)
            must(horon_run(ctx, &desc, -1, why, sizeof why) == HORON_OK, "sum of two", why);
    }
    if (horon_rank(ctx) < MEMBERS) { /* one opens it to read, and one to write */
        const int fd = open(fifo, horon_rank(ctx) ? O_WRONLY : O_RDONLY);
        must(fd >= 0 && (horon_rank(ctx) || read(fd, &nothing, 1) == 0), fifo, "is no fifo");
        close(fd);
    }
    if (horon_rank(ctx) == 0) {
        fprintf(stderr, "%d looks while idle\n", *looks - last);
        must(*looks == last, "an idle rank", "has looked at MPI");
        begin_late(ctx, requests);
    }
    for (int i = 0; i < LATE; i++)
        end(requests[i]);
    must(*looks > last, "later sums", "are not looked at");
}

/* MPI may make no communicator behind one that it makes for ever: a later set does without, though
 * its other rank has left none. */
static void sum_behind_making(horon_context_t *ctx)
{
    static const int32_t ranks[MEMBERS] = {1, 2};
    int32_t set = 0;
    must(horon_process_set_add(ctx, ranks, MEMBERS, -1, &set) == HORON_OK, "add",
         horon_last_error(ctx));
    if (horon_rank(ctx) == 0)
        return;
    horon_descriptor_t desc = sum_of(ordered, HORON_IN_ORDER);
    desc.process_set = set; /* only a failure reaches its limit */
    const horon_status_t status = horon_run(ctx, &desc, DEADLINE_S * 1000, why, sizeof why);
    must(status == HORON_OK, "a later set's sum", why);
    must(strcmp(horon_carrier(ctx, &desc), "native") == 0, "a later set's sum", "is by MPI");
}

/* That of a set is never made: the set fails, as its sum has a limit. */
static void leave_making(horon_context_t *ctx)
{
    static const int32_t ranks[MEMBERS] = {0, 1};
    int32_t set = 0;
    must(horon_process_set_add(ctx, ranks, MEMBERS, -1, &set) == HORON_OK, "add",
         horon_last_error(ctx));
    if (horon_rank(ctx) < MEMBERS) {
        horon_descriptor_t desc = sum_of(ordered, HORON_IN_ORDER);
        desc.process_set = set;
        *holds_making = 1;
        must(horon_run(ctx, &desc, 200, why, sizeof why) < 0, "what is left", "has ended well");
    }
    sum_until_made_by(ctx, MEMBERS);
    must(sum(ctx, 1) == RANKS && sum(ctx, 2) == 2 * RANKS, "sum", "is wrong");
    sum_behind_making(ctx);
}

/* Ranks find each other by calls then, which would move what was given up. */
static void *ask_by_communicator(void *arg)
{
    static const int world = 0x44000000;                               /* MPICH's */
    static const char *const settings[] = {"START_TIMEOUT=20s", NULL}; /* of a failure alone */
    char text[HORON_ERROR_TEXT_BYTES] = "is made";
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *ctx = NULL;
    options.mpi_comm = &world;
    options.settings = settings;
    must(horon_context_create(&options, &ctx, text, sizeof text) < 0 &&
             strstr(text, "what was given up is still in MPI's hands"),
         "a context of a communicator", text);
    return arg;
}

static void print_faults(void)
{
    printf("%d sums on this memory beside a thread that makes a communicator\n", *faults);
    fflush(stdout);
}

static void await_first(_Atomic int *count)
{
    while (*count == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* All are at a sum of which MPI does not see the end, and rank 0 is alone at what comes then. */
static void fail_in_mpi(horon_context_t *ctx)
{
    const horon_descriptor_t desc = sum_of(data, 0);
    horon_request_t *request = NULL;
    *holds_sums_ms = INT32_MAX;
    *direct_sums = 0;
    must(horon_submit(ctx, &desc, &request) == HORON_OK, "submit", horon_last_error(ctx));
    await_first(direct_sums);
    const horon_status_t status = try_to_meet(ctx, -1);
    if (horon_rank(ctx) == 0) { /* others may not have seen its end yet, and see this fail */
        must(status == HORON_OK, "barrier", why);
        must(try_to_meet(ctx, 1) < 0, "what is left", "has ended well");
    }
    must(horon_wait(request, HORON_HOST_DONE, -1) < 0, "a sum that is held", "has ended well");
    horon_release(request);
}

/* While the context is there, beside which one of the launcher does without MPI. One of a
 * communicator may be on its way before, and waits for rank 0. */
static void ask_beside_failed(horon_context_t *ctx, bool is_on_its_way)
{
    pthread_t thread;
    horon_context_t *next = NULL;
    const horon_descriptor_t desc = sum_of(data, 0);
    const bool asks = is_on_its_way && horon_rank(ctx) > 0;
    meet(ctx); /* its lane connects */
    must(*broadcasts == 0, "a broadcast", "is none of a meeting");
    if (asks) {
        must(pthread_create(&thread, NULL, ask_by_communicator, NULL) == 0, "a thread", "is none");
        await_first(broadcasts);
    }
    fail_in_mpi(ctx);
    if (asks)
        pthread_join(thread, NULL);
    ask_by_communicator(NULL);
    must(*broadcasts == asks, "a context that is refused", "has met");
    must(horon_context_create(NULL, &next, why, sizeof why) == HORON_OK, "create", why);
    must(sum(next, 1) == RANKS, "sum", "is wrong");
    printf("by %s\n", horon_carrier(next, &desc));
    print_faults();
    try_to_meet(next, -1); /* MPI_Finalize() is left out, and hydra kills the last ones to leave */
    _exit(0);
}

int main(int argc, char **argv)
{
    horon_context_t *ctx = NULL;
    const bool leaves = argc == 2 && strcmp(argv[1], "leave") == 0;
    had_mpi = dlsym(RTLD_DEFAULT, "slow_mpi_looks") != NULL;
    for (int round = 0; round < 1 + leaves; round++) {
        const horon_status_t status = horon_context_create(NULL, &ctx, why, sizeof why);
        must(status == HORON_OK, "create", why);
        must(horon_size(ctx) == RANKS, "ranks", "are not three");
        must(sum(ctx, horon_rank(ctx)) == 3, "sum", "is wrong");
        const horon_descriptor_t desc = sum_of(data, 0);
        printf("by %s\n", horon_carrier(ctx, &desc));
        if (round == 0) {
            keeps_sends = find("slow_mpi_keeps_sends");
            holds_making = find("slow_mpi_holds_making");
            holds_sums = find("slow_mpi_holds_sums");
            makes = find("slow_mpi_makes");
            direct_sums = find("slow_mpi_direct_sums");
            faults = find("slow_mpi_faults");
            holds_sums_ms = find("slow_mpi_holds_sums_ms");
            looks = find("slow_mpi_looks");
            holds_others = find("slow_mpi_holds_others");
            sleeps = find("slow_mpi_sleeps");
            broadcasts = find("slow_mpi_broadcasts");
            must(*direct_sums == !mpi_moves(), "sums", "are direct, or not");
            if (argc == 2 && strncmp(argv[1], "shut", 4) == 0)
                ask_beside_failed(ctx, strcmp(argv[1], "shut a meeting") == 0);
            if (mpi_moves())
                sum_indirectly(ctx);
            else if (leaves)
                leave_making(ctx);
            else if (argc == 2 && strcmp(argv[1], "make") == 0)
                make_beside_sum(ctx);
            else if (argc == 3 && strcmp(argv[1], "idle") == 0)
                stay_idle(ctx, argv[2]);
            else if (argc == 2 && strcmp(argv[1], "wait") == 0)
                wait_long(ctx);
            else if (argc == 2 && strcmp(argv[1], "leave sums") == 0)
                leave_sums(ctx);
            else if (argc == 2 && strcmp(argv[1], "gather") == 0)
                gather_behind_sends(ctx, 0);
            else if (argc == 2 && strcmp(argv[1], "gather in order") == 0)
                gather_behind_sends(ctx, HORON_IN_ORDER);
            else
                sum_beside_making(ctx);
        }
        if (round == leaves) {
            print_faults();
            must(sum(ctx, 1) == RANKS, "sum", "is wrong");
        }
        const bool is_closed = leaves && round == 0 && horon_rank(ctx) < MEMBERS;
        horon_context_destroy(ctx);
        if (is_closed)
            ask_by_communicator(NULL);
    }
    if (leaves) /* else the third rank waits in MPI_Finalize(), which the others leave out */
        _exit(0);
    return 0;
}
