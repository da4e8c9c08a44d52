/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank gives up while a backend's library has it may keep that library from ending on other
 * ranks, of other teams, too, whose jobs are well: each other host hears of it.
 */
#undef NDEBUG
#include "collectives/backend/fake.h"
#include "engine/engine_state.h"
#include "world/teams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

enum { RANKS = 3, MEMBERS = 2 };

/* Ranks 0 and 1 share a host, and a team. */
struct bed {
    struct fake fake;
    const struct horon_backend *backends[2];
    struct world *world;
    struct world_team *team;
    float in[MEMBERS], out[MEMBERS];
    struct horon_request *requests[MEMBERS];
};

static int make(void **state)
{
    static const int hosts[] = {2, 1}, members[] = {0, 1};
    const char *const settings[] = {NULL};
    struct horon_error error = {0};
    struct bed *bed = test_calloc(1, sizeof *bed);
    fake_init(&bed->fake, "fake", HORON_BACKEND_ANY_THREAD | HORON_BACKEND_KEEPS_TREE);
    bed->fake.base.address_words = 2;
    bed->backends[0] = &bed->fake.base;
    bed->backends[1] = &horon_backend_native;
    bed->world = world_create_bare(hosts, 2, settings, 1);
    bed->world->backends = bed->backends;
    bed->world->backend_count = 2;
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(world_make_engine(bed->world, rank, &error), HORON_OK);
    bed->team = world_team_create(bed->world, 1, members, MEMBERS);
    for (int member = 0; member < MEMBERS; member++)
        world_team_add(bed->team, member);
    *state = bed;
    return 0;
}

static void submit(struct bed *bed)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_ALLREDUCE;
    desc.name = "sum";
    desc.dtype = HORON_FLOAT32;
    desc.count = 1;
    for (int member = 0; member < MEMBERS; member++) {
        desc.src = &bed->in[member];
        desc.dst = &bed->out[member];
        bed->requests[member] = world_team_submit(bed->team, member, &desc);
    }
}

static void turn(struct bed *bed)
{
    for (int rank = 0; rank < RANKS; rank++)
        horon_engine_progress(bed->world->ranks[rank].engine);
}

/* Is an operation with the fake on every member? */
static bool has_all(const struct bed *bed)
{
    bool has = false;
    for (int i = 0; i < FAKE_LANES_MAX && !has; i++) {
        struct fake_channel *const *channels = bed->fake.lanes[i].channels;
        has = channels[0] && channels[1] && channels[0]->begun > channels[0]->ended &&
              channels[1]->begun > channels[1]->ended;
    }
    return has;
}

/* @return which contexts of the fake's did not leave in peace, by rank */
static unsigned leave(struct bed *bed)
{
    for (int member = 0; member < MEMBERS; member++) {
        world_team_remove(bed->team, member);
        world_release(bed->requests[member]);
    }
    for (int i = 0; i < 10; i++)
        turn(bed);
    world_team_destroy(bed->team);
    world_destroy(bed->world);
    return bed->fake.disturbed;
}

static int end(void **state)
{
    test_free(*state);
    return 0;
}

static void test_world_gave_up_of_one_team_is_heard_on_other_hosts(void **state)
{
    struct bed *bed = *state;
    bed->fake.delay = INT32_MAX;
    submit(bed);
    for (int i = 0; i < 1000 && !has_all(bed); i++)
        turn(bed);
    assert_true(has_all(bed));
    assert_true(leave(bed) >> 2 & 1);
}

static void test_world_gave_up_nothing_that_has_ended(void **state)
{
    struct bed *bed = *state;
    submit(bed);
    assert_true(world_turn_until(bed->world, bed->requests, MEMBERS));
    assert_int_equal(leave(bed), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_world_gave_up_of_one_team_is_heard_on_other_hosts,
                                        make, end),
        cmocka_unit_test_setup_teardown(test_world_gave_up_nothing_that_has_ended, make, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
