/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the progress thread leaves behind when a waiter calls it off, and that it comes where nobody
 * waits. The waiter is a count in the context here, so that it calls whenever the thread looks.
 */
#undef NDEBUG
#include "context_state.h"
#include "file.h"
#include "multi/duo.h"

#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static horon_request_t *submit_broadcast(horon_context_t *ctx, const char *name, float *data)
{
    horon_descriptor_t desc = duo_sum(name, data);
    horon_request_t *request;
    desc.verb = HORON_BROADCAST;
    desc.root = 0;
    assert_int_equal(horon_submit(ctx, &desc, &request), HORON_OK);
    return request;
}

/* Rank 0 decides and, as the root, has ended its own part in the same turn: nothing is in flight
 * there, and the decision has not been sent. The waiter finds its request ended, and does nothing.
 */
static void test_token_called_off_progress_thread_sends_what_it_decided(void **state)
{
    const char *const settings[] = {"STALL_WARN=0", NULL};
    float x[2] = {1, 2}, y[2] = {3, 4};
    struct duo duo;
    (void)state;
    duo_make(&duo, settings);
    horon_context_t *root = duo.ctx[0];
    horon_request_t *theirs = submit_broadcast(duo.ctx[1], "y", &y[1]);
    horon_request_t *behind = duo_submit(duo.ctx[1], "x", &x[1]);
    duo_expect_end(duo_submit(root, "x", &x[0]), HORON_OK); /* rank 0 has heard of "y", too */
    duo_expect_end(behind, HORON_OK);
    atomic_fetch_add(&root->waiters, 1);
    horon_request_t *ours = submit_broadcast(root, "y", &y[0]);
    while (horon_test(ours, HORON_HOST_DONE) == HORON_IN_PROGRESS || atomic_load(&root->token))
        sched_yield();
    atomic_fetch_sub(&root->waiters, 1);
    duo_expect_end(theirs, HORON_OK);
    assert_true(y[1] == 3);
    duo_expect_end(ours, HORON_OK);
    duo_end(&duo);
}

/* ---- called off, it sleeps ------------------------------------------------------------------ */

/* Is a progress thread of this process running, or ready to? */
static bool any_runs(void)
{
    char path[64], text[256];
    bool runs = false;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *task = readdir(tasks); task; task = readdir(tasks)) {
        snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", task->d_name);
        if (task->d_name[0] == '.' || horon_file_read_text(path, text, sizeof text) == 0)
            continue;
        runs |= strstr(text, "(horon) R") != NULL;
    }
    closedir(tasks);
    return runs;
}

static void expect_sleep(void)
{
    const time_t end = time(NULL) + DUO_DEADLINE_S;
    bool runs;
    do {
        sched_yield();
        runs = any_runs(); /* once: it may wake again soon */
    } while (runs && time(NULL) < end);
    assert_false(runs);
}

/* Nor is anything about to wake it that a thread left behind. */
static void expect_sleep_for_good(horon_context_t *ctx)
{
    while (atomic_load(&ctx->late_bell.set) != HORON_LATE_BELL_OFF)
        sched_yield();
    expect_sleep();
}

/* Its progress thread has taken what was posted, and let go of the token. */
static void wait_until_taken(horon_context_t *ctx)
{
    const time_t end = time(NULL) + DUO_DEADLINE_S;
    while ((horon_engine_has_post(ctx->engine) || atomic_load(&ctx->token)) && time(NULL) < end)
        sched_yield();
    assert_false(horon_engine_has_post(ctx->engine));
}

/* It has let go for good: what changes from now on has to ring it. */
static void wait_until_told_to_ring(horon_context_t *ctx)
{
    const struct horon_rank_line *line = horon_host_line(&ctx->host, ctx->host.local_rank);
    const time_t end = time(NULL) + DUO_DEADLINE_S;
    wait_until_taken(ctx);
    while ((atomic_load(&line->wake) == 0 || atomic_load(&ctx->token)) && time(NULL) < end)
        sched_yield();
    assert_true(atomic_load(&line->wake) != 0);
}

/* A link between hosts that is the only one is read without asking the poller, which goes on saying
 * that something came. The waiter has no core to take the token on, and gets none if the progress
 * thread looks again and again. */
static void test_token_progress_thread_sleeps_though_waiter_has_not_come(void **state)
{
    const char *const settings[] = {"STALL_WARN=0", "SHM=0", NULL};
    float x[2] = {1, 2}, y[2] = {3, 4}, z = 5;
    struct duo duo;
    (void)state;
    duo_make(&duo, settings);
    horon_context_t *root = duo.ctx[0];
    horon_request_t *first = duo_submit(duo.ctx[1], "x", &x[1]);
    duo_expect_end(duo_submit(root, "x", &x[0]), HORON_OK); /* now the link was read once */
    duo_expect_end(first, HORON_OK);
    atomic_fetch_add(&root->waiters, 1);
    horon_request_t *ours = duo_submit(root, "y", &y[0]);
    wait_until_taken(root);
    horon_request_t *unmet = duo_submit(duo.ctx[1], "z", &z); /* something to read */
    wait_until_taken(duo.ctx[1]);
    expect_sleep();
    atomic_fetch_sub(&root->waiters, 1);
    duo_expect_end(duo_submit(duo.ctx[1], "y", &y[1]), HORON_OK);
    duo_expect_end(ours, HORON_OK);
    duo_expect_end(duo_submit(root, "z", &x[0]), HORON_OK);
    duo_expect_end(unmet, HORON_OK);
    duo_end(&duo);
}

/* ---- nobody waits --------------------------------------------------------------------------- */

static void expect_unwaited(horon_request_t *request, horon_status_t status)
{
    const time_t end = time(NULL) + DUO_DEADLINE_S;
    while (horon_test(request, HORON_HOST_DONE) == HORON_IN_PROGRESS && time(NULL) < end)
        sched_yield();
    assert_int_equal(horon_test(request, HORON_HOST_DONE), status);
    horon_release(request);
}

static void expect_end_unwaited(horon_request_t *request)
{
    expect_unwaited(request, HORON_OK);
}

/* The progress thread comes for each, although it is told of none at once; also just when somebody
 * that waited for another one has let go of the token. */
static void unwaited_operations_end(const char *shm)
{
    const char *const settings[] = {"STALL_WARN=0", shm, NULL};
    struct duo duo;
    duo_make(&duo, settings);
    for (int round = 0; round < 1000; round++) {
        float x[2] = {1, 2}, y[2] = {3, 4};
        horon_request_t *theirs = duo_submit(duo.ctx[1], "x", &x[1]);
        horon_request_t *ours = duo_submit(duo.ctx[0], "x", &x[0]);
        horon_request_t *later = duo_submit(duo.ctx[0], "y", &y[0]);
        if (round % 2)
            duo_expect_end(ours, HORON_OK);
        else
            expect_end_unwaited(ours);
        expect_end_unwaited(theirs);
        theirs = duo_submit(duo.ctx[1], "y", &y[1]);
        expect_end_unwaited(later);
        expect_end_unwaited(theirs);
        assert_true(x[0] == 3 && x[1] == 3 && y[0] == 7 && y[1] == 7);
    }
    duo_end(&duo);
}

static void test_token_operations_end_that_nobody_waits_for(void **state)
{
    (void)state;
    unwaited_operations_end("SHM=1");
}

static void test_token_operations_end_between_hosts_that_nobody_waits_for(void **state)
{
    (void)state;
    unwaited_operations_end("SHM=0");
}

/* Nothing has the second rank take its token by itself. */
static void make_with_a_sleeper(struct duo *duo)
{
    const char *const settings[] = {"STALL_WARN=0", NULL};
    duo_make(duo, settings);
}

/* The second rank sleeps on its part when the first one runs its own, to its end. */
static void run_beside_the_sleeper(struct duo *duo, const horon_descriptor_t *run,
                                   const horon_descriptor_t *slept_on)
{
    horon_request_t *theirs = NULL;
    assert_int_equal(horon_submit(duo->ctx[1], slept_on, &theirs), HORON_OK);
    wait_until_told_to_ring(duo->ctx[1]);
    assert_int_equal(horon_run(duo->ctx[0], run, -1, NULL, 0), HORON_OK);
    expect_end_unwaited(theirs);
}

/* The root's part ends at once, and leaves it to the token's release to ring for what it stored. */
static void test_token_release_rings_threads_that_sleep_for_what_ended_at_once(void **state)
{
    struct duo duo;
    (void)state;
    make_with_a_sleeper(&duo);
    for (int round = 0; round < 100; round++) {
        float x[2] = {1, 2};
        horon_descriptor_t desc = duo_sum(NULL, &x[0]);
        desc.verb = HORON_BROADCAST;
        desc.root = 0;
        desc.flags = HORON_IN_ORDER;
        horon_descriptor_t others = desc;
        others.src = others.dst = &x[1];
        run_beside_the_sleeper(&duo, &desc, &others);
        assert_true(x[1] == 1);
    }
    duo_end(&duo);
}

static void test_token_message_rings_the_receiver_that_sleeps(void **state)
{
    struct duo duo;
    (void)state;
    make_with_a_sleeper(&duo);
    for (int round = 0; round < 100; round++) {
        float x[2] = {1, 2};
        horon_descriptor_t sent = duo_sum(NULL, &x[0]);
        sent.verb = HORON_SEND;
        sent.root = 1;
        horon_descriptor_t received = sent;
        received.verb = HORON_RECV;
        received.root = 0;
        received.dst = &x[1];
        run_beside_the_sleeper(&duo, &sent, &received);
        assert_true(x[1] == 1);
    }
    duo_end(&duo);
}

/* ---- nothing is in flight -------------------------------------------------------------------- */

/* A rank that takes a tensor back asks rank 0, where a thread has the token, and rings nobody. When
 * that thread lets go nothing is in flight there, and so nothing of others to be looked at. */
static void test_token_release_looks_at_what_cannot_wait(void **state)
{
    const char *const settings[] = {"STALL_WARN=0", NULL};
    float x = 1;
    struct duo duo;
    (void)state;
    duo_make(&duo, settings);
    horon_request_t *theirs = duo_submit(duo.ctx[1], "x", &x);
    wait_until_told_to_ring(duo.ctx[1]);
    wait_until_told_to_ring(duo.ctx[0]);
    horon_token_take(duo.ctx[0]);
    assert_int_equal(horon_cancel(theirs), HORON_OK);
    wait_until_told_to_ring(duo.ctx[1]);
    horon_token_release(duo.ctx[0]);
    expect_unwaited(theirs, HORON_ERR_CANCELLED);
    duo_end(&duo);
}

/* Likewise, and the thread that is rung for it finds the token taken again, by one that looks only
 * for what it does itself. */
static void test_token_release_looks_at_what_cannot_wait_until_it_was_seen(void **state)
{
    const char *const settings[] = {"STALL_WARN=0", NULL};
    struct duo duo;
    (void)state;
    duo_make(&duo, settings);
    for (int round = 0; round < 50; round++) {
        float x = 1;
        horon_request_t *theirs = duo_submit(duo.ctx[1], "x", &x);
        wait_until_told_to_ring(duo.ctx[1]);
        wait_until_told_to_ring(duo.ctx[0]);
        horon_token_take(duo.ctx[0]);
        assert_int_equal(horon_cancel(theirs), HORON_OK);
        wait_until_told_to_ring(duo.ctx[1]);
        horon_token_release(duo.ctx[0]);
        horon_token_take(duo.ctx[0]); /* mostly before the other thread comes */
        expect_sleep_for_good(duo.ctx[0]);
        horon_token_release(duo.ctx[0]);
        expect_unwaited(theirs, HORON_ERR_CANCELLED);
    }
    duo_end(&duo);
}

/* More than a ring holds: rank 0, which has nothing in flight, is rung for what fits, reads that
 * and sleeps again, and has to be rung for the rest as well. */
static void test_token_rank_without_requests_hears_all_of_what_cannot_wait(void **state)
{
    enum { TENSORS = 700 };
    const char *const settings[] = {"STALL_WARN=0", NULL};
    static horon_request_t *theirs[TENSORS];
    static float x[TENSORS];
    struct duo duo;
    (void)state;
    duo_make(&duo, settings);
    horon_token_take(duo.ctx[0]);
    horon_token_release(duo.ctx[0]);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < TENSORS; i++) {
            char name[256];
            snprintf(name, sizeof name, "%0240d", i);
            theirs[i] = duo_submit(duo.ctx[1], name, &x[i]);
        }
        wait_until_told_to_ring(duo.ctx[1]);
        horon_token_take(duo.ctx[1]); /* all go at once */
        for (int i = 0; i < TENSORS; i++)
            assert_int_equal(horon_cancel(theirs[i]), HORON_OK);
        horon_token_release(duo.ctx[1]);
        for (int i = 0; i < TENSORS; i++)
            expect_unwaited(theirs[i], HORON_ERR_CANCELLED);
    }
    duo_end(&duo);
}

/* A receiver takes what comes, whether it is asked for yet or not. When its ring is full a thread
 * has the token there, and has looked at the ring already. */
static void test_token_release_looks_at_a_ring_that_is_full(void **state)
{
    enum { MESSAGES = 40, FLOATS = 1000 };
    const char *const settings[] = {"STALL_WARN=0", NULL};
    static horon_request_t *sends[MESSAGES];
    static float x[FLOATS], y[FLOATS];
    struct duo duo;
    (void)state;
    duo_make(&duo, settings);
    wait_until_told_to_ring(duo.ctx[0]);
    horon_token_take(duo.ctx[0]);
    horon_descriptor_t desc = duo_sum(NULL, x);
    desc.verb = HORON_SEND;
    desc.root = 0;
    desc.count = FLOATS;
    for (int i = 0; i < MESSAGES; i++)
        assert_int_equal(horon_submit(duo.ctx[1], &desc, &sends[i]), HORON_OK);
    wait_until_told_to_ring(duo.ctx[1]);
    assert_int_equal(horon_test(sends[MESSAGES - 1], HORON_HOST_DONE), HORON_IN_PROGRESS);
    horon_token_release(duo.ctx[0]);
    for (int i = 0; i < MESSAGES; i++)
        expect_end_unwaited(sends[i]);
    desc.verb = HORON_RECV;
    desc.root = 1;
    desc.dst = y;
    for (int i = 0; i < MESSAGES; i++)
        assert_int_equal(horon_run(duo.ctx[0], &desc, -1, NULL, 0), HORON_OK);
    duo_end(&duo);
}

/* ---- what nobody waits for ------------------------------------------------------------------- */

/* The deadline is shorter than what libev sleeps at most, which is a minute. */
static void expect_stall_told(struct duo *duo, horon_request_t *unmet)
{
    float x = 0;
    duo_wait_to_hear(duo, "has waited for");
    duo_expect_end(duo_submit(duo->ctx[1], "x", &x), HORON_OK);
    duo_expect_end(unmet, HORON_OK);
    duo_end(duo);
}

/* A thread that drives has taken up what another one submitted, and leaves. The progress thread has
 * slept since nothing was in flight, for as long as that stays so. */
static void test_token_what_a_driver_leaves_in_flight_is_looked_after(void **state)
{
    const char *const settings[] = {"STALL_WARN=1s", NULL};
    struct duo duo;
    float x = 0;
    (void)state;
    duo_make(&duo, settings);
    wait_until_told_to_ring(duo.ctx[0]);
    horon_token_take(duo.ctx[0]);
    horon_request_t *unmet = duo_submit(duo.ctx[0], "x", &x); /* which rings nobody */
    while (horon_token_look(duo.ctx[0]))
        continue;
    horon_token_release(duo.ctx[0]);
    expect_stall_told(&duo, unmet);
}

/* The progress thread wakes as if it were time to look, and finds the token taken. */
static void wake_in_vain(horon_context_t *ctx)
{
    struct pollfd rung = {.fd = ctx->doorbell, .events = POLLIN};
    horon_token_take(ctx);
    horon_doorbell_ring(ctx->doorbell);
    while (poll(&rung, 1, 0) == 1)
        sched_yield();
    expect_sleep();
    horon_token_release(ctx);
}

/* Or the progress thread wakes to look after it, finds the token taken, and sleeps again. */
static void test_token_what_is_in_flight_is_looked_after_when_a_driver_leaves(void **state)
{
    const char *const settings[] = {"STALL_WARN=1s", NULL};
    struct duo duo;
    float x = 0;
    (void)state;
    duo_make(&duo, settings);
    horon_request_t *unmet = duo_submit(duo.ctx[0], "x", &x);
    wait_until_told_to_ring(duo.ctx[0]);
    wake_in_vain(duo.ctx[0]);
    expect_stall_told(&duo, unmet);
}

static void *run_in_order(void *ctx)
{
    float x = 0;
    horon_descriptor_t desc = duo_sum(NULL, &x);
    desc.flags = HORON_IN_ORDER;
    assert_int_equal(horon_run(ctx, &desc, -1, NULL, 0), HORON_OK);
    return NULL;
}

static void *receive(void *ctx)
{
    float x = 0;
    horon_descriptor_t desc = duo_sum(NULL, &x);
    desc.verb = HORON_RECV;
    desc.root = 1;
    assert_int_equal(horon_run(ctx, &desc, -1, NULL, 0), HORON_OK);
    return NULL;
}

/* Likewise of a thread that has waited so long that it sleeps, and looks at nothing itself; also if
 * the last look was before that thread began, and the next one is not due for that. */
static void test_token_what_a_sleeping_thread_runs_is_looked_after(void **state)
{
    static void *(*const begin[])(void *ctx) = {run_in_order, receive};
    const char *const settings[] = {"STALL_WARN=1s", NULL};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct duo duo;
        pthread_t thread;
        float x = 0;
        horon_descriptor_t send = duo_sum(NULL, &x);
        send.verb = HORON_SEND;
        duo_make(&duo, settings);
        const struct horon_rank_line *line = horon_host_line(&duo.ctx[0]->host, 0);
        const time_t end = time(NULL) + DUO_DEADLINE_S;
        assert_int_equal(pthread_create(&thread, NULL, begin[i % 2], duo.ctx[0]), 0);
        while (atomic_load(&line->wants) == 0 && time(NULL) < end)
            sched_yield();
        expect_sleep_for_good(duo.ctx[0]);
        if (i >= 2)
            atomic_store(&duo.ctx[0]->minds, false);
        wake_in_vain(duo.ctx[0]);
        duo_wait_to_hear(&duo, "has waited for");
        if (i % 2)
            assert_int_equal(horon_run(duo.ctx[1], &send, -1, NULL, 0), HORON_OK);
        else
            run_in_order(duo.ctx[1]);
        pthread_join(thread, NULL);
        duo_end(&duo);
    }
}

/* ---- what passes its limit ------------------------------------------------------------------- */

#define LIMITS 20

/* A barrier that nobody else begins. It gets its name from the thread that drives, while this one
 * may be about to say what did not finish. */
static void *pass_limits(void *ctx)
{
    intptr_t named = 0;
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    for (int i = 0; i < LIMITS; i++) {
        char text[HORON_ERROR_TEXT_BYTES] = "";
        const horon_status_t status = horon_run(ctx, &barrier, 1, text, sizeof text);
        named += status == HORON_ERR_TIMEOUT && strstr(text, "barrier '") == text;
    }
    return (void *)named;
}

static void test_token_is_held_by_the_thread_that_says_what_did_not_finish(void **state)
{
    const char *const settings[] = {"SPIN_US=0", "YIELD_US=0", NULL};
    pthread_t threads[3];
    void *named;
    struct duo duo;
    (void)state;
    duo_make(&duo, settings);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, pass_limits, duo.ctx[0]), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], &named);
        assert_int_equal((intptr_t)named, LIMITS);
    }
    duo_end(&duo);
}

struct lone {
    horon_context_t *ctx;
    horon_descriptor_t desc;
    uint8_t data[4];
    pthread_t thread;
};

static void *run_lone(void *arg)
{
    struct lone *lone = arg;
    return (void *)(intptr_t)horon_run(lone->ctx, &lone->desc, -1, NULL, 0);
}

static void begin_lone(struct lone *lone, horon_context_t *ctx, horon_verb_t verb, int peer)
{
    *lone = (struct lone){.ctx = ctx, .desc = HORON_DESCRIPTOR_INIT};
    lone->desc.verb = verb;
    lone->desc.flags = verb == HORON_BARRIER ? HORON_IN_ORDER : 0;
    lone->desc.root = verb == HORON_BARRIER ? 0 : peer;
    lone->desc.dtype = HORON_UINT8;
    lone->desc.src = lone->desc.dst = lone->data;
    lone->desc.count = verb == HORON_BARRIER ? 0 : sizeof lone->data;
    assert_int_equal(pthread_create(&lone->thread, NULL, run_lone, lone), 0);
}

/* What a driver has begun itself, past the mailbox, no thread was woken for, and its patience has
 * not passed when the warning comes. */
static void test_token_of_a_patient_driver_is_taken_to_look_for_stalls(void **state)
{
    static const char *const settings[] = {"STALL_WARN=20ms", "YIELD_US=10000000", NULL};
    static const horon_verb_t verbs[][2] = {{HORON_RECV, HORON_SEND},
                                            {HORON_BARRIER, HORON_BARRIER}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct duo duo;
        struct lone lone[2];
        struct timespec began, heard;
        void *status;
        duo_make(&duo, settings);
        clock_gettime(CLOCK_MONOTONIC, &began);
        begin_lone(&lone[0], duo.ctx[0], verbs[i][0], 1);
        duo_wait_to_hear(&duo, " has waited for ");
        clock_gettime(CLOCK_MONOTONIC, &heard);
        assert_true(heard.tv_sec - began.tv_sec < 9);
        begin_lone(&lone[1], duo.ctx[1], verbs[i][1], 0);
        for (int rank = 0; rank < 2; rank++) {
            pthread_join(lone[rank].thread, &status);
            assert_int_equal((intptr_t)status, HORON_OK);
        }
        duo_end(&duo);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_progress_thread_sleeps_though_waiter_has_not_come),
        cmocka_unit_test(test_token_operations_end_that_nobody_waits_for),
        cmocka_unit_test(test_token_operations_end_between_hosts_that_nobody_waits_for),
        cmocka_unit_test(test_token_release_rings_threads_that_sleep_for_what_ended_at_once),
        cmocka_unit_test(test_token_message_rings_the_receiver_that_sleeps),
        cmocka_unit_test(test_token_release_looks_at_what_cannot_wait),
        cmocka_unit_test(test_token_release_looks_at_what_cannot_wait_until_it_was_seen),
        cmocka_unit_test(test_token_rank_without_requests_hears_all_of_what_cannot_wait),
        cmocka_unit_test(test_token_release_looks_at_a_ring_that_is_full),
        cmocka_unit_test(test_token_what_a_driver_leaves_in_flight_is_looked_after),
        cmocka_unit_test(test_token_what_is_in_flight_is_looked_after_when_a_driver_leaves),
        cmocka_unit_test(test_token_what_a_sleeping_thread_runs_is_looked_after),
        cmocka_unit_test(test_token_is_held_by_the_thread_that_says_what_did_not_finish),
        cmocka_unit_test(test_token_called_off_progress_thread_sends_what_it_decided),
        cmocka_unit_test(test_token_of_a_patient_driver_is_taken_to_look_for_stalls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
