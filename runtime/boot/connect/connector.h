/* SPDX-License-Identifier: Apache-2.0 */
/* Connects to one other process by trying all its addresses, and proves the job key to it. Over a
 * unix socket it must be of our own user. */
#ifndef HORON_BOOT_CONNECT_CONNECTOR_H
#define HORON_BOOT_CONNECT_CONNECTOR_H

#include "address.h"
#include "boot/connect/prover.h"

struct horon_connector;

struct horon_connector_options {
    struct horon_self self;
    const struct horon_addresses *addresses; /* in order of preference; copied */
    const uint8_t *expect_member;            /* [HORON_MEMBER_BYTES], outlives it; or NULL: any */
    /* Others may live at some of the addresses (a scan of ports): a refusal is like no answer, and
     * of this machine's ports only those with a sign (listen.h) are connected to. */
    bool scan;
    /* Else how long, once horon's handshake has failed at one address, the others may take. 0: it
     * is final; UINT64_MAX: for ever */
    uint64_t patience_ns;
    /* How long a process may leave a connection without a hello; then it refused. 0: for ever */
    uint64_t silence_ns;
    int tries; /* of each address; 0: again and again until the connector is destroyed */
    /**
     * Called once. On OK the callee owns the descriptor of @p proven: no delay; else that is NULL.
     * It may destroy the connector.
     */
    void (*done)(void *arg, horon_status_t status, const struct horon_proven *proven,
                 const struct horon_error *error);
    void *arg;
};

/** Starts; done() is called from the pump's turns. @return OK | ERR_MEMORY */
horon_status_t horon_connector_create(const struct horon_connector_options *options,
                                      struct horon_connector **connector_out,
                                      struct horon_error *error);

/** Closes what is under way. NULL is a no-op. */
void horon_connector_destroy(struct horon_connector *connector);

/** @return is there a connection, by which the other side has not yet proven itself? */
bool horon_connector_is_answered(const struct horon_connector *connector);

/** Writes "ADDRESS: the most telling thing that happened there; ..." of all addresses, cut to fit;
 * of a scan without the ports after the first where nobody listens. */
void horon_connector_describe(const struct horon_connector *connector, char *text,
                              size_t text_bytes);

/** Why it has not connected until now. @return ERR_AUTH, ERR_CONFIG, ERR_PROTO, ERR_INVALID: what
 * answers at an address refuses us, or we it | @p unless_refused */
horon_status_t horon_connector_verdict(const struct horon_connector *connector,
                                       horon_status_t unless_refused);

#endif
