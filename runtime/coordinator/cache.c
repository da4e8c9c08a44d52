/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache: small ids for names that were decided before. The root gives and takes ids within the
 * stream of batches, so that after the same number of batches the table is the same on every rank.
 *
 * A child may be some batches behind when it reports by id. Each message to the parent says how
 * many batches its sender had passed, and a slot remembers what it meant before, until every child
 * has passed the change: so a report is always understood as it was meant, and never has to be
 * repeated.
 *
 * The root evicts what was decided the longest ago among what nobody is submitting.
 */
#include "internal.h"

#define NO_RETIRED UINT64_MAX
/* Candidates that the root looks at for one eviction; if all of them are in use the new name gets
 * no id this time. Keeps a cache much smaller than what is in flight from costing a scan a name. */
#define VICTIMS_SEEN_MAX 16

horon_status_t horon_coord_cache_init(struct horon_coordinator *c, size_t entries)
{
    if (entries >= COORD_NONE)
        return HORON_ERR_INVALID;
    c->slots = horon_zalloc(entries + 1, sizeof *c->slots);
    if (!c->slots)
        return HORON_ERR_MEMORY;
    c->slot_capacity = (uint32_t)entries;
    for (size_t i = 0; i <= entries; i++)
        c->slots[i] = (struct coord_slot){.retired = NO_RETIRED,
                                          .entry = COORD_NONE,
                                          .lru_prev = (uint32_t)entries,
                                          .lru_next = (uint32_t)entries};
    return HORON_OK;
}

uint32_t horon_coord_cache_before(const struct horon_coordinator *c, uint32_t id, uint64_t seen)
{
    uint64_t number = c->slots[id].retired;
    while (number != NO_RETIRED && number >= c->retired_first) {
        const struct coord_retired *old = &c->retired[number - c->retired_first + c->retired_gone];
        if (seen >= old->from)
            return seen < old->to ? old->entry : COORD_NONE;
        number = old->older;
    }
    return COORD_NONE;
}

/** Gives an empty slot, or the one it has, to an entry; takes effect with the batch being applied.
 */
void horon_coord_cache_put(struct horon_coordinator *c, uint32_t id, uint32_t index)
{
    struct coord_slot *slot = &c->slots[id];
    if (slot->entry == index)
        return;
    assert(slot->entry == COORD_NONE);
    slot->entry = index;
    slot->since = c->sequence + 1;
    c->entries[index].id = id;
}

static horon_status_t retire(struct horon_coordinator *c, struct coord_slot *slot)
{
    if (c->retired_gone > c->retired_count) { /* more gone than left: move down */
        memmove(c->retired, c->retired + c->retired_gone, c->retired_count * sizeof *c->retired);
        c->retired_gone = 0;
    }
    size_t used = c->retired_gone + c->retired_count;
    if (horon_coord_reserve(&c->retired, &c->retired_capacity, used + 1, sizeof *c->retired))
        return HORON_ERR_MEMORY;
    c->retired[used] = (struct coord_retired){
        .from = slot->since, .to = c->sequence + 1, .older = slot->retired, .entry = slot->entry};
    slot->retired = c->retired_first + c->retired_count++;
    c->entries[slot->entry].holds++;
    return HORON_OK;
}

/** Empties a slot that has an entry. The entry keeps what is agreed about it. @return OK |
 * ERR_MEMORY */
horon_status_t horon_coord_cache_evict(struct horon_coordinator *c, uint32_t id)
{
    struct coord_slot *slot = &c->slots[id];
    uint32_t index = slot->entry;
    if (c->seat_count > 1 && retire(c, slot)) /* without children nobody reports here */
        return HORON_ERR_MEMORY;
    slot->entry = COORD_NONE;
    slot->since = c->sequence + 1;
    c->entries[index].id = COORD_NONE;
    horon_coord_entry_release(c, index);
    return HORON_OK;
}

/** Lets go of the old meanings that all children have passed. */
void horon_coord_cache_release(struct horon_coordinator *c)
{
    if (c->retired_count == 0)
        return;
    uint64_t passed = UINT64_MAX;
    for (uint32_t i = 1; i < c->seat_count; i++)
        if (c->seats[i].seen < passed && !horon_coord_seat_joined(c, i)) /* it reports nothing */
            passed = c->seats[i].seen;
    while (c->retired_count > 0 && c->retired[c->retired_gone].to <= passed) {
        uint32_t index = c->retired[c->retired_gone].entry;
        c->retired_gone++;
        c->retired_first++;
        c->retired_count--;
        c->entries[index].holds--;
        horon_coord_entry_release(c, index);
    }
}

/* ---- The root's part ------------------------------------------------------------------------- */

static void lru_unlink(struct horon_coordinator *c, uint32_t id)
{
    struct coord_slot *slot = &c->slots[id];
    c->slots[slot->lru_prev].lru_next = slot->lru_next;
    c->slots[slot->lru_next].lru_prev = slot->lru_prev;
}

/** The id was decided just now: it is the last to be evicted. */
void horon_coord_cache_touch(struct horon_coordinator *c, uint32_t id)
{
    struct coord_slot *slot = &c->slots[id], *end = &c->slots[c->slot_capacity];
    lru_unlink(c, id);
    slot->lru_prev = end->lru_prev;
    slot->lru_next = c->slot_capacity;
    c->slots[end->lru_prev].lru_next = id;
    end->lru_prev = id;
}

/**
 * Chooses an id for a new name. It must be put, and touched, before the next batch is planned.
 * @param victim_out the id if it must be evicted first, else COORD_NONE
 * @return the id, or COORD_NONE: the name stays without
 */
uint32_t horon_coord_cache_plan(struct horon_coordinator *c, uint32_t *victim_out)
{
    *victim_out = COORD_NONE;
    if (c->slot_used < c->slot_capacity) {
        uint32_t id = c->slot_used++;
        c->slots[id].lru_prev = id;
        c->slots[id].lru_next = id;
        return id;
    }
    uint32_t id = c->slots[c->slot_capacity].lru_next;
    for (int i = 0; i < VICTIMS_SEEN_MAX && id != c->slot_capacity; i++) {
        if (c->entries[c->slots[id].entry].state == COORD_IDLE) {
            lru_unlink(c, id);
            c->slots[id].lru_prev = id;
            c->slots[id].lru_next = id;
            *victim_out = id;
            return id;
        }
        id = c->slots[id].lru_next;
    }
    return COORD_NONE;
}
