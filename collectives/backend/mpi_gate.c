/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program may end MPI when it likes, while a thread of horon's makes a call, or has an operation
 * in flight there: MPICH crashes then, or stays in MPI_Finalize(). But before anything of MPI ends,
 * the standard says, MPI_Finalize() deletes the attributes of MPI_COMM_SELF and calls the functions
 * that were given with them, and MPI can be called meanwhile as before. One of these is the gate's.
 * MPICH 4.0 locks nothing any more by then, and crashes often where a thread was in a call in that
 * moment.
 *
 * It waits for all that the program has submitted, since any rank may have begun any of it: what
 * ends MPI waits for all ranks in any case, and each goes on with its operations while it waits
 * here. But not for ever, as another rank may lack what is waited for, and be in MPI_Finalize()
 * itself. What begins after that is refused.
 *
 * A thread says that it is inside before it looks whether the gate is closed, and the one that ends
 * MPI closes it before it looks whether one is inside: one of the two sees the other.
 */
#include "backend/mpi_gate.h"

#include "backend/mpi_shut.h"
#include "clock.h"

#include <assert.h>
#include <pthread.h>
#include <time.h>

/* Between two looks of the one that ends MPI. */
#define PAUSE_NS 100000
/* So long it waits for the next operation to land. */
#define PATIENCE_NS UINT64_C(10000000000)
/* After so long it says what it waits for. */
#define TELL_NS UINT64_C(1000000000)

/* MPI is one in a process, and so is its end. */
static struct {
    const struct horon_mpi_library *library; /* NULL: it is not made yet */
    _Atomic bool closed, inside;
    pthread_mutex_t lock;                    /* guards what is below */
    const _Atomic uint32_t *posted, *landed; /* NULL: nothing is waited for */
    const _Atomic uint32_t *in_flight;       /* what horon_run() begins itself is nowhere else */
    const struct horon_log *log;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void pause_a_moment(void)
{
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

/* @param mark_out another one than before, if something has ended or begun */
static bool any_flies(uint64_t *mark_out)
{
    pthread_mutex_lock(&gate.lock);
    const bool counts = gate.posted != NULL;
    const uint32_t posted = counts ? atomic_load(gate.posted) : 0;
    const uint32_t landed = counts ? atomic_load(gate.landed) : 0;
    const uint32_t in_flight = counts ? atomic_load(gate.in_flight) : 0;
    pthread_mutex_unlock(&gate.lock);
    *mark_out = (uint64_t)landed << 32 | in_flight;
    return posted != landed || in_flight > 0;
}

static void say_waiting(void)
{
    pthread_mutex_lock(&gate.lock);
    if (gate.posted)
        HORON_LOG_WARN(gate.log, "MPI_Finalize() waits for operations that were submitted before "
                                 "it: perhaps another rank lacks them");
    pthread_mutex_unlock(&gate.lock);
}

static void wait_for_landings(void)
{
    bool told = false;
    uint64_t since_ns = horon_clock_ns();
    uint64_t before = 0, mark;
    while (any_flies(&mark) && horon_clock_ns() - since_ns < PATIENCE_NS) {
        if (mark != before)
            since_ns = horon_clock_ns();
        before = mark;
        if (!told && horon_clock_ns() - since_ns > TELL_NS) {
            say_waiting();
            told = true;
        }
        pause_a_moment();
    }
}

/* As MPI calls it, with handles and words that are of no use here. MPICH counts what is left. */
static int ends(horon_mpi_handle comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    wait_for_landings();
    atomic_store(&gate.closed, true);
    while (atomic_load(&gate.inside))
        pause_a_moment();
    horon_mpi_free_handles(gate.library);
    return HORON_MPI_SUCCESS;
}

static int copies_nothing(horon_mpi_handle comm, int key, void *extra, void *value, void *copy,
                          int *flag)
{
    (void)comm, (void)key, (void)extra, (void)value, (void)copy;
    *flag = 0;
    return HORON_MPI_SUCCESS;
}

horon_status_t horon_mpi_gate_make(const struct horon_mpi_library *library,
                                   struct horon_error *error)
{
    int key = 0;
    if (gate.library)
        return HORON_OK;
    const char *call = "MPI_Comm_create_keyval";
    int code = library->mpi.comm_create_keyval(copies_nothing, ends, &key, NULL);
    if (code == HORON_MPI_SUCCESS) {
        call = "MPI_Comm_set_attr";
        code = library->mpi.comm_set_attr(library->self, key, &gate);
    }
    if (code != HORON_MPI_SUCCESS)
        return horon_mpi_failed(library, call, code, error);
    gate.library = library;
    return HORON_OK;
}

void horon_mpi_gate_await(const _Atomic uint32_t *posted, const _Atomic uint32_t *landed,
                          const _Atomic uint32_t *in_flight, const struct horon_log *log)
{
    assert(!posted == !landed && (!posted || in_flight));
    pthread_mutex_lock(&gate.lock);
    gate.posted = posted;
    gate.landed = landed;
    gate.in_flight = in_flight;
    gate.log = log;
    pthread_mutex_unlock(&gate.lock);
}

/* Of one that lets one thread at a time call it the program's thread keeps out, by a setting. */
static bool is_serialized(void)
{
    return gate.library && gate.library->level == HORON_MPI_SERIALIZED;
}

bool horon_mpi_gate_enter(void)
{
    const bool was_inside = atomic_exchange(&gate.inside, true);
    assert(!was_inside);
    if (!atomic_load(&gate.closed)) {
        if (is_serialized())
            horon_mpi_meet_hold();
        return true;
    }
    atomic_store(&gate.inside, false);
    return false;
}

void horon_mpi_gate_leave(void)
{
    assert(atomic_load_explicit(&gate.inside, memory_order_relaxed));
    if (is_serialized())
        horon_mpi_meet_release();
    atomic_store_explicit(&gate.inside, false, memory_order_release);
}

bool horon_mpi_gate_is_closed(void)
{
    return atomic_load(&gate.closed);
}
