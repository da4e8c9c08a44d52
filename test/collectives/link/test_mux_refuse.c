/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an honest peer never says: each frame here ends the mux with ERR_PROTO and a text that names
 * peer and fault, and one step before the fault all is well. The peer is a bare ring that the test
 * writes to.
 */
#include "transfers.h"

#include "link/mux_announced.h"
#include "link/mux_frame.h"

enum { EAGER = 100, TOTAL = 250, BODY_MAX = 4000 };

struct rogue {
    struct mesh mesh;
    struct horon_link *says; /* the end whose mux was taken away: frames are written here */
    struct horon_mux *mux;   /* the one under test; its peer is rank 1 */
    struct horon_transfer posted[4];
    uint8_t data[BODY_MAX];
};

static bool is_channel_9(void *arg, uint32_t channel)
{
    (void)arg;
    return channel == 9;
}

static void rogue_open(struct rogue *rogue)
{
    struct horon_mux_options options = mesh_options(EAGER, TOTAL);
    options.is_over = is_channel_9;
    memset(rogue, 0, sizeof *rogue);
    mesh_create_rings(&rogue->mesh, 2, 1u << 16, &options);
    horon_mux_destroy(rogue->mesh.mux[1][0]);
    rogue->mesh.mux[1][0] = NULL;
    rogue->mesh.ring[1][0]->writer_closed = 0;
    assert_int_equal(horon_link_ring_create(rogue->mesh.ring[1][0], rogue->mesh.ring[0][1],
                                            1u << 16, NULL, &rogue->says),
                     HORON_OK);
    rogue->mux = rogue->mesh.mux[0][1];
}

static void rogue_close(struct rogue *rogue)
{
    rogue->says->ops->destroy(rogue->says);
    mesh_destroy(&rogue->mesh);
}

static void say(struct rogue *rogue, const struct horon_mux_frame *frame)
{
    static uint8_t bytes[HORON_MUX_HEADER_BYTES + BODY_MAX];
    struct horon_mux_frame sent = *frame;
    sent.generation = 1;
    sent.channel = frame->channel ? frame->channel : 5;
    sent.check = 77 + frame->sequence; /* as transfer_of() */
    horon_mux_frame_encode(&sent, bytes);
    const struct iovec vector = {.iov_base = bytes,
                                 .iov_len = HORON_MUX_HEADER_BYTES + frame->body_bytes};
    size_t moved = 0;
    assert_int_equal(rogue->says->ops->send(rogue->says, &vector, 1, &moved, NULL), HORON_OK);
    assert_int_equal(moved, vector.iov_len);
}

static horon_status_t hear(struct rogue *rogue, struct horon_error *error)
{
    bool moved = false;
    return horon_mux_progress(rogue->mux, &moved, error);
}

static void taken(struct rogue *rogue, struct horon_mux_frame frame)
{
    struct horon_error error = {0};
    say(rogue, &frame);
    if (hear(rogue, &error))
        fail_msg("%s", error.text);
}

/* The last frame of a case: closes it. */
static void refused(struct rogue *rogue, struct horon_mux_frame frame, const char *fault)
{
    struct horon_error error = {0};
    say(rogue, &frame);
    assert_int_equal(hear(rogue, &error), HORON_ERR_PROTO);
    assert_non_null(strstr(error.text, "rank 1 (host-1) "));
    if (!strstr(error.text, fault))
        fail_msg("expected \"%s\" in \"%s\"", fault, error.text);
    rogue_close(rogue);
}

static struct horon_mux_frame data(uint64_t tag, size_t bytes, size_t offset, size_t body,
                                   bool eager)
{
    return (struct horon_mux_frame){.type = HORON_MUX_DATA,
                                    .flags = eager ? HORON_MUX_FLAG_EAGER : 0,
                                    .tag = tag,
                                    .bytes = bytes,
                                    .offset = offset,
                                    .body_bytes = (uint32_t)body};
}

static struct horon_mux_frame about(enum horon_mux_type type, uint64_t tag, size_t bytes)
{
    return (struct horon_mux_frame){.type = (uint8_t)type, .tag = tag, .bytes = bytes};
}

static void posts_recv(struct rogue *rogue, uint64_t tag, size_t bytes)
{
    rogue->posted[tag] = transfer_of(0, tag, rogue->data, bytes);
    post_recv(rogue->mux, &rogue->posted[tag]);
}

static void posts_send(struct rogue *rogue, uint64_t tag, size_t bytes)
{
    rogue->posted[tag] = transfer_of(0, tag, rogue->data, bytes);
    post_send(rogue->mux, &rogue->posted[tag]);
}

static void test_mux_data_without_credit_is_refused(void **state)
{
    (void)state;
    struct rogue rogue;
    rogue_open(&rogue);
    refused(&rogue, data(0, 50, 0, 50, false), "before it had credit");
    rogue_open(&rogue);
    posts_recv(&rogue, 0, 50); /* a short one has none unless it asked */
    refused(&rogue, data(0, 50, 0, 50, false), "before it had credit");
    rogue_open(&rogue);
    posts_recv(&rogue, 0, 1000); /* its credit waits behind messages that fill the link */
    for (int i = 0; i < 2000; i++)
        assert_int_equal(horon_mux_post_control(rogue.mux, rogue.data, 40), HORON_OK);
    refused(&rogue, data(0, 1000, 0, 200, false), "before it had credit");
}

static void test_mux_eager_data_beyond_its_share_is_refused(void **state)
{
    (void)state;
    struct rogue rogue;
    rogue_open(&rogue);
    refused(&rogue, data(0, 200, 0, EAGER + 1, true), "more data without credit");
    rogue_open(&rogue);
    posts_recv(&rogue, 0, 200);
    taken(&rogue, data(0, 200, 0, EAGER, true));
    refused(&rogue, data(0, 200, EAGER, 1, true), "more data without credit");
    rogue_open(&rogue);
    taken(&rogue, data(0, EAGER, 0, EAGER, true));
    taken(&rogue, data(1, EAGER, 0, EAGER, true));
    refused(&rogue, data(2, 51, 0, 1, true), "more data without credit"); /* 50 are left */
}

static void test_mux_eager_transfers_beyond_their_number_are_refused(void **state)
{
    (void)state;
    struct rogue rogue;
    rogue_open(&rogue);
    for (uint64_t tag = 0; tag < HORON_MUX_EAGER_TRANSFERS_MAX; tag++)
        taken(&rogue, data(tag, 0, 0, 0, true));
    refused(&rogue, data(HORON_MUX_EAGER_TRANSFERS_MAX, 0, 0, 0, true), "more data without credit");
}

static void test_mux_pieces_out_of_order_are_refused(void **state)
{
    (void)state;
    struct rogue rogue;
    rogue_open(&rogue);
    refused(&rogue, data(0, 50, 10, 10, true), "out of order");
    rogue_open(&rogue);
    posts_recv(&rogue, 0, 50);
    refused(&rogue, data(0, 50, 10, 10, true), "out of order");
    rogue_open(&rogue);
    taken(&rogue, data(0, 50, 0, 10, true));
    taken(&rogue, data(0, 50, 10, 10, true));
    refused(&rogue, data(0, 50, 10, 10, true), "out of order");
    rogue_open(&rogue);
    taken(&rogue, data(0, 0, 0, 0, true));
    refused(&rogue, data(0, 0, 0, 0, true), "out of order"); /* twice */
}

static void test_mux_transfer_announced_otherwise_is_refused(void **state)
{
    (void)state;
    struct rogue rogue;
    rogue_open(&rogue);
    taken(&rogue, data(0, 50, 0, 10, true));
    refused(&rogue, data(0, 51, 10, 10, true), "announced otherwise");
    rogue_open(&rogue);
    taken(&rogue, about(HORON_MUX_WANT, 0, 50));
    refused(&rogue, data(0, 50, 0, 50, true), "announced otherwise");
    rogue_open(&rogue);
    taken(&rogue, about(HORON_MUX_WANT, 0, 50));
    posts_recv(&rogue, 0, 50); /* it has asked, so it must wait */
    refused(&rogue, data(0, 50, 0, 50, true), "more data without credit");
}

static void test_mux_credit_that_nobody_asked_for_is_refused(void **state)
{
    (void)state;
    struct rogue rogue;
    rogue_open(&rogue);
    refused(&rogue, about(HORON_MUX_CREDIT, 0, EAGER), "gave credit");
    rogue_open(&rogue);
    posts_send(&rogue, 0, 50);
    refused(&rogue, about(HORON_MUX_CREDIT, 0, 50), "gave credit");
    rogue_open(&rogue);
    taken(&rogue, about(HORON_MUX_CREDIT, 0, 1000));
    refused(&rogue, about(HORON_MUX_CREDIT, 0, 1000), "gave credit"); /* twice */
    rogue_open(&rogue);
    posts_send(&rogue, 0, 3000);
    for (int i = 0; i < 2000; i++) /* so that it is in flight for a while */
        assert_int_equal(horon_mux_post_control(rogue.mux, rogue.data, 40), HORON_OK);
    taken(&rogue, about(HORON_MUX_CREDIT, 0, 3000));
    refused(&rogue, about(HORON_MUX_CREDIT, 0, 3000), "gave credit");
}

static void test_mux_want_of_what_needs_none_is_refused(void **state)
{
    (void)state;
    struct rogue rogue;
    rogue_open(&rogue);
    refused(&rogue, about(HORON_MUX_WANT, 0, EAGER + 1), "asked for credit");
    rogue_open(&rogue);
    taken(&rogue, about(HORON_MUX_WANT, 0, 50));
    refused(&rogue, about(HORON_MUX_WANT, 0, 50), "asked for credit");
    rogue_open(&rogue);
    taken(&rogue, data(0, 50, 0, 50, true));
    refused(&rogue, about(HORON_MUX_WANT, 0, 50), "asked for credit");
    rogue_open(&rogue);
    posts_recv(&rogue, 0, 50);
    taken(&rogue, data(0, 50, 0, 10, true));
    refused(&rogue, about(HORON_MUX_WANT, 0, 50), "asked for credit");
}

static void test_mux_more_room_than_was_taken_is_refused(void **state)
{
    (void)state;
    struct rogue rogue;
    struct horon_mux_frame frame = {.type = HORON_MUX_ROOM, .returned_bytes = 1};
    rogue_open(&rogue);
    refused(&rogue, frame, "gave back more eager room");
    frame = (struct horon_mux_frame){.type = HORON_MUX_ROOM, .returned_transfers = 1};
    rogue_open(&rogue);
    refused(&rogue, frame, "gave back more eager room");
    rogue_open(&rogue);
    posts_send(&rogue, 0, 50);
    frame.returned_bytes = 50;
    taken(&rogue, frame);
    refused(&rogue, frame, "gave back more eager room");
}

/* What is returned is room of data that was sent: room that a send has only reserved is given back
 * by its own end when the operation is forgotten, and twice would be more than there is. */
static void test_mux_room_of_what_was_not_sent_is_refused(void **state)
{
    (void)state;
    const struct horon_mux_frame frame = {
        .type = HORON_MUX_ROOM, .returned_bytes = 50, .returned_transfers = 1};
    struct rogue rogue;
    rogue_open(&rogue);
    for (int i = 0; i < 2000; i++) /* they fill the link: the send behind them makes no frame */
        assert_int_equal(horon_mux_post_control(rogue.mux, rogue.data, 40), HORON_OK);
    posts_send(&rogue, 0, 50);
    refused(&rogue, frame, "gave back more eager room");
}

/* ---- what is not refused ---- */

static void test_mux_frames_of_a_forgotten_operation_are_dropped(void **state)
{
    (void)state;
    struct rogue rogue;
    rogue_open(&rogue);
    horon_mux_forget(rogue.mux, 5, 0);
    taken(&rogue, data(0, 50, 0, 50, true));
    taken(&rogue, data(1, 1000, 300, 200, false));
    taken(&rogue, about(HORON_MUX_WANT, 2, 50));
    taken(&rogue, about(HORON_MUX_CREDIT, 3, 1000));
    /* as many others later as may be in flight, still */
    const uint64_t most = HORON_MUX_WAITING_MAX + 2 * HORON_MUX_EAGER_TRANSFERS_MAX;
    for (uint64_t sequence = 1; sequence < most; sequence++)
        horon_mux_forget(rogue.mux, 5, sequence);
    taken(&rogue, data(0, 50, 0, 50, true));
    rogue_close(&rogue);
}

static void test_mux_frames_of_a_channel_that_is_over_are_dropped(void **state)
{
    (void)state;
    struct horon_mux_frame frames[] = {data(0, 50, 0, 50, true), data(1, 1000, 300, 200, false),
                                       about(HORON_MUX_WANT, 2, 50),
                                       about(HORON_MUX_CREDIT, 3, 1000)};
    struct rogue rogue;
    rogue_open(&rogue);
    for (int i = 0; i < 4; i++) {
        frames[i].channel = 9;
        taken(&rogue, frames[i]);
    }
    for (int i = 0; i < 3 * (int)HORON_MUX_EAGER_TRANSFERS_MAX; i++) /* they take no room */
        taken(&rogue, frames[0]);
    rogue_close(&rogue);
}

static void test_mux_posts_beyond_their_number_get_a_status(void **state)
{
    (void)state;
    static struct horon_transfer transfers[2][HORON_MUX_WAITING_MAX + 1];
    static uint8_t byte[200];
    struct mesh mesh;
    const struct horon_mux_options options = mesh_options(EAGER, 0);
    struct horon_error error = {0};
    mesh_create_rings(&mesh, 2, 4096, &options);
    for (uint64_t i = 0; i <= HORON_MUX_WAITING_MAX; i++) {
        transfers[0][i] = transfer_of(i, 0, byte, 200);
        transfers[1][i] = transfer_of(i, 0, byte, 1);
        if (i == HORON_MUX_WAITING_MAX)
            break;
        post_recv(mesh.mux[0][1], &transfers[0][i]);
        post_send(mesh.mux[0][1], &transfers[1][i]);
    }
    assert_int_equal(
        horon_mux_post_recv(mesh.mux[0][1], &transfers[0][HORON_MUX_WAITING_MAX], &error),
        HORON_ERR_MEMORY);
    assert_non_null(strstr(error.text, "from rank 1 (host-1)"));
    assert_int_equal(
        horon_mux_post_send(mesh.mux[0][1], &transfers[1][HORON_MUX_WAITING_MAX], &error),
        HORON_ERR_MEMORY);
    assert_non_null(strstr(error.text, "to rank 1 (host-1)"));
    mesh_destroy(&mesh);
}

static horon_status_t keep(void *arg, int peer, const void *bytes, size_t byte_count,
                           struct horon_error *error)
{
    (void)peer;
    (void)error;
    memcpy(arg, bytes, byte_count);
    return HORON_OK;
}

/* The connection breaks under our sends; why it did was said before, and is heard. */
static void test_mux_last_words_are_heard_when_sending_fails(void **state)
{
    (void)state;
    char words[64] = "";
    int sockets[2];
    struct mesh mesh;
    struct horon_link *links[2];
    struct horon_mux_options options = mesh_options(EAGER, TOTAL);
    struct horon_error error = {0};
    mesh_tcp_pair(sockets);
    memset(&mesh, 0, sizeof mesh);
    mesh.size = 2;
    options.on_control = keep;
    options.arg = words;
    options.peer_name = "rank 1 (host-1)";
    for (int i = 0; i < 2; i++) {
        assert_int_equal(horon_link_tcp_create(sockets[i], 10000, &links[i], &error), HORON_OK);
        assert_int_equal(horon_mux_create(links[i], &options, &mesh.mux[i][!i]), HORON_OK);
    }
    bool moved = false;
    assert_int_equal(horon_mux_post_control(mesh.mux[1][0], "out of memory", 14), HORON_OK);
    assert_int_equal(horon_mux_progress(mesh.mux[1][0], &moved, &error), HORON_OK);
    horon_mux_destroy(mesh.mux[1][0]);
    mesh.mux[1][0] = NULL;
    /* nobody reads this side until the reset for what it sends has come back */
    horon_status_t status = HORON_OK;
    const struct iovec junk = {.iov_base = words, .iov_len = 1};
    while (status != HORON_ERR_PEER_LOST) {
        size_t sent = 0;
        status = links[0]->ops->send(links[0], &junk, 1, &sent, &error);
    }
    assert_string_equal(words, "");
    assert_int_equal(horon_mux_post_control(mesh.mux[0][1], "hm", 3), HORON_OK);
    status = HORON_OK;
    for (int turn = 0; turn < 10 && status == HORON_OK; turn++)
        status = horon_mux_progress(mesh.mux[0][1], &moved, &error);
    assert_int_equal(status, HORON_ERR_PEER_LOST);
    assert_string_equal(words, "out of memory");
    assert_int_equal(horon_mux_post_control(mesh.mux[0][1], "hm", 3), HORON_OK); /* dropped */
    assert_false(horon_mux_wants_write(mesh.mux[0][1]));
    mesh_destroy(&mesh);
}

/* As in a turn: the one that follows tells whose fault it is. */
static void test_mux_refused_without_a_turn_is_the_peers_fault(void **state)
{
    (void)state;
    for (int in_turn = 0; in_turn < 2; in_turn++) {
        struct rogue rogue;
        struct horon_error error = {.blame = {.rank = -1}};
        rogue_open(&rogue);
        const struct horon_mux_frame frame = data(1, 100, 0, 50, false);
        say(&rogue, &frame);
        if (!in_turn)
            assert_false(horon_mux_read_one(rogue.mux, 100));
        assert_int_equal(hear(&rogue, &error), HORON_ERR_PROTO);
        assert_int_equal(error.blame.rank, 1);
        rogue_close(&rogue);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mux_data_without_credit_is_refused),
        cmocka_unit_test(test_mux_refused_without_a_turn_is_the_peers_fault),
        cmocka_unit_test(test_mux_eager_data_beyond_its_share_is_refused),
        cmocka_unit_test(test_mux_eager_transfers_beyond_their_number_are_refused),
        cmocka_unit_test(test_mux_pieces_out_of_order_are_refused),
        cmocka_unit_test(test_mux_transfer_announced_otherwise_is_refused),
        cmocka_unit_test(test_mux_credit_that_nobody_asked_for_is_refused),
        cmocka_unit_test(test_mux_want_of_what_needs_none_is_refused),
        cmocka_unit_test(test_mux_more_room_than_was_taken_is_refused),
        cmocka_unit_test(test_mux_room_of_what_was_not_sent_is_refused),
        cmocka_unit_test(test_mux_frames_of_a_forgotten_operation_are_dropped),
        cmocka_unit_test(test_mux_frames_of_a_channel_that_is_over_are_dropped),
        cmocka_unit_test(test_mux_posts_beyond_their_number_get_a_status),
        cmocka_unit_test(test_mux_last_words_are_heard_when_sending_fails),
    };
    return cmocka_run_group_tests(tests, make_noise, NULL);
}
