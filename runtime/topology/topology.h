/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank is where: hosts, and the ranks on each. Plain data and pure questions, made once by
 * boot. Hosts are numbered by their lowest rank; local ranks count in rank order.
 */
#ifndef HORON_TOPOLOGY_TOPOLOGY_H
#define HORON_TOPOLOGY_TOPOLOGY_H

#include "status.h"

#include <stdbool.h>
#include <stdint.h>

/** The generation of a job's first membership; 0 is none, as fresh memory has it. */
#define HORON_GENERATION_FIRST UINT32_C(1)

/** The machine that a host is on; containers on it are hosts of their own. */
struct horon_machine {
    uint64_t id;    /* 0: not known, and no other host is on it */
    uint32_t cores; /* the fewest that a rank of the host sees; 0: not known */
};

struct horon_topology {
    int rank, size;
    int host_count;
    int *host_of;          /* [size] host of a rank */
    int *local_rank_of;    /* [size] */
    int *host_first;       /* [host_count + 1] into host_ranks */
    int *host_ranks;       /* [size] ranks by host, in rank order within each */
    char (*host_name)[64]; /* [host_count] */
    /* [host_count] what the ranks of each said */
    struct horon_machine *machine_of;
};

/**
 * Builds the tables from @p leader_of: for each rank the lowest rank that it shares memory with.
 * @param names [size] host name of each rank; a host is called as its leader says. Copied; NULL:
 * the caller fills host_name
 * @return OK | ERR_MEMORY | ERR_PROTO, leader_of is no partition
 */
horon_status_t horon_topology_init(struct horon_topology *topology, int rank, int size,
                                   const int *leader_of, const char (*names)[64],
                                   struct horon_error *error);
/** What @p rank says of its machine: for all ranks, or nothing is known. */
void horon_topology_put_machine(struct horon_topology *topology, int rank,
                                const struct horon_machine *machine);
/**
 * Of some ranks of @p job, in an order of their own, by which they are numbered. Hosts count by
 * their first one, and are on the machines that the job's are on. @param ranks [size] each once,
 * the job's own rank among them
 * @return OK | ERR_MEMORY
 */
horon_status_t horon_topology_of(const struct horon_topology *job, const int *ranks, int size,
                                 struct horon_topology *topology_out, struct horon_error *error);
void horon_topology_deinit(struct horon_topology *topology);

static inline int horon_topology_host_size(const struct horon_topology *topology, int host)
{
    return topology->host_first[host + 1] - topology->host_first[host];
}

/** Rank with local rank @p local_rank on @p host. */
static inline int horon_topology_rank_at(const struct horon_topology *topology, int host,
                                         int local_rank)
{
    return topology->host_ranks[topology->host_first[host] + local_rank];
}

/** Is @p rank on the host of this rank? */
static inline bool horon_topology_is_here(const struct horon_topology *topology, int rank)
{
    return topology->host_of[rank] == topology->host_of[topology->rank];
}

/** Rank with local rank @p local_rank on the host of this rank. */
static inline int horon_topology_rank_here(const struct horon_topology *topology, int local_rank)
{
    return horon_topology_rank_at(topology, topology->host_of[topology->rank], local_rank);
}

/** The lowest rank of @p host. */
static inline int horon_topology_leader(const struct horon_topology *topology, int host)
{
    return topology->host_ranks[topology->host_first[host]];
}

/** Most ranks on one host. */
int horon_topology_host_size_max(const struct horon_topology *topology);

/** Is there a machine with more of these ranks than cores? They take turns there, and the ranks of
 * other machines wait for them anyway. */
bool horon_topology_is_crowded(const struct horon_topology *topology);

/**
 * The control tree: ranks below their host's leader, leaders in a binomial tree below the leader of
 * host 0. @return the parent of @p rank, or -1 for the root
 */
int horon_topology_parent(const struct horon_topology *topology, int rank);

/** Fills @p children [size - 1] in rank order. @return how many */
int horon_topology_children(const struct horon_topology *topology, int rank, int *children);

/**
 * Do ranks @p a and @p b (on different hosts) ever exchange frames? They do if they are neighbours
 * in the control tree, or carry the same segment: with K = host_size_max, segment k of a batch is
 * carried on each host by its local rank k mod host size. Symmetric.
 */
bool horon_topology_linked(const struct horon_topology *topology, int a, int b);

#endif
