/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of the ABI that begin operations. They run on the caller's threads: they check, make a
 * request, post it, and let the token decide which thread works. What waits and lets go is in
 * wait.c.
 */
#include "context_state.h"

#include "alloc.h"
#include "clock.h"

#include <assert.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static horon_status_t refuse(struct horon_context *ctx)
{
    horon_thread_forget();
    if (!ctx)
        return horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "the context is NULL");
    if (atomic_load_explicit(&ctx->forked, memory_order_relaxed))
        return horon_error_set(horon_thread_error(), HORON_ERR_FORKED,
                               "this context belongs to the parent process of this fork");
    if (atomic_load_explicit(&ctx->closed, memory_order_relaxed))
        return horon_error_set(horon_thread_error(), HORON_ERR_CLOSED, "this context is shut down");
    const struct horon_error *failure = horon_engine_failure(ctx->engine);
    if (!failure)
        return HORON_OK;
    *horon_thread_error() = *failure;
    return failure->status;
}

/* Counts up to @p n more in flight. @return how many may be; fewer than n: the error is set */
static size_t count_flying(struct horon_context *ctx, size_t n)
{
    const uint32_t limit = (uint32_t)ctx->config.inflight_max;
    uint32_t tried = n < limit ? (uint32_t)n : limit;
    uint32_t before = atomic_fetch_add_explicit(&ctx->flying, tried, memory_order_relaxed);
    uint32_t allowed = before < limit ? limit - before : 0;
    if (allowed >= n)
        return n;
    allowed = allowed < tried ? allowed : tried;
    atomic_fetch_sub_explicit(&ctx->flying, tried - allowed, memory_order_relaxed);
    char more[64] = "";
    if (n > 1)
        snprintf(more, sizeof more, ", %zu more would begin together", n);
    horon_error_set(horon_thread_error(), HORON_ERR_MEMORY,
                    "%u requests are in flight%s, and HORON_INFLIGHT_MAX is %u", before, more,
                    limit);
    return allowed;
}

static void uncount_flying(struct horon_context *ctx, size_t n)
{
    const uint32_t before =
        atomic_fetch_sub_explicit(&ctx->flying, (uint32_t)n, memory_order_relaxed);
    assert(before >= n);
}

static horon_status_t mark_name(struct horon_request *request)
{
    if (!request->name ||
        !atomic_exchange_explicit(&request->name->in_flight, true, memory_order_acq_rel))
        return HORON_OK;
    char shown[HORON_NAME_BYTES_MAX + 1];
    horon_thread_error_name(request->name->text);
    return horon_error_set(horon_thread_error(), HORON_ERR_DUPLICATE,
                           "'%s' is already in flight on this rank",
                           horon_name_show(request->name->text, shown, sizeof shown));
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

static horon_status_t make_request(struct horon_context *ctx, struct horon_engine_team *team,
                                   const horon_descriptor_t *desc,
                                   struct horon_request **request_out)
{
    horon_status_t status = horon_request_create(
        &ctx->pool, desc, team, horon_engine_names(ctx->engine), request_out, horon_thread_error());
    if (status != HORON_OK)
        return status;
    assert(atomic_load_explicit(&(*request_out)->refs, memory_order_relaxed) == 1);
    (*request_out)->context = ctx;
    horon_context_ref(ctx);
    return HORON_OK;
}

/* ---- submitting ----------------------------------------------------------------------------- */

static horon_status_t post_one(struct horon_context *ctx, struct horon_request *request)
{
    if (count_flying(ctx, 1) != 1)
        return HORON_ERR_MEMORY;
    horon_status_t status = mark_name(request);
    if (status != HORON_OK) {
        uncount_flying(ctx, 1);
        return status;
    }
    launch(request);
    horon_engine_post(ctx->engine, &request->start);
    return HORON_OK;
}

horon_status_t horon_submit_to(struct horon_context *ctx, struct horon_engine_team *team,
                               const horon_descriptor_t *desc, horon_request_t **req_out)
{
    struct horon_request *request;
    horon_status_t status = make_request(ctx, team, desc, &request);
    if (status != HORON_OK)
        return status;
    status = post_one(ctx, request);
    if (status != HORON_OK) {
        horon_request_unref(request);
        return status;
    }
    horon_context_notify(ctx);
    *req_out = request;
    return HORON_OK;
}

horon_status_t horon_submit(horon_context_t *ctx, const horon_descriptor_t *desc,
                            horon_request_t **req_out)
{
    horon_status_t status = refuse(ctx);
    if (status == HORON_OK && !req_out)
        status = horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "req_out is NULL");
    return status == HORON_OK ? horon_submit_to(ctx, horon_engine_job(ctx->engine), desc, req_out)
                              : status;
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
        status = make_request(ctx, horon_engine_job(ctx->engine), &descs[*made_out], request);
        if (status != HORON_OK)
            return status;
        if ((*request)->in_order != reqs[0]->in_order) {
            (*made_out)++;
            return horon_error_set(horon_thread_error(), HORON_ERR_INVALID,
                                   "a group is all named or all in order");
        }
        if (n > 1 && !(*request)->in_order && !(*request)->name) {
            (*made_out)++;
            return horon_error_set(horon_thread_error(), HORON_ERR_INVALID,
                                   "a barrier that is one of a group needs a name");
        }
        hash = horon_hash_next(hash, (*request)->op.name_hash);
    }
    for (*marked_out = 0; *marked_out < n && status == HORON_OK; (*marked_out)++) {
        struct horon_request *request = reqs[*marked_out];
        status = mark_name(request);
        if (status != HORON_OK)
            return status;
        if (!request->in_order && n > 1) {
            request->op.agreed.group_hash = hash;
            request->op.agreed.group_size = (uint32_t)n;
            request->op.agreed.group_index = (uint32_t)*marked_out;
        }
    }
    return status;
}

/* Newest first, as the mailbox keeps them. */
static void post_all(struct horon_context *ctx, horon_request_t *const *reqs, size_t n)
{
    assert(n > 0);
    for (size_t i = 0; i < n; i++) {
        assert(reqs[i]->context == ctx);
        launch(reqs[i]);
        reqs[i]->start.next = i ? &reqs[i - 1]->start : NULL;
    }
    horon_engine_post_chain(ctx->engine, &reqs[n - 1]->start, &reqs[0]->start);
    horon_context_notify(ctx);
}

static horon_status_t submit_group(struct horon_context *ctx, const horon_descriptor_t *descs,
                                   size_t n, horon_request_t **reqs)
{
    size_t made = 0, marked = 0, counted = count_flying(ctx, n);
    if (counted < n) {
        uncount_flying(ctx, counted);
        return HORON_ERR_MEMORY;
    }
    horon_status_t status = make_group(ctx, descs, n, reqs, &made, &marked);
    if (status == HORON_OK) {
        post_all(ctx, reqs, n);
        return HORON_OK;
    }
    uncount_flying(ctx, n);
    for (size_t i = 0; i < marked; i++)
        unmark_name(reqs[i]);
    for (size_t i = 0; i < made; i++)
        horon_request_unref(reqs[i]);
    return status;
}

horon_status_t horon_submit_group(horon_context_t *ctx, const horon_descriptor_t *descs, size_t n,
                                  horon_request_t **reqs_out)
{
    horon_status_t status = refuse(ctx);
    if (status == HORON_OK && n && (!descs || !reqs_out))
        status =
            horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "descs or reqs_out is NULL");
    if (status != HORON_OK || n == 0)
        return status;
    horon_request_t *few[64], **many = NULL;
    if (n > 64)
        many = n > UINT32_MAX ? NULL : horon_zalloc(n, sizeof *many);
    if (n > 64 && !many)
        return horon_error_set(horon_thread_error(), HORON_ERR_MEMORY,
                               "no memory for a group of %zu", n);
    horon_request_t **reqs = many ? many : few;
    status = submit_group(ctx, descs, n, reqs);
    if (status == HORON_OK)
        memcpy(reqs_out, reqs, n * sizeof *reqs);
    horon_free(many);
    return status;
}

horon_status_t horon_prepare(horon_context_t *ctx, const horon_descriptor_t *desc,
                             horon_request_t **req_out)
{
    horon_status_t status = refuse(ctx);
    if (status == HORON_OK && !req_out)
        status = horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "req_out is NULL");
    if (status == HORON_OK)
        status = make_request(ctx, horon_engine_job(ctx->engine), desc, req_out);
    if (status == HORON_OK)
        (*req_out)->persistent = true;
    return status;
}

/* Takes a prepared request for this run: of several threads that start it one gets it. */
static horon_status_t claim(struct horon_request *request)
{
    if (atomic_load_explicit(&request->released, memory_order_relaxed))
        return horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "the request was released");
    uint32_t state = atomic_load_explicit(&request->state, memory_order_acquire);
    if ((state & HORON_REQUEST_STATE_MASK) == HORON_REQUEST_FLYING ||
        !atomic_compare_exchange_strong(&request->state, &state, HORON_REQUEST_FLYING))
        return horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "the request is in flight");
    horon_status_t status = mark_name(request);
    if (status != HORON_OK) { /* it is as it was */
        atomic_store_explicit(&request->state, state, memory_order_release);
        return status;
    }
    /* a thread that waits sees by this that the run before has ended, even if it never saw the
     * state */
    atomic_fetch_add_explicit(&request->runs, 1, memory_order_release);
    horon_request_reset(request);
    return HORON_OK;
}

/* How many of the first of @p n requests belong to @p ctx. */
static size_t run_of(const struct horon_context *ctx, horon_request_t *const *reqs, size_t n)
{
    size_t length = 0;
    while (length < n && reqs[length] && reqs[length]->persistent && reqs[length]->context == ctx)
        length++;
    return length;
}

/* Starts requests of one context: counted, posted and announced as one.
 * @return how many were started; fewer than @p n: the error is set, and told by *status_out */
static size_t start_run(struct horon_context *ctx, horon_request_t *const *reqs, size_t n,
                        horon_status_t *status_out)
{
    size_t counted = count_flying(ctx, n), started = 0;
    assert(counted <= n);
    horon_status_t status = counted < n ? HORON_ERR_MEMORY : HORON_OK;
    for (; started < counted; started++) {
        horon_status_t claimed = claim(reqs[started]);
        if (claimed != HORON_OK) {
            status = claimed;
            break;
        }
    }
    uncount_flying(ctx, counted - started);
    if (started)
        post_all(ctx, reqs, started);
    *status_out = status;
    return started;
}

horon_status_t horon_start_all(horon_request_t *const *reqs, size_t n, size_t *n_started_out)
{
    horon_status_t status = HORON_OK;
    size_t started = 0;
    horon_thread_forget();
    while (started < n && status == HORON_OK) {
        struct horon_context *ctx = reqs[started] ? reqs[started]->context : NULL;
        size_t length = ctx ? run_of(ctx, reqs + started, n - started) : 0;
        if (length == 0)
            status = horon_error_set(horon_thread_error(), HORON_ERR_INVALID,
                                     "the request was not prepared");
        else
            status = refuse(ctx);
        if (status == HORON_OK)
            started += start_run(ctx, reqs + started, length, &status);
    }
    if (n_started_out)
        *n_started_out = started;
    return status;
}

horon_status_t horon_start(horon_request_t *req)
{
    return horon_start_all(&req, 1, NULL);
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
    if (request->status == HORON_OK)
        return HORON_OK;
    horon_error_set(error, request->status, "%s",
                    request->error_text ? request->error_text : horon_status_text(request->status));
    error->blame = request->blame;
    horon_thread_error_name(request->op.name);
    return request->status;
}

/* How long the other ranks may take to say which of them lacks an operation. */
#define EXPLAIN_MS 50

/* The other ranks run the operation, and this one must return its buffers: without it the sequence
 * is broken for all, so every rank is told which one gave up, and what it waited for. */
static horon_status_t give_up(struct horon_context *ctx, struct horon_request *request,
                              int64_t timeout_ms, struct horon_error *error)
{
    char what[128 + HORON_NAME_BYTES_MAX], why[HORON_ERROR_TEXT_BYTES / 2];
    struct horon_error gave_up;
    horon_request_describe(request, what, sizeof what);
    horon_token_take(ctx);
    horon_engine_progress(ctx->engine); /* it may lie in the mailbox, or end just now */
    if (request->linked) {
        horon_engine_explain(ctx->engine, request, why, sizeof why);
        const int self = ctx->boot.topology.rank;
        horon_error_set(&gave_up, HORON_ERR_TIMEOUT, "%s gave it up after %lld ms: %s",
                        horon_engine_rank_names(ctx->engine)[self], (long long)timeout_ms, why);
        horon_error_blame(&gave_up, HORON_CAUSE_TIME_LIMIT, self,
                          horon_engine_awaited(ctx->engine, request));
        horon_engine_fail(ctx->engine, &gave_up);
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
    int awaited = -1;
    horon_request_describe(request, what, sizeof what);
    horon_token_take(ctx);
    if (!horon_request_ended(request))
        horon_engine_ask(ctx->engine, request);
    horon_token_release(ctx);
    horon_context_wait(ctx, request, EXPLAIN_MS);
    horon_token_take(ctx);
    if (!horon_request_ended(request)) {
        horon_engine_explain(ctx->engine, request, why, sizeof why);
        awaited = horon_engine_awaited(ctx->engine, request);
    }
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
    horon_error_set(error, HORON_ERR_TIMEOUT, "%s did not finish in %lld ms: %s", what,
                    (long long)timeout_ms, why);
    horon_error_blame(error, HORON_CAUSE_TIME_LIMIT, ctx->boot.topology.rank, awaited);
    horon_thread_error_name(request->op.name);
    return HORON_ERR_TIMEOUT;
}

static horon_status_t run_posted(struct horon_context *ctx, const horon_descriptor_t *desc,
                                 int64_t timeout_ms, struct horon_error *error)
{
    struct horon_request *request;
    horon_status_t status = make_request(ctx, horon_engine_job(ctx->engine), desc, &request);
    if (status != HORON_OK)
        return status;
    request->nobodys = true;
    status = post_one(ctx, request);
    if (status != HORON_OK) {
        horon_request_unref(request);
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
    horon_request_unref(request);
    return status;
}

/* In order and alone: begun and driven here and now, from the stack. */
static horon_status_t run_now(struct horon_context *ctx, struct horon_request *request,
                              int64_t timeout_ms, struct horon_error *error)
{
    uint64_t deadline =
        timeout_ms < 0 ? UINT64_MAX : horon_clock_deadline(horon_clock_ns(), timeout_ms);
    assert(request->in_order && !request->context); /* of no context: nobody counts it */
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

/* Is the size of its output here known only once the ranks have met? */
static bool learns_output(const struct horon_context *ctx, const horon_descriptor_t *desc)
{
    return desc->verb < HORON_VERB_COUNT &&
           horon_verb_rows[desc->verb].ahead != HORON_AHEAD_NOTHING &&
           horon_ranks_include(horon_verb_rows[desc->verb].writes, desc->root, horon_rank(ctx));
}

/* @p error is the thread's */
static horon_status_t run(struct horon_context *ctx, const horon_descriptor_t *desc,
                          int64_t timeout_ms, struct horon_error *error)
{
    horon_status_t status = refuse(ctx);
    if (status == HORON_OK && horon_on_progress_thread(ctx))
        status =
            horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "a callback must not wait");
    if (status == HORON_OK && desc && learns_output(ctx, desc) &&
        desc->struct_bytes >= offsetof(horon_descriptor_t, dst_count) && !desc->dst && !desc->alloc)
        status =
            horon_error_set(horon_thread_error(), HORON_ERR_INVALID,
                            "horon_run() of %s needs dst or alloc", horon_verb_name(desc->verb));
    if (status != HORON_OK)
        return status;
    if (!desc || !(desc->flags & HORON_IN_ORDER) || !horon_token_try(ctx))
        return run_posted(ctx, desc, timeout_ms, error);
    struct horon_request request;
    memset(&request, 0, sizeof request);
    status = horon_request_init(&request, desc, horon_engine_job(ctx->engine),
                                horon_engine_names(ctx->engine), error);
    if (status != HORON_OK) {
        horon_token_release(ctx);
        return status;
    }
    request.nobodys = true;
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
    struct horon_error *error = horon_thread_error();
    horon_status_t status = run(ctx, desc, timeout_ms, error);
    horon_error_copy_text(error, error_text, error_bytes);
    return status;
}
