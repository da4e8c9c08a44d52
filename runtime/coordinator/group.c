/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups, on the root: none of a group's tensors is decided before all are ready everywhere. A
 * group exists while members are WHOLE; it is known by its hash and size together, so a rank that
 * names another size never completes somebody else's group. If a member failed, all fail together
 * once all are ready. Only if ranks disagree about the group itself, so that it may never be
 * complete, does what is ready fail at once; each rank then takes back the other members that it
 * submitted (apply.c).
 */
#include "internal.h"

static uint32_t *bucket_of(const struct horon_coordinator *c, uint64_t hash)
{
    return &c->group_buckets[hash & (c->entry_capacity - 1)];
}

void horon_coord_group_rehash(struct horon_coordinator *c)
{
    for (uint32_t i = 0; i < c->entry_capacity; i++)
        c->group_buckets[i] = COORD_NONE;
    for (uint32_t i = 0; i < c->group_used; i++) {
        struct coord_group *group = &c->groups[i];
        if (group->whole == 0)
            continue;
        group->next = *bucket_of(c, group->hash);
        *bucket_of(c, group->hash) = i;
    }
}

static uint32_t open_group(struct horon_coordinator *c, uint64_t hash, uint32_t size)
{
    uint32_t number = *bucket_of(c, hash);
    for (; number != COORD_NONE; number = c->groups[number].next)
        if (c->groups[number].hash == hash && c->groups[number].size == size)
            return number;
    if (c->group_free != COORD_NONE) {
        number = c->group_free;
        c->group_free = c->groups[number].next;
    } else {
        number = c->group_used++;
        assert(number < c->entry_capacity);
    }
    c->groups[number] = (struct coord_group){
        .hash = hash,
        .size = size,
        .first = COORD_NONE,
        .last = COORD_NONE,
        .next = *bucket_of(c, hash),
    };
    *bucket_of(c, hash) = number;
    return number;
}

static void close_group(struct horon_coordinator *c, uint32_t number)
{
    uint32_t *link = bucket_of(c, c->groups[number].hash);
    while (*link != number)
        link = &c->groups[*link].next;
    *link = c->groups[number].next;
    c->groups[number].next = c->group_free;
    c->group_free = number;
}

/** A WHOLE entry enters its group; if that can now be decided, its members are enqueued. */
void horon_coord_group_join(struct horon_coordinator *c, uint32_t index)
{
    const struct horon_signature *base = horon_coord_base(c, index);
    struct coord_entry *entry = &c->entries[index];
    struct coord_cold *cold = &c->cold[index];
    uint32_t number = open_group(c, base->group_hash, base->group_size);
    struct coord_group *group = &c->groups[number];
    entry->group = number;
    cold->group_prev = group->last;
    cold->group_next = COORD_NONE;
    if (group->last == COORD_NONE)
        group->first = index;
    else
        c->cold[group->last].group_next = index;
    group->last = index;
    group->whole++;
    group->failed += entry->failed;
    group->split += entry->split;
    if (!horon_coord_group_decidable(group))
        return;
    for (uint32_t i = group->first; i != COORD_NONE; i = c->cold[i].group_next)
        horon_coord_enqueue(c, i);
}

/** The entry stops being WHOLE. Call before anything else about it changes. */
void horon_coord_group_leave(struct horon_coordinator *c, uint32_t index)
{
    struct coord_entry *entry = &c->entries[index];
    struct coord_cold *cold = &c->cold[index];
    struct coord_group *group = &c->groups[entry->group];
    if (cold->group_prev == COORD_NONE)
        group->first = cold->group_next;
    else
        c->cold[cold->group_prev].group_next = cold->group_next;
    if (cold->group_next == COORD_NONE)
        group->last = cold->group_prev;
    else
        c->cold[cold->group_next].group_prev = cold->group_prev;
    group->failed -= entry->failed;
    group->split -= entry->split;
    if (--group->whole == 0)
        close_group(c, entry->group);
    entry->group = COORD_NONE;
}
