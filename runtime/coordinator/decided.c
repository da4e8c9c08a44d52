/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches that wait for the caller: tokens in one array, batches as ranges of it. Room for the
 * tokens is made when they are submitted, so that ending them cannot fail for want of memory.
 */
#include "internal.h"

/* Forgets what was taken, when everything was. */
static void rewind_taken(struct horon_coordinator *c)
{
    if (c->decided_taken < c->decided_count || c->decided_taken == 0)
        return;
    c->decided_taken = 0;
    c->decided_count = 0;
    c->token_count = 0;
}

/** Makes room for @p more batches, and for all tokens that are pending and @p more. */
horon_status_t horon_coord_decided_reserve(struct horon_coordinator *c, size_t more)
{
    rewind_taken(c);
    if (horon_coord_reserve(&c->decided, &c->decided_capacity, c->decided_count + c->pending + more,
                            sizeof *c->decided))
        return HORON_ERR_MEMORY;
    return horon_coord_reserve(&c->tokens, &c->token_capacity, c->token_count + c->pending + more,
                               sizeof *c->tokens);
}

/** Opens a batch. Owner: @p reason, NULL or from the heap, passes. */
void horon_coord_decided_add(struct horon_coordinator *c, uint64_t sequence, horon_status_t status,
                             struct coord_reason *reason)
{
    assert(c->decided_count < c->decided_capacity);
    c->decided[c->decided_count++] = (struct coord_decided){
        .sequence = sequence, .status = status, .reason = reason, .first = c->token_count};
}

/** Puts a token into the batch opened last. */
void horon_coord_decided_token(struct horon_coordinator *c, uint64_t token)
{
    assert(c->token_count < c->token_capacity);
    c->tokens[c->token_count++] = token;
    c->decided[c->decided_count - 1].count++;
}

bool horon_coordinator_next_batch(struct horon_coordinator *c, struct horon_batch *batch_out)
{
    horon_free(c->taken_reason);
    c->taken_reason = NULL;
    if (c->decided_taken == c->decided_count)
        return false;
    struct coord_decided *decided = &c->decided[c->decided_taken++];
    const struct coord_reason *reason = c->taken_reason = decided->reason;
    *batch_out = (struct horon_batch){
        .sequence = decided->sequence,
        .status = decided->status,
        .text = reason ? reason->text : horon_status_text(decided->status),
        .blame = reason ? reason->blame : horon_blame_of(decided->status),
        .tokens = c->tokens + decided->first,
        .count = decided->count,
    };
    decided->reason = NULL;
    return true;
}
