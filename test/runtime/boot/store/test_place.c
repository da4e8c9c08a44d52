/* SPDX-License-Identifier: Apache-2.0 */
/* One address or a list: what is tried, what is left out and why, and where rank 0 would listen. */
#undef NDEBUG
#include "boot/store/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define ELSEWHERE "203.0.113.1" /* of documentation: no machine has it */
#define NO_NAME "no..name"      /* no resolver asks anybody for it */

static struct horon_store_place place;
static struct horon_error error;

static horon_status_t find(const char *text, bool key_given)
{
    error = (struct horon_error){0};
    return horon_store_place_find(&place, text, key_given, 0, NULL, &error);
}

/* @param all "ADDRESS:PORT ADDRESS:PORT ..." */
static void expect_list(const struct horon_addresses *list, const char *all)
{
    char text[HORON_ADDRESSES_MAX * 64] = "", one[HORON_ADDRESS_TEXT_BYTES];
    for (int i = 0; i < list->count; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s", i ? " " : "",
                 horon_address_text(&list->items[i], one));
    }
    assert_string_equal(text, all);
}

static void expect_addresses(const char *all)
{
    expect_list(&place.addresses, all);
}

/* Where rank 0 serves. */
static void expect_listen(const char *all)
{
    expect_list(&place.listen, all);
}

static void test_store_place_one_address_is_read(void **state)
{
    (void)state;
    assert_int_equal(find("tcp://" ELSEWHERE ":4000", true), HORON_OK);
    expect_addresses(ELSEWHERE ":4000");
    assert_false(place.several);
    expect_listen("");
    assert_string_equal(place.unusable, "");
    assert_int_equal(find("tcp://[::1]:65535", true), HORON_OK);
    expect_addresses("[::1]:65535");
    assert_int_equal(place.port, 65535);
    expect_listen("[::1]:65535");
}

static void test_store_place_lists_keep_order_and_ports(void **state)
{
    (void)state;
    assert_int_equal(find("tcp://203.0.113.7:4000,[2001:db8::1]:4001, tcp://" ELSEWHERE
                          ":4000,203.0.113.7:4000",
                          true),
                     HORON_OK);
    expect_addresses("203.0.113.7:4000 [2001:db8::1]:4001 " ELSEWHERE ":4000");
    assert_true(place.several);
}

static void test_store_place_other_forms_are_refused(void **state)
{
    static const char *const forms[] = {
        "tcp://",     "tcp://a",        "tcp://:5",    "tcp://a:",
        "tcp://a:0",  "tcp://a:65536",  "tcp://a:1x",  "tcp://127.0.0.1:1,",
        "tcp://,a:1", "tcp://a:1,,b:2", "tcp://a:1,b", "tcp://a:1 b:2",
    };
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (find(forms[i], true) != HORON_ERR_CONFIG || !strstr(error.text, forms[i]))
            fail_msg("%s: '%s'", forms[i], error.text);
        assert_non_null(strstr(error.text, "tcp://HOST:PORT"));
    }
}

static void test_store_place_unknown_names_are_passed_over_and_noted(void **state)
{
    (void)state;
    assert_int_equal(find("tcp://" NO_NAME ":4000,127.0.0.1:4001", true), HORON_OK);
    expect_addresses("127.0.0.1:4001");
    assert_int_equal(place.port, 4001);
    expect_listen("127.0.0.1:4001");
    assert_int_equal(strncmp(place.unusable, NO_NAME ":4000: ", sizeof NO_NAME + 6), 0);
    assert_int_equal(find("tcp://" NO_NAME ":1,other..name:2", true), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, NO_NAME ":1: "));
    assert_non_null(strstr(error.text, "; other..name:2: "));
}

static void test_store_place_without_key_stays_on_the_machine(void **state)
{
    (void)state;
    assert_int_equal(find("tcp://" ELSEWHERE ":4000,127.0.0.1:4000", false), HORON_OK);
    expect_addresses("127.0.0.1:4000");
    expect_listen("127.0.0.1:4000");
    assert_non_null(strstr(place.unusable, ELSEWHERE ":4000: there is no job key"));
    assert_int_equal(find("tcp://" ELSEWHERE ":1,203.0.113.2:2", false), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, ELSEWHERE ":1: there is no job key"));
    assert_non_null(strstr(error.text, "HORON_JOB_KEY_FILE"));
}

static void test_store_place_is_bound_at_the_first_port_of_this_machine(void **state)
{
    static const struct {
        const char *text, *listen;
        int port;
    } rows[] = {
        {"tcp://" ELSEWHERE ":4000,127.0.0.1:4001", "127.0.0.1:4001", 4001},
        {"tcp://127.0.0.1:4000,127.0.0.1:4001", "127.0.0.1:4000", 4000},
        {"tcp://127.0.0.1:4000,[::1]:4000", "127.0.0.1:4000 [::1]:4000", 4000},
        {"tcp://" ELSEWHERE ":4000,203.0.113.2:4000", "", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(find(rows[i].text, true), HORON_OK);
        expect_listen(rows[i].listen);
        assert_int_equal(place.port, rows[i].port);
    }
}

/* Where the others look for rank 0, on whichever host has that address: a name of many meanings. */
static void test_store_place_that_was_derived_is_bound_everywhere(void **state)
{
    (void)state;
    assert_int_equal(
        horon_store_place_find(&place, "tcp://" ELSEWHERE ":4000", true, 2, NULL, &error),
        HORON_OK);
    expect_listen("0.0.0.0:0 [::]:0");
    assert_int_equal(place.port, 4000);
    assert_int_equal(place.port_last, 4002);
    expect_addresses(ELSEWHERE ":4000 " ELSEWHERE ":4001 " ELSEWHERE ":4002");
}

static void test_store_place_more_addresses_than_room_are_cut(void **state)
{
    char text[1024] = "tcp://203.0.113.1:1";
    (void)state;
    for (int i = 2; i <= HORON_ADDRESSES_MAX + 3; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, ",203.0.113.%d:1", i);
    }
    assert_int_equal(find(text, true), HORON_OK);
    assert_int_equal(place.addresses.count, HORON_ADDRESSES_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_place_one_address_is_read),
        cmocka_unit_test(test_store_place_lists_keep_order_and_ports),
        cmocka_unit_test(test_store_place_other_forms_are_refused),
        cmocka_unit_test(test_store_place_unknown_names_are_passed_over_and_noted),
        cmocka_unit_test(test_store_place_without_key_stays_on_the_machine),
        cmocka_unit_test(test_store_place_is_bound_at_the_first_port_of_this_machine),
        cmocka_unit_test(test_store_place_that_was_derived_is_bound_everywhere),
        cmocka_unit_test(test_store_place_more_addresses_than_room_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
