/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire of a mux: frames of a fixed header and a body. Sans-I/O, no memory of its own.
 *
 *   offset  bytes
 *        0      2  magic 0x6f48
 *        2      1  type
 *        3      1  flags
 *        4      4  generation
 *        8      4  body_bytes: what follows the header
 *       12      4  channel
 *       16      8  sequence
 *       24      8  tag
 *       32      8  check
 *       40      8  bytes: of the whole transfer
 *       48      8  offset: of the body in the transfer
 *       56      4  returned_bytes: eager room that the sender may use again
 *       60      4  returned_transfers: likewise, in transfers
 *
 * All little-endian. Fields that a type does not use are 0. A frame that announces is all of its
 * transfer, and its header is short, as most of them carry a few bytes:
 *
 *        0      2  magic
 *        2      1  8, instead of a type
 *        3      1  tag
 *        4      4  generation
 *        8      4  body_bytes
 *       12      4  channel
 *       16      8  sequence
 *       24      8  check
 *       32      4  returned_bytes
 *       36      4  returned_transfers
 */
#ifndef HORON_LINK_MUX_FRAME_H
#define HORON_LINK_MUX_FRAME_H

#include "link/mux.h"
#include "status.h"

#include <stddef.h>
#include <stdint.h>

#define HORON_MUX_HEADER_BYTES 64
/** Of a frame that announces; and what comes before that tells how long a header is. */
#define HORON_MUX_SHORT_HEADER_BYTES 40
/** Longest body of a DATA frame: control frames go in between. */
#define HORON_MUX_BODY_BYTES_MAX ((size_t)1 << 20)

enum horon_mux_type {
    HORON_MUX_CONTROL = 1, /* a message for on_control */
    HORON_MUX_DATA = 2,    /* a piece of a transfer; the pieces come in order */
    HORON_MUX_CREDIT = 3,  /* the receiver has posted: send all of it */
    HORON_MUX_WANT = 4,    /* a transfer within eager_bytes found no eager room: asks for credit */
    HORON_MUX_ROOM = 5,    /* carries returned_* when nothing else goes that way */
    HORON_MUX_LOAN = 6,    /* a transfer may be read where it lies: its body is a loan */
    HORON_MUX_TAKEN = 7    /* it was read, all of it */
};

/** DATA: goes without credit and takes eager room, all of the transfer's at its first frame. */
#define HORON_MUX_FLAG_EAGER 1u
/** Likewise, and this frame is all of the transfer and the first that is said of it: its receiver
 * hears of it before (on_announced). Its tag is at most HORON_MUX_SHORT_TAG_MAX. */
#define HORON_MUX_FLAG_ANNOUNCES 2u
#define HORON_MUX_SHORT_TAG_MAX UINT8_MAX

/** The body of a LOAN: at and stamp, 8 bytes each. */
#define HORON_MUX_LOAN_BYTES 16

struct horon_mux_frame {
    uint8_t type; /* enum horon_mux_type */
    uint8_t flags;
    uint32_t generation;
    uint32_t body_bytes;
    uint32_t channel;
    uint64_t sequence, tag, check, bytes, offset;
    uint32_t returned_bytes, returned_transfers;
};

/** What a decoder must know to bound a frame. */
struct horon_mux_frame_limits {
    uint32_t generation;
    size_t control_bytes_max;
    const char *peer_name; /* for texts */
};

/** @return the bytes of the header */
size_t horon_mux_frame_encode(const struct horon_mux_frame *frame,
                              uint8_t header[HORON_MUX_HEADER_BYTES]);
/** How long the header is that begins with @p bytes [HORON_MUX_SHORT_HEADER_BYTES]. */
size_t horon_mux_frame_header_bytes(const uint8_t *bytes);

void horon_mux_loan_encode(const struct horon_mux_loan *loan, uint8_t body[HORON_MUX_LOAN_BYTES]);
struct horon_mux_loan horon_mux_loan_decode(const uint8_t body[HORON_MUX_LOAN_BYTES]);

/**
 * Reads a header, which is all there, and checks all that can be checked without knowing the
 * transfers: magic, type, flags, generation, that body and offset lie in the transfer, and that the
 * body is within its bound.
 * @return OK | ERR_PROTO, names the peer and what is wrong
 */
horon_status_t horon_mux_frame_decode(const uint8_t *header,
                                      const struct horon_mux_frame_limits *limits,
                                      struct horon_mux_frame *frame_out, struct horon_error *error);

#endif
