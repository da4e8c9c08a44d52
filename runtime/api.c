/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of the ABI that submit, wait and release. They run on the caller's threads: they check,
 * make a request, post it, and let the token decide who works.
 */
#include "context_state.h"

#include "alloc.h"
#include "clock.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* Of this thread, for horon_last_error(); a thread's own, not the process's. */
static _Thread_local struct horon_error last_error;

static horon_status_t refuse(struct horon_context *ctx)
{
    const char *text;
    if (!ctx)
        return horon_error_set(&last_error, HORON_ERR_INVALID, "the context is NULL");
    if (atomic_load_explicit(&ctx->forked, memory_order_relaxed))
        return horon_error_set(&last_error, HORON_ERR_FORKED,
                               "this context belongs to the parent process of this fork");
    if (atomic_load_explicit(&ctx->closed, memory_order_relaxed))
        return horon_error_set(&last_error, HORON_ERR_CLOSED, "this context is shut down");
    horon_status_t status = horon_engine_failure(ctx->engine, &text);
    if (status != HORON_OK)
        return horon_error_set(&last_error, status, "%s", text);
    last_error.text[0] = 0;
    return HORON_OK;
}

/* Counts @p n more in flight, if they may be. */
static horon_status_t count_flying(struct horon_context *ctx, size_t n)
{
    uint32_t before = atomic_fetch_add_explicit(&ctx->flying, (uint32_t)n, memory_order_relaxed);
    if (before + n <= (uint64_t)ctx->config.inflight_max)
        return HORON_OK;
    atomic_fetch_sub_explicit(&ctx->flying, (uint32_t)n, memory_order_relaxed);
    return horon_error_set(&last_error, HORON_ERR_MEMORY,
                           "%u requests are in flight, and INFLIGHT_MAX is %lld", before,
                           (long long)ctx->config.inflight_max);
}

static horon_status_t mark_name(struct horon_request *request)
{
    if (!request->name ||
        !atomic_exchange_explicit(&request->name->in_flight, true, memory_order_acq_rel))
        return HORON_OK;
    return horon_error_set(&last_error, HORON_ERR_DUPLICATE,
                           "'%s' is already in flight on this rank", request->name->text);
}

static void unmark_name(struct horon_request *request)
{
    if (request->name)
        atomic_store_explicit(&request->name->in_flight, false, memory_order_release);
}

/* Ready to be posted: FLYING, with the engine's reference. */
static void launch(struct horon_request *request)
{
    atomic_fetch_add_explicit(&request->refs, 1, memory_order_relaxed);
    atomic_store_explicit(&request->state, HORON_REQUEST_FLYING, memory_order_release);
}

static void drop_user_reference(struct horon_request *request)
{
    struct horon_context *ctx = request->context;
    if (atomic_fetch_sub_explicit(&request->refs, 1, memory_order_acq_rel) != 1)
        return;
    horon_request_deinit(request, horon_engine_names(ctx->engine));
    horon_free(request);
    horon_context_unref(ctx);
}

static horon_status_t make_request(struct horon_context *ctx, const horon_descriptor_t *desc,
                                   struct horon_request **request_out)
{
    horon_status_t status =
        horon_request_create(desc, ctx->boot.topology.rank, ctx->boot.topology.size,
                             horon_engine_names(ctx->engine), request_out, &last_error);
    if (status != HORON_OK)
        return status;
    (*request_out)->context = ctx;
    horon_context_ref(ctx);
    return HORON_OK;
}

/* ---- submitting ----------------------------------------------------------------------------- */

static horon_status_t post_one(struct horon_context *ctx, struct horon_request *request)
{
    horon_status_t status = count_flying(ctx, 1);
    if (status != HORON_OK)
        return status;
    status = mark_name(request);
    if (status != HORON_OK) {
        atomic_fetch_sub_explicit(&ctx->flying, 1, memory_order_relaxed);
        return status;
    }
    if (request->persistent)
        horon_request_reset(request);
    launch(request);
    horon_engine_post(ctx->engine, &request->start);
    return HORON_OK;
}

horon_status_t horon_submit(horon_context_t *ctx, const horon_descriptor_t *desc,
                            horon_request_t **req_out)
{
    struct horon_request *request;
    horon_status_t status = refuse(ctx);
    if (status == HORON_OK && !req_out)
        status = horon_error_set(&last_error, HORON_ERR_INVALID, "req_out is NULL");
    if (status == HORON_OK)
        status = make_request(ctx, desc, &request);
    if (status != HORON_OK)
        return status;
    status = post_one(ctx, request);
    if (status != HORON_OK) {
        drop_user_reference(request);
        return status;
    }
    horon_context_notify(ctx);
    *req_out = request;
    return HORON_OK;
}

/* Makes, counts and marks all of a group. @p made_out: how many are to be undone on a failure */
static horon_status_t make_group(struct horon_context *ctx, const horon_descriptor_t *descs,
                                 size_t n, horon_request_t **reqs, size_t *made_out,
                                 size_t *marked_out)
{
    horon_status_t status = HORON_OK;
    uint64_t hash = n;
    for (*made_out = 0; *made_out < n && status == HORON_OK; (*made_out)++) {
        struct horon_request **request = &reqs[*made_out];
        status = make_request(ctx, &descs[*made_out], request);
        if (status != HORON_OK)
            return status;
        if ((*request)->in_order != reqs[0]->in_order) {
            (*made_out)++;
            return horon_error_set(&last_error, HORON_ERR_INVALID,
                                   "a group is all named or all in order");
        }
        if (descs[*made_out].name)
            hash = XXH3_64bits_withSeed(descs[*made_out].name, strlen(descs[*made_out].name), hash);
    }
    for (*marked_out = 0; *marked_out < n && status == HORON_OK; (*marked_out)++) {
        struct horon_request *request = reqs[*marked_out];
        status = mark_name(request);
        if (status != HORON_OK)
            return status;
        if (request->tensor && n > 1) {
            request->tensor->group_hash = hash;
            request->tensor->group_size = (uint32_t)n;
            request->tensor->group_index = (uint32_t)*marked_out;
        }
    }
    return status;
}

/* Newest first, as the mailbox keeps them. */
static void post_all(struct horon_context *ctx, horon_request_t *const *reqs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        launch(reqs[i]);
        reqs[i]->start.next = i ? &reqs[i - 1]->start : NULL;
    }
    horon_engine_post_chain(ctx->engine, &reqs[n - 1]->start, &reqs[0]->start);
    horon_context_notify(ctx);
}

static horon_status_t submit_group(struct horon_context *ctx, const horon_descriptor_t *descs,
                                   size_t n, horon_request_t **reqs)
{
    size_t made = 0, marked = 0;
    horon_status_t status = count_flying(ctx, n);
    if (status != HORON_OK)
        return status;
    status = make_group(ctx, descs, n, reqs, &made, &marked);
    if (status == HORON_OK) {
        post_all(ctx, reqs, n);
        return HORON_OK;
    }
    atomic_fetch_sub_explicit(&ctx->flying, (uint32_t)n, memory_order_relaxed);
    for (size_t i = 0; i < marked; i++)
        unmark_name(reqs[i]);
    for (size_t i = 0; i < made; i++)
        drop_user_reference(reqs[i]);
    return status;
}

horon_status_t horon_submit_group(horon_context_t *ctx, const horon_descriptor_t *descs, size_t n,
                                  horon_request_t **reqs_out)
{
    horon_status_t status = refuse(ctx);
    if (status == HORON_OK && n && (!descs || !reqs_out))
        status = horon_error_set(&last_error, HORON_ERR_INVALID, "descs or reqs_out is NULL");
    if (status != HORON_OK || n == 0)
        return status;
    horon_request_t **reqs = n > UINT32_MAX ? NULL : horon_zalloc(n, sizeof *reqs);
    if (!reqs)
        return horon_error_set(&last_error, HORON_ERR_MEMORY, "no memory for a group of %zu", n);
    status = submit_group(ctx, descs, n, reqs);
    if (status == HORON_OK)
        memcpy(reqs_out, reqs, n * sizeof *reqs);
    horon_free(reqs);
    return status;
}

horon_status_t horon_prepare(horon_context_t *ctx, const horon_descriptor_t *desc,
                             horon_request_t **req_out)
{
    horon_status_t status = refuse(ctx);
    if (status == HORON_OK && !req_out)
        status = horon_error_set(&last_error, HORON_ERR_INVALID, "req_out is NULL");
    if (status == HORON_OK)
        status = make_request(ctx, desc, req_out);
    if (status == HORON_OK)
        (*req_out)->persistent = true;
    return status;
}

static horon_status_t start_one(struct horon_request *request)
{
    if (!request || !request->persistent)
        return horon_error_set(&last_error, HORON_ERR_INVALID, "the request was not prepared");
    horon_status_t status = refuse(request->context);
    if (status != HORON_OK)
        return status;
    /* of several threads that start it one gets it */
    uint32_t state = atomic_load_explicit(&request->state, memory_order_acquire);
    if ((state & HORON_REQUEST_STATE_MASK) == HORON_REQUEST_FLYING ||
        !atomic_compare_exchange_strong(&request->state, &state, HORON_REQUEST_FLYING))
        return horon_error_set(&last_error, HORON_ERR_INVALID, "the request is in flight");
    status = post_one(request->context, request);
    if (status != HORON_OK) /* it is as it was */
        atomic_store_explicit(&request->state, state, memory_order_release);
    return status;
}

horon_status_t horon_start(horon_request_t *req)
{
    horon_status_t status = start_one(req);
    if (status == HORON_OK)
        horon_context_notify(req->context);
    return status;
}

horon_status_t horon_start_all(horon_request_t *const *reqs, size_t n, size_t *n_started_out)
{
    horon_status_t status = HORON_OK;
    size_t started = 0;
    while (started < n && status == HORON_OK) {
        status = start_one(reqs[started]);
        started += status == HORON_OK;
    }
    if (started)
        horon_context_notify(reqs[0]->context);
    if (n_started_out)
        *n_started_out = started;
    return status;
}

/* ---- running one to its end ----------------------------------------------------------------- */

/* Ended, called back, and let go of by the engine: it may leave the stack. */
static void wait_for_engine(struct horon_request *request)
{
    while (atomic_load_explicit(&request->refs, memory_order_acquire) != 1)
        sched_yield();
}

static horon_status_t take_result(struct horon_request *request, struct horon_error *error)
{
    if (request->status != HORON_OK)
        horon_error_set(error, request->status, "%s",
                        request->error_text ? request->error_text
                                            : horon_status_text(request->status));
    return request->status;
}

/* How long the other ranks may take to say which of them lacks an operation. */
#define EXPLAIN_MS 50

/* The other ranks run the operation, and this one must return its buffers: without it the sequence
 * is broken for all, so all are told who gave up and what it waited for. */
static horon_status_t give_up(struct horon_context *ctx, struct horon_request *request,
                              int64_t timeout_ms, struct horon_error *error)
{
    char what[128 + HORON_NAME_BYTES_MAX], why[HORON_ERROR_TEXT_BYTES / 2];
    char text[HORON_ERROR_TEXT_BYTES];
    horon_request_describe(request, what, sizeof what);
    horon_token_take(ctx);
    horon_engine_progress(ctx->engine); /* it may lie in the mailbox, or end just now */
    if (request->linked) {
        horon_engine_explain(ctx->engine, request, why, sizeof why);
        snprintf(text, sizeof text, "%s gave it up after %lld ms: %s",
                 horon_engine_rank_names(ctx->engine)[ctx->boot.topology.rank],
                 (long long)timeout_ms, why);
        horon_engine_fail(ctx->engine, HORON_ERR_TIMEOUT, text);
    }
    horon_token_release(ctx);
    horon_context_wait(ctx, request, -1);
    return take_result(request, error);
}

/* A withdrawal is confirmed, and what has begun ends, unless a rank does its part no more: one that
 * was stopped. @return false: nothing of it has moved for PEER_TIMEOUT */
static bool ends_yet(struct horon_context *ctx, struct horon_request *request)
{
    uint64_t moves = UINT64_MAX, before;
    do {
        before = moves;
        horon_token_take(ctx);
        moves = horon_engine_moves(ctx->engine, request);
        horon_token_release(ctx);
        if (moves == before)
            return false;
    } while (horon_context_wait(ctx, request, ctx->config.peer_timeout_ms) != HORON_OK);
    return true;
}

/* With a named error if the limit passes: which ranks it waits for. */
static horon_status_t withdraw(struct horon_context *ctx, struct horon_request *request,
                               int64_t timeout_ms, struct horon_error *error)
{
    char what[128 + HORON_NAME_BYTES_MAX], why[HORON_ERROR_TEXT_BYTES / 2] = "";
    horon_request_describe(request, what, sizeof what);
    horon_token_take(ctx);
    if (!horon_request_ended(request))
        horon_engine_ask(ctx->engine, request);
    horon_token_release(ctx);
    horon_context_wait(ctx, request, EXPLAIN_MS);
    horon_token_take(ctx);
    if (!horon_request_ended(request))
        horon_engine_explain(ctx->engine, request, why, sizeof why);
    horon_token_release(ctx);
    atomic_fetch_add_explicit(&request->refs, 1, memory_order_relaxed);
    horon_engine_post(ctx->engine, &request->cancel);
    horon_context_notify(ctx);
    if (!ends_yet(ctx, request))
        return give_up(ctx, request, timeout_ms, error);
    if (request->status == HORON_OK)
        return HORON_OK; /* it was too late to withdraw, and went well */
    if (request->status != HORON_ERR_CANCELLED)
        return take_result(request, error);
    return horon_error_set(error, HORON_ERR_TIMEOUT, "%s did not finish in %lld ms: %s", what,
                           (long long)timeout_ms, why);
}

static horon_status_t run_posted(struct horon_context *ctx, const horon_descriptor_t *desc,
                                 int64_t timeout_ms, struct horon_error *error)
{
    struct horon_request *request;
    horon_status_t status = make_request(ctx, desc, &request);
    if (status != HORON_OK) {
        *error = last_error;
        return status;
    }
    status = post_one(ctx, request);
    if (status != HORON_OK) {
        *error = last_error;
        drop_user_reference(request);
        return status;
    }
    /* nobody is woken: this thread is about to drive */
    status = horon_context_wait(ctx, request, timeout_ms);
    if (status == HORON_ERR_TIMEOUT && request->in_order)
        status = give_up(ctx, request, timeout_ms, error);
    else if (status == HORON_ERR_TIMEOUT)
        status = withdraw(ctx, request, timeout_ms, error);
    else
        status = take_result(request, error);
    if (request->callback)
        wait_for_engine(request); /* it has been called when horon_run() returns */
    drop_user_reference(request);
    return status;
}

/* In order and alone: begun and driven here and now, from the stack. */
static horon_status_t run_now(struct horon_context *ctx, struct horon_request *request,
                              int64_t timeout_ms, struct horon_error *error)
{
    uint64_t deadline =
        timeout_ms < 0 ? UINT64_MAX : horon_clock_deadline(horon_clock_ns(), timeout_ms);
    horon_drive_ordered(ctx, request, deadline);
    horon_token_release(ctx);
    if (!horon_request_ended(request)) {
        int64_t left = timeout_ms;
        if (timeout_ms >= 0) {
            uint64_t now = horon_clock_ns();
            left = now >= deadline ? 0 : (int64_t)((deadline - now) / 1000000u);
        }
        if (horon_context_wait(ctx, request, left) == HORON_ERR_TIMEOUT) {
            horon_status_t status = give_up(ctx, request, timeout_ms, error);
            wait_for_engine(request);
            return status;
        }
    }
    wait_for_engine(request);
    return take_result(request, error);
}

static horon_status_t run(struct horon_context *ctx, const horon_descriptor_t *desc,
                          int64_t timeout_ms, struct horon_error *error)
{
    horon_status_t status = refuse(ctx);
    if (status == HORON_OK && horon_on_progress_thread(ctx))
        status = horon_error_set(&last_error, HORON_ERR_INVALID, "a callback must not wait");
    if (status == HORON_OK && desc && desc->verb == HORON_ALLGATHER &&
        desc->struct_bytes == sizeof *desc && !desc->dst && !desc->alloc)
        status = horon_error_set(&last_error, HORON_ERR_INVALID,
                                 "horon_run() of an allgather needs dst or alloc");
    if (status != HORON_OK) {
        *error = last_error;
        return status;
    }
    if (!desc || !(desc->flags & HORON_IN_ORDER) || !horon_token_try(ctx))
        return run_posted(ctx, desc, timeout_ms, error);
    struct horon_request request;
    status = horon_request_init(&request, desc, ctx->boot.topology.rank, ctx->boot.topology.size,
                                horon_engine_names(ctx->engine), error);
    if (status != HORON_OK) {
        horon_token_release(ctx);
        return status;
    }
    launch(&request);
    if (!horon_engine_begin_now(ctx->engine, &request)) {
        horon_token_release(ctx);
        horon_request_deinit(&request, horon_engine_names(ctx->engine));
        return run_posted(ctx, desc, timeout_ms, error);
    }
    status = run_now(ctx, &request, timeout_ms, error);
    horon_request_deinit(&request, horon_engine_names(ctx->engine));
    return status;
}

horon_status_t horon_run(horon_context_t *ctx, const horon_descriptor_t *desc, int64_t timeout_ms,
                         char *error_text, size_t error_bytes)
{
    struct horon_error error;
    error.text[0] = 0;
    horon_status_t status = run(ctx, desc, timeout_ms, &error);
    horon_error_copy_text(&error, error_text, error_bytes);
    return status;
}

/* ---- waiting and letting go ----------------------------------------------------------------- */

horon_status_t horon_test(horon_request_t *req, horon_completion_t kind)
{
    (void)kind; /* host memory: both mean the same */
    if (!req)
        return HORON_ERR_INVALID;
    if (atomic_load_explicit(&req->context->forked, memory_order_relaxed))
        return HORON_ERR_FORKED;
    uint32_t state = atomic_load_explicit(&req->state, memory_order_acquire);
    switch (state & HORON_REQUEST_STATE_MASK) {
    case HORON_REQUEST_FLYING:
        return HORON_IN_PROGRESS;
    case HORON_REQUEST_ENDED:
        return req->status;
    default:
        return HORON_ERR_INVALID;
    }
}

horon_status_t horon_wait(horon_request_t *req, horon_completion_t kind, int64_t timeout_ms)
{
    horon_status_t status = horon_test(req, kind);
    if (status != HORON_IN_PROGRESS)
        return status;
    struct horon_context *ctx = req->context;
    if (horon_on_progress_thread(ctx))
        return horon_error_set(&last_error, HORON_ERR_INVALID, "a callback must not wait");
    status = horon_context_wait(ctx, req, timeout_ms);
    return status == HORON_OK ? req->status : status;
}

horon_status_t horon_wait_all(horon_request_t *const *reqs, size_t n, horon_completion_t kind,
                              int64_t timeout_ms)
{
    uint64_t deadline =
        timeout_ms < 0 ? UINT64_MAX : horon_clock_deadline(horon_clock_ns(), timeout_ms);
    horon_status_t first = HORON_OK;
    for (size_t i = 0; i < n; i++) {
        horon_status_t status = horon_test(reqs[i], kind);
        if (status == HORON_IN_PROGRESS) {
            int64_t left = -1;
            if (timeout_ms >= 0) {
                uint64_t now = horon_clock_ns();
                left = now >= deadline ? 0 : (int64_t)((deadline - now + 999999u) / 1000000u);
            }
            status = horon_wait(reqs[i], kind, left);
            if (status == HORON_ERR_TIMEOUT && horon_test(reqs[i], kind) == HORON_IN_PROGRESS)
                return HORON_ERR_TIMEOUT;
        }
        if (first == HORON_OK)
            first = status;
    }
    return first;
}

horon_status_t horon_cancel(horon_request_t *req)
{
    horon_status_t status = horon_test(req, HORON_HOST_DONE);
    if (status == HORON_ERR_FORKED)
        return status;
    if (status != HORON_IN_PROGRESS)
        return horon_error_set(&last_error, HORON_ERR_INVALID, "the request is not in flight");
    if (req->in_order)
        return horon_error_set(&last_error, HORON_ERR_UNSUPPORTED,
                               "an in-order operation cannot be withdrawn: the other ranks run it");
    if (atomic_exchange(&req->cancel_posted, true))
        return HORON_OK;
    atomic_fetch_add_explicit(&req->refs, 1, memory_order_relaxed);
    if (!horon_engine_post(req->context->engine, &req->cancel))
        drop_user_reference(req);
    else
        horon_context_notify(req->context);
    return HORON_OK;
}

void horon_release(horon_request_t *req)
{
    if (!req)
        return;
    struct horon_context *ctx = req->context;
    if (atomic_load_explicit(&ctx->forked, memory_order_relaxed))
        return; /* the parent's */
    if (req->persistent && req->name && horon_engine_post(ctx->engine, &req->drop)) {
        horon_context_notify(ctx);
        return;
    }
    drop_user_reference(req);
}

const char *horon_request_error(const horon_request_t *req)
{
    if (!req || !horon_request_ended(req) || req->status >= 0)
        return "";
    return req->error_text ? req->error_text : horon_status_text(req->status);
}

horon_status_t horon_request_output(const horon_request_t *req, void **data_out,
                                    uint64_t *count_out, uint64_t *rows_out)
{
    if (req && atomic_load_explicit(&req->context->forked, memory_order_relaxed))
        return HORON_ERR_FORKED;
    if (!req || !horon_request_ended(req) || req->status != HORON_OK)
        return HORON_ERR_INVALID;
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

const char *horon_last_error(const horon_context_t *ctx)
{
    (void)ctx; /* kept by thread: its last refused call was on this context, or on none since */
    return last_error.text;
}
