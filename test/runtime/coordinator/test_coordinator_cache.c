/* SPDX-License-Identifier: Apache-2.0 */
/* Ids for known names: they make messages small, change hands, and are understood by ranks that are
 * behind. */
#include "expect.h"

static void test_coordinator_known_names_travel_as_runs(void **state)
{
    (void)state;
    tree_init(&tree, 3, TREE_CHAIN, 2000, 1u << 30, 1);
    for (uint64_t round = 0; round < 3; round++) {
        tree.sent_bytes = 0;
        tree.sent_count = 0;
        for (uint64_t i = 0; i < 997; i++) {
            struct horon_operation tensor = tree_tensor(16, "tensor.%d", (int)i);
            submit_all(&tensor, i);
        }
        run();
        expect_all(round, 0, 997);
        assert_int_equal(tree.sent_count, 4); /* two edges, up and down */
        if (round > 0)
            assert_true(tree.sent_bytes < 60);
    }
    tree_deinit(&tree);
}

static void test_coordinator_handles_are_the_same_as_names(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = tree_tensor(5, "a"), b = tree_tensor(6, "a");
    uint32_t first, second, other;
    assert_int_equal(tree_intern(tree.ranks[0], &a, &first), HORON_OK);
    assert_int_equal(tree_intern(tree.ranks[0], &a, &second), HORON_OK);
    assert_int_equal(tree_intern(tree.ranks[0], &b, &other), HORON_OK);
    const uint32_t handles[] = {first, second, first, other, second};
    for (uint64_t round = 0; round < 5; round++) {
        uint32_t handle = handles[round];
        assert_int_equal(horon_coordinator_submit_handle(tree.ranks[0], handle, round), HORON_OK);
        assert_int_equal(horon_coordinator_submit_handle(tree.ranks[0], second, 9),
                         HORON_ERR_DUPLICATE);
        submit(1, handle == other ? &b : &a, 1000 + round);
        run();
        expect_all(round, round, 1);
    }
    assert_int_equal(horon_coordinator_submit_handle(tree.ranks[0], first, 7), HORON_OK);
    horon_coordinator_drop(tree.ranks[0], first); /* in flight: it goes on */
    horon_coordinator_drop(tree.ranks[0], first); /* nothing more to drop */
    assert_int_equal(horon_coordinator_submit_handle(tree.ranks[0], first, 8), HORON_ERR_INVALID);
    submit(1, &a, 1007);
    run();
    expect_all(5, 7, 1);
    horon_coordinator_drop(tree.ranks[0], second);
    horon_coordinator_drop(tree.ranks[0], other);
    tree_deinit(&tree);
}

static void test_coordinator_shape_changed_everywhere_is_learned(void **state)
{
    (void)state;
    tree_init(&tree, 3, TREE_STAR, 8, MIB, 1);
    for (uint64_t round = 0; round < 6; round++) {
        struct horon_operation a = tree_tensor(round < 3 ? 32 : 7, "a");
        tree.sent_bytes = 0;
        submit_all(&a, round);
        run();
        expect_all(round, round, 1);
        bool learns = round == 0 || round == 3;
        assert_int_equal(tree.sent_bytes < 32, !learns);
    }
    tree_deinit(&tree);
}

/* With fewer ids than names everything goes on, and an id that changes hands means the right name.
 */
static void test_coordinator_tiny_cache_still_matches(void **state)
{
    (void)state;
    static const size_t capacities[] = {0, 1, 2, 3, 7};
    for (size_t i = 0; i < sizeof capacities / sizeof *capacities; i++) {
        tree_init(&tree, 3, TREE_CHAIN, capacities[i], 0, 1);
        uint64_t sequence = 0;
        for (uint64_t round = 0; round < 40; round++) {
            struct horon_operation tensor = tree_tensor(1, "t%d", (int)(round * round % 5));
            submit_all(&tensor, round);
            run();
            expect_all(sequence++, round, 1);
        }
        tree_deinit(&tree);
    }
}

static void test_coordinator_least_recently_decided_is_evicted(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 2, 0, 1);
    struct horon_operation a = tree_tensor(1, "a"), b = tree_tensor(1, "b"),
                           c = tree_tensor(1, "c");
    const struct horon_operation *order[] = {&a, &b, &a, &c, &a, &b};
    const bool known[] = {false, false, true, false, true, false}; /* c took the place of b */
    for (uint64_t i = 0; i < 6; i++) {
        submit_all(order[i], i);
        assert_int_equal(tree_flush(&tree, 1, true), HORON_OK);
        assert_int_equal(tree.up[1].first->bytes < 6, known[i]);
        run();
        expect_all(i, i, 1);
    }
    tree_deinit(&tree);
}

/* Rank 2 reports by an id that rank 0 has given to another name meanwhile: what it meant counts. */
static void test_coordinator_report_by_lost_id_is_understood(void **state)
{
    (void)state;
    tree_init(&tree, 3, TREE_CHAIN, 1, 0, 1);
    struct horon_operation a = tree_tensor(1, "a"), b = tree_tensor(1, "b");
    submit_all(&a, 0);
    run();
    expect_all(0, 0, 1); /* a has the id */
    submit_all(&b, 1);
    for (int rank = 2; rank > 0; rank--) {
        assert_int_equal(tree_flush(&tree, rank, true), HORON_OK);
        assert_int_equal(tree_deliver(&tree, rank, true), HORON_OK);
    }
    assert_int_equal(tree_flush(&tree, 0, true), HORON_OK); /* b is decided, and has the id */
    assert_int_equal(tree_deliver(&tree, 1, false), HORON_OK);
    submit_all(&a, 2);
    assert_int_equal(tree_flush(&tree, 2, true), HORON_OK); /* rank 2 has not heard yet */
    assert_true(tree.up[2].first->bytes < 6);               /* by id */
    run();
    expect_all(1, 1, 1);
    expect_all(2, 2, 1);
    tree_deinit(&tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinator_known_names_travel_as_runs),
        cmocka_unit_test(test_coordinator_handles_are_the_same_as_names),
        cmocka_unit_test(test_coordinator_shape_changed_everywhere_is_learned),
        cmocka_unit_test(test_coordinator_tiny_cache_still_matches),
        cmocka_unit_test(test_coordinator_least_recently_decided_is_evicted),
        cmocka_unit_test(test_coordinator_report_by_lost_id_is_understood),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
