/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recipes:
 *
 *  - the other verb, of nothing: a rank that ends has met all ranks.
 *  - the sum of bytes: root gives its own, all others zeros. Bytes, because a sum of numbers would
 *    lose the sign of a zero and the bits of a NaN.
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
        .team = agreed->team,
        .ndim = 1,
    };
    if (row->recipe == HORON_RECIPE_BYTES)
        made->shape[0] = horon_signature_bytes(agreed);
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

horon_status_t horon_compose(struct horon_composed *composed, const struct horon_operation *op,
                             int rank)
{
    const size_t element_bytes = horon_dtype_bytes((horon_dtype_t)op->agreed.dtype);
    size_t scratch_bytes = 0;
    for (size_t i = 0; i < op->part_count; i++)
        if (!op->parts[i].dst && (size_t)op->parts[i].count * element_bytes > scratch_bytes)
            scratch_bytes = (size_t)op->parts[i].count * element_bytes;
    if (make_room(composed, op->part_count, scratch_bytes) != HORON_OK)
        return HORON_ERR_MEMORY;
    composed->op = *op;
    const bool makeable = horon_compose_signature(&op->agreed, &composed->op.agreed);
    assert(makeable);
    (void)makeable;
    fill_parts(composed, op, op->agreed.root == rank, element_bytes);
    composed->op.parts = composed->parts;
    composed->op.count = 0;
    for (size_t i = 0; i < op->part_count; i++)
        composed->op.count += composed->parts[i].count;
    return HORON_OK;
}

void horon_composed_deinit(struct horon_composed *composed)
{
    horon_free(composed->parts);
    horon_free(composed->scratch);
}
