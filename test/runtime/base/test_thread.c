/* SPDX-License-Identifier: Apache-2.0 */
/* What a thread of ours finds, and what its start leaves. */
#undef NDEBUG

#include "thread.h"

#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static sem_t looked;
static int open_to;

static void *look(void *arg)
{
    sigset_t mask;
    const int *const wanted = arg;
    open_to = 0;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int i = 0; wanted[i]; i++)
        open_to += !sigismember(&mask, wanted[i]);
    sem_post(&looked);
    return arg;
}

static void test_threads_take_no_signals_of_the_programs(void **state)
{
    static int signals[] = {SIGINT, SIGTERM, SIGPIPE, SIGUSR1, SIGXFSZ, SIGCHLD, 0};
    sigset_t before, after;
    pthread_t thread;
    void *end = NULL;
    (void)state;
    sem_init(&looked, 0, 0);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(horon_thread_start(&thread, look, signals), 0);
    assert_int_equal(pthread_join(thread, &end), 0);
    assert_ptr_equal(end, signals);
    assert_int_equal(open_to, 0);
    assert_int_equal(sem_trywait(&looked), 0);
    assert_int_equal(horon_thread_start(NULL, look, signals), 0);
    while (sem_wait(&looked) != 0) {}
    assert_int_equal(open_to, 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int i = 0; signals[i]; i++)
        assert_int_equal(sigismember(&after, signals[i]), sigismember(&before, signals[i]));
    sem_destroy(&looked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_take_no_signals_of_the_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
