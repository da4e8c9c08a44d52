/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to one peer. Records are appended to the open message; a record that would make it
 * longer than a message may be opens the next one; a flush seals. The caller takes sealed ones,
 * oldest first.
 */
#include "internal.h"

#define LENGTH_BYTES sizeof(uint32_t)
#define HEADER_BYTES_MAX 16 /* tag and sequence */

static void put_length(struct coord_outbox *outbox)
{
    uint32_t bytes = (uint32_t)(outbox->used - outbox->open - LENGTH_BYTES);
    memcpy(outbox->bytes + outbox->open, &bytes, sizeof bytes);
}

void horon_coord_outbox_seal(struct coord_outbox *outbox)
{
    if (outbox->used == outbox->open)
        return;
    put_length(outbox);
    outbox->open = outbox->used;
}

static void open_message(struct horon_coordinator *c, struct coord_outbox *outbox)
{
    struct horon_writer out =
        horon_writer_over(outbox->bytes + outbox->used + LENGTH_BYTES, HEADER_BYTES_MAX);
    if (outbox == &c->up) {
        horon_write_u8(&out, COORD_TAG_UP);
        horon_write_varint(&out, c->sequence);
    } else {
        horon_write_u8(&out, COORD_TAG_DOWN);
    }
    outbox->used += LENGTH_BYTES + out.used;
}

/**
 * Opens a place for a record of at most @p record_bytes; commit it with
 * horon_coord_outbox_commit().
 * @return a writer; not ok: out of memory
 */
struct horon_writer horon_coord_outbox_room(struct horon_coordinator *c,
                                            struct coord_outbox *outbox, size_t record_bytes)
{
    assert(record_bytes <= COORD_RECORD_BYTES_MAX);
    if (outbox->taken == outbox->used)
        outbox->taken = outbox->used = outbox->open = 0;
    if (outbox->used - outbox->open + record_bytes >
        HORON_COORDINATOR_MESSAGE_BYTES_MAX + LENGTH_BYTES)
        horon_coord_outbox_seal(outbox);
    if (horon_coord_reserve(&outbox->bytes, &outbox->capacity,
                            outbox->used + LENGTH_BYTES + HEADER_BYTES_MAX + record_bytes, 1))
        return (struct horon_writer){.ok = false};
    if (outbox->used == outbox->open)
        open_message(c, outbox);
    return horon_writer_over(outbox->bytes + outbox->used, record_bytes);
}

void horon_coord_outbox_commit(struct coord_outbox *outbox, const struct horon_writer *record)
{
    assert(record->ok);
    outbox->used += record->used;
}

bool horon_coord_outbox_take(struct coord_outbox *outbox, const void **bytes_out,
                             size_t *byte_count_out)
{
    if (outbox->taken == outbox->open)
        return false;
    uint32_t bytes;
    memcpy(&bytes, outbox->bytes + outbox->taken, sizeof bytes);
    *bytes_out = outbox->bytes + outbox->taken + LENGTH_BYTES;
    *byte_count_out = bytes;
    outbox->taken += LENGTH_BYTES + bytes;
    return true;
}
