/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages and receives of one rank, without links: random sequences against a reference that looks
 * through two lists; the numbers of messages; the bound; and that nothing is kept of a tag.
 */
#undef NDEBUG
#include "engine/matching.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { PEERS = 3, WAITING_MAX = 40, STEPS = 20000, RECVS = 200 };

static uint64_t seed;

static uint64_t below(uint64_t limit)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % limit;
}

/* Tags that share all but some bits, too. */
static uint64_t any_tag(void)
{
    static const uint64_t tags[] = {0, 1, 2, 256, UINT64_MAX, (uint64_t)1 << 63, (uint64_t)1 << 40};
    return tags[below(sizeof tags / sizeof tags[0])];
}

/* The reference: what waits, oldest first. */
struct line {
    struct horon_offer offers[PEERS * WAITING_MAX];
    size_t offer_count;
    struct horon_expected *expected[RECVS];
    size_t expected_count;
    uint64_t announced[PEERS];
};

static size_t find_offer(const struct line *line, int peer, uint64_t tag)
{
    size_t i = 0;
    while (i < line->offer_count && (line->offers[i].peer != peer || line->offers[i].tag != tag))
        i++;
    return i;
}

static size_t find_expected(const struct line *line, int peer, uint64_t tag)
{
    size_t i = 0;
    while (i < line->expected_count &&
           (line->expected[i]->peer != peer || line->expected[i]->tag != tag))
        i++;
    return i;
}

static void drop_expected(struct line *line, size_t i)
{
    line->expected_count--;
    for (; i < line->expected_count; i++)
        line->expected[i] = line->expected[i + 1];
}

static void announce(struct horon_matching *matching, struct line *line)
{
    struct horon_offer offer = {
        .peer = (int)below(PEERS), .tag = any_tag(), .count = below(9), .dtype = (uint8_t)below(9)};
    struct horon_expected *met = NULL;
    const size_t i = find_expected(line, offer.peer, offer.tag);
    size_t of_peer = 0;
    for (size_t k = 0; k < line->offer_count; k++)
        of_peer += line->offers[k].peer == offer.peer;
    const bool meets = i < line->expected_count;
    const bool too_many = !meets && of_peer == WAITING_MAX;
    assert_int_equal(horon_matching_announce(matching, &offer, &met),
                     too_many ? HORON_ERR_PROTO : HORON_OK);
    assert_ptr_equal(met, meets ? line->expected[i] : NULL);
    if (too_many)
        return;
    assert_int_equal(offer.number, line->announced[offer.peer]++);
    if (meets) {
        drop_expected(line, i);
        free(met);
    } else {
        line->offers[line->offer_count++] = offer;
    }
}

static void expect(struct horon_matching *matching, struct line *line)
{
    struct horon_expected *expected = calloc(1, sizeof *expected);
    struct horon_offer offer;
    *expected = (struct horon_expected){.peer = (int)below(PEERS), .tag = any_tag()};
    const size_t i = find_offer(line, expected->peer, expected->tag);
    const bool meets = i < line->offer_count;
    assert_int_equal(horon_matching_expect(matching, expected, &offer), meets);
    if (!meets) {
        line->expected[line->expected_count++] = expected;
        return;
    }
    assert_int_equal(offer.number, line->offers[i].number);
    assert_int_equal(offer.count, line->offers[i].count);
    assert_int_equal(offer.dtype, line->offers[i].dtype);
    line->offer_count--;
    for (size_t k = i; k < line->offer_count; k++)
        line->offers[k] = line->offers[k + 1];
    free(expected);
}

static void withdraw(struct horon_matching *matching, struct line *line)
{
    if (line->expected_count == 0)
        return;
    const size_t i = (size_t)below(line->expected_count);
    struct horon_expected *expected = line->expected[i];
    horon_matching_withdraw(matching, expected);
    drop_expected(line, i);
    free(expected);
}

static void test_matching_meets_in_order_of_peer_and_tag(void **state)
{
    struct horon_matching *matching = horon_matching_create(PEERS, WAITING_MAX);
    struct line *line = calloc(1, sizeof *line);
    (void)state;
    seed = 4;
    for (int step = 0; step < STEPS; step++) {
        const uint64_t what = below(20);
        if (what == 0)
            withdraw(matching, line);
        else if (what < 11 || line->expected_count == RECVS)
            announce(matching, line);
        else
            expect(matching, line);
        assert_int_equal(horon_matching_waiting(matching), line->offer_count);
    }
    while (line->expected_count > 0)
        withdraw(matching, line);
    horon_matching_destroy(matching);
    free(line);
}

static void test_matching_counts_what_it_sends_by_peer(void **state)
{
    struct horon_matching *matching = horon_matching_create(PEERS, WAITING_MAX);
    (void)state;
    for (uint64_t i = 0; i < 5; i++)
        for (int peer = 0; peer < PEERS; peer++)
            for (int count = 0; count < 2; count++)
                if (count)
                    horon_matching_count_send(matching, peer);
                else
                    assert_int_equal(horon_matching_next_send(matching, peer), i);
    horon_matching_destroy(matching);
}

/* A step's number as tag. */
static void test_matching_keeps_nothing_of_a_tag(void **state)
{
    struct horon_matching *matching = horon_matching_create(PEERS, WAITING_MAX);
    struct horon_expected expected, *met;
    size_t before = 0;
    (void)state;
    for (uint64_t tag = 0; tag < 10000; tag++) {
        struct horon_offer offer = {.peer = 1, .tag = tag};
        expected = (struct horon_expected){.peer = 1, .tag = tag};
        if (tag % 2) {
            assert_false(horon_matching_expect(matching, &expected, &offer));
            assert_int_equal(horon_matching_announce(matching, &offer, &met), HORON_OK);
            assert_ptr_equal(met, &expected);
        } else {
            assert_int_equal(horon_matching_announce(matching, &offer, &met), HORON_OK);
            assert_true(horon_matching_expect(matching, &expected, &offer));
        }
        if (tag == 0) /* from here on what is needed is there */
            before = mallinfo2().uordblks;
    }
    assert_int_equal(mallinfo2().uordblks, before);
    horon_matching_destroy(matching);
}

/* So many that the tables grow under way: those of one tag keep their order. */
static void test_matching_of_thousands_keeps_the_order_of_each_tag(void **state)
{
    enum { MANY = 5000, TAGS = 1700 };
    struct horon_matching *matching = horon_matching_create(1, MANY);
    struct horon_expected *expected = calloc(MANY, sizeof *expected), *met;
    struct horon_offer offer;
    (void)state;
    for (int i = 0; i < MANY; i++) {
        expected[i].tag = (uint64_t)i % TAGS;
        assert_false(horon_matching_expect(matching, &expected[i], &offer));
    }
    for (int i = 0; i < MANY; i++) {
        offer = (struct horon_offer){.tag = (uint64_t)i % TAGS};
        assert_int_equal(horon_matching_announce(matching, &offer, &met), HORON_OK);
        assert_ptr_equal(met, &expected[i]);
    }
    for (int i = 0; i < MANY; i++) {
        offer = (struct horon_offer){.tag = (uint64_t)i % TAGS};
        assert_int_equal(horon_matching_announce(matching, &offer, &met), HORON_OK);
        assert_null(met);
    }
    for (int i = 0; i < MANY; i++) {
        assert_true(horon_matching_expect(matching, &expected[i], &offer));
        assert_int_equal(offer.number, MANY + i);
    }
    horon_matching_destroy(matching);
    free(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matching_meets_in_order_of_peer_and_tag),
        cmocka_unit_test(test_matching_counts_what_it_sends_by_peer),
        cmocka_unit_test(test_matching_keeps_nothing_of_a_tag),
        cmocka_unit_test(test_matching_of_thousands_keeps_the_order_of_each_tag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
