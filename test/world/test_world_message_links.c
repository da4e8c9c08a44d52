/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that wait for a link, and attempts to make it that fail: the test decides when. Some
 * fail when one side has the link already.
 */
#undef NDEBUG
#include "world/teams.h"

#include "engine/engine_state.h"
#include "engine/making.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
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

/* Links that its ranks have not from the start are made by the test. */
static struct world *make(const int *hosts, int host_count)
{
    struct horon_error error = {0};
    struct world *world = world_create_bare(hosts, host_count, NULL, 1);
    world->connect = begin_only;
    for (int rank = 0; rank < world->size; rank++)
        assert_int_equal(world_make_engine(world, rank, &error), HORON_OK);
    attempts = 0;
    return world;
}

static struct world *make_world(void)
{
    static const int hosts[] = {2, 2};
    return make(hosts, 2);
}

static struct world *make_host(void)
{
    static const int host[] = {3};
    return make(host, 1);
}

static horon_descriptor_t describe(horon_verb_t verb, int peer, uint8_t *byte)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.dtype = HORON_UINT8;
    desc.root = peer;
    desc.src = desc.dst = byte;
    desc.count = 1;
    return desc;
}

static struct horon_request *begin(struct world *world, horon_verb_t verb, int rank, int peer,
                                   uint8_t *byte)
{
    const horon_descriptor_t desc = describe(verb, peer, byte);
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

static void expect_left(struct horon_request *request, int rank, const char *text)
{
    assert_true(ended(request));
    assert_int_equal(request->status, HORON_ERR_CLOSED);
    assert_int_equal(request->blame.cause, HORON_CAUSE_LEFT);
    assert_int_equal(request->blame.rank, rank);
    assert_non_null(strstr(request->error_text, text));
    world_release(request);
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
    expect_left(request, FAR, "has shut down its context");
    world_destroy(world);
}

/* Of several that did as much, ranks on other hosts hear of one. */
static void test_messages_to_one_of_several_ranks_that_have_left_say_so(void **state)
{
    struct world *world = make_world();
    uint8_t byte = 0;
    (void)state;
    horon_engine_leave(world->ranks[2].engine);
    horon_engine_leave(world->ranks[FAR].engine);
    turn(world);
    struct horon_request *request = begin(world, HORON_SEND, 0, FAR, &byte);
    turn(world);
    fail_attempt(world);
    expect_left(request, FAR, "as others have: nobody answered");
    world_destroy(world);
}

/* It said so before it closed the connection that this one had begun. */
static void test_messages_to_a_rank_here_that_leaves_meanwhile_say_so(void **state)
{
    struct horon_error error = {0};
    struct world *world = make_host();
    uint8_t byte = 0;
    (void)state;
    struct horon_request *request = begin(world, HORON_SEND, 1, 2, &byte);
    turn(world);
    assert_false(ended(request));
    horon_engine_leave(world->ranks[2].engine);
    horon_error_set(&error, HORON_ERR_PEER_LOST, "it has closed the connection");
    horon_engine_not_connected(world->ranks[1].engine, 2, &error);
    turn(world);
    expect_left(request, 2, "has shut down its context");
    world_destroy(world);
}

/* Of the others of its host rank 2 hears first that one has died. It tells so in the memory of the
 * job and of the set, and leaves. This one, which has no link to it, has nothing else to hear. */
static void test_messages_from_a_rank_that_left_for_a_death_name_the_dead_one(void **state)
{
    enum { DEAD, HERE, LEAVER, SIZE };
    static const int ranks[] = {DEAD, HERE, LEAVER};
    struct world *world = make_host();
    struct world_team *team = world_team_create(world, 1, ranks, SIZE);
    uint8_t byte = 0;
    const horon_descriptor_t desc = describe(HORON_RECV, LEAVER, &byte);
    (void)state;
    for (int member = 0; member < SIZE; member++)
        world_team_add(team, member);
    struct horon_request *request = world_team_submit(team, HERE, &desc);
    horon_engine_progress(world->ranks[HERE].engine);
    assert_false(ended(request));
    assert_false(horon_engine_is_linked(world->ranks[HERE].engine, LEAVER));
    world->ranks[DEAD].dead = true;
    horon_engine_local_death(world->ranks[LEAVER].engine, DEAD, true, "ended");
    horon_engine_leave(world->ranks[LEAVER].engine);
    assert_true(world_turn_until(world, &request, 1));
    assert_int_equal(request->status, HORON_ERR_PEER_LOST);
    assert_int_equal(request->blame.cause, HORON_CAUSE_DIED);
    assert_int_equal(request->blame.rank, DEAD);
    world_release(request);
    world_team_destroy(team);
    world_destroy(world);
}

/* Its half of a ring may come when its end is known already: nobody will ever read this side's. */
static void test_links_to_a_process_that_has_ended_end(void **state)
{
    struct world *world = make_host();
    (void)state;
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

/* The one that has joined waits to hear that the other one has its side, too. */
static void test_messages_go_on_a_link_that_was_made_while_its_other_end_joined(void **state)
{
    static const int hosts[] = {2, 2};
    struct horon_error error = {0};
    struct world *world = world_create_bare(hosts, 2, NULL, 1);
    uint8_t out[] = {1, 2}, in[] = {0, 0};
    (void)state;
    world->connect = begin_only;
    for (int rank = 0; rank < FAR; rank++)
        assert_int_equal(world_make_engine(world, rank, &error), HORON_OK);
    world_link_end(world, 0, FAR);
    struct horon_request *requests[4] = {begin(world, HORON_SEND, 0, FAR, &out[0])};
    assert_false(world->ranks[0].engine->membership->mutual[FAR]);
    assert_int_equal(world_make_engine(world, FAR, &error), HORON_OK);
    assert_false(world->ranks[FAR].engine->membership->mutual[0]); /* until it has heard of it */
    requests[1] = begin(world, HORON_RECV, FAR, 0, &in[0]);
    requests[2] = begin(world, HORON_SEND, FAR, 0, &out[1]);
    requests[3] = begin(world, HORON_RECV, 0, FAR, &in[1]);
    turn(world);
    for (int i = 0; i < 4; i++) {
        assert_true(ended(requests[i]));
        assert_int_equal(requests[i]->status, HORON_OK);
        world_release(requests[i]);
    }
    assert_int_equal(in[0], 1);
    assert_int_equal(in[1], 2);
    world_destroy(world);
}

/* ---- links that the other side never had ---------------------------------------------------- */

enum { RING_BYTES = 4096 };

static const char closed[] = "cannot connect to rank 3 (host-1), tried a connection, which it "
                             "closed: it is gone, or leaves the job";

/* Rank 0's end of one to rank FAR, which has not taken its own. */
static struct horon_ring *take_end(struct world *world)
{
    const size_t bytes = (horon_ring_bytes(RING_BYTES) + 63) / 64 * 64;
    struct horon_ring *rings = aligned_alloc(64, 2 * bytes);
    struct horon_ring *in = (struct horon_ring *)(void *)((char *)rings + bytes);
    struct horon_link *link = NULL;
    struct horon_error error = {0};
    assert_non_null(rings);
    memset(rings, 0, 2 * bytes);
    assert_int_equal(horon_link_ring_create(rings, in, RING_BYTES, NULL, &link), HORON_OK);
    assert_int_equal(horon_engine_add_link(world->ranks[0].engine, FAR, link, &error), HORON_OK);
    turn(world);
    assert_true(horon_engine_is_linked(world->ranks[0].engine, FAR));
    return rings;
}

/* Rank FAR closes its own end, unseen. */
static void close_end(struct world *world, struct horon_ring *rings)
{
    const size_t bytes = (horon_ring_bytes(RING_BYTES) + 63) / 64 * 64;
    struct horon_ring *in = (struct horon_ring *)(void *)((char *)rings + bytes);
    atomic_store(&in->writer_closed, 1);
    turn(world);
    assert_false(horon_engine_is_linked(world->ranks[0].engine, FAR));
}

static void expect_no_failure(struct world *world)
{
    for (int rank = 0; rank < world->size; rank++)
        assert_int_equal(world_failure(world->ranks[rank].engine, NULL), HORON_OK);
}

static void test_messages_fail_alone_if_a_leaver_never_had_their_link(void **state)
{
    struct world *world = make_world();
    uint8_t out = 7, in[2] = {0};
    (void)state;
    struct horon_request *request = begin(world, HORON_RECV, 0, FAR, &in[0]);
    turn(world);
    struct horon_ring *rings = take_end(world);
    assert_int_equal(attempts, 1);
    close_end(world, rings); /* before anybody has heard that it leaves */
    expect_no_failure(world);
    assert_int_equal(attempts, 2);
    assert_false(ended(request));
    horon_engine_leave(world->ranks[FAR].engine);
    turn(world);
    fail_attempt(world);
    assert_true(ended(request));
    assert_int_equal(request->status, HORON_ERR_CLOSED);
    assert_int_equal(request->blame.rank, FAR);
    struct horon_request *others[] = {begin(world, HORON_SEND, 2, 0, &out),
                                      begin(world, HORON_RECV, 0, 2, &in[1])};
    turn(world);
    for (int i = 0; i < 2; i++) {
        assert_true(ended(others[i]));
        assert_int_equal(others[i]->status, HORON_OK);
        world_release(others[i]);
    }
    assert_int_equal(in[1], 7);
    expect_no_failure(world);
    world_release(request);
    world_destroy(world);
    free(rings);
}

/* One that gives up its own try may close what this side has, and works on. */
static void test_messages_go_on_the_next_link(void **state)
{
    struct world *world = make_world();
    uint8_t out = 7, in = 0;
    (void)state;
    struct horon_request *requests[] = {begin(world, HORON_SEND, 0, FAR, &out),
                                        begin(world, HORON_RECV, FAR, 0, &in)};
    turn(world);
    struct horon_ring *rings = take_end(world);
    close_end(world, rings);
    world_link(world, 0, FAR);
    turn(world);
    for (int i = 0; i < 2; i++) {
        assert_true(ended(requests[i]));
        assert_int_equal(requests[i]->status, HORON_OK);
        world_release(requests[i]);
    }
    assert_int_equal(in, 7);
    expect_no_failure(world);
    world_destroy(world);
    free(rings);
}

/* Nobody asks for a link then, and nobody is told of it later. */
static void test_links_that_were_closed_unseen_are_forgotten(void **state)
{
    struct world *world = make_world();
    struct horon_error error = {0};
    uint8_t in = 0;
    (void)state;
    assert_int_equal(horon_engine_connect(world->ranks[0].engine, FAR, &error), HORON_AGAIN);
    fail_attempt(world);
    struct horon_ring *rings = take_end(world); /* the other side was faster */
    close_end(world, rings);
    expect_no_failure(world);
    struct horon_request *request = begin(world, HORON_RECV, 0, FAR, &in);
    turn(world);
    assert_int_equal(attempts, 2);
    assert_false(ended(request));
    fail_attempt(world);
    expect_failed(request);
    world_destroy(world);
    free(rings);
}

static void expect_unreached(const struct horon_error *why)
{
    assert_non_null(why);
    assert_int_equal(why->status, HORON_ERR_PEER_LOST);
    assert_string_equal(why->text, closed);
}

/* Its rank may have been killed: of those that need the link none may wait for ever. A team that
 * has the same ranks and others is no less concerned; one that hears nothing by that link is not.
 */
static void test_teams_fail_if_a_link_that_they_need_was_closed_unseen(void **state)
{
    static const int needs[] = {0, FAR}, other[] = {2, 0, 1, FAR};
    struct world *world = make_world();
    (void)state;
    struct horon_ring *rings = take_end(world);
    world->rings[FAR * 4] = rings; /* so that none is made between them */
    struct world_team *team = world_team_create(world, 1, needs, 2);
    struct world_team *larger = world_team_create(world, 2, other, 4);
    assert_true(horon_topology_linked(&team->topology, 0, 1));
    assert_false(horon_topology_linked(&larger->topology, 1, 3));
    world_team_add(team, 0);
    for (int member = 0; member < 4; member++)
        if (other[member] != FAR)
            world_team_add(larger, member);
    close_end(world, rings);
    expect_unreached(horon_team_failure(team->members[0]));
    assert_null(horon_team_failure(larger->members[1]));
    expect_no_failure(world);
    world->rings[FAR * 4] = NULL;
    world_team_destroy(larger);
    world_team_destroy(team);
    world_destroy(world);
    free(rings);
}

/* An operation has begun to use it, in a team that did not need it before. */
static void test_operations_fail_if_their_link_was_closed_unseen(void **state)
{
    struct world *world = make_world();
    struct horon_request *requests[2];
    int32_t in[2][4] = {{0}}, out[2][4];
    (void)state;
    struct horon_ring *rings = take_end(world);
    for (int rank = 0; rank < 2; rank++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_ALLTOALL;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_INT32;
        desc.src = in[rank];
        desc.dst = out[rank];
        desc.count = desc.dst_count = 4;
        requests[rank] = world_submit(world, rank, &desc);
    }
    turn(world);
    assert_int_equal(attempts, 1); /* of rank 1, to rank 2 */
    close_end(world, rings);
    for (int rank = 0; rank < 2; rank++) {
        assert_true(ended(requests[rank]));
        expect_unreached(horon_engine_failure(world->ranks[rank].engine));
        world_release(requests[rank]);
    }
    world_destroy(world);
    free(rings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_fail_with_the_attempt_they_wait_for),
        cmocka_unit_test(test_messages_try_again_if_a_team_has_given_up_their_attempt),
        cmocka_unit_test(test_messages_to_a_rank_that_has_left_say_so),
        cmocka_unit_test(test_messages_to_one_of_several_ranks_that_have_left_say_so),
        cmocka_unit_test(test_messages_to_a_rank_here_that_leaves_meanwhile_say_so),
        cmocka_unit_test(test_messages_from_a_rank_that_left_for_a_death_name_the_dead_one),
        cmocka_unit_test(test_links_to_a_process_that_has_ended_end),
        cmocka_unit_test(test_messages_go_on_a_link_that_was_made_while_its_other_end_joined),
        cmocka_unit_test(test_messages_fail_alone_if_a_leaver_never_had_their_link),
        cmocka_unit_test(test_messages_go_on_the_next_link),
        cmocka_unit_test(test_links_that_were_closed_unseen_are_forgotten),
        cmocka_unit_test(test_teams_fail_if_a_link_that_they_need_was_closed_unseen),
        cmocka_unit_test(test_operations_fail_if_their_link_was_closed_unseen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
