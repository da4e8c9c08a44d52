/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proven connections to other ranks of the job, while joining and later: over an abstract unix
 * socket to a rank of the same host, else by TCP. All goes on in the turns of the pump, whose owner
 * is the links', too.
 */
#ifndef HORON_BOOT_CONNECT_LINKS_H
#define HORON_BOOT_CONNECT_LINKS_H

#include "boot/connect/listen.h"
#include "boot/connect/prover.h"
#include "boot/profile.h"
#include "boot/store/store.h"

struct horon_links;

/** What the links ask and tell: first joining, later the context. */
struct horon_links_user {
    /* Is a connection that another rank made welcome? Else it is closed. NULL: none is. */
    bool (*wanted)(void *arg, int rank);
    /* A connection exists, whichever side asked for it. The callee owns its descriptor. */
    void (*opened)(void *arg, int rank, const struct horon_proven *proven);
    /* What horon_links_open() began has failed: which addresses were tried, and why each failed. */
    void (*failed)(void *arg, int rank, const struct horon_error *why);
    void *arg;
};

struct horon_links_options {
    struct horon_self self;               /* with the job */
    const struct horon_profile *profiles; /* [size] of all ranks; outlive the links */
    struct horon_links_user user;
};

/** From now on connections may come. @param listeners for this host's ranks and for those of
 * others, where there are; the links' once it succeeds
 * @return OK | ERR_MEMORY | ERR_SYSTEM */
horon_status_t horon_links_create(const struct horon_links_options *options,
                                  struct horon_listeners *listeners, struct horon_links **links_out,
                                  struct horon_error *error);

/** Another one uses them from now on, while nothing is under way: what strangers may cost it is
 * limited, see horon_acceptor_pace(). */
void horon_links_set_user(struct horon_links *links, const struct horon_links_user *user);

/**
 * Begins to connect to @p rank; opened() or failed() follows. If both sides ask, one connection
 * comes of it. While this is under way already only its limit changes, and begins anew.
 * @param silence_ms how long no system may answer at any address of the rank before this fails; a
 * process that does not go on is waited for, once its system has answered. -1: for ever
 * @return OK | ERR_CONFIG, the rank has no address that could be used | ERR_MEMORY
 */
horon_status_t horon_links_open(struct horon_links *links, int rank, int64_t silence_ms,
                                struct horon_error *error);

/** Writes what was tried to reach @p rank until now. @return false: nothing was */
bool horon_links_explain(const struct horon_links *links, int rank, char *text, size_t text_bytes);

/** Stops listening and ends what is under way, without a word. NULL is a no-op. */
void horon_links_destroy(struct horon_links *links);

#endif
