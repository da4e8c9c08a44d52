/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two pairs of Gloo's wire whose connection takes and gives bytes in random portions, and has
 * little room. What is sent on a slot arrives there in that order, whatever may go at once, asks
 * first or waits for a credit of Gloo's kind, and however far one end is ahead. Repeats by its
 * seeds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "link/gloo_wire.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 3, MANY = 16, SEEDS = 40, LONGEST = 300000, ROOM = 400000 };

struct pipe {
    uint8_t bytes[ROOM];
    size_t begin, used, room;
};

struct end {
    struct horon_link base;
    struct pipe *in, *out;
    struct horon_gloo_pair *pair;
    struct horon_gloo_message sent[SLOTS][MANY], got[SLOTS][MANY];
    uint8_t *rooms[SLOTS][MANY];
    int sends[SLOTS], recvs[SLOTS];
};

static struct pipe pipes[2];
static struct end ends[2];
static uint64_t now_at;

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ value >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return value ^ value >> 32;
}

static uint64_t draw(uint64_t below)
{
    return mix(++now_at) % below;
}

static uint64_t portion(void)
{
    return draw(3) == 0 ? 1 + draw(100) : draw(2) == 0 ? 1 + draw(10000) : ROOM;
}

/* @return how many bytes of a vector were moved, of @p most and of a pipe that is a ring */
static size_t copy(struct pipe *pipe, const struct iovec *vector, int count, size_t most, bool in)
{
    size_t at = (in ? pipe->begin + pipe->used : pipe->begin) % ROOM, moved = 0;
    for (int i = 0; i < count; i++)
        for (size_t done = 0; done < vector[i].iov_len && moved < most;) {
            size_t part = vector[i].iov_len - done;
            part = part < most - moved ? part : most - moved;
            part = part < ROOM - at ? part : ROOM - at;
            uint8_t *memory = (uint8_t *)vector[i].iov_base + done;
            memcpy(in ? pipe->bytes + at : memory, in ? memory : pipe->bytes + at, part);
            at = (at + part) % ROOM;
            done += part;
            moved += part;
        }
    pipe->begin = in ? pipe->begin : at;
    pipe->used = in ? pipe->used + moved : pipe->used - moved;
    return moved;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static horon_status_t pipe_send(struct horon_link *link, const struct iovec *vector, int count,
                                size_t *sent_out, struct horon_error *error)
{
    struct pipe *pipe = ((struct end *)(void *)link)->out;
    (void)error;
    *sent_out = copy(pipe, vector, count, smaller(portion(), pipe->room - pipe->used), true);
    return *sent_out ? HORON_OK : HORON_AGAIN;
}

static horon_status_t pipe_recv(struct horon_link *link, const struct iovec *vector, int count,
                                size_t *got_out, struct horon_error *error)
{
    struct pipe *pipe = ((struct end *)(void *)link)->in;
    (void)error;
    *got_out = copy(pipe, vector, count, smaller(portion(), pipe->used), false);
    return *got_out ? HORON_OK : HORON_AGAIN;
}

static void pipe_destroy(struct horon_link *link)
{
    (void)link;
}

static const struct horon_link_ops pipe_ops = {
    .name = "pipe", .send = pipe_send, .recv = pipe_recv, .destroy = pipe_destroy};

static uint64_t name_of(uint64_t seed, int from, int slot, int index)
{
    return mix(seed * 1000003 + (uint64_t)((from * SLOTS + slot) * MANY + index));
}

static size_t bytes_of(uint64_t name)
{
    static const size_t sizes[] = {
        0, 1, 5, 5000, 100000, HORON_GLOO_EAGER_BYTES, HORON_GLOO_EAGER_BYTES + 1, LONGEST};
    return sizes[name % (sizeof sizes / sizeof sizes[0])];
}

static uint8_t pattern[LONGEST + 4096];

static const uint8_t *data_of(uint64_t name)
{
    return pattern + name / 64 % 4096;
}

static void begin_one(uint64_t seed, int at)
{
    struct end *end = &ends[at];
    const int slot = (int)draw(SLOTS);
    if (draw(2) && end->sends[slot] < MANY) {
        const int i = end->sends[slot]++;
        const uint64_t name = name_of(seed, at, slot, i);
        end->sent[slot][i] = (struct horon_gloo_message){.slot = (uint64_t)slot,
                                                         .data = (void *)(uintptr_t)data_of(name),
                                                         .bytes = bytes_of(name)};
        assert_int_equal(horon_gloo_pair_send(end->pair, &end->sent[slot][i]), HORON_OK);
    } else if (end->recvs[slot] < MANY) {
        const int i = end->recvs[slot]++;
        const size_t bytes = bytes_of(name_of(seed, !at, slot, i));
        end->rooms[slot][i] = malloc(bytes + 1);
        assert_non_null(end->rooms[slot][i]);
        end->got[slot][i] = (struct horon_gloo_message){
            .slot = (uint64_t)slot, .data = end->rooms[slot][i], .bytes = bytes};
        assert_int_equal(horon_gloo_pair_recv(end->pair, &end->got[slot][i]), HORON_OK);
    }
}

static void move(int at)
{
    struct horon_error error = {0};
    bool moved = false;
    const horon_status_t status = horon_gloo_pair_move(ends[at].pair, &moved, &error);
    if (status != HORON_OK)
        fail_msg("%s", error.text);
}

/* @return how many of the receives have ended, each with what was sent */
static int check(uint64_t seed, int at)
{
    int done = 0;
    for (int slot = 0; slot < SLOTS; slot++)
        for (int i = 0; i < ends[at].recvs[slot]; i++) {
            const struct horon_gloo_message *message = &ends[at].got[slot][i];
            const uint64_t name = name_of(seed, !at, slot, i);
            if (!message->done)
                continue;
            done++;
            assert_int_equal(message->got, bytes_of(name));
            assert_memory_equal(message->data, data_of(name), message->got);
        }
    return done;
}

static void run(uint64_t seed)
{
    now_at = mix(seed + 1);
    const bool others = draw(4) == 0;
    memset(ends, 0, sizeof ends);
    for (int at = 0; at < 2; at++) {
        pipes[at].begin = pipes[at].used = 0;
        pipes[at].room = draw(2) ? 20 + draw(5000) : ROOM;
        ends[at].base.ops = &pipe_ops;
        ends[at].in = &pipes[at];
        ends[at].out = &pipes[!at];
        assert_int_equal(horon_gloo_pair_create(&ends[at].base, at || !others, &ends[at].pair),
                         HORON_OK);
    }
    const uint64_t calls = 1 + draw(20);
    const uint64_t turns = 2 * SLOTS * MANY * 20;
    for (uint64_t turn = 0; turn < turns; turn++)
        if (draw(1 + calls) == 0)
            move((int)draw(2));
        else
            begin_one(seed, (int)draw(2));
    int done = 0;
    for (int turn = 0; turn < 4000000 && done < 2 * SLOTS * MANY; turn++) {
        begin_one(seed, 0), begin_one(seed, 1);
        move(0), move(1);
        if (turn % 1000 == 999)
            done = check(seed, 0) + check(seed, 1);
    }
    assert_int_equal(done, 2 * SLOTS * MANY);
    for (int at = 0; at < 2; at++) {
        horon_gloo_pair_destroy(ends[at].pair);
        for (int slot = 0; slot < SLOTS; slot++)
            for (int i = 0; i < MANY; i++) {
                assert_true(ends[at].sent[slot][i].done);
                free(ends[at].rooms[slot][i]);
            }
    }
}

static void test_gloo_order_holds_whatever_goes_how(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)mix(i);
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        run(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_order_holds_whatever_goes_how),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
