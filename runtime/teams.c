/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Teams of a context, and the memory that their members on one host share. That comes in two steps.
 * The first member on the host makes the team's segment and sends it to the others before the
 * engine has the team, since links in shared memory lie there. Arenas are large: each member makes
 * its own when the first operation is about to begin, and sends it to the first one, which sends
 * all of them to all once it has them.
 *
 *      segment:  0 -> 1, 2, 3        arenas:  1, 2, 3 -> 0;  then 0 -> 1, 2, 3
 *
 * Memory goes as notes over sockets between the members themselves: no process that is not in the
 * team is needed. A note that cannot be sent now is tried again a moment later; one about a team
 * that is not here yet waits for it.
 *
 * A member that cannot make the team tells the others, over links and over the same sockets.
 */
#include "teams.h"

#include "alloc.h"
#include "boot/host/memory.h"
#include "clock.h"
#include "engine/team.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Between two looks whether a team is complete, and two tries to send a note. */
#define LOOK_NS 50000
#define PAUSE_NS 1000000u
/* A rank may make so many teams before another one makes the first of them. */
#define EARLY_NOTES_MAX 4096

/* A note, and the memory that came with it. Of a team that is not here yet it is kept, without the
 * descriptor: those are few, and only a leader sends memory on, which nobody sends any so early. */
struct horon_early_note {
    struct horon_early_note *next;
    int process;
    struct horon_note note;
    struct horon_map map; /* base NULL: there is none */
};

/* A member on this host, by its local rank in the team. */
struct member {
    struct horon_map arena;
    struct horon_context_ring ring;
    int next; /* of what is to be sent there; see piece_count() */
};

struct horon_context_team {
    struct horon_context *ctx;
    struct horon_context_team *next;
    uint32_t id;
    struct horon_topology topology;
    int *ranks;                            /* [size] of the job */
    struct horon_engine_team *engine_team; /* NULL: it is being made */
    struct horon_error failure;            /* of making it */
    struct horon_host host;
    struct horon_map segment;
    int local_rank, local_size;
    struct member *members; /* [local_size] */
    int *process_of;        /* [local_size] their local ranks in the job */
    uint8_t **arenas;       /* [local_size] likewise */
    int arenas_here;
};

static bool leads(const struct horon_context_team *team)
{
    return team->local_rank == 0;
}

static size_t segment_bytes(const struct horon_context_team *team)
{
    return horon_host_team_bytes(&team->host.shape);
}

static size_t arena_bytes(const struct horon_context_team *team)
{
    return horon_engine_arena_at(&team->host.shape, HORON_LANE_COUNT);
}

static struct horon_context_team *find_team(const struct horon_context *ctx, uint32_t id)
{
    struct horon_context_team *team = ctx->teams.first;
    while (team && team->id != id)
        team = team->next;
    return team;
}

static void team_failed(struct horon_context_team *team, const struct horon_error *why)
{
    if (team->engine_team)
        horon_team_fail_here(team->engine_team, why);
    else if (team->failure.status == HORON_OK)
        team->failure = *why;
}

static void close_map(struct horon_map *map)
{
    if (map->fd >= 0)
        close(map->fd);
    map->fd = -1;
}

/* Not for a child of a fork, which has no use for it. */
static horon_status_t make_memory(const char *name, size_t bytes, struct horon_map *map,
                                  struct horon_error *error)
{
    const horon_status_t status = horon_memory_make(name, bytes, map, error);
    if (status == HORON_OK)
        madvise(map->base, map->bytes, MADV_DONTFORK);
    return status;
}

/* ---- notes ---------------------------------------------------------------------------------- */

/* The first member sends the segment, then all arenas; the others theirs to the first. */
static int piece_count(const struct horon_context_team *team, int to)
{
    if (to == team->local_rank)
        return 0;
    return leads(team) ? 1 + team->local_size : to == 0;
}

static bool is_ready(const struct horon_context_team *team, int piece)
{
    if (leads(team))
        return piece == 0 || team->arenas_here == team->local_size;
    return team->arenas[team->local_rank] != NULL;
}

/* @param about the member whose arena it is, or -1: the segment, or that there is none */
static horon_status_t send_piece(const struct horon_context_team *team, int to, int about)
{
    const struct horon_map *map = about < 0 ? &team->segment : &team->members[about].arena;
    const struct horon_note note = {.team = team->id,
                                    .local_rank = about < 0 ? HORON_NOTE_SEGMENT : (uint32_t)about,
                                    .bytes = about < 0 ? segment_bytes(team) : arena_bytes(team),
                                    .fds = {map->fd},
                                    .fd_count = map->fd >= 0};
    struct horon_error ignored = {0}; /* of a process that is gone the engine hears by itself */
    const int socket = team->ctx->boot.local[team->process_of[to]].socket;
    return socket < 0 ? HORON_AGAIN : horon_note_send(socket, &note, &ignored);
}

static horon_status_t send_to(struct horon_context_team *team, int to)
{
    struct member *member = &team->members[to];
    for (; member->next < piece_count(team, to) && is_ready(team, member->next); member->next++) {
        const int about = leads(team) ? member->next - 1 : team->local_rank;
        const horon_status_t status = about == to ? HORON_OK : send_piece(team, to, about);
        if (status != HORON_OK)
            return status;
    }
    return HORON_OK;
}

/* A descriptor is kept until all have what it is of; the arenas' go together. */
static void send_all(struct horon_context_team *team)
{
    struct horon_timer *timer = &team->ctx->teams.timer;
    bool again = false, over = true, sent = true;
    for (int i = 0; i < team->local_size; i++) {
        const horon_status_t status = send_to(team, i);
        again |= status == HORON_AGAIN || status == HORON_IN_PROGRESS;
        over &= team->members[i].next == piece_count(team, i);
        sent &= team->members[i].next > 0 || i == team->local_rank;
    }
    if (again)
        horon_pump_timer(&team->ctx->boot.pump, timer, horon_clock_ns() + PAUSE_NS);
    if (sent)
        close_map(&team->segment);
    for (int i = 0; over && i < team->local_size; i++)
        close_map(&team->members[i].arena);
}

static void try_again(void *arg)
{
    struct horon_context *ctx = arg;
    for (struct horon_context_team *team = ctx->teams.first; team; team = team->next)
        send_all(team);
}

static void arena_is_here(struct horon_context_team *team, int local_rank)
{
    assert(!team->arenas[local_rank]);
    team->arenas[local_rank] = team->members[local_rank].arena.base;
    team->arenas_here++;
    assert(team->arenas_here <= team->local_size);
    send_all(team);
    if (team->arenas_here == team->local_size)
        horon_team_give_arenas(team->engine_team, team->arenas);
}

/* Does it come from the member that sends such memory, and is it that large? */
static bool is_in_turn(const struct horon_context_team *team, int process,
                       const struct horon_note *note)
{
    const bool is_first = process == team->process_of[0];
    const uint32_t about = note->local_rank;
    if (about == HORON_NOTE_SEGMENT)
        return is_first && !leads(team) && !team->segment.base && note->fd_count <= 1 &&
               note->bytes == segment_bytes(team);
    if (about >= (uint32_t)team->local_size || team->arenas[about])
        return false;
    return note->fd_count <= 1 && note->bytes == arena_bytes(team) &&
           (leads(team) ? process == team->process_of[about] : is_first);
}

static horon_status_t take_memory(struct horon_context_team *team, struct horon_early_note *came,
                                  struct horon_error *error)
{
    const uint32_t about = came->note.local_rank;
    if (!is_in_turn(team, came->process, &came->note))
        return horon_error_set(error, HORON_ERR_PROTO, "it passed memory out of turn");
    if (!came->map.base)
        return horon_error_set(error, HORON_ERR_MEMORY, "%s", came->note.lack);
    struct horon_map *map =
        about == HORON_NOTE_SEGMENT ? &team->segment : &team->members[about].arena;
    *map = came->map;
    came->map = (struct horon_map){.fd = -1};
    if (!leads(team)) /* which sends it on */
        close_map(map);
    if (about != HORON_NOTE_SEGMENT)
        arena_is_here(team, (int)about);
    return HORON_OK;
}

static void take_note(struct horon_context_team *team, struct horon_early_note *came)
{
    const struct horon_context *ctx = team->ctx;
    const struct horon_topology *job = &ctx->boot.topology;
    struct horon_error error = {0}, why;
    if (take_memory(team, came, &error) == HORON_OK)
        return;
    const int rank = horon_topology_rank_at(job, job->host_of[job->rank], came->process);
    horon_error_set(&why, error.status, "memory of team %u from rank %d (%s) to rank %d: %s",
                    team->id, rank, ctx->boot.ranks.names[rank], job->rank, error.text);
    horon_error_blame(&why, HORON_CAUSE_NONE, rank, -1);
    team_failed(team, &why);
}

static void keep_early(struct horon_context *ctx, struct horon_early_note *came)
{
    struct horon_early_note *early =
        ctx->teams.early_count < EARLY_NOTES_MAX ? horon_alloc(sizeof *early) : NULL;
    if (!early) {
        HORON_LOG_WARN(&ctx->log, "memory of team %u, which is not here, was refused",
                       came->note.team);
        return;
    }
    close_map(&came->map);
    *early = *came;
    came->map = (struct horon_map){.fd = -1};
    early->next = ctx->teams.early;
    ctx->teams.early = early;
    ctx->teams.early_count++;
}

void horon_teams_take_note(struct horon_context *ctx, int process, struct horon_note *note)
{
    struct horon_context_team *team = find_team(ctx, note->team);
    struct horon_early_note came = {.process = process, .note = *note, .map.fd = -1};
    HORON_ASSERT_OWNER(&ctx->owner);
    if (note->fd_count > 0 &&
        horon_memory_map(note->fds[0], (size_t)note->bytes, &came.map, NULL) == HORON_OK) {
        came.map.fd = note->fds[0];
        note->fds[0] = -1;
        madvise(came.map.base, came.map.bytes, MADV_DONTFORK);
    }
    if (team)
        take_note(team, &came);
    else if (note->team > ctx->teams.newest) /* else it is over here */
        keep_early(ctx, &came);
    close_map(&came.map);
    horon_memory_unmap(&came.map);
}

/* Of a team, or of all up to its number: a team is made after those before it. */
static void take_early(struct horon_context *ctx, struct horon_context_team *team)
{
    struct horon_early_note **at = &ctx->teams.early;
    while (*at) {
        struct horon_early_note *early = *at;
        if (team && early->note.team > team->id) {
            at = &early->next;
            continue;
        }
        *at = early->next;
        ctx->teams.early_count--;
        if (team && early->note.team == team->id)
            take_note(team, early);
        horon_memory_unmap(&early->map);
        horon_free(early);
    }
}

void horon_teams_lack_socket(struct horon_context *ctx, int process, const struct horon_error *why)
{
    HORON_ASSERT_OWNER(&ctx->owner);
    for (struct horon_context_team *team = ctx->teams.first; team; team = team->next)
        for (int i = 0; i < team->local_size; i++)
            if (team->process_of[i] == process && team->members[i].next < piece_count(team, i))
                team_failed(team, why);
}

/* ---- arenas --------------------------------------------------------------------------------- */

/* How many of the members here are charged to the same control group as this one? */
static size_t group_ranks(const struct horon_context_team *team)
{
    const struct horon_rank_info *infos = team->ctx->boot.ranks.infos;
    const int host = team->topology.host_of[team->topology.rank];
    size_t count = 0;
    for (int i = 0; i < team->local_size; i++)
        count += infos[team->ranks[horon_topology_rank_at(&team->topology, host, i)]].group ==
                 infos[team->ctx->boot.topology.rank].group;
    return count;
}

horon_status_t horon_teams_make_arenas(void *context, struct horon_engine_team *engine_team,
                                       struct horon_error *error)
{
    struct horon_context *ctx = context;
    struct horon_context_team *team = find_team(ctx, engine_team->id);
    struct horon_memory_room room;
    HORON_ASSERT_OWNER(&ctx->owner);
    assert(team && team->engine_team == engine_team);
    const size_t bytes = arena_bytes(team);
    horon_memory_look(&room, "");
    horon_status_t status = horon_memory_check(&room, bytes * (size_t)team->local_size,
                                               bytes * group_ranks(team), error);
    if (status == HORON_OK)
        status = make_memory("horon-arena", bytes, &team->members[team->local_rank].arena, error);
    if (status == HORON_OK)
        arena_is_here(team, team->local_rank);
    return status;
}

/* ---- making it ------------------------------------------------------------------------------ */

static void destroy(struct horon_context_team *team)
{
    if (!team)
        return;
    struct horon_context_team **at = &team->ctx->teams.first;
    while (*at && *at != team)
        at = &(*at)->next;
    if (*at)
        *at = team->next;
    close_map(&team->segment);
    horon_memory_unmap(&team->segment);
    for (int i = 0; team->members && i < team->local_size; i++) {
        close_map(&team->members[i].arena);
        horon_memory_unmap(&team->members[i].arena);
    }
    horon_topology_deinit(&team->topology);
    horon_free(team->members);
    horon_free(team->process_of);
    horon_free(team->arenas);
    horon_free(team->ranks);
    horon_free(team);
}

static bool allocate(struct horon_context_team *team, int size)
{
    const struct horon_topology *own = &team->topology;
    team->local_rank = own->local_rank_of[own->rank];
    team->local_size = horon_topology_host_size(own, own->host_of[own->rank]);
    team->ranks = horon_zalloc((size_t)size, sizeof *team->ranks);
    team->members = horon_zalloc((size_t)team->local_size, sizeof *team->members);
    team->process_of = horon_zalloc((size_t)team->local_size, sizeof *team->process_of);
    team->arenas = horon_zalloc((size_t)team->local_size, sizeof *team->arenas);
    for (int i = 0; team->members && i < team->local_size; i++)
        team->members[i].arena.fd = -1;
    return team->ranks && team->members && team->process_of && team->arenas;
}

static void set_up_host(struct horon_context_team *team)
{
    const struct horon_topology *job = &team->ctx->boot.topology, *own = &team->topology;
    const int host = own->host_of[own->rank];
    team->host = team->ctx->host;
    team->host.shape = horon_context_shape(team->ctx, team->local_size);
    team->host.local_rank = team->local_rank;
    team->host.process_of = team->process_of;
    team->host.segment = NULL;
    team->host.arenas = NULL;
    for (int i = 0; i < team->local_size; i++) {
        const int rank = team->ranks[horon_topology_rank_at(own, host, i)];
        team->process_of[i] = job->local_rank_of[rank];
    }
}

static horon_status_t create(struct horon_context *ctx, uint32_t id, const int *ranks, int size,
                             struct horon_context_team **team_out, struct horon_error *error)
{
    struct horon_context_team *team = horon_zalloc(1, sizeof *team);
    if (!team)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a team");
    team->ctx = ctx;
    team->id = id;
    team->segment.fd = -1;
    horon_status_t status =
        horon_topology_of(&ctx->boot.topology, ranks, size, &team->topology, error);
    if (status == HORON_OK && !allocate(team, size))
        status = horon_error_set(error, HORON_ERR_MEMORY, "no memory for a team");
    if (status != HORON_OK) {
        destroy(team);
        return status;
    }
    memcpy(team->ranks, ranks, (size_t)size * sizeof *ranks);
    set_up_host(team);
    if (leads(team)) /* without it the others are told */
        (void)make_memory("horon-team", segment_bytes(team), &team->segment, &team->failure);
    *team_out = team;
    return HORON_OK;
}

/* @return has this rank what it needs of the one at @p place? AGAIN: not yet | why not */
static horon_status_t ask_one(struct horon_context_team *team, int place, struct horon_error *error)
{
    struct horon_context *ctx = team->ctx;
    const struct horon_topology *own = &team->topology;
    const int rank = team->ranks[place], self = own->rank;
    if (place == self)
        return HORON_OK;
    if (horon_engine_has_left(ctx->engine, rank)) {
        horon_error_set(error, HORON_ERR_CLOSED,
                        "rank %d (%s) has shut down its context and can be in no team", rank,
                        ctx->boot.ranks.names[rank]);
        horon_error_blame(error, HORON_CAUSE_LEFT, rank, -1);
        return HORON_ERR_CLOSED;
    }
    if (own->host_of[place] != own->host_of[self])
        return horon_topology_linked(own, self, place)
                   ? horon_engine_connect(ctx->engine, rank, error)
                   : HORON_OK;
    const int local = own->local_rank_of[place];
    if (leads(team) && team->members[local].next == 0)
        return horon_connect_on_host(ctx, team->process_of[local], error) < 0 ? error->status
                                                                              : HORON_AGAIN;
    return leads(team) || local != 0 || team->segment.base ? HORON_OK : HORON_AGAIN;
}

/* @param awaited_out a rank that is waited for */
static horon_status_t ask(struct horon_context_team *team, int *awaited_out,
                          struct horon_error *error)
{
    const struct horon_error *failure = horon_engine_failure(team->ctx->engine);
    horon_status_t status = HORON_OK;
    if (failure)
        *error = *failure;
    if (failure)
        return error->status;
    send_all(team);
    for (int i = 0; i < team->topology.size; i++) {
        const horon_status_t one = ask_one(team, i, error);
        if (one < 0)
            return one;
        if (one == HORON_OK)
            continue;
        *awaited_out = team->ranks[i];
        status = HORON_AGAIN;
    }
    const bool tells = leads(team) && !team->segment.base && status == HORON_AGAIN;
    if (team->failure.status == HORON_OK || tells) /* the others here that there is none */
        return status;
    *error = team->failure;
    return error->status;
}

/* Waits for the others, and drives as a waiter does. */
static horon_status_t wait_for_members(struct horon_context_team *team, struct horon_error *error)
{
    struct horon_context *ctx = team->ctx;
    const uint64_t deadline = horon_clock_deadline(horon_clock_ns(), ctx->config.peer_timeout_ms);
    horon_status_t status;
    int awaited = -1;
    while ((status = ask(team, &awaited, error)) == HORON_AGAIN) {
        if (horon_clock_ns() >= deadline) {
            horon_error_set(error, HORON_ERR_TIMEOUT,
                            "rank %d (%s) has not made team %u within %.1f s (see "
                            "HORON_PEER_TIMEOUT)",
                            awaited, ctx->boot.ranks.names[awaited], team->id,
                            (double)ctx->config.peer_timeout_ms / 1e3);
            horon_error_blame(error, HORON_CAUSE_ABSENT, awaited, -1);
            return HORON_ERR_TIMEOUT;
        }
        horon_connect_turn(ctx, LOOK_NS);
    }
    return status;
}

static horon_status_t add_to_engine(struct horon_context_team *team, struct horon_error *error)
{
    const struct horon_topology *own = &team->topology;
    const int host = own->host_of[own->rank];
    struct horon_link **rings = horon_zalloc((size_t)own->size, sizeof *rings);
    horon_status_t status = rings ? HORON_OK : HORON_ERR_MEMORY;
    team->host.segment = team->segment.base;
    for (int i = 0; i < team->local_size && status == HORON_OK; i++) {
        if (i == team->local_rank || (i != 0 && !leads(team)))
            continue;
        status = horon_context_make_ring(&team->host, i, &team->members[i].ring,
                                         &rings[horon_topology_rank_at(own, host, i)]);
    }
    const struct horon_team_options options = {.id = team->id,
                                               .ranks = team->ranks,
                                               .size = own->size,
                                               .host = &team->host,
                                               .rings = rings};
    if (status == HORON_OK)
        status = horon_engine_add_team(team->ctx->engine, &options, &team->engine_team, error);
    else
        for (int i = 0; rings && i < own->size; i++)
            if (rings[i])
                rings[i]->ops->destroy(rings[i]);
    horon_free(rings);
    if (status != HORON_OK && !error->text[0])
        horon_error_set(error, status, "no memory for a team");
    return status;
}

/* To members here that hear nothing by a link; those that never made it forget it. */
static void refuse_here(struct horon_context_team *team)
{
    const struct horon_topology *own = &team->topology;
    close_map(&team->segment);
    close_map(&team->members[team->local_rank].arena);
    for (int i = 0; i < team->local_size; i++) {
        const int rank = team->ranks[horon_topology_rank_at(own, own->host_of[own->rank], i)];
        const bool first = leads(team) && team->members[i].next == 0;
        if (piece_count(team, i) > 0 && !horon_engine_is_linked(team->ctx->engine, rank))
            (void)send_piece(team, i, first ? -1 : team->local_rank);
    }
}

horon_status_t horon_context_add_team(struct horon_context *ctx, uint32_t id, const int *ranks,
                                      int size, struct horon_context_team **team_out,
                                      struct horon_error *error)
{
    struct horon_context_team *team = NULL;
    assert(!horon_on_progress_thread(ctx));
    horon_token_take(ctx);
    assert(id > ctx->teams.newest && id < HORON_TEAMS_END);
    ctx->teams.newest = id;
    ctx->teams.timer.due = try_again;
    ctx->teams.timer.arg = ctx;
    horon_status_t status = create(ctx, id, ranks, size, &team, error);
    if (status == HORON_OK) {
        team->next = ctx->teams.first;
        ctx->teams.first = team;
        take_early(ctx, team);
        status = wait_for_members(team, error);
    }
    if (status == HORON_OK)
        status = add_to_engine(team, error);
    if (status == HORON_OK) {
        HORON_LOG_DEBUG(&ctx->log, "team %u of %d ranks is made", id, size);
        *team_out = team;
    } else {
        horon_engine_refuse_team(ctx->engine, id, ranks, size, error);
        if (team)
            refuse_here(team);
        destroy(team);
    }
    horon_token_release(ctx);
    return status;
}

void horon_context_remove_team(struct horon_context_team *team)
{
    struct horon_context *ctx = team->ctx;
    assert(!horon_on_progress_thread(ctx));
    horon_token_take(ctx);
    horon_engine_leave_team(ctx->engine, team->engine_team);
    const uint64_t deadline = horon_clock_deadline(horon_clock_ns(), ctx->config.peer_timeout_ms);
    while (horon_team_rings_unsent(team->engine_team, true) && horon_clock_ns() < deadline)
        horon_connect_turn(ctx, LOOK_NS);
    horon_engine_remove_team(ctx->engine, team->engine_team);
    HORON_LOG_DEBUG(&ctx->log, "team %u is removed", team->id);
    destroy(team);
    horon_token_release(ctx);
}

struct horon_engine_team *horon_context_team_of(const struct horon_context_team *team)
{
    return team->engine_team;
}

void horon_teams_deinit(struct horon_context *ctx)
{
    while (ctx->teams.first)
        destroy(ctx->teams.first);
    take_early(ctx, NULL);
    horon_pump_untimer(&ctx->boot.pump, &ctx->teams.timer);
}
