/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines, channels and verbs when memory ends: a world of several hosts does one of everything
 * while the nth allocation fails, for every n. Then either a submission says so, and goes well when
 * it is made again; or the job fails, on every rank, with a text that names the rank it hit.
 * Nobody hangs, nothing leaks. And once warm, they allocate nothing.
 */
#undef NDEBUG
#include "alloc_failing.h"
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Turns of the whole world after which it counts as hung; the longest operation takes some 100. */
enum { RANKS_MAX = 4, SMALL = 5, LARGE = 3000, TURNS_MAX = 3000 };
/* Those behind are nearly all of many(), and alike; only the full suite fails each of them. */
enum { EACH_UP_TO = 250, STRIDE = 17 };

static const char *const settings[] = {"SHM_SMALL_BYTES=64",   "SHM_CHUNK_BYTES=4096",
                                       "NET_CHUNK_BYTES=4096", "NET_EAGER_BYTES=100",
                                       "NET_ALGORITHM=direct", NULL};

struct trial {
    struct world *world;
    long n;       /* this trial */
    long at;      /* the allocation that fails; 0: none */
    int culprit;  /* the rank it hit, -1: none yet */
    int *data;    /* [RANKS_MAX][LARGE] */
    bool over;    /* the job has failed */
    bool refused; /* a request or submission said ERR_MEMORY */
    int for_good; /* all that follow fail, too, until somebody said so */
};

static int *data_of(const struct trial *trial, int rank)
{
    return trial->data + rank * LARGE;
}

/* To be called after whatever a rank did. */
static void look_whom_it_hit(struct trial *trial, int rank)
{
    if (trial->culprit < 0 && trial->at && alloc_count() >= trial->at)
        trial->culprit = rank;
}

static void memory_is_back(struct trial *trial)
{
    trial->at = 0;
    alloc_fail_at(0, 0);
}

/* ---- one operation on all ranks ------------------------------------------------------------- */

static struct horon_request *submit(struct trial *trial, int rank, const horon_descriptor_t *desc)
{
    struct world_rank *self = &trial->world->ranks[rank];
    struct horon_request *request = NULL;
    struct horon_error error = {0};
    horon_status_t status =
        horon_request_create(&self->pool, desc, horon_engine_job(self->engine),
                             horon_engine_names(self->engine), &request, &error);
    look_whom_it_hit(trial, rank);
    if (status != HORON_OK) {
        assert_int_equal(status, HORON_ERR_MEMORY);
        assert_non_null(strstr(error.text, "memory"));
        assert_true(trial->culprit == rank || trial->for_good);
        trial->refused = true;
        memory_is_back(trial);
        return submit(trial, rank, desc);
    }
    request->callback_arg = self; /* no callback: free for world_release() */
    return request;
}

static void post(struct trial *trial, int rank, struct horon_request *request)
{
    if (request->persistent && atomic_load(&request->state) == HORON_REQUEST_ENDED)
        horon_request_reset(request);
    atomic_fetch_add(&request->refs, 1);
    atomic_store(&request->state, HORON_REQUEST_FLYING);
    assert_true(horon_engine_post(trial->world->ranks[rank].engine, &request->start));
}

static bool ended(const struct horon_request *request)
{
    return atomic_load(&request->state) == HORON_REQUEST_ENDED;
}

/* A refusal that this rank alone knows of: nothing has happened, and again it goes well. */
static void begin_again(struct trial *trial, int rank, struct horon_request *request)
{
    if (!ended(request) || request->status != HORON_ERR_MEMORY)
        return;
    assert_true(trial->culprit == rank || trial->for_good);
    trial->refused = true;
    memory_is_back(trial);
    if (request->output_refused)
        return; /* the others have theirs */
    horon_request_reset(request);
    post(trial, rank, request);
}

static void turn(struct trial *trial, struct horon_request *const *requests)
{
    for (int rank = 0; rank < trial->world->size; rank++) {
        struct horon_engine *engine = trial->world->ranks[rank].engine;
        horon_engine_progress(engine);
        look_whom_it_hit(trial, rank);
        if (world_failure(engine, NULL) == HORON_OK)
            begin_again(trial, rank, requests[rank]);
        else
            trial->over = true;
    }
    if (trial->over)
        memory_is_back(trial);
}

static bool all_ended(const struct trial *trial, struct horon_request *const *requests)
{
    for (int rank = 0; rank < trial->world->size; rank++)
        if (!ended(requests[rank]))
            return false;
    return true;
}

/* The job has failed: every rank knows why, or knows that the rank it hit has left. */
static void expect_named_everywhere(const struct trial *trial)
{
    char name[32];
    snprintf(name, sizeof name, "rank %d (host-", trial->culprit);
    for (int rank = 0; rank < trial->world->size; rank++) {
        const char *text = "";
        horon_status_t status = world_failure(trial->world->ranks[rank].engine, &text);
        if (status == HORON_OK)
            continue;          /* it ended before it heard of it */
        if (trial->for_good) { /* it hits whoever comes next, too */
            assert_non_null(strstr(text, "rank "));
            continue;
        }
        if (!strstr(text, name))
            fprintf(stderr, "rank %d hit, rank %d: status %d: %s\n", trial->culprit, rank, status,
                    text);
        assert_non_null(strstr(text, name));
        assert_true(status == HORON_ERR_MEMORY || status == HORON_ERR_PEER_LOST ||
                    status == HORON_ERR_CLOSED);
        assert_true(rank != trial->culprit || status == HORON_ERR_MEMORY);
    }
}

/* @return false: the job has failed */
static bool settle(struct trial *trial, struct horon_request *const *requests)
{
    for (int turns = 0; turns < TURNS_MAX && !all_ended(trial, requests); turns++)
        turn(trial, requests);
    if (trial->over && !all_ended(trial, requests)) {
        /* without memory it could tell nobody; then its departure says it */
        horon_engine_leave(trial->world->ranks[trial->culprit].engine);
        for (int turns = 0; turns < TURNS_MAX && !all_ended(trial, requests); turns++)
            turn(trial, requests);
    }
    if (!all_ended(trial, requests))
        fprintf(stderr, "hung: allocation %ld hit rank %d; %s\n", trial->n, trial->culprit,
                trial->over ? "the job failed" : "the job did not fail");
    assert_true(all_ended(trial, requests));
    if (trial->over)
        expect_named_everywhere(trial);
    for (int rank = 0; rank < trial->world->size && !trial->over; rank++)
        assert_int_equal(requests[rank]->status,
                         requests[rank]->output_refused ? HORON_ERR_MEMORY : HORON_OK);
    return !trial->over;
}

static void release_all(const struct trial *trial, struct horon_request *const *requests)
{
    for (int rank = 0; rank < trial->world->size; rank++)
        world_release(requests[rank]);
}

/* The same of every rank, but for what differs by nature. */
static void submit_all(struct trial *trial, horon_descriptor_t desc, bool persistent,
                       struct horon_request **requests)
{
    for (int rank = 0; rank < trial->world->size; rank++) {
        int *data = data_of(trial, rank);
        for (int i = 0; i < LARGE; i++)
            data[i] = i + rank;
        desc.src = data;
        desc.dst = horon_verb_rows_differ(&horon_verb_rows[desc.verb]) ? NULL : data;
        requests[rank] = submit(trial, rank, &desc);
        requests[rank]->persistent = persistent;
        post(trial, rank, requests[rank]);
    }
}

static horon_descriptor_t describe(horon_verb_t verb, const char *name, uint64_t count)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.dtype = HORON_INT32;
    desc.name = name;
    desc.flags = name ? 0 : HORON_IN_ORDER;
    desc.count = count;
    return desc;
}

/* ---- one of everything ---------------------------------------------------------------------- */

static void allreduce(struct trial *trial, const char *name, uint64_t count)
{
    const int size = trial->world->size;
    struct horon_request *requests[RANKS_MAX];
    horon_descriptor_t desc = describe(HORON_ALLREDUCE, name, count);
    if (trial->over)
        return;
    submit_all(trial, desc, false, requests);
    if (settle(trial, requests))
        for (int rank = 0; rank < size; rank++)
            for (int i = 0; i < (int)count; i++)
                assert_int_equal(data_of(trial, rank)[i], size * i + size * (size - 1) / 2);
    release_all(trial, requests);
}

static void broadcast(struct trial *trial, const char *name, uint64_t count)
{
    struct horon_request *requests[RANKS_MAX];
    horon_descriptor_t desc = describe(HORON_BROADCAST, name, count);
    if (trial->over)
        return;
    desc.root = trial->world->size - 1;
    submit_all(trial, desc, false, requests);
    if (settle(trial, requests))
        for (int rank = 0; rank < trial->world->size; rank++)
            assert_int_equal(data_of(trial, rank)[count - 1], (int)count - 1 + desc.root);
    release_all(trial, requests);
}

/* Into memory of the request, which is asked for when the lengths are known. */
static void allgather(struct trial *trial, const char *name, uint64_t count)
{
    struct horon_request *requests[RANKS_MAX];
    if (trial->over)
        return;
    submit_all(trial, describe(HORON_ALLGATHER, name, count), false, requests);
    if (settle(trial, requests))
        for (int rank = 0; rank < trial->world->size; rank++) {
            const int *output = requests[rank]->output;
            if (requests[rank]->output_refused)
                continue;
            assert_int_equal(requests[rank]->output_count, count * (uint64_t)trial->world->size);
            for (int of = 0; of < trial->world->size; of++)
                assert_int_equal(output[(uint64_t)of * count], of);
        }
    release_all(trial, requests);
}

/* The runs that ranks give each other are of equal length; in a scatter only root gives them. For
 * good no memory: to take memory back from a link needs some, and the link dies, of which a ring in
 * one process tells nobody. */
static void exchange(struct trial *trial, horon_verb_t verb, const char *name, uint64_t count)
{
    struct horon_request *requests[RANKS_MAX];
    const int size = trial->world->size;
    const uint64_t run = verb == HORON_GATHER ? count : count / (uint64_t)size;
    horon_descriptor_t desc =
        describe(verb, name, verb == HORON_GATHER ? count : run * (uint64_t)size);
    if (trial->over || trial->for_good)
        return;
    submit_all(trial, desc, false, requests);
    if (settle(trial, requests))
        for (int rank = 0; rank < size; rank++) {
            const int *output = requests[rank]->output;
            for (int of = 0; output && of < (verb == HORON_SCATTER ? 1 : size); of++)
                assert_int_equal(output[(uint64_t)of * run],
                                 of + (verb == HORON_GATHER ? 0 : (int)run * rank));
        }
    release_all(trial, requests);
}

static void barrier(struct trial *trial, const char *name)
{
    struct horon_request *requests[RANKS_MAX];
    if (trial->over)
        return;
    submit_all(trial, describe(HORON_BARRIER, name, 0), false, requests);
    settle(trial, requests);
    release_all(trial, requests);
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
    struct horon_request *requests[RANKS_MAX];
    if (trial->over)
        return;
    submit_all(trial, describe(HORON_ALLREDUCE, "prepared", SMALL), true, requests);
    bool well = settle(trial, requests);
    if (well) {
        for (int rank = 0; rank < trial->world->size; rank++)
            post(trial, rank, requests[rank]);
        settle(trial, requests);
    }
    drop_all(trial, requests);
}

/* More tensors at a time than the first arrays hold, so that all of them grow. */
static void many(struct trial *trial)
{
    enum { TENSORS = 70 };
    static struct horon_request *requests[TENSORS][RANKS_MAX];
    char name[16];
    if (trial->over)
        return;
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "of many %d", i);
        submit_all(trial, describe(HORON_ALLREDUCE, name, SMALL), false, requests[i]);
    }
    bool well = true;
    for (int i = 0; i < TENSORS; i++) {
        for (int rank = 0; rank < trial->world->size && well; rank++)
            begin_again(trial, rank, requests[i][rank]);
        well = well && settle(trial, requests[i]);
    }
    for (int i = 0; i < TENSORS; i++) {
        assert_true(all_ended(trial, requests[i]));
        release_all(trial, requests[i]);
    }
}

/* Ranks disagree: the text about it needs memory, too. */
static void mismatch(struct trial *trial)
{
    struct horon_request *requests[RANKS_MAX];
    if (trial->over)
        return;
    horon_descriptor_t desc = describe(HORON_ALLREDUCE, "of two minds", SMALL);
    for (int rank = 0; rank < trial->world->size; rank++) {
        desc.src = desc.dst = data_of(trial, rank);
        desc.count = rank % 2 ? SMALL : SMALL + 1;
        requests[rank] = submit(trial, rank, &desc);
        post(trial, rank, requests[rank]);
    }
    for (int turns = 0; turns < TURNS_MAX && !all_ended(trial, requests); turns++)
        turn(trial, requests);
    if (!trial->over)
        for (int rank = 0; rank < trial->world->size; rank++) {
            assert_true(ended(requests[rank]));
            assert_int_equal(requests[rank]->status, HORON_ERR_MISMATCH);
        }
    else
        settle(trial, requests);
    release_all(trial, requests);
}

/* Asked about, withdrawn on every rank, and gone. */
static void cancelled(struct trial *trial)
{
    struct horon_request *request;
    const int rank = trial->world->size - 1;
    struct horon_engine *engine = trial->world->ranks[rank].engine;
    if (trial->over)
        return;
    horon_descriptor_t desc = describe(HORON_ALLREDUCE, "lonely", SMALL);
    desc.src = desc.dst = data_of(trial, rank);
    request = submit(trial, rank, &desc);
    post(trial, rank, request);
    struct horon_request *of_all[RANKS_MAX];
    for (int i = 0; i < trial->world->size; i++)
        of_all[i] = request;
    for (int turns = 0; turns < 50 && !trial->over; turns++)
        turn(trial, of_all);
    if (!trial->over) {
        horon_engine_ask(engine, request);
        look_whom_it_hit(trial, rank);
        for (int turns = 0; turns < 50 && !trial->over; turns++)
            turn(trial, of_all);
    }
    if (!trial->over) {
        atomic_fetch_add(&request->refs, 1);
        assert_true(horon_engine_post(engine, &request->cancel));
    }
    for (int turns = 0; turns < TURNS_MAX && !ended(request); turns++)
        turn(trial, of_all);
    assert_true(ended(request));
    assert_true(trial->over || request->status == HORON_ERR_CANCELLED);
    world_release(request);
}

static void everything(struct trial *trial)
{
    allreduce(trial, NULL, SMALL);
    allreduce(trial, NULL, LARGE);
    allreduce(trial, "sum", LARGE);
    broadcast(trial, NULL, LARGE);
    broadcast(trial, "weights", SMALL);
    allgather(trial, NULL, LARGE);
    allgather(trial, "rows", SMALL);
    exchange(trial, HORON_ALLTOALL, NULL, LARGE);
    exchange(trial, HORON_ALLTOALL, "runs", SMALL);
    exchange(trial, HORON_GATHER, "to one", LARGE);
    exchange(trial, HORON_SCATTER, NULL, LARGE);
    barrier(trial, NULL);
    barrier(trial, "all here");
    persistent(trial);
    mismatch(trial);
    cancelled(trial);
    many(trial);
    allreduce(trial, "sum", SMALL);
}

/* ---- every n -------------------------------------------------------------------------------- */

/* With all links that an operation may need: how late ones fail is told elsewhere. */
static struct world *linked_world(const int *host_sizes, int host_count)
{
    struct world *world = world_create(host_sizes, host_count, settings, 1);
    const int *host_of = world->ranks[0].topology.host_of;
    for (int rank = 0; rank < world->size; rank++)
        for (int peer = 0; peer < rank; peer++)
            if (host_of[rank] != host_of[peer])
                world_link(world, rank, peer);
    return world;
}

static void torture(const int *host_sizes, int host_count, int for_good)
{
    struct trial trial = {.data = calloc(RANKS_MAX * LARGE, sizeof(int))};
    const long live = alloc_live();
    const bool full = getenv("HORON_TEST_FULL") != NULL;
    trial.culprit = 0;
    for (long n = 1; trial.culprit >= 0; n += full || n < EACH_UP_TO ? 1 : STRIDE) {
        assert_true(n < 100000);
        trial.world = linked_world(host_sizes, host_count);
        trial.at = trial.n = n;
        trial.culprit = -1;
        trial.over = trial.refused = false;
        trial.for_good = for_good;
        alloc_fail_at(n, for_good);
        everything(&trial);
        alloc_fail_at(0, 0);
        world_destroy(trial.world);
        assert_int_equal(alloc_live(), live);
    }
    assert_false(trial.over || trial.refused);
    free(trial.data);
}

static const int two_hosts[] = {2, 2}, three_hosts[] = {1, 2, 1}, one_host[] = {3};

static void test_torture_world_each_allocation_fails_once(void **state)
{
    (void)state;
    torture(one_host, 1, 0);
    torture(two_hosts, 2, 0);
    torture(three_hosts, 3, 0);
}

static void test_torture_world_no_memory_from_each_allocation_on(void **state)
{
    (void)state;
    torture(one_host, 1, 1);
    torture(two_hosts, 2, 1);
}

static void test_torture_world_engines_that_cannot_be_made_leave_nothing(void **state)
{
    (void)state;
    const long live = alloc_live();
    bool failed = true;
    for (long n = 1; failed; n++) {
        struct world *world = world_create_bare(three_hosts, 3, settings, 1);
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
    struct trial trial = {.culprit = -1, .data = calloc(RANKS_MAX * LARGE, sizeof(int))};
    struct horon_request *requests[RANKS_MAX], *ordered[RANKS_MAX];
    trial.world = linked_world(two_hosts, 2);
    alloc_fail_at(0, 0);
    submit_all(&trial, describe(HORON_ALLREDUCE, "prepared", LARGE), true, requests);
    assert_true(settle(&trial, requests));
    submit_all(&trial, describe(HORON_ALLREDUCE, NULL, LARGE), true, ordered);
    assert_true(settle(&trial, ordered));
    for (int round = 0; round < 50; round++) {
        if (round == 10)
            alloc_fail_at(0, 0);
        for (int rank = 0; rank < trial.world->size; rank++) {
            post(&trial, rank, requests[rank]);
            post(&trial, rank, ordered[rank]);
        }
        assert_true(settle(&trial, requests));
        assert_true(settle(&trial, ordered));
    }
    assert_int_equal(alloc_count(), 0);
    drop_all(&trial, requests);
    release_all(&trial, ordered);
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
