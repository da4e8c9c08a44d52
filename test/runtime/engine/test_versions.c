/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of callers that were built with another version of the struct: it grew by dst_count,
 * by memory, device and splits, and by tag. What a version does not have is not looked at, and has
 * its default.
 */
#include "request_bed.h"

enum version { FIRST, WITH_COUNT, WITH_MEMORY, WITH_SPLITS, TODAY, NEWER, VERSIONS };

struct newer {
    horon_descriptor_t known;
    uint64_t later;
};

static const size_t bytes_of[VERSIONS] = {
    [FIRST] = offsetof(horon_descriptor_t, dst_count),
    [WITH_COUNT] = offsetof(horon_descriptor_t, memory),
    [WITH_MEMORY] = offsetof(horon_descriptor_t, splits),
    [WITH_SPLITS] = offsetof(horon_descriptor_t, tag),
    [TODAY] = sizeof(horon_descriptor_t),
    [NEWER] = sizeof(struct newer),
};

/* None is cut to an older one, and a newer one may set nothing else. */
static void test_request_descriptor_of_another_version_is_taken_or_refused(void **state)
{
    struct bed *bed = *state;
    struct newer newer = {.known = right(bed)};
    newer.known.dst_count = 77;
    for (enum version v = FIRST; v < VERSIONS; v++) {
        newer.known.struct_bytes = bytes_of[v];
        newer.known.memory = v < WITH_MEMORY ? HORON_MEMORY_COUNT : HORON_MEMORY_HOST;
        expect_right(bed, &newer.known);
        assert_int_equal(bed->request->op.count, 8);
        assert_int_equal(bed->request->dst_count, v == FIRST ? 0 : 77);
        drop(bed);
    }
    newer.later = 1;
    expect_wrong(bed, &newer.known, HORON_ERR_INVALID, "of the descriptor is set");
    newer.known.struct_bytes = bytes_of[FIRST] - sizeof(void *);
    expect_wrong(bed, &newer.known, HORON_ERR_INVALID, "descriptor.struct_bytes");
}

/* Rows go as equally as can be where there were no splits to give. */
static void test_request_before_splits_shares_rows_equally(void **state)
{
    struct bed *bed = *state;
    const uint64_t uneven[SIZE] = {1, 7, 0};
    float out[8];
    struct newer newer = {.known = right(bed)};
    newer.known.verb = HORON_REDUCESCATTER;
    newer.known.dst = out;
    newer.known.dst_count = 8;
    for (enum version v = WITH_COUNT; v < VERSIONS; v++) {
        newer.known.splits = v < WITH_SPLITS ? (const uint64_t *)16 : uneven;
        newer.known.struct_bytes = bytes_of[v];
        expect_right(bed, &newer.known);
        assert_int_equal(horon_operation_output(&bed->request->op, RANK, SIZE),
                         v < WITH_SPLITS ? 3 : 7);
        drop(bed);
    }
    newer.known.verb = HORON_ALLTOALL;
    for (enum version v = WITH_COUNT; v < VERSIONS; v++) {
        newer.known.splits = v < WITH_SPLITS ? (const uint64_t *)16 : uneven;
        newer.known.struct_bytes = bytes_of[v];
        newer.known.count = 9; /* three for each; and no sum of the splits */
        if (v >= WITH_SPLITS) {
            expect_wrong(bed, &newer.known, HORON_ERR_INVALID, "the splits add up to 8 rows");
            continue;
        }
        expect_right(bed, &newer.known);
        for (int rank = 0; rank < SIZE; rank++)
            assert_int_equal(bed->request->op.ahead[rank], 3);
        drop(bed);
    }
}

/* A message has the tag 0 where there was none to give: it meets those that say so. */
static void test_request_before_tags_has_the_tag_0(void **state)
{
    struct bed *bed = *state;
    struct newer newer = {.known = right(bed)};
    newer.known.verb = HORON_SEND;
    newer.known.name = NULL;
    newer.known.root = RANK + 1;
    newer.known.tag = 99;
    for (enum version v = FIRST; v < VERSIONS; v++) {
        newer.known.struct_bytes = bytes_of[v];
        expect_right(bed, &newer.known);
        assert_int_equal(bed->request->message.tag, v < TODAY ? 0 : 99);
        drop(bed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_request_descriptor_of_another_version_is_taken_or_refused),
        TEST(test_request_before_splits_shares_rows_equally),
        TEST(test_request_before_tags_has_the_tag_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
