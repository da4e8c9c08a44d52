/* SPDX-License-Identifier: Apache-2.0 */
/* Matching by name: which ranks have it, when a batch comes, what it says. Small trees, told step
 * by step. */
#include "expect.h"

#include "config.h"
#include "coordinator/internal.h"

static void test_coordinator_one_rank_decides_alone(void **state)
{
    (void)state;
    tree_init(&tree, 1, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = tree_tensor(3, "a"), b = tree_tensor(4, "b");
    submit(0, &a, 1);
    submit(0, &b, 2);
    assert_int_equal(horon_coordinator_pending(tree.ranks[0]), 2);
    expect_no_batch(0);
    assert_int_equal(tree_run(&tree), HORON_OK);
    expect_batch(0, 0, HORON_OK, 1, 2);
    expect_no_batch(0);
    assert_int_equal(horon_coordinator_pending(tree.ranks[0]), 0);
    tree_deinit(&tree);
}

static void test_coordinator_name_missing_on_one_rank_waits(void **state)
{
    (void)state;
    tree_init(&tree, 3, TREE_CHAIN, 8, MIB, 1);
    struct horon_operation a = tree_tensor(3, "a"), b = tree_tensor(3, "b");
    submit(0, &a, 1);
    submit(1, &a, 1001);
    submit(2, &b, 2002);
    assert_int_equal(tree_run(&tree), HORON_OK);
    for (int rank = 0; rank < 3; rank++)
        expect_no_batch(rank);
    char text[200];
    assert_true(horon_coordinator_explain(tree.ranks[1], 1001, text, sizeof text));
    assert_string_equal(text, "tensor 'a': waiting for rank 2 (host-b)");
    assert_true(horon_coordinator_explain(tree.ranks[2], 2002, text, sizeof text));
    assert_string_equal(text, "tensor 'b': reported to rank 1 (host-a); waiting for other ranks");
    assert_false(horon_coordinator_explain(tree.ranks[2], 1, text, sizeof text));
    submit(2, &a, 2001);
    assert_int_equal(tree_run(&tree), HORON_OK);
    expect_batch(0, 0, HORON_OK, 1, 1);
    expect_batch(1, 0, HORON_OK, 1001, 1);
    expect_batch(2, 0, HORON_OK, 2001, 1);
    assert_int_equal(horon_coordinator_pending(tree.ranks[2]), 1);
    tree_deinit(&tree);
}

static void test_coordinator_decide_false_holds_back(void **state)
{
    (void)state;
    tree_init(&tree, 1, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = tree_tensor(3, "a"), b = tree_tensor(3, "b");
    submit(0, &a, 1);
    assert_int_equal(tree_flush(&tree, 0, false), HORON_OK);
    expect_no_batch(0);
    submit(0, &b, 2);
    assert_int_equal(tree_flush(&tree, 0, true), HORON_OK);
    expect_batch(0, 0, HORON_OK, 1, 2);
    tree_deinit(&tree);
}

static void test_coordinator_duplicate_in_flight_is_refused(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = tree_tensor(3, "a");
    for (int round = 0; round < 3; round++) {
        submit_all(&a, 1);
        assert_int_equal(tree_submit(tree.ranks[0], &a, 9), HORON_ERR_DUPLICATE);
        assert_int_equal(tree_submit(tree.ranks[1], &a, 9), HORON_ERR_DUPLICATE);
        assert_int_equal(tree_run(&tree), HORON_OK);
        expect_batch(0, (uint64_t)round, HORON_OK, 1, 1);
        expect_batch(1, (uint64_t)round, HORON_OK, 1001, 1);
    }
    tree_deinit(&tree);
}

static void test_coordinator_handle_that_is_none_is_refused(void **state)
{
    (void)state;
    tree_init(&tree, 1, TREE_STAR, 8, MIB, 1);
    assert_int_equal(horon_coordinator_submit_handle(tree.ranks[0], 0, 1), HORON_ERR_INVALID);
    assert_int_equal(horon_coordinator_pending(tree.ranks[0]), 0);
    tree_deinit(&tree);
}

/* ---- Mismatches: each thing that must agree, alone ------------------------------------------- */

struct mismatch_case {
    void (*change)(struct horon_operation *tensor);
    const char *text; /* for np 2, rank 1 changed */
};

static void change_verb(struct horon_operation *tensor)
{
    tensor->agreed.verb = HORON_BROADCAST;
}
static void change_dtype(struct horon_operation *tensor)
{
    tensor->agreed.dtype = HORON_FLOAT64;
}
static void change_memory(struct horon_operation *tensor)
{
    tensor->agreed.memory = HORON_MEMORY_CUDA;
}
static void change_dim(struct horon_operation *tensor)
{
    tensor->agreed.shape[1] = 3;
}
static void change_ndim(struct horon_operation *tensor)
{
    tensor->agreed.ndim = 1;
    tensor->agreed.shape[0] = 8;
}
static void change_redop(struct horon_operation *tensor)
{
    tensor->agreed.redop = HORON_MAX;
}
static void change_prescale(struct horon_operation *tensor)
{
    tensor->agreed.prescale = 0.5;
}
static void change_postscale(struct horon_operation *tensor)
{
    tensor->agreed.postscale = 0.25;
}
static void change_set(struct horon_operation *tensor)
{
    tensor->agreed.team = 7;
}
static void change_group(struct horon_operation *tensor)
{
    tensor->agreed.group_hash = 0xabc;
    tensor->agreed.group_size = 1;
}

static const struct mismatch_case mismatches[] = {
    {change_verb, "tensor 'x': rank 0 (host-a) has allreduce float32 [4, 2], rank 1 (host-a) has "
                  "broadcast float32 [4, 2]: verbs differ"},
    {change_dtype, "tensor 'x': rank 0 (host-a) has float32 [4, 2], rank 1 (host-a) has float64 "
                   "[4, 2]: dtypes differ"},
    {change_memory, "tensor 'x': rank 0 (host-a) has float32 [4, 2] in host memory, rank 1 "
                    "(host-a) has float32 [4, 2] in cuda memory: kinds of memory differ"},
    {change_dim, "tensor 'x': rank 0 (host-a) has float32 [4, 2], rank 1 (host-a) has float32 "
                 "[4, 3]: shapes differ"},
    {change_ndim, "tensor 'x': rank 0 (host-a) has float32 [4, 2], rank 1 (host-a) has float32 "
                  "[8]: shapes differ"},
    {change_redop, "tensor 'x': rank 0 (host-a) has float32 [4, 2] sum, rank 1 (host-a) has "
                   "float32 [4, 2] max: reductions differ"},
    {change_prescale, "tensor 'x': rank 0 (host-a) has float32 [4, 2] with prescale 1, rank 1 "
                      "(host-a) has float32 [4, 2] with prescale 0.5: prescales differ"},
    {change_postscale, "tensor 'x': rank 0 (host-a) has float32 [4, 2] with postscale 1, rank 1 "
                       "(host-a) has float32 [4, 2] with postscale 0.25: postscales differ"},
    {change_set, "tensor 'x': rank 0 (host-a) has float32 [4, 2] on process set 0, rank 1 "
                 "(host-a) has float32 [4, 2] on process set 7: process sets differ"},
    {change_group, "tensor 'x': rank 0 (host-a) has float32 [4, 2] in no group, rank 1 (host-a) "
                   "has float32 [4, 2] as tensor 1 of a group of 1: groups differ"},
};
#define MISMATCH_COUNT (sizeof mismatches / sizeof *mismatches)

static struct horon_operation tensor_x(void)
{
    struct horon_operation x = tree_tensor(4, "x");
    x.agreed.ndim = 2;
    x.agreed.shape[1] = 2;
    return x;
}

static void test_coordinator_mismatch_text_names_both_sides(void **state)
{
    (void)state;
    for (size_t i = 0; i < MISMATCH_COUNT; i++) {
        tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
        struct horon_operation x = tensor_x(), y = x;
        mismatches[i].change(&y);
        submit(0, &x, 1);
        submit(1, &y, 1001);
        assert_int_equal(tree_run(&tree), HORON_OK);
        assert_string_equal(expect_failure(0, 1), mismatches[i].text);
        tree_deinit(&tree);
    }
}

/* The same for a name in the cache, where the one side reports by id. */
static void test_coordinator_mismatch_with_cached_name_is_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < MISMATCH_COUNT; i++) {
        tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
        struct horon_operation x = tensor_x(), y = x;
        submit_all(&x, 1);
        assert_int_equal(tree_run(&tree), HORON_OK);
        expect_batch(0, 0, HORON_OK, 1, 1);
        expect_batch(1, 0, HORON_OK, 1001, 1);
        mismatches[i].change(&y);
        submit(0, &x, 2);
        submit(1, &y, 1002);
        assert_int_equal(tree_run(&tree), HORON_OK);
        assert_string_equal(expect_failure(1, 2), mismatches[i].text);
        submit_all(&x, 3); /* and the cache still knows x */
        tree.sent_bytes = 0;
        assert_int_equal(tree_run(&tree), HORON_OK);
        expect_batch(0, 2, HORON_OK, 3, 1);
        assert_true(tree.sent_bytes < 16);
        tree_deinit(&tree);
    }
}

/* Whatever pair of ranks differs, in every shape, all hear the same and of a rank on each side. */
static void test_coordinator_mismatch_anywhere_in_tree_reaches_all(void **state)
{
    (void)state;
    for (int shape = 0; shape < TREE_SHAPE_COUNT; shape++)
        for (int odd = 0; odd < 7; odd++) {
            tree_init(&tree, 7, (enum tree_shape)shape, 8, MIB, 5);
            struct horon_operation x = tensor_x(), y = x;
            change_dtype(&y);
            for (int rank = 6; rank >= 0; rank--) {
                assert_int_equal(tree_run(&tree), HORON_OK);
                expect_no_batch(rank);
                submit(rank, rank == odd ? &y : &x, 1 + 1000 * (uint64_t)rank);
            }
            assert_int_equal(tree_run(&tree), HORON_OK);
            const char *text = expect_failure(0, 1);
            char side[64];
            snprintf(side, sizeof side, "%s has float64 [4, 2]", tree.names[odd]);
            assert_non_null(strstr(text, side));
            assert_non_null(strstr(text, "has float32 [4, 2]"));
            tree_deinit(&tree);
        }
}

static void test_coordinator_fields_without_meaning_may_differ(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation x = tensor_x(), y = x;
    y.agreed.root = 1; /* no root on an allreduce */
    submit(0, &x, 1);
    submit(1, &y, 1001);
    x.agreed.verb = y.agreed.verb =
        HORON_ALLGATHER; /* rows may differ, and there is no reduction */
    tree_name(&x, "gather");
    tree_name(&y, "gather");
    y.agreed.shape[0] = 17;
    y.agreed.redop = HORON_MIN;
    y.agreed.prescale = 2;
    submit(0, &x, 2);
    submit(1, &y, 1002);
    x.agreed.verb = y.agreed.verb = HORON_BARRIER; /* nothing to agree on */
    tree_name(&x, "barrier");
    tree_name(&y, "barrier");
    y.agreed.dtype = HORON_INT8;
    y.agreed.ndim = 0;
    submit(0, &x, 3);
    submit(1, &y, 1003);
    assert_int_equal(tree_run(&tree), HORON_OK);
    for (int rank = 0; rank < 2; rank++)
        for (uint64_t i = 0; i < 3; i++)
            expect_batch(rank, i, HORON_OK, 1 + i + 1000 * (uint64_t)rank, 1);
    tree_deinit(&tree);
}

static void test_coordinator_allgather_columns_must_agree(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation x = tensor_x(), y = x;
    x.agreed.verb = y.agreed.verb = HORON_ALLGATHER;
    y.agreed.shape[0] = 5;
    y.agreed.shape[1] = 9;
    submit(0, &x, 1);
    submit(1, &y, 1001);
    assert_int_equal(tree_run(&tree), HORON_OK);
    assert_string_equal(expect_failure(0, 1),
                        "tensor 'x': rank 0 (host-a) has float32 [*, 2], rank 1 (host-a) has "
                        "float32 [*, 9]: shapes differ");
    tree_deinit(&tree);
}

static void test_coordinator_broadcast_roots_must_agree(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation x = tensor_x(), y = x;
    x.agreed.verb = y.agreed.verb = HORON_BROADCAST;
    y.agreed.root = 1;
    submit(0, &x, 1);
    submit(1, &y, 1001);
    assert_int_equal(tree_run(&tree), HORON_OK);
    assert_string_equal(expect_failure(0, 1),
                        "tensor 'x': rank 0 (host-a) has float32 [4, 2] from root 0, rank 1 "
                        "(host-a) has float32 [4, 2] from root 1: roots differ");
    tree_deinit(&tree);
}

static void test_coordinator_name_in_a_text_commands_no_terminal(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation x = tree_tensor(4, "a\nb\x1b[31m"), y = x;
    y.agreed.redop = HORON_MAX;
    char text[256];
    submit(0, &x, 1);
    assert_true(horon_coordinator_explain(tree.ranks[0], 1, text, sizeof text));
    assert_non_null(strstr(text, "tensor 'a\\nb\\x1b[31m': waiting for rank 1"));
    submit(1, &y, 1001);
    assert_int_equal(tree_run(&tree), HORON_OK);
    assert_non_null(strstr(expect_failure(0, 1), "tensor 'a\\nb\\x1b[31m': rank 0"));
    tree_deinit(&tree);
}

static void test_coordinator_longest_names_fit_text_and_messages(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 300, MIB, 1);
    struct horon_operation x = tensor_x(), y;
    for (int i = 0; i < 257; i++) {
        char digits[16], name[HORON_NAME_BYTES_MAX + 1];
        int used = snprintf(digits, sizeof digits, "%d/", i);
        memset(name, 'n', HORON_NAME_BYTES_MAX);
        name[HORON_NAME_BYTES_MAX] = 0;
        memcpy(name, digits, (size_t)used);
        tree_name(&x, name);
        y = x;
        if (i == 256)
            change_dtype(&y);
        submit(0, &x, (uint64_t)i);
        submit(1, &y, 1000 + (uint64_t)i);
    }
    assert_int_equal(tree_run(&tree), HORON_OK);
    assert_true(tree.sent_bytes > 2 * 256 * 511);
    assert_true(tree.longest_bytes <= HORON_COORDINATOR_MESSAGE_BYTES_MAX);
    for (int rank = 0; rank < 2; rank++) {
        struct horon_batch batch;
        uint64_t next = 1000 * (uint64_t)rank;
        while (horon_coordinator_next_batch(tree.ranks[rank], &batch)) {
            for (size_t i = 0; i < batch.count; i++)
                assert_int_equal(batch.tokens[i], next++);
            assert_int_equal(batch.status,
                             next == 257 + 1000 * (uint64_t)rank ? HORON_ERR_MISMATCH : HORON_OK);
            assert_true(batch.status == HORON_OK || strstr(batch.text, "dtypes differ"));
        }
        assert_int_equal(next, 257 + 1000 * (uint64_t)rank);
    }
    tree_deinit(&tree);
}

/* Of a rank that is behind: what another one may have in flight is not too much to hear of. */
static void test_coordinator_names_may_be_as_many_as_fly(void **state)
{
    size_t count = 0, i = 0;
    const struct horon_config_row *rows = horon_config_rows(&count);
    (void)state;
    while (strcmp(rows[i].name, "INFLIGHT_MAX") != 0)
        assert_true(++i < count);
    tree_init(&tree, 2, TREE_CHAIN, 8, MIB, 1);
    assert_true((int64_t)tree.ranks[0]->foreign_names_max >= rows[i].max);
    tree_deinit(&tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinator_one_rank_decides_alone),
        cmocka_unit_test(test_coordinator_name_missing_on_one_rank_waits),
        cmocka_unit_test(test_coordinator_decide_false_holds_back),
        cmocka_unit_test(test_coordinator_duplicate_in_flight_is_refused),
        cmocka_unit_test(test_coordinator_handle_that_is_none_is_refused),
        cmocka_unit_test(test_coordinator_mismatch_text_names_both_sides),
        cmocka_unit_test(test_coordinator_mismatch_with_cached_name_is_found),
        cmocka_unit_test(test_coordinator_mismatch_anywhere_in_tree_reaches_all),
        cmocka_unit_test(test_coordinator_fields_without_meaning_may_differ),
        cmocka_unit_test(test_coordinator_allgather_columns_must_agree),
        cmocka_unit_test(test_coordinator_broadcast_roots_must_agree),
        cmocka_unit_test(test_coordinator_name_in_a_text_commands_no_terminal),
        cmocka_unit_test(test_coordinator_longest_names_fit_text_and_messages),
        cmocka_unit_test(test_coordinator_names_may_be_as_many_as_fly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
