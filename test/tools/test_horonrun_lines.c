/* SPDX-License-Identifier: Apache-2.0 */
/* Lines come out whole and alike, however the stream was cut into pieces. */
#undef NDEBUG
#include "lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What came out: each line followed by a '|'. */
struct collected {
    char text[1024];
    size_t used, lines, longest;
};

static void collect(void *arg, const char *text, size_t bytes)
{
    struct collected *to = arg;
    to->lines++;
    if (bytes > to->longest)
        to->longest = bytes;
    if (to->used + bytes + 2 > sizeof to->text)
        return;
    if (bytes)
        memcpy(to->text + to->used, text, bytes);
    to->used += bytes;
    to->text[to->used++] = '|';
}

static struct collected feed_in_pieces(const char *text, size_t piece)
{
    struct horonrun_lines lines = {0};
    struct collected out = {0};
    size_t bytes = strlen(text);
    for (size_t at = 0; at < bytes; at += piece)
        horonrun_lines_feed(&lines, text + at, bytes - at < piece ? bytes - at : piece, collect,
                            &out);
    horonrun_lines_flush(&lines, collect, &out);
    horonrun_lines_deinit(&lines);
    return out;
}

static void test_lines_any_split_gives_the_same(void **state)
{
    static const struct {
        const char *text, *wanted;
    } cases[] = {
        {"", ""},
        {"a", "a|"},
        {"a\n", "a|"},
        {"a\nb", "a|b|"},
        {"\n\n", "||"},
        {"a\r\nb\r\n", "a|b|"},
        {"\r\n\r\n", "||"},
        {"10%\r20%\r30%\n", "10%|20%|30%|"},
        {"bar\r\r\n", "bar|"},
        {"\r\rx", "x|"},
        {"one\ntwo\n\nthree", "one|two||three|"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t piece = 1; piece <= strlen(cases[i].text) + 1; piece++) {
            struct collected out = feed_in_pieces(cases[i].text, piece);
            assert_string_equal(out.text, cases[i].wanted);
        }
}

/* @return how many lines @p bytes bytes without a newline, then one, become */
static struct collected feed_long(size_t bytes, size_t piece)
{
    char *text = malloc(bytes + 2);
    assert_non_null(text);
    memset(text, 'x', bytes);
    memcpy(text + bytes, "\n", 2);
    struct collected out = feed_in_pieces(text, piece);
    free(text);
    return out;
}

static void test_lines_overlong_line_is_cut_at_the_limit(void **state)
{
    const size_t max = HORONRUN_LINE_BYTES_MAX;
    (void)state;
    for (size_t piece = 1021; piece < 4 * max; piece *= 3) {
        assert_int_equal(feed_long(max - 1, piece).lines, 1);
        assert_int_equal(feed_long(max, piece).lines, 1);
        assert_int_equal(feed_long(max + 1, piece).lines, 2);
        assert_int_equal(feed_long(3 * max + 7, piece).lines, 4);
        assert_int_equal(feed_long(3 * max + 7, piece).longest, max);
    }
}

static void test_lines_bytes_of_any_value_pass(void **state)
{
    struct horonrun_lines lines = {0};
    struct collected out = {0};
    const char raw[] = {'a', 0, (char)0xff, '\n', 0, '\n'};
    (void)state;
    horonrun_lines_feed(&lines, raw, sizeof raw, collect, &out);
    assert_int_equal(out.lines, 2);
    assert_memory_equal(out.text, "a\0\xff|\0|", 6);
    horonrun_lines_deinit(&lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_any_split_gives_the_same),
        cmocka_unit_test(test_lines_overlong_line_is_cut_at_the_limit),
        cmocka_unit_test(test_lines_bytes_of_any_value_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
