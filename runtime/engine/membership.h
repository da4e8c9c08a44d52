/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A membership of the job: which ranks there are, on which hosts, and the links to them. It is one
 * object behind one pointer of the engine, so that it can be replaced as a whole between two
 * operations. Every frame carries its generation, and so does the head of every small slot: nothing
 * of an older one is ever taken for something of this one. Result slots, chunk slots and flags need
 * not carry it, since ranks meet before they use the data there. Configuration, names and requests
 * outlive it.
 * (docs/design.md 6, "Membership".)
 */
#ifndef HORON_ENGINE_MEMBERSHIP_H
#define HORON_ENGINE_MEMBERSHIP_H

#include "config.h"
#include "link/mux.h"
#include "link/poller.h"
#include "topology/topology.h"

struct horon_membership_options {
    const struct horon_topology *topology; /* must outlive the membership */
    struct horon_link **links; /* [size] to each rank or NULL; taken over, also if creation fails */
    struct horon_poller *poller; /* watches them; outlives the membership. NULL: nobody does */
    uint32_t generation;
    const struct horon_config *config;
    const struct horon_owner *owner; /* of the links; NULL: a test with one thread */
    /* of all links, as horon_mux_options has it */
    horon_status_t (*on_control)(void *arg, int peer, const void *bytes, size_t byte_count,
                                 struct horon_error *error);
    horon_status_t (*on_announced)(void *arg, int peer, struct horon_mux_announced *announced,
                                   struct horon_error *error);
    bool (*is_over)(void *arg, uint32_t channel); /* likewise */
    void *arg;
};

/* Of a rank to which there may be a link. Which moves are legal says a table in membership.c. */
enum horon_peer_state {
    HORON_PEER_UNLINKED,
    HORON_PEER_CONNECTING, /* this rank has asked for a link; the other side may make it, too */
    HORON_PEER_UNREACHED,  /* that failed, and nobody has been told yet */
    HORON_PEER_LINKED,
    HORON_PEER_LOST
};

/* Ranks are those of the job. */
struct horon_membership {
    struct horon_membership_options options; /* but for the links */
    const struct horon_topology *topology;
    uint32_t generation;
    char (*rank_name_texts)[96];
    const char **rank_names;    /* [size] "rank 3 (host-b)" */
    struct horon_mux **mux_of;  /* [size] every link of this rank that is well */
    struct horon_mux **dead_of; /* [size] those that failed: what came can be taken */
    int *peers;                 /* [peer_count] ranks with a link */
    int peer_count;
    bool *left;  /* [size] ranks that said themselves that they leave */
    bool *ended; /* [size] that said so on their link, behind all they sent */
    /* [size] whose side of the link is known to be there, too: what this rank sends on it is read,
     * even if this rank leaves then */
    bool *mutual;
    bool *gone;                    /* [size] whose link has failed, or whose process has ended */
    enum horon_peer_state *states; /* [size] */
    uint64_t changes; /* that a message may have waited for; and messages begun without a link */
    struct horon_error **failures; /* [size] why one was not reached; NULL: no memory to say */
};

/** @return OK | ERR_MEMORY | ERR_SYSTEM */
horon_status_t horon_membership_create(const struct horon_membership_options *options,
                                       struct horon_membership **membership_out,
                                       struct horon_error *error);
/** Closes the links. NULL is a no-op. */
void horon_membership_destroy(struct horon_membership *membership);
/** A link to a rank that had none; taken over, also on failure.
 * @return OK | ERR_MEMORY | ERR_SYSTEM, it cannot be watched */
horon_status_t horon_membership_add_link(struct horon_membership *membership, int rank,
                                         struct horon_link *link, struct horon_error *error);
/** May a link to a rank be made, here or there? */
bool horon_membership_may_link(const struct horon_membership *membership, int rank);
/** Somebody here connects to a rank that is not linked. */
void horon_membership_expect_link(struct horon_membership *membership, int rank);
/** It has failed. Nothing happens if there is a link, which the other side made, or if nobody asks
 * for one any more. */
void horon_membership_lack_link(struct horon_membership *membership, int rank,
                                const struct horon_error *why);
/** Nobody here asks for a link to it any more: how a try ends is told to nobody. */
void horon_membership_forget_try(struct horon_membership *membership, int rank);
/** Why a rank was not reached. @return its status */
horon_status_t horon_membership_take_failure(struct horon_membership *membership, int rank,
                                             struct horon_error *error);
/** The link to @p rank has failed: nothing is sent any more. What came from it can still be taken.
 */
void horon_membership_lose_link(struct horon_membership *membership, int rank);
/** The link to @p rank has ended, and its other side never had it: there is none, and one may be
 * made. @return what was the link, for the caller to destroy */
struct horon_mux *horon_membership_take_link(struct horon_membership *membership, int rank);
/** A mux as all of this membership are, for a link that the caller owns. */
horon_status_t horon_membership_make_mux(const struct horon_membership *membership, int rank,
                                         struct horon_link *link, struct horon_mux **mux_out,
                                         struct horon_error *error);

/** Longest control message between ranks, its kind included. */
#define HORON_CONTROL_BYTES_MAX ((size_t)80 << 10)

#endif
