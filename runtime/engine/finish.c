/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How requests end, in two steps: for the engine, which detaches it and settles how it went, and
 * for its submitter, which learns of it. Once a request's state says ENDED its submitter may
 * release it, start it again or free its buffers, so nothing of it is touched afterwards; the
 * engine's own reference keeps the memory until the callback has returned.
 */
#include "engine/backends.h"
#include "engine/making.h"
#include "engine/messages.h"

#include "alloc.h"
#include "flying.h"

#include <stdio.h>

/* What others read, too, and need not read at once. @param more  modulo 2^32 */
static inline void fly(struct horon_engine *engine, uint32_t more)
{
    const uint32_t before = atomic_load_explicit(&engine->in_flight, memory_order_relaxed);
    atomic_store_explicit(&engine->in_flight, before + more, memory_order_relaxed);
}

void horon_engine_link(struct horon_engine *engine, struct horon_request *request)
{
    struct horon_engine_team *team = request->team;
    assert(!request->linked);
    assert(!request->begun && !request->held && !request->cancelled && !request->dropping);
    request->newer = NULL;
    request->older = team->newest;
    if (team->newest)
        team->newest->newer = request;
    else
        team->oldest = request;
    team->newest = request;
    request->linked = true;
    fly(engine, 1);
}

static void unlink_request(struct horon_engine *engine, struct horon_request *request)
{
    struct horon_engine_team *team = request->team;
    assert(request->linked);
    if (request->older)
        request->older->newer = request->newer;
    else
        team->oldest = request->newer;
    if (request->newer)
        request->newer->older = request->older;
    else
        team->newest = request->older;
    request->linked = false;
    assert(horon_engine_in_flight(engine) > 0);
    fly(engine, UINT32_MAX);
    engine->ends++;
}

HORON_SELDOM static void explain_failure(const struct horon_engine *engine,
                                         struct horon_request *request,
                                         const struct horon_error *failure)
{
    const struct horon_topology *topology = engine->membership->topology;
    char what[128 + HORON_NAME_BYTES_MAX];
    struct horon_error full;
    horon_request_describe(request, what, sizeof what);
    horon_error_set(&full, failure->status, "%s failed: %s", what, failure->text);
    const bool input_lost = request->blame.input_lost; /* end_all() has set it */
    request->blame = failure->blame;
    request->blame.input_lost = input_lost;
    snprintf(request->blamed_host, sizeof request->blamed_host, "%s",
             failure->blame.rank < 0 ? ""
                                     : topology->host_name[topology->host_of[failure->blame.rank]]);
    assert(!request->error_text); /* the run before it was reset */
    request->is_marked = true;
    request->error_text = horon_strdup(full.text); /* without memory the status speaks for itself */
    HORON_LOG_DEBUG(engine->options.log, "%s", full.text);
}

/* The notes of a run belong to the thread that has the token, and so they end here and not with the
 * next start: a callback may start the request again while a thread that waits for this run reads
 * them (token.c). */
static inline void forget_run(struct horon_request *request)
{
    request->begun = false;
    request->cancelled = false;
    request->asked = false;
    request->warned = false;
}

static inline void finish(const struct horon_engine *engine, struct horon_request *request)
{
    const struct horon_engine_options *options = &engine->options;
    horon_callback_fn_t callback = request->callback;
    void *arg = callback ? request->callback_arg : NULL; /* it lies far behind the rest */
    horon_status_t status = request->status;
    const uint32_t ended =
        horon_request_run_number(request) * HORON_REQUEST_RUN | HORON_REQUEST_ENDED;
    uint32_t before = atomic_exchange_explicit(&request->state, ended, memory_order_acq_rel);
    assert(horon_request_may_go(before, ended)); /* it ends once */
    if ((before & HORON_REQUEST_WAITED) && options->wake_waiters)
        options->wake_waiters(&request->state);
    if (callback)
        callback(arg, request->nobodys ? NULL : request, status);
    options->ended(request);
}

void horon_engine_finish_request(const struct horon_engine *engine, struct horon_request *request)
{
    finish(engine, request);
}

/* One without a name: its number is used, or it never had one. */
static void end_unnamed(struct horon_engine_team *team, struct horon_request *request)
{
    team->unnamed_held -= request->held;
    request->held = false;
    if (team->unnamed == request) {
        team->unnamed = NULL;
        team->unnamed_over++;
    }
}

/* Inline, since a batch ends thousands, all of them well. */
static inline __attribute__((always_inline)) void end(struct horon_engine *engine,
                                                      struct horon_request *request,
                                                      const struct horon_error *failure)
{
    const struct horon_engine_options *options = &engine->options;
    const horon_status_t status = failure ? failure->status : HORON_OK;
    unlink_request(engine, request);
    struct horon_engine_team *team = request->team;
    atomic_store_explicit(&request->status, status, memory_order_relaxed);
    if (request->callback)
        horon_request_keep_end(request, status);
    horon_engine_add_request_event(engine, HORON_EVENT_ENDED, request, status);
    assert(!failure || status < 0);
    assert(failure || !request->output_refused);
    if (failure)
        explain_failure(engine, request, failure);
    else if (request->is_plain) {
        request->output = request->part.dst;
        request->output_count = request->part.count;
    } else if (!request->op.output) {
        request->output = request->part.dst;
        request->output_count =
            horon_operation_output(&request->op, team->view.rank, team->view.size);
    }
    if (request->name)
        atomic_store_explicit(&request->name->in_flight, false, memory_order_release);
    else
        end_unnamed(team, request);
    if (request->warned && !failure)
        horon_engine_stall_over(engine, request);
    forget_run(request);
    if (options->landed && request->context && !request->own) /* else nobody has counted it */
        horon_flying_land(options->posted, options->landed);
    if (request->dropping)
        horon_engine_drop(engine, request); /* the user's reference; the engine's goes below */
    if (request->callback && options->finish_later)
        options->finish_later(options->arg, request);
    else
        finish(engine, request);
}

void horon_engine_end(struct horon_engine *engine, struct horon_request *request,
                      const struct horon_error *failure)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    end(engine, request, failure);
}

void horon_engine_end_well(struct horon_engine *engine, struct horon_request *const *requests,
                           size_t count)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    for (size_t i = 0; i < count; i++)
        end(engine, requests[i], NULL);
}

void horon_engine_end_here(struct horon_engine *engine, struct horon_request *request,
                           horon_status_t status, const char *text)
{
    struct horon_error error;
    horon_error_set(&error, status, "%s", text ? text : horon_status_text(status));
    error.blame.rank = engine->membership->topology->rank;
    horon_engine_end(engine, request, &error);
}

void horon_engine_drop(struct horon_engine *engine, struct horon_request *request)
{
    if (request->linked) {
        request->dropping = true;
        return;
    }
    if (request->interned && request->interned_in == request->team->view.generation &&
        horon_team_is_bound(request->team))
        horon_coordinator_drop(request->team->coordinator, request->handle);
    request->interned = false;
    engine->options.release(request);
}

/* Does its output take its input's place, and become something else? */
static bool overwrites(const struct horon_request *request)
{
    const struct horon_operation *op = &request->op;
    const struct horon_verb_row *row = horon_verb_of(&op->agreed);
    const bool placed = !request->part.dst && request->output; /* by alloc, or here */
    const uintptr_t src = (uintptr_t)request->part.src;
    const uintptr_t dst = placed ? (uintptr_t)request->output : (uintptr_t)request->part.dst;
    const uint64_t most = placed ? request->output_count : request->dst_count;
    const uint64_t room = most > op->count ? most : op->count;
    const uint64_t element = horon_dtype_bytes((horon_dtype_t)op->agreed.dtype);
    if (!horon_ranks_include(row->reads, op->agreed.root, request->rank) ||
        !horon_ranks_include(row->writes, op->agreed.root, request->rank))
        return false;
    if (!src || !dst || !(horon_verb_reduces(row) || row->ahead != HORON_AHEAD_NOTHING))
        return false; /* a broadcast's output is its input */
    return src >= dst ? (src - dst) / element < room : (dst - src) / element < op->count;
}

/* Of what is launched. */
static void note_lost_inputs(const struct horon_lane *lane)
{
    const struct horon_work *work = lane->head;
    if (horon_route_keeps_inputs(&lane->route))
        return;
    for (int i = 0; i < lane->running; i++, work = work->next)
        for (size_t k = 0; k < work->count; k++)
            work->requests[k]->blame.input_lost = overwrites(work->requests[k]);
}

void horon_team_end_all(struct horon_engine_team *team, const struct horon_error *failure)
{
    if (team->oldest) /* which others may have begun already, as they know that it is here */
        horon_team_unsettle(team);
    for (int i = 0; i < HORON_LANE_COUNT; i++) {
        struct horon_lane *lane = &team->lanes[i];
        note_lost_inputs(lane);
        horon_route_abort(&lane->route);
        while (lane->head) {
            struct horon_work *work = lane->head;
            lane->head = work->next;
            horon_work_recycle(team->engine, work);
        }
        lane->tail = &lane->head;
        lane->next = NULL;
        lane->length = 0;
        lane->running = 0;
    }
    horon_engine_say_gave_up(team->engine);
    horon_team_forget_join(team);
    horon_team_give_up_messages(team);
    while (team->oldest)
        horon_engine_end(team->engine, team->oldest, failure);
}
