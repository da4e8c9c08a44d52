/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network between hosts. Each rank's end of a link is the product's ring link; the other sides
 * of its two rings are held here, where bytes wait until their virtual time has come. So a link
 * keeps its order, takes and gives pieces of any size, is full at times, and ends as a socket does:
 * after what was sent, or after a part of it when the sender was killed.
 *
 * Two ranks of a host that the tree does not join get rings when one of them asks (rings.c of the
 * runtime); nothing is on its way there.
 */
#undef NDEBUG
#include "simulation/network.h"
#include "simulation/simulation.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CHUNKS_MAX 16
#define FLIGHT_BYTES 8192

/* Bytes from one rank to another, between the sender's ring and the receiver's. */
struct pipe {
    struct horon_ring *out, *in; /* the sender's; the receiver's. Owned */
    struct horon_link *tap;      /* this side of the sender's rings; made for (sender, receiver) */
    uint8_t bytes[FLIGHT_BYTES];
    size_t head, used; /* in bytes[] */
    struct {
        uint64_t at;
        size_t bytes;
    } chunks[CHUNKS_MAX];
    int first, count;
    uint64_t latest; /* when the last chunk arrives */
    bool end_comes, ended, cut;
    uint64_t end_at;
};

struct sim_network {
    struct simulation *sim;
    bool has_end[SIM_RANKS_MAX][SIM_RANKS_MAX]; /* has the first one its end of the link? */
    struct pipe *pipes[SIM_RANKS_MAX][SIM_RANKS_MAX];
    struct horon_ring *rings[SIM_RANKS_MAX][SIM_RANKS_MAX]; /* of one host; NULL: not asked for */
    size_t ring_bytes, window;
    uint64_t latency, jitter;
    size_t piece_max;
};

static struct horon_ring *make_ring(size_t data_bytes)
{
    size_t bytes = (horon_ring_bytes(data_bytes) + 63) / 64 * 64;
    struct horon_ring *ring = aligned_alloc(64, bytes);
    assert(ring);
    memset(ring, 0, bytes);
    return ring;
}

static void make_pipe(struct sim_network *network, int from, int to)
{
    struct pipe *pipe = calloc(1, sizeof *pipe);
    assert(pipe);
    pipe->out = make_ring(network->ring_bytes);
    pipe->in = make_ring(network->ring_bytes);
    network->pipes[from][to] = pipe;
}

struct sim_network *sim_network_create(struct simulation *sim)
{
    struct sim_network *network = calloc(1, sizeof *network);
    assert(network);
    network->sim = sim;
    network->ring_bytes = (size_t)64 << sim_below(sim, 8);
    network->window = (size_t)1 + sim_below(sim, sim_one_in(sim, 2) ? 256 : FLIGHT_BYTES);
    network->latency = sim_below(sim, (uint64_t)1000 << sim_below(sim, 11));
    network->jitter = 1 + sim_below(sim, (uint64_t)1000 << sim_below(sim, 11));
    network->piece_max = (size_t)1 + sim_below(sim, sim_one_in(sim, 3) ? 40 : 4096);
    size_t most = network->piece_max * CHUNKS_MAX / 2; /* on the way at once */
    most = most < network->window ? most : network->window;
    sim->narrow = most < 1024 || network->ring_bytes < 1024;
    const struct horon_topology *topology = &sim->world->ranks[0].topology;
    for (int a = 0; a < sim->size; a++)
        for (int b = 0; b < sim->size; b++)
            if (topology->host_of[a] != topology->host_of[b]) /* perhaps never used */
                make_pipe(network, a, b);
    for (int a = 0; a < sim->size; a++)
        for (int b = 0; b < sim->size; b++)
            if (network->pipes[a][b]) {
                horon_status_t status =
                    horon_link_ring_create(network->pipes[b][a]->in, network->pipes[a][b]->out,
                                           network->ring_bytes, NULL, &network->pipes[a][b]->tap);
                assert(status == HORON_OK);
            }
    return network;
}

void sim_network_destroy(struct sim_network *network)
{
    for (int a = 0; a < SIM_RANKS_MAX; a++)
        for (int b = 0; b < SIM_RANKS_MAX; b++)
            if (network->pipes[a][b])
                network->pipes[a][b]->tap->ops->destroy(network->pipes[a][b]->tap);
    for (int a = 0; a < SIM_RANKS_MAX; a++)
        for (int b = 0; b < SIM_RANKS_MAX; b++)
            if (network->pipes[a][b]) {
                free(network->pipes[a][b]->out);
                free(network->pipes[a][b]->in);
                free(network->pipes[a][b]);
            }
    for (int a = 0; a < SIM_RANKS_MAX; a++)
        for (int b = 0; b < SIM_RANKS_MAX; b++)
            free(network->rings[a][b]);
    free(network);
}

static void link_moved(void *arg)
{
    sim_interrupt(arg);
}

static struct horon_link *link_on_host(struct sim_network *network, int rank, int peer)
{
    struct horon_ring **out = &network->rings[rank][peer], **in = &network->rings[peer][rank];
    if (!*out) {
        *out = make_ring(network->sim->local_ring_bytes);
        *in = make_ring(network->sim->local_ring_bytes);
    }
    network->has_end[rank][peer] = true;
    return sim_make_late_ring(&network->sim->ranks[rank], peer, *out, *in);
}

bool sim_network_crosses(const struct sim_network *network, int rank, int peer)
{
    return network->pipes[rank][peer] != NULL;
}

struct horon_link *sim_network_link(struct sim_network *network, int rank, int peer)
{
    struct horon_link *link = NULL;
    struct horon_ring_wake hooks = {
        .written = link_moved, .room = link_moved, .arg = &network->sim->ranks[rank]};
    if (!sim_network_crosses(network, rank, peer))
        return link_on_host(network, rank, peer);
    horon_status_t status =
        horon_link_ring_create(network->pipes[rank][peer]->out, network->pipes[peer][rank]->in,
                               network->ring_bytes, &hooks, &link);
    assert(status == HORON_OK);
    network->has_end[rank][peer] = true;
    return link;
}

bool sim_network_has_end(const struct sim_network *network, int rank, int peer)
{
    return network->has_end[rank][peer];
}

/* ---- on the way ----------------------------------------------------------------------------- */

/* Takes one piece of what @p from wrote. @return false: nothing there, or no room on the way */
static bool take_piece(struct sim_network *network, int from, int to)
{
    struct simulation *sim = network->sim;
    struct pipe *pipe = network->pipes[from][to];
    uint8_t piece[4096];
    size_t room = network->window - pipe->used;
    if (pipe->count == CHUNKS_MAX || room == 0 || pipe->end_comes)
        return false;
    if (room > network->piece_max)
        room = network->piece_max;
    struct iovec vector = {.iov_base = piece, .iov_len = 1 + sim_below(sim, room)};
    size_t got = 0;
    struct horon_error error;
    horon_status_t status = pipe->tap->ops->recv(pipe->tap, &vector, 1, &got, &error);
    if (status == HORON_AGAIN)
        return false;
    if (status < 0) {
        pipe->end_comes = true;
        pipe->end_at = pipe->latest > sim->now ? pipe->latest : sim->now;
        sim_event(sim, pipe->end_at, SIM_EVENT_DELIVER, from, to);
        return false;
    }
    for (size_t i = 0; i < got; i++)
        pipe->bytes[(pipe->head + pipe->used + i) % FLIGHT_BYTES] = piece[i];
    pipe->used += got;
    uint64_t at = sim->now + network->latency + sim_below(sim, network->jitter);
    pipe->latest = at > pipe->latest ? at : pipe->latest;
    pipe->chunks[(pipe->first + pipe->count) % CHUNKS_MAX].at = pipe->latest;
    pipe->chunks[(pipe->first + pipe->count) % CHUNKS_MAX].bytes = got;
    pipe->count++;
    sim_event(sim, pipe->latest, SIM_EVENT_DELIVER, from, to);
    return true;
}

static void pump(struct sim_network *network, int from, int to)
{
    struct pipe *pipe = network->pipes[from][to];
    bool took = false;
    if (!pipe || pipe->cut)
        return;
    while (take_piece(network, from, to))
        took = true;
    struct sim_rank *sender = &network->sim->ranks[from];
    if (took && sender->armed[to])
        sim_wake(sender);
}

/* @return bytes that the receiver's ring took, at most @p bytes */
static size_t push(struct sim_network *network, int from, int to, size_t bytes)
{
    struct pipe *pipe = network->pipes[from][to];
    struct horon_link *tap = network->pipes[to][from]->tap; /* faces the receiver */
    size_t first = FLIGHT_BYTES - pipe->head < bytes ? FLIGHT_BYTES - pipe->head : bytes;
    struct iovec vector[2] = {{pipe->bytes + pipe->head, first}, {pipe->bytes, bytes - first}};
    size_t sent = 0;
    struct horon_error error;
    if (tap->ops->send(tap, vector, bytes > first ? 2 : 1, &sent, &error) != HORON_OK)
        return 0;
    pipe->head = (pipe->head + sent) % FLIGHT_BYTES;
    pipe->used -= sent;
    return sent;
}

/* @return did the receiver get anything? */
static bool arrive(struct sim_network *network, int from, int to)
{
    struct pipe *pipe = network->pipes[from][to];
    bool any = false;
    while (pipe->count && pipe->chunks[pipe->first].at <= network->sim->now) {
        size_t bytes = pipe->chunks[pipe->first].bytes;
        size_t sent = push(network, from, to, bytes);
        any |= sent > 0;
        sim_trace(network->sim, 'd', (uint64_t)(from * 16 + to), sent);
        pipe->chunks[pipe->first].bytes -= sent;
        if (sent < bytes)
            return any;
        pipe->first = (pipe->first + 1) % CHUNKS_MAX;
        pipe->count--;
    }
    if (pipe->count == 0 && pipe->end_comes && !pipe->ended && pipe->end_at <= network->sim->now) {
        pipe->ended = true;
        atomic_store(&pipe->in->writer_closed, 1);
        any = true;
    }
    return any;
}

void sim_network_deliver(struct sim_network *network, int from, int to)
{
    if (arrive(network, from, to))
        sim_wake(&network->sim->ranks[to]);
    pump(network, from, to);
}

void sim_network_turned(struct sim_network *network, int rank)
{
    for (int peer = 0; peer < network->sim->size; peer++) {
        if (!network->pipes[rank][peer])
            continue;
        pump(network, rank, peer);
        if (arrive(network, peer, rank))
            sim_wake(&network->sim->ranks[rank]);
        pump(network, peer, rank);
    }
}

bool sim_network_readable(const struct sim_network *network, int rank, int peer)
{
    const struct pipe *pipe = network->pipes[peer][rank];
    return pipe && (atomic_load(&pipe->in->written) != atomic_load(&pipe->in->read) ||
                    atomic_load(&pipe->in->writer_closed));
}

bool sim_network_writable(const struct sim_network *network, int rank, int peer)
{
    const struct pipe *pipe = network->pipes[rank][peer];
    return pipe &&
           atomic_load(&pipe->out->written) - atomic_load(&pipe->out->read) < network->ring_bytes;
}

/* Nothing was sent, so the end is all that comes. On one host nothing is closed: there the peer
 * reads that the rank leaves, and is told when its process is gone. */
void sim_network_refuse(struct sim_network *network, int rank, int peer)
{
    struct simulation *sim = network->sim;
    struct pipe *pipe = network->pipes[rank][peer];
    if (!pipe || network->has_end[rank][peer] || !network->has_end[peer][rank] || pipe->end_comes)
        return;
    assert(pipe->count == 0);
    pipe->end_comes = true;
    pipe->end_at = sim->now + network->latency;
    sim_event(sim, pipe->end_at, SIM_EVENT_DELIVER, rank, peer);
}

void sim_network_kill(struct sim_network *network, int rank)
{
    struct simulation *sim = network->sim;
    for (int peer = 0; peer < sim->size; peer++) {
        struct pipe *pipe = network->pipes[rank][peer];
        if (!pipe || pipe->end_comes)
            continue;
        if (sim_one_in(sim, 2)) /* what the kernel had taken still goes out */
            pump(network, rank, peer);
        pipe->cut = true;
        while (pipe->count && sim_one_in(sim, 2)) { /* or is lost from the end on */
            pipe->count--;
            pipe->used -= pipe->chunks[(pipe->first + pipe->count) % CHUNKS_MAX].bytes;
        }
        pipe->end_comes = true;
        uint64_t at = sim->now + network->latency + sim_below(sim, 20 * SIM_MS);
        pipe->end_at = at > pipe->latest ? at : pipe->latest;
        sim_event(sim, pipe->end_at, SIM_EVENT_DELIVER, rank, peer);
    }
}
