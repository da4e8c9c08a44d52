/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job key on its way to the ranks: the user's or made by horonrun, told to agents in the
 * environment of their work, and handed to ranks as a descriptor of sealed memory, so that it
 * stands in no file, in no process's environment, and in no program that a rank starts once it has
 * joined.
 */
#ifndef HORONRUN_KEY_H
#define HORONRUN_KEY_H

#include "boot/identity/key.h"

/**
 * Takes the user's, of HORON_JOB_KEY or HORON_JOB_KEY_FILE, or makes one. One that this process
 * itself was handed as a descriptor is another job's.
 * @param key wiped by the caller after use, also on failure
 * @return OK | ERR_CONFIG, the user's is no key, as horon_key_read() says | ERR_SYSTEM
 */
horon_status_t horonrun_key_find(const struct horon_config *config, char key[HORON_KEY_TEXT_BYTES],
                                 struct horon_error *error);

/** Wipes HORON_JOB_KEY out of this process's own environment, which its children inherit and /proc
 * shows. What was loaded from it has it still. */
void horonrun_key_leave_environment(void);

/**
 * Takes HORON_JOB_KEY out of an environment, wiped, and sets HORON_JOB_KEY_FILE=fd:N in its place.
 * @param fd_out N, the caller's, close-on-exec; or -1: there was no key
 * @return OK | ERR_SYSTEM | ERR_MEMORY
 */
horon_status_t horonrun_key_hand_over(char ***environment, int *fd_out, struct horon_error *error);

#endif
