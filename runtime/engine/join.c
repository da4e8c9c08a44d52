/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that have no more data. A join begins once everything that this rank submitted to the team
 * before has ended; what it submits behind it is refused until all ranks have joined. Meanwhile
 * every operation that the others decide on is carried out here, too, with an operation made of
 * what the coordinator tells: it gives neutral elements, or no rows, and drops what it gets.
 *
 * Such an operation needs next to no memory, whatever the tensor's size: all its parts read one
 * block and write another. Nobody reads what was written there, so two operations may write it at
 * the same time. Only a reducescatter, which is never fused, wants its input in one piece; it gets
 * memory for as long as it runs.
 *
 * Operations in order are not decided upon, so none can go on without a rank that has joined. The
 * other ranks may still begin those that it had done before, and refuse any later one. If a rank
 * had begun a later one when it heard of the join, the promise of order is broken: the team fails.
 */
#include "engine/engine_state.h"

#include "alloc.h"
#include "reduce/reduce.h"

#include <string.h>

/* ---- blocks ---------------------------------------------------------------------------------- */

#define BLOCK_BYTES ((size_t)64 << 10)

/* Neutral elements of one kind. There are few: dtypes and reductions share them. */
struct horon_neutrals {
    struct horon_neutrals *next;
    size_t element_bytes;
    uint8_t bytes[] __attribute__((aligned(64)));
};

static const uint8_t *find_neutrals(struct horon_engine *engine, const uint8_t *element,
                                    size_t element_bytes)
{
    struct horon_neutrals *block = engine->neutrals;
    while (block && (block->element_bytes != element_bytes ||
                     memcmp(block->bytes, element, element_bytes) != 0))
        block = block->next;
    if (block)
        return block->bytes;
    block = horon_alloc_lines(sizeof *block + BLOCK_BYTES);
    if (!block)
        return NULL;
    *block = (struct horon_neutrals){.next = engine->neutrals, .element_bytes = element_bytes};
    for (size_t at = 0; at < BLOCK_BYTES; at += element_bytes)
        memcpy(block->bytes + at, element, element_bytes);
    engine->neutrals = block;
    return block->bytes;
}

void horon_engine_free_neutrals(struct horon_engine *engine)
{
    while (engine->neutrals) {
        struct horon_neutrals *block = engine->neutrals;
        engine->neutrals = block->next;
        horon_free(block);
    }
    horon_free(engine->dropped);
    engine->dropped = NULL;
}

/* ---- operations of which this rank has nothing ----------------------------------------------- */

/* Does an operation of the verb want its input in one piece, since it is none of several? */
static bool is_whole(const struct horon_verb_row *row)
{
    return horon_verb_splits(row);
}

size_t horon_absent_count_parts(const struct horon_absent *absent)
{
    const size_t element = horon_dtype_bytes((horon_dtype_t)absent->agreed.dtype);
    const uint64_t in_block = BLOCK_BYTES / element;
    const uint64_t parts = absent->elements / in_block + (absent->elements % in_block != 0);
    if (is_whole(horon_verb_of(&absent->agreed)))
        return 1;
    return parts > SIZE_MAX / 64 ? SIZE_MAX / 64 : parts + (parts == 0);
}

static void *refuse_output(void *arg, const uint64_t *rows, uint64_t total)
{
    (void)arg;
    (void)rows;
    (void)total;
    return NULL; /* nothing is written then, and it goes well for the others */
}

/* Each part of the vector is the same block. */
static void point_at_blocks(const struct horon_operation *op, struct horon_part *parts,
                            uint64_t in_block, const void *src, void *dst)
{
    uint64_t left = op->count;
    for (size_t i = 0; i < op->part_count; i++) {
        const uint64_t count = left < in_block ? left : in_block;
        parts[i] = (struct horon_part){.src = src, .dst = dst, .count = count};
        left -= count;
    }
    assert(left == 0);
}

/* Memory of its own for the input, and this rank's share of the output behind it. @p element one
 * of neutral elements */
static horon_status_t fill_whole(const struct horon_engine_team *team,
                                 const struct horon_operation *op, struct horon_part *part,
                                 size_t element_bytes, const uint8_t *element, void **scratch_out)
{
    const uint64_t share = horon_operation_output(op, team->view.rank, team->view.size);
    uint64_t bytes = op->count;
    if (__builtin_add_overflow(bytes, share, &bytes) ||
        __builtin_mul_overflow(bytes, element_bytes, &bytes))
        return HORON_ERR_MEMORY;
    uint8_t *memory = horon_alloc_lines((size_t)bytes + 1);
    if (!memory)
        return HORON_ERR_MEMORY;
    for (uint64_t i = 0; i < op->count; i++)
        memcpy(memory + i * element_bytes, element, element_bytes);
    *part = (struct horon_part){
        .src = memory, .dst = memory + op->count * element_bytes, .count = op->count};
    *scratch_out = memory;
    return HORON_OK;
}

horon_status_t horon_team_fill_absent(struct horon_engine_team *team,
                                      const struct horon_absent *absent, struct horon_operation *op,
                                      struct horon_part *parts, void **scratch_out)
{
    struct horon_engine *engine = team->engine;
    const struct horon_signature *agreed = &absent->agreed;
    const struct horon_verb_row *row = horon_verb_of(agreed);
    const size_t element_bytes = horon_dtype_bytes((horon_dtype_t)agreed->dtype);
    const uint8_t *src = NULL;
    uint8_t element[HORON_REDUCE_ELEMENT_BYTES_MAX];
    if (row->joined == HORON_JOINED_NEUTRAL) {
        const bool found = horon_reduce_neutral(
            (horon_dtype_t)agreed->dtype, (horon_redop_t)agreed->redop, agreed->prescale, element);
        src = found ? find_neutrals(engine, element, element_bytes) : NULL;
        if (!src)
            return HORON_ERR_MEMORY;
    }
    if (!engine->dropped)
        engine->dropped = horon_alloc_lines(BLOCK_BYTES);
    if (!engine->dropped)
        return HORON_ERR_MEMORY;
    /* as take_name() in request.c: a name that was made for it is not in its hash */
    const uint64_t hashed = horon_verb_reserves(absent->name) ? 0 : absent->name_hash;
    *op =
        (struct horon_operation){.agreed = *agreed,
                                 .hash = horon_signature_hash(agreed, hashed),
                                 .count = absent->elements,
                                 .parts = parts,
                                 .part_count = horon_absent_count_parts(absent),
                                 .drops = true,
                                 .ahead = team->join.no_rows,
                                 .row_elements = 1,
                                 .output = row->ahead == HORON_AHEAD_NOTHING ? NULL : refuse_output,
                                 .name_hash = absent->name_hash};
    for (uint32_t i = 1; i < agreed->ndim; i++)
        op->row_elements *= agreed->shape[i];
    if (is_whole(row))
        return fill_whole(team, op, parts, element_bytes, src, scratch_out);
    point_at_blocks(op, parts, BLOCK_BYTES / element_bytes, src,
                    row->ahead == HORON_AHEAD_NOTHING ? engine->dropped : NULL);
    return HORON_OK;
}

/* An operation without a name counts on every rank, whether it ends well or not. */
void horon_team_count_absent(struct horon_engine_team *team, const char *name)
{
    if (horon_verb_reserves(name))
        team->unnamed_over++;
}

/* ---- joining --------------------------------------------------------------------------------- */

/* In-order operations that this rank has begun, or is about to. */
static uint64_t ordered_begun(const struct horon_engine_team *team)
{
    const struct horon_lane *lane = &team->lanes[HORON_LANE_ORDERED];
    return horon_route_ended(&lane->route) + lane->length;
}

static void look_whether_joining(struct horon_engine_team *team)
{
    team->joining = team->join.state != HORON_JOIN_NOT || team->join.count > 0;
}

static void move(struct horon_engine_team *team, enum horon_join_state to)
{
    static const unsigned legal[] = {
        [HORON_JOIN_NOT] = 1u << HORON_JOIN_ASKED,
        [HORON_JOIN_ASKED] = 1u << HORON_JOIN_BEGUN | 1u << HORON_JOIN_NOT,
        /* and asked anew: the coordinator of another membership has not heard of it */
        [HORON_JOIN_BEGUN] = 1u << HORON_JOIN_OVER | 1u << HORON_JOIN_ASKED | 1u << HORON_JOIN_NOT,
        [HORON_JOIN_OVER] = 1u << HORON_JOIN_NOT};
    struct horon_team_join *join = &team->join;
    assert(legal[join->state] & 1u << to);
    assert(join->request);
    assert(join->request->joins);
    join->state = to;
    if (to == HORON_JOIN_NOT)
        join->request = NULL;
    else
        join->request->begun = to != HORON_JOIN_ASKED;
}

HORON_SELDOM bool horon_team_refuse_joined(struct horon_engine_team *team,
                                           struct horon_request *request)
{
    struct horon_error why;
    const int rank = team->join.first;
    assert(team->joining);
    if (team->join.state != HORON_JOIN_NOT &&
        !(request->own && team->join.state == HORON_JOIN_ASKED)) {
        horon_engine_end_here(team->engine, request, HORON_ERR_INVALID,
                              "this rank has joined, and takes part in nothing until all have");
        return true;
    }
    if (!request->in_order || ordered_begun(team) < team->join.ordered)
        return false;
    horon_error_set(&why, HORON_ERR_MISMATCH,
                    "%s has joined, and operations in order need every rank",
                    team->rank_names[rank]);
    horon_error_blame(&why, HORON_CAUSE_JOINED, team->ranks[rank], -1);
    horon_engine_end(team->engine, request, &why);
    return true;
}

void horon_team_start_join(struct horon_engine_team *team, struct horon_request *request)
{
    assert(!team->join.request);
    team->join.request = request;
    move(team, HORON_JOIN_ASKED);
    look_whether_joining(team);
}

static bool begin_join(struct horon_engine_team *team)
{
    struct horon_request *request = team->join.request;
    if (team->oldest != request || team->join.is_held)
        return false;
    assert(team->newest == request); /* what came behind it was refused */
    move(team, HORON_JOIN_BEGUN);
    team->coordinator_dirty = team->urgent = true;
    if (horon_coordinator_join(team->coordinator, ordered_begun(team)) != HORON_OK)
        horon_team_lacks_memory(team, "no memory to join");
    return true;
}

void horon_team_hold_join(struct horon_engine_team *team, bool hold)
{
    HORON_ASSERT_OWNER(team->engine->options.owner);
    assert(team->join.is_held != hold);
    team->join.is_held = hold;
}

void horon_team_forget_join(struct horon_engine_team *team)
{
    if (team->join.state != HORON_JOIN_NOT)
        move(team, HORON_JOIN_NOT);
    look_whether_joining(team);
}

void horon_team_join_anew(struct horon_engine_team *team)
{
    if (team->join.state == HORON_JOIN_BEGUN)
        move(team, HORON_JOIN_ASKED);
}

/* Once this rank has done its part of all that was decided before: then it may leave. */
static bool end_join(struct horon_engine_team *team)
{
    struct horon_request *request = team->join.request;
    assert(team->join.state == HORON_JOIN_OVER);
    if (team->lanes[HORON_LANE_NAMED].head)
        return false;
    request->joined = team->join.last;
    request->is_marked = true;
    horon_team_forget_join(team);
    horon_engine_end(team->engine, request, NULL);
    return true;
}

bool horon_team_move_join(struct horon_engine_team *team)
{
    if (team->join.state == HORON_JOIN_NOT || team->failed || team->engine->leaving)
        return false;
    if (team->join.state == HORON_JOIN_OVER)
        return end_join(team);
    return team->join.state == HORON_JOIN_ASKED && begin_join(team);
}

void horon_team_note_joined(struct horon_engine_team *team, int rank, uint64_t ordered)
{
    struct horon_team_join *join = &team->join;
    assert(!join->joined[rank]);
    join->joined[rank] = true;
    if (join->count == 0 || ordered < join->ordered) {
        join->ordered = ordered;
        join->first = rank;
    }
    join->count++;
    team->joining = true;
    if (join->count == team->view.size) { /* it is as if nobody had */
        memset(join->joined, 0, (size_t)team->view.size * sizeof *join->joined);
        join->count = 0;
        join->last = rank;
        move(team, HORON_JOIN_OVER);
        (void)end_join(team);
        return;
    }
    if (ordered_begun(team) <= ordered)
        return;
    struct horon_error why;
    const int self = team->view.rank;
    horon_error_set(&why, HORON_ERR_MISMATCH,
                    "%s has joined after %llu operations in order, and %s has begun another",
                    team->rank_names[rank], (unsigned long long)ordered, team->rank_names[self]);
    horon_error_blame(&why, HORON_CAUSE_ORDER, team->ranks[rank], team->ranks[self]);
    horon_team_fail_here(team, &why);
}
