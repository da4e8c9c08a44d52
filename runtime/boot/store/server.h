/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves the store over TCP: every rank connects, proves the job key, and takes part in rounds in
 * which each gives a blob and gets the blobs of all. Runs inside horonrun, or inside rank 0 while
 * it joins, in the turns of its owner's pump; never waits.
 *
 * The k-th time that a rank connects it joins session k, so a job may shut down and join again any
 * number of times, and a process may hold several contexts, while the server keeps running.
 */
#ifndef HORON_BOOT_STORE_SERVER_H
#define HORON_BOOT_STORE_SERVER_H

#include "boot/connect/handshake.h"
#include "boot/identity/address.h"
#include "boot/pump.h"
#include "log.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct horon_store_server;

struct horon_store_server_options {
    struct horon_pump *pump;         /* outlives the server, as does key */
    int size;                        /* ranks of the job, 1..HORON_BOOT_SIZE_MAX */
    const struct horon_job_key *key; /* not given: then loopback only */
    bool launcher; /* a launcher serves one session after another; else rank 0 serves one, and stops
                      listening once all ranks have come */
    /* Where it listens, all at one port: at all addresses, IPv6 too where there is; or at these, of
     * which one that this machine refuses to bind (it may be on its way in or out) is passed over
     * if another can be; or (NULL) at 127.0.0.1 */
    bool everywhere;
    const struct horon_addresses *listen;
    int port, port_last; /* the first free one of these; port_last 0: only port; both 0: any */
    /* NULL, or names the hosts of ranks in texts about them; each name lives as long as the server,
     * NULL for one that is not known */
    const char *(*host_of)(void *arg, int rank);
    void *host_arg;
    horon_link_wrap_fn_t wrap;   /* NULL, or wraps the link of each session */
    uint64_t job;                /* what tells this job from others at the same address; 0: any */
    const struct horon_log *log; /* NULL: silent; refused connections are reported as warnings */
};

/**
 * Binds and listens.
 * @param server_out set on OK only; end it with horon_store_server_destroy()
 * @return OK | ERR_CONFIG, an address that is not the loopback, without a key | ERR_SYSTEM, the
 *         port is taken or the system refuses; errno is in *errno_out (may be NULL) | ERR_MEMORY
 */
horon_status_t horon_store_server_create(const struct horon_store_server_options *options,
                                         struct horon_store_server **server_out, int *errno_out,
                                         struct horon_error *error);

/** @return the port it listens on, at each of its addresses. */
int horon_store_server_port(const struct horon_store_server *server);

/** Fails all ranks that are joining now, or will join a session begun by now, with this reason: a
 * launcher calls it when a rank died before it joined, and rank 0 when it cannot join itself. */
void horon_store_server_fail(struct horon_store_server *server, const struct horon_error *why);

/** A launcher saw @p rank end with status 0: ranks that join without it fail, at once. */
void horon_store_server_ended(struct horon_store_server *server, int rank);

/** @return true while some answer has not been handed to the kernel yet. */
bool horon_store_server_busy(const struct horon_store_server *server);

/** @return true if joining has failed and ranks that have not come yet would hear why. */
bool horon_store_server_has_news(const struct horon_store_server *server);

/** Closes everything. NULL is a no-op. */
void horon_store_server_destroy(struct horon_store_server *server);

#endif
