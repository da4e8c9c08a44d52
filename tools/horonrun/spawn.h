/* SPDX-License-Identifier: Apache-2.0 */
/* Starts one process of a rank, with pipes for what it prints. */
#ifndef HORONRUN_SPAWN_H
#define HORONRUN_SPAWN_H

#include "status.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

/** What a child gets. */
struct horonrun_spawn {
    char **command;        /* NULL-ended; looked up in the PATH of environment */
    char **environment;    /* NULL-ended */
    const char *directory; /* NULL: ours */
    int stdin_fd;          /* not taken; -1: /dev/null */
    int handed_fds[2];     /* not taken; the child's too, at the same numbers; -1: none */
    struct rlimit files;   /* its limit on open files */
    sigset_t mask;         /* its blocked signals */
};

/** A started child. */
struct horonrun_child {
    pid_t pid;
    int out_fd, err_fd; /* ours to read, non-blocking */
    int exec_fd;        /* for horonrun_spawn_confirm() */
};

/**
 * Forks. The child leads a process group, dies with the calling thread (PR_SET_PDEATHSIG), and
 * execs.
 * @return OK | ERR_SYSTEM
 */
horon_status_t horonrun_spawn(const struct horonrun_spawn *what, struct horonrun_child *child,
                              struct horon_error *error);

/**
 * Waits until the child has begun its program or failed to. Closes exec_fd.
 * @return 0 | 127, no such command or directory | 126, it cannot be run; with @p error set
 */
int horonrun_spawn_confirm(struct horonrun_child *child, const struct horonrun_spawn *what,
                           struct horon_error *error);

/** Says in a text how a process ended, from its wait status: "exited with status 1". */
void horonrun_spawn_describe_end(int wait_status, char *text, size_t bytes);

/** @return the exit status that a shell would tell for it: 128 + signal for one that was killed */
int horonrun_spawn_code(int wait_status);

/**
 * Takes this process, a child that was forked with blocked signals, out of its parent's session.
 * What a terminal or a launcher had sent to the parent's process group before is dropped: the
 * parent has heard it too, and ends its children in order.
 */
void horonrun_spawn_session(void);

/**
 * Raises this process's limit on open files as far as it may: every rank costs two.
 * @param before_out what it was, for the ranks
 */
void horonrun_spawn_raise_files(struct rlimit *before_out);

#endif
