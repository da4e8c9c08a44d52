/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job from its first process to its last. States only move forward: starting, running, ending,
 * sweeping, done. Whatever ends the job (a rank that failed, a signal, a lost host, every rank
 * done) goes through job_end(), and only the first of these decides the exit status.
 */
#include "job_internal.h"
#include "key.h"

#include "alloc.h"
#include "environment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define PING_SECONDS 5.
#define LOST_SECONDS 20.

/* ---- Events ---- */

void horonrun_job_signals(sigset_t *set)
{
    sigemptyset(set);
    const int handled[] = {SIGCHLD, SIGCONT, SIGHUP,  SIGINT, SIGQUIT,
                           SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++)
        sigaddset(set, handled[i]);
}

static void interrupted(struct job *job, int signo)
{
    job->interrupts++;
    if (signo == SIGINT) /* ranks hear it as if they had the terminal */
        job->interrupt_ms = job->grace_ms;
    if (job->state < JOB_ENDING)
        job_fail(job, 128 + signo, "%s: ending all ranks (once more: at once)", strsignal(signo));
    else if (job->interrupts > 1)
        job_end_force(job);
}

static void pass_on_signal(struct job *job, int signo)
{
    for (int i = 0; i < job->host_count; i++)
        horonrun_channel_send_u32(&job->hosts[i].channel, HORONRUN_SIGNAL, (uint32_t)signo, 0, 1);
}

/* Ctrl-Z: the ranks are in process groups of their own, so stop them, then ourselves. */
static void stop_with_ranks(struct job *job)
{
    pass_on_signal(job, SIGSTOP);
    raise(SIGSTOP);
    ev_now_update(job->loop);
    for (int i = 0; i < job->host_count; i++)
        job->hosts[i].heard = ev_now(job->loop);
}

static void handle_signal(struct job *job, int signo)
{
    switch (signo) {
    case SIGCHLD:
        break;
    case SIGTSTP:
        stop_with_ranks(job);
        break;
    case SIGCONT:
    case SIGUSR1:
    case SIGUSR2:
        pass_on_signal(job, signo);
        break;
    default:
        interrupted(job, signo);
    }
}

/* What we were started to ignore comes all the same, as it is blocked. nohup means any hangup; a
 * script's & means the keys of its terminal, and not what a kill sends to us. */
static bool is_ignored(const struct signalfd_siginfo *info)
{
    struct sigaction action;
    return sigaction((int)info->ssi_signo, NULL, &action) == 0 && action.sa_handler == SIG_IGN &&
           (info->ssi_signo == SIGHUP || info->ssi_code == SI_KERNEL);
}

static void on_signal(struct ev_loop *loop, struct ev_io *io, int events)
{
    struct job *job = io->data;
    struct signalfd_siginfo info;
    (void)loop;
    (void)events;
    while (read(job->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (!is_ignored(&info))
            handle_signal(job, (int)info.ssi_signo);
    if (job->state == JOB_SWEEPING)
        job_end_advance(job);
    else
        job_reap(job);
}

static void on_start_timer(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct job *job = timer->data;
    char missing[512] = "";
    int untold = 0;
    (void)loop;
    (void)events;
    for (int i = 0; i < job->host_count; i++) {
        const char *name = job->hosts[i].name;
        if (job->hosts[i].said_hello)
            continue;
        if (untold == 0 && strlen(missing) + strlen(name) + 32 < sizeof missing)
            horon_text_add(missing, sizeof missing, ", ", "%s", name);
        else
            untold++;
    }
    if (untold)
        horon_text_add(missing, sizeof missing, " and ", "%d more", untold);
    job_fail(job, 1, "not all ranks have started after %.1f s (--start-timeout); missing: %s",
             (double)job->setup->config->start_timeout_ms / 1000.,
             missing[0] ? missing : "some ranks, though all hosts answer");
}

static void on_ping_timer(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    struct job *job = timer->data;
    (void)events;
    for (int i = 0; i < job->host_count; i++) {
        struct job_host *host = &job->hosts[i];
        if (host->host->local || host->state != HOST_ANSWERS)
            continue;
        horonrun_channel_send(&host->channel, HORONRUN_PING, NULL, 0);
        if (host->channel.paused)
            host->heard = ev_now(loop); /* we are not listening */
        if (ev_now(loop) - host->heard < LOST_SECONDS)
            continue;
        job_fail(job, 1, "host %s has not answered for %.0f s", host->name, LOST_SECONDS);
    }
}

static void on_full(void *arg, bool full)
{
    struct job *job = arg;
    for (int i = 0; job->state < JOB_ENDING && i < job->host_count; i++)
        horonrun_channel_pause(&job->hosts[i].channel, full);
}

/* A reader that is gone ends us, as SIGPIPE ends a program that runs alone. A full disk does not:
 * the ranks may have days of work behind them; but it is told, and is no success. */
static void on_broken(void *arg, int stream, int why)
{
    struct job *job = arg;
    const char *name = stream == 1 ? "standard output" : "standard error";
    job->output_lost = true;
    if (why == EPIPE)
        job_fail(job, 128 + SIGPIPE, "nobody reads %s any more: ending all ranks", name);
    else
        horonrun_output_say(job->output, "%s cannot be written, its rest is lost: %s", name,
                            strerror(why));
}

/* ---- The beginning ---- */

/* @param text "NAME=value", or "NAME" for the value that it has here; @p prefix stands before it */
static bool set_from_text(char ***list, const char *prefix, const char *text)
{
    const size_t bytes = strcspn(text, "="), name_bytes = strlen(prefix) + bytes + 1;
    char *name = horon_alloc(name_bytes);
    if (!name)
        return false;
    snprintf(name, name_bytes, "%s%.*s", prefix, (int)bytes, text);
    const char *value = text[bytes] ? text + bytes + 1 : horonrun_environment_find(environ, name);
    const bool ok = !value || horonrun_environment_set(list, name, value);
    horon_free(name);
    return ok;
}

static bool add_job_variables(struct job *job, char ***list, const char *key)
{
    const struct horonrun_options *options = job->setup->options;
    bool ok = *list != NULL;
    /* Python buffers what does not go to a terminal; lines should come when they are printed. */
    if (ok && !horonrun_environment_find(*list, "PYTHONUNBUFFERED"))
        ok = horonrun_environment_set(list, "PYTHONUNBUFFERED", "1");
    for (char **setting = options->settings; ok && setting && *setting; setting++)
        ok = set_from_text(list, "HORON_", *setting);
    for (char **export = options->exports; ok && export && *export; export ++)
        ok = set_from_text(list, "", *export);
    if (ok)
        horonrun_environment_remove(*list, "HORON_JOB_KEY_FILE");
    return ok && horonrun_environment_set(list, "HORON_JOB_KEY", key);
}

/* Names only: a value may be a secret. */
static void print_remote_environment(const struct job *job)
{
    char text[1024] = "";
    for (char **entry = job->remote_environment; *entry; entry++) {
        const size_t used = strlen(text), bytes = strcspn(*entry, "=");
        if (used && used + bytes + 2 > sizeof text) {
            horonrun_output_say(job->output, "variables for other hosts:%s", text);
            text[0] = 0;
        }
        snprintf(text + strlen(text), sizeof text - strlen(text), " %.*s", (int)bytes, *entry);
    }
    horonrun_output_say(job->output, "variables for other hosts:%s", text);
}

static horon_status_t make_environments(struct job *job, const char *key, struct horon_error *error)
{
    job->directory = getcwd(NULL, 0);
    const int why = errno;
    job->environment = horonrun_environment_copy(environ);
    job->remote_environment = horonrun_environment_copy_for_remote(environ);
    if (!job->directory)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, why,
                                     "the current directory cannot be named");
    if (!add_job_variables(job, &job->environment, key) ||
        !add_job_variables(job, &job->remote_environment, key))
        return horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    if (job->setup->options->verbose && job->remote_count > 0)
        print_remote_environment(job);
    return job->setup->mpi ? horonrun_mpi_command(job->setup->mpi, &job->environment,
                                                  job->remote_environment, &job->command, error)
                           : HORON_OK;
}

static horon_status_t make_output(struct job *job, struct horon_error *error)
{
    const struct horonrun_options *options = job->setup->options;
    const char *no_color = horonrun_environment_find(environ, "NO_COLOR");
    struct horonrun_output_style style = {.timestamps = options->timestamps,
                                          .no_prefix = options->no_prefix,
                                          .directory = options->output_directory};
    for (int i = 0; i < 2; i++)
        style.color[i] = options->color == HORONRUN_COLOR_ALWAYS ||
                         (options->color == HORONRUN_COLOR_AUTO && !(no_color && *no_color) &&
                          isatty(STDOUT_FILENO + i));
    horon_status_t status = horonrun_output_create(&job->output, job->loop, job->setup->size,
                                                   &style, on_full, on_broken, job, error);
    return status == HORON_OK ? horonrun_output_open_files(job->output, error) : status;
}

static horon_status_t open_signals(struct job *job, struct horon_error *error)
{
    sigset_t handled;
    horonrun_job_signals(&handled);
    job->signal_fd = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
    return job->signal_fd >= 0
               ? HORON_OK
               : horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "no descriptor for signals");
}

static void watch(struct job *job)
{
    ev_io_init(&job->signal_io, on_signal, job->signal_fd, EV_READ);
    ev_timer_init(&job->start_timer, on_start_timer,
                  (double)job->setup->config->start_timeout_ms / 1000., 0.);
    ev_timer_init(&job->ping_timer, on_ping_timer, PING_SECONDS, PING_SECONDS);
    ev_timer_init(&job->end_timer, job_end_timer, 0., 0.);
    ev_set_priority(&job->start_timer, EV_MINPRI); /* what has come is heard first */
    ev_set_priority(&job->ping_timer, EV_MINPRI);
    job_rank_init_timer(job);
    job->signal_io.data = job;
    job->start_timer.data = job->ping_timer.data = job->end_timer.data = job;
    ev_io_start(job->loop, &job->signal_io);
    ev_timer_start(job->loop, &job->start_timer);
    if (job->remote_count)
        ev_timer_start(job->loop, &job->ping_timer);
}

static horon_status_t make_tables(struct job *job, struct horon_error *error)
{
    const struct horonrun_hosts *hosts = job->setup->hosts;
    job->hosts = horon_zalloc(hosts->count, sizeof *job->hosts);
    job->host_ranks = horon_zalloc(hosts->count, sizeof *job->host_ranks);
    job->ranks = horon_zalloc((size_t)job->setup->size, sizeof *job->ranks);
    if (!job->hosts || !job->host_ranks || !job->ranks)
        return horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    job->host_count = (int)hosts->count;
    for (int i = 0; i < job->host_count; i++) {
        struct job_host *host = &job->hosts[i];
        *host = (struct job_host){.job = job, .host = &hosts->at[i], .err_fd = -1};
        host->channel.in_fd = host->channel.out_fd = -1;
        snprintf(host->name, sizeof host->name, "%s", hosts->at[i].name);
        job->host_ranks[i] = hosts->at[i].ranks;
        job->remote_count += !hosts->at[i].local;
    }
    return HORON_OK;
}

/* The local agent waits already; ssh to all others starts at once. */
static horon_status_t open_hosts(struct job *job, struct horon_error *error)
{
    for (int i = 0; i < job->host_count; i++) {
        struct job_host *host = &job->hosts[i];
        struct horonrun_launched launched;
        if (host->host->local) {
            launched = *job->setup->local_agent;
        } else {
            horon_status_t status = horonrun_launch_ssh(host->host->name, job->setup->options,
                                                        &job->setup->mask, &launched, error);
            if (status != HORON_OK)
                return status;
        }
        job_host_open(host, &launched);
    }
    return HORON_OK;
}

static const char *host_of(void *arg, int rank)
{
    const struct job *job = arg;
    for (int i = 0; i < job->host_count; i++) {
        const struct horonrun_host *host = job->hosts[i].host;
        if (rank >= host->first_rank && rank - host->first_rank < host->ranks)
            return job->hosts[i].name;
    }
    return NULL;
}

static void warn_of_store(void *arg, const char *text)
{
    struct job *job = arg;
    horonrun_output_say(job->output, "warning: %s", text);
}

static horon_status_t make_store(struct job *job, const char *key, struct horon_error *error)
{
    const struct horonrun_store_setup setup = {.size = job->setup->size,
                                               .key = key,
                                               .remote = job->remote_count > 0,
                                               .interfaces = job->setup->config->interfaces,
                                               .port_range = job->setup->config->port_range,
                                               .host_of = host_of,
                                               .host_arg = job,
                                               .warn = warn_of_store,
                                               .warn_arg = job};
    return horonrun_store_create(&job->store, job->loop, &setup, error);
}

static horon_status_t begin(struct job *job, struct horon_error *error)
{
    char key[HORON_KEY_TEXT_BYTES] = "";
    horon_status_t status = make_tables(job, error);
    if (status == HORON_OK)
        status = open_signals(job, error);
    if (status == HORON_OK)
        status = make_output(job, error);
    if (status == HORON_OK)
        status = horonrun_key_find(job->setup->config, key, error);
    if (status == HORON_OK && !job->setup->mpi)
        status = make_store(job, key, error);
    if (status == HORON_OK)
        status = job_gloo_begin(job, error);
    if (status == HORON_OK)
        status = make_environments(job, key, error);
    explicit_bzero(key, sizeof key);
    if (status != HORON_OK)
        return status;
    watch(job);
    status = open_hosts(job, error);
    if (status != HORON_OK)
        job_fail(job, 1, "%s", error->text); /* hosts that were reached must be told */
    return HORON_OK;
}

static void deinit(struct job *job)
{
    for (int i = 0; i < job->host_count; i++)
        job_host_deinit(&job->hosts[i]);
    horonrun_store_destroy(job->store);
    horonrun_rendezvous_destroy(job->rendezvous);
    horonrun_output_destroy(job->output);
    horonrun_strings_free(job->environment);
    horonrun_strings_free(job->command);
    horonrun_strings_free(job->remote_environment);
    free(job->directory); /* getcwd's */
    horon_free(job->hosts);
    horon_free(job->host_ranks);
    horon_free(job->ranks);
    if (job->signal_fd >= 0)
        close(job->signal_fd);
    ev_loop_destroy(job->loop);
}

int horonrun_job_run(const struct horonrun_job_setup *setup)
{
    struct horon_error error = {0};
    struct job job = {.setup = setup, .signal_fd = -1, .grace_ms = setup->options->grace_ms};
    job.loop = ev_loop_new(EVFLAG_AUTO);
    if (!job.loop) {
        fprintf(stderr, "horonrun: cannot make an event loop\n");
        return 1;
    }
    job.begun = ev_now(job.loop);
    if (begin(&job, &error) != HORON_OK) {
        fprintf(stderr, "horonrun: %s\n", error.text);
        job.code = 1;
    } else {
        if (job.state != JOB_DONE)
            ev_run(job.loop, 0);
        horonrun_store_destroy(job.store); /* which may have a last word */
        job.store = NULL;
        int interrupts = job.interrupts;
        while (horonrun_output_pending(job.output) && job.interrupts == interrupts)
            ev_run(job.loop, EVRUN_ONCE); /* the reader takes its time; Ctrl-C ends that */
    }
    if (job.code == 0 && (job.output_lost || horonrun_output_lost_file(job.output)))
        job.code = 1;
    deinit(&job);
    return job.code;
}
