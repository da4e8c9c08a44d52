/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ranks stand still while they join, as on a machine that is suspended, or in a job that is
 * stopped: when they go on, every limit has passed. The one that looks first has to wait for the
 * one that knows which rank is missing.
 */
#undef NDEBUG
#include "boots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define STILL_MS 3500 /* longer than the limit, and than anybody waits for an answer */
#define HANG_S 20

static sem_t goes_on; /* rank 0 */
static _Atomic bool stood[2];

static void wait_to_go_on(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += HANG_S;
    while (sem_timedwait(&goes_on, &end) != 0 && errno == EINTR)
        ;
}

/* Once each, when both have come to the store; rank 1 goes on first. */
static int stand_still(void *arg)
{
    const struct boots_rank *rank = arg;
    struct timespec still = {.tv_sec = STILL_MS / 1000, .tv_nsec = STILL_MS % 1000 * 1000000};
    if (rank->world->ranks[0].arrived < 2 || atomic_exchange(&stood[rank->rank], true))
        return 0;
    if (rank->rank == 0) {
        wait_to_go_on();
        return 0;
    }
    while (nanosleep(&still, &still) != 0) /* it is the time itself that passes */
        ;
    sem_post(&goes_on);
    return 0;
}

static void test_boot_that_stood_still_names_the_missing_rank(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    assert_int_equal(sem_init(&goes_on, 0, 0), 0);
    place_file(&place);
    boots_init(&world, 3, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_setting(&world, "START_TIMEOUT=2s");
    world.ranks[2].absent = true;
    world.interrupted = stand_still;
    boots_join(&world);
    assert_true(stood[1]);
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT, "of 3 ranks, rank 2 never came");
    place_end(&place);
    sem_destroy(&goes_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boot_that_stood_still_names_the_missing_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
