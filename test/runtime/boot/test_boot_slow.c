/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks say while they still wait: which of them lacks, or what stands in the way, once, by
 * the one that knows. The job joins all the same when that comes.
 */
#undef NDEBUG
#include "boots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOW_NS 1000000u

/* @param waits, why of the line, before and behind how long it has lasted */
static void expect_told(const struct boots_rank *rank, const char *waits, const char *why)
{
    assert_true(rank->slow > 0);
    if (!strstr(rank->waits, waits) || !strstr(rank->waits, why))
        fail_msg("'%s' lacks '%s' or '%s'", rank->waits, waits, why);
}

/* The last rank comes once another one has said that it lacks. */
static horon_status_t come_once_missed(void *arg, int number, struct horon_error *error)
{
    struct boots_rank *rank = arg;
    (void)error;
    if (number == rank->world->size - 1)
        while (rank->world->ranks[0].slow == 0)
            sched_yield();
    return HORON_OK;
}

static void set_up_at(struct boots *world, int size, const struct place *place)
{
    boots_init(world, size, place->setting);
    world->slow_ns = SLOW_NS;
}

static void set_up(struct boots *world, int size, struct place *place)
{
    place_tcp(place);
    set_up_at(world, size, place);
}

static void test_boot_slow_rank_is_named_by_the_one_that_serves(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    set_up(&world, 2, &place);
    world.get_ready = come_once_missed;
    boots_join(&world);
    boots_expect_joined(&world);
    expect_told(&world.ranks[0], "still waiting for ranks to join, the last came ",
                " s ago: of 2 ranks, rank 1 did not come yet");
    boots_part(&world);
    place_end(&place);
}

/* Rank 0 is the last, and serves: the others have nobody else to ask. */
static horon_status_t serve_once_missed(void *arg, int number, struct horon_error *error)
{
    struct boots_rank *rank = arg;
    (void)error;
    for (int r = 1; number == 0 && r < rank->world->size; r++)
        while (rank->world->ranks[r].slow == 0)
            sched_yield();
    return HORON_OK;
}

static void test_boot_slow_store_is_told_by_each(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    set_up(&world, 3, &place);
    world.get_ready = serve_once_missed;
    boots_join(&world);
    boots_expect_joined(&world);
    for (int r = 1; r < 3; r++)
        expect_told(&world.ranks[r], "still meeting the other ranks, after ",
                    " s: the store at tcp://127.0.0.1:");
    boots_part(&world);
    place_end(&place);
}

static int has_told(void *arg)
{
    const struct boots_rank *rank = arg;
    return rank->slow > 0;
}

/* It may come yet: only when joining has failed it never came. */
static void test_boot_slow_file_of_rank_0_is_told(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    place_file(&place);
    set_up_at(&world, 2, &place);
    world.ranks[0].absent = true;
    world.interrupted = has_told;
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_CANCELLED, "interrupted");
    expect_told(&world.ranks[1], "still meeting the other ranks, after ",
                " s: of 2 ranks, rank 0 has not come yet: there is no /tmp/horon-test-");
    place_end(&place);
}

static void test_boot_slow_store_of_gloo_is_told(void **state)
{
    struct boots world;
    char setting[64];
    (void)state;
    snprintf(setting, sizeof setting, "GLOO_STORE=tcp://127.0.0.1:%d", free_port());
    boots_init(&world, 2, setting);
    world.slow_ns = SLOW_NS;
    world.ranks[0].absent = true;
    world.interrupted = has_told;
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_CANCELLED, "interrupted");
    expect_told(&world.ranks[1],
                "still waiting for the Gloo store tcp://127.0.0.1:", " s: 127.0.0.1:");
}

/* A library that is not through until the last rank has said that it waits. */
static horon_status_t begin_once_missed(void *arg, const struct horon_launcher *launcher, int size,
                                        struct horon_error *error)
{
    const struct boots_rank *rank = arg;
    (void)launcher;
    (void)size;
    if (rank->world->ranks[rank->world->size - 1].slow > 0)
        return HORON_OK;
    horon_error_set(error, HORON_ERR_TIMEOUT, "a library is not through");
    return HORON_IN_PROGRESS;
}

/* A rank says one thing that it waits for: on a busy machine it was another one, and the next job
 * has more time to come so far. */
static void test_boot_slow_beginning_is_told(void **state)
{
    struct place place;
    struct boots world;
    bool told = false;
    (void)state;
    for (int i = 0; i < 12 && !told; i++) {
        set_up(&world, 2, &place);
        world.slow_ns <<= i;
        world.prepare = begin_once_missed;
        boots_join(&world);
        boots_expect_joined(&world);
        told = strstr(world.ranks[1].waits, "beginning what all ranks begin together, after ") &&
               strstr(world.ranks[1].waits, " s: a library is not through");
        boots_part(&world);
        place_end(&place);
    }
    assert_true(told);
}

/* In place of the system's, which it calls: PMIx's library is not there. */
void *dlopen(const char *file, int flags)
{
    void *(*system_one)(const char *, int);
    void *address = dlsym(RTLD_NEXT, "dlopen");
    memcpy(&system_one, &address, sizeof address);
    return system_one(file && strcmp(file, "libpmix.so.2") == 0 ? "/nowhere/libpmix.so" : file,
                      flags);
}

/* MPI is begun for a rank of Open MPI's, to tell what PMIx would; but the program's is not there.
 */
static void test_boot_slow_way_to_meet_is_told(void **state)
{
    static const char *const of_open_mpi[][2] = {
        {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
        {"PMIX_NAMESPACE", "a job"},         {"PMIX_RANK", "1"}};
    struct boots world;
    (void)state;
    boots_init(&world, 1, "STORE=");
    world.slow_ns = SLOW_NS;
    world.prepare = begin_once_missed;
    world.ranks[0].rank = world.ranks[0].size = -1;
    boots_join_told(&world, of_open_mpi, sizeof of_open_mpi / sizeof of_open_mpi[0]);
    boots_expect_all_fail(&world, HORON_ERR_CONFIG, "would be told by PMIx");
    expect_told(&world.ranks[0], "still beginning what all ranks begin together, after ",
                " s: a library is not through");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boot_slow_rank_is_named_by_the_one_that_serves),
        cmocka_unit_test(test_boot_slow_store_is_told_by_each),
        cmocka_unit_test(test_boot_slow_file_of_rank_0_is_told),
        cmocka_unit_test(test_boot_slow_store_of_gloo_is_told),
        cmocka_unit_test(test_boot_slow_beginning_is_told),
        cmocka_unit_test(test_boot_slow_way_to_meet_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
