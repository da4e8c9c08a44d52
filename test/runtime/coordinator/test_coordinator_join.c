/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that join. First what each message and decision says; then trees of all shapes and sizes
 * under chance: every rank has a number of steps of its own, submits the same tensors in each, and
 * joins behind the last; and so again once all have. Each batch must be seen alike by all, with a
 * token by those that have not joined, and with a description by those that have.
 *
 *     test_coordinator_join [first seed] [how many]    a failure names its seed
 */
#include "expect.h"

#include "coordinator/internal.h"

#include <stdlib.h>

static void expect_joined(int rank, uint64_t sequence, int joiner, uint64_t ordered)
{
    struct horon_batch batch;
    assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
    assert_int_equal(batch.sequence, sequence);
    assert_int_equal(batch.status, HORON_OK);
    assert_int_equal(batch.joined, joiner);
    assert_int_equal(batch.ordered, ordered);
    assert_int_equal(batch.count, 0);
}

static void expect_all_joined(uint64_t sequence, int joiner)
{
    for (int rank = 0; rank < tree.size; rank++)
        expect_joined(rank, sequence, joiner, 0);
}

/* @return the description that a rank which has joined gets of an OK batch of @p count tensors */
static const struct horon_absent *expect_absent(int rank, uint64_t sequence, horon_status_t status,
                                                size_t count)
{
    static struct horon_batch batch;
    assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
    assert_int_equal(batch.sequence, sequence);
    assert_int_equal(batch.status, status);
    assert_int_equal(batch.count, count);
    assert_int_equal(batch.joined, -1);
    assert_null(batch.tokens);
    assert_non_null(batch.absent);
    return batch.absent;
}

static void join(int rank)
{
    assert_int_equal(horon_coordinator_join(tree.ranks[rank], 0), HORON_OK);
}

static void test_coordinator_join_is_over_once_all_have(void **state)
{
    (void)state;
    tree_init(&tree, 3, TREE_CHAIN, 8, MIB, 1);
    assert_int_equal(horon_coordinator_join(tree.ranks[2], 7), HORON_OK);
    assert_int_equal(horon_coordinator_join(tree.ranks[2], 7), HORON_ERR_INVALID);
    assert_int_equal(horon_coordinator_pending(tree.ranks[2]), 1);
    run();
    for (int rank = 0; rank < 3; rank++)
        expect_joined(rank, 0, 2, 7);
    join(0);
    run();
    expect_all_joined(1, 0);
    char text[200];
    horon_coordinator_explain_join(tree.ranks[2], text, sizeof text);
    assert_string_equal(text, "waiting for rank 1 (host-a) to join");
    assert_int_equal(horon_coordinator_awaited_join(tree.ranks[2]), 1);
    struct horon_operation a = tree_tensor(3, "a");
    assert_int_equal(tree_submit(tree.ranks[0], &a, 1), HORON_ERR_INVALID);
    join(1);
    run();
    expect_all_joined(2, 1);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(horon_coordinator_pending(tree.ranks[rank]), 0);
        assert_int_equal(horon_coordinator_decisions(tree.ranks[rank]), 3);
    }
    submit_all(&a, 1); /* as if nobody ever had */
    run();
    expect_all(3, 1, 1);
    tree_deinit(&tree);
}

static void test_coordinator_join_waits_for_what_is_pending(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = tree_tensor(3, "a");
    submit(1, &a, 1001);
    assert_int_equal(horon_coordinator_join(tree.ranks[1], 0), HORON_ERR_INVALID);
    submit(0, &a, 1);
    run();
    expect_all(0, 1, 1);
    join(1);
    run();
    expect_all_joined(1, 1);
    tree_deinit(&tree);
}

/* What was waiting for the rank alone is decided once it joins, and it is told what that is. */
static void test_coordinator_joined_rank_is_told_of_tensors_it_never_saw(void **state)
{
    (void)state;
    for (size_t cache = 0; cache < 3; cache++) {
        tree_init(&tree, 3, TREE_STAR, cache, MIB, 1);
        struct horon_operation a = tree_tensor(3, "a"), b = tree_tensor(5, "b");
        for (int rank = 0; rank < 2; rank++) {
            submit(rank, &a, 1 + 1000 * (uint64_t)rank);
            submit(rank, &b, 2 + 1000 * (uint64_t)rank);
        }
        run();
        expect_no_batches();
        join(2);
        run();
        expect_all_joined(0, 2);
        for (int rank = 0; rank < 2; rank++)
            expect_batch(rank, 1, HORON_OK, 1 + 1000 * (uint64_t)rank, 2);
        const struct horon_absent *absent = expect_absent(2, 1, HORON_OK, 2);
        assert_string_equal(absent->name, "a");
        assert_int_equal(absent->name_hash, a.name_hash);
        assert_int_equal(absent->elements, 8);
        assert_memory_equal(&absent->agreed, &a.agreed, sizeof a.agreed);
        for (int rank = 0; rank < 2; rank++)
            submit(rank, &a, 3 + 1000 * (uint64_t)rank); /* known by now, if there is a cache */
        run();
        for (int rank = 0; rank < 2; rank++)
            expect_batch(rank, 2, HORON_OK, 3 + 1000 * (uint64_t)rank, 1);
        assert_int_equal(expect_absent(2, 2, HORON_OK, 1)->elements, 3);
        tree_deinit(&tree);
    }
}

static void test_coordinator_joined_root_fails_the_operation_by_name(void **state)
{
    (void)state;
    for (int grouped = 0; grouped < 2; grouped++) {
        tree_init(&tree, 3, TREE_CHAIN, 8, MIB, 1);
        struct horon_operation a = tree_tensor(3, "a"), b = tree_tensor(3, "b");
        a.agreed.verb = HORON_BROADCAST;
        a.agreed.root = 1;
        if (grouped) {
            a.agreed.group_hash = b.agreed.group_hash = 99;
            a.agreed.group_size = b.agreed.group_size = 2;
            b.agreed.group_index = 1;
        }
        join(1);
        run();
        expect_all_joined(0, 1);
        for (int rank = 0; rank < 3; rank += 2) {
            submit(rank, &a, 1 + 1000 * (uint64_t)rank);
            if (grouped)
                submit(rank, &b, 2 + 1000 * (uint64_t)rank);
        }
        run();
        for (int rank = 0; rank < 3; rank += 2) {
            struct horon_batch batch;
            assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
            assert_int_equal(batch.status, HORON_ERR_MISMATCH);
            assert_int_equal(batch.count, 1 + grouped);
            assert_int_equal(batch.blame.cause, HORON_CAUSE_JOINED);
            assert_int_equal(batch.blame.rank, 1);
            assert_non_null(
                strstr(batch.text, "tensor 'a': its root, rank 1 (host-a), has joined"));
        }
        assert_string_equal(expect_absent(1, 1, HORON_ERR_MISMATCH, 1 + (size_t)grouped)->name,
                            "a");
        tree_deinit(&tree);
    }
}

static void test_coordinator_product_with_prescale_has_no_neutral_element(void **state)
{
    (void)state;
    tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = tree_tensor(3, "a");
    a.agreed.redop = HORON_PRODUCT;
    a.agreed.prescale = 2;
    join(1);
    submit(0, &a, 1);
    run();
    expect_all_joined(0, 1);
    struct horon_batch batch;
    assert_true(horon_coordinator_next_batch(tree.ranks[0], &batch));
    assert_int_equal(batch.status, HORON_ERR_MISMATCH);
    assert_string_equal(batch.text,
                        "tensor 'a': rank 1 (host-a) has joined, and nothing is neutral "
                        "to a product with a prescale of 2");
    expect_absent(1, 1, HORON_ERR_MISMATCH, 1);
    tree_deinit(&tree);
}

static void test_coordinator_joined_rank_knows_no_splits(void **state)
{
    (void)state;
    for (int even = 0; even < 2; even++) {
        tree_init(&tree, 2, TREE_STAR, 8, MIB, 1);
        struct horon_operation a = tree_tensor(3, "a");
        a.agreed.verb = HORON_REDUCESCATTER;
        a.agreed.root = even ? 0 : 5; /* a hash */
        join(1);
        submit(0, &a, 1);
        run();
        expect_all_joined(0, 1);
        struct horon_batch batch;
        assert_true(horon_coordinator_next_batch(tree.ranks[0], &batch));
        assert_int_equal(batch.status, even ? HORON_OK : HORON_ERR_MISMATCH);
        if (!even)
            assert_string_equal(batch.text, "tensor 'a': rank 1 (host-a) has joined, and knows "
                                            "nothing of its splits");
        tree_deinit(&tree);
    }
}

/* A tensor that waits names the ranks it waits for, and none that has joined. */
static void test_coordinator_joined_rank_is_not_awaited(void **state)
{
    (void)state;
    tree_init(&tree, 4, TREE_STAR, 8, MIB, 1);
    struct horon_operation a = tree_tensor(3, "a");
    char text[200];
    submit(0, &a, 1);
    join(2);
    run();
    horon_coordinator_ask(tree.ranks[0], 1);
    run();
    assert_true(horon_coordinator_explain(tree.ranks[0], 1, text, sizeof text));
    assert_string_equal(text, "tensor 'a': waiting for rank 1 (host-a), rank 3 (host-b)");
    assert_int_equal(horon_coordinator_awaited(tree.ranks[0], 1), 1);
    tree_deinit(&tree);
}

/* While nobody has joined, no message is longer than before the join existed. */
static void test_coordinator_join_that_is_over_costs_nothing(void **state)
{
    (void)state;
    size_t bytes[2];
    for (int joined = 0; joined < 2; joined++) {
        tree_init(&tree, 4, TREE_BINOMIAL, 8, MIB, 1);
        for (int rank = 0; rank < 4 && joined; rank++)
            join(rank);
        run();
        for (int rank = 0; rank < 4 && joined; rank++)
            for (int joiner = 0; joiner < 4; joiner++) {
                struct horon_batch batch;
                assert_true(horon_coordinator_next_batch(tree.ranks[rank], &batch));
            }
        bytes[joined] = tree.sent_bytes;
        struct horon_operation a = tree_tensor(3, "a");
        for (int i = 0; i < 3; i++) {
            submit_all(&a, 1);
            run();
            expect_all((uint64_t)(joined * 4 + i), 1, 1);
        }
        bytes[joined] = tree.sent_bytes - bytes[joined];
        tree_deinit(&tree);
    }
    assert_int_equal(bytes[0], bytes[1]);
}

/* ---- under chance ---------------------------------------------------------------------------- */

enum { RANKS_MAX = 17, TENSORS_MAX = 6, STEPS_MAX = 4, EPOCHS = 3, DECISIONS_MAX = 2000 };

struct decision {
    horon_status_t status;
    int joined, count;
    int tensors[TENSORS_MAX];
};

static struct {
    uint64_t seed, random;
    int tensors;
    bool renames, reshapes;
    int epoch[RANKS_MAX], step[RANKS_MAX], steps[RANKS_MAX][EPOCHS];
    bool begun[RANKS_MAX][TENSORS_MAX], in_flight[RANKS_MAX][TENSORS_MAX];
    bool cancelled[RANKS_MAX][TENSORS_MAX];
    bool joins[RANKS_MAX];             /* this rank has joined and waits */
    bool joined[RANKS_MAX][RANKS_MAX]; /* what the first knows of the second */
    int joined_count[RANKS_MAX], last[RANKS_MAX];
    uint64_t seen[RANKS_MAX];
    struct decision decisions[DECISIONS_MAX];
    uint64_t decision_count, absent_count, failed_count;
} w;

static uint64_t first_seed = 1, seed_count = 1500;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("seed %llu: ", (unsigned long long)w.seed);                                \
            assert_true(condition);                                                                \
        }                                                                                          \
    } while (0)

static bool chance(unsigned percent)
{
    return tree_below(&w.random, 100) < percent;
}

/* Tensor 0 is a broadcast, if there are two. */
static struct horon_operation describe(int rank, int tensor)
{
    const int step = w.step[rank], epoch = w.epoch[rank];
    const uint64_t count = 1 + (w.reshapes ? (uint64_t)(step + tensor) % 3 : 0);
    struct horon_operation op = w.renames ? tree_tensor(count, "%d.%d.%d", epoch, step, tensor)
                                          : tree_tensor(count, "t%d", tensor);
    if (tensor == 0 && w.tensors > 1) {
        op.agreed.verb = HORON_BROADCAST;
        op.agreed.root = (int32_t)((uint64_t)(epoch + step) % (uint64_t)tree.size);
    }
    horon_signature_make_canonical(&op.agreed);
    return op;
}

static uint64_t token_of(int rank, int tensor)
{
    return (uint64_t)rank * 1000 + (uint64_t)tensor;
}

static void see_joined(int rank, int joiner)
{
    CHECK(!w.joined[rank][joiner]);
    w.joined[rank][joiner] = true;
    if (++w.joined_count[rank] < tree.size)
        return;
    w.joined_count[rank] = 0;
    memset(w.joined[rank], 0, sizeof w.joined[rank]);
    CHECK(w.joins[rank]);
    w.joins[rank] = false;
    w.step[rank] = 0;
    w.epoch[rank]++;
    w.last[rank] = joiner;
}

static void see_token(int rank, const struct horon_batch *batch, int tensor)
{
    const struct horon_operation op = describe(rank, tensor);
    CHECK(w.in_flight[rank][tensor]);
    CHECK(!w.joins[rank]);
    const bool fails = op.agreed.verb == HORON_BROADCAST && w.joined[rank][op.agreed.root];
    CHECK(fails == (batch->status != HORON_OK));
    w.in_flight[rank][tensor] = false;
    w.begun[rank][tensor] = true;
}

static void see(int rank, const struct horon_batch *batch)
{
    struct decision mine = {
        .status = batch->status, .joined = batch->joined, .count = (int)batch->count};
    CHECK(batch->sequence == w.seen[rank]++);
    CHECK((batch->absent != NULL) == (w.joined[rank][rank] && batch->joined < 0));
    if (batch->joined >= 0)
        see_joined(rank, batch->joined);
    for (size_t i = 0; i < batch->count && !batch->absent; i++) {
        mine.tensors[i] = (int)(batch->tokens[i] % 1000);
        see_token(rank, batch, mine.tensors[i]);
    }
    struct decision *first = &w.decisions[batch->sequence];
    if (batch->sequence == w.decision_count) {
        CHECK(w.decision_count < DECISIONS_MAX);
        *first = mine;
        w.decision_count++;
        w.failed_count += batch->status != HORON_OK;
    }
    CHECK(first->status == mine.status);
    CHECK(first->joined == mine.joined);
    CHECK(first->count == mine.count);
    if (!batch->absent)
        return;
    w.absent_count++;
    CHECK(batch->status != HORON_OK || horon_signature_is_valid(&batch->absent->agreed));
    CHECK(batch->status != HORON_OK || batch->absent->elements >= batch->count);
}

static void drain(int rank)
{
    struct horon_batch batch;
    while (horon_coordinator_next_batch(tree.ranks[rank], &batch)) {
        if (batch.sequence != HORON_SEQUENCE_LOCAL) {
            see(rank, &batch);
            continue;
        }
        const int tensor = (int)(batch.tokens[0] % 1000);
        CHECK(batch.status == HORON_ERR_CANCELLED && w.cancelled[rank][tensor]);
        w.in_flight[rank][tensor] = false; /* and it is submitted again */
    }
}

static void submit_one(int rank, int tensor)
{
    const struct horon_operation op = describe(rank, tensor);
    CHECK(horon_coordinator_submit(tree.ranks[rank], &op, token_of(rank, tensor)) == HORON_OK);
    w.in_flight[rank][tensor] = true;
    w.cancelled[rank][tensor] = false;
}

/* The next tensor, in any order; or the next step; or the join. */
static void act(int rank)
{
    const int start = (int)tree_below(&w.random, (uint64_t)w.tensors);
    bool idle = true;
    if (w.joins[rank] || w.epoch[rank] == EPOCHS)
        return;
    for (int i = 0; i < w.tensors && w.step[rank] < w.steps[rank][w.epoch[rank]]; i++) {
        const int tensor = (start + i) % w.tensors;
        idle &= w.begun[rank][tensor];
        if (w.begun[rank][tensor])
            continue;
        if (w.in_flight[rank][tensor] && !w.cancelled[rank][tensor] && chance(3)) {
            w.cancelled[rank][tensor] = true;
            horon_coordinator_cancel(tree.ranks[rank], token_of(rank, tensor));
            drain(rank);
        } else if (!w.in_flight[rank][tensor]) {
            submit_one(rank, tensor);
            return;
        }
    }
    if (!idle)
        return;
    memset(w.begun[rank], 0, sizeof w.begun[rank]);
    if (w.step[rank] < w.steps[rank][w.epoch[rank]])
        w.step[rank]++;
    if (w.step[rank] < w.steps[rank][w.epoch[rank]])
        return;
    join(rank);
    w.joins[rank] = true;
    drain(rank);
}

static bool all_done(void)
{
    for (int rank = 0; rank < tree.size; rank++)
        if (w.epoch[rank] < EPOCHS)
            return false;
    return true;
}

static void draw(uint64_t seed)
{
    static const size_t caches[] = {0, 1, 2, 3, 1000};
    static const uint64_t fusions[] = {0, 20, 1 << 20};
    memset(&w, 0, sizeof w);
    w.seed = seed;
    w.random = seed * 31;
    const int size = 1 + (int)(seed % RANKS_MAX);
    w.tensors = 1 + (int)tree_below(&w.random, TENSORS_MAX);
    w.renames = chance(30);
    w.reshapes = chance(40);
    for (int rank = 0; rank < size; rank++)
        for (int epoch = 0; epoch < EPOCHS; epoch++)
            w.steps[rank][epoch] = (int)tree_below(&w.random, STEPS_MAX + 1);
    tree_init(&tree, size, (enum tree_shape)(seed / RANKS_MAX % TREE_SHAPE_COUNT),
              caches[tree_below(&w.random, 5)], fusions[tree_below(&w.random, 3)], seed);
}

static void run_seed(uint64_t seed)
{
    draw(seed);
    const unsigned deliver = 20 + (unsigned)tree_below(&w.random, 75);
    for (int moves = 0; !all_done(); moves++) {
        int rank = (int)tree_below(&w.random, (uint64_t)tree.size);
        CHECK(moves < 200000);
        if (tree.in_flight > 0 && chance(deliver)) {
            CHECK(tree_deliver_any(&tree, &rank) == HORON_OK);
            drain(rank);
        } else {
            act(rank);
        }
        if (chance(60)) {
            CHECK(tree_flush(&tree, rank, chance(70)) == HORON_OK);
            drain(rank);
        }
    }
    for (int rank = 0; rank < tree.size; rank++) {
        const struct horon_coordinator *c = tree.ranks[rank];
        CHECK(w.seen[rank] == w.decision_count);
        CHECK(w.last[rank] == w.last[0]);
        CHECK(horon_coordinator_pending(c) == 0);
        CHECK(c->joined_count == 0 && c->joined_seat_count == 0);
        for (uint32_t i = 0; i < c->entry_used; i++)
            CHECK(!c->cold[i].name || c->entries[i].state == COORD_IDLE);
    }
    tree_deinit(&tree);
}

static void test_coordinator_random_joins_agree_and_finish(void **state)
{
    (void)state;
    uint64_t absent = 0, failed = 0;
    for (uint64_t i = 0; i < seed_count; i++) {
        run_seed(first_seed + i);
        absent += w.absent_count;
        failed += w.failed_count;
    }
    print_message("%llu batches of ranks that had joined; %llu failed for want of a root\n",
                  (unsigned long long)absent, (unsigned long long)failed);
    if (seed_count >= 1000) {
        assert_true(absent > 1000);
        assert_true(failed > 100);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        first_seed = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        seed_count = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinator_join_is_over_once_all_have),
        cmocka_unit_test(test_coordinator_join_waits_for_what_is_pending),
        cmocka_unit_test(test_coordinator_joined_rank_is_told_of_tensors_it_never_saw),
        cmocka_unit_test(test_coordinator_joined_root_fails_the_operation_by_name),
        cmocka_unit_test(test_coordinator_product_with_prescale_has_no_neutral_element),
        cmocka_unit_test(test_coordinator_joined_rank_knows_no_splits),
        cmocka_unit_test(test_coordinator_joined_rank_is_not_awaited),
        cmocka_unit_test(test_coordinator_join_that_is_over_costs_nothing),
        cmocka_unit_test(test_coordinator_random_joins_agree_and_finish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
