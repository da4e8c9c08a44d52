/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job key on its way to the ranks: made by horonrun, told to agents in the environment of their
 * work, and handed to ranks as a descriptor of sealed memory, so that it stands in no file, in no
 * process's environment, and in no program that a rank starts once it has joined.
 */
#ifndef HORONRUN_KEY_H
#define HORONRUN_KEY_H

#include "status.h"

/** 32 random bytes as text, and a final 0. */
#define HORONRUN_KEY_BYTES 65

/** Makes a job key. @return OK | ERR_SYSTEM */
horon_status_t horonrun_key_make(char key[HORONRUN_KEY_BYTES], struct horon_error *error);

/**
 * Takes HORON_JOB_KEY out of an environment, wiped, and sets HORON_JOB_KEY_FILE=fd:N in its place.
 * @param fd_out N, the caller's, close-on-exec; or -1: there was no key
 * @return OK | ERR_SYSTEM | ERR_MEMORY
 */
horon_status_t horonrun_key_hand_over(char ***environment, int *fd_out, struct horon_error *error);

#endif
