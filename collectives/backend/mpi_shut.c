/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context whose operation fails is the one that has MPI, and makes its calls itself. Another
 * one makes some only while its ranks meet by a communicator, in a thread of its own: it says that
 * it is in a call before it looks whether that is allowed, and the one that shuts MPI does so
 * before it looks whether another one is in a call. One of the two sees the other.
 *
 * Where MPI lets one thread at a time call it, the context that has it holds off the others in the
 * same way: they step back, as their calls are few, and it waits for the one that is in a call.
 *
 * That is no lock: MPI ends the process from within such a call where a rank is lost and the
 * program's communicator has the usual handler, and what runs at exit may give up more.
 */
#include "backend/mpi_shut.h"

#include "clock.h"

#include <assert.h>
#include <stdatomic.h>
#include <time.h>

/* Between two looks whether a call has returned. */
#define PAUSE_NS 100000
/* Longer than any takes; one that ends the process never does. */
#define LIMIT_NS UINT64_C(2000000000)

/* MPI is one in a process, and so is what it has in its hands. */
static struct {
    _Atomic bool shut;
    _Atomic int inside; /* threads in a call */
    _Atomic int held;   /* threads that hold these off */
} process;

static void pause_a_moment(void)
{
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

static void wait_for_calls(void)
{
    if (atomic_load(&process.inside) == 0)
        return;
    const uint64_t since_ns = horon_clock_ns();
    while (atomic_load(&process.inside) > 0 && horon_clock_ns() - since_ns < LIMIT_NS)
        pause_a_moment();
}

void horon_mpi_shut(void)
{
    atomic_store(&process.shut, true);
    wait_for_calls();
}

bool horon_mpi_is_shut(void)
{
    return atomic_load(&process.shut);
}

horon_status_t horon_mpi_check_shut(struct horon_error *error)
{
    if (!horon_mpi_is_shut())
        return HORON_OK;
    return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                           "what was given up is still in MPI's hands until this process ends");
}

horon_status_t horon_mpi_meet_enter(bool alone, struct horon_error *error)
{
    for (uint64_t since_ns = 0;;) {
        atomic_fetch_add(&process.inside, 1);
        const horon_status_t status = horon_mpi_check_shut(error);
        if (status == HORON_OK && !(alone && atomic_load(&process.held) > 0))
            return HORON_OK;
        horon_mpi_meet_leave();
        if (status != HORON_OK)
            return status;
        since_ns = since_ns ? since_ns : horon_clock_ns();
        if (horon_clock_ns() - since_ns >= LIMIT_NS)
            return horon_error_set(error, HORON_ERR_UNSUPPORTED,
                                   "MPI was begun for calls of one thread at a time, and another "
                                   "context is in one");
        pause_a_moment();
    }
}

void horon_mpi_meet_leave(void)
{
    const int before = atomic_fetch_sub(&process.inside, 1);
    assert(before > 0);
    (void)before;
}

void horon_mpi_meet_hold(void)
{
    atomic_fetch_add(&process.held, 1);
    wait_for_calls();
}

void horon_mpi_meet_release(void)
{
    const int before = atomic_fetch_sub(&process.held, 1);
    assert(before > 0);
    (void)before;
}
