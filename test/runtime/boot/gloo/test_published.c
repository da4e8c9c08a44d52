/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks publish, byte for byte as Gloo does, and what is not that. */
#undef NDEBUG
#include "boot/gloo/published.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define E1 HORON_GLOO_ERA_1
#define E3 HORON_GLOO_ERA_3

static struct horon_error error;

static struct horon_address at(const char *host, int port)
{
    struct horon_address address;
    assert_true(horon_address_parse(host, port, &address));
    return address;
}

/* What a rank at 10.0.0.@rank publishes; @return its bytes */
static size_t publish(uint8_t *bytes, size_t room, enum horon_gloo_era era, int size, int rank)
{
    struct horon_address listeners[8];
    struct horon_writer out = horon_writer_over(bytes, room);
    for (int i = 0; i < size; i++) {
        listeners[i] = at("10.0.0.0", 4000 + i);
        listeners[i].v4.sin_addr.s_addr |= htonl((uint32_t)rank);
    }
    horon_gloo_publish(&out, era, size, "vm", listeners);
    assert_true(out.ok);
    return out.used;
}

static horon_status_t read_it(enum horon_gloo_era era, const void *bytes, size_t count, int size,
                              int rank, int peer, struct horon_gloo_peer *peer_out)
{
    return horon_gloo_peer_read(era, bytes, count, size, rank, peer, peer_out, &error);
}

static void test_published_e3_is_as_gloo_writes_it(void **state)
{
    static const uint8_t head[] = {2, 0, 0, 0, 0,  0,   0,  0, 'v', 'm', 136, 0, 0, 0, 0, 0,
                                   0, 0, 2, 0, 15, 160, 10, 0, 0,   1,   0,   0, 0, 0, 0};
    static const uint8_t tail[] = {255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0,
                                   0,   0,   0,   0,   1,   0,   0,   0,   0, 0, 0, 0};
    uint8_t bytes[256];
    (void)state;
    assert_int_equal(publish(bytes, sizeof bytes, E3, 2, 1), 170);
    assert_memory_equal(bytes, head, sizeof head);
    assert_memory_equal(bytes + 170 - sizeof tail, tail, sizeof tail);
}

static void test_published_e1_has_an_address_for_each_other(void **state)
{
    static const uint8_t head[] = {2, 0, 15, 160, 10, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    uint8_t bytes[1024];
    (void)state;
    assert_int_equal(publish(bytes, sizeof bytes, E1, 5, 3), 4 * 136);
    assert_memory_equal(bytes, head, sizeof head);
    assert_int_equal(bytes[128], 255);
    assert_int_equal(bytes[135], 255);
    for (int rank = 0; rank < 5; rank++) {
        struct horon_gloo_peer peer;
        if (rank == 3)
            continue;
        assert_int_equal(read_it(E1, bytes, 4 * 136, 5, rank, 3, &peer), HORON_OK);
        assert_int_equal(horon_address_port(&peer.address.at), 4000 + rank - (rank > 3));
    }
    assert_int_equal(publish(bytes, sizeof bytes, E1, 1, 0), 0);
}

static void test_published_what_real_gloo_left_unset_is_read_over(void **state)
{
    uint8_t bytes[256], again[256];
    struct horon_gloo_peer peer;
    struct horon_writer out = horon_writer_over(again, sizeof again);
    (void)state;
    publish(bytes, sizeof bytes, E1, 2, 1);
    memset(bytes + 8, 0xee, 120);
    assert_int_equal(read_it(E1, bytes, 136, 2, 0, 1, &peer), HORON_OK);
    assert_false(peer.address.of_horon);
    horon_gloo_address_write(&out, &peer.address);
    memset(bytes + 8, 0, 120);
    assert_memory_equal(bytes, again, 136);
}

/* The last 8 bytes of what an address has besides, which Gloo reads over. */
static void test_published_by_horon_is_known_as_that(void **state)
{
    enum { MARK_AT = 120, ADDRESS = 136 };
    uint8_t bytes[3 * ADDRESS];
    struct horon_gloo_peer peer;
    (void)state;
    publish(bytes, sizeof bytes, E1, 4, 1);
    assert_int_equal(read_it(E1, bytes, sizeof bytes, 4, 3, 1, &peer), HORON_OK);
    assert_true(peer.address.of_horon);
    for (size_t i = 2; i < 8; i++) { /* the port and the host */
        bytes[2 * ADDRESS + i] ^= 1;
        assert_int_equal(read_it(E1, bytes, sizeof bytes, 4, 3, 1, &peer), HORON_OK);
        assert_false(peer.address.of_horon); /* the memory of a Gloo that had read it */
        bytes[2 * ADDRESS + i] ^= 1;
    }
    for (size_t i = MARK_AT; i < MARK_AT + 8; i++) {
        bytes[2 * ADDRESS + i] ^= 1;
        assert_int_equal(read_it(E1, bytes, sizeof bytes, 4, 3, 1, &peer), HORON_OK);
        assert_false(peer.address.of_horon);
        bytes[2 * ADDRESS + i] ^= 1;
    }
    const size_t count = publish(bytes, sizeof bytes, E3, 3, 1);
    assert_int_equal(read_it(E3, bytes, count, 3, 2, 1, &peer), HORON_OK);
    assert_true(peer.address.of_horon);
}

static void test_published_ids_say_what_to_write(void **state)
{
    uint8_t bytes[512];
    struct horon_gloo_peer peer;
    (void)state;
    const size_t count = publish(bytes, sizeof bytes, E3, 3, 1);
    bytes[count - 8] = 77; /* the id for rank 2 */
    assert_int_equal(read_it(E3, bytes, count, 3, 2, 1, &peer), HORON_OK);
    assert_int_equal(peer.sequence, 77);
    assert_int_equal(horon_address_port(&peer.address.at), 4000);
    assert_int_equal(read_it(E3, bytes, count, 3, 0, 1, &peer), HORON_OK);
    assert_int_equal(peer.sequence, 0);
    /* without ids: its own rank */
    assert_int_equal(read_it(E3, bytes, count - 24, 3, 2, 1, &peer), HORON_OK);
    assert_int_equal(peer.sequence, 2);
}

static void test_published_cut_anywhere_is_refused(void **state)
{
    uint8_t bytes[512];
    struct horon_gloo_peer peer;
    (void)state;
    /* between the words it is of another number of ranks, or without ids */
    const size_t whole3 = publish(bytes, sizeof bytes, E3, 3, 1);
    for (size_t count = 0; count < whole3; count++)
        if (count < whole3 - 24 || (whole3 - count) % 8 != 0)
            assert_int_equal(read_it(E3, bytes, count, 3, 2, 1, &peer), HORON_ERR_PROTO);
    const size_t whole1 = publish(bytes, sizeof bytes, E1, 3, 1);
    for (size_t count = 0; count < whole1; count++)
        if (count != whole1 - 136)
            assert_int_equal(read_it(E1, bytes, count, 3, 2, 1, &peer), HORON_ERR_PROTO);
    assert_non_null(strstr(error.text, "rank 1"));
    assert_int_equal(error.blame.rank, 1);
}

static void expect_another_number(enum horon_gloo_era era, int told, int size)
{
    uint8_t bytes[1024];
    char number[64];
    struct horon_gloo_peer peer;
    const size_t count = publish(bytes, sizeof bytes, era, told, 1);
    memset(&error, 0, sizeof error);
    assert_int_equal(read_it(era, bytes, count, size, 0, 1, &peer), HORON_ERR_CONFIG);
    snprintf(number, sizeof number, "rank 1 is one of %d ranks", told);
    assert_non_null(strstr(error.text, number));
    snprintf(number, sizeof number, "that there are %d: ", size);
    assert_non_null(strstr(error.text, number));
    assert_int_equal(error.blame.rank, 1);
    assert_int_equal(error.blame.cause, HORON_CAUSE_SETTING);
    assert_int_equal(horon_gloo_era_of(bytes, count, size), HORON_GLOO_ERA_NONE);
}

/* One that took part all the same would wait for ever for what none of the others sends. */
static void test_published_among_another_number_is_refused(void **state)
{
    (void)state;
    for (int told = 2; told <= 6; told++)
        for (int size = 2; size <= 6; size++)
            if (told != size) {
                expect_another_number(E1, told, size);
                expect_another_number(E3, told, size);
            }
}

static void test_published_nonsense_is_refused(void **state)
{
    uint8_t bytes[512];
    struct horon_gloo_peer peer;
    (void)state;
    const size_t count = publish(bytes, sizeof bytes, E1, 2, 1);
    bytes[0] = 1; /* AF_UNIX */
    assert_int_equal(read_it(E1, bytes, count, 2, 0, 1, &peer), HORON_ERR_PROTO);
    bytes[0] = 2;
    bytes[2] = bytes[3] = 0; /* no port */
    assert_int_equal(read_it(E1, bytes, count, 2, 0, 1, &peer), HORON_ERR_PROTO);
    memset(bytes, 255, sizeof bytes);
    assert_int_equal(read_it(E3, bytes, sizeof bytes, 2, 0, 1, &peer), HORON_ERR_PROTO);
}

static void test_published_another_era_is_refused_by_name(void **state)
{
    uint8_t bytes[512];
    struct horon_gloo_peer peer;
    (void)state;
    size_t count = publish(bytes, sizeof bytes, E3, 2, 1);
    assert_int_equal(horon_gloo_era_of(bytes, count, 2), E3);
    assert_int_equal(read_it(E1, bytes, count, 2, 0, 1, &peer), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "HORON_GLOO_ERA=e3"));
    count = publish(bytes, sizeof bytes, E1, 3, 1);
    assert_int_equal(horon_gloo_era_of(bytes, count, 3), E1);
    assert_int_equal(read_it(E3, bytes, count, 3, 2, 1, &peer), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "HORON_GLOO_ERA=e1"));
    memset(bytes + 128, 0, 8);
    memset(bytes + 136 + 128, 0, 8);
    bytes[136 + 128] = 1;
    assert_int_equal(horon_gloo_era_of(bytes, count, 3), HORON_GLOO_ERA_2);
    assert_int_equal(read_it(E3, bytes, count, 3, 2, 1, &peer), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "e2 (torch 2.1 and 2.2)"));
    assert_int_equal(read_it(E1, bytes, count, 3, 2, 1, &peer), HORON_ERR_CONFIG);
    assert_int_equal(horon_gloo_era_of(bytes, count, 2), HORON_GLOO_ERA_NONE);
}

static void test_published_the_greater_address_connects(void **state)
{
    const struct {
        struct horon_address here, there;
        int sign;
    } known[] = {
        {at("10.0.0.2", 1), at("10.0.0.1", 9), 1},
        {at("9.255.0.1", 1), at("10.0.0.1", 1), -1},
        {at("10.0.0.1", 256), at("10.0.0.1", 1), -1}, /* bytes 1 0 and 0 1, low first */
        {at("10.0.0.1", 0x01ff), at("10.0.0.1", 0xff01), 1},
        {at("10.0.0.1", 7), at("10.0.0.1", 7), 0},
        {at("10.0.0.1", 7), at("::1", 8), 0},
        {at("fe00::2", 1), at("fe00::1", 256), 1},
        {at("fe00::1", 2), at("fe00::1", 1), 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const int order = horon_gloo_connects(&known[i].here, &known[i].there);
        const int back = horon_gloo_connects(&known[i].there, &known[i].here);
        assert_int_equal((order > 0) - (order < 0), known[i].sign);
        assert_int_equal((back > 0) - (back < 0), -known[i].sign);
    }
}

/* Of the other eras it is a value of its own. */
static void test_published_host_is_read_if_it_can_be_shown(void **state)
{
    static const struct {
        const char *said, *read;
    } known[] = {
        {"vm", "vm"},
        {"", ""},
        {"a-b.c:d", "a-b.c:d"},
        {"v\nm", ""},
        {"\xc3\xa4", ""},
        {"0123456789012345678901234567890123456789012345678901234567890123",
         "0123456789012345678901234567890123456789012345678901234567890123"},
        {"01234567890123456789012345678901234567890123456789012345678901234", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint8_t bytes[512];
        struct horon_gloo_peer peer;
        const struct horon_address here = at("10.0.0.1", 4000);
        struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
        horon_gloo_publish(&out, E3, 2, known[i].said, &here);
        assert_int_equal(read_it(E3, bytes, out.used, 2, 0, 1, &peer), HORON_OK);
        assert_string_equal(peer.host, known[i].read);
    }
}

static void test_published_ipv6_goes_through(void **state)
{
    uint8_t bytes[512];
    const struct horon_address here = at("fd00::7", 4000);
    struct horon_gloo_peer peer;
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    (void)state;
    horon_gloo_publish(&out, E3, 2, "", &here);
    assert_int_equal(bytes[16], 10);
    assert_int_equal(read_it(E3, bytes, out.used, 2, 0, 1, &peer), HORON_OK);
    assert_true(horon_address_same_host(&peer.address.at, &here));
    assert_int_equal(horon_address_port(&peer.address.at), 4000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_e3_is_as_gloo_writes_it),
        cmocka_unit_test(test_published_e1_has_an_address_for_each_other),
        cmocka_unit_test(test_published_what_real_gloo_left_unset_is_read_over),
        cmocka_unit_test(test_published_by_horon_is_known_as_that),
        cmocka_unit_test(test_published_ids_say_what_to_write),
        cmocka_unit_test(test_published_cut_anywhere_is_refused),
        cmocka_unit_test(test_published_among_another_number_is_refused),
        cmocka_unit_test(test_published_nonsense_is_refused),
        cmocka_unit_test(test_published_another_era_is_refused_by_name),
        cmocka_unit_test(test_published_the_greater_address_connects),
        cmocka_unit_test(test_published_host_is_read_if_it_can_be_shown),
        cmocka_unit_test(test_published_ipv6_goes_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
