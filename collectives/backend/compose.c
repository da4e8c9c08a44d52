/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recipes:
 *
 *  - a barrier, from an operation on nothing: it ends on a rank once the rank has met all others.
 *  - the sum of bytes: root gives its own, all others zeros. Bytes, because a sum of numbers would
 *    lose the sign of a zero and the bits of a NaN.
 *  - rounds: one operation for each rank that gives anything, with that rank as root. All ranks
 *    write what they get of it behind what they got in the rounds before.
 *  - the whole: the other verb gives all ranks everything, and each keeps what it should get.
 *
 * The host writes the zeros and moves the rows, and scratch is its memory: nothing is made where
 * an operation's memory is a device's.
 */
#include "backend/compose.h"

#include "alloc.h"

bool horon_signature_compose(const struct horon_signature *agreed, struct horon_signature *made)
{
    const struct horon_verb_row *row = horon_verb_of(agreed);
    if (row->recipe == HORON_RECIPE_NONE || agreed->memory == HORON_MEMORY_CUDA)
        return false;
    if (row->recipe == HORON_RECIPE_WHOLE) {
        *made = *agreed;
        made->verb = (uint8_t)row->made_of;
        made->group_size = 0;
        horon_signature_make_canonical(made);
        return true;
    }
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

/* The other verb, of the same: where a part of the output is kept, of the only one, it comes to
 * scratch first; where nothing is, nobody reads that. */
static horon_status_t make_whole(struct horon_composed *composed)
{
    const struct horon_operation *op = composed->whole;
    const size_t element_bytes = horon_dtype_bytes((horon_dtype_t)op->agreed.dtype);
    const bool keeps_all = horon_operation_output(op, composed->rank, composed->size) == op->count;
    uint64_t most = 0;
    for (size_t i = 0; i < op->part_count; i++)
        most = op->parts[i].count > most ? op->parts[i].count : most;
    if (make_room(composed, op->part_count, keeps_all ? 0 : (size_t)most * element_bytes) !=
        HORON_OK)
        return HORON_ERR_MEMORY;
    for (size_t i = 0; i < op->part_count; i++) {
        composed->parts[i] = op->parts[i];
        if (!keeps_all)
            composed->parts[i].dst = composed->scratch;
    }
    composed->op.count = op->count;
    composed->keeps_rows = !keeps_all && horon_verb_splits(horon_verb_of(&op->agreed));
    return HORON_OK;
}

static size_t row_bytes(const struct horon_operation *op)
{
    return (size_t)op->row_elements * horon_dtype_bytes((horon_dtype_t)op->agreed.dtype);
}

static size_t words_of(const struct horon_composed *composed)
{
    return horon_verb_ahead_words(horon_verb_of(&composed->whole->agreed), composed->size);
}

/* Rows that @p rank gives to those before @p end; a rank that does not split gives all to each. */
static bool rows_before(const struct horon_composed *composed, int rank, size_t end,
                        uint64_t *rows_out)
{
    const size_t words = words_of(composed);
    *rows_out = 0;
    for (size_t i = 0; i < end && i < words; i++)
        if (__builtin_add_overflow(*rows_out, composed->rows[(size_t)rank * words + i], rows_out))
            return false;
    return true;
}

/* The rows of @p from that are for this rank. */
static uint64_t rows_taken(const struct horon_composed *composed, int from)
{
    const struct horon_signature *agreed = &composed->whole->agreed;
    const size_t words = words_of(composed);
    if (!horon_ranks_include(horon_verb_of(agreed)->writes, agreed->root, composed->rank))
        return 0;
    return composed->rows[(size_t)from * words + (words == 1 ? 0 : (size_t)composed->rank)];
}

/* Bytes that this rank gets, and the most that one gives. @return false: they do not fit */
static bool add_up(struct horon_composed *composed, size_t *total_out, size_t *most_out)
{
    const size_t of_row = row_bytes(composed->whole);
    size_t total = 0, most = 0;
    for (int rank = 0; rank < composed->size; rank++) {
        uint64_t rows;
        size_t given, taken;
        composed->taken[rank] = rows_taken(composed, rank);
        if (!rows_before(composed, rank, SIZE_MAX, &rows) ||
            __builtin_mul_overflow(rows, of_row, &given) ||
            __builtin_mul_overflow(composed->taken[rank], of_row, &taken) ||
            __builtin_add_overflow(total, taken, &total) || given > INT64_MAX)
            return false;
        most = given > most ? given : most;
    }
    *total_out = total;
    *most_out = most;
    return total <= INT64_MAX;
}

static horon_status_t make_taken(struct horon_composed *composed)
{
    if (composed->limit_ranks >= composed->size)
        return HORON_OK;
    uint64_t *grown =
        horon_realloc(composed->taken, (size_t)composed->size * sizeof *composed->taken);
    if (!grown)
        return HORON_ERR_MEMORY;
    composed->taken = grown;
    composed->limit_ranks = composed->size;
    return HORON_OK;
}

/* What of a round is this rank's, and where in it. @return whether it is all of it */
static bool share_of(const struct horon_composed *composed, int root, size_t *at_out,
                     size_t *bytes_out)
{
    const size_t of_row = row_bytes(composed->whole);
    uint64_t before = 0, rows = 0;
    if (words_of(composed) > 1)
        rows_before(composed, root, (size_t)composed->rank, &before);
    rows_before(composed, root, SIZE_MAX, &rows);
    *at_out = (size_t)before * of_row;
    *bytes_out = (size_t)composed->taken[root] * of_row;
    return composed->taken[root] == rows;
}

/* In place: moved to its place at once, where nobody else's rows will come. */
static void move_own(struct horon_composed *composed, size_t total)
{
    const size_t of_row = row_bytes(composed->whole);
    const size_t bytes = (size_t)composed->taken[composed->rank] * of_row;
    uint64_t before = 0;
    if (!composed->out || words_of(composed) > 1 ||
        !horon_rows_lie_in(composed->own, bytes, composed->out, total))
        return;
    for (int rank = 0; rank < composed->rank; rank++)
        before += composed->taken[rank];
    char *place = composed->out + (size_t)before * of_row;
    if (composed->own != place)
        memmove(place, composed->own, bytes);
    composed->own = place;
}

static horon_status_t prepare_rounds(struct horon_composed *composed)
{
    const struct horon_operation *op = composed->whole;
    size_t total = 0, most = 0;
    assert(op->part_count == 1);
    if (make_taken(composed) != HORON_OK)
        return HORON_ERR_MEMORY;
    if (!add_up(composed, &total, &most))
        return HORON_ERR_PROTO;
    composed->own = op->parts[0].src;
    composed->out = op->parts[0].dst;
    if (op->output)
        composed->out = op->output(op->output_arg, composed->taken,
                                   total / horon_dtype_bytes((horon_dtype_t)op->agreed.dtype));
    if (total == 0)
        composed->out = NULL;
    const bool all = composed->out && words_of(composed) == 1;
    if (make_room(composed, 1, all ? 0 : most) != HORON_OK)
        return HORON_ERR_MEMORY;
    move_own(composed, total);
    return HORON_OK;
}

/* The round has ended: takes what of it is this rank's, if it is not there already. */
static void end_round(struct horon_composed *composed)
{
    const int root = composed->round - 1;
    size_t at, bytes;
    if (!composed->out || root < 0)
        return;
    const bool is_whole = share_of(composed, root, &at, &bytes);
    const char *from = root == composed->rank ? composed->own : composed->scratch;
    if (bytes && !is_whole)
        memmove(composed->out, from + at, bytes);
    composed->out += bytes;
}

static bool next_round(struct horon_composed *composed)
{
    uint64_t rows = 0;
    size_t at, taken;
    end_round(composed);
    while (composed->round < composed->size &&
           rows_before(composed, composed->round, SIZE_MAX, &rows) && rows == 0)
        composed->round++;
    if (composed->round == composed->size)
        return false;
    const int root = composed->round++;
    const bool gives = root == composed->rank;
    void *dst = composed->scratch;
    if (composed->out && share_of(composed, root, &at, &taken))
        dst = composed->out;
    else if (gives)
        dst = NULL;
    composed->parts[0] = (struct horon_part){
        .src = gives ? composed->own : NULL,
        .dst = dst,
        .count = rows * row_bytes(composed->whole),
    };
    composed->op.count = composed->op.agreed.shape[0] = composed->parts[0].count;
    composed->op.agreed.root = root;
    return true;
}

/* This rank's rows, of the whole that lies in scratch. */
static void keep_rows(const struct horon_composed *composed)
{
    const struct horon_operation *op = composed->whole;
    uint64_t before = 0;
    for (int rank = 0; rank < composed->rank; rank++)
        before += horon_operation_rows(op, rank, composed->size);
    const uint64_t rows = horon_operation_rows(op, composed->rank, composed->size);
    assert(op->part_count == 1);
    if (rows)
        memcpy(op->parts[0].dst, (const char *)composed->scratch + before * row_bytes(op),
               rows * row_bytes(op));
}

bool horon_composed_next(struct horon_composed *composed)
{
    if (composed->rows)
        return next_round(composed);
    if (composed->round++ == 0)
        return true;
    if (composed->keeps_rows)
        keep_rows(composed);
    return false;
}

horon_status_t horon_composed_init(struct horon_composed *composed,
                                   const struct horon_operation *op, int rank, int size,
                                   const uint64_t *rows)
{
    assert(horon_operation_needs_rows(op) == (rows != NULL));
    composed->op = (struct horon_operation){.check = op->check,
                                            .part_count = rows ? 1 : op->part_count,
                                            .givers = op->givers,
                                            .device = op->device,
                                            .stream = op->stream};
    composed->whole = op;
    composed->rank = rank;
    composed->size = size;
    composed->round = 0;
    composed->rows = rows;
    composed->keeps_rows = false;
    const bool makeable = horon_signature_compose(&op->agreed, &composed->op.agreed);
    assert(makeable);
    (void)makeable;
    const bool is_whole = horon_verb_of(&op->agreed)->recipe == HORON_RECIPE_WHOLE;
    const horon_status_t status = rows       ? prepare_rounds(composed)
                                  : is_whole ? make_whole(composed)
                                             : make_sum(composed);
    composed->op.parts = composed->parts;
    return status;
}

void horon_composed_deinit(struct horon_composed *composed)
{
    horon_free(composed->parts);
    horon_free(composed->scratch);
    horon_free(composed->taken);
}
