/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that end within the call that begins them: the request is never in flight. Whatever
 * stands in the way leaves all as it was, and the long way gives what it gives without this. Two
 * ranks of one host, in one thread.
 */
#undef NDEBUG
#include "express_bed.h"

static void test_express_message_is_never_in_flight(void **state)
{
    struct bed *bed = *state;
    static const uint64_t counts[] = {0, 1, 8, 1000, 8191, 8192, 20000}; /* long: read directly */
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const uint64_t ends[2] = {engine_of(bed, 0)->ends, engine_of(bed, 1)->ends};
        struct horon_request *send = make_send(bed, i, counts[i]);
        struct horon_request *recv = make_recv(bed, i, counts[i]);
        memset(bed->in, (int)i + 1, sizeof bed->in);
        memset(bed->out, 0, sizeof bed->out);
        assert_int_equal(horon_express_expect(engine_of(bed, 1), recv), HORON_IN_PROGRESS);
        assert_int_equal(horon_express_receive(engine_of(bed, 1), recv, false), HORON_IN_PROGRESS);
        assert_int_equal(horon_express_send(engine_of(bed, 0), send), HORON_OK);
        assert_int_equal(horon_express_receive(engine_of(bed, 1), recv, false), HORON_OK);
        assert_memory_equal(bed->in, bed->out, counts[i]);
        assert_int_equal(bed->out[counts[i]], 0);
        put_back(bed, send);
        put_back(bed, recv);
        for (int rank = 0; rank < 2; rank++)
            assert_int_equal(engine_of(bed, rank)->ends, ends[rank] + 1);
    }
}

/* Half of the room that the sender has is due, and no message goes back that would take it along: a
 * thread that lets go of the token must hear of it. */
static void test_express_room_to_give_back_is_left_over(void **state)
{
    struct bed *bed = *state;
    struct horon_request *recv = make_recv(bed, 0, 8);
    bool leaves = false;
    uint64_t taken = 0;
    for (; taken <= HORON_MUX_EAGER_TRANSFERS_MAX && !leaves; taken++) {
        exchange(bed, taken, 8);
        leaves = horon_express_leaves_work(engine_of(bed, 1), &recv, 1);
        assert_int_equal(leaves, horon_engine_leaves_work(engine_of(bed, 1), true));
    }
    assert_in_range(taken, 2, HORON_MUX_EAGER_TRANSFERS_MAX / 2 + 1);
    horon_engine_progress(engine_of(bed, 1));
    assert_false(horon_express_leaves_work(engine_of(bed, 1), &recv, 1));
    assert_false(horon_engine_leaves_work(engine_of(bed, 1), true));
    put_back(bed, recv);
}

/* Ahead of a message something else comes, which has the coordinator say something: it has that to
 * say yet, and the link of the message has nothing. */
static void test_express_what_comes_ahead_of_a_message_is_left_over(void **state)
{
    struct bed *bed = *state;
    const horon_descriptor_t descs[2] = {message(HORON_RECV, 1, 7, bed->out, 8),
                                         message(HORON_SEND, 0, 7, bed->in, 8)};
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    barrier.name = "met";
    struct horon_request *barriers[2] = {NULL, world_submit(bed->world, 1, &barrier)};
    while (horon_engine_progress(engine_of(bed, 1)))
        continue;
    struct horon_request *send = make(bed, 1, &descs[1]);
    horon_engine_start_now(engine_of(bed, 1), &send, 1);
    horon_engine_progress(engine_of(bed, 1));
    release(send, HORON_OK);
    assert_false(horon_engine_leaves_work(engine_of(bed, 0), true));
    struct horon_request *recv = make(bed, 0, &descs[0]);
    horon_express_begin(engine_of(bed, 0));
    assert_int_equal(horon_express_expect(engine_of(bed, 0), recv), HORON_IN_PROGRESS);
    assert_int_equal(horon_express_receive(engine_of(bed, 0), recv, false), HORON_OK);
    assert_true(horon_engine_leaves_work(engine_of(bed, 0), true));
    assert_true(horon_express_leaves_work(engine_of(bed, 0), &recv, 1));
    put_back(bed, recv);
    barriers[0] = world_submit(bed->world, 0, &barrier);
    assert_true(world_turn_until(bed->world, barriers, 2));
    for (int rank = 0; rank < 2; rank++)
        world_release(barriers[rank]);
}

/* All of it is said to have been when it came. */
static void test_express_events_have_their_time(void **state)
{
    struct bed *bed = *state;
    static const enum horon_event_kind kinds[] = {HORON_EVENT_BEGUN, HORON_EVENT_ENDED};
    struct horon_event event;
    for (uint64_t i = 0; i < 3; i++) {
        bed->world->now_ns += 1000;
        exchange(bed, i, 8);
        for (int rank = 0; rank < 2; rank++)
            for (size_t kind = 0; kind < 2; kind++) {
                assert_true(
                    horon_events_last(engine_of(bed, rank)->events, kinds[kind], 0, &event));
                assert_int_equal(event.time_ns, bed->world->now_ns);
            }
    }
}

/* Else the clock is not looked at again, which takes as long as a message. */
static void test_express_what_comes_late_has_a_time_of_its_own(void **state)
{
    struct bed *bed = *state;
    struct horon_event event;
    for (int late = 0; late < 2; late++) {
        struct horon_request *send = make_send(bed, (uint64_t)late, 8);
        struct horon_request *recv = make_recv(bed, (uint64_t)late, 8);
        horon_express_begin(engine_of(bed, 1));
        horon_events_look(engine_of(bed, 1)->events);
        const uint64_t begun_ns = bed->world->now_ns;
        assert_int_equal(horon_express_expect(engine_of(bed, 1), recv), HORON_IN_PROGRESS);
        for (int i = 0; i < (late ? 100 : 3); i++)
            assert_int_equal(horon_express_receive(engine_of(bed, 1), recv, false),
                             HORON_IN_PROGRESS);
        bed->world->now_ns += 1000;
        assert_int_equal(horon_express_send(engine_of(bed, 0), send), HORON_OK);
        assert_int_equal(horon_express_receive(engine_of(bed, 1), recv, false), HORON_OK);
        assert_true(horon_events_last(engine_of(bed, 1)->events, HORON_EVENT_ENDED, 0, &event));
        assert_int_equal(event.time_ns, late ? bed->world->now_ns : begun_ns);
        put_back(bed, send);
        put_back(bed, recv);
    }
}

/* The sender makes no turn: it reads itself that its peer has room again. */
static void test_express_stream_of_one_way_gets_on(void **state)
{
    struct bed *bed = *state;
    for (uint64_t i = 0; i < 3000; i++) {
        struct horon_request *send = make_send(bed, i, 8);
        if (horon_express_send(engine_of(bed, 0), send) == HORON_OK) {
            put_back(bed, send);
        } else {
            horon_engine_start_now(engine_of(bed, 0), &send, 1);
            release(send, HORON_OK);
        }
        receive_at_once(bed, i);
    }
}

/* A message of another tag waits for its receive; the one that is awaited comes behind it. */
static void test_express_goes_past_what_others_wait_for(void **state)
{
    struct bed *bed = *state;
    struct horon_request *recv = make_recv(bed, 7, 8), *send;
    uint8_t other[8] = {0};
    assert_int_equal(horon_express_expect(engine_of(bed, 1), recv), HORON_IN_PROGRESS);
    for (uint64_t tag = 6; tag < 8; tag++) {
        memset(bed->in, (int)tag, 8);
        send = make_send(bed, tag, 8);
        assert_int_equal(horon_express_send(engine_of(bed, 0), send), HORON_OK);
        put_back(bed, send);
    }
    assert_int_equal(horon_express_receive(engine_of(bed, 1), recv, false), HORON_OK);
    assert_int_equal(bed->out[0], 7);
    put_back(bed, recv);

    const horon_descriptor_t desc = message(HORON_RECV, 0, 6, other, 8);
    recv = make(bed, 1, &desc);
    assert_int_equal(horon_express_expect(engine_of(bed, 1), recv), HORON_AGAIN); /* it is there */
    take_long_way(bed, &recv, 1);
    assert_int_equal(other[0], 6);
    release(recv, HORON_OK);
}

/* The long way says so, and what comes behind it is not taken for it. */
static void test_express_leaves_what_differs_to_the_long_way(void **state)
{
    struct bed *bed = *state;
    struct horon_request *recv = make_recv(bed, 3, 8);
    assert_int_equal(horon_express_expect(engine_of(bed, 1), recv), HORON_IN_PROGRESS);
    for (uint64_t count = 4; count <= 8; count += 4) {
        struct horon_request *send = make_send(bed, 3, count);
        assert_int_equal(horon_express_send(engine_of(bed, 0), send), HORON_OK);
        put_back(bed, send);
    }
    assert_int_equal(horon_express_receive(engine_of(bed, 1), recv, false), HORON_AGAIN);
    take_long_way(bed, &recv, 1);
    assert_non_null(strstr(recv->error_text, "4 uint8"));
    release(recv, HORON_ERR_MISMATCH);
    recv = make_recv(bed, 3, 8);
    take_long_way(bed, &recv, 1);
    release(recv, HORON_OK);
}

/* A long one is announced before its data comes. */
static void test_express_leaves_what_is_long_to_the_long_way(void **state)
{
    struct bed *bed = *state;
    struct horon_request *both[2] = {make_send(bed, 3, BYTES_MAX), make_recv(bed, 3, BYTES_MAX)};
    horon_status_t status = horon_express_expect(engine_of(bed, 1), both[1]);
    memset(bed->in, 5, BYTES_MAX);
    assert_int_equal(horon_express_send(engine_of(bed, 0), both[0]), HORON_AGAIN);
    horon_engine_start_now(engine_of(bed, 0), both, 1);
    for (int turns = 0; turns < 10 && status == HORON_IN_PROGRESS; turns++) {
        horon_engine_progress(engine_of(bed, 0));
        status = horon_express_receive(engine_of(bed, 1), both[1], false);
    }
    assert_int_equal(status, HORON_AGAIN);
    take_long_way(bed, both, 2);
    assert_memory_equal(bed->in, bed->out, BYTES_MAX);
    release(both[0], HORON_OK);
    release(both[1], HORON_OK);
}

/* Nothing may go before what is in flight. */
static void test_express_waits_for_what_is_in_flight(void **state)
{
    struct bed *bed = *state;
    uint8_t other[8];
    const horon_descriptor_t desc[2] = {message(HORON_SEND, 1, 9, other, 8),
                                        message(HORON_RECV, 0, 9, other, 8)};
    struct horon_request *posted[2], *ours[2];
    for (int rank = 0; rank < 2; rank++) {
        posted[rank] = world_submit(bed->world, rank, &desc[rank]);
        ours[rank] = rank ? make_recv(bed, 9, 8) : make_send(bed, 9, 8);
    }
    for (int turns = 0; turns < 2;
         turns++) { /* in the mailbox; then taken, on the rank that receives */
        assert_int_equal(horon_express_expect(engine_of(bed, 1), ours[1]), HORON_AGAIN);
        if (turns == 0)
            assert_int_equal(horon_express_send(engine_of(bed, 0), ours[0]), HORON_AGAIN);
        horon_engine_progress(engine_of(bed, 1));
    }
    memset(other, 1, sizeof other);
    memset(bed->in, 2, 8);
    assert_true(world_turn_until(bed->world, posted, 2));
    take_long_way(bed, ours, 2);
    assert_int_equal(bed->out[0], 2);
    for (int rank = 0; rank < 2; rank++) {
        release(ours[rank], HORON_OK);
        world_release(posted[rank]);
    }
}

/* A ring that has no room for all of it: from there on it is in flight as any other. */
static void test_express_send_that_goes_in_part_is_in_flight(void **state)
{
    struct bed *bed = *state;
    enum { BYTES = 5000, SENDS_MAX = 4096 };
    horon_status_t status = HORON_OK;
    uint64_t sent = 0;
    struct horon_request *send;
    for (;; sent++) {
        assert_in_range(sent, 0, SENDS_MAX);
        memset(bed->in, (int)sent, BYTES);
        send = make_send(bed, sent, BYTES);
        status = horon_express_send(engine_of(bed, 0), send);
        if (status != HORON_OK)
            break;
        put_back(bed, send);
    }
    assert_int_equal(status, HORON_IN_PROGRESS);
    assert_true(send->linked && send->begun);
    assert_int_equal(horon_engine_in_flight(engine_of(bed, 0)), 1);
    struct horon_request *next = make_send(bed, SENDS_MAX, 8);
    assert_int_equal(horon_express_send(engine_of(bed, 0), next), HORON_AGAIN);
    for (uint64_t tag = 0; tag <= sent; tag++) {
        struct horon_request *recv = make_recv(bed, tag, BYTES);
        take_long_way(bed, &recv, 1);
        assert_int_equal(bed->out[BYTES - 1], (uint8_t)tag);
        release(recv, HORON_OK);
    }
    assert_true(world_turn_until(bed->world, &send, 1));
    release(send, HORON_OK);
    struct horon_request *rest[2] = {next, make_recv(bed, SENDS_MAX, 8)};
    take_long_way(bed, rest, 2);
    release(rest[0], HORON_OK);
    release(rest[1], HORON_OK);
}

static void on_end(void *arg, horon_request_t *request, horon_status_t status)
{
    (void)request;
    *(horon_status_t *)arg = status;
}

static void test_express_leaves_callbacks_to_the_long_way(void **state)
{
    struct bed *bed = *state;
    horon_status_t called = HORON_ERR_INVALID;
    horon_descriptor_t desc = message(HORON_SEND, 1, 2, bed->in, 8);
    desc.callback = on_end;
    desc.callback_arg = &called;
    struct horon_request *send = make(bed, 0, &desc);
    assert_int_equal(horon_express_send(engine_of(bed, 0), send), HORON_AGAIN);
    take_long_way(bed, &send, 1);
    assert_int_equal(called, HORON_OK);
    release(send, HORON_OK);
}

static bool has_ended(struct horon_request *request)
{
    return (atomic_load(&request->state) & HORON_REQUEST_STATE_MASK) == HORON_REQUEST_ENDED;
}

static void go_on(const struct bed *bed, int rank)
{
    while (horon_engine_progress(engine_of(bed, rank)))
        ;
}

/* Rank 0 sends to 1, which is late, and gets what 2 sends. */
static void exchange_with_two(struct bed *three, bool apart)
{
    static uint8_t long_in[BYTES_MAX], long_out[BYTES_MAX], in[8], out[8];
    const horon_descriptor_t descs[] = {
        message(HORON_SEND, 1, 1, long_in, BYTES_MAX), message(HORON_RECV, 2, 1, out, 8),
        message(HORON_SEND, 0, 1, in, 8), message(HORON_RECV, 0, 1, long_out, BYTES_MAX)};
    static const int ranks[] = {0, 0, 2, 1};
    struct horon_request *all[4];
    memset(long_in, 1 + apart, sizeof long_in);
    memset(in, 1 + apart, sizeof in);
    for (int i = 0; i < 4; i++)
        all[i] = make(three, ranks[i], &descs[i]);
    horon_engine_start_now(engine_of(three, 0), all, 2);
    if (apart)
        go_on(three, 0); /* its send is announced, and it has nothing more to do for it */
    horon_engine_start_now(engine_of(three, 2), &all[2], 1);
    if (apart) {
        go_on(three, 2);
        for (int turns = 0; turns < 2; turns++)
            (void)horon_engine_move_messages(engine_of(three, 0), all, 2);
        assert_true(has_ended(all[1]));
        assert_false(has_ended(all[0]));
    }
    horon_engine_start_now(engine_of(three, 1), &all[3], 1);
    assert_true(world_turn_until(three->world, all, 4));
    for (int i = 0; i < 4; i++)
        release(all[i], HORON_OK);
    assert_int_equal(out[7], 1 + apart);
    assert_int_equal(long_out[BYTES_MAX - 1], 1 + apart);
}

/* What comes behind the message that is awaited stays on the link, and is not kept elsewhere until
 * somebody asks for it. */
static void test_express_takes_a_burst_message_by_message(void **state)
{
    struct bed *bed = *state;
    for (uint64_t tag = 0; tag < 4; tag++) {
        struct horon_request *send = make_send(bed, tag, 8);
        assert_int_equal(horon_express_send(engine_of(bed, 0), send), HORON_OK);
        put_back(bed, send);
    }
    for (uint64_t tag = 0; tag < 4; tag++)
        receive_at_once(bed, tag);

    /* one that is longer is read in pieces, up to the one that is awaited */
    static const uint64_t counts[] = {1000, 8};
    for (uint64_t tag = 0; tag < 2; tag++) {
        memset(bed->in, 3, (size_t)counts[tag]);
        struct horon_request *send = make_send(bed, tag, counts[tag]);
        assert_int_equal(horon_express_send(engine_of(bed, 0), send), HORON_OK);
        put_back(bed, send);
    }
    receive_at_once(bed, 1);
    struct horon_request *recv = make_recv(bed, 0, counts[0]);
    take_long_way(bed, &recv, 1);
    release(recv, HORON_OK);
    assert_int_equal(bed->out[999], 3);
}

/* A thread that waits for the end of a send moves what its rank gets of another one meanwhile,
 * without a turn of everything. */
static void test_express_links_of_all_that_is_waited_for_are_turned(void **state)
{
    static const int hosts[] = {3};
    struct bed *three = calloc(1, sizeof *three);
    (void)state;
    three->world = world_create(hosts, 1, NULL, 1);
    exchange_with_two(three, false); /* makes the links */
    exchange_with_two(three, true);
    world_destroy(three->world);
    free(three);
}

static void test_express_receive_from_a_rank_that_ends_fails_the_long_way(void **state)
{
    struct bed *bed = *state;
    struct horon_request *recv = make_recv(bed, 3, 8);
    assert_int_equal(horon_express_expect(engine_of(bed, 1), recv), HORON_IN_PROGRESS);
    horon_engine_local_death(engine_of(bed, 1), 0, true, "it was killed");
    horon_status_t status = HORON_IN_PROGRESS;
    for (int turns = 0; turns < 10 && status == HORON_IN_PROGRESS; turns++)
        status = horon_express_receive(engine_of(bed, 1), recv, false);
    assert_int_equal(status, HORON_AGAIN);
    assert_null(recv->team->messages.awaited);
    take_long_way(bed, &recv, 1);
    release(recv, HORON_ERR_PEER_LOST);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_bed, end_bed)
    const struct CMUnitTest tests[] = {
        TEST(test_express_message_is_never_in_flight),
        TEST(test_express_room_to_give_back_is_left_over),
        TEST(test_express_what_comes_ahead_of_a_message_is_left_over),
        TEST(test_express_events_have_their_time),
        TEST(test_express_what_comes_late_has_a_time_of_its_own),
        TEST(test_express_stream_of_one_way_gets_on),
        TEST(test_express_goes_past_what_others_wait_for),
        TEST(test_express_leaves_what_differs_to_the_long_way),
        TEST(test_express_leaves_what_is_long_to_the_long_way),
        TEST(test_express_waits_for_what_is_in_flight),
        TEST(test_express_send_that_goes_in_part_is_in_flight),
        TEST(test_express_leaves_callbacks_to_the_long_way),
        TEST(test_express_takes_a_burst_message_by_message),
        TEST(test_express_links_of_all_that_is_waited_for_are_turned),
        TEST(test_express_receive_from_a_rank_that_ends_fails_the_long_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
