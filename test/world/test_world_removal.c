/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Teams that a rank removes while much is on its way: what it had completed the other members
 * complete, too, however little they took of what it said before; what was submitted to a team ends
 * with it, also on a rank that has ended its requests already; and what came for it takes no room.
 */
#undef NDEBUG
#include "link/mux_internal.h"
#include "world/teams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, NAMES = 1200 };

static const int hosts[] = {RANKS}, ranks[] = {0, 1};

static struct world_team *make_team(struct world *world)
{
    struct world_team *team = world_team_create(world, 1, ranks, RANKS);
    for (int rank = 0; rank < RANKS; rank++)
        world_team_add(team, rank);
    return team;
}

/* From rank 0. */
static struct horon_request *submit(struct world_team *team, int rank, const char *name, float *at)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_BROADCAST;
    desc.name = name;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = at;
    desc.count = 1;
    return world_team_submit(team, rank, &desc);
}

/* So that it has its memory. */
static void use_team(struct world_team *team)
{
    struct horon_request *requests[RANKS];
    float data[RANKS] = {0};
    for (int rank = 0; rank < RANKS; rank++)
        requests[rank] = submit(team, rank, "first", &data[rank]);
    assert_true(world_turn_until(team->world, requests, RANKS));
    for (int rank = 0; rank < RANKS; rank++)
        world_release(requests[rank]);
}

static bool has_ended(const struct horon_request *request)
{
    return atomic_load(&request->state) == HORON_REQUEST_ENDED;
}

static void submit_many(struct world_team *team, int rank, float *data,
                        struct horon_request **requests)
{
    char name[128];
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "a name of more than a hundred bytes, as models have: %060d",
                 i);
        data[i] = rank == 0 ? (float)i : -1;
        requests[i] = submit(team, rank, name, &data[i]);
    }
}

/* Of what rank 0 has decided more is on its way to rank 1 than their ring holds. */
static void decide_many(struct world_team *team, float data[RANKS][NAMES],
                        struct horon_request *requests[RANKS][NAMES])
{
    struct world *world = team->world;
    use_team(team);
    submit_many(team, 1, data[1], requests[1]);
    for (int turn = 0; turn < 200; turn++)
        horon_engine_progress(world->ranks[turn % RANKS].engine);
    submit_many(team, 0, data[0], requests[0]);
    for (int turn = 0; turn < 100 && !has_ended(requests[0][0]); turn++)
        horon_engine_progress(world->ranks[0].engine);
    assert_true(has_ended(requests[0][0]));
    assert_int_equal(requests[0][0]->status, HORON_OK);
    assert_true(horon_team_rings_unsent(team->members[0], true));
}

/* @param patient rank 0 waits until rank 1 has taken what it said; else, after long, it goes */
static void remove_with_much_unsent(bool patient)
{
    static struct horon_request *requests[RANKS][NAMES];
    static float data[RANKS][NAMES];
    struct world *world = world_create(hosts, 1, NULL, 1);
    struct world_team *team = make_team(world);
    decide_many(team, data, requests);
    if (patient) {
        world_team_remove(team, 0);
    } else {
        horon_engine_remove_team(world->ranks[0].engine, team->members[0]);
        team->members[0] = NULL;
    }
    assert_true(world_turn_until(world, requests[1], NAMES));
    for (int i = 0; i < NAMES; i++) {
        const horon_status_t theirs = requests[0][i]->status, status = requests[1][i]->status;
        if (patient)
            assert_int_equal(status, theirs);
        assert_true(status == HORON_ERR_CLOSED || (status == HORON_OK && data[1][i] == (float)i));
        world_release(requests[0][i]);
        world_release(requests[1][i]);
    }
    assert_int_equal(world_failure(world->ranks[1].engine, NULL), HORON_OK);
    world_team_destroy(team);
    world_destroy(world);
}

static void test_removal_loses_nothing_that_was_decided(void **state)
{
    (void)state;
    remove_with_much_unsent(true);
}

static void test_removal_that_waits_no_more_ends_what_others_wait_for(void **state)
{
    (void)state;
    remove_with_much_unsent(false);
}

/* As a process that exits does; it stays in the job for a while. */
static void test_removal_after_all_requests_is_told(void **state)
{
    struct horon_request *requests[RANKS];
    float data[RANKS] = {0};
    (void)state;
    struct world *world = world_create(hosts, 1, NULL, 1);
    struct world_team *team = make_team(world);
    struct horon_engine *engine = world->ranks[0].engine;
    use_team(team);
    horon_engine_end_requests(engine);
    for (int rank = 0; rank < RANKS; rank++)
        requests[rank] = submit(team, rank, "x", &data[rank]);
    world_team_remove(team, 0);
    assert_false(horon_engine_has_post(engine)); /* which would name the team */
    assert_true(world_turn_until(world, requests, RANKS));
    assert_int_equal(requests[0]->status, HORON_ERR_CLOSED);
    assert_int_equal(requests[1]->status, HORON_ERR_CLOSED);
    assert_non_null(strstr(requests[1]->error_text, "has removed the team"));
    assert_int_equal(world_failure(world->ranks[1].engine, NULL), HORON_OK);
    for (int rank = 0; rank < RANKS; rank++)
        world_release(requests[rank]);
    world_team_destroy(team);
    world_destroy(world);
}

static void turn_all(struct world *world)
{
    for (int turn = 0; turn < 20 * RANKS; turn++)
        horon_engine_progress(world->ranks[turn % RANKS].engine);
}

/* Rank 0 alone begins, and what it sends waits on rank 1; either of them is first to remove the
 * team. */
static void test_removal_gives_back_what_came(void **state)
{
    enum { TEAMS = 20 };
    static const int apart[] = {1, 1};
    (void)state;
    struct world *world = world_create(apart, RANKS, NULL, 1);
    const struct horon_mux *mux = world->ranks[1].engine->membership->mux_of[0];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    float one = 1;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = &one;
    desc.count = 1;
    for (uint32_t id = 1; id <= TEAMS; id++) {
        struct world_team *team = world_team_create(world, id, ranks, RANKS);
        world_team_add(team, 0);
        world_team_add(team, 1);
        struct horon_request *request = world_team_submit(team, 0, &desc);
        turn_all(world);
        assert_int_equal(mux->rx.buffered_transfers, 1);
        for (uint32_t i = 0; i < RANKS; i++) {
            world_team_remove(team, (int)((id + i) % RANKS));
            turn_all(world);
        }
        assert_int_equal(request->status, HORON_ERR_CLOSED);
        world_release(request);
        world_team_destroy(team);
        assert_int_equal(mux->rx.buffered_transfers, 0);
        assert_int_equal(mux->rx.buffered_bytes, 0);
    }
    world_destroy(world);
}

/* Rank 1 is killed when it leaves: it has said so in the team, and not yet in the job. */
static void test_removal_is_not_the_end_of_a_rank(void **state)
{
    static const int apart[] = {1, 1};
    (void)state;
    for (int same_host = 0; same_host < 2; same_host++) {
        struct world *world = world_create(same_host ? hosts : apart, 2 - same_host, NULL, 1);
        struct world_team *team = make_team(world);
        float one = 1;
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_FLOAT32;
        desc.src = desc.dst = &one;
        desc.count = 1;
        struct horon_request *request = world_submit(world, 0, &desc);
        turn_all(world);
        horon_team_leave(team->members[1], true);
        turn_all(world);
        assert_true(team->members[0]->departures.any);
        world_kill(world, 1);
        assert_true(world_turn_until(world, &request, 1));
        assert_int_equal(request->status, HORON_ERR_PEER_LOST);
        world_release(request);
        world_team_destroy(team);
        world_destroy(world);
    }
}

/* It has said in the team that it leaves the job, and not yet in the job. */
static void test_removal_is_not_told_of_a_rank_that_leaves_the_job(void **state)
{
    static const int apart[] = {1, 1};
    (void)state;
    for (int same_host = 0; same_host < 2; same_host++) {
        struct world *world = world_create(same_host ? hosts : apart, 2 - same_host, NULL, 1);
        struct world_team *team = make_team(world);
        float one = 1;
        struct horon_request *request = submit(team, 0, "x", &one);
        turn_all(world);
        horon_team_leave(team->members[1], true);
        assert_true(world_turn_until(world, &request, 1));
        assert_int_equal(request->status, HORON_ERR_CLOSED);
        assert_non_null(strstr(request->error_text, "has shut down its context"));
        world_release(request);
        world_team_destroy(team);
        world_destroy(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_removal_loses_nothing_that_was_decided),
        cmocka_unit_test(test_removal_that_waits_no_more_ends_what_others_wait_for),
        cmocka_unit_test(test_removal_gives_back_what_came),
        cmocka_unit_test(test_removal_is_not_the_end_of_a_rank),
        cmocka_unit_test(test_removal_is_not_told_of_a_rank_that_leaves_the_job),
        cmocka_unit_test(test_removal_after_all_requests_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
