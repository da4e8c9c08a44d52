/* SPDX-License-Identifier: Apache-2.0 */
/* Carries a handshake (auth.h) over a non-blocking stream socket. */
#ifndef HORON_BOOT_PROVE_H
#define HORON_BOOT_PROVE_H

#include "boot/auth.h"

/**
 * Sends and receives what can be now, and not one byte more than the handshake's.
 * @param events_out with AGAIN: the epoll events to wait for
 * @return OK, proven and all sent | AGAIN | ERR_AUTH, ERR_PROTO as horon_auth_feed() | ERR_CLOSED,
 *         the peer hung up | ERR_SYSTEM, the socket failed
 */
horon_status_t horon_prove_turn(int fd, struct horon_auth *auth, uint32_t *events_out,
                                struct horon_error *error);

#endif
