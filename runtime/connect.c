/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that are made after joining, because somebody here or there needs one: links to ranks
 * of other hosts, and sockets to processes of this one, over which teams and rings.c pass memory.
 * boot's links connect (boot/connect/links.h), in turns of a pump whose one descriptor the progress
 * thread watches. All of it belongs to the holder of the token. A turn of the engine costs nothing
 * for it.
 *
 * A socket that is closed says that its process has ended, or called exec().
 */
#include "context_state.h"

#include "alloc.h"
#include "clock.h"
#include "deaths.h"
#include "engine/team.h"
#include "host/note.h"
#include "rings.h"

#include <assert.h>
#include <time.h>
#include <unistd.h>

/* To a process of this host; the descriptor is boot's. */
struct horon_context_socket {
    struct horon_context *ctx;
    int local_rank;
    struct horon_watch watch;
};

/* ---- sockets -------------------------------------------------------------------------------- */

HORON_SELDOM static void socket_failed(struct horon_context_socket *socket,
                                       const struct horon_error *how)
{
    struct horon_context *ctx = socket->ctx;
    struct horon_error why;
    horon_pump_unwatch(&ctx->boot.pump, &socket->watch);
    if (how->status == HORON_ERR_PEER_LOST) {
        horon_deaths_lost(ctx, socket->local_rank);
        return;
    }
    const int rank = horon_topology_rank_here(&ctx->boot.topology, socket->local_rank);
    horon_error_set(&why, how->status, "memory passed by rank %d (%s) cannot be taken: %s", rank,
                    ctx->boot.profiles[rank].name, how->text);
    horon_engine_fail(ctx->engine, &why);
}

static void on_socket(void *arg, uint32_t events)
{
    struct horon_context_socket *socket = arg;
    horon_status_t status = HORON_OK;
    (void)events;
    while (status == HORON_OK) {
        struct horon_note note;
        struct horon_error error = {0};
        status = horon_note_receive(socket->watch.fd, &note, &error);
        if (status == HORON_OK) {
            if (note.team == HORON_NOTE_LINK)
                horon_rings_take_note(socket->ctx, socket->local_rank, &note);
            else
                horon_teams_take_note(socket->ctx, socket->local_rank, &note);
            horon_note_close(&note);
        } else if (status != HORON_AGAIN) {
            socket_failed(socket, &error);
        }
    }
}

static horon_status_t watch_socket(struct horon_context *ctx, int local_rank,
                                   struct horon_error *error)
{
    struct horon_context_socket *socket = &ctx->sockets[local_rank];
    const int fd = ctx->boot.local[local_rank].socket;
    *socket = (struct horon_context_socket){.ctx = ctx,
                                            .local_rank = local_rank,
                                            .watch = {.ready = on_socket, .arg = socket, .fd = fd}};
    return fd < 0 ? HORON_OK : horon_pump_watch(&ctx->boot.pump, &socket->watch, EPOLLIN, error);
}

horon_status_t horon_connect_on_host(struct horon_context *ctx, int local_rank,
                                     struct horon_error *error)
{
    HORON_ASSERT_OWNER(&ctx->owner);
    assert(local_rank != ctx->host.local_rank);
    if (ctx->boot.local[local_rank].socket >= 0)
        return HORON_OK;
    const horon_status_t status =
        horon_links_open(ctx->boot.links, horon_topology_rank_here(&ctx->boot.topology, local_rank),
                         ctx->config.peer_timeout_ms, error);
    return status == HORON_OK ? HORON_AGAIN : status;
}

void horon_connect_unwatch(struct horon_context *ctx)
{
    for (int i = 0; ctx->sockets && i < ctx->host.shape.local_size; i++)
        horon_pump_unwatch(&ctx->boot.pump, &ctx->sockets[i].watch);
    horon_free(ctx->sockets);
    ctx->sockets = NULL;
}

/* ---- connections that come about ------------------------------------------------------------ */

static int *socket_of(const struct horon_context *ctx, int rank)
{
    const struct horon_topology *topology = &ctx->boot.topology;
    assert(horon_topology_is_here(topology, rank));
    return &ctx->boot.local[topology->local_rank_of[rank]].socket;
}

static bool is_wanted(void *arg, int rank)
{
    const struct horon_context *ctx = arg;
    return horon_topology_is_here(&ctx->boot.topology, rank)
               ? *socket_of(ctx, rank) < 0
               : horon_engine_may_link(ctx->engine, rank);
}

static horon_status_t add_link(struct horon_context *ctx, int rank,
                               const struct horon_proven *proven, struct horon_error *error)
{
    struct horon_link *link = NULL;
    const horon_status_t status =
        horon_proven_open_link(proven, ctx->config.peer_timeout_ms, ctx->wrap, &link, error);
    return status == HORON_OK ? horon_engine_add_link(ctx->engine, rank, link, error) : status;
}

/* The other side counts on a connection that both have kept: not to have it is a failure. */
static void on_opened(void *arg, int rank, const struct horon_proven *proven)
{
    struct horon_context *ctx = arg;
    struct horon_error error = {0};
    horon_status_t status;
    if (!horon_topology_is_here(&ctx->boot.topology, rank)) {
        status = add_link(ctx, rank, proven, &error);
    } else {
        *socket_of(ctx, rank) = proven->fd;
        status = watch_socket(ctx, ctx->boot.topology.local_rank_of[rank], &error);
        if (status == HORON_OK)
            horon_rings_have_socket(ctx, ctx->boot.topology.local_rank_of[rank]);
    }
    assert(error.status == status); /* they set it, too */
    error.blame.rank = ctx->boot.topology.rank;
    if (status != HORON_OK)
        horon_engine_fail(ctx->engine, &error);
    else
        HORON_LOG_DEBUG(&ctx->log, "linked to rank %d (%s) by %s, after joining", rank,
                        ctx->boot.profiles[rank].name,
                        horon_topology_is_here(&ctx->boot.topology, rank) ? "a socket" : "tcp");
}

static void on_failed(void *arg, int rank, const struct horon_error *why)
{
    struct horon_context *ctx = arg;
    HORON_LOG_DEBUG(&ctx->log, "%s", why->text);
    if (!horon_topology_is_here(&ctx->boot.topology, rank)) {
        horon_engine_not_connected(ctx->engine, rank, why);
        return;
    }
    horon_teams_lack_socket(ctx, ctx->boot.topology.local_rank_of[rank], why);
    horon_rings_lack_socket(ctx, ctx->boot.topology.local_rank_of[rank], why);
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

horon_status_t horon_connect_begin(struct horon_context *ctx, struct horon_error *error)
{
    const struct horon_links_user user = {
        .wanted = is_wanted, .opened = on_opened, .failed = on_failed, .arg = ctx};
    const int local_size = ctx->host.shape.local_size;
    horon_status_t status = HORON_OK;
    if (!ctx->boot.links)
        return HORON_OK; /* one rank */
    ctx->sockets = horon_zalloc((size_t)local_size, sizeof *ctx->sockets);
    if (!ctx->sockets)
        return HORON_ERR_MEMORY;
    for (int i = 0; i < local_size && status == HORON_OK; i++)
        status = watch_socket(ctx, i, error);
    horon_links_set_user(ctx->boot.links, &user);
    ctx->boot.pump.owner = &ctx->owner;
    const int number = horon_loop_add(ctx->loop, ctx->boot.pump.epoll_fd, on_connections, ctx);
    horon_loop_watch(ctx->loop, number, HORON_LOOP_READ);
    return status;
}

horon_status_t horon_connect_to(void *context, int rank, struct horon_error *error)
{
    struct horon_context *ctx = context;
    HORON_ASSERT_OWNER(&ctx->owner);
    assert(ctx->boot.links); /* there are several ranks */
    if (horon_topology_is_here(&ctx->boot.topology, rank))
        return horon_rings_connect(ctx, ctx->boot.topology.local_rank_of[rank], error);
    return horon_links_open(ctx->boot.links, rank, ctx->config.peer_timeout_ms, error);
}

void horon_connect_turn(struct horon_context *ctx, long pause_ns)
{
    const struct timespec pause = {.tv_nsec = pause_ns};
    HORON_ASSERT_OWNER(&ctx->owner);
    horon_deaths_report(ctx);
    horon_pump_turn(&ctx->boot.pump, 0);
    horon_engine_progress(ctx->engine);
    horon_token_release(ctx);
    nanosleep(&pause, NULL);
    horon_token_take(ctx);
}

void horon_connect_end(struct horon_context *ctx)
{
    horon_links_destroy(ctx->boot.links);
    ctx->boot.links = NULL;
}
