/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that run out of data join, and the others go on: in worlds of many shapes, with tensors
 * that the joined never saw, of every dtype and reduction, fused and large, and with verbs that
 * take no rows of them. The results are those of neutral inputs, bit for bit. What cannot go on is
 * in test_world_join_limits.c.
 */
#undef NDEBUG
#include "engine/engine_state.h"
#include "reduce/reduce.h"
#include "world/teams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 17
#define LARGE 30011 /* elements: of 8 bytes several blocks of join.c */

static const struct {
    int hosts[8], count;
} layouts[] = {
    {{1}, 1},       {{2}, 1},       {{5}, 1},          {{1, 1}, 2},
    {{1, 2, 3}, 3}, {{2, 1, 2}, 3}, {{1, 1, 1, 1}, 4}, {{17}, 1},
};
#define LAYOUTS (sizeof layouts / sizeof layouts[0])

static const char *const small_slots[] = {"SHM_SMALL_BYTES=64", "SHM_CHUNK_BYTES=4096",
                                          "NET_CHUNK_BYTES=4096", "NET_EAGER_BYTES=100", NULL};
static const char *const no_cache[] = {"CACHE_ENTRIES=0", "FUSION_BYTES=0", NULL};
static const char *const *const settings[] = {NULL, small_slots, no_cache};
#define SETTINGS (sizeof settings / sizeof settings[0])

static struct world *world;

static struct horon_engine_team *job(int rank)
{
    return horon_engine_job(world->ranks[rank].engine);
}

static void settle(struct horon_request *const *requests, size_t count)
{
    if (!world_turn_until(world, requests, count))
        fail_msg("hung: seed %llu", (unsigned long long)world->seed);
}

static void open_world(int layout, int setting, uint64_t seed)
{
    world = world_create(layouts[layout].hosts, layouts[layout].count, settings[setting], seed);
}

static void end_well(struct horon_request *request)
{
    if (request->status != HORON_OK)
        fail_msg("%s", request->error_text);
    world_release(request);
}

/* ---- uneven steps ---------------------------------------------------------------------------- */

struct kind {
    horon_dtype_t dtype;
    horon_redop_t op;
    uint64_t count;
    double prescale;
};

static const struct kind kinds[] = {
    {HORON_FLOAT32, HORON_SUM, 5, 1},       {HORON_FLOAT32, HORON_SUM, 1021, 1},
    {HORON_FLOAT64, HORON_SUM, LARGE, 0.5}, {HORON_FLOAT32, HORON_AVERAGE, 17, 1},
    {HORON_FLOAT16, HORON_AVERAGE, 700, 1}, {HORON_BFLOAT16, HORON_MAX, 3, -2},
    {HORON_INT32, HORON_MIN, 100, 1},       {HORON_INT64, HORON_MAX, 1, 1},
    {HORON_UINT8, HORON_PRODUCT, 64, 1},    {HORON_BOOL, HORON_MIN, 9, 1},
    {HORON_FLOAT64, HORON_PRODUCT, 33, 1},  {HORON_INT8, HORON_SUM, 0, 1},
    {HORON_INT16, HORON_BIT_AND, 300, 1},   {HORON_UINT32, HORON_BIT_OR, 17, 2},
    {HORON_BOOL, HORON_BIT_XOR, 70, 1},     {HORON_INT64, HORON_BIT_XOR, 1021, -1},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

static const int step_counts[RANKS_MAX] = {3, 0, 2, 5, 1, 3, 5, 0, 4, 2, 1, 3, 5, 2, 0, 4, 1};

struct step {
    uint8_t *in[RANKS_MAX][KINDS], *out[RANKS_MAX][KINDS];
    struct horon_request *requests[RANKS_MAX][KINDS];
};

static size_t bytes_of(const struct kind *kind)
{
    return (size_t)kind->count * horon_dtype_bytes(kind->dtype);
}

static void fill(const struct kind *kind, int rank, bool live, uint8_t *memory)
{
    const size_t element = horon_dtype_bytes(kind->dtype);
    uint8_t neutral[HORON_REDUCE_ELEMENT_BYTES_MAX];
    assert_true(horon_reduce_neutral(kind->dtype, kind->op, kind->prescale, neutral));
    for (uint64_t i = 0; i < kind->count; i++) {
        const int value = 1 + (int)(i + (uint64_t)rank) % 3;
        uint64_t bits = (uint64_t)value;
        const float single = (float)value;
        const double wide = value;
        if (kind->dtype == HORON_FLOAT32)
            memcpy(&bits, &single, sizeof single);
        else if (kind->dtype == HORON_FLOAT64)
            memcpy(&bits, &wide, sizeof wide);
        else if (kind->dtype == HORON_FLOAT16)
            bits = 0x3c00 + (uint64_t)value;
        else if (kind->dtype == HORON_BFLOAT16)
            bits = 0x3f80 + (uint64_t)value;
        else if (kind->dtype == HORON_BOOL)
            bits = value != 2;
        memcpy(memory + i * element, live ? (const void *)&bits : neutral, element);
    }
}

static void begin_step(struct step *step, int number, const bool *live)
{
    char name[32];
    for (int rank = 0; rank < world->size; rank++)
        for (size_t k = 0; k < KINDS; k++) {
            const size_t kind = (k + (size_t)rank) % KINDS; /* each rank in an order of its own */
            step->in[rank][kind] = malloc(bytes_of(&kinds[kind]) + 1);
            step->out[rank][kind] = malloc(bytes_of(&kinds[kind]) + 1);
            fill(&kinds[kind], rank, live[rank], step->in[rank][kind]);
            if (!live[rank])
                continue;
            horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
            snprintf(name, sizeof name, "%zu.%d", kind, kind % 2 ? number : 0);
            desc.name = name;
            desc.dtype = kinds[kind].dtype;
            desc.redop = kinds[kind].op;
            desc.count = kinds[kind].count;
            desc.prescale = kinds[kind].prescale;
            desc.src = step->in[rank][kind];
            desc.dst = step->out[rank][kind];
            step->requests[rank][kind] = world_submit(world, rank, &desc);
        }
}

static void check_step(struct step *step, const bool *live, int joined)
{
    for (size_t kind = 0; kind < KINDS; kind++) {
        const void *inputs[RANKS_MAX];
        uint8_t *expected = malloc(bytes_of(&kinds[kind]) + 1);
        for (int rank = 0; rank < world->size; rank++)
            inputs[rank] = step->in[rank][kind];
        world_expect_allreduce(world, kinds[kind].dtype, kinds[kind].op, kinds[kind].prescale, 1.0,
                               inputs, kinds[kind].count, expected);
        for (int rank = 0; rank < world->size; rank++) {
            if (live[rank]) {
                assert_int_equal(step->requests[rank][kind]->joined, joined);
                assert_memory_equal(step->out[rank][kind], expected, bytes_of(&kinds[kind]));
                end_well(step->requests[rank][kind]);
            }
            free(step->out[rank][kind]);
        }
        for (int rank = 0; rank < world->size; rank++)
            free(step->in[rank][kind]);
        free(expected);
    }
}

/* A reducescatter of rows that do not come out even, and a sum for root. */
static void begin_shares(int rank, int root, int32_t *ones, int32_t *share, int32_t *sums,
                         struct horon_request **requests)
{
    const uint64_t rows = 2 * (uint64_t)world->size + 1;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    for (uint64_t i = 0; i < rows; i++)
        ones[i] = 1;
    desc.verb = HORON_REDUCESCATTER;
    desc.name = "shares";
    desc.dtype = HORON_INT32;
    desc.src = ones;
    desc.dst = share;
    desc.count = rows;
    desc.dst_count = 3;
    requests[0] = world_submit(world, rank, &desc);
    desc.verb = HORON_REDUCE;
    desc.name = "for root";
    desc.root = root;
    desc.dst = sums;
    desc.count = 2;
    desc.dst_count = 0;
    requests[1] = world_submit(world, rank, &desc);
}

static void check_shares(const bool *live, int rank, int root, const int32_t *share,
                         const int32_t *sums)
{
    int left = 0;
    for (int other = 0; other < world->size; other++)
        left += live[other];
    for (int i = 0; i < 2 + (rank == 0); i++)
        assert_int_equal(share[i], left);
    for (int i = 0; i < 2 && rank == root; i++)
        assert_int_equal(sums[i], left);
}

/* What a rank gives to root, what it gets of root, and what root gets. */
struct rows {
    int32_t given[2], taken[2], all[RANKS_MAX * 2], gathered[RANKS_MAX * 2];
    uint64_t splits[RANKS_MAX];
};

static uint64_t rows_of(int rank)
{
    return (uint64_t)(rank + 2) % 3;
}

/* Root has rows for all, those that have joined included. */
static void begin_rows(int rank, int root, struct rows *rows, struct horon_request **requests)
{
    uint64_t total = 0;
    for (int i = 0; i < world->size; i++)
        total += rows->splits[i] = rows_of(i);
    for (int i = 0; i < 2; i++)
        rows->given[i] = rank * 10 + i;
    for (uint64_t i = 0; i < total; i++)
        rows->all[i] = (int32_t)i;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_GATHER;
    desc.name = "to root";
    desc.dtype = HORON_INT32;
    desc.root = root;
    desc.src = rows->given;
    desc.count = rows_of(rank);
    desc.dst = rank == root ? rows->gathered : NULL;
    desc.dst_count = rank == root ? RANKS_MAX * 2 : 0;
    requests[0] = world_submit(world, rank, &desc);
    desc.verb = HORON_SCATTER;
    desc.name = "from root";
    desc.src = rank == root ? rows->all : NULL;
    desc.count = rank == root ? total : 0;
    desc.splits = rank == root ? rows->splits : NULL;
    desc.dst = rows->taken;
    desc.dst_count = 2;
    requests[1] = world_submit(world, rank, &desc);
}

static void check_rows(const bool *live, int rank, int root, const struct rows *rows,
                       struct horon_request *const *requests)
{
    int32_t first = 0;
    const int32_t *gathered = rows->gathered;
    for (int other = 0; other < rank; other++)
        first += (int32_t)rows_of(other);
    assert_int_equal(requests[1]->output_count, rows_of(rank));
    for (int i = 0; i < (int)rows_of(rank); i++)
        assert_int_equal(rows->taken[i], first + i);
    for (int other = 0; other < world->size && rank == root; other++) {
        const uint64_t count = live[other] ? rows_of(other) : 0;
        assert_int_equal(requests[0]->output_rows[other], count);
        for (int i = 0; i < (int)count; i++)
            assert_int_equal(*gathered++, other * 10 + i);
    }
}

/* Those that are live gather, exchange, and meet. */
static void check_other_verbs(const bool *live, int root)
{
    struct horon_request *requests[RANKS_MAX][8] = {{NULL}};
    int32_t in[RANKS_MAX][RANKS_MAX], all[RANKS_MAX][RANKS_MAX * RANKS_MAX], from[RANKS_MAX][40];
    int32_t given[RANKS_MAX], ones[RANKS_MAX][2 * RANKS_MAX + 1], share[RANKS_MAX][3];
    int32_t sums[RANKS_MAX][2];
    struct rows with_root[RANKS_MAX];
    for (int rank = 0; rank < world->size; rank++) {
        if (!live[rank])
            continue;
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        for (int i = 0; i < world->size; i++)
            in[rank][i] = rank * 100 + i;
        desc.dtype = HORON_INT32;
        desc.name = "gathered";
        desc.verb = HORON_ALLGATHER;
        desc.src = in[rank];
        desc.dst = all[rank];
        desc.count = 2 * (world->size > 1);
        desc.dst_count = RANKS_MAX * RANKS_MAX;
        requests[rank][0] = world_submit(world, rank, &desc);
        desc.name = "exchanged";
        desc.verb = HORON_ALLTOALL;
        desc.count = (uint64_t)world->size;
        desc.dst = from[rank];
        desc.dst_count = 40;
        requests[rank][1] = world_submit(world, rank, &desc);
        given[rank] = rank;
        desc = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
        desc.dtype = HORON_INT32;
        desc.name = "given";
        desc.verb = HORON_BROADCAST;
        desc.root = root;
        desc.count = 1;
        desc.src = desc.dst = &given[rank];
        requests[rank][2] = world_submit(world, rank, &desc);
        desc = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_BARRIER;
        requests[rank][3] = world_submit(world, rank, &desc);
    }
    for (int rank = 0; rank < world->size; rank++)
        if (live[rank]) {
            begin_shares(rank, root, ones[rank], share[rank], sums[rank], &requests[rank][4]);
            begin_rows(rank, root, &with_root[rank], &requests[rank][6]);
        }
    settle(&requests[0][0], RANKS_MAX * 8);
    for (int rank = 0; rank < world->size; rank++) {
        int place = 0, gathered = 0;
        if (!live[rank])
            continue;
        for (int other = 0; other < world->size; other++) {
            const uint64_t rows = live[other] ? 2 * (world->size > 1) : 0;
            assert_int_equal(requests[rank][0]->output_rows[other], rows);
            for (uint64_t i = 0; i < rows; i++)
                assert_int_equal(all[rank][gathered++], other * 100 + (int)i);
            assert_int_equal(requests[rank][1]->output_rows[other], live[other]);
            if (live[other])
                assert_int_equal(from[rank][place++], other * 100 + rank);
        }
        assert_int_equal(given[rank], root);
        check_shares(live, rank, root, share[rank], sums[rank]);
        check_rows(live, rank, root, &with_root[rank], &requests[rank][6]);
        for (int i = 0; i < 8; i++)
            end_well(requests[rank][i]);
    }
}

static size_t blocks_of(int rank)
{
    size_t count = 0;
    const struct horon_engine *engine = world->ranks[rank].engine;
    for (const void *block = engine->neutrals; block; count++)
        memcpy(&block, block, sizeof block); /* `next` is its first member */
    return count;
}

static void check_uneven(int shift)
{
    struct horon_request *joins[RANKS_MAX] = {NULL};
    bool live[RANKS_MAX];
    int most = 0, last = 0, joined = 0;
    for (int rank = 0; rank < world->size; rank++)
        if (step_counts[(rank + shift) % RANKS_MAX] >= most)
            most = step_counts[(rank + shift) % RANKS_MAX], last = rank;
    for (int number = 0; number <= most; number++) {
        struct step *step = calloc(1, sizeof *step);
        for (int rank = 0; rank < world->size; rank++) {
            live[rank] = step_counts[(rank + shift) % RANKS_MAX] > number;
            if (!live[rank] && !joins[rank]) {
                joins[rank] = world_join(world, rank, job(rank));
                joined++;
            }
        }
        if (number < most) {
            begin_step(step, number, live);
            settle(&step->requests[0][0], RANKS_MAX * KINDS);
            check_step(step, live, joined);
            check_other_verbs(live, last);
        }
        free(step);
    }
    settle(joins, RANKS_MAX);
    const int joiner = joins[0]->joined;
    for (int rank = 0; rank < world->size; rank++) {
        assert_int_equal(joins[rank]->joined, joiner);
        assert_int_equal(step_counts[(joiner + shift) % RANKS_MAX], most);
        assert_true(blocks_of(rank) <= KINDS);
        end_well(joins[rank]);
    }
}

static void test_world_join_uneven_steps_give_what_neutral_inputs_do(void **state)
{
    (void)state;
    for (size_t layout = 0; layout < LAYOUTS; layout++) {
        const int setting = (int)(layout % SETTINGS);
        for (int all = 0; all < (layout < 5 ? (int)SETTINGS : 1); all++) {
            open_world((int)layout, (setting + all) % (int)SETTINGS, layout * 10 + 1);
            for (int shift = 0; shift < 3; shift++) /* and again, once all have joined */
                check_uneven(shift * 5);
            world_destroy(world);
        }
    }
}

static void test_world_join_average_is_of_those_that_gave_if_asked(void **state)
{
    (void)state;
    static const char *const given[] = {"JOIN_AVERAGE=given", NULL};
    for (size_t layout = 1; layout < LAYOUTS; layout++) {
        for (int asked = 0; asked < 2; asked++) {
            world =
                world_create(layouts[layout].hosts, layouts[layout].count, asked ? given : NULL, 5);
            struct horon_request *requests[RANKS_MAX] = {NULL};
            static float values[RANKS_MAX][5000];
            const int left = world->size - 1;
            requests[0] = world_join(world, 0, job(0));
            for (int rank = 1; rank < world->size; rank++) {
                for (int i = 0; i < 5000; i++)
                    values[rank][i] = (float)(i % 7 * left * world->size);
                horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
                desc.name = "average";
                desc.dtype = HORON_FLOAT32;
                desc.redop = HORON_AVERAGE;
                desc.src = desc.dst = values[rank];
                desc.count = layout % 2 ? 5000 : 3;
                requests[rank] = world_submit(world, rank, &desc);
            }
            settle(requests + 1, RANKS_MAX - 1);
            for (int rank = 1; rank < world->size; rank++) {
                for (int i = 0; i < 3; i++)
                    assert_true(values[rank][i] ==
                                (float)(i * left * (asked ? world->size : left)));
                end_well(requests[rank]);
                requests[rank] = world_join(world, rank, job(rank));
            }
            settle(requests, RANKS_MAX);
            for (int rank = 0; rank < world->size; rank++)
                end_well(requests[rank]);
            world_destroy(world);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world_join_uneven_steps_give_what_neutral_inputs_do),
        cmocka_unit_test(test_world_join_average_is_of_those_that_gave_if_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
