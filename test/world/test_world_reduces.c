/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verbs that give a part of a reduction, in worlds of many shapes: each rank its rows of it, or
 * root all. They have the bits of the reference for allreduce, for all types and operations,
 * whatever the layout and the way between hosts; and nothing is written but what a rank gets.
 */
#undef NDEBUG
#include "world/layouts.h"

enum { GUARD_BYTES = 64, GUARD = 0xa5 };

/* Where dst lies. */
enum place { APART, AT_FRONT, AT_OWN_ROWS };

/* How rows are split. */
enum split { EVENLY, ALL_TO_LAST, BY_RANK, SPLITS };

struct scatter {
    horon_dtype_t dtype;
    horon_redop_t op;
    uint64_t rows, columns;
    enum split split;
    enum place place;
    uint32_t flags;
    double prescale, postscale;
};

static void fill_any(struct world *world, void *memory, uint64_t count, horon_dtype_t dtype)
{
    uint8_t *bytes = memory;
    if (dtype >= HORON_FLOAT16 && dtype <= HORON_FLOAT64) {
        fill(world, memory, count, dtype);
        return;
    }
    for (uint64_t i = 0; i < count * horon_dtype_bytes(dtype); i++)
        bytes[i] = dtype == HORON_BOOL ? world_random(world) & 1 : world_random(world) & 0xff;
}

/* @return NULL: nothing is to be said of them */
static uint64_t *splits_of(enum split split, uint64_t rows, int size)
{
    const uint64_t ranks = (uint64_t)size;
    uint64_t left = rows, *splits = calloc(ranks, sizeof *splits);
    for (int rank = 0; rank + 1 < size; rank++) {
        const uint64_t wanted = split == BY_RANK ? rows * (uint64_t)(rank % 4) / ranks / 2 : 0;
        splits[rank] = wanted < left ? wanted : left;
        left -= splits[rank];
    }
    splits[size - 1] = left;
    if (split != EVENLY)
        return splits;
    free(splits);
    return NULL;
}

static uint64_t rows_of(const uint64_t *splits, uint64_t rows, int rank, int size)
{
    if (splits)
        return splits[rank];
    return rows / (uint64_t)size + ((uint64_t)rank < rows % (uint64_t)size);
}

static uint64_t first_row(const uint64_t *splits, uint64_t rows, int rank, int size)
{
    uint64_t first = 0;
    for (int before = 0; before < rank; before++)
        first += rows_of(splits, rows, before, size);
    return first;
}

/* Everything of [bytes] but [from, from + count) is as it was. */
static void assert_untouched(const uint8_t *memory, const uint8_t *before, size_t bytes,
                             size_t from, size_t count)
{
    assert_memory_equal(memory, before, from);
    assert_memory_equal(memory + from + count, before + from + count, bytes - from - count);
}

/* What one rank has: its input, and its output with guards around it. */
struct buffers {
    uint8_t *in, *in_before, *out, *out_before;
    size_t in_bytes, out_bytes; /* of the output without guards */
};

static void make_buffers(struct buffers *buffers, size_t in_bytes, size_t out_bytes)
{
    *buffers = (struct buffers){.in_bytes = in_bytes, .out_bytes = out_bytes};
    buffers->in = calloc(1, in_bytes + 1);
    buffers->in_before = calloc(1, in_bytes + 1);
    buffers->out = malloc(out_bytes + 2 * GUARD_BYTES);
    buffers->out_before = malloc(out_bytes + 2 * GUARD_BYTES);
    memset(buffers->out, GUARD, out_bytes + 2 * GUARD_BYTES);
    memset(buffers->out_before, GUARD, out_bytes + 2 * GUARD_BYTES);
}

static void free_buffers(struct buffers *buffers, int count)
{
    for (int i = 0; i < count; i++) {
        free(buffers[i].in);
        free(buffers[i].in_before);
        free(buffers[i].out);
        free(buffers[i].out_before);
    }
    free(buffers);
}

/* @param at  where in the input the rows of this rank lie */
static void check_rank(const struct buffers *buffers, const struct scatter *scatter,
                       const uint8_t *expected, size_t at)
{
    const size_t bytes = buffers->out_bytes, guarded = bytes + 2 * GUARD_BYTES;
    const size_t from = scatter->place == AT_OWN_ROWS ? at : 0;
    if (scatter->place == APART) {
        assert_memory_equal(buffers->out + GUARD_BYTES, expected, bytes);
        assert_untouched(buffers->out, buffers->out_before, guarded, GUARD_BYTES, bytes);
        assert_memory_equal(buffers->in, buffers->in_before, buffers->in_bytes);
    } else {
        assert_memory_equal(buffers->in + from, expected, bytes);
        assert_untouched(buffers->in, buffers->in_before, buffers->in_bytes, from, bytes);
    }
}

static void check_scatter(struct world *world, const struct scatter *scatter)
{
    const int size = world->size;
    const size_t of_row = (size_t)scatter->columns * horon_dtype_bytes(scatter->dtype);
    const uint64_t count = scatter->rows * scatter->columns;
    uint64_t *splits = splits_of(scatter->split, scatter->rows, size);
    struct buffers *all = calloc((size_t)size, sizeof *all);
    const void **inputs = calloc((size_t)size, sizeof *inputs);
    struct horon_request **requests = calloc((size_t)size, sizeof(void *));
    uint8_t *expected = malloc(scatter->rows * of_row + 1);
    for (int i = 0; i < size; i++) {
        make_buffers(&all[i], scatter->rows * of_row,
                     rows_of(splits, scatter->rows, i, size) * of_row);
        fill_any(world, all[i].in, count, scatter->dtype);
        memcpy(all[i].in_before, all[i].in, all[i].in_bytes);
        inputs[i] = all[i].in_before;
    }
    for (int i = 0; i < size; i++) {
        const uint64_t shape[2] = {scatter->rows, scatter->columns};
        const size_t at = first_row(splits, scatter->rows, i, size) * of_row;
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_REDUCESCATTER;
        desc.name = "shard";
        desc.flags = scatter->flags;
        desc.dtype = scatter->dtype;
        desc.redop = scatter->op;
        desc.shape = shape;
        desc.ndim = 2;
        desc.splits = splits;
        desc.src = all[i].in;
        desc.dst = scatter->place == APART      ? all[i].out + GUARD_BYTES
                   : scatter->place == AT_FRONT ? all[i].in
                                                : all[i].in + at;
        desc.dst_count = rows_of(splits, scatter->rows, i, size) * scatter->columns;
        desc.prescale = scatter->prescale;
        desc.postscale = scatter->postscale;
        requests[i] = world_submit(world, i, &desc);
    }
    settle(world, requests, (size_t)size);
    world_expect_allreduce(world, scatter->dtype, scatter->op, scatter->prescale,
                           scatter->postscale, inputs, count, expected);
    for (int i = 0; i < size; i++) {
        const size_t at = first_row(splits, scatter->rows, i, size) * of_row;
        check_rank(&all[i], scatter, expected + at, at);
        assert_int_equal(requests[i]->output_count,
                         rows_of(splits, scatter->rows, i, size) * scatter->columns);
        world_release(requests[i]);
    }
    free_buffers(all, size);
    free(splits);
    free(inputs);
    free(requests);
    free(expected);
}

static void scatters(struct world *world)
{
    for (size_t c = 0; c < COUNTS; c++) {
        struct scatter scatter = {.dtype = HORON_FLOAT32,
                                  .op = HORON_AVERAGE,
                                  .rows = counts[c] / 3,
                                  .columns = 3,
                                  .place = (enum place)(c % 3),
                                  .flags = HORON_IN_ORDER,
                                  .prescale = c % 2 ? 0.5 : 1.0,
                                  .postscale = c % 3 ? 1.0 : 3.0};
        check_scatter(world, &scatter);
        scatter.flags = 0;
        scatter.dtype = HORON_BFLOAT16;
        scatter.op = HORON_SUM;
        scatter.columns = 1;
        scatter.rows = counts[c];
        for (scatter.split = EVENLY; scatter.split < SPLITS; scatter.split++) {
            scatter.place = (enum place)((c + scatter.split) % 3);
            check_scatter(world, &scatter);
        }
    }
}

static void test_reducescatter_in_any_world_gives_rows_of_reference(void **state)
{
    (void)state;
    for_all_worlds(scatters);
}

struct reduce {
    horon_dtype_t dtype;
    horon_redop_t op;
    uint64_t count;
    int root;
    bool in_place;
    uint32_t flags;
};

static void check_reduce(struct world *world, const struct reduce *reduce)
{
    const int size = world->size;
    const size_t bytes = reduce->count * horon_dtype_bytes(reduce->dtype);
    struct buffers *all = calloc((size_t)size, sizeof *all);
    const void **inputs = calloc((size_t)size, sizeof *inputs);
    struct horon_request **requests = calloc((size_t)size, sizeof(void *));
    uint8_t *expected = malloc(bytes + 1);
    for (int i = 0; i < size; i++) {
        make_buffers(&all[i], bytes, bytes);
        fill_any(world, all[i].in, reduce->count, reduce->dtype);
        memcpy(all[i].in_before, all[i].in, bytes);
        inputs[i] = all[i].in_before;
    }
    for (int i = 0; i < size; i++) {
        horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
        desc.verb = HORON_REDUCE;
        desc.name = "loss";
        desc.flags = reduce->flags;
        desc.dtype = reduce->dtype;
        desc.redop = reduce->op;
        desc.count = reduce->count;
        desc.root = reduce->root;
        desc.src = all[i].in;
        desc.dst = reduce->in_place ? all[i].in : all[i].out + GUARD_BYTES;
        if (i != reduce->root && i % 2)
            desc.dst = NULL;
        requests[i] = world_submit(world, i, &desc);
    }
    settle(world, requests, (size_t)size);
    world_expect_allreduce(world, reduce->dtype, reduce->op, 1.0, 1.0, inputs, reduce->count,
                           expected);
    for (int i = 0; i < size; i++) {
        const size_t gets = i == reduce->root ? bytes : 0;
        const uint8_t *out = reduce->in_place ? all[i].in : all[i].out + GUARD_BYTES;
        assert_memory_equal(out, expected, gets);
        assert_untouched(all[i].out, all[i].out_before, bytes + 2 * GUARD_BYTES, GUARD_BYTES,
                         reduce->in_place ? 0 : gets);
        if (!reduce->in_place || i != reduce->root)
            assert_memory_equal(all[i].in, all[i].in_before, bytes);
        assert_int_equal(requests[i]->output_count, i == reduce->root ? reduce->count : 0);
        assert_true(i == reduce->root || !requests[i]->output);
        world_release(requests[i]);
    }
    free_buffers(all, size);
    free(inputs);
    free(requests);
    free(expected);
}

static void reduces(struct world *world)
{
    for (size_t c = 0; c < COUNTS; c++) {
        struct reduce reduce = {.dtype = HORON_FLOAT32,
                                .op = HORON_AVERAGE,
                                .count = counts[c],
                                .root = (int)(c % (size_t)world->size),
                                .in_place = c % 2,
                                .flags = HORON_IN_ORDER};
        check_reduce(world, &reduce);
        reduce.dtype = HORON_FLOAT16;
        reduce.flags = 0;
        reduce.root = world->size - 1;
        reduce.in_place = !reduce.in_place;
        check_reduce(world, &reduce);
    }
}

static void test_reduce_in_any_world_gives_root_the_reference(void **state)
{
    (void)state;
    for_all_worlds(reduces);
}

static void all_kinds(struct world *world)
{
    for (horon_dtype_t dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++) {
        for (horon_redop_t op = 0; op < HORON_REDOP_COUNT; op++) {
            if (!horon_reduce_supported(dtype, op))
                continue;
            for (uint64_t rows = 13; rows < 3000; rows = rows * 40 + 1) {
                const struct scatter scatter = {.dtype = dtype,
                                                .op = op,
                                                .rows = rows,
                                                .columns = 2,
                                                .split = (enum split)(rows % SPLITS),
                                                .prescale = 1.0,
                                                .postscale = op == HORON_SUM ? 0.5 : 1.0};
                const struct reduce reduce = {.dtype = dtype, .op = op, .count = rows};
                check_scatter(world, &scatter);
                check_reduce(world, &reduce);
            }
        }
    }
}

static void test_reduces_of_every_type_and_operation_give_the_reference(void **state)
{
    static const struct layout some[] = {{{3}, 1}, {{2, 1, 2}, 3}, {{1, 1, 1, 1}, 4}};
    (void)state;
    for (size_t l = 0; l < sizeof some / sizeof some[0]; l++)
        for (size_t s = 0; s < 2; s++)
            in_world(all_kinds, &some[l], s, 700 + l);
}

/* ---- what ranks must agree on --------------------------------------------------------------- */

static struct horon_request *submit_split(struct world *world, int rank, const uint64_t *splits,
                                          float *memory)
{
    const uint64_t shape[1] = {6};
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_REDUCESCATTER;
    desc.name = "shard";
    desc.dtype = HORON_FLOAT32;
    desc.shape = shape;
    desc.ndim = 1;
    desc.splits = splits;
    desc.src = memory;
    desc.dst = memory + 6;
    desc.dst_count = 6;
    return world_submit(world, rank, &desc);
}

static void test_reducescatter_with_other_splits_on_one_rank_is_refused(void **state)
{
    static const uint64_t even[] = {2, 2, 2}, uneven[] = {1, 2, 3}, other[] = {3, 2, 1};
    static const struct {
        const uint64_t *of[3];
        const char *text; /* NULL: they agree */
    } cases[] = {
        {{even, NULL, even}, NULL},
        {{uneven, uneven, uneven}, NULL},
        {{uneven, uneven, other}, "with splits of its own: splits differ"},
        {{NULL, other, NULL}, "split evenly"},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct world *world = world_create((const int[]){2, 1}, 2, NULL, c);
        struct horon_request *requests[3];
        float memory[3][12] = {{0}};
        for (int i = 0; i < 3; i++)
            requests[i] = submit_split(world, i, cases[c].of[i], memory[i]);
        assert_true(world_turn_until(world, requests, 3));
        for (int i = 0; i < 3; i++) {
            if (!cases[c].text) {
                assert_int_equal(requests[i]->status, HORON_OK);
            } else {
                assert_int_equal(requests[i]->status, HORON_ERR_MISMATCH);
                assert_non_null(strstr(requests[i]->error_text, cases[c].text));
            }
            world_release(requests[i]);
        }
        world_destroy(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reducescatter_in_any_world_gives_rows_of_reference),
        cmocka_unit_test(test_reduce_in_any_world_gives_root_the_reference),
        cmocka_unit_test(test_reduces_of_every_type_and_operation_give_the_reference),
        cmocka_unit_test(test_reducescatter_with_other_splits_on_one_rank_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
