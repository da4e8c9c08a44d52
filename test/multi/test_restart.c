/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request that is started again by its own callback. A thread that waits for it meanwhile hears
 * of the run it waited for, however soon the next one began; it is known to wait by the request's
 * state word. A request that was released does not start again. Nor is one cancelled that is IDLE.
 */
#undef NDEBUG
#include "context_state.h"
#include "multi/duo.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define ROUNDS 20

static void start_again(void *arg, horon_request_t *request, horon_status_t status)
{
    _Atomic int *restarts = arg;
    if (status != HORON_OK || atomic_load(restarts) == 0)
        return;
    if (horon_start(request) != HORON_OK)
        abort();
    atomic_fetch_sub(restarts, 1);
}

static void *wait_for_a_run(void *request)
{
    return (void *)(intptr_t)horon_wait(request, HORON_HOST_DONE, DUO_DEADLINE_S * 1000);
}

static void until_waited(horon_request_t *request)
{
    while (!(atomic_load(&request->state) & HORON_REQUEST_WAITED))
        sched_yield();
}

static void expect_well(pthread_t waiter)
{
    void *status;
    pthread_join(waiter, &status);
    assert_int_equal((intptr_t)status, HORON_OK);
}

/* Starts rank 0's part of a sum, which calls @p callback whenever it ends. */
static horon_request_t *start_with_callback(const struct duo *duo, float *x,
                                            horon_callback_fn_t callback, void *arg)
{
    horon_request_t *request;
    horon_descriptor_t desc = duo_sum("x", x);
    desc.callback = callback;
    desc.callback_arg = arg;
    assert_int_equal(horon_prepare(duo->ctx[0], &desc, &request), HORON_OK);
    assert_int_equal(horon_start(request), HORON_OK);
    return request;
}

/* The other rank begins one run only, so that the second one cannot end before the waiter looks. */
static void wait_while_it_is_restarted(const char *shm)
{
    const char *const settings[] = {shm, "SPIN_US=0", "YIELD_US=0", NULL};
    _Atomic int restarts = 0;
    float x[2] = {0};
    struct duo duo;
    duo_make(&duo, settings);
    horon_request_t *request = start_with_callback(&duo, &x[0], start_again, &restarts);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t waiter;
        atomic_store(&restarts, 1);
        assert_int_equal(pthread_create(&waiter, NULL, wait_for_a_run, request), 0);
        until_waited(request);
        duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
        expect_well(waiter);
        while (atomic_load(&restarts)) /* the callback comes last */
            sched_yield();
    }
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    duo_expect_end(request, HORON_OK);
    duo_end(&duo);
}

static void test_restart_in_a_callback_is_no_end_missed(void **state)
{
    (void)state;
    wait_while_it_is_restarted("SHM=1");
    wait_while_it_is_restarted("SHM=0");
}

/* ---- one of several ------------------------------------------------------------------------- */

static void *wait_for_both(void *requests)
{
    return (void *)(intptr_t)horon_wait_all(requests, 2, HORON_HOST_DONE, DUO_DEADLINE_S * 1000);
}

/* A wait that has seen the run of one end does not go on with the next one: not while it waits for
 * the other, and not when both are over. The second run of the last one ends after the wait. */
static void test_restart_ends_a_wait_for_all_with_the_run_it_saw(void **state)
{
    const char *const settings[] = {"SPIN_US=0", "YIELD_US=0", NULL};
    _Atomic int restarts = 0;
    float x[2] = {0}, y[2] = {0};
    struct duo duo;
    (void)state;
    duo_make(&duo, settings);
    horon_request_t *again = start_with_callback(&duo, &x[0], start_again, &restarts);
    for (int round = 0; round < ROUNDS; round++) {
        horon_request_t *both[] = {duo_submit(duo.ctx[0], "y", &y[0]), again};
        pthread_t waiter;
        atomic_store(&restarts, 1);
        assert_int_equal(pthread_create(&waiter, NULL, wait_for_both, both), 0);
        until_waited(both[0]);
        duo_expect_end(duo_submit(duo.ctx[1], "y", &y[1]), HORON_OK);
        until_waited(again);
        duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
        expect_well(waiter);
        while (atomic_load(&restarts))
            sched_yield();
        horon_release(both[0]);
    }
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    duo_expect_end(again, HORON_OK);
    duo_end(&duo);
}

/* The next run has failed by the time that the other one ends. */
static void test_restart_is_told_by_the_run_that_was_waited_for(void **state)
{
    const char *const settings[] = {"SPIN_US=0", "YIELD_US=0", NULL};
    _Atomic int restarts = 1;
    float x[2] = {0}, y[2] = {0};
    struct duo duo;
    pthread_t waiter;
    (void)state;
    duo_make(&duo, settings);
    horon_request_t *again = start_with_callback(&duo, &x[0], start_again, &restarts);
    horon_request_t *both[] = {again, duo_submit(duo.ctx[0], "y", &y[0])};
    assert_int_equal(pthread_create(&waiter, NULL, wait_for_both, both), 0);
    until_waited(again);
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    until_waited(both[1]);
    while (atomic_load(&restarts))
        sched_yield();
    assert_int_equal(horon_cancel(again), HORON_OK);
    assert_int_equal((intptr_t)wait_for_a_run(again), HORON_ERR_CANCELLED);
    duo_expect_end(duo_submit(duo.ctx[1], "y", &y[1]), HORON_OK);
    expect_well(waiter);
    horon_release(again);
    horon_release(both[1]);
    duo_end(&duo);
}

/* The run of a later one ends, and the next begins, while the wait is still for the first. */
static void test_restart_ends_a_wait_for_all_before_its_turn(void **state)
{
    const char *const settings[] = {"SPIN_US=0", "YIELD_US=0", NULL};
    _Atomic int restarts = 1;
    float x[2] = {0}, y[2] = {0};
    struct duo duo;
    pthread_t waiter;
    (void)state;
    duo_make(&duo, settings);
    horon_request_t *again = start_with_callback(&duo, &x[0], start_again, &restarts);
    horon_request_t *both[] = {duo_submit(duo.ctx[0], "y", &y[0]), again};
    assert_int_equal(pthread_create(&waiter, NULL, wait_for_both, both), 0);
    until_waited(both[0]);
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    while (atomic_load(&restarts))
        sched_yield();
    duo_expect_end(duo_submit(duo.ctx[1], "y", &y[1]), HORON_OK);
    expect_well(waiter);
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    duo_expect_end(again, HORON_OK);
    horon_release(both[0]);
    duo_end(&duo);
}

/* A number of the run is as long as the word has room: behind the last one comes 0, as before the
 * first start. */
static void test_restart_with_the_number_0_is_waited_for(void **state)
{
    const uint32_t last = UINT32_MAX / HORON_REQUEST_RUN;
    _Atomic int restarts = 0;
    float x[2] = {0};
    struct duo duo;
    (void)state;
    duo_make(&duo, NULL);
    horon_request_t *request = start_with_callback(&duo, &x[0], start_again, &restarts);
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    assert_int_equal(horon_wait(request, HORON_HOST_DONE, -1), HORON_OK);
    atomic_store(&request->state, last * HORON_REQUEST_RUN | HORON_REQUEST_ENDED);
    assert_int_equal(horon_start(request), HORON_OK);
    assert_int_equal(horon_request_run_number(request), 0);
    assert_int_equal(horon_wait_all(&request, 1, HORON_HOST_DONE, 20), HORON_ERR_TIMEOUT);
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    assert_int_equal(horon_wait_all(&request, 1, HORON_HOST_DONE, -1), HORON_OK);
    assert_int_equal(horon_wait(request, HORON_HOST_DONE, 0), HORON_OK);
    horon_release(request);
    duo_end(&duo);
}

/* ---- a thread that looks late --------------------------------------------------------------- */

static _Atomic int held; /* 1: a thread is in the signal handler; it stays there while not 0 */

static void hold_thread(int number)
{
    (void)number;
    atomic_store(&held, 1);
    while (atomic_load(&held))
        sched_yield();
}

static void start_once(void *arg, horon_request_t *request, horon_status_t status)
{
    _Atomic int *ends = arg;
    (void)status;
    if (atomic_load(ends) == 0 && horon_start(request) != HORON_OK)
        abort();
    atomic_fetch_add(ends, 1);
}

/* The run that is waited for fails, and the next one ends well, before the waiter can look. */
static void test_restart_is_told_to_a_thread_that_looks_late(void **state)
{
    const char *const settings[] = {"SPIN_US=0", "YIELD_US=0", NULL};
    const struct sigaction hold = {.sa_handler = hold_thread};
    _Atomic int ends = 0;
    float x[2] = {0};
    horon_descriptor_t odd = duo_sum("x", &x[1]);
    horon_request_t *other;
    void *status;
    struct duo duo;
    pthread_t waiter;
    (void)state;
    assert_int_equal(sigaction(SIGUSR1, &hold, NULL), 0);
    duo_make(&duo, settings);
    horon_request_t *request = start_with_callback(&duo, &x[0], start_once, &ends);
    assert_int_equal(pthread_create(&waiter, NULL, wait_for_a_run, request), 0);
    until_waited(request);
    assert_int_equal(pthread_kill(waiter, SIGUSR1), 0);
    while (!atomic_load(&held))
        sched_yield();
    odd.redop = HORON_MAX;
    assert_int_equal(horon_submit(duo.ctx[1], &odd, &other), HORON_OK);
    duo_expect_end(other, HORON_ERR_MISMATCH);
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    while (atomic_load(&ends) < 2)
        sched_yield();
    atomic_store(&held, 0);
    pthread_join(waiter, &status);
    assert_int_equal((intptr_t)status, HORON_ERR_MISMATCH);
    duo_expect_end(request, HORON_OK);
    duo_end(&duo);
}

/* ---- a thread that waits while another one starts ------------------------------------------- */

/* Once in a thousand, on a quiet machine, a wait falls between two steps of a start. */
enum { STARTS = 10000 };

/* Waits for each of the requests as soon as it is in flight. @return how many waits ended early */
static void *wait_for_starts(void *given)
{
    horon_request_t *_Atomic *next = given, *request;
    intptr_t early = 0;
    for (int i = 0; i < STARTS; i++) {
        while (!(request = atomic_load(next)))
            sched_yield();
        while (horon_test(request, HORON_HOST_DONE) == HORON_ERR_INVALID)
            continue;
        early += horon_wait(request, HORON_HOST_DONE, 0) != HORON_ERR_TIMEOUT;
        atomic_store(next, NULL);
    }
    return (void *)early;
}

/* No run of them ends: the other rank begins none. */
static void test_restart_wait_begins_while_another_thread_starts(void **state)
{
    horon_request_t *_Atomic next = NULL, *requests[STARTS];
    float x = 0;
    char name[16];
    void *early;
    struct duo duo;
    pthread_t waiter;
    (void)state;
    duo_make(&duo, NULL);
    assert_int_equal(pthread_create(&waiter, NULL, wait_for_starts, (void *)&next), 0);
    for (int i = 0; i < STARTS; i++) {
        snprintf(name, sizeof name, "%d", i);
        const horon_descriptor_t desc = duo_sum(name, &x);
        assert_int_equal(horon_prepare(duo.ctx[0], &desc, &requests[i]), HORON_OK);
        atomic_store(&next, requests[i]);
        for (volatile int wait = 200 + i % 300; wait > 0; wait--)
            continue; /* the other thread looks meanwhile */
        assert_int_equal(horon_start(requests[i]), HORON_OK);
        while (atomic_load(&next))
            sched_yield();
    }
    pthread_join(waiter, &early);
    assert_int_equal((intptr_t)early, 0);
    for (int i = 0; i < STARTS; i++)
        horon_release(requests[i]);
    duo_end(&duo);
}

/* ---- released ------------------------------------------------------------------------------- */

struct refused {
    _Atomic int calls;
    horon_status_t status; /* of the start in the callback */
};

static void try_to_start(void *arg, horon_request_t *request, horon_status_t status)
{
    struct refused *refused = arg;
    (void)status;
    refused->status = horon_start(request);
    refused->calls++;
}

/* A callback does not know that its request was released meanwhile. */
static void test_restart_of_a_released_request_is_refused(void **state)
{
    struct duo duo;
    struct refused refused = {0};
    float x[2] = {1, 2};
    (void)state;
    duo_make(&duo, NULL);
    horon_release(start_with_callback(&duo, &x[0], try_to_start, &refused));
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    while (refused.calls == 0)
        sched_yield();
    assert_int_equal(refused.status, HORON_ERR_INVALID);
    assert_true(x[0] == 3);
    duo_end(&duo);
}

/* ---- refused -------------------------------------------------------------------------------- */

/* A thread that cancels may have seen a start that was refused since, and so may another one: of a
 * request that is IDLE again nothing is posted, let alone twice. */
static void test_restart_that_was_refused_is_not_cancelled(void **state)
{
    struct duo duo;
    float x[3] = {1, 2, 4};
    horon_request_t *prepared;
    (void)state;
    duo_make(&duo, NULL);
    horon_request_t *first = duo_submit(duo.ctx[0], "x", &x[0]);
    const horon_descriptor_t desc = duo_sum("x", &x[2]);
    assert_int_equal(horon_prepare(duo.ctx[0], &desc, &prepared), HORON_OK);
    assert_int_equal(horon_start(prepared), HORON_ERR_DUPLICATE);
    horon_token_take(duo.ctx[0]); /* what is posted stays there */
    for (int i = 0; i < 2; i++) {
        assert_true(horon_engine_post_cancel(duo.ctx[0]->engine, prepared));
        assert_int_equal(atomic_load(&prepared->refs), 1);
    }
    horon_token_release(duo.ctx[0]);
    horon_release(prepared);
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    duo_expect_end(first, HORON_OK);
    duo_end(&duo);
}

/* A thread that cancels has seen the run before, slept, and goes on when another one has cancelled
 * the next run. */
static void test_restart_is_cancelled_whatever_an_older_cancel_says(void **state)
{
    struct duo duo;
    float x = 1;
    horon_request_t *request;
    (void)state;
    duo_make(&duo, NULL);
    const horon_descriptor_t desc = duo_sum("x", &x);
    assert_int_equal(horon_prepare(duo.ctx[0], &desc, &request), HORON_OK);
    horon_token_take(duo.ctx[0]);
    assert_int_equal(horon_start(request), HORON_OK);
    assert_int_equal(horon_cancel(request), HORON_OK);
    const uint32_t now = atomic_load(&request->state);
    atomic_store(&request->state, now - HORON_REQUEST_RUN);
    assert_true(horon_engine_post_cancel(duo.ctx[0]->engine, request));
    atomic_store(&request->state, now);
    horon_token_release(duo.ctx[0]);
    duo_expect_end(request, HORON_ERR_CANCELLED);
    duo_end(&duo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restart_in_a_callback_is_no_end_missed),
        cmocka_unit_test(test_restart_ends_a_wait_for_all_with_the_run_it_saw),
        cmocka_unit_test(test_restart_is_told_by_the_run_that_was_waited_for),
        cmocka_unit_test(test_restart_ends_a_wait_for_all_before_its_turn),
        cmocka_unit_test(test_restart_with_the_number_0_is_waited_for),
        cmocka_unit_test(test_restart_is_told_to_a_thread_that_looks_late),
        cmocka_unit_test(test_restart_wait_begins_while_another_thread_starts),
        cmocka_unit_test(test_restart_of_a_released_request_is_refused),
        cmocka_unit_test(test_restart_that_was_refused_is_not_cancelled),
        cmocka_unit_test(test_restart_is_cancelled_whatever_an_older_cancel_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
