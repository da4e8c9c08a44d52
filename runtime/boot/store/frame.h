/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames between a store's server and a rank, after the handshake: u32 length of the rest, u8 type,
 * and, little-endian:
 *     PUT   rank -> server   u8 enum horon_store_put, u32 round, blob
 *     LATE  rank -> server   nothing: it has waited for the round as long as it may
 *     ALL   server -> rank   u32 round, then for each rank u32 length and its blob
 *     FAIL  either way       the sender's last word: u8 1 if the text says it all (else only which
 *                            ranks are missing), and the error. From a rank: all shall fail so
 */
#ifndef HORON_BOOT_STORE_FRAME_H
#define HORON_BOOT_STORE_FRAME_H

#include "codec.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HORON_STORE_BLOB_BYTES_MAX 16384 /* a rank's profile: its addresses and settings */
#define HORON_BOOT_SIZE_MAX 65536        /* ranks; ALL then stays below 2^31 bytes */
#define HORON_STORE_PUT_BYTES 6          /* of a PUT before its blob, its type included */
#define HORON_STORE_ALL_BYTES 5          /* of an ALL before its blobs, likewise */

enum horon_store_frame {
    HORON_STORE_PUT = 1,
    HORON_STORE_ALL = 2,
    HORON_STORE_FAIL = 3,
    HORON_STORE_LATE = 4
};

/** What a rank puts into a round. */
enum horon_store_put {
    HORON_STORE_PUT_MORE = 0, /* its blob; more rounds follow */
    HORON_STORE_PUT_LAST = 1, /* its blob; after this round it has joined */
    /* An error that only follows from another rank's. It counts if that one says nothing until the
     * round is complete: then all fail with the lowest rank's */
    HORON_STORE_PUT_FAILED = 2
};

/** One frame on its way, perhaps to many. */
struct horon_store_letter {
    size_t references; /* freed with the last */
    size_t bytes;
    uint8_t data[];
};

/** @param body_bytes of the frame, behind its type
 * @param body_out over these bytes, all of which are to be written
 * @return with one reference; NULL: no memory */
struct horon_store_letter *horon_store_letter_create(enum horon_store_frame type, size_t body_bytes,
                                                     struct horon_writer *body_out);
/** Gives a reference back. NULL is a no-op. */
void horon_store_letter_drop(struct horon_store_letter *letter);

/** A FAIL, as above. */
struct horon_store_letter *horon_store_failure_letter(const struct horon_error *why, bool whole);
/** Reads it behind its type. @param size of the job. @return false: there is no reason in it */
bool horon_store_failure_read(struct horon_reader *in, int size, struct horon_error *why_out,
                              bool *whole_out);

/** Gathers one frame; all zero but @p limit is empty. */
struct horon_store_inbox {
    size_t limit; /* longest frame that is allowed, without its length */
    uint8_t head[4];
    size_t head_bytes;
    uint8_t *body; /* grows as bytes come, not as they are announced */
    size_t capacity, used, want;
};

/** @return the longest frame that a server of @p size ranks may send. */
size_t horon_store_frame_bytes_max(int size);

/** @return where the next bytes go, never beyond the frame; NULL: no memory */
uint8_t *horon_store_inbox_room(struct horon_store_inbox *inbox, size_t *bytes_out);
/** @p bytes bytes came there. @return OK, a frame is whole, in body[0..used), until there is room
 * for the next | AGAIN, want more | ERR_PROTO, it is longer than allowed, or empty */
horon_status_t horon_store_inbox_fill(struct horon_store_inbox *inbox, size_t bytes);
/** Takes the body of a whole frame out, for the caller to free. */
uint8_t *horon_store_inbox_take(struct horon_store_inbox *inbox);
void horon_store_inbox_deinit(struct horon_store_inbox *inbox);

#endif
