/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reduction is, written out long-hand, one element at a time, from the words of reduce.h and
 * with none of its code. Elements are their bits in a uint64_t, zero-extended.
 */
#ifndef HORON_TEST_REDUCE_REFERENCE_H
#define HORON_TEST_REDUCE_REFERENCE_H

#include "reduce/reduce.h"

/** @return bytes of an element; 0 if the dtype does not reduce. */
size_t reference_bytes(horon_dtype_t dtype);

uint64_t reference_get(horon_dtype_t dtype, const void *base, size_t i);
void reference_set(horon_dtype_t dtype, void *base, size_t i, uint64_t bits);

/** @return one element of the tree over n leaves. */
uint64_t reference_tree(horon_dtype_t dtype, horon_redop_t op, const uint64_t *leaves, int n,
                        double prescale, const struct horon_reduce_finish *finish);

uint64_t reference_scale(horon_dtype_t dtype, uint64_t x, double scale);
uint64_t reference_divide(horon_dtype_t dtype, uint64_t x, double divisor);

/** Exact. 16-bit floats only. */
float reference_widen(horon_dtype_t dtype, uint64_t bits);
/** Rounded to nearest, ties to even. 16-bit floats only. */
uint64_t reference_narrow(horon_dtype_t dtype, float value);

#endif
