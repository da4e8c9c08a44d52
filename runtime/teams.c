/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Teams of a context besides the job: how one is made, and removed. A member asks for what it needs
 * of the others (their memory on this host, links to other hosts) and drives meanwhile, as a waiter
 * does; then the engine has the team. A member that cannot make it tells the others, over links and
 * over the sockets by which memory goes (team_memory.c).
 */
#include "team_state.h"

#include "alloc.h"
#include "clock.h"
#include "engine/team.h"
#include "rings.h"

#include <assert.h>
#include <string.h>

/* Between two looks whether a team is complete. */
#define LOOK_NS 50000

static void move(struct horon_context_team *team, enum horon_context_team_state to)
{
    static const unsigned legal[] = {[HORON_CONTEXT_TEAM_ASKS] = 1u << HORON_CONTEXT_TEAM_FAILED |
                                                                 1u << HORON_CONTEXT_TEAM_MADE,
                                     [HORON_CONTEXT_TEAM_FAILED] = 0,
                                     [HORON_CONTEXT_TEAM_MADE] = 1u << HORON_CONTEXT_TEAM_LEFT,
                                     [HORON_CONTEXT_TEAM_LEFT] = 0};
    assert(legal[team->state] & 1u << to);
    assert((to == HORON_CONTEXT_TEAM_FAILED) == (team->failure.status != HORON_OK));
    assert((to == HORON_CONTEXT_TEAM_FAILED) == !team->engine_team);
    assert(to == HORON_CONTEXT_TEAM_FAILED || team->segment.base);
    team->state = to;
}

void horon_context_team_fail(struct horon_context_team *team, const struct horon_error *why)
{
    if (team->state == HORON_CONTEXT_TEAM_FAILED)
        return;
    if (team->state != HORON_CONTEXT_TEAM_ASKS) {
        horon_team_fail_here(team->engine_team, why);
        return;
    }
    team->failure = *why;
    move(team, HORON_CONTEXT_TEAM_FAILED);
}

static void destroy(struct horon_context_team *team)
{
    if (!team)
        return;
    struct horon_context_team **at = &team->ctx->teams.first;
    while (*at && *at != team)
        at = &(*at)->next;
    if (*at)
        *at = team->next;
    horon_team_free_memory(team);
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
    team->host = team->ctx->host;
    team->host.shape = horon_context_shape(team->ctx, team->local_size);
    team->host.local_rank = team->local_rank;
    team->host.process_of = team->process_of;
    team->host.segment = NULL;
    team->host.arenas = NULL;
    for (int i = 0; i < team->local_size; i++) {
        const int rank = team->ranks[horon_topology_rank_here(own, i)];
        team->process_of[i] = job->local_rank_of[rank];
    }
    horon_rings_see_readable(team->ctx, &team->host);
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
    horon_team_make_segment(team);
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
                        ctx->boot.profiles[rank].name);
        horon_error_blame(error, HORON_CAUSE_LEFT, rank, -1);
        return HORON_ERR_CLOSED;
    }
    if (own->host_of[place] != own->host_of[self])
        return horon_topology_linked(own, self, place)
                   ? horon_engine_connect(ctx->engine, rank, error)
                   : HORON_OK;
    const int local = own->local_rank_of[place];
    if (horon_team_leads(team) && team->members[local].next == 0)
        return horon_connect_on_host(ctx, team->process_of[local], error) < 0 ? error->status
                                                                              : HORON_AGAIN;
    return horon_team_leads(team) || local != 0 || team->segment.base ? HORON_OK : HORON_AGAIN;
}

/* @param awaited_out a rank that is waited for */
static horon_status_t ask(struct horon_context_team *team, int *awaited_out,
                          struct horon_error *error)
{
    const struct horon_error *failure = horon_engine_failure(team->ctx->engine);
    horon_status_t status = HORON_OK;
    if (failure)
        *error = *failure;
    if (failure || horon_engine_is_refused(team->ctx->engine, team->id, error))
        return error->status;
    horon_team_send_memory(team);
    for (int i = 0; i < team->topology.size; i++) {
        const horon_status_t one = ask_one(team, i, error);
        if (one < 0)
            return one;
        if (one == HORON_OK)
            continue;
        *awaited_out = team->ranks[i];
        status = HORON_AGAIN;
    }
    const bool tells = horon_team_leads(team) && !team->segment.base && status == HORON_AGAIN;
    if (team->state == HORON_CONTEXT_TEAM_ASKS || tells) /* the others here that there is none */
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
                            awaited, ctx->boot.profiles[awaited].name, team->id,
                            (double)ctx->config.peer_timeout_ms / 1e3);
            horon_error_blame(error, HORON_CAUSE_ABSENT, awaited, -1);
            return HORON_ERR_TIMEOUT;
        }
        horon_connect_turn(ctx, LOOK_NS);
    }
    return status;
}

static horon_status_t add_to_engine(struct horon_context_team *team,
                                    const struct horon_backends *backends,
                                    struct horon_error *error)
{
    const struct horon_topology *own = &team->topology;
    struct horon_link **rings = horon_zalloc((size_t)own->size, sizeof *rings);
    horon_status_t status = rings ? HORON_OK : HORON_ERR_MEMORY;
    team->host.segment = team->segment.base;
    for (int i = 0; i < team->local_size && status == HORON_OK; i++) {
        if (i == team->local_rank || (i != 0 && !horon_team_leads(team)))
            continue;
        status = horon_context_make_ring(&team->host, i, &team->members[i].ring,
                                         &rings[horon_topology_rank_here(own, i)]);
    }
    const struct horon_team_options options = {.id = team->id,
                                               .ranks = team->ranks,
                                               .size = own->size,
                                               .host = &team->host,
                                               .rings = rings,
                                               .backends = backends};
    if (status == HORON_OK)
        status = horon_engine_add_team(team->ctx->engine, &options, &team->engine_team, error);
    else
        for (int i = 0; rings && i < own->size; i++)
            if (rings[i])
                rings[i]->ops->destroy(rings[i]);
    horon_free(rings);
    if (status == HORON_OK)
        move(team, HORON_CONTEXT_TEAM_MADE);
    else if (!error->text[0])
        horon_error_set(error, status, "no memory for a team");
    return status;
}

horon_status_t horon_context_add_team(struct horon_context *ctx, uint32_t id, const int *ranks,
                                      int size, const struct horon_backends *backends,
                                      struct horon_context_team **team_out,
                                      struct horon_error *error)
{
    struct horon_context_team *team = NULL;
    assert(!horon_context_on_progress_thread(ctx));
    horon_token_take(ctx);
    assert(id > ctx->teams.newest && id < HORON_TEAMS_END);
    ctx->teams.newest = id;
    horon_status_t status = create(ctx, id, ranks, size, &team, error);
    if (status == HORON_OK) {
        team->next = ctx->teams.first;
        ctx->teams.first = team;
        horon_team_take_early_memory(ctx, team);
        status = wait_for_members(team, error);
    }
    if (status == HORON_OK)
        status = add_to_engine(team, backends, error);
    if (status == HORON_OK) {
        HORON_LOG_DEBUG(&ctx->log, "team %u of %d ranks is made", id, size);
        *team_out = team;
    } else {
        horon_engine_refuse_team(ctx->engine, id, ranks, size, error);
        if (team) {
            horon_context_team_fail(team, error);
            horon_team_refuse_memory(team);
        }
        destroy(team);
    }
    horon_token_release(ctx);
    return status;
}

uint8_t horon_context_team_part(struct horon_context_team *team)
{
    struct horon_context *ctx = team->ctx;
    horon_token_take(ctx);
    const uint8_t said = horon_engine_part_team(ctx->engine, team->engine_team);
    horon_token_release(ctx);
    return said;
}

void horon_context_team_end_opening(struct horon_context_team *team, uint8_t said)
{
    struct horon_context *ctx = team->ctx;
    const uint64_t deadline = horon_clock_deadline(horon_clock_ns(), ctx->config.peer_timeout_ms);
    team->all_settled = said & HORON_TEAM_SETTLED;
    horon_token_take(ctx);
    while (horon_team_opens(team->engine_team) & said && horon_clock_ns() < deadline)
        horon_connect_turn(ctx, LOOK_NS);
    horon_token_release(ctx);
}

void horon_context_remove_team(struct horon_context_team *team)
{
    struct horon_context *ctx = team->ctx;
    assert(!horon_context_on_progress_thread(ctx));
    horon_token_take(ctx);
    const bool whole = !horon_team_failure(team->engine_team);
    if (!team->all_settled)
        horon_team_unsettle(team->engine_team);
    horon_engine_leave_team(ctx->engine, team->engine_team);
    move(team, HORON_CONTEXT_TEAM_LEFT);
    const uint64_t deadline = horon_clock_deadline(horon_clock_ns(), ctx->config.peer_timeout_ms);
    while ((horon_team_rings_unsent(team->engine_team, true) ||
            (whole && horon_team_memory_unsent(team))) &&
           horon_clock_ns() < deadline)
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
    horon_team_take_early_memory(ctx, NULL);
    horon_pump_untimer(&ctx->boot.pump, &ctx->teams.timer);
}
