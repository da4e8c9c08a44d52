/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routes over fake backends, two ranks in one thread: which backend carries what, what is composed,
 * what falls to the next with one line, several launched at a time, a backend that dies, and abort.
 */
#include "route_bed.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_route_gives_operations_to_the_first_that_has_them(void **state)
{
    struct bed *bed = *state;
    join(bed);
    sum(bed, 1);
    assert_int_equal(bed->fakes[0].lanes[0].done, 1);
    assert_int_equal(bed->fakes[1].lanes[0].done, 0);
    assert_int_equal(bed->line_count, 0);
}

static void test_route_tells_once_of_each_fall_to_the_next(void **state)
{
    struct bed *bed = *state;
    bed->fakes[0].lacks |= 1u << HORON_ALLREDUCE;
    join(bed);
    for (uint64_t number = 1; number <= 3; number++)
        sum(bed, number);
    assert_int_equal(bed->fakes[1].lanes[0].done, 3);
    assert_int_equal(bed->line_count, SIZE); /* one on each rank */
    assert_non_null(
        strstr(bed->lines[0], "backend first does not carry allreduce of float32: second does"));
}

/* Of all lanes and process sets of the context, each of which has routes of its own. */
static void test_route_tells_of_a_fall_once_for_all_routes(void **state)
{
    struct bed *bed = *state;
    bed->fakes[0].base.caps &= ~HORON_BACKEND_KEEPS_TREE;
    bed->options.deterministic = true;
    join(bed);
    sum(bed, 1);
    for (int rank = 0; rank < SIZE; rank++) {
        horon_route_deinit(&bed->routes[rank]);
        bed->options.channel.channel = 1;
        bed->options.backends = &bed->opened[rank];
        assert_int_equal(
            horon_route_init(&bed->routes[rank], &bed->options, &bed->teams[rank], NULL), HORON_OK);
    }
    sum(bed, 1);
    assert_int_equal(bed->line_count, SIZE);
    assert_non_null(strstr(bed->lines[0], "backend first does not carry allreduce of float32 with "
                                          "HORON_DETERMINISTIC=1: second does"));
}

/* The memory of a run of operations changes: each goes to the backend that carries its kind. */
static void test_route_gives_each_kind_of_memory_to_a_backend_that_has_it(void **state)
{
    static const horon_memory_t kinds[] = {HORON_MEMORY_HOST, HORON_MEMORY_CUDA, HORON_MEMORY_HOST};
    struct bed *bed = *state;
    struct use uses[SIZE];
    bed->fakes[0].lacks_memory = 1u << HORON_MEMORY_HOST;
    bed->fakes[1].lacks_memory = 1u << HORON_MEMORY_CUDA;
    join(bed);
    for (uint64_t number = 1; number <= 3; number++) {
        for (int rank = 0; rank < SIZE; rank++) {
            describe(&uses[rank], HORON_ALLREDUCE, rank, 0);
            uses[rank].op.agreed.memory = (uint8_t)kinds[number - 1];
        }
        run(bed, uses, number);
        expect_sum(&uses[1]);
        assert_int_equal(bed->fakes[0].lanes[0].done, number / 2);
        assert_int_equal(bed->fakes[1].lanes[0].done, number - number / 2);
    }
}

/* Of the only backend a choice is remembered, for operations of one kind and for no other. */
static void test_route_chooses_anew_for_another_type_or_memory(void **state)
{
    struct bed *bed = *state;
    bed->backend_count = 1;
    bed->fakes[0].lacks_dtype = 1u << HORON_FLOAT64;
    bed->fakes[0].lacks_memory = 1u << HORON_MEMORY_CUDA;
    join(bed);
    sum(bed, 1);
    for (int rank = 0; rank < SIZE; rank++) {
        struct use use;
        struct horon_error error = {0};
        bool moved = false;
        describe(&use, HORON_ALLREDUCE, rank, 0);
        if (rank == 0)
            use.op.agreed.dtype = HORON_FLOAT64;
        else
            use.op.agreed.memory = HORON_MEMORY_CUDA;
        assert_true(may_begin(bed, rank, &use));
        horon_route_begin(&bed->routes[rank], &use.op);
        assert_int_equal(horon_route_advance(&bed->routes[rank], &moved, &error),
                         HORON_ERR_UNSUPPORTED);
        horon_route_abort(&bed->routes[rank]);
    }
    assert_int_equal(bed->fakes[0].lanes[0].channels[0]->begun, 1);
}

static void test_route_names_what_nobody_carries(void **state)
{
    struct bed *bed = *state;
    struct use use;
    struct horon_error error = {0};
    bool moved = false;
    bed->fakes[0].lacks |= 1u << HORON_BROADCAST; /* of which it could be composed */
    bed->fakes[1].lacks |= 1u << HORON_BROADCAST;
    join(bed);
    describe(&use, HORON_ALLGATHER, 0, 0);
    assert_true(may_begin(bed, 0, &use));
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

/* Of 5 rows the first rank of two gets 3, or what the splits say. */
static void test_route_composes_a_reducescatter_of_the_whole(void **state)
{
    static const uint64_t splits[SIZE] = {0, 5};
    struct bed *bed = *state;
    join(bed);
    for (int number = 0; number < 3; number++) {
        struct use uses[SIZE];
        for (int rank = 0; rank < SIZE; rank++) {
            describe(&uses[rank], HORON_REDUCESCATTER, rank, 0);
            uses[rank].op.row_elements = 1;
            uses[rank].op.splits = number == 1 ? splits : NULL;
            if (number == 2) /* where its rows lie */
                uses[rank].part.dst = uses[rank].in + 3 * rank;
        }
        run(bed, uses, (uint64_t)number + 1);
        for (int i = 0; i < COUNT; i++) {
            const int rank = number == 1 || i >= 3, first = rank && number != 1 ? 3 : 0;
            const float *got = uses[rank].part.dst;
            assert_true(got[i - first] == (float)(10 + 2 * i));
        }
        assert_true(number == 2 || uses[0].out[3] == 0.0f);
    }
    assert_int_equal(bed->fakes[0].lanes[0].done, 3);
}

static void test_route_composes_a_reduce_of_the_whole(void **state)
{
    struct bed *bed = *state;
    join(bed);
    for (int root = 0; root < SIZE; root++) {
        struct use uses[SIZE];
        for (int rank = 0; rank < SIZE; rank++)
            describe(&uses[rank], HORON_REDUCE, rank, root);
        uses[1 - root].part.dst = NULL;
        run(bed, uses, (uint64_t)root + 1);
        for (int i = 0; i < COUNT; i++)
            assert_true(uses[root].out[i] == (float)(10 + 2 * i));
    }
}

/* After a join it is divided by those that gave; and each rank's memory is on the device that it
 * says, where the fake looks. */
static void test_route_composes_an_average_of_those_that_gave_on_their_devices(void **state)
{
    static const horon_verb_t verbs[] = {HORON_REDUCE, HORON_REDUCESCATTER};
    struct bed *bed = *state;
    bed->fakes[0].base.caps &= ~HORON_BACKEND_EVERYWHERE;
    join(bed);
    for (uint64_t number = 1; number <= 2; number++) {
        struct use uses[SIZE];
        for (int rank = 0; rank < SIZE; rank++) {
            describe(&uses[rank], verbs[number - 1], rank, 0);
            uses[rank].op.agreed.redop = HORON_AVERAGE;
            uses[rank].op.row_elements = 1;
            uses[rank].op.givers = 1;
            uses[rank].op.device = 2 + rank;
        }
        run(bed, uses, number);
        for (int i = 0; i < 3; i++)
            assert_true(uses[0].out[i] == (float)(10 + 2 * i));
    }
    assert_int_equal(bed->fakes[0].lanes[0].done, 2);
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

/* Rows of each rank, where its output goes, and what all should have. */
struct gathering {
    uint64_t rows[SIZE];
    bool in_place, no_room;
    uint64_t at[SIZE]; /* in place: where in the output they lie at first */
};

static void *take_rows(void *arg, const uint64_t *rows, uint64_t total)
{
    struct use *use = arg;
    assert_in_range(total, 0, COUNT);
    memcpy(use->rows, rows, sizeof use->rows);
    use->total = total;
    return use->no_room ? NULL : use->out;
}

static void gather(struct bed *bed, const struct gathering *gathering, uint64_t number)
{
    struct use uses[SIZE];
    float expected[COUNT] = {0};
    uint64_t total = 0;
    for (int rank = 0; rank < SIZE; rank++) {
        struct use *use = &uses[rank];
        describe(use, HORON_ALLGATHER, rank, 0);
        use->no_room = gathering->no_room && rank == 1;
        use->op.count = use->part.count = use->given = gathering->rows[rank];
        use->op.ahead = &use->given;
        use->op.row_elements = 1;
        use->op.output = take_rows;
        use->op.output_arg = use;
        for (uint64_t i = 0; i < use->given; i++)
            expected[total++] = use->in[i];
        if (gathering->in_place) {
            assert_in_range(gathering->at[rank] + use->given, 0, COUNT);
            use->part.src = memcpy(use->out + gathering->at[rank], use->in,
                                   (size_t)use->given * sizeof use->in[0]);
        }
    }
    run(bed, uses, number);
    for (int rank = 0; rank < SIZE; rank++) {
        assert_memory_equal(uses[rank].rows, gathering->rows, sizeof uses[rank].rows);
        assert_int_equal(uses[rank].total, total);
        if (!uses[rank].no_room)
            assert_memory_equal(uses[rank].out, expected, (size_t)total * sizeof expected[0]);
    }
}

/* A broadcast of each rank that gives anything; the rows are told on what all can use. */
static void test_route_composes_an_allgather_of_broadcasts(void **state)
{
    static const struct gathering cases[] = {
        {{2, 3}, false, false, {0, 0}}, {{1, 4}, true, false, {0, 0}},
        {{0, 5}, false, false, {0, 0}}, {{4, 0}, true, false, {0, 0}},
        {{0, 0}, false, false, {0, 0}}, {{2, 2}, false, true, {0, 0}},
        {{2, 3}, true, false, {0, 2}},  {{2, 3}, true, false, {3, 1}},
        {{1, 2}, true, false, {4, 3}},
    };
    struct bed *bed = *state;
    bed->fakes[0].base.caps &= ~HORON_BACKEND_EVERYWHERE;
    bed->fakes[0].delay = 1;
    join(bed);
    uint64_t rounds = 0, number = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gather(bed, &cases[i], ++number);
        rounds += (uint64_t)((cases[i].rows[0] > 0) + (cases[i].rows[1] > 0));
    }
    assert_int_equal(bed->fakes[0].lanes[0].done, rounds);
    assert_int_equal(bed->fakes[1].lanes[0].done, number + 2); /* usable, connected, rows */
}

/* The size of a run of operations changes. An allgather's may differ from rank to rank: unknown. */
static void test_route_gives_each_size_to_the_backend_that_is_best_for_it(void **state)
{
    static const uint64_t counts[] = {COUNT, 1, COUNT, COUNT, 2};
    struct bed *bed = *state;
    struct use uses[SIZE];
    bed->fakes[1].prefers_from = sizeof uses[0].in;
    join(bed);
    for (uint64_t number = 0; number < 5; number++) {
        for (int rank = 0; rank < SIZE; rank++) {
            describe(&uses[rank], HORON_ALLREDUCE, rank, 0);
            uses[rank].op.count = uses[rank].part.count = counts[number];
        }
        run(bed, uses, number + 1);
        assert_true(uses[1].out[0] == 10);
    }
    assert_int_equal(bed->fakes[1].lanes[0].done, 3);
    assert_int_equal(bed->fakes[0].lanes[0].done, 2);
    gather(bed, &(struct gathering){.rows = {COUNT, 0}}, 6);
    assert_int_equal(bed->fakes[0].lanes[0].done, 3); /* as one broadcast */
}

/* A thread that sleeps on the poller is woken by what the backend shows. */
static void test_route_watches_the_descriptor_of_a_backend(void **state)
{
    struct bed *bed = *state;
    struct use uses[SIZE];
    struct horon_poller *poller;
    assert_int_equal(horon_poller_create(NULL, &poller, NULL), HORON_OK);
    struct pollfd watched = {.fd = horon_poller_descriptor(poller), .events = POLLIN};
    bed->fakes[0].rings = true;
    bed->options.poller = poller;
    join(bed);
    for (int rank = 0; rank < SIZE; rank++)
        describe(&uses[rank], HORON_ALLREDUCE, rank, 0);
    assert_int_equal(poll(&watched, 1, 0), 0);
    horon_route_begin(&bed->routes[0], &uses[0].op);
    assert_int_equal(horon_route_interval_ns(&bed->routes[0]), 0);
    assert_int_equal(poll(&watched, 1, 0), 0);
    horon_route_begin(&bed->routes[1], &uses[1].op);
    turn_until(bed, 1);
    assert_int_equal(poll(&watched, 1, 0), 1);
    assert_true(horon_poller_collect(poller));
    assert_int_equal(poll(&watched, 1, 0), 0); /* once */
    horon_route_begin(&bed->routes[0], &uses[0].op);
    horon_route_begin(&bed->routes[1], &uses[1].op);
    for (int rank = 0; rank < SIZE; rank++)
        horon_route_abort(&bed->routes[rank]);
    assert_int_equal(eventfd_write(bed->fakes[0].lanes[0].channels[0]->bell, 1), 0);
    assert_int_equal(poll(&watched, 1, 0), 0); /* given up, it wakes nobody */
    for (int rank = 0; rank < SIZE; rank++)
        leave(bed, rank);
    horon_poller_destroy(poller);
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
            assert_true(may_begin(bed, rank, &uses[rank][i]));
            horon_route_begin(route, &uses[rank][i].op);
        }
        assert_false(may_begin(bed, rank, &uses[rank][3])); /* as many as it takes */
        assert_int_equal(horon_route_interval_ns(route), FAKE_INTERVAL_NS);
    }
    turn_until(bed, 1);
    expect_doing(bed, 0, "1 operations are done");
    for (int rank = 0; rank < SIZE; rank++) /* composed, and not beside others */
        assert_false(may_begin(bed, rank, &uses[rank][3]));
    turn_until(bed, 3);
    for (int rank = 0; rank < SIZE; rank++) {
        expect_sum(&uses[rank][2]);
        assert_true(may_begin(bed, rank, &uses[rank][3]));
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
    assert_false(may_begin(bed, 0, &uses[1]));
    assert_true(may_begin(bed, 0, &uses[0]));
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
    leave(bed, 1);
    assert_non_null(strstr(bed->lines[0], "backend first is left at work"));
}

/* In a process of its own, since it dies of it. */
static int status_of_move(enum horon_route_step from, enum horon_route_step to)
{
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct horon_route route = {.step = from};
        const struct rlimit none = {0};
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        horon_route_move(&route, to);
        _exit(route.step == to ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_route_dies_of_an_illegal_step(void **state)
{
    static const bool legal[][7] = {
        /* to: AGREES, READY, OPENS, CONNECTS, MEETS, DRAWS, IS_KNOWN */
        [HORON_ROUTE_AGREES] = {0, 1, 0, 0, 0, 0, 0},
        [HORON_ROUTE_READY] = {0, 0, 1, 0, 1, 1, 0},
        [HORON_ROUTE_OPENS] = {0, 1, 0, 1, 0, 0, 0},
        [HORON_ROUTE_CONNECTS] = {0, 1, 0, 0, 0, 0, 0},
        [HORON_ROUTE_MEETS] = {0, 0, 0, 0, 0, 1, 1},
        [HORON_ROUTE_DRAWS] = {0, 0, 0, 0, 0, 0, 1},
        [HORON_ROUTE_IS_KNOWN] = {0, 1, 0, 0, 0, 0, 0},
    };
    (void)state;
    for (enum horon_route_step from = 0; from <= HORON_ROUTE_IS_KNOWN; from++)
        for (enum horon_route_step to = 0; to <= HORON_ROUTE_IS_KNOWN; to++) {
            const int status = status_of_move(from, to);
            if (legal[from][to])
                assert_int_equal(status, 0);
            else
                assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_route_gives_operations_to_the_first_that_has_them),
        TEST(test_route_tells_once_of_each_fall_to_the_next),
        TEST(test_route_tells_of_a_fall_once_for_all_routes),
        TEST(test_route_gives_each_kind_of_memory_to_a_backend_that_has_it),
        TEST(test_route_chooses_anew_for_another_type_or_memory),
        TEST(test_route_names_what_nobody_carries),
        TEST(test_route_composes_a_broadcast_of_a_sum),
        TEST(test_route_composes_a_reducescatter_of_the_whole),
        TEST(test_route_composes_a_reduce_of_the_whole),
        TEST(test_route_composes_an_average_of_those_that_gave_on_their_devices),
        TEST(test_route_composes_a_barrier),
        TEST(test_route_composes_an_allgather_of_broadcasts),
        TEST(test_route_gives_each_size_to_the_backend_that_is_best_for_it),
        TEST(test_route_watches_the_descriptor_of_a_backend),
        TEST(test_route_launches_several_of_one_backend_in_order),
        TEST(test_route_waits_with_one_backend_for_another),
        TEST(test_route_passes_on_what_a_backend_died_of),
        cmocka_unit_test(test_route_dies_of_an_illegal_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
