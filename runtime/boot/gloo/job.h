/* SPDX-License-Identifier: Apache-2.0 */
/* Joining a job of Gloo's ranks: what boot gives of a job of horons, as far as there is any. */
#ifndef HORON_BOOT_GLOO_JOB_H
#define HORON_BOOT_GLOO_JOB_H

#include "boot/boot.h"

/**
 * As horon_boot(), by the settings GLOO_STORE, GLOO_PREFIX and GLOO_ERA: each rank counts as alone
 * on its host, and is connected with all others. They prove nothing, and each connection stands in
 * boot->proven without a proof. On OK boot->gloo_era is set.
 * @param rank, size  -1: from the environment
 * @return OK | ERR_CONFIG | ERR_TIMEOUT, naming the ranks that lack | ERR_CANCELLED | ERR_PROTO |
 *         ERR_PEER_LOST | ERR_SYSTEM | ERR_MEMORY | ERR_INVALID
 */
horon_status_t horon_gloo_boot(struct horon_boot *boot, int rank, int size,
                               const struct horon_config *config,
                               const struct horon_boot_caller *caller, struct horon_log *log,
                               struct horon_error *error);

#endif
