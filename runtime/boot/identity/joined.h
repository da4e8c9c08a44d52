/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a process that started this one has joined already as the same rank. */
#ifndef HORON_BOOT_JOINED_H
#define HORON_BOOT_JOINED_H

#include "boot/fds.h"
#include "boot/identity/identity.h"

/** Says that this process has joined as @p id, until the descriptor is closed: @return it, or -1;
 * nobody can know then. */
int horon_joined_say(const struct horon_identity *id);

/** @return OK | ERR_CONFIG, a process that started this one, directly or not, has joined as @p id.
 * @param fds NULL, or holds forks off while there is a socket. Blocks: no. */
horon_status_t horon_joined_before(const struct horon_identity *id, const struct horon_fds *fds,
                                   struct horon_error *error);

#endif
