/* SPDX-License-Identifier: Apache-2.0 */
/* Connects to one other process by trying all its addresses, and proves the job key to it. */
#ifndef HORON_BOOT_DIAL_H
#define HORON_BOOT_DIAL_H

#include "boot/auth.h"
#include "boot/identity/address.h"
#include "boot/pump.h"

#define HORON_DIAL_ANYBODY (-2)

struct horon_dial;

struct horon_dial_options {
    struct horon_pump *pump;
    const struct horon_auth_key *key;        /* outlives the dial */
    struct horon_hello hello;                /* ours */
    const struct horon_addresses *addresses; /* in order of preference; copied */
    int expect_rank;                         /* who must answer, or HORON_DIAL_ANYBODY */
    const uint8_t *expect_member;            /* [HORON_MEMBER_BYTES] or NULL: any; copied */
    /* All addresses are one server's: a refusal by horon's handshake at one is final. */
    bool one_server;
    /* Others may live at some of the addresses (a scan of ports): a refusal is like no answer. */
    bool scan;
    /* With neither: how long, after one address refused, the others may take. 0: for ever */
    uint64_t refused_patience_ns;
    /* How long who has taken a connection may leave it without a hello; then it refused. 0: for
     * ever
     */
    uint64_t silence_ns;
    int tries;      /* of each address; 0: again and again until the dial is destroyed */
    bool same_user; /* unix sockets: the peer must run as our user */
    /**
     * Called once. On OK the callee owns the descriptor of @p proven: no delay; else that is NULL.
     * It may destroy the dial.
     */
    void (*done)(void *arg, horon_status_t status, const struct horon_proven *proven,
                 const struct horon_error *error);
    void *arg;
};

/** Starts; done() is called from the pump's turns. @return OK | ERR_MEMORY */
horon_status_t horon_dial_create(const struct horon_dial_options *options,
                                 struct horon_dial **dial_out, struct horon_error *error);

/** Closes what is under way. NULL is a no-op. */
void horon_dial_destroy(struct horon_dial *dial);

/** Writes "ADDRESS: the most telling thing that happened there; ..." of all addresses, cut to fit;
 * of a scan without the ports where nobody listens. */
void horon_dial_describe(const struct horon_dial *dial, char *text, size_t text_bytes);

/** Why it has not connected until now. @return ERR_AUTH, ERR_CONFIG, ERR_PROTO: horon answers at an
 * address, but refuses us, or we it | ERR_TIMEOUT */
horon_status_t horon_dial_verdict(const struct horon_dial *dial);

#endif
