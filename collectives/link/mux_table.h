/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a mux looks up and queues: transfers that were posted here, records of what the peer did
 * before that, operations whose last frames still come. Nothing here sends or receives.
 */
#ifndef HORON_LINK_MUX_TABLE_H
#define HORON_LINK_MUX_TABLE_H

#include "link/mux.h"

/* What the peer did before we posted, or a control message on its way: the one kind of memory the
 * mux takes while running. Ended records are kept for the next. */
struct horon_mux_record {
    struct horon_mux_record *next;
    struct horon_transfer_id id;
    uint64_t check, bytes;      /* as the peer said them */
    size_t got_bytes;           /* in data */
    size_t capacity_bytes;      /* of data */
    bool wanted;                /* arrival: the peer asked for credit and sends nothing before it */
    struct horon_mux_loan loan; /* arrival that is wanted: where it lies; else, at 0 */
    _Alignas(16) uint8_t data[];
};

/* Records kept for reuse; a record above the size is given back to the heap. */
#define HORON_MUX_SPARE_RECORDS_MAX 16
#define HORON_MUX_SPARE_RECORD_BYTES_MAX ((size_t)64 << 10)
/* Made with the table, so that a steady cycle allocates nothing: the peer decides how many are in
 * use at a time. Names that are known travel in so many bytes, mostly. */
#define HORON_MUX_FIRST_RECORDS 4
#define HORON_MUX_FIRST_RECORD_BYTES ((size_t)512)

#define HORON_MUX_BITS_MIN 6 /* of the number of a bucket */
#define HORON_MUX_BITS_MAX 20
/* Operations that ended in an error and whose last frames may still come, in one of so many rings.
 * One that was forgotten many failures ago has none: the peer has long given it up, too, and a link
 * keeps order. Those whose frames may come were in flight together; all rings have room for twice
 * as many as may be. */
#define HORON_MUX_FORGOTTEN_RINGS 64
#define HORON_MUX_FORGOTTEN_MAX 4096
#define HORON_MUX_FORGOTTEN_MIN 16

struct horon_mux_forgotten {
    struct {
        uint32_t channel;
        uint64_t sequence;
    } * ring; /* [room] NULL until something was forgotten */
    size_t room;
    uint64_t count; /* ever noted */
};

/* What the table holds: transfers that were posted and are not done, */
enum horon_mux_posted { HORON_MUX_SENDS, HORON_MUX_RECVS, HORON_MUX_POSTED_COUNT };
/* and what came before its post: data or WANT, and CREDIT. */
enum horon_mux_came { HORON_MUX_ARRIVALS, HORON_MUX_CREDITS, HORON_MUX_CAME_COUNT };

/* All of an operation is in one. */
struct horon_mux_bucket {
    struct horon_transfer *posted[HORON_MUX_POSTED_COUNT];
    struct horon_mux_record *came[HORON_MUX_CAME_COUNT];
};

struct horon_mux_table {
    struct horon_mux_bucket *buckets; /* [1 << bits] */
    int bits;                         /* more with what is in flight, and never fewer */
    size_t count;                     /* of all that is in them */
    struct horon_mux_record *spare;
    int spare_count;
    struct horon_mux_forgotten forgotten[HORON_MUX_FORGOTTEN_RINGS];
};

/* Of one that is all zero. False: no memory; deinit frees what there is. */
bool horon_mux_table_init(struct horon_mux_table *table);
void horon_mux_table_deinit(struct horon_mux_table *table);

static inline size_t horon_mux_bucket_count(const struct horon_mux_table *table)
{
    return (size_t)1 << table->bits;
}
/* Until something is inserted. */
struct horon_mux_bucket *horon_mux_bucket_of(const struct horon_mux_table *table, uint32_t channel,
                                             uint64_t sequence);
/* Find gives NULL if there is none of that id; one of an id may be inserted, and what is removed
 * must be there. Without memory for more buckets the chains get longer. */
struct horon_transfer *horon_mux_find_transfer(const struct horon_mux_table *table,
                                               enum horon_mux_posted kind,
                                               const struct horon_transfer_id *id);
void horon_mux_insert_transfer(struct horon_mux_table *table, enum horon_mux_posted kind,
                               struct horon_transfer *transfer);
void horon_mux_remove_transfer(struct horon_mux_table *table, enum horon_mux_posted kind,
                               const struct horon_transfer *transfer);
struct horon_mux_record *horon_mux_find_record(const struct horon_mux_table *table,
                                               enum horon_mux_came kind,
                                               const struct horon_transfer_id *id);
void horon_mux_insert_record(struct horon_mux_table *table, enum horon_mux_came kind,
                             struct horon_mux_record *record);
void horon_mux_remove_record(struct horon_mux_table *table, enum horon_mux_came kind,
                             const struct horon_mux_record *record);
/* Marks what is posted for the operation as mismatched if its check is another. */
void horon_mux_compare_posted(const struct horon_mux_table *table,
                              const struct horon_transfer_id *id, uint64_t check, uint64_t bytes);
/* A record of the operation with another check, or NULL. */
const struct horon_mux_record *horon_mux_find_conflict(const struct horon_mux_table *table,
                                                       const struct horon_transfer_id *id,
                                                       uint64_t check);
/* It is done, and in no table or queue any more. */
void horon_mux_set_done(struct horon_transfer *transfer);
void horon_mux_mark_mismatch(struct horon_transfer *transfer, uint64_t their_check,
                             uint64_t their_bytes);

/* A record for `bytes` bytes; everything but capacity is 0. NULL: no memory. */
struct horon_mux_record *horon_mux_record_take(struct horon_mux_table *table, size_t bytes);
/* NULL is a no-op. */
void horon_mux_record_release(struct horon_mux_table *table, struct horon_mux_record *record);

bool horon_mux_is_forgotten(const struct horon_mux_table *table,
                            const struct horon_transfer_id *id);
/* False: no memory. */
bool horon_mux_note_forgotten(struct horon_mux_table *table, uint32_t channel, uint64_t sequence);

void horon_mux_queue_init(struct horon_mux_queue *queue);
void horon_mux_queue_push(struct horon_mux_queue *queue, struct horon_transfer *transfer);
struct horon_transfer *horon_mux_queue_pop(struct horon_mux_queue *queue);
void horon_mux_queue_remove(struct horon_mux_queue *queue, struct horon_transfer *transfer);

#endif
