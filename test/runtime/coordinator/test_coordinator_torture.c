/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nth allocation fails, for every n: whatever was refused is reported, a refused submission
 * changes nothing, and nothing leaks. This program brings an allocator of its own.
 */
#undef NDEBUG
#include "tree.h"

#include "../../torture/alloc_failing.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct tree tree;

static struct horon_operation some(int number, bool odd)
{
    struct horon_operation tensor = tree_tensor(odd ? 7 : 8, "tensor.%d", number);
    if (number >= 6) {
        tensor.agreed.group_hash = 5;
        tensor.agreed.group_size = 3;
    }
    return tensor;
}

/* Submits on all ranks; those that are refused for want of memory are submitted again. */
static void submit_all(int number, bool odd)
{
    for (int rank = 0; rank < tree.size; rank++) {
        struct horon_operation tensor = some(number, odd && rank == 1);
        size_t pending = horon_coordinator_pending(tree.ranks[rank]);
        horon_status_t status = tree_submit(tree.ranks[rank], &tensor, (uint64_t)number);
        if (status == HORON_ERR_MEMORY) {
            assert(horon_coordinator_pending(tree.ranks[rank]) == pending);
            status = tree_submit(tree.ranks[rank], &tensor, (uint64_t)number);
        }
        assert(status == HORON_OK);
    }
}

/* Takes the batches of a rank. @return was tensor 5 among those taken back? */
static bool drain(int rank, size_t *done)
{
    struct horon_batch batch;
    bool five = false;
    while (horon_coordinator_next_batch(tree.ranks[rank], &batch)) {
        *done += batch.count;
        five = five || (batch.status == HORON_ERR_CANCELLED && batch.tokens[0] == 5);
    }
    return five;
}

/* Two steps of nine names over three ids: cached, evicted, mismatched, grouped, cancelled. @return
 * did the coordinators survive? */
static bool steps(void)
{
    size_t done = 0;
    for (int step = 0; step < 2; step++) {
        for (int number = 0; number < 9; number++)
            submit_all(number, number == 4 || (number == 7 && step == 1));
        for (int rank = 0; rank < tree.size; rank++) {
            horon_coordinator_cancel(tree.ranks[rank], 3);
            if (tree_flush(&tree, rank, false) != HORON_OK)
                return false;
        }
        horon_coordinator_cancel(tree.ranks[2], 5);
        if (tree_run(&tree) != HORON_OK)
            return false;
        struct horon_operation five = some(5, false);
        if (drain(2, &done) && tree_submit(tree.ranks[2], &five, 5) != HORON_OK)
            return false;
        if (tree_run(&tree) != HORON_OK)
            return false;
        for (int rank = 0; rank < tree.size; rank++) {
            drain(rank, &done);
            assert(horon_coordinator_pending(tree.ranks[rank]) == 0);
        }
    }
    assert(done >= 2 * 9 * 3);
    return true;
}

static void test_coordinator_any_allocation_may_fail(void **state)
{
    (void)state;
    long n = 0, ended = 0;
    for (bool failed = true; failed; n++) {
        alloc_fail_at(0, 0);
        tree_init(&tree, 3, TREE_CHAIN, 3, 50, 1);
        alloc_fail_at(n + 1, 0);
        ended += !steps();
        failed = alloc_count() > n;
        tree_deinit(&tree);
        assert_int_equal(alloc_live(), 0);
    }
    assert_true(n > 100);
    assert_true(ended > 20); /* where a message was half read or half written */
}

static void test_coordinator_create_without_memory_fails_clean(void **state)
{
    (void)state;
    const int children[] = {1, 2};
    const struct horon_coordinator_options options = {.rank = 0,
                                                      .size = 3,
                                                      .parent = -1,
                                                      .children = children,
                                                      .child_count = 2,
                                                      .cache_entries = 10};
    struct horon_coordinator *coordinator = NULL;
    long n = 0;
    for (; !coordinator; n++) {
        alloc_fail_at(n + 1, 0);
        horon_status_t status = horon_coordinator_create(&options, &coordinator);
        assert_int_equal(status, coordinator ? HORON_OK : HORON_ERR_MEMORY);
        assert_true(coordinator || alloc_live() == 0);
    }
    assert_true(n > 4);
    horon_coordinator_destroy(coordinator);
    assert_int_equal(alloc_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinator_any_allocation_may_fail),
        cmocka_unit_test(test_coordinator_create_without_memory_fails_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
