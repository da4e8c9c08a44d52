/* SPDX-License-Identifier: Apache-2.0 */
/* Of tests of meshes: a store in memory, ranks that are threads, and what a test plays of others.
 */
#ifndef HORON_TEST_MESH_WORLD_H
#define HORON_TEST_MESH_WORLD_H

#include "boot/gloo/mesh.h"

#include "../../../count_fds.h"
#include "alloc.h"
#include "clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RANKS_MAX = 32 };

static const struct horon_gloo_wait no_limit = {.deadline_ns = UINT64_MAX};

struct world {
    struct horon_gloo_hash *hash;
    struct horon_gloo_store *others; /* of whatever the test plays */
    int warnings;
    char last[256];
    char waits[256];  /* the warning of a rank that still waits */
    _Atomic int slow; /* how many there were; only one rank says so at a time */
    struct horon_log log;
    struct horon_error error;
    int descriptors; /* before */
};

static inline void note(void *arg, horon_log_level_t level, const char *text)
{
    struct world *world = arg;
    (void)level;
    world->warnings++;
    snprintf(world->last, sizeof world->last, "%s", text);
    if (!strstr(text, "still waiting"))
        return;
    snprintf(world->waits, sizeof world->waits, "%s", text);
    world->slow++;
}

struct rank {
    struct horon_gloo_mesh_options options;
    int sockets[RANKS_MAX];
    horon_status_t status;
    struct horon_error error;
    pthread_t thread;
};

static inline int make_world(void **state)
{
    static struct world world;
    memset(&world, 0, sizeof world);
    world.descriptors = count_fds();
    world.hash = horon_gloo_hash_create();
    world.others = horon_gloo_hash_store(world.hash);
    world.log = (struct horon_log){.fn = note, .arg = &world, .level = HORON_LOG_WARN};
    *state = &world;
    return world.others ? 0 : -1;
}

static inline int end_world(void **state)
{
    struct world *world = *state;
    horon_gloo_store_destroy(world->others);
    horon_gloo_hash_destroy(world->hash);
    return count_fds() == world->descriptors ? 0 : -1; /* on whatever path */
}

static inline void *run_rank(void *arg)
{
    struct rank *rank = arg;
    rank->status = horon_gloo_mesh_connect(&rank->options, rank->sockets, &rank->error);
    return NULL;
}

static inline void start(struct world *world, struct rank *rank, enum horon_gloo_era era,
                         int number, int size)
{
    memset(rank, 0, sizeof *rank);
    rank->options = (struct horon_gloo_mesh_options){
        .store = horon_gloo_hash_store(world->hash),
        .rank = number,
        .size = size,
        .era = era,
        .interfaces = "",
        .deadline_ns = horon_clock_deadline(horon_clock_ns(), 20000),
        .log = &world->log,
    };
    assert_non_null(rank->options.store);
}

static inline void go(struct rank *rank)
{
    assert_int_equal(pthread_create(&rank->thread, NULL, run_rank, rank), 0);
}

static inline horon_status_t join(struct rank *rank)
{
    assert_int_equal(pthread_join(rank->thread, NULL), 0);
    horon_gloo_store_destroy(rank->options.store);
    return rank->status;
}

static inline void close_sockets(struct rank *rank)
{
    for (int i = 0; i < rank->options.size; i++)
        horon_fd_close(&rank->sockets[i]);
}

/* Waits for what rank @p rank publishes. @return where it listens, for rank @p peer */
static inline struct horon_gloo_peer published(struct world *world, enum horon_gloo_era era,
                                               int size, int rank, int peer)
{
    struct horon_gloo_value value;
    struct horon_gloo_peer read;
    char key[16];
    snprintf(key, sizeof key, "%d", rank);
    while (horon_gloo_store_get(world->others, key, &value, &no_limit, NULL) == HORON_AGAIN)
        poll(NULL, 0, 1);
    assert_int_equal(
        horon_gloo_peer_read(era, value.bytes, value.count, size, peer, rank, &read, &world->error),
        HORON_OK);
    horon_free(value.bytes);
    return read;
}

static inline void publish(struct world *world, enum horon_gloo_era era, int size, int rank,
                           const char *host, int port)
{
    uint8_t bytes[2048];
    char key[16];
    struct horon_address listeners[RANKS_MAX];
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    for (int i = 0; i < size; i++)
        assert_true(horon_address_parse(host, port, &listeners[i]));
    horon_gloo_publish(&out, era, size, "there", listeners);
    assert_true(out.ok);
    snprintf(key, sizeof key, "%d", rank);
    assert_int_equal(
        horon_gloo_store_set(world->others, key, bytes, out.used, &no_limit, &world->error),
        HORON_OK);
}

static inline int connect_to(const struct horon_address *address)
{
    const int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, &address->any, address->bytes), 0);
    return fd;
}

static inline int connect_from(const char *host, const struct horon_address *address)
{
    struct horon_address from;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(horon_address_parse(host, 0, &from));
    assert_int_equal(bind(fd, &from.any, from.bytes), 0);
    assert_int_equal(connect(fd, &address->any, address->bytes), 0);
    return fd;
}

static inline void expect_failure(struct rank *rank, horon_status_t status, const char *word)
{
    assert_int_equal(rank->status, status);
    if (!strstr(rank->error.text, word))
        print_message("%s\n", rank->error.text);
    assert_non_null(strstr(rank->error.text, word));
}

#define IN_WORLD(test) cmocka_unit_test_setup_teardown(test, make_world, end_world)

#endif
