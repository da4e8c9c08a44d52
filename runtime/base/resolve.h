/* SPDX-License-Identifier: Apache-2.0 */
/* Names of hosts, looked up for no longer than the caller wants to wait. */
#ifndef HORON_BASE_RESOLVE_H
#define HORON_BASE_RESOLVE_H

#include "address.h"

struct horon_resolve_limit {
    uint64_t deadline_ns;          /* by horon_clock_ns(); UINT64_MAX: none */
    int (*interrupted)(void *arg); /* asked every 100 ms: not 0 ends it; NULL: never */
    void *arg;
};

/**
 * As horon_addresses_resolve(), until the limit, or without one if it is NULL: a resolver takes as
 * long as its own settings say, and no signal ends it. The name is looked up in a thread, which is
 * left alone once the limit has passed, and ends when the resolver does; a numeric address takes
 * none.
 * @return as that | ERR_TIMEOUT | ERR_CANCELLED, interrupted() said so
 */
horon_status_t horon_addresses_resolve_within(const char *host, int port,
                                              const struct horon_resolve_limit *limit,
                                              struct horon_addresses *addresses,
                                              struct horon_error *error);

#endif
