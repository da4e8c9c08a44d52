/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts among Gloo's ranks, all of which are horons here, each in a thread of its own; beside
 * Gloo itself they are in test/gloo.
 */
#undef NDEBUG
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <assert.h>
#include <dirent.h>
#include <horon/horon.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define RANKS_MAX 3
#define COUNT 1001

struct rank {
    pthread_t thread;
    const char *settings[8];
    int rank, size;
    void (*run)(struct rank *rank);
    horon_log_fn_t log;
    horon_context_t *ctx;
    horon_status_t created;
    char why[HORON_ERROR_TEXT_BYTES];
};

static char folder[] = "/tmp/horon-test-gloo-XXXXXX";
static char store[64];

static void *rank_thread(void *arg)
{
    struct rank *rank = arg;
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = rank->rank;
    options.size = rank->size;
    options.settings = rank->settings;
    options.log_fn = rank->log;
    options.log_arg = rank;
    rank->created = horon_context_create(&options, &rank->ctx, rank->why, sizeof rank->why);
    if (rank->created == HORON_OK) {
        rank->run(rank);
        horon_context_destroy(rank->ctx);
    }
    return NULL;
}

static void start_one(struct rank *rank, const char *at, const char *const *settings)
{
    rank->settings[0] = at;
    for (int s = 0; settings[s]; s++)
        rank->settings[s + 1] = settings[s];
    assert(!pthread_create(&rank->thread, NULL, rank_thread, rank));
}

static void start_logged(struct rank *ranks, int present, int size, void (*run)(struct rank *rank),
                         const char *const *settings, horon_log_fn_t log)
{
    for (int i = 0; i < present; i++) {
        ranks[i] = (struct rank){.rank = i, .size = size, .run = run, .log = i == 0 ? log : NULL};
        start_one(&ranks[i], store, settings);
    }
}

static void start_in(const char *at, struct rank *ranks, int size, void (*run)(struct rank *rank),
                     const char *const *settings)
{
    for (int i = 0; i < size; i++) {
        ranks[i] = (struct rank){.rank = i, .size = size, .run = run};
        start_one(&ranks[i], at, settings);
    }
}

static void start(struct rank *ranks, int present, int size, void (*run)(struct rank *rank),
                  const char *const *settings)
{
    start_logged(ranks, present, size, run, settings, NULL);
}

static void end(struct rank *ranks, int present)
{
    for (int i = 0; i < present; i++)
        pthread_join(ranks[i].thread, NULL);
}

static void expect_created(const struct rank *ranks, int present)
{
    for (int i = 0; i < present; i++)
        if (ranks[i].created != HORON_OK)
            fail_msg("rank %d: %s", i, ranks[i].why);
}

static int open_folder(void **state)
{
    (void)state;
    assert(mkdtemp(folder));
    snprintf(store, sizeof store, "GLOO_STORE=file:%s", folder);
    return 0;
}

static int close_folder(void **state)
{
    DIR *files = opendir(folder);
    char path[512];
    (void)state;
    for (const struct dirent *file; (file = readdir(files));) {
        snprintf(path, sizeof path, "%s/%s", folder, file->d_name);
        (void)unlink(path);
    }
    closedir(files);
    rmdir(folder);
    return 0;
}

static horon_descriptor_t in_order(horon_verb_t verb, const void *src, void *dst, uint64_t count)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.dtype = HORON_FLOAT32;
    desc.flags = HORON_IN_ORDER;
    desc.src = src;
    desc.dst = dst;
    desc.count = count;
    return desc;
}

static horon_descriptor_t message(horon_verb_t verb, int peer, uint64_t tag, void *data,
                                  uint64_t count)
{
    horon_descriptor_t desc = in_order(verb, NULL, NULL, count);
    desc.flags = 0;
    desc.root = peer;
    desc.tag = tag;
    if (verb == HORON_SEND)
        desc.src = data;
    else
        desc.dst = data;
    return desc;
}

static void expect(struct rank *rank, const horon_descriptor_t *desc)
{
    char why[HORON_ERROR_TEXT_BYTES];
    if (horon_run(rank->ctx, desc, -1, why, sizeof why) != HORON_OK) {
        fprintf(stderr, "rank %d: %s\n", rank->rank, why);
        abort();
    }
}

/* Sums, in place, averages, scaled; and what follows each other at once. */
static void add_up(struct rank *rank)
{
    static const float third = 1.0f;
    float in[COUNT], out[COUNT], sum = 0;
    assert(horon_rank(rank->ctx) == rank->rank);
    assert(horon_size(rank->ctx) == rank->size);
    for (int r = 0; r < rank->size; r++)
        sum += (float)(r + 1) * third;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < COUNT; i++)
            in[i] = (float)(rank->rank + 1);
        horon_descriptor_t desc = in_order(HORON_ALLREDUCE, in, out, COUNT);
        expect(rank, &desc);
        assert(out[0] == sum && out[COUNT - 1] == sum);
        desc = in_order(HORON_ALLREDUCE, in, in, COUNT);
        desc.redop = HORON_AVERAGE;
        desc.postscale = 2;
        expect(rank, &desc);
        assert(in[COUNT / 2] == 2 * (sum / (float)rank->size));
        desc = in_order(HORON_BARRIER, NULL, NULL, 0);
        expect(rank, &desc);
    }
}

static void test_gloo_store_prefix_era_and_native_make_a_job(void **state)
{
    static const char *const settings[][4] = {
        {"GLOO_PREFIX=a", "GLOO_ERA=e1", NULL},
        {"GLOO_PREFIX=b", "GLOO_ERA=e3", NULL},
        {"GLOO_PREFIX=c", "GLOO_NATIVE=0", NULL},
    };
    struct rank ranks[3][RANKS_MAX];
    (void)state;
    for (int job = 0; job < 3; job++) /* of one store, at the same time */
        start(ranks[job], RANKS_MAX, RANKS_MAX, add_up, settings[job]);
    for (int job = 0; job < 3; job++) {
        end(ranks[job], RANKS_MAX);
        expect_created(ranks[job], RANKS_MAX);
    }
}

/* What stays behind a job would keep the next one of its name from starting. */
static void test_gloo_threads_meet_in_memory_by_name(void **state)
{
    static const char *const settings[] = {"GLOO_PREFIX=p", NULL};
    struct rank ranks[2][RANKS_MAX];
    (void)state;
    for (int round = 0; round < 2; round++) {
        for (int job = 0; job < 2; job++) {
            start_in(job ? "GLOO_STORE=hash:one" : "GLOO_STORE=hash:other", ranks[job], RANKS_MAX,
                     add_up, settings);
        }
        for (int job = 0; job < 2; job++) {
            end(ranks[job], RANKS_MAX);
            expect_created(ranks[job], RANKS_MAX);
        }
    }
}

/* A rank joins a job of its own first, as rank 0 of it. */
static void test_gloo_ranks_write_timelines_of_their_own(void **state)
{
    char timeline[64], path[64];
    const char *const settings[] = {"GLOO_PREFIX=timeline", timeline, NULL};
    struct rank ranks[2];
    (void)state;
    snprintf(timeline, sizeof timeline, "TIMELINE=%s/t%%r.json", folder);
    start(ranks, 2, 2, add_up, settings);
    end(ranks, 2);
    expect_created(ranks, 2);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/t%d.json", folder, i);
        assert_int_equal(access(path, R_OK), 0);
    }
}

static void expect_unsupported(const struct rank *rank, horon_status_t status)
{
    if (status != HORON_ERR_UNSUPPORTED || !strstr(horon_last_error(rank->ctx), "HORON_IN_ORDER")) {
        fprintf(stderr, "%d: %s\n", status, horon_last_error(rank->ctx));
        abort();
    }
}

static void try_all(struct rank *rank)
{
    float x = 0;
    int32_t id = 0, first = 0;
    horon_request_t *request;
    horon_descriptor_t desc = in_order(HORON_ALLREDUCE, &x, &x, 1);
    desc.flags = 0;
    desc.name = "named";
    expect_unsupported(rank, horon_submit(rank->ctx, &desc, &request));
    desc = message(HORON_SEND, 1 - rank->rank, UINT64_C(1) << 56, &x, 1);
    assert(horon_submit(rank->ctx, &desc, &request) == HORON_ERR_UNSUPPORTED);
    assert(strstr(horon_last_error(rank->ctx), "tag"));
    expect_unsupported(rank, horon_join(rank->ctx, 0, &request));
    assert(strstr(horon_last_error(rank->ctx), "join was refused: ") ==
           horon_last_error(rank->ctx));
    expect_unsupported(rank, horon_process_set_add(rank->ctx, &first, 1, -1, &id));
    add_up(rank);
}

static void test_gloo_what_needs_agreement_is_refused(void **state)
{
    static const char *const settings[] = {"GLOO_PREFIX=refused", NULL};
    struct rank ranks[2];
    (void)state;
    start(ranks, 2, 2, try_all, settings);
    end(ranks, 2);
    expect_created(ranks, 2);
}

static void test_gloo_ranks_that_lack_are_named(void **state)
{
    static const char *const settings[] = {"GLOO_PREFIX=lack", "START_TIMEOUT=500ms", NULL};
    struct rank rank;
    (void)state;
    start(&rank, 1, 2, add_up, settings);
    end(&rank, 1);
    assert_int_equal(rank.created, HORON_ERR_TIMEOUT);
    if (!strstr(rank.why, "rank 1") || !strstr(rank.why, "HORON_START_TIMEOUT"))
        fail_msg("%s", rank.why);
}

/* Rank 1 leaves after the first operation, and the second one needs it. */
static void leave_one(struct rank *rank)
{
    char why[HORON_ERROR_TEXT_BYTES];
    float x = 0, y = 0;
    horon_descriptor_t desc = in_order(HORON_ALLREDUCE, &x, &y, 1);
    horon_failure_t failure = HORON_FAILURE_INIT;
    expect(rank, &desc);
    if (rank->rank == 1)
        return;
    assert(horon_run(rank->ctx, &desc, -1, why, sizeof why) == HORON_ERR_PEER_LOST);
    assert(strstr(why, "rank 1"));
    assert(horon_last_failure(rank->ctx, &failure) == HORON_OK);
    assert(failure.rank == 1);
}

static void test_gloo_rank_that_is_gone_is_named(void **state)
{
    static const char *const settings[] = {"GLOO_PREFIX=gone", NULL};
    struct rank ranks[2];
    (void)state;
    start(ranks, 2, 2, leave_one, settings);
    end(ranks, 2);
    expect_created(ranks, 2);
}

/* ---- messages -------------------------------------------------------------------------------- */

static pthread_barrier_t have_met;

/* Where both are, without a word between the ranks. */
static void meet(void)
{
    pthread_barrier_wait(&have_met);
}

/* Once both know that the other one is a horon a short send need not wait for its receive. */
static void run_pair(void (*run)(struct rank *rank), const char *prefix)
{
    const char *const settings[] = {prefix, NULL};
    struct rank ranks[2];
    assert(!pthread_barrier_init(&have_met, NULL, 2));
    start(ranks, 2, 2, run, settings);
    end(ranks, 2);
    pthread_barrier_destroy(&have_met);
    expect_created(ranks, 2);
}

static void stay(struct rank *rank)
{
    add_up(rank);
    meet();
    meet();
}

static void expect_refused(const char *at, int number, int size, const char *why)
{
    struct rank rank = {.rank = number, .size = size, .run = add_up};
    start_one(&rank, at, (const char *const[]){"START_TIMEOUT=100ms", NULL});
    end(&rank, 1);
    assert_int_not_equal(rank.created, HORON_OK);
    if (!strstr(rank.why, why))
        fail_msg("%s", rank.why);
}

static void test_gloo_another_job_of_a_name_in_memory_is_refused(void **state)
{
    static const char *const settings[] = {NULL}, *const at = "GLOO_STORE=hash:taken";
    struct rank ranks[2];
    (void)state;
    assert(!pthread_barrier_init(&have_met, NULL, 3));
    start_in(at, ranks, 2, stay, settings);
    meet();
    expect_refused("GLOO_STORE=hash:", 0, 2, "the Gloo store hash: has no name");
    expect_refused(at, 2, 3, "is of a job of 2 ranks");
    expect_refused(at, 0, 2, "another job needs another name");
    expect_refused("GLOO_STORE=hash:a", 0, 2, "hash: is memory of this process");
    meet();
    end(ranks, 2);
    pthread_barrier_destroy(&have_met);
    expect_created(ranks, 2);
}

static void send_and_leave(struct rank *rank)
{
    float data[4] = {1, 2, 3, 4};
    char why[HORON_ERROR_TEXT_BYTES];
    horon_failure_t failure = HORON_FAILURE_INIT;
    horon_descriptor_t desc = message(HORON_SEND, 1, 7, data, 4);
    add_up(rank);
    if (rank->rank == 0) {
        assert(!strcmp(horon_carrier(rank->ctx, &desc), "gloo"));
        for (int i = 0; i < 3; i++) {
            data[0] = (float)i;
            expect(rank, &desc);
        }
        horon_context_destroy(rank->ctx);
        rank->ctx = NULL;
        meet();
        return;
    }
    meet();
    for (int i = 0; i < 3; i++) {
        desc = message(HORON_RECV, 0, 7, data, 4);
        expect(rank, &desc);
        assert(data[0] == (float)i && data[3] == 4);
    }
    assert(horon_run(rank->ctx, &desc, -1, why, sizeof why) == HORON_ERR_PEER_LOST);
    assert(strstr(why, "rank 0"));
    assert(horon_last_failure(rank->ctx, &failure) == HORON_OK);
    assert(failure.rank == 0);
}

static void test_gloo_messages_of_a_rank_that_has_left_arrive(void **state)
{
    (void)state;
    run_pair(send_and_leave, "GLOO_PREFIX=left");
}

/* More or less than there is room for, before the receive and after it; then one that fits. */
static void differ(struct rank *rank)
{
    static const uint64_t counts[] = {6, 2, 4};
    float data[6] = {0};
    char why[HORON_ERROR_TEXT_BYTES];
    add_up(rank);
    for (int late = 0; late < 2; late++) {
        for (int i = 0; i < 3; i++) {
            horon_request_t *request;
            horon_descriptor_t desc = message(HORON_SEND, 1, 1, data, counts[i]);
            if (rank->rank == 0) {
                data[0] = (float)(10 * late + i);
                if (late)
                    meet(); /* the receive is there */
                expect(rank, &desc);
                if (!late)
                    meet();
                continue;
            }
            desc = message(HORON_RECV, 0, 1, data, 4);
            if (!late)
                meet();
            assert(horon_submit(rank->ctx, &desc, &request) == HORON_OK);
            if (late)
                meet();
            const horon_status_t status = horon_wait(request, HORON_HOST_DONE, -1);
            snprintf(why, sizeof why, "%s", horon_request_error(request));
            horon_release(request);
            assert(status == (i < 2 ? HORON_ERR_MISMATCH : HORON_OK));
            assert(i == 2 || strstr(why, i ? "8 bytes" : "24 bytes"));
            assert(i < 2 || data[0] == (float)(10 * late + i));
        }
    }
    add_up(rank);
}

static void test_gloo_messages_that_differ_fail_by_themselves(void **state)
{
    (void)state;
    run_pair(differ, "GLOO_PREFIX=differ");
}

/* In flight with what goes in order; given up by a time limit, and by the end of the context. */
static void give_up(struct rank *rank)
{
    float one = 1, two = 0, three = 0;
    char why[HORON_ERROR_TEXT_BYTES];
    horon_request_t *request;
    horon_descriptor_t desc = message(HORON_RECV, 1 - rank->rank, 1, &two, 1);
    assert(horon_submit(rank->ctx, &desc, &request) == HORON_OK);
    add_up(rank);
    desc = message(HORON_SEND, 1 - rank->rank, 1, &one, 1);
    expect(rank, &desc);
    assert(horon_wait(request, HORON_HOST_DONE, -1) == HORON_OK && two == 1);
    horon_release(request);
    desc = message(HORON_RECV, 1 - rank->rank, 2, &two, 1);
    assert(horon_submit(rank->ctx, &desc, &request) == HORON_OK);
    meet();
    if (rank->rank == 0) {
        desc.tag = 3;
        desc.dst = &three;
        assert(horon_run(rank->ctx, &desc, 1, why, sizeof why) == HORON_ERR_TIMEOUT);
        assert(strstr(why, "rank 1"));
    }
    meet();
    horon_context_destroy(rank->ctx);
    rank->ctx = NULL;
    assert(horon_wait(request, HORON_HOST_DONE, -1) != HORON_OK);
    horon_release(request);
}

static void test_gloo_messages_are_given_up(void **state)
{
    (void)state;
    run_pair(give_up, "GLOO_PREFIX=up");
}

static sem_t leaves, has_left;

/* So that all sockets of this process hold as much, and a receiver's little of it. */
static void narrow_sockets(void)
{
    const int in = 32 << 10, out = 200 << 10;
    for (int fd = 3; fd < 256; fd++) {
        int type = 0;
        socklen_t bytes = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_STREAM)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &in, sizeof in);
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &out, sizeof out);
    }
}

/* What goes eagerly; the socket of the root holds 200 KiB, and it need not wait for the others. */
static void pass_on(struct rank *rank, int kib)
{
    const int count = kib * 1024 / (int)sizeof(float);
    float *data = malloc((size_t)count * sizeof *data);
    assert(data);
    horon_descriptor_t desc = in_order(HORON_BROADCAST, data, data, (uint64_t)count);
    for (int i = 0; i < count; i++)
        data[i] = rank->rank == 0 ? (float)(kib + i) : 0;
    expect(rank, &desc);
    for (int i = 0; i < count; i++)
        assert(data[i] == (float)(kib + i));
    free(data);
}

/* The root stays: what lies in its socket would be lost as soon as the other rank says something,
 * which it does with the second, having taken so much. */
static void pass_on_late(struct rank *rank)
{
    narrow_sockets();
    pass_on(rank, 1); /* they know each other */
    pass_on(rank, 900);
    if (rank->rank == 1) {
        struct timespec soon;
        sem_wait(&leaves);
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec++;
        assert(sem_timedwait(&has_left, &soon) != 0);
    }
    pass_on(rank, 200);
}

static void see_leave(void *arg, horon_log_level_t level, const char *text)
{
    (void)arg, (void)level;
    if (strstr(text, "leaving the job"))
        sem_post(&leaves);
}

static void test_gloo_what_a_rank_sent_arrives_when_it_leaves(void **state)
{
    static const char *const settings[] = {"GLOO_PREFIX=leaves", "LOG_LEVEL=debug", NULL};
    struct rank ranks[2];
    (void)state;
    sem_init(&leaves, 0, 0);
    sem_init(&has_left, 0, 0);
    start_logged(ranks, 2, 2, pass_on_late, settings, see_leave);
    pthread_join(ranks[0].thread, NULL);
    sem_post(&has_left);
    pthread_join(ranks[1].thread, NULL);
    expect_created(ranks, 2);
}

static void stand_still(struct rank *rank)
{
    narrow_sockets();
    pass_on(rank, 1);
    if (rank->rank == 0)
        pass_on(rank, 200);
    else
        sem_wait(&has_left);
}

/* Rank 1 goes on only when rank 0 has left. */
static void test_gloo_rank_that_stands_still_keeps_nobody(void **state)
{
    static const char *const settings[] = {"GLOO_PREFIX=still", "PEER_TIMEOUT=500ms", NULL};
    struct rank ranks[2];
    (void)state;
    sem_init(&has_left, 0, 0);
    start(ranks, 2, 2, stand_still, settings);
    pthread_join(ranks[0].thread, NULL);
    sem_post(&has_left);
    pthread_join(ranks[1].thread, NULL);
    expect_created(ranks, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_store_prefix_era_and_native_make_a_job),
        cmocka_unit_test(test_gloo_threads_meet_in_memory_by_name),
        cmocka_unit_test(test_gloo_another_job_of_a_name_in_memory_is_refused),
        cmocka_unit_test(test_gloo_ranks_write_timelines_of_their_own),
        cmocka_unit_test(test_gloo_what_needs_agreement_is_refused),
        cmocka_unit_test(test_gloo_ranks_that_lack_are_named),
        cmocka_unit_test(test_gloo_rank_that_is_gone_is_named),
        cmocka_unit_test(test_gloo_messages_of_a_rank_that_has_left_arrive),
        cmocka_unit_test(test_gloo_messages_that_differ_fail_by_themselves),
        cmocka_unit_test(test_gloo_messages_are_given_up),
        cmocka_unit_test(test_gloo_what_a_rank_sent_arrives_when_it_leaves),
        cmocka_unit_test(test_gloo_rank_that_stands_still_keeps_nobody),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
