/* SPDX-License-Identifier: Apache-2.0 */
/* The warning about an operation that has waited long: when, how often, and which ranks it names.
 * The clock is the world's. */
#undef NDEBUG
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SECOND 1000000000u
#define LIMIT ((uint64_t)8 * SECOND)

struct heard {
    int lines;
    char text[HORON_ERROR_TEXT_BYTES + 256]; /* the last one */
};

static void hear(void *arg, horon_log_level_t level, const char *text)
{
    struct heard *heard = arg;
    assert_int_equal(level, HORON_LOG_WARN);
    heard->lines++;
    snprintf(heard->text, sizeof heard->text, "%s", text);
}

static struct world *make_with(const int *hosts, int count, const char *const *settings,
                               struct heard *heard)
{
    struct world *world = world_create(hosts, count, settings, 5);
    *heard = (struct heard){0};
    world->log = (struct horon_log){.fn = hear, .arg = heard, .level = HORON_LOG_WARN, .rank = -1};
    world->now_ns = SECOND; /* 0 is "not stamped yet" */
    return world;
}

static struct world *make(const int *hosts, int count, struct heard *heard)
{
    return make_with(hosts, count, NULL, heard);
}

static struct horon_request *submit(struct world *world, int rank, const char *name, float *data)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.flags = name ? 0 : HORON_IN_ORDER;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = data;
    desc.count = 1;
    return world_submit(world, rank, &desc);
}

static void turn(struct world *world)
{
    for (int i = 0; i < 40 * world->size; i++)
        horon_engine_progress(world->ranks[i % world->size].engine);
}

/* Lets @p seconds pass on @p rank, looking four times in each limit as the progress thread does. */
static void pass(struct world *world, int rank, unsigned seconds)
{
    for (unsigned passed = 0; passed < seconds; passed += 2) {
        horon_engine_watch_stalls(world->ranks[rank].engine, LIMIT, 0);
        turn(world);
        world->now_ns += (uint64_t)2 * SECOND;
    }
    horon_engine_watch_stalls(world->ranks[rank].engine, LIMIT, 0);
}

static void end(struct world *world, struct horon_request **requests, size_t count)
{
    assert_true(world_turn_until(world, requests, count));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(requests[i]->status, HORON_OK);
        world_release(requests[i]);
    }
    world_destroy(world);
}

/* The root hears of all; another rank of those on the way to the first rank that waits itself. */
static void test_stalls_warning_names_the_rank_that_lacks_the_tensor(void **state)
{
    static const int hosts[] = {2, 3, 1};
    static const char *const lacking[] = {"rank 1 (host-0)", "rank 3 (host-1)", "rank 5 (host-2)"};
    static const char *const had[] = {"rank 0", "rank 2", "rank 4"};
    struct heard heard;
    float x[6] = {0};
    struct horon_request *requests[6];
    (void)state;
    for (int warner = 0; warner < 6; warner += 2) { /* root, the first of a host, its member */
        struct world *world = make(hosts, 3, &heard);
        for (int rank = 0; rank < 6; rank += 2)
            requests[rank] = submit(world, rank, "conv1.weight", &x[rank]);
        turn(world);
        pass(world, warner, 12);
        assert_int_equal(heard.lines, 1); /* once, however long it goes on */
        assert_non_null(strstr(heard.text, "allreduce 'conv1.weight' has waited for 8 s"));
        const char *waiting = strstr(heard.text, "waiting for");
        assert_non_null(waiting);
        int named = 0;
        for (int i = 0; i < 3; i++) {
            named += strstr(waiting, lacking[i]) != NULL;
            assert_null(strstr(waiting, had[i]));
        }
        if (named < (warner == 0 ? 3 : 1))
            fail_msg("rank %d heard '%s'", warner, heard.text);
        for (int rank = 1; rank < 6; rank += 2)
            requests[rank] = submit(world, rank, "conv1.weight", &x[rank]);
        end(world, requests, 6);
    }
}

/* Two verbs of the Python interface make two names of one: each side hears what the other has. */
static void test_stalls_other_name_of_the_rank_that_lacks_the_tensor_is_told(void **state)
{
    static const char *const names[] = {"broadcast.w", "allreduce.w"};
    static const int hosts[] = {2};
    struct heard heard;
    float x[2] = {0};
    struct horon_request *requests[2];
    (void)state;
    struct world *world = make(hosts, 1, &heard);
    for (int rank = 0; rank < 2; rank++)
        requests[rank] = submit(world, rank, names[rank], &x[rank]);
    turn(world);
    for (int rank = 0; rank < 2; rank++) {
        char expected[128];
        snprintf(expected, sizeof expected,
                 "'%s': waiting for rank %d (host-0); rank %d waits for '%s'", names[rank],
                 1 - rank, 1 - rank, names[1 - rank]);
        pass(world, rank, 12);
        if (!strstr(heard.text, expected))
            fail_msg("rank %d heard '%s'", rank, heard.text);
    }
    horon_engine_leave(world->ranks[0].engine);
    horon_engine_leave(world->ranks[1].engine);
    for (int rank = 0; rank < 2; rank++)
        world_release(requests[rank]);
    world_destroy(world);
}

/* Each has a tensor in flight that the other one will never submit, and joins behind it: neither
 * can, and both are told of the tensor and of the rank it waits for. */
static void test_stalls_join_names_what_it_waits_for(void **state)
{
    static const char *const names[] = {"only.here", "only.there"};
    static const int hosts[] = {1, 1};
    struct heard heard;
    float x[2] = {0};
    struct horon_request *requests[2], *joins[2];
    (void)state;
    struct world *world = make(hosts, 2, &heard);
    for (int rank = 0; rank < 2; rank++) {
        requests[rank] = submit(world, rank, names[rank], &x[rank]);
        joins[rank] = world_join(world, rank, horon_engine_job(world->ranks[rank].engine));
    }
    turn(world);
    for (int rank = 0; rank < 2; rank++) {
        char expected[256];
        snprintf(expected, sizeof expected,
                 "join has waited for 8 s: behind what was submitted here before, first of all "
                 "allreduce '%s'; that: tensor '%s': waiting for rank %d (host-%d); rank %d waits "
                 "for '%s'",
                 names[rank], names[rank], 1 - rank, 1 - rank, 1 - rank, names[1 - rank]);
        pass(world, rank, 12);
        if (!strstr(heard.text, expected))
            fail_msg("rank %d heard '%s', not '%s'", rank, heard.text, expected);
    }
    assert_int_equal(horon_engine_awaited(world->ranks[0].engine, joins[0]), 1);
    for (int rank = 0; rank < 2; rank++)
        horon_engine_leave(world->ranks[rank].engine);
    for (int rank = 0; rank < 2; rank++) {
        world_release(requests[rank]);
        world_release(joins[rank]);
    }
    world_destroy(world);
}

/* The second one has no number yet, and so the coordinator cannot say what it waits for. */
static void test_stalls_barrier_behind_another_names_what_that_waits_for(void **state)
{
    static const int hosts[] = {2};
    struct heard heard;
    char text[HORON_ERROR_TEXT_BYTES];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    struct horon_request *requests[4];
    (void)state;
    struct world *world = make(hosts, 1, &heard);
    desc.verb = HORON_BARRIER;
    for (int i = 0; i < 2; i++)
        requests[i] = world_submit(world, 0, &desc);
    turn(world);
    horon_engine_explain(world->ranks[0].engine, requests[1], text, sizeof text);
    assert_string_equal(text, "behind another barrier; that one: tensor 'horon.barrier.0': waiting "
                              "for rank 1 (host-0)");
    for (int i = 2; i < 4; i++)
        requests[i] = world_submit(world, 1, &desc);
    end(world, requests, 4);
}

/* A look that comes late asks first: what it said at once would name nobody. Nor does it say so
 * because it may have to end the job soon, for which it asks, too. */
static void test_stalls_late_look_asks_before_it_warns(void **state)
{
    static const int hosts[] = {3};
    struct heard heard;
    float x[3] = {0};
    struct horon_request *requests[3];
    (void)state;
    for (int round = 0; round < 2; round++) {
        const uint64_t end_ns = round ? LIMIT / 80 : 0;
        struct world *world = make(hosts, 1, &heard);
        struct horon_engine *engine = world->ranks[2].engine;
        for (int rank = 0; rank < 3; rank += 2)
            requests[rank] = submit(world, rank, "x", &x[rank]);
        turn(world);
        horon_engine_watch_stalls(engine, LIMIT / 100, end_ns); /* the clock begins */
        world->now_ns += (uint64_t)90 * 1000000;
        horon_engine_watch_stalls(engine, LIMIT / 100, end_ns);
        assert_int_equal(heard.lines, 0);
        turn(world);
        horon_engine_watch_stalls(engine, LIMIT / 100, end_ns);
        assert_int_equal(heard.lines, 1);
        if (!strstr(heard.text, "has waited for 90 ms: tensor 'x': waiting for rank 1 (host-0)"))
            fail_msg("%s", heard.text);
        requests[1] = submit(world, 1, "x", &x[1]);
        end(world, requests, 3);
    }
}

/* It goes on, or does not: warnings come again, more and more seldom, and the end is told, too. */
static void test_stalls_warnings_come_again_until_it_ends(void **state)
{
    static const int hosts[] = {2};
    static const unsigned waits[] = {8, 16, 32, 64, 128, 256, 384, 512}; /* x 16 limits at most */
    struct heard heard;
    float x[2] = {0};
    struct horon_request *requests[2];
    (void)state;
    struct world *world = make(hosts, 1, &heard);
    requests[0] = submit(world, 0, "x", &x[0]);
    turn(world);
    unsigned passed = 0;
    for (int i = 0; i < 8; i++) {
        char expected[64];
        pass(world, 0, waits[i] - passed - 2);
        assert_int_equal(heard.lines, i);
        pass(world, 0, 2);
        assert_int_equal(heard.lines, i + 1);
        snprintf(expected, sizeof expected, "has waited for %u s: ", waits[i]);
        if (!strstr(heard.text, expected) || !strstr(heard.text, "rank 1 (host-0)"))
            fail_msg("'%s', not '%s'", heard.text, expected);
        passed = waits[i];
    }
    requests[1] = submit(world, 1, "x", &x[1]);
    end(world, requests, 2);
    assert_int_equal(heard.lines, 9);
    if (!strstr(heard.text, "allreduce 'x' waits no more: it has ended after 512 s"))
        fail_msg("%s", heard.text);
}

/* A late rank holds up a whole model: a few are told, then how many more. */
static void test_stalls_of_many_are_a_few_lines(void **state)
{
    enum { N = 161 };
    static const int hosts[] = {2};
    struct heard heard;
    float x[N] = {0};
    struct horon_request *requests[N];
    (void)state;
    struct world *world = make(hosts, 1, &heard);
    for (int i = 0; i < N; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        requests[i] = submit(world, 0, name, &x[i]);
    }
    turn(world);
    pass(world, 0, 14);
    assert_int_equal(heard.lines, 4);
    pass(world, 0, 14);
    assert_int_equal(heard.lines, 8);
    assert_non_null(strstr(heard.text, "158 more operations have waited that long"));
    horon_engine_leave(world->ranks[0].engine);
    for (int i = 0; i < N; i++)
        world_release(requests[i]);
    world_destroy(world);
}

static void test_stalls_before_the_limit_nothing_is_said(void **state)
{
    static const int hosts[] = {2};
    struct heard heard;
    float x[2] = {0};
    struct horon_request *requests[2];
    (void)state;
    struct world *world = make(hosts, 1, &heard);
    requests[0] = submit(world, 0, "x", &x[0]);
    turn(world);
    pass(world, 0, 6);
    assert_int_equal(heard.lines, 0);
    pass(world, 0, 2);
    assert_int_equal(heard.lines, 1);
    requests[1] = submit(world, 1, "x", &x[1]);
    end(world, requests, 2);
}

/* Each of several is told of, and one that ended meanwhile is not. */
static void test_stalls_each_pending_one_is_told_of_once(void **state)
{
    static const int hosts[] = {1, 1};
    struct heard heard;
    float x[2][3] = {{0}};
    struct horon_request *requests[2][3];
    static const char *const names[] = {"a", "b", NULL};
    (void)state;
    struct world *world = make(hosts, 2, &heard);
    for (int i = 0; i < 3; i++)
        requests[0][i] = submit(world, 0, names[i], &x[0][i]);
    turn(world);
    pass(world, 0, 4);
    requests[1][0] = submit(world, 1, "a", &x[1][0]);
    turn(world);
    pass(world, 0, 12);
    assert_int_equal(heard.lines, 4); /* b, and the one in order, after 8 and 16 s */
    for (int i = 1; i < 3; i++)
        requests[1][i] = submit(world, 1, names[i], &x[1][i]);
    for (int i = 0; i < 3; i++)
        assert_true(world_turn_until(world, requests[1], 3));
    for (int i = 0; i < 3; i++)
        world_release(requests[1][i]);
    end(world, requests[0], 3);
}

static void test_stalls_one_in_order_is_told_of_by_what_it_is(void **state)
{
    static const int hosts[] = {2};
    struct heard heard;
    float x[2] = {0};
    struct horon_request *requests[2];
    (void)state;
    struct world *world = make(hosts, 1, &heard);
    requests[1] = submit(world, 1, NULL, &x[1]);
    turn(world);
    pass(world, 1, 10);
    assert_int_equal(heard.lines, 1);
    assert_non_null(strstr(heard.text, "allreduce of 1 float32 (in order) has waited for 8 s: "
                                       "begun; waiting for rank 0 (host-0); the ranks of this "
                                       "host meet"));
    requests[0] = submit(world, 0, NULL, &x[0]);
    end(world, requests, 2);
}

/* The time of a prepared operation begins anew with each start. */
static void test_stalls_time_begins_with_the_start(void **state)
{
    static const int hosts[] = {2};
    struct heard heard;
    float x[2] = {0};
    (void)state;
    struct world *world = make(hosts, 1, &heard);
    for (int round = 0; round < 3; round++) {
        struct horon_request *requests[2] = {submit(world, 0, "x", &x[0]), NULL};
        turn(world);
        pass(world, 0, 6);
        requests[1] = submit(world, 1, "x", &x[1]);
        assert_true(world_turn_until(world, requests, 2));
        world_release(requests[0]);
        world_release(requests[1]);
    }
    assert_int_equal(heard.lines, 0); /* 18 s, but of three */
    world_destroy(world);
}

static void expect_end(struct horon_request *request, const char *text)
{
    assert_false(request->linked);
    assert_int_equal(request->status, HORON_ERR_TIMEOUT);
    if (!strstr(request->error_text, text))
        fail_msg("'%s' lacks '%s'", request->error_text, text);
    assert_int_equal(request->blame.cause, HORON_CAUSE_TIME_LIMIT);
    assert_int_equal(request->blame.rank, 4);
}

/* On a rank that is not the root, which has to ask. A join and what all ranks have begun may take
 * as long as they like. */
static void test_stalls_job_ends_when_ranks_lack_one_for_too_long(void **state)
{
    static const int hosts[] = {2, 3};
    struct heard heard;
    float x[5] = {0}, y[5] = {0};
    struct horon_request *began[5], *lacked[5];
    (void)state;
    struct world *world = make(hosts, 2, &heard);
    struct horon_engine *engine = world->ranks[4].engine;
    for (int rank = 0; rank < 5; rank++)
        began[rank] = rank == 1 ? NULL : submit(world, rank, NULL, &x[rank]);
    turn(world);
    for (int i = 0; i < 8; i++) {
        horon_engine_watch_stalls(engine, 0, LIMIT);
        turn(world);
        world->now_ns += LIMIT / 4;
    }
    assert_true(began[4]->linked); /* it has not ended */
    for (int rank = 0; rank < 5; rank++)
        lacked[rank] = rank == 1 || rank == 2 ? NULL : submit(world, rank, "w", &y[rank]);
    turn(world);
    for (int i = 0; i < 4; i++) {
        horon_engine_watch_stalls(engine, 0, LIMIT);
        turn(world);
        assert_true(lacked[4]->linked);
        world->now_ns += LIMIT / 4;
    }
    horon_engine_watch_stalls(engine, 0, LIMIT);
    turn(world);
    for (int rank = 0; rank < 5; rank++) {
        if (lacked[rank])
            expect_end(lacked[rank], "rank 4 (host-1) ends the job, as HORON_STALL_SHUTDOWN_TIME "
                                     "says: allreduce 'w' has waited for 8 s: tensor 'w': waiting "
                                     "for rank 2 (host-1)");
        if (began[rank])
            expect_end(began[rank], "allreduce 'w' has waited");
    }
    assert_int_equal(lacked[4]->blame.other_rank, 2);
    assert_int_equal(heard.lines, 0);
    for (int rank = 0; rank < 5; rank++) {
        world_release(began[rank]);
        world_release(lacked[rank]);
    }
    world_destroy(world);
}

#define ALL                                                                                        \
    60 /* of a rank, in two waves: the root decides no second one before most of the first         \
        * have ended */

static void submit_wave(struct world *world, struct horon_request *requests[2][ALL], int first,
                        int end, float *x)
{
    for (int rank = 0; rank < 2; rank++)
        for (int i = first; i < end; i++) {
            char name[8];
            snprintf(name, sizeof name, "%d", i);
            requests[rank][i] = submit(world, rank, name, &x[rank * ALL + i]);
        }
    for (int turns = 0; turns < 6; turns++)
        horon_engine_progress(world->ranks[1 - turns % 2].engine);
}

/* All ranks have submitted all. The job is slow, or waits for a rank that was stopped since. */
static void test_stalls_job_goes_on_while_no_rank_lacks_anything(void **state)
{
    static const int hosts[] = {1, 1};
    static const char *const settings[] = {"FUSION_BYTES=0", NULL};
    struct heard heard;
    (void)state;
    for (int turn_of = 0; turn_of < 4; turn_of++) {
        const int watcher = turn_of % 2;
        const bool stopped = turn_of / 2;
        struct horon_request *requests[2][ALL];
        float x[2 * ALL] = {0};
        struct world *world = make_with(hosts, 2, settings, &heard);
        submit_wave(world, requests, 0, ALL / 2, x);
        submit_wave(world, requests, ALL / 2, ALL, x);
        for (int look = 0; look < 12; look++) {
            if (!stopped)
                horon_engine_progress(world->ranks[1 - watcher].engine);
            horon_engine_progress(world->ranks[watcher].engine);
            horon_engine_watch_stalls(world->ranks[watcher].engine, 0, LIMIT);
            world->now_ns += LIMIT / 4;
            assert_false(requests[watcher][ALL - 1]->begun);
            assert_true(requests[watcher][ALL - 1]->linked);
        }
        end(world, requests[0], 2 * ALL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stalls_warning_names_the_rank_that_lacks_the_tensor),
        cmocka_unit_test(test_stalls_other_name_of_the_rank_that_lacks_the_tensor_is_told),
        cmocka_unit_test(test_stalls_join_names_what_it_waits_for),
        cmocka_unit_test(test_stalls_barrier_behind_another_names_what_that_waits_for),
        cmocka_unit_test(test_stalls_late_look_asks_before_it_warns),
        cmocka_unit_test(test_stalls_of_many_are_a_few_lines),
        cmocka_unit_test(test_stalls_warnings_come_again_until_it_ends),
        cmocka_unit_test(test_stalls_before_the_limit_nothing_is_said),
        cmocka_unit_test(test_stalls_each_pending_one_is_told_of_once),
        cmocka_unit_test(test_stalls_one_in_order_is_told_of_by_what_it_is),
        cmocka_unit_test(test_stalls_time_begins_with_the_start),
        cmocka_unit_test(test_stalls_job_ends_when_ranks_lack_one_for_too_long),
        cmocka_unit_test(test_stalls_job_goes_on_while_no_rank_lacks_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
