/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses and their texts; errors with a reason, cut to fit. */
#undef NDEBUG
#include "codec.h"
#include "status.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct row {
    const char *name, *text;
    int value;
};

#define ROW(name, value, text) {#name, text, value},
static const struct row map[] = {HORON_STATUS_MAP(ROW)};
static const struct row causes[] = {HORON_CAUSE_MAP(ROW)};
#undef ROW
#define MAP_ROWS (sizeof map / sizeof map[0])
#define CAUSE_ROWS (sizeof causes / sizeof causes[0])

static void test_status_every_one_has_a_text_of_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < MAP_ROWS; i++) {
        assert_string_equal(horon_status_text((horon_status_t)map[i].value), map[i].text);
        assert_true(strlen(map[i].text) > 5);
        /* names tell which side of 0 they are on */
        assert_int_equal(strncmp(map[i].name, "ERR_", 4) == 0, map[i].value < 0);
        for (size_t k = 0; k < i; k++) {
            assert_int_not_equal(map[k].value, map[i].value);
            assert_string_not_equal(map[k].text, map[i].text);
        }
    }
    assert_int_equal(HORON_OK, 0);
}

static void test_status_of_no_name_is_unknown(void **state)
{
    static const int none[] = {3, 1000, -15, -1000, INT32_MAX, INT32_MIN};
    (void)state;
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        assert_string_equal(horon_status_text((horon_status_t)none[i]), "unknown status");
}

static void test_status_of_a_peer_is_a_failure(void **state)
{
    static const int none[] = {0, 1, 2, 3, -15, -1000, INT32_MAX, INT32_MIN};
    (void)state;
    for (size_t i = 0; i < MAP_ROWS; i++)
        if (map[i].value < 0)
            assert_int_equal(horon_status_from_peer((uint32_t)map[i].value), map[i].value);
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        assert_int_equal(horon_status_from_peer((uint32_t)none[i]), HORON_ERR_PROTO);
}

static void test_cause_every_one_has_a_text_of_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < CAUSE_ROWS; i++) {
        assert_int_equal(causes[i].value, i); /* no number is left out, and none comes twice */
        assert_string_equal(horon_cause_text((horon_cause_t)i), causes[i].text);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(causes[k].text, causes[i].text);
    }
    assert_string_equal(horon_cause_text((horon_cause_t)CAUSE_ROWS), "unknown cause");
    assert_string_equal(horon_cause_text((horon_cause_t)-1), "unknown cause");
}

static void test_cause_every_failure_has_a_usual_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < MAP_ROWS; i++) {
        const horon_status_t status = (horon_status_t)map[i].value;
        const struct horon_blame blame = horon_blame_from_status(status);
        assert_int_equal(blame.cause != HORON_CAUSE_NONE, status < 0);
        assert_int_equal(blame.rank, -1);
        assert_int_equal(blame.other_rank, -1);
    }
}

static void test_status_error_blames_the_lower_of_two_first(void **state)
{
    struct horon_error error = {0};
    (void)state;
    horon_error_blame(NULL, HORON_CAUSE_DIED, 1, 2);
    for (int turn = 0; turn < 2; turn++) {
        horon_error_set(&error, HORON_ERR_MISMATCH, "why");
        assert_int_equal(error.blame.rank, -1); /* of the time before */
        horon_error_blame_both(&error, HORON_CAUSE_GROUP, turn ? 7 : 3, turn ? 3 : 7);
        assert_int_equal(error.blame.cause, HORON_CAUSE_GROUP);
        assert_int_equal(error.blame.rank, 3);
        assert_int_equal(error.blame.other_rank, 7);
    }
}

static void test_status_error_travels_whole_or_not_at_all(void **state)
{
    uint8_t bytes[HORON_ERROR_WIRE_BYTES_MAX];
    struct horon_error sent, got;
    (void)state;
    for (size_t length = 1; length < HORON_ERROR_TEXT_BYTES; length += 146) {
        char text[HORON_ERROR_TEXT_BYTES] = "";
        memset(text, 'x', length);
        horon_error_set(&sent, HORON_ERR_MISMATCH, "%s", text);
        horon_error_blame(&sent, HORON_CAUSE_VERB, 0, 16);
        struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
        horon_error_write(&out, &sent);
        assert_true(out.ok);
        for (size_t bytes_read = 0; bytes_read < out.used; bytes_read++) {
            struct horon_reader cut = horon_reader_over(bytes, bytes_read);
            horon_error_read(&cut, 17, &got);
            assert_false(cut.ok);
        }
        struct horon_reader in = horon_reader_over(bytes, out.used);
        horon_error_read(&in, 17, &got);
        assert_true(horon_reader_finished(&in));
        assert_int_equal(got.status, sent.status);
        assert_memory_equal(&got.blame, &sent.blame, sizeof got.blame);
        assert_string_equal(got.text, sent.text);
        in = horon_reader_over(bytes, out.used);
        horon_error_read(&in, 16, &got); /* in a smaller job there is no rank 16 */
        assert_true(horon_reader_finished(&in));
        assert_int_equal(got.blame.other_rank, -1);
    }
}

static void test_status_error_holds_text_and_returns_its_status(void **state)
{
    struct horon_error error = {0};
    (void)state;
    assert_int_equal(horon_error_set(&error, HORON_ERR_AUTH, "%s of %d", "rank", 3),
                     HORON_ERR_AUTH);
    assert_int_equal(error.status, HORON_ERR_AUTH);
    assert_string_equal(error.text, "rank of 3");
    assert_int_equal(horon_error_set(NULL, HORON_ERR_MEMORY, "x"), HORON_ERR_MEMORY);
    assert_int_equal(horon_error_set_errno(NULL, HORON_ERR_MEMORY, EIO, "x"), HORON_ERR_MEMORY);
    assert_int_equal(horon_error_set_errno(&error, HORON_ERR_SYSTEM, ENOENT, "cannot open %s", "f"),
                     HORON_ERR_SYSTEM);
    assert_string_equal(error.text, "cannot open f: No such file or directory");
    horon_error_set_errno(&error, HORON_ERR_SYSTEM, 12345, "x");
    assert_string_equal(error.text, "x: Unknown error 12345");
}

static void test_status_error_text_of_any_length_is_cut(void **state)
{
    struct horon_error *error = malloc(sizeof *error); /* exactly, for the address sanitizer */
    char text[HORON_ERROR_TEXT_BYTES * 2];
    (void)state;
    memset(text, 'x', sizeof text);
    for (int bytes = HORON_ERROR_TEXT_BYTES - 40; bytes < HORON_ERROR_TEXT_BYTES + 40; bytes++) {
        size_t fits = HORON_ERROR_TEXT_BYTES - 1;
        horon_error_set(error, HORON_ERR_SYSTEM, "%.*s", bytes, text);
        assert_int_equal(strlen(error->text), (size_t)bytes < fits ? (size_t)bytes : fits);
        horon_error_set_errno(error, HORON_ERR_SYSTEM, EIO, "%.*s", bytes, text);
        size_t whole = (size_t)bytes + strlen(": Input/output error");
        assert_int_equal(strlen(error->text), whole < fits ? whole : fits);
    }
    free(error);
}

static void test_status_copied_text_is_cut_and_ended(void **state)
{
    struct horon_error error = {0};
    char text[8];
    (void)state;
    horon_error_set(&error, HORON_ERR_SYSTEM, "reason");
    for (size_t room = 0; room <= sizeof text; room++) {
        memset(text, '?', sizeof text);
        horon_error_copy_text(&error, text, room);
        if (room)
            assert_int_equal(strlen(text), room > 6 ? 6 : room - 1);
        for (size_t i = room; i < sizeof text; i++)
            assert_int_equal(text[i], '?');
    }
    horon_error_copy_text(&error, NULL, 100);
}

static void test_status_name_in_a_text_is_one_line_without_commands(void **state)
{
    char text[20];
    (void)state;
    assert_string_equal(horon_name_show("a\nb\t\x1b[31m\x7f", text, sizeof text),
                        "a\\nb\\t\\x1b[31m\\x7f");
    assert_string_equal(horon_name_show("gr\xc3\xb6\xc3\x9f e", text, sizeof text),
                        "gr\xc3\xb6\xc3\x9f e");
    assert_string_equal(horon_name_show("\xc2\x9b"
                                        "2J\xc2\xa0\xc2",
                                        text, sizeof text),
                        "\\x9b"
                        "2J\xc2\xa0\xc2");
    for (size_t room = 1; room <= sizeof text; room++) { /* cut, but \x1b is whole or not there */
        memset(text, '?', sizeof text);
        assert_string_equal(horon_name_show("\x1b", text, room), room > 4 ? "\\x1b" : "");
        assert_int_equal(strlen(horon_name_show("01234567890123456789", text, room)), room - 1);
    }
}

/* What a peer says goes into exceptions, which print as they are. */
static void test_status_text_of_a_peer_has_no_commands(void **state)
{
    struct horon_error sent, got;
    uint8_t bytes[HORON_ERROR_WIRE_BYTES_MAX];
    (void)state;
    horon_error_set(&sent, HORON_ERR_MISMATCH, "%s",
                    "a\x1b[2J\nb\tgr\xc3\xb6\xc2\x9b"
                    "1A");
    struct horon_writer out = horon_writer_over(bytes, sizeof bytes);
    horon_error_write(&out, &sent);
    struct horon_reader in = horon_reader_over(bytes, out.used);
    horon_error_read(&in, 2, &got);
    assert_true(horon_reader_finished(&in));
    assert_string_equal(got.text, "a?[2J\nb\tgr\xc3\xb6??1A");
    horon_text_clean(sent.text, "");
    assert_string_equal(sent.text, "a?[2J?b?gr\xc3\xb6??1A");
}

static void test_status_list_in_a_text_is_separated_and_cut(void **state)
{
    char text[8] = "";
    (void)state;
    horon_text_add(text, sizeof text, ", ", "%d", 1);
    assert_string_equal(text, "1");
    horon_text_add(text, sizeof text, ", ", "%s", "two");
    assert_string_equal(text, "1, two");
    horon_text_add(text, sizeof text, ", ", "%d", 3);
    assert_string_equal(text, "1, two,");
    horon_text_add(text, sizeof text, ", ", "%d", 4);
    assert_string_equal(text, "1, two,");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_every_one_has_a_text_of_its_own),
        cmocka_unit_test(test_status_of_no_name_is_unknown),
        cmocka_unit_test(test_status_of_a_peer_is_a_failure),
        cmocka_unit_test(test_cause_every_one_has_a_text_of_its_own),
        cmocka_unit_test(test_cause_every_failure_has_a_usual_one),
        cmocka_unit_test(test_status_error_blames_the_lower_of_two_first),
        cmocka_unit_test(test_status_error_travels_whole_or_not_at_all),
        cmocka_unit_test(test_status_error_holds_text_and_returns_its_status),
        cmocka_unit_test(test_status_error_text_of_any_length_is_cut),
        cmocka_unit_test(test_status_copied_text_is_cut_and_ended),
        cmocka_unit_test(test_status_name_in_a_text_is_one_line_without_commands),
        cmocka_unit_test(test_status_text_of_a_peer_has_no_commands),
        cmocka_unit_test(test_status_list_in_a_text_is_separated_and_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
