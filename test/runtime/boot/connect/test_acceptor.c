/* SPDX-License-Identifier: Apache-2.0 */
/* What strangers may cost a rank whose operations run: counted, by those that were spoken to. */
#undef NDEBUG
#include "boot/connect/acceptor.h"

#include "boot/connect/connector.h"
#include "clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STRANGERS = 200 }; /* fewer than the kernel's queue holds */

static struct {
    struct horon_pump pump;
    struct horon_job_key key;
    struct horon_acceptor *acceptor;
    struct horon_addresses at;
    int arrived, connected;
} scene;

static const struct horon_hello hello = {.protocol_min = HORON_PROTOCOL_MIN,
                                         .protocol_max = HORON_PROTOCOL_MAX,
                                         .role = HORON_ROLE_PEER,
                                         .size = 2};

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

static void begin(void)
{
    struct horon_error error;
    const struct horon_acceptor_options options = {.pump = &scene.pump,
                                                   .key = &scene.key,
                                                   .hello = hello,
                                                   .patience_ns = UINT64_MAX / 2,
                                                   .name = "a test",
                                                   .arrived = arrived};
    memset(&scene, 0, sizeof scene);
    assert_int_equal(horon_pump_init(&scene.pump, &error), HORON_OK);
    assert_int_equal(horon_job_key_from_text(&scene.key, "a key of this test", 18, &error),
                     HORON_OK);
    scene.at.count = 1;
    assert_true(horon_address_parse("127.0.0.1", 0, &scene.at.items[0]));
    const int listener = horon_address_listen(&scene.at.items[0]);
    assert_true(listener >= 0);
    assert_int_equal(horon_acceptor_create(&options, &listener, 1, &scene.acceptor, &error),
                     HORON_OK);
}

static void end(void)
{
    horon_acceptor_destroy(scene.acceptor);
    horon_pump_deinit(&scene.pump);
}

static int connect_stranger(void)
{
    const struct horon_address *to = &scene.at.items[0];
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, &to->any, to->bytes), 0);
    return fd;
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
    struct horon_connector_options options = {.pump = &scene.pump,
                                              .key = &scene.key,
                                              .hello = hello,
                                              .addresses = &scene.at,
                                              .done = connected};
    options.hello.rank = 1;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_acceptor_that_is_paced_takes_few_strangers),
        cmocka_unit_test(test_acceptor_that_is_paced_lets_every_rank_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
