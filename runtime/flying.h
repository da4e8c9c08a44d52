/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many requests fly: those that were posted less those that have landed, two counts that only
 * grow and may wrap. Any thread posts; requests land in the thread that holds the token, which
 * therefore counts by plain stores.
 */
#ifndef HORON_FLYING_H
#define HORON_FLYING_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Counts up to @p n more as posted.
 * @param before_out those that fly besides
 * @return how many may fly with these, and were counted; fewer than n: the limit is reached
 */
static inline size_t horon_flying_add(_Atomic uint32_t *posted, const _Atomic uint32_t *landed,
                                      size_t n, uint32_t limit, uint32_t *before_out)
{
    const uint32_t tried = n < limit ? (uint32_t)n : limit;
    const uint32_t at = atomic_fetch_add_explicit(posted, tried, memory_order_acquire);
    /* This look comes last: thousands may come and go between the two while the thread has no core.
     * So what has landed may be more than was posted before these. */
    const int32_t others = (int32_t)(at - atomic_load_explicit(landed, memory_order_acquire));
    *before_out = others > 0 ? (uint32_t)others : 0;
    uint32_t allowed = *before_out < limit ? limit - *before_out : 0;
    allowed = allowed < tried ? allowed : tried;
    if (allowed < tried)
        atomic_fetch_sub_explicit(posted, tried - allowed, memory_order_relaxed);
    return allowed;
}

/** They were not posted after all. */
static inline void horon_flying_take_back(_Atomic uint32_t *posted, const _Atomic uint32_t *landed,
                                          size_t n)
{
    const uint32_t had_landed = atomic_load_explicit(landed, memory_order_acquire);
    const uint32_t before = atomic_fetch_sub_explicit(posted, (uint32_t)n, memory_order_relaxed);
    assert(before - had_landed >= n);
    (void)before;
    (void)had_landed;
}

/** One has landed. Thread: the one with the token. */
static inline void horon_flying_land(const _Atomic uint32_t *posted, _Atomic uint32_t *landed)
{
    const uint32_t before = atomic_load_explicit(landed, memory_order_relaxed);
    assert(atomic_load_explicit(posted, memory_order_relaxed) != before);
    (void)posted;
    atomic_store_explicit(landed, before + 1, memory_order_release);
}

#endif
