/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run's birth and death: draws its hosts, settings and character from the seed, makes the ranks
 * with the product's engines as context.c does, and frees it all, frozen ranks included.
 */
#undef NDEBUG
#include "exec/owed_ring.h"
#include "simulation/messages.h"
#include "simulation/network.h"
#include "simulation/sets.h"
#include "simulation/simulation.h"
#include "simulation/teams.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void ring_written(void *arg)
{
    struct sim_ring_peer *peer = arg;
    horon_host_wake_reader(peer->host, peer->local_rank);
    sim_interrupt(peer->self);
}

/* As rings.c has it: the peer may rest. */
static void ring_full(void *arg)
{
    struct sim_ring_peer *peer = arg;
    horon_host_wake(peer->host, peer->local_rank, HORON_WAKE_ASLEEP);
    sim_interrupt(peer->self);
}

static void ring_has_room(void *arg)
{
    struct sim_ring_peer *peer = arg;
    horon_host_wake(peer->host, peer->local_rank, HORON_WAKE_CONTROL | HORON_WAKE_ASLEEP);
    sim_interrupt(peer->self);
}

/* Although all say that they can. */
static bool cannot_be_read(const struct sim_rank *rank)
{
    return rank->sim->seed % 4 == 1;
}

static struct horon_link *make_ring(struct sim_rank *rank, struct horon_ring *out,
                                    struct horon_ring *in, struct sim_ring_peer *arg)
{
    const struct horon_ring_wake wake = {
        .written = ring_written, .full = ring_full, .room = ring_has_room, .arg = arg};
    struct horon_link *link = NULL;
    horon_status_t status =
        horon_link_ring_create(out, in, rank->sim->local_ring_bytes, &wake, &link);
    assert(status == HORON_OK);
    if (rank->sim->seed % 4)
        horon_link_ring_lend(link, cannot_be_read(rank) ? 0 : getpid(),
                             &horon_host_line(arg->host, arg->local_rank)->alive);
    return link;
}

struct horon_link *sim_make_ring(struct sim_rank *rank, struct horon_host *host, int peer,
                                 struct sim_ring_peer *arg)
{
    const bool to_leader = host->local_rank != 0;
    const int member = to_leader ? host->local_rank : peer;
    *arg = (struct sim_ring_peer){.self = rank, .host = host, .local_rank = peer};
    return make_ring(rank, horon_host_ring(host, member, to_leader),
                     horon_host_ring(host, member, !to_leader), arg);
}

struct horon_link *sim_make_late_ring(struct sim_rank *rank, int peer, struct horon_ring *out,
                                      struct horon_ring *in)
{
    const int other = rank->sim->world->ranks[rank->rank].topology.local_rank_of[peer];
    struct sim_ring_peer *arg = &rank->ring_peers[other];
    *arg = (struct sim_ring_peer){.self = rank, .host = &rank->ctx.host, .local_rank = other};
    return make_ring(rank, out, in, arg);
}

static struct horon_link *make_local_link(struct sim_rank *rank, int peer)
{
    const struct horon_topology *topology = &rank->sim->world->ranks[rank->rank].topology;
    const int other = topology->local_rank_of[peer];
    if (horon_topology_parent(topology, rank->rank) != peer &&
        horon_topology_parent(topology, peer) != rank->rank)
        return NULL;
    return sim_make_ring(rank, &rank->ctx.host, other, &rank->ring_peers[other]);
}

void sim_take_host(struct sim_rank *rank)
{
    rank->ctx.host = rank->sim->world->ranks[rank->rank].host;
    rank->ctx.host.doorbell = sim_doorbell;
    rank->ctx.host.doorbell_arg = rank;
    if (cannot_be_read(rank))
        horon_host_line(&rank->ctx.host, rank->ctx.host.local_rank)->process = 0;
    rank->ctx.crowded = horon_topology_is_crowded(&rank->sim->world->ranks[rank->rank].topology);
}

void sim_make_links(struct sim_rank *rank, struct horon_link **links)
{
    const struct horon_topology *topology = &rank->sim->world->ranks[rank->rank].topology;
    for (int peer = 0; peer < rank->sim->size; peer++)
        if (peer != rank->rank && (topology->host_of[peer] == topology->host_of[rank->rank] ||
                                   horon_topology_linked(topology, rank->rank, peer)))
            links[peer] = topology->host_of[peer] == topology->host_of[rank->rank]
                              ? make_local_link(rank, peer)
                              : sim_network_link(rank->sim->network, rank->rank, peer);
}

/* engine_options.connect: each side gets its end a while later. */
static horon_status_t connect_to(void *arg, int peer, struct horon_error *error)
{
    const struct sim_rank *rank = arg;
    struct simulation *sim = rank->sim;
    (void)error;
    sim_trace(sim, 'c', (uint64_t)rank->rank, (uint64_t)peer);
    sim_event(sim, sim->now + sim_below(sim, sim->think_max), SIM_EVENT_LINK, rank->rank, peer);
    sim_event(sim, sim->now + sim_below(sim, sim->think_max), SIM_EVENT_LINK, peer, rank->rank);
    return HORON_OK;
}

/* One that leaves gets no more; but what it has sent on an end that it has, the other one reads.
 * Of one that is dead a connection may still be accepted by its system. When a connection has ended
 * its other side goes, or is gone: there is no second one. */
static bool is_too_late(const struct sim_rank *rank, int peer)
{
    struct simulation *sim = rank->sim;
    const struct sim_rank *other = &sim->ranks[peer];
    if (sim_network_has_end(sim->network, rank->rank, peer))
        return true;
    if (sim_network_has_end(sim->network, peer, rank->rank))
        return false;
    if (other->state == SIM_DEAD)
        return !sim_network_crosses(sim->network, rank->rank, peer) || sim_one_in(sim, 2);
    return other->leaving || other->state == SIM_LEFT;
}

/* As boot/connect/links.c says it. */
static void refuse_link(struct sim_rank *rank, int peer)
{
    struct horon_error why;
    horon_error_set(&why, HORON_ERR_PEER_LOST,
                    "cannot connect to %s, tried a connection, which it closed: it is gone, or "
                    "leaves the job",
                    horon_engine_rank_names(rank->ctx.engine)[peer]);
    horon_error_blame_both(&why, why.blame.cause, rank->rank, peer);
    horon_engine_not_connected(rank->ctx.engine, peer, &why);
    rank->sim->outcome.refused++;
    sim_trace(rank->sim, 'n', (uint64_t)rank->rank, (uint64_t)peer);
}

void sim_add_link(struct sim_rank *rank, int peer)
{
    struct horon_error error = {0};
    if (!horon_engine_may_link(rank->ctx.engine, peer))
        return;
    if (is_too_late(rank, peer)) {
        refuse_link(rank, peer);
        return;
    }
    const horon_status_t status = horon_engine_add_link(
        rank->ctx.engine, peer, sim_network_link(rank->sim->network, rank->rank, peer), &error);
    assert(status == HORON_OK);
    rank->sim->outcome.links++;
    sim_trace(rank->sim, 'l', (uint64_t)rank->rank, (uint64_t)peer);
}

static uint64_t read_clock(void *arg)
{
    return ((struct sim_rank *)arg)->sim->now;
}

static void make_rank(struct simulation *sim, int number)
{
    struct sim_rank *rank = &sim->ranks[number];
    struct world_rank *place = &sim->world->ranks[number];
    const struct horon_topology *topology = &place->topology;
    struct horon_link *links[SIM_RANKS_MAX] = {NULL};
    rank->sim = sim;
    rank->rank = number;
    rank->state = SIM_ASLEEP;
    sim_take_host(rank);
    rank->ctx.dead = calloc(SIM_RANKS_MAX, sizeof *rank->ctx.dead);
    rank->ctx.doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    assert(rank->ctx.doorbell >= 0);
    sim_make_links(rank, links);
    struct horon_engine_options options = {
        .config = &sim->world->config,
        .topology = topology,
        .host = &rank->ctx.host,
        .links = links,
        .generation = HORON_GENERATION_FIRST,
        .now_ns = read_clock,
        .now_arg = rank,
        .log = &sim->world->log,
        .ended = sim_request_ended,
        .release = sim_request_release,
        .make_arenas = sim_make_arenas,
        .connect = connect_to,
        .arg = rank,
    };
    struct horon_error error = {0};
    horon_status_t status = horon_engine_create(&options, &rank->ctx.engine, &error);
    assert(status == HORON_OK);
    const bool got = horon_token_try(&rank->ctx);
    assert(got);
    horon_token_release_armed(&rank->ctx); /* asleep from the start, with its wake word set */
    sim_hear_doorbell(rank);
}

static void draw_settings(struct simulation *sim, char texts[9][40], const char *settings[10])
{
    static const char *const algorithms[] = {"auto",   "flat",    "doubling",
                                             "direct", "halving", "chain"};
    int n = 0;
    uint64_t small = sim_below(sim, 6);
    snprintf(texts[n++], 40, "SHM_SMALL_BYTES=%d", small ? 32 << small : 0);
    snprintf(texts[n++], 40, "SHM_LEND_BYTES=%d", small % 2 ? 32 << small : 0);
    snprintf(texts[n++], 40, "SHM_CHUNK_BYTES=%d", 4096 << sim_below(sim, 5));
    snprintf(texts[n++], 40, "NET_CHUNK_BYTES=%d", 4096 << sim_below(sim, 2));
    snprintf(texts[n++], 40, "NET_EAGER_BYTES=%d", 1 << sim_below(sim, 13));
    snprintf(texts[n++], 40, "NET_ALGORITHM=%s", algorithms[sim_below(sim, 6)]);
    snprintf(texts[n++], 40, "CACHE_ENTRIES=%d", sim_one_in(sim, 4) ? 0 : 1 << sim_below(sim, 6));
    snprintf(texts[n++], 40, "FUSION_BYTES=%d", sim_one_in(sim, 4) ? 0 : 64 << sim_below(sim, 12));
    for (int i = 0; i < n; i++)
        settings[i] = texts[i];
    settings[n] = NULL;
}

/* What kind of run it is. */
static void draw_character(struct simulation *sim)
{
    static const unsigned sticks[] = {1, 2, 5, 20}, interrupts[] = {0, 2, 8, 32};
    sim->stick = sticks[sim_below(sim, 4)];
    sim->interrupt = interrupts[sim_below(sim, 4)];
    sim->pause = sim_one_in(sim, 2) ? 0 : 50u << sim_below(sim, 4);
    sim->pause_max = 1 + sim_below(sim, 10 * SIM_MS);
    sim->wake_max = 1 + sim_below(sim, (uint64_t)1000 << sim_below(sim, 10));
    sim->think_max = 1 + sim_below(sim, (uint64_t)100 << sim_below(sim, 16));
    uint64_t fate = sim_below(sim, 20);
    sim->fate = fate < 9    ? SIM_FATE_GOOD
                : fate < 15 ? SIM_FATE_KILL
                : fate < 18 ? SIM_FATE_LEAVE
                            : SIM_FATE_DISORDER;
    if (sim->size == 1)
        sim->fate = SIM_FATE_GOOD;
    sim->victim = (int)sim_below(sim, (uint64_t)sim->size);
    sim->fate_step = 1 + sim_below(sim, (uint64_t)8 << sim_below(sim, 9));
    sim->fate_inside = sim_one_in(sim, 2);
}

/* Too few cores for some of the hosts, or for all of a machine that they share; then perhaps not
 * for the members of a team. */
static void draw_machines(struct simulation *sim, bool few)
{
    const struct world *world = sim->world;
    const uint64_t id = sim->seed / 3 % 2;
    for (int host = 0; few && host < world->host_count; host++) {
        const struct horon_machine machine = {.id = id, .cores = 1 + (uint32_t)(sim->seed % 3)};
        world_put_machine(sim->world, host, machine);
    }
}

void sim_create(struct simulation *sim, uint64_t seed, const struct sim_kill *kill)
{
    char texts[9][40];
    const char *settings[10];
    int host_sizes[SIM_RANKS_MAX], hosts = 0;
    sim->seed = seed;
    sim->random = seed * 0x632be59bd9b4e019u;
    int left = 1 + (int)sim_below(sim, sim_one_in(sim, 4) ? 2 : SIM_RANKS_MAX);
    sim->size = left;
    uint64_t shape = sim_below(sim, 4);
    while (left) { /* one host, one rank a host, or anything */
        int most = shape == 0 ? left : shape == 1 ? 1 : 1 + (int)sim_below(sim, (uint64_t)left);
        host_sizes[hosts++] = most;
        left -= most;
    }
    draw_settings(sim, texts, settings);
    sim->world = world_create_bare(host_sizes, hosts, settings, seed);
    draw_machines(sim, sim_one_in(sim, 2));
    sim->local_ring_bytes = HORON_RING_DATA_BYTES >> sim_below(sim, 11);
    draw_character(sim);
    if (kill) {
        sim->fate = SIM_FATE_KILL;
        sim->victim = kill->victim;
        sim->fate_step = kill->step;
        sim->fate_inside = kill->inside;
    }
    sim_team_draw(sim);
    sim->network = sim_network_create(sim);
    for (int rank = 0; rank < sim->size; rank++)
        make_rank(sim, rank);
    sim_workload_create(sim);
    for (int rank = 0; rank < sim->size; rank++)
        sim_event(sim, sim_below(sim, sim->think_max), SIM_EVENT_SUBMIT, rank, 0);
    sim->replacements = sim_one_in(sim, 2) ? (unsigned)sim_below(sim, 4) : 0;
    sim->replace_step = 1 + sim_below(sim, 400);
    sim->looks_back = sim->fate == SIM_FATE_GOOD && sim_has_messages(sim) && sim->seed % 2;
    if (sim->team_count == 1 && !sim->change_count)
        return;
    if (sim->change_count) {
        sim_sets_begin(sim);
        sim->looks_back = sim->fate == SIM_FATE_GOOD && sim_one_in(sim, 2);
        return;
    }
    for (int i = 0; i < sim->teams[1]->size; i++)
        sim_event(sim, sim_below(sim, sim->think_max), SIM_EVENT_TEAM, sim->teams[1]->ranks[i], 1);
}

void sim_destroy(struct simulation *sim)
{
    sim->over = true;
    for (int rank = 0; rank < sim->size; rank++)
        if (sim->ranks[rank].state != SIM_LEFT) {
            horon_engine_leave(sim->ranks[rank].ctx.engine);
            horon_engine_close(sim->ranks[rank].ctx.engine);
        }
    sim_workload_destroy(sim);
    sim_sets_end(sim);
    for (int rank = 0; rank < sim->size; rank++) {
        horon_engine_destroy(sim->ranks[rank].ctx.engine);
        close(sim->ranks[rank].ctx.doorbell);
        free((void *)sim->ranks[rank].ctx.dead);
    }
    sim_network_destroy(sim->network);
    for (int team = 1; team < sim->team_count; team++)
        world_team_destroy(sim->teams[team]);
    free(sim->changes);
    world_destroy(sim->world);
    free(sim->events);
}
