/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of which rank is where, built from one array: the lowest rank that each rank shares memory
 * with. Hosts are numbered in the order of those lowest ranks, so the tables are the same on every
 * rank that was given the same array. Nothing here looks at the machine.
 *
 * The control tree, for hosts of 3, 1 and 2 ranks:      0
 *                                                   / | \ \
 *                                                  1  2  3  4       hosts {0 1 2} {3} {4 5}
 *                                                           |       a leader's parent clears the
 *                                                           5       lowest bit of its host number
 */
#include "topology/topology.h"

#include "alloc.h"

#include <assert.h>
#include <string.h>

static horon_status_t check_partition(int size, const int *leader_of, struct horon_error *error)
{
    for (int r = 0; r < size; r++) {
        int leader = leader_of[r];
        if (leader < 0 || leader > r || leader_of[leader] != leader)
            return horon_error_set(error, HORON_ERR_PROTO,
                                   "rank %d says that it shares memory with rank %d, which is not "
                                   "the lowest rank of a host",
                                   r, leader);
    }
    return HORON_OK;
}

static bool allocate(struct horon_topology *topology, int size, int host_count)
{
    topology->host_of = horon_zalloc((size_t)size, sizeof(int));
    topology->local_rank_of = horon_zalloc((size_t)size, sizeof(int));
    topology->host_first = horon_zalloc((size_t)host_count + 1, sizeof(int));
    topology->host_ranks = horon_zalloc((size_t)size, sizeof(int));
    topology->host_name = horon_zalloc((size_t)host_count, sizeof topology->host_name[0]);
    topology->machine_of = horon_zalloc((size_t)host_count, sizeof *topology->machine_of);
    return topology->host_of && topology->local_rank_of && topology->host_first &&
           topology->host_ranks && topology->host_name && topology->machine_of;
}

/* Numbers the hosts, and the ranks of each, in rank order. */
static void number_hosts(struct horon_topology *topology, const int *leader_of,
                         const char (*names)[64])
{
    int host_count = 0;
    for (int r = 0; r < topology->size; r++) {
        int host = leader_of[r] == r ? host_count++ : topology->host_of[leader_of[r]];
        topology->host_of[r] = host;
        /* counted here, summed up below */
        topology->local_rank_of[r] = topology->host_first[host + 1]++;
        if (leader_of[r] == r && names) {
            memcpy(topology->host_name[host], names[r], sizeof names[r]);
            topology->host_name[host][sizeof names[r] - 1] = 0;
        }
    }
    for (int host = 0; host < host_count; host++)
        topology->host_first[host + 1] += topology->host_first[host];
    for (int r = 0; r < topology->size; r++) {
        int first = topology->host_first[topology->host_of[r]];
        topology->host_ranks[first + topology->local_rank_of[r]] = r;
    }
}

horon_status_t horon_topology_init(struct horon_topology *topology, int rank, int size,
                                   const int *leader_of, const char (*names)[64],
                                   struct horon_error *error)
{
    memset(topology, 0, sizeof *topology);
    if (size < 1 || rank < 0 || rank >= size)
        return horon_error_set(error, HORON_ERR_PROTO, "there is no rank %d of %d", rank, size);
    horon_status_t status = check_partition(size, leader_of, error);
    if (status != HORON_OK)
        return status;
    int host_count = 0;
    for (int r = 0; r < size; r++)
        host_count += leader_of[r] == r;
    if (!allocate(topology, size, host_count)) {
        horon_topology_deinit(topology);
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the tables of %d ranks",
                               size);
    }
    topology->rank = rank;
    topology->size = size;
    topology->host_count = host_count;
    number_hosts(topology, leader_of, names);
    assert(topology->host_first[host_count] == size);
    assert(horon_topology_leader(topology, topology->host_of[0]) == 0);
    return HORON_OK;
}

/* The fewest of two counts, of which 0 says nothing. */
static uint32_t fewest(uint32_t a, uint32_t b)
{
    return a && (!b || a < b) ? a : b;
}

void horon_topology_put_machine(struct horon_topology *topology, int rank,
                                const struct horon_machine *machine)
{
    assert(rank >= 0 && rank < topology->size);
    struct horon_machine *ours = &topology->machine_of[topology->host_of[rank]];
    ours->id = machine->id;
    ours->cores = fewest(ours->cores, machine->cores);
}

horon_status_t horon_topology_of(const struct horon_topology *job, const int *ranks, int size,
                                 struct horon_topology *topology_out, struct horon_error *error)
{
    int *leader_of = horon_zalloc((size_t)size, sizeof *leader_of), self = -1;
    char(*names)[64] = horon_zalloc((size_t)size, sizeof *names);
    horon_status_t status = HORON_ERR_MEMORY;
    for (int i = 0; leader_of && names && i < size; i++) {
        assert(ranks[i] >= 0 && ranks[i] < job->size);
        const int host = job->host_of[ranks[i]];
        int leader = 0;
        while (job->host_of[ranks[leader]] != host)
            leader++;
        leader_of[i] = leader;
        memcpy(names[i], job->host_name[host], sizeof names[i]);
        self = ranks[i] == job->rank ? i : self;
    }
    assert(!leader_of || !names || self >= 0);
    if (leader_of && names)
        status = horon_topology_init(topology_out, self, size, leader_of, (const char(*)[64])names,
                                     error);
    else
        horon_error_set(error, status, "no memory for the tables of a team");
    for (int i = 0; status == HORON_OK && i < size; i++)
        horon_topology_put_machine(topology_out, i, &job->machine_of[job->host_of[ranks[i]]]);
    horon_free(leader_of);
    horon_free(names);
    return status;
}

void horon_topology_deinit(struct horon_topology *topology)
{
    horon_free(topology->host_of);
    horon_free(topology->local_rank_of);
    horon_free(topology->host_first);
    horon_free(topology->host_ranks);
    horon_free(topology->host_name);
    horon_free(topology->machine_of);
    memset(topology, 0, sizeof *topology);
}

int horon_topology_host_size_max(const struct horon_topology *topology)
{
    int most = 0;
    for (int host = 0; host < topology->host_count; host++) {
        int ranks = horon_topology_host_size(topology, host);
        most = ranks > most ? ranks : most;
    }
    return most;
}

/* Of the machine of @p host. The host that sees the fewest cores counts: all share them. */
static bool is_full(const struct horon_topology *topology, int host)
{
    const uint64_t id = topology->machine_of[host].id;
    uint32_t cores = 0, ranks = 0;
    for (int other = 0; other < topology->host_count; other++) {
        const struct horon_machine *machine = &topology->machine_of[other];
        if (other != host && (id == 0 || machine->id != id))
            continue;
        cores = fewest(cores, machine->cores);
        ranks += (uint32_t)horon_topology_host_size(topology, other);
    }
    return cores > 0 && ranks > cores;
}

bool horon_topology_is_crowded(const struct horon_topology *topology)
{
    for (int host = 0; host < topology->host_count; host++)
        if (is_full(topology, host))
            return true;
    return false;
}

int horon_topology_parent(const struct horon_topology *topology, int rank)
{
    assert(rank >= 0 && rank < topology->size);
    int host = topology->host_of[rank];
    int leader = horon_topology_leader(topology, host);
    assert(leader <= rank);
    if (rank != leader)
        return leader;
    return host == 0 ? -1 : horon_topology_leader(topology, host & (host - 1));
}

int horon_topology_children(const struct horon_topology *topology, int rank, int *children)
{
    int count = 0;
    for (int r = 0; r < topology->size; r++)
        if (horon_topology_parent(topology, r) == rank)
            children[count++] = r;
    assert(count < topology->size);
    return count;
}

static bool carry_same_segment(const struct horon_topology *topology, int a, int b)
{
    int size_a = horon_topology_host_size(topology, topology->host_of[a]);
    int size_b = horon_topology_host_size(topology, topology->host_of[b]);
    int segments = horon_topology_host_size_max(topology);
    for (int k = topology->local_rank_of[a]; k < segments; k += size_a)
        if (k % size_b == topology->local_rank_of[b])
            return true;
    return false;
}

bool horon_topology_linked(const struct horon_topology *topology, int a, int b)
{
    assert(a >= 0 && a < topology->size);
    assert(b >= 0 && b < topology->size);
    if (topology->host_of[a] == topology->host_of[b])
        return false;
    return horon_topology_parent(topology, a) == b || horon_topology_parent(topology, b) == a ||
           carry_same_segment(topology, a, b);
}
