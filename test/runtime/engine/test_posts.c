/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is asked through the mailbox: start, cancel in every state of a request, let go; and the
 * mailbox itself, its order and its end. Two to four ranks on one or two hosts; every request must
 * end, once, and be let go of by the engine.
 */
#undef NDEBUG
#include "engine/engine_state.h"
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int one_host[] = {2}, two_hosts[] = {1, 1}, four_ranks[] = {2, 2};

static struct world *two_ranks(uint64_t seed)
{
    return world_create(seed % 2 ? one_host : two_hosts, seed % 2 ? 1 : 2, NULL, seed);
}

static horon_descriptor_t sum(const char *name, float *data)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.flags = name ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = data;
    desc.count = 1;
    return desc;
}

static struct horon_request *submit_sum(struct world *world, int rank, const char *name,
                                        float *data)
{
    horon_descriptor_t desc = sum(name, data);
    return world_submit(world, rank, &desc);
}

static void turn(struct world *world, int turns)
{
    for (int i = 0; i < turns * world->size; i++)
        horon_engine_progress(world->ranks[i % world->size].engine);
}

static void post_cancel(struct world *world, int rank, struct horon_request *request)
{
    assert_true(horon_engine_post_cancel(world->ranks[rank].engine, request));
}

static bool ended(const struct horon_request *request)
{
    return (atomic_load(&request->state) & HORON_REQUEST_STATE_MASK) == HORON_REQUEST_ENDED;
}

/* Turns until it has ended as told, and gives it back; nobody else may refer to it. */
static void expect_end(struct world *world, struct horon_request *request, horon_status_t status)
{
    if (!world_turn_until(world, &request, 1))
        fail_msg("it does not end; %d was expected", status);
    if (request->status != status)
        fail_msg("status %d, not %d: %s", request->status, status, request->error_text);
    turn(world, 2);
    assert_int_equal(atomic_load(&request->refs), 1);
    assert_false(request->linked);
    world_release(request);
}

static void end_world(struct world *world)
{
    for (int rank = 0; rank < world->size; rank++) {
        assert_int_equal(horon_engine_in_flight(world->ranks[rank].engine), 0);
        assert_int_equal(horon_engine_names(world->ranks[rank].engine)->entry_count,
                         horon_engine_names(world->ranks[rank].engine)->idle_count);
    }
    world_destroy(world);
}

static void test_posts_cancel_right_behind_its_start_withdraws(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct world *world = two_ranks(seed);
        float x = 1;
        int rank = (int)(seed / 2);
        struct horon_request *request = submit_sum(world, rank, "x", &x);
        post_cancel(world, rank, request);
        expect_end(world, request, HORON_ERR_CANCELLED);
        assert_true(x == 1);
        end_world(world);
    }
}

/* Whether queued or begun: the other ranks will run it, so it keeps its place. */
static void test_posts_cancel_of_an_ordered_one_is_ignored(void **state)
{
    (void)state;
    struct world *world = two_ranks(0);
    float x[2] = {1, 2}, y[2] = {10, 20};
    struct horon_request *first = submit_sum(world, 0, NULL, &x[0]);
    struct horon_request *second = submit_sum(world, 0, NULL, &y[0]);
    post_cancel(world, 0, first);
    post_cancel(world, 0, second);
    turn(world, 20);
    post_cancel(world, 0, first);
    post_cancel(world, 0, second);
    turn(world, 20);
    assert_false(ended(first) || ended(second));
    struct horon_request *other[2] = {submit_sum(world, 1, NULL, &x[1]),
                                      submit_sum(world, 1, NULL, &y[1])};
    expect_end(world, first, HORON_OK);
    expect_end(world, second, HORON_OK);
    for (int i = 0; i < 2; i++)
        expect_end(world, other[i], HORON_OK);
    assert_true(x[0] == 3 && x[1] == 3 && y[0] == 30 && y[1] == 30);
    end_world(world);
}

static void test_posts_cancel_of_a_waiting_one_withdraws_and_the_name_is_free(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct world *world = two_ranks(seed);
        float x[2] = {1, 2};
        int rank = (int)(seed / 2);
        struct horon_request *first = submit_sum(world, rank, "x", &x[rank]);
        turn(world, 50);
        assert_false(ended(first));
        post_cancel(world, rank, first);
        expect_end(world, first, HORON_ERR_CANCELLED);
        /* the other rank begins, finds itself alone, and is met by the second one */
        struct horon_request *other = submit_sum(world, 1 - rank, "x", &x[1 - rank]);
        turn(world, 50);
        assert_false(ended(other));
        struct horon_request *second = submit_sum(world, rank, "x", &x[rank]);
        expect_end(world, second, HORON_OK);
        expect_end(world, other, HORON_OK);
        assert_true(x[0] == 3 && x[1] == 3);
        end_world(world);
    }
}

static void test_posts_cancel_twice_ends_once(void **state)
{
    (void)state;
    struct world *world = two_ranks(0);
    float x = 1;
    struct horon_request *request = submit_sum(world, 1, "x", &x);
    turn(world, 10);
    post_cancel(world, 1, request);
    horon_engine_progress(world->ranks[1].engine); /* taken: the post is free again */
    post_cancel(world, 1, request);
    expect_end(world, request, HORON_ERR_CANCELLED);
    end_world(world);
}

static void test_posts_cancel_of_an_ended_one_is_ignored(void **state)
{
    (void)state;
    for (int named = 0; named < 2; named++) {
        struct world *world = two_ranks(1);
        float x[2] = {1, 2};
        struct horon_request *requests[2];
        for (int rank = 0; rank < 2; rank++)
            requests[rank] = submit_sum(world, rank, named ? "x" : NULL, &x[rank]);
        assert_true(world_turn_until(world, requests, 2));
        post_cancel(world, 0, requests[0]);
        turn(world, 5);
        for (int rank = 0; rank < 2; rank++)
            expect_end(world, requests[rank], HORON_OK);
        end_world(world);
    }
}

/* Cancelled at every possible moment: it ends well on both ranks, or is withdrawn here and met by a
 * second one. */
static void test_posts_cancel_at_any_moment_ends_well_or_withdraws(void **state)
{
    int withdrawn = 0, late = 0;
    (void)state;
    for (int moment = 0; moment < 60; moment++) {
        for (int canceller = 0; canceller < 2; canceller++) {
            struct world *world = two_ranks((uint64_t)moment);
            float x[2] = {1, 2};
            struct horon_request *requests[2];
            for (int rank = 0; rank < 2; rank++)
                requests[rank] = submit_sum(world, rank, "x", &x[rank]);
            for (int i = 0; i < moment; i++)
                horon_engine_progress(world->ranks[world_random(world) % 2].engine);
            post_cancel(world, canceller, requests[canceller]);
            assert_true(world_turn_until(world, &requests[canceller], 1));
            if (requests[canceller]->status == HORON_ERR_CANCELLED) {
                withdrawn++;
                expect_end(world, requests[canceller], HORON_ERR_CANCELLED);
                requests[canceller] = submit_sum(world, canceller, "x", &x[canceller]);
            } else {
                late++;
            }
            for (int rank = 0; rank < 2; rank++)
                expect_end(world, requests[rank], HORON_OK);
            assert_true(x[0] == 3 && x[1] == 3);
            end_world(world);
        }
    }
    assert_true(withdrawn > 5 && late > 5); /* both were met */
}

/* Nor may the next one be numbered before the withdrawal is confirmed, or fails. */
static void test_posts_barrier_behind_a_cancelled_one_meets_the_others(void **state)
{
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct world *world = two_ranks(seed);
        const int rank = (int)(seed / 2 % 2), before = (int)(seed / 4 % 5);
        struct horon_request *first = world_submit(world, rank, &barrier);
        turn(world, before);
        struct horon_request *second = world_submit(world, rank, &barrier);
        struct horon_request *third = world_submit(world, rank, &barrier);
        post_cancel(world, rank, first);
        turn(world, before);
        post_cancel(world, rank, second);
        expect_end(world, first, HORON_ERR_CANCELLED);
        expect_end(world, second, HORON_ERR_CANCELLED);
        struct horon_request *other = world_submit(world, !rank, &barrier);
        expect_end(world, third, HORON_OK);
        expect_end(world, other, HORON_OK);
        end_world(world);
    }
}

/* A barrier that was withdrawn does not count: the next one meets what the others begin first. */
static void test_posts_cancelled_barrier_does_not_count(void **state)
{
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct world *world = two_ranks(seed);
        int rank = (int)(seed / 2);
        struct horon_request *late[3];
        for (int i = 0; i < 3; i++)
            late[i] = world_submit(world, rank, &barrier);
        turn(world, 20);
        static const int order[3] = {1, 0, 2}; /* not in the order of their numbers */
        for (int i = 0; i < 3; i++) {
            post_cancel(world, rank, late[order[i]]);
            expect_end(world, late[order[i]], HORON_ERR_CANCELLED);
        }
        for (int round = 0; round < 3; round++) {
            struct horon_request *both[2];
            for (int r = 0; r < 2; r++)
                both[r] = world_submit(world, r, &barrier);
            for (int r = 0; r < 2; r++)
                expect_end(world, both[r], HORON_OK);
        }
        end_world(world);
    }
}

/* ---- prepared ones ------------------------------------------------------------------------- */

static struct horon_request *prepare(struct world *world, int rank, const char *name, float *data)
{
    struct horon_request *request = NULL;
    struct horon_error error = {0};
    horon_descriptor_t desc = sum(name, data);
    struct world_rank *self = &world->ranks[rank];
    assert_int_equal(horon_request_create(&self->pool, &desc, horon_engine_job(self->engine),
                                          horon_engine_names(self->engine), &request, &error),
                     HORON_OK);
    request->persistent = true;
    request->callback_arg = self; /* as world_submit() */
    return request;
}

static void start(struct world *world, int rank, struct horon_request *request)
{
    horon_request_reset(request);
    atomic_fetch_add(&request->refs, 1);
    atomic_store(&request->state, (horon_request_run_number(request) + 1) * HORON_REQUEST_RUN |
                                      HORON_REQUEST_FLYING);
    assert_true(horon_engine_post(world->ranks[rank].engine, &request->start));
}

static void let_go(struct world *world, int rank, struct horon_request *request)
{
    assert_true(horon_engine_post(world->ranks[rank].engine, &request->drop));
}

static void test_posts_prepared_one_runs_again_after_each_end(void **state)
{
    (void)state;
    struct world *world = two_ranks(0);
    float x[2];
    struct horon_request *requests[2];
    for (int rank = 0; rank < 2; rank++)
        requests[rank] = prepare(world, rank, "x", &x[rank]);
    for (int round = 0; round < 5; round++) {
        for (int rank = 0; rank < 2; rank++) {
            x[rank] = (float)round;
            start(world, rank, requests[rank]);
        }
        assert_true(world_turn_until(world, requests, 2));
        assert_true(x[0] == (float)(2 * round) && x[1] == x[0]);
        if (round == 2) { /* withdrawn in between */
            start(world, 0, requests[0]);
            turn(world, 10);
            post_cancel(world, 0, requests[0]);
            assert_true(world_turn_until(world, requests, 1));
            assert_int_equal(requests[0]->status, HORON_ERR_CANCELLED);
        }
    }
    for (int rank = 0; rank < 2; rank++)
        let_go(world, rank, requests[rank]);
    turn(world, 2);
    end_world(world);
}

static struct horon_request *restarted;
static int ends; /* of another one, and then its own, in one turn */

static void end_beside(void *self, horon_request_t *request, horon_status_t status)
{
    struct world *world = ((struct world_rank *)self)->world;
    if (++ends > 2)
        return;
    assert_int_equal(status, HORON_OK);
    if (ends == 2)
        start(world, 0, request);
    post_cancel(world, 0, restarted);
}

/* One for the second run, which is not taken yet, is not lost in that for the first. */
static void test_posts_cancel_is_for_the_run_under_way(void **state)
{
    (void)state;
    struct world *world = two_ranks(0);
    float x[4] = {1, 2, 3, 4};
    struct horon_request *requests[4]; /* two of rank 0, and of rank 1 */
    for (int i = 0; i < 4; i++) {
        requests[i] = prepare(world, i / 2, i % 2 ? "y" : "x", &x[i]);
        requests[i]->callback = i < 2 ? end_beside : NULL;
        start(world, i / 2, requests[i]);
    }
    restarted = requests[1];
    assert_true(world_turn_until(world, requests + 2, 2));
    assert_true(world_turn_until(world, &restarted, 1));
    assert_int_equal(restarted->status, HORON_ERR_CANCELLED);
    assert_int_equal(ends, 3);
    for (int i = 0; i < 4; i++)
        let_go(world, i / 2, requests[i]);
    turn(world, 20);
    end_world(world);
}

static void test_posts_prepared_one_may_be_let_go_in_any_state(void **state)
{
    (void)state;
    for (int when = 0; when < 5; when++) {
        struct world *world = two_ranks((uint64_t)when);
        float x[2] = {1, 2};
        struct horon_request *mine = prepare(world, 0, "x", &x[0]);
        if (when > 0) /* 0: never started */
            start(world, 0, mine);
        if (when > 1) /* 1: in one turn with its start */
            turn(world, 10);
        if (when > 2) /* 2: while it waits */
            post_cancel(world, 0, mine);
        if (when == 4) /* 3: while it is being withdrawn */
            turn(world, 10);
        let_go(world, 0, mine); /* the engine's, from here on */
        turn(world, 10);
        struct horon_request *other = submit_sum(world, 1, "x", &x[1]);
        if (when == 1 || when == 2) {
            expect_end(world, other, HORON_OK);
            assert_true(x[0] == 3); /* it ran on for the others */
        } else {
            turn(world, 10);
            struct horon_request *again = submit_sum(world, 0, "x", &x[0]);
            expect_end(world, again, HORON_OK);
            expect_end(world, other, HORON_OK);
        }
        turn(world, 2);
        end_world(world);
    }
}

/* A callback starts it again while another thread lets it go, and that is heard of first. */
static void test_posts_prepared_one_started_when_let_go_leaves_no_handle(void **state)
{
    (void)state;
    struct world *world = two_ranks(0);
    float x[2] = {1, 2};
    uint32_t first, other;
    struct horon_request *mine = prepare(world, 0, "x", &x[0]);
    struct horon_coordinator *coordinator = horon_engine_job(world->ranks[0].engine)->coordinator;
    assert_int_equal(horon_coordinator_intern(coordinator, &mine->op, &first), HORON_OK);
    horon_coordinator_drop(coordinator, first);
    atomic_fetch_add(&mine->refs, 1); /* the engine's, while it calls back */
    atomic_store(&mine->released, true);
    let_go(world, 0, mine);
    start(world, 0, mine);
    expect_end(world, submit_sum(world, 1, "x", &x[1]), HORON_OK);
    expect_end(world, mine, HORON_OK);
    assert_true(x[0] == 3);
    struct horon_request *same = prepare(world, 0, "x", &x[0]);
    assert_int_equal(horon_coordinator_intern(coordinator, &same->op, &other), HORON_OK);
    assert_int_equal(other, first);
    horon_coordinator_drop(coordinator, other);
    world_release(same);
    end_world(world);
}

/* ---- the mailbox --------------------------------------------------------------------------- */

static void test_posts_are_taken_in_the_order_of_posting(void **state)
{
    enum { N = 20 };
    (void)state;
    struct world *world = world_create(one_host, 1, NULL, 3);
    struct horon_request *requests[2][N];
    float data[2][N];
    for (int rank = 0; rank < 2; rank++) {
        for (int i = 0; i < N; i++) {
            data[rank][i] = (float)i;
            requests[rank][i] = submit_sum(world, rank, NULL, &data[rank][i]);
        }
    }
    for (int i = 0; i < N; i++) {
        expect_end(world, requests[0][i], HORON_OK);
        for (int later = i + 1; later < N; later++) /* none before it */
            assert_true(ended(requests[0][later]) || data[0][later] == (float)later);
        assert_true(data[0][i] == (float)(2 * i));
    }
    for (int i = 0; i < N; i++)
        expect_end(world, requests[1][i], HORON_OK);
    end_world(world);
}

static void test_posts_chain_is_taken_as_if_posted_one_by_one(void **state)
{
    enum { N = 3 };
    (void)state;
    struct world *world = world_create(one_host, 1, NULL, 3);
    struct horon_request *requests[2][N];
    float data[2][N];
    for (int rank = 0; rank < 2; rank++) {
        struct world_rank *self = &world->ranks[rank];
        for (int i = 0; i < N; i++) {
            horon_descriptor_t desc = sum(NULL, &data[rank][i]);
            struct horon_error error = {0};
            data[rank][i] = (float)(i + 1);
            assert_int_equal(
                horon_request_create(&self->pool, &desc, horon_engine_job(self->engine),
                                     horon_engine_names(self->engine), &requests[rank][i], &error),
                HORON_OK);
            struct horon_request *request = requests[rank][i];
            request->callback_arg = self;
            atomic_store(&request->refs, 2);
            atomic_store(&request->state, HORON_REQUEST_FLYING);
            request->start.next = i ? &requests[rank][i - 1]->start : NULL;
        }
        assert_false(horon_engine_has_post(self->engine));
        assert_true(horon_engine_post_chain(self->engine, &requests[rank][N - 1]->start,
                                            &requests[rank][0]->start));
        assert_true(horon_engine_has_post(self->engine));
    }
    for (int i = 0; i < N; i++)
        for (int rank = 0; rank < 2; rank++) {
            expect_end(world, requests[rank][i], HORON_OK);
            assert_true(data[rank][i] == (float)(2 * (i + 1)));
        }
    end_world(world);
}

static void test_posts_after_the_failure_end_with_its_reason(void **state)
{
    (void)state;
    struct world *world = two_ranks(0);
    float x = 1;
    struct horon_request *before = submit_sum(world, 0, "x", &x);
    turn(world, 2);
    world_fail(world->ranks[0].engine, HORON_ERR_SYSTEM, "the disk is full");
    struct horon_request *after[2] = {submit_sum(world, 0, "y", &x),
                                      submit_sum(world, 0, NULL, &x)};
    post_cancel(world, 0, after[0]); /* of one that has failed already, when it is taken */
    horon_engine_progress(world->ranks[0].engine);
    assert_string_equal(before->error_text, "allreduce 'x' failed: the disk is full");
    assert_string_equal(after[0]->error_text, "allreduce 'y' failed: the disk is full");
    assert_non_null(strstr(after[1]->error_text, "(in order) failed: the disk is full"));
    expect_end(world, before, HORON_ERR_SYSTEM);
    expect_end(world, after[0], HORON_ERR_SYSTEM);
    expect_end(world, after[1], HORON_ERR_SYSTEM);
    end_world(world);
}

static void test_posts_to_a_closed_mailbox_are_refused(void **state)
{
    (void)state;
    struct world *world = two_ranks(1);
    struct horon_engine *engine = world->ranks[0].engine;
    float x = 1;
    struct horon_request *last = submit_sum(world, 0, "x", &x);
    struct horon_request *prepared = prepare(world, 0, "y", &x);
    let_go(world, 0, prepared);
    horon_engine_leave(engine); /* takes what was posted */
    assert_true(ended(last));
    assert_int_equal(last->status, HORON_ERR_CLOSED);
    struct horon_request *later = submit_sum(world, 0, "x", &x); /* it is not closed yet */
    horon_engine_close(engine);
    assert_true(ended(later));
    assert_int_equal(later->status, HORON_ERR_CLOSED);
    assert_false(horon_engine_post(engine, &last->cancel));
    assert_false(horon_engine_post(engine, &last->drop));
    world_release(last);
    world_release(later);
    assert_int_equal(horon_engine_names(engine)->entry_count,
                     horon_engine_names(engine)->idle_count);
    world_destroy(world);
}

/* ---- groups -------------------------------------------------------------------------------- */

static void submit_group(struct world *world, int rank, float *data, struct horon_request **out)
{
    static const char *const names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) {
        out[i] = submit_sum(world, rank, names[i], &data[i]);
        out[i]->op.agreed.group_hash = 7;
        out[i]->op.agreed.group_size = 3;
        out[i]->op.agreed.group_index = (uint32_t)i;
    }
}

/* A group of which a member was withdrawn waits, until that member comes again on this rank. */
static void test_posts_cancelled_member_holds_its_group(void **state)
{
    (void)state;
    for (int member = 0; member < 3; member++) {
        struct world *world = world_create(four_ranks, 2, NULL, (uint64_t)member);
        struct horon_request *all[4][3];
        float data[4][3] = {{0}};
        for (int rank = 0; rank < 3; rank++)
            submit_group(world, rank, data[rank], all[rank]);
        turn(world, 20);
        post_cancel(world, 1, all[1][member]);
        expect_end(world, all[1][member], HORON_ERR_CANCELLED);
        submit_group(world, 3, data[3], all[3]);
        turn(world, 50);
        for (int rank = 0; rank < 4; rank++)
            for (int i = 0; i < 3; i++)
                assert_true((rank == 1 && i == member) || !ended(all[rank][i]));
        for (int i = 0; i < 3; i++) { /* so do the others, and then all of it is gone */
            for (int rank = 0; rank < 4; rank++) {
                if (rank == 1 && i == member)
                    continue;
                post_cancel(world, rank, all[rank][i]);
                expect_end(world, all[rank][i], HORON_ERR_CANCELLED);
            }
        }
        for (int rank = 0; rank < 4; rank++)
            submit_group(world, rank, data[rank], all[rank]);
        for (int rank = 0; rank < 4; rank++)
            for (int i = 0; i < 3; i++)
                expect_end(world, all[rank][i], HORON_OK);
        end_world(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_posts_cancel_right_behind_its_start_withdraws),
        cmocka_unit_test(test_posts_cancel_of_a_waiting_one_withdraws_and_the_name_is_free),
        cmocka_unit_test(test_posts_cancel_twice_ends_once),
        cmocka_unit_test(test_posts_cancel_of_an_ended_one_is_ignored),
        cmocka_unit_test(test_posts_cancel_of_an_ordered_one_is_ignored),
        cmocka_unit_test(test_posts_cancel_at_any_moment_ends_well_or_withdraws),
        cmocka_unit_test(test_posts_barrier_behind_a_cancelled_one_meets_the_others),
        cmocka_unit_test(test_posts_cancelled_barrier_does_not_count),
        cmocka_unit_test(test_posts_prepared_one_runs_again_after_each_end),
        cmocka_unit_test(test_posts_cancel_is_for_the_run_under_way),
        cmocka_unit_test(test_posts_prepared_one_may_be_let_go_in_any_state),
        cmocka_unit_test(test_posts_prepared_one_started_when_let_go_leaves_no_handle),
        cmocka_unit_test(test_posts_are_taken_in_the_order_of_posting),
        cmocka_unit_test(test_posts_chain_is_taken_as_if_posted_one_by_one),
        cmocka_unit_test(test_posts_after_the_failure_end_with_its_reason),
        cmocka_unit_test(test_posts_to_a_closed_mailbox_are_refused),
        cmocka_unit_test(test_posts_cancelled_member_holds_its_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
