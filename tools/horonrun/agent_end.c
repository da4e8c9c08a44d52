/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an agent ends its ranks, and all that they have started: politely at first, by force once the
 * grace is over. That they are gone is not believed but seen: there is no child left to wait for.
 */
#include "agent_internal.h"

#include "codec.h"
#include "host/failure_file.h"
#include "tree.h"

#include <assert.h>
#include <errno.h>
#include <sys/wait.h>

#define FORCE_AGAIN_SECONDS 0.05
/* A process in an uninterruptible sleep (a dead file server) may not go for hours. */
#define FORCE_ROUNDS_MAX 100
#define REAPED_AT_ONCE 64

static void move(struct agent *agent, enum agent_state to)
{
    static const unsigned legal[] = {
        [AGENT_RUNNING] =
            1u << AGENT_INTERRUPTED | 1u << AGENT_ASKED | 1u << AGENT_FORCED | 1u << AGENT_DONE,
        [AGENT_INTERRUPTED] = 1u << AGENT_ASKED | 1u << AGENT_FORCED | 1u << AGENT_DONE,
        [AGENT_ASKED] = 1u << AGENT_FORCED | 1u << AGENT_DONE,
        [AGENT_FORCED] = 1u << AGENT_FORCED | 1u << AGENT_DONE, /* once more: some are left */
        [AGENT_DONE] = 1u << AGENT_DONE}; /* horonrun went while it was told */
    assert(legal[agent->state] & 1u << to);
    agent->state = to;
}

static void finish(struct agent *agent, uint32_t survivors)
{
    for (int i = 0; agent->ranks && i < agent->work.ranks; i++)
        agent_read_rest(&agent->ranks[i]);
    horonrun_channel_send_u32(&agent->channel, HORONRUN_GONE, agent->forced, survivors, 2);
    move(agent, AGENT_DONE);
    ev_timer_stop(agent->loop, &agent->end_timer);
    /* The loop goes on until horonrun has read that and closed, or is gone. */
    if (!horonrun_channel_is_open(&agent->channel))
        ev_break(agent->loop, EVBREAK_ALL);
}

static struct agent_rank *find_rank(struct agent *agent, pid_t pid)
{
    for (int i = 0; agent->ranks && i < agent->work.ranks; i++)
        if (agent->ranks[i].pid == pid)
            return &agent->ranks[i];
    return NULL;
}

/* @return the other rank that its failure is about; -1: none, or none is known */
static int read_named(const struct agent *agent, const struct agent_rank *rank)
{
    struct horon_error why;
    const int self = rank->streams[0].rank;
    if (!horon_failure_file_read(&rank->failure, agent->work.size, &why))
        return -1;
    if (why.blame.rank >= 0 && why.blame.rank != self)
        return why.blame.rank;
    return why.blame.other_rank != self ? why.blame.other_rank : -1;
}

static void rank_ended(struct agent *agent, struct agent_rank *rank, int wait_status)
{
    uint8_t body[12];
    struct horon_writer out = horon_writer_over(body, sizeof body);
    rank->pid = 0;
    agent_read_rest(rank);
    horon_write_u32(&out, (uint32_t)rank->streams[0].rank);
    horon_write_u32(&out, (uint32_t)wait_status);
    horon_write_u32(&out, (uint32_t)read_named(agent, rank));
    horonrun_channel_send(&agent->channel, HORONRUN_EXIT, body, out.used);
}

void agent_rank_dumps(struct agent *agent, struct agent_rank *rank)
{
    rank->dumps = true;
    agent_read_rest(rank); /* its last words */
    horonrun_channel_send_u32(&agent->channel, HORONRUN_DUMPS, (uint32_t)rank->streams[0].rank,
                              (uint32_t)read_named(agent, rank), 2);
}

/* @return pid, status of a dead child; 0: none now; -1: we have no child, and so no descendant */
static pid_t take_dead(int *wait_status)
{
    pid_t pid;
    do
        pid = waitpid(-1, wait_status, WNOHANG);
    while (pid < 0 && errno == EINTR);
    return pid;
}

/*
 * The kernel hands out the dead in no useful order. Of those that died since the last look, one
 * that was killed is told first: the others may have failed only because it was gone.
 */
static bool reap(struct agent *agent)
{
    struct {
        struct agent_rank *rank;
        int wait_status;
    } dead[REAPED_AT_ONCE];
    for (;;) {
        int count = 0, wait_status;
        pid_t pid = 0;
        while (count < REAPED_AT_ONCE && (pid = take_dead(&wait_status)) > 0) {
            struct agent_rank *rank = find_rank(agent, pid);
            if (!rank)
                continue; /* an orphan that fell to us */
            dead[count].rank = rank;
            dead[count++].wait_status = wait_status;
        }
        for (int killed = 1; killed >= 0; killed--)
            for (int i = 0; i < count; i++)
                if (WIFSIGNALED(dead[i].wait_status) == killed)
                    rank_ended(agent, dead[i].rank, dead[i].wait_status);
        if (pid <= 0)
            return pid < 0;
    }
}

static void arm_end_timer(struct agent *agent, double seconds)
{
    ev_timer_stop(agent->loop, &agent->end_timer);
    ev_timer_set(&agent->end_timer, seconds, 0.);
    ev_timer_start(agent->loop, &agent->end_timer);
}

static bool has_rank(const struct agent *agent)
{
    bool has = false;
    for (int i = 0; agent->ranks && i < agent->work.ranks && !has; i++)
        has = agent->ranks[i].pid != 0;
    return has;
}

void agent_signal(struct agent *agent, int signo)
{
    const struct horonrun_work *work = &agent->work;
    if (work->interrupt && has_rank(agent))
        kill(agent->ranks[0].pid, signo == SIGINT    ? work->interrupt
                                  : signo == SIGTERM ? work->terminate
                                                     : signo);
    else
        horonrun_tree_signal(signo, NULL, 0, NULL, 0);
}

/* Everything has so many seconds to end by this signal. */
static void ask(struct agent *agent, enum agent_state to, int signo, double seconds)
{
    move(agent, to);
    agent_signal(agent, signo);
    horonrun_tree_signal(SIGCONT, NULL, 0, NULL, 0); /* a stopped one would not hear it */
    arm_end_timer(agent, seconds);
}

/* What ranks leave behind is not interrupted for long: a shell's background job hears no SIGINT. */
void agent_reap(struct agent *agent)
{
    const bool empty = reap(agent);
    if (empty && agent->state > AGENT_RUNNING && agent->state < AGENT_DONE)
        finish(agent, 0);
    else if (agent->state == AGENT_INTERRUPTED && !has_rank(agent))
        ask(agent, AGENT_ASKED, SIGTERM, agent->grace);
}

static void force(struct agent *agent)
{
    int left = horonrun_tree_signal(SIGKILL, NULL, 0, NULL, 0);
    if (agent->state != AGENT_FORCED)
        agent->forced = (uint32_t)left;
    move(agent, AGENT_FORCED);
    agent_reap(agent);
    if (agent->state != AGENT_FORCED)
        return;
    if (++agent->force_rounds > FORCE_ROUNDS_MAX)
        finish(agent, (uint32_t)left);
    else
        arm_end_timer(agent, FORCE_AGAIN_SECONDS);
}

void agent_end_timer(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct agent *agent = timer->data;
    (void)loop;
    (void)events;
    if (agent->state == AGENT_INTERRUPTED)
        ask(agent, AGENT_ASKED, SIGTERM, agent->grace);
    else
        force(agent);
}

void agent_stop(struct agent *agent, uint32_t grace_ms, uint32_t interrupt_ms)
{
    const double grace = grace_ms / 1000.;
    if (agent->state >= AGENT_FORCED)
        return;
    agent->grace = grace;
    if (reap(agent))
        finish(agent, 0);
    else if (!grace_ms)
        force(agent);
    else if (agent->state == AGENT_RUNNING && interrupt_ms && has_rank(agent))
        ask(agent, AGENT_INTERRUPTED, SIGINT, interrupt_ms / 1000.);
    else if (agent->state < AGENT_ASKED)
        ask(agent, AGENT_ASKED, SIGTERM, grace);
    else if (ev_timer_remaining(agent->loop, &agent->end_timer) > grace)
        arm_end_timer(agent, grace);
}
