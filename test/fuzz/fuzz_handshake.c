/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A handshake with a peer that says anything. The first byte chooses our side and whether what the
 * peer says is mended by code that knows the key (then the states behind the proof are reached),
 * the second how the bytes are split. Without the key nothing may ever be proven.
 */
#undef NDEBUG

#include "boot/connect/handshake.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const struct horon_hello hello = {.protocol_min = HORON_PROTOCOL_MIN,
                                         .protocol_max = HORON_PROTOCOL_MAX,
                                         .role = HORON_ROLE_PEER,
                                         .rank = 1,
                                         .size = 4,
                                         .job = 7,
                                         .settings = 9};

/* The generator of the curve: a point like any other. */
static const uint8_t their_share[HORON_POINT_BYTES] = {
    0x04, 0x6b, 0x17, 0xd1, 0xf2, 0xe1, 0x2c, 0x42, 0x47, 0xf8, 0xbc, 0xe6, 0xe5,
    0x63, 0xa4, 0x40, 0xf2, 0x77, 0x03, 0x7d, 0x81, 0x2d, 0xeb, 0x33, 0xa0, 0xf4,
    0xa1, 0x39, 0x45, 0xd8, 0x98, 0xc2, 0x96, 0x4f, 0xe3, 0x42, 0xe2, 0xfe, 0x1a,
    0x7f, 0x9b, 0x8e, 0xe7, 0xeb, 0x4a, 0x7c, 0x0f, 0x9e, 0x16, 0x2b, 0xce, 0x33,
    0x57, 0x6b, 0x31, 0x5e, 0xce, 0xcb, 0xb6, 0x40, 0x68, 0x37, 0xbf, 0x51, 0xf5,
};

/* Where the share of the exchange lies in a hello, behind its head. */
#define SHARE_AT 96

/* Puts what only computing gives where the script has room for it: a share that is a point, and the
 * right proof. */
static void mend(const struct horon_handshake *handshake, uint8_t *piece, size_t bytes)
{
    const enum horon_side theirs =
        handshake->side == HORON_SIDE_ACCEPTOR ? HORON_SIDE_CONNECTOR : HORON_SIDE_ACCEPTOR;
    if (handshake->state == HORON_HANDSHAKE_READ_PROOF && bytes == HORON_PROOF_BYTES)
        memcpy(piece, handshake->proof[theirs], HORON_PROOF_BYTES);
    if (handshake->state == HORON_HANDSHAKE_READ_HELLO && bytes >= SHARE_AT + HORON_POINT_BYTES)
        memcpy(piece + SHARE_AT, their_share, HORON_POINT_BYTES);
}

static void drain(struct horon_handshake *handshake, size_t chunk)
{
    size_t bytes;
    const uint8_t *out;
    while ((out = horon_handshake_out(handshake, &bytes))) {
        volatile uint8_t last = out[bytes - 1]; /* the sanitizer sees a view that is too long */
        (void)last;
        horon_handshake_sent(handshake, bytes < chunk ? bytes : chunk);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct horon_job_key key; /* made once: it takes long */
    struct horon_handshake handshake;
    struct horon_error error = {0};
    const uint8_t random[HORON_HANDSHAKE_RANDOM_BYTES] = {3, [79] = 5};
    if (bytes < 2)
        return 0;
    const enum horon_side side = data[0] & 1 ? HORON_SIDE_ACCEPTOR : HORON_SIDE_CONNECTOR;
    const bool knows_key = data[0] & 2, drains = data[0] & 4;
    const size_t chunk = data[1] ? data[1] : HORON_HELLO_BYTES_MAX;
    data += 2;
    bytes -= 2;
    if (!key.given)
        assert(horon_job_key_from_text(&key, "secret", 6, &error) == HORON_OK);
    assert(horon_handshake_init(&handshake, side, &key, &hello, random) == HORON_OK);
    horon_status_t status = HORON_AGAIN;
    while (bytes && status == HORON_AGAIN) {
        const size_t want = horon_handshake_want(&handshake);
        assert(want > 0 && want <= HORON_HELLO_BYTES_MAX);
        size_t part = bytes < want ? bytes : want;
        part = part < chunk || knows_key ? part : chunk;
        uint8_t *piece = malloc(part); /* of exact length, so that the sanitizer sees its end */
        assert(piece);
        memcpy(piece, data, part);
        if (knows_key)
            mend(&handshake, piece, part);
        status = horon_handshake_feed(&handshake, piece, part);
        free(piece);
        data += part;
        bytes -= part;
        if (drains)
            drain(&handshake, chunk);
    }
    assert(status == HORON_AGAIN || horon_handshake_want(&handshake) == 0);
    assert(status != HORON_OK || knows_key);
    assert(status >= 0 || handshake.error.text[0]);
    if (status == HORON_OK) {
        const struct horon_proven proven = horon_handshake_take(&handshake, 0);
        assert(memcmp(proven.send_secret, proven.receive_secret, HORON_SECRET_BYTES) != 0);
    }
    if (status == HORON_OK)
        horon_hello_check(&hello, &handshake.theirs, &error);
    drain(&handshake, chunk);
    return 0;
}
