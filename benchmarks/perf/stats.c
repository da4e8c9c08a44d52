/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The median is what is reported because one call in a hundred meets the scheduler; the extremes
 * stand beside it so that nobody forgets that.
 */
#include "stats.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, size_t n, double at)
{
    const double place = at * (double)(n - 1);
    const size_t low = (size_t)place;
    const size_t high = low + 1 < n ? low + 1 : low;
    return sorted[low] + (sorted[high] - sorted[low]) * (place - (double)low);
}

struct perf_stats perf_stats_of(double *samples, size_t n)
{
    struct perf_stats stats = {.median = 0.0, .min = 0.0, .max = 0.0, .p25 = 0.0, .p75 = 0.0};
    if (n == 0) {
        return stats;
    }
    qsort(samples, n, sizeof *samples, by_value);
    stats.median = quantile(samples, n, 0.5);
    stats.min = samples[0];
    stats.max = samples[n - 1];
    stats.p25 = quantile(samples, n, 0.25);
    stats.p75 = quantile(samples, n, 0.75);
    return stats;
}
