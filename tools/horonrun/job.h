/* SPDX-License-Identifier: Apache-2.0 */
/* One job as horonrun runs it: its agents, its ranks, its end. */
#ifndef HORONRUN_JOB_H
#define HORONRUN_JOB_H

#include "config.h"
#include "hosts.h"
#include "launch.h"
#include "mpi.h"

/** What is decided before a job begins. All of it outlives the job. */
struct horonrun_job_setup {
    const struct horonrun_options *options;
    const struct horonrun_hosts *hosts;
    const struct horonrun_launched *local_agent; /* NULL if no host is local; taken */
    int size;
    const struct horon_config *config; /* as the ranks will have it */
    sigset_t mask;                     /* blocked signals for children */
    const struct horonrun_mpi *mpi;    /* the one "rank" is this launcher of others; NULL: none */
};

/**
 * Runs the job to its end: all processes of it are gone then, here and elsewhere. The caller has
 * blocked the signals that horonrun handles (horonrun_job_signals).
 * @return the exit status: 0 if every rank's was, else that of the rank whose failure is the cause,
 *         128 + signal for one killed, or for the signal that ended horonrun; 127 or 126 for a
 *         command that could not be run; 1 for the rest
 */
int horonrun_job_run(const struct horonrun_job_setup *setup);

/** Fills in the signals to block; those ignored now stay ignored. */
void horonrun_job_signals(sigset_t *set);

#endif
