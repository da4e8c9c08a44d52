/* SPDX-License-Identifier: Apache-2.0 */
/* The server at which Horovod's own workers find each other (--gloo), on horonrun's event loop. It
 * authenticates nobody, as Horovod's does not. */
#ifndef HORONRUN_RENDEZVOUS_H
#define HORONRUN_RENDEZVOUS_H

#include "address.h"
#include "config.h"
#include "scopes.h"

#include <ev.h>

struct horonrun_rendezvous;

/** Connections that it holds at once in a job of so many ranks; the next one ends the oldest. */
#define HORONRUN_RENDEZVOUS_CONNECTIONS(size) (64 + 2 * (size))

/**
 * Listens as the store does: on the loopback; with other hosts on all addresses, or on those of the
 * interfaces that were chosen.
 * @param scopes becomes its own, also on failure
 * @param remote other hosts take part
 * @return OK | ERR_SYSTEM | ERR_MEMORY | ERR_CONFIG, no port of the range is free, no such range,
 *         or no address of those interfaces
 */
horon_status_t horonrun_rendezvous_create(struct horonrun_rendezvous **rendezvous_out,
                                          struct ev_loop *loop, struct horonrun_scopes *scopes,
                                          int size, bool remote, const struct horon_config *config,
                                          struct horon_error *error);

/**
 * Where workers of a host ask.
 * @param seen_as the address by which that host sees us, or "": taken if we listen there
 * @param address without the port; IPv6 in brackets, as Horovod makes a URL of it
 * @return the port
 */
int horonrun_rendezvous_address(const struct horonrun_rendezvous *rendezvous, const char *seen_as,
                                char address[HORON_ADDRESS_TEXT_BYTES]);

/** NULL is a no-op. */
void horonrun_rendezvous_destroy(struct horonrun_rendezvous *rendezvous);

#endif
