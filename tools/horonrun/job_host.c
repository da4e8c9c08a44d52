/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One agent as horonrun sees it: a channel, a process (the agent's guard or the ssh that leads to
 * it), and what ssh says. Invariant: the channel is closed unless job_host_is_open().
 */
#include "job_internal.h"

#include "codec.h"
#include "environment.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEATH_MS = 200, SSH_FAILED = 255 };

static void move(struct job_host *host, enum job_host_state to)
{
    static const unsigned legal[] = {
        [HOST_CLOSED] = 1u << HOST_OPEN,
        [HOST_OPEN] = 1u << HOST_ANSWERS | 1u << HOST_GONE,
        [HOST_ANSWERS] = 1u << HOST_GONE,
        [HOST_GONE] = 1u << HOST_GONE}; /* its loss has ended the job, which has dropped it */
    assert(legal[host->state] & 1u << to);
    assert(to != HOST_OPEN || !host->said_hello);
    host->state = to;
}

static void send_work(struct job_host *host)
{
    struct job *job = host->job;
    const bool remote = !host->host->local;
    char ***environment = remote ? &job->remote_environment : &job->environment;
    char url[HORONRUN_STORE_URL_BYTES];
    if (remote)
        horonrun_store_remote_url(job->store, host->seen_as, url);
    else if (job->store)
        horonrun_store_local_url(job->store, url);
    if ((job->store && !horonrun_environment_set(environment, "HORON_STORE", url)) ||
        !job_gloo_tell(host, environment)) {
        job_fail(job, 1, "out of memory");
        return;
    }
    struct horonrun_work work = {
        .host_ranks = job->host_ranks,
        .hosts = job->host_count,
        .host = (int)(host - job->hosts),
        .directory = job->directory,
        .command = job->command ? job->command : job->setup->options->command,
        .environment = *environment,
        .remote = remote,
        .interrupt = job->setup->mpi ? job->setup->mpi->interrupt : 0,
        .terminate = job->setup->mpi ? job->setup->mpi->terminate : 0,
    };
    struct horonrun_bytes body = {0};
    if (horonrun_work_encode(&work, &body) && body.used <= HORONRUN_FRAME_BODY_MAX)
        horonrun_channel_send(&host->channel, HORONRUN_WORK, body.data, body.used);
    else
        job_fail(job, 1, "the environment and command are too large for host %s", host->name);
    horonrun_bytes_deinit(&body);
}

/* Ranks of one host are not started for nothing because another host cannot be reached; they would
 * have to wait for its ranks anyway. */
static void send_all_work(struct job *job)
{
    for (int i = 0; i < job->host_count; i++)
        if (!job->hosts[i].said_hello)
            return;
    for (int i = 0; i < job->host_count && job->state == JOB_STARTING; i++)
        send_work(&job->hosts[i]);
}

static void on_hello(struct job_host *host, struct horon_reader *in)
{
    char version[64], name[256], seen_as[sizeof host->seen_as];
    struct job *job = host->job;
    horon_read_string(in, version, sizeof version);
    horon_read_string(in, name, sizeof name);
    horon_read_string(in, seen_as, sizeof seen_as);
    if (!in->ok || host->said_hello)
        return;
    if (strcmp(version, horon_version()) != 0) {
        job_fail(job, 1, "host %s has horon %s, this is horon %s", host->name, version,
                 horon_version());
        return;
    }
    if (host->host->local)
        snprintf(host->name, sizeof host->name, "%s", name);
    if (job->setup->options->verbose)
        horonrun_output_say(job->output, "agent on %s (%s) answers after %.1f ms", host->host->name,
                            name, 1000 * (ev_now(job->loop) - job->begun));
    memcpy(host->seen_as, seen_as, sizeof seen_as);
    host->said_hello = true;
    move(host, HOST_ANSWERS);
    if (job->state == JOB_STARTING)
        send_all_work(job);
}

static void on_failed(struct job_host *host, struct horon_reader *in)
{
    char text[HORON_ERROR_TEXT_BYTES];
    uint32_t code = horon_read_u32(in);
    horon_read_string(in, text, sizeof text);
    if (code == 0 || code > 255) /* what failed must not look like success */
        code = 1;
    job_fail(host->job, (int)code, "on %s: %s", host->name,
             in->ok ? text : "ranks cannot be started");
}

static void on_gone(struct job_host *host, struct horon_reader *in)
{
    uint32_t forced = horon_read_u32(in), survivors = horon_read_u32(in);
    if (forced)
        horonrun_output_say(host->job->output, "%u process%s on %s had to be killed (SIGKILL)",
                            forced, forced == 1 ? "" : "es", host->name);
    if (survivors)
        horonrun_output_say(host->job->output,
                            "%u process%s on %s cannot be killed: the kernel holds %s", survivors,
                            survivors == 1 ? "" : "es", host->name, survivors == 1 ? "it" : "them");
    job_host_drop(host);
    job_end_advance(host->job);
}

/* @return the rank, if it is one of this host */
static bool read_rank(const struct job_host *host, struct horon_reader *in, int *rank_out)
{
    uint32_t rank = horon_read_u32(in);
    *rank_out = (int)rank;
    return in->ok && *rank_out >= host->host->first_rank &&
           *rank_out - host->host->first_rank < host->host->ranks;
}

/* @return another rank than @p rank, or -1: none is told */
static int read_other(const struct job *job, struct horon_reader *in, int rank)
{
    const uint32_t other = horon_read_u32(in);
    const bool is_other = other < (uint32_t)job->setup->size && (int)other != rank;
    return in->ok && is_other ? (int)other : -1;
}

static void on_rank_frame(struct job_host *host, uint8_t type, struct horon_reader *in)
{
    int rank;
    if (!read_rank(host, in, &rank))
        return;
    if (type == HORONRUN_OUTPUT) {
        uint8_t stream = horon_read_u8(in);
        if (stream == 1 || stream == 2)
            horonrun_output_feed(host->job->output, rank, stream,
                                 (const char *)in->bytes + in->used, in->limit - in->used);
        return;
    }
    if (type == HORONRUN_DUMPS) {
        job_rank_dumps(host->job, host, rank, read_other(host->job, in, rank));
        return;
    }
    int value = (int)horon_read_u32(in);
    if (type == HORONRUN_STARTED)
        job_rank_started(host->job, host, rank, value);
    else
        job_rank_exited(host->job, host, rank, value, read_other(host->job, in, rank));
}

static void on_frame(void *arg, const struct horonrun_frame *frame)
{
    struct job_host *host = arg;
    struct horon_reader in = horon_reader_over(frame->body, frame->body_bytes);
    host->heard = ev_now(host->job->loop);
    switch (frame->type) {
    case HORONRUN_HELLO:
        on_hello(host, &in);
        break;
    case HORONRUN_FAILED:
        on_failed(host, &in);
        break;
    case HORONRUN_GONE:
        on_gone(host, &in);
        break;
    case HORONRUN_STARTED:
    case HORONRUN_OUTPUT:
    case HORONRUN_EXIT:
    case HORONRUN_DUMPS:
        on_rank_frame(host, frame->type, &in);
        break;
    }
}

/* ---- The end of an agent that did not say goodbye ---- */

static void describe_end(const struct job_host *host, char *text, size_t bytes)
{
    const int code = WEXITSTATUS(host->wait_status);
    int signo = 0;
    if (WIFSIGNALED(host->wait_status))
        signo = WTERMSIG(host->wait_status);
    else if (host->host->local && code > 128)
        signo = code - 128; /* so the guard tells it of its agent */
    if (signo)
        snprintf(text, bytes, "was killed by signal %d (%s)", signo, strsignal(signo));
    else
        snprintf(text, bytes, "ended with status %d", code);
}

/* 255 is ssh's own failure; with another status it had reached the host. */
static void say_unusable(struct job_host *host, const char *how, const char *why)
{
    char own[HORONRUN_PATH_BYTES], tried[HORONRUN_PATH_BYTES + 64] = "";
    if (!host->pid && WIFEXITED(host->wait_status) && WEXITSTATUS(host->wait_status) != SSH_FAILED)
        snprintf(tried, sizeof tried, "; horonrun was tried there as %s (--remote-horonrun)",
                 horonrun_launch_remote_path(host->job->setup->options, own));
    job_fail(host->job, 1, "host %s cannot be used: ssh %s before an agent answered%s%s%s",
             host->name, how, why[0] ? ": " : "", why, tried);
}

static void say_lost(struct job_host *host, const char *why)
{
    char how[128] = "closed its connection";
    const bool local = host->host->local;
    const bool guard_killed = !host->pid && WIFSIGNALED(host->wait_status);
    if (!host->pid)
        describe_end(host, how, sizeof how);
    if (!local && !host->said_hello)
        say_unusable(host, how, why);
    else
        job_fail(host->job, 1, "lost host %s: %s %s%s%s", host->name,
                 !local         ? "the connection to its agent"
                 : guard_killed ? "its agent's guard"
                                : "its agent",
                 how, why[0] ? ": " : "", why);
}

/* The channel of a process that dies ends a moment before the process can be reaped. Waits for that
 * moment, to tell how it ended; not for a process that lives on without its channel. */
static void await_death(pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return;
    struct pollfd death = {.fd = fd, .events = POLLIN};
    while (poll(&death, 1, DEATH_MS) < 0 && errno == EINTR)
        ;
    close(fd);
}

static void on_end(void *arg, const char *why)
{
    struct job_host *host = arg;
    struct job *job = host->job;
    if (!job_host_is_open(host))
        return;
    if (host->pid)
        await_death(host->pid);
    job_reap(job);
    if (job->state < JOB_ENDING)
        say_lost(host, why);
    job_host_drop(host);
    if (host->host->local)
        job_kill_fallen(job);
    job_end_advance(job);
}

static void say_for_ssh(void *arg, const char *text, size_t bytes)
{
    struct job_host *host = arg;
    horonrun_output_say(host->job->output, "%s: %.*s", host->host->name, (int)bytes, text);
}

static void close_err(struct job_host *host)
{
    if (host->err_fd < 0)
        return;
    ev_io_stop(host->job->loop, &host->err_io);
    close(host->err_fd);
    host->err_fd = -1;
    horonrun_lines_flush(&host->err_lines, say_for_ssh, host);
}

static void read_err(struct job_host *host)
{
    char bytes[4096];
    while (host->err_fd >= 0) {
        ssize_t got = read(host->err_fd, bytes, sizeof bytes);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0)
            close_err(host);
        else
            horonrun_lines_feed(&host->err_lines, bytes, (size_t)got, say_for_ssh, host);
    }
}

static void on_err(struct ev_loop *loop, struct ev_io *io, int events)
{
    (void)loop;
    (void)events;
    read_err(io->data);
}

void job_host_open(struct job_host *host, const struct horonrun_launched *launched)
{
    static const struct horonrun_channel_events events = {on_frame, on_end, NULL};
    move(host, HOST_OPEN);
    host->pid = launched->pid;
    host->err_fd = launched->err_fd;
    host->heard = ev_now(host->job->loop);
    horonrun_channel_open(&host->channel, host->job->loop, launched->in_fd, launched->out_fd, true,
                          &events, host);
    if (host->err_fd < 0)
        return;
    ev_io_init(&host->err_io, on_err, host->err_fd, EV_READ);
    host->err_io.data = host;
    ev_io_start(host->job->loop, &host->err_io);
}

void job_host_stop(struct job_host *host, uint32_t grace_ms, uint32_t interrupt_ms)
{
    if (!job_host_is_open(host))
        return;
    if (host->state == HOST_ANSWERS) {
        horonrun_channel_pause(&host->channel, false);
        horonrun_channel_send_u32(&host->channel, HORONRUN_STOP, grace_ms, interrupt_ms, 2);
        return;
    }
    if (host->pid && !host->host->local)
        kill(host->pid, SIGTERM); /* an ssh that still tries to connect */
    job_host_drop(host);
}

void job_host_reaped(struct job_host *host, int wait_status)
{
    host->pid = 0;
    host->wait_status = wait_status;
    read_err(host);
}

void job_host_drop(struct job_host *host)
{
    move(host, HOST_GONE);
    horonrun_channel_close(&host->channel);
}

void job_host_deinit(struct job_host *host)
{
    horonrun_channel_close(&host->channel);
    close_err(host);
    horonrun_lines_deinit(&host->err_lines);
}
