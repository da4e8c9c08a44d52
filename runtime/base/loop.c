/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeping, over libev. The doorbell is an eventfd: rings add up and one read takes them all, so a
 * sleeper that was rung many times wakes once, and one that was rung before it slept does not
 * sleep.
 */
#include "loop.h"

#include "alloc.h"

#include <assert.h>
#include <errno.h>
#include <ev.h>
#include <unistd.h>

struct watch {
    ev_io io;
    void (*on_ready)(void *arg, int fd, int events);
    void *arg;
    int events;
};

struct horon_loop {
    struct ev_loop *ev;
    ev_io doorbell;
    ev_timer timer;
    int watch_count, watches_max;
    struct watch watches[];
};

static void on_doorbell(struct ev_loop *ev, ev_io *io, int events)
{
    (void)ev;
    (void)events;
    uint64_t rings;
    while (read(io->fd, &rings, sizeof rings) < 0 && errno == EINTR)
        continue;
}

static void on_timer(struct ev_loop *ev, ev_timer *timer, int events)
{
    (void)ev;
    (void)timer;
    (void)events;
}

static void on_io(struct ev_loop *ev, ev_io *io, int events)
{
    (void)ev;
    struct watch *watch = (struct watch *)io; /* io is its first member */
    watch->on_ready(watch->arg, io->fd,
                    ((events & EV_READ) ? HORON_LOOP_READ : 0) |
                        ((events & EV_WRITE) ? HORON_LOOP_WRITE : 0));
}

horon_status_t horon_loop_create(int doorbell, int watches_max, struct horon_loop **loop_out,
                                 struct horon_error *error)
{
    size_t bytes = sizeof(struct horon_loop) + (size_t)watches_max * sizeof(struct watch);
    struct horon_loop *loop = horon_zalloc(1, bytes);
    if (!loop)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the event loop");
    /* EVFLAG_NOENV: the environment is read in one place; no signal watching: we are a guest */
    loop->ev = ev_loop_new(EVFLAG_NOENV | EVBACKEND_EPOLL);
    if (!loop->ev) {
        horon_free(loop);
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "cannot create an event loop");
    }
    loop->watches_max = watches_max;
    ev_io_init(&loop->doorbell, on_doorbell, doorbell, EV_READ);
    ev_io_start(loop->ev, &loop->doorbell);
    ev_init(&loop->timer, on_timer);
    *loop_out = loop;
    return HORON_OK;
}

void horon_loop_destroy(struct horon_loop *loop)
{
    if (!loop)
        return;
    ev_loop_destroy(loop->ev);
    horon_free(loop);
}

int horon_loop_add(struct horon_loop *loop, int fd, void (*on_ready)(void *arg, int fd, int events),
                   void *arg)
{
    assert(loop->watch_count < loop->watches_max);
    struct watch *watch = &loop->watches[loop->watch_count];
    watch->on_ready = on_ready;
    watch->arg = arg;
    ev_io_init(&watch->io, on_io, fd, EV_READ);
    return loop->watch_count++;
}

void horon_loop_watch(struct horon_loop *loop, int number, int events)
{
    struct watch *watch = &loop->watches[number];
    if (watch->events == events)
        return;
    watch->events = events;
    ev_io_stop(loop->ev, &watch->io);
    if (!events)
        return;
    ev_io_set(&watch->io, watch->io.fd,
              ((events & HORON_LOOP_READ) ? EV_READ : 0) |
                  ((events & HORON_LOOP_WRITE) ? EV_WRITE : 0));
    ev_io_start(loop->ev, &watch->io);
}

void horon_loop_sleep(struct horon_loop *loop, int64_t timeout_ms)
{
    if (timeout_ms >= 0) {
        ev_now_update(loop->ev);
        ev_timer_set(&loop->timer, (double)timeout_ms * 1e-3, 0.0);
        ev_timer_start(loop->ev, &loop->timer);
    }
    ev_run(loop->ev, EVRUN_ONCE);
    ev_timer_stop(loop->ev, &loop->timer);
}

void horon_doorbell_ring(int doorbell)
{
    uint64_t one = 1;
    while (write(doorbell, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}
