/* SPDX-License-Identifier: Apache-2.0 */
/* Set k leaves out two ranks that are 1 + k / size apart, counted round, from rank k % size on. */
#include "sets.h"

enum { LEFT_OUT = 2 };

uint64_t perf_sets_most(int size)
{
    return size < 2 * LEFT_OUT ? 0 : (uint64_t)size * (uint64_t)(size - 1) / 2;
}

int perf_set_size(int size)
{
    return size - LEFT_OUT;
}

void perf_set_ranks(uint64_t set, int size, int32_t *ranks)
{
    for (int rank = 0; rank < size; rank++) {
        const int number = perf_set_rank(set, size, rank);
        if (number >= 0) {
            ranks[number] = rank;
        }
    }
}

int perf_set_rank(uint64_t set, int size, int rank)
{
    const int first = (int)(set % (uint64_t)size);
    const int second = (first + 1 + (int)(set / (uint64_t)size)) % size;
    if (rank == first || rank == second) {
        return -1;
    }
    return rank - (first < rank) - (second < rank);
}
