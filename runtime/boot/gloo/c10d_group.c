/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of the first group, whose number is 0; the next one's last key ends with 2:
 *
 *     default_pg/0/SEQ_NUM_STORE_KEY          rank 0 sets it, the others wait for it
 *     default_pg/0/0/...                      Gloo's
 *     default_pg/store_based_barrier_key:1    counts the ranks that are connected
 *
 * With torch 2.0 "default_pg/0//cpu//" stands before the first and before Gloo's, which begin with
 * "0/" there, too: Gloo's context, of which torch has one for each interface. What is set says
 * where torch's own count of collectives begins, for its log.
 */
#include "boot/gloo/c10d_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OF_TORCH "default_pg/"

/* @return where the prefix of the group ends in that of Gloo's context; 0: it is no group's */
static size_t group_bytes(const char *prefix, long *group_out)
{
    static const char context[] = "/0/";
    const size_t before = strlen(OF_TORCH), bytes = strlen(prefix), last = strlen(context);
    char *end = NULL;
    if (strncmp(prefix, OF_TORCH, before) != 0)
        return 0;
    *group_out = strtol(prefix + before, &end, 10);
    if (end == prefix + before || *end != '/' || *group_out < 0 || *group_out >= INT32_MAX)
        return 0;
    if (bytes < last || prefix + bytes - last < end || strcmp(prefix + bytes - last, context) != 0)
        return 0;
    return bytes - last + 1;
}

horon_status_t horon_gloo_c10d_group_meet(struct horon_gloo_store *store, int rank,
                                          const struct horon_gloo_wait *wait,
                                          struct horon_error *error)
{
    static const uint8_t sequence[8] = {0};
    char key[HORON_GLOO_KEY_BYTES];
    long group = 0;
    const size_t bytes = group_bytes(store->prefix, &group);
    horon_status_t status = HORON_OK;
    if (bytes == 0 || !store->ops->add)
        return HORON_OK;
    snprintf(key, sizeof key, "%.*sSEQ_NUM_STORE_KEY", (int)bytes, store->prefix);
    if (rank == 0)
        status = store->ops->set(store, key, sequence, sizeof sequence, wait, error);
    snprintf(key, sizeof key, OF_TORCH "store_based_barrier_key:%ld", group + 1);
    return status == HORON_OK ? store->ops->add(store, key, 1, wait, error) : status;
}
