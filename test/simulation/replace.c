/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaces the membership of a run between two operations: all ranks alive, their memory and links
 * new, the generation one more. What has been submitted and not begun goes on in the new one, in
 * the job and in all teams that there are.
 */
#undef NDEBUG
#include "engine/engine_state.h"
#include "simulation/network.h"
#include "simulation/sets.h"
#include "simulation/simulation.h"
#include "simulation/teams.h"

#include <assert.h>
#include <stdlib.h>

/* Is @p rank out of its turn, and with nothing begun that it would go on with? */
static bool is_still(const struct sim_rank *rank)
{
    return !rank->inside && !rank->leaving && !sim_sets_is_making(rank) &&
           horon_engine_is_between(rank->ctx.engine);
}

static bool is_level(const struct simulation *sim, int team)
{
    const struct sim_rank *first = &sim->ranks[sim_team_rank(sim, team, 0)];
    for (int i = 1; i < sim_team_size(sim, team); i++)
        if (!world_teams_are_level(sim_team_of(&sim->ranks[sim_team_rank(sim, team, i)], team),
                                   sim_team_of(first, team)))
            return false;
    return true;
}

/* Will a rank be given its end of a link of which the other one may have its own? */
static bool is_linking(const struct simulation *sim)
{
    for (size_t i = 0; i < sim->event_count; i++)
        if (sim->events[i].kind == SIM_EVENT_LINK)
            return true;
    return false;
}

/* Has each end of a message done as much as the other? */
static bool is_even(const struct simulation *sim)
{
    for (int i = 0; i < sim->op_count; i++) {
        const struct sim_op *op = &sim->ops[i];
        if (!op->paired)
            continue;
        const struct sim_use *from = &sim->ranks[op->from].uses[i],
                             *to = &sim->ranks[op->to].uses[i];
        if (from->flying || to->flying || from->round != to->round)
            return false;
    }
    return true;
}

/* With something in flight that can go on. */
static bool is_between(const struct simulation *sim)
{
    size_t in_flight = 0;
    for (int i = 0; i < sim->size; i++) {
        const struct sim_rank *rank = &sim->ranks[i];
        if (rank->state >= SIM_LEFT || !is_still(rank))
            return false;
        in_flight += rank->ctx.engine->in_flight;
    }
    for (int team = 0; team < sim->team_count; team++)
        if (!is_level(sim, team))
            return false;
    return in_flight > 0 && is_even(sim) && !is_linking(sim);
}

void sim_take_token(struct sim_rank *rank)
{
    if (rank->state == SIM_AWAKE)
        return;
    const bool got = horon_token_try(&rank->ctx);
    assert(got);
    rank->state = SIM_AWAKE;
    rank->rung = false;
    rank->quiet = rank->patience = 0;
}

/* What the control trees of a rank's teams need besides the job's. */
static void add_links_of_team(struct sim_rank *rank, int team, struct horon_link **links)
{
    struct simulation *sim = rank->sim;
    for (int peer = 0; peer < sim->size; peer++)
        if (peer != rank->rank && !links[peer] && sim_team_links(sim, team, rank->rank, peer))
            links[peer] = sim_network_link(sim->network, rank->rank, peer);
}

static void replace_one(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    struct horon_link *links[SIM_RANKS_MAX] = {NULL}, *rings[SIM_TEAMS_MAX][SIM_RANKS_MAX] = {0};
    struct horon_team_options teams[SIM_TEAMS_MAX];
    struct horon_error error = {0};
    int count = 0;
    sim_make_links(rank, links);
    for (int team = 1; team < sim->team_count; team++)
        if (rank->teams[team]) {
            add_links_of_team(rank, team, links);
            teams[count] = sim_team_describe(rank, team, rings[count]);
            count++;
            sim->outcome.rebound += rank->teams[team]->oldest != NULL;
        }
    const struct horon_engine_place place = {
        .topology = &sim->world->ranks[rank->rank].topology,
        .host = &rank->ctx.host,
        .links = links,
        .generation = rank->ctx.engine->membership->generation + 1,
        .teams = teams,
        .team_count = count,
    };
    horon_status_t status = horon_engine_replace(rank->ctx.engine, &place, &error);
    assert(status == HORON_OK);
    sim_trace(sim, 'm', (uint64_t)rank->rank, place.generation);
}

bool sim_replace(struct simulation *sim)
{
    if (sim->depth > 0 || sim->struck || !is_between(sim))
        return false;
    struct sim_network *network = sim->network;
    for (int i = 0; i < sim->size; i++) /* whose wake words lie in the old memory */
        sim_take_token(&sim->ranks[i]);
    struct world_host *hosts = world_renew_hosts(sim->world);
    struct world_team_memory memories[SIM_TEAMS_MAX];
    sim_teams_renew(sim, memories);
    sim->network = sim_network_create(sim);
    for (int i = 0; i < sim->size; i++)
        sim_take_host(&sim->ranks[i]);
    for (int i = 0; i < sim->size; i++)
        replace_one(&sim->ranks[i]);
    sim_network_destroy(network);
    world_free_hosts(sim->world, hosts);
    for (int team = 1; team < sim->team_count; team++)
        world_team_free_memory(sim->teams[team], memories[team]);
    sim->outcome.replaced++;
    return true;
}
