/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which processes of this host are gone. The kernel says it in two ways: a process's pidfd becomes
 * readable when it has ended, and the socket over which memory was shared (connect.c) is closed
 * when it ends or calls exec(). The leader of the host has both of all, and tells the others.
 *
 * A process that writes a core file ends only when the file is written, which may take minutes. So
 * while an operation is late, the progress thread asks /proc now and then about the other ranks of
 * its host. When, it says with the token, as it sees then how old the oldest operation is; but if
 * it sleeps at that time, it takes no token to look: a rank that waits for long has memory that
 * rests, and each page of it that a thread touches costs. A rank that is alone on its host has none
 * to ask; there only horonrun's agent can (agent_look.c). Over connections it cannot be told from a
 * stopped rank.
 *
 * The progress thread takes note; the next thread that holds the token tells the engine.
 */
#include "deaths.h"

#include "backend/mpi_begin.h"
#include "backend/mpi_finalize.h"
#include "clock.h"
#include "context_state.h"
#include "file.h"
#include "reduce/reduce.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>

/* Between two looks for core files, and before the first one of an operation: a rank that dumps
 * core is named within a second. */
#define LOOK_NS UINT64_C(700000000)

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
            ctx->boot.local[i].pid = -1;
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
    ctx->deaths_look_ns = UINT64_MAX;
    for (int i = 0; i < ctx->host.shape.local_size; i++) {
        const int fd = ctx->boot.local[i].pidfd,
                  number = horon_loop_add(ctx->loop, fd, on_end, ctx);
        assert(number == i); /* the first in the loop, for on_end() */
        if (fd >= 0)
            horon_loop_watch(ctx->loop, number, HORON_LOOP_READ);
    }
}

void horon_deaths_report(struct horon_context *ctx)
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

/* Through the pidfd, which no other process can have.
 * @return 0: it is of another pid namespace | -1: it has ended, or the file cannot be opened */
static long number_of(const struct horon_local_peer *peer)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", peer->pidfd);
    return horon_file_read_number(path, "\nPid:\t");
}

/* The number is asked for once. The pidfd says, too, when the process has ended, and another one
 * may get its number. */
static bool dumps_core(struct horon_local_peer *peer)
{
    if (peer->pid == 0) {
        const long pid = number_of(peer);
        peer->pid = pid > 0 ? pid : 0; /* 0: the file could not be opened, which may pass */
    }
    return peer->pid > 0 && horon_file_says_dumping(peer->pid);
}

void horon_deaths_tell_mpi(const struct horon_context *ctx)
{
    pid_t peers[HORON_REDUCE_INPUTS_MAX];
    const int count = ctx->host.shape.local_size;
    assert(count <= HORON_REDUCE_INPUTS_MAX);
    for (int i = 0; i < count; i++) {
        const struct horon_local_peer *peer = &ctx->boot.local[i];
        struct pollfd end = {.fd = peer->pidfd, .events = POLLIN};
        const bool has_ended = poll(&end, 1, 0) == 1;
        const long number = peer->pidfd >= 0 && !has_ended ? number_of(peer) : 0;
        peers[i] = has_ended ? HORON_MPI_PEER_ENDED
                             : (pid_t)(number > 0 ? number : HORON_MPI_PEER_UNKNOWN);
    }
    horon_mpi_know_peers(ctx, peers, count, &ctx->log);
}

/* @return has any process begun to write a core file? */
static bool look(struct horon_context *ctx)
{
    bool any = false;
    for (int i = 0; i < ctx->host.shape.local_size; i++) {
        struct horon_local_peer *peer = &ctx->boot.local[i];
        if (peer->pidfd < 0 || !dumps_core(peer))
            continue;
        peer->pid = -1; /* it does so once */
        note(ctx, i, DEATH_DUMPS);
        any = true;
    }
    ctx->deaths_looked_ns = horon_clock_ns();
    ctx->deaths_look_ns = ctx->deaths_looked_ns + LOOK_NS;
    return any;
}

void horon_deaths_look(struct horon_context *ctx)
{
    HORON_ASSERT_OWNER(&ctx->owner);
    const uint64_t oldest_ns = horon_engine_oldest_ns(ctx->engine),
                   from_ns = oldest_ns > ctx->deaths_looked_ns ? oldest_ns : ctx->deaths_looked_ns;
    const bool looks = oldest_ns > 0 && ctx->host.shape.local_size > 1;
    ctx->deaths_look_ns = looks ? from_ns + LOOK_NS : UINT64_MAX;
    if (horon_clock_ns() >= ctx->deaths_look_ns && look(ctx))
        horon_deaths_report(ctx);
}

void horon_deaths_sleep(struct horon_context *ctx, int64_t timeout_ns)
{
    uint64_t now = horon_clock_ns();
    const uint64_t end_ns = timeout_ns < 0 ? UINT64_MAX : now + (uint64_t)timeout_ns;
    for (bool ends = false; !ends; now = horon_clock_ns()) {
        const bool looks = ctx->deaths_look_ns < end_ns;
        const uint64_t until_ns = looks ? ctx->deaths_look_ns : end_ns;
        const int64_t left_ns = until_ns > now ? (int64_t)(until_ns - now) : 0;
        ends = horon_loop_sleep(ctx->loop, until_ns == UINT64_MAX ? -1 : left_ns) || !looks ||
               (horon_clock_ns() >= until_ns && (look(ctx) || !horon_token_flies(ctx)));
    }
}
