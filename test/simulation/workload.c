/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the applications do: every rank submits the same named operations in an order of its own,
 * and the same in-order ones in one order, at times of its own; starts persistent ones again when
 * they end; takes some back and submits them anew; and leaves when all is done.
 *
 * Requests are made and posted as api.c does.
 */
#undef NDEBUG
#include "simulation/messages.h"
#include "simulation/sets.h"
#include "simulation/simulation.h"
#include "simulation/teams.h"

#include "alloc.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* After which nothing is on its way any more, if nobody says anything. */
#define SETTLED (10000 * SIM_MS)

static void drop(struct sim_rank *rank, struct horon_request *request)
{
    if (!request)
        return;
    horon_request_destroy(&rank->ctx.pool, request, horon_engine_names(rank->ctx.engine));
}

void sim_workload_destroy(struct simulation *sim)
{
    for (int number = 0; number < sim->size; number++) {
        struct sim_rank *rank = &sim->ranks[number];
        for (int i = 0; i < sim->op_count; i++) {
            struct sim_use *use = &rank->uses[i];
            drop(rank, use->request);
            for (int k = 0; k < use->old_count; k++)
                drop(rank, use->old[k]);
            free(use->old);
            free(use->in);
            if (use->out != use->in)
                free(use->out);
        }
        free(rank->plan);
        free(rank->uses);
    }
    for (int i = 0; i < sim->op_count; i++)
        free(sim->ops[i].expected);
    free(sim->ops);
}

/* ---- submitting ----------------------------------------------------------------------------- */

/* How the odd rank describes it; each way differs for sure. */
static void make_odd(const struct sim_op *op, horon_descriptor_t *desc, uint64_t shape[2])
{
    if (op->verb == HORON_BARRIER) {
        desc->verb = HORON_ALLREDUCE;
        desc->dtype = HORON_INT32;
        desc->redop = HORON_SUM;
    } else if (op->odd_in == 0) {
        desc->dtype = desc->dtype == HORON_INT32 ? HORON_FLOAT32 : HORON_INT32;
        desc->redop = HORON_SUM;
    } else if (op->odd_in == 1 && !sim_has_rows(op)) {
        shape[0] += 1;
    } else if (op->odd_in == 2 && sim_reduces(op)) {
        desc->prescale = 2.0;
    } else {
        shape[1] += 1;
    }
}

/* The odd rank's has other rows: no splits add up to those of all. */
static void describe_split(struct sim_rank *rank, struct sim_op *op, horon_descriptor_t *desc,
                           uint64_t splits[SIM_RANKS_MAX])
{
    const int size = sim_team_size(rank->sim, op->team);
    for (int member = 0; member < size; member++)
        splits[member] = sim_share_of(op, member, size);
    desc->splits = op->odd < 0 ? splits : NULL;
    desc->dst_count = (op->count + 2) * (op->row + 1); /* the odd one's, too */
}

static void describe(struct sim_rank *rank, struct sim_op *op, struct sim_use *use,
                     horon_descriptor_t *desc, uint64_t shape[2], uint64_t splits[SIM_RANKS_MAX])
{
    *desc = (horon_descriptor_t)HORON_DESCRIPTOR_INIT;
    const int member = sim_team_member(rank->sim, op->team, rank->rank);
    desc->process_set = sim_team_id(rank->sim, op->team);
    const bool by_rows = sim_has_rows(op) || op->verb == HORON_REDUCESCATTER;
    shape[0] = by_rows ? sim_count_of(rank->sim, op, rank->rank) / op->row : op->count;
    shape[1] = by_rows ? op->row : 1;
    desc->verb = op->verb;
    desc->name = op->joins ? NULL : op->name;
    desc->flags = op->in_order ? HORON_IN_ORDER : 0;
    desc->dtype = op->dtype;
    desc->redop = op->redop;
    desc->root = op->root;
    desc->prescale = op->prescale;
    desc->postscale = op->postscale;
    desc->shape = shape;
    desc->ndim = 2;
    desc->src = use->in;
    desc->dst = sim_has_rows(op) && op->own_output ? NULL : use->out;
    desc->splits = splits;
    for (int i = 0; i < sim_team_size(rank->sim, op->team); i++) {
        const int other = sim_team_rank(rank->sim, op->team, i);
        desc->dst_count += sim_count_of(rank->sim, op, other);
        splits[i] = sim_rows_of(rank->sim, op, rank->rank, other);
    }
    if (sim_has_rows(op) && desc->dst_count == 0)
        desc->dst = NULL; /* one without room is refused */
    if (op->verb == HORON_BROADCAST && op->root == member && op->own_output)
        desc->dst = NULL;
    if (op->verb == HORON_REDUCE && op->root != member && op->own_output)
        desc->dst = NULL;
    if (op->verb == HORON_REDUCESCATTER)
        describe_split(rank, op, desc, splits);
    if (op->odd == rank->rank) {
        make_odd(op, desc, shape);
        desc->dst_count *= 2; /* room for its own rows, which are longer */
    }
}

static void make_buffers(struct sim_rank *rank, struct sim_op *op, struct sim_use *use)
{
    size_t in = 0, out = 0, row = 16 * op->row;
    for (int i = 0; i < rank->sim->size; i++)
        out += (size_t)sim_count_of(rank->sim, op, i) * 16;
    in = ((size_t)op->count + 2) * row * 2 + 64; /* enough for the odd one's, too */
    if (sim_has_rows(op))
        in *= SIM_RANKS_MAX;
    else
        out = in;
    use->in = calloc(1, in);
    const bool in_place = op->in_place && !sim_has_rows(op);
    use->out_bytes = in_place ? in : 2 * out + 64;
    use->out = in_place ? use->in : calloc(1, use->out_bytes);
    assert(use->in);
    assert(use->out);
}

/* A request that can be posted: FLYING, with the engine's reference. */
static void launch(struct sim_rank *rank, int number)
{
    struct sim_op *op = &rank->sim->ops[number];
    struct sim_use *use = &rank->uses[number];
    struct horon_error error = {0};
    horon_descriptor_t desc;
    uint64_t shape[2], splits[SIM_RANKS_MAX];
    use->round++;
    if (op->paired) {
        sim_message_load(rank, op, use);
    } else {
        if (!use->in)
            make_buffers(rank, op, use);
        sim_fill(rank->sim, op, rank->rank, use->round, use->in);
    }
    if (use->request && op->persistent) {
        horon_request_reset(use->request);
    } else {
        if (use->request) {
            use->old = realloc(use->old, (size_t)(use->old_count + 1) * sizeof(void *));
            assert(use->old);
            use->old[use->old_count++] = use->request;
        }
        if (op->paired)
            sim_message_describe(rank, op, use, &desc, shape);
        else
            describe(rank, op, use, &desc, shape, splits);
        horon_status_t status =
            horon_request_create(&rank->ctx.pool, &desc, sim_team_of(rank, op->team),
                                 horon_engine_names(rank->ctx.engine), &use->request, &error);
        if (status != HORON_OK)
            sim_fail(rank->sim, "cannot make %s: %s", op->name, error.text);
        assert(status == HORON_OK);
        use->request->context = &rank->ctx;
        use->request->joins = op->joins;
        use->request->persistent = op->persistent;
    }
    if (use->request->name)
        atomic_store(&use->request->name->in_flight, true);
    atomic_fetch_add(&use->request->refs, 1);
    atomic_store(&use->request->state, HORON_REQUEST_FLYING);
    use->posted_at = rank->sim->now;
    use->flying = true;
    use->cancelling = false;
    rank->flying++;
    sim_trace(rank->sim, 'p', (uint64_t)rank->rank, (uint64_t)number);
}

/* It has ended well, and the engine tells nobody: so its submitter does. */
static void end_run(struct horon_request *request)
{
    const struct horon_team *view = &request->team->view;
    assert(!request->linked && !request->callback && !request->output_refused);
    request->status = HORON_OK;
    if (!request->op.output) {
        request->output = request->part.dst;
        request->output_count = horon_operation_output(&request->op, view->rank, view->size);
    }
    atomic_store(&request->state, HORON_REQUEST_ENDED);
    sim_request_ended(request);
}

/* In order and alone, as horon_run() does: begun at once if nobody else drives. */
static bool run_now(struct sim_rank *rank, struct horon_request *request)
{
    if (!request->in_order || !sim_one_in(rank->sim, 2) || rank->state != SIM_ASLEEP)
        return false;
    bool got = horon_token_try(&rank->ctx);
    assert(got);
    rank->state = SIM_AWAKE;
    rank->quiet = 0;
    const horon_status_t status = horon_engine_run_now(rank->ctx.engine, request);
    if (status == HORON_OK)
        end_run(request);
    return status != HORON_AGAIN;
}

static void post(struct sim_rank *rank, struct horon_request *request)
{
    if (run_now(rank, request))
        return;
    bool posted = horon_engine_post(rank->ctx.engine, &request->start);
    assert(posted);
    horon_context_notify(&rank->ctx);
}

static void submit_group(struct sim_rank *rank, int first)
{
    struct simulation *sim = rank->sim;
    struct horon_post *last = NULL;
    uint32_t size = 0;
    for (int i = first; i < sim->op_count && sim->ops[i].group == first; i++)
        size++;
    for (uint32_t i = 0; i < size; i++) {
        launch(rank, first + (int)i);
        struct horon_request *request = rank->uses[first + (int)i].request;
        request->op.agreed.group_hash = (uint64_t)first + 1000;
        request->op.agreed.group_size = size;
        request->op.agreed.group_index = i;
        request->start.next = last;
        last = &request->start;
    }
    bool posted =
        horon_engine_post_chain(rank->ctx.engine, last, &rank->uses[first].request->start);
    assert(posted);
    horon_context_notify(&rank->ctx);
}

static uint64_t later(struct simulation *sim)
{
    return sim->now + sim_below(sim, sim->think_max);
}

/* Is it to be begun once more? What has no memory of a round is begun anew, while it can be. */
static bool comes_again(const struct sim_rank *rank, int number)
{
    const struct sim_op *op = &rank->sim->ops[number];
    const struct sim_use *use = &rank->uses[number];
    if (!use->request)
        return false;
    if (use->withdrawn && use->request->status == HORON_ERR_CANCELLED)
        return op->persistent || sim_team_life(rank, op->team) == SIM_LIFE_HERE;
    return use->round < op->rounds && use->request->status == HORON_OK;
}

/* Does it wait for something in flight before it joins? The engine waits for it in any case. */
static bool waits_to_join(const struct sim_rank *rank, int number)
{
    const struct sim_op *op = &rank->sim->ops[number];
    return rank->uses[number].flying && !(rank->sim->joins_early && op->paired && op->rounds == 1);
}

/* Has it begun and ended all operations of the team that it has a part in? @param afterwards  also
 * those behind the join */
static bool has_done(const struct sim_rank *rank, int team, bool afterwards)
{
    const struct simulation *sim = rank->sim;
    for (int i = rank->plan_next; i < rank->plan_count; i++)
        if (sim->ops[rank->plan[i]].team == team &&
            (afterwards || !sim_is_afterwards(&sim->ops[rank->plan[i]], rank)))
            return false;
    for (int i = 0; i < sim->op_count; i++)
        if (sim->ops[i].team == team && ((afterwards && rank->uses[i].flying) ||
                                         waits_to_join(rank, i) || comes_again(rank, i)))
            return false;
    return true;
}

/* Does it still have to join, or to come to that? */
static bool owes_join(const struct sim_rank *rank, int team)
{
    const struct simulation *sim = rank->sim;
    return sim->joins[team] >= 0 && sim_team_member(sim, team, rank->rank) >= 0 &&
           sim_team_life(rank, team) != SIM_LIFE_OVER && !rank->uses[sim->joins[team]].request;
}

bool sim_workload_through(const struct sim_rank *rank, int team)
{
    return has_done(rank, team, true) && !owes_join(rank, team);
}

/* All ranks change process sets, so the job is joined after that. */
static void join_if_due(struct sim_rank *rank, int team)
{
    struct simulation *sim = rank->sim;
    if (rank->joins[team] || !owes_join(rank, team) || !has_done(rank, team, false) ||
        sim_team_life(rank, team) != SIM_LIFE_HERE || (team == 0 && !sim_sets_done(rank)))
        return;
    rank->joins[team] = true;
    sim_event(sim, later(sim), SIM_EVENT_RESTART, rank->rank, sim->joins[team]);
}

/* In some runs that go well nobody leaves before all are done, and what is on its way has come. */
static void leave_later(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    if (!sim->looks_back) {
        sim_event(sim, later(sim), SIM_EVENT_LEAVE, rank->rank, 0);
        return;
    }
    for (int i = 0; i < sim->size; i++)
        if (!sim->ranks[i].done)
            return;
    for (int i = 0; i < sim->size; i++)
        sim_event(sim, later(sim) + SETTLED, SIM_EVENT_LEAVE, i, 0);
}

/* Joins teams, and removes sets, that it is through with. */
static void move_on(struct sim_rank *rank)
{
    for (int team = 0; team < rank->sim->team_count; team++)
        join_if_due(rank, team);
    sim_sets_look(rank);
}

void sim_workload_look(struct sim_rank *rank)
{
    if (rank->done)
        return;
    move_on(rank);
    if (rank->stuck) {
        rank->stuck = false;
        sim_event(rank->sim, later(rank->sim), SIM_EVENT_SUBMIT, rank->rank, 0);
    }
    if (rank->flying || rank->plan_next < rank->plan_count || !sim_sets_done(rank))
        return;
    for (int i = 0; i < rank->sim->op_count; i++)
        if (comes_again(rank, i))
            return;
    for (int team = 0; team < rank->sim->team_count; team++)
        if (owes_join(rank, team))
            return;
    rank->done = true;
    leave_later(rank);
}

static bool may_begin(const struct sim_rank *rank, const struct sim_op *op)
{
    const enum sim_life life = sim_team_life(rank, op->team);
    if (!sim_is_afterwards(op, rank) || life != SIM_LIFE_HERE)
        return life != SIM_LIFE_COMES;
    const struct sim_use *join = &rank->uses[rank->sim->joins[op->team]];
    return join->request && !join->flying;
}

/* Of what is left the first comes next whose team is there, or never will be.
 * @return false: none can be begun yet */
static bool bring_forward(struct sim_rank *rank)
{
    int at = rank->plan_next;
    while (at < rank->plan_count && !may_begin(rank, &rank->sim->ops[rank->plan[at]]))
        at++;
    if (at == rank->plan_count)
        return false;
    const int number = rank->plan[at];
    for (; at > rank->plan_next; at--)
        rank->plan[at] = rank->plan[at - 1];
    rank->plan[at] = number;
    return true;
}

static void submit_next(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    const int number = rank->plan[rank->plan_next++];
    const struct sim_op *op = &sim->ops[number];
    if (sim_team_life(rank, op->team) == SIM_LIFE_OVER)
        return;
    if (op->group >= 0) {
        submit_group(rank, number);
        return;
    }
    launch(rank, number);
    post(rank, rank->uses[number].request);
    if (op->canceler == rank->rank)
        sim_event(sim, later(sim), SIM_EVENT_CANCEL, rank->rank, number);
}

static int next_team(const struct sim_rank *rank)
{
    return rank->sim->ops[rank->plan[rank->plan_next]].team;
}

void sim_workload_submit(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    uint64_t many = sim_one_in(sim, 3) ? sim_below(sim, 8) : 1;
    while (many-- && bring_forward(rank))
        submit_next(rank);
    rank->stuck = rank->plan_next < rank->plan_count && !bring_forward(rank) &&
                  (rank->sets || sim_team_life(rank, next_team(rank)) == SIM_LIFE_HERE);
    if (rank->plan_next == rank->plan_count)
        sim_workload_look(rank); /* perhaps it has no part in anything */
    else if (rank->stuck)
        move_on(rank);
    else
        sim_event(sim, later(sim), SIM_EVENT_SUBMIT, rank->rank, 0);
}

void sim_workload_restart(struct sim_rank *rank, int number)
{
    const struct sim_op *op = &rank->sim->ops[number];
    if (!op->persistent && sim_team_life(rank, op->team) != SIM_LIFE_HERE) {
        sim_workload_look(rank); /* its team was removed meanwhile */
        return;
    }
    launch(rank, number);
    post(rank, rank->uses[number].request);
}

void sim_workload_cancel(struct sim_rank *rank, int number)
{
    struct sim_use *use = &rank->uses[number];
    if (!use->flying || atomic_load(&use->request->cancel_run) != HORON_REQUEST_IDLE)
        return;
    use->cancelling = true;
    sim_trace(rank->sim, 'c', (uint64_t)rank->rank, (uint64_t)number);
    bool posted = horon_engine_post_cancel(rank->ctx.engine, use->request);
    assert(posted);
    horon_context_notify(&rank->ctx);
}

/* ---- endings -------------------------------------------------------------------------------- */

static struct sim_rank *rank_of(const struct horon_request *request)
{
    return (struct sim_rank *)(void *)((char *)request->context - offsetof(struct sim_rank, ctx));
}

void sim_request_release(struct horon_request *request)
{
    atomic_fetch_sub(&request->refs, 1); /* the workload's own reference stays to the end */
}

void sim_request_ended(struct horon_request *request)
{
    struct sim_rank *rank = rank_of(request);
    struct simulation *sim = rank->sim;
    int number = 0;
    atomic_fetch_sub(&request->refs, 1);
    if (sim->over || rank->state == SIM_DEAD)
        return;
    if (sim_sets_ended(rank, request))
        return;
    while (number < sim->op_count && rank->uses[number].request != request)
        number++;
    if (number == sim->op_count || !rank->uses[number].flying) {
        sim_fail(sim, "rank %d: a request ended that was not in flight", rank->rank);
        return;
    }
    struct sim_op *op = &sim->ops[number];
    struct sim_use *use = &rank->uses[number];
    use->flying = false;
    rank->flying--;
    sim_trace(sim, 'e', (uint64_t)(rank->rank * 1000 + number),
              (uint64_t)(uint32_t)request->status);
    sim_check_ended(rank, op, use);
    if (rank->leaving || sim->over)
        return;
    if (request->status == HORON_ERR_CANCELLED) {
        use->withdrawn = true;
        use->round--;
        sim_event(sim, later(sim), SIM_EVENT_RESTART, rank->rank, number);
    } else if (request->status == HORON_OK && use->round < op->rounds) {
        sim_event(sim, later(sim), SIM_EVENT_RESTART, rank->rank, number);
    }
    sim_workload_look(rank);
}

bool sim_workload_ended(struct simulation *sim, char *text, size_t text_bytes)
{
    for (int number = 0; number < sim->size; number++) {
        struct sim_rank *rank = &sim->ranks[number];
        if (rank->state == SIM_DEAD || rank->state == SIM_LEFT || (rank->done && !rank->leaving))
            continue;
        for (int i = 0; i < sim->op_count; i++)
            if (rank->uses[i].flying) {
                snprintf(text, text_bytes, "rank %d waits for %s %s (state %d, wake %u)", number,
                         horon_verb_name(sim->ops[i].verb), sim->ops[i].name, (int)rank->state,
                         atomic_load(
                             &horon_host_line(&rank->ctx.host, rank->ctx.host.local_rank)->wake));
                return false;
            }
        char change[80];
        sim_sets_describe(rank, change, sizeof change);
        snprintf(text, text_bytes, "rank %d has not left (state %d, %d of %d submitted%s)", number,
                 (int)rank->state, rank->plan_next, rank->plan_count, change);
        return false;
    }
    for (int number = 0; number < sim->size; number++)
        if (sim->ranks[number].state < SIM_LEFT) {
            snprintf(text, text_bytes, "rank %d is done, and has not left", number);
            return false;
        }
    return true;
}
