/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the ranks of a launch meet, and by which key they know each other, told through the
 * launcher's key-value space: so that a job which mpiexec starts needs no setting on any host.
 */
#ifndef HORON_BOOT_MEETING_H
#define HORON_BOOT_MEETING_H

#include "boot/identity/identity.h"
#include "boot/identity/key.h"
#include "boot/identity/space.h"

/**
 * Fills in where the store is. All processes of the launch call it; the first time it waits for
 * rank 0, or for all of them (space.h).
 * @param space  not open yet
 * @param key in: as the user gave it, or ""; then out: a fresh one, the same on all ranks. Wiped by
 *        the caller after use, also on failure
 * @return OK | ERR_CONFIG, as open() of the space, or some ranks alone were given a key | as the
 *         calls of the space | ERR_SYSTEM, among others: no port is free
 */
horon_status_t horon_meeting_hold(struct horon_identity *id, const struct horon_config *config,
                                  struct horon_space *space, char key[HORON_KEY_TEXT_BYTES],
                                  struct horon_error *error);

#endif
