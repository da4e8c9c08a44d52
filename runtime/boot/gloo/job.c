/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank among Gloo's ranks first joins a job of its own, alone, for the memory and descriptors
 * that a context needs; then it connects with the others, and the tables of that job become those
 * of all ranks. What they would tell of themselves, Gloo does not say: they are called by the
 * addresses of their connections, and each is on a host of its own.
 */
#include "boot/gloo/job.h"

#include "alloc.h"
#include "boot/gloo/c10d_group.h"
#include "boot/gloo/mesh.h"
#include "boot/identity/identity.h"
#include "clock.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum horon_gloo_era era_of(const struct horon_config *config)
{
    if (config->gloo_era == HORON_GLOO_AUTO)
        return strncmp(config->gloo_store, "http://", 7) == 0 ? HORON_GLOO_ERA_1 : HORON_GLOO_ERA_3;
    return config->gloo_era == HORON_GLOO_E1 ? HORON_GLOO_ERA_1 : HORON_GLOO_ERA_3;
}

static horon_status_t connect_all(struct horon_boot *boot, const struct horon_identity *id,
                                  const struct horon_config *config,
                                  const struct horon_boot_caller *caller, struct horon_log *log,
                                  int *sockets, struct horon_error *error)
{
    const enum horon_gloo_era era = era_of(config);
    const uint64_t deadline_ns = horon_clock_deadline(horon_clock_ns(), config->start_timeout_ms);
    struct horon_gloo_watch watch;
    struct horon_gloo_store_options options = {.url = config->gloo_store,
                                               .prefix = config->gloo_prefix,
                                               .rank = id->rank,
                                               .size = id->size,
                                               .until_torch_2_0 = era == HORON_GLOO_ERA_1,
                                               .serve = id->rank == 0,
                                               .fds = &boot->fds,
                                               .log = log,
                                               .wait = {.deadline_ns = deadline_ns,
                                                        .interrupted = caller->interrupted,
                                                        .arg = caller->interrupted_arg,
                                                        .watch = &watch}};
    horon_gloo_watch_begin(&watch, caller->slow_ns, log);
    assert(!boot->gloo_store);
    horon_status_t status = horon_gloo_store_open(&options, &boot->gloo_store, error);
    if (status != HORON_OK)
        return status;
    const struct horon_gloo_mesh_options mesh = {.store = boot->gloo_store,
                                                 .rank = id->rank,
                                                 .size = id->size,
                                                 .era = era,
                                                 .interfaces = config->interfaces,
                                                 .deadline_ns = deadline_ns,
                                                 .slow_ns = caller->slow_ns,
                                                 .interrupted = caller->interrupted,
                                                 .interrupted_arg = caller->interrupted_arg,
                                                 .fds = &boot->fds,
                                                 .log = log};
    status = horon_gloo_mesh_connect(&mesh, sockets, error);
    horon_gloo_watch_renew(&watch);
    if (status == HORON_OK && era == HORON_GLOO_ERA_1)
        status = horon_gloo_c10d_group_meet(boot->gloo_store, id->rank, &options.wait, error);
    if (status == HORON_OK)
        horon_gloo_store_end_meeting(boot->gloo_store);
    if (status == HORON_ERR_TIMEOUT && strncmp(config->gloo_store, "hash:", 5) == 0)
        horon_text_add(error->text, sizeof error->text, "; ",
                       "hash: is memory of this process, where its threads alone meet: ranks that "
                       "are processes of their own take file:DIR or tcp://HOST:PORT");
    return status;
}

/* Each rank is the only one of its host. */
static horon_status_t make_topology(const struct horon_identity *id, char (*names)[64],
                                    struct horon_topology *topology, struct horon_error *error)
{
    int *leaders = horon_zalloc((size_t)id->size, sizeof *leaders);
    if (!leaders)
        return HORON_ERR_MEMORY;
    for (int rank = 0; rank < id->size; rank++)
        leaders[rank] = rank;
    const horon_status_t status =
        horon_topology_init(topology, id->rank, id->size, leaders, (const char(*)[64])names, error);
    horon_free(leaders);
    return status;
}

static bool is_here(int socket)
{
    assert(socket >= 0);
    struct horon_address own = {.bytes = sizeof own.v6}, other = {.bytes = sizeof other.v6};
    return getsockname(socket, &own.any, &own.bytes) == 0 &&
           getpeername(socket, &other.any, &other.bytes) == 0 &&
           horon_address_same_host(&own, &other);
}

/* A rank waits otherwise where they are more than cores. All that is known of a rank is whether its
 * connection stays on this machine. */
static void place_ranks(const struct horon_identity *id, const int *sockets,
                        const struct horon_profile *own, struct horon_topology *topology)
{
    const struct horon_machine machine = {.id = own->kernel, .cores = own->cores};
    for (int rank = 0; rank < id->size; rank++)
        if (rank == id->rank || is_here(sockets[rank]))
            horon_topology_put_machine(topology, rank, &machine);
}

static void name_ranks(const struct horon_identity *id, const int *sockets, const char *own,
                       char (*names)[64])
{
    for (int rank = 0; rank < id->size; rank++) {
        char text[HORON_ADDRESS_TEXT_BYTES];
        if (rank == id->rank)
            snprintf(names[rank], sizeof names[rank], "%.63s", own);
        else
            snprintf(names[rank], sizeof names[rank], "%.63s",
                     horon_address_end_text(sockets[rank], true, text));
    }
}

/* @param sockets taken over on OK */
static horon_status_t take_ranks(struct horon_boot *boot, const struct horon_identity *id,
                                 const int *sockets, struct horon_error *error)
{
    const size_t size = (size_t)id->size;
    struct horon_topology topology = {0};
    struct horon_proven *proven = horon_zalloc(size, sizeof *proven);
    struct horon_profile *profiles = horon_zalloc(size, sizeof *profiles);
    char(*names)[64] = horon_zalloc(size, sizeof *names);
    horon_status_t status = HORON_ERR_MEMORY;
    assert(boot->topology.size == 1); /* the job of its own */
    for (int rank = 0; rank < id->size; rank++)
        assert((sockets[rank] < 0) == (rank == id->rank));
    if (!proven || !profiles || !names)
        goto done;
    name_ranks(id, sockets, boot->profiles[0].name, names);
    status = make_topology(id, names, &topology, error);
    if (status != HORON_OK)
        goto done;
    place_ranks(id, sockets, &boot->profiles[0], &topology);
    profiles[id->rank] = boot->profiles[0];
    for (size_t rank = 0; rank < size; rank++) {
        proven[rank].fd = sockets[rank];
        memcpy(profiles[rank].name, names[rank], sizeof names[rank]);
    }
    horon_topology_deinit(&boot->topology);
    boot->topology = topology;
    horon_free(boot->proven);
    horon_free(boot->profiles);
    boot->proven = proven;
    boot->profiles = profiles;
    proven = NULL;
    profiles = NULL;
done:
    horon_free(proven);
    horon_free(profiles);
    horon_free(names);
    return status;
}

static horon_status_t join(struct horon_boot *boot, const struct horon_identity *id,
                           const struct horon_config *config,
                           const struct horon_boot_caller *caller, struct horon_log *log,
                           struct horon_error *error)
{
    int *sockets = horon_alloc((size_t)id->size * sizeof *sockets);
    if (!sockets)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to join %d ranks", id->size);
    for (int rank = 0; rank < id->size; rank++)
        sockets[rank] = -1;
    horon_status_t status = connect_all(boot, id, config, caller, log, sockets, error);
    if (status == HORON_OK)
        status = take_ranks(boot, id, sockets, error);
    if (status == HORON_OK)
        boot->gloo_era = (int)era_of(config);
    for (int rank = 0; rank < id->size && status != HORON_OK; rank++)
        horon_fd_close(&sockets[rank]);
    horon_free(sockets);
    return status;
}

/* Gloo's ranks are several as a rule, and one that was told of none would be alone: its sums would
 * be its own numbers. */
static horon_status_t find_place(struct horon_identity *id, int rank, int size,
                                 const struct horon_config *config, struct horon_error *error)
{
    if (config->ranks[0])
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "HORON_RANKS and HORON_GLOO_STORE exclude each other: which of "
                               "Gloo's ranks this is HORON_RANK and HORON_SIZE say");
    const horon_status_t status = horon_identity_ask(id, rank, size, config->gloo_store,
                                                     config->start_timeout_ms, getenv, error);
    if (status != HORON_OK)
        horon_boot_name_limit(error);
    if (status != HORON_OK || !id->assumed)
        return status;
    return horon_error_set(error, HORON_ERR_CONFIG,
                           "HORON_GLOO_STORE is set, and nothing says which of Gloo's ranks this "
                           "is: set HORON_RANK and HORON_SIZE (0 and 1 if it is alone), or let a "
                           "launcher do it");
}

horon_status_t horon_gloo_boot(struct horon_boot *boot, int rank, int size,
                               const struct horon_config *config,
                               const struct horon_boot_caller *caller, struct horon_log *log,
                               struct horon_error *error)
{
    struct horon_boot_caller of_one = *caller;
    struct horon_identity id;
    assert(config->gloo_store[0]);
    horon_status_t status = find_place(&id, rank, size, config, error);
    of_one.get_ready = NULL; /* as rank 0, which this is for a moment */
    if (status == HORON_OK)
        status = horon_boot(boot, 0, 1, config, &of_one, log, error);
    if (status != HORON_OK)
        return status;
    assert(id.rank >= 0);
    assert(id.rank < id.size);
    log->rank = id.rank;
    if (caller->get_ready)
        status = caller->get_ready(caller->arg, id.rank, error);
    if (status == HORON_OK)
        status = join(boot, &id, config, caller, log, error);
    if (status == HORON_OK)
        return HORON_OK;
    horon_boot_name_limit(error);
    horon_boot_deinit(boot);
    return status;
}
