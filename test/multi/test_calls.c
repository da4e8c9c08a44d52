/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the ABI where what the other rank does must be known: cancel in each state, groups that
 * are refused whole, names in flight, and what NULL and structs of other versions give.
 */
#undef NDEBUG
#include "multi/duo.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- cancel through the ABI ----------------------------------------------------------------- */

static void test_calls_cancel_in_each_state(void **state)
{
    struct duo duo;
    float x[2] = {1, 2};
    horon_request_t *prepared;
    (void)state;
    duo_make(&duo, NULL);
    horon_context_t *ctx = duo.ctx[0];
    assert_int_equal(horon_cancel(NULL), HORON_ERR_INVALID);
    horon_descriptor_t desc = duo_sum("x", &x[0]);
    assert_int_equal(horon_prepare(ctx, &desc, &prepared), HORON_OK);
    assert_int_equal(horon_cancel(prepared), HORON_ERR_INVALID); /* never started */
    horon_failure_t failure = HORON_FAILURE_INIT;
    assert_int_equal(horon_request_failure(prepared, &failure), HORON_ERR_INVALID);
    assert_non_null(strstr(horon_last_error(NULL), "prepared and never started"));
    assert_int_equal(horon_start(prepared), HORON_OK);
    assert_int_equal(horon_start(prepared), HORON_ERR_INVALID); /* it runs */
    assert_int_equal(horon_cancel(prepared), HORON_OK);
    horon_status_t again = horon_cancel(prepared); /* or it has ended by now */
    assert_true(again == HORON_OK || again == HORON_ERR_INVALID);
    assert_int_equal(horon_wait(prepared, HORON_HOST_DONE, DUO_DEADLINE_S * 1000),
                     HORON_ERR_CANCELLED);
    assert_non_null(strstr(horon_request_error(prepared), "'x'"));
    assert_int_equal(horon_cancel(prepared), HORON_ERR_INVALID); /* it has ended */
    assert_int_equal(horon_start(prepared), HORON_OK);           /* and can run again */
    assert_string_equal(horon_request_error(prepared), "");
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    assert_int_equal(horon_wait(prepared, HORON_HOST_DONE, DUO_DEADLINE_S * 1000), HORON_OK);
    assert_true(x[0] == 3 && x[1] == 3);
    assert_int_equal(horon_cancel(prepared), HORON_ERR_INVALID);
    horon_release(prepared);
    duo_end(&duo);
}

/* ---- structs of other versions -------------------------------------------------------------- */

/* A struct smaller than the first version's is nobody's; one that ends there is an older caller's,
 * and a larger one a newer caller's, which may ask for nothing that is not known here. */
static void test_calls_struct_of_another_version_is_taken_or_refused(void **state)
{
    const size_t first = offsetof(horon_options_t, interrupted);
    struct {
        horon_options_t known;
        unsigned char later[4 * sizeof(horon_options_t)];
    } newer;
    (void)state;
    for (size_t bytes = sizeof(size_t); bytes <= sizeof newer; bytes += 8) {
        const horon_options_t fresh = HORON_OPTIONS_INIT;
        horon_options_t *exact = malloc(bytes); /* for the address sanitizer */
        horon_context_t *ctx = NULL;
        char text[HORON_ERROR_TEXT_BYTES] = "";
        memset(&newer, 0, sizeof newer);
        newer.known = fresh;
        newer.known.struct_bytes = bytes;
        newer.known.rank = 0;
        newer.known.size = 1;
        memcpy(exact, &newer, bytes);
        horon_status_t status = horon_context_create(exact, &ctx, text, sizeof text);
        if (bytes < first || bytes > 4 * sizeof fresh) {
            assert_int_equal(status, HORON_ERR_INVALID);
            assert_non_null(strstr(text, "struct_bytes"));
            assert_null(ctx);
        } else {
            assert_int_equal(status, HORON_OK);
            assert_int_equal(horon_size(ctx), 1);
        }
        horon_context_destroy(ctx);
        ((unsigned char *)exact)[bytes - 1] = 1;
        if (bytes > sizeof fresh) {
            assert_int_equal(horon_context_create(exact, &ctx, text, sizeof text),
                             HORON_ERR_INVALID);
            assert_non_null(strstr(text, bytes > 4 * sizeof fresh ? "struct_bytes" : "is set"));
        }
        free(exact);
    }
}

/* What a blocking allgather needs is needed of newer callers, too: its output would be gone. */
static void test_calls_run_of_a_newer_allgather_without_room_is_refused(void **state)
{
    struct {
        horon_descriptor_t known;
        uint64_t later;
    } newer = {.known = HORON_DESCRIPTOR_INIT};
    horon_options_t options = HORON_OPTIONS_INIT;
    horon_context_t *ctx;
    char text[HORON_ERROR_TEXT_BYTES];
    float x = 1;
    (void)state;
    options.rank = 0;
    options.size = 1;
    assert_int_equal(horon_context_create(&options, &ctx, text, sizeof text), HORON_OK);
    newer.known.struct_bytes = sizeof newer;
    newer.known.verb = HORON_ALLGATHER;
    newer.known.dtype = HORON_FLOAT32;
    newer.known.name = "rows";
    newer.known.src = &x;
    newer.known.count = 1;
    assert_int_equal(horon_run(ctx, &newer.known, -1, text, sizeof text), HORON_ERR_INVALID);
    assert_non_null(strstr(text, "needs dst or alloc"));
    horon_context_destroy(ctx);
}

/* The text says of which operation it is, and so does the data. */
static void test_calls_wrong_descriptor_is_refused_by_name(void **state)
{
    struct duo duo;
    float x = 0;
    horon_failure_t failure = HORON_FAILURE_INIT;
    horon_request_t *request = NULL;
    (void)state;
    duo_make(&duo, NULL);
    horon_descriptor_t desc = duo_sum("conv1", &x);
    desc.dtype = 99;
    assert_int_equal(horon_submit(duo.ctx[0], &desc, &request), HORON_ERR_INVALID);
    assert_null(request);
    assert_string_equal(horon_last_error(duo.ctx[0]),
                        "allreduce 'conv1' was refused: dtype 99 does not exist");
    assert_int_equal(horon_last_failure(duo.ctx[0], &failure), HORON_OK);
    assert_string_equal(failure.name, "conv1");
    assert_int_equal(failure.cause, HORON_CAUSE_ARGUMENT);
    desc = duo_sum("conv1", &x);
    desc.process_set = 5;
    assert_int_equal(horon_prepare(duo.ctx[0], &desc, &request), HORON_ERR_INVALID);
    assert_non_null(strstr(horon_last_error(duo.ctx[0]), "allreduce 'conv1' was refused: "));
    desc.verb = HORON_VERB_COUNT;
    assert_int_equal(horon_submit(duo.ctx[0], &desc, &request), HORON_ERR_INVALID);
    assert_non_null(strstr(horon_last_error(duo.ctx[0]), "an operation was refused: "));
    duo_end(&duo);
}

/* ---- names and groups ----------------------------------------------------------------------- */

static void expect_group_refused(struct duo *duo, const horon_descriptor_t *descs, size_t n,
                                 horon_status_t status, const char *word)
{
    horon_request_t *group[4] = {NULL};
    assert_int_equal(horon_submit_group(duo->ctx[0], descs, n, group), status);
    if (!strstr(horon_last_error(duo->ctx[0]), word))
        fail_msg("'%s' lacks '%s'", horon_last_error(duo->ctx[0]), word);
    for (size_t i = 0; i < n; i++)
        assert_null(group[i]);
}

/* Whatever is wrong with one of them: none has begun, and all names are free. */
static void test_calls_group_with_a_wrong_one_begins_nothing(void **state)
{
    struct duo duo;
    float x[2][4] = {{0}};
    horon_descriptor_t right[3], descs[3];
    (void)state;
    duo_make(&duo, NULL);
    static const char *const names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++)
        right[i] = duo_sum(names[i], &x[0][i]);
    for (int wrong = 0; wrong < 3; wrong++) {
        memcpy(descs, right, sizeof right);
        descs[wrong].dtype = 99;
        expect_group_refused(&duo, descs, 3, HORON_ERR_INVALID, "dtype 99");
        memcpy(descs, right, sizeof right);
        descs[wrong].name = names[(wrong + 1) % 3]; /* twice in one group */
        expect_group_refused(&duo, descs, 3, HORON_ERR_DUPLICATE, "already in flight");
        memcpy(descs, right, sizeof right);
        descs[wrong].flags = HORON_IN_ORDER;
        expect_group_refused(&duo, descs, 3, HORON_ERR_INVALID, "all named or all in order");
        memcpy(descs, right, sizeof right);
        descs[wrong].verb = HORON_BARRIER;
        descs[wrong].name = NULL;
        expect_group_refused(&duo, descs, 3, HORON_ERR_INVALID,
                             "a barrier that is one of a group needs a name");
        horon_request_t *busy = duo_submit(duo.ctx[0], names[wrong], &x[0][3]);
        expect_group_refused(&duo, right, 3, HORON_ERR_DUPLICATE, names[wrong]);
        duo_expect_end(duo_submit(duo.ctx[1], names[wrong], &x[1][3]), HORON_OK);
        duo_expect_end(busy, HORON_OK);
    }
    memcpy(descs, right, sizeof right);
    descs[1].struct_bytes += 8;
    expect_group_refused(&duo, descs, 3, HORON_ERR_INVALID, "differ in struct_bytes");
    expect_group_refused(&duo, NULL, 3, HORON_ERR_INVALID, "NULL");
    assert_int_equal(horon_submit_group(duo.ctx[0], NULL, 0, NULL), HORON_OK); /* nothing to do */
    horon_request_t *groups[2][3];
    for (int rank = 0; rank < 2; rank++) {
        for (int i = 0; i < 3; i++)
            descs[i] = duo_sum(names[i], &x[rank][i]);
        assert_int_equal(horon_submit_group(duo.ctx[rank], descs, 3, groups[rank]), HORON_OK);
    }
    for (int rank = 0; rank < 2; rank++)
        for (int i = 0; i < 3; i++)
            duo_expect_end(groups[rank][i], HORON_OK);
    duo_end(&duo);
}

/* As an array of the first version of the struct, which ends before dst_count. */
static void test_calls_group_of_an_older_caller_is_read_by_its_own_stride(void **state)
{
    enum { FIRST = offsetof(horon_descriptor_t, dst_count) };
    static const char *const names[] = {"a", "b", "c"};
    struct duo duo;
    float x[2][3] = {{1, 2, 3}, {10, 20, 30}};
    horon_request_t *groups[2][3];
    (void)state;
    duo_make(&duo, NULL);
    for (int rank = 0; rank < 2; rank++) {
        char *exact = malloc(3 * FIRST); /* for the address sanitizer */
        for (int i = 0; i < 3; i++) {
            horon_descriptor_t desc = duo_sum(names[i], &x[rank][i]);
            desc.struct_bytes = FIRST;
            memcpy(exact + i * FIRST, &desc, FIRST);
        }
        assert_int_equal(horon_submit_group(duo.ctx[rank], (const void *)exact, 3, groups[rank]),
                         HORON_OK);
        free(exact);
    }
    for (int rank = 0; rank < 2; rank++)
        for (int i = 0; i < 3; i++)
            duo_expect_end(groups[rank][i], HORON_OK);
    assert_true(x[0][0] == 11 && x[1][1] == 22 && x[0][2] == 33);
    duo_end(&duo);
}

static void test_calls_name_in_flight_is_refused_until_it_ended(void **state)
{
    struct duo duo;
    float x[2] = {0}, y = 0, z[2] = {0};
    char text[HORON_ERROR_TEXT_BYTES] = "";
    horon_request_t *again = NULL, *prepared;
    (void)state;
    duo_make(&duo, NULL);
    horon_context_t *ctx = duo.ctx[0];
    horon_descriptor_t desc = duo_sum("x", &y);
    assert_int_equal(horon_prepare(ctx, &desc, &prepared), HORON_OK); /* the name may be prepared */
    horon_request_t *first = duo_submit(ctx, "x", &x[0]);
    assert_int_equal(horon_submit(ctx, &desc, &again), HORON_ERR_DUPLICATE);
    assert_null(again);
    assert_int_equal(horon_start(prepared), HORON_ERR_DUPLICATE);
    assert_non_null(strstr(horon_last_error(ctx), "'x'"));
    assert_int_equal(horon_test(prepared, HORON_HOST_DONE), HORON_ERR_INVALID); /* as it was */
    assert_int_equal(horon_run(ctx, &desc, -1, text, sizeof text), HORON_ERR_DUPLICATE);
    assert_non_null(strstr(text, "'x'"));
    horon_release(first); /* let go: it is in flight all the same */
    assert_int_equal(horon_submit(ctx, &desc, &again), HORON_ERR_DUPLICATE);
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    /* rank 0 hears of the end in its own time, but before that of what was begun after it */
    horon_request_t *next = duo_submit(ctx, "next", &z[0]);
    duo_expect_end(duo_submit(duo.ctx[1], "next", &z[1]), HORON_OK);
    duo_expect_end(next, HORON_OK);
    assert_int_equal(horon_start(prepared), HORON_OK);
    duo_expect_end(duo_submit(duo.ctx[1], "x", &x[1]), HORON_OK);
    duo_expect_end(prepared, HORON_OK);
    duo_end(&duo);
}

/* What is no request, or was never started, is refused once those ahead of it have ended, and those
 * behind it are waited for all the same. */
static void test_calls_wait_for_all_but_what_cannot_be_waited_for(void **state)
{
    struct duo duo;
    float x[2] = {1, 2}, y[2] = {3, 4};
    horon_request_t *prepared;
    (void)state;
    duo_make(&duo, NULL);
    horon_descriptor_t desc = duo_sum("p", &x[0]);
    assert_int_equal(horon_prepare(duo.ctx[0], &desc, &prepared), HORON_OK);
    horon_request_t *none[] = {NULL, prepared};
    for (int i = 0; i < 2; i++) {
        horon_request_t *theirs[] = {duo_submit(duo.ctx[1], "x", &x[1]),
                                     duo_submit(duo.ctx[1], "y", &y[1])};
        horon_request_t *all[] = {duo_submit(duo.ctx[0], "x", &x[0]), none[i],
                                  duo_submit(duo.ctx[0], "y", &y[0]), none[i], theirs[0]};
        assert_int_equal(horon_wait_all(all, 5, HORON_HOST_DONE, DUO_DEADLINE_S * 1000),
                         HORON_ERR_INVALID);
        assert_int_equal(horon_test(all[0], HORON_HOST_DONE), HORON_OK);
        assert_int_equal(horon_test(all[2], HORON_HOST_DONE), HORON_OK);
        assert_int_equal(horon_test(theirs[0], HORON_HOST_DONE), HORON_OK);
        horon_release(all[0]);
        horon_release(all[2]);
        duo_expect_end(theirs[0], HORON_OK);
        duo_expect_end(theirs[1], HORON_OK);
    }
    horon_release(prepared);
    duo_end(&duo);
}

/* ---- NULL ----------------------------------------------------------------------------------- */

static void test_calls_of_null_are_invalid_or_nothing(void **state)
{
    float x = 0;
    void *data;
    horon_descriptor_t desc = duo_sum("x", &x);
    horon_request_t *request = NULL;
    size_t started = 9;
    char text[64] = "";
    (void)state;
    assert_int_equal(horon_context_create(NULL, NULL, text, sizeof text), HORON_ERR_INVALID);
    assert_non_null(strstr(text, "ctx_out"));
    horon_context_destroy(NULL);
    assert_int_equal(horon_context_exit(NULL, "why"), HORON_ERR_INVALID);
    assert_int_equal(horon_setting(NULL, "OBJECTS", text, sizeof text), HORON_ERR_INVALID);
    horon_release(NULL);
    assert_int_equal(horon_submit(NULL, &desc, &request), HORON_ERR_INVALID);
    assert_int_equal(horon_submit_group(NULL, &desc, 1, &request), HORON_ERR_INVALID);
    assert_int_equal(horon_prepare(NULL, &desc, &request), HORON_ERR_INVALID);
    assert_int_equal(horon_run(NULL, &desc, -1, text, sizeof text), HORON_ERR_INVALID);
    assert_non_null(strstr(text, "context is NULL"));
    assert_null(request);
    assert_int_equal(horon_start(NULL), HORON_ERR_INVALID);
    assert_int_equal(horon_start_all(&request, 1, &started), HORON_ERR_INVALID);
    assert_int_equal(started, 0);
    assert_int_equal(horon_start_all(NULL, 0, &started), HORON_OK);
    assert_int_equal(horon_test(NULL, HORON_HOST_DONE), HORON_ERR_INVALID);
    assert_int_equal(horon_wait(NULL, HORON_HOST_DONE, -1), HORON_ERR_INVALID);
    assert_int_equal(horon_wait_all(&request, 1, HORON_HOST_DONE, -1), HORON_ERR_INVALID);
    assert_int_equal(horon_wait_all(NULL, 0, HORON_HOST_DONE, -1), HORON_OK);
    assert_int_equal(horon_cancel(NULL), HORON_ERR_INVALID);
    assert_string_equal(horon_request_error(NULL), "");
    assert_int_equal(horon_request_output(NULL, &data, NULL, NULL), HORON_ERR_INVALID);
}

static void test_calls_without_a_place_for_the_request_are_refused(void **state)
{
    struct duo duo;
    float x = 0;
    (void)state;
    duo_make(&duo, NULL);
    horon_descriptor_t desc = duo_sum("x", &x);
    assert_int_equal(horon_submit(duo.ctx[0], &desc, NULL), HORON_ERR_INVALID);
    assert_int_equal(horon_prepare(duo.ctx[0], &desc, NULL), HORON_ERR_INVALID);
    assert_int_equal(horon_submit_group(duo.ctx[0], &desc, 1, NULL), HORON_ERR_INVALID);
    horon_request_t *request = NULL;
    assert_int_equal(horon_submit(duo.ctx[0], NULL, &request), HORON_ERR_INVALID);
    assert_null(request);
    duo_end(&duo);
}

static void expect_refused_as(const struct duo *duo, horon_status_t status, const char *what)
{
    char expected[HORON_ERROR_TEXT_BYTES];
    horon_failure_t failure = HORON_FAILURE_INIT;
    snprintf(expected, sizeof expected,
             "%s was refused: rank 1 (%s) has shut down its context and takes part in nothing more",
             what, horon_host_name(duo->ctx[0], 0));
    assert_int_equal(status, HORON_ERR_CLOSED);
    assert_string_equal(horon_last_error(duo->ctx[0]), expected);
    assert_int_equal(horon_last_failure(duo->ctx[0], &failure), HORON_OK);
    assert_int_equal(failure.cause, HORON_CAUSE_LEFT);
    assert_int_equal(failure.rank, 1);
}

static void test_calls_after_a_failure_are_refused_by_name(void **state)
{
    struct duo duo;
    float x = 0;
    horon_request_t *prepared, *request;
    (void)state;
    duo_make(&duo, NULL);
    horon_descriptor_t desc = duo_sum("prepared", &x);
    assert_int_equal(horon_prepare(duo.ctx[0], &desc, &prepared), HORON_OK);
    horon_context_destroy(duo.ctx[1]);
    duo.ctx[1] = NULL;
    duo_expect_end(duo_submit(duo.ctx[0], "first", &x), HORON_ERR_CLOSED);
    expect_refused_as(&duo, horon_start(prepared), "allreduce 'prepared'");
    desc.name = "later\n";
    expect_refused_as(&duo, horon_submit(duo.ctx[0], &desc, &request), "allreduce 'later\\n'");
    expect_refused_as(&duo, horon_run(duo.ctx[0], &desc, -1, NULL, 0), "allreduce 'later\\n'");
    desc.name = NULL;
    desc.verb = HORON_BARRIER;
    expect_refused_as(&duo, horon_submit(duo.ctx[0], &desc, &request), "barrier");
    expect_refused_as(&duo, horon_join(duo.ctx[0], 0, &request), "an operation");
    horon_release(prepared);
    duo_end(&duo);
}

static void test_calls_failure_of_what_is_in_flight_says_what_it_waits_for(void **state)
{
    static const char still[] = "allreduce 'late' is still in flight: ";
    struct duo duo;
    float x[2] = {0};
    horon_failure_t failure = HORON_FAILURE_INIT;
    char expected[HORON_ERROR_TEXT_BYTES];
    (void)state;
    duo_make(&duo, NULL);
    for (int rank = 0; rank < 2; rank++) {
        horon_request_t *request = duo_submit(duo.ctx[rank], "late", &x[rank]);
        assert_int_equal(horon_wait(request, HORON_HOST_DONE, 0), HORON_ERR_TIMEOUT);
        assert_int_equal(horon_request_failure(request, &failure), HORON_ERR_INVALID);
        snprintf(expected, sizeof expected, "%stensor 'late': waiting for rank %d (%s)", still,
                 1 - rank, horon_host_name(duo.ctx[0], 0));
        if (rank == 0) /* which decides, and so has no need to ask */
            assert_string_equal(horon_last_error(duo.ctx[rank]), expected);
        assert_int_equal(horon_last_failure(duo.ctx[rank], &failure), HORON_OK);
        assert_int_equal(failure.cause, HORON_CAUSE_TIME_LIMIT);
        assert_int_equal(failure.rank, rank);
        assert_int_equal(failure.other_rank, 1 - rank);
        assert_string_equal(failure.name, "late");
        assert_memory_equal(horon_last_error(duo.ctx[rank]), expected, strlen(still));
        horon_request_t *other = duo_submit(duo.ctx[1 - rank], "late", &x[1 - rank]);
        duo_expect_end(other, HORON_OK);
        duo_expect_end(request, HORON_OK);
    }
    duo_end(&duo);
}

/* ---- asked about while another thread drives ------------------------------------------------ */

static horon_request_t *submit_barrier(horon_context_t *ctx)
{
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    horon_request_t *request;
    desc.verb = HORON_BARRIER;
    assert_int_equal(horon_submit(ctx, &desc, &request), HORON_OK);
    return request;
}

/* Until it has ended. */
static void *ask_again_and_again(void *arg)
{
    horon_failure_t failure = HORON_FAILURE_INIT;
    while (horon_request_failure(arg, &failure) != HORON_OK)
        continue;
    return NULL;
}

/* An operation without a name is given a number by the thread that drives, once the one before it
 * has ended. The thread sanitizer sees which thread reads it. */
static void test_calls_failure_of_what_is_numbered_meanwhile(void **state)
{
    struct duo duo;
    (void)state;
    duo_make(&duo, NULL);
    for (int round = 0; round < 10; round++) {
        pthread_t thread;
        horon_request_t *first = submit_barrier(duo.ctx[0]), *second = submit_barrier(duo.ctx[0]);
        assert_int_equal(pthread_create(&thread, NULL, ask_again_and_again, second), 0);
        duo_expect_end(submit_barrier(duo.ctx[1]), HORON_OK);
        duo_expect_end(first, HORON_OK);
        duo_expect_end(submit_barrier(duo.ctx[1]), HORON_OK);
        assert_int_equal(pthread_join(thread, NULL), 0);
        duo_expect_end(second, HORON_OK);
    }
    duo_end(&duo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_cancel_in_each_state),
        cmocka_unit_test(test_calls_struct_of_another_version_is_taken_or_refused),
        cmocka_unit_test(test_calls_run_of_a_newer_allgather_without_room_is_refused),
        cmocka_unit_test(test_calls_wrong_descriptor_is_refused_by_name),
        cmocka_unit_test(test_calls_group_with_a_wrong_one_begins_nothing),
        cmocka_unit_test(test_calls_group_of_an_older_caller_is_read_by_its_own_stride),
        cmocka_unit_test(test_calls_name_in_flight_is_refused_until_it_ended),
        cmocka_unit_test(test_calls_wait_for_all_but_what_cannot_be_waited_for),
        cmocka_unit_test(test_calls_of_null_are_invalid_or_nothing),
        cmocka_unit_test(test_calls_without_a_place_for_the_request_are_refused),
        cmocka_unit_test(test_calls_after_a_failure_are_refused_by_name),
        cmocka_unit_test(test_calls_failure_of_what_is_in_flight_says_what_it_waits_for),
        cmocka_unit_test(test_calls_failure_of_what_is_numbered_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
