/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step in which all ranks begin what they begin together, as a library that waits for all of
 * them: here it is one that never gets through, or on some ranks alone.
 */
#undef NDEBUG
#include "boots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, ASKED = 5 };

#define DOING "while beginning what all ranks begin together"

static _Atomic int asked[RANKS];
static int chosen;

static horon_status_t wait_for_ever(void *arg, const struct horon_launcher *launcher, int size,
                                    struct horon_error *error)
{
    const struct boots_rank *rank = arg;
    assert_int_equal(size, RANKS);
    assert_non_null(launcher);
    asked[rank->rank]++;
    return horon_error_set(error, HORON_IN_PROGRESS, "the library waits");
}

static horon_status_t get_through_later(void *arg, const struct horon_launcher *launcher, int size,
                                        struct horon_error *error)
{
    const struct boots_rank *rank = arg;
    const horon_status_t status = wait_for_ever(arg, launcher, size, error);
    return asked[rank->rank] == ASKED ? HORON_OK : status;
}

/* Of the one rank that does not. */
static horon_status_t get_through_but_one(void *arg, const struct horon_launcher *launcher,
                                          int size, struct horon_error *error)
{
    const struct boots_rank *rank = arg;
    return rank->rank == chosen ? wait_for_ever(arg, launcher, size, error) : HORON_OK;
}

/* Once the others wait. */
static horon_status_t fail_on_one(void *arg, const struct horon_launcher *launcher, int size,
                                  struct horon_error *error)
{
    const struct boots_rank *rank = arg;
    const horon_status_t status = wait_for_ever(arg, launcher, size, error);
    bool all = true;
    for (int r = 0; r < RANKS; r++)
        all = all && asked[r] > 0;
    if (rank->rank != chosen || !all)
        return status;
    return horon_error_set(error, HORON_ERR_CONFIG, "there is no such library");
}

/* As if it were stopped. */
static horon_status_t stand_still_on_one(void *arg, const struct horon_launcher *launcher, int size,
                                         struct horon_error *error)
{
    const struct boots_rank *rank = arg;
    while (rank->rank == chosen && !(rank->world->ranks[0].ended && rank->world->ranks[1].ended))
        usleep(1000);
    return wait_for_ever(arg, launcher, size, error);
}

/* In a process of its own. */
static horon_status_t die_on_one(void *arg, const struct horon_launcher *launcher, int size,
                                 struct horon_error *error)
{
    const struct boots_rank *rank = arg;
    if (rank->rank == chosen)
        raise(SIGKILL);
    return wait_for_ever(arg, launcher, size, error);
}

static int interrupt_one(void *arg)
{
    const struct boots_rank *rank = arg;
    return rank->rank == chosen && asked[chosen] > 0;
}

static void begin(struct place *place, struct boots *world)
{
    place_tcp(place);
    boots_init(world, RANKS, place->setting);
    boots_setting(world, "JOB_KEY=a secret of these tests");
    memset((void *)asked, 0, sizeof asked);
}

static void test_boot_together_is_asked_until_it_is_through(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    begin(&place, &world);
    world.prepare = get_through_later;
    boots_join(&world);
    boots_expect_joined(&world);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(asked[r], ASKED);
    boots_part(&world);
}

static void test_boot_together_of_one_is_not_asked(void **state)
{
    struct boots world;
    (void)state;
    boots_init(&world, 1, "STORE=");
    world.prepare = wait_for_ever;
    boots_join(&world);
    boots_expect_joined(&world);
    boots_part(&world);
}

static void test_boot_together_failure_of_one_is_that_of_all(void **state)
{
    (void)state;
    for (chosen = 0; chosen < 2; chosen++) {
        struct place place;
        struct boots world;
        char name[32];
        const int fds = count_fds();
        begin(&place, &world);
        world.prepare = fail_on_one;
        boots_join(&world);
        boots_expect_all_fail(&world, HORON_ERR_CONFIG, "there is no such library");
        snprintf(name, sizeof name, "rank %d (", chosen);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(world.ranks[r].error.blame.rank, chosen);
            assert_true(r == chosen || strstr(world.ranks[r].error.text, name));
        }
        assert_int_equal(count_fds(), fds);
    }
}

static void test_boot_together_rank_that_dies_is_named(void **state)
{
    (void)state;
    for (chosen = 0; chosen < 2; chosen++) { /* rank 0 serves the store */
        struct place place;
        struct boots world;
        char name[32];
        int status = 0;
        begin(&place, &world);
        world.prepare = die_on_one;
        fflush(NULL);
        const pid_t pid = fork();
        assert_true(pid >= 0);
        for (int r = 0; r < RANKS; r++)
            world.ranks[r].absent = (r == chosen) != (pid == 0);
        boots_join(&world);
        if (pid == 0)
            _exit(1);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        snprintf(name, sizeof name, "rank %d on ", chosen);
        boots_expect_all_fail(&world, HORON_ERR_PEER_LOST, DOING);
        boots_expect_all_fail(&world, HORON_ERR_PEER_LOST, name);
        for (int r = 0; r < RANKS; r++)
            assert_true(r == chosen || world.ranks[r].error.blame.rank == chosen);
    }
}

static void test_boot_together_has_the_limit_of_joining(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    begin(&place, &world);
    world.limit_ms = 1000;
    world.prepare = wait_for_ever;
    boots_join_until(&world, DOING);
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT, DOING ": the library waits");
    begin(&place, &world);
    world.limit_ms = 1000;
    world.prepare = get_through_but_one;
    chosen = 2;
    boots_join_until(&world, DOING);
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT, DOING ": the library waits");
    assert_non_null(strstr(world.ranks[0].error.text, "rank 2 ("));
}

/* They may have a job of their own, in which they begin it later. */
static void test_boot_together_ranks_that_are_left_out_are_told(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    begin(&place, &world);
    world.limit_ms = 1000;
    boots_setting(&world, "RANKS=0-2");
    for (int r = 0; r < RANKS; r++)
        world.ranks[r].size = RANKS + 2;
    world.prepare = wait_for_ever;
    boots_join_until(&world, DOING);
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT,
                          DOING ": the library waits; HORON_RANKS leaves out 2 that");
}

static void test_boot_together_rank_that_stands_still_is_named(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    begin(&place, &world);
    world.limit_ms = 1000;
    world.prepare = stand_still_on_one;
    chosen = 2;
    boots_join_until(&world, "came but went no further");
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT, "came but went no further");
}

static void test_boot_together_is_interrupted(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    begin(&place, &world);
    world.prepare = wait_for_ever;
    world.interrupted = interrupt_one;
    chosen = 1;
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_CANCELLED, "joining was interrupted " DOING);
    assert_non_null(strstr(world.ranks[0].error.text, "rank 1 ("));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boot_together_is_asked_until_it_is_through),
        cmocka_unit_test(test_boot_together_of_one_is_not_asked),
        cmocka_unit_test(test_boot_together_failure_of_one_is_that_of_all),
        cmocka_unit_test(test_boot_together_rank_that_dies_is_named),
        cmocka_unit_test(test_boot_together_has_the_limit_of_joining),
        cmocka_unit_test(test_boot_together_ranks_that_are_left_out_are_told),
        cmocka_unit_test(test_boot_together_rank_that_stands_still_is_named),
        cmocka_unit_test(test_boot_together_is_interrupted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
