/* SPDX-License-Identifier: Apache-2.0 */
/* Each is due now and then; the next one says how long the progress thread may sleep. */
#include "looks.h"

#include "clock.h"
#include "context_state.h"
#include "deaths.h"

/* A look that takes long is due once in an interval, however often the thread wakes in between.
 * @return ms until the next one; 0: it is due now, and *next_ns is set for the one after it */
static int64_t wait_of(uint64_t *next_ns, int64_t interval_ms)
{
    const uint64_t now = horon_clock_ns();
    if (now < *next_ns)
        return (int64_t)((*next_ns - now) / 1000000u) + 1;
    *next_ns = horon_clock_deadline(now, interval_ms);
    return 0;
}

static int64_t ns_of(int64_t ms)
{
    return ms < 0 ? -1 : ms * 1000000;
}

static int64_t look_for_stalls(struct horon_context *ctx)
{
    const int64_t warn_ms = ctx->config.stall_warn_ms, end_ms = ctx->config.stall_shutdown_ms;
    const int64_t limit_ms = warn_ms && (!end_ms || warn_ms < end_ms) ? warn_ms : end_ms;
    if (limit_ms == 0 || horon_engine_in_flight(ctx->engine) == 0)
        return -1;
    const int64_t interval_ms = limit_ms / 4 + 1;
    const int64_t left_ms = wait_of(&ctx->stall_look_ns, interval_ms);
    if (left_ms > 0)
        return left_ms;
    horon_engine_watch_stalls(ctx->engine, (uint64_t)ns_of(warn_ms), (uint64_t)ns_of(end_ms));
    return interval_ms;
}

/* A link to another host that has vanished stays silent for ever. */
static int64_t look_at_links(struct horon_context *ctx)
{
    if (ctx->boot.topology.host_count == 1 || horon_engine_in_flight(ctx->engine) == 0)
        return -1;
    const int64_t interval_ms = ctx->config.peer_timeout_ms / 4 + 1;
    const int64_t left_ms = wait_of(&ctx->link_look_ns, interval_ms);
    if (left_ms > 0)
        return left_ms;
    horon_engine_check_links(ctx->engine);
    return interval_ms;
}

/* Of two times to sleep, of which -1 is for ever. */
static int64_t sooner(int64_t one, int64_t other)
{
    return other < 0 || (one >= 0 && one < other) ? one : other;
}

int64_t horon_looks_take(struct horon_context *ctx)
{
    const int64_t stalls_ms = look_for_stalls(ctx), links_ms = look_at_links(ctx);
    horon_deaths_look(ctx); /* which also says when next, and needs no token then */
    return ns_of(sooner(stalls_ms, links_ms));
}
