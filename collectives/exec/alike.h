/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room for data in what goes between hosts ahead of it, with its length. It is sent whole, so both
 * ends must know how much there is: as much as there was of data in each of the two operations
 * before, where one that is longer than the room that there may be, or unlike the other, counts as
 * little. So one of few bytes that comes before each long one is not made long. Pure.
 */
#ifndef HORON_EXEC_ALIKE_H
#define HORON_EXEC_ALIKE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/** Bytes of room that there are in any case, and of all ranks' together at most: an operation that
 * has less data than those before it must bear them. */
enum { HORON_ALIKE_MIN_BYTES = 256, HORON_ALIKE_ALL_BYTES = 128 << 10 };

/** Bytes of data in the last operation and the one before. Zeroed: there were none. */
struct horon_alike {
    uint64_t before[2];
};

/** @return the most room of one of @p ranks, in whole words. @param most unless that is less */
static inline size_t horon_alike_max(int ranks, size_t most)
{
    const size_t word = sizeof(uint64_t);
    const size_t share = HORON_ALIKE_ALL_BYTES / (size_t)ranks / word * word;
    assert(most >= HORON_ALIKE_MIN_BYTES && most % word == 0);
    if (share < HORON_ALIKE_MIN_BYTES)
        return HORON_ALIKE_MIN_BYTES;
    return share < most ? share : most;
}

/** @return the room in the operation that begins. @param max that there may be */
static inline size_t horon_alike_room(const struct horon_alike *data, size_t max)
{
    const uint64_t *before = data->before;
    const uint64_t alike = before[0] < before[1] ? before[0] : before[1];
    return alike > HORON_ALIKE_MIN_BYTES && alike <= max ? (size_t)alike : HORON_ALIKE_MIN_BYTES;
}

/** Once in an operation, behind horon_alike_room(). */
static inline void horon_alike_note(struct horon_alike *data, uint64_t bytes)
{
    data->before[1] = data->before[0];
    data->before[0] = bytes;
}

#endif
