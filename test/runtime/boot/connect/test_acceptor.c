/* SPDX-License-Identifier: Apache-2.0 */
/* What strangers may cost a rank whose operations run: counted, by those that were spoken to; and
 * that they cost no rank its connection. */
#undef NDEBUG
#include "boot/connect/acceptor.h"

#include "boot/connect/connector.h"
#include "clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <linux/sockios.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STRANGERS = 200, RANKS = 150 }; /* fewer than the kernel's queue holds */

static struct {
    struct horon_pump pump;
    struct horon_job_key key;
    struct horon_acceptor *acceptor;
    struct horon_addresses at;
    int arrived, connected, warnings;
    char warning[256]; /* the last one */
} scene;

static void note_warning(void *arg, horon_log_level_t level, const char *text)
{
    (void)arg;
    (void)level;
    snprintf(scene.warning, sizeof scene.warning, "%s", text);
    scene.warnings++;
}

static const struct horon_log log_lines = {.fn = note_warning, .level = HORON_LOG_WARN};

static struct horon_self self_of(struct horon_pump *pump, int rank)
{
    return (struct horon_self){pump, &scene.key, horon_hello_of(HORON_ROLE_PEER, rank, RANKS),
                               &log_lines};
}

static void arrived(void *arg, const struct horon_proven *proven)
{
    (void)arg;
    scene.arrived++;
    close(proven->fd);
}

static void connected(void *arg, horon_status_t status, const struct horon_proven *proven,
                      const struct horon_error *error)
{
    (void)arg;
    (void)error;
    assert_int_equal(status, HORON_OK);
    scene.connected++;
    close(proven->fd);
}

static void begin_as(int rank)
{
    struct horon_error error;
    const struct horon_acceptor_options options = {.self = self_of(&scene.pump, rank),
                                                   .patience_ns = UINT64_MAX / 2,
                                                   .name = "a test",
                                                   .arrived = arrived};
    memset(&scene, 0, sizeof scene);
    assert_int_equal(horon_pump_init(&scene.pump, &error), HORON_OK);
    assert_int_equal(horon_job_key_from_text(&scene.key, "a key of this test", 18, &error),
                     HORON_OK);
    scene.at.count = 1;
    assert_true(horon_address_parse("127.0.0.1", 0, &scene.at.items[0]));
    struct horon_listeners listeners = {.count = 1,
                                        .fds = {horon_address_listen(&scene.at.items[0])}};
    assert_true(listeners.fds[0] >= 0);
    assert_int_equal(horon_acceptor_create(&options, &listeners, &scene.acceptor, &error),
                     HORON_OK);
}

static void begin(void)
{
    begin_as(0);
}

static void end(void)
{
    horon_acceptor_destroy(scene.acceptor);
    horon_pump_deinit(&scene.pump);
}

static int connect_from(const char *address)
{
    const struct horon_address *to = &scene.at.items[0];
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct horon_address from;
    assert_true(fd >= 0);
    assert_true(horon_address_parse(address, 0, &from));
    assert_int_equal(bind(fd, &from.any, from.bytes), 0);
    assert_int_equal(connect(fd, &to->any, to->bytes), 0);
    return fd;
}

static int connect_stranger(void)
{
    return connect_from("127.0.0.1");
}

/* An acceptor speaks first: to each guest, once. */
static int count_guests(const int *strangers)
{
    int count = 0;
    char byte;
    for (int i = 0; i < STRANGERS; i++)
        count += recv(strangers[i], &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
    return count;
}

static void connect_rank(void)
{
    struct horon_error error;
    struct horon_connector *connector;
    const int before = scene.arrived;
    const struct horon_connector_options options = {
        .self = self_of(&scene.pump, 1), .addresses = &scene.at, .done = connected};
    assert_int_equal(horon_connector_create(&options, &connector, &error), HORON_OK);
    while (scene.arrived == before || scene.connected == before)
        horon_pump_turn(&scene.pump, -1);
    horon_connector_destroy(connector);
}

static void test_acceptor_that_is_paced_takes_few_strangers(void **state)
{
    static int strangers[STRANGERS];
    (void)state;
    begin();
    for (int i = 0; i < STRANGERS; i++)
        strangers[i] = connect_stranger();
    const uint64_t begun_ns = horon_clock_ns();
    horon_acceptor_pace(scene.acceptor);
    while (horon_pump_turn(&scene.pump, 0) == HORON_OK)
        ;
    const uint64_t took_ns = horon_clock_ns() - begun_ns;
    const int guests = count_guests(strangers);
    assert_true(guests > 0);
    assert_true((uint64_t)guests <=
                HORON_ACCEPTOR_BURST + 1 + took_ns / HORON_ACCEPTOR_INTERVAL_NS);
    connect_rank(); /* behind all of them */
    assert_int_equal(count_guests(strangers), STRANGERS);
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    end();
}

/* Those that prove the key are not what it is paced for; and every pause ends. */
static void test_acceptor_that_is_paced_lets_every_rank_in(void **state)
{
    (void)state;
    begin();
    horon_acceptor_pace(scene.acceptor);
    for (int i = 0; i < 3 * HORON_ACCEPTOR_BURST; i++)
        connect_rank();
    assert_int_equal(scene.arrived, 3 * HORON_ACCEPTOR_BURST);
    end();
}

static void turn_all(void)
{
    while (horon_pump_turn(&scene.pump, 0) == HORON_OK)
        ;
}

/* Until the acceptor has read it. */
static void send_out(int fd, struct horon_handshake *handshake)
{
    size_t bytes;
    const uint8_t *out = horon_handshake_out(handshake, &bytes);
    if (out) {
        assert_int_equal(send(fd, out, bytes, MSG_NOSIGNAL), bytes);
        horon_handshake_sent(handshake, bytes);
    }
    for (int left = 1; left > 0; sched_yield())
        assert_int_equal(ioctl(fd, SIOCOUTQ, &left), 0);
    turn_all();
}

static void prove(int fd, struct horon_handshake *handshake)
{
    uint8_t random[HORON_HANDSHAKE_RANDOM_BYTES];
    const struct horon_hello mine = horon_hello_of(HORON_ROLE_PEER, 1, RANKS);
    uint8_t in[HORON_HELLO_BYTES_MAX];
    memset(random, 7, sizeof random);
    assert_int_equal(
        horon_handshake_init(handshake, HORON_SIDE_CONNECTOR, &scene.key, &mine, random), HORON_OK);
    while (handshake->state != HORON_HANDSHAKE_PROVEN) {
        turn_all();
        const ssize_t got = recv(fd, in, horon_handshake_want(handshake), MSG_DONTWAIT);
        if (got < 0)
            continue;
        if (horon_handshake_feed(handshake, in, (size_t)got) < 0)
            fail_msg("%s", handshake->error.text);
        send_out(fd, handshake);
    }
}

static void lower_limit(rlim_t soft, struct rlimit *before_out)
{
    assert_int_equal(getrlimit(RLIMIT_NOFILE, before_out), 0);
    const struct rlimit lowered = {soft, before_out->rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &lowered), 0);
}

/* A large host: all ranks are accepted before the first of them gets to answer. */
static void test_acceptor_lets_a_crowd_of_ranks_in(void **state)
{
    static struct horon_connector *connectors[RANKS];
    struct horon_pump pump;
    struct horon_error error;
    struct rlimit before;
    (void)state;
    lower_limit(512, &before);
    begin();
    assert_int_equal(horon_pump_init(&pump, &error), HORON_OK);
    for (int rank = 0; rank < RANKS; rank++) {
        const struct horon_connector_options options = {
            .self = self_of(&pump, rank), .addresses = &scene.at, .done = connected};
        assert_int_equal(horon_connector_create(&options, &connectors[rank], &error), HORON_OK);
    }
    while (scene.warnings == 0 && (scene.arrived < RANKS || scene.connected < RANKS)) {
        horon_pump_turn(&pump, 0);
        turn_all();
    }
    assert_int_equal(scene.warnings, 0);
    for (int rank = 0; rank < RANKS; rank++)
        horon_connector_destroy(connectors[rank]);
    horon_pump_deinit(&pump);
    end();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* It counts the connection as made. */
static void test_acceptor_lets_none_go_that_has_proven_the_key(void **state)
{
    static int strangers[STRANGERS];
    struct horon_handshake handshake;
    struct rlimit before;
    char byte;
    (void)state;
    lower_limit(512, &before);
    begin();
    const int rank = connect_stranger();
    prove(rank, &handshake);
    assert_int_equal(scene.arrived, 1);
    for (int i = 0; i < STRANGERS; i++) {
        strangers[i] = connect_stranger();
        turn_all();
    }
    assert_int_equal(recv(strangers[0], &byte, 1, MSG_PEEK), 1); /* it is spoken to ... */
    while (recv(strangers[0], &byte, 1, MSG_DONTWAIT) > 0)
        ;
    assert_int_equal(recv(strangers[0], &byte, 1, MSG_DONTWAIT), 0); /* ... and let go */
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    close(rank);
    end();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* It was spoken to. */
static bool is_let_go(int stranger)
{
    char byte;
    while (recv(stranger, &byte, 1, MSG_DONTWAIT) > 0)
        ;
    return recv(stranger, &byte, 1, MSG_DONTWAIT) == 0;
}

/* Of several networks, none of which has more than its share. */
static void test_acceptor_that_is_full_lets_its_oldest_guest_go(void **state)
{
    enum { LIMIT = 256, PLACES = LIMIT / 2 };
    static const char *const sources[] = {"127.0.0.2", "127.0.0.3"};
    int strangers[PLACES];
    struct rlimit before;
    (void)state;
    lower_limit(LIMIT, &before);
    begin();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0); /* both ends are here */
    for (int i = 0; i < PLACES; i++) {
        strangers[i] = connect_from(i == 0 ? "127.0.0.9" : sources[i % 2]);
        turn_all();
    }
    for (int i = 0; i < PLACES; i++)
        assert_false(is_let_go(strangers[i]));
    const int last = connect_from("127.0.0.4");
    turn_all();
    assert_true(is_let_go(strangers[0]));
    for (int i = 1; i < PLACES; i++)
        assert_false(is_let_go(strangers[i]));
    assert_false(is_let_go(last));
    for (int i = 0; i < PLACES; i++)
        close(strangers[i]);
    close(last);
    end();
}

static void note_status(void *arg, horon_status_t status, const struct horon_proven *proven,
                        const struct horon_error *error)
{
    horon_status_t *status_out = arg;
    (void)proven;
    (void)error;
    *status_out = status;
}

/* With the proof it would count a connection that the connector does not keep. */
static void test_acceptor_has_no_proof_that_is_meant_for_another(void **state)
{
    const uint8_t member[HORON_MEMBER_BYTES] = {9};
    struct horon_connector *connector;
    struct horon_error error;
    horon_status_t status = HORON_AGAIN;
    (void)state;
    begin();
    const struct horon_connector_options options = {.self = self_of(&scene.pump, 1),
                                                    .addresses = &scene.at,
                                                    .expect_member = member,
                                                    .done = note_status,
                                                    .arg = &status};
    assert_int_equal(horon_connector_create(&options, &connector, &error), HORON_OK);
    while (status == HORON_AGAIN)
        horon_pump_turn(&scene.pump, -1);
    assert_int_equal(status, HORON_ERR_PROTO);
    turn_all();
    assert_int_equal(scene.arrived, 0);
    horon_connector_destroy(connector);
    end();
}

/* Each try comes from another port. */
static void test_acceptor_tells_of_a_stranger_once(void **state)
{
    char text[256];
    (void)state;
    begin();
    for (int i = 0; i < 3; i++) {
        const int stranger = connect_stranger();
        assert_int_equal(send(stranger, "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
        turn_all();
        close(stranger);
    }
    assert_int_equal(scene.warnings, 1);
    horon_acceptor_explain(scene.acceptor, text, sizeof text);
    assert_string_equal(text, "127.0.0.1 was refused 3 times: what connects is not horon");
    end();
}

static bool is_told(int rank, bool proven, const char *from, const char *why)
{
    const int before = scene.warnings;
    horon_acceptor_note(scene.acceptor, rank, proven, from, why);
    return scene.warnings > before;
}

static void test_acceptor_tells_of_a_refusal_once_and_counts(void **state)
{
    char text[512];
    (void)state;
    begin();
    horon_acceptor_explain(scene.acceptor, text, sizeof text);
    assert_string_equal(text, "");
    for (int i = 0; i < 57; i++)
        assert_true((i == 0) == is_told(1, true, "10.0.0.3", "a wrong key"));
    assert_non_null(strstr(scene.warning, "a test refused rank 1 at 10.0.0.3: a wrong key"));
    horon_acceptor_explain(scene.acceptor, text, sizeof text);
    assert_string_equal(text, "rank 1 at 10.0.0.3 was refused 57 times: a wrong key");
    assert_true(is_told(1, true, "10.0.0.3", "too late"));
    assert_true(is_told(2, true, "10.0.0.3", "too late"));
    assert_true(is_told(HORON_ACCEPTOR_NOBODY, false, "[::1]", "no horon"));
    assert_false(is_told(HORON_ACCEPTOR_NOBODY, false, "[::1]", "no horon"));
    assert_true(is_told(HORON_ACCEPTOR_NOBODY, false, "process 12", "no horon"));
    horon_acceptor_explain(scene.acceptor, text, sizeof text);
    assert_non_null(strstr(text, "; rank 2 at 10.0.0.3 was refused: too late; "
                                 "[::1] was refused 2 times: no horon; process 12 was"));
    assert_true(is_told(1, false, "10.0.0.3", "a wrong key"));
    horon_acceptor_explain(scene.acceptor, text, sizeof text);
    assert_non_null(strstr(text, "10.0.0.3 (which says that it is rank 1) was refused: a wr"));
    horon_acceptor_explain(scene.acceptor, text, 20);
    assert_string_equal(text, "rank 1 at 10.0.0.3 ");
    end();
}

/* The launcher's says at its end how many there were. */
static void test_acceptor_tells_of_few_refusals_in_a_flood(void **state)
{
    enum { TOLD = 16 };
    char text[8192], from[32];
    (void)state;
    begin_as(-1);
    for (int i = 0; i < 1000; i++) {
        snprintf(from, sizeof from, "10.0.%d.%d", i / 250, i % 250);
        assert_true((i <= TOLD) == is_told(HORON_ACCEPTOR_NOBODY, false, from, "no horon"));
    }
    assert_false(is_told(HORON_ACCEPTOR_NOBODY, false, "10.0.0.3", "no horon"));
    horon_acceptor_explain(scene.acceptor, text, sizeof text);
    assert_non_null(strstr(text, "10.0.0.3 was refused 2 times: no horon"));
    assert_null(strstr(text, "10.0.0.16"));
    end();
    assert_non_null(strstr(scene.warning, "a test refused 1001 connections in all"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_acceptor_that_is_paced_takes_few_strangers),
        cmocka_unit_test(test_acceptor_that_is_paced_lets_every_rank_in),
        cmocka_unit_test(test_acceptor_lets_a_crowd_of_ranks_in),
        cmocka_unit_test(test_acceptor_that_is_full_lets_its_oldest_guest_go),
        cmocka_unit_test(test_acceptor_lets_none_go_that_has_proven_the_key),
        cmocka_unit_test(test_acceptor_has_no_proof_that_is_meant_for_another),
        cmocka_unit_test(test_acceptor_tells_of_a_stranger_once),
        cmocka_unit_test(test_acceptor_tells_of_a_refusal_once_and_counts),
        cmocka_unit_test(test_acceptor_tells_of_few_refusals_in_a_flood),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
