/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links in shared memory that are made after joining, between two ranks of a host that have none.
 * Each side makes the ring that it writes, and passes it to the other over the socket between the
 * two; with both rings in hand it has the link. So it does not matter which rank begins, or whether
 * both do. Two rings of 64 KiB are kept until the context ends.
 *
 * A rank that cannot make its ring says so with a note that has no memory; the rank that asked is
 * told, and may ask again. Where the socket takes no note now, it goes before anything else that
 * this rank has to say of the link. A ring that was on its way by then is let go by its maker, and
 * is not taken: each ring says how many refusals its maker has heard. All of it belongs to the
 * holder of the token.
 */
#include "rings.h"

#include "alloc.h"
#include "clock.h"
#include "deaths.h"
#include "exec/owed_ring.h"
#include "host/memory.h"
#include "host/process.h"

#include <assert.h>

/* Between two tries to send a note. */
#define PAUSE_NS 1000000u

enum late_state {
    LATE_IDLE,
    LATE_WANTED, /* here, or by the other side */
    LATE_SENT,   /* likewise, and `out` is on its way, or there: `in` is missing */
    LATE_MADE    /* the engine has the link, or has failed for want of it */
};

struct late_ring {
    struct horon_context_ring ring;
    enum late_state state;
    struct horon_map out, in; /* what this rank writes, and what it reads */
    /* The other side waits, and is to be told first that there is none; a link may be wanted again
     * by then, or not. */
    bool refuses;
    uint32_t refused, heard; /* refusals that were sent, and that came */
};

struct horon_late_rings {
    struct horon_timer timer; /* of notes that could not be sent at once */
    struct late_ring of[];    /* [local size] */
};

static void ring_written(void *arg)
{
    const struct horon_context_ring *ring = arg;
    horon_host_wake_reader(ring->host, ring->local_rank);
}

/* Its reader may rest, or be about to, and what does not fit would wait for whatever wakes it next.
 */
static void ring_full(void *arg)
{
    const struct horon_context_ring *ring = arg;
    horon_host_wake(ring->host, ring->local_rank, HORON_WAKE_ASLEEP);
}

/* Its writer may rest, too; it has looked for room after it said so. */
static void ring_has_room(void *arg)
{
    const struct horon_context_ring *ring = arg;
    horon_host_wake(ring->host, ring->local_rank, HORON_WAKE_CONTROL | HORON_WAKE_ASLEEP);
}

void horon_rings_aim(struct horon_host *host, int peer, struct horon_context_ring *ring)
{
    assert(peer >= 0 && peer < host->shape.local_size);
    *ring = (struct horon_context_ring){
        .host = host,
        .local_rank = peer,
        .wake = {.written = ring_written, .full = ring_full, .room = ring_has_room, .arg = ring}};
}

/* May this process and that one of its host read each other's memory, and do they want to? */
static bool may_read(const struct horon_context *ctx, int process)
{
    const struct horon_profile *profiles = ctx->boot.profiles,
                               *own = &profiles[ctx->boot.topology.rank];
    const int rank = horon_topology_rank_here(&ctx->boot.topology, process);
    return ctx->config.shm_lend_bytes > 0 && own->readers && own->readers == profiles[rank].readers;
}

void horon_rings_lend(const struct horon_context *ctx, int local_rank, struct horon_link *link)
{
    if (may_read(ctx, local_rank))
        horon_link_ring_lend(link, horon_process_number(ctx->boot.local[local_rank].socket),
                             &horon_host_line(&ctx->host, local_rank)->alive);
}

void horon_rings_see_readable(const struct horon_context *ctx, struct horon_host *host)
{
    bool all = host->shape.local_size > 1; /* alone, there is nobody to read of */
    for (int local = 0; all && local < host->shape.local_size; local++)
        all = may_read(ctx, horon_host_process(host, local));
    host->readable = all;
}

static size_t ring_bytes(void)
{
    return horon_ring_bytes(HORON_RING_DATA_BYTES);
}

static void drop_half(struct horon_map *map)
{
    horon_fd_close(&map->fd);
    horon_memory_unmap(map);
}

/* @param map NULL: there is none */
static horon_status_t send_half(struct horon_context *ctx, int local_rank,
                                const struct horon_map *map, struct horon_error *error)
{
    const struct horon_note note = {.team = HORON_NOTE_LINK,
                                    .local_rank = ctx->late_rings->of[local_rank].heard,
                                    .bytes = map ? ring_bytes() : 0,
                                    .fds = {map ? map->fd : -1},
                                    .fd_count = map != NULL};
    return horon_note_send(ctx->boot.local[local_rank].socket, &note, error);
}

static void late_move(struct late_ring *late, enum late_state to)
{
    static const unsigned legal[] = {
        [LATE_IDLE] = 1u << LATE_WANTED,
        [LATE_WANTED] = 1u << LATE_SENT | 1u << LATE_IDLE,
        [LATE_SENT] = 1u << LATE_MADE | 1u << LATE_IDLE,
        [LATE_MADE] = 1u << LATE_SENT}; /* the engine has it no more; the other side has `out` */
    assert(legal[late->state] & 1u << to);
    assert(to < LATE_SENT || late->out.base);
    assert(to < LATE_SENT || !late->refuses);
    assert(to < LATE_MADE || late->in.base);
    late->state = to;
}

static bool is_wanted(const struct late_ring *late)
{
    return late->state == LATE_WANTED || late->state == LATE_SENT;
}

static void drop_both(struct late_ring *late)
{
    late_move(late, LATE_IDLE);
    late->refuses = false;
    drop_half(&late->out);
    drop_half(&late->in);
}

static void move_all(void *arg);

/* @param status  of sending a note: has it to be sent again? A moment later all of them are. */
static bool goes_later(struct horon_context *ctx, horon_status_t status)
{
    struct horon_timer *timer = &ctx->late_rings->timer;
    if (status != HORON_AGAIN && status != HORON_IN_PROGRESS)
        return false;
    timer->due = move_all;
    timer->arg = ctx;
    horon_pump_timer(&ctx->boot.pump, timer, horon_clock_ns() + PAUSE_NS);
    return true;
}

static void refuse(struct horon_context *ctx, int local_rank)
{
    struct horon_error ignored = {0}; /* of a process that is gone the engine hears by itself */
    struct late_ring *late = &ctx->late_rings->of[local_rank];
    late->refuses = false;
    if (ctx->boot.local[local_rank].socket < 0)
        return;
    const horon_status_t status = send_half(ctx, local_rank, NULL, &ignored);
    late->refuses = goes_later(ctx, status);
    late->refused += status == HORON_OK;
}

/* @return does the other side know what it was to be told first? */
static bool has_refused(struct horon_context *ctx, int local_rank)
{
    const struct late_ring *late = &ctx->late_rings->of[local_rank];
    if (late->refuses)
        refuse(ctx, local_rank);
    return !late->refuses;
}

static void give_up(struct horon_context *ctx, int local_rank, const struct horon_error *why)
{
    struct horon_error full;
    const int rank = horon_topology_rank_here(&ctx->boot.topology, local_rank);
    drop_both(&ctx->late_rings->of[local_rank]);
    refuse(ctx, local_rank);
    horon_error_set(&full, why->status, "no link to rank %d (%s) can be made: %s", rank,
                    ctx->boot.profiles[rank].name, why->text);
    full.blame = why->blame;
    horon_engine_not_connected(ctx->engine, rank, &full);
}

/* The other side has it, too, or is about to: not to have it is a failure. */
static void make_link(struct horon_context *ctx, int local_rank)
{
    struct late_ring *late = &ctx->late_rings->of[local_rank];
    struct horon_link *link = NULL;
    struct horon_error error = {0};
    horon_rings_aim(&ctx->host, local_rank, &late->ring);
    horon_status_t status = horon_link_ring_create((struct horon_ring *)(void *)late->out.base,
                                                   (struct horon_ring *)(void *)late->in.base,
                                                   HORON_RING_DATA_BYTES, &late->ring.wake, &link);
    if (status == HORON_OK) {
        horon_rings_lend(ctx, local_rank, link);
        status = horon_engine_add_link(
            ctx->engine, horon_topology_rank_here(&ctx->boot.topology, local_rank), link, &error);
    } else
        horon_error_set(&error, status, "no memory for a link");
    late_move(late, LATE_MADE);
    error.blame.rank = ctx->boot.topology.rank;
    if (status != HORON_OK)
        horon_engine_fail(ctx->engine, &error);
}

/* @return OK, also if it must wait for a socket, or room in it, or for the engine to hear that the
 * other process is gone | why it cannot be sent */
static horon_status_t send_own(struct horon_context *ctx, int local_rank, struct horon_error *error)
{
    struct late_ring *late = &ctx->late_rings->of[local_rank];
    horon_status_t status = HORON_OK;
    if (!late->out.base) {
        status = horon_memory_make("horon-ring", ring_bytes(), &late->out, error);
        if (status != HORON_OK)
            return status;
    }
    status = horon_connect_on_host(ctx, local_rank, error);
    if (status != HORON_OK)
        return status == HORON_AGAIN ? HORON_OK : status;
    status = send_half(ctx, local_rank, &late->out, error);
    if (goes_later(ctx, status))
        return HORON_OK;
    if (status == HORON_ERR_PEER_LOST) { /* the socket is closed */
        horon_deaths_lost(ctx, local_rank);
        return HORON_OK;
    }
    if (status != HORON_OK)
        return status;
    late_move(late, LATE_SENT);
    horon_fd_close(&late->out.fd);
    return HORON_OK;
}

static void move(struct horon_context *ctx, int local_rank)
{
    struct late_ring *late = &ctx->late_rings->of[local_rank];
    struct horon_error error = {0};
    if (!has_refused(ctx, local_rank))
        return;
    if (late->state == LATE_WANTED && send_own(ctx, local_rank, &error) != HORON_OK)
        give_up(ctx, local_rank, &error);
    else if (late->state == LATE_SENT && late->in.base)
        make_link(ctx, local_rank);
}

static void move_all(void *arg)
{
    struct horon_context *ctx = arg;
    for (int i = 0; ctx->late_rings && i < ctx->host.shape.local_size; i++)
        move(ctx, i);
}

static horon_status_t want(struct horon_context *ctx, int local_rank)
{
    const int count = ctx->host.shape.local_size;
    if (!ctx->late_rings) {
        ctx->late_rings = horon_zalloc(1, sizeof *ctx->late_rings +
                                              (size_t)count * sizeof ctx->late_rings->of[0]);
        for (int i = 0; ctx->late_rings && i < count; i++)
            ctx->late_rings->of[i].out.fd = ctx->late_rings->of[i].in.fd = -1;
    }
    if (!ctx->late_rings)
        return HORON_ERR_MEMORY;
    struct late_ring *late = &ctx->late_rings->of[local_rank];
    if (!is_wanted(late))
        late_move(late, late->state == LATE_MADE ? LATE_SENT : LATE_WANTED);
    return HORON_OK;
}

horon_status_t horon_rings_connect(struct horon_context *ctx, int local_rank,
                                   struct horon_error *error)
{
    HORON_ASSERT_OWNER(&ctx->owner);
    if (want(ctx, local_rank) != HORON_OK)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a link");
    struct late_ring *late = &ctx->late_rings->of[local_rank];
    if (late->state == LATE_SENT) /* what is missing is the other half */
        return HORON_OK;
    if (!has_refused(ctx, local_rank))
        return HORON_OK;
    const horon_status_t status = send_own(ctx, local_rank, error);
    if (status != HORON_OK) {
        drop_both(late);
        refuse(ctx, local_rank); /* the other side may have asked, too, and wait */
    }
    return status;
}

void horon_rings_have_socket(struct horon_context *ctx, int local_rank)
{
    if (ctx->late_rings)
        move(ctx, local_rank);
}

void horon_rings_lack_socket(struct horon_context *ctx, int local_rank,
                             const struct horon_error *why)
{
    if (ctx->late_rings && is_wanted(&ctx->late_rings->of[local_rank]))
        give_up(ctx, local_rank, why);
}

/* @return OK, the other half is here | why it is not */
static horon_status_t take_half(struct horon_context *ctx, int local_rank, struct horon_note *note,
                                struct horon_error *error)
{
    struct late_ring *late = &ctx->late_rings->of[local_rank];
    if (note->bytes != ring_bytes() || note->fd_count > 1)
        return horon_error_set(error, HORON_ERR_PROTO, "what it passed is no ring");
    if (note->fd_count == 0)
        return horon_error_set(error, HORON_ERR_SYSTEM, "%s", note->lack);
    drop_half(&late->in);  /* one of an earlier try */
    late->refuses = false; /* it was not heard, and this half gets its answer */
    return horon_memory_map(note->fds[0], ring_bytes(), &late->in, error);
}

/* A side that has this one's half has the link, or is about to: not to have it is a failure. */
static void take_failed(struct horon_context *ctx, int local_rank, const struct horon_error *why)
{
    const int self = ctx->boot.topology.rank,
              rank = horon_topology_rank_here(&ctx->boot.topology, local_rank);
    struct horon_error full;
    if (ctx->late_rings->of[local_rank].state == LATE_WANTED) {
        give_up(ctx, local_rank, why);
        return;
    }
    horon_error_set(&full, why->status, "rank %d (%s) has no link to rank %d (%s): %s", self,
                    ctx->boot.profiles[self].name, rank, ctx->boot.profiles[rank].name, why->text);
    full.blame = why->blame;
    full.blame.rank = self;
    horon_engine_fail(ctx->engine, &full);
}

/* Was it sent before its maker heard that this rank had none? */
static bool is_let_go(const struct horon_context *ctx, int local_rank,
                      const struct horon_note *note)
{
    const uint32_t refused = ctx->late_rings ? ctx->late_rings->of[local_rank].refused : 0;
    return note->bytes != 0 && note->local_rank != refused;
}

void horon_rings_take_note(struct horon_context *ctx, int local_rank, struct horon_note *note)
{
    struct horon_error error = {0};
    HORON_ASSERT_OWNER(&ctx->owner);
    if (!horon_engine_may_link(ctx->engine,
                               horon_topology_rank_here(&ctx->boot.topology, local_rank)))
        return; /* there is one, or this rank leaves */
    if (is_let_go(ctx, local_rank, note))
        return;
    if (want(ctx, local_rank) != HORON_OK) {
        horon_error_set(&error, HORON_ERR_MEMORY, "no memory for a link");
        horon_engine_fail(ctx->engine, &error);
        return;
    }
    if (note->bytes == 0) { /* the other side says that it has none */
        horon_error_set(&error, HORON_ERR_SYSTEM, "it could not make its part");
        ctx->late_rings->of[local_rank].heard++;
        drop_both(&ctx->late_rings->of[local_rank]);
        horon_engine_not_connected(
            ctx->engine, horon_topology_rank_here(&ctx->boot.topology, local_rank), &error);
    } else if (take_half(ctx, local_rank, note, &error) != HORON_OK) {
        take_failed(ctx, local_rank, &error);
    } else {
        move(ctx, local_rank);
    }
}

void horon_rings_deinit(struct horon_context *ctx)
{
    if (ctx->late_rings)
        horon_pump_untimer(&ctx->boot.pump, &ctx->late_rings->timer);
    for (int i = 0; ctx->late_rings && i < ctx->host.shape.local_size; i++) {
        drop_half(&ctx->late_rings->of[i].out);
        drop_half(&ctx->late_rings->of[i].in);
    }
    horon_free(ctx->late_rings);
    ctx->late_rings = NULL;
}
