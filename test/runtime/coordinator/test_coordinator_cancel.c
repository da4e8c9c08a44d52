/* SPDX-License-Identifier: Apache-2.0 */
/* Taking back: at once, after a question, or too late; and which ranks it concerns. */
#include "expect.h"

static void test_coordinator_cancel_before_report_is_at_once(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = tree_tensor(3, "a");
    for (int rank = 0; rank < 2; rank++) {
        submit(rank, &a, 1);
        horon_coordinator_cancel(tree.ranks[rank], 99); /* no such token */
        expect_no_batch(rank);
        horon_coordinator_cancel(tree.ranks[rank], 1);
        expect_batch(rank, HORON_SEQUENCE_LOCAL, HORON_ERR_CANCELLED, 1, 1);
        assert_int_equal(horon_coordinator_pending(tree.ranks[rank]), 0);
        horon_coordinator_cancel(tree.ranks[rank], 1); /* it is not pending any more */
        expect_no_batch(rank);
    }
    run();
    assert_int_equal(tree.sent_count, 0);
    submit_all(&a, 2);
    run();
    expect_all(0, 2, 1);
    tree_deinit(&tree);
}

static void test_coordinator_cancel_after_report_is_confirmed(void **state)
{
    (void)state;
    for (int known = 0; known < 2; known++) {
        tree_init(&tree, 3, TREE_CHAIN, 8, MIB, 1);
        struct horon_operation a = tree_tensor(3, "a");
        uint64_t sequence = 0;
        if (known) {
            submit_all(&a, 0);
            run();
            expect_all(sequence++, 0, 1);
        }
        submit(1, &a, 1001);
        submit(2, &a, 2001);
        run(); /* the root knows of it, and waits for itself */
        horon_coordinator_cancel(tree.ranks[2], 2001);
        expect_no_batch(2);
        assert_int_equal(horon_coordinator_pending(tree.ranks[2]), 1);
        assert_int_equal(tree_submit(tree.ranks[2], &a, 2002), HORON_ERR_DUPLICATE);
        char text[200];
        assert_true(horon_coordinator_explain(tree.ranks[2], 2001, text, sizeof text));
        assert_string_equal(text, "tensor 'a': rank 1 (host-a) was asked to forget it");
        run();
        expect_batch(2, HORON_SEQUENCE_LOCAL, HORON_ERR_CANCELLED, 2001, 1);
        submit(0, &a, 1);
        run();
        expect_no_batches(); /* the others wait for rank 2 */
        submit(2, &a, 2001);
        run();
        expect_all(sequence, 1, 1);
        tree_deinit(&tree);
    }
}

static void test_coordinator_cancel_that_crosses_the_batch_is_too_late(void **state)
{
    (void)state;
    tree_init(&tree, 3, TREE_CHAIN, 8, MIB, 1);
    struct horon_operation a = tree_tensor(3, "a");
    submit_all(&a, 1);
    for (int rank = 2; rank > 0; rank--) {
        assert_int_equal(tree_flush(&tree, rank, true), HORON_OK);
        assert_int_equal(tree_deliver(&tree, rank, true), HORON_OK);
    }
    assert_int_equal(tree_flush(&tree, 0, true), HORON_OK); /* decided */
    horon_coordinator_cancel(tree.ranks[2], 2001);
    horon_coordinator_cancel(tree.ranks[0], 1);
    run();
    expect_all(0, 1, 1);
    expect_no_batches();
    submit_all(&a, 2); /* and nothing is left of the question */
    run();
    expect_all(1, 2, 1);
    tree_deinit(&tree);
}

static void test_coordinator_cancel_on_all_ranks_leaves_nothing(void **state)
{
    (void)state;
    for (int shape = 0; shape < TREE_SHAPE_COUNT; shape++) {
        tree_init(&tree, 7, (enum tree_shape)shape, 8, MIB, 3);
        struct horon_operation a = tree_tensor(3, "a"), other = tree_tensor(4, "a");
        for (int rank = 1; rank < 7; rank++)
            submit(rank, &a, 1 + 1000 * (uint64_t)rank);
        run();
        for (int rank = 1; rank < 7; rank++)
            horon_coordinator_cancel(tree.ranks[rank], 1 + 1000 * (uint64_t)rank);
        run();
        for (int rank = 1; rank < 7; rank++)
            expect_batch(rank, HORON_SEQUENCE_LOCAL, HORON_ERR_CANCELLED, 1 + 1000 * (uint64_t)rank,
                         1);
        submit_all(&other, 2); /* no trace of the old shape */
        run();
        expect_all(0, 2, 1);
        tree_deinit(&tree);
    }
}

/* A conflict is over when one of its sides has been taken back. */
static void test_coordinator_cancel_mends_a_mismatch(void **state)
{
    (void)state;
    for (int odd = 0; odd < 4; odd++) {
        tree_init(&tree, 5, TREE_CHAIN, 8, MIB, 1);
        struct horon_operation a = tree_tensor(3, "a"), b = tree_tensor(4, "a");
        for (int rank = 0; rank < 4; rank++)
            submit(rank, rank == odd ? &b : &a, 1 + 1000 * (uint64_t)rank);
        run(); /* rank 4 is missing */
        horon_coordinator_cancel(tree.ranks[odd], 1 + 1000 * (uint64_t)odd);
        run();
        expect_batch(odd, HORON_SEQUENCE_LOCAL, HORON_ERR_CANCELLED, 1 + 1000 * (uint64_t)odd, 1);
        submit(odd, &a, 1 + 1000 * (uint64_t)odd);
        submit(4, &a, 4001);
        run();
        expect_all(0, 1, 1);
        tree_deinit(&tree);
    }
}

/* Likewise below a rank that has reported the failure. */
static void test_coordinator_cancel_mends_a_reported_mismatch(void **state)
{
    (void)state;
    tree_init(&tree, 3, TREE_CHAIN, 8, MIB, 1);
    struct horon_operation a = tree_tensor(3, "a"), b = tree_tensor(4, "a");
    submit(1, &a, 1001);
    submit(2, &b, 2001);
    run();
    horon_coordinator_cancel(tree.ranks[1], 1001);
    run();
    expect_batch(1, HORON_SEQUENCE_LOCAL, HORON_ERR_CANCELLED, 1001, 1);
    submit(1, &b, 1001);
    submit(0, &b, 1);
    run();
    expect_all(0, 1, 1);
    tree_deinit(&tree);
}

/* More children than bits in a word. */
static void test_coordinator_many_children_are_told_apart(void **state)
{
    (void)state;
    tree_init(&tree, 131, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = tree_tensor(3, "a");
    for (uint64_t round = 0; round < 3; round++) {
        for (int rank = 0; rank < 130; rank++)
            submit(rank, &a, round + 1000 * (uint64_t)rank);
        run();
        char text[300];
        assert_true(horon_coordinator_explain(tree.ranks[0], round, text, sizeof text));
        assert_string_equal(text, "tensor 'a': waiting for rank 130 (host-n)");
        const int back[] = {0, 1, 62, 63, 64, 65, 128, 129};
        for (int i = 0; i < 8; i++) {
            uint64_t token = round + 1000 * (uint64_t)back[i];
            horon_coordinator_cancel(tree.ranks[back[i]], token);
            run();
            expect_batch(back[i], HORON_SEQUENCE_LOCAL, HORON_ERR_CANCELLED, token, 1);
        }
        submit(130, &a, round + 130000);
        run();
        expect_no_batches();
        for (int i = 0; i < 8; i++)
            submit(back[i], &a, round + 1000 * (uint64_t)back[i]);
        run();
        expect_all(round, round, 1);
    }
    tree_deinit(&tree);
}

static void test_coordinator_explain_counts_what_it_does_not_name(void **state)
{
    (void)state;
    tree_init(&tree, 12, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = tree_tensor(3, "a");
    submit(0, &a, 1);
    submit(5, &a, 5001);
    run();
    char text[400];
    assert_true(horon_coordinator_explain(tree.ranks[0], 1, text, sizeof text));
    assert_string_equal(text, "tensor 'a': waiting for rank 1 (host-a), rank 2 (host-b), rank 3 "
                              "(host-b), rank 4 (host-c), rank 6 (host-d), rank 7 (host-d), rank "
                              "8 (host-e), rank 9 (host-e) and 2 more");
    tree_deinit(&tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinator_cancel_before_report_is_at_once),
        cmocka_unit_test(test_coordinator_cancel_after_report_is_confirmed),
        cmocka_unit_test(test_coordinator_cancel_that_crosses_the_batch_is_too_late),
        cmocka_unit_test(test_coordinator_cancel_on_all_ranks_leaves_nothing),
        cmocka_unit_test(test_coordinator_cancel_mends_a_mismatch),
        cmocka_unit_test(test_coordinator_cancel_mends_a_reported_mismatch),
        cmocka_unit_test(test_coordinator_many_children_are_told_apart),
        cmocka_unit_test(test_coordinator_explain_counts_what_it_does_not_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
