/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that somebody is going to kill, or that is to survive it and to tell how it learned of it.
 * `kill_rank WHAT ABSENT FORK`; WHAT is
 *
 *     traffic   operations of every kind, for ever
 *     wait      a named sum that rank ABSENT does not come to before the job is being ended
 *     queue     likewise in order
 *     churn     joins, sums once, leaves, for ever
 *     leave     joins, meets the others, leaves, stays
 *
 * With FORK 1 each rank has a child that holds copies of its descriptors and does nothing. It says
 *
 *     up PID            SIGTERM can no longer end it
 *     ready             it is at work, or about to leave: time to be killed
 *     left BEGUN ENDED  has left
 *     failed STATUS BEGUN ENDED TEXT
 *
 * Times are nanoseconds of the monotonic clock around the operation that failed.
 */
#include <horon/horon.h>

#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SMALL = 3, MIDDLE = 1000, LARGE = 300000, TENSORS = 8, RANKS_MAX = 16 };

struct rank {
    horon_context_t *ctx;
    int64_t begun_ns; /* the operation in hand */
    horon_status_t status;
    char text[HORON_ERROR_TEXT_BYTES];
    horon_request_t *kept[TENSORS]; /* persistent */
    float large[LARGE], many[TENSORS][MIDDLE];
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void say(const char *text)
{
    puts(text);
    fflush(stdout);
}

static horon_descriptor_t describe(horon_verb_t verb, const char *name, float *data, uint64_t count)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.name = name;
    desc.dtype = HORON_FLOAT32;
    desc.redop = HORON_SUM;
    desc.src = desc.dst = data;
    desc.count = count;
    desc.flags = name || verb == HORON_BARRIER ? 0 : HORON_IN_ORDER;
    return desc;
}

static bool run(struct rank *rank, const horon_descriptor_t *desc)
{
    rank->begun_ns = now_ns();
    rank->status = horon_run(rank->ctx, desc, -1, rank->text, sizeof rank->text);
    return rank->status == HORON_OK;
}

static bool sum(struct rank *rank, const char *name, uint64_t count)
{
    const horon_descriptor_t desc = describe(HORON_ALLREDUCE, name, rank->large, count);
    return run(rank, &desc);
}

static bool refused(struct rank *rank, horon_status_t status)
{
    rank->status = status;
    snprintf(rank->text, sizeof rank->text, "%s", horon_last_error(rank->ctx));
    return false;
}

/* All of them: what is pending when a rank dies fails, every one, and says why. */
static bool wait_for_all(struct rank *rank, horon_request_t **requests)
{
    rank->status = horon_wait_all(requests, TENSORS, HORON_HOST_DONE, -1);
    for (int i = 0; i < TENSORS && rank->status != HORON_OK; i++)
        if (horon_test(requests[i], HORON_HOST_DONE) != HORON_OK && !rank->text[0])
            snprintf(rank->text, sizeof rank->text, "%s", horon_request_error(requests[i]));
    return rank->status == HORON_OK;
}

static bool sum_group(struct rank *rank)
{
    horon_descriptor_t descs[TENSORS];
    horon_request_t *requests[TENSORS];
    char names[TENSORS][16];
    for (int i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof names[i], "member %d", i);
        descs[i] = describe(HORON_ALLREDUCE, names[i], rank->many[i], MIDDLE);
    }
    rank->begun_ns = now_ns();
    const horon_status_t status = horon_submit_group(rank->ctx, descs, TENSORS, requests);
    if (status != HORON_OK)
        return refused(rank, status);
    const bool well = wait_for_all(rank, requests);
    for (int i = 0; i < TENSORS; i++)
        horon_release(requests[i]);
    return well;
}

static bool prepare(struct rank *rank)
{
    char name[16];
    rank->begun_ns = now_ns();
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "kept %d", i);
        const horon_descriptor_t desc = describe(HORON_ALLREDUCE, name, rank->many[i], MIDDLE);
        const horon_status_t status = horon_prepare(rank->ctx, &desc, &rank->kept[i]);
        if (status != HORON_OK)
            return refused(rank, status);
    }
    return true;
}

/* Those that did start before an error fail by themselves; release() lets go of them. */
static bool start_kept(struct rank *rank)
{
    rank->begun_ns = now_ns();
    const horon_status_t status = horon_start_all(rank->kept, TENSORS, NULL);
    return status == HORON_OK ? wait_for_all(rank, rank->kept) : refused(rank, status);
}

static bool gather(struct rank *rank)
{
    static float all[RANKS_MAX * SMALL];
    horon_descriptor_t desc = describe(HORON_ALLGATHER, "gather", rank->large, SMALL);
    desc.dst = all;
    desc.dst_count = sizeof all / sizeof all[0];
    return run(rank, &desc);
}

static bool traffic_once(struct rank *rank)
{
    const horon_descriptor_t broadcast =
        describe(HORON_BROADCAST, "broadcast", rank->large, MIDDLE);
    const horon_descriptor_t barrier = describe(HORON_BARRIER, NULL, NULL, 0);
    return sum(rank, NULL, SMALL) && sum_group(rank) && start_kept(rank) &&
           sum(rank, "large", LARGE) && run(rank, &broadcast) && gather(rank) &&
           run(rank, &barrier) && sum(rank, NULL, LARGE);
}

static bool join(struct rank *rank)
{
    rank->begun_ns = now_ns();
    rank->status = horon_context_create(NULL, &rank->ctx, rank->text, sizeof rank->text);
    return rank->status == HORON_OK;
}

static void leave(struct rank *rank)
{
    horon_context_destroy(rank->ctx);
    rank->ctx = NULL;
}

static void await_end(void)
{
    int signo;
    sigset_t end;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigwait(&end, &signo);
}

/* A worker such as data loaders fork. SIGTERM is to end it. */
static void fork_child(const sigset_t *mask)
{
    if (fork() != 0)
        return;
    sigprocmask(SIG_SETMASK, mask, NULL);
    for (;;)
        pause();
}

/* @return true: it did not fail */
static bool meet_and_leave(struct rank *rank)
{
    const horon_descriptor_t barrier = describe(HORON_BARRIER, NULL, NULL, 0);
    if (!run(rank, &barrier))
        return false;
    say("ready");
    const int64_t begun_ns = now_ns();
    leave(rank);
    printf("left %" PRId64 " %" PRId64 "\n", begun_ns, now_ns());
    fflush(stdout);
    await_end();
    return true;
}

/* The absent one comes late: if the dead rank's part was there already, its first sum is complete.
 * It then waits as the others did. */
static bool wait_for_absent(struct rank *rank, const char *name, int absent)
{
    if (!sum(rank, "before", SMALL))
        return false;
    say("ready");
    if (horon_rank(rank->ctx) == absent)
        await_end();
    return sum(rank, name, SMALL) && sum(rank, name, SMALL);
}

static bool churn(struct rank *rank)
{
    for (bool first = true;; first = false) {
        if (!sum(rank, "once", SMALL))
            return false;
        leave(rank);
        if (!join(rank))
            return false;
        if (first)
            say("ready");
    }
}

static bool traffic(struct rank *rank)
{
    if (!prepare(rank) || !traffic_once(rank))
        return false;
    say("ready");
    while (traffic_once(rank))
        ;
    return false;
}

static bool work(struct rank *rank, const char *what, int absent)
{
    if (strcmp(what, "leave") == 0)
        return meet_and_leave(rank);
    if (strcmp(what, "churn") == 0)
        return churn(rank);
    if (strcmp(what, "traffic") == 0)
        return traffic(rank);
    return wait_for_absent(rank, strcmp(what, "queue") == 0 ? NULL : "waited for", absent);
}

int main(int argc, char **argv)
{
    static struct rank rank;
    sigset_t end, before;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigprocmask(SIG_BLOCK, &end, &before);
    if (argc != 4)
        return 2;
    printf("up %d\n", (int)getpid());
    fflush(stdout);
    bool well = join(&rank);
    if (well && argv[3][0] == '1')
        fork_child(&before);
    well = well && work(&rank, argv[1], atoi(argv[2]));
    if (!well) {
        printf("failed %d %" PRId64 " %" PRId64 " %s\n", (int)rank.status, rank.begun_ns, now_ns(),
               rank.text);
        fflush(stdout);
    }
    for (int i = 0; i < TENSORS; i++)
        horon_release(rank.kept[i]);
    leave(&rank);
    return well ? 0 : 3;
}
