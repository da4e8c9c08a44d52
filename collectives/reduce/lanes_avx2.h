/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2 and F16C: vectors of 32 bytes. Names and bits as in lanes_generic.h. */
#ifndef HORON_REDUCE_LANES_AVX2_H
#define HORON_REDUCE_LANES_AVX2_H

#include <immintrin.h>

enum { VECTOR_BYTES = 32 };

#include "reduce/elements.h"

static inline void copy_in(void *whole, const void *in, size_t bytes)
{
    memset(whole, 0, VECTOR_BYTES);
    memcpy(whole, in, bytes);
}

static inline void copy_out(void *out, const void *whole, size_t bytes)
{
    memcpy(out, whole, bytes);
}

static inline v_f32 f16_load(const el_u16 *in)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)in));
}

static inline __m128i f16_narrowed(v_f32 value)
{
    return _mm256_cvtps_ph(canonical_f32(value), _MM_FROUND_TO_NEAREST_INT);
}

static inline void f16_store(el_u16 *out, v_f32 value)
{
    _mm_storeu_si128((__m128i *)(void *)out, f16_narrowed(value));
}

static inline v_f32 bf16_load(const el_u16 *in)
{
    __m128i packed = _mm_loadu_si128((const __m128i *)(const void *)in);
    return (v_f32)((v_u32)_mm256_cvtepu16_epi32(packed) << 16);
}

static inline v_u32 bf16_narrowed(v_f32 value)
{
    v_u32 bits = (v_u32)canonical_f32(value);
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

static inline void bf16_store(el_u16 *out, v_f32 value)
{
    __m256i rounded = (__m256i)bf16_narrowed(value);
    __m128i low = _mm256_castsi256_si128(rounded);
    __m128i high = _mm256_extracti128_si256(rounded, 1);
    _mm_storeu_si128((__m128i *)(void *)out, _mm_packus_epi32(low, high));
}

#endif
