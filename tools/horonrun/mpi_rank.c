/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The horonrun between a launcher of MPI's and one rank. It gives the rank the job key as a
 * descriptor, passes signals on to it and to all that it has started, names it if it fails, and
 * has it end with a status that means the same with each launcher: 128 + signal if it was killed.
 *
 * The rank leads a process group of its own, so it hears a signal once, from here, whether the
 * launcher signals processes or groups; and it dies with this process. A rank that ends because
 * it was asked to is not named: the launcher, or the user, has ended the job.
 */
#include "mpi.h"

#include "boot/identity/identity.h"
#include "environment.h"
#include "key.h"
#include "spawn.h"
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SWEEP_ROUNDS_MAX 100
#define SWEEP_NS 20000000
#define LAST_WORDS_SECONDS 1 /* of this rank on their way through hydra, and of others */

struct mpi_rank {
    char **command, **environment;
    int number; /* -1: the launcher does not tell */
    int key_fd;
    pid_t pid;
    sigset_t handled, mask; /* the latter as the launcher has set it */
    bool asked;             /* to end */
    bool ends;              /* all of the job, by horonrun */
    bool alone;             /* its end does not end the others */
};

static char *look(const char *name)
{
    return (char *)(size_t)horonrun_environment_find(environ, name);
}

static int find_number(void)
{
    struct horon_identity identity;
    struct horon_error error = {0};
    const horon_status_t status = horon_identity_find(&identity, -1, -1, "file:/", 0, look, &error);
    return status == HORON_OK ? identity.rank : -1;
}

_Noreturn static void become(const struct mpi_rank *rank, pid_t parent)
{
    const char *name = rank->command[0];
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent)
        _exit(125);
    if (rank->key_fd >= 0)
        fcntl(rank->key_fd, F_SETFD, 0);
    if (rank->number > 0) /* hydra leaves them waiting for an end that does not come */
        dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    environ = rank->environment;
    sigprocmask(SIG_SETMASK, &rank->mask, NULL);
    execvp(name, rank->command);
    const int why = errno;
    dprintf(STDERR_FILENO, "horonrun: cannot run %s: %s\n", name, strerror(why));
    _exit(why == ENOENT ? 127 : 126);
}

/* Open MPI passes on SIGALRM and SIGABRT, not SIGINT and SIGTERM: horonrun means these. */
static void pass_on(struct mpi_rank *rank, int signo)
{
    rank->ends = rank->ends || signo == SIGALRM || signo == SIGABRT;
    signo = signo == SIGALRM ? SIGINT : signo == SIGABRT ? SIGTERM : signo;
    if (signo == SIGINT || signo == SIGTERM || signo == SIGHUP || signo == SIGQUIT)
        rank->asked = true;
    horonrun_tree_signal(signo, NULL, 0, NULL, 0);
}

/* @return the wait status of the rank */
static int await_end(struct mpi_rank *rank)
{
    for (;;) {
        int wait_status;
        pid_t pid;
        while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0)
            if (pid == rank->pid)
                return wait_status;
        const int signo = sigwaitinfo(&rank->handled, NULL);
        if (signo > 0 && signo != SIGCHLD)
            pass_on(rank, signo);
    }
}

/* What the rank has left behind. */
static void sweep(const struct mpi_rank *rank)
{
    const struct timespec pause = {.tv_nsec = SWEEP_NS};
    for (int round = 0; round < SWEEP_ROUNDS_MAX; round++) {
        horonrun_tree_signal(SIGKILL, NULL, 0, NULL, 0);
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0)
            return;
        sigtimedwait(&rank->handled, NULL, &pause); /* until one of them has died */
    }
}

static void report(const struct mpi_rank *rank, int wait_status)
{
    char how[96], host[256] = "?", text[1024];
    size_t used;
    horonrun_spawn_describe_end(wait_status, how, sizeof how);
    gethostname(host, sizeof host - 1);
    used = (size_t)snprintf(text, sizeof text,
                            "horonrun: rank %d on %s (process %d) %s; command:", rank->number, host,
                            (int)rank->pid, how);
    for (char **word = rank->command; *word && used + 1 < sizeof text; word++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %s", *word);
    text[sizeof text - 2] = 0;
    dprintf(STDERR_FILENO, "%s\n", text); /* in one write, beside those of other ranks */
}

/* To hydra a status is no reason to end the others, but what MPI_Abort() says is; it then drops
 * what is not yet printed. */
static void end_others(struct mpi_rank *rank, int code)
{
    const struct timespec while_they_speak = {.tv_sec = LAST_WORDS_SECONDS};
    const char *fd = horonrun_environment_find(environ, "PMI_FD");
    if (!fd)
        return;
    sigdelset(&rank->handled, SIGCHLD); /* of which some may be pending still */
    if (sigtimedwait(&rank->handled, NULL, &while_they_speak) < 0)
        dprintf(atoi(fd), "cmd=abort exitcode=%d\n", code);
}

static horon_status_t prepare(struct mpi_rank *rank, struct horon_error *error)
{
    static const int handled[] = {SIGABRT, SIGALRM, SIGCHLD, SIGCONT, SIGHUP,
                                  SIGINT,  SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
    sigemptyset(&rank->handled);
    for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++) {
        signal(handled[i], SIG_DFL); /* what is ignored does not come, blocked or not */
        sigaddset(&rank->handled, handled[i]);
    }
    sigprocmask(SIG_BLOCK, &rank->handled, &rank->mask);
    horonrun_tree_adopt();
    rank->number = find_number();
    rank->environment = horonrun_environment_copy(environ);
    horonrun_key_leave_environment();
    if (!rank->environment)
        return horon_error_set(error, HORON_ERR_MEMORY, "out of memory");
    return horonrun_key_hand_over(&rank->environment, &rank->key_fd, error);
}

bool horonrun_mpi_is_colon(const char *word)
{
    return strcmp(word + strspn(word, "\\"), ":") == 0;
}

int horonrun_mpi_rank_main(char **words)
{
    struct mpi_rank rank = {.key_fd = -1};
    struct horon_error error = {0};
    const pid_t self = getpid();
    rank.alone = words[0] && strcmp(words[0], HORONRUN_MPI_ALONE) == 0;
    rank.command = words + rank.alone;
    for (char **word = rank.command; *word; word++)
        *word += horonrun_mpi_is_colon(*word) && **word == '\\';
    if (prepare(&rank, &error) == HORON_OK && (rank.pid = fork()) < 0)
        horon_error_set_errno(&error, HORON_ERR_SYSTEM, errno, "cannot start a process");
    if (rank.environment && rank.pid == 0 && !error.text[0])
        become(&rank, self);
    int code = 1;
    if (rank.pid > 0) {
        const int wait_status = await_end(&rank);
        code = horonrun_spawn_code(wait_status);
        if (code && !rank.asked)
            report(&rank, wait_status);
        sweep(&rank);
    } else {
        dprintf(STDERR_FILENO, "horonrun: rank %d: %s\n", rank.number, error.text);
    }
    if (code && !rank.asked && !rank.alone)
        end_others(&rank, code);
    horonrun_strings_free(rank.environment);
    return rank.ends ? 0 : code; /* else Open MPI takes seconds to end a job that has ended */
}
