/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds transfers and records by id. All items of one operation (channel, sequence) share a bucket,
 * so that what the two sides say about the operation can be compared whatever the tags are. Of
 * operations few items are in flight at a time; but messages may be any number, so there are as
 * many buckets as there were ever items at a time.
 */
#include "link/mux_table.h"

#include "alloc.h"

#include <assert.h>
#include <string.h>

static uint64_t mix(uint32_t channel, uint64_t sequence)
{
    return (sequence + ((uint64_t)channel << 40)) * 0x9e3779b97f4a7c15u;
}

struct horon_mux_bucket *horon_mux_bucket_of(const struct horon_mux_table *table, uint32_t channel,
                                             uint64_t sequence)
{
    return &table->buckets[mix(channel, sequence) >> (64 - table->bits)];
}

static struct horon_mux_bucket *bucket_of(const struct horon_mux_table *table,
                                          const struct horon_transfer_id *id)
{
    return horon_mux_bucket_of(table, id->channel, id->sequence);
}

static bool same_operation(const struct horon_transfer_id *a, const struct horon_transfer_id *b)
{
    return a->sequence == b->sequence && a->channel == b->channel;
}

static bool id_equal(const struct horon_transfer_id *a, const struct horon_transfer_id *b)
{
    return a->tag == b->tag && same_operation(a, b);
}

struct horon_transfer *horon_mux_find_transfer(const struct horon_mux_table *table,
                                               enum horon_mux_posted kind,
                                               const struct horon_transfer_id *id)
{
    struct horon_transfer *item = bucket_of(table, id)->posted[kind];
    while (item && !id_equal(&item->id, id))
        item = item->next;
    return item;
}

struct horon_mux_record *horon_mux_find_record(const struct horon_mux_table *table,
                                               enum horon_mux_came kind,
                                               const struct horon_transfer_id *id)
{
    struct horon_mux_record *item = bucket_of(table, id)->came[kind];
    while (item && !id_equal(&item->id, id))
        item = item->next;
    return item;
}

static void link_transfer(struct horon_mux_table *table, int kind, struct horon_transfer *transfer)
{
    struct horon_transfer **chain = &bucket_of(table, &transfer->id)->posted[kind];
    transfer->next = *chain;
    *chain = transfer;
}

static void link_record(struct horon_mux_table *table, int kind, struct horon_mux_record *record)
{
    struct horon_mux_record **chain = &bucket_of(table, &record->id)->came[kind];
    record->next = *chain;
    *chain = record;
}

static void move_bucket(struct horon_mux_table *table, const struct horon_mux_bucket *from)
{
    for (int kind = 0; kind < HORON_MUX_POSTED_COUNT; kind++)
        for (struct horon_transfer *item = from->posted[kind], *next; item; item = next) {
            next = item->next;
            link_transfer(table, kind, item);
        }
    for (int kind = 0; kind < HORON_MUX_CAME_COUNT; kind++)
        for (struct horon_mux_record *item = from->came[kind], *next; item; item = next) {
            next = item->next;
            link_record(table, kind, item);
        }
}

/* Before something is added. */
static void make_room(struct horon_mux_table *table)
{
    struct horon_mux_bucket *before = table->buckets;
    const size_t count = horon_mux_bucket_count(table);
    if (table->count++ < count || table->bits == HORON_MUX_BITS_MAX)
        return;
    struct horon_mux_bucket *buckets = horon_zalloc(2 * count, sizeof *buckets);
    if (!buckets)
        return;
    table->buckets = buckets;
    table->bits++;
    for (size_t i = 0; i < count; i++)
        move_bucket(table, &before[i]);
    horon_free(before);
}

void horon_mux_insert_transfer(struct horon_mux_table *table, enum horon_mux_posted kind,
                               struct horon_transfer *transfer)
{
    assert(!horon_mux_find_transfer(table, kind, &transfer->id)); /* one of each id is in flight */
    make_room(table);
    link_transfer(table, (int)kind, transfer);
}

void horon_mux_insert_record(struct horon_mux_table *table, enum horon_mux_came kind,
                             struct horon_mux_record *record)
{
    assert(!horon_mux_find_record(table, kind, &record->id));
    make_room(table);
    link_record(table, (int)kind, record);
}

void horon_mux_remove_transfer(struct horon_mux_table *table, enum horon_mux_posted kind,
                               const struct horon_transfer *transfer)
{
    struct horon_transfer **link = &bucket_of(table, &transfer->id)->posted[kind];
    while (*link && *link != transfer)
        link = &(*link)->next;
    assert(*link); /* it was inserted, and once */
    *link = transfer->next;
    table->count--;
}

void horon_mux_remove_record(struct horon_mux_table *table, enum horon_mux_came kind,
                             const struct horon_mux_record *record)
{
    struct horon_mux_record **link = &bucket_of(table, &record->id)->came[kind];
    while (*link && *link != record)
        link = &(*link)->next;
    assert(*link);
    *link = record->next;
    table->count--;
}

void horon_mux_mark_mismatch(struct horon_transfer *transfer, uint64_t their_check,
                             uint64_t their_bytes)
{
    if (transfer->status)
        return; /* the first difference is the one to tell */
    transfer->status = HORON_ERR_MISMATCH;
    transfer->their_check = their_check;
    transfer->their_bytes = their_bytes;
    if (transfer->ends)
        transfer->ends->differs = true;
}

void horon_mux_set_done(struct horon_transfer *transfer)
{
    assert(!transfer->done);
    transfer->done = true;
    if (transfer->ends)
        horon_mux_queue_push(&transfer->ends->done, transfer);
}

void horon_mux_ends_init(struct horon_mux_ends *ends)
{
    horon_mux_queue_init(&ends->done);
    ends->differs = false;
}

struct horon_transfer *horon_mux_ends_take(struct horon_mux_ends *ends)
{
    return horon_mux_queue_pop(&ends->done);
}

static void compare_chain(struct horon_transfer *item, const struct horon_transfer_id *id,
                          uint64_t check, uint64_t bytes)
{
    for (; item; item = item->next) {
        if (item->check != check && same_operation(&item->id, id))
            horon_mux_mark_mismatch(item, check, bytes);
    }
}

void horon_mux_compare_posted(const struct horon_mux_table *table,
                              const struct horon_transfer_id *id, uint64_t check, uint64_t bytes)
{
    const struct horon_mux_bucket *bucket = bucket_of(table, id);
    for (int kind = 0; kind < HORON_MUX_POSTED_COUNT; kind++)
        compare_chain(bucket->posted[kind], id, check, bytes);
}

static const struct horon_mux_record *conflict_in(const struct horon_mux_record *item,
                                                  const struct horon_transfer_id *id,
                                                  uint64_t check)
{
    while (item && (item->check == check || !same_operation(&item->id, id)))
        item = item->next;
    return item;
}

const struct horon_mux_record *horon_mux_find_conflict(const struct horon_mux_table *table,
                                                       const struct horon_transfer_id *id,
                                                       uint64_t check)
{
    const struct horon_mux_bucket *bucket = bucket_of(table, id);
    const struct horon_mux_record *found = conflict_in(bucket->came[HORON_MUX_ARRIVALS], id, check);
    return found ? found : conflict_in(bucket->came[HORON_MUX_CREDITS], id, check);
}

static struct horon_mux_record *make_record(size_t capacity_bytes)
{
    struct horon_mux_record *record = NULL;
    if (capacity_bytes <= SIZE_MAX - sizeof *record)
        record = horon_alloc(sizeof *record + capacity_bytes);
    if (record)
        record->capacity_bytes = capacity_bytes;
    return record;
}

bool horon_mux_table_init(struct horon_mux_table *table)
{
    assert(!table->spare);
    table->bits = HORON_MUX_BITS_MIN;
    table->buckets = horon_zalloc(horon_mux_bucket_count(table), sizeof *table->buckets);
    if (!table->buckets)
        return false;
    for (int i = 0; i < HORON_MUX_FIRST_RECORDS; i++) {
        struct horon_mux_record *record = make_record(HORON_MUX_FIRST_RECORD_BYTES);
        if (!record)
            return false;
        horon_mux_record_release(table, record);
    }
    return true;
}

struct horon_mux_record *horon_mux_record_take(struct horon_mux_table *table, size_t bytes)
{
    struct horon_mux_record **link = &table->spare;
    while (*link && (*link)->capacity_bytes < bytes)
        link = &(*link)->next;
    struct horon_mux_record *record = *link;
    assert((table->spare_count == 0) == (table->spare == NULL));
    if (record) {
        *link = record->next;
        table->spare_count--;
    } else
        record = make_record(bytes > HORON_MUX_FIRST_RECORD_BYTES ? bytes
                                                                  : HORON_MUX_FIRST_RECORD_BYTES);
    if (!record)
        return NULL;
    const size_t capacity = record->capacity_bytes;
    memset(record, 0, sizeof *record);
    record->capacity_bytes = capacity;
    return record;
}

void horon_mux_record_release(struct horon_mux_table *table, struct horon_mux_record *record)
{
    if (!record)
        return;
    if (table->spare_count == HORON_MUX_SPARE_RECORDS_MAX ||
        record->capacity_bytes > HORON_MUX_SPARE_RECORD_BYTES_MAX) {
        horon_free(record);
        return;
    }
    record->next = table->spare;
    table->spare = record;
    table->spare_count++;
}

static size_t ring_of(uint32_t channel, uint64_t sequence)
{
    return (size_t)(mix(channel, sequence) >> 32) % HORON_MUX_FORGOTTEN_RINGS;
}

bool horon_mux_is_forgotten(const struct horon_mux_table *table, const struct horon_transfer_id *id)
{
    const struct horon_mux_forgotten *forgotten =
        &table->forgotten[ring_of(id->channel, id->sequence)];
    const size_t count =
        forgotten->count < forgotten->room ? (size_t)forgotten->count : forgotten->room;
    for (size_t i = 0; i < count; i++) {
        if (forgotten->ring[i].sequence == id->sequence &&
            forgotten->ring[i].channel == id->channel)
            return true;
    }
    return false;
}

bool horon_mux_note_forgotten(struct horon_mux_table *table, uint32_t channel, uint64_t sequence)
{
    struct horon_mux_forgotten *forgotten = &table->forgotten[ring_of(channel, sequence)];
    if (forgotten->count == forgotten->room && forgotten->room < HORON_MUX_FORGOTTEN_MAX) {
        const size_t room = forgotten->room ? 2 * forgotten->room : HORON_MUX_FORGOTTEN_MIN;
        void *ring = horon_realloc(forgotten->ring, room * sizeof *forgotten->ring);
        if (!ring)
            return false;
        forgotten->ring = ring;
        forgotten->room = room;
    }
    const size_t index = (size_t)(forgotten->count % forgotten->room);
    forgotten->ring[index].channel = channel;
    forgotten->ring[index].sequence = sequence;
    forgotten->count++;
    return true;
}

static void free_chain(struct horon_mux_record *record)
{
    while (record) {
        struct horon_mux_record *next = record->next;
        horon_free(record);
        record = next;
    }
}

void horon_mux_table_deinit(struct horon_mux_table *table)
{
    for (size_t i = 0; table->buckets && i < horon_mux_bucket_count(table); i++)
        for (int kind = 0; kind < HORON_MUX_CAME_COUNT; kind++)
            free_chain(table->buckets[i].came[kind]);
    horon_free(table->buckets);
    free_chain(table->spare);
    for (size_t i = 0; i < HORON_MUX_FORGOTTEN_RINGS; i++)
        horon_free(table->forgotten[i].ring);
}

void horon_mux_queue_init(struct horon_mux_queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

void horon_mux_queue_push(struct horon_mux_queue *queue, struct horon_transfer *transfer)
{
    assert(!*queue->last);
    transfer->queued_next = NULL;
    *queue->last = transfer;
    queue->last = &transfer->queued_next;
}

struct horon_transfer *horon_mux_queue_pop(struct horon_mux_queue *queue)
{
    struct horon_transfer *first = queue->first;
    if (first) {
        queue->first = first->queued_next;
        if (!queue->first)
            queue->last = &queue->first;
    }
    return first;
}

void horon_mux_queue_remove(struct horon_mux_queue *queue, struct horon_transfer *transfer)
{
    struct horon_transfer **link = &queue->first;
    while (*link && *link != transfer)
        link = &(*link)->queued_next;
    if (!*link)
        return;
    *link = transfer->queued_next;
    if (queue->last == &transfer->queued_next)
        queue->last = link;
}
