/* SPDX-License-Identifier: Apache-2.0 */
/* What bounds a call that blocks: a deadline, and a caller that may not want to wait any longer. */
#ifndef HORON_BOOT_GLOO_WAIT_H
#define HORON_BOOT_GLOO_WAIT_H

#include "resolve.h"
#include "status.h"

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

struct horon_gloo_wait {
    uint64_t deadline_ns;          /* by horon_clock_ns(); UINT64_MAX: none */
    int (*interrupted)(void *arg); /* asked every 100 ms at least: not 0 ends it. NULL: never */
    void *arg;
};

/**
 * Waits until one of @p fds is ready.
 * @param fds [count], as poll() takes them, which writes their revents; NULL if there are none
 * @param pause_ms after which it comes back with AGAIN; -1: when the deadline is over
 * @return OK, something is ready | AGAIN, the pause is over | ERR_TIMEOUT, the deadline is over:
 *         the caller sets the error, it knows what was waited for | ERR_CANCELLED, interrupted |
 *         ERR_SYSTEM, poll() failed
 */
horon_status_t horon_gloo_wait_for(const struct horon_gloo_wait *wait, struct pollfd *fds,
                                   size_t count, int pause_ms, struct horon_error *error);

/** As horon_addresses_resolve(), for a call that blocks. @return as that | ERR_TIMEOUT |
 * ERR_CANCELLED */
horon_status_t horon_gloo_resolve(const char *host, int port, const struct horon_gloo_wait *wait,
                                  struct horon_addresses *addresses, struct horon_error *error);

#endif
