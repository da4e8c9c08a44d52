/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links after the start: two ranks that are neither neighbours in the tree nor carry the same slice
 * ask for one, and exchange a message on it while the job works; a failed try is told once, and the
 * next question is another try; a rank that is gone is asked for nothing. Nothing that comes on one
 * is left until something else comes, and those that are idle cost a turn no call.
 */
#undef NDEBUG
#include "engine/engine_state.h"
#include "world/teams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, BYTES = 300001 };

static const int hosts[] = {2, 2}; /* 0 and 3 need no link, nor do 1 and 2 */
static int asked[RANKS];           /* by each rank */
static int refused;                /* how often connecting is not even tried */

static horon_status_t count_question(void *rank, int peer, struct horon_error *error)
{
    const struct world_rank *self = rank;
    assert_int_equal(self->topology.rank + peer, 3);
    if (refused > 0) {
        refused--;
        return horon_error_set(error, HORON_ERR_CONFIG, "no address");
    }
    asked[self->topology.rank]++;
    return HORON_OK;
}

static struct world *make_world(void)
{
    struct world *world = world_create_bare(hosts, 2, NULL, 1);
    memset(asked, 0, sizeof asked);
    world->connect = count_question;
    for (int rank = 0; rank < RANKS; rank++) {
        struct horon_error error = {0};
        assert_int_equal(world_make_engine(world, rank, &error), HORON_OK);
        assert_null(world->ranks[rank].engine->membership->mux_of[3 - rank]);
    }
    return world;
}

static horon_status_t ask(struct world *world, int rank, struct horon_error *error)
{
    return horon_engine_connect(world->ranks[rank].engine, 3 - rank, error);
}

static void begin_sums(struct world *world, float *data, struct horon_request **requests)
{
    for (int rank = 0; rank < RANKS; rank++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.flags = HORON_IN_ORDER;
        desc.dtype = HORON_FLOAT32;
        data[rank] = (float)(1 << rank);
        desc.src = desc.dst = &data[rank];
        desc.count = 1;
        requests[rank] = world_submit(world, rank, &desc);
    }
}

static void end_sums(struct world *world, const float *data, struct horon_request **requests)
{
    assert_true(world_turn_until(world, requests, RANKS));
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(requests[rank]->status, HORON_OK);
        assert_true(data[rank] == 15);
        world_release(requests[rank]);
    }
}

/* From rank 0 to rank 3, beside sums of all. */
static void exchange(struct world *world)
{
    struct horon_request *requests[RANKS];
    struct horon_error error = {0};
    float data[RANKS];
    uint8_t *from = malloc(BYTES), *to = calloc(1, BYTES);
    for (int i = 0; i < BYTES; i++)
        from[i] = (uint8_t)(i * 7 + i / 256);
    struct horon_transfer send = {.id = {.channel = 1u << 31, .sequence = 5}, .bytes = BYTES};
    struct horon_transfer recv = send;
    send.data = from;
    recv.data = to;
    begin_sums(world, data, requests);
    struct horon_mux *mux = world->ranks[0].engine->membership->mux_of[3];
    assert_int_equal(horon_mux_post_send(mux, &send, &error), HORON_OK);
    mux = world->ranks[3].engine->membership->mux_of[0];
    assert_int_equal(horon_mux_post_recv(mux, &recv, &error), HORON_OK);
    end_sums(world, data, requests);
    for (int turn = 0; turn < 100000 && !recv.done; turn++)
        for (int rank = 0; rank < RANKS; rank++)
            horon_engine_progress(world->ranks[rank].engine);
    assert_true(send.done);
    assert_true(recv.done);
    assert_memory_equal(from, to, BYTES);
    free(from);
    free(to);
}

static void test_links_are_made_when_a_rank_asks(void **state)
{
    struct horon_error error = {0};
    (void)state;
    struct world *world = make_world();
    assert_int_equal(ask(world, 0, &error), HORON_AGAIN);
    assert_int_equal(ask(world, 0, &error), HORON_AGAIN);
    assert_int_equal(asked[0], 1); /* while it is under way it is not begun again */
    assert_true(horon_engine_may_link(world->ranks[0].engine, 3));
    assert_true(horon_engine_may_link(world->ranks[3].engine, 0)); /* the other side did not ask */
    world_link(world, 0, 3);
    assert_int_equal(ask(world, 0, &error), HORON_OK);
    assert_int_equal(ask(world, 3, &error), HORON_OK);
    assert_int_equal(asked[3], 0);
    assert_false(horon_engine_may_link(world->ranks[0].engine, 3)); /* one is enough */
    exchange(world);
    world_destroy(world);
}

static void test_links_that_fail_are_told_once(void **state)
{
    struct horon_error error = {0}, why;
    (void)state;
    struct world *world = make_world();
    refused = 1;
    assert_int_equal(ask(world, 1, &error), HORON_ERR_CONFIG);
    assert_int_equal(ask(world, 1, &error), HORON_AGAIN);
    horon_error_set(&why, HORON_ERR_PEER_LOST, "cannot connect to rank 2: it died");
    horon_engine_not_connected(world->ranks[1].engine, 2, &why);
    assert_int_equal(ask(world, 1, &error), HORON_ERR_PEER_LOST);
    assert_string_equal(error.text, why.text);
    assert_int_equal(world_failure(world->ranks[1].engine, NULL), HORON_OK);
    assert_int_equal(ask(world, 1, &error), HORON_AGAIN);
    assert_int_equal(asked[1], 2);
    horon_engine_not_connected(world->ranks[1].engine, 2, &why); /* and the other side was faster */
    world_link(world, 1, 2);
    assert_int_equal(ask(world, 1, &error), HORON_OK);
    horon_engine_not_connected(world->ranks[1].engine, 2, &why); /* too late to matter */
    assert_int_equal(ask(world, 1, &error), HORON_OK);
    world_destroy(world);
}

/* A team that needed one could not be made. How that try ends, before or after, is nothing to the
 * team that needs one next. */
static void test_links_that_nobody_waits_for_are_tried_anew(void **state)
{
    static const int members[] = {1, 2};
    struct horon_error error = {0}, why;
    (void)state;
    struct world *world = make_world();
    struct horon_engine *engine = world->ranks[1].engine;
    horon_error_set(&why, HORON_ERR_TIMEOUT, "rank 2 was stopped");
    for (uint32_t id = 1; id <= 2; id++) {
        assert_int_equal(ask(world, 1, &error), HORON_AGAIN);
        assert_int_equal(asked[1], id);
        if (id == 1)
            horon_engine_not_connected(engine, 2, &why);
        horon_engine_refuse_team(engine, id, members, 2, &why);
        if (id == 2)
            horon_engine_not_connected(engine, 2, &why);
    }
    assert_int_equal(ask(world, 1, &error), HORON_AGAIN);
    assert_int_equal(asked[1], 3);
    world_link(world, 1, 2);
    assert_int_equal(ask(world, 1, &error), HORON_OK);
    horon_engine_refuse_team(engine, 3, members, 2, &why); /* which changes nothing about it */
    assert_int_equal(ask(world, 1, &error), HORON_OK);
    world_destroy(world);
}

static void test_links_to_one_that_left_are_not_made(void **state)
{
    struct horon_error error = {0};
    (void)state;
    struct world *world = make_world();
    horon_engine_leave(world->ranks[3].engine);
    assert_false(horon_engine_may_link(world->ranks[3].engine, 0));
    world->ranks[0].engine->membership->left[3] = true;
    assert_int_equal(ask(world, 0, &error), HORON_ERR_PEER_LOST);
    assert_non_null(strstr(error.text, "rank 3 "));
    assert_int_equal(asked[0], 0);
    world_destroy(world);
}

static void test_links_that_break_fail_the_job(void **state)
{
    struct horon_error error = {0};
    const char *text = "";
    (void)state;
    struct world *world = make_world();
    world_link(world, 0, 3);
    exchange(world); /* both sides know of it */
    horon_mux_peer_gone(world->ranks[0].engine->membership->mux_of[3], "is gone: a test says so");
    for (int turn = 0; turn < 10; turn++)
        horon_engine_progress(world->ranks[0].engine);
    assert_int_equal(world_failure(world->ranks[0].engine, &text), HORON_ERR_PEER_LOST);
    assert_non_null(strstr(text, "rank 3 "));
    assert_int_equal(ask(world, 0, &error), HORON_ERR_PEER_LOST);
    world_destroy(world);
}

static horon_status_t answer_nothing(struct horon_link *link, struct horon_error *error)
{
    (void)link;
    return horon_error_set(error, HORON_ERR_PEER_LOST, "did not answer for 0.5 s");
}

/* A host that does not answer may be cut off: its rank is not said to have died. */
static void test_links_that_do_not_answer_fail_requests_as_silent(void **state)
{
    struct horon_link_ops silent;
    struct horon_request *requests[RANKS];
    float data[RANKS];
    (void)state;
    struct world *world = make_world();
    struct horon_link *link =
        horon_mux_link(world->ranks[0].engine->membership->mux_of[2]); /* its carrier's, too */
    silent = *link->ops;
    silent.check = answer_nothing;
    link->ops = &silent;
    begin_sums(world, data, requests);
    horon_engine_check_links(world->ranks[0].engine);
    assert_true(world_turn_until(world, requests, RANKS));
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(requests[rank]->status, HORON_ERR_PEER_LOST);
        assert_int_equal(requests[rank]->blame.cause, HORON_CAUSE_SILENT);
        assert_int_equal(requests[rank]->blame.rank, 2);
        assert_non_null(strstr(requests[rank]->error_text, "did not answer for 0.5 s"));
        world_release(requests[rank]);
    }
    world_destroy(world);
}

static struct horon_engine *answers_at_once;
static const struct horon_link_ops *plain_ops;

static horon_status_t send_and_be_answered(struct horon_link *link, const struct iovec *vector,
                                           int count, size_t *sent_bytes_out,
                                           struct horon_error *error)
{
    const horon_status_t status = plain_ops->send(link, vector, count, sent_bytes_out, error);
    horon_engine_progress(answers_at_once);
    return status;
}

/* From rank 2 on all that it says to rank 0 has its answer when it has been said. */
static void answer_at_once(struct world *world, struct horon_link_ops *hooked)
{
    struct horon_link *link = horon_mux_link(world->ranks[2].engine->membership->mux_of[0]);
    plain_ops = link->ops;
    *hooked = *link->ops;
    hooked->send = send_and_be_answered;
    link->ops = hooked;
    answers_at_once = world->ranks[0].engine;
}

static void turn_many(struct world *world)
{
    for (int turn = 0; turn < 20; turn++)
        for (int rank = RANKS - 1; rank >= 0; rank--)
            horon_engine_progress(world->ranks[rank].engine);
}

/* A message for the job comes while a team speaks in its turn, after that of the job: a thread that
 * drives until nothing moves must not fall asleep on it. */
static void test_links_tell_of_what_came_in_the_turn_of_another(void **state)
{
    static const int two[] = {0, 2};
    struct horon_request *sums[RANKS] = {NULL}, *of_team[2];
    struct horon_link_ops hooked;
    float data[RANKS] = {1, 2, 3, 4}, team_data[2] = {1, 2};
    (void)state;
    struct world *world = make_world();
    struct world_team *team = world_team_create(world, 1, two, 2);
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = "x";
    desc.dtype = HORON_FLOAT32;
    desc.count = 1;
    world_team_add(team, 0);
    world_team_add(team, 1);
    desc.src = desc.dst = &team_data[1];
    of_team[1] = world_team_submit(team, 1, &desc);
    for (int rank = RANKS - 1; rank >= 0; rank--) {
        desc.src = desc.dst = &data[rank];
        if (rank == 0)
            turn_many(world);
        sums[rank] = world_submit(world, rank, &desc);
    }
    answer_at_once(world, &hooked);
    horon_engine_ask(world->ranks[2].engine, of_team[1]);
    for (int turn = 0; turn < 100 && horon_engine_progress(world->ranks[2].engine); turn++)
        continue;
    assert_true(sums[2]->begun);
    horon_mux_link(world->ranks[2].engine->membership->mux_of[0])->ops = plain_ops;
    desc.src = desc.dst = &team_data[0];
    of_team[0] = world_team_submit(team, 0, &desc);
    assert_true(world_turn_until(world, of_team, 2));
    assert_true(world_turn_until(world, sums, RANKS));
    assert_true(data[3] == 10);
    for (int rank = 0; rank < RANKS; rank++)
        world_release(sums[rank]);
    world_release(of_team[0]);
    world_release(of_team[1]);
    world_team_destroy(team);
    world_destroy(world);
}

/* Calls on links of one rank, each a system call where the link is a socket. */
static const struct horon_link_ops *uncounted;
static const struct horon_link *busy;
static int busy_calls, idle_calls;

static void count_call(const struct horon_link *link)
{
    *(link == busy ? &busy_calls : &idle_calls) += 1;
}

static horon_status_t counted_send(struct horon_link *link, const struct iovec *vector, int count,
                                   size_t *sent_bytes_out, struct horon_error *error)
{
    count_call(link);
    return uncounted->send(link, vector, count, sent_bytes_out, error);
}

static horon_status_t counted_recv(struct horon_link *link, const struct iovec *vector, int count,
                                   size_t *got_bytes_out, struct horon_error *error)
{
    count_call(link);
    return uncounted->recv(link, vector, count, got_bytes_out, error);
}

/* One word from rank 2 to rank 0. */
static void send_word(struct world *world)
{
    struct horon_error error = {0};
    uint64_t out = 7, in = 0;
    struct horon_transfer send = {
        .id = {.channel = 1u << 31, .sequence = 5}, .data = &out, .bytes = sizeof out};
    struct horon_transfer recv = send;
    recv.data = &in;
    struct horon_mux *mux = world->ranks[0].engine->membership->mux_of[2];
    assert_int_equal(horon_mux_post_recv(mux, &recv, &error), HORON_OK);
    mux = world->ranks[2].engine->membership->mux_of[0];
    assert_int_equal(horon_mux_post_send(mux, &send, &error), HORON_OK);
    turn_many(world);
    assert_true(recv.done);
    assert_int_equal(in, out);
}

/* What it costs to find the busy ones is in the test of the poller. */
static void test_links_that_are_idle_cost_a_turn_no_call(void **state)
{
    static const int each_alone[RANKS] = {1, 1, 1, 1};
    struct horon_request *requests[RANKS];
    struct horon_link_ops counted;
    float data[RANKS];
    (void)state;
    struct world *world = world_create(each_alone, RANKS, NULL, 1);
    const struct horon_membership *membership = world->ranks[0].engine->membership;
    assert_int_equal(membership->peer_count, RANKS - 1);
    begin_sums(world, data, requests);
    end_sums(world, data, requests);
    turn_many(world);
    busy = horon_mux_link(membership->mux_of[2]);
    uncounted = busy->ops;
    counted = *uncounted;
    counted.send = counted_send;
    counted.recv = counted_recv;
    for (int peer = 1; peer < RANKS; peer++)
        horon_mux_link(membership->mux_of[peer])->ops = &counted;
    turn_many(world);
    assert_int_equal(busy_calls + idle_calls, 0);
    send_word(world);
    assert_true(busy_calls > 0);
    assert_int_equal(idle_calls, 0);
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links_are_made_when_a_rank_asks),
        cmocka_unit_test(test_links_that_fail_are_told_once),
        cmocka_unit_test(test_links_that_nobody_waits_for_are_tried_anew),
        cmocka_unit_test(test_links_to_one_that_left_are_not_made),
        cmocka_unit_test(test_links_that_break_fail_the_job),
        cmocka_unit_test(test_links_that_do_not_answer_fail_requests_as_silent),
        cmocka_unit_test(test_links_tell_of_what_came_in_the_turn_of_another),
        cmocka_unit_test(test_links_that_are_idle_cost_a_turn_no_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
