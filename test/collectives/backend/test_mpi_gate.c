/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI_Finalize() at the gate, by an MPI that is a fake and a clock that the test moves: what was
 * submitted is waited for, and a call that is being made; what does not land is not; then no call
 * is made any more.
 */
#undef NDEBUG
#include "backend/mpi_gate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

static _Atomic uint64_t clock_s = 1;
static int (*ends)(horon_mpi_handle comm, int key, void *value, void *extra);
static _Atomic bool is_through;
static _Atomic unsigned pauses;

int nanosleep(const struct timespec *time, struct timespec *left) /* the C library's is behind it */
{
    (void)time, (void)left;
    pauses++;
    return sched_yield();
}

/* Until the thread that ends MPI has surely looked at all that there is now. */
static void let_it_look(void)
{
    for (const unsigned before = pauses; pauses - before < 3;)
        sched_yield();
}

int clock_gettime(clockid_t clock, struct timespec *time) /* likewise */
{
    (void)clock;
    *time = (struct timespec){.tv_sec = (time_t)atomic_load(&clock_s)};
    return 0;
}

static int create_keyval(int (*copies)(horon_mpi_handle comm, int key, void *extra, void *value,
                                       void *copy, int *flag),
                         int (*deletes)(horon_mpi_handle comm, int key, void *value, void *extra),
                         int *key, void *extra)
{
    int flag = 1;
    assert_int_equal(copies(0, 0, extra, NULL, NULL, &flag), HORON_MPI_SUCCESS);
    assert_int_equal(flag, 0);
    ends = deletes;
    *key = 7;
    return HORON_MPI_SUCCESS;
}

static int set_attr(horon_mpi_handle comm, int key, void *value)
{
    assert_int_equal(comm, 5);
    assert_int_equal(key, 7);
    assert_non_null(value);
    return HORON_MPI_SUCCESS;
}

static void *finalize(void *arg)
{
    (void)arg;
    ends(5, 7, NULL, NULL);
    is_through = true;
    return NULL;
}

static _Atomic int told;

static void count_line(void *arg, horon_log_level_t level, const char *text)
{
    (void)level;
    assert_non_null(strstr(text, "MPI_Finalize() waits for operations"));
    ++*(_Atomic int *)arg;
}

static void test_mpi_gate_waits_for_what_flies_and_for_a_call(void **state)
{
    const struct horon_mpi_library library = {
        .self = 5, .mpi = {.comm_create_keyval = create_keyval, .comm_set_attr = set_attr}};
    struct horon_error error = {0};
    _Atomic uint32_t posted = 3, landed = 1, in_flight = 0;
    const struct horon_log log = {.fn = count_line, .arg = &told, .level = HORON_LOG_WARN};
    pthread_t thread;
    (void)state;
    assert_int_equal(horon_mpi_gate_make(&library, &error), HORON_OK);
    assert_int_equal(horon_mpi_gate_make(&library, &error), HORON_OK);
    horon_mpi_gate_await(&posted, &landed, &in_flight, &log);
    assert_true(horon_mpi_gate_enter());
    assert_int_equal(pthread_create(&thread, NULL, finalize, NULL), 0);
    let_it_look();
    assert_false(horon_mpi_gate_is_closed());
    assert_int_equal(told, 0);
    clock_s += 9;
    landed = 2;
    let_it_look();
    clock_s += 9;
    in_flight = 1; /* nobody has counted it */
    landed = 3;
    let_it_look();
    clock_s += 9;
    let_it_look();
    assert_false(horon_mpi_gate_is_closed());
    assert_false(is_through);
    clock_s += 9;
    while (!horon_mpi_gate_is_closed())
        sched_yield();
    assert_false(is_through); /* a call is being made */
    horon_mpi_gate_leave();
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(is_through);
    assert_int_equal(told, 1);
    assert_false(horon_mpi_gate_enter());
    horon_mpi_gate_await(NULL, NULL, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mpi_gate_waits_for_what_flies_and_for_a_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
