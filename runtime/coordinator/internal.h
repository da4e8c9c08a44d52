/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room do for each other; nobody else includes it. */
#ifndef HORON_COORDINATOR_INTERNAL_H
#define HORON_COORDINATOR_INTERNAL_H

#include "alloc.h"
#include "coordinator/state.h"
#include "coordinator/wire.h"

/* util.c */
/** As horon_coord_reserve(), where there is less room than that. */
horon_status_t horon_coord_grow(void *array, size_t *capacity, size_t need, size_t item_bytes);
/** Makes room for @p need items in *array. @return OK | ERR_MEMORY, nothing changed */
static inline horon_status_t horon_coord_reserve(void *array, size_t *capacity, size_t need,
                                                 size_t item_bytes)
{
    return need <= *capacity ? HORON_OK : horon_coord_grow(array, capacity, need, item_bytes);
}
/** Reads a name of an entry, not empty. @return the reader is still well */
bool horon_coord_read_name(struct horon_reader *in, char name[HORON_NAME_BYTES_MAX + 1]);
/** @return NULL: no memory */
struct coord_reason *horon_coord_reason_keep(const struct horon_error *why);
struct coord_reason *horon_coord_reason_copy(const struct coord_reason *reason);
/** "rank 3 (host-b)" or "rank 3", into @p text. */
const char *horon_coord_rank_name(const struct horon_coordinator *c, int rank, char text[96]);

/* table.c */
uint32_t horon_coord_entry_find(const struct horon_coordinator *c, const char *name,
                                size_t name_bytes, uint64_t hash);
horon_status_t horon_coord_entry_open(struct horon_coordinator *c, const char *name,
                                      size_t name_bytes, uint64_t hash, uint32_t *index_out);
void horon_coord_entry_release(struct horon_coordinator *c, uint32_t index);
void horon_coord_table_deinit(struct horon_coordinator *c);

/* round.c */
horon_status_t horon_coord_contribute(struct horon_coordinator *c, uint32_t index, uint32_t seat,
                                      const struct horon_signature *signature,
                                      const struct coord_failure *failure);
horon_status_t horon_coord_withdraw(struct horon_coordinator *c, uint32_t index, uint32_t seat);
horon_status_t horon_coord_withdrawn(struct horon_coordinator *c, uint32_t index);
void horon_coord_reported(struct horon_coordinator *c, uint32_t index);
void horon_coord_enqueue(struct horon_coordinator *c, uint32_t index);
void horon_coord_become_whole(struct horon_coordinator *c, uint32_t index);
void horon_coord_round_end(struct horon_coordinator *c, uint32_t index);
void horon_coord_failure(const struct horon_coordinator *c, uint32_t index,
                         struct horon_error *why);
void horon_coord_dissents_free(struct horon_coordinator *c, uint32_t index);
static inline const struct horon_signature *horon_coord_base(const struct horon_coordinator *c,
                                                             uint32_t index)
{
    const struct coord_cold *cold = &c->cold[index];
    return c->entries[index].as_agreed ? &cold->agreed : &cold->fresh;
}
/** Has the tensor a kind that is known by its number? */
static inline bool horon_coord_kind_is_known(const struct coord_entry *entry)
{
    return entry->as_agreed && entry->kind < COORD_KINDS_MAX;
}
/** A signature of the tensor's kind (horon_signature_same_kind). Those of one known kind get the
 * same one, without a touch of what is cold. */
static inline const struct horon_signature *horon_coord_kind(const struct horon_coordinator *c,
                                                             uint32_t index)
{
    const struct coord_entry *entry = &c->entries[index];
    return horon_coord_kind_is_known(entry) ? &c->kinds[entry->kind] : horon_coord_base(c, index);
}
static inline bool horon_coord_seat_has(const struct horon_coordinator *c, uint32_t index,
                                        uint32_t seat)
{
    return c->have[(size_t)index * c->words + seat / 64] >> (seat % 64) & 1;
}

/* join.c */
static inline bool horon_coord_seat_joined(const struct horon_coordinator *c, uint32_t seat)
{
    return c->joined_seats[seat / 64] >> (seat % 64) & 1;
}
/** Does the tensor wait for this seat? */
static inline bool horon_coord_seat_lacks(const struct horon_coordinator *c, uint32_t index,
                                          uint32_t seat)
{
    return !horon_coord_seat_has(c, index, seat) && !horon_coord_seat_joined(c, seat);
}
/** Have all ranks of this one's subtree joined? */
static inline bool horon_coord_all_joined_below(const struct horon_coordinator *c)
{
    return c->joined_seat_count == c->seat_count;
}
/** Does each seat have the tensor, or have all of its ranks joined? */
bool horon_coord_is_covered(const struct horon_coordinator *c, uint32_t index);
horon_status_t horon_coord_receive_joined(struct horon_coordinator *c, uint32_t seat,
                                          struct horon_reader *in);
horon_status_t horon_coord_apply_joined(struct horon_coordinator *c, struct horon_reader *in);
/** On the root, of a WHOLE entry, while ranks have joined: can it not be carried out without them?
 */
bool horon_coord_needs_joined(const struct horon_coordinator *c, uint32_t index,
                              struct horon_error *why);

/* cache.c */
horon_status_t horon_coord_cache_init(struct horon_coordinator *c, size_t entries);
/** As horon_coord_cache_at(), of an id that meant something else then. */
uint32_t horon_coord_cache_before(const struct horon_coordinator *c, uint32_t id, uint64_t seen);
/** @return the entry that a sender that had passed @p seen batches means by @p id, or COORD_NONE */
static inline uint32_t horon_coord_cache_at(const struct horon_coordinator *c, uint32_t id,
                                            uint64_t seen)
{
    const struct coord_slot *slot = &c->slots[id];
    return seen >= slot->since ? slot->entry : horon_coord_cache_before(c, id, seen);
}
void horon_coord_cache_put(struct horon_coordinator *c, uint32_t id, uint32_t index);
horon_status_t horon_coord_cache_evict(struct horon_coordinator *c, uint32_t id);
void horon_coord_cache_release(struct horon_coordinator *c);
uint32_t horon_coord_cache_plan(struct horon_coordinator *c, uint32_t *victim_out);
void horon_coord_cache_touch(struct horon_coordinator *c, uint32_t id);

/* group.c */
void horon_coord_group_rehash(struct horon_coordinator *c);
void horon_coord_group_join(struct horon_coordinator *c, uint32_t index);
void horon_coord_group_leave(struct horon_coordinator *c, uint32_t index);
static inline bool horon_coord_group_decidable(const struct coord_group *group)
{
    return group->split > 0 || group->whole >= group->size;
}

/* coordinator.c */
uint32_t horon_coord_find_token(const struct horon_coordinator *c, uint64_t token);

/* outbox.c */
struct horon_writer horon_coord_outbox_room(struct horon_coordinator *c,
                                            struct coord_outbox *outbox, size_t record_bytes);
void horon_coord_outbox_commit(struct coord_outbox *outbox, const struct horon_writer *record);
void horon_coord_outbox_seal(struct coord_outbox *outbox);
bool horon_coord_outbox_take(struct coord_outbox *outbox, const void **bytes_out,
                             size_t *byte_count_out);

/* report.c: up the tree */
horon_status_t horon_coord_report(struct horon_coordinator *c);
horon_status_t horon_coord_receive_report(struct horon_coordinator *c, uint32_t seat,
                                          struct horon_reader *in, struct horon_error *error);

/* apply.c: down the tree */
horon_status_t horon_coord_apply(struct horon_coordinator *c, struct horon_reader *in,
                                 struct horon_error *error);
/** Passes a record on to the children. @return OK | ERR_MEMORY */
horon_status_t horon_coord_forward(struct horon_coordinator *c, const uint8_t *record,
                                   size_t bytes);
horon_status_t horon_coord_withdraw_broken_groups(struct horon_coordinator *c);
void horon_coord_broken_groups_free(struct horon_coordinator *c);
horon_status_t horon_coord_receive_decisions(struct horon_coordinator *c, struct horon_reader *in,
                                             struct horon_error *error);

/* decide.c */
horon_status_t horon_coord_decide(struct horon_coordinator *c);

/* inquiry.c */
horon_status_t horon_coord_inquire(struct horon_coordinator *c, uint32_t index);
void horon_coord_inquiry_end(struct horon_coordinator *c, uint32_t index);
const struct coord_answer *horon_coord_inquiry_awaited(const struct horon_coordinator *c,
                                                       uint32_t index, uint32_t *count_out);
horon_status_t horon_coord_asked_by_child(struct horon_coordinator *c, uint32_t seat,
                                          const char *name);
horon_status_t horon_coord_asked_by_parent(struct horon_coordinator *c, const char *name);
horon_status_t horon_coord_answered(struct horon_coordinator *c, uint32_t seat, const char *name,
                                    const struct coord_answer *answer);
bool horon_coord_read_answer(const struct horon_coordinator *c, struct horon_reader *in,
                             struct coord_answer *answer);

/* decided.c: batches for the caller */
/** Makes room for @p more batches, and for all tokens that are pending and @p more. */
static inline horon_status_t horon_coord_decided_reserve(struct horon_coordinator *c, size_t more)
{
    const size_t coming = c->pending + more;
    if (horon_coord_reserve(&c->decided, &c->decided_capacity, c->decided_count + coming,
                            sizeof *c->decided))
        return HORON_ERR_MEMORY;
    return horon_coord_reserve(&c->tokens, &c->token_capacity, c->token_count + coming,
                               sizeof *c->tokens);
}
void horon_coord_decided_add(struct horon_coordinator *c, uint64_t sequence, horon_status_t status,
                             struct coord_reason *reason);
/** Puts a token into the batch opened last. */
static inline void horon_coord_decided_token(struct horon_coordinator *c, uint64_t token)
{
    assert(c->token_count < c->token_capacity);
    c->tokens[c->token_count++] = token;
    c->decided[c->decided_count - 1].count++;
}
/** Adds to the batch opened last a tensor of which this rank, which has joined, has nothing.
 * @param agreed NULL: the batch fails. @return OK | ERR_MEMORY */
horon_status_t horon_coord_decided_absent(struct horon_coordinator *c, const char *name,
                                          size_t name_bytes, uint64_t name_hash,
                                          const struct horon_signature *agreed);
void horon_coord_decided_joined(struct horon_coordinator *c, uint64_t sequence, int rank,
                                uint64_t ordered);

#endif
