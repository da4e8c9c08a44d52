/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures: which are valid, their canonical form, and what is computed from it. */
#include "operation.h"

#include <xxhash.h>

bool horon_signature_is_valid(const struct horon_signature *signature)
{
    return signature->verb < HORON_VERB_COUNT && signature->dtype < HORON_DTYPE_COUNT &&
           signature->redop < HORON_REDOP_COUNT && signature->memory < HORON_MEMORY_COUNT &&
           signature->ndim <= HORON_NDIM_MAX;
}

void horon_signature_make_canonical(struct horon_signature *signature)
{
    assert(horon_signature_is_valid(signature));
    const struct horon_verb_row *row = horon_verb_of(signature);
    if (!horon_verb_reduces(row)) {
        signature->redop = 0;
        signature->prescale = 1;
        signature->postscale = 1;
    }
    if (!horon_verb_is_rooted(row) && !horon_verb_splits(row))
        signature->root = 0;
    if (!horon_verb_moves(row)) {
        signature->dtype = 0;
        signature->memory = HORON_MEMORY_ASK;
        signature->ndim = 0;
        memset(signature->shape, 0, sizeof signature->shape);
    }
    if (horon_verb_rows_differ(row))
        signature->shape[0] = 0;
    if (signature->group_size == 0) {
        signature->group_hash = 0;
        signature->group_index = 0;
    }
}

uint64_t horon_operation_output(const struct horon_operation *op, int rank, int size)
{
    const struct horon_verb_row *row = horon_verb_of(&op->agreed);
    if (horon_verb_splits(row))
        return horon_operation_rows(op, rank, size) * op->row_elements;
    return horon_ranks_include(row->writes, op->agreed.root, rank) ? op->count : 0;
}

int32_t horon_splits_hash(const uint64_t *splits, int size)
{
    const uint64_t hash = XXH3_64bits(splits, (size_t)size * sizeof *splits);
    return (int32_t)(hash | 1); /* not 0, which says that they are as equal as can be */
}

uint64_t horon_signature_bytes(const struct horon_signature *signature)
{
    if (!horon_verb_moves(horon_verb_of(signature)))
        return 0;
    uint64_t bytes = horon_dtype_bytes((horon_dtype_t)signature->dtype);
    for (uint32_t i = 0; i < signature->ndim; i++)
        if (__builtin_mul_overflow(bytes, signature->shape[i], &bytes))
            bytes = UINT64_MAX;
    return bytes;
}

uint64_t horon_signature_hash(const struct horon_signature *signature, uint64_t name_hash)
{
    const size_t bytes =
        offsetof(struct horon_signature, shape) + signature->ndim * sizeof signature->shape[0];
    return XXH3_64bits_withSeed(signature, bytes, name_hash);
}

uint64_t horon_name_hash(const char *name, size_t name_bytes)
{
    return XXH3_64bits(name, name_bytes);
}
