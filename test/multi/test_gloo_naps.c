/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a rank waits in a job among Gloo's ranks: beside horons it yields its core, beside others it
 * naps, at once if ranks are more than cores. Two ranks, each a thread, are told how many cores
 * there are; the second begins once it has seen the first one wait.
 */
#undef NDEBUG
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "told_cores.h"

#include <assert.h>
#include <horon/horon.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define WAITS 3 /* that the other one sees */

int __real_sched_yield(void);
int __wrap_sched_yield(void);
int __real_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit,
                 const sigset_t *set);
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit,
                 const sigset_t *set);

struct rank {
    pthread_t thread;
    int rank;
    const char *const *settings;
};

static bool observes_naps;             /* alone */
static _Thread_local int yields, naps; /* of this thread; ... */
static _Thread_local sem_t *observer;  /* ... which posts this at the last of either */
static int first_yields, first_naps;   /* of rank 0, once it has ended */
static sem_t has_waited;

static void note_wait(int number)
{
    if (number == WAITS && observer)
        sem_post(observer);
}

int __wrap_sched_yield(void)
{
    ++yields;
    if (!observes_naps)
        note_wait(yields);
    return __real_sched_yield();
}

int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit,
                 const sigset_t *set)
{
    note_wait(++naps);
    return __real_ppoll(fds, count, limit, set);
}

static void meet(horon_context_t *ctx)
{
    char why[HORON_ERROR_TEXT_BYTES];
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    barrier.flags = HORON_IN_ORDER;
    if (horon_run(ctx, &barrier, -1, why, sizeof why) == HORON_OK)
        return;
    fprintf(stderr, "%s\n", why);
    abort();
}

static void *run(void *arg)
{
    const struct rank *rank = arg;
    horon_context_t *ctx;
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = rank->rank;
    options.size = 2;
    options.settings = rank->settings;
    assert(horon_context_create(&options, &ctx, NULL, 0) == HORON_OK);
    meet(ctx); /* each knows what the other is */
    if (rank->rank == 0) {
        yields = naps = 0;
        observer = &has_waited;
        meet(ctx);
        observer = NULL;
        first_yields = yields;
        first_naps = naps;
    } else {
        sem_wait(&has_waited);
        meet(ctx);
    }
    horon_context_destroy(ctx);
    return NULL;
}

static void run_both(long told, const char *const *settings)
{
    struct rank ranks[2];
    told_cores = told;
    assert_int_equal(sem_init(&has_waited, 0, 0), 0);
    for (int i = 0; i < 2; i++) {
        ranks[i] = (struct rank){.rank = i, .settings = settings};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(ranks[i].thread, NULL);
    sem_destroy(&has_waited);
}

static void test_gloo_rank_beside_horons_yields(void **state)
{
    static const char *const settings[] = {"GLOO_STORE=hash:yields", "YIELD_US=10000000", NULL};
    (void)state;
    run_both(1, settings);
    assert_true(first_yields >= WAITS);
    assert_int_equal(first_naps, 0);
}

static void test_gloo_rank_beside_others_naps_at_once_on_few_cores(void **state)
{
    static const char *const settings[] = {"GLOO_STORE=hash:naps", "YIELD_US=10000000",
                                           "GLOO_NATIVE=0", NULL};
    (void)state;
    run_both(1, settings);
    assert_true(first_naps >= WAITS);
    assert_int_equal(first_yields, 0);
}

/* Their threads may be more than the cores, though the ranks are not. */
static void test_gloo_rank_beside_others_naps_in_the_end(void **state)
{
    static const char *const settings[] = {"GLOO_STORE=hash:cores", "YIELD_US=10000000",
                                           "GLOO_NATIVE=0", NULL};
    (void)state;
    observes_naps = true;
    run_both(2, settings);
    observes_naps = false;
    assert_true(first_naps >= WAITS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_rank_beside_horons_yields),
        cmocka_unit_test(test_gloo_rank_beside_others_naps_at_once_on_few_cores),
        cmocka_unit_test(test_gloo_rank_beside_others_naps_in_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
