/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a backend comes to carry operations: it is opened, usable on all ranks at the lowest of their
 * versions, and connected by what its channels tell each other; and what happens where it is not.
 */
#include "route_bed.h"

static void test_route_does_without_a_backend_that_is_not_usable(void **state)
{
    struct bed *bed = *state;
    bed->fakes[0].refuses = "its library was not found";
    bed->fakes[0].base.caps &= ~HORON_BACKEND_EVERYWHERE;
    join(bed);
    sum(bed, 1);
    assert_int_equal(bed->fakes[1].lanes[0].done, 2); /* the first is what all can use */
    assert_int_equal(bed->line_count, SIZE);
    assert_non_null(strstr(bed->lines[0], "backend first is not used: its library was not found"));
    /* Another lane of the context has the same to say, which is no second line. */
    struct horon_route_options options = bed->options;
    options.backends = &bed->opened[0];
    options.channel.channel = 1;
    for (int lane = 1; lane <= 2; lane++) {
        struct horon_route route;
        if (lane == 2)
            bed->fakes[0].refuses = "it has gone"; /* which is new */
        assert_int_equal(horon_route_init(&route, &options, &bed->teams[0], NULL), HORON_OK);
        horon_route_deinit(&route);
        assert_int_equal(bed->line_count, SIZE + lane - 1);
    }
}

static void test_route_does_without_what_nobody_could_drive(void **state)
{
    struct bed *bed = *state;
    static struct fake all;
    const struct horon_backend *backends[3] = {bed->backends[0], bed->backends[1], &all.base};
    fake_init(&all, "all", caps);
    bed->tables = backends;
    bed->backend_count = 3;
    bed->fakes[0].base.caps = HORON_BACKEND_KEEPS_TREE;
    bed->fakes[1].base.caps =
        HORON_BACKEND_ANY_THREAD | HORON_BACKEND_ONE_LAUNCH_ORDER; /* and there are no tickets */
    join(bed);
    for (int i = 0; i < 3; i++)
        assert_int_equal(bed->routes[0].terms.versions[i], i == 2);
    assert_non_null(strstr(bed->lines[0], "it wants one thread"));
    assert_non_null(strstr(bed->lines[1], "it wants one order of launches"));
    for (int rank = 0; rank < SIZE; rank++)
        leave(bed, rank);
}

/* The choice is one of all ranks: what one of them cannot use, none does. */
static void test_route_uses_what_all_ranks_can_use(void **state)
{
    struct bed *bed = *state;
    bed->fakes[0].refuses = "its library was not found";
    bed->fakes[0].refused = 1u << 1;
    bed->fakes[0].base.caps &= ~HORON_BACKEND_EVERYWHERE;
    join(bed);
    for (uint64_t number = 1; number <= 2; number++)
        sum(bed, number);
    assert_int_equal(bed->fakes[0].lanes[0].done, 0);
    assert_int_equal(bed->fakes[1].lanes[0].done, 3); /* with the words about it */
    assert_null(bed->fakes[0].lanes[0].channels[0]);  /* and nobody made a channel of it */
    assert_int_equal(bed->line_count, 2);
    assert_non_null(strstr(bed->lines[0], "backend first is not used: its library was not found"));
    assert_non_null(strstr(bed->lines[1], "backend first is not used: rank 1 (h) cannot"));
}

static void test_route_does_without_a_backend_that_is_not_there(void **state)
{
    struct bed *bed = *state;
    bed->fakes[0].absent = "its library was not found";
    bed->fakes[0].base.caps &= ~HORON_BACKEND_EVERYWHERE;
    join(bed);
    sum(bed, 1);
    assert_int_equal(bed->fakes[1].lanes[0].done, 2);
    assert_int_equal(bed->line_count, SIZE);
    assert_non_null(strstr(bed->lines[0], "backend first is not used: its library was not found"));
    /* a request asks what is there, not what could be */
    const struct horon_signature broadcast = {.verb = HORON_BROADCAST};
    assert_true(horon_backends_have(&bed->opened[0], &broadcast));
    bed->fakes[1].lacks |= 1u << HORON_BROADCAST;
    assert_false(horon_backends_have(&bed->opened[0], &broadcast));
}

/* Before the first operation that it carries, whatever the other one did before. */
static void test_route_connects_a_backend_before_its_first_operation(void **state)
{
    struct bed *bed = *state;
    struct use uses[SIZE];
    bed->fakes[0].base.caps &= ~HORON_BACKEND_EVERYWHERE;
    bed->fakes[0].base.address_words = 2;
    bed->fakes[0].connects = 3;
    bed->fakes[0].lacks |= 1u << HORON_ALLREDUCE;
    join(bed);
    for (uint64_t number = 1; number <= 4; number++) {
        for (int rank = 0; rank < SIZE; rank++)
            describe(&uses[rank], number == 1 ? HORON_ALLREDUCE : HORON_BROADCAST, rank, 0);
        for (int rank = 0; rank < SIZE && number > 1; rank++)
            uses[rank].op.device = 2 + rank;
        run(bed, uses, number);
        assert_int_equal(bed->fakes[0].connecting, number == 1 ? 0 : SIZE * 4);
    }
    assert_memory_equal(uses[1].out, uses[0].in, sizeof uses[0].in);
    assert_int_equal(bed->fakes[0].lanes[0].channels[1]->device, 3);
    assert_int_equal(bed->fakes[0].lanes[0].done, 3);
    assert_int_equal(bed->fakes[1].lanes[0].done, 3); /* usable, the allreduce, addresses */
}

/* Of the two ranks one is made to wait, and the other has told its address by then. */
static void test_route_asks_again_for_a_channel_that_cannot_be_made_yet(void **state)
{
    struct bed *bed = *state;
    struct use uses[SIZE];
    bed->fakes[0].base.caps &= ~HORON_BACKEND_EVERYWHERE;
    bed->fakes[0].base.address_words = 2;
    bed->fakes[0].makes = 20;
    bed->fakes[0].making[1] = 20;
    join(bed);
    for (int turn = 0; turn < 10; turn++)
        for (int rank = 0; rank < SIZE; rank++) {
            describe(&uses[rank], HORON_ALLREDUCE, rank, 0);
            assert_false(may_begin(bed, rank, &uses[rank]));
        }
    assert_null(bed->fakes[0].lanes[0].channels[0]);
    assert_non_null(bed->fakes[0].lanes[0].channels[1]);
    expect_doing(bed, 0, "");
    run(bed, uses, 1);
    assert_true(bed->fakes[0].making[0] > 20);
    assert_int_equal(bed->fakes[0].lanes[0].done, 1);
}

static void test_route_that_connects_waits_and_is_given_up_like_any(void **state)
{
    struct bed *bed = *state;
    struct use uses[SIZE];
    bed->fakes[0].base.caps &= ~HORON_BACKEND_EVERYWHERE;
    bed->fakes[0].connects = 1000;
    join(bed);
    for (int turn = 0; turn < 20; turn++)
        for (int rank = 0; rank < SIZE; rank++) {
            describe(&uses[rank], HORON_ALLREDUCE, rank, 0);
            assert_false(may_begin(bed, rank, &uses[rank]));
        }
    assert_true(bed->fakes[0].connecting > 0);
    assert_int_equal(horon_route_interval_ns(&bed->routes[0]), FAKE_INTERVAL_NS);
    assert_true(horon_route_waits_for(&bed->routes[0], 1));
    expect_doing(bed, 0, "it connects");
    for (int time = 0; time < 2; time++) { /* the second: nothing is at work any more */
        horon_route_abort(&bed->routes[0]);
        assert_true(bed->fakes[0].lanes[0].channels[0]->aborted);
        assert_int_equal(horon_route_interval_ns(&bed->routes[0]), 0);
        assert_false(horon_route_waits_for(&bed->routes[0], 1));
        expect_doing(bed, 0, "");
    }
    horon_route_abort(&bed->routes[1]);
}

static void test_route_does_without_a_backend_of_which_a_rank_can_make_no_channel(void **state)
{
    struct bed *bed = *state;
    bed->fakes[0].base.caps &= ~HORON_BACKEND_EVERYWHERE;
    bed->fakes[0].base.address_words = 1;
    bed->fakes[0].unmade = 1u << 1;
    join(bed);
    for (uint64_t number = 1; number <= 2; number++)
        sum(bed, number);
    assert_int_equal(bed->fakes[0].connecting, 0);
    assert_null(bed->fakes[0].lanes[0].channels[0]); /* it was made, and dropped again */
    assert_int_equal(bed->fakes[1].lanes[0].done, 4);
    assert_int_equal(bed->line_count, 2);
    assert_non_null(strstr(bed->lines[0], "backend first is not used: no channel: "));
    assert_non_null(strstr(bed->lines[1], "backend first is not used: rank 1 (h) cannot"));
}

/* What only a newer version has goes to it where all ranks have found that. */
static void test_route_goes_by_the_lowest_version_of_all_ranks(void **state)
{
    static const struct {
        uint32_t versions[SIZE];
        int carried_by;
    } cases[] = {{{2, 2}, 0}, {{2, 3}, 0}, {{2, 1}, 1}, {{1, 2}, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make(state);
        struct bed *bed = *state;
        bed->fakes[0].base.caps &= ~HORON_BACKEND_EVERYWHERE;
        bed->fakes[0].since_2 = 1u << HORON_ALLREDUCE;
        memcpy(bed->fakes[0].versions, cases[i].versions, sizeof cases[i].versions);
        join(bed);
        sum(bed, 1);
        assert_int_equal(bed->fakes[0].lanes[0].done, cases[i].carried_by == 0);
        end(state);
    }
}

static void test_route_waits_for_ranks_that_have_not_said_what_they_can_use(void **state)
{
    struct bed *bed = *state;
    struct use uses[SIZE];
    bed->fakes[0].base.caps &= ~HORON_BACKEND_EVERYWHERE;
    join(bed);
    for (int rank = 0; rank < SIZE; rank++)
        describe(&uses[rank], HORON_ALLREDUCE, rank, 0);
    assert_false(may_begin(bed, 0, &uses[0]));
    assert_true(horon_route_waits_for(&bed->routes[0], 1));
    expect_doing(bed, 0, "ranks tell each other which backends they can use");
    run(bed, uses, 1);
    expect_sum(&uses[0]);
    assert_int_equal(bed->fakes[0].lanes[0].done, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_route_does_without_a_backend_that_is_not_usable),
        TEST(test_route_does_without_what_nobody_could_drive),
        TEST(test_route_uses_what_all_ranks_can_use),
        TEST(test_route_does_without_a_backend_that_is_not_there),
        TEST(test_route_connects_a_backend_before_its_first_operation),
        TEST(test_route_asks_again_for_a_channel_that_cannot_be_made_yet),
        TEST(test_route_that_connects_waits_and_is_given_up_like_any),
        TEST(test_route_does_without_a_backend_of_which_a_rank_can_make_no_channel),
        cmocka_unit_test(test_route_goes_by_the_lowest_version_of_all_ranks),
        TEST(test_route_waits_for_ranks_that_have_not_said_what_they_can_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
