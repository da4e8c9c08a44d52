/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines: which levels pass, how a line looks, that one too long is cut and ends well, that what
 * is dropped is not even formatted, and that lines of several threads on standard error stay whole.
 */
#undef NDEBUG
#include "log.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct heard {
    int lines;
    horon_log_level_t level;
    char text[4096];
};

static void hear(void *arg, horon_log_level_t level, const char *text)
{
    struct heard *heard = arg;
    heard->lines++;
    heard->level = level;
    snprintf(heard->text, sizeof heard->text, "%s", text);
}

static struct horon_log log_to(struct heard *heard, horon_log_level_t level)
{
    *heard = (struct heard){0};
    return (struct horon_log){.fn = hear, .arg = heard, .level = level, .rank = -1};
}

static void say_all(const struct horon_log *log)
{
    HORON_LOG_AT(log, HORON_LOG_ERROR, "e");
    HORON_LOG_WARN(log, "w");
    HORON_LOG_INFO(log, "i");
    HORON_LOG_DEBUG(log, "d");
    HORON_LOG_TRACE(log, "t");
}

static void test_log_levels_above_the_limit_are_dropped(void **state)
{
    (void)state;
    for (int level = HORON_LOG_ERROR; level <= HORON_LOG_TRACE; level++) {
        struct heard heard;
        struct horon_log log = log_to(&heard, (horon_log_level_t)level);
        say_all(&log);
        assert_int_equal(heard.lines, level + 1);
        assert_int_equal(heard.level, level);
    }
    say_all(NULL); /* no log, no lines */
}

/* A name or a peer's text cannot make a second line, or move the cursor. */
static void test_log_line_is_one_line_whatever_is_in_it(void **state)
{
    struct heard heard;
    struct horon_log log = log_to(&heard, HORON_LOG_WARN);
    (void)state;
    HORON_LOG_WARN(&log, "tensor '%s' waits", "a\nhoron error: b\r\x1b[2J\t\x7f\xc3\xa4\xc2\x9b");
    assert_string_equal(heard.text, "horon warn: tensor 'a?horon error: b??[2J??\xc3\xa4?"
                                    "?' waits");
}

static int formatted;

static int count_formatting(void)
{
    return ++formatted;
}

static void test_log_dropped_line_is_not_formatted(void **state)
{
    struct heard heard;
    struct horon_log log = log_to(&heard, HORON_LOG_WARN);
    (void)state;
    formatted = 0;
    HORON_LOG_INFO(&log, "%d", count_formatting());
    assert_int_equal(formatted, 0);
    HORON_LOG_WARN(&log, "%d", count_formatting());
    assert_int_equal(formatted, 1);
}

static void test_log_line_names_rank_host_and_level(void **state)
{
    static const char *const levels[] = {"error", "warn", "info", "debug", "trace"};
    struct heard heard;
    struct horon_log log = log_to(&heard, HORON_LOG_TRACE);
    (void)state;
    for (int level = 0; level < 5; level++) {
        char expected[64];
        log.rank = -1;
        HORON_LOG_AT(&log, (horon_log_level_t)level, "%s %d", "text", 7);
        snprintf(expected, sizeof expected, "horon %s: text 7", levels[level]);
        assert_string_equal(heard.text, expected);
        log.rank = 3;
        snprintf(log.host, sizeof log.host, "host-a");
        HORON_LOG_AT(&log, (horon_log_level_t)level, "%s %d", "text", 7);
        snprintf(expected, sizeof expected, "horon rank 3 (host-a) %s: text 7", levels[level]);
        assert_string_equal(heard.text, expected);
    }
}

static void test_log_bare_line_is_the_text_alone(void **state)
{
    struct heard heard;
    struct horon_log log = log_to(&heard, HORON_LOG_WARN);
    (void)state;
    log.bare = true;
    for (log.rank = -1; log.rank < 2; log.rank++) {
        HORON_LOG_WARN(&log, "rank %d: lost", 7);
        assert_string_equal(heard.text, "rank 7: lost");
    }
}

static void test_log_line_of_any_length_is_cut_and_ends(void **state)
{
    struct heard heard;
    struct horon_log log = log_to(&heard, HORON_LOG_WARN);
    char text[3000], host[64];
    (void)state;
    memset(host, 'h', sizeof host - 1);
    host[sizeof host - 1] = 0;
    log.rank = 2147483647;
    memcpy(log.host, host, sizeof host);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    for (size_t bytes = 0; bytes < sizeof text; bytes += 7) {
        HORON_LOG_WARN(&log, "%.*s", (int)bytes, text);
        const char *said = strchr(heard.text, 'x');
        size_t got = said ? strlen(said) : 0;
        /* an error's text always has room */
        assert_true(got == bytes || (got < bytes && got > HORON_ERROR_TEXT_BYTES));
    }
}

#define THREADS 4
#define LINES 200

static void *say_many(void *arg)
{
    const struct horon_log *log = arg;
    char text[600];
    memset(text, 'a' + log->rank, sizeof text - 1);
    text[sizeof text - 1] = 0;
    for (int i = 0; i < LINES; i++)
        HORON_LOG_WARN(log, "%.*s", 1 + i * 2, text);
    return NULL;
}

/* Runs @p work with standard error going to a file. @return the file, rewound */
static FILE *with_stderr_in_file(void (*work)(void))
{
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    int flags = fcntl(fileno(file), F_GETFL);
    assert_int_equal(fcntl(fileno(file), F_SETFL, flags | O_APPEND), 0);
    assert_true(kept >= 0 && dup2(fileno(file), STDERR_FILENO) == STDERR_FILENO);
    work();
    assert_int_equal(dup2(kept, STDERR_FILENO), STDERR_FILENO);
    close(kept);
    rewind(file);
    return file;
}

static void say_from_threads(void)
{
    pthread_t threads[THREADS];
    struct horon_log logs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        logs[i] = (struct horon_log){.level = HORON_LOG_WARN, .rank = i, .host = "h"};
        assert_int_equal(pthread_create(&threads[i], NULL, say_many, &logs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void test_log_lines_of_threads_on_stderr_stay_whole(void **state)
{
    int next[THREADS] = {0}, rank;
    char line[2000], text[1000];
    (void)state;
    FILE *file = with_stderr_in_file(say_from_threads);
    while (fgets(line, sizeof line, file)) {
        assert_int_equal(sscanf(line, "horon rank %d (h) warn: %999[a-z]\n", &rank, text), 2);
        assert_in_range(rank, 0, THREADS - 1);
        assert_int_equal(strlen(text), 1 + next[rank]++ * 2); /* in the order of its thread */
        assert_int_equal(strspn(text, (const char[]){(char)('a' + rank), 0}), strlen(text));
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(next[i], LINES);
    fclose(file);
}

static void say_too_much(void)
{
    char text[3000];
    struct horon_log log = {.level = HORON_LOG_WARN, .rank = -1};
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    HORON_LOG_WARN(&log, "%s", text);
    HORON_LOG_WARN(&log, "next");
}

static void test_log_cut_line_on_stderr_still_ends_with_a_newline(void **state)
{
    char line[4096];
    (void)state;
    FILE *file = with_stderr_in_file(say_too_much);
    assert_non_null(fgets(line, sizeof line, file));
    assert_int_equal(line[strlen(line) - 1], '\n');
    assert_true(strlen(line) > HORON_ERROR_TEXT_BYTES);
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(line, "horon warn: next\n");
    fclose(file);
}

static void test_log_with_stderr_closed_goes_on(void **state)
{
    struct horon_log log = {.level = HORON_LOG_WARN, .rank = -1};
    (void)state;
    fflush(stderr);
    int kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    close(STDERR_FILENO);
    HORON_LOG_WARN(&log, "nobody hears this");
    assert_int_equal(dup2(kept, STDERR_FILENO), STDERR_FILENO);
    close(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_levels_above_the_limit_are_dropped),
        cmocka_unit_test(test_log_dropped_line_is_not_formatted),
        cmocka_unit_test(test_log_line_names_rank_host_and_level),
        cmocka_unit_test(test_log_bare_line_is_the_text_alone),
        cmocka_unit_test(test_log_line_of_any_length_is_cut_and_ends),
        cmocka_unit_test(test_log_line_is_one_line_whatever_is_in_it),
        cmocka_unit_test(test_log_lines_of_threads_on_stderr_stay_whole),
        cmocka_unit_test(test_log_cut_line_on_stderr_still_ends_with_a_newline),
        cmocka_unit_test(test_log_with_stderr_closed_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
