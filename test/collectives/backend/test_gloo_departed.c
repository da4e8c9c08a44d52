/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend gloo of one rank, of whose many peers all but one have left: their connections stay
 * ready for ever, and what the last one sends is to be found all the same. The rank sleeps and
 * wakes as the engine's do: by a poller, which tells of each event once.
 */
#include "../mesh.h"

#include "backend/backend.h"
#include "backend/gloo_state.h"
#include "backend/messages.h"
#include "link/gloo_frame.h"
#include "link/poller.h"
#include "log.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* More than a rank asks for at a time, several times over. */
#define SIZE 80
#define ALIVE 41
#define TAG 7
#define TURNS_MAX 1000

static struct world {
    int sockets[SIZE]; /* of the peers; 0: it has left */
    const char *names[SIZE];
    char name_texts[SIZE][16];
    struct horon_team team;
    struct horon_backend_context *context;
    struct horon_backend_channel *channel;
    struct horon_poller *poller;
    struct horon_backend_message message;
    uint32_t data;
    bool ended;
} world;

static const struct horon_log quiet = {.level = HORON_LOG_ERROR, .rank = -1};

/* @param gone  all peers but one have left before the backend knows them */
static void open_world(bool gone)
{
    struct horon_link *links[SIZE] = {NULL};
    struct horon_error error = {0};
    const struct horon_backend_settings settings = {.launched = SIZE, .gloo_links = links};
    const struct horon_channel_options options = {0};
    memset(&world, 0, sizeof world);
    for (int peer = 0; peer < SIZE; peer++) {
        int pair[2];
        snprintf(world.name_texts[peer], sizeof world.name_texts[peer], "rank %d", peer);
        world.names[peer] = world.name_texts[peer];
        if (peer == 0)
            continue;
        mesh_tcp_pair(pair);
        world.sockets[peer] = pair[1];
        if (gone && peer != ALIVE) {
            struct pollfd comes = {.fd = pair[0], .events = POLLIN};
            close(pair[1]);
            world.sockets[peer] = 0;
            assert_int_equal(poll(&comes, 1, -1), 1);
        }
        assert_int_equal(horon_link_tcp_create(pair[0], 0, &links[peer], &error), HORON_OK);
    }
    world.team = (struct horon_team){.rank = 0, .size = SIZE, .rank_names = world.names};
    assert_int_equal(
        horon_backend_gloo.open(&horon_backend_gloo, &settings, &quiet, &world.context, &error),
        HORON_OK);
    assert_int_equal(horon_backend_gloo.create(world.context, &options, &world.team, NULL, 0, NULL,
                                               &world.channel),
                     HORON_OK);
    assert_int_equal(horon_poller_create(NULL, &world.poller, &error), HORON_OK);
    assert_int_equal(horon_poller_add_descriptor(
                         world.poller, horon_backend_gloo.descriptor(world.channel), &error),
                     HORON_OK);
}

static void close_world(void)
{
    horon_poller_remove_descriptor(world.poller, horon_backend_gloo.descriptor(world.channel));
    horon_poller_destroy(world.poller);
    horon_backend_gloo.destroy(world.channel);
    horon_backend_gloo.close(world.context);
    for (int peer = 0; peer < SIZE; peer++)
        if (world.sockets[peer])
            close(world.sockets[peer]);
}

/* Until what a peer has done is here. */
static void await(int peer)
{
    const struct horon_gloo_context *context = (struct horon_gloo_context *)(void *)world.context;
    const struct horon_link *link = horon_gloo_pair_link(context->mesh.pairs[peer]);
    struct pollfd comes = {.fd = link->ops->descriptor(link), .events = POLLIN};
    assert_int_equal(poll(&comes, 1, -1), 1);
}

static void all_but_one_leave(void)
{
    for (int peer = 1; peer < SIZE; peer++) {
        if (peer == ALIVE)
            continue;
        close(world.sockets[peer]);
        world.sockets[peer] = 0;
        await(peer);
    }
}

static void send_word(uint32_t word)
{
    const struct horon_gloo_frame frame = {
        .code = HORON_GLOO_SEND, .slot = TAG, .length = sizeof word};
    uint8_t bytes[HORON_GLOO_FRAME_BYTES + sizeof word];
    horon_gloo_frame_encode(&frame, bytes);
    memcpy(bytes + HORON_GLOO_FRAME_BYTES, &word, sizeof word);
    assert_int_equal(send(world.sockets[ALIVE], bytes, sizeof bytes, 0), sizeof bytes);
    await(ALIVE);
}

static void begin_recv(int peer)
{
    world.ended = false;
    world.message = (struct horon_backend_message){
        .peer = peer, .tag = TAG, .data = &world.data, .bytes = sizeof world.data};
    assert_int_equal(horon_gloo_messages.begin(world.channel, &world.message), HORON_OK);
}

/* As the engine: it goes to sleep once a turn has moved nothing and nothing has come since. */
static horon_status_t turn_until_it_sleeps(struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    bool moved = true;
    for (int turn = 0; status == HORON_OK && moved; turn++) {
        struct horon_backend_message *ended = NULL;
        assert_true(turn < TURNS_MAX);
        moved = false;
        status = horon_gloo_messages.move(world.channel, &ended, &moved, error);
        world.ended |= ended != NULL;
        moved |= horon_poller_collect(world.poller);
    }
    return status;
}

/* A turn that finds nothing looks at none of those that have left. */
static void nothing_is_ready(void)
{
    struct pollfd any = {.fd = horon_backend_gloo.descriptor(world.channel), .events = POLLIN};
    assert_int_equal(poll(&any, 1, 0), 0);
}

static void words_are_heard(void)
{
    struct horon_error error = {0};
    for (uint32_t word = 1; word <= 3; word++) {
        begin_recv(ALIVE);
        assert_int_equal(turn_until_it_sleeps(&error), HORON_OK);
        assert_false(world.ended);
        nothing_is_ready();
        send_word(word);
        assert_true(horon_poller_collect(world.poller)); /* which wakes it */
        assert_int_equal(turn_until_it_sleeps(&error), HORON_OK);
        assert_true(world.ended);
        assert_int_equal(world.data, word);
    }
}

static void test_gloo_departed_ranks_hide_no_message(void **state)
{
    struct horon_error error = {0};
    (void)state;
    open_world(false);
    all_but_one_leave();
    assert_int_equal(turn_until_it_sleeps(&error), HORON_OK);
    words_are_heard();
    close_world();
}

/* A message that comes among the ends is found with them. */
static void test_gloo_departed_ranks_hide_no_message_that_was_awaited(void **state)
{
    struct horon_error error = {0};
    (void)state;
    open_world(false);
    begin_recv(ALIVE);
    assert_int_equal(turn_until_it_sleeps(&error), HORON_OK);
    all_but_one_leave();
    send_word(5);
    assert_int_equal(turn_until_it_sleeps(&error), HORON_OK);
    assert_true(world.ended);
    assert_int_equal(world.data, 5);
    close_world();
}

/* Their ends are known then before a turn has met them. */
static void test_gloo_departed_ranks_hide_nothing_from_a_rank_that_counted_them(void **state)
{
    struct horon_error error = {0};
    (void)state;
    open_world(false);
    begin_recv(ALIVE);
    assert_int_equal(turn_until_it_sleeps(&error), HORON_OK);
    all_but_one_leave();
    (void)horon_backend_gloo.undelivered(world.context);
    send_word(5);
    assert_int_equal(turn_until_it_sleeps(&error), HORON_OK);
    assert_true(world.ended);
    words_are_heard();
    close_world();
}

static void test_gloo_departed_ranks_may_have_left_before(void **state)
{
    (void)state;
    open_world(true);
    words_are_heard();
    close_world();
}

static void test_gloo_departed_rank_that_is_awaited_is_named(void **state)
{
    struct horon_error error = {0};
    (void)state;
    open_world(false);
    all_but_one_leave();
    assert_int_equal(turn_until_it_sleeps(&error), HORON_OK);
    begin_recv(ALIVE + 1);
    assert_int_equal(turn_until_it_sleeps(&error), HORON_ERR_PEER_LOST);
    assert_ptr_equal(strstr(error.text, "rank 42 "), error.text);
    assert_int_equal(error.blame.rank, ALIVE + 1);
    close_world();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_departed_ranks_hide_no_message),
        cmocka_unit_test(test_gloo_departed_ranks_hide_no_message_that_was_awaited),
        cmocka_unit_test(test_gloo_departed_ranks_hide_nothing_from_a_rank_that_counted_them),
        cmocka_unit_test(test_gloo_departed_ranks_may_have_left_before),
        cmocka_unit_test(test_gloo_departed_rank_that_is_awaited_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
