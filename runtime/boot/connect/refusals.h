/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that an acceptor refused, and why. A process that is refused tries again many times a
 * second: that is one incident, told once and counted. The list is bounded, whatever strangers do,
 * and what they claim without a proof is reported as a claim.
 */
#ifndef HORON_BOOT_CONNECT_REFUSALS_H
#define HORON_BOOT_CONNECT_REFUSALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HORON_REFUSALS_MAX 16
#define HORON_REFUSALS_NOBODY (-1) /* it did not say what rank it is */

struct horon_refusal {
    char
        peer[112]; /* "rank 1 at 10.1.0.3"; not proven: "10.1.0.3 (which says that it is rank 1)" */
    char why[192];
    uint64_t times;
};

/** All zero is nobody. */
struct horon_refusals {
    int count;
    struct horon_refusal items[HORON_REFUSALS_MAX + 1]; /* the last: all there is no room for */
};

/**
 * @param rank   what it says it is, or HORON_REFUSALS_NOBODY
 * @param proven it has the job key
 * @param from   "10.1.0.3:4000", or what else is known of it
 * @return the entry, if the log shall tell of it; NULL: it has told already
 */
const struct horon_refusal *horon_refusals_note(struct horon_refusals *refusals, int rank,
                                                bool proven, const char *from, const char *why);

/** @return how many were noted in all, listed or not */
uint64_t horon_refusals_times(const struct horon_refusals *refusals);

/** Writes "rank 1 at 10.1.0.3 was refused 57 times: WHY; ...", cut to fit; "" for nobody. */
void horon_refusals_describe(const struct horon_refusals *refusals, char *text, size_t text_bytes);

#endif
