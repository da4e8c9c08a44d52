/* SPDX-License-Identifier: Apache-2.0 */
/* A client of the server of Horovod's launcher: what it asks, and what answers it takes. */
#undef NDEBUG
#include "boot/gloo/mesh.h"

#include "address.h"
#include "alloc.h"
#include "clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct horon_error error;
static const struct horon_gloo_wait no_limit = {.deadline_ns = UINT64_MAX};

/* Gives one connection after the other the next answer. */
struct server {
    int listener, port;
    const char *answers[4]; /* until NULL */
    char asked[4][512];
    pthread_t thread;
};

static void *serve(void *arg)
{
    struct server *server = arg;
    for (int i = 0; i < 4 && server->answers[i]; i++) {
        struct pollfd ready = {.fd = server->listener, .events = POLLIN};
        assert_int_equal(poll(&ready, 1, -1), 1);
        const int fd = accept(server->listener, NULL, NULL);
        size_t used = 0;
        const char *body = NULL;
        do { /* what these tests send ends with the head, or with "!" */
            const ssize_t got =
                recv(fd, server->asked[i] + used, sizeof server->asked[i] - 1 - used, 0);
            assert_true(got > 0);
            used += (size_t)got;
            body = strstr(server->asked[i], "\r\n\r\n");
        } while (!body || (strstr(server->asked[i], "-Length: 3") && !strchr(body, '!')));
        assert_int_equal(send(fd, server->answers[i], strlen(server->answers[i]), MSG_NOSIGNAL),
                         strlen(server->answers[i]));
        close(fd);
    }
    return NULL;
}

static void start(struct server *server)
{
    struct horon_address address;
    assert_true(horon_address_parse("127.0.0.1", 0, &address));
    server->listener = horon_address_listen(&address);
    assert_true(server->listener >= 0);
    server->port = horon_address_port(&address);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

static void stop(struct server *server)
{
    assert_int_equal(pthread_join(server->thread, NULL), 0);
    close(server->listener);
}

static horon_status_t open_it(int port, const char *path, const char *prefix,
                              struct horon_gloo_store **store_out)
{
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", port, path);
    const struct horon_gloo_store_options options = {
        .url = url, .prefix = prefix, .size = 2, .wait = no_limit};
    return horon_gloo_store_open(&options, store_out, &error);
}

static void test_http_store_asks_as_horovod_does(void **state)
{
    struct server server = {.answers = {"HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.0 404 Not Found\r\n\r\n",
                                        "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nfour"}};
    struct horon_gloo_store *store = NULL;
    struct horon_gloo_value value;
    (void)state;
    start(&server);
    assert_int_equal(open_it(server.port, "", "global", &store), HORON_OK);
    assert_int_equal(horon_gloo_store_set(store, "rank_0", "vm!", 3, &no_limit, &error), HORON_OK);
    assert_int_equal(horon_gloo_store_get(store, "1", &value, &no_limit, &error), HORON_AGAIN);
    assert_int_equal(horon_gloo_store_get(store, "1", &value, &no_limit, &error), HORON_OK);
    assert_int_equal(value.count, 4);
    assert_memory_equal(value.bytes, "four", 4);
    horon_free(value.bytes);
    horon_gloo_store_destroy(store);
    stop(&server);
    assert_memory_equal(server.asked[0], "PUT /global/rank_0 HTTP/1.1\r\n", 29);
    assert_string_equal(strstr(server.asked[0], "\r\n\r\n") + 4, "vm!");
    assert_memory_equal(server.asked[1], "GET /global/1 HTTP/1.1\r\n", 24);
}

static void test_http_store_tries_three_times(void **state)
{
    struct server server = {.answers = {"HTTP/1.0 503 Busy\r\n\r\n",
                                        "HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\ncut",
                                        "HTTP/1.0 200 OK\r\n\r\nto the end", NULL}};
    struct horon_gloo_store *store = NULL;
    struct horon_gloo_value value;
    (void)state;
    start(&server);
    assert_int_equal(open_it(server.port, "/scope", "", &store), HORON_OK);
    assert_int_equal(horon_gloo_store_get(store, "1", &value, &no_limit, &error), HORON_OK);
    assert_int_equal(value.count, 10);
    horon_free(value.bytes);
    stop(&server);
    server.answers[0] = server.answers[1] = server.answers[2] = "nonsense\r\n\r\n";
    start(&server);
    horon_gloo_store_destroy(store);
    assert_int_equal(open_it(server.port, "/scope", "", &store), HORON_OK);
    assert_int_equal(horon_gloo_store_get(store, "1", &value, &no_limit, &error), HORON_ERR_PROTO);
    assert_non_null(strstr(error.text, "is it the rendezvous server"));
    stop(&server);
    const struct horon_gloo_wait over = {.deadline_ns = horon_clock_ns()};
    assert_int_equal(horon_gloo_store_get(store, "1", &value, &over, &error), HORON_ERR_TIMEOUT);
    assert_non_null(strstr(error.text, "is the launcher there"));
    horon_gloo_store_destroy(store);
}

static void test_http_store_takes_one_scope(void **state)
{
    struct horon_gloo_store *store = NULL;
    (void)state;
    assert_int_equal(open_it(1, "", "", &store), HORON_ERR_CONFIG);
    assert_int_equal(open_it(1, "/a", "b", &store), HORON_ERR_CONFIG);
    assert_int_equal(open_it(1, "/a/b", "", &store), HORON_ERR_CONFIG);
    assert_int_equal(open_it(1, "", "a/b", &store), HORON_ERR_CONFIG);
    assert_null(store);
}

/* What ranks of horon have set stays: others would meet those of the job before. */
static void test_http_store_is_met_in_once(void **state)
{
    struct server server = {.answers = {"HTTP/1.0 404 Not Found\r\n\r\n",
                                        "HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nbefore"}};
    struct horon_gloo_store *store = NULL;
    const struct horon_log quiet = {.level = HORON_LOG_ERROR, .rank = -1};
    int sockets[2];
    (void)state;
    start(&server);
    assert_int_equal(open_it(server.port, "", "scope", &store), HORON_OK);
    const struct horon_gloo_mesh_options options = {
        .store = store,
        .size = 2,
        .era = HORON_GLOO_ERA_1,
        .interfaces = "",
        /* reached only if it asks for more */
        .deadline_ns = horon_clock_deadline(horon_clock_ns(), 10000),
        .log = &quiet};
    assert_int_equal(horon_gloo_mesh_connect(&options, sockets, &error), HORON_ERR_INVALID);
    assert_non_null(strstr(error.text, "has a rank 0 already"));
    assert_non_null(strstr(error.text, "give each job a store, or a prefix, of its own"));
    assert_int_equal(error.blame.rank, 0);
    horon_gloo_store_destroy(store);
    stop(&server);
    assert_memory_equal(server.asked[0], "GET /scope/1 HTTP/1.1\r\n", 23);
    assert_memory_equal(server.asked[1], "GET /scope/0 HTTP/1.1\r\n", 23);
}

/* Both stores that have a host look its name up alike. */
static void test_http_store_of_a_host_that_is_not_known_says_whence_it_is(void **state)
{
    static const char *const urls[] = {"http://no..name:1/a", "tcp://no..name:1"};
    struct horon_gloo_store *store = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        const struct horon_gloo_store_options options = {
            .url = urls[i], .prefix = "", .rank = 1, .size = 2, .wait = no_limit};
        assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_ERR_CONFIG);
        assert_non_null(strstr(error.text, "the host name 'no..name' is not known"));
        assert_non_null(strstr(error.text, " (the host is from HORON_GLOO_STORE)"));
    }
    assert_null(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http_store_asks_as_horovod_does),
        cmocka_unit_test(test_http_store_tries_three_times),
        cmocka_unit_test(test_http_store_takes_one_scope),
        cmocka_unit_test(test_http_store_is_met_in_once),
        cmocka_unit_test(test_http_store_of_a_host_that_is_not_known_says_whence_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
