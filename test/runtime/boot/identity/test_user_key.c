/* SPDX-License-Identifier: Apache-2.0 */
/* The key of a user: one for all processes, and what others put in its place is refused. */
#undef NDEBUG
#include "boot/identity/key.h"
#include "key_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void write_key(size_t bytes, mode_t mode)
{
    char text[64];
    memset(text, 'k', sizeof text);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, bytes), bytes);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void expect_refused(const char *why)
{
    uint8_t key[HORON_USER_KEY_BYTES];
    struct horon_error error = {0};
    assert_int_equal(horon_user_key_read(folder, key, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, path));
    assert_non_null(strstr(error.text, why));
}

static void test_user_key_is_one_for_all_processes(void **state)
{
    enum { PROCESSES = 8 };
    uint8_t first[HORON_USER_KEY_BYTES], other[HORON_USER_KEY_BYTES];
    static const uint8_t zero[HORON_USER_KEY_BYTES];
    struct horon_error error = {0};
    struct stat about;
    int ends[2];
    (void)state;
    assert_int_equal(pipe(ends), 0);
    umask(0);
    for (int i = 0; i < PROCESSES; i++)
        if (fork() == 0) {
            const bool fine = horon_user_key_read(folder, other, &error) == HORON_OK &&
                              write(ends[1], other, sizeof other) == sizeof other;
            _exit(fine ? 0 : 1);
        }
    assert_int_equal(horon_user_key_read(folder, first, &error), HORON_OK);
    assert_memory_not_equal(first, zero, sizeof first);
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
        assert_int_equal(read(ends[0], other, sizeof other), sizeof other);
        assert_memory_equal(first, other, sizeof first);
    }
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
}

static void test_user_key_of_another_user_is_refused(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("skip: needs root\n");
        skip();
    }
    write_key(HORON_USER_KEY_BYTES, 0600);
    assert_int_equal(chown(path, 65534, 65534), 0);
    expect_refused("is not this user's");
}

static void test_user_key_that_others_can_use_is_refused(void **state)
{
    (void)state;
    write_key(HORON_USER_KEY_BYTES, 0640);
    expect_refused("can be used by others");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* and is not waited for */
    expect_refused("can be used by others");
}

static void test_user_key_that_is_a_link_is_refused(void **state)
{
    char elsewhere[128];
    (void)state;
    write_key(HORON_USER_KEY_BYTES, 0600);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder);
    assert_int_equal(rename(path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
    expect_refused("is not this user's");
    unlink(elsewhere);
}

static void test_user_key_of_another_length_is_refused(void **state)
{
    (void)state;
    write_key(HORON_USER_KEY_BYTES - 1, 0600);
    expect_refused("is damaged");
    unlink(path);
    write_key(HORON_USER_KEY_BYTES + 1, 0600);
    expect_refused("is damaged");
}

static void test_user_key_without_a_folder_is_told(void **state)
{
    uint8_t key[HORON_USER_KEY_BYTES];
    struct horon_error error = {0};
    (void)state;
    assert_int_equal(horon_user_key_read("/tmp/nothing-is-here", key, &error), HORON_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "HORON_JOB_KEY"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_user_key_is_one_for_all_processes),
        TEST(test_user_key_of_another_user_is_refused),
        TEST(test_user_key_that_others_can_use_is_refused),
        TEST(test_user_key_that_is_a_link_is_refused),
        TEST(test_user_key_of_another_length_is_refused),
        TEST(test_user_key_without_a_folder_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
