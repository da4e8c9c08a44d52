/* SPDX-License-Identifier: Apache-2.0 */
/* The store that horonrun serves to its ranks, on its event loop. */
#ifndef HORONRUN_STORE_H
#define HORONRUN_STORE_H

#include "config.h"
#include "status.h"

#include <ev.h>
#include <stdbool.h>

struct horonrun_store;

/** What a store is to be; views, for the time of the call, but for host_of. */
struct horonrun_store_setup {
    int size;
    const char *key;
    bool remote;                                 /* other hosts take part */
    const char *interfaces;                      /* HORON_INTERFACES */
    const char *port_range;                      /* HORON_PORT_RANGE */
    const char *(*host_of)(void *arg, int rank); /* as in boot/store/server.h */
    void *host_arg;
    void (*warn)(void *arg, const char *text); /* of connections that were refused: a few lines */
    void *warn_arg;
};

/**
 * Listens at a port of the range: on the loopback; with other hosts on all addresses too, or on
 * those of the interfaces that were chosen.
 * @return OK | ERR_SYSTEM, among others: no port of the range is free | ERR_MEMORY | ERR_CONFIG, no
 *         such range, or no address of those interfaces
 */
horon_status_t horonrun_store_create(struct horonrun_store **store_out, struct ev_loop *loop,
                                     const struct horonrun_store_setup *setup,
                                     struct horon_error *error);

/** As long as a row of the option table may be. */
#define HORONRUN_STORE_URL_BYTES HORON_CONFIG_TEXT_BYTES

/** What local ranks get as HORON_STORE. */
void horonrun_store_local_url(const struct horonrun_store *store,
                              char url[HORONRUN_STORE_URL_BYTES]);

/**
 * What ranks of another host get: this machine's addresses that it listens at, for them to try.
 * @param seen_as the address by which that host sees us, which goes first if it is ours (with a
 *        proxy between it is not)
 */
void horonrun_store_remote_url(const struct horonrun_store *store, const char *seen_as,
                               char url[HORONRUN_STORE_URL_BYTES]);

/** Tells ranks that are still joining that the job ends. @param rank it ends for this one; or -1 */
void horonrun_store_fail(struct horonrun_store *store, int rank, const char *why);

/** @p rank has ended: ranks that join without it are told. @param why NULL: with status 0 */
void horonrun_store_ended(struct horonrun_store *store, int rank, const char *why);

/** NULL is a no-op. */
void horonrun_store_destroy(struct horonrun_store *store);

#endif
