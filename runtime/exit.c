/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that exits: the other ranks hear why before its connections break, and a rank that only
 * follows stays until the launcher has seen the end of the one that failed. A rank follows if the
 * job failed for another one: where nobody is to blame, or it is itself, nobody waits for it.
 *
 * The status that a process exits with is known to the C library alone, and only once exit() runs;
 * a language's own exit handlers run before, and its memory goes with them. So a context can be
 * emptied then, and left with the process.
 */
#include "context_state.h"

#include "clock.h"
#include "host/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* How long a rank that fails stays when all have heard why: a launcher that sees its end kills the
 * others (torchrun looks every 100 ms), which shall have said it by then. */
#define SAID_MS 250
/* Between two looks whether what is waited for has come. */
#define LOOK_NS 1000000
/* How long the reason may take to the other hosts. */
#define DELIVER_MS 1000
/* How long a rank of a failed job waits for the end of the one that failed it, ... */
#define END_MS 10000
/* ... and then for the launcher to ask for its status: torchrun asks every 100 ms, in the order of
 * ranks, and blames the lowest one that has ended. A launcher that asks for this rank's status
 * first, as a loop over its processes does, has to wait so long. */
#define SEEN_MS 5000
/* And how long after that. A shell between launcher and rank asks for the status first; what ended
 * on another host takes its way from there. */
#define LAUNCHER_MS 500

/* Only with time between two looks can the progress thread see the processes of this host. */
static void drive_until(struct horon_context *ctx, bool (*reached)(const struct horon_context *),
                        int64_t limit_ms)
{
    const uint64_t deadline = horon_clock_deadline(horon_clock_ns(), limit_ms);
    while (!reached(ctx) && horon_clock_ns() < deadline)
        horon_connect_turn(ctx, LOOK_NS);
}

static bool all_delivered(const struct horon_context *ctx)
{
    return horon_engine_undelivered(ctx->engine) == 0;
}

static bool misses_rank(const struct horon_context *ctx)
{
    return horon_engine_misses_rank(ctx->engine);
}

static bool launcher_saw_end(const struct horon_context *ctx)
{
    bool saw = true;
    for (int i = 0; i < ctx->host.shape.local_size && saw; i++)
        saw = !horon_process_awaits_parent(ctx->boot.local[i].pidfd);
    return saw;
}

/* One that has left the job did so in peace, and its process may go on. Nobody sees the processes
 * of Gloo's ranks end. */
static bool follows_another(const struct horon_context *ctx)
{
    const struct horon_blame *blame = &horon_engine_failure(ctx->engine)->blame;
    const int self = ctx->boot.topology.rank;
    return blame->rank >= 0 && blame->rank != self && blame->other_rank != self &&
           blame->cause != HORON_CAUSE_LEFT && !ctx->boot.gloo_era;
}

static void announce_exit(struct horon_context *ctx, const char *reason)
{
    struct timespec stay = {.tv_nsec = LAUNCHER_MS * 1000000L};
    horon_token_take(ctx);
    horon_engine_exit(ctx->engine, reason);
    const bool follows = follows_another(ctx);
    if (follows) {
        drive_until(ctx, misses_rank, END_MS);
        if (misses_rank(ctx))
            drive_until(ctx, launcher_saw_end, SEEN_MS);
    } else {
        drive_until(ctx, all_delivered, DELIVER_MS);
        stay.tv_nsec = ctx->boot.topology.size > 1 ? SAID_MS * 1000000L : 0;
    }
    horon_token_release(ctx);
    horon_recording_end(ctx); /* the process may end without another call */
    nanosleep(&stay, NULL);
}

horon_status_t horon_context_exit(horon_context_t *ctx, const char *reason)
{
    if (!ctx || !reason)
        return HORON_ERR_INVALID;
    if (horon_life_is_forked(&ctx->life))
        return HORON_ERR_FORKED;
    if (horon_life_now(&ctx->life) != HORON_LIFE_RUNNING)
        return HORON_ERR_CLOSED;
    announce_exit(ctx, reason);
    return HORON_OK;
}

static void leave_with_process(int status, void *arg)
{
    struct horon_context *ctx = arg;
    const int kept = status & 0xff; /* what the parent is told */
    char reason[80];
    if (status == 0 || horon_life_is_forked(&ctx->life)) {
        horon_context_destroy(ctx);
        return;
    }
    if (kept == status)
        snprintf(reason, sizeof reason, "exit status %d", status);
    else
        snprintf(reason, sizeof reason, "exit status %d, of which the system keeps %d", status,
                 kept);
    announce_exit(ctx, reason);
}

void horon_context_destroy_at_exit(horon_context_t *ctx)
{
    if (!ctx)
        return;
    if (horon_life_is_forked(&ctx->life) || on_exit(leave_with_process, ctx) != 0) {
        horon_context_destroy(ctx);
        return;
    }
    horon_life_move(&ctx->life, HORON_LIFE_CLOSED);
    horon_token_take(ctx);
    horon_engine_end_requests(ctx->engine);
    horon_token_release(ctx);
}
