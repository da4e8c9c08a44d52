/* SPDX-License-Identifier: Apache-2.0 */
/* The server on real sockets: strangers, wrong keys, slow and rude clients, limits. One thread. */
#undef NDEBUG
#include "boot/store/server.h"

#include "../boots.h"
#include "address.h"
#include "boot/connect/listen.h"
#include "boot/connect/prover.h"
#include "boot/identity/identity.h"
#include "boot/store/store.h"
#include "clock.h"
#include "codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define TURNS 4000 /* of a millisecond at most: far more than anything here needs */

struct scene {
    struct horon_store_server *server;
    struct horon_pump pump;
    struct horon_job_key key;
    char address[64];
    int size, warnings, turns_left;
    bool come[32]; /* the ranks of which the server has said so */
    struct horon_log log;
};

static void note_line(void *arg, horon_log_level_t level, const char *text)
{
    struct scene *scene = arg;
    int rank;
    scene->warnings += level == HORON_LOG_WARN;
    const char *said = strstr(text, "rank ");
    if (level == HORON_LOG_DEBUG && strstr(text, "has come to the store") &&
        sscanf(said, "rank %d has", &rank) == 1)
        scene->come[rank] = true;
}

/* @param at "*": everywhere */
static struct horon_addresses places(const char *at)
{
    struct horon_addresses places = {.count = 1};
    if (!horon_address_parse(at, 0, &places.items[0]))
        horon_addresses_everywhere(&places);
    return places;
}

static void scene_init(struct scene *scene, int size, const char *at, bool launcher)
{
    struct horon_error error = {0};
    const struct horon_addresses listen = places(at);
    memset(scene, 0, sizeof *scene);
    scene->size = size;
    scene->turns_left = TURNS;
    scene->log =
        (struct horon_log){.fn = note_line, .arg = scene, .level = HORON_LOG_DEBUG, .rank = -1};
    assert_int_equal(horon_pump_init(&scene->pump, &error), HORON_OK);
    const struct horon_store_server_options options = {
        .self = {&scene->pump, &scene->key,
                 horon_hello_of(HORON_ROLE_STORE, launcher ? -1 : 0, size), &scene->log}};
    assert_int_equal(horon_job_key_from_text(&scene->key, "secret", 6, &error), HORON_OK);
    scene->server = horon_store_server_create(&options);
    assert_int_equal(horon_store_server_listen(scene->server, &listen, 0, 0, &error), HORON_OK);
    snprintf(scene->address, sizeof scene->address, "tcp://%s:%d",
             strcmp(at, "::1") == 0 ? "[::1]" : "127.0.0.1", scene->server->port);
}

static void scene_deinit(struct scene *scene)
{
    horon_store_server_destroy(scene->server);
    horon_pump_deinit(&scene->pump);
}

/* Lets the server and all clients of the scene go on until nothing happens for a while. A busy
 * machine may deliver later than that: what must come is awaited by TURN_UNTIL. */
static void turn(struct scene *scene)
{
    int idle = 0;
    for (int i = 0; i < TURNS && idle < 20; i++) {
        idle = horon_pump_turn(&scene->pump, 1) == HORON_OK ? 0 : idle + 1;
    }
}

#define TURN_UNTIL(scene, what)                                                                    \
    do                                                                                             \
        turn(scene);                                                                               \
    while (!(what) && (scene)->turns_left-- > 0)

static struct horon_store *open_client(struct scene *scene, int rank,
                                       const struct horon_job_key *key)
{
    struct horon_error error = {0};
    struct horon_store *store = NULL;
    const struct horon_store_options options = {
        .self = {&scene->pump, key, horon_hello_of(HORON_ROLE_STORE, rank, scene->size), NULL},
        .address = scene->address};
    assert_int_equal(horon_store_open(&options, &store, &error), HORON_OK);
    return store;
}

static void put(struct horon_store *store, const char *blob, uint64_t deadline_ns)
{
    struct horon_error error = {0};
    assert_int_equal(
        horon_store_put(store, HORON_STORE_PUT_MORE, blob, strlen(blob), deadline_ns, &error),
        HORON_OK);
}

static horon_status_t failure(const struct horon_store *store, struct horon_error *error)
{
    bool whole;
    return horon_store_failed(store, &whole, error);
}

static bool awaited(struct scene *scene, struct horon_store *store, struct horon_blobs *blobs)
{
    bool here;
    TURN_UNTIL(scene, (here = horon_store_get(store, blobs)));
    return here;
}

static horon_status_t awaited_failure(struct scene *scene, const struct horon_store *store,
                                      struct horon_error *error)
{
    TURN_UNTIL(scene, failure(store, error) != HORON_OK);
    return failure(store, error);
}

static void test_server_round_is_answered(void **state)
{
    struct scene scene;
    struct horon_store *stores[3];
    (void)state;
    scene_init(&scene, 3, "127.0.0.1", true);
    for (int r = 0; r < 3; r++) {
        stores[r] = open_client(&scene, r, &scene.key);
        put(stores[r], r == 1 ? "" : "blob", UINT64_MAX);
    }
    for (int r = 0; r < 3; r++) {
        struct horon_blobs blobs;
        assert_true(awaited(&scene, stores[r], &blobs));
        assert_true(scene.come[r]);
        assert_int_equal(horon_blobs_next(&blobs).limit, 4);
        assert_int_equal(horon_blobs_next(&blobs).limit, 0);
        assert_memory_equal(horon_blobs_next(&blobs).bytes, "blob", 4);
        assert_true(horon_reader_finished(&blobs.in));
        horon_blobs_deinit(&blobs);
        assert_false(horon_store_get(stores[r], &blobs));
    }
    assert_false(horon_store_server_busy(scene.server));
    assert_int_equal(scene.warnings, 0);
    for (int r = 0; r < 3; r++)
        horon_store_destroy(stores[r]);
    scene_deinit(&scene);
}

static void test_server_wrong_key_is_refused_and_reported(void **state)
{
    struct scene scene;
    struct horon_job_key other;
    struct horon_error error = {0};
    (void)state;
    scene_init(&scene, 2, "::1", true);
    assert_int_equal(horon_job_key_from_text(&other, "other", 5, &error), HORON_OK);
    struct horon_store *store = open_client(&scene, 0, &other);
    put(store, "blob", UINT64_MAX);
    assert_int_equal(awaited_failure(&scene, store, &error), HORON_ERR_AUTH);
    assert_non_null(strstr(error.text, "[::1]:"));
    assert_false(scene.come[0]);
    TURN_UNTIL(&scene, scene.warnings == 1);
    assert_int_equal(scene.warnings, 1);
    horon_store_destroy(store);
    scene_deinit(&scene);
}

static void test_server_of_another_size_is_named(void **state)
{
    struct scene scene;
    struct horon_error error = {0};
    (void)state;
    scene_init(&scene, 2, "127.0.0.1", true);
    scene.size = 5;
    struct horon_store *store = open_client(&scene, 4, &scene.key);
    assert_int_equal(awaited_failure(&scene, store, &error), HORON_ERR_CONFIG);
    assert_non_null(
        strstr(error.text, "rank 4 believes in a job of 5 ranks, the launcher in one of 2"));
    horon_store_destroy(store);
    scene_deinit(&scene);
}

/* @param host that connects, 127.0.0.N */
static int connect_from(const struct scene *scene, const char *host)
{
    struct horon_address from, to;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    horon_address_parse(host, 0, &from);
    horon_address_parse("127.0.0.1", scene->server->port, &to);
    assert_int_equal(bind(fd, &from.any, from.bytes), 0);
    assert_int_equal(connect(fd, &to.any, to.bytes), 0);
    return fd;
}

static int connect_raw(const struct scene *scene)
{
    return connect_from(scene, "127.0.0.1");
}

static void test_server_silent_and_rude_strangers_hold_nobody_up(void **state)
{
    struct scene scene;
    struct horon_blobs blobs;
    char rest[512];
    int silent[50];
    (void)state;
    scene_init(&scene, 1, "127.0.0.1", true);
    for (int i = 0; i < 50; i++)
        silent[i] = connect_raw(&scene);
    int rude = connect_raw(&scene);
    assert_int_equal(send(rude, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    struct horon_store *store = open_client(&scene, 0, &scene.key);
    put(store, "blob", UINT64_MAX);
    assert_true(awaited(&scene, store, &blobs));
    horon_blobs_deinit(&blobs);
    TURN_UNTIL(&scene, scene.warnings == 1);
    /* the rude one was shown the hello, and out */
    while (recv(rude, rest, sizeof rest, 0) > 0)
        ;
    assert_int_equal(scene.warnings, 1);
    for (int i = 0; i < 50; i++)
        close(silent[i]);
    close(rude);
    horon_store_destroy(store);
    scene_deinit(&scene);
}

static bool is_closed(int fd)
{
    char words[256];
    ssize_t got;
    while ((got = recv(fd, words, sizeof words, MSG_DONTWAIT)) > 0)
        ;
    return got == 0 || errno != EAGAIN;
}

/* More than are ever looked at at a time. An address that fills the house finds half of it open:
 * its own oldest leave, and a rank that is slow to answer, but was there before, stays. */
static void test_server_crowd_of_silent_strangers_keeps_nobody_out(void **state)
{
    enum { CROWD = 1200, HALF = 512 };
    static int silent[CROWD];
    struct scene scene;
    struct horon_blobs blobs;
    struct rlimit before, raised = {.rlim_cur = 4096};
    int closed = 0;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    raised.rlim_max = before.rlim_max;
    if (before.rlim_max < raised.rlim_cur) {
        print_message("skip: fewer than 4096 descriptors\n");
        skip();
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &raised), 0);
    scene_init(&scene, 1, "127.0.0.1", true);
    int slow = connect_raw(&scene);
    for (int i = 0; i < CROWD; i++) {
        silent[i] = connect_from(&scene, "127.0.0.2");
        while (horon_pump_turn(&scene.pump, 0) == HORON_OK)
            ;
    }
    struct horon_store *store = open_client(&scene, 0, &scene.key);
    put(store, "blob", UINT64_MAX);
    assert_true(awaited(&scene, store, &blobs));
    horon_blobs_deinit(&blobs);
    assert_false(is_closed(slow));
    for (int i = 0; i < CROWD; i++) {
        closed += is_closed(silent[i]);
        close(silent[i]);
    }
    assert_int_equal(closed, CROWD - HALF - scene.size); /* there is a place for each rank */
    close(slow);
    horon_store_destroy(store);
    scene_deinit(&scene);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void nothing_to_do(void *arg, uint32_t events)
{
    (void)arg;
    (void)events;
}

/* Proves the key and no more, as a client written by somebody else would. */
static int connect_proven(struct scene *scene, int rank)
{
    struct horon_error error = {0};
    const struct horon_self self = {&scene->pump, &scene->key,
                                    horon_hello_of(HORON_ROLE_STORE, rank, scene->size), NULL};
    struct horon_prover prover = {.self = &self, .watch = {.ready = nothing_to_do}};
    horon_status_t status = HORON_AGAIN;
    prover.watch.fd = connect_raw(scene);
    assert_int_equal(horon_prover_begin(&prover, HORON_SIDE_CONNECTOR, &error), HORON_OK);
    for (int i = 0; i < TURNS && status == HORON_AGAIN; i++) {
        status = horon_prover_turn(&prover, &error);
        turn(scene);
    }
    assert_int_equal(status, HORON_OK);
    const int fd = horon_prover_take(&prover).fd;
    TURN_UNTIL(scene, scene->come[rank]);
    assert_true(scene->come[rank]);
    return fd;
}

/* Perhaps with a last word. */
static void expect_closed(struct scene *scene, int fd)
{
    char words[256];
    ssize_t got;
    TURN_UNTIL(scene, (got = recv(fd, words, sizeof words, MSG_DONTWAIT)) == 0 ||
                          (got < 0 && errno != EAGAIN));
    assert_true(got == 0 || errno == ECONNRESET);
}

static void test_server_forbidden_frame_ends_the_connection(void **state)
{
    static const uint8_t oversize[] = {0, 0, 0, 0x7f, 1};
    static const uint8_t unknown[] = {1, 0, 0, 0, 9};
    struct scene scene;
    (void)state;
    scene_init(&scene, 2, "127.0.0.1", true);
    int first = connect_proven(&scene, 0), second = connect_proven(&scene, 1);
    assert_int_equal(send(first, oversize, sizeof oversize, MSG_NOSIGNAL), sizeof oversize);
    assert_int_equal(send(second, unknown, sizeof unknown, MSG_NOSIGNAL), sizeof unknown);
    expect_closed(&scene, first);
    expect_closed(&scene, second);
    close(first);
    close(second);
    scene_deinit(&scene);
}

/* One reads nothing: the others get their answers, and it gets its own later. */
static void test_server_slow_reader_holds_nobody_up(void **state)
{
    enum { SIZE = 17, BLOB = HORON_STORE_BLOB_BYTES_MAX };
    static uint8_t frame[4 + HORON_STORE_PUT_BYTES + BLOB], answer[9 + SIZE * (4 + BLOB)];
    struct scene scene;
    struct horon_store *stores[SIZE] = {NULL};
    struct horon_blobs blobs;
    struct horon_error error = {0};
    (void)state;
    scene_init(&scene, SIZE, "127.0.0.1", true);
    int slow = connect_proven(&scene, 0);
    struct horon_writer out = horon_writer_over(frame, sizeof frame);
    horon_write_u32(&out, HORON_STORE_PUT_BYTES + BLOB);
    horon_write_u8(&out, HORON_STORE_PUT);
    horon_write_u8(&out, 0);
    horon_write_u32(&out, 0);
    assert_int_equal(send(slow, frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
    for (int r = 1; r < SIZE; r++) {
        stores[r] = open_client(&scene, r, &scene.key);
        assert_int_equal(
            horon_store_put(stores[r], HORON_STORE_PUT_MORE, answer, BLOB, UINT64_MAX, &error),
            HORON_OK);
    }
    for (int r = 1; r < SIZE; r++) {
        assert_true(awaited(&scene, stores[r], &blobs));
        horon_blobs_deinit(&blobs);
        horon_store_destroy(stores[r]);
    }
    size_t got = 0;
    while (got < sizeof answer) {
        ssize_t part = recv(slow, answer + got, sizeof answer - got, MSG_DONTWAIT);
        if (part > 0)
            got += (size_t)part;
        else
            turn(&scene);
        assert_true(part != 0);
    }
    close(slow);
    scene_deinit(&scene);
}

static void test_server_limit_names_the_missing(void **state)
{
    struct scene scene;
    struct horon_error error = {0};
    (void)state;
    scene_init(&scene, 4, "127.0.0.1", true);
    struct horon_store *first = open_client(&scene, 0, &scene.key);
    struct horon_store *third = open_client(&scene, 2, &scene.key);
    TURN_UNTIL(&scene, scene.come[2]);
    put(first, "x", horon_clock_ns() + 5000000u);
    assert_int_equal(awaited_failure(&scene, first, &error), HORON_ERR_TIMEOUT);
    assert_non_null(strstr(error.text, "ranks 1, 3 never came; rank 2 on "));
    horon_store_destroy(first);
    horon_store_destroy(third);
    scene_deinit(&scene);
}

static void test_server_failed_by_its_owner_tells_all(void **state)
{
    struct scene scene;
    struct horon_error error = {0}, why;
    (void)state;
    scene_init(&scene, 2, "127.0.0.1", true);
    struct horon_store *store = open_client(&scene, 0, &scene.key);
    put(store, "x", UINT64_MAX);
    TURN_UNTIL(&scene, scene.come[0]);
    horon_error_set(&why, HORON_ERR_PEER_LOST, "rank 1 (host-b) was killed");
    horon_error_blame(&why, HORON_CAUSE_DIED, 1, -1);
    horon_store_server_tell(scene.server, -1, &why);
    assert_int_equal(awaited_failure(&scene, store, &error), HORON_ERR_PEER_LOST);
    assert_string_equal(error.text, why.text);
    assert_int_equal(error.blame.cause, HORON_CAUSE_DIED);
    assert_int_equal(error.blame.rank, 1);
    horon_store_destroy(store);
    scene_deinit(&scene);
}

static void test_server_of_one_session_stops_listening(void **state)
{
    struct scene scene;
    struct horon_address address;
    (void)state;
    scene_init(&scene, 1, "127.0.0.1", false);
    struct horon_store *store = open_client(&scene, 0, &scene.key);
    TURN_UNTIL(&scene, scene.come[0]);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    horon_address_parse("127.0.0.1", scene.server->port, &address);
    assert_int_equal(connect(fd, &address.any, address.bytes), -1);
    assert_int_equal(errno, ECONNREFUSED);
    close(fd);
    horon_store_destroy(store);
    scene_deinit(&scene);
}

static void test_server_bad_options_are_refused(void **state)
{
    static const struct {
        int size;
        struct horon_job_key key;
        const char *at;
        horon_status_t status;
    } rows[] = {{0, {.given = true}, "127.0.0.1", HORON_ERR_CONFIG},
                {HORON_BOOT_SIZE_MAX + 1, {.given = true}, "127.0.0.1", HORON_ERR_CONFIG},
                {2, {.given = false}, "*", HORON_ERR_CONFIG},
                {2, {.given = false}, "192.0.2.1", HORON_ERR_CONFIG},
                {2, {.given = true}, "192.0.2.1", HORON_ERR_SYSTEM}};
    struct horon_pump pump;
    (void)state;
    assert_int_equal(horon_pump_init(&pump, NULL), HORON_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct horon_store_server_options options = {
            .self = {&pump, &rows[i].key, horon_hello_of(HORON_ROLE_STORE, 0, rows[i].size), NULL}};
        struct horon_store_server *server = horon_store_server_create(&options);
        const struct horon_addresses at = places(rows[i].at);
        struct horon_error error = {0};
        assert_int_equal(horon_store_server_listen(server, &at, 0, 0, &error), rows[i].status);
        assert_true(error.text[0]);
        horon_store_server_destroy(server);
    }
    horon_pump_deinit(&pump);
}

static void test_server_taken_port_is_told_and_the_next_is_taken(void **state)
{
    struct scene scene;
    struct horon_error error = {0};
    const struct horon_addresses at = places("127.0.0.1");
    (void)state;
    scene_init(&scene, 2, "127.0.0.1", true);
    const struct horon_store_server_options options = {
        .self = {&scene.pump, &scene.key, horon_hello_of(HORON_ROLE_STORE, 0, 2), NULL}};
    const int port = scene.server->port;
    struct horon_store_server *second = horon_store_server_create(&options);
    assert_int_equal(horon_store_server_listen(second, &at, port, port, &error), HORON_ERR_SYSTEM);
    assert_int_equal(errno, EADDRINUSE);
    assert_int_equal(horon_store_server_listen(second, &at, port, port + 20, &error), HORON_OK);
    assert_in_range(second->port, port + 1, port + 20);
    horon_store_server_destroy(second);
    scene_deinit(&scene);
}

static void test_server_everywhere_answers_both_families(void **state)
{
    static const char *const hosts[] = {"127.0.0.1", "::1"};
    struct scene scene;
    (void)state;
    scene_init(&scene, 1, "*", true);
    for (int i = 0; i < 2; i++) {
        struct horon_address address;
        horon_address_parse(hosts[i], scene.server->port, &address);
        int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fd, &address.any, address.bytes), 0);
        close(fd);
    }
    scene_deinit(&scene);
}

static void test_server_at_several_addresses_has_one_port(void **state)
{
    struct horon_error error = {0};
    struct horon_addresses addresses = {.count = 3};
    struct horon_job_key key = {.given = true};
    const int mine = (int)getpid();
    int port = 0, taken = -1;
    (void)state;
    horon_address_parse("203.0.113.1", 0, &addresses.items[0]); /* not ours: passed over */
    for (int i = 1; i < 3; i++) { /* of this process alone, so that nothing else takes a port */
        char text[32];
        snprintf(text, sizeof text, "127.%d.%d.%d", 1 + (mine >> 14 & 127), 1 + (mine >> 7 & 127),
                 (mine & 127) + 100 * (i - 1) + 1);
        horon_address_parse(text, 0, &addresses.items[i]);
    }
    struct horon_pump pump;
    assert_int_equal(horon_pump_init(&pump, &error), HORON_OK);
    const struct horon_store_server_options options = {
        .self = {&pump, &key, horon_hello_of(HORON_ROLE_STORE, -1, 1), NULL}};
    struct horon_store_server *server = horon_store_server_create(&options);
    struct horon_store_server *other = horon_store_server_create(&options);
    struct horon_address second = addresses.items[2];
    bool next = false;
    for (int tries = 0; tries < 100 && !next; tries++) { /* others may listen everywhere */
        port = free_port();
        horon_address_set_port(&second, port); /* taken at one address: the next port, at all */
        taken = horon_address_listen(&second);
        if (taken < 0)
            continue;
        next = horon_store_server_listen(server, &addresses, port, port + 1, &error) == HORON_OK;
        if (!next)
            close(taken);
    }
    assert_true(next);
    assert_int_equal(server->port, port + 1);
    for (int i = 1; i < 3; i++) {
        struct horon_address at = addresses.items[i];
        horon_address_set_port(&at, port + 1);
        assert_int_equal(horon_address_listen(&at), -1);
        assert_int_equal(errno, EADDRINUSE);
    }
    assert_int_equal(horon_store_server_listen(other, &addresses, port, port + 1, &error),
                     HORON_ERR_SYSTEM);
    assert_int_equal(errno, EADDRINUSE);
    char ports[32];
    snprintf(ports, sizeof ports, "ports %d-%d", port, port + 1);
    assert_non_null(strstr(error.text, ports));
    key.given = false;
    assert_int_equal(horon_store_server_listen(other, &addresses, port, port + 1, &error),
                     HORON_ERR_CONFIG);
    horon_store_server_destroy(other);
    horon_store_server_destroy(server);
    horon_pump_deinit(&pump);
    close(taken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_server_round_is_answered),
        cmocka_unit_test(test_server_wrong_key_is_refused_and_reported),
        cmocka_unit_test(test_server_of_another_size_is_named),
        cmocka_unit_test(test_server_silent_and_rude_strangers_hold_nobody_up),
        cmocka_unit_test(test_server_crowd_of_silent_strangers_keeps_nobody_out),
        cmocka_unit_test(test_server_forbidden_frame_ends_the_connection),
        cmocka_unit_test(test_server_slow_reader_holds_nobody_up),
        cmocka_unit_test(test_server_limit_names_the_missing),
        cmocka_unit_test(test_server_failed_by_its_owner_tells_all),
        cmocka_unit_test(test_server_of_one_session_stops_listening),
        cmocka_unit_test(test_server_bad_options_are_refused),
        cmocka_unit_test(test_server_taken_port_is_told_and_the_next_is_taken),
        cmocka_unit_test(test_server_everywhere_answers_both_families),
        cmocka_unit_test(test_server_at_several_addresses_has_one_port),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
