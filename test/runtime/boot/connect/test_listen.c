/* SPDX-License-Identifier: Apache-2.0 */
/* Where a rank listens for those of other hosts, at which port, and what it says if it cannot. */
#undef NDEBUG
#include "boot/connect/listen.h"

#include "../../../free_port.h"
#include "../../../own_network.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PORT "40000" /* the only one of a network of our own */

static int listen_in(int first, int start)
{
    struct horon_addresses at = {.count = 1};
    struct horon_listeners listeners = {0};
    horon_address_parse("127.0.0.1", 0, &at.items[0]);
    const int port = horon_listeners_add(&at, first, first + 1, start, &listeners);
    assert_int_equal(listeners.count, port >= 0);
    return port >= 0 ? listeners.fds[0] : -1;
}

static void close_both(const int fds[2])
{
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* @return false: another program had one of its ports at some time */
static bool takes_each_port_once(int first)
{
    int fds[2] = {listen_in(first, 1), listen_in(first, 1)};
    bool good = fds[0] >= 0 && fds[1] >= 0;
    if (good) {
        errno = 0;
        assert_int_equal(listen_in(first, 0), -1);
        assert_int_equal(errno, EADDRINUSE);
        close(fds[0]);
        fds[0] = listen_in(first, 0);
        good = fds[0] >= 0;
    }
    close_both(fds);
    return good;
}

/* Two listeners in a range of two take both ports; the third finds none, until one is closed. No
 * other program has ports of all these ranges. */
static void test_listen_range_takes_each_port_once(void **state)
{
    int first = 41000;
    (void)state;
    while (first < 42000 && !takes_each_port_once(first))
        first += 2;
    assert_true(first < 42000);
}

/* A sign stands as long as its port is listened at. Another's sign takes the port: of one that the
 * kernel gave, once it is free, a job beside this test could have it. */
static void test_listen_sign_stands_while_its_port_is_listened_at(void **state)
{
    struct horon_addresses at = {.count = 1}, beside = {.count = 1};
    struct horon_listeners one = {.named = true}, other = {.named = true}, plain = {0};
    (void)state;
    horon_address_parse("127.0.0.1", 0, &at.items[0]);
    horon_address_parse("127.0.0.2", 0, &beside.items[0]);
    const int port = free_port(), without = port + 1;
    assert_int_equal(horon_listeners_add(&at, port, port, 0, &one), port);
    assert_int_equal(horon_listeners_add(&at, without, without, 0, &plain), without);
    assert_true(horon_port_has_sign(port, NULL));
    assert_false(horon_port_has_sign(without, NULL));
    assert_int_equal(horon_listeners_add(&beside, port, port, 0, &other), -1);
    assert_int_equal(errno, EADDRINUSE);
    assert_int_equal(other.count, 0);
    horon_listeners_close(&one, 0);
    assert_false(horon_port_has_sign(port, NULL));
    assert_int_equal(horon_listeners_add(&beside, port, port, 0, &other), port);
    assert_true(horon_port_has_sign(port, NULL));
    horon_listeners_close(&other, 0);
    horon_listeners_close(&plain, 0);
    assert_false(horon_port_has_sign(port, NULL));
}

/* Does a rank with this range say what is wanted? */
static bool says(const char *range, const char *wanted)
{
    static struct horon_config config;
    struct horon_listeners listeners = {0};
    struct horon_error error = {0};
    char told[HORON_ADDRESSES_TEXT_BYTES] = "";
    snprintf(config.port_range, sizeof config.port_range, "%s", range);
    const horon_status_t status = horon_listeners_open(&listeners, &config, false, 0, told, &error);
    const bool good = status < 0 && listeners.count == 0 && strstr(error.text, wanted);
    if (!good)
        fprintf(stderr, "%d, '%s' lacks '%s'\n", (int)status, error.text, wanted);
    return good;
}

/* @return what the process ends with */
static int listen_without_a_free_port(void)
{
    static const char range[] = PORT " " PORT;
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    struct horon_addresses at = {.count = 1};
    struct horon_listeners first = {0};
    if (unshare(CLONE_NEWNET) != 0)
        return NO_OWN_NETWORK;
    const int file = open("/proc/sys/net/ipv4/ip_local_port_range", O_WRONLY);
    const int any = socket(AF_INET, SOCK_DGRAM, 0);
    if (any < 0 || ioctl(any, SIOCSIFFLAGS, &loopback) != 0 ||
        write(file, range, sizeof range - 1) != (ssize_t)sizeof range - 1)
        return NO_OWN_NETWORK;
    horon_address_parse("127.0.0.1", 0, &at.items[0]);
    if (horon_listeners_add(&at, 0, 0, 0, &first) != atoi(PORT))
        return 1;
    return says(PORT, "no port of HORON_PORT_RANGE=" PORT " is free") &&
                   says("", "this rank cannot listen: ")
               ? 0
               : 2;
}

static void test_listen_without_a_free_port_says_which_were_tried(void **state)
{
    (void)state;
    run_apart(listen_without_a_free_port);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_listen_range_takes_each_port_once),
        cmocka_unit_test(test_listen_sign_stands_while_its_port_is_listened_at),
        cmocka_unit_test(test_listen_without_a_free_port_says_which_were_tried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
