/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of routes share: two ranks in one thread with two fake backends. */
#ifndef HORON_TEST_ROUTE_BED_H
#define HORON_TEST_ROUTE_BED_H

#undef NDEBUG
#include "backend/route.h"
#include "fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

enum { SIZE = 2, COUNT = 5, LOG_MAX = 16 };
static const char *const names[SIZE] = {"rank 0 (h)", "rank 1 (h)"};
static const uint32_t caps =
    HORON_BACKEND_ANY_THREAD | HORON_BACKEND_KEEPS_TREE | HORON_BACKEND_EVERYWHERE;

/* Two ranks and two backends; set up what differs between make() and join(). */
struct bed {
    struct fake fakes[2];
    const struct horon_backend *backends[2];
    size_t backend_count;
    const struct horon_backend **tables; /* [backend_count] */
    struct horon_backends opened[SIZE];
    struct horon_team teams[SIZE];
    struct horon_route_options options;
    struct horon_route routes[SIZE];
    struct horon_log log;
    char lines[LOG_MAX][256];
    int line_count;
};

static inline void keep_line(void *arg, horon_log_level_t level, const char *text)
{
    struct bed *bed = arg;
    assert_int_equal(level, HORON_LOG_INFO);
    assert_true(bed->line_count < LOG_MAX);
    snprintf(bed->lines[bed->line_count++], sizeof bed->lines[0], "%s", text);
}

static inline int make(void **state)
{
    struct bed *bed = test_calloc(1, sizeof *bed);
    fake_init(&bed->fakes[0], "first", caps);
    fake_init(&bed->fakes[1], "second", caps);
    bed->log = (struct horon_log){.level = HORON_LOG_INFO, .fn = keep_line, .arg = bed};
    for (int i = 0; i < 2; i++)
        bed->backends[i] = &bed->fakes[i].base;
    bed->tables = bed->backends;
    bed->backend_count = 2;
    bed->options = (struct horon_route_options){.log = &bed->log};
    *state = bed;
    return 0;
}

static inline void leave(struct bed *bed, int rank)
{
    horon_route_deinit(&bed->routes[rank]);
    horon_backends_close(&bed->opened[rank], true);
}

static inline int end(void **state)
{
    struct bed *bed = *state;
    for (int rank = 0; rank < SIZE; rank++)
        leave(bed, rank);
    assert_int_equal(bed->fakes[0].opened, bed->fakes[0].closed);
    test_free(bed);
    return 0;
}

static inline void join(struct bed *bed)
{
    for (int rank = 0; rank < SIZE; rank++) {
        bed->teams[rank] = (struct horon_team){.rank = rank, .size = SIZE, .rank_names = names};
        assert_int_equal(horon_backends_open(&bed->opened[rank], bed->tables, bed->backend_count,
                                             NULL, &bed->log, NULL),
                         HORON_OK);
        bed->options.backends = &bed->opened[rank];
        assert_int_equal(
            horon_route_init(&bed->routes[rank], &bed->options, &bed->teams[rank], NULL), HORON_OK);
    }
}

/* One operation of a rank, over one part. */
struct use {
    float in[COUNT], out[COUNT];
    uint64_t given;             /* rows of an allgather */
    uint64_t rows[SIZE], total; /* of an allgather, as it was told */
    bool no_room;
    struct horon_part part;
    struct horon_operation op;
};

static inline void describe(struct use *use, horon_verb_t verb, int rank, int root)
{
    *use = (struct use){0};
    for (int i = 0; i < COUNT; i++)
        use->in[i] = (float)(10 * rank + i);
    use->part = (struct horon_part){.src = use->in, .dst = use->out, .count = COUNT};
    use->op = (struct horon_operation){
        .agreed = {.verb = (uint8_t)verb,
                   .dtype = HORON_FLOAT32,
                   .root = root,
                   .ndim = 1,
                   .shape = {COUNT}},
        .count = COUNT,
        .parts = &use->part,
        .part_count = 1,
    };
    if (!horon_verb_moves(&horon_verb_rows[verb]))
        use->op.count = use->part.count = 0;
    horon_signature_make_canonical(&use->op.agreed);
}

/* Advances all ranks until each has ended @p count operations. @return turns */
static inline int turn_until(struct bed *bed, uint64_t count)
{
    for (int turn = 1; turn < 100; turn++) {
        bool ended = true;
        for (int rank = 0; rank < SIZE; rank++) {
            struct horon_error error = {0};
            bool moved = false;
            if (horon_route_ended(&bed->routes[rank]) == count)
                continue;
            horon_status_t status = horon_route_advance(&bed->routes[rank], &moved, &error);
            if (status < 0)
                fail_msg("rank %d: %s", rank, error.text);
            ended &= horon_route_ended(&bed->routes[rank]) == count;
        }
        if (ended)
            return turn;
    }
    fail_msg("hangs");
    return 0;
}

static inline bool may_begin(struct bed *bed, int rank, const struct use *use)
{
    struct horon_error error = {0};
    bool moved = false;
    const horon_status_t status = horon_route_ready(&bed->routes[rank], &use->op, &moved, &error);
    if (status < 0)
        fail_msg("rank %d: %s", rank, error.text);
    return status == HORON_OK;
}

/* Begins an operation on all ranks, each as soon as it may. */
static inline void begin(struct bed *bed, struct use uses[SIZE])
{
    unsigned begun = 0;
    for (int turn = 0; begun != (1u << SIZE) - 1; turn++) {
        assert_in_range(turn, 0, 100);
        for (int rank = 0; rank < SIZE; rank++) {
            if ((begun >> rank & 1) || !may_begin(bed, rank, &uses[rank]))
                continue;
            horon_route_begin(&bed->routes[rank], &uses[rank].op);
            assert_false(may_begin(bed, rank, &uses[rank]));
            begun |= 1u << rank;
        }
    }
}

static inline void run(struct bed *bed, struct use uses[SIZE], uint64_t number)
{
    begin(bed, uses);
    turn_until(bed, number);
}

static inline void expect_doing(struct bed *bed, int rank, const char *expected)
{
    char doing[128] = "not even asked";
    horon_route_explain(&bed->routes[rank], doing, sizeof doing);
    assert_string_equal(doing, expected);
}

static inline void expect_sum(const struct use *use)
{
    for (int i = 0; i < COUNT; i++)
        assert_true(use->out[i] == (float)(10 + 2 * i));
}

/* An operation like any other: an allreduce of all ranks. */
static inline void sum(struct bed *bed, uint64_t number)
{
    struct use uses[SIZE];
    for (int rank = 0; rank < SIZE; rank++)
        describe(&uses[rank], HORON_ALLREDUCE, rank, 0);
    run(bed, uses, number);
    for (int rank = 0; rank < SIZE; rank++)
        expect_sum(&uses[rank]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, end)

#endif
