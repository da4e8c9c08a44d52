/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI is shut once what was given up is in its hands: whatever call another thread is in by then
 * has returned, or does not for a very long time, by a clock that is the test's; and there are no
 * more. It is for good, so the tests stand in an order.
 */
#undef NDEBUG
#include "backend/mpi_shut.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

static _Atomic int now_s, step_s; /* step_s: what passes from one look at the clock to the next */
static _Atomic int looks = 2;     /* at the clock, since the last test has begun */
static _Atomic bool has_left;
static sem_t waits; /* the thread that shuts MPI does, or is through */

int clock_gettime(clockid_t clock, struct timespec *time) /* the C library's comes behind it */
{
    (void)clock;
    if (atomic_fetch_add(&looks, 1) == 1) /* the first one is behind the begin */
        sem_post(&waits);
    *time = (struct timespec){.tv_sec = atomic_fetch_add(&now_s, step_s)};
    return 0;
}

static horon_status_t enter(void)
{
    struct horon_error error;
    return horon_mpi_meet_enter(false, &error);
}

static void test_mpi_shut_before_that_ranks_meet(void **state)
{
    struct horon_error error;
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(enter(), HORON_OK);
        horon_mpi_meet_leave();
    }
    assert_int_equal(horon_mpi_check_shut(&error), HORON_OK);
    assert_false(horon_mpi_is_shut());
}

/* Of an MPI that lets one thread at a time call it. */
static void test_mpi_shut_holds_off_calls_that_must_be_alone(void **state)
{
    struct horon_error error;
    (void)state;
    step_s = 1; /* so that each limit is over soon */
    horon_mpi_meet_hold();
    assert_int_equal(enter(), HORON_OK);
    horon_mpi_meet_leave();
    assert_int_equal(horon_mpi_meet_enter(true, &error), HORON_ERR_UNSUPPORTED);
    horon_mpi_meet_release();
    assert_int_equal(horon_mpi_meet_enter(true, &error), HORON_OK);
    const int before = looks;
    horon_mpi_meet_hold(); /* it waits for that one, by the clock */
    assert_true(looks > before);
    horon_mpi_meet_leave();
    horon_mpi_meet_release();
    step_s = 0;
}

/* As where MPI ends the process from within it. The call goes on in the next test. */
static void test_mpi_shut_does_not_wait_for_ever_for_a_call(void **state)
{
    (void)state;
    assert_int_equal(enter(), HORON_OK);
    step_s = 1;
    horon_mpi_shut();
    step_s = 0;
    assert_true(horon_mpi_is_shut());
    assert_int_equal(enter(), HORON_ERR_UNSUPPORTED);
}

static void *shut(void *arg)
{
    horon_mpi_shut();
    const bool after_call = has_left;
    sem_post(&waits);
    return after_call ? arg : NULL;
}

static void test_mpi_shut_waits_for_a_call(void **state)
{
    pthread_t thread;
    void *after_call = NULL;
    (void)state;
    sem_init(&waits, 0, 0);
    looks = 0;
    assert_int_equal(pthread_create(&thread, NULL, shut, &waits), 0);
    while (sem_wait(&waits) != 0)
        continue; /* a signal */
    has_left = true;
    horon_mpi_meet_leave();
    pthread_join(thread, &after_call);
    assert_non_null(after_call);
    assert_int_equal(enter(), HORON_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mpi_shut_before_that_ranks_meet),
        cmocka_unit_test(test_mpi_shut_holds_off_calls_that_must_be_alone),
        cmocka_unit_test(test_mpi_shut_does_not_wait_for_ever_for_a_call),
        cmocka_unit_test(test_mpi_shut_waits_for_a_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
