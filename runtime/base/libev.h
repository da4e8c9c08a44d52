/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libev, opened when a loop is made. Its shared object also exports libevent's names (event_add and
 * so on), which would stand before libevent's own in a program that links horon: Open MPI, which
 * needs those, then crashes. Opened locally, none of its names reaches the process.
 */
#ifndef HORON_BASE_LIBEV_H
#define HORON_BASE_LIBEV_H

#include "status.h"

#include <ev.h>

/* The functions of libev that horon calls, without their ev_. */
#define HORON_LIBEV_MAP(X)                                                                         \
    X(loop_new)                                                                                    \
    X(loop_destroy)                                                                                \
    X(run)                                                                                         \
    X(now_update)                                                                                  \
    X(io_start)                                                                                    \
    X(io_stop)                                                                                     \
    X(timer_start)                                                                                 \
    X(timer_stop)

struct horon_libev {
    void *image; /* of the library; NULL: not open */
#define HORON_LIBEV_MEMBER(name) __typeof__(&ev_##name) name;
    HORON_LIBEV_MAP(HORON_LIBEV_MEMBER)
#undef HORON_LIBEV_MEMBER
};

/**
 * Opens the library and finds the functions. A process may open it many times.
 * @param file "libev.so.4", or what a test has instead of it
 * @return OK | ERR_SYSTEM, it is not installed or not the version that ev.h describes; named
 */
horon_status_t horon_libev_open(struct horon_libev *libev, const char *file,
                                struct horon_error *error);
/** Nothing of the library may be in use any more. A closed one is a no-op. */
void horon_libev_close(struct horon_libev *libev);

#endif
