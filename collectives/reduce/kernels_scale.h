/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scaling and dividing, part of kernels_template.h: plain loops, which the compiler makes vectors
 * of. reduce.h says what the results are. "omp simd" tells that elements are independent, which
 * restrict could not, as it forbids an output that is the input.
 *
 * 64-bit integers are scaled in integers: a float64 has too few bits, and a long double differs
 * from one architecture to the next and has a precision mode of its own.
 */
#ifndef HORON_REDUCE_KERNELS_SCALE_H
#define HORON_REDUCE_KERNELS_SCALE_H

#include <stdbool.h>

__extension__ typedef unsigned __int128 u128;

#define VECTORIZED _Pragma("omp simd")
#define SCALAR

/* out[i] = expression of x, the element, and y, the parameter. */
#define MAP(name, t, loop, expression)                                                             \
    static void name(double y, const void *in, void *out, size_t count)                            \
    {                                                                                              \
        const el_##t *from = in;                                                                   \
        el_##t *to = out;                                                                          \
        loop for (size_t i = 0; i < count; i++)                                                    \
        {                                                                                          \
            const el_##t x = from[i];                                                              \
            to[i] = (el_##t)(expression);                                                          \
        }                                                                                          \
    }

/* Likewise for 16-bit floats, on vectors of float32. */
#define MAP_HALF(name, t, operator)                                                                \
    static void name(double y, const void *in, void *out, size_t count)                            \
    {                                                                                              \
        const el_u16 *from = in;                                                                   \
        el_u16 *to = out;                                                                          \
        const float by = (float)y;                                                                 \
        size_t i = 0;                                                                              \
        for (; count - i >= LANES_f32; i += LANES_f32)                                             \
            t##_store(to + i, t##_load(from + i) operator by);                                     \
        if (i < count) {                                                                           \
            el_u16 padded[VECTOR_BYTES / sizeof(el_u16)] = {0};                                    \
            copy_in(padded, from + i, (count - i) * sizeof *padded);                               \
            t##_store(padded, t##_load(padded) operator by);                                       \
            copy_out(to + i, padded, (count - i) * sizeof *padded);                                \
        }                                                                                          \
    }

static inline float scalar_canonical_f32(float value)
{
    return value == value ? value : __builtin_nanf("");
}

static inline double scalar_canonical_f64(double value)
{
    return value == value ? value : __builtin_nan("");
}

/* Integers of up to 32 bits. Clamped first, so that the conversion is defined; it cuts. */
static inline double clamped(double value, double low, double high)
{
    value = value < low ? low : value;
    value = value > high ? high : value;
    return value == value ? value : 0.0;
}

/* A float64 quotient of integers below 2^32 is never rounded up to an integer that it does not
 * reach: the gap is at least 2^-32 of it, the rounding error at most 2^-53. Larger divisors give 0
 * either way. */
static inline double int_divided(double value, double divisor)
{
    return value / divisor;
}

static inline int bit_length(u128 value)
{
    uint64_t high = (uint64_t)(value >> 64), low = (uint64_t)value;
    if (high != 0)
        return 128 - __builtin_clzll(high);
    return low != 0 ? 64 - __builtin_clzll(low) : 0;
}

/* To 64 significant bits, ties to even. */
static inline u128 rounded_to_64_bits(u128 value)
{
    int excess = bit_length(value) - 64;
    if (excess <= 0)
        return value;
    u128 unit = (u128)1 << excess;
    u128 rest = value & (unit - 1);
    value -= rest;
    bool up = rest > unit / 2 || (rest == unit / 2 && (value & unit) != 0);
    return up ? value + unit : value;
}

/* |magnitude * scale|, rounded to 64 significant bits and cut; UINT64_MAX if it is more than that.
 * The caller sees to NaN. */
static inline uint64_t u64_magnitude_scaled(uint64_t magnitude, double scale)
{
    uint64_t bits;
    memcpy(&bits, &scale, sizeof bits);
    int exponent = (int)((bits >> 52) & 0x7ff);
    uint64_t mantissa = bits & 0xfffffffffffffu;
    if (exponent == 0)
        return 0; /* a subnormal or 0: the product is below 2^-1022 * 2^64 */
    u128 product = rounded_to_64_bits((u128)magnitude * (mantissa | (uint64_t)1 << 52));
    int shift = exponent - 1075;
    if (product == 0 || shift <= -128)
        return 0;
    if (bit_length(product) + shift > 64)
        return UINT64_MAX;
    return (uint64_t)(shift < 0 ? product >> -shift : product << shift);
}

static inline bool gives_nan(bool is_zero, double scale)
{
    return scale != scale || (is_zero && scale - scale != 0.0);
}

static inline uint64_t u64_scaled(uint64_t value, double scale)
{
    if (gives_nan(value == 0, scale) || scale < 0.0)
        return 0;
    return u64_magnitude_scaled(value, scale);
}

static inline int64_t i64_scaled(int64_t value, double scale)
{
    if (gives_nan(value == 0, scale))
        return 0;
    bool negative = (value < 0) != (scale < 0.0);
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    uint64_t limit = (uint64_t)INT64_MAX + negative;
    uint64_t scaled = u64_magnitude_scaled(magnitude, scale);
    scaled = scaled > limit ? limit : scaled;
    return (int64_t)(negative ? 0 - scaled : scaled);
}

static inline uint64_t u64_divided(uint64_t value, uint64_t divisor)
{
    return value / divisor;
}

static inline int64_t i64_divided(int64_t value, uint64_t divisor)
{
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    uint64_t quotient = magnitude / divisor;
    return (int64_t)(value < 0 ? 0 - quotient : quotient);
}

#define SCALE_INT(t, low, high)                                                                    \
    MAP(scale_##t, t, VECTORIZED, clamped((double)x *y, low, high))                                \
    MAP(divide_##t, t, VECTORIZED, int_divided(x, y))

SCALE_INT(u8, 0, UINT8_MAX)
SCALE_INT(i8, INT8_MIN, INT8_MAX)
SCALE_INT(u16, 0, UINT16_MAX)
SCALE_INT(i16, INT16_MIN, INT16_MAX)
SCALE_INT(u32, 0, UINT32_MAX)
SCALE_INT(i32, INT32_MIN, INT32_MAX)
MAP(scale_u64, u64, SCALAR, u64_scaled(x, y))
MAP(scale_i64, i64, SCALAR, i64_scaled(x, y))
MAP(divide_u64, u64, SCALAR, u64_divided(x, (uint64_t)y))
MAP(divide_i64, i64, SCALAR, i64_divided(x, (uint64_t)y))
MAP(scale_f32, f32, VECTORIZED, scalar_canonical_f32((float)((double)x *y)))
MAP(scale_f64, f64, VECTORIZED, scalar_canonical_f64(x *y))
MAP(divide_f32, f32, VECTORIZED, scalar_canonical_f32(x / (float)y))
MAP(divide_f64, f64, VECTORIZED, scalar_canonical_f64(x / y))
MAP_HALF(scale_f16, f16, *)
MAP_HALF(scale_bf16, bf16, *)
MAP_HALF(divide_f16, f16, /)
MAP_HALF(divide_bf16, bf16, /)
MAP(scale_bool, u8, VECTORIZED, x != 0 && y != 0.0)
MAP(divide_bool, u8, VECTORIZED, x != 0 && y != 0.0)

#endif
