/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits that pass while a rank stands still. All do, as on a machine that is suspended, or in a
 * job that is stopped: when they go on, the one that looks first has to wait for the one that knows
 * which rank is missing. Or rank 0 alone does: nobody can wait for its answer.
 */
#undef NDEBUG
#include "boots.h"

#include "clock.h"

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

static uint64_t limit_ns;   /* of rank 1 */
static _Atomic int overdue; /* how often it has turned since then */

static int count_overdue(void *arg)
{
    const struct boots_rank *rank = arg;
    if (rank->rank == 1 && !limit_ns)
        limit_ns = horon_clock_deadline(horon_clock_ns(), 1000);
    overdue += rank->rank == 1 && horon_clock_ns() > limit_ns;
    return 0;
}

/* Rank 0's port takes connections, and it hears nobody until rank 1 has given up, or does not. */
static horon_status_t get_ready_late(void *arg, int number, struct horon_error *error)
{
    const struct boots_rank *rank = arg;
    const struct timespec pause = {.tv_nsec = 1000000};
    (void)error;
    while (number == 0 && !rank->world->ranks[1].ended && overdue < 3)
        nanosleep(&pause, NULL);
    return HORON_OK;
}

/* Else rank 0 would believe that it goes on. */
static void test_boot_that_reached_no_store_in_time_is_gone(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    place_tcp(&place);
    boots_init(&world, 2, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    world.ranks[0].settings[0] = "START_TIMEOUT=3s";
    world.ranks[1].settings[0] = "START_TIMEOUT=1s";
    world.interrupted = count_overdue;
    world.get_ready = get_ready_late;
    boots_join(&world);
    for (int r = 0; r < 2; r++)
        assert_int_equal(world.ranks[r].status, HORON_ERR_TIMEOUT);
    assert_non_null(strstr(world.ranks[0].error.text, "of 2 ranks, rank 1 never came"));
    assert_non_null(strstr(world.ranks[1].error.text, "was not reached"));
    place_end(&place);
}

static void test_boot_limit_is_named_once_whatever_the_text(void **state)
{
    static const char told[] = "; HORON_START_TIMEOUT is how long joining may take";
    static const size_t lengths[] = {0, 1, 900, HORON_ERROR_TEXT_BYTES - 1};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct horon_error error = {.status = HORON_ERR_TIMEOUT};
        memset(error.text, 'x', lengths[i]);
        for (int twice = 0; twice < 2; twice++) {
            horon_boot_name_limit(&error);
            const size_t bytes = strlen(error.text), kept = bytes - strlen(told);
            assert_true(kept == lengths[i] || bytes == sizeof error.text - 1);
            assert_int_equal(strspn(error.text, "x"), kept);
            assert_string_equal(error.text + kept, told);
        }
    }
    struct horon_error other = {.status = HORON_ERR_AUTH, .text = "x"};
    horon_boot_name_limit(&other);
    assert_string_equal(other.text, "x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boot_that_stood_still_names_the_missing_rank),
        cmocka_unit_test(test_boot_that_reached_no_store_in_time_is_gone),
        cmocka_unit_test(test_boot_limit_is_named_once_whatever_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
