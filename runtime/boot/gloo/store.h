/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where Gloo's ranks find each other: keys with values, in one of the stores that Gloo, torch and
 * Horovod have. Here is the table of a store, and what opens one. A store speaks for one rank, and
 * is one thread's; calls block no longer than their `wait` says.
 */
#ifndef HORON_BOOT_GLOO_STORE_H
#define HORON_BOOT_GLOO_STORE_H

#include "boot/gloo/wait.h"
#include "fds.h"
#include "log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Of a whole key with its prefix, final 0 included; torch's are about 40. */
#define HORON_GLOO_KEY_BYTES 512
/** Of it, kept free of prefixes for "rank_12" and the like. */
#define HORON_GLOO_KEY_REST_BYTES 64
/** Of a value: a rank of 30000 publishes 4 MB in era 1. */
#define HORON_GLOO_VALUE_BYTES_MAX ((size_t)8 << 20)

struct horon_gloo_store;

struct horon_gloo_value {
    uint8_t *bytes; /* the caller's, which ends it with horon_free() */
    size_t count;
};

struct horon_gloo_store_ops {
    const char *name; /* for texts: "file store DIR" begins with it */
    /* set() does. As no rank of the same job comes a second time, what a rank finds of its own is
     * another's. */
    bool overwrites;
    /** @return OK | ERR_INVALID, the key is there already, and this store keeps the first |
     * ERR_TIMEOUT | ERR_CANCELLED | ERR_SYSTEM | ERR_PROTO | ERR_PEER_LOST, its server is gone */
    horon_status_t (*set)(struct horon_gloo_store *store, const char *key, const void *bytes,
                          size_t count, const struct horon_gloo_wait *wait,
                          struct horon_error *error);
    /** Looks once. @return OK | AGAIN, nobody has set it yet | as above, but ERR_INVALID */
    horon_status_t (*get)(struct horon_gloo_store *store, const char *key,
                          struct horon_gloo_value *value_out, const struct horon_gloo_wait *wait,
                          struct horon_error *error);
    /** Adds to a count that torch's ranks keep. NULL: they do not meet in such a store.
     * @return as set() | ERR_PROTO, there is no count under that key */
    horon_status_t (*add)(struct horon_gloo_store *store, const char *key, int more,
                          const struct horon_gloo_wait *wait, struct horon_error *error);
    /** This rank has met all others, and asks nothing more. NULL: nothing is to be done. */
    void (*end_meeting)(struct horon_gloo_store *store);
    /** Blocks: where it is served here and the meeting has ended, while others ask: 10 s */
    void (*destroy)(struct horon_gloo_store *store);
};

/** Embedded first in each kind of store. */
struct horon_gloo_store {
    const struct horon_gloo_store_ops *ops;
    char prefix[HORON_GLOO_KEY_BYTES]; /* "default_pg/0//cpu//0/", or "" */
    bool of_horons;                    /* all that met in it are; set when they have */
};

/**
 * As Gloo's and torch's PrefixStore do: from now on "prefix/" stands before keys, inside what
 * stands there already. @p prefix may be "", which changes nothing, and may contain "/".
 * @return OK | ERR_CONFIG, too long
 */
horon_status_t horon_gloo_store_nest(struct horon_gloo_store *store, const char *prefix,
                                     struct horon_error *error);

/* The slots, with the prefix put before the key. */

horon_status_t horon_gloo_store_set(struct horon_gloo_store *store, const char *key,
                                    const void *bytes, size_t count,
                                    const struct horon_gloo_wait *wait, struct horon_error *error);
horon_status_t horon_gloo_store_get(struct horon_gloo_store *store, const char *key,
                                    struct horon_gloo_value *value_out,
                                    const struct horon_gloo_wait *wait, struct horon_error *error);
void horon_gloo_store_end_meeting(struct horon_gloo_store *store);
/** NULL is a no-op. */
void horon_gloo_store_destroy(struct horon_gloo_store *store);

struct horon_gloo_store_options {
    /* file:DIR         Gloo's FileStore: a file a key in the directory
     * c10d-file:PATH   torch's FileStore: one file
     * tcp://HOST:PORT  torch's TCPStore; counts this rank among those that torch's rank 0 awaits
     * http://HOST:PORT[/SCOPE]  Horovod's rendezvous server; a scope is the prefix
     * hash:NAME        as Gloo's HashStore: in this process, for a job of threads of it alone. Name
     *                  and prefix are the job, for as long as any of its ranks has its store: of
     *                  another size, or a rank that was there, is refused */
    const char *url;
    const char *prefix; /* as of horon_gloo_store_nest() */
    int rank, size;
    bool until_torch_2_0; /* tcp://: that is what may serve it, else torch since 2.3 */
    bool serve;           /* tcp://, rank 0: serves it too, with a thread, until it is destroyed, if
                             nothing serves there */
    struct horon_fds *fds; /* where sockets are noted, or NULL */
    const struct horon_log *log;
    struct horon_gloo_wait wait; /* of the call, which waits for a server that is not there yet */
};

/**
 * Opens the store that the url says.
 * @return OK | ERR_CONFIG, the url is none of those, or is refused, or the prefix is too long |
 * ERR_TIMEOUT, no server, or another job's | ERR_PEER_LOST, it has closed | ERR_CANCELLED |
 * ERR_SYSTEM, no such directory | ERR_PROTO | ERR_MEMORY
 */
horon_status_t horon_gloo_store_open(const struct horon_gloo_store_options *options,
                                     struct horon_gloo_store **store_out,
                                     struct horon_error *error);

/** For stores: gives a copy of @p bytes as a value. @return OK | ERR_MEMORY */
horon_status_t horon_gloo_value_copy(struct horon_gloo_value *value_out, const void *bytes,
                                     size_t count, struct horon_error *error);

/** As the store hash:NAME, but without a name, for the ranks that are given it. Only tests make
 * such hashes. Thread: any. */
struct horon_gloo_hash;
/** @return NULL: no memory */
struct horon_gloo_hash *horon_gloo_hash_create(void);
/** All its stores must be destroyed before. NULL is a no-op. */
void horon_gloo_hash_destroy(struct horon_gloo_hash *hash);
/** @return a rank's store in it; NULL: no memory */
struct horon_gloo_store *horon_gloo_hash_store(struct horon_gloo_hash *hash);

/* Opened through horon_gloo_store_open(); @p at is the url behind its scheme. */

horon_status_t horon_gloo_file_store_open(const char *at,
                                          const struct horon_gloo_store_options *options,
                                          struct horon_gloo_store **store_out,
                                          struct horon_error *error);
horon_status_t horon_gloo_c10d_file_store_open(const char *at,
                                               const struct horon_gloo_store_options *options,
                                               struct horon_gloo_store **store_out,
                                               struct horon_error *error);
horon_status_t horon_gloo_c10d_tcp_store_open(const char *at,
                                              const struct horon_gloo_store_options *options,
                                              struct horon_gloo_store **store_out,
                                              struct horon_error *error);
horon_status_t horon_gloo_http_store_open(const char *at,
                                          const struct horon_gloo_store_options *options,
                                          struct horon_gloo_store **store_out,
                                          struct horon_error *error);
horon_status_t horon_gloo_hash_store_open(const char *at,
                                          const struct horon_gloo_store_options *options,
                                          struct horon_gloo_store **store_out,
                                          struct horon_error *error);
/** The name that Gloo's FileStore gives the file of a key: libstdc++'s std::hash of it. */
uint64_t horon_gloo_file_hash(const char *key, size_t bytes);

#endif
