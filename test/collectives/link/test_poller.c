/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many TCP links watched by one poller: what a turn costs is counted by links that count the calls
 * on a link inside, and by wrappers that the linker puts around the calls that ask about
 * descriptors; what is told once must not be lost.
 */
#include "../mesh.h"

#include "link/poller.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

/* The linker gives these what the library calls (-Wl,--wrap in meson.build). */
static int asked;
int __real_epoll_wait(int epoll, struct epoll_event *events, int count, int timeout_ms);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int count, int timeout_ms);
int __real_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event);
int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);

int __wrap_epoll_wait(int epoll, struct epoll_event *events, int count, int timeout_ms)
{
    asked++;
    return __real_epoll_wait(epoll, events, count, timeout_ms);
}

int __wrap_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
    asked++;
    return __real_epoll_ctl(epoll, operation, fd, event);
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    asked++;
    return __real_poll(fds, count, timeout_ms);
}

struct counting_link {
    struct horon_link base;
    struct horon_link *inside; /* owned */
    int sends, recvs;
};

static horon_status_t counting_send(struct horon_link *link, const struct iovec *vector, int count,
                                    size_t *sent_bytes_out, struct horon_error *error)
{
    struct counting_link *counting = (struct counting_link *)link;
    counting->sends++;
    return counting->inside->ops->send(counting->inside, vector, count, sent_bytes_out, error);
}

static horon_status_t counting_recv(struct horon_link *link, const struct iovec *vector, int count,
                                    size_t *got_bytes_out, struct horon_error *error)
{
    struct counting_link *counting = (struct counting_link *)link;
    counting->recvs++;
    return counting->inside->ops->recv(counting->inside, vector, count, got_bytes_out, error);
}

static struct horon_link *inside_of(const struct horon_link *link)
{
    return ((const struct counting_link *)link)->inside;
}

static int counting_descriptor(const struct horon_link *link)
{
    return inside_of(link)->ops->descriptor(inside_of(link));
}

static bool counting_ready(const struct horon_link *link)
{
    return inside_of(link)->ops->ready(inside_of(link));
}

static void counting_found(struct horon_link *link, unsigned events)
{
    inside_of(link)->ops->found(inside_of(link), events);
}

static size_t counting_undelivered(const struct horon_link *link)
{
    return inside_of(link)->ops->undelivered(inside_of(link));
}

static void counting_destroy(struct horon_link *link)
{
    inside_of(link)->ops->destroy(inside_of(link));
    free(link);
}

static const struct horon_link_ops counting_ops = {
    .name = "counting",
    .send = counting_send,
    .recv = counting_recv,
    .descriptor = counting_descriptor,
    .interest = horon_link_plain_interest,
    .ready = counting_ready,
    .found = counting_found,
    .undelivered = counting_undelivered,
    .check = horon_link_always_answers,
    .destroy = counting_destroy,
};

/* One rank's muxes to `count` others, and theirs. */
enum { COUNT_MAX = 70 };
struct star {
    int count;
    struct horon_poller *poller;
    struct counting_link *links[COUNT_MAX];
    struct horon_mux *mux[COUNT_MAX], *theirs[COUNT_MAX];
};

static struct horon_link *tcp_link(int socket)
{
    struct horon_link *link = NULL;
    struct horon_error error = {0};
    assert_int_equal(horon_link_tcp_create(socket, 10000, &link, &error), HORON_OK);
    return link;
}

static void star_open(struct star *star, int count)
{
    struct horon_error error = {0};
    struct horon_mux_options options = mesh_options(1 << 16, 1 << 20);
    options.peer_name = "rank 1 (host-1)";
    *star = (struct star){.count = count};
    assert_int_equal(horon_poller_create(NULL, &star->poller, &error), HORON_OK);
    for (int i = 0; i < count; i++) {
        int sockets[2];
        mesh_tcp_pair(sockets);
        star->links[i] = calloc(1, sizeof *star->links[i]);
        star->links[i]->base.ops = &counting_ops;
        star->links[i]->inside = tcp_link(sockets[0]);
        struct horon_link *link = &star->links[i]->base;
        assert_int_equal(horon_poller_add(star->poller, link, &error), HORON_OK);
        assert_int_equal(horon_mux_create(link, &options, &star->mux[i]), HORON_OK);
        assert_int_equal(horon_mux_create(tcp_link(sockets[1]), &options, &star->theirs[i]),
                         HORON_OK);
    }
}

static void star_close(struct star *star)
{
    for (int i = 0; i < star->count; i++) {
        horon_poller_remove(star->poller, &star->links[i]->base);
        horon_mux_destroy(star->mux[i]);
        horon_mux_destroy(star->theirs[i]);
    }
    horon_poller_destroy(star->poller);
}

/* What an engine does with its links at each turn. */
static void turn(struct star *star)
{
    struct horon_error error = {0};
    bool moved = false;
    horon_poller_look(star->poller);
    for (int i = 0; i < star->count; i++)
        if (horon_mux_wants_turn(star->mux[i]))
            assert_int_equal(horon_mux_progress(star->mux[i], &moved, &error), HORON_OK);
}

static int calls_of(const struct star *star, int first)
{
    int calls = 0;
    for (int i = first; i < star->count; i++)
        calls += star->links[i]->recvs + star->links[i]->sends;
    return calls;
}

static void wait_until_readable(const struct star *star)
{
    struct pollfd poll_for = {.fd = horon_poller_descriptor(star->poller), .events = POLLIN};
    assert_int_equal(poll(&poll_for, 1, 10000), 1);
}

static struct horon_transfer piece(uint64_t sequence, uint64_t *data)
{
    return (struct horon_transfer){
        .id = {.channel = 1, .sequence = sequence}, .data = data, .bytes = sizeof *data};
}

/* Receives one transfer over link `i`, turning all. */
static void round_trip(struct star *star, int i, uint64_t sequence)
{
    struct horon_error error = {0};
    uint64_t out = sequence * 3 + 1, in = 0;
    struct horon_transfer send = piece(sequence, &out), recv = piece(sequence, &in);
    assert_int_equal(horon_mux_post_recv(star->mux[i], &recv, &error), HORON_OK);
    assert_int_equal(horon_mux_post_send(star->theirs[i], &send, &error), HORON_OK);
    while (!recv.done) {
        assert_int_equal(horon_mux_progress(star->theirs[i], &(bool){false}, &error), HORON_OK);
        turn(star);
    }
    assert_int_equal(in, out);
}

static void test_poller_idle_links_cost_no_calls(void **state)
{
    static const int counts[] = {1, 2, 33, COUNT_MAX}; /* two and three calls of epoll at once */
    enum { ROUNDS = 200 };
    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        struct star star;
        star_open(&star, counts[c]);
        turn(&star);
        const int before = calls_of(&star, 1);
        for (uint64_t i = 0; i < ROUNDS; i++)
            round_trip(&star, 0, i);
        assert_int_equal(calls_of(&star, 1), before); /* not one, whatever their number */
        assert_true(star.links[0]->recvs >= ROUNDS);
        star_close(&star);
    }
}

/* @return how often descriptors were asked about in turns of which each has something for link 0 */
static int asked_of(int links)
{
    enum { TURNS = 50 };
    struct star star;
    int sum = 0;
    star_open(&star, links);
    round_trip(&star, 0, 0);
    turn(&star);
    for (int i = 0; i < TURNS; i++) {
        assert_int_equal(horon_mux_post_control(star.theirs[0], "x", 1), HORON_OK);
        assert_int_equal(horon_mux_progress(star.theirs[0], &(bool){false}, NULL), HORON_OK);
        wait_until_readable(&star);
        const int before = asked;
        turn(&star);
        sum += asked - before;
    }
    star_close(&star);
    return sum;
}

static void test_poller_asks_as_often_about_many_links_as_about_two(void **state)
{
    (void)state;
    const int of_two = asked_of(2);
    assert_true(of_two > 0);
    assert_int_equal(asked_of(33), of_two);
    assert_int_equal(asked_of(60), of_two);
}

/* Each in turn becomes the one that is tried without asking. */
static void test_poller_finds_whichever_link_has_something(void **state)
{
    (void)state;
    struct star star;
    star_open(&star, 40);
    for (uint64_t i = 0; i < 400; i++)
        round_trip(&star, (int)(i * 7 % 40), i);
    star_close(&star);
}

/* More than one progress reads: the rest is not told again, and must be known to be there. */
static void test_poller_what_a_turn_leaves_is_still_known(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    struct star star;
    struct horon_error error = {0};
    uint8_t *out = calloc(1, BYTES), *in = calloc(1, BYTES);
    struct horon_transfer send = {.id = {.channel = 1}, .data = out, .bytes = BYTES};
    struct horon_transfer recv = {.id = {.channel = 1}, .data = in, .bytes = BYTES};
    memset(out, 7, BYTES);
    star_open(&star, 3);
    assert_int_equal(horon_mux_post_recv(star.mux[2], &recv, &error), HORON_OK);
    assert_int_equal(horon_mux_post_send(star.theirs[2], &send, &error), HORON_OK);
    while (!recv.done) {
        assert_int_equal(horon_mux_progress(star.theirs[2], &(bool){false}, &error), HORON_OK);
        turn(&star);
    }
    assert_memory_equal(in, out, BYTES);
    star_close(&star);
    free(out);
    free(in);
}

static void test_poller_full_link_is_tried_again_when_it_has_room(void **state)
{
    (void)state;
    enum { BLOCK = 1 << 20 };
    struct star star;
    char *block = calloc(1, BLOCK);
    size_t moved = 0;
    const struct iovec vector = {.iov_base = block, .iov_len = BLOCK};
    star_open(&star, 3);
    struct horon_link *link = &star.links[0]->base, *peer = horon_mux_link(star.theirs[0]);
    horon_poller_collect(star.poller);
    while (link->ops->send(link, &vector, 1, &moved, NULL) == HORON_OK)
        continue;
    assert_false(horon_poller_collect(star.poller));
    assert_false(link->ops->ready(link));
    while (!link->ops->ready(link)) {
        struct pollfd poll_for = {.fd = peer->ops->descriptor(peer), .events = POLLIN};
        assert_int_equal(poll(&poll_for, 1, 10000), 1);
        assert_int_equal(peer->ops->recv(peer, &vector, 1, &moved, NULL), HORON_OK);
        horon_poller_collect(star.poller);
    }
    assert_int_equal(link->ops->send(link, &vector, 1, &moved, NULL), HORON_OK);
    star_close(&star);
    free(block);
}

/* A sleeper wakes for what comes, not for what was taken without asking. */
static void test_poller_descriptor_tells_what_was_not_collected(void **state)
{
    (void)state;
    struct star star;
    star_open(&star, 1);
    struct pollfd poll_for = {.events = POLLIN};
    poll_for.fd = horon_poller_descriptor(star.poller);
    for (uint64_t i = 0; i < 5; i++)
        round_trip(&star, 0, i);
    while (horon_poller_collect(star.poller))
        turn(&star);
    assert_int_equal(poll(&poll_for, 1, 0), 0);
    assert_int_equal(horon_mux_post_control(star.theirs[0], "x", 1), HORON_OK);
    assert_int_equal(horon_mux_progress(star.theirs[0], &(bool){false}, NULL), HORON_OK);
    wait_until_readable(&star);
    assert_true(horon_poller_collect(star.poller));
    assert_true(horon_mux_wants_turn(star.mux[0]));
    star_close(&star);
}

static void test_poller_end_of_a_stream_is_not_forgotten(void **state)
{
    (void)state;
    struct star star;
    struct horon_error error = {0};
    bool moved = false;
    star_open(&star, 2);
    horon_poller_collect(star.poller);
    assert_int_equal(horon_mux_post_control(star.theirs[1], "last words", 10), HORON_OK);
    assert_int_equal(horon_mux_progress(star.theirs[1], &moved, &error), HORON_OK);
    horon_mux_destroy(star.theirs[1]);
    star.theirs[1] = NULL;
    horon_status_t status = HORON_OK;
    while (status == HORON_OK) {
        wait_until_readable(&star);
        horon_poller_collect(star.poller);
        while (status == HORON_OK && horon_mux_wants_turn(star.mux[1]))
            status = horon_mux_progress(star.mux[1], &moved, &error);
    }
    assert_int_equal(status, HORON_ERR_PEER_LOST);
    star_close(&star);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_poller_idle_links_cost_no_calls),
        cmocka_unit_test(test_poller_asks_as_often_about_many_links_as_about_two),
        cmocka_unit_test(test_poller_finds_whichever_link_has_something),
        cmocka_unit_test(test_poller_what_a_turn_leaves_is_still_known),
        cmocka_unit_test(test_poller_full_link_is_tried_again_when_it_has_room),
        cmocka_unit_test(test_poller_descriptor_tells_what_was_not_collected),
        cmocka_unit_test(test_poller_end_of_a_stream_is_not_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
