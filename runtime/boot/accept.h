/* SPDX-License-Identifier: Apache-2.0 */
/* Accepts connections and hands on those that have proven the job key. */
#ifndef HORON_BOOT_ACCEPT_H
#define HORON_BOOT_ACCEPT_H

#include "boot/auth.h"
#include "boot/identity/address.h"
#include "boot/pump.h"

/** Sockets that one acceptor listens on at most. */
#define HORON_GREET_LISTENERS_MAX HORON_ADDRESSES_MAX

struct horon_acceptor;

struct horon_acceptor_options {
    struct horon_pump *pump;
    const struct horon_auth_key *key; /* outlives the acceptor */
    struct horon_hello hello;         /* ours */
    bool loopback_only;               /* others are turned away before anything is read */
    uint64_t patience_ns;             /* how long a guest may take to prove itself */
    /** NULL, or says of a connection why it is turned away before anything is read; NULL: it is not
     */
    const char *(*objection)(void *arg, int fd);
    /** A guest has proven the key, is compatible, and keeps the connection. The callee owns the
     * descriptor (non-blocking, no delay). It may stop or destroy the acceptor. */
    void (*arrived)(void *arg, const struct horon_proven *proven);
    /** A guest was turned away (ERR_TIMEOUT: it was silent); or (ERR_MEMORY, once) descriptors have
     * run out, and connections wait. May be NULL.
     * @p rank is what its hello says, proven or not; -1 if there was none. @p proven: the key. */
    void (*refused)(void *arg, int rank, bool proven, const char *from,
                    const struct horon_error *error);
    void *arg;
};

/**
 * Unproven connections are at most a quarter of the descriptors that the process may have, 1024
 * at most, and those of one network address at most half of them. One more takes the place of the
 * oldest.
 * @param listeners [count] listening, non-blocking sockets; the acceptor's once it exists
 * @return OK | ERR_MEMORY | ERR_SYSTEM; on failure the caller keeps the sockets
 */
horon_status_t horon_acceptor_create(const struct horon_acceptor_options *options,
                                     const int *listeners, int count,
                                     struct horon_acceptor **acceptor_out,
                                     struct horon_error *error);

/** Closes the listening sockets and every connection that is not proven. May be called from
 * arrived(). */
void horon_acceptor_stop(struct horon_acceptor *acceptor);

/** Stops and frees. NULL is a no-op. */
void horon_acceptor_destroy(struct horon_acceptor *acceptor);

#endif
