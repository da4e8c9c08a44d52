/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that have joined: they have no more data, until all ranks have joined, and what the others
 * submit is decided without them.
 *
 * A rank joins when nothing that it submitted is pending. It says so to its parent, and each rank
 * on the way passes that on: so the root learns of each rank once. The root says it to all, as one
 * of its decisions; what is decided afterwards is decided without that rank, and all see the same.
 * The decision about the last rank ends the join: then no rank has joined, as before.
 *
 * A seat counts as having every tensor once all of its ranks have joined. Its ranks have nothing
 * pending, so no tensor is ever reported from there before the join is over. A rank between two
 * others in the tree may have joined while ranks below have not: then its own seat counts, and it
 * goes on reporting for the others.
 *
 * A rank that has joined applies every decision. It may never have heard of a name, so while ranks
 * have joined, the signature goes with each name that is decided; what has a small number is
 * known to all.
 */
#include "internal.h"

#include "reduce/reduce.h"

/* All at once are as before when the last one is known: end_join(). */
static void move(struct horon_coordinator *c, int rank, enum coord_join_state to)
{
    static const unsigned legal[] = {[COORD_JOIN_NOT] =
                                         1u << COORD_JOIN_TOLD | 1u << COORD_JOIN_KNOWN,
                                     [COORD_JOIN_TOLD] = 1u << COORD_JOIN_KNOWN,
                                     [COORD_JOIN_KNOWN] = 0};
    assert(legal[c->joined[rank]] & 1u << to);
    c->joined[rank] = (uint8_t)to;
}

/* ---- Seats ----------------------------------------------------------------------------------- */

bool horon_coord_is_covered(const struct horon_coordinator *c, uint32_t index)
{
    const uint64_t *have = &c->have[(size_t)index * c->words];
    uint32_t covered = 0;
    for (uint32_t i = 0; i < c->words; i++)
        covered += (uint32_t)__builtin_popcountll(have[i] | c->joined_seats[i]);
    return covered == c->seat_count;
}

/* All ranks of a seat have joined. @return OK | ERR_PROTO, they have something pending */
static horon_status_t cover_seat(struct horon_coordinator *c, uint32_t seat)
{
    assert(!horon_coord_seat_joined(c, seat));
    for (uint32_t i = 0; i < c->entry_used; i++)
        if (c->cold[i].name && horon_coord_seat_has(c, i, seat))
            return HORON_ERR_PROTO;
    c->joined_seats[seat / 64] |= (uint64_t)1 << (seat % 64);
    c->joined_seat_count++;
    for (uint32_t i = 0; i < c->entry_used; i++)
        if (c->cold[i].name && c->entries[i].state == COORD_GATHERING &&
            horon_coord_is_covered(c, i))
            horon_coord_become_whole(c, i);
    return HORON_OK;
}

/* ---- Up -------------------------------------------------------------------------------------- */

static struct horon_writer record_room(struct horon_coordinator *c, struct coord_outbox *outbox)
{
    return horon_coord_outbox_room(c, outbox, COORD_JOINED_BYTES_MAX);
}

/* On the root: decides that a rank has joined. */
static horon_status_t announce(struct horon_coordinator *c, int rank, uint64_t ordered)
{
    uint8_t record[COORD_JOINED_BYTES_MAX];
    struct horon_writer out = horon_writer_over(record, sizeof record);
    horon_write_u8(&out, COORD_DOWN_JOINED);
    horon_write_varint(&out, c->sequence);
    horon_write_varint(&out, (uint64_t)rank);
    horon_write_varint(&out, ordered);
    assert(out.ok);
    struct horon_reader in = horon_reader_over(record, out.used);
    (void)horon_read_u8(&in);
    return horon_coord_apply_joined(c, &in);
}

/* A rank of this one's subtree has joined, which all seats know of. */
static horon_status_t pass_on(struct horon_coordinator *c, int rank, uint64_t ordered)
{
    move(c, rank, COORD_JOIN_TOLD);
    if (c->parent < 0)
        return announce(c, rank, ordered);
    struct horon_writer out = record_room(c, &c->up);
    if (!out.ok)
        return HORON_ERR_MEMORY;
    horon_write_u8(&out, COORD_UP_JOINED);
    horon_write_varint(&out, (uint64_t)rank);
    horon_write_u8(&out, horon_coord_all_joined_below(c));
    horon_write_varint(&out, ordered);
    horon_coord_outbox_commit(&c->up, &out);
    return HORON_OK;
}

horon_status_t horon_coordinator_join(struct horon_coordinator *c, uint64_t ordered)
{
    if (c->broken)
        return c->broken;
    if (c->pending > 0 || horon_coord_seat_joined(c, 0))
        return HORON_ERR_INVALID;
    horon_status_t status = cover_seat(c, 0);
    assert(status == HORON_OK); /* nothing is pending */
    status = pass_on(c, c->rank, ordered);
    c->broken = status;
    return status;
}

/** A child says that a rank has joined. @return OK | ERR_MEMORY | ERR_PROTO */
horon_status_t horon_coord_receive_joined(struct horon_coordinator *c, uint32_t seat,
                                          struct horon_reader *in)
{
    const uint64_t rank = horon_read_varint(in);
    const uint8_t whole = horon_read_u8(in);
    const uint64_t ordered = horon_read_varint(in);
    if (!in->ok || rank >= (uint64_t)c->size || whole > 1 || c->joined[rank] ||
        (int)rank == c->rank || horon_coord_seat_joined(c, seat))
        return HORON_ERR_PROTO;
    if (whole && cover_seat(c, seat) != HORON_OK)
        return HORON_ERR_PROTO;
    return pass_on(c, (int)rank, ordered);
}

/* ---- Down ------------------------------------------------------------------------------------ */

/* All ranks have joined: all is as before the first. @return OK | ERR_PROTO, something is pending
 */
static horon_status_t end_join(struct horon_coordinator *c)
{
    for (uint32_t i = 0; i < c->entry_used; i++)
        if (c->cold[i].name && c->entries[i].state != COORD_IDLE)
            return HORON_ERR_PROTO;
    memset(c->joined_seats, 0, c->words * sizeof *c->joined_seats);
    memset(c->joined, 0, (size_t)c->size * sizeof *c->joined);
    c->joined_seat_count = 0;
    c->joined_count = 0;
    return HORON_OK;
}

/** Applies that a rank has joined, after its first byte, and forwards it.
 * @return OK | ERR_MEMORY | ERR_PROTO */
horon_status_t horon_coord_apply_joined(struct horon_coordinator *c, struct horon_reader *in)
{
    const uint8_t *record = in->bytes + in->used - 1;
    const uint64_t sequence = horon_read_varint(in);
    const uint64_t rank = horon_read_varint(in);
    const uint64_t ordered = horon_read_varint(in);
    if (!in->ok || sequence != c->sequence || rank >= (uint64_t)c->size ||
        c->joined[rank] == COORD_JOIN_KNOWN ||
        ((int)rank == c->rank && !horon_coord_seat_joined(c, 0)))
        return HORON_ERR_PROTO;
    if (horon_coord_decided_reserve(c, 1))
        return HORON_ERR_MEMORY;
    horon_coord_decided_joined(c, sequence, (int)rank, ordered);
    c->sequence++;
    move(c, (int)rank, COORD_JOIN_KNOWN);
    c->joined_count++;
    if (c->joined_count == c->size && end_join(c) != HORON_OK)
        return HORON_ERR_PROTO;
    return horon_coord_forward(c, record, (size_t)(in->bytes + in->used - record));
}

/* ---- What needs the ranks that have joined --------------------------------------------------- */

bool horon_coord_needs_joined(const struct horon_coordinator *c, uint32_t index,
                              struct horon_error *why)
{
    const struct horon_signature *base = horon_coord_base(c, index);
    const struct horon_verb_row *row = horon_verb_of(base);
    char name[96], shown[COORD_NAME_SHOWN + 1];
    uint8_t element[HORON_REDUCE_ELEMENT_BYTES_MAX];
    int first = 0;
    while (c->joined[first] != COORD_JOIN_KNOWN)
        first++;
    horon_name_show(c->cold[index].name, shown, sizeof shown);
    if (horon_verb_is_rooted(row) && base->root >= 0 && base->root < c->size &&
        c->joined[base->root] == COORD_JOIN_KNOWN) {
        first = base->root;
        horon_error_set(why, HORON_ERR_MISMATCH, "tensor '%s': its root, %s, has joined", shown,
                        horon_coord_rank_name(c, first, name));
    } else if (horon_verb_splits(row) && base->root != 0) {
        horon_error_set(why, HORON_ERR_MISMATCH,
                        "tensor '%s': %s has joined, and knows nothing of its splits", shown,
                        horon_coord_rank_name(c, first, name));
    } else if (row->joined == HORON_JOINED_NEUTRAL &&
               !horon_reduce_neutral((horon_dtype_t)base->dtype, (horon_redop_t)base->redop,
                                     base->prescale, element)) {
        horon_error_set(why, HORON_ERR_MISMATCH,
                        "tensor '%s': %s has joined, and nothing is neutral to a %s with a "
                        "prescale of %g",
                        shown, horon_coord_rank_name(c, first, name),
                        horon_redop_name((horon_redop_t)base->redop), base->prescale);
    } else {
        return false;
    }
    horon_error_blame(why, HORON_CAUSE_JOINED, first, -1);
    return true;
}
