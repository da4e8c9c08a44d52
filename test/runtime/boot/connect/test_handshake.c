/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides of the handshake in memory: every split, every flipped byte, every missing byte. */
#undef NDEBUG
#include "boot/connect/handshake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define WIRE_BYTES_MAX 1024

struct pair {
    struct horon_handshake acceptor, connector;
};

static void make_key(struct horon_job_key *key, const char *text)
{
    struct horon_error error = {0};
    assert_int_equal(horon_job_key_from_text(key, text, strlen(text), &error), HORON_OK);
}

static struct horon_hello make_hello(int rank)
{
    struct horon_hello hello = {.protocol_min = HORON_PROTOCOL_MIN,
                                .protocol_max = HORON_PROTOCOL_MAX,
                                .role = HORON_ROLE_PEER,
                                .rank = rank,
                                .size = 3,
                                .generation = 5,
                                .job = 77,
                                .settings = 99};
    memset(hello.member, rank + 1, sizeof hello.member);
    return hello;
}

static void begin(struct horon_handshake *auth, enum horon_side side,
                  const struct horon_job_key *key, int rank, uint8_t random_byte)
{
    const struct horon_hello hello = make_hello(rank);
    uint8_t random[HORON_HANDSHAKE_RANDOM_BYTES];
    memset(random, random_byte, sizeof random);
    assert_int_equal(horon_handshake_init(auth, side, key, &hello, random), HORON_OK);
}

static void make_pair(struct pair *pair, const struct horon_job_key *acceptor_key,
                      const struct horon_job_key *connector_key)
{
    begin(&pair->acceptor, HORON_SIDE_ACCEPTOR, acceptor_key, 0, 0xa5);
    begin(&pair->connector, HORON_SIDE_CONNECTOR, connector_key, 1, 0x5a);
}

/* What changes the bytes of one direction on their way. */
struct wire {
    size_t chunk;   /* bytes at a time */
    size_t flip_at; /* SIZE_MAX: none */
    uint8_t flip;   /* bits to change */
    size_t cut_at;  /* nothing from here on; SIZE_MAX: all */
    size_t passed;
    uint8_t seen[WIRE_BYTES_MAX];
};

static struct wire clean(size_t chunk)
{
    return (struct wire){.chunk = chunk, .flip_at = SIZE_MAX, .cut_at = SIZE_MAX};
}

/* Moves what one side has to send. @return how many bytes the other took */
static size_t move(struct horon_handshake *from, struct horon_handshake *to, struct wire *wire)
{
    size_t bytes, moved = 0;
    for (const uint8_t *out; (out = horon_handshake_out(from, &bytes));) {
        uint8_t in[WIRE_BYTES_MAX];
        size_t part = bytes < wire->chunk ? bytes : wire->chunk;
        size_t want = horon_handshake_want(to);
        part = want && part > want ? want : part;
        memcpy(in, out, part);
        for (size_t i = 0; i < part; i++)
            if (wire->passed + i == wire->flip_at)
                in[i] ^= wire->flip;
        memcpy(wire->seen + wire->passed, in, part);
        if (wire->passed + part > wire->cut_at)
            return moved;
        wire->passed += part;
        horon_handshake_sent(from, part);
        if (want)
            horon_handshake_feed(to, in, part);
        moved += part;
    }
    return moved;
}

/* Lets both talk until nothing moves. */
static void talk(struct pair *pair, struct wire *to_acceptor, struct wire *to_connector)
{
    size_t moved;
    do {
        moved = move(&pair->acceptor, &pair->connector, to_connector);
        moved += move(&pair->connector, &pair->acceptor, to_acceptor);
    } while (moved);
}

static void test_handshake_same_key_any_split_is_proven(void **state)
{
    struct horon_job_key key;
    (void)state;
    make_key(&key, "secret");
    for (size_t chunk = 1; chunk <= 200; chunk++) {
        struct pair pair;
        struct wire up = clean(chunk), down = clean(chunk);
        make_pair(&pair, &key, &key);
        talk(&pair, &up, &down);
        assert_int_equal(pair.acceptor.state, HORON_HANDSHAKE_PROVEN);
        assert_int_equal(pair.connector.state, HORON_HANDSHAKE_PROVEN);
        assert_int_equal(horon_handshake_want(&pair.acceptor), 0);
        assert_int_equal(pair.acceptor.theirs.rank, 1);
        assert_int_equal(pair.connector.theirs.rank, 0);
        assert_int_equal(pair.connector.theirs.generation, 5);
        assert_int_equal(pair.acceptor.theirs.member[3], 2);
        assert_int_equal(
            horon_hello_check(&pair.acceptor.mine, &pair.acceptor.theirs, &pair.acceptor.error),
            HORON_OK);
    }
}

static void test_handshake_other_key_is_refused_on_both_sides(void **state)
{
    struct horon_job_key key, other;
    struct pair pair;
    struct wire up = clean(64), down = clean(64);
    (void)state;
    make_key(&key, "secret");
    make_key(&other, "Secret");
    make_pair(&pair, &key, &other);
    talk(&pair, &up, &down);
    assert_int_equal(pair.acceptor.state, HORON_HANDSHAKE_FAILED);
    assert_int_equal(pair.acceptor.error.status, HORON_ERR_AUTH);
    assert_int_equal(pair.connector.state, HORON_HANDSHAKE_FAILED);
    assert_int_equal(pair.connector.error.status, HORON_ERR_AUTH);
}

static void test_handshake_no_key_is_not_any_key(void **state)
{
    struct horon_job_key key, none;
    struct pair pair;
    struct wire up = clean(64), down = clean(64);
    (void)state;
    make_key(&key, "secret");
    make_key(&none, "");
    assert_true(key.given);
    assert_false(none.given);
    make_pair(&pair, &key, &none);
    talk(&pair, &up, &down);
    assert_int_equal(pair.acceptor.state, HORON_HANDSHAKE_FAILED);
    up = clean(64);
    down = clean(64);
    make_pair(&pair, &none, &none);
    talk(&pair, &up, &down);
    assert_int_equal(pair.acceptor.state, HORON_HANDSHAKE_PROVEN);
}

/* How many bytes go each way in a good handshake. */
static void measure(const struct horon_job_key *key, size_t *up_bytes, size_t *down_bytes)
{
    struct pair pair;
    struct wire up = clean(WIRE_BYTES_MAX), down = clean(WIRE_BYTES_MAX);
    make_pair(&pair, key, key);
    talk(&pair, &up, &down);
    *up_bytes = up.passed;
    *down_bytes = down.passed;
}

/* Each handshake computes with points, so of each byte one bit is flipped, another one from byte to
 * byte. */
static void test_handshake_every_flipped_byte_is_refused(void **state)
{
    struct horon_job_key key;
    size_t bytes[2];
    (void)state;
    make_key(&key, "secret");
    measure(&key, &bytes[0], &bytes[1]);
    assert_true(bytes[0] > 100 && bytes[1] > 100);
    for (int direction = 0; direction < 2; direction++) {
        for (size_t at = 0; at < bytes[direction]; at++) {
            struct pair pair;
            struct wire wires[2] = {clean(WIRE_BYTES_MAX), clean(WIRE_BYTES_MAX)};
            wires[direction].flip_at = at;
            wires[direction].flip = (uint8_t)(1u << at % 8);
            make_pair(&pair, &key, &key);
            talk(&pair, &wires[0], &wires[1]);
            /* the acceptor sees what the connector sent last: it is never proven wrongly */
            assert_int_not_equal(pair.acceptor.state, HORON_HANDSHAKE_PROVEN);
            if (direction == 1)
                assert_int_not_equal(pair.connector.state, HORON_HANDSHAKE_PROVEN);
        }
    }
}

static void test_handshake_every_cut_is_not_proven(void **state)
{
    struct horon_job_key key;
    size_t bytes[2];
    (void)state;
    make_key(&key, "secret");
    measure(&key, &bytes[0], &bytes[1]);
    for (int direction = 0; direction < 2; direction++) {
        for (size_t at = 0; at < bytes[direction]; at++) {
            struct pair pair;
            struct wire wires[2] = {clean(1), clean(1)};
            wires[direction].cut_at = at;
            make_pair(&pair, &key, &key);
            talk(&pair, &wires[0], &wires[1]);
            assert_int_not_equal(pair.acceptor.state, HORON_HANDSHAKE_PROVEN);
            assert_int_not_equal(pair.acceptor.state, HORON_HANDSHAKE_FAILED);
        }
    }
}

/* An attacker plays an acceptor's bytes back to it: its hello, and its proof as ours. */
static void test_handshake_reflected_bytes_are_refused(void **state)
{
    struct horon_job_key key;
    struct pair pair;
    uint8_t hello[HORON_HELLO_BYTES_MAX];
    size_t bytes;
    (void)state;
    make_key(&key, "secret");
    make_pair(&pair, &key, &key);
    const uint8_t *out = horon_handshake_out(&pair.acceptor, &bytes);
    memcpy(hello, out, bytes);
    horon_handshake_sent(&pair.acceptor, bytes);
    assert_int_equal(horon_handshake_feed(&pair.acceptor, hello, bytes), HORON_AGAIN);
    uint8_t answer[1 + HORON_PROOF_BYTES] = {'Y'};
    out = horon_handshake_out(&pair.acceptor, &bytes);
    assert_int_equal(bytes, HORON_PROOF_BYTES);
    memcpy(answer + 1, out, bytes);
    assert_int_equal(horon_handshake_feed(&pair.acceptor, answer, sizeof answer), HORON_ERR_AUTH);
}

static void test_handshake_replayed_connector_is_refused(void **state)
{
    struct horon_job_key key;
    struct pair pair;
    struct wire up = clean(WIRE_BYTES_MAX), down = clean(WIRE_BYTES_MAX);
    struct horon_handshake fresh;
    (void)state;
    make_key(&key, "secret");
    make_pair(&pair, &key, &key);
    talk(&pair, &up, &down);
    begin(&fresh, HORON_SIDE_ACCEPTOR, &key, 0, 9); /* other random bytes than the first time */
    horon_status_t status = HORON_AGAIN;
    for (size_t at = 0; at < up.passed && status == HORON_AGAIN; at++)
        status = horon_handshake_feed(&fresh, &up.seen[at], 1);
    assert_int_equal(status, HORON_ERR_AUTH);
}

/* What a handshake shows of the key beside hellos, each with its share, is one digest. A stranger
 * that listens at an address is not even shown that; one that connects can compare it with what it
 * computes from one guess, which the exchange fixed with its share (test_exchange.c). */
static void test_handshake_stranger_that_listens_is_shown_no_proof(void **state)
{
    struct horon_job_key key, guess;
    struct pair pair;
    struct wire up = clean(WIRE_BYTES_MAX), down = clean(WIRE_BYTES_MAX);
    (void)state;
    make_key(&key, "secret");
    make_key(&guess, "guess");
    make_pair(&pair, &guess, &key); /* the stranger accepts */
    talk(&pair, &up, &down);
    assert_int_equal(pair.connector.error.status, HORON_ERR_AUTH);
    assert_int_equal(up.passed, pair.connector.hello_bytes[HORON_SIDE_CONNECTOR] + 1);
    assert_int_equal(up.seen[up.passed - 1], 'N');
}

/* One secret a direction, the same at both ends, another in each handshake; nothing that was on the
 * wire. */
static void test_handshake_hands_over_a_secret_for_each_direction(void **state)
{
    struct horon_job_key key;
    struct horon_proven proven[2][2];
    struct pair pair;
    (void)state;
    make_key(&key, "secret");
    for (uint8_t i = 0; i < 2; i++) {
        struct wire up = clean(WIRE_BYTES_MAX), down = clean(WIRE_BYTES_MAX);
        begin(&pair.acceptor, HORON_SIDE_ACCEPTOR, &key, 0, 1);
        begin(&pair.connector, HORON_SIDE_CONNECTOR, &key, 1, (uint8_t)(2 + i));
        talk(&pair, &up, &down);
        proven[i][0] = horon_handshake_take(&pair.acceptor, 7);
        proven[i][1] = horon_handshake_take(&pair.connector, 8);
        assert_int_equal(proven[i][0].fd, 7);
        assert_int_equal(proven[i][1].theirs.rank, 0);
        assert_memory_equal(proven[i][0].send_secret, proven[i][1].receive_secret, 32);
        assert_memory_equal(proven[i][0].receive_secret, proven[i][1].send_secret, 32);
        assert_memory_not_equal(proven[i][0].send_secret, proven[i][0].receive_secret, 32);
        assert_null(memmem(down.seen, down.passed, proven[i][0].send_secret, 32));
        assert_null(memmem(up.seen, up.passed, proven[i][1].send_secret, 32));
    }
    assert_memory_not_equal(proven[0][0].send_secret, proven[1][0].send_secret, 32);
    assert_memory_not_equal(proven[0][1].send_secret, proven[1][1].send_secret, 32);
    horon_handshake_deinit(&pair.acceptor);
    static const struct horon_handshake wiped;
    assert_memory_equal(&pair.acceptor, &wiped, sizeof wiped);
}

/* The first version's hello has no share: its sender is told of versions, not that it is broken. */
static void test_handshake_older_release_is_named(void **state)
{
    struct horon_job_key key;
    struct pair pair;
    uint8_t hello[106];
    size_t bytes;
    (void)state;
    make_key(&key, "secret");
    make_pair(&pair, &key, &key);
    memcpy(hello, horon_handshake_out(&pair.acceptor, &bytes), sizeof hello);
    hello[8] = 96; /* bytes that follow */
    memset(hello + 42, 0, 4);
    hello[42] = hello[44] = 1; /* versions 1 to 1 */
    assert_int_equal(horon_handshake_feed(&pair.connector, hello, sizeof hello), HORON_ERR_PROTO);
    assert_string_equal(pair.connector.error.text,
                        "the other side speaks versions 1 to 1 of horon's protocol, this one 2 to "
                        "2: different releases do not mix here");
}

static void test_handshake_connector_is_silent_before_hello(void **state)
{
    struct horon_job_key key;
    struct pair pair;
    size_t bytes;
    const uint8_t http[] = "HTTP/1.1 400 Bad Request\r\n";
    (void)state;
    make_key(&key, "secret");
    make_pair(&pair, &key, &key);
    assert_null(horon_handshake_out(&pair.connector, &bytes));
    assert_int_equal(
        horon_handshake_feed(&pair.connector, http, horon_handshake_want(&pair.connector)),
        HORON_ERR_PROTO);
    assert_null(horon_handshake_out(&pair.connector, &bytes));
    assert_int_equal(horon_handshake_want(&pair.connector), 0);
}

struct difference {
    void (*change)(struct horon_hello *theirs);
    horon_status_t status;
    const char *text[2];
};

static void other_role(struct horon_hello *theirs)
{
    theirs->role = HORON_ROLE_STORE;
}
static void other_job(struct horon_hello *theirs)
{
    theirs->job++;
}
static void unknown_job(struct horon_hello *theirs)
{
    theirs->job = 0;
}
static void other_order(struct horon_hello *theirs)
{
    theirs->byte_order = 0x04030201;
}
static void other_security(struct horon_hello *theirs)
{
    theirs->security = 9;
}
static void other_size(struct horon_hello *theirs)
{
    theirs->size = 12;
}
static void other_generation(struct horon_hello *theirs)
{
    theirs->generation = 6;
}
static void other_settings(struct horon_hello *theirs)
{
    theirs->settings = 0xabc;
}
static void no_settings(struct horon_hello *theirs)
{
    theirs->settings = 0;
}

static void test_hello_differences_name_both_sides(void **state)
{
    static const struct difference differences[] = {
        {other_role, HORON_ERR_PROTO, {"peer", "store"}},
        {other_job, HORON_ERR_INVALID, {"job", ""}},
        {unknown_job, HORON_OK, {"", ""}},
        {other_order, HORON_ERR_PROTO, {"1020304 on rank 0", "4030201 on rank 1"}},
        {other_security, HORON_ERR_PROTO, {"0 on rank 0", "9 on rank 1"}},
        {other_size, HORON_ERR_CONFIG, {"rank 0 believes in a job of 3", "rank 1 in one of 12"}},
        {other_generation, HORON_ERR_PROTO, {"5 on rank 0", "6 on rank 1"}},
        {other_settings, HORON_ERR_PROTO, {"63 on rank 0", "abc on rank 1"}},
        {no_settings, HORON_OK, {"", ""}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++) {
        struct horon_hello mine = make_hello(0), theirs = make_hello(1);
        struct horon_error error = {0};
        theirs.byte_order = 0x01020304;
        differences[i].change(&theirs);
        assert_int_equal(horon_hello_check(&mine, &theirs, &error), differences[i].status);
        assert_non_null(strstr(error.text, differences[i].text[0]));
        assert_non_null(strstr(error.text, differences[i].text[1]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake_same_key_any_split_is_proven),
        cmocka_unit_test(test_handshake_other_key_is_refused_on_both_sides),
        cmocka_unit_test(test_handshake_no_key_is_not_any_key),
        cmocka_unit_test(test_handshake_every_flipped_byte_is_refused),
        cmocka_unit_test(test_handshake_every_cut_is_not_proven),
        cmocka_unit_test(test_handshake_reflected_bytes_are_refused),
        cmocka_unit_test(test_handshake_replayed_connector_is_refused),
        cmocka_unit_test(test_handshake_stranger_that_listens_is_shown_no_proof),
        cmocka_unit_test(test_handshake_hands_over_a_secret_for_each_direction),
        cmocka_unit_test(test_handshake_older_release_is_named),
        cmocka_unit_test(test_handshake_connector_is_silent_before_hello),
        cmocka_unit_test(test_hello_differences_name_both_sides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
