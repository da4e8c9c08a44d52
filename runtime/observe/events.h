/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens on a rank, told once: events of fixed size in a ring that is always on. The owner of
 * the engine writes; any thread reads, at its own pace, and learns how much it missed. The warnings
 * about stalls, the trace of the log and a timeline are readers. (docs/design.md 6, "Observer".)
 *
 * To look at the clock costs ten times as much as to write an event, so events share a look: the
 * first one of a turn of the engine looks, and between turns every 64th one does.
 */
#ifndef HORON_OBSERVE_EVENTS_H
#define HORON_OBSERVE_EVENTS_H

#include "status.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* One row a kind: its name, and what its value and its other number are; "": it has none. */
#define HORON_EVENT_MAP(X)                                                                         \
    X(TAKEN, "submitted", "elements", "lane") /* an operation reached the engine */                \
    X(DECIDED, "decided", "batch", "tensors") /* the first tensor of a batch */                    \
    X(BEGUN, "begun", "elements", "lane")     /* the first tensor of what a lane began */          \
    X(ENDED, "ended", "elements", "status")   /* an operation, well or ill */                      \
    X(WITHDRAWN, "asked to withdraw", "", "") /* somebody asked for that */                        \
    X(STALLED, "has waited", "ms", "")        /* and a warning said so */                          \
    X(SENT, "sent", "bytes", "rank")                                                               \
    X(HEARD, "heard", "bytes", "rank")                                                             \
    X(DEPARTED, "departure of", "", "rank") /* a rank said goodbye, or its process ended */        \
    X(FAILED, "the job failed", "", "status")

enum horon_event_kind {
#define HORON_EVENT_KIND(kind, name, value, other) HORON_EVENT_##kind,
    HORON_EVENT_MAP(HORON_EVENT_KIND)
#undef HORON_EVENT_KIND
        HORON_EVENT_KINDS
};

/* The lanes of TAKEN and BEGUN; a message has none. */
enum { HORON_EVENT_IN_ORDER, HORON_EVENT_NAMED, HORON_EVENT_MESSAGE };

/** The subject of a message's events, since it has no name: its verb, and the rank at its other
 * end, of the job. */
static inline uint64_t horon_event_of_message(uint8_t verb, int rank)
{
    return (uint64_t)verb << 32 | (uint32_t)rank;
}

/** Likewise of a join's, which is no operation: a hash by the rarest chance only. */
#define HORON_EVENT_OF_JOIN (UINT64_MAX - 1)

struct horon_event {
    uint64_t time_ns;
    uint64_t subject; /* the hash of the operation's name, or of a message or a join; 0: none */
    uint64_t value;   /* below 2^48: its low bits are kept */
    int32_t other;
    uint32_t team; /* the id of the operation's process set; FAILED: the engine's team */
    uint8_t kind;  /* enum horon_event_kind */
    uint8_t verb;  /* of the operation, if there is one */
};

#define HORON_EVENTS_KEPT 4096u /* a power of two: 128 KiB */
#define HORON_EVENTS_A_LOOK 64u /* at the clock, between turns */

/* An event in the ring, in words that a reader may see half written: it finds out, and drops it. */
struct horon_event_words {
    _Atomic uint64_t time_ns, subject;
    _Atomic uint64_t what;  /* from the low bits: kind (8), verb (8), value (48) */
    _Atomic uint64_t whose; /* other (32), team (32) */
};
static_assert(sizeof(struct horon_event_words) == 32, "two in a line");

struct horon_events {
    _Atomic uint64_t written; /* events so far; the next one goes to written % KEPT */
    uint64_t now_ns;          /* the last look at the clock */
    bool looked;              /* in this turn */
    uint64_t (*clock)(void *arg);
    void *clock_arg;
    uint64_t (*own_clock)(void *arg); /* that of its creation */
    void *own_clock_arg;
    struct horon_event_words ring[HORON_EVENTS_KEPT];
};

/** Where a reader is; all zero: at the first event. */
struct horon_event_reader {
    uint64_t next;
};

/** @param clock called by the thread that writes. @return NULL: no memory. End it with
 * horon_events_destroy(). */
struct horon_events *horon_events_create(uint64_t (*clock)(void *arg), void *clock_arg);
void horon_events_destroy(struct horon_events *events);

/** The engine turns: the next event looks at the clock. Thread: owner. */
static inline void horon_events_turn(struct horon_events *events)
{
    events->looked = false;
}

/**
 * Replaces the clock; NULL: by the one it was created with. Before each event that is the first of
 * a turn, and at least one in HORON_EVENTS_A_LOOK, the writer asks it: a reader that should miss
 * nothing takes its place while it is there, and costs nothing when it is not. Thread: owner.
 */
void horon_events_set_clock(struct horon_events *events, uint64_t (*clock)(void *arg),
                            void *clock_arg);

/** @return a reader that is at the next event. Thread: any. */
struct horon_event_reader horon_events_from_now(const struct horon_events *events);

/** @return how many events the reader is behind. Thread: that of the reader. */
uint64_t horon_events_behind(const struct horon_events *events,
                             const struct horon_event_reader *reader);

/** Looks at the clock, for the events from here on. Thread: owner. */
void horon_events_look(struct horon_events *events);

/** Adds one event. Here, because each operation adds several. Thread: owner. Blocks: no.
 * Allocates: no. */
static inline void horon_events_add(struct horon_events *events, enum horon_event_kind kind,
                                    uint32_t team, uint8_t verb, uint64_t subject, uint64_t value,
                                    int32_t other)
{
    const uint64_t number = atomic_load_explicit(&events->written, memory_order_relaxed);
    assert(kind < HORON_EVENT_KINDS);
    if (!events->looked || number % HORON_EVENTS_A_LOOK == 0)
        horon_events_look(events);
    const uint64_t what = (uint64_t)kind | (uint64_t)verb << 8 | value << 16;
    const uint64_t whose = (uint64_t)(uint32_t)other | (uint64_t)team << 32;
    struct horon_event_words *place = &events->ring[number % HORON_EVENTS_KEPT];
    /* a reader that sees one of these words sees the count, too, and so that the place is reused */
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&place->time_ns, events->now_ns, memory_order_relaxed);
    atomic_store_explicit(&place->subject, subject, memory_order_relaxed);
    atomic_store_explicit(&place->what, what, memory_order_relaxed);
    atomic_store_explicit(&place->whose, whose, memory_order_relaxed);
    atomic_store_explicit(&events->written, number + 1, memory_order_release);
}

/**
 * Takes the next event.
 * @param missed_out raised by the events that were written over before they could be read
 * @return false: there is none yet
 * Thread: any, one for each reader.
 */
bool horon_events_read(const struct horon_events *events, struct horon_event_reader *reader,
                       struct horon_event *event_out, uint64_t *missed_out);

/** The last event of @p kind and @p team that is still kept. @return false: there is none. */
bool horon_events_last(const struct horon_events *events, enum horon_event_kind kind, uint32_t team,
                       struct horon_event *event_out);

/** "ended allreduce 'x': elements 16, status 0". @param subject "allreduce 'x'", or "" */
void horon_event_describe(const struct horon_event *event, const char *subject, char *text,
                          size_t text_bytes);

#endif
