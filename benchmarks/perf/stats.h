/* SPDX-License-Identifier: Apache-2.0 */
/* Order statistics of a handful of times. */
#ifndef HORON_PERF_STATS_H
#define HORON_PERF_STATS_H

#include <stddef.h>

struct perf_stats {
    double median, min, max, p25, p75; /* in the unit of the samples */
};

/** Sorts @p samples [n] and sums them up. n = 0 gives zeros. Quartiles interpolate between ranks.
 */
struct perf_stats perf_stats_of(double *samples, size_t n);

#endif
