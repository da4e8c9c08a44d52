/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions of a store over links that change and reframe their bytes by the secrets of the
 * handshake, as links that encipher will: in all rounds, and for a failure.
 */
#undef NDEBUG
#include "../../../collectives/wrapped_link.h"
#include "boot/store/server.h"
#include "boot/store/store.h"
#include "boot/store/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <assert.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { RANKS = 3, ROUNDS = 4 };

struct scene {
    struct horon_pump pump;
    struct horon_job_key key;
    struct horon_store_server *server;
    char address[32];
    struct horon_store *stores[RANKS];
};

static int wraps;

/* With little room in the system, so that the link holds parts of its frames. */
static struct horon_link *wrap(struct horon_link *inside, const struct horon_proven *proven)
{
    const int few = 1;
    wraps++;
    setsockopt(proven->fd, SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
    static_assert(WRAPPED_SECRET_BYTES == HORON_SECRET_BYTES, "the secrets are whole");
    return wrapped_link_create_with(inside, proven->send_secret, proven->receive_secret);
}

/* For want of memory. */
static struct horon_link *wrap_not(struct horon_link *inside, const struct horon_proven *proven)
{
    (void)inside;
    (void)proven;
    return NULL;
}

static void scene_init(struct scene *scene, horon_link_wrap_fn_t of_server)
{
    struct horon_error error = {0};
    struct horon_addresses at = {.count = 1};
    memset(scene, 0, sizeof *scene);
    wraps = 0;
    assert_int_equal(horon_pump_init(&scene->pump, &error), HORON_OK);
    assert_int_equal(horon_job_key_from_text(&scene->key, "secret", 6, &error), HORON_OK);
    const struct horon_store_server_options options = {
        .self = {&scene->pump, &scene->key, horon_hello_of(HORON_ROLE_STORE, -1, RANKS), NULL},
        .wrap = of_server};
    scene->server = horon_store_server_create(&options);
    horon_address_parse("127.0.0.1", 0, &at.items[0]);
    assert_int_equal(horon_store_server_listen(scene->server, &at, 0, 0, &error), HORON_OK);
    snprintf(scene->address, sizeof scene->address, "tcp://127.0.0.1:%d", scene->server->port);
}

static void open_client(struct scene *scene, int rank, horon_link_wrap_fn_t of_client)
{
    struct horon_error error = {0};
    const struct horon_store_options options = {
        .self = {&scene->pump, &scene->key, horon_hello_of(HORON_ROLE_STORE, rank, RANKS), NULL},
        .address = scene->address,
        .wrap = of_client};
    assert_int_equal(horon_store_open(&options, &scene->stores[rank], &error), HORON_OK);
}

static void scene_deinit(struct scene *scene)
{
    for (int r = 0; r < RANKS; r++)
        horon_store_destroy(scene->stores[r]);
    horon_store_server_destroy(scene->server);
    horon_pump_deinit(&scene->pump);
}

/* Sleeps whenever no descriptor says that there is something to do: what a link alone knew of would
 * never come. */
static void turn(struct scene *scene)
{
    assert_int_equal(horon_pump_turn(&scene->pump, 20000), HORON_OK);
}

static horon_status_t await_failure(struct scene *scene, int rank, struct horon_error *error)
{
    bool whole = false;
    while (horon_store_failed(scene->stores[rank], &whole, error) == HORON_OK)
        turn(scene);
    return error->status;
}

/* Blobs of unlike lengths, the longest one too. */
static size_t blob_of(int rank, int round, uint8_t blob[HORON_STORE_BLOB_BYTES_MAX])
{
    const size_t bytes = rank == round ? HORON_STORE_BLOB_BYTES_MAX : (size_t)(rank * 997);
    for (size_t i = 0; i < bytes; i++)
        blob[i] = (uint8_t)(i * 31 + (size_t)(rank * 7 + round));
    return bytes;
}

static void play_round(struct scene *scene, int round)
{
    static uint8_t blob[HORON_STORE_BLOB_BYTES_MAX];
    struct horon_error error = {0};
    for (int r = 0; r < RANKS; r++) {
        const size_t bytes = blob_of(r, round, blob);
        assert_int_equal(
            horon_store_put(scene->stores[r],
                            round == ROUNDS - 1 ? HORON_STORE_PUT_LAST : HORON_STORE_PUT_MORE, blob,
                            bytes, UINT64_MAX, &error),
            HORON_OK);
    }
    for (int r = 0; r < RANKS; r++) {
        struct horon_blobs blobs;
        while (!horon_store_get(scene->stores[r], &blobs))
            turn(scene);
        for (int k = 0; k < RANKS; k++) {
            const struct horon_reader in = horon_blobs_next(&blobs);
            assert_int_equal(in.limit, blob_of(k, round, blob));
            assert_memory_equal(in.bytes, blob, in.limit);
        }
        horon_blobs_deinit(&blobs);
    }
}

static void test_wrapped_session_goes_through_all_its_rounds(void **state)
{
    struct scene scene;
    (void)state;
    scene_init(&scene, wrap);
    for (int r = 0; r < RANKS; r++)
        open_client(&scene, r, wrap);
    for (int round = 0; round < ROUNDS; round++)
        play_round(&scene, round);
    assert_int_equal(wraps, 2 * RANKS);
    assert_false(horon_store_server_busy(scene.server));
    scene_deinit(&scene);
}

static void test_wrapped_session_fails_with_the_reason_of_a_rank(void **state)
{
    static const struct horon_error why = {.status = HORON_ERR_MEMORY,
                                           .text = "rank 1 (here): no memory"};
    struct scene scene;
    struct horon_error error = {0};
    (void)state;
    scene_init(&scene, wrap);
    for (int r = 0; r < RANKS; r++)
        open_client(&scene, r, wrap);
    play_round(&scene, 0);
    assert_true(horon_store_abort(scene.stores[1], &why));
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(await_failure(&scene, r, &error), HORON_ERR_MEMORY);
        assert_string_equal(error.text, why.text);
    }
    scene_deinit(&scene);
}

static void test_wrapped_session_without_memory_is_an_end(void **state)
{
    struct scene scene;
    struct horon_error error = {0};
    (void)state;
    scene_init(&scene, wrap_not);
    open_client(&scene, 0, NULL);
    assert_int_equal(await_failure(&scene, 0, &error), HORON_ERR_PEER_LOST);
    open_client(&scene, 1, wrap_not);
    assert_int_equal(await_failure(&scene, 1, &error), HORON_ERR_MEMORY);
    scene_deinit(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrapped_session_goes_through_all_its_rounds),
        cmocka_unit_test(test_wrapped_session_fails_with_the_reason_of_a_rank),
        cmocka_unit_test(test_wrapped_session_without_memory_is_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
