/* SPDX-License-Identifier: Apache-2.0 */
/* Copies into slots: which way they take, and that both copy every byte and no other. */
#undef NDEBUG
#include "exec/stream.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static const enum horon_stream_way plain = HORON_STREAM_PLAIN, streamed = HORON_STREAM_STREAMED;

static void test_stream_that_has_seen_nothing_is_plain(void **state)
{
    (void)state;
    struct horon_stream seen = {0};
    assert_int_equal(horon_stream_better(&seen), plain);
    horon_stream_add(&seen, plain, 4096, 1000000); /* slow; but is the other way quicker? */
    assert_int_equal(horon_stream_better(&seen), plain);
}

static void test_stream_better_is_what_was_the_quicker_of_late_readers_included(void **state)
{
    (void)state;
    static const struct {
        uint64_t plain_ns, streamed_ns;
        enum horon_stream_way better;
    } cases[] = {
        {6000, 9000, HORON_STREAM_PLAIN},
        {9000, 9000, HORON_STREAM_PLAIN},
        {17000, 9000, HORON_STREAM_PLAIN},
        {110000, 9000, HORON_STREAM_STREAMED},
        {50000, 9000, HORON_STREAM_STREAMED},
        {9000, 110000, HORON_STREAM_PLAIN},
        {0, 0, HORON_STREAM_PLAIN},
        {110000, 0, HORON_STREAM_STREAMED}, /* clocks may be coarse */
    };
    struct horon_stream seen = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        horon_stream_add(&seen, plain, 256 << 10, cases[i].plain_ns);
        horon_stream_add(&seen, streamed, 128 << 10, cases[i].streamed_ns / 2);
        assert_int_equal(horon_stream_better(&seen), cases[i].better);
    }
}

static void test_stream_of_a_long_copy_measures_both_ways_again_and_again(void **state)
{
    (void)state;
    static char from[16384], to[16384];
    struct horon_stream seen = {0};
    horon_stream_copy(&seen, to, from, 1024);
    assert_int_equal(seen.ps_per_byte[plain], 0); /* too short to be worth it */
    horon_stream_copy(&seen, to, from, sizeof from);
    assert_int_not_equal(seen.ps_per_byte[plain], 0);
    assert_int_not_equal(seen.ps_per_byte[streamed], 0);
    for (int way = 0; way < HORON_STREAM_WAYS; way++) {
        int measured = 0;
        for (int i = 0; i < 64; i++) {
            seen.ps_per_byte[!way] = 1; /* the other one, by far */
            seen.ps_per_byte[way] = UINT64_MAX;
            horon_stream_copy(&seen, to, from, sizeof from);
            measured += seen.ps_per_byte[way] != UINT64_MAX;
        }
        assert_in_range(measured, 2, 32); /* not never, not always */
    }
}

/* Bytes before and behind are looked at, too. */
static void check_copy(const struct horon_stream *given, size_t to_at, size_t from_at, size_t bytes)
{
    enum { EDGE = 64 };
    static _Alignas(64) uint8_t from[EDGE + 20011], to[EDGE + 20011 + EDGE];
    struct horon_stream seen = {0};
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i % 251 + 1);
    memset(to, 0, sizeof to);
    if (given) {
        seen = *given;
        horon_stream_copy(&seen, to + to_at, from + from_at, bytes);
    } else {
        horon_stream_past_caches(to + to_at, from + from_at, bytes);
    }
    for (size_t i = 0; i < sizeof to; i++)
        if (i >= to_at && i < to_at + bytes)
            assert_int_equal(to[i], from[from_at + i - to_at]);
        else
            assert_int_equal(to[i], 0);
}

static void test_stream_copies_every_byte_and_no_other_either_way(void **state)
{
    (void)state;
    static const size_t places[] = {0, 1, 15, 16, 63};
    static const size_t lengths[] = {0,   1,    15,   16,   63,   64,    65,
                                     127, 1031, 8191, 8192, 8193, 12289, 20011 - 64};
    static const struct horon_stream streams = {.ps_per_byte = {1000, 1}},
                                     tries = {.copies = 1, .ps_per_byte = {1, 1000}};
    const size_t count = sizeof places / sizeof places[0];
    for (size_t i = 0; i < count * count; i++)
        for (size_t j = 0; j < sizeof lengths / sizeof lengths[0]; j++) {
            check_copy(NULL, places[i / count], places[i % count], lengths[j]);
            check_copy(&streams, places[i / count], places[i % count], lengths[j]);
            check_copy(&tries, places[i / count], places[i % count], lengths[j]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_that_has_seen_nothing_is_plain),
        cmocka_unit_test(test_stream_better_is_what_was_the_quicker_of_late_readers_included),
        cmocka_unit_test(test_stream_of_a_long_copy_measures_both_ways_again_and_again),
        cmocka_unit_test(test_stream_copies_every_byte_and_no_other_either_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
