/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks do to the job: they start, and they end. The one whose failure is the cause decides
 * the exit status and is reported with what it was, where, and what it said last. It need not be
 * the first that we hear of: a rank that finds its peer gone may end sooner than the peer, whose
 * interpreter takes its time. So after the first failure we wait for a moment, and for a while if
 * that rank says that one has made it fail which still lives; a crash is told at once.
 *
 * A rank says so as data (HORON_FAILURE_FILE). What it prints is for people: it may be anything,
 * and may go elsewhere.
 */
#include "job_internal.h"
#include "spawn.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#define SUSPECT_SECONDS 0.2
/* For a rank to end that the first one to fail has named. */
#define NAMED_SECONDS 1.
#define OTHERS_MAX 3

static void move(struct job_rank *rank, enum job_rank_state to)
{
    /* An agent that says how a rank ends and has not said that it runs is believed. */
    static const unsigned legal[] = {[RANK_UNHEARD] =
                                         1u << RANK_RUNS | 1u << RANK_DUMPS | 1u << RANK_EXITED,
                                     [RANK_RUNS] = 1u << RANK_DUMPS | 1u << RANK_EXITED,
                                     [RANK_DUMPS] = 1u << RANK_EXITED,
                                     [RANK_EXITED] = 0};
    assert(legal[rank->state] & 1u << to);
    assert(to < RANK_DUMPS || rank->host);
    rank->state = to;
}

static void describe_command(char *const *command, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (char *const *word = command; *word && used < bytes; word++) {
        int more = snprintf(text + used, bytes - used, "%s%s", used ? " " : "", *word);
        used += more > 0 ? (size_t)more : 0;
    }
}

/* Its command line has no value of a variable in it. */
static void say_launcher(const struct job *job, int pid)
{
    char command[4096];
    describe_command(job->command, command, sizeof command);
    if (job->setup->options->verbose)
        horonrun_output_say(job->output, "process %d: %s", pid, command);
}

void job_rank_started(struct job *job, struct job_host *host, int rank, int pid)
{
    if (job->ranks[rank].pid || pid <= 0)
        return; /* no agent of ours says that, or says it twice */
    job->ranks[rank].pid = pid;
    job->ranks[rank].host = host;
    if (job->ranks[rank].state == RANK_UNHEARD)
        move(&job->ranks[rank], RANK_RUNS);
    job->started++;
    if (job->setup->mpi)
        say_launcher(job, pid);
    else if (job->setup->options->verbose)
        horonrun_output_say(job->output, "rank %d runs on %s as process %d", rank, host->name, pid);
    if (job->started == job->setup->size && job->state == JOB_STARTING) {
        job_move(job, JOB_RUNNING);
        ev_timer_stop(job->loop, &job->start_timer);
        if (job->setup->options->verbose && !job->setup->mpi)
            horonrun_output_say(job->output, "all %d ranks run after %.1f ms", job->started,
                                1000 * (ev_now(job->loop) - job->begun));
    }
}

static void describe_end(const struct job_rank *rank, char *text, size_t bytes)
{
    if (rank->state != RANK_EXITED)
        snprintf(text, bytes, "has crashed, and the system writes a core file of it");
    else
        horonrun_spawn_describe_end(rank->wait_status, text, bytes);
}

/* Of one that has failed. Until a core file is written it is not known how. */
static int code_of(const struct job_rank *rank)
{
    if (rank->state != RANK_EXITED || rank->wait_status == 0)
        return 1;
    return horonrun_spawn_code(rank->wait_status);
}

/* ---- Which rank was it? ---- */

static struct job_rank *find_named(struct job *job, const struct job_rank *rank)
{
    assert(rank->state >= RANK_DUMPS);
    return rank->names >= 0 ? &job->ranks[rank->names] : NULL;
}

static bool names_living(struct job *job, const struct job_rank *rank)
{
    const struct job_rank *named = find_named(job, rank);
    return named && named->state < RANK_DUMPS;
}

static bool names_failed(struct job *job, const struct job_rank *rank)
{
    const struct job_rank *named = find_named(job, rank);
    return named && named->failed_as;
}

/*
 * Which of the ranks that failed is the cause? One that names no other failed rank: it speaks of
 * itself, and the others of the rank that made them fail. Of several such ranks one that another
 * failed rank names goes before those that none names; then the rank that failed first. If each
 * failed rank names another, the suspect is the cause: the first that exited badly.
 */
static const struct job_rank *find_cause(struct job *job)
{
    const struct job_rank *cause = NULL;
    const int size = job->setup->size;
    for (int i = 0; i < size; i++)
        if (job->ranks[i].failed_as && names_failed(job, &job->ranks[i]))
            find_named(job, &job->ranks[i])->is_named = true;
    for (int i = 0; i < size; i++) {
        const struct job_rank *one = &job->ranks[i];
        if (!one->failed_as || names_failed(job, one))
            continue;
        if (!cause || one->is_named > cause->is_named ||
            (one->is_named == cause->is_named && one->failed_as < cause->failed_as))
            cause = one;
    }
    return cause ? cause : job->suspect;
}

/* Others that failed before the job was ended: a line each. */
static void report_others(struct job *job, const struct job_rank *cause)
{
    int more = 0, told = 0;
    for (int i = 0; i < job->setup->size; i++) {
        const struct job_rank *one = &job->ranks[i];
        char how[96];
        if (!one->failed_as || one == cause)
            continue;
        if (told++ == OTHERS_MAX)
            more = job->failed - 1 - OTHERS_MAX;
        if (told > OTHERS_MAX)
            break;
        const char *last = horonrun_output_last_line(job->output, i);
        describe_end(one, how, sizeof how);
        horonrun_output_say(job->output, "rank %d on %s %s, too%s%s", i, one->host->name, how,
                            last ? ": " : "", last ? last : "");
    }
    if (more)
        horonrun_output_say(job->output, "and %d more", more);
}

/* Nobody fails by ending with 0, nor by going on, but others may have needed it: then the one that
 * is reported names it as what it missed. */
static void report_named(struct job *job, const struct job_rank *cause)
{
    const struct job_rank *named = find_named(job, cause);
    const int number = named ? (int)(named - job->ranks) : -1;
    if (named && named->state == RANK_EXITED && named->wait_status == 0)
        horonrun_output_say(job->output,
                            "rank %d on %s, which it names, had ended with status 0: that is "
                            "probably the cause",
                            number, named->host->name);
    else if (named && named->state == RANK_RUNS)
        horonrun_output_say(job->output,
                            "rank %d on %s (process %d), which it names, still runs: what that "
                            "one does instead is probably the cause",
                            number, named->host->name, named->pid);
}

/* Ends the job because of this rank, and reports it. */
static void accuse(struct job *job, const struct job_rank *rank)
{
    char command[256], how[96], why[512];
    const int number = (int)(rank - job->ranks);
    const int status = rank->wait_status;
    if (!job_end(job, code_of(rank)))
        return;
    job->cause = rank;
    describe_end(rank, how, sizeof how);
    describe_command(job->setup->options->command, command, sizeof command);
    if (job->setup->mpi)
        snprintf(why, sizeof why, "%s (process %d) %s", job->setup->mpi->title, rank->pid, how);
    else
        snprintf(why, sizeof why, "rank %d on %s (process %d) %s", number, rank->host->name,
                 rank->pid, how);
    horonrun_output_say(job->output, "%s; command: %s", why, command);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        horonrun_output_say(job->output, "horonrun did not send that signal; the kernel does when "
                                         "memory runs out (dmesg tells)");
    if (!job->setup->mpi)
        horonrun_output_repeat_last(job->output, number);
    report_named(job, rank);
    report_others(job, rank);
    int others = job->setup->size - job->exited - (rank->state != RANK_EXITED);
    if (others > 0)
        horonrun_output_say(job->output, "ending the other %d rank%s", others,
                            others == 1 ? "" : "s");
    job_end_begin(job, number, why);
}

/* Was the rank ended by something from outside or by its own fault, rather than by its program's
 * answer to another rank's death? */
static bool is_crash(int wait_status)
{
    const int signo = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
    return signo == SIGKILL || signo == SIGSEGV || signo == SIGBUS || signo == SIGILL ||
           signo == SIGFPE || signo == SIGSYS;
}

/* Has the rank that is waited for ended? */
static void heed_named(struct job *job)
{
    if (job->awaits_named && !names_living(job, job->suspect))
        accuse(job, find_cause(job));
}

/* The others go on: what this rank was the cause of is said when all have ended. */
static void outlive(struct job *job, struct job_rank *rank)
{
    char how[96], why[512];
    const int number = (int)(rank - job->ranks);
    const int others = job->setup->size - job->exited - (rank->state != RANK_EXITED);
    describe_end(rank, how, sizeof how);
    snprintf(why, sizeof why, "rank %d on %s (process %d) %s", number, rank->host->name, rank->pid,
             how);
    job->suspect = job->suspect ? job->suspect : rank;
    horonrun_store_ended(job->store, number, why); /* ranks that join without it wait in vain */
    if (others > 0)
        horonrun_output_say(job->output, "%s; %d other rank%s may go on (--keep-survivors)", why,
                            others, others == 1 ? "" : "s");
}

static void rank_failed(struct job *job, struct job_rank *rank)
{
    assert(rank->state >= RANK_DUMPS);
    if (job->state >= JOB_ENDING)
        return;
    const bool is_known = rank->failed_as; /* it dumped core, and now has ended */
    if (!is_known)
        rank->failed_as = ++job->failed;
    if (job->setup->options->keep_survivors) {
        if (!is_known)
            outlive(job, rank);
    } else if (rank->state == RANK_EXITED && is_crash(rank->wait_status)) {
        accuse(job, rank);
    } else if (!job->suspect) {
        job->suspect = rank;
        ev_timer_start(job->loop, &job->suspect_timer);
    } else {
        heed_named(job);
    }
}

static void rank_ended_well(struct job *job, int rank)
{
    if (job->state >= JOB_ENDING)
        return;
    horonrun_store_ended(job->store, rank, NULL);
    heed_named(job);
}

static void on_suspect_timer(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct job *job = timer->data;
    (void)events;
    if (!job->awaits_named && names_living(job, job->suspect)) {
        job->awaits_named = true;
        ev_timer_set(timer, NAMED_SECONDS, 0.);
        ev_timer_start(loop, timer);
        return;
    }
    accuse(job, find_cause(job));
}

/* It may have been ended by its program's answer to another rank's death, abort() for one: so it is
 * suspected, no more. */
void job_rank_dumps(struct job *job, struct job_host *host, int rank, int names)
{
    struct job_rank *one = &job->ranks[rank];
    if (one->state >= RANK_DUMPS)
        return;
    one->host = host;
    one->names = names;
    move(one, RANK_DUMPS);
    horonrun_output_flush(job->output, rank);
    rank_failed(job, one);
}

void job_rank_exited(struct job *job, struct job_host *host, int rank, int wait_status, int names)
{
    char how[96];
    struct job_rank *one = &job->ranks[rank];
    if (one->state == RANK_EXITED)
        return;
    one->host = host;
    one->wait_status = wait_status;
    one->names = names;
    move(one, RANK_EXITED);
    job->exited++;
    horonrun_output_flush(job->output, rank);
    describe_end(one, how, sizeof how);
    if (one == job->cause)
        job->code = code_of(one);
    if (job->setup->options->verbose && !job->setup->mpi)
        horonrun_output_say(job->output, "rank %d %s", rank, how);
    if (wait_status != 0)
        rank_failed(job, one);
    else
        rank_ended_well(job, rank);
    if (job->exited < job->setup->size || job->state >= JOB_ENDING)
        return;
    if (job->suspect)
        accuse(job, find_cause(job));
    else if (job_end(job, 0))
        job_end_begin(job, -1, "all ranks have ended");
}

void job_rank_init_timer(struct job *job)
{
    ev_timer_init(&job->suspect_timer, on_suspect_timer, SUSPECT_SECONDS, 0.);
    ev_set_priority(&job->suspect_timer, EV_MINPRI); /* what has come is heard first */
    job->suspect_timer.data = job;
}
