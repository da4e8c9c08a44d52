/* SPDX-License-Identifier: Apache-2.0 */
/* Small files are read whole, from wherever their descriptor stands, or cut to fit. */
#undef NDEBUG
#include "file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_file_is_read_from_its_beginning(void **state)
{
    char path[] = "/tmp/horon-test-file-XXXXXX", text[16];
    const int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(horon_file_read_text(path, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(write(fd, "0123456789", 10), 10);
    for (int times = 0; times < 2; times++) { /* it is not moved */
        memset(text, 'x', sizeof text);
        assert_int_equal(horon_file_read(fd, text, sizeof text), 10);
        assert_memory_equal(text, "0123456789xxxxxx", sizeof text);
    }
    assert_int_equal(horon_file_read(fd, text, 4), 4);
    assert_int_equal(horon_file_read_text(path, text, sizeof text), 10);
    assert_string_equal(text, "0123456789");
    assert_int_equal(horon_file_read_text(path, text, 5), 4);
    assert_string_equal(text, "0123");
    close(fd);
    unlink(path);
    assert_int_equal(horon_file_read_text(path, text, sizeof text), 0);
    assert_string_equal(text, "");
}

static void test_file_that_cannot_be_read_has_an_errno(void **state)
{
    char byte;
    (void)state;
    assert_int_equal(horon_file_read(-1, &byte, 1), -1);
    assert_int_equal(errno, EBADF);
}

static void test_file_number_is_read_behind_its_key(void **state)
{
    char path[] = "/tmp/horon-test-file-XXXXXX";
    const char text[] = "Name:\tPid:\t9\nPid:\t-12\nCount: 3\n";
    const int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    assert_int_equal(horon_file_read_number(path, "\nPid:\t"), -12);
    assert_int_equal(horon_file_read_number(path, "Count:"), 3);
    assert_int_equal(horon_file_read_number(path, "Size:"), -1);
    unlink(path);
    assert_int_equal(horon_file_read_number(path, "Count:"), -1);
    assert_false(horon_file_says_dumping(getpid()));
    assert_false(horon_file_says_dumping(-1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_is_read_from_its_beginning),
        cmocka_unit_test(test_file_that_cannot_be_read_has_an_errno),
        cmocka_unit_test(test_file_number_is_read_behind_its_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
