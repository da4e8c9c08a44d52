/* SPDX-License-Identifier: Apache-2.0 */
/* -H and host files: every form that is allowed, every slip named with its place. */
#undef NDEBUG
#include "hosts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* "name:slots " of each host, as parsed. */
static const char *list(const struct horonrun_hosts *hosts, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < hosts->count; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s=%d ", hosts->at[i].name,
                                 hosts->at[i].slots);
    return text;
}

static void test_hosts_list_is_understood(void **state)
{
    static const char *const cases[][2] = {
        {"a", "a=1 "},
        {"a:3", "a=3 "},
        {"a:2,b,c:1", "a=2 b=1 c=1 "},
        {"user@node-1.example_x:65536", "user@node-1.example_x=65536 "},
        {"10.1.0.1:2,10.1.0.2:2", "10.1.0.1=2 10.1.0.2=2 "},
        {"fe80::1%eth0", "fe80::1%eth0=1 "},
        {"[::1]:2,[fd00::2]", "::1=2 fd00::2=1 "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct horonrun_hosts hosts = {0};
        struct horon_error error = {0};
        char text[256];
        assert_int_equal(horonrun_hosts_parse(&hosts, cases[i][0], &error), HORON_OK);
        assert_string_equal(list(&hosts, text, sizeof text), cases[i][1]);
        horonrun_hosts_deinit(&hosts);
    }
}

static void test_hosts_wrong_list_is_named(void **state)
{
    static const char *const cases[][2] = {
        {"", "''"},
        {"a,,b", "''"},
        {"a:0", "'a:0'"},
        {"a:x", "'a:x'"},
        {"a:-1", "'a:-1'"},
        {"a:", "'a:'"},
        {"a:65537", "65537"},
        {"a:2,b,a:2", "a is there twice"},
        {"[::1", "lacks a ]"},
        {"[::1]x", "[::1]x"},
        {"-oProxy", "-oProxy"},
        {"a b", "'a b'"},
        {"a;b", "'a;b'"},
        {"a:9999999999", "9999999999"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct horonrun_hosts hosts = {0};
        struct horon_error error = {0};
        assert_int_equal(horonrun_hosts_parse(&hosts, cases[i][0], &error), HORON_ERR_CONFIG);
        assert_non_null(strstr(error.text, cases[i][1]));
        horonrun_hosts_deinit(&hosts);
    }
}

static void test_hosts_file_forms_are_understood(void **state)
{
    static const char text[] = "# a comment\n"
                               "\n"
                               "a slots=2\r\n"
                               "  b:3   # Horovod's\n"
                               "c\n"
                               "user@d\tslots=4 max_slots=8\n"
                               "fd00::1 slots=2 max-slots=2\n"
                               "[fd00::2]:5";
    struct horonrun_hosts hosts = {0};
    struct horon_error error = {0};
    char found[256];
    (void)state;
    assert_int_equal(horonrun_hosts_parse_file_text(&hosts, "f", text, &error), HORON_OK);
    assert_string_equal(list(&hosts, found, sizeof found),
                        "a=2 b=3 c=1 user@d=4 fd00::1=2 fd00::2=5 ");
    horonrun_hosts_deinit(&hosts);
}

static void test_hosts_file_slip_is_named_with_its_line(void **state)
{
    static const char *const cases[][2] = {
        {"a\nb slots=0\n", "hosts:2: 'slots=0'"},
        {"a slots=\n", "hosts:1: 'slots='"},
        {"a slots=2x\n", "hosts:1: 'slots=2x'"},
        {"\n\na slot=2\n", "hosts:3: 'slot=2'"},
        {"a 2\n", "hosts:1: '2'"},
        {"a\nb\na\n", "hosts:3: host a is there twice"},
        {"a:x\n", "hosts:1: 'a:x'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct horonrun_hosts hosts = {0};
        struct horon_error error = {0};
        assert_int_equal(horonrun_hosts_parse_file_text(&hosts, "hosts", cases[i][0], &error),
                         HORON_ERR_CONFIG);
        assert_non_null(strstr(error.text, cases[i][1]));
        horonrun_hosts_deinit(&hosts);
    }
}

static void test_hosts_missing_file_is_named(void **state)
{
    struct horonrun_hosts hosts = {0};
    struct horon_error error = {0};
    (void)state;
    assert_int_equal(horonrun_hosts_read_file(&hosts, "/nowhere/hosts", &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "/nowhere/hosts"));
    assert_int_equal(horonrun_hosts_read_file(&hosts, "/dev/null", &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "names no host"));
    assert_int_equal(horonrun_hosts_read_file(&hosts, "/", &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "cannot read host file /: Is a directory"));
}

static void deal(const char *text, int np, struct horonrun_hosts *hosts)
{
    struct horon_error error = {0};
    *hosts = (struct horonrun_hosts){0};
    assert_int_equal(horonrun_hosts_parse(hosts, text, &error), HORON_OK);
    assert_int_equal(horonrun_hosts_deal(hosts, np, &error), HORON_OK);
}

static void test_hosts_deal_fills_in_order(void **state)
{
    struct horonrun_hosts hosts;
    (void)state;
    deal("a:2,b:3,c:4", 6, &hosts);
    assert_int_equal(hosts.count, 3);
    assert_int_equal(hosts.at[1].first_rank, 2);
    assert_int_equal(hosts.at[1].ranks, 3);
    assert_int_equal(hosts.at[2].first_rank, 5);
    assert_int_equal(hosts.at[2].ranks, 1);
    horonrun_hosts_deinit(&hosts);
    deal("a:2,b:3,c:4", 2, &hosts);
    assert_int_equal(hosts.count, 1);
    horonrun_hosts_deinit(&hosts);
    deal("a:2,b:3", 0, &hosts);
    assert_int_equal(hosts.at[1].ranks, 3);
    horonrun_hosts_deinit(&hosts);
}

static void test_hosts_more_ranks_than_slots_is_refused(void **state)
{
    struct horonrun_hosts hosts = {0};
    struct horon_error error = {0};
    (void)state;
    assert_int_equal(horonrun_hosts_parse(&hosts, "a:2,b:3", &error), HORON_OK);
    assert_int_equal(horonrun_hosts_deal(&hosts, 6, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "-np 6 is more than the 5 slots"));
    horonrun_hosts_deinit(&hosts);
}

static void test_hosts_this_machine_is_recognised(void **state)
{
    char own[256] = "", text[512];
    struct horonrun_hosts hosts = {0};
    struct horon_error error = {0};
    (void)state;
    assert_int_equal(gethostname(own, sizeof own - 1), 0);
    snprintf(text, sizeof text, "localhost,%s%s127.0.0.1,127.0.0.5,[::1],me@localhost,192.0.2.77",
             strcmp(own, "localhost") == 0 ? "" : own, strcmp(own, "localhost") == 0 ? "" : ",");
    assert_int_equal(horonrun_hosts_parse(&hosts, text, &error), HORON_OK);
    horonrun_hosts_find_local(&hosts);
    for (size_t i = 0; i < hosts.count; i++)
        assert_int_equal(hosts.at[i].local, i + 1 < hosts.count);
    horonrun_hosts_deinit(&hosts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_list_is_understood),
        cmocka_unit_test(test_hosts_wrong_list_is_named),
        cmocka_unit_test(test_hosts_file_forms_are_understood),
        cmocka_unit_test(test_hosts_file_slip_is_named_with_its_line),
        cmocka_unit_test(test_hosts_missing_file_is_named),
        cmocka_unit_test(test_hosts_deal_fills_in_order),
        cmocka_unit_test(test_hosts_more_ranks_than_slots_is_refused),
        cmocka_unit_test(test_hosts_this_machine_is_recognised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
