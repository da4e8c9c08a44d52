/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent: runs the ranks of one host for horonrun and answers for their whole process trees. It
 * outlives horonrun just long enough to end them.
 */
#ifndef HORONRUN_AGENT_H
#define HORONRUN_AGENT_H

#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>

struct horonrun_agent_setup {
    int in_fd, out_fd;   /* frames; taken; may be the same */
    int stdin_fd;        /* for rank 0; -1: /dev/null. Not taken */
    bool remote;         /* another host: horonrun must be heard from, or it counts as lost */
    struct rlimit files; /* limit on open files of the ranks */
    sigset_t mask;       /* blocked signals of the ranks */
};

/**
 * Runs one job's share of ranks and ends when all their processes are gone.
 * The caller has blocked all signals that are to be handled (SIGCHLD, SIGTERM).
 * @return exit status for the process
 */
int horonrun_agent_run(const struct horonrun_agent_setup *setup);

/**
 * `horonrun --agent`, on another host: frames on stdin and stdout. Splits in two, so that no single
 * death leaves processes behind: the child is the agent, this one adopts its tree if it dies.
 */
int horonrun_agent_main(char **argv, const sigset_t *mask, const struct rlimit *files);

/** Leaves the caller's session and terminal, takes its own name (over @p argv, the process's own),
 * and asks for SIGTERM when the parent dies. @return false: the parent @p parent is dead already */
bool horonrun_agent_detach(char **argv, int parent);

#endif
