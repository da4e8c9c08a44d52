/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the store's server does with ranks that have proven themselves: sessions of all ranks,
 * rounds in each. Takes the frames of their streams, and gives the letters for them, whether a
 * stream is open yet or not: no socket is needed here, and no clock. Nothing here can be reached
 * without the job key.
 */
#ifndef HORON_BOOT_STORE_CORE_H
#define HORON_BOOT_STORE_CORE_H

#include "boot/identity/address.h"
#include "boot/store/frame.h"
#include "boot/store/stream.h"
#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct horon_store_core;

/** One rank in one session. */
struct horon_store_member {
    struct horon_store_session *session;
    int rank;
    struct horon_store_stream stream; /* for the caller to open; once it ends the member has left */
    struct horon_address from;        /* where it came from; set by the caller; empty: not known */
    enum horon_member_state {
        HORON_MEMBER_NEVER = 0, /* it has not come yet */
        HORON_MEMBER_HERE,
        HORON_MEMBER_WAITS, /* it has put its blob */
        HORON_MEMBER_LEFT,
        HORON_MEMBER_STATES
    } state;
    enum horon_store_put put; /* what its latest PUT is */
    uint8_t *blob;            /* while it waits */
    uint32_t blob_bytes;
};

struct horon_store_core_options {
    int size;
    struct horon_pump *pump; /* of the streams */
    /* NULL, or names the host of a rank in texts; NULL for one that is not known */
    const char *(*host_of)(void *arg, int rank);
    void *host_arg;
    /* NULL, or writes why ranks may not have come, "" if that is not known */
    void (*explain)(void *arg, char *text, size_t text_bytes);
    void *explain_arg;
};

/** @return NULL: no memory */
struct horon_store_core *horon_store_core_create(const struct horon_store_core_options *options);
/** Closes all streams. NULL is a no-op. */
void horon_store_core_destroy(struct horon_store_core *core);

/**
 * Rank @p rank joins the next session that it was not in yet. Its stream gets an answer for each
 * PUT, and at most one FAIL, the last.
 * @return OK | ERR_MEMORY | ERR_INVALID, no such rank | ERR_PROTO, too many sessions are open
 */
horon_status_t horon_store_core_join(struct horon_store_core *core, int rank,
                                     struct horon_store_member **member_out);

/** Closes its stream. If the session's last round is not over, the others in it fail. It may be
 * freed, with its session. */
void horon_store_core_leave(struct horon_store_member *member);

/** @return the member that rank @p rank is in any session, if it has not left; else NULL */
struct horon_store_member *horon_store_core_find(struct horon_store_core *core, int rank);

/** The member's session fails with @p why, whose text says it all: it leaves by itself then. */
void horon_store_core_dismiss(struct horon_store_member *member, const struct horon_error *why);

/** Fails all ranks that are joining now, or will join a session begun by now, with this reason,
 * whose text says it all: a launcher calls it when a rank died before it joined, and rank 0 when it
 * cannot join itself. */
void horon_store_core_fail(struct horon_store_core *core, const struct horon_error *why);

/** A launcher saw @p rank end with status 0, which is no failure unless others need it: sessions
 * that it was not in fail, once anybody has joined them. */
void horon_store_core_ended(struct horon_store_core *core, int rank);

/** @return true while some letter has not been handed to the kernel yet. */
bool horon_store_core_busy(const struct horon_store_core *core);

/** @return true if a session has failed, not for want of time, and ranks that have not come yet
 * would hear why. */
bool horon_store_core_has_news(const struct horon_store_core *core);

/** Sessions that all ranks have joined. */
int horon_store_core_full_sessions(const struct horon_store_core *core);

#endif
