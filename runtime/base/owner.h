/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is: an engine belongs to the thread that holds the progress token, a loop to the
 * one that sleeps in it. A function that is the owner's only says so with its first line. Meson
 * defines HORON_OWNERS_CHECKED as 1 for debugging and under sanitizers; as 0 all of this is
 * nothing.
 */
#ifndef HORON_BASE_OWNER_H
#define HORON_BASE_OWNER_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct horon_owner {
    _Atomic uintptr_t thread; /* pthread_self(); 0: nobody */
};

/** The calling thread owns it from here on. */
static inline void horon_owner_take(struct horon_owner *owner)
{
    if (HORON_OWNERS_CHECKED)
        atomic_store_explicit(&owner->thread, (uintptr_t)pthread_self(), memory_order_relaxed);
}

/** Nobody does. */
static inline void horon_owner_give(struct horon_owner *owner)
{
    if (HORON_OWNERS_CHECKED)
        atomic_store_explicit(&owner->thread, 0, memory_order_relaxed);
}

/** @param owner NULL: any caller, in a test that has one thread */
static inline bool horon_owner_is_mine(const struct horon_owner *owner)
{
    return !HORON_OWNERS_CHECKED || !owner ||
           atomic_load_explicit(&owner->thread, memory_order_relaxed) == (uintptr_t)pthread_self();
}

static inline bool horon_owner_is_nobodys(const struct horon_owner *owner)
{
    return !HORON_OWNERS_CHECKED || atomic_load_explicit(&owner->thread, memory_order_relaxed) == 0;
}

#define HORON_ASSERT_OWNER(owner) assert(horon_owner_is_mine(owner))

#endif
