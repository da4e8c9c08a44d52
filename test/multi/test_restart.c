/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request that is started again by its own callback, while others wait for it: whoever waits
 * hears of the run it waited for, however soon the next one began. The waiter is known to wait by
 * the request's state word.
 */
#undef NDEBUG
#include "engine/request.h"
#include "multi/duo.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
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

/* The other rank begins one run only, so that the second one cannot end before the waiter looks. */
static void wait_while_it_is_restarted(const char *shm)
{
    const char *const settings[] = {shm, "SPIN_US=0", "YIELD_US=0", NULL};
    _Atomic int restarts = 0;
    float x[2] = {0};
    struct duo duo;
    horon_request_t *request;
    duo_make(&duo, settings);
    horon_descriptor_t desc = duo_sum("x", &x[0]);
    desc.callback = start_again;
    desc.callback_arg = &restarts;
    assert_int_equal(horon_prepare(duo.ctx[0], &desc, &request), HORON_OK);
    assert_int_equal(horon_start(request), HORON_OK);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t waiter;
        void *status;
        atomic_store(&restarts, 1);
        assert_int_equal(pthread_create(&waiter, NULL, wait_for_a_run, request), 0);
        while (!(atomic_load(&request->state) & HORON_REQUEST_WAITED))
            sched_yield();
        duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
        pthread_join(waiter, &status);
        assert_int_equal((intptr_t)status, HORON_OK);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restart_in_a_callback_is_no_end_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
