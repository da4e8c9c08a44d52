/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between horonrun and an agent: cut anywhere, too long, or nonsense. */
#undef NDEBUG
#include "frame.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_frame_cut_at_every_byte_is_again(void **state)
{
    struct horonrun_bytes stream = {0};
    struct horonrun_frame frame;
    (void)state;
    assert_true(horonrun_frame_append(&stream, HORONRUN_OUTPUT, "hello", 5));
    for (size_t bytes = 0; bytes < stream.used; bytes++)
        assert_int_equal(horonrun_frame_peek(stream.data, bytes, &frame), HORON_AGAIN);
    assert_int_equal(horonrun_frame_peek(stream.data, stream.used, &frame), HORON_OK);
    assert_int_equal(frame.type, HORONRUN_OUTPUT);
    assert_int_equal(frame.body_bytes, 5);
    assert_memory_equal(frame.body, "hello", 5);
    assert_int_equal(frame.bytes, stream.used);
    horonrun_bytes_deinit(&stream);
}

static void test_frame_oversized_body_is_refused(void **state)
{
    const char head[] = {0, 0, 0, 2, HORONRUN_OUTPUT}; /* 32 MiB */
    struct horonrun_bytes stream = {0};
    struct horonrun_frame frame;
    (void)state;
    assert_int_equal(horonrun_frame_peek(head, sizeof head, &frame), HORON_ERR_PROTO);
    assert_false(horonrun_frame_append(&stream, 1, "", HORONRUN_FRAME_BODY_MAX + 1));
    assert_int_equal(stream.used, 0);
}

static void test_frame_greeting_is_found_behind_chatter(void **state)
{
    static const char text[] = "Welcome!\nhoronrun\n" HORONRUN_GREETING "rest";
    const size_t end = sizeof text - 1 - 4;
    size_t skip = 0;
    (void)state;
    for (size_t bytes = 0; bytes < end; bytes++)
        assert_int_equal(horonrun_frame_skip_greeting(text, bytes, &skip), HORON_AGAIN);
    assert_int_equal(horonrun_frame_skip_greeting(text, end, &skip), HORON_OK);
    assert_int_equal(skip, end);
}

static void test_frame_endless_chatter_is_refused(void **state)
{
    size_t bytes = HORONRUN_GREETING_SKIP_MAX + 1, skip;
    char *text = calloc(bytes, 1);
    (void)state;
    assert_non_null(text);
    assert_int_equal(horonrun_frame_skip_greeting(text, bytes - 1, &skip), HORON_AGAIN);
    assert_int_equal(horonrun_frame_skip_greeting(text, bytes, &skip), HORON_ERR_PROTO);
    free(text);
}

static struct horonrun_work example(char **command, char **environment)
{
    static int hosts[] = {3, 2, 2};
    return (struct horonrun_work){.host_ranks = hosts,
                                  .hosts = 3,
                                  .host = 1,
                                  .directory = (char *)"/some/where",
                                  .command = command,
                                  .environment = environment,
                                  .remote = true,
                                  .interrupt = 14,
                                  .terminate = 6};
}

static void test_work_survives_the_way(void **state)
{
    char *command[] = {(char *)"python", (char *)"", (char *)"a b", NULL};
    char *environment[] = {(char *)"A=1", (char *)"B=", NULL};
    struct horonrun_work work = example(command, environment), got;
    struct horonrun_bytes body = {0};
    (void)state;
    assert_true(horonrun_work_encode(&work, &body));
    assert_int_equal(horonrun_work_decode(&got, body.data, body.used), HORON_OK);
    assert_int_equal(got.first_rank, 3);
    assert_int_equal(got.ranks, 2);
    assert_int_equal(got.size, 7);
    assert_int_equal(got.hosts, 3);
    assert_int_equal(got.host, 1);
    assert_memory_equal(got.host_ranks, work.host_ranks, 3 * sizeof *got.host_ranks);
    assert_true(got.remote);
    assert_int_equal(got.interrupt, 14);
    assert_int_equal(got.terminate, 6);
    assert_string_equal(got.directory, "/some/where");
    assert_string_equal(got.command[1], "");
    assert_string_equal(got.command[2], "a b");
    assert_null(got.command[3]);
    assert_string_equal(got.environment[1], "B=");
    assert_null(got.environment[2]);
    horonrun_work_deinit(&got);
    horonrun_bytes_deinit(&body);
}

static void test_work_cut_or_damaged_is_refused(void **state)
{
    char *command[] = {(char *)"true", NULL};
    char *environment[] = {(char *)"A=1", NULL};
    struct horonrun_work work = example(command, environment), got;
    struct horonrun_bytes body = {0};
    (void)state;
    assert_true(horonrun_work_encode(&work, &body));
    for (size_t bytes = 0; bytes < body.used; bytes++) {
        assert_int_equal(horonrun_work_decode(&got, body.data, bytes), HORON_ERR_PROTO);
        horonrun_work_deinit(&got);
    }
    for (size_t at = 0; at < body.used; at++) { /* any answer, but no crash and no leak */
        char kept = body.data[at];
        body.data[at] = (char)0xff;
        horonrun_work_decode(&got, body.data, body.used);
        horonrun_work_deinit(&got);
        body.data[at] = kept;
    }
    horonrun_bytes_deinit(&body);
}

static void test_work_with_impossible_hosts_is_refused(void **state)
{
    static int many[17];
    static const struct {
        int ranks[3], hosts, host;
    } cases[] = {{{1}, 0, 0},       {{1}, 1, 1},        {{1, 1}, 2, -1}, {{0}, 1, 0},
                 {{1, 0, 1}, 3, 0}, {{1, -1, 1}, 3, 0}, {{65537}, 1, 0}, {{1, INT_MAX}, 2, 0}};
    char *command[] = {(char *)"true", NULL};
    char *none[] = {NULL};
    (void)state;
    for (size_t i = 0; i <= sizeof cases / sizeof cases[0]; i++) {
        struct horonrun_work work = example(command, none), got;
        struct horonrun_bytes body = {0};
        const bool last = i == sizeof cases / sizeof cases[0];
        for (int k = 0; k < 17; k++) /* each may be, but not their sum */
            many[k] = last ? 65536 : k < 3 ? cases[i].ranks[k] : 0;
        work.host_ranks = many;
        work.hosts = last ? 17 : cases[i].hosts;
        work.host = last ? 0 : cases[i].host;
        assert_true(horonrun_work_encode(&work, &body));
        assert_int_equal(horonrun_work_decode(&got, body.data, body.used), HORON_ERR_PROTO);
        horonrun_work_deinit(&got);
        horonrun_bytes_deinit(&body);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frame_cut_at_every_byte_is_again),
        cmocka_unit_test(test_frame_oversized_body_is_refused),
        cmocka_unit_test(test_frame_greeting_is_found_behind_chatter),
        cmocka_unit_test(test_frame_endless_chatter_is_refused),
        cmocka_unit_test(test_work_survives_the_way),
        cmocka_unit_test(test_work_cut_or_damaged_is_refused),
        cmocka_unit_test(test_work_with_impossible_hosts_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
