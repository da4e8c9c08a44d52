/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines, channels and verbs when memory ends: a world of several hosts does one of everything
 * while the nth allocation fails, for every n. Then either a submission says so, and goes well when
 * it is made again; or the job fails, on every rank, with a text that names the rank it hit.
 * Nobody hangs, nothing leaks. And once warm, they allocate nothing.
 */
#undef NDEBUG
#include "alloc_failing.h"
#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- one of everything ---------------------------------------------------------------------- */

static void allreduce(struct trial *trial, const char *name, uint64_t count)
{
    const int size = trial->world->size;
    struct horon_request *requests[TRIAL_RANKS_MAX];
    horon_descriptor_t desc = trial_describe(HORON_ALLREDUCE, name, count);
    if (trial->over)
        return;
    trial_submit_all(trial, desc, false, requests);
    if (trial_settle(trial, requests))
        for (int rank = 0; rank < size; rank++)
            for (int i = 0; i < (int)count; i++)
                assert_int_equal(trial_data(trial, rank)[i], size * i + size * (size - 1) / 2);
    trial_release_all(trial, requests);
}

static void broadcast(struct trial *trial, const char *name, uint64_t count)
{
    struct horon_request *requests[TRIAL_RANKS_MAX];
    horon_descriptor_t desc = trial_describe(HORON_BROADCAST, name, count);
    if (trial->over)
        return;
    desc.root = trial->world->size - 1;
    trial_submit_all(trial, desc, false, requests);
    if (trial_settle(trial, requests))
        for (int rank = 0; rank < trial->world->size; rank++)
            assert_int_equal(trial_data(trial, rank)[count - 1], (int)count - 1 + desc.root);
    trial_release_all(trial, requests);
}

/* Into memory of the request, which is asked for when the lengths are known. */
static void allgather(struct trial *trial, const char *name, uint64_t count)
{
    struct horon_request *requests[TRIAL_RANKS_MAX];
    if (trial->over)
        return;
    trial_submit_all(trial, trial_describe(HORON_ALLGATHER, name, count), false, requests);
    if (trial_settle(trial, requests))
        for (int rank = 0; rank < trial->world->size; rank++) {
            const int *output = requests[rank]->output;
            if (requests[rank]->output_refused)
                continue;
            assert_int_equal(requests[rank]->output_count, count * (uint64_t)trial->world->size);
            for (int of = 0; of < trial->world->size; of++)
                assert_int_equal(output[(uint64_t)of * count], of);
        }
    trial_release_all(trial, requests);
}

/* The runs that ranks give each other are of equal length; in a scatter only root gives them. For
 * good no memory: to take memory back from a link needs some, and the link dies, of which a ring in
 * one process tells nobody. */
static void exchange(struct trial *trial, horon_verb_t verb, const char *name, uint64_t count)
{
    struct horon_request *requests[TRIAL_RANKS_MAX];
    const int size = trial->world->size;
    const uint64_t run = verb == HORON_GATHER ? count : count / (uint64_t)size;
    horon_descriptor_t desc =
        trial_describe(verb, name, verb == HORON_GATHER ? count : run * (uint64_t)size);
    if (trial->over || trial->for_good)
        return;
    trial_submit_all(trial, desc, false, requests);
    if (trial_settle(trial, requests))
        for (int rank = 0; rank < size; rank++) {
            const int *output = requests[rank]->output;
            for (int of = 0; output && of < (verb == HORON_SCATTER ? 1 : size); of++)
                assert_int_equal(output[(uint64_t)of * run],
                                 of + (verb == HORON_GATHER ? 0 : (int)run * rank));
        }
    trial_release_all(trial, requests);
}

static void barrier(struct trial *trial, const char *name)
{
    struct horon_request *requests[TRIAL_RANKS_MAX];
    if (trial->over)
        return;
    trial_submit_all(trial, trial_describe(HORON_BARRIER, name, 0), false, requests);
    trial_settle(trial, requests);
    trial_release_all(trial, requests);
}

/* The caller's posts, as horon_release() makes them of a prepared request. */
static void drop_all(struct trial *trial, struct horon_request *const *requests)
{
    for (int rank = 0; rank < trial->world->size; rank++)
        assert_true(horon_engine_post(trial->world->ranks[rank].engine, &requests[rank]->drop));
    for (int rank = 0; rank < trial->world->size; rank++)
        horon_engine_progress(trial->world->ranks[rank].engine);
}

static void persistent(struct trial *trial)
{
    struct horon_request *requests[TRIAL_RANKS_MAX];
    if (trial->over)
        return;
    trial_submit_all(trial, trial_describe(HORON_ALLREDUCE, "prepared", TRIAL_SMALL), true,
                     requests);
    bool well = trial_settle(trial, requests);
    if (well) {
        for (int rank = 0; rank < trial->world->size; rank++)
            trial_post(trial, rank, requests[rank]);
        trial_settle(trial, requests);
    }
    drop_all(trial, requests);
}

/* More tensors at a time than the first arrays hold, so that all of them grow. */
static void many(struct trial *trial)
{
    enum { TENSORS = 70 };
    static struct horon_request *requests[TENSORS][TRIAL_RANKS_MAX];
    char name[16];
    if (trial->over)
        return;
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "of many %d", i);
        trial_submit_all(trial, trial_describe(HORON_ALLREDUCE, name, TRIAL_SMALL), false,
                         requests[i]);
    }
    bool well = true;
    for (int i = 0; i < TENSORS; i++) {
        for (int rank = 0; rank < trial->world->size && well; rank++)
            trial_begin_again(trial, rank, requests[i][rank]);
        well = well && trial_settle(trial, requests[i]);
    }
    for (int i = 0; i < TENSORS; i++) {
        assert_true(trial_all_ended(trial, requests[i]));
        trial_release_all(trial, requests[i]);
    }
}

/* Ranks disagree: the text about it needs memory, too. */
static void mismatch(struct trial *trial)
{
    struct horon_request *requests[TRIAL_RANKS_MAX];
    if (trial->over)
        return;
    horon_descriptor_t desc = trial_describe(HORON_ALLREDUCE, "of two minds", TRIAL_SMALL);
    for (int rank = 0; rank < trial->world->size; rank++) {
        desc.src = desc.dst = trial_data(trial, rank);
        desc.count = rank % 2 ? TRIAL_SMALL : TRIAL_SMALL + 1;
        requests[rank] = trial_submit(trial, rank, &desc);
        trial_post(trial, rank, requests[rank]);
    }
    for (int turns = 0; turns < TRIAL_TURNS_MAX && !trial_all_ended(trial, requests); turns++)
        trial_turn(trial, requests);
    if (!trial->over)
        for (int rank = 0; rank < trial->world->size; rank++) {
            assert_true(trial_ended(requests[rank]));
            assert_int_equal(requests[rank]->status, HORON_ERR_MISMATCH);
        }
    else
        trial_settle(trial, requests);
    trial_release_all(trial, requests);
}

/* Asked about, withdrawn on every rank, and gone. */
static void cancelled(struct trial *trial)
{
    struct horon_request *request;
    const int rank = trial->world->size - 1;
    struct horon_engine *engine = trial->world->ranks[rank].engine;
    if (trial->over)
        return;
    horon_descriptor_t desc = trial_describe(HORON_ALLREDUCE, "lonely", TRIAL_SMALL);
    desc.src = desc.dst = trial_data(trial, rank);
    request = trial_submit(trial, rank, &desc);
    trial_post(trial, rank, request);
    struct horon_request *of_all[TRIAL_RANKS_MAX];
    for (int i = 0; i < trial->world->size; i++)
        of_all[i] = request;
    for (int turns = 0; turns < 50 && !trial->over; turns++)
        trial_turn(trial, of_all);
    if (!trial->over) {
        horon_engine_ask(engine, request);
        trial_look_whom_it_hit(trial, rank);
        for (int turns = 0; turns < 50 && !trial->over; turns++)
            trial_turn(trial, of_all);
    }
    if (!trial->over)
        assert_true(horon_engine_post_cancel(engine, request));
    for (int turns = 0; turns < TRIAL_TURNS_MAX && !trial_ended(request); turns++)
        trial_turn(trial, of_all);
    assert_true(trial_ended(request));
    assert_true(trial->over || request->status == HORON_ERR_CANCELLED);
    world_release(request);
}

static void everything(struct trial *trial)
{
    allreduce(trial, NULL, TRIAL_SMALL);
    allreduce(trial, NULL, TRIAL_LARGE);
    allreduce(trial, "sum", TRIAL_LARGE);
    broadcast(trial, NULL, TRIAL_LARGE);
    broadcast(trial, "weights", TRIAL_SMALL);
    allgather(trial, NULL, TRIAL_LARGE);
    allgather(trial, "rows", TRIAL_SMALL);
    exchange(trial, HORON_ALLTOALL, NULL, TRIAL_LARGE);
    exchange(trial, HORON_ALLTOALL, "runs", TRIAL_SMALL);
    exchange(trial, HORON_GATHER, "to one", TRIAL_LARGE);
    exchange(trial, HORON_SCATTER, NULL, TRIAL_LARGE);
    barrier(trial, NULL);
    barrier(trial, "all here");
    persistent(trial);
    mismatch(trial);
    cancelled(trial);
    many(trial);
    allreduce(trial, "sum", TRIAL_SMALL);
}

/* ---- every n -------------------------------------------------------------------------------- */

static const int two_hosts[] = {2, 2}, three_hosts[] = {1, 2, 1}, one_host[] = {3};

static void test_torture_world_each_allocation_fails_once(void **state)
{
    (void)state;
    trial_for_each(one_host, 1, 0, everything);
    trial_for_each(two_hosts, 2, 0, everything);
    trial_for_each(three_hosts, 3, 0, everything);
}

static void test_torture_world_no_memory_from_each_allocation_on(void **state)
{
    (void)state;
    trial_for_each(one_host, 1, 1, everything);
    trial_for_each(two_hosts, 2, 1, everything);
}

static void test_torture_world_engines_that_cannot_be_made_leave_nothing(void **state)
{
    (void)state;
    const long live = alloc_live();
    bool failed = true;
    for (long n = 1; failed; n++) {
        struct world *world = world_create_bare(three_hosts, 3, trial_settings, 1);
        failed = false;
        alloc_fail_at(n, 0);
        for (int rank = 0; rank < world->size; rank++) {
            struct horon_error error = {0};
            horon_status_t status = world_make_engine(world, rank, &error);
            assert_true(status == HORON_OK || status == HORON_ERR_MEMORY);
            assert_true((status == HORON_OK) == (world->ranks[rank].engine != NULL));
            failed = failed || status != HORON_OK;
        }
        assert_true(failed == (alloc_count() >= n));
        alloc_fail_at(0, 0);
        world_destroy(world);
        assert_int_equal(alloc_live(), live);
    }
}

/* In order, and prepared once: what a training step does for the thousandth time. */
static void test_torture_world_once_warm_it_allocates_nothing(void **state)
{
    (void)state;
    struct trial trial = {.culprit = -1,
                          .data = calloc(TRIAL_RANKS_MAX * TRIAL_LARGE, sizeof(int))};
    struct horon_request *requests[TRIAL_RANKS_MAX], *ordered[TRIAL_RANKS_MAX];
    trial.world = trial_world(two_hosts, 2);
    alloc_fail_at(0, 0);
    trial_submit_all(&trial, trial_describe(HORON_ALLREDUCE, "prepared", TRIAL_LARGE), true,
                     requests);
    assert_true(trial_settle(&trial, requests));
    trial_submit_all(&trial, trial_describe(HORON_ALLREDUCE, NULL, TRIAL_LARGE), true, ordered);
    assert_true(trial_settle(&trial, ordered));
    for (int round = 0; round < 50; round++) {
        if (round == 10)
            alloc_fail_at(0, 0);
        for (int rank = 0; rank < trial.world->size; rank++) {
            trial_post(&trial, rank, requests[rank]);
            trial_post(&trial, rank, ordered[rank]);
        }
        assert_true(trial_settle(&trial, requests));
        assert_true(trial_settle(&trial, ordered));
    }
    assert_int_equal(alloc_count(), 0);
    drop_all(&trial, requests);
    trial_release_all(&trial, ordered);
    world_destroy(trial.world);
    free(trial.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torture_world_each_allocation_fails_once),
        cmocka_unit_test(test_torture_world_no_memory_from_each_allocation_on),
        cmocka_unit_test(test_torture_world_engines_that_cannot_be_made_leave_nothing),
        cmocka_unit_test(test_torture_world_once_warm_it_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
