/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures that concern one rank alone, and the struct that tells them: a call that is refused, an
 * output without room, a rank that a context has not, another version of the struct.
 */
#undef NDEBUG
#include "multi/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *const over_memory[] = {NULL};
static const char *const over_tcp[] = {"SHM=0", NULL};

static const horon_descriptor_t barrier = {sizeof barrier, .verb = HORON_BARRIER, .prescale = 1,
                                           .postscale = 1};

static void expect_last(horon_context_t *ctx, horon_status_t status, horon_cause_t cause, int rank,
                        const char *name, struct job_report *report)
{
    horon_failure_t failure = HORON_FAILURE_INIT;
    RANK_MUST(horon_last_failure(ctx, &failure) == HORON_OK);
    RANK_MUST(failure.status == status);
    RANK_MUST(failure.cause == (int32_t)cause);
    RANK_MUST(failure.rank == rank && failure.other_rank == -1);
    RANK_MUST(strcmp(failure.host, rank < 0 ? "" : horon_host_name(ctx, 0)) == 0);
    RANK_MUST(strcmp(failure.name, name) == 0);
    RANK_MUST(strcmp(failure.text, horon_last_error(ctx)) == 0);
}

static void be_refused(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data = 0;
    horon_request_t *request, *second, *third;
    horon_failure_t failure = HORON_FAILURE_INIT;
    const char *own = horon_rank(ctx) == 0 ? "of 0" : "of 1"; /* which the other never has */
    horon_descriptor_t desc = job_sum(own, &data, 1, 0);
    (void)arg;
    RANK_MUST(horon_submit(ctx, &desc, &request) == HORON_OK);
    expect_last(ctx, HORON_OK, HORON_CAUSE_NONE, -1, "", report);
    RANK_MUST(horon_request_failure(request, &failure) == HORON_ERR_INVALID); /* in flight */
    RANK_MUST(horon_last_failure(ctx, &failure) == HORON_OK);
    RANK_MUST(failure.cause == HORON_CAUSE_TIME_LIMIT && failure.rank == horon_rank(ctx));
    RANK_MUST(failure.other_rank == 1 - horon_rank(ctx) && strcmp(failure.name, own) == 0);
    RANK_MUST(strcmp(failure.host, horon_host_name(ctx, 0)) == 0);
    RANK_MUST(horon_submit(ctx, &desc, &second) == HORON_ERR_DUPLICATE);
    expect_last(ctx, HORON_ERR_DUPLICATE, HORON_CAUSE_ARGUMENT, -1, own, report);
    desc.name = horon_rank(ctx) == 0 ? "more of 0" : "more of 1"; /* else it might end at once */
    RANK_MUST(horon_submit(ctx, &desc, &second) == HORON_OK);
    desc.name = "z";
    RANK_MUST(horon_submit(ctx, &desc, &third) == HORON_ERR_MEMORY); /* INFLIGHT_MAX */
    expect_last(ctx, HORON_ERR_MEMORY, HORON_CAUSE_RESOURCE, -1, "", report);
    desc.verb = 99;
    RANK_MUST(horon_submit(ctx, &desc, &third) == HORON_ERR_INVALID);
    expect_last(ctx, HORON_ERR_INVALID, HORON_CAUSE_ARGUMENT, -1, "", report);
    RANK_MUST(horon_cancel(second) == HORON_OK);
    RANK_MUST(horon_wait(second, HORON_HOST_DONE, -1) == HORON_ERR_CANCELLED);
    horon_release(second);
    RANK_MUST(horon_cancel(request) == HORON_OK);
    expect_last(ctx, HORON_OK, HORON_CAUSE_NONE, -1, "", report);
    RANK_MUST(horon_wait(request, HORON_HOST_DONE, -1) == HORON_ERR_CANCELLED);
    RANK_MUST(horon_request_failure(request, &failure) == HORON_OK);
    RANK_MUST(failure.status == HORON_ERR_CANCELLED && failure.cause == HORON_CAUSE_CANCELLED);
    RANK_MUST(failure.rank == horon_rank(ctx) && strcmp(failure.name, own) == 0);
    horon_release(request);
    desc = job_sum("late", &data, 1, 0);
    if (horon_rank(ctx) == 0) {
        RANK_MUST(horon_run(ctx, &desc, 20, NULL, 0) == HORON_ERR_TIMEOUT);
        RANK_MUST(horon_last_failure(ctx, &failure) == HORON_OK);
        RANK_MUST(failure.cause == HORON_CAUSE_TIME_LIMIT && failure.rank == 0);
        RANK_MUST(failure.other_rank == 1 && strcmp(failure.name, "late") == 0);
    }
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
    expect_last(ctx, HORON_OK, HORON_CAUSE_NONE, -1, "", report);
}

static void test_failure_of_a_refused_call_is_told(void **state)
{
    static const char *const settings[] = {"INFLIGHT_MAX=2", NULL};
    (void)state;
    job_run(2, settings, be_refused, NULL);
}

static void gather_too_much(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[3] = {0}, all[6];
    horon_request_t *request;
    horon_failure_t failure = HORON_FAILURE_INIT;
    horon_descriptor_t desc = job_sum("x", data, 3, 0);
    (void)arg;
    desc.verb = HORON_ALLGATHER;
    desc.dst = all;
    desc.dst_count = horon_rank(ctx) == 1 ? 5 : 6;
    RANK_MUST(horon_submit(ctx, &desc, &request) == HORON_OK);
    const horon_status_t status = horon_wait(request, HORON_HOST_DONE, -1);
    RANK_MUST(horon_request_failure(request, &failure) == HORON_OK);
    RANK_MUST(failure.status == status);
    RANK_MUST(failure.cause == (horon_rank(ctx) == 1 ? HORON_CAUSE_RESOURCE : HORON_CAUSE_NONE));
    RANK_MUST(failure.rank == (horon_rank(ctx) == 1 ? 1 : -1));
    horon_release(request);
}

static void test_failure_for_want_of_room_concerns_one_rank(void **state)
{
    (void)state;
    job_run(2, NULL, gather_too_much, NULL);
}

/* Rank 1 never comes. Over TCP what rank 0 submits is in its pipeline by then; in memory the two
 * would have to meet first. What it runs behind that has not begun. */
static void lose_input(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { LARGE = 300000 };
    static float data[LARGE], more[LARGE];
    const bool *over_links = arg;
    horon_request_t *request;
    horon_failure_t failure = HORON_FAILURE_INIT;
    const horon_descriptor_t desc = job_sum(NULL, data, LARGE, HORON_IN_ORDER);
    const horon_descriptor_t behind = job_sum(NULL, more, LARGE, HORON_IN_ORDER);
    if (horon_rank(ctx) == 1) {
        (void)horon_run(ctx, &barrier, -1, NULL, 0);
        return;
    }
    RANK_MUST(horon_submit(ctx, &desc, &request) == HORON_OK);
    RANK_MUST(horon_run(ctx, &behind, 20, NULL, 0) == HORON_ERR_TIMEOUT);
    RANK_MUST(horon_last_failure(ctx, &failure) == HORON_OK);
    RANK_MUST(failure.cause == HORON_CAUSE_TIME_LIMIT && failure.input_lost == 0);
    RANK_MUST(horon_request_failure(request, &failure) == HORON_OK);
    RANK_MUST(failure.cause == HORON_CAUSE_TIME_LIMIT && failure.input_lost == *over_links);
    horon_release(request);
}

static void test_failure_says_whether_the_input_may_be_lost(void **state)
{
    bool over_links = false;
    (void)state;
    job_run(2, over_memory, lose_input, &over_links);
    over_links = true;
    job_run(2, over_tcp, lose_input, &over_links);
}

/* ---- of a context, in this process ---------------------------------------------------------- */

enum { OTHERS = 7 }; /* ranks that the world of one has not */

/* The thread's last failure is one of the job, and a smaller world is asked about it. */
static void ask_another_world(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[1] = {0};
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_failure_t failure = HORON_FAILURE_INIT;
    horon_context_t *alone;
    const horon_descriptor_t desc = job_sum(NULL, data, 1, HORON_IN_ORDER);
    (void)arg;
    if (horon_rank(ctx) == OTHERS)
        return;
    options.rank = 0;
    options.size = 1;
    RANK_MUST(horon_context_create(&options, &alone, NULL, 0) == HORON_OK);
    RANK_MUST(horon_run(ctx, &desc, -1, NULL, 0) == HORON_ERR_CLOSED);
    RANK_MUST(horon_last_failure(alone, &failure) == HORON_OK);
    RANK_MUST(failure.rank == OTHERS);
    RANK_MUST(failure.host[0] == 0);
    horon_context_destroy(alone);
}

static void test_failure_of_a_rank_that_a_context_has_not_is_told(void **state)
{
    (void)state;
    job_run(OTHERS + 1, NULL, ask_another_world, NULL);
}

/* A closed context has told of its failures before, and their strings stay. */
static void test_failure_outlives_its_context(void **state)
{
    float data = 0;
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *ctx;
    horon_request_t *request;
    horon_failure_t failure = HORON_FAILURE_INIT;
    char host[64] = "";
    (void)state;
    options.rank = 0;
    options.size = 1;
    assert_int_equal(horon_context_create(&options, &ctx, NULL, 0), HORON_OK);
    snprintf(host, sizeof host, "%s", horon_host_name(ctx, 0));
    horon_descriptor_t desc = job_sum("x", &data, 1, 0);
    assert_int_equal(horon_prepare(ctx, &desc, &request), HORON_OK);
    assert_int_equal(horon_start(request), HORON_OK);
    assert_int_equal(horon_wait(request, HORON_HOST_DONE, -1), HORON_OK);
    assert_int_equal(horon_request_failure(request, &failure), HORON_OK);
    assert_int_equal(failure.status, HORON_OK);
    horon_release(request);
    desc.verb = HORON_BARRIER;
    assert_int_equal(horon_submit(ctx, &desc, &request), HORON_OK);
    horon_context_destroy(ctx);
    assert_int_equal(horon_request_failure(request, &failure), HORON_OK);
    if (failure.status != HORON_OK) { /* it may have ended well before */
        assert_int_equal(failure.cause, HORON_CAUSE_CLOSED);
        assert_int_equal(failure.rank, 0);
        assert_string_equal(failure.host, host);
        assert_string_equal(failure.name, "x");
    }
    horon_release(request);
}

static void test_failure_of_another_version_is_cut_or_filled(void **state)
{
    struct {
        horon_failure_t known;
        uint64_t later[2];
    } newer = {.known = HORON_FAILURE_INIT, .later = {7, 7}};
    horon_failure_t failure = HORON_FAILURE_INIT;
    (void)state;
    newer.known.struct_bytes = sizeof newer;
    assert_int_equal(horon_last_failure(NULL, &newer.known), HORON_OK);
    assert_int_equal(newer.known.struct_bytes, sizeof newer);
    assert_true(newer.later[0] == 0 && newer.later[1] == 0);
    failure.input_lost = 7;
    failure.struct_bytes = offsetof(horon_failure_t, input_lost); /* the first version */
    assert_int_equal(horon_last_failure(NULL, &failure), HORON_OK);
    assert_int_equal(failure.struct_bytes, offsetof(horon_failure_t, input_lost));
    assert_int_equal(failure.input_lost, 7);
    failure.struct_bytes -= sizeof(void *);
    assert_int_equal(horon_last_failure(NULL, &failure), HORON_ERR_INVALID);
    failure.struct_bytes = 0;
    assert_int_equal(horon_last_failure(NULL, &failure), HORON_ERR_INVALID);
    assert_int_equal(horon_last_failure(NULL, NULL), HORON_ERR_INVALID);
    assert_int_equal(horon_request_failure(NULL, &failure), HORON_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failure_of_a_refused_call_is_told),
        cmocka_unit_test(test_failure_for_want_of_room_concerns_one_rank),
        cmocka_unit_test(test_failure_says_whether_the_input_may_be_lost),
        cmocka_unit_test(test_failure_of_a_rank_that_a_context_has_not_is_told),
        cmocka_unit_test(test_failure_outlives_its_context),
        cmocka_unit_test(test_failure_of_another_version_is_cut_or_filled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
