/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who guards the agent? On horonrun's own host horonrun does. On another host this does: `horonrun
 * --agent` becomes two processes, the agent and its parent, which is a subreaper and waits. If the
 * agent is killed, its ranks get SIGKILL from the kernel and everything they started falls to the
 * parent, who ends it. If the parent is killed, the agent gets SIGTERM and ends everything itself.
 */
#include "agent.h"

#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SWEEP_AGAIN_US 20000
#define SWEEP_ROUNDS_MAX 250

/* What ps shows of an agent: not horonrun, so that whoever kills that by name leaves the agent to
 * clean up. The argument strings lie in one piece. */
static void rename_process(char **argv)
{
    size_t last = 0;
    while (argv[last + 1])
        last++;
    size_t bytes = (size_t)(argv[last] + strlen(argv[last]) - argv[0]);
    memset(argv[0], 0, bytes);
    strncpy(argv[0], "horon-agent", bytes);
}

bool horonrun_agent_detach(char **argv, int parent)
{
    setsid();
    prctl(PR_SET_NAME, "horon-agent", 0, 0, 0);
    rename_process(argv);
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    return getppid() == parent;
}

/* Kills what is left below us until nothing is; bounded, as a process may hang in the kernel. */
static void sweep(void)
{
    for (int round = 0; round < SWEEP_ROUNDS_MAX; round++) {
        horonrun_tree_signal(SIGKILL, NULL, 0, NULL, 0);
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0 && errno == ECHILD)
            return;
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

static int guard(pid_t agent)
{
    int wait_status = 0;
    let_go_of_stdio(); /* or horonrun would not see the agent's end */
    for (pid_t pid; (pid = waitpid(-1, &wait_status, 0)) != agent;)
        if (pid < 0 && errno != EINTR)
            break;
    sweep();
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

int horonrun_agent_main(char **argv, const sigset_t *mask, const struct rlimit *files)
{
    const pid_t self = getpid();
    horonrun_tree_adopt();
    pid_t pid = fork();
    if (pid < 0)
        return 1;
    if (pid > 0) {
        sigprocmask(SIG_SETMASK, mask, NULL);
        return guard(pid);
    }
    struct horonrun_agent_setup setup = {
        .stdin_fd = -1, .remote = true, .files = *files, .mask = *mask};
    setup.in_fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    setup.out_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    let_go_of_stdio();
    if (setup.in_fd < 0 || setup.out_fd < 0 || !horonrun_agent_detach(argv, self))
        return 1;
    return horonrun_agent_run(&setup);
}
