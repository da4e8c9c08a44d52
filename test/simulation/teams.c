/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other teams than the job. In one run of three there is a second one: some of the ranks in an
 * order of their own, which each member makes at a moment of its own, with the links between hosts
 * that the job does not need. In another one there are process sets, which come and go (sets.c).
 * The arenas of a team come when its first operation needs them, to each member at another moment.
 * What befalls a rank that is not in a team does not concern it.
 */
#undef NDEBUG
#include "simulation/teams.h"
#include "simulation/network.h"
#include "simulation/sets.h"

#include "engine/engine_state.h"

#include <assert.h>
#include <stdlib.h>

/* Not of the run's own numbers, so that a run without one is what it was before there were any. */
static uint64_t hash_of(uint64_t seed)
{
    seed = (seed ^ 0x7465616d) * 0x9fb21c651e98df25u;
    return seed ^ (seed >> 29);
}

static void draw_second(struct simulation *sim)
{
    int ranks[SIM_RANKS_MAX];
    for (int i = 0; i < sim->size; i++)
        ranks[i] = i;
    for (int i = sim->size - 1; i > 0; i--) {
        const int other = (int)sim_below(sim, (uint64_t)i + 1), kept = ranks[i];
        ranks[i] = ranks[other];
        ranks[other] = kept;
    }
    (void)sim_team_create(sim, ranks, 2 + (int)sim_below(sim, (uint64_t)sim->size - 1));
}

void sim_team_draw(struct simulation *sim)
{
    sim->team_count = 1;
    if (sim->size < 2)
        return;
    if (hash_of(sim->seed) % 3 == 0)
        draw_second(sim);
    else if (hash_of(sim->seed) % 3 == 1)
        sim_sets_draw(sim);
}

static void hang_doorbells(struct simulation *sim, int number)
{
    struct world_team *team = sim->teams[number];
    for (int i = 0; i < team->size; i++) {
        team->hosts[i].doorbell = sim_doorbell;
        team->hosts[i].doorbell_arg = &sim->ranks[team->ranks[i]];
    }
}

int sim_team_create(struct simulation *sim, const int *ranks, int size)
{
    const int number = sim->team_count++;
    assert(number < SIM_TEAMS_MAX);
    sim->teams[number] = world_team_create(sim->world, (uint32_t)number, ranks, size);
    hang_doorbells(sim, number);
    return number;
}

/* Where all of a host have had arenas, they get new ones at once, or when they ask again. */
static void renew_arenas(struct simulation *sim, struct world_team *team, int host)
{
    const struct horon_topology *topology = &team->topology;
    world_team_map_arenas(team, host);
    for (int i = 0; i < horon_topology_host_size(topology, host); i++)
        team->hosts[horon_topology_rank_at(topology, host, i)].arenas =
            team->memory.arenas + topology->host_first[host];
    sim_trace(sim, 'u', team->id, (uint64_t)host);
}

void sim_teams_renew(struct simulation *sim, struct world_team_memory *memories)
{
    for (int number = 1; number < sim->team_count; number++) {
        struct world_team *team = sim->teams[number];
        memories[number] = world_team_renew(team);
        hang_doorbells(sim, number);
        for (int host = 0; host < team->topology.host_count; host++)
            if (memories[number].arenas[team->topology.host_first[host]] && sim_one_in(sim, 2))
                renew_arenas(sim, team, host);
    }
}

int sim_team_size(const struct simulation *sim, int team)
{
    return team ? sim->teams[team]->size : sim->size;
}

int sim_team_rank(const struct simulation *sim, int team, int member)
{
    return team ? sim->teams[team]->ranks[member] : member;
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
    return team ? &sim->teams[team]->topology : &sim->world->ranks[0].topology;
}

struct horon_engine_team *sim_team_of(const struct sim_rank *rank, int team)
{
    return team ? rank->teams[team] : horon_engine_job(rank->ctx.engine);
}

bool sim_team_links(const struct simulation *sim, int team, int a, int b)
{
    const struct horon_topology *topology = sim_team_topology(sim, team);
    const int one = sim_team_member(sim, team, a), other = sim_team_member(sim, team, b);
    return one >= 0 && other >= 0 && topology->host_of[one] != topology->host_of[other] &&
           horon_topology_linked(topology, one, other);
}

/* ---- making it ------------------------------------------------------------------------------ */

static void add_links(struct sim_rank *rank, int team)
{
    struct simulation *sim = rank->sim;
    const struct horon_membership *membership = rank->ctx.engine->membership;
    for (int peer = 0; peer < sim->size; peer++) {
        struct horon_error error = {0};
        if (peer == rank->rank || !sim_team_links(sim, team, rank->rank, peer) ||
            membership->states[peer] >= HORON_PEER_LINKED)
            continue;
        struct horon_link *link = sim_network_link(sim->network, rank->rank, peer);
        horon_status_t status = horon_engine_add_link(rank->ctx.engine, peer, link, &error);
        assert(status == HORON_OK);
    }
}

static void make_rings(struct sim_rank *rank, int team, int member, struct horon_link **rings)
{
    const struct horon_topology *topology = &rank->sim->teams[team]->topology;
    struct horon_host *host = &rank->sim->teams[team]->hosts[member];
    for (int peer = 0; peer < rank->sim->teams[team]->size; peer++)
        if (peer != member && topology->host_of[peer] == topology->host_of[member] &&
            (horon_topology_parent(topology, member) == peer ||
             horon_topology_parent(topology, peer) == member))
            rings[peer] =
                sim_make_ring(rank, host, topology->local_rank_of[peer],
                              &rank->team_ring_peers[team][topology->local_rank_of[peer]]);
}

struct horon_team_options sim_team_describe(struct sim_rank *rank, int number,
                                            struct horon_link **rings)
{
    struct world_team *team = rank->sim->teams[number];
    const int member = sim_team_member(rank->sim, number, rank->rank);
    make_rings(rank, number, member, rings);
    return (struct horon_team_options){.id = team->id,
                                       .ranks = team->ranks,
                                       .size = team->size,
                                       .host = &team->hosts[member],
                                       .rings = rings};
}

void sim_team_add(struct sim_rank *rank, int number)
{
    struct simulation *sim = rank->sim;
    struct horon_link *rings[SIM_RANKS_MAX] = {NULL};
    struct horon_error error = {0};
    assert(!rank->teams[number]);
    if (!sim->change_count) /* else it has asked for them */
        add_links(rank, number);
    const struct horon_team_options options = sim_team_describe(rank, number, rings);
    horon_status_t status =
        horon_engine_add_team(rank->ctx.engine, &options, &rank->teams[number], &error);
    assert(status == HORON_OK);
    sim->outcome.teams++;
    sim_trace(sim, 'a', (uint64_t)rank->rank, (uint64_t)number);
}

horon_status_t sim_make_arenas(void *arg, struct horon_engine_team *asking,
                               struct horon_error *error)
{
    const struct sim_rank *rank = arg;
    struct simulation *sim = rank->sim;
    struct world_team *team = sim->teams[asking->id]; /* its number, too */
    const struct horon_topology *topology = &team->topology;
    const int host = topology->host_of[asking->view.rank];
    (void)error;
    sim_trace(sim, 'q', (uint64_t)rank->rank, asking->id);
    if (++team->asked[host] < horon_topology_host_size(topology, host))
        return HORON_OK;
    world_team_map_arenas(team, host);
    for (int i = 0; i < horon_topology_host_size(topology, host); i++) {
        const int member = horon_topology_rank_at(topology, host, i);
        sim_event(sim, sim->now + sim_below(sim, sim->think_max), SIM_EVENT_ARENAS,
                  team->ranks[member], (int)asking->id);
    }
    return HORON_OK;
}

void sim_team_give_arenas(struct sim_rank *rank, int number)
{
    const struct world_team *team = rank->sim->teams[number];
    const struct horon_topology *topology = &team->topology;
    const int host = topology->host_of[sim_team_member(rank->sim, number, rank->rank)];
    sim_trace(rank->sim, 'r', (uint64_t)rank->rank, (uint64_t)number);
    if (rank->teams[number])
        horon_team_give_arenas(rank->teams[number],
                               team->memory.arenas + topology->host_first[host]);
}
