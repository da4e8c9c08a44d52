/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time. Protocols take a clock value as an argument; only owners of threads read it. */
#ifndef HORON_BASE_CLOCK_H
#define HORON_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/** @return nanoseconds since some fixed moment. */
static inline uint64_t horon_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/** @return the moment @p timeout_ms from @p now_ns; UINT64_MAX (never) for a negative one. */
static inline uint64_t horon_clock_deadline(uint64_t now_ns, int64_t timeout_ms)
{
    const uint64_t never = UINT64_MAX;
    if (timeout_ms < 0 || (uint64_t)timeout_ms > (never - now_ns) / 1000000u)
        return never;
    return now_ns + (uint64_t)timeout_ms * 1000000u;
}

#endif
