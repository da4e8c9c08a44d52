/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that make no sense: each kind is refused with the peer's name, and chance finds no
 * crash. */
#include "expect.h"

#include "coordinator/internal.h"

#include <stdlib.h>

static struct horon_error error;

/* Rank 1 of a chain of three: rank 0 is its parent, rank 2 its child. It and rank 2 have passed one
 * batch, which gave id 0 to "known". */
static void open_middle(void)
{
    struct horon_operation known = tree_tensor(1, "known");
    memset(&error, 0, sizeof error);
    tree_init(&tree, 3, TREE_CHAIN, 4, MIB, 1);
    submit_all(&known, 1);
    run();
    expect_all(0, 1, 1);
}

/* The message must be refused with a text that begins with the peer's name and contains @p why. */
static void expect_refusal(int from, const struct horon_writer *message, const char *why)
{
    assert_true(message->ok);
    assert_int_equal(
        horon_coordinator_receive(tree.ranks[1], from, message->bytes, message->used, &error),
        HORON_ERR_PROTO);
    assert_int_equal(error.status, HORON_ERR_PROTO);
    assert_memory_equal(error.text, tree.names[from], strlen(tree.names[from]));
    if (!strstr(error.text, why))
        fail_msg("'%s' lacks '%s'", error.text, why);
    /* and from now on it does nothing */
    struct horon_operation tensor = tree_tensor(1, "later");
    assert_int_equal(horon_coordinator_flush(tree.ranks[1], true), HORON_ERR_PROTO);
    assert_int_equal(tree_submit(tree.ranks[1], &tensor, 5), HORON_ERR_PROTO);
    assert_int_equal(horon_coordinator_receive(tree.ranks[1], from, "", 0, &error),
                     HORON_ERR_PROTO);
    tree_deinit(&tree);
}

static uint8_t space[4096];
static uint32_t next_id; /* ids of a message are told from the last one */

static struct horon_writer up(uint64_t seen)
{
    struct horon_writer out = horon_writer_over(space, sizeof space);
    next_id = 0;
    horon_write_u8(&out, COORD_TAG_UP);
    horon_write_varint(&out, seen);
    return out;
}

static void ready(struct horon_writer *out, uint32_t id, uint64_t count)
{
    horon_write_u8(out, COORD_UP_READY);
    horon_coord_write_id(out, &next_id, id);
    horon_write_varint(out, count);
}

static void announce_as(struct horon_writer *out, const char *name,
                        const struct horon_signature *signature)
{
    horon_write_u8(out, COORD_UP_ANNOUNCE);
    horon_write_string(out, name);
    horon_coord_signature_write(out, signature);
}

static void announce(struct horon_writer *out, const char *name)
{
    const struct horon_operation tensor = tree_tensor(1, "x");
    announce_as(out, name, &tensor.agreed);
}

static struct horon_writer down(uint64_t sequence, bool failed)
{
    struct horon_writer out = horon_writer_over(space, sizeof space);
    horon_write_u8(&out, COORD_TAG_DOWN);
    horon_write_u8(&out, COORD_DOWN_BATCH);
    horon_write_varint(&out, sequence);
    horon_write_u8(&out, failed);
    return out;
}

static void item(struct horon_writer *out, enum coord_item kind, uint32_t id, const char *name)
{
    uint32_t next = 0;
    horon_write_u8(out, (uint8_t)kind);
    if (kind != COORD_ITEM_NAME && kind != COORD_ITEM_END)
        horon_coord_write_id(out, &next, id);
    if (kind == COORD_ITEM_RUN)
        horon_write_varint(out, 1);
    if (name)
        horon_write_string(out, name);
}

static void says_joined(struct horon_writer *out, uint64_t rank, uint8_t whole)
{
    horon_write_u8(out, COORD_UP_JOINED);
    horon_write_varint(out, rank);
    horon_write_u8(out, whole);
    horon_write_varint(out, 0);
}

static struct horon_writer decides_joined(uint64_t sequence, uint64_t rank)
{
    struct horon_writer out = horon_writer_over(space, sizeof space);
    horon_write_u8(&out, COORD_TAG_DOWN);
    horon_write_u8(&out, COORD_DOWN_JOINED);
    horon_write_varint(&out, sequence);
    horon_write_varint(&out, rank);
    horon_write_varint(&out, 0);
    return out;
}

static void test_coordinator_join_nonsense_is_refused(void **state)
{
    (void)state;
    static const struct {
        uint64_t rank;
        uint8_t whole;
    } ups[] = {{3, 1}, {1, 0}, {2, 2}, {UINT64_MAX, 0}};
    struct horon_writer out;
    for (size_t i = 0; i < sizeof ups / sizeof *ups; i++) {
        open_middle();
        out = up(1);
        says_joined(&out, ups[i].rank, ups[i].whole);
        expect_refusal(2, &out, "a join that cannot be");
    }
    open_middle();
    out = up(1); /* twice */
    says_joined(&out, 2, 0);
    says_joined(&out, 2, 1);
    expect_refusal(2, &out, "a join that cannot be");
    open_middle();
    out = up(1); /* with something in flight */
    ready(&out, 0, 1);
    says_joined(&out, 2, 1);
    expect_refusal(2, &out, "a join that cannot be");
    open_middle();
    out = up(1); /* and then goes on */
    says_joined(&out, 2, 1);
    ready(&out, 0, 1);
    expect_refusal(2, &out, "reported before");
    open_middle();
    out = decides_joined(2, 0);
    expect_refusal(0, &out, "a join that cannot be");
    open_middle();
    out = decides_joined(1, 3);
    expect_refusal(0, &out, "a join that cannot be");
    open_middle();
    out = decides_joined(1, 1); /* this rank, which has not */
    expect_refusal(0, &out, "a join that cannot be");
}

static void test_coordinator_report_nonsense_is_refused(void **state)
{
    (void)state;
    struct horon_writer out;
    open_middle();
    out = horon_writer_over(space, sizeof space);
    expect_refusal(2, &out, "not a report");
    open_middle();
    out = down(1, false);
    expect_refusal(2, &out, "not a report");
    open_middle();
    out = up(2); /* only one batch has been */
    expect_refusal(2, &out, "number of batches");
    open_middle();
    out = up(1);
    horon_write_u8(&out, 99);
    expect_refusal(2, &out, "unknown record");
    open_middle();
    out = up(1);
    ready(&out, 4, 1);
    expect_refusal(2, &out, "out of range");
    open_middle();
    out = up(1);
    ready(&out, 0, 5);
    expect_refusal(2, &out, "out of range");
    open_middle();
    out = up(1);
    ready(&out, 0, 0);
    expect_refusal(2, &out, "out of range");
    open_middle();
    out = up(1);
    ready(&out, 0, UINT64_MAX);
    expect_refusal(2, &out, "out of range");
    open_middle();
    out = up(1);
    ready(&out, 1, 1);
    expect_refusal(2, &out, "means nothing");
    open_middle();
    out = up(0); /* before the batch, the id meant nothing */
    ready(&out, 0, 1);
    expect_refusal(2, &out, "means nothing");
    open_middle();
    out = up(1);
    ready(&out, 0, 1);
    ready(&out, 0, 1);
    expect_refusal(2, &out, "reported before");
    open_middle();
    out = up(1);
    ready(&out, 0, 1);
    announce(&out, "known");
    expect_refusal(2, &out, "reported before");
    open_middle();
    out = up(1);
    announce(&out, "");
    expect_refusal(2, &out, "cannot be");
    open_middle();
    out = up(1);
    announce(&out, "n");
    out.used -= 1;
    expect_refusal(2, &out, "cannot be");
    open_middle();
    out = up(1);
    horon_write_u8(&out, COORD_UP_WITHDRAW);
    horon_write_string(&out, "");
    expect_refusal(2, &out, "cannot be");
}

/* A rank refuses these of its caller, so no honest one tells of them. */
static void test_coordinator_tensor_that_cannot_be_is_refused(void **state)
{
    (void)state;
    struct horon_signature wrong[5];
    for (size_t i = 0; i < 5; i++)
        wrong[i] = tree_tensor(1, "x").agreed;
    wrong[0].verb = HORON_REDUCESCATTER; /* of a scalar: it has no rows to share */
    wrong[0].ndim = 0;
    wrong[1].verb = HORON_ALLTOALL;
    wrong[1].ndim = 0;
    wrong[2].verb = HORON_BROADCAST; /* from a rank that there is not */
    wrong[2].root = 3;
    wrong[3].ndim = 2; /* of more bytes than can be counted */
    wrong[3].shape[0] = wrong[3].shape[1] = (uint64_t)1 << 40;
    wrong[4].verb = HORON_SEND; /* ranks do not agree on messages */
    for (size_t i = 0; i < 5; i++) {
        open_middle();
        struct horon_writer out = up(1);
        announce_as(&out, "n", &wrong[i]);
        expect_refusal(2, &out, "cannot be");
    }
}

/* A sequence number that goes back would give ids an old meaning again. */
static void test_coordinator_report_going_back_is_refused(void **state)
{
    (void)state;
    open_middle();
    struct horon_writer out = up(1);
    assert_int_equal(horon_coordinator_receive(tree.ranks[1], 2, out.bytes, out.used, &error),
                     HORON_OK);
    out = up(0);
    expect_refusal(2, &out, "number of batches");
}

static void test_coordinator_withdrawal_of_nothing_is_ignored(void **state)
{
    (void)state;
    open_middle();
    struct horon_writer out = up(1);
    horon_write_u8(&out, COORD_UP_WITHDRAW);
    horon_write_string(&out, "known");
    horon_write_u8(&out, COORD_UP_WITHDRAW);
    horon_write_string(&out, "unknown");
    assert_int_equal(horon_coordinator_receive(tree.ranks[1], 2, out.bytes, out.used, &error),
                     HORON_OK);
    tree_deinit(&tree);
}

/* Names that only a peer speaks of are counted, and let go when they end. */
static void test_coordinator_too_many_names_are_refused(void **state)
{
    (void)state;
    open_middle();
    tree.ranks[1]->foreign_names_max = 3;
    for (int i = 0; i < 20; i++) { /* one by one they may be any number */
        struct horon_writer out = up(1);
        const char name[] = {'n', '0', (char)('0' + i / 10), (char)('0' + i % 10), 0};
        announce(&out, name);
        horon_write_u8(&out, COORD_UP_WITHDRAW);
        horon_write_string(&out, name);
        assert_int_equal(horon_coordinator_receive(tree.ranks[1], 2, out.bytes, out.used, &error),
                         HORON_OK);
    }
    struct horon_writer out = up(1);
    announce(&out, "n001");
    announce(&out, "n002");
    announce(&out, "n003");
    assert_int_equal(horon_coordinator_receive(tree.ranks[1], 2, out.bytes, out.used, &error),
                     HORON_OK);
    out = up(1);
    announce(&out, "n004");
    expect_refusal(2, &out, "too many names");
}

static void test_coordinator_decision_nonsense_is_refused(void **state)
{
    (void)state;
    struct horon_writer out;
    open_middle();
    out = up(1);
    expect_refusal(0, &out, "not a decision");
    open_middle();
    out = down(0, false); /* the second time */
    item(&out, COORD_ITEM_END, 0, NULL);
    expect_refusal(0, &out, "out of order");
    open_middle();
    out = down(1, false);
    expect_refusal(0, &out, "without an end");
    open_middle();
    out = down(1, true);
    expect_refusal(0, &out, "out of order"); /* a failure without a text */
    static const struct {
        enum coord_item kind;
        uint32_t id;
        const char *name, *why;
    } items[] = {
        {COORD_ITEM_RUN, 0, NULL, "was not reported"},
        {COORD_ITEM_RUN, 1, NULL, "means nothing"},
        {COORD_ITEM_RUN, 4, NULL, "out of range"},
        {COORD_ITEM_EVICT, 1, NULL, "means nothing"},
        {COORD_ITEM_NAME, 0, "unheard of", "was not reported"},
        {COORD_ITEM_NEW, 1, "known", "is taken"}, /* which nobody submits, and has an id */
    };
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        open_middle();
        out = down(1, false);
        item(&out, items[i].kind, items[i].id, items[i].name);
        expect_refusal(0, &out, items[i].why);
    }
    open_middle();
    out = down(1, false);
    horon_write_u8(&out, 77);
    expect_refusal(0, &out, "unknown item");
    open_middle();
    out = horon_writer_over(space, sizeof space);
    horon_write_u8(&out, COORD_TAG_DOWN);
    horon_write_u8(&out, COORD_DOWN_WITHDRAWN);
    horon_write_string(&out, "known");
    expect_refusal(0, &out, "was not asked");
    open_middle();
    out = horon_writer_over(space, sizeof space);
    horon_write_u8(&out, COORD_TAG_DOWN);
    horon_write_u8(&out, 9);
    expect_refusal(0, &out, "unknown record");
}

/* This rank and rank 2 have joined. */
static void open_joined(void)
{
    open_middle();
    for (int rank = 1; rank <= 2; rank++)
        assert_int_equal(horon_coordinator_join(tree.ranks[rank], 0), HORON_OK);
    run();
}

static void test_coordinator_joined_rank_refuses_what_needs_it(void **state)
{
    (void)state;
    struct horon_signature wrong[3];
    for (size_t i = 0; i < 3; i++)
        wrong[i] = tree_tensor(1, "x").agreed;
    wrong[0].verb = HORON_BROADCAST; /* it is the root */
    wrong[0].root = 1;
    wrong[1].verb = HORON_REDUCESCATTER; /* it does not know the splits */
    wrong[1].root = 7;
    wrong[2].redop = HORON_PRODUCT; /* there is no neutral element */
    wrong[2].prescale = 3;
    for (size_t i = 0; i < 3; i++) {
        open_joined();
        struct horon_writer out = down(tree.ranks[1]->sequence, false);
        item(&out, COORD_ITEM_NAME, 0, "first");
        horon_coord_signature_write(&out, &wrong[i]);
        expect_refusal(0, &out, "needs a rank which has joined");
    }
}

/* Of two kinds that may each be fused, or of one that may not. */
static void make_two_kinds(struct horon_operation two[2], bool fusable)
{
    two[0] = tree_tensor(1, "first");
    two[1] = tree_tensor(1, "second");
    if (fusable)
        two[1].agreed.dtype = HORON_FLOAT64;
    else
        two[0].agreed.verb = two[1].agreed.verb = HORON_ALLGATHER;
}

/* Of a rank that has joined a batch is made as its first tensor says: all others are of its kind.
 */
static void test_coordinator_joined_rank_refuses_a_batch_of_two_kinds(void **state)
{
    (void)state;
    for (int fusable = 0; fusable < 2; fusable++) {
        struct horon_operation two[2];
        make_two_kinds(two, fusable);
        open_joined();
        struct horon_writer out = down(tree.ranks[1]->sequence, false);
        item(&out, COORD_ITEM_NAME, 0, "first");
        horon_coord_signature_write(&out, &two[0].agreed);
        item(&out, COORD_ITEM_NAME, 0, "second");
        horon_coord_signature_write(&out, &two[1].agreed);
        expect_refusal(0, &out, "cannot be fused");
    }
}

/* What ranks 1 and 2 have is told: rank 0 may decide it. */
static void report_to_parent(void)
{
    assert_int_equal(tree_flush(&tree, 2, true), HORON_OK);
    assert_int_equal(tree_deliver(&tree, 2, true), HORON_OK);
    assert_int_equal(tree_flush(&tree, 1, true), HORON_OK);
}

/* A batch is made as its first tensor says, with the memory of all: rank 0, which decides, is not
 * believed that they are of one kind. Known kinds are compared by number, others in full. */
static void test_coordinator_batch_of_two_kinds_is_refused(void **state)
{
    (void)state;
    for (int known = 0; known < 2; known++)
        for (int fusable = 0; fusable < 2; fusable++) {
            struct horon_operation two[2];
            make_two_kinds(two, fusable);
            open_middle();
            for (int round = 0; round <= known; round++) {
                run();
                submit_all(&two[0], 2);
                submit_all(&two[1], 3);
            }
            report_to_parent();
            const enum coord_item kind = known ? COORD_ITEM_RUN : COORD_ITEM_NAME;
            struct horon_writer out = down(tree.ranks[1]->sequence, false);
            item(&out, kind, 1, known ? NULL : "first");
            item(&out, kind, 0, known ? NULL : "second"); /* 0: the next id */
            expect_refusal(0, &out, "cannot be fused");
        }
}

/* Rank 2 has told rank 1 another shape: this can only fail. */
static void test_coordinator_batch_of_what_ranks_disagree_about_is_refused(void **state)
{
    (void)state;
    struct horon_operation mine = tree_tensor(1, "x"), other = tree_tensor(2, "x");
    open_middle();
    submit(1, &mine, 1002);
    submit(2, &other, 2002);
    report_to_parent();
    struct horon_writer out = down(tree.ranks[1]->sequence, false);
    item(&out, COORD_ITEM_NAME, 0, "x");
    expect_refusal(0, &out, "ranks disagree");
}

static void test_coordinator_stranger_and_oversized_are_refused(void **state)
{
    (void)state;
    static uint8_t large[HORON_COORDINATOR_MESSAGE_BYTES_MAX + 1];
    const int strangers[] = {-1, 1, 3, 100};
    for (int i = 0; i < 4; i++) {
        open_middle();
        struct horon_writer out = up(1);
        assert_int_equal(
            horon_coordinator_receive(tree.ranks[1], strangers[i], out.bytes, out.used, &error),
            HORON_ERR_PROTO);
        tree_deinit(&tree);
    }
    open_middle();
    assert_int_equal(horon_coordinator_receive(tree.ranks[1], 2, large, sizeof large, &error),
                     HORON_ERR_PROTO);
    assert_non_null(strstr(error.text, "65537 bytes"));
    tree_deinit(&tree);
}

static void test_coordinator_impossible_tree_is_refused(void **state)
{
    (void)state;
    const int one[] = {1}, twice[] = {1, 1}, self[] = {0}, far[] = {9};
    const struct horon_coordinator_options wrong[] = {
        {.rank = 0, .size = 0, .parent = -1},
        {.rank = 3, .size = 3, .parent = 0},
        {.rank = 0, .size = 3, .parent = 0},
        {.rank = 0, .size = 3, .parent = 3},
        {.rank = 0, .size = 3, .parent = 1, .children = one, .child_count = 1},
        {.rank = 0, .size = 3, .parent = -1, .children = twice, .child_count = 2},
        {.rank = 0, .size = 3, .parent = -1, .children = self, .child_count = 1},
        {.rank = 0, .size = 3, .parent = -1, .children = far, .child_count = 1},
        {.rank = 0, .size = 1, .parent = -1, .children = one, .child_count = 1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct horon_coordinator *coordinator = NULL;
        assert_int_equal(horon_coordinator_create(&wrong[i], &coordinator), HORON_ERR_INVALID);
        assert_null(coordinator);
    }
    horon_coordinator_destroy(NULL);
}

/* ---- Chance ---------------------------------------------------------------------------------- */

/* Spoils the oldest message of an edge: cut, lengthened, or some bytes changed. */
static void spoil(struct tree_queue *queue, uint64_t *random)
{
    struct tree_message *message = queue->first;
    if (!message)
        return;
    size_t bytes = message->bytes;
    switch (tree_below(random, 3)) {
    case 0:
        message->bytes = tree_below(random, bytes + 1);
        return;
    case 1:
        message = realloc(message, sizeof *message + bytes + 3);
        assert_non_null(message);
        for (int i = 0; i < 3; i++)
            message->data[bytes + (size_t)i] = (unsigned char)tree_below(random, 6);
        message->bytes += 1 + tree_below(random, 3);
        queue->first = message;
        if (!message->next)
            queue->last = &message->next;
        return;
    default:
        for (uint64_t i = tree_below(random, 3) + 1; bytes > 0 && i > 0; i--)
            message->data[tree_below(random, bytes)] =
                (unsigned char)(tree_below(random, 2) ? tree_below(random, 256)
                                                      : tree_below(random, 9));
    }
}

/* @return did a rank refuse something? */
static bool play(uint64_t seed)
{
    uint64_t random = seed;
    int size = (int)(2 + tree_below(&random, 4));
    tree_init(&tree, size, (enum tree_shape)tree_below(&random, TREE_SHAPE_COUNT),
              tree_below(&random, 4), 1000, seed);
    bool refused = false;
    for (int step = 0; step < 120 && !refused; step++) {
        int rank = (int)tree_below(&random, (uint64_t)size);
        for (uint64_t i = tree_below(&random, 4); i > 0; i--) {
            struct horon_operation tensor =
                tree_tensor(1 + tree_below(&random, 20) / 19, "t%d", (int)tree_below(&random, 5));
            tree_submit(tree.ranks[rank], &tensor, tree_below(&random, 40));
        }
        horon_coordinator_cancel(tree.ranks[rank], tree_below(&random, 200));
        refused = tree_flush(&tree, rank, true) != HORON_OK;
        struct horon_batch batch;
        while (horon_coordinator_next_batch(tree.ranks[rank], &batch))
            ;
        int below_edge = (int)(1 + tree_below(&random, (uint64_t)size - 1));
        if (step > 20 && tree_below(&random, 4) == 0)
            spoil(tree_below(&random, 2) ? &tree.up[below_edge] : &tree.down[below_edge], &random);
        int to;
        horon_status_t status = tree_deliver_any(&tree, &to);
        refused = refused || (status != HORON_OK && status != HORON_AGAIN);
    }
    if (refused) {
        assert_int_equal(tree.error.status, HORON_ERR_PROTO);
        assert_memory_equal(tree.error.text, "rank ", 5);
    }
    tree_deinit(&tree);
    return refused;
}

static void test_coordinator_spoiled_messages_are_survived(void **state)
{
    (void)state;
    int refused = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++)
        refused += play(seed);
    assert_true(refused > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinator_report_nonsense_is_refused),
        cmocka_unit_test(test_coordinator_tensor_that_cannot_be_is_refused),
        cmocka_unit_test(test_coordinator_join_nonsense_is_refused),
        cmocka_unit_test(test_coordinator_report_going_back_is_refused),
        cmocka_unit_test(test_coordinator_withdrawal_of_nothing_is_ignored),
        cmocka_unit_test(test_coordinator_too_many_names_are_refused),
        cmocka_unit_test(test_coordinator_decision_nonsense_is_refused),
        cmocka_unit_test(test_coordinator_joined_rank_refuses_what_needs_it),
        cmocka_unit_test(test_coordinator_joined_rank_refuses_a_batch_of_two_kinds),
        cmocka_unit_test(test_coordinator_batch_of_two_kinds_is_refused),
        cmocka_unit_test(test_coordinator_batch_of_what_ranks_disagree_about_is_refused),
        cmocka_unit_test(test_coordinator_stranger_and_oversized_are_refused),
        cmocka_unit_test(test_coordinator_impossible_tree_is_refused),
        cmocka_unit_test(test_coordinator_spoiled_messages_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
