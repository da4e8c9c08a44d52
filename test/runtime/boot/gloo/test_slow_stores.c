/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores that do not answer: what a rank says of it while it still waits, once. That it has said so
 * is what ends each wait here, or what brings the server.
 */
#undef NDEBUG
#include "boot/gloo/mesh.h"
#include "boot/gloo/store.h"
#include "clock.h"

#include "../../../free_port.h"
#include "../../../own_network.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT "40000"

struct told {
    struct horon_log log;
    struct horon_gloo_watch watch;
    int lines;
    char text[512], last[512];      /* the first line, and the latest */
    const char *serve;              /* NULL, or the url that is served once it is missed */
    struct horon_gloo_store *store; /* of the rank that serves it */
};

static struct horon_error error;

static int has_told(void *arg)
{
    const struct told *told = arg;
    return told->lines > 0;
}

static void note(void *arg, horon_log_level_t level, const char *text)
{
    struct told *told = arg;
    (void)level;
    if (!strstr(text, "still waiting"))
        return;
    snprintf(told->last, sizeof told->last, "%s", text);
    if (told->lines++ == 0)
        snprintf(told->text, sizeof told->text, "%s", text);
    if (!told->serve || told->store)
        return;
    const struct horon_gloo_store_options options = {.url = told->serve,
                                                     .prefix = "",
                                                     .size = 2,
                                                     .serve = true,
                                                     .wait = {.deadline_ns = UINT64_MAX}};
    assert_int_equal(horon_gloo_store_open(&options, &told->store, &error), HORON_OK);
}

static void begin(struct told *told)
{
    *told = (struct told){.log = {.fn = note, .arg = told, .level = HORON_LOG_WARN}};
    horon_gloo_watch_begin(&told->watch, 1, &told->log);
}

/* As rank 1 of 2. @param until what ends it, or NULL */
static horon_status_t open_it(struct told *told, const char *url, int (*until)(void *arg),
                              struct horon_gloo_store **store_out)
{
    const struct horon_gloo_store_options options = {
        .url = url,
        .prefix = "",
        .rank = 1,
        .size = 2,
        .wait = {
            .deadline_ns = UINT64_MAX, .interrupted = until, .arg = told, .watch = &told->watch}};
    return horon_gloo_store_open(&options, store_out, &error);
}

static void expect_told(const struct told *told, const char *subject, const char *state)
{
    char waits[256], how[256];
    snprintf(waits, sizeof waits, "still waiting for %s, after ", subject);
    snprintf(how, sizeof how, " s: %s", state);
    assert_int_equal(told->lines, 1);
    if (!strstr(told->text, waits) || !strstr(told->text, how))
        fail_msg("'%s' lacks '%s' or '%s'", told->text, waits, how);
}

/* @return a port of 127.0.0.1 that takes connections, and says nothing */
static int take_port(int *listener_out)
{
    struct horon_address address;
    assert_true(horon_address_parse("127.0.0.1", 0, &address));
    *listener_out = horon_address_listen(&address);
    assert_true(*listener_out >= 0);
    return horon_address_port(&address);
}

static void test_slow_stores_nobody_serves_one_of_torch(void **state)
{
    struct told told;
    struct horon_gloo_store *store = NULL;
    char url[64], subject[160], why[64];
    const int port = free_port();
    (void)state;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    snprintf(subject, sizeof subject,
             "the Gloo store %s, which rank 0, of torch or of horon, is to serve", url);
    snprintf(why, sizeof why, "127.0.0.1:%d: Connection refused", port);
    begin(&told);
    assert_int_equal(open_it(&told, url, has_told, &store), HORON_ERR_CANCELLED);
    expect_told(&told, subject, why);
}

/* Rank 0, which is to serve it, has been refused as well. */
static void test_slow_stores_are_not_waited_for_with_too_long_a_prefix(void **state)
{
    enum { LIMIT = HORON_GLOO_KEY_BYTES - HORON_GLOO_KEY_REST_BYTES - 1 };
    char url[64], prefix[LIMIT + 2] = "", why[64];
    struct horon_gloo_store *store = NULL;
    const struct horon_gloo_store_options options = {
        .url = url, .prefix = prefix, .rank = 1, .size = 2, .wait = {.deadline_ns = 1}}; /* over */
    (void)state;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    snprintf(why, sizeof why, "has %d bytes, and may have %d: pppp", LIMIT + 1, LIMIT);
    memset(prefix, 'p', LIMIT + 1);
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, why));
    prefix[LIMIT] = 0;
    assert_int_equal(horon_gloo_store_open(&options, &store, &error), HORON_ERR_TIMEOUT);
    assert_null(store);
}

static void test_slow_stores_one_that_comes_is_told_of_once(void **state)
{
    struct told told;
    struct horon_gloo_store *store = NULL;
    char url[64];
    (void)state;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    begin(&told);
    told.serve = url;
    assert_int_equal(open_it(&told, url, NULL, &store), HORON_OK);
    assert_non_null(told.store);
    horon_gloo_watch_look(&told.watch, "another thing", "which lasts, too");
    assert_int_equal(told.lines, 1);
    horon_gloo_store_destroy(store);
    horon_gloo_store_destroy(told.store);
}

static void test_slow_stores_are_not_told_of_where_none_is(void **state)
{
    struct told told;
    (void)state;
    begin(&told);
    horon_gloo_watch_begin(&told.watch, 0, &told.log);
    horon_gloo_watch_look(&told.watch, "a thing", "which lasts");
    horon_gloo_watch_begin(&told.watch, UINT64_C(1) << 60, &told.log);
    horon_gloo_watch_look(&told.watch, "a thing", "which lasts");
    horon_gloo_watch_look(NULL, "a thing", "which lasts");
    assert_int_equal(told.lines, 0);
}

static void test_slow_stores_one_of_torch_says_nothing(void **state)
{
    struct told told;
    struct horon_gloo_store *store = NULL;
    char url[64], subject[160];
    int listener;
    (void)state;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", take_port(&listener));
    snprintf(subject, sizeof subject,
             "the Gloo store %s, which rank 0, of torch or of horon, is to serve", url);
    begin(&told);
    assert_int_equal(open_it(&told, url, has_told, &store), HORON_ERR_CANCELLED);
    expect_told(&told, subject, "it is connected with, and does not answer");
    close(listener);
}

/* Horovod's is asked only when the mesh is made. */
static void expect_http(int port, const char *state)
{
    struct told told;
    struct horon_gloo_store *store = NULL;
    int sockets[2];
    char url[64], subject[160];
    snprintf(url, sizeof url, "http://127.0.0.1:%d/scope", port);
    snprintf(subject, sizeof subject,
             "the Gloo store http://127.0.0.1:%d, which Horovod's launcher is to serve", port);
    begin(&told);
    assert_int_equal(open_it(&told, url, NULL, &store), HORON_OK);
    const struct horon_gloo_mesh_options mesh = {.store = store,
                                                 .rank = 1,
                                                 .size = 2,
                                                 .era = HORON_GLOO_ERA_1,
                                                 .interfaces = "",
                                                 .deadline_ns = UINT64_MAX,
                                                 .slow_ns = 1,
                                                 .interrupted = has_told,
                                                 .interrupted_arg = &told,
                                                 .log = &told.log};
    assert_int_equal(horon_gloo_mesh_connect(&mesh, sockets, &error), HORON_ERR_CANCELLED);
    expect_told(&told, subject, state);
    horon_gloo_store_destroy(store);
}

static void test_slow_stores_of_horovod_are_told_of(void **state)
{
    char why[64];
    int listener, port = free_port();
    (void)state;
    snprintf(why, sizeof why, "127.0.0.1:%d: Connection refused", port);
    expect_http(port, why);
    port = take_port(&listener);
    expect_http(port, "it is connected with, and does not answer GET /scope/0");
    close(listener);
}

/* One that has nothing, and takes its time to say so. */
struct empty_store {
    struct horon_gloo_store base;
    struct told *told;
    int calls;
    int calls_max;      /* after which it answers no more; 0: it always does */
    uint64_t called_ns; /* when the last one ended */
};

static horon_status_t take(struct horon_gloo_store *base, const char *key, const void *bytes,
                           size_t count, const struct horon_gloo_wait *wait,
                           struct horon_error *why)
{
    (void)base, (void)key, (void)bytes, (void)count, (void)wait, (void)why;
    return HORON_OK;
}

static horon_status_t miss(struct horon_gloo_store *base, const char *key,
                           struct horon_gloo_value *value_out, const struct horon_gloo_wait *wait,
                           struct horon_error *why)
{
    struct empty_store *store = (struct empty_store *)base;
    const struct horon_gloo_wait told = horon_gloo_wait_told(wait, "a store", "it is slow");
    (void)key, (void)value_out;
    assert_true(wait->watch->begun_ns >= store->called_ns);
    const bool silent = store->calls_max > 0 && store->calls >= store->calls_max;
    const horon_status_t status = horon_gloo_wait_for(&told, NULL, 0, silent ? -1 : 1, why);
    store->calls++;
    store->called_ns = horon_clock_ns();
    return status == HORON_ERR_TIMEOUT ? horon_error_set(why, status, "it says nothing") : status;
}

static int has_told_all(void *arg)
{
    const struct empty_store *store = arg;
    return store->told->lines == 2 || store->calls == 100;
}

static horon_status_t ask_empty(struct empty_store *store, int64_t timeout_ms)
{
    static const struct horon_gloo_store_ops ops = {.name = "empty", .set = take, .get = miss};
    int sockets[2];
    store->base.ops = &ops;
    const struct horon_gloo_mesh_options mesh = {
        .store = &store->base,
        .rank = 1,
        .size = 2,
        .era = HORON_GLOO_ERA_3,
        .interfaces = "",
        .deadline_ns = horon_clock_deadline(horon_clock_ns(), timeout_ms),
        .slow_ns = 1,
        .interrupted = timeout_ms < 0 ? has_told_all : NULL,
        .interrupted_arg = store,
        .log = &store->told->log};
    return horon_gloo_mesh_connect(&mesh, sockets, &error);
}

/* Each call of the store is watched on its own, and a rank that lacks is told of beside it. */
static void test_slow_stores_hide_no_rank_that_lacks(void **state)
{
    struct told told;
    struct empty_store store = {.told = &told};
    (void)state;
    begin(&told);
    assert_int_equal(ask_empty(&store, -1), HORON_ERR_CANCELLED);
    assert_int_equal(told.lines, 2);
    assert_non_null(strstr(told.text, "still waiting for a store, after "));
    assert_non_null(strstr(told.last, " s: rank 0 has published nothing"));
}

/* Of the ranks it could have told. */
static void test_slow_stores_one_that_falls_silent_is_the_reason(void **state)
{
    struct told told;
    struct empty_store store = {.told = &told, .calls_max = 2};
    (void)state;
    begin(&told);
    assert_int_equal(ask_empty(&store, 1500), HORON_ERR_TIMEOUT);
    assert_string_equal(error.text, "it says nothing");
}

static void test_slow_stores_a_file_that_stays_locked(void **state)
{
    struct told told;
    struct horon_gloo_store *store = NULL;
    char path[] = "/tmp/horon-test-XXXXXX", url[64], subject[96];
    const int fd = mkstemp(path);
    (void)state;
    assert_int_equal(flock(fd, LOCK_EX), 0);
    snprintf(url, sizeof url, "c10d-file:%s", path);
    snprintf(subject, sizeof subject, "the Gloo store %s", url);
    begin(&told);
    assert_int_equal(open_it(&told, url, has_told, &store), HORON_ERR_CANCELLED);
    expect_told(&told, subject, "another process keeps the file locked");
    close(fd);
    unlink(path);
}

/* In a network of its own, where each connection gets the very port that it leads to. @return what
 * the process ends with */
static int dial_itself(void)
{
    static const char range[] = PORT " " PORT;
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    struct told told;
    struct horon_gloo_store *store = NULL;
    if (unshare(CLONE_NEWNET) != 0)
        return NO_OWN_NETWORK;
    const int file = open("/proc/sys/net/ipv4/ip_local_port_range", O_WRONLY);
    const int any = socket(AF_INET, SOCK_DGRAM, 0);
    if (any < 0 || ioctl(any, SIOCSIFFLAGS, &loopback) != 0 ||
        write(file, range, sizeof range - 1) != (ssize_t)sizeof range - 1)
        return NO_OWN_NETWORK;
    begin(&told);
    const horon_status_t status = open_it(&told, "tcp://127.0.0.1:" PORT, has_told, &store);
    const bool good = status == HORON_ERR_CANCELLED && strstr(told.text, ": Connection refused");
    if (!good)
        fprintf(stderr, "%d, %s, '%s'\n", (int)status, error.text, told.text);
    return good ? 0 : 1;
}

static void test_slow_stores_a_port_where_nobody_listens_is_not_met_itself(void **state)
{
    (void)state;
    run_apart(dial_itself);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_stores_nobody_serves_one_of_torch),
        cmocka_unit_test(test_slow_stores_are_not_waited_for_with_too_long_a_prefix),
        cmocka_unit_test(test_slow_stores_one_that_comes_is_told_of_once),
        cmocka_unit_test(test_slow_stores_are_not_told_of_where_none_is),
        cmocka_unit_test(test_slow_stores_one_of_torch_says_nothing),
        cmocka_unit_test(test_slow_stores_of_horovod_are_told_of),
        cmocka_unit_test(test_slow_stores_hide_no_rank_that_lacks),
        cmocka_unit_test(test_slow_stores_one_that_falls_silent_is_the_reason),
        cmocka_unit_test(test_slow_stores_a_file_that_stays_locked),
        cmocka_unit_test(test_slow_stores_a_port_where_nobody_listens_is_not_met_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
