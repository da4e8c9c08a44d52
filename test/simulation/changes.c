/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which process sets the ranks of a run add and remove, drawn from its seed with a table of the
 * product's: so the ids that come of it, and whether there may be a set, are known beforehand.
 */
#undef NDEBUG
#include "simulation/sets.h"
#include "simulation/teams.h"

#include "alloc.h"
#include "coordinator/sets.h"

#include <assert.h>
#include <stdlib.h>

#define CHANGES_MAX 10

static void draw_ranks(struct simulation *sim, struct sim_change *change)
{
    int32_t *ranks = change->ranks;
    for (int i = 0; i < sim->size; i++)
        ranks[i] = i;
    for (int i = sim->size - 1; i > 0; i--) {
        const int other = (int)sim_below(sim, (uint64_t)i + 1);
        const int32_t kept = ranks[i];
        ranks[i] = ranks[other];
        ranks[other] = kept;
    }
    change->count = 1 + sim_below(sim, (uint64_t)sim->size);
    if (change->count == 1 && sim_one_in(sim, 2))
        change->count = 2;
}

static void draw_addition(struct simulation *sim, struct horon_sets *model,
                          struct sim_change *change)
{
    struct horon_error error;
    draw_ranks(sim, change);
    if (horon_sets_check(model, change->ranks, change->count, &error) != HORON_OK)
        change->ill = SIM_ILL_FOR_ALL;
    else if (sim_one_in(sim, 4))
        change->ill = SIM_ILL_REFUSES + (enum sim_ill)sim_below(sim, 3);
    change->odd = (int)sim_below(sim, (uint64_t)sim->size);
    if (change->ill == SIM_ILL_LACKS)
        change->odd = change->ranks[(size_t)change->odd % change->count];
    if (change->ill != SIM_ILL_NOT && change->ill != SIM_ILL_LACKS)
        return;
    struct horon_set *set = horon_sets_make(model, change->ranks, change->count);
    assert(set);
    horon_sets_enter(model, set);
    change->id = set->id;
    change->team = sim_team_create(sim, change->ranks, (int)change->count);
    if (change->ill != SIM_ILL_LACKS)
        return;
    horon_sets_remove(model, set);
    horon_free(set);
}

/* @return false: there is none to remove */
static bool draw_removal(struct simulation *sim, struct horon_sets *model,
                         struct sim_change *change)
{
    const int32_t from = 1 + (int32_t)sim_below(sim, (uint64_t)model->limit);
    int32_t id = 0;
    for (int32_t i = 0; i < model->limit && !id; i++)
        if ((from + i) % model->limit > 0 && model->table[(from + i) % model->limit])
            id = (from + i) % model->limit;
    if (!id)
        return false;
    change->removes = true;
    change->patient = sim_one_in(sim, 2) || sim->fate == SIM_FATE_DISORDER;
    change->id = id;
    if (sim_one_in(sim, 6))
        change->ill = SIM_ILL_REFUSES + (enum sim_ill)sim_below(sim, 2);
    change->odd = (int)sim_below(sim, (uint64_t)sim->size);
    for (int i = 0; i < sim->change_count; i++) /* the last one of this id */
        if (sim->changes[i].team && sim->changes[i].id == id)
            change->team = sim->changes[i].team;
    if (change->ill != SIM_ILL_NOT)
        return true;
    struct horon_set *set = horon_sets_find(model, id);
    horon_sets_remove(model, set);
    horon_free(set);
    return true;
}

void sim_sets_draw(struct simulation *sim)
{
    struct horon_sets model;
    const horon_status_t status = horon_sets_init(&model, sim->size);
    const int count = 1 + (int)sim_below(sim, CHANGES_MAX);
    assert(status == HORON_OK);
    sim->changes = calloc(CHANGES_MAX, sizeof *sim->changes);
    assert(sim->changes);
    for (int i = 0; i < count; i++) {
        struct sim_change *change = &sim->changes[i];
        const bool removes = sim->team_count == SIM_TEAMS_MAX || sim_one_in(sim, 2);
        if (removes && draw_removal(sim, &model, change)) {
            sim->change_count++;
            continue;
        }
        if (sim->team_count == SIM_TEAMS_MAX)
            break;
        draw_addition(sim, &model, change);
        sim->change_count++;
    }
    horon_sets_deinit(&model);
}

bool sim_team_is_vain(const struct simulation *sim, int team)
{
    for (int i = 0; i < sim->change_count; i++)
        if (team && sim->changes[i].team == team && sim->changes[i].ill == SIM_ILL_LACKS)
            return true;
    return false;
}

int32_t sim_team_id(const struct simulation *sim, int team)
{
    for (int i = 0; team && i < sim->change_count; i++)
        if (sim->changes[i].team == team)
            return sim->changes[i].id;
    return team;
}
