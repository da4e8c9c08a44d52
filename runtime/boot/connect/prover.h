/* SPDX-License-Identifier: Apache-2.0 */
/* Carries a handshake (handshake.h) over a non-blocking stream socket that the pump watches. */
#ifndef HORON_BOOT_CONNECT_PROVER_H
#define HORON_BOOT_CONNECT_PROVER_H

#include "boot/connect/handshake.h"
#include "log.h"
#include "pump.h"

/** This process at its end of connections: which rank it is, and what it speaks with. */
struct horon_self {
    struct horon_pump *pump; /* outlives what it is given to, as do key and log */
    const struct horon_job_key *key;
    struct horon_hello hello;
    const struct horon_log *log; /* NULL: silent */
};

/** One connection that is being proven. Embedded by its owner, which sets what stands before
 * handshake. */
struct horon_prover {
    const struct horon_self *self;
    struct horon_watch watch; /* its fd is the connection, -1 if there is none */
    const uint8_t
        *expect_member; /* [HORON_MEMBER_BYTES] of the only process that may answer; NULL: any */
    struct horon_handshake handshake;
};

/** Begins on watch.fd. @return OK | ERR_SYSTEM, no random bytes, or libcrypto refuses */
horon_status_t horon_prover_begin(struct horon_prover *prover, enum horon_side side,
                                  struct horon_error *error);

/**
 * Sends and receives what can be now, and not one byte more than the handshake's; asks the pump for
 * what comes next. To be called again when it is ready.
 * @return OK, proven and compatible: take it | AGAIN | what
 *         horon_handshake_feed() or horon_hello_check() say | ERR_CLOSED, the peer hung up |
 * ERR_SYSTEM, the socket failed
 */
horon_status_t horon_prover_turn(struct horon_prover *prover, struct horon_error *error);

/** @return what the handshake hands over, wiped by the taker: no delay, not watched any more */
struct horon_proven horon_prover_take(struct horon_prover *prover);

/**
 * Makes a proven connection a link.
 * @param proven          the link owns its descriptor; a failure closes it. The caller wipes it
 * @param peer_timeout_ms as horon_link_tcp_create() says
 * @param wrap            NULL, or wraps the link
 * @return OK | ERR_MEMORY | ERR_SYSTEM
 */
horon_status_t horon_proven_open_link(const struct horon_proven *proven, int64_t peer_timeout_ms,
                                      horon_link_wrap_fn_t wrap, struct horon_link **link_out,
                                      struct horon_error *error);

/** Closes the connection, if there is one, and wipes the handshake. */
void horon_prover_end(struct horon_prover *prover);

#endif
