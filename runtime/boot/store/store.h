/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where ranks find each other: in rounds, each gives a blob and gets the blobs of all.
 */
#ifndef HORON_BOOT_STORE_H
#define HORON_BOOT_STORE_H

#include "boot/connect/prover.h"
#include "boot/store/stream.h"
#include "status.h"

#include <stddef.h>
#include <stdint.h>

struct horon_store;
struct horon_store_server;

struct horon_store_options {
    struct horon_self self; /* with role STORE and the job's mark */
    const char *address;    /* tcp://HOST:PORT[,HOST:PORT...] or file:DIR */
    /* Not 0: the address was derived from a launcher's variables: rank 0 must serve it, and if the
     * port is taken, at one of so many next ports, where the others look for it. Else rank 0 serves
     * it only if that address is its machine's and nobody does yet. */
    int port_scan;
    /* Rank 0, which found its port taken: how long a launcher may leave a connection without a
     * hello, until it is taken for another program. 0: as long as joining may take */
    uint64_t silence_ns;
    /* NULL, or names the hosts of ranks in the texts of a store that rank 0 serves; each name lives
     * as long as the store, NULL for one that is not known */
    const char *(*host_of)(void *arg, int rank);
    void *host_arg;
    const char *ranks;   /* NULL, or the row RANKS, for a launcher; as long as the call */
    const char *process; /* this one, for texts of others; as long as the call; NULL: nameless */
    /* Where rank 0 serves for file:DIR: the rows INTERFACES and PORT_RANGE; as long as the call */
    const char *interfaces, *port_range;
    /* How long the host of `address` is looked up; NULL: as the resolver likes; as long as the call
     */
    const struct horon_resolve_limit *resolve;
    horon_link_wrap_fn_t wrap; /* NULL, or wraps the link of each session, at both ends */
    uint64_t slow_ns;          /* on a rank that serves: as in server.h */
};

/** The answer of a round: the blob of each rank, one after the other. */
struct horon_blobs {
    uint8_t *memory;        /* of which they are views */
    struct horon_reader in; /* those that were not taken yet */
};

/**
 * Opens it; connecting goes on in the pump's turns.
 * @return OK | ERR_CONFIG, the address is not understood, or not safe without a key | ERR_SYSTEM,
 *         this is rank 0 and it cannot serve | ERR_MEMORY
 */
horon_status_t horon_store_open(const struct horon_store_options *options,
                                struct horon_store **store_out, struct horon_error *error);

/** Gives this rank's blob for the next round, at most HORON_STORE_BLOB_BYTES_MAX bytes; copied.
 * @param put what it is, the last round's for one; of an error, as horon_error_write() writes it
 * @param deadline_ns when the server shall tell all which ranks are missing */
horon_status_t horon_store_put(struct horon_store *store, enum horon_store_put put,
                               const void *blob, size_t bytes, uint64_t deadline_ns,
                               struct horon_error *error);
/** @return when the server's answer to which ranks are missing is due: a while after it was asked,
 * which may be long after the deadline if this process stood still, and at once if the server was
 * not reached; UINT64_MAX: it was not asked yet */
uint64_t horon_store_answer_due_ns(const struct horon_store *store);

/**
 * To be asked while waiting for whatever.
 * @param whole_out set with a failure: its text says it all (a rank gave up for that reason, or the
 *        launcher saw one die); else it is about the store, or names the missing ranks
 * @return OK | ERR_TIMEOUT, ERR_PEER_LOST: ranks are missing, named | ERR_AUTH | ERR_PROTO |
 *         ERR_SYSTEM, the store cannot be used | a rank's failure
 */
horon_status_t horon_store_failed(const struct horon_store *store, bool *whole_out,
                                  struct horon_error *error);

/** Makes joining fail for all with @p why, whose text says it all. Afterwards wait for
 * horon_store_failed(). @return false if it is not connected: the others are told once it is */
bool horon_store_abort(struct horon_store *store, const struct horon_error *why);

/** @return are all blobs of the round here? Then they are the caller's, which ends them with
 * horon_blobs_deinit(). Else: ask whether it failed, and turn the pump */
bool horon_store_get(struct horon_store *store, struct horon_blobs *blobs_out);

/** Says why the round is not complete in time, as far as this rank can know: ERR_TIMEOUT |
 * ERR_AUTH, ERR_CONFIG, ERR_PROTO, the store was found, but refuses us.
 * @param over the time is over; else what lacks may yet come */
void horon_store_explain(const struct horon_store *store, bool over, struct horon_error *why);

/** Is the process that serves it yet to be reached? Once it is, that one knows what a round waits
 * for. */
bool horon_store_is_sought(const struct horon_store *store);

/** @return the server, on a rank that serves; else NULL, of NULL, too. */
const struct horon_store_server *horon_store_served(const struct horon_store *store);

/** NULL is a no-op. */
void horon_store_destroy(struct horon_store *store);

/** @return the next rank's */
struct horon_reader horon_blobs_next(struct horon_blobs *blobs);
void horon_blobs_deinit(struct horon_blobs *blobs);

/** @return are these the blobs of @p size ranks, each as u32 length and bytes? */
bool horon_blobs_are_whole(struct horon_reader in, int size);

#endif
