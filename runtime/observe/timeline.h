/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timeline: events as the text of a Chrome trace, as Horovod's timeline has it. Each name is a
 * process of the trace. Its rows are NEGOTIATE_<VERB>, from the submission until the ranks have
 * decided, and <VERB>, while the operation runs. Pure: it takes events in their order and gives
 * bytes; runtime/recording.c writes them.
 *
 * The ring tells of a batch once, by its first tensor. The others of the batch are those that end
 * next, since a batch ends in its own order and batches end in the order of their decisions.
 */
#ifndef HORON_OBSERVE_TIMELINE_H
#define HORON_OBSERVE_TIMELINE_H

#include "observe/events.h"

#include <stddef.h>

/** Closes the array; the next write begins where it stands, so that a file is whole after each. */
#define HORON_TIMELINE_END "\n]\n"
/** Names that are remembered, but for those under way; the next one forgets the others, which get
 * another process of the trace if they come again. */
#define HORON_TIMELINE_NAMES_MAX ((size_t)1 << 17)

struct horon_timeline_options {
    bool mark_cycles;
    uint64_t start_ns; /* on the clock of the events */
    uint64_t epoch_us; /* the same moment since 1970 */
    int rank;
    /* Finds the name of an operation by its hash. @return false: nobody knows it any more */
    bool (*find_name)(void *arg, uint32_t team, uint64_t hash, char *text, size_t text_bytes);
    void *arg;
};

struct horon_timeline_row;
struct horon_timeline_batch;

struct horon_timeline {
    struct horon_timeline_options options;
    char *text; /* [text_bytes] what is to be written next; the writer sets text_bytes to 0 */
    size_t text_bytes, text_room;
    bool lacks_memory;               /* what it gives from here on is not whole */
    struct horon_timeline_row *rows; /* [row_room] a hash table */
    size_t row_count, row_room;
    uint32_t newest_pid;
    struct horon_timeline_batch *oldest, *newest; /* decided or begun, and not ended */
    uint64_t cycle_ns, last_ns;                   /* of the last mark, and of the last event */
};

/** The text is then what a file begins with. lacks_memory says how it went. */
void horon_timeline_init(struct horon_timeline *timeline,
                         const struct horon_timeline_options *options);
void horon_timeline_deinit(struct horon_timeline *timeline);
/** Adds one event to the text. */
void horon_timeline_add(struct horon_timeline *timeline, const struct horon_event *event);
/** Events are missing here: what is under way ends, as nobody knows when it did. */
void horon_timeline_lose(struct horon_timeline *timeline, uint64_t events);

#endif
