/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is neutral to a reduction once it was scaled. Of floats -0 is neutral to a sum, since +0
 * makes +0 of -0; infinities are to minimum and maximum. Scaling keeps the order of values, or
 * turns it round, and clamps integers: so a greatest value, scaled, is still at least as great as
 * any other, and a negative scale only exchanges greatest and least. Only a product is moved by
 * its scale, and an "and" of bits: all of them, scaled, may be fewer.
 */
#include "reduce.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

/* By dtype: an element's sign bit, 1 and infinity as bits; of integers 1 alone. */
static const struct shape {
    uint64_t one, infinity;
    bool is_float, is_signed;
} shapes[HORON_DTYPE_COUNT] = {
    [HORON_UINT8] = {.one = 1},
    [HORON_INT8] = {.one = 1, .is_signed = true},
    [HORON_UINT16] = {.one = 1},
    [HORON_INT16] = {.one = 1, .is_signed = true},
    [HORON_UINT32] = {.one = 1},
    [HORON_INT32] = {.one = 1, .is_signed = true},
    [HORON_UINT64] = {.one = 1},
    [HORON_INT64] = {.one = 1, .is_signed = true},
    [HORON_FLOAT16] = {0x3c00, 0x7c00, true, true},
    [HORON_BFLOAT16] = {0x3f80, 0x7f80, true, true},
    [HORON_FLOAT32] = {0x3f800000, 0x7f800000, true, true},
    [HORON_FLOAT64] = {0x3ff0000000000000, 0x7ff0000000000000, true, true},
    [HORON_BOOL] = {.one = 1},
};

static uint64_t sign_bit(horon_dtype_t dtype)
{
    return (uint64_t)1 << (8 * horon_dtype_bytes(dtype) - 1);
}

/* The bits of the greatest or the least value of all. */
static uint64_t extreme(horon_dtype_t dtype, bool greatest)
{
    const struct shape *shape = &shapes[dtype];
    const uint64_t sign = sign_bit(dtype), all = sign | (sign - 1);
    if (dtype == HORON_BOOL)
        return greatest;
    if (shape->is_float)
        return greatest ? shape->infinity : shape->infinity | sign;
    if (shape->is_signed)
        return greatest ? sign - 1 : sign;
    return greatest ? all : 0;
}

static uint64_t zero(horon_dtype_t dtype, bool negative)
{
    return shapes[dtype].is_float && negative ? sign_bit(dtype) : 0;
}

bool horon_reduce_neutral(horon_dtype_t dtype, horon_redop_t op, double prescale, void *element)
{
    const bool is_float = (unsigned)dtype < HORON_DTYPE_COUNT && shapes[dtype].is_float;
    const bool is_half = dtype == HORON_FLOAT16 || dtype == HORON_BFLOAT16;
    const double scale = is_half ? (double)(float)prescale : prescale; /* as it is applied */
    const bool turns = __builtin_signbit(scale);
    uint64_t bits = 0;
    if (!horon_reduce_supported(dtype, op) || scale != scale)
        return false;
    switch (op) {
    case HORON_SUM:
    case HORON_AVERAGE:
        if (is_float && scale - scale != 0.0)
            return false; /* 0 times infinity is none */
        bits = zero(dtype, !turns);
        break;
    case HORON_MIN:
    case HORON_MAX:
        if (is_float && scale == 0.0)
            bits = zero(dtype, turns != (op == HORON_MAX));
        else if (dtype == HORON_BOOL) /* which has no sign to turn */
            bits = extreme(dtype, op == HORON_MIN);
        else
            bits = extreme(dtype, turns != (op == HORON_MIN));
        break;
    case HORON_BIT_OR:
    case HORON_BIT_XOR:
        break; /* no bits, which every scale keeps */
    case HORON_PRODUCT:
    case HORON_BIT_AND:
        if (scale != 1.0 && dtype != HORON_BOOL)
            return false;
        bits = op == HORON_BIT_AND && dtype != HORON_BOOL ? UINT64_MAX : shapes[dtype].one;
        break;
    }
    assert(horon_dtype_bytes(dtype) <= HORON_REDUCE_ELEMENT_BYTES_MAX);
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "its first bytes are the element");
    memcpy(element, &bits, horon_dtype_bytes(dtype));
    return true;
}
