/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring, for five ranks with one segment each; rank r receives from r + 1 and sends to r - 1:
 *
 *     reduce-scatter, step i: r sends segment r + 1 + i, gets r + 2 + i and adds it to its own
 *     after 4 steps r has the sum of segment r;  allgather: it goes round once more
 *
 * Each rank's chunk is cut into two segments at least, so that one moves while another is added:
 * two steps are under way at a time. A segment has a MiB at most.
 */
#include "backend/gloo_plan.h"

#include <assert.h>

#define SEGMENT_BYTES_MAX (UINT64_C(1) << 20)

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static uint64_t divided(uint64_t value, uint64_t by)
{
    return (value + by - 1) / by;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static int hops_of(int size)
{
    int hops = 0;
    while (size > 1 && (1 << hops) < size)
        hops++;
    return hops;
}

/* ---- rings that reduce ----------------------------------------------------------------------- */

/* Segments of a rank. */
static uint64_t per_rank(const struct horon_gloo_plan *plan)
{
    return plan->segments / (uint64_t)plan->size;
}

static void cut_allreduce(struct horon_gloo_plan *plan, uint64_t element)
{
    const uint64_t n = (uint64_t)plan->size;
    const uint64_t longest = element * most(1, SEGMENT_BYTES_MAX / element);
    plan->segments = round_up(most(divided(plan->bytes, longest), 2 * n), n);
    plan->segment = round_up(divided(plan->bytes, plan->segments), element);
    plan->reduce_steps = plan->segments - per_rank(plan);
    plan->steps = 2 * plan->reduce_steps;
}

/* Gloo's reduce exchanges more segments than it needs where a rank has more than two. */
static void cut_reduce(struct horon_gloo_plan *plan, uint64_t element)
{
    const uint64_t n = (uint64_t)plan->size;
    const uint64_t longest = element * (SEGMENT_BYTES_MAX / element);
    plan->segment = round_up(least(divided(plan->bytes, 2 * n), longest), element);
    plan->segments = round_up(most(divided(plan->bytes, plan->segment), 2 * n), n);
    plan->reduce_steps = plan->segments - 2;
    plan->steps = plan->reduce_steps + (plan->rank == plan->root ? n - 1 : 1);
}

/* A part of the vector, as far as there is one. @return bytes */
static uint64_t clip(const struct horon_gloo_plan *plan, uint64_t at, uint64_t bytes)
{
    return at >= plan->bytes ? 0 : least(bytes, plan->bytes - at);
}

static void ring_step(const struct horon_gloo_plan *plan, uint64_t first_sent, uint64_t index,
                      struct horon_gloo_step *step)
{
    const int size = plan->size, rank = plan->rank;
    const uint64_t around = plan->segments;
    step->send_at = (first_sent + index) % around * plan->segment;
    step->take_at = (first_sent + per_rank(plan) + index) % around * plan->segment;
    step->send_bytes = clip(plan, step->send_at, plan->segment);
    step->take_bytes = clip(plan, step->take_at, plan->segment);
    step->to = step->send_bytes ? (rank + size - 1) % size : -1;
    step->from = step->take_bytes ? (rank + 1) % size : -1;
}

static void allreduce_step(const struct horon_gloo_plan *plan, uint64_t index,
                           struct horon_gloo_step *step)
{
    const uint64_t own = (uint64_t)plan->rank * per_rank(plan);
    step->combines = index < plan->reduce_steps;
    if (step->combines)
        ring_step(plan, own + per_rank(plan), index, step);
    else
        ring_step(plan, own, index - plan->reduce_steps, step);
    step->after = index < 1 ? 0 : index - 1;
}

/* Then each rank's chunk goes to root, as one message. */
static void reduce_step(const struct horon_gloo_plan *plan, uint64_t index,
                        struct horon_gloo_step *step)
{
    const uint64_t chunk = per_rank(plan) * plan->segment;
    if (index < plan->reduce_steps) {
        step->combines = true;
        ring_step(plan, ((uint64_t)plan->rank + 1) * per_rank(plan), index, step);
        step->after = index < 1 ? 0 : index - 1;
        return;
    }
    step->after = plan->reduce_steps;
    if (plan->rank != plan->root) {
        step->send_at = (uint64_t)plan->rank * chunk;
        step->send_bytes = clip(plan, step->send_at, chunk);
        step->to = step->send_bytes ? plan->root : -1;
        return;
    }
    const int other = (int)(index - plan->reduce_steps);
    const int from = other < plan->root ? other : other + 1;
    step->take_at = (uint64_t)from * chunk;
    step->take_bytes = clip(plan, step->take_at, chunk);
    step->from = step->take_bytes ? from : -1;
}

/* ---- rings that gather ----------------------------------------------------------------------- */

static int behind(const struct horon_gloo_plan *plan, uint64_t steps)
{
    const uint64_t n = (uint64_t)plan->size;
    return (int)(((uint64_t)plan->rank + n - steps % n) % n);
}

static void pass_on(const struct horon_gloo_plan *plan, struct horon_gloo_step *step)
{
    step->to = (plan->rank + 1) % plan->size;
    step->from = behind(plan, 1);
}

static void allgather_step(const struct horon_gloo_plan *plan, uint64_t index,
                           struct horon_gloo_step *step)
{
    const uint64_t half = plan->bytes / 2, at = index % 2 ? half : 0;
    pass_on(plan, step);
    step->send_at = (uint64_t)behind(plan, index / 2) * plan->bytes + at;
    step->take_at = (uint64_t)behind(plan, index / 2 + 1) * plan->bytes + at;
    step->send_bytes = step->take_bytes = index % 2 ? plan->bytes - half : half;
    step->after = index < 1 ? 0 : index - 1;
}

static void allgatherv_step(const struct horon_gloo_plan *plan, uint64_t index,
                            struct horon_gloo_step *step)
{
    const int sent = behind(plan, index), taken = behind(plan, index + 1);
    pass_on(plan, step);
    step->send_at = plan->take_at[sent];
    step->send_bytes = plan->take_at[sent + 1] - step->send_at;
    step->take_at = plan->take_at[taken];
    step->take_bytes = plan->take_at[taken + 1] - step->take_at;
    step->after = index;
}

/* ---- trees ----------------------------------------------------------------------------------- */

static void barrier_step(const struct horon_gloo_plan *plan, uint64_t index,
                         struct horon_gloo_step *step)
{
    const uint64_t distance = UINT64_C(1) << index;
    step->to = (int)(((uint64_t)plan->rank + distance) % (uint64_t)plan->size);
    step->from = behind(plan, distance);
    step->after = index;
}

/* The v-th rank from root on gets it in the hop of its highest bit, from the rank without that bit,
 * and passes it on in those behind it. */
static bool takes_part(const struct horon_gloo_plan *plan, int hop, int *peer)
{
    const int n = plan->size, v = (plan->rank + n - plan->root) % n;
    *peer = v ^ 1 << hop;
    return v >> (hop + 1) == 0 && *peer < n;
}

static void broadcast_step(const struct horon_gloo_plan *plan, uint64_t index,
                           struct horon_gloo_step *step)
{
    const int n = plan->size, v = (plan->rank + n - plan->root) % n;
    int peer = 0, hop = -1;
    uint64_t seen = 0;
    do {
        hop++;
        seen += takes_part(plan, hop, &peer);
    } while (seen <= index);
    const int rank = (peer + plan->root) % n;
    step->send_bytes = step->take_bytes = plan->bytes;
    if (v & 1 << hop)
        step->from = rank;
    else
        step->to = rank;
    step->after = v && index > 0; /* it has what it passes on */
}

static uint64_t broadcast_steps(const struct horon_gloo_plan *plan)
{
    uint64_t steps = 0;
    int peer;
    for (int hop = 0; hop < hops_of(plan->size); hop++)
        steps += takes_part(plan, hop, &peer);
    return steps;
}

/* ---- from rank to rank ----------------------------------------------------------------------- */

static uint64_t run_of(const uint64_t *at, int rank, uint64_t *first_out)
{
    *first_out = at[rank];
    return at[rank + 1] - at[rank];
}

static void exchange_step(const struct horon_gloo_plan *plan, uint64_t index,
                          struct horon_gloo_step *step)
{
    const int ahead = (int)(((uint64_t)plan->rank + index + 1) % (uint64_t)plan->size);
    const int before = behind(plan, index + 1);
    const bool is_root = plan->rank == plan->root;
    const bool all = plan->kind == HORON_GLOO_ALLTOALL;
    if (all || (plan->kind == HORON_GLOO_GATHER ? !is_root : is_root))
        step->to = plan->kind == HORON_GLOO_GATHER ? plan->root : ahead;
    if (all || (plan->kind == HORON_GLOO_GATHER ? is_root : !is_root))
        step->from = plan->kind == HORON_GLOO_SCATTER ? plan->root : before;
    step->sends_input = true;
    if (step->to >= 0)
        step->send_bytes = run_of(plan->give_at, step->to, &step->send_at);
    if (step->from >= 0)
        step->take_bytes = run_of(plan->take_at, step->from, &step->take_at);
}

static uint64_t exchange_steps(const struct horon_gloo_plan *plan)
{
    const bool many = plan->kind == HORON_GLOO_ALLTOALL || plan->rank == plan->root;
    return many ? (uint64_t)plan->size - 1 : 1;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct {
    uint8_t prefix;
    void (*step)(const struct horon_gloo_plan *plan, uint64_t index, struct horon_gloo_step *step);
} kinds[] = {
    [HORON_GLOO_BARRIER] = {7, barrier_step},     [HORON_GLOO_BROADCAST] = {6, broadcast_step},
    [HORON_GLOO_ALLREDUCE] = {4, allreduce_step}, [HORON_GLOO_REDUCE] = {3, reduce_step},
    [HORON_GLOO_ALLGATHER] = {2, allgather_step}, [HORON_GLOO_ALLGATHERV] = {2, allgatherv_step},
    [HORON_GLOO_GATHER] = {1, exchange_step},     [HORON_GLOO_SCATTER] = {5, exchange_step},
    [HORON_GLOO_ALLTOALL] = {8, exchange_step},
};

uint64_t horon_gloo_plan_slot(enum horon_gloo_kind kind, uint32_t tag)
{
    return (uint64_t)kinds[kind].prefix << 56 | (uint64_t)tag << 24;
}

void horon_gloo_plan_init(struct horon_gloo_plan *plan, size_t element_bytes)
{
    const uint64_t n = (uint64_t)plan->size;
    plan->steps = plan->segment = plan->segments = plan->reduce_steps = 0;
    if (n == 1)
        return;
    switch (plan->kind) {
    case HORON_GLOO_BARRIER:
        plan->steps = (uint64_t)hops_of(plan->size);
        break;
    case HORON_GLOO_BROADCAST:
        plan->steps = broadcast_steps(plan); /* also of nothing */
        break;
    case HORON_GLOO_ALLREDUCE:
        if (plan->bytes)
            cut_allreduce(plan, element_bytes);
        break;
    case HORON_GLOO_REDUCE:
        if (plan->bytes)
            cut_reduce(plan, element_bytes);
        break;
    case HORON_GLOO_ALLGATHER:
        plan->steps = plan->bytes ? 2 * (n - 1) : 0;
        break;
    case HORON_GLOO_ALLGATHERV:
        plan->steps = plan->take_at[n] ? n - 1 : 0;
        break;
    case HORON_GLOO_GATHER:
    case HORON_GLOO_SCATTER:
    case HORON_GLOO_ALLTOALL:
        plan->steps = exchange_steps(plan);
        break;
    }
}

void horon_gloo_plan_step(const struct horon_gloo_plan *plan, uint64_t index,
                          struct horon_gloo_step *step)
{
    assert(index < plan->steps);
    *step = (struct horon_gloo_step){.to = -1, .from = -1};
    kinds[plan->kind].step(plan, index, step);
}
