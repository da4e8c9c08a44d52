/* SPDX-License-Identifier: Apache-2.0 */
/* See trial.h. */
#undef NDEBUG
#include "trial.h"

#include "alloc_failing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int *trial_data(const struct trial *trial, int rank)
{
    return trial->data + rank * TRIAL_LARGE;
}

void trial_look_whom_it_hit(struct trial *trial, int rank)
{
    if (trial->culprit < 0 && trial->at && alloc_count() >= trial->at)
        trial->culprit = rank;
}

void trial_memory_is_back(struct trial *trial)
{
    trial->at = 0;
    alloc_fail_at(0, 0);
}

/* ---- one operation on all ranks ------------------------------------------------------------- */

struct horon_request *trial_submit(struct trial *trial, int rank, const horon_descriptor_t *desc)
{
    struct world_rank *self = &trial->world->ranks[rank];
    struct horon_request *request = NULL;
    struct horon_error error = {0};
    horon_status_t status =
        horon_request_create(&self->pool, desc, horon_engine_job(self->engine),
                             horon_engine_names(self->engine), &request, &error);
    trial_look_whom_it_hit(trial, rank);
    if (status != HORON_OK) {
        assert_int_equal(status, HORON_ERR_MEMORY);
        assert_non_null(strstr(error.text, "memory"));
        assert_true(trial->culprit == rank || trial->for_good);
        trial->refused = true;
        trial_memory_is_back(trial);
        return trial_submit(trial, rank, desc);
    }
    request->callback_arg = self; /* no callback: free for world_release() */
    return request;
}

void trial_post(struct trial *trial, int rank, struct horon_request *request)
{
    if (request->persistent && atomic_load(&request->state) == HORON_REQUEST_ENDED)
        horon_request_reset(request);
    atomic_fetch_add(&request->refs, 1);
    atomic_store(&request->state, HORON_REQUEST_FLYING);
    assert_true(horon_engine_post(trial->world->ranks[rank].engine, &request->start));
}

bool trial_ended(const struct horon_request *request)
{
    return atomic_load(&request->state) == HORON_REQUEST_ENDED;
}

void trial_begin_again(struct trial *trial, int rank, struct horon_request *request)
{
    if (!request || !trial_ended(request) || request->status != HORON_ERR_MEMORY)
        return;
    assert_true(trial->culprit == rank || trial->for_good);
    trial->refused = true;
    trial_memory_is_back(trial);
    if (request->output_refused)
        return; /* the others have theirs */
    horon_request_reset(request);
    trial_post(trial, rank, request);
}

void trial_turn(struct trial *trial, struct horon_request *const *requests)
{
    for (int rank = 0; rank < trial->world->size; rank++) {
        struct horon_engine *engine = trial->world->ranks[rank].engine;
        horon_engine_progress(engine);
        trial_look_whom_it_hit(trial, rank);
        if (world_failure(engine, NULL) == HORON_OK)
            trial_begin_again(trial, rank, requests[rank]);
        else
            trial->over = true;
    }
    if (trial->over)
        trial_memory_is_back(trial);
}

bool trial_all_ended(const struct trial *trial, struct horon_request *const *requests)
{
    for (int rank = 0; rank < trial->world->size; rank++)
        if (requests[rank] && !trial_ended(requests[rank]))
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
        if (trial->for_good) { /* it hits the rank that comes next, too */
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

bool trial_settle(struct trial *trial, struct horon_request *const *requests)
{
    for (int turns = 0; turns < TRIAL_TURNS_MAX && !trial_all_ended(trial, requests); turns++)
        trial_turn(trial, requests);
    if (trial->over && !trial_all_ended(trial, requests)) {
        /* without memory it could tell nobody; then its departure says it */
        horon_engine_leave(trial->world->ranks[trial->culprit].engine);
        for (int turns = 0; turns < TRIAL_TURNS_MAX && !trial_all_ended(trial, requests); turns++)
            trial_turn(trial, requests);
    }
    if (!trial_all_ended(trial, requests))
        fprintf(stderr, "hung: allocation %ld hit rank %d; %s\n", trial->n, trial->culprit,
                trial->over ? "the job failed" : "the job did not fail");
    assert_true(trial_all_ended(trial, requests));
    if (trial->over)
        expect_named_everywhere(trial);
    for (int rank = 0; rank < trial->world->size && !trial->over; rank++)
        if (requests[rank])
            assert_int_equal(requests[rank]->status,
                             requests[rank]->output_refused ? HORON_ERR_MEMORY : HORON_OK);
    return !trial->over;
}

void trial_release_all(const struct trial *trial, struct horon_request *const *requests)
{
    for (int rank = 0; rank < trial->world->size; rank++)
        world_release(requests[rank]);
}

void trial_submit_all(struct trial *trial, horon_descriptor_t desc, bool persistent,
                      struct horon_request **requests)
{
    for (int rank = 0; rank < trial->world->size; rank++) {
        int *data = trial_data(trial, rank);
        for (int i = 0; i < TRIAL_LARGE; i++)
            data[i] = i + rank;
        desc.src = data;
        desc.dst = horon_verb_rows_differ(&horon_verb_rows[desc.verb]) ? NULL : data;
        requests[rank] = trial_submit(trial, rank, &desc);
        requests[rank]->persistent = persistent;
        trial_post(trial, rank, requests[rank]);
    }
}

horon_descriptor_t trial_describe(horon_verb_t verb, const char *name, uint64_t count)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = verb;
    desc.dtype = HORON_INT32;
    desc.name = name;
    desc.flags = name ? 0 : HORON_IN_ORDER;
    desc.count = count;
    return desc;
}

/* ---- every n -------------------------------------------------------------------------------- */

/* Those behind are nearly all of the same kind, and alike; only the full suite fails each of them.
 */
enum { EACH_UP_TO = 250, STRIDE = 17 };

const char *const trial_settings[] = {"SHM_SMALL_BYTES=64",   "SHM_CHUNK_BYTES=4096",
                                      "NET_CHUNK_BYTES=4096", "NET_EAGER_BYTES=100",
                                      "NET_ALGORITHM=direct", NULL};

struct world *trial_world(const int *host_sizes, int host_count)
{
    struct world *world = world_create(host_sizes, host_count, trial_settings, 1);
    const int *host_of = world->ranks[0].topology.host_of;
    for (int rank = 0; rank < world->size; rank++)
        for (int peer = 0; peer < rank; peer++)
            if (host_of[rank] != host_of[peer])
                world_link(world, rank, peer);
    return world;
}

void trial_for_each(const int *host_sizes, int host_count, int for_good,
                    void (*everything)(struct trial *trial))
{
    struct trial trial = {.data = calloc(TRIAL_RANKS_MAX * TRIAL_LARGE, sizeof(int))};
    const long live = alloc_live();
    const bool full = getenv("HORON_TEST_FULL") != NULL;
    trial.culprit = 0;
    for (long n = 1; trial.culprit >= 0; n += full || n < EACH_UP_TO ? 1 : STRIDE) {
        assert_true(n < 100000);
        trial.world = trial_world(host_sizes, host_count);
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
