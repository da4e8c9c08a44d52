/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One round of a name on one rank: seats contribute, take back, and the round ends with a batch.
 *
 *                    contribute           contribute (last)         flush
 *     IDLE ----------> GATHERING --------------> WHOLE ------------> REPORTED
 *      ^  <-----------            <--------------   |                   |  |
 *      |   withdraw (last)         withdraw         | root decides      |  | withdraw
 *      +--------------------------------------------+-------------------+  v
 *      |                               batch                            RECALLED
 *      +-------------------------------------------------------------------+
 *                                                    (confirmed: back to GATHERING)
 *
 * Taking back is a matter between a rank and its parent alone: before the rank has reported, it is
 * done at once; after, the parent is asked, and either confirms or a batch that crossed the
 * question comes first. A parent that finds the seat empty has sent that batch, and does not
 * answer.
 *
 * Contributions that differ from the base are kept one by one, so that a conflict is gone once a
 * side has been withdrawn.
 */
#include "internal.h"

/* Moves that are legal, as bits by the new state. */
static const uint8_t legal_moves[COORD_STATE_COUNT] = {
    [COORD_IDLE] = 1 << COORD_GATHERING,
    [COORD_GATHERING] = 1 << COORD_IDLE | 1 << COORD_WHOLE,
    [COORD_WHOLE] = 1 << COORD_IDLE | 1 << COORD_GATHERING | 1 << COORD_REPORTED,
    [COORD_REPORTED] = 1 << COORD_IDLE | 1 << COORD_RECALLED,
    [COORD_RECALLED] = 1 << COORD_IDLE | 1 << COORD_GATHERING,
};

static void move(struct coord_entry *entry, enum coord_state state)
{
    bool legal = legal_moves[entry->state] >> state & 1;
    assert(legal);
    (void)legal; /* without assertions */
    entry->state = (uint8_t)state;
}

/* ---- Dissents -------------------------------------------------------------------------------- */

static const char crowded_text[] = "ranks disagree about so many tensors that not all are told";

static void dissent_free(struct horon_coordinator *c, struct coord_dissent *dissent)
{
    c->dissent_texts -= dissent->reason != NULL;
    horon_free(dissent->reason);
    horon_free(dissent);
}

void horon_coord_dissents_free(struct horon_coordinator *c, uint32_t index)
{
    struct coord_dissent *dissent = c->cold[index].dissents;
    c->cold[index].dissents = NULL;
    while (dissent) {
        struct coord_dissent *next = dissent->next;
        dissent_free(c, dissent);
        dissent = next;
    }
}

static horon_status_t dissent_add(struct horon_coordinator *c, uint32_t index, uint32_t seat,
                                  const struct horon_signature *signature,
                                  const struct coord_failure *failure)
{
    struct coord_dissent *dissent = horon_zalloc(1, sizeof *dissent);
    if (!dissent)
        return HORON_ERR_MEMORY;
    dissent->seat = seat;
    dissent->signature = *signature;
    dissent->below = failure != NULL;
    if (failure && c->dissent_texts < COORD_DISSENT_TEXTS_MAX) {
        dissent->reason = horon_coord_reason_keep(failure->why);
        if (!dissent->reason) {
            horon_free(dissent);
            return HORON_ERR_MEMORY;
        }
        c->dissent_texts++;
    }
    struct coord_dissent **last = &c->cold[index].dissents;
    while (*last)
        last = &(*last)->next;
    *last = dissent;
    dissent->split = failure && failure->split;
    return HORON_OK;
}

/* Sums up the dissents for the entry. */
static void weigh(struct horon_coordinator *c, uint32_t index)
{
    struct coord_entry *entry = &c->entries[index];
    const struct horon_signature *base = horon_coord_base(c, index);
    entry->failed = false;
    entry->split = false;
    for (const struct coord_dissent *dissent = c->cold[index].dissents; dissent;
         dissent = dissent->next) {
        entry->failed = true;
        if (dissent->split || dissent->signature.group_hash != base->group_hash ||
            dissent->signature.group_size != base->group_size)
            entry->split = true;
    }
}

/* Removes the dissents that @p gone says. */
static void dissents_filter(struct horon_coordinator *c, uint32_t index,
                            bool (*gone)(const struct coord_dissent *dissent, const void *arg),
                            const void *arg)
{
    struct coord_dissent **link = &c->cold[index].dissents;
    while (*link) {
        struct coord_dissent *dissent = *link;
        if (gone(dissent, arg)) {
            *link = dissent->next;
            dissent_free(c, dissent);
        } else {
            link = &dissent->next;
        }
    }
}

static bool is_of_seat(const struct coord_dissent *dissent, const void *seat)
{
    return dissent->seat == *(const uint32_t *)seat;
}

static bool agrees_with(const struct coord_dissent *dissent, const void *signature)
{
    return !dissent->below && horon_signature_equal(&dissent->signature, signature);
}

/* When nobody is left on the base's side, the first dissent becomes the base. */
static void rebase(struct horon_coordinator *c, uint32_t index)
{
    struct coord_entry *entry = &c->entries[index];
    struct coord_cold *cold = &c->cold[index];
    uint32_t agreeing = c->seat_count - entry->missing;
    for (const struct coord_dissent *dissent = cold->dissents; dissent; dissent = dissent->next)
        agreeing--;
    if (agreeing > 0 || !cold->dissents)
        return;
    cold->fresh = cold->dissents->signature;
    entry->as_agreed = entry->version && horon_signature_equal(&cold->fresh, &cold->agreed);
    dissents_filter(c, index, agrees_with, &cold->fresh);
}

static bool seat_dissents(const struct coord_cold *cold, uint32_t seat)
{
    const struct coord_dissent *dissent = cold->dissents;
    while (dissent && dissent->seat != seat)
        dissent = dissent->next;
    return dissent;
}

static void conflict(const struct horon_coordinator *c, uint32_t index,
                     const struct coord_dissent *dissent, struct horon_error *why)
{
    const struct coord_cold *cold = &c->cold[index];
    uint32_t witness = 0;
    while (!horon_coord_seat_has(c, index, witness) || seat_dissents(cold, witness)) {
        witness++;
        assert(witness < c->seat_count); /* rebase() leaves one on the base's side */
    }
    int rank_a = c->seats[witness].rank, rank_b = c->seats[dissent->seat].rank;
    const struct horon_signature *a = horon_coord_base(c, index), *b = &dissent->signature;
    char who_a[96], who_b[96];
    horon_cause_t cause;
    char *text = why->text;
    horon_coord_rank_name(c, rank_a, who_a);
    horon_coord_rank_name(c, rank_b, who_b);
    if (rank_a < rank_b)
        cause = horon_coord_conflict(text, sizeof why->text, cold->name, who_a, a, who_b, b);
    else
        cause = horon_coord_conflict(text, sizeof why->text, cold->name, who_b, b, who_a, a);
    why->status = HORON_ERR_MISMATCH;
    horon_error_blame_both(why, cause, rank_a, rank_b);
}

/** Why a failed entry fails. What was found further down goes first: it is closer to the cause. */
void horon_coord_failure(const struct horon_coordinator *c, uint32_t index, struct horon_error *why)
{
    const struct coord_dissent *first = c->cold[index].dissents;
    for (const struct coord_dissent *dissent = first; dissent; dissent = dissent->next) {
        if (!dissent->below)
            continue;
        const struct coord_reason *reason = dissent->reason;
        horon_error_set(why, HORON_ERR_MISMATCH, "%s", reason ? reason->text : crowded_text);
        if (reason)
            why->blame = reason->blame;
        return;
    }
    conflict(c, index, first, why);
}

/* ---- Contributions --------------------------------------------------------------------------- */

static uint64_t *word_of(const struct horon_coordinator *c, uint64_t *sets, uint32_t index,
                         uint32_t seat)
{
    return &sets[(size_t)index * c->words + seat / 64];
}

/** Puts an entry where the next flush finds it. */
void horon_coord_enqueue(struct horon_coordinator *c, uint32_t index)
{
    if (c->entries[index].queued)
        return;
    c->entries[index].queued = true;
    c->whole[c->whole_count++] = index;
    assert(c->whole_count <= c->entry_capacity);
}

/** All that do not lack it have it. */
void horon_coord_become_whole(struct horon_coordinator *c, uint32_t index)
{
    struct coord_entry *entry = &c->entries[index];
    move(entry, COORD_WHOLE);
    if (c->parent < 0 && (entry->as_agreed ? entry->grouped : c->cold[index].fresh.group_size > 0))
        horon_coord_group_join(c, index);
    else
        horon_coord_enqueue(c, index);
}

/* Compares with the base, or makes it; all that may fail. Apart from its caller, since a step of
 * known tensors needs none of it. */
__attribute__((noinline)) static horon_status_t judge(struct horon_coordinator *c, uint32_t index,
                                                      uint32_t seat,
                                                      const struct horon_signature *signature,
                                                      const struct coord_failure *failure)
{
    struct coord_entry *entry = &c->entries[index];
    struct coord_cold *cold = &c->cold[index];
    const struct horon_signature *given = signature ? signature : &cold->agreed;
    bool begins = entry->state == COORD_IDLE;
    bool dissents =
        failure || (!begins && !horon_signature_equal(given, horon_coord_base(c, index)));
    if (dissents && dissent_add(c, index, seat, given, failure))
        return HORON_ERR_MEMORY;
    if (begins) {
        entry->as_agreed = !signature;
        if (signature)
            cold->fresh = *signature;
    }
    if (dissents)
        weigh(c, index);
    return HORON_OK;
}

/**
 * A seat that does not have the tensor now has it.
 * @param signature what it said, or NULL: what is agreed
 * @param failure why it failed further down, or NULL
 * @return OK | ERR_MEMORY, nothing changed
 */
horon_status_t horon_coord_contribute(struct horon_coordinator *c, uint32_t index, uint32_t seat,
                                      const struct horon_signature *signature,
                                      const struct coord_failure *failure)
{
    struct coord_entry *entry = &c->entries[index];
    assert(entry->state == COORD_IDLE || entry->state == COORD_GATHERING);
    if (signature || failure || (entry->state != COORD_IDLE && !entry->as_agreed)) {
        horon_status_t status = judge(c, index, seat, signature, failure);
        if (status)
            return status;
    } else {
        entry->as_agreed = true;
    }
    if (entry->state == COORD_IDLE)
        move(entry, COORD_GATHERING);
    if (entry->asked_about)
        horon_coord_inquiry_end(c, index); /* what was said is out of date */
    *word_of(c, c->have, index, seat) |= (uint64_t)1 << (seat % 64);
    if (--entry->missing == 0 ||
        (entry->missing <= c->joined_seat_count && horon_coord_is_covered(c, index)))
        horon_coord_become_whole(c, index);
    return HORON_OK;
}

void horon_coord_reported(struct horon_coordinator *c, uint32_t index)
{
    move(&c->entries[index], COORD_REPORTED);
}

/* ---- Taking back ----------------------------------------------------------------------------- */

/* Tells the seat that its contribution is void. */
static horon_status_t confirm(struct horon_coordinator *c, uint32_t index, uint32_t seat)
{
    struct coord_entry *entry = &c->entries[index];
    struct coord_cold *cold = &c->cold[index];
    if (seat > 0) {
        struct horon_writer out =
            horon_coord_outbox_room(c, &c->seats[seat].out, cold->name_bytes + 16);
        if (!out.ok)
            return HORON_ERR_MEMORY;
        horon_write_u8(&out, COORD_DOWN_WITHDRAWN);
        horon_write_string(&out, cold->name);
        horon_coord_outbox_commit(&c->seats[seat].out, &out);
        return HORON_OK;
    }
    horon_coord_decided_add(c, HORON_SEQUENCE_LOCAL,
                            cold->reason ? HORON_ERR_MISMATCH : HORON_ERR_CANCELLED, cold->reason);
    horon_coord_decided_token(c, entry->token);
    cold->reason = NULL;
    entry->own = false;
    c->pending--;
    return HORON_OK;
}

static void clear_seat(struct horon_coordinator *c, uint32_t index, uint32_t seat)
{
    struct coord_entry *entry = &c->entries[index];
    *word_of(c, c->have, index, seat) &= ~((uint64_t)1 << (seat % 64));
    entry->missing++;
    if (entry->failed) {
        dissents_filter(c, index, is_of_seat, &seat);
        rebase(c, index);
        weigh(c, index);
    }
}

static void settle(struct horon_coordinator *c, uint32_t index)
{
    if (c->entries[index].missing < c->seat_count)
        return;
    horon_coord_inquiry_end(c, index);
    move(&c->entries[index], COORD_IDLE);
    horon_coord_entry_release(c, index);
}

/** A seat that has the tensor takes it back. @return OK | ERR_MEMORY (never for seat 0) */
horon_status_t horon_coord_withdraw(struct horon_coordinator *c, uint32_t index, uint32_t seat)
{
    struct coord_entry *entry = &c->entries[index];
    assert(horon_coord_seat_has(c, index, seat));
    if (entry->state == COORD_WHOLE) {
        if (entry->group != COORD_NONE)
            horon_coord_group_leave(c, index);
        move(entry, COORD_GATHERING);
    }
    clear_seat(c, index, seat);
    if (entry->state == COORD_GATHERING) {
        horon_status_t status = confirm(c, index, seat);
        settle(c, index);
        return status;
    }
    if (entry->state == COORD_REPORTED) {
        move(entry, COORD_RECALLED);
        c->recalls[c->recall_count++] = index;
    }
    *word_of(c, c->asked, index, seat) |= (uint64_t)1 << (seat % 64);
    return HORON_OK;
}

/** The parent has forgotten the tensor, as it was asked to. @return OK | ERR_MEMORY */
horon_status_t horon_coord_withdrawn(struct horon_coordinator *c, uint32_t index)
{
    horon_status_t status = HORON_OK;
    move(&c->entries[index], COORD_GATHERING);
    for (uint32_t seat = 0; seat < c->seat_count; seat++) {
        uint64_t *word = word_of(c, c->asked, index, seat), bit = (uint64_t)1 << (seat % 64);
        if (!(*word & bit))
            continue;
        *word &= ~bit;
        horon_status_t confirmed = confirm(c, index, seat);
        if (confirmed)
            status = confirmed;
    }
    settle(c, index);
    return status;
}

/** A batch has the tensor: everything about this round is forgotten. */
void horon_coord_round_end(struct horon_coordinator *c, uint32_t index)
{
    struct coord_entry *entry = &c->entries[index];
    if (entry->group != COORD_NONE)
        horon_coord_group_leave(c, index);
    if (entry->state == COORD_RECALLED) {
        memset(&c->asked[(size_t)index * c->words], 0, c->words * sizeof *c->asked);
        horon_free(c->cold[index].reason);
        c->cold[index].reason = NULL;
    }
    move(entry, COORD_IDLE);
    if (entry->asked_about)
        horon_coord_inquiry_end(c, index);
    if (entry->failed) {
        horon_coord_dissents_free(c, index);
        entry->failed = false;
        entry->split = false;
    }
    c->have[(size_t)index * c->words] = 0;
    for (uint32_t i = 1; i < c->words; i++)
        c->have[(size_t)index * c->words + i] = 0;
    entry->missing = c->seat_count;
    if (entry->own) {
        entry->own = false;
        c->pending--;
    }
    if (entry->id == COORD_NONE)
        horon_coord_entry_release(c, index);
}
