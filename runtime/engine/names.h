/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names in use on this rank, so that a duplicate in flight is refused at once by the thread that
 * submits it. An entry is shared by all requests of its name; its mark is taken by the one in
 * flight.
 */
#ifndef HORON_ENGINE_NAMES_H
#define HORON_ENGINE_NAMES_H

#include "status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct horon_name {
    struct horon_name *next; /* in its bucket */
    uint64_t hash;
    uint32_t refs; /* guarded by the table's lock */
    uint32_t bytes;
    _Atomic bool in_flight;
    char text[]; /* ends with 0 */
};

struct horon_names {
    pthread_mutex_t lock; /* guards the table and the entries' refs and next */
    struct horon_name **buckets;
    size_t bucket_count, entry_count;
};

horon_status_t horon_names_init(struct horon_names *names);
void horon_names_deinit(struct horon_names *names);
/** Finds or makes the entry and takes a reference. @return NULL: no memory */
struct horon_name *horon_names_get(struct horon_names *names, const char *text);
/** Gives a reference back; the last one frees the entry. */
void horon_names_put(struct horon_names *names, struct horon_name *name);

#endif
