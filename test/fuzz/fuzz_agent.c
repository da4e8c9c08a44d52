/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent of horonrun whose other end says anything: the first byte chooses its place, the rest is
 * a script of frames. No process is started and none is signalled: what would do so stands below,
 * in front of the library's. Whatever comes: the agent ends when its connection does, says whole
 * frames only, starts no more ranks than it was told, and leaves nothing behind.
 */
#undef NDEBUG
#include "agent.h"
#include "channel.h"
#include "environment.h"
#include "spawn.h"
#include "tree.h"

#include "alloc.h"
#include "codec.h"

#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SPAWNS_MAX = 5, SAID_BYTES_MAX = 60000, NO_SUCH_PID = 1 << 23 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct script {
    const uint8_t *bytes;
    size_t left;
};

static uint8_t next_byte(struct script *script)
{
    if (script->left == 0)
        return 0;
    script->left--;
    return *script->bytes++;
}

/* ---- What would touch processes -------------------------------------------------------------- */

static int spawned;
static uint8_t spawn_fails;

horon_status_t horonrun_spawn(const struct horonrun_spawn *what, struct horonrun_child *child,
                              struct horon_error *error)
{
    int out[2], err[2];
    assert(what->command[0] && what->environment);
    assert(horonrun_environment_find(what->environment, "HORON_RANK"));
    if (spawned == SPAWNS_MAX)
        return horon_error_set(error, HORON_ERR_SYSTEM, "no more processes");
    assert(pipe2(out, O_CLOEXEC | O_NONBLOCK) == 0);
    assert(pipe2(err, O_CLOEXEC | O_NONBLOCK) == 0);
    assert(write(out[1], "out\n", 4) == 4);
    close(out[1]);
    close(err[1]);
    *child = (struct horonrun_child){
        .pid = NO_SUCH_PID + spawned++, .out_fd = out[0], .err_fd = err[0], .exec_fd = -1};
    return HORON_OK;
}

int horonrun_spawn_confirm(struct horonrun_child *child, const struct horonrun_spawn *what,
                           struct horon_error *error)
{
    assert(child->pid >= NO_SUCH_PID);
    if (!(spawn_fails >> (child->pid - NO_SUCH_PID) & 1))
        return 0;
    horon_error_set(error, HORON_ERR_SYSTEM, "command not found: %s", what->command[0]);
    return 127;
}

void horonrun_spawn_raise_files(struct rlimit *before_out)
{
    *before_out = (struct rlimit){0};
}

void horonrun_tree_adopt(void) {}

int horonrun_tree_signal(int signo, const pid_t *spared, size_t spared_count, pid_t *pids,
                         size_t limit)
{
    (void)signo;
    (void)spared;
    (void)spared_count;
    (void)pids;
    (void)limit;
    return 0;
}

/* ---- What it is told ------------------------------------------------------------------------- */

static void say_frame(struct horonrun_bytes *said, uint8_t type, const void *body, size_t bytes)
{
    if (said->used + bytes < SAID_BYTES_MAX)
        assert(horonrun_frame_append(said, type, body, bytes));
}

static void say_u32(struct horonrun_bytes *said, uint8_t type, uint32_t value, size_t bytes)
{
    uint8_t body[4];
    struct horon_writer out = horon_writer_over(body, sizeof body);
    horon_write_u32(&out, value);
    say_frame(said, type, body, bytes);
}

/* Good but for what the script says: small numbers, and a byte that differs. */
static void say_work(struct horonrun_bytes *said, struct script *script)
{
    const uint8_t ranks = next_byte(script), what = next_byte(script), at = next_byte(script);
    char directory[] = "/", name[] = "true", setting[] = "HORON_RANK=7", other[] = "A";
    char empty[] = "";
    char *command[] = {what & 1 ? NULL : name, what & 2 ? empty : NULL, NULL};
    char *environment[] = {what & 4 ? setting : other, what & 8 ? empty : NULL, NULL};
    int hosts[] = {ranks & 3, ranks >> 2 & 7};
    const struct horonrun_work work = {.host_ranks = hosts,
                                       .hosts = ranks >> 5 & 1 ? 2 : 1,
                                       .host = ranks >> 6 & 1,
                                       .directory = directory,
                                       .command = command,
                                       .environment = environment,
                                       .remote = what & 16};
    struct horonrun_bytes body = {0};
    assert(horonrun_work_encode(&work, &body));
    if (what & 32)
        body.data[at % body.used] = (char)next_byte(script);
    if (what & 64)
        body.used = at % body.used;
    say_frame(said, HORONRUN_WORK, body.data, body.used);
    horonrun_bytes_deinit(&body);
}

static void say_script(struct horonrun_bytes *said, struct script *script, bool framed)
{
    const uint8_t type = next_byte(script);
    size_t bytes = next_byte(script);
    bytes = bytes < script->left ? bytes : script->left;
    if (framed)
        say_frame(said, type, script->bytes, bytes);
    else if (said->used + bytes < SAID_BYTES_MAX)
        assert(horonrun_bytes_append(said, script->bytes, bytes));
    script->bytes += bytes;
    script->left -= bytes;
}

static void compose(struct horonrun_bytes *said, struct script *script)
{
    while (script->left > 0) {
        const uint8_t what = next_byte(script);
        switch (what & 7) {
        case 0:
            say_script(said, script, false);
            break;
        case 1:
            say_script(said, script, true);
            break;
        case 2:
            say_u32(said, HORONRUN_STOP, what >> 3, what & 128 ? 3 : 4);
            break;
        case 3:
            say_u32(said, HORONRUN_SIGNAL, next_byte(script), 4);
            break;
        case 4:
            say_frame(said, HORONRUN_PING, NULL, 0);
            break;
        default:
            say_work(said, script);
        }
    }
}

/* ---- What it says ---------------------------------------------------------------------------- */

static void read_all(int fd, struct horonrun_bytes *heard)
{
    char bytes[4096];
    ssize_t got;
    while ((got = read(fd, bytes, sizeof bytes)) > 0)
        assert(horonrun_bytes_append(heard, bytes, (size_t)got));
}

/* A connection that ended may cut the last one. */
static void check_heard(const struct horonrun_bytes *heard)
{
    size_t at = 0;
    struct horonrun_frame frame;
    assert(horonrun_frame_skip_greeting(heard->data, heard->used, &at) == HORON_OK);
    assert(horonrun_frame_peek(heard->data + at, heard->used - at, &frame) == HORON_OK);
    assert(frame.type == HORONRUN_HELLO);
    horon_status_t status;
    while ((status = horonrun_frame_peek(heard->data + at, heard->used - at, &frame)) == HORON_OK) {
        struct horon_reader in = horon_reader_over(frame.body, frame.body_bytes);
        assert(frame.type == HORONRUN_PING || frame.type >= HORONRUN_HELLO);
        assert(frame.type <= HORONRUN_DUMPS);
        if (frame.type == HORONRUN_FAILED)
            assert(horon_read_u32(&in) > 0);
        at += frame.bytes;
    }
    assert(status == HORON_AGAIN);
}

static void play_agent(struct script *script)
{
    struct horonrun_bytes said = {0}, heard = {0};
    sigset_t before;
    int pair[2];
    const uint8_t place = next_byte(script);
    spawned = 0;
    spawn_fails = place >> 3;
    compose(&said, script);
    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    assert(!said.used || write(pair[1], said.data, said.used) == (ssize_t)said.used);
    shutdown(pair[1], SHUT_WR);
    struct horonrun_agent_setup setup = {
        .in_fd = pair[0], .out_fd = pair[0], .stdin_fd = -1, .remote = place & 2};
    sigemptyset(&setup.mask);
    sigprocmask(SIG_SETMASK, NULL, &before);
    assert(horonrun_agent_run(&setup) == 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
    read_all(pair[1], &heard);
    close(pair[1]);
    check_heard(&heard);
    horonrun_bytes_deinit(&said);
    horonrun_bytes_deinit(&heard);
}

/* ---- The one large message ------------------------------------------------------------------- */

static void play_work(const struct script *script)
{
    struct horonrun_work work, again;
    struct horonrun_bytes body = {0};
    if (horonrun_work_decode(&work, (const char *)script->bytes, script->left) == HORON_OK) {
        char **environment = horonrun_environment_of_rank(&work, 0, 7);
        assert(environment && horonrun_environment_find(environment, "HORON_LOCAL_SIZE"));
        horon_free(environment);
        assert(horonrun_work_encode(&work, &body));
        assert(body.used == script->left); /* nothing was left out */
        assert(horonrun_work_decode(&again, body.data, body.used) == HORON_OK);
        assert(strcmp(again.directory, work.directory) == 0);
        assert(again.ranks == work.ranks && again.remote == work.remote);
        assert(again.first_rank + again.ranks <= again.size && again.ranks > 0);
        horonrun_work_deinit(&again);
        assert(horonrun_environment_add_own(&work.environment));
        assert(horonrun_environment_set(&work.environment, "HORON_STORE", "tcp://"));
        horonrun_environment_remove(work.environment, "A");
        assert(horonrun_environment_find(work.environment, "HORON_STORE"));
    }
    horonrun_work_deinit(&work);
    horonrun_bytes_deinit(&body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct script script = {.bytes = data, .left = bytes};
    signal(SIGPIPE, SIG_IGN);
    if (bytes > 0 && data[0] & 1) {
        (void)next_byte(&script);
        play_work(&script);
    } else {
        play_agent(&script);
    }
    return 0;
}
