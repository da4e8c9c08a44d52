/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the memory of a host's ranks, and passes it around: each rank ends with all of it mapped.
 */
#ifndef HORON_BOOT_SHARE_H
#define HORON_BOOT_SHARE_H

#include "boot/boot.h"

struct horon_share;

struct horon_share_options {
    struct horon_pump *pump; /* outlives the share, as does boot */
    struct horon_boot *boot; /* whose topology it is, and where everything goes: control, local[] */
    size_t control_bytes, arena_bytes;
    int group_ranks; /* ranks of this host that share our control group's memory limit */
};

/** Makes our own memory. @return OK | ERR_MEMORY, refused, with how much and what there is |
 * ERR_SYSTEM */
horon_status_t horon_share_create(const struct horon_share_options *options,
                                  struct horon_share **share_out, struct horon_error *error);

/**
 * The boot has a proven connection to a rank of this host: if memory goes between the two directly,
 * as it does between the leader and each member, that begins. If it fails the socket is closed.
 * NULL is a no-op.
 */
void horon_share_connected(struct horon_share *share, int rank);

/** @return OK, all is mapped here and sent | AGAIN, turn the pump | the failure */
horon_status_t horon_share_state(const struct horon_share *share, struct horon_error *error);

/** @return a rank that has not sent what this one waits for */
int horon_share_awaited(const struct horon_share *share);

/** What was shared, and the sockets after a success, are the boot's. NULL is a no-op. */
void horon_share_destroy(struct horon_share *share);

#endif
