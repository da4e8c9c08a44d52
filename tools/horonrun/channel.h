/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames over two descriptors, on libev: whole frames in, queued frames out, never waiting. Both
 * ends use it. Thread: the loop's.
 */
#ifndef HORONRUN_CHANNEL_H
#define HORONRUN_CHANNEL_H

#include "frame.h"

#include <ev.h>

/** Beyond this many unsent bytes the producer should pause; below a quarter it may go on. */
#define HORONRUN_CHANNEL_QUEUE_BYTES ((size_t)1 << 20)

struct horonrun_channel_events {
    /* one frame, in order; the view lives during the call. May close the channel. */
    void (*frame)(void *arg, const struct horonrun_frame *frame);
    /* the other end is gone, or spoke nonsense: @p why, "" for a plain end; with the last line of
     * what came instead of a greeting. The channel is closed. */
    void (*end)(void *arg, const char *why);
    void (*drained)(void *arg); /* the queue fell below a quarter of its limit */
};

/** Embedded; must not move while open. */
struct horonrun_channel {
    struct ev_loop *loop;
    const struct horonrun_channel_events *events;
    void *arg;
    int in_fd, out_fd; /* owned; -1 once closed; may be the same */
    bool greeting_came;
    bool paused;
    struct ev_io reader, writer;
    struct horonrun_bytes in, out;
};

/**
 * Takes both descriptors and makes them non-blocking.
 * @param expect_greeting what comes before HORONRUN_GREETING is passed over
 */
void horonrun_channel_open(struct horonrun_channel *channel, struct ev_loop *loop, int in_fd,
                           int out_fd, bool expect_greeting,
                           const struct horonrun_channel_events *events, void *arg);

/** Queues bytes or a frame and sends what goes at once. A failure shows as the end of the channel,
 * later. Nothing happens on a closed one. */
void horonrun_channel_send_raw(struct horonrun_channel *channel, const void *bytes, size_t count);
void horonrun_channel_send(struct horonrun_channel *channel, uint8_t type, const void *body,
                           size_t bytes);
/** A frame of up to two u32. */
void horonrun_channel_send_u32(struct horonrun_channel *channel, uint8_t type, uint32_t first,
                               uint32_t second, int count);

/** Stops and continues delivering frames; what is buffered already still comes. */
void horonrun_channel_pause(struct horonrun_channel *channel, bool pause);

static inline bool horonrun_channel_is_open(const struct horonrun_channel *channel)
{
    return channel->in_fd >= 0;
}
static inline size_t horonrun_channel_unsent(const struct horonrun_channel *channel)
{
    return channel->out.used;
}

/** Closes without an event. Again is a no-op. */
void horonrun_channel_close(struct horonrun_channel *channel);

#endif
