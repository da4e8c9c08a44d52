/* SPDX-License-Identifier: Apache-2.0 */
/* Where other ranks reach this one. */
#ifndef HORON_BOOT_LISTEN_H
#define HORON_BOOT_LISTEN_H

#include "boot/fds.h"
#include "boot/identity/address.h"
#include "config.h"
#include "log.h"

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
/** Closes those that nobody took. */
void horon_listeners_close(struct horon_listeners *listeners);

/**
 * For the ranks of this host: listens at an abstract unix socket of a random name.
 * @param name [name_bytes] the name; "" if this process cannot share memory, which is logged
 * @return OK, *fd_out is the caller's; -1 with "" | ERR_SYSTEM
 */
horon_status_t horon_listen_on_host(int rank, char *name, size_t name_bytes, int *fd_out,
                                    struct horon_fds *fds, const struct horon_log *log,
                                    struct horon_error *error);

#endif
