/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of a channel in their order: a broken promise of the sequence is named wherever it is
 * met, an output that is not given ends the job with its reason, batches end all of their requests,
 * and what was released before its end runs on.
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

static const int one_host[] = {3}, three_hosts[] = {1, 1, 1}, mixed[] = {2, 1};
static const struct {
    const int *hosts;
    int count;
} layouts[] = {{one_host, 1}, {three_hosts, 3}, {mixed, 2}};
#define LAYOUTS 3
#define RANKS 3

static horon_descriptor_t sum(const char *name, void *data, uint64_t count)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.flags = name ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = data;
    desc.count = count;
    return desc;
}

static void turn(struct world *world, int turns)
{
    for (int i = 0; i < turns * world->size; i++)
        horon_engine_progress(world->ranks[i % world->size].engine);
}

/* ---- the promise of one sequence ------------------------------------------------------------ */

/* What rank 2 does otherwise than the others. */
static void other_dtype(horon_descriptor_t *desc)
{
    desc->dtype = HORON_INT32;
}
static void other_redop(horon_descriptor_t *desc)
{
    desc->redop = HORON_MAX;
}
static void other_count(horon_descriptor_t *desc)
{
    desc->count = 5;
}
static void other_verb(horon_descriptor_t *desc)
{
    desc->verb = HORON_BROADCAST;
}
static void other_scale(horon_descriptor_t *desc)
{
    desc->postscale = 2;
}
static void other_name(horon_descriptor_t *desc)
{
    desc->name = "another"; /* of an in-order operation it need not be given, but must agree */
}
static void (*const others[])(horon_descriptor_t *desc) = {other_dtype, other_redop, other_count,
                                                           other_verb,  other_scale, other_name};

static void break_promise(int layout, size_t how, uint64_t seed)
{
    struct world *world = world_create(layouts[layout].hosts, layouts[layout].count, NULL, seed);
    struct horon_request *requests[RANKS];
    float data[RANKS][8] = {{0}};
    for (int rank = 0; rank < RANKS; rank++) {
        horon_descriptor_t desc = sum(NULL, data[rank], 8);
        for (int i = 0; i < 8; i++)
            data[rank][i] = (float)rank;
        if (rank == 2)
            others[how](&desc);
        requests[rank] = world_submit(world, rank, &desc);
    }
    assert_true(world_turn_until(world, requests, RANKS));
    for (int rank = 0; rank < RANKS; rank++) {
        const char *text = requests[rank]->error_text;
        if (requests[rank]->status != HORON_ERR_MISMATCH)
            fail_msg("layout %d, case %zu, rank %d: status %d", layout, how, rank,
                     requests[rank]->status);
        int sides = !!strstr(text, "rank 0 (host-") + !!strstr(text, "rank 1 (host-");
        if (!strstr(text, "rank 2 (host-") || sides != 1) /* and the rank that met it */
            fail_msg("rank %d: '%s'", rank, text);
        for (int i = 0; i < 8; i++) /* inputs are intact */
            assert_true(data[rank][i] == (float)rank);
        world_release(requests[rank]);
    }
    world_destroy(world);
}

static void test_lanes_broken_promise_is_named_on_every_rank(void **state)
{
    (void)state;
    for (int layout = 0; layout < LAYOUTS; layout++)
        for (size_t how = 0; how < sizeof others / sizeof others[0]; how++)
            for (uint64_t seed = 0; seed < 3; seed++)
                break_promise(layout, how, seed);
}

/* Short descriptions are alike: the text lists what they leave out. */
static void test_lanes_text_of_operations_that_look_alike_names_splits(void **state)
{
    static const uint64_t splits[RANKS][RANKS] = {{1, 2, 5}, {1, 2, 5}, {2, 1, 5}};
    struct world *world = world_create(one_host, 1, NULL, 1);
    struct horon_request *requests[RANKS];
    float data[RANKS][8] = {{0}}, out[RANKS][5];
    (void)state;
    for (int rank = 0; rank < RANKS; rank++) {
        horon_descriptor_t desc = sum(NULL, data[rank], 8);
        desc.verb = HORON_REDUCESCATTER;
        desc.dst = out[rank];
        desc.dst_count = 5;
        desc.splits = splits[rank];
        requests[rank] = world_submit(world, rank, &desc);
    }
    assert_true(world_turn_until(world, requests, RANKS));
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(requests[rank]->status, HORON_ERR_MISMATCH);
        assert_non_null(strstr(requests[rank]->error_text, "differ in name, shape, splits, "));
        world_release(requests[rank]);
    }
    world_destroy(world);
}

/* The same two operations, but rank 1 swaps them. */
static void test_lanes_swapped_operations_are_a_broken_promise(void **state)
{
    (void)state;
    for (int layout = 0; layout < LAYOUTS; layout++) {
        struct world *world = world_create(layouts[layout].hosts, layouts[layout].count, NULL, 1);
        struct horon_request *requests[RANKS * 2];
        float data[RANKS][2][9] = {{{0}}};
        for (int rank = 0; rank < RANKS; rank++)
            for (int i = 0; i < 2; i++) {
                int which = rank == 1 ? 1 - i : i;
                horon_descriptor_t desc = sum(NULL, data[rank][which], which ? 9 : 8);
                requests[rank * 2 + i] = world_submit(world, rank, &desc);
            }
        assert_true(world_turn_until(world, requests, RANKS * 2));
        for (int i = 0; i < RANKS * 2; i++) {
            assert_int_equal(requests[i]->status, HORON_ERR_MISMATCH);
            world_release(requests[i]);
        }
        world_destroy(world);
    }
}

/* ---- outputs -------------------------------------------------------------------------------- */

static void *give_none(void *arg, uint64_t rows, uint64_t bytes)
{
    (void)arg;
    assert_true(rows == RANKS && bytes == RANKS * 4 * sizeof(float));
    return NULL;
}

static void test_lanes_output_that_is_not_given_fails_there_alone(void **state)
{
    (void)state;
    for (int layout = 0; layout < LAYOUTS; layout++) {
        for (int named = 0; named < 2; named++) {
            struct world *world =
                world_create(layouts[layout].hosts, layouts[layout].count, NULL, 2);
            struct horon_request *requests[RANKS];
            float data[RANKS][4] = {{0}};
            uint64_t shape[2] = {1, 4};
            for (int rank = 0; rank < RANKS; rank++) {
                horon_descriptor_t desc = sum(named ? "rows" : NULL, data[rank], 0);
                desc.verb = HORON_ALLGATHER;
                desc.dst = NULL;
                desc.shape = shape;
                desc.ndim = 2;
                desc.alloc = rank == 1 ? give_none : NULL;
                requests[rank] = world_submit(world, rank, &desc);
            }
            assert_true(world_turn_until(world, requests, RANKS));
            assert_non_null(strstr(requests[1]->error_text, "rank 1 (host-"));
            assert_non_null(strstr(requests[1]->error_text, "no memory for the "));
            for (int rank = 0; rank < RANKS; rank++) {
                assert_int_equal(requests[rank]->status, rank == 1 ? HORON_ERR_MEMORY : HORON_OK);
                assert_int_equal(world_failure(world->ranks[rank].engine, NULL), HORON_OK);
                world_release(requests[rank]);
            }
            world_destroy(world);
        }
    }
}

/* ---- batches -------------------------------------------------------------------------------- */

static int called;

static void count_call(void *arg, horon_request_t *req, horon_status_t status)
{
    (void)arg;
    (void)req;
    assert_int_equal(status, HORON_OK);
    called++;
}

/* More tensors than an array of a batch has at first, in one batch, twice: the second finds the
 * arrays of the first. Half of them are released before they have ended. */
static void test_lanes_batch_of_many_ends_each_once(void **state)
{
    enum { N = 151 };
    static struct horon_request *requests[RANKS][N];
    static float data[RANKS][N];
    (void)state;
    for (int layout = 0; layout < LAYOUTS; layout++) {
        struct world *world = world_create(layouts[layout].hosts, layouts[layout].count, NULL, 3);
        struct horon_coordinator *root = world->ranks[0].engine->job->coordinator;
        for (int round = 0; round < 2; round++) {
            called = 0;
            for (int rank = 0; rank < RANKS; rank++) {
                for (int i = 0; i < N; i++) {
                    char name[16];
                    snprintf(name, sizeof name, "t%d", i);
                    data[rank][i] = (float)(i + rank);
                    horon_descriptor_t desc = sum(name, &data[rank][i], 1);
                    desc.callback = count_call;
                    requests[rank][i] = world_submit(world, rank, &desc);
                    if (i % 2) {
                        world_release(requests[rank][i]); /* the engine's alone now */
                        requests[rank][i] = NULL;
                    }
                }
            }
            for (int rank = 0; rank < RANKS; rank++)
                assert_true(world_turn_until(world, requests[rank], N));
            turn(world, 2);
            assert_int_equal(called, RANKS * N);
            for (int rank = 0; rank < RANKS; rank++) {
                assert_int_equal(horon_engine_in_flight(world->ranks[rank].engine), 0);
                for (int i = 0; i < N; i++) {
                    assert_true(data[rank][i] == (float)(3 * i + 3));
                    world_release(requests[rank][i]);
                }
                assert_int_equal(horon_engine_names(world->ranks[rank].engine)->entry_count,
                                 horon_engine_names(world->ranks[rank].engine)->idle_count);
            }
        }
        assert_int_equal(horon_coordinator_decisions(root), 2);
        world_destroy(world);
    }
}

/* A failure ends what is begun, what is queued and what is still negotiated, each with its name. */
static void test_lanes_failure_ends_all_of_every_kind(void **state)
{
    (void)state;
    for (int layout = 0; layout < LAYOUTS; layout++) {
        struct world *world = world_create(layouts[layout].hosts, layouts[layout].count, NULL, 4);
        struct horon_request *requests[4];
        float data[4] = {1, 2, 3, 4};
        static const char *const names[4] = {NULL, NULL, "a", "b"};
        for (int i = 0; i < 4; i++) {
            horon_descriptor_t desc = sum(names[i], &data[i], 1);
            requests[i] = world_submit(world, 0, &desc);
        }
        turn(world, 10);
        world_fail(world->ranks[1].engine, HORON_ERR_PEER_LOST, "rank 7 (x) is gone");
        assert_true(world_turn_until(world, requests, 4));
        for (int i = 0; i < 4; i++) {
            char expected[64];
            assert_int_equal(requests[i]->status, HORON_ERR_PEER_LOST);
            snprintf(expected, sizeof expected, "allreduce '%s' failed: rank 7 (x) is gone",
                     names[i] ? names[i] : "");
            assert_string_equal(requests[i]->error_text,
                                names[i] ? expected
                                         : "allreduce of 1 float32 (in order) failed: rank 7 (x) "
                                           "is gone");
            assert_true(data[i] == (float)(i + 1));
            world_release(requests[i]);
        }
        for (int rank = 0; rank < RANKS; rank++)
            assert_int_equal(horon_engine_wants(world->ranks[rank].engine), HORON_WAKE_ASLEEP);
        world_destroy(world);
    }
}

/* ---- past the mailbox, as horon_run() begins them ---------------------------------------------
 */

static void count_end(void *arg, horon_request_t *request, horon_status_t status)
{
    struct world_rank *self = arg; /* which world_release() wants there */
    (void)request;
    assert_int_equal(status, HORON_OK);
    self->dead = true;
}

static struct horon_request *make(struct world *world, int rank, const horon_descriptor_t *desc)
{
    struct world_rank *self = &world->ranks[rank];
    struct horon_request *request = NULL;
    struct horon_error error = {0};
    assert_int_equal(horon_request_create(&self->pool, desc, horon_engine_job(self->engine),
                                          horon_engine_names(self->engine), &request, &error),
                     HORON_OK);
    request->callback_arg = self; /* for world_release() */
    atomic_store(&request->refs, 2);
    atomic_store(&request->state, HORON_REQUEST_FLYING);
    return request;
}

/* The first of two waits, and what it has stored is rung for; the second finds all, and its ring is
 * owed until the token is given back. */
static void test_lanes_run_that_ends_at_once_was_never_in_flight(void **state)
{
    static const int hosts[] = {2};
    struct world *world = world_create(hosts, 1, NULL, 1);
    struct horon_request *requests[2];
    float data[2] = {1, 2};
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        struct horon_engine *engine = world->ranks[rank].engine;
        const horon_descriptor_t desc = sum(NULL, &data[rank], 1);
        const uint64_t ends = engine->ends;
        requests[rank] = make(world, rank, &desc);
        assert_int_equal(horon_engine_run_now(engine, requests[rank]),
                         rank ? HORON_OK : HORON_IN_PROGRESS);
        assert_int_equal(horon_engine_in_flight(engine), rank ? 0 : 1);
        assert_int_equal(requests[rank]->linked, !rank);
        assert_int_equal(engine->ends, ends + (uint64_t)rank);
        assert_int_equal(world->ranks[rank].host.owes_ring, rank);
    }
    assert_true(world_turn_until(world, requests, 1));
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(requests[rank]->status, HORON_OK);
        assert_true(data[rank] == 3);
    }
    world_release(requests[0]);
    atomic_store(&requests[1]->refs, 1); /* as horon_run() has it, whose it is alone */
    atomic_store(&requests[1]->state, HORON_REQUEST_ENDED);
    world_release(requests[1]);
    world_destroy(world);
}

static void test_lanes_run_with_a_callback_ends_for_all_to_see(void **state)
{
    static const int alone[] = {1};
    struct world *world = world_create(alone, 1, NULL, 1);
    float data = 1;
    (void)state;
    horon_descriptor_t desc = sum(NULL, &data, 1);
    desc.callback = count_end;
    struct horon_request *request = make(world, 0, &desc);
    assert_int_equal(horon_engine_run_now(world->ranks[0].engine, request), HORON_IN_PROGRESS);
    assert_int_equal(atomic_load(&request->state), HORON_REQUEST_ENDED);
    assert_true(world->ranks[0].dead);
    world->ranks[0].dead = false;
    world_release(request);
    world_destroy(world);
}

static void test_lanes_run_goes_behind_what_is_posted(void **state)
{
    static const int alone[] = {1};
    struct world *world = world_create(alone, 1, NULL, 1);
    struct horon_request *requests[2];
    float data[2] = {1, 2};
    (void)state;
    const horon_descriptor_t first = sum(NULL, &data[0], 1), second = sum(NULL, &data[1], 1);
    requests[0] = world_submit(world, 0, &first);
    requests[1] = make(world, 0, &second);
    assert_int_equal(horon_engine_run_now(world->ranks[0].engine, requests[1]), HORON_AGAIN);
    assert_false(requests[1]->linked);
    assert_true(horon_engine_post(world->ranks[0].engine, &requests[1]->start));
    assert_true(world_turn_until(world, requests, 2));
    for (int i = 0; i < 2; i++)
        world_release(requests[i]);
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes_broken_promise_is_named_on_every_rank),
        cmocka_unit_test(test_lanes_text_of_operations_that_look_alike_names_splits),
        cmocka_unit_test(test_lanes_swapped_operations_are_a_broken_promise),
        cmocka_unit_test(test_lanes_output_that_is_not_given_fails_there_alone),
        cmocka_unit_test(test_lanes_batch_of_many_ends_each_once),
        cmocka_unit_test(test_lanes_failure_ends_all_of_every_kind),
        cmocka_unit_test(test_lanes_run_that_ends_at_once_was_never_in_flight),
        cmocka_unit_test(test_lanes_run_with_a_callback_ends_for_all_to_see),
        cmocka_unit_test(test_lanes_run_goes_behind_what_is_posted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
