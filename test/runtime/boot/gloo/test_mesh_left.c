/* SPDX-License-Identifier: Apache-2.0 */
/* Meshes of which a rank closes its connection before the others have met: it has failed, or left.
 */
#undef NDEBUG
#include "mesh_world.h"

#include "link/gloo_frame.h"

static void test_mesh_a_rank_that_closes_is_named(void **state)
{
    struct world *world = *state;
    struct rank here;
    start(world, &here, HORON_GLOO_ERA_3, 0, 3);
    here.options.patience_ms = 1;
    go(&here);
    const struct horon_gloo_peer peer = published(world, HORON_GLOO_ERA_3, 3, 0, 2);
    publish(world, HORON_GLOO_ERA_3, 3, 2, "127.9.9.9", 9);
    int real = connect_to(&peer.address.at);
    assert_int_equal(send(real, &(int64_t){2}, 8, 0), 8);
    close(real);
    join(&here);
    expect_failure(&here, HORON_ERR_PEER_LOST, "rank 2 closed the connection");
    expect_failure(&here, HORON_ERR_PEER_LOST, "; nothing of rank 1 has been read yet");
}

/* In era 1 a stranger may have closed, until it is too late for the rank itself. */
static void test_mesh_of_era_1_a_rank_that_closes_is_named(void **state)
{
    struct world *world = *state;
    struct rank here;
    start(world, &here, HORON_GLOO_ERA_1, 0, 3);
    here.options.deadline_ns = UINT64_MAX;
    here.options.patience_ms = 1;
    go(&here);
    publish(world, HORON_GLOO_ERA_1, 3, 1, "127.9.9.9", 9);
    const struct horon_gloo_peer peer = published(world, HORON_GLOO_ERA_1, 3, 0, 1);
    close(connect_from("127.9.9.9", &peer.address.at));
    int again = connect_from("127.9.9.9", &peer.address.at);
    const struct horon_gloo_peer other = published(world, HORON_GLOO_ERA_1, 3, 0, 2);
    close(connect_from("127.9.9.9", &other.address.at));
    publish(world, HORON_GLOO_ERA_1, 3, 2, "127.9.9.9", 10);
    join(&here);
    close(again);
    expect_failure(&here, HORON_ERR_PEER_LOST, "rank 2 closed the connection with 127.9.9.9:10 ");
    assert_int_equal(here.error.blame.rank, 2);
}

/* The socket of one that has left ends, and with it what needs that rank. */
static void test_mesh_a_rank_may_have_left(void **state)
{
    struct world *world = *state;
    struct rank here;
    start(world, &here, HORON_GLOO_ERA_3, 0, 3);
    go(&here);
    const struct horon_gloo_peer peer = published(world, HORON_GLOO_ERA_3, 3, 0, 2);
    publish(world, HORON_GLOO_ERA_3, 3, 2, "127.9.9.9", 9);
    struct pollfd left = {.fd = connect_to(&peer.address.at), .events = POLLIN};
    assert_int_equal(send(left.fd, &(int64_t){2}, 8, 0), 8);
    assert_int_equal(send(left.fd, "hi", 2, 0), 2);
    shutdown(left.fd, SHUT_WR);
    assert_int_equal(poll(&left, 1, 200), 0); /* it is not refused */
    publish(world, HORON_GLOO_ERA_3, 3, 1, "127.9.9.9", 10);
    int real = connect_to(&peer.address.at);
    assert_int_equal(send(real, &(int64_t){1}, 8, 0), 8);
    join(&here);
    assert_int_equal(here.status, HORON_OK);
    char heard[3];
    assert_int_equal(recv(here.sockets[2], heard, 3, 0), 2);
    assert_int_equal(recv(here.sockets[2], heard, 3, 0), 0);
    close(left.fd);
    close(real);
    close_sockets(&here);
}

/* As a horon does once it is connected with all others. */
static void greet(int fd)
{
    uint8_t hello[HORON_GLOO_FRAME_BYTES];
    horon_gloo_frame_encode(&(struct horon_gloo_frame){.code = HORON_GLOO_HELLO}, hello);
    assert_int_equal(send(fd, hello, sizeof hello, 0), sizeof hello);
}

static void expect_greeting(int fd)
{
    uint8_t heard[HORON_GLOO_FRAME_BYTES + 1];
    struct horon_gloo_frame frame;
    assert_int_equal(recv(fd, heard, sizeof heard, 0), HORON_GLOO_FRAME_BYTES);
    assert_true(horon_gloo_frame_decode(heard, &frame));
    assert_int_equal(frame.code, HORON_GLOO_HELLO);
    assert_int_equal(recv(fd, heard, sizeof heard, 0), 0);
}

/* As rank @p rank of 3 to rank 0, which is the one of @p world. */
static int come(struct world *world, enum horon_gloo_era era, int rank, const char *from)
{
    const struct horon_gloo_peer peer = published(world, era, 3, 0, rank);
    const int64_t sequence = rank;
    const int fd = connect_from(from, &peer.address.at);
    if (era == HORON_GLOO_ERA_3)
        assert_int_equal(send(fd, &sequence, sizeof sequence, 0), sizeof sequence);
    return fd;
}

static void test_mesh_of_era_1_a_rank_that_greeted_may_have_left(void **state)
{
    struct world *world = *state;
    struct rank here;
    start(world, &here, HORON_GLOO_ERA_1, 0, 3);
    go(&here);
    publish(world, HORON_GLOO_ERA_1, 3, 1, "127.9.9.9", 9);
    publish(world, HORON_GLOO_ERA_1, 3, 2, "127.9.9.9", 10);
    int left = come(world, HORON_GLOO_ERA_1, 2, "127.9.9.9");
    greet(left);
    close(left);
    int real = come(world, HORON_GLOO_ERA_1, 1, "127.9.9.9");
    join(&here);
    assert_int_equal(here.status, HORON_OK);
    expect_greeting(here.sockets[2]);
    close(real);
    close_sockets(&here);
}

/* A rank that comes once rank 0 has looked about so often since it was told so. */
struct late {
    struct world *world;
    enum horon_gloo_era era;
    int rank, after;
    bool closes; /* at once */
    _Atomic bool counts;
    int looks, fd;
};

static int come_late(void *arg)
{
    struct late *late = arg;
    if (!late->counts || ++late->looks != late->after)
        return 0;
    late->fd = come(late->world, late->era, late->rank, "127.9.9.9");
    if (late->closes)
        horon_fd_close(&late->fd);
    return 0;
}

/* A busy machine may keep a rank from coming as long as it likes. */
static void check_late(struct world *world, enum horon_gloo_era era)
{
    struct rank here;
    struct late late = {.world = world, .era = era, .rank = 1, .after = 10, .fd = -1};
    start(world, &here, era, 0, 3);
    here.options.patience_ms = 1;
    here.options.interrupted = come_late;
    here.options.interrupted_arg = &late;
    publish(world, era, 3, 1, "127.9.9.9", 9);
    publish(world, era, 3, 2, "127.9.9.9", 10);
    go(&here);
    int left = come(world, era, 2, "127.9.9.9");
    greet(left);
    close(left);
    late.counts = true;
    join(&here);
    horon_fd_close(&late.fd);
    assert_int_equal(here.status, HORON_OK);
    expect_greeting(here.sockets[2]);
    close_sockets(&here);
}

static void test_mesh_after_a_rank_that_greeted_others_come_late(void **state)
{
    check_late(*state, HORON_GLOO_ERA_3);
}

static void test_mesh_of_era_1_after_a_rank_that_greeted_others_come_late(void **state)
{
    check_late(*state, HORON_GLOO_ERA_1);
}

/* As above, but it is this rank that has connected with the one that greets and leaves. */
static void check_left_where_this_one_connects(struct world *world, enum horon_gloo_era era)
{
    struct rank here;
    struct late late = {.world = world, .era = era, .rank = 1, .after = 10, .fd = -1};
    struct horon_address address;
    assert_true(horon_address_parse("127.0.0.1", 0, &address));
    const int listener = horon_address_listen(&address);
    assert_true(listener >= 0);
    start(world, &here, era, 0, 3);
    here.options.patience_ms = 1;
    here.options.interrupted = come_late;
    here.options.interrupted_arg = &late;
    publish(world, era, 3, 1, "127.9.9.9", 9);
    publish(world, era, 3, 2, "0.0.0.0", horon_address_port(&address)); /* lower than ours */
    go(&here);
    struct pollfd come = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&come, 1, -1), 1);
    int left = accept(listener, NULL, NULL);
    assert_true(left >= 0);
    int64_t sequence;
    if (era == HORON_GLOO_ERA_3) /* what is unread as it closes would reset the connection */
        assert_int_equal(recv(left, &sequence, sizeof sequence, MSG_WAITALL), sizeof sequence);
    greet(left);
    close(left);
    late.counts = true;
    join(&here);
    horon_fd_close(&late.fd);
    close(listener);
    assert_int_equal(here.status, HORON_OK);
    expect_greeting(here.sockets[2]);
    close_sockets(&here);
}

static void test_mesh_one_that_was_connected_with_may_have_left(void **state)
{
    check_left_where_this_one_connects(*state, HORON_GLOO_ERA_3);
}

static void test_mesh_of_era_1_one_that_was_connected_with_may_have_left(void **state)
{
    check_left_where_this_one_connects(*state, HORON_GLOO_ERA_1);
}

/* On a machine that is too busy it has not even connected. */
static void test_mesh_a_rank_that_closes_is_told_while_others_lack(void **state)
{
    struct world *world = *state;
    struct rank here;
    struct late late = {.world = world,
                        .era = HORON_GLOO_ERA_3,
                        .rank = 2,
                        .after = 1,
                        .closes = true,
                        .counts = false,
                        .fd = -1};
    start(world, &here, HORON_GLOO_ERA_3, 0, 3);
    here.options.deadline_ns = horon_clock_deadline(horon_clock_ns(), 300);
    here.options.interrupted = come_late;
    here.options.interrupted_arg = &late;
    publish(world, HORON_GLOO_ERA_3, 3, 2, "127.9.9.9", 9);
    go(&here);
    (void)published(world, HORON_GLOO_ERA_3, 3, 0, 2);
    late.counts = true;
    join(&here);
    expect_failure(&here, HORON_ERR_TIMEOUT, "rank 1 has published nothing; rank 2 at ");
}

/* Whatever it says, and from another host what a horon says, too. */
static void test_mesh_of_era_1_a_stranger_that_closes_has_not_left(void **state)
{
    static const char *const froms[] = {"127.9.9.9", "127.8.8.8"};
    static const char http[64] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n";
    struct world *world = *state;
    struct rank here;
    static_assert(sizeof http >= HORON_GLOO_FRAME_BYTES, "as long as a frame, and none");
    start(world, &here, HORON_GLOO_ERA_1, 0, 3);
    go(&here);
    for (int i = 0; i < 2; i++) {
        const int rank = 1 + i;
        publish(world, HORON_GLOO_ERA_1, 3, rank, "127.9.9.9", 8 + rank);
        int stranger = come(world, HORON_GLOO_ERA_1, rank, froms[i]);
        if (i == 0)
            assert_int_equal(send(stranger, http, sizeof http, 0), sizeof http);
        else
            greet(stranger);
        close(stranger);
    }
    int real[2] = {come(world, HORON_GLOO_ERA_1, 1, "127.9.9.9"),
                   come(world, HORON_GLOO_ERA_1, 2, "127.9.9.9")};
    join(&here);
    assert_int_equal(here.status, HORON_OK);
    for (int i = 0; i < 2; i++) {
        char heard[2];
        assert_int_equal(send(here.sockets[1 + i], "hi", 2, 0), 2);
        assert_int_equal(recv(real[i], heard, 2, MSG_WAITALL), 2);
        close(real[i]);
    }
    close_sockets(&here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORLD(test_mesh_a_rank_that_closes_is_named),
        IN_WORLD(test_mesh_of_era_1_a_rank_that_closes_is_named),
        IN_WORLD(test_mesh_a_rank_may_have_left),
        IN_WORLD(test_mesh_of_era_1_a_rank_that_greeted_may_have_left),
        IN_WORLD(test_mesh_after_a_rank_that_greeted_others_come_late),
        IN_WORLD(test_mesh_of_era_1_after_a_rank_that_greeted_others_come_late),
        IN_WORLD(test_mesh_one_that_was_connected_with_may_have_left),
        IN_WORLD(test_mesh_of_era_1_one_that_was_connected_with_may_have_left),
        IN_WORLD(test_mesh_a_rank_that_closes_is_told_while_others_lack),
        IN_WORLD(test_mesh_of_era_1_a_stranger_that_closes_has_not_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
