/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of joining. Each waits through horon_joining_wait() only, so that a rank that serves
 * the store serves it all the time. Between steps all ranks meet in a round of the store, where
 * each says whether it got through the last step; so what fails on one rank fails on all, for the
 * same reason, and nobody waits for a rank that has given up. The table at the end has them in
 * order:
 *
 *     what a rank does by itself     what the round tells all
 *     looks at its settings          its profile: who and where -> the topology, the same
 * everywhere shares memory with its host    where it listens, if there are several hosts connects
 * to other hosts        everybody has everything
 */
#include "boot/joining.h"

#include "boot/descriptors.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define OWN_DESCRIPTORS 12    /* that a rank opens while it joins, and its loops afterwards */
#define PASSING_DESCRIPTORS 4 /* on their way */

/* ---- Who and where ---- */

/* Also where no other host is to be reached: what is wrong here is wrong on the cluster. */
horon_status_t horon_step_check_settings(const struct horon_joining *j, struct horon_error *error)
{
    int first, last;
    struct horon_addresses ignored;
    horon_status_t status = horon_port_range_parse(j->config->port_range, &first, &last, error);
    if (status == HORON_OK && j->config->interfaces[0])
        status = horon_addresses_of_machine(j->config->interfaces, false, &ignored, error);
    return status;
}

static horon_status_t open_socket(struct horon_joining *j, struct horon_error *error)
{
    if (j->id.rank == 0) /* it may serve the store: who does not come in by then waits outside */
        (void)horon_descriptors_need(OWN_DESCRIPTORS + j->id.size, "a store", error);
    horon_status_t status = horon_descriptors_need(OWN_DESCRIPTORS, "a rank", error);
    if (status == HORON_OK)
        status = horon_step_check_settings(j, error);
    if (status != HORON_OK || !j->config->shm_enabled)
        return status;
    status = horon_listen_on_host(j->id.rank, j->mine.socket, sizeof j->mine.socket,
                                  &j->host_listener, &j->boot->fds, j->log, error);
    if (status == HORON_OK && j->host_listener >= 0)
        j->mine.host = horon_profile_host(&j->mine);
    return status;
}

static void give_profile(const struct horon_joining *j, struct horon_writer *out)
{
    horon_profile_encode(out, &j->mine);
}

static horon_status_t take_profile(struct horon_joining *j, int rank, struct horon_reader *in,
                                   struct horon_error *error)
{
    struct horon_profile *profile = &j->profiles[rank ? 1 : 0];
    if (!horon_profile_decode(in, profile))
        return horon_error_set(error, HORON_ERR_PROTO,
                               "rank %d put an unreadable profile into the store", rank);
    struct horon_rank_info *infos = j->boot->ranks.infos, *info = &infos[rank];
    memcpy(j->boot->ranks.names[rank], profile->name, sizeof profile->name);
    memcpy(info->socket, profile->socket, sizeof profile->socket);
    memcpy(info->member, profile->member, sizeof profile->member);
    info->group = profile->group;
    info->cores = profile->cores;
    info->same_machine = profile->machine && profile->machine == j->mine.machine;
    info->host = profile->host;
    j->leader_of[rank] = 0;
    while (j->leader_of[rank] < rank &&
           !(info->host && infos[j->leader_of[rank]].host == info->host))
        j->leader_of[rank]++;
    return rank ? horon_profile_check_settings(&j->profiles[0], 0, profile, rank, error) : HORON_OK;
}

/* ---- Connections, as they come ---- */

static bool is_linked(const struct horon_joining *j, int rank)
{
    return rank != j->id.rank && horon_topology_linked(&j->boot->topology, j->id.rank, rank);
}

/* A rank that has joined may connect to one that has not quite, to which it was not linked. */
static bool wanted(void *arg, int rank, enum horon_way way)
{
    const struct horon_joining *j = arg;
    return way == HORON_WAY_HOST ? horon_share_wants(j->share, rank) : j->boot->socket_of[rank] < 0;
}

static void opened(void *arg, int rank, enum horon_way way, const struct horon_proven *proven)
{
    struct horon_joining *j = arg;
    if (way == HORON_WAY_NETWORK) {
        assert(j->boot->socket_of[rank] < 0);
        j->boot->socket_of[rank] = proven->fd;
        j->missing -= is_linked(j, rank);
        assert(j->missing >= 0);
        return;
    }
    horon_share_add(j->share, rank, proven->fd);
}

static void failed(void *arg, int rank, enum horon_way way, const struct horon_error *why)
{
    struct horon_joining *j = arg;
    (void)rank;
    if (j->link_error.status == HORON_OK)
        horon_error_set(&j->link_error, why->status, "%.900s%s", why->text,
                        way == HORON_WAY_HOST ? " (HORON_SHM=0 does without shared memory)" : "");
}

/* ---- Hosts ---- */

static horon_status_t check_host_sizes(const struct horon_joining *j, struct horon_error *error)
{
    const struct horon_topology *topology = &j->boot->topology;
    for (int host = 0; host < topology->host_count; host++) {
        const int ranks = horon_topology_host_size(topology, host),
                  most = j->caller->host_ranks_max;
        if (ranks > most)
            return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                                   "host %s has %d ranks, and %d are the most that can share its "
                                   "memory; start fewer on it",
                                   topology->host_name[host], ranks, most);
    }
    return HORON_OK;
}

/* What ranks of a host choose by its cores they must choose alike, whatever each sees of them. */
static uint32_t cores_of_host(const struct horon_joining *j)
{
    const struct horon_topology *topology = &j->boot->topology;
    const int host = topology->host_of[j->id.rank];
    uint32_t least = 0;
    for (int i = 0; i < horon_topology_host_size(topology, host); i++)
        least = horon_profile_cores(
            least, j->boot->ranks.infos[horon_topology_rank_at(topology, host, i)].cores);
    return least;
}

static horon_status_t know_hosts(struct horon_joining *j, struct horon_error *error)
{
    struct horon_boot *boot = j->boot;
    struct horon_links_options options = {
        .pump = &boot->pump,
        .key = boot->key,
        .hello = j->hello,
        .ranks = &boot->ranks,
        .log = j->log,
        .user = {.wanted = wanted, .opened = opened, .failed = failed, .arg = j}};
    boot->job_id = options.hello.job = j->profiles[0].job;
    options.hello.role = HORON_ROLE_PEER;
    horon_status_t status =
        horon_topology_init(&boot->topology, j->id.rank, j->id.size, j->leader_of,
                            (const char(*)[64])boot->ranks.names, error);
    if (status == HORON_OK)
        status = check_host_sizes(j, error);
    if (status != HORON_OK)
        return status;
    boot->cores = cores_of_host(j);
    return horon_links_create(&options, &boot->links, error);
}

/* ---- Shared memory ---- */

static horon_status_t ask_shared(struct horon_joining *j, struct horon_error *error)
{
    if (j->link_error.status != HORON_OK)
        *error = j->link_error;
    return j->link_error.status != HORON_OK ? j->link_error.status
                                            : horon_share_state(j->share, error);
}

static horon_status_t host_is_late(struct horon_joining *j, char *text, size_t text_bytes)
{
    const int rank = horon_share_awaited(j->share);
    j->others_failed = true;
    snprintf(text, text_bytes, "rank %d (%s) does not go on", rank, j->boot->ranks.names[rank]);
    return HORON_ERR_TIMEOUT;
}

/* The leader listens, the others connect to it. */
static horon_status_t meet_on_host(struct horon_joining *j, int leader, struct horon_error *error)
{
    if (leader != j->id.rank)
        return horon_links_open(j->boot->links, leader, HORON_WAY_HOST, UINT64_MAX, error);
    horon_status_t status =
        horon_links_listen(j->boot->links, HORON_WAY_HOST, &j->host_listener, 1, error);
    if (status == HORON_OK)
        j->host_listener = -1;
    return status;
}

horon_status_t horon_step_share(struct horon_joining *j, struct horon_error *error)
{
    const struct horon_topology *topology = &j->boot->topology;
    const int host = topology->host_of[j->id.rank];
    const int host_size = horon_topology_host_size(topology, host);
    struct horon_share_options options = {
        .pump = &j->boot->pump,
        .boot = j->boot,
        .control_bytes = j->caller->control_bytes(j->config, host_size),
        .arena_bytes = j->caller->arena_bytes(j->config, host_size, topology->size)};
    for (int i = 0; i < host_size; i++)
        options.group_ranks +=
            j->boot->ranks.infos[horon_topology_rank_at(topology, host, i)].group ==
            j->boot->ranks.infos[j->id.rank].group;
    /* a pidfd and a doorbell of each; and what comes is mapped, then closed */
    horon_status_t status = horon_descriptors_need(2 * (host_size - 1) + PASSING_DESCRIPTORS,
                                                   "sharing memory with this host's ranks", error);
    if (status == HORON_OK)
        status = horon_share_create(&options, &j->share, error);
    if (status == HORON_OK && host_size > 1)
        status = meet_on_host(j, horon_topology_leader(topology, host), error);
    return status == HORON_OK ? horon_joining_wait(j, ask_shared, host_is_late, error) : status;
}

/* ---- Other hosts ---- */

static horon_status_t share_and_listen(struct horon_joining *j, struct horon_error *error)
{
    horon_status_t status = horon_step_share(j, error);
    if (status != HORON_OK || j->boot->topology.host_count == 1)
        return status; /* else any rank may want a connection at any time */
    j->doing = "listening for other hosts";
    return horon_listeners_open(&j->listeners, j->config, j->boot->key->given, j->id.rank, error);
}

static void give_addresses(const struct horon_joining *j, struct horon_writer *out)
{
    horon_addresses_encode(out, &j->listeners.addresses);
}

/* They stay encoded: most of them are never used. */
static horon_status_t take_addresses(struct horon_joining *j, int rank, struct horon_reader *in,
                                     struct horon_error *error)
{
    struct horon_addresses ignored;
    j->boot->ranks.infos[rank].addresses = j->blobs.items[rank];
    if (horon_addresses_decode(in, &ignored))
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_PROTO, "rank %d has unreadable addresses", rank);
}

static horon_status_t keep_addresses(struct horon_joining *j, struct horon_error *error)
{
    (void)error;
    j->boot->ranks.addresses = j->blobs;
    j->blobs = (struct horon_blobs){0};
    return HORON_OK;
}

static horon_status_t ask_connected(struct horon_joining *j, struct horon_error *error)
{
    if (j->link_error.status != HORON_OK)
        *error = j->link_error;
    return j->link_error.status != HORON_OK ? j->link_error.status
           : j->missing                     ? HORON_AGAIN
                                            : HORON_OK;
}

/* A rank that only waited leaves it to the other side to say what it tried. */
static horon_status_t links_are_late(struct horon_joining *j, char *text, size_t text_bytes)
{
    size_t used = 0;
    j->others_failed = true;
    for (int r = 0; r < j->id.size && used < text_bytes; r++) {
        char tried[512];
        if (!is_linked(j, r) || j->boot->socket_of[r] >= 0)
            continue;
        const bool trying = horon_links_explain(j->boot->links, r, tried, sizeof tried);
        j->others_failed = j->others_failed && !trying;
        used += (size_t)snprintf(text + used, text_bytes - used, "%srank %d (%s) %s%s",
                                 used ? "; " : "", r, j->boot->ranks.names[r],
                                 trying ? "does not answer at " : "has not connected", tried);
    }
    return HORON_ERR_TIMEOUT;
}

static horon_status_t connect_hosts(struct horon_joining *j, struct horon_error *error)
{
    for (int r = 0; r < j->id.size; r++)
        j->missing += is_linked(j, r);
    horon_status_t status = horon_descriptors_need(j->missing + PASSING_DESCRIPTORS,
                                                   "connecting to the ranks of other hosts", error);
    if (status == HORON_OK && j->listeners.count)
        status = horon_links_listen(j->boot->links, HORON_WAY_NETWORK, j->listeners.fds,
                                    j->listeners.count, error);
    if (status == HORON_OK)
        j->listeners.count = 0;
    for (int r = 0; r < j->id.rank && status == HORON_OK; r++)
        if (is_linked(j, r))
            status = horon_links_open(j->boot->links, r, HORON_WAY_NETWORK, UINT64_MAX, error);
    return status == HORON_OK ? horon_joining_wait(j, ask_connected, links_are_late, error)
                              : status;
}

/* ---- In order ---- */

const struct horon_step horon_steps[HORON_STEP_COUNT] = {
    {.work_words = "looking at the settings",
     .work = open_socket,
     .round_words = "meeting the other ranks",
     .give = give_profile,
     .take = take_profile,
     .conclude = know_hosts},
    {.work_words = "sharing memory",
     .work = share_and_listen,
     .round_words = "exchanging addresses",
     .give = give_addresses,
     .take = take_addresses,
     .conclude = keep_addresses,
     .between_hosts = true},
    {.work_words = "connecting hosts",
     .work = connect_hosts,
     .round_words = "waiting for the last ranks"},
};
