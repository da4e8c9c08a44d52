/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that has crashed is told before the system has written its core file. Until that is done,
 * which may take minutes, its process has not ended: it cannot be waited for, its descriptors stay
 * open, and to other hosts it looks as one that was stopped. Its own host can ask /proc. The ranks
 * there do so, too (deaths.c), but a rank may be the only one of its host.
 *
 * What is looked at is the process that the agent has started. A wrapper that stays between hides
 * its rank: a core file of some other process below it says nothing about the rank.
 */
#include "agent_internal.h"

#include "file.h"

/* The promise is that a crash is told within a second. */
#define LOOK_SECONDS 0.4

static void on_look(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct agent *agent = timer->data;
    (void)events;
    if (agent->state != AGENT_RUNNING) {
        ev_timer_stop(loop, timer);
        return;
    }
    for (int i = 0; i < agent->work.ranks; i++) {
        struct agent_rank *rank = &agent->ranks[i];
        if (rank->pid && !rank->dumps && horon_file_says_dumping(rank->pid))
            agent_rank_dumps(agent, rank);
    }
}

void agent_look_start(struct agent *agent)
{
    ev_timer_init(&agent->look_timer, on_look, LOOK_SECONDS, LOOK_SECONDS);
    agent->look_timer.data = agent;
    ev_timer_start(agent->loop, &agent->look_timer);
}
