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
 * Makes two of the calling process, outside its session and terminal: the agent, in which this
 * returns, and the agent's parent and guard, which ends with its status.
 * @param argv the process's own: both write their names over it
 * @param mask blocked signals of the guard
 */
void horonrun_agent_split(char **argv, const sigset_t *mask);

/** `horonrun --agent`, on another host: splits; frames on stdin and stdout. */
int horonrun_agent_main(char **argv, const sigset_t *mask, const struct rlimit *files);

#endif
