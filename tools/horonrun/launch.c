/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both kinds of agent leave our terminal's process group, so that Ctrl-C reaches horonrun alone,
 * which then ends the job in order; and both hear of our death by the end of their socket or pipe,
 * of which nobody else may hold our side.
 */
#include "launch.h"

#include "agent.h"
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#define SSH_WORDS_MAX 64
#define SSH_TEXT_BYTES 4096

/* Ranks read our standard input if it is a file or pipe; a terminal stays ours, as a background
 * process group that reads it would be stopped. */
static int stdin_for_rank(void)
{
    struct termios terminal;
    return tcgetattr(STDIN_FILENO, &terminal) == 0 ? -1 : STDIN_FILENO;
}

/* Nobody but us may hold the other end, or an agent would not see our death: drop all else. */
static void keep_only(int fd)
{
    if (fd > 3)
        close_range(3, (unsigned)fd - 1, 0);
    close_range((unsigned)fd + 1, ~0u, 0);
}

_Noreturn static void be_agent(char **argv, const sigset_t *mask, const struct rlimit *files,
                               int fd)
{
    struct horonrun_agent_setup setup = {
        .in_fd = fd, .out_fd = fd, .stdin_fd = stdin_for_rank(), .files = *files, .mask = *mask};
    keep_only(fd);
    horonrun_agent_split(argv, mask);
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDOUT_FILENO); /* a reader of ours shall not wait for us */
    _exit(horonrun_agent_run(&setup));
}

horon_status_t horonrun_launch_local(char **argv, const sigset_t *mask, const struct rlimit *files,
                                     struct horonrun_launched *launched, struct horon_error *error)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "cannot make a socket pair");
    pid_t pid = fork();
    if (pid == 0)
        be_agent(argv, mask, files, pair[1]);
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "cannot start a process");
    }
    *launched = (struct horonrun_launched){pid, pair[0], pair[0], -1};
    return HORON_OK;
}

/* ---- ssh ---- */

struct words {
    char *at[SSH_WORDS_MAX + 1];
    size_t count;
    char text[SSH_TEXT_BYTES];
    size_t used;
    bool full;
};

static void add_word(struct words *words, const char *word, size_t bytes)
{
    if (words->count == SSH_WORDS_MAX || words->used + bytes + 1 > SSH_TEXT_BYTES) {
        words->full = true;
        return;
    }
    char *place = words->text + words->used;
    memcpy(place, word, bytes);
    place[bytes] = 0;
    words->used += bytes + 1;
    words->at[words->count++] = place;
    words->at[words->count] = NULL;
}

static void add_text(struct words *words, const char *text)
{
    add_word(words, text, strlen(text));
}

static void add_split(struct words *words, const char *text)
{
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        size_t bytes = strcspn(text, " ");
        add_word(words, text, bytes);
        text += bytes;
    }
}

/* `exec 'PATH' --agent`, quoted for the login shell of the other host. */
static void add_remote_command(struct words *words, const char *path)
{
    char text[2 * PATH_MAX];
    size_t used = (size_t)snprintf(text, sizeof text, "exec '");
    for (; *path && used + 16 < sizeof text; path++) {
        const char plain[2] = {*path, 0};
        used += (size_t)snprintf(text + used, sizeof text - used, "%s",
                                 *path == '\'' ? "'\\''" : plain);
    }
    snprintf(text + used, sizeof text - used, "' --agent");
    add_text(words, text);
}

const char *horonrun_launch_remote_path(const struct horonrun_options *options,
                                        char own[HORONRUN_PATH_BYTES])
{
    if (options->remote_horonrun)
        return options->remote_horonrun;
    const ssize_t bytes = readlink("/proc/self/exe", own, HORONRUN_PATH_BYTES - 1);
    if (bytes <= 0)
        return "horonrun";
    own[bytes] = 0;
    return own;
}

/* The first value of an ssh option counts, so what the user gave with --ssh goes first. Host keys
 * are the user's matter, and the user's configuration of ssh settles them: in batch mode ssh
 * refuses a host that is not known, and it must, for the job's key and environment go there. */
static void build_ssh(struct words *words, const char *host, const struct horonrun_options *options)
{
    static const char *const defaults[] = {
        "-T",
        "-x",
        "-a",
        "-oBatchMode=yes",
        "-oClearAllForwardings=yes",
        "-oServerAliveInterval=5",
        "-oServerAliveCountMax=3",
    };
    char own[HORONRUN_PATH_BYTES];
    add_split(words, options->ssh);
    if (options->ssh_port) {
        add_text(words, "-p");
        add_text(words, options->ssh_port);
    }
    if (options->ssh_identity) {
        add_text(words, "-i");
        add_text(words, options->ssh_identity);
    }
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
        add_text(words, defaults[i]);
    add_text(words, "--");
    add_text(words, host);
    add_remote_command(words, horonrun_launch_remote_path(options, own));
}

_Noreturn static void be_ssh(struct words *words, const sigset_t *mask, int in, int out, int err,
                             pid_t parent)
{
    horonrun_spawn_session();
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    if (getppid() != parent)
        _exit(1);
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(words->at[0], words->at);
    dprintf(2, "cannot run %s: %s\n", words->at[0], strerror(errno));
    _exit(127);
}

horon_status_t horonrun_launch_ssh(const char *host, const struct horonrun_options *options,
                                   const sigset_t *mask, struct horonrun_launched *launched,
                                   struct horon_error *error)
{
    struct words words = {.count = 0};
    int pipes[3][2];
    const pid_t self = getpid();
    build_ssh(&words, host, options);
    if (words.full || words.count == 0)
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "the ssh command line is empty or too long");
    for (int i = 0; i < 3; i++) {
        if (pipe2(pipes[i], O_CLOEXEC) == 0)
            continue;
        horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "cannot make a pipe");
        while (i-- > 0) {
            close(pipes[i][0]);
            close(pipes[i][1]);
        }
        return HORON_ERR_SYSTEM;
    }
    pid_t pid = fork();
    if (pid == 0)
        be_ssh(&words, mask, pipes[0][0], pipes[1][1], pipes[2][1], self);
    int fork_errno = errno;
    close(pipes[0][0]);
    close(pipes[1][1]);
    close(pipes[2][1]);
    if (pid < 0) {
        close(pipes[0][1]);
        close(pipes[1][0]);
        close(pipes[2][0]);
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, fork_errno, "cannot start ssh");
    }
    fcntl(pipes[2][0], F_SETFL, O_NONBLOCK);
    *launched = (struct horonrun_launched){pid, pipes[1][0], pipes[0][1], pipes[2][0]};
    return HORON_OK;
}
