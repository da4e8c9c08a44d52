/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every verb on second teams, named and in order: any ranks of a world, in any order, over hosts of
 * many shapes. Each member gets what the model says, and nothing is written behind it.
 */
#undef NDEBUG
#include "world/team_runs.h"

/* The numbers of elements that the verb can have; barriers have none, and an all-to-all without
 * splits has as many for each. */
static uint64_t count_for(horon_verb_t verb, uint64_t count, int size)
{
    if (verb == HORON_BARRIER)
        return 0;
    return verb == HORON_ALLTOALL ? count / (uint64_t)size * (uint64_t)size : count;
}

static void run_every_verb(struct world_team *team)
{
    static const uint64_t counts[] = {0, 1, 13, COUNT_MAX};
    for (uint32_t verb = 0; verb < HORON_VERB_COUNT; verb++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            for (int named = 0; named < 2 && verb != HORON_SEND && verb != HORON_RECV; named++)
                run_one(team, verb, count_for(verb, counts[i], team->size), named);
}

static void test_teams_run_every_verb_over_any_ranks(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++)
        for (int size = 1; size <= layouts[layout].size; size++) {
            struct world *world =
                world_create(layouts[layout].hosts, layouts[layout].count, settings, 7);
            struct world_team *team = draw_team(world, 1, size, 0);
            add_all(team);
            run_every_verb(team);
            world_team_destroy(team);
            world_destroy(world);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_teams_run_every_verb_over_any_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
