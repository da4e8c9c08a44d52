/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh.h"

#include "wrapped_link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static horon_status_t ignore_control(void *arg, int peer, const void *bytes, size_t byte_count,
                                     struct horon_error *error)
{
    (void)arg;
    (void)peer;
    (void)bytes;
    (void)byte_count;
    (void)error;
    return HORON_OK;
}

struct horon_mux_options mesh_options(size_t eager_bytes, size_t eager_total_bytes)
{
    return (struct horon_mux_options){
        .eager_bytes = eager_bytes,
        .eager_total_bytes = eager_total_bytes,
        .control_bytes_max = 100000,
        .generation = 1,
        .on_control = ignore_control,
    };
}

static void mesh_names(struct mesh *mesh, int size)
{
    assert_in_range(size, 1, MESH_SIZE_MAX);
    *mesh = (struct mesh){.size = size};
    for (int r = 0; r < size; r++)
        snprintf(mesh->names[r], sizeof mesh->names[r], "rank %d (host-%d)", r, r);
}

static void mesh_add(struct mesh *mesh, int rank, int peer, struct horon_link *link,
                     const struct horon_mux_options *options)
{
    struct horon_mux_options own = *options;
    own.peer = peer;
    own.peer_name = mesh->names[peer];
    assert_int_equal(horon_mux_create(link, &own, &mesh->mux[rank][peer]), HORON_OK);
}

/* What becomes of a ring before a mux has it. @p arg is the caller's */
typedef struct horon_link *(*dress_fn_t)(struct mesh *mesh, struct horon_link *ring, pid_t arg);

static void create_rings(struct mesh *mesh, int size, size_t data_bytes,
                         const struct horon_mux_options *options, dress_fn_t dress, pid_t arg)
{
    mesh_names(mesh, size);
    for (int r = 0; r < size * size; r++) {
        struct horon_ring *ring = aligned_alloc(64, (horon_ring_bytes(data_bytes) + 63) & ~63ul);
        assert_non_null(ring);
        memset(ring, 0, horon_ring_bytes(data_bytes));
        mesh->ring[r / size][r % size] = ring;
    }
    for (int r = 0; r < size; r++) {
        for (int p = 0; p < size; p++) {
            struct horon_link *link = NULL;
            if (r == p)
                continue;
            assert_int_equal(
                horon_link_ring_create(mesh->ring[r][p], mesh->ring[p][r], data_bytes, NULL, &link),
                HORON_OK);
            mesh_add(mesh, r, p, dress(mesh, link, arg), options);
        }
    }
}

static struct horon_link *leave(struct mesh *mesh, struct horon_link *ring, pid_t arg)
{
    (void)mesh, (void)arg;
    return ring;
}

static struct horon_link *lend(struct mesh *mesh, struct horon_link *ring, pid_t pid)
{
    if (!mesh->lends)
        mesh->lends = horon_alive_hold(&mesh->alive);
    assert_true(mesh->lends);
    horon_link_ring_lend(ring, pid, &mesh->alive);
    return ring;
}

static struct horon_link *wrap(struct mesh *mesh, struct horon_link *ring, pid_t arg)
{
    (void)mesh, (void)arg;
    return wrapped_link_create(ring);
}

void mesh_create_rings(struct mesh *mesh, int size, size_t data_bytes,
                       const struct horon_mux_options *options)
{
    create_rings(mesh, size, data_bytes, options, leave, 0);
}

void mesh_create_lending(struct mesh *mesh, int size, size_t data_bytes,
                         const struct horon_mux_options *options, pid_t pid)
{
    create_rings(mesh, size, data_bytes, options, lend, pid);
}

void mesh_create_wrapped(struct mesh *mesh, int size, size_t data_bytes,
                         const struct horon_mux_options *options)
{
    create_rings(mesh, size, data_bytes, options, wrap, 0);
}

void mesh_tcp_pair(int sockets[2])
{
    const struct sockaddr_in any = {.sin_family = AF_INET,
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in bound;
    socklen_t bytes = sizeof bound;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(listener >= 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&bound, &bytes), 0);
    sockets[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(sockets[0] >= 0);
    assert_int_equal(connect(sockets[0], (struct sockaddr *)&bound, sizeof bound), 0);
    sockets[1] = accept(listener, NULL, NULL);
    assert_true(sockets[1] >= 0);
    close(listener);
}

void mesh_create_tcp(struct mesh *mesh, int size, const struct horon_mux_options *options)
{
    mesh_names(mesh, size);
    for (int r = 0; r < size; r++) {
        for (int p = 0; p < r; p++) {
            int sockets[2];
            struct horon_link *link = NULL;
            struct horon_error error = {0};
            mesh_tcp_pair(sockets);
            assert_int_equal(horon_link_tcp_create(sockets[0], 10000, &link, &error), HORON_OK);
            mesh_add(mesh, r, p, link, options);
            assert_int_equal(horon_link_tcp_create(sockets[1], 10000, &link, &error), HORON_OK);
            mesh_add(mesh, p, r, link, options);
        }
    }
}

void mesh_destroy(struct mesh *mesh)
{
    for (int r = 0; r < mesh->size; r++) {
        for (int p = 0; p < mesh->size; p++)
            horon_mux_destroy(mesh->mux[r][p]);
    }
    for (int r = 0; r < mesh->size; r++) {
        for (int p = 0; p < mesh->size; p++)
            free(mesh->ring[r][p]);
    }
    if (mesh->lends)
        horon_alive_let_go(&mesh->alive);
}

static bool progress_one(struct mesh *mesh, int rank, int peer)
{
    bool moved = false;
    struct horon_error error = {0};
    if (mesh->mux[rank][peer] && horon_mux_progress(mesh->mux[rank][peer], &moved, &error))
        fail_msg("rank %d: %s", rank, error.text);
    return moved;
}

bool mesh_progress(struct mesh *mesh)
{
    bool moved = false;
    for (int r = 0; r < mesh->size; r++) {
        for (int p = 0; p < mesh->size; p++)
            moved = progress_one(mesh, r, p) || moved;
    }
    return moved;
}

bool mesh_progress_any(struct mesh *mesh, struct seeded *seeded)
{
    const int rank = (int)seeded_below(seeded, (uint64_t)mesh->size);
    const int peer = (int)seeded_below(seeded, (uint64_t)mesh->size);
    return progress_one(mesh, rank, peer);
}

void mesh_settle(struct mesh *mesh)
{
    while (mesh_progress(mesh))
        continue;
}
