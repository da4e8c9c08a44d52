/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the applications do: every rank submits the same named operations in an order of its own,
 * and the same in-order ones in one order, at times of its own; starts persistent ones again when
 * they end; takes some back and submits them anew; and leaves when all is done.
 *
 * Requests are made and posted as api.c does.
 */
#undef NDEBUG
#include "simulation/simulation.h"
#include "simulation/teams.h"

#include "alloc.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPS_MAX 24

/* ---- drawing -------------------------------------------------------------------------------- */

static uint64_t draw_count(struct simulation *sim)
{
    static const uint64_t counts[] = {0, 1, 2, 7, 16, 17, 63, 64, 65};
    switch (sim_below(sim, sim->narrow && sim->world->host_count > 1 ? 2 : 4)) {
    case 0:
        return counts[sim_below(sim, 9)];
    case 1:
        return sim_below(sim, 300);
    case 2:
        return sim_below(sim, 2000);
    default:
        return sim_one_in(sim, 4) ? sim_below(sim, 12000) : sim_below(sim, 3000);
    }
}

static void draw_op(struct simulation *sim, struct sim_op *op, int number)
{
    snprintf(op->name, sizeof op->name, "tensor-%d", number);
    static const horon_verb_t verbs[] = {
        HORON_ALLREDUCE, HORON_ALLREDUCE, HORON_ALLREDUCE, HORON_ALLREDUCE, HORON_REDUCESCATTER,
        HORON_REDUCE,    HORON_BROADCAST, HORON_BROADCAST, HORON_ALLGATHER, HORON_BARRIER,
        HORON_ALLTOALL,  HORON_ALLTOALL,  HORON_GATHER,    HORON_SCATTER};
    op->verb = verbs[sim_below(sim, sizeof verbs / sizeof verbs[0])];
    op->dtype = (horon_dtype_t)sim_below(sim, HORON_DTYPE_COUNT);
    op->redop = (horon_redop_t)sim_below(sim, HORON_REDOP_COUNT);
    if (sim_reduces(op) && !horon_reduce_supported(op->dtype, op->redop)) {
        op->dtype = sim_one_in(sim, 2) ? HORON_FLOAT32 : HORON_BFLOAT16;
        op->redop = HORON_SUM;
    }
    op->root = (int)sim_below(sim, (uint64_t)sim->size);
    op->prescale = sim_one_in(sim, 4) ? 0.5 : 1.0;
    op->postscale = sim_one_in(sim, 4) ? 3.0 : 1.0;
    op->count = draw_count(sim);
    op->row = 1 + sim_below(sim, 3);
    if (sim_has_rows(op))
        op->count /= 4;
    if (op->verb == HORON_REDUCESCATTER)
        op->count -= op->count % op->row;
    if (op->verb == HORON_BARRIER)
        op->count = 0;
    op->uneven = sim_one_in(sim, 4);
    op->in_order = sim_one_in(sim, 3);
    op->in_place = sim_one_in(sim, 2);
    op->own_output = sim_one_in(sim, 2);
    op->rounds = 1;
    op->group = op->odd = op->canceler = -1;
}

/* What is special about it; one thing at most. */
static void draw_special(struct simulation *sim, struct sim_op *op)
{
    switch (sim_below(sim, op->in_order ? 3 : 8)) {
    case 0:
        op->persistent = true;
        op->rounds = 1 + (int)sim_below(sim, 4);
        break;
    case 3:
        op->canceler = (int)sim_below(sim, (uint64_t)sim->size);
        break;
    case 4:
        if (sim->size == 1 || !sim_one_in(sim, 2))
            break;
        op->odd = (int)sim_below(sim, (uint64_t)sim->size);
        op->odd_in = (int)sim_below(sim, 4);
        break;
    default:
        break;
    }
    if (op->in_order) /* a second round would need its place in everybody's order */
        op->rounds = 1;
}

static void draw_groups(struct simulation *sim)
{
    for (int i = 0; i + 1 < sim->op_count; i++) {
        int members = 2 + (int)sim_below(sim, 3);
        if (!sim_one_in(sim, 4) || i + members > sim->op_count)
            continue;
        bool plain = true;
        for (int k = i; k < i + members; k++)
            plain = plain && !sim->ops[k].in_order && sim->ops[k].canceler < 0 &&
                    !sim->ops[k].persistent && sim->ops[k].odd < 0;
        if (!plain)
            continue;
        for (int k = i; k < i + members; k++)
            sim->ops[k].group = i;
        i += members - 1;
    }
}

/* In the second team: a rank that has a part of its own is one of its members. */
static void draw_teams(struct simulation *sim)
{
    for (int i = 0; sim->team && i < sim->op_count; i++) {
        struct sim_op *op = &sim->ops[i];
        const int size = sim_team_size(sim, 1);
        op->team = op->group >= 0 && op->group < i ? sim->ops[op->group].team : sim_one_in(sim, 2);
        if (!op->team)
            continue;
        const bool disorder = sim->fate == SIM_FATE_DISORDER && op->in_order && op->odd >= 0;
        if (disorder && sim_team_member(sim, 1, op->odd) < 0) {
            op->team = 0;
            continue;
        }
        op->root %= size;
        if (op->odd >= 0 && !disorder)
            op->odd = sim_team_rank(sim, 1, op->odd % size);
        if (disorder)
            sim->ill_team = 1;
    }
}

/* As sim_below() draws, but not from the run's own numbers. */
static uint64_t next_random(uint64_t *random)
{
    *random += UINT64_C(0x9e3779b97f4a7c15);
    return (*random ^ *random >> 31) * UINT64_C(0xbf58476d1ce4e5b9) >> 33;
}

/* What its roots and scales do not allow. */
static void settle_join(struct simulation *sim, struct sim_op *op, int most)
{
    if (op->level == 0)
        return;
    if (horon_verb_is_rooted(&horon_verb_rows[op->verb]) &&
        !sim_takes_part(op, &sim->ranks[op->root]))
        op->root = most;
    if (op->redop == HORON_PRODUCT)
        op->prescale = 1.0;
    op->uneven &= op->verb != HORON_REDUCESCATTER; /* others know nothing of its splits */
}

/* In one run of four ranks have unequal amounts of data: of each operation of the job by name some
 * have no part, those with less; and all join when they are through. Groups and what gathers rows
 * are for all; the worlds have those. Drawn from numbers of their own, so that the other runs stay
 * as they are. */
static void draw_join(struct simulation *sim)
{
    uint64_t random = sim->seed ^ UINT64_C(0x6a6f696e);
    sim->join = -1;
    if (next_random(&random) % 4)
        return;
    int most = 0;
    for (int rank = 0; rank < sim->size; rank++) {
        sim->ranks[rank].level = (int)(next_random(&random) % 4);
        if (sim->ranks[rank].level > sim->ranks[most].level)
            most = rank;
    }
    for (int i = 0; i < sim->op_count; i++) {
        struct sim_op *op = &sim->ops[i];
        const int level = (int)(next_random(&random) % 4);
        const bool may = !op->in_order && !op->team && op->odd < 0 && op->group < 0 &&
                         !horon_verb_rows_differ(&horon_verb_rows[op->verb]) &&
                         level <= sim->ranks[most].level;
        if (may)
            op->level = level;
    }
    for (int i = 0; i < sim->op_count; i++)
        settle_join(sim, &sim->ops[i], most);
    sim->join = sim->op_count++;
    struct sim_op *join = &sim->ops[sim->join];
    *join = (struct sim_op){.name = "join",
                            .verb = HORON_BARRIER,
                            .prescale = 1.0,
                            .postscale = 1.0,
                            .rounds = 1,
                            .group = -1,
                            .odd = -1,
                            .canceler = -1,
                            .joins = true};
}

bool sim_takes_part(const struct sim_op *op, const struct sim_rank *rank)
{
    return rank->level >= op->level;
}

static bool is_in(const struct simulation *sim, const struct sim_rank *rank, int op)
{
    return sim_team_member(sim, sim->ops[op].team, rank->rank) >= 0 &&
           sim_takes_part(&sim->ops[op], rank);
}

/* A rank's order: anything for the named ones, as numbered for those in order; a group is one. */
static void draw_plan(struct simulation *sim, struct sim_rank *rank)
{
    rank->plan = calloc((size_t)sim->op_count, sizeof *rank->plan);
    rank->uses = calloc((size_t)sim->op_count, sizeof *rank->uses);
    assert(rank->plan);
    assert(rank->uses);
    for (int i = 0; i < sim->op_count; i++)
        if (i != sim->join && is_in(sim, rank, i) &&
            (sim->ops[i].group < 0 || sim->ops[i].group == i))
            rank->plan[rank->plan_count++] = i;
    for (int i = rank->plan_count - 1; i > 0; i--) {
        int other = (int)sim_below(sim, (uint64_t)i + 1), kept = rank->plan[i];
        rank->plan[i] = rank->plan[other];
        rank->plan[other] = kept;
    }
    int next = 0;
    for (int i = 0; i < rank->plan_count; i++) {
        if (!sim->ops[rank->plan[i]].in_order)
            continue;
        while (!sim->ops[next].in_order || !is_in(sim, rank, next))
            next++;
        rank->plan[i] = next++;
    }
}

void sim_workload_create(struct simulation *sim)
{
    sim->op_count = 1 + (int)sim_below(sim, OPS_MAX);
    sim->ops = calloc((size_t)sim->op_count + 1, sizeof *sim->ops); /* and a join */
    assert(sim->ops);
    for (int i = 0; i < sim->op_count; i++) {
        draw_op(sim, &sim->ops[i], i);
        draw_special(sim, &sim->ops[i]);
    }
    if (sim->fate == SIM_FATE_DISORDER) {
        struct sim_op *op = &sim->ops[sim_below(sim, (uint64_t)sim->op_count)];
        op->in_order = true;
        op->persistent = false;
        op->rounds = 1;
        op->canceler = -1;
        op->odd = sim->victim;
        op->odd_in = (int)sim_below(sim, 4);
    }
    draw_groups(sim);
    draw_teams(sim);
    draw_join(sim);
    for (int rank = 0; rank < sim->size; rank++)
        draw_plan(sim, &sim->ranks[rank]);
}

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
    desc->process_set = op->team;
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
    use->out = op->in_place && !sim_has_rows(op) ? use->in : calloc(1, 2 * out + 64);
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
    if (!use->in)
        make_buffers(rank, op, use);
    sim_fill(rank->sim, op, rank->rank, use->round, use->in);
    if (use->request && op->persistent) {
        horon_request_reset(use->request);
    } else {
        if (use->request) {
            use->old = realloc(use->old, (size_t)(use->old_count + 1) * sizeof(void *));
            assert(use->old);
            use->old[use->old_count++] = use->request;
        }
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

/* In order and alone, as horon_run() does: begun at once if nobody else drives. */
static bool run_now(struct sim_rank *rank, struct horon_request *request)
{
    if (!request->in_order || !sim_one_in(rank->sim, 2) || rank->state != SIM_ASLEEP)
        return false;
    bool got = horon_token_try(&rank->ctx);
    assert(got);
    rank->state = SIM_AWAKE;
    rank->quiet = 0;
    return horon_engine_begin_now(rank->ctx.engine, request);
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

static void leave_if_done(struct sim_rank *rank)
{
    if (rank->done || rank->flying || rank->plan_next < rank->plan_count)
        return;
    for (int i = 0; i < rank->sim->op_count; i++)
        if (rank->uses[i].withdrawn && rank->uses[i].request->status == HORON_ERR_CANCELLED)
            return; /* to be submitted anew */
    for (int i = 0; i < rank->sim->op_count; i++)
        if (rank->uses[i].request && rank->uses[i].round < rank->sim->ops[i].rounds &&
            rank->uses[i].request->status == HORON_OK)
            return; /* to be started again */
    if (rank->sim->join >= 0 && !rank->joins) {
        rank->joins = true;
        sim_event(rank->sim, later(rank->sim), SIM_EVENT_RESTART, rank->rank, rank->sim->join);
    }
    if (rank->sim->join >= 0 && !rank->uses[rank->sim->join].request)
        return;
    rank->done = true;
    sim_event(rank->sim, later(rank->sim), SIM_EVENT_LEAVE, rank->rank, 0);
}

void sim_workload_submit(struct sim_rank *rank)
{
    struct simulation *sim = rank->sim;
    if (rank->plan_next == rank->plan_count) {
        leave_if_done(rank); /* it has no part in anything */
        return;
    }
    uint64_t many = sim_one_in(sim, 3) ? sim_below(sim, 8) : 1;
    for (; many && rank->plan_next < rank->plan_count; many--) {
        int number = rank->plan[rank->plan_next];
        struct sim_op *op = &sim->ops[number];
        if (!sim_team_of(rank, op->team))
            break; /* it is not made yet */
        rank->plan_next++;
        if (op->group >= 0) {
            submit_group(rank, number);
            continue;
        }
        launch(rank, number);
        post(rank, rank->uses[number].request);
        if (op->canceler == rank->rank)
            sim_event(sim, later(sim), SIM_EVENT_CANCEL, rank->rank, number);
    }
    if (rank->plan_next < rank->plan_count)
        sim_event(sim, later(sim), SIM_EVENT_SUBMIT, rank->rank, 0);
}

void sim_workload_restart(struct sim_rank *rank, int number)
{
    launch(rank, number);
    post(rank, rank->uses[number].request);
}

void sim_workload_cancel(struct sim_rank *rank, int number)
{
    struct sim_use *use = &rank->uses[number];
    if (!use->flying || atomic_exchange(&use->request->cancel_posted, true))
        return;
    use->cancelling = true;
    atomic_fetch_add(&use->request->refs, 1);
    sim_trace(rank->sim, 'c', (uint64_t)rank->rank, (uint64_t)number);
    bool posted = horon_engine_post(rank->ctx.engine, &use->request->cancel);
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
    leave_if_done(rank);
}

bool sim_workload_ended(struct simulation *sim, char *text, size_t text_bytes)
{
    for (int number = 0; number < sim->size; number++) {
        struct sim_rank *rank = &sim->ranks[number];
        if (rank->state == SIM_DEAD || rank->state == SIM_LEFT)
            continue;
        for (int i = 0; i < sim->op_count; i++)
            if (rank->uses[i].flying) {
                snprintf(text, text_bytes, "rank %d waits for %s %s (state %d, wake %u)", number,
                         horon_verb_name(sim->ops[i].verb), sim->ops[i].name, (int)rank->state,
                         atomic_load(
                             &horon_host_line(&rank->ctx.host, rank->ctx.host.local_rank)->wake));
                return false;
            }
        snprintf(text, text_bytes, "rank %d has not left (state %d, %d of %d submitted)", number,
                 (int)rank->state, rank->plan_next, rank->plan_count);
        return false;
    }
    return true;
}
