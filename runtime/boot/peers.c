/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of two linked ranks the higher one connects and the lower one listens; so each knows whom it
 * waits for, and two never connect to each other at once. A connection counts when the handshake
 * has shown the expected rank and member: the same address on another machine, or another job's
 * port, is only one more address that failed.
 */
#include "boot/peers.h"

#include "alloc.h"
#include "boot/card.h"
#include "boot/dial.h"
#include "boot/fds.h"
#include "boot/greet.h"
#include "boot/turned.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GUEST_PATIENCE_NS 30000000000u
#define TRIES 9 /* of each address, over about a third of a second, before it counts as refused */

struct call {
    struct horon_peers *peers;
    int rank;
    struct horon_dial *dial; /* NULL: connected, failed, or waited for */
};

struct horon_peers {
    struct horon_peers_options options;
    struct horon_greeter *greeter;
    int *socket_of;
    int missing; /* connections */
    struct horon_turned turned;
    struct horon_error error;
    struct call *calls; /* [size], by rank; for linked lower ranks */
};

static const char *host_name(const struct horon_topology *topology, int rank)
{
    return topology->host_name[topology->host_of[rank]];
}

/* ---- Listening ---- */

/* One socket of each family for all addresses, or one for each address that was chosen. */
static horon_status_t listen_on(struct horon_listeners *listeners, struct horon_address *address,
                                const struct horon_config *config, int rank,
                                struct horon_error *error)
{
    int first, last;
    char text[HORON_ADDRESS_TEXT_BYTES];
    horon_status_t status = horon_port_range_parse(config->port_range, &first, &last, error);
    if (status != HORON_OK)
        return status;
    horon_fds_hold(listeners->noted);
    int fd =
        horon_fds_note(listeners->noted, horon_address_listen_range(address, first, last, rank));
    horon_fds_release(listeners->noted);
    if (fd >= 0) {
        listeners->fds[listeners->count++] = fd;
        return HORON_OK;
    }
    if (errno == EADDRINUSE)
        return horon_error_set(error, HORON_ERR_CONFIG, "no port of HORON_PORT_RANGE=%s is free",
                               config->port_range);
    return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "cannot listen at %s",
                                 horon_address_text(address, text));
}

static horon_status_t listen_to_all(struct horon_listeners *listeners,
                                    const struct horon_config *config, int rank,
                                    struct horon_error *error)
{
    static const struct {
        int family;
        const char *any;
    } kinds[] = {{AF_INET, "0.0.0.0"}, {AF_INET6, "::"}};
    struct horon_addresses *all = &listeners->addresses;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct horon_address any;
        bool listening = false;
        for (int i = 0; i < all->count; i++) {
            if (all->items[i].any.sa_family != kinds[k].family)
                continue;
            if (!listening) {
                horon_address_parse(kinds[k].any, 0, &any);
                horon_status_t status = listen_on(listeners, &any, config, rank, error);
                if (status != HORON_OK)
                    return status;
                listening = true;
            }
            horon_address_set_port(&all->items[i], horon_address_port(&any));
        }
    }
    return HORON_OK;
}

horon_status_t horon_listeners_open(struct horon_listeners *listeners,
                                    const struct horon_config *config, bool key_given, int rank,
                                    struct horon_error *error)
{
    listeners->count = 0;
    struct horon_addresses *all = &listeners->addresses;
    horon_status_t status = horon_addresses_of_machine(config->interfaces, !key_given, all, error);
    if (status == HORON_OK && key_given && !config->interfaces[0])
        status = listen_to_all(listeners, config, rank, error);
    else
        for (int i = 0; i < all->count && status == HORON_OK; i++)
            status = listen_on(listeners, &all->items[i], config, rank, error);
    if (status != HORON_OK)
        horon_listeners_close(listeners);
    return status;
}

void horon_listeners_close(struct horon_listeners *listeners)
{
    for (int i = 0; i < listeners->count; i++)
        close(listeners->fds[i]);
    listeners->count = 0;
}

/* ---- Connecting ---- */

static bool is_linked(const struct horon_peers *peers, int rank)
{
    const struct horon_topology *topology = peers->options.topology;
    return rank != topology->rank && horon_topology_linked(topology, topology->rank, rank);
}

static void connected(struct horon_peers *peers, int rank, int fd)
{
    peers->socket_of[rank] = fd;
    peers->missing--;
}

static void called(void *arg, horon_status_t status, const struct horon_proven *proven,
                   const struct horon_error *error)
{
    struct call *call = arg;
    struct horon_peers *peers = call->peers;
    const struct horon_topology *topology = peers->options.topology;
    horon_dial_destroy(call->dial);
    call->dial = NULL;
    if (status == HORON_OK)
        connected(peers, call->rank, proven->fd);
    else if (peers->error.status == HORON_OK)
        horon_error_set(&peers->error, status, "cannot connect to rank %d (%s), tried %s",
                        call->rank, host_name(topology, call->rank), error->text);
}

static void arrived(void *arg, const struct horon_proven *proven)
{
    const struct horon_hello *theirs = &proven->theirs;
    struct horon_peers *peers = arg;
    const struct horon_topology *topology = peers->options.topology;
    const int rank = theirs->rank;
    const bool wanted =
        rank > topology->rank && rank < topology->size && is_linked(peers, rank) &&
        peers->socket_of[rank] < 0 &&
        memcmp(peers->options.infos[rank].member, theirs->member, sizeof theirs->member) == 0;
    if (wanted) {
        connected(peers, rank, proven->fd);
        return;
    }
    HORON_LOG_WARN(peers->options.log, "turned away a connection of rank %d, which is not expected",
                   rank);
    close(proven->fd);
}

static void refused(void *arg, int rank, bool proven, const char *from,
                    const struct horon_error *error)
{
    struct horon_peers *peers = arg;
    if ((proven || error->status == HORON_ERR_AUTH || error->status == HORON_ERR_MEMORY) &&
        horon_turned_note(&peers->turned, rank, from, error->text))
        HORON_LOG_WARN(peers->options.log, "turned %s away: %s", from, error->text);
}

/* Loopback leads to the other rank only on its own machine, but there it is the best way. */
static void order_addresses(const struct horon_peer_info *info, struct horon_addresses *ordered)
{
    struct horon_addresses all;
    struct horon_reader in = horon_reader_over(info->addresses.bytes, info->addresses.count);
    ordered->count = 0;
    if (!horon_addresses_decode(&in, &all))
        return;
    for (int loopback = 1; loopback >= 0; loopback--)
        for (int i = 0; i < all.count; i++)
            if (horon_address_is_loopback(&all.items[i]) == (loopback == 1) &&
                (!loopback || info->same_machine))
                ordered->items[ordered->count++] = all.items[i];
}

static horon_status_t call_rank(struct horon_peers *peers, int rank, struct horon_error *error)
{
    const struct horon_peer_info *info = &peers->options.infos[rank];
    const struct horon_topology *topology = peers->options.topology;
    struct horon_addresses addresses;
    order_addresses(info, &addresses);
    if (addresses.count == 0)
        return horon_error_set(
            error, HORON_ERR_CONFIG, "rank %d (%s) has no address that rank %d (%s) could use%s",
            rank, host_name(topology, rank), topology->rank, host_name(topology, topology->rank),
            peers->options.key->given
                ? ""
                : ": without a job key only loopback is used, see HORON_JOB_KEY "
                  "and HORON_JOB_KEY_FILE");
    const struct horon_dial_options dialling = {.pump = peers->options.pump,
                                                .key = peers->options.key,
                                                .hello = peers->options.hello,
                                                .addresses = &addresses,
                                                .expect_rank = rank,
                                                .expect_member = info->member,
                                                .tries = TRIES,
                                                .done = called,
                                                .arg = &peers->calls[rank]};
    return horon_dial_create(&dialling, &peers->calls[rank].dial, error);
}

static horon_status_t start_listening(struct horon_peers *peers, struct horon_listeners *listeners,
                                      struct horon_error *error)
{
    const struct horon_greeter_options greeting = {.pump = peers->options.pump,
                                                   .key = peers->options.key,
                                                   .hello = peers->options.hello,
                                                   .loopback_only = !peers->options.key->given,
                                                   .patience_ns = GUEST_PATIENCE_NS,
                                                   .arrived = arrived,
                                                   .refused = refused,
                                                   .arg = peers};
    if (listeners->count == 0)
        return HORON_OK;
    horon_status_t status =
        horon_greeter_create(&greeting, listeners->fds, listeners->count, &peers->greeter, error);
    if (status == HORON_OK)
        listeners->count = 0;
    return status;
}

horon_status_t horon_peers_create(const struct horon_peers_options *options,
                                  struct horon_listeners *listeners, int *socket_of,
                                  struct horon_peers **peers_out, struct horon_error *error)
{
    const int size = options->topology->size;
    struct horon_peers *peers = horon_zalloc(1, sizeof *peers);
    struct call *calls = horon_zalloc((size_t)size, sizeof *calls);
    if (!peers || !calls) {
        horon_free(peers);
        horon_free(calls);
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to connect");
    }
    peers->options = *options;
    peers->socket_of = socket_of;
    peers->calls = calls;
    horon_status_t status = start_listening(peers, listeners, error);
    for (int r = 0; r < size && status == HORON_OK; r++) {
        if (!is_linked(peers, r))
            continue;
        peers->missing++;
        calls[r] = (struct call){.peers = peers, .rank = r};
        if (r < options->topology->rank)
            status = call_rank(peers, r, error);
    }
    if (status != HORON_OK) {
        horon_peers_destroy(peers);
        return status;
    }
    *peers_out = peers;
    return HORON_OK;
}

horon_status_t horon_peers_state(const struct horon_peers *peers, struct horon_error *error)
{
    if (peers->error.status != HORON_OK) {
        *error = peers->error;
        return error->status;
    }
    return peers->missing ? HORON_AGAIN : HORON_OK;
}

bool horon_peers_explain(const struct horon_peers *peers, char *text, size_t text_bytes)
{
    const struct horon_topology *topology = peers->options.topology;
    size_t used = 0;
    bool tried_any = false;
    text[0] = 0;
    for (int r = 0; r < topology->size && used < text_bytes; r++) {
        char tried[512];
        const char *separator = used ? "; " : "";
        if (!is_linked(peers, r) || peers->socket_of[r] >= 0)
            continue;
        if (peers->calls[r].dial) {
            tried_any = true;
            horon_dial_describe(peers->calls[r].dial, tried, sizeof tried);
            used += (size_t)snprintf(text + used, text_bytes - used,
                                     "%srank %d (%s) does not answer at %s", separator, r,
                                     host_name(topology, r), tried);
        } else {
            used +=
                (size_t)snprintf(text + used, text_bytes - used, "%srank %d (%s) has not connected",
                                 separator, r, host_name(topology, r));
        }
    }
    return tried_any;
}

void horon_peers_destroy(struct horon_peers *peers)
{
    if (!peers)
        return;
    for (int r = 0; r < peers->options.topology->size; r++)
        horon_dial_destroy(peers->calls[r].dial);
    horon_greeter_destroy(peers->greeter);
    horon_free(peers->calls);
    horon_free(peers);
}
