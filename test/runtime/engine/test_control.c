/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other besides data, as bytes: each message whole, cut at every byte and with
 * one byte more; ranks that do not exist; statuses that are none. A message that makes no sense
 * names the peer and changes nothing.
 */
#undef NDEBUG
#include "codec.h"
#include "engine/messages.h"
#include "link/mux_announced.h"
#include "world/teams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PEER 1
static const int hosts[] = {1, 1, 1}; /* ranks 0, 1, 2 */

struct message {
    uint8_t bytes[HORON_ERROR_TEXT_BYTES * 2];
    size_t used;
};

static struct message blaming_message(uint32_t status, uint8_t cause, uint32_t rank,
                                      uint32_t other_rank, const char *text)
{
    struct message message = {0};
    struct horon_writer out = horon_writer_over(message.bytes, sizeof message.bytes);
    horon_write_u8(&out, HORON_CONTROL_ABORT);
    horon_write_varint(&out, 0); /* the job */
    horon_write_u32(&out, status);
    horon_write_u8(&out, cause);
    horon_write_u32(&out, rank);
    horon_write_u32(&out, other_rank);
    horon_write_string(&out, text);
    assert_true(out.ok);
    message.used = out.used;
    return message;
}

static struct message abort_message(uint32_t status, const char *text)
{
    return blaming_message(status, HORON_CAUSE_NONE, UINT32_MAX, UINT32_MAX, text);
}

static struct message departure_message(uint8_t kind, uint64_t ended, uint32_t culprit)
{
    struct message message = {0};
    struct horon_writer out = horon_writer_over(message.bytes, sizeof message.bytes);
    horon_write_u8(&out, kind);
    horon_write_varint(&out, 0); /* the job */
    for (int i = 0; i < HORON_LEFT_COUNT; i++) {
        horon_write_u64(&out, ended);
        horon_write_u32(&out, culprit);
    }
    assert_true(out.ok);
    message.used = out.used;
    return message;
}

/* From a buffer of exact size, for the address sanitizer. */
static horon_status_t hear(struct world *world, int peer, const uint8_t *bytes, size_t byte_count)
{
    struct horon_error error = {0};
    uint8_t *exact = malloc(byte_count ? byte_count : 1);
    if (byte_count)
        memcpy(exact, bytes, byte_count);
    horon_status_t status =
        horon_engine_on_control(world->ranks[0].engine, peer, exact, byte_count, &error);
    free(exact);
    assert_int_equal(error.status, status);
    if (status != HORON_OK) {
        assert_int_equal(status, HORON_ERR_PROTO);
        if (!strstr(error.text, "rank 1 (host-1)"))
            fail_msg("'%s' does not name the peer", error.text);
    }
    return status;
}

static bool has_left(const struct world *world, int rank)
{
    return world->ranks[0].engine->membership->left[rank];
}

static bool knows_of_departures(const struct world *world)
{
    return world->ranks[0].engine->job->departures.any;
}

static void expect_sense_in_whole_only(const struct message *message)
{
    struct world *world = world_create(hosts, 3, NULL, 1);
    struct horon_engine *engine = world->ranks[0].engine;
    for (size_t bytes = 0; bytes < message->used; bytes++)
        assert_int_equal(hear(world, PEER, message->bytes, bytes), HORON_ERR_PROTO);
    assert_int_equal(hear(world, PEER, message->bytes, message->used + 1), HORON_ERR_PROTO);
    assert_int_equal(world_failure(engine, NULL), HORON_OK);
    assert_false(has_left(world, PEER) || knows_of_departures(world));
    assert_int_equal(hear(world, PEER, message->bytes, message->used), HORON_OK);
    assert_true(world_failure(engine, NULL) != HORON_OK || knows_of_departures(world));
    assert_int_equal(has_left(world, PEER), message->bytes[0] == HORON_CONTROL_END);
    world_destroy(world);
}

static void test_control_message_makes_sense_in_whole_only(void **state)
{
    (void)state;
    struct message abort_of_peer = abort_message((uint32_t)HORON_ERR_SYSTEM, "why");
    struct message goodbye = departure_message(HORON_CONTROL_GOODBYE, 0, 2);
    struct message end = departure_message(HORON_CONTROL_END, 0, PEER);
    expect_sense_in_whole_only(&abort_of_peer);
    expect_sense_in_whole_only(&goodbye);
    expect_sense_in_whole_only(&end);
}

static void test_control_kind_that_is_none_is_refused(void **state)
{
    (void)state;
    struct world *world = world_create(hosts, 3, NULL, 1);
    for (int kind = 0; kind < 256; kind++) {
        uint8_t bytes[] = {(uint8_t)kind, 0, 2, 3};
        assert_int_equal(hear(world, PEER, bytes, sizeof bytes), HORON_ERR_PROTO);
        if (kind == HORON_CONTROL_COORDINATOR) { /* which the coordinator does not survive */
            world_destroy(world);
            world = world_create(hosts, 3, NULL, 1);
        }
    }
    assert_int_equal(hear(world, PEER, NULL, 0), HORON_ERR_PROTO);
    assert_int_equal(world_failure(world->ranks[0].engine, NULL), HORON_OK);
    world_destroy(world);
}

static void test_control_abort_fails_with_its_status_and_text(void **state)
{
    static const struct {
        uint32_t given;
        horon_status_t status;
    } cases[] = {
        {(uint32_t)HORON_ERR_PEER_LOST, HORON_ERR_PEER_LOST},
        {(uint32_t)HORON_ERR_CONFIG, HORON_ERR_CONFIG},
        {(uint32_t)HORON_ERR_CONFIG - 1, HORON_ERR_PROTO}, /* none of ours */
        {0, HORON_ERR_PROTO},                              /* success is no failure */
        {1, HORON_ERR_PROTO},
        {0x80000000, HORON_ERR_PROTO},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world *world = world_create(hosts, 3, NULL, i);
        const char *text;
        struct message first = abort_message(cases[i].given, "rank 2 (host-2): the first reason");
        struct message second = abort_message((uint32_t)HORON_ERR_TIMEOUT, "another");
        assert_int_equal(hear(world, PEER, first.bytes, first.used), HORON_OK);
        assert_int_equal(hear(world, PEER, second.bytes, second.used), HORON_OK);
        assert_int_equal(world_failure(world->ranks[0].engine, &text), cases[i].status);
        assert_string_equal(text, "rank 2 (host-2): the first reason");
        for (int turn = 0; turn < 60; turn++) /* it is passed on, to rank 2 by this one */
            horon_engine_progress(world->ranks[turn % 3].engine);
        assert_int_equal(world_failure(world->ranks[2].engine, &text), cases[i].status);
        assert_string_equal(text, "rank 2 (host-2): the first reason");
        world_destroy(world);
    }
}

static void test_control_abort_blames_what_can_be(void **state)
{
    static const struct {
        uint8_t cause;
        uint32_t rank, other_rank;
        struct horon_blame blame;
    } cases[] = {
        {HORON_CAUSE_DIED, 2, UINT32_MAX, {HORON_CAUSE_DIED, 2, -1, false}},
        {HORON_CAUSE_ORDER, 0, 2, {HORON_CAUSE_ORDER, 0, 2, false}},
        {HORON_CAUSE_JOINED + 1, 3, 0x80000000, {HORON_CAUSE_SILENT, -1, -1, false}},
        {255, UINT32_MAX - 1, 1, {HORON_CAUSE_SILENT, -1, 1, false}},
        {HORON_CAUSE_NONE, 1, 3, {HORON_CAUSE_SILENT, 1, -1, false}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world *world = world_create(hosts, 3, NULL, i);
        struct message message = blaming_message((uint32_t)HORON_ERR_PEER_LOST, cases[i].cause,
                                                 cases[i].rank, cases[i].other_rank, "the reason");
        assert_int_equal(hear(world, PEER, message.bytes, message.used), HORON_OK);
        for (int turn = 0; turn < 60; turn++)
            horon_engine_progress(world->ranks[turn % 3].engine);
        for (int rank = 0; rank < 3; rank += 2) { /* this one, and one that it told */
            const struct horon_error *why = horon_engine_failure(world->ranks[rank].engine);
            assert_non_null(why);
            assert_memory_equal(&why->blame, &cases[i].blame, sizeof why->blame);
        }
        world_destroy(world);
    }
}

static void test_control_abort_without_a_readable_reason_is_refused(void **state)
{
    char text[HORON_ERROR_TEXT_BYTES + 1];
    (void)state;
    struct world *world = world_create(hosts, 3, NULL, 1);
    memset(text, 'x', sizeof text);
    text[HORON_ERROR_TEXT_BYTES] = 0; /* one more than there is room for */
    struct message message = abort_message((uint32_t)HORON_ERR_SYSTEM, text);
    assert_int_equal(hear(world, PEER, message.bytes, message.used), HORON_ERR_PROTO);
    message = abort_message((uint32_t)HORON_ERR_SYSTEM, "");
    assert_int_equal(hear(world, PEER, message.bytes, message.used), HORON_ERR_PROTO);
    message = abort_message((uint32_t)HORON_ERR_SYSTEM, "abc");
    message.bytes[17] = 0; /* a text that ends in its middle */
    assert_int_equal(hear(world, PEER, message.bytes, message.used), HORON_ERR_PROTO);
    assert_int_equal(world_failure(world->ranks[0].engine, NULL), HORON_OK);
    text[HORON_ERROR_TEXT_BYTES - 1] = 0; /* the longest */
    message = abort_message((uint32_t)HORON_ERR_SYSTEM, text);
    assert_int_equal(hear(world, PEER, message.bytes, message.used), HORON_OK);
    world_destroy(world);
}

static void test_control_goodbye_that_blames_none_is_refused(void **state)
{
    static const uint32_t none[] = {0, 3, 4, 0x7fffffff, 0x80000000, UINT32_MAX};
    (void)state;
    struct world *world = world_create(hosts, 3, NULL, 1);
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) /* 0 hears it, and knows better */
        for (uint8_t kind = HORON_CONTROL_GOODBYE; kind <= HORON_CONTROL_END; kind++) {
            struct message message = departure_message(kind, 0, none[i]);
            assert_int_equal(hear(world, PEER, message.bytes, message.used), HORON_ERR_PROTO);
        }
    assert_false(has_left(world, PEER) || knows_of_departures(world));
    world_destroy(world);
}

/* Of what several leavers did the least counts, for each lane; at equality the lower rank is to
 * blame, whichever is heard first. */
static void test_control_goodbyes_are_merged_in_any_order(void **state)
{
    static const struct {
        uint64_t ended;
        uint32_t culprit;
    } news[] = {{7, 2}, {5, 2}, {5, 1}, {9, 1}};
    static const int orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 3, 0, 1}, {1, 0, 3, 2}};
    (void)state;
    for (size_t order = 0; order < sizeof orders / sizeof orders[0]; order++) {
        struct world *world = world_create(hosts, 3, NULL, 1);
        const struct horon_departures *known = &world->ranks[0].engine->job->departures;
        for (int i = 0; i < 8; i++) { /* each twice */
            const int n = orders[order][i % 4];
            struct message message =
                departure_message(HORON_CONTROL_GOODBYE, news[n].ended, news[n].culprit);
            assert_int_equal(hear(world, PEER, message.bytes, message.used), HORON_OK);
        }
        for (int i = 0; i < HORON_LEFT_COUNT; i++) {
            assert_int_equal(known->sequence[i], 5);
            assert_int_equal(known->culprit[i], 1);
        }
        world_destroy(world);
    }
}

static struct horon_request *submit(struct world *world, const char *name, float *data)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.flags = name ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = data;
    desc.count = 1;
    return world_submit(world, 0, &desc);
}

/* A rank that left ends what waits for it, with the culprit's name. */
static void test_control_goodbye_ends_what_needs_the_leaver(void **state)
{
    (void)state;
    for (int named = 0; named < 2; named++) {
        struct world *world = world_create(hosts, 3, NULL, (uint64_t)named);
        float x = 1;
        struct horon_request *request = submit(world, named ? "x" : NULL, &x);
        for (int i = 0; i < 5; i++)
            horon_engine_progress(world->ranks[0].engine);
        assert_int_equal(atomic_load(&request->state), HORON_REQUEST_FLYING);
        struct message message = departure_message(HORON_CONTROL_END, 0, 2);
        assert_int_equal(hear(world, PEER, message.bytes, message.used), HORON_OK);
        horon_engine_progress(world->ranks[0].engine);
        assert_int_equal(atomic_load(&request->state), HORON_REQUEST_ENDED);
        assert_int_equal(request->status, HORON_ERR_CLOSED);
        assert_non_null(strstr(request->error_text, "rank 2 (host-2) has shut down"));
        world_release(request);
        world_destroy(world);
    }
}

/* One that left after it had done its part is no reason to fail. */
static void test_control_goodbye_lets_end_what_the_leaver_did(void **state)
{
    (void)state;
    struct world *world = world_create(hosts, 3, NULL, 1);
    float x = 1;
    struct horon_request *request = submit(world, NULL, &x);
    horon_engine_progress(world->ranks[0].engine);
    struct message message =
        departure_message(HORON_CONTROL_END, 1, PEER); /* it completed the one */
    assert_int_equal(hear(world, PEER, message.bytes, message.used), HORON_OK);
    for (int i = 0; i < 5; i++)
        horon_engine_progress(world->ranks[0].engine);
    assert_int_equal(atomic_load(&request->state), HORON_REQUEST_FLYING);
    struct horon_request *next = submit(world, NULL, &x); /* which it cannot have done */
    for (int i = 0; i < 5; i++)
        horon_engine_progress(world->ranks[0].engine);
    assert_int_equal(atomic_load(&request->state), HORON_REQUEST_FLYING); /* it goes first */
    world_release(next);
    world_release(request);
    world_destroy(world);
}

static void test_control_of_the_coordinator_is_nothing_to_a_failed_engine(void **state)
{
    static const uint8_t nonsense[] = {HORON_CONTROL_COORDINATOR, 0, 0xff, 0xff, 0xff};
    (void)state;
    struct world *world = world_create(hosts, 3, NULL, 1);
    world_fail(world->ranks[0].engine, HORON_ERR_SYSTEM, "why");
    assert_int_equal(hear(world, PEER, nonsense, sizeof nonsense), HORON_OK);
    world_destroy(world);
}

static void test_control_messages_that_make_no_sense_are_refused(void **state)
{
    static const struct {
        uint8_t bytes[24];
        size_t count;
    } wrong[] = {
        {{HORON_CONTROL_MESSAGE, 0}, 2},                            /* it ends too soon */
        {{HORON_CONTROL_MESSAGE, 0, [18] = HORON_DTYPE_COUNT}, 19}, /* no such type */
        {{HORON_CONTROL_MESSAGE, 0}, 20},                           /* too long */
        {{HORON_CONTROL_REFUSAL, 0}, 18},                           /* likewise */
        {{HORON_CONTROL_REFUSAL, 0, [18] = UINT8_MAX}, 19},         /* and */
        {{HORON_CONTROL_REFUSAL, 0, [9] = 0xff, [10] = 1}, 19},     /* no such number */
        {{HORON_CONTROL_LINKED, 0, 0}, 3},                          /* more than it says */
        {{HORON_CONTROL_STOPPED, 0, [5] = 0}, 5},                   /* it ends too soon */
        {{HORON_CONTROL_STOPPED, 0, 3}, 6},                         /* no such rank */
        {{HORON_CONTROL_GAVE_UP, 0, 0}, 3},                         /* more than it says */
        {{HORON_CONTROL_GAVE_UP + 1, 0}, 2},                        /* no such kind */
    };
    static const uint8_t right[][19] = {{HORON_CONTROL_MESSAGE, 0}, {HORON_CONTROL_REFUSAL, 0}};
    (void)state;
    struct world *world = world_create(hosts, 3, NULL, 1);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(hear(world, PEER, wrong[i].bytes, wrong[i].count), HORON_ERR_PROTO);
    for (size_t i = 0; i < 2; i++) /* the refusal is of nothing here: it has ended */
        assert_int_equal(hear(world, PEER, right[i], sizeof right[i]), HORON_OK);
    world_destroy(world);
}

/* One that announces itself says the same by its transfer, whose numbers come one after another. */
static void test_control_messages_that_announce_nonsense_are_refused(void **state)
{
    enum { PEER_SENDS = 1 }; /* the lowest bit of a sequence: from a higher rank to a lower one */
    const uint32_t channel = horon_team_message_channel(0);
    const struct {
        struct horon_transfer_id id;
        uint64_t bytes;
    } wrong[] = {
        {{.channel = 0, .sequence = PEER_SENDS, .tag = HORON_FLOAT32}, 4},          /* of a lane */
        {{.channel = UINT32_MAX, .sequence = PEER_SENDS, .tag = HORON_FLOAT32}, 4}, /* of no team */
        {{.channel = channel, .sequence = PEER_SENDS, .tag = HORON_DTYPE_COUNT}, 4},
        {{.channel = channel, .sequence = PEER_SENDS, .tag = UINT64_MAX}, 4},
        {{.channel = channel, .sequence = PEER_SENDS, .tag = HORON_FLOAT32}, 5}, /* no element */
        {{.channel = channel, .sequence = 0, .tag = HORON_FLOAT32}, 4}, /* the other direction */
        {{.channel = channel, .sequence = 2 | PEER_SENDS, .tag = HORON_FLOAT32}, 4}, /* not first */
    };
    (void)state;
    for (size_t i = 0; i <= sizeof wrong / sizeof wrong[0]; i++) {
        struct world *world = world_create(hosts, 3, NULL, 1);
        struct horon_engine *engine = world->ranks[0].engine;
        const bool good = i == sizeof wrong / sizeof wrong[0];
        const struct horon_transfer_id right = {
            .channel = channel, .sequence = PEER_SENDS, .tag = HORON_FLOAT32};
        struct horon_error error = {0};
        struct horon_mux_announced announced = {
            .id = good ? right : wrong[i].id, .check = 7, .bytes = good ? 4 : wrong[i].bytes};
        assert_int_equal(horon_engine_on_announced(engine, PEER, &announced, &error),
                         good ? HORON_OK : HORON_ERR_PROTO);
        assert_false(announced.taken); /* nobody waits for it */
        assert_int_equal(horon_team_has_messages(engine->job), good);
        if (!good)
            assert_string_equal(error.text,
                                "rank 1 (host-1) announced a message that makes no sense");
        world_destroy(world);
    }
}

/* A launcher looks at processes: of a rank of this host nothing less than its end counts. */
static void test_control_rank_is_missed_once_its_process_has_ended(void **state)
{
    static const int one_host[] = {2}, two_hosts[] = {1, 1};
    (void)state;
    for (int far = 0; far < 2; far++) {
        struct world *world = world_create(far ? two_hosts : one_host, far ? 2 : 1, NULL, 1);
        struct horon_engine *engine = world->ranks[0].engine;
        assert_false(horon_engine_misses_rank(engine));
        horon_engine_leave(world->ranks[1].engine);
        for (int turn = 0; turn < 60; turn++)
            horon_engine_progress(world->ranks[turn % 2].engine);
        assert_true(has_left(world, 1));
        assert_int_equal(horon_engine_misses_rank(engine), far);
        if (!far) {
            horon_engine_local_death(engine, 1, false, "hung up");
            horon_engine_progress(engine);
            assert_false(horon_engine_misses_rank(engine));
            horon_engine_local_death(engine, 1, true, "ended");
            assert_true(horon_engine_misses_rank(engine));
        }
        world_destroy(world);
    }
}

/* Rank 1 makes a team and has thousands of tensors in flight there before rank 0 makes it. */
static void test_control_early_messages_have_room(void **state)
{
    enum { TENSORS = 3000 };
    static const int ranks[] = {0, 1};
    static struct horon_request *requests[2][TENSORS];
    static float data[2][TENSORS];
    char name[HORON_NAME_BYTES_MAX + 1];
    (void)state;
    struct world *world = world_create(hosts, 3, NULL, 1);
    struct world_team *team = world_team_create(world, 1, ranks, 2);
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.dtype = HORON_FLOAT32;
    desc.count = 1;
    for (int member = 1; member >= 0; member--) {
        world_team_add(team, member);
        for (int i = 0; i < TENSORS; i++) {
            data[member][i] = (float)i;
            snprintf(name, sizeof name, "%0500d", i);
            desc.src = desc.dst = &data[member][i];
            requests[member][i] = world_team_submit(team, member, &desc);
        }
        for (int turn = 0; turn < 4 * TENSORS; turn++)
            horon_engine_progress(world->ranks[turn % 2].engine);
        assert_int_equal(world_failure(world->ranks[0].engine, NULL), HORON_OK);
        if (member == 1)
            assert_true(world->ranks[0].engine->early_bytes > (size_t)TENSORS * 500);
    }
    assert_int_equal(world->ranks[0].engine->early_bytes, 0);
    for (int member = 0; member < 2; member++) {
        assert_true(world_turn_until(world, requests[member], TENSORS));
        for (int i = 0; i < TENSORS; i++) {
            assert_true(data[member][i] == 2 * (float)i);
            world_release(requests[member][i]);
        }
    }
    world_team_destroy(team);
    world_destroy(world);
}

/* The receiver describes it alike, so it lacks something else. */
static void test_control_refusal_of_what_is_alike_says_no_memory(void **state)
{
    static const uint8_t refusal[19] = {HORON_CONTROL_REFUSAL,
                                        0, [11] = 0x10, [18] = HORON_UINT8}; /* 4,096 of them */
    static uint8_t data[4096];
    (void)state;
    struct world *world =
        world_create(hosts, 3, (const char *const[]){"NET_EAGER_BYTES=100", NULL}, 1);
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.verb = HORON_SEND;
    desc.dtype = HORON_UINT8;
    desc.root = PEER;
    desc.src = data;
    desc.count = sizeof data;
    struct horon_request *request = world_submit(world, 0, &desc);
    horon_engine_progress(world->ranks[0].engine);
    assert_int_equal(hear(world, PEER, refusal, sizeof refusal), HORON_OK);
    assert_int_equal(request->status, HORON_ERR_MEMORY);
    assert_non_null(strstr(request->error_text, "rank 1 (host-1) has no memory to receive it"));
    world_release(request);
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control_message_makes_sense_in_whole_only),
        cmocka_unit_test(test_control_kind_that_is_none_is_refused),
        cmocka_unit_test(test_control_abort_fails_with_its_status_and_text),
        cmocka_unit_test(test_control_abort_blames_what_can_be),
        cmocka_unit_test(test_control_abort_without_a_readable_reason_is_refused),
        cmocka_unit_test(test_control_goodbye_that_blames_none_is_refused),
        cmocka_unit_test(test_control_goodbyes_are_merged_in_any_order),
        cmocka_unit_test(test_control_goodbye_ends_what_needs_the_leaver),
        cmocka_unit_test(test_control_goodbye_lets_end_what_the_leaver_did),
        cmocka_unit_test(test_control_of_the_coordinator_is_nothing_to_a_failed_engine),
        cmocka_unit_test(test_control_messages_that_make_no_sense_are_refused),
        cmocka_unit_test(test_control_messages_that_announce_nonsense_are_refused),
        cmocka_unit_test(test_control_refusal_of_what_is_alike_says_no_memory),
        cmocka_unit_test(test_control_rank_is_missed_once_its_process_has_ended),
        cmocka_unit_test(test_control_early_messages_have_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
