/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches that wait for the caller: tokens in one array, batches as ranges of it. Room for the
 * tokens is made when they are submitted, so that ending them cannot fail for want of memory.
 */
#include "internal.h"

/* Forgets what was taken, when everything was, so that the arrays begin anew. */
static void rewind_taken(struct horon_coordinator *c)
{
    assert(c->decided_taken == c->decided_count);
    c->decided_taken = 0;
    c->decided_count = 0;
    c->token_count = 0;
}

/** Opens a batch. Owner: @p reason, NULL or from the heap, passes. */
void horon_coord_decided_add(struct horon_coordinator *c, uint64_t sequence, horon_status_t status,
                             struct coord_reason *reason)
{
    assert(c->decided_count < c->decided_capacity);
    c->decided[c->decided_count++] = (struct coord_decided){
        .sequence = sequence,
        .status = status,
        .reason = reason,
        .joined = -1,
        .first = c->token_count,
    };
}

void horon_coord_decided_joined(struct horon_coordinator *c, uint64_t sequence, int rank,
                                uint64_t ordered)
{
    horon_coord_decided_add(c, sequence, HORON_OK, NULL);
    c->decided[c->decided_count - 1].joined = rank;
    c->decided[c->decided_count - 1].ordered = ordered;
}

/* Of what a rank that has joined gives: of rows that may differ it has none. */
static uint64_t elements_of(const struct horon_signature *agreed)
{
    if (!agreed || horon_verb_of(agreed)->joined == HORON_JOINED_NO_ROWS)
        return 0;
    const uint64_t bytes = horon_signature_bytes(agreed);
    return bytes ? bytes / horon_dtype_bytes((horon_dtype_t)agreed->dtype) : 0;
}

horon_status_t horon_coord_decided_absent(struct horon_coordinator *c, const char *name,
                                          size_t name_bytes, uint64_t name_hash,
                                          const struct horon_signature *agreed)
{
    assert(c->decided_count > 0);
    struct coord_decided *decided = &c->decided[c->decided_count - 1];
    decided->count++;
    if (!decided->absent) {
        struct horon_absent *absent = horon_zalloc(1, sizeof *absent + name_bytes + 1);
        if (!absent)
            return HORON_ERR_MEMORY;
        if (agreed)
            absent->agreed = *agreed;
        absent->name_hash = name_hash;
        absent->name_bytes = (uint32_t)name_bytes;
        memcpy(absent->name, name, name_bytes);
        decided->absent = absent;
    }
    if (__builtin_add_overflow(decided->absent->elements, elements_of(agreed),
                               &decided->absent->elements))
        decided->absent->elements = UINT64_MAX;
    return HORON_OK;
}

bool horon_coordinator_has_batch(const struct horon_coordinator *c)
{
    return c->decided_taken < c->decided_count;
}

bool horon_coordinator_next_batch(struct horon_coordinator *c, struct horon_batch *batch_out)
{
    horon_free(c->taken_reason);
    horon_free(c->taken_absent);
    c->taken_reason = NULL;
    c->taken_absent = NULL;
    if (c->decided_taken == c->decided_count) {
        rewind_taken(c);
        return false;
    }
    struct coord_decided *decided = &c->decided[c->decided_taken++];
    const struct coord_reason *reason = c->taken_reason = decided->reason;
    *batch_out = (struct horon_batch){
        .sequence = decided->sequence,
        .status = decided->status,
        .text = reason ? reason->text : horon_status_text(decided->status),
        .blame = reason ? reason->blame : horon_blame_from_status(decided->status),
        .tokens = decided->absent ? NULL : c->tokens + decided->first,
        .count = decided->count,
        .absent = c->taken_absent = decided->absent,
        .joined = decided->joined,
        .ordered = decided->ordered,
    };
    decided->reason = NULL;
    decided->absent = NULL;
    return true;
}
