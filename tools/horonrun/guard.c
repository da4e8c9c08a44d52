/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ends the rest when an agent is killed? The kernel kills its ranks, but not what they
 * started. So an agent has a parent, its guard: a subreaper that holds nothing and waits. If the
 * agent dies, all it had falls to the guard, which kills it. If the guard dies, the agent gets
 * SIGTERM and ends everything itself. On horonrun's own host a third sees to what falls from both:
 * horonrun, a subreaper too. So any two may be killed at once; killing all three leaves what
 * ranks started.
 */
#include "agent.h"

#include "spawn.h"
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SWEEP_AGAIN_US 20000
#define SWEEP_ROUNDS_MAX 250

/* What ps and pkill see of us: not horonrun, so that a user who kills that by name leaves us to
 * clean up. The argument strings lie in one piece. */
static void rename_process(char **argv, const char *name)
{
    size_t last = 0;
    while (argv[last + 1])
        last++;
    size_t bytes = (size_t)(argv[last] + strlen(argv[last]) - argv[0]);
    memset(argv[0], 0, bytes);
    strncpy(argv[0], name, bytes);
    prctl(PR_SET_NAME, name, 0, 0, 0);
}

/* Kills what is left below us until nothing is; bounded, as a process may hang in the kernel. */
static void sweep(void)
{
    for (int round = 0; round < SWEEP_ROUNDS_MAX; round++) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0 && errno == ECHILD)
            return;
        horonrun_tree_signal(SIGKILL, NULL, 0, NULL, 0);
        usleep(SWEEP_AGAIN_US);
    }
}

static void let_go_of_stdio(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    close(null);
}

_Noreturn static void guard(pid_t agent)
{
    int wait_status = 0;
    let_go_of_stdio(); /* or horonrun would not see the agent's end */
    close_range(STDERR_FILENO + 1, ~0u, 0);
    for (pid_t pid; (pid = waitpid(-1, &wait_status, 0)) != agent;)
        if (pid < 0 && errno != EINTR)
            break;
    sweep();
    _exit(WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status));
}

void horonrun_agent_split(char **argv, const sigset_t *mask)
{
    const pid_t self = getpid();
    horonrun_spawn_session();
    prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0); /* what stands for ssh may have left us one */
    horonrun_tree_adopt();
    const pid_t pid = fork();
    if (pid < 0)
        _exit(1);
    rename_process(argv, pid ? "horon-guard" : "horon-agent");
    if (pid > 0) {
        sigprocmask(SIG_SETMASK, mask, NULL);
        guard(pid);
    }
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    if (getppid() != self)
        _exit(1); /* it is dead already */
}

int horonrun_agent_main(char **argv, const sigset_t *mask, const struct rlimit *files)
{
    struct horonrun_agent_setup setup = {
        .stdin_fd = -1, .remote = true, .files = *files, .mask = *mask};
    setup.in_fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    setup.out_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (setup.in_fd < 0 || setup.out_fd < 0)
        return 1;
    horonrun_agent_split(argv, mask);
    let_go_of_stdio();
    return horonrun_agent_run(&setup);
}
