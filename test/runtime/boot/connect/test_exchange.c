/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exchange against the published example (RFC 9382, appendix B, P-256), and what must be
 * refused. The example gives the secret as a number; here it comes as a seed, which is reduced to
 * the same number.
 */
#undef NDEBUG
#include "boot/connect/exchange.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char w[] = "2ee57912099d31560b3a44b1184b9b4866e904c49d12ac5042c97dca461b1a5f";
static const char x[] = "43dd0fd7215bdcb482879fca3220c6a968e66d70b1356cac18bb26c84a78d729";
static const char y[] = "dcb60106f276b02606d8ef0a328c02e4b629f84f89786af5befb0bc75b6e66be";
static const char share_of_x[] =
    "04a56fa807caaa53a4d28dbb9853b9815c61a411118a6fe516a8798434751470f9"
    "010153ac33d0d5f2047ffdb1a3e42c9b4e6be662766e1eeb4116988ede5f912c";
static const char share_of_y[] =
    "0406557e482bd03097ad0cbaa5df82115460d951e3451962f1eaf4367a420676d0"
    "9857ccbc522686c83d1852abfa8ed6e4a1155cf8f1543ceca528afb591a1e0b7";
static const char shared_point[] =
    "0412af7e89717850671913e6b469ace67bd90a4df8ce45c2af19010175e37eed69"
    "f75897996d539356e2fa6a406d528501f907e04d97515fbe83db277b715d3325";

static void from_hex(const char *hex, uint8_t *bytes, size_t count)
{
    assert_int_equal(strlen(hex), 2 * count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(sscanf(hex + 2 * i, "%2hhx", &bytes[i]), 1);
}

static void seed_of(const char *hex, uint8_t seed[HORON_SEED_BYTES])
{
    memset(seed, 0, HORON_SEED_BYTES);
    from_hex(hex, seed + HORON_SEED_BYTES - HORON_SCALAR_BYTES, HORON_SCALAR_BYTES);
}

struct party {
    struct horon_exchange_masks masks;
    uint8_t scalar[HORON_SCALAR_BYTES], share[HORON_POINT_BYTES], shared[HORON_POINT_BYTES];
};

static void begin(struct party *party, enum horon_side side, const char *secret, const char *random)
{
    uint8_t seed[HORON_SEED_BYTES];
    seed_of(secret, seed);
    assert_int_equal(horon_exchange_masks(seed, &party->masks), HORON_OK);
    seed_of(random, seed);
    assert_int_equal(horon_exchange_begin(&party->masks, side, seed, party->scalar, party->share),
                     HORON_OK);
}

static horon_status_t end(struct party *party, enum horon_side side,
                          const uint8_t theirs[HORON_POINT_BYTES])
{
    return horon_exchange_end(&party->masks, side, party->scalar, theirs, party->shared);
}

static void expect_point(const uint8_t point[HORON_POINT_BYTES], const char *hex)
{
    uint8_t bytes[HORON_POINT_BYTES];
    from_hex(hex, bytes, sizeof bytes);
    assert_memory_equal(point, bytes, sizeof bytes);
}

static void test_exchange_is_as_published(void **state)
{
    struct party connector, acceptor;
    (void)state;
    begin(&connector, HORON_SIDE_CONNECTOR, w, x);
    begin(&acceptor, HORON_SIDE_ACCEPTOR, w, y);
    expect_point(connector.share, share_of_x);
    expect_point(acceptor.share, share_of_y);
    assert_int_equal(end(&connector, HORON_SIDE_CONNECTOR, acceptor.share), HORON_OK);
    assert_int_equal(end(&acceptor, HORON_SIDE_ACCEPTOR, connector.share), HORON_OK);
    expect_point(connector.shared, shared_point);
    expect_point(acceptor.shared, shared_point);
}

static void test_exchange_seed_is_reduced(void **state)
{
    /* the order of the group, and one more: the number 1 */
    static const char order_and_one[] =
        "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632552";
    uint8_t one[HORON_SCALAR_BYTES] = {0};
    struct party party;
    (void)state;
    one[HORON_SCALAR_BYTES - 1] = 1;
    begin(&party, HORON_SIDE_CONNECTOR, w, order_and_one);
    assert_memory_equal(party.scalar, one, sizeof one);
}

static void test_exchange_with_another_secret_gives_another_point(void **state)
{
    struct party connector, acceptor;
    (void)state;
    begin(&connector, HORON_SIDE_CONNECTOR, w, x);
    begin(&acceptor, HORON_SIDE_ACCEPTOR, y, y);
    assert_int_equal(end(&connector, HORON_SIDE_CONNECTOR, acceptor.share), HORON_OK);
    assert_int_equal(end(&acceptor, HORON_SIDE_ACCEPTOR, connector.share), HORON_OK);
    assert_memory_not_equal(connector.shared, acceptor.shared, HORON_POINT_BYTES);
}

/* Two of one side do not agree: a share that is played back is of no use. */
static void test_exchange_of_two_connectors_gives_two_points(void **state)
{
    struct party first, second;
    (void)state;
    begin(&first, HORON_SIDE_CONNECTOR, w, x);
    begin(&second, HORON_SIDE_CONNECTOR, w, y);
    assert_int_equal(end(&first, HORON_SIDE_CONNECTOR, second.share), HORON_OK);
    assert_int_equal(end(&second, HORON_SIDE_CONNECTOR, first.share), HORON_OK);
    assert_memory_not_equal(first.shared, second.shared, HORON_POINT_BYTES);
}

static void test_exchange_share_that_is_none_is_refused(void **state)
{
    struct party party;
    uint8_t share[HORON_POINT_BYTES] = {0};
    (void)state;
    begin(&party, HORON_SIDE_CONNECTOR, w, x);
    assert_int_equal(end(&party, HORON_SIDE_CONNECTOR, share), HORON_ERR_PROTO); /* infinity */
    from_hex(share_of_y, share, sizeof share);
    share[HORON_POINT_BYTES - 1] ^= 1; /* beside the curve */
    assert_int_equal(end(&party, HORON_SIDE_CONNECTOR, share), HORON_ERR_PROTO);
    memset(share + 1, 0xff, 32); /* beyond the field */
    assert_int_equal(end(&party, HORON_SIDE_CONNECTOR, share), HORON_ERR_PROTO);
    memset(share, 2, sizeof share); /* announced as compressed */
    assert_int_equal(end(&party, HORON_SIDE_CONNECTOR, share), HORON_ERR_PROTO);
    /* nothing but the mask: what is left of it is infinity, whatever our number */
    assert_int_equal(end(&party, HORON_SIDE_CONNECTOR, party.masks.of[HORON_SIDE_ACCEPTOR]),
                     HORON_ERR_PROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchange_is_as_published),
        cmocka_unit_test(test_exchange_seed_is_reduced),
        cmocka_unit_test(test_exchange_with_another_secret_gives_another_point),
        cmocka_unit_test(test_exchange_of_two_connectors_gives_two_points),
        cmocka_unit_test(test_exchange_share_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
