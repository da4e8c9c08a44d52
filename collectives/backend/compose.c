/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recipes:
 *
 *  - the other verb, of nothing: a rank that ends has met all ranks.
 *  - the sum of bytes: root gives its own, all others zeros. Bytes, because a sum of numbers would
 *    lose the sign of a zero and the bits of a NaN.
 *  - rounds: as many operations of the other verb as ranks give anything, each rank the root of
 *    one, and all write the bytes behind those of the ranks before.
 */
#include "backend/compose.h"

#include "alloc.h"

bool horon_compose_signature(const struct horon_signature *agreed, struct horon_signature *made)
{
    const struct horon_verb_row *row = horon_verb_of(agreed);
    if (row->recipe == HORON_RECIPE_NONE)
        return false;
    *made = (struct horon_signature){
        .prescale = 1,
        .postscale = 1,
        .verb = (uint8_t)row->made_of,
        .dtype = HORON_UINT8,
        .redop = HORON_SUM,
        .memory = agreed->memory,
        .team = agreed->team,
        .ndim = 1,
    };
    if (row->recipe == HORON_RECIPE_BYTES)
        made->shape[0] = horon_signature_bytes(agreed);
    horon_signature_make_canonical(made);
    return true;
}

static horon_status_t make_room(struct horon_composed *composed, size_t parts, size_t bytes)
{
    if (composed->limit < parts) {
        struct horon_part *grown = horon_realloc(composed->parts, parts * sizeof *grown);
        if (!grown)
            return HORON_ERR_MEMORY;
        composed->parts = grown;
        composed->limit = parts;
    }
    if (composed->scratch_bytes < bytes) {
        void *grown = horon_realloc(composed->scratch, bytes);
        if (!grown)
            return HORON_ERR_MEMORY;
        composed->scratch = grown;
        composed->scratch_bytes = bytes;
    }
    return HORON_OK;
}

static void fill_parts(struct horon_composed *composed, const struct horon_operation *op,
                       bool is_root, size_t element_bytes)
{
    for (size_t i = 0; i < op->part_count; i++) {
        const struct horon_part *part = &op->parts[i];
        const size_t bytes = (size_t)part->count * element_bytes;
        void *dst = part->dst ? part->dst : composed->scratch; /* nobody reads that */
        if (!is_root && bytes)
            memset(dst, 0, bytes);
        composed->parts[i] =
            (struct horon_part){.src = is_root ? part->src : dst, .dst = dst, .count = bytes};
    }
}

/* The sum of bytes, or nothing. */
static horon_status_t make_sum(struct horon_composed *composed)
{
    const struct horon_operation *op = composed->whole;
    const size_t element_bytes = horon_dtype_bytes((horon_dtype_t)op->agreed.dtype);
    size_t scratch_bytes = 0;
    for (size_t i = 0; i < op->part_count; i++)
        if (!op->parts[i].dst && (size_t)op->parts[i].count * element_bytes > scratch_bytes)
            scratch_bytes = (size_t)op->parts[i].count * element_bytes;
    if (make_room(composed, op->part_count, scratch_bytes) != HORON_OK)
        return HORON_ERR_MEMORY;
    fill_parts(composed, op, op->agreed.root == composed->rank, element_bytes);
    composed->op.count = 0;
    for (size_t i = 0; i < op->part_count; i++)
        composed->op.count += composed->parts[i].count;
    return HORON_OK;
}

static size_t row_bytes(const struct horon_operation *op)
{
    return (size_t)op->row_elements * horon_dtype_bytes((horon_dtype_t)op->agreed.dtype);
}

/* Bytes of all ranks, and the most of one. @return false: they do not fit */
static bool add_up(const struct horon_composed *composed, size_t *total_out, size_t *most_out)
{
    const size_t of_row = row_bytes(composed->whole);
    size_t total = 0, most = 0;
    for (int rank = 0; rank < composed->size; rank++) {
        size_t bytes;
        if (__builtin_mul_overflow(composed->rows[rank], of_row, &bytes) ||
            __builtin_add_overflow(total, bytes, &total))
            return false;
        most = bytes > most ? bytes : most;
    }
    *total_out = total;
    *most_out = most;
    return total <= INT64_MAX;
}

static horon_status_t prepare_rounds(struct horon_composed *composed)
{
    const struct horon_operation *op = composed->whole;
    size_t total = 0, most = 0, before = 0;
    assert(op->part_count == 1);
    if (!add_up(composed, &total, &most))
        return HORON_ERR_PROTO;
    composed->own = op->parts[0].src;
    composed->out = op->parts[0].dst;
    if (op->output)
        composed->out = op->output(op->output_arg, composed->rows,
                                   total / horon_dtype_bytes((horon_dtype_t)op->agreed.dtype));
    if (make_room(composed, 1, composed->out ? 0 : most) != HORON_OK)
        return HORON_ERR_MEMORY;
    if (!composed->out || composed->own != composed->out)
        return HORON_OK;
    for (int rank = 0; rank < composed->rank; rank++) /* in place: moved to its place at once */
        before += (size_t)composed->rows[rank] * row_bytes(op);
    composed->own = memmove(composed->out + before, composed->out,
                            (size_t)composed->rows[composed->rank] * row_bytes(op));
    return HORON_OK;
}

static bool next_round(struct horon_composed *composed)
{
    if (composed->round > 0 && composed->out)
        composed->out += composed->parts[0].count;
    while (composed->round < composed->size && composed->rows[composed->round] == 0)
        composed->round++;
    if (composed->round == composed->size)
        return false;
    const int root = composed->round++;
    const uint64_t bytes = composed->rows[root] * row_bytes(composed->whole);
    const bool gives = root == composed->rank;
    composed->parts[0] = (struct horon_part){
        .src = gives ? composed->own : NULL,
        .dst = composed->out || gives ? composed->out : composed->scratch,
        .count = bytes,
    };
    composed->op.count = composed->op.agreed.shape[0] = bytes;
    composed->op.agreed.root = root;
    return true;
}

bool horon_compose_next(struct horon_composed *composed)
{
    return composed->rows ? next_round(composed) : composed->round++ == 0;
}

horon_status_t horon_compose(struct horon_composed *composed, const struct horon_operation *op,
                             int rank, int size, const uint64_t *rows)
{
    assert(horon_compose_needs_rows(op) == (rows != NULL));
    composed->op = (struct horon_operation){
        .check = op->check, .part_count = rows ? 1 : op->part_count, .stream = op->stream};
    composed->whole = op;
    composed->rank = rank;
    composed->size = size;
    composed->round = 0;
    composed->rows = rows;
    const bool makeable = horon_compose_signature(&op->agreed, &composed->op.agreed);
    assert(makeable);
    (void)makeable;
    const horon_status_t status = rows ? prepare_rounds(composed) : make_sum(composed);
    composed->op.parts = composed->parts;
    return status;
}

void horon_composed_deinit(struct horon_composed *composed)
{
    horon_free(composed->parts);
    horon_free(composed->scratch);
}
