/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaces the membership of a run between two operations: all ranks alive, their memory and links
 * new, the generation one more. What has been submitted and not begun goes on in the new one.
 */
#undef NDEBUG
#include "engine/engine_state.h"
#include "simulation/network.h"
#include "simulation/simulation.h"

#include <assert.h>
#include <stdlib.h>

/* Has @p rank ended all that rank 0 has ended, and nothing else, and is it out of its turn? */
static bool is_level(const struct simulation *sim, const struct sim_rank *rank)
{
    const struct horon_engine_team *job = rank->ctx.engine->job;
    const struct horon_engine_team *first = sim->ranks[0].ctx.engine->job;
    if (rank->inside || rank->leaving || !horon_engine_is_between(rank->ctx.engine) ||
        horon_coordinator_decisions(job->coordinator) !=
            horon_coordinator_decisions(first->coordinator))
        return false;
    for (int lane = 0; lane < HORON_LANE_COUNT; lane++)
        if (horon_route_ended(&job->lanes[lane].route) !=
            horon_route_ended(&first->lanes[lane].route))
            return false;
    return true;
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
        if (rank->state >= SIM_LEFT || !is_level(sim, rank))
            return false;
        in_flight += rank->ctx.engine->in_flight;
    }
    return in_flight > 0 && is_even(sim);
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

static void replace_one(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    struct horon_link *links[SIM_RANKS_MAX] = {NULL};
    struct horon_error error = {0};
    sim_make_links(rank, links);
    const struct horon_engine_place place = {
        .topology = &sim->world->ranks[rank->rank].topology,
        .host = &rank->ctx.host,
        .links = links,
        .generation = rank->ctx.engine->membership->generation + 1,
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
    sim->network = sim_network_create(sim);
    for (int i = 0; i < sim->size; i++)
        sim_take_host(&sim->ranks[i]);
    for (int i = 0; i < sim->size; i++)
        replace_one(&sim->ranks[i]);
    sim_network_destroy(network);
    world_free_hosts(sim->world, hosts);
    sim->outcome.replaced++;
    return true;
}
