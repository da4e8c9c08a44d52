/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The phases of joining, in the order in which boot.c runs them. Each waits through
 * horon_joining_wait() only, so that a rank that serves the store serves it all the time.
 */
#include "boot/joining.h"

#include "alloc.h"

#include <string.h>

/* For the last round: a rank that found the reason just before the deadline may yet tell it. */
#define GRACE_NS 2000000000u

/* ---- Meeting ---- */

/* @p cards is rank 0's, and room for another's. */
static horon_status_t take_card(struct horon_joining *j, int rank, struct horon_reader *in,
                                struct horon_card cards[2], struct horon_error *error)
{
    struct horon_card *card = &cards[rank ? 1 : 0];
    if (!horon_card_decode(in, card))
        return horon_error_set(error, HORON_ERR_PROTO,
                               "rank %d put an unreadable card into the store", rank);
    memcpy(j->names[rank], card->name, sizeof card->name);
    memcpy(j->infos[rank].socket, card->socket, sizeof card->socket);
    j->infos[rank].group = card->group;
    j->infos[rank].cores = card->cores;
    memcpy(j->peer_infos[rank].member, card->member, sizeof card->member);
    j->peer_infos[rank].same_machine = horon_card_same_machine(&j->mine, card);
    return rank ? horon_card_check_settings(&cards[0], 0, card, rank, error) : HORON_OK;
}

/* Also where no other host is to be reached: what is wrong here is wrong on the cluster. */
horon_status_t horon_phase_check_settings(const struct horon_joining *j, struct horon_error *error)
{
    int first, last;
    struct horon_addresses ignored;
    horon_status_t status = horon_port_range_parse(j->config->port_range, &first, &last, error);
    if (status == HORON_OK && j->config->interfaces[0])
        status = horon_addresses_of_machine(j->config->interfaces, false, &ignored, error);
    return status;
}

horon_status_t horon_phase_open_socket(struct horon_joining *j, struct horon_error *error)
{
    j->phase = "looking at the settings";
    horon_status_t status = horon_phase_check_settings(j, error);
    if (status != HORON_OK)
        return status;
    if (!j->config->shm_enabled)
        return HORON_OK;
    return horon_host_listen(j->id.rank, j->mine.socket, sizeof j->mine.socket, &j->host_listener,
                             &j->boot->fds, j->log, error);
}

horon_status_t horon_phase_meet(struct horon_joining *j, const struct horon_error *so_far,
                                struct horon_error *error)
{
    j->phase = "meeting the other ranks";
    struct horon_round round = {0};
    struct horon_card *cards = horon_zalloc(2, sizeof *cards);
    if (!cards)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to join");
    struct horon_writer out = horon_round_begin(j, so_far);
    horon_card_encode(&out, &j->mine);
    horon_status_t status = horon_round_do(j, &out, false, &round, error);
    for (int r = 0; r < j->id.size && status == HORON_OK; r++) {
        status = take_card(j, r, &round.payloads[r], cards, error);
        if (r == 0)
            j->boot->job_id = cards[0].job;
    }
    horon_free(cards);
    horon_round_deinit(&round);
    return status;
}

/* ---- Hosts ---- */

static horon_status_t ask_leader(struct horon_joining *j, struct horon_error *error)
{
    (void)error;
    return horon_host_leader(j->host, &j->leader_of[j->id.rank]);
}

horon_status_t horon_phase_find_host(struct horon_joining *j, struct horon_error *error)
{
    int leader = 0;
    j->phase = "looking for this host's ranks";
    j->hello.job = j->boot->job_id;
    while (leader < j->id.rank &&
           !(j->mine.socket[0] && j->infos[leader].socket[0] && j->peer_infos[leader].same_machine))
        leader++;
    struct horon_host_options options = {.pump = &j->pump,
                                         .key = &j->key,
                                         .hello = j->hello,
                                         .leader = leader,
                                         .leader_socket = j->infos[leader].socket,
                                         .leader_member = j->peer_infos[leader].member,
                                         .log = j->log};
    options.hello.role = HORON_ROLE_HOST;
    horon_status_t status = horon_host_create(&options, j->host_listener, &j->host, error);
    j->host_listener = -1;
    if (status == HORON_OK)
        status = horon_joining_wait(j, ask_leader, error);
    if (status == HORON_ERR_TIMEOUT && !j->over)
        return horon_joining_timeout(j, "the lowest one does not answer", error);
    return status;
}

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
        least = horon_card_cores(least, j->infos[horon_topology_rank_at(topology, host, i)].cores);
    return least;
}

/* Every rank learns every rank's leader: the same topology everywhere. */
horon_status_t horon_phase_agree_on_hosts(struct horon_joining *j, const struct horon_error *so_far,
                                          struct horon_error *error)
{
    j->phase = "grouping ranks by host";
    struct horon_round round = {0};
    struct horon_writer out = horon_round_begin(j, so_far);
    horon_write_u32(&out, (uint32_t)j->leader_of[j->id.rank]);
    horon_status_t status = horon_round_do(j, &out, false, &round, error);
    for (int r = 0; r < j->id.size && status == HORON_OK; r++) {
        j->leader_of[r] = (int)horon_read_u32(&round.payloads[r]);
        if (!horon_reader_finished(&round.payloads[r]))
            status = horon_error_set(error, HORON_ERR_PROTO, "rank %d names no host", r);
    }
    horon_round_deinit(&round);
    if (status != HORON_OK)
        return status;
    status = horon_topology_init(&j->boot->topology, j->id.rank, j->id.size, j->leader_of,
                                 (const char(*)[64])j->names, error);
    if (status != HORON_OK)
        return status;
    j->boot->cores = cores_of_host(j);
    return check_host_sizes(j, error);
}

/* ---- Sharing ---- */

static horon_status_t ask_complete(struct horon_joining *j, struct horon_error *error)
{
    return j->host ? horon_host_complete(j->host, &j->boot->topology, error) : HORON_OK;
}

static horon_status_t ask_shared(struct horon_joining *j, struct horon_error *error)
{
    return horon_share_state(j->share, error);
}

static horon_status_t start_sharing(struct horon_joining *j, struct horon_error *error)
{
    const struct horon_topology *topology = &j->boot->topology;
    const int host = topology->host_of[j->id.rank];
    const int host_size = horon_topology_host_size(topology, host);
    const bool leads = topology->local_rank_of[j->id.rank] == 0;
    struct horon_share_peer *peers = horon_zalloc((size_t)host_size, sizeof *peers);
    if (!peers)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the ranks of this host");
    struct horon_share_options options = {
        .pump = &j->pump,
        .topology = topology,
        .control_bytes = j->caller->control_bytes(j->config, host_size),
        .arena_bytes = j->caller->arena_bytes(j->config, host_size)};
    for (int i = 0; i < host_size; i++) {
        const int rank = horon_topology_rank_at(topology, host, i);
        peers[i] = (struct horon_share_peer){.socket = -1, .pidfd = -1};
        if (j->host && (leads || i == 0))
            horon_host_take(j->host, rank, &peers[i].socket, &peers[i].pidfd);
        options.group_ranks += j->infos[rank].group == j->infos[j->id.rank].group;
    }
    horon_status_t status = horon_share_create(&options, peers, j->boot, &j->share, error);
    horon_free(peers);
    return status;
}

horon_status_t horon_phase_share(struct horon_joining *j, struct horon_error *error)
{
    j->phase = "sharing memory";
    horon_status_t status = horon_joining_wait(j, ask_complete, error);
    if (status == HORON_OK)
        status = start_sharing(j, error);
    if (status == HORON_OK)
        status = horon_joining_wait(j, ask_shared, error);
    if (status == HORON_ERR_TIMEOUT && !j->over) {
        j->others_failed = true;
        return horon_joining_timeout(j, "a rank of this host does not go on", error);
    }
    return status;
}

/* ---- Connecting hosts ---- */

static bool has_linked(const struct horon_joining *j, bool higher)
{
    for (int r = 0; r < j->id.size; r++)
        if (r != j->id.rank && (r > j->id.rank) == higher &&
            horon_topology_linked(&j->boot->topology, j->id.rank, r))
            return true;
    return false;
}

horon_status_t horon_phase_listen(struct horon_joining *j, struct horon_error *error)
{
    j->phase = "listening for other hosts";
    if (!has_linked(j, true))
        return HORON_OK;
    return horon_listeners_open(&j->listeners, j->config, j->key.given, j->id.rank, error);
}

horon_status_t horon_phase_agree_on_addresses(struct horon_joining *j,
                                              const struct horon_error *so_far,
                                              struct horon_error *error)
{
    j->phase = "exchanging addresses";
    if (j->boot->topology.host_count == 1)
        return HORON_OK;
    struct horon_round round = {0};
    struct horon_writer out = horon_round_begin(j, so_far);
    horon_addresses_encode(&out, &j->listeners.addresses);
    horon_status_t status = horon_round_do(j, &out, false, &round, error);
    int linked = 0;
    for (int r = 0; r < j->id.rank; r++)
        linked += horon_topology_linked(&j->boot->topology, j->id.rank, r);
    j->addresses = horon_zalloc((size_t)linked, sizeof *j->addresses);
    if (status == HORON_OK && linked && !j->addresses)
        status = horon_error_set(error, HORON_ERR_MEMORY, "no memory for addresses");
    linked = 0;
    for (int r = 0; r < j->id.rank && status == HORON_OK; r++) {
        if (!horon_topology_linked(&j->boot->topology, j->id.rank, r))
            continue;
        struct horon_addresses *addresses = &j->addresses[linked++];
        if (!horon_addresses_decode(&round.payloads[r], addresses))
            status = horon_error_set(error, HORON_ERR_PROTO, "rank %d has unreadable addresses", r);
        j->peer_infos[r].addresses = addresses;
    }
    horon_round_deinit(&round);
    return status;
}

static horon_status_t ask_connected(struct horon_joining *j, struct horon_error *error)
{
    return horon_peers_state(j->peers, error);
}

horon_status_t horon_phase_connect(struct horon_joining *j, struct horon_error *error)
{
    j->phase = "connecting hosts";
    if (j->boot->topology.host_count == 1)
        return HORON_OK;
    struct horon_peers_options options = {.pump = &j->pump,
                                          .key = &j->key,
                                          .hello = j->hello,
                                          .topology = &j->boot->topology,
                                          .infos = j->peer_infos,
                                          .log = j->log};
    options.hello.role = HORON_ROLE_PEER;
    horon_status_t status =
        horon_peers_create(&options, &j->listeners, j->boot->socket_of, &j->peers, error);
    if (status == HORON_OK)
        status = horon_joining_wait(j, ask_connected, error);
    if (status == HORON_ERR_TIMEOUT && !j->over) {
        char text[HORON_ERROR_TEXT_BYTES - 128];
        /* a rank that only waited leaves it to the other side to say what it tried */
        j->others_failed = !horon_peers_explain(j->peers, text, sizeof text);
        return horon_joining_timeout(j, text, error);
    }
    return status;
}

horon_status_t horon_phase_be_ready(struct horon_joining *j, const struct horon_error *so_far,
                                    struct horon_error *error)
{
    j->phase = "waiting for the last ranks";
    struct horon_round round = {0};
    struct horon_writer out = horon_round_begin(j, so_far);
    if (j->deadline_ns != UINT64_MAX)
        horon_joining_set_deadline(j, j->deadline_ns + GRACE_NS);
    horon_status_t status = horon_round_do(j, &out, true, &round, error);
    horon_round_deinit(&round);
    return status;
}
