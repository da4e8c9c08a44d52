/* SPDX-License-Identifier: Apache-2.0 */
/* What goes into one batch, and in which order. */
#include "expect.h"

/* Submits [count] float32 sums of the given sizes on the one rank, tokens 0.. */
static void submit_sizes(const uint64_t *counts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct horon_operation tensor = tree_tensor(counts[i], "t%d", (int)i);
        submit(0, &tensor, i);
    }
    run();
}

static void test_coordinator_fusion_fills_to_the_limit(void **state)
{
    (void)state;
    static const uint64_t counts[] = {10, 10, 5, 1, 24, 1, 26, 0, 25, 0};
    static const uint64_t batches[][3] = {
        {0, 1, 2}, /* 25 */
        {3, 4},    /* 1 + 24 */
        {5, 7},    /* 26 does not fit, but the next 0 does */
        {6},       /* larger than the limit: alone */
        {8, 9},
    };
    static const size_t sizes[] = {3, 2, 2, 1, 2};
    tree_init(&tree, 1, TREE_STAR, 64, 100, 1); /* 25 elements */
    for (uint64_t round = 0; round < 15; round += 5) {
        submit_sizes(counts, 10);
        for (uint64_t i = 0; i < 5; i++) {
            struct horon_batch batch;
            assert_true(horon_coordinator_next_batch(tree.ranks[0], &batch));
            assert_int_equal(batch.sequence, round + i);
            assert_int_equal(batch.count, sizes[i]);
            assert_memory_equal(batch.tokens, batches[i], sizes[i] * sizeof *batch.tokens);
        }
        expect_no_batch(0);
    }
    tree_deinit(&tree);
}

static void test_coordinator_fusion_off_makes_one_batch_each(void **state)
{
    (void)state;
    static const uint64_t counts[] = {0, 0, 1, 7};
    tree_init(&tree, 1, TREE_STAR, 64, 0, 1);
    submit_sizes(counts, 4);
    for (uint64_t i = 0; i < 4; i++)
        expect_batch(0, i, HORON_OK, i, 1);
    tree_deinit(&tree);
}

static void test_coordinator_fusion_looks_past_other_kinds(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 64, MIB, 1);
    for (uint64_t round = 0; round < 4; round += 2) {
        for (uint64_t i = 0; i < 10; i++) {
            struct horon_operation tensor = tree_tensor(10, "t%d", (int)i);
            tensor.agreed.dtype = i % 2 ? HORON_FLOAT16 : HORON_FLOAT32;
            submit_all(&tensor, i);
        }
        run();
        for (int rank = 0; rank < 2; rank++)
            for (uint64_t kind = 0; kind < 2; kind++) {
                struct horon_batch batch;
                assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
                assert_int_equal(batch.sequence, round + kind);
                assert_int_equal(batch.count, 5);
                for (uint64_t i = 0; i < 5; i++)
                    assert_int_equal(batch.tokens[i], 2 * i + kind + 1000 * (uint64_t)rank);
            }
    }
    tree_deinit(&tree);
}

static void test_coordinator_fusion_keeps_kinds_apart(void **state)
{
    (void)state;
    tree_init(&tree, 1, TREE_STAR, 64, MIB, 1);
    struct horon_operation t[10];
    for (int i = 0; i < 10; i++)
        t[i] = tree_tensor(10, "t%d", i);
    t[1].agreed.redop = HORON_MAX;
    t[2].agreed.prescale = 0.5;
    t[3].agreed.postscale = 0.5;
    t[4].agreed.verb = HORON_ALLGATHER;
    t[5].agreed.verb = HORON_ALLGATHER;
    t[6].agreed.verb = HORON_BARRIER;
    t[7].agreed.verb = t[8].agreed.verb = t[9].agreed.verb = HORON_BROADCAST;
    t[8].agreed.root = 3;
    for (uint64_t i = 0; i < 10; i++)
        submit(0, &t[i], i);
    run();
    for (uint64_t i = 0; i < 7; i++)
        expect_batch(0, i, HORON_OK, i, 1);
    struct horon_batch batch;
    assert_true(horon_coordinator_next_batch(tree.ranks[0], &batch)); /* of root 0: 7 and 9 */
    assert_int_equal(batch.count, 2);
    assert_int_equal(batch.tokens[1], 9);
    expect_batch(0, 8, HORON_OK, 8, 1);
    expect_no_batch(0);
    tree_deinit(&tree);
}

static void test_coordinator_fusion_survives_impossible_sizes(void **state)
{
    (void)state;
    tree_init(&tree, 1, TREE_STAR, 64, UINT64_MAX, 1);
    struct horon_operation a = tree_tensor(UINT64_MAX, "a"), b = tree_tensor(1, "b");
    a.agreed.ndim = 3;
    a.agreed.shape[1] = a.agreed.shape[2] = UINT64_MAX;
    submit(0, &a, 0);
    submit(0, &b, 1);
    run();
    expect_batch(0, 0, HORON_OK, 0, 1);
    expect_batch(0, 1, HORON_OK, 1, 1);
    tree_deinit(&tree);
}

/* So many tensors that one record cannot hold them: several batches, each within a message. */
static void test_coordinator_fusion_is_bounded_by_the_message(void **state)
{
    (void)state;
    enum { MANY = 20011 };
    tree_init(&tree, 3, TREE_CHAIN, MANY, UINT64_MAX, 1);
    for (uint64_t round = 0; round < 3; round++) {
        for (int rank = 0; rank < 3; rank++)
            for (uint64_t i = 0; i < MANY; i++) {
                uint64_t pick = round < 2 ? i : i * 7919 % MANY; /* at last in a wild order */
                struct horon_operation tensor =
                    tree_tensor(1, "a name of some length.%d", (int)pick);
                submit(rank, &tensor, i);
            }
        run();
        assert_true(tree.longest_bytes <= HORON_COORDINATOR_MESSAGE_BYTES_MAX);
        for (int rank = 0; rank < 3; rank++) {
            struct horon_batch batch;
            uint64_t next = 0;
            while (horon_coordinator_next_batch(tree.ranks[rank], &batch))
                for (size_t i = 0; i < batch.count; i++)
                    assert_int_equal(batch.tokens[i], next++);
            assert_int_equal(next, MANY);
        }
    }
    tree_deinit(&tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinator_fusion_fills_to_the_limit),
        cmocka_unit_test(test_coordinator_fusion_off_makes_one_batch_each),
        cmocka_unit_test(test_coordinator_fusion_looks_past_other_kinds),
        cmocka_unit_test(test_coordinator_fusion_keeps_kinds_apart),
        cmocka_unit_test(test_coordinator_fusion_survives_impossible_sizes),
        cmocka_unit_test(test_coordinator_fusion_is_bounded_by_the_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
