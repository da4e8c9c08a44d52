/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by agent.c (the loop, what ranks print, their begin), agent_look.c (have they crashed?)
 * and agent_end.c (their end). */
#ifndef HORONRUN_AGENT_INTERNAL_H
#define HORONRUN_AGENT_INTERNAL_H

#include "agent.h"
#include "channel.h"
#include "host/memory.h"

enum agent_state { AGENT_RUNNING, AGENT_INTERRUPTED, AGENT_ASKED, AGENT_FORCED, AGENT_DONE };

struct agent;

struct rank_stream {
    struct agent *agent;
    struct ev_io io;
    int fd; /* -1 once closed */
    int rank;
    uint8_t number; /* 1 stdout, 2 stderr */
};

struct agent_rank {
    pid_t pid;                /* 0 before and after it lives */
    bool dumps;               /* the system writes a core file of it, and horonrun knows */
    struct horon_map failure; /* where it says why it fails; nothing if there is no memory */
    struct rank_stream streams[2];
};

struct agent {
    const struct horonrun_agent_setup *setup;
    struct ev_loop *loop;
    struct horonrun_channel channel;
    struct horonrun_work work;
    int key_fd;               /* what ranks get the job key from; -1: nothing yet */
    struct agent_rank *ranks; /* [work.ranks] */
    enum agent_state state;
    int signal_fd;
    struct ev_io signal_io;
    struct ev_timer lost_timer; /* horonrun was not heard from */
    struct ev_timer end_timer;  /* what was asked for has had its time; or look again */
    struct ev_timer look_timer; /* whether a rank has crashed */
    double grace;               /* seconds from SIGTERM to SIGKILL, once interrupted */
    bool held;                  /* all is stopped, horonrun too */
    int force_rounds;
    uint32_t forced; /* processes that needed SIGKILL */
};

/* ---- agent.c ---- */

/** Takes what is left of what a rank has printed. */
void agent_read_rest(struct agent_rank *rank);

/* ---- agent_look.c ---- */

/** Begins to look after the ranks; until they are asked to end. */
void agent_look_start(struct agent *agent);

/* ---- agent_end.c ---- */

/** Tells that the system writes a core file of a rank. */
void agent_rank_dumps(struct agent *agent, struct agent_rank *rank);
/** Ends every process: SIGINT now if @p interrupt_ms is not 0, SIGTERM after so long, SIGKILL after
 * the grace; no grace, neither. Once more, it goes on from SIGINT, and can shorten the grace. */
void agent_stop(struct agent *agent, uint32_t grace_ms, uint32_t interrupt_ms);
/** Tells of ranks that have ended, and finishes if nothing is left of what is to end. */
void agent_reap(struct agent *agent);
/** Sends it to all processes below, or lets the launcher pass it on, on other hosts, too. */
void agent_signal(struct agent *agent, int signo);
void agent_end_timer(struct ev_loop *loop, struct ev_timer *timer, int events);

#endif
