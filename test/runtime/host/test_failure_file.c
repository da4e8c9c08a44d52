/* SPDX-License-Identifier: Apache-2.0 */
/* Why a rank failed, from the rank to its launcher; and what is not plainly there for it. */
#undef NDEBUG
#include "host/failure_file.h"

#include "host/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE 5
/* What a descriptor may be that is not ours. */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct bed {
    struct horon_map map;
    char name[32];
    struct horon_error heard;
};

static int set_up(void **state)
{
    struct bed *bed = calloc(1, sizeof *bed);
    assert_non_null(bed);
    assert_int_equal(horon_failure_file_make(&bed->map, NULL), HORON_OK);
    snprintf(bed->name, sizeof bed->name, "fd:%d", bed->map.fd);
    *state = bed;
    return 0;
}

static int tear_down(void **state)
{
    struct bed *bed = *state;
    horon_fd_close(&bed->map.fd);
    horon_memory_unmap(&bed->map);
    free(bed);
    return 0;
}

static void say(const char *name, horon_status_t status, horon_cause_t cause, int rank,
                int other_rank)
{
    struct horon_error why;
    horon_error_set(&why, status, "for people");
    horon_error_blame(&why, cause, rank, other_rank);
    horon_failure_file_write(name, &why);
}

static void expect(struct bed *bed, horon_status_t status, horon_cause_t cause, int rank,
                   int other_rank)
{
    memset(&bed->heard, 'x', sizeof bed->heard);
    assert_true(horon_failure_file_read(&bed->map, SIZE, &bed->heard));
    assert_int_equal(bed->heard.status, status);
    assert_int_equal(bed->heard.blame.cause, cause);
    assert_int_equal(bed->heard.blame.rank, rank);
    assert_int_equal(bed->heard.blame.other_rank, other_rank);
    assert_string_equal(bed->heard.text, "");
}

static void test_failure_file_gives_what_was_written_last(void **state)
{
    struct bed *bed = *state;
    assert_false(horon_failure_file_read(&bed->map, SIZE, &bed->heard));
    say(bed->name, HORON_ERR_PEER_LOST, HORON_CAUSE_DIED, 3, -1);
    expect(bed, HORON_ERR_PEER_LOST, HORON_CAUSE_DIED, 3, -1);
    say(bed->name, HORON_ERR_TIMEOUT, HORON_CAUSE_TIME_LIMIT, 0, 4);
    expect(bed, HORON_ERR_TIMEOUT, HORON_CAUSE_TIME_LIMIT, 0, 4);
    const struct horon_map none = {.fd = -1};
    assert_false(horon_failure_file_read(&none, SIZE, &bed->heard));
}

static void test_failure_file_believes_no_number(void **state)
{
    struct bed *bed = *state;
    say(bed->name, HORON_ERR_PEER_LOST, HORON_CAUSE_DIED, SIZE, INT32_MIN);
    expect(bed, HORON_ERR_PEER_LOST, HORON_CAUSE_DIED, -1, -1);
    say(bed->name, (horon_status_t)-77, (horon_cause_t)77, 1, INT32_MAX);
    expect(bed, HORON_ERR_PROTO, HORON_CAUSE_PROTOCOL, 1, -1);
    /* killed while it wrote, or a version to come */
    memset((char *)bed->map.base + 8, 0, 4);
    assert_false(horon_failure_file_read(&bed->map, SIZE, &bed->heard));
    memset((char *)bed->map.base + 8, 2, 4);
    assert_false(horon_failure_file_read(&bed->map, SIZE, &bed->heard));
}

/* @return memory of so many bytes of 'u', a user's, with seals */
static int users_memory(size_t bytes, int seals)
{
    char page[8192];
    memset(page, 'u', sizeof page);
    const int fd = memfd_create("users", MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && bytes <= sizeof page);
    assert_int_equal(write(fd, page, bytes), bytes);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void expect_left_alone(int fd)
{
    char name[32], bytes[8192];
    const ssize_t before = lseek(fd, 0, SEEK_END);
    snprintf(name, sizeof name, "fd:%d", fd);
    horon_failure_file_keep(name, NULL);
    say(name, HORON_ERR_PEER_LOST, HORON_CAUSE_DIED, 3, -1);
    assert_int_equal(fcntl(fd, F_GETFD), 0); /* programs that this one starts still get it */
    assert_int_equal(lseek(fd, 0, SEEK_END), before);
    assert_int_equal(pread(fd, bytes, sizeof bytes, 0), before);
    for (ssize_t i = 0; i < before; i++)
        assert_int_equal(bytes[i], 'u');
    close(fd);
}

static void test_failure_file_leaves_alone_what_is_another(void **state)
{
    struct bed *bed = *state;
    static const char *const names[] = {
        "", "fd:", "fd:x", "fd:1x", "fd:-1", "fd:99999999999", "/etc/passwd", "fd:987654"};
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char path[] = "/tmp/horon-test-failure-XXXXXX";
    expect_left_alone(users_memory(page, SEALS));     /* it does not say what it is for */
    expect_left_alone(users_memory(page / 2, SEALS)); /* too small */
    expect_left_alone(users_memory(2 * page, 0));
    const int file = mkstemp(path);
    assert_true(file >= 0);
    unlink(path);
    assert_int_equal(write(file, "uuuu", 4), 4);
    expect_left_alone(file);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        horon_failure_file_keep(names[i], NULL);
        say(names[i], HORON_ERR_PEER_LOST, HORON_CAUSE_DIED, 3, -1);
    }
    assert_false(horon_failure_file_read(&bed->map, SIZE, &bed->heard));
}

/* Of another wait status than 0 the child has told the line. */
static void expect_well(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void test_failure_file_is_kept_from_children_and_programs(void **state)
{
    struct bed *bed = *state;
    struct horon_fds fds = {0};
    const int number = bed->map.fd;
    assert_int_equal(fcntl(number, F_SETFD, 0), 0); /* as a rank gets it */
    horon_failure_file_keep(bed->name, &fds);
    assert_int_equal(fcntl(number, F_GETFD), FD_CLOEXEC);
    pid_t child = fork();
    if (child == 0) {
        horon_fds_close_in_child(&fds);
        _exit(fcntl(number, F_GETFD) != -1);
    }
    expect_well(child);
    /* the program has closed it, and has a file of its own there */
    assert_int_equal(dup2(STDERR_FILENO, number), number);
    child = fork();
    if (child == 0) {
        horon_fds_close_in_child(&fds);
        _exit(fcntl(number, F_GETFD) == -1);
    }
    expect_well(child);
    horon_fds_deinit(&fds);
}

static void test_failure_file_is_no_file_that_a_limit_bounds(void **state)
{
    struct bed *bed = *state;
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit none = {0};
        const bool limited = setrlimit(RLIMIT_FSIZE, &none) == 0;
        say(bed->name, HORON_ERR_CONFIG, HORON_CAUSE_SETTING, 1, 2);
        _exit(!limited);
    }
    expect_well(child);
    expect(bed, HORON_ERR_CONFIG, HORON_CAUSE_SETTING, 1, 2);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_failure_file_gives_what_was_written_last),
        CASE(test_failure_file_believes_no_number),
        CASE(test_failure_file_leaves_alone_what_is_another),
        CASE(test_failure_file_is_kept_from_children_and_programs),
        CASE(test_failure_file_is_no_file_that_a_limit_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
