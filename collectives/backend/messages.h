/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a backend does that carries messages from rank to rank, besides operations: a const table
 * beside its own. One without it leaves them to the engine's links (runtime/engine/messages.c).
 *
 * A message has two ends, which meet by their ranks and the tag: the n-th that is sent with a tag
 * is the n-th that is received with it. All go on the channel of the lane in order, in no order
 * with what is launched there, and no backend waits with one for the other.
 *
 * Thread: the one that holds the progress token. Nothing here waits.
 */
#ifndef HORON_BACKEND_MESSAGES_H
#define HORON_BACKEND_MESSAGES_H

#include "backend/backend.h"

/** One end of a message. Owner: the engine, which keeps it where it is until it has ended. */
struct horon_backend_message {
    int peer; /* the other end, a rank of the team */
    bool sends;
    uint64_t tag;
    void *data; /* read where it sends */
    size_t bytes;
    /* The backend's: what was sent, of a receive that has ended; another number than `bytes` is an
     * error, and of more than that nothing was written. */
    size_t got;
    struct horon_backend_message *next; /* of those that have ended */
};

struct horon_backend_messages {
    /** Begins one; its data is the backend's until it has ended.
     * @return OK, also if it has ended with that, which move() says | ERR_MEMORY: it has not begun
     */
    horon_status_t (*begin)(struct horon_backend_channel *channel,
                            struct horon_backend_message *message);
    /** A turn of all. @param ended_out those that have ended, in the order in which they began; or
     * NULL. @return OK | what the team fails with */
    horon_status_t (*move)(struct horon_backend_channel *channel,
                           struct horon_backend_message **ended_out, bool *moved_out,
                           struct horon_error *error);
    /** Gives up those that have not ended: nobody touches their data any more. No other call but
     * the channel's destroy() follows, if there were any. @param ended_out as above */
    void (*give_up)(struct horon_backend_channel *channel,
                    struct horon_backend_message **ended_out);
};

#endif
