/* SPDX-License-Identifier: Apache-2.0 */
/* The job key as the user gave it; of a job that was given none, its launch's or its user's
 * (user_key.c). */
#ifndef HORON_BOOT_KEY_H
#define HORON_BOOT_KEY_H

#include "boot/connect/handshake.h"
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

#define HORON_USER_KEY_BYTES 32
#define HORON_KEY_FOLDER_BYTES 512 /* of its name, with a final 0 */

/**
 * Reads the key of this process's user from @p folder, where others may make files, too; the first
 * process that asks makes it.
 * @return OK | ERR_CONFIG, what lies there is not this user's alone: the file is named | ERR_SYSTEM
 * Blocks: no.
 */
horon_status_t horon_user_key_read(const char *folder, uint8_t bytes[HORON_USER_KEY_BYTES],
                                   struct horon_error *error);

/**
 * The job's key, if @p text is one; else that which its ranks share in @p folder, if it is a folder
 * of this user's in which nobody else can make files; else its user's, which is good on this
 * machine alone.
 * @param folder the launch's on this host, "" for none; less than HORON_KEY_FOLDER_BYTES long
 * @return OK, key->given is false of the last | as horon_user_key_read() | ERR_SYSTEM, libcrypto
 * refuses
 * Blocks: no.
 */
horon_status_t horon_job_key_init(struct horon_job_key *key, const void *text, size_t bytes,
                                  const char *folder, struct horon_error *error);

#endif
