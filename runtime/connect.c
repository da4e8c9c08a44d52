/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links to other ranks that are made after joining, because somebody here or there needs one.
 * boot's links connect (boot/connect/links.h), in turns of a pump whose one descriptor the progress
 * thread watches; what is connected becomes a link of the engine. All of it belongs to the holder
 * of the token. A turn of the engine costs nothing for it.
 */
#include "context_state.h"

#include "clock.h"
#include "engine/team.h"

#include <assert.h>
#include <unistd.h>

static bool is_wanted(void *arg, int rank, enum horon_way way)
{
    const struct horon_context *ctx = arg;
    return way == HORON_WAY_NETWORK && horon_engine_may_link(ctx->engine, rank);
}

/* The other side counts on a connection that both have kept: not to have it is a failure. */
static void add_link(void *arg, int rank, enum horon_way way, const struct horon_proven *proven)
{
    struct horon_context *ctx = arg;
    struct horon_link *link = NULL;
    struct horon_error error = {0};
    assert(way == HORON_WAY_NETWORK);
    horon_status_t status =
        horon_proven_link(proven, ctx->config.peer_timeout_ms, ctx->wrap, &link, &error);
    if (status == HORON_OK)
        status = horon_engine_add_link(ctx->engine, rank, link, &error);
    assert(error.status == status); /* they set it, too */
    error.blame.rank = ctx->boot.topology.rank;
    if (status != HORON_OK)
        horon_engine_fail(ctx->engine, &error);
    else
        HORON_LOG_DEBUG(&ctx->log, "linked to rank %d (%s) by tcp, after joining", rank,
                        ctx->boot.ranks.names[rank]);
}

static void tell_failure(void *arg, int rank, enum horon_way way, const struct horon_error *why)
{
    struct horon_context *ctx = arg;
    assert(way == HORON_WAY_NETWORK);
    HORON_LOG_DEBUG(&ctx->log, "%s", why->text);
    horon_engine_not_connected(ctx->engine, rank, why);
}

static void on_connections(void *arg, int fd, int events)
{
    struct horon_context *ctx = arg;
    (void)fd; /* the pump knows which they are */
    (void)events;
    horon_token_take(ctx);
    horon_pump_turn(&ctx->boot.pump, 0);
    horon_token_release(ctx);
}

void horon_connect_begin(struct horon_context *ctx)
{
    const struct horon_links_user user = {
        .wanted = is_wanted, .opened = add_link, .failed = tell_failure, .arg = ctx};
    if (!ctx->boot.links)
        return; /* one host */
    horon_links_set_user(ctx->boot.links, &user);
    const int number = horon_loop_add(ctx->loop, ctx->boot.pump.epoll_fd, on_connections, ctx);
    horon_loop_watch(ctx->loop, number, HORON_LOOP_READ);
}

horon_status_t horon_connect_to(void *context, int rank, struct horon_error *error)
{
    struct horon_context *ctx = context;
    HORON_ASSERT_OWNER(&ctx->owner);
    assert(ctx->boot.links); /* the rank is of another host */
    return horon_links_open(ctx->boot.links, rank, HORON_WAY_NETWORK,
                            horon_clock_deadline(horon_clock_ns(), ctx->config.peer_timeout_ms),
                            error);
}

void horon_connect_end(struct horon_context *ctx)
{
    horon_links_destroy(ctx->boot.links);
    ctx->boot.links = NULL;
}
