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
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_MS 60000 /* for what comes at once as a rule */

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

static bool is_written(const char *path)
{
    char text[4096];
    FILE *file = fopen(path, "r");
    const size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[bytes] = 0;
    if (file)
        fclose(file);
    return strstr(text, "\nprocess ") && text[bytes - 1] == '\n';
}

/* It is locked by then, too. */
static void wait_for_written(const struct place *place)
{
    char path[128], events[4096];
    struct pollfd changes = {.fd = inotify_init1(IN_CLOEXEC), .events = POLLIN};
    assert_true(inotify_add_watch(changes.fd, place->directory, IN_CREATE | IN_MODIFY) >= 0);
    snprintf(path, sizeof path, "%s/horon.store", place->directory);
    while (!is_written(path)) {
        if (poll(&changes, 1, LIMIT_MS) != 1)
            fail_msg("nobody has written %s", path);
        assert_true(read(changes.fd, events, sizeof events) > 0);
    }
    close(changes.fd);
}

static void set_up(struct boots *world, int size, const struct place *place, const char *limit)
{
    boots_init(world, size, place->setting);
    boots_setting(world, "JOB_KEY=a secret of these tests");
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

static void test_boot_file_half_started_job_does_not_harm_the_next(void **state)
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

/* Killed, so that the file stays, though unlocked; the next rank 0 writes it anew. */
static void test_boot_file_of_a_killed_job_does_not_harm_the_next(void **state)
{
    struct place place;
    (void)state;
    place_file(&place);
    pid_t zero = start_rank(&place, 0, "START_TIMEOUT=50s");
    wait_for_written(&place);
    reap(zero);
    assert_int_equal(count_files(&place, ""), 1);
    expect_good_job(&place);
    place_end(&place);
}

/* Ranks that came first, to a file of before, join the rank 0 that comes last. */
static void test_boot_file_of_before_is_not_followed(void **state)
{
    struct place place;
    (void)state;
    place_file(&place);
    pid_t zero = start_rank(&place, 0, "START_TIMEOUT=50s");
    wait_for_written(&place);
    reap(zero);
    pid_t pids[3];
    for (int r = 2; r >= 0; r--)
        pids[r] = start_rank(&place, r, "START_TIMEOUT=50s");
    for (int r = 0; r < 3; r++) {
        int status = 0;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(count_files(&place, ""), 0);
    place_end(&place);
}

static void test_boot_file_of_a_dead_rank_0_is_told(void **state)
{
    struct place place;
    struct boots world;
    char who[64];
    (void)state;
    place_file(&place);
    set_up(&world, 3, &place, "START_TIMEOUT=100ms");
    world.ranks[0].absent = world.ranks[2].absent = true;
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT, "rank 0 never came: there is no /tmp/");
    pid_t zero = start_rank(&place, 0, "START_TIMEOUT=50s");
    wait_for_written(&place);
    reap(zero);
    boots_join(&world);
    snprintf(who, sizeof who, "horon.store was left by process %d on ", (int)zero);
    boots_expect_all_fail(&world, HORON_ERR_TIMEOUT, who);
    place_end(&place);
}

/* The second job's rank 0 is refused at once, and the first goes on. */
static void test_boot_file_serves_one_job_at_a_time(void **state)
{
    struct place place;
    struct boots world;
    int status = 0;
    (void)state;
    place_file(&place);
    pid_t pids[3] = {start_rank(&place, 0, "START_TIMEOUT=50s")};
    wait_for_written(&place);
    set_up(&world, 3, &place, "START_TIMEOUT=50s");
    world.ranks[1].absent = world.ranks[2].absent = true;
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_CONFIG, "another job's rank 0 (process ");
    for (int r = 1; r < 3; r++)
        pids[r] = start_rank(&place, r, "START_TIMEOUT=50s");
    for (int r = 0; r < 3; r++) {
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        assert_int_equal(status, 0);
    }
    place_end(&place);
}

/* A file of somebody else's that is in the way is told of at once, on rank 0 and on the others. */
static void test_boot_file_of_others_is_left_alone(void **state)
{
    static const char others[] = "0123456789abcdef.checkpoint";
    struct place place;
    struct boots world;
    char path[128];
    (void)state;
    place_file(&place);
    snprintf(path, sizeof path, "%s/%s", place.directory, others);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("weights", file);
    fclose(file);
    set_up(&world, 3, &place, "START_TIMEOUT=50s");
    boots_join(&world);
    boots_expect_joined(&world);
    boots_part(&world);
    assert_int_equal(count_files(&place, ""), 1);
    assert_int_equal(count_files(&place, others), 1);
    char planted[160];
    snprintf(planted, sizeof planted, "%s/horon.store", place.directory);
    assert_int_equal(symlink(path, planted), 0);
    boots_join(&world);
    boots_expect_all_fail(&world, HORON_ERR_CONFIG, "is a symbolic link, and is not followed");
    place_end(&place);
}

/* It lets the others read so for a while, and takes it away then. */
static void test_boot_file_without_room_fails_rank_0(void **state)
{
    struct place place;
    struct boots world;
    struct rlimit before;
    (void)state;
    place_file(&place);
    set_up(&world, 2, &place, "START_TIMEOUT=50s");
    world.ranks[1].absent = true;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit small = {8, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    boots_join(&world);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    boots_expect_all_fail(&world, HORON_ERR_SYSTEM, "horon.store cannot be written: No space left");
    assert_int_equal(count_files(&place, ""), 0);
    place_end(&place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boot_file_without_room_fails_rank_0),
        cmocka_unit_test(test_boot_file_half_started_job_does_not_harm_the_next),
        cmocka_unit_test(test_boot_file_of_a_killed_job_does_not_harm_the_next),
        cmocka_unit_test(test_boot_file_of_before_is_not_followed),
        cmocka_unit_test(test_boot_file_of_a_dead_rank_0_is_told),
        cmocka_unit_test(test_boot_file_serves_one_job_at_a_time),
        cmocka_unit_test(test_boot_file_of_others_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
