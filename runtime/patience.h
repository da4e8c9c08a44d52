/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a thread that waits looks again and again before it sleeps: it spins for a while,
 * then yields its core between two looks, and then gives up. What moves begins it anew.
 */
#ifndef HORON_PATIENCE_H
#define HORON_PATIENCE_H

#include "clock.h"
#include "cpu.h"
#include "yields.h"

#include <sched.h>

struct horon_patience {
    uint64_t since_ns;           /* that nothing was found to do; 0: something moved just now */
    uint64_t spin_ns, limit_ns;  /* from then on: to spin, and to look at all */
    struct horon_yields *yields; /* NULL: nobody is told how long they take */
};

static inline struct horon_patience horon_patience_of(int64_t spin_us, int64_t yield_us)
{
    return (struct horon_patience){.spin_ns = (uint64_t)spin_us * 1000,
                                   .limit_ns = (uint64_t)(spin_us + yield_us) * 1000};
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
    sched_yield();
    if (patience->yields)
        horon_yields_add(patience->yields, horon_clock_ns() - now);
    return true;
}

#endif
