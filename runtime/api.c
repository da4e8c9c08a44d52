/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of the ABI that begin operations. They run on the caller's threads: they check, make a
 * request, post it, and let the token decide which thread works. The one that begins and waits is
 * in run.c, what waits and lets go in wait.c.
 */
#include "submit.h"

#include "alloc.h"
#include "flying.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define WHAT_BYTES 224 /* of what names an operation in a text */

horon_status_t horon_context_refuse(struct horon_context *ctx, bool waits)
{
    horon_thread_forget();
    if (!ctx)
        return horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "the context is NULL");
    const enum horon_life life = horon_life_now(&ctx->life);
    if (life == HORON_LIFE_FORKED)
        return horon_error_set(horon_thread_error(), HORON_ERR_FORKED,
                               "this context belongs to the parent process of this fork");
    if (life != HORON_LIFE_RUNNING)
        return horon_error_set(horon_thread_error(), HORON_ERR_CLOSED, "this context is shut down");
    if (waits && atomic_load_explicit(&ctx->calling_back, memory_order_relaxed) &&
        horon_context_on_progress_thread(ctx)) /* which sees its own mark */
        return horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "a callback must not wait");
    return HORON_OK;
}

/* @param failure of its process set @param what was to begin */
static horon_status_t refuse_failed(const struct horon_error *failure, const char *what)
{
    struct horon_error *error = horon_thread_error();
    *error = *failure;
    snprintf(error->text, sizeof error->text, "%.*s was refused: %.*s", WHAT_BYTES, what,
             (int)sizeof error->text - WHAT_BYTES - 32, failure->text);
    return failure->status;
}

/* As horon_request_describe() says it, as far as a descriptor tells that is not checked yet. */
HORON_SELDOM horon_status_t horon_refuse_described(struct horon_error why,
                                                   const horon_descriptor_t *desc)
{
    char what[WHAT_BYTES] = "an operation", shown[WHAT_BYTES - 32];
    const bool has_verb = horon_descriptor_is_readable(desc) && desc->verb < HORON_VERB_COUNT;
    if (has_verb && desc->name)
        snprintf(what, sizeof what, "%s '%s'", horon_verb_name((horon_verb_t)desc->verb),
                 horon_name_show(desc->name, shown, sizeof shown));
    else if (has_verb)
        snprintf(what, sizeof what, "%s", horon_verb_name((horon_verb_t)desc->verb));
    if (has_verb)
        horon_thread_error_name(desc->name);
    return refuse_failed(&why, what);
}

horon_status_t horon_context_find_team(struct horon_context *ctx, const horon_descriptor_t *desc,
                                       struct horon_engine_team **team_out)
{
    struct horon_engine_team *team = horon_engine_job(ctx->engine);
    if (horon_descriptor_is_readable(desc) && desc->process_set != 0) {
        const horon_status_t found =
            horon_process_set_take(ctx, desc->process_set, &team, horon_thread_error());
        if (found != HORON_OK)
            return horon_refuse_described(*horon_thread_error(), desc);
    }
    const struct horon_error *failure = horon_team_failure(team);
    if (!failure) {
        *team_out = team;
        return HORON_OK;
    }
    const horon_status_t status = horon_refuse_described(*failure, desc);
    horon_team_unref(team);
    return status;
}

/* Counts up to @p n more in flight. @return how many may be; fewer than n: the error is set */
static size_t count_flying(struct horon_context *ctx, size_t n)
{
    const uint32_t limit = (uint32_t)ctx->config.inflight_max;
    uint32_t before;
    const size_t allowed = horon_flying_add(&ctx->posted, &ctx->landed, n, limit, &before);
    if (allowed == n)
        return n;
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
    horon_flying_take_back(&ctx->posted, &ctx->landed, n);
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

void horon_request_launch(struct horon_request *request)
{
    const uint32_t state = atomic_load_explicit(&request->state, memory_order_relaxed);
    if (request->persistent) {
        /* claim() did it, and a thread that waits already has left its mark */
        assert((state & HORON_REQUEST_STATE_MASK) == HORON_REQUEST_FLYING);
        atomic_fetch_add_explicit(&request->refs, 1, memory_order_relaxed);
        return;
    }
    assert(horon_request_may_go(state, HORON_REQUEST_FLYING));
    /* nobody else has seen it */
    assert(atomic_load_explicit(&request->refs, memory_order_relaxed) == 1);
    atomic_store_explicit(&request->refs, 2, memory_order_relaxed);
    atomic_store_explicit(&request->state, HORON_REQUEST_FLYING, memory_order_release);
}

/* @param joins  it is a join, which has the descriptor of another verb */
static horon_status_t make_request(struct horon_context *ctx, struct horon_engine_team *team,
                                   const horon_descriptor_t *desc, bool joins,
                                   struct horon_request **request_out)
{
    horon_status_t status = horon_request_create(
        &ctx->pool, desc, team, horon_engine_names(ctx->engine), request_out, horon_thread_error());
    if (status != HORON_OK) {
        const struct horon_error why = *horon_thread_error();
        return joins ? refuse_failed(&why, "join") : horon_refuse_described(why, desc);
    }
    assert(atomic_load_explicit(&(*request_out)->refs, memory_order_relaxed) == 1);
    (*request_out)->context = ctx;
    horon_context_ref(ctx);
    return HORON_OK;
}

horon_status_t horon_context_make_request(struct horon_context *ctx, struct horon_engine_team *team,
                                          const horon_descriptor_t *desc,
                                          struct horon_request **request_out)
{
    return make_request(ctx, team, desc, false, request_out);
}

/* ---- submitting ----------------------------------------------------------------------------- */

horon_status_t horon_request_post(struct horon_context *ctx, struct horon_request *request)
{
    const bool counted = !request->own;
    if (counted && count_flying(ctx, 1) != 1)
        return HORON_ERR_MEMORY;
    horon_status_t status = mark_name(request);
    if (status != HORON_OK) {
        uncount_flying(ctx, counted);
        return status;
    }
    horon_request_launch(request);
    horon_engine_post(ctx->engine, &request->start);
    return HORON_OK;
}

static horon_status_t submit(struct horon_context *ctx, struct horon_engine_team *team,
                             const horon_descriptor_t *desc, bool joins, horon_request_t **req_out)
{
    struct horon_request *request;
    horon_status_t status = make_request(ctx, team, desc, joins, &request);
    if (status != HORON_OK)
        return status;
    request->joins = joins;
    status = horon_request_post(ctx, request);
    if (status != HORON_OK) {
        horon_request_unref(request);
        return status;
    }
    horon_context_notify_later(ctx);
    *req_out = request;
    return HORON_OK;
}

horon_status_t horon_team_submit(struct horon_context *ctx, struct horon_engine_team *team,
                                 const horon_descriptor_t *desc, horon_request_t **req_out)
{
    return submit(ctx, team, desc, false, req_out);
}

/* Which has no data either, and needs no name. */
static uint32_t verb_of_nothing(void)
{
    uint32_t verb = 0;
    while (horon_verb_moves(&horon_verb_rows[verb]))
        verb++;
    assert(verb < HORON_VERB_COUNT);
    return verb;
}

horon_status_t horon_join(horon_context_t *ctx, int32_t process_set, horon_request_t **req_out)
{
    struct horon_engine_team *team;
    horon_descriptor_t desc = HORON_DESCRIPTOR_INIT;
    horon_status_t status = horon_context_refuse(ctx, false);
    desc.verb = HORON_VERB_COUNT; /* a join has none that a text should name */
    desc.process_set = process_set;
    if (status == HORON_OK && !req_out)
        status = horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "req_out is NULL");
    if (status == HORON_OK)
        status = horon_context_find_team(ctx, &desc, &team);
    if (status != HORON_OK)
        return status;
    desc.verb = verb_of_nothing();
    status = submit(ctx, team, &desc, true, req_out);
    horon_team_unref(team);
    return status;
}

horon_status_t horon_submit(horon_context_t *ctx, const horon_descriptor_t *desc,
                            horon_request_t **req_out)
{
    struct horon_engine_team *team;
    horon_status_t status = horon_context_refuse(ctx, false);
    if (status == HORON_OK && !req_out)
        status = horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "req_out is NULL");
    if (status == HORON_OK)
        status = horon_context_find_team(ctx, desc, &team);
    if (status != HORON_OK)
        return status;
    status = horon_team_submit(ctx, team, desc, req_out);
    horon_team_unref(team);
    return status;
}

/* One after another as long as the program that calls was built with them. */
static const horon_descriptor_t *nth_of(const horon_descriptor_t *descs, size_t n)
{
    return (const void *)((const char *)descs + n * descs->struct_bytes);
}

/* May a request be one of a group with the first? */
static horon_status_t check_grouped(const struct horon_request *request,
                                    const struct horon_request *first, bool same_set)
{
    struct horon_error *error = horon_thread_error();
    if (!same_set)
        return horon_error_set(error, HORON_ERR_INVALID, "a group is of one process set");
    if (request->in_order != first->in_order)
        return horon_error_set(error, HORON_ERR_INVALID, "a group is all named or all in order");
    if (request->paired)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "a message is in no group: submit each by itself");
    if (!request->in_order && !request->name)
        return horon_error_set(error, HORON_ERR_INVALID, "a %s that is one of a group needs a name",
                               horon_verb_of(&request->op.agreed)->name);
    return HORON_OK;
}

/* May it be begun together with the first message? */
static horon_status_t check_message(const struct horon_request *request, bool same_set)
{
    struct horon_error *error = horon_thread_error();
    if (!same_set)
        return horon_error_set(error, HORON_ERR_INVALID,
                               "messages that run together are of one process set");
    if (!request->paired)
        return horon_error_set(error, HORON_ERR_INVALID, "%s is no message: it has no other end",
                               horon_verb_of(&request->op.agreed)->name);
    return HORON_OK;
}

/* Makes, counts and marks all of a group. @p made_out: how many are to be undone on a failure */
static horon_status_t make_group(struct horon_context *ctx, struct horon_engine_team *team,
                                 const horon_descriptor_t *descs, size_t n, bool messages,
                                 horon_request_t **reqs, size_t *made_out, size_t *marked_out)
{
    horon_status_t status = HORON_OK;
    uint64_t hash = n;
    for (*made_out = 0; *made_out < n; (*made_out)++) {
        const horon_descriptor_t *desc = nth_of(descs, *made_out);
        struct horon_request **request = &reqs[*made_out];
        if (desc->struct_bytes != descs->struct_bytes)
            return horon_error_set(horon_thread_error(), HORON_ERR_INVALID,
                                   "the descriptors differ in struct_bytes");
        status = horon_context_make_request(ctx, team, desc, request);
        if (status != HORON_OK)
            return status;
        const bool same_set = desc->process_set == descs->process_set;
        (*request)->nobodys = messages;
        if (messages)
            status = check_message(*request, same_set);
        else if (n > 1)
            status = check_grouped(*request, reqs[0], same_set);
        if (status != HORON_OK) {
            (*made_out)++;
            return status;
        }
        hash = horon_hash_next(hash, (*request)->op.name_hash);
    }
    for (*marked_out = 0; *marked_out < n && status == HORON_OK; (*marked_out)++) {
        struct horon_request *request = reqs[*marked_out];
        status = mark_name(request);
        if (status != HORON_OK)
            return status;
        if (request->name && n > 1) {
            request->is_grouped = true;
            request->op.agreed.group_hash = hash;
            request->op.agreed.group_size = (uint32_t)n;
            request->op.agreed.group_index = (uint32_t)*marked_out;
        }
    }
    return status;
}

/* Puts a request before those that are to be posted with it: newest first, as the mailbox keeps
 * them. */
static void launch_before(struct horon_post **newest, struct horon_request *request)
{
    horon_request_launch(request);
    request->start.next = *newest;
    *newest = &request->start;
}

static void post_all(struct horon_context *ctx, struct horon_post *newest,
                     struct horon_post *oldest)
{
    assert(!oldest->next);
    horon_engine_post_chain(ctx->engine, newest, oldest);
    horon_context_notify_later(ctx);
}

horon_status_t horon_team_submit_all(struct horon_context *ctx, struct horon_engine_team *team,
                                     const horon_descriptor_t *descs, size_t n, bool messages,
                                     horon_request_t **reqs)
{
    size_t made = 0, marked = 0, counted = count_flying(ctx, n);
    if (counted < n) {
        uncount_flying(ctx, counted);
        return HORON_ERR_MEMORY;
    }
    horon_status_t status = make_group(ctx, team, descs, n, messages, reqs, &made, &marked);
    if (status == HORON_OK) {
        struct horon_post *newest = NULL;
        for (size_t i = 0; i < n; i++)
            launch_before(&newest, reqs[i]);
        post_all(ctx, newest, &reqs[0]->start);
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
    struct horon_engine_team *team = NULL;
    horon_status_t status = horon_context_refuse(ctx, false);
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
    status = horon_context_find_team(ctx, descs, &team);
    if (status == HORON_OK) {
        status = horon_team_submit_all(ctx, team, descs, n, false, reqs);
        horon_team_unref(team);
    }
    if (status == HORON_OK)
        memcpy(reqs_out, reqs, n * sizeof *reqs);
    horon_free(many);
    return status;
}

horon_status_t horon_prepare(horon_context_t *ctx, const horon_descriptor_t *desc,
                             horon_request_t **req_out)
{
    struct horon_engine_team *team;
    horon_status_t status = horon_context_refuse(ctx, false);
    if (status == HORON_OK && !req_out)
        status = horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "req_out is NULL");
    if (status == HORON_OK)
        status = horon_context_find_team(ctx, desc, &team);
    if (status != HORON_OK)
        return status;
    status = horon_context_make_request(ctx, team, desc, req_out);
    horon_team_unref(team);
    if (status == HORON_OK)
        (*req_out)->persistent = true;
    return status;
}

/* Takes a prepared request for this run: of several threads that start it one gets it. */
static horon_status_t claim(struct horon_request *request)
{
    if (atomic_load_explicit(&request->released, memory_order_relaxed))
        return horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "the request was released");
    const struct horon_error *failure = horon_team_failure(request->team);
    if (failure) {
        char what[WHAT_BYTES];
        horon_request_describe(request, what, sizeof what);
        return refuse_failed(failure, what);
    }
    uint32_t state = atomic_load_explicit(&request->state, memory_order_acquire);
    const uint32_t number = state / HORON_REQUEST_RUN + 1;
    if ((state & HORON_REQUEST_STATE_MASK) == HORON_REQUEST_FLYING ||
        !atomic_compare_exchange_strong(&request->state, &state,
                                        number * HORON_REQUEST_RUN | HORON_REQUEST_FLYING))
        return horon_error_set(horon_thread_error(), HORON_ERR_INVALID, "the request is in flight");
    assert(horon_request_may_go(state, HORON_REQUEST_FLYING));
    horon_status_t status = mark_name(request);
    if (status != HORON_OK) { /* it is as it was */
        assert(horon_request_may_go(HORON_REQUEST_FLYING, state));
        atomic_store_explicit(&request->state, state, memory_order_release);
        return status;
    }
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
    struct horon_post *newest = NULL;
    assert(counted <= n);
    horon_status_t status = counted < n ? HORON_ERR_MEMORY : HORON_OK;
    for (; started < counted; started++) {
        horon_status_t claimed = claim(reqs[started]);
        if (claimed != HORON_OK) {
            status = claimed;
            break;
        }
        launch_before(&newest, reqs[started]);
    }
    uncount_flying(ctx, counted - started);
    if (started)
        post_all(ctx, newest, &reqs[0]->start);
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
            status = horon_context_refuse(ctx, false);
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
