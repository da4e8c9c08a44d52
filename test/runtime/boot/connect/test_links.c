/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks ask for a connection: one of them, or both, at any moment of the other's handshake. One
 * connection comes of it, the same on both sides. What cannot be is told, with what was tried.
 */
#undef NDEBUG
#include "boot/connect/links.h"

#include "../boots.h"
#include "address.h"
#include "clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TURNS_MAX = 60 };

struct side {
    struct horon_pump pump;
    struct horon_profile profiles[2];
    struct horon_links *links;
    bool unwilling;
    int fd, opened, failed;
    struct horon_error why;
};

struct scene {
    struct horon_job_key key;
    struct horon_log log;
    struct side sides[2]; /* ranks 0 and 1 */
    int fds_before;
};

static struct scene scene;

static bool wanted(void *arg, int rank)
{
    const struct side *side = arg;
    (void)rank;
    return !side->unwilling && side->fd < 0;
}

static void opened(void *arg, int rank, const struct horon_proven *proven)
{
    struct side *side = arg;
    assert_true(rank == (side == &scene.sides[0] ? 1 : 0));
    assert_true(side->fd < 0);
    side->fd = proven->fd;
    side->opened++;
}

static void failed(void *arg, int rank, const struct horon_error *why)
{
    struct side *side = arg;
    (void)rank;
    side->why = *why;
    side->failed++;
}

static void begin_side(int rank, const char *const names[2], int listener)
{
    struct side *side = &scene.sides[rank];
    struct horon_error error;
    *side = (struct side){.fd = -1};
    assert_int_equal(horon_pump_init(&side->pump, &error), HORON_OK);
    for (int r = 0; r < 2; r++) {
        struct horon_profile *profile = &side->profiles[r];
        snprintf(profile->name, sizeof profile->name, "host-%d", r);
        snprintf(profile->socket, sizeof profile->socket, "%s", names[r]);
        profile->machine = 7;
        profile->host = 7;
        profile->addresses = "";
        profile->member[0] = (uint8_t)(1 + r);
    }
    struct horon_links_options options = {
        .self = {&side->pump, &scene.key, horon_hello_of(HORON_ROLE_PEER, rank, 2), &scene.log},
        .profiles = side->profiles,
        .user = {.wanted = wanted, .opened = opened, .failed = failed, .arg = side}};
    options.self.hello.member[0] = (uint8_t)(1 + rank);
    struct horon_listeners listeners = {.count = listener >= 0, .fds = {listener}};
    assert_int_equal(horon_links_create(&options, &listeners, &side->links, &error), HORON_OK);
    assert_int_equal(listeners.count, 0);
}

/* @param silent  nobody listens for rank 0 */
static void begin(bool silent)
{
    static unsigned number;
    char names[2][64];
    int listeners[2] = {-1, -1};
    struct horon_error error;
    scene.fds_before = count_fds();
    assert_int_equal(
        horon_job_key_from_text(&scene.key, "a key of this test, long enough", 31, &error),
        HORON_OK);
    for (int r = 0; r < 2; r++) {
        struct horon_address address;
        snprintf(names[r], sizeof names[r], "horon-test-links-%d-%u-%d", (int)getpid(), number++,
                 r);
        horon_address_abstract(names[r], &address);
        if (r == 1 || !silent)
            listeners[r] = horon_address_listen(&address);
    }
    for (int r = 0; r < 2; r++)
        begin_side(r, (const char *const[2]){names[0], names[1]}, listeners[r]);
}

static void end(void)
{
    for (int r = 0; r < 2; r++) {
        struct side *side = &scene.sides[r];
        horon_links_destroy(side->links);
        horon_pump_deinit(&side->pump);
        if (side->fd >= 0)
            close(side->fd);
    }
    assert_int_equal(count_fds(), scene.fds_before);
}

static void ask(int rank, int64_t silence_ms)
{
    struct horon_error error;
    assert_int_equal(horon_links_open(scene.sides[rank].links, 1 - rank, silence_ms, &error),
                     HORON_OK);
}

static bool over(void)
{
    return (scene.sides[0].opened && scene.sides[1].opened) || scene.sides[0].failed ||
           scene.sides[1].failed;
}

static void turn_until_over(void)
{
    while (!over())
        for (int r = 0; r < 2; r++)
            horon_pump_turn(&scene.sides[r].pump, 1);
}

/* Both have one and it is the same: what one says the other hears. */
static void expect_one(void)
{
    char got = 0;
    for (int r = 0; r < 2; r++) {
        assert_int_equal(scene.sides[r].failed, 0);
        assert_int_equal(scene.sides[r].opened, 1);
    }
    assert_int_equal(send(scene.sides[0].fd, "x", 1, MSG_NOSIGNAL), 1);
    assert_int_equal(recv(scene.sides[1].fd, &got, 1, 0), 1);
    assert_int_equal(got, 'x');
    for (int turn = 0; turn < 4; turn++) /* and nothing comes later */
        for (int r = 0; r < 2; r++)
            horon_pump_turn(&scene.sides[r].pump, 0);
    assert_int_equal(scene.sides[0].opened + scene.sides[1].opened, 2);
}

static void test_links_either_rank_may_ask(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        begin(false);
        ask(rank, -1);
        ask(rank, -1); /* it is the same one */
        turn_until_over();
        expect_one();
        end();
    }
}

/* The second asks after so many turns of the two, in an order that a seed decides. */
static void test_links_both_ask_and_one_comes_of_it(void **state)
{
    uint32_t seed = 1;
    (void)state;
    for (int first = 0; first < 2; first++)
        for (int later = 0; later < TURNS_MAX; later++) {
            begin(false);
            ask(first, -1);
            for (int turn = 0; turn < later && !over(); turn++) {
                seed = seed * 1664525u + 1013904223u;
                horon_pump_turn(&scene.sides[seed >> 31].pump, 0);
            }
            if (!over() && scene.sides[1 - first].fd < 0)
                ask(1 - first, -1);
            turn_until_over();
            expect_one();
            end();
        }
}

/* What rank 1 takes for rank 0: it carries what is said, but no more than a hello from rank 1. */
struct between {
    int listener, one, zero; /* its ends of the connection */
    int heard;               /* pieces of rank 1 */
};

static void begin_between(struct between *between)
{
    struct horon_profile *known = &scene.sides[1].profiles[0];
    struct horon_address address;
    strcat(known->socket, "-between");
    horon_address_abstract(known->socket, &address);
    *between = (struct between){.listener = horon_address_listen(&address), .one = -1, .zero = -1};
    assert_true(between->listener >= 0);
}

static void carry(struct between *between)
{
    char bytes[1024];
    ssize_t got;
    if (between->one < 0 && (between->one = accept(between->listener, NULL, NULL)) >= 0) {
        struct horon_address address;
        horon_address_abstract(scene.sides[0].profiles[0].socket, &address);
        between->zero = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(between->zero, &address.any, address.bytes), 0);
    }
    if ((got = recv(between->zero, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        assert_int_equal(send(between->one, bytes, (size_t)got, MSG_NOSIGNAL), got);
    if ((got = recv(between->one, bytes, sizeof bytes, MSG_DONTWAIT)) > 0 && between->heard++ == 0)
        assert_int_equal(send(between->zero, bytes, (size_t)got, MSG_NOSIGNAL), got);
}

static void end_between(const struct between *between)
{
    close(between->listener);
    close(between->one);
    close(between->zero);
}

/* Rank 1 has sent all of its handshake, and the last of it does not arrive: as where rank 0 has too
 * many guests, or the network ends the connection. That of rank 0 has come meanwhile. */
static void test_links_keep_the_other_one_if_the_one_that_counts_breaks(void **state)
{
    (void)state;
    for (int leaves = 0; leaves < 2; leaves++) {
        char tried[256] = "";
        struct between between;
        begin(false);
        begin_between(&between);
        ask(1, -1);
        while (!strstr(tried, "has not confirmed")) {
            const int heard = between.heard;
            for (int r = 0; r < 2; r++)
                horon_pump_turn(&scene.sides[r].pump, 1);
            carry(&between);
            if (heard < 2 && between.heard == 2)
                ask(0, -1);
            horon_links_explain(scene.sides[0].links, 1, tried, sizeof tried);
        }
        for (int r = 2; r-- > 0;) /* rank 1 takes it, and rank 0 an answer, if there is one */
            horon_pump_turn(&scene.sides[r].pump, 0);
        assert_false(over());
        if (leaves) {
            horon_links_destroy(scene.sides[0].links);
            scene.sides[0].links = NULL;
        }
        end_between(&between);
        turn_until_over();
        if (leaves)
            assert_int_equal(scene.sides[1].why.status, HORON_ERR_PEER_LOST);
        else
            expect_one();
        end();
    }
}

static void test_links_that_fail_say_what_was_tried(void **state)
{
    (void)state;
    begin(true);
    ask(1, -1);
    turn_until_over();
    assert_int_equal(scene.sides[1].why.status, HORON_ERR_SYSTEM);
    assert_non_null(strstr(scene.sides[1].why.text, "cannot connect to rank 0 (host-0), tried "));
    assert_non_null(strstr(scene.sides[1].why.text, "Connection refused"));
    end();
}

static void test_links_that_are_not_wanted_fail_at_once(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        begin(false);
        scene.sides[1 - rank].unwilling = true;
        ask(rank, -1);
        turn_until_over();
        assert_int_equal(scene.sides[rank].why.status, HORON_ERR_PEER_LOST);
        assert_non_null(strstr(scene.sides[rank].why.text, "it is gone, or leaves the job"));
        assert_int_equal(scene.sides[1 - rank].opened, 0);
        end();
    }
}

/* A listener whose queue is full: its system drops what comes. @return it; *fill_out is what fills
 */
static int listen_to_nobody(int *port_out, int fill_out[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, bytes), 0);
    assert_int_equal(listen(fd, 0), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    for (int i = 0; i < 2; i++) {
        fill_out[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(fill_out[i], (struct sockaddr *)&at, sizeof at);
    }
    *port_out = ntohs(at.sin_port);
    return fd;
}

static void test_links_to_a_silent_system_end_at_their_limit(void **state)
{
    int port, fill[2];
    char address[32];
    (void)state;
    begin(false);
    const int silent = listen_to_nobody(&port, fill);
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    scene.sides[0].profiles[1].host = 8;
    scene.sides[0].profiles[1].addresses = address;
    ask(0, 50);
    while (!scene.sides[0].failed)
        horon_pump_turn(&scene.sides[0].pump, -1);
    assert_int_equal(scene.sides[0].why.status, HORON_ERR_TIMEOUT);
    assert_non_null(strstr(scene.sides[0].why.text, "cannot connect to rank 1 (host-1)"));
    assert_non_null(strstr(scene.sides[0].why.text, "no answer"));
    close(silent);
    close(fill[0]);
    close(fill[1]);
    end();
}

/* The limit passes while the other side's process does nothing: it has the connection in its queue.
 */
static void test_links_to_a_stopped_process_wait_for_it(void **state)
{
    (void)state;
    begin(false);
    const uint64_t passed = horon_clock_ns() + 50000000u;
    ask(0, 10);
    while (horon_clock_ns() < passed)
        horon_pump_turn(&scene.sides[0].pump, 1);
    assert_int_equal(scene.sides[0].failed, 0);
    turn_until_over();
    expect_one();
    end();
}

/* The first limit has passed, but nobody has looked. */
static void test_links_that_are_asked_for_again_have_a_new_limit(void **state)
{
    (void)state;
    begin(false);
    ask(0, 0);
    ask(0, -1);
    turn_until_over();
    expect_one();
    end();
}

static void test_links_take_nobody_else_for_the_rank(void **state)
{
    (void)state;
    begin(false);
    scene.sides[1].profiles[0].member[0] = 9; /* another process of that rank */
    ask(1, -1);
    turn_until_over();
    assert_int_equal(scene.sides[1].why.status, HORON_ERR_PROTO);
    assert_non_null(strstr(scene.sides[1].why.text, "another process answers as rank 0"));
    end();
}

static void test_links_without_an_address_are_refused_at_once(void **state)
{
    struct horon_error error = {0};
    (void)state;
    begin(false);
    scene.sides[1].profiles[0].host = 8;
    assert_int_equal(horon_links_open(scene.sides[1].links, 0, -1, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "rank 0 (host-0) has no address that rank 1 (host-1)"));
    assert_non_null(strstr(error.text, "see HORON_INTERFACES"));
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links_either_rank_may_ask),
        cmocka_unit_test(test_links_both_ask_and_one_comes_of_it),
        cmocka_unit_test(test_links_keep_the_other_one_if_the_one_that_counts_breaks),
        cmocka_unit_test(test_links_that_fail_say_what_was_tried),
        cmocka_unit_test(test_links_that_are_not_wanted_fail_at_once),
        cmocka_unit_test(test_links_to_a_silent_system_end_at_their_limit),
        cmocka_unit_test(test_links_to_a_stopped_process_wait_for_it),
        cmocka_unit_test(test_links_that_are_asked_for_again_have_a_new_limit),
        cmocka_unit_test(test_links_take_nobody_else_for_the_rank),
        cmocka_unit_test(test_links_without_an_address_are_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
