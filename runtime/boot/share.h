/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the memory of a host's ranks, and passes it around: each rank ends with all of it mapped.
 */
#ifndef HORON_BOOT_SHARE_H
#define HORON_BOOT_SHARE_H

#include "boot/boot.h"
#include "boot/pump.h"

struct horon_share;

struct horon_share_options {
    const struct horon_topology *topology; /* outlives the share */
    size_t control_bytes, arena_bytes;
    int group_ranks; /* ranks of this host that share our control group's memory limit */
};

/** @param pump, host_name outlive the share; of this host, for texts. @return OK | ERR_MEMORY */
horon_status_t horon_share_create(struct horon_pump *pump, const char *host_name,
                                  struct horon_share **share_out, struct horon_error *error);

/**
 * Listens at an abstract unix socket of a random name, before anybody knows who will lead.
 * @param name [name_bytes] the name, to be put on our profile; "" if this process cannot share
 * memory
 * @return OK, *fd_out is the caller's; -1 with "" | ERR_SYSTEM
 */
horon_status_t horon_share_listen(int rank, char *name, size_t name_bytes, int *fd_out,
                                  struct horon_fds *fds, const struct horon_log *log,
                                  struct horon_error *error);

/**
 * Adds a proven connection to a rank of this host, before the start or after: the leader has one to
 * each member, a member one to the leader.
 * @param socket the share's from now on, in any case
 */
void horon_share_add(struct horon_share *share, int rank, int socket);

/**
 * Makes our own memory and begins to pass it.
 * @param boot where everything goes: control and local[], allocated here
 * @return OK | ERR_MEMORY, refused, with how much and what there is | ERR_SYSTEM
 */
horon_status_t horon_share_start(struct horon_share *share,
                                 const struct horon_share_options *options, struct horon_boot *boot,
                                 struct horon_error *error);

/** @return OK, all is mapped here and sent | AGAIN, turn the pump | the failure */
horon_status_t horon_share_state(const struct horon_share *share, struct horon_error *error);

/** What was shared, and the sockets after a success, are the boot's. NULL is a no-op. */
void horon_share_destroy(struct horon_share *share);

#endif
