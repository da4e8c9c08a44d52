/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callbacks: on the context's own thread whichever thread ended the operation, once a run, with
 * nothing of horon's in hand, able to submit and to release.
 */
#undef NDEBUG
#include "idle_waits.h"
#include "multi/job.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* What a callback saw. */
struct call {
    horon_context_t *ctx;
    sem_t done;
    atomic_int count;
    char thread[16];
    horon_status_t status, waited;
    horon_request_t *request;
};

static struct call new_call(horon_context_t *ctx)
{
    struct call call = {.ctx = ctx};
    sem_init(&call.done, 0, 0);
    return call;
}

static horon_descriptor_t sum_with(const char *name, float *data, uint64_t count,
                                   horon_callback_fn_t callback, void *arg)
{
    horon_descriptor_t desc = job_sum(name, data, count, name ? 0 : HORON_IN_ORDER);
    desc.callback = callback;
    desc.callback_arg = arg;
    return desc;
}

static void note(void *arg, horon_request_t *req, horon_status_t status)
{
    struct call *call = arg;
    pthread_getname_np(pthread_self(), call->thread, sizeof call->thread);
    call->status = status;
    call->request = req;
    atomic_fetch_add(&call->count, 1);
    sem_post(&call->done);
}

/* ---- where, and how often ------------------------------------------------------------------- */

static void use_every_way_in(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[3] = {1, 1, 1};
    struct call call = new_call(ctx);
    (void)arg;
    for (int round = 1; round <= 30; round++) {
        horon_request_t *req;
        horon_descriptor_t desc =
            sum_with(round % 2 ? "x" : NULL, data, 3, round % 3 ? note : NULL, &call);
        int before = atomic_load(&call.count);
        memset(call.thread, 0, sizeof call.thread);
        if (round % 5 == 0) {
            RANK_MUST(horon_run(ctx, &desc, -1, NULL, 0) == HORON_OK);
            RANK_MUST(atomic_load(&call.count) == before + (round % 3 != 0));
            RANK_MUST(!desc.callback || call.request == NULL);
        } else {
            RANK_MUST(horon_submit(ctx, &desc, &req) == HORON_OK);
            RANK_MUST(horon_wait(req, HORON_HOST_DONE, -1) == HORON_OK);
            horon_release(req);
        }
        if (desc.callback) {
            sem_wait(&call.done);
            RANK_MUST(call.status == HORON_OK);
            RANK_MUST(strcmp(call.thread, "horon") == 0);
        }
    }
    RANK_MUST(atomic_load(&call.count) == 20);
}

static void test_callbacks_run_on_the_own_thread_only(void **state)
{
    static const char *const tcp[] = {"SHM=0", NULL};
    (void)state;
    for (int size = 1; size <= 3; size++)
        job_run(size, NULL, use_every_way_in, NULL);
    job_run(2, tcp, use_every_way_in, NULL);
}

static void use_persistent(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[5] = {0};
    horon_request_t *req;
    struct call call = new_call(ctx);
    horon_descriptor_t desc = sum_with("p", data, 5, note, &call);
    (void)arg;
    RANK_MUST(horon_prepare(ctx, &desc, &req) == HORON_OK);
    for (int run = 0; run < 200; run++) {
        RANK_MUST(horon_start(req) == HORON_OK); /* at once, the last callback may still run */
        RANK_MUST(horon_wait(req, HORON_HOST_DONE, -1) == HORON_OK);
    }
    for (int run = 0; run < 200; run++)
        sem_wait(&call.done);
    RANK_MUST(atomic_load(&call.count) == 200);
    horon_release(req);
}

static void test_callback_of_a_persistent_request_is_called_once_a_run(void **state)
{
    (void)state;
    job_run(1, NULL, use_persistent, NULL);
    job_run(2, NULL, use_persistent, NULL);
}

static void use_a_group(horon_context_t *ctx, void *arg, struct job_report *report)
{
    enum { N = 7 };
    static float data[N][1000];
    static const char *const names[N] = {"a", "b", "c", "d", "e", "f", "g"};
    horon_descriptor_t descs[N];
    horon_request_t *requests[N];
    struct call call = new_call(ctx);
    int size = horon_size(ctx);
    (void)arg;
    for (int round = 1; round <= 10; round++) {
        for (int i = 0; i < N; i++) {
            data[i][999] = (float)horon_rank(ctx);
            descs[i] = sum_with(names[i], data[i], 1000, note, &call);
        }
        RANK_MUST(horon_submit_group(ctx, descs, N, requests) == HORON_OK);
        RANK_MUST(horon_wait_all(requests, N, HORON_HOST_DONE, -1) == HORON_OK);
        RANK_MUST(data[N - 1][999] == (float)(size * (size - 1) / 2));
        for (int i = 0; i < N; i++)
            horon_release(requests[i]);
        for (int i = 0; i < N; i++)
            sem_wait(&call.done);
        RANK_MUST(atomic_load(&call.count) == round * N);
    }
}

static void test_group_calls_back_for_each(void **state)
{
    (void)state;
    job_run(2, NULL, use_a_group, NULL);
    job_run(4, NULL, use_a_group, NULL);
}

/* ---- what a callback may do ----------------------------------------------------------------- */

struct chain {
    struct call call;
    float data[4];
    int left;
};

static void submit_next(void *arg, horon_request_t *req, horon_status_t status)
{
    struct chain *chain = arg;
    horon_request_t *next;
    horon_descriptor_t desc = sum_with("chain", chain->data, 4, submit_next, chain);
    horon_release(req);
    if (status == HORON_OK && --chain->left > 0)
        chain->call.status = horon_submit(chain->call.ctx, &desc, &next);
    if (chain->call.status != HORON_OK || chain->left == 0)
        sem_post(&chain->call.done);
}

static void use_a_chain(horon_context_t *ctx, void *arg, struct job_report *report)
{
    struct chain chain = {.call = new_call(ctx), .left = 100};
    horon_request_t *req;
    horon_descriptor_t desc = sum_with("chain", chain.data, 4, submit_next, &chain);
    (void)arg;
    RANK_MUST(horon_submit(ctx, &desc, &req) == HORON_OK);
    sem_wait(&chain.call.done);
    RANK_MUST(chain.left == 0);
}

static void test_callback_submits_the_next_and_releases_its_own(void **state)
{
    (void)state;
    job_run(1, NULL, use_a_chain, NULL);
    job_run(3, NULL, use_a_chain, NULL);
}

static void try_to_wait(void *arg, horon_request_t *req, horon_status_t status)
{
    struct call *call = arg;
    static float data[2]; /* in use after the return */
    horon_descriptor_t desc = job_sum(NULL, data, 2, HORON_IN_ORDER);
    horon_request_t *next;
    (void)req;
    call->status = status;
    if (horon_submit(call->ctx, &desc, &next) == HORON_OK) {
        call->waited = horon_wait(next, HORON_HOST_DONE, -1);
        horon_release(next);
    }
    if (call->waited == HORON_ERR_INVALID)
        call->waited = horon_run(call->ctx, &desc, -1, NULL, 0);
    sem_post(&call->done);
}

static void use_a_wait_in_a_callback(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static float data[2];
    struct call call = new_call(ctx);
    horon_request_t *req;
    horon_descriptor_t desc = sum_with("w", data, 2, try_to_wait, &call);
    (void)arg;
    RANK_MUST(horon_submit(ctx, &desc, &req) == HORON_OK);
    sem_wait(&call.done);
    RANK_MUST(call.status == HORON_OK);
    RANK_MUST(call.waited == HORON_ERR_INVALID);
    horon_release(req);
}

static void test_callback_that_waits_is_refused(void **state)
{
    (void)state;
    job_run(1, NULL, use_a_wait_in_a_callback, NULL);
}

static void wait_for_permission(void *arg, horon_request_t *req, horon_status_t status)
{
    (void)req;
    (void)status;
    sem_wait((sem_t *)arg);
}

/* What a slow callback works on; it may look at it after the return. */
struct slow {
    float data[1];
    sem_t permission;
    horon_request_t *request;
};

/* @return the status of an operation that has ended, and whose callback lasts from now on */
static horon_status_t begin_slow_callback(horon_context_t *ctx, struct slow *slow)
{
    sem_init(&slow->permission, 0, 0);
    const horon_descriptor_t desc =
        sum_with("slow", slow->data, 1, wait_for_permission, &slow->permission);
    const horon_status_t status = horon_submit(ctx, &desc, &slow->request);
    return status == HORON_OK ? horon_wait(slow->request, HORON_HOST_DONE, -1) : status;
}

static void end_slow_callback(struct slow *slow)
{
    sem_post(&slow->permission);
    horon_release(slow->request);
}

/* A callback that lasts must not keep others from waiting: it holds nothing of horon's. */
static void use_a_slow_callback(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static float quick[1];
    static struct slow slow;
    (void)arg;
    RANK_MUST(begin_slow_callback(ctx, &slow) == HORON_OK);
    for (int i = 0; i < 20; i++) {
        const horon_descriptor_t desc =
            job_sum(i % 2 ? "quick" : NULL, quick, 1, i % 2 ? 0 : HORON_IN_ORDER);
        RANK_MUST(horon_run(ctx, &desc, -1, NULL, 0) == HORON_OK);
    }
    end_slow_callback(&slow);
}

static void test_waits_go_on_while_a_callback_lasts(void **state)
{
    (void)state;
    job_run(1, NULL, use_a_slow_callback, NULL);
    job_run(3, NULL, use_a_slow_callback, NULL);
}

enum { IDLE_WAITS = 50, DEADLINE_S = 30 }; /* which only a failure reaches */

static void post(void *semaphore)
{
    sem_post(semaphore);
}

/* Rank 1 waits for rank 0 while its callback lasts, and rank 0 comes once that has been idle. */
static void use_a_slow_callback_and_a_late_rank(horon_context_t *ctx, void *arg,
                                                struct job_report *report)
{
    static float late[1];
    static struct slow slow;
    sem_t *idle = arg;
    struct timespec deadline;
    RANK_MUST(begin_slow_callback(ctx, &slow) == HORON_OK);
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += DEADLINE_S;
    if (horon_rank(ctx) == 1)
        idle_waits_count(IDLE_WAITS, post, idle);
    else
        RANK_MUST(sem_timedwait(idle, &deadline) == 0);
    const horon_descriptor_t desc = job_sum(NULL, late, 1, HORON_IN_ORDER);
    RANK_MUST(horon_run(ctx, &desc, -1, NULL, 0) == HORON_OK);
    end_slow_callback(&slow);
}

static void test_waits_take_no_core_while_a_callback_lasts(void **state)
{
    static const char *const settings[] = {"SPIN_US=0", NULL};
    (void)state;
    sem_t *idle =
        mmap(NULL, sizeof *idle, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(idle, MAP_FAILED);
    assert_int_equal(sem_init(idle, 1, 0), 0);
    job_run(2, settings, use_a_slow_callback_and_a_late_rank, idle);
    munmap(idle, sizeof *idle);
}

/* ---- how it ends badly ---------------------------------------------------------------------- */

static void cancel_one(horon_context_t *ctx, void *arg, struct job_report *report)
{
    float data[2] = {0};
    struct call call = new_call(ctx);
    horon_request_t *req;
    horon_descriptor_t desc = sum_with("alone", data, 2, note, &call);
    (void)arg;
    if (horon_rank(ctx) == 0) {
        RANK_MUST(horon_submit(ctx, &desc, &req) == HORON_OK);
        RANK_MUST(horon_cancel(req) == HORON_OK);
        sem_wait(&call.done);
        RANK_MUST(call.status == HORON_ERR_CANCELLED);
        RANK_MUST(horon_test(req, HORON_HOST_DONE) == HORON_ERR_CANCELLED);
        horon_release(req);
    }
    desc = job_sum("both", data, 2, 0);
    RANK_MUST(horon_run(ctx, &desc, -1, NULL, 0) == HORON_OK);
}

static void test_callback_of_a_cancelled_operation_says_so(void **state)
{
    (void)state;
    job_run(2, NULL, cancel_one, NULL);
}

static void count_if_closed(void *arg, horon_request_t *req, horon_status_t status)
{
    (void)req;
    if (status == HORON_ERR_CLOSED)
        atomic_fetch_add((atomic_int *)arg, 1);
}

static void leave_one_pending(horon_context_t *ctx, void *arg, struct job_report *report)
{
    static float data[2];
    horon_request_t *req;
    horon_descriptor_t desc = sum_with("pending", data, 2, count_if_closed, arg);
    if (horon_rank(ctx) == 0) {
        RANK_MUST(horon_submit(ctx, &desc, &req) == HORON_OK);
        horon_release(req);
    } /* and the context is destroyed */
}

static void test_destroying_a_context_calls_back_what_it_closes(void **state)
{
    atomic_int *closed =
        mmap(NULL, sizeof *closed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_ptr_not_equal(closed, MAP_FAILED);
    job_run(2, NULL, leave_one_pending, closed);
    assert_int_equal(atomic_load(closed), 1);
    munmap(closed, sizeof *closed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_callbacks_run_on_the_own_thread_only),
        cmocka_unit_test(test_callback_of_a_persistent_request_is_called_once_a_run),
        cmocka_unit_test(test_group_calls_back_for_each),
        cmocka_unit_test(test_callback_submits_the_next_and_releases_its_own),
        cmocka_unit_test(test_callback_that_waits_is_refused),
        cmocka_unit_test(test_waits_go_on_while_a_callback_lasts),
        cmocka_unit_test(test_waits_take_no_core_while_a_callback_lasts),
        cmocka_unit_test(test_callback_of_a_cancelled_operation_says_so),
        cmocka_unit_test(test_destroying_a_context_calls_back_what_it_closes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
