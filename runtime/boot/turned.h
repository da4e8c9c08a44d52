/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who was turned away, and why: who is not let in tries again many times a second, and that is one
 * incident, told once and counted. Bounded, whatever strangers do.
 */
#ifndef HORON_BOOT_TURNED_H
#define HORON_BOOT_TURNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HORON_TURNED_MAX 16
#define HORON_TURNED_NOBODY (-1) /* it did not say what rank it is */

struct horon_turned_item {
    int rank;
    char from[64]; /* without the port, which is another at each try */
    char why[192];
    uint64_t times;
};

/** All zero is nobody. */
struct horon_turned {
    int count;
    bool full;       /* more came than there is room for */
    uint64_t beyond; /* how many of them */
    struct horon_turned_item items[HORON_TURNED_MAX];
};

/**
 * @param rank what it says it is, proven or not; or HORON_TURNED_NOBODY
 * @param from "10.1.0.3:4000", or what else says who it is
 * @return is it new? Then the log shall tell of it.
 */
bool horon_turned_note(struct horon_turned *turned, int rank, const char *from, const char *why);

/** @return how many were noted in all, listed or not */
uint64_t horon_turned_times(const struct horon_turned *turned);

/** Writes "rank 1 at 10.1.0.3 was turned away 57 times: WHY; ...", cut to fit; "" for nobody. */
void horon_turned_describe(const struct horon_turned *turned, char *text, size_t text_bytes);

#endif
