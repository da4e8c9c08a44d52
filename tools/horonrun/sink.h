/* SPDX-License-Identifier: Apache-2.0 */
/* A descriptor that takes bytes at a pace of its own (a terminal, a pipe, a file): they are queued
 * and written as it takes them. It is never made non-blocking, as other processes share it. */
#ifndef HORONRUN_SINK_H
#define HORONRUN_SINK_H

#include "bytes.h"

#include <ev.h>

struct horonrun_sink {
    struct ev_loop *loop;
    struct ev_io writer;
    struct horonrun_bytes queue;
    int fd;                   /* not owned */
    bool regular;             /* a file: a write never waits long */
    int broken;               /* errno of a write that failed: everything is dropped from then on */
    void (*moved)(void *arg); /* some was written, or it broke */
    void *arg;
};

void horonrun_sink_init(struct horonrun_sink *sink, struct ev_loop *loop, int fd,
                        void (*moved)(void *arg), void *arg);
/** Queues; out of memory drops it. */
void horonrun_sink_put(struct horonrun_sink *sink, const void *bytes, size_t count);
void horonrun_sink_deinit(struct horonrun_sink *sink);

#endif
