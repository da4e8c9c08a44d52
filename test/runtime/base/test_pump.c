/* SPDX-License-Identifier: Apache-2.0 */
/* Timers in order, watches that go while events wait, one descriptor that tells all. */
#undef NDEBUG
#include "pump.h"

#include "clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct note {
    struct horon_pump *pump;
    int order[8], *count, name;
    struct horon_timer timer;
    struct horon_watch watch;
    struct note *other;
};

static void note_due(void *arg)
{
    struct note *note = arg;
    note->other->order[(*note->count)++] = note->name;
}

static void test_pump_timers_run_in_order_once(void **state)
{
    struct horon_pump pump;
    struct note notes[5] = {0}, list = {0};
    struct horon_error error = {0};
    static const int delays_ms[] = {3, 1, 4, 0, 2};
    const uint64_t now = horon_clock_ns();
    int count = 0;
    (void)state;
    assert_int_equal(horon_pump_init(&pump, &error), HORON_OK);
    for (int i = 0; i < 5; i++) {
        notes[i] = (struct note){.name = delays_ms[i], .count = &count, .other = &list};
        notes[i].timer = (struct horon_timer){.due = note_due, .arg = &notes[i]};
        horon_pump_timer(&pump, &notes[i].timer, now + (uint64_t)delays_ms[i] * 1000000u);
    }
    horon_pump_timer(&pump, &notes[2].timer, now + 500000u); /* moved: after 0, before 1 */
    horon_pump_untimer(&pump, &notes[4].timer);
    horon_pump_untimer(&pump, &notes[4].timer);
    while (count < 4)
        horon_pump_turn(&pump, -1);
    assert_int_equal(list.order[0], 0);
    assert_int_equal(list.order[1], 4);
    assert_int_equal(list.order[2], 1);
    assert_int_equal(list.order[3], 3);
    assert_int_equal(horon_pump_turn(&pump, 0), HORON_AGAIN);
    horon_pump_deinit(&pump);
}

/* The watch that comes first removes the other, whose event waits already: that is not called. */
static void remove_other(void *arg, uint32_t events)
{
    struct note *note = arg;
    assert_true(events & EPOLLIN);
    (*note->count)++;
    horon_pump_unwatch(note->pump, &note->other->watch);
    horon_pump_unwatch(note->pump, &note->watch);
}

static void test_pump_removed_watch_is_not_called(void **state)
{
    struct horon_pump pump;
    struct note notes[2] = {0};
    struct horon_error error = {0};
    int count = 0;
    (void)state;
    assert_int_equal(horon_pump_init(&pump, &error), HORON_OK);
    for (int i = 0; i < 2; i++) {
        notes[i] = (struct note){.pump = &pump, .count = &count, .other = &notes[1 - i]};
        notes[i].watch = (struct horon_watch){
            .ready = remove_other, .arg = &notes[i], .fd = eventfd(1, EFD_CLOEXEC)};
        assert_int_equal(horon_pump_watch(&pump, &notes[i].watch, EPOLLIN, &error), HORON_OK);
    }
    assert_int_equal(horon_pump_turn(&pump, 0), HORON_OK);
    assert_int_equal(horon_pump_turn(&pump, 0), HORON_AGAIN);
    assert_int_equal(count, 1);
    close(notes[0].watch.fd);
    close(notes[1].watch.fd);
    horon_pump_deinit(&pump);
}

static void test_pump_descriptor_polls_readable_for_timers_and_watches(void **state)
{
    struct horon_pump pump;
    struct note note = {0}, list = {0};
    struct horon_error error = {0};
    int count = 0;
    (void)state;
    assert_int_equal(horon_pump_init(&pump, &error), HORON_OK);
    struct pollfd outer = {.fd = pump.epoll_fd, .events = POLLIN};
    assert_int_equal(poll(&outer, 1, 0), 0);
    note = (struct note){.name = 1, .count = &count, .other = &list};
    note.timer = (struct horon_timer){.due = note_due, .arg = &note};
    horon_pump_timer(&pump, &note.timer, horon_clock_ns() + 1000000u);
    assert_int_equal(poll(&outer, 1, 5000), 1);
    horon_pump_turn(&pump, 0);
    assert_int_equal(count, 1);
    assert_int_equal(poll(&outer, 1, 0), 0);
    horon_pump_deinit(&pump);
}

static void test_pump_bad_descriptor_is_refused(void **state)
{
    struct horon_pump pump;
    struct horon_watch watch = {.fd = -1};
    struct horon_error error = {0};
    (void)state;
    assert_int_equal(horon_pump_init(&pump, &error), HORON_OK);
    assert_int_equal(horon_pump_watch(&pump, &watch, EPOLLIN, &error), HORON_ERR_SYSTEM);
    assert_false(watch.active);
    horon_pump_unwatch(&pump, &watch);
    horon_pump_deinit(&pump);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pump_timers_run_in_order_once),
        cmocka_unit_test(test_pump_removed_watch_is_not_called),
        cmocka_unit_test(test_pump_descriptor_polls_readable_for_timers_and_watches),
        cmocka_unit_test(test_pump_bad_descriptor_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
