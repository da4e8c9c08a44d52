/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far the life of a context is. One thread at a time moves it: the one that creates it, then
 * the one that destroys it; in the child of a fork, the only one that is there. Any thread reads.
 */
#ifndef HORON_LIFE_H
#define HORON_LIFE_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum horon_life {
    HORON_LIFE_JOINING,
    HORON_LIFE_RUNNING,  /* its own thread is there, and calls are taken */
    HORON_LIFE_CLOSED,   /* calls fail; the thread makes progress until the others know */
    HORON_LIFE_STOPPING, /* the thread ends */
    HORON_LIFE_OVER,     /* the thread has ended, or never was; requests may be left */
    HORON_LIFE_FORKED    /* this is a child of the process that created it: calls fail */
};

/** The only function that changes it; asserts that the move is a legal one. */
static inline void horon_life_move(_Atomic uint8_t *life, enum horon_life to)
{
    static const unsigned legal[] = {
        [HORON_LIFE_JOINING] =
            1u << HORON_LIFE_RUNNING | 1u << HORON_LIFE_OVER | 1u << HORON_LIFE_FORKED,
        [HORON_LIFE_RUNNING] = 1u << HORON_LIFE_CLOSED | 1u << HORON_LIFE_FORKED,
        [HORON_LIFE_CLOSED] = 1u << HORON_LIFE_STOPPING | 1u << HORON_LIFE_FORKED,
        [HORON_LIFE_STOPPING] = 1u << HORON_LIFE_OVER | 1u << HORON_LIFE_FORKED,
        [HORON_LIFE_OVER] = 1u << HORON_LIFE_FORKED,
        [HORON_LIFE_FORKED] = 0}; /* the child's own children know nothing of it */
    const uint8_t from = atomic_exchange(life, (uint8_t)to);
    assert(from <= HORON_LIFE_FORKED);
    assert(legal[from] & 1u << to);
}

static inline enum horon_life horon_life_now(const _Atomic uint8_t *life)
{
    return (enum horon_life)atomic_load_explicit(life, memory_order_relaxed);
}

static inline bool horon_life_is_forked(const _Atomic uint8_t *life)
{
    return horon_life_now(life) == HORON_LIFE_FORKED;
}

/** Is its own thread there? */
static inline bool horon_life_has_thread(const _Atomic uint8_t *life)
{
    const enum horon_life now = horon_life_now(life);
    return now >= HORON_LIFE_RUNNING && now <= HORON_LIFE_STOPPING;
}

/** Has the thread to end? In a forked child, too: it is there if a callback has forked. */
static inline bool horon_life_stops(const _Atomic uint8_t *life)
{
    return atomic_load(life) >= HORON_LIFE_STOPPING;
}

#endif
