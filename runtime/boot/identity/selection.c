/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of some of the ranks that a launcher has started: init(comm=[0, 2]). Which they are is the
 * row RANKS; their numbers in the job are their places in that list. The mark of such a job is made
 * of the list, so ranks with different lists do not meet. The others need not join anything.
 */
#include "boot/identity/identity.h"

#include "alloc.h"
#include "numbers.h"

#include <string.h>
#include <xxhash.h>

static bool is_whole(const int *places, int size)
{
    for (int rank = 0; rank < size; rank++)
        if (places[rank] != rank)
            return false;
    return true;
}

static void take(struct horon_identity *identity, const int *places, int count)
{
    const size_t bytes = (size_t)identity->size * sizeof *places;
    const uint64_t mark = XXH3_64bits_withSeed(places, bytes, identity->job);
    identity->job = mark ? mark : 1;
    identity->rank = places[identity->rank];
    identity->left_out = identity->size - count;
    identity->size = count;
    identity->local_rank = identity->local_size = -1;
    if (count == 1) { /* nobody to meet */
        identity->store[0] = 0;
        identity->port_scan = 0;
    }
}

horon_status_t horon_identity_select(struct horon_identity *identity, const char *ranks,
                                     struct horon_error *error)
{
    const int size = identity->size;
    horon_status_t status = HORON_OK;
    if (!ranks[0])
        return HORON_OK;
    int *places = horon_alloc((size_t)size * sizeof *places);
    if (!places)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for the list of ranks");
    const int count = horon_numbers_parse(ranks, strlen(ranks), size, places);
    if (count < 1)
        status = horon_error_set(error, HORON_ERR_CONFIG,
                                 "HORON_RANKS=%.200s: a list of ranks from 0 to %d is needed, each "
                                 "once, as in 0,2,4-7",
                                 ranks, size - 1);
    else if (places[identity->rank] < 0)
        status =
            horon_error_set(error, HORON_ERR_INVALID,
                            "rank %d of the %d that were started is not among the ranks of the "
                            "job, %.200s",
                            identity->rank, size, ranks);
    else if (!is_whole(places, size))
        take(identity, places, count);
    horon_free(places);
    return status;
}
