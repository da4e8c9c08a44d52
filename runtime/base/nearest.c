/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Edit distance (Levenshtein, 1965), one line of its table at a time: line[j] is the distance of
 * the part of `wanted` seen so far to the first j letters of the name. Slips of the shift key cost
 * nothing, so that fusion_bytes finds FUSION_BYTES.
 */
#include "nearest.h"

#include <assert.h>
#include <ctype.h>
#include <stdint.h>
#include <string.h>

static size_t least(size_t a, size_t b, size_t c)
{
    size_t low = a < b ? a : b;
    return low < c ? low : c;
}

static size_t distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t line[HORON_NEAREST_BYTES_MAX + 1];
    assert(a_bytes <= HORON_NEAREST_BYTES_MAX);
    assert(b_bytes <= HORON_NEAREST_BYTES_MAX);
    for (size_t j = 0; j <= b_bytes; j++)
        line[j] = j;
    for (size_t i = 1; i <= a_bytes; i++) {
        size_t diagonal = line[0];
        line[0] = i;
        for (size_t j = 1; j <= b_bytes; j++) {
            size_t above = line[j];
            int differ = tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]);
            line[j] = least(line[j] + 1, line[j - 1] + 1, diagonal + (size_t)differ);
            diagonal = above;
        }
    }
    return line[b_bytes];
}

struct horon_nearest horon_nearest_to(const char *wanted, size_t wanted_bytes)
{
    if (wanted_bytes > HORON_NEAREST_BYTES_MAX)
        wanted_bytes = HORON_NEAREST_BYTES_MAX;
    return (struct horon_nearest){
        .wanted = wanted, .wanted_bytes = wanted_bytes, .distance = SIZE_MAX};
}

void horon_nearest_consider(struct horon_nearest *nearest, const char *name, size_t name_bytes)
{
    if (name_bytes > HORON_NEAREST_BYTES_MAX)
        return;
    size_t edits = distance(nearest->wanted, nearest->wanted_bytes, name, name_bytes);
    if (edits >= nearest->distance)
        return;
    nearest->distance = edits;
    memcpy(nearest->name, name, name_bytes);
    nearest->name[name_bytes] = 0;
}

bool horon_nearest_is_close(const struct horon_nearest *nearest)
{
    const size_t name_bytes = strlen(nearest->name);
    const size_t longer = name_bytes > nearest->wanted_bytes ? name_bytes : nearest->wanted_bytes;
    return nearest->distance <= (longer + 1) / 3;
}
