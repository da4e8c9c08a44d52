/* SPDX-License-Identifier: Apache-2.0 */
/* Where outputs come from whose size is known only when the ranks have met. */
#include "request_bed.h"

struct asked {
    int times;
    uint64_t rows, bytes;
    void *give;
};

static void *alloc_output(void *arg, uint64_t rows, uint64_t bytes)
{
    struct asked *asked = arg;
    asked->times++;
    asked->rows = rows;
    asked->bytes = bytes;
    return asked->give;
}

static horon_descriptor_t gather(struct bed *bed)
{
    static const uint64_t shape[] = {4, 2};
    horon_descriptor_t desc = right(bed);
    desc.verb = HORON_ALLGATHER;
    desc.dst = NULL;
    desc.shape = shape;
    desc.ndim = 2;
    return desc;
}

static void test_request_output_is_dst_or_allocs_or_its_own(void **state)
{
    static const uint64_t rows[SIZE] = {4, 0, 3};
    struct bed *bed = *state;
    float room[14];
    struct asked asked = {.give = room};
    horon_descriptor_t desc = gather(bed);
    desc.alloc = alloc_output;
    desc.alloc_arg = &asked;
    desc.dst = bed->data; /* goes before alloc */
    desc.dst_count = 14;
    expect_right(bed, &desc);
    assert_ptr_equal(horon_request_take_output(bed->request, rows, 14), bed->data);
    assert_int_equal(asked.times, 0);
    drop(bed);
    desc.dst = NULL;
    expect_right(bed, &desc);
    assert_ptr_equal(horon_request_take_output(bed->request, rows, 14), room);
    assert_int_equal(asked.times, 1);
    assert_int_equal(asked.rows, 7);
    assert_int_equal(asked.bytes, 56);
    assert_memory_equal(bed->request->output_rows, rows, sizeof rows);
    assert_int_equal(bed->request->output_count, 14);
    drop(bed);
    asked.give = NULL; /* which fails it */
    expect_right(bed, &desc);
    assert_null(horon_request_take_output(bed->request, rows, 14));
    drop(bed);
    desc.alloc = NULL;
    expect_right(bed, &desc);
    float *own = horon_request_take_output(bed->request, rows, 14);
    assert_non_null(own);
    memset(own, 0, 56);
    horon_request_reset(bed->request); /* before the next start */
    assert_null(bed->request->output);
    drop(bed);
}

/* A dst for what other ranks decide on must have room; one that is not written, or NULL, has none
 * to say. The first version of the struct could not say it. */
static void test_request_output_that_ranks_decide_on_has_room(void **state)
{
    static const struct {
        uint32_t verb;
        int32_t root;
        bool needs_room;
    } cases[] = {{HORON_ALLGATHER, 0, true},  {HORON_ALLTOALL, 0, true},
                 {HORON_GATHER, RANK, true},  {HORON_GATHER, RANK + 1, false},
                 {HORON_SCATTER, RANK, true}, {HORON_SCATTER, RANK + 1, true},
                 {HORON_ALLREDUCE, 0, false}, {HORON_BROADCAST, RANK + 1, false},
                 {HORON_REDUCE, RANK, false}, {HORON_RECV, RANK + 1, false}};
    static const uint64_t no_rows[] = {0, 3}, no_elements[] = {3, 0};
    struct bed *bed = *state;
    float out[8];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        horon_descriptor_t desc = right(bed);
        desc.verb = cases[i].verb;
        desc.name = cases[i].verb == HORON_RECV ? NULL : desc.name;
        desc.root = cases[i].root;
        desc.dst = out;
        desc.count = 3;
        for (int empty = 0; empty < 2; empty++, desc.shape = no_rows, desc.ndim = 2) {
            if (cases[i].needs_room) {
                expect_wrong(bed, &desc, HORON_ERR_INVALID, "dst is given and dst_count is 0");
                continue;
            }
            expect_right(bed, &desc);
            drop(bed);
        }
        desc.shape = no_elements;
        expect_right(bed, &desc);
        drop(bed);
        desc.shape = NULL;
        desc.struct_bytes = offsetof(horon_descriptor_t, dst_count);
        expect_right(bed, &desc);
        drop(bed);
        desc.struct_bytes = sizeof desc;
        desc.dst_count = 1;
        expect_right(bed, &desc);
        drop(bed);
        desc.dst_count = 0;
        desc.dst = cases[i].needs_room ? NULL : out;
        expect_right(bed, &desc);
        drop(bed);
    }
}

static void test_request_output_of_nothing_asks_nobody(void **state)
{
    static const uint64_t rows[SIZE] = {0};
    struct bed *bed = *state;
    struct asked asked = {0};
    horon_descriptor_t desc = gather(bed);
    desc.alloc = alloc_output;
    desc.alloc_arg = &asked;
    expect_right(bed, &desc);
    horon_request_take_output(bed->request, rows, 0);
    assert_int_equal(asked.times, 0);
    assert_int_equal(bed->request->output_count, 0);
    drop(bed);
}

/* What other ranks say they give is theirs to say: it must be refused, not wrapped. */
static void test_request_output_larger_than_memory_is_refused(void **state)
{
    static const uint64_t rows[SIZE] = {1, 1, 1};
    static const uint64_t totals[] = {UINT64_MAX, UINT64_MAX / 4, UINT64_MAX / 4 - 3,
                                      (uint64_t)1 << 62};
    struct bed *bed = *state;
    horon_descriptor_t desc = gather(bed);
    for (uint32_t dtype = 0; dtype < HORON_DTYPE_COUNT; dtype++) {
        desc.dtype = dtype;
        for (size_t i = 0; i < sizeof totals / sizeof totals[0]; i++) {
            expect_right(bed, &desc);
            assert_null(horon_request_take_output(bed->request, rows, totals[i]));
            drop(bed);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_request_output_is_dst_or_allocs_or_its_own),
        TEST(test_request_output_that_ranks_decide_on_has_room),
        TEST(test_request_output_of_nothing_asks_nobody),
        TEST(test_request_output_larger_than_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
