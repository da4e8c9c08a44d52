/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pair: one end of a connection on which Gloo's frames go. Messages match by slot: the n-th that
 * is sent on a slot is the n-th that is received there. Gloo ends its process if a payload comes
 * that nobody waits for, so none is sent without a credit.
 *
 * To another horon a pair speaks better: each says HELLO first, which Gloo skips. Until a first
 * frame tells which it is, nothing is credited: Gloo announces what it sends, too. What is short to
 * a horon goes at once, within a window of bytes that the receiver keeps for what it does not await
 * yet; what is long asks first. While something older waits for a credit of Gloo's kind on a slot,
 * what follows there waits likewise, so the order holds.
 *
 * Thread: one at a time, the owner's. Nothing here waits. Source: the bytes, Gloo's (docs of
 * gloo/transport/tcp); this state machine is horon's own.
 */
#ifndef HORON_LINK_GLOO_WIRE_H
#define HORON_LINK_GLOO_WIRE_H

#include "link/gloo_frame.h"
#include "link/link.h"

/** Longest message that goes eagerly, and the window: what may be unexpected at a receiver. */
#define HORON_GLOO_EAGER_BYTES ((size_t)1 << 18)
#define HORON_GLOO_WINDOW_BYTES ((size_t)4 << 20)

/** A message, embedded by its owner, which keeps it where it is until it is done. */
struct horon_gloo_message {
    uint64_t slot;
    void *data;
    size_t bytes; /* sent; or room: of one that is longer nothing is written */
    size_t got;   /* received, or dropped */
    bool done;
    /* the pair's */
    bool credited, matched;
    /* Of one that is sent: if it must wait, it is for GRANT, and not for a credit of Gloo's kind.
     * Of one that is received: false. */
    bool by_grant;
    struct horon_gloo_message *next;
    size_t moved;     /* head and data */
    uint64_t follows; /* so many bytes of frames that were said, or all */
    uint8_t head[HORON_GLOO_FRAME_BYTES];
};

struct horon_gloo_pair;

/**
 * @param link    connected; the pair's on OK
 * @param native  says HELLO; else only that this rank has joined, as Gloo's tell by nothing
 * @return OK | ERR_MEMORY
 */
horon_status_t horon_gloo_pair_create(struct horon_link *link, bool native,
                                      struct horon_gloo_pair **pair_out);
/** Closes the link. Messages that are not done are forgotten. NULL is a no-op. */
void horon_gloo_pair_destroy(struct horon_gloo_pair *pair);

/** Begins a message, whose slot, data and bytes are set: `done` says when data is free again.
 * @return OK | ERR_MEMORY */
horon_status_t horon_gloo_pair_send(struct horon_gloo_pair *pair,
                                    struct horon_gloo_message *message);
/** Begins to receive one. Likewise. */
horon_status_t horon_gloo_pair_recv(struct horon_gloo_pair *pair,
                                    struct horon_gloo_message *message);
/** Is the next message of a slot on which none is awaited known? @return false: not yet */
bool horon_gloo_pair_announced(const struct horon_gloo_pair *pair, uint64_t slot,
                               size_t *bytes_out);

/**
 * Writes and reads what goes without waiting. Texts are predicates about the peer.
 * @param moved_out set to true if anything was done; else left
 * @return OK, also if the peer is gone and no message waits for it | ERR_PEER_LOST | ERR_PROTO |
 * ERR_MEMORY: the pair is dead
 */
horon_status_t horon_gloo_pair_move(struct horon_gloo_pair *pair, bool *moved_out,
                                    struct horon_error *error);
/** Bytes of messages begun, and of frames, that the peer's system does not have yet: of a pair that
 * is destroyed before it may lose them. May cost a system call. */
size_t horon_gloo_pair_undelivered(const struct horon_gloo_pair *pair);
/** Ends the connection if the peer's system answers no more: as the check of horon_link_ops.
 * @return it has ended now */
bool horon_gloo_pair_check(struct horon_gloo_pair *pair);
/** Why the connection has ended; NULL: it has not. */
const struct horon_error *horon_gloo_pair_end(const struct horon_gloo_pair *pair);
/** Does something wait for room in the connection? */
bool horon_gloo_pair_wants_room(const struct horon_gloo_pair *pair);
/** Is the other end a horon, as far as it has said so? Only tests ask. */
bool horon_gloo_pair_is_native(const struct horon_gloo_pair *pair);
/** Has it said something before HELLO, or instead? */
bool horon_gloo_pair_is_foreign(const struct horon_gloo_pair *pair);
struct horon_link *horon_gloo_pair_link(const struct horon_gloo_pair *pair);

#endif
