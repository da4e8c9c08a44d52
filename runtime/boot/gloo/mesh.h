/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connects this rank with all others of a Gloo full mesh, which may be Gloo's, torch's, Horovod's
 * or horon's. Both sides of a pair are in nobody's care but their own: Gloo authenticates nobody.
 */
#ifndef HORON_BOOT_GLOO_MESH_H
#define HORON_BOOT_GLOO_MESH_H

#include "boot/gloo/published.h"
#include "boot/gloo/store.h"

struct horon_gloo_mesh_options {
    struct horon_gloo_store *store; /* the caller's; with the prefix that all ranks have */
    int rank, size;
    enum horon_gloo_era era; /* 1 or 3 */
    const char *interfaces;  /* the row INTERFACES: the first match listens; "": 127.0.0.1 only */
    uint64_t deadline_ns;    /* of all of it, by horon_clock_ns(); UINT64_MAX: none */
    uint64_t slow_ns;    /* after so long a warning says which ranks lack, or that the store does
                            not answer; 0: none does */
    int64_t patience_ms; /* with one that closed and has not said that it met all; 0: 10 s */
    int (*interrupted)(void *arg); /* asked every 100 ms at least: not 0 ends it; NULL: never */
    void *interrupted_arg;
    struct horon_fds *fds; /* where sockets are noted, or NULL */
    const struct horon_log *log;
};

/**
 * Publishes where this rank listens, and connects with each other rank: with those that publish a
 * greater address it waits for them to come, as Gloo does. Gloo's ranks connect in ascending order
 * and wait for each; here all goes on side by side. A rank of Gloo that connects lazily comes when
 * it first needs this one, which may be never: the timeout says what to unset. Connections of
 * strangers are closed with a warning. A rank that is connected with all others may have done what
 * it had to, and left: a frame of it shows that it was, as that by which a horon greets. One that
 * closes and has said none is lost if others take long. In era 1, where a stranger may have closed,
 * it is lost if it does not come again once all have published.
 *
 * Once all are connected the lowest rank of horon among them warns that nothing is protected.
 *
 * Under the store's prefix it sets "<rank>", in era 1 before that "rank_<rank>", and reads "<i>" of
 * all others. If one of them has published as another era does already, it sets nothing.
 *
 * @param sockets_out [size]; -1 at its own rank. Connected, non-blocking, close-on-exec, with
 *        TCP_NODELAY; in era 3 the sequence numbers are through: the first byte is a frame's. The
 *        caller's. Set only on OK
 * @return OK | ERR_TIMEOUT, naming the ranks that lack, and what of them | ERR_CANCELLED |
 *         ERR_CONFIG, a rank is of another era or number of ranks, or listens where only its own
 *         host reaches, or no such interface | ERR_PROTO, a rank published nonsense |
 *         ERR_PEER_LOST, one refuses the connection or closes it: beside it those that published
 *         nothing are named | ERR_SYSTEM | ERR_MEMORY | what the store says
 */
horon_status_t horon_gloo_mesh_connect(const struct horon_gloo_mesh_options *options,
                                       int *sockets_out, struct horon_error *error);

#endif
