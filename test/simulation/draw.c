/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the applications of a run do, drawn from its seed: operations, what is special about each,
 * in which team it is, which ranks have no part in it, and each rank's order of beginning them.
 */
#undef NDEBUG
#include "simulation/messages.h"
#include "simulation/sets.h"
#include "simulation/simulation.h"
#include "simulation/teams.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define OPS_MAX 24

static uint64_t draw_count(struct simulation *sim)
{
    static const uint64_t counts[] = {0, 1, 2, 7, 16, 17, 63, 64, 65};
    switch (sim_below(sim, sim->narrow && sim->world->host_count > 1 ? 2 : 4)) {
    case 0:
        return counts[sim_below(sim, 9)];
    case 1:
        return sim_below(sim, 300);
    case 2:
        return sim_below(sim, 2000);
    default:
        return sim_one_in(sim, 4) ? sim_below(sim, 12000) : sim_below(sim, 3000);
    }
}

static void draw_op(struct simulation *sim, struct sim_op *op, int number)
{
    snprintf(op->name, sizeof op->name, "tensor-%d", number);
    static const horon_verb_t verbs[] = {
        HORON_ALLREDUCE, HORON_ALLREDUCE, HORON_ALLREDUCE, HORON_ALLREDUCE, HORON_REDUCESCATTER,
        HORON_REDUCE,    HORON_BROADCAST, HORON_BROADCAST, HORON_ALLGATHER, HORON_BARRIER,
        HORON_ALLTOALL,  HORON_ALLTOALL,  HORON_GATHER,    HORON_SCATTER};
    op->verb = verbs[sim_below(sim, sizeof verbs / sizeof verbs[0])];
    op->dtype = (horon_dtype_t)sim_below(sim, HORON_DTYPE_COUNT);
    op->redop = (horon_redop_t)sim_below(sim, HORON_PRODUCT + 1);
    if (sim_reduces(op) && !horon_reduce_supported(op->dtype, op->redop)) {
        op->dtype = sim_one_in(sim, 2) ? HORON_FLOAT32 : HORON_BFLOAT16;
        op->redop = HORON_SUM;
    }
    op->root = (int)sim_below(sim, (uint64_t)sim->size);
    op->prescale = sim_one_in(sim, 4) ? 0.5 : 1.0;
    op->postscale = sim_one_in(sim, 4) ? 3.0 : 1.0;
    op->count = draw_count(sim);
    op->row = 1 + sim_below(sim, 3);
    if (sim_has_rows(op))
        op->count /= 4;
    if (op->verb == HORON_REDUCESCATTER)
        op->count -= op->count % op->row;
    if (op->verb == HORON_BARRIER)
        op->count = 0;
    op->uneven = sim_one_in(sim, 4);
    op->in_order = sim_one_in(sim, 3);
    op->in_place = sim_one_in(sim, 2);
    op->own_output = sim_one_in(sim, 2);
    op->rounds = 1;
    op->group = op->odd = op->canceler = -1;
}

/* Most operations of the run are small broadcasts of one root in order: it waits for nobody until
 * all its small slots are in use, and runs ahead of the others. */
static void make_burst(struct simulation *sim, struct sim_op *op, int root)
{
    if (sim_one_in(sim, 16))
        return;
    op->verb = HORON_BROADCAST;
    op->root = root;
    op->count = sim_below(sim, 16);
    op->in_order = true;
}

/* What is special about it; one thing at most. */
static void draw_special(struct simulation *sim, struct sim_op *op)
{
    switch (sim_below(sim, op->in_order ? 3 : 8)) {
    case 0:
        op->persistent = true;
        op->rounds = 1 + (int)sim_below(sim, 4);
        break;
    case 3:
        op->canceler = (int)sim_below(sim, (uint64_t)sim->size);
        break;
    case 4:
        if (sim->size == 1 || !sim_one_in(sim, 2))
            break;
        op->odd = (int)sim_below(sim, (uint64_t)sim->size);
        op->odd_in = (int)sim_below(sim, 4);
        break;
    default:
        break;
    }
    if (op->in_order) /* a second round would need its place in everybody's order */
        op->rounds = 1;
}

static void draw_groups(struct simulation *sim)
{
    for (int i = 0; i + 1 < sim->op_count; i++) {
        int members = 2 + (int)sim_below(sim, 3);
        if (!sim_one_in(sim, 4) || i + members > sim->op_count)
            continue;
        bool plain = true;
        for (int k = i; k < i + members; k++)
            plain = plain && !sim->ops[k].in_order && sim->ops[k].canceler < 0 &&
                    !sim->ops[k].persistent && sim->ops[k].odd < 0;
        if (!plain)
            continue;
        for (int k = i; k < i + members; k++)
            sim->ops[k].group = i;
        i += members - 1;
    }
}

static int draw_team(struct simulation *sim)
{
    if (!sim->change_count)
        return sim_one_in(sim, 2);
    const int team = (int)sim_below(sim, (uint64_t)sim->team_count);
    return sim_team_is_vain(sim, team) ? 0 : team;
}

/* Beside the job: a rank that has a part of its own is one of the team's members. */
static void draw_teams(struct simulation *sim)
{
    for (int i = 0; sim->team_count > 1 && i < sim->op_count; i++) {
        struct sim_op *op = &sim->ops[i];
        const bool grouped = op->group >= 0 && op->group < i;
        op->team = grouped ? sim->ops[op->group].team : draw_team(sim);
        if (!op->team)
            continue;
        const bool disorder = sim->fate == SIM_FATE_DISORDER && op->in_order && op->odd >= 0;
        const int size = sim_team_size(sim, op->team);
        if (disorder && (size == 1 || sim_team_member(sim, op->team, op->odd) < 0)) {
            op->team = 0;
            continue;
        }
        op->root %= size;
        if (op->odd >= 0 && !disorder)
            op->odd = size > 1 ? sim_team_rank(sim, op->team, op->odd % size) : -1;
        if (disorder)
            sim->ill_team = op->team;
    }
}

uint64_t sim_next(uint64_t *random)
{
    *random += UINT64_C(0x9e3779b97f4a7c15);
    return (*random ^ *random >> 31) * UINT64_C(0xbf58476d1ce4e5b9) >> 33;
}

/* Some of those of integers combine bits. Drawn from numbers of their own. */
static void draw_bits(struct simulation *sim)
{
    uint64_t random = sim->seed ^ UINT64_C(0x62697473);
    for (int i = 0; i < sim->op_count; i++) {
        struct sim_op *op = &sim->ops[i];
        const horon_redop_t redop = HORON_BIT_AND + (horon_redop_t)(sim_next(&random) % 6);
        if (sim_reduces(op) && horon_reduce_supported(op->dtype, redop)) /* half of them are none */
            op->redop = redop;
    }
}

/* In one run of six most of those whose rows may differ have as much data as the one before: ranks
 * then expect as much. Drawn from numbers of their own. */
static void draw_alike(struct simulation *sim)
{
    uint64_t random = sim->seed ^ UINT64_C(0x616c696b65);
    const uint64_t count = 1 + sim_next(&random) % 4000;
    if (sim_next(&random) % 6)
        return;
    for (int i = 0; i < sim->op_count; i++) {
        struct sim_op *op = &sim->ops[i];
        if (!sim_has_rows(op) || sim_next(&random) % 8 == 0)
            continue;
        op->count = count;
        op->row = 1;
        op->dtype = HORON_UINT8;
    }
}

/* What its roots and scales do not allow. @p most the member that has most data */
static void settle_join(struct simulation *sim, struct sim_op *op, int most)
{
    const int root = sim_team_rank(sim, op->team, op->root);
    if (op->level == 0)
        return;
    if (horon_verb_is_rooted(&horon_verb_rows[op->verb]) && !sim_takes_part(op, &sim->ranks[root]))
        op->root = most;
    if (op->redop == HORON_PRODUCT || op->redop == HORON_BIT_AND)
        op->prescale = 1.0;
    op->uneven &= op->verb != HORON_REDUCESCATTER; /* others know nothing of its splits */
}

static void add_join(struct simulation *sim, int team)
{
    sim->joins[team] = sim->op_count++;
    sim->ops[sim->joins[team]] = (struct sim_op){.name = "join",
                                                 .verb = HORON_BARRIER,
                                                 .team = team,
                                                 .prescale = 1.0,
                                                 .postscale = 1.0,
                                                 .rounds = 1,
                                                 .group = -1,
                                                 .odd = -1,
                                                 .canceler = -1,
                                                 .joins = true};
}

/* Of the operations of a team by name some ranks have no part, those with less data than others. */
static void draw_team_join(struct simulation *sim, int team, uint64_t *random)
{
    int most = 0;
    for (int i = 0; i < sim_team_size(sim, team); i++)
        if (sim->ranks[sim_team_rank(sim, team, i)].level >
            sim->ranks[sim_team_rank(sim, team, most)].level)
            most = i;
    const int highest = sim->ranks[sim_team_rank(sim, team, most)].level;
    for (int i = 0; i < sim->op_count; i++) {
        struct sim_op *op = &sim->ops[i];
        const int level = (int)(sim_next(random) % 4);
        if (op->team != team || op->in_order || op->odd >= 0 || op->paired)
            continue;
        if (op->group >= 0 && op->group < i)
            op->level = sim->ops[op->group].level;
        else if (level <= highest)
            op->level = level;
        settle_join(sim, op, most);
    }
    for (int i = 0; i < sim->op_count;
         i++) /* what has begun a group, or ends one, is none of these */
        sim->ops[i].afterwards = sim->ops[i].team == team && sim->ops[i].level == 0 &&
                                 sim->ops[i].group < 0 && sim_next(random) % 3 == 0;
}

/* In one run of four ranks have unequal amounts of data, and all join a team when they are through
 * with it: the job, and each other team in two cases of three. Drawn from numbers of their own. */
static void draw_join(struct simulation *sim)
{
    uint64_t random = sim->seed ^ UINT64_C(0x6a6f696e);
    bool joins[SIM_TEAMS_MAX] = {false};
    for (int team = 0; team < SIM_TEAMS_MAX; team++)
        sim->joins[team] = -1;
    if (sim_next(&random) % 4)
        return;
    for (int rank = 0; rank < sim->size; rank++)
        sim->ranks[rank].level = (int)(sim_next(&random) % 4);
    for (int team = 0; team < sim->team_count; team++) {
        joins[team] = team == 0 || sim_next(&random) % 3;
        if (joins[team])
            draw_team_join(sim, team, &random);
    }
    for (int team = 0; team < sim->team_count; team++)
        if (joins[team] && !sim_team_is_vain(sim, team))
            add_join(sim, team);
}

bool sim_takes_part(const struct sim_op *op, const struct sim_rank *rank)
{
    return rank->level >= op->level;
}

static bool is_in(const struct simulation *sim, const struct sim_rank *rank, int op)
{
    return sim_team_member(sim, sim->ops[op].team, rank->rank) >= 0 &&
           sim_takes_part(&sim->ops[op], rank) &&
           (!sim->ops[op].paired || sim_message_is_of(&sim->ops[op], rank->rank));
}

/* A rank's order: anything for the named ones, as numbered for those in order of a team, whatever
 * comes between them; a group is one. */
static void draw_plan(struct simulation *sim, struct sim_rank *rank)
{
    rank->plan = calloc((size_t)sim->op_count, sizeof *rank->plan);
    rank->uses = calloc((size_t)sim->op_count, sizeof *rank->uses);
    assert(rank->plan);
    assert(rank->uses);
    for (int i = 0; i < sim->op_count; i++)
        if (!sim->ops[i].joins && is_in(sim, rank, i) &&
            (sim->ops[i].group < 0 || sim->ops[i].group == i))
            rank->plan[rank->plan_count++] = i;
    for (int i = rank->plan_count - 1; i > 0; i--) {
        int other = (int)sim_below(sim, (uint64_t)i + 1), kept = rank->plan[i];
        rank->plan[i] = rank->plan[other];
        rank->plan[other] = kept;
    }
    sim_messages_sort(sim, rank->plan, rank->plan_count);
    int next[SIM_TEAMS_MAX] = {0};
    for (int i = 0; i < rank->plan_count; i++) {
        const int team = sim->ops[rank->plan[i]].team;
        if (!sim->ops[rank->plan[i]].in_order)
            continue;
        while (!sim->ops[next[team]].in_order || sim->ops[next[team]].team != team ||
               !is_in(sim, rank, next[team]))
            next[team]++;
        rank->plan[i] = next[team]++;
    }
}

void sim_workload_create(struct simulation *sim)
{
    sim->op_count = 1 + (int)sim_below(sim, OPS_MAX);
    if (sim->change_count) /* enough for all of its teams */
        sim->op_count = OPS_MAX / 2 + sim->op_count / 2;
    const size_t most = (size_t)sim->op_count + SIM_MESSAGES_MAX + SIM_TEAMS_MAX; /* and joins */
    sim->ops = calloc(most, sizeof *sim->ops);
    assert(sim->ops);
    const int ahead = sim_one_in(sim, 4) ? (int)sim_below(sim, (uint64_t)sim->size) : -1;
    for (int i = 0; i < sim->op_count; i++) {
        draw_op(sim, &sim->ops[i], i);
        if (ahead >= 0)
            make_burst(sim, &sim->ops[i], ahead);
        draw_special(sim, &sim->ops[i]);
    }
    if (sim->fate == SIM_FATE_DISORDER) {
        struct sim_op *op = &sim->ops[sim_below(sim, (uint64_t)sim->op_count)];
        op->in_order = true;
        op->persistent = false;
        op->rounds = 1;
        op->canceler = -1;
        op->odd = sim->victim;
        op->odd_in = (int)sim_below(sim, 4);
    }
    draw_groups(sim);
    draw_teams(sim);
    draw_bits(sim);
    draw_alike(sim);
    sim_messages_draw(sim);
    draw_join(sim);
    sim_messages_draw_late(sim);
    for (int rank = 0; rank < sim->size; rank++)
        draw_plan(sim, &sim->ranks[rank]);
}
