/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank and its store's server say to each other after the handshake: frames over the link of
 * the proven connection, in the turns of a pump. Any link serves, one that enciphers, too. A frame
 * is u32 length of the rest, u8 type, and, little-endian:
 *     PUT   rank -> server   u8 enum horon_store_put, u32 round, blob
 *     LATE  rank -> server   nothing: it has waited for the round as long as it may
 *     RANKS rank -> server   first, if its job is a list of the launch's ranks: that list, and a 0
 *     ALL   server -> rank   u32 round, then for each rank u32 length and its blob
 *     FAIL  either way       the sender's last word: u8 1 if the text says it all (else only which
 *                            ranks are missing), and the error. From a rank: all shall fail so
 */
#ifndef HORON_BOOT_STORE_STREAM_H
#define HORON_BOOT_STORE_STREAM_H

#include "boot/connect/handshake.h"
#include "codec.h"
#include "link/link.h"
#include "pump.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HORON_STORE_BLOB_BYTES_MAX 16384 /* a rank's profile: its addresses and settings */
#define HORON_STORE_PUT_BYTES 6          /* of a PUT before its blob, its type included */
/* On their way to one side: a list of ranks, a round's, and that all failed or it is late. */
#define HORON_STORE_LETTERS_MAX 3

enum horon_store_frame {
    HORON_STORE_PUT = 1,
    HORON_STORE_ALL = 2,
    HORON_STORE_FAIL = 3,
    HORON_STORE_LATE = 4,
    HORON_STORE_RANKS = 5
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
    size_t limit;   /* longest frame that is allowed, without its length */
    uint8_t *frame; /* as it comes; grows as bytes come, not as they are announced */
    size_t capacity, used;
};

/** @return the longest frame that a server of @p size ranks may send. */
size_t horon_store_frame_bytes_max(int size);

/** @return where the next bytes go, never beyond the frame; NULL: no memory */
uint8_t *horon_store_inbox_room(struct horon_store_inbox *inbox, size_t *bytes_out);
/** @p bytes bytes came there. @return OK, a frame is whole, in frame[0..used), until there is room
 * for the next | AGAIN, want more | ERR_PROTO, it is longer than allowed, or empty */
horon_status_t horon_store_inbox_fill(struct horon_store_inbox *inbox, size_t bytes);
/** Takes a whole frame out, for the caller to free. */
uint8_t *horon_store_inbox_take(struct horon_store_inbox *inbox);
void horon_store_inbox_deinit(struct horon_store_inbox *inbox);

/** The owner sets the first four and inbox.limit; the rest is zero. */
struct horon_store_stream {
    struct horon_pump *pump;
    /* A frame has come: its type, and what is behind that. It may close the stream. @return OK | a
     * failure, with which the stream ends */
    horon_status_t (*take)(void *arg, uint8_t type, struct horon_reader *body);
    /* The peer is gone, or has sent what it may not: the last call. It may free the stream. */
    void (*ended)(void *arg, horon_status_t why);
    void *arg;
    struct horon_link *link; /* NULL: not open, or closed */
    struct horon_watch watch;
    struct horon_store_inbox inbox;
    struct horon_store_letter *letters[HORON_STORE_LETTERS_MAX];
    size_t sent; /* of letters[0] */
};

/** Goes on over a proven connection, with what was given to it before.
 * @param wrap NULL, or wraps the link
 * @return OK | ERR_MEMORY | ERR_SYSTEM; the descriptor is the stream's in any case, or closed */
horon_status_t horon_store_stream_open(struct horon_store_stream *stream,
                                       const struct horon_proven *proven, horon_link_wrap_fn_t wrap,
                                       struct horon_error *error);

/** Sends @p letter, or keeps it until there is a connection; the caller's reference stays its own.
 * @return false: there are as many as there may be, and this one is not sent */
bool horon_store_stream_send(struct horon_store_stream *stream, struct horon_store_letter *letter);

/** @return true while something was not handed to the kernel yet. */
bool horon_store_stream_busy(const struct horon_store_stream *stream);

/** What was sent still arrives. A no-op if it is closed. */
void horon_store_stream_close(struct horon_store_stream *stream);

#endif
