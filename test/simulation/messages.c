/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages from rank to rank, in one run of two: in the job and in its process sets, beside the
 * other operations or alone. A message is one operation with two ends: each has its place in the
 * order of its rank, so either may come first. Many go between the same two ranks with few tags;
 * those of a tag are received in the order in which they are sent, all else in any order.
 *
 * Sizes are nothing, small, around what goes without credit, and beyond. Some are persistent, of
 * some the two ends say something else, some are asked to be taken back, which no message can be.
 * Where ranks join, some messages wait while their receiver has joined.
 *
 * Drawn from numbers of their own.
 */
#undef NDEBUG
#include "simulation/messages.h"
#include "simulation/sets.h"
#include "simulation/teams.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool sim_message_is_of(const struct sim_op *op, int rank)
{
    return op->from == rank || op->to == rank;
}

bool sim_is_afterwards(const struct sim_op *op, const struct sim_rank *rank)
{
    return op->afterwards || (op->late && op->to == rank->rank);
}

bool sim_has_messages(const struct simulation *sim)
{
    bool any = false;
    for (int i = 0; i < sim->op_count; i++)
        any |= sim->ops[i].paired;
    return any;
}

/* ---- an end of one -------------------------------------------------------------------------- */

void sim_message_load(struct sim_rank *rank, struct sim_op *op, struct sim_use *use)
{
    const bool sends = op->from == rank->rank;
    void **memory = sends ? &use->in : &use->out;
    const size_t bytes = sim_message_memory(op);
    if (!*memory)
        *memory = malloc(bytes);
    assert(*memory);
    if (use->given_back)
        sim_message_check_memory(rank, op, use);
    use->given_back = false;
    memset(*memory, SIM_MESSAGE_UNTOUCHED, bytes);
    if (sends)
        sim_fill(rank->sim, op, rank->rank, use->round, *memory);
}

void sim_message_describe(const struct sim_rank *rank, const struct sim_op *op,
                          const struct sim_use *use, horon_descriptor_t *desc, uint64_t shape[2])
{
    const bool sends = op->from == rank->rank;
    *desc = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
    desc->process_set = sim_team_id(rank->sim, op->team);
    desc->verb = sends ? HORON_SEND : HORON_RECV;
    desc->root = sim_team_member(rank->sim, op->team, sends ? op->to : op->from);
    desc->tag = op->tag;
    desc->dtype = op->dtype;
    shape[0] = op->count;
    shape[1] = 1;
    desc->shape = shape;
    desc->ndim = 2;
    desc->src = use->in;
    desc->dst = use->out;
    if (op->odd != rank->rank)
        return;
    if (op->odd_in == 0)
        desc->dtype = op->dtype == HORON_INT32 ? HORON_FLOAT32 : HORON_INT32;
    else
        shape[0]++;
}
