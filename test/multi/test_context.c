/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ABI in real processes: joining and leaving many times, persistent and grouped operations,
 * mismatches that name both sides, timeouts that withdraw, a broken promise of order, a
 * rank that shuts down early.
 */
#undef NDEBUG
#include "count_fds.h"
#include "multi/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void count_call(void *arg, horon_request_t *req, horon_status_t status)
{
    (void)req;
    (void)status;
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void for_shm_and_tcp(job_work_fn_t work)
{
    static const char *const tcp[] = {"SHM=0", NULL};
    for (int size = 1; size <= 4; size++) {
        job_run(size, NULL, work, NULL);
        job_run(size, tcp, work, NULL);
    }
}

static float sum_of_ranks(horon_context_t *ctx)
{
    int size = horon_size(ctx);
    return (float)(size * (size - 1) / 2);
}

static void use_persistent(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { N = 50, ROUNDS = 20 };
    static float data[N][321];
    horon_request_t *requests[N];
    (void)arg;
    for (int i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "p%d", i);
        horon_descriptor_t desc = job_sum(name, data[i], 321, 0);
        RANK_MUST(horon_prepare(ctx, &desc, &requests[i]) == HORON_OK);
        RANK_MUST(horon_test(requests[i], HORON_HOST_DONE) == HORON_ERR_INVALID);
    }
    /* started on one rank only it stays in flight, and cannot be started again */
    horon_descriptor_t barrier = HORON_DESCRIPTOR_INIT;
    barrier.verb = HORON_BARRIER;
    if (horon_rank(ctx) == 0) {
        RANK_MUST(horon_start(requests[0]) == HORON_OK);
        RANK_MUST(horon_start(requests[0]) == HORON_ERR_INVALID);
        horon_request_t *twice;
        horon_descriptor_t same = job_sum("p0", data[1], 321, 0);
        RANK_MUST(horon_submit(ctx, &same, &twice) == HORON_ERR_DUPLICATE);
        RANK_MUST(strstr(horon_last_error(ctx), "'p0'"));
    }
    RANK_MUST(horon_run(ctx, &barrier, -1, NULL, 0) == HORON_OK);
    if (horon_rank(ctx) != 0)
        RANK_MUST(horon_start(requests[0]) == HORON_OK);
    RANK_MUST(horon_wait(requests[0], HORON_HOST_DONE, -1) == HORON_OK);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++)
            for (int j = 0; j < 321; j++)
                data[i][j] = (float)horon_rank(ctx);
        size_t started = 0;
        RANK_MUST(horon_start_all(requests, N, &started) == HORON_OK && started == N);
        RANK_MUST(horon_wait_all(requests, N, HORON_HOST_DONE, -1) == HORON_OK);
        RANK_MUST(horon_size(ctx) == 1 || data[N - 1][320] == sum_of_ranks(ctx));
    }
    for (int i = 0; i < N; i++)
        horon_release(requests[i]);
}

static void test_persistent_requests_start_many_times(void **state)
{
    (void)state;
    static const char *const tcp[] = {"SHM=0", NULL};
    for (int size = 2; size <= 4; size++) {
        job_run(size, NULL, use_persistent, NULL);
        job_run(size, tcp, use_persistent, NULL);
    }
}

static void mismatch(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[8] = {0};
    char text[HORON_ERROR_TEXT_BYTES];
    (void)arg;
    horon_descriptor_t desc = job_sum("x", data, horon_rank(ctx) == 1 ? 4 : 8, 0);
    RANK_MUST(horon_run(ctx, &desc, -1, text, sizeof text) == HORON_ERR_MISMATCH);
    /* of the two that agree either may stand for both */
    RANK_MUST(strstr(text, "'x'") && strstr(text, "rank 1"));
    RANK_MUST(strstr(text, "rank 0") || strstr(text, "rank 2"));
    desc = job_sum("x", data, 8, 0); /* and the job goes on */
    RANK_MUST(horon_run(ctx, &desc, -1, text, sizeof text) == HORON_OK);
}

static void test_mismatch_names_both_sides_and_job_goes_on(void **state)
{
    (void)state;
    static const char *const tcp[] = {"SHM=0", NULL};
    job_run(2, NULL, mismatch, NULL);
    job_run(3, tcp, mismatch, NULL);
}

static void break_order(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[8] = {0};
    char text[HORON_ERROR_TEXT_BYTES];
    (void)arg;
    horon_descriptor_t desc = job_sum(NULL, data, 8, HORON_IN_ORDER);
    if (horon_rank(ctx) == 1)
        desc.redop = HORON_MAX;
    RANK_MUST(horon_run(ctx, &desc, -1, text, sizeof text) == HORON_ERR_MISMATCH);
    RANK_MUST(strstr(text, "rank 0") || strstr(text, "rank 1"));
}

static void test_broken_order_is_named(void **state)
{
    (void)state;
    static const char *const tcp[] = {"SHM=0", NULL};
    job_run(2, NULL, break_order, NULL);
    job_run(2, tcp, break_order, NULL);
}

static void time_out(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[1] = {1};
    char text[HORON_ERROR_TEXT_BYTES];
    (void)arg;
    horon_descriptor_t desc = job_sum("late", data, 1, 0), go = job_sum("go", data, 1, 0);
    if (horon_rank(ctx) == 0) {
        RANK_MUST(horon_run(ctx, &desc, 50, text, sizeof text) == HORON_ERR_TIMEOUT);
        RANK_MUST(strstr(text, "'late'") && strstr(text, "waiting for rank 1"));
    }
    RANK_MUST(horon_run(ctx, &go, -1, text, sizeof text) == HORON_OK);
    RANK_MUST(horon_run(ctx, &desc, -1, text, sizeof text) == HORON_OK);
}

static void test_timeout_withdraws_and_name_can_be_used_again(void **state)
{
    (void)state;
    static const char *const tcp[] = {"SHM=0", NULL};
    job_run(2, NULL, time_out, NULL);
    job_run(3, tcp, time_out, NULL);
}

/* Rank 0, the first of its host, is inside no call of horon; the other's limit must hold all the
 * same. arg: a pipe that rank 1 writes to when it is through. */
static void time_out_against_idle(horon_context_t *ctx, void *arg, struct job_report *report)
{
    const int *ends = arg;
    float data[1] = {1};
    char text[HORON_ERROR_TEXT_BYTES], byte = 0;
    horon_descriptor_t desc = job_sum("late", data, 1, 0);
    if (horon_rank(ctx) == 1) {
        /* the first rank has a moment to say that it lacks it: on a busy machine not the first time
         */
        horon_status_t status = HORON_ERR_TIMEOUT;
        for (int tried = 0; tried < 50 && status == HORON_ERR_TIMEOUT; tried++) {
            status = horon_run(ctx, &desc, 30, text, sizeof text);
            if (strstr(text, "waiting for rank 0"))
                break;
        }
        RANK_MUST(write(ends[1], &byte, 1) == 1);
        RANK_MUST(status == HORON_ERR_TIMEOUT);
        RANK_MUST(strstr(text, "waiting for rank 0"));
    } else if (horon_rank(ctx) == 0) {
        RANK_MUST(read(ends[0], &byte, 1) == 1);
    }
    RANK_MUST(horon_run(ctx, &desc, -1, text, sizeof text) == HORON_OK);
}

static void test_timeout_against_idle_first_rank_ends(void **state)
{
    (void)state;
    static const char *const tcp[] = {"SHM=0", NULL};
    for (int size = 2; size <= 4; size++) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        job_run(size, size == 3 ? tcp : NULL, time_out_against_idle, ends);
        close(ends[0]);
        close(ends[1]);
    }
}

static void leave_early(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[1] = {1};
    char text[HORON_ERROR_TEXT_BYTES];
    (void)arg;
    horon_descriptor_t desc = job_sum("last", data, 1, 0);
    if (horon_rank(ctx) == 1)
        return;
    RANK_MUST(horon_run(ctx, &desc, -1, text, sizeof text) == HORON_ERR_CLOSED);
    /* also if another gave up because of it, and left, and was heard of first */
    RANK_MUST(strstr(text, "rank 1 (") && strstr(text, "has shut down"));
}

static void test_rank_that_leaves_is_named(void **state)
{
    (void)state;
    static const char *const tcp[] = {"SHM=0", NULL};
    for (int size = 2; size <= 5; size++) {
        job_run(size, NULL, leave_early, NULL);
        job_run(size, tcp, leave_early, NULL);
    }
}

/* Rank 0 gives up what rank 1 has not begun; the job fails on both, soon, and names it. */
static void give_up(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static float data[100];
    char text[HORON_ERROR_TEXT_BYTES];
    horon_descriptor_t desc = job_sum(NULL, data, 100, HORON_IN_ORDER);
    desc.callback = arg ? count_call : NULL; /* then it cannot be run from the stack alone */
    static atomic_int calls;
    desc.callback_arg = &calls;
    RANK_MUST(horon_run(ctx, &desc, -1, text, sizeof text) == HORON_OK);
    if (horon_rank(ctx) == 0) {
        RANK_MUST(horon_run(ctx, &desc, 50, text, sizeof text) == HORON_ERR_TIMEOUT);
        RANK_MUST(strstr(text, "rank 0") && strstr(text, "gave it up after 50 ms"));
    } else {
        horon_descriptor_t other = job_sum("never", data, 100, 0);
        RANK_MUST(horon_run(ctx, &other, -1, text, sizeof text) == HORON_ERR_TIMEOUT);
        RANK_MUST(strstr(text, "rank 0") && strstr(text, "gave it up after 50 ms"));
    }
    RANK_MUST(horon_run(ctx, &desc, -1, text, sizeof text) == HORON_ERR_TIMEOUT);
    RANK_MUST(!arg || atomic_load(&calls) == (horon_rank(ctx) == 0 ? 2 : 1));
}

static void test_in_order_operation_given_up_fails_the_job(void **state)
{
    (void)state;
    static const char *const tcp[] = {"SHM=0", NULL};
    static char with_callback;
    job_run(2, NULL, give_up, NULL);
    job_run(2, NULL, give_up, &with_callback);
    job_run(2, tcp, give_up, NULL);
}

/* Two roots wait for nobody: the next operation finds it. */
static void have_two_roots(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[4] = {0};
    char text[HORON_ERROR_TEXT_BYTES];
    (void)arg;
    horon_descriptor_t desc = job_sum(NULL, data, 4, HORON_IN_ORDER);
    desc.verb = HORON_BROADCAST;
    desc.root = horon_rank(ctx) % 2;
    horon_run(ctx, &desc, -1, NULL, 0);
    desc = job_sum(NULL, data, 4, HORON_IN_ORDER);
    RANK_MUST(horon_run(ctx, &desc, -1, text, sizeof text) == HORON_ERR_MISMATCH);
}

static void test_different_roots_in_order_are_found(void **state)
{
    (void)state;
    static const char *const tcp[] = {"SHM=0", NULL};
    for (int size = 2; size <= 4; size++) {
        job_run(size, NULL, have_two_roots, NULL);
        job_run(size, tcp, have_two_roots, NULL);
    }
}

static void *refuse_memory(void *arg, uint64_t rows, uint64_t bytes)
{
    (void)arg;
    (void)rows;
    (void)bytes;
    return NULL;
}

/* One rank has no room for the output: it fails there, and the job goes on. */
static void lack_room(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static float part[200000];
    horon_request_t *req;
    (void)arg;
    for (int round = 0; round < 8; round++) {
        float *all;
        uint64_t count = round < 4 ? 10 : 200000, total = count * (uint64_t)horon_size(ctx);
        horon_descriptor_t desc =
            job_sum(round % 2 ? "g" : NULL, part, count, round % 2 ? 0 : HORON_IN_ORDER);
        for (uint64_t i = 0; i < count; i++)
            part[i] = (float)(horon_rank(ctx) + round);
        desc.verb = HORON_ALLGATHER;
        desc.dst = NULL;
        desc.alloc = horon_rank(ctx) == 1 ? refuse_memory : NULL;
        RANK_MUST(horon_submit(ctx, &desc, &req) == HORON_OK);
        horon_status_t status = horon_wait(req, HORON_HOST_DONE, -1);
        if (horon_rank(ctx) == 1) {
            RANK_MUST(status == HORON_ERR_MEMORY);
            RANK_MUST(strstr(horon_request_error(req), "rank 1 ("));
            RANK_MUST(strstr(horon_request_error(req), "no memory for the"));
        } else {
            RANK_MUST(status == HORON_OK);
            RANK_MUST(horon_request_output(req, (void **)&all, &total, NULL) == HORON_OK);
            RANK_MUST(all[count] == (float)(1 + round));
            RANK_MUST(all[total - 1] == (float)(horon_size(ctx) - 1 + round));
        }
        horon_release(req);
    }
}

/* Rank 0 has room for one row of each; rank 1 gives more. */
static void lack_room_in_dst(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static float part[70000], all[300001];
    int rank = horon_rank(ctx), size = horon_size(ctx);
    (void)arg;
    for (int round = 0; round < 4; round++) {
        uint64_t count = round % 2 ? 70000 : 4, given = rank == 1 ? count : count - 1;
        uint64_t total = (count - 1) * (uint64_t)size + 1;
        char text[HORON_ERROR_TEXT_BYTES] = "";
        horon_descriptor_t desc =
            job_sum(round < 2 ? "g" : NULL, part, given, round < 2 ? 0 : HORON_IN_ORDER);
        for (uint64_t i = 0; i < given; i++)
            part[i] = 1;
        for (uint64_t i = 0; i <= total; i++)
            all[i] = -1;
        desc.verb = HORON_ALLGATHER;
        desc.dst = all;
        desc.dst_count = rank == 0 ? total - 1 : total;
        horon_status_t status = horon_run(ctx, &desc, -1, text, sizeof text);
        RANK_MUST(status == (rank == 0 ? HORON_ERR_MEMORY : HORON_OK));
        RANK_MUST(rank != 0 || (strstr(text, "rank 0 (") && strstr(text, "has room for")));
        RANK_MUST(all[0] == (rank == 0 ? -1.0f : 1.0f) && all[total] == -1);
        RANK_MUST(rank == 0 || all[total - 1] == 1);
    }
}

static void test_rank_without_room_for_an_output_fails_alone(void **state)
{
    (void)state;
    static const char *const tcp[] = {"SHM=0", NULL};
    for (int size = 2; size <= 3; size++) {
        job_run(size, NULL, lack_room, NULL);
        job_run(size, tcp, lack_room, NULL);
        job_run(size, NULL, lack_room_in_dst, NULL);
        job_run(size, tcp, lack_room_in_dst, NULL);
    }
}

/* Whenever it is asked: the sums of the others would be wrong from there on. */
static void cancel_in_order(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { N = 300 };
    static float data[N];
    horon_request_t *requests[N];
    (void)arg;
    for (int i = 0; i < N; i++) {
        data[i] = (float)i;
        horon_descriptor_t desc = job_sum(NULL, &data[i], 1, HORON_IN_ORDER);
        RANK_MUST(horon_submit(ctx, &desc, &requests[i]) == HORON_OK);
        if (horon_rank(ctx) == 0 && i % 7 == 0) {
            horon_status_t status = horon_cancel(requests[i]);
            RANK_MUST(status == HORON_ERR_UNSUPPORTED || status == HORON_ERR_INVALID);
        }
    }
    RANK_MUST(horon_wait_all(requests, N, HORON_HOST_DONE, -1) == HORON_OK);
    for (int i = 0; i < N; i++) {
        RANK_MUST(data[i] == (float)(i * horon_size(ctx)));
        horon_release(requests[i]);
    }
}

static void test_in_order_operation_is_not_withdrawn(void **state)
{
    (void)state;
    for_shm_and_tcp(cancel_in_order);
}

static void every_verb(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static float big[400000];
    int rank = horon_rank(ctx), size = horon_size(ctx);
    (void)arg;
    for (uint32_t flags = 0; flags < 2; flags++) {
        for (uint64_t count = 0; count <= 400000; count = count * 7 + 1) {
            for (uint64_t i = 0; i < count; i++)
                big[i] = (float)rank;
            horon_descriptor_t desc = job_sum("v", big, count, flags);
            RANK_MUST(horon_run(ctx, &desc, -1, NULL, 0) == HORON_OK);
            RANK_MUST(count == 0 || big[count - 1] == sum_of_ranks(ctx));
            for (uint64_t i = 0; i < count; i++)
                big[i] = (float)rank;
            desc.verb = HORON_BROADCAST;
            desc.root = size - 1;
            RANK_MUST(horon_run(ctx, &desc, -1, NULL, 0) == HORON_OK);
            RANK_MUST(count == 0 || big[count / 2] == (float)(size - 1));
            horon_request_t *request;
            float *all;
            uint64_t got, rows[JOB_RANKS_MAX];
            for (uint64_t i = 0; i < count; i++)
                big[i] = (float)rank;
            desc.verb = HORON_ALLGATHER;
            desc.dst = NULL;
            desc.count = rank == 0 ? count / 2 : count;
            RANK_MUST(horon_submit(ctx, &desc, &request) == HORON_OK);
            RANK_MUST(horon_wait(request, HORON_HOST_DONE, -1) == HORON_OK);
            RANK_MUST(horon_request_output(request, (void **)&all, &got, rows) == HORON_OK);
            RANK_MUST(got == count / 2 + count * (uint64_t)(size - 1) && rows[0] == count / 2);
            RANK_MUST(got == 0 || all[got - 1] == (float)(size - 1));
            horon_release(request);
        }
    }
}

static void test_every_verb_in_processes_is_right(void **state)
{
    (void)state;
    for_shm_and_tcp(every_verb);
}

static void gather_empty_rows(horon_context_t *ctx, void *arg, struct job_report *report)
{
    uint64_t shape[2] = {(uint64_t)horon_rank(ctx) + 3, 0}, rows[JOB_RANKS_MAX], count = 1;
    horon_request_t *request;
    (void)arg;
    horon_descriptor_t desc = job_sum("rows", NULL, 0, 0);
    desc.verb = HORON_ALLGATHER;
    desc.shape = shape;
    desc.ndim = 2;
    RANK_MUST(horon_submit(ctx, &desc, &request) == HORON_OK);
    RANK_MUST(horon_wait(request, HORON_HOST_DONE, -1) == HORON_OK);
    RANK_MUST(horon_request_output(request, NULL, &count, rows) == HORON_OK);
    RANK_MUST(count == 0 && rows[0] == 3 && rows[1] == 4);
    horon_release(request);
}

static void test_rows_without_elements_are_counted(void **state)
{
    (void)state;
    static const char *const tcp[] = {"SHM=0", NULL};
    job_run(2, NULL, gather_empty_rows, NULL);
    job_run(3, tcp, gather_empty_rows, NULL);
}

static void test_context_alone_many_times_leaks_nothing(void **state)
{
    (void)state;
    int before = count_fds();
    for (int round = 0; round < 200; round++) {
        horon_context_t *ctx;
        char text[HORON_ERROR_TEXT_BYTES];
        horon_options_t options = HORON_OPTIONS_INIT;
        options.rank = 0;
        options.size = 1;
        assert_int_equal(horon_context_create(&options, &ctx, text, sizeof text), HORON_OK);
        float x = 3;
        horon_descriptor_t desc = job_sum("x", &x, 1, 0);
        assert_int_equal(horon_run(ctx, &desc, -1, text, sizeof text), HORON_OK);
        assert_true(x == 3);
        horon_context_destroy(ctx);
    }
    assert_int_equal(count_fds(), before);
}

static void test_request_outlives_its_context(void **state)
{
    (void)state;
    horon_context_t *ctx;
    horon_options_t options = HORON_OPTIONS_INIT;
    options.rank = 0;
    options.size = 1;
    assert_int_equal(horon_context_create(&options, &ctx, NULL, 0), HORON_OK);
    float x = 1;
    horon_request_t *once, *prepared;
    horon_descriptor_t desc = job_sum("x", &x, 1, 0);
    assert_int_equal(horon_submit(ctx, &desc, &once), HORON_OK);
    desc.name = "y";
    assert_int_equal(horon_prepare(ctx, &desc, &prepared), HORON_OK);
    horon_context_destroy(ctx);
    horon_status_t status = horon_wait(once, HORON_HOST_DONE, -1);
    assert_true(status == HORON_OK || status == HORON_ERR_CLOSED);
    assert_int_equal(horon_start(prepared), HORON_ERR_CLOSED);
    horon_release(once);
    horon_release(prepared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_persistent_requests_start_many_times),
        cmocka_unit_test(test_mismatch_names_both_sides_and_job_goes_on),
        cmocka_unit_test(test_broken_order_is_named),
        cmocka_unit_test(test_timeout_withdraws_and_name_can_be_used_again),
        cmocka_unit_test(test_timeout_against_idle_first_rank_ends),
        cmocka_unit_test(test_rank_that_leaves_is_named),
        cmocka_unit_test(test_in_order_operation_given_up_fails_the_job),
        cmocka_unit_test(test_in_order_operation_is_not_withdrawn),
        cmocka_unit_test(test_different_roots_in_order_are_found),
        cmocka_unit_test(test_rank_without_room_for_an_output_fails_alone),
        cmocka_unit_test(test_every_verb_in_processes_is_right),
        cmocka_unit_test(test_rows_without_elements_are_counted),
        cmocka_unit_test(test_context_alone_many_times_leaks_nothing),
        cmocka_unit_test(test_request_outlives_its_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
