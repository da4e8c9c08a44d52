/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two tables: the names, with what each waits for, and the batches that were decided or begun. An
 * operation is drawn at once when it is submitted, so that one that hangs can be seen, and the rest
 * of it when it has ended, when all is known. Within a name time only goes on.
 */
#include "observe/timeline.h"

#include "alloc.h"
#include "operation.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TEXT_ROOM_MIN 4096
#define ROWS_MIN 64

/* Of operations without names of their own: those that get a number, and what is in order. A hash
 * of a name is neither but by the rarest chance, which mixes up two rows of the picture. */
#define SUBJECT_UNNAMED UINT64_C(0)
#define SUBJECT_IN_ORDER UINT64_MAX

struct horon_timeline_row {
    uint64_t subject; /* the hash of its name */
    uint64_t taken_ns;
    uint32_t team;
    uint32_t pid;  /* 0: nothing stands here */
    uint32_t open; /* operations that were submitted and have not ended */
    uint8_t verb;  /* of these */
};

struct horon_timeline_batch {
    struct horon_timeline_batch *before, *next;
    uint64_t first; /* the hash of the name of its first operation */
    uint64_t decided_ns, begun_ns;
    uint64_t count, left; /* operations: all, and those that have not ended */
    uint32_t team;
    bool in_order, begun;
};

/* ---- Text ----------------------------------------------------------------------------------- */

/* @return where @p bytes more have room; NULL: no memory */
static char *make_room(struct horon_timeline *timeline, size_t bytes)
{
    const size_t needed = timeline->text_bytes + bytes;
    size_t room = timeline->text_room ? timeline->text_room : TEXT_ROOM_MIN;
    while (room < needed)
        room *= 2;
    if (room != timeline->text_room) {
        char *text = horon_realloc(timeline->text, room);
        if (!text) {
            timeline->lacks_memory = true;
            return NULL;
        }
        timeline->text = text;
        timeline->text_room = room;
    }
    return timeline->text + timeline->text_bytes;
}

static void print(struct horon_timeline *timeline, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void print(struct horon_timeline *timeline, const char *format, ...)
{
    char piece[256];
    va_list args;
    va_start(args, format);
    const int bytes = vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    assert(bytes >= 0 && (size_t)bytes < sizeof piece);
    char *at = make_room(timeline, (size_t)bytes);
    if (!at)
        return;
    memcpy(at, piece, (size_t)bytes);
    timeline->text_bytes += (size_t)bytes;
}

/* @return the bytes of the character of UTF-8 that begins here; 0: none does */
static size_t utf8_bytes(const unsigned char *at)
{
    const size_t bytes = at[0] < 0x80                     ? 1
                         : at[0] >= 0xc2 && at[0] <= 0xdf ? 2
                         : at[0] >= 0xe0 && at[0] <= 0xef ? 3
                         : at[0] >= 0xf0 && at[0] <= 0xf4 ? 4
                                                          : 0;
    for (size_t i = 1; i < bytes; i++)
        if ((at[i] & 0xc0) != 0x80) /* the 0 at the end is none either */
            return 0;
    const unsigned two = bytes > 1 ? (unsigned)at[0] << 8 | at[1] : 0;
    const bool too_long = (two & 0xffe0) == 0xe080 || (two & 0xfff0) == 0xf080;
    const bool surrogate = (two & 0xffe0) == 0xeda0, beyond = two >= 0xf490;
    return too_long || surrogate || (bytes == 4 && beyond) ? 0 : bytes;
}

/* As it stands within a text of JSON; a byte that is no UTF-8 as the character of its number. */
static void print_name(struct horon_timeline *timeline, const char *name)
{
    const unsigned char *at = (const unsigned char *)name;
    while (*at) {
        const size_t bytes = utf8_bytes(at);
        if (bytes == 0 || *at < ' ' || *at == 0x7f)
            print(timeline, "\\u%04x", *at);
        else if (*at == '"' || *at == '\\')
            print(timeline, "\\%c", *at);
        else
            print(timeline, "%.*s", (int)bytes, (const char *)at);
        at += bytes ? bytes : 1;
    }
}

/* A moment in microseconds since the beginning. */
static void print_time(struct horon_timeline *timeline, uint64_t time_ns)
{
    const uint64_t start_ns = timeline->options.start_ns;
    const uint64_t ns = time_ns > start_ns ? time_ns - start_ns : 0;
    print(timeline, "\"ts\": %" PRIu64 ".%03u", ns / 1000, (unsigned)(ns % 1000));
}

static void print_begin(struct horon_timeline *timeline, const struct horon_timeline_row *row,
                        const char *prefix, uint8_t verb, uint64_t time_ns)
{
    char upper[32];
    size_t length = 0;
    const bool joins = row->subject == HORON_EVENT_OF_JOIN;
    for (const char *c = joins ? "join" : horon_verb_name((horon_verb_t)verb); *c; c++)
        if (isalnum((unsigned char)*c) && length + 1 < sizeof upper)
            upper[length++] = (char)toupper((unsigned char)*c);
    upper[length] = 0;
    print(timeline, ",\n{\"ph\": \"B\", \"name\": \"%s%s\", ", prefix, upper);
    print_time(timeline, time_ns);
    print(timeline, ", \"pid\": %u}", row->pid);
}

static void print_end(struct horon_timeline *timeline, const struct horon_timeline_row *row,
                      uint64_t time_ns, const struct horon_event *ended)
{
    print(timeline, ",\n{\"ph\": \"E\", ");
    print_time(timeline, time_ns);
    print(timeline, ", \"pid\": %u", row->pid);
    if (ended && ended->other)
        print(timeline, ", \"args\": {\"elements\": %" PRIu64 ", \"status\": \"%s\"}", ended->value,
              horon_status_text(ended->other));
    else if (ended)
        print(timeline, ", \"args\": {\"elements\": %" PRIu64 "}", ended->value);
    print(timeline, "}");
}

/* @param args whole, or "" */
static void print_mark(struct horon_timeline *timeline, const char *name, uint64_t time_ns,
                       const char *args)
{
    print(timeline, ",\n{\"ph\": \"i\", \"name\": \"%s\", ", name);
    print_time(timeline, time_ns);
    print(timeline, ", \"pid\": 0, \"s\": \"g\"%s}", args);
}

/* ---- Names ---------------------------------------------------------------------------------- */

static struct horon_timeline_row *place_of(struct horon_timeline_row *rows, size_t room,
                                           uint32_t team, uint64_t subject)
{
    size_t at = (size_t)(subject + team * UINT64_C(0x9e3779b97f4a7c15));
    for (;; at++) {
        struct horon_timeline_row *row = &rows[at & (room - 1)];
        if (!row->pid || (row->subject == subject && row->team == team))
            return row;
    }
}

/* Half of the table stays empty. Of too many names those that wait for nothing are forgotten. */
static bool grow(struct horon_timeline *timeline)
{
    const bool forget = timeline->row_count >= HORON_TIMELINE_NAMES_MAX;
    size_t count = 0, room = timeline->row_room ? timeline->row_room : ROWS_MIN;
    for (size_t i = 0; i < timeline->row_room; i++)
        count += timeline->rows[i].pid && (!forget || timeline->rows[i].open);
    while (room < 4 * count)
        room *= 2;
    struct horon_timeline_row *rows = horon_zalloc(room, sizeof *rows);
    timeline->lacks_memory |= !rows;
    if (!rows)
        return false;
    for (size_t i = 0; i < timeline->row_room; i++) {
        const struct horon_timeline_row *row = &timeline->rows[i];
        if (row->pid && (!forget || row->open))
            *place_of(rows, room, row->team, row->subject) = *row;
    }
    horon_free(timeline->rows);
    timeline->rows = rows;
    timeline->row_room = room;
    timeline->row_count = count;
    return true;
}

/* With one rank, in one direction; see horon_event_of_message(). */
static bool is_of_messages(const struct horon_timeline_row *row)
{
    const uint64_t verb = row->subject >> 32;
    return verb < HORON_VERB_COUNT && horon_verb_rows[verb].paired;
}

static void print_process(struct horon_timeline *timeline, const struct horon_timeline_row *row)
{
    char name[HORON_NAME_BYTES_MAX + 1];
    print(timeline, ",\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %u, ", row->pid);
    print(timeline, "\"args\": {\"name\": \"");
    if (row->subject == SUBJECT_IN_ORDER)
        print(timeline, "in order");
    else if (row->subject == HORON_EVENT_OF_JOIN)
        print(timeline, "join");
    else if (is_of_messages(row))
        print(timeline, "%s, rank %u", horon_verb_name((horon_verb_t)(row->subject >> 32)),
              (unsigned)(uint32_t)row->subject);
    else if (row->subject == SUBJECT_UNNAMED)
        print(timeline, "%s", horon_verb_name((horon_verb_t)row->verb));
    else if (timeline->options.find_name(timeline->options.arg, row->team, row->subject, name,
                                         sizeof name))
        print_name(timeline, name);
    else
        print(timeline, "#%016" PRIx64, row->subject);
    if (row->team)
        print(timeline, " (process set %u)", row->team);
    print(timeline, "\"}}");
    print(timeline, ",\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": %u, ", row->pid);
    print(timeline, "\"args\": {\"sort_index\": %u}}", row->pid);
}

/* @return NULL: there is none */
static struct horon_timeline_row *find_row(const struct horon_timeline *timeline, uint32_t team,
                                           uint64_t subject)
{
    if (timeline->row_room == 0)
        return NULL;
    struct horon_timeline_row *row = place_of(timeline->rows, timeline->row_room, team, subject);
    return row->pid ? row : NULL;
}

/* Finds or makes it. @return NULL: no memory */
static struct horon_timeline_row *row_of(struct horon_timeline *timeline,
                                         const struct horon_event *event, uint64_t subject)
{
    const uint32_t team = event->team;
    struct horon_timeline_row *row = find_row(timeline, team, subject);
    if (row)
        return row;
    if (2 * timeline->row_count >= timeline->row_room && !grow(timeline))
        return NULL;
    row = place_of(timeline->rows, timeline->row_room, team, subject);
    assert(!row->pid);
    *row = (struct horon_timeline_row){
        .subject = subject, .team = team, .pid = ++timeline->newest_pid, .verb = event->verb};
    timeline->row_count++;
    print_process(timeline, row);
    return row;
}

/* ---- Batches -------------------------------------------------------------------------------- */

static void add_batch(struct horon_timeline *timeline, const struct horon_event *event,
                      uint64_t count, bool in_order)
{
    struct horon_timeline_batch *batch = horon_zalloc(1, sizeof *batch);
    timeline->lacks_memory |= !batch;
    if (!batch)
        return;
    batch->first = event->subject;
    batch->decided_ns = batch->begun_ns = event->time_ns;
    batch->count = batch->left = count;
    batch->team = event->team;
    batch->in_order = batch->begun = in_order;
    *(timeline->newest ? &timeline->newest->next : &timeline->oldest) = batch;
    batch->before = timeline->newest;
    timeline->newest = batch;
}

static void drop_batch(struct horon_timeline *timeline, struct horon_timeline_batch *batch)
{
    *(batch->before ? &batch->before->next : &timeline->oldest) = batch->next;
    *(batch->next ? &batch->next->before : &timeline->newest) = batch->before;
    horon_free(batch);
}

static bool is_on(const struct horon_timeline_batch *batch, uint32_t team, bool in_order)
{
    return batch->team == team && batch->in_order == in_order;
}

static bool may_begin(const struct horon_timeline_batch *batch, uint32_t team)
{
    return is_on(batch, team, false) && !batch->begun;
}

/* Those of a team begin in the order of their decisions: one that was passed over never will. Its
 * process set has failed, and another has its number now. */
static void begin_batch(struct horon_timeline *timeline, const struct horon_event *event)
{
    struct horon_timeline_batch *batch = timeline->oldest;
    while (batch && (batch->first != event->subject || !may_begin(batch, event->team)))
        batch = batch->next;
    if (!batch)
        return; /* decided before the timeline began */
    for (struct horon_timeline_batch *one = timeline->oldest, *next; one != batch; one = next) {
        next = one->next;
        if (may_begin(one, event->team))
            drop_batch(timeline, one);
    }
    batch->begun = true;
    batch->begun_ns = event->time_ns;
}

static void drop_before(struct horon_timeline *timeline, const struct horon_timeline_batch *batch)
{
    for (struct horon_timeline_batch *one = timeline->oldest, *next; one != batch; one = next) {
        next = one->next;
        if (is_on(one, batch->team, batch->in_order))
            drop_batch(timeline, one);
    }
}

/* The batch of an operation that ended: the one it is the first of, or the one of which some have
 * ended, but not all. Batches before the former are over: some of theirs failed on this rank alone.
 * @return NULL: it was in none, or nothing is known of it */
static struct horon_timeline_batch *batch_of(struct horon_timeline *timeline,
                                             const struct horon_event *ended, bool in_order)
{
    struct horon_timeline_batch *under_way = NULL;
    for (struct horon_timeline_batch *batch = timeline->oldest; batch; batch = batch->next) {
        if (!is_on(batch, ended->team, in_order))
            continue;
        if (!batch->begun)
            break;
        if (batch->left == batch->count && batch->first == ended->subject) {
            drop_before(timeline, batch);
            return batch;
        }
        if (batch->left < batch->count && !under_way && ended->other == HORON_OK)
            under_way = batch;
    }
    return under_way;
}

/* ---- Events --------------------------------------------------------------------------------- */

static void take(struct horon_timeline *timeline, const struct horon_event *event)
{
    struct horon_timeline_row *row = row_of(timeline, event, event->subject);
    if (!row || row->open++ > 0)
        return;
    row->verb = event->verb;
    row->taken_ns = event->time_ns;
    print_begin(timeline, row, "NEGOTIATE_", event->verb, event->time_ns);
}

static uint64_t later(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* What was negotiated is drawn to its end. @param batch NULL: it never ran */
static void end_named(struct horon_timeline *timeline, struct horon_timeline_row *row,
                      const struct horon_timeline_batch *batch, const struct horon_event *event)
{
    assert(row->open > 0);
    if (batch) {
        const uint64_t decided_ns = later(batch->decided_ns, row->taken_ns);
        print_end(timeline, row, decided_ns, NULL);
        print_begin(timeline, row, "", event->verb, later(batch->begun_ns, decided_ns));
    }
    print_end(timeline, row, event->time_ns, event);
    row->taken_ns = event->time_ns;
    if (--row->open > 0) /* those without names wait for each other */
        print_begin(timeline, row, "NEGOTIATE_", row->verb, event->time_ns);
}

static void end_in_order(struct horon_timeline *timeline, const struct horon_timeline_batch *batch,
                         const struct horon_event *event)
{
    struct horon_timeline_row *row = row_of(timeline, event, SUBJECT_IN_ORDER);
    if (!row)
        return;
    print_begin(timeline, row, "", event->verb, batch->begun_ns);
    print_end(timeline, row, event->time_ns, event);
}

/* A message, as it begins, or a join, when it is submitted: all of it is waiting. Those of one row
 * may overlap: then one lies within the other in the picture. */
static void begin_whole(struct horon_timeline *timeline, const struct horon_event *event)
{
    struct horon_timeline_row *row = row_of(timeline, event, event->subject);
    if (!row)
        return;
    row->open++;
    print_begin(timeline, row, "", event->verb, event->time_ns);
}

static void end_whole(struct horon_timeline *timeline, const struct horon_event *event)
{
    struct horon_timeline_row *row = find_row(timeline, event->team, event->subject);
    if (!row || !row->open)
        return; /* it failed before it began, or began before the timeline */
    row->open--;
    print_end(timeline, row, event->time_ns, event);
}

static void end(struct horon_timeline *timeline, const struct horon_event *event)
{
    assert(event->verb < HORON_VERB_COUNT);
    if (horon_verb_rows[event->verb].paired || event->subject == HORON_EVENT_OF_JOIN) {
        end_whole(timeline, event);
        return;
    }
    struct horon_timeline_row *row = find_row(timeline, event->team, event->subject);
    if ((!row || !row->open) && horon_verb_rows[event->verb].unnamed)
        row = find_row(timeline, event->team, SUBJECT_UNNAMED); /* its number came later */
    const bool named = row && row->open;
    struct horon_timeline_batch *batch = batch_of(timeline, event, !named);
    if (named)
        end_named(timeline, row, batch, event);
    else if (batch)
        end_in_order(timeline, batch, event);
    else /* submitted before the timeline began */
        batch = batch_of(timeline, event, false);
    if (batch && --batch->left == 0)
        drop_batch(timeline, batch);
}

/* Batches that were taken up together share a look at the clock: they are one cycle. */
static void decide(struct horon_timeline *timeline, const struct horon_event *event)
{
    assert(event->other > 0);
    add_batch(timeline, event, (uint64_t)event->other, false);
    if (!timeline->options.mark_cycles || event->time_ns == timeline->cycle_ns)
        return;
    timeline->cycle_ns = event->time_ns;
    print_mark(timeline, "CYCLE_START", event->time_ns, "");
}

void horon_timeline_add(struct horon_timeline *timeline, const struct horon_event *event)
{
    assert(event->kind < HORON_EVENT_KINDS);
    timeline->last_ns = event->time_ns;
    if ((event->kind == HORON_EVENT_TAKEN && event->subject == HORON_EVENT_OF_JOIN) ||
        (event->kind == HORON_EVENT_BEGUN && event->other == HORON_EVENT_MESSAGE))
        begin_whole(timeline, event);
    else if (event->kind == HORON_EVENT_TAKEN && event->other == HORON_EVENT_NAMED)
        take(timeline, event);
    else if (event->kind == HORON_EVENT_DECIDED)
        decide(timeline, event);
    else if (event->kind == HORON_EVENT_BEGUN && event->other == HORON_EVENT_NAMED)
        begin_batch(timeline, event);
    else if (event->kind == HORON_EVENT_BEGUN)
        add_batch(timeline, event, 1, true);
    else if (event->kind == HORON_EVENT_ENDED)
        end(timeline, event);
}

static void drop_batches(struct horon_timeline *timeline)
{
    while (timeline->oldest)
        drop_batch(timeline, timeline->oldest);
}

void horon_timeline_lose(struct horon_timeline *timeline, uint64_t events)
{
    char args[64];
    for (size_t i = 0; i < timeline->row_room; i++) {
        struct horon_timeline_row *row = &timeline->rows[i];
        if (row->pid && !is_of_messages(row) && row->subject != HORON_EVENT_OF_JOIN)
            row->open = row->open > 0; /* what waits behind it has not been drawn */
        for (; row->pid && row->open; row->open--)
            print_end(timeline, row, timeline->last_ns, NULL);
    }
    drop_batches(timeline);
    snprintf(args, sizeof args, ", \"args\": {\"events\": %" PRIu64 "}", events);
    print_mark(timeline, "LOST_EVENTS", timeline->last_ns, args);
}

void horon_timeline_init(struct horon_timeline *timeline,
                         const struct horon_timeline_options *options)
{
    assert(options->find_name);
    *timeline = (struct horon_timeline){.options = *options, .last_ns = options->start_ns};
    print(timeline, "[\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"args\": {");
    print(timeline, "\"name\": \"rank %d\", \"start_time_since_epoch_in_micros\": %" PRIu64 "}},\n",
          options->rank, options->epoch_us);
    print(timeline, "{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 0, "
                    "\"args\": {\"sort_index\": 0}}");
}

void horon_timeline_deinit(struct horon_timeline *timeline)
{
    drop_batches(timeline);
    horon_free(timeline->rows);
    horon_free(timeline->text);
    *timeline = (struct horon_timeline){0};
}
