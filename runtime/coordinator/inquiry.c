/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who lacks a tensor, for the text of a timeout. A question goes up to the first rank that is
 * itself waiting, from there down to the children that have not reported, and every rank that finds
 * out that it lacks the tensor says so to who asked. Answers are kept with the entry until its
 * round ends or somebody contributes. They are words for people: lost or late ones do no harm, so
 * what does not fit the round any more is dropped.
 */
#include "internal.h"

/* Ranks that are told by name; more would not fit a text. */
#define LACKING_MAX 8

struct coord_inquiry {
    bool parent_asks;
    uint32_t lacking_count;
    int lacking[LACKING_MAX];
    uint64_t asking[]; /* [words]: seats that ask */
};

static struct coord_inquiry *open_inquiry(struct horon_coordinator *c, uint32_t index)
{
    struct coord_cold *cold = &c->cold[index];
    if (!cold->inquiry)
        cold->inquiry = horon_zalloc(1, sizeof *cold->inquiry + c->words * sizeof(uint64_t));
    if (cold->inquiry) {
        cold->inquiry->lacking_count = 0;
        c->entries[index].asked_about = true;
    }
    return cold->inquiry;
}

void horon_coord_inquiry_end(struct horon_coordinator *c, uint32_t index)
{
    horon_free(c->cold[index].inquiry);
    c->cold[index].inquiry = NULL;
    c->entries[index].asked_about = false;
}

const int *horon_coord_inquiry_lacking(const struct horon_coordinator *c, uint32_t index,
                                       uint32_t *count_out)
{
    const struct coord_inquiry *inquiry = c->cold[index].inquiry;
    *count_out = inquiry ? inquiry->lacking_count : 0;
    return inquiry ? inquiry->lacking : NULL;
}

/* ---- Saying ---------------------------------------------------------------------------------- */

/* @param rank -1: a record without one */
static horon_status_t send(struct horon_coordinator *c, struct coord_outbox *outbox, uint8_t record,
                           const char *name, int rank)
{
    struct horon_writer out = horon_coord_outbox_room(c, outbox, strlen(name) + 16);
    if (!out.ok)
        return HORON_ERR_MEMORY;
    horon_write_u8(&out, record);
    horon_write_string(&out, name);
    if (rank >= 0)
        horon_write_varint(&out, (uint64_t)rank);
    horon_coord_outbox_commit(outbox, &out);
    return HORON_OK;
}

/* Keeps the ranks in order. */
static bool is_news(struct coord_inquiry *inquiry, int rank)
{
    uint32_t place = 0;
    while (place < inquiry->lacking_count && inquiry->lacking[place] < rank)
        place++;
    if (inquiry->lacking_count == LACKING_MAX ||
        (place < inquiry->lacking_count && inquiry->lacking[place] == rank))
        return false;
    memmove(&inquiry->lacking[place + 1], &inquiry->lacking[place],
            (inquiry->lacking_count - place) * sizeof inquiry->lacking[0]);
    inquiry->lacking[place] = rank;
    inquiry->lacking_count++;
    return true;
}

/* A rank lacks the tensor: remembers it and tells who asks. */
static horon_status_t tell(struct horon_coordinator *c, uint32_t index, int rank)
{
    struct coord_inquiry *inquiry = c->cold[index].inquiry;
    const char *name = c->cold[index].name;
    if (!inquiry || !is_news(inquiry, rank))
        return HORON_OK;
    horon_status_t status = HORON_OK;
    if (inquiry->parent_asks)
        status = send(c, &c->up, COORD_UP_LACKS, name, rank);
    for (uint32_t seat = 1; seat < c->seat_count && !status; seat++)
        if (inquiry->asking[seat / 64] >> (seat % 64) & 1)
            status = send(c, &c->seats[seat].out, COORD_DOWN_LACKS, name, rank);
    return status;
}

/* Passes the question on to where the answer is. */
static horon_status_t spread(struct horon_coordinator *c, uint32_t index)
{
    const char *name = c->cold[index].name;
    uint8_t state = c->entries[index].state;
    if (state == COORD_REPORTED || state == COORD_RECALLED)
        return send(c, &c->up, COORD_UP_ASK, name, -1);
    if (state != COORD_GATHERING)
        return HORON_OK;
    horon_status_t status = HORON_OK;
    if (!horon_coord_seat_has(c, index, 0))
        status = tell(c, index, c->rank);
    uint32_t asked = 0;
    for (uint32_t seat = 1; seat < c->seat_count && asked < LACKING_MAX && !status; seat++) {
        if (horon_coord_seat_has(c, index, seat))
            continue;
        status = send(c, &c->seats[seat].out, COORD_DOWN_ASK, name, -1);
        asked++;
    }
    return status;
}

/** This rank wants to know. @return OK | ERR_MEMORY */
horon_status_t horon_coord_inquire(struct horon_coordinator *c, uint32_t index)
{
    if (!open_inquiry(c, index))
        return HORON_ERR_MEMORY;
    return spread(c, index);
}

/* ---- Hearing: the name was read and is not empty --------------------------------------------- */

static uint32_t find(const struct horon_coordinator *c, const char *name)
{
    size_t bytes = strlen(name);
    return horon_coord_entry_find(c, name, bytes, horon_coord_name_hash(name, bytes));
}

/** A child asks. @return OK | ERR_MEMORY */
horon_status_t horon_coord_asked_by_child(struct horon_coordinator *c, uint32_t seat,
                                          const char *name)
{
    uint32_t index = find(c, name);
    if (index == COORD_NONE || !horon_coord_seat_has(c, index, seat))
        return HORON_OK; /* crossed the batch that has it */
    struct coord_inquiry *inquiry = open_inquiry(c, index);
    if (!inquiry)
        return HORON_ERR_MEMORY;
    inquiry->asking[seat / 64] |= (uint64_t)1 << (seat % 64);
    return spread(c, index);
}

/** The parent asks. @return OK | ERR_MEMORY */
horon_status_t horon_coord_asked_by_parent(struct horon_coordinator *c, const char *name)
{
    uint32_t index = find(c, name);
    if (index == COORD_NONE || c->entries[index].state == COORD_IDLE)
        return send(c, &c->up, COORD_UP_LACKS, name, c->rank); /* and so do all below */
    if (c->entries[index].state != COORD_GATHERING)
        return HORON_OK; /* crossed our report */
    struct coord_inquiry *inquiry = open_inquiry(c, index);
    if (!inquiry)
        return HORON_ERR_MEMORY;
    inquiry->parent_asks = true;
    return spread(c, index);
}

/** A neighbour says that @p rank lacks it. @return OK | ERR_MEMORY */
horon_status_t horon_coord_told(struct horon_coordinator *c, const char *name, int rank)
{
    uint32_t index = find(c, name);
    return index == COORD_NONE ? HORON_OK : tell(c, index, rank);
}
