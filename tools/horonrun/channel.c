/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two ends of one stream of frames. Writing is tried at once and queued where it would block;
 * reading takes what is there and hands on whole frames. Invariant: the writer is active exactly
 * while bytes are queued. A write error is not reported where it happens: the reader sees the end,
 * in one place.
 */
#include "channel.h"

#include "codec.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES 200 /* of what is shown of what is no greeting */

/* The last line of @p bytes that is not blank, with what a terminal would not show as ?. */
static void copy_last_line(const char *bytes, size_t count, char *text, size_t text_bytes)
{
    while (count && (unsigned char)bytes[count - 1] <= ' ')
        count--;
    size_t begin = count, used = 0;
    while (begin && bytes[begin - 1] != '\n' && bytes[begin - 1] != '\r')
        begin--;
    for (; begin < count && used + 1 < text_bytes; begin++) {
        const unsigned char c = (unsigned char)bytes[begin];
        text[used++] = (char)(c < ' ' || c == 0x7f ? '?' : c);
    }
    text[used] = 0;
}

static void end(struct horonrun_channel *channel, const char *why)
{
    char line[LINE_BYTES] = "", text[LINE_BYTES + 128];
    if (!channel->greeting_came)
        copy_last_line(channel->in.data, channel->in.used, line, sizeof line);
    horonrun_channel_close(channel);
    if (line[0]) {
        snprintf(text, sizeof text, "%s%s'%s'", why, why[0] ? ", last " : "it printed ", line);
        why = text;
    }
    channel->events->end(channel->arg, why);
}

/* @return false: the channel has ended */
static bool hand_on_frames(struct horonrun_channel *channel)
{
    size_t used = 0;
    horon_status_t status = HORON_OK;
    if (!channel->greeting_came) {
        status = horonrun_frame_skip_greeting(channel->in.data, channel->in.used, &used);
        channel->greeting_came = status == HORON_OK;
    }
    while (status == HORON_OK && horonrun_channel_is_open(channel)) {
        struct horonrun_frame frame;
        status = horonrun_frame_peek(channel->in.data + used, channel->in.used - used, &frame);
        if (status != HORON_OK)
            break;
        used += frame.bytes;
        channel->events->frame(channel->arg, &frame);
    }
    if (!horonrun_channel_is_open(channel))
        return false;
    if (status == HORON_ERR_PROTO) {
        end(channel, channel->greeting_came ? "it sent something that is no frame"
                                            : "it printed much, but is no horonrun agent");
        return false;
    }
    horonrun_bytes_consume(&channel->in, used);
    return true;
}

static void on_readable(struct ev_loop *loop, struct ev_io *io, int events)
{
    struct horonrun_channel *channel = io->data;
    (void)loop;
    (void)events;
    if (!horonrun_bytes_reserve(&channel->in, HORONRUN_OUTPUT_BYTES_MAX)) {
        end(channel, "out of memory");
        return;
    }
    ssize_t got = read(channel->in_fd, channel->in.data + channel->in.used,
                       channel->in.limit - channel->in.used);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        end(channel, got < 0 ? strerror(errno) : "");
        return;
    }
    channel->in.used += (size_t)got;
    hand_on_frames(channel);
}

/* Sends what goes. A broken pipe drops the queue: the reader will see the end. */
static void send_queued(struct horonrun_channel *channel)
{
    size_t sent = 0;
    while (sent < channel->out.used) {
        ssize_t put = write(channel->out_fd, channel->out.data + sent, channel->out.used - sent);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && errno != EAGAIN)
            sent = channel->out.used;
        if (put < 0)
            break;
        sent += (size_t)put;
    }
    horonrun_bytes_consume(&channel->out, sent);
    if (channel->out.used)
        ev_io_start(channel->loop, &channel->writer);
    else
        ev_io_stop(channel->loop, &channel->writer);
}

static void on_writable(struct ev_loop *loop, struct ev_io *io, int events)
{
    struct horonrun_channel *channel = io->data;
    (void)loop;
    (void)events;
    const size_t low = HORONRUN_CHANNEL_QUEUE_BYTES / 4;
    bool was_high = channel->out.used >= low;
    send_queued(channel);
    if (was_high && channel->out.used < low && channel->events->drained)
        channel->events->drained(channel->arg);
}

void horonrun_channel_open(struct horonrun_channel *channel, struct ev_loop *loop, int in_fd,
                           int out_fd, bool expect_greeting,
                           const struct horonrun_channel_events *events, void *arg)
{
    *channel = (struct horonrun_channel){.loop = loop,
                                         .events = events,
                                         .arg = arg,
                                         .in_fd = in_fd,
                                         .out_fd = out_fd,
                                         .greeting_came = !expect_greeting};
    fcntl(in_fd, F_SETFL, fcntl(in_fd, F_GETFL) | O_NONBLOCK);
    fcntl(out_fd, F_SETFL, fcntl(out_fd, F_GETFL) | O_NONBLOCK);
    ev_io_init(&channel->reader, on_readable, in_fd, EV_READ);
    ev_io_init(&channel->writer, on_writable, out_fd, EV_WRITE);
    channel->reader.data = channel->writer.data = channel;
    ev_io_start(loop, &channel->reader);
}

void horonrun_channel_send_raw(struct horonrun_channel *channel, const void *bytes, size_t count)
{
    if (!horonrun_channel_is_open(channel))
        return;
    if (horonrun_bytes_append(&channel->out, bytes, count) && !ev_is_active(&channel->writer))
        send_queued(channel);
}

void horonrun_channel_send(struct horonrun_channel *channel, uint8_t type, const void *body,
                           size_t bytes)
{
    if (!horonrun_channel_is_open(channel))
        return;
    if (horonrun_frame_append(&channel->out, type, body, bytes) && !ev_is_active(&channel->writer))
        send_queued(channel);
}

void horonrun_channel_send_u32(struct horonrun_channel *channel, uint8_t type, uint32_t first,
                               uint32_t second, int count)
{
    uint8_t body[8];
    struct horon_writer out = horon_writer_over(body, sizeof body);
    horon_write_u32(&out, first);
    horon_write_u32(&out, second);
    horonrun_channel_send(channel, type, body, 4 * (size_t)count);
}

void horonrun_channel_pause(struct horonrun_channel *channel, bool pause)
{
    if (!horonrun_channel_is_open(channel) || channel->paused == pause)
        return;
    channel->paused = pause;
    if (pause)
        ev_io_stop(channel->loop, &channel->reader);
    else
        ev_io_start(channel->loop, &channel->reader);
}

void horonrun_channel_close(struct horonrun_channel *channel)
{
    if (!horonrun_channel_is_open(channel))
        return;
    ev_io_stop(channel->loop, &channel->reader);
    ev_io_stop(channel->loop, &channel->writer);
    close(channel->in_fd);
    if (channel->out_fd != channel->in_fd)
        close(channel->out_fd);
    channel->in_fd = channel->out_fd = -1;
    horonrun_bytes_deinit(&channel->in);
    horonrun_bytes_deinit(&channel->out);
}
