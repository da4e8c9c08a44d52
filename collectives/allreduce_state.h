/* SPDX-License-Identifier: Apache-2.0 */
/* Inside allreduce: its state, for its pipelines, and the table of these; and what a reduce takes
 * of it. */
#ifndef HORON_ALLREDUCE_STATE_H
#define HORON_ALLREDUCE_STATE_H

#include "exec/reduction.h"

struct horon_allreduce {
    struct horon_reduction reduction;
    bool small;
    struct horon_cursor post_at, reduce_at, finish_at, out_at; /* where the last chunk ended */
};

static inline struct horon_allreduce *horon_allreduce_of(const struct horon_channel *channel)
{
    assert(channel->verb == &horon_allreduce_ops || channel->verb == &horon_reduce_ops);
    return channel->state;
}

/** One host sums in woven.c. */
extern const struct horon_pipeline_ops horon_allreduce_woven;
/** Several hosts, in allreduce.c; both wait for the same. */
bool horon_allreduce_waits_for(const struct horon_channel *channel, int rank);

/* ---- as in struct horon_verb_ops ---- */
size_t horon_allreduce_state_bytes(const struct horon_team *team);
void horon_allreduce_init(void *state, const struct horon_team *team);
void horon_allreduce_begin(struct horon_channel *channel);
void horon_allreduce_enter(struct horon_channel *channel);

/** One host: reduces what lies in the small slots of its ranks to this rank's outputs. */
void horon_allreduce_give_small(struct horon_channel *channel);
/** Where a rank that has its host to itself works on a chunk: in its output, or, of a reduce, in
 * the input of a rank that is not root, from which it is only sent. The input of a sum in place
 * must be whole until all have entered, so only if nothing changes it before. @return that, all in
 * one part, and in *src_out the chunk's input; NULL: use the slot */
uint8_t *horon_allreduce_own_memory(const struct horon_channel *channel, uint64_t chunk,
                                    struct horon_cursor *cursor, const void **src_out);
/** Steps of a pipeline: the slices that others reduce to this rank's slot, and its own, reduced;
 * with several hosts their exchange has begun. */
horon_status_t horon_allreduce_post(struct horon_channel *channel, uint64_t chunk,
                                    struct horon_error *error);
horon_status_t horon_allreduce_reduce(struct horon_channel *channel, uint64_t chunk,
                                      struct horon_error *error);

#endif
