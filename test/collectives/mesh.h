/* SPDX-License-Identifier: Apache-2.0 */
/* Every rank of a small world joined to every other by a mux, in one thread: over rings in heap
 * memory or over TCP on the loopback interface. */
#ifndef HORON_TEST_COLLECTIVES_MESH_H
#define HORON_TEST_COLLECTIVES_MESH_H

#include "worlds.h"

#include "alive.h"
#include "link/mux.h"

#define MESH_SIZE_MAX 17

struct mesh {
    int size;
    struct horon_mux *mux[MESH_SIZE_MAX][MESH_SIZE_MAX];   /* [rank][peer]; NULL on the diagonal */
    struct horon_ring *ring[MESH_SIZE_MAX][MESH_SIZE_MAX]; /* [from][to] */
    char names[MESH_SIZE_MAX][64];                         /* "rank 3 (host-3)" */
    bool lends;
    struct horon_alive alive; /* all are of one process */
};

/** What a mux of the tests has unless the test says otherwise. */
struct horon_mux_options mesh_options(size_t eager_bytes, size_t eager_total_bytes);

/** @param data_bytes of each ring; @param options peer and peer_name are filled in; arg is passed
 * on. */
void mesh_create_rings(struct mesh *mesh, int size, size_t data_bytes,
                       const struct horon_mux_options *options);
/** Likewise, and each ring lends, its peer being process @p pid: this one, or none. */
void mesh_create_lending(struct mesh *mesh, int size, size_t data_bytes,
                         const struct horon_mux_options *options, pid_t pid);
/** Likewise, each link wrapped by one that changes and reframes its bytes. */
void mesh_create_wrapped(struct mesh *mesh, int size, size_t data_bytes,
                         const struct horon_mux_options *options);
void mesh_create_tcp(struct mesh *mesh, int size, const struct horon_mux_options *options);
void mesh_destroy(struct mesh *mesh);

/** Lets each mux progress once. @return true if anything moved. Fails the test on an error. */
bool mesh_progress(struct mesh *mesh);
/** Lets one mux progress, chosen by the seed. */
bool mesh_progress_any(struct mesh *mesh, struct seeded *seeded);
/** Until nothing moves. */
void mesh_settle(struct mesh *mesh);

/** Two connected TCP sockets on the loopback interface. */
void mesh_tcp_pair(int sockets[2]);

#endif
