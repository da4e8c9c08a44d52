/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request is a line of words "name=value", and so is its answer; the first is cmd=. PMI's own
 * begin is not needed. Its end closes the connection, also for an MPI that the process begins
 * later: so it is said when the process exits. What that needs is the exit handler's own, and
 * nobody else's. An MPI that horon has begun is ended before, whichever of the two handlers the
 * process has first. And while a thread begins MPI, or ends it, nothing is said: it would take the
 * answer for its own, and end the process.
 *
 * Source: the PMI-1 wire protocol (Balaji et al., "PMI: A Scalable Parallel Process-Management
 * Interface for Extreme-Scale Systems", 2010), as hydra 4.0 answers it.
 */
#include "boot/identity/space.h"

#include "alloc.h"
#include "backend/mpi_begin.h"
#include "backend/mpi_open.h"
#include "clock.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_BYTES 2048 /* of a line, with a final 0 */
#define END_MS 1000     /* for the last answer; an exit is not kept from ending */

/* One line, without its end, and nothing behind it: MPI may talk over this socket, too. */
static horon_status_t read_line(const struct horon_space *space, char line[LINE_BYTES],
                                struct horon_error *error)
{
    size_t used = 0;
    while (used == 0 || line[used - 1] != '\n') {
        const horon_status_t status = horon_space_wait(space, space->fd, POLLIN, error);
        if (status != HORON_OK)
            return status;
        if (used == LINE_BYTES)
            return horon_error_set(error, HORON_ERR_PROTO, "a line of the launcher's is too long");
        ssize_t got = recv(space->fd, line + used, LINE_BYTES - used, MSG_PEEK | MSG_DONTWAIT);
        const char *end = got > 0 ? memchr(line + used, '\n', (size_t)got) : NULL;
        if (got > 0)
            got = recv(space->fd, line + used, end ? (size_t)(end + 1 - line) - used : (size_t)got,
                       MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return horon_error_set(error, HORON_ERR_SYSTEM,
                                   "the launcher has closed its connection (PMI)");
        used += got > 0 ? (size_t)got : 0;
    }
    line[used - 1] = 0;
    if (strlen(line) != used - 1)
        return horon_error_set(error, HORON_ERR_PROTO, "a line of the launcher's has a 0 in it");
    return HORON_OK;
}

/* The value of a word of a line: up to the next blank. @return false: it has none, or too long */
static bool find_word(const char *line, const char *name, char *value, size_t value_bytes)
{
    const size_t name_bytes = strlen(name);
    for (const char *word = line; *word;) {
        const size_t bytes = strcspn(word, " ");
        if (bytes > name_bytes && word[name_bytes] == '=' && !strncmp(word, name, name_bytes)) {
            const size_t length = bytes - name_bytes - 1;
            if (length >= value_bytes)
                return false;
            memcpy(value, word + name_bytes + 1, length);
            value[length] = 0;
            return true;
        }
        word += bytes + strspn(word + bytes, " ");
    }
    return false;
}

/* @param answer what the answer's cmd= must be */
static horon_status_t ask(const struct horon_space *space, const char *request, const char *answer,
                          char line[LINE_BYTES], struct horon_error *error)
{
    char command[64];
    const size_t bytes = strlen(request);
    assert(bytes > 0 && request[bytes - 1] == '\n');
    if (send(space->fd, request, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                     "the launcher cannot be asked (PMI_FD=%d)", space->fd);
    const horon_status_t status = read_line(space, line, error);
    if (status != HORON_OK)
        return status;
    if (!find_word(line, "cmd", command, sizeof command) || strcmp(command, answer) != 0)
        return horon_error_set(error, HORON_ERR_PROTO,
                               "the launcher answers \"%.60s\", and %s was to come (PMI)", line,
                               answer);
    return HORON_OK;
}

/* rc=0, or there is none. */
static bool went_well(const char *line)
{
    char code[16];
    return !find_word(line, "rc", code, sizeof code) || strcmp(code, "0") == 0;
}

static horon_status_t pmi_open(struct horon_space *space, struct horon_error *error)
{
    char line[LINE_BYTES];
    struct stat about;
    if (horon_mpi_is_under_way())
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "MPI_Init_thread() is under way in this process, and talks with the "
                               "launcher, which would tell where the ranks meet; "
                               "set HORON_STORE=tcp://HOST:PORT with an address of rank 0");
    if (fstat(space->fd, &about) != 0 || !S_ISSOCK(about.st_mode))
        return horon_error_set(error, HORON_ERR_CONFIG,
                               "PMI_FD=%d leads to the launcher no more, which would tell where "
                               "the ranks meet: MPI_Finalize() has closed it, or a program between "
                               "the two; set HORON_STORE=tcp://HOST:PORT with an address of rank 0",
                               space->fd);
    const horon_status_t status = ask(space, "cmd=get_my_kvsname\n", "my_kvsname", line, error);
    if (status == HORON_OK && !find_word(line, "kvsname", space->name, sizeof space->name))
        return horon_error_set(error, HORON_ERR_PROTO,
                               "the launcher does not say what its key-value space is called");
    return status;
}

static horon_status_t pmi_put(struct horon_space *space, const char *key, const char *value,
                              struct horon_error *error)
{
    char line[LINE_BYTES];
    assert(!strpbrk(key, " \n") && !strpbrk(value, " \n"));
    assert(strlen(value) < HORON_SPACE_VALUE_BYTES);
    const int bytes = snprintf(line, sizeof line, "cmd=put kvsname=%s key=%s value=%s\n",
                               space->name, key, value);
    assert(bytes > 0 && (size_t)bytes < sizeof line);
    const horon_status_t status = ask(space, line, "put_result", line, error);
    if (status == HORON_OK && !went_well(line))
        return horon_error_set(error, HORON_ERR_SYSTEM, "the launcher does not take %s: %.100s",
                               key, line);
    return status;
}

static horon_status_t pmi_get(struct horon_space *space, int rank, const char *key,
                              char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    char line[LINE_BYTES];
    (void)rank; /* all keys are in one space */
    const int bytes = snprintf(line, sizeof line, "cmd=get kvsname=%s key=%s\n", space->name, key);
    assert(bytes > 0 && (size_t)bytes < sizeof line);
    const horon_status_t status = ask(space, line, "get_result", line, error);
    if (status != HORON_OK)
        return status;
    if (!went_well(line))
        return HORON_AGAIN;
    if (!find_word(line, "value", value, HORON_SPACE_VALUE_BYTES))
        return horon_error_set(error, HORON_ERR_PROTO, "the launcher gives no value of %s", key);
    return HORON_OK;
}

/* The connection of one process. */
struct ending {
    struct horon_space space;
    pid_t process;
    /* MPI closes it when it ends, and its number may be another file's then; MPICH 5 does so in an
     * exit handler of its own, and is killed by SIGPIPE if the end was told before. */
    ino_t socket;
};

/* An MPI that has ended has said so itself, if it is one that talks with this launcher. */
static bool is_told_by_mpi(void)
{
    return !horon_mpi_is_open_mpi() && horon_mpi_says("MPI_Finalized");
}

static void end_at_exit(int status, void *arg)
{
    struct ending *ending = arg;
    char line[LINE_BYTES];
    struct horon_error ignored;
    struct stat about;
    if (status == 0)
        horon_mpi_end_with_process();
    if (status == 0 && !horon_mpi_is_under_way() && getpid() == ending->process &&
        fstat(ending->space.fd, &about) == 0 && S_ISSOCK(about.st_mode) &&
        about.st_ino == ending->socket && !is_told_by_mpi()) {
        ending->space.deadline_ns = horon_clock_deadline(horon_clock_ns(), END_MS);
        (void)ask(&ending->space, "cmd=finalize\n", "finalize_ack", line, &ignored);
    }
    horon_free(ending);
}

static horon_status_t pmi_end_at_exit(const struct horon_space *space, struct horon_error *error)
{
    struct stat about;
    struct ending *ending = horon_zalloc(1, sizeof *ending);
    if (ending && fstat(space->fd, &about) == 0) {
        *ending = (struct ending){
            .space = {.fd = space->fd}, .process = getpid(), .socket = about.st_ino};
        if (on_exit(end_at_exit, ending) == 0)
            return HORON_OK;
    }
    horon_free(ending);
    return horon_error_set(error, HORON_ERR_MEMORY, "no memory for what the launcher is told");
}

/* PMI-1 shows nothing before a barrier of all processes. */
static horon_status_t pmi_await(struct horon_space *space, int rank, const char *key,
                                char value[HORON_SPACE_VALUE_BYTES], struct horon_error *error)
{
    char line[LINE_BYTES];
    const horon_status_t status = ask(space, "cmd=barrier_in\n", "barrier_out", line, error);
    return status == HORON_OK ? pmi_get(space, rank, key, value, error) : status;
}

/* Nothing: MPI needs the socket, too. */
static void pmi_close(struct horon_space *space)
{
    (void)space;
}

const struct horon_space_calls horon_space_pmi = {
    .name = "PMI",
    .missing = HORON_SPACE_LAUNCHED_MISSING,
    .open = pmi_open,
    .put = pmi_put,
    .get = pmi_get,
    .await = pmi_await,
    .end_at_exit = pmi_end_at_exit,
    .close = pmi_close,
};
