/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doorbell that rings a little later, for what was submitted. Most who submit wait at once, and
 * then drive themselves: a progress thread that was woken for it costs two system calls and a
 * thread switch, takes the token away from the waiter, and where both have one core, the core too.
 * One who computes beside the operation needs it, but not within the first microseconds. So a
 * submission only sees to it that the progress thread wakes soon; it then finds the token taken, or
 * finds the post and drives.
 *
 * Nothing is lost: a thread that holds the token while something is posted sees it before it lets
 * go, or rings for it at once (token.c). Else the timer is set, by this thread or by one before.
 * The mark says which: it is set after the post, and taken back before the progress thread looks
 * for posts; so one that finds it set is seen by that look. The timer is not set again while it
 * runs: a call a microsecond costs no system call each, and one that is idle wakes nobody.
 */
#include "late_bell.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Longer than it takes to submit some operations and begin to wait, shorter than anybody notices
 * who computes meanwhile. */
#define LATE_NS 50000

static void on_late(void *arg, int fd, int events)
{
    struct horon_context *ctx = arg;
    uint64_t times;
    (void)events;
    while (read(fd, &times, sizeof times) < 0 && errno == EINTR)
        continue;
    atomic_exchange(&ctx->late_bell_set, false);
    atomic_thread_fence(memory_order_seq_cst); /* the look for posts comes after */
}

horon_status_t horon_late_bell_begin(struct horon_context *ctx, struct horon_error *error)
{
    const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (timer < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                     "no descriptor for a timer of the progress thread");
    ctx->late_bell = timer;
    horon_loop_watch(ctx->loop, horon_loop_add(ctx->loop, timer, on_late, ctx), HORON_LOOP_READ);
    return HORON_OK;
}

void horon_late_bell_close(struct horon_context *ctx)
{
    if (ctx->late_bell >= 0)
        close(ctx->late_bell);
    ctx->late_bell = -1;
}

void horon_late_bell_set(struct horon_context *ctx)
{
    const struct itimerspec soon = {.it_value = {.tv_nsec = LATE_NS}};
    if (!atomic_exchange(&ctx->late_bell_set, true))
        timerfd_settime(ctx->late_bell, 0, &soon, NULL);
}

void horon_context_notify_later(struct horon_context *ctx)
{
    if (horon_context_may_sleep(ctx))
        horon_late_bell_set(ctx);
}
