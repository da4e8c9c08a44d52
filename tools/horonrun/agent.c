/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process a host between horonrun and its ranks. It starts them, passes on what they print,
 * tells how each ended, and ends them all: on request, or when horonrun is gone. Everything it
 * starts stays below it (subreaper), so waitpid() saying "no children" proves that nothing is left.
 *
 * States: running -> interrupted (SIGINT sent; only if horonrun was) -> asked (SIGTERM sent, grace
 * runs) -> forced (SIGKILL, repeated until nothing is left). The ranks get SIGKILL from the kernel
 * if the agent dies; what they started then falls to the agent's guard (guard.c), which is a
 * subreaper too.
 */
#include "agent_internal.h"

#include "alloc.h"
#include "codec.h"
#include "environment.h"
#include "host/failure_file.h"
#include "key.h"
#include "spawn.h"
#include "tree.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* horonrun pings every 5 s. */
#define LOST_SECONDS 30.0
#define GRACE_WITHOUT_HORONRUN_MS 1000
/* What a pipe may hold by default, and a bit: a rank's own output is read to its end, that of a
 * process which lives on is not waited for. */
#define LAST_READ_BYTES ((size_t)128 << 10)

static void send_output(struct rank_stream *stream, const char *bytes, size_t count)
{
    uint8_t head[HORONRUN_FRAME_HEAD_BYTES + 5];
    struct horon_writer out = horon_writer_over(head, sizeof head);
    horon_write_u32(&out, (uint32_t)(5 + count));
    horon_write_u8(&out, HORONRUN_OUTPUT);
    horon_write_u32(&out, (uint32_t)stream->rank);
    horon_write_u8(&out, stream->number);
    struct horonrun_channel *channel = &stream->agent->channel;
    if (!horonrun_channel_is_open(channel) ||
        !horonrun_bytes_reserve(&channel->out, sizeof head + count))
        return; /* out of memory: this piece is lost, the frames stay whole */
    horonrun_bytes_append(&channel->out, head, sizeof head);
    horonrun_channel_send_raw(channel, bytes, count);
}

static void close_stream(struct rank_stream *stream)
{
    if (stream->fd < 0)
        return;
    ev_io_stop(stream->agent->loop, &stream->io);
    close(stream->fd);
    stream->fd = -1;
}

/* @return bytes read; 0: nothing there now, or the end */
static size_t read_stream(struct rank_stream *stream)
{
    char bytes[HORONRUN_OUTPUT_BYTES_MAX - 5];
    if (stream->fd < 0)
        return 0;
    ssize_t got = read(stream->fd, bytes, sizeof bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0) {
        close_stream(stream);
        return 0;
    }
    send_output(stream, bytes, (size_t)got);
    return (size_t)got;
}

/* Stops reading from the ranks while horonrun does not take what they print: their pipes fill up,
 * and they wait in write(), as they would on any slow terminal. */
static void pause_streams(struct agent *agent, bool pause)
{
    for (int i = 0; agent->ranks && i < 2 * agent->work.ranks; i++) {
        struct rank_stream *stream = &agent->ranks[i / 2].streams[i % 2];
        if (stream->fd < 0)
            continue;
        if (pause)
            ev_io_stop(agent->loop, &stream->io);
        else
            ev_io_start(agent->loop, &stream->io);
    }
}

void agent_read_rest(struct agent_rank *rank)
{
    for (int i = 0; i < 2; i++)
        for (size_t total = 0, got = 1; got && total < LAST_READ_BYTES; total += got)
            got = read_stream(&rank->streams[i]);
}

static void on_stream(struct ev_loop *loop, struct ev_io *io, int events)
{
    struct rank_stream *stream = io->data;
    (void)loop;
    (void)events;
    read_stream(stream);
    if (horonrun_channel_unsent(&stream->agent->channel) > HORONRUN_CHANNEL_QUEUE_BYTES)
        pause_streams(stream->agent, true);
}

static void on_drained(void *arg)
{
    pause_streams(arg, false);
}

static void open_stream(struct agent *agent, int index, int number, int fd)
{
    struct rank_stream *stream = &agent->ranks[index].streams[number - 1];
    *stream = (struct rank_stream){.agent = agent,
                                   .fd = fd,
                                   .rank = agent->work.first_rank + index,
                                   .number = (uint8_t)number};
    ev_io_init(&stream->io, on_stream, fd, EV_READ);
    stream->io.data = stream;
    ev_io_start(agent->loop, &stream->io);
}

/* ---- The end of horonrun ---- */

static void horonrun_is_gone(struct agent *agent)
{
    horonrun_channel_close(&agent->channel);
    pause_streams(agent, false); /* keep reading, so that nobody hangs in write() */
    if (agent->state == AGENT_DONE)
        ev_break(agent->loop, EVBREAK_ALL);
    else
        agent_stop(agent, GRACE_WITHOUT_HORONRUN_MS, 0); /* which would have waited longer */
}

/* ---- The beginning ---- */

static void report_failure(struct agent *agent, int code, const char *text)
{
    uint8_t body[HORON_ERROR_TEXT_BYTES + 16];
    struct horon_writer out = horon_writer_over(body, sizeof body);
    horon_write_u32(&out, (uint32_t)code);
    horon_write_string(&out, text);
    horonrun_channel_send(&agent->channel, HORONRUN_FAILED, body, out.used);
}

static horon_status_t start_rank(struct agent *agent, int index, struct horonrun_child *child,
                                 struct horon_error *error)
{
    const struct horonrun_work *work = &agent->work;
    int rank = work->first_rank + index;
    struct horon_map *failure = &agent->ranks[index].failure;
    (void)horon_failure_file_make(failure, NULL); /* a job needs none to run */
    const bool launcher = work->interrupt != 0;
    struct horonrun_spawn what = {.command = work->command,
                                  .directory = work->directory,
                                  .stdin_fd = rank == 0 ? agent->setup->stdin_fd : -1,
                                  .handed_fds = {agent->key_fd, launcher ? -1 : failure->fd},
                                  .files = agent->setup->files,
                                  .mask = agent->setup->mask};
    what.environment =
        launcher ? work->environment : horonrun_environment_of_rank(work, index, failure->fd);
    horon_status_t status = what.environment
                                ? horonrun_spawn(&what, child, error)
                                : horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    if (!launcher)
        horon_free(what.environment);
    horon_fd_close(&failure->fd); /* the mapping lives on */
    if (status != HORON_OK)
        return status;
    agent->ranks[index].pid = child->pid;
    open_stream(agent, index, 1, child->out_fd);
    open_stream(agent, index, 2, child->err_fd);
    return HORON_OK;
}

static void confirm_ranks(struct agent *agent, struct horonrun_child *children, int count)
{
    const struct horonrun_work *work = &agent->work;
    const struct horonrun_spawn what = {.command = work->command, .directory = work->directory};
    bool failed = false;
    for (int i = 0; i < count; i++) {
        struct horon_error error = {0};
        int code = horonrun_spawn_confirm(&children[i], &what, &error);
        if (code == 0) {
            horonrun_channel_send_u32(&agent->channel, HORONRUN_STARTED,
                                      (uint32_t)(work->first_rank + i), (uint32_t)children[i].pid,
                                      2);
        } else if (!failed) {
            failed = true; /* the others fail alike */
            report_failure(agent, code, error.text);
        }
    }
}

static void start_ranks(struct agent *agent)
{
    struct horon_error error = {0};
    const int count = agent->work.ranks;
    struct horonrun_child *children = horon_zalloc((size_t)count, sizeof *children);
    agent->ranks = horon_zalloc((size_t)count, sizeof *agent->ranks);
    horon_status_t status = HORON_OK;
    int started = 0;
    if (!children || !agent->ranks)
        status = horon_error_set(&error, HORON_ERR_MEMORY, "out of memory");
    for (int i = 0; agent->ranks && i < count; i++) {
        agent->ranks[i].failure.fd = -1;
        for (int number = 0; number < 2; number++)
            agent->ranks[i].streams[number] = (struct rank_stream){.agent = agent, .fd = -1};
    }
    while (status == HORON_OK && started < count) {
        status = start_rank(agent, started, &children[started], &error);
        started += status == HORON_OK;
    }
    if (children)
        confirm_ranks(agent, children, started);
    if (status != HORON_OK)
        report_failure(agent, 1, error.text);
    else
        agent_look_start(agent);
    horon_free(children);
}

/* ---- Events ---- */

static void on_work(struct agent *agent, const struct horonrun_frame *frame)
{
    if (agent->ranks || agent->state != AGENT_RUNNING)
        return;
    struct horon_error error;
    horonrun_work_deinit(&agent->work); /* of one that could not be read */
    horon_status_t status = horonrun_work_decode(&agent->work, frame->body, frame->body_bytes);
    if (status == HORON_OK && agent->work.remote &&
        !horonrun_environment_add_own(&agent->work.environment))
        status = HORON_ERR_MEMORY;
    if (status != HORON_OK)
        report_failure(agent, 1, horon_status_text(status));
    else if (!agent->work.interrupt &&
             horonrun_key_hand_over(&agent->work.environment, &agent->key_fd, &error) != HORON_OK)
        report_failure(agent, 1, error.text);
    else
        start_ranks(agent);
}

static void pass_on_signal(struct agent *agent, int signo)
{
    if (agent->state != AGENT_RUNNING)
        return;
    if (signo == SIGSTOP || signo == SIGCONT) {
        agent->held = signo == SIGSTOP; /* horonrun stops too, and is silent */
        ev_timer_stop(agent->loop, &agent->lost_timer);
    }
    if (signo == SIGUSR1 || signo == SIGUSR2)
        agent_signal(agent, signo);
    else
        horonrun_tree_signal(signo, NULL, 0, NULL, 0);
}

static void on_stop(struct agent *agent, struct horon_reader *in)
{
    const uint32_t grace_ms = horon_read_u32(in);
    agent_stop(agent, grace_ms, horon_read_u32(in));
}

static void on_frame(void *arg, const struct horonrun_frame *frame)
{
    struct agent *agent = arg;
    struct horon_reader in = horon_reader_over(frame->body, frame->body_bytes);
    if (agent->setup->remote && !agent->held)
        ev_timer_again(agent->loop, &agent->lost_timer);
    switch (frame->type) {
    case HORONRUN_WORK:
        on_work(agent, frame);
        break;
    case HORONRUN_STOP:
        on_stop(agent, &in);
        break;
    case HORONRUN_SIGNAL:
        pass_on_signal(agent, (int)horon_read_u32(&in));
        break;
    case HORONRUN_PING:
        horonrun_channel_send(&agent->channel, HORONRUN_PING, NULL, 0);
        break;
    }
}

static void on_end(void *arg, const char *why)
{
    (void)why;
    horonrun_is_gone(arg);
}

static void on_lost(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    (void)loop;
    (void)events;
    horonrun_is_gone(timer->data);
}

static void on_signal(struct ev_loop *loop, struct ev_io *io, int events)
{
    struct agent *agent = io->data;
    struct signalfd_siginfo info;
    (void)loop;
    (void)events;
    while (read(agent->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            horonrun_is_gone(agent); /* our parent died, or somebody asks us to end */
    agent_reap(agent);
}

static void say_hello(struct agent *agent)
{
    uint8_t body[512];
    char host[256] = "?", horonrun_address[64] = "";
    const char *connection = horonrun_environment_find(environ, "SSH_CONNECTION");
    if (connection && agent->setup->remote) /* "client-address client-port ..." */
        snprintf(horonrun_address, sizeof horonrun_address, "%.*s", (int)strcspn(connection, " "),
                 connection);
    gethostname(host, sizeof host - 1);
    struct horon_writer out = horon_writer_over(body, sizeof body);
    horon_write_string(&out, horon_version());
    horon_write_string(&out, host);
    horon_write_string(&out, horonrun_address);
    horonrun_channel_send_raw(&agent->channel, HORONRUN_GREETING, strlen(HORONRUN_GREETING));
    horonrun_channel_send(&agent->channel, HORONRUN_HELLO, body, out.used);
}

static bool watch_signals(struct agent *agent)
{
    sigset_t handled;
    sigemptyset(&handled);
    sigaddset(&handled, SIGCHLD);
    sigaddset(&handled, SIGTERM);
    sigaddset(&handled, SIGHUP);
    sigaddset(&handled, SIGINT);
    sigprocmask(SIG_BLOCK, &handled, NULL);
    agent->signal_fd = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
    if (agent->signal_fd < 0)
        return false;
    ev_io_init(&agent->signal_io, on_signal, agent->signal_fd, EV_READ);
    agent->signal_io.data = agent;
    ev_io_start(agent->loop, &agent->signal_io);
    return true;
}

int horonrun_agent_run(const struct horonrun_agent_setup *setup)
{
    static const struct horonrun_channel_events events = {on_frame, on_end, on_drained};
    struct agent agent = {.setup = setup, .key_fd = -1, .loop = ev_loop_new(EVFLAG_AUTO)};
    if (!agent.loop)
        return 1;
    horonrun_tree_adopt();
    ev_timer_init(&agent.end_timer, agent_end_timer, 0., 0.);
    ev_timer_init(&agent.lost_timer, on_lost, 0., LOST_SECONDS);
    ev_set_priority(&agent.lost_timer, EV_MINPRI); /* what has come is heard first */
    agent.end_timer.data = agent.lost_timer.data = &agent;
    horonrun_channel_open(&agent.channel, agent.loop, setup->in_fd, setup->out_fd, false, &events,
                          &agent);
    if (!watch_signals(&agent)) { /* no descriptor is left for it: horonrun sees our end */
        horonrun_channel_close(&agent.channel);
        ev_loop_destroy(agent.loop);
        return 1;
    }
    if (setup->remote)
        ev_timer_again(agent.loop, &agent.lost_timer);
    say_hello(&agent);
    ev_run(agent.loop, 0);

    horonrun_channel_close(&agent.channel);
    for (int i = 0; agent.ranks && i < agent.work.ranks; i++) {
        close_stream(&agent.ranks[i].streams[0]);
        close_stream(&agent.ranks[i].streams[1]);
        horon_memory_unmap(&agent.ranks[i].failure);
    }
    close(agent.signal_fd);
    ev_loop_destroy(agent.loop);
    horon_free(agent.ranks);
    horonrun_work_deinit(&agent.work);
    if (agent.key_fd >= 0)
        close(agent.key_fd);
    return 0;
}
