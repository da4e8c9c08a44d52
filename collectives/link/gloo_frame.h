/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames of Gloo's pairs (gloo/transport/tcp/pair.h, unchanged since 2018): 48 bytes, six words
 * of 8 bytes, little-endian; behind two of them a payload. Gloo skips a frame whose code it does
 * not know, so horon's own lie beside them. Pure.
 */
#ifndef HORON_LINK_GLOO_FRAME_H
#define HORON_LINK_GLOO_FRAME_H

#include "codec.h"

#include <stdbool.h>
#include <stdint.h>

#define HORON_GLOO_FRAME_BYTES 48

enum horon_gloo_code {
    HORON_GLOO_SEND_BUFFER = 0, /* to memory that was registered: old classes; not spoken */
    HORON_GLOO_SEND = 1,        /* a payload, for which the receiver has given a credit */
    HORON_GLOO_SEND_READY = 2,  /* one is to come */
    HORON_GLOO_RECV_READY = 3,  /* a credit for one */
    /* Between two horons; "hor" and a number. */
    HORON_GLOO_HELLO = 0x686f7200, /* its sender speaks these */
    HORON_GLOO_EAGER = 0x686f7201, /* a payload without a credit, within the window */
    HORON_GLOO_ASK = 0x686f7202,   /* one that is longer is to come ... */
    HORON_GLOO_GRANT = 0x686f7203, /* ... and may; then it comes as HORON_GLOO_SEND */
    HORON_GLOO_TAKEN = 0x686f7204, /* so many eager bytes have left the window */
    HORON_GLOO_JOINED = 0x686f7205 /* its sender has joined, and speaks none of these */
};

struct horon_gloo_frame {
    uint64_t code, slot;
    uint64_t length; /* of the payload; or, where it is announced, of that to come */
};

static inline void horon_gloo_frame_encode(const struct horon_gloo_frame *frame,
                                           uint8_t bytes[static HORON_GLOO_FRAME_BYTES])
{
    const bool carries = frame->code == HORON_GLOO_SEND || frame->code == HORON_GLOO_EAGER;
    struct horon_writer out = horon_writer_over(bytes, HORON_GLOO_FRAME_BYTES);
    horon_write_u64(&out, HORON_GLOO_FRAME_BYTES + (carries ? frame->length : 0));
    horon_write_u64(&out, frame->code);
    horon_write_u64(&out, frame->slot);
    horon_write_u64(&out, 0);
    horon_write_u64(&out, frame->length);
    horon_write_u64(&out, 0);
}

/** @return false: no frame of unbound buffers, or its lengths do not agree */
static inline bool horon_gloo_frame_decode(const uint8_t bytes[static HORON_GLOO_FRAME_BYTES],
                                           struct horon_gloo_frame *frame)
{
    struct horon_reader in = horon_reader_over(bytes, HORON_GLOO_FRAME_BYTES);
    const uint64_t total = horon_read_u64(&in);
    frame->code = horon_read_u64(&in) & UINT32_MAX; /* of Gloo's enum no more is set */
    frame->slot = horon_read_u64(&in);
    (void)horon_read_u64(&in);
    frame->length = horon_read_u64(&in);
    const bool carries = frame->code == HORON_GLOO_SEND || frame->code == HORON_GLOO_EAGER;
    if (frame->code == HORON_GLOO_SEND_BUFFER || total < HORON_GLOO_FRAME_BYTES)
        return false;
    return carries ? total - HORON_GLOO_FRAME_BYTES == frame->length
                   : total == HORON_GLOO_FRAME_BYTES;
}

#endif
