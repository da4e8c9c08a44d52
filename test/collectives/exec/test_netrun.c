/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans carried out for real: 1 to 17 ranks in one thread, over rings from 64 bytes up or over TCP,
 * with ranks and links advanced in turn or in an order drawn from a seed. Results are compared,
 * byte for byte, with the canonical tree computed here.
 */
#include "../mesh.h"

#include "exec/netrun.h"
#include "reduce/reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EACH(i, list) (size_t i = 0; i < sizeof(list) / sizeof *(list); i++)

struct world {
    struct mesh mesh;
    int ranks[MESH_SIZE_MAX]; /* job rank of each participant */
    const char *rank_names[MESH_SIZE_MAX];
    int size; /* participants */
    struct horon_netrun runs[MESH_SIZE_MAX];
    horon_status_t status[MESH_SIZE_MAX];
    uint8_t *work[MESH_SIZE_MAX];
    uint8_t *scratch[MESH_SIZE_MAX];
    uint8_t *input[MESH_SIZE_MAX];
    uint64_t sequence;
};

struct job {
    enum horon_plan_kind kind;
    horon_dtype_t dtype;
    horon_redop_t op;
    uint64_t count;
    int root;
};

/* An element: of many sizes and signs, so that float sums depend on their order. */
static void put_element(horon_dtype_t dtype, uint8_t *to, uint64_t random)
{
    const double value = ((double)(random % 2001) - 1000.0) * (double)(1u << (random >> 60)) / 7.0;
    switch ((int)dtype) {
    case HORON_FLOAT32: {
        const float single = (float)value;
        memcpy(to, &single, sizeof single);
        break;
    }
    case HORON_FLOAT16: {
        const uint16_t half = (uint16_t)((random & 0x83ff) | (10 + random % 11) << 10);
        memcpy(to, &half, sizeof half);
        break;
    }
    case HORON_BOOL:
        *to = random % 3 == 0;
        break;
    default:
        memcpy(to, &random, horon_dtype_bytes(dtype));
    }
}

static void combine(const struct job *job, const uint8_t *left, const uint8_t *right, uint8_t *out)
{
    horon_reduce_combine(job->dtype, job->op, left, right, out, (size_t)job->count);
}

/* The tree over leaves first .. first + width - 1, in `out`; scratch for `width` vectors. */
static void pairwise(const struct job *job, uint8_t *const *inputs, int first, int width,
                     uint8_t *out, size_t bytes)
{
    if (width == 1) {
        memcpy(out, inputs[first], bytes);
        return;
    }
    uint8_t *right = malloc(bytes + 1);
    pairwise(job, inputs, first, width / 2, out, bytes);
    pairwise(job, inputs, first + width / 2, width / 2, right, bytes);
    combine(job, out, right, out);
    free(right);
}

static uint8_t *reference(const struct job *job, uint8_t *const *inputs, int size, size_t bytes)
{
    const int block = size & -size;
    uint8_t *sum = malloc(bytes + 1), *next = malloc(bytes + 1);
    pairwise(job, inputs, 0, block, sum, bytes);
    for (int first = block; first < size; first += block) {
        pairwise(job, inputs, first, block, next, bytes);
        combine(job, sum, next, sum);
    }
    free(next);
    return sum;
}

static void world_begin(struct world *world, const struct job *job)
{
    const size_t element = horon_dtype_bytes(job->dtype);
    struct seeded random = seeded_from(job->count + (uint64_t)job->dtype * 1000);
    world->sequence++;
    for (int i = 0; i < world->mesh.size; i++)
        world->rank_names[i] = world->mesh.names[i];
    for (int i = 0; i < world->size; i++) {
        struct horon_netrun_args args = {
            .plan = {.kind = job->kind,
                     .rank = i,
                     .size = world->size,
                     .root = job->root,
                     .count = job->count},
            .ranks = world->ranks,
            .mux_of = world->mesh.mux[world->ranks[i]],
            .rank_names = world->rank_names,
            .dtype = job->dtype,
            .op = job->op,
            .channel = 3,
            .sequence = world->sequence,
            .tag = 9u << HORON_NETRUN_TAG_BITS,
            .check = 1000 + world->sequence,
        };
        /* exact sizes: the sanitizer sees a step beyond */
        world->input[i] = malloc(job->count * element);
        world->work[i] = malloc(job->count * element);
        world->scratch[i] = malloc(horon_plan_scratch(&args.plan) * element);
        for (uint64_t e = 0; e < job->count; e++)
            put_element(job->dtype, world->input[i] + e * element, seeded_next(&random));
        if (job->count)
            memcpy(world->work[i], world->input[i], job->count * element);
        args.work = world->work[i];
        args.scratch = world->scratch[i];
        assert_int_equal(horon_netrun_begin(&world->runs[i], &args), HORON_OK);
        world->status[i] = HORON_IN_PROGRESS;
    }
}

static void world_end(struct world *world)
{
    for (int i = 0; i < world->size; i++) {
        free(world->input[i]);
        free(world->work[i]);
        free(world->scratch[i]);
    }
}

static void advance_one(struct world *world, int i)
{
    struct horon_error error = {0};
    world->status[i] = horon_netrun_advance(&world->runs[i], &error);
    if (world->status[i] < 0)
        fail_msg("participant %d: %s", i, error.text);
}

static bool all_done(const struct world *world)
{
    for (int i = 0; i < world->size; i++) {
        if (world->status[i] != HORON_OK)
            return false;
    }
    return true;
}

/* NULL: all in turn. */
static void world_run(struct world *world, struct seeded *random)
{
    for (long turns = 0; !all_done(world); turns++) {
        assert_true(turns < 10000000);
        if (random) {
            advance_one(world, (int)seeded_below(random, (uint64_t)world->size));
            for (uint64_t i = seeded_below(random, 8); i > 0; i--)
                mesh_progress_any(&world->mesh, random);
            continue;
        }
        for (int i = 0; i < world->size; i++)
            advance_one(world, i);
        mesh_progress(&world->mesh);
    }
}

static bool gets_result(const struct job *job, int participant)
{
    return job->kind < HORON_PLAN_BROADCAST || participant == job->root;
}

/* All have the reduction, or root has it and the others their input. */
static void check_reduced(struct world *world, const struct job *job)
{
    const size_t bytes = (size_t)job->count * horon_dtype_bytes(job->dtype);
    uint8_t *expected = reference(job, world->input, world->size, bytes);
    for (int i = 0; i < world->size; i++) {
        const uint8_t *has = gets_result(job, i) ? expected : world->input[i];
        if (bytes && memcmp(world->work[i], has, bytes) != 0)
            fail_msg("plan %d of %llu %s among %d: participant %d has other bits", (int)job->kind,
                     (unsigned long long)job->count, horon_dtype_name(job->dtype), world->size, i);
    }
    free(expected);
}

static void world_of(struct world *world, int size, size_t ring_bytes,
                     const struct horon_mux_options *options)
{
    memset(world, 0, sizeof *world);
    mesh_create_rings(&world->mesh, size, ring_bytes, options);
    world->size = size;
    for (int i = 0; i < size; i++)
        world->ranks[i] = i;
}

static void world_close(struct world *world)
{
    for (int i = 0; i < world->size; i++)
        horon_netrun_deinit(&world->runs[i]);
    mesh_destroy(&world->mesh);
}

static const horon_dtype_t dtypes[] = {HORON_FLOAT32, HORON_FLOAT16, HORON_INT32, HORON_BOOL};
static const uint64_t counts[] = {0, 1, 5, 13, 257, 8209};
static const enum horon_plan_kind reducing[] = {
    HORON_PLAN_FLAT,        HORON_PLAN_DOUBLING,        HORON_PLAN_DIRECT,       HORON_PLAN_HALVING,
    HORON_PLAN_REDUCE_FLAT, HORON_PLAN_REDUCE_DOUBLING, HORON_PLAN_REDUCE_DIRECT};
/* Above it the same stages only come more often: a count that divides by nothing is enough. */
#define SIZE_ALL_COUNTS 9

static bool left_out(int size, uint64_t count)
{
    return size > SIZE_ALL_COUNTS && count != 257;
}

static void test_netrun_of_every_plan_and_dtype_gives_the_bits_of_the_tree(void **state)
{
    (void)state;
    static struct world world;
    for (int size = 1; size <= MESH_SIZE_MAX; size++) {
        const struct horon_mux_options options = mesh_options(512, 4096);
        world_of(&world, size, 4096, &options);
        for
            EACH(k, reducing)
            {
            for
                EACH(d, dtypes)
                {
                for
                    EACH(c, counts)
                    {
                        if (left_out(size, counts[c]))
                            continue;
                        const struct job job = {.kind = reducing[k],
                                                .dtype = dtypes[d],
                                                .op = HORON_SUM,
                                                .count = counts[c],
                                                .root = (int)c % size};
                        world_begin(&world, &job);
                        world_run(&world, NULL);
                        check_reduced(&world, &job);
                        world_end(&world);
                    }
                }
            }
        world_close(&world);
    }
}

static void test_netrun_in_random_order_over_any_ring_gives_the_same_bits(void **state)
{
    (void)state;
    static struct world world;
    for (uint64_t seed = 0; seed < 250; seed++) {
        struct seeded random = seeded_from(seed);
        const struct horon_mux_options options =
            mesh_options((size_t)seeded_below(&random, 1000), (size_t)seeded_below(&random, 3000));
        static const horon_redop_t ops[] = {HORON_SUM, HORON_MIN, HORON_MAX, HORON_PRODUCT};
        world_of(&world, 2 + (int)seeded_below(&random, 6), (size_t)64 << seeded_below(&random, 9),
                 &options);
        for (int i = 0; i < 4; i++) {
            const struct job job = {
                .kind = reducing[seeded_below(&random, sizeof reducing / sizeof *reducing)],
                .dtype = dtypes[seeded_below(&random, 4)],
                .op = ops[seeded_below(&random, 4)],
                .count = seeded_below(&random, 600),
                .root = (int)seeded_below(&random, (uint64_t)world.size)};
            world_begin(&world, &job);
            world_run(&world, &random);
            check_reduced(&world, &job);
            world_end(&world);
        }
        world_close(&world);
    }
}

static const enum horon_plan_kind broadcasts[] = {HORON_PLAN_BROADCAST, HORON_PLAN_BROADCAST_CHAIN};

static void broadcast(struct world *world, enum horon_plan_kind kind, int root, uint64_t count,
                      struct seeded *random)
{
    const struct job job = {.kind = kind, .dtype = HORON_COMPLEX64, .count = count, .root = root};
    const size_t bytes = (size_t)count * horon_dtype_bytes(job.dtype);
    world_begin(world, &job);
    world_run(world, random);
    for (int i = 0; bytes && i < world->size; i++)
        assert_memory_equal(world->work[i], world->input[root], bytes);
    world_end(world);
}

static void test_netrun_broadcast_from_every_root_reaches_all(void **state)
{
    (void)state;
    static struct world world;
    for (int size = 1; size <= MESH_SIZE_MAX; size++) {
        const struct horon_mux_options options = mesh_options(64, 512);
        struct seeded random = seeded_from((uint64_t)size);
        world_of(&world, size, 1024, &options);
        for (int root = 0; root < size; root++) {
            for
                EACH(c, counts)
                {
                for
                    EACH(k, broadcasts)
                    {
                        if (!left_out(size, counts[c]))
                            broadcast(&world, broadcasts[k], root, counts[c] % 2000, &random);
                    }
                }
        }
        world_close(&world);
    }
}

/* Participants 0, 1, 2, ... are ranks 5, 3, 0, ...: sides follow participants, not ranks. */
static void test_netrun_among_some_ranks_of_a_job_follows_their_order(void **state)
{
    (void)state;
    static struct world world;
    static const int ranks[] = {5, 3, 0, 6, 2};
    const struct horon_mux_options options = mesh_options(64, 512);
    world_of(&world, 7, 1024, &options);
    world.size = 5;
    memcpy(world.ranks, ranks, sizeof ranks);
    for
        EACH(k, reducing)
        {
            const struct job job = {.kind = reducing[k],
                                    .dtype = HORON_FLOAT32,
                                    .op = HORON_SUM,
                                    .count = 1009,
                                    .root = 3};
            world_begin(&world, &job);
            world_run(&world, NULL);
            check_reduced(&world, &job);
            world_end(&world);
        }
    world_close(&world);
}

static void test_netrun_over_tcp_gives_the_bits_of_the_tree(void **state)
{
    (void)state;
    static struct world world;
    for (int size = 2; size <= 5; size++) {
        const struct horon_mux_options options = mesh_options(65536, 1u << 20);
        memset(&world, 0, sizeof world);
        mesh_create_tcp(&world.mesh, size, &options);
        world.size = size;
        for (int i = 0; i < size; i++)
            world.ranks[i] = i;
        for
            EACH(k, reducing)
            {
                static const uint64_t tcp_counts[] = {0, 1, 1009, 700001};
            for
                EACH(c, tcp_counts)
                {
                    const struct job job = {.kind = reducing[k],
                                            .dtype = HORON_FLOAT32,
                                            .op = HORON_SUM,
                                            .count = tcp_counts[c],
                                            .root = (int)c % size};
                    world_begin(&world, &job);
                    world_run(&world, NULL);
                    check_reduced(&world, &job);
                    world_end(&world);
                }
            }
        for
            EACH(k, broadcasts)
        broadcast(&world, broadcasts[k], size - 1, 300007, NULL);
        world_close(&world);
    }
}

static void test_netrun_with_another_operation_on_a_peer_names_it(void **state)
{
    (void)state;
    static struct world world;
    const struct horon_mux_options options = mesh_options(64, 512);
    struct horon_error error = {0};
    const struct job job = {
        .kind = HORON_PLAN_DIRECT, .dtype = HORON_INT32, .op = HORON_SUM, .count = 100};
    world_of(&world, 2, 1024, &options);
    world_begin(&world, &job);
    world.runs[1].args.check++;
    horon_status_t status[2] = {HORON_IN_PROGRESS, HORON_IN_PROGRESS};
    for (int turns = 0; turns < 100 && (status[0] >= 0 || status[1] >= 0); turns++) {
        for (int i = 0; i < 2; i++) {
            if (status[i] < 0)
                continue;
            status[i] = horon_netrun_advance(&world.runs[i], &error);
            if (status[i] < 0)
                assert_non_null(strstr(error.text, world.mesh.names[!i]));
        }
        mesh_progress(&world.mesh);
    }
    assert_int_equal(status[0], HORON_ERR_MISMATCH);
    assert_int_equal(status[1], HORON_ERR_MISMATCH);
    for (int i = 0; i < 2; i++) {
        horon_mux_forget(world.mesh.mux[i][!i], 3, world.sequence);
        assert_memory_equal(world.work[i], world.input[i], 400); /* the input is whole */
    }
    world_end(&world);
    world_begin(&world, &job); /* and the links go on */
    world_run(&world, NULL);
    check_reduced(&world, &job);
    world_end(&world);
    world_close(&world);
}

/* Whenever a participant is missing, no other one's input is touched. */
static void test_netrun_without_one_participant_leaves_the_inputs_whole(void **state)
{
    (void)state;
    static struct world world;
    const struct horon_mux_options options = mesh_options(64, 512);
    for (int size = 2; size <= 9; size++) {
        for
            EACH(k, reducing)
            {
                for (int missing = 0; missing < size; missing++) {
                    const struct job job = {.kind = reducing[k],
                                            .dtype = HORON_INT32,
                                            .op = HORON_SUM,
                                            .count = 100,
                                            .root = size / 2};
                    world_of(&world, size, 1024, &options);
                    world_begin(&world, &job);
                    for (int turns = 0; turns < 60; turns++) {
                        for (int i = 0; i < size; i++) {
                            if (i != missing)
                                advance_one(&world, i);
                        }
                        mesh_progress(&world.mesh);
                    }
                    for (int i = 0; i < size; i++) {
                        if (gets_result(&job, i)) /* the others may have given all they have */
                            assert_int_equal(world.status[i], HORON_IN_PROGRESS);
                        assert_memory_equal(world.work[i], world.input[i], 400);
                        for (int p = 0; p < size; p++) {
                            if (p != i)
                                horon_mux_forget(world.mesh.mux[i][p], 3, world.sequence);
                        }
                    }
                    world_end(&world);
                    world_close(&world);
                }
            }
    }
}

static void test_netrun_to_a_rank_without_connection_fails_with_its_name(void **state)
{
    (void)state;
    static struct world world;
    const struct horon_mux_options options = mesh_options(64, 512);
    struct horon_error error = {0};
    const struct job job = {
        .kind = HORON_PLAN_FLAT, .dtype = HORON_INT32, .op = HORON_SUM, .count = 3};
    world_of(&world, 3, 1024, &options);
    horon_mux_destroy(world.mesh.mux[0][2]);
    world.mesh.mux[0][2] = NULL;
    world_begin(&world, &job);
    assert_int_equal(horon_netrun_advance(&world.runs[0], &error), HORON_ERR_PEER_LOST);
    assert_string_equal(error.text, "rank 2 (host-2) is not connected");
    horon_mux_forget(world.mesh.mux[0][1], 3, world.sequence);
    world_end(&world);
    world_close(&world);
}

static void test_netrun_whose_peer_went_away_meanwhile_fails_with_its_name(void **state)
{
    (void)state;
    static struct world world;
    const struct horon_mux_options options = mesh_options(64, 512);
    struct horon_error error = {0};
    const struct job job = {
        .kind = HORON_PLAN_FLAT, .dtype = HORON_INT32, .op = HORON_SUM, .count = 3};
    world_of(&world, 3, 1024, &options);
    world_begin(&world, &job);
    assert_int_equal(horon_netrun_advance(&world.runs[0], &error), HORON_IN_PROGRESS);
    horon_mux_destroy(world.mesh.mux[0][1]);
    world.mesh.mux[0][1] = NULL;
    assert_int_equal(horon_netrun_advance(&world.runs[0], &error), HORON_ERR_PEER_LOST);
    assert_string_equal(error.text, "rank 1 (host-1) is not connected");
    horon_mux_forget(world.mesh.mux[0][1], 3, world.sequence); /* NULL: nothing to do */
    horon_mux_forget(world.mesh.mux[0][2], 3, world.sequence);
    assert_memory_equal(world.work[0], world.input[0], 12);
    world_end(&world);
    world_close(&world);
}

/* The link breaks instead of being taken away: nothing more will come over it. */
static void test_netrun_over_a_link_that_failed_says_why(void **state)
{
    (void)state;
    static struct world world;
    const struct horon_mux_options options = mesh_options(64, 512);
    struct horon_error error = {0};
    const struct job job = {
        .kind = HORON_PLAN_FLAT, .dtype = HORON_INT32, .op = HORON_SUM, .count = 3};
    world_of(&world, 3, 1024, &options);
    world_begin(&world, &job);
    advance_one(&world, 0);
    horon_mux_destroy(world.mesh.mux[1][0]);
    world.mesh.mux[1][0] = NULL;
    assert_int_equal(horon_mux_progress(world.mesh.mux[0][1], &(bool){false}, NULL),
                     HORON_ERR_PEER_LOST);
    assert_int_equal(horon_netrun_advance(&world.runs[0], &error), HORON_ERR_PEER_LOST);
    assert_string_equal(error.text, "rank 1 (host-1) closed the connection without leaving the job "
                                    "(killed, crashed, or it exited)");
    for (int peer = 1; peer < 3; peer++)
        horon_mux_forget(world.mesh.mux[0][peer], 3, world.sequence);
    assert_memory_equal(world.work[0], world.input[0], 12);
    world_end(&world);
    world_close(&world);
}

/* A peer that has sent and received all goes: the others' part goes on, whichever of the two kinds
 * of going it is. */
static void test_netrun_needs_no_link_to_a_rank_that_is_done(void **state)
{
    (void)state;
    static struct world world;
    const struct horon_mux_options options = mesh_options(64, 512);
    const struct job job = {
        .kind = HORON_PLAN_FLAT, .dtype = HORON_INT32, .op = HORON_SUM, .count = 3};
    for (int gone = 1; gone < 3; gone++) {
        for (int taken_away = 0; taken_away < 2; taken_away++) {
            const int late = 3 - gone;
            struct horon_mux *kept = NULL;
            world_of(&world, 3, 1024, &options);
            world_begin(&world, &job);
            advance_one(&world, 0);
            advance_one(&world, gone);
            mesh_settle(&world.mesh);
            horon_mux_destroy(world.mesh.mux[gone][0]);
            world.mesh.mux[gone][0] = NULL;
            assert_int_equal(horon_mux_progress(world.mesh.mux[0][gone], &(bool){false}, NULL),
                             HORON_ERR_PEER_LOST);
            if (taken_away) {
                kept = world.mesh.mux[0][gone];
                world.mesh.mux[0][gone] = NULL;
            }
            advance_one(&world, 0);
            assert_int_equal(world.status[0], HORON_IN_PROGRESS);
            advance_one(&world, late);
            while (horon_mux_wants_write(world.mesh.mux[late][0]))
                assert_int_equal(horon_mux_progress(world.mesh.mux[late][0], &(bool){false}, NULL),
                                 HORON_OK);
            assert_int_equal(horon_mux_progress(world.mesh.mux[0][late], &(bool){false}, NULL),
                             HORON_OK);
            advance_one(&world, 0);
            assert_int_equal(world.status[0], HORON_OK);
            uint8_t *expected = reference(&job, world.input, 3, 12);
            assert_memory_equal(world.work[0], expected, 12);
            free(expected);
            horon_mux_destroy(kept);
            for (int rank = 1; rank < 3; rank++)
                for (int peer = 0; peer < 3; peer++)
                    horon_mux_forget(world.mesh.mux[rank][peer], 3, world.sequence);
            world_end(&world);
            world_close(&world);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_netrun_of_every_plan_and_dtype_gives_the_bits_of_the_tree),
        cmocka_unit_test(test_netrun_in_random_order_over_any_ring_gives_the_same_bits),
        cmocka_unit_test(test_netrun_broadcast_from_every_root_reaches_all),
        cmocka_unit_test(test_netrun_among_some_ranks_of_a_job_follows_their_order),
        cmocka_unit_test(test_netrun_over_tcp_gives_the_bits_of_the_tree),
        cmocka_unit_test(test_netrun_with_another_operation_on_a_peer_names_it),
        cmocka_unit_test(test_netrun_without_one_participant_leaves_the_inputs_whole),
        cmocka_unit_test(test_netrun_to_a_rank_without_connection_fails_with_its_name),
        cmocka_unit_test(test_netrun_whose_peer_went_away_meanwhile_fails_with_its_name),
        cmocka_unit_test(test_netrun_over_a_link_that_failed_says_why),
        cmocka_unit_test(test_netrun_needs_no_link_to_a_rank_that_is_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
