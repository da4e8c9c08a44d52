/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's server without sockets or clock: sessions of all ranks, rounds in each. Takes the
 * frames that proven ranks sent, gives the letters for them. Nothing here can be reached without
 * the job key.
 */
#ifndef HORON_BOOT_STORE_CORE_H
#define HORON_BOOT_STORE_CORE_H

#include "boot/store/frame.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct horon_store_core;
struct horon_store_member; /* one rank in one session */

struct horon_store_core_options {
    int size;
    /* Sends @p letter to a member; @p user is what join() was given. To keep the letter it takes a
     * reference. A member gets an answer for each PUT, and at most one FAIL, the last. */
    void (*send)(void *user, struct horon_store_letter *letter);
    /* NULL, or names the host of a rank in texts; NULL for one that is not known. @p user is NULL
     * if the rank is not here */
    const char *(*host_of)(void *arg, int rank, void *user);
    /* NULL, or writes why ranks may not have come, "" if that is not known */
    void (*explain)(void *arg, char *text, size_t text_bytes);
    void *arg;
};

/** @return NULL: no memory */
struct horon_store_core *horon_store_core_create(const struct horon_store_core_options *options);
/** Members must have left. NULL is a no-op. */
void horon_store_core_destroy(struct horon_store_core *core);

/**
 * Rank @p rank joins the next session that it was not in yet.
 * @return OK | ERR_MEMORY | ERR_INVALID, no such rank | ERR_PROTO, too many sessions are open
 */
horon_status_t horon_store_core_join(struct horon_store_core *core, int rank, void *user,
                                     struct horon_store_member **member_out);

/** The connection is gone. If its session's last round is not over, the others in it fail. Frees
 * the member. */
void horon_store_core_leave(struct horon_store_member *member);

/** The member's session fails with @p why, whose text says it all: it leaves by itself then. */
void horon_store_core_dismiss(struct horon_store_member *member, const struct horon_error *why);

/** A frame of the member. @return OK | ERR_PROTO, it is not allowed | ERR_MEMORY; then the member
 * must leave */
horon_status_t horon_store_core_take(struct horon_store_member *member, uint8_t type,
                                     struct horon_reader *body);

/** Fails all sessions that are not over, or the next one if there is none. The text says it all. */
void horon_store_core_fail(struct horon_store_core *core, const struct horon_error *why);

/** Rank @p rank has ended with status 0, which is no failure unless others need it: sessions that
 * it was not in fail, once anybody has joined them. */
void horon_store_core_ended(struct horon_store_core *core, int rank);

/** @return true if a session has failed, not for want of time, and ranks that have not come yet
 * would hear why. */
bool horon_store_core_has_news(const struct horon_store_core *core);

/** Sessions that all ranks have joined. */
int horon_store_core_full_sessions(const struct horon_store_core *core);

#endif
