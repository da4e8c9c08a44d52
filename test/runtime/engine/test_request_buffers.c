/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of descriptors: which are needed, and how src and dst may lie to each other. */
#include "request_bed.h"

static void test_request_buffers_are_needed_where_they_are_used(void **state)
{
    struct bed *bed = *state;
    static const struct {
        uint32_t verb;
        int32_t root;
        bool src, dst; /* needed */
    } cases[] = {{HORON_ALLREDUCE, 0, true, true},
                 {HORON_BROADCAST, RANK, true, false},
                 {HORON_BROADCAST, RANK + 1, false, true},
                 {HORON_ALLGATHER, 0, true, false},
                 {HORON_BARRIER, 0, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        horon_descriptor_t desc = right(bed);
        desc.verb = cases[i].verb;
        desc.root = cases[i].root;
        desc.src = cases[i].src ? bed->data : NULL;
        desc.dst = cases[i].dst ? bed->data : NULL;
        expect_right(bed, &desc);
        drop(bed);
        if (cases[i].src) {
            desc.src = NULL;
            expect_wrong(bed, &desc, HORON_ERR_INVALID, "src is NULL");
            desc.src = bed->data;
        }
        if (cases[i].dst) {
            desc.dst = NULL;
            expect_wrong(bed, &desc, HORON_ERR_INVALID, "dst is NULL");
        }
        desc.count = 0;
        desc.src = desc.dst = NULL;
        expect_right(bed, &desc);
        drop(bed);
    }
}

/* Partly the same memory would be overwritten before it is read. */
static void test_request_buffers_are_equal_or_disjoint(void **state)
{
    static const struct {
        uint32_t verb;
        int32_t root;
        int src, dst;
        uint64_t count, dst_count;
        bool right;
    } cases[] = {
        {HORON_ALLREDUCE, 0, 0, 1, 4, 0, false},
        {HORON_ALLREDUCE, 0, 1, 0, 4, 0, false},
        {HORON_ALLREDUCE, 0, 0, 3, 4, 0, false},
        {HORON_ALLREDUCE, 0, 0, 4, 4, 0, true},
        {HORON_ALLREDUCE, 0, 4, 0, 4, 0, true},
        {HORON_ALLREDUCE, 0, 2, 2, 4, 0, true},
        {HORON_ALLREDUCE, 0, 1, 0, 0, 0, true},
        {HORON_ALLREDUCE, 0, 4, 0, 4, 8, true},
        {HORON_BROADCAST, RANK, 0, 1, 2, 0, false},
        {HORON_BROADCAST, RANK, 1, 1, 2, 0, true},
        {HORON_BROADCAST, RANK + 1, 0, 1, 2, 0, true}, /* it does not read src */
        {HORON_ALLGATHER, 0, 0, 1, 2, 1, false},
        {HORON_ALLGATHER, 0, 0, 0, 2, 6, true},
        {HORON_ALLGATHER, 0, 5, 0, 2, 6, false},
        {HORON_ALLGATHER, 0, 6, 0, 2, 6, true},
        {HORON_ALLGATHER, 0, 5, 0, 2, 1, true}, /* as far as one can know */
        {HORON_ALLGATHER, 0, 3, 0, 2, UINT64_MAX, true},
        {HORON_ALLGATHER, 0, 2, 0, 2, 6, true}, /* within dst */
        {HORON_ALLGATHER, 0, 4, 0, 2, 6, true},
        {HORON_ALLGATHER, 0, 1, 0, 2, 3, true},
        {HORON_ALLGATHER, 0, 1, 0, 2, 2, false},
        {HORON_ALLGATHER, 0, 0, 1, 2, 6, false},
        {HORON_ALLGATHER, 0, 1, 0, 2, UINT64_MAX, true},
        {HORON_GATHER, RANK, 4, 0, 2, 6, true},
        {HORON_GATHER, RANK, 5, 0, 2, 6, false},
        {HORON_GATHER, RANK + 1, 5, 0, 2, 6, true}, /* it gets nothing */
        {HORON_SCATTER, RANK, 0, 6, 6, 2, true},
        {HORON_SCATTER, RANK, 2, 0, 6, 2, true},
        {HORON_SCATTER, RANK, 1, 0, 6, 2, false},
        {HORON_SCATTER, RANK, 2, 2, 6, 2, true},
        {HORON_SCATTER, RANK + 1, 1, 0, 6, 2, true},
        {HORON_SCATTER, RANK, 0, 2, 6, 2, true}, /* its rows in src */
        {HORON_SCATTER, RANK, 0, 2, 6, 6, true},
        {HORON_SCATTER, RANK, 0, 3, 8, 3, true}, /* 3, 3, 2 */
        {HORON_SCATTER, RANK, 0, 2, 8, 3, false},
        {HORON_SCATTER, RANK, 0, 4, 6, 2, false},
    };
    struct bed *bed = *state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        horon_descriptor_t desc = right(bed);
        desc.verb = cases[i].verb;
        desc.root = cases[i].root;
        desc.src = bed->data + cases[i].src;
        desc.dst = bed->data + cases[i].dst;
        desc.count = cases[i].count;
        desc.dst_count = cases[i].dst_count;
        if (!cases[i].right) {
            expect_wrong(bed, &desc, HORON_ERR_INVALID, "equal or disjoint");
            continue;
        }
        expect_right(bed, &desc);
        drop(bed);
    }
    horon_descriptor_t desc = right(bed); /* a byte is enough */
    desc.src = (char *)bed->data + 15;
    desc.count = 4;
    expect_wrong(bed, &desc, HORON_ERR_INVALID, "equal or disjoint");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_request_buffers_are_needed_where_they_are_used),
        TEST(test_request_buffers_are_equal_or_disjoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
