/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context's own thread. It drives while nobody waits, looks at intervals for what nobody tells
 * (looks.h, deaths.h), calls users' callbacks, and sleeps on the doorbell otherwise.
 *
 * While a waiter drives, links would wake it for nothing at each message: the first time it wakes
 * and finds the token taken it stops watching them ("disarmed"), and watches again when it next
 * gets the token, is rung by a waiter that left work behind, or after REARM_NS. While something is
 * in flight it `minds` it: it wakes by itself, so a waiter that leaves it need not ring. What it
 * looks for may be due before that, and then it asks the waiter for the token. A backend that
 * nothing wakes a thread for wants a turn after a pause: the waiter gives it one anyway.
 */
#include "context_state.h"
#include "deaths.h"
#include "looks.h"
#include "patience.h"

#include <assert.h>
#include <unistd.h>

/* How long it goes on looking, in the background, while something is in flight. */
#define BACKGROUND_US 100
#define REARM_NS 100000000

/* @param glances  it has slept as long as a backend's pause: a turn that moves nothing is all */
static void drive_background(struct horon_context *ctx, bool glances)
{
    struct horon_patience patience =
        horon_patience_of(ctx->crowded ? 0 : ctx->config.spin_us, BACKGROUND_US);
    uint64_t now;
    HORON_ASSERT_OWNER(&ctx->owner);
    for (;;) {
        horon_deaths_report(ctx);
        /* A link that is tried without asking stays told of: the thread would not sleep, and where
         * it shares its core with the waiter, that one would not come to take the token. */
        if (atomic_load(&ctx->waiters))
            horon_poller_collect(ctx->poller);
        bool moved = horon_token_look(ctx);
        if (atomic_load(&ctx->waiters) || horon_life_stops(&ctx->life) ||
            atomic_load_explicit(&ctx->to_finish, memory_order_relaxed))
            return;
        if (moved) {
            patience.since_ns = 0;
            glances = false;
            continue;
        }
        if (!glances && horon_engine_in_flight(ctx->engine) > 0 &&
            horon_patience_go_on(&patience, &now))
            continue;
        if (!horon_poller_collect(ctx->poller))
            return;
    }
}

static void watch_links(struct horon_context *ctx, bool watch)
{
    horon_loop_watch(ctx->loop, ctx->poller_watch, watch ? HORON_LOOP_READ : 0);
    atomic_store_explicit(&ctx->disarmed, !watch, memory_order_relaxed);
}

/* What it alone looks for is due, and a thread that drives one operation after the other would keep
 * the token from it for ever. */
static bool take_to_look(struct horon_context *ctx, uint64_t due_ns)
{
    return horon_token_flies(ctx) && horon_clock_ns() >= due_ns && horon_token_ask(ctx);
}

/* @return how long it sleeps while another thread has the token: looks may be due sooner */
static int64_t rearm_after(uint64_t due_ns)
{
    const uint64_t now = horon_clock_ns();
    return now < due_ns && due_ns < now + REARM_NS ? (int64_t)(due_ns - now) : REARM_NS;
}

/* @return when a backend wants its next turn, since nothing wakes this thread for it */
static uint64_t next_turn(struct horon_context *ctx, int64_t *timeout_ns)
{
    const uint64_t pause_ns = horon_engine_interval_ns(ctx->engine);
    assert(pause_ns <= INT64_MAX);
    if (pause_ns && (*timeout_ns < 0 || pause_ns < (uint64_t)*timeout_ns))
        *timeout_ns = (int64_t)pause_ns;
    return pause_ns ? horon_clock_ns() + pause_ns : UINT64_MAX;
}

void *horon_progress_thread(void *arg)
{
    struct horon_context *ctx = arg;
    uint64_t due_ns = 0; /* the next look for what it alone looks for */
    uint64_t turn_ns = UINT64_MAX;
    struct horon_alive *alive = &horon_host_line(&ctx->host, ctx->host.local_rank)->alive;
    const bool held = horon_alive_hold(alive); /* else nobody reads of this process */
    sem_post(&ctx->thread_begun);
    pthread_setname_np(pthread_self(), "horon");
    horon_loop_own(ctx->loop);
    while (!horon_life_stops(&ctx->life)) {
        int64_t timeout_ns;
        if (horon_token_try(ctx) || take_to_look(ctx, due_ns)) {
            drive_background(ctx, horon_clock_ns() >= turn_ns);
            timeout_ns = horon_looks_take(ctx);
            due_ns = horon_clock_ns() + (uint64_t)(timeout_ns < 0 ? REARM_NS : timeout_ns);
            due_ns = due_ns < ctx->deaths_look_ns ? due_ns : ctx->deaths_look_ns;
            turn_ns = next_turn(ctx, &timeout_ns);
            atomic_store(&ctx->minds, horon_engine_in_flight(ctx->engine) > 0);
            watch_links(ctx, true);
            horon_token_release_armed(ctx);
        } else {
            const bool minded = atomic_exchange(&ctx->minds, false);
            atomic_thread_fence(memory_order_seq_cst); /* pairs with slept_through() */
            if (ctx->woken_by_links)
                watch_links(ctx, false);
            const bool minds =
                minded || horon_token_flies(ctx); /* or the thread that leaves it rings */
            atomic_store(&ctx->minds, minds);
            timeout_ns = minds || atomic_load(&ctx->disarmed) ? rearm_after(due_ns) : -1;
        }
        ctx->woken_by_links = false;
        if (!horon_callbacks_run(ctx))
            horon_deaths_sleep(ctx, timeout_ns);
    }
    if (horon_life_is_forked(&ctx->life)) /* by a callback: the child has no other thread, and */
        _exit(0);                         /* exit() would do once more what is the parent's */
    horon_callbacks_run(ctx);
    if (held)
        horon_alive_let_go(alive);
    return NULL;
}
