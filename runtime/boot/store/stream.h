/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames over the link of a proven connection, in the turns of a pump: what a rank and its store's
 * server have alike. Any link serves, one that enciphers, too.
 */
#ifndef HORON_BOOT_STORE_STREAM_H
#define HORON_BOOT_STORE_STREAM_H

#include "boot/connect/handshake.h"
#include "boot/pump.h"
#include "boot/store/frame.h"
#include "link/link.h"

#define HORON_STORE_LETTERS_MAX                                                                    \
    2 /* on their way to one side: a round's, and that all have failed */

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
