/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between neighbours: a tag, to the parent also how many batches the sender had passed,
 * and records. Records and ids are little; names and texts as codec.h writes
 * them, signatures as signature.h does.
 */
#ifndef HORON_COORDINATOR_WIRE_H
#define HORON_COORDINATOR_WIRE_H

#include "codec.h"
#include "coordinator/coordinator.h"

/* A record of a message at most; what a message's header may take is left of the whole. */
#define COORD_RECORD_BYTES_MAX (HORON_COORDINATOR_MESSAGE_BYTES_MAX - 64)

/* Ids are written as the zigzag difference to the last one + 1. */
enum coord_up_record {
    COORD_UP_READY = 1, /* id, count: that many ids from id on */
    COORD_UP_ANNOUNCE,  /* name, description */
    COORD_UP_FAILED,    /* name, description, split, error */
    COORD_UP_WITHDRAW,  /* name */
    COORD_UP_ASK,       /* name */
    COORD_UP_ANSWER,    /* name, rank, its state, a name that it waits for instead, or "" */
    COORD_UP_JOINED,    /* rank, has all of the sender's subtree joined, in-order operations done */
};
enum coord_down_record {
    COORD_DOWN_BATCH = 1, /* sequence, failed, [error,] items */
    COORD_DOWN_WITHDRAWN, /* name */
    COORD_DOWN_ASK,       /* name */
    COORD_DOWN_ANSWER,    /* as COORD_UP_ANSWER */
    COORD_DOWN_JOINED,    /* sequence, rank, in-order operations that it has done */
};
enum coord_item {
    COORD_ITEM_END,
    COORD_ITEM_EVICT, /* id; before all others */
    COORD_ITEM_RUN,   /* id, count */
    COORD_ITEM_NEW,   /* id, name: from now on it has this id */
    COORD_ITEM_NAME,  /* name */
};
/* While ranks have joined, and unless the batch fails, a name of an item is followed by its
 * description: those ranks may never have heard of it. */

/* A whole COORD_UP_JOINED or COORD_DOWN_JOINED, at most. */
#define COORD_JOINED_BYTES_MAX 48

#define COORD_TAG_UP 0xa5   /* first byte of a message to the parent; then: batches passed */
#define COORD_TAG_DOWN 0x5a /* first byte of a message to a child */

static inline void horon_coord_write_id(struct horon_writer *out, uint32_t *next, uint32_t id)
{
    int64_t step = (int64_t)id - (int64_t)*next;
    horon_write_varint(out, ((uint64_t)step << 1) ^ (uint64_t)(step >> 63));
    *next = id + 1;
}

/** @return an id below @p limit; else the reader fails. */
static inline uint32_t horon_coord_read_id(struct horon_reader *in, uint32_t *next, uint32_t limit)
{
    uint64_t raw = horon_read_varint(in);
    int64_t id = (int64_t)*next + (int64_t)((raw >> 1) ^ (0 - (raw & 1)));
    if (!in->ok || raw > UINT32_MAX * (uint64_t)2 || id < 0 || id >= (int64_t)limit) {
        in->ok = false;
        return 0;
    }
    *next = (uint32_t)id + 1;
    return (uint32_t)id;
}

#endif
