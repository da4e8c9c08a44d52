/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between processes through the ABI: prepared ones between all pairs, on links that are
 * made for them; the same ones submitted again by several threads; what is refused; a rank that
 * leaves at once; a time limit; and a process that is killed with messages under way. On one host
 * and with each process as a host of its own.
 */
#undef NDEBUG
#include "multi/job.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4, ROUNDS = 60, SHORT = 5, LONG = 200000 };

static const char *const alone[] = {"SHM=0", NULL};
static const char *const *const places[] = {NULL, alone};

static void in_both_places(int size, job_work_fn_t work)
{
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        job_run(size, places[i], work, NULL);
}

/* ---- Prepared, between all pairs ------------------------------------------------------------ */

static void count_end(void *arg, horon_request_t *req, horon_status_t status)
{
    (void)req;
    if (status == HORON_OK)
        sem_post(arg);
}

/* Two of each direction: one short, one long. */
struct pair {
    horon_request_t *requests[4];
    int32_t *out[2], *in[2];
};

static const uint64_t lengths[] = {SHORT, LONG};

static bool make_pair(horon_context_t *ctx, int peer, sem_t *ends, struct pair *pair)
{
    for (int i = 0; i < 2; i++) {
        pair->out[i] = malloc(lengths[i] * sizeof(int32_t));
        pair->in[i] = malloc(lengths[i] * sizeof(int32_t));
        for (int sends = 0; sends < 2; sends++) {
            horon_descriptor_t desc =
                job_message(sends ? HORON_SEND : HORON_RECV, peer, (uint64_t)i,
                            sends ? pair->out[i] : pair->in[i], lengths[i]);
            desc.callback = count_end;
            desc.callback_arg = ends;
            if (horon_prepare(ctx, &desc, &pair->requests[2 * i + sends]) != HORON_OK)
                return false;
        }
    }
    return true;
}

static void fill(struct pair *pair, int from, int round)
{
    for (int i = 0; i < 2; i++)
        for (uint64_t k = 0; k < lengths[i]; k++)
            pair->out[i][k] = (int32_t)k * 3 + from * 1000 + round;
}

static bool is_right(const struct pair *pair, int from, int round)
{
    for (int i = 0; i < 2; i++)
        for (uint64_t k = 0; k < lengths[i]; k++)
            if (pair->in[i][k] != (int32_t)k * 3 + from * 1000 + round)
                return false;
    return true;
}

static void exchange(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int rank = horon_rank(ctx), size = horon_size(ctx);
    sem_t ends;
    struct pair pairs[RANKS];
    float sum = 1;
    (void)arg;
    RANK_MUST(sem_init(&ends, 0, 0) == 0);
    for (int peer = 0; peer < size; peer++)
        RANK_MUST(peer == rank || make_pair(ctx, peer, &ends, &pairs[peer]));
    for (int round = 0; round < ROUNDS; round++) {
        for (int peer = 0; peer < size; peer++) {
            if (peer == rank)
                continue;
            fill(&pairs[peer], rank, round);
            RANK_MUST(horon_start_all(pairs[peer].requests, 4, NULL) == HORON_OK);
        }
        const horon_descriptor_t desc = job_sum("beside", &sum, 1, 0);
        RANK_MUST(horon_run(ctx, &desc, -1, report->text, sizeof report->text) == HORON_OK);
        for (int peer = 0; peer < size; peer++) {
            if (peer == rank)
                continue;
            RANK_MUST(horon_wait_all(pairs[peer].requests, 4, HORON_HOST_DONE, -1) == HORON_OK);
            RANK_MUST(is_right(&pairs[peer], peer, round));
        }
    }
    uint64_t count = 7;
    const struct pair *some = &pairs[(rank + 1) % size];
    RANK_MUST(horon_request_output(some->requests[0], NULL, &count, NULL) == HORON_OK);
    RANK_MUST(count == SHORT);
    RANK_MUST(horon_request_output(some->requests[1], NULL, &count, NULL) == HORON_OK);
    RANK_MUST(count == 0); /* a send gives nothing */
    for (int peer = 0; peer < size; peer++) {
        for (int i = 0; peer != rank && i < 4; i++)
            horon_release(pairs[peer].requests[i]);
        for (int i = 0; peer != rank && i < 2; i++) {
            free(pairs[peer].in[i]);
            free(pairs[peer].out[i]);
        }
    }
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
    for (int i = 0; i < ROUNDS * 4 * (size - 1); i++) /* each is called once */
        sem_wait(&ends);
    RANK_MUST(sem_trywait(&ends) != 0);
    sem_destroy(&ends);
}

static void test_messages_between_all_pairs_arrive(void **state)
{
    (void)state;
    in_both_places(RANKS, exchange);
}

/* ---- The same ones, submitted again and again ----------------------------------------------- */

enum { USERS = 3, BUFFERS = 2 };

struct user {
    horon_context_t *ctx;
    uint64_t tag;
    bool well;
};

/* Of one tag, to buffers that take turns; now and then one is let go while it flies. */
static void *submit_again(void *arg)
{
    struct user *user = arg;
    const int rank = horon_rank(user->ctx), other = 1 - rank;
    int32_t in[BUFFERS][SHORT], out[BUFFERS][SHORT];
    bool well = true;
    for (int round = 0; round < 4 * ROUNDS && well; round++) {
        horon_request_t *requests[2] = {NULL};
        int32_t *got = in[round % BUFFERS], *sent = out[round % BUFFERS];
        void *data = NULL;
        for (int i = 0; i < SHORT; i++)
            sent[i] = rank + round + i + (int)user->tag;
        const horon_descriptor_t recv = job_message(HORON_RECV, other, user->tag, got, SHORT),
                                 send = job_message(HORON_SEND, other, user->tag, sent, SHORT);
        well = horon_submit(user->ctx, &recv, &requests[0]) == HORON_OK &&
               horon_submit(user->ctx, &send, &requests[1]) == HORON_OK;
        if (round % 5 == 3) { /* its buffer is used again once the other rank is past it, too */
            horon_release(requests[1]);
            requests[1] = NULL;
        }
        well = well && horon_wait(requests[0], HORON_HOST_DONE, -1) == HORON_OK &&
               (!requests[1] || horon_wait(requests[1], HORON_HOST_DONE, -1) == HORON_OK) &&
               horon_request_output(requests[0], &data, NULL, NULL) == HORON_OK && data == got;
        for (int i = 0; i < SHORT && well; i++)
            well = got[i] == other + round + i + (int)user->tag;
        horon_release(requests[0]);
        horon_release(requests[1]);
    }
    user->well = well;
    return NULL;
}

static void submit_by_threads(horon_context_t *ctx, void *arg, struct job_report *report)
{
    struct user users[USERS];
    pthread_t threads[USERS];
    (void)arg;
    for (int i = 0; i < USERS; i++) {
        users[i] = (struct user){.ctx = ctx, .tag = (uint64_t)i};
        RANK_MUST(pthread_create(&threads[i], NULL, submit_again, &users[i]) == 0);
    }
    for (int i = 0; i < USERS; i++) {
        RANK_MUST(pthread_join(threads[i], NULL) == 0);
        RANK_MUST(users[i].well);
    }
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
}

static void test_messages_submitted_again_arrive(void **state)
{
    (void)state;
    in_both_places(2, submit_by_threads);
}

/* ---- What is refused ------------------------------------------------------------------------ */

static void refuse(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int other = 1 - horon_rank(ctx);
    int32_t data[2] = {1, 2}, got[2] = {0};
    horon_request_t *requests[2];
    horon_descriptor_t descs[2] = {job_message(HORON_SEND, other, 1, data, 2),
                                   job_message(HORON_RECV, other, 1, got, 2)};
    const horon_descriptor_t barrier = {.struct_bytes = sizeof barrier, .verb = HORON_BARRIER};
    (void)arg;
    RANK_MUST(horon_submit_group(ctx, descs, 2, requests) == HORON_ERR_INVALID);
    RANK_MUST(strstr(horon_last_error(ctx), "a message is in no group"));
    RANK_MUST(horon_submit(ctx, &descs[1], &requests[1]) == HORON_OK);
    RANK_MUST(horon_cancel(requests[1]) == HORON_ERR_UNSUPPORTED);
    RANK_MUST(strstr(horon_last_error(ctx), "a message cannot be withdrawn"));
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK); /* then it may be sent */
    RANK_MUST(horon_run(ctx, &descs[0], -1, NULL, 0) == HORON_OK);
    RANK_MUST(horon_wait(requests[1], HORON_HOST_DONE, -1) == HORON_OK);
    RANK_MUST(got[1] == 2);
    horon_release(requests[1]);
    /* a caller that was compiled before there were tags has tag 0 */
    descs[0].tag = 0;
    descs[1].struct_bytes = offsetof(horon_descriptor_t, tag);
    RANK_MUST(horon_submit(ctx, &descs[1], &requests[1]) == HORON_OK);
    RANK_MUST(horon_run(ctx, &descs[0], -1, NULL, 0) == HORON_OK);
    RANK_MUST(horon_wait(requests[1], HORON_HOST_DONE, -1) == HORON_OK);
    horon_release(requests[1]);
}

static void test_messages_that_cannot_be_are_refused(void **state)
{
    (void)state;
    job_run(2, NULL, refuse, NULL);
}

/* ---- Ranks that leave, wait too long, or die ------------------------------------------------ */

/* Its link is made for this one message. */
static void send_and_leave(horon_context_t *ctx, void *arg, struct job_report *report)
{
    int32_t data[SHORT] = {1, 2, 3, 4, 5};
    const int last = horon_size(ctx) - 1;
    (void)arg;
    if (horon_rank(ctx) == last) {
        for (int from = last - 1; from >= 0; from--) {
            int32_t got[SHORT] = {0};
            horon_descriptor_t desc = job_message(HORON_RECV, from, 9, got, SHORT);
            RANK_MUST(horon_run(ctx, &desc, -1, report->text, sizeof report->text) == HORON_OK);
            RANK_MUST(memcmp(got, data, sizeof got) == 0);
            RANK_MUST(horon_run(ctx, &desc, -1, report->text, sizeof report->text) ==
                      HORON_ERR_CLOSED);
        }
        report->text[0] = 0;
        return;
    }
    horon_descriptor_t desc = job_message(HORON_SEND, last, 9, data, SHORT);
    RANK_MUST(horon_run(ctx, &desc, -1, report->text, sizeof report->text) == HORON_OK);
}

static void test_messages_of_a_rank_that_leaves_are_received(void **state)
{
    (void)state;
    in_both_places(RANKS, send_and_leave);
}

static void wait_too_long(horon_context_t *ctx, void *arg, struct job_report *report)
{
    int32_t data[1] = {0};
    float sum = 1;
    (void)arg;
    if (horon_rank(ctx) == 0) {
        horon_descriptor_t desc = job_message(HORON_RECV, 1, 2, data, 1);
        RANK_MUST(horon_run(ctx, &desc, 50, report->text, sizeof report->text) ==
                  HORON_ERR_TIMEOUT);
        RANK_MUST(strstr(report->text, "recv of 1 int32 from rank 1, tag 2"));
        RANK_MUST(strstr(report->text, "waiting for rank 1 ("));
    } else {
        horon_descriptor_t desc = job_sum("never", &sum, 1, 0);
        RANK_MUST(horon_run(ctx, &desc, -1, report->text, sizeof report->text) ==
                  HORON_ERR_TIMEOUT);
        RANK_MUST(strstr(report->text, "rank 0 (") && strstr(report->text, "gave it up"));
    }
    report->text[0] = 0;
}

static void test_messages_past_their_time_limit_fail_the_process_set(void **state)
{
    (void)state;
    in_both_places(2, wait_too_long);
}

static void wait_for_the_dead(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int rank = horon_rank(ctx);
    int32_t *data = calloc(LONG, sizeof *data), word = 0;
    horon_request_t *requests[2];
    horon_failure_t failure = HORON_FAILURE_INIT;
    (void)arg;
    for (int i = 0; rank != 1 && i < 2; i++) {
        const horon_descriptor_t desc = job_message(i ? HORON_SEND : HORON_RECV, 1, 5, data, LONG);
        RANK_MUST(horon_submit(ctx, &desc, &requests[i]) == HORON_OK);
    }
    /* ranks 0 and 2 say to the first that they wait; it is killed then */
    horon_descriptor_t tell = job_message(rank == 1 ? HORON_RECV : HORON_SEND, 1, 6, &word, 1);
    for (int from = 0; rank == 1 && from < 3; from += 2) {
        tell.root = from;
        RANK_MUST(horon_run(ctx, &tell, -1, report->text, sizeof report->text) == HORON_OK);
    }
    if (rank == 1)
        raise(SIGKILL);
    RANK_MUST(horon_run(ctx, &tell, -1, report->text, sizeof report->text) == HORON_OK);
    for (int i = 0; i < 2; i++) {
        RANK_MUST(horon_wait(requests[i], HORON_HOST_DONE, -1) == HORON_ERR_PEER_LOST);
        RANK_MUST(horon_request_failure(requests[i], &failure) == HORON_OK);
        RANK_MUST(failure.rank == 1);
        RANK_MUST(strstr(failure.text, "rank 1 ("));
        horon_release(requests[i]);
    }
    report->text[0] = 0;
    free(data);
}

static void test_messages_with_a_killed_process_fail_with_its_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        struct job job;
        struct job_report report;
        job_start(&job, 3, places[i], wait_for_the_dead, NULL);
        for (int rank = 0; rank < 3; rank += 2) {
            assert_int_equal(job_report_of(&job, rank, 60000, &report), 0);
            if (report.status)
                print_message("rank %d: %s\n", rank, report.text);
            assert_int_equal(report.status, 0);
        }
        assert_int_equal(job_end(&job, 60000), 0);
    }
}

/* ---- In process sets ------------------------------------------------------------------------ */

/* The numbers of a set's ranks are told nowhere. */
static void differ_in_a_set(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const int32_t members[] = {1, 2};
    const int rank = horon_rank(ctx);
    char text[HORON_ERROR_TEXT_BYTES] = "";
    int32_t data[SHORT], set;
    (void)arg;
    RANK_MUST(horon_process_set_add(ctx, members, 2, -1, &set) == HORON_OK);
    horon_descriptor_t desc =
        job_message(rank == 1 ? HORON_RECV : HORON_SEND, 2 - rank, 9, data, (uint64_t)rank);
    desc.process_set = set;
    if (rank > 0) {
        const horon_status_t status = horon_run(ctx, &desc, -1, text, sizeof text);
        RANK_MUST(status == (rank == 1 ? HORON_ERR_MISMATCH : HORON_OK)); /* short: it has gone */
        RANK_MUST(rank == 2 || strstr(text, "recv of 1 int32 from rank 2, tag 9"));
    }
    const horon_descriptor_t barrier = {.struct_bytes = sizeof barrier, .verb = HORON_BARRIER};
    (void)horon_run(ctx, &barrier, -1, NULL, 0);
}

static void test_messages_of_a_process_set_name_ranks_of_the_job(void **state)
{
    (void)state;
    job_run(3, NULL, differ_in_a_set, NULL);
}

/* ---- A receiver that does nothing ----------------------------------------------------------- */

enum { SENDS = 900, WORDS = 250 };

/* More than the ring between them holds, and less than may go before somebody receives. */
static void send_to_the_idle(horon_context_t *ctx, void *arg, struct job_report *report)
{
    sem_t *sent = arg;
    static horon_request_t *requests[SENDS];
    static int32_t data[WORDS];
    const int rank = horon_rank(ctx);
    const horon_descriptor_t desc =
        job_message(rank == 1 ? HORON_SEND : HORON_RECV, 3 - rank, 0, data, WORDS);
    for (int i = 0; rank == 1 && i < SENDS; i++)
        RANK_MUST(horon_submit(ctx, &desc, &requests[i]) == HORON_OK);
    for (int i = 0; rank == 1 && i < SENDS; i++) {
        RANK_MUST(horon_wait(requests[i], HORON_HOST_DONE, 30000) == HORON_OK);
        horon_release(requests[i]);
    }
    if (rank == 1)
        sem_post(sent);
    while (rank == 2 && sem_wait(sent) != 0)
        ;
    for (int i = 0; rank == 2 && i < SENDS; i++)
        RANK_MUST(horon_run(ctx, &desc, 30000, NULL, 0) == HORON_OK);
}

static void test_messages_to_an_idle_rank_go_as_far_as_there_is_room(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        sem_t *sent =
            mmap(NULL, sizeof *sent, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(sent, MAP_FAILED);
        assert_int_equal(sem_init(sent, 1, 0), 0);
        job_run(3, places[i], send_to_the_idle, sent);
        munmap(sent, sizeof *sent);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_between_all_pairs_arrive),
        cmocka_unit_test(test_messages_submitted_again_arrive),
        cmocka_unit_test(test_messages_that_cannot_be_are_refused),
        cmocka_unit_test(test_messages_of_a_rank_that_leaves_are_received),
        cmocka_unit_test(test_messages_past_their_time_limit_fail_the_process_set),
        cmocka_unit_test(test_messages_with_a_killed_process_fail_with_its_name),
        cmocka_unit_test(test_messages_of_a_process_set_name_ranks_of_the_job),
        cmocka_unit_test(test_messages_to_an_idle_rank_go_as_far_as_there_is_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
