/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleeping, over libev (libev.h). The doorbell is an eventfd: rings add up and one read takes them
 * all, so a sleeper that was rung many times wakes once, and one that was rung before it slept does
 * not sleep.
 *
 * libev shows no descriptor of a loop, which the child of a fork must close. The kernel tells which
 * one it is: the epoll that watches a descriptor that was given to libev.
 */
#include "loop.h"

#include "alloc.h"
#include "file.h"
#include "libev.h"
#include "owner.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define LIBEV_FILE "libev.so.4"

struct watch {
    ev_io io;
    void (*on_ready)(void *arg, int fd, int events);
    void *arg;
    int events;
};

struct horon_loop {
    struct horon_owner owner;
    struct horon_libev libev;
    struct ev_loop *ev;
    ev_io doorbell;
    ev_timer timer;
    int epoll_fd; /* libev's; -1: not found */
    bool changed; /* what is watched, since the kernel was told last */
    bool woken;   /* by what is watched, since it slept last */
    int watch_count, watches_max;
    struct watch watches[];
};

static void on_doorbell(struct ev_loop *ev, ev_io *io, int events)
{
    struct horon_loop *loop = io->data;
    (void)ev;
    (void)events;
    uint64_t rings;
    loop->woken = true;
    const ssize_t got = read(io->fd, &rings, sizeof rings);
    (void)got; /* it does not wait, so nothing interrupts it */
}

static void on_probe(struct ev_loop *ev, ev_io *io, int events)
{
    (void)ev;
    (void)io;
    (void)events;
}

/* Does the kernel list @p watched among the descriptors of the epoll @p name, a number? Ours has
 * no other yet. */
static bool lists(int folder, const char *name, int watched)
{
    char path[64], text[512], wanted[32];
    ssize_t bytes = readlinkat(folder, name, text, sizeof text - 1);
    if (bytes < 0)
        return false;
    text[bytes] = 0;
    if (strcmp(text, "anon_inode:[eventpoll]") != 0)
        return false;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%.20s", name);
    horon_file_read_text(path, text, sizeof text);
    snprintf(wanted, sizeof wanted, "tfd: %8d ", watched);
    return strstr(text, wanted) != NULL;
}

static int find_epoll(const struct horon_libev *libev, struct ev_loop *ev)
{
    int probe = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), found = -1;
    DIR *folder = opendir("/proc/self/fd");
    if (probe >= 0 && folder) {
        ev_io io;
        ev_io_init(&io, on_probe, probe, EV_READ);
        libev->io_start(ev, &io);
        libev->run(ev, EVRUN_NOWAIT); /* hands it to the kernel */
        libev->io_stop(ev, &io);
        for (struct dirent *entry = readdir(folder); entry && found < 0; entry = readdir(folder))
            if (lists(dirfd(folder), entry->d_name, probe))
                found = (int)strtol(entry->d_name, NULL, 10);
    }
    if (folder)
        closedir(folder);
    if (probe >= 0)
        close(probe); /* and the kernel forgets it */
    return found;
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
    struct horon_loop *loop = io->data;
    loop->woken = true;
    watch->on_ready(watch->arg, io->fd,
                    ((events & EV_READ) ? HORON_LOOP_READ : 0) |
                        ((events & EV_WRITE) ? HORON_LOOP_WRITE : 0));
}

horon_status_t horon_loop_create(int doorbell, int watches_max, struct horon_loop **loop_out,
                                 struct horon_error *error)
{
    assert(doorbell >= 0);
    assert(watches_max >= 0);
    size_t bytes = sizeof(struct horon_loop) + (size_t)watches_max * sizeof(struct watch);
    struct horon_loop *loop = horon_zalloc(1, bytes);
    if (!loop)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the event loop");
    horon_status_t status = horon_libev_open(&loop->libev, LIBEV_FILE, error);
    if (status != HORON_OK) {
        horon_free(loop);
        return status;
    }
    /* EVFLAG_NOENV: the environment is read in one place; no signal watching: we are a guest */
    loop->ev = loop->libev.loop_new(EVFLAG_NOENV | EVBACKEND_EPOLL);
    if (!loop->ev) {
        status =
            horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "cannot create a libev loop");
        horon_libev_close(&loop->libev);
        horon_free(loop);
        return status;
    }
    loop->epoll_fd = find_epoll(&loop->libev, loop->ev);
    loop->watches_max = watches_max;
    loop->changed = true;
    horon_loop_own(loop);
    ev_io_init(&loop->doorbell, on_doorbell, doorbell, EV_READ);
    loop->doorbell.data = loop;
    loop->libev.io_start(loop->ev, &loop->doorbell);
    ev_init(&loop->timer, on_timer);
    *loop_out = loop;
    return HORON_OK;
}

void horon_loop_destroy(struct horon_loop *loop)
{
    if (!loop)
        return;
    loop->libev.loop_destroy(loop->ev);
    horon_libev_close(&loop->libev);
    horon_free(loop);
}

void horon_loop_own(struct horon_loop *loop)
{
    horon_owner_take(&loop->owner);
}

void horon_loop_close_in_child(struct horon_loop *loop)
{
    if (loop && loop->epoll_fd >= 0)
        close(loop->epoll_fd);
}

int horon_loop_add(struct horon_loop *loop, int fd, void (*on_ready)(void *arg, int fd, int events),
                   void *arg)
{
    HORON_ASSERT_OWNER(&loop->owner);
    assert(on_ready);
    assert(loop->watch_count < loop->watches_max);
    struct watch *watch = &loop->watches[loop->watch_count];
    watch->on_ready = on_ready;
    watch->arg = arg;
    ev_io_init(&watch->io, on_io, fd, EV_READ);
    watch->io.data = loop;
    return loop->watch_count++;
}

void horon_loop_watch(struct horon_loop *loop, int number, int events)
{
    HORON_ASSERT_OWNER(&loop->owner);
    assert(number >= 0);
    assert(number < loop->watch_count);
    assert((events & ~(HORON_LOOP_READ | HORON_LOOP_WRITE)) == 0);
    struct watch *watch = &loop->watches[number];
    if (watch->events == events)
        return;
    watch->events = events;
    loop->changed = true;
    loop->libev.io_stop(loop->ev, &watch->io);
    if (!events)
        return;
    assert(watch->io.fd >= 0); /* one that is added without a descriptor is never watched */
    ev_io_set(&watch->io, watch->io.fd,
              ((events & HORON_LOOP_READ) ? EV_READ : 0) |
                  ((events & HORON_LOOP_WRITE) ? EV_WRITE : 0));
    loop->libev.io_start(loop->ev, &watch->io);
}

/* libev waits in whole milliseconds, and tells the kernel what is watched when it does. */
static void sleep_shortly(struct horon_loop *loop, int64_t timeout_ns)
{
    struct pollfd watched = {.fd = loop->epoll_fd, .events = POLLIN};
    const struct timespec timeout = {.tv_nsec = (long)timeout_ns};
    if (!loop->changed)
        ppoll(&watched, 1, &timeout, NULL);
    loop->libev.run(loop->ev, EVRUN_NOWAIT);
}

bool horon_loop_sleep(struct horon_loop *loop, int64_t timeout_ns)
{
    HORON_ASSERT_OWNER(&loop->owner);
    loop->woken = false;
    if (timeout_ns > 0 && timeout_ns < 1000000 && loop->epoll_fd >= 0) {
        sleep_shortly(loop, timeout_ns);
    } else {
        if (timeout_ns >= 0) {
            loop->libev.now_update(loop->ev);
            ev_timer_set(&loop->timer, (double)timeout_ns * 1e-9, 0.0);
            loop->libev.timer_start(loop->ev, &loop->timer);
        }
        loop->libev.run(loop->ev, EVRUN_ONCE);
        loop->libev.timer_stop(loop->ev, &loop->timer);
    }
    loop->changed = false;
    return loop->woken;
}

void horon_doorbell_ring(int doorbell)
{
    uint64_t one = 1;
    while (write(doorbell, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}
