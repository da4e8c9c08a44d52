/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop of connections: descriptors and moments, each with a function to call. It is not
 * libev's (loop.h), as its users turn it in a loop of their own: horonrun the one of its store, the
 * context the one of connections that are made while its thread sleeps in libev. An epoll
 * descriptor to poll gives that to both, and libev shows none. One thread at a time.
 */
#ifndef HORON_BASE_PUMP_H
#define HORON_BASE_PUMP_H

#include "owner.h"
#include "status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

/** Calls @p ready when @p fd has one of the events asked for. Embedded by its owner. */
struct horon_watch {
    void (*ready)(void *arg, uint32_t events);
    void *arg;
    int fd;          /* the owner's; the pump does not close it */
    uint32_t events; /* EPOLLIN, EPOLLOUT: what epoll was asked to tell */
    bool active;
};

/** Calls @p due once, when its moment has come. Embedded by its owner. */
struct horon_timer {
    void (*due)(void *arg);
    void *arg;
    uint64_t at_ns;
    struct horon_timer *next;
    bool active;
};

struct horon_fds;

struct horon_pump {
    int epoll_fd;
    int timer_fd;
    uint64_t armed_ns;          /* what timer_fd is set to; UINT64_MAX: not at all */
    struct horon_timer *timers; /* earliest first */
    struct horon_fds *fds;      /* where its users note their sockets; set after init, or NULL */
    const struct horon_owner *owner; /* the thread that may call; set after init, or NULL: any */
};

horon_status_t horon_pump_init(struct horon_pump *pump, struct horon_error *error);
/** Watches and timers must be gone; not in the child of a fork, where it is async-signal-safe. */
void horon_pump_deinit(struct horon_pump *pump);

/** Asks for @p events of watch->fd; 0 events: only for errors and hang-ups. Adds it or changes it.
 */
horon_status_t horon_pump_watch(struct horon_pump *pump, struct horon_watch *watch, uint32_t events,
                                struct horon_error *error);
/** No-op if it is not active. To be called before its fd is closed. */
void horon_pump_unwatch(struct horon_pump *pump, struct horon_watch *watch);

/** Sets or moves a timer. */
void horon_pump_timer(struct horon_pump *pump, struct horon_timer *timer, uint64_t at_ns);
void horon_pump_untimer(struct horon_pump *pump, struct horon_timer *timer);

/**
 * Handles what has happened, at most some dozens of events, so that the caller gets its turn.
 * @param timeout_ms how long to wait if nothing has; -1 no limit, 0 not at all
 * @return OK, something was handled | AGAIN, nothing was
 */
horon_status_t horon_pump_turn(struct horon_pump *pump, int timeout_ms);

#endif
