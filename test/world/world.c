/* SPDX-License-Identifier: Apache-2.0 */
/* See world.h. The reference reduction is written out along the tree of docs/design.md 3.8, apart
 * from the product's code but for the element kernels, which have tests of their own. */
#undef NDEBUG
#include "world/world.h"

#include "alloc.h"
#include "engine/engine_state.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define RING_BYTES 4096
/* Turns of a whole world without any movement after which it counts as hung. */
#define QUIET_TURNS 2000

horon_status_t world_failure(const struct horon_engine *engine, const char **text_out)
{
    const struct horon_error *failure = horon_engine_failure(engine);
    if (failure && text_out)
        *text_out = failure->text;
    return failure ? failure->status : HORON_OK;
}

void world_fail(struct horon_engine *engine, horon_status_t status, const char *text)
{
    struct horon_error why;
    horon_error_set(&why, status, "%s", text);
    horon_engine_fail(engine, &why);
}

uint64_t world_random(struct world *world)
{
    /* splitmix64, Steele et al., 2014 */
    uint64_t z = (world->seed += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void no_doorbell(void *arg, int local_rank)
{
    (void)arg;
    (void)local_rank;
}

static uint64_t world_now(void *arg)
{
    return ((struct world *)arg)->now_ns;
}

void world_release(struct horon_request *request)
{
    if (request && atomic_fetch_sub(&request->refs, 1) == 1) {
        struct world_rank *rank = (struct world_rank *)request->callback_arg;
        horon_request_destroy(&rank->pool, request, horon_engine_names(rank->engine));
    }
}

static void make_topologies(struct world *world, const int *host_sizes)
{
    int *leader_of = calloc((size_t)world->size, sizeof *leader_of);
    char(*names)[64] = calloc((size_t)world->size, sizeof *names);
    int rank = 0;
    for (int host = 0; host < world->host_count; host++) {
        int leader = rank;
        for (int i = 0; i < host_sizes[host]; i++, rank++) {
            leader_of[rank] = leader;
            snprintf(names[rank], sizeof names[rank], "host-%d", host);
        }
    }
    for (int i = 0; i < world->size; i++) {
        struct horon_error error = {0};
        horon_status_t status = horon_topology_init(&world->ranks[i].topology, i, world->size,
                                                    leader_of, (const char(*)[64])names, &error);
        assert(status == HORON_OK);
    }
    free(leader_of);
    free(names);
}

/* As shared memory is: whole pages that cost nothing until they are touched. */
static uint8_t *map_zeros(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(memory != MAP_FAILED);
    return memory;
}

static void make_hosts(struct world *world, const int *host_sizes)
{
    world->hosts = calloc((size_t)world->host_count, sizeof *world->hosts);
    for (int h = 0; h < world->host_count; h++) {
        struct world_host *host = &world->hosts[h];
        struct horon_host_shape shape = {
            .local_size = host_sizes[h],
            .small_bytes = (size_t)world->config.shm_small_bytes,
            .chunk_bytes =
                horon_host_chunk_bytes((size_t)world->config.shm_chunk_bytes, world->size),
        };
        host->local_size = host_sizes[h];
        host->control_bytes = horon_host_control_bytes(&shape);
        host->arena_bytes = horon_engine_arena_at(&shape, HORON_LANE_COUNT);
        host->control = map_zeros(host->control_bytes);
        host->arenas = calloc((size_t)host_sizes[h], sizeof *host->arenas);
        for (int i = 0; i < host_sizes[h]; i++)
            host->arenas[i] = map_zeros(host->arena_bytes);
    }
}

static void make_rank_host(struct world *world, struct world_rank *rank)
{
    int h = rank->topology.host_of[rank->topology.rank];
    struct world_host *host = &world->hosts[h];
    rank->world = world;
    rank->host = (struct horon_host){
        .shape = {.local_size = host->local_size,
                  .small_bytes = (size_t)world->config.shm_small_bytes,
                  .chunk_bytes =
                      horon_host_chunk_bytes((size_t)world->config.shm_chunk_bytes, world->size)},
        .arenas = host->arenas,
        .readable = true,
        .doorbell = no_doorbell,
    };
    horon_host_see_control(&rank->host, host->control,
                           rank->topology.local_rank_of[rank->topology.rank]);
    const bool held = horon_alive_hold(&horon_host_line(&rank->host, rank->host.local_rank)->alive);
    assert(held);
}

void world_free_hosts(const struct world *world, struct world_host *hosts)
{
    for (int h = 0; h < world->host_count; h++) {
        struct horon_rank_line *lines = (struct horon_rank_line *)(void *)hosts[h].control;
        for (int i = 0; i < hosts[h].local_size; i++) {
            horon_alive_let_go(&lines[i].alive);
            munmap(hosts[h].arenas[i], hosts[h].arena_bytes);
        }
        free(hosts[h].arenas);
        munmap(hosts[h].control, hosts[h].control_bytes);
    }
    free(hosts);
}

struct world_host *world_renew_hosts(struct world *world)
{
    struct world_host *old = world->hosts;
    int *host_sizes = calloc((size_t)world->host_count, sizeof *host_sizes);
    for (int h = 0; h < world->host_count; h++)
        host_sizes[h] = old[h].local_size;
    make_hosts(world, host_sizes);
    for (int rank = 0; rank < world->size; rank++)
        make_rank_host(world, &world->ranks[rank]);
    free(host_sizes);
    return old;
}

static struct horon_ring *ring_between(struct world *world, int from, int to)
{
    void **ring = &world->rings[from * world->size + to];
    if (!*ring) {
        size_t bytes = (horon_ring_bytes(RING_BYTES) + 63) / 64 * 64;
        *ring = aligned_alloc(64, bytes);
        memset(*ring, 0, bytes);
    }
    return *ring;
}

void world_link_end(struct world *world, int rank, int peer)
{
    struct horon_link *link = NULL;
    struct horon_error error = {0};
    horon_status_t status = horon_link_ring_create(
        ring_between(world, rank, peer), ring_between(world, peer, rank), RING_BYTES, NULL, &link);
    assert(status == HORON_OK);
    if (world->wrap)
        link = world->wrap(link);
    status = horon_engine_add_link(world->ranks[rank].engine, peer, link, &error);
    assert(status == HORON_OK);
}

void world_link(struct world *world, int rank, int peer)
{
    assert(rank != peer);
    if (world->rings[rank * world->size + peer])
        return;
    world_link_end(world, rank, peer);
    world_link_end(world, peer, rank);
}

/* engine_options.connect: world_turn_until() makes the link. */
static horon_status_t wish_for_link(void *arg, int peer, struct horon_error *error)
{
    const struct world_rank *self = arg;
    struct world *world = self->world;
    (void)error;
    world->wishes[(self - world->ranks) * world->size + peer] = true;
    world->wished = true;
    return HORON_OK;
}

void world_make_wished_links(struct world *world)
{
    for (int rank = 0; world->wished && rank < world->size; rank++) {
        for (int peer = 0; peer < world->size; peer++) {
            bool *wish = &world->wishes[rank * world->size + peer];
            if (*wish && !world->ranks[rank].dead && !world->ranks[peer].dead)
                world_link(world, rank, peer);
            *wish = false;
        }
    }
    world->wished = false;
}

static horon_status_t make_link(struct world *world, int rank, int peer, struct horon_link **link)
{
    const struct horon_topology *topology = &world->ranks[rank].topology;
    bool same_host = topology->host_of[rank] == topology->host_of[peer];
    bool tied = horon_topology_parent(topology, rank) == peer ||
                horon_topology_parent(topology, peer) == rank;
    if (same_host && tied) {
        int self = topology->local_rank_of[rank], other = topology->local_rank_of[peer];
        int member = self == 0 ? other : self;
        const struct horon_host *host = &world->ranks[rank].host;
        return horon_link_ring_create(horon_host_ring(host, member, self != 0),
                                      horon_host_ring(host, member, self == 0),
                                      HORON_RING_DATA_BYTES, NULL, link);
    }
    const bool is_made = world->rings[peer * world->size + rank]; /* by one that has joined */
    if (!same_host && (is_made || horon_topology_linked(topology, rank, peer)))
        return horon_link_ring_create(ring_between(world, rank, peer),
                                      ring_between(world, peer, rank), RING_BYTES, NULL, link);
    return HORON_OK;
}

static void wrap_links(const struct world *world, struct horon_link **links)
{
    for (int peer = 0; world->wrap && peer < world->size; peer++)
        if (links[peer])
            links[peer] = world->wrap(links[peer]);
}

static horon_status_t make_arenas(void *arg, struct horon_engine_team *team,
                                  struct horon_error *error)
{
    struct world *world = ((struct world_rank *)arg)->world;
    return world->make_arenas(world, team, error);
}

horon_status_t world_make_links(struct world *world, int rank, struct horon_link **links)
{
    horon_status_t status = HORON_OK;
    for (int peer = 0; peer < world->size && status == HORON_OK; peer++)
        if (peer != rank)
            status = make_link(world, rank, peer, &links[peer]);
    wrap_links(world, links);
    return status;
}

horon_status_t world_make_engine(struct world *world, int rank, struct horon_error *error)
{
    struct horon_link **links = calloc((size_t)world->size, sizeof *links);
    horon_status_t status = world_make_links(world, rank, links);
    horon_owner_take(&world->ranks[rank].owner);
    struct horon_engine_options options = {
        .config = &world->config,
        .topology = &world->ranks[rank].topology,
        .host = &world->ranks[rank].host,
        .links = links,
        .generation = world->generation,
        .owner = &world->ranks[rank].owner,
        .backends = world->backends,
        .backend_count = world->backend_count,
        .now_ns = world_now,
        .now_arg = world,
        .log = &world->log,
        .ended = world_release,
        .release = world_release,
        .connect = world->connect ? world->connect : wish_for_link,
        .arg = &world->ranks[rank],
        .make_arenas = make_arenas,
    };
    if (status == HORON_OK)
        status = horon_engine_create(&options, &world->ranks[rank].engine, error);
    else
        for (int peer = 0; peer < world->size; peer++)
            if (links[peer])
                links[peer]->ops->destroy(links[peer]);
    free(links);
    return status;
}

struct world *world_create_bare(const int *host_sizes, int host_count, const char *const *settings,
                                uint64_t seed)
{
    struct world *world = calloc(1, sizeof *world);
    struct horon_error error = {0};
    world->seed = seed;
    world->generation = HORON_GENERATION_FIRST;
    world->host_count = host_count;
    for (int h = 0; h < host_count; h++)
        world->size += host_sizes[h];
    horon_status_t status = horon_config_load(&world->config, settings, NULL, &error);
    if (status != HORON_OK)
        fprintf(stderr, "%s\n", error.text);
    assert(status == HORON_OK);
    world->log = (struct horon_log){.level = HORON_LOG_ERROR, .rank = -1};
    world->ranks = calloc((size_t)world->size, sizeof *world->ranks);
    world->ring_count = (size_t)world->size * (size_t)world->size;
    world->rings = calloc(world->ring_count, sizeof *world->rings);
    world->wishes = calloc(world->ring_count, sizeof *world->wishes);
    make_topologies(world, host_sizes);
    make_hosts(world, host_sizes);
    for (int rank = 0; rank < world->size; rank++) {
        make_rank_host(world, &world->ranks[rank]);
        horon_request_pool_init(&world->ranks[rank].pool);
        world->ranks[rank].pool.limit = (size_t)world->config.inflight_max;
    }
    return world;
}

void world_put_machine(struct world *world, int host, struct horon_machine machine)
{
    const struct horon_topology *one = &world->ranks[0].topology;
    for (int rank = 0; rank < world->size; rank++) {
        struct horon_topology *topology = &world->ranks[rank].topology;
        assert(!world->ranks[rank].engine);
        for (int i = 0; i < horon_topology_host_size(one, host); i++)
            horon_topology_put_machine(topology, horon_topology_rank_at(one, host, i), &machine);
    }
}

struct world *world_create(const int *host_sizes, int host_count, const char *const *settings,
                           uint64_t seed)
{
    return world_create_on_cores(host_sizes, host_count, 0, settings, seed);
}

struct world *world_create_on_cores(const int *host_sizes, int host_count, uint32_t cores,
                                    const char *const *settings, uint64_t seed)
{
    struct world *world = world_create_bare(host_sizes, host_count, settings, seed);
    for (int host = 0; host < host_count; host++)
        world_put_machine(world, host, (struct horon_machine){.cores = cores});
    for (int rank = 0; rank < world->size; rank++) {
        struct horon_error error = {0};
        horon_status_t status = world_make_engine(world, rank, &error);
        if (status != HORON_OK)
            fprintf(stderr, "%s\n", error.text);
        assert(status == HORON_OK);
    }
    return world;
}

void world_destroy(struct world *world)
{
    for (int rank = 0; rank < world->size; rank++) {
        if (world->ranks[rank].engine)
            horon_engine_leave(world->ranks[rank].engine);
        horon_engine_destroy(world->ranks[rank].engine);
        horon_request_pool_deinit(&world->ranks[rank].pool);
        horon_topology_deinit(&world->ranks[rank].topology);
    }
    world_free_hosts(world, world->hosts);
    for (size_t i = 0; i < world->ring_count; i++)
        free(world->rings[i]);
    free(world->rings);
    free(world->wishes);
    free(world->ranks);
    free(world);
}

struct horon_request *world_submit(struct world *world, int rank, const horon_descriptor_t *desc)
{
    return world_submit_to(world, rank, horon_engine_job(world->ranks[rank].engine), desc);
}

static struct horon_request *submit(struct world *world, int rank, struct horon_engine_team *team,
                                    const horon_descriptor_t *desc, bool joins)
{
    struct horon_request *request = NULL;
    struct horon_error error = {0};
    struct world_rank *self = &world->ranks[rank];
    horon_descriptor_t of_team = *desc;
    of_team.process_set = (int32_t)team->id;
    horon_status_t status = horon_request_create(
        &self->pool, &of_team, team, horon_engine_names(self->engine), &request, &error);
    if (status != HORON_OK)
        fprintf(stderr, "%s\n", error.text);
    assert(status == HORON_OK);
    if (request->name) { /* a test never has two of a name in flight in one team */
        const bool was_in_flight = atomic_exchange(&request->name->in_flight, true);
        assert(!was_in_flight);
    }
    request->joins = joins;
    request->callback_arg = self; /* no callback: free for world_release() */
    atomic_store(&request->refs, 2);
    atomic_store(&request->state, HORON_REQUEST_FLYING);
    bool posted = horon_engine_post(self->engine, &request->start);
    assert(posted);
    return request;
}

struct horon_request *world_submit_to(struct world *world, int rank, struct horon_engine_team *team,
                                      const horon_descriptor_t *desc)
{
    return submit(world, rank, team, desc, false);
}

struct horon_request *world_join(struct world *world, int rank, struct horon_engine_team *team)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_BARRIER; /* as horon_join() does */
    return submit(world, rank, team, &desc, true);
}

static bool all_ended(struct horon_request *const *requests, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (requests[i] &&
            (atomic_load(&requests[i]->state) & HORON_REQUEST_STATE_MASK) != HORON_REQUEST_ENDED)
            return false;
    return true;
}

bool world_turn_until(struct world *world, struct horon_request *const *requests, size_t count)
{
    int quiet = 0;
    while (!all_ended(requests, count)) {
        bool moved = world->wished;
        world_make_wished_links(world);
        for (int i = 0; i < world->size; i++) {
            struct world_rank *rank = &world->ranks[world_random(world) % (unsigned)world->size];
            if (!rank->dead)
                moved |= horon_engine_progress(rank->engine);
        }
        world->now_ns += 1000;
        quiet = moved ? 0 : quiet + 1;
        if (quiet > QUIET_TURNS)
            return false;
    }
    return true;
}

/* ---- the reference -------------------------------------------------------------------------- */

/* Hosts [first, first + n), n a power of two, pairwise; the result in place of the first. */
static void pairwise(horon_dtype_t dtype, horon_redop_t op, uint8_t *const *sums, int first, int n,
                     uint64_t count)
{
    if (n == 1)
        return;
    pairwise(dtype, op, sums, first, n / 2, count);
    pairwise(dtype, op, sums, first + n / 2, n / 2, count);
    horon_reduce_combine(dtype, op, sums[first], sums[first + n / 2], sums[first], count);
}

void world_expect_allreduce(const struct world *world, horon_dtype_t dtype, horon_redop_t op,
                            double prescale, double postscale, const void *const *inputs,
                            uint64_t count, void *out)
{
    world_expect_over(&world->ranks[0].topology, dtype, op, prescale, postscale, inputs, count,
                      out);
}

void world_expect_over(const struct horon_topology *topology, horon_dtype_t dtype, horon_redop_t op,
                       double prescale, double postscale, const void *const *inputs, uint64_t count,
                       void *out)
{
    const int hosts = topology->host_count;
    horon_redop_t combine = op == HORON_AVERAGE ? HORON_SUM : op;
    size_t bytes = (size_t)count * horon_dtype_bytes(dtype);
    const double ranks = op == HORON_AVERAGE ? topology->size : 1;
    struct horon_reduce_finish finish = {.postscale = postscale, .divisor = ranks};
    struct horon_reduce_finish partial = {.postscale = 1.0, .divisor = 1.0};
    if (hosts == 1) { /* no sum is rounded but the whole: all in one */
        horon_reduce_tree(dtype, combine, inputs, topology->size, prescale, &out, 1, count,
                          &finish);
        return;
    }
    if (dtype == HORON_FLOAT16)
        while (partial.divisor < ranks)
            partial.divisor *= 2;
    finish.divisor /= partial.divisor;
    uint8_t **sums = calloc((size_t)hosts, sizeof *sums);
    const void **of_host = calloc((size_t)topology->size, sizeof *of_host);
    for (int h = 0; h < hosts; h++) {
        const int local_size = horon_topology_host_size(topology, h);
        sums[h] = malloc(bytes + 1);
        void *sum = sums[h];
        for (int i = 0; i < local_size; i++)
            of_host[i] = inputs[horon_topology_rank_at(topology, h, i)];
        horon_reduce_tree(dtype, combine, of_host, local_size, prescale, &sum, 1, count, &partial);
    }
    int block = 1;
    while (hosts % (block * 2) == 0)
        block *= 2;
    for (int first = 0; first < hosts; first += block) {
        pairwise(dtype, combine, sums, first, block, count);
        if (first)
            horon_reduce_combine(dtype, combine, sums[0], sums[first], sums[0], count);
    }
    horon_reduce_finish(dtype, &finish, sums[0], out, count);
    for (int h = 0; h < hosts; h++)
        free(sums[h]);
    free(sums);
    free((void *)of_host);
}
