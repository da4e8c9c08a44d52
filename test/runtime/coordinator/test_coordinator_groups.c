/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: ready as one, failing as one. */
#include "expect.h"

#define HASH 0x1234u

static struct horon_operation member(const char *name, uint64_t hash, uint32_t size, uint32_t place)
{
    struct horon_operation tensor = tree_tensor(3, "%s", name);
    tensor.agreed.group_hash = hash;
    tensor.agreed.group_size = size;
    tensor.agreed.group_index = place;
    return tensor;
}

static void test_coordinator_group_waits_for_all_members(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = member("a", HASH, 2, 0), b = member("b", HASH, 2, 1);
    struct horon_operation alone = tree_tensor(3, "alone");
    for (uint64_t round = 0; round < 6; round += 2) {
        submit_all(&a, 1);
        submit_all(&alone, 2);
        submit(1, &b, 1003);
        run();
        expect_all(round, 2, 1);
        expect_no_batches();
        char text[200];
        assert_true(horon_coordinator_explain(tree.ranks[0], 1, text, sizeof text));
        assert_string_equal(text, "tensor 'a': ready everywhere; of its group of 2 only 1 are");
        submit(0, &b, 3);
        run();
        for (int rank = 0; rank < 2; rank++) {
            struct horon_batch batch;
            assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
            assert_int_equal(batch.sequence, round + 1);
            assert_int_equal(batch.status, HORON_OK);
            assert_int_equal(batch.count, 2);
            assert_int_equal(batch.tokens[0], 1 + 1000 * rank);
            assert_int_equal(batch.tokens[1], 3 + 1000 * rank);
        }
    }
    tree_deinit(&tree);
}

static void test_coordinator_group_of_one_is_a_tensor(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = member("a", HASH, 1, 0);
    submit_all(&a, 1);
    run();
    expect_all(0, 1, 1);
    tree_deinit(&tree);
}

static void test_coordinator_group_fails_with_its_member(void **state)
{
    (void)state;
    for (int culprit = 0; culprit < 3; culprit++) {
        tree_init(&tree, 3, TREE_CHAIN, 8, MIB, 1);
        for (int rank = 0; rank < 3; rank++)
            for (int i = 0; i < 3; i++) {
                char name[2] = {(char)('a' + i), 0};
                struct horon_operation tensor = member(name, HASH, 3, (uint32_t)i);
                if (rank == 1 && i == culprit)
                    tensor.agreed.dtype = HORON_INT32;
                submit(rank, &tensor, (uint64_t)(1000 * rank + i));
            }
        run();
        char expected[200];
        snprintf(expected, sizeof expected,
                 "group of 3: tensor '%c': rank 1 (host-a) has int32 [3], rank 2 (host-b) has "
                 "float32 [3]: dtypes differ",
                 'a' + culprit);
        for (int rank = 0; rank < 3; rank++) {
            struct horon_batch batch;
            uint64_t sum = 0;
            assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
            assert_int_equal(batch.sequence, 0);
            assert_int_equal(batch.status, HORON_ERR_MISMATCH);
            assert_string_equal(batch.text, expected);
            assert_int_equal(batch.count, 3);
            for (size_t i = 0; i < batch.count; i++)
                sum += batch.tokens[i];
            assert_int_equal(sum, 3 + 3 * 1000 * rank);
            expect_no_batch(rank);
        }
        tree_deinit(&tree);
    }
}

/* Rank 1 has a larger group: its third member, of which nobody else knows, fails there too, and the
 * name is free for all afterwards. */
static void test_coordinator_group_membership_must_agree(void **state)
{
    (void)state;
    for (int shape = 0; shape < TREE_SHAPE_COUNT; shape++) {
        tree_init(&tree, 4, (enum tree_shape)shape, 8, MIB, 1);
        for (int rank = 0; rank < 4; rank++) {
            uint32_t size = rank == 1 ? 3 : 2;
            struct horon_operation a = member("a", HASH + size, size, 0);
            struct horon_operation b = member("b", HASH + size, size, 1);
            struct horon_operation c = member("c", HASH + size, size, 2);
            submit(rank, &a, 1000 * (uint64_t)rank);
            submit(rank, &b, 1000 * (uint64_t)rank + 1);
            if (rank == 1)
                submit(rank, &c, 1002);
        }
        run();
        for (int rank = 0; rank < 4; rank++) {
            struct horon_batch batch;
            size_t count = 0;
            while (horon_coordinator_next_batch(tree.ranks[rank], &batch)) {
                assert_int_equal(batch.status, HORON_ERR_MISMATCH);
                assert_non_null(strstr(batch.text, "groups differ"));
                assert_non_null(strstr(batch.text, "rank 1 (host-a) has float32 [3] as tensor "));
                count += batch.count;
            }
            assert_int_equal(count, rank == 1 ? 3 : 2);
            assert_int_equal(horon_coordinator_pending(tree.ranks[rank]), 0);
        }
        struct horon_operation c = tree_tensor(9, "c");
        submit_all(&c, 5);
        run();
        for (int rank = 0; rank < 4; rank++) {
            struct horon_batch batch;
            assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
            assert_int_equal(batch.status, HORON_OK);
        }
        tree_deinit(&tree);
    }
}

static void test_coordinator_group_of_other_tensors_is_told(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = member("a", HASH, 2, 0), b = member("b", HASH, 2, 1);
    struct horon_operation odd = member("a", HASH + 1, 2, 0), c = member("c", HASH + 1, 2, 1);
    submit(0, &a, 1);
    submit(0, &b, 2);
    submit(1, &odd, 1001);
    submit(1, &c, 1002);
    run();
    for (int rank = 0; rank < 2; rank++) {
        struct horon_batch batch;
        assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
        assert_int_equal(batch.status, HORON_ERR_MISMATCH);
        assert_non_null(strstr(batch.text, "as tensor 1 of a group of 2: the other tensors of "
                                           "their groups differ"));
    }
    tree_deinit(&tree);
}

static void test_coordinator_group_member_taken_back_holds_the_group(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = member("a", HASH, 2, 0), b = member("b", HASH, 2, 1);
    submit_all(&a, 1);
    submit_all(&b, 2);
    assert_int_equal(tree_flush(&tree, 1, true), HORON_OK);
    assert_int_equal(tree_deliver(&tree, 1, true), HORON_OK);
    assert_int_equal(tree_flush(&tree, 0, false),
                     HORON_OK); /* complete, but not to be decided yet */
    horon_coordinator_cancel(tree.ranks[0], 1);
    expect_batch(0, HORON_SEQUENCE_LOCAL, HORON_ERR_CANCELLED, 1, 1);
    run();
    expect_no_batches();
    submit(0, &a, 1);
    run();
    for (int rank = 0; rank < 2; rank++) {
        struct horon_batch batch;
        assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
        assert_int_equal(batch.count, 2);
        assert_int_equal(batch.tokens[0] + batch.tokens[1], 3 + 2000 * rank);
    }
    tree_deinit(&tree);
}

/* Once the side that disagreed about the group is taken back, the group is whole again, and waits.
 */
static void test_coordinator_group_is_mended_by_taking_back(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = member("a", HASH, 2, 0), b = member("b", HASH, 2, 1);
    struct horon_operation odd = member("a", HASH + 1, 3, 0), c = member("c", HASH, 2, 1);
    submit(0, &a, 1);
    submit(1, &odd, 1001);
    submit_all(&c, 3);
    assert_int_equal(tree_flush(&tree, 1, true), HORON_OK);
    assert_int_equal(tree_deliver(&tree, 1, true), HORON_OK);
    horon_coordinator_cancel(tree.ranks[0], 1); /* before the root decides */
    expect_batch(0, HORON_SEQUENCE_LOCAL, HORON_ERR_CANCELLED, 1, 1);
    run();
    expect_no_batches(); /* c is in a group of two, and nothing is wrong with it */
    submit(0, &b, 2);
    submit(1, &b, 1002);
    run();
    for (int rank = 0; rank < 2; rank++) {
        struct horon_batch batch;
        assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
        assert_int_equal(batch.status, HORON_OK);
        assert_int_equal(batch.count, 2);
    }
    tree_deinit(&tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinator_group_waits_for_all_members),
        cmocka_unit_test(test_coordinator_group_of_one_is_a_tensor),
        cmocka_unit_test(test_coordinator_group_fails_with_its_member),
        cmocka_unit_test(test_coordinator_group_membership_must_agree),
        cmocka_unit_test(test_coordinator_group_of_other_tensors_is_told),
        cmocka_unit_test(test_coordinator_group_member_taken_back_holds_the_group),
        cmocka_unit_test(test_coordinator_group_is_mended_by_taking_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
