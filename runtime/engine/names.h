/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names in use on this rank, so that a duplicate in flight is refused at once by the thread that
 * submits it. Each process set has its own: what two of them call alike has nothing to do with each
 * other. Sets go by their id here, not by the number of the engine's team, since events do: their
 * readers find names by it. An entry is shared by all requests of its name; its mark is taken by
 * the one in flight. Names that nothing refers to are remembered for their next use, so that a name
 * that comes again costs no memory; of too many the one that was not used for the longest time is
 * forgotten.
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
    uint64_t hash;           /* of the text */
    uint32_t team;           /* the id of its process set */
    uint32_t refs;           /* guarded by the table's lock */
    uint32_t bytes;
    _Atomic bool in_flight;
    struct horon_name *older, *newer; /* among the idle: those without a reference */
    char text[];                      /* ends with 0 */
};

struct horon_names {
    pthread_mutex_t lock; /* guards the table, and of the entries all but in_flight */
    struct horon_name **buckets;
    struct horon_name *oldest, *newest; /* idle */
    size_t bucket_count, entry_count, idle_count, idle_max;
};

/** @param idle_max  names remembered that nothing refers to */
horon_status_t horon_names_init(struct horon_names *names, size_t idle_max);
void horon_names_deinit(struct horon_names *names);
/** Finds or makes the entry and takes a reference. @return NULL: no memory */
struct horon_name *horon_names_get(struct horon_names *names, uint32_t team, const char *text);
/** Finds the text of a name that is in use. @return false: there is none with this hash */
bool horon_names_find(struct horon_names *names, uint32_t team, uint64_t hash, char *text,
                      size_t text_bytes);
/** Gives a reference back; after the last one the entry is idle. */
void horon_names_put(struct horon_names *names, struct horon_name *name);

#endif
