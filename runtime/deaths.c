/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which processes of this host are gone. The kernel says it in two ways: a process's pidfd becomes
 * readable when it has ended, and the socket over which memory was shared (connect.c) is closed
 * when it ends or calls exec(). The leader of the host has both of all, and tells the others.
 *
 * A process that writes a core file ends only when the file is written, which may take minutes. So
 * while any operation waits for long, the progress thread asks /proc now and then about the other
 * ranks of its host. A rank that is alone on its host has none to ask; there only horonrun's agent
 * can (agent_look.c). Over connections it cannot be told from a stopped rank.
 *
 * The progress thread takes note; the next thread that holds the token tells the engine.
 */
#include "context_state.h"

#include "clock.h"
#include "file.h"

#include <assert.h>
#include <stdio.h>

/* Between two looks for core files. One that finds a request which the look before it may have seen
 * reads /proc, and then the next one may come late: that is near enough to a second. */
#define LOOK_MS 300
#define LATE_LOOK_MS 700
#define LATE_NS (LOOK_MS * UINT64_C(1000000) / 2)

/* In the order of what is known: one that was lost may be found to have ended. */
enum death { DEATH_NONE, DEATH_LOST, DEATH_DUMPS, DEATH_ENDED };

/* What is known becomes more, never less; once it is told, it is known no more. @return false: some
 * other thread has changed it since, to @p *from */
static bool move(struct horon_context *ctx, int local_rank, uint8_t *from, enum death to)
{
    static const unsigned legal[] = {
        [DEATH_NONE] = 1u << DEATH_LOST | 1u << DEATH_DUMPS | 1u << DEATH_ENDED,
        [DEATH_LOST] = 1u << DEATH_DUMPS | 1u << DEATH_ENDED | 1u << DEATH_NONE,
        [DEATH_DUMPS] = 1u << DEATH_ENDED | 1u << DEATH_NONE,
        [DEATH_ENDED] = 1u << DEATH_NONE};
    assert(local_rank >= 0 && local_rank < ctx->host.shape.local_size);
    assert(*from <= DEATH_ENDED);
    assert(legal[*from] & 1u << to);
    return atomic_compare_exchange_weak(&ctx->dead[local_rank], from, (uint8_t)to);
}

static void note(struct horon_context *ctx, int local_rank, enum death how)
{
    uint8_t known = atomic_load(&ctx->dead[local_rank]);
    while (known < how && !move(ctx, local_rank, &known, how))
        continue;
    atomic_fetch_add(&ctx->deaths, 1);
}

/* @return what is known, and has not been taken */
static enum death take(struct horon_context *ctx, int local_rank)
{
    uint8_t known = atomic_load(&ctx->dead[local_rank]);
    while (known != DEATH_NONE && !move(ctx, local_rank, &known, DEATH_NONE))
        continue;
    return known;
}

static void on_end(void *arg, int fd, int events)
{
    struct horon_context *ctx = arg;
    (void)events;
    for (int i = 0; i < ctx->host.shape.local_size; i++)
        if (ctx->boot.local[i].pidfd == fd) {
            horon_loop_watch(ctx->loop, i, 0);
            note(ctx, i, DEATH_ENDED);
        }
}

void horon_deaths_lost(struct horon_context *ctx, int local_rank)
{
    HORON_ASSERT_OWNER(&ctx->owner);
    note(ctx, local_rank, DEATH_LOST);
}

void horon_deaths_watch(struct horon_context *ctx)
{
    for (int i = 0; i < ctx->host.shape.local_size; i++) {
        const int fd = ctx->boot.local[i].pidfd,
                  number = horon_loop_add(ctx->loop, fd, on_end, ctx);
        assert(number == i); /* the first in the loop, for on_end() */
        if (fd >= 0)
            horon_loop_watch(ctx->loop, number, HORON_LOOP_READ);
    }
}

void horon_context_report_deaths(struct horon_context *ctx)
{
    static const char lost[] = "its process ended without leaving the job (killed, crashed, "
                               "exited, or replaced by exec())";
    static const char *const texts[] = {
        [DEATH_LOST] = lost,
        [DEATH_ENDED] = lost,
        [DEATH_DUMPS] = "its process has crashed, and the system writes a core file of it"};
    if (atomic_load_explicit(&ctx->deaths, memory_order_acquire) == 0)
        return;
    atomic_store(&ctx->deaths, 0);
    for (int i = 0; i < ctx->host.shape.local_size; i++) {
        const enum death how = take(ctx, i);
        if (how != DEATH_NONE)
            horon_engine_local_death(ctx->engine, i, how == DEATH_ENDED, texts[how]);
    }
}

/* ---- core files ----------------------------------------------------------------------------- */

/* The number is asked for once, through the pidfd, which no other process can have: a look costs
 * little where one file is read and not two. If the process ends and another one gets its number,
 * what is said of that one is no more than what the pidfd says by then. */
static bool dumps_core(struct horon_local_peer *peer)
{
    char path[64];
    if (peer->pid == 0) {
        snprintf(path, sizeof path, "/proc/self/fdinfo/%d", peer->pidfd);
        peer->pid = horon_file_read_number(path, "\nPid:\t");
    }
    return peer->pid > 0 && horon_file_says_dumping(peer->pid);
}

int64_t horon_deaths_look(struct horon_context *ctx)
{
    HORON_ASSERT_OWNER(&ctx->owner);
    if (ctx->host.shape.local_size == 1 || horon_engine_in_flight(ctx->engine) == 0)
        return -1;
    const uint64_t now = horon_clock_ns();
    if (now < ctx->deaths_look_ns)
        return (int64_t)((ctx->deaths_look_ns - now) / 1000000u) + 1;
    const bool late = horon_engine_is_late(ctx->engine, LATE_NS);
    for (int i = 0; i < ctx->host.shape.local_size && late; i++)
        if (ctx->boot.local[i].pidfd >= 0 && dumps_core(&ctx->boot.local[i]))
            note(ctx, i, DEATH_DUMPS);
    const int64_t wait_ms = late ? LATE_LOOK_MS : LOOK_MS;
    ctx->deaths_look_ns = horon_clock_deadline(now, wait_ms);
    horon_context_report_deaths(ctx);
    return wait_ms;
}
