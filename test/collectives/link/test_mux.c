/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two muxes, or a mesh of them, over rings of any size, driven in one thread: what is posted in any
 * order arrives whole, a difference is told to both sides, an operation that was given up leaves
 * the link as it was, and overlapping channels in opposite order finish with the smallest buffers.
 */
#include "transfers.h"

#include <stdlib.h>
#include <string.h>

#define EACH(i, list) (size_t i = 0; i < sizeof(list) / sizeof *(list); i++)

static const size_t ring_sizes[] = {1, 64, 256, 4096, 1u << 20};
static const size_t transfer_sizes[] = {0, 1, 13, 64, 65, 1009, 65536, 65537, 1048576 + 300};

enum order { RECV_FIRST, SEND_FIRST, DATA_FIRST };

static void one_transfer(size_t ring_bytes, size_t bytes, size_t eager, size_t eager_total,
                         enum order order)
{
    struct mesh mesh;
    const struct horon_mux_options options = mesh_options(eager, eager_total);
    uint8_t *from = malloc(bytes + 1), *to = calloc(1, bytes + 1);
    mesh_create_rings(&mesh, 2, ring_bytes, &options);
    fill(from, bytes, 3);
    struct horon_transfer send = transfer_of(1, 3, from, bytes),
                          recv = transfer_of(1, 3, to, bytes);
    if (order == RECV_FIRST)
        post_recv(mesh.mux[1][0], &recv);
    post_send(mesh.mux[0][1], &send);
    if (order == DATA_FIRST)
        mesh_settle(&mesh);
    assert_false(recv.done);
    assert_true(order == RECV_FIRST || bytes <= eager || !send.done);
    if (order != RECV_FIRST)
        post_recv(mesh.mux[1][0], &recv);
    mesh_settle(&mesh);
    assert_true(send.done);
    assert_true(recv.done);
    check_filled(to, bytes, 3);
    uint64_t sent, received;
    horon_mux_bytes(mesh.mux[0][1], &sent, &received);
    assert_int_equal(sent, bytes);
    assert_int_equal(received, 0);
    horon_mux_bytes(mesh.mux[1][0], &sent, &received);
    assert_int_equal(sent, 0);
    assert_int_equal(received, bytes);
    assert_false(horon_mux_wants_write(mesh.mux[0][1]));
    assert_false(horon_mux_wants_write(mesh.mux[1][0]));
    mesh_destroy(&mesh);
    free(from);
    free(to);
}

static void test_mux_transfer_of_any_size_and_order_arrives(void **state)
{
    (void)state;
    static const size_t eager[][2] = {
        {65536, 1u << 20}, {4u << 20, 8u << 20}, {64, 256}, {1, 1}, {0, 0}, {65536, 100}};
    for
        EACH(r, ring_sizes)
        {
        for
            EACH(b, transfer_sizes)
            {
            for
                EACH(e, eager)
                {
                    if (transfer_sizes[b] > 1000 * ring_sizes[r])
                        continue; /* byte by byte, to no purpose */
                    for (int order = RECV_FIRST; order <= DATA_FIRST; order++)
                        one_transfer(ring_sizes[r], transfer_sizes[b], eager[e][0], eager[e][1],
                                     (enum order)order);
                }
            }
        }
}

/* ---- control ---- */

struct heard {
    uint8_t bytes[100001];
    size_t byte_count;
    int messages;
    horon_status_t answer;
};

static horon_status_t hear(void *arg, int peer, const void *bytes, size_t byte_count,
                           struct horon_error *error)
{
    struct heard *heard = arg;
    assert_in_range(peer, 0, 1);
    memcpy(heard->bytes, bytes, byte_count);
    heard->byte_count = byte_count;
    heard->messages++;
    return heard->answer ? horon_error_set(error, heard->answer, "not understood") : HORON_OK;
}

static void test_mux_control_of_any_size_arrives_whole(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 13, 1009, 16383, 16384, 16385, 100000};
    static struct heard heard;
    uint8_t *message = malloc(100001);
    for
        EACH(r, ring_sizes)
        {
            struct mesh mesh;
            struct horon_mux_options options = mesh_options(64, 256);
            options.on_control = hear;
            options.arg = &heard;
            mesh_create_rings(&mesh, 2, ring_sizes[r], &options);
        for
            EACH(s, sizes)
            {
                const int before = heard.messages;
                fill(message, sizes[s], s);
                assert_int_equal(horon_mux_post_control(mesh.mux[0][1], message, sizes[s]),
                                 HORON_OK);
                mesh_settle(&mesh);
                assert_int_equal(heard.messages, before + 1);
                assert_int_equal(heard.byte_count, sizes[s]);
                check_filled(heard.bytes, sizes[s], s);
            }
        assert_int_equal(horon_mux_post_control(mesh.mux[0][1], message, 100001),
                         HORON_ERR_INVALID);
        mesh_destroy(&mesh);
        }
    free(message);
}

static void test_mux_control_passes_a_long_transfer(void **state)
{
    (void)state;
    static struct heard heard;
    const size_t bytes = 8u << 20;
    struct mesh mesh;
    struct horon_mux_options options = mesh_options(1024, 4096);
    options.on_control = hear;
    options.arg = &heard;
    uint8_t *data = calloc(2, bytes);
    mesh_create_rings(&mesh, 2, 65536, &options);
    struct horon_transfer send = transfer_of(1, 1, data, bytes);
    struct horon_transfer recv = transfer_of(1, 1, data + bytes, bytes);
    post_recv(mesh.mux[1][0], &recv);
    post_send(mesh.mux[0][1], &send);
    for (int i = 0; i < 10; i++)
        mesh_progress(&mesh);
    assert_false(send.done);
    assert_int_equal(horon_mux_post_control(mesh.mux[0][1], "halt", 4), HORON_OK);
    while (heard.messages == 0)
        assert_true(mesh_progress(&mesh));
    assert_false(recv.done); /* it came before the end of what was posted before it */
    assert_true(recv.moved_bytes < bytes - (2u << 20));
    mesh_settle(&mesh);
    assert_true(recv.done);
    mesh_destroy(&mesh);
    free(data);
}

static void test_mux_control_that_is_refused_ends_the_mux(void **state)
{
    (void)state;
    static struct heard heard = {.answer = HORON_ERR_PROTO};
    struct mesh mesh;
    struct horon_mux_options options = mesh_options(64, 256);
    struct horon_error error = {0};
    bool moved = false;
    options.on_control = hear;
    options.arg = &heard;
    mesh_create_rings(&mesh, 2, 4096, &options);
    assert_int_equal(horon_mux_post_control(mesh.mux[0][1], "?", 1), HORON_OK);
    assert_int_equal(horon_mux_progress(mesh.mux[0][1], &moved, &error), HORON_OK);
    assert_int_equal(horon_mux_progress(mesh.mux[1][0], &moved, &error), HORON_ERR_PROTO);
    assert_string_equal(error.text, "not understood");
    memset(&error, 0, sizeof error);
    assert_int_equal(horon_mux_progress(mesh.mux[1][0], &moved, &error), HORON_ERR_PROTO);
    assert_string_equal(error.text, "not understood"); /* says so each time */
    mesh_destroy(&mesh);
}

/* ---- differences ---- */

struct differing {
    struct mesh mesh;
    struct horon_transfer send, recv;
    uint8_t from[4096], to[4096];
};

static void check_told(const struct differing *d, int rank, const struct horon_transfer *transfer)
{
    struct horon_error error = {0};
    assert_int_equal(transfer->status, HORON_ERR_MISMATCH);
    assert_false(transfer->done);
    assert_int_equal(horon_mux_transfer_error(d->mesh.mux[rank][!rank], transfer, &error),
                     HORON_ERR_MISMATCH);
    assert_non_null(strstr(error.text, rank ? "rank 0 (host-0)" : "rank 1 (host-1)"));
    assert_non_null(strstr(error.text, "sequence 9"));
}

/* The link goes on after a difference: another operation, both ways. */
static void check_goes_on(struct differing *d)
{
    uint8_t from[2][300], to[2][300] = {{0}};
    struct horon_transfer sends[2], recvs[2];
    for (int r = 0; r < 2; r++) {
        horon_mux_forget(d->mesh.mux[r][!r], 5, 9);
        fill(from[r], 300, 8 + (uint64_t)r);
        sends[r] = transfer_of(10, 0, from[r], 300);
        recvs[r] = transfer_of(10, 0, to[r], 300);
        post_send(d->mesh.mux[r][!r], &sends[r]);
        post_recv(d->mesh.mux[r][!r], &recvs[r]);
    }
    mesh_settle(&d->mesh);
    for (int r = 0; r < 2; r++) {
        assert_true(sends[r].done);
        assert_true(recvs[r].done);
        check_filled(to[r], 300, 8 + (uint64_t)!r);
    }
}

static void differ(size_t send_bytes, size_t recv_bytes, uint64_t check_flip, uint64_t tag_flip,
                   enum order order)
{
    struct differing d = {0};
    struct horon_error error = {0};
    const struct horon_mux_options options = mesh_options(64, 256);
    mesh_create_rings(&d.mesh, 2, 256, &options);
    d.send = transfer_of(9, 1, d.from, send_bytes);
    d.recv = transfer_of(9, 1 ^ tag_flip, d.to, recv_bytes);
    d.recv.check ^= check_flip;
    if (order == DATA_FIRST) {
        post_send(d.mesh.mux[0][1], &d.send);
        mesh_settle(&d.mesh);
        assert_int_equal(horon_mux_post_recv(d.mesh.mux[1][0], &d.recv, &error),
                         HORON_ERR_MISMATCH);
    } else {
        post_recv(d.mesh.mux[1][0], &d.recv);
        post_send(d.mesh.mux[0][1], &d.send);
        mesh_settle(&d.mesh);
    }
    check_told(&d, 1, &d.recv);
    for (size_t i = 0; i < sizeof d.to; i++)
        assert_int_equal(d.to[i], 0); /* nothing was written */
    check_goes_on(&d);
    mesh_destroy(&d.mesh);
}

static void test_mux_another_size_or_check_is_told_to_the_receiver(void **state)
{
    (void)state;
    for (int order = RECV_FIRST; order <= DATA_FIRST; order += 2) {
        differ(40, 41, 0, 0, (enum order)order);
        differ(40, 4000, 0, 0, (enum order)order);
        differ(4000, 40, 0, 0, (enum order)order);
        differ(40, 40, 1, 0, (enum order)order);
        differ(4000, 4000, 1, 0, (enum order)order);
        differ(0, 0, 1, 0, (enum order)order);
        differ(40, 40, 1, 2, (enum order)order); /* other pieces, other check: still found */
        differ(4000, 40, 1, 2, (enum order)order);
    }
}

static void test_mux_another_check_is_told_to_the_sender_of_a_long_one(void **state)
{
    (void)state;
    struct differing d = {0};
    struct horon_error error = {0};
    const struct horon_mux_options options = mesh_options(64, 256);
    mesh_create_rings(&d.mesh, 2, 256, &options);
    d.send = transfer_of(9, 1, d.from, 4000);
    d.recv = transfer_of(9, 1, d.to, 4000);
    d.recv.check++;
    post_send(d.mesh.mux[0][1], &d.send);
    post_recv(d.mesh.mux[1][0], &d.recv);
    mesh_settle(&d.mesh);
    check_told(&d, 0, &d.send);
    check_told(&d, 1, &d.recv);
    check_goes_on(&d);
    /* credit that came first */
    d.recv = transfer_of(12, 1, d.to, 4000);
    d.send = transfer_of(12, 1, d.from, 4001);
    post_recv(d.mesh.mux[1][0], &d.recv);
    mesh_settle(&d.mesh);
    assert_int_equal(horon_mux_post_send(d.mesh.mux[0][1], &d.send, &error), HORON_ERR_MISMATCH);
    assert_non_null(strstr(error.text, "4001"));
    assert_non_null(strstr(error.text, "4000"));
    mesh_destroy(&d.mesh);
}

/* ---- the end of a peer ---- */

static void test_mux_of_a_peer_that_left_names_it(void **state)
{
    (void)state;
    struct mesh mesh;
    const struct horon_mux_options options = mesh_options(64, 256);
    struct horon_error error = {0};
    bool moved = false;
    uint8_t to[10], from[10];
    mesh_create_rings(&mesh, 2, 4096, &options);
    fill(from, 10, 1);
    struct horon_transfer send = transfer_of(1, 1, from, 10), recv = transfer_of(1, 1, to, 10);
    post_send(mesh.mux[1][0], &send);
    mesh_settle(&mesh);
    horon_mux_destroy(mesh.mux[1][0]);
    mesh.mux[1][0] = NULL;
    post_recv(mesh.mux[0][1], &recv);
    assert_true(recv.done); /* what was sent before is not lost */
    assert_int_equal(horon_mux_progress(mesh.mux[0][1], &moved, &error), HORON_ERR_PEER_LOST);
    assert_string_equal(error.text, "rank 1 (host-1) closed the connection without leaving the job "
                                    "(killed, crashed, or it exited)");
    mesh_destroy(&mesh);
}

static void test_mux_of_another_generation_is_refused(void **state)
{
    (void)state;
    struct mesh mesh;
    struct horon_mux_options options = mesh_options(64, 256);
    struct horon_error error = {0};
    struct horon_link *link = NULL;
    bool moved = false;
    mesh_create_rings(&mesh, 2, 4096, &options);
    horon_mux_destroy(mesh.mux[1][0]);
    mesh.ring[1][0]->writer_closed = 0;
    assert_int_equal(horon_link_ring_create(mesh.ring[1][0], mesh.ring[0][1], 4096, NULL, &link),
                     HORON_OK);
    options.generation = 2;
    options.peer_name = "rank 0";
    assert_int_equal(horon_mux_create(link, &options, &mesh.mux[1][0]), HORON_OK);
    assert_int_equal(horon_mux_post_control(mesh.mux[1][0], "x", 1), HORON_OK);
    assert_int_equal(horon_mux_progress(mesh.mux[1][0], &moved, &error), HORON_OK);
    assert_int_equal(horon_mux_progress(mesh.mux[0][1], &moved, &error), HORON_ERR_PROTO);
    assert_string_equal(error.text, "rank 1 (host-1) sent a frame of generation 2, this is 1");
    mesh_destroy(&mesh);
}

/* ---- a peer that said all it had to say, and went ---- */

/* A link whose way out breaks, as a socket's does on the reset that answers it; what the peer sent
 * before is still there to read. */
struct half_link {
    struct horon_link base;
    struct horon_link *whole; /* owned */
    bool broken;
};

static horon_status_t half_send(struct horon_link *link, const struct iovec *vector, int count,
                                size_t *sent_bytes_out, struct horon_error *error)
{
    struct half_link *half = (struct half_link *)link;
    if (half->broken)
        return horon_error_set(error, HORON_ERR_PEER_LOST, "reset the connection");
    return half->whole->ops->send(half->whole, vector, count, sent_bytes_out, error);
}

static horon_status_t half_recv(struct horon_link *link, const struct iovec *vector, int count,
                                size_t *got_bytes_out, struct horon_error *error)
{
    struct half_link *half = (struct half_link *)link;
    return half->whole->ops->recv(half->whole, vector, count, got_bytes_out, error);
}

static void half_destroy(struct horon_link *link)
{
    ((struct half_link *)link)->whole->ops->destroy(((struct half_link *)link)->whole);
}

static const struct horon_link_ops half_ops = {
    .name = "half",
    .send = half_send,
    .recv = half_recv,
    .descriptor = horon_link_no_descriptor,
    .interest = horon_link_plain_interest,
    .ready = horon_link_always_ready,
    .found = horon_link_finds_nothing,
    .undelivered = horon_link_nothing_undelivered,
    .check = horon_link_always_answers,
    .destroy = half_destroy,
};

/* Rank 0's end becomes such a link. */
static void break_way_out(struct mesh *mesh, size_t ring_bytes, struct horon_mux_options *options,
                          struct half_link *half)
{
    horon_mux_destroy(mesh->mux[0][1]);
    mesh->ring[0][1]->writer_closed = 0;
    half->base.ops = &half_ops;
    half->broken = true;
    assert_int_equal(
        horon_link_ring_create(mesh->ring[0][1], mesh->ring[1][0], ring_bytes, NULL, &half->whole),
        HORON_OK);
    options->peer = 1;
    options->peer_name = mesh->names[1];
    assert_int_equal(horon_mux_create(&half->base, options, &mesh->mux[0][1]), HORON_OK);
}

static horon_status_t hear_goodbye(void *arg, int peer, const void *bytes, size_t byte_count,
                                   struct horon_error *error)
{
    (void)error;
    assert_int_equal(peer, 1);
    assert_int_equal(byte_count, 7);
    assert_memory_equal(bytes, "goodbye", 7);
    ++*(int *)arg;
    return HORON_OK;
}

/* Far more than one turn reads lies there, and the goodbye last of all. */
static void test_mux_reads_all_that_a_departed_peer_sent_although_it_cannot_send(void **state)
{
    (void)state;
    enum { COUNT = 900, BYTES = 1000, RING_BYTES = 1 << 20 };
    static struct horon_transfer sends[COUNT], recvs[COUNT];
    static uint8_t from[COUNT][BYTES], to[COUNT][BYTES];
    for (int closes = 0; closes < 2; closes++) {
        struct mesh mesh;
        struct half_link half = {0};
        struct horon_error error = {0};
        int goodbyes = 0;
        struct horon_mux_options options = mesh_options(BYTES, COUNT * BYTES);
        mesh_create_rings(&mesh, 2, RING_BYTES, &options);
        options.on_control = hear_goodbye;
        options.arg = &goodbyes;
        break_way_out(&mesh, RING_BYTES, &options, &half);
        for (size_t i = 0; i < COUNT; i++) {
            fill(from[i], BYTES, i);
            sends[i] = transfer_of(1, i, from[i], BYTES);
            recvs[i] = transfer_of(1, i, to[i], BYTES);
            post_send(mesh.mux[1][0], &sends[i]);
        }
        while (!sends[COUNT - 1].done)
            assert_int_equal(horon_mux_progress(mesh.mux[1][0], &(bool){false}, NULL), HORON_OK);
        assert_int_equal(horon_mux_post_control(mesh.mux[1][0], "goodbye", 7), HORON_OK);
        assert_int_equal(horon_mux_progress(mesh.mux[1][0], &(bool){false}, NULL), HORON_OK);
        if (closes) {
            horon_mux_destroy(mesh.mux[1][0]);
            mesh.mux[1][0] = NULL;
        }
        assert_int_equal(horon_mux_post_control(mesh.mux[0][1], "x", 1), HORON_OK);
        int turns = 0;
        while (horon_mux_progress(mesh.mux[0][1], &(bool){false}, &error) == HORON_OK) {
            assert_true(horon_mux_has_unsent(mesh.mux[0][1])); /* turns go on until it is settled */
            assert_true(turns++ < COUNT);
        }
        assert_true(turns > 1);
        assert_int_equal(error.status, HORON_ERR_PEER_LOST);
        assert_string_equal(error.text, "rank 1 (host-1) reset the connection");
        assert_false(horon_mux_wants_write(mesh.mux[0][1]));
        assert_int_equal(goodbyes, 1);
        for (size_t i = 0; i < COUNT; i++) {
            post_recv(mesh.mux[0][1], &recvs[i]);
            assert_true(recvs[i].done);
            check_filled(to[i], BYTES, i);
        }
        mesh_destroy(&mesh);
    }
}

static void test_mux_of_a_peer_that_is_gone_sends_no_more_and_reads_the_rest(void **state)
{
    (void)state;
    struct mesh mesh;
    struct horon_mux_options options = mesh_options(64, 256);
    struct horon_error error = {0};
    int goodbyes = 0;
    options.on_control = hear_goodbye;
    options.arg = &goodbyes;
    mesh_create_rings(&mesh, 2, 64, &options); /* less than a message: full at once */
    for (int i = 0; i < 2; i++)
        assert_int_equal(horon_mux_post_control(mesh.mux[i][!i], "goodbye", 7), HORON_OK);
    assert_int_equal(horon_mux_progress(mesh.mux[1][0], &(bool){false}, NULL), HORON_OK);
    horon_mux_peer_gone(mesh.mux[0][1], "is gone");
    while (horon_mux_progress(mesh.mux[0][1], &(bool){false}, &error) == HORON_OK)
        (void)horon_mux_progress(mesh.mux[1][0], &(bool){false}, NULL);
    assert_string_equal(error.text, "rank 1 (host-1) is gone");
    assert_false(horon_mux_wants_write(mesh.mux[0][1]));
    assert_int_equal(goodbyes, 1);
    mesh_destroy(&mesh);
}

/* ---- eager room ---- */

static void test_mux_unposted_transfers_beyond_the_room_wait_for_credit(void **state)
{
    (void)state;
    enum { COUNT = 3000, BYTES = 8 };
    struct mesh mesh;
    const struct horon_mux_options options = mesh_options(64, 80);
    static struct horon_transfer sends[COUNT], recvs[COUNT];
    static uint8_t from[COUNT][BYTES], to[COUNT][BYTES];
    mesh_create_rings(&mesh, 2, 4096, &options);
    for (uint64_t i = 0; i < COUNT; i++) {
        const size_t bytes = i % 3 ? BYTES : 0;
        fill(from[i], bytes, i);
        sends[i] = transfer_of(i / 10, i, from[i], bytes);
        recvs[i] = transfer_of(i / 10, i, to[i], bytes);
        post_send(mesh.mux[0][1], &sends[i]);
    }
    mesh_settle(&mesh);
    size_t eager_bytes = 0, eager = 0;
    for (size_t i = 0; i < COUNT; i++) {
        eager += sends[i].done;
        eager_bytes += sends[i].done ? sends[i].bytes : 0;
    }
    assert_int_equal(eager_bytes, 80);
    assert_true(eager <= HORON_MUX_EAGER_TRANSFERS_MAX);
    for (size_t i = COUNT; i-- > 0;) { /* the last first: nothing before it is in its way */
        post_recv(mesh.mux[1][0], &recvs[i]);
        mesh_settle(&mesh);
        assert_true(recvs[i].done);
        assert_true(sends[i].done);
        check_filled(to[i], recvs[i].bytes, i);
    }
    check_room(&mesh, 0, &options);
    mesh_destroy(&mesh);
}

/* ---- giving up ---- */

static void test_mux_forgotten_operation_leaves_the_link_whole(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 400; seed++) {
        static struct differing d;
        struct seeded random = seeded_from(seed);
        const struct horon_mux_options options =
            mesh_options((size_t)seeded_below(&random, 2000), 4000);
        memset(&d, 0, sizeof d);
        mesh_create_rings(&d.mesh, 2, (size_t)64 << seeded_below(&random, 6), &options);
        d.send = transfer_of(9, 1, d.from, (size_t)seeded_below(&random, 4096));
        d.recv = transfer_of(9, 1, d.to, d.send.bytes);
        fill(d.from, d.send.bytes, 1);
        const bool posts_recv = seeded_below(&random, 2);
        post_send(d.mesh.mux[0][1], &d.send);
        if (posts_recv)
            post_recv(d.mesh.mux[1][0], &d.recv);
        for (uint64_t i = seeded_below(&random, 30); i > 0; i--)
            mesh_progress_any(&d.mesh, &random);
        const int first = (int)seeded_below(&random, 2);
        horon_mux_forget(d.mesh.mux[first][!first], 5, 9);
        memset(first ? d.to : d.from, 0xee, sizeof d.to); /* it is the owner's again */
        for (uint64_t i = seeded_below(&random, 30); i > 0; i--)
            mesh_progress_any(&d.mesh, &random);
        if (d.recv.done && !first)
            check_filled(d.to, d.recv.bytes, 1); /* done means whole, also then */
        if (first) {
            for (size_t i = 0; i < sizeof d.to; i++)
                assert_int_equal(d.to[i], 0xee); /* nobody writes it any more */
        }
        check_goes_on(&d);
        check_room(&d.mesh, 0, &options);
        check_room(&d.mesh, 1, &options);
        mesh_destroy(&d.mesh);
    }
}

/* A control message fills the link, so a send that took room is not begun when its credit comes. */
static void test_mux_credit_before_the_first_frame_gives_the_room_back(void **state)
{
    (void)state;
    struct mesh mesh;
    const struct horon_mux_options options = mesh_options(64, 64);
    static uint8_t message[500], from[1000], to[1000];
    bool moved = false;
    mesh_create_rings(&mesh, 2, 64, &options);
    struct horon_transfer send = transfer_of(1, 0, from, 1000), recv = transfer_of(1, 0, to, 1000);
    assert_int_equal(horon_mux_post_control(mesh.mux[0][1], message, 500), HORON_OK);
    assert_int_equal(horon_mux_progress(mesh.mux[0][1], &moved, NULL), HORON_OK);
    post_send(mesh.mux[0][1], &send);
    post_recv(mesh.mux[1][0], &recv);
    assert_int_equal(horon_mux_progress(mesh.mux[1][0], &moved, NULL), HORON_OK);
    mesh_settle(&mesh);
    assert_true(send.done);
    assert_true(recv.done);
    check_room(&mesh, 0, &options);
    mesh_destroy(&mesh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mux_transfer_of_any_size_and_order_arrives),
        cmocka_unit_test(test_mux_control_of_any_size_arrives_whole),
        cmocka_unit_test(test_mux_control_passes_a_long_transfer),
        cmocka_unit_test(test_mux_control_that_is_refused_ends_the_mux),
        cmocka_unit_test(test_mux_another_size_or_check_is_told_to_the_receiver),
        cmocka_unit_test(test_mux_another_check_is_told_to_the_sender_of_a_long_one),
        cmocka_unit_test(test_mux_of_a_peer_that_left_names_it),
        cmocka_unit_test(test_mux_of_another_generation_is_refused),
        cmocka_unit_test(test_mux_reads_all_that_a_departed_peer_sent_although_it_cannot_send),
        cmocka_unit_test(test_mux_of_a_peer_that_is_gone_sends_no_more_and_reads_the_rest),
        cmocka_unit_test(test_mux_unposted_transfers_beyond_the_room_wait_for_credit),
        cmocka_unit_test(test_mux_forgotten_operation_leaves_the_link_whole),
        cmocka_unit_test(test_mux_credit_before_the_first_frame_gives_the_room_back),
    };
    return cmocka_run_group_tests(tests, make_noise, NULL);
}
