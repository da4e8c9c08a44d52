/* SPDX-License-Identifier: Apache-2.0 */
/* The nearest of some names to a mistyped one, for "did you mean". */
#ifndef HORON_BASE_NEAREST_H
#define HORON_BASE_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

/** Longest name that is considered, and longest part of what is wanted that counts. */
#define HORON_NEAREST_BYTES_MAX 63

struct horon_nearest {
    const char *wanted; /* borrowed */
    size_t wanted_bytes;
    size_t distance; /* edits from wanted to name; SIZE_MAX: nothing was considered */
    char name[HORON_NEAREST_BYTES_MAX + 1];
};

/** Begins a search for what is nearest to @p wanted, which must stay. */
struct horon_nearest horon_nearest_to(const char *wanted, size_t wanted_bytes);
/** Keeps @p name if it is nearer than all before. Upper and lower case are the same; of names
 * equally near the first is kept; one that is too long is passed over. */
void horon_nearest_consider(struct horon_nearest *nearest, const char *name, size_t name_bytes);
/** @return whether the name may have been meant: of three letters one may be wrong. What is further
 * away would only puzzle. */
bool horon_nearest_is_close(const struct horon_nearest *nearest);

#endif
