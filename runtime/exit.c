/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that exits: the other ranks hear why before its connections break, and a rank that only
 * follows stays until the one that failed has gone, so that the launcher sees that one first.
 *
 * The status that a process exits with is known to the C library alone, and only once exit() runs;
 * a language's own exit handlers run before, and its memory goes with them. So a context can be
 * emptied then, and left with the process.
 */
#include "context_state.h"

#include "clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* How long the reason may find no way to the other hosts. */
#define TELL_MS 1000
/* How long a rank of a failed job stays at its exit, so that the one that failed it goes first. */
#define STAY_MS 3000
/* And how long after that: torchrun looks every 100 ms, and blames the lowest rank that it finds.
 */
#define LAUNCHER_LOOKS_MS 500

/* Only with time between two looks can the progress thread see the processes of this host. */
static void drive_until(struct horon_context *ctx, bool (*reached)(const struct horon_engine *),
                        int64_t limit_ms)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const uint64_t deadline = horon_clock_deadline(horon_clock_ns(), limit_ms);
    while (!reached(ctx->engine) && horon_clock_ns() < deadline) {
        horon_context_tell_deaths(ctx);
        horon_engine_progress(ctx->engine);
        horon_token_release(ctx);
        nanosleep(&pause, NULL);
        horon_token_take(ctx);
    }
}

static bool all_delivered(const struct horon_engine *engine)
{
    return horon_engine_undelivered(engine) == 0;
}

static void tell_exit(struct horon_context *ctx, const char *reason)
{
    const struct timespec look = {.tv_nsec = LAUNCHER_LOOKS_MS * 1000000L};
    horon_token_take(ctx);
    const bool first = horon_engine_exit(ctx->engine, reason);
    if (first)
        drive_until(ctx, all_delivered, TELL_MS);
    else
        drive_until(ctx, horon_engine_misses_rank, STAY_MS);
    horon_token_release(ctx);
    if (!first)
        nanosleep(&look, NULL);
}

horon_status_t horon_context_exit(horon_context_t *ctx, const char *reason)
{
    if (!ctx || !reason)
        return HORON_ERR_INVALID;
    if (atomic_load(&ctx->forked))
        return HORON_ERR_FORKED;
    if (atomic_load(&ctx->closed))
        return HORON_ERR_CLOSED;
    tell_exit(ctx, reason);
    return HORON_OK;
}

static void leave_with_process(int status, void *arg)
{
    struct horon_context *ctx = arg;
    char reason[32];
    if (status == 0 || atomic_load(&ctx->forked)) {
        horon_context_destroy(ctx);
        return;
    }
    snprintf(reason, sizeof reason, "exit status %d", status & 0xff);
    tell_exit(ctx, reason);
}

void horon_context_destroy_at_exit(horon_context_t *ctx)
{
    if (!ctx)
        return;
    if (atomic_load(&ctx->forked) || on_exit(leave_with_process, ctx) != 0) {
        horon_context_destroy(ctx);
        return;
    }
    atomic_store(&ctx->closed, true);
    horon_token_take(ctx);
    horon_engine_end_requests(ctx->engine);
    horon_token_release(ctx);
}
