/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Muxes over rings that lend: a long transfer is read where it lies and does not go by the ring,
 * whichever side comes first; where that cannot be done it is sent; and what was withdrawn while it
 * was lent is never taken for what it was, whatever lies there since.
 */
#include "transfers.h"

#include "link/mux_frame.h"

#include <unistd.h>

#define EACH(i, list) (size_t i = 0; i < sizeof(list) / sizeof *(list); i++)

enum { EAGER = 100, TOTAL = 250, RING = 4096, PIECE = 1 << 20 };
enum order { RECV_FIRST, SEND_FIRST, LOAN_FIRST };

static bool lacks_memory; /* for the notes of what was withdrawn */

void *__real_horon_realloc(void *old, size_t bytes);
void *__wrap_horon_realloc(void *old, size_t bytes);

void *__wrap_horon_realloc(void *old, size_t bytes)
{
    return lacks_memory ? NULL : __real_horon_realloc(old, bytes);
}

static void open_mesh(struct mesh *mesh, size_t ring_bytes, pid_t pid)
{
    const struct horon_mux_options options = mesh_options(EAGER, TOTAL);
    mesh_create_lending(mesh, 2, ring_bytes, &options, pid);
}

static uint64_t ring_total(const struct mesh *mesh)
{
    return mesh->ring[0][1]->written + mesh->ring[1][0]->written;
}

static void check_bytes(const struct mesh *mesh, int rank, uint64_t sent, uint64_t received)
{
    uint64_t sent_here, received_here;
    horon_mux_bytes(mesh->mux[rank][!rank], &sent_here, &received_here);
    assert_int_equal(sent_here, sent);
    assert_int_equal(received_here, received);
}

static void one_transfer(size_t ring_bytes, size_t bytes, enum order order, pid_t pid)
{
    struct mesh mesh;
    uint8_t *from = malloc(bytes), *to = calloc(1, bytes);
    open_mesh(&mesh, ring_bytes, pid);
    fill(from, bytes, 3);
    struct horon_transfer send = transfer_of(1, 3, from, bytes),
                          recv = transfer_of(1, 3, to, bytes);
    if (order == RECV_FIRST)
        post_recv(mesh.mux[1][0], &recv);
    post_send(mesh.mux[0][1], &send);
    if (order == LOAN_FIRST)
        mesh_settle(&mesh);
    assert_false(recv.done);
    assert_false(send.done);
    if (order != RECV_FIRST)
        post_recv(mesh.mux[1][0], &recv);
    mesh_settle(&mesh);
    assert_true(send.done);
    assert_true(recv.done);
    check_filled(to, bytes, 3);
    check_bytes(&mesh, 0, bytes, 0);
    check_bytes(&mesh, 1, 0, bytes);
    if (pid > 0)
        assert_int_equal(ring_total(&mesh), 2 * HORON_MUX_HEADER_BYTES + HORON_MUX_LOAN_BYTES);
    assert_false(horon_mux_wants_write(mesh.mux[0][1]));
    assert_false(horon_mux_wants_turn(mesh.mux[1][0]));
    mesh_destroy(&mesh);
    free(from);
    free(to);
}

static void test_mux_loan_of_any_size_and_order_is_read_where_it_lies(void **state)
{
    (void)state;
    static const size_t sizes[] = {EAGER + 1, 4099, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 77};
    static const size_t rings[] = {1, 64, RING};
    for
        EACH(r, rings)
        for
            EACH(s, sizes)
        for (int order = RECV_FIRST; order <= LOAN_FIRST; order++)
            one_transfer(rings[r], sizes[s], (enum order)order, getpid());
}

static void test_mux_loan_that_cannot_be_read_is_sent(void **state)
{
    (void)state;
    static const size_t sizes[] = {EAGER + 1, 4099, PIECE + 1};
    for
        EACH(s, sizes)
    for (int order = RECV_FIRST; order <= LOAN_FIRST; order++)
        one_transfer(RING, sizes[s], (enum order)order, 0);
}

/* What is not long goes by the ring, and a receive that drops what comes reads nothing. */
static void test_mux_loan_is_of_long_ones_only_and_may_be_dropped(void **state)
{
    (void)state;
    struct mesh mesh;
    uint8_t from[4000], to[EAGER];
    open_mesh(&mesh, RING, getpid());
    fill(from, sizeof from, 1);
    struct horon_transfer send = transfer_of(1, 1, from, EAGER),
                          recv = transfer_of(1, 1, to, EAGER),
                          long_send = transfer_of(2, 1, from, sizeof from),
                          dropped = transfer_of(2, 1, NULL, sizeof from);
    post_send(mesh.mux[0][1], &send);
    mesh_settle(&mesh);
    assert_true(send.done); /* it waits for nobody */
    post_recv(mesh.mux[1][0], &recv);
    assert_true(recv.done);
    check_filled(to, EAGER, 1);
    post_send(mesh.mux[0][1], &long_send);
    post_recv(mesh.mux[1][0], &dropped);
    mesh_settle(&mesh);
    assert_true(long_send.done);
    assert_true(dropped.done);
    mesh_destroy(&mesh);
}

/* ---- Withdrawn ------------------------------------------------------------------------------ */

/* The sender has its memory back, and writes; another loan of its is good, and arrives. */
static void test_mux_loan_that_was_withdrawn_is_never_taken(void **state)
{
    (void)state;
    for (int heard = 0; heard < 2; heard++) {
        struct mesh mesh;
        static uint8_t from[2][4000], to[2][4000];
        struct horon_transfer sends[2], recvs[2];
        open_mesh(&mesh, RING, getpid());
        for (uint64_t i = 0; i < 2; i++) {
            fill(from[i], sizeof from[i], i);
            sends[i] = transfer_of(1 + i, 0, from[i], sizeof from[i]);
            recvs[i] = transfer_of(1 + i, 0, to[i], sizeof to[i]);
            post_send(mesh.mux[0][1], &sends[i]);
        }
        bool moved = false;
        struct horon_error error = {0};
        if (heard)
            mesh_settle(&mesh);
        else
            assert_int_equal(horon_mux_progress(mesh.mux[0][1], &moved, &error), HORON_OK);
        horon_mux_forget(mesh.mux[0][1], 5, 1);
        memset(from[0], 0xee, sizeof from[0]);
        for (int i = 0; i < 2; i++)
            post_recv(mesh.mux[1][0], &recvs[i]);
        mesh_settle(&mesh);
        assert_false(recvs[0].done);
        assert_false(sends[0].done);
        assert_true(recvs[1].done);
        assert_true(sends[1].done);
        check_filled(to[1], sizeof to[1], 1);
        horon_mux_forget(mesh.mux[1][0], 5, 1);
        mesh_settle(&mesh);
        mesh_destroy(&mesh);
    }
}

static void test_mux_loan_withdrawn_while_it_is_read_is_not_taken(void **state)
{
    (void)state;
    const size_t bytes = 3 * PIECE;
    struct mesh mesh;
    uint8_t *from = malloc(bytes), *to = calloc(1, bytes);
    open_mesh(&mesh, RING, getpid());
    fill(from, bytes, 3);
    struct horon_transfer send = transfer_of(1, 0, from, bytes),
                          recv = transfer_of(1, 0, to, bytes);
    post_recv(mesh.mux[1][0], &recv);
    post_send(mesh.mux[0][1], &send);
    while (recv.moved_bytes == 0)
        assert_true(mesh_progress(&mesh));
    assert_true(recv.moved_bytes < bytes); /* a turn is bounded */
    assert_true(horon_mux_wants_turn(mesh.mux[1][0]));
    horon_mux_forget(mesh.mux[0][1], 5, 1);
    memset(from, 0xee, bytes);
    mesh_settle(&mesh);
    assert_false(recv.done);
    assert_false(send.done);
    horon_mux_forget(mesh.mux[1][0], 5, 1);
    assert_false(horon_mux_wants_turn(mesh.mux[1][0]));
    mesh_destroy(&mesh);
    free(from);
    free(to);
}

/* In each state: before its loan comes, while it is read, before TAKEN has gone. */
static void test_mux_receive_of_a_loan_is_withdrawn_at_any_time(void **state)
{
    (void)state;
    const size_t bytes = 2 * PIECE;
    uint8_t *from = malloc(bytes), *to = calloc(1, bytes);
    fill(from, bytes, 3);
    for (int turns = 0; turns < 8; turns++) {
        struct mesh mesh;
        struct horon_error error = {0};
        bool moved = false;
        open_mesh(&mesh, RING, getpid());
        struct horon_transfer send = transfer_of(1, 0, from, bytes),
                              recv = transfer_of(1, 0, to, bytes);
        post_recv(mesh.mux[1][0], &recv);
        post_send(mesh.mux[0][1], &send);
        for (int i = 0; i < turns; i++)
            assert_int_equal(horon_mux_progress(mesh.mux[i & 1][!(i & 1)], &moved, &error),
                             HORON_OK);
        horon_mux_forget(mesh.mux[1][0], 5, 1);
        memset(to, 0xdd, bytes);
        mesh_settle(&mesh);
        for (size_t i = 0; i < bytes; i++) /* it was the poster's again */
            assert_true(to[i] == 0xdd);
        horon_mux_forget(mesh.mux[0][1], 5, 1);
        uint8_t more[4000], got[4000];
        fill(more, sizeof more, 4);
        send = transfer_of(2, 0, more, sizeof more);
        recv = transfer_of(2, 0, got, sizeof got);
        post_send(mesh.mux[0][1], &send);
        post_recv(mesh.mux[1][0], &recv);
        mesh_settle(&mesh);
        assert_true(send.done);
        assert_true(recv.done);
        check_filled(got, sizeof got, 4);
        mesh_destroy(&mesh);
    }
    free(from);
    free(to);
}

/* ---- Differences, and the dead -------------------------------------------------------------- */

static void test_mux_loan_of_another_size_is_told_to_the_receiver(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct mesh mesh;
        static uint8_t from[4000], to[4000];
        struct horon_error error = {0};
        open_mesh(&mesh, RING, getpid());
        memset(to, 0, sizeof to);
        fill(from, sizeof from, 1);
        struct horon_transfer send = transfer_of(1, 0, from, 4000),
                              recv = transfer_of(1, 0, to, first ? 3999 : 50);
        if (first)
            post_recv(mesh.mux[1][0], &recv);
        post_send(mesh.mux[0][1], &send);
        mesh_settle(&mesh);
        if (!first)
            assert_int_equal(horon_mux_post_recv(mesh.mux[1][0], &recv, &error),
                             HORON_ERR_MISMATCH);
        assert_int_equal(recv.status, HORON_ERR_MISMATCH);
        assert_false(recv.done);
        for (size_t i = 0; i < sizeof to; i++)
            assert_int_equal(to[i], 0);
        mesh_destroy(&mesh);
    }
}

/* Its end has gone, memory and all: what it lent cannot be read, and its loss is told. */
static void test_mux_loan_of_a_peer_that_is_gone_is_not_taken(void **state)
{
    (void)state;
    struct mesh mesh;
    struct horon_error error = {0};
    bool moved = true;
    uint8_t *from = malloc(4000), to[4000];
    open_mesh(&mesh, RING, getpid());
    struct horon_transfer send = transfer_of(1, 0, from, 4000), recv = transfer_of(1, 0, to, 4000);
    post_send(mesh.mux[0][1], &send);
    mesh_settle(&mesh);
    horon_mux_forget(mesh.mux[0][1], 5, 1);
    horon_mux_destroy(mesh.mux[0][1]);
    mesh.mux[0][1] = NULL;
    free(from);
    post_recv(mesh.mux[1][0], &recv);
    horon_status_t status = HORON_OK;
    while (status == HORON_OK && moved) {
        moved = false;
        status = horon_mux_progress(mesh.mux[1][0], &moved, &error);
    }
    assert_int_equal(status, HORON_ERR_PEER_LOST);
    assert_non_null(strstr(error.text, "rank 0 (host-0)"));
    assert_false(recv.done);
    mesh_destroy(&mesh);
}

/* Nobody has withdrawn what it lent, and the memory of its mux still holds what it did. */
static void test_mux_loan_of_a_mux_that_has_ended_is_not_taken(void **state)
{
    (void)state;
    enum { DESTROYED, FAILED, LACKED_MEMORY, ENDS };
    for (int how = 0; how < ENDS; how++) {
        struct mesh mesh;
        struct horon_error error = {0};
        bool moved = false;
        static uint8_t from[4000], to[4000];
        open_mesh(&mesh, RING, getpid());
        fill(from, sizeof from, 1);
        struct horon_transfer send = transfer_of(1, 0, from, sizeof from),
                              recv = transfer_of(1, 0, to, sizeof to);
        post_send(mesh.mux[0][1], &send);
        mesh_settle(&mesh);
        if (how == DESTROYED) {
            horon_mux_destroy(mesh.mux[0][1]);
            mesh.mux[0][1] = NULL;
        } else if (how == LACKED_MEMORY) {
            lacks_memory = true;
            horon_mux_forget(mesh.mux[0][1], 5, 2); /* another operation */
            lacks_memory = false;
            assert_int_equal(horon_mux_progress(mesh.mux[0][1], &moved, &error), HORON_ERR_MEMORY);
        } else {
            horon_mux_peer_gone(mesh.mux[0][1], "seems to be gone");
            assert_int_equal(horon_mux_progress(mesh.mux[0][1], &moved, &error),
                             HORON_ERR_PEER_LOST);
        }
        memset(from, 0xee, sizeof from);
        post_recv(mesh.mux[1][0], &recv);
        for (int i = 0; i < 5; i++)
            (void)horon_mux_progress(mesh.mux[1][0], &moved, &error);
        assert_false(recv.done);
        mesh_destroy(&mesh);
    }
}

/* ---- What an honest peer never says --------------------------------------------------------- */

static void say(struct mesh *mesh, struct horon_link *says, struct horon_mux_frame frame)
{
    uint8_t bytes[HORON_MUX_HEADER_BYTES + 4000] = {0};
    size_t sent = 0;
    (void)mesh;
    frame.generation = 1;
    frame.channel = 5;
    frame.check += 77;
    horon_mux_frame_encode(&frame, bytes);
    const struct iovec vector = {bytes, HORON_MUX_HEADER_BYTES + frame.body_bytes};
    assert_int_equal(says->ops->send(says, &vector, 1, &sent, NULL), HORON_OK);
    assert_int_equal(sent, vector.iov_len);
}

enum posted { NOTHING, RECEIVE, SEND };

/* @param frames  the last of them is refused; it, or the one before, has a body of 0 */
static void refused(enum posted posted, const struct horon_mux_frame *frames, int count,
                    const char *fault)
{
    struct mesh mesh;
    struct horon_link *says = NULL;
    struct horon_error error = {0};
    static uint8_t data[4000];
    bool moved = false;
    horon_status_t status = HORON_OK;
    open_mesh(&mesh, 1 << 16, getpid());
    horon_mux_destroy(mesh.mux[1][0]);
    mesh.mux[1][0] = NULL;
    mesh.ring[1][0]->writer_closed = 0;
    assert_int_equal(horon_link_ring_create(mesh.ring[1][0], mesh.ring[0][1], 1 << 16, NULL, &says),
                     HORON_OK);
    struct horon_transfer transfer = transfer_of(0, 0, data, 4000);
    if (posted == RECEIVE)
        post_recv(mesh.mux[0][1], &transfer);
    if (posted == SEND)
        post_send(mesh.mux[0][1], &transfer);
    if (posted == SEND)
        assert_int_equal(horon_mux_progress(mesh.mux[0][1], &moved, &error), HORON_OK);
    for (int i = 0; i < count; i++) {
        assert_int_equal(status, HORON_OK);
        say(&mesh, says, frames[i]);
        if (i > 0 || count == 1) /* the first two are heard in one turn */
            status = horon_mux_progress(mesh.mux[0][1], &moved, &error);
    }
    assert_int_equal(status, HORON_ERR_PROTO);
    if (!strstr(error.text, fault))
        fail_msg("expected \"%s\" in \"%s\"", fault, error.text);
    says->ops->destroy(says);
    mesh_destroy(&mesh);
}

static void test_mux_loan_that_an_honest_peer_does_not_give_is_refused(void **state)
{
    (void)state;
    const struct horon_mux_frame loan = {.type = HORON_MUX_LOAN,
                                         .bytes = 4000,
                                         .body_bytes = HORON_MUX_LOAN_BYTES},
                                 taken = {.type = HORON_MUX_TAKEN, .bytes = 4000},
                                 want = {.type = HORON_MUX_WANT, .bytes = 4000},
                                 credit = {.type = HORON_MUX_CREDIT, .bytes = 4000},
                                 eager = {.type = HORON_MUX_DATA,
                                          .flags = HORON_MUX_FLAG_EAGER,
                                          .bytes = 4000,
                                          .body_bytes = 50},
                                 data = {.type = HORON_MUX_DATA, .bytes = 4000, .body_bytes = 50};
    struct horon_mux_frame brief = loan, less = taken, other = taken;
    brief.bytes = EAGER;
    less.bytes = 3999;
    other.check = 1;
    const struct {
        enum posted posted;
        struct horon_mux_frame frames[2];
        int count;
        const char *fault;
    } cases[] = {
        {NOTHING, {brief}, 1, "lent what is to be sent"},
        {NOTHING, {want}, 1, "asked for credit"},
        {NOTHING, {credit}, 1, "gave credit"},
        {NOTHING, {taken}, 1, "took what was not lent"},
        {NOTHING, {eager}, 1, "more data without credit"},
        {NOTHING, {loan, loan}, 2, "asked for credit that it has"},
        {RECEIVE, {loan, loan}, 2, "asked for credit that it has"},
        {RECEIVE, {loan, data}, 2, "sent data that it has lent"},
        {RECEIVE, {loan, want}, 2, "asked for credit that it has"},
        {RECEIVE, {eager}, 1, "more data without credit"},
        {RECEIVE, {data}, 1, "before it had credit"},
        {SEND, {less}, 1, "took what was not lent"},
        {SEND, {other}, 1, "took what was not lent"},
        {SEND, {taken, taken}, 2, "took what was not lent"},
        {SEND, {credit, taken}, 2, "took what was not lent"},
        {SEND, {credit, credit}, 2, "gave credit"},
    };
    for
        EACH(i, cases)
    refused(cases[i].posted, cases[i].frames, cases[i].count, cases[i].fault);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mux_loan_of_any_size_and_order_is_read_where_it_lies),
        cmocka_unit_test(test_mux_loan_that_cannot_be_read_is_sent),
        cmocka_unit_test(test_mux_loan_is_of_long_ones_only_and_may_be_dropped),
        cmocka_unit_test(test_mux_loan_that_was_withdrawn_is_never_taken),
        cmocka_unit_test(test_mux_loan_withdrawn_while_it_is_read_is_not_taken),
        cmocka_unit_test(test_mux_receive_of_a_loan_is_withdrawn_at_any_time),
        cmocka_unit_test(test_mux_loan_of_another_size_is_told_to_the_receiver),
        cmocka_unit_test(test_mux_loan_of_a_peer_that_is_gone_is_not_taken),
        cmocka_unit_test(test_mux_loan_of_a_mux_that_has_ended_is_not_taken),
        cmocka_unit_test(test_mux_loan_that_an_honest_peer_does_not_give_is_refused),
    };
    return cmocka_run_group_tests(tests, make_noise, NULL);
}
