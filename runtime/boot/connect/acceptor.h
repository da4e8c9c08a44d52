/* SPDX-License-Identifier: Apache-2.0 */
/* Accepts connections and hands on those that have proven the job key. */
#ifndef HORON_BOOT_CONNECT_ACCEPTOR_H
#define HORON_BOOT_CONNECT_ACCEPTOR_H

#include "boot/connect/listen.h"
#include "boot/connect/prover.h"

/** Once it is paced, strangers may cost so many handshakes at once, and one more each interval. */
#define HORON_ACCEPTOR_BURST 32
#define HORON_ACCEPTOR_INTERVAL_NS 2000000u

struct horon_acceptor;

struct horon_acceptor_options {
    struct horon_self self;
    uint64_t patience_ns; /* how long a guest may take to prove itself */
    const char *name;     /* of what is served, for the log; static */
    /** A guest has proven the key, is compatible, and keeps the connection. The callee owns the
     * descriptor (non-blocking, no delay). It may stop or destroy the acceptor. */
    void (*arrived)(void *arg, const struct horon_proven *proven);
    void *arg;
};

/**
 * Without a key only loopback is let in, others are refused before anything is read. Over a unix
 * socket only processes of our own user are let in.
 * @param listeners become the acceptor's: then there are none left
 * @return OK | ERR_MEMORY | ERR_SYSTEM; on failure the caller keeps them
 */
horon_status_t horon_acceptor_create(const struct horon_acceptor_options *options,
                                     struct horon_listeners *listeners,
                                     struct horon_acceptor **acceptor_out,
                                     struct horon_error *error);

/** From now on strangers take little of this thread's time, however many connect. */
void horon_acceptor_pace(struct horon_acceptor *acceptor);

/** Closes the listening sockets and every connection that is not proven. May be called from
 * arrived(). */
void horon_acceptor_stop(struct horon_acceptor *acceptor);

#define HORON_ACCEPTOR_NOBODY (-1) /* it did not say what rank it is */

/**
 * A connection was refused, perhaps by the owner for a reason of its own: logged once and counted.
 * @param rank   what it says it is, or HORON_ACCEPTOR_NOBODY
 * @param proven it has the job key
 * @param from   "10.1.0.3", or what else is known of it
 */
void horon_acceptor_note(struct horon_acceptor *acceptor, int rank, bool proven, const char *from,
                         const char *why);

/** Writes "rank 1 at 10.1.0.3 was refused 57 times: WHY; ...", cut to fit; "" for nobody. */
void horon_acceptor_explain(const struct horon_acceptor *acceptor, char *text, size_t text_bytes);

/** Stops and frees; a launcher's logs how many were refused in all. NULL is a no-op. */
void horon_acceptor_destroy(struct horon_acceptor *acceptor);

#endif
