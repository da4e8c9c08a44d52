/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A long message of which a part has come within the call that awaits it: it is in flight from
 * there on, or, if its sender is gone, has never been.
 */
#undef NDEBUG
#include "express_bed.h"

#include "engine/messages.h"
#include "link/mux_internal.h"

enum { LONG_BYTES = 30000 };

/* The first part of a long message of tag 3 stands on a ring, behind others.
 * @return both ends, of which the send is in flight */
static void send_long_in_part(struct bed *bed, struct horon_request *both[2])
{
    enum { OTHERS = 8, OTHER_BYTES = 5000 };
    for (uint64_t tag = 4; tag < 4 + OTHERS; tag++) {
        struct horon_request *send = make_send(bed, tag, OTHER_BYTES);
        assert_int_equal(horon_express_send(engine_of(bed, 0), send), HORON_OK);
        put_back(bed, send);
    }
    for (size_t i = 0; i < LONG_BYTES; i++)
        bed->in[i] = (uint8_t)(i % 251);
    memset(bed->out, 0xee, sizeof bed->out);
    both[0] = make_send(bed, 3, LONG_BYTES);
    both[1] = make_recv(bed, 3, LONG_BYTES);
    assert_int_equal(horon_express_send(engine_of(bed, 0), both[0]), HORON_IN_PROGRESS);
    assert_int_equal(horon_express_expect(engine_of(bed, 1), both[1]), HORON_IN_PROGRESS);
}

static horon_status_t receive_soon(struct bed *bed, struct horon_request *recv)
{
    horon_status_t status = HORON_IN_PROGRESS;
    for (int turns = 0; turns < 10 && status == HORON_IN_PROGRESS; turns++)
        status = horon_express_receive(engine_of(bed, 1), recv, false);
    assert_null(recv->team->messages.awaited);
    assert_null(recv->team->messages.coming);
    return status;
}

/* Its data is read to where it belongs, as far as that has come. */
static void test_express_long_receive_that_comes_in_part_is_in_flight(void **state)
{
    struct bed *bed = *state;
    struct horon_request *both[2];
    struct horon_event event;
    send_long_in_part(bed, both);
    assert_int_equal(receive_soon(bed, both[1]), HORON_AGAIN);
    assert_true(both[1]->linked && both[1]->begun);
    assert_true(horon_events_last(engine_of(bed, 1)->events, HORON_EVENT_TAKEN, 0, &event));
    assert_int_equal(event.other, HORON_EVENT_MESSAGE);
    assert_int_equal(horon_engine_in_flight(engine_of(bed, 1)), 1);
    assert_memory_equal(bed->in, bed->out, LONG_BYTES / 2);
    assert_int_equal(bed->out[LONG_BYTES - 1], 0xee);
    take_long_way(bed, both, 2);
    release(both[0], HORON_OK);
    release(both[1], HORON_OK);
    assert_memory_equal(bed->in, bed->out, LONG_BYTES);
    exchange(bed, 3, 8);
}

/* Nothing writes to its memory afterwards. */
static void test_express_long_receive_that_comes_in_part_fails_the_long_way(void **state)
{
    struct bed *bed = *state;
    struct horon_request *both[2];
    struct horon_mux *lost = engine_of(bed, 1)->membership->mux_of[0];
    send_long_in_part(bed, both);
    horon_mux_peer_gone(lost, "is gone");
    assert_int_equal(receive_soon(bed, both[1]), HORON_AGAIN);
    assert_false(both[1]->linked);
    const struct horon_transfer_id *id = &both[1]->message.transfer.id;
    assert_null(horon_mux_find_transfer(&lost->table, HORON_MUX_RECVS, id));
    assert_memory_equal(bed->in, bed->out, LONG_BYTES / 2);
    memset(bed->out, 0xee, sizeof bed->out);
    horon_engine_progress(engine_of(bed, 0));
    take_long_way(bed, &both[1], 1);
    assert_int_equal(bed->out[LONG_BYTES - 1], 0xee);
    release(both[1], HORON_ERR_PEER_LOST);
    release(both[0], HORON_OK); /* it has all gone to where nobody reads it */
}

/* Which no honest peer sends. */
static void test_express_long_receive_takes_what_came_before_it_was_announced(void **state)
{
    struct bed *bed = *state;
    struct horon_error why;
    struct horon_mux *mux = engine_of(bed, 0)->membership->mux_of[1];
    struct horon_request *send = make_send(bed, 3, LONG_BYTES);
    struct horon_request *recv = make_recv(bed, 3, LONG_BYTES);
    const uint64_t next = horon_matching_next_send(team_of(bed, 0)->messages.matching, 1);
    struct horon_transfer early = *horon_message_fill(send, next);
    early.ends = NULL;
    memset(bed->in, 7, LONG_BYTES);
    assert_int_equal(horon_mux_post_send(mux, &early, &why), HORON_OK);
    horon_engine_progress(engine_of(bed, 0));
    assert_true(early.done);
    assert_int_equal(horon_express_send(engine_of(bed, 0), send), HORON_OK);
    put_back(bed, send);
    assert_int_equal(horon_express_expect(engine_of(bed, 1), recv), HORON_IN_PROGRESS);
    assert_int_equal(receive_soon(bed, recv), HORON_OK);
    assert_memory_equal(bed->in, bed->out, LONG_BYTES);
    put_back(bed, recv);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_bed, end_bed)
    const struct CMUnitTest tests[] = {
        TEST(test_express_long_receive_that_comes_in_part_is_in_flight),
        TEST(test_express_long_receive_that_comes_in_part_fails_the_long_way),
        TEST(test_express_long_receive_takes_what_came_before_it_was_announced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
