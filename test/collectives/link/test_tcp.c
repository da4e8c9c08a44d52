/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP link on the loopback interface: what it says when there is nothing, too much, or nobody.
 */
#include "../mesh.h"

#include "link/link.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int descriptor_of(const struct horon_link *link)
{
    return link->ops->descriptor(link);
}

static void links_open(struct horon_link *links[2], int64_t peer_timeout_ms)
{
    int sockets[2];
    struct horon_error error = {0};
    mesh_tcp_pair(sockets);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(horon_link_tcp_create(sockets[i], peer_timeout_ms, &links[i], &error),
                         HORON_OK);
        assert_int_equal(descriptor_of(links[i]), sockets[i]);
        assert_true(links[i]->ops->ready(links[i])); /* only recv could tell */
        assert_int_equal(links[i]->ops->interest(links[i], false), HORON_LINK_READ);
        assert_int_equal(links[i]->ops->interest(links[i], true),
                         HORON_LINK_READ | HORON_LINK_WRITE);
    }
}

/* The kernel may hand bytes over a moment after they were sent. */
static void wait_readable(const struct horon_link *link)
{
    struct pollfd poll_for = {.fd = descriptor_of(link), .events = POLLIN};
    assert_int_equal(poll(&poll_for, 1, 10000), 1);
}

static horon_status_t recv_some(struct horon_link *link, void *bytes, size_t count, size_t *got,
                                struct horon_error *error)
{
    const struct iovec vector = {.iov_base = bytes, .iov_len = count};
    return link->ops->recv(link, &vector, 1, got, error);
}

static int option_of(const struct horon_link *link, int level, int option)
{
    int value = -1;
    socklen_t bytes = sizeof value;
    assert_int_equal(getsockopt(descriptor_of(link), level, option, &value, &bytes), 0);
    return value;
}

static void test_tcp_create_sets_the_options_that_were_promised(void **state)
{
    (void)state;
    struct horon_link *links[2];
    links_open(links, 30000);
    assert_int_equal(option_of(links[0], IPPROTO_TCP, TCP_NODELAY), 1);
    assert_int_equal(option_of(links[0], SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_int_equal(option_of(links[0], IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
    assert_true(fcntl(descriptor_of(links[0]), F_GETFL) & O_NONBLOCK);
    for (int i = 0; i < 2; i++)
        links[i]->ops->destroy(links[i]);
}

/* Until the last probe has gone unanswered for an interval. */
static void test_tcp_probes_of_an_idle_link_last_as_long_as_the_limit(void **state)
{
    static const int limits_ms[] = {500, 1000, 3999, 10000, 30000, 3600 * 1000, 48 * 3600 * 1000};
    (void)state;
    for (size_t i = 0; i < sizeof limits_ms / sizeof *limits_ms; i++) {
        struct horon_link *links[2];
        const int most_s = 24 * 3600, wanted_s = (limits_ms[i] + 999) / 1000;
        const int limit_s = wanted_s < most_s ? wanted_s : most_s;
        links_open(links, limits_ms[i]);
        const int silence_s = option_of(links[0], IPPROTO_TCP, TCP_KEEPIDLE) +
                              option_of(links[0], IPPROTO_TCP, TCP_KEEPCNT) *
                                  option_of(links[0], IPPROTO_TCP, TCP_KEEPINTVL);
        assert_in_range(silence_s, limit_s, limit_s + limit_s / 4 + 2);
        for (int end = 0; end < 2; end++)
            links[end]->ops->destroy(links[end]);
    }
}

/* Its process takes nothing, but its system answers: it may be stopped, and go on. */
static void test_tcp_peer_that_takes_nothing_is_not_lost(void **state)
{
    enum { BLOCK = 1 << 20, LIMIT_MS = 200 };
    (void)state;
    struct horon_link *links[2];
    struct horon_error error = {0};
    char *block = calloc(1, BLOCK);
    size_t moved = 0;
    const struct iovec out = {.iov_base = block, .iov_len = BLOCK};
    links_open(links, LIMIT_MS);
    while (links[0]->ops->send(links[0], &out, 1, &moved, &error) == HORON_OK)
        ;
    for (int i = 0; i < 40; i++) { /* 4 limits or more */
        poll(NULL, 0, LIMIT_MS / 10);
        assert_int_equal(links[0]->ops->check(links[0], &error), HORON_OK);
    }
    wait_readable(links[1]);
    assert_int_equal(recv_some(links[1], block, BLOCK, &moved, &error), HORON_OK);
    assert_int_equal(links[0]->ops->check(links[0], &error), HORON_OK);
    for (int i = 0; i < 2; i++)
        links[i]->ops->destroy(links[i]);
    free(block);
}

static void test_tcp_create_without_a_limit_sets_none(void **state)
{
    (void)state;
    struct horon_link *links[2];
    links_open(links, -1);
    assert_int_equal(option_of(links[0], IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
    assert_int_equal(option_of(links[0], SOL_SOCKET, SO_KEEPALIVE), 0);
    for (int i = 0; i < 2; i++)
        links[i]->ops->destroy(links[i]);
}

static void test_tcp_create_of_no_tcp_socket_is_refused(void **state)
{
    (void)state;
    struct horon_link *link = NULL;
    struct horon_error error = {0};
    int sockets[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    assert_int_equal(horon_link_tcp_create(sockets[0], 1000, &link, &error), HORON_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "TCP_NODELAY"));
    assert_int_equal(close(sockets[0]), 0); /* still ours */
    close(sockets[1]);
    assert_int_equal(horon_link_tcp_create(-1, 1000, &link, &error), HORON_ERR_SYSTEM);
    assert_null(link);
}

static void test_tcp_vectors_arrive_in_order(void **state)
{
    (void)state;
    struct horon_link *links[2];
    uint8_t got[16] = {0};
    size_t moved = 0;
    links_open(links, 30000);
    assert_int_equal(recv_some(links[1], got, 1, &moved, NULL), HORON_AGAIN);
    const struct iovec out[] = {{.iov_base = "one", .iov_len = 3},
                                {.iov_base = "", .iov_len = 0},
                                {.iov_base = "two", .iov_len = 3}};
    assert_int_equal(links[0]->ops->send(links[0], out, 3, &moved, NULL), HORON_OK);
    assert_int_equal(moved, 6);
    wait_readable(links[1]);
    const struct iovec in[] = {{.iov_base = got, .iov_len = 2},
                               {.iov_base = got + 8, .iov_len = 8}};
    assert_int_equal(links[1]->ops->recv(links[1], in, 2, &moved, NULL), HORON_OK);
    assert_int_equal(moved, 6);
    assert_memory_equal(got, "on", 2);
    assert_memory_equal(got + 8, "etwo", 4);
    for (int i = 0; i < 2; i++)
        links[i]->ops->destroy(links[i]);
}

static void test_tcp_full_socket_says_again_and_goes_on(void **state)
{
    (void)state;
    enum { BLOCK = 1 << 20 };
    struct horon_link *links[2];
    uint8_t *block = malloc(BLOCK);
    size_t sent = 0, got = 0, moved = 0;
    horon_status_t status = HORON_OK;
    links_open(links, 30000);
    memset(block, 7, BLOCK);
    const struct iovec out = {.iov_base = block, .iov_len = BLOCK};
    while (status == HORON_OK) {
        status = links[0]->ops->send(links[0], &out, 1, &moved, NULL);
        sent += status ? 0 : moved;
    }
    assert_int_equal(status, HORON_AGAIN);
    while (got < sent) {
        wait_readable(links[1]);
        assert_int_equal(recv_some(links[1], block, BLOCK, &moved, NULL), HORON_OK);
        got += moved;
    }
    assert_int_equal(recv_some(links[1], block, BLOCK, &moved, NULL), HORON_AGAIN);
    for (int i = 0; i < 2; i++)
        links[i]->ops->destroy(links[i]);
    free(block);
}

static void test_tcp_peer_that_closed_is_lost_after_its_bytes(void **state)
{
    (void)state;
    struct horon_link *links[2];
    struct horon_error error = {0};
    char bytes[8];
    size_t moved = 0;
    const struct iovec last = {.iov_base = "last", .iov_len = 4};
    links_open(links, 30000);
    /* unread bytes on its side would make the kernel reset the connection */
    assert_int_equal(links[0]->ops->send(links[0], &last, 1, &moved, NULL), HORON_OK);
    wait_readable(links[1]);
    assert_int_equal(links[1]->ops->send(links[1], &last, 1, &moved, NULL), HORON_OK);
    links[1]->ops->destroy(links[1]);
    wait_readable(links[0]);
    assert_int_equal(recv_some(links[0], bytes, sizeof bytes, &moved, &error), HORON_OK);
    assert_int_equal(moved, 4);
    wait_readable(links[0]);
    assert_int_equal(recv_some(links[0], bytes, sizeof bytes, &moved, &error), HORON_ERR_PEER_LOST);
    assert_string_equal(
        error.text,
        "closed the connection without leaving the job (killed, crashed, or it exited)");
    links[0]->ops->destroy(links[0]);
}

static void test_tcp_peer_that_reset_is_lost_and_no_signal_comes(void **state)
{
    (void)state;
    struct horon_link *links[2];
    struct horon_error error = {0};
    char bytes[8] = {0};
    size_t moved = 0;
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    links_open(links, 30000);
    assert_int_equal(setsockopt(descriptor_of(links[1]), SOL_SOCKET, SO_LINGER, &now, sizeof now),
                     0);
    const int raw = dup(descriptor_of(links[1]));
    links[1]->ops->destroy(links[1]); /* shuts down; the last descriptor resets */
    close(raw);
    wait_readable(links[0]);
    horon_status_t status;
    const struct iovec out = {.iov_base = bytes, .iov_len = sizeof bytes};
    do
        status = links[0]->ops->send(links[0], &out, 1, &moved, &error);
    while (status == HORON_OK);
    assert_int_equal(status, HORON_ERR_PEER_LOST);
    assert_string_equal(
        error.text, "reset the connection without leaving the job (killed, crashed, or it exited)");
    links[0]->ops->destroy(links[0]);
}

static void test_tcp_delivered_once_the_peer_has_taken_it_all(void **state)
{
    (void)state;
    enum { BLOCK = 1 << 20 };
    struct horon_link *links[2];
    char *block = calloc(1, BLOCK);
    size_t moved = 0, left = 0;
    const struct iovec out = {.iov_base = block, .iov_len = BLOCK};
    links_open(links, 30000);
    assert_int_equal(links[0]->ops->undelivered(links[0]), 0);
    while (links[0]->ops->send(links[0], &out, 1, &moved, NULL) == HORON_OK)
        left += moved;
    assert_true(links[0]->ops->undelivered(links[0]) >
                0); /* its system takes no more until it reads */
    for (; left > 0; left -= moved) {
        wait_readable(links[1]);
        assert_int_equal(recv_some(links[1], block, BLOCK, &moved, NULL), HORON_OK);
    }
    for (int turns = 0; links[0]->ops->undelivered(links[0]) > 0; turns++) {
        assert_true(turns < 10000);
        poll(NULL, 0, 1); /* its word of that is on the way */
    }
    for (int i = 0; i < 2; i++)
        links[i]->ops->destroy(links[i]);
    free(block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tcp_create_sets_the_options_that_were_promised),
        cmocka_unit_test(test_tcp_probes_of_an_idle_link_last_as_long_as_the_limit),
        cmocka_unit_test(test_tcp_peer_that_takes_nothing_is_not_lost),
        cmocka_unit_test(test_tcp_create_without_a_limit_sets_none),
        cmocka_unit_test(test_tcp_create_of_no_tcp_socket_is_refused),
        cmocka_unit_test(test_tcp_vectors_arrive_in_order),
        cmocka_unit_test(test_tcp_full_socket_says_again_and_goes_on),
        cmocka_unit_test(test_tcp_delivered_once_the_peer_has_taken_it_all),
        cmocka_unit_test(test_tcp_peer_that_closed_is_lost_after_its_bytes),
        cmocka_unit_test(test_tcp_peer_that_reset_is_lost_and_no_signal_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
