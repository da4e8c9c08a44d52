/* SPDX-License-Identifier: Apache-2.0 */
/*
 * horonrun whose agents say anything: a job of two hosts, with the loop's callbacks called one by
 * one as a script tells; agents that speak well are the usual case. No process is signalled: what
 * would do so stands below, in front of the library's. Whatever comes: the job ends with a status
 * that is 0 only if every rank's was, and what horonrun says are whole frames that an agent reads.
 */
#undef NDEBUG
#include "environment.h"
#include "job_internal.h"
#include "tree.h"

#include "address.h"
#include "alloc.h"
#include "codec.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HOSTS = 2, RANKS = 3, PIECE_BYTES_MAX = 16384 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct script {
    const uint8_t *bytes;
    size_t left;
};

struct fuzz {
    struct job job;
    int ends[HOSTS];     /* the agents' sides; -1 once closed */
    int errs[HOSTS];     /* where ssh complains; likewise */
    bool greeted[HOSTS]; /* that agent has begun well */
};

static uint8_t next_byte(struct script *script)
{
    if (script->left == 0)
        return 0;
    script->left--;
    return *script->bytes++;
}

/* ---- What would touch processes and listen ----------------------------------------------------
 */

void horonrun_tree_adopt(void) {}

int horonrun_tree_signal(int signo, const pid_t *spared, size_t spared_count, pid_t *pids,
                         size_t limit)
{
    (void)signo;
    (void)spared;
    (void)pids;
    (void)limit;
    assert(spared_count <= HOSTS);
    return 0;
}

void horonrun_store_local_url(const struct horonrun_store *store,
                              char url[HORONRUN_STORE_URL_BYTES])
{
    (void)store;
    strcpy(url, "tcp://127.0.0.1:1");
}

/* As the real one, it reads what the agent says of us. */
void horonrun_store_remote_url(const struct horonrun_store *store, const char *seen_as,
                               char url[HORONRUN_STORE_URL_BYTES])
{
    struct horon_address seen;
    char text[HORON_ADDRESS_TEXT_BYTES];
    horonrun_store_local_url(store, url);
    if (horon_address_parse(seen_as, 0, &seen))
        assert(strlen(horon_address_text(&seen, text)) < sizeof text);
}

void horonrun_store_ended(struct horonrun_store *store, int rank, const char *why)
{
    (void)store;
    (void)rank;
    assert(!why || why[0]);
}

void horonrun_store_fail(struct horonrun_store *store, int rank, const char *why)
{
    (void)store;
    (void)rank;
    assert(why[0]);
}

/* ---- What agents say --------------------------------------------------------------------------
 */

/* Our side is read at once, so that nothing piles up. */
static void hear(struct fuzz *fuzz, int at)
{
    struct horonrun_channel *channel = &fuzz->job.hosts[at].channel;
    if (horonrun_channel_is_open(channel) && !channel->paused)
        ev_invoke(fuzz->job.loop, &channel->reader, EV_READ);
}

static void say(struct fuzz *fuzz, int from, const void *bytes, size_t byte_count)
{
    if (fuzz->ends[from] < 0 || !byte_count || fuzz->job.hosts[from].channel.paused)
        return;
    (void)send(fuzz->ends[from], bytes, byte_count, MSG_NOSIGNAL | MSG_DONTWAIT);
    hear(fuzz, from);
}

static void say_frame(struct fuzz *fuzz, int from, uint8_t type, const void *body, size_t bytes,
                      uint8_t cut)
{
    struct horonrun_bytes frame = {0};
    assert(horonrun_frame_append(&frame, type, body, bytes));
    const size_t first = cut ? cut % frame.used : 0;
    say(fuzz, from, frame.data, first);
    say(fuzz, from, frame.data + first, frame.used - first);
    horonrun_bytes_deinit(&frame);
}

static void say_hello(struct fuzz *fuzz, int from, struct script *script, uint8_t how)
{
    uint8_t body[600];
    char text[256] = "";
    struct horon_writer out = horon_writer_over(body, sizeof body);
    size_t bytes = how & 2 ? next_byte(script) : 0;
    bytes = bytes < script->left ? bytes : script->left;
    if (!fuzz->greeted[from] && !(how & 1))
        say(fuzz, from, HORONRUN_GREETING, strlen(HORONRUN_GREETING));
    fuzz->greeted[from] = true;
    memcpy(text, script->bytes, bytes);
    script->bytes += bytes;
    script->left -= bytes;
    horon_write_string(&out, how & 4 ? text : horon_version());
    horon_write_string(&out, how & 8 ? text : "node");
    horon_write_string(&out, how & 16 ? text : "10.0.0.1");
    say_frame(fuzz, from, HORONRUN_HELLO, body, out.used, 0);
}

/* Up to three numbers, of ranks perhaps, and perhaps a text or less than there should be. */
static void say_numbers(struct fuzz *fuzz, int from, uint8_t type, struct script *script)
{
    uint8_t body[80];
    struct horon_writer out = horon_writer_over(body, sizeof body);
    const uint8_t rank = next_byte(script), value = next_byte(script), cut = next_byte(script);
    horon_write_u32(&out, rank & 128 ? (uint32_t)(int8_t)rank : rank & 3);
    if (type == HORONRUN_FAILED)
        horon_write_string(&out, value & 1 ? "" : "no such command");
    else if (type == HORONRUN_OUTPUT)
        horon_write_u8(&out, value & 3);
    else
        horon_write_u32(&out, value & 128 ? (uint32_t)value << 8 : value & 63);
    if (type == HORONRUN_EXIT)
        horon_write_u32(&out, cut & 4 ? (uint32_t)cut << 24 : (uint32_t)(cut >> 3 & 3) - 1);
    if (type == HORONRUN_OUTPUT)
        horon_write_bytes(&out, "a line\nand a half", value >> 3 & 15);
    if (cut & 1)
        out.used = cut / 2 % (out.used + 1);
    say_frame(fuzz, from, type, body, out.used, cut & 2 ? cut : 0);
}

static void say_script(struct fuzz *fuzz, int from, struct script *script, uint8_t how)
{
    const uint8_t type = next_byte(script);
    size_t bytes = (size_t)next_byte(script) << (how & 1 ? 4 : 0);
    bytes = bytes < script->left ? bytes : script->left;
    if (how & 2)
        say(fuzz, from, script->bytes, bytes);
    else
        say_frame(fuzz, from, type, script->bytes, bytes, how & 4 ? type : 0);
    script->bytes += bytes;
    script->left -= bytes;
}

static void hang_up(struct fuzz *fuzz, int at)
{
    if (fuzz->ends[at] >= 0)
        close(fuzz->ends[at]);
    fuzz->ends[at] = -1;
    hear(fuzz, at);
}

/* What ssh says, which the user is to see. */
static void complain(struct fuzz *fuzz, int at, struct script *script)
{
    struct job_host *host = &fuzz->job.hosts[at];
    size_t bytes = next_byte(script);
    bytes = bytes < script->left ? bytes : script->left;
    if (host->err_fd < 0)
        return;
    if (bytes)
        (void)send(fuzz->errs[at], script->bytes, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    else
        shutdown(fuzz->errs[at], SHUT_WR);
    script->bytes += bytes;
    script->left -= bytes;
    ev_invoke(fuzz->job.loop, &host->err_io, EV_READ);
}

static void let_time_pass(struct fuzz *fuzz, uint8_t how)
{
    struct job *job = &fuzz->job;
    struct ev_timer *timers[] = {&job->suspect_timer, &job->end_timer};
    struct ev_timer *timer = timers[how & 1];
    if (!ev_is_active(timer))
        return;
    ev_timer_stop(job->loop, timer);
    ev_invoke(job->loop, timer, EV_TIMER);
}

static void play(struct fuzz *fuzz, struct script *script)
{
    static const uint8_t types[] = {HORONRUN_STARTED, HORONRUN_EXIT,   HORONRUN_DUMPS,
                                    HORONRUN_OUTPUT,  HORONRUN_FAILED, HORONRUN_GONE};
    while (script->left > 0 && fuzz->job.state != JOB_DONE) {
        const uint8_t what = next_byte(script), from = what >> 4 & 1, how = what >> 5;
        switch (what & 15) {
        case 0:
            say_hello(fuzz, from, script, (uint8_t)(how << 1));
            break;
        case 1:
            say_hello(fuzz, from, script, next_byte(script));
            break;
        case 2:
            say_script(fuzz, from, script, how);
            break;
        case 3:
            hang_up(fuzz, from);
            break;
        case 4:
            complain(fuzz, from, script);
            break;
        case 5:
            let_time_pass(fuzz, how);
            break;
        case 6:
            if (how == 7)
                job_end_force(&fuzz->job);
            else if (how == 6)
                job_fail(&fuzz->job, 130, "interrupted");
            break;
        default:
            say_numbers(fuzz, from, types[(what & 15) % 6], script);
        }
    }
}

/* ---- A job ------------------------------------------------------------------------------------
 */

static void on_full(void *arg, bool full)
{
    struct fuzz *fuzz = arg;
    for (int i = 0; fuzz->job.state < JOB_ENDING && i < HOSTS; i++)
        horonrun_channel_pause(&fuzz->job.hosts[i].channel, full);
}

static void on_broken(void *arg, int stream, int why)
{
    (void)arg; /* what is written here goes nowhere, and cannot fail */
    (void)stream;
    (void)why;
}

static void on_timer(struct ev_loop *loop, struct ev_timer *timer, int events)
{
    (void)loop;
    (void)timer;
    (void)events;
}

static void open_host(struct fuzz *fuzz, int at)
{
    int pair[2], err[2];
    const struct horonrun_host *host = &fuzz->job.setup->hosts->at[at];
    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, err) == 0);
    /* no process: pid 0 is one that was reaped */
    const struct horonrun_launched launched = {
        .in_fd = pair[0], .out_fd = pair[0], .err_fd = err[0]};
    fuzz->ends[at] = pair[1];
    fuzz->errs[at] = err[1];
    fuzz->job.hosts[at] = (struct job_host){.job = &fuzz->job, .host = host};
    strcpy(fuzz->job.hosts[at].name, host->name);
    job_host_open(&fuzz->job.hosts[at], &launched);
}

static void begin(struct fuzz *fuzz, const struct horonrun_job_setup *setup, struct ev_loop *loop)
{
    const struct horonrun_output_style style = {.no_prefix = false};
    struct horon_error error = {0};
    char *nothing[] = {NULL};
    struct job *job = &fuzz->job;
    *job = (struct job){.setup = setup,
                        .loop = loop,
                        .host_count = HOSTS,
                        .remote_count = HOSTS - 1,
                        .signal_fd = -1,
                        .grace_ms = 1000};
    assert(horonrun_output_create(&job->output, loop, RANKS, &style, on_full, on_broken, fuzz,
                                  &error) == HORON_OK);
    job->hosts = horon_zalloc(HOSTS, sizeof *job->hosts);
    job->host_ranks = horon_zalloc(HOSTS, sizeof *job->host_ranks);
    job->ranks = horon_zalloc(RANKS, sizeof *job->ranks);
    job->environment = horonrun_environment_copy(nothing);
    job->remote_environment = horonrun_environment_copy(nothing);
    job->directory = strdup("/");
    assert(job->hosts && job->host_ranks && job->ranks && job->environment &&
           job->remote_environment);
    ev_timer_init(&job->start_timer, on_timer, 60., 0.);
    ev_timer_init(&job->end_timer, job_end_timer, 0., 0.);
    job->end_timer.data = job;
    job_rank_init_timer(job);
    for (int i = 0; i < HOSTS; i++) {
        job->host_ranks[i] = setup->hosts->at[i].ranks;
        open_host(fuzz, i);
    }
}

static void check_heard(struct fuzz *fuzz, int at)
{
    char bytes[PIECE_BYTES_MAX];
    struct horonrun_bytes heard = {0};
    ssize_t got;
    while (fuzz->ends[at] >= 0 && (got = read(fuzz->ends[at], bytes, sizeof bytes)) > 0)
        assert(horonrun_bytes_append(&heard, bytes, (size_t)got));
    struct horonrun_frame frame;
    size_t at_byte = 0;
    horon_status_t status = HORON_AGAIN;
    while (heard.used && (status = horonrun_frame_peek(heard.data + at_byte, heard.used - at_byte,
                                                       &frame)) == HORON_OK) {
        at_byte += frame.bytes;
        assert(frame.type >= HORONRUN_WORK && frame.type <= HORONRUN_PING);
        if (frame.type != HORONRUN_WORK)
            continue;
        struct horonrun_work work;
        assert(horonrun_work_decode(&work, frame.body, frame.body_bytes) == HORON_OK);
        assert(work.first_rank + work.ranks <= RANKS);
        horonrun_work_deinit(&work);
    }
    assert(status == HORON_AGAIN && at_byte == heard.used);
    horonrun_bytes_deinit(&heard);
}

static void check(const struct fuzz *fuzz)
{
    const struct job *job = &fuzz->job;
    int good = 0;
    for (int rank = 0; rank < RANKS; rank++)
        good += job->ranks[rank].state == RANK_EXITED && job->ranks[rank].wait_status == 0;
    assert(job->code >= 0 && job->code <= 255);
    assert(job->state < JOB_ENDING || job->code != 0 || good == RANKS);
    assert(job->started <= RANKS && job->exited <= RANKS);
}

static void end(struct fuzz *fuzz)
{
    struct job *job = &fuzz->job;
    for (int i = 0; i < HOSTS; i++) {
        job_host_deinit(&job->hosts[i]);
        if (fuzz->ends[i] >= 0)
            close(fuzz->ends[i]);
        close(fuzz->errs[i]);
    }
    ev_timer_stop(job->loop, &job->start_timer);
    ev_timer_stop(job->loop, &job->end_timer);
    ev_timer_stop(job->loop, &job->suspect_timer);
    horonrun_output_destroy(job->output);
    horonrun_strings_free(job->environment);
    horonrun_strings_free(job->remote_environment);
    free(job->directory);
    horon_free(job->hosts);
    horon_free(job->host_ranks);
    horon_free(job->ranks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct ev_loop *loop;
    char local[] = "localhost", remote[] = "node1", word[] = "true";
    char *command[] = {word, NULL};
    struct horonrun_host at[HOSTS] = {
        {.name = local, .slots = 2, .first_rank = 0, .ranks = 2, .local = true},
        {.name = remote, .slots = 1, .first_rank = 2, .ranks = 1}};
    const struct horonrun_hosts hosts = {.at = at, .count = HOSTS};
    struct script script = {.bytes = data, .left = bytes};
    const struct horonrun_options options = {.command = command, .verbose = bytes & 1};
    const struct horonrun_job_setup setup = {.options = &options, .hosts = &hosts, .size = RANKS};
    struct fuzz fuzz = {0};
    if (!loop) {
        signal(SIGPIPE, SIG_IGN);
        loop = ev_loop_new(EVFLAG_AUTO);
        assert(loop);
    }
    begin(&fuzz, &setup, loop);
    play(&fuzz, &script);
    check(&fuzz);
    for (int i = 0; i < HOSTS; i++)
        check_heard(&fuzz, i);
    end(&fuzz);
    return 0;
}
