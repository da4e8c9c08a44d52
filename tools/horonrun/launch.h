/* SPDX-License-Identifier: Apache-2.0 */
/* Starts an agent: here by fork, on another host by ssh. */
#ifndef HORONRUN_LAUNCH_H
#define HORONRUN_LAUNCH_H

#include "options.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#define HORONRUN_PATH_BYTES 4096

/** The process that guards an agent or leads to it, and our ends of its pipes. */
struct horonrun_launched {
    pid_t pid;
    int in_fd, out_fd; /* frames from and to it; may be the same */
    int err_fd;        /* what ssh says, non-blocking; -1 for a local agent */
};

/**
 * Forks an agent and its guard. Call it before any thread or event loop exists.
 * @param argv the process's own: the children write other names over it
 * @param mask, files  blocked signals and limit on open files for ranks
 */
horon_status_t horonrun_launch_local(char **argv, const sigset_t *mask, const struct rlimit *files,
                                     struct horonrun_launched *launched, struct horon_error *error);

/** @return what is run on other hosts: --remote-horonrun, or, in @p own, this program's path */
const char *horonrun_launch_remote_path(const struct horonrun_options *options,
                                        char own[HORONRUN_PATH_BYTES]);

/** Starts `ssh NAME exec horonrun --agent`. Nothing of the job is on its command line. */
horon_status_t horonrun_launch_ssh(const char *host, const struct horonrun_options *options,
                                   const sigset_t *mask, struct horonrun_launched *launched,
                                   struct horon_error *error);

#endif
