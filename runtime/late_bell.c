/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doorbell that rings a little later, for what was submitted. Most threads that submit wait at
 * once, and then drive themselves: a progress thread that was woken for it costs two system calls
 * and a thread switch, takes the token away from the waiter, and where both have one core, the core
 * too. A thread that computes beside the operation needs it, but not within the first microseconds.
 * So a submission only sees to it that the progress thread wakes soon; it then finds the token
 * taken, or finds the post and drives.
 *
 * How soon depends on what came of it before. A thread that wakes and finds what was submitted was
 * needed, and the next time it is woken as soon. One that finds nothing was not: its submitter
 * waits and drives, and where ranks outnumber cores each such wake takes a core from a rank that
 * works. So the time doubles with each wake in vain, up to a millisecond. What a thread left behind
 * that held the token is not its own and others may wait for it: that is never told later than
 * SOON_NS.
 *
 * Nothing is lost: a thread that holds the token while something is posted sees it before it lets
 * go, or rings for it at once (token.c). Else the timer is set, by this thread or by one before.
 * The mark says which: it is set after the post, and taken back before the progress thread looks
 * for posts; so one that finds it set is seen by that look. The timer is not set again while it
 * runs, unless it has to ring sooner: a call a microsecond costs no system call each, and a job
 * that is idle wakes nobody. Of two threads that set it at once the one with more time may come
 * last: it then rings late by what that one allowed.
 */
#include "context_state.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Longer than it takes to submit some operations and begin to wait, shorter than a thread notices
 * that computes meanwhile. */
#define SOON_NS 50000
/* As long as a submitter that was last seen to drive may be left alone. */
#define LATER_NS 1000000

static void on_late(void *arg, int fd, int events)
{
    struct horon_context *ctx = arg;
    uint64_t times;
    (void)events;
    const ssize_t got = read(fd, &times, sizeof times);
    (void)got; /* nothing, if it was set again since; it does not wait, so nothing interrupts it */
    atomic_exchange(&ctx->late_bell.set, HORON_LATE_BELL_OFF);
    atomic_thread_fence(memory_order_seq_cst); /* the look for posts comes after */
    const uint32_t last_ns = atomic_load_explicit(&ctx->late_bell.later_ns, memory_order_relaxed);
    const uint32_t longer_ns = last_ns < LATER_NS / 2 ? last_ns * 2 : LATER_NS;
    atomic_store_explicit(&ctx->late_bell.later_ns,
                          horon_engine_has_post(ctx->engine) ? SOON_NS : longer_ns,
                          memory_order_relaxed);
}

horon_status_t horon_late_bell_begin(struct horon_context *ctx, struct horon_error *error)
{
    const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (timer < 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                     "no descriptor for a timer of the progress thread");
    ctx->late_bell.timer = timer;
    atomic_init(&ctx->late_bell.later_ns, SOON_NS);
    horon_loop_watch(ctx->loop, horon_loop_add(ctx->loop, timer, on_late, ctx), HORON_LOOP_READ);
    return HORON_OK;
}

void horon_late_bell_close(struct horon_context *ctx)
{
    if (ctx->late_bell.timer >= 0)
        close(ctx->late_bell.timer);
    ctx->late_bell.timer = -1;
}

static void set(struct horon_context *ctx, int wanted, uint32_t ns)
{
    const struct itimerspec then = {.it_value = {.tv_nsec = (long)ns}};
    int now = atomic_load(&ctx->late_bell.set);
    while (now < wanted) {
        if (!atomic_compare_exchange_weak(&ctx->late_bell.set, &now, wanted))
            continue;
        timerfd_settime(ctx->late_bell.timer, 0, &then, NULL);
        return;
    }
}

void horon_late_bell_set(struct horon_context *ctx)
{
    set(ctx, HORON_LATE_BELL_SOON, SOON_NS);
}

void horon_context_notify_later(struct horon_context *ctx)
{
    if (horon_context_may_sleep(ctx))
        set(ctx, HORON_LATE_BELL_LATER,
            atomic_load_explicit(&ctx->late_bell.later_ns, memory_order_relaxed));
}
