/* SPDX-License-Identifier: Apache-2.0 */
/* The soft limit on descriptors is raised as far as needed, and what the hard one forbids is said.
 */
#undef NDEBUG
#include "boots.h"
#include "fds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE 6

static void set_limits(rlim_t soft, rlim_t hard)
{
    const struct rlimit limit = {soft, hard};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static rlim_t soft_limit(void)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit.rlim_cur;
}

/* In a process of its own: a hard limit does not come back. */
static void in_child(void (*check)(void))
{
    int status = 0;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        check();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define CHECK(truth)                                                                               \
    do {                                                                                           \
        if (!(truth)) {                                                                            \
            fprintf(stderr, "line %d: not " #truth "\n", __LINE__);                                \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void raise_and_run_out(void)
{
    struct horon_error error = {0};
    const int used = count_fds() - 3; /* ".", ".." and the one that looks */
    char text[128];
    set_limits((rlim_t)used + 10, (rlim_t)used + 40);
    CHECK(horon_descriptors_need(10, "a test", &error) == HORON_OK);
    CHECK(soft_limit() == (rlim_t)used + 10); /* there was room */
    CHECK(horon_descriptors_need(25, "a test", &error) == HORON_OK);
    CHECK(soft_limit() == (rlim_t)used + 25);
    CHECK(horon_descriptors_need(41, "a test", &error) == HORON_ERR_SYSTEM);
    snprintf(
        text, sizeof text,
        "may have %d descriptors at most (ulimit -Hn), %d are in use, and a test needs 41 more",
        used + 40, used);
    CHECK(strstr(error.text, text));
    while (dup(0) >= 0)
        ;
    CHECK(horon_descriptors_need(1, "a test", &error) == HORON_ERR_SYSTEM);
    snprintf(text, sizeof text, "may have %d descriptors at most (ulimit -Hn), %d are in use",
             used + 40, used + 40);
    CHECK(strstr(error.text, text));
}

static void test_descriptors_are_raised_to_what_is_needed(void **state)
{
    (void)state;
    in_child(raise_and_run_out);
}

/* Ranks in processes of their own, of which one may have too few descriptors. */
static void one_rank(int rank, int limit_of, rlim_t hard, const struct place *place)
{
    static struct boots world;
    boots_init(&world, SIZE, place->setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_setting(&world, "START_TIMEOUT=50s");
    for (int r = 0; r < SIZE; r++)
        world.ranks[r].absent = r != rank;
    if (rank == limit_of)
        set_limits(hard, hard);
    boots_join(&world);
    CHECK(world.ranks[rank].status == HORON_ERR_SYSTEM);
    CHECK(strstr(world.ranks[rank].error.text, "descriptors at most (ulimit -Hn), "));
    CHECK(rank == limit_of || strstr(world.ranks[rank].error.text, "rank 3"));
}

static void test_descriptors_that_lack_are_told_to_all(void **state)
{
    struct place place;
    pid_t pids[SIZE];
    int status = 0;
    (void)state;
    place_file(&place);
    for (int rank = 0; rank < SIZE; rank++) {
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0) {
            one_rank(rank, 3, (rlim_t)count_fds() + 8, &place);
            _exit(0);
        }
    }
    for (int rank = 0; rank < SIZE; rank++) {
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        assert_int_equal(status, 0);
    }
    place_end(&place);
}

/* It serves the store, and is alone: it need not wait for a connection to tell itself. */
static void lack_on_rank_0(int room, const struct place *place)
{
    static struct boots world;
    boots_init(&world, 2, place->setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_setting(&world, "START_TIMEOUT=50s");
    world.ranks[1].absent = true;
    set_limits((rlim_t)(count_fds() - 3 + room), (rlim_t)(count_fds() - 3 + room));
    boots_join(&world);
    if (world.ranks[0].status != HORON_ERR_SYSTEM)
        fprintf(stderr, "room for %d: %s\n", room, world.ranks[0].error.text);
    CHECK(world.ranks[0].status == HORON_ERR_SYSTEM);
}

static void test_descriptors_that_lack_on_rank_0_end_joining_at_once(void **state)
{
    enum { ROOMS = 15 };
    struct place places[ROOMS];
    pid_t pids[ROOMS];
    int status = 0;
    (void)state;
    for (int room = 0; room < ROOMS; room++) {
        place_tcp(&places[room]);
        pids[room] = fork();
        assert_true(pids[room] >= 0);
        if (pids[room] == 0) {
            lack_on_rank_0(room, &places[room]);
            _exit(0);
        }
    }
    for (int room = 0; room < ROOMS; room++) {
        assert_int_equal(waitpid(pids[room], &status, 0), pids[room]);
        assert_int_equal(status, 0);
        place_end(&places[room]);
    }
}

static void join_with_low_soft_limit(int rank, int size, int room, const struct place *place)
{
    struct rlimit limit;
    static struct boots world;
    boots_init(&world, size, place->setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_setting(&world, "START_TIMEOUT=50s");
    for (int r = 0; r < size; r++)
        world.ranks[r].absent = r != rank;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    set_limits((rlim_t)(count_fds() - 3 + room), limit.rlim_max);
    boots_join(&world);
    if (world.ranks[rank].status != HORON_OK)
        fprintf(stderr, "room for %d: %s\n", room, world.ranks[rank].error.text);
    CHECK(world.ranks[rank].status == HORON_OK);
}

static void all_join_with_low_soft_limit(int size, int room)
{
    struct place place;
    pid_t pids[BOOT_RANKS_MAX];
    int status = 0;
    place_tcp(&place);
    for (int rank = 0; rank < size; rank++) {
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0) {
            join_with_low_soft_limit(rank, size, room, &place);
            _exit(0);
        }
    }
    for (int rank = 0; rank < size; rank++) {
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        assert_int_equal(status, 0);
    }
    place_end(&place);
}

static void test_descriptors_are_raised_before_the_first_is_opened(void **state)
{
    (void)state;
    for (int room = 0; room < 3; room++)
        all_join_with_low_soft_limit(2, room);
}

/* The leader, rank 0, holds twice as many of each rank as the others do. */
static void test_descriptors_of_a_full_host_are_raised_on_all_its_ranks(void **state)
{
    (void)state;
    all_join_with_low_soft_limit(12, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptors_are_raised_to_what_is_needed),
        cmocka_unit_test(test_descriptors_are_raised_before_the_first_is_opened),
        cmocka_unit_test(test_descriptors_of_a_full_host_are_raised_on_all_its_ranks),
        cmocka_unit_test(test_descriptors_that_lack_are_told_to_all),
        cmocka_unit_test(test_descriptors_that_lack_on_rank_0_end_joining_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
