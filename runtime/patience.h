/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a thread that waits looks again and again before it sleeps: it spins for a while,
 * then yields its core between two looks, and then gives up. What moves begins it anew.
 *
 * Where it can be told, it naps instead of yielding on. A core on which a thread yields is never
 * idle: the system wakes others on busier ones, and the threads of programs that sleep while they
 * wait, as Gloo's two a rank do, are late. Naps are short: the thread may have in hand what others
 * want.
 */
#ifndef HORON_PATIENCE_H
#define HORON_PATIENCE_H

#include "clock.h"
#include "cpu.h"
#include "yields.h"

#include <poll.h>
#include <sched.h>

/** A nap at most, if nothing wakes it. */
#define HORON_NAP_NS 200000
/** With cores for all ranks a wait goes on so long before it naps: most small operations end. */
#define HORON_AWAKE_NS 60000

struct horon_patience {
    uint64_t since_ns;           /* that nothing was found to do; 0: something moved just now */
    uint64_t spin_ns, limit_ns;  /* from then on: to spin, and to look at all */
    struct horon_yields *yields; /* NULL: nobody is told how long they take */
    uint64_t nap_ns;             /* from when on it naps instead of yielding, until ... */
    int nap_until;               /* ... this descriptor is readable; -1: never */
};

static inline struct horon_patience horon_patience_of(int64_t spin_us, int64_t yield_us)
{
    return (struct horon_patience){.spin_ns = (uint64_t)spin_us * 1000,
                                   .limit_ns = (uint64_t)(spin_us + yield_us) * 1000,
                                   .nap_until = -1};
}

static inline void horon_patience_nap(const struct horon_patience *patience)
{
    struct pollfd until = {.fd = patience->nap_until, .events = POLLIN};
    const struct timespec limit = {.tv_nsec = HORON_NAP_NS};
    ppoll(&until, 1, &limit, NULL);
}

/** Lets others run for a moment. @return false: enough, sleep. Reads the clock: *now_out. */
static inline bool horon_patience_go_on(struct horon_patience *patience, uint64_t *now_out)
{
    uint64_t now = horon_clock_ns();
    *now_out = now;
    if (!patience->since_ns)
        patience->since_ns = now;
    uint64_t waited = now - patience->since_ns;
    if (waited >= patience->limit_ns)
        return false;
    if (waited < patience->spin_ns) {
        horon_cpu_relax();
        return true;
    }
    if (patience->nap_until >= 0 && waited >= patience->nap_ns) {
        horon_patience_nap(patience);
        return true;
    }
    sched_yield();
    if (patience->yields)
        horon_yields_add(patience->yields, horon_clock_ns() - now);
    return true;
}

#endif
