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
        TEST(test_request_output_of_nothing_asks_nobody),
        TEST(test_request_output_larger_than_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
