/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing to what we share with others. O_NONBLOCK belongs to the open file, so setting it would
 * change our shell's terminal. Instead we ask poll() and write no more than a pipe takes at once:
 * PIPE_BUF bytes after POLLOUT do not block. Invariant: the writer is active exactly while bytes
 * are queued.
 */
#include "sink.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

/* Then other events get their turn. */
#define BYTES_A_TURN ((size_t)256 << 10)

static bool takes_more(const struct horonrun_sink *sink)
{
    struct pollfd poll_fd = {.fd = sink->fd, .events = POLLOUT};
    return sink->regular || poll(&poll_fd, 1, 0) > 0;
}

static size_t write_some(struct horonrun_sink *sink)
{
    size_t done = 0;
    while (done < sink->queue.used && done < BYTES_A_TURN && takes_more(sink)) {
        size_t left = sink->queue.used - done;
        size_t piece = sink->regular || left < PIPE_BUF ? left : PIPE_BUF;
        ssize_t put = write(sink->fd, sink->queue.data + done, piece);
        if (put < 0 && (errno == EINTR || errno == EAGAIN))
            break;
        if (put < 0) {
            sink->broken = errno;
            return sink->queue.used;
        }
        done += (size_t)put;
    }
    return done;
}

static void on_writable(struct ev_loop *loop, struct ev_io *io, int events)
{
    struct horonrun_sink *sink = io->data;
    (void)events;
    horonrun_bytes_consume(&sink->queue, write_some(sink));
    if (!sink->queue.used)
        ev_io_stop(loop, io);
    sink->moved(sink->arg);
}

void horonrun_sink_init(struct horonrun_sink *sink, struct ev_loop *loop, int fd,
                        void (*moved)(void *arg), void *arg)
{
    struct stat what;
    *sink = (struct horonrun_sink){.loop = loop, .fd = fd, .moved = moved, .arg = arg};
    sink->regular = fstat(fd, &what) == 0 && S_ISREG(what.st_mode);
    ev_io_init(&sink->writer, on_writable, fd, EV_WRITE);
    sink->writer.data = sink;
}

void horonrun_sink_put(struct horonrun_sink *sink, const void *bytes, size_t count)
{
    if (sink->broken || !count || !horonrun_bytes_append(&sink->queue, bytes, count))
        return;
    ev_io_start(sink->loop, &sink->writer);
}

void horonrun_sink_deinit(struct horonrun_sink *sink)
{
    ev_io_stop(sink->loop, &sink->writer);
    horonrun_bytes_deinit(&sink->queue);
}
