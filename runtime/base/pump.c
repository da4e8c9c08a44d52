/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events are taken one at a time, so a function that is called may remove any watch or timer, its
 * own too: no event of a removed one can be waiting in a batch. Connections are made too seldom for
 * the cost of that to show. Timers run off one timerfd, which makes the epoll descriptor readable
 * when due: an outer loop needs to know no more than that descriptor.
 */
#include "pump.h"

#include "clock.h"
#include "fds.h"

#include <assert.h>
#include <errno.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define EVENTS_PER_TURN 64

horon_status_t horon_pump_init(struct horon_pump *pump, struct horon_error *error)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    *pump = (struct horon_pump){.epoll_fd = -1, .timer_fd = -1, .armed_ns = UINT64_MAX};
    pump->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (pump->epoll_fd >= 0)
        pump->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (pump->timer_fd >= 0 &&
        epoll_ctl(pump->epoll_fd, EPOLL_CTL_ADD, pump->timer_fd, &event) == 0)
        return HORON_OK;
    horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no descriptor for an event loop");
    horon_pump_deinit(pump);
    return HORON_ERR_SYSTEM;
}

void horon_pump_deinit(struct horon_pump *pump)
{
    horon_fd_close(&pump->timer_fd);
    horon_fd_close(&pump->epoll_fd);
}

horon_status_t horon_pump_watch(struct horon_pump *pump, struct horon_watch *watch, uint32_t events,
                                struct horon_error *error)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    HORON_ASSERT_OWNER(pump->owner);
    if (watch->active && watch->events == events)
        return HORON_OK;
    int op = watch->active ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(pump->epoll_fd, op, watch->fd, &event) != 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                     "a descriptor cannot be watched");
    watch->active = true;
    watch->events = events;
    return HORON_OK;
}

void horon_pump_unwatch(struct horon_pump *pump, struct horon_watch *watch)
{
    if (!watch->active)
        return;
    HORON_ASSERT_OWNER(pump->owner);
    epoll_ctl(pump->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->active = false;
}

static void arm(struct horon_pump *pump)
{
    uint64_t at_ns = pump->timers ? pump->timers->at_ns : UINT64_MAX;
    if (at_ns == pump->armed_ns)
        return;
    struct itimerspec when = {0}; /* all zero disarms */
    if (at_ns != UINT64_MAX) {
        when.it_value.tv_sec = (time_t)(at_ns / 1000000000u);
        when.it_value.tv_nsec = (long)(at_ns % 1000000000u);
        if (at_ns == 0)
            when.it_value.tv_nsec = 1;
    }
    timerfd_settime(pump->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
    pump->armed_ns = at_ns;
}

static void unlink_timer(struct horon_pump *pump, struct horon_timer *timer)
{
    struct horon_timer **at = &pump->timers;
    while (timer->active && *at != timer)
        at = &(*at)->next;
    if (timer->active)
        *at = timer->next;
    timer->active = false;
}

void horon_pump_timer(struct horon_pump *pump, struct horon_timer *timer, uint64_t at_ns)
{
    HORON_ASSERT_OWNER(pump->owner);
    unlink_timer(pump, timer);
    struct horon_timer **at = &pump->timers;
    while (*at && (*at)->at_ns <= at_ns)
        at = &(*at)->next;
    assert(timer->due);
    assert(!timer->active);
    timer->at_ns = at_ns;
    timer->next = *at;
    timer->active = true;
    *at = timer;
    arm(pump);
}

void horon_pump_untimer(struct horon_pump *pump, struct horon_timer *timer)
{
    if (!timer->active)
        return;
    HORON_ASSERT_OWNER(pump->owner);
    unlink_timer(pump, timer);
    arm(pump);
}

static void run_timers(struct horon_pump *pump)
{
    uint64_t ticks;
    ssize_t got = read(pump->timer_fd, &ticks, sizeof ticks);
    (void)got; /* nothing to read if it was moved since */
    pump->armed_ns = UINT64_MAX;
    uint64_t now = horon_clock_ns();
    while (pump->timers && pump->timers->at_ns <= now) {
        struct horon_timer *timer = pump->timers;
        unlink_timer(pump, timer);
        assert(!pump->timers || pump->timers->at_ns >= timer->at_ns);
        timer->due(timer->arg);
    }
    arm(pump);
}

horon_status_t horon_pump_turn(struct horon_pump *pump, int timeout_ms)
{
    int handled = 0;
    HORON_ASSERT_OWNER(pump->owner);
    while (handled < EVENTS_PER_TURN) {
        struct epoll_event event;
        int count = epoll_wait(pump->epoll_fd, &event, 1, handled ? 0 : timeout_ms);
        if (count <= 0) /* or a signal: a caller with a deadline looks at its clock */
            break;
        handled++;
        struct horon_watch *watch = event.data.ptr;
        if (watch)
            watch->ready(watch->arg, event.events);
        else
            run_timers(pump);
    }
    return handled ? HORON_OK : HORON_AGAIN;
}
