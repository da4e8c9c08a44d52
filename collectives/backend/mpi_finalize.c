/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of MPI's world ends behind MPI_Finalize(), which lets nobody through before all ranks have
 * come. So once the process of one has ended, either all have come, and the call is through
 * everywhere in a moment; or that one was killed on its way, and the call may never return: MPICH's
 * waits for an answer of hydra's, which counts the dead rank as one to come. Open MPI's returns.
 * Nothing is concluded from a rank that is late: it may compute for hours, and all wait for it, as
 * those of any MPI program do.
 *
 * So a thread calls it, and the one that exits watches the processes of its host. Of those of other
 * hosts the launcher alone knows, which ends all ranks once it sees one die, unless it was told not
 * to. The standard lets only the thread that began MPI end it; both libraries take it from any, and
 * horon's that began it is gone.
 */
#include "backend/mpi_finalize.h"

#include "alloc.h"
#include "clock.h"
#include "thread.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The thread's, too: it is left to it where it stays in the call. */
struct ending {
    int (*finalize)(void);
    int through; /* an eventfd */
};

static void *call_finalize(void *arg)
{
    const struct ending *ending = arg;
    ending->finalize();
    eventfd_write(ending->through, 1);
    return NULL;
}

/* A number that is another process's by now is watched in vain: then the call is waited for.
 * @param ended_out set, if it is known to have ended. @return a descriptor, or -1 */
static int watch(pid_t peer, bool *ended_out)
{
    const int fd = peer > 0 ? (int)syscall(SYS_pidfd_open, peer, 0) : -1;
    if (peer == HORON_MPI_PEER_ENDED || (peer > 0 && fd < 0 && errno == ESRCH))
        *ended_out = true;
    return fd;
}

/* @param fds  [1 + count] the first one says that the call is through
 * @return false: it is | a process has ended before */
static bool wait_for_an_end(struct pollfd *fds, const pid_t *peers, int count)
{
    nfds_t watched = 1 + (nfds_t)count;
    bool ended = false;
    for (int i = 0; i < count; i++)
        fds[1 + i] = (struct pollfd){.fd = watch(peers[i], &ended), .events = POLLIN};
    while (!fds[0].revents && !ended) {
        if (poll(fds, watched, -1) < 0 && errno != EINTR)
            watched = 1; /* of more than this process may have descriptors */
        for (int i = 0; i < count; i++)
            ended |= fds[1 + i].revents != 0;
    }
    for (int i = 0; i < count; i++)
        if (fds[1 + i].fd >= 0)
            close(fds[1 + i].fd);
    return !fds[0].revents;
}

/* @return is the call through? */
static bool wait_for_call(struct pollfd *through, int limit_ms)
{
    const uint64_t deadline = horon_clock_deadline(horon_clock_ns(), limit_ms);
    for (uint64_t now = 0; !through->revents && (now = horon_clock_ns()) < deadline;)
        poll(through, 1, (int)((deadline - now) / 1000000u) + 1);
    return through->revents;
}

bool horon_mpi_finalize(const struct horon_mpi_library *library, const pid_t *peers, int count,
                        int limit_ms)
{
    struct ending *ending = horon_zalloc(1, sizeof *ending);
    struct pollfd *fds = horon_zalloc(1 + (size_t)count, sizeof *fds);
    bool stays = false;
    assert(library->mpi.finalize);
    assert(count >= 0);
    if (ending)
        *ending = (struct ending){library->mpi.finalize, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (fds && ending && ending->through >= 0 &&
        horon_thread_start(NULL, call_finalize, ending) == 0) {
        fds[0] = (struct pollfd){.fd = ending->through, .events = POLLIN};
        stays = wait_for_an_end(fds, peers, count) && !wait_for_call(fds, limit_ms);
    } else {
        library->mpi.finalize(); /* nobody is left to watch */
    }
    if (ending && ending->through >= 0 && !stays) {
        eventfd_read(ending->through, &(eventfd_t){0}); /* what the thread did comes before */
        close(ending->through);
    }
    horon_free(stays ? NULL : ending);
    horon_free(fds);
    return !stays;
}
