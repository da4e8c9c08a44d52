/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element i of rank r's pattern is a whole number from 0 to 7, hashed from i and turned by r. The
 * reduction is computed in int64 (exact up to any number of ranks that matters) and encoded once,
 * as an implementation that rounds late would; integers wrap when encoded. Comparing tries memcmp
 * first, so a right result costs one read of it, and only a wrong one is looked at by element.
 *
 * Products: the factors are 1 or 2, and 2 only for the first eight ranks, so no type overflows.
 */
#include "values.h"

#include "names.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int64_t pattern(uint64_t i, int rank)
{
    const uint64_t hash = (i + 1) * 0x9e3779b97f4a7c15u;
    return (int64_t)(((hash >> 40) + (uint64_t)rank * 3) & 7);
}

/* What the number stands for in a given type and reduction. */
static int64_t operand(uint64_t i, int rank, horon_dtype_t dtype, bool product)
{
    const int64_t value = pattern(i, rank);
    if (dtype == HORON_BOOL) {
        return value < 4;
    }
    if (product) {
        return rank < 8 ? 1 + (value & 1) : 1;
    }
    return value;
}

uint16_t perf_half_encode(double value)
{
    const uint16_t sign = signbit(value) ? 0x8000u : 0;
    const double size = fabs(value);
    int exponent = 0;
    if (size == 0.0) {
        return sign;
    }
    if (isnan(value)) {
        return 0x7e00u;
    }
    (void)frexp(size, &exponent); /* size = m * 2^exponent, 0.5 <= m < 1 */
    const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
    const double digits = nearbyint(ldexp(size, -unit)); /* at most 2048: may carry */
    const double rounded = ldexp(digits, unit);
    if (rounded > 65504.0) {
        return (uint16_t)(sign | 0x7c00u);
    }
    if (digits < 1024.0) {
        return (uint16_t)(sign | (uint16_t)digits); /* subnormal */
    }
    (void)frexp(rounded, &exponent);
    const unsigned mantissa = (unsigned)ldexp(rounded, 11 - exponent) - 1024u;
    return (uint16_t)(sign | (unsigned)(exponent + 14) << 10 | mantissa);
}

double perf_half_decode(uint16_t bits)
{
    const unsigned exponent = (bits >> 10) & 31u;
    const double mantissa = bits & 1023u;
    double size = 0.0;
    if (exponent == 31) {
        size = mantissa > 0 ? (double)NAN : (double)INFINITY;
    } else if (exponent == 0) {
        size = ldexp(mantissa, -24);
    } else {
        size = ldexp(1024.0 + mantissa, (int)exponent - 25);
    }
    return (bits & 0x8000u) != 0 ? -size : size;
}

uint16_t perf_bfloat_encode(double value)
{
    const float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    if (isnan(single)) {
        return 0x7fc0u;
    }
    bits += 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(bits >> 16);
}

double perf_bfloat_decode(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float single;
    memcpy(&single, &wide, sizeof single);
    return (double)single;
}

static void encode_integer(int64_t value, size_t bytes, unsigned char *to)
{
    const uint64_t u64 = (uint64_t)value;
    const uint32_t u32 = (uint32_t)u64;
    const uint16_t u16 = (uint16_t)u64;
    const uint8_t u8 = (uint8_t)u64;
    if (bytes == 8) {
        memcpy(to, &u64, 8);
    } else if (bytes == 4) {
        memcpy(to, &u32, 4);
    } else if (bytes == 2) {
        memcpy(to, &u16, 2);
    } else {
        *to = u8;
    }
}

/* Writes one element. Complex numbers are (value, value + 1); fp8 takes the number as its bits. */
static void encode(horon_dtype_t dtype, double value, unsigned char *to)
{
    const float single[2] = {(float)value, (float)(value + 1.0)};
    const double wide[2] = {value, value + 1.0};
    uint16_t bits = 0;
    switch (dtype) {
    case HORON_FLOAT32:
        memcpy(to, single, sizeof single[0]);
        return;
    case HORON_FLOAT64:
        memcpy(to, wide, sizeof wide[0]);
        return;
    case HORON_COMPLEX64:
        memcpy(to, single, sizeof single);
        return;
    case HORON_COMPLEX128:
        memcpy(to, wide, sizeof wide);
        return;
    case HORON_FLOAT16:
        bits = perf_half_encode(value);
        memcpy(to, &bits, sizeof bits);
        return;
    case HORON_BFLOAT16:
        bits = perf_bfloat_encode(value);
        memcpy(to, &bits, sizeof bits);
        return;
    case HORON_UINT8:
    case HORON_INT8:
    case HORON_UINT16:
    case HORON_INT16:
    case HORON_UINT32:
    case HORON_INT32:
    case HORON_UINT64:
    case HORON_INT64:
    case HORON_BOOL:
    case HORON_FLOAT8_E4M3:
    case HORON_FLOAT8_E5M2:
        encode_integer((int64_t)value, perf_dtype_bytes(dtype), to);
        return;
    }
}

/* How far two values of a type may differ, relative to the wanted one; 0: not at all. */
static double tolerance(horon_dtype_t dtype)
{
    switch (dtype) {
    case HORON_FLOAT16:
        return 0x1p-9;
    case HORON_BFLOAT16:
        return 0x1p-6;
    case HORON_FLOAT32:
        return 0x1p-21;
    case HORON_FLOAT64:
        return 0x1p-50;
    case HORON_UINT8:
    case HORON_INT8:
    case HORON_UINT16:
    case HORON_INT16:
    case HORON_UINT32:
    case HORON_INT32:
    case HORON_UINT64:
    case HORON_INT64:
    case HORON_BOOL:
    case HORON_COMPLEX64:
    case HORON_COMPLEX128:
    case HORON_FLOAT8_E4M3:
    case HORON_FLOAT8_E5M2:
        break;
    }
    return 0.0;
}

/* Reads one element of a type that has a tolerance. */
static double decode(horon_dtype_t dtype, const unsigned char *from)
{
    uint16_t bits = 0;
    float single = 0.0f;
    double wide = 0.0;
    if (dtype == HORON_FLOAT32) {
        memcpy(&single, from, sizeof single);
        return (double)single;
    }
    if (dtype == HORON_FLOAT64) {
        memcpy(&wide, from, sizeof wide);
        return wide;
    }
    memcpy(&bits, from, sizeof bits);
    return dtype == HORON_FLOAT16 ? perf_half_decode(bits) : perf_bfloat_decode(bits);
}

static int tile_init(struct perf_tile *tile, horon_dtype_t dtype)
{
    tile->dtype = dtype;
    tile->bytes = calloc(2 * (size_t)PERF_TILE, perf_dtype_bytes(dtype));
    return tile->bytes != NULL ? 0 : -1;
}

static void tile_set(struct perf_tile *tile, uint64_t i, double value)
{
    const size_t one = perf_dtype_bytes(tile->dtype);
    encode(tile->dtype, value, tile->bytes + i * one);
    encode(tile->dtype, value, tile->bytes + (i + PERF_TILE) * one);
}

int perf_tile_input(struct perf_tile *tile, horon_dtype_t dtype, horon_redop_t redop, int rank)
{
    const bool product = redop == HORON_PRODUCT;
    if (tile_init(tile, dtype) != 0) {
        return -1;
    }
    for (uint64_t i = 0; i < PERF_TILE; i++) {
        tile_set(tile, i, (double)operand(i, rank, dtype, product));
    }
    return 0;
}

static int64_t combine(horon_redop_t redop, int64_t a, int64_t b)
{
    switch (redop) {
    case HORON_SUM:
    case HORON_AVERAGE:
        return a + b;
    case HORON_MIN:
        return a < b ? a : b;
    case HORON_MAX:
        return a > b ? a : b;
    case HORON_PRODUCT:
        return a * b;
    case HORON_BIT_AND:
        return a & b;
    case HORON_BIT_OR:
        return a | b;
    case HORON_BIT_XOR:
        return a ^ b;
    }
    return 0;
}

static double reduced(uint64_t i, horon_dtype_t dtype, horon_redop_t redop, int size)
{
    const bool product = redop == HORON_PRODUCT;
    int64_t value = operand(i, 0, dtype, product);
    for (int rank = 1; rank < size; rank++) {
        value = combine(redop, value, operand(i, rank, dtype, product));
    }
    if (dtype == HORON_BOOL) {
        return value > 0 ? 1.0 : 0.0;
    }
    if (redop != HORON_AVERAGE) {
        return (double)value;
    }
    const int64_t whole = value / size;
    return tolerance(dtype) > 0.0 ? (double)value / size : (double)whole;
}

int perf_tile_reduced(struct perf_tile *tile, horon_dtype_t dtype, horon_redop_t redop, int size)
{
    if (tile_init(tile, dtype) != 0) {
        return -1;
    }
    for (uint64_t i = 0; i < PERF_TILE; i++) {
        tile_set(tile, i, reduced(i, dtype, redop, size));
    }
    return 0;
}

void perf_tile_deinit(struct perf_tile *tile)
{
    free(tile->bytes);
    tile->bytes = NULL;
}

void perf_tile_write(const struct perf_tile *tile, uint64_t phase, void *dst, uint64_t count)
{
    const size_t one = perf_dtype_bytes(tile->dtype);
    const unsigned char *const from = tile->bytes + (phase % PERF_TILE) * one;
    unsigned char *to = dst;
    while (count > 0) {
        const uint64_t n = count < PERF_TILE ? count : PERF_TILE;
        memcpy(to, from, n * one);
        to += n * one;
        count -= n;
    }
}

static uint64_t wrong_in(horon_dtype_t dtype, const unsigned char *want, const unsigned char *got,
                         uint64_t count)
{
    const size_t one = perf_dtype_bytes(dtype);
    const double allowed = tolerance(dtype);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; i++, want += one, got += one) {
        if (memcmp(want, got, one) == 0) {
            continue;
        }
        if (allowed > 0.0) {
            const double a = decode(dtype, want);
            const double b = decode(dtype, got);
            if (fabs(a - b) <= allowed * fmax(1.0, fabs(a))) {
                continue;
            }
        }
        wrong++;
    }
    return wrong;
}

uint64_t perf_tile_wrong(const struct perf_tile *tile, uint64_t phase, const void *got,
                         uint64_t count)
{
    const size_t one = perf_dtype_bytes(tile->dtype);
    const unsigned char *const want = tile->bytes + (phase % PERF_TILE) * one;
    const unsigned char *at = got;
    uint64_t wrong = 0;
    while (count > 0) {
        const uint64_t n = count < PERF_TILE ? count : PERF_TILE;
        if (memcmp(want, at, n * one) != 0) {
            wrong += wrong_in(tile->dtype, want, at, n);
        }
        at += n * one;
        count -= n;
    }
    return wrong;
}
