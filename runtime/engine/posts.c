/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mailbox, and what is asked through it: start, cancel, let go. It is a stack that any thread
 * pushes to without a lock and the owner takes whole, so there is no order to corrupt and nothing
 * to wait for; reversed, it is the order of posting. Once closed it holds a mark, and every push
 * fails.
 */
#include "engine/messages.h"

bool horon_engine_post_chain(struct horon_engine *engine, struct horon_post *first,
                             struct horon_post *last)
{
    struct horon_post *head = atomic_load_explicit(&engine->mailbox, memory_order_relaxed);
    do {
        if (head == &engine->closed_mark)
            return false;
        last->next = head;
    } while (!atomic_compare_exchange_weak(&engine->mailbox, &head, first));
    return true;
}

bool horon_engine_post(struct horon_engine *engine, struct horon_post *post)
{
    return horon_engine_post_chain(engine, post, post);
}

/* The run that it is in, or was in last. */
static uint32_t run_of(const struct horon_request *request)
{
    return atomic_load(&request->state) & ~HORON_REQUEST_WAITED;
}

bool horon_engine_post_cancel(struct horon_engine *engine, struct horon_request *request)
{
    const uint32_t run = run_of(request);
    if ((run & HORON_REQUEST_STATE_MASK) != HORON_REQUEST_FLYING)
        return true; /* it has ended meanwhile, or its start was refused: it may be IDLE again */
    uint32_t posted = atomic_load(&request->cancel_run);
    do
        if (posted != HORON_REQUEST_IDLE && (int32_t)(posted - run) > 0)
            return true; /* another thread's, for a run that has begun since */
    while (!atomic_compare_exchange_weak(&request->cancel_run, &posted, run));
    if (posted != HORON_REQUEST_IDLE)
        return true; /* an earlier one is in the mailbox, or about to be, and is for this run now */
    atomic_fetch_add_explicit(&request->refs, 1, memory_order_relaxed);
    if (horon_engine_post(engine, &request->cancel))
        return true;
    engine->options.release(request);
    return false;
}

bool horon_engine_has_post(const struct horon_engine *engine)
{
    return atomic_load_explicit(&engine->mailbox, memory_order_relaxed) != NULL;
}

static bool same_group(const struct horon_request *one, const struct horon_request *other)
{
    return !one->in_order && one->op.agreed.group_size == other->op.agreed.group_size &&
           one->op.agreed.group_hash == other->op.agreed.group_hash;
}

/* A group is begun whole or not at all: those before @p request are taken back, and those behind
 * it, which come next, are refused as well. */
static void refuse_group(struct horon_engine_team *team, struct horon_request *request)
{
    struct horon_request *before = request->older;
    for (uint32_t i = 0;
         i < request->op.agreed.group_index && before && same_group(before, request);
         i++, before = before->older)
        horon_coordinator_cancel(team->coordinator, (uint64_t)(uintptr_t)before);
    team->refused_group = request->op.agreed.group_hash;
}

void horon_team_uncount(struct horon_engine_team *team, const struct horon_request *request)
{
    if (team->unnamed == request)
        team->unnamed = NULL;
}

/* An operation without a name gets the same number on every rank if it gets it once the one before
 * it is over: that one may yet be withdrawn, and then its number is this one's. Nothing is lost by
 * waiting, since none of these ends on a rank before all ranks have begun those before it.
 * @return false: another one is under way */
static bool number_unnamed(struct horon_engine_team *team, struct horon_request *request)
{
    request->held = team->unnamed != NULL;
    team->unnamed_held += request->held;
    if (request->held) {
        horon_request_hold_unnamed(request);
        return false;
    }
    team->unnamed = request;
    horon_request_number_unnamed(request, team->unnamed_over);
    return true;
}

/* The coordinator, and so every other rank, knows nothing of it. */
static void refuse(struct horon_engine_team *team, struct horon_request *request,
                   horon_status_t status, const char *text)
{
    horon_team_uncount(team, request);
    if (!team->failed) /* which would have ended it */
        horon_engine_end_here(team->engine, request, status, text);
}

/* Its handle is one of the team's coordinator, and so of its generation. */
static horon_status_t intern(struct horon_engine_team *team, struct horon_request *request)
{
    const horon_status_t status =
        horon_coordinator_intern(team->coordinator, &request->op, &request->handle);
    if (status != HORON_OK)
        return status;
    request->interned = true;
    request->interned_in = team->view.generation;
    return HORON_OK;
}

/* To the coordinator; one without a name has its number. */
static void submit_named(struct horon_engine_team *team, struct horon_request *request)
{
    horon_status_t status = HORON_OK;
    uint64_t token = (uint64_t)(uintptr_t)request;
    if (!request->is_grouped || request->op.agreed.group_index == 0)
        team->refused_group = 0;
    if (request->is_grouped && request->op.agreed.group_hash == team->refused_group) {
        refuse(team, request, HORON_ERR_MEMORY, "no memory for another tensor of its group");
        return;
    }
    /* a callback may have started it just when it was let go: nothing would drop a handle then */
    const bool is_let_go = atomic_load_explicit(&request->released, memory_order_relaxed);
    if (request->persistent && request->name && !is_let_go) {
        if (!request->interned || request->interned_in != team->view.generation)
            status = intern(team, request);
        if (status == HORON_OK)
            status = horon_coordinator_submit_handle(team->coordinator, request->handle, token);
    } else {
        status = horon_coordinator_submit(team->coordinator, &request->op, token);
    }
    team->coordinator_dirty = true;
    if (status == HORON_OK)
        return;
    if (request->op.agreed.group_size)
        refuse_group(team, request);
    refuse(team, request, status, NULL);
}

static void start_named(struct horon_engine_team *team, struct horon_request *request)
{
    if (request->name || number_unnamed(team, request))
        submit_named(team, request);
}

static void start(struct horon_engine *engine, struct horon_request *request)
{
    struct horon_engine_team *team = request->team;
    assert(team && team->engine == engine);
    if (request->paired)
        horon_team_aim_message(team, request);
    if (request->paired && horon_message_sends(request) && !engine->leaving)
        horon_team_read_room(request);
    horon_engine_link(engine, request);
    if (request->persistent)
        request->taken = run_of(request);
    if (request->joins)
        request->op.name_hash = request->subject = HORON_EVENT_OF_JOIN;
    horon_engine_add_request_event(engine, HORON_EVENT_TAKEN, request,
                                   request->paired     ? HORON_EVENT_MESSAGE
                                   : request->in_order ? HORON_EVENT_IN_ORDER
                                                       : HORON_EVENT_NAMED);
    request->since_ns = 0; /* stamped by the next look for stalls */
    if (team->failed) {
        horon_engine_end(team->engine, request, &team->failure);
    } else if (team->engine->leaving) {
        horon_engine_end_here(engine, request, HORON_ERR_CLOSED, "this context is shut down");
    } else if (team->joining && horon_team_refuse_joined(team, request)) {
        return;
    } else if (request->joins) {
        horon_team_start_join(team, request);
    } else if (request->in_order) {
        horon_team_push_ordered(team, request);
    } else if (request->paired) {
        horon_team_start_message(team, request);
    } else {
        start_named(team, request);
    }
}

/* Only named ones: the other ranks will run an in-order operation, whatever happens here. */
static void withdraw(struct horon_engine *engine, struct horon_request *request)
{
    horon_engine_add_event(engine, HORON_EVENT_WITHDRAWN, &request->op, 0, 0);
    if (request->held) {
        horon_engine_end_here(engine, request, HORON_ERR_CANCELLED, NULL);
    } else if (!request->begun && request->joins) {
        horon_team_forget_join(request->team); /* nobody has heard of it */
        horon_engine_end_here(engine, request, HORON_ERR_CANCELLED, NULL);
    } else if (!request->begun && !request->in_order && !request->paired) {
        request->cancelled = true;
        horon_coordinator_cancel(request->team->coordinator, (uint64_t)(uintptr_t)request);
        request->team->coordinator_dirty = request->team->urgent = true;
    }
}

/* Has a thread begun to start it for this run, whose post comes behind what is taken now? */
static bool is_to_start(const struct horon_request *request, uint32_t run)
{
    return request->persistent && run == run_of(request) && run != request->taken &&
           (run & HORON_REQUEST_STATE_MASK) == HORON_REQUEST_FLYING;
}

/* A thread may ask for another run while this is in the mailbox for an earlier one: that run is
 * withdrawn once it is there. What a callback has started since is not. */
static void cancel(struct horon_engine *engine, struct horon_request *request)
{
    uint32_t run = atomic_load(&request->cancel_run);
    do
        if (is_to_start(request, run)) {
            horon_engine_post(engine, &request->cancel);
            return;
        }
    while (!atomic_compare_exchange_weak(&request->cancel_run, &run, HORON_REQUEST_IDLE));
    if (request->linked && run == run_of(request))
        withdraw(engine, request);
    engine->options.release(request);
}

static void take_post(struct horon_engine *engine, struct horon_post *post)
{
    switch (post->kind) {
    case HORON_POST_START:
        start(engine, post->request);
        break;
    case HORON_POST_CANCEL:
        cancel(engine, post->request);
        break;
    case HORON_POST_DROP:
        horon_engine_drop(engine, post->request);
        break;
    }
}

/* The oldest one that waits for its number, once the one before it is over. */
static bool start_held(struct horon_engine_team *team)
{
    assert(team->unnamed_held > 0);
    if (team->unnamed || team->failed || team->engine->leaving)
        return false;
    struct horon_request *held = team->oldest;
    while (!held->held)
        held = held->newer;
    team->unnamed_held--;
    start_named(team, held);
    return true;
}

void horon_team_resubmit(struct horon_engine_team *team)
{
    struct horon_request *next;
    team->refused_group = 0;
    for (struct horon_request *request = team->oldest; request && !team->failed; request = next) {
        next = request->newer;
        assert(!request->begun || request->in_order || request->joins);
        if (request->joins)
            horon_team_join_anew(team);
        assert(!request->paired); /* there are none between two memberships */
        if (request->in_order || request->held || request->joins)
            continue;
        if (request->cancelled)
            refuse(team, request, HORON_ERR_CANCELLED, NULL);
        else
            submit_named(team, request);
    }
}

/* Apart from the look whether there is anything, which each turn takes. */
__attribute__((noinline)) static void empty_mailbox(struct horon_engine *engine)
{
    struct horon_post *newest = atomic_exchange(&engine->mailbox, NULL), *oldest = NULL;
    while (newest) {
        struct horon_post *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest) {
        struct horon_post *next = oldest->next; /* the post may be gone once it is taken */
        take_post(engine, oldest);
        oldest = next;
    }
}

bool horon_engine_take_posts(struct horon_engine *engine)
{
    bool moved = false;
    for (struct horon_engine_team *team = engine->job; team; team = team->next) {
        if (team->unnamed_held > 0)
            moved |= start_held(team);
        if (team->joining)
            moved |= horon_team_move_join(team);
    }
    if (!horon_engine_has_post(engine))
        return moved;
    empty_mailbox(engine);
    return true; /* a join begins with the next turn */
}

void horon_engine_start_now(struct horon_engine *engine, struct horon_request **messages, size_t n)
{
    HORON_ASSERT_OWNER(engine->options.owner);
    horon_events_turn(engine->events); /* they may end without a turn, and long after the last */
    if (!engine->leaving && horon_engine_has_post(engine))
        empty_mailbox(engine);
    for (size_t i = 0; i < n; i++) {
        assert(messages[i]->paired);
        start(engine, messages[i]);
    }
}

void horon_engine_close_mailbox(struct horon_engine *engine)
{
    engine->leaving = true;
    struct horon_post *none = NULL;
    while (!atomic_compare_exchange_strong(&engine->mailbox, &none, &engine->closed_mark)) {
        if (none == &engine->closed_mark)
            return;
        horon_engine_take_posts(engine);
        none = NULL;
    }
}
