/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Element-wise reduction: dtype x op kernels over plain memory.
 *
 * Pure functions: no I/O, no heap, no state kept between calls. The kernels are picked by what the
 * CPU can do, and every choice gives the same bits. What those bits are:
 *
 *  - Tree. n leaves combine along the canonical tree: one leaf is itself; more are split at the
 *    largest power of two strictly below n, tree(0..k-1) on the left, tree(k..n-1) on the right.
 *    Operands keep their sides.
 *  - Integers wrap. Booleans are read as "not 0", written as 0 or 1; sum and max are "or", product
 *    and min are "and". Integers and booleans have BIT_AND, BIT_OR and BIT_XOR, too.
 *  - Floats round to nearest, ties to even, with subnormals, and without contraction, whatever
 *    rounding or flush mode the caller's thread is in; the mode is put back before returning.
 *  - 16-bit floats: sums and products run in float32 along the whole tree of one call, sums are
 *    divided in float32, too, and then rounded to 16 bits once. An average can thus not overflow on
 *    the way. Where partial sums are rounded before all are added (between hosts), they are divided
 *    first: see horon_reduce_partial_divisor().
 *  - A NaN that is computed, by any operation, is the positive quiet NaN with an empty payload. (A
 *    payload would depend on how a compiler orders operands, a sign on the architecture.) One leaf
 *    alone that is not scaled is copied bit for bit.
 *  - MIN and MAX of floats: a NaN anywhere gives NaN; -0 is below +0.
 *  - Scaling by x, if x is not 1.0. float64: the product. float32: the product in float64, rounded.
 *    16 bits: the product with (float)x in float32, rounded. Integers to 32 bits: the product in
 *    float64, cut towards zero. 64 bits: the exact product, rounded to 64 significant bits (as an
 *    x87 long double would), cut towards zero. Integers saturate, and a NaN gives 0. Booleans stay
 *    as they are, unless x is 0: then false.
 *  - Dividing by d, if d is not 1. Integers: the quotient cut towards zero. Floats: by d converted
 *    to float64 and then to their type; 16 bits in float32, rounded. Booleans stay as they are.
 *  - But for that, scaling, reducing, dividing and scaling again each round to the dtype, so that
 *    one call that does several gives the bits of several calls that do one each.
 *
 * Memory: inputs and outputs need the alignment of their element. An output may be an input (the
 * same pointer); otherwise outputs overlap nothing. A count of 0 does nothing.
 * Thread: any, unless the memory is shared. Blocks: no. Allocates: no; at most 40 KiB of stack.
 */
#ifndef HORON_REDUCE_REDUCE_H
#define HORON_REDUCE_REDUCE_H

#include <horon/horon.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Most inputs of one horon_reduce_tree(). */
#define HORON_REDUCE_INPUTS_MAX 256

/** What becomes of the final sum: divided first, then scaled. */
struct horon_reduce_finish {
    double postscale; /* 1.0: not scaled */
    double divisor;   /* 1.0: not divided. For HORON_AVERAGE the number of ranks, or what partial
                         divisors leave of it. Whole and below 2^64; horon_reduce_finish() also
                         divides floats by fractions above 0 */
};

/**
 * Asks whether @p op reduces @p dtype. HORON_AVERAGE counts as supported where the caller can make
 * it of HORON_SUM and a divisor: all numbers that reduce, but no booleans.
 * @return false also for complex, 8-bit floats, and values that are no dtype or op
 */
bool horon_reduce_supported(horon_dtype_t dtype, horon_redop_t op);

/** Of one that reduces. */
#define HORON_REDUCE_ELEMENT_BYTES_MAX 8

/**
 * Finds the element that changes no result among other inputs, all of them scaled by @p prescale.
 * @param element written if there is one; of horon_dtype_bytes()
 * @return false: there is none, or @p op does not reduce @p dtype. A product or BIT_AND with a
 * prescale has none, nor a sum of floats with one that is not finite, nor anything with a NaN
 */
bool horon_reduce_neutral(horon_dtype_t dtype, horon_redop_t op, double prescale, void *element);

/**
 * By what the partial sums of an average are divided before their first rounding, so that neither
 * they nor what they add up to can be more than the dtype holds: for float16 a power of two that is
 * at least @p ranks. Dividing by it is exact but for small values: there each rounding loses up to
 * 2^-25 of the sum, 2^-24 of the average (2^-23 beyond 1024 ranks). The whole is then divided by
 * what is left, ranks / divisor: more than a quarter, at most 1. All other dtypes get 1: bfloat16
 * has the range of the float32 in which it is summed, and overflows where float32 does.
 */
double horon_reduce_partial_divisor(horon_dtype_t dtype, uint64_t ranks);

/**
 * Reduces n inputs along the canonical tree, and writes the result n_out times. Each input is read
 * from memory once, each output written once, in small pieces from the first element to the last: a
 * piece of any output is written after that piece of all inputs was read.
 * @param op       supported for dtype, and not HORON_AVERAGE
 * @param in       [n] pointers to [count] elements each; element 0 is the leftmost leaf
 * @param n        1..HORON_REDUCE_INPUTS_MAX
 * @param prescale each leaf is scaled by it first
 * @param out      [n_out] pointers to [count] elements each; each may equal any one of in
 * @param n_out    >= 1
 * @param finish   NULL: none; its divisor is at least 1
 */
void horon_reduce_tree(horon_dtype_t dtype, horon_redop_t op, const void *const *in, int n,
                       double prescale, void *const *out, int n_out, size_t count,
                       const struct horon_reduce_finish *finish);

/** Bytes that are copied beside a reduction. */
struct horon_reduce_copy {
    void *to;
    const void *from;
};

/**
 * As horon_reduce_tree(), and copies beside it: some bytes of each in turn after some of the
 * reduction, so that the misses of all are in flight together. Worth it where inputs and copies
 * come from another core's cache and outputs are in this one's.
 * @param copies     [n_copies], of any alignment; NULL if there are none. A copy may write what one
 *                   before it reads (the same pointer); otherwise they overlap nothing
 * @param copy_bytes of each, also where count is 0; at an even pace if a multiple of an output's
 */
void horon_reduce_tree_beside(horon_dtype_t dtype, horon_redop_t op, const void *const *in, int n,
                              double prescale, void *const *out, int n_out, size_t count,
                              const struct horon_reduce_finish *finish,
                              const struct horon_reduce_copy *copies, int n_copies,
                              size_t copy_bytes);

/**
 * One node of the tree above hosts: out = left op right, rounded to the dtype.
 * @param left, right  [count] elements, results of tree or combine
 * @param out          [count] elements; may equal left, right or both
 */
void horon_reduce_combine(horon_dtype_t dtype, horon_redop_t op, const void *left,
                          const void *right, void *out, size_t count);

/** Divides and scales [count] elements; @p out may equal @p in. With nothing to do, it copies. */
void horon_reduce_finish(horon_dtype_t dtype, const struct horon_reduce_finish *finish,
                         const void *in, void *out, size_t count);

#endif
