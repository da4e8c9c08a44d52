/* SPDX-License-Identifier: Apache-2.0 */
/*
 * horon_run_messages() and messages by horon_run(), which the caller's thread begins itself: in a
 * ring and with all neighbours, by threads that take turns at it, behind what was submitted before,
 * with a callback; in a process set; what is refused; past its time limit; and with a process that
 * dies. On one host and with each process as a host of its own.
 */
#undef NDEBUG
#include "multi/job.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4, ROUNDS = 300, SHORT = 5, LONG = 100000 };

static const char *const alone[] = {"SHM=0", NULL};
static const char *const *const places[] = {NULL, alone};
static const char *const hasty[] = {"YIELD_US=100", NULL};
/* A thread that waits sleeps at once. */
static const char *const impatient[][4] = {{"SPIN_US=0", "YIELD_US=0", NULL},
                                           {"SPIN_US=0", "YIELD_US=0", "SHM=0", NULL}};

static void in_both_places(int size, job_work_fn_t work)
{
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        job_run(size, places[i], work, NULL);
}

static void meet(horon_context_t *ctx)
{
    const horon_descriptor_t barrier = {.struct_bytes = sizeof barrier, .verb = HORON_BARRIER};
    (void)horon_run(ctx, &barrier, -1, NULL, 0);
}

/* ---- All get on ----------------------------------------------------------------------------- */

static int32_t value(int from, int round, uint64_t k)
{
    return (int32_t)k * 3 + from * 1000 + round;
}

/* Each sends to the next rank, and receives from the one before; in any order of the two. */
static void go_round(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const uint64_t lengths[] = {SHORT, 0, 1, LONG, 1009};
    static int32_t out[LONG], in[LONG];
    const int rank = horon_rank(ctx), size = horon_size(ctx);
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    (void)arg;
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t count = lengths[round % 5], tag = (uint64_t)(round % 3);
        const horon_descriptor_t both[] = {job_message(HORON_RECV, before, tag, in, count),
                                           job_message(HORON_SEND, next, tag, out, count),
                                           job_message(HORON_RECV, before, tag, in, count)};
        for (uint64_t k = 0; k < count; k++) {
            out[k] = value(rank, round, k);
            in[k] = -1;
        }
        RANK_MUST(horon_run_messages(ctx, both + round % 2, 2, -1, report->text,
                                     HORON_ERROR_TEXT_BYTES) == HORON_OK);
        RANK_MUST(report->text[0] == 0);
        for (uint64_t k = 0; k < count; k++)
            RANK_MUST(in[k] == value(before, round, k));
    }
}

static void test_run_messages_in_a_ring_get_on(void **state)
{
    (void)state;
    for (int size = 2; size <= RANKS; size++)
        in_both_places(size, go_round);
}

/* More than are kept, and than lie on the stack; and none at all. */
static void go_to_all(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { EACH = 4 };
    static int32_t out[LONG], in[EACH * RANKS][LONG];
    const int rank = horon_rank(ctx), size = horon_size(ctx);
    horon_descriptor_t messages[2 * EACH * RANKS];
    (void)arg;
    for (uint64_t k = 0; k < LONG; k++)
        out[k] = value(rank, 0, k);
    for (int round = 0; round < ROUNDS / 10; round++) {
        size_t n = 0;
        for (int i = 0; i < EACH * size; i++) {
            const int peer = i % size;
            const uint64_t count = i / size % 2 ? SHORT : LONG; /* as the peer's of that tag */
            memset(in[i], 0, sizeof in[i]);
            if (peer == rank)
                continue;
            messages[n++] = job_message(HORON_SEND, peer, (uint64_t)(i / size), out, count);
            messages[n++] = job_message(HORON_RECV, peer, (uint64_t)(i / size), in[i], count);
        }
        RANK_MUST(horon_run_messages(ctx, messages, n, -1, report->text, HORON_ERROR_TEXT_BYTES) ==
                  HORON_OK);
        for (int i = 0; i < EACH * size; i++) {
            const uint64_t last = (i / size % 2 ? SHORT : LONG) - 1;
            RANK_MUST(i % size == rank || in[i][last] == value(i % size, 0, last));
        }
    }
    RANK_MUST(horon_run_messages(ctx, NULL, 0, -1, NULL, 0) == HORON_OK);
}

static void test_run_messages_with_all_get_on(void **state)
{
    (void)state;
    in_both_places(RANKS, go_to_all);
}

struct user {
    horon_context_t *ctx;
    uint64_t tag;
    bool well;
};

/* Where another thread drives, messages are posted. */
static void *exchange_again(void *arg)
{
    struct user *user = arg;
    const int rank = horon_rank(user->ctx), other = 1 - rank;
    int32_t in[SHORT], out[SHORT];
    user->well = true;
    for (int round = 0; round < ROUNDS && user->well; round++) {
        const horon_descriptor_t both[] = {job_message(HORON_SEND, other, user->tag, out, SHORT),
                                           job_message(HORON_RECV, other, user->tag, in, SHORT)};
        for (int i = 0; i < SHORT; i++)
            out[i] = value(rank, round, (uint64_t)i + user->tag);
        user->well = horon_run_messages(user->ctx, both, 2, -1, NULL, 0) == HORON_OK;
        for (int i = 0; i < SHORT && user->well; i++)
            user->well = in[i] == value(other, round, (uint64_t)i + user->tag);
    }
    return NULL;
}

static void exchange_by_threads(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { USERS = 3 };
    struct user users[USERS];
    pthread_t threads[USERS];
    (void)arg;
    for (int i = 0; i < USERS; i++) {
        users[i] = (struct user){.ctx = ctx, .tag = (uint64_t)i};
        RANK_MUST(pthread_create(&threads[i], NULL, exchange_again, &users[i]) == 0);
    }
    for (int i = 0; i < USERS; i++) {
        RANK_MUST(pthread_join(threads[i], NULL) == 0);
        RANK_MUST(users[i].well);
    }
    meet(ctx);
}

static void test_run_messages_by_threads_get_on(void **state)
{
    (void)state;
    in_both_places(2, exchange_by_threads);
}

/* Of one tag they come as they were sent, also where the first lies in the mailbox yet. */
static void follow_the_submitted(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int rank = horon_rank(ctx);
    (void)arg;
    for (int32_t round = 0; round < ROUNDS; round++) {
        int32_t data[3] = {3 * round, 3 * round + 1, 3 * round + 2};
        horon_request_t *first;
        horon_descriptor_t desc = job_message(rank ? HORON_RECV : HORON_SEND, 1 - rank, 4, data, 1);
        if (rank)
            memset(data, 0, sizeof data);
        RANK_MUST(horon_submit(ctx, &desc, &first) == HORON_OK);
        desc.src = desc.dst = &data[1];
        RANK_MUST(horon_run(ctx, &desc, -1, NULL, 0) == HORON_OK);
        desc.src = desc.dst = &data[2];
        RANK_MUST(horon_run_messages(ctx, &desc, 1, -1, NULL, 0) == HORON_OK);
        RANK_MUST(horon_wait(first, HORON_HOST_DONE, -1) == HORON_OK);
        horon_release(first);
        for (int i = 0; i < 3; i++)
            RANK_MUST(data[i] == 3 * round + i);
    }
    meet(ctx);
}

static void test_run_messages_follow_what_was_submitted(void **state)
{
    (void)state;
    in_both_places(2, follow_the_submitted);
}

static void count_call(void *arg, horon_request_t *req, horon_status_t status)
{
    int *calls = arg;
    *calls += !req && status == HORON_OK;
}

/* All have been called when the call returns; so the count needs no lock. Four are more than are
 * kept: they are posted. */
static void call_back(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int rank = horon_rank(ctx);
    (void)arg;
    for (int round = 0; round < ROUNDS / 10; round++) {
        int calls = 0;
        int32_t out = rank, in[2] = {-1, -1};
        horon_descriptor_t all[] = {job_message(HORON_SEND, 1 - rank, 0, &out, 1),
                                    job_message(HORON_RECV, 1 - rank, 0, &in[0], 1),
                                    job_message(HORON_SEND, 1 - rank, 1, &out, 1),
                                    job_message(HORON_RECV, 1 - rank, 1, &in[1], 1)};
        const int n = round % 2 ? 2 : 4;
        for (int i = 0; i < n; i++) {
            all[i].callback = count_call;
            all[i].callback_arg = &calls;
        }
        RANK_MUST(horon_run_messages(ctx, all, (size_t)n, -1, NULL, 0) == HORON_OK);
        RANK_MUST(calls == n && in[0] == 1 - rank && (n == 2 || in[1] == 1 - rank));
    }
    meet(ctx);
}

static void test_run_messages_call_back_before_it_returns(void **state)
{
    (void)state;
    job_run(2, NULL, call_back, NULL);
}

static int called[2], taken[2]; /* a byte each: the callback runs; the long message has come */

static void last_until_taken(void *arg, horon_request_t *req, horon_status_t status)
{
    char byte = 0;
    bool *told = arg;
    *told = !req && status == HORON_OK && write(called[1], &byte, 1) == 1 &&
            read(taken[0], &byte, 1) == 1;
}

/* While a callback of one lasts, the thread that waits for the other drives. */
static void call_back_long(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static int32_t data[LONG];
    const int rank = horon_rank(ctx);
    bool told = false;
    int32_t word = 1;
    char byte = 0;
    horon_descriptor_t both[] = {
        job_message(rank ? HORON_SEND : HORON_RECV, 1 - rank, 0, &word, 1),
        job_message(rank ? HORON_RECV : HORON_SEND, 1 - rank, 1, data, LONG)};
    (void)arg;
    if (rank == 0) {
        both[0].callback = last_until_taken;
        both[0].callback_arg = &told;
        RANK_MUST(horon_run_messages(ctx, both, 2, -1, NULL, 0) == HORON_OK);
        RANK_MUST(told);
    } else {
        RANK_MUST(horon_run(ctx, &both[0], -1, NULL, 0) == HORON_OK);
        RANK_MUST(read(called[0], &byte, 1) == 1);
        RANK_MUST(horon_run(ctx, &both[1], -1, NULL, 0) == HORON_OK);
        RANK_MUST(write(taken[1], &byte, 1) == 1);
    }
    meet(ctx);
}

static void test_run_messages_go_on_while_a_callback_lasts(void **state)
{
    (void)state;
    assert_true(pipe(called) == 0 && pipe(taken) == 0);
    for (size_t i = 0; i < 2; i++)
        job_run(2, impatient[i], call_back_long, NULL);
    for (int end = 0; end < 2; end++) {
        close(called[end]);
        close(taken[end]);
    }
}

/* ---- In a process set ----------------------------------------------------------------------- */

/* Its ranks have other numbers there; and once it is removed it takes none any more. */
static void run_in_a_set(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static const int32_t members[] = {3, 1};
    const int rank = horon_rank(ctx), own = rank == 3;
    int32_t out = rank, in = -1, set;
    (void)arg;
    RANK_MUST(horon_process_set_add(ctx, members, 2, -1, &set) == HORON_OK);
    horon_descriptor_t both[] = {job_message(HORON_SEND, 1 - own, 2, &out, 1),
                                 job_message(HORON_RECV, 1 - own, 2, &in, 1)};
    both[0].process_set = both[1].process_set = set;
    for (int round = 0; rank % 2 && round < ROUNDS / 10; round++) {
        in = -1;
        RANK_MUST(horon_run_messages(ctx, both, 2, -1, report->text, HORON_ERROR_TEXT_BYTES) ==
                  HORON_OK);
        RANK_MUST(in == 4 - rank);
    }
    RANK_MUST(horon_process_set_remove(ctx, set, -1) == HORON_OK);
    RANK_MUST(horon_run_messages(ctx, both, 2, -1, report->text, HORON_ERROR_TEXT_BYTES) ==
              HORON_ERR_INVALID);
    report->text[0] = 0;
    meet(ctx);
}

static void test_run_messages_in_a_process_set_get_on(void **state)
{
    (void)state;
    in_both_places(RANKS, run_in_a_set);
}

/* ---- What is refused ------------------------------------------------------------------------ */

/* Nothing of it is begun: the next message of that tag is the right one. */
static void refuse(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int other = 1 - horon_rank(ctx);
    int32_t wrong = -7, right = other, got = 0;
    const horon_descriptor_t send = job_message(HORON_SEND, other, 1, &wrong, 1);
    horon_descriptor_t two[2] = {send, job_message(HORON_RECV, 5, 1, &got, 1)}, many[3];
    horon_failure_t failure = HORON_FAILURE_INIT;
    char *text = report->text;
    (void)arg;
    RANK_MUST(horon_run_messages(ctx, NULL, 2, -1, text, sizeof report->text) == HORON_ERR_INVALID);
    RANK_MUST(strstr(text, "the messages are NULL"));
    RANK_MUST(horon_run_messages(NULL, NULL, 0, -1, text, sizeof report->text) ==
              HORON_ERR_INVALID);
    RANK_MUST(strstr(text, "the context is NULL"));
    RANK_MUST(horon_run_messages(ctx, two, 2, -1, text, sizeof report->text) == HORON_ERR_INVALID);
    RANK_MUST(strstr(text, "recv was refused: rank 5 is no rank of 0..1"));
    RANK_MUST(horon_run(ctx, &two[1], -1, text, sizeof report->text) == HORON_ERR_INVALID);
    RANK_MUST(strstr(text, "recv was refused: rank 5 is no rank of 0..1"));
    two[1].verb = HORON_BROADCAST;
    two[1].name = "w";
    two[1].flags = HORON_IN_ORDER;
    RANK_MUST(horon_run(ctx, &two[1], -1, text, sizeof report->text) == HORON_ERR_INVALID);
    RANK_MUST(strstr(text, "broadcast 'w' was refused: root 5 is no rank of 0..1"));
    RANK_MUST(horon_last_failure(ctx, &failure) == HORON_OK && strcmp(failure.name, "w") == 0);
    two[1] = job_sum("sum", NULL, 0, 0);
    RANK_MUST(horon_run_messages(ctx, two, 2, -1, text, sizeof report->text) == HORON_ERR_INVALID);
    RANK_MUST(strstr(text, "allreduce is no message"));
    two[1] = job_message(HORON_RECV, other, 1, &got, 1);
    two[1].process_set = 3;
    RANK_MUST(horon_run_messages(ctx, two, 2, -1, text, sizeof report->text) == HORON_ERR_INVALID);
    RANK_MUST(strstr(text, "process set"));
    two[1].process_set = 0;
    two[1].struct_bytes = offsetof(horon_descriptor_t, tag);
    RANK_MUST(horon_run_messages(ctx, two, 2, -1, text, sizeof report->text) == HORON_ERR_INVALID);
    RANK_MUST(strstr(text, "differ in struct_bytes"));
    many[0] = many[1] = send;
    many[2] = job_message(HORON_SEND, -1, 1, &wrong, 1);
    RANK_MUST(horon_run_messages(ctx, many, 3, -1, text, sizeof report->text) == HORON_ERR_INVALID);
    two[0] = job_message(HORON_SEND, other, 1, &right, 1);
    two[1] = job_message(HORON_RECV, other, 1, &got, 1);
    RANK_MUST(horon_run_messages(ctx, two, 2, -1, text, sizeof report->text) == HORON_OK);
    RANK_MUST(text[0] == 0 && got == 1 - other);
    meet(ctx);
}

static void test_run_messages_that_cannot_be_are_refused(void **state)
{
    (void)state;
    job_run(2, NULL, refuse, NULL);
}

/* Of other lengths: the one that finds it says so, and the call waits for the rest all the same. */
static void differ(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int rank = horon_rank(ctx);
    int32_t out[2] = {1, 2}, in[2] = {0};
    const horon_descriptor_t both[] = {
        job_message(HORON_RECV, 1 - rank, 8, in, rank ? 1 : 2),
        job_message(HORON_SEND, 1 - rank, 8, out, 1),
    };
    char text[HORON_ERROR_TEXT_BYTES];
    (void)arg;
    const horon_status_t status = horon_run_messages(ctx, both, 2, -1, text, sizeof text);
    RANK_MUST(status == (rank ? HORON_OK : HORON_ERR_MISMATCH));
    RANK_MUST(rank || strstr(text, "recv of 2 int32 from rank 1, tag 8"));
    meet(ctx);
}

static void test_run_messages_of_other_lengths_are_told(void **state)
{
    (void)state;
    in_both_places(2, differ);
}

/* ---- Ranks that wait too long, or die ------------------------------------------------------- */

static void wait_too_long(horon_context_t *ctx, void *arg, struct job_report *report)
{
    int32_t out = 1, in = 0;
    float sum = 1;
    (void)arg;
    if (horon_rank(ctx) == 0) {
        const horon_descriptor_t both[] = {job_message(HORON_SEND, 1, 3, &out, 1),
                                           job_message(HORON_RECV, 1, 2, &in, 1)};
        RANK_MUST(horon_run_messages(ctx, both, 2, 50, report->text, sizeof report->text) ==
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

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* A limit of few milliseconds counts whole, although the thread looks itself for some of it. */
static void wait_shortly(horon_context_t *ctx, void *arg, struct job_report *report)
{
    int32_t in = 0;
    const horon_descriptor_t desc = job_message(HORON_RECV, 1, 2, &in, 1);
    const int64_t begun_ns = now_ns();
    (void)arg;
    if (horon_rank(ctx) == 0) {
        RANK_MUST(horon_run_messages(ctx, &desc, 1, 1, NULL, 0) == HORON_ERR_TIMEOUT);
        RANK_MUST(now_ns() - begun_ns >= 1000000);
    } else
        meet(ctx);
}

/* As above, of more than are kept: those that wait all end with the first one's reason. */
static void wait_too_long_for_many(horon_context_t *ctx, void *arg, struct job_report *report)
{
    int32_t in[3] = {0};
    float sum = 1;
    (void)arg;
    if (horon_rank(ctx) == 0) {
        const horon_descriptor_t all[] = {job_message(HORON_RECV, 1, 1, &in[0], 1),
                                          job_message(HORON_RECV, 1, 2, &in[1], 1),
                                          job_message(HORON_RECV, 1, 3, &in[2], 1)};
        RANK_MUST(horon_run_messages(ctx, all, 3, 50, report->text, sizeof report->text) ==
                  HORON_ERR_TIMEOUT);
        RANK_MUST(strstr(report->text, "recv of 1 int32 from rank 1, tag 1"));
    } else {
        horon_descriptor_t desc = job_sum("never", &sum, 1, 0);
        RANK_MUST(horon_run(ctx, &desc, -1, report->text, sizeof report->text) ==
                  HORON_ERR_TIMEOUT);
    }
    report->text[0] = 0;
}

/* Both of two fail: the first of those that were given is told. */
static void differ_both(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static int32_t out[LONG], in[LONG];
    const int other = 1 - horon_rank(ctx), first = *(int *)arg;
    const uint64_t count = LONG - (uint64_t)horon_rank(ctx);
    const horon_descriptor_t both[] = {job_message(HORON_SEND, other, 0, out, count),
                                       job_message(HORON_RECV, other, 0, in, count),
                                       job_message(HORON_SEND, other, 0, out, count)};
    char text[HORON_ERROR_TEXT_BYTES];
    RANK_MUST(horon_run_messages(ctx, both + first, 2, -1, text, sizeof text) ==
              HORON_ERR_MISMATCH);
    RANK_MUST(strncmp(text, first ? "recv of" : "send of", 7) == 0);
}

static void test_run_messages_that_fail_both_tell_the_first(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++)
        job_run(2, NULL, differ_both, &first);
}

static void test_run_messages_past_their_time_limit_fail_the_process_set(void **state)
{
    (void)state;
    in_both_places(2, wait_too_long);
    in_both_places(2, wait_too_long_for_many);
    job_run(2, hasty, wait_shortly, NULL);
}

static void wait_for_the_dead(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int rank = horon_rank(ctx);
    static int32_t out[LONG], in[LONG];
    int32_t word = 0;
    horon_descriptor_t both[] = {job_message(rank == 1 ? HORON_RECV : HORON_SEND, 1, 6, &word, 1),
                                 job_message(HORON_RECV, 1, 5, in, LONG)};
    (void)arg;
    for (int from = 0; rank == 1 && from < 3; from += 2) {
        both[0].root = from;
        RANK_MUST(horon_run(ctx, &both[0], -1, report->text, sizeof report->text) == HORON_OK);
    }
    if (rank == 1)
        raise(SIGKILL);
    if (rank == 2)
        both[0] = job_message(HORON_SEND, 1, 6, out, 1);
    RANK_MUST(horon_run_messages(ctx, both, 2, -1, report->text, sizeof report->text) ==
              HORON_ERR_PEER_LOST);
    RANK_MUST(strstr(report->text, "rank 1 ("));
    report->text[0] = 0;
}

static void test_run_messages_with_a_killed_process_fail_with_its_name(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_messages_in_a_ring_get_on),
        cmocka_unit_test(test_run_messages_with_all_get_on),
        cmocka_unit_test(test_run_messages_by_threads_get_on),
        cmocka_unit_test(test_run_messages_follow_what_was_submitted),
        cmocka_unit_test(test_run_messages_call_back_before_it_returns),
        cmocka_unit_test(test_run_messages_go_on_while_a_callback_lasts),
        cmocka_unit_test(test_run_messages_in_a_process_set_get_on),
        cmocka_unit_test(test_run_messages_that_cannot_be_are_refused),
        cmocka_unit_test(test_run_messages_of_other_lengths_are_told),
        cmocka_unit_test(test_run_messages_that_fail_both_tell_the_first),
        cmocka_unit_test(test_run_messages_past_their_time_limit_fail_the_process_set),
        cmocka_unit_test(test_run_messages_with_a_killed_process_fail_with_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
