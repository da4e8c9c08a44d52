/* SPDX-License-Identifier: Apache-2.0 */
/* What bounds a call that blocks: a deadline, and a caller that may not want to wait any longer.
 * And what is told of one that takes long. */
#ifndef HORON_BOOT_GLOO_WAIT_H
#define HORON_BOOT_GLOO_WAIT_H

#include "log.h"
#include "resolve.h"
#include "status.h"

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

/** Warns once, long before a deadline, of what is waited for. One thread's, for any calls. */
struct horon_gloo_watch {
    const struct horon_log *log;
    uint64_t begun_ns;
    uint64_t slow_ns; /* when it warns; UINT64_MAX: it has, or never does */
};
/** From now on it counts how long it takes. @param slow_ns after so long it warns; 0: never */
void horon_gloo_watch_begin(struct horon_gloo_watch *watch, uint64_t slow_ns,
                            const struct horon_log *log);
/** Likewise once more, for another thing that may last. What has warned does not warn again. */
void horon_gloo_watch_renew(struct horon_gloo_watch *watch);
/** Warns, if it is time to. @param watch NULL: is a no-op
 * @param subject what is waited for @param state how that is */
void horon_gloo_watch_look(struct horon_gloo_watch *watch, const char *subject, const char *state);

struct horon_gloo_wait {
    uint64_t deadline_ns;          /* by horon_clock_ns(); UINT64_MAX: none */
    int (*interrupted)(void *arg); /* asked every 100 ms at least: not 0 ends it. NULL: never */
    void *arg;
    struct horon_gloo_watch *watch; /* NULL: nothing is told */
    const char *subject, *state;    /* for the watch, of this call; NULL: this one is not told of */
};
/** @return @p wait, of a call that waits for @p subject, of which @p state is told */
struct horon_gloo_wait horon_gloo_wait_told(const struct horon_gloo_wait *wait, const char *subject,
                                            const char *state);

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
