/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-to-all, gather and scatter over a fake backend that has none of them, and so are composed of
 * its broadcasts: each rank gets what a table says, and nothing beyond.
 */
#include "route_bed.h"

#include <string.h>

struct exchange {
    horon_verb_t verb;
    int root;
    uint64_t rows[SIZE][SIZE]; /* of each rank for each; at most COUNT together */
    bool in_place, no_room;    /* of rank 1 */
    uint64_t src_at, dst_at;   /* in place: of root, in the memory of both */
};

struct taker {
    struct use *use;
    uint64_t splits[SIZE];
    uint64_t told, told_rows[SIZE];
    bool asked, no_room;
};

static void *take(void *arg, const uint64_t *rows, uint64_t total)
{
    struct taker *taker = arg;
    assert_false(taker->asked);
    taker->asked = true;
    taker->told = total;
    memcpy(taker->told_rows, rows, sizeof taker->told_rows);
    return taker->no_room ? NULL : taker->use->part.dst;
}

static void prepare(const struct exchange *exchange, struct taker *taker, struct use *use, int rank)
{
    const struct horon_verb_row *row = &horon_verb_rows[exchange->verb];
    *taker = (struct taker){.use = use, .no_room = exchange->no_room && rank == 1};
    describe(use, exchange->verb, rank, exchange->root);
    for (int to = 0; to < SIZE; to++)
        use->given += taker->splits[to] = exchange->rows[rank][to];
    use->op.count = use->part.count = use->given;
    use->op.ahead = row->ahead == HORON_AHEAD_SPLITS ? taker->splits : &use->given;
    use->op.row_elements = 1;
    use->op.output = take;
    use->op.output_arg = taker;
    use->part.src = use->given ? use->in : NULL;
    if (!exchange->in_place || rank != exchange->root)
        return;
    use->part.src = use->out + exchange->src_at;
    use->part.dst = use->out + exchange->dst_at;
    memcpy(use->out + exchange->src_at, use->in, (size_t)use->given * sizeof use->in[0]);
}

static void check(const struct exchange *exchange, const struct taker *takers, int rank)
{
    float expected[COUNT] = {0};
    uint64_t total = 0;
    for (int from = 0; from < SIZE; from++) {
        uint64_t at = 0;
        for (int to = 0; to < rank; to++)
            at += exchange->rows[from][to];
        assert_int_equal(takers[rank].told_rows[from], exchange->rows[from][rank]);
        for (uint64_t i = 0; i < exchange->rows[from][rank]; i++)
            expected[total++] = takers[from].use->in[at + i];
    }
    assert_int_equal(takers[rank].told, total);
    if (takers[rank].no_room)
        total = 0;
    assert_memory_equal(takers[rank].use->part.dst, expected, (size_t)total * sizeof expected[0]);
    for (uint64_t i = total; !exchange->in_place && i < COUNT; i++)
        assert_true(takers[rank].use->out[i] == 0);
}

static void test_route_composes_exchanges_of_broadcasts(void **state)
{
    static const struct exchange cases[] = {
        {HORON_ALLTOALL, 0, {{2, 1}, {1, 3}}, false, false, 0, 0},
        {HORON_ALLTOALL, 0, {{0, 3}, {4, 0}}, false, false, 0, 0},
        {HORON_ALLTOALL, 0, {{0, 0}, {0, 5}}, false, false, 0, 0},
        {HORON_ALLTOALL, 0, {{0, 0}, {0, 0}}, false, false, 0, 0},
        {HORON_ALLTOALL, 0, {{1, 2}, {2, 1}}, false, true, 0, 0},
        {HORON_GATHER, 0, {{2, 0}, {3, 0}}, false, false, 0, 0},
        {HORON_GATHER, 1, {{0, 2}, {0, 3}}, true, false, 0, 0},
        {HORON_GATHER, 1, {{0, 2}, {0, 3}}, true, false, 2, 0},
        {HORON_GATHER, 1, {{0, 2}, {0, 3}}, true, false, 1, 0},
        {HORON_GATHER, 0, {{2, 0}, {3, 0}}, true, false, 3, 0},
        {HORON_GATHER, 1, {{0, 2}, {0, 1}}, false, true, 0, 0},
        {HORON_GATHER, 0, {{0, 0}, {0, 0}}, false, false, 0, 0},
        {HORON_SCATTER, 0, {{2, 3}, {0, 0}}, false, false, 0, 0},
        {HORON_SCATTER, 1, {{0, 0}, {3, 1}}, true, false, 0, 0},
        {HORON_SCATTER, 0, {{5, 0}, {0, 0}}, true, false, 0, 0},
        {HORON_SCATTER, 1, {{0, 0}, {3, 2}}, true, false, 0, 3},
        {HORON_SCATTER, 0, {{1, 2}, {0, 0}}, false, true, 0, 0},
    };
    struct bed *bed = *state;
    bed->fakes[0].base.caps &= ~HORON_BACKEND_EVERYWHERE;
    join(bed);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct use uses[SIZE];
        struct taker takers[SIZE];
        for (int rank = 0; rank < SIZE; rank++)
            prepare(&cases[i], &takers[rank], &uses[rank], rank);
        run(bed, uses, i + 1);
        for (int rank = 0; rank < SIZE; rank++)
            check(&cases[i], takers, rank);
    }
}

/* Rows that no memory holds end the operation; nothing is written. */
static void test_route_refuses_rows_beyond_memory(void **state)
{
    static const struct exchange huge = {
        HORON_ALLTOALL, 0, {{1, 2}, {1, 1}}, false, false, 0, 0,
    };
    struct bed *bed = *state;
    struct use uses[SIZE];
    struct taker takers[SIZE];
    join(bed);
    for (int rank = 0; rank < SIZE; rank++)
        prepare(&huge, &takers[rank], &uses[rank], rank);
    takers[0].splits[1] = UINT64_MAX / 2;
    begin(bed, uses);
    horon_status_t status = HORON_IN_PROGRESS;
    struct horon_error error = {0};
    for (int turn = 0; turn < 100 && status >= 0; turn++) {
        bool moved = false;
        for (int rank = SIZE - 1; rank >= 0; rank--)
            status = horon_route_advance(&bed->routes[rank], &moved, &error);
    }
    assert_int_equal(status, HORON_ERR_PROTO);
    assert_string_equal(error.text, "the inputs add up to more than memory can hold");
    assert_false(takers[0].asked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_route_composes_exchanges_of_broadcasts),
        TEST(test_route_refuses_rows_beyond_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
