/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets of a mesh while it is being connected: what mesh.c has turned. */
#ifndef HORON_BOOT_GLOO_PAIRS_H
#define HORON_BOOT_GLOO_PAIRS_H

#include "boot/gloo/mesh.h"

enum horon_gloo_pair_state {
    HORON_GLOO_PAIR_LOOKING, /* for what it publishes; it may have come already */
    HORON_GLOO_PAIR_CONNECTING,
    HORON_GLOO_PAIR_WAITING, /* for it to come */
    HORON_GLOO_PAIR_DONE,
};

struct horon_gloo_meeting_pair {
    enum horon_gloo_pair_state state;
    struct horon_gloo_peer peer; /* once it is not LOOKING */
    int fd;                      /* -1: none yet */
    struct horon_address from;   /* where it came from, if it came */
    bool came;                   /* else this rank connected */
    bool closed;                 /* by the other side; WAITING, if it may have been a stranger */
    bool left;                   /* it closed and had met all others before, as it has said */
    int poll_at;                 /* among polls; -1: not there */
};

/* A connection that has not said yet which rank it is; era 3. */
struct horon_gloo_guest {
    int fd;
    struct horon_address from;
    uint8_t sequence[8];
    size_t got;
    int poll_at;
};

struct horon_gloo_pairs {
    const struct horon_gloo_mesh_options *options;
    int listener_count; /* era 1: of each other rank, ascending; era 3: one */
    int *listeners;
    struct horon_address *at;              /* [listener_count] where they listen */
    struct horon_gloo_meeting_pair *items; /* [size] */
    int guest_count, guests_max;
    struct horon_gloo_guest *guests;
    struct pollfd *polls;
    uint64_t closed_ns; /* when the first that was there closed, or, in era 1, all had published */
    int refused;        /* strangers */
    struct horon_address refused_last;
};

/** Listens. @return OK; end it with deinit in any case | ERR_CONFIG | ERR_SYSTEM | ERR_MEMORY */
horon_status_t horon_gloo_pairs_init(struct horon_gloo_pairs *pairs,
                                     const struct horon_gloo_mesh_options *options,
                                     struct horon_error *error);
/** Closes all that was not taken. */
void horon_gloo_pairs_deinit(struct horon_gloo_pairs *pairs);

/** The peer of a pair that was LOOKING is known: connects, or waits for it to come. */
horon_status_t horon_gloo_pairs_found(struct horon_gloo_pairs *pairs, int rank,
                                      const struct horon_gloo_peer *peer,
                                      struct horon_error *error);

/** Waits at most @p pause_ms for something to happen, and handles it.
 * @return OK, also if nothing has | as horon_gloo_wait_for() | ERR_PEER_LOST */
horon_status_t horon_gloo_pairs_turn(struct horon_gloo_pairs *pairs,
                                     const struct horon_gloo_wait *wait, int pause_ms,
                                     struct horon_error *error);

/** Is the rank on another host, as far as is known of it? */
bool horon_gloo_peer_is_elsewhere(const struct horon_gloo_peer *peer);

bool horon_gloo_pairs_done(const struct horon_gloo_pairs *pairs);

/** Gives away the sockets. */
void horon_gloo_pairs_take(struct horon_gloo_pairs *pairs, int *sockets_out);

#endif
