/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation among Gloo's ranks: first the memory it works on is made ready, where ranks decide
 * how much comes after they have announced it; then the steps of the plan go, in their order, some
 * at a time; then what has come is brought to its place.
 *
 * Gloo knows no average and no scales: this rank's input is scaled before, and the sum divided and
 * scaled after, here alone. Elements combine as output = output op received, at each step, which is
 * Gloo's order; booleans are bytes. An input in place stays as it is until the operation ends well,
 * as the plan works on memory of the channel.
 */
#include "backend/gloo_elements.h"
#include "backend/gloo_state.h"

#include "alloc.h"

#include <string.h>

/* Steps that give so much go out before more is done. */
#define TOGETHER_BYTES (8u << 10)

static const struct horon_verb_row *row_of(const struct horon_gloo_channel *channel)
{
    return horon_verb_of(&channel->op->agreed);
}

static bool reads(const struct horon_gloo_channel *channel, int rank)
{
    return horon_ranks_include(row_of(channel)->reads, channel->op->agreed.root, rank);
}

static bool writes(const struct horon_gloo_channel *channel, int rank)
{
    return horon_ranks_include(row_of(channel)->writes, channel->op->agreed.root, rank);
}

static horon_status_t make_room(struct horon_gloo_memory *memory, uint64_t bytes,
                                struct horon_error *error)
{
    if (bytes <= memory->bytes)
        return HORON_OK;
    horon_free(memory->at);
    memory->at = bytes <= SIZE_MAX / 2 ? horon_alloc_lines((size_t)bytes) : NULL;
    memory->bytes = memory->at ? (size_t)bytes : 0;
    return memory->at ? HORON_OK
                      : horon_error_set(error, HORON_ERR_MEMORY, "no memory for %llu bytes",
                                        (unsigned long long)bytes);
}

static void copy(void *to, const void *from, uint64_t bytes)
{
    if (bytes && to != from)
        memmove(to, from, (size_t)bytes);
}

/* Of memory that may be none, where nothing is to go there. */
static uint8_t *piece(const uint8_t *memory, uint64_t at)
{
    return memory ? (uint8_t *)(uintptr_t)memory + at : NULL;
}

static void begin_plan(struct horon_gloo_channel *channel, enum horon_gloo_kind kind, int root,
                       uint64_t bytes, size_t element)
{
    channel->plan = (struct horon_gloo_plan){.kind = kind,
                                             .rank = channel->team->rank,
                                             .size = channel->team->size,
                                             .root = root,
                                             .bytes = bytes,
                                             .give_at = channel->give_at,
                                             .take_at = channel->take_at};
    horon_gloo_plan_init(&channel->plan, element);
    channel->slot = horon_gloo_plan_slot(kind, channel->tag - 1);
    channel->begun = channel->over = 0;
}

/* ---- what is as long everywhere -------------------------------------------------------------- */

/* As horon adds bytes. */
static horon_dtype_t type_of(const struct horon_gloo_channel *channel)
{
    const horon_dtype_t dtype = (horon_dtype_t)channel->op->agreed.dtype;
    return dtype == HORON_BOOL ? HORON_UINT8 : dtype;
}

static horon_redop_t redop_of(const struct horon_gloo_channel *channel)
{
    const horon_redop_t redop = (horon_redop_t)channel->op->agreed.redop;
    return redop == HORON_AVERAGE ? HORON_SUM : redop;
}

static bool keeps_share(const struct horon_gloo_channel *channel)
{
    return horon_verb_splits(row_of(channel));
}

/* Where the plan may work: dst, if that is as long and the input is elsewhere. */
static horon_status_t place_vector(struct horon_gloo_channel *channel, uint64_t bytes,
                                   struct horon_error *error)
{
    const struct horon_part *part = channel->op->parts;
    const bool own = keeps_share(channel) || !writes(channel, channel->team->rank) || !part->dst ||
                     part->dst == part->src;
    const horon_status_t status = own ? make_room(&channel->work, bytes, error) : HORON_OK;
    channel->output = own ? channel->work.at : part->dst;
    return status;
}

static horon_status_t begin_reduction(struct horon_gloo_channel *channel, struct horon_error *error)
{
    const struct horon_operation *op = channel->op;
    const uint64_t bytes = op->count * channel->element_bytes;
    const bool rooted = horon_verb_is_rooted(row_of(channel));
    begin_plan(channel, rooted ? HORON_GLOO_REDUCE : HORON_GLOO_ALLREDUCE,
               rooted ? op->agreed.root : 0, bytes, channel->element_bytes);
    horon_status_t status = place_vector(channel, bytes, error);
    if (status == HORON_OK && channel->plan.steps)
        status = make_room(&channel->two, 2 * channel->plan.segment, error);
    if (status != HORON_OK || !op->count)
        return status;
    const void *const in[] = {op->parts[0].src};
    void *const out[] = {channel->output};
    horon_reduce_tree(type_of(channel), HORON_SUM, in, 1, op->agreed.prescale, out, 1,
                      (size_t)op->count, NULL);
    return HORON_OK;
}

/* Gloo adds bools as bytes: two of them are 2. torch gives that out, but not where a rank keeps a
 * share: there each is 0 or 1. */
static void keep_bools(uint8_t *bools, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        bools[i] = bools[i] != 0;
}

static void end_reduction(const struct horon_gloo_channel *channel)
{
    const struct horon_operation *op = channel->op;
    const int rank = channel->team->rank, size = channel->team->size;
    const bool average = op->agreed.redop == HORON_AVERAGE;
    const struct horon_reduce_finish finish = {.postscale = op->agreed.postscale,
                                               .divisor = average ? (double)size : 1.0};
    uint64_t first = 0, count = op->count;
    if (!writes(channel, rank))
        return;
    if (keeps_share(channel)) {
        for (int other = 0; other < rank; other++)
            first += horon_operation_output(op, other, size);
        count = horon_operation_output(op, rank, size);
    }
    if (count)
        horon_reduce_finish(type_of(channel), &finish,
                            channel->output + first * channel->element_bytes, op->parts[0].dst,
                            (size_t)count);
    if (keeps_share(channel) && op->agreed.dtype == HORON_BOOL)
        keep_bools(op->parts[0].dst, count);
}

static horon_status_t begin_broadcast(struct horon_gloo_channel *channel)
{
    const struct horon_operation *op = channel->op;
    const bool is_root = op->agreed.root == channel->team->rank;
    begin_plan(channel, HORON_GLOO_BROADCAST, op->agreed.root, op->count * channel->element_bytes,
               1);
    channel->output = is_root ? (uint8_t *)(uintptr_t)op->parts[0].src : op->parts[0].dst;
    return HORON_OK;
}

static void end_broadcast(const struct horon_gloo_channel *channel)
{
    if (channel->op->parts[0].dst)
        copy(channel->op->parts[0].dst, channel->output, channel->plan.bytes);
}

/* ---- what ranks decide ----------------------------------------------------------------------- */

static uint64_t row_bytes(const struct horon_gloo_channel *channel)
{
    return channel->op->row_elements * channel->element_bytes;
}

/* Which of horon_verb_rows' three with rows it is. */
static enum horon_gloo_kind exchange_of(const struct horon_gloo_channel *channel)
{
    if (row_of(channel)->reads == HORON_RANKS_ROOT)
        return HORON_GLOO_SCATTER;
    return row_of(channel)->writes == HORON_RANKS_ROOT ? HORON_GLOO_GATHER : HORON_GLOO_ALLTOALL;
}

static bool gathers_for_all(const struct horon_gloo_channel *channel)
{
    return row_of(channel)->ahead == HORON_AHEAD_ROWS && row_of(channel)->writes == HORON_RANKS_ALL;
}

static bool gives(const struct horon_gloo_channel *channel, int from, int to)
{
    return reads(channel, from) && writes(channel, to);
}

/* Rows that this rank gives to another one, or to itself. */
static uint64_t rows_to(const struct horon_gloo_channel *channel, int rank)
{
    const bool same = row_of(channel)->ahead == HORON_AHEAD_ROWS;
    return gives(channel, channel->team->rank, rank) ? channel->op->ahead[same ? 0 : rank] : 0;
}

/* One behind another. What all get is no exchange: of a gather root alone gets something. */
static void place_gifts(struct horon_gloo_channel *channel)
{
    assert(!gathers_for_all(channel));
    channel->give_at[0] = 0;
    for (int rank = 0; rank < channel->team->size; rank++)
        channel->give_at[rank + 1] =
            channel->give_at[rank] + rows_to(channel, rank) * row_bytes(channel);
}

/* What all get has no marks. */
static const uint8_t *gift_to(const struct horon_gloo_channel *channel, int rank)
{
    return piece(channel->op->parts[0].src, gathers_for_all(channel) ? 0 : channel->give_at[rank]);
}

/* @return OK, `rows` and take_at say what comes | IN_PROGRESS */
static horon_status_t learn(struct horon_gloo_channel *channel, bool *moved_out,
                            struct horon_error *error)
{
    const struct horon_team *team = channel->team;
    const uint64_t row = row_bytes(channel);
    horon_status_t status = HORON_OK;
    channel->take_at[0] = 0;
    for (int rank = 0; rank < team->size && status == HORON_OK; rank++) {
        size_t bytes = (size_t)(rows_to(channel, rank) * row);
        if (rank != team->rank) {
            bytes = 0;
            if (gives(channel, rank, team->rank)) {
                const struct horon_gloo_pair *pair = channel->context->mesh.pairs[rank];
                status = horon_gloo_mesh_move(channel, rank, moved_out, error);
                if (status == HORON_OK && !horon_gloo_pair_announced(pair, channel->slot, &bytes))
                    status = horon_gloo_pair_end(pair)
                                 ? horon_gloo_lost(channel, rank, horon_gloo_pair_end(pair), error)
                                 : HORON_IN_PROGRESS;
            }
        }
        if (status != HORON_OK)
            return status;
        /* the other rank said so: any number at all */
        if ((row ? bytes % row : bytes) || bytes > INT64_MAX - channel->take_at[rank])
            return horon_gloo_differs(channel, rank, bytes, row, error);
        channel->rows[rank] = row ? bytes / row : 0;
        channel->take_at[rank + 1] = channel->take_at[rank] + bytes;
    }
    return status;
}

/* Where what comes goes: to the user's memory, or if there is none to the channel's. */
static horon_status_t place_rows(struct horon_gloo_channel *channel, struct horon_error *error)
{
    const struct horon_operation *op = channel->op;
    const int rank = channel->team->rank;
    const uint64_t bytes = channel->take_at[channel->team->size];
    uint8_t *out = op->parts[0].dst;
    if (op->output)
        out = op->output(op->output_arg, channel->rows, bytes / channel->element_bytes);
    const uint64_t given = channel->op->count * channel->element_bytes;
    const bool aside =
        bytes &&
        (!out || (reads(channel, rank) && horon_rows_lie_in(op->parts[0].src, given, out, bytes)));
    horon_status_t status = HORON_OK;
    if (aside)
        status = make_room(&channel->work, bytes, error);
    channel->output = aside ? channel->work.at : out;
    channel->rows_out = out;
    if (status == HORON_OK && writes(channel, rank))
        copy(piece(channel->output, channel->take_at[rank]), gift_to(channel, rank),
             channel->take_at[rank + 1] - channel->take_at[rank]);
    return status;
}

/* Gloo's ranks do not tell each other how much they give: all give the same, or the caller has said
 * what each does. */
static horon_status_t begin_gathering(struct horon_gloo_channel *channel, struct horon_error *error)
{
    const struct horon_operation *op = channel->op;
    const uint64_t row = row_bytes(channel);
    channel->take_at[0] = 0;
    for (int rank = 0; rank < channel->team->size; rank++) {
        uint64_t bytes;
        channel->rows[rank] = op->splits ? op->splits[rank] : op->ahead[0];
        if (__builtin_mul_overflow(channel->rows[rank], row, &bytes) ||
            __builtin_add_overflow(channel->take_at[rank], bytes, &channel->take_at[rank + 1]) ||
            channel->take_at[rank + 1] > INT64_MAX)
            return horon_error_set(error, HORON_ERR_MEMORY, "what all ranks give is too much");
    }
    begin_plan(channel, op->splits ? HORON_GLOO_ALLGATHERV : HORON_GLOO_ALLGATHER, 0,
               op->ahead[0] * row, 1);
    return place_rows(channel, error);
}

/* What this rank gives goes before it is known what it gets: others may wait for that. */
static horon_status_t begin_exchange(struct horon_gloo_channel *channel, bool *moved_out,
                                     struct horon_error *error)
{
    if (channel->phase == HORON_GLOO_BEGUN) {
        place_gifts(channel);
        memset(channel->take_at, 0, ((size_t)channel->team->size + 1) * sizeof *channel->take_at);
        begin_plan(channel, exchange_of(channel), channel->op->agreed.root, 0, 1);
        for (int rank = 0; rank < channel->team->size; rank++) {
            struct horon_gloo_message *send = &channel->flights[rank].send;
            if (rank == channel->team->rank || !gives(channel, channel->team->rank, rank))
                continue;
            *send = (struct horon_gloo_message){
                .slot = channel->slot,
                .data = (uint8_t *)(uintptr_t)gift_to(channel, rank),
                .bytes = (size_t)(rows_to(channel, rank) * row_bytes(channel))};
            if (horon_gloo_pair_send(channel->context->mesh.pairs[rank], send) != HORON_OK)
                return horon_error_set(error, HORON_ERR_MEMORY, "no memory for a message");
            const horon_status_t status = horon_gloo_mesh_move(channel, rank, moved_out, error);
            if (status != HORON_OK)
                return status;
        }
        horon_gloo_move_phase(channel, HORON_GLOO_LEARNS);
    }
    const horon_status_t status = learn(channel, moved_out, error);
    return status == HORON_OK ? place_rows(channel, error) : status;
}

static void end_rows(const struct horon_gloo_channel *channel)
{
    if (channel->rows_out)
        copy(channel->rows_out, channel->output, channel->take_at[channel->team->size]);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static struct horon_gloo_flight *flight_of(const struct horon_gloo_channel *channel, uint64_t step)
{
    return &channel->flights[step % ((uint64_t)channel->team->size + 1)];
}

static uint8_t *received(const struct horon_gloo_channel *channel, uint64_t index,
                         const struct horon_gloo_step *step)
{
    return step->combines ? piece(channel->two.at, index % 2 * channel->plan.segment)
                          : piece(channel->output, step->take_at);
}

/* Of an exchange all that this rank gives is on its way already. */
static horon_status_t begin_step(struct horon_gloo_channel *channel, struct horon_error *error)
{
    struct horon_gloo_flight *flight = flight_of(channel, channel->begun);
    struct horon_gloo_step *step = &flight->step;
    horon_status_t status = HORON_OK;
    horon_gloo_plan_step(&channel->plan, channel->begun, step);
    flight->recv = (struct horon_gloo_message){.slot = channel->slot, .done = step->from < 0};
    if (step->from >= 0) {
        flight->recv.data = received(channel, channel->begun, step);
        flight->recv.bytes = (size_t)step->take_bytes;
        status = horon_gloo_pair_recv(channel->context->mesh.pairs[step->from], &flight->recv);
    }
    if (step->sends_input && step->to >= 0)
        assert(channel->flights[step->to].send.bytes == step->send_bytes);
    if (!step->sends_input) {
        flight->send = (struct horon_gloo_message){.slot = channel->slot, .done = step->to < 0};
        if (step->to >= 0 && status == HORON_OK) {
            flight->send.data = piece(channel->output, step->send_at);
            flight->send.bytes = (size_t)step->send_bytes;
            status = horon_gloo_pair_send(channel->context->mesh.pairs[step->to], &flight->send);
        }
    }
    if (status != HORON_OK)
        return horon_error_set(error, status, "no memory for a message");
    channel->begun++;
    return HORON_OK;
}

static bool is_through(const struct horon_gloo_channel *channel,
                       const struct horon_gloo_flight *flight)
{
    if (!flight->recv.done)
        return false;
    if (!flight->step.sends_input)
        return flight->send.done;
    return flight->step.to < 0 || channel->flights[flight->step.to].send.done;
}

static horon_status_t end_step(struct horon_gloo_channel *channel, struct horon_error *error)
{
    const struct horon_gloo_flight *flight = flight_of(channel, channel->over);
    const struct horon_gloo_step *step = &flight->step;
    if (step->from >= 0 && flight->recv.got != step->take_bytes)
        return horon_gloo_differs(channel, step->from, flight->recv.got, step->take_bytes, error);
    if (step->combines && step->from >= 0) {
        horon_gloo_combine((horon_dtype_t)channel->op->agreed.dtype, redop_of(channel),
                           channel->context->e1, piece(channel->output, step->take_at),
                           received(channel, channel->over, step),
                           (size_t)(step->take_bytes / channel->element_bytes));
    }
    channel->over++;
    return HORON_OK;
}

/* Of steps that have begun since a pair was last moved. Each write wakes a thread of the rank that
 * it goes to: what steps give to the same rank goes in one. */
struct unmoved {
    int to, from; /* -1: nothing to write there */
    uint64_t bytes;
};

static horon_status_t move_together(struct horon_gloo_channel *channel, struct unmoved *unmoved,
                                    bool *moved_out, struct horon_error *error)
{
    const int to = unmoved->to, from = unmoved->from;
    horon_status_t status = HORON_OK;
    *unmoved = (struct unmoved){-1, -1, 0};
    if (to >= 0)
        status = horon_gloo_mesh_move(channel, to, moved_out, error);
    if (status == HORON_OK && from >= 0 && from != to)
        status = horon_gloo_mesh_move(channel, from, moved_out, error);
    return status;
}

/* @return IN_PROGRESS: it has to wait for others, or there is none */
static horon_status_t begin_next(struct horon_gloo_channel *channel, struct unmoved *unmoved,
                                 bool *moved_out, struct horon_error *error)
{
    const uint64_t room = (uint64_t)channel->team->size + 1;
    struct horon_gloo_step next;
    if (channel->begun == channel->plan.steps || channel->begun - channel->over == room)
        return HORON_IN_PROGRESS;
    horon_gloo_plan_step(&channel->plan, channel->begun, &next);
    if (next.after > channel->over)
        return HORON_IN_PROGRESS;
    const bool elsewhere = (unmoved->to >= 0 && next.to >= 0 && next.to != unmoved->to) ||
                           (unmoved->from >= 0 && next.from >= 0 && next.from != unmoved->from);
    horon_status_t status = HORON_OK;
    if (elsewhere || unmoved->bytes >= TOGETHER_BYTES)
        status = move_together(channel, unmoved, moved_out, error);
    if (status == HORON_OK)
        status = begin_step(channel, error);
    unmoved->to = next.to >= 0 ? next.to : unmoved->to;
    unmoved->from = next.from >= 0 ? next.from : unmoved->from;
    unmoved->bytes += next.to >= 0 ? next.send_bytes : 0;
    return status;
}

static horon_status_t run_steps(struct horon_gloo_channel *channel, bool *moved_out,
                                struct horon_error *error)
{
    struct unmoved unmoved = {-1, -1, 0};
    horon_status_t status = HORON_OK;
    while (status == HORON_OK && channel->over < channel->plan.steps) {
        status = begin_next(channel, &unmoved, moved_out, error);
        if (status != HORON_IN_PROGRESS)
            continue;
        const struct horon_gloo_flight *flight = flight_of(channel, channel->over);
        status = HORON_OK;
        if (!is_through(channel, flight) || unmoved.bytes >= TOGETHER_BYTES)
            status = move_together(channel, &unmoved, moved_out, error);
        if (status != HORON_OK)
            return status;
        if (!is_through(channel, flight))
            return HORON_IN_PROGRESS;
        status = end_step(channel, error);
        *moved_out = true;
    }
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static horon_status_t begin(struct horon_gloo_channel *channel, bool *moved_out,
                            struct horon_error *error)
{
    const struct horon_verb_row *row = row_of(channel);
    if (!horon_verb_moves(row)) {
        begin_plan(channel, HORON_GLOO_BARRIER, 0, 0, 1);
        return HORON_OK;
    }
    assert(channel->op->part_count == 1); /* in order nothing is fused */
    if (horon_verb_reduces(row))
        return begin_reduction(channel, error);
    if (row->ahead == HORON_AHEAD_NOTHING)
        return begin_broadcast(channel);
    return gathers_for_all(channel) ? begin_gathering(channel, error)
                                    : begin_exchange(channel, moved_out, error);
}

static void end(const struct horon_gloo_channel *channel)
{
    const struct horon_verb_row *row = row_of(channel);
    if (!horon_verb_moves(row))
        return;
    if (horon_verb_reduces(row))
        end_reduction(channel);
    else if (row->ahead == HORON_AHEAD_NOTHING)
        end_broadcast(channel);
    else
        end_rows(channel);
}

horon_status_t horon_gloo_run(struct horon_gloo_channel *channel, bool *moved_out,
                              struct horon_error *error)
{
    horon_status_t status = HORON_OK;
    assert(channel->phase != HORON_GLOO_IDLE);
    if (channel->phase != HORON_GLOO_MOVES) {
        status = begin(channel, moved_out, error);
        if (status != HORON_OK)
            return status;
        horon_gloo_move_phase(channel, HORON_GLOO_MOVES);
    }
    status = run_steps(channel, moved_out, error);
    if (status == HORON_OK)
        end(channel);
    return status;
}

bool horon_gloo_awaits(const struct horon_gloo_channel *channel, int rank)
{
    size_t bytes;
    if (channel->phase == HORON_GLOO_LEARNS && rank != channel->team->rank)
        return gives(channel, rank, channel->team->rank) &&
               !horon_gloo_pair_announced(channel->context->mesh.pairs[rank], channel->slot,
                                          &bytes);
    if (channel->phase != HORON_GLOO_MOVES)
        return false;
    for (uint64_t step = channel->over; step < channel->begun; step++) {
        const struct horon_gloo_flight *flight = flight_of(channel, step);
        if ((!flight->recv.done && flight->step.from == rank) ||
            (!is_through(channel, flight) && flight->recv.done && flight->step.to == rank))
            return true;
    }
    return false;
}
