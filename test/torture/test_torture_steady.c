/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A steady cycle allocates nothing, but for outputs that the request owns, and hashes each name
 * once, where it enters: counted by the allocation hook and by a wrap around the one function that
 * hashes names. Engines in one thread first, so that it is the same in every run: after two cycles
 * ten thousand submissions allocate nothing. Then contexts, where threads decide which request of
 * the pool is used for what, and how many are in use: there one burst comes first, of more
 * operations at once than a cycle has, all of which need room for rows. Each request that the pool
 * will give then has its room.
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
enum { SEEDS = 5 };         /* of the order in which engines turn */
enum { BURST = 4 * NAMES }; /* of contexts: a cycle has fewer than 2 * NAMES */

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
    uint64_t splits[SIZE_MAX_HERE];
};

/* What a number stands for: every verb but a barrier, which has no name of its own that could be
 * known, and every place that an output can have. */
enum kind {
    SUM,
    SHARES,
    UNEVEN_SHARES,
    COPY,
    TO_ROOT,
    GATHERED,
    ASKED, /* gathered into memory that the caller gives when it is asked */
    OWNED, /* gathered into the request's own, which is the one allocation */
    EXCHANGED,
    UNEVENLY_EXCHANGED,
    COLLECTED,
    DEALT,
    MESSAGE,
    KINDS
};

static const horon_verb_t verb_of[KINDS] = {
    [SUM] = HORON_ALLREDUCE,
    [SHARES] = HORON_REDUCESCATTER,
    [UNEVEN_SHARES] = HORON_REDUCESCATTER,
    [COPY] = HORON_BROADCAST,
    [TO_ROOT] = HORON_REDUCE,
    [GATHERED] = HORON_ALLGATHER,
    [ASKED] = HORON_ALLGATHER,
    [OWNED] = HORON_ALLGATHER,
    [EXCHANGED] = HORON_ALLTOALL,
    [UNEVENLY_EXCHANGED] = HORON_ALLTOALL,
    [COLLECTED] = HORON_GATHER,
    [DEALT] = HORON_SCATTER,
    [MESSAGE] = HORON_SEND,
};

/* Of NAMES. */
static long numbers_of(enum kind kind)
{
    return (NAMES - 1 - (long)kind) / KINDS + 1;
}

static void *give(void *arg, uint64_t rows, uint64_t bytes)
{
    (void)rows, (void)bytes;
    return arg;
}

/* A message has two ends: to the next rank, and from the one before.
 * @return how many descriptors */
static int describe_message(int number, int rank, int size, struct data *data,
                            horon_descriptor_t descs[2])
{
    for (int end = 0; end < 2; end++) {
        descs[end] = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
        descs[end].verb = end ? HORON_RECV : HORON_SEND;
        descs[end].dtype = HORON_FLOAT32;
        descs[end].root = (rank + (end ? size - 1 : 1)) % size;
        descs[end].tag = (uint64_t)number;
        descs[end].count = COUNT;
        descs[end].src = end ? NULL : data->in;
        descs[end].dst = end ? data->out : NULL;
    }
    return size > 1 ? 2 : 0; /* nobody sends to itself */
}

/* @param name [32] what the first descriptor points to */
static int describe(int number, int rank, int size, struct data *data, char *name,
                    horon_descriptor_t descs[2])
{
    const enum kind kind = (enum kind)(number % KINDS);
    const uint64_t ranks = (uint64_t)size;
    horon_descriptor_t *desc = &descs[0];
    if (kind == MESSAGE)
        return describe_message(number, rank, size, data, descs);
    *desc = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
    snprintf(name, 32, "layer.%d.weight", number);
    desc->name = name;
    desc->verb = verb_of[kind];
    desc->dtype = HORON_FLOAT32;
    desc->count = COUNT;
    desc->src = data->in;
    desc->dst = kind == ASKED || kind == OWNED ? NULL : data->out;
    desc->dst_count = desc->dst ? COUNT * SIZE_MAX_HERE : 0;
    desc->alloc = kind == ASKED ? give : NULL;
    desc->alloc_arg = data->out;
    if (kind == EXCHANGED)
        desc->count = 2 * ranks;
    if (kind == UNEVEN_SHARES || kind == UNEVENLY_EXCHANGED || kind == DEALT) {
        for (uint64_t i = 0; i < ranks; i++)
            data->splits[i] = i + 1;
        desc->splits = data->splits;
        desc->count = ranks * (ranks + 1) / 2;
    }
    return 1;
}

/* ---- engines in one thread --------------------------------------------------------------------
 */

static void cycle(struct world *world, struct data (*data)[NAMES])
{
    struct horon_request *requests[SIZE_MAX_HERE * NAMES * 2];
    size_t count = 0;
    for (int i = 0; i < NAMES; i++)
        for (int rank = 0; rank < world->size; rank++) {
            char name[32];
            horon_descriptor_t descs[2];
            const int number = (i * 7 + rank * 11) % NAMES;
            const int n = describe(number, rank, world->size, &data[rank][number], name, descs);
            for (int k = 0; k < n; k++)
                requests[count++] = world_submit(world, rank, &descs[k]);
        }
    assert_true(world_turn_until(world, requests, count));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(requests[i]->status, HORON_OK);
        world_release(requests[i]);
    }
}

static void count_in_world(const int *hosts, int host_count, uint64_t seed)
{
    static struct data data[SIZE_MAX_HERE][NAMES];
    struct world *world = world_create(hosts, host_count, NULL, seed);
    const long named = (NAMES - numbers_of(MESSAGE)) * CYCLES * world->size;
    const long owned = numbers_of(OWNED) * CYCLES * world->size;
    cycle(world, data);
    cycle(world, data);
    alloc_fail_at(0, 0);
    hashed = 0;
    for (int i = 0; i < CYCLES; i++)
        cycle(world, data);
    assert_int_equal(alloc_count(), owned);
    assert_int_equal(hashed, named);
    world_destroy(world);
}

static void test_torture_steady_engines_allocate_nothing_and_hash_once(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        count_in_world((int[]){1}, 1, seed);
        count_in_world((int[]){3}, 1, seed);
        count_in_world((int[]){2, 1}, 2, seed);
    }
}

/* ---- contexts, a thread a rank ----------------------------------------------------------------
 */

enum { RANKS = 2 };

/* One rank. Its thread may not assert: what goes wrong is told at the end. */
struct member {
    pthread_t thread;
    int rank;
    horon_context_t *ctx;
    struct data data[BURST];
    horon_status_t worst;
    char text[HORON_ERROR_TEXT_BYTES];
};

static struct {
    struct member members[RANKS];
    struct place place;
    const char *settings[8];
    pthread_barrier_t together;
    long beyond, hashed;
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
    horon_request_t *requests[2 * NAMES] = {NULL};
    size_t count = 0;
    for (int i = 0; i < NAMES && self->worst == HORON_OK; i++) {
        char name[32];
        horon_descriptor_t descs[2];
        const int number = (i * 7 + self->rank * 11) % NAMES;
        const int n = describe(number, self->rank, RANKS, &self->data[number], name, descs);
        for (int k = 0; k < n; k++)
            note(self, horon_submit(self->ctx, &descs[k], &requests[count++]),
                 horon_last_error(self->ctx));
    }
    for (size_t i = 0; i < count && requests[i]; i++) {
        note(self, horon_wait(requests[i], HORON_HOST_DONE, -1), horon_request_error(requests[i]));
        horon_release(requests[i]);
    }
}

/* None goes back to the pool before the last was taken from it. */
static void burst(struct member *self)
{
    horon_request_t *requests[BURST] = {NULL};
    for (int i = 0; i < BURST && self->worst == HORON_OK; i++) {
        char name[32];
        horon_descriptor_t descs[2];
        describe(UNEVENLY_EXCHANGED, self->rank, RANKS, &self->data[i], name, descs);
        snprintf(name, sizeof name, "burst.%d", i);
        note(self, horon_submit(self->ctx, &descs[0], &requests[i]), horon_last_error(self->ctx));
    }
    for (int i = 0; i < BURST && requests[i]; i++) {
        note(self, horon_wait(requests[i], HORON_HOST_DONE, -1), horon_request_error(requests[i]));
        horon_release(requests[i]);
    }
}

/* Rank 0 counts for all, while the others stand still. */
static void live_one_window(struct member *self)
{
    pthread_barrier_wait(&job.together);
    if (self->rank == 0) {
        alloc_fail_at(0, 0);
        hashed = 0;
    }
    pthread_barrier_wait(&job.together);
    for (int i = 0; i < CYCLES && self->ctx; i++)
        submit_and_wait(self);
    pthread_barrier_wait(&job.together);
    if (self->rank == 0) {
        job.beyond = alloc_count() - numbers_of(OWNED) * CYCLES * RANKS;
        job.hashed = hashed;
    }
    pthread_barrier_wait(&job.together);
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
    if (self->ctx)
        burst(self);
    for (int i = 0; i < 2 && self->ctx; i++)
        submit_and_wait(self);
    live_one_window(self);
    return NULL;
}

static void test_torture_steady_contexts_allocate_nothing_and_hash_once(void **state)
{
    (void)state;
    place_file(&job.place);
    job.settings[0] = job.place.setting;
    job.settings[1] = "JOB_KEY=a key for this test alone";
    job.settings[2] = "LOG_LEVEL=error";
    pthread_barrier_init(&job.together, NULL, RANKS);
    for (int rank = 0; rank < RANKS; rank++) {
        job.members[rank].rank = rank;
        assert_int_equal(pthread_create(&job.members[rank].thread, NULL, live, &job.members[rank]),
                         0);
    }
    for (int rank = 0; rank < RANKS; rank++)
        pthread_join(job.members[rank].thread, NULL);
    for (int rank = 0; rank < RANKS; rank++)
        horon_context_destroy(job.members[rank].ctx);
    pthread_barrier_destroy(&job.together);
    place_end(&job.place);
    for (int rank = 0; rank < RANKS; rank++)
        if (job.members[rank].worst != HORON_OK)
            fail_msg("rank %d: %s", rank, job.members[rank].text);
    print_message("%ld allocations in %d submissions of %d ranks\n", job.beyond, SUBMITS, RANKS);
    assert_int_equal(job.hashed, (NAMES - numbers_of(MESSAGE)) * CYCLES * RANKS);
    assert_int_equal(job.beyond, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torture_steady_engines_allocate_nothing_and_hash_once),
        cmocka_unit_test(test_torture_steady_contexts_allocate_nothing_and_hash_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
