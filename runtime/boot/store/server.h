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
#include "boot/store/core.h"
#include "log.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct horon_acceptor;

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

struct horon_store_server {
    struct horon_store_core *core; /* for its owner to tell what it knows, and to ask */
    int port;                      /* where it listens, at each of its addresses */
    struct horon_acceptor *acceptor;
    struct horon_store_server_options options; /* without its addresses */
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

/** Closes everything. NULL is a no-op. */
void horon_store_server_destroy(struct horon_store_server *server);

#endif
