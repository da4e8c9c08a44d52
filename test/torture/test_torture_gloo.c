/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pair of Gloo's wire when memory ends while it takes a message that came before it was awaited:
 * a call that fails takes nothing.
 */
#include "../collectives/worlds.h"

#include "alloc_failing.h"
#include "link/gloo_wire.h"

#include <stdlib.h>
#include <string.h>

/* So much that its receiver has to tell that the window has room again. */
enum { BYTES = 1 << 20, FRAMES_FULL = 8 };

/* A link whose other end is the test. */
struct memory_link {
    struct horon_link base;
    uint8_t in[BYTES + 2 * HORON_GLOO_FRAME_BYTES];
    size_t in_at, in_end;
    struct horon_gloo_frame said; /* last */
    bool full;                    /* takes nothing now */
};

static horon_status_t memory_send(struct horon_link *link, const struct iovec *vector, int count,
                                  size_t *sent_out, struct horon_error *error)
{
    struct memory_link *memory = (struct memory_link *)(void *)link;
    const struct iovec *last = &vector[count - 1];
    (void)error;
    if (memory->full)
        return HORON_AGAIN;
    *sent_out = horon_link_vector_bytes(vector, count);
    assert_true(last->iov_len >= HORON_GLOO_FRAME_BYTES);
    const uint8_t *frame = (const uint8_t *)last->iov_base + last->iov_len - HORON_GLOO_FRAME_BYTES;
    assert_true(horon_gloo_frame_decode(frame, &memory->said));
    return HORON_OK;
}

static horon_status_t memory_recv(struct horon_link *link, const struct iovec *vector, int count,
                                  size_t *got_out, struct horon_error *error)
{
    struct memory_link *memory = (struct memory_link *)(void *)link;
    (void)error;
    *got_out = 0;
    for (int i = 0; i < count; i++) {
        const size_t left = memory->in_end - memory->in_at;
        const size_t part = left < vector[i].iov_len ? left : vector[i].iov_len;
        memcpy(vector[i].iov_base, memory->in + memory->in_at, part);
        memory->in_at += part;
        *got_out += part;
    }
    return *got_out ? HORON_OK : HORON_AGAIN;
}

static void memory_destroy(struct horon_link *link)
{
    free(link);
}

static const struct horon_link_ops memory_ops = {
    .name = "memory", .send = memory_send, .recv = memory_recv, .destroy = memory_destroy};

static void frame(struct memory_link *memory, uint64_t code, uint64_t slot, uint64_t length)
{
    const struct horon_gloo_frame head = {.code = code, .slot = slot, .length = length};
    horon_gloo_frame_encode(&head, memory->in + memory->in_end);
    memory->in_end += HORON_GLOO_FRAME_BYTES;
}

static void come(struct horon_gloo_pair *pair, struct memory_link *memory, size_t bytes)
{
    struct horon_error error = {0};
    memory->in_end += bytes;
    for (bool moved = true; moved;) {
        moved = false;
        assert_int_equal(horon_gloo_pair_move(pair, &moved, &error), HORON_OK);
    }
}

/* @param before  so much of the message has come when it is awaited */
static void receive_without_memory(size_t before)
{
    static const uint8_t untouched[BYTES];
    struct memory_link *memory = calloc(1, sizeof *memory);
    uint8_t *lost = calloc(1, BYTES), *room = calloc(1, BYTES);
    struct horon_gloo_message asked[FRAMES_FULL - 1]; /* beside HELLO */
    struct horon_gloo_message failed = {.slot = 1, .data = lost, .bytes = BYTES};
    struct horon_gloo_message next = {.slot = 1, .data = room, .bytes = BYTES};
    struct horon_gloo_pair *pair = NULL;
    const long live = alloc_live();
    memory->base.ops = &memory_ops;
    memory->full = true;
    assert_int_equal(horon_gloo_pair_create(&memory->base, true, &pair), HORON_OK);
    for (int i = 0; i < FRAMES_FULL - 1; i++) {
        asked[i] = (struct horon_gloo_message){.slot = 2};
        assert_int_equal(horon_gloo_pair_send(pair, &asked[i]), HORON_OK);
    }
    frame(memory, HORON_GLOO_HELLO, 0, 0);
    frame(memory, HORON_GLOO_EAGER, 1, BYTES);
    memset(memory->in + memory->in_end, 'd', BYTES);
    come(pair, memory, before);
    alloc_fail_at(1, 0);
    assert_int_equal(horon_gloo_pair_recv(pair, &failed), HORON_ERR_MEMORY);
    assert_int_equal(alloc_count(), 1);
    come(pair, memory, BYTES - before); /* its caller has freed it */
    assert_false(failed.done);
    assert_memory_equal(lost, untouched, BYTES);

    memory->full = false;
    assert_int_equal(horon_gloo_pair_recv(pair, &next), HORON_OK);
    come(pair, memory, 0);
    assert_true(next.done);
    assert_int_equal(next.got, BYTES);
    for (size_t i = 0; i < BYTES; i++)
        assert_true(room[i] == 'd');
    assert_int_equal(memory->said.code, HORON_GLOO_TAKEN);
    assert_int_equal(memory->said.length, BYTES);
    horon_gloo_pair_destroy(pair);
    assert_int_equal(alloc_live(), live);
    free(lost);
    free(room);
}

static void test_torture_gloo_what_still_comes_stays_for_the_next_receive(void **state)
{
    (void)state;
    receive_without_memory(3000);
}

static void test_torture_gloo_what_has_come_stays_for_the_next_receive(void **state)
{
    (void)state;
    receive_without_memory(BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torture_gloo_what_still_comes_stays_for_the_next_receive),
        cmocka_unit_test(test_torture_gloo_what_has_come_stays_for_the_next_receive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
