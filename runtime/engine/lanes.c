/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: operations in their order, given to the backends. They begin in that order, several at a
 * time if the backend takes several, and end in it. A batch that the coordinator decided is one
 * operation over the concatenation of its tensors. One in order that is alone and ends in its first
 * turn never comes into its lane (horon_team_run_ordered()). The coordinator's turn, from which the
 * batches come, is here as well.
 */
#include "engine/engine_state.h"

#include "alloc.h"
#include "exec/owed_ring.h"

#include <stdio.h>
#include <string.h>

/* While this many batches are queued the root holds back, so that the next one can grow. */
#define BATCHES_AHEAD 2

static void push(struct horon_lane *lane, struct horon_work *work)
{
    assert(work->op);
    assert(!*lane->tail);
    work->next = NULL;
    *lane->tail = work;
    lane->tail = &work->next;
    if (!lane->next)
        lane->next = work;
    lane->length++;
}

/* The check stands for all operations before it, too: what differs and goes unnoticed by itself,
 * such as two roots that wait for nobody, the next operation notices. */
static void check_ordered(struct horon_engine_team *team, struct horon_request *request)
{
    team->ordered_check = horon_hash_next(team->ordered_check, request->op.hash);
    request->op.check = team->ordered_check;
}

void horon_team_push_ordered(struct horon_engine_team *team, struct horon_request *request)
{
    check_ordered(team, request);
    push(&team->lanes[HORON_LANE_ORDERED], &request->work);
}

/* A batch of several. Used again, with its arrays. */
struct horon_batch_work {
    struct horon_work work; /* of `op` */
    struct horon_operation op;
    struct horon_part *parts; /* [limit], and so are the requests */
    size_t limit;
    void *scratch;             /* likewise: owned, while it runs; or NULL */
    struct horon_name *absent; /* of the first, if this rank has joined; referenced. Else NULL */
};

static struct horon_batch_work *batch_of(struct horon_work *work)
{
    assert(work->pooled);
    return (struct horon_batch_work *)(void *)work;
}

/* Events tell of this rank's requests. Work of which it has none, since it has joined, gets none:
 * no request would ever end it for those that read them. */
static bool is_own(const struct horon_work *work)
{
    return work->count > 0;
}

static void recycle(struct horon_engine *engine, struct horon_batch_work *batch)
{
    batch->work.next = engine->pool;
    engine->pool = &batch->work;
}

void horon_work_recycle(struct horon_engine *engine, struct horon_work *work)
{
    if (!work->pooled)
        return;
    struct horon_batch_work *batch = batch_of(work);
    if (batch->absent)
        horon_names_put(&engine->names, batch->absent);
    horon_free(batch->scratch);
    batch->absent = NULL;
    batch->scratch = NULL;
    recycle(engine, batch);
}

void horon_work_free(struct horon_work *work)
{
    horon_free(batch_of(work)->parts);
    horon_free(work->requests);
    horon_free(batch_of(work));
}

static bool make_room(struct horon_batch_work *batch, size_t count)
{
    if (batch->limit >= count)
        return true;
    size_t limit = count < 64 ? 64 : count + count / 2;
    struct horon_part *parts = horon_realloc(batch->parts, limit * sizeof *parts);
    if (parts)
        batch->parts = parts;
    struct horon_request **requests = horon_realloc(batch->work.requests, limit * sizeof *requests);
    if (requests)
        batch->work.requests = requests;
    if (!parts || !requests)
        return false;
    batch->limit = limit;
    return true;
}

/* What other ranks do decides how many are in use at a time: some are made before they are needed,
 * so that a steady cycle allocates nothing. */
#define BATCHES_AT_ONCE 8

/* @return false: no memory for all of them */
static bool make_batches(struct horon_engine *engine)
{
    for (int i = 0; i < BATCHES_AT_ONCE; i++) {
        struct horon_batch_work *batch = horon_zalloc(1, sizeof *batch);
        if (!batch)
            return false;
        batch->work.pooled = true;
        batch->work.op = &batch->op;
        recycle(engine, batch);
        if (!make_room(batch, 1))
            return false;
    }
    return true;
}

/* @return NULL: no memory */
static struct horon_batch_work *take_batch_work(struct horon_engine *engine, size_t count)
{
    if (!engine->pool && !make_batches(engine))
        return NULL;
    struct horon_batch_work *batch = batch_of(engine->pool);
    engine->pool = batch->work.next;
    if (make_room(batch, count))
        return batch;
    recycle(engine, batch); /* keeps its old arrays */
    return NULL;
}

static void has_begun(struct horon_request *request)
{
    assert(request->linked);
    assert(!request->begun && !request->held);
    request->begun = true;
}

/* The requests' tensors as parts of one vector; of one kind, as the coordinator has checked. */
static void fuse(struct horon_batch_work *batch, const uint64_t *tokens, size_t count)
{
    struct horon_operation *op = &batch->op;
    uint64_t elements = 0;
    for (size_t i = 0; i < count; i++) {
        struct horon_request *request = (struct horon_request *)(uintptr_t)tokens[i];
        batch->work.requests[i] = request;
        batch->parts[i] = request->part;
        elements += request->part.count;
        has_begun(request);
    }
    *op = batch->work.requests[0]->op;
    op->parts = batch->parts;
    op->part_count = batch->work.count = count;
    op->count = elements;
}

/* This rank has joined, and has no request of it. @return NULL: no memory */
HORON_SELDOM static struct horon_work *make_absent(struct horon_engine_team *team,
                                                   const struct horon_batch *batch)
{
    struct horon_engine *engine = team->engine;
    struct horon_batch_work *work =
        take_batch_work(engine, horon_absent_count_parts(batch->absent));
    if (!work)
        return NULL;
    work->absent =
        horon_names_get(&engine->names, (uint32_t)batch->absent->agreed.team, batch->absent->name);
    if (!work->absent || horon_team_fill_absent(team, batch->absent, &work->op, work->parts,
                                                &work->scratch) != HORON_OK) {
        horon_work_recycle(engine, &work->work);
        return NULL;
    }
    work->op.name = work->absent->text;
    work->op.name_bytes = work->absent->bytes;
    work->work.count = 0;
    return &work->work;
}

/* @return NULL: no memory */
static struct horon_work *make_of_requests(struct horon_engine *engine,
                                           const struct horon_batch *batch)
{
    struct horon_request *first = (struct horon_request *)(uintptr_t)batch->tokens[0];
    if (batch->count > 1) {
        struct horon_batch_work *several = take_batch_work(engine, batch->count);
        if (!several)
            return NULL;
        fuse(several, batch->tokens, batch->count);
        return &several->work;
    }
    has_begun(first);
    return &first->work;
}

/* How many gave nothing: for those that have a request, and for an average. */
HORON_SELDOM static void count_joined(struct horon_engine_team *team, struct horon_work *work)
{
    if (team->engine->options.config->join_average == HORON_JOIN_AVERAGE_GIVEN)
        work->op->givers = (uint32_t)(team->view.size - team->join.count);
    for (size_t i = 0; i < work->count; i++) {
        work->requests[i]->joined = team->join.count;
        work->requests[i]->is_marked = true;
    }
}

/* @return NULL: no memory */
static struct horon_work *make_work(struct horon_engine_team *team, const struct horon_batch *batch)
{
    struct horon_work *work =
        batch->absent ? make_absent(team, batch) : make_of_requests(team->engine, batch);
    if (!work)
        return NULL;
    if (team->join.count > 0)
        count_joined(team, work);
    work->op->check =
        horon_hash_next(horon_hash_next(work->op->hash, batch->sequence), batch->count);
    return work;
}

/* The coordinator knows the ranks of its team only. */
static void blame_ranks(const struct horon_engine_team *team, const struct horon_batch *batch,
                        struct horon_error *why)
{
    int rank = batch->blame.rank, other_rank = batch->blame.other_rank;
    if (rank < 0 && batch->sequence == HORON_SEQUENCE_LOCAL)
        rank = team->view.rank; /* which took it back */
    horon_error_blame(why, batch->blame.cause, rank < 0 ? rank : team->ranks[rank],
                      other_rank < 0 ? other_rank : team->ranks[other_rank]);
}

HORON_SELDOM static void fail_batch(struct horon_engine_team *team, const struct horon_batch *batch)
{
    struct horon_error why;
    if (batch->absent) {
        horon_team_count_absent(team, batch->absent->name);
        return;
    }
    horon_error_set(&why, batch->status, "%s", batch->text);
    blame_ranks(team, batch, &why);
    for (size_t i = 0; i < batch->count; i++) {
        struct horon_request *request = (struct horon_request *)(uintptr_t)batch->tokens[i];
        if (batch->sequence == HORON_SEQUENCE_LOCAL)
            horon_team_uncount(team, request);
        if (team->failed)
            return; /* with all that was in flight */
        horon_engine_end(team->engine, request, &why);
    }
}

static bool take_batches(struct horon_engine_team *team)
{
    struct horon_batch batch;
    bool moved = false;
    while (!team->failed && horon_coordinator_next_batch(team->coordinator, &batch)) {
        moved = true;
        if (batch.joined >= 0) {
            horon_team_note_joined(team, batch.joined, batch.ordered);
            continue;
        }
        if (batch.status != HORON_OK) {
            fail_batch(team, &batch);
            continue;
        }
        struct horon_work *work = make_work(team, &batch);
        if (!work) {
            horon_team_lacks_memory(team, "no memory for a batch of tensors");
            break;
        }
        if (is_own(work))
            horon_engine_add_event(team->engine, HORON_EVENT_DECIDED, work->op, batch.sequence,
                                   (int32_t)batch.count);
        push(&team->lanes[HORON_LANE_NAMED], work);
    }
    return moved;
}

/* A rank that leaves has ended its requests, and those that own them may have freed them. A
 * coordinator that has failed may have got half of a decision. */
void horon_team_take_decisions(struct horon_engine_team *team)
{
    if (team->engine->leaving || horon_coordinator_flush(team->coordinator, false) != HORON_OK)
        return;
    horon_team_send_coordinator(team);
    take_batches(team);
}

/* Is a control message for a rank of this host not sent yet? */
static bool is_behind(const struct horon_engine_team *team)
{
    bool behind = false;
    for (int i = 0; i < team->tree_count; i++)
        if (team->topology.host_of[team->tree[i]] == team->view.host)
            behind |= horon_mux_wants_control(horon_team_mux(team, team->tree[i]));
    return behind;
}

/* A rank without requests looks when it is rung, and not for what is placed behind a full ring: it
 * is rung in each turn until all has been placed. */
bool horon_team_coordinate(struct horon_engine_team *team)
{
    if (!team->coordinator_dirty && !team->behind)
        return false;
    const bool decide = team->lanes[HORON_LANE_NAMED].length < BATCHES_AHEAD;
    team->held_back = !decide;
    team->coordinator_dirty = false;
    if (horon_coordinator_flush(team->coordinator, decide) != HORON_OK) {
        horon_team_lacks_memory(team, "no memory to negotiate");
        return true;
    }
    const bool sent = horon_team_send_coordinator(team);
    const bool rings = (sent && team->urgent) || team->behind;
    team->urgent = false;
    /* what comes in meanwhile may be for a team whose turn was before */
    bool moved = rings && horon_engine_move_links(team->engine);
    if (rings)
        horon_host_wake_all(team->host, HORON_WAKE_ASLEEP);
    team->behind = rings && is_behind(team);
    return take_batches(team) || moved;
}

/* The operation ended well, but this rank had no memory for what it gave. */
HORON_SELDOM static void end_refused(struct horon_engine_team *team, struct horon_request *request)
{
    char text[256];
    assert(request->output_refused);
    const char *self = team->rank_names[team->view.rank];
    const unsigned long long elements = request->output_count, room = request->dst_count;
    if (request->part.dst)
        snprintf(text, sizeof text, "%s has room for %llu elements, and its output has %llu", self,
                 room, elements);
    else
        snprintf(text, sizeof text, "%s has no memory for the %llu elements of its output", self,
                 elements);
    request->output_count = 0;
    horon_engine_end_here(team->engine, request, HORON_ERR_MEMORY, text);
}

static void end_work(struct horon_engine_team *team, struct horon_lane *lane)
{
    struct horon_work *work = lane->head;
    assert(lane->running && lane->length > 0);
    lane->head = work->next;
    if (!lane->head)
        lane->tail = &lane->head;
    lane->length--;
    assert((lane->head == NULL) == (lane->length == 0));
    lane->running--;
    team->coordinator_dirty |= team->held_back;
    if (!work->pooled) { /* the work lies in its request, and may be gone with it */
        if (work->requests[0]->output_refused)
            end_refused(team, work->requests[0]);
        else
            horon_engine_end(team->engine, work->requests[0], NULL);
        return;
    }
    if (batch_of(work)->absent)
        horon_team_count_absent(team, batch_of(work)->absent->text);
    horon_engine_end_well(team->engine, work->requests, work->count);
    horon_work_recycle(team->engine, work);
}

/* A rank that left never does its part of an operation that it had not completed. To say so here
 * would fail everything, and an operation on the other lane may end yet. */
static bool lacks_one_that_left(const struct horon_engine_team *team, const struct horon_lane *lane,
                                horon_status_t status)
{
    const ptrdiff_t number = lane - team->lanes;
    return status == HORON_ERR_PEER_LOST && team->departures.any &&
           horon_route_ended(&lane->route) >= team->departures.sequence[number];
}

/* If a rank left after it had ended this operation, it gave all that it had to give for it. What is
 * missing still never comes: that rank began another operation in its place. */
static bool is_disordered(const struct horon_engine_team *team, const struct horon_lane *lane,
                          const struct horon_error *error)
{
    return lane == &team->lanes[HORON_LANE_ORDERED] && error->status == HORON_ERR_PEER_LOST &&
           error->blame.rank >= 0 && team->engine->membership->left[error->blame.rank] &&
           team->departures.any &&
           horon_route_ended(&lane->route) < team->departures.sequence[HORON_LANE_ORDERED];
}

static void name_disorder(const struct horon_engine_team *team, const struct horon_lane *lane,
                          struct horon_error *error)
{
    const int peer = error->blame.rank;
    horon_error_set(error, HORON_ERR_MISMATCH,
                    "operation %llu in order differs between ranks: %s began %s, but %s, which "
                    "has left, ended another one; all ranks must begin the same sequence",
                    (unsigned long long)horon_route_ended(&lane->route),
                    team->rank_names[team->view.rank], horon_verb_name(lane->head->op->agreed.verb),
                    team->engine->membership->rank_names[peer]);
    horon_error_blame_both(error, HORON_CAUSE_ORDER, team->ranks[team->view.rank], peer);
}

static void launch(struct horon_engine_team *team, struct horon_lane *lane,
                   const struct horon_work *work)
{
    const struct horon_operation *op = work->op;
    horon_route_begin(&lane->route, op);
    lane->running++;
    if (is_own(work))
        horon_engine_add_event(team->engine, HORON_EVENT_BEGUN, op, op->count,
                               (int32_t)(lane - team->lanes));
}

/* @return what the first operation that cannot be begun yet waits for or failed with; OK: all are
 * begun */
static horon_status_t begin(struct horon_engine_team *team, struct horon_lane *lane,
                            bool *moved_out, struct horon_error *error)
{
    while (lane->next) {
        const struct horon_work *work = lane->next;
        if (team->parts && !horon_route_opens(&lane->route))
            return HORON_IN_PROGRESS;
        const horon_status_t status = horon_route_ready(&lane->route, work->op, moved_out, error);
        if (status != HORON_OK)
            return status;
        if (team->parts)
            return HORON_IN_PROGRESS;
        launch(team, lane, work);
        lane->next = work->next;
        *moved_out = true;
    }
    return HORON_OK;
}

HORON_SELDOM static void fail_lane(struct horon_engine_team *team, const struct horon_lane *lane,
                                   horon_status_t status, struct horon_error *error)
{
    if (!error->text[0])
        horon_error_set(error, status, "%s", horon_status_text(status));
    assert(error->status == status);
    if (is_disordered(team, lane, error))
        name_disorder(team, lane, error);
    horon_team_fail_here(team, error);
}

/* The first operation has ended, or its route says why it goes on. */
static void settle(struct horon_engine_team *team, struct horon_lane *lane, bool ended,
                   horon_status_t status, struct horon_error *error)
{
    if (ended)
        end_work(team, lane);
    else if (lacks_one_that_left(team, lane, status))
        lane->stuck = true;
    else if (status < 0)
        fail_lane(team, lane, status, error);
}

bool horon_lane_turn(struct horon_engine_team *team, struct horon_lane *lane)
{
    assert(lane->head && !lane->stuck);
    bool moved = false, ended = false;
    struct horon_error error;
    horon_error_clear(&error);
    horon_status_t status = begin(team, lane, &moved, &error);
    if (status >= 0 && lane->running) {
        status = horon_route_advance(&lane->route, &moved, &error);
        ended = status == HORON_OK;
    }
    lane->moves += moved;
    horon_host_pay_ring(team->host);
    settle(team, lane, ended, status, &error);
    return moved;
}

/* Does nobody need to hear that it has ended, but its submitter, which is here? */
static bool ends_quietly(const struct horon_request *request)
{
    return !request->output_refused && !request->callback;
}

/* Most operations of one caller after another end in their first turn. Then no other thread or turn
 * could have met them in the lane or among those in flight, and they never come there. */
horon_status_t horon_team_run_ordered(struct horon_engine_team *team, struct horon_request *request)
{
    struct horon_lane *lane = &team->lanes[HORON_LANE_ORDERED];
    struct horon_work *work = &request->work;
    bool moved = false, ended = false;
    horon_status_t status = HORON_IN_PROGRESS;
    struct horon_error error;
    horon_error_clear(&error);
    assert(!lane->head && lane->running == 0 && !request->name);
    check_ordered(team, request);
    if (!lane->stuck && !team->parts)
        status = horon_route_ready(&lane->route, work->op, &moved, &error);
    const bool begun = status == HORON_OK;
    if (begun) {
        launch(team, lane, work);
        status = horon_route_advance(&lane->route, &moved, &error);
        ended = status == HORON_OK;
    }
    lane->moves += moved;
    const bool is_over = ended && ends_quietly(request);
    if (!is_over || team != team->engine->job)
        horon_host_pay_ring(team->host);
    if (is_over) {
        lane->running--;
        team->engine->ends++;
        horon_engine_add_request_event(team->engine, HORON_EVENT_ENDED, request, HORON_OK);
        return HORON_OK;
    }
    horon_engine_link(team->engine, request);
    push(lane, work);
    if (begun)
        lane->next = NULL;
    settle(team, lane, ended, status, &error);
    return HORON_IN_PROGRESS;
}

bool horon_engine_advance(struct horon_engine_team *team, bool in_order)
{
    struct horon_lane *lane = &team->lanes[in_order ? HORON_LANE_ORDERED : HORON_LANE_NAMED];
    HORON_ASSERT_OWNER(team->engine->options.owner);
    return !team->failed && horon_lane_advance(team, lane);
}
