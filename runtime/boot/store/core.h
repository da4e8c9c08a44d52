/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store server without sockets or clock: sessions of all ranks, rounds in each. Takes the bytes
 * that proven ranks sent, gives the bytes to send to them. Nothing here can be reached without the
 * job key.
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

/** @return the name of the host that @p rank runs on, as long as the core lives; or NULL */
typedef const char *(*horon_store_host_of_fn_t)(void *arg, int rank);

/**
 * @param wake called whenever a member has something to send that it had not before; @p user is
 *        what join() was given
 * @return NULL: no memory
 */
struct horon_store_core *horon_store_core_create(int size, void (*wake)(void *user));
/** From here on texts name the hosts of ranks; @p host_of gives NULL for one it does not know. */
void horon_store_core_name_hosts(struct horon_store_core *core, horon_store_host_of_fn_t host_of,
                                 void *arg);
/** From here on texts about ranks that never came end with what @p describe writes, if anything. */
void horon_store_core_blame(struct horon_store_core *core,
                            void (*describe)(void *arg, char *text, size_t text_bytes), void *arg);
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

/** The member's session fails with this reason, whose text says it all: it leaves by itself then.
 */
void horon_store_core_dismiss(struct horon_store_member *member, horon_status_t status,
                              const char *text);

/** @return OK | ERR_PROTO, the frame is not allowed | ERR_MEMORY; then the member must leave */
horon_status_t horon_store_core_feed(struct horon_store_member *member, const uint8_t *in,
                                     size_t bytes, uint64_t now_ns);

/** What to send to the member next, NULL if nothing; and how much of it was sent. */
const uint8_t *horon_store_core_out(const struct horon_store_member *member, size_t *bytes_out);
void horon_store_core_sent(struct horon_store_member *member, size_t bytes);

/** Fails the sessions in which a member has waited until its limit. @return the next limit, or
 * UINT64_MAX. */
uint64_t horon_store_core_expire(struct horon_store_core *core, uint64_t now_ns);

/** Fails all sessions that are not over, or the next one if there is none. @p text says it all. */
void horon_store_core_fail(struct horon_store_core *core, horon_status_t status, const char *text);

/** Rank @p rank has ended with status 0, which is no failure unless others need it: sessions that
 * it was not in fail, once anybody has joined them. */
void horon_store_core_ended(struct horon_store_core *core, int rank);

/** @return true if a session has failed, not for want of time, and ranks that have not come yet
 * would hear why. */
bool horon_store_core_has_news(const struct horon_store_core *core);

/** Sessions that all ranks have joined. */
int horon_store_core_full_sessions(const struct horon_store_core *core);
/** As in store/server.h. */
bool horon_store_core_joined(const struct horon_store_core *core, int rank);

#endif
