/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames between a store server and a rank, after the handshake: u32 length of the rest, u8 type,
 * and, little-endian:
 *     PUT   rank -> server   u8 1 for the last round, u32 round, u32 milliseconds it will wait (all
 *                            ones: no limit), blob
 *     ALL   server -> rank   u32 round, then for each rank u32 length and its blob
 *     FAIL  server -> rank   at any time: u8 1 if the text says it all (else only who is missing),
 *                            u32 status as two's complement, text
 *     ABORT rank -> server   u32 status, text: this rank has failed and so shall all
 */
#ifndef HORON_BOOT_STORE_FRAME_H
#define HORON_BOOT_STORE_FRAME_H

#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HORON_STORE_BLOB_BYTES_MAX 16384 /* a rank's profile: its addresses and settings */
#define HORON_BOOT_SIZE_MAX 65536        /* ranks; ALL then stays below 2^31 bytes */
#define HORON_STORE_NO_LIMIT UINT32_MAX
#define HORON_STORE_PUT_BYTES 14 /* of a PUT before its blob, the length included */

enum horon_store_frame {
    HORON_STORE_PUT = 1,
    HORON_STORE_ALL = 2,
    HORON_STORE_FAIL = 3,
    HORON_STORE_ABORT = 4
};

/** Gathers one frame; all zero but @p limit is empty. */
struct horon_store_inbox {
    size_t limit; /* longest frame that is allowed, without its length */
    uint8_t head[4];
    size_t head_bytes;
    uint8_t *body; /* grows as bytes come, not as they are announced */
    size_t capacity, used, want;
};

/** What a server's frame says to a rank. */
struct horon_store_answer {
    bool failed;            /* FAIL; else ALL of the round, whose blobs begin at byte 5 */
    bool whole;             /* FAIL: the text says it all */
    struct horon_error why; /* FAIL: the reason */
};

/** @return the longest frame that a server of @p size ranks may send. */
size_t horon_store_frame_bytes_max(int size);

/**
 * Takes bytes of any split. With OK a frame is whole, in body[0..used), until the next call.
 * @param taken_out how many bytes of @p in belong to it
 * @return OK | AGAIN, want more | ERR_PROTO, it is longer than allowed, or empty | ERR_MEMORY
 */
horon_status_t horon_store_inbox_feed(struct horon_store_inbox *inbox, const uint8_t *in,
                                      size_t bytes, size_t *taken_out);
/** @return how many bytes belong to the frame that is being gathered, as far as is known. */
size_t horon_store_inbox_want(const struct horon_store_inbox *inbox);
void horon_store_inbox_deinit(struct horon_store_inbox *inbox);

/**
 * Reads a whole frame of a server. @param round the one that is to be answered
 * @return OK | ERR_PROTO, what the server does wrong as a predicate ("answers out of turn")
 */
horon_status_t horon_store_answer_decode(const struct horon_store_inbox *inbox, uint32_t round,
                                         struct horon_store_answer *answer_out,
                                         struct horon_error *error);

#endif
