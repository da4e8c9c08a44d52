/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of a host, a thread each, over one mapping of its memory: here the thread sanitizer
 * sees both sides of flags, slots and wake words. (Contexts map shared memory each for itself, and
 * the sanitizer knows addresses, not pages.) A rank with nothing to do sleeps until it is rung.
 */
#undef NDEBUG
#include "world/world.h"

#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { RANKS_MAX = 5, OPERATIONS = 14, HANG_S = 60 };

/* Small, of one chunk, of several, the last one shorter: in the third, where five ranks share
 * chunks of 32768, it is 0.6 of the others, so that posting it would get ahead of what is to be
 * out. */
static const uint64_t counts[] = {1, 700, 117964, 5000, 70001, 200003};
#define COUNTS (sizeof counts / sizeof counts[0])

struct driver {
    pthread_t thread;
    struct world_rank *rank;
    struct driver *all;
    sem_t bell;
    struct horon_request *requests[OPERATIONS];
    float *in[OPERATIONS], *out[OPERATIONS];
    bool hung;
};

static void ring(void *arg, int local_rank)
{
    struct driver *drivers = arg;
    sem_post(&drivers[local_rank].bell);
}

static bool ended(const struct driver *driver)
{
    for (int i = 0; i < OPERATIONS; i++)
        if (atomic_load(&driver->requests[i]->state) != HORON_REQUEST_ENDED)
            return false;
    return true;
}

static bool sleep_until_rung(struct driver *driver)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += HANG_S;
    return sem_timedwait(&driver->bell, &end) == 0;
}

static void *drive(void *arg)
{
    struct driver *driver = arg;
    struct horon_engine *engine = driver->rank->engine;
    horon_owner_take(&driver->rank->owner);
    while (!ended(driver) && !driver->hung) {
        if (horon_engine_progress(engine))
            continue;
        horon_host_sleep(&driver->rank->host, horon_engine_wants(engine));
        atomic_thread_fence(memory_order_seq_cst);
        if (!horon_engine_progress(engine) && !ended(driver)) /* the second look */
            driver->hung = !sleep_until_rung(driver);
        horon_host_awake(&driver->rank->host);
    }
    return NULL;
}

static void submit(struct world *world, struct driver *drivers, int rank, int i)
{
    struct driver *driver = &drivers[rank];
    const uint64_t count = counts[(size_t)i % COUNTS];
    const bool in_place = (i + rank) % 3;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    driver->in[i] = calloc(count, sizeof(float));
    driver->out[i] = in_place ? driver->in[i] : calloc(count, sizeof(float));
    for (uint64_t k = 0; k < count; k++)
        driver->in[i][k] = (float)((k + (uint64_t)rank) % 1009) / 7.0f;
    desc.verb = i % 4 == 3 ? HORON_BROADCAST : HORON_ALLREDUCE;
    desc.flags = HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.count = count;
    desc.src = driver->in[i];
    desc.dst = desc.verb == HORON_BROADCAST && rank == 0 ? driver->in[i] : driver->out[i];
    driver->requests[i] = world_submit(world, rank, &desc);
}

static void expect(struct world *world, struct driver *drivers, int i)
{
    const uint64_t count = counts[(size_t)i % COUNTS];
    const void *inputs[RANKS_MAX];
    float *rows = calloc((size_t)world->size * count, sizeof *rows);
    float *expected = calloc(count, sizeof *expected);
    for (int rank = 0; rank < world->size; rank++) {
        for (uint64_t k = 0; k < count; k++)
            rows[(uint64_t)rank * count + k] = (float)((k + (uint64_t)rank) % 1009) / 7.0f;
        inputs[rank] = rows + (uint64_t)rank * count;
    }
    if (i % 4 == 3)
        memcpy(expected, rows, count * sizeof *expected);
    else
        world_expect_allreduce(world, HORON_FLOAT32, HORON_SUM, 1.0, 1.0, inputs, count, expected);
    for (int rank = 0; rank < world->size; rank++) {
        const bool root = i % 4 == 3 && rank == 0;
        const float *got = root ? drivers[rank].in[i] : drivers[rank].out[i];
        assert_int_equal(drivers[rank].requests[i]->status, HORON_OK);
        assert_memory_equal(got, expected, count * sizeof *expected);
    }
    free(rows);
    free(expected);
}

static void clean(struct world *world, struct driver *drivers)
{
    for (int rank = 0; rank < world->size; rank++) {
        for (int i = 0; i < OPERATIONS; i++) {
            world_release(drivers[rank].requests[i]);
            if (drivers[rank].out[i] != drivers[rank].in[i])
                free(drivers[rank].out[i]);
            free(drivers[rank].in[i]);
        }
        sem_destroy(&drivers[rank].bell);
    }
    world_destroy(world);
}

static void run(int size, bool crowded)
{
    static const char *const settings[] = {"SHM_CHUNK_BYTES=512k", NULL};
    struct driver drivers[RANKS_MAX] = {0};
    struct horon_error error = {0};
    struct world *world = world_create_bare(&size, 1, settings, 1);
    world_put_machine(world, 0, (struct horon_machine){.cores = crowded ? 1 : 0});
    for (int rank = 0; rank < size; rank++) {
        drivers[rank].rank = &world->ranks[rank];
        sem_init(&drivers[rank].bell, 0, 0);
        world->ranks[rank].host.doorbell = ring;
        world->ranks[rank].host.doorbell_arg = drivers;
        assert_int_equal(world_make_engine(world, rank, &error), HORON_OK);
        for (int i = 0; i < OPERATIONS; i++)
            submit(world, drivers, rank, i);
    }
    for (int rank = 0; rank < size; rank++)
        assert_int_equal(pthread_create(&drivers[rank].thread, NULL, drive, &drivers[rank]), 0);
    for (int rank = 0; rank < size; rank++)
        pthread_join(drivers[rank].thread, NULL);
    for (int rank = 0; rank < size; rank++)
        horon_owner_take(&world->ranks[rank].owner);
    for (int rank = 0; rank < size; rank++)
        assert_false(drivers[rank].hung);
    for (int i = 0; i < OPERATIONS; i++)
        expect(world, drivers, i);
    clean(world, drivers);
}

static void test_threads_over_one_mapping_sum_and_sleep(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        for (int size = 2; size <= RANKS_MAX; size++)
            run(size, round % 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_over_one_mapping_sum_and_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
