/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes: what is written is read back; a message is written into every shorter buffer and read from
 * every shorter one, and each time the overrun is remembered, nothing beyond the end is touched,
 * and nothing is read after it. Buffers are of exact size on the heap, for the address sanitizer.
 */
#undef NDEBUG
#include "codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* One of everything. */
static void write_all(struct horon_writer *out)
{
    horon_write_u8(out, 0xa1);
    horon_write_u16(out, 0xb1b2);
    horon_write_u32(out, 0xc1c2c3c4);
    horon_write_u64(out, 0xd1d2d3d4d5d6d7d8);
    horon_write_double(out, -0.0);
    horon_write_varint(out, 300);
    horon_write_string(out, "text");
    horon_write_string(out, "");
    horon_write_bytes(out, "raw", 3);
    horon_write_bytes(out, NULL, 0);
}
#define ALL_BYTES (1 + 2 + 4 + 8 + 8 + 2 + 5 + 1 + 3)

static void read_all(struct horon_reader *in)
{
    char text[5];
    assert_int_equal(horon_read_u8(in), 0xa1);
    assert_int_equal(horon_read_u16(in), 0xb1b2);
    assert_int_equal(horon_read_u32(in), 0xc1c2c3c4);
    assert_true(horon_read_u64(in) == 0xd1d2d3d4d5d6d7d8);
    double minus_zero = horon_read_double(in);
    assert_true(minus_zero == 0 && __builtin_signbit(minus_zero));
    assert_int_equal(horon_read_varint(in), 300);
    horon_read_string(in, text, sizeof text);
    assert_string_equal(text, "text");
    horon_read_string(in, text, 1);
    assert_string_equal(text, "");
    assert_memory_equal(horon_read_view(in, 3), "raw", 3);
}

static void test_codec_reads_what_was_written(void **state)
{
    uint8_t bytes[ALL_BYTES];
    (void)state;
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    write_all(&out);
    assert_true(out.ok);
    assert_int_equal(out.used, sizeof bytes);
    struct horon_reader in = horon_reader_over(bytes, sizeof bytes);
    read_all(&in);
    assert_true(horon_reader_finished(&in));
}

static void test_codec_is_little_endian(void **state)
{
    static const uint8_t expected[] = {0xa1, 0xb2, 0xb1, 0xc4, 0xc3, 0xc2, 0xc1, 0xd8, 0xd7,
                                       0xd6, 0xd5, 0xd4, 0xd3, 0xd2, 0xd1, 0,    0,    0,
                                       0,    0,    0,    0,    0x80, 0xac, 0x02, 4,    't',
                                       'e',  'x',  't',  0,    'r',  'a',  'w'};
    uint8_t bytes[ALL_BYTES];
    (void)state;
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    write_all(&out);
    assert_int_equal(sizeof expected, sizeof bytes);
    assert_memory_equal(bytes, expected, sizeof bytes);
}

static void test_codec_write_into_every_shorter_buffer_is_remembered(void **state)
{
    (void)state;
    for (size_t limit = 0; limit < ALL_BYTES; limit++) {
        uint8_t *bytes = malloc(limit ? limit : 1), whole[ALL_BYTES];
        struct horon_writer all = horon_writer_over(whole, sizeof whole);
        struct horon_writer out = horon_writer_over(bytes, limit);
        write_all(&all);
        write_all(&out);
        assert_false(out.ok);
        assert_true(out.used <= limit);
        assert_memory_equal(bytes, whole, out.used); /* what fits whole is there, in order */
        size_t used = out.used;
        horon_write_u8(&out, 1); /* would fit where several bytes did not */
        assert_int_equal(out.used, used);
        free(bytes);
    }
}

/* Reads everything without looking, as decoders do: 0 and empty texts, and no byte beyond. */
static void read_blindly(struct horon_reader *in)
{
    char text[5] = "????";
    horon_read_u8(in);
    horon_read_u16(in);
    horon_read_u32(in);
    horon_read_u64(in);
    horon_read_double(in);
    horon_read_varint(in);
    horon_read_string(in, text, sizeof text);
    horon_read_string(in, text, sizeof text);
    assert_string_equal(text, "");
    horon_read_view(in, 3);
}

static void test_codec_read_of_every_shorter_message_is_remembered(void **state)
{
    uint8_t whole[ALL_BYTES];
    (void)state;
    struct horon_writer out = horon_writer_over(whole, sizeof whole);
    write_all(&out);
    for (size_t limit = 0; limit < ALL_BYTES; limit++) {
        uint8_t *bytes = malloc(limit ? limit : 1);
        memcpy(bytes, whole, limit);
        struct horon_reader in = horon_reader_over(bytes, limit);
        read_blindly(&in);
        assert_false(in.ok);
        assert_false(horon_reader_finished(&in));
        assert_true(in.used <= limit);
        size_t used = in.used;
        assert_int_equal(horon_read_u8(&in), 0); /* one byte may be left; it is read no more */
        assert_int_equal(horon_read_u64(&in), 0);
        assert_true(horon_read_double(&in) == 0);
        assert_null(horon_read_view(&in, 0));
        assert_int_equal(in.used, used);
        free(bytes);
    }
}

static void test_codec_longer_message_is_not_finished(void **state)
{
    uint8_t bytes[ALL_BYTES + 1] = {0};
    (void)state;
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    write_all(&out);
    struct horon_reader in = horon_reader_over(bytes, sizeof bytes);
    read_all(&in);
    assert_true(in.ok);
    assert_false(horon_reader_finished(&in));
}

static void test_codec_lengths_near_the_end_of_numbers_do_not_wrap(void **state)
{
    uint8_t bytes[8] = {0};
    (void)state;
    for (size_t huge = SIZE_MAX - 9; huge != 0; huge++) {
        struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
        struct horon_reader in = horon_reader_over(bytes, sizeof bytes);
        horon_write_u32(&out, 1);
        horon_write_bytes(&out, bytes, huge);
        assert_false(out.ok);
        horon_read_u32(&in);
        assert_null(horon_read_view(&in, huge));
        assert_false(in.ok);
    }
}

static void test_codec_varints_of_every_length_are_read_back(void **state)
{
    (void)state;
    for (int shift = 0; shift < 64; shift++) {
        for (int off = -1; off <= 1; off++) {
            uint64_t value = ((uint64_t)1 << shift) + (uint64_t)off;
            uint8_t bytes[10];
            struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
            horon_write_varint(&out, value);
            assert_true(out.ok);
            for (size_t cut = 0; cut < out.used; cut++) {
                struct horon_reader part = horon_reader_over(bytes, cut);
                assert_int_equal(horon_read_varint(&part), 0);
                assert_false(part.ok);
            }
            struct horon_reader in = horon_reader_over(bytes, out.used);
            assert_true(horon_read_varint(&in) == value);
            assert_true(horon_reader_finished(&in));
        }
    }
}

static void test_codec_varint_beyond_64_bits_is_refused(void **state)
{
    uint8_t bytes[11];
    (void)state;
    memset(bytes, 0xff, sizeof bytes);
    for (int last = 0; last < 256; last++) {
        bytes[9] = (uint8_t)last;
        struct horon_reader in = horon_reader_over(bytes, sizeof bytes);
        uint64_t value = horon_read_varint(&in);
        assert_int_equal(in.ok, last <= 1); /* the tenth byte holds one bit, and ends it */
        assert_true(value == (last > 1 ? 0 : last == 1 ? UINT64_MAX : UINT64_MAX >> 1));
    }
}

static void test_codec_string_fits_with_its_end_or_is_refused(void **state)
{
    uint8_t bytes[] = {3, 'a', 'b', 'c'};
    char text[8];
    (void)state;
    for (size_t room = 1; room < sizeof text; room++) {
        struct horon_reader in = horon_reader_over(bytes, sizeof bytes);
        memset(text, '?', sizeof text);
        horon_read_string(&in, text, room);
        assert_int_equal(in.ok, room > 3);
        assert_string_equal(text, room > 3 ? "abc" : "");
        for (size_t i = room; i < sizeof text; i++)
            assert_int_equal(text[i], '?');
    }
}

static void test_codec_string_with_a_zero_inside_is_refused(void **state)
{
    char text[8] = "?";
    (void)state;
    for (size_t at = 1; at <= 3; at++) {
        uint8_t bytes[] = {3, 'a', 'b', 'c'};
        bytes[at] = 0;
        struct horon_reader in = horon_reader_over(bytes, sizeof bytes);
        horon_read_string(&in, text, sizeof text);
        assert_false(in.ok);
        assert_string_equal(text, "");
    }
}

static void test_codec_string_longer_than_the_message_is_refused(void **state)
{
    static const uint64_t lengths[] = {4, 1000, UINT32_MAX, INT64_MAX, UINT64_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint8_t bytes[16] = {0};
        char text[2000] = "?";
        struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
        horon_write_varint(&out, lengths[i]);
        horon_write_bytes(&out, "abc", 3);
        struct horon_reader in = horon_reader_over(bytes, out.used);
        horon_read_string(&in, text, sizeof text);
        assert_false(in.ok);
        assert_string_equal(text, "");
    }
}

static void test_codec_over_nothing_is_finished_at_once(void **state)
{
    (void)state;
    struct horon_reader in = horon_reader_over(NULL, 0);
    assert_true(horon_reader_finished(&in));
    assert_int_equal(horon_read_u8(&in), 0);
    assert_false(in.ok);
    struct horon_writer out = horon_writer_over(NULL, 0);
    horon_write_bytes(&out, NULL, 0);
    assert_true(out.ok);
    horon_write_u8(&out, 1);
    assert_false(out.ok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec_reads_what_was_written),
        cmocka_unit_test(test_codec_is_little_endian),
        cmocka_unit_test(test_codec_write_into_every_shorter_buffer_is_remembered),
        cmocka_unit_test(test_codec_read_of_every_shorter_message_is_remembered),
        cmocka_unit_test(test_codec_longer_message_is_not_finished),
        cmocka_unit_test(test_codec_lengths_near_the_end_of_numbers_do_not_wrap),
        cmocka_unit_test(test_codec_varints_of_every_length_are_read_back),
        cmocka_unit_test(test_codec_varint_beyond_64_bits_is_refused),
        cmocka_unit_test(test_codec_string_fits_with_its_end_or_is_refused),
        cmocka_unit_test(test_codec_string_with_a_zero_inside_is_refused),
        cmocka_unit_test(test_codec_string_longer_than_the_message_is_refused),
        cmocka_unit_test(test_codec_over_nothing_is_finished_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
