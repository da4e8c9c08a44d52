/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves the store over TCP, in the turns of its owner's pump; never waits. README.md says what its
 * sessions and selections are.
 */
#ifndef HORON_BOOT_STORE_SERVER_H
#define HORON_BOOT_STORE_SERVER_H

#include "address.h"
#include "boot/connect/prover.h"
#include "boot/store/stream.h"
#include "status.h"

#include <stdbool.h>
#include <stdint.h>

struct horon_acceptor;

struct horon_store_server_options {
    /* Its hello says how many ranks the job has, 1..HORON_BOOT_SIZE_MAX, and what tells it from
     * others at the same address. Without a given key: loopback only. A launcher serves one session
     * after another; rank 0 serves one, and stops listening once all ranks have come. */
    struct horon_self self;
    /* NULL, or names the hosts of ranks in texts about them; NULL for one that is not known */
    const char *(*host_of)(void *arg, int rank);
    void *host_arg;
    bool named; /* ranks look for it at several ports, of which its own has a sign (listen.h) */
    /* So long after a rank has come a warning says which ones the others wait for; 0: never */
    uint64_t slow_ns;
    horon_link_wrap_fn_t wrap; /* NULL, or wraps the link of each session */
};

/** One rank in one session. */
struct horon_store_member {
    struct horon_store_session *session;
    int rank;
    struct horon_store_stream stream; /* once it ends the member has left */
    struct horon_address from;        /* where it came from; empty: not known */
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

/** Others read its port. */
struct horon_store_server {
    struct horon_store_server_options options;
    int size;                              /* ranks of the job */
    struct horon_acceptor *acceptor;       /* once it listens */
    int port;                              /* where, at each of its addresses */
    int wanted_port;                       /* the first that it tried; 0: it took any */
    uint64_t next_index;                   /* of the first session that nobody has joined */
    int full_sessions;                     /* that all ranks have joined */
    struct horon_timer slow;               /* to say which ranks lack, if none comes before */
    struct horon_store_session *sessions;  /* oldest first */
    struct horon_store_server *selections; /* those it has, latest first */
    struct horon_store_server *next;       /* of the selections that it is one of */
    int selection_count;
    struct horon_store_server *launch; /* of a selection: the server that has it; else NULL */
    int *places; /* of a selection, once it is told: by the launch's ranks theirs in it, or -1 */
    struct {
        uint64_t joins;
        enum horon_rank_end {
            HORON_RANK_LIVES = 0, /* for all we know */
            HORON_RANK_ENDED,     /* with status 0: it joins no more */
            HORON_RANK_FAILED     /* nor does this one */
        } end;
    } ranks[]; /* [size] */
};

/** @return with nobody in it, and not listening yet; NULL: no memory */
struct horon_store_server *horon_store_server_create(
    const struct horon_store_server_options *options);

/**
 * Binds and listens.
 * @param addresses where, all at one port; one that this machine refuses to bind (it may be on its
 *        way in or out) is passed over if another can be
 * @param first, last the first free port of these; 0: any
 * @return OK | ERR_CONFIG, an address that is not the loopback, without a key; too many ranks |
 *         ERR_SYSTEM, the port is taken or the system refuses: errno says why | ERR_MEMORY
 */
horon_status_t horon_store_server_listen(struct horon_store_server *server,
                                         const struct horon_addresses *addresses, int first,
                                         int last, struct horon_error *error);

/**
 * Fails all ranks that are joining now, or will join a session begun by now, with this reason,
 * whose text says it all: a launcher calls it when it ends the job, or for a rank that failed; and
 * rank 0 when it cannot join itself.
 * @param rank which has ended: no failure unless others need it. Sessions that it was not in fail,
 * once anybody has joined them. -1: none has
 * @param why NULL: it ended with status 0, and nobody fails for that alone
 */
void horon_store_server_tell(struct horon_store_server *server, int rank,
                             const struct horon_error *why);

/** @return true while some answer has not been handed to the kernel yet. */
bool horon_store_server_busy(const struct horon_store_server *server);

/** @return true if a session has failed, not for want of time, and ranks that have not come yet
 * would hear why. */
bool horon_store_server_has_news(const struct horon_store_server *server);

/** Closes everything. NULL is a no-op. */
void horon_store_server_destroy(struct horon_store_server *server);

/** @return the server of the job that this hello means, @p server or a selection, which is made if
 * need be; NULL: no memory, or too many selections */
struct horon_store_server *horon_store_server_select(struct horon_store_server *server,
                                                     const struct horon_hello *hello);

/* ---- core.c, for server.c; nothing of it can be reached without the job key ---- */

/** Which ranks others wait for now, in the oldest session where any wait. @return false: in none */
bool horon_store_server_awaits(const struct horon_store_server *server, char *text,
                               size_t text_bytes);

/**
 * Rank @p rank joins the next session that it was not in yet. Its stream, which is not open, gets
 * an answer for each PUT, and at most one FAIL, the last.
 * @return OK | ERR_MEMORY | ERR_INVALID, no such rank | ERR_PROTO, too many sessions are open
 */
horon_status_t horon_store_server_join(struct horon_store_server *server, int rank,
                                       struct horon_store_member **member_out);

/** Closes its stream. If the session's last round is not over, the others in it fail. It may be
 * freed, with its session. */
void horon_store_server_leave(struct horon_store_member *member);

/** @return the member that rank @p rank is in any session, if it has not left; else NULL */
struct horon_store_member *horon_store_server_find(struct horon_store_server *server, int rank);

/** The member's session fails with @p why, whose text says it all: it leaves by itself then. */
void horon_store_server_dismiss(struct horon_store_member *member, const struct horon_error *why);

#endif
