/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One writer, any number of readers, no lock. The writer stores the words of an event, then the
 * count. A reader copies the words, then looks at the count again: if the writer has come round to
 * this place meanwhile, the copy is dropped and counted as missed.
 */
#include "observe/events.h"

#include "alloc.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *value, *other;
} kinds[HORON_EVENT_KINDS] = {
#define KIND(kind, name, value, other) [HORON_EVENT_##kind] = {name, value, other},
    HORON_EVENT_MAP(KIND)
#undef KIND
};

struct horon_events *horon_events_create(uint64_t (*clock)(void *arg), void *clock_arg)
{
    assert(clock);
    struct horon_events *events = horon_zalloc(1, sizeof *events);
    if (!events)
        return NULL;
    events->clock = events->own_clock = clock;
    events->clock_arg = events->own_clock_arg = clock_arg;
    return events;
}

void horon_events_destroy(struct horon_events *events)
{
    horon_free(events);
}

void horon_events_set_clock(struct horon_events *events, uint64_t (*clock)(void *arg),
                            void *clock_arg)
{
    events->clock = clock ? clock : events->own_clock;
    events->clock_arg = clock ? clock_arg : events->own_clock_arg;
}

struct horon_event_reader horon_events_from_now(const struct horon_events *events)
{
    return (struct horon_event_reader){
        .next = atomic_load_explicit(&events->written, memory_order_acquire)};
}

uint64_t horon_events_behind(const struct horon_events *events,
                             const struct horon_event_reader *reader)
{
    const uint64_t written = atomic_load_explicit(&events->written, memory_order_relaxed);
    assert(reader->next <= written);
    return written - reader->next;
}

void horon_events_look(struct horon_events *events)
{
    events->now_ns = events->clock(events->clock_arg);
    events->looked = true;
}

/* @return false: the writer has been here meanwhile, or is here */
static bool copy(const struct horon_events *events, uint64_t number, struct horon_event *event_out)
{
    const struct horon_event_words *place = &events->ring[number % HORON_EVENTS_KEPT];
    const uint64_t what = atomic_load_explicit(&place->what, memory_order_relaxed);
    const uint64_t whose = atomic_load_explicit(&place->whose, memory_order_relaxed);
    const struct horon_event event = {
        .time_ns = atomic_load_explicit(&place->time_ns, memory_order_relaxed),
        .subject = atomic_load_explicit(&place->subject, memory_order_relaxed),
        .value = what >> 16,
        .other = (int32_t)(uint32_t)whose,
        .team = (uint32_t)(whose >> 32),
        .kind = (uint8_t)what,
        .verb = (uint8_t)(what >> 8),
    };
    atomic_thread_fence(memory_order_acquire);
    /* while the count says number + KEPT, that event is perhaps half there */
    if (atomic_load_explicit(&events->written, memory_order_relaxed) - number >= HORON_EVENTS_KEPT)
        return false;
    *event_out = event;
    return true;
}

bool horon_events_read(const struct horon_events *events, struct horon_event_reader *reader,
                       struct horon_event *event_out, uint64_t *missed_out)
{
    for (;;) {
        const uint64_t written = atomic_load_explicit(&events->written, memory_order_acquire);
        assert(reader->next <= written);
        const uint64_t behind = written - reader->next;
        if (behind == 0)
            return false;
        if (behind >= HORON_EVENTS_KEPT) { /* half a ring on: the writer is not there so soon */
            reader->next = written - HORON_EVENTS_KEPT / 2;
            *missed_out += behind - HORON_EVENTS_KEPT / 2;
        } else if (copy(events, reader->next, event_out)) {
            reader->next++;
            return true;
        }
    }
}

bool horon_events_last(const struct horon_events *events, enum horon_event_kind kind, uint32_t team,
                       struct horon_event *event_out)
{
    const uint64_t written = atomic_load_explicit(&events->written, memory_order_acquire);
    for (uint64_t back = 1; back <= written && back < HORON_EVENTS_KEPT; back++) {
        struct horon_event event;
        if (!copy(events, written - back, &event))
            return false;
        if (event.kind == kind && event.team == team) {
            *event_out = event;
            return true;
        }
    }
    return false;
}

static size_t add_number(char *text, size_t text_bytes, size_t used, const char *what, long long n)
{
    if (!what[0] || used >= text_bytes)
        return used;
    snprintf(text + used, text_bytes - used, "%s%s %lld", used ? ", " : "", what, n);
    return used + strlen(text + used);
}

void horon_event_describe(const struct horon_event *event, const char *subject, char *text,
                          size_t text_bytes)
{
    char numbers[96] = "";
    assert(event->kind < HORON_EVENT_KINDS);
    size_t used =
        add_number(numbers, sizeof numbers, 0, kinds[event->kind].value, (long long)event->value);
    add_number(numbers, sizeof numbers, used, kinds[event->kind].other, event->other);
    snprintf(text, text_bytes, "%s%s%s%s%s", kinds[event->kind].name, subject[0] ? " " : "",
             subject, numbers[0] ? ": " : "", numbers);
}
