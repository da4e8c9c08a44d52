/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the memory of a host's ranks, and passes it around: each rank ends with all of it mapped.
 */
#ifndef HORON_BOOT_SHARE_H
#define HORON_BOOT_SHARE_H

#include "boot/boot.h"
#include "boot/pump.h"

struct horon_share;

/** What connects us to another rank of the host, from horon_host_take(). */
struct horon_share_peer {
    int socket; /* proven; -1: none. A member has one, to the leader */
    int pidfd;  /* leader: of that rank's process */
};

struct horon_share_options {
    struct horon_pump *pump; /* outlives the share, as does topology */
    const struct horon_topology *topology;
    size_t control_bytes, arena_bytes;
    int group_ranks; /* ranks of this host that share our control group's memory limit */
};

/**
 * Makes our own memory and starts.
 * @param peers [host size] by local rank; the descriptors are the share's from now on, in any case
 * @param boot where everything goes: control and local[], allocated here
 * @return OK | ERR_MEMORY, refused, with how much and what there is | ERR_SYSTEM
 */
horon_status_t horon_share_create(const struct horon_share_options *options,
                                  const struct horon_share_peer *peers, struct horon_boot *boot,
                                  struct horon_share **share_out, struct horon_error *error);

/** @return OK, all is mapped here and sent | AGAIN, turn the pump | the failure */
horon_status_t horon_share_state(const struct horon_share *share, struct horon_error *error);

/** Closes the sockets; what was shared stays the boot's. NULL is a no-op. */
void horon_share_destroy(struct horon_share *share);

#endif
