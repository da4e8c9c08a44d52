/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of events: what is read, what is missed, which time an event has, and how it is said. */
#undef NDEBUG
#include "observe/events.h"

#include "clock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static uint64_t tick(void *arg)
{
    uint64_t *now = arg;
    return ++*now;
}

struct bed {
    uint64_t now;
    struct horon_events *events;
};

static int make(void **state)
{
    static struct bed bed;
    bed = (struct bed){0};
    bed.events = horon_events_create(tick, &bed.now);
    *state = &bed;
    return bed.events ? 0 : -1;
}

static int destroy(void **state)
{
    horon_events_destroy(((struct bed *)*state)->events);
    return 0;
}

static void tell(struct bed *bed, uint64_t value)
{
    horon_events_add(bed->events, HORON_EVENT_ENDED, 0, HORON_ALLREDUCE, 7, value, -6);
}

static void test_events_are_read_in_order_and_whole(void **state)
{
    struct bed *bed = *state;
    struct horon_event_reader reader = {0};
    struct horon_event event;
    uint64_t missed = 0;
    assert_false(horon_events_read(bed->events, &reader, &event, &missed));
    for (uint64_t i = 0; i < 3; i++)
        tell(bed, i);
    for (uint64_t i = 0; i < 3; i++) {
        assert_true(horon_events_read(bed->events, &reader, &event, &missed));
        assert_int_equal(event.value, i);
        assert_int_equal(event.kind, HORON_EVENT_ENDED);
        assert_int_equal(event.verb, HORON_ALLREDUCE);
        assert_int_equal(event.subject, 7);
        assert_int_equal(event.other, -6);
    }
    assert_false(horon_events_read(bed->events, &reader, &event, &missed));
    assert_int_equal(missed, 0);
}

static void test_events_written_over_are_counted_as_missed(void **state)
{
    struct bed *bed = *state;
    struct horon_event_reader slow = {0}, late = {0};
    struct horon_event event;
    const uint64_t total = 3 * HORON_EVENTS_KEPT + 17;
    uint64_t missed = 0, seen = 0, last = 0;
    tell(bed, 0);
    assert_true(horon_events_read(bed->events, &slow, &event, &missed));
    for (uint64_t i = 1; i < total; i++)
        tell(bed, i);
    for (; horon_events_read(bed->events, &slow, &event, &missed); seen++) {
        assert_true(event.value > last);
        last = event.value;
    }
    assert_int_equal(last, total - 1);
    assert_int_equal(1 + seen + missed, total);
    assert_true(missed > 0);
    missed = 0;
    assert_true(horon_events_read(bed->events, &late, &event, &missed));
    assert_int_equal(event.value, missed);
}

static void test_events_of_a_turn_share_a_look_at_the_clock(void **state)
{
    struct bed *bed = *state;
    struct horon_event_reader reader = {0};
    struct horon_event event;
    uint64_t missed = 0;
    const uint64_t times[] = {1, 1, 2, 2};
    tell(bed, 0);
    tell(bed, 1);
    horon_events_turn(bed->events);
    tell(bed, 2);
    tell(bed, 3);
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        assert_true(horon_events_read(bed->events, &reader, &event, &missed));
        assert_int_equal(event.time_ns, times[i]);
    }
    for (uint64_t i = 4; i < 65; i++) /* without a turn one in so many looks */
        tell(bed, i);
    assert_int_equal(bed->now, 3);
}

struct listener {
    struct bed *bed;
    struct horon_event_reader reader;
    uint64_t asked, most_behind;
};

static uint64_t listen_and_tick(void *arg)
{
    struct listener *listener = arg;
    struct horon_event event;
    uint64_t missed = 0, behind = horon_events_behind(listener->bed->events, &listener->reader);
    listener->asked++;
    if (behind > listener->most_behind)
        listener->most_behind = behind;
    while (horon_events_read(listener->bed->events, &listener->reader, &event, &missed)) {}
    assert_int_equal(missed, 0);
    return tick(&listener->bed->now);
}

/* Also where no turn ends, and far more happens than the ring keeps. */
static void test_events_clock_that_listens_misses_nothing(void **state)
{
    struct bed *bed = *state;
    tell(bed, 0);
    struct listener listener = {.bed = bed, .reader = horon_events_from_now(bed->events)};
    assert_int_equal(horon_events_behind(bed->events, &listener.reader), 0);
    horon_events_set_clock(bed->events, listen_and_tick, &listener);
    for (uint64_t i = 0; i < 3 * HORON_EVENTS_KEPT; i++)
        tell(bed, i);
    assert_int_equal(listener.asked, 3 * HORON_EVENTS_KEPT / HORON_EVENTS_A_LOOK);
    assert_int_equal(listener.most_behind, HORON_EVENTS_A_LOOK);
    horon_events_set_clock(bed->events, NULL, NULL);
    for (uint64_t i = 0; i < HORON_EVENTS_KEPT; i++)
        tell(bed, i);
    assert_int_equal(listener.asked, 3 * HORON_EVENTS_KEPT / HORON_EVENTS_A_LOOK);
}

static void test_events_last_of_a_kind_is_found(void **state)
{
    struct bed *bed = *state;
    struct horon_event event;
    assert_false(horon_events_last(bed->events, HORON_EVENT_ENDED, 0, &event));
    tell(bed, 1);
    tell(bed, 2);
    horon_events_add(bed->events, HORON_EVENT_ENDED, 1, HORON_BARRIER, 0, 3, 0);
    horon_events_add(bed->events, HORON_EVENT_ENDED, 1 << 16, HORON_BARRIER, 0, 5, 0);
    horon_events_add(bed->events, HORON_EVENT_BEGUN, 0, HORON_BARRIER, 0, 4, 0);
    assert_true(horon_events_last(bed->events, HORON_EVENT_ENDED, 0, &event));
    assert_int_equal(event.value, 2);
    assert_true(horon_events_last(bed->events, HORON_EVENT_ENDED, 1, &event));
    assert_int_equal(event.value, 3);
    assert_true(horon_events_last(bed->events, HORON_EVENT_ENDED, 1 << 16, &event));
    assert_int_equal(event.value, 5);
    for (uint64_t i = 0; i < HORON_EVENTS_KEPT; i++)
        tell(bed, i);
    assert_false(horon_events_last(bed->events, HORON_EVENT_BEGUN, 0, &event));
}

static void test_events_say_what_happened(void **state)
{
    (void)state;
    char text[128];
    struct horon_event event = {.kind = HORON_EVENT_ENDED, .subject = 0xab, .value = 16};
    horon_event_describe(&event, "allreduce 'x'", text, sizeof text);
    assert_string_equal(text, "ended allreduce 'x': elements 16, status 0");
    event = (struct horon_event){.kind = HORON_EVENT_DEPARTED, .other = 3};
    horon_event_describe(&event, "", text, sizeof text);
    assert_string_equal(text, "departure of: rank 3");
    event = (struct horon_event){.kind = HORON_EVENT_WITHDRAWN, .subject = 1};
    horon_event_describe(&event, "barrier", text, sizeof text);
    assert_string_equal(text, "asked to withdraw barrier");
    horon_event_describe(&event, "barrier", text, 16); /* cut to fit */
    assert_string_equal(text, "asked to withdr");
}

#define STORM 200000u

static void *storm(void *arg)
{
    for (uint64_t i = 0; i < STORM; i++)
        tell(arg, i);
    return NULL;
}

/* Each event says its own number in three places: a torn one would contradict itself. */
static void test_events_read_by_another_thread_are_never_torn(void **state)
{
    struct bed *bed = *state;
    struct horon_event_reader reader = {0};
    struct horon_event event = {0};
    uint64_t missed = 0, seen = 0;
    pthread_t writer;
    assert_int_equal(pthread_create(&writer, NULL, storm, bed), 0);
    while (event.value != STORM - 1) {
        if (!horon_events_read(bed->events, &reader, &event, &missed))
            continue;
        assert_int_equal(event.value, seen + missed);
        assert_int_equal(event.subject, 7);
        assert_int_equal(event.other, -6);
        seen++;
    }
    pthread_join(writer, NULL);
    assert_int_equal(seen + missed, STORM);
}

static uint64_t read_clock(void *arg)
{
    (void)arg;
    return horon_clock_ns();
}

/* Prints what an event costs; benchmarks/figures reads it, and has the limit. */
static void test_events_cost_is_printed(void **state)
{
    (void)state;
    struct bed bed = {.events = horon_events_create(read_clock, NULL)};
    const uint64_t count = 2000000;
    assert_non_null(bed.events);
    const uint64_t before = horon_clock_ns();
    for (uint64_t i = 0; i < count; i++)
        tell(&bed, i);
    print_message("%.1f ns an event\n", (double)(horon_clock_ns() - before) / (double)count);
    horon_events_destroy(bed.events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_events_are_read_in_order_and_whole, make, destroy),
        cmocka_unit_test_setup_teardown(test_events_written_over_are_counted_as_missed, make,
                                        destroy),
        cmocka_unit_test_setup_teardown(test_events_of_a_turn_share_a_look_at_the_clock, make,
                                        destroy),
        cmocka_unit_test_setup_teardown(test_events_clock_that_listens_misses_nothing, make,
                                        destroy),
        cmocka_unit_test_setup_teardown(test_events_last_of_a_kind_is_found, make, destroy),
        cmocka_unit_test(test_events_say_what_happened),
        cmocka_unit_test_setup_teardown(test_events_read_by_another_thread_are_never_torn, make,
                                        destroy),
        cmocka_unit_test(test_events_cost_is_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
