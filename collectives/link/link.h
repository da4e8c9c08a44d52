/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte stream to one peer: a table of operations and an embedding struct. Non-blocking. Any link
 * can be wrapped by another that changes the bytes on their way (test/collectives/wrapped_link.h is
 * one); nobody asks what kind a link is. (docs/design.md 6, "Link".)
 *
 * Thread: one at a time, the owner's. Texts of errors are predicates about the peer ("closed the
 * connection"), so that a caller that knows its name can put it in front.
 */
#ifndef HORON_LINK_LINK_H
#define HORON_LINK_LINK_H

#include "status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct horon_alive;
struct horon_link;

/** What a descriptor is watched for, or was found to be. */
#define HORON_LINK_READ 1u
#define HORON_LINK_WRITE 2u
#define HORON_LINK_END 4u /* found only: the stream has ended, or broke; recv says how */

struct horon_link_ops {
    const char *name; /* "tcp", "ring": also the word in logs */
    /**
     * Sends a prefix of the vector, which holds at least one byte in at most
     * HORON_LINK_VECTOR_MAX entries. @p count 0, only while `interest` asks for it: sends what the
     * link itself still holds of what it took.
     * @return OK, *sent_bytes_out > 0 (of count 0: 0, and nothing is held any more); fewer than
     *         asked means that the link is full now, as AGAIN does | AGAIN: would block |
     *         ERR_PEER_LOST
     */
    horon_status_t (*send)(struct horon_link *link, const struct iovec *vector, int count,
                           size_t *sent_bytes_out, struct horon_error *error);
    /**
     * Receives a prefix of the vector, as above.
     * @return OK, *got_bytes_out > 0; fewer than asked means that nothing more is there now, as
     *         AGAIN does | AGAIN: nothing there | ERR_PEER_LOST, also at the end of the stream
     */
    horon_status_t (*recv)(struct horon_link *link, const struct iovec *vector, int count,
                           size_t *got_bytes_out, struct horon_error *error);
    /** The descriptor that an event loop watches for this link; -1: the link is memory, and only
     * `ready` can tell. A wrapping link gives that of the link inside. */
    int (*descriptor)(const struct horon_link *link);
    /** @return HORON_LINK_* bits to watch the descriptor for, where @p sends: something waits to be
     * sent. A link that holds a part of what it took asks for HORON_LINK_WRITE in any case. */
    unsigned (*interest)(const struct horon_link *link, bool sends);
    /** Would recv give something (or the end), or send take something after it was full, as far as
     * can be known without a system call? True where only recv could tell. No side effect. */
    bool (*ready)(const struct horon_link *link);
    /** The watcher of the descriptor found these HORON_LINK_* bits, each once and when it came
     * about; from the first call on `ready` goes by them. Never called for one without descriptor.
     */
    void (*found)(struct horon_link *link, unsigned events);
    /** Bytes that were taken and that the peer's system does not have yet. A link closed before may
     * lose them: what the peer sends then resets the connection. May cost a system call. */
    size_t (*undelivered)(const struct horon_link *link);
    /** Does the peer's system answer? To be asked several times within the link's limit, while
     * something is in flight. How little the peer's process takes does not matter: it may be
     * stopped, and go on. May cost a system call.
     * @return OK | ERR_PEER_LOST, what was sent is unanswered for longer than the limit */
    horon_status_t (*check)(struct horon_link *link, struct horon_error *error);
    /** Reads the memory of the process at the other end: @p bytes at the address @p at there, into
     * @p to. Only of a link that lends; NULL: none of its kind does.
     * @return OK | ERR_UNSUPPORTED, it cannot be read, or not all of it; @p to may be spoilt */
    horon_status_t (*fetch)(struct horon_link *link, void *to, uint64_t at, size_t bytes);
    /** Says goodbye (what was sent still arrives), closes, frees. Takes no NULL. */
    void (*destroy)(struct horon_link *link);
};

/** The connection has ended, and no goodbye went before; the text is only asked for then.
 * @param how "closed" or "reset". @return ERR_PEER_LOST */
horon_status_t horon_link_ended(const char *how, struct horon_error *error);

/** Slots of a link that is memory, or holds nothing: each does nothing and says so. */
int horon_link_no_descriptor(const struct horon_link *link);
unsigned horon_link_plain_interest(const struct horon_link *link, bool sends);
bool horon_link_always_ready(const struct horon_link *link);
void horon_link_finds_nothing(struct horon_link *link, unsigned events);
size_t horon_link_nothing_undelivered(const struct horon_link *link);
horon_status_t horon_link_always_answers(struct horon_link *link, struct horon_error *error);

/** Entries a vector may have; well below the IOV_MAX of any system. */
#define HORON_LINK_VECTOR_MAX 64

struct horon_link {
    const struct horon_link_ops *ops;
    bool lends; /* each end may ask the other one to fetch; both know this alike */
    /* Of one that lends: words that both ends see, of what this one lends and of what the other one
     * does; see mux_loan.c */
    _Atomic uint64_t *own_stamp;
    const _Atomic uint64_t *peer_stamp;
};

static inline size_t horon_link_vector_bytes(const struct iovec *vector, int count)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += vector[i].iov_len;
    return bytes;
}

/* ---- TCP: a connected socket; the link owns it ---- */

/**
 * Makes the socket non-blocking and sets its options: no delay and keepalive.
 * @param socket          connected, TCP; the link's on OK, else still the caller's
 * @param peer_timeout_ms how long the peer's system may leave data (see `check`) or, on a link that
 *                        is idle, probes without an answer; <= 0: no limit. An idle link is probed
 *                        in whole seconds, so that limit may be up to 2 s longer
 * @return OK | ERR_MEMORY | ERR_SYSTEM, the socket refused an option
 */
horon_status_t horon_link_tcp_create(int socket, int64_t peer_timeout_ms,
                                     struct horon_link **link_out, struct horon_error *error);

/* ---- Ring: two single-producer single-consumer byte rings in memory both sides map ---- */

/** Of what is written at a time: a frame of few bytes. With the counters they fill two lines, of
 * which the first one has room for so many: a message of 8 bytes. */
#define HORON_RING_SHORT_WORDS 13
#define HORON_RING_FIRST_WORDS 6
#define HORON_RING_SHORT_BYTES (HORON_RING_SHORT_WORDS * sizeof(uint64_t))

/** One direction. All zero is empty. What different sides store is on lines of its own. */
struct horon_ring {
    _Alignas(64) _Atomic uint64_t written; /* bytes ever written; only the writer stores it */
    _Atomic uint64_t short_at;             /* where in the stream short_words begin; likewise */
    _Atomic uint64_t short_words[HORON_RING_SHORT_WORDS]; /* what was written last, if it is short:
                                                              once more, where the reader looks */
    _Atomic uint64_t rest_at;                   /* as short_at, for the words on its own line */
    _Alignas(64) _Atomic uint64_t read;         /* bytes ever read; only the reader stores it */
    _Alignas(64) _Atomic uint32_t writer_waits; /* set by a writer that found it full, until all
                                                   its bytes are placed; only it stores it */
    _Atomic uint32_t writer_closed;             /* nothing follows; likewise */
    _Atomic uint64_t stamp;                     /* of what its writer lends; likewise */
    _Alignas(64) uint8_t data[];
};
/** Bytes of a ring that holds @p data_bytes (a power of two). */
size_t horon_ring_bytes(size_t data_bytes);

/** What a ring does after it published bytes or made room; both may be NULL. Run by the owner. */
struct horon_ring_wake {
    void (*written)(void *arg); /* the peer has something to read */
    void (*full)(
        void *arg); /* instead of that, if not all that is to go found room; NULL: written */
    void (*room)(void *arg); /* the peer waited for room, and there is some now */
    void *arg;
};

/**
 * @param out, in    in shared memory (or heap memory, in tests), each with @p data_bytes, 64-byte
 *                   aligned. Not owned; they must stay mapped until the link is destroyed, which
 *                   marks the end of the stream in @p out and wakes nobody
 * @param data_bytes a power of two
 * @param wake       copied; NULL: wake nobody
 * @return OK | ERR_INVALID, data_bytes is no power of two | ERR_MEMORY
 */
horon_status_t horon_link_ring_create(struct horon_ring *out, struct horon_ring *in,
                                      size_t data_bytes, const struct horon_ring_wake *wake,
                                      struct horon_link **link_out);
/** The link lends: its peer is the process @p pid, which has proven itself. Both ends say so,
 * before anything goes, or none. @param pid <= 0: it is not known here, and each fetch fails
 * @param alive what that process holds, or each fetch fails; it must outlive the link */
void horon_link_ring_lend(struct horon_link *link, pid_t pid, struct horon_alive *alive);

#endif
