/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a rank of these tests tells that it failed, and when: ranks.py reads this line.
 */
#ifndef HORON_TEST_HOSTS_FAILED_H
#define HORON_TEST_HOSTS_FAILED_H

#include <stdio.h>
#include <time.h>

/* Prints "failed NANOSECONDS STATUS TEXT". @return 1, the status of a process that failed */
static inline int failed(int status, const char *text)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("failed %lld%09ld %d %s\n", (long long)now.tv_sec, now.tv_nsec, status, text);
    fflush(stdout);
    return 1;
}

#endif
