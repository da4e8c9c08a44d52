/* SPDX-License-Identifier: Apache-2.0 */
/* Links in shared memory: how their peers are woken, and those that are made after joining. Owner
 * only. */
#ifndef HORON_RINGS_H
#define HORON_RINGS_H

#include "context_state.h"

/** A link in shared memory, to the member @p local_rank of a team on this host. */
struct horon_context_ring {
    struct horon_host *host;
    int local_rank;
    struct horon_ring_wake wake;
};

/** Says how the peer of a ring is woken. */
void horon_rings_aim(struct horon_host *host, int peer, struct horon_context_ring *ring);
/** Lets a link in shared memory lend, if each of its two processes may read the other's memory.
 * Both decide alike. */
void horon_rings_lend(const struct horon_context *ctx, int local_rank, struct horon_link *link);
/** Says in @p host whether its members may read each other's memory. All of them decide alike. */
void horon_rings_see_readable(const struct horon_context *ctx, struct horon_host *host);
/** Begins to make a link in shared memory with a process of this host. @return OK | why it cannot
 * be */
horon_status_t horon_rings_connect(struct horon_context *ctx, int local_rank,
                                   struct horon_error *error);
/** There is a socket to it now; or none can be made. */
void horon_rings_have_socket(struct horon_context *ctx, int local_rank);
void horon_rings_lack_socket(struct horon_context *ctx, int local_rank,
                             const struct horon_error *why);
/** What it sent of a link; the caller closes what is left of it. */
void horon_rings_take_note(struct horon_context *ctx, int local_rank, struct horon_note *note);
/** Gives back the memory, which the engine has no more. */
void horon_rings_deinit(struct horon_context *ctx);

#endif
