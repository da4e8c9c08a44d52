/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On the root: what is ready everywhere becomes batches. All that is ready is decided in one go, in
 * order of readiness. Tensors that fit together (same verb, dtype, reduction, scales, root, process
 * set) are put into one batch up to the fusion limit, also if others lie between them: each of the
 * batches last opened may still grow. Then each batch is written as a record, ids are given on the
 * way, and the record is applied here as on every other rank.
 */
#include "internal.h"

#include <stdio.h>

/* Batches that may still grow, counted from the newest: more kinds of tensors than a model mixes.
 */
#define LOOK_BACK_MAX 16

/* Bytes of a batch record besides items: tag, sequence, failed, error, end. */
#define RECORD_HEAD_BYTES (HORON_ERROR_WIRE_BYTES_MAX + 32)

/* ---- Forming --------------------------------------------------------------------------------- */

/* Of one that is not known by an id. Apart, since its name is cold. */
__attribute__((noinline)) static size_t name_cost(const struct horon_coordinator *c, uint32_t index)
{
    const size_t description = c->joined_count > 0 ? COORD_SIGNATURE_BYTES_MAX : 0;
    return c->cold[index].name_bytes + 16 + description; /* 16: an id and an eviction */
}

/* What the item of an entry takes at most, after an item of id @p last_id. */
static size_t item_cost(const struct horon_coordinator *c, uint32_t index, uint32_t last_id)
{
    const struct coord_entry *entry = &c->entries[index];
    if (entry->id != COORD_NONE && (entry->as_agreed || entry->failed))
        return last_id != COORD_NONE && entry->id == last_id + 1 ? 0 : 12;
    return name_cost(c, index);
}

static uint64_t payload_bytes(const struct horon_coordinator *c, uint32_t index)
{
    const struct coord_entry *entry = &c->entries[index];
    return entry->as_agreed ? entry->agreed_bytes : horon_signature_bytes(&c->cold[index].fresh);
}

static struct coord_forming *open_batch(struct horon_coordinator *c)
{
    if (horon_coord_reserve(&c->forming, &c->forming_capacity, c->forming_count + 1,
                            sizeof *c->forming))
        return NULL;
    struct coord_forming *batch = &c->forming[c->forming_count++];
    *batch = (struct coord_forming){
        .cost = RECORD_HEAD_BYTES, .first = COORD_NONE, .last = COORD_NONE, .last_id = COORD_NONE};
    return batch;
}

/* @param cost  item_cost() of it */
static void append(struct horon_coordinator *c, struct coord_forming *batch, uint32_t index,
                   uint64_t bytes, size_t cost)
{
    struct coord_entry *entry = &c->entries[index];
    batch->cost += cost;
    batch->last_id = entry->id;
    batch->bytes += bytes;
    entry->placed = true;
    entry->next = COORD_NONE;
    if (batch->last == COORD_NONE)
        batch->first = index;
    else
        c->entries[batch->last].next = index;
    batch->last = index;
}

static bool fits(const struct horon_coordinator *c, const struct coord_forming *batch,
                 uint64_t bytes, size_t cost)
{
    return c->fusion_bytes > 0 && bytes <= c->fusion_bytes &&
           batch->bytes <= c->fusion_bytes - bytes && batch->cost + cost <= COORD_RECORD_BYTES_MAX;
}

/* The newest batch of the entry's kind that has room for it; else a new one. */
static horon_status_t place(struct horon_coordinator *c, uint32_t index)
{
    const struct horon_signature *kind = horon_coord_kind(c, index);
    uint64_t bytes = payload_bytes(c, index);
    bool fusable = horon_verb_of(kind)->fusable;
    for (size_t back = 0; fusable && back < c->forming_count && back < LOOK_BACK_MAX; back++) {
        struct coord_forming *batch = &c->forming[c->forming_count - 1 - back];
        const size_t cost = item_cost(c, index, batch->last_id);
        if (!batch->failed && fits(c, batch, bytes, cost) &&
            (batch->kind == kind || horon_signature_same_kind(batch->kind, kind))) {
            append(c, batch, index, bytes, cost);
            return HORON_OK;
        }
    }
    struct coord_forming *batch = open_batch(c);
    if (!batch)
        return HORON_ERR_MEMORY;
    batch->kind = kind;
    append(c, batch, index, bytes, item_cost(c, index, COORD_NONE));
    return HORON_OK;
}

static struct coord_forming *open_failing(struct horon_coordinator *c,
                                          const struct horon_error *why)
{
    struct coord_reason *reason = horon_coord_reason_keep(why);
    struct coord_forming *batch = reason ? open_batch(c) : NULL;
    if (!batch) {
        horon_free(reason);
        return NULL;
    }
    batch->failed = true;
    batch->reason = reason;
    return batch;
}

/* @return must the tensor fail? */
static bool one_fails(const struct horon_coordinator *c, uint32_t index, struct horon_error *why)
{
    if (c->entries[index].failed) {
        horon_coord_failure(c, index, why);
        return true;
    }
    return c->joined_count > 0 && horon_coord_needs_joined(c, index, why);
}

/* Likewise of a group, because of the first that must. */
static bool group_fails(const struct horon_coordinator *c, const struct coord_group *group,
                        struct horon_error *why)
{
    struct horon_error of_one;
    if (group->failed == 0 && c->joined_count == 0)
        return false;
    uint32_t culprit = group->first;
    while (culprit != COORD_NONE && !one_fails(c, culprit, &of_one))
        culprit = c->cold[culprit].group_next;
    if (culprit == COORD_NONE)
        return false;
    horon_error_set(why, of_one.status, "group of %u: %.1000s", group->size, of_one.text);
    why->blame = of_one.blame;
    return true;
}

/* All members of a group that are ready (that is: all, or the group is split) fail together. */
static horon_status_t fail_group(struct horon_coordinator *c, const struct coord_group *group,
                                 const struct horon_error *why)
{
    struct coord_forming *batch = open_failing(c, why);
    for (uint32_t i = group->first; batch && i != COORD_NONE; i = c->cold[i].group_next) {
        if (batch->cost + item_cost(c, i, batch->last_id) > COORD_RECORD_BYTES_MAX)
            batch = open_failing(c, why);
        if (batch)
            append(c, batch, i, 0, item_cost(c, i, batch->last_id));
    }
    return batch ? HORON_OK : HORON_ERR_MEMORY;
}

static horon_status_t fail_one(struct horon_coordinator *c, uint32_t index,
                               const struct horon_error *why)
{
    struct coord_forming *batch = open_failing(c, why);
    if (!batch)
        return HORON_ERR_MEMORY;
    append(c, batch, index, 0, item_cost(c, index, COORD_NONE));
    return HORON_OK;
}

static horon_status_t form(struct horon_coordinator *c)
{
    horon_status_t status = HORON_OK;
    struct horon_error why;
    for (uint32_t i = 0; i < c->whole_count && !status; i++) {
        uint32_t index = c->whole[i];
        struct coord_entry *entry = &c->entries[index];
        entry->queued = false;
        if (entry->state != COORD_WHOLE || entry->placed)
            continue; /* taken back meanwhile, or failed with its group */
        const struct coord_group *group =
            entry->group == COORD_NONE ? NULL : &c->groups[entry->group];
        if (group && !horon_coord_group_decidable(group))
            continue; /* a member was taken back: the next one to come enqueues all again */
        if (group && group_fails(c, group, &why))
            status = fail_group(c, group, &why);
        else if (!group && one_fails(c, index, &why))
            status = fail_one(c, index, &why);
        else
            status = place(c, index);
    }
    c->whole_count = 0;
    return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Gives ids to the batch's new names, and writes which ids are evicted for that. */
static void plan_ids(struct horon_coordinator *c, const struct coord_forming *batch,
                     struct horon_writer *out, uint32_t *next_id)
{
    for (uint32_t i = batch->first; i != COORD_NONE; i = c->entries[i].next) {
        struct coord_entry *entry = &c->entries[i];
        entry->plan = entry->id;
        if (entry->id != COORD_NONE || batch->failed)
            continue;
        uint32_t victim;
        entry->plan = horon_coord_cache_plan(c, &victim);
        if (victim == COORD_NONE)
            continue;
        horon_write_u8(out, COORD_ITEM_EVICT);
        horon_coord_write_id(out, next_id, victim);
    }
}

static uint32_t write_run(const struct horon_coordinator *c, uint32_t first, bool failed,
                          struct horon_writer *out, uint32_t *next_id)
{
    uint32_t count = 1, id = c->entries[first].id, i = c->entries[first].next;
    while (i != COORD_NONE && c->entries[i].id == id + count &&
           (failed || c->entries[i].as_agreed)) {
        count++;
        i = c->entries[i].next;
    }
    horon_write_u8(out, COORD_ITEM_RUN);
    horon_coord_write_id(out, next_id, id);
    horon_write_varint(out, count);
    *next_id = id + count;
    return i;
}

static void write_items(const struct horon_coordinator *c, const struct coord_forming *batch,
                        struct horon_writer *out, uint32_t *next_id)
{
    uint32_t i = batch->first;
    while (i != COORD_NONE) {
        const struct coord_entry *entry = &c->entries[i];
        if (entry->id != COORD_NONE && (batch->failed || entry->as_agreed)) {
            i = write_run(c, i, batch->failed, out, next_id);
            continue;
        }
        bool gets_id = !batch->failed && entry->plan != COORD_NONE;
        horon_write_u8(out, gets_id ? COORD_ITEM_NEW : COORD_ITEM_NAME);
        if (gets_id)
            horon_coord_write_id(out, next_id, entry->plan);
        horon_write_string(out, c->cold[i].name);
        if (c->joined_count > 0 && !batch->failed)
            horon_coord_signature_write(out, horon_coord_base(c, i));
        i = entry->next;
    }
    horon_write_u8(out, COORD_ITEM_END);
}

/* The list is walked before applying the record, which ends the rounds that it links. */
static void touch_ids(struct horon_coordinator *c, const struct coord_forming *batch)
{
    for (uint32_t i = batch->first; i != COORD_NONE; i = c->entries[i].next) {
        c->entries[i].placed = false;
        if (c->entries[i].plan != COORD_NONE)
            horon_coord_cache_touch(c, c->entries[i].plan);
    }
}

static void write_reason(struct horon_writer *out, const struct coord_reason *reason)
{
    struct horon_error why;
    horon_error_set(&why, HORON_ERR_MISMATCH, "%s", reason->text);
    why.blame = reason->blame;
    horon_error_write(out, &why);
}

static horon_status_t send_batch(struct horon_coordinator *c, const struct coord_forming *batch)
{
    struct horon_writer out = horon_writer_over(c->scratch, COORD_RECORD_BYTES_MAX);
    uint32_t next_id = 0;
    horon_write_u8(&out, COORD_DOWN_BATCH);
    horon_write_varint(&out, c->sequence);
    horon_write_u8(&out, batch->failed);
    if (batch->failed)
        write_reason(&out, batch->reason);
    plan_ids(c, batch, &out, &next_id);
    write_items(c, batch, &out, &next_id);
    assert(out.ok);
    touch_ids(c, batch);
    struct horon_reader in = horon_reader_over(c->scratch, out.used);
    (void)horon_read_u8(&in);
    horon_status_t status = horon_coord_apply(c, &in, NULL);
    assert(status != HORON_ERR_PROTO);
    return status;
}

/** On the root: decides all that is ready. @return OK | ERR_MEMORY, the coordinator is of no use
 * any more */
horon_status_t horon_coord_decide(struct horon_coordinator *c)
{
    horon_status_t status = c->whole_count > 0 ? form(c) : HORON_OK;
    for (size_t i = 0; i < c->forming_count; i++) {
        if (!status)
            status = send_batch(c, &c->forming[i]);
        horon_free(c->forming[i].reason);
    }
    c->forming_count = 0;
    if (!status)
        status = horon_coord_withdraw_broken_groups(c);
    return status;
}
