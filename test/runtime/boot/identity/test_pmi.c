/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a launcher may answer, word by word and in pieces. The launcher's end of the socket is
 * written before it is asked: the client reads no more than one line for each request.
 */
#undef NDEBUG
#include "boot/identity/space.h"
#include "clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

struct line {
    struct horon_space pmi;
    int launcher; /* its end */
    struct horon_error error;
};

/* @param answers  all that the launcher says from now on */
static void open_line(struct line *line, const char *answers)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    *line = (struct line){.launcher = ends[1],
                          .pmi = {.calls = &horon_space_pmi,
                                  .fd = ends[0],
                                  .name = "kvs_1",
                                  .deadline_ns = horon_clock_deadline(horon_clock_ns(), 10000)}};
    const size_t bytes = strlen(answers);
    assert_int_equal(write(line->launcher, answers, bytes), bytes);
}

static void close_line(struct line *line)
{
    close(line->pmi.fd);
    close(line->launcher);
}

static void expect_asked(const struct line *line, const char *requests)
{
    char text[4096];
    const ssize_t got = recv(line->launcher, text, sizeof text - 1, MSG_DONTWAIT);
    assert_true(got >= 0);
    text[got] = 0;
    assert_string_equal(text, requests);
}

static void test_pmi_asks_and_takes_what_is_answered(void **state)
{
    struct line line;
    char value[HORON_SPACE_VALUE_BYTES];
    (void)state;
    open_line(&line, "cmd=my_kvsname kvsname=kvs_12_0_host\n"
                     "cmd=put_result rc=0 msg=success\n"
                     "cmd=barrier_out\n"
                     "cmd=get_result rc=0 msg=success value=1,ab,10.0.0.1:5\n"
                     "cmd=get_result rc=-1 msg=key_x_not_found value=unknown\n");
    assert_int_equal(horon_space_pmi.open(&line.pmi, &line.error), HORON_OK);
    assert_string_equal(line.pmi.name, "kvs_12_0_host");
    assert_int_equal(horon_space_pmi.put(&line.pmi, "k", "v", &line.error), HORON_OK);
    assert_int_equal(horon_space_pmi.await(&line.pmi, 0, "k", value, &line.error), HORON_OK);
    assert_string_equal(value, "1,ab,10.0.0.1:5");
    assert_int_equal(horon_space_pmi.get(&line.pmi, 0, "x", value, &line.error), HORON_AGAIN);
    expect_asked(&line, "cmd=get_my_kvsname\n"
                        "cmd=put kvsname=kvs_12_0_host key=k value=v\n"
                        "cmd=barrier_in\n"
                        "cmd=get kvsname=kvs_12_0_host key=k\n"
                        "cmd=get kvsname=kvs_12_0_host key=x\n");
    close_line(&line);
}

static void test_pmi_refuses_answers_that_make_no_sense(void **state)
{
    static const char *const bad[] = {
        "\n",
        "cmd=\n",
        "rc=0 value=v\n",
        "cmd=barrier_out\n",
        "cmd=get_resultx rc=0 value=v\n",
        "cmd=get_result rc=0\n",
        "cmd=get_result rc=0 valuev\n",
        "xcmd=get_result rc=0 value=v\n",
    };
    char value[HORON_SPACE_VALUE_BYTES], longest[3000];
    struct line line;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        open_line(&line, bad[i]);
        assert_int_equal(horon_space_pmi.get(&line.pmi, 0, "k", value, &line.error),
                         HORON_ERR_PROTO);
        assert_true(line.error.text[0] != 0);
        close_line(&line);
    }
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    open_line(&line, longest);
    assert_int_equal(horon_space_pmi.get(&line.pmi, 0, "k", value, &line.error), HORON_ERR_PROTO);
    close_line(&line);
    memcpy(longest, "cmd=get_result value=", 21); /* a value that is longer than any */
    memcpy(longest + 1500, "\n", 2);
    open_line(&line, longest);
    assert_int_equal(horon_space_pmi.get(&line.pmi, 0, "k", value, &line.error), HORON_ERR_PROTO);
    close_line(&line);
    open_line(&line, "cmd=put_result rc=-1 msg=duplicate_key\n");
    assert_int_equal(horon_space_pmi.put(&line.pmi, "k", "v", &line.error), HORON_ERR_SYSTEM);
    assert_non_null(strstr(line.error.text, "duplicate_key"));
    close_line(&line);
}

static void test_pmi_tells_of_a_launcher_that_is_gone(void **state)
{
    char value[HORON_SPACE_VALUE_BYTES];
    struct line line;
    (void)state;
    open_line(&line, "cmd=get_res"); /* in the middle of its answer */
    close(line.launcher);
    assert_int_equal(horon_space_pmi.get(&line.pmi, 0, "k", value, &line.error), HORON_ERR_SYSTEM);
    close(line.pmi.fd);
    line.launcher = -1;
    assert_int_equal(horon_space_pmi.open(&line.pmi, &line.error), HORON_ERR_CONFIG);
    int pipes[2];
    assert_int_equal(pipe(pipes), 0); /* descriptors that are no sockets */
    line.pmi.fd = pipes[0];
    line.launcher = pipes[1];
    assert_int_equal(horon_space_pmi.open(&line.pmi, &line.error), HORON_ERR_CONFIG);
    close_line(&line);
}

static bool never(void *arg)
{
    (*(int *)arg)++;
    return false;
}

static void test_pmi_waits_no_longer_than_it_may(void **state)
{
    char value[HORON_SPACE_VALUE_BYTES];
    struct line line;
    int asked = 0;
    (void)state;
    open_line(&line, "");
    line.pmi.deadline_ns = horon_clock_deadline(horon_clock_ns(), 60);
    assert_int_equal(horon_space_pmi.get(&line.pmi, 0, "k", value, &line.error), HORON_ERR_TIMEOUT);
    line.pmi.deadline_ns = UINT64_MAX;
    line.pmi.goes_on = never;
    line.pmi.arg = &asked;
    assert_int_equal(horon_space_pmi.await(&line.pmi, 0, "k", value, &line.error),
                     HORON_ERR_CANCELLED);
    assert_int_equal(asked, 1);
    close_line(&line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pmi_asks_and_takes_what_is_answered),
        cmocka_unit_test(test_pmi_refuses_answers_that_make_no_sense),
        cmocka_unit_test(test_pmi_tells_of_a_launcher_that_is_gone),
        cmocka_unit_test(test_pmi_waits_no_longer_than_it_may),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
