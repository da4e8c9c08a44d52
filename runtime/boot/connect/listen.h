/* SPDX-License-Identifier: Apache-2.0 */
/* Where other ranks reach this one. */
#ifndef HORON_BOOT_CONNECT_LISTEN_H
#define HORON_BOOT_CONNECT_LISTEN_H

#include "boot/fds.h"
#include "boot/identity/address.h"
#include "config.h"
#include "log.h"

/**
 * Listens at @p addresses, all at one port of @p first..@p last (0: any), the @p start-th if it is
 * free; an address that this machine refuses to bind (it may be on its way in or out) is passed
 * over if another can be.
 * @param noted where the sockets are noted, or NULL
 * @param fds [addresses->count] @return how many there are; -1 with errno
 */
int horon_listen_at(const struct horon_addresses *addresses, int first, int last, int start,
                    struct horon_fds *noted, int *fds, int *port_out);

/** For horon_listen_at(): all addresses of this machine, those of IPv6 too where there are. */
void horon_listen_everywhere(struct horon_addresses *addresses);

/** Where ranks of other hosts reach this one. */
struct horon_listeners {
    int count;
    int fds[HORON_ADDRESSES_MAX];
    struct horon_fds *noted;               /* NULL, or where they are noted; set by the caller */
    char told[HORON_ADDRESSES_TEXT_BYTES]; /* to others: all that lead to us, with the port */
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
