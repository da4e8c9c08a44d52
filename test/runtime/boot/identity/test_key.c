/* SPDX-License-Identifier: Apache-2.0 */
/* What is a job key and what is refused as one; no text of it may hold the key. */
#undef NDEBUG
#include "boot/identity/key.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET "5ecret-of-this-test-alone"

struct heard {
    int lines;
    char text[1024]; /* the last one */
};

struct bed {
    char path[64];
    struct horon_config config;
    struct heard heard;
    struct horon_log log;
    char key[HORON_KEY_TEXT_BYTES];
    struct horon_error error;
};

static void hear(void *arg, horon_log_level_t level, const char *text)
{
    struct heard *heard = arg;
    assert_int_equal(level, HORON_LOG_WARN);
    heard->lines++;
    snprintf(heard->text, sizeof heard->text, "%s", text);
}

static int set_up(void **state)
{
    struct bed *bed = calloc(1, sizeof *bed);
    assert_non_null(bed);
    strcpy(bed->path, "/tmp/horon-test-key-XXXXXX");
    int fd = mkstemp(bed->path); /* mode 0600 */
    assert_true(fd >= 0);
    close(fd);
    snprintf(bed->config.job_key_file, sizeof bed->config.job_key_file, "%s", bed->path);
    bed->log = (struct horon_log){
        .fn = hear, .arg = &bed->heard, .level = HORON_LOG_TRACE, .rank = 3, .host = "here"};
    *state = bed;
    return 0;
}

static int tear_down(void **state)
{
    struct bed *bed = *state;
    unlink(bed->path);
    free(bed);
    return 0;
}

static void write_file(const struct bed *bed, const void *bytes, size_t count)
{
    FILE *file = fopen(bed->path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static horon_status_t read_key(struct bed *bed)
{
    memset(bed->key, 'x', sizeof bed->key);
    bed->error = (struct horon_error){0};
    return horon_key_read(&bed->config, &bed->log, bed->key, &bed->error);
}

static void expect_refused(struct bed *bed, const char *variable, const char *why)
{
    assert_int_equal(read_key(bed), HORON_ERR_CONFIG);
    assert_int_equal(strncmp(bed->error.text, variable, strlen(variable)), 0);
    if (!strstr(bed->error.text, why))
        fail_msg("'%s' lacks '%s'", bed->error.text, why);
    assert_null(strstr(bed->error.text, SECRET));
    assert_int_equal(bed->heard.lines, 0);
}

static void test_key_line_ends_behind_it_are_not_part_of_it(void **state)
{
    static const char *const files[] = {SECRET, SECRET "\n", SECRET "\r\n", SECRET "\n\n"};
    struct bed *bed = *state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        write_file(bed, files[i], strlen(files[i]));
        assert_int_equal(read_key(bed), HORON_OK);
        assert_string_equal(bed->key, SECRET);
    }
    strcpy(bed->config.job_key, SECRET "\n"); /* goes before the file, and means the same */
    bed->config.job_key_file[0] = 0;
    assert_int_equal(read_key(bed), HORON_OK);
    assert_string_equal(bed->key, SECRET);
    assert_int_equal(bed->heard.lines, 0);
}

static void test_key_that_nobody_gave_is_empty(void **state)
{
    struct bed *bed = *state;
    bed->config.job_key_file[0] = 0;
    assert_int_equal(read_key(bed), HORON_OK);
    assert_string_equal(bed->key, "");
}

static void test_key_variable_goes_before_the_file(void **state)
{
    struct bed *bed = *state;
    write_file(bed, "other", 5);
    strcpy(bed->config.job_key, SECRET);
    assert_int_equal(read_key(bed), HORON_OK);
    assert_string_equal(bed->key, SECRET);
}

static void test_key_files_that_hold_no_key_are_refused(void **state)
{
    static const char nul[] = SECRET "\0more";
    struct bed *bed = *state;
    const char *const variable = "HORON_JOB_KEY_FILE=";
    expect_refused(bed, variable, "is empty; make one with");
    write_file(bed, "\n", 1);
    expect_refused(bed, variable, "is empty");
    write_file(bed, " \t\r\n", 4);
    expect_refused(bed, variable, "is empty");
    write_file(bed, nul, sizeof nul - 1);
    expect_refused(bed, variable, "NUL byte");
    write_file(bed, SECRET "\0", sizeof SECRET); /* behind it, too */
    expect_refused(bed, variable, "NUL byte");
    write_file(bed, SECRET "\nmore\n", sizeof SECRET + 5);
    expect_refused(bed, variable, "more than one line");
    assert_non_null(strstr(bed->error.text, bed->path));
}

static void test_key_file_may_be_as_long_as_said_and_no_longer(void **state)
{
    struct bed *bed = *state;
    char text[HORON_KEY_TEXT_BYTES];
    memset(text, 'k', sizeof text);
    write_file(bed, text, sizeof text - 1);
    assert_int_equal(read_key(bed), HORON_OK);
    assert_int_equal(strlen(bed->key), sizeof text - 1);
    write_file(bed, text, sizeof text);
    expect_refused(bed, "HORON_JOB_KEY_FILE=", "longer than 4095 bytes");
}

static void test_key_variables_that_hold_no_key_are_refused(void **state)
{
    struct bed *bed = *state;
    strcpy(bed->config.job_key, SECRET "\nmore");
    expect_refused(bed, "HORON_JOB_KEY ", "more than one line");
    strcpy(bed->config.job_key, "  ");
    expect_refused(bed, "HORON_JOB_KEY ", "is empty");
}

static void test_key_files_that_cannot_be_read_are_named(void **state)
{
    struct bed *bed = *state;
    strcpy(bed->config.job_key_file, "/nowhere/key");
    expect_refused(bed, "HORON_JOB_KEY_FILE=/nowhere/key", "No such file");
    strcpy(bed->config.job_key_file, "/tmp");
    expect_refused(bed, "HORON_JOB_KEY_FILE=/tmp", "no regular file");
    strcpy(bed->config.job_key_file, bed->path);
    unlink(bed->path);
    assert_int_equal(mkfifo(bed->path, 0600), 0); /* nobody writes: it must not be waited for */
    expect_refused(bed, "HORON_JOB_KEY_FILE=", "no regular file");
    unlink(bed->path);
    write_file(bed, SECRET, strlen(SECRET));
    assert_int_equal(chmod(bed->path, 0), 0);
    const bool root = geteuid() == 0; /* root may read anything */
    assert_int_equal(root ? seteuid(65534) : 0, 0);
    expect_refused(bed, "HORON_JOB_KEY_FILE=", "Permission denied");
    assert_int_equal(root ? seteuid(0) : 0, 0);
}

static void test_key_file_that_others_may_touch_is_warned_of(void **state)
{
    static const mode_t modes[] = {0640, 0604, 0620, 0602, 0777};
    struct bed *bed = *state;
    write_file(bed, SECRET, strlen(SECRET));
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        bed->heard = (struct heard){0};
        assert_int_equal(chmod(bed->path, modes[i]), 0);
        assert_int_equal(read_key(bed), HORON_OK);
        assert_int_equal(bed->heard.lines, 1);
        assert_non_null(strstr(bed->heard.text, "HORON_JOB_KEY_FILE="));
        assert_non_null(strstr(bed->heard.text, "chmod 600"));
        assert_null(strstr(bed->heard.text, SECRET));
    }
    bed->heard = (struct heard){0};
    assert_int_equal(chmod(bed->path, 0400), 0);
    assert_int_equal(read_key(bed), HORON_OK);
    assert_int_equal(bed->heard.lines, 0);
}

static void test_key_of_fewer_than_128_bits_is_refused(void **state)
{
    static const char hex[] = "0123456789abcdefABCDEF0123456789",
                      words[] = "0123456789abcdefghijkl";
    struct bed *bed = *state;
    assert_int_equal(strlen(hex), 32);
    assert_int_equal(strlen(words), 22);
    const char *const keys[] = {hex, words};
    for (int i = 0; i < 2; i++) {
        strcpy(bed->config.job_key, keys[i]);
        assert_int_equal(read_key(bed), HORON_OK);
        bed->config.job_key[strlen(keys[i]) - 1] = 0;
        expect_refused(bed, "HORON_JOB_KEY ", "is too short to be safe");
        assert_null(strstr(bed->error.text, "0123456789"));
        write_file(bed, keys[i], strlen(keys[i]) - 1);
        bed->config.job_key[0] = 0;
        expect_refused(bed, "HORON_JOB_KEY_FILE=", "is too short to be safe");
    }
}

/* @return the descriptor, and its name in the configuration */
static int hand_over(struct bed *bed, int seals)
{
    int fd = memfd_create("test", MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, SECRET, strlen(SECRET)), strlen(SECRET));
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    snprintf(bed->config.job_key_file, sizeof bed->config.job_key_file, "fd:%d", fd);
    return fd;
}

static void test_key_in_sealed_memory_is_read_again_and_kept_from_children(void **state)
{
    struct bed *bed = *state;
    int fd = hand_over(bed, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(read_key(bed), HORON_OK);
        assert_string_equal(bed->key, SECRET);
        assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    }
    close(fd);
    expect_refused(bed, "HORON_JOB_KEY_FILE=fd:", "has closed it (Python's subprocess");
}

static void test_key_in_a_descriptor_that_is_another_is_refused(void **state)
{
    struct bed *bed = *state;
    int fd = hand_over(bed, F_SEAL_SHRINK | F_SEAL_GROW);
    expect_refused(bed, "HORON_JOB_KEY_FILE=fd:", "does not hold the job key");
    close(fd);
    static const char *const names[] = {"fd:", "fd:x", "fd:1x", "fd:-1", "fd:99999999999"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        strcpy(bed->config.job_key_file, names[i]);
        expect_refused(bed, "HORON_JOB_KEY_FILE=fd:", "is no descriptor");
    }
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_key_line_ends_behind_it_are_not_part_of_it),
        CASE(test_key_that_nobody_gave_is_empty),
        CASE(test_key_variable_goes_before_the_file),
        CASE(test_key_files_that_hold_no_key_are_refused),
        CASE(test_key_file_may_be_as_long_as_said_and_no_longer),
        CASE(test_key_variables_that_hold_no_key_are_refused),
        CASE(test_key_files_that_cannot_be_read_are_named),
        CASE(test_key_of_fewer_than_128_bits_is_refused),
        CASE(test_key_in_sealed_memory_is_read_again_and_kept_from_children),
        CASE(test_key_in_a_descriptor_that_is_another_is_refused),
        CASE(test_key_file_that_others_may_touch_is_warned_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
