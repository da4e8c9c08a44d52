/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Up the tree: what became whole here, and what is taken back. Tensors that are as the cache knows
 * them travel as ranges of ids; others with their description; failed ones with the reason besides.
 * A message begins with how many batches its sender had passed, which gives the ids their meaning.
 */
#include "internal.h"

/* ---- Sending --------------------------------------------------------------------------------- */

struct id_range {
    uint32_t first, count;
    uint32_t next_id; /* what the next id is written against */
    size_t open;      /* in which message that holds */
};

static horon_status_t send_range(struct horon_coordinator *c, struct id_range *range)
{
    if (range->count == 0)
        return HORON_OK;
    struct horon_writer out = horon_coord_outbox_room(c, &c->up, 16);
    if (!out.ok)
        return HORON_ERR_MEMORY;
    if (range->open != c->up.open) { /* another message: ids start over */
        range->open = c->up.open;
        range->next_id = 0;
    }
    assert(range->count <= c->slot_capacity - range->first);
    horon_write_u8(&out, COORD_UP_READY);
    horon_coord_write_id(&out, &range->next_id, range->first);
    horon_write_varint(&out, range->count);
    range->next_id = range->first + range->count;
    range->count = 0;
    horon_coord_outbox_commit(&c->up, &out);
    return HORON_OK;
}

static horon_status_t send_in_full(struct horon_coordinator *c, uint32_t index)
{
    const struct coord_cold *cold = &c->cold[index];
    bool failed = c->entries[index].failed;
    struct horon_writer out = horon_coord_outbox_room(
        c, &c->up,
        cold->name_bytes + COORD_SIGNATURE_BYTES_MAX + (failed ? HORON_ERROR_WIRE_BYTES_MAX : 0));
    if (!out.ok)
        return HORON_ERR_MEMORY;
    horon_write_u8(&out, failed ? COORD_UP_FAILED : COORD_UP_ANNOUNCE);
    horon_write_string(&out, cold->name);
    horon_coord_signature_write(&out, horon_coord_base(c, index));
    if (failed) {
        struct horon_error why;
        horon_coord_failure(c, index, &why);
        horon_write_u8(&out, c->entries[index].split);
        horon_error_write(&out, &why);
    }
    horon_coord_outbox_commit(&c->up, &out);
    return HORON_OK;
}

static horon_status_t send_recalls(struct horon_coordinator *c)
{
    for (uint32_t i = 0; i < c->recall_count; i++) {
        uint32_t index = c->recalls[i];
        if (c->entries[index].state != COORD_RECALLED)
            continue; /* a batch came first */
        struct horon_writer out =
            horon_coord_outbox_room(c, &c->up, c->cold[index].name_bytes + 16);
        if (!out.ok)
            return HORON_ERR_MEMORY;
        horon_write_u8(&out, COORD_UP_WITHDRAW);
        horon_write_string(&out, c->cold[index].name);
        horon_coord_outbox_commit(&c->up, &out);
    }
    c->recall_count = 0;
    return HORON_OK;
}

/** Not on the root: writes all that the parent should know. @return OK | ERR_MEMORY */
horon_status_t horon_coord_report(struct horon_coordinator *c)
{
    /* A message begun before (inquiry.c) may tell of fewer batches than gave today's ids. */
    assert(c->parent >= 0);
    horon_coord_outbox_seal(&c->up);
    horon_status_t status = send_recalls(c);
    struct id_range range = {.open = SIZE_MAX};
    for (uint32_t i = 0; i < c->whole_count && !status; i++) {
        uint32_t index = c->whole[i];
        struct coord_entry *entry = &c->entries[index];
        assert(entry->queued);
        entry->queued = false;
        if (entry->state != COORD_WHOLE)
            continue; /* taken back meanwhile */
        assert(entry->missing == 0 || horon_coord_is_covered(c, index));
        horon_coord_reported(c, index);
        if (!entry->failed && entry->as_agreed && entry->id != COORD_NONE) {
            if (range.count && entry->id == range.first + range.count) {
                range.count++;
                continue;
            }
            status = send_range(c, &range);
            range.first = entry->id;
            range.count = 1;
        } else {
            status = send_range(c, &range);
            if (!status)
                status = send_in_full(c, index);
        }
    }
    c->whole_count = 0;
    if (!status)
        status = send_range(c, &range);
    return status;
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static horon_status_t refuse(const struct horon_coordinator *c, uint32_t seat,
                             struct horon_error *error, const char *why)
{
    char name[96];
    return horon_error_set(error, HORON_ERR_PROTO, "%s sent a malformed report: %s",
                           horon_coord_rank_name(c, c->seats[seat].rank, name), why);
}

static horon_status_t receive_ready(struct horon_coordinator *c, uint32_t seat, uint32_t *next_id,
                                    struct horon_reader *in, struct horon_error *error)
{
    uint32_t first = horon_coord_read_id(in, next_id, c->slot_capacity);
    uint64_t count = horon_read_varint(in);
    if (!in->ok || count == 0 || count > c->slot_capacity - first)
        return refuse(c, seat, error, "ids out of range");
    uint64_t seen = c->seats[seat].seen;
    for (uint32_t id = first; id < first + count; id++) {
        uint32_t index = horon_coord_cache_at(c, id, seen);
        if (index == COORD_NONE)
            return refuse(c, seat, error, "an id that means nothing");
        if (c->entries[index].state > COORD_GATHERING || !horon_coord_seat_lacks(c, index, seat))
            return refuse(c, seat, error, "a tensor that it has reported before");
        horon_status_t status = horon_coord_contribute(c, index, seat, NULL, NULL);
        if (status)
            return status;
    }
    *next_id = first + (uint32_t)count;
    return HORON_OK;
}

/* A name that was only peers have spoken of it is counted until its entry goes. */
static horon_status_t count_foreign(struct horon_coordinator *c, uint32_t index)
{
    struct coord_entry *entry = &c->entries[index];
    if (entry->state != COORD_IDLE || entry->id != COORD_NONE || entry->holds || entry->foreign)
        return HORON_OK;
    entry->foreign = true;
    if (++c->foreign_names <= c->foreign_names_max)
        return HORON_OK;
    horon_coord_entry_release(c, index);
    return HORON_ERR_PROTO;
}

static horon_status_t receive_in_full(struct horon_coordinator *c, uint32_t seat, bool failed,
                                      struct horon_reader *in, struct horon_error *error)
{
    char name[HORON_NAME_BYTES_MAX + 1];
    struct horon_error why;
    struct horon_signature signature;
    (void)horon_coord_read_name(in, name);
    horon_coord_signature_read(in, c->size, &signature);
    struct coord_failure failure = {.why = &why};
    if (failed) {
        failure.split = horon_read_u8(in) != 0;
        horon_error_read(in, c->size, &why);
        in->ok &= why.status == HORON_ERR_MISMATCH;
    }
    if (!in->ok)
        return refuse(c, seat, error, "a description that cannot be");
    uint32_t index;
    size_t bytes = strlen(name);
    horon_status_t status =
        horon_coord_entry_open(c, name, bytes, horon_name_hash(name, bytes), &index);
    if (status)
        return status;
    if (count_foreign(c, index))
        return refuse(c, seat, error, "too many names in flight");
    struct coord_entry *entry = &c->entries[index];
    if (entry->state > COORD_GATHERING || !horon_coord_seat_lacks(c, index, seat))
        return refuse(c, seat, error, "a tensor that it has reported before");
    bool known = !failed && entry->version && entry->state == COORD_IDLE &&
                 horon_signature_equal(&signature, &c->cold[index].agreed);
    status =
        horon_coord_contribute(c, index, seat, known ? NULL : &signature, failed ? &failure : NULL);
    if (status)
        horon_coord_entry_release(c, index);
    return status;
}

static horon_status_t receive_withdraw(struct horon_coordinator *c, uint32_t seat,
                                       struct horon_reader *in, struct horon_error *error)
{
    char name[HORON_NAME_BYTES_MAX + 1];
    if (!horon_coord_read_name(in, name))
        return refuse(c, seat, error, "a name that cannot be");
    size_t bytes = strlen(name);
    uint32_t index = horon_coord_entry_find(c, name, bytes, horon_name_hash(name, bytes));
    if (index == COORD_NONE || !horon_coord_seat_has(c, index, seat))
        return HORON_OK; /* crossed the batch that has it */
    return horon_coord_withdraw(c, index, seat);
}

static horon_status_t receive_inquiry(struct horon_coordinator *c, uint32_t seat, bool asks,
                                      struct horon_reader *in, struct horon_error *error)
{
    char name[HORON_NAME_BYTES_MAX + 1];
    struct coord_answer answer;
    if (!horon_coord_read_name(in, name) || (!asks && !horon_coord_read_answer(c, in, &answer)))
        return refuse(c, seat, error, "a name or rank that cannot be");
    return asks ? horon_coord_asked_by_child(c, seat, name)
                : horon_coord_answered(c, seat, name, &answer);
}

static horon_status_t receive_joined(struct horon_coordinator *c, uint32_t seat,
                                     struct horon_reader *in, struct horon_error *error)
{
    const horon_status_t status = horon_coord_receive_joined(c, seat, in);
    return status == HORON_ERR_PROTO ? refuse(c, seat, error, "a join that cannot be") : status;
}

/** Reads a whole message of a child. @return OK | ERR_MEMORY | ERR_PROTO: the job must fail */
horon_status_t horon_coord_receive_report(struct horon_coordinator *c, uint32_t seat,
                                          struct horon_reader *in, struct horon_error *error)
{
    assert(seat > 0 && seat < c->seat_count); /* 0 is this rank itself */
    if (horon_read_u8(in) != COORD_TAG_UP)
        return refuse(c, seat, error, "not a report");
    uint64_t seen = horon_read_varint(in);
    if (!in->ok || seen < c->seats[seat].seen || seen > c->sequence)
        return refuse(c, seat, error, "a number of batches that cannot be");
    c->seats[seat].seen = seen;
    uint32_t next_id = 0;
    horon_status_t status = HORON_OK;
    while (!status && in->used < in->limit) {
        switch (horon_read_u8(in)) {
        case COORD_UP_READY:
            status = receive_ready(c, seat, &next_id, in, error);
            break;
        case COORD_UP_ANNOUNCE:
            status = receive_in_full(c, seat, false, in, error);
            break;
        case COORD_UP_FAILED:
            status = receive_in_full(c, seat, true, in, error);
            break;
        case COORD_UP_WITHDRAW:
            status = receive_withdraw(c, seat, in, error);
            break;
        case COORD_UP_ASK:
            status = receive_inquiry(c, seat, true, in, error);
            break;
        case COORD_UP_ANSWER:
            status = receive_inquiry(c, seat, false, in, error);
            break;
        case COORD_UP_JOINED:
            status = receive_joined(c, seat, in, error);
            break;
        default:
            status = refuse(c, seat, error, "an unknown record");
        }
    }
    if (!status)
        horon_coord_cache_release(c);
    return status;
}
