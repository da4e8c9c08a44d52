/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A signal that comes to horonrun's process group while it forks an agent is horonrun's to answer:
 * the agent's guard, or the ssh that leads to an agent, must not die of it. The moment is the one
 * before a child leaves the group: setsid() here is ours, and signals the child that calls it.
 */
#undef NDEBUG
#include "launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static bool signalled; /* of this process and what it forks */

pid_t setsid(void)
{
    if (!signalled) {
        signalled = true;
        kill(getpid(), SIGTERM);
    }
    return (pid_t)syscall(SYS_setsid);
}

static void block(sigset_t *before)
{
    sigset_t handled;
    sigemptyset(&handled);
    sigaddset(&handled, SIGTERM);
    sigprocmask(SIG_BLOCK, &handled, before);
}

/* It is told to end, and everything that it says meanwhile is taken. */
static int end_of(const struct horonrun_launched *launched)
{
    int status = 0;
    char said[256];
    if (launched->in_fd == launched->out_fd)
        shutdown(launched->out_fd, SHUT_WR);
    else
        close(launched->out_fd);
    while (read(launched->in_fd, said, sizeof said) > 0)
        ;
    close(launched->in_fd);
    if (launched->err_fd >= 0)
        close(launched->err_fd);
    assert_int_equal(waitpid(launched->pid, &status, 0), launched->pid);
    return status;
}

static void test_launch_signal_before_the_session_spares_the_guard(void **state)
{
    char name[] = "test_horonrun_launch", *argv[] = {name, NULL};
    const struct rlimit files = {256, 256};
    struct horonrun_launched agent;
    struct horon_error error = {0};
    sigset_t before;
    char greeting;
    (void)state;
    block(&before);
    assert_int_equal(horonrun_launch_local(argv, &before, &files, &agent, &error), 0);
    assert_int_equal(read(agent.in_fd, &greeting, 1), 1);
    const int status = end_of(&agent);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

static void test_launch_signal_before_the_session_spares_ssh(void **state)
{
    const struct horonrun_options options = {.ssh = "sh -c exit$IFS''7"};
    struct horonrun_launched ssh;
    struct horon_error error = {0};
    sigset_t before;
    (void)state;
    block(&before);
    assert_int_equal(horonrun_launch_ssh("host", &options, &before, &ssh, &error), 0);
    const int status = end_of(&ssh);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launch_signal_before_the_session_spares_the_guard),
        cmocka_unit_test(test_launch_signal_before_the_session_spares_ssh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
