/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels, compiled once an instruction set: a kernels_*.c includes the lanes_*.h of its set
 * and names the table.
 *
 * The bits of an element do not depend on the width of vectors: no kernel reorders, contracts or
 * approximates, and a NaN that is computed is made canonical, since compilers swap the operands of
 * additions as they please.
 */
#ifndef HORON_REDUCE_KERNELS_TEMPLATE_H
#define HORON_REDUCE_KERNELS_TEMPLATE_H

#include "reduce/kernels_scale.h"
#include "reduce/kernels_tree.h"
#include "reduce/reduce_isa.h"

/* ---- Integers ------------------------------------------------------------------------------- */

/* What gives the same bits with and without a sign: one kernel each, on unsigned vectors. */
#define INT_UNSIGNED(t)                                                                            \
    TREE_SUM(sum_##t, t, v_##t, LANES_##t, load_##t, store_##t, KEEP, ONE_KIND)                    \
    TREE(product_##t, t, v_##t, LANES_##t, load_##t, store_##t, TIMES)

/* `mask` is the type of a comparison of vectors of t. */
#define INT_EXTREMES(t, mask)                                                                      \
    static inline v_##t smaller_##t(v_##t a, v_##t b)                                              \
    {                                                                                              \
        return (v_##t)SELECT((mask)(a < b), (mask)a, (mask)b);                                     \
    }                                                                                              \
    static inline v_##t larger_##t(v_##t a, v_##t b)                                               \
    {                                                                                              \
        return (v_##t)SELECT((mask)(a > b), (mask)a, (mask)b);                                     \
    }                                                                                              \
    TREE(min_##t, t, v_##t, LANES_##t, load_##t, store_##t, smaller_##t)                           \
    TREE(max_##t, t, v_##t, LANES_##t, load_##t, store_##t, larger_##t)

INT_UNSIGNED(u8)
INT_UNSIGNED(u16)
INT_UNSIGNED(u32)
INT_UNSIGNED(u64)
INT_EXTREMES(u8, v_i8)
INT_EXTREMES(i8, v_i8)
INT_EXTREMES(u16, v_i16)
INT_EXTREMES(i16, v_i16)
INT_EXTREMES(u32, v_i32)
INT_EXTREMES(i32, v_i32)
INT_EXTREMES(u64, v_i64)
INT_EXTREMES(i64, v_i64)

/* Bits do not know how wide an element is: all types share the kernels of bytes. */
TREE(and_u8, u8, v_u8, LANES_u8, load_u8, store_u8, AND)
TREE(or_u8, u8, v_u8, LANES_u8, load_u8, store_u8, OR)
TREE(xor_u8, u8, v_u8, LANES_u8, load_u8, store_u8, XOR)

#define ON_BYTES(name, t)                                                                          \
    static void name##_##t(const struct horon_reduce_call *call)                                   \
    {                                                                                              \
        struct horon_reduce_call bytes = *call;                                                    \
        bytes.count *= sizeof(el_##t);                                                             \
        name##_u8(&bytes);                                                                         \
    }

#define BITS_OF(t) ON_BYTES(and, t) ON_BYTES(or, t) ON_BYTES(xor, t)

BITS_OF(u16)
BITS_OF(u32)
BITS_OF(u64)

/* ---- Floats --------------------------------------------------------------------------------- */

static inline void canonical_store_f32(el_f32 *out, v_f32 value)
{
    store_f32(out, canonical_f32(value));
}

static inline void canonical_store_f64(el_f64 *out, v_f64 value)
{
    store_f64(out, canonical_f64(value));
}

DIVIDE_SUM(divide_sum_f32, v_f32, float)
DIVIDE_SUM(divide_sum_f64, v_f64, double)

TREE_SUM(sum_f32, f32, v_f32, LANES_f32, load_f32, canonical_store_f32, divide_sum_f32, EACH_KIND)
TREE_SUM(sum_f64, f64, v_f64, LANES_f64, load_f64, canonical_store_f64, divide_sum_f64, EACH_KIND)
TREE_SUM(sum_f16, u16, v_f32, LANES_f32, f16_load, f16_store, divide_sum_f32, EACH_KIND)
TREE_SUM(sum_bf16, u16, v_f32, LANES_f32, bf16_load, bf16_store, divide_sum_f32, EACH_KIND)
TREE(product_f32, f32, v_f32, LANES_f32, load_f32, canonical_store_f32, TIMES)
TREE(product_f64, f64, v_f64, LANES_f64, load_f64, canonical_store_f64, TIMES)
TREE(product_f16, u16, v_f32, LANES_f32, f16_load, f16_store, TIMES)
TREE(product_bf16, u16, v_f32, LANES_f32, bf16_load, bf16_store, TIMES)

/* Orders the bits of all floats but NaN, -0 below +0, as signed integers of the same width. */
#define ORDERED(value, magnitude)                                                                  \
    ((value) ^ (((value) >> (8 * sizeof(value)[0] - 1)) & (magnitude)))

/* Extremes need no arithmetic on floats: they choose among bits, t being signed integers. 16-bit
 * floats need no float32 either. */
#define FLOAT_EXTREME(name, t, compare, magnitude, infinity, nan)                                  \
    static inline v_##t name##_op(v_##t a, v_##t b)                                                \
    {                                                                                              \
        v_##t is_nan = ((a & (magnitude)) > (infinity)) | ((b & (magnitude)) > (infinity));        \
        v_##t first = ORDERED(a, magnitude) compare ORDERED(b, magnitude);                         \
        v_##t chosen = SELECT(first, a, b);                                                        \
        return SELECT(is_nan, (v_##t){0} + (nan), chosen);                                         \
    }                                                                                              \
    TREE(name, t, v_##t, LANES_##t, load_##t, store_##t, name##_op)

FLOAT_EXTREME(min_f16, i16, <, INT16_MAX, 0x7c00, F16_NAN)
FLOAT_EXTREME(max_f16, i16, >, INT16_MAX, 0x7c00, F16_NAN)
FLOAT_EXTREME(min_bf16, i16, <, INT16_MAX, 0x7f80, BF16_NAN)
FLOAT_EXTREME(max_bf16, i16, >, INT16_MAX, 0x7f80, BF16_NAN)
FLOAT_EXTREME(min_f32, i32, <, INT32_MAX, 0x7f800000, F32_NAN)
FLOAT_EXTREME(max_f32, i32, >, INT32_MAX, 0x7f800000, F32_NAN)
FLOAT_EXTREME(min_f64, i64, <, INT64_MAX, 0x7ff0000000000000, F64_NAN)
FLOAT_EXTREME(max_f64, i64, >, INT64_MAX, 0x7ff0000000000000, F64_NAN)

/* ---- Booleans ------------------------------------------------------------------------------- */

static inline v_u8 load_bool(const el_u8 *in)
{
    return (v_u8)(load_u8(in) != 0) & 1;
}

TREE(or_bool, u8, v_u8, LANES_u8, load_bool, store_u8, OR)
TREE(and_bool, u8, v_u8, LANES_u8, load_bool, store_u8, AND)
TREE(xor_bool, u8, v_u8, LANES_u8, load_bool, store_u8, XOR)

/* ---- The table ------------------------------------------------------------------------------ */

/* Of one type: what extremes and scales are of its own, `kernels` of all that are as wide. */
#define ARITHMETIC(t, kernels)                                                                     \
    [HORON_SUM] = sum_##kernels, [HORON_PRODUCT] = product_##kernels, [HORON_MIN] = min_##t,       \
    [HORON_MAX] = max_##t

#define BITWISE(kernels)                                                                           \
    [HORON_BIT_AND] = and_##kernels, [HORON_BIT_OR] = or_##kernels, [HORON_BIT_XOR] = xor_##kernels

#define INT_ROW(t, kernels, element_bytes)                                                         \
    {                                                                                              \
        .bytes = element_bytes, .tree = {ARITHMETIC(t, kernels), BITWISE(kernels)},                \
        .scale = scale_##t, .divide = divide_##t,                                                  \
    }

#define FLOAT_ROW(t, element_bytes)                                                                \
    {                                                                                              \
        .bytes = element_bytes, .is_float = true, .tree = {ARITHMETIC(t, t)}, .scale = scale_##t,  \
        .divide = divide_##t,                                                                      \
    }

const struct horon_reduce_kernels HORON_REDUCE_TABLE = {
    .type = {
        [HORON_UINT8] = INT_ROW(u8, u8, 1),
        [HORON_INT8] = INT_ROW(i8, u8, 1),
        [HORON_UINT16] = INT_ROW(u16, u16, 2),
        [HORON_INT16] = INT_ROW(i16, u16, 2),
        [HORON_UINT32] = INT_ROW(u32, u32, 4),
        [HORON_INT32] = INT_ROW(i32, u32, 4),
        [HORON_UINT64] = INT_ROW(u64, u64, 8),
        [HORON_INT64] = INT_ROW(i64, u64, 8),
        [HORON_FLOAT16] = FLOAT_ROW(f16, 2),
        [HORON_BFLOAT16] = FLOAT_ROW(bf16, 2),
        [HORON_FLOAT32] = FLOAT_ROW(f32, 4),
        [HORON_FLOAT64] = FLOAT_ROW(f64, 8),
        [HORON_BOOL] = {.bytes = 1,
                        .tree = {[HORON_SUM] = or_bool,
                                 [HORON_PRODUCT] = and_bool,
                                 [HORON_MIN] = and_bool,
                                 [HORON_MAX] = or_bool,
                                 BITWISE(bool)},
                        .scale = scale_bool,
                        .divide = divide_bool},
    }};

#endif
