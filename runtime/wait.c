/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of the ABI on requests that are under way or over: ask, wait, cancel, let go, look at
 * the outcome. They change nothing of the engine but by posts.
 */
#include "wait.h"

#include "alloc.h"
#include "clock.h"
#include "versions.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Why this thread's last call was refused, and of which operation; a thread's own, not the
 * process's. */
static _Thread_local struct horon_error last_error;
static _Thread_local char last_name[HORON_NAME_BYTES_MAX + 1];
static _Thread_local char last_host[64]; /* of the rank it blames, where no context knows it */

struct horon_error *horon_thread_error(void)
{
    return &last_error;
}

void horon_thread_error_name(const char *name)
{
    snprintf(last_name, sizeof last_name, "%s", name ? name : "");
}

void horon_thread_error_host(const char *host)
{
    snprintf(last_host, sizeof last_host, "%s", host);
}

void horon_thread_forget(void)
{
    last_error.status = HORON_OK;
    last_error.text[0] = 0;
    last_name[0] = last_host[0] = 0;
}

static horon_status_t refuse(horon_status_t status, const char *text)
{
    last_name[0] = last_host[0] = 0;
    return horon_error_set(&last_error, status, "%s", text);
}

static horon_status_t check_started(const horon_request_t *req)
{
    if (atomic_load_explicit(&req->state, memory_order_relaxed) == HORON_REQUEST_IDLE)
        return refuse(HORON_ERR_INVALID, "the request was prepared and never started");
    return HORON_OK;
}

/* @return OK, it is or was in flight | refused */
static horon_status_t check(const horon_request_t *req, horon_completion_t kind)
{
    if (!req)
        return refuse(HORON_ERR_INVALID, "the request is NULL");
    if (kind != HORON_HOST_DONE && kind != HORON_STREAM_DONE)
        return refuse(HORON_ERR_INVALID, "there is no such kind of completion");
    if (horon_life_is_forked(&req->context->life))
        return refuse(HORON_ERR_FORKED, "this request belongs to the parent process of this fork");
    horon_thread_forget();
    return check_started(req);
}

horon_status_t horon_test(horon_request_t *req, horon_completion_t kind)
{
    const horon_status_t status = check(req, kind);
    if (status != HORON_OK)
        return status;
    if (!horon_request_ended(req))
        horon_context_move_here(req->context);
    return horon_request_ended(req) ? req->status : HORON_IN_PROGRESS;
}

/* @return the first failure among the first and those behind it that the wait went past, or OK; if
 * there was nothing to wait for, as horon_wait(). @param runs see wait.h @param over_out how many;
 * 0: time is up */
static horon_status_t wait_first(horon_request_t *const *reqs, const uint32_t *runs, size_t n,
                                 horon_completion_t kind, int64_t timeout_ms, size_t *over_out)
{
    struct horon_waited waited;
    *over_out = 1;
    horon_status_t status = check(reqs[0], kind);
    if (status != HORON_OK)
        return status;
    struct horon_context *ctx = reqs[0]->context;
    const bool calls_back = horon_context_on_progress_thread(ctx);
    if (calls_back && !horon_request_ended(reqs[0]))
        return refuse(HORON_ERR_INVALID, "a callback must not wait");
    status = horon_context_wait_runs(ctx, reqs, runs, calls_back ? 1 : n, timeout_ms, &waited);
    assert(waited.over > 0 || (status == HORON_ERR_TIMEOUT && timeout_ms >= 0));
    *over_out = waited.over;
    return waited.over > 0 ? waited.status : status;
}

horon_status_t horon_wait(horon_request_t *req, horon_completion_t kind, int64_t timeout_ms)
{
    size_t over;
    return wait_first(&req, NULL, 1, kind, timeout_ms, &over);
}

/* Else nothing starts one of them while this thread waits. */
static bool any_calls_back(horon_request_t *const *reqs, size_t n)
{
    size_t i = 0;
    while (i < n && !(reqs[i] && reqs[i]->callback))
        i++;
    return i < n;
}

/* The run that it is in now; or, if it was not started yet, the first. Behind the last number comes
 * 0, so that the number alone does not tell. */
static uint32_t note_run(const horon_request_t *req)
{
    const uint32_t word = atomic_load_explicit(&req->state, memory_order_acquire);
    return word == HORON_REQUEST_IDLE && req->persistent ? 1 : word / HORON_REQUEST_RUN;
}

static void note_runs(horon_request_t *const *reqs, size_t n, uint32_t *runs)
{
    for (size_t i = 0; i < n; i++)
        runs[i] = reqs[i] ? note_run(reqs[i]) : 0;
}

/* @param runs see wait.h */
static horon_status_t wait_all(horon_request_t *const *reqs, const uint32_t *runs, size_t n,
                               horon_completion_t kind, int64_t timeout_ms)
{
    uint64_t deadline =
        timeout_ms < 0 ? UINT64_MAX : horon_clock_deadline(horon_clock_ns(), timeout_ms);
    horon_status_t first = HORON_OK;
    for (size_t i = 0, over; i < n; i += over) {
        int64_t left = -1;
        if (timeout_ms >= 0) {
            uint64_t now = horon_clock_ns();
            left = now >= deadline ? 0 : (int64_t)((deadline - now + 999999u) / 1000000u);
        }
        const uint32_t *noted = runs ? runs + i : NULL;
        const horon_status_t status = wait_first(reqs + i, noted, n - i, kind, left, &over);
        if (over == 0)
            return HORON_ERR_TIMEOUT;
        if (first == HORON_OK)
            first = status;
    }
    return first;
}

/* One that a callback starts again counts as the run ended that it was in. Of many, without memory
 * to note the runs, that is the one that it is in when those before it are over. */
horon_status_t horon_wait_all(horon_request_t *const *reqs, size_t n, horon_completion_t kind,
                              int64_t timeout_ms)
{
    uint32_t few[64], *runs = NULL;
    if (any_calls_back(reqs, n))
        runs = n <= 64 ? few : horon_alloc(n * sizeof *runs);
    if (runs)
        note_runs(reqs, n, runs);
    const horon_status_t status = wait_all(reqs, runs, n, kind, timeout_ms);
    if (runs != few)
        horon_free(runs);
    return status;
}

horon_status_t horon_cancel(horon_request_t *req)
{
    horon_status_t status = horon_test(req, HORON_HOST_DONE);
    if (status == HORON_ERR_FORKED)
        return status;
    if (status != HORON_IN_PROGRESS)
        return refuse(HORON_ERR_INVALID, "the request is not in flight");
    if (req->in_order)
        return refuse(HORON_ERR_UNSUPPORTED,
                      "an in-order operation cannot be withdrawn: the other ranks run it");
    if (req->paired)
        return refuse(HORON_ERR_UNSUPPORTED,
                      "a message cannot be withdrawn: the other rank counts it");
    if (horon_engine_post_cancel(req->context->engine, req))
        horon_context_notify(req->context);
    return HORON_OK;
}

void horon_release(horon_request_t *req)
{
    if (!req)
        return;
    struct horon_context *ctx = req->context;
    if (horon_life_is_forked(&ctx->life))
        return; /* the parent's */
    atomic_store_explicit(&req->released, true, memory_order_relaxed);
    if (req->persistent && req->name && horon_engine_post(ctx->engine, &req->drop)) {
        horon_context_notify(ctx);
        return;
    }
    horon_request_unref(req);
}

const char *horon_request_error(const horon_request_t *req)
{
    if (!req || !horon_request_ended(req) || req->status >= 0)
        return "";
    return req->error_text ? req->error_text : horon_status_text(req->status);
}

/* Every version has its fields to `text` at least. */
static horon_status_t give_failure(horon_failure_t *given, const horon_failure_t *failure)
{
    struct horon_error why;
    if (!given)
        return refuse(HORON_ERR_INVALID, "failure_out is NULL");
    if (horon_struct_give("failure", given, offsetof(horon_failure_t, input_lost), failure,
                          sizeof *failure, &why) != HORON_OK)
        return refuse(why.status, why.text);
    return HORON_OK;
}

/* @return OK: it has ended meanwhile */
static horon_status_t refuse_in_flight(struct horon_request *request)
{
    struct horon_context *ctx = request->context;
    struct horon_explained explained;
    if (check_started(request) != HORON_OK)
        return HORON_ERR_INVALID;
    if (horon_context_on_progress_thread(ctx)) /* which must not wait */
        return refuse(HORON_ERR_INVALID, "the request has not ended");
    horon_context_explain(ctx, request, &explained);
    if (horon_request_ended(request))
        return HORON_OK;
    last_host[0] = 0;
    horon_thread_error_name(explained.name);
    horon_error_set(&last_error, HORON_ERR_INVALID, "%s is still in flight: %s", explained.what,
                    explained.why);
    horon_error_blame(&last_error, HORON_CAUSE_TIME_LIMIT, ctx->boot.topology.rank,
                      explained.awaited);
    return HORON_ERR_INVALID;
}

horon_status_t horon_request_failure(const horon_request_t *req, horon_failure_t *failure_out)
{
    horon_failure_t failure = HORON_FAILURE_INIT;
    if (!req)
        return refuse(HORON_ERR_INVALID, "the request is NULL");
    if (horon_life_is_forked(&req->context->life))
        return refuse(HORON_ERR_FORKED, "this request belongs to the parent process of this fork");
    if (!horon_request_ended(req)) {
        const horon_status_t refused = refuse_in_flight((struct horon_request *)(uintptr_t)req);
        if (refused != HORON_OK)
            return refused;
    }
    if (req->status < 0) {
        failure.status = req->status;
        failure.cause = (int32_t)req->blame.cause;
        failure.rank = req->blame.rank;
        failure.other_rank = req->blame.other_rank;
        failure.input_lost = req->blame.input_lost;
        failure.host = req->blamed_host;
        failure.name = req->op.name ? req->op.name : "";
        failure.text = horon_request_error(req);
    }
    return give_failure(failure_out, &failure);
}

horon_status_t horon_request_output(const horon_request_t *req, void **data_out,
                                    uint64_t *count_out, uint64_t *rows_out)
{
    if (!req)
        return refuse(HORON_ERR_INVALID, "the request is NULL");
    if (horon_life_is_forked(&req->context->life))
        return refuse(HORON_ERR_FORKED, "this request belongs to the parent process of this fork");
    if (!horon_request_ended(req) || req->status != HORON_OK)
        return refuse(HORON_ERR_INVALID, "the request has not ended well");
    if (data_out)
        *data_out = req->output;
    if (count_out)
        *count_out = req->output_count;
    if (rows_out) {
        size_t size = (size_t)req->size; /* the context may be gone */
        if (req->output_rows)
            memcpy(rows_out, req->output_rows, size * sizeof *rows_out);
        else
            memset(rows_out, 0, size * sizeof *rows_out);
    }
    return HORON_OK;
}

int32_t horon_join_last(const horon_request_t *join)
{
    const bool is_known =
        join && join->joins && horon_request_ended(join) && join->status == HORON_OK;
    return is_known ? join->joined : -1;
}

int32_t horon_request_joined(const horon_request_t *req)
{
    return req && !req->joins && horon_request_ended(req) ? req->joined : 0;
}

const char *horon_last_error(const horon_context_t *ctx)
{
    (void)ctx; /* kept by thread: the call that was refused last was on this context or on none */
    return last_error.text;
}

/* It tells of the call before, so it leaves the thread's error as it is. */
horon_status_t horon_last_failure(const horon_context_t *ctx, horon_failure_t *failure_out)
{
    horon_failure_t failure = HORON_FAILURE_INIT;
    const int rank = last_error.blame.rank;
    /* the call may have been on another context, which has more ranks */
    const char *host = horon_host_name(ctx, horon_host_of(ctx, rank));
    if (last_error.status != HORON_OK) {
        failure.status = last_error.status;
        failure.cause = (int32_t)last_error.blame.cause;
        failure.rank = rank;
        failure.other_rank = last_error.blame.other_rank;
        failure.input_lost = last_error.blame.input_lost;
        failure.name = last_name;
        failure.text = last_error.text;
        failure.host = host ? host : last_host;
    }
    return give_failure(failure_out, &failure);
}
