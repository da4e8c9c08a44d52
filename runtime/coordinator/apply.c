/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Down the tree: batches, applied alike on every rank. The root feeds itself the very record that
 * it sends, so there is one place where ids change hands and tokens come out, and the tables cannot
 * drift. A record is forwarded to the children as it came.
 *
 * A failing batch that meets one of this rank's groups makes the rank take back the group's other
 * tensors, with the same reason.
 */
#include "internal.h"

static horon_status_t refuse(const struct horon_coordinator *c, struct horon_error *error,
                             const char *why)
{
    char name[96];
    return horon_error_set(error, HORON_ERR_PROTO, "%s sent a malformed decision: %s",
                           horon_coord_rank_name(c, c->parent < 0 ? c->rank : c->parent, name),
                           why);
}

/* ---- Groups that a failing batch met --------------------------------------------------------- */

/* @p why the batch fails */
static horon_status_t break_group(struct horon_coordinator *c, uint32_t index,
                                  const struct coord_reason *why)
{
    const struct coord_cold *cold = &c->cold[index];
    if (cold->own_group_size <= 1)
        return HORON_OK;
    for (size_t i = 0; i < c->broken_group_count; i++)
        if (c->broken_groups[i].hash == cold->own_group_hash &&
            c->broken_groups[i].size == cold->own_group_size)
            return HORON_OK;
    if (horon_coord_reserve(&c->broken_groups, &c->broken_group_capacity, c->broken_group_count + 1,
                            sizeof *c->broken_groups))
        return HORON_ERR_MEMORY;
    struct coord_reason *copy = horon_coord_reason_copy(why);
    if (!copy)
        return HORON_ERR_MEMORY;
    c->broken_groups[c->broken_group_count++] = (struct coord_broken_group){
        .hash = cold->own_group_hash, .size = cold->own_group_size, .reason = copy};
    return HORON_OK;
}

void horon_coord_broken_groups_free(struct horon_coordinator *c)
{
    for (size_t i = 0; i < c->broken_group_count; i++)
        horon_free(c->broken_groups[i].reason);
    c->broken_group_count = 0;
}

static horon_status_t withdraw_member(struct horon_coordinator *c, uint32_t index,
                                      const struct coord_reason *why)
{
    struct coord_cold *cold = &c->cold[index];
    if (!cold->reason) {
        cold->reason = horon_coord_reason_copy(why);
        if (!cold->reason)
            return HORON_ERR_MEMORY;
    }
    if (!horon_coord_seat_has(c, index, 0))
        return HORON_OK; /* it is being withdrawn */
    return horon_coord_withdraw(c, index, 0);
}

/** After a run of batches: takes back what is left of this rank's groups that failed with them.
 * @return OK | ERR_MEMORY */
horon_status_t horon_coord_withdraw_broken_groups(struct horon_coordinator *c)
{
    horon_status_t status = HORON_OK;
    for (size_t i = 0; i < c->broken_group_count; i++)
        for (uint32_t index = 0; index < c->entry_used && !status; index++) {
            const struct coord_cold *cold = &c->cold[index];
            if (cold->name && c->entries[index].own &&
                cold->own_group_size == c->broken_groups[i].size &&
                cold->own_group_hash == c->broken_groups[i].hash)
                status = withdraw_member(c, index, c->broken_groups[i].reason);
        }
    horon_coord_broken_groups_free(c);
    return status;
}

/* ---- Items; `failed` is why the batch fails, or NULL ------------------------------------------
 */

/* All of this rank's subtree has joined: nobody here knows whether others have the tensor. */
static bool is_unheard(const struct horon_coordinator *c, uint32_t index)
{
    return c->entries[index].state == COORD_IDLE && horon_coord_all_joined_below(c);
}

/* Does the tensor need this rank, which has joined? Rank 0 asks that, too. */
static bool needs_this_rank(const struct horon_coordinator *c, uint32_t index)
{
    struct horon_error why;
    return c->joined[c->rank] != COORD_JOIN_KNOWN || horon_coord_needs_joined(c, index, &why);
}

/* Of the first tensor, whose kind is kept, since its round may be over; or of one that may be of
 * another kind. */
__attribute__((noinline)) static bool compare_kind(struct horon_coordinator *c, uint32_t index,
                                                   const struct horon_signature *kind)
{
    const bool fusable = horon_verb_of(kind)->fusable;
    if (c->decided[c->decided_count - 1].count > 0)
        return fusable && horon_signature_same_kind(&c->batch_first, kind);
    c->batch_first = *kind;
    c->batch_kind = fusable && horon_coord_kind_is_known(&c->entries[index]) ? kind : NULL;
    return true;
}

/* Several tensors of a batch are of one kind that may be fused. What is made of the batch relies on
 * it, so rank 0, which decided, is not believed. */
static inline bool goes_along(struct horon_coordinator *c, uint32_t index)
{
    const struct horon_signature *kind = horon_coord_kind(c, index);
    return kind == c->batch_kind /* nearly always */ || compare_kind(c, index, kind);
}

/* As take(), where this rank has joined or the batch fails. */
HORON_SELDOM static horon_status_t take_odd(struct horon_coordinator *c, uint32_t index,
                                            bool expected, const struct coord_reason *failed,
                                            struct horon_error *error)
{
    struct coord_entry *entry = &c->entries[index];
    const struct coord_cold *cold = &c->cold[index];
    const bool joined = horon_coord_seat_joined(c, 0), unheard = is_unheard(c, index);
    assert(cold->name);
    if (!expected && !unheard)
        return refuse(c, error, "a tensor that was not reported");
    assert(entry->own != joined);
    if (entry->failed && !failed)
        return refuse(c, error, "a tensor about which ranks disagree");
    if (joined && !failed && needs_this_rank(c, index))
        return refuse(c, error, "a tensor that needs a rank which has joined");
    if (!failed && !goes_along(c, index))
        return refuse(c, error, "a batch of what cannot be fused");
    if (joined && horon_coord_decided_absent(c, cold->name, cold->name_bytes, cold->hash,
                                             failed ? NULL : horon_coord_base(c, index)))
        return HORON_ERR_MEMORY;
    if (failed && entry->own && break_group(c, index, failed))
        return HORON_ERR_MEMORY;
    if (entry->own)
        horon_coord_decided_token(c, entry->token);
    if (!unheard)
        horon_coord_round_end(c, index);
    return HORON_OK;
}

/* One tensor of the batch: its token goes to the caller, its round is over. */
static inline horon_status_t take(struct horon_coordinator *c, uint32_t index,
                                  const struct coord_reason *failed, struct horon_error *error)
{
    assert(index < c->entry_used);
    const struct coord_entry *entry = &c->entries[index];
    const bool expected =
        c->parent < 0 ? entry->state == COORD_WHOLE : entry->state >= COORD_REPORTED;
    if (!expected || !entry->own || entry->failed || failed)
        return take_odd(c, index, expected, failed, error);
    if (!goes_along(c, index))
        return refuse(c, error, "a batch of what cannot be fused");
    horon_coord_decided_token(c, entry->token);
    horon_coord_round_end(c, index);
    return HORON_OK;
}

static horon_status_t take_run(struct horon_coordinator *c, uint32_t *next_id,
                               const struct coord_reason *failed, struct horon_reader *in,
                               struct horon_error *error)
{
    uint32_t first = horon_coord_read_id(in, next_id, c->slot_capacity);
    uint64_t count = horon_read_varint(in);
    if (!in->ok || count == 0 || count > c->slot_capacity - first)
        return refuse(c, error, "ids out of range");
    for (uint32_t id = first; id < first + count; id++) {
        uint32_t index = c->slots[id].entry;
        if (index == COORD_NONE)
            return refuse(c, error, "an id that means nothing");
        if (is_unheard(c, index))
            c->entries[index].as_agreed = true;
        horon_status_t status = take(c, index, failed, error);
        if (status)
            return status;
    }
    *next_id = first + (uint32_t)count;
    return HORON_OK;
}

/* @return COORD_KINDS_MAX: it has none */
static uint8_t number_kind(struct horon_coordinator *c, const struct horon_signature *signature)
{
    uint8_t kind = 0;
    while (kind < c->kind_count && !horon_signature_same_kind(&c->kinds[kind], signature))
        kind++;
    if (kind == c->kind_count && kind < COORD_KINDS_MAX)
        c->kinds[c->kind_count++] = *signature;
    return kind;
}

static void agree(struct horon_coordinator *c, uint32_t index)
{
    struct coord_entry *entry = &c->entries[index];
    struct coord_cold *cold = &c->cold[index];
    assert(entry->id == COORD_NONE || entry->version > 0); /* what has a number was agreed before */
    if (entry->as_agreed)
        return;
    cold->agreed = cold->fresh;
    entry->version = ++c->version;
    entry->agreed_bytes = horon_signature_bytes(&cold->agreed);
    entry->grouped = cold->agreed.group_size > 0;
    entry->kind = number_kind(c, &cold->agreed);
}

static horon_status_t take_named(struct horon_coordinator *c, uint32_t id,
                                 const struct coord_reason *failed, struct horon_reader *in,
                                 struct horon_error *error)
{
    char name[HORON_NAME_BYTES_MAX + 1];
    struct horon_signature described;
    const bool joined = c->joined_count > 0 && !failed;
    (void)horon_coord_read_name(in, name);
    if (joined)
        horon_coord_signature_read(in, c->size, &described);
    size_t bytes = strlen(name);
    const uint64_t hash = horon_name_hash(name, bytes);
    uint32_t index = horon_coord_entry_find(c, name, bytes, hash);
    if (in->ok && index == COORD_NONE && horon_coord_all_joined_below(c)) {
        if (failed)
            return horon_coord_decided_absent(c, name, bytes, hash, NULL);
        if (horon_coord_entry_open(c, name, bytes, hash, &index))
            return HORON_ERR_MEMORY;
    }
    if (!in->ok || index == COORD_NONE)
        return refuse(c, error, "a name that was not reported");
    const bool unheard = is_unheard(c, index);
    if (unheard && joined) {
        c->cold[index].fresh = described;
        c->entries[index].as_agreed = false;
    }
    if (id != COORD_NONE) {
        uint32_t there = c->slots[id].entry, has = c->entries[index].id;
        if (failed || (there != COORD_NONE && there != index) || (has != COORD_NONE && has != id) ||
            c->entries[index].failed || (c->entries[index].state == COORD_IDLE && !unheard))
            return refuse(c, error, "an id that is taken");
        agree(c, index);
        horon_coord_cache_put(c, id, index);
    }
    const horon_status_t status = take(c, index, failed, error);
    if (unheard)
        horon_coord_entry_release(c, index);
    return status;
}

static horon_status_t take_items(struct horon_coordinator *c, const struct coord_reason *failed,
                                 struct horon_reader *in, struct horon_error *error)
{
    uint32_t next_id = 0, id;
    horon_status_t status = HORON_OK;
    while (!status) {
        switch (horon_read_u8(in)) {
        case COORD_ITEM_END:
            return in->ok ? HORON_OK : refuse(c, error, "a batch without an end");
        case COORD_ITEM_EVICT:
            id = horon_coord_read_id(in, &next_id, c->slot_capacity);
            if (!in->ok || c->slots[id].entry == COORD_NONE)
                return refuse(c, error, "an id that means nothing");
            status = horon_coord_cache_evict(c, id);
            break;
        case COORD_ITEM_RUN:
            status = take_run(c, &next_id, failed, in, error);
            break;
        case COORD_ITEM_NEW:
            id = horon_coord_read_id(in, &next_id, c->slot_capacity);
            if (!in->ok)
                return refuse(c, error, "ids out of range");
            status = take_named(c, id, failed, in, error);
            break;
        case COORD_ITEM_NAME:
            status = take_named(c, COORD_NONE, failed, in, error);
            break;
        default:
            status = refuse(c, error, "an unknown item");
        }
    }
    return status;
}

/* ---- Records --------------------------------------------------------------------------------- */

horon_status_t horon_coord_forward(struct horon_coordinator *c, const uint8_t *record, size_t bytes)
{
    for (uint32_t seat = 1; seat < c->seat_count; seat++) {
        struct horon_writer out = horon_coord_outbox_room(c, &c->seats[seat].out, bytes);
        if (!out.ok)
            return HORON_ERR_MEMORY;
        horon_write_bytes(&out, record, bytes);
        horon_coord_outbox_commit(&c->seats[seat].out, &out);
    }
    return HORON_OK;
}

/** Applies one batch record, after its first byte, and forwards it. @return OK | ERR_MEMORY |
 * ERR_PROTO */
horon_status_t horon_coord_apply(struct horon_coordinator *c, struct horon_reader *in,
                                 struct horon_error *error)
{
    assert(in->used > 0);
    const uint8_t *record = in->bytes + in->used - 1;
    struct horon_error why;
    struct coord_reason *kept = NULL;
    uint64_t sequence = horon_read_varint(in);
    uint8_t failed = horon_read_u8(in);
    if (failed) {
        horon_error_read(in, c->size, &why);
        in->ok &= why.status == HORON_ERR_MISMATCH;
    }
    if (!in->ok || sequence != c->sequence || failed > 1)
        return refuse(c, error, "a batch out of order");
    if (horon_coord_decided_reserve(c, 1))
        return HORON_ERR_MEMORY;
    if (failed && !(kept = horon_coord_reason_keep(&why)))
        return HORON_ERR_MEMORY;
    horon_coord_decided_add(c, sequence, failed ? HORON_ERR_MISMATCH : HORON_OK, kept);
    horon_status_t status = take_items(c, kept, in, error);
    if (!status && !failed && c->decided[c->decided_count - 1].count == 0)
        status = refuse(c, error, "a batch of nothing");
    c->sequence++;
    size_t bytes = (size_t)(in->bytes + in->used - record);
    if (!status && bytes > COORD_RECORD_BYTES_MAX)
        return refuse(c, error, "a batch that is too long");
    if (!status)
        status = horon_coord_forward(c, record, bytes);
    return status;
}

static horon_status_t receive_withdrawn(struct horon_coordinator *c, struct horon_reader *in,
                                        struct horon_error *error)
{
    char name[HORON_NAME_BYTES_MAX + 1];
    horon_read_string(in, name, sizeof name);
    size_t bytes = strlen(name);
    uint32_t index = horon_coord_entry_find(c, name, bytes, horon_name_hash(name, bytes));
    if (!in->ok || index == COORD_NONE || c->entries[index].state != COORD_RECALLED)
        return refuse(c, error, "an answer to a question that was not asked");
    return horon_coord_withdrawn(c, index);
}

static horon_status_t receive_inquiry(struct horon_coordinator *c, bool asks,
                                      struct horon_reader *in, struct horon_error *error)
{
    char name[HORON_NAME_BYTES_MAX + 1];
    struct coord_answer answer;
    if (!horon_coord_read_name(in, name) || (!asks && !horon_coord_read_answer(c, in, &answer)))
        return refuse(c, error, "a name or rank that cannot be");
    return asks ? horon_coord_asked_by_parent(c, name) : horon_coord_answered(c, 0, name, &answer);
}

static horon_status_t receive_joined(struct horon_coordinator *c, struct horon_reader *in,
                                     struct horon_error *error)
{
    const horon_status_t status = horon_coord_apply_joined(c, in);
    return status == HORON_ERR_PROTO ? refuse(c, error, "a join that cannot be") : status;
}

/** Reads a whole message of the parent. @return OK | ERR_MEMORY | ERR_PROTO: the job must fail */
horon_status_t horon_coord_receive_decisions(struct horon_coordinator *c, struct horon_reader *in,
                                             struct horon_error *error)
{
    if (horon_read_u8(in) != COORD_TAG_DOWN)
        return refuse(c, error, "not a decision");
    horon_status_t status = HORON_OK;
    while (!status && in->used < in->limit) {
        switch (horon_read_u8(in)) {
        case COORD_DOWN_BATCH:
            status = horon_coord_apply(c, in, error);
            break;
        case COORD_DOWN_WITHDRAWN:
            status = receive_withdrawn(c, in, error);
            break;
        case COORD_DOWN_ASK:
            status = receive_inquiry(c, true, in, error);
            break;
        case COORD_DOWN_ANSWER:
            status = receive_inquiry(c, false, in, error);
            break;
        case COORD_DOWN_JOINED:
            status = receive_joined(c, in, error);
            break;
        default:
            status = refuse(c, error, "an unknown record");
        }
    }
    if (!status && c->broken_group_count > 0)
        status = horon_coord_withdraw_broken_groups(c);
    return status;
}
