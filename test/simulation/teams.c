/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second team, in one run of three: some of the ranks in an order of their own, beside the job.
 * Each member makes it at a moment of its own, with the links between hosts that the job does not
 * need; its arenas come when its first operation needs them, to each member at another moment. What
 * befalls a rank that is not in it does not concern it.
 */
#undef NDEBUG
#include "simulation/teams.h"

#include "engine/engine_state.h"

#include <assert.h>
#include <stdlib.h>

/* Not of the run's own numbers, so that a run without one is what it was before there were any. */
static uint64_t hash_of(uint64_t seed)
{
    seed = (seed ^ 0x7465616d) * 0x9fb21c651e98df25u;
    return seed ^ (seed >> 29);
}

void sim_team_draw(struct simulation *sim)
{
    int ranks[SIM_RANKS_MAX];
    if (sim->size < 2 || hash_of(sim->seed) % 3 != 0)
        return;
    for (int i = 0; i < sim->size; i++)
        ranks[i] = i;
    for (int i = sim->size - 1; i > 0; i--) {
        const int other = (int)sim_below(sim, (uint64_t)i + 1), kept = ranks[i];
        ranks[i] = ranks[other];
        ranks[other] = kept;
    }
    const int size = 2 + (int)sim_below(sim, (uint64_t)sim->size - 1);
    sim->team = world_team_create(sim->world, 1, ranks, size);
    for (int i = 0; i < size; i++) {
        sim->team->hosts[i].doorbell = sim_doorbell;
        sim->team->hosts[i].doorbell_arg = &sim->ranks[ranks[i]];
    }
}

int sim_team_size(const struct simulation *sim, int team)
{
    return team ? sim->team->size : sim->size;
}

int sim_team_rank(const struct simulation *sim, int team, int member)
{
    return team ? sim->team->ranks[member] : member;
}

int sim_team_member(const struct simulation *sim, int team, int rank)
{
    for (int i = 0; i < sim_team_size(sim, team); i++)
        if (sim_team_rank(sim, team, i) == rank)
            return i;
    return -1;
}

const struct horon_topology *sim_team_topology(const struct simulation *sim, int team)
{
    return team ? &sim->team->topology : &sim->world->ranks[0].topology;
}

struct horon_engine_team *sim_team_of(const struct sim_rank *rank, int team)
{
    return team ? rank->second : horon_engine_job(rank->ctx.engine);
}

bool sim_team_links(const struct simulation *sim, int a, int b)
{
    const int one = sim->team ? sim_team_member(sim, 1, a) : -1;
    const int other = sim->team ? sim_team_member(sim, 1, b) : -1;
    return one >= 0 && other >= 0 && horon_topology_linked(&sim->team->topology, one, other);
}

/* ---- making it ------------------------------------------------------------------------------ */

static void add_links(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    const struct horon_membership *membership = rank->ctx.engine->membership;
    for (int peer = 0; peer < sim->size; peer++) {
        struct horon_error error = {0};
        if (peer == rank->rank || !sim_team_links(sim, rank->rank, peer) ||
            membership->states[peer] >= HORON_PEER_LINKED)
            continue;
        struct horon_link *link = sim_network_link(sim->network, rank->rank, peer);
        horon_status_t status = horon_engine_add_link(rank->ctx.engine, peer, link, &error);
        assert(status == HORON_OK);
    }
}

static void make_rings(struct sim_rank *rank, int member, struct horon_link **rings)
{
    const struct horon_topology *topology = &rank->sim->team->topology;
    struct horon_host *host = &rank->sim->team->hosts[member];
    for (int peer = 0; peer < rank->sim->team->size; peer++)
        if (peer != member && topology->host_of[peer] == topology->host_of[member] &&
            (horon_topology_parent(topology, member) == peer ||
             horon_topology_parent(topology, peer) == member))
            rings[peer] = sim_make_ring(rank, host, topology->local_rank_of[peer],
                                        &rank->team_ring_peers[topology->local_rank_of[peer]]);
}

void sim_team_add(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    const int member = sim_team_member(sim, 1, rank->rank);
    struct horon_link *rings[SIM_RANKS_MAX] = {NULL};
    struct horon_error error = {0};
    assert(!rank->second);
    add_links(rank);
    make_rings(rank, member, rings);
    const struct horon_team_options options = {.id = 1,
                                               .ranks = sim->team->ranks,
                                               .size = sim->team->size,
                                               .host = &sim->team->hosts[member],
                                               .rings = rings};
    horon_status_t status =
        horon_engine_add_team(rank->ctx.engine, &options, &rank->second, &error);
    assert(status == HORON_OK);
    sim->outcome.teams++;
    sim_trace(sim, 'a', (uint64_t)rank->rank, 1);
}

horon_status_t sim_make_arenas(void *arg, struct horon_engine_team *team, struct horon_error *error)
{
    const struct sim_rank *rank = arg;
    struct simulation *sim = rank->sim;
    const struct horon_topology *topology = &sim->team->topology;
    const int host = topology->host_of[team->view.rank];
    (void)error;
    sim_trace(sim, 'q', (uint64_t)rank->rank, 0);
    if (++sim->team->asked[host] < horon_topology_host_size(topology, host))
        return HORON_OK;
    world_team_map_arenas(sim->team, host);
    for (int i = 0; i < horon_topology_host_size(topology, host); i++) {
        const int member = horon_topology_rank_at(topology, host, i);
        sim_event(sim, sim->now + sim_below(sim, sim->think_max), SIM_EVENT_ARENAS,
                  sim->team->ranks[member], 0);
    }
    return HORON_OK;
}

void sim_team_give_arenas(struct sim_rank *rank)
{
    const struct world_team *team = rank->sim->team;
    const struct horon_topology *topology = &team->topology;
    const int host = topology->host_of[sim_team_member(rank->sim, 1, rank->rank)];
    sim_trace(rank->sim, 'r', (uint64_t)rank->rank, 0);
    horon_team_give_arenas(rank->second, team->arenas + topology->host_first[host]);
}
