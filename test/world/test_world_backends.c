/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake backend beside this library's own, under whole engines: what goes to which, what
 * DETERMINISTIC keeps from it, that named and in-order operations wait for each other on it as on
 * any, and what all ranks are told when it dies.
 */
#undef NDEBUG
#include "collectives/backend/fake.h"
#include "world/teams.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

enum { RANKS = 3, COUNT = 7, OPS = 12 };

/* Three ranks on two hosts, and a fake that goes before this library's own. */
struct bed {
    struct fake fake;
    const struct horon_backend *backends[2];
    struct world *world;
    float in[RANKS][OPS][COUNT], out[RANKS][OPS][RANKS * COUNT];
    char lines[8192];
};

static void keep_line(void *arg, horon_log_level_t level, const char *text)
{
    struct bed *bed = arg;
    const size_t used = strlen(bed->lines);
    (void)level;
    snprintf(bed->lines + used, sizeof bed->lines - used, "%s\n", text);
}

static int make(void **state)
{
    struct bed *bed = test_calloc(1, sizeof *bed);
    fake_init(&bed->fake, "fake", HORON_BACKEND_ANY_THREAD);
    bed->fake.base.address_words = 2;
    bed->fake.connects = 3;
    bed->backends[0] = &bed->fake.base;
    bed->backends[1] = &horon_backend_native;
    for (int rank = 0; rank < RANKS; rank++)
        for (int op = 0; op < OPS; op++)
            for (int i = 0; i < COUNT; i++) /* of which the order of additions shows */
                bed->in[rank][op][i] = rank == 0 ? 1.0f : rank == 1 ? 1e8f : -1e8f;
    *state = bed;
    return 0;
}

static int end(void **state)
{
    struct bed *bed = *state;
    world_destroy(bed->world);
    assert_int_equal(bed->fake.opened, RANKS);
    assert_int_equal(bed->fake.closed, RANKS);
    test_free(bed);
    return 0;
}

static void start_on(struct bed *bed, const int *hosts, int host_count, const char *setting)
{
    const char *settings[] = {"FUSION_BYTES=0", setting,
                              NULL}; /* so that operations can be counted */
    struct horon_error error = {0};
    bed->world = world_create_bare(hosts, host_count, settings, 1);
    bed->world->log =
        (struct horon_log){.level = HORON_LOG_INFO, .fn = keep_line, .arg = bed, .rank = -1};
    bed->world->backends = bed->backends;
    bed->world->backend_count = 2;
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(world_make_engine(bed->world, rank, &error), HORON_OK);
}

static void start(struct bed *bed, const char *setting)
{
    start_on(bed, (int[]){2, 1}, 2, setting);
}

/* A mixture of verbs; every third is in order. Each rank submits the named ones in its own order.
 */
static horon_descriptor_t describe(struct bed *bed, int rank, int number, char name[16])
{
    static const horon_verb_t verbs[] = {HORON_ALLREDUCE, HORON_BROADCAST, HORON_ALLGATHER,
                                         HORON_BARRIER};
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    snprintf(name, 16, "op %d", number);
    desc.verb = verbs[number % 4];
    desc.name = name;
    desc.flags = number % 3 ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.root = number % RANKS;
    desc.src = bed->in[rank][number];
    desc.dst = bed->out[rank][number];
    desc.count = COUNT;
    desc.dst_count = RANKS * COUNT; /* of an allgather */
    return desc;
}

static void submit_all(struct bed *bed, struct horon_request *requests[RANKS * OPS])
{
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < OPS; i += 3) { /* those in order, in order */
            char name[16];
            horon_descriptor_t desc = describe(bed, rank, i, name);
            requests[rank * OPS + i] = world_submit(bed->world, rank, &desc);
        }
        for (int i = 0; i < OPS; i++) {
            const int number = (i * 5 + rank * 7) % OPS;
            char name[16];
            horon_descriptor_t desc = describe(bed, rank, number, name);
            if (number % 3)
                requests[rank * OPS + number] = world_submit(bed->world, rank, &desc);
        }
    }
}

static void release_all(struct horon_request *requests[RANKS * OPS])
{
    for (int i = 0; i < RANKS * OPS; i++)
        world_release(requests[i]);
}

/* @param sum  of one allreduce, which says in which order it was added */
static void expect_right(struct bed *bed, float sum)
{
    struct horon_request *requests[RANKS * OPS];
    submit_all(bed, requests);
    assert_true(world_turn_until(bed->world, requests, RANKS * OPS));
    for (int i = 0; i < RANKS * OPS; i++)
        if (requests[i]->status != HORON_OK)
            fail_msg("%s", requests[i]->error_text);
    for (int rank = 0; rank < RANKS; rank++)
        for (int op = 0; op < OPS; op++)
            for (int i = 0; i < COUNT * (op % 4 == 2 ? RANKS : op % 4 == 3 ? 0 : 1); i++) {
                const float expected = op % 4 == 0   ? sum
                                       : op % 4 == 1 ? bed->in[op % RANKS][op][i]
                                                     : bed->in[i / COUNT][op][i % COUNT];
                assert_true(bed->out[rank][op][i] == expected);
            }
    release_all(requests);
}

/* (1 + 1e8) - 1e8 from left to right; so is the tree of two hosts of 2 and 1 ranks. */
#define SUM_OF_THREE 0.0f

static void test_world_backends_share_the_work_as_the_choice_says(void **state)
{
    struct bed *bed = *state;
    bed->fake.delay = 3;
    start(bed, "DETERMINISTIC=0");
    expect_right(bed, SUM_OF_THREE);
    /* an allgather as a broadcast of each rank */
    assert_int_equal(bed->fake.lanes[0].done + bed->fake.lanes[1].done, OPS / 4 * (3 + RANKS));
    assert_null(strstr(bed->lines, "does not carry"));
}

static void test_world_backends_without_the_tree_get_no_sums_if_deterministic(void **state)
{
    struct bed *bed = *state;
    start(bed, "DETERMINISTIC=1");
    expect_right(bed, SUM_OF_THREE);
    assert_int_equal(bed->fake.lanes[0].done + bed->fake.lanes[1].done, OPS / 4 * (2 + RANKS));
    assert_non_null(strstr(bed->lines, "backend fake does not carry allreduce of float32 with "
                                       "HORON_DETERMINISTIC=1: native does"));
}

static void test_world_backends_that_are_not_usable_are_done_without(void **state)
{
    struct bed *bed = *state;
    bed->fake.refuses = "its library was not found";
    start(bed, NULL);
    expect_right(bed, SUM_OF_THREE);
    assert_non_null(strstr(bed->lines, "backend fake is not used: its library was not found"));
}

static void test_world_backends_launch_ahead_if_they_take_several(void **state)
{
    struct bed *bed = *state;
    bed->fake.base.launched_max = FAKE_LAUNCHED_MAX;
    bed->fake.lacks = 0; /* but nothing here is an allgather */
    start(bed, NULL);
    struct horon_request *requests[RANKS * OPS];
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < OPS; i++) {
            horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
            desc.flags = HORON_IN_ORDER;
            desc.dtype = HORON_FLOAT32;
            desc.src = bed->in[rank][i];
            desc.dst = bed->out[rank][i];
            desc.count = COUNT;
            requests[rank * OPS + i] = world_submit(bed->world, rank, &desc);
        }
    assert_true(world_turn_until(bed->world, requests, RANKS * OPS));
    for (int i = 0; i < RANKS * OPS; i++)
        assert_int_equal(requests[i]->status, HORON_OK);
    assert_in_range(bed->fake.begun_most, 2, FAKE_LAUNCHED_MAX);
    release_all(requests);
}

/* All ranks hear the same, and the backend is told to let go before the buffers are the user's. */
static void test_world_backends_that_die_fail_the_team_by_name(void **state)
{
    struct bed *bed = *state;
    struct horon_request *requests[RANKS * OPS];
    bed->fake.dies_on = 1;
    bed->fake.dies_at = 1;
    start(bed, NULL);
    submit_all(bed, requests);
    assert_true(world_turn_until(bed->world, requests, RANKS * OPS));
    int failed[RANKS] = {0};
    for (int i = 0; i < RANKS * OPS; i++) {
        if (requests[i]->status == HORON_OK)
            continue;
        failed[i / OPS]++;
        assert_int_equal(requests[i]->status, HORON_ERR_SYSTEM);
        assert_non_null(strstr(requests[i]->error_text, "the device of backend fake is gone"));
    }
    for (int rank = 0; rank < RANKS; rank++)
        assert_true(failed[rank] > 0);
    bool aborted = false;
    for (int lane = 0; lane < 2; lane++)
        for (int rank = 0; rank < RANKS; rank++) {
            const struct fake_channel *channel = bed->fake.lanes[lane].channels[rank];
            if (!channel)
                continue; /* the ranks had not agreed yet that all can use it */
            assert_true(channel->aborted || channel->begun == channel->ended);
            aborted |= rank == 1 && channel->aborted;
        }
    assert_true(aborted);
    release_all(requests);
}

/* What all were told, and that nobody turns for a channel that was given up. */
static void expect_given_up(struct bed *bed, struct horon_request *requests[RANKS],
                            horon_status_t status, const char *text)
{
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(requests[rank]->status, status);
        assert_non_null(strstr(requests[rank]->error_text, text));
        assert_int_equal(horon_engine_interval_ns(bed->world->ranks[rank].engine), 0);
        world_release(requests[rank]);
    }
}

static void submit_one_of_each(struct bed *bed, struct horon_request *requests[RANKS])
{
    for (int rank = 0; rank < RANKS; rank++) {
        char name[16];
        horon_descriptor_t desc = describe(bed, rank, 1, name);
        requests[rank] = world_submit(bed->world, rank, &desc);
    }
}

static void test_world_backends_that_one_rank_cannot_connect_fail_the_team(void **state)
{
    struct bed *bed = *state;
    struct horon_request *requests[RANKS];
    bed->fake.unconnected = 1u << 1;
    start(bed, NULL);
    submit_one_of_each(bed, requests);
    assert_true(world_turn_until(bed->world, requests, RANKS));
    expect_given_up(bed, requests, HORON_ERR_SYSTEM, "no way to the other ranks");
}

static void test_world_backends_that_connect_wait_for_no_rank_that_left(void **state)
{
    struct bed *bed = *state;
    struct horon_request *requests[RANKS];
    bed->fake.connects = INT_MAX;
    start(bed, NULL);
    submit_one_of_each(bed, requests);
    while (bed->fake.connecting == 0)
        for (int rank = 0; rank < RANKS; rank++)
            horon_engine_progress(bed->world->ranks[rank].engine);
    horon_engine_leave(bed->world->ranks[2].engine);
    assert_true(world_turn_until(bed->world, requests, RANKS));
    expect_given_up(bed, requests, HORON_ERR_CLOSED, "shut down");
}

/* One of a job of all ranks and a team of the first two, in order or by name. */
static struct horon_request *submit_sum(struct bed *bed, struct world_team *team, int rank,
                                        int number)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    char name[16];
    snprintf(name, sizeof name, "sum %d", number);
    desc.name = number % 2 ? name : NULL;
    desc.flags = number % 2 ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = bed->in[rank][number];
    desc.dst = bed->out[rank][number];
    desc.count = COUNT;
    return team ? world_team_submit(team, rank, &desc) : world_submit(bed->world, rank, &desc);
}

/* Each rank submits to one team first, and each launch occupies its device until all have it. */
static void test_world_backends_that_want_one_order_get_it_from_overlapping_teams(void **state)
{
    struct bed *bed = *state;
    static const int map[RANKS] = {0, 1, 2};
    struct fake_device devices[RANKS] = {0};
    struct horon_request *requests[RANKS * OPS] = {0};
    bed->fake.base.caps |= HORON_BACKEND_ONE_LAUNCH_ORDER;
    bed->fake.devices = devices;
    bed->fake.device_of = map;
    start(bed, NULL);
    struct world_team *team = world_team_create(bed->world, 1, map, 2);
    for (int member = 0; member < 2; member++)
        world_team_add(team, member);
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < OPS; i++) {
            const int number = (i + (rank == 1 ? OPS / 2 : 0)) % OPS;
            const bool of_job = number < OPS / 2;
            if (of_job || rank < 2)
                requests[rank * OPS + number] = submit_sum(bed, of_job ? NULL : team, rank, number);
        }
    assert_true(world_turn_until(bed->world, requests, RANKS * OPS));
    for (int i = 0; i < RANKS * OPS; i++)
        if (requests[i])
            assert_int_equal(requests[i]->status, HORON_OK);
    for (int lane = 0; lane < FAKE_LANES_MAX; lane++)
        assert_int_equal(bed->fake.lanes[lane].done, OPS / FAKE_LANES_MAX);
    release_all(requests);
    world_team_destroy(team);
}

/* Tickets that some rank has proposed or drawn when the membership is replaced are drawn anew. */
static void test_world_backends_keep_one_order_in_another_membership(void **state)
{
    enum { REPLACEMENTS = 5 };
    static const int map[RANKS] = {0, 1, 2};
    struct bed *bed = *state;
    struct fake_device devices[RANKS] = {0};
    struct horon_request *requests[RANKS * OPS] = {0};
    bed->fake.base.caps |= HORON_BACKEND_ONE_LAUNCH_ORDER;
    bed->fake.devices = devices;
    bed->fake.device_of = map;
    start_on(bed, (int[]){RANKS}, 1, NULL);
    struct world_team *team = world_team_create(bed->world, 1, map, 2);
    for (int member = 0; member < 2; member++)
        world_team_add(team, member);
    int replaced = 0;
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < OPS; i += 2) { /* in order: nothing is decided meanwhile */
            const int number = (i + (rank == 1 ? OPS / 2 : 0)) % OPS;
            const bool of_job = number < OPS / 2;
            if (of_job || rank < 2)
                requests[rank * OPS + number] = submit_sum(bed, of_job ? NULL : team, rank, number);
        }
    for (int turn = 0; turn < 1000; turn++) {
        const int rank = (int)(world_random(bed->world) % RANKS);
        struct horon_engine *engine = bed->world->ranks[rank].engine;
        if (engine->tickets.first && replaced < REPLACEMENTS)
            replaced += world_replace(bed->world);
        horon_engine_progress(engine);
    }
    assert_int_equal(replaced, REPLACEMENTS);
    assert_true(world_turn_until(bed->world, requests, RANKS * OPS));
    for (int i = 0; i < RANKS * OPS; i++)
        if (requests[i])
            assert_int_equal(requests[i]->status, HORON_OK);
    release_all(requests);
    world_team_destroy(team);
}

/* While an operation is launched on one, and only then, a rank that sleeps looks up by itself. */
static void test_world_backends_that_wake_nobody_are_looked_at(void **state)
{
    struct bed *bed = *state;
    struct horon_request *requests[2 * RANKS] = {0};
    start(bed, NULL);
    for (int rank = 0; rank < RANKS; rank++) /* after it all have agreed */
        requests[rank] = submit_sum(bed, NULL, rank, 0);
    assert_true(world_turn_until(bed->world, requests, RANKS));
    const struct horon_engine *first = bed->world->ranks[0].engine;
    assert_int_equal(horon_engine_interval_ns(first), 0);
    requests[RANKS] = submit_sum(bed, NULL, 0, 2);
    while (horon_engine_progress(bed->world->ranks[0].engine))
        ;
    assert_int_equal(horon_engine_interval_ns(first), FAKE_INTERVAL_NS);
    for (int rank = 1; rank < RANKS; rank++)
        requests[RANKS + rank] = submit_sum(bed, NULL, rank, 2);
    assert_true(world_turn_until(bed->world, requests, (size_t)2 * RANKS));
    assert_int_equal(horon_engine_interval_ns(first), 0);
    for (int i = 0; i < 2 * RANKS; i++)
        world_release(requests[i]);
}

static struct world_team *make_pair(struct bed *bed, struct horon_request *requests[2])
{
    static const int map[2] = {0, 2};
    start(bed, "DETERMINISTIC=0");
    struct world_team *team = world_team_create(bed->world, 1, map, 2);
    for (int member = 0; member < 2; member++) {
        world_team_add(team, member);
        requests[member] = submit_sum(bed, team, member, 0);
    }
    return team;
}

/* @return what it says of it */
static uint8_t part(struct world_team *team, int member)
{
    struct horon_engine_team *here = team->members[member];
    return horon_engine_part_team(here->engine, here);
}

/* Where it is removed, or fails, and another one may be at an operation: what they share stays. */
static void test_world_backends_know_what_ranks_have_not_settled(void **state)
{
    struct bed *bed = *state;
    struct horon_request *requests[2], *late;
    struct world_team *team = make_pair(bed, requests);
    assert_true(world_turn_until(bed->world, requests, 2));
    late = submit_sum(bed, team, 1, 2);
    assert_int_equal(part(team, 0), HORON_TEAM_SETTLED | 1u << HORON_LANE_ORDERED);
    assert_int_equal(part(team, 1), 1u << HORON_LANE_ORDERED);
    horon_team_unsettle(team->members[0]);
    world_team_remove(team, 0);
    assert_int_equal(bed->fake.unsettled, 1); /* the lane that has one */
    horon_team_lacks_memory(team->members[1], "none");
    world_team_remove(team, 1);
    assert_int_equal(bed->fake.unsettled, 2);
    world_release(requests[0]);
    world_release(requests[1]);
    world_release(late);
    world_team_destroy(team);
}

/* What ranks of a team that is about to be removed make together, they end; it carries nothing. */
static void test_world_backends_are_connected_and_not_used_where_a_team_parts(void **state)
{
    struct bed *bed = *state;
    struct horon_request *requests[2];
    struct world_team *team = make_pair(bed, requests);
    for (int turn = 0; turn < 1000 && !bed->fake.connecting; turn++)
        horon_engine_progress(team->members[turn % 2]->engine);
    for (int member = 0; member < 2; member++)
        assert_int_equal(part(team, member), 1u << HORON_LANE_ORDERED);
    for (int turn = 0; turn < 1000; turn++)
        horon_engine_progress(team->members[turn % 2]->engine);
    assert_int_equal(bed->fake.begun_most, 0);
    for (int member = 0; member < 2; member++) {
        assert_int_equal(horon_team_opens(team->members[member]), 0);
        world_team_remove(team, member);
        assert_int_equal(requests[member]->status, HORON_ERR_CLOSED);
        world_release(requests[member]);
    }
    world_team_destroy(team);
}

static void turn(struct bed *bed, int first, int last)
{
    for (int i = 0; i < 100; i++)
        for (int rank = first; rank <= last; rank++)
            horon_engine_progress(bed->world->ranks[rank].engine);
}

/* Rank 2 has decided about a sum, but never tells its number for it; it leaves when it is done with
 * its own broadcast, whose number is higher on the other ranks. */
static void test_world_backends_go_on_without_the_ticket_of_a_rank_that_left(void **state)
{
    struct bed *bed = *state;
    struct horon_request *sums[RANKS], *broadcasts[RANKS];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    bed->fake.base.caps |= HORON_BACKEND_ONE_LAUNCH_ORDER;
    bed->fake.roots_end_first = true;
    start_on(bed, (int[]){RANKS}, 1, "DETERMINISTIC=0");
    for (int number = 0; number < 2; number++) { /* after these all have agreed on backends */
        struct horon_request *requests[RANKS];
        for (int rank = 0; rank < RANKS; rank++)
            requests[rank] = submit_sum(bed, NULL, rank, number);
        assert_true(world_turn_until(bed->world, requests, RANKS));
        for (int rank = 0; rank < RANKS; rank++)
            world_release(requests[rank]);
    }
    for (int rank = RANKS - 1; rank >= 0; rank--)
        sums[rank] = submit_sum(bed, NULL, rank, 3);
    turn(bed, 2, 2); /* it tells that it has the sum, and hears no more */
    turn(bed, 0, 1);
    desc.verb = HORON_BROADCAST;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.root = 2;
    desc.count = COUNT;
    for (int rank = 0; rank < RANKS; rank++) {
        desc.src = desc.dst = bed->out[rank][0];
        broadcasts[rank] = world_submit(bed->world, rank, &desc);
    }
    struct horon_engine *leaver = bed->world->ranks[2].engine;
    while (!broadcasts[2]->status && bed->fake.lanes[0].channels[2]->ended < 2) {
        turn(bed, 0, 1);
        horon_engine_take_posts(leaver);
        horon_engine_advance(horon_engine_job(leaver), true);
    }
    horon_engine_leave(leaver);
    assert_true(world_turn_until(bed->world, broadcasts, RANKS));
    assert_true(world_turn_until(bed->world, sums, RANKS));
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(broadcasts[rank]->status, HORON_OK);
        assert_int_equal(sums[rank]->status, HORON_ERR_CLOSED);
        if (rank != 2)
            assert_non_null(strstr(sums[rank]->error_text, "rank 2 (host-0) has shut down"));
        world_release(broadcasts[rank]);
        world_release(sums[rank]);
    }
}

/* Its data shows nothing of the operation: different ones are found before they are launched. */
static void test_world_backends_that_show_no_check_are_given_what_all_began(void **state)
{
    struct bed *bed = *state;
    struct horon_request *requests[RANKS];
    char number[32];
    bed->fake.base.caps |= HORON_BACKEND_UNCHECKED;
    start(bed, "DETERMINISTIC=0");
    for (int i = 0; i < OPS; i++) { /* by name and in order */
        for (int rank = 0; rank < RANKS; rank++)
            requests[rank] = submit_sum(bed, NULL, rank, i);
        assert_true(world_turn_until(bed->world, requests, RANKS));
        for (int rank = 0; rank < RANKS; rank++) {
            assert_int_equal(requests[rank]->status, HORON_OK);
            world_release(requests[rank]);
        }
    }
    for (int rank = 0; rank < RANKS; rank++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_FLOAT32;
        desc.src = desc.dst = bed->out[rank][0];
        desc.count = rank == 1 ? COUNT - 1 : COUNT;
        requests[rank] = world_submit(bed->world, rank, &desc);
    }
    assert_true(world_turn_until(bed->world, requests, RANKS));
    snprintf(number, sizeof number, "operation %d in order", OPS / 2);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(requests[rank]->status, HORON_ERR_MISMATCH);
        assert_int_equal(requests[rank]->blame.cause, HORON_CAUSE_ORDER);
        assert_non_null(strstr(requests[rank]->error_text, number));
        assert_non_null(strstr(requests[rank]->error_text, "began allreduce of 7 float32, sum"));
        assert_non_null(strstr(requests[rank]->error_text, "began allreduce of 6 float32, sum"));
        world_release(requests[rank]);
    }
    assert_int_equal(bed->fake.lanes[0].channels[0]->begun, OPS / 2);
}

/* Which backend is preferred depends on the size, and each rank knows its own. */
static void test_world_backends_that_ranks_choose_differently_are_found_out(void **state)
{
    struct bed *bed = *state;
    struct horon_request *requests[RANKS];
    bed->fake.base.caps |= HORON_BACKEND_UNCHECKED;
    bed->backends[0] = &horon_backend_native;
    bed->backends[1] = &bed->fake.base;
    bed->fake.prefers_from = COUNT * sizeof(float);
    start(bed, "DETERMINISTIC=0");
    for (int time = 0; time < 2; time++) { /* the second: all are connected */
        for (int rank = 0; rank < RANKS; rank++) {
            horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
            desc.flags = HORON_IN_ORDER;
            desc.dtype = HORON_FLOAT32;
            desc.src = desc.dst = bed->out[rank][0];
            desc.count = rank == 1 && time == 1 ? COUNT - 1 : COUNT;
            requests[rank] = world_submit(bed->world, rank, &desc);
        }
        assert_true(world_turn_until(bed->world, requests, RANKS));
        for (int rank = 0; rank < RANKS; rank++) {
            assert_int_equal(requests[rank]->status, time ? HORON_ERR_MISMATCH : HORON_OK);
            world_release(requests[rank]);
        }
    }
    assert_int_equal(bed->fake.lanes[0].done, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, end)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_world_backends_share_the_work_as_the_choice_says),
        TEST(test_world_backends_without_the_tree_get_no_sums_if_deterministic),
        TEST(test_world_backends_that_are_not_usable_are_done_without),
        TEST(test_world_backends_launch_ahead_if_they_take_several),
        TEST(test_world_backends_that_die_fail_the_team_by_name),
        TEST(test_world_backends_that_one_rank_cannot_connect_fail_the_team),
        TEST(test_world_backends_that_connect_wait_for_no_rank_that_left),
        TEST(test_world_backends_that_wake_nobody_are_looked_at),
        TEST(test_world_backends_know_what_ranks_have_not_settled),
        TEST(test_world_backends_are_connected_and_not_used_where_a_team_parts),
        TEST(test_world_backends_that_want_one_order_get_it_from_overlapping_teams),
        TEST(test_world_backends_keep_one_order_in_another_membership),
        TEST(test_world_backends_that_show_no_check_are_given_what_all_began),
        TEST(test_world_backends_that_ranks_choose_differently_are_found_out),
        TEST(test_world_backends_go_on_without_the_ticket_of_a_rank_that_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
