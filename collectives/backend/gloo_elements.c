/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops as Gloo has them (gloo/math.h: std::max, std::min, a + b, a * b), for the same bits.
 *
 * Sums of 16-bit floats are those of 32 bits, rounded, as horon's are; but Gloo writes one NaN
 * instead of any. What is least or most it compares as numbers, of which zeros are equal and a NaN
 * is neither. (Gloo of 2022 also leaves out some results of float16, in its `operator=`: a wrong
 * sum of one element in 65,536, which is not done here.)
 */
#include "backend/gloo_elements.h"

#include "reduce/reduce.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Of a float of 16 bits. */
#define SIGN UINT16_C(0x8000)
#define SIGNLESS UINT16_C(0x7fff)

#define LOOP(name, type, expression)                                                               \
    static void name(type *own, const type *received, size_t count)                                \
    {                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                       \
            const type a = own[i], b = received[i];                                                \
            own[i] = (expression);                                                                 \
        }                                                                                          \
    }
#define LOOPS(suffix, type)                                                                        \
    LOOP(add_##suffix, type, a + b)                                                                \
    LOOP(multiply_##suffix, type, a *b)                                                            \
    LOOP(least_##suffix, type, b < a ? b : a)                                                      \
    LOOP(most_##suffix, type, a < b ? b : a)                                                       \
    static void combine_##suffix(horon_redop_t redop, type *own, const type *received,             \
                                 size_t count)                                                     \
    {                                                                                              \
        if (redop == HORON_SUM)                                                                    \
            add_##suffix(own, received, count);                                                    \
        else if (redop == HORON_PRODUCT)                                                           \
            multiply_##suffix(own, received, count);                                               \
        else if (redop == HORON_MIN)                                                               \
            least_##suffix(own, received, count);                                                  \
        else                                                                                       \
            most_##suffix(own, received, count);                                                   \
    }
LOOPS(32, float)
LOOPS(64, double)

/* What the types of 16 bits differ in. */
struct half {
    uint16_t infinity, nan; /* any NaN is written as this one */
    bool has_sign;          /* with the sign of that of which it is made */
};

static struct half half_of(horon_dtype_t dtype, bool e1)
{
    if (dtype == HORON_BFLOAT16)
        return (struct half){.infinity = 0x7f80, .nan = 0x7fc0};
    return e1 ? (struct half){.infinity = 0x7c00, .nan = 0x7fff}
              : (struct half){.infinity = 0x7c00, .nan = 0x7e00, .has_sign = true};
}

static bool is_nan(uint16_t bits, struct half half)
{
    return (bits & SIGNLESS) > half.infinity;
}

/* Of a NaN that numbers make, which differs between processors. */
static uint16_t sign_made(void)
{
    volatile float infinity = INFINITY;
    return signbit(infinity - infinity) ? SIGN : 0;
}

static uint16_t sign_of(uint16_t a, uint16_t b, struct half half)
{
    return is_nan(a, half) ? a & SIGN : is_nan(b, half) ? b & SIGN : sign_made();
}

/* Of so many the own ones are kept until their sums are known. */
#define KEPT 256

static void combine_few(horon_dtype_t dtype, horon_redop_t redop, struct half half, uint16_t *own,
                        const uint16_t *received, size_t count)
{
    uint16_t before[KEPT];
    assert(count <= KEPT);
    memcpy(before, own, count * sizeof *own);
    horon_reduce_combine(dtype, redop, own, received, own, count);
    for (size_t i = 0; i < count; i++)
        if (is_nan(own[i], half))
            own[i] = half.nan | (half.has_sign ? sign_of(before[i], received[i], half) : 0);
}

/* As a number: in the order of what it stands for, zeros alike. */
static int rank_of(uint16_t bits)
{
    const int magnitude = bits & SIGNLESS;
    return bits & SIGN ? -magnitude : magnitude;
}

/* @param sign  1: the most is kept; -1: the least */
static void keep_half(uint16_t *own, const uint16_t *received, size_t count, int sign,
                      struct half half)
{
    for (size_t i = 0; i < count; i++) {
        const uint16_t a = own[i], b = received[i];
        const bool goes_before = sign * rank_of(a) < sign * rank_of(b);
        const bool compare = !is_nan(a, half) && !is_nan(b, half);
        own[i] = compare && goes_before ? b : a;
    }
}

static void combine_half(horon_dtype_t dtype, horon_redop_t redop, struct half half, uint16_t *own,
                         const uint16_t *received, size_t count)
{
    if (redop == HORON_MIN || redop == HORON_MAX) {
        keep_half(own, received, count, redop == HORON_MAX ? 1 : -1, half);
        return;
    }
    for (size_t i = 0; i < count; i += KEPT)
        combine_few(dtype, redop, half, own + i, received + i, count - i < KEPT ? count - i : KEPT);
}

void horon_gloo_combine(horon_dtype_t dtype, horon_redop_t redop, bool e1, void *own,
                        const void *received, size_t count)
{
    if (dtype == HORON_FLOAT32)
        combine_32(redop, own, received, count);
    else if (dtype == HORON_FLOAT64)
        combine_64(redop, own, received, count);
    else if (dtype == HORON_FLOAT16 || dtype == HORON_BFLOAT16)
        combine_half(dtype, redop, half_of(dtype, e1), own, received, count);
    else
        horon_reduce_combine(dtype == HORON_BOOL ? HORON_UINT8 : dtype, redop, own, received, own,
                             count);
}
