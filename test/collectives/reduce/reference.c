/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference takes its time: conversions by ldexp and nearbyint instead of bits, integers by
 * wide arithmetic and a mask, the tree by recursion. It assumes the default floating-point mode.
 */
#include "reference.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

struct traits {
    size_t bytes;
    bool is_signed, is_float;
    int mantissa_bits,
        exponent_min; /* 16-bit floats: explicit bits, exponent of the least normal */
    uint64_t infinity, nan;
};

static const struct traits traits[HORON_DTYPE_COUNT] = {
    [HORON_UINT8] = {.bytes = 1},
    [HORON_INT8] = {.bytes = 1, .is_signed = true},
    [HORON_UINT16] = {.bytes = 2},
    [HORON_INT16] = {.bytes = 2, .is_signed = true},
    [HORON_UINT32] = {.bytes = 4},
    [HORON_INT32] = {.bytes = 4, .is_signed = true},
    [HORON_UINT64] = {.bytes = 8},
    [HORON_INT64] = {.bytes = 8, .is_signed = true},
    [HORON_FLOAT16] = {.bytes = 2,
                       .is_float = true,
                       .mantissa_bits = 10,
                       .exponent_min = -14,
                       .infinity = 0x7c00,
                       .nan = 0x7e00},
    [HORON_BFLOAT16] = {.bytes = 2,
                        .is_float = true,
                        .mantissa_bits = 7,
                        .exponent_min = -126,
                        .infinity = 0x7f80,
                        .nan = 0x7fc0},
    [HORON_FLOAT32] = {.bytes = 4, .is_float = true, .nan = 0x7fc00000},
    [HORON_FLOAT64] = {.bytes = 8, .is_float = true, .nan = 0x7ff8000000000000},
    [HORON_BOOL] = {.bytes = 1},
};

size_t reference_bytes(horon_dtype_t dtype)
{
    return traits[dtype].bytes;
}

uint64_t reference_get(horon_dtype_t dtype, const void *base, size_t i)
{
    size_t bytes = traits[dtype].bytes;
    const unsigned char *at = (const unsigned char *)base + i * bytes;
    uint64_t bits = 0;
    for (size_t b = 0; b < bytes; b++)
        bits |= (uint64_t)at[b] << (8 * b);
    return bits;
}

void reference_set(horon_dtype_t dtype, void *base, size_t i, uint64_t bits)
{
    size_t bytes = traits[dtype].bytes;
    unsigned char *at = (unsigned char *)base + i * bytes;
    for (size_t b = 0; b < bytes; b++)
        at[b] = (unsigned char)(bits >> (8 * b));
}

static bool is_half(horon_dtype_t dtype)
{
    return dtype == HORON_FLOAT16 || dtype == HORON_BFLOAT16;
}

/* ---- Floats and their bits ------------------------------------------------------------------ */

float reference_widen(horon_dtype_t dtype, uint64_t bits)
{
    const struct traits *t = &traits[dtype];
    uint64_t magnitude = bits & 0x7fff;
    int mantissa = (int)(magnitude & (((uint64_t)1 << t->mantissa_bits) - 1));
    int exponent = (int)(magnitude >> t->mantissa_bits);
    double value;
    if (magnitude > t->infinity)
        return NAN;
    if (magnitude == t->infinity)
        value = INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, t->exponent_min - t->mantissa_bits);
    else
        value = ldexp(mantissa + (1 << t->mantissa_bits),
                      t->exponent_min + exponent - 1 - t->mantissa_bits);
    return (float)(bits & 0x8000 ? -value : value);
}

uint64_t reference_narrow(horon_dtype_t dtype, float value)
{
    const struct traits *t = &traits[dtype];
    if (isnan(value))
        return t->nan;
    uint64_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs((double)value);
    if (isinf(value))
        return sign | t->infinity;
    /* of the binade, where the spacing is 2^(exponent - bits) */
    int exponent = magnitude > 0 ? ilogb(magnitude) : t->exponent_min;
    exponent = exponent < t->exponent_min ? t->exponent_min : exponent;
    double steps = nearbyint(ldexp(magnitude, t->mantissa_bits - exponent));
    /* Consecutive magnitudes have consecutive bits: a carry is the next binade, or infinity. */
    uint64_t bits = (uint64_t)(exponent - t->exponent_min) << t->mantissa_bits;
    bits += (uint64_t)steps;
    return sign | (bits > t->infinity ? t->infinity : bits);
}

static double value_of(horon_dtype_t dtype, uint64_t bits)
{
    if (is_half(dtype))
        return (double)reference_widen(dtype, bits);
    if (dtype == HORON_FLOAT32) {
        uint32_t low = (uint32_t)bits;
        float value;
        memcpy(&value, &low, sizeof value);
        return (double)value;
    }
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return isnan(value) ? traits[HORON_FLOAT32].nan : bits;
}

static uint64_t bits_of_f64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return isnan(value) ? traits[HORON_FLOAT64].nan : bits;
}

static uint64_t float_extreme(horon_dtype_t dtype, bool want_max, uint64_t a, uint64_t b)
{
    double x = value_of(dtype, a), y = value_of(dtype, b);
    if (isnan(x) || isnan(y))
        return traits[dtype].nan;
    bool a_is_below = x < y || (x == y && signbit(x) && !signbit(y));
    return a_is_below != want_max ? a : b;
}

/* ---- Integers -------------------------------------------------------------------------------- */

static uint64_t mask_of(horon_dtype_t dtype)
{
    return traits[dtype].bytes == 8 ? UINT64_MAX : ((uint64_t)1 << (8 * traits[dtype].bytes)) - 1;
}

static int64_t signed_of(horon_dtype_t dtype, uint64_t bits)
{
    uint64_t top = (uint64_t)1 << (8 * traits[dtype].bytes - 1);
    return (int64_t)((bits ^ top) - top);
}

static bool int_less(horon_dtype_t dtype, uint64_t a, uint64_t b)
{
    return traits[dtype].is_signed ? signed_of(dtype, a) < signed_of(dtype, b) : a < b;
}

/* Cut towards zero and saturated; exact for all 64-bit integers where long double has 64 bits. */
static uint64_t int_of(horon_dtype_t dtype, long double value)
{
    uint64_t mask = mask_of(dtype);
    uint64_t high = traits[dtype].is_signed ? mask / 2 : mask;
    uint64_t low = traits[dtype].is_signed ? mask / 2 + 1 : 0; /* magnitude of the least */
    if (isnan(value))
        return 0;
    value = truncl(value);
    if (value >= (long double)high)
        return high;
    if (value <= -(long double)low)
        return (0 - low) & mask;
    uint64_t magnitude = (uint64_t)fabsl(value);
    return (value < 0 ? 0 - magnitude : magnitude) & mask;
}

static long double long_double_of(horon_dtype_t dtype, uint64_t bits)
{
    return traits[dtype].is_signed ? (long double)signed_of(dtype, bits) : (long double)bits;
}

/* ---- Operations ------------------------------------------------------------------------------ */

uint64_t reference_scale(horon_dtype_t dtype, uint64_t x, double scale)
{
    if (scale == 1.0)
        return x;
    if (dtype == HORON_BOOL)
        return x != 0 && scale != 0.0;
    if (is_half(dtype))
        return reference_narrow(dtype, reference_widen(dtype, x) * (float)scale);
    if (dtype == HORON_FLOAT32)
        return bits_of_f32((float)(value_of(dtype, x) * scale));
    if (dtype == HORON_FLOAT64)
        return bits_of_f64(value_of(dtype, x) * scale);
    if (traits[dtype].bytes < 8)
        return int_of(dtype, (long double)((double)long_double_of(dtype, x) * scale));
    return int_of(dtype, long_double_of(dtype, x) * (long double)scale);
}

uint64_t reference_divide(horon_dtype_t dtype, uint64_t x, double by)
{
    const uint64_t divisor = (uint64_t)by;
    if (by == 1.0)
        return x;
    if (dtype == HORON_BOOL)
        return x != 0;
    if (is_half(dtype))
        return reference_narrow(dtype, reference_widen(dtype, x) / (float)by);
    if (dtype == HORON_FLOAT32)
        return bits_of_f32((float)value_of(dtype, x) / (float)by);
    if (dtype == HORON_FLOAT64)
        return bits_of_f64(value_of(dtype, x) / by);
    if (!traits[dtype].is_signed)
        return x / divisor;
    int64_t value = signed_of(dtype, x);
    if (value == INT64_MIN && divisor > INT64_MAX)
        return divisor == (uint64_t)INT64_MAX + 1 ? mask_of(dtype) : 0;
    if (divisor > INT64_MAX)
        return 0;
    return (uint64_t)(value / (int64_t)divisor) & mask_of(dtype);
}

static uint64_t pair_extreme(horon_dtype_t dtype, bool want_max, uint64_t a, uint64_t b)
{
    if (traits[dtype].is_float)
        return float_extreme(dtype, want_max, a, b);
    return int_less(dtype, a, b) != want_max ? a : b;
}

static uint64_t pair_arithmetic(horon_dtype_t dtype, bool product, uint64_t a, uint64_t b)
{
    double x = value_of(dtype, a), y = value_of(dtype, b);
    if (dtype == HORON_FLOAT64)
        return bits_of_f64(product ? x * y : x + y);
    if (dtype == HORON_FLOAT32)
        return bits_of_f32(product ? (float)x * (float)y : (float)x + (float)y);
    return (product ? a * b : a + b) & mask_of(dtype);
}

static uint64_t pair(horon_dtype_t dtype, horon_redop_t op, uint64_t a, uint64_t b)
{
    bool any = op == HORON_SUM || op == HORON_MAX || op == HORON_BIT_OR;
    if (dtype == HORON_BOOL && op == HORON_BIT_XOR)
        return !a != !b;
    if (dtype == HORON_BOOL)
        return any ? a || b : a && b;
    if (op == HORON_BIT_AND)
        return a & b;
    if (op == HORON_BIT_OR)
        return a | b;
    if (op == HORON_BIT_XOR)
        return a ^ b;
    if (op == HORON_MIN || op == HORON_MAX)
        return pair_extreme(dtype, op == HORON_MAX, a, b);
    return pair_arithmetic(dtype, op == HORON_PRODUCT, a, b);
}

static uint64_t tree(horon_dtype_t dtype, horon_redop_t op, const uint64_t *leaves, int n)
{
    if (n == 1)
        return leaves[0];
    int k = 1;
    while (k * 2 < n)
        k *= 2;
    return pair(dtype, op, tree(dtype, op, leaves, k), tree(dtype, op, leaves + k, n - k));
}

uint64_t reference_tree(horon_dtype_t dtype, horon_redop_t op, const uint64_t *leaves, int n,
                        double prescale, const struct horon_reduce_finish *finish)
{
    uint64_t scaled[HORON_REDUCE_INPUTS_MAX];
    assert(n > 0);
    bool wide = is_half(dtype) && (op == HORON_SUM || op == HORON_PRODUCT) && n > 1;
    for (int i = 0; i < n; i++) {
        scaled[i] = reference_scale(dtype, leaves[i], prescale);
        if (wide)
            scaled[i] = bits_of_f32(reference_widen(dtype, scaled[i]));
    }
    uint64_t result = tree(wide ? HORON_FLOAT32 : dtype, op, scaled, n);
    const double divisor = finish == NULL ? 1.0 : finish->divisor;
    const bool divided = wide && op == HORON_SUM; /* in 32 bits */
    if (divided)
        result = reference_divide(HORON_FLOAT32, result, divisor);
    if (wide)
        result = reference_narrow(dtype, (float)value_of(HORON_FLOAT32, result));
    if (dtype == HORON_BOOL)
        result = result != 0;
    if (finish == NULL)
        return result;
    return reference_scale(dtype, divided ? result : reference_divide(dtype, result, divisor),
                           finish->postscale);
}
