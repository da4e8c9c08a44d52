/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks lack a tensor, for the text of a timeout. A question goes up to the first rank that
 * is itself waiting, from there down to the children that have not reported, and every rank that
 * finds out that it lacks the tensor says so to the one that asked, with a name that it waits for
 * instead. A child that is asked counts as awaited until it says that it has the tensor: one that
 * was stopped never says anything. Answers are kept with the entry until its round ends or somebody
 * contributes. They are words for people: lost or late ones do no harm, so what does not fit the
 * round any more is dropped.
 */
#include "internal.h"

/* Ranks that are told by name; more would not fit a text. */
#define AWAITED_MAX 8

struct coord_inquiry {
    bool own, parent_asks; /* does this rank ask, does its parent? Seats are below */
    uint32_t awaited_count;
    struct coord_answer awaited[AWAITED_MAX]; /* by rank */
    uint64_t asking[];                        /* [words]: seats that ask */
};

static struct coord_inquiry *open_inquiry(struct horon_coordinator *c, uint32_t index)
{
    struct coord_cold *cold = &c->cold[index];
    assert(index < c->entry_used);
    assert(c->entries[index].asked_about == (cold->inquiry != NULL));
    if (!cold->inquiry)
        cold->inquiry = horon_zalloc(1, sizeof *cold->inquiry + c->words * sizeof(uint64_t));
    if (cold->inquiry) {
        cold->inquiry->awaited_count = 0;
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

const struct coord_answer *horon_coord_inquiry_awaited(const struct horon_coordinator *c,
                                                       uint32_t index, uint32_t *count_out)
{
    const struct coord_inquiry *inquiry = c->cold[index].inquiry;
    *count_out = inquiry ? inquiry->awaited_count : 0;
    return inquiry ? inquiry->awaited : NULL;
}

bool horon_coord_read_answer(const struct horon_coordinator *c, struct horon_reader *in,
                             struct coord_answer *answer)
{
    const uint64_t rank = horon_read_varint(in);
    answer->rank = (int)rank;
    answer->state = horon_read_u8(in);
    horon_read_string(in, answer->other, sizeof answer->other);
    return in->ok && rank < (uint64_t)c->size && answer->state < COORD_ANSWER_STATE_COUNT;
}

/* ---- Saying ---------------------------------------------------------------------------------- */

static horon_status_t ask(struct horon_coordinator *c, struct coord_outbox *outbox, uint8_t record,
                          const char *name)
{
    struct horon_writer out = horon_coord_outbox_room(c, outbox, strlen(name) + 16);
    if (!out.ok)
        return HORON_ERR_MEMORY;
    horon_write_u8(&out, record);
    horon_write_string(&out, name);
    horon_coord_outbox_commit(outbox, &out);
    return HORON_OK;
}

static horon_status_t send(struct horon_coordinator *c, struct coord_outbox *outbox, uint8_t record,
                           const char *name, const struct coord_answer *answer)
{
    const size_t bytes = strlen(name) + sizeof answer->other + 32;
    struct horon_writer out = horon_coord_outbox_room(c, outbox, bytes);
    if (!out.ok)
        return HORON_ERR_MEMORY;
    horon_write_u8(&out, record);
    horon_write_string(&out, name);
    horon_write_varint(&out, (uint64_t)answer->rank);
    horon_write_u8(&out, answer->state);
    horon_write_string(&out, answer->other);
    horon_coord_outbox_commit(outbox, &out);
    return HORON_OK;
}

/* The answer of this rank; if it lacks the tensor, with the first of the others that it waits for.
 */
static struct coord_answer own_answer(const struct horon_coordinator *c,
                                      enum coord_answer_state state)
{
    struct coord_answer answer = {.rank = c->rank, .state = (uint8_t)state};
    for (uint32_t i = 0; i < c->entry_used && state == COORD_LACKS; i++) {
        if (!c->entries[i].own || c->entries[i].state == COORD_IDLE)
            continue;
        const size_t bytes = c->cold[i].name_bytes;
        memcpy(answer.other, c->cold[i].name,
               bytes < COORD_OTHER_SHOWN ? bytes : COORD_OTHER_SHOWN);
        break;
    }
    return answer;
}

/* What is known of a rank becomes more, never less. */
static void learn(struct coord_answer *known, const struct coord_answer *answer)
{
    static const unsigned legal[] = {[COORD_UNHEARD] = 1u << COORD_LACKS | 1u << COORD_HAS,
                                     [COORD_LACKS] = 1u << COORD_HAS,
                                     [COORD_HAS] = 0};
    assert(known->rank == answer->rank);
    assert(legal[known->state] & 1u << answer->state);
    *known = *answer;
}

/* Keeps the ranks in order. @return does it change anything? */
static bool is_news(struct coord_inquiry *inquiry, const struct coord_answer *answer)
{
    uint32_t place = 0;
    assert(inquiry->awaited_count <= AWAITED_MAX);
    assert(answer->state < COORD_ANSWER_STATE_COUNT);
    while (place < inquiry->awaited_count && inquiry->awaited[place].rank < answer->rank)
        place++;
    struct coord_answer *at = &inquiry->awaited[place];
    const uint32_t behind = inquiry->awaited_count - place;
    const bool known = behind > 0 && at->rank == answer->rank;
    if (known && answer->state <= at->state)
        return false;
    if (known) {
        learn(at, answer);
        if (at->state == COORD_HAS) { /* nobody waits for it */
            memmove(at, at + 1, (behind - 1) * sizeof *at);
            inquiry->awaited_count--;
        }
        return true;
    }
    if (answer->state == COORD_HAS || inquiry->awaited_count == AWAITED_MAX)
        return false;
    memmove(at + 1, at, behind * sizeof *at);
    inquiry->awaited_count++;
    *at = *answer;
    return true;
}

#define FROM_PARENT 0 /* a seat that sends nothing: this rank's own */
#define FROM_NOBODY COORD_NONE

/* Remembers an answer and passes it to every rank that asks, but not back: two neighbours that ask
 * each other would go on for ever. */
static horon_status_t pass_on(struct horon_coordinator *c, uint32_t index,
                              const struct coord_answer *answer, uint32_t from_seat)
{
    struct coord_inquiry *inquiry = c->cold[index].inquiry;
    const char *name = c->cold[index].name;
    assert(answer->rank >= 0 && answer->rank < c->size);
    assert(from_seat < c->seat_count || from_seat == FROM_NOBODY);
    if (!inquiry || !is_news(inquiry, answer))
        return HORON_OK;
    horon_status_t status = HORON_OK;
    if (inquiry->parent_asks && from_seat != FROM_PARENT)
        status = send(c, &c->up, COORD_UP_ANSWER, name, answer);
    for (uint32_t seat = 1; seat < c->seat_count && !status; seat++)
        if (seat != from_seat && inquiry->asking[seat / 64] >> (seat % 64) & 1)
            status = send(c, &c->seats[seat].out, COORD_DOWN_ANSWER, name, answer);
    return status;
}

/* Passes the question on to where the answer is. */
static horon_status_t spread(struct horon_coordinator *c, uint32_t index)
{
    const char *name = c->cold[index].name;
    uint8_t state = c->entries[index].state;
    if (state == COORD_REPORTED || state == COORD_RECALLED)
        return ask(c, &c->up, COORD_UP_ASK, name);
    if (state != COORD_GATHERING)
        return HORON_OK;
    horon_status_t status = HORON_OK;
    if (horon_coord_seat_lacks(c, index, 0)) {
        const struct coord_answer own = own_answer(c, COORD_LACKS);
        status = pass_on(c, index, &own, FROM_NOBODY);
    }
    uint32_t asked = 0;
    for (uint32_t seat = 1; seat < c->seat_count && asked < AWAITED_MAX && !status; seat++) {
        const struct coord_answer answer = {.rank = c->seats[seat].rank, .state = COORD_UNHEARD};
        if (!horon_coord_seat_lacks(c, index, seat))
            continue;
        status = pass_on(c, index, &answer, FROM_NOBODY);
        if (!status)
            status = ask(c, &c->seats[seat].out, COORD_DOWN_ASK, name);
        asked++;
    }
    return status;
}

/** This rank wants to know. @return OK | ERR_MEMORY */
horon_status_t horon_coord_inquire(struct horon_coordinator *c, uint32_t index)
{
    struct coord_inquiry *inquiry = c->cold[index].inquiry;
    const bool joins = inquiry && !inquiry->own; /* others have asked */
    if (!joins)
        inquiry = open_inquiry(c, index);
    if (!inquiry)
        return HORON_ERR_MEMORY;
    inquiry->own = true;
    return joins ? HORON_OK : spread(c, index);
}

/* ---- Hearing: the name was read and is not empty --------------------------------------------- */

static uint32_t find(const struct horon_coordinator *c, const char *name)
{
    size_t bytes = strlen(name);
    return horon_coord_entry_find(c, name, bytes, horon_name_hash(name, bytes));
}

/** A child asks. @return OK | ERR_MEMORY */
horon_status_t horon_coord_asked_by_child(struct horon_coordinator *c, uint32_t seat,
                                          const char *name)
{
    uint32_t index = find(c, name);
    assert(seat > 0 && seat < c->seat_count);
    if (index == COORD_NONE || !horon_coord_seat_has(c, index, seat))
        return HORON_OK; /* crossed the batch that has it */
    struct coord_inquiry *inquiry = c->cold[index].inquiry;
    const uint64_t bit = (uint64_t)1 << (seat % 64);
    const bool joins = inquiry && !(inquiry->asking[seat / 64] & bit);
    if (!joins)
        inquiry = open_inquiry(c, index);
    if (!inquiry)
        return HORON_ERR_MEMORY;
    inquiry->asking[seat / 64] |= bit;
    if (!joins)
        return spread(c, index);
    /* all ranks ask at about the same time: what is known is told, what comes will be */
    horon_status_t status = HORON_OK;
    for (uint32_t i = 0; i < inquiry->awaited_count && !status; i++)
        status = send(c, &c->seats[seat].out, COORD_DOWN_ANSWER, c->cold[index].name,
                      &inquiry->awaited[i]);
    return status;
}

/** The parent asks. @return OK | ERR_MEMORY */
horon_status_t horon_coord_asked_by_parent(struct horon_coordinator *c, const char *name)
{
    uint32_t index = find(c, name);
    assert(c->parent >= 0);
    const bool idle = index == COORD_NONE || c->entries[index].state == COORD_IDLE;
    if (horon_coord_all_joined_below(c))
        return HORON_OK; /* crossed our join */
    if (idle) {          /* and so it is with all below */
        const struct coord_answer own = own_answer(c, COORD_LACKS);
        return send(c, &c->up, COORD_UP_ANSWER, name, &own);
    }
    if (c->entries[index].state != COORD_GATHERING)
        return HORON_OK; /* crossed our report */
    struct coord_inquiry *inquiry = open_inquiry(c, index);
    if (!inquiry)
        return HORON_ERR_MEMORY;
    inquiry->parent_asks = true;
    horon_status_t status = HORON_OK;
    if (!horon_coord_seat_lacks(c, index, 0)) {
        const struct coord_answer own = own_answer(c, COORD_HAS);
        status = send(c, &c->up, COORD_UP_ANSWER, name, &own);
    }
    return status ? status : spread(c, index);
}

/** A child, or the parent (@p seat 0), answers for a rank. @return OK | ERR_MEMORY */
horon_status_t horon_coord_answered(struct horon_coordinator *c, uint32_t seat, const char *name,
                                    const struct coord_answer *answer)
{
    uint32_t index = find(c, name);
    return index == COORD_NONE ? HORON_OK : pass_on(c, index, answer, seat);
}
