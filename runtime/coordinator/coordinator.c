/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator's calls: what a rank submits and takes back, messages in and out. The protocol
 * lives in round.c (one tensor), report.c (up the tree), apply.c (down), decide.c (the root's
 * choice).
 *
 * A peer's nonsense or a failed allocation while a message is handled ends the coordinator: what it
 * knows may be half of what it should be, so it does nothing any more and keeps saying why.
 */
#include "internal.h"

/* ---- Life ------------------------------------------------------------------------------------ */

static horon_status_t init_seats(struct horon_coordinator *c,
                                 const struct horon_coordinator_options *options)
{
    c->seat_count = 1 + (uint32_t)options->child_count;
    c->words = (c->seat_count + 63) / 64;
    c->seats = horon_zalloc(c->seat_count, sizeof *c->seats);
    c->seat_of = horon_alloc((size_t)options->size * sizeof *c->seat_of);
    c->joined_seats = horon_zalloc(c->words, sizeof *c->joined_seats);
    c->joined = horon_zalloc((size_t)options->size, sizeof *c->joined);
    if (!c->seats || !c->seat_of || !c->joined_seats || !c->joined)
        return HORON_ERR_MEMORY;
    for (int i = 0; i < options->size; i++)
        c->seat_of[i] = COORD_NONE;
    c->seats[0].rank = options->rank;
    for (uint32_t seat = 1; seat < c->seat_count; seat++) {
        int child = options->children[seat - 1];
        if (child < 0 || child >= options->size || child == options->rank ||
            child == options->parent || c->seat_of[child] != COORD_NONE)
            return HORON_ERR_INVALID;
        c->seats[seat].rank = child;
        c->seat_of[child] = seat;
    }
    return HORON_OK;
}

static horon_status_t init(struct horon_coordinator *c,
                           const struct horon_coordinator_options *options)
{
    if (options->size < 1 || options->rank < 0 || options->rank >= options->size ||
        options->parent < -1 || options->parent >= options->size ||
        options->parent == options->rank || options->child_count < 0 ||
        options->child_count >= options->size)
        return HORON_ERR_INVALID;
    c->rank = options->rank;
    c->size = options->size;
    c->parent = options->parent;
    c->fusion_bytes = options->fusion_bytes;
    c->rank_names = options->rank_names;
    c->foreign_names_max = COORD_FOREIGN_NAMES_MAX + options->cache_entries;
    c->entry_free = COORD_NONE;
    c->group_free = COORD_NONE;
    c->handle_free = COORD_NONE;
    horon_status_t status = init_seats(c, options);
    if (!status)
        status = horon_coord_cache_init(c, options->cache_entries);
    if (!status && c->parent < 0) {
        c->scratch = horon_alloc(COORD_RECORD_BYTES_MAX);
        if (!c->scratch)
            status = HORON_ERR_MEMORY;
    }
    return status;
}

horon_status_t horon_coordinator_create(const struct horon_coordinator_options *options,
                                        struct horon_coordinator **coordinator_out)
{
    struct horon_coordinator *c = horon_zalloc(1, sizeof *c);
    if (!c)
        return HORON_ERR_MEMORY;
    horon_status_t status = init(c, options);
    if (status)
        horon_coordinator_destroy(c);
    else
        *coordinator_out = c;
    return status;
}

void horon_coordinator_destroy(struct horon_coordinator *c)
{
    if (!c)
        return;
    for (uint32_t seat = 0; c->seats && seat < c->seat_count; seat++)
        horon_free(c->seats[seat].out.bytes);
    for (size_t i = 0; i < c->decided_count; i++) {
        horon_free(c->decided[i].reason);
        horon_free(c->decided[i].absent);
    }
    horon_coord_table_deinit(c);
    horon_free(c->seats);
    horon_free(c->seat_of);
    horon_free(c->joined_seats);
    horon_free(c->joined);
    horon_free(c->up.bytes);
    horon_free(c->handles);
    horon_free(c->slots);
    horon_free(c->retired);
    horon_free(c->forming);
    horon_free(c->scratch);
    horon_free(c->decided);
    horon_free(c->tokens);
    horon_free(c->taken_reason);
    horon_free(c->taken_absent);
    horon_coord_broken_groups_free(c);
    horon_free(c->broken_groups);
    horon_free(c);
}

/* ---- This rank's tensors --------------------------------------------------------------------- */

/* @param signature NULL: what is agreed */
static horon_status_t submit(struct horon_coordinator *c, uint32_t index,
                             const struct horon_signature *signature, uint64_t token)
{
    struct coord_entry *entry = &c->entries[index];
    if (entry->own)
        return HORON_ERR_DUPLICATE;
    if (horon_coord_seat_joined(c, 0))
        return HORON_ERR_INVALID;
    if (horon_coord_decided_reserve(c, 1) || horon_coord_contribute(c, index, 0, signature, NULL))
        return HORON_ERR_MEMORY;
    entry->own = true;
    entry->token = token;
    c->pending++;
    return HORON_OK;
}

static horon_status_t open_entry(struct horon_coordinator *c, const struct horon_operation *op,
                                 uint32_t *index_out)
{
    assert(op->name_bytes > 0);
    assert(op->name_bytes <= HORON_NAME_BYTES_MAX);
    return horon_coord_entry_open(c, op->name, op->name_bytes, op->name_hash, index_out);
}

horon_status_t horon_coordinator_submit(struct horon_coordinator *c,
                                        const struct horon_operation *op, uint64_t token)
{
    uint32_t index;
    if (c->broken)
        return c->broken;
    if (open_entry(c, op, &index))
        return HORON_ERR_MEMORY;
    struct coord_cold *cold = &c->cold[index];
    bool known = c->entries[index].version && horon_signature_equal(&op->agreed, &cold->agreed);
    horon_status_t status = submit(c, index, known ? NULL : &op->agreed, token);
    if (status) {
        horon_coord_entry_release(c, index);
        return status;
    }
    cold->own_group_hash = op->agreed.group_hash;
    cold->own_group_size = op->agreed.group_size;
    c->entries[index].own_grouped = op->agreed.group_size > 0;
    return HORON_OK;
}

horon_status_t horon_coordinator_submit_handle(struct horon_coordinator *c, uint32_t number,
                                               uint64_t token)
{
    if (c->broken)
        return c->broken;
    if (number >= c->handle_used || c->handles[number].entry == COORD_NONE)
        return HORON_ERR_INVALID;
    struct coord_handle *handle = &c->handles[number];
    uint32_t index = handle->entry;
    struct coord_entry *entry = &c->entries[index];
    if (handle->version != entry->version &&
        horon_signature_equal(&handle->signature, &c->cold[index].agreed))
        handle->version = entry->version;
    bool known = entry->version && handle->version == entry->version;
    horon_status_t status = submit(c, index, known ? NULL : &handle->signature, token);
    if (status)
        return status;
    if (handle->grouped || entry->own_grouped) {
        c->cold[index].own_group_hash = handle->signature.group_hash;
        c->cold[index].own_group_size = handle->signature.group_size;
        entry->own_grouped = handle->grouped;
    }
    return HORON_OK;
}

horon_status_t horon_coordinator_intern(struct horon_coordinator *c,
                                        const struct horon_operation *op, uint32_t *handle_out)
{
    uint32_t index;
    if (c->handle_used == COORD_NONE ||
        horon_coord_reserve(&c->handles, &c->handle_capacity, (size_t)c->handle_used + 1,
                            sizeof *c->handles) ||
        open_entry(c, op, &index))
        return HORON_ERR_MEMORY;
    uint32_t number = c->handle_free;
    if (number == COORD_NONE)
        number = c->handle_used++;
    else
        c->handle_free = c->handles[number].next_free;
    c->handles[number] = (struct coord_handle){
        .signature = op->agreed, .grouped = op->agreed.group_size > 0, .entry = index};
    c->entries[index].holds++;
    *handle_out = number;
    return HORON_OK;
}

void horon_coordinator_drop(struct horon_coordinator *c, uint32_t number)
{
    if (number >= c->handle_used || c->handles[number].entry == COORD_NONE)
        return;
    struct coord_handle *handle = &c->handles[number];
    uint32_t index = handle->entry;
    handle->entry = COORD_NONE;
    handle->next_free = c->handle_free;
    c->handle_free = number;
    c->entries[index].holds--;
    horon_coord_entry_release(c, index);
}

/* Tokens are usually asked for in the order in which they were submitted: go on where the last
 * search ended. */
uint32_t horon_coord_find_token(const struct horon_coordinator *c, uint64_t token)
{
    for (uint32_t i = 0; i < c->entry_used; i++) {
        uint32_t index = (c->search + i) % c->entry_used;
        const struct coord_entry *entry = &c->entries[index];
        if (entry->own && entry->token == token && c->cold[index].name)
            return index;
    }
    return COORD_NONE;
}

void horon_coordinator_cancel(struct horon_coordinator *c, uint64_t token)
{
    uint32_t index = horon_coord_find_token(c, token);
    if (c->broken || index == COORD_NONE)
        return;
    c->search = index;
    if (!horon_coord_seat_has(c, index, 0))
        return; /* asked before */
    horon_status_t status = horon_coord_withdraw(c, index, 0);
    assert(status == HORON_OK); /* room for the token was made when it was submitted */
    (void)status;               /* the wheel is built without assertions */
}

void horon_coordinator_ask(struct horon_coordinator *c, uint64_t token)
{
    uint32_t index = horon_coord_find_token(c, token);
    if (!c->broken && index != COORD_NONE)
        (void)horon_coord_inquire(
            c, index); /* without memory nothing is learned: explain() says less */
}

size_t horon_coordinator_pending(const struct horon_coordinator *c)
{
    return c->pending + horon_coord_seat_joined(c, 0);
}

uint64_t horon_coordinator_decisions(const struct horon_coordinator *c)
{
    return c->sequence;
}

/* ---- Messages -------------------------------------------------------------------------------- */

static horon_status_t no_memory(struct horon_error *error)
{
    return horon_error_set(error, HORON_ERR_MEMORY, "out of memory while negotiating");
}

horon_status_t horon_coordinator_receive(struct horon_coordinator *c, int from, const void *bytes,
                                         size_t byte_count, struct horon_error *error)
{
    if (c->broken)
        return horon_error_set(error, c->broken, "the negotiation has failed before");
    struct horon_reader in = horon_reader_over(bytes, byte_count);
    uint32_t seat = from >= 0 && from < c->size ? c->seat_of[from] : COORD_NONE;
    horon_status_t status;
    if (byte_count > HORON_COORDINATOR_MESSAGE_BYTES_MAX)
        status = horon_error_set(error, HORON_ERR_PROTO, "rank %d sent a message of %zu bytes",
                                 from, byte_count);
    else if (seat != COORD_NONE)
        status = horon_coord_receive_report(c, seat, &in, error);
    else if (from >= 0 && from == c->parent)
        status = horon_coord_receive_decisions(c, &in, error);
    else
        status = horon_error_set(error, HORON_ERR_PROTO,
                                 "rank %d is neither parent nor child of rank %d", from, c->rank);
    if (status == HORON_ERR_MEMORY)
        no_memory(error);
    c->broken = status;
    return status;
}

horon_status_t horon_coordinator_flush(struct horon_coordinator *c, bool decide)
{
    if (c->broken)
        return c->broken;
    horon_status_t status = HORON_OK;
    if (c->parent >= 0)
        status = horon_coord_report(c);
    else if (decide)
        status = horon_coord_decide(c);
    if (!status) {
        horon_coord_outbox_seal(&c->up);
        for (uint32_t seat = 1; seat < c->seat_count; seat++)
            horon_coord_outbox_seal(&c->seats[seat].out);
    }
    c->broken = status;
    return status;
}

bool horon_coordinator_next_message(struct horon_coordinator *c, int *to_out,
                                    const void **bytes_out, size_t *byte_count_out)
{
    for (; c->next_out < c->seat_count; c->next_out++) {
        struct coord_outbox *outbox = c->next_out == 0 ? &c->up : &c->seats[c->next_out].out;
        if (!horon_coord_outbox_take(outbox, bytes_out, byte_count_out))
            continue;
        *to_out = c->next_out == 0 ? c->parent : c->seats[c->next_out].rank;
        return true;
    }
    c->next_out = 0;
    return false;
}
