/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world: N engines in one process and one thread, on hosts as the test likes, over rings in heap
 * memory. The test submits operations to each rank and turns the engines in an order drawn from a
 * seed until all requests have ended.
 */
#ifndef HORON_TEST_WORLD_H
#define HORON_TEST_WORLD_H

#include "engine/engine.h"
#include "engine/pool.h"

struct world_rank {
    struct world *world;
    struct horon_topology topology;
    struct horon_host host;
    struct horon_engine *engine;
    struct horon_owner owner; /* the thread that made the engine, until another one takes it */
    struct horon_request_pool pool;
    bool dead; /* gets no turns any more */
};

struct world_host {
    uint8_t *control;
    uint8_t **arenas;
    size_t control_bytes, arena_bytes; /* whole pages */
    int local_size;
};

struct world {
    int size, host_count;
    struct horon_config config;
    struct horon_log log;
    struct world_rank *ranks;
    struct world_host *hosts;
    void **rings; /* memory of the rings between hosts, and of those made later */
    size_t ring_count;
    uint64_t seed;       /* of the order in which engines turn */
    uint32_t generation; /* of the engines that are made */
    /* [backend_count] set between world_create_bare() and world_make_engine(); NULL: the build's */
    const struct horon_backend *const *backends;
    size_t backend_count;
    /* likewise: puts each link into another; NULL: they stay as they are */
    struct horon_link *(*wrap)(struct horon_link *inside);
    uint64_t now_ns;
    struct world_team *teams; /* teams.h */
    horon_status_t (*make_arenas)(struct world *world, struct horon_engine_team *team,
                                  struct horon_error *error); /* for them */
    /* set likewise: engine_options.connect, whose argument is the struct world_rank that asks;
     * NULL: world_turn_until() makes the links that are asked for */
    horon_status_t (*connect)(void *rank, int peer, struct horon_error *error);
    bool *wishes; /* [size * size] for links, by the rank that asks */
    bool wished;
};

/** @param host_sizes [host_count] ranks of each host; @param settings as in horon_options_t */
struct world *world_create(const int *host_sizes, int host_count, const char *const *settings,
                           uint64_t seed);
/** Likewise; each host is a machine with so many @p cores, perhaps fewer than its ranks. */
struct world *world_create_on_cores(const int *host_sizes, int host_count, uint32_t cores,
                                    const char *const *settings, uint64_t seed);
/** Likewise with topologies, shared memory and hosts, but no engines: the caller makes them. */
struct world *world_create_bare(const int *host_sizes, int host_count, const char *const *settings,
                                uint64_t seed);
/** Tells all ranks of a bare world what machine a host is on; else none of them knows. */
void world_put_machine(struct world *world, int host, struct horon_machine machine);
/** The engine of one rank of a bare world. @return OK | ERR_MEMORY, and the rank has none */
horon_status_t world_make_engine(struct world *world, int rank, struct horon_error *error);
/** The links that a rank has from the start. @param links [size] NULL; those made before it failed
 * are the caller's, too */
horon_status_t world_make_links(struct world *world, int rank, struct horon_link **links);
void world_destroy(struct world *world);

/** Gives each rank's host new shared memory, all zero. @return the old hosts, for
 * world_free_hosts() */
struct world_host *world_renew_hosts(struct world *world);
void world_free_hosts(const struct world *world, struct world_host *hosts);

/** One end of a link that two ranks have not from the start. The other one gets its own with its
 * engine, if that is made later. */
void world_link_end(struct world *world, int rank, int peer);
/** Links two ranks that have no link from the start, if they are not linked yet. */
void world_link(struct world *world, int rank, int peer);

/** Makes the links that engines have asked for, as world_turn_until() does. */
void world_make_wished_links(struct world *world);

/** Submits on one rank. The request is the test's: world_release(). */
struct horon_request *world_submit(struct world *world, int rank, const horon_descriptor_t *desc);
/** Likewise, to a team that it is in. */
struct horon_request *world_submit_to(struct world *world, int rank, struct horon_engine_team *team,
                                      const horon_descriptor_t *desc);
/** This rank joins a team. */
struct horon_request *world_join(struct world *world, int rank, struct horon_engine_team *team);
void world_release(struct horon_request *request);

/** Turns engines until all of @p requests [count] (NULLs skipped) have ended.
 * @return false if nothing moved for long: they hang */
bool world_turn_until(struct world *world, struct horon_request *const *requests, size_t count);

/** Why the job failed as an engine sees it, or OK. @p text_out may be NULL. */
horon_status_t world_failure(const struct horon_engine *engine, const char **text_out);
/** Fails all of an engine's teams, as horon_engine_fail(). */
void world_fail(struct horon_engine *engine, horon_status_t status, const char *text);

/** The next number of the world's seed. */
uint64_t world_random(struct world *world);

/** The reference: what an allreduce must give, bit for bit, along the canonical tree of this world.
 * @param inputs [size] pointers to [count] elements; @p out [count] */
void world_expect_allreduce(const struct world *world, horon_dtype_t dtype, horon_redop_t op,
                            double prescale, double postscale, const void *const *inputs,
                            uint64_t count, void *out);

/** Likewise for the ranks of @p topology, of a second team, say. */
void world_expect_over(const struct horon_topology *topology, horon_dtype_t dtype, horon_redop_t op,
                       double prescale, double postscale, const void *const *inputs, uint64_t count,
                       void *out);

#endif
