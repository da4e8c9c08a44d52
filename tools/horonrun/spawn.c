/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork and exec of a rank. What goes wrong after the fork comes back through a pipe that a
 * successful exec closes; it is read only after all ranks were forked, so that starting many does
 * not take turns.
 */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct failure {
    int error;
    int in_directory; /* chdir failed, not exec */
};

static void close_pair(int pair[2])
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            close(pair[i]);
}

_Noreturn static void fail_child(int exec_fd, bool in_directory)
{
    struct failure failure = {errno, in_directory};
    ssize_t put = write(exec_fd, &failure, sizeof failure);
    _exit(put < 0 ? 125 : 127);
}

_Noreturn static void become(const struct horonrun_spawn *what, int out, int err, int exec_fd,
                             pid_t parent)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent)
        _exit(125); /* it died before it could take us along */
    int in = what->stdin_fd >= 0 ? what->stdin_fd : open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        fail_child(exec_fd, false);
    for (int i = 0; i < 2; i++)
        if (what->handed_fds[i] >= 0 && fcntl(what->handed_fds[i], F_SETFD, 0) != 0)
            fail_child(exec_fd, false);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    /* A script's shell has what it starts with & ignore these; what comes to a rank is meant. */
    signal(SIGINT, SIG_DFL);
    signal(SIGQUIT, SIG_DFL);
    setrlimit(RLIMIT_NOFILE, &what->files);
    if (what->directory && chdir(what->directory) != 0)
        fail_child(exec_fd, true);
    environ = what->environment; /* execvp looks for PATH here */
    sigprocmask(SIG_SETMASK, &what->mask, NULL);
    execvp(what->command[0], what->command);
    fail_child(exec_fd, false);
}

void horonrun_spawn_session(void)
{
    const struct timespec now = {0};
    sigset_t all;
    setsid();
    sigfillset(&all);
    while (sigtimedwait(&all, NULL, &now) > 0)
        ; /* one that was pending */
}

horon_status_t horonrun_spawn(const struct horonrun_spawn *what, struct horonrun_child *child,
                              struct horon_error *error)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1}, exec_pipe[2] = {-1, -1};
    const pid_t self = getpid();
    pid_t pid = -1;
    if (pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0 &&
        pipe2(exec_pipe, O_CLOEXEC) == 0)
        pid = fork();
    if (pid == 0)
        become(what, out[1], err[1], exec_pipe[1], self);
    if (pid < 0) {
        horon_error_set_errno(error, HORON_ERR_SYSTEM, errno, "cannot start a process");
        close_pair(out);
        close_pair(err);
        close_pair(exec_pipe);
        return HORON_ERR_SYSTEM;
    }
    close(out[1]);
    close(err[1]);
    close(exec_pipe[1]);
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    *child = (struct horonrun_child){pid, out[0], err[0], exec_pipe[0]};
    return HORON_OK;
}

int horonrun_spawn_confirm(struct horonrun_child *child, const struct horonrun_spawn *what,
                           struct horon_error *error)
{
    struct failure failure;
    ssize_t got;
    do
        got = read(child->exec_fd, &failure, sizeof failure);
    while (got < 0 && errno == EINTR);
    close(child->exec_fd);
    child->exec_fd = -1;
    if (got != sizeof failure)
        return 0;
    if (failure.in_directory) {
        horon_error_set_errno(error, HORON_ERR_SYSTEM, failure.error, "cannot enter directory %s",
                              what->directory);
        return 127;
    }
    bool missing = failure.error == ENOENT && !strchr(what->command[0], '/');
    if (missing)
        horon_error_set(error, HORON_ERR_SYSTEM, "command not found: %s", what->command[0]);
    else
        horon_error_set_errno(error, HORON_ERR_SYSTEM, failure.error, "cannot run %s",
                              what->command[0]);
    return failure.error == ENOENT ? 127 : 126;
}

void horonrun_spawn_describe_end(int wait_status, char *text, size_t bytes)
{
    if (WIFSIGNALED(wait_status))
        snprintf(text, bytes, "was killed by signal %d (%s%s)", WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)), WCOREDUMP(wait_status) ? ", core dumped" : "");
    else
        snprintf(text, bytes, "exited with status %d", WEXITSTATUS(wait_status));
}

int horonrun_spawn_code(int wait_status)
{
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

void horonrun_spawn_raise_files(struct rlimit *before_out)
{
    *before_out = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
    if (getrlimit(RLIMIT_NOFILE, before_out) != 0)
        return;
    struct rlimit raised = {before_out->rlim_max, before_out->rlim_max};
    setrlimit(RLIMIT_NOFILE, &raised);
}
