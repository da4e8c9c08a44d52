/* SPDX-License-Identifier: Apache-2.0 */
/* The store of a launcher keeps jobs of some of its ranks apart from each other, and the launch. */
#undef NDEBUG
#include "boot/store/server.h"
#include "boot/store/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { JOBS = 3, RANKS = 4 };

static const struct {
    const char *blob;
    uint64_t mark;
    int size;
} jobs[JOBS] = {{"a", 1, 2}, {"bb", 2, 2}, {"whole", 0, RANKS}};

struct scene {
    struct horon_pump pump;
    struct horon_job_key key;
    struct horon_store_server *server;
    char address[32];
    struct horon_store *stores[JOBS][RANKS];
};

static struct horon_self self_of(struct scene *scene, int rank, uint64_t mark, int size)
{
    return (struct horon_self){.pump = &scene->pump,
                               .key = &scene->key,
                               .hello = {.protocol_min = HORON_PROTOCOL_MIN,
                                         .protocol_max = HORON_PROTOCOL_MAX,
                                         .role = HORON_ROLE_STORE,
                                         .rank = rank,
                                         .job = mark,
                                         .size = (uint32_t)size}};
}

static void scene_init(struct scene *scene)
{
    struct horon_error error = {0};
    struct horon_addresses at = {.count = 1};
    memset(scene, 0, sizeof *scene);
    assert_int_equal(horon_pump_init(&scene->pump, &error), HORON_OK);
    assert_int_equal(horon_job_key_from_text(&scene->key, "secret", 6, &error), HORON_OK);
    const struct horon_store_server_options options = {.self = self_of(scene, -1, 0, RANKS)};
    scene->server = horon_store_server_create(&options);
    horon_address_parse("127.0.0.1", 0, &at.items[0]);
    assert_int_equal(horon_store_server_listen(scene->server, &at, 0, 0, &error), HORON_OK);
    snprintf(scene->address, sizeof scene->address, "tcp://127.0.0.1:%d", scene->server->port);
}

static struct horon_store *open_listed(struct scene *scene, int rank, uint64_t mark, int size,
                                       const char *ranks)
{
    struct horon_error error = {0};
    struct horon_store *store = NULL;
    const struct horon_store_options options = {
        .self = self_of(scene, rank, mark, size), .address = scene->address, .ranks = ranks};
    assert_int_equal(horon_store_open(&options, &store, &error), HORON_OK);
    return store;
}

static struct horon_store *open_client(struct scene *scene, int rank, uint64_t mark, int size)
{
    return open_listed(scene, rank, mark, size, NULL);
}

static void put(struct horon_store *store, const char *blob)
{
    struct horon_error error = {0};
    assert_int_equal(
        horon_store_put(store, HORON_STORE_PUT_MORE, blob, strlen(blob), UINT64_MAX, &error),
        HORON_OK);
}

/* Sleeps until there is something to do. */
static void turn(struct scene *scene)
{
    assert_int_equal(horon_pump_turn(&scene->pump, 20000), HORON_OK);
}

static void expect_answer(struct scene *scene, struct horon_store *store, int job)
{
    struct horon_blobs blobs;
    while (!horon_store_get(store, &blobs))
        turn(scene);
    for (int r = 0; r < jobs[job].size; r++) {
        const struct horon_reader in = horon_blobs_next(&blobs);
        assert_int_equal(in.limit, strlen(jobs[job].blob));
        assert_memory_equal(in.bytes, jobs[job].blob, in.limit);
    }
    horon_blobs_deinit(&blobs);
}

static horon_status_t await_failure(struct scene *scene, const struct horon_store *store,
                                    struct horon_error *error)
{
    bool whole = false;
    while (horon_store_failed(store, &whole, error) == HORON_OK)
        turn(scene);
    return error->status;
}

/* All at once, and again, as a process may join anew. */
static void test_selections_meet_their_own_ranks(void **state)
{
    struct scene scene;
    (void)state;
    scene_init(&scene);
    for (int again = 0; again < 2; again++) {
        for (int j = 0; j < JOBS; j++) {
            for (int r = 0; r < jobs[j].size; r++) {
                scene.stores[j][r] = open_client(&scene, r, jobs[j].mark, jobs[j].size);
                put(scene.stores[j][r], jobs[j].blob);
            }
        }
        for (int j = 0; j < JOBS; j++)
            for (int r = 0; r < jobs[j].size; r++)
                expect_answer(&scene, scene.stores[j][r], j);
        for (int j = 0; j < JOBS; j++)
            for (int r = 0; r < jobs[j].size; r++)
                horon_store_destroy(scene.stores[j][r]);
    }
    assert_int_equal(scene.server->selection_count, 2);
    horon_store_server_destroy(scene.server);
    horon_pump_deinit(&scene.pump);
}

/* A rank of the launch that died before it joined may be theirs. */
static void test_selections_fail_with_their_launcher(void **state)
{
    struct scene scene;
    struct horon_error why = {0}, error = {0};
    (void)state;
    scene_init(&scene);
    struct horon_store *store = open_client(&scene, 0, 9, 2);
    put(store, "blob");
    while (!scene.server->selections || !horon_store_server_find(scene.server->selections, 0))
        turn(&scene);
    horon_error_set(&why, HORON_ERR_PEER_LOST, "rank 3 died");
    horon_store_server_tell(scene.server, -1, &why);
    assert_int_equal(await_failure(&scene, store, &error), HORON_ERR_PEER_LOST);
    assert_string_equal(error.text, "rank 3 died");
    horon_store_destroy(store);
    horon_store_server_destroy(scene.server);
    horon_pump_deinit(&scene.pump);
}

static void await_list(struct scene *scene)
{
    while (!scene->server->selections || !scene->server->selections->places)
        turn(scene);
}

/* Before its ranks came, or while they wait. */
static void test_selections_hear_of_their_ranks_that_ended(void **state)
{
    (void)state;
    for (int before = 0; before <= 1; before++) {
        struct scene scene;
        struct horon_error error = {0};
        scene_init(&scene);
        if (before)
            horon_store_server_tell(scene.server, 0, NULL);
        struct horon_store *store = open_listed(&scene, 0, 9, 2, "3,0");
        put(store, "blob");
        await_list(&scene);
        for (int rank = 0; rank < RANKS - 1; rank++)
            horon_store_server_tell(scene.server, rank, NULL);
        assert_int_equal(await_failure(&scene, store, &error), HORON_ERR_PEER_LOST);
        assert_string_equal(error.text, "of 2 ranks, rank 1 ended with status 0 without joining");
        assert_int_equal(error.blame.rank, 1);
        horon_store_destroy(store);
        horon_store_server_destroy(scene.server);
        horon_pump_deinit(&scene.pump);
    }
}

/* That others of the launch have failed or ended is nothing to it. */
static void test_selections_go_on_without_ranks_that_they_do_not_need(void **state)
{
    struct scene scene;
    struct horon_error why = {0}, error = {0};
    (void)state;
    scene_init(&scene);
    struct horon_store *store = open_listed(&scene, 0, 9, 2, "2-3");
    put(store, "blob");
    await_list(&scene);
    horon_error_set(&why, HORON_ERR_PEER_LOST, "that rank died");
    why.blame.rank = 1;
    horon_store_server_tell(scene.server, 1, &why);
    horon_store_server_tell(scene.server, 0, NULL);
    struct horon_store *other = open_listed(&scene, 1, 9, 2, "2-3");
    put(other, "blob");
    struct horon_blobs blobs;
    while (!horon_store_get(store, &blobs))
        turn(&scene);
    horon_blobs_deinit(&blobs);
    why.blame.rank = 3;
    horon_store_server_tell(scene.server, 3, &why);
    assert_int_equal(await_failure(&scene, store, &error), HORON_ERR_PEER_LOST);
    assert_string_equal(error.text, "that rank died");
    assert_int_equal(error.blame.rank, 1); /* as it is numbered there */
    horon_store_destroy(store);
    horon_store_destroy(other);
    horon_store_server_destroy(scene.server);
    horon_pump_deinit(&scene.pump);
}

/* Also one whose ranks come after that. */
static void test_selections_hear_of_their_rank_that_failed(void **state)
{
    struct scene scene;
    struct horon_error why = {0}, error = {0};
    (void)state;
    scene_init(&scene);
    horon_error_set(&why, HORON_ERR_PEER_LOST, "that rank died");
    horon_store_server_tell(scene.server, 2, &why);
    struct horon_store *store = open_listed(&scene, 0, 9, 2, "3,2");
    assert_int_equal(await_failure(&scene, store, &error), HORON_ERR_PEER_LOST);
    assert_string_equal(error.text, "of 2 ranks, rank 1 failed without joining");
    horon_store_destroy(store);
    horon_store_server_destroy(scene.server);
    horon_pump_deinit(&scene.pump);
}

/* What is no list of so many of the launch's ranks. */
static void test_selections_of_other_ranks_are_refused(void **state)
{
    static const char *const wrongs[] = {"0", "0-2", "0,4", "0,0", "x"};
    struct scene scene;
    (void)state;
    scene_init(&scene);
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        struct horon_error error = {0};
        struct horon_store *store = open_listed(&scene, 0, 9, 2, wrongs[i]);
        assert_int_equal(await_failure(&scene, store, &error), HORON_ERR_PEER_LOST);
        horon_store_destroy(store);
    }
    assert_null(scene.server->selections->places);
    horon_store_server_destroy(scene.server);
    horon_pump_deinit(&scene.pump);
}

/* Every two ranks of a large launch may be a job of their own. */
static void test_selections_are_as_many_as_a_launch_may_have(void **state)
{
    enum { SIZE = 1000 };
    const struct horon_store_server_options options = {
        .self.hello = horon_hello_of(HORON_ROLE_STORE, -1, SIZE)};
    struct horon_store_server *server = horon_store_server_create(&options);
    struct horon_hello hello = horon_hello_of(HORON_ROLE_STORE, 0, 2);
    (void)state;
    for (int i = 0; i < SIZE / 2; i++) {
        hello.job = (uint64_t)i + 1;
        struct horon_store_server *selection = horon_store_server_select(server, &hello);
        assert_non_null(selection);
        assert_ptr_not_equal(selection, server);
        assert_ptr_equal(horon_store_server_select(server, &hello), selection);
    }
    while (++hello.job <= SIZE)
        assert_non_null(horon_store_server_select(server, &hello));
    assert_null(horon_store_server_select(server, &hello));
    horon_store_server_destroy(server);
}

/* Without a mark another size is a mistake, and with one no selection is larger than the launch. */
static void test_selections_are_smaller_than_the_launch(void **state)
{
    static const struct {
        uint64_t mark;
        int size;
    } wrongs[] = {{0, 2}, {5, RANKS + 1}};
    struct scene scene;
    (void)state;
    scene_init(&scene);
    for (size_t i = 0; i < 2; i++) {
        struct horon_error error = {0};
        struct horon_store *store = open_client(&scene, 0, wrongs[i].mark, wrongs[i].size);
        assert_int_equal(await_failure(&scene, store, &error), HORON_ERR_CONFIG);
        assert_non_null(strstr(error.text, "the launcher in one of 4"));
        horon_store_destroy(store);
    }
    assert_int_equal(scene.server->selection_count, 0);
    horon_store_server_destroy(scene.server);
    horon_pump_deinit(&scene.pump);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_selections_meet_their_own_ranks),
        cmocka_unit_test(test_selections_fail_with_their_launcher),
        cmocka_unit_test(test_selections_hear_of_their_ranks_that_ended),
        cmocka_unit_test(test_selections_go_on_without_ranks_that_they_do_not_need),
        cmocka_unit_test(test_selections_hear_of_their_rank_that_failed),
        cmocka_unit_test(test_selections_of_other_ranks_are_refused),
        cmocka_unit_test(test_selections_are_as_many_as_a_launch_may_have),
        cmocka_unit_test(test_selections_are_smaller_than_the_launch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
