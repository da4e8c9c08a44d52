/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that were refused, and why. A process that is refused tries again many times a
 * second: that is one incident, told once and counted. The list is bounded, whatever strangers do,
 * and what they claim without a proof is reported as a claim.
 */
#ifndef HORON_BOOT_REFUSALS_H
#define HORON_BOOT_REFUSALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HORON_REFUSALS_MAX 16
#define HORON_REFUSALS_NOBODY (-1) /* it did not say what rank it is */

struct horon_refusal {
    int rank; /* that it said it is, or HORON_REFUSALS_NOBODY */
    bool proven;
    char from[64]; /* without the port, which is another at each try */
    char why[192];
    uint64_t times;
};

/** All zero is nobody. */
struct horon_refusals {
    int count;
    bool full;       /* more came than there is room for */
    uint64_t beyond; /* how many of them */
    struct horon_refusal items[HORON_REFUSALS_MAX];
};

/**
 * @param rank   what it says it is, or HORON_REFUSALS_NOBODY
 * @param proven it has the job key
 * @param from "10.1.0.3:4000", or what else says who it is
 * @return is it new? Then the log shall tell of it.
 */
bool horon_refusals_note(struct horon_refusals *refusals, int rank, bool proven, const char *from,
                         const char *why);

#define HORON_REFUSALS_WHO_BYTES 112
/** Writes "rank 1 at 10.1.0.3", or of an unproven one "10.1.0.3, which says that it is rank 1,". */
void horon_refusals_name(int rank, bool proven, const char *from, char *text, size_t text_bytes);

/** @return how many were noted in all, listed or not */
uint64_t horon_refusals_times(const struct horon_refusals *refusals);

/** Writes "rank 1 at 10.1.0.3 was turned away 57 times: WHY; ...", cut to fit; "" for nobody. */
void horon_refusals_describe(const struct horon_refusals *refusals, char *text, size_t text_bytes);

#endif
