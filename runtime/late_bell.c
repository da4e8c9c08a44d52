/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doorbell that rings a little later, for what was submitted. Most threads that submit wait at
 * once, and then drive themselves: a progress thread that was woken for it costs two system calls
 * and a thread switch, takes the token away from the waiter, and where both have one core, the core
 * too. A thread that computes beside the operation needs it, but not within the first microseconds.
 * So a submission only sees to it that the progress thread wakes soon; it then finds the token
 * taken, or finds the post and drives.
 *
 * How soon depends on the wakes before. If the progress thread wakes and finds what was submitted,
 * it was needed, and is woken as soon the next time. If it finds nothing, it was not needed: the
 * submitter waits and drives, and where ranks outnumber cores each such wake takes a core from a
 * rank that works. So the time doubles with each wake in vain, up to LATER_NS. A thread that gives
 * the token back may leave work of others behind. They may wait for it, so for that work the bell
 * always rings after SOON_NS; but for what nobody knows to move before it is looked at, after
 * LATER_NS.
 *
 * Nothing is lost. If a thread holds the token, it sees a new post before it lets go, or rings for
 * it at once (token.c). If no thread does, the timer is set; `set` says so. A thread that submits
 * sets that mark after its post, and the progress thread takes the mark back before it looks for
 * posts: a submitter that finds the mark set already is seen by that look. The timer is set again
 * only to ring sooner: so a thread that submits each microsecond makes no system call each time,
 * and an idle job wakes nobody. If two threads set the timer at once, the longer time may win, and
 * the bell rings later than the other thread wanted, by LATER_NS at most.
 */
#include "context_state.h"

#include <assert.h>
#include <errno.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Longer than it takes to submit some operations and begin to wait, shorter than a thread notices
 * that computes meanwhile. */
#define SOON_NS 50000
/* As long as a submitter that was last seen to drive may be left alone. */
#define LATER_NS 1000000

static_assert(SOON_NS > 0, "0 would stop the timer");
static_assert(SOON_NS <= LATER_NS, "sooner is not later");
static_assert(LATER_NS < 1000000000, "a second or more is not in tv_nsec alone");

static void on_late(void *arg, int fd, int events)
{
    struct horon_context *ctx = arg;
    uint64_t times;
    (void)events;
    assert(fd == ctx->late_bell.timer);
    const ssize_t got = read(fd, &times, sizeof times);
    (void)got; /* nothing, if it was set again since; it does not wait, so nothing interrupts it */
    atomic_exchange(&ctx->late_bell.set, HORON_LATE_BELL_OFF);
    atomic_thread_fence(memory_order_seq_cst); /* the look for posts comes after */
    const uint32_t last_ns = atomic_load_explicit(&ctx->late_bell.later_ns, memory_order_relaxed);
    assert(last_ns >= SOON_NS);
    assert(last_ns <= LATER_NS);
    const uint32_t longer_ns = last_ns < LATER_NS / 2 ? last_ns * 2 : LATER_NS;
    atomic_store_explicit(&ctx->late_bell.later_ns,
                          horon_engine_has_post(ctx->engine) ? SOON_NS : longer_ns,
                          memory_order_relaxed);
}

horon_status_t horon_late_bell_begin(struct horon_context *ctx, struct horon_error *error)
{
    assert(horon_life_now(&ctx->life) == HORON_LIFE_JOINING);
    assert(ctx->late_bell.timer < 0);
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
    assert(!horon_life_has_thread(&ctx->life)); /* else it looks at the timer */
    if (ctx->late_bell.timer >= 0)
        close(ctx->late_bell.timer);
    ctx->late_bell.timer = -1;
}

static void set(struct horon_context *ctx, int wanted, uint32_t ns)
{
    const struct itimerspec then = {.it_value = {.tv_nsec = (long)ns}};
    assert(ctx->late_bell.timer >= 0);
    assert(ns >= SOON_NS);
    assert(ns <= LATER_NS);
    int now = atomic_load(&ctx->late_bell.set);
    assert(now >= HORON_LATE_BELL_OFF);
    assert(now <= HORON_LATE_BELL_SOON);
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

void horon_late_bell_set_later(struct horon_context *ctx)
{
    set(ctx, HORON_LATE_BELL_LATER, LATER_NS);
}

void horon_context_notify_later(struct horon_context *ctx)
{
    if (horon_context_may_be_asleep(ctx))
        set(ctx, HORON_LATE_BELL_LATER,
            atomic_load_explicit(&ctx->late_bell.later_ns, memory_order_relaxed));
}
