/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routes over fake backends, two ranks in one thread: who carries what, what is composed, what
 * falls to the next with one line, several launched at a time, a backend that dies, and abort.
 */
#undef NDEBUG
#include "backend/route.h"
#include "fake.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

enum { SIZE = 2, COUNT = 5, LOG_MAX = 16 };

static const uint32_t caps = HORON_BACKEND_ANY_THREAD | HORON_BACKEND_KEEPS_TREE;

/* Two ranks and two backends; set up what differs between make() and join(). */
struct bed {
    struct fake fakes[2];
    const struct horon_backend *backends[2];
    struct horon_team teams[SIZE];
    struct horon_route_options options;
    struct horon_route routes[SIZE];
    struct horon_log log;
    char lines[LOG_MAX][256];
    int line_count;
};

static void keep_line(void *arg, horon_log_level_t level, const char *text)
{
    struct bed *bed = arg;
    assert_int_equal(level, HORON_LOG_INFO);
    assert_true(bed->line_count < LOG_MAX);
    snprintf(bed->lines[bed->line_count++], sizeof bed->lines[0], "%s", text);
}

static int make(void **state)
{
    struct bed *bed = test_calloc(1, sizeof *bed);
    fake_init(&bed->fakes[0], "first", caps);
    fake_init(&bed->fakes[1], "second", caps);
    bed->log = (struct horon_log){.level = HORON_LOG_INFO, .fn = keep_line, .arg = bed};
    for (int i = 0; i < 2; i++)
        bed->backends[i] = &bed->fakes[i].base;
    bed->options = (struct horon_route_options){
        .backends = bed->backends, .backend_count = 2, .log = &bed->log};
    *state = bed;
    return 0;
}

static int end(void **state)
{
    struct bed *bed = *state;
    for (int rank = 0; rank < SIZE; rank++)
        horon_route_deinit(&bed->routes[rank]);
    test_free(bed);
    return 0;
}

static void join(struct bed *bed)
{
    for (int rank = 0; rank < SIZE; rank++) {
        bed->teams[rank] = (struct horon_team){.rank = rank, .size = SIZE};
        assert_int_equal(
            horon_route_init(&bed->routes[rank], &bed->options, &bed->teams[rank], NULL), HORON_OK);
    }
}

/* One operation of a rank, over one part. */
struct use {
    float in[COUNT], out[COUNT];
    struct horon_part part;
    struct horon_operation op;
};

static void describe(struct use *use, horon_verb_t verb, int rank, int root)
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
static int turn_until(struct bed *bed, uint64_t count)
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

static void run(struct bed *bed, struct use uses[SIZE], uint64_t number)
{
    for (int rank = 0; rank < SIZE; rank++) {
        assert_true(horon_route_may_begin(&bed->routes[rank], &uses[rank].op));
        horon_route_begin(&bed->routes[rank], &uses[rank].op);
        assert_false(horon_route_may_begin(&bed->routes[rank], &uses[rank].op));
    }
    turn_until(bed, number);
}

static void expect_sum(const struct use *use)
{
    for (int i = 0; i < COUNT; i++)
        assert_true(use->out[i] == (float)(10 + 2 * i));
}

static void test_route_gives_operations_to_the_first_that_has_them(void **state)
{
    struct bed *bed = *state;
    struct use uses[SIZE];
    join(bed);
    for (int rank = 0; rank < SIZE; rank++)
        describe(&uses[rank], HORON_ALLREDUCE, rank, 0);
    run(bed, uses, 1);
    expect_sum(&uses[0]);
    expect_sum(&uses[1]);
    assert_int_equal(bed->fakes[0].lanes[0].done, 1);
    assert_int_equal(bed->fakes[1].lanes[0].done, 0);
    assert_int_equal(bed->line_count, 0);
}

static void test_route_tells_once_of_each_fall_to_the_next(void **state)
{
    struct bed *bed = *state;
    struct use uses[SIZE];
    bed->fakes[0].lacks |= 1u << HORON_ALLREDUCE;
    join(bed);
    for (uint64_t number = 1; number <= 3; number++) {
        for (int rank = 0; rank < SIZE; rank++)
            describe(&uses[rank], HORON_ALLREDUCE, rank, 0);
        run(bed, uses, number);
        expect_sum(&uses[1]);
    }
    assert_int_equal(bed->fakes[1].lanes[0].done, 3);
    assert_int_equal(bed->line_count, SIZE); /* one on each rank */
    assert_non_null(
        strstr(bed->lines[0], "backend first does not carry allreduce of float32: second does"));
}

static void test_route_does_without_a_backend_that_is_not_usable(void **state)
{
    struct bed *bed = *state;
    struct use uses[SIZE];
    bed->fakes[0].refuses = "its library was not found";
    join(bed);
    for (int rank = 0; rank < SIZE; rank++)
        describe(&uses[rank], HORON_ALLREDUCE, rank, 0);
    run(bed, uses, 1);
    assert_int_equal(bed->fakes[1].lanes[0].done, 1);
    assert_int_equal(bed->line_count, SIZE);
    assert_non_null(strstr(bed->lines[0], "backend first is not used: its library was not found"));
}

static void test_route_does_without_what_nobody_could_drive(void **state)
{
    struct bed *bed = *state;
    bed->fakes[0].base.caps &= ~HORON_BACKEND_ANY_THREAD;
    bed->fakes[1].base.caps |= HORON_BACKEND_ONE_LAUNCH_ORDER; /* and there are no tickets */
    join(bed);
    assert_int_equal(bed->routes[0].terms.usable, 0);
    assert_non_null(strstr(bed->lines[0], "it wants one thread"));
    assert_non_null(strstr(bed->lines[1], "it wants one order of launches"));
}

static void test_route_names_what_nobody_carries(void **state)
{
    struct bed *bed = *state;
    struct use use;
    struct horon_error error = {0};
    bool moved = false;
    join(bed);
    describe(&use, HORON_ALLGATHER, 0, 0);
    assert_true(horon_route_may_begin(&bed->routes[0], &use.op));
    horon_route_begin(&bed->routes[0], &use.op);
    assert_int_equal(horon_route_advance(&bed->routes[0], &moved, &error), HORON_ERR_UNSUPPORTED);
    assert_string_equal(error.text, "no backend carries allgather of float32");
    horon_route_abort(&bed->routes[0]);
}

/* The bits of numbers that a sum of floats would not keep. */
static void test_route_composes_a_broadcast_of_a_sum(void **state)
{
    struct bed *bed = *state;
    bed->fakes[0].lacks |= 1u << HORON_BROADCAST;
    join(bed);
    for (int root = 0; root < SIZE; root++) {
        struct use uses[SIZE];
        for (int rank = 0; rank < SIZE; rank++)
            describe(&uses[rank], HORON_BROADCAST, rank, root);
        uses[root].in[0] = -0.0f;
        uses[root].in[1] = nanf("0x1234");
        uses[root].part.dst = NULL; /* which root may leave out */
        run(bed, uses, (uint64_t)root + 1);
        assert_memory_equal(uses[1 - root].out, uses[root].in, sizeof uses[root].in);
    }
    assert_int_equal(bed->fakes[0].lanes[0].done, 2);
    assert_int_equal(bed->line_count, 0);
}

static void test_route_composes_a_barrier(void **state)
{
    struct bed *bed = *state;
    struct use uses[SIZE];
    bool moved = false;
    bed->fakes[0].lacks |= 1u << HORON_BARRIER;
    join(bed);
    for (int rank = 0; rank < SIZE; rank++)
        describe(&uses[rank], HORON_BARRIER, rank, 0);
    horon_route_begin(&bed->routes[0], &uses[0].op);
    for (int turn = 0; turn < 5; turn++)
        assert_int_equal(horon_route_advance(&bed->routes[0], &moved, NULL), HORON_IN_PROGRESS);
    assert_true(horon_route_waits_for(&bed->routes[0], 1));
    horon_route_begin(&bed->routes[1], &uses[1].op);
    turn_until(bed, 1);
    assert_int_equal(bed->fakes[0].lanes[0].done, 1);
}

static void test_route_launches_several_of_one_backend_in_order(void **state)
{
    struct bed *bed = *state;
    struct use uses[SIZE][4];
    bed->fakes[0].base.launched_max = 3;
    bed->fakes[0].delay = 2;
    bed->fakes[0].lacks |= 1u << HORON_BROADCAST | 1u << HORON_ALLREDUCE; /* not even composed */
    bed->fakes[0].lacks &= ~(1u << HORON_ALLREDUCE);
    join(bed);
    for (int rank = 0; rank < SIZE; rank++)
        for (int i = 0; i < 4; i++)
            describe(&uses[rank][i], i == 3 ? HORON_BROADCAST : HORON_ALLREDUCE, rank, 0);
    for (int rank = 0; rank < SIZE; rank++) {
        struct horon_route *route = &bed->routes[rank];
        for (int i = 0; i < 3; i++) {
            assert_true(horon_route_may_begin(route, &uses[rank][i].op));
            horon_route_begin(route, &uses[rank][i].op);
        }
        assert_false(horon_route_may_begin(route, &uses[rank][3].op)); /* as many as it takes */
        assert_int_equal(horon_route_interval_ns(route), 1000);
    }
    turn_until(bed, 1);
    for (int rank = 0; rank < SIZE; rank++) /* composed, and not beside others */
        assert_false(horon_route_may_begin(&bed->routes[rank], &uses[rank][3].op));
    turn_until(bed, 3);
    for (int rank = 0; rank < SIZE; rank++) {
        expect_sum(&uses[rank][2]);
        assert_true(horon_route_may_begin(&bed->routes[rank], &uses[rank][3].op));
        assert_int_equal(horon_route_interval_ns(&bed->routes[rank]), 0);
    }
    assert_int_equal(bed->fakes[0].begun_most, 3);
}

static void test_route_waits_with_one_backend_for_another(void **state)
{
    struct bed *bed = *state;
    struct use uses[2];
    bed->fakes[0].lacks |= 1u << HORON_ALLREDUCE;
    bed->fakes[0].base.launched_max = bed->fakes[1].base.launched_max = 4;
    join(bed);
    describe(&uses[0], HORON_BROADCAST, 0, 0);
    describe(&uses[1], HORON_ALLREDUCE, 0, 0);
    horon_route_begin(&bed->routes[0], &uses[0].op);
    assert_false(horon_route_may_begin(&bed->routes[0], &uses[1].op));
    assert_true(horon_route_may_begin(&bed->routes[0], &uses[0].op));
    horon_route_abort(&bed->routes[0]);
}

static void test_route_passes_on_what_a_backend_died_of(void **state)
{
    struct bed *bed = *state;
    struct use uses[SIZE];
    struct horon_error error = {0};
    bool moved = false;
    bed->fakes[0].dies_on = 1;
    join(bed);
    for (int rank = 0; rank < SIZE; rank++) {
        describe(&uses[rank], HORON_ALLREDUCE, rank, 0);
        horon_route_begin(&bed->routes[rank], &uses[rank].op);
    }
    assert_int_equal(horon_route_advance(&bed->routes[1], &moved, &error), HORON_ERR_SYSTEM);
    assert_string_equal(error.text, "the device of backend first is gone");
    horon_route_abort(&bed->routes[1]);
    assert_true(bed->fakes[0].lanes[0].channels[1]->aborted);
    /* nobody writes its memory, and the other rank learns of it by other ways */
    assert_int_equal(horon_route_advance(&bed->routes[0], &moved, &error), HORON_IN_PROGRESS);
    horon_route_abort(&bed->routes[0]);
    for (int i = 0; i < COUNT; i++)
        assert_true(uses[1].out[i] == 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, end)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_route_gives_operations_to_the_first_that_has_them),
        TEST(test_route_tells_once_of_each_fall_to_the_next),
        TEST(test_route_does_without_a_backend_that_is_not_usable),
        TEST(test_route_does_without_what_nobody_could_drive),
        TEST(test_route_names_what_nobody_carries),
        TEST(test_route_composes_a_broadcast_of_a_sum),
        TEST(test_route_composes_a_barrier),
        TEST(test_route_launches_several_of_one_backend_in_order),
        TEST(test_route_waits_with_one_backend_for_another),
        TEST(test_route_passes_on_what_a_backend_died_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
