/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names and their entries. An entry lives while anything needs it: a round, an id of the cache, a
 * handle, or a retired id. Entries are numbers, their arrays grow together, and everything that may
 * hold each entry once (queues, groups) has the same capacity, so that only opening an entry can
 * run out of memory. Names are found by chained buckets over the name's hash: as many buckets as
 * places.
 */
#include "internal.h"

#define ENTRIES_FIRST 64u

uint32_t horon_coord_entry_find(const struct horon_coordinator *c, const char *name,
                                size_t name_bytes, uint64_t hash)
{
    if (c->entry_capacity == 0)
        return COORD_NONE;
    uint32_t index = c->buckets[hash & (c->entry_capacity - 1)];
    for (; index != COORD_NONE; index = c->cold[index].hash_next) {
        const struct coord_cold *cold = &c->cold[index];
        if (cold->hash == hash && cold->name_bytes == name_bytes &&
            memcmp(cold->name, name, name_bytes) == 0)
            break;
    }
    return index;
}

static horon_status_t grow_one(void *array, size_t items, size_t item_bytes)
{
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = horon_realloc(old, items * item_bytes);
    if (!grown)
        return HORON_ERR_MEMORY;
    memcpy(array, &grown, sizeof grown);
    return HORON_OK;
}

static void rehash(struct horon_coordinator *c)
{
    for (uint32_t i = 0; i < c->entry_capacity; i++)
        c->buckets[i] = COORD_NONE;
    for (uint32_t i = 0; i < c->entry_used; i++) {
        struct coord_cold *cold = &c->cold[i];
        if (!cold->name)
            continue;
        uint32_t *bucket = &c->buckets[cold->hash & (c->entry_capacity - 1)];
        cold->hash_next = *bucket;
        *bucket = i;
    }
}

/* Arrays that did grow before one could not are simply larger than they need to be. */
static horon_status_t grow(struct horon_coordinator *c)
{
    if (c->entry_capacity > UINT32_MAX / 4)
        return HORON_ERR_MEMORY;
    size_t items = c->entry_capacity ? (size_t)c->entry_capacity * 2 : ENTRIES_FIRST;
    size_t set_bytes = c->words * sizeof(uint64_t);
    if (grow_one(&c->entries, items, sizeof *c->entries) ||
        grow_one(&c->cold, items, sizeof *c->cold) || grow_one(&c->have, items, set_bytes) ||
        grow_one(&c->asked, items, set_bytes) || grow_one(&c->whole, items, sizeof *c->whole) ||
        grow_one(&c->recalls, items, sizeof *c->recalls) ||
        grow_one(&c->buckets, items, sizeof *c->buckets))
        return HORON_ERR_MEMORY;
    if (c->parent < 0 && (grow_one(&c->groups, items, sizeof *c->groups) ||
                          grow_one(&c->group_buckets, items, sizeof *c->group_buckets)))
        return HORON_ERR_MEMORY;
    c->entry_capacity = (uint32_t)items;
    rehash(c);
    if (c->parent < 0)
        horon_coord_group_rehash(c);
    return HORON_OK;
}

horon_status_t horon_coord_entry_open(struct horon_coordinator *c, const char *name,
                                      size_t name_bytes, uint64_t hash, uint32_t *index_out)
{
    uint32_t index = horon_coord_entry_find(c, name, name_bytes, hash);
    if (index != COORD_NONE) {
        *index_out = index;
        return HORON_OK;
    }
    if (c->entry_free == COORD_NONE && c->entry_used == c->entry_capacity && grow(c))
        return HORON_ERR_MEMORY;
    char *copy = horon_alloc(name_bytes + 1);
    if (!copy)
        return HORON_ERR_MEMORY;
    memcpy(copy, name, name_bytes);
    copy[name_bytes] = 0;
    if (c->entry_free != COORD_NONE) {
        index = c->entry_free;
        c->entry_free = c->entries[index].next;
    } else {
        index = c->entry_used++;
        c->entries[index].queued = false;
    }
    bool queued = c->entries[index].queued; /* the queue may still hold its last owner's place */
    c->entries[index] = (struct coord_entry){
        .id = COORD_NONE, .missing = c->seat_count, .group = COORD_NONE, .queued = queued};
    uint32_t *bucket = &c->buckets[hash & (c->entry_capacity - 1)];
    memset(&c->cold[index], 0, sizeof c->cold[index]);
    c->cold[index].name = copy;
    c->cold[index].name_bytes = name_bytes;
    c->cold[index].hash = hash;
    c->cold[index].hash_next = *bucket;
    *bucket = index;
    memset(&c->have[(size_t)index * c->words], 0, c->words * sizeof *c->have);
    memset(&c->asked[(size_t)index * c->words], 0, c->words * sizeof *c->asked);
    *index_out = index;
    return HORON_OK;
}

static void unlink_name(struct horon_coordinator *c, uint32_t index)
{
    uint32_t *link = &c->buckets[c->cold[index].hash & (c->entry_capacity - 1)];
    while (*link != index)
        link = &c->cold[*link].hash_next;
    *link = c->cold[index].hash_next;
}

/* Frees the entry if nothing needs it any more. */
void horon_coord_entry_release(struct horon_coordinator *c, uint32_t index)
{
    struct coord_entry *entry = &c->entries[index];
    struct coord_cold *cold = &c->cold[index];
    if (entry->state != COORD_IDLE || entry->id != COORD_NONE || entry->holds > 0)
        return;
    assert(!entry->own);
    assert(!cold->dissents);
    assert(!cold->inquiry);
    unlink_name(c, index);
    c->foreign_names -= entry->foreign;
    horon_free(cold->name);
    horon_free(cold->reason);
    cold->name = NULL;
    cold->reason = NULL;
    entry->next = c->entry_free;
    c->entry_free = index;
}

void horon_coord_table_deinit(struct horon_coordinator *c)
{
    for (uint32_t i = 0; i < c->entry_used; i++) {
        horon_coord_dissents_free(c, i);
        horon_coord_inquiry_end(c, i);
        horon_free(c->cold[i].name);
        horon_free(c->cold[i].reason);
    }
    horon_free(c->entries);
    horon_free(c->cold);
    horon_free(c->have);
    horon_free(c->asked);
    horon_free(c->whole);
    horon_free(c->recalls);
    horon_free(c->buckets);
    horon_free(c->groups);
    horon_free(c->group_buckets);
}
