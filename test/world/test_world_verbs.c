/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every verb in worlds of many shapes, 1 to 17 ranks: the bits of the reference, whatever the
 * layout, the chunk size, the algorithm between hosts and the order in which ranks get to run. One
 * operation at a time; test_world_fusion.c has many.
 */
#undef NDEBUG
#include "collectives/wrapped_link.h"
#include "world/world.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct layout {
    int hosts[8], count;
};
static const struct layout layouts[] = {
    {{1}, 1},
    {{2}, 1},
    {{3}, 1},
    {{5}, 1},
    {{8}, 1},
    {{1, 1}, 2},
    {{2, 2}, 2},
    {{1, 1, 1}, 3},
    {{1, 2, 3}, 3},
    {{3, 1}, 2},
    {{1, 1, 1, 1}, 4},
    {{2, 1, 2}, 3},
    {{17}, 1},
    {{4, 4}, 2},
    {{1, 1, 1, 1, 1}, 5},
    {{2, 2, 2, 2, 2, 2}, 6},
};
#define LAYOUTS (sizeof layouts / sizeof layouts[0])
/* The other numbers of ranks, each with one of the settings. */
static const struct layout more_layouts[] = {
    {{7}, 1},  {{3, 3, 3}, 3}, {{5, 5}, 2},          {{4, 7}, 2},
    {{13}, 1}, {{7, 7}, 2},    {{1, 2, 3, 4, 5}, 5}, {{4, 4, 4, 4}, 4},
};
#define MORE_LAYOUTS (sizeof more_layouts / sizeof more_layouts[0])

static const char *const small_slots[] = {"SHM_SMALL_BYTES=64", "SHM_CHUNK_BYTES=4096",
                                          "NET_CHUNK_BYTES=4096", "NET_EAGER_BYTES=100", NULL};
static const char *const halving[] = {"SHM_SMALL_BYTES=0",     "SHM_CHUNK_BYTES=8k",
                                      "NET_CHUNK_BYTES=4096",  "NET_EAGER_BYTES=1",
                                      "NET_ALGORITHM=halving", NULL};
static const char *const direct[] = {"NET_ALGORITHM=direct", "SHM_CHUNK_BYTES=16k", NULL};
static const char *const flat[] = {"NET_ALGORITHM=flat", NULL};
static const char *const *const settings[] = {NULL, small_slots, halving, direct, flat};
#define SETTINGS (sizeof settings / sizeof settings[0])

static const uint64_t counts[] = {0, 1, 2, 7, 16, 17, 1021, 4097, 12289};
#define COUNTS (sizeof counts / sizeof counts[0])

static void fill(struct world *world, void *memory, uint64_t count, horon_dtype_t dtype)
{
    for (uint64_t i = 0; i < count; i++) {
        int value = (int)(world_random(world) % 2001) - 1000;
        if (dtype == HORON_FLOAT32)
            ((float *)memory)[i] = (float)value / 7.0f;
        else if (dtype == HORON_FLOAT64)
            ((double *)memory)[i] = (double)value / 7.0;
        else if (dtype == HORON_INT32)
            ((int32_t *)memory)[i] = value;
        else if (dtype == HORON_FLOAT16) /* the largest third: any two add up to infinity */
            ((uint16_t *)memory)[i] = (uint16_t)(0x7bff - (value & 0x1ff));
        else if (dtype == HORON_BFLOAT16)
            ((uint16_t *)memory)[i] = (uint16_t)(0x3f80 + value % 64);
        else
            ((uint8_t *)memory)[i] = (uint8_t)value;
    }
}

static void **allocate(const struct world *world, size_t bytes)
{
    void **all = calloc((size_t)world->size, sizeof *all);
    for (int i = 0; i < world->size; i++)
        all[i] = calloc(1, bytes + 1);
    return all;
}

static void free_all(const struct world *world, void **all)
{
    for (int i = 0; i < world->size; i++)
        free(all[i]);
    free(all);
}

static void settle(struct world *world, struct horon_request **requests, size_t count)
{
    bool ended = world_turn_until(world, requests, count);
    if (!ended)
        fprintf(stderr, "hung: seed %llu\n", (unsigned long long)world->seed);
    assert_true(ended);
    for (size_t i = 0; i < count; i++) {
        if (requests[i]->status != HORON_OK)
            fprintf(stderr, "%s\n", requests[i]->error_text);
        assert_int_equal(requests[i]->status, HORON_OK);
    }
}

enum place { APART, IN_PLACE, EACH_ITS_WAY };

static bool is_in_place(enum place place, int rank)
{
    return place == IN_PLACE || (place == EACH_ITS_WAY && rank % 2);
}

static void check_allreduce(struct world *world, horon_dtype_t dtype, horon_redop_t op,
                            uint64_t count, uint32_t flags, enum place place, double prescale)
{
    const double postscale = prescale != 1.0 && op == HORON_SUM ? 3.0 : 1.0;
    size_t bytes = (size_t)count * horon_dtype_bytes(dtype);
    void **in = allocate(world, bytes), **copy = allocate(world, bytes);
    void **out = allocate(world, bytes);
    struct horon_request **requests = calloc((size_t)world->size, sizeof(void *));
    void *expected = malloc(bytes + 1);
    for (int i = 0; i < world->size; i++) {
        fill(world, in[i], count, dtype);
        memcpy(copy[i], in[i], bytes);
    }
    for (int i = 0; i < world->size; i++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.name = "gradient";
        desc.flags = flags;
        desc.dtype = dtype;
        desc.redop = op;
        desc.count = count;
        desc.src = in[i];
        desc.dst = is_in_place(place, i) ? in[i] : out[i];
        desc.prescale = prescale;
        desc.postscale = postscale;
        requests[i] = world_submit(world, i, &desc);
    }
    settle(world, requests, (size_t)world->size);
    world_expect_allreduce(world, dtype, op, prescale, postscale, (const void *const *)copy, count,
                           expected);
    if (dtype == HORON_FLOAT16 && op == HORON_AVERAGE)
        for (uint64_t i = 0; i < count; i++)
            assert_true(((uint16_t *)expected)[i] <= 0x7bff); /* no infinity, no NaN */
    for (int i = 0; i < world->size; i++) {
        assert_memory_equal(is_in_place(place, i) ? in[i] : out[i], expected, bytes);
        if (!is_in_place(place, i))
            assert_memory_equal(in[i], copy[i], bytes);
        world_release(requests[i]);
    }
    free(expected);
    free(requests);
    free_all(world, in);
    free_all(world, copy);
    free_all(world, out);
}

static void in_world(void (*check)(struct world *world), const struct layout *layout,
                     size_t setting, uint64_t seed)
{
    struct world *world = world_create(layout->hosts, layout->count, settings[setting], seed);
    check(world);
    world_destroy(world);
}

static void for_all_worlds(void (*check)(struct world *world))
{
    for (size_t s = 0; s < SETTINGS; s++)
        for (size_t l = 0; l < LAYOUTS; l++)
            in_world(check, &layouts[l], s, s * 1000 + l);
    for (size_t l = 0; l < MORE_LAYOUTS; l++)
        in_world(check, &more_layouts[l], l % SETTINGS, 5000 + l);
}

static void test_layouts_have_every_number_of_ranks(void **state)
{
    (void)state;
    unsigned seen = 0;
    for (size_t l = 0; l < LAYOUTS + MORE_LAYOUTS; l++) {
        const struct layout *layout = l < LAYOUTS ? &layouts[l] : &more_layouts[l - LAYOUTS];
        int ranks = 0;
        for (int h = 0; h < layout->count; h++)
            ranks += layout->hosts[h];
        seen |= 1u << ranks;
    }
    assert_int_equal(seen, 0x3fffe); /* 1..17 */
}

static void allreduces(struct world *world)
{
    static const horon_dtype_t dtypes[] = {HORON_FLOAT32, HORON_BFLOAT16, HORON_INT32};
    for (size_t c = 0; c < COUNTS; c++) {
        for (size_t d = 0; d < 3; d++) {
            const enum place place = (enum place)((c + d) % 3);
            const double scale = (c + d) % 4 ? 1.0 : 0.5;
            check_allreduce(world, dtypes[d], HORON_SUM, counts[c], HORON_IN_ORDER, place, scale);
            check_allreduce(world, dtypes[d], HORON_AVERAGE, counts[c], 0, (enum place)(d % 3),
                            scale);
        }
        check_allreduce(world, HORON_FLOAT64, HORON_MAX, counts[c], 0, EACH_ITS_WAY, 1.0);
        check_allreduce(world, HORON_FLOAT16, HORON_AVERAGE, counts[c], HORON_IN_ORDER, IN_PLACE,
                        1.0);
    }
}

static void test_allreduce_in_any_world_gives_reference_bits(void **state)
{
    (void)state;
    for_all_worlds(allreduces);
}

static void check_broadcast(struct world *world, uint64_t count, int root, uint32_t flags)
{
    void **data = allocate(world, count);
    struct horon_request **requests = calloc((size_t)world->size, sizeof(void *));
    uint8_t *expected = malloc(count + 1);
    for (int i = 0; i < world->size; i++)
        fill(world, data[i], count, HORON_UINT8);
    memcpy(expected, data[root], count);
    for (int i = 0; i < world->size; i++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_BROADCAST;
        desc.name = "weights";
        desc.flags = flags;
        desc.dtype = HORON_UINT8;
        desc.root = root;
        desc.count = count;
        desc.src = i == root ? data[i] : NULL;
        desc.dst = i == root ? NULL : data[i];
        requests[i] = world_submit(world, i, &desc);
    }
    settle(world, requests, (size_t)world->size);
    for (int i = 0; i < world->size; i++) {
        assert_memory_equal(data[i], expected, count);
        world_release(requests[i]);
    }
    free(expected);
    free(requests);
    free_all(world, data);
}

static void broadcasts(struct world *world)
{
    for (size_t c = 0; c < COUNTS; c++) {
        check_broadcast(world, counts[c], (int)(c % (size_t)world->size), HORON_IN_ORDER);
        check_broadcast(world, counts[c], world->size - 1, 0);
        check_broadcast(world, counts[c] * 5, 0, HORON_IN_ORDER);
    }
}

static void test_broadcast_in_any_world_reaches_all(void **state)
{
    (void)state;
    for_all_worlds(broadcasts);
}

static uint64_t rows_of(int rank, uint64_t base)
{
    return rank % 3 == 1 ? 0 : base * (uint64_t)(rank % 4 + 1);
}

static void check_allgather(struct world *world, uint64_t base, uint32_t flags, bool in_place)
{
    assert(world->size > 0); /* gcc sees tables of a negative size */
    uint64_t total = 0;
    for (int i = 0; i < world->size; i++)
        total += rows_of(i, base);
    size_t bytes = (size_t)total * 3 * sizeof(int32_t);
    void **in = allocate(world, bytes);
    uint8_t *expected = malloc(bytes + 1);
    struct horon_request **requests = calloc((size_t)world->size, sizeof(void *));
    size_t at = 0;
    for (int i = 0; i < world->size; i++) {
        size_t own = (size_t)rows_of(i, base) * 3 * sizeof(int32_t);
        fill(world, in[i], rows_of(i, base) * 3, HORON_INT32);
        memcpy(expected + at, in[i], own);
        at += own;
    }
    for (int i = 0; i < world->size; i++) {
        uint64_t shape[2] = {rows_of(i, base), 3};
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_ALLGATHER;
        desc.name = "metrics";
        desc.flags = flags;
        desc.dtype = HORON_INT32;
        desc.shape = shape;
        desc.ndim = 2;
        desc.src = in[i];
        desc.dst = in_place ? in[i] : NULL;
        desc.dst_count = total * 3;
        requests[i] = world_submit(world, i, &desc);
    }
    settle(world, requests, (size_t)world->size);
    for (int i = 0; i < world->size; i++) {
        assert_int_equal(requests[i]->output_count, total * 3);
        if (bytes)
            assert_memory_equal(requests[i]->output, expected, bytes);
        for (int r = 0; r < world->size; r++)
            assert_int_equal(requests[i]->output_rows[r], rows_of(r, base));
        world_release(requests[i]);
    }
    free(expected);
    free(requests);
    free_all(world, in);
}

static void allgathers(struct world *world)
{
    for (size_t c = 0; c < COUNTS; c++) {
        check_allgather(world, counts[c] / 4, HORON_IN_ORDER, c % 2);
        check_allgather(world, counts[c] / 4, 0, c % 2 == 0);
    }
}

static void test_allgather_with_unequal_rows_joins_in_rank_order(void **state)
{
    (void)state;
    for_all_worlds(allgathers);
}

/* The one rank of a host fetches for it from all others: more than a slot of 4 KiB has lines. */
static void test_allgather_from_many_ranks_fits_any_slot(void **state)
{
    (void)state;
    static const char *const smallest[] = {"SHM_CHUNK_BYTES=4096", "SHM_SMALL_BYTES=64", NULL};
    struct world *world = world_create((const int[]){1, 70}, 2, smallest, 71);
    check_allgather(world, 40, HORON_IN_ORDER, false);
    check_allgather(world, 1, 0, false);
    world_destroy(world);
}

static void barriers(struct world *world)
{
    struct horon_request **requests = calloc((size_t)world->size, sizeof(void *));
    for (uint32_t flags = 0; flags < 2; flags++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_BARRIER;
        desc.flags = flags;
        for (int i = 0; i < world->size - 1; i++)
            requests[i] = world_submit(world, i, &desc);
        for (int i = 0; i < 200 * world->size; i++)
            horon_engine_progress(world->ranks[i % world->size].engine);
        for (int i = 0; i < world->size - 1; i++)
            assert_int_equal(atomic_load(&requests[i]->state), HORON_REQUEST_FLYING);
        requests[world->size - 1] = world_submit(world, world->size - 1, &desc);
        settle(world, requests, (size_t)world->size);
        for (int i = 0; i < world->size; i++)
            world_release(requests[i]);
    }
    free(requests);
}

static void test_barrier_without_last_rank_does_not_end(void **state)
{
    (void)state;
    for_all_worlds(barriers);
}

/* Every link of the world enciphers and reframes what goes through it, control messages too; no
 * room of a ring or a wrapper is a whole frame. */
static void test_every_verb_over_wrapped_links_gives_the_same(void **state)
{
    static const struct {
        int hosts[4], count;
    } wrapped[] = {{{1, 1}, 2}, {{3, 1, 2}, 3}, {{2, 2, 2, 1}, 4}};
    (void)state;
    for (size_t l = 0; l < sizeof wrapped / sizeof wrapped[0]; l++) {
        struct world *world =
            world_create_bare(wrapped[l].hosts, wrapped[l].count, settings[l % SETTINGS], 80 + l);
        struct horon_error error = {0};
        world->wrap = wrapped_link_create;
        for (int rank = 0; rank < world->size; rank++)
            assert_int_equal(world_make_engine(world, rank, &error), HORON_OK);
        allreduces(world);
        broadcasts(world);
        allgathers(world);
        barriers(world);
        world_destroy(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts_have_every_number_of_ranks),
        cmocka_unit_test(test_allreduce_in_any_world_gives_reference_bits),
        cmocka_unit_test(test_broadcast_in_any_world_reaches_all),
        cmocka_unit_test(test_allgather_with_unequal_rows_joins_in_rank_order),
        cmocka_unit_test(test_allgather_from_many_ranks_fits_any_slot),
        cmocka_unit_test(test_every_verb_over_wrapped_links_gives_the_same),
        cmocka_unit_test(test_barrier_without_last_rank_does_not_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
