/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks lack a tensor: any rank may ask, those that lack it answer. */
#include "expect.h"

static char text[HORON_ERROR_TEXT_BYTES];

static const char *ask(int rank, uint64_t token)
{
    horon_coordinator_ask(tree.ranks[rank], token);
    run();
    assert_true(horon_coordinator_explain(tree.ranks[rank], token, text, sizeof text));
    return text;
}

/* Every rank of every tree hears of every rank that is missing. */
static void test_coordinator_ask_names_the_missing_rank(void **state)
{
    (void)state;
    struct horon_operation a = tree_tensor(3, "a");
    for (int shape = 0; shape < TREE_SHAPE_COUNT; shape++)
        for (int missing = 0; missing < 7; missing++) {
            tree_init(&tree, 7, (enum tree_shape)shape, 8, MIB, 11);
            for (int rank = 0; rank < 7; rank++)
                if (rank != missing)
                    submit(rank, &a, 1 + 1000 * (uint64_t)rank);
            run();
            char expected[80];
            snprintf(expected, sizeof expected, "tensor 'a': waiting for %s", tree.names[missing]);
            for (int twice = 0; twice < 2; twice++)
                for (int rank = 0; rank < 7; rank++)
                    if (rank != missing)
                        assert_string_equal(ask(rank, 1 + 1000 * (uint64_t)rank), expected);
            submit(missing, &a, 1 + 1000 * (uint64_t)missing);
            run();
            expect_all(0, 1, 1);
            tree_deinit(&tree);
        }
}

static void test_coordinator_ask_names_several(void **state)
{
    (void)state;
    struct horon_operation a = tree_tensor(3, "a");
    tree_init(&tree, 8, TREE_BINOMIAL, 8, MIB, 1);
    submit(7, &a, 7001); /* below 6, which is below 4, which is below 0 */
    submit(5, &a, 5001);
    submit(3, &a, 3001);
    run();
    ask(7, 7001);
    assert_string_equal(text,
                        "tensor 'a': waiting for rank 6 (host-d)"); /* that is as far as it went */
    for (int rank = 0; rank < 8; rank++)
        if (rank % 2 == 0)
            submit(rank, &a, 1 + 1000 * (uint64_t)rank);
    run();
    assert_string_equal(ask(7, 7001), "tensor 'a': waiting for rank 1 (host-a)");
    submit(1, &a, 1001);
    run();
    expect_all(0, 1, 1);
    tree_deinit(&tree);
}

static void test_coordinator_ask_in_a_large_job_stays_short(void **state)
{
    (void)state;
    struct horon_operation a = tree_tensor(3, "a");
    tree_init(&tree, 100, TREE_STAR, 8, MIB, 1);
    submit(99, &a, 99001);
    submit(0, &a, 1);
    run();
    ask(99, 99001);
    assert_non_null(strstr(text, "waiting for rank 1 (host-a), rank 2 (host-b), rank 3"));
    assert_non_null(strstr(text, "rank 8"));
    assert_null(strstr(text, "rank 9"));
    assert_true(tree.sent_count < 40);
    tree_deinit(&tree);
}

static bool is_below(int rank, int above)
{
    while (rank > 0 && rank != above)
        rank = tree.parent[rank];
    return rank == above;
}

/* One that was stopped says nothing: its parent answers for it. */
static void test_coordinator_ask_names_a_rank_that_does_not_answer(void **state)
{
    (void)state;
    struct horon_operation a = tree_tensor(3, "a");
    for (int shape = 0; shape < TREE_SHAPE_COUNT; shape++)
        for (int stopped = 1; stopped < 7; stopped++) {
            tree_init(&tree, 7, (enum tree_shape)shape, 8, MIB, 11);
            for (int rank = 0; rank < 7; rank++)
                if (rank != stopped)
                    submit(rank, &a, 1 + 1000 * (uint64_t)rank);
            run();
            tree.stopped = stopped;
            char expected[80];
            snprintf(expected, sizeof expected, "tensor 'a': waiting for %s", tree.names[stopped]);
            for (int rank = 0; rank < 7; rank++)
                if (!is_below(rank, stopped))
                    assert_string_equal(ask(rank, 1 + 1000 * (uint64_t)rank), expected);
            tree.stopped = 0;
            submit(stopped, &a, 1 + 1000 * (uint64_t)stopped);
            run();
            expect_all(0, 1, 1);
            tree_deinit(&tree);
        }
}

/* The same tensor under two names, as two verbs give it: each side hears of the other. */
static void test_coordinator_ask_tells_what_is_waited_for_instead(void **state)
{
    (void)state;
    char expected[300], name[HORON_NAME_BYTES_MAX + 1];
    for (int shape = 0; shape < TREE_SHAPE_COUNT; shape++) {
        struct horon_operation mine = tree_tensor(3, "broadcast.w"), other = mine;
        memset(name, 'x', sizeof name - 1);
        name[sizeof name - 1] = 0;
        memcpy(name, "allreduce.\x1b", 11); /* and the longest there is */
        tree_name(&other, name);
        tree_init(&tree, 7, (enum tree_shape)shape, 8, MIB, 11);
        for (int rank = 0; rank < 7; rank++)
            submit(rank, rank == 5 ? &other : &mine, 1 + 1000 * (uint64_t)rank);
        run();
        for (int rank = 0; rank < 7; rank++) {
            if (rank == 5)
                continue;
            snprintf(
                expected, sizeof expected,
                "tensor 'broadcast.w': waiting for %s; rank 5 waits for 'allreduce.\\x1b%.50s'",
                tree.names[5], name + 11);
            assert_string_equal(ask(rank, 1 + 1000 * (uint64_t)rank), expected);
        }
        assert_non_null(strstr(ask(5, 5001), " waits for 'broadcast.w'"));
        tree_deinit(&tree);
    }
}

/* What was said is forgotten as soon as somebody contributes. */
static void test_coordinator_answer_out_of_date_is_forgotten(void **state)
{
    (void)state;
    struct horon_operation a = tree_tensor(3, "a");
    tree_init(&tree, 3, TREE_STAR, 8, MIB, 1);
    submit(0, &a, 1);
    run();
    assert_string_equal(ask(0, 1), "tensor 'a': waiting for rank 1 (host-a), rank 2 (host-b)");
    submit(1, &a, 1001);
    run();
    assert_true(horon_coordinator_explain(tree.ranks[0], 1, text, sizeof text));
    assert_string_equal(text, "tensor 'a': waiting for rank 2 (host-b)");
    horon_coordinator_ask(tree.ranks[1], 1001);
    horon_coordinator_ask(tree.ranks[1], 55); /* no such token */
    submit(2, &a, 2001);
    run(); /* the question crosses the batch */
    expect_all(0, 1, 1);
    submit_all(&a, 2);
    run();
    expect_all(1, 2, 1);
    tree_deinit(&tree);
}

/* A question is written before a batch comes, a report by that batch's id after it: two messages,
 * for the first one's count of batches would make the id mean nothing. */
static void test_coordinator_ask_before_a_batch_does_not_age_the_report(void **state)
{
    (void)state;
    struct horon_operation a = tree_tensor(3, "a"), b = tree_tensor(3, "b");
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    submit(1, &b, 1009);
    submit_all(&a, 1);
    assert_int_equal(tree_flush(&tree, 1, true), HORON_OK);
    assert_int_equal(tree_deliver(&tree, 1, true), HORON_OK);
    assert_int_equal(tree_flush(&tree, 0, true), HORON_OK);
    horon_coordinator_ask(tree.ranks[1], 1009);
    assert_int_equal(tree_deliver(&tree, 1, false), HORON_OK); /* a has an id */
    expect_all(0, 1, 1);
    submit_all(&a, 2);
    run();
    expect_all(1, 2, 1);
    assert_true(horon_coordinator_explain(tree.ranks[1], 1009, text, sizeof text));
    assert_string_equal(text, "tensor 'b': waiting for rank 0 (host-a); rank 0 waits for 'a'");
    tree_deinit(&tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinator_ask_names_the_missing_rank),
        cmocka_unit_test(test_coordinator_ask_names_several),
        cmocka_unit_test(test_coordinator_ask_in_a_large_job_stays_short),
        cmocka_unit_test(test_coordinator_ask_names_a_rank_that_does_not_answer),
        cmocka_unit_test(test_coordinator_ask_tells_what_is_waited_for_instead),
        cmocka_unit_test(test_coordinator_answer_out_of_date_is_forgotten),
        cmocka_unit_test(test_coordinator_ask_before_a_batch_does_not_age_the_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
