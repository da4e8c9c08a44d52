/* SPDX-License-Identifier: Apache-2.0 */
/* TCP connections between hosts: one to each rank that the topology links, proven. */
#ifndef HORON_BOOT_PEERS_H
#define HORON_BOOT_PEERS_H

#include "boot/auth.h"
#include "boot/fds.h"
#include "boot/identity/address.h"
#include "boot/pump.h"
#include "boot/store/store.h"
#include "config.h"
#include "log.h"
#include "topology/topology.h"

/** Where we listen. */
struct horon_listeners {
    int count;
    int fds[HORON_ADDRESSES_MAX];
    struct horon_fds *noted;          /* NULL, or where they are noted; set by the caller */
    struct horon_addresses addresses; /* to be published: all that lead to us, with ports */
};

/**
 * Listens as the rows INTERFACES and PORT_RANGE say; without a key at loopback only.
 * @return OK | ERR_CONFIG, no such interface, or no free port in the range | ERR_SYSTEM
 */
horon_status_t horon_listeners_open(struct horon_listeners *listeners,
                                    const struct horon_config *config, bool key_given, int rank,
                                    struct horon_error *error);
void horon_listeners_close(struct horon_listeners *listeners);

/** What is known of a rank that we are linked with. */
struct horon_peer_info {
    uint8_t member[HORON_MEMBER_BYTES];
    bool same_machine;           /* its loopback is ours */
    struct horon_blob addresses; /* encoded; none if it does not listen */
};

struct horon_peers;

struct horon_peers_options {
    struct horon_pump *pump; /* outlives the peers, as do key, topology, infos and log */
    const struct horon_auth_key *key;
    struct horon_hello hello; /* ours, with role PEER and the job */
    const struct horon_topology *topology;
    const struct horon_peer_info *infos; /* [size] */
    const struct horon_log *log;
};

/**
 * Starts to connect to all linked lower ranks and to be connected to by all higher ones.
 * @param listeners taken over: empty afterwards
 * @param socket_of [size] where the sockets go; -1 elsewhere
 */
horon_status_t horon_peers_create(const struct horon_peers_options *options,
                                  struct horon_listeners *listeners, int *socket_of,
                                  struct horon_peers **peers_out, struct horon_error *error);

/** @return OK, all are connected | AGAIN, turn the pump | the failure: whom, which addresses were
 * tried, and why each failed */
horon_status_t horon_peers_state(const struct horon_peers *peers, struct horon_error *error);

/** Says which connections are missing and what was tried; for a time limit that has passed.
 * @return true if this rank tried, false if it only waited to be connected to */
bool horon_peers_explain(const struct horon_peers *peers, char *text, size_t text_bytes);

/** Stops listening; the sockets stay. NULL is a no-op. */
void horon_peers_destroy(struct horon_peers *peers);

#endif
