/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of this room share: cmocka, asserts that stay on, seeded numbers. */
#ifndef HORON_TEST_COLLECTIVES_WORLDS_H
#define HORON_TEST_COLLECTIVES_WORLDS_H

#undef NDEBUG

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/** xorshift64*: the same numbers from the same seed everywhere. */
struct seeded {
    uint64_t state;
};

static inline struct seeded seeded_from(uint64_t seed)
{
    return (struct seeded){.state = seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u};
}

static inline uint64_t seeded_next(struct seeded *seeded)
{
    uint64_t x = seeded->state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    seeded->state = x;
    return x * 0x2545f4914f6cdd1du;
}

/** 0 .. below - 1. */
static inline uint64_t seeded_below(struct seeded *seeded, uint64_t below)
{
    return (seeded_next(seeded) >> 11) % below;
}

#endif
