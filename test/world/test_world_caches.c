/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each team has a cache of names of its own: what one team is called for evicts no name of another
 * one's, though the same ranks are in both. Whether an id got another meaning is read off the
 * coordinators.
 */
#undef NDEBUG
#include "coordinator/state.h"
#include "world/teams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define RANKS_MAX 6

static const struct {
    int hosts[RANKS_MAX], count;
} layouts[] = {{{4}, 1}, {{1, 1, 1}, 3}, {{3, 1, 2}, 3}};
#define LAYOUTS (sizeof layouts / sizeof layouts[0])

static struct world_team *make_team(struct world *world, uint32_t id)
{
    int ranks[RANKS_MAX];
    for (int rank = 0; rank < world->size; rank++)
        ranks[rank] = rank;
    struct world_team *team = world_team_create(world, id, ranks, world->size);
    for (int member = 0; member < team->size; member++)
        world_team_add(team, member);
    return team;
}

static void sum_by_names(struct world_team *team, const char *const *names, int count)
{
    for (int i = 0; i < count; i++) {
        int32_t values[RANKS_MAX];
        struct horon_request *requests[RANKS_MAX];
        for (int member = 0; member < team->size; member++) {
            horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
            values[member] = member;
            desc.verb = HORON_ALLREDUCE;
            desc.name = names[i];
            desc.dtype = HORON_INT32;
            desc.count = 1;
            desc.src = desc.dst = &values[member];
            requests[member] = world_team_submit(team, member, &desc);
        }
        assert_true(world_turn_until(team->world, requests, (size_t)team->size));
        for (int member = 0; member < team->size; member++) {
            assert_int_equal(values[member], team->size * (team->size - 1) / 2);
            world_release(requests[member]);
        }
    }
}

/* @return after how many batches an id of a team's cache last got a meaning, on any member */
static uint64_t last_renewal(const struct world_team *team)
{
    uint64_t last = 0;
    for (int member = 0; member < team->size; member++) {
        const struct horon_coordinator *c = team->members[member]->coordinator;
        assert_int_equal(c->slot_capacity, 2);
        for (uint32_t id = 0; id < c->slot_capacity; id++)
            if (c->slots[id].since > last)
                last = c->slots[id].since;
    }
    return last;
}

static void test_caches_of_teams_are_apart(void **state)
{
    static const char *const small[] = {"CACHE_ENTRIES=2", NULL};
    static const char *const names[2][3] = {{"a", "b", "more"}, {"c", "d", "more"}};
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++) {
        struct world *world = world_create(layouts[layout].hosts, layouts[layout].count, small, 7);
        struct world_team *teams[2];
        uint64_t before[2];
        for (int t = 0; t < 2; t++) {
            teams[t] = make_team(world, (uint32_t)t + 1);
            sum_by_names(teams[t], names[t], 2);
            before[t] = last_renewal(teams[t]);
            assert_true(before[t] > 0);
        }
        for (int round = 0; round < 5; round++)
            for (int t = 0; t < 2; t++)
                sum_by_names(teams[t], names[t], 2);
        for (int t = 0; t < 2; t++)
            assert_int_equal(last_renewal(teams[t]), before[t]);
        sum_by_names(teams[1], names[1], 3); /* one too many, of that team */
        assert_int_equal(last_renewal(teams[0]), before[0]);
        assert_true(last_renewal(teams[1]) > before[1]);
        for (int t = 0; t < 2; t++)
            world_team_destroy(teams[t]);
        world_destroy(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_caches_of_teams_are_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
