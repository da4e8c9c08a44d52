/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any CPU: vectors of 16 bytes, and 16-bit floats by integer arithmetic on their bits. The other
 * lanes_*.h give the same names and the same bits. IEEE single precision is assumed.
 *
 * The *_load and *_store functions convert LANES_f32 elements from and to float32; storing rounds
 * to nearest, ties to even, and makes NaN canonical.
 */
#ifndef HORON_REDUCE_LANES_GENERIC_H
#define HORON_REDUCE_LANES_GENERIC_H

#include <stddef.h>

enum { VECTOR_BYTES = 16 };

#include "reduce/elements.h"

/* Copies less than a vector, to or from a place that has room for one; the rest of it becomes 0. */
static inline void copy_in(void *whole, const void *in, size_t bytes)
{
    memset(whole, 0, VECTOR_BYTES);
    memcpy(whole, in, bytes);
}

static inline void copy_out(void *out, const void *whole, size_t bytes)
{
    memcpy(out, whole, bytes);
}

typedef uint16_t halves __attribute__((vector_size(VECTOR_BYTES / 2)));

static inline v_u32 halves_load(const el_u16 *in)
{
    halves packed;
    memcpy(&packed, in, sizeof packed);
    return __builtin_convertvector(packed, v_u32);
}

static inline void halves_store(el_u16 *out, v_u32 value)
{
    halves packed = __builtin_convertvector(value, halves);
    memcpy(out, &packed, sizeof packed);
}

static inline v_f32 f16_widened(v_u32 half)
{
    const uint32_t exponent_ones = 0x7c00u << 13;
    v_u32 shifted = (half & 0x7fffu) << 13;
    v_u32 exponent = shifted & exponent_ones;
    v_u32 normal = shifted + ((127u - 15u) << 23);
    v_u32 special = normal + ((128u - 16u) << 23);
    /* A subnormal is its mantissa times 2^-24: put it under an implicit one, then take that off. */
    v_f32 one = (v_f32)((v_u32){0} + (113u << 23));
    v_u32 tiny = (v_u32)((v_f32)(shifted + (113u << 23)) - one);
    v_u32 bits = SELECT((v_u32)(exponent == exponent_ones), special, normal);
    bits = SELECT((v_u32)(exponent == 0), tiny, bits);
    return (v_f32)(bits | (half & 0x8000u) << 16);
}

static inline v_u32 f16_narrowed(v_f32 value)
{
    const uint32_t beyond = 143u << 23;     /* 65536: certainly overflows */
    const uint32_t smallest = 113u << 23;   /* 2^-14: the smallest normal */
    v_u32 half = (v_u32){0} + (126u << 23); /* 0.5, whose last bit is the last of a subnormal */
    v_u32 bits = (v_u32)value;
    v_u32 magnitude = bits & 0x7fffffffu;
    v_u32 odd = (magnitude >> 13) & 1u;
    v_u32 normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
    v_u32 tiny = (v_u32)((v_f32)magnitude + (v_f32)half) - half;
    v_u32 rounded = SELECT((v_u32)(magnitude < smallest), tiny, normal);
    rounded = SELECT((v_u32)(magnitude >= beyond), (v_u32){0} + 0x7c00u, rounded);
    rounded |= (bits >> 16) & 0x8000u;
    return SELECT((v_u32)(value == value), rounded, (v_u32){0} + F16_NAN);
}

static inline v_u32 bf16_narrowed(v_f32 value)
{
    v_u32 bits = (v_u32)canonical_f32(value);
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

static inline v_f32 f16_load(const el_u16 *in)
{
    return f16_widened(halves_load(in));
}

static inline void f16_store(el_u16 *out, v_f32 value)
{
    halves_store(out, f16_narrowed(value));
}

static inline v_f32 bf16_load(const el_u16 *in)
{
    return (v_f32)(halves_load(in) << 16);
}

static inline void bf16_store(el_u16 *out, v_f32 value)
{
    halves_store(out, bf16_narrowed(value));
}

#endif
