/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by job.c (the loop), job_rank.c, job_host.c (one agent), job_end.c (the end). */
#ifndef HORONRUN_JOB_INTERNAL_H
#define HORONRUN_JOB_INTERNAL_H

#include "channel.h"
#include "job.h"
#include "output.h"
#include "rendezvous.h"
#include "store.h"

enum job_state {
    JOB_STARTING, /* agents are being reached, ranks started */
    JOB_RUNNING,
    JOB_ENDING,   /* agents end their ranks */
    JOB_SWEEPING, /* agents are gone; what is left below us is killed */
    JOB_DONE
};

struct job;

/** Which moves are legal says a table in job_rank.c. */
enum job_rank_state {
    RANK_UNHEARD, /* its agent has not said anything of it */
    RANK_RUNS,
    RANK_DUMPS, /* it has crashed; until it has exited, a core file is written */
    RANK_EXITED
};

struct job_rank {
    enum job_rank_state state;
    int pid;                     /* 0: not told */
    int wait_status;             /* set when it has exited */
    const struct job_host *host; /* set when it runs, at last when it has exited or dumps, as is: */
    int names;                   /* the rank that it says has made it fail; -1: none */
    int failed_as;               /* 1: the first to fail, 2...; 0: it has not */
    bool is_named;               /* by another that failed; failed_as is set then */
};

/** Which moves are legal says a table in job_host.c. */
enum job_host_state {
    HOST_CLOSED, /* its agent is not launched yet */
    HOST_OPEN,   /* nothing is heard of it; WORK goes once all have said HELLO */
    HOST_ANSWERS,
    HOST_GONE /* its last word came, or it is lost */
};

/** Our end of one agent. */
struct job_host {
    struct job *job;
    enum job_host_state state;
    const struct horonrun_host *host;
    char seen_as[64]; /* our address as that host sees it, or "" */
    char name[256];   /* as the agent calls its host; until then as the user does */
    pid_t pid;        /* the agent's guard, or ssh; 0 once reaped, in any state */
    int wait_status;
    struct horonrun_channel channel;
    int err_fd; /* -1: none */
    struct ev_io err_io;
    struct horonrun_lines err_lines;
    bool said_hello; /* HELLO came; that stays so when it is gone */
    double heard;    /* loop time of its last frame */
};

struct job {
    const struct horonrun_job_setup *setup;
    struct ev_loop *loop;
    enum job_state state;
    int code;         /* the exit status */
    bool output_lost; /* our stdout or stderr could not be written */
    struct horonrun_output *output;
    struct horonrun_store *store;
    struct horonrun_rendezvous *rendezvous; /* NULL unless it is asked for (--gloo) */
    struct job_host *hosts;                 /* [host_count] */
    int *host_ranks;                        /* [host_count] */
    int host_count, remote_count;
    struct job_rank *ranks; /* [setup->size] */
    int started, exited, failed;
    char **environment; /* for local ranks */
    char **command;     /* of setup->mpi; else NULL */
    char **remote_environment;
    char *directory;
    int signal_fd;
    struct ev_io signal_io;
    const struct job_rank *suspect; /* the first that exited badly, until that is certain */
    bool awaits_named;              /* the one that the suspect names has a while to end, too */
    const struct job_rank *cause;   /* for which the job is ended; NULL: for none */
    struct ev_timer start_timer, ping_timer, end_timer, suspect_timer;
    double begun;
    int sweep_rounds;
    int interrupts;
    int64_t grace_ms, interrupt_ms; /* as of HORONRUN_STOP */
};

/* ---- job_rank.c ---- */

void job_rank_init_timer(struct job *job);
void job_rank_started(struct job *job, struct job_host *host, int rank, int pid);
/** @param names another rank, which it says has made it fail; or -1 */
void job_rank_exited(struct job *job, struct job_host *host, int rank, int wait_status, int names);
/** It has crashed, though how is known only when the system has written a core file of it. */
void job_rank_dumps(struct job *job, struct job_host *host, int rank, int names);

/* ---- job_host.c ---- */

/** Connects to an agent that was launched. */
void job_host_open(struct job_host *host, const struct horonrun_launched *launched);
/** Asks it to end its ranks; 0: at once. One that never answered is dropped. @param interrupt_ms
 * first they are interrupted for so long; 0: they are not */
void job_host_stop(struct job_host *host, uint32_t grace_ms, uint32_t interrupt_ms);
/** Its process was reaped. */
void job_host_reaped(struct job_host *host, int wait_status);
/** Gives up on it. */
void job_host_drop(struct job_host *host);
/** Is its channel open? Not before it is launched, and not when it is gone. */
static inline bool job_host_is_open(const struct job_host *host)
{
    return host->state == HOST_OPEN || host->state == HOST_ANSWERS;
}
void job_host_deinit(struct job_host *host);

/* ---- job_gloo.c ---- */

/** Serves Horovod's rendezvous, if that is asked for. @return OK | as horonrun_rendezvous_create()
 */
horon_status_t job_gloo_begin(struct job *job, struct horon_error *error);
/** Sets what the workers of a host need to know of it. @return false: out of memory */
bool job_gloo_tell(const struct job_host *host, char ***environment);

/* ---- job_end.c ---- */

/** Which moves are legal says a table there. */
void job_move(struct job *job, enum job_state to);
/** Ends the job with @p code if nothing has ended it yet. @return true: this call did */
bool job_end(struct job *job, int code);
/** Likewise, and says why. */
void job_fail(struct job *job, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Starts the end; STOP goes to all agents. @param rank the job ends for this one; or -1. @param
 * why what ranks that are joining are told */
void job_end_begin(struct job *job, int rank, const char *why);
/** Ends without grace. */
void job_end_force(struct job *job);
/** An agent is gone, or a child was reaped: goes on if that was the last. */
void job_end_advance(struct job *job);
/** Reaps our children. @return true: none is left */
bool job_reap(struct job *job);
/** An agent of this host died: kills what fell to us from it. */
void job_kill_fallen(struct job *job);
void job_end_timer(struct ev_loop *loop, struct ev_timer *timer, int events);

#endif
