/* SPDX-License-Identifier: Apache-2.0 */
/* Where a tcp:// store is to be looked for, and where rank 0 would serve it. */
#ifndef HORON_BOOT_STORE_PLACE_H
#define HORON_BOOT_STORE_PLACE_H

#include "resolve.h"
#include "status.h"

struct horon_store_place {
    /* All that were given, each with its port, in that order; a name's follow each other. */
    struct horon_addresses addresses;
    bool several; /* more than one was given: some may lead to other machines than the store's */
    struct horon_addresses listen; /* where rank 0 serves; none: that is another machine's part */
    int port, port_last; /* at the first of these that is free at all of them; 0: at any */
    char unusable[384];  /* "HOST:PORT: why; ..." of those that are left out, or "" */
};

/**
 * Reads "tcp://HOST:PORT", or several of them, comma separated, where tcp:// may be left out; and
 * looks at this machine's addresses.
 * @param key_given false: only loopback is safe; an address of this machine is replaced by it
 * @param port_scan not 0: rank 0 must serve, wherever the address leads, at the port or one of so
 *        many next ones, at all of which the others look for it
 * @return OK, one address at least can be tried | ERR_CONFIG, no such form, or none can be: no such
 *         name, or not safe without a key | ERR_TIMEOUT, ERR_CANCELLED, by the limit
 * Blocks: as long as the resolver of names does, up to the limit; NULL: none.
 */
horon_status_t horon_store_place_find(struct horon_store_place *place, const char *text,
                                      bool key_given, int port_scan,
                                      const struct horon_resolve_limit *limit,
                                      struct horon_error *error);

/**
 * Rank 0 serves at this machine's addresses, and nobody knows yet where.
 * @param interfaces, port_range the rows; what makes no sense counts as empty: a step of joining
 * reports it
 */
horon_status_t horon_store_place_here(struct horon_store_place *place, bool key_given,
                                      const char *interfaces, const char *port_range,
                                      struct horon_error *error);

#endif
