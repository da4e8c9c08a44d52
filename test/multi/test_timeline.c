/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timeline of contexts as they are: what is in its file while they run and when they have ended,
 * which rank writes it, and what a file that cannot be written does. What is drawn of an event:
 * test/runtime/observe/test_timeline.c.
 */
#undef NDEBUG
#include "multi/duo.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char text[8 << 20]; /* of the file that was read last; a sanitizer looks at all of it */
static size_t text_bytes;  /* whenever it is searched as a string, so what loops does not */

/* @return false: there is no such file */
static bool read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    text_bytes = fread(text, 1, sizeof text - 1, file);
    assert_true(text_bytes < sizeof text - 1);
    text[text_bytes] = 0;
    fclose(file);
    return true;
}

/* @return where it is from @p from on, or NULL */
static char *find(const char *from, const char *what)
{
    return memmem(from, text_bytes - (size_t)(from - text), what, strlen(what));
}

/* Of JSON as much as lines show: an array with one object a line. @return NULL, or the first line
 * that such an array has not */
static const char *find_flaw(void)
{
    const char *line = text;
    if (strncmp(text, "[\n{\"name\": \"process_name\"", 25) != 0)
        return text;
    const char *end = line + 1;
    for (line = end + 1; *line == '{'; line = end + 1) {
        end = find(line, "\n");
        if (!end)
            return line;
        const bool last = end[1] == ']';
        if (last ? end[-1] != '}' : end[-1] != ',' || end[-2] != '}')
            return line;
    }
    return strcmp(line, "]\n") == 0 ? NULL : line;
}

static void expect_whole(void)
{
    const char *flaw = find_flaw();
    if (flaw)
        fail_msg("not as it should be from here on: %s", flaw);
}

static size_t count_of(const char *what)
{
    size_t count = 0;
    for (const char *at = text; (at = find(at, what)); at += strlen(what))
        count++;
    return count;
}

/* Until the file has it and is whole. A reading that meets a write gets bytes of before and of
 * after it: a kernel does not keep the two apart. */
static void wait_to_read(const char *path, const char *what)
{
    const time_t deadline = time(NULL) + DUO_DEADLINE_S;
    while (!read_file(path) || !strstr(text, what) || find_flaw()) {
        if (time(NULL) > deadline)
            fail_msg("%s has no %s, or is not whole: %s", path, what, text);
        sched_yield();
    }
}

static void sum(struct duo *duo, const char *name)
{
    float x[2] = {0};
    horon_request_t *requests[2];
    for (int rank = 0; rank < 2; rank++)
        requests[rank] = duo_submit(duo->ctx[rank], name, &x[rank]);
    for (int rank = 0; rank < 2; rank++)
        duo_expect_end(requests[rank], HORON_OK);
}

static void in_folder(const struct duo *duo, const char *name, char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/%s", duo->folder, name);
}

static void start(struct duo *duo, int rank, const char *path, int32_t mark_cycles)
{
    if (horon_timeline_start(duo->ctx[rank], path, mark_cycles) != HORON_OK)
        fail_msg("%s", horon_last_error(duo->ctx[rank]));
}

static void test_timeline_is_whole_while_it_runs_and_after(void **state)
{
    struct duo duo;
    char path[64];
    float x = 0;
    (void)state;
    duo_make(&duo, NULL);
    in_folder(&duo, "t", path, sizeof path);
    sum(&duo, "early");
    start(&duo, 0, path, 1);
    horon_request_t *waits = duo_submit(duo.ctx[0], "for \"rank\" 1", &x);
    wait_to_read(path, "\"NEGOTIATE_ALLREDUCE\""); /* of what has not ended */
    assert_non_null(strstr(text, "\"args\": {\"name\": \"for \\\"rank\\\" 1\"}"));
    assert_null(strstr(text, "\"ALLREDUCE\""));
    sum(&duo, "tensor");
    wait_to_read(path, "\"ALLREDUCE\"");
    assert_non_null(strstr(text, "CYCLE_START"));
    assert_int_equal(horon_timeline_stop(duo.ctx[0]), HORON_OK);
    assert_int_equal(horon_timeline_stop(duo.ctx[0]), HORON_OK); /* there is none */
    sum(&duo, "late");
    assert_true(read_file(path));
    expect_whole();
    assert_int_equal(count_of("\"NEGOTIATE_ALLREDUCE\""), 2);
    assert_int_equal(count_of("\"ph\": \"E\""), 2);
    assert_int_equal(count_of("\"args\": {\"name\": \"tensor\"}"), 1);
    assert_null(strstr(text, "early"));
    assert_null(strstr(text, "late"));
    horon_release(waits);
    duo_end(&duo);
}

/* Rank 0 sends one message and receives one; each is a row that begins and ends. */
static void test_timeline_has_the_ends_of_messages(void **state)
{
    struct duo duo;
    char path[64];
    float x = 1, y[2];
    (void)state;
    duo_make(&duo, NULL);
    in_folder(&duo, "t", path, sizeof path);
    start(&duo, 0, path, 0);
    for (int from = 0; from < 2; from++) {
        horon_descriptor_t desc = duo_sum(NULL, &x);
        horon_request_t *send, *recv;
        desc.verb = HORON_SEND;
        desc.root = 1 - from;
        assert_int_equal(horon_submit(duo.ctx[from], &desc, &send), HORON_OK);
        desc.verb = HORON_RECV;
        desc.root = from;
        desc.dst = y;
        assert_int_equal(horon_submit(duo.ctx[1 - from], &desc, &recv), HORON_OK);
        duo_expect_end(recv, HORON_OK);
        duo_expect_end(send, HORON_OK);
    }
    assert_int_equal(horon_timeline_stop(duo.ctx[0]), HORON_OK);
    assert_true(read_file(path));
    expect_whole();
    assert_int_equal(count_of("\"name\": \"send, rank 1\""), 1);
    assert_int_equal(count_of("\"name\": \"recv, rank 1\""), 1);
    assert_int_equal(count_of("\"ph\": \"B\""), 2);
    assert_int_equal(count_of("\"ph\": \"E\""), 2);
    duo_end(&duo);
}

/* Each ends without a turn of the engine: the thread that runs it begins it itself. */
static void test_timeline_has_the_time_of_each_message(void **state)
{
    enum { APART_US = 5000 };
    struct duo duo;
    char path[64];
    float x = 1;
    double began[2];
    (void)state;
    duo_make(&duo, NULL);
    in_folder(&duo, "t", path, sizeof path);
    horon_descriptor_t desc = duo_sum(NULL, &x);
    desc.verb = HORON_SEND;
    desc.root = 1;
    assert_int_equal(horon_run(duo.ctx[0], &desc, -1, NULL, 0), HORON_OK); /* there is a link */
    start(&duo, 0, path, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(horon_run(duo.ctx[0], &desc, -1, NULL, 0), HORON_OK);
        usleep(i == 0 ? APART_US : 0);
    }
    assert_int_equal(horon_timeline_stop(duo.ctx[0]), HORON_OK);
    assert_true(read_file(path));
    const char *at = text;
    for (int i = 0; i < 2; i++) {
        static const char begin[] = "{\"ph\": \"B\", \"name\": \"SEND\", \"ts\": ";
        assert_non_null(at = strstr(at, begin));
        began[i] = strtod(at += sizeof begin - 1, NULL);
    }
    assert_true(began[1] - began[0] >= APART_US);
    duo_end(&duo);
}

static void test_timeline_is_of_rank_0_or_each_has_its_own(void **state)
{
    struct duo duo;
    char path[64], of_rank[64];
    (void)state;
    duo_make(&duo, NULL);
    in_folder(&duo, "t", path, sizeof path);
    for (int rank = 1; rank >= 0; rank--)
        start(&duo, rank, path, 0);
    sum(&duo, "x");
    in_folder(&duo, "t.%r.%r", path, sizeof path);
    for (int rank = 0; rank < 2; rank++)
        start(&duo, rank, path, 0); /* the first one ends by that */
    in_folder(&duo, "t", path, sizeof path);
    assert_true(read_file(path));
    expect_whole();
    assert_non_null(strstr(text, "\"name\": \"rank 0\""));
    assert_int_equal(count_of("\"NEGOTIATE_ALLREDUCE\""), 1);
    assert_null(strstr(text, "CYCLE_START"));
    sum(&duo, "y");
    for (int rank = 0; rank < 2; rank++) {
        char own[16];
        horon_context_destroy(duo.ctx[rank]); /* which ends it */
        duo.ctx[rank] = NULL;
        snprintf(of_rank, sizeof of_rank, "%s/t.%d.%d", duo.folder, rank, rank);
        assert_true(read_file(of_rank));
        expect_whole();
        snprintf(own, sizeof own, "\"rank %d\"", rank);
        assert_non_null(strstr(text, own));
        assert_int_equal(count_of("\"ALLREDUCE\""), 1);
    }
    duo_end(&duo);
}

static void test_timeline_goes_on_if_it_is_begun_again(void **state)
{
    struct duo duo;
    char path[64];
    (void)state;
    duo_make(&duo, NULL);
    in_folder(&duo, "t", path, sizeof path);
    start(&duo, 0, path, 0);
    sum(&duo, "first");
    wait_to_read(path, "\"ALLREDUCE\"");
    start(&duo, 0, path, 1); /* with marks from here on */
    sum(&duo, "second");
    assert_int_equal(horon_timeline_stop(duo.ctx[0]), HORON_OK);
    assert_true(read_file(path));
    expect_whole();
    assert_non_null(strstr(text, "\"first\""));
    assert_int_equal(count_of("CYCLE_START"), 1);
    start(&duo, 0, path, 0); /* it has ended: a new one */
    assert_int_equal(horon_timeline_stop(duo.ctx[0]), HORON_OK);
    assert_true(read_file(path));
    expect_whole();
    assert_null(strstr(text, "\"first\""));
    duo_end(&duo);
}

/* Nor does it matter how the path is spelled. A file that was removed is another one. */
static void test_timeline_goes_on_in_the_same_file_by_any_path(void **state)
{
    struct duo duo;
    char path[64], others[3][64];
    (void)state;
    duo_make(&duo, NULL);
    in_folder(&duo, "t", path, sizeof path);
    in_folder(&duo, "./t", others[0], sizeof others[0]);
    in_folder(&duo, "link", others[1], sizeof others[1]);
    in_folder(&duo, "hard", others[2], sizeof others[2]);
    start(&duo, 0, path, 0);
    sum(&duo, "first");
    wait_to_read(path, "\"ALLREDUCE\"");
    assert_int_equal(symlink("t", others[1]), 0);
    assert_int_equal(link(path, others[2]), 0);
    for (int i = 0; i < 3; i++) {
        start(&duo, 0, others[i], 0);
        sum(&duo, "again");
    }
    assert_int_equal(unlink(path), 0);
    start(&duo, 0, path, 0); /* the first one ends by that */
    sum(&duo, "second");
    assert_int_equal(horon_timeline_stop(duo.ctx[0]), HORON_OK);
    assert_true(read_file(others[2]));
    expect_whole();
    assert_non_null(strstr(text, "\"first\""));
    assert_int_equal(count_of("\"ALLREDUCE\""), 4);
    assert_true(read_file(path));
    expect_whole();
    assert_int_equal(count_of("\"ALLREDUCE\""), 1);
    duo_end(&duo);
}

static void expect_refused(struct duo *duo, const char *path, horon_status_t status,
                           const char *reason)
{
    assert_int_equal(horon_timeline_start(duo->ctx[0], path, 0), status);
    const char *told = horon_last_error(duo->ctx[0]);
    if (!strstr(told, reason) || (path && path[0] && strlen(path) < 64 && !strstr(told, path)))
        fail_msg("%s", told);
}

static void test_timeline_that_cannot_be_written_says_where_and_why(void **state)
{
    struct duo duo;
    char path[64], none[64], endless[2048];
    (void)state;
    duo_make(&duo, NULL);
    in_folder(&duo, "t", path, sizeof path);
    start(&duo, 0, path, 0);
    memset(endless, 'x', sizeof endless - 1);
    endless[sizeof endless - 1] = 0;
    in_folder(&duo, "none/t", none, sizeof none);
    expect_refused(&duo, none, HORON_ERR_SYSTEM, "No such file or directory");
    expect_refused(&duo, duo.folder, HORON_ERR_SYSTEM, "Is a directory");
    expect_refused(&duo, "/dev/full", HORON_ERR_SYSTEM, "No space left on device");
    in_folder(&duo, "pipe", none, sizeof none);
    assert_int_equal(mkfifo(none, 0600), 0);
    expect_refused(&duo, none, HORON_ERR_SYSTEM, "No such device or address"); /* nobody reads */
    expect_refused(&duo, "", HORON_ERR_INVALID, "the path of a timeline");
    expect_refused(&duo, NULL, HORON_ERR_INVALID, "the path of a timeline");
    expect_refused(&duo, endless, HORON_ERR_INVALID, "the path of a timeline");
    assert_int_equal(horon_timeline_start(NULL, path, 0), HORON_ERR_INVALID);
    assert_int_equal(horon_timeline_stop(NULL), HORON_ERR_INVALID);
    sum(&duo, "x"); /* the first one runs on */
    assert_int_equal(horon_timeline_stop(duo.ctx[0]), HORON_OK);
    assert_true(read_file(path));
    expect_whole();
    assert_int_equal(count_of("\"ALLREDUCE\""), 1);
    duo_end(&duo);
}

/* The limit on a file's size stands for a full disk. */
static void test_timeline_on_a_full_disk_ends_whole_with_one_warning(void **state)
{
    struct rlimit before, limit;
    struct duo duo;
    char path[64], name[32];
    (void)state;
    duo_make(&duo, NULL);
    in_folder(&duo, "t", path, sizeof path);
    start(&duo, 0, path, 0);
    sum(&duo, "small");
    wait_to_read(path, "\"ALLREDUCE\"");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 2000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "large.%d", i);
        sum(&duo, name);
    }
    duo_wait_to_hear(&duo, "it ends here");
    for (int i = 0; i < 20; i++)
        sum(&duo, "after");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(horon_timeline_stop(duo.ctx[0]), HORON_OK);
    assert_non_null(strstr(duo.heard.all, path));
    assert_non_null(strstr(duo.heard.all, "File too large"));
    assert_int_equal(duo.heard.lines, 1);
    assert_true(read_file(path));
    expect_whole();
    assert_non_null(strstr(text, "\"small\""));
    start(&duo, 0, path, 0); /* another may be begun */
    duo_end(&duo);
}

/* As much as one thread can do, which may be more than can be written: nothing goes untold. */
static void test_timeline_counts_what_it_loses(void **state)
{
    enum { MANY = 30000 };
    struct duo duo;
    char path[64];
    float x = 0;
    (void)state;
    duo_make(&duo, NULL);
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *alone;
    options.rank = 0;
    options.size = 1;
    assert_int_equal(horon_context_create(&options, &alone, NULL, 0), HORON_OK);
    in_folder(&duo, "t", path, sizeof path);
    assert_int_equal(horon_timeline_start(alone, path, 0), HORON_OK);
    horon_descriptor_t desc = duo_sum(NULL, &x);
    desc.flags = HORON_IN_ORDER;
    for (int i = 0; i < MANY; i++)
        assert_int_equal(horon_run(alone, &desc, -1, NULL, 0), HORON_OK);
    horon_context_destroy(alone);
    assert_true(read_file(path));
    expect_whole();
    uint64_t lost = 0;
    for (const char *at = text; (at = find(at, "{\"events\": ")); at += 11)
        lost += strtoull(at + 11, NULL, 10);
    const size_t drawn = count_of("\"name\": \"ALLREDUCE\"");
    if (lost == 0)
        assert_int_equal(drawn, MANY);
    else /* each has two events */
        assert_true(drawn <= MANY && drawn + lost >= MANY);
    duo_end(&duo);
}

/* The child has the parent's memory, not its thread. */
static void test_timeline_belongs_to_the_parent_of_a_fork(void **state)
{
    struct duo duo;
    char path[64];
    int status;
    (void)state;
    duo_make(&duo, NULL);
    in_folder(&duo, "t", path, sizeof path);
    start(&duo, 0, path, 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const bool refused = horon_timeline_stop(duo.ctx[0]) == HORON_ERR_FORKED &&
                             horon_timeline_start(duo.ctx[0], path, 0) == HORON_ERR_FORKED;
        horon_context_destroy(duo.ctx[0]);
        _exit(refused ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    sum(&duo, "x");
    assert_int_equal(horon_timeline_stop(duo.ctx[0]), HORON_OK);
    assert_true(read_file(path));
    expect_whole();
    assert_int_equal(count_of("\"ALLREDUCE\""), 1);
    duo_end(&duo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timeline_is_whole_while_it_runs_and_after),
        cmocka_unit_test(test_timeline_has_the_ends_of_messages),
        cmocka_unit_test(test_timeline_has_the_time_of_each_message),
        cmocka_unit_test(test_timeline_is_of_rank_0_or_each_has_its_own),
        cmocka_unit_test(test_timeline_goes_on_if_it_is_begun_again),
        cmocka_unit_test(test_timeline_goes_on_in_the_same_file_by_any_path),
        cmocka_unit_test(test_timeline_that_cannot_be_written_says_where_and_why),
        cmocka_unit_test(test_timeline_on_a_full_disk_ends_whole_with_one_warning),
        cmocka_unit_test(test_timeline_counts_what_it_loses),
        cmocka_unit_test(test_timeline_belongs_to_the_parent_of_a_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
