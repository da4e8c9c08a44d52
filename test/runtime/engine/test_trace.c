/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine tells of an operation, and the two that read it: the trace of the log, and the
 * warning about a stall. */
#undef NDEBUG
#include "observe/events.h"
#include "world/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SECOND 1000000000u

struct heard {
    char all[8192];
    size_t used;
};

static void hear(void *arg, horon_log_level_t level, const char *text)
{
    struct heard *heard = arg;
    (void)level;
    const int more =
        snprintf(heard->all + heard->used, sizeof heard->all - heard->used, "%s\n", text);
    assert_true(more > 0 && (size_t)more < sizeof heard->all - heard->used);
    heard->used += (size_t)more;
}

static struct world *make(struct heard *heard, horon_log_level_t level)
{
    struct world *world = world_create((const int[]){2}, 1, NULL, 5);
    *heard = (struct heard){0};
    world->log = (struct horon_log){.fn = hear, .arg = heard, .level = level, .rank = -1};
    world->now_ns = SECOND;
    return world;
}

static struct horon_request *submit(struct world *world, int rank, const char *name)
{
    static float data[2][3];
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    desc.name = name;
    desc.dtype = HORON_FLOAT32;
    desc.src = desc.dst = data[rank];
    desc.count = 3;
    return world_submit(world, rank, &desc);
}

static void run(struct world *world, const char *name)
{
    struct horon_request *both[] = {submit(world, 0, name), submit(world, 1, name)};
    assert_true(world_turn_until(world, both, 2));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(both[i]->status, HORON_OK);
        world_release(both[i]);
    }
}

static void test_engine_tells_each_step_of_an_operation_once(void **state)
{
    (void)state;
    struct heard heard;
    struct world *world = make(&heard, HORON_LOG_WARN);
    int seen[HORON_EVENT_KINDS] = {0};
    struct horon_event_reader reader = {0};
    struct horon_event event;
    uint64_t missed = 0, subject = 0;
    run(world, "x");
    const struct horon_events *events = horon_engine_events(world->ranks[1].engine);
    while (horon_events_read(events, &reader, &event, &missed)) {
        seen[event.kind]++;
        if (event.kind == HORON_EVENT_SENT || event.kind == HORON_EVENT_HEARD)
            continue;
        assert_int_equal(event.verb, HORON_ALLREDUCE);
        assert_in_range(event.time_ns, SECOND, world->now_ns);
        assert_true(event.subject != 0);
        assert_true(subject == 0 || event.subject == subject);
        subject = event.subject;
    }
    assert_int_equal(missed, 0);
    assert_int_equal(seen[HORON_EVENT_TAKEN], 1);
    assert_int_equal(seen[HORON_EVENT_DECIDED], 1);
    assert_int_equal(seen[HORON_EVENT_BEGUN], 1);
    assert_int_equal(seen[HORON_EVENT_ENDED], 1);
    assert_int_equal(seen[HORON_EVENT_SENT], 1);
    assert_int_equal(seen[HORON_EVENT_HEARD], 1);
    world_destroy(world);
}

/* It does its part of what it never submitted; readers would wait for the end of what they hear. */
static void test_engine_that_has_joined_tells_nothing_of_what_others_do(void **state)
{
    (void)state;
    struct heard heard;
    struct world *world = make(&heard, HORON_LOG_TRACE);
    int seen[HORON_EVENT_KINDS] = {0};
    struct horon_event_reader reader = {0};
    struct horon_event event;
    uint64_t missed = 0;
    struct horon_request *joins[] = {NULL, NULL};
    joins[1] = world_join(world, 1, horon_engine_job(world->ranks[1].engine));
    for (int i = 0; i < 3; i++) {
        struct horon_request *sum = submit(world, 0, "x");
        assert_true(world_turn_until(world, &sum, 1));
        assert_int_equal(sum->status, HORON_OK);
        world_release(sum);
    }
    joins[0] = world_join(world, 0, horon_engine_job(world->ranks[0].engine));
    assert_true(world_turn_until(world, joins, 2));
    const struct horon_events *events = horon_engine_events(world->ranks[1].engine);
    while (horon_events_read(events, &reader, &event, &missed)) {
        seen[event.kind]++;
        if (event.kind == HORON_EVENT_TAKEN || event.kind == HORON_EVENT_ENDED)
            assert_true(event.subject == HORON_EVENT_OF_JOIN);
    }
    horon_engine_progress(world->ranks[1].engine);
    assert_non_null(strstr(heard.all, ": ended join: elements 0, status 0"));
    assert_null(strstr(heard.all, "barrier"));
    assert_int_equal(seen[HORON_EVENT_DECIDED], 0);
    assert_int_equal(seen[HORON_EVENT_BEGUN], 0);
    assert_int_equal(seen[HORON_EVENT_ENDED], 1); /* its join */
    for (int rank = 0; rank < 2; rank++)
        world_release(joins[rank]);
    world_destroy(world);
}

static void test_trace_has_a_line_for_each_event(void **state)
{
    (void)state;
    struct heard heard;
    struct world *world = make(&heard, HORON_LOG_TRACE);
    static const char *const lines[] = {
        ": submitted allreduce 'x': elements 3",
        ": sent negotiation: bytes ",
        ": heard negotiation: bytes ",
        ": decided allreduce 'x': batch 0, tensors 1",
        ": begun allreduce 'x': elements 3, lane 1",
        ": ended allreduce 'x': elements 3, status 0",
        " (at 1.000",
    };
    run(world, "x");
    for (int rank = 0; rank < 2; rank++)
        horon_engine_progress(world->ranks[rank].engine);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        assert_non_null(strstr(heard.all, lines[i]));
    world_destroy(world);
}

static void test_stall_warning_says_when_something_last_ended(void **state)
{
    (void)state;
    struct heard heard;
    struct world *world = make(&heard, HORON_LOG_WARN);
    run(world, "before");
    struct horon_request *alone = submit(world, 0, "alone");
    for (int second = 0; second < 9; second++) {
        horon_engine_progress(world->ranks[0].engine);
        horon_engine_watch_stalls(world->ranks[0].engine, (uint64_t)4 * SECOND, 0);
        horon_engine_progress(world->ranks[1].engine);
        world->now_ns += SECOND;
    }
    assert_non_null(strstr(heard.all, "allreduce 'alone' has waited for 4 s: "));
    assert_non_null(strstr(heard.all, "; the last operation here ended 4 s ago"));
    struct horon_request *other = submit(world, 1, "alone");
    assert_true(world_turn_until(world, (struct horon_request *[]){alone, other}, 2));
    world_release(alone);
    world_release(other);
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_tells_each_step_of_an_operation_once),
        cmocka_unit_test(test_engine_that_has_joined_tells_nothing_of_what_others_do),
        cmocka_unit_test(test_trace_has_a_line_for_each_event),
        cmocka_unit_test(test_stall_warning_says_when_something_last_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
