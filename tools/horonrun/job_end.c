/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a job, in two steps. First every agent ends its host's processes and says so. Then we
 * wait for the agents themselves and kill whatever else is below us, which is nothing unless an
 * agent and its guard were killed. Both steps have a deadline, so horonrun ends even if a host no
 * longer answers.
 */
#include "job_internal.h"

#include "status.h"
#include "tree.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>

/* On top of the grace: SIGKILL, reaping, one way over the network. */
#define ANSWER_SECONDS 10.
#define ANSWER_SECONDS_FORCED 3.
#define SWEEP_AGAIN_SECONDS 0.05
/* Counted, not timed: if nobody lets us run for seconds, what we killed had no time to die. */
#define SWEEP_ROUNDS_POLITE 20
#define SWEEP_ROUNDS_MAX 120

void job_move(struct job *job, enum job_state to)
{
    static const unsigned legal[] = {[JOB_STARTING] = 1u << JOB_RUNNING | 1u << JOB_ENDING,
                                     [JOB_RUNNING] = 1u << JOB_ENDING,
                                     [JOB_ENDING] = 1u << JOB_SWEEPING,
                                     [JOB_SWEEPING] = 1u << JOB_DONE,
                                     [JOB_DONE] = 0};
    assert(legal[job->state] & 1u << to);
    job->state = to;
}

bool job_end(struct job *job, int code)
{
    if (job->state >= JOB_ENDING)
        return false;
    job->code = code;
    job_move(job, JOB_ENDING); /* job_end_begin() once the caller has said why */
    return true;
}

void job_fail(struct job *job, int code, const char *format, ...)
{
    char text[1536];
    va_list arguments;
    if (!job_end(job, code))
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    horon_text_clean(text, "\t"); /* ranks are told, too */
    horonrun_output_say(job->output, "%s", text);
    job_end_begin(job, -1, text);
}

/* From now on, however long this turn has taken; and what has come by then is heard first. */
static void arm(struct job *job, double seconds)
{
    ev_now_update(job->loop);
    ev_timer_stop(job->loop, &job->end_timer);
    ev_set_priority(&job->end_timer, EV_MINPRI);
    ev_timer_set(&job->end_timer, seconds, 0.);
    ev_timer_start(job->loop, &job->end_timer);
}

bool job_reap(struct job *job)
{
    for (;;) {
        int wait_status;
        pid_t pid = waitpid(-1, &wait_status, WNOHANG);
        if (pid < 0)
            return errno == ECHILD;
        if (pid == 0)
            return false;
        for (int i = 0; i < job->host_count; i++)
            if (job->hosts[i].pid == pid)
                job_host_reaped(&job->hosts[i], wait_status);
    }
}

static void done(struct job *job)
{
    job_move(job, JOB_DONE);
    ev_timer_stop(job->loop, &job->end_timer);
    ev_break(job->loop, EVBREAK_ALL);
}

static void sweep(struct job *job)
{
    if (job_reap(job)) {
        done(job);
        return;
    }
    const int left = job->sweep_rounds > SWEEP_ROUNDS_POLITE
                         ? horonrun_tree_signal(SIGKILL, NULL, 0, NULL, 0)
                         : 0;
    if (job->sweep_rounds++ > SWEEP_ROUNDS_MAX) {
        horonrun_output_say(job->output, "%d processes cannot be killed", left);
        done(job);
        return;
    }
    arm(job, SWEEP_AGAIN_SECONDS);
}

void job_kill_fallen(struct job *job)
{
    pid_t spared[1024]; /* ssh to other hosts: those agents answer for themselves */
    size_t count = 0;
    for (int i = 0; i < job->host_count && count < 1024; i++)
        if (job_host_is_open(&job->hosts[i]) && job->hosts[i].pid)
            spared[count++] = job->hosts[i].pid;
    horonrun_tree_signal(SIGKILL, spared, count, NULL, 0);
}

void job_end_advance(struct job *job)
{
    if (job->state == JOB_ENDING) {
        for (int i = 0; i < job->host_count; i++)
            if (job_host_is_open(&job->hosts[i]))
                return;
        job_move(job, JOB_SWEEPING);
        sweep(job);
    } else if (job->state == JOB_SWEEPING && job_reap(job)) {
        done(job);
    }
}

static void stop_all(struct job *job, int64_t grace_ms, int64_t interrupt_ms)
{
    for (int i = 0; i < job->host_count; i++)
        job_host_stop(&job->hosts[i], (uint32_t)grace_ms, (uint32_t)interrupt_ms);
}

void job_end_begin(struct job *job, int rank, const char *why)
{
    char text[HORON_ERROR_TEXT_BYTES];
    assert(job->state == JOB_ENDING);
    ev_timer_stop(job->loop, &job->start_timer);
    ev_timer_stop(job->loop, &job->suspect_timer);
    snprintf(text, sizeof text, "the job is being ended: %s", why);
    horonrun_store_fail(job->store, rank, text);
    stop_all(job, job->grace_ms, job->interrupt_ms);
    arm(job, (double)(job->interrupt_ms + job->grace_ms) / 1000. + ANSWER_SECONDS);
    job_end_advance(job);
}

void job_end_force(struct job *job)
{
    if (job->state != JOB_ENDING)
        return;
    stop_all(job, 0, 0);
    if (job->state == JOB_ENDING)
        arm(job, ANSWER_SECONDS_FORCED);
}

void job_end_timer(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct job *job = timer->data;
    (void)loop;
    (void)events;
    if (job->state == JOB_SWEEPING)
        sweep(job);
    for (int i = 0; job->state == JOB_ENDING && i < job->host_count; i++) {
        struct job_host *host = &job->hosts[i];
        if (!job_host_is_open(host))
            continue;
        horonrun_output_say(job->output,
                            "host %s does not answer; its processes end themselves once they "
                            "notice",
                            host->name);
        if (host->pid && !host->host->local)
            kill(host->pid, SIGTERM);
        job_host_drop(host);
        if (host->host->local)
            job_kill_fallen(job);
    }
    job_end_advance(job);
}
