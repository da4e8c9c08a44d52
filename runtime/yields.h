/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank of a crowded job learns from its yields: whether anybody else wants its core now. The
 * ranks of a process set may have all cores for themselves while the others sleep, and then wait as
 * well as those of a smaller job do, by spinning. Pure: times are arguments.
 */
#ifndef HORON_YIELDS_H
#define HORON_YIELDS_H

#include <stdbool.h>
#include <stdint.h>

/** What yields, at least, where another process takes the core: it is switched to, and back. */
#define HORON_YIELD_TAKEN_NS 1000
/** So many in a row must have come back at once: to a process that computes the system gives the
 * core at some of them only, and then for long. */
#define HORON_YIELDS_ALONE 32
/** Of the waits of a rank that is alone one in so many does not spin, and asks anew. */
#define HORON_YIELDS_ASK 128

/** Zeroed: nothing is known. Owner: the holder of the token. */
struct horon_yields {
    uint32_t quick; /* in a row; nobody took the core */
    uint32_t waits; /* that spun, since one asked */
};

/** A yield took @p ns. */
static inline void horon_yields_add(struct horon_yields *yields, uint64_t ns)
{
    if (ns >= HORON_YIELD_TAKEN_NS)
        yields->quick = 0;
    else if (yields->quick < HORON_YIELDS_ALONE)
        yields->quick++;
}

/** May the wait that begins spin before it yields? */
static inline bool horon_yields_may_spin(struct horon_yields *yields)
{
    if (yields->quick < HORON_YIELDS_ALONE)
        return false;
    yields->waits = (yields->waits + 1) % HORON_YIELDS_ASK;
    return yields->waits != 0;
}

#endif
