/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reduction needs besides its tree: scaling before and after.
 *
 * Most have none of it, or an average of floats that the kernel of the sum does by the way: then
 * one kernel runs over everything at once. The others go block by block, each a few passes over
 * memory that stays in the first-level cache:
 *
 *     leaves -> scratch, scaled -> first output, by the tree -> divided and scaled there -> others
 *
 * The first output is written when every leaf of the block has been read, so that any output may be
 * any input. What an operation means is in reduce.h and kernels_template.h.
 */
#include "reduce/reduce.h"

#include "reduce/reduce_isa.h"

#include <assert.h>
#include <stdalign.h>
#include <string.h>

enum {
    BLOCK_BYTES = 4096,    /* most of one leaf */
    SCRATCH_BYTES = 16384, /* of all scaled leaves together: less of each, if there are many */
    VECTOR_BYTES_MAX = 64
};

static_assert(SCRATCH_BYTES / HORON_REDUCE_INPUTS_MAX >= VECTOR_BYTES_MAX,
              "a block of the most leaves must hold a vector of each");

static void copy(void *out, const void *in, size_t bytes)
{
    if (out != in && bytes > 0)
        memcpy(out, in, bytes);
}

static bool finish_is_none(const struct horon_reduce_finish *finish)
{
    return finish->divisor == 1.0 && finish->postscale == 1.0;
}

static void finish_into(const struct horon_reduce_type *type,
                        const struct horon_reduce_finish *finish, const void *in, void *out,
                        size_t count)
{
    if (finish->divisor != 1.0) {
        type->divide(finish->divisor, in, out, count);
        in = out;
    }
    if (finish->postscale != 1.0)
        type->scale(finish->postscale, in, out, count);
}

/* The block of count elements at a byte offset into the call's first output, divided by the call's
 * divisor if the kernel does that. */
static void tree_of_block(const struct horon_reduce_type *type, horon_redop_t op,
                          const struct horon_reduce_call *whole, double prescale, size_t at_bytes,
                          size_t count, void *out)
{
    alignas(VECTOR_BYTES_MAX) unsigned char scratch[SCRATCH_BYTES];
    const void *leaves[HORON_REDUCE_INPUTS_MAX];
    size_t bytes = count * type->bytes;
    for (int i = 0; i < whole->n; i++) {
        leaves[i] = (const unsigned char *)whole->in[i] + at_bytes;
        if (prescale != 1.0) {
            type->scale(prescale, leaves[i], scratch + (size_t)i * bytes, count);
            leaves[i] = scratch + (size_t)i * bytes;
        }
    }
    if (whole->n == 1 && type->is_float) { /* a kernel would change the bits of a NaN */
        copy(out, leaves[0], bytes);
        return;
    }
    const struct horon_reduce_call call = {.in = leaves,
                                           .out = &out,
                                           .n = whole->n,
                                           .n_out = 1,
                                           .count = count,
                                           .divisor = whole->divisor};
    type->tree[op](&call);
}

static void copy_some(struct horon_reduce_beside *beside, size_t bytes)
{
    for (int i = 0; i < beside->n; i++)
        memcpy((unsigned char *)beside->copies[i].to + beside->done,
               (const unsigned char *)beside->copies[i].from + beside->done, bytes);
    beside->done += bytes;
}

/* Apart from its caller, which else would probe 40 KiB of stack for every reduction.
 * @param rest  what is to be done after the kernel, which divides by the call's divisor */
__attribute__((noinline)) static void tree_in_blocks(const struct horon_reduce_type *type,
                                                     horon_redop_t op,
                                                     const struct horon_reduce_call *call,
                                                     double prescale,
                                                     struct horon_reduce_finish rest)
{
    size_t n = (size_t)call->n;
    size_t leaf_bytes = n * BLOCK_BYTES > SCRATCH_BYTES
                            ? SCRATCH_BYTES / n / VECTOR_BYTES_MAX * VECTOR_BYTES_MAX
                            : BLOCK_BYTES;
    size_t block = leaf_bytes / type->bytes;
    for (size_t at = 0; at < call->count; at += block) {
        size_t count = call->count - at < block ? call->count - at : block;
        size_t at_bytes = at * type->bytes;
        unsigned char *first = (unsigned char *)call->out[0] + at_bytes;
        tree_of_block(type, op, call, prescale, at_bytes, count, first);
        if (!finish_is_none(&rest))
            finish_into(type, &rest, first, first, count);
        for (int j = 1; j < call->n_out; j++)
            copy((unsigned char *)call->out[j] + at_bytes, first, count * type->bytes);
        if (call->beside)
            copy_some(call->beside, count * type->bytes * call->beside->times);
    }
}

void horon_reduce_tree_on(const struct horon_reduce_kernels *kernels, horon_dtype_t dtype,
                          horon_redop_t op, const void *const *in, int n, double prescale,
                          void *const *out, int n_out, size_t count,
                          const struct horon_reduce_finish *finish,
                          struct horon_reduce_beside *beside)
{
    const struct horon_reduce_type *type = &kernels->type[dtype];
    struct horon_reduce_call call = {.in = in,
                                     .out = out,
                                     .n = n,
                                     .n_out = n_out,
                                     .count = count,
                                     .divisor = 1,
                                     .beside = beside};
    struct horon_reduce_finish rest = {.postscale = 1.0, .divisor = 1.0};
    if (finish != NULL)
        rest = *finish;
    if (op == HORON_SUM && type->is_float && n > 1) {
        call.divisor = rest.divisor; /* 16-bit floats before they are rounded */
        rest.divisor = 1.0;
    }
    if (n == 1 || prescale != 1.0 || !finish_is_none(&rest))
        tree_in_blocks(type, op, &call, prescale, rest);
    else
        type->tree[op](&call);
}

double horon_reduce_partial_divisor(horon_dtype_t dtype, uint64_t ranks)
{
    uint64_t divisor = 1;
    assert(ranks > 0);
    if (dtype != HORON_FLOAT16)
        return 1.0;
    while (divisor < ranks)
        divisor *= 2;
    /* Sums of up to 1024 of the largest float16 are never rounded up; more might be, a little. */
    return (double)(ranks <= 1024 ? divisor : 2 * divisor);
}

bool horon_reduce_supported(horon_dtype_t dtype, horon_redop_t op)
{
    if ((unsigned int)dtype >= HORON_DTYPE_COUNT || (unsigned int)op >= HORON_REDOP_COUNT)
        return false;
    if (op == HORON_AVERAGE)
        return dtype != HORON_BOOL && horon_reduce_supported(dtype, HORON_SUM);
    return horon_reduce_kernels_generic.type[dtype].tree[op] != NULL;
}

static void tree(horon_dtype_t dtype, horon_redop_t op, const void *const *in, int n,
                 double prescale, void *const *out, int n_out, size_t count,
                 const struct horon_reduce_finish *finish, struct horon_reduce_beside *beside)
{
    assert(n >= 1);
    assert(n <= HORON_REDUCE_INPUTS_MAX);
    assert(n_out >= 1);
    assert(op != HORON_AVERAGE);
    assert(horon_reduce_supported(dtype, op));
    assert(finish == NULL || finish->divisor >= 1);
    assert(finish == NULL || finish->divisor < 0x1p64);
    struct horon_reduce_fp saved;
    horon_reduce_fp_enter(&saved);
    horon_reduce_tree_on(horon_reduce_select(), dtype, op, in, n, prescale, out, n_out, count,
                         finish, beside);
    horon_reduce_fp_leave(&saved);
}

void horon_reduce_tree(horon_dtype_t dtype, horon_redop_t op, const void *const *in, int n,
                       double prescale, void *const *out, int n_out, size_t count,
                       const struct horon_reduce_finish *finish)
{
    tree(dtype, op, in, n, prescale, out, n_out, count, finish, NULL);
}

void horon_reduce_tree_beside(horon_dtype_t dtype, horon_redop_t op, const void *const *in, int n,
                              double prescale, void *const *out, int n_out, size_t count,
                              const struct horon_reduce_finish *finish,
                              const struct horon_reduce_copy *copies, int n_copies,
                              size_t copy_bytes)
{
    const size_t bytes = count * horon_reduce_kernels_generic.type[dtype].bytes;
    struct horon_reduce_beside beside = {
        .copies = copies, .n = n_copies, .times = bytes ? copy_bytes / bytes : 0};
    tree(dtype, op, in, n, prescale, out, n_out, count, finish, &beside);
    copy_some(&beside, copy_bytes - beside.done);
}

void horon_reduce_combine(horon_dtype_t dtype, horon_redop_t op, const void *left,
                          const void *right, void *out, size_t count)
{
    const void *const sides[] = {left, right};
    horon_reduce_tree(dtype, op, sides, 2, 1.0, &out, 1, count, NULL);
}

void horon_reduce_finish(horon_dtype_t dtype, const struct horon_reduce_finish *finish,
                         const void *in, void *out, size_t count)
{
    assert(horon_reduce_supported(dtype, HORON_SUM));
    assert(finish->divisor > 0);
    const struct horon_reduce_type *type = &horon_reduce_select()->type[dtype];
    if (finish_is_none(finish)) {
        copy(out, in, count * type->bytes);
        return;
    }
    struct horon_reduce_fp saved;
    horon_reduce_fp_enter(&saved);
    finish_into(type, finish, in, out, count);
    horon_reduce_fp_leave(&saved);
}
