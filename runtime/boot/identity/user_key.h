/* SPDX-License-Identifier: Apache-2.0 */
/* The key of a job that was given none: a secret that the processes of one user share. */
#ifndef HORON_BOOT_USER_KEY_H
#define HORON_BOOT_USER_KEY_H

#include "boot/connect/handshake.h"
#include "status.h"

#include <stddef.h>
#include <stdint.h>

#define HORON_USER_KEY_BYTES 32

/**
 * Reads the key of this process's user from @p folder, where others may make files, too; the first
 * process that asks makes it.
 * @return OK | ERR_CONFIG, what lies there is not this user's alone: the file is named | ERR_SYSTEM
 * Blocks: no.
 */
horon_status_t horon_user_key_read(const char *folder, uint8_t bytes[HORON_USER_KEY_BYTES],
                                   struct horon_error *error);

/**
 * The job's key, if @p text is one; else its user's, which is good on this machine alone.
 * @return OK, key->given says which | as horon_user_key_read() | ERR_SYSTEM, libcrypto refuses
 */
horon_status_t horon_job_key_init(struct horon_job_key *key, const void *text, size_t bytes,
                                  struct horon_error *error);

#endif
