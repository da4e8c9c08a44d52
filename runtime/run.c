/* SPDX-License-Identifier: Apache-2.0 */
/*
 * horon_run(): one operation from its beginning to its end, by the thread that calls. In order and
 * alone it is begun and driven here and now, and mostly over at once; else it is posted and waited
 * for. Past its time limit it is withdrawn, or, where the other ranks run it, given up with its
 * process set.
 */
#include "submit.h"
#include "wait.h"

#include "clock.h"
#include "engine/kept.h"

#include <assert.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

/* Ended, called back, and let go of by the engine: it may be freed. */
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
    char why[HORON_ERROR_TEXT_BYTES / 2];
    struct horon_error gave_up;
    horon_token_take(ctx);
    horon_engine_progress(ctx->engine); /* it may lie in the mailbox, or end just now */
    if (request->linked) {
        horon_engine_explain(ctx->engine, request, why, sizeof why);
        const int self = ctx->boot.topology.rank;
        horon_error_set(&gave_up, HORON_ERR_TIMEOUT, "%s gave it up after %lld ms: %s",
                        horon_engine_rank_names(ctx->engine)[self], (long long)timeout_ms, why);
        horon_error_blame(&gave_up, HORON_CAUSE_TIME_LIMIT, self,
                          horon_engine_awaited(ctx->engine, request));
        horon_team_fail(request->team, &gave_up);
    }
    horon_token_release(ctx);
    horon_context_wait(ctx, &request, 1, -1, NULL);
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
    } while (horon_context_wait(ctx, &request, 1, ctx->config.peer_timeout_ms, NULL) != HORON_OK);
    return true;
}

/* One that has ended but for its callback is not linked any more, and waits for nobody; its process
 * set may be gone. */
void horon_context_explain(struct horon_context *ctx, struct horon_request *request,
                           struct horon_explained *explained_out)
{
    *explained_out = (struct horon_explained){.awaited = -1, .why = "it is about to end"};
    horon_token_take(ctx);
    (void)horon_token_look(ctx); /* it may lie in the mailbox */
    /* the driver names what has no name */
    horon_request_describe(request, explained_out->what, sizeof explained_out->what);
    const bool asked = request->linked && horon_engine_ask(ctx->engine, request);
    horon_token_release(ctx);
    if (asked)
        horon_context_wait(ctx, &request, 1, EXPLAIN_MS, NULL);
    if (horon_request_ended(request))
        return;
    horon_token_take(ctx);
    if (request->linked) {
        horon_engine_explain(ctx->engine, request, explained_out->why, sizeof explained_out->why);
        explained_out->awaited = horon_engine_awaited(ctx->engine, request);
    }
    horon_token_release(ctx);
}

/* With a named error if the limit passes: which ranks it waits for. */
static horon_status_t withdraw(struct horon_context *ctx, struct horon_request *request,
                               int64_t timeout_ms, struct horon_error *error)
{
    struct horon_explained explained;
    horon_context_explain(ctx, request, &explained);
    horon_engine_post_cancel(ctx->engine, request);
    horon_context_notify(ctx);
    if (!ends_yet(ctx, request))
        return give_up(ctx, request, timeout_ms, error);
    if (request->status == HORON_OK)
        return HORON_OK; /* it was too late to withdraw, and went well */
    if (request->status != HORON_ERR_CANCELLED)
        return take_result(request, error);
    horon_error_set(error, HORON_ERR_TIMEOUT, "%s did not finish in %lld ms: %s", explained.what,
                    (long long)timeout_ms, explained.why);
    horon_error_blame(error, HORON_CAUSE_TIME_LIMIT, ctx->boot.topology.rank, explained.awaited);
    horon_thread_error_name(request->op.name);
    return HORON_ERR_TIMEOUT;
}

horon_status_t horon_team_run(struct horon_context *ctx, struct horon_engine_team *team,
                              const horon_descriptor_t *desc, bool own, int64_t timeout_ms,
                              struct horon_error *error)
{
    struct horon_request *request;
    horon_status_t status = horon_context_make_request(ctx, team, desc, &request);
    if (status == HORON_OK) {
        request->nobodys = true;
        request->own = own;
        status = horon_request_post(ctx, request);
        if (status != HORON_OK)
            horon_request_unref(request);
    }
    if (status != HORON_OK) {
        if (error != horon_thread_error())
            *error = *horon_thread_error(); /* where the reason is */
        return status;
    }
    /* nobody is woken: this thread is about to drive */
    status = horon_context_wait(ctx, &request, 1, timeout_ms, NULL);
    if (status == HORON_ERR_TIMEOUT && (request->in_order || request->paired))
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

/* Begun, driven for a while, and not over, or not well, or its callback is not yet. */
static horon_status_t wait_for_end(struct horon_context *ctx, struct horon_request *request,
                                   int64_t timeout_ms, uint64_t deadline, struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    if (!horon_request_ended(request)) {
        int64_t left = timeout_ms;
        if (timeout_ms >= 0) {
            uint64_t now = horon_clock_ns();
            left = now >= deadline ? 0 : (int64_t)((deadline - now) / 1000000u);
        }
        status = horon_context_wait(ctx, &request, 1, left, NULL);
    }
    status = status == HORON_ERR_TIMEOUT ? give_up(ctx, request, timeout_ms, error)
                                         : take_result(request, error);
    wait_for_engine(request);
    horon_kept_free(request, horon_engine_names(ctx->engine));
    return status;
}

/* In flight, and driven here and now. With the token, which it releases. */
static horon_status_t drive_now(struct horon_context *ctx, struct horon_request *request,
                                int64_t timeout_ms, struct horon_error *error)
{
    uint64_t deadline =
        timeout_ms < 0 ? UINT64_MAX : horon_clock_deadline(horon_clock_ns(), timeout_ms);
    assert(request->in_order && !request->context); /* of no context: nobody counts it */
    if (!horon_request_ended(request))
        horon_request_drive(ctx, request, deadline);
    const bool is_over = horon_request_ended(request) && request->status == HORON_OK &&
                         atomic_load_explicit(&request->refs, memory_order_acquire) == 1;
    if (is_over)
        horon_kept_put(request->team, request);
    horon_token_release(ctx);
    return is_over ? HORON_OK : wait_for_end(ctx, request, timeout_ms, deadline, error);
}

/* Is the size of its output here known only once the ranks have met? */
static bool learns_output(const struct horon_engine_team *team, const horon_descriptor_t *desc)
{
    return desc->verb < HORON_VERB_COUNT &&
           horon_verb_rows[desc->verb].ahead != HORON_AHEAD_NOTHING &&
           horon_ranks_include(horon_verb_rows[desc->verb].writes, desc->root, team->view.rank);
}

/* With the token, which it releases. */
static horon_status_t run_here(struct horon_context *ctx, struct horon_engine_team *team,
                               const horon_descriptor_t *desc, int64_t timeout_ms,
                               struct horon_error *error)
{
    struct horon_request *request;
    const horon_status_t status = horon_kept_take(team, desc, &request, error);
    if (status != HORON_OK) {
        horon_token_release(ctx);
        return status;
    }
    request->nobodys = true;
    /* the caller's reference and the engine's; nobody else has seen it yet */
    atomic_store_explicit(&request->refs, 2, memory_order_relaxed);
    atomic_store_explicit(&request->state, HORON_REQUEST_FLYING, memory_order_relaxed);
    const horon_status_t begun = horon_engine_run_now(ctx->engine, request);
    if (begun == HORON_IN_PROGRESS)
        return drive_now(ctx, request, timeout_ms, error);
    atomic_store_explicit(&request->refs, 1, memory_order_relaxed);
    horon_kept_put(team, request);
    horon_token_release(ctx);
    if (begun == HORON_OK)
        return HORON_OK;
    assert(begun == HORON_AGAIN);
    return horon_team_run(ctx, team, desc, false, timeout_ms, error);
}

/* @p error is the thread's */
static horon_status_t run_on(struct horon_context *ctx, struct horon_engine_team *team,
                             const horon_descriptor_t *desc, int64_t timeout_ms,
                             struct horon_error *error)
{
    const bool readable = desc && desc->struct_bytes >= offsetof(horon_descriptor_t, dst_count);
    if (readable && !desc->dst && !desc->alloc && learns_output(team, desc))
        return horon_error_set(error, HORON_ERR_INVALID, "horon_run() of %s needs dst or alloc",
                               horon_verb_name((horon_verb_t)desc->verb));
    if (!readable || !(desc->flags & HORON_IN_ORDER) || !horon_token_try(ctx))
        return horon_team_run(ctx, team, desc, false, timeout_ms, error);
    return run_here(ctx, team, desc, timeout_ms, error);
}

/* Likewise */
static horon_status_t run(struct horon_context *ctx, const horon_descriptor_t *desc,
                          int64_t timeout_ms, struct horon_error *error)
{
    struct horon_engine_team *team;
    horon_status_t status = horon_context_refuse(ctx, true);
    if (status == HORON_OK)
        status = horon_context_find_team(ctx, desc, &team);
    if (status != HORON_OK)
        return status;
    status = run_on(ctx, team, desc, timeout_ms, error);
    horon_team_unref(team);
    return status;
}

horon_status_t horon_run(horon_context_t *ctx, const horon_descriptor_t *desc, int64_t timeout_ms,
                         char *error_text, size_t error_bytes)
{
    struct horon_error *error = horon_thread_error();
    horon_status_t status = run(ctx, desc, timeout_ms, error);
    if (status != HORON_OK)
        horon_error_copy_text(error, error_text, error_bytes);
    else if (error_text && error_bytes > 0)
        error_text[0] = 0;
    return status;
}
