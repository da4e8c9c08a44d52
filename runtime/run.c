/* SPDX-License-Identifier: Apache-2.0 */
/*
 * horon_run() and horon_run_messages(): from the beginning to the end, by the thread that calls. If
 * no other thread drives, an operation in order that is alone, and messages, are begun and driven
 * here and now, and are mostly over at once. All else is posted and waited for. Past its time limit
 * it is withdrawn, or, where the other ranks run it, given up with its process set.
 */
#include "submit.h"
#include "wait.h"

#include "alloc.h"
#include "clock.h"
#include "cpu.h"
#include "deaths.h"
#include "engine/express.h"
#include "engine/kept.h"

#include <assert.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
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
    if (request->op.name)
        snprintf(explained_out->name, sizeof explained_out->name, "%s", request->op.name);
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

/* Of the limit that ends at @p deadline, and never less: it must not pass too soon. -1: there is
 * none. */
static int64_t left_of(int64_t timeout_ms, uint64_t deadline)
{
    if (timeout_ms < 0)
        return -1;
    const uint64_t now = horon_clock_ns();
    return now >= deadline ? 0 : (int64_t)((deadline - now + 999999u) / 1000000u);
}

/* Begun, driven for a while, and not all over, or not well, or not called back yet. Each is waited
 * for, since its buffers are its caller's afterwards; and all before any callback, which may last,
 * and nobody else drives for the rest meanwhile. @return the first failure */
static horon_status_t wait_for_end(struct horon_context *ctx, struct horon_request **requests,
                                   size_t n, int64_t timeout_ms, uint64_t deadline,
                                   struct horon_error *error)
{
    horon_status_t first = HORON_OK;
    for (size_t i = 0; i < n; i++) {
        struct horon_request *request = requests[i];
        struct horon_error later, *why = first == HORON_OK ? error : &later;
        horon_status_t status = HORON_OK;
        if (!horon_request_ended(request))
            status = horon_context_wait(ctx, &request, 1, left_of(timeout_ms, deadline), NULL);
        status = status == HORON_ERR_TIMEOUT ? give_up(ctx, request, timeout_ms, why)
                                             : take_result(request, why);
        if (first == HORON_OK)
            first = status;
    }
    for (size_t i = 0; i < n; i++) {
        wait_for_engine(requests[i]);
        horon_kept_free(requests[i], horon_engine_names(ctx->engine));
    }
    return first;
}

/* Ended well, and let go of by the engine? */
static bool is_settled(const struct horon_request *request)
{
    return horon_request_ended(request) && request->status == HORON_OK &&
           atomic_load_explicit(&request->refs, memory_order_acquire) == 1;
}

/* @param touched  anything that moves by itself, or may */
static void release_after(struct horon_context *ctx, bool touched)
{
    if (!touched)
        horon_token_release_as_found(ctx);
    else
        horon_token_release(ctx);
}

/* In flight, and driven here and now. With the token, which it releases. */
static horon_status_t drive_now(struct horon_context *ctx, struct horon_request **requests,
                                size_t n, int64_t timeout_ms, struct horon_error *error)
{
    const uint64_t deadline =
        timeout_ms < 0 ? UINT64_MAX : horon_clock_deadline(horon_clock_ns(), timeout_ms);
    size_t settled = 0;
    const bool by_flags = requests[0]->in_order && horon_engine_runs_by_flags(ctx->engine);
    assert(!requests[0]->context); /* of no context: nobody counts it */
    horon_requests_drive(ctx, requests, n, deadline);
    while (settled < n && is_settled(requests[settled]))
        settled++;
    for (size_t i = 0; settled == n && i < n; i++)
        horon_kept_put(requests[i]->team, requests[i]);
    release_after(ctx, !by_flags || settled < n);
    return settled == n ? HORON_OK : wait_for_end(ctx, requests, n, timeout_ms, deadline, error);
}

/* Is the size of its output here known only once the ranks have met? */
static bool learns_output(const struct horon_engine_team *team, const horon_descriptor_t *desc)
{
    return desc->verb < HORON_VERB_COUNT &&
           horon_verb_rows[desc->verb].ahead != HORON_AHEAD_NOTHING &&
           horon_ranks_include(horon_verb_rows[desc->verb].writes, desc->root, team->view.rank);
}

/* Nobody else has seen it yet: its caller's reference, and the engine's. */
static void launch(struct horon_request *request)
{
    atomic_store_explicit(&request->refs, 2, memory_order_relaxed);
    atomic_store_explicit(&request->state, HORON_REQUEST_FLYING, memory_order_relaxed);
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
        return horon_refuse_described(*error, desc);
    }
    launch(request);
    const horon_status_t begun = horon_engine_run_now(ctx->engine, request);
    if (begun == HORON_IN_PROGRESS)
        return drive_now(ctx, &request, 1, timeout_ms, error);
    atomic_store_explicit(&request->refs, 1, memory_order_relaxed);
    horon_kept_put(team, request);
    if (begun == HORON_OK) {
        release_after(ctx, !horon_engine_runs_by_flags(ctx->engine));
        return HORON_OK;
    }
    assert(begun == HORON_AGAIN);
    horon_team_ref(team);
    horon_token_release(ctx);
    const horon_status_t ended = horon_team_run(ctx, team, desc, false, timeout_ms, error);
    horon_team_unref(team);
    return ended;
}

/* ---- messages ------------------------------------------------------------------------------- */

/* A team keeps one request a verb (kept.h). */
#define KEPT_MAX 2

/* Is there a kept request for each of them? */
static bool are_kept(const horon_descriptor_t *descs, size_t n)
{
    bool kept = n <= KEPT_MAX;
    for (size_t i = 0; i < n && kept; i++)
        kept = descs[i].struct_bytes == sizeof *descs && descs[i].verb < HORON_VERB_COUNT &&
               horon_verb_rows[descs[i].verb].paired &&
               descs[i].process_set == descs[0].process_set;
    return kept && (n < 2 || descs[0].verb != descs[1].verb);
}

static bool sends(const struct horon_request *message)
{
    return horon_verb_rows[message->verb].reads != HORON_RANKS_NONE;
}

/* Of so many calls that run messages one turns everything. */
#define CALLS_PER_LOOK 64
/* How often a thread asks for what comes within a moment. One that shares its core lets others run
 * before it asks again: the sender may be among them. */
#define EXPRESS_TURNS 80
#define EXPRESS_YIELDS 4

static void wait_a_moment(bool spins)
{
    if (spins)
        horon_cpu_relax();
    else
        sched_yield();
}

static horon_status_t receive_express(struct horon_context *ctx, struct horon_request *receive)
{
    const bool spins = !ctx->crowded || horon_yields_may_spin(&ctx->yields);
    horon_status_t status = horon_express_expect(ctx->engine, receive);
    for (int left = spins ? EXPRESS_TURNS : EXPRESS_YIELDS; status == HORON_IN_PROGRESS; left--) {
        status = horon_express_receive(ctx->engine, receive, spins);
        if (status != HORON_IN_PROGRESS)
            break;
        if (left <= 1 || atomic_load_explicit(&ctx->takers, memory_order_relaxed)) {
            horon_express_withdraw(receive);
            return HORON_AGAIN;
        }
        wait_a_moment(spins);
    }
    return status == HORON_AGAIN && receive->linked ? HORON_IN_PROGRESS : status;
}

/* @return how many of them, from the first, have ended well; @p status_out  of the next one: AGAIN,
 * it is to be begun | IN_PROGRESS, it is */
static size_t run_express(struct horon_context *ctx, struct horon_request *const *requests,
                          size_t n, horon_status_t *status_out)
{
    size_t over = 0;
    horon_status_t status = HORON_OK;
    horon_express_begin(ctx->engine);
    while (over < n && status == HORON_OK) {
        struct horon_request *request = requests[over];
        status = sends(request) ? horon_express_send(ctx->engine, request)
                                : receive_express(ctx, request);
        over += status == HORON_OK;
    }
    *status_out = status;
    return over;
}

/* Messages may begin and end without a turn of everything: other ranks may wait for one. */
static void look_at_times(struct horon_context *ctx)
{
    const struct horon_rank_line *line = horon_host_line(&ctx->host, ctx->host.local_rank);
    if (++ctx->unlooked < CALLS_PER_LOOK &&
        !atomic_load_explicit(&line->urgent, memory_order_relaxed))
        return;
    ctx->unlooked = 0;
    horon_deaths_report(ctx);
    (void)horon_token_look(ctx);
}

static void exchange(struct horon_request **both)
{
    struct horon_request *first = both[0];
    both[0] = both[1];
    both[1] = first;
}

/* All are made before one is begun. With the token, which it releases. */
static horon_status_t run_messages_here(struct horon_context *ctx, struct horon_engine_team *team,
                                        const horon_descriptor_t *descs, size_t n,
                                        int64_t timeout_ms, struct horon_error *error)
{
    struct horon_request *requests[KEPT_MAX];
    horon_status_t status = HORON_OK;
    size_t made = 0;
    look_at_times(ctx);
    while (made < n && status == HORON_OK) {
        status = horon_kept_take(team, &descs[made], &requests[made], error);
        made += status == HORON_OK;
    }
    if (status != HORON_OK) {
        const horon_descriptor_t *refused = &descs[made];
        while (made > 0)
            horon_kept_put(team, requests[--made]);
        horon_token_release(ctx);
        return horon_refuse_described(*error, refused);
    }
    for (size_t i = 0; i < n; i++)
        launch(requests[i]);
    const bool swapped = n == 2 && !sends(requests[0]); /* each rank would wait for the other */
    if (swapped)
        exchange(requests);
    const size_t over = run_express(ctx, requests, n, &status);
    const bool leaves = horon_express_leaves_work(ctx->engine, requests, over);
    for (size_t i = 0; i < over; i++) {
        atomic_store_explicit(&requests[i]->refs, 1, memory_order_relaxed);
        horon_kept_put(team, requests[i]);
    }
    if (over == n) {
        release_after(ctx, leaves);
        return HORON_OK;
    }
    const size_t begun = over + (status == HORON_IN_PROGRESS);
    horon_engine_start_now(ctx->engine, requests + begun, n - begun);
    if (swapped && over == 0)
        exchange(requests); /* of two failures the first one's is told */
    return drive_now(ctx, requests + over, n - over, timeout_ms, error);
}

/* Another thread drives, or no request is kept for each: they are posted, and waited for. */
static horon_status_t run_messages_posted(struct horon_context *ctx, struct horon_engine_team *team,
                                          const horon_descriptor_t *descs, size_t n,
                                          int64_t timeout_ms, struct horon_error *error)
{
    horon_request_t *few[16], **requests = few;
    if (n > 16)
        requests = n > UINT32_MAX ? NULL : horon_zalloc(n, sizeof(horon_request_t *));
    if (!requests)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory for %zu messages", n);
    horon_status_t first = horon_team_submit_all(ctx, team, descs, n, true, requests);
    const size_t begun = first == HORON_OK ? n : 0;
    if (begun > 0)
        horon_context_wait(ctx, requests, n, timeout_ms, NULL);
    for (size_t i = 0; i < begun; i++) {
        struct horon_error later, *why = first == HORON_OK ? error : &later;
        const bool late = !horon_request_ended(requests[i]);
        const horon_status_t status =
            late ? give_up(ctx, requests[i], timeout_ms, why) : take_result(requests[i], why);
        first = first == HORON_OK ? status : first;
    }
    for (size_t i = 0; i < begun; i++) {
        if (requests[i]->callback)
            wait_for_engine(requests[i]);
        horon_request_unref(requests[i]);
    }
    if (requests != few)
        horon_free(requests);
    return first;
}

/* ---- where it is run ------------------------------------------------------------------------ */

static bool is_message(const horon_descriptor_t *desc)
{
    return horon_descriptor_is_readable(desc) && desc->verb < HORON_VERB_COUNT &&
           horon_verb_rows[desc->verb].paired;
}

/* Else it is posted, whatever other threads do. */
static bool may_run_here(const horon_descriptor_t *descs, size_t n, bool messages)
{
    if (messages)
        return are_kept(descs, n);
    return horon_descriptor_is_readable(descs) && (descs->flags & HORON_IN_ORDER);
}

static bool lacks_output(const struct horon_engine_team *team, const horon_descriptor_t *desc)
{
    return !desc->dst && !desc->alloc && learns_output(team, desc);
}

/* With the token. @return NULL: it is to be refused, with a reason, by run_posted() */
static struct horon_engine_team *find_here(struct horon_context *ctx,
                                           const horon_descriptor_t *desc)
{
    struct horon_engine_team *team = desc->process_set == 0
                                         ? horon_engine_job(ctx->engine)
                                         : horon_process_set_look(ctx, desc->process_set);
    return team && !horon_team_failure(team) && !lacks_output(team, desc) ? team : NULL;
}

/* @p error is the thread's */
static horon_status_t run_posted(struct horon_context *ctx, const horon_descriptor_t *descs,
                                 size_t n, bool messages, int64_t timeout_ms,
                                 struct horon_error *error)
{
    struct horon_engine_team *team;
    horon_status_t status = horon_context_find_team(ctx, descs, &team);
    if (status != HORON_OK)
        return status;
    if (messages)
        status = run_messages_posted(ctx, team, descs, n, timeout_ms, error);
    else if (horon_descriptor_is_readable(descs) && lacks_output(team, descs))
        status = horon_error_set(error, HORON_ERR_INVALID, "horon_run() of %s needs dst or alloc",
                                 horon_verb_name((horon_verb_t)descs->verb));
    else
        status = horon_team_run(ctx, team, descs, false, timeout_ms, error);
    horon_team_unref(team);
    return status;
}

/* Likewise. While a thread holds the token nobody removes its team, which it needs no reference to;
 * afterwards its requests have one. */
static horon_status_t run(struct horon_context *ctx, const horon_descriptor_t *descs, size_t n,
                          bool messages, int64_t timeout_ms, struct horon_error *error)
{
    const horon_status_t status = horon_context_refuse(ctx, true);
    if (status != HORON_OK)
        return status;
    if (may_run_here(descs, n, messages) && horon_token_try(ctx)) {
        struct horon_engine_team *team = find_here(ctx, descs);
        if (team)
            return messages ? run_messages_here(ctx, team, descs, n, timeout_ms, error)
                            : run_here(ctx, team, descs, timeout_ms, error);
        horon_token_release(ctx);
    }
    return run_posted(ctx, descs, n, messages, timeout_ms, error);
}

/* @return the status */
static horon_status_t tell(horon_status_t status, char *error_text, size_t error_bytes)
{
    if (status != HORON_OK)
        horon_error_copy_text(horon_thread_error(), error_text, error_bytes);
    else if (error_text && error_bytes > 0)
        error_text[0] = 0;
    return status;
}

horon_status_t horon_run(horon_context_t *ctx, const horon_descriptor_t *desc, int64_t timeout_ms,
                         char *error_text, size_t error_bytes)
{
    return tell(run(ctx, desc, 1, is_message(desc), timeout_ms, horon_thread_error()), error_text,
                error_bytes);
}

horon_status_t horon_run_messages(horon_context_t *ctx, const horon_descriptor_t *messages,
                                  size_t n, int64_t timeout_ms, char *error_text,
                                  size_t error_bytes)
{
    horon_status_t status;
    if (n > 0 && messages) {
        status = run(ctx, messages, n, true, timeout_ms, horon_thread_error());
        return tell(status, error_text, error_bytes);
    }
    status = horon_context_refuse(ctx, true);
    if (status == HORON_OK && n > 0)
        status = horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "the messages are NULL");
    return tell(status, error_text, error_bytes);
}
