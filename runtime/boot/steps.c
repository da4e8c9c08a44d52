/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of it all. A rank opens its sockets before the first round, where it says at which it
 * is reached; every rank computes the same topology from what all say. It shares memory with the
 * ranks of its host while it connects to those of others.
 */
#include "boot/joining.h"

#include "clock.h"
#include "log.h"

#include <assert.h>
#include <string.h>

#define LOOK_NS 900000        /* between two questions to the caller's prepare(): a turn of 1 ms */
#define PASSING_DESCRIPTORS 4 /* on their way */
#define OWN_DESCRIPTORS 4     /* arena, doorbell, pidfd; control segment or socket to the leader */

/* ---- What and where ---- */

/* Also where no other host is to be reached: what is wrong here is wrong on the cluster. And what
 * the caller needs besides. */
static horon_status_t check_settings(const struct horon_joining *j, struct horon_error *error)
{
    int first, last;
    struct horon_addresses ignored;
    horon_status_t status = horon_port_range_parse(j->config->port_range, &first, &last, error);
    if (status == HORON_OK && j->config->interfaces[0])
        status = horon_addresses_of_machine(j->config->interfaces, false, &ignored, error);
    if (status == HORON_OK && j->caller->get_ready)
        status = j->caller->get_ready(j->caller->arg, j->id.rank, error);
    return status;
}

/* The one on the host comes first: the others are closed if all ranks are here. Whether they are is
 * not known yet: if other hosts cannot reach this one, it may not matter. */
static horon_status_t open_sockets(struct horon_joining *j, struct horon_error *error)
{
    horon_status_t status = horon_descriptors_need(HORON_JOINING_DESCRIPTORS, "a rank", error);
    if (status == HORON_OK)
        status = check_settings(j, error);
    if (status != HORON_OK)
        return status;
    if (j->config->shm_enabled)
        status = horon_listeners_open_on_host(&j->listeners, j->id.rank, j->mine.socket,
                                              sizeof j->mine.socket, j->log, error);
    horon_listeners_open(&j->listeners, j->config, j->boot->key->given, j->id.rank, j->told,
                         &j->unheard);
    j->mine.addresses = j->told;
    if (status != HORON_OK || !j->mine.socket[0])
        return status;
    horon_profile_find_host(&j->mine, "/proc");
    HORON_LOG_DEBUG(j->log, "long messages to ranks of this host are %s",
                    j->mine.readers
                        ? "lent to those that may read this process's memory"
                        : "copied twice: the system lets no rank read another's memory");
    return HORON_OK;
}

/* Addresses stay text: most of them are never used. */
static horon_status_t read_profile(struct horon_joining *j, int rank, struct horon_error *error)
{
    struct horon_profile *profiles = j->boot->profiles, *profile = &profiles[rank];
    struct horon_addresses addresses;
    struct horon_reader in = horon_blobs_next(&j->blobs);
    if (!horon_profile_decode(&in, profile) ||
        !horon_addresses_read(profile->addresses, &addresses)) {
        horon_error_set(error, HORON_ERR_PROTO, "rank %d put an unreadable profile into the store",
                        rank);
        error->blame.rank = rank;
        return HORON_ERR_PROTO;
    }
    j->leader_of[rank] = 0;
    while (j->leader_of[rank] < rank &&
           !(profile->host && profiles[j->leader_of[rank]].host == profile->host))
        j->leader_of[rank]++;
    return HORON_OK;
}

/* ---- Connections, as they come ---- */

static bool is_linked(const struct horon_joining *j, int rank)
{
    return rank != j->id.rank && horon_topology_linked(&j->boot->topology, j->id.rank, rank);
}

/* @return NULL: this rank has no memory to share, so no connection on its host is of use */
static int *connection_to(const struct horon_joining *j, int rank)
{
    const struct horon_boot *boot = j->boot;
    if (!horon_topology_is_here(&boot->topology, rank))
        return &boot->proven[rank].fd;
    return boot->local ? &boot->local[boot->topology.local_rank_of[rank]].socket : NULL;
}

/* A rank that has joined may connect to one that has not quite, to which it was not linked. */
static bool wanted(void *arg, int rank)
{
    const int *fd = connection_to(arg, rank);
    return fd && *fd < 0;
}

static void opened(void *arg, int rank, const struct horon_proven *proven)
{
    struct horon_joining *j = arg;
    assert(wanted(j, rank));
    *connection_to(j, rank) = proven->fd;
    if (horon_topology_is_here(&j->boot->topology, rank)) {
        horon_share_connected(j->share, rank);
        return;
    }
    j->boot->proven[rank] = *proven;
    j->missing -= is_linked(j, rank);
    assert(j->missing >= 0);
}

static void failed(void *arg, int rank, const struct horon_error *why)
{
    struct horon_joining *j = arg;
    if (j->link_error.status != HORON_OK)
        return;
    j->link_error = *why;
    if (horon_topology_is_here(&j->boot->topology, rank))
        horon_text_add(j->link_error.text, sizeof j->link_error.text, "",
                       " (HORON_SHM=0 does without shared memory)");
}

/* ---- Hosts ---- */

static horon_status_t make_topology(struct horon_joining *j, struct horon_error *error)
{
    const int ranks_max = j->caller->host_ranks_max;
    const struct horon_profile *profiles = j->boot->profiles;
    struct horon_topology *topology = &j->boot->topology;
    horon_status_t status =
        horon_topology_init(topology, j->id.rank, j->id.size, j->leader_of, NULL, error);
    if (status != HORON_OK)
        return status;
    for (int rank = 0; rank < j->id.size; rank++) {
        const struct horon_machine machine = {.id = profiles[rank].kernel,
                                              .cores = profiles[rank].cores};
        horon_topology_put_machine(topology, rank, &machine);
    }
    for (int host = 0; host < topology->host_count; host++) {
        const int leader = horon_topology_leader(topology, host);
        memcpy(topology->host_name[host], profiles[leader].name, sizeof profiles[leader].name);
        if (horon_topology_host_size(topology, host) > ranks_max)
            return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                                   "host %s has %d ranks, and %d are the most that can share its "
                                   "memory; start fewer on it",
                                   topology->host_name[host],
                                   horon_topology_host_size(topology, host), ranks_max);
    }
    return HORON_OK;
}

/* From here on connections may come. */
static horon_status_t open_links(struct horon_joining *j, struct horon_error *error)
{
    struct horon_links_options options = {
        .self = j->self,
        .profiles = j->boot->profiles,
        .user = {.wanted = wanted, .opened = opened, .failed = failed, .arg = j}};
    j->boot->job_id = options.self.hello.job = j->boot->profiles[0].job;
    for (int r = 0; r < j->id.size; r++)
        j->missing += is_linked(j, r);
    if (j->boot->topology.host_count == 1) {
        horon_listeners_close(&j->listeners, j->mine.socket[0] != 0);
    } else if (j->unheard.status != HORON_OK) { /* any rank may want a connection at any time */
        *error = j->unheard;
        return error->status;
    }
    return horon_links_create(&options, &j->listeners, &j->boot->links, error);
}

/* ---- The ranks of this host, and those of others ---- */

static horon_status_t ask_connected(struct horon_joining *j, struct horon_error *error)
{
    if (j->link_error.status != HORON_OK) {
        *error = j->link_error;
        return error->status;
    }
    const horon_status_t status = horon_share_state(j->share, error);
    return status == HORON_OK && j->missing ? HORON_AGAIN : status;
}

/* A rank that only waited leaves it to the other side to say what it tried. */
static void others_are_late(struct horon_joining *j, struct horon_error *why)
{
    const bool shared = horon_share_state(j->share, why) == HORON_OK;
    j->others_failed = true;
    horon_error_set(why, HORON_ERR_TIMEOUT, "%s", "");
    if (!shared) {
        const int awaited = why->blame.rank = horon_share_awaited(j->share);
        horon_text_add(why->text, sizeof why->text, "", "rank %d (%s) does not go on with memory",
                       awaited, j->boot->profiles[awaited].name);
    }
    for (int r = 0; r < j->id.size; r++) {
        char tried[512];
        if (!is_linked(j, r) || j->boot->proven[r].fd >= 0)
            continue;
        const bool trying = horon_links_explain(j->boot->links, r, tried, sizeof tried);
        j->others_failed = j->others_failed && !trying;
        if (why->blame.rank < 0)
            why->blame.rank = r;
        horon_text_add(why->text, sizeof why->text, "; ", "rank %d (%s) %s%s", r,
                       j->boot->profiles[r].name,
                       trying ? "does not answer at " : "has not connected", tried);
    }
}

static horon_status_t create_share(struct horon_joining *j, struct horon_error *error)
{
    const struct horon_topology *topology = &j->boot->topology;
    const int host_size = horon_topology_host_size(topology, topology->host_of[j->id.rank]);
    const struct horon_profile *profiles = j->boot->profiles;
    struct horon_share_options options = {
        .pump = &j->boot->pump,
        .boot = j->boot,
        .control_bytes = j->caller->control_bytes(j->config, host_size),
        .arena_bytes = j->caller->arena_bytes(j->config, host_size, topology->size)};
    for (int i = 0; i < host_size; i++)
        options.group_ranks +=
            profiles[horon_topology_rank_here(topology, i)].group == profiles[j->id.rank].group;
    /* a pidfd and a doorbell of each, and what comes is mapped, then closed; but the leader has a
     * socket to each and keeps its arena, to tell the others of it */
    const int of_each = topology->local_rank_of[j->id.rank] == 0 ? 4 : 2;
    horon_status_t status = horon_descriptors_need(of_each * (host_size - 1) + OWN_DESCRIPTORS +
                                                       j->missing + PASSING_DESCRIPTORS,
                                                   "connecting to the other ranks", error);
    return status == HORON_OK ? horon_share_create(&options, &j->share, error) : status;
}

/* Members connect to the leader of their host, and a rank to lower ones of other hosts. */
static horon_status_t connect_ranks(struct horon_joining *j, struct horon_error *error)
{
    const struct horon_topology *topology = &j->boot->topology;
    const int leader = horon_topology_leader(topology, topology->host_of[j->id.rank]);
    j->doing = "connecting to the other ranks";
    horon_status_t status = create_share(j, error);
    for (int r = 0; r < j->id.rank && status == HORON_OK; r++) {
        if (r != leader && !is_linked(j, r))
            continue;
        status = horon_links_open(j->boot->links, r, -1, error);
        /* one that does not listen says itself why */
        j->others_failed = status != HORON_OK && !j->boot->profiles[r].addresses[0];
    }
    while (status == HORON_OK && (status = ask_connected(j, error)) == HORON_AGAIN)
        status = horon_joining_wait(j, others_are_late, error);
    return status;
}

/* ---- What all begin together ---- */

/* One that has not come is perhaps missed in the last round, too, and named there. */
static void begin_is_late(struct horon_joining *j, struct horon_error *why)
{
    j->others_failed = true;
    horon_error_set(why, HORON_ERR_TIMEOUT, "%s", j->awaited.text);
    if (j->id.left_out > 0)
        horon_text_add(why->text, sizeof why->text, "; ",
                       "HORON_RANKS leaves out %d that were started with these: they must begin "
                       "it, too",
                       j->id.left_out);
}

/* The last thing that may fail: all ranks are here, and want the same. A rank that fails or dies
 * meanwhile is heard of here, and not where a library waits for it. */
horon_status_t horon_joining_begin(struct horon_joining *j, struct horon_error *error)
{
    const struct horon_boot_caller *caller = j->caller;
    horon_status_t status = HORON_OK;
    j->doing = "beginning what all ranks begin together";
    while (caller->prepare && status == HORON_OK) {
        status = caller->prepare(caller->arg, &j->boot->launcher, j->id.size, error);
        if (status != HORON_IN_PROGRESS)
            return status;
        j->awaited = *error;
        horon_error_clear(error);
        j->look_ns = horon_clock_ns() + LOOK_NS;
        status = horon_joining_wait(j, begin_is_late, error);
        j->look_ns = 0;
    }
    return status;
}

/* ---- In order ---- */

horon_status_t horon_joining_run_alone(struct horon_joining *j, struct horon_error *error)
{
    j->boot->job_id = j->mine.job;
    horon_status_t status = check_settings(j, error);
    if (status == HORON_OK)
        status = make_topology(j, error);
    return status == HORON_OK ? connect_ranks(j, error) : status;
}

/* Everything behind the first round. */
static horon_status_t find_others(struct horon_joining *j, struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    for (int rank = 0; rank < j->id.size && status == HORON_OK; rank++)
        status = read_profile(j, rank, error);
    j->boot->blobs = j->blobs;
    j->blobs = (struct horon_blobs){0};
    j->met_ns = horon_clock_ns();
    if (status == HORON_OK)
        status = horon_profile_check_settings(&j->boot->profiles[0], &j->mine, j->id.rank, error);
    if (status == HORON_OK)
        status = make_topology(j, error);
    if (status == HORON_OK)
        status = open_links(j, error);
    if (status == HORON_OK)
        status = connect_ranks(j, error);
    return status == HORON_OK ? horon_joining_begin(j, error) : status;
}

horon_status_t horon_joining_run(struct horon_joining *j, struct horon_error *error)
{
    struct horon_writer profile = horon_writer_over(j->blob, sizeof j->blob);
    j->doing = "looking at the settings";
    error->status = open_sockets(j, error);
    horon_profile_encode(&profile, &j->mine, j->id.rank == 0);
    if (error->status == HORON_OK && !profile.ok)
        horon_error_set(error, HORON_ERR_CONFIG, "this rank's profile is too long");
    horon_status_t status = horon_round_hold(j, "meeting the other ranks", &profile, error);
    if (status != HORON_OK)
        return status;
    error->status = find_others(j, error);
    status = horon_round_hold(j, "waiting for the last ranks", NULL, error);
    j->connected_ns = horon_clock_ns();
    return status;
}
