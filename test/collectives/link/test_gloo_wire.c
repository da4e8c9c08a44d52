/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of Gloo's wire: the bytes, in any cut, and what a peer must not send. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "link/gloo_wire.h"

#include <stdlib.h>
#include <string.h>

#define FRAME HORON_GLOO_FRAME_BYTES

/* A link whose other end is the test. */
struct memory_link {
    struct horon_link base;
    uint8_t in[1 << 16], out[1 << 16];
    size_t in_at, in_end, out_end;
    size_t cut; /* bytes that one call moves at most */
    int writes;
    bool over;
    bool full; /* takes nothing now */
    bool shut; /* takes nothing any more */
};

static struct memory_link memory;

static horon_status_t memory_send(struct horon_link *link, const struct iovec *vector, int count,
                                  size_t *sent_bytes_out, struct horon_error *error)
{
    (void)link;
    size_t left = memory.cut;
    if (memory.shut)
        return horon_link_ended("reset", error);
    if (memory.full)
        return HORON_AGAIN;
    for (int i = 0; i < count && left > 0; i++) {
        const size_t part = vector[i].iov_len < left ? vector[i].iov_len : left;
        assert_true(memory.out_end + part <= sizeof memory.out);
        memcpy(memory.out + memory.out_end, vector[i].iov_base, part);
        memory.out_end += part;
        left -= part;
    }
    memory.writes++;
    *sent_bytes_out = memory.cut - left;
    return HORON_OK;
}

static horon_status_t memory_recv(struct horon_link *link, const struct iovec *vector, int count,
                                  size_t *got_bytes_out, struct horon_error *error)
{
    (void)link;
    size_t left = memory.in_end - memory.in_at;
    left = left < memory.cut ? left : memory.cut;
    if (left == 0)
        return memory.over ? horon_link_ended("closed", error) : HORON_AGAIN;
    *got_bytes_out = 0;
    for (int i = 0; i < count && left > 0; i++) {
        const size_t part = left < vector[i].iov_len ? left : vector[i].iov_len;
        memcpy(vector[i].iov_base, memory.in + memory.in_at, part);
        memory.in_at += part;
        *got_bytes_out += part;
        left -= part;
    }
    return HORON_OK;
}

static void memory_destroy(struct horon_link *link)
{
    (void)link;
}

static const struct horon_link_ops memory_ops = {
    .name = "memory", .send = memory_send, .recv = memory_recv, .destroy = memory_destroy};

static struct horon_gloo_pair *pair;

static void come(uint64_t code, uint64_t slot, uint64_t length)
{
    const struct horon_gloo_frame frame = {.code = code, .slot = slot, .length = length};
    horon_gloo_frame_encode(&frame, memory.in + memory.in_end);
    memory.in_end += FRAME;
}

static void come_data(const void *data, size_t bytes)
{
    memcpy(memory.in + memory.in_end, data, bytes);
    memory.in_end += bytes;
}

/* Until nothing more goes: a call does a bounded amount. */
static horon_status_t move(void)
{
    struct horon_error error = {0};
    horon_status_t status = HORON_OK;
    for (bool moved = true; moved && status == HORON_OK;) {
        moved = false;
        status = horon_gloo_pair_move(pair, &moved, &error);
    }
    assert_true(status == HORON_OK || error.text[0]);
    return status;
}

static void expect(size_t at, uint64_t code, uint64_t slot, uint64_t length)
{
    struct horon_gloo_frame frame;
    assert_true(memory.out_end >= at + FRAME);
    assert_true(horon_gloo_frame_decode(memory.out + at, &frame));
    assert_int_equal(frame.code, code);
    assert_int_equal(frame.slot, slot);
    assert_int_equal(frame.length, length);
}

/* One that is not native says that it has joined, which no test looks at again. */
static void open_pair(bool native, size_t cut)
{
    memset(&memory, 0, sizeof memory);
    memory.base.ops = &memory_ops;
    memory.cut = cut;
    assert_int_equal(horon_gloo_pair_create(&memory.base, native, &pair), HORON_OK);
    if (!native) {
        assert_int_equal(move(), HORON_OK);
        expect(0, HORON_GLOO_JOINED, 0, 0);
        memory.out_end = 0;
    }
}

/* The other end is a horon, too. */
static void open_horon(size_t cut)
{
    open_pair(true, cut);
    come(HORON_GLOO_HELLO, 0, 0);
}

static void test_gloo_frame_has_these_bytes(void **state)
{
    const struct horon_gloo_frame frame = {
        .code = HORON_GLOO_SEND, .slot = UINT64_C(0x0400000005000000), .length = 3};
    const uint8_t golden[FRAME] = {51, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
                                   0,  0, 0, 5, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0,
                                   3,  0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    uint8_t bytes[FRAME];
    (void)state;
    horon_gloo_frame_encode(&frame, bytes);
    assert_memory_equal(bytes, golden, sizeof golden);
}

/* Cuts of all lengths up to a frame and a bit. */
#define FOR_CUTS(cut) for (size_t cut = 1; cut < FRAME + 9; cut++)

static void test_gloo_send_waits_for_its_credit(void **state)
{
    (void)state;
    FOR_CUTS(cut)
    {
        struct horon_gloo_message message = {.slot = 7, .data = "abc", .bytes = 3};
        open_pair(false, cut);
        assert_int_equal(horon_gloo_pair_send(pair, &message), HORON_OK);
        assert_int_equal(move(), HORON_OK);
        assert_int_equal(memory.out_end, FRAME);
        expect(0, HORON_GLOO_SEND_READY, 7, 3);
        come(HORON_GLOO_RECV_READY, 8, 3); /* another slot's */
        assert_int_equal(move(), HORON_OK);
        assert_false(message.done);
        come(HORON_GLOO_RECV_READY, 7, 3);
        assert_int_equal(move(), HORON_OK);
        assert_true(message.done);
        assert_int_equal(memory.out_end, 2 * FRAME + 3);
        expect(FRAME, HORON_GLOO_SEND, 7, 3);
        assert_memory_equal(memory.out + 2 * FRAME, "abc", 3);
        horon_gloo_pair_destroy(pair);
    }
}

static void test_gloo_credit_may_come_first(void **state)
{
    struct horon_gloo_message message = {.slot = 7, .data = "abc", .bytes = 3};
    (void)state;
    open_pair(false, 1000);
    come(HORON_GLOO_RECV_READY, 7, 3);
    assert_int_equal(move(), HORON_OK);
    assert_int_equal(horon_gloo_pair_send(pair, &message), HORON_OK);
    assert_int_equal(move(), HORON_OK);
    assert_true(message.done);
    expect(0, HORON_GLOO_SEND_READY, 7, 3);
    expect(FRAME, HORON_GLOO_SEND, 7, 3);
    horon_gloo_pair_destroy(pair);
}

/* More than one write takes; each lies behind the other, in whatever pieces they go. */
static void test_gloo_what_may_go_goes_together(void **state)
{
    enum { MANY = 9 };
    struct horon_gloo_message messages[MANY];
    (void)state;
    for (size_t cut = 1; cut < MANY * (2 * FRAME + 3) + 9; cut += 7) {
        open_pair(false, cut);
        for (unsigned i = 0; i < MANY; i++) {
            messages[i] = (struct horon_gloo_message){.slot = i, .data = "abc", .bytes = i % 4};
            assert_int_equal(horon_gloo_pair_send(pair, &messages[i]), HORON_OK);
            come(HORON_GLOO_RECV_READY, i, 3);
        }
        assert_int_equal(move(), HORON_OK);
        for (size_t i = 0, at = MANY * FRAME; i < MANY; at += FRAME + i++ % 4) {
            assert_true(messages[i].done);
            expect(i * FRAME, HORON_GLOO_SEND_READY, i, i % 4);
            expect(at, HORON_GLOO_SEND, i, i % 4);
            assert_memory_equal(memory.out + at + FRAME, "abc", i % 4);
        }
        horon_gloo_pair_destroy(pair);
    }
    assert_in_range(memory.writes, 1, 4); /* of the last, which is cut nowhere */
}

static void test_gloo_recv_gives_a_credit_and_takes_what_comes(void **state)
{
    (void)state;
    FOR_CUTS(cut)
    {
        char room[8] = "";
        size_t bytes = 0;
        struct horon_gloo_message message = {.slot = 9, .data = room, .bytes = sizeof room};
        open_pair(false, cut);
        assert_false(horon_gloo_pair_announced(pair, 9, &bytes));
        come(HORON_GLOO_SEND_READY, 9, 5);
        come(77, 9, 0); /* nobody knows it */
        assert_int_equal(move(), HORON_OK);
        assert_true(horon_gloo_pair_announced(pair, 9, &bytes));
        assert_int_equal(bytes, 5);
        assert_int_equal(horon_gloo_pair_recv(pair, &message), HORON_OK);
        assert_int_equal(move(), HORON_OK);
        expect(0, HORON_GLOO_RECV_READY, 9, sizeof room);
        come(HORON_GLOO_SEND, 9, 5);
        come_data("hello", 5);
        assert_int_equal(move(), HORON_OK);
        assert_true(message.done);
        assert_int_equal(message.got, 5);
        assert_string_equal(room, "hello");
        assert_false(horon_gloo_pair_announced(pair, 9, &bytes));
        horon_gloo_pair_destroy(pair);
    }
}

static void test_gloo_horons_spare_each_other_credits(void **state)
{
    (void)state;
    FOR_CUTS(cut)
    {
        char room[4] = "";
        struct horon_gloo_message out = {.slot = 1, .data = "xyz", .bytes = 3};
        struct horon_gloo_message in = {.slot = 1, .data = room, .bytes = 3};
        size_t bytes = 0;
        open_horon(cut);
        come(HORON_GLOO_EAGER, 1, 3); /* before anybody awaits it */
        come_data("abc", 3);
        assert_int_equal(move(), HORON_OK);
        expect(0, HORON_GLOO_HELLO, 0, 0);
        assert_true(horon_gloo_pair_is_native(pair));
        assert_true(horon_gloo_pair_announced(pair, 1, &bytes));
        assert_int_equal(bytes, 3);
        assert_int_equal(horon_gloo_pair_recv(pair, &in), HORON_OK);
        assert_true(in.done);
        assert_string_equal(room, "abc");
        assert_int_equal(horon_gloo_pair_send(pair, &out), HORON_OK);
        assert_int_equal(move(), HORON_OK);
        assert_true(out.done);
        assert_int_equal(memory.out_end, 2 * FRAME + 3);
        expect(FRAME, HORON_GLOO_EAGER, 1, 3);
        horon_gloo_pair_destroy(pair);
    }
}

/* The receiver gives the first that it awaits to what is announced first. */
static void test_gloo_announcement_waits_for_what_goes_eagerly(void **state)
{
    static const char bytes[HORON_GLOO_EAGER_BYTES + 1] = "abc";
    (void)state;
    FOR_CUTS(cut)
    {
        struct horon_gloo_message eager = {.slot = 5, .data = (void *)bytes, .bytes = 3},
                                  next = {.slot = 5, .data = (void *)bytes, .bytes = 2},
                                  asked = {.slot = 5, .data = (void *)bytes, .bytes = sizeof bytes};
        open_horon(cut);
        assert_int_equal(move(), HORON_OK);
        assert_int_equal(memory.out_end, FRAME);
        assert_int_equal(horon_gloo_pair_send(pair, &eager), HORON_OK);
        assert_int_equal(horon_gloo_pair_send(pair, &asked), HORON_OK);
        assert_int_equal(horon_gloo_pair_send(pair, &next), HORON_OK);
        assert_int_equal(move(), HORON_OK);
        expect(FRAME, HORON_GLOO_EAGER, 5, 3);
        expect(2 * FRAME + 3, HORON_GLOO_ASK, 5, sizeof bytes);
        expect(3 * FRAME + 3, HORON_GLOO_SEND_READY, 5, 2);
        assert_int_equal(memory.out_end, 4 * FRAME + 3);
        horon_gloo_pair_destroy(pair);
    }
}

/* Nor may it go before what has its credit and goes first. */
static void test_gloo_announcement_does_not_pass_with_what_has_its_credit(void **state)
{
    static const char bytes[HORON_GLOO_EAGER_BYTES + 1] = "abc";
    (void)state;
    FOR_CUTS(cut)
    {
        struct horon_gloo_message first = {.slot = 1, .data = (void *)bytes, .bytes = 1},
                                  eager = {.slot = 5, .data = (void *)bytes, .bytes = 3},
                                  asked = {.slot = 5, .data = (void *)bytes, .bytes = sizeof bytes};
        open_pair(true, cut);
        assert_int_equal(horon_gloo_pair_send(pair, &first), HORON_OK);
        assert_int_equal(move(), HORON_OK);
        memory.full = true;
        come(HORON_GLOO_HELLO, 0, 0);
        come(HORON_GLOO_RECV_READY, 1, 1);
        assert_int_equal(move(), HORON_OK);
        assert_int_equal(horon_gloo_pair_send(pair, &eager), HORON_OK);
        assert_int_equal(horon_gloo_pair_send(pair, &asked), HORON_OK);
        memory.full = false;
        assert_int_equal(move(), HORON_OK);
        expect(2 * FRAME, HORON_GLOO_SEND, 1, 1);
        expect(3 * FRAME + 1, HORON_GLOO_EAGER, 5, 3);
        expect(4 * FRAME + 4, HORON_GLOO_ASK, 5, sizeof bytes);
        horon_gloo_pair_destroy(pair);
    }
}

/* They come together, and the second one's receive is there only once the first one has ended. */
static void test_gloo_long_messages_wait_for_their_receives(void **state)
{
    static char data[2][10000], room[2][10000];
    struct horon_gloo_message in[2];
    struct horon_error error = {0};
    (void)state;
    memset(data[0], 'a', sizeof data[0]);
    memset(data[1], 'b', sizeof data[1]);
    open_horon(100000);
    assert_int_equal(move(), HORON_OK);
    for (int i = 0; i < 2; i++) {
        in[i] = (struct horon_gloo_message){.slot = 1, .data = room[i], .bytes = sizeof room[i]};
        come(HORON_GLOO_EAGER, 1, sizeof data[i]);
        come_data(data[i], sizeof data[i]);
    }
    for (int i = 0; i < 2; i++) {
        size_t bytes;
        assert_false(horon_gloo_pair_announced(pair, 1, &bytes));
        assert_int_equal(horon_gloo_pair_recv(pair, &in[i]), HORON_OK);
        for (bool moved = true; moved && !in[i].done;) {
            moved = false;
            assert_int_equal(horon_gloo_pair_move(pair, &moved, &error), HORON_OK);
        }
        assert_true(in[i].done);
        assert_memory_equal(room[i], data[i], sizeof data[i]);
    }
    horon_gloo_pair_destroy(pair);
}

/* Its receive may be posted once its head has come: that much is known then, and the rest of it
 * goes where it belongs. Longer than the room it goes nowhere. */
static void test_gloo_long_message_that_has_begun_to_come_is_taken_over(void **state)
{
    static char data[10000], room[10000];
    struct horon_error error = {0};
    (void)state;
    for (int i = 0; i < (int)sizeof data; i++)
        data[i] = (char)(i % 127);
    for (size_t short_of = 0; short_of < 2; short_of++) {
        struct horon_gloo_message in = {.slot = 1, .data = room, .bytes = sizeof room - short_of};
        size_t bytes = 0;
        bool moved = false;
        memset(room, 'r', sizeof room);
        open_horon(3000);
        come(HORON_GLOO_EAGER, 1, sizeof data);
        come_data(data, sizeof data);
        assert_int_equal(horon_gloo_pair_move(pair, &moved, &error), HORON_OK);
        assert_true(horon_gloo_pair_announced(pair, 1, &bytes));
        assert_int_equal(bytes, sizeof data);
        assert_int_equal(horon_gloo_pair_recv(pair, &in), HORON_OK);
        assert_false(in.done);
        assert_false(horon_gloo_pair_announced(pair, 1, &bytes));
        assert_int_equal(move(), HORON_OK);
        assert_true(in.done);
        assert_int_equal(in.got, sizeof data);
        if (!short_of)
            assert_memory_equal(room, data, sizeof data);
        else
            assert_int_equal(room[0], 'r');
        horon_gloo_pair_destroy(pair);
    }
}

/* It is taken, and goes nowhere; what is behind it is as ever. */
static void test_gloo_message_that_is_longer_than_its_room_is_dropped(void **state)
{
    (void)state;
    FOR_CUTS(cut)
    {
        for (int early = 0; early < 2; early++) {
            char room[4] = "---", next[4] = "";
            struct horon_gloo_message in = {.slot = 1, .data = room, .bytes = 2};
            struct horon_gloo_message behind = {.slot = 1, .data = next, .bytes = 3};
            open_pair(early, cut);
            if (early)
                come(HORON_GLOO_HELLO, 0, 0);
            else
                assert_int_equal(horon_gloo_pair_recv(pair, &in), HORON_OK);
            come(early ? HORON_GLOO_EAGER : HORON_GLOO_SEND, 1, 7);
            come_data("abcdefg", 7);
            assert_int_equal(move(), HORON_OK);
            if (early)
                assert_int_equal(horon_gloo_pair_recv(pair, &in), HORON_OK);
            assert_true(in.done);
            assert_int_equal(in.got, 7);
            assert_string_equal(room, "---");
            assert_int_equal(horon_gloo_pair_recv(pair, &behind), HORON_OK);
            come(early ? HORON_GLOO_EAGER : HORON_GLOO_SEND, 1, 3);
            come_data("xyz", 3);
            assert_int_equal(move(), HORON_OK);
            assert_true(behind.done);
            assert_string_equal(next, "xyz");
            horon_gloo_pair_destroy(pair);
        }
    }
}

/* What was announced before the other end was known to be a horon goes first, and so does what is
 * behind it on its slot. */
static void test_gloo_order_holds_when_the_other_end_turns_out_a_horon(void **state)
{
    struct horon_gloo_message first = {.slot = 1, .data = "1", .bytes = 1};
    struct horon_gloo_message second = {.slot = 1, .data = "2", .bytes = 1};
    struct horon_gloo_message other = {.slot = 2, .data = "3", .bytes = 1};
    (void)state;
    open_pair(true, 1000);
    assert_int_equal(horon_gloo_pair_send(pair, &first), HORON_OK);
    come(HORON_GLOO_HELLO, 0, 0);
    assert_int_equal(move(), HORON_OK);
    assert_int_equal(horon_gloo_pair_send(pair, &second), HORON_OK);
    assert_int_equal(horon_gloo_pair_send(pair, &other), HORON_OK);
    assert_int_equal(move(), HORON_OK);
    assert_false(first.done || second.done);
    assert_true(other.done);
    come(HORON_GLOO_RECV_READY, 1, 1);
    come(HORON_GLOO_RECV_READY, 1, 1);
    assert_int_equal(move(), HORON_OK);
    assert_true(first.done);
    assert_true(second.done);
    assert_memory_equal(memory.out + memory.out_end - FRAME - 2, "1", 1);
    assert_memory_equal(memory.out + memory.out_end - 1, "2", 1);
    horon_gloo_pair_destroy(pair);
}

static void expect_refusal(void)
{
    assert_int_equal(move(), HORON_ERR_PROTO);
    horon_gloo_pair_destroy(pair);
}

static void test_gloo_what_a_peer_must_not_send_breaks_the_pair(void **state)
{
    (void)state;
    open_pair(false, 1000); /* nobody awaits it */
    come(HORON_GLOO_SEND, 1, 0);
    expect_refusal();
    open_pair(true, 1000); /* of a horon, but it has not said so */
    come(HORON_GLOO_EAGER, 1, 0);
    expect_refusal();
    open_horon(1000); /* beyond the window */
    come(HORON_GLOO_EAGER, 1, HORON_GLOO_WINDOW_BYTES + 1);
    expect_refusal();
    open_horon(1000); /* more than there is to give back */
    come(HORON_GLOO_TAKEN, 0, 1);
    expect_refusal();
    open_horon(1000); /* nothing was asked */
    come(HORON_GLOO_GRANT, 1, 1);
    expect_refusal();
    open_pair(false, 1000); /* to memory that is not registered */
    come(HORON_GLOO_SEND_BUFFER, 1, 0);
    expect_refusal();
    open_pair(false, 1000); /* lengths that do not agree */
    come(HORON_GLOO_RECV_READY, 1, 1);
    memory.in[0] = 49;
    expect_refusal();
}

static void test_gloo_peer_that_closes_is_lost(void **state)
{
    struct horon_gloo_message message = {.slot = 1};
    (void)state;
    open_pair(true, 1000);
    memory.over = true;
    assert_int_equal(move(), HORON_OK); /* nobody waits for it */
    assert_non_null(horon_gloo_pair_end(pair));
    assert_int_equal(horon_gloo_pair_recv(pair, &message), HORON_OK);
    assert_int_equal(move(), HORON_ERR_PEER_LOST);
    horon_gloo_pair_destroy(pair);
}

/* A peer may be gone before all that it sent is read: nothing of that is lost. */
static void test_gloo_what_came_is_read_where_nothing_goes_out(void **state)
{
    enum { MANY = 100 };
    struct horon_gloo_message in[MANY], out = {.slot = 2, .data = "x", .bytes = 1};
    (void)state;
    open_horon(FRAME);
    assert_int_equal(move(), HORON_OK);
    for (int i = 0; i < MANY; i++) {
        in[i] = (struct horon_gloo_message){.slot = 1};
        assert_int_equal(horon_gloo_pair_recv(pair, &in[i]), HORON_OK);
        come(HORON_GLOO_EAGER, 1, 0);
    }
    memory.shut = true;
    assert_int_equal(horon_gloo_pair_send(pair, &out), HORON_OK);
    assert_int_equal(move(), HORON_ERR_PEER_LOST); /* what goes out is not */
    for (int i = 0; i < MANY; i++)
        assert_true(in[i].done);
    assert_false(out.done);
    horon_gloo_pair_destroy(pair);
}

static void take_early(uint64_t slot, const char *wanted)
{
    char room[2] = "";
    struct horon_gloo_message in = {.slot = slot, .data = room, .bytes = 1};
    assert_int_equal(horon_gloo_pair_recv(pair, &in), HORON_OK);
    assert_true(in.done);
    assert_string_equal(room, wanted);
}

static void come_early(uint64_t slot, const char *text)
{
    come(HORON_GLOO_EAGER, slot, 1);
    come_data(text, 1);
    assert_int_equal(move(), HORON_OK);
}

static void test_gloo_what_nobody_awaits_is_taken_in_any_order(void **state)
{
    (void)state;
    open_horon(1000);
    come_early(1, "a");
    take_early(1, "a");
    come_early(1, "b");
    come_early(2, "c");
    come_early(1, "d");
    take_early(2, "c");
    take_early(1, "b");
    take_early(1, "d");
    come_early(1, "e");
    come_early(2, "f");
    take_early(2, "f"); /* the last */
    come_early(2, "g");
    take_early(1, "e");
    take_early(2, "g");
    horon_gloo_pair_destroy(pair);
}

/* A root that is far ahead: what comes is put behind all that, at once. */
static void test_gloo_many_that_nobody_awaits_take_no_time(void **state)
{
    enum { ROUNDS = 300, MANY = 1000 };
    (void)state;
    open_horon(sizeof memory.in);
    assert_int_equal(move(), HORON_OK);
    for (int round = 0; round < ROUNDS; round++) {
        memory.in_at = memory.in_end = 0;
        for (int i = 0; i < MANY; i++)
            come(HORON_GLOO_EAGER, 1, 0);
        assert_int_equal(move(), HORON_OK);
    }
    for (int i = 0; i < ROUNDS * MANY; i++)
        take_early(1, "");
    horon_gloo_pair_destroy(pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_frame_has_these_bytes),
        cmocka_unit_test(test_gloo_send_waits_for_its_credit),
        cmocka_unit_test(test_gloo_what_may_go_goes_together),
        cmocka_unit_test(test_gloo_credit_may_come_first),
        cmocka_unit_test(test_gloo_recv_gives_a_credit_and_takes_what_comes),
        cmocka_unit_test(test_gloo_horons_spare_each_other_credits),
        cmocka_unit_test(test_gloo_announcement_waits_for_what_goes_eagerly),
        cmocka_unit_test(test_gloo_announcement_does_not_pass_with_what_has_its_credit),
        cmocka_unit_test(test_gloo_long_messages_wait_for_their_receives),
        cmocka_unit_test(test_gloo_long_message_that_has_begun_to_come_is_taken_over),
        cmocka_unit_test(test_gloo_message_that_is_longer_than_its_room_is_dropped),
        cmocka_unit_test(test_gloo_order_holds_when_the_other_end_turns_out_a_horon),
        cmocka_unit_test(test_gloo_what_a_peer_must_not_send_breaks_the_pair),
        cmocka_unit_test(test_gloo_peer_that_closes_is_lost),
        cmocka_unit_test(test_gloo_what_nobody_awaits_is_taken_in_any_order),
        cmocka_unit_test(test_gloo_many_that_nobody_awaits_take_no_time),
        cmocka_unit_test(test_gloo_what_came_is_read_where_nothing_goes_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
