/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a join waits for, refuses and fails, by name: operations that need the rank which has
 * joined, those in order, what is submitted behind a join; and that the job, the other teams and
 * the ranks that are left are as they were.
 */
#undef NDEBUG
#include "world/teams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 17

static const struct {
    int hosts[8], count;
} layouts[] = {
    {{1}, 1},       {{2}, 1},       {{5}, 1},          {{1, 1}, 2},
    {{1, 2, 3}, 3}, {{2, 1, 2}, 3}, {{1, 1, 1, 1}, 4}, {{17}, 1},
};
static struct world *world;

static struct horon_engine_team *job(int rank)
{
    return horon_engine_job(world->ranks[rank].engine);
}

static void settle(struct horon_request *const *requests, size_t count)
{
    if (!world_turn_until(world, requests, count))
        fail_msg("hung: seed %llu", (unsigned long long)world->seed);
}

static void turn(int times)
{
    for (int i = 0; i < times; i++)
        for (int rank = 0; rank < world->size; rank++)
            horon_engine_progress(world->ranks[rank].engine);
}

static void open_world(int layout)
{
    world = world_create(layouts[layout].hosts, layouts[layout].count, NULL, 3);
}

static void end_well(struct horon_request *request)
{
    if (request->status != HORON_OK)
        fail_msg("%s", request->error_text);
    world_release(request);
}

static void expect_failure(struct horon_request *request, horon_status_t status,
                           horon_cause_t cause, const char *text)
{
    assert_int_equal(request->status, status);
    assert_non_null(request->error_text);
    if (!strstr(request->error_text, text))
        print_error("'%s' lacks '%s'\n", request->error_text, text);
    assert_non_null(strstr(request->error_text, text));
    assert_int_equal(request->blame.cause, cause);
    world_release(request);
}

static horon_descriptor_t sum_of(const char *name, float *value)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.flags = name ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = value;
    desc.count = 1;
    return desc;
}

/* Every rank but the joined one submits a sum, which ends well. */
static void check_named(int joined)
{
    struct horon_request *requests[RANKS_MAX] = {NULL};
    float values[RANKS_MAX];
    for (int rank = 0; rank < world->size; rank++) {
        values[rank] = 1;
        const horon_descriptor_t desc = sum_of("goes on", &values[rank]);
        if (rank != joined)
            requests[rank] = world_submit(world, rank, &desc);
    }
    settle(requests, RANKS_MAX);
    for (int rank = 0; rank < world->size; rank++)
        if (requests[rank]) {
            end_well(requests[rank]);
            assert_true(values[rank] == (float)(world->size - (joined >= 0)));
        }
}

static struct horon_request *join_one(int rank)
{
    struct horon_request *join = world_join(world, rank, job(rank));
    turn(20);
    assert_int_equal(join->state, HORON_REQUEST_FLYING);
    return join;
}

static void join_rest(struct horon_request *first, int but)
{
    struct horon_request *joins[RANKS_MAX] = {NULL};
    for (int rank = 0; rank < world->size; rank++)
        joins[rank] = rank == but ? first : world_join(world, rank, job(rank));
    settle(joins, RANKS_MAX);
    for (int rank = 0; rank < world->size; rank++)
        end_well(joins[rank]);
}

static void check_root(int joined, horon_verb_t verb)
{
    struct horon_request *requests[RANKS_MAX] = {NULL};
    float values[RANKS_MAX];
    char name[32], why[96];
    for (int rank = 0; rank < world->size; rank++) {
        horon_descriptor_t desc = sum_of("weights", &values[rank]);
        desc.verb = verb;
        desc.root = joined;
        if (horon_verb_rows_differ(&horon_verb_rows[verb]))
            desc.dst = NULL;
        if (rank != joined)
            requests[rank] = world_submit(world, rank, &desc);
    }
    settle(requests, RANKS_MAX);
    snprintf(name, sizeof name, "%s 'weights'", horon_verb_name(verb));
    snprintf(why, sizeof why, "its root, rank %d (host-1), has joined", joined);
    for (int rank = 0; rank < world->size; rank++)
        if (requests[rank]) {
            assert_non_null(requests[rank]->error_text);
            assert_non_null(strstr(requests[rank]->error_text, name));
            expect_failure(requests[rank], HORON_ERR_MISMATCH, HORON_CAUSE_JOINED, why);
        }
}

static void test_world_join_of_root_fails_what_needs_it_alone(void **state)
{
    static const horon_verb_t verbs[] = {HORON_BROADCAST, HORON_GATHER, HORON_SCATTER,
                                         HORON_REDUCE};
    (void)state;
    open_world(4);
    struct horon_request *join = join_one(2);
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        check_root(2, verbs[i]);
        check_named(2);
    }
    join_rest(join, 2);
    check_named(-1);
    world_destroy(world);
}

static void test_world_join_refuses_operations_in_order(void **state)
{
    (void)state;
    for (int layout = 1; layout < 5; layout++) {
        open_world(layout);
        struct horon_request *join = join_one(1);
        float value = 1;
        const horon_descriptor_t desc = sum_of(NULL, &value);
        struct horon_request *request = world_submit(world, 0, &desc);
        settle(&request, 1);
        expect_failure(request, HORON_ERR_MISMATCH, HORON_CAUSE_JOINED,
                       "has joined, and operations in order need every rank");
        check_named(1);
        join_rest(join, 1);
        struct horon_request *requests[RANKS_MAX];
        float values[RANKS_MAX];
        for (int rank = 0; rank < world->size; rank++) { /* the sequence is as it was */
            values[rank] = 1;
            const horon_descriptor_t own = sum_of(NULL, &values[rank]);
            requests[rank] = world_submit(world, rank, &own);
        }
        settle(requests, (size_t)world->size);
        for (int rank = 0; rank < world->size; rank++)
            end_well(requests[rank]);
        world_destroy(world);
    }
}

static void test_world_join_fails_what_was_begun_in_order(void **state)
{
    (void)state;
    for (int layout = 1; layout < 5; layout++) {
        open_world(layout);
        struct horon_request *requests[2];
        float value = 1;
        const horon_descriptor_t desc = sum_of(NULL, &value);
        requests[0] = world_submit(world, 0, &desc);
        turn(3);
        requests[1] = world_join(world, 1, job(1));
        settle(requests, 2);
        for (int i = 0; i < 2; i++)
            expect_failure(requests[i], HORON_ERR_MISMATCH, HORON_CAUSE_ORDER,
                           "has joined after 0 operations in order, and rank 0");
        world_destroy(world);
    }
}

/* A root is done with its broadcast before the others have begun theirs. */
static void test_world_join_leaves_what_the_rank_had_done_in_order(void **state)
{
    (void)state;
    open_world(1);
    float values[2] = {0, 7};
    horon_descriptor_t desc = sum_of(NULL, &values[1]);
    desc.verb = HORON_BROADCAST;
    desc.root = 1;
    struct horon_request *gives = world_submit(world, 1, &desc);
    settle(&gives, 1);
    struct horon_request *join = join_one(1);
    desc.src = desc.dst = &values[0];
    struct horon_request *takes = world_submit(world, 0, &desc);
    settle(&takes, 1);
    assert_true(values[0] == 7);
    end_well(gives);
    end_well(takes);
    join_rest(join, 1);
    world_destroy(world);
}

static void test_world_join_waits_for_what_was_submitted_before(void **state)
{
    (void)state;
    open_world(2);
    float values[RANKS_MAX] = {1, 1, 1, 1, 1};
    horon_descriptor_t desc = sum_of("before", &values[1]);
    struct horon_request *before = world_submit(world, 1, &desc);
    struct horon_request *join = world_join(world, 1, job(1));
    desc = sum_of("behind", &values[2]);
    struct horon_request *behind = world_submit(world, 1, &desc);
    struct horon_request *again = world_join(world, 1, job(1));
    settle(&again, 1);
    expect_failure(behind, HORON_ERR_INVALID, HORON_CAUSE_ARGUMENT, "this rank has joined");
    expect_failure(again, HORON_ERR_INVALID, HORON_CAUSE_ARGUMENT, "this rank has joined");
    turn(20);
    char text[200];
    horon_engine_explain(world->ranks[1].engine, join, text, sizeof text);
    assert_non_null(strstr(text, "behind what was submitted here before, first of all allreduce "
                                 "'before'; that: tensor 'before': "));
    assert_int_equal(horon_engine_awaited(world->ranks[1].engine, join), -1);
    assert_int_equal(join->begun, 0);
    struct horon_request *requests[RANKS_MAX] = {before};
    for (int rank = 0; rank < world->size; rank++) {
        desc = sum_of("before", &values[rank]);
        if (rank != 1)
            requests[rank + 1] = world_submit(world, rank, &desc);
    }
    settle(requests, RANKS_MAX);
    for (int i = 0; i < RANKS_MAX; i++)
        if (requests[i])
            end_well(requests[i]);
    turn(20);
    assert_int_equal(join->begun, 1);
    horon_engine_explain(world->ranks[1].engine, join, text, sizeof text);
    assert_string_equal(text, "waiting for rank 0 (host-0), rank 2 (host-0), rank 3 (host-0), "
                              "rank 4 (host-0) to join");
    assert_int_equal(horon_engine_awaited(world->ranks[1].engine, join), 0);
    join_rest(join, 1);
    world_destroy(world);
}

static void test_world_join_is_withdrawn_while_nobody_has_heard_of_it(void **state)
{
    (void)state;
    open_world(1);
    float values[2] = {1, 1};
    horon_descriptor_t desc = sum_of("goes on", &values[1]);
    struct horon_request *before = world_submit(world, 1, &desc);
    struct horon_request *join = world_join(world, 1, job(1));
    turn(3);
    assert_true(horon_engine_post_cancel(world->ranks[1].engine, join));
    settle(&join, 1);
    expect_failure(join, HORON_ERR_CANCELLED, HORON_CAUSE_CANCELLED, "");
    desc = sum_of("goes on", &values[0]);
    struct horon_request *requests[] = {world_submit(world, 0, &desc), before};
    settle(requests, 2);
    end_well(requests[0]);
    end_well(requests[1]);
    join = join_one(1);
    assert_true(horon_engine_post_cancel(world->ranks[1].engine, join)); /* too late */
    turn(20);
    check_named(1);
    join_rest(join, 1);
    world_destroy(world);
}

/* ---- teams, and ranks that go ---------------------------------------------------------------- */

static void test_world_join_concerns_one_team(void **state)
{
    (void)state;
    open_world(4);
    const int ranks[] = {4, 1, 3};
    struct world_team *team = world_team_create(world, 1, ranks, 3);
    for (int member = 0; member < 3; member++)
        world_team_add(team, member);
    struct horon_request *join = world_join(world, 1, team->members[1]);
    turn(20);
    check_named(-1); /* all of the job */
    struct horon_request *requests[3] = {NULL};
    float values[3] = {1, 1, 1};
    for (int member = 0; member < 3; member++) {
        const horon_descriptor_t desc = sum_of("of the team", &values[member]);
        if (member != 1)
            requests[member] = world_team_submit(team, member, &desc);
    }
    settle(requests, 3);
    for (int member = 0; member < 3; member += 2) {
        assert_true(values[member] == 2);
        end_well(requests[member]);
    }
    requests[0] = world_join(world, 4, team->members[0]);
    requests[1] = join;
    requests[2] = world_join(world, 3, team->members[2]);
    settle(requests, 3);
    for (int member = 0; member < 3; member++) {
        assert_int_not_equal(requests[member]->joined, 1); /* as the team counts */
        end_well(requests[member]);
    }
    world_team_destroy(team);
    world_destroy(world);
}

static void test_world_join_ends_with_the_job(void **state)
{
    (void)state;
    for (int leaves = 0; leaves < 2; leaves++) {
        open_world(4);
        struct horon_request *join = join_one(1);
        if (leaves)
            horon_engine_leave(world->ranks[3].engine);
        else
            world_fail(world->ranks[3].engine, HORON_ERR_PEER_LOST, "rank 5 is lost");
        settle(&join, 1);
        if (leaves)
            expect_failure(join, HORON_ERR_CLOSED, HORON_CAUSE_LEFT,
                           "join failed: rank 3 (host-2) has shut down its context");
        else
            expect_failure(join, HORON_ERR_PEER_LOST, HORON_CAUSE_SILENT,
                           "join failed: rank 5 is lost");
        world_destroy(world);
    }
}

/* A rank that has joined leaves: what the others submit later cannot be. */
static void test_world_join_and_leave_fails_what_comes_later(void **state)
{
    (void)state;
    open_world(4);
    struct horon_request *join = join_one(1), *requests[RANKS_MAX] = {NULL};
    float values[RANKS_MAX];
    horon_engine_leave(world->ranks[1].engine);
    settle(&join, 1);
    expect_failure(join, HORON_ERR_CLOSED, HORON_CAUSE_CLOSED, "");
    for (int rank = 0; rank < world->size; rank++) {
        const horon_descriptor_t desc = sum_of("later", &values[rank]);
        if (rank != 1)
            requests[rank] = world_submit(world, rank, &desc);
    }
    settle(requests, RANKS_MAX);
    for (int rank = 0; rank < world->size; rank++)
        if (requests[rank])
            expect_failure(requests[rank], HORON_ERR_CLOSED, HORON_CAUSE_LEFT, "rank 1 (host-1)");
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world_join_of_root_fails_what_needs_it_alone),
        cmocka_unit_test(test_world_join_refuses_operations_in_order),
        cmocka_unit_test(test_world_join_fails_what_was_begun_in_order),
        cmocka_unit_test(test_world_join_leaves_what_the_rank_had_done_in_order),
        cmocka_unit_test(test_world_join_waits_for_what_was_submitted_before),
        cmocka_unit_test(test_world_join_is_withdrawn_while_nobody_has_heard_of_it),
        cmocka_unit_test(test_world_join_concerns_one_team),
        cmocka_unit_test(test_world_join_ends_with_the_job),
        cmocka_unit_test(test_world_join_and_leave_fails_what_comes_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
