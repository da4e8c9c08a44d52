/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements and vectors as the kernels see them. VECTOR_BYTES comes first, from a lanes_*.h.
 *
 * Vectors are the compiler's own (vector_size), so that arithmetic on them is plain C and means the
 * same on every architecture. Elements may alias anything, since the memory is the caller's and of
 * types unknown here, and are loaded with no more than their own alignment.
 */
#ifndef HORON_REDUCE_ELEMENTS_H
#define HORON_REDUCE_ELEMENTS_H

#include <stdint.h>
#include <string.h>

/* el_T, an element; v_T, a vector of them; load_T and store_T. */
#define ELEMENT(type, name)                                                                        \
    typedef type el_##name __attribute__((may_alias));                                             \
    typedef type v_##name __attribute__((vector_size(VECTOR_BYTES)));                              \
    typedef v_##name unaligned_##name __attribute__((may_alias, aligned(sizeof(type))));           \
    enum { LANES_##name = VECTOR_BYTES / sizeof(type) };                                           \
    static inline v_##name load_##name(const el_##name *in)                                        \
    {                                                                                              \
        return *(const unaligned_##name *)(const void *)in;                                        \
    }                                                                                              \
    static inline void store_##name(el_##name *out, v_##name value)                                \
    {                                                                                              \
        *(unaligned_##name *)(void *)out = value;                                                  \
    }

ELEMENT(uint8_t, u8)
ELEMENT(int8_t, i8)
ELEMENT(uint16_t, u16)
ELEMENT(int16_t, i16)
ELEMENT(uint32_t, u32)
ELEMENT(int32_t, i32)
ELEMENT(uint64_t, u64)
ELEMENT(int64_t, i64)
ELEMENT(float, f32)
ELEMENT(double, f64)

/* The one NaN that is ever computed. */
#define F16_NAN 0x7e00
#define BF16_NAN 0x7fc0
#define F32_NAN 0x7fc00000
#define F64_NAN 0x7ff8000000000000

/* In each lane a where mask has all bits set, b where it has none. The three are signed integers.
 */
#define SELECT(mask, a, b) (((mask) & (a)) | (~(mask) & (b)))

static inline v_f32 canonical_f32(v_f32 value)
{
    v_i32 nan = (v_i32){0} + F32_NAN;
    return (v_f32)SELECT(value == value, (v_i32)value, nan);
}

static inline v_f64 canonical_f64(v_f64 value)
{
    v_i64 nan = (v_i64){0} + F64_NAN;
    return (v_f64)SELECT(value == value, (v_i64)value, nan);
}

#endif
