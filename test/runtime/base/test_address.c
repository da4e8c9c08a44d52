/* SPDX-License-Identifier: Apache-2.0 */
/* Texts, prefixes, this machine's interfaces, port ranges. */
#undef NDEBUG
#include "address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void test_address_texts_are_read_and_written(void **state)
{
    static const struct {
        const char *in, *out;
        bool loopback, link_local;
    } rows[] = {{"127.0.0.1", "127.0.0.1:7", true, false},
                {"127.8.9.1", "127.8.9.1:7", true, false},
                {"10.1.0.3", "10.1.0.3:7", false, false},
                {"::1", "[::1]:7", true, false},
                {"[::1]", "[::1]:7", true, false},
                {"::ffff:127.0.0.1", "[::ffff:127.0.0.1]:7", true, false},
                {"fe80::1", "[fe80::1]:7", false, true},
                {"fd00::7", "[fd00::7]:7", false, false}};
    char text[HORON_ADDRESS_TEXT_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct horon_address address;
        struct horon_addresses copy;
        assert_true(horon_address_parse(rows[i].in, 7, &address));
        assert_string_equal(horon_address_text(&address, text), rows[i].out);
        assert_int_equal(horon_address_is_loopback(&address), rows[i].loopback);
        assert_int_equal(horon_address_is_link_local(&address), rows[i].link_local);
        assert_int_equal(horon_address_port(&address), 7);
        horon_address_set_port(&address, 8);
        assert_true(horon_addresses_read(horon_address_text(&address, text), &copy));
        assert_int_equal(copy.count, 1);
        assert_true(horon_address_same_host(&address, &copy.items[0]));
        assert_int_equal(horon_address_port(&copy.items[0]), 8);
    }
}

static void test_address_agrees_by_its_first_bits(void **state)
{
    static const struct {
        const char *a, *b;
        int bits;
        bool agrees;
    } rows[] = {{"10.1.0.3", "10.1.128.3", 16, true},       {"10.1.0.3", "10.1.128.3", 17, false},
                {"10.1.0.3", "10.1.0.3", 128, true},        {"10.1.0.3", "10.1.0.2", 31, true},
                {"10.1.0.3", "10.1.0.2", 64, false},        {"10.1.0.3", "99.1.0.3", 0, true},
                {"fd00::1", "fd00::2", 64, true},           {"fd00::1", "fd00::2", 128, false},
                {"fd00:0:0:1::", "fd00::", 63, true},       {"fd00:0:0:1::", "fd00::", 64, false},
                {"127.0.0.1", "::ffff:127.0.0.1", 0, false}};
    struct horon_address a, b;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_true(horon_address_parse(rows[i].a, 1, &a));
        assert_true(horon_address_parse(rows[i].b, 2, &b));
        assert_int_equal(horon_address_agrees(&a, &b, rows[i].bits), rows[i].agrees);
        assert_int_equal(horon_address_agrees(&b, &a, rows[i].bits), rows[i].agrees);
    }
    horon_address_abstract("name", &a);
    assert_false(horon_address_agrees(&a, &a, 0));
    assert_false(horon_address_same_host(&a, &a));
}

static void test_address_of_both_ends_is_told(void **state)
{
    struct horon_address address;
    char here[HORON_ADDRESS_TEXT_BYTES], there[HORON_ADDRESS_TEXT_BYTES];
    const int far = socket(AF_INET, SOCK_STREAM, 0);
    (void)state;
    assert_true(horon_address_parse("127.0.0.1", 0, &address));
    const int listener = horon_address_listen(&address);
    assert_string_equal(horon_address_end_text(far, true, there), "?");
    assert_int_equal(connect(far, &address.any, address.bytes), 0);
    const int near = accept(listener, NULL, NULL);
    assert_true(near >= 0);
    assert_string_equal(horon_address_end_text(near, false, here),
                        horon_address_text(&address, there));
    assert_string_equal(horon_address_end_text(near, true, there),
                        horon_address_end_text(far, false, here));
    assert_string_equal(horon_address_end_text(near, false, here),
                        horon_address_end_text(far, true, there));
    close(near);
    close(far);
    close(listener);
}

static void test_address_nonsense_is_none(void **state)
{
    static const char *const words[] = {"",    "localhost", "1.2.3", "1.2.3.4.5", "1.2.3.256",
                                        ":::", "[::1",      "::1]",  "[]"};
    struct horon_address address;
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        assert_false(horon_address_parse(words[i], 1, &address));
}

/* The longest addresses and ports; one more is not read. */
static void test_addresses_survive_the_way(void **state)
{
    char text[HORON_ADDRESSES_TEXT_BYTES];
    (void)state;
    for (int count = 0; count <= HORON_ADDRESSES_MAX; count++) {
        struct horon_addresses addresses = {.count = count}, copy;
        for (int i = 0; i < count; i++)
            assert_true(
                horon_address_parse(i % 3 ? "10.0.0.1" : "fd00:1111:2222:3333:4444:5555:6666:7777",
                                    65500 + i, &addresses.items[i]));
        horon_addresses_write(&addresses, text, sizeof text);
        assert_true(horon_addresses_read(text, &copy));
        assert_int_equal(copy.count, count);
        for (int i = 0; i < count; i++) {
            assert_true(horon_address_same_host(&copy.items[i], &addresses.items[i]));
            assert_int_equal(horon_address_port(&copy.items[i]), 65500 + i);
        }
    }
    assert_true(strlen(text) + strlen(",10.0.0.1:1") < sizeof text);
    struct horon_addresses addresses;
    assert_false(horon_addresses_read(strcat(text, ",10.0.0.1:1"), &addresses));
}

static void test_addresses_that_are_none_are_refused(void **state)
{
    static const char *const texts[] = {"10.0.0.1",     "10.0.0.1:",       "10.0.0.1:0",
                                        ":7",           "10.0.0.1:65536",  "10.0.0.1:7,,",
                                        ",10.0.0.1:7",  "localhost:7",     "10.0.0.1:7 ",
                                        "[fd00::1]:7;", "10.0.0.1:7,word", "10.0.0.1:7:"};
    struct horon_addresses addresses;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_false(horon_addresses_read(texts[i], &addresses));
}

static void test_address_names_are_resolved(void **state)
{
    struct horon_addresses addresses;
    struct horon_error error = {0};
    (void)state;
    assert_int_equal(horon_addresses_resolve("localhost", 9, &addresses, &error), HORON_OK);
    assert_true(addresses.count >= 1);
    assert_true(horon_address_is_loopback(&addresses.items[0]));
    assert_int_equal(horon_address_port(&addresses.items[0]), 9);
    assert_int_equal(horon_addresses_resolve("no such host.", 9, &addresses, &error),
                     HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "no such host."));
}

static int count_matches(const char *spec, bool loopback_only)
{
    struct horon_addresses addresses;
    struct horon_error error = {0};
    if (horon_addresses_of_machine(spec, loopback_only, &addresses, &error) != HORON_OK) {
        assert_non_null(strstr(error.text, "127.0.0.1")); /* says what there is */
        return 0;
    }
    return addresses.count;
}

/* Every machine that runs this has lo with 127.0.0.1. */
static void test_address_interfaces_are_chosen_by_name_and_prefix(void **state)
{
    struct horon_addresses addresses;
    struct horon_error error = {0};
    (void)state;
    assert_int_equal(count_matches("127.0.0.1", false), 1);
    assert_int_equal(count_matches("127.0.0.0/8", false), 1);
    assert_int_equal(count_matches("126.0.0.0/7", false), 1);
    assert_int_equal(count_matches("126.0.0.0/8", false), 0);
    assert_int_equal(count_matches("127.0.0.0/33", false), 0);
    assert_int_equal(count_matches("127.0.0.0/", false), 0);
    assert_int_equal(count_matches("nothing0", false), 0);
    assert_true(count_matches("nothing0, lo", false) >= 1);
    assert_true(count_matches("lo,127.0.0.1", false) >= 1);
    assert_true(count_matches("", true) >= 1);
    assert_int_equal(horon_addresses_of_machine("", true, &addresses, &error), HORON_OK);
    for (int i = 0; i < addresses.count; i++)
        assert_true(horon_address_is_loopback(&addresses.items[i]));
}

static void test_address_loopback_comes_last(void **state)
{
    struct horon_addresses addresses;
    struct horon_error error = {0};
    bool loopback = false;
    (void)state;
    assert_int_equal(horon_addresses_of_machine("", false, &addresses, &error), HORON_OK);
    for (int i = 0; i < addresses.count; i++) {
        bool one = horon_address_is_loopback(&addresses.items[i]);
        assert_true(one || !loopback);
        loopback = one;
        assert_true(horon_address_is_here(&addresses.items[i]));
    }
    struct horon_address far;
    horon_address_parse("192.0.2.1", 1, &far); /* never assigned: for documents */
    assert_false(horon_address_is_here(&far));
    assert_int_equal(horon_addresses_count(&addresses, horon_address_is_here), addresses.count);
}

static void test_port_range_is_read_strictly(void **state)
{
    static const struct {
        const char *text;
        int first, last; /* -1: refused */
    } rows[] = {{"", 0, 0},      {"80", 80, 80},  {"4000-4010", 4000, 4010}, {"7-7", 7, 7},
                {"9-8", -1, -1}, {"0-5", -1, -1}, {"1-65536", -1, -1},       {"a", -1, -1},
                {"1-", -1, -1},  {"-5", -1, -1},  {"1-2-3", -1, -1},         {"1 2", -1, -1}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int first = 1, last = 1;
        struct horon_error error = {0};
        horon_status_t status = horon_port_range_parse(rows[i].text, &first, &last, &error);
        assert_int_equal(status, rows[i].first < 0 ? HORON_ERR_CONFIG : HORON_OK);
        if (rows[i].first < 0)
            continue;
        assert_int_equal(first, rows[i].first);
        assert_int_equal(last, rows[i].last);
    }
}

static void test_address_of_another_machine_is_not_listened_at(void **state)
{
    struct horon_address address;
    (void)state;
    horon_address_parse("192.0.2.1", 0, &address);
    assert_int_equal(horon_address_listen(&address), -1);
    assert_int_equal(errno, EADDRNOTAVAIL);
}

static void test_address_of_a_host_is_cut_up_to_its_port(void **state)
{
    char host[HORON_ADDRESS_TEXT_BYTES], name[254], text[300];
    int port = 0;
    (void)state;
    assert_true(horon_address_cut("[::1]:7, and more", 7, host, &port));
    assert_string_equal(host, "[::1]");
    assert_int_equal(port, 7);
    memset(name, 'n', sizeof name); /* the longest that DNS allows, in labels of 63 */
    name[63] = name[127] = name[191] = '.';
    name[253] = 0;
    snprintf(text, sizeof text, "%s:65535", name);
    assert_true(horon_address_cut(text, strlen(text), host, &port));
    assert_string_equal(host, name);
    assert_int_equal(port, 65535);
    assert_false(horon_address_cut("host", 4, host, &port));
    assert_false(horon_address_cut(":7", 2, host, &port));
    assert_false(horon_address_cut("host:0", 6, host, &port));
    assert_false(horon_address_cut("host:65536", 10, host, &port));
    memset(text, 'n', sizeof text);
    memcpy(text + sizeof text - 2, ":7", 2);
    assert_false(horon_address_cut(text, sizeof text, host, &port)); /* none is so long */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_address_texts_are_read_and_written),
        cmocka_unit_test(test_address_agrees_by_its_first_bits),
        cmocka_unit_test(test_address_of_both_ends_is_told),
        cmocka_unit_test(test_address_nonsense_is_none),
        cmocka_unit_test(test_address_of_a_host_is_cut_up_to_its_port),
        cmocka_unit_test(test_addresses_survive_the_way),
        cmocka_unit_test(test_addresses_that_are_none_are_refused),
        cmocka_unit_test(test_address_names_are_resolved),
        cmocka_unit_test(test_address_interfaces_are_chosen_by_name_and_prefix),
        cmocka_unit_test(test_address_loopback_comes_last),
        cmocka_unit_test(test_port_range_is_read_strictly),
        cmocka_unit_test(test_address_of_another_machine_is_not_listened_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
