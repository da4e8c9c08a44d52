/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that wait for a link, and attempts to make it that fail: the test decides when.
 */
#undef NDEBUG
#include "world.h"

#include "engine/making.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { FAR = 3, TURNS = 50 }; /* on the other host, and no neighbour in the tree */

static int attempts;

static horon_status_t begin_only(void *rank, int peer, struct horon_error *error)
{
    (void)rank, (void)peer, (void)error;
    attempts++;
    return HORON_OK;
}

static struct world *make_world(void)
{
    static const int hosts[] = {2, 2};
    struct horon_error error = {0};
    struct world *world = world_create_bare(hosts, 2, NULL, 1);
    world->connect = begin_only;
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(world_make_engine(world, rank, &error), HORON_OK);
    attempts = 0;
    return world;
}

static struct horon_request *begin(struct world *world, horon_verb_t verb, int rank, int peer,
                                   uint8_t *byte)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.dtype = HORON_UINT8;
    desc.root = peer;
    desc.src = desc.dst = byte;
    desc.count = 1;
    return world_submit(world, rank, &desc);
}

static void turn(struct world *world)
{
    for (int i = 0; i < TURNS; i++)
        for (int rank = 0; rank < world->size; rank++)
            horon_engine_progress(world->ranks[rank].engine);
}

static void fail_attempt(struct world *world)
{
    struct horon_error why = {0};
    horon_error_set(&why, HORON_ERR_SYSTEM, "nobody answered");
    horon_engine_not_connected(world->ranks[0].engine, FAR, &why);
    turn(world);
}

static bool ended(const struct horon_request *request)
{
    return atomic_load(&request->state) == HORON_REQUEST_ENDED;
}

static void expect_failed(struct horon_request *request)
{
    assert_true(ended(request));
    assert_int_equal(request->status, HORON_ERR_SYSTEM);
    assert_non_null(strstr(request->error_text, "rank 3, tag 0 failed: nobody answered"));
    world_release(request);
}

/* One that tried anew would take a second, and could overtake what was sent before it. */
static void test_messages_fail_with_the_attempt_they_wait_for(void **state)
{
    struct world *world = make_world();
    struct horon_request *waiting[6];
    uint8_t out[] = {1, 2, 3}, in[8] = {0};
    (void)state;
    for (int i = 0; i < 6; i++)
        waiting[i] = begin(world, i % 2 ? HORON_RECV : HORON_SEND, 0, FAR, i % 2 ? &in[i] : out);
    struct horon_request *other = begin(world, HORON_RECV, 0, 2, &in[6]);
    struct horon_request *theirs = begin(world, HORON_RECV, FAR, 0, &in[7]);
    turn(world);
    assert_int_equal(attempts, 2); /* here and there; to rank 2 there is a link */
    fail_attempt(world);
    for (int i = 0; i < 6; i++)
        expect_failed(waiting[i]);
    assert_int_equal(attempts, 2);
    assert_false(ended(other) || ended(theirs));
    struct horon_request *again = begin(world, HORON_SEND, 0, FAR, &out[2]);
    turn(world);
    world_link(world, 0, FAR);
    turn(world);
    assert_true(ended(again) && ended(theirs));
    assert_int_equal(again->status, HORON_OK);
    assert_int_equal(in[7], 3);
    struct horon_request *last = begin(world, HORON_SEND, 2, 0, &out[1]);
    turn(world);
    assert_true(ended(other) && ended(last));
    assert_int_equal(in[6], 2);
    world_release(again);
    world_release(theirs);
    world_release(other);
    world_release(last);
    world_destroy(world);
}

/* A team that cannot be made forgets the attempts that it began; messages may wait for them. */
static void test_messages_try_again_if_a_team_has_given_up_their_attempt(void **state)
{
    struct world *world = make_world();
    const int ranks[] = {0, FAR};
    struct horon_error why = {0};
    uint8_t byte = 0;
    (void)state;
    struct horon_request *request = begin(world, HORON_SEND, 0, FAR, &byte);
    turn(world);
    assert_int_equal(attempts, 1);
    horon_error_set(&why, HORON_ERR_SYSTEM, "no team");
    horon_engine_refuse_team(world->ranks[0].engine, 1, ranks, 2, &why);
    turn(world);
    assert_int_equal(attempts, 2);
    fail_attempt(world);
    expect_failed(request);
    world_destroy(world);
}

/* What it hears of a rank that is no neighbour comes from others, and no link can be made any more.
 */
static void test_messages_to_a_rank_that_has_left_say_so(void **state)
{
    struct world *world = make_world();
    uint8_t byte = 0;
    (void)state;
    horon_engine_leave(world->ranks[FAR].engine);
    turn(world);
    struct horon_request *request = begin(world, HORON_RECV, 0, FAR, &byte);
    turn(world);
    assert_int_equal(attempts, 1);
    fail_attempt(world);
    assert_true(ended(request));
    assert_int_equal(request->status, HORON_ERR_CLOSED);
    assert_int_equal(request->blame.cause, HORON_CAUSE_LEFT);
    assert_int_equal(request->blame.rank, FAR);
    assert_non_null(strstr(request->error_text, "has shut down its context"));
    world_release(request);
    world_destroy(world);
}

/* Its half of a ring may come when its end is known already: nobody will ever read this side's. */
static void test_links_to_a_process_that_has_ended_end(void **state)
{
    static const int host[] = {3};
    struct horon_error error = {0};
    struct world *world = world_create_bare(host, 1, NULL, 1);
    (void)state;
    world->connect = begin_only;
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(world_make_engine(world, rank, &error), HORON_OK);
    struct horon_engine *engine = world->ranks[2].engine;
    horon_engine_local_death(engine, 1, true, "its process ended");
    assert_true(horon_engine_may_link(engine, 1));
    world_link(world, 2, 1);
    assert_true(horon_engine_is_linked(engine, 1));
    for (int i = 0; i < TURNS; i++)
        horon_engine_progress(engine);
    assert_false(horon_engine_is_linked(engine, 1));
    world->ranks[1].dead = true;
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_fail_with_the_attempt_they_wait_for),
        cmocka_unit_test(test_messages_try_again_if_a_team_has_given_up_their_attempt),
        cmocka_unit_test(test_messages_to_a_rank_that_has_left_say_so),
        cmocka_unit_test(test_links_to_a_process_that_has_ended_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
