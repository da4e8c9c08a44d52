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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_TAGS UINT64_C(1000) /* of messages that are in no order with others */
/* Each keeps eager room of its receiver until all have joined; a link has that of 16. */
#define LATE_MAX 8

bool sim_message_is_of(const struct sim_op *op, int rank)
{
    return op->from == rank || op->to == rank;
}

bool sim_is_afterwards(const struct sim_op *op, const struct sim_rank *rank)
{
    return op->afterwards || (op->late && op->to == rank->rank);
}

/* ---- drawing -------------------------------------------------------------------------------- */

static uint64_t draw_bytes(const struct simulation *sim, uint64_t *random)
{
    const uint64_t eager = (uint64_t)sim->world->config.net_eager_bytes;
    const uint64_t most = sim->narrow && sim->world->host_count > 1 ? 1000 : 20000;
    switch (sim_next(random) % 5) {
    case 0:
        return 0;
    case 1:
        return 1 + sim_next(random) % 16;
    case 2:
        return eager - (eager > 0) + sim_next(random) % 3;
    case 3:
        return 1 + sim_next(random) % (3 * eager + 1);
    default:
        return sim_next(random) % most;
    }
}

/* Of those that there are, one with two members or more. */
static int draw_team(const struct simulation *sim, uint64_t *random)
{
    const int team = (int)(sim_next(random) % (uint64_t)sim->team_count);
    return sim_team_is_vain(sim, team) || sim_team_size(sim, team) < 2 ? 0 : team;
}

/* @param favourite two ranks between which go most messages */
static void draw_ends(const struct simulation *sim, struct sim_op *op, const int favourite[2],
                      uint64_t *random)
{
    const uint64_t size = (uint64_t)sim_team_size(sim, op->team);
    const uint64_t first = sim_next(random) % size;
    op->from = sim_team_rank(sim, op->team, (int)first);
    op->to =
        sim_team_rank(sim, op->team, (int)((first + 1 + sim_next(random) % (size - 1)) % size));
    const int forth = sim_next(random) % 4 != 0;
    if (sim_next(random) % 3 == 0 || sim_team_member(sim, op->team, favourite[0]) < 0 ||
        sim_team_member(sim, op->team, favourite[1]) < 0)
        return;
    op->from = favourite[!forth];
    op->to = favourite[forth];
}

static void draw_special(struct sim_op *op, uint64_t *random, int number)
{
    const int one_end = sim_next(random) % 2 ? op->from : op->to;
    switch (sim_next(random) % 10) {
    case 0: /* another round comes whenever this one has ended */
        op->persistent = true;
        op->rounds = 1 + (int)(sim_next(random) % 4);
        op->tag = OWN_TAGS + (uint64_t)number;
        break;
    case 1:
        op->canceler = one_end;
        break;
    case 2:
        op->odd = one_end;
        op->odd_in = (int)(sim_next(random) % 2);
        break;
    default:
        break;
    }
}

static void draw_message(struct simulation *sim, const int favourite[2], uint64_t *random)
{
    static const uint64_t tags[] = {0, 1, UINT64_C(1) << 60, UINT64_MAX};
    const int number = sim->op_count++;
    struct sim_op *op = &sim->ops[number];
    *op = (struct sim_op){.verb = HORON_SEND,
                          .paired = true,
                          .team = draw_team(sim, random),
                          .dtype = (horon_dtype_t)(sim_next(random) % HORON_DTYPE_COUNT),
                          .prescale = 1.0,
                          .postscale = 1.0,
                          .row = 1,
                          .rounds = 1,
                          .group = -1,
                          .odd = -1,
                          .canceler = -1};
    snprintf(op->name, sizeof op->name, "message-%d", number);
    if (sim_next(random) % 2)
        op->dtype = HORON_UINT8;
    op->count = draw_bytes(sim, random) / horon_dtype_bytes(op->dtype);
    op->tag = tags[sim_next(random) % 4];
    draw_ends(sim, op, favourite, random);
    draw_special(op, random, number);
}

void sim_messages_draw(struct simulation *sim)
{
    uint64_t random = sim->seed ^ UINT64_C(0x6d657373);
    int favourite[2];
    if (sim->size < 2 || sim_next(&random) % 2)
        return;
    if (sim_next(&random) % 4 == 0 && sim->fate != SIM_FATE_DISORDER)
        sim->op_count = 0;
    sim->joins_early = sim_next(&random) % 2;
    const uint64_t size = (uint64_t)sim->size, count = 1 + sim_next(&random) % SIM_MESSAGES_MAX;
    favourite[0] = (int)(sim_next(&random) % size);
    favourite[1] = (int)(((uint64_t)favourite[0] + 1 + sim_next(&random) % (size - 1)) % size);
    for (uint64_t i = 0; i < count; i++)
        draw_message(sim, favourite, &random);
}

/* Bytes of a message that its sender need not wait with, wherever its receiver is. */
static uint64_t most_eager(const struct simulation *sim)
{
    const uint64_t eager = (uint64_t)sim->world->config.net_eager_bytes;
    const uint64_t lent = (uint64_t)sim->world->config.shm_lend_bytes;
    return lent > 0 && lent <= eager ? lent - 1 : eager;
}

void sim_messages_draw_late(struct simulation *sim)
{
    uint64_t random = sim->seed ^ UINT64_C(0x6c617465);
    int late = 0;
    for (int i = 0; i < sim->op_count && late < LATE_MAX; i++) {
        struct sim_op *op = &sim->ops[i];
        const uint64_t bytes = op->count * horon_dtype_bytes(op->dtype);
        if (!op->paired || op->afterwards || op->odd >= 0 || op->rounds > 1 ||
            sim->joins[op->team] < 0 || sim_next(&random) % 3)
            continue;
        if (bytes > most_eager(sim))
            op->count = 0;
        op->late = true;
        op->tag = OWN_TAGS + (uint64_t)i;
        late++;
    }
}

static bool same_line(const struct sim_op *one, const struct sim_op *other)
{
    return one->paired && other->paired && one->team == other->team && one->from == other->from &&
           one->to == other->to && one->tag == other->tag;
}

void sim_messages_sort(const struct simulation *sim, int *plan, int count)
{
    for (int i = 0; i < count; i++)
        for (int k = i + 1; k < count; k++)
            if (plan[k] < plan[i] && same_line(&sim->ops[plan[i]], &sim->ops[plan[k]])) {
                const int kept = plan[i];
                plan[i] = plan[k];
                plan[k] = kept;
            }
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
