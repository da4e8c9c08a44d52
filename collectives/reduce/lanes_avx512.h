/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512: vectors of 64 bytes. Names and bits as in lanes_generic.h. The instructions of
 * AVX512_BF16 are not used: they flush subnormals, whatever the mode.
 */
#ifndef HORON_REDUCE_LANES_AVX512_H
#define HORON_REDUCE_LANES_AVX512_H

#include <immintrin.h>

enum { VECTOR_BYTES = 64 };

#include "reduce/elements.h"

static inline __mmask64 first_bytes(size_t bytes)
{
    return ((__mmask64)1 << bytes) - 1; /* bytes < 64 */
}

static inline void copy_in(void *whole, const void *in, size_t bytes)
{
    _mm512_storeu_si512(whole, _mm512_maskz_loadu_epi8(first_bytes(bytes), in));
}

static inline void copy_out(void *out, const void *whole, size_t bytes)
{
    _mm512_mask_storeu_epi8(out, first_bytes(bytes), _mm512_loadu_si512(whole));
}

static inline v_f32 f16_load(const el_u16 *in)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)in));
}

static inline __m256i f16_narrowed(v_f32 value)
{
    /* all lanes; the form without a mask does not compile without optimisation (gcc 12) */
    return _mm512_maskz_cvtps_ph(0xffff, canonical_f32(value), _MM_FROUND_TO_NEAREST_INT);
}

static inline void f16_store(el_u16 *out, v_f32 value)
{
    _mm256_storeu_si256((__m256i *)(void *)out, f16_narrowed(value));
}

static inline v_f32 bf16_load(const el_u16 *in)
{
    __m256i packed = _mm256_loadu_si256((const __m256i *)(const void *)in);
    return (v_f32)((v_u32)_mm512_cvtepu16_epi32(packed) << 16);
}

static inline v_u32 bf16_narrowed(v_f32 value)
{
    v_u32 bits = (v_u32)canonical_f32(value);
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

static inline void bf16_store(el_u16 *out, v_f32 value)
{
    __m256i rounded = _mm512_cvtepi32_epi16((__m512i)bf16_narrowed(value));
    _mm256_storeu_si256((__m256i *)(void *)out, rounded);
}

#endif
