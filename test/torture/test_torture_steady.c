/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A steady cycle allocates nothing and hashes each name once, where it enters: after two cycles
 * over names in an order of its own on every rank, ten thousand submissions later, counted by the
 * allocation hook and by a wrap around the one function that hashes names. Engines in one thread,
 * so that it is the same in every run; then contexts, where threads decide how batches fall
 * together.
 */
#undef NDEBUG
#include "../runtime/boot/boots.h"
#include "alloc_failing.h"
#include "operation.h"
#include "world/world.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NAMES = 50, SUBMITS = 10000, CYCLES = SUBMITS / NAMES, COUNT = 7, SIZE_MAX_HERE = 3 };

static atomic_long hashed;

uint64_t __wrap_horon_name_hash(const char *name, size_t name_bytes);
uint64_t __real_horon_name_hash(const char *name, size_t name_bytes);
uint64_t __wrap_horon_name_hash(const char *name, size_t name_bytes)
{
    atomic_fetch_add(&hashed, 1);
    return __real_horon_name_hash(name, name_bytes);
}

struct data {
    float in[COUNT], out[COUNT * SIZE_MAX_HERE];
};

/* Every verb but a barrier, which has no name of its own that could be known. */
static horon_descriptor_t describe(int number, struct data *data, char name[32])
{
    static const horon_verb_t verbs[] = {HORON_ALLREDUCE, HORON_REDUCESCATTER, HORON_BROADCAST,
                                         HORON_REDUCE,    HORON_ALLGATHER,     HORON_ALLTOALL};
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    snprintf(name, 32, "layer.%d.weight", number);
    desc.name = name;
    desc.verb = verbs[number % 6];
    desc.dtype = HORON_FLOAT32;
    desc.count = COUNT;
    desc.src = data->in;
    desc.dst = data->out;
    desc.dst_count = COUNT * SIZE_MAX_HERE; /* where it counts */
    if (desc.verb == HORON_ALLTOALL)
        desc.count = SIZE_MAX_HERE * (SIZE_MAX_HERE - 1); /* of each rank as much, however many */
    return desc;
}

/* ---- engines in one thread --------------------------------------------------------------------
 */

static void cycle(struct world *world, struct data (*data)[NAMES])
{
    struct horon_request *requests[SIZE_MAX_HERE * NAMES];
    size_t count = 0;
    for (int i = 0; i < NAMES; i++)
        for (int rank = 0; rank < world->size; rank++) {
            char name[32];
            const int number = (i * 7 + rank * 11) % NAMES;
            horon_descriptor_t desc = describe(number, &data[rank][number], name);
            requests[count++] = world_submit(world, rank, &desc);
        }
    assert_true(world_turn_until(world, requests, count));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(requests[i]->status, HORON_OK);
        world_release(requests[i]);
    }
}

static void count_in_world(const int *hosts, int host_count)
{
    static struct data data[SIZE_MAX_HERE][NAMES];
    struct world *world = world_create(hosts, host_count, NULL, 1);
    cycle(world, data);
    cycle(world, data);
    alloc_fail_at(0, 0);
    hashed = 0;
    for (int i = 0; i < CYCLES; i++)
        cycle(world, data);
    /* a link keeps memory for data that comes early; how much is most at a time, turns decide */
    assert_in_range(alloc_count(), 0, host_count == 1 ? 0 : 2 * world->size);
    assert_int_equal(hashed, (long)SUBMITS * world->size);
    world_destroy(world);
}

static void test_torture_steady_engines_allocate_nothing_and_hash_once(void **state)
{
    (void)state;
    count_in_world((int[]){1}, 1);
    count_in_world((int[]){3}, 1);
    count_in_world((int[]){2, 1}, 2);
}

/* ---- contexts, a thread a rank ----------------------------------------------------------------
 */

enum { RANKS = 2 };

/* One rank. Its thread may not assert: what goes wrong is told at the end. */
struct member {
    pthread_t thread;
    int rank;
    horon_context_t *ctx;
    struct data data[NAMES];
    horon_status_t worst;
    char text[HORON_ERROR_TEXT_BYTES];
};

static struct {
    struct member members[RANKS];
    struct place place;
    const char *settings[8];
    pthread_barrier_t together;
} job;

static void note(struct member *self, horon_status_t status, const char *text)
{
    if (status != HORON_OK && self->worst == HORON_OK) {
        self->worst = status;
        snprintf(self->text, sizeof self->text, "%s", text);
    }
}

static void submit_and_wait(struct member *self)
{
    horon_request_t *requests[NAMES] = {NULL};
    for (int i = 0; i < NAMES && self->worst == HORON_OK; i++) {
        char name[32];
        const int number = (i * 7 + self->rank * 11) % NAMES;
        horon_descriptor_t desc = describe(number, &self->data[number], name);
        note(self, horon_submit(self->ctx, &desc, &requests[i]), horon_last_error(self->ctx));
    }
    for (int i = 0; i < NAMES && requests[i]; i++) {
        note(self, horon_wait(requests[i], HORON_HOST_DONE, -1), horon_request_error(requests[i]));
        horon_release(requests[i]);
    }
}

static void *live(void *arg)
{
    struct member *self = arg;
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = self->rank;
    options.size = RANKS;
    options.settings = job.settings;
    char why[HORON_ERROR_TEXT_BYTES];
    note(self, horon_context_create(&options, &self->ctx, why, sizeof why), why);
    for (int i = 0; i < 2 && self->ctx; i++)
        submit_and_wait(self);
    pthread_barrier_wait(&job.together);
    if (self->rank == 0) {
        alloc_fail_at(0, 0);
        hashed = 0;
    }
    pthread_barrier_wait(&job.together);
    for (int i = 0; i < CYCLES && self->ctx; i++)
        submit_and_wait(self);
    pthread_barrier_wait(&job.together);
    return NULL;
}

/* How many batches lie between submission and end at a time, threads decide: each may need a
 * little the first time that it is one more than ever before. A submission needs nothing. */
static void test_torture_steady_contexts_allocate_nothing_a_submission(void **state)
{
    (void)state;
    place_file(&job.place);
    job.settings[0] = job.place.setting;
    job.settings[1] = "JOB_KEY=a key for this test alone";
    job.settings[2] = "LOG_LEVEL=error";
    pthread_barrier_init(&job.together, NULL, RANKS + 1);
    for (int rank = 0; rank < RANKS; rank++) {
        job.members[rank].rank = rank;
        assert_int_equal(pthread_create(&job.members[rank].thread, NULL, live, &job.members[rank]),
                         0);
    }
    for (int i = 0; i < 3; i++)
        pthread_barrier_wait(&job.together);
    const long allocated = alloc_count(), names_hashed = hashed;
    for (int rank = 0; rank < RANKS; rank++) {
        pthread_join(job.members[rank].thread, NULL);
        horon_context_destroy(job.members[rank].ctx);
    }
    pthread_barrier_destroy(&job.together);
    place_end(&job.place);
    for (int rank = 0; rank < RANKS; rank++)
        if (job.members[rank].worst != HORON_OK)
            fail_msg("rank %d: %s", rank, job.members[rank].text);
    assert_int_equal(names_hashed, (long)SUBMITS * RANKS);
    print_message("%ld allocations in %d submissions of %d ranks\n", allocated, SUBMITS, RANKS);
    assert_in_range(allocated, 0, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torture_steady_engines_allocate_nothing_and_hash_once),
        cmocka_unit_test(test_torture_steady_contexts_allocate_nothing_a_submission),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
