/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks do to the job: they start, and they end. The one whose failure came first decides the
 * exit status and is reported with what it was, where, and what it said last.
 */
#include "job_internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#define SUSPECT_SECONDS 0.2

void job_rank_started(struct job *job, struct job_host *host, int rank, int pid)
{
    if (job->ranks[rank].pid || pid <= 0)
        return; /* no agent of ours says that, or says it twice */
    job->ranks[rank].pid = pid;
    job->started++;
    if (job->setup->options->verbose)
        horonrun_output_say(job->output, "rank %d runs on %s as process %d", rank, host->name, pid);
    if (job->started == job->setup->size && job->state == JOB_STARTING) {
        job->state = JOB_RUNNING;
        ev_timer_stop(job->loop, &job->start_timer);
        if (job->setup->options->verbose)
            horonrun_output_say(job->output, "all %d ranks run after %.1f ms", job->started,
                                1000 * (ev_now(job->loop) - job->begun));
    }
}

static void describe_command(const struct job *job, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (char **word = job->setup->options->command; *word && used < bytes; word++) {
        int more = snprintf(text + used, bytes - used, "%s%s", used ? " " : "", *word);
        used += more > 0 ? (size_t)more : 0;
    }
}

static void describe_end(int wait_status, char *text, size_t bytes)
{
    if (WIFSIGNALED(wait_status))
        snprintf(text, bytes, "was killed by signal %d (%s%s)", WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)), WCOREDUMP(wait_status) ? ", core dumped" : "");
    else
        snprintf(text, bytes, "exited with status %d", WEXITSTATUS(wait_status));
}

/* Ends the job because of this rank, and reports it. */
static void accuse(struct job *job, const struct job_rank *rank)
{
    char command[256], how[96], why[512];
    const int number = (int)(rank - job->ranks);
    const int status = rank->wait_status;
    if (!job_end(job, WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status)))
        return;
    describe_end(status, how, sizeof how);
    describe_command(job, command, sizeof command);
    snprintf(why, sizeof why, "rank %d on %s (process %d) %s", number, rank->host->name, rank->pid,
             how);
    horonrun_output_say(job->output, "%s; command: %s", why, command);
    horonrun_output_repeat_last(job->output, number);
    int others = job->setup->size - job->exited;
    if (others > 0)
        horonrun_output_say(job->output, "ending the other %d rank%s", others,
                            others == 1 ? "" : "s");
    job_end_begin(job, why);
}

/* Was the rank ended by something from outside or by its own fault, rather than by its program's
 * answer to another rank's death? */
static bool is_crash(int wait_status)
{
    const int signo = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
    return signo == SIGKILL || signo == SIGSEGV || signo == SIGBUS || signo == SIGILL ||
           signo == SIGFPE || signo == SIGSYS;
}

/*
 * The first rank to fail is the culprit, but the first to be heard of need not be: a rank may find
 * its peer dead, say so and exit before the other host has told us of the death. So one that exited
 * is suspected for a moment; a crash that is told meanwhile is the reason.
 */
static void rank_failed(struct job *job, struct job_rank *rank)
{
    if (job->state >= JOB_ENDING)
        return;
    if (is_crash(rank->wait_status)) {
        accuse(job, rank);
    } else if (!job->suspect) {
        job->suspect = rank;
        ev_timer_start(job->loop, &job->suspect_timer);
    }
}

static void on_suspect_timer(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct job *job = timer->data;
    (void)loop;
    (void)events;
    accuse(job, job->suspect);
}

void job_rank_exited(struct job *job, struct job_host *host, int rank, int wait_status)
{
    char how[96];
    struct job_rank *one = &job->ranks[rank];
    if (one->exited)
        return;
    one->exited = true;
    one->host = host;
    one->wait_status = wait_status;
    job->exited++;
    horonrun_output_flush(job->output, rank);
    describe_end(wait_status, how, sizeof how);
    if (job->setup->options->verbose)
        horonrun_output_say(job->output, "rank %d %s", rank, how);
    if (wait_status != 0)
        rank_failed(job, one);
    if (job->exited < job->setup->size || job->state >= JOB_ENDING)
        return;
    if (job->suspect)
        accuse(job, job->suspect);
    else if (job_end(job, 0))
        job_end_begin(job, "all ranks have ended");
}

void job_rank_init_timer(struct job *job)
{
    ev_timer_init(&job->suspect_timer, on_suspect_timer, SUSPECT_SECONDS, 0.);
    job->suspect_timer.data = job;
}
