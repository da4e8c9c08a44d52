/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a timeline, event by event: what is drawn when, by which name, and what is told of
 * events that were lost. */
#undef NDEBUG
#include "observe/timeline.h"

#include "alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define START_NS 1000000u

static const char *const names[] = {"barrier",      "a",           "b", "c", "q\"\\\n\x7f",
                                    "\xc3\xa9\xe9", "\xed\xa0\x80"};

static bool find_name(void *arg, uint32_t team, uint64_t hash, char *text, size_t text_bytes)
{
    (void)arg;
    (void)team;
    if (hash >= sizeof names / sizeof names[0])
        return false;
    snprintf(text, text_bytes, "%s", names[hash]);
    return true;
}

struct bed {
    struct horon_timeline timeline;
    uint64_t now_ns;
    char text[1 << 16];
};

static void make_with(struct bed *bed, bool mark_cycles)
{
    const struct horon_timeline_options options = {.mark_cycles = mark_cycles,
                                                   .start_ns = START_NS,
                                                   .epoch_us = 77,
                                                   .rank = 3,
                                                   .find_name = find_name};
    horon_timeline_init(&bed->timeline, &options);
    bed->now_ns = START_NS;
}

static int make(void **state)
{
    static struct bed bed;
    make_with(&bed, false);
    *state = &bed;
    return 0;
}

static int destroy(void **state)
{
    horon_timeline_deinit(&((struct bed *)*state)->timeline);
    return 0;
}

/* Each a microsecond after the one before. */
static void tell(struct bed *bed, enum horon_event_kind kind, horon_verb_t verb, uint64_t subject,
                 int32_t other)
{
    bed->now_ns += 1000;
    const struct horon_event event = {.time_ns = bed->now_ns,
                                      .subject = subject,
                                      .value = 5,
                                      .other = other,
                                      .kind = (uint8_t)kind,
                                      .verb = (uint8_t)verb};
    horon_timeline_add(&bed->timeline, &event);
}

/* What was drawn since the last call, without what names are told by: "pid:BNAME@us" and so on. */
static const char *drawn(struct bed *bed)
{
    struct horon_timeline *timeline = &bed->timeline;
    char *out = bed->text, name[64], mark[128];
    double us;
    unsigned pid;
    out[0] = 0;
    timeline->text[timeline->text_bytes] = 0; /* the buffer is never quite full here */
    for (char *line = timeline->text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        mark[0] = 0;
        if (sscanf(line, "{\"ph\": \"B\", \"name\": \"%63[^\"]\", \"ts\": %lf, \"pid\": %u", name,
                   &us, &pid) == 3)
            out += sprintf(out, "%u:%s@%g ", pid, name, us);
        else if (sscanf(line, "{\"ph\": \"E\", \"ts\": %lf, \"pid\": %u, \"args\": {%127[^}]", &us,
                        &pid, mark) >= 2)
            out += sprintf(out, "%u:end@%g%s%s ", pid, us, mark[0] ? " " : "", mark);
        else if (sscanf(line, "{\"ph\": \"i\", \"name\": \"%63[^\"]\", \"ts\": %lf, \"pid\": %u",
                        name, &us, &pid) == 3)
            out += sprintf(out, "%u!%s@%g ", pid, name, us);
    }
    timeline->text_bytes = 0;
    return bed->text;
}

/* The text has no end mark. */
static bool has_text(const struct bed *bed, const char *part)
{
    const struct horon_timeline *timeline = &bed->timeline;
    return memmem(timeline->text, timeline->text_bytes, part, strlen(part)) != NULL;
}

#define ELEMENTS " \"elements\": 5 "

static void test_timeline_begins_with_the_time_of_day(void **state)
{
    struct bed *bed = *state;
    const char *want =
        "[\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"args\": {\"name\": "
        "\"rank 3\", \"start_time_since_epoch_in_micros\": 77}},\n";
    assert_memory_equal(bed->timeline.text, want, strlen(want));
    assert_false(bed->timeline.lacks_memory);
}

static void test_timeline_draws_submission_at_once_and_the_rest_at_the_end(void **state)
{
    struct bed *bed = *state;
    tell(bed, HORON_EVENT_TAKEN, HORON_ALLREDUCE, 1, HORON_EVENT_NAMED);
    assert_true(has_text(bed, "\"pid\": 1, \"args\": {\"name\": \"a\"}}"));
    assert_string_equal(drawn(bed), "1:NEGOTIATE_ALLREDUCE@1 ");
    tell(bed, HORON_EVENT_DECIDED, HORON_ALLREDUCE, 1, 1);
    tell(bed, HORON_EVENT_BEGUN, HORON_ALLREDUCE, 1, HORON_EVENT_NAMED);
    assert_string_equal(drawn(bed), "");
    tell(bed, HORON_EVENT_ENDED, HORON_ALLREDUCE, 1, HORON_OK);
    assert_string_equal(drawn(bed), "1:end@2 1:ALLREDUCE@3 1:end@4" ELEMENTS);
    tell(bed, HORON_EVENT_TAKEN, HORON_BROADCAST, 1, HORON_EVENT_NAMED); /* its name is known */
    assert_false(has_text(bed, "process_name"));
    assert_string_equal(drawn(bed), "1:NEGOTIATE_BROADCAST@5 ");
}

/* Two batches: a and b, then c. Only their first tensors are told of. */
static void test_timeline_gives_the_tensors_of_a_batch_its_times(void **state)
{
    struct bed *bed = *state;
    for (uint64_t name = 1; name <= 3; name++)
        tell(bed, HORON_EVENT_TAKEN, HORON_ALLREDUCE, name, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_DECIDED, HORON_ALLREDUCE, 1, 2);
    tell(bed, HORON_EVENT_DECIDED, HORON_ALLREDUCE, 3, 1);
    tell(bed, HORON_EVENT_BEGUN, HORON_ALLREDUCE, 1, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_ENDED, HORON_ALLREDUCE, 1, HORON_OK);
    drawn(bed);
    tell(bed, HORON_EVENT_ENDED, HORON_ALLREDUCE, 2, HORON_OK);
    assert_string_equal(drawn(bed), "2:end@4 2:ALLREDUCE@6 2:end@8" ELEMENTS);
    tell(bed, HORON_EVENT_BEGUN, HORON_ALLREDUCE, 3, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_ENDED, HORON_ALLREDUCE, 3, HORON_OK);
    assert_string_equal(drawn(bed), "3:end@5 3:ALLREDUCE@9 3:end@10" ELEMENTS);
    assert_null(bed->timeline.oldest);
}

static void test_timeline_shows_what_failed_and_goes_on_behind_it(void **state)
{
    struct bed *bed = *state;
    tell(bed, HORON_EVENT_TAKEN, HORON_ALLGATHER, 1, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_TAKEN, HORON_ALLGATHER, 2, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_DECIDED, HORON_ALLGATHER, 1, 2);
    tell(bed, HORON_EVENT_BEGUN, HORON_ALLGATHER, 1, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_ENDED, HORON_ALLGATHER, 1, HORON_OK);
    drawn(bed);
    tell(bed, HORON_EVENT_ENDED, HORON_ALLGATHER, 2, HORON_ERR_CANCELLED);
    assert_string_equal(drawn(bed),
                        "2:end@6 \"elements\": 5, \"status\": \"the operation was cancelled\" ");
    tell(bed, HORON_EVENT_TAKEN, HORON_ALLGATHER, 3, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_DECIDED, HORON_ALLGATHER, 3, 1);
    tell(bed, HORON_EVENT_BEGUN, HORON_ALLGATHER, 3, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_ENDED, HORON_ALLGATHER, 3, HORON_OK);
    assert_string_equal(drawn(bed),
                        "3:NEGOTIATE_ALLGATHER@7 3:end@8 3:ALLGATHER@9 3:end@10" ELEMENTS);
    assert_null(bed->timeline.oldest); /* the batch that lacks one is over, too */
}

/* A process set fails between decision and begin. A later one has its number. */
static void test_timeline_goes_on_behind_what_never_began(void **state)
{
    struct bed *bed = *state;
    tell(bed, HORON_EVENT_TAKEN, HORON_ALLREDUCE, 1, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_DECIDED, HORON_ALLREDUCE, 1, 1);
    tell(bed, HORON_EVENT_ENDED, HORON_ALLREDUCE, 1, HORON_ERR_PEER_LOST);
    drawn(bed);
    tell(bed, HORON_EVENT_TAKEN, HORON_ALLREDUCE, 2, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_DECIDED, HORON_ALLREDUCE, 2, 1);
    tell(bed, HORON_EVENT_BEGUN, HORON_ALLREDUCE, 2, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_ENDED, HORON_ALLREDUCE, 2, HORON_OK);
    assert_string_equal(drawn(bed),
                        "2:NEGOTIATE_ALLREDUCE@4 2:end@5 2:ALLREDUCE@6 2:end@7" ELEMENTS);
    assert_null(bed->timeline.oldest);
}

static void test_timeline_draws_in_order_operations_as_they_run(void **state)
{
    struct bed *bed = *state;
    tell(bed, HORON_EVENT_TAKEN, HORON_BROADCAST, 0, HORON_EVENT_IN_ORDER);
    tell(bed, HORON_EVENT_BEGUN, HORON_BROADCAST, 0, HORON_EVENT_IN_ORDER);
    tell(bed, HORON_EVENT_ENDED, HORON_BROADCAST, 0, HORON_OK);
    assert_true(has_text(bed, "\"name\": \"in order\""));
    assert_string_equal(drawn(bed), "1:BROADCAST@2 1:end@3" ELEMENTS);
}

/* A row for each rank and direction; those of one may overlap, and some are lost. */
static void test_timeline_draws_messages_by_rank_and_direction(void **state)
{
    struct bed *bed = *state;
    const uint64_t to = horon_event_of_message(HORON_SEND, 3);
    const uint64_t from = horon_event_of_message(HORON_RECV, 3);
    tell(bed, HORON_EVENT_TAKEN, HORON_SEND, to, HORON_EVENT_MESSAGE);
    assert_string_equal(drawn(bed), "");
    tell(bed, HORON_EVENT_BEGUN, HORON_SEND, to, HORON_EVENT_MESSAGE);
    assert_true(has_text(bed, "\"pid\": 1, \"args\": {\"name\": \"send, rank 3\"}}"));
    tell(bed, HORON_EVENT_BEGUN, HORON_SEND, to, HORON_EVENT_MESSAGE);
    tell(bed, HORON_EVENT_BEGUN, HORON_RECV, from, HORON_EVENT_MESSAGE);
    assert_true(has_text(bed, "\"pid\": 2, \"args\": {\"name\": \"recv, rank 3\"}}"));
    tell(bed, HORON_EVENT_ENDED, HORON_SEND, to, HORON_OK);
    assert_string_equal(drawn(bed), "1:SEND@2 1:SEND@3 2:RECV@4 1:end@5" ELEMENTS);
    tell(bed, HORON_EVENT_ENDED, HORON_SEND, 7, HORON_ERR_CLOSED); /* it never began */
    assert_string_equal(drawn(bed), "");
    tell(bed, HORON_EVENT_BEGUN, HORON_SEND, to, HORON_EVENT_MESSAGE);
    horon_timeline_lose(&bed->timeline, 9);
    assert_string_equal(drawn(bed), "1:SEND@7 1:end@7 1:end@7 2:end@7 0!LOST_EVENTS@7 ");
    tell(bed, HORON_EVENT_ENDED, HORON_RECV, from, HORON_OK);
    assert_string_equal(drawn(bed), "");
}

/* Which have the verb of a barrier, for want of one. */
static void test_timeline_draws_joins_apart_from_barriers(void **state)
{
    struct bed *bed = *state;
    tell(bed, HORON_EVENT_TAKEN, HORON_BARRIER, HORON_EVENT_OF_JOIN, HORON_EVENT_NAMED);
    assert_true(has_text(bed, "\"pid\": 1, \"args\": {\"name\": \"join\"}}"));
    tell(bed, HORON_EVENT_TAKEN, HORON_BARRIER, 0, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_ENDED, HORON_BARRIER, HORON_EVENT_OF_JOIN, HORON_OK);
    tell(bed, HORON_EVENT_ENDED, HORON_BARRIER, 92, HORON_OK);
    assert_string_equal(drawn(bed),
                        "1:JOIN@1 2:NEGOTIATE_BARRIER@2 1:end@3" ELEMENTS "2:end@4" ELEMENTS);
    tell(bed, HORON_EVENT_TAKEN, HORON_BARRIER, HORON_EVENT_OF_JOIN, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_TAKEN, HORON_BARRIER, HORON_EVENT_OF_JOIN, HORON_EVENT_NAMED);
    horon_timeline_lose(&bed->timeline, 9); /* the second one has been refused */
    assert_string_equal(drawn(bed), "1:JOIN@5 1:JOIN@6 1:end@6 1:end@6 0!LOST_EVENTS@6 ");
}

/* The second one waits until the first is over; a number is their name only once it is its turn. */
static void test_timeline_draws_barriers_without_names_after_each_other(void **state)
{
    struct bed *bed = *state;
    tell(bed, HORON_EVENT_TAKEN, HORON_BARRIER, 0, HORON_EVENT_NAMED);
    assert_true(has_text(bed, "\"pid\": 1, \"args\": {\"name\": \"barrier\"}}"));
    tell(bed, HORON_EVENT_TAKEN, HORON_BARRIER, 0, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_DECIDED, HORON_BARRIER, 91, 1);
    tell(bed, HORON_EVENT_BEGUN, HORON_BARRIER, 91, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_ENDED, HORON_BARRIER, 91, HORON_OK);
    assert_string_equal(drawn(bed), "1:NEGOTIATE_BARRIER@1 1:end@3 1:BARRIER@4 1:end@5" ELEMENTS
                                    "1:NEGOTIATE_BARRIER@5 ");
    tell(bed, HORON_EVENT_ENDED, HORON_BARRIER, 92, HORON_ERR_CLOSED);
    assert_string_equal(drawn(bed),
                        "1:end@6 \"elements\": 5, \"status\": \"the context, or a peer's "
                        "context, was shut down\" ");
}

static void test_timeline_leaves_out_what_began_before_it(void **state)
{
    struct bed *bed = *state;
    tell(bed, HORON_EVENT_ENDED, HORON_ALLREDUCE, 1, HORON_OK);
    tell(bed, HORON_EVENT_BEGUN, HORON_ALLREDUCE, 2, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_ENDED, HORON_ALLREDUCE, 2, HORON_OK);
    tell(bed, HORON_EVENT_DECIDED, HORON_ALLREDUCE, 3, 1);
    tell(bed, HORON_EVENT_BEGUN, HORON_ALLREDUCE, 3, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_ENDED, HORON_ALLREDUCE, 3, HORON_OK);
    assert_string_equal(drawn(bed), "");
    assert_null(bed->timeline.oldest);
}

static void test_timeline_ends_what_is_under_way_where_events_are_lost(void **state)
{
    struct bed *bed = *state;
    tell(bed, HORON_EVENT_TAKEN, HORON_ALLREDUCE, 1, HORON_EVENT_NAMED);
    tell(bed, HORON_EVENT_DECIDED, HORON_ALLREDUCE, 1, 1);
    horon_timeline_lose(&bed->timeline, 4000);
    assert_true(has_text(bed, "\"s\": \"g\", \"args\": {\"events\": 4000}}"));
    assert_string_equal(drawn(bed), "1:NEGOTIATE_ALLREDUCE@1 1:end@2 0!LOST_EVENTS@2 ");
    assert_null(bed->timeline.oldest);
    tell(bed, HORON_EVENT_ENDED, HORON_ALLREDUCE, 1, HORON_OK); /* the row is closed already */
    assert_string_equal(drawn(bed), "");
    tell(bed, HORON_EVENT_TAKEN, HORON_ALLREDUCE, 1, HORON_EVENT_NAMED);
    assert_string_equal(drawn(bed), "1:NEGOTIATE_ALLREDUCE@4 ");
}

static void test_timeline_marks_batches_that_are_taken_together_once(void **state)
{
    struct bed *bed = *state;
    horon_timeline_deinit(&bed->timeline);
    make_with(bed, true);
    tell(bed, HORON_EVENT_DECIDED, HORON_ALLREDUCE, 1, 2);
    bed->now_ns -= 1000; /* the same look at the clock */
    tell(bed, HORON_EVENT_DECIDED, HORON_ALLREDUCE, 3, 1);
    tell(bed, HORON_EVENT_DECIDED, HORON_ALLREDUCE, 4, 1);
    assert_string_equal(drawn(bed), "0!CYCLE_START@1 0!CYCLE_START@2 ");
}

static void expect_name(struct bed *bed, uint64_t subject, const char *shown)
{
    char want[64];
    tell(bed, HORON_EVENT_TAKEN, HORON_ALLREDUCE, subject, HORON_EVENT_NAMED);
    snprintf(want, sizeof want, "\"args\": {\"name\": \"%s\"}}", shown);
    if (!has_text(bed, want))
        fail_msg("%s: %.*s", want, (int)bed->timeline.text_bytes, bed->timeline.text);
    bed->timeline.text_bytes = 0;
}

static void test_timeline_names_are_texts_of_json(void **state)
{
    struct bed *bed = *state;
    expect_name(bed, 4, "q\\\"\\\\\\u000a\\u007f");
    expect_name(bed, 5, "\xc3\xa9\\u00e9");       /* of which the second is no UTF-8 */
    expect_name(bed, 6, "\\u00ed\\u00a0\\u0080"); /* nor half of a pair */
    expect_name(bed, 0xabc, "#0000000000000abc"); /* nobody knows it any more */
}

static void test_timeline_forgets_names_that_wait_for_nothing(void **state)
{
    struct bed *bed = *state;
    const uint64_t many = HORON_TIMELINE_NAMES_MAX + 1000;
    tell(bed, HORON_EVENT_TAKEN, HORON_ALLREDUCE, 1, HORON_EVENT_NAMED);
    for (uint64_t i = 0; i < many; i++) {
        const uint64_t name = (i + 7) * UINT64_C(0x9e3779b97f4a7c15);
        tell(bed, HORON_EVENT_TAKEN, HORON_ALLREDUCE, name, HORON_EVENT_NAMED);
        tell(bed, HORON_EVENT_ENDED, HORON_ALLREDUCE, name, HORON_OK);
        bed->timeline.text_bytes = 0;
    }
    assert_true(bed->timeline.row_count <= HORON_TIMELINE_NAMES_MAX);
    tell(bed, HORON_EVENT_ENDED, HORON_ALLREDUCE, 1, HORON_OK);
    assert_int_equal(strncmp(drawn(bed), "1:end@", 6), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, destroy)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_timeline_begins_with_the_time_of_day),
        TEST(test_timeline_draws_submission_at_once_and_the_rest_at_the_end),
        TEST(test_timeline_gives_the_tensors_of_a_batch_its_times),
        TEST(test_timeline_shows_what_failed_and_goes_on_behind_it),
        TEST(test_timeline_goes_on_behind_what_never_began),
        TEST(test_timeline_draws_in_order_operations_as_they_run),
        TEST(test_timeline_draws_messages_by_rank_and_direction),
        TEST(test_timeline_draws_joins_apart_from_barriers),
        TEST(test_timeline_draws_barriers_without_names_after_each_other),
        TEST(test_timeline_leaves_out_what_began_before_it),
        TEST(test_timeline_ends_what_is_under_way_where_events_are_lost),
        TEST(test_timeline_marks_batches_that_are_taken_together_once),
        TEST(test_timeline_names_are_texts_of_json),
        TEST(test_timeline_forgets_names_that_wait_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
