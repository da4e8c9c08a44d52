/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a store in a directory: what lies there may be anything, and be anybody's. */
#undef NDEBUG
#include "boot/store/file.h"

#include "fds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define WHERE "tcp://192.0.2.1:4000,[::1]:4000"

struct directory {
    char path[64];
    char file[96]; /* horon.store in it */
};

static struct horon_error error;
static char addresses[HORON_STORE_FILE_BYTES_MAX];

static int make_directory(void **state)
{
    static struct directory directory;
    strcpy(directory.path, "/tmp/horon-test-XXXXXX");
    assert_non_null(mkdtemp(directory.path));
    snprintf(directory.file, sizeof directory.file, "%s/horon.store", directory.path);
    *state = &directory;
    return 0;
}

static int remove_directory(void **state)
{
    char command[128];
    const struct directory *directory = *state;
    snprintf(command, sizeof command, "rm -r %s", directory->path);
    return system(command);
}

static struct horon_store_file opened(const struct directory *directory)
{
    struct horon_store_file file;
    assert_int_equal(horon_store_file_open(&file, directory->path, NULL, &error), HORON_OK);
    return file;
}

static horon_status_t write_it(struct horon_store_file *file)
{
    return horon_store_file_write(file, WHERE, "process 1 on here", &error);
}

static void put_text(const char *path, const char *text)
{
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    fputs(text, to);
    fclose(to);
}

static void expect_text(const char *path, const char *text)
{
    char found[256] = "";
    FILE *from = fopen(path, "r");
    assert_non_null(from);
    assert_int_equal(fread(found, 1, sizeof found - 1, from), strlen(text));
    fclose(from);
    assert_string_equal(found, text);
}

static void test_store_file_is_read_as_written_and_goes(void **state)
{
    struct horon_store_file zero = opened(*state), one = opened(*state);
    assert_int_equal(horon_store_file_read(&one, addresses, &error), HORON_AGAIN);
    assert_int_equal(write_it(&zero), HORON_OK);
    assert_int_equal(horon_store_file_read(&one, addresses, &error), HORON_OK);
    assert_string_equal(addresses, WHERE);
    assert_string_equal(one.writer, "process 1 on here");
    horon_store_file_remove(&zero);
    assert_int_equal(horon_store_file_read(&one, addresses, &error), HORON_AGAIN);
    assert_int_equal(write_it(&zero), HORON_OK);
    assert_int_equal(horon_store_file_read(&one, addresses, &error), HORON_OK);
    horon_store_file_close(&zero);
    horon_store_file_close(&one);
    assert_int_equal(access(((struct directory *)*state)->file, F_OK), -1);
}

/* Its writer's descriptor is closed by a hand that removes nothing, as a kill does. */
static void test_store_file_of_a_dead_writer_is_left_and_taken_over(void **state)
{
    struct horon_store_file zero = opened(*state), one = opened(*state), two = opened(*state);
    assert_int_equal(write_it(&zero), HORON_OK);
    assert_int_equal(write_it(&two), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, "another job's rank 0 (process 1 on here)"));
    close(zero.fd);
    zero.fd = -1;
    assert_int_equal(horon_store_file_read(&one, addresses, &error), HORON_AGAIN);
    assert_true(one.left);
    assert_int_equal(write_it(&two), HORON_OK);
    assert_int_equal(horon_store_file_read(&one, addresses, &error), HORON_OK);
    assert_false(one.left);
    horon_store_file_close(&zero); /* removes nothing: it is another's now */
    assert_int_equal(horon_store_file_read(&one, addresses, &error), HORON_OK);
    horon_store_file_close(&one);
    horon_store_file_close(&two);
}

static void test_store_file_in_a_directory_that_is_gone_is_an_error(void **state)
{
    const struct directory *directory = *state;
    struct horon_store_file zero = opened(directory);
    assert_int_equal(rmdir(directory->path), 0);
    assert_int_equal(write_it(&zero), HORON_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "cannot be opened"));
    horon_store_file_close(&zero);
    assert_int_equal(mkdir(directory->path, 0700), 0);
}

static void expect_left_alone(const struct directory *directory, const char *why)
{
    struct horon_store_file zero = opened(directory), one = opened(directory);
    assert_int_equal(write_it(&zero), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, why));
    assert_int_equal(horon_store_file_read(&one, addresses, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, why));
    horon_store_file_close(&zero);
    horon_store_file_close(&one);
    assert_int_equal(unlink(directory->file), 0); /* it was still there */
}

static void test_store_file_of_another_kind_is_left_alone(void **state)
{
    const struct directory *directory = *state;
    char other[128];
    snprintf(other, sizeof other, "%s/checkpoint", directory->path);
    put_text(other, "weights");
    put_text(directory->file, "weights");
    expect_left_alone(directory, "is no file of a store");
    put_text(directory->file, "horon store 2\n");
    expect_left_alone(directory, "is no file of a store");
    assert_int_equal(link(other, directory->file), 0);
    expect_left_alone(directory, "is no file of a store");
    put_text(other, "horon store 1\nweights\n");
    assert_int_equal(link(other, directory->file), 0);
    expect_left_alone(directory, "is no file of a store");
    assert_int_equal(mkfifo(directory->file, 0600), 0); /* without a writer: waits for one */
    expect_left_alone(directory, "is no file of a store");
    assert_int_equal(symlink(other, directory->file), 0);
    expect_left_alone(directory, "is a symbolic link");
    expect_text(other, "horon store 1\nweights\n");
    assert_int_equal(symlink("/no/such/file", directory->file), 0);
    expect_left_alone(directory, "is a symbolic link");
}

/* A writer that was killed between two steps leaves a begin. */
static void test_store_file_that_is_not_whole_counts_as_none(void **state)
{
    static const char whole[] = "horon store 1\n" WHERE "\nprocess 9 on there\n";
    const struct directory *directory = *state;
    for (size_t bytes = 0; bytes < sizeof whole; bytes++) {
        struct horon_store_file zero = opened(directory), one = opened(directory);
        char text[sizeof whole];
        snprintf(text, bytes + 1, "%s", whole);
        put_text(directory->file, text);
        assert_int_equal(horon_store_file_read(&one, addresses, &error), HORON_AGAIN);
        assert_int_equal(one.left, bytes == sizeof whole - 1);
        assert_int_equal(write_it(&zero), HORON_OK);
        assert_int_equal(horon_store_file_read(&one, addresses, &error), HORON_OK);
        assert_string_equal(addresses, WHERE);
        horon_store_file_close(&zero);
        horon_store_file_close(&one);
    }
}

static void expect_refused(const char *path, const char *why)
{
    struct horon_store_file file;
    assert_int_equal(horon_store_file_open(&file, path, NULL, &error), HORON_ERR_CONFIG);
    assert_non_null(strstr(error.text, why));
    horon_store_file_close(&file);
}

static void test_store_file_directory_that_others_may_write_is_refused(void **state)
{
    const struct directory *directory = *state;
    static const mode_t modes[] = {0720, 0702, 0777, 01777};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        assert_int_equal(chmod(directory->path, modes[i]), 0);
        expect_refused(directory->path, "other users may write in the store's directory");
    }
    assert_int_equal(chmod(directory->path, 0755), 0);
    struct horon_store_file file = opened(directory);
    horon_store_file_close(&file);
    put_text(directory->file, "");
    expect_refused(directory->file, "Not a directory");
    expect_refused("", "names no directory");
}

static void test_store_file_directory_of_another_user_is_refused(void **state)
{
    const struct directory *directory = *state;
    if (geteuid() != 0) {
        print_message("skip: needs root\n");
        skip();
    }
    assert_int_equal(chown(directory->path, 12345, 0), 0);
    expect_refused(directory->path, "belongs to another user (12345)");
}

/* As the child of a fork does, whose copy would keep the file locked after its writer has died. */
static void test_store_file_is_closed_in_a_child_while_it_is_locked(void **state)
{
    const struct directory *directory = *state;
    struct horon_fds fds = {0};
    struct horon_store_file file;
    assert_int_equal(horon_store_file_open(&file, directory->path, &fds, &error), HORON_OK);
    assert_int_equal(write_it(&file), HORON_OK);
    horon_fds_close_in_child(&fds);
    assert_int_equal(fcntl(file.fd, F_GETFD), -1);
    file.fd = -1;
    horon_store_file_close(&file);
    horon_fds_deinit(&fds);
}

/* Its number and its inode may be those of a file that is opened later, and is not ours. */
static void test_store_file_that_is_closed_is_forgotten(void **state)
{
    const struct directory *directory = *state;
    struct horon_fds fds = {0};
    struct horon_store_file file;
    assert_int_equal(horon_store_file_open(&file, directory->path, &fds, &error), HORON_OK);
    assert_int_equal(write_it(&file), HORON_OK);
    const int number = file.fd, same = dup(number);
    horon_store_file_remove(&file);
    assert_int_equal(dup2(same, number), number);
    horon_fds_close_in_child(&fds);
    assert_true(fcntl(number, F_GETFD) >= 0);
    close(number);
    close(same);
    horon_store_file_close(&file);
    horon_fds_deinit(&fds);
}

/* A full disk, to those that write: a file that may have a few bytes. */
static void test_store_file_that_has_no_room_says_so(void **state)
{
    const struct directory *directory = *state;
    struct horon_store_file writer = opened(directory), reader = opened(directory);
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit small = {8, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const horon_status_t status = write_it(&writer);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, HORON_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "/horon.store cannot be written: No space left on device"));
    assert_int_equal(horon_store_file_read(&reader, addresses, &error), HORON_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "rank 0 could not write "));
    close(writer.fd); /* as when it is killed */
    writer.fd = -1;
    assert_int_equal(horon_store_file_read(&reader, addresses, &error), HORON_AGAIN);
    assert_int_equal(write_it(&writer), HORON_OK);
    assert_int_equal(horon_store_file_read(&reader, addresses, &error), HORON_OK);
    assert_string_equal(addresses, WHERE);
    horon_store_file_close(&reader);
    horon_store_file_close(&writer);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_directory, remove_directory)
    const struct CMUnitTest tests[] = {
        TEST(test_store_file_is_read_as_written_and_goes),
        TEST(test_store_file_of_a_dead_writer_is_left_and_taken_over),
        TEST(test_store_file_in_a_directory_that_is_gone_is_an_error),
        TEST(test_store_file_of_another_kind_is_left_alone),
        TEST(test_store_file_that_is_not_whole_counts_as_none),
        TEST(test_store_file_directory_that_others_may_write_is_refused),
        TEST(test_store_file_directory_of_another_user_is_refused),
        TEST(test_store_file_is_closed_in_a_child_while_it_is_locked),
        TEST(test_store_file_that_is_closed_is_forgotten),
        TEST(test_store_file_that_has_no_room_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
