/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the members of a team on one host share. It comes in two steps. The first member
 * on the host makes the team's segment and sends it to the others before the engine has the team,
 * since links in shared memory lie there. Arenas are large: each member makes its own when the
 * first operation is about to begin, and sends it to the first one, which sends all of them to all
 * once it has them.
 *
 *      segment:  0 -> 1, 2, 3        arenas:  1, 2, 3 -> 0;  then 0 -> 1, 2, 3
 *
 * Memory goes as notes over sockets between the members themselves: no process that is not in the
 * team is needed. A note that cannot be sent now is tried again a moment later; one about a team
 * that is not here yet waits for it.
 */
#include "team_state.h"

#include "alloc.h"
#include "clock.h"
#include "engine/team.h"
#include "host/memory.h"

#include <assert.h>

/* Between two tries to send a note. */
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

void horon_team_make_segment(struct horon_context_team *team)
{
    struct horon_error error = {0};
    horon_status_t status = HORON_OK;
    if (horon_team_leads(team))
        status = horon_memory_make("horon-team", segment_bytes(team), &team->segment, &error);
    if (status != HORON_OK) /* the others are told */
        horon_context_team_fail(team, &error);
}

void horon_team_free_memory(struct horon_context_team *team)
{
    horon_fd_close(&team->segment.fd);
    horon_memory_unmap(&team->segment);
    for (int i = 0; team->members && i < team->local_size; i++) {
        horon_fd_close(&team->members[i].arena.fd);
        horon_memory_unmap(&team->members[i].arena);
    }
}

/* ---- notes ---------------------------------------------------------------------------------- */

/* The first member sends the segment, then all arenas; the others theirs to the first. */
static int piece_count(const struct horon_context_team *team, int to)
{
    if (to == team->local_rank)
        return 0;
    return horon_team_leads(team) ? 1 + team->local_size : to == 0;
}

static bool is_ready(const struct horon_context_team *team, int piece)
{
    if (horon_team_leads(team))
        return piece == 0 || team->arenas_here == team->local_size;
    return team->arenas[team->local_rank] != NULL;
}

/* @param about the member whose arena it is, or -1: the segment, or that there is none */
static horon_status_t send_piece(const struct horon_context_team *team, int to, int about,
                                 struct horon_error *error)
{
    const struct horon_map *map = about < 0 ? &team->segment : &team->members[about].arena;
    const struct horon_note note = {.team = team->id,
                                    .local_rank = about < 0 ? HORON_NOTE_SEGMENT : (uint32_t)about,
                                    .bytes = about < 0 ? segment_bytes(team) : arena_bytes(team),
                                    .fds = {map->fd},
                                    .fd_count = map->fd >= 0};
    const int socket = team->ctx->boot.local[team->process_of[to]].socket;
    return socket < 0 ? HORON_AGAIN : horon_note_send(socket, &note, error);
}

/* It needs nothing any more if it is gone, of which the engine hears by itself. Else it would wait
 * for it in vain. */
static void send_no_more(struct horon_context_team *team, int to, const struct horon_error *error)
{
    const struct horon_boot *boot = &team->ctx->boot;
    const int rank = horon_topology_rank_here(&boot->topology, team->process_of[to]);
    struct horon_error why;
    team->members[to].next = piece_count(team, to);
    if (error->status == HORON_ERR_PEER_LOST)
        return;
    horon_error_set(&why, error->status, "memory of team %u from rank %d (%s) to rank %d: %s",
                    team->id, boot->topology.rank, boot->profiles[boot->topology.rank].name, rank,
                    error->text);
    horon_error_blame(&why, HORON_CAUSE_NONE, boot->topology.rank, -1);
    horon_context_team_fail(team, &why);
}

static horon_status_t send_to(struct horon_context_team *team, int to)
{
    struct horon_team_member *member = &team->members[to];
    for (; member->next < piece_count(team, to) && is_ready(team, member->next); member->next++) {
        const int about = horon_team_leads(team) ? member->next - 1 : team->local_rank;
        struct horon_error error = {0};
        const horon_status_t status = about == to ? HORON_OK : send_piece(team, to, about, &error);
        if (status < 0)
            send_no_more(team, to, &error);
        if (status != HORON_OK)
            return status;
    }
    return HORON_OK;
}

static void try_again(void *arg)
{
    struct horon_context *ctx = arg;
    for (struct horon_context_team *team = ctx->teams.first; team; team = team->next)
        horon_team_send_memory(team);
}

/* A descriptor is kept until all have what it is of; the arenas' go together. */
void horon_team_send_memory(struct horon_context_team *team)
{
    struct horon_timer *timer = &team->ctx->teams.timer;
    bool again = false, over = true, sent = true;
    for (int i = 0; i < team->local_size; i++) {
        const horon_status_t status = send_to(team, i);
        again |= status == HORON_AGAIN || status == HORON_IN_PROGRESS;
        over &= team->members[i].next == piece_count(team, i);
        sent &= team->members[i].next > 0 || i == team->local_rank;
    }
    timer->due = try_again;
    timer->arg = team->ctx;
    if (again)
        horon_pump_timer(&team->ctx->boot.pump, timer, horon_clock_ns() + PAUSE_NS);
    if (sent)
        horon_fd_close(&team->segment.fd);
    for (int i = 0; over && i < team->local_size; i++)
        horon_fd_close(&team->members[i].arena.fd);
}

bool horon_team_memory_unsent(const struct horon_context_team *team)
{
    for (int i = 0; i < team->local_size; i++)
        if (team->members[i].next < piece_count(team, i) && is_ready(team, team->members[i].next))
            return true;
    return false;
}

static void arena_is_here(struct horon_context_team *team, int local_rank)
{
    assert(!team->arenas[local_rank]);
    team->arenas[local_rank] = team->members[local_rank].arena.base;
    team->arenas_here++;
    assert(team->arenas_here <= team->local_size);
    assert(team->arenas_here < team->local_size || team->state >= HORON_CONTEXT_TEAM_MADE);
    horon_team_send_memory(team);
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
        return is_first && !horon_team_leads(team) && !team->segment.base && note->fd_count <= 1 &&
               note->bytes == segment_bytes(team);
    if (about >= (uint32_t)team->local_size || about == (uint32_t)team->local_rank ||
        team->arenas[about])
        return false;
    return note->fd_count <= 1 && note->bytes == arena_bytes(team) &&
           (horon_team_leads(team) ? process == team->process_of[about] : is_first);
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
    if (!horon_team_leads(team)) /* which sends it on */
        horon_fd_close(&map->fd);
    if (about != HORON_NOTE_SEGMENT)
        arena_is_here(team, (int)about);
    return HORON_OK;
}

static void take_note(struct horon_context_team *team, struct horon_early_note *came)
{
    const struct horon_context *ctx = team->ctx;
    struct horon_error error = {0}, why;
    if (take_memory(team, came, &error) == HORON_OK)
        return;
    const int rank = horon_topology_rank_here(&ctx->boot.topology, came->process);
    horon_error_set(&why, error.status, "memory of team %u from rank %d (%s) to rank %d: %s",
                    team->id, rank, ctx->boot.profiles[rank].name, ctx->boot.topology.rank,
                    error.text);
    horon_error_blame(&why, HORON_CAUSE_NONE, rank, -1);
    horon_context_team_fail(team, &why);
}

/* It comes once: the team would be waited for in vain, and another rank be blamed. */
static void lose_early(struct horon_context *ctx, const struct horon_early_note *came)
{
    const int rank = horon_topology_rank_here(&ctx->boot.topology, came->process);
    struct horon_error why;
    horon_error_set(&why, HORON_ERR_MEMORY,
                    "memory of team %u from rank %d (%s) came before the team was made here, and "
                    "%s to note it",
                    came->note.team, rank, ctx->boot.profiles[rank].name,
                    ctx->teams.early_count < EARLY_NOTES_MAX ? "no memory was left"
                                                             : "there is too much of it");
    horon_error_blame(&why, HORON_CAUSE_NONE, ctx->boot.topology.rank, -1);
    horon_engine_fail(ctx->engine, &why);
}

static void keep_early(struct horon_context *ctx, struct horon_early_note *came)
{
    struct horon_early_note *early =
        ctx->teams.early_count < EARLY_NOTES_MAX ? horon_alloc(sizeof *early) : NULL;
    if (!early) {
        lose_early(ctx, came);
        return;
    }
    horon_fd_close(&came->map.fd);
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
    }
    if (team)
        take_note(team, &came);
    else if (note->team > ctx->teams.newest) /* else it is over here */
        keep_early(ctx, &came);
    horon_fd_close(&came.map.fd);
    horon_memory_unmap(&came.map);
}

/* A team is made after those before it. */
void horon_team_take_early_memory(struct horon_context *ctx, struct horon_context_team *team)
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
                horon_context_team_fail(team, why);
}

/* ---- arenas --------------------------------------------------------------------------------- */

/* How many of the members here are charged to the same control group as this one? */
static size_t group_ranks(const struct horon_context_team *team)
{
    const struct horon_profile *profiles = team->ctx->boot.profiles;
    size_t count = 0;
    for (int i = 0; i < team->local_size; i++)
        count += profiles[team->ranks[horon_topology_rank_here(&team->topology, i)]].group ==
                 profiles[team->ctx->boot.topology.rank].group;
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
        status =
            horon_memory_make("horon-arena", bytes, &team->members[team->local_rank].arena, error);
    if (status != HORON_OK)
        return status;
    atomic_store_explicit(&horon_host_team_line(&team->host, team->local_rank)->made, true,
                          memory_order_relaxed);
    arena_is_here(team, team->local_rank);
    return HORON_OK;
}

/* ---- one that cannot be made ---------------------------------------------------------------- */

void horon_team_refuse_memory(struct horon_context_team *team)
{
    assert(team->state == HORON_CONTEXT_TEAM_FAILED);
    horon_fd_close(&team->segment.fd);
    horon_fd_close(&team->members[team->local_rank].arena.fd);
    struct horon_error ignored = {0}; /* a member that is not told waits for PEER_TIMEOUT */
    for (int i = 0; i < team->local_size; i++) {
        const int rank = team->ranks[horon_topology_rank_here(&team->topology, i)];
        const bool first = horon_team_leads(team) && team->members[i].next == 0;
        if (piece_count(team, i) > 0 && !horon_engine_is_linked(team->ctx->engine, rank))
            (void)send_piece(team, i, first ? -1 : team->local_rank, &ignored);
    }
}
