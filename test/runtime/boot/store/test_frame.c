/* SPDX-License-Identifier: Apache-2.0 */
/* Frames without a connection: whole, split, oversize, and what a failure says. */
#undef NDEBUG
#include "boot/store/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define BODY_BYTES 2000 /* above the first size of an inbox, and no multiple of it */

/* Gives @p bytes bytes in pieces of at most @p piece. @return what the last of them made */
static horon_status_t feed(struct horon_store_inbox *inbox, const uint8_t *in, size_t bytes,
                           size_t piece)
{
    horon_status_t status = HORON_AGAIN;
    while (bytes > 0 && status == HORON_AGAIN) {
        size_t room = 0;
        uint8_t *to = horon_store_inbox_room(inbox, &room);
        assert_non_null(to);
        assert_true(room > 0);
        size_t part = room < piece ? room : piece;
        part = part < bytes ? part : bytes;
        memcpy(to, in, part);
        status = horon_store_inbox_fill(inbox, part);
        in += part;
        bytes -= part;
    }
    assert_true(bytes == 0 || status != HORON_OK);
    return status;
}

static struct horon_store_letter *make(size_t body_bytes)
{
    struct horon_writer out;
    struct horon_store_letter *letter =
        horon_store_letter_create(HORON_STORE_PUT, body_bytes, &out);
    assert_non_null(letter);
    for (size_t i = 0; i < body_bytes; i++)
        horon_write_u8(&out, (uint8_t)(i * 7));
    assert_true(out.ok);
    return letter;
}

static void test_frame_in_any_pieces_is_whole(void **state)
{
    static const size_t bodies[] = {0, 1, 511, 512, BODY_BYTES};
    (void)state;
    for (size_t b = 0; b < sizeof bodies / sizeof bodies[0]; b++) {
        struct horon_store_letter *letter = make(bodies[b]);
        for (size_t piece = 1; piece <= letter->bytes; piece += piece < 20 ? 1 : 97) {
            struct horon_store_inbox inbox = {.limit = 1 + BODY_BYTES};
            for (int times = 0; times < 2; times++) { /* one after the other */
                assert_int_equal(feed(&inbox, letter->data, letter->bytes, piece), HORON_OK);
                assert_int_equal(inbox.used, letter->bytes);
                assert_memory_equal(inbox.frame, letter->data, inbox.used);
            }
            horon_store_inbox_deinit(&inbox);
        }
        horon_store_letter_drop(letter);
    }
}

static void test_frame_oversize_or_empty_is_refused_before_it_comes(void **state)
{
    static const uint8_t heads[][4] = {{0, 0, 0, 0}, {11, 0, 0, 0}, {0, 0, 0, 0x7f}};
    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct horon_store_inbox inbox = {.limit = 10};
        assert_int_equal(feed(&inbox, heads[i], sizeof heads[i], 3), HORON_ERR_PROTO);
        assert_int_equal(inbox.used, 4);
        assert_true(inbox.capacity <= 4 + inbox.limit);
        horon_store_inbox_deinit(&inbox);
    }
}

static void test_frame_makes_room_as_bytes_come(void **state)
{
    static const uint8_t head[4] = {0, 0, 0, 0x40};
    struct horon_store_inbox inbox = {.limit = 1u << 30};
    struct horon_store_letter *letter = make(BODY_BYTES);
    (void)state;
    assert_int_equal(feed(&inbox, head, sizeof head, 4), HORON_AGAIN);
    assert_int_equal(feed(&inbox, letter->data, letter->bytes, 100), HORON_AGAIN);
    assert_true(inbox.capacity <= 2 * letter->bytes);
    horon_store_inbox_deinit(&inbox);
    horon_store_letter_drop(letter);
}

static void test_frame_failure_is_read_as_written(void **state)
{
    static const struct horon_error why = {.status = HORON_ERR_MEMORY,
                                           .blame = {HORON_CAUSE_RESOURCE, 2, -1, false},
                                           .text = "no memory"};
    struct horon_error read = {0};
    (void)state;
    for (int whole = 0; whole < 2; whole++) {
        struct horon_store_letter *letter = horon_store_failure_letter(&why, whole);
        struct horon_reader in = horon_reader_over(letter->data + 5, letter->bytes - 5);
        bool read_whole = !whole;
        assert_true(horon_store_failure_read(&in, 3, &read, &read_whole));
        assert_int_equal(read_whole, whole);
        assert_int_equal(read.status, HORON_ERR_MEMORY);
        assert_string_equal(read.text, "no memory");
        assert_int_equal(read.blame.cause, HORON_CAUSE_RESOURCE);
        assert_int_equal(read.blame.rank, 2);
        in = horon_reader_over(letter->data + 5, 5); /* without its text */
        read_whole = !whole;
        assert_false(horon_store_failure_read(&in, 3, &read, &read_whole));
        assert_int_equal(read_whole, !whole); /* and nothing else of it counts */
        assert_string_equal(read.text, "no memory");
        horon_store_letter_drop(letter);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frame_in_any_pieces_is_whole),
        cmocka_unit_test(test_frame_oversize_or_empty_is_refused_before_it_comes),
        cmocka_unit_test(test_frame_makes_room_as_bytes_come),
        cmocka_unit_test(test_frame_failure_is_read_as_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
