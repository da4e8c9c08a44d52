/* SPDX-License-Identifier: Apache-2.0 */
/* The store that horonrun serves to its ranks, on its event loop. */
#ifndef HORONRUN_STORE_H
#define HORONRUN_STORE_H

#include "status.h"

#include <ev.h>
#include <stdbool.h>

/** 32 random bytes in hexadecimal, and a final 0. */
#define HORONRUN_KEY_BYTES 65

struct horonrun_store;

/** Makes a job key. @return OK | ERR_SYSTEM */
horon_status_t horonrun_store_make_key(char key[HORONRUN_KEY_BYTES], struct horon_error *error);

/**
 * Listens: on the loopback, or for @p remote on all addresses.
 * @param interfaces  which addresses to publish, as HORON_INTERFACES
 * @return OK | ERR_SYSTEM | ERR_MEMORY | ERR_CONFIG, no address of those interfaces
 */
horon_status_t horonrun_store_create(struct horonrun_store **store_out, struct ev_loop *loop,
                                     int size, const char *key, bool remote, const char *interfaces,
                                     struct horon_error *error);

/** "tcp://[0123:...]:65535" and a final 0. */
#define HORONRUN_STORE_URL_BYTES 96

/** What local ranks get as HORON_STORE. */
void horonrun_store_local_url(const struct horonrun_store *store,
                              char url[HORONRUN_STORE_URL_BYTES]);

/**
 * What ranks of another host get: an address of this machine that they can reach.
 * @param seen_as the address by which that host sees us, which is the best if it is ours (with a
 *        proxy between it is not); else the first of the interfaces is taken
 */
void horonrun_store_remote_url(const struct horonrun_store *store, const char *seen_as,
                               char url[HORONRUN_STORE_URL_BYTES]);

/** Tells ranks that are still joining that the job ends. */
void horonrun_store_fail(struct horonrun_store *store, const char *why);

/** NULL is a no-op. */
void horonrun_store_destroy(struct horonrun_store *store);

#endif
