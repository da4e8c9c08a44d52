/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many conversations over one link: control messages, and data transfers with flow control.
 *
 * A transfer is matched by (channel, sequence, tag). Up to `eager_bytes` of it may go out before
 * the receiver has posted it, if the peer still has eager room; beyond that it waits for the
 * receiver's credit, which posting grants. A receiver therefore never has to stop reading, control
 * and abort always pass, and no channel ever blocks another. Data goes straight into posted memory.
 * On a link that lends a transfer above `eager_bytes` is read by its receiver where it lies.
 * Sans-I/O but for the link's non-blocking calls.
 *
 * Thread: one at a time, the owner's. Nothing here blocks.
 */
#ifndef HORON_LINK_MUX_H
#define HORON_LINK_MUX_H

#include "link/link.h"
#include "owner.h"

#include <stdbool.h>
#include <stdint.h>

struct horon_mux;
struct horon_mux_announced; /* mux_announced.h */

/** Where a transfer lies in the memory of its sender. It is what was lent while the word that both
 * ends of the link see says `stamp`. */
struct horon_mux_loan {
    uint64_t at, stamp;
};

/** Names one transfer between two ranks; unique among those in flight in one direction. Any order
 * of posting will do. A message from rank to rank, which has no operation, is one by itself: its
 * user's tag and its number among those of that tag make its sequence. */
struct horon_transfer_id {
    uint32_t channel;  /* team of ranks and kind of traffic */
    uint64_t sequence; /* operation on the channel; never used again once it was forgotten */
    uint64_t tag;      /* which piece: chunk, segment, stage */
};

struct horon_mux_queue {
    struct horon_transfer *first;
    struct horon_transfer **last; /* where the next one is linked */
};

/** Where a mux says of transfers that were posted how they ended, to one that does not look at
 * each. */
struct horon_mux_ends {
    struct horon_mux_queue done; /* in the order of their ends */
    bool differs;                /* the status of one is ERR_MISMATCH */
};
void horon_mux_ends_init(struct horon_mux_ends *ends);
/** @return one that is done, each once; NULL: there is none */
struct horon_transfer *horon_mux_ends_take(struct horon_mux_ends *ends);

/** One transfer. Owner: the poster; at the same address until done or horon_mux_forget(). */
struct horon_transfer {
    struct horon_transfer_id id;
    void *data; /* [bytes] read for a send, written for a receive; NULL of a receive: what comes is
                   dropped */
    size_t bytes;   /* both sides must say the same number; 0 is allowed and still meets */
    uint64_t check; /* hash of the operation's description: one value for all transfers of a
                       (channel, sequence), on both sides */
    struct horon_mux_ends *ends; /* told when it ends later than its post; NULL: nobody is */
    bool done;                   /* set by the mux: `data` is the poster's again */
    horon_status_t status; /* OK, or ERR_MISMATCH: the peer says another check or size for this
                              operation. It will never be done; see horon_mux_transfer_error() */
    /* for the mux alone; set by posting */
    struct horon_transfer *next;        /* in a bucket */
    struct horon_transfer *queued_next; /* in a queue of things to send */
    size_t moved_bytes;                 /* received, or handed to the output */
    size_t limit_bytes;                 /* a send's share that may go out */
    uint64_t their_check, their_bytes;  /* on a mismatch */
    struct horon_mux_loan loan;         /* a receive: where it lies, if it was lent */
    uint32_t state;                     /* HORON_MUX_* bits */
};

struct horon_mux_options {
    size_t eager_bytes;       /* data that may go before credit, for each transfer */
    size_t eager_total_bytes; /* likewise, for all unposted transfers together: what the peer must
                                 buffer. Both as agreed among ranks; used up to 4 GiB - 1 */
    size_t control_bytes_max; /* longest control message; a longer one from the peer is ERR_PROTO */
    uint32_t generation;      /* carried and checked in every frame */
    int peer;                 /* rank, for on_control */
    const char *peer_name;    /* "rank 3 (host-b)"; must outlive the mux */
    const struct horon_owner *owner; /* may call, for HORON_ASSERT_OWNER(); NULL: any thread */
    /**
     * Called from progress for each control message; it may post and forget, but not progress or
     * destroy. @p bytes is valid during the call only.
     * @return OK, or an error that ends the mux
     */
    horon_status_t (*on_control)(void *arg, int peer, const void *bytes, size_t byte_count,
                                 struct horon_error *error);
    /**
     * Likewise for each transfer that announces itself, before the mux looks at its data. NULL:
     * none may.
     */
    horon_status_t (*on_announced)(void *arg, int peer, struct horon_mux_announced *announced,
                                   struct horon_error *error);
    /** Has all on a channel ended here for good, as its team has failed or was removed? Then what
     * still comes for it is dropped. NULL: channels never end. */
    bool (*is_over)(void *arg, uint32_t channel);
    void *arg;
};

/** Bytes of control messages that may wait to be sent: the peer reads nothing if there are more. */
#define HORON_MUX_CONTROL_QUEUE_BYTES_MAX ((size_t)64 << 20)
/** Transfers in flight beyond the eager quota, each direction: bounds what a peer may announce. */
#define HORON_MUX_WAITING_MAX 65536u
/** Eager transfers, however small, that the receiver has not posted yet. */
#define HORON_MUX_EAGER_TRANSFERS_MAX 1024u

/** Takes the link (owner passes on OK). @return OK | ERR_MEMORY */
horon_status_t horon_mux_create(struct horon_link *link, const struct horon_mux_options *options,
                                struct horon_mux **mux_out);
/** Closes the link; posted transfers are their owners' again. NULL is a no-op. */
void horon_mux_destroy(struct horon_mux *mux);

/** Queues a control message (copied); a dead mux drops it. @return OK | ERR_MEMORY, too many wait |
 * ERR_INVALID, above control_bytes_max */
horon_status_t horon_mux_post_control(struct horon_mux *mux, const void *bytes, size_t byte_count);

/**
 * Queues a transfer, whose upper fields (id .. check) the caller has set. Progress sets `done`; a
 * receive of what has already come is done at once.
 * @return OK | ERR_MEMORY, HORON_MUX_WAITING_MAX is reached | ERR_MISMATCH, the peer has announced
 *         another size or check for this operation; `status` of the transfer is set, too.
 *         On an error the transfer is not posted
 */
horon_status_t horon_mux_post_send(struct horon_mux *mux, struct horon_transfer *transfer,
                                   struct horon_error *error);
horon_status_t horon_mux_post_recv(struct horon_mux *mux, struct horon_transfer *transfer,
                                   struct horon_error *error);

/**
 * Sends a transfer here and now, in one frame that announces it to the peer, whose receives are
 * posted once they hear of it. Only what is short, on a link that is memory, and while nothing
 * waits to be sent: what is posted later stays behind it. It is done then, or, if the link is full
 * in the midst of it, posted.
 * @return false: it is neither
 */
bool horon_mux_send_now(struct horon_mux *mux, struct horon_transfer *transfer);

/** Writes what the two sides say differently about a transfer whose status is ERR_MISMATCH.
 * @return ERR_MISMATCH */
horon_status_t horon_mux_transfer_error(const struct horon_mux *mux,
                                        const struct horon_transfer *transfer,
                                        struct horon_error *error);

/** Takes back the transfers of an operation that ended in an error, in both directions: when it
 * returns, the mux knows none of them. What has come or still comes for it is dropped, what had
 * begun to go out is completed from a copy. NULL is a no-op. */
void horon_mux_forget(struct horon_mux *mux, uint32_t channel, uint64_t sequence);

/** Forgets what has come for a channel of which nobody here carries out operations any more: it
 * holds room that the peer could use. Its sends that have not begun never will. NULL: a no-op. */
void horon_mux_forget_channel(struct horon_mux *mux, uint32_t channel);

/**
 * Moves what can be moved, both ways, a bounded amount. All that the peer sent is read before it
 * counts as lost, also if nothing can be sent to it any more.
 * @param moved_out set to true if anything was moved; else left
 * @return OK | ERR_PEER_LOST | ERR_PROTO | ERR_MEMORY | what on_control said: the mux is dead and
 *         says so each time; the text names the peer
 */
horon_status_t horon_mux_progress(struct horon_mux *mux, bool *moved_out,
                                  struct horon_error *error);

/** Offers the link at once what waits to be sent, unless it is full: the next progress may come
 * behind a look at all links. That says what goes wrong. NULL is a no-op. */
void horon_mux_push(struct horon_mux *mux);
/** The peer's process is gone, which its link does not say by itself (a ring): nothing more is
 * sent. Progress reads what it left, then says ERR_PEER_LOST with @p what, a predicate. */
void horon_mux_peer_gone(struct horon_mux *mux, const char *what);
/** Asks the link whether the peer's system answers. If not, nothing more is sent, and progress says
 * what the link said. To be called several times within PEER_TIMEOUT while an operation is in
 * flight. NULL is a no-op. May cost a system call. */
void horon_mux_check(struct horon_mux *mux);
/** @return OK, or what progress said last: the mux is dead, and what is not done never will be.
 * @p error is set then */
horon_status_t horon_mux_failure(const struct horon_mux *mux, struct horon_error *error);
/** Would progress move anything now, as far as can be known without a system call? */
bool horon_mux_wants_turn(const struct horon_mux *mux);
/** Has it bytes to send that the link did not take? And control messages? Not of NULL. */
bool horon_mux_wants_write(const struct horon_mux *mux);
bool horon_mux_wants_control(const struct horon_mux *mux);
/** Bytes, those of sends that wait for credit not counted, that the peer's system does not have
 * yet. 0: it has everything, or the mux is dead or NULL. May cost a system call. */
size_t horon_mux_undelivered(const struct horon_mux *mux);
/** A transfer of more bytes waits until the peer has posted it. 0 of NULL. */
size_t horon_mux_eager_bytes(const struct horon_mux *mux);
/** The link, to be asked or watched; NULL is given for NULL. */
struct horon_link *horon_mux_link(const struct horon_mux *mux);
/** Would another turn move something: bytes to send that the link was not offered since it was last
 * full, or has room for again (a ring says so to sleepers only), or a lost peer's last to read? */
bool horon_mux_has_unsent(const struct horon_mux *mux);
/** Payload bytes sent and received so far. Tests see by it that nothing travels twice. */
void horon_mux_bytes(const struct horon_mux *mux, uint64_t *sent_out, uint64_t *received_out);

#endif
