/* SPDX-License-Identifier: Apache-2.0 */
/* What a connector says of an address, whenever it is asked. */
#undef NDEBUG
#include "boot/connect/connector.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void not_called(void *arg, horon_status_t status, const struct horon_proven *proven,
                       const struct horon_error *error)
{
    (void)arg, (void)status, (void)proven, (void)error;
    fail_msg("the connector has ended");
}

/* @param waiting  or between two tries */
static void turn_until_refused(struct horon_pump *pump, const struct horon_connector *connector,
                               bool waiting, char told[256])
{
    do {
        horon_pump_turn(pump, 1);
        horon_connector_describe(connector, told, 256);
    } while ((strstr(told, "no answer") != NULL) != waiting ||
             (!waiting && strstr(told, "not tried")));
    assert_non_null(strstr(told, "Connection refused"));
}

/* Its system refuses, and then the queue of its listener is full: that drops what comes. A rank
 * that gives up in the middle of a try says both, so that a refusal is not told as silence. */
static void test_connector_tells_what_was_refused_during_the_next_try(void **state)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof at;
    struct horon_pump pump;
    struct horon_job_key key;
    struct horon_error error;
    struct horon_addresses addresses = {.count = 1};
    struct horon_connector *connector;
    char told[256];
    int fill[2];
    (void)state;
    const int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(held, (struct sockaddr *)&at, bytes), 0);
    assert_int_equal(getsockname(held, (struct sockaddr *)&at, &bytes), 0);
    assert_int_equal(horon_pump_init(&pump, &error), HORON_OK);
    assert_int_equal(horon_job_key_from_text(&key, "a key of this test", 18, &error), HORON_OK);
    horon_address_parse("127.0.0.1", ntohs(at.sin_port), &addresses.items[0]);
    const struct horon_connector_options options = {
        .self = {&pump, &key, horon_hello_of(HORON_ROLE_PEER, 0, 2), NULL},
        .addresses = &addresses,
        .patience_ns = UINT64_MAX,
        .done = not_called};
    assert_int_equal(horon_connector_create(&options, &connector, &error), HORON_OK);
    turn_until_refused(&pump, connector, false, told);
    assert_int_equal(listen(held, 0), 0);
    for (int i = 0; i < 2; i++) {
        fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(fill[i], (struct sockaddr *)&at, sizeof at);
    }
    turn_until_refused(&pump, connector, true, told);
    horon_connector_destroy(connector);
    horon_pump_deinit(&pump);
    close(held);
    close(fill[0]);
    close(fill[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connector_tells_what_was_refused_during_the_next_try),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
