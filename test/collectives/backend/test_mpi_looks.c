/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often MPI is looked at, by a clock that stands still until the test moves it: a turn looks a
 * few times and no longer than it may; pauses grow with what an operation takes beyond its time,
 * and behind the last operation with the time since; and where nothing is left there is no look.
 */
#undef NDEBUG
#include "backend/mpi_shut.h"
#include "backend/mpi_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#define US UINT64_C(1000)
#define MS (1000 * US)
#define S (1000 * MS)
/* Between two turns of a thread that waits and does not sleep. */
#define TURN_NS US
/* What an operation of no bytes may take. */
#define AT_WORK_NS (10 * MS)

/* Of the test that runs. */
static uint64_t clock_ns, look_ns; /* look_ns: what each look takes */
static unsigned looks, through_at; /* the look that finds all through; 0: none */
static int failure;

int clock_gettime(clockid_t clock, struct timespec *time) /* the C library's comes behind it */
{
    (void)clock;
    time->tv_sec = (time_t)(clock_ns / S);
    time->tv_nsec = (long)(clock_ns % S);
    return 0;
}

static int testall(int count, void *requests, int *through, void *statuses)
{
    (void)count;
    (void)requests;
    (void)statuses;
    looks++;
    clock_ns += look_ns;
    *through = looks == through_at;
    return failure;
}

static int iprobe(int from, int tag, horon_mpi_handle comm, int *found, void *status)
{
    (void)from;
    (void)tag;
    (void)comm;
    (void)status;
    looks++;
    clock_ns += look_ns;
    *found = 0;
    return HORON_MPI_SUCCESS;
}

static int finalized(int *flag)
{
    *flag = 0;
    return HORON_MPI_SUCCESS;
}

static int error_string(int code, char *text, int *length)
{
    (void)code;
    text[0] = 0;
    *length = 0;
    return HORON_MPI_SUCCESS;
}

static const struct horon_mpi_family family = {.name = "a fake", .handle_bytes = 4};
static const struct horon_mpi_library library = {.family = &family,
                                                 .mpi = {.testall = testall,
                                                         .iprobe = iprobe,
                                                         .finalized = finalized,
                                                         .error_string = error_string}};
static const struct horon_team team = {.size = 3};
static struct horon_mpi_context context;
static struct horon_mpi_channel channel;

static int begin(void **state)
{
    (void)state;
    context = (struct horon_mpi_context){.library = &library};
    channel = (struct horon_mpi_channel){
        .context = &context, .team = &team, .element_bytes = 4, .connected = true};
    clock_ns = S;
    look_ns = looks = through_at = 0;
    failure = HORON_MPI_SUCCESS;
    return 0;
}

static horon_status_t turn(bool *moved_out)
{
    struct horon_error error = {0};
    *moved_out = false;
    return horon_mpi_look(&channel, moved_out, &error);
}

/* An operation of which a rank gives @p elements is in flight. @return how long it is at work */
static uint64_t launch(uint64_t elements)
{
    bool moved;
    channel.flying = 1;
    horon_mpi_expect(&channel, elements);
    assert_int_equal(turn(&moved), HORON_IN_PROGRESS);
    return channel.looks.due_ns - clock_ns;
}

static void test_mpi_looks_a_turn_is_short(void **state)
{
    static const struct {
        uint64_t look_ns;
        unsigned looks;
    } turns[] = {{0, 16}, {US, 16}, {5 * US, 5}, {15 * US, 3}, {25 * US, 2}, {10 * MS, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        bool moved;
        channel.flying = 1;
        looks = 0;
        look_ns = turns[i].look_ns;
        assert_int_equal(turn(&moved), HORON_IN_PROGRESS);
        assert_int_equal(looks, turns[i].looks);
    }
}

static void test_mpi_looks_the_one_that_finds_the_end_is_the_last(void **state)
{
    (void)state;
    for (through_at = 1; through_at <= 16; through_at++) {
        bool moved;
        channel.flying = 2;
        looks = 0;
        assert_int_equal(turn(&moved), HORON_OK);
        assert_true(moved);
        assert_int_equal(looks, through_at);
        assert_int_equal(channel.flying, 0);
    }
}

static void test_mpi_looks_one_that_fails_is_the_last(void **state)
{
    bool moved;
    (void)state;
    channel.flying = 1;
    failure = 1;
    assert_int_equal(turn(&moved), HORON_ERR_SYSTEM);
    assert_int_equal(looks, 1);
    assert_false(moved);
}

/* A thread that waits stays awake while an operation may be at work, and no longer. */
static void test_mpi_looks_keep_awake_for_the_time_of_the_bytes(void **state)
{
    (void)state;
    assert_int_equal(launch(0), AT_WORK_NS);
    assert_int_equal(launch(1000000), AT_WORK_NS + 240 * MS);
    assert_int_equal(launch(1000000000), 60 * S);
    assert_int_equal(launch(UINT64_MAX), 60 * S);
    const uint64_t begun_ns = clock_ns, due_ns = clock_ns + launch(0);
    uint64_t said_ns = begun_ns;
    unsigned said = 0;
    for (; clock_ns < begun_ns + S; clock_ns += TURN_NS) {
        bool moved;
        assert_int_equal(turn(&moved), HORON_IN_PROGRESS);
        if (moved) {
            assert_true(clock_ns < due_ns && clock_ns - said_ns >= 50 * US);
            said_ns = clock_ns;
            said++;
        }
    }
    assert_int_equal(said, AT_WORK_NS / (50 * US) - 1); /* launch() had the first */
}

/* @return turns until @p end_ns of a thread that sleeps as long as it is told to, which must be
 * ever longer */
static unsigned sleep_until(uint64_t end_ns, uint64_t (*pause)(void), uint64_t *longest_out)
{
    unsigned turns = 0;
    *longest_out = 0;
    while (clock_ns < end_ns) {
        const uint64_t ns = pause();
        assert_true(ns >= *longest_out && ns > 0);
        *longest_out = ns;
        clock_ns += ns;
        turns++;
    }
    return turns;
}

static uint64_t pause_in_flight(void)
{
    bool moved;
    assert_int_equal(turn(&moved), HORON_IN_PROGRESS);
    assert_false(moved);
    return horon_mpi_pause(&channel);
}

static void test_mpi_looks_pauses_grow_with_what_lasts(void **state)
{
    uint64_t longest;
    (void)state;
    clock_ns += launch(0);
    const uint64_t due_ns = clock_ns;
    assert_in_range(sleep_until(due_ns + 20 * MS, pause_in_flight, &longest), 990, 1000);
    assert_in_range(longest, 20 * US, 21 * US);
    assert_in_range(sleep_until(due_ns + S, pause_in_flight, &longest), 3800, 4000);
    assert_in_range(longest, 990 * US, MS);
    assert_in_range(sleep_until(due_ns + 3600 * S, pause_in_flight, &longest), 3599000, 3599100);
    assert_int_equal(longest, MS);
    /* the next one begins anew */
    launch(0);
    assert_int_equal(horon_mpi_pause(&channel), 20 * US);
}

static uint64_t settle(void)
{
    return horon_backend_mpi.settle(&channel.base);
}

/* While the rank waits for something else: the time since the operation's end doubles from look to
 * look. */
static void test_mpi_looks_behind_an_operation_come_ever_less_often(void **state)
{
    uint64_t longest;
    (void)state;
    for (int operation = 0; operation < 2; operation++) {
        channel.settles = true;
        channel.ended_ns = 0;
        const uint64_t begun_ns = clock_ns;
        looks = 0;
        assert_int_equal(settle(), 20 * US);
        clock_ns += 20 * US;
        sleep_until(begun_ns + S, settle, &longest);
        assert_in_range(looks, 15, 18);
        sleep_until(begun_ns + 3600 * S, settle, &longest);
        assert_in_range(looks, 3610, 3620);
        assert_int_equal(longest, S);
    }
}

static void test_mpi_looks_there_are_none_where_nothing_is_left(void **state)
{
    (void)state;
    assert_int_equal(settle(), 0); /* no operation has ended */
    channel.settles = channel.given_up = true;
    assert_int_equal(settle(), 0);
    channel.given_up = false;
    assert_int_equal(looks, 0);
    assert_int_equal(settle(), 20 * US);
    assert_int_equal(looks, 1);
    horon_mpi_shut(); /* for good: this test is the last one */
    assert_int_equal(settle(), 0);
    assert_int_equal(looks, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_mpi_looks_a_turn_is_short, begin),
        cmocka_unit_test_setup(test_mpi_looks_the_one_that_finds_the_end_is_the_last, begin),
        cmocka_unit_test_setup(test_mpi_looks_one_that_fails_is_the_last, begin),
        cmocka_unit_test_setup(test_mpi_looks_keep_awake_for_the_time_of_the_bytes, begin),
        cmocka_unit_test_setup(test_mpi_looks_pauses_grow_with_what_lasts, begin),
        cmocka_unit_test_setup(test_mpi_looks_behind_an_operation_come_ever_less_often, begin),
        cmocka_unit_test_setup(test_mpi_looks_there_are_none_where_nothing_is_left, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
