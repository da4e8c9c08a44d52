/* SPDX-License-Identifier: Apache-2.0 */
/* The job key as the user gave it: HORON_JOB_KEY, or the file that HORON_JOB_KEY_FILE names. */
#ifndef HORON_BOOT_KEY_H
#define HORON_BOOT_KEY_H

#include "config.h"
#include "log.h"
#include "status.h"

/** Room for any key and a final 0. */
#define HORON_KEY_TEXT_BYTES 4096

/**
 * Reads the key; "" if neither is set. Line ends behind it do not belong to it.
 * @param key wiped by the caller after use, also on failure
 * @param log a file that other users may read or write is warned of
 * @return OK | ERR_CONFIG, the variable and what to do are named, the key is not
 * Of HORON_JOB_KEY_FILE=fd:N the descriptor stays open here, close-on-exec from now on.
 * Blocks: no; what is no regular file is refused.
 */
horon_status_t horon_key_read(const struct horon_config *config, const struct horon_log *log,
                              char key[HORON_KEY_TEXT_BYTES], struct horon_error *error);

#endif
