/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pair of Gloo's wire whose peer says anything at all. The input is a script: the peer's bytes,
 * raw or as frames with small fields, mixed with messages that this side begins. Whatever comes,
 * the pair must stay within the memory of its messages, and bound what it allocates.
 */
#undef NDEBUG

#include "link/gloo_wire.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 8, ROOM_BYTES = 200, STREAM_BYTES = 1 << 16 };

struct fake_link {
    struct horon_link base;
    uint8_t said[STREAM_BYTES];
    size_t said_bytes, read_bytes, step; /* bytes that a call moves at most */
};

struct script {
    const uint8_t *bytes;
    size_t left;
};

static horon_status_t fake_send(struct horon_link *link, const struct iovec *vector, int count,
                                size_t *sent_bytes_out, struct horon_error *error)
{
    const struct fake_link *fake = (const struct fake_link *)(const void *)link;
    volatile uint8_t sink = 0;
    size_t part = vector[0].iov_len;
    (void)count, (void)error;
    part = part < fake->step ? part : fake->step;
    for (size_t b = 0; b < part; b++) /* read it: the sanitizer looks */
        sink = (uint8_t)(sink + ((const uint8_t *)vector[0].iov_base)[b]);
    *sent_bytes_out = part;
    return part ? HORON_OK : HORON_AGAIN;
}

static horon_status_t fake_recv(struct horon_link *link, const struct iovec *vector, int count,
                                size_t *got_bytes_out, struct horon_error *error)
{
    struct fake_link *fake = (struct fake_link *)(void *)link;
    size_t part = fake->said_bytes - fake->read_bytes;
    (void)count, (void)error;
    part = part < vector[0].iov_len ? part : vector[0].iov_len;
    part = part < fake->step ? part : fake->step;
    if (part)
        memcpy(vector[0].iov_base, fake->said + fake->read_bytes, part);
    fake->read_bytes += part;
    *got_bytes_out = part;
    return part ? HORON_OK : HORON_AGAIN;
}

static void fake_destroy(struct horon_link *link)
{
    free(link);
}

static const struct horon_link_ops fake_ops = {
    .name = "fake", .send = fake_send, .recv = fake_recv, .destroy = fake_destroy};

static uint8_t next(struct script *script)
{
    if (script->left == 0)
        return 0;
    script->left--;
    return *script->bytes++;
}

static void say(struct fake_link *fake, const void *bytes, size_t count)
{
    if (count > sizeof fake->said - fake->said_bytes)
        return;
    memcpy(fake->said + fake->said_bytes, bytes, count);
    fake->said_bytes += count;
}

static void say_frame(struct fake_link *fake, struct script *script)
{
    static const uint64_t codes[] = {HORON_GLOO_SEND,  HORON_GLOO_SEND_READY, HORON_GLOO_RECV_READY,
                                     HORON_GLOO_HELLO, HORON_GLOO_EAGER,      HORON_GLOO_ASK,
                                     HORON_GLOO_GRANT, HORON_GLOO_TAKEN};
    uint8_t bytes[HORON_GLOO_FRAME_BYTES];
    const uint8_t kind = next(script);
    const struct horon_gloo_frame frame = {
        .code = codes[kind % 8], .slot = kind / 8 % 3, .length = next(script)};
    horon_gloo_frame_encode(&frame, bytes);
    say(fake, bytes, sizeof bytes);
    if (kind & 128)
        for (uint64_t i = 0; i < frame.length; i++)
            say(fake, &kind, 1);
}

/* @return false: the pair is broken */
static bool take_step(struct horon_gloo_pair *pair, struct fake_link *fake, struct script *script,
                      struct horon_gloo_message *messages, uint8_t **rooms)
{
    const uint8_t what = next(script);
    struct horon_gloo_message *message = &messages[what / 8 % SLOTS];
    size_t bytes = next(script);
    bool moved = false;
    struct horon_error error = {0};
    fake->step = 1 + bytes;
    switch (what % 8) {
    case 0:
    case 1:
        if (!rooms[what / 8 % SLOTS] || !message->done)
            return true;
        *message = (struct horon_gloo_message){
            .slot = bytes % 3, .data = rooms[what / 8 % SLOTS], .bytes = bytes % ROOM_BYTES};
        return (what % 8 ? horon_gloo_pair_send : horon_gloo_pair_recv)(pair, message) == HORON_OK;
    case 2:
    case 3:
    case 4:
        say_frame(fake, script);
        return true;
    case 5:
        for (size_t i = 0; i < bytes; i++) {
            const uint8_t byte = next(script);
            say(fake, &byte, 1);
        }
        return true;
    case 6:
        (void)horon_gloo_pair_announced(pair, bytes % 3, &bytes);
        return true;
    default:
        return horon_gloo_pair_move(pair, &moved, &error) == HORON_OK;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct horon_gloo_message messages[SLOTS] = {{0}};
    uint8_t *rooms[SLOTS];
    struct horon_gloo_pair *pair = NULL;
    struct fake_link *fake = calloc(1, sizeof *fake);
    assert(fake);
    fake->base.ops = &fake_ops;
    if (horon_gloo_pair_create(&fake->base, next(&script) & 1, &pair) != HORON_OK)
        abort();
    for (int i = 0; i < SLOTS; i++) {
        rooms[i] = calloc(1, ROOM_BYTES); /* each apart: the sanitizer sees its ends */
        messages[i].done = true;
    }
    while (script.left > 0 && take_step(pair, fake, &script, messages, rooms))
        ;
    horon_gloo_pair_destroy(pair);
    for (int i = 0; i < SLOTS; i++)
        free(rooms[i]);
    return 0;
}
