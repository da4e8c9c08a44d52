/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's side of the ring of events: how it tells of operations and messages, and the trace
 * of the log, which reads the ring after each turn and writes a line an event.
 */
#include "engine/engine_state.h"

#include <stdio.h>

static const char *const messages[] = {[HORON_CONTROL_COORDINATOR] = "negotiation",
                                       [HORON_CONTROL_ABORT] = "an abort",
                                       [HORON_CONTROL_GOODBYE] = "a goodbye",
                                       [HORON_CONTROL_END] = "the end of the link",
                                       [HORON_CONTROL_LINKED] = "that there is a link",
                                       [HORON_CONTROL_MESSAGE] = "what a message is",
                                       [HORON_CONTROL_REFUSAL] = "a refusal of a message",
                                       [HORON_CONTROL_STOPPED] = "that it takes part no more",
                                       [HORON_CONTROL_GAVE_UP] = "that it gave up what stays"};
#define MESSAGES (sizeof messages / sizeof messages[0])

static_assert((int)HORON_EVENT_IN_ORDER == HORON_LANE_ORDERED, "what an event says of lanes");
static_assert((int)HORON_EVENT_NAMED == HORON_LANE_NAMED, "likewise");

void horon_engine_add_message_event(struct horon_engine *engine, enum horon_event_kind kind,
                                    int peer, uint8_t control, size_t bytes)
{
    assert(kind == HORON_EVENT_SENT || kind == HORON_EVENT_HEARD);
    horon_events_add(engine->events, kind, 0, control, 0, bytes, peer);
}

/* Names of operations live as long as somebody uses them; after that their hash has to do. */
static void name_subject(struct horon_engine *engine, const struct horon_event *event, char *text,
                         size_t text_bytes)
{
    char name[HORON_NAME_BYTES_MAX + 1];
    text[0] = 0;
    if (event->kind == HORON_EVENT_SENT || event->kind == HORON_EVENT_HEARD)
        snprintf(text, text_bytes, "%s",
                 event->verb < MESSAGES && messages[event->verb] ? messages[event->verb]
                                                                 : "nonsense");
    else if (event->kind == HORON_EVENT_DEPARTED || event->kind == HORON_EVENT_FAILED)
        return;
    else if (event->subject == HORON_EVENT_OF_JOIN)
        snprintf(text, text_bytes, "join");
    else if (horon_verb_rows[event->verb].paired)
        snprintf(text, text_bytes, "%s, rank %u", horon_verb_name(event->verb),
                 (unsigned)(uint32_t)event->subject);
    else if (horon_names_find(&engine->names, event->team, event->subject, name, sizeof name))
        snprintf(text, text_bytes, "%s '%s'", horon_verb_name(event->verb), name);
    else if (event->subject)
        snprintf(text, text_bytes, "%s #%016llx", horon_verb_name(event->verb),
                 (unsigned long long)event->subject);
    else
        snprintf(text, text_bytes, "%s", horon_verb_name(event->verb));
}

void horon_engine_trace(struct horon_engine *engine)
{
    struct horon_event event;
    char subject[HORON_NAME_BYTES_MAX + 64], text[HORON_NAME_BYTES_MAX + 256];
    uint64_t missed = 0;
    assert(horon_log_wants(engine->options.log, HORON_LOG_TRACE));
    while (horon_events_read(engine->events, &engine->traced, &event, &missed)) {
        if (missed)
            HORON_LOG_TRACE(engine->options.log, "%llu events were not logged in time",
                            (unsigned long long)missed);
        missed = 0;
        name_subject(engine, &event, subject, sizeof subject);
        horon_event_describe(&event, subject, text, sizeof text);
        HORON_LOG_TRACE(engine->options.log, "%s (at %llu.%06llu s)", text,
                        (unsigned long long)(event.time_ns / 1000000000u),
                        (unsigned long long)(event.time_ns / 1000u % 1000000u));
    }
}
