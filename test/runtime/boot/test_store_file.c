/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs in one directory, one after another: what one leaves, whichever way it ends, does not harm
 * the next, and after a job that ended the directory is empty.
 */
#undef NDEBUG
#include "boots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOKS 60000 /* of a millisecond, for what comes at once as a rule */

static int count_files(const struct place *place, const char *ending)
{
    int count = 0;
    DIR *directory = opendir(place->directory);
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory));) {
        const size_t bytes = strlen(entry->d_name), end_bytes = strlen(ending);
        count += entry->d_name[0] != '.' && bytes >= end_bytes &&
                 strcmp(entry->d_name + bytes - end_bytes, ending) == 0;
    }
    closedir(directory);
    return count;
}

static void wait_for_file(const struct place *place, const char *ending)
{
    for (int i = 0; i < LOOKS && count_files(place, ending) == 0; i++)
        usleep(1000);
    assert_true(count_files(place, ending) > 0);
}

static void set_up(struct boots *world, int size, const struct place *place, const char *limit)
{
    boots_init(world, size, place->setting);
    boots_setting(world, "JOB_KEY=a secret");
    boots_setting(world, limit);
}

static void expect_good_job(const struct place *place)
{
    struct boots world;
    set_up(&world, 3, place, "START_TIMEOUT=50s");
    boots_join(&world);
    boots_expect_joined(&world);
    boots_part(&world);
    assert_int_equal(count_files(place, ""), 0);
}

/* @return a process that is rank @p rank of three; its status is that of joining, negated */
static pid_t start_rank(const struct place *place, int rank, const char *limit)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    static struct boots world;
    set_up(&world, 3, place, limit);
    for (int r = 0; r < 3; r++)
        world.ranks[r].absent = r != rank;
    boots_join(&world);
    _exit(-world.ranks[rank].status);
}

static void reap(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_store_file_half_started_job_does_not_harm_the_next(void **state)
{
    struct place place;
    (void)state;
    place_file(&place);
    for (int alone = 0; alone < 3; alone++) {
        struct boots world;
        set_up(&world, 3, &place, "START_TIMEOUT=100ms");
        for (int r = 0; r < 3; r++)
            world.ranks[r].absent = r != alone;
        boots_join(&world);
        assert_int_equal(world.ranks[alone].status, HORON_ERR_TIMEOUT);
        assert_non_null(strstr(world.ranks[alone].error.text, "never came"));
        assert_int_equal(count_files(&place, ""), 0);
        expect_good_job(&place);
    }
    place_end(&place);
}

/* Killed, so that nothing is tidied up; the next rank 0 does that. */
static void test_store_file_killed_job_does_not_harm_the_next(void **state)
{
    struct place place;
    (void)state;
    place_file(&place);
    for (int i = 0; i < 3; i++) {
        pid_t zero = start_rank(&place, 0, "START_TIMEOUT=50s");
        wait_for_file(&place, ".offer");
        pid_t one = start_rank(&place, 1, "START_TIMEOUT=50s");
        wait_for_file(&place, ".0.1");
        reap(zero);
        if (i < 2) { /* else it waits on, and is a part of the next job */
            reap(one);
            expect_good_job(&place);
            continue;
        }
        int status = 0;
        pid_t two = start_rank(&place, 2, "START_TIMEOUT=50s");
        zero = start_rank(&place, 0, "START_TIMEOUT=50s");
        const pid_t pids[] = {zero, one, two};
        for (int r = 0; r < 3; r++) {
            assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
            assert_int_equal(status, 0);
        }
        expect_good_job(&place);
    }
    place_end(&place);
}

/* Rank 1 dies having answered: who comes in its place answers anew, and rank 0 takes that. */
static void test_store_file_rank_that_died_can_come_again(void **state)
{
    struct place place;
    int status = 0;
    (void)state;
    place_file(&place);
    pid_t zero = start_rank(&place, 0, "START_TIMEOUT=50s");
    pid_t one = start_rank(&place, 1, "START_TIMEOUT=50s");
    wait_for_file(&place, ".0.1");
    reap(one);
    pid_t two = start_rank(&place, 2, "START_TIMEOUT=50s");
    one = start_rank(&place, 1, "START_TIMEOUT=50s");
    const pid_t pids[] = {zero, one, two};
    for (int r = 0; r < 3; r++) {
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(count_files(&place, ""), 0);
    place_end(&place);
}

/* Rank 0 is killed when rank 1 has answered it, and nobody comes in its place. */
static void test_store_file_rank_0_that_died_is_named(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    place_file(&place);
    pid_t zero = start_rank(&place, 0, "START_TIMEOUT=50s");
    wait_for_file(&place, ".offer");
    pid_t killer = fork();
    assert_true(killer >= 0);
    if (killer == 0) {
        wait_for_file(&place, ".0.1");
        _exit(kill(zero, SIGKILL));
    }
    set_up(&world, 3, &place, "START_TIMEOUT=2s");
    world.ranks[0].absent = world.ranks[2].absent = true;
    boots_join(&world);
    reap(killer);
    reap(zero);
    assert_int_equal(world.ranks[1].status, HORON_ERR_TIMEOUT);
    assert_non_null(
        strstr(world.ranks[1].error.text, "rank 0 left while joining; these never came: "));
    expect_good_job(&place);
    place_end(&place);
}

static void test_store_file_rank_that_comes_twice_is_told(void **state)
{
    struct place place;
    struct boots world;
    int status = 0;
    char who[32];
    (void)state;
    place_file(&place);
    set_up(&world, 3, &place, "START_TIMEOUT=1s");
    world.ranks[2].absent = true;
    pid_t twin = start_rank(&place, 1, "START_TIMEOUT=1s");
    boots_join(&world);
    assert_int_equal(waitpid(twin, &status, 0), twin);
    assert_true(WIFEXITED(status));
    const horon_status_t theirs = -WEXITSTATUS(status), ours = world.ranks[1].status;
    assert_true((theirs == HORON_ERR_CONFIG) != (ours == HORON_ERR_CONFIG));
    assert_true((theirs == HORON_ERR_TIMEOUT) != (ours == HORON_ERR_TIMEOUT));
    snprintf(who, sizeof who, "process %d on ", (int)twin);
    if (ours == HORON_ERR_CONFIG) {
        assert_non_null(strstr(world.ranks[1].error.text, "rank 1 came twice, as process "));
        assert_non_null(strstr(world.ranks[1].error.text, who));
    }
    assert_int_equal(world.ranks[0].status, HORON_ERR_TIMEOUT);
    assert_non_null(strstr(world.ranks[0].error.text, "these never came: rank 2"));
    place_end(&place);
}

static void test_store_file_another_size_is_told_on_both_sides(void **state)
{
    struct place place;
    struct boots world;
    (void)state;
    place_file(&place);
    boots_init(&world, 2, place.setting);
    boots_setting(&world, "JOB_KEY=a secret");
    world.ranks[1].size = 3;
    boots_join(&world);
    for (int r = 0; r < 2; r++) {
        char text[64];
        snprintf(text, sizeof text, "rank %d believes in a job of %d ranks", r, r + 2);
        assert_int_equal(world.ranks[r].status, HORON_ERR_CONFIG);
        assert_non_null(strstr(world.ranks[r].error.text, text));
    }
    assert_int_equal(count_files(&place, ""), 0);
    place_end(&place);
}

static void test_store_file_what_others_left_is_told(void **state)
{
    struct place place;
    struct boots world;
    char path[128];
    (void)state;
    place_file(&place);
    snprintf(path, sizeof path, "%s/0123456789abcdef.offer", place.directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    set_up(&world, 2, &place, "START_TIMEOUT=100ms");
    world.ranks[0].absent = true;
    boots_join(&world);
    assert_int_equal(world.ranks[1].status, HORON_ERR_TIMEOUT);
    assert_non_null(strstr(world.ranks[1].error.text, "rank 0 never came; "));
    assert_non_null(strstr(world.ranks[1].error.text, "has files of 1 other job, perhaps left"));
    assert_int_equal(count_files(&place, ".offer"), 1);
    expect_good_job(&place); /* its rank 0 tidies up */
    place_end(&place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_file_half_started_job_does_not_harm_the_next),
        cmocka_unit_test(test_store_file_killed_job_does_not_harm_the_next),
        cmocka_unit_test(test_store_file_rank_that_died_can_come_again),
        cmocka_unit_test(test_store_file_rank_0_that_died_is_named),
        cmocka_unit_test(test_store_file_rank_that_comes_twice_is_told),
        cmocka_unit_test(test_store_file_another_size_is_told_on_both_sides),
        cmocka_unit_test(test_store_file_what_others_left_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
