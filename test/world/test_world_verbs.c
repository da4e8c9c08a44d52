/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every verb in worlds of many shapes, 1 to 17 ranks: the bits of the reference, whatever the
 * layout, the chunk size, the algorithm between hosts and the order in which ranks get to run. One
 * operation at a time; test_world_fusion.c has many.
 */
#undef NDEBUG
#include "collectives/wrapped_link.h"
#include "world/layouts.h"

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
    static const horon_redop_t bitwise[] = {HORON_BIT_AND, HORON_BIT_OR, HORON_BIT_XOR};
    for (size_t c = 0; c < COUNTS; c++) {
        for (size_t d = 0; d < 3; d++) {
            const enum place place = (enum place)((c + d) % 3);
            const double scale = (c + d) % 4 ? 1.0 : 0.5;
            check_allreduce(world, dtypes[d], HORON_SUM, counts[c], HORON_IN_ORDER, place, scale);
            check_allreduce(world, dtypes[d], HORON_AVERAGE, counts[c], 0, (enum place)(d % 3),
                            scale);
        }
        check_allreduce(world, HORON_FLOAT64, HORON_MAX, counts[c], 0, EACH_ITS_WAY, 1.0);
        check_allreduce(world, c % 2 ? HORON_INT16 : HORON_UINT64, bitwise[c % 3], counts[c], 0,
                        (enum place)(c % 3), 1.0);
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
        desc.dst = in_place && total > 0 ? in[i] : NULL; /* one without room is refused */
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
