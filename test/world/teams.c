/* SPDX-License-Identifier: Apache-2.0 */
/* See teams.h. What a context will do for a process set, done by hand. */
#undef NDEBUG
#include "world/teams.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static uint8_t *map_zeros(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(memory != MAP_FAILED);
    return memory;
}

static struct horon_host_shape shape_of(const struct world_team *team, int host)
{
    struct horon_host_shape shape = team->world->ranks[0].host.shape;
    shape.local_size = horon_topology_host_size(&team->topology, host);
    return shape;
}

static void make_hosts(struct world_team *team)
{
    const struct horon_topology *job = &team->world->ranks[0].topology;
    const struct horon_topology *topology = &team->topology;
    team->memory.segments = calloc((size_t)team->size, sizeof *team->memory.segments);
    team->memory.arenas = calloc((size_t)team->size, sizeof *team->memory.arenas);
    for (int host = 0; host < topology->host_count; host++) {
        const struct horon_host_shape shape = shape_of(team, host);
        team->memory.segments[host] = map_zeros(horon_host_team_bytes(&shape));
        for (int local = 0; local < shape.local_size; local++) {
            const int at = topology->host_first[host] + local;
            const int rank = team->ranks[horon_topology_rank_at(topology, host, local)];
            team->process_of[at] = job->local_rank_of[rank];
        }
    }
    for (int i = 0; i < team->size; i++) {
        const int host = topology->host_of[i], first = topology->host_first[host];
        team->hosts[i] = team->world->ranks[team->ranks[i]].host;
        team->hosts[i].shape = shape_of(team, host);
        team->hosts[i].local_rank = topology->local_rank_of[i];
        team->hosts[i].process_of = team->process_of + first;
        team->hosts[i].segment = team->memory.segments[host];
        team->hosts[i].arenas = NULL;
    }
}

void world_team_map_arenas(struct world_team *team, int host)
{
    const struct horon_host_shape shape = shape_of(team, host);
    const int first = team->topology.host_first[host];
    for (int local = 0; local < shape.local_size; local++)
        team->memory.arenas[first + local] =
            map_zeros(horon_engine_arena_at(&shape, HORON_LANE_COUNT));
}

static void give_arenas(struct world_team *team, int host)
{
    const int first = team->topology.host_first[host];
    world_team_map_arenas(team, host);
    for (int local = 0; local < horon_topology_host_size(&team->topology, host); local++)
        horon_team_give_arenas(team->members[horon_topology_rank_at(&team->topology, host, local)],
                               team->memory.arenas + first);
}

static horon_status_t make_arenas(struct world *world, struct horon_engine_team *asking,
                                  struct horon_error *error)
{
    struct world_team *team = world->teams;
    while (team->id != asking->id || team->members[asking->view.rank] != asking)
        team = team->next;
    const int host = team->topology.host_of[asking->view.rank];
    if (asking->view.rank == team->has_no_room)
        return horon_error_set(error, HORON_ERR_MEMORY, "no room for an arena");
    if (++team->asked[host] == horon_topology_host_size(&team->topology, host))
        give_arenas(team, host);
    return HORON_OK;
}

struct world_team *world_team_create(struct world *world, uint32_t id, const int *ranks, int size)
{
    struct world_team *team = calloc(1, sizeof *team);
    const size_t n = (size_t)size;
    team->world = world;
    team->id = id;
    team->size = size;
    team->ranks = calloc(n, sizeof *team->ranks);
    team->process_of = calloc(n, sizeof *team->process_of);
    team->hosts = calloc(n, sizeof *team->hosts);
    team->members = calloc(n, sizeof *team->members);
    team->asked = calloc(n, sizeof *team->asked);
    team->has_no_room = -1;
    team->next = world->teams;
    world->teams = team;
    world->make_arenas = make_arenas;
    memcpy(team->ranks, ranks, n * sizeof *ranks);
    struct horon_error error = {0};
    const horon_status_t status =
        horon_topology_of(&world->ranks[ranks[0]].topology, ranks, size, &team->topology, &error);
    assert(status == HORON_OK);
    make_hosts(team);
    for (int a = 0; a < size; a++)
        for (int b = 0; b < a; b++)
            if (world->ranks[0].engine && horon_topology_linked(&team->topology, a, b))
                world_link(world, ranks[a], ranks[b]);
    return team;
}

static bool neighbours(const struct horon_topology *topology, int a, int b)
{
    return horon_topology_parent(topology, a) == b || horon_topology_parent(topology, b) == a;
}

static void make_rings(struct world_team *team, int member, struct horon_link **rings)
{
    const struct horon_topology *topology = &team->topology;
    const struct horon_host *host = &team->hosts[member];
    for (int peer = 0; peer < team->size; peer++) {
        if (peer == member || topology->host_of[peer] != topology->host_of[member] ||
            !neighbours(topology, member, peer))
            continue;
        const int self = host->local_rank, other = topology->local_rank_of[peer];
        const int number = self == 0 ? other : self;
        horon_status_t made = horon_link_ring_create(horon_host_ring(host, number, self != 0),
                                                     horon_host_ring(host, number, self == 0),
                                                     HORON_RING_DATA_BYTES, NULL, &rings[peer]);
        assert(made == HORON_OK);
    }
}

/* @param rings [size] NULL */
static struct horon_team_options describe(struct world_team *team, int member,
                                          struct horon_link **rings)
{
    make_rings(team, member, rings);
    return (struct horon_team_options){.id = team->id,
                                       .ranks = team->ranks,
                                       .size = team->size,
                                       .host = &team->hosts[member],
                                       .rings = rings};
}

void world_team_add(struct world_team *team, int member)
{
    struct horon_link **rings = calloc((size_t)team->size, sizeof *rings);
    struct horon_error error = {0};
    const struct horon_team_options options = describe(team, member, rings);
    horon_status_t status = horon_engine_add_team(team->world->ranks[team->ranks[member]].engine,
                                                  &options, &team->members[member], &error);
    assert(status == HORON_OK);
    free(rings);
}

void world_team_remove(struct world_team *team, int member)
{
    struct horon_engine_team *engine_team = team->members[member];
    if (!engine_team)
        return;
    horon_engine_leave_team(engine_team->engine, engine_team);
    for (int turn = 0; turn < 1000 && horon_team_rings_unsent(engine_team, true); turn++)
        for (int rank = 0; rank < team->world->size; rank++)
            if (!team->world->ranks[rank].dead)
                horon_engine_progress(team->world->ranks[rank].engine);
    horon_engine_remove_team(engine_team->engine, engine_team);
    team->members[member] = NULL;
}

struct world_team_memory world_team_renew(struct world_team *team)
{
    const struct world_team_memory old = team->memory;
    make_hosts(team);
    memset(team->asked, 0, (size_t)team->size * sizeof *team->asked);
    return old;
}

void world_team_free_memory(const struct world_team *team, struct world_team_memory memory)
{
    for (int host = 0; host < team->topology.host_count; host++) {
        const struct horon_host_shape shape = shape_of(team, host);
        munmap(memory.segments[host], horon_host_team_bytes(&shape));
    }
    for (int i = 0; i < team->size; i++) {
        const int host = team->topology.host_of[team->topology.host_ranks[i]];
        const struct horon_host_shape shape = shape_of(team, host);
        if (memory.arenas[i])
            munmap(memory.arenas[i], horon_engine_arena_at(&shape, HORON_LANE_COUNT));
    }
    free(memory.segments);
    free(memory.arenas);
}

bool world_teams_are_level(const struct horon_engine_team *one,
                           const struct horon_engine_team *other)
{
    if (!one || !other)
        return one == other;
    if (horon_coordinator_decisions(one->coordinator) !=
        horon_coordinator_decisions(other->coordinator))
        return false;
    for (int lane = 0; lane < HORON_LANE_COUNT; lane++)
        if (horon_route_ended(&one->lanes[lane].route) !=
            horon_route_ended(&other->lanes[lane].route))
            return false;
    return true;
}

static bool is_level(const struct world *world)
{
    const struct horon_engine *first = world->ranks[0].engine;
    for (int rank = 0; rank < world->size; rank++)
        if (!horon_engine_is_between(world->ranks[rank].engine) ||
            !world_teams_are_level(world->ranks[rank].engine->job, first->job))
            return false;
    for (const struct world_team *team = world->teams; team; team = team->next)
        for (int i = 1; i < team->size; i++)
            if (!world_teams_are_level(team->members[i], team->members[0]))
                return false;
    return true;
}

static void replace_one(struct world *world, int rank)
{
    enum { TEAMS_MAX = 4, RANKS_MAX = 8 };
    struct horon_link *links[RANKS_MAX] = {NULL}, *rings[TEAMS_MAX][RANKS_MAX] = {{NULL}};
    struct horon_team_options options[TEAMS_MAX];
    struct horon_engine *engine = world->ranks[rank].engine;
    struct horon_error error = {0};
    int count = 0;
    for (const struct horon_engine_team *one = engine->job->next; one; one = one->next) {
        struct world_team *team = world->teams;
        while (team->id != one->id || team->members[one->view.rank] != one)
            team = team->next;
        options[count] = describe(team, one->view.rank, rings[count]);
        count++;
    }
    horon_status_t status = world_make_links(world, rank, links);
    assert(status == HORON_OK);
    const struct horon_engine_place place = {.topology = &world->ranks[rank].topology,
                                             .host = &world->ranks[rank].host,
                                             .links = links,
                                             .generation = engine->membership->generation + 1,
                                             .teams = options,
                                             .team_count = count};
    status = horon_engine_replace(engine, &place, &error);
    assert(status == HORON_OK);
    for (const struct horon_engine_team *bound = engine->job; bound; bound = bound->next)
        assert(bound->view.generation == place.generation);
}

bool world_replace(struct world *world)
{
    enum { TEAMS_MAX = 4 };
    struct world_team_memory memories[TEAMS_MAX];
    int count = 0;
    assert(world->host_count == 1);
    if (!is_level(world))
        return false;
    struct world_host *hosts = world_renew_hosts(world);
    for (struct world_team *team = world->teams; team; team = team->next)
        memories[count++] = world_team_renew(team);
    for (int rank = 0; rank < world->size; rank++)
        replace_one(world, rank);
    world_free_hosts(world, hosts);
    count = 0;
    for (struct world_team *team = world->teams; team; team = team->next)
        world_team_free_memory(team, memories[count++]);
    return true;
}

void world_team_destroy(struct world_team *team)
{
    for (int i = 0; i < team->size; i++)
        world_team_remove(team, i);
    world_team_free_memory(team, team->memory);
    struct world_team **at = &team->world->teams;
    while (*at != team)
        at = &(*at)->next;
    *at = team->next;
    horon_topology_deinit(&team->topology);
    free(team->ranks);
    free(team->process_of);
    free(team->hosts);
    free(team->members);
    free(team->asked);
    free(team);
}

struct horon_request *world_team_submit(struct world_team *team, int member,
                                        const horon_descriptor_t *desc)
{
    assert(team->members[member]);
    return world_submit_to(team->world, team->ranks[member], team->members[member], desc);
}

void world_kill(struct world *world, int rank)
{
    const struct horon_topology *topology = &world->ranks[rank].topology;
    world->ranks[rank].dead = true;
    for (int peer = 0; peer < world->size; peer++) {
        struct horon_ring *ring = world->rings[rank * world->size + peer];
        if (ring)
            atomic_store(&ring->writer_closed, 1);
        if (peer != rank && !world->ranks[peer].dead &&
            topology->host_of[peer] == topology->host_of[rank])
            horon_engine_local_death(world->ranks[peer].engine, topology->local_rank_of[rank], true,
                                     "ended");
    }
}
