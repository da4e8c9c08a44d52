/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that exits: the other ranks hear why before its connections break, and a rank that only
 * follows stays until the launcher has seen the end of the one that failed. A rank follows if the
 * job failed for another one: where nobody is to blame, or it is itself, nobody waits for it.
 *
 * The status that a process exits with is known to the C library alone, and only once exit() runs;
 * a language's own exit handlers run before, and its memory goes with them. So a context can be
 * emptied then, and left with the process.
 *
 * Where the program has begun MPI, its MPI_Finalize() is between: mpi4py's comes behind all of
 * Python's handlers. There a rank waits for all others, whatever they wait for. So nobody stays for
 * long in a handler before it, but in one of the C library's, and a rank leaves the job before it,
 * without a status.
 */
#include "context_state.h"

#include "backend/mpi_begin.h"
#include "clock.h"
#include "host/process.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* How long a rank that fails stays when all have heard why: a launcher that sees its end kills the
 * others (torchrun looks every 100 ms), which shall have said it by then. */
#define SAID_MS 250
/* How long beside a program's MPI the one that failed may take from there to MPI_Abort(), as below
 * `python -m mpi4py`: of several that call it the launcher blames the first. Then it is taken to be
 * in MPI_Finalize(). */
#define ABORT_MS 1000
/* Between two looks whether what is waited for has come. */
#define LOOK_NS 1000000
/* How long the reason may take to the other hosts. */
#define DELIVER_MS 1000
/* How long a rank of a failed job waits for the end of the one that failed it, ... */
#define END_MS 10000
/* Of that and of the next: after so long it says what it stays for. */
#define TELL_MS 1000
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

/* The line is one more thing for a launcher to look at: MPICH's hydra looks for ranks that have
 * ended when one of them writes, or closes what it wrote to, and may have been too early then. */
static void drive_and_say(struct horon_context *ctx, bool (*reached)(const struct horon_context *),
                          int limit_ms, const char *what)
{
    assert(limit_ms > TELL_MS);
    assert(horon_engine_failure(ctx->engine)); /* or there would be nothing to stay for */
    drive_until(ctx, reached, TELL_MS);
    if (!reached(ctx))
        HORON_LOG_WARN(&ctx->log,
                       "stays for up to %d s until %s: the launcher is to see the end of rank %d, "
                       "for which the job failed, before this one's",
                       limit_ms / 1000, what, horon_engine_failure(ctx->engine)->blame.rank);
    drive_until(ctx, reached, limit_ms - TELL_MS);
}

/* With the token. */
static void await_end(struct horon_context *ctx)
{
    drive_and_say(ctx, misses_rank, END_MS, "a rank has ended");
    if (misses_rank(ctx))
        drive_and_say(ctx, launcher_saw_end, SEEN_MS, "a launcher has seen the end of a rank");
}

static void stay_for(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void stay_in_process(int status, void *arg)
{
    struct horon_context *ctx = arg;
    (void)status;
    const enum horon_life life = horon_life_now(&ctx->life);
    if (life == HORON_LIFE_RUNNING || life == HORON_LIFE_CLOSED) {
        horon_token_take(ctx);
        await_end(ctx);
        horon_token_release(ctx);
        stay_for(LAUNCHER_MS);
    }
    horon_context_unref(ctx);
}

/* @return the launcher has seen a rank end, as far as this host tells */
static bool end_is_seen(const struct horon_context *ctx)
{
    return misses_rank(ctx) && launcher_saw_end(ctx);
}

/* The one that failed may be in MPI_Finalize() until this one comes there.
 * @return it stays when the process exits, behind that */
static bool stays_later(struct horon_context *ctx)
{
    if (horon_mpi_world() < 2 || on_exit(stay_in_process, ctx) != 0)
        return false;
    horon_context_ref(ctx);
    return true;
}

static void announce_exit(struct horon_context *ctx, const char *reason)
{
    int64_t stay_ms = LAUNCHER_MS;
    horon_token_take(ctx);
    horon_engine_exit(ctx->engine, reason);
    const bool follows = follows_another(ctx);
    if (!follows) {
        drive_until(ctx, all_delivered, DELIVER_MS);
        stay_ms = ctx->boot.topology.size > 1 ? SAID_MS : 0;
    } else if (stays_later(ctx)) {
        drive_until(ctx, end_is_seen, ABORT_MS);
        stay_ms = misses_rank(ctx) ? LAUNCHER_MS : 0;
    } else {
        await_end(ctx);
    }
    horon_token_release(ctx);
    horon_recording_end(ctx); /* the process may end without another call */
    stay_for(stay_ms);
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

/* Without it nobody hears that this rank ends, until the program's MPI has ended; and that waits
 * for those that wait for this rank. */
static bool has_to_leave(const struct horon_context *ctx)
{
    return !horon_engine_failure(ctx->engine) && horon_mpi_world() > 1;
}

void horon_context_destroy_at_exit(horon_context_t *ctx)
{
    if (!ctx)
        return;
    if (horon_life_is_forked(&ctx->life) || has_to_leave(ctx) ||
        on_exit(leave_with_process, ctx) != 0) {
        horon_context_destroy(ctx);
        return;
    }
    horon_life_move(&ctx->life, HORON_LIFE_CLOSED);
    horon_token_take(ctx);
    horon_engine_end_requests(ctx->engine);
    horon_token_release(ctx);
}
