/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After joining, where there are several hosts: any two ranks open a connection, strangers are
 * turned away as before, and a rank that nobody uses takes none. On one host nothing is left open.
 */
#undef NDEBUG
#include "boots.h"

#include "address.h"
#include "boot/profile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3 };

struct taker {
    int fds[RANKS]; /* connections that were made after joining, by rank */
    int failed;
    struct horon_error why;
};

static struct place place;
static struct boots world;
static struct taker takers[RANKS];

static bool wanted(void *arg, int rank)
{
    const struct taker *taker = arg;
    return taker->fds[rank] < 0;
}

static void opened(void *arg, int rank, const struct horon_proven *proven)
{
    struct taker *taker = arg;
    assert_true(taker->fds[rank] < 0);
    taker->fds[rank] = proven->fd;
}

static void failed(void *arg, int rank, const struct horon_error *why)
{
    struct taker *taker = arg;
    (void)rank;
    taker->failed++;
    taker->why = *why;
}

static void begin(const char *shm, bool used)
{
    place_tcp(&place);
    boots_init(&world, RANKS, place.setting);
    boots_setting(&world, "JOB_KEY=a secret of these tests");
    boots_setting(&world, shm);
    boots_join(&world);
    boots_expect_joined(&world);
    for (int r = 0; r < RANKS; r++) {
        const struct horon_links_user user = {
            .wanted = wanted, .opened = opened, .failed = failed, .arg = &takers[r]};
        takers[r] = (struct taker){.fds = {-1, -1, -1}};
        if (used)
            horon_links_set_user(world.ranks[r].boot.links, &user);
    }
}

static void end(void)
{
    boots_part(&world);
    for (int r = 0; r < RANKS; r++)
        for (int other = 0; other < RANKS; other++)
            if (takers[r].fds[other] >= 0)
                close(takers[r].fds[other]);
    place_end(&place);
}

static void turn_all(int timeout_ms)
{
    for (int r = 0; r < RANKS; r++)
        horon_pump_turn(&world.ranks[r].boot.pump, timeout_ms);
}

static void open_between(int from, int to)
{
    struct horon_error error;
    assert_int_equal(horon_links_open(world.ranks[from].boot.links, to, -1, &error), HORON_OK);
}

static void expect_pair(int a, int b)
{
    char got = 0;
    while ((takers[a].fds[b] < 0 || takers[b].fds[a] < 0) && !takers[a].failed && !takers[b].failed)
        turn_all(1);
    assert_int_equal(takers[a].failed + takers[b].failed, 0);
    assert_int_equal(send(takers[a].fds[b], "x", 1, MSG_NOSIGNAL), 1);
    struct pollfd waiting = {.fd = takers[b].fds[a], .events = POLLIN};
    assert_int_equal(poll(&waiting, 1, 5000), 1);
    assert_int_equal(recv(takers[b].fds[a], &got, 1, 0), 1);
    assert_int_equal(got, 'x');
}

static void test_later_any_two_ranks_open_a_connection(void **state)
{
    const int fds = count_fds();
    (void)state;
    begin("SHM=0", true);
    open_between(2, 0);
    expect_pair(2, 0);
    open_between(1, 2); /* the lower one asks */
    expect_pair(1, 2);
    open_between(0, 1);
    open_between(1, 0);
    expect_pair(0, 1);
    end();
    assert_int_equal(count_fds(), fds);
}

static void test_later_nobody_uses_them_and_nobody_comes(void **state)
{
    struct horon_error error;
    (void)state;
    begin("SHM=0", false);
    const struct horon_links_user user = {
        .wanted = wanted, .opened = opened, .failed = failed, .arg = &takers[2]};
    horon_links_set_user(world.ranks[2].boot.links, &user);
    assert_int_equal(horon_links_open(world.ranks[2].boot.links, 0, -1, &error), HORON_OK);
    while (!takers[2].failed)
        turn_all(1);
    assert_int_equal(takers[2].why.status, HORON_ERR_PEER_LOST);
    assert_non_null(strstr(takers[2].why.text, "cannot connect to rank 0"));
    end();
}

static void open_links(void)
{
    struct horon_error error;
    horon_links_open(world.ranks[2].boot.links, 0, -1, &error);
}

static void turn_pump(void)
{
    horon_pump_turn(&world.ranks[2].boot.pump, 0);
}

static void expect_abort(void (*call)(void))
{
    int status = 0;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        close(STDERR_FILENO); /* the assertion's words are expected */
        signal(SIGABRT, SIG_DFL);
        call();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
}

/* They are the token's: a thread that does not hold it must not touch them. */
static void test_later_the_owner_alone_opens_them(void **state)
{
    const struct horon_owner nobody = {0};
    (void)state;
    if (!HORON_OWNERS_CHECKED) {
        print_message("skipped: this build does not check owners; those under sanitizers do\n");
        skip();
    }
    begin("SHM=0", true);
    world.ranks[2].boot.pump.owner = &nobody;
    expect_abort(open_links);
    expect_abort(turn_pump);
    world.ranks[2].boot.pump.owner = NULL;
    end();
}

static int connect_to(int rank)
{
    struct horon_addresses all;
    assert_true(horon_addresses_read(world.ranks[2].boot.profiles[rank].addresses, &all));
    for (int i = 0; i < all.count; i++) {
        const int fd = socket(all.items[i].any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fd >= 0);
        if (connect(fd, &all.items[i].any, all.items[i].bytes) == 0)
            return fd;
        close(fd);
    }
    fail_msg("rank %d listens nowhere", rank);
    return -1;
}

/* It is heard, hung up on, and no work is left to do for it; the ranks go on. */
static void test_later_strangers_are_turned_away(void **state)
{
    char ignored[4096];
    ssize_t got = 1;
    (void)state;
    begin("SHM=0", true);
    const int fd = connect_to(0);
    memset(ignored, 'x', sizeof ignored);
    assert_true(send(fd, ignored, sizeof ignored, MSG_NOSIGNAL) > 0);
    while (got > 0) {
        turn_all(1);
        got = recv(fd, ignored, sizeof ignored, MSG_DONTWAIT);
        if (got < 0)
            got = errno == EAGAIN ? 1 : 0;
    }
    close(fd);
    open_between(2, 0);
    expect_pair(2, 0);
    for (int r = 0; r < RANKS; r++) /* idle: nothing is due */
        assert_int_equal(horon_pump_turn(&world.ranks[r].boot.pump, 0), HORON_AGAIN);
    end();
}

/* Connections that came after joining, and what listens for others, are not the child's. */
static void test_later_child_of_a_fork_closes_all(void **state)
{
    const int fds = count_fds();
    int status = 0;
    (void)state;
    begin("SHM=0", true);
    open_between(2, 0);
    expect_pair(2, 0);
    for (int r = 0; r < RANKS; r++)
        horon_boot_settle(&world.ranks[r].boot);
    const pid_t child = fork();
    if (child == 0) {
        bool wiped = true;
        for (int r = 0; r < RANKS; r++) {
            wiped = wiped && world.ranks[r].boot.key->bytes[0] == 0 &&
                    world.ranks[r].boot.key->bytes[31] == 0;
            horon_boot_close_in_child(&world.ranks[r].boot);
        }
        _exit(wiped && count_fds() == fds ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    open_between(0, 1); /* here all goes on */
    expect_pair(0, 1);
    end();
}

/* The first rank of a host has a socket to each other one from the start. */
static void test_later_ranks_of_one_host_open_sockets(void **state)
{
    (void)state;
    begin("SHM=1", true);
    for (int r = 1; r < RANKS; r++)
        assert_true(world.ranks[r].boot.local[0].socket >= 0);
    assert_int_equal(world.ranks[1].boot.local[2].socket, -1);
    open_between(1, 2);
    expect_pair(1, 2);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_later_any_two_ranks_open_a_connection),
        cmocka_unit_test(test_later_nobody_uses_them_and_nobody_comes),
        cmocka_unit_test(test_later_the_owner_alone_opens_them),
        cmocka_unit_test(test_later_strangers_are_turned_away),
        cmocka_unit_test(test_later_child_of_a_fork_closes_all),
        cmocka_unit_test(test_later_ranks_of_one_host_open_sockets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
