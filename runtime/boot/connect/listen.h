/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets at which others reach this process. */
#ifndef HORON_BOOT_CONNECT_LISTEN_H
#define HORON_BOOT_CONNECT_LISTEN_H

#include "address.h"
#include "config.h"
#include "fds.h"
#include "log.h"

/** Of one that accepts: one on the host, and those of its addresses. */
struct horon_listeners {
    int count;
    int fds[HORON_ADDRESSES_MAX + 1];
    struct horon_fds *noted; /* NULL, or where they are noted; set by the caller */
    bool named;              /* set by the caller: the port is to have a sign */
    bool has_sign;           /* then its socket is this one: */
    int sign;
};

/**
 * Listens at @p addresses, all at one port of @p first..@p last (0: any), the @p start-th if it is
 * free; an address that this machine refuses to bind (it may be on its way in or out) is passed
 * over if another can be.
 * @param listeners those are added @return the port; -1 with errno, none is
 */
int horon_listeners_add(const struct horon_addresses *addresses, int first, int last, int start,
                        struct horon_listeners *listeners);

/**
 * For ranks of other hosts: listens as the rows INTERFACES and PORT_RANGE say; without a key at
 * loopback only.
 * @param told to be told to others: all addresses that lead to us, with the port; set on OK
 * @return OK | ERR_CONFIG, no such interface, or no free port in the range | ERR_SYSTEM
 */
horon_status_t horon_listeners_open(struct horon_listeners *listeners,
                                    const struct horon_config *config, bool key_given, int rank,
                                    char told[HORON_ADDRESSES_TEXT_BYTES],
                                    struct horon_error *error);
/** Closes all but the first @p kept, and the sign. */
void horon_listeners_close(struct horon_listeners *listeners, int kept);

/**
 * For the ranks of this host: listens at an abstract unix socket of a random name.
 * @param name [name_bytes] the name; "" if this process cannot share memory, which is logged
 * @return OK, it listens unless the name is "" | ERR_SYSTEM
 */
horon_status_t horon_listeners_open_on_host(struct horon_listeners *listeners, int rank, char *name,
                                            size_t name_bytes, const struct horon_log *log,
                                            struct horon_error *error);

/**
 * Is there a sign at @p port, a unix socket of its name? What listens has one if processes of this
 * machine look for it at several ports: they connect to no other. For whatever listens there, a
 * connection may be the end: hydra takes anybody's for one of its own proxies.
 * @param fds  NULL, or forks are held off meanwhile
 */
bool horon_port_has_sign(int port, const struct horon_fds *fds);

#endif
