/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that go when they are posted, and announce themselves: the peer hears of each before
 * its data, whether or not the ring takes it whole; those that would overtake something, or that
 * the peer has no room for, do not go so. And what is posted to a link that is then pushed.
 */
#include "transfers.h"

#include "link/mux_announced.h"
#include "link/mux_frame.h"

#define EACH(i, list) (size_t i = 0; i < sizeof(list) / sizeof *(list); i++)

enum { EAGER = 100, TOTAL = 250, RING = 4096 };

struct ear {
    struct mesh mesh;
    struct horon_transfer *posts; /* when it hears of one */
    uint8_t *takes;               /* then: where to, if it is there */
    int heard, taken;
    uint64_t sequence, bytes;
    horon_status_t answer;
};

static horon_status_t hear(void *arg, int peer, struct horon_mux_announced *announced,
                           struct horon_error *error)
{
    struct ear *ear = arg;
    assert_int_equal(peer, 0);
    assert_int_equal(announced->check, 77 + announced->id.sequence); /* as transfer_of() */
    assert_false(announced->taken);
    ear->heard++;
    ear->sequence = announced->id.sequence;
    ear->bytes = announced->bytes;
    if (ear->takes && announced->data) {
        if (announced->bytes > 0)
            memcpy(ear->takes, announced->data, (size_t)announced->bytes);
        announced->taken = true;
        ear->taken++;
    }
    if (ear->posts)
        post_recv(ear->mesh.mux[1][0], ear->posts);
    return ear->answer ? horon_error_set(error, ear->answer, "not understood") : HORON_OK;
}

static void open_ear(struct ear *ear, size_t ring_bytes)
{
    struct horon_mux_options options = mesh_options(EAGER, TOTAL);
    memset(ear, 0, sizeof *ear);
    options.on_announced = hear;
    options.arg = ear;
    mesh_create_rings(&ear->mesh, 2, ring_bytes, &options);
}

static void test_mux_now_of_any_size_is_heard_of_and_arrives(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 13, EAGER}, rings[] = {1, 64, RING};
    uint8_t from[EAGER], to[EAGER];
    for
        EACH(r, rings)
        for
            EACH(s, sizes)
        for (int late = 0; late < 2; late++) {
            struct ear ear;
            open_ear(&ear, rings[r]);
            fill(from, sizes[s], 7);
            struct horon_transfer send = transfer_of(1, 7, from, sizes[s]),
                                  recv = transfer_of(1, 7, to, sizes[s]);
            struct horon_mux_ends sent, came;
            horon_mux_ends_init(&sent);
            horon_mux_ends_init(&came);
            send.ends = &sent;
            recv.ends = &came;
            ear.posts = late ? NULL : &recv;
            assert_true(horon_mux_send_now(ear.mesh.mux[0][1], &send));
            const bool at_once = rings[r] >= HORON_MUX_SHORT_HEADER_BYTES + sizes[s];
            assert_int_equal(send.done, at_once);
            mesh_settle(&ear.mesh);
            assert_true(send.done);
            assert_int_equal(ear.heard, 1);
            assert_int_equal(ear.sequence, 1);
            assert_int_equal(ear.bytes, sizes[s]);
            if (late)
                post_recv(ear.mesh.mux[1][0], &recv);
            assert_true(recv.done);
            check_filled(to, sizes[s], 7);
            /* told of once, unless it ended with its post */
            assert_ptr_equal(horon_mux_ends_take(&sent), at_once ? NULL : &send);
            assert_ptr_equal(horon_mux_ends_take(&came), late ? NULL : &recv);
            assert_null(horon_mux_ends_take(&sent));
            assert_null(horon_mux_ends_take(&came));
            mesh_destroy(&ear.mesh);
        }
}

/* Nothing of it is left, its room above all: TOTAL has some for two. One that comes in pieces is
 * not there when its receiver hears of it, and waits for its post. */
static void test_mux_now_that_is_taken_when_heard_of_needs_no_post(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 13, EAGER};
    uint8_t from[EAGER], to[EAGER];
    for
        EACH(s, sizes)
        {
            struct ear ear;
            uint64_t sent, received;
            open_ear(&ear, RING);
            fill(from, sizes[s], 5);
            ear.takes = to;
            for (uint64_t i = 0; i < 5; i++) {
                struct horon_transfer send = transfer_of(1, i, from, sizes[s]),
                                      back = transfer_of(2, i, from, 1),
                                      take = transfer_of(2, i, to + EAGER - 1, 1);
                memset(to, 0, sizeof to);
                assert_true(horon_mux_send_now(ear.mesh.mux[0][1], &send));
                assert_true(send.done);
                mesh_settle(&ear.mesh);
                check_filled(to, sizes[s], 5);
                post_recv(ear.mesh.mux[0][1], &take); /* room goes back with what is sent */
                post_send(ear.mesh.mux[1][0], &back);
                mesh_settle(&ear.mesh);
            }
            assert_int_equal(ear.taken, 5);
            assert_int_equal(ear.heard, 5);
            horon_mux_bytes(ear.mesh.mux[1][0], &sent, &received);
            assert_int_equal(received, 5 * sizes[s]);
            mesh_destroy(&ear.mesh);
        }
}

static void test_mux_now_in_pieces_is_not_there_to_be_taken(void **state)
{
    (void)state;
    struct ear ear;
    uint8_t from[EAGER], to[EAGER];
    open_ear(&ear, 64);
    fill(from, EAGER, 3);
    struct horon_transfer send = transfer_of(1, 3, from, EAGER),
                          recv = transfer_of(1, 3, to, EAGER);
    ear.takes = to;
    assert_true(horon_mux_send_now(ear.mesh.mux[0][1], &send));
    mesh_settle(&ear.mesh);
    assert_int_equal(ear.heard, 1);
    assert_int_equal(ear.taken, 0);
    post_recv(ear.mesh.mux[1][0], &recv);
    assert_true(recv.done);
    check_filled(to, EAGER, 3);
    mesh_destroy(&ear.mesh);
}

/* What waits keeps its place, and is not overtaken. */
static void test_mux_now_does_not_go_before_what_waits(void **state)
{
    (void)state;
    struct ear ear;
    uint8_t data[EAGER + 1] = {0};
    open_ear(&ear, RING);
    struct horon_mux *mux = ear.mesh.mux[0][1];
    struct horon_transfer queued = transfer_of(1, 1, data, 8), send = transfer_of(1, 2, data, 8),
                          long_one = transfer_of(1, 3, data, EAGER + 1);
    assert_false(horon_mux_send_now(mux, &long_one));
    assert_int_equal(horon_mux_post_control(mux, data, 1), HORON_OK);
    assert_false(horon_mux_send_now(mux, &send));
    mesh_settle(&ear.mesh);
    post_send(mux, &queued);
    assert_false(horon_mux_send_now(mux, &send));
    mesh_settle(&ear.mesh);
    assert_true(queued.done);
    assert_int_equal(ear.heard, 0);
    assert_true(horon_mux_send_now(mux, &send));
    mesh_destroy(&ear.mesh);
}

/* TOTAL has room for two of EAGER, which comes back once they are posted. */
static void test_mux_now_beyond_the_room_does_not_go(void **state)
{
    (void)state;
    struct ear ear;
    uint8_t data[EAGER] = {0}, to[EAGER];
    open_ear(&ear, RING);
    struct horon_mux *mux = ear.mesh.mux[0][1];
    struct horon_transfer sends[3], recvs[2];
    for (uint64_t i = 0; i < 3; i++) {
        sends[i] = transfer_of(1, i, data, EAGER);
        assert_int_equal(horon_mux_send_now(mux, &sends[i]), i < 2);
    }
    mesh_settle(&ear.mesh);
    assert_int_equal(ear.heard, 2);
    for (uint64_t i = 0; i < 2; i++) {
        recvs[i] = transfer_of(1, i, to, EAGER);
        post_recv(ear.mesh.mux[1][0], &recvs[i]);
        assert_true(recvs[i].done);
    }
    mesh_settle(&ear.mesh);
    assert_true(horon_mux_send_now(mux, &sends[2]));
    mesh_destroy(&ear.mesh);
}

/* Its sender has its memory back, and the peer gets what it was promised. */
static void test_mux_now_withdrawn_half_sent_leaves_the_link_whole(void **state)
{
    (void)state;
    struct ear ear;
    uint8_t from[EAGER], to[EAGER];
    open_ear(&ear, 64);
    fill(from, EAGER, 3);
    struct horon_transfer send = transfer_of(1, 3, from, EAGER),
                          recv = transfer_of(1, 3, to, EAGER), next = transfer_of(2, 4, from, 8);
    ear.posts = &recv;
    assert_true(horon_mux_send_now(ear.mesh.mux[0][1], &send));
    assert_false(send.done);
    horon_mux_forget(ear.mesh.mux[0][1], 5, 1);
    memset(from, 0, sizeof from);
    mesh_settle(&ear.mesh);
    assert_true(recv.done);
    check_filled(to, EAGER, 3);
    ear.posts = NULL;
    assert_true(horon_mux_send_now(ear.mesh.mux[0][1], &next));
    mesh_settle(&ear.mesh);
    assert_int_equal(ear.heard, 2);
    mesh_destroy(&ear.mesh);
}

static void test_mux_now_that_is_refused_ends_the_mux(void **state)
{
    (void)state;
    static const char *const why[] = {"not understood",
                                      "rank 0 (host-0) announced data that nobody"};
    uint8_t data[8] = {0};
    for
        EACH(deaf, why)
        {
            struct ear ear;
            struct horon_mux_options options = mesh_options(EAGER, TOTAL);
            struct horon_error error = {0};
            bool moved;
            open_ear(&ear, RING);
            mesh_destroy(&ear.mesh);
            options.on_announced = deaf ? NULL : hear;
            options.arg = &ear;
            mesh_create_rings(&ear.mesh, 2, RING, &options);
            ear.answer = HORON_ERR_PROTO;
            struct horon_transfer send = transfer_of(1, 1, data, 8);
            assert_true(horon_mux_send_now(ear.mesh.mux[0][1], &send));
            assert_int_equal(horon_mux_progress(ear.mesh.mux[1][0], &moved, &error),
                             HORON_ERR_PROTO);
            assert_non_null(strstr(error.text, why[deaf]));
            mesh_destroy(&ear.mesh);
        }
}

/* Nothing is there, but something is to be sent. Of the next turn others expect all that came. */
static void test_mux_now_one_is_read_in_the_next_turn_alone(void **state)
{
    (void)state;
    struct ear ear;
    struct horon_error error;
    uint8_t data[8] = {0};
    bool moved = false;
    open_ear(&ear, RING);
    struct horon_transfer sends[] = {transfer_of(1, 1, data, 8), transfer_of(2, 2, data, 8)};
    struct horon_transfer other = transfer_of(1, 3, data, 8);
    post_send(ear.mesh.mux[1][0], &other);
    horon_mux_read_one(ear.mesh.mux[1][0], 8);
    assert_int_equal(horon_mux_progress(ear.mesh.mux[1][0], &moved, &error), HORON_OK);
    assert_true(moved);
    for
        EACH(i, sends)
    assert_true(horon_mux_send_now(ear.mesh.mux[0][1], &sends[i]));
    assert_int_equal(horon_mux_progress(ear.mesh.mux[1][0], &moved, &error), HORON_OK);
    assert_int_equal(ear.heard, 2);
    mesh_destroy(&ear.mesh);
}

/* One system call takes many frames: progress makes it. */
static void test_mux_now_does_not_go_by_a_socket(void **state)
{
    (void)state;
    struct mesh mesh;
    struct horon_mux_options options = mesh_options(EAGER, TOTAL);
    uint8_t data[8] = {0};
    mesh_create_tcp(&mesh, 2, &options);
    struct horon_transfer send = transfer_of(1, 1, data, 8);
    assert_false(horon_mux_send_now(mesh.mux[0][1], &send));
    mesh_destroy(&mesh);
}

/* What was posted, without a turn of the link. */
static void test_mux_push_sends_what_waits(void **state)
{
    (void)state;
    struct mesh mesh;
    struct horon_error error;
    struct horon_mux_options options = mesh_options(EAGER, TOTAL);
    uint8_t from[EAGER], to[EAGER];
    bool moved = false;
    mesh_create_tcp(&mesh, 2, &options);
    fill(from, EAGER, 3);
    struct horon_transfer send = transfer_of(1, 3, from, EAGER),
                          recv = transfer_of(1, 3, to, EAGER);
    post_recv(mesh.mux[1][0], &recv);
    horon_mux_push(mesh.mux[0][1]); /* nothing, so far */
    post_send(mesh.mux[0][1], &send);
    horon_mux_push(mesh.mux[0][1]);
    assert_true(send.done);
    while (!recv.done)
        assert_int_equal(horon_mux_progress(mesh.mux[1][0], &moved, &error), HORON_OK);
    check_filled(to, EAGER, 3);
    horon_mux_push(NULL);
    mesh_destroy(&mesh);
}

/* Of a ring of 64 bytes; what is left over, and a loss, are for progress. */
static void test_mux_push_leaves_a_full_or_lost_link_alone(void **state)
{
    (void)state;
    struct ear ear;
    struct horon_error error = {0};
    uint8_t from[EAGER], to[EAGER];
    uint64_t before, after, received;
    bool moved = false;
    open_ear(&ear, 64);
    fill(from, EAGER, 3);
    struct horon_mux *mux = ear.mesh.mux[0][1];
    struct horon_transfer send = transfer_of(1, 3, from, EAGER),
                          recv = transfer_of(1, 3, to, EAGER), next = transfer_of(2, 4, from, 8);
    post_recv(ear.mesh.mux[1][0], &recv);
    post_send(mux, &send);
    horon_mux_push(mux);
    horon_mux_bytes(mux, &before, &received);
    assert_false(send.done);
    assert_int_equal(horon_mux_progress(ear.mesh.mux[1][0], &moved, &error), HORON_OK);
    horon_mux_push(mux); /* it was full, and has not been asked since */
    horon_mux_bytes(mux, &after, &received);
    assert_int_equal(after, before);
    mesh_settle(&ear.mesh);
    assert_true(recv.done);
    check_filled(to, EAGER, 3);
    horon_mux_peer_gone(mux, "is gone");
    post_send(mux, &next);
    horon_mux_push(mux);
    assert_false(next.done);
    assert_int_equal(horon_mux_progress(mux, &moved, &error), HORON_ERR_PEER_LOST);
    mesh_destroy(&ear.mesh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mux_now_of_any_size_is_heard_of_and_arrives),
        cmocka_unit_test(test_mux_now_that_is_taken_when_heard_of_needs_no_post),
        cmocka_unit_test(test_mux_now_in_pieces_is_not_there_to_be_taken),
        cmocka_unit_test(test_mux_now_does_not_go_before_what_waits),
        cmocka_unit_test(test_mux_now_beyond_the_room_does_not_go),
        cmocka_unit_test(test_mux_now_withdrawn_half_sent_leaves_the_link_whole),
        cmocka_unit_test(test_mux_now_that_is_refused_ends_the_mux),
        cmocka_unit_test(test_mux_now_one_is_read_in_the_next_turn_alone),
        cmocka_unit_test(test_mux_now_does_not_go_by_a_socket),
        cmocka_unit_test(test_mux_push_sends_what_waits),
        cmocka_unit_test(test_mux_push_leaves_a_full_or_lost_link_alone),
    };
    return cmocka_run_group_tests(tests, make_noise, NULL);
}
