/* SPDX-License-Identifier: Apache-2.0 */
/* Inside allreduce: its state, for its pipelines, and the table of these. */
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
    assert(channel->verb == &horon_allreduce_ops);
    return channel->state;
}

/** One host sums in woven.c. */
extern const struct horon_pipeline_ops horon_allreduce_woven;
/** Several hosts, in allreduce.c; both wait for the same. */
bool horon_allreduce_waits_for(const struct horon_channel *channel, int rank);

#endif
